"""Machine code in compiled files: the same numbers without compiling, on the machine that it is for and when asked."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import subprocess
import sys
import warnings
import zipfile

import jax
import numpy as np
import pytest
from compilations import compilations
from refusals import check_refused
from test_compiled import manifest, replaced, same, sealed, without
from test_pool import recurrent_streamed

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.runtime.compiled import native

#: The model in steps: a denoiser.
MODEL = jaxrnn.load(PACKAGED)
STREAMS = 3
OFFSET = {"offset": np.full(3, 0.25, np.float32)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files with machine code by kind: a model in steps, and a stream whose state begins with a constant input."""
    folder = tmp_path_factory.mktemp("native")
    streamed, params = recurrent_streamed()
    jaxrnn.save_compiled(MODEL, folder / "steps", dims={"time": 1}, native=True, batches=[STREAMS])
    jaxrnn.save_compiled(streamed, folder / "stream", params=params, native=True, batches=[STREAMS])
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(params=["steps", "stream"])
def path(request, files):
    return files[request.param]


def test_no_file_name_of_this_machine_is_in_a_compiled_file(tmp_path):
    path, kept = tmp_path / "steps", jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 10)  # JAX's default, which the suite changes
    try:
        jaxrnn.save_compiled(MODEL, path, dims={"time": 1}, native=True)
    finally:
        jax.config.update("jax_traceback_in_locations_limit", kept)
    with zipfile.ZipFile(path) as archive:
        programs = {name: archive.read(name) for name in archive.namelist() if not name.endswith((".npy", ".json"))}
    assert {name.partition("/")[0] for name in programs} == {"functions", "native"}
    for name, program in programs.items():
        assert b".py" not in program, name


@pytest.fixture
def copied(files, tmp_path):
    """A file of the test's own."""
    path = tmp_path / "copied.jaxrnn"
    path.write_bytes(files["steps"].read_bytes())
    return path


def inputs_of(stepper, seed, batch=None):
    rng, symbol = np.random.default_rng(seed), stepper.spec.batch_symbol
    lead = () if batch is None or symbol is not None else (batch,)
    sizes = {} if symbol is None else {symbol: batch or 1}
    specs = [spec.sized(sizes).batched(lead) for spec in stepper.spec.inputs]
    frames = {spec.name: rng.standard_normal(spec.sizes).astype(spec.dtype) for spec in specs}
    return frames | {name: np.broadcast_to(value, (*lead, 3)) for name, value in OFFSET.items() if name in frames}


def everything(path, *, asked):
    """What all functions of a file give of one stream and of a batch, and how much was compiled for it."""
    with compilations() as compiled:
        stepper = jaxrnn.load_compiled(path, native=asked)
        constants = OFFSET if stepper.spec.constants else None
        results = []
        for batch in (None, STREAMS):
            state = stepper.init(batch, constants=constants)
            for seed in range(3):
                outputs, state = stepper.step(None, state, inputs_of(stepper, seed, batch))
                results.append((outputs, state))
            tail = (inputs_of(stepper, 5, batch), 1) if stepper.spec.streams else ()
            results.append(stepper.flush(None, state, *tail))
        run = jaxrnn.Runner(stepper, constants=constants)
        results.extend(run(inputs_of(stepper, seed)) for seed in range(3))
        results.append(run.flush(*((inputs_of(stepper, 5), 1) if stepper.spec.streams else ())))
        results.append(run(inputs_of(stepper, 7)))
        pool = jaxrnn.StreamPool(stepper, None, STREAMS)
        one, other = pool.open(constants), pool.open(constants)
        for seed in range(3):
            pool.push(one, inputs_of(stepper, seed))
            if seed:
                pool.push(other, inputs_of(stepper, seed + 10))
            results.append(pool.run())
        results.append(pool.flush(one, *((OFFSET,) if constants else ())))
        pool.push(one, inputs_of(stepper, 7))
        results.append(pool.run())
    return jax.tree.map(np.asarray, results), len(compiled), stepper


def test_the_same_numbers_and_nothing_is_compiled(path):
    found, count, stepper = everything(path, asked=True)
    assert stepper.native
    expected, compiled, portable = everything(path, asked=False)
    assert not portable.native
    same(found, expected)
    assert compiled > 5
    assert not count


@pytest.mark.thorough
def test_a_fresh_process_runs_it_without_onnx_or_compiling(files, tmp_path):
    stepper = jaxrnn.load_compiled(files["steps"], native=True)
    frame = inputs_of(stepper, 0)
    expected, _ = stepper.step(None, stepper.init(), frame)
    np.savez(tmp_path / "frame.npz", **frame)
    code = f"""
import sys, warnings
warnings.simplefilter("error")
sys.modules["onnx"] = sys.modules["onnx_ir"] = None
import numpy as np
from compilations import compilations
import jaxrnn
with compilations() as compiled:
    stepper = jaxrnn.load_compiled({str(files["steps"])!r}, native=True)
    outputs, _ = stepper.step(None, stepper.init(), dict(np.load({str(tmp_path / "frame.npz")!r})))
    np.savez({str(tmp_path / "out.npz")!r}, **outputs)
assert not compiled and stepper.native
assert not any(name.startswith(("jaxrnn.onnx", "jaxrnn.model", "jaxrnn.streaming")) for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=sys.path[0] or None, env=_environment())
    with np.load(tmp_path / "out.npz") as found:
        jax.tree.map(np.testing.assert_array_equal, dict(found), expected)


def _environment():
    import os
    from pathlib import Path

    here = Path(__file__).parent
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]),
    }


@pytest.mark.thorough
def test_what_it_has_no_code_for_is_compiled(files):
    stepper = jaxrnn.load_compiled(files["steps"], native=True)
    portable = jaxrnn.load_compiled(files["steps"])
    two = inputs_of(stepper, 0, 2)
    same(stepper.step(None, stepper.init(2), two), portable.step(None, portable.init(2), two))
    frames = {name: np.stack([value] * 4) for name, value in inputs_of(stepper, 0).items()}
    same(stepper.scan(None, stepper.init(), frames), portable.scan(None, portable.init(), frames))
    one = inputs_of(stepper, 0)
    expected = portable.step(None, portable.init(), one)
    same(jax.jit(lambda state, x: stepper.step(None, state, x))(stepper.init(), one), expected)
    same(stepper.step([*stepper.params], stepper.init(), one), expected)
    stacked = jax.tree.map(lambda array: np.stack([array, array]), (stepper.init(), one))
    mapped = jax.vmap(lambda state, x: stepper.step(None, state, x))(*stacked)
    same(jax.tree.map(lambda array: array[1], mapped), expected)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, "other", rf"{name} was 'other' and is '") for name in ("jaxrnn", "jax", "jaxlib", "system", "device")),
        ("XLA_FLAGS", "--xla_cpu_max_isa=AVX", r"XLA_FLAGS was '--xla_cpu_max_isa=AVX' and is "),
        ("platform", "tpu", "platform was 'tpu' and is"),
        ("processor", "a2 a1 a3 a4 a5 a6", r"this processor lacks a1, a2, a3, a4 and 2 more"),
    ],
)
def test_another_machine_or_installation_takes_the_portable_part_and_says_why(copied, monkeypatch, name, value, words):
    def change(entries):
        facts = json.loads(entries["manifest.json"])
        facts["native"]["made"][name] = value
        entries["manifest.json"] = json.dumps(facts).encode()

    sealed(copied, change)
    monkeypatch.setattr("jaxrnn.runtime.compiled.stepper.function_of", None)  # or it would be used
    with pytest.warns(UserWarning, match=rf"machine code .*{words}.*portable part") as said:
        stepper = jaxrnn.load_compiled(copied, native=True)
    assert said[0].filename == __file__
    assert not stepper.native
    portable, one = jaxrnn.load_compiled(copied), inputs_of(stepper, 0)
    same(stepper.step(None, stepper.init(), one), portable.step(None, portable.init(), one))


def test_a_processor_may_have_more(monkeypatch):
    made = native.environment()
    monkeypatch.setattr(native, "features", lambda: (*made["processor"].split(), "more"))
    assert native.differences(made) == []


def test_without_asking_the_machine_code_is_not_looked_at(copied, monkeypatch):
    sealed(copied, replaced("native/step", b"no code"))
    for module in ("jaxrnn.runtime.compiled.stepper.function_of", "jaxrnn.runtime.compiled.format.check_native"):
        monkeypatch.setattr(module, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stepper = jaxrnn.load_compiled(copied)
        stepper.step(None, stepper.init(), inputs_of(stepper, 0))
    # Nor does asking for it where none is.
    sealed(copied, manifest(native=None))
    with pytest.warns(UserWarning, match=r"holds no machine code.*native=True"):
        assert not jaxrnn.load_compiled(copied, native=True).native


def test_code_that_is_none_is_said_once_and_the_rest_runs(copied):
    sealed(copied, replaced("native/step", b"no code"))
    stepper = jaxrnn.load_compiled(copied, native=True)
    portable, one = jaxrnn.load_compiled(copied), inputs_of(stepper, 0)
    with pytest.warns(UserWarning, match=r"machine code of the compiled file cannot be used for 'step'"):
        found = stepper.step(None, stepper.init(), one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(stepper.step(None, stepper.init(), one), found)
    same(found, portable.step(None, portable.init(), one))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("native/step"), "native/step"),
        (manifest(native=[]), "native is not an object"),
        (manifest(native__made=None), "native lacks made"),
        (manifest(native__made__jax=5), r"native\.made\.jax is 5"),
        (manifest(native__results__step=[[]]), r"native\.results\.step\[0\] is not an object"),
        (manifest(native__results__step=[]), r"native\.results\.step"),
        (manifest(native__results__step__0={"y": ["object", []]}), r"native\.results\.step\.y is 'object'"),
        (manifest(native__results__step__0={"y": ["float32", [-1]]}), r"native\.results\.step\.y"),
        (manifest(native__results__step__0={"y": ["float32", [2**50]]}), r"native\.results\.step\.y takes"),
        (lambda entries: [manifest(native__results__launch=[{}])(entries), replaced("native/launch", b"")(entries)][0],
         "no function is called 'launch'"),
    ],
)  # fmt: skip
def test_facts_about_code_that_make_no_sense_are_refused_where_it_is_asked_for(copied, change, words):
    sealed(copied, change)
    jaxrnn.load_compiled(copied)
    check_refused(jaxrnn.ModelError, words, jaxrnn.load_compiled, copied, native=True)


def test_copies_and_pickles_are_native_too(files):
    stepper = jaxrnn.load_compiled(files["steps"], native=True)
    one = inputs_of(stepper, 0)
    expected = stepper.step(None, stepper.init(), one)
    for other in (copy.deepcopy(stepper), pickle.loads(pickle.dumps(stepper))):
        assert other.native
        same(other.step(None, other.init(), one), expected)


def test_a_runner_says_what_does_not_fit(files):
    run = jaxrnn.Runner(jaxrnn.load_compiled(files["steps"], native=True))
    (name,) = inputs_of(jaxrnn.load_compiled(files["steps"]), 0)
    check_refused(jaxrnn.InputError, name, run, {name: np.zeros((1, 1, 3), np.float32)})
    check_refused(jaxrnn.InputError, "missing", run, {})


def test_what_has_no_machine_code_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    save = functools.partial(jaxrnn.save_compiled, MODEL, tmp_path / "no", dims={"time": 1})
    for batches in ([0], [2.5], ["3"]):
        check_refused(jaxrnn.InputError, "batches", save, native=True, batches=batches)
    check_refused(jaxrnn.InputError, "give native", save, batches=[2])
    monkeypatch.setattr(native, "_PARTS", set())  # as with a JAX that has other ones
    check_refused(jaxrnn.UnsupportedError, "machine code of 'step' cannot be stored", save, native=True)
    assert not list(tmp_path.iterdir())
