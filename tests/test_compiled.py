"""Compiled files: the same results without ONNX, and nothing runs from a file that is not whole."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import operator
import subprocess
import sys
import zipfile
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from jax._src.export._export import _module_to_bytecode
from jax.extend.mlir import ir
from jax.interpreters import mlir
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of, make_model
from test_pool import recurrent_streamed
from test_steps import CASES, NAMES, close, frame, recording
from tiers import of_tiers

import jaxrnn
from jaxrnn.steps import ArraySpec, OutputSpec, StepSpec, in_batch, nothing_left

QUICK = ("dtln_1", "predictor_net")


@pytest.fixture(scope="module")
def compiled(request, models, tmp_path_factory):
    dims, static = CASES[request.param]
    model = jaxrnn.load(models / f"{request.param}.onnx", static=static)
    path = tmp_path_factory.mktemp("compiled") / f"{request.param}.jaxrnn"
    jaxrnn.save_compiled(model, path, dims=dims)
    return model, dims, path


@pytest.mark.parametrize(
    ("compiled", "batch"),
    of_tiers(
        [*itertools.product(QUICK, (None, 1, 3)), *((name, None) for name in NAMES if name not in QUICK)],
        [(QUICK[0], 3)],
        [(name, None) for name in QUICK],
    ),
    indirect=["compiled"],
)
def test_gives_the_same_results(compiled, batch):
    model, dims, path = compiled
    loaded = jaxrnn.load_compiled(path)
    named = dataclasses.replace(model.spec.sized(dims), label=f"{path.stem}.onnx")
    assert loaded.spec == named
    frames = recording(model, dims, batch, 7)
    found = loaded.scan(loaded.params, loaded.init(batch), frames)
    close(found, jax.jit(model.scan)(model.params, model.init(batch), frames))
    one = frame(frames, 0)
    expected = jax.jit(model.step)(model.params, model.init(batch), one)
    close(loaded.step(loaded.params, loaded.init(batch), one), expected)


@pytest.fixture(scope="module")
def small_once(models, tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "dtln.jaxrnn"
    jaxrnn.save_compiled(jaxrnn.load(models / "dtln_1.onnx"), path)
    return path


@pytest.fixture
def small(small_once, tmp_path):
    path = tmp_path / "dtln.jaxrnn"
    path.write_bytes(small_once.read_bytes())
    return path


@pytest.mark.parametrize("where", [0.001, 0.3, 0.7, 0.999])
def test_damaged_files_are_refused(small, where):
    data = bytearray(small.read_bytes())
    data[int(where * len(data))] ^= 1
    small.write_bytes(data)
    check_refused(jaxrnn.ModelError, r"damaged|not a model compiled", jaxrnn.load_compiled, small)


def test_foreign_and_truncated_files_are_refused(small, models, tmp_path):
    small.write_bytes(small.read_bytes()[:-100])
    check_refused(jaxrnn.ModelError, "damaged", jaxrnn.load_compiled, small)
    check_refused(jaxrnn.ModelError, "not a model compiled", jaxrnn.load_compiled, models / "dtln_1.onnx")
    check_refused(jaxrnn.ModelError, "No such file", jaxrnn.load_compiled, tmp_path / "nothing.jaxrnn")


def sealed(path, change, packed=False):
    """Change the entries of a file, and give it the digest that is right for them."""
    magic = path.read_bytes().partition(b"\n")[0] + b"\n"
    with zipfile.ZipFile(io.BytesIO(path.read_bytes()[len(magic) + 65 :])) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries = change(entries) or entries
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    seal(path, magic, body.getvalue())


def seal(path, magic, body):
    path.write_bytes(magic + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def manifest(**changes):
    """A change of facts in the manifest, by the path to them; None takes one away."""

    def change(entries):
        facts = json.loads(entries["manifest.json"])
        for path, value in changes.items():
            *outer, last = (int(part) if part.isdigit() else part for part in path.split("__"))
            inner = functools.reduce(operator.getitem, outer, facts)
            inner[last] = value
            if value is None:
                del inner[last]
        entries["manifest.json"] = json.dumps(facts).encode()

    return change


def replaced(name, data):
    return lambda entries: entries.update({name: data})


def without(name):
    return lambda entries: {key: value for key, value in entries.items() if key != name}


def npy(array):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def huge_array():
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|V4", "fortran_order": False, "shape": (2**50,)})
    return file.getvalue()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("manifest.json"), "manifest.json"),
        (without("params/0.npy"), "params/0.npy"),
        (without("functions/scan"), "lacks the function.* scan"),
        (replaced("manifest.json", b"{"), "JSON|Expecting|property name"),
        (replaced("manifest.json", b"[" * 100_000), "recursion"),
        (replaced("manifest.json", b"[]"), "the manifest is not an object"),
        (replaced("manifest.json", b"\xff"), "utf|UTF"),
        (replaced("params/0.npy", huge_array()), r"\[1125899906842624\], which takes 4503599627370496 bytes"),
        (replaced("params/0.npy", b"\x93NUMPY"), "matches its digest, but does not have the content"),
        (manifest(spec__label=None), "spec lacks label"),
        (manifest(params__0="O"), r"params\[0\] is 'O'"),
        (manifest(params__0="float64"), "not have the content"),
        (manifest(start__0="int32"), "begins with int32"),
        (manifest(spec__inputs="x"), "inputs is not a list"),
        (manifest(spec__inputs__0__shape=[-1]), r"inputs\[0\]\.shape\[0\] is -1"),
        (manifest(spec__state__0__dtype="finfo"), r"state\[0\]\.dtype is 'finfo'"),
        (manifest(spec__state__0__shape=[2**40, 2**10]), "input_3 takes 4.0 PiB"),
        (replaced("start/0.npy", npy(np.zeros(3, "V4"))), "broadcast"),
        (manifest(start=[]), "arrays of the first state"),
        (manifest(spec__needs_steps=1), "unknown fact.* needs_steps"),
        (manifest(spec__state__0__more=1), "unknown fact.* more"),
        (manifest(spec__batch_symbol=5), "batch_symbol is 5"),
        (manifest(spec__state__0__shape=["b", 2, 128, 2]), "the dimension 'b' is not the batch"),
        (manifest(spec__inputs__0__shape=[1, "b", 257]), "the dimension 'b' is not the batch"),
        (manifest(spec__state__0__shape=[2**62]), "takes"),
        (manifest(spec__constants=["b"]), "the constant 'b' is not an input"),
        (lambda entries: manifest(spec__inputs=2 * json.loads(entries["manifest.json"])["spec"]["inputs"])(entries),
         "inputs lists a name twice"),
        (replaced("params/0.npy", b"\x93NUMPY\1\0\x10\0{'descr': ('|V4\n      "), "matches its digest"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_under_a_right_digest(small, change, words):
    sealed(small, change)
    with pytest.raises(jaxrnn.ModelError, match=words) as caught:
        jaxrnn.load_compiled(small)
    assert str(small) in str(caught.value)


def test_nothing_is_unpacked(small):
    """A small file would become a large one."""
    zeros = b"\0" * 2**24
    sealed(small, replaced("functions/other", zeros), packed=True)
    check_refused(jaxrnn.ModelError, "its entries are compressed", jaxrnn.load_compiled, small)
    magic = small.read_bytes().partition(b"\n")[0] + b"\n"
    for body in (b"", b"PK", zeros[:100]):
        seal(small, magic, body)
        check_refused(jaxrnn.ModelError, "not have the content of a compiled model", jaxrnn.load_compiled, small)


@pytest.mark.parametrize("damage", ["garbage", "cut", "code"])
def test_functions_that_cannot_be_read_are_named(small, damage):
    def change(entries):
        manifest(jax="99.0")(entries)
        step = entries["functions/step"]
        entries["functions/step"] = {
            "garbage": b"\1" * 100,
            "cut": step[: len(step) // 2],
            "code": step.replace(b"ML\xefR", b"ML\xefS"),
        }[damage]

    sealed(small, change)
    words = (
        rf"'step' of the compiled file cannot be used: JAX cannot read it .*with JAX 99\.0, and this is JAX "
        rf"{jax.__version__}: .*upgrade"
    )
    check_refused(jaxrnn.ModelError, words, jaxrnn.load_compiled, small)


def exported(function):
    """A change that replaces the step of the small file by a function of the state and the input."""

    def change(entries):
        step = jax.export.deserialize(bytearray(entries["functions/step"]))
        params, state, inputs = jax.tree.unflatten(step.in_tree, step.in_avals)[0]
        made = jax.export.export(jax.jit(lambda params, state, inputs: function(state, inputs)))
        entries["functions/step"] = bytes(made(params, state, inputs).serialize())

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entries: entries.update({"functions/step": entries["functions/scan"]}), "arguments"),
        (manifest(spec__state__0__shape=[2**31]), "arguments are not the parameters, the state"),
        (manifest(spec__state__0__shape=[1, 2, 128, 3]), "arguments are not the parameters, the state"),
        (manifest(spec__state__0__name="h"), "arguments"),
        (manifest(spec__inputs__0__shape=[1, 1, 256]), "arguments"),
        (manifest(spec__inputs__0__dtype="int32"), "arguments"),
        (manifest(spec__outputs__0__name="y"), "results are not the outputs"),
        (exported(lambda state, x: ({}, {name: 0.5 * array[:0] for name, array in state.items()})), "results"),
        (exported(lambda state, x: ({"y": x["input_2"]}, state)), "results"),
        (exported(lambda state, x: (x["input_2"], state)), "results"),
        (exported(lambda state, x: state), "results"),
    ],
)
def test_functions_of_other_arrays_are_refused(small, change, words):
    """So no declared size is allocated unless a function of the file has the size."""
    sealed(small, change)
    check_refused(
        jaxrnn.ModelError,
        f"the function '.*' of the compiled file cannot be used: its {words}",
        jaxrnn.load_compiled,
        small,
    )


def test_a_state_beyond_the_memory_is_a_limit(small, monkeypatch):
    loaded = jaxrnn.load_compiled(small)
    check_refused(jaxrnn.LimitError, "dtln_1.onnx: the state takes 1.0 EiB: ", loaded.init, 2**49)


def with_operation(data, operation, place):
    """A serialised function with a further operation: in its main function, in a branch, or in a function that it does
    not call."""
    branch = "%t = stablehlo.constant dense<true> : tensor<i1>\n"
    branch += f'"stablehlo.if"(%t) ({{ {operation}\n stablehlo.return }}, {{ stablehlo.return }}) : (tensor<i1>) -> ()'
    added = f"  func.func private @added() {{\n {operation}\n return }}\n"
    exported = jax.export.deserialize(bytearray(data))
    before, function, after = exported.mlir_module().partition("  func.func public @main")
    if place == "function":
        before += added
    else:
        after = after.replace("\n    return", f"\n{branch if place == 'branch' else operation}\n    return", 1)
    context = mlir.make_ir_context()
    with context, ir.Location.unknown(context):
        module = _module_to_bytecode(ir.Module.parse(before + function + after))
    return bytes(dataclasses.replace(exported, mlir_module_serialized=module).serialize())


def custom_call(target, dialect="stablehlo"):
    return f'"{dialect}.custom_call"() {{call_target_name = "{target}", has_side_effect = true}} : () -> ()'


def with_token(name, attributes):
    token = "%token = stablehlo.create_token : !stablehlo.token"
    return f'{token}\n"stablehlo.{name}"(%token) {{{attributes}}} : (!stablehlo.token) -> !stablehlo.token'


CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = {}>, is_host_transfer = true"


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        *((custom_call(name), f"the custom call '{name}'") for name in (
            "xla_ffi_python_cpu_callback", "xla_ffi_python_gpu_callback", "xla_buffer_python_cpu_callback",
            "xla_python_cpu_callback", "mosaic_gpu_v2", "tf.call_tf_function", "of a plugin", "",
        )),
        (custom_call("xla_ffi_python_cpu_callback", "mhlo"), "xla_ffi_python_cpu_callback"),
        (with_token("infeed", 'infeed_config = ""'), "the operation 'stablehlo.infeed'"),
        (with_token("outfeed", 'outfeed_config = ""'), "the operation 'stablehlo.outfeed'"),
        (with_token("send", CHANNEL.format(2)), "the operation 'stablehlo.send'"),
        (with_token("recv", CHANNEL.format(3)), "the operation 'stablehlo.recv'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", of_tiers(["main", "branch", "function"], ["branch"], []))
def test_code_of_the_host_is_refused_before_anything_is_compiled(small, operation, words, place):
    def change(entries):
        entries["functions/scan_batched"] = with_operation(entries["functions/scan_batched"], operation, place)

    sealed(small, change)
    check_refused(jaxrnn.ModelError, f"'scan_batched' of the compiled file .*{words}", jaxrnn.load_compiled, small)


def test_a_derivative_in_a_file_is_refused(small):
    function = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((), jnp.float32))
    sealed(small, replaced("functions/step", bytes(function.serialize(vjp_order=1))))
    check_refused(jaxrnn.ModelError, "'step'.* a program for its derivative", jaxrnn.load_compiled, small)


class Computing:
    """A step that computes a matrix from a matrix."""

    spec = StepSpec(
        "computing",
        inputs=(ArraySpec("x", np.dtype("float32"), (2, 2)),),
        outputs=(OutputSpec("y", np.dtype("float32"), (2, 2)),),
        state=(),
    )

    def __init__(self, function):
        self.function = function

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {}, batch)

    def step(self, params, state, inputs):
        return {"y": self.function(inputs["x"])}, {}

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


@pytest.mark.parametrize("native", [False, True])
def test_what_a_reader_would_refuse_is_not_written(tmp_path, native):
    def printed(x):
        jax.debug.print("{}", x)
        return x

    like = jax.ShapeDtypeStruct((2, 2), np.float32)
    for function, words, platforms in (
        (lambda x: jax.pure_callback(np.sin, like, x), "computing: step needs pure_callback", None),
        (printed, "computing: step needs debug_", ["cpu", "cuda"]),
        (lambda x: jax.lax.cond(x[0, 0] > 0, jax.ffi.ffi_call("of a plugin", like), jnp.sin, x), "'of a plugin'", None),
        (
            lambda x: jax.lax.linalg.hessenberg(x)[0],
            "computing: step cannot be compiled: .*hessenberg.* cuda",
            ["cuda"],
        ),
    ):
        options = {"native": native, "platforms": platforms}
        check_refused(
            jaxrnn.UnsupportedError, words, jaxrnn.save_compiled, Computing(function), tmp_path / "no", **options
        )
    assert not list(tmp_path.iterdir())


def test_kernels_that_jax_keeps_are_written_and_read(tmp_path):
    path, x = tmp_path / "inverse", {"x": np.float32([[2, 1], [0, 4]])}
    stepper = Computing(jnp.linalg.inv)
    jaxrnn.save_compiled(stepper, path, platforms=["cpu", "cuda", "rocm", "tpu"])
    loaded = jaxrnn.load_compiled(path)
    assert b"lapack_sgetrf_ffi" in loaded.exported("step").mlir_module_serialized
    same(loaded.step(None, {}, x), jax.jit(stepper.step)(None, {}, x))


def test_another_platform_is_named(models, tmp_path):
    path = tmp_path / "elsewhere.jaxrnn"
    elsewhere = "tpu" if jax.default_backend() != "tpu" else "cpu"
    jaxrnn.save_compiled(jaxrnn.load(models / "dtln_1.onnx"), path, platforms=[elsewhere])
    loaded = jaxrnn.load_compiled(path)
    with pytest.raises(jaxrnn.ModelError, match=rf"dtln_1\.onnx was compiled for {elsewhere}, but JAX runs on"):
        loaded.step(loaded.params, loaded.init(), {"input_2": np.zeros((1, 1, 257), np.float32)})


@pytest.mark.parametrize(
    ("shape", "shown"), [((TensorProto.FLOAT, None), r"float32\[\.\.\.\]"), ((TensorProto.STRING, [2]), r"string\[2\]")]
)
def test_arrays_that_no_file_holds_are_named(shape, shown, tmp_path):
    graph = graph_of([helper.make_node("Identity", ["x"], ["y"])], {"x": shape}, {"y": shape})
    with pytest.raises(jaxrnn.UnsupportedError, match=f"input x: {shown} needs a numeric type and a known rank"):
        jaxrnn.save_compiled(jaxrnn.load(make_model(graph)), tmp_path / "out.jaxrnn")


@pytest.mark.thorough
def test_what_does_not_fit_is_named(small, models):
    loaded = jaxrnn.load_compiled(small)
    state = loaded.init()
    for given, x, error, words in (
        (state, {"input_2": np.zeros((1, 1, 257))}, jaxrnn.InputError, r"input_2: float32\[1, 1, 257\] got float64"),
        (state, {}, jaxrnn.InputError, r"missing input.*input_2"),
        ({}, {"input_2": np.zeros((1, 1, 257), np.float32)}, jaxrnn.StateError, r"'input_3'.*missing"),
    ):
        check_refused(error, words, loaded.step, loaded.params, given, x)
    silero = jaxrnn.load(models / "silero_vad_16k_op15.onnx", static={"sr": 16000})
    with pytest.raises(jaxrnn.InputError, match=r"size of sequence \(axis 1 of 'input'\), as in `dims=\{'sequence'"):
        jaxrnn.save_compiled(silero, small)
    assert jaxrnn.load_compiled(small).spec.label == "dtln_1.onnx"  # which is still there


def test_compiled_in_parameters_give_the_same(small):
    loaded = jaxrnn.load_compiled(small)
    one = {"input_2": np.random.default_rng(0).normal(size=(1, 1, 257)).astype(np.float32)}
    for given in (one, {"input_2": np.stack([one["input_2"]] * 2)}):
        state = loaded.init(None if given is one else 2)
        close(loaded.step(None, state, given), loaded.step(loaded.params, state, given))


def test_a_file_has_the_rights_of_any_new_file(small, tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert small.stat().st_mode == plain.stat().st_mode
    assert jaxrnn.runtime.compiled.is_compiled(small)
    assert not jaxrnn.runtime.compiled.is_compiled(plain)


#: Name: a pulse that fits.
PULSED = {"keyword_net": 2, "wave_net": 64}


@pytest.fixture(scope="module", params=of_tiers(PULSED, ("wave_net",), ()))
def streamed(request, models, tmp_path_factory):
    """A model, the same in pulses, and its compiled file."""
    model = jaxrnn.load(models / f"{request.param}.onnx")
    streamed = model.stream(pulse=PULSED[request.param])
    path = tmp_path_factory.mktemp("compiled") / f"{request.param}.jaxrnn"
    jaxrnn.save_compiled(streamed, path, params=model.params)
    return model, streamed, path


def pulses(model, frames, count, lead=(), seed=0):
    rng = np.random.default_rng(seed)
    shapes = {info.name: [*lead, *(frames if d == "S" else d for d in info.shape)] for info in model.inputs}
    return [{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(count)]


def same(found, expected):
    """Equal trees; values to 1e-5."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("functions/flush_batched"), "lacks the function.* flush_batched"),
        (manifest(spec__multiple=0), "multiple is 0"),
        (manifest(spec__inputs__0__time_axis=9), "no axis 9"),
        (manifest(spec__outputs__0__rate="1/0"), r"outputs\[0\]\.rate is '1/0'"),
        (manifest(spec__joined=None), "lacks joined"),
        (manifest(spec__inputs__0__shape=[1, 40, 0]), "no frames along axis 2|no axis"),
    ],
)
def test_pulses_that_make_no_sense_are_refused(streamed, tmp_path, change, words):
    path = tmp_path / "changed.jaxrnn"
    path.write_bytes(streamed[2].read_bytes())
    sealed(path, change)
    check_refused(jaxrnn.ModelError, words, jaxrnn.load_compiled, path)


@pytest.mark.thorough
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_pulses_give_the_same_results(streamed, lead):
    model, here, path = streamed
    loaded = jaxrnn.load_compiled(path)
    params = loaded.params if lead else None
    batch = lead[0] if lead else None
    state, expected = loaded.init(batch), here.init(batch)
    same(state, expected)
    step, flush = jax.jit(here.step), jax.jit(here.flush)
    for pulse in pulses(model, here.pulse, 3, lead):
        outputs, state = loaded.step(params, state, pulse)
        wanted, expected = step(model.params, expected, pulse)
        same(outputs, wanted)
        same(state, expected)
    (tail,) = pulses(model, here.pulse, 1, lead, seed=1)
    for valid in {0, here.pulse // 2, here.pulse}:
        same(loaded.flush(params, state, tail, valid), flush(model.params, expected, tail, valid))


@pytest.mark.thorough
def test_tails_of_any_length_and_of_each_stream_its_own(streamed):
    model, here, path = streamed
    loaded = jaxrnn.load_compiled(path)
    (pulse,) = pulses(model, here.pulse, 1)
    _, state = loaded.step(None, loaded.init(), pulse)

    def frames_of(flushed):
        return {
            spec.name: np.take(flushed.outputs[spec.name], range(int(flushed.counts[spec.name])), spec.time_axis)
            for spec in loaded.spec.outputs
        }

    flush = jax.jit(here.flush)
    (tail,) = pulses(model, here.pulse - 1, 1, seed=1)
    for given in ((tail, here.pulse - 1), ()):
        same(frames_of(loaded.flush(None, state, *given)), frames_of(flush(model.params, state, *given)))
    two = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    (tail,) = pulses(model, here.pulse, 1, seed=2)
    both = {name: np.stack([array, array]) for name, array in tail.items()}
    flushed = loaded.flush(None, two, both, np.array([0, here.pulse]))
    for index, valid in enumerate((0, here.pulse)):
        same(jax.tree.map(lambda x, i=index: x[i], flushed), loaded.flush(None, state, tail, valid))


def test_the_file_says_the_facts(streamed):
    model, here, path = streamed
    loaded = jaxrnn.load_compiled(path)
    spec = loaded.spec
    assert dataclasses.replace(spec, label=here.spec.label, needs_params=True) == here.spec
    assert spec.label == model.label.rpartition("/")[2]
    assert (spec.pulse, spec.delay, spec.rate, spec.state) == (here.pulse, here.delay, here.rate, here.state)
    assert (spec.look_ahead, spec.receptive_field) == (here.look_ahead, here.receptive_field)
    assert spec.smallest_pulse == here.smallest_pulse
    assert {output.name for output in spec.outputs} == {info.name for info in model.outputs}
    for given, info in zip(spec.inputs, model.inputs, strict=True):
        assert given.time_axis == info.shape.index("S")
        assert given.shape == tuple(here.pulse if size == "S" else size for size in info.shape)
    assert all(type(rate) is Fraction for rate in spec.rate.values())
    outputs, _ = jax.eval_shape(here.step, model.params, here.init(), pulses(model, here.pulse, 1)[0])
    assert {output.name: (output.shape, output.dtype) for output in spec.outputs} == {
        name: (array.shape, array.dtype) for name, array in outputs.items()
    }


@pytest.mark.thorough
@pytest.mark.parametrize("compiled", ["dtln_1"], indirect=True)
def test_needs_no_onnx_and_no_tracing_of_the_model(compiled, streamed, tmp_path):
    """Steps and pulses, in a process without ONNX."""
    (model, dims, steps), (offline, here, path) = compiled, streamed
    one, (pulse,) = frame(recording(model, dims), 0), pulses(offline, here.pulse, 1)
    np.savez(tmp_path / "one.npz", **one)
    np.savez(tmp_path / "pulse.npz", **pulse)
    code = f"""
import sys, numpy as np
sys.modules["onnx"] = sys.modules["onnx_ir"] = None
import jaxrnn
model, streamed = jaxrnn.load_compiled({str(steps)!r}), jaxrnn.load_compiled({str(path)!r})
stepped, _ = model.step(model.params, model.init(), dict(np.load("one.npz")))
outputs, state = streamed.step(None, streamed.init(), dict(np.load("pulse.npz")))
rest, _ = streamed.flush(None, state)
np.savez("stepped.npz", **stepped)
np.savez("out.npz", **outputs, **{{"rest/" + name: value for name, value in rest.items()}})
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    expected, _ = jax.jit(model.step)(model.params, model.init(), one)
    with np.load(tmp_path / "stepped.npz") as found:
        close([dict(found)], [expected])
    outputs, _ = jax.jit(here.step)(offline.params, here.init(), pulse)
    with np.load(tmp_path / "out.npz") as found:
        same({name: found[name] for name in outputs}, outputs)
        assert all(f"rest/{name}" in found for name in outputs)


@pytest.fixture(scope="module")
def function_file(tmp_path_factory):
    """A streamed function whose state begins with a parameter and a constant input, compiled for two platforms."""
    path = tmp_path_factory.mktemp("compiled") / "recurrent.jaxrnn"
    streamed, params = recurrent_streamed()
    jaxrnn.save_compiled(streamed, path, params=params, platforms=["cpu", "cuda"], label="recurrent")
    return streamed, params, path


@pytest.mark.parametrize("batch", [None, 2])
def test_a_streamed_function(function_file, batch):
    streamed, params, path = function_file
    loaded = jaxrnn.load_compiled(path)
    assert loaded.spec.label == "recurrent"
    check_refused(jaxrnn.InputError, r"init\(constants=...\)` with offset", loaded.init)
    assert [output.name for output in loaded.spec.outputs if output.at_end] == ["last", "mean"]
    assert loaded.spec.delay == streamed.delay
    constants = {"offset": np.full(3, 0.25, np.float32)}
    state, expected = loaded.init(batch, constants=constants), streamed.init(batch, params=params, constants=constants)
    same(state, expected)
    lead = () if batch is None else (batch,)
    rng = np.random.default_rng(0)
    x = {
        "x": rng.normal(size=(*lead, 2, 3)).astype(np.float32),
        "offset": np.broadcast_to(constants["offset"], (*lead, 3)),
    }
    # Under jit, too, and with the frames that exist traced.
    outputs, state = jax.jit(loaded.step)(None, state, x)
    wanted, expected = streamed.step(params, expected, x)
    assert {name for name, value in outputs.items() if value is not None} == {"h", "ahead"}
    same(outputs, wanted)
    found = jax.jit(loaded.flush)(None, state, x, 1)
    same(found, streamed.flush(params, expected, x, 1))


def test_pulses_that_do_not_fit_are_named(function_file, tmp_path):
    streamed, params, path = function_file
    loaded = jaxrnn.load_compiled(path)
    offset = np.zeros(3, np.float32)
    state = loaded.init(constants={"offset": offset})
    good = {"x": np.zeros((2, 3), np.float32), "offset": offset}
    wrong = [
        ({**good, "x": np.zeros((3, 3), np.float32)}, r"x: float32\[2, 3\] got float32\[3, 3\]"),
        ({**good, "x": np.zeros((2, 3))}, "got float64"),
        ({**good, "x": np.zeros((5, 2, 3), np.float32)}, r"got float32\[5, 2, 3\]"),
        ({"x": good["x"]}, "missing input.*offset"),
        ({**good, "y": offset}, "no input 'y'"),
        (good["x"], r"must be a dict of arrays by name, as \{'offset': array, 'x': array\}, not float32\[2, 3\]"),
    ]
    for x, said in wrong:
        check_refused(jaxrnn.InputError, said, loaded.step, None, state, x)
    long = {"x": np.zeros((3, 3), np.float32), "offset": offset}
    for tail, valid, said in (
        (long, 3, "at most the frames of a pulse"),
        (good, 3, "from 0 to the 2"),
        (None, 0, "is constant in time"),
    ):
        check_refused(jaxrnn.InputError, said, loaded.flush, None, state, tail, valid)
    for bad in ({}, state["float32"], {"float32": state["float32"][:-1]}, {"float32": np.zeros((2, 2, 8), np.float32)}):
        check_refused(jaxrnn.StateError, "state", loaded.step, None, bad, good)
    out = tmp_path / "no.jaxrnn"
    bare = jaxrnn.stream(lambda x: x * 2.0, jax.ShapeDtypeStruct((10, 3), jnp.float32), axes=0)
    for stepper, options, said in (
        (streamed, {}, "give params"),
        (streamed, {"params": params, "dims": {"S": 3}}, "dims` gives 'S'"),
        (bare, {}, "one dict"),
    ):
        check_refused(jaxrnn.InputError, said, jaxrnn.save_compiled, stepper, out, **options)
    assert not list(tmp_path.iterdir())


def test_lengths_that_divide_are_kept_in_the_file(tmp_path):
    def pairs(x):
        return {"y": x["x"].reshape(-1, 2, 3).sum(1)}

    example = {"x": jax.ShapeDtypeStruct((10, 3), jnp.float32)}
    streamed = jaxrnn.stream(pairs, example, axes=0, pulse=4, multiple=2)
    jaxrnn.save_compiled(streamed, tmp_path / "pairs.jaxrnn")
    loaded = jaxrnn.load_compiled(tmp_path / "pairs.jaxrnn")
    assert loaded.params == ()
    tail = {"x": np.arange(9, dtype=np.float32).reshape(3, 3)}
    with pytest.raises(jaxrnn.InputError, match="a multiple of 2, not 3"):
        loaded.flush(None, loaded.init(), tail, 3)
    outputs, counts = loaded.flush(None, loaded.init(), tail, 2)
    assert counts["y"] == 1
    np.testing.assert_array_equal(outputs["y"][0], [3, 5, 7])


def test_first_states_of_different_elements(tmp_path):
    """A file keeps a first state of equal elements as one element, and any other whole."""

    def function(x):
        def step(carry, frame):
            after = [0.5 * part + frame for part in carry]
            return after, sum(after)

        start = [jnp.float32([0.1, -0.2, 0.3]), jnp.full(3, 0.7, jnp.float32)]
        return {"y": jax.lax.scan(step, start, x["x"])[1]}

    streamed = jaxrnn.stream(function, {"x": jax.ShapeDtypeStruct((7, 3), np.float32)}, axes=0)
    jaxrnn.save_compiled(streamed, tmp_path / "stream.jaxrnn")
    loaded = jaxrnn.load_compiled(tmp_path / "stream.jaxrnn")
    jax.tree.map(np.testing.assert_array_equal, dict(loaded.init()), dict(streamed.init()))


def test_one_step_is_compiled_and_no_other(small):
    loaded = jaxrnn.load_compiled(small)
    one = {"input_2": np.zeros((1, 1, 257), np.float32)}
    with compilations() as counted:
        state = loaded.init()
    assert not counted
    with compilations() as counted:
        for _ in range(3):
            _, state = loaded.step(None, state, one)
    assert len(counted) == 1
    run = jaxrnn.Runner(loaded)
    with compilations() as counted:
        for _ in range(3):
            run(one)
        run.reset()
        run(one)
    assert len(counted) == 1
