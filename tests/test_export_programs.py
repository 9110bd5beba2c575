"""The programs of `export --example` in C, C++, Kotlin and Swift: compiled, run, and written for any name."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MODELS
from packages import needs_litert
from refusals import check_refused
from test_cli import call
from test_export_example import TOLERANCE, counted, mirrored, program, smoothed

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.export import export_litert, write_example
from jaxrnn.export.examples import filled
from jaxrnn.model.streaming import time_symbols
from tools.goldens import ARGUMENTS

#: A folder with include/ and lib/ of ONNX Runtime.
NATIVE = os.environ.get("JAXRNN_ONNXRUNTIME")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
needs_native = pytest.mark.skipif(
    NATIVE is None or shutil.which("cmake") is None,
    reason="set JAXRNN_ONNXRUNTIME to a folder with include/ and lib/ of ONNX Runtime, and install cmake",
)

#: Names with an end of the literal, trigraphs and digraphs, interpolations, and all bytes.
HOSTILE = (
    *(f'a{trigraph}"; int x = 1 / 0; // ' for trigraph in ("??/", "??'", "??=", "%:", "<:", "\\", "\\\n", "\r")),
    "${1 / 0}$x\\(fatalError())\\u{22}\\u0022*/ /* </script>`|",
    "\u202e\u2028\x85\U0001d11e???\\?>?0",
    "".join(map(chr, range(256))),
)


def summed(arrays):
    """A sound with states of several types."""
    results = counted({"x": arrays["x"][:, None]})
    return {"y": sum(each.astype(np.float32) for each in results.values())[:, 0]}


def added(arrays):
    """A running sum, which is an output and a state, plus a frame before, which is a state and the pulse."""
    return {"y": jnp.cumsum(arrays["x"]) + jnp.pad(arrays["x"], (1, 0))[:-1]}


def running(arrays):
    """A running sum only, so that the output is the state."""
    return {"y": jnp.cumsum(arrays["x"])}


def rows(arrays):
    """A running sum of frames of three elements, half as many frames, and with a batch axis of one stream."""
    return {"y": jnp.cumsum(arrays["x"][0, ::2], axis=0)[None]}


def run_in_c(example, data, build, standard="c11"):
    """Compile main.c of an example, and run frames through the stream; return the result and the output."""
    (library,) = importlib.util.find_spec("ai_edge_litert").submodule_search_locations
    warned = (f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover")
    linked = ("-L", library, "-lLiteRt", f"-Wl,-rpath,{library}")
    if not (built := build / f"stream_{standard}").exists():
        subprocess.run(["gcc", *warned, example / "main.c", "-o", built, *linked], check=True)
    done = subprocess.run([built, example], input=data.tobytes(), capture_output=True, check=False)
    return done, np.frombuffer(done.stdout, np.float32)


def columns(arrays):
    """A running sum of two rows, whose frames lie apart in memory."""
    return {"y": jnp.cumsum(arrays["x"], axis=1) + arrays["x"]}


def check_recordings(write, run, tmp_path):
    """Run recordings of all lengths in a pulse, none too, of samples and of frames of several elements."""
    rng = np.random.default_rng(0)
    for function, shape, axis, options in (
        (smoothed, (8,), 0, {"pulse": 3}),
        (summed, (8,), 0, {"pulse": 2}),
        (rows, (1, 8, 3), 1, {"pulse": 4}),
        (columns, (2, 8, 3), 1, {"pulse": 3}),
        (added, (8,), 0, {"pulse": 1}),
        (running, (8,), 0, {"pulse": 1}),
        (mirrored, (8,), 0, {"pulse": 2, "constraints": ["S >= 3", "S <= 9"]}),
    ):
        folder = tmp_path / function.__name__
        folder.mkdir()
        with jax.enable_x64(True):
            streamed = jaxrnn.stream(function, {"x": jax.ShapeDtypeStruct(shape, np.float32)}, axes=axis, **options)
            write_example(write(streamed, folder), folder / "example")
            for frames in (0, 2, 3, 8, 9, 10):
                x = rng.standard_normal([frames if at == axis else size for at, size in enumerate(shape)])
                x = x.astype(np.float32)
                done, found = run(folder / "example", np.moveaxis(x, axis, 0), folder)
                if function is mirrored and not 3 <= frames <= 9:
                    assert b"is not for recordings of this length" in done.stderr
                    assert done.returncode == 1
                    continue
                assert done.returncode == 0, done.stderr
                expected = np.ravel(np.moveaxis(function({"x": jnp.asarray(x)})["y"], axis, 0))
                np.testing.assert_allclose(found, expected, rtol=1e-6, atol=4e-3 if function is summed else 1e-6)


@needs_litert
@needs_gcc
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_the_program_in_c(tmp_path):
    """Streams over recordings; a step of a model; and refusals."""
    check_recordings(lambda streamed, folder: export_litert(streamed, None, folder / "s.tflite"), run_in_c, tmp_path)
    rng = np.random.default_rng(0)
    folder = tmp_path / "whole"
    folder.mkdir()
    streamed = jaxrnn.stream(smoothed, {"x": np.zeros(8, np.float32)}, axes=0, pulse=4)
    write_example(export_litert(streamed, None, folder / "step.tflite", flush=False), folder / "example")
    done, found = run_in_c(folder / "example", np.arange(8, dtype=np.float32), folder)
    np.testing.assert_allclose(found, smoothed({"x": jnp.arange(8, dtype=np.float32)})["y"][:6], rtol=1e-6)
    done, _ = run_in_c(folder / "example", np.zeros(6, np.float32), folder)
    assert b"do not fill a pulse: export the stream with its flush" in done.stderr

    folder = tmp_path / "pair"
    folder.mkdir()
    streamed = jaxrnn.stream(lambda x: {"y": x["a"] - x["b"]}, {n: np.zeros(8, np.float32) for n in "ab"}, axes=0)
    write_example(export_litert(streamed, None, folder / "step.tflite"), folder / "example")
    assert b"from one array of frames to another" in run_in_c(folder / "example", np.zeros(6), folder)[0].stderr

    folder, model = tmp_path / "model", jaxrnn.load(PACKAGED)
    call("export", PACKAGED, "--dim", "time=1", "-o", tmp_path / "s.tflite", "--example", folder)
    x = rng.uniform(size=(5, 1, 129)).astype(np.float32)
    done, found = run_in_c(folder, x, tmp_path)
    expected, _ = model.scan(model.params, model.init(), {"magnitude": x[:, None]})
    np.testing.assert_allclose(found, np.ravel(expected["mask"]), atol=TOLERANCE)


@needs_native
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_the_program_in_cpp(tmp_path):
    """Streams over recordings, with a pulse of 2 with vectors of the state; a step of a model; and refusals."""
    check_recordings(
        lambda streamed, folder: jaxrnn.export_onnx(
            streamed, None, folder / "s.onnx", flush=folder / "f.onnx", join_state=streamed.pulse == 2
        ),
        run_in_cpp,
        tmp_path,
    )
    streamed = jaxrnn.stream(lambda x: {"y": x["a"] - x["b"]}, {n: np.zeros(8, np.float32) for n in "ab"}, axes=0)
    write_example(jaxrnn.export_onnx(streamed, None, tmp_path / "pair.onnx"), tmp_path / "pair")
    assert b"from one array of float32" in run_in_cpp(tmp_path / "pair", np.zeros(6), tmp_path / "pair")[0].stderr
    model, folder = jaxrnn.load(PACKAGED), tmp_path / "model"
    write_example(jaxrnn.export_onnx(model, None, tmp_path / "s.onnx", step=True, dims={"time": 1}), folder)
    x = np.random.default_rng(0).uniform(size=(5, 1, 129)).astype(np.float32)
    _, found = run_in_cpp(folder, x, folder)
    expected, _ = model.scan(model.params, model.init(), {"magnitude": x[:, None]})
    np.testing.assert_allclose(found, np.ravel(expected["mask"]), atol=TOLERANCE)


def leaky(arrays):
    """A filter whose state remembers NaN and infinities, and overflows, and a look-ahead of two frames."""

    def step(y, x):
        y = x + y / 2
        return y, y

    y = jax.lax.scan(step, jnp.zeros(()), arrays["x"])[1]
    return {"y": y + jnp.pad(arrays["x"], (0, 2))[2:]}


def check_recovery(exported, streamed, run, tmp_path):
    """The stream begins anew after NaN, an infinity and an overflow, and reports the steps."""
    write_example(exported, tmp_path / "example")
    x = np.random.default_rng(0).standard_normal(26).astype(np.float32)
    x[6], x[10], x[16:20] = np.nan, -np.inf, 3e38
    live = jaxrnn.Runner(streamed, on_nonfinite="reset")
    expected = [live({"x": x[k : k + 4]})["y"] for k in range(0, 24, 4)] + [live.flush({"x": x[24:]})["y"]]
    assert live.resets == 3
    found, said = run(tmp_path / "example", x, tmp_path)
    np.testing.assert_allclose(found, np.concatenate(expected)[2:], rtol=1e-6)
    assert np.isfinite(found).all()
    assert "the stream began anew after 3 step(s) with NaN or infinities" in said


def in_python(example, x, build, *, capsys):
    (found,) = program(example).run({"x": x}).values()
    return found, capsys.readouterr().err


def in_native(run):
    def ran(example, x, build):
        done, found = run(example, x, build)
        assert done.returncode == 0, done.stderr
        return found, done.stderr.decode()

    return ran


@pytest.mark.parametrize(
    "language",
    [
        "py",
        pytest.param("c", marks=[needs_litert, needs_gcc, pytest.mark.thorough]),
        pytest.param("cpp", marks=[needs_native, pytest.mark.thorough]),
    ],
)
def test_programs_begin_anew_after_nan(language, tmp_path, capsys):
    streamed = jaxrnn.stream(leaky, {"x": np.zeros(8, np.float32)}, axes=0, pulse=4)
    if language == "c":
        exported = export_litert(streamed, None, tmp_path / "s.tflite")
    else:
        exported = jaxrnn.export_onnx(streamed, None, tmp_path / "s.onnx", flush=tmp_path / "f.onnx")
    runs = {"c": in_native(run_in_c), "cpp": in_native(run_in_cpp), "py": functools.partial(in_python, capsys=capsys)}
    check_recovery(exported, streamed, runs[language], tmp_path)


@pytest.mark.parametrize("language", ["py", pytest.param("cpp", marks=[needs_native, pytest.mark.thorough])])
def test_programs_begin_anew_after_nan_that_an_engine_loses(language, tmp_path, capsys):
    """The GRU of ONNX Runtime turns NaN into numbers."""
    model, folder = jaxrnn.load(PACKAGED), tmp_path / "example"
    write_example(jaxrnn.export_onnx(model, None, tmp_path / "s.onnx", step=True, dims={"time": 1}), folder)
    x = np.random.default_rng(0).uniform(size=(5, 1, 1, 129)).astype(np.float32)
    clean, x[2] = x.copy(), np.nan
    if language == "py":
        run = program(folder).run
        found, begun = run({"magnitude": x})["mask"], run({"magnitude": clean[3:]})["mask"]
        assert "anew after 1 step(s)" in capsys.readouterr().err
    else:
        ran = in_native(run_in_cpp)
        found, begun = (ran(folder, each, tmp_path)[0].reshape(-1, 1, 1, 129) for each in (x, clean[3:]))
    np.testing.assert_array_equal(found[2:], [np.zeros_like(found[0]), *begun])


@pytest.mark.skipif(shutil.which("node") is None, reason="node.js is not installed")
def test_the_page_begins_anew_after_nan():
    """With a few lines in place of ONNX Runtime: a sum, whose state is h, and a count n of steps."""
    html = (Path(jaxrnn.export.__file__).parent / "templates" / "index.html").read_text()
    code = "".join(
        html[html.index(start) : html.index(end)]
        for start, end in (("const TYPES", "async function fetched"), ("class Stream", "// A change of the rate"))
    )
    facts = {
        "inputs": [{"name": "x", "type": "float32", "shape": [2], "time_axis": 0}],
        "outputs": [{"name": "y", "type": "float32", "shape": [2], "time_axis": 0, "in_step": True, "delay": 0}],
        "state": [
            {"input": name, "output": f"{name}_next", "type": kind, "shape": [1], "offset": at, "bytes": 4}
            for name, kind, at in (("h", "float32", 0), ("n", "int32", 4))
        ],
        "rate": 8,
        "step": "step.onnx",
    }
    script = f"""
    globalThis.location = {{href: 'http://localhost/'}};
    class Tensor {{ constructor(type, data) {{ this.data = data; }} }}
    const run = async ({{x, h, n}}) => {{
      const y = Float32Array.of(h.data[0] + x.data[0], h.data[0] + x.data[0] + x.data[1]);
      const next = {{data: Float32Array.of(y[1])}};
      return {{y: {{data: y}}, h_next: next, n_next: {{data: Int32Array.of(n.data[0] + 1)}}}};
    }};
    const ort = {{env: {{wasm: {{}}}}, Tensor, InferenceSession: {{create: async () => ({{run}})}}}};
    const files = {{'stream.json': new TextEncoder().encode({json.dumps(json.dumps(facts))}),
                    'state.bin': Float32Array.of(1, 0).buffer}};
    const fetched = async (name) => files[name];
    {code}
    Stream.open().then(async (stream) => {{
      const found = [];
      for (const x of [[1, 2], [NaN, 1], [3, 4], [1, Infinity], [5, 6]]) {{
        found.push(...await stream.push(Float32Array.from(x)));
      }}
      console.log(JSON.stringify([found, stream.resets, stream.state.n.data[0]]));
      stream.reset();
      console.log(stream.resets);
    }});"""
    done = subprocess.run(["node", "-e", script], capture_output=True, check=True, text=True)
    first, second = done.stdout.splitlines()
    assert json.loads(first) == [[2, 4, 0, 0, 4, 8, 0, 0, 6, 12], 2, 1]
    assert second == "0"


def run_in_cpp(example, data, build):
    """Compile main.cpp of an example, and run frames through the stream; return the result and the output."""
    if not (built := build / "build" / "stream").exists():
        options = (f"-DONNXRUNTIME={NATIVE}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        subprocess.run(["cmake", "-S", example, "-B", built.parent, *options], check=True, capture_output=True)
        subprocess.run(["cmake", "--build", built.parent], check=True, capture_output=True)
    (build / "in.f32").write_bytes(data.tobytes())
    done = subprocess.run([built, example, build / "in.f32", build / "out.f32"], capture_output=True, check=False)
    return done, np.fromfile(build / "out.f32", np.float32) if done.returncode == 0 else None


@pytest.mark.skipif(not any(map(shutil.which, ("gcc", "clang"))), reason="neither gcc nor clang is installed")
@pytest.mark.parametrize("ending", ["c", "cpp"])
def test_texts_in_literals_of_c(ending, tmp_path):
    """Each compiler in each standard reads the bytes of the text, as a literal beside a comment of the same text."""
    lines = [
        filled(f"main.{ending}", f'static const char text_{i}[] = "@NAME@";  // @NAME@\n', {"name": text})
        for i, text in enumerate(HOSTILE)
    ]
    prints = "".join(f"    fwrite(text_{i}, 1, sizeof text_{i}, stdout);\n" for i in range(len(HOSTILE)))
    source = tmp_path / f"literals.{ending}"
    source.write_text("#include <stdio.h>\n" + "".join(lines) + f"int main(void) {{\n{prints}    return 0;\n}}\n")
    compilers = {"c": ("gcc", "clang"), "cpp": ("g++", "clang++")}[ending]
    standards = {"c": ("c99", "c11", "c17", "gnu2x"), "cpp": ("c++11", "c++14", "c++17", "gnu++20")}[ending]
    for compiler, standard in itertools.product(filter(shutil.which, compilers), standards):
        built = tmp_path / "literals"
        warned = ("-Wall", "-Wextra", "-Werror", "-pedantic")
        subprocess.run([compiler, f"-std={standard}", *warned, source, "-o", built], check=True)
        printed = subprocess.run([built], check=True, capture_output=True).stdout
        assert printed == b"".join(text.encode() + b"\0" for text in HOSTILE), (compiler, standard)


def test_texts_in_literals_of_kotlin_and_swift():
    """Only letters, digits and a few signs stand for themselves; the rest are numbers of characters."""
    for text in HOSTILE:
        kotlin, swift = (filled(f"Stream.{ending}", "@NAME@", {"name": text}) for ending in ("kt", "swift"))
        assert re.fullmatch(r"([\w ./-]|\\u[0-9a-f]{4})*", kotlin, re.ASCII)
        assert json.loads(f'"{kotlin}"') == text
        assert re.fullmatch(r"([\w ./-]|\\u\{[0-9a-f]+\})*", swift, re.ASCII)
        assert re.sub(r"\\u\{(\w+)\}", lambda found: chr(int(found[1], 16)), swift) == text


@needs_litert
@needs_gcc
@pytest.mark.thorough
def test_a_network_with_hostile_names(tmp_path):
    """The programs find the names of the file, in which no name ends a line of the metadata."""
    streamed = jaxrnn.stream(
        lambda x: {HOSTILE[-2]: jnp.cumsum(x[HOSTILE[-1]])}, {HOSTILE[-1]: np.zeros(8, np.float32)}, axes=0, pulse=4
    )
    exported = export_litert(streamed, None, tmp_path / "a??b$c.tflite", label="\n??/")
    write_example(exported, tmp_path / "example")
    x = np.arange(10, dtype=np.float32)
    for standard in ("c99", "c11", "c17", "gnu2x"):
        done, found = run_in_c(tmp_path / "example", x, tmp_path, standard)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(found, np.cumsum(x))
    facts = exported.step.facts
    names = [*facts.inputs.values(), *facts.outputs.values(), *(each.input for each in facts.state.values())]
    assert all(len(f"{name}={name}".splitlines()) == 1 and name.count("=") == 0 for name in names)
    for name in ("a=b", "a\nb", "a,b"):
        given = streamed, None, tmp_path / "s.tflite"
        check_refused(jaxrnn.InputError, "separates names in files", export_litert, *given, names={names[0]: name})


FILES = sorted(MODELS.rglob("*.onnx")) if MODELS.is_dir() else []
NETWORKS = [path.relative_to(MODELS).with_suffix("").as_posix() for path in FILES if path.parent.name != "damaged"]


@needs_litert
@needs_gcc
@pytest.mark.nightly
@pytest.mark.parametrize("name", NETWORKS)
def test_every_program_of_every_network(name, tmp_path):
    """All programs that run the step and each stream of a network return the same frames."""
    arguments, sizes = ARGUMENTS.get(name, ({}, {}))
    try:
        model = jaxrnn.load(MODELS / f"{name}.onnx", **arguments)
    except jaxrnn.JaxrnnError as error:
        pytest.skip(f"the network does not load: {error}")
    steppers = {}
    if {each.kind for each in model.state} == {"external"}:
        steppers["step"] = model
    for symbol in time_symbols(model):
        try:
            steppers[symbol] = model.stream(symbol, dims=dict(sizes) or None)
        except jaxrnn.JaxrnnError:
            continue
    ran = 0
    for symbol, stepper in steppers.items():
        files, results = {"onnx": tmp_path / f"{symbol}.onnx", "tflite": tmp_path / f"{symbol}.tflite"}, {}
        flush = {} if stepper is model else {"flush": tmp_path / f"{symbol}_flush.onnx"}
        step = {"step": True, "dims": dict(sizes) or None} if stepper is model else {}
        for engine, path in files.items():
            example = tmp_path / f"{symbol}_{engine}"
            try:
                if engine == "onnx":
                    exported = jaxrnn.export_onnx(stepper, model.params, path, **step, **flush)
                else:
                    exported = export_litert(stepper, model.params, path, dims=step.get("dims"))
            except jaxrnn.JaxrnnError as error:
                if engine == "onnx":
                    pytest.skip(f"not exported: {error}")
                continue
            write_example(exported, example)
            run = program(example)
            source, target = run.STREAM["inputs"], run.STREAM["outputs"]
            inputs = _recording(run.STREAM)
            results[engine] = run.run(inputs)
            expected = np.ravel(_frames_first(target[0], results[engine][target[0]["name"]]))
            data = _frames_first(source[0], inputs[source[0]["name"]])
            build = tmp_path / f"{symbol}_{engine}_build"
            build.mkdir()
            if engine == "onnx" and NATIVE is None:
                continue
            done, found = (run_in_c if engine == "tflite" else run_in_cpp)(example, data, build)
            ends = [*source, *target]
            if (
                len(ends) != 2
                or {each["type"] for each in ends} != {"float32"}
                or ((source[0]["time_axis"] is None) != (target[0]["time_axis"] is None))
            ):
                assert b"this program" in done.stderr
                continue
            assert done.returncode == 0, done.stderr
            np.testing.assert_array_equal(found, expected)
            ran += 1
        for output in results.get("tflite", ()):
            found, expected = results["tflite"][output], results["onnx"][output]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * max(1, np.abs(expected).max(initial=0)))
    if not ran:
        pytest.skip("no stream from one array of float32 to another")


def _recording(stream):
    """Random inputs of some pulses and a rest."""
    rng, pulse = np.random.default_rng(0), stream["pulse"]
    steps = 5 if all(each["time_axis"] is None for each in stream["inputs"]) else None
    frames = max(3 * pulse + (pulse // 2 if stream["flush"] else 0), stream["shortest"])
    inputs = {}
    for each in stream["inputs"]:
        shape, axis = list(each["shape"]), each["time_axis"]
        if axis is not None:
            shape[axis] = frames * shape[axis] // pulse
        drawn = rng.uniform(0, 1, shape if steps is None else [steps, *shape])
        inputs[each["name"]] = drawn.astype(each["type"])
    return inputs


def _frames_first(each, array):
    return np.ascontiguousarray(np.moveaxis(array, each["time_axis"] or 0, 0))
