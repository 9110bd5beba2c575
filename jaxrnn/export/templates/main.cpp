// Run frames through the stream in a folder: stream FOLDER in.f32 out.f32
//
// A step with NaN or infinities gives zeros, and the stream begins anew: its next frames are those before the first.
//
// The files hold frames of 32-bit floats, such as the samples that `sox in.wav -t f32 in.f32` writes. After an edit of
// the network, export again: this file has its names and sizes. The program needs ONNX Runtime 1.13 or newer.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

struct Array {
    std::string name, type, time_axis;
    size_t bytes, frames, blocks;  // the frames of a step, and the blocks of memory that they lie in
    size_t delay;                  // frames before the first frame of the recording
    std::string count;             // the flush's output for the number of existing frames
};
static const std::vector<Array> INPUTS = {
@INPUTS@    {"@NAME@", "@TYPE@", "@TIME_AXIS@", @BYTES@, @FRAMES@, @BLOCKS@, 0, ""},  // @SHAPE@
};
static const std::vector<Array> OUTPUTS = {
@OUTPUTS@    {"@NAME@", "@TYPE@", "@TIME_AXIS@", @BYTES@, @FRAMES@, @BLOCKS@, @DELAY@, "@COUNT@"},  // @SHAPE@
};
// After each step, the output is the input of the next. The first state is in state.bin.
struct State {
    std::string input, output, type;
    size_t offset, bytes;
};
static const std::vector<State> STATE = {
@STATE@    {"@INPUT@", "@OUTPUT@", "@TYPE@", @OFFSET@, @BYTES@},  // @SHAPE@
};
static const std::string LONGEST = "@LONGEST@", FLUSH = "@FLUSH@", VALID = "@VALID@";
static const size_t PULSE = @PULSE@, SHORTEST = @SHORTEST@;

static std::vector<char> read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

static size_t place(const std::vector<std::string>& names, const std::string& name) {
    const size_t found = std::find(names.begin(), names.end(), name) - names.begin();
    if (found == names.size()) throw std::runtime_error("the file was exported without this program: it lacks " + name);
    return found;
}

static size_t size_of(const Ort::Value& value) {
    return value.GetTensorTypeAndShapeInfo().GetElementCount() * sizeof(float);
}

// NaN and infinities have all bits of the exponent; a compiler may take x != x for false.
static bool is_finite(const void* memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t bits;
        std::memcpy(&bits, static_cast<const char*>(memory) + i, sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) return false;
    }
    return true;
}

struct Graph {
    Ort::Session session;
    std::vector<std::string> inputs, outputs;

    Graph(Ort::Env& env, const std::string& path, const Ort::SessionOptions& options)
        : session(env, std::basic_string<ORTCHAR_T>(path.begin(), path.end()).c_str(), options) {
        Ort::AllocatorWithDefaultOptions allocator;
        for (size_t i = 0; i < session.GetInputCount(); ++i)
            inputs.emplace_back(session.GetInputNameAllocated(i, allocator).get());
        for (size_t i = 0; i < session.GetOutputCount(); ++i)
            outputs.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
    }

    Ort::Value tensor(size_t input) {
        Ort::TypeInfo type = session.GetInputTypeInfo(input);  // must outlive the view below
        auto info = type.GetTensorTypeAndShapeInfo();
        auto shape = info.GetShape();
        Ort::AllocatorWithDefaultOptions allocator;
        return Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), info.GetElementType());
    }

    std::vector<Ort::Value> run(std::vector<Ort::Value>& values) {
        std::vector<const char*> in, out;
        for (const auto& name : inputs) in.push_back(name.c_str());
        for (const auto& name : outputs) out.push_back(name.c_str());
        return session.Run(Ort::RunOptions{nullptr}, in.data(), values.data(), in.size(), out.data(), out.size());
    }
};

int main(int count, char** arguments) try {
    if (count != 4) return std::cerr << "stream FOLDER in.f32 out.f32\n", 2;
    if (INPUTS.size() != 1 || OUTPUTS.size() != 1 || INPUTS[0].time_axis.empty() != OUTPUTS[0].time_axis.empty() ||
        INPUTS[0].type != "float32" || OUTPUTS[0].type != "float32")
        throw std::runtime_error("this program is for a stream from one array of float32 to another: change main.cpp");
    const Array &source = INPUTS[0], &target = OUTPUTS[0];
    const std::string folder = std::string(arguments[1]) + "/";
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING);
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);  // a step is small
    // As JAX and LiteRT: in silence, a state reaches numbers below 1.2e-38, with which some processors are slow.
    options.AddConfigEntry("session.set_denormal_as_zero", "1");
    Graph step(env, folder + "@STEP@", options);

    // Every input in the order of the file; the state is the first state.
    const auto first = read(folder + "state.bin");
    std::vector<Ort::Value> values;
    for (size_t i = 0; i < step.inputs.size(); ++i) values.push_back(step.tensor(i));
    bool all_checked = true;  // what is not finite before the first frame is not checked
    for (const auto& each : STATE) {
        if (each.offset + each.bytes > first.size()) throw std::runtime_error("state.bin is of another export");
        if (each.type == "float32") all_checked &= is_finite(first.data() + each.offset, each.bytes);
    }
    const auto begin = [&] {
        for (const auto& each : STATE) {
            auto& value = values[place(step.inputs, each.input)];
            std::memcpy(value.GetTensorMutableRawData(), first.data() + each.offset, each.bytes);
        }
    };
    begin();
    const size_t in = place(step.inputs, source.name), out = place(step.outputs, target.name);
    if (size_of(values[in]) != source.bytes) throw std::runtime_error("the file was exported without this program");

    const auto samples = read(arguments[2]);
    const size_t frame = source.bytes / source.frames, total = samples.size() / frame;
    if (samples.size() % frame) throw std::runtime_error("the input ends inside of a frame");
    const size_t given = total * PULSE / source.frames, whole = total / source.frames * source.frames;
    if (given < SHORTEST || (!LONGEST.empty() && given > std::stoull(LONGEST)))
        throw std::runtime_error("the stream is not for recordings of this length: see shortest and longest in "
                                 "stream.json");
    if (FLUSH.empty() && whole < total)
        throw std::runtime_error("the last frames do not fill a pulse: export the stream with its flush");

    // A file has frame after frame; an array has the frames of each block together.
    const auto fill = [&](size_t start, size_t frames) {
        char* memory = static_cast<char*>(values[in].GetTensorMutableRawData());
        const size_t part = frame / source.blocks;
        std::memset(memory, 0, source.bytes);
        for (size_t i = 0; i < frames * source.blocks; ++i)
            std::memcpy(memory + (i % source.blocks * source.frames + i / source.blocks) * part,
                        samples.data() + start * frame + i * part, part);
    };
    std::vector<char> audio;
    size_t resets = 0;
    const auto append = [&](const Ort::Value& value, size_t frames) {
        const char* memory = static_cast<const char*>(value.GetTensorRawData());
        const size_t part = target.bytes / target.frames / target.blocks, room = size_of(value) / target.blocks / part;
        for (size_t i = 0; i < frames * target.blocks; ++i) {
            const char* from = memory + (i % target.blocks * room + i / target.blocks) * part;
            audio.insert(audio.end(), from, from + part);
        }
    };
    for (size_t start = 0; start < whole; start += source.frames) {
        fill(start, source.frames);
        auto results = step.run(values);
        // The input too, because some layers of ONNX Runtime turn NaN into numbers.
        bool finite = is_finite(values[in].GetTensorRawData(), source.bytes);
        if (all_checked) finite &= is_finite(results[out].GetTensorRawData(), target.bytes);
        for (const auto& each : STATE)
            if (each.type == "float32" && is_finite(first.data() + each.offset, each.bytes))
                finite &= is_finite(results[place(step.outputs, each.output)].GetTensorRawData(), each.bytes);
        if (!finite) {
            audio.insert(audio.end(), target.bytes, 0);
            begin();
            ++resets;
            continue;
        }
        append(results[out], target.frames);
        for (const auto& each : STATE)
            std::swap(values[place(step.inputs, each.input)], results[place(step.outputs, each.output)]);
    }
    if (resets) std::cerr << "the stream began anew after " << resets << " step(s) with NaN or infinities\n";

    if (!FLUSH.empty()) {
        Graph flush(env, folder + "@FLUSH@", options);
        fill(whole, total - whole);
        std::vector<Ort::Value> last;
        for (size_t i = 0; i < flush.inputs.size(); ++i) {
            const bool is_number = flush.inputs[i] == VALID;
            last.push_back(is_number ? flush.tensor(i) : std::move(values[place(step.inputs, flush.inputs[i])]));
            if (is_number)
                *last[i].GetTensorMutableData<int32_t>() = static_cast<int32_t>(given - whole * PULSE / source.frames);
        }
        auto results = flush.run(last);
        const auto& rest = results[place(flush.outputs, target.name)];
        size_t frames = size_of(rest) / (target.bytes / target.frames);
        if (!target.count.empty()) frames = *results[place(flush.outputs, target.count)].GetTensorData<int32_t>();
        append(rest, frames);
    }

    const size_t late = std::min(audio.size(), target.delay * (target.bytes / target.frames));
    std::ofstream file(arguments[3], std::ios::binary);
    file.write(audio.data() + late, static_cast<std::streamsize>(audio.size() - late));
    if (!file.flush()) throw std::runtime_error(std::string("cannot write ") + arguments[3]);
} catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
}
