"""Run a recording through the stream in this folder, with NumPy and the engine of its files only.

    python run.py noisy.wav enhanced.wav
    python run.py inputs.npz outputs.npz

A WAV file has one channel of 16 bits. A .npz file has the inputs by name, with any number of frames. If no input of a
step has a time axis, the frames are stacked along a new first axis. ONNX files run in ONNX Runtime (the package
onnxruntime), and .tflite files in LiteRT (ai-edge-litert).

A step with NaN or infinities gives zeros, and the stream begins anew: its next frames are those before the first.
"""

import json
import pathlib
import sys
import wave

import numpy as np

FOLDER = pathlib.Path(__file__).parent
STREAM = json.loads((FOLDER / "stream.json").read_text())
TIMED = [each for each in STREAM["inputs"] if each["time_axis"] is not None]
TYPES = {"bool": np.bool_, "bfloat16": np.uint16}


def opened(name, signature):
    """Return a file of the folder, or a signature of a LiteRT file, as a function of arrays by name."""
    path = str(FOLDER / name)
    if name.endswith(".tflite"):
        from ai_edge_litert.interpreter import Interpreter  # pyright: ignore

        runner = Interpreter(path, num_threads=1).get_signature_runner(signature)  # a step is small
        return lambda arrays: runner(**arrays)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda arrays: dict(zip(names, session.run(None, arrays), strict=True))


def first_state():
    """Return the state before the first frame."""
    data = (FOLDER / "state.bin").read_bytes()
    state = {}
    for each in STREAM["state"]:
        part = data[each["offset"] : each["offset"] + each["bytes"]]
        state[each["input"]] = np.frombuffer(part, TYPES.get(each["type"], each["type"])).reshape(each["shape"])
    return state


def frames(array, each, start):
    """Return the frames of a pulse from a frame on, padded with zeros after the end."""
    axis = each["time_axis"]
    if axis is None:
        return array if TIMED else np.asarray(array[start])
    size = each["shape"][axis]
    part = np.take(array, np.arange(start * size, min((start + 1) * size, array.shape[axis])), axis)
    widths = [(0, size - part.shape[axis] if place == axis else 0) for place in range(array.ndim)]
    return np.pad(part, widths)


def is_finite(arrays):
    """Return True if no array of floats has NaN or infinities."""
    return all(np.isfinite(array).all() for array in map(np.asarray, arrays) if array.dtype.kind == "f")


def run(inputs):
    """Return the outputs of a whole recording, from the first frame to the last."""
    step = opened(STREAM["step"], "step")
    first = (TIMED or STREAM["inputs"])[0]
    size = first["shape"][first["time_axis"]] if TIMED else 1
    total = inputs[first["name"]].shape[first["time_axis"] or 0]
    if not STREAM["flush"] and (not total or total % size):
        sys.exit(f"the recording has {total} frames, not whole pulses of {size}: export the stream with its flush")
    given, shortest, longest = total * STREAM["pulse"] // size, STREAM["shortest"], STREAM["longest"]
    if given < shortest or (longest is not None and given > longest):
        most = "" if longest is None else f" and {longest} or fewer"
        sys.exit(f"the recording has {given} frames, but the stream takes {shortest} or more{most}")
    first_values, resets = first_state(), 0
    state, pieces = first_values, {each["name"]: [] for each in STREAM["outputs"]}
    # What is not finite before the first frame is not checked.
    checked = [each["output"] for each in STREAM["state"] if is_finite([first_values[each["input"]]])]
    if len(checked) == len(STREAM["state"]):
        checked += [each["name"] for each in STREAM["outputs"] if each["in_step"]]
    for index in range(total // size):
        pulse = {each["name"]: frames(inputs[each["name"]], each, index) for each in STREAM["inputs"]}
        results = step({**pulse, **state})
        state = {each["input"]: results[each["output"]] for each in STREAM["state"]}
        # The inputs too, because some layers of ONNX Runtime turn NaN into numbers.
        if not is_finite([*pulse.values(), *(results[name] for name in checked)]):
            state, resets = first_values, resets + 1
            results = {name: np.zeros_like(array) for name, array in results.items()}
        for each in STREAM["outputs"]:
            if each["in_step"]:
                pieces[each["name"]].append(results[each["name"]])
    if resets:
        print(f"the stream began anew after {resets} step(s) with NaN or infinities", file=sys.stderr)
    if STREAM["flush"]:
        end = {each["name"]: frames(inputs[each["name"]], each, total // size) for each in STREAM["inputs"]}
        if STREAM["valid"]:
            end[STREAM["valid"]] = np.array(total % size * STREAM["pulse"] // size, np.int32)
        results = opened(STREAM["flush"], "flush")({**end, **state})
        for each in STREAM["outputs"]:
            rest = np.asarray(results[each["name"]])
            if each["count"]:
                rest = np.take(rest, np.arange(int(np.max(np.asarray(results[each["count"]])))), each["time_axis"])
            pieces[each["name"]].append(rest)
    joined = {}
    for each in STREAM["outputs"]:
        if each["time_axis"] is None:
            joined[each["name"]] = pieces[each["name"]][-1] if TIMED else np.stack(pieces[each["name"]])
        else:  # frames before the first frame of the recording are dropped
            whole = np.concatenate(pieces[each["name"]], each["time_axis"])
            joined[each["name"]] = np.take(
                whole, np.arange(each["delay"], whole.shape[each["time_axis"]]), each["time_axis"]
            )
    return joined


def main(source, target):
    """Run a file."""
    if not source.endswith(".wav"):
        np.savez(target, **run(dict(np.load(source))))
        return
    try:
        with wave.open(source) as file:
            form = file.getnchannels(), file.getsampwidth()
            rate, data = file.getframerate(), file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        sys.exit(f"{source} cannot be read: {error}; expected a WAV file of one channel of 16 bits")
    if form != (1, 2):
        sys.exit(f"{source}: expected one channel of 16 bits")
    if STREAM["rate"] not in (None, rate):
        sys.exit(f"{source} has {rate} samples a second, but the network takes {STREAM['rate']:g}")
    samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    (audio,) = run({STREAM["inputs"][0]["name"]: samples}).values()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.clip(np.round(audio * 32768), -32768, 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
