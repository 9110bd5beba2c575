// Run samples through the stream in a folder: stream FOLDER in.f32 out.f32
//
// The files hold samples of 32-bit floats, as `sox in.wav -t f32 in.f32` writes them. The names, the pulse, the delay
// and the pairs of states come from the metadata of the ONNX file, and the first state from state.bin. The program needs
// ONNX Runtime 1.13 or newer.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

static size_t size_of(ONNXTensorElementDataType type) {
    switch (type) {
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64: return 8;
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32: return 4;
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16: return 2;
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
        case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return 1;
        default: throw std::runtime_error("the state has an unusual type");
    }
}

struct Graph {
    Ort::Session session;
    std::vector<std::string> inputs, outputs;
    std::map<std::string, std::string> facts;

    Graph(Ort::Env& env, const std::string& path, const Ort::SessionOptions& options)
        : session(env, std::basic_string<ORTCHAR_T>(path.begin(), path.end()).c_str(), options) {
        Ort::AllocatorWithDefaultOptions allocator;
        for (size_t i = 0; i < session.GetInputCount(); ++i)
            inputs.emplace_back(session.GetInputNameAllocated(i, allocator).get());
        for (size_t i = 0; i < session.GetOutputCount(); ++i)
            outputs.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
        auto metadata = session.GetModelMetadata();
        for (const auto& key : metadata.GetCustomMetadataMapKeysAllocated(allocator))
            facts[key.get()] = metadata.LookupCustomMetadataMapAllocated(key.get(), allocator).get();
    }

    // An input's tensor, filled from bytes, or with zeros.
    Ort::Value tensor(const std::string& name, const char* bytes = nullptr, size_t* read = nullptr) {
        size_t index = std::find(inputs.begin(), inputs.end(), name) - inputs.begin();
        Ort::TypeInfo type = session.GetInputTypeInfo(index);  // must outlive the view below
        auto info = type.GetTensorTypeAndShapeInfo();
        auto shape = info.GetShape();
        Ort::AllocatorWithDefaultOptions allocator;
        auto value = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), info.GetElementType());
        size_t size = info.GetElementCount() * size_of(info.GetElementType());
        // The memory is not initialised.
        bytes ? std::memcpy(value.GetTensorMutableRawData(), bytes, size)
              : std::memset(value.GetTensorMutableRawData(), 0, size);
        if (read) *read = size;
        return value;
    }

    std::vector<Ort::Value> run(std::vector<Ort::Value>& values) {
        std::vector<const char*> in, out;
        for (const auto& name : inputs) in.push_back(name.c_str());
        for (const auto& name : outputs) out.push_back(name.c_str());
        return session.Run(Ort::RunOptions{nullptr}, in.data(), values.data(), in.size(), out.data(), out.size());
    }
};

static std::vector<std::pair<std::string, std::string>> pairs(const std::string& text) {
    std::vector<std::pair<std::string, std::string>> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        found.emplace_back(line.substr(0, line.find('=')), line.substr(line.find('=') + 1));
    return found;
}

static std::vector<char> read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

static size_t place(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) - names.begin();
}

int main(int count, char** arguments) try {
    if (count != 4) return std::cerr << "stream FOLDER in.f32 out.f32\n", 2;
    const std::string folder = std::string(arguments[1]) + "/";
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING);
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);  // a step is small
    Graph step(env, folder + "@STEP@", options);

    // Every input in the order of the file; the state is the first state.
    const auto state = pairs(step.facts["jaxrnn.state"]);
    const auto first = read(folder + "state.bin");
    std::map<std::string, Ort::Value> given;
    size_t at = 0, size = 0;
    for (const auto& [input, output] : state) {
        given.emplace(input, step.tensor(input, first.data() + at, &size));
        at += size;
    }
    if (at != first.size()) throw std::runtime_error("state.bin is of another export than @STEP@");
    std::vector<Ort::Value> values;
    std::string samples_name;
    for (const auto& name : step.inputs) {
        auto found = given.find(name);
        if (found == given.end()) samples_name = name;
        values.push_back(found == given.end() ? step.tensor(name) : std::move(found->second));
    }

    const auto bytes = read(arguments[2]);
    std::vector<float> samples(bytes.size() / sizeof(float)), audio;
    std::memcpy(samples.data(), bytes.data(), samples.size() * sizeof(float));
    const auto [audio_name, delay] = pairs(step.facts["jaxrnn.delay"]).at(0);
    const size_t in = place(step.inputs, samples_name), out = place(step.outputs, audio_name);
    const size_t pulse = values[in].GetTensorTypeAndShapeInfo().GetElementCount();
    const size_t whole = samples.size() / pulse * pulse;
    for (size_t start = 0; start < whole; start += pulse) {
        std::copy_n(samples.data() + start, pulse, values[in].GetTensorMutableData<float>());
        auto results = step.run(values);
        const float* frames = results[out].GetTensorData<float>();
        audio.insert(audio.end(), frames, frames + results[out].GetTensorTypeAndShapeInfo().GetElementCount());
        for (const auto& [input, output] : state)
            std::swap(values[place(step.inputs, input)], results[place(step.outputs, output)]);
    }

    if (!std::string("@FLUSH@").empty()) {
        Graph flush(env, folder + "@FLUSH@", options);
        std::vector<Ort::Value> last;
        for (const auto& name : flush.inputs) {
            const size_t index = place(step.inputs, name);
            const bool carried = index < step.inputs.size() && index != in;
            last.push_back(carried ? std::move(values[index]) : flush.tensor(name));
            if (index == in)
                std::copy(samples.begin() + whole, samples.end(), last.back().GetTensorMutableData<float>());
            else if (!carried)  // the number of frames in the tail
                *last.back().GetTensorMutableData<int32_t>() = static_cast<int32_t>(samples.size() - whole);
        }
        auto results = flush.run(last);
        const auto counts = pairs(flush.facts["jaxrnn.counts"]);
        const int32_t rest = *results[place(flush.outputs, counts.at(0).second)].GetTensorData<int32_t>();
        const float* frames = results[place(flush.outputs, audio_name)].GetTensorData<float>();
        audio.insert(audio.end(), frames, frames + rest);
    }

    const size_t late = std::min(audio.size(), static_cast<size_t>(std::stoul(delay)));
    std::ofstream(arguments[3], std::ios::binary)
        .write(reinterpret_cast<const char*>(audio.data() + late), (audio.size() - late) * sizeof(float));
} catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
}
