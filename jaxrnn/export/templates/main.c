// Run frames through the stream in a folder, as they come: stream FOLDER < in.f32 > out.f32
//
// A step with NaN or infinities gives zeros, and the stream begins anew: its next frames are those before the first.
//
// The frames are 32-bit floats, such as the samples that `sox in.wav -t f32 -` writes. All memory is allocated before
// the first frame. The program needs libLiteRt.so of LiteRT 2.3, as in the Python package ai-edge-litert:
//
//     gcc -O2 main.c -o stream -L LITERT -lLiteRt -Wl,-rpath,LITERT
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// LiteRT's functions and handles, as litert/c/*.h declare them.
typedef void *Handle;
typedef struct {
    int32_t words[32];  // at least the size of LiteRtRankedTensorType, which LiteRT fills and reads
} TensorType;
int LiteRtCreateEnvironment(int, const void *, Handle *);
int LiteRtCreateModelFromFile(Handle environment, const char *, Handle *);
int LiteRtCreateOptions(Handle *);
int LiteRtSetOptionsHardwareAccelerators(Handle options, int);
int LiteRtCreateCompiledModel(Handle environment, Handle model, Handle options, Handle *);
int LiteRtGetNumModelSignatures(Handle model, size_t *);
int LiteRtGetModelSignature(Handle model, size_t, Handle *);
int LiteRtGetSignatureKey(Handle signature, const char **);
int LiteRtGetNumSignatureInputs(Handle signature, size_t *);
int LiteRtGetNumSignatureOutputs(Handle signature, size_t *);
int LiteRtGetSignatureInputName(Handle signature, size_t, const char **);
int LiteRtGetSignatureOutputName(Handle signature, size_t, const char **);
int LiteRtGetSignatureInputTensorByIndex(Handle signature, size_t, Handle *);
int LiteRtGetSignatureOutputTensorByIndex(Handle signature, size_t, Handle *);
int LiteRtGetRankedTensorType(Handle tensor, TensorType *);
int LiteRtGetCompiledModelInputBufferRequirements(Handle compiled, size_t signature, size_t, Handle *);
int LiteRtGetCompiledModelOutputBufferRequirements(Handle compiled, size_t signature, size_t, Handle *);
int LiteRtCreateManagedTensorBufferFromRequirements(Handle environment, const TensorType *, Handle, Handle *);
int LiteRtGetTensorBufferPackedSize(Handle buffer, size_t *);
int LiteRtLockTensorBuffer(Handle buffer, void **, int mode);
int LiteRtUnlockTensorBuffer(Handle buffer);
int LiteRtRunCompiledModel(Handle compiled, size_t signature, size_t, Handle *, size_t, Handle *);
enum { READ = 0, WRITE = 1, CPU = 1 };

typedef struct {
    const char *name, *type, *time_axis;
    size_t bytes, frames, blocks;  // the frames of a step, and the blocks of memory that they lie in
    size_t delay;                  // frames before the first frame of the recording
    const char *count;             // the flush's output for the number of existing frames
} Array;
static const Array INPUTS[] = {
@INPUTS@    {"@NAME@", "@TYPE@", "@TIME_AXIS@", @BYTES@, @FRAMES@, @BLOCKS@, 0, ""},  // @SHAPE@
};
static const Array OUTPUTS[] = {
@OUTPUTS@    {"@NAME@", "@TYPE@", "@TIME_AXIS@", @BYTES@, @FRAMES@, @BLOCKS@, @DELAY@, "@COUNT@"},  // @SHAPE@
};
// After each step, the output is the input of the next. The first state is in state.bin.
static const struct {
    const char *input, *output, *type;
    size_t offset, bytes;
} STATE[] = {
@STATE@    {"@INPUT@", "@OUTPUT@", "@TYPE@", @OFFSET@, @BYTES@},  // @SHAPE@
    {NULL, NULL, "", 0, 0},
};
static const char LONGEST[] = "@LONGEST@", FLUSH[] = "@FLUSH@", VALID[] = "@VALID@";
static const size_t PULSE = @PULSE@, SHORTEST = @SHORTEST@;
enum { MOST = sizeof STATE / sizeof *STATE + sizeof INPUTS / sizeof *INPUTS + 2 * sizeof OUTPUTS / sizeof *OUTPUTS };

typedef struct {
    size_t index, inputs, outputs;  // the place of the signature in the file, and numbers of its arrays
    const char *input_names[MOST], *output_names[MOST];
    Handle in[MOST], out[MOST];  // tensor buffers
} Signature;

static Handle environment, model, compiled;

static void fail(const char *problem, const char *detail) {
    fprintf(stderr, "%s%s\n", problem, detail);
    exit(1);
}

#define CHECK(call) ((call) == 0 ? (void)0 : fail("LiteRT fails: ", #call))

static size_t place(const char *const *names, size_t count, const char *name) {
    for (size_t i = 0; i < count; ++i)
        if (strcmp(names[i], name) == 0) return i;
    fail("the file was exported again without this program: it lacks ", name);
    return 0;
}

static void *lock(Handle buffer, int mode) {
    void *memory;
    CHECK(LiteRtLockTensorBuffer(buffer, &memory, mode));
    return memory;
}

static void check_size(Handle buffer, size_t bytes, const char *name) {
    size_t found;
    CHECK(LiteRtGetTensorBufferPackedSize(buffer, &found));
    if (found != bytes) fail("the file was exported again without this program: another size has ", name);
}

static Handle new_buffer(Handle tensor, Handle requirements) {
    TensorType type;
    Handle buffer;
    CHECK(LiteRtGetRankedTensorType(tensor, &type));
    CHECK(LiteRtCreateManagedTensorBufferFromRequirements(environment, &type, requirements, &buffer));
    return buffer;
}

// Find a signature and allocate its arrays. A flush takes the arrays of the step that have the same names.
static void open_signature(Signature *self, const char *key, const Signature *step) {
    Handle signature, tensor, requirements;
    const char *found;
    size_t count;
    CHECK(LiteRtGetNumModelSignatures(model, &count));
    for (self->index = 0;; ++self->index) {
        if (self->index == count) fail("the file has no signature ", key);
        CHECK(LiteRtGetModelSignature(model, self->index, &signature));
        CHECK(LiteRtGetSignatureKey(signature, &found));
        if (strcmp(found, key) == 0) break;
    }
    CHECK(LiteRtGetNumSignatureInputs(signature, &self->inputs));
    CHECK(LiteRtGetNumSignatureOutputs(signature, &self->outputs));
    if (self->inputs > MOST || self->outputs > MOST) fail("the file was exported again without this program", "");
    for (size_t i = 0; i < self->inputs; ++i) {
        CHECK(LiteRtGetSignatureInputName(signature, i, &self->input_names[i]));
        CHECK(LiteRtGetSignatureInputTensorByIndex(signature, i, &tensor));
        if (step != NULL && strcmp(self->input_names[i], VALID) != 0) continue;  // of the step
        CHECK(LiteRtGetCompiledModelInputBufferRequirements(compiled, self->index, i, &requirements));
        self->in[i] = new_buffer(tensor, requirements);
    }
    for (size_t i = 0; i < self->outputs; ++i) {
        CHECK(LiteRtGetSignatureOutputName(signature, i, &self->output_names[i]));
        CHECK(LiteRtGetSignatureOutputTensorByIndex(signature, i, &tensor));
        CHECK(LiteRtGetCompiledModelOutputBufferRequirements(compiled, self->index, i, &requirements));
        self->out[i] = new_buffer(tensor, requirements);
    }
}

// NaN and infinities have all bits of the exponent; a compiler may take x != x for false.
static int is_finite(Handle buffer, size_t bytes) {
    const char *memory = lock(buffer, READ);
    int finite = 1;
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t bits;
        memcpy(&bits, memory + i, sizeof bits);
        finite &= (bits & 0x7f800000u) != 0x7f800000u;
    }
    CHECK(LiteRtUnlockTensorBuffer(buffer));
    return finite;
}

static void fill(Handle buffer, const char *data, size_t bytes) {
    void *memory = lock(buffer, WRITE);
    if (data != NULL) memcpy(memory, data, bytes);
    else memset(memory, 0, bytes);
    CHECK(LiteRtUnlockTensorBuffer(buffer));
}

static void run(Signature *self) {
    CHECK(LiteRtRunCompiledModel(compiled, self->index, self->inputs, self->in, self->outputs, self->out));
}

// The stream has frame after frame; an array has the frames of each block together.
static size_t read_frames(char *memory) {
    const size_t size = INPUTS->bytes / INPUTS->frames / INPUTS->blocks;
    memset(memory, 0, INPUTS->bytes);
    for (size_t i = 0; i < INPUTS->frames * INPUTS->blocks; ++i) {
        const size_t block = i % INPUTS->blocks, frame = i / INPUTS->blocks;
        const size_t found = fread(memory + (block * INPUTS->frames + frame) * size, 1, size, stdin);
        if (found == size) continue;
        if (found > 0 || block > 0) fail("the input ends inside of a frame", "");
        return frame;
    }
    return INPUTS->frames;
}

// Write frames of the output, except those before the first frame of the recording. The array has room for frames.
static void write_frames(Handle buffer, size_t frames, size_t room) {
    static size_t dropped;
    const size_t size = OUTPUTS->bytes / OUTPUTS->frames / OUTPUTS->blocks;
    const size_t late = OUTPUTS->delay - dropped < frames ? OUTPUTS->delay - dropped : frames;
    const char *memory = lock(buffer, READ);
    for (size_t i = late * OUTPUTS->blocks; i < frames * OUTPUTS->blocks; ++i) {
        const char *from = memory + (i % OUTPUTS->blocks * room + i / OUTPUTS->blocks) * size;
        if (fwrite(from, 1, size, stdout) != size) fail("cannot write the output", "");
    }
    CHECK(LiteRtUnlockTensorBuffer(buffer));
    dropped += late;
}

static void path_in(char *path, const char *folder, const char *name) {
    if (snprintf(path, FILENAME_MAX, "%s/%s", folder, name) >= FILENAME_MAX) fail("the path is too long: ", folder);
}

int main(int count, char **arguments) {
    static Signature step, flush;
    static char path[FILENAME_MAX];
    Handle options;
    if (count != 2) fail("stream FOLDER < in.f32 > out.f32", "");
    const Array *ends[] = {INPUTS, OUTPUTS};
    for (int i = 0; i < 2; ++i)
        if (strcmp(ends[i]->type, "float32") != 0)
            fail("this program reads and writes float32, but not ", ends[i]->name);
    if (sizeof INPUTS / sizeof *INPUTS != 1 || sizeof OUTPUTS / sizeof *OUTPUTS != 1 ||
        !*INPUTS->time_axis != !*OUTPUTS->time_axis)
        fail("this program is for a stream from one array of frames to another: change main.c", "");

    CHECK(LiteRtCreateEnvironment(0, NULL, &environment));
    path_in(path, arguments[1], "@STEP@");
    if (LiteRtCreateModelFromFile(environment, path, &model) != 0) fail("LiteRT cannot open ", path);
    CHECK(LiteRtCreateOptions(&options));
    CHECK(LiteRtSetOptionsHardwareAccelerators(options, CPU));
    CHECK(LiteRtCreateCompiledModel(environment, model, options, &compiled));
    open_signature(&step, "step", NULL);
    if (*FLUSH) open_signature(&flush, "flush", &step);
    const size_t source = place(step.input_names, step.inputs, INPUTS->name);
    const size_t target = place(step.output_names, step.outputs, OUTPUTS->name);
    check_size(step.in[source], INPUTS->bytes, INPUTS->name);
    check_size(step.out[target], OUTPUTS->bytes, OUTPUTS->name);

    // The first state, and the places of each state. What is not finite before the first frame is not checked.
    static size_t before[MOST], after[MOST];
    static int checked[MOST];
    size_t size = 0, resets = 0;
    for (size_t i = 0; STATE[i].input != NULL; ++i) size += STATE[i].bytes;
    char *first = malloc(size + 1);
    path_in(path, arguments[1], "state.bin");
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail("cannot open ", path);
    if (first == NULL || fread(first, 1, size, file) != size) fail("too short: ", path);
    fclose(file);
    int all_checked = 1;
    for (size_t i = 0; STATE[i].input != NULL; ++i) {
        before[i] = place(step.input_names, step.inputs, STATE[i].input);
        after[i] = place(step.output_names, step.outputs, STATE[i].output);
        check_size(step.in[before[i]], STATE[i].bytes, STATE[i].input);
        fill(step.in[before[i]], first + STATE[i].offset, STATE[i].bytes);
        const int is_float = strcmp(STATE[i].type, "float32") == 0;
        checked[i] = is_float && is_finite(step.in[before[i]], STATE[i].bytes);
        all_checked &= checked[i] || !is_float;
    }

    size_t frames, total = 0;
    for (;;) {
        frames = read_frames(lock(step.in[source], WRITE));
        CHECK(LiteRtUnlockTensorBuffer(step.in[source]));
        total += frames * PULSE / INPUTS->frames;
        if (frames < INPUTS->frames) break;
        run(&step);
        int finite = is_finite(step.in[source], INPUTS->bytes);
        if (all_checked) finite &= is_finite(step.out[target], OUTPUTS->bytes);
        for (size_t i = 0; STATE[i].input != NULL; ++i)
            if (checked[i]) finite &= is_finite(step.out[after[i]], STATE[i].bytes);
        if (!finite) {
            fill(step.out[target], NULL, OUTPUTS->bytes);
            for (size_t i = 0; STATE[i].input != NULL; ++i)
                fill(step.out[after[i]], first + STATE[i].offset, STATE[i].bytes);
            ++resets;
        }
        write_frames(step.out[target], OUTPUTS->frames, OUTPUTS->frames);
        for (size_t i = 0; STATE[i].input != NULL; ++i) {  // no copy
            const Handle next = step.out[after[i]];
            step.out[after[i]] = step.in[before[i]];
            step.in[before[i]] = next;
        }
    }
    if (total < SHORTEST || (*LONGEST && total > strtoull(LONGEST, NULL, 10)))
        fail("the stream is not for recordings of this length: see shortest and longest in stream.json", "");
    if (*FLUSH) {
        for (size_t i = 0; i < flush.inputs; ++i)
            if (strcmp(flush.input_names[i], VALID) != 0)
                flush.in[i] = step.in[place(step.input_names, step.inputs, flush.input_names[i])];
        if (*VALID) {
            const Handle valid = flush.in[place(flush.input_names, flush.inputs, VALID)];
            *(int32_t *)lock(valid, WRITE) = (int32_t)(frames * PULSE / INPUTS->frames);
            CHECK(LiteRtUnlockTensorBuffer(valid));
        }
        run(&flush);
        const Handle rest = flush.out[place(flush.output_names, flush.outputs, OUTPUTS->name)];
        CHECK(LiteRtGetTensorBufferPackedSize(rest, &size));
        const size_t room = size / (OUTPUTS->bytes / OUTPUTS->frames);
        size_t existing = room;
        if (*OUTPUTS->count) {
            const Handle number = flush.out[place(flush.output_names, flush.outputs, OUTPUTS->count)];
            existing = (size_t) * (const int32_t *)lock(number, READ);
            CHECK(LiteRtUnlockTensorBuffer(number));
        }
        write_frames(rest, existing, room);
    } else if (frames > 0) {
        fail("the last frames do not fill a pulse: export the stream with its flush", "");
    }
    if (resets) fprintf(stderr, "the stream began anew after %zu step(s) with NaN or infinities\n", resets);
    free(first);
    return fflush(stdout) == 0 ? 0 : 1;
}
