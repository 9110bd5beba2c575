"""Files for LiteRT: real models over recordings, each rewritten operation, refusals, types of weights, and commands."""

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import lax
from packages import needs_litert, needs_quantizer
from verifier import run_session, session

import jaxrnn
from jaxrnn import audio
from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.errors import InputError, MissingPackageError, ModelError, UnsupportedError
from jaxrnn.export import FileRunner, Quantization, export_litert, verify_export
from jaxrnn.verification.litert import LiteRt, Signature, operations, package, read_metadata, read_signature
from tools import sweep

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float32)
HALVES = np.array([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]] * 4, np.float32)
WHOLE = RNG.integers(-5, 5, (4, 6)).astype(np.int32)
BYTES = RNG.integers(0, 200, (4, 6)).astype(np.uint8)
FRAMES = RNG.standard_normal((2, 3, 16)).astype(np.float32)
ODD = FRAMES[..., :15]
KERNEL = RNG.standard_normal((5, 3, 4)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 6, 8, 9)).astype(np.float32)
IMAGE_KERNEL = RNG.standard_normal((4, 3, 3, 2)).astype(np.float32)
PAIRS = RNG.standard_normal((2, 5, 4, 6)).astype(np.float32)
TABLE = RNG.standard_normal(12).astype(np.float32)
LONG = np.linspace(-1, 1, 300, dtype=np.float32)
SIGNED = RNG.integers(-99, 99, (3, 7, 5)).astype(np.int8)


def parts(x):
    return jnp.stack([x.real, x.imag])


def turned(carry, z):
    carry = carry * (0.5 + 0.5j) + z
    return carry, carry * z


def convolved(x, kernel=KERNEL, strides=(1,), pads=((3, 3),), **options):
    return lax.conv_general_dilated(x, jnp.asarray(kernel), strides, pads, **options)


#: Functions with operations that LiteRT lacks, or computes differently.
OPERATIONS = {
    "product of several axes": (lambda x: jnp.einsum("abcd,adce->cabe", x, PAIRS), RNG.standard_normal((2, 3, 4, 5))),
    "product of rows with a reshape": (lambda x: (x.reshape(3, 2) @ TABLE.reshape(2, 6)).reshape(1, 3, 1, 6), X[:1]),
    "product of bytes": (
        lambda x: lax.dot_general(x, SIGNED[0], (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32),
        SIGNED[:, :, 0],
    ),
    "long product of bytes": (
        lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32),
        RNG.integers(150, 256, (3, 1001)).astype(np.uint8),
    ),
    "product of bytes that wraps": (lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ()))), SIGNED[0]),
    "convolution of bytes": (
        lambda x: lax.conv_general_dilated(x, x[:, :, :9], (1,), "VALID", preferred_element_type=jnp.int32),
        RNG.integers(150, 256, (2, 60, 12)).astype(np.uint8),
    ),
    "convolution of dilated frames": (functools.partial(convolved, lhs_dilation=(2,)), FRAMES),
    "grouped convolution of a dilated image": (
        lambda x: convolved(x, IMAGE_KERNEL, (1, 1), ((2, 2), (1, 1)), lhs_dilation=(1, 2), feature_group_count=2),
        IMAGE,
    ),
    "scan": (lambda x: lax.scan(lambda c, y: (c + y, c * y), jnp.zeros(6), x), X),
    "scan backwards": (lambda x: lax.scan(lambda c, y: (c + y, c * y), jnp.zeros(6), x, reverse=True), X),
    "loop of 300 trips": (
        lambda x: lax.scan(lambda c, y: (jnp.tanh(c @ TABLE.reshape(2, 6).T @ x[:2, :6] * y + 1),) * 2, x, LONG)[1],
        X,
    ),
    "loop of 300 trips backwards, in a loop": (
        lambda x: lax.scan(
            lambda c, y: (lax.scan(lambda c, z: (0.9 * c + z * y, None), c, LONG, reverse=True)[0], c), x, x[:3, 0]
        ),
        X,
    ),
    "branch": (lambda x: lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: x - 1, x), X),
    "branches": (lambda x: lax.switch(jnp.argmax(x[0]) % 3, [lambda x: x, lambda x: -x, lambda x: x * 3], x), X),
    "remainder": (lambda x: lax.rem(x, jnp.full_like(x, 0.7)), HALVES),
    "remainder of integers": (lambda x: lax.rem(x, jnp.full_like(x, 3)), WHOLE),
    "floor division": (lambda x: x // 0.7, HALVES),
    "rounding": (jnp.round, HALVES),
    "rounding away from zero": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), HALVES),
    "bytes that wrap": (lambda x: x * jnp.uint8(7) - x, BYTES),
    "chosen bytes": (lambda x: jnp.where(x > 100, x, jnp.uint8(1)), BYTES),
    "integers as bytes": (lambda x: (x * 77).astype(jnp.int8), WHOLE),
    "exclusive or": (lambda x: (x > 0) ^ (x < 1), X),
    "minus infinity": (lambda x: jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf), 1), X),
    "sort": (lambda x: jnp.sort(x, 0), X),
    "sort of integers": (lambda x: jnp.sort(x, 1), WHOLE),
    "order of equal elements": (lambda x: jnp.argsort(jnp.abs(jnp.round(x)), 1), X),
    "largest": (lambda x: lax.top_k(x, 2)[0], X),
    "gather": (lambda i: jnp.asarray(TABLE)[i], WHOLE),
    "gather outside": (lambda i: jnp.take(jnp.asarray(TABLE), i * 5, mode="fill"), WHOLE),
    "gather at the end": (lambda i: jnp.take(jnp.asarray(TABLE), i * 5, mode="clip"), WHOLE),
    "slice outside": (lambda x: lax.dynamic_slice(x, (jnp.argmax(x[0]) + 9, jnp.int32(-3)), (2, 3)), X),
    "update outside": (lambda x: lax.dynamic_update_slice(x, x[:2, :2] * 2, (jnp.argmax(x[0]) + 7, 9)), X),
    "sums at places": (lambda x: jax.ops.segment_sum(x, jnp.array([0, 3, 0, 1]), 3), X),
    "sums of columns": (lambda x: x.at[:, jnp.array([0, 5, 0])].add(x[:, :3]), X),
    "maxima at places": (lambda x: x.at[jnp.array([0, 2, 0])].max(x[1:]), X),
    "minima of integers": (lambda x: x.at[jnp.array([0, 2, 0]), 1].min(x[:3, 3]), WHOLE),
    "places outside": (lambda x: x.at[jnp.argmax(x[0]) + 9].set(7.0), X),
    "samples": (lambda x: audio.istft(audio.stft(x, 32, 8), 32, 8, length=64), RNG.standard_normal(64)),
    "solve": (lambda x: jnp.linalg.solve(x[:, :4] @ x[:, :4].T + jnp.eye(4), x), X),
    "spectrum": (lambda x: parts(jnp.fft.rfft(x)), FRAMES),
    "spectrum of 15 samples": (lambda x: parts(jnp.fft.rfft(x)), ODD),
    "frames of a spectrum": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 2j)), FRAMES),
    "15 samples of a spectrum": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 2j), 15), ODD),
    "complex spectrum": (lambda x: parts(jnp.fft.fft(lax.complex(x, 0.5 * x))), FRAMES),
    "complex frames": (lambda x: parts(jnp.fft.ifft(lax.complex(x, 0.5 * x))), ODD),
    "spectrum of an image": (lambda x: parts(jnp.fft.rfft2(x)), ODD),
    "complex spectra of a volume": (lambda x: parts(jnp.fft.fftn(lax.complex(x, 0.5 * x))), ODD),
    "image of a spectrum": (lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * (1 + 2j), (3, 15)), ODD),
    "complex image of a spectrum": (lambda x: parts(jnp.fft.ifft2(lax.complex(x, 0.5 * x), axes=(0, 2))), FRAMES),
    "complex product": (
        lambda x: parts(jnp.einsum("bft,bgt->bfg", jnp.fft.rfft(x), jnp.conj(jnp.fft.rfft(x)))),
        FRAMES,
    ),
    "complex loop": (lambda x: parts(lax.scan(turned, lax.complex(x[0], x[1]), lax.complex(x, 2 * x))[1]), X),
    "complex loop backwards": (
        lambda x: parts(lax.scan(turned, lax.complex(x[0], x[1]), lax.complex(x, 2 * x), reverse=True)[0]),
        X,
    ),
    "complex branch": (lambda x: parts(lax.cond(x[0, 0] > 0, jnp.conj, jnp.square, lax.complex(x, 2 * x))), X),
    "complex gather outside": (
        lambda x: parts(jnp.take(lax.complex(x, 2 * x), jnp.argmax(x, 1) * 2, 1, mode="fill", fill_value=2 + 1j)),
        X,
    ),
    "complex product with real numbers": (lambda x: parts(lax.dot(x, jnp.asarray(TABLE[:6, None] * (1 - 2j)))), X),
    "convolution in float16": (
        lambda x: lax.conv_general_dilated(
            x[:, :1].astype(jnp.float16), jnp.asarray(IMAGE_KERNEL[:, :1], jnp.float16), (1, 1), "VALID"
        ).astype(jnp.float32),
        IMAGE,
    ),
    "modulus of large numbers": (lambda x: jnp.abs(lax.complex(x * 1e30, x * 1e30)) / 1e30, X),
}


ENGINES = [sweep.Rewritten, pytest.param(sweep.LiteRT, marks=needs_litert)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_equals_jax(name, engine):
    """As a file, and as the program that is converted."""
    function, x = OPERATIONS[name]
    x = x.astype(np.float32) if x.dtype == np.float64 else x

    def named(inputs):
        return {f"y{place}": each for place, each in enumerate(jax.tree.leaves(function(inputs["x"])))}

    expected = named({"x": jnp.asarray(x)})
    found = engine().run(named, {"x": x})
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert (found[key].dtype, found[key].shape) == (value.dtype, value.shape)
        scale = max(1.0, float(np.abs(np.asarray(value, np.float64)).max()))
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5 * scale if value.dtype == np.float32 else 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("divide", [lax.div, lax.rem])
def test_integers_divided_by_an_input(divide, engine):
    """Also by 0 and by -1, for which other programs end."""
    x, y = np.int32([7, -7, 5, -(2**31), 9]), np.int32([2, 2, 0, -1, -4])
    found = engine().run(lambda each: {"z": divide(each["x"], each["y"])}, {"x": x, "y": y})
    np.testing.assert_array_equal(found["z"], divide(x, y))


@needs_litert
@pytest.mark.parametrize(
    ("function", "x", "words"),
    [
        (
            lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 1, jnp.abs(x)),
            X,
            "trips depends on data",
        ),
        (
            lambda x: lax.while_loop(lambda c: c.real.sum() < 9, lambda c: c * 2, lax.complex(x, x)).real,
            X,
            "trips depends on data",
        ),
        (
            lambda x: jax.random.normal(jax.random.fold_in(jax.random.key(0), x[0]), x.shape),
            np.abs(WHOLE[:, 0]),
            "'random_bits' .*: LiteRT does not draw the same random numbers",
        ),
        (lambda x: x.at[jnp.argmax(x)].add(1.0), X, "no scatter-add.*one_hot"),
        (lambda x: x @ x.T, WHOLE, r"'dot_general' .*known to compute it in int32, only in .*: convert to float32"),
        (lambda x: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32), X, "known to compute it in bfloat16"),
        (lax.population_count, WHOLE, "'population_count'.*known to compute it in int32; or write"),
        (
            lambda x: jnp.broadcast_to(x.astype(jnp.float16), (2, 4, 6)),
            X,
            "'broadcast_in_dim': LiteRT has no counterpart",
        ),
    ],
    ids=["while", "complex while", "random", "scatter", "integers", "bfloat16", "bits", "half"],
)
def test_what_litert_lacks_is_refused_by_name(function, x, words, tmp_path):
    with pytest.raises(UnsupportedError, match=words):
        export_litert(function, None, tmp_path / "f.tflite", example=x)
    assert not list(tmp_path.iterdir())


def test_all_that_litert_lacks_is_listed(tmp_path):
    """With the user's line and a remedy, once for all trips of a loop, and for complex numbers too."""

    def function(x):
        carry = lax.scan(lambda c, y: (c + lax.nextafter(y, c), None), x[0], x)[0]
        z = jnp.sqrt(lax.complex(x, x))
        results = carry, lax.population_count(x.astype(jnp.int32)), lax.sort((x, x), num_keys=2)[1], z.real * 2
        return {f"y{place}": each for place, each in enumerate(results)}

    with pytest.raises(UnsupportedError) as error:
        export_litert(function, None, tmp_path / "f.tflite", example=X)
    first, *lines = str(error.value).splitlines()
    assert first == "4 operations cannot be written in LiteRT:"
    words = [
        "'nextafter'.*known to compute it in float32",
        "complex numbers: use real",
        "'population_count'.*int32",
        "sorts by one array",
    ]
    assert len(lines) == len(words)
    assert all("test_litert.py:" in line for line in lines)
    assert all(any(re.search(each, line) for line in lines) for each in words)


@needs_litert
def test_names_with_commas(tmp_path):
    """LiteRT separates names by commas, so the file has others, and the metadata say which."""
    struct = jax.ShapeDtypeStruct((4, 3), np.float32)
    streamed = jaxrnn.stream(lambda x: {"c,d": jnp.cumsum(x["a,b"], 0)}, {"a,b": struct}, axes=0, pulse=2)
    path = tmp_path / "step.tflite"
    names = read_metadata(path) if export_litert(streamed, None, path) else {}
    assert verify_export(streamed, None, path).ok
    assert ("a_b" in names["jaxrnn.step"], "a,b" in names["jaxrnn.step"], "c_d" in names["jaxrnn.step"]) == (True,) * 3
    with pytest.raises(InputError, match="'e,f' has it"):
        export_litert(streamed, None, path, names={"a_b": "e,f"})


def stepper_of(path):
    """Return a model or stream, its parameters, and the model if the stream has one."""
    model = jaxrnn.load(path)
    if {each.kind for each in model.state} != {"external"}:
        symbol = next(s for info in model.inputs for s in info.shape or () if isinstance(s, str))
        return model.stream(symbol, pulse=4 * model.stream(symbol).pulse), model.params, model
    return model, model.params, None


@needs_litert
@pytest.mark.parametrize(
    "name",
    [
        "dtln_1",
        "keyword_net",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("gtcrn", "wave_net", "speech/rnnoise_script")),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("filter_net", "speech/crn_lstm_qop_script")),
    ],
)
def test_a_model_equals_its_recordings(name, models, tmp_path):
    stepper, params, model = stepper_of(models / f"{name}.onnx")
    path = tmp_path / "step.tflite"
    exported = export_litert(stepper, params, path, frame_rate=100.0, metadata={"author": "me"})
    report = verify_export(stepper, params, path, offline=model)
    assert report.ok
    assert report.flushed == (model is not None)
    assert report.engine.startswith("LiteRT")
    assert exported.files == (path,)
    assert read_metadata(path)["author"] == "me"
    facts = read_signature(Signature(path, "step"))
    assert facts.frame_rate == 100.0
    assert facts.spec == exported.step.facts.spec
    for entry, array in exported.step.facts.first.items():
        np.testing.assert_array_equal(facts.first[entry], array)


@needs_litert
@pytest.mark.parametrize("ending", ["tflite", "onnx"])
def test_a_file_is_a_live_stream(ending, models, tmp_path):
    stepper, params, _model = stepper_of(models / "keyword_net.onnx")
    path = tmp_path / f"step.{ending}"
    if ending == "onnx":
        jaxrnn.export_onnx(stepper, params, path, flush=tmp_path / "flush.onnx")
    else:
        export_litert(stepper, params, path)
    run, known = FileRunner(path), jaxrnn.Runner(stepper, params)
    (name,) = (each.name for each in run.spec.inputs)
    rng = np.random.default_rng(0)
    for _ in range(2):  # the second stream begins anew
        for _ in range(3):
            frames = {name: rng.standard_normal(run.spec.inputs[0].sizes).astype(np.float32)}
            found, expected = run(frames), known(frames)
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                np.testing.assert_allclose(found[key], value, atol=1e-5)
        found = run.flush()
        for key, value in known.flush().items():
            np.testing.assert_allclose(found[key], value, atol=1e-5)
    with pytest.raises(InputError, match="missing input"):
        run({})


@needs_litert
def test_a_state_moves_between_jax_and_engines(models, tmp_path):
    """The state of an exported file that JAX loads has the names and the layout of the file, in all engines."""
    stepper, params, _ = stepper_of(models / "keyword_net.onnx")
    jaxrnn.export_onnx(stepper, params, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    exported = export_litert(stepper, params, tmp_path / "step.tflite")
    pairs = [(each.input, each.output) for each in exported.step.facts.state.values()]
    frames = np.random.default_rng(0).standard_normal((9, *stepper.spec.inputs[0].sizes)).astype(np.float32)
    known, loaded = jaxrnn.Runner(stepper, params), jaxrnn.load(tmp_path / "step.onnx")
    here = jaxrnn.Runner(loaded, loaded.params)
    engines = [session(tmp_path / "step.onnx"), LiteRt(Signature(tmp_path / "step.tflite", "step"))]
    for start in (0, 3, 6):
        outputs = [here({"feats": each})["logits"] for each in frames[start : start + 1]]
        state = {name: array for name, array in here.state.items() if not name.startswith("jaxrnn.")}
        for engine, each in zip(engines, frames[start + 1 : start + 3], strict=True):
            feeds = {"feats": each, **state}
            results = engine.run(feeds) if isinstance(engine, LiteRt) else run_session(engine, feeds)
            state = {before: results[after] for before, after in pairs}
            outputs.append(results["logits"])
        here.state = state
        for found, each in zip(outputs, frames[start : start + 3], strict=True):
            np.testing.assert_allclose(found, known({"feats": each})["logits"], atol=1e-5)


@needs_litert
def test_a_model_is_written_as_its_step(tmp_path):
    """The arguments are those of `export_onnx`, which writes the whole graph by default."""
    model, path = jaxrnn.load(PACKAGED), tmp_path / "step.tflite"
    assert export_litert(model, None, path, step=True, dims={"time": 1}).step.facts.kind == "step"
    with pytest.raises(InputError, match="leave out `step=False`"):
        export_litert(model, None, path, step=False, dims={"time": 1})


@needs_litert
def test_other_weights_are_a_difference(models, tmp_path):
    stepper, params, model = stepper_of(models / "keyword_net.onnx")
    name = max(params, key=lambda name: params[name].size)
    changed = {**params, name: 0.99 * params[name]}
    export_litert(stepper, changed, tmp_path / "step.tflite")
    assert not verify_export(stepper, params, tmp_path / "step.tflite", offline=model).ok


@needs_litert
def test_step_and_flush_share_their_weights(models, tmp_path):
    stepper, params, _ = stepper_of(models / "filter_net.onnx")
    sizes = {}
    for flush in (False, True):
        path = tmp_path / f"{flush}.tflite"
        exported = export_litert(stepper, params, path, flush=flush)
        assert (exported.flush is not None) == flush
        sizes[flush] = path.stat().st_size
    assert sizes[True] < 1.3 * sizes[False]


@needs_litert
def test_a_loop_over_frequency_is_a_function_of_the_file(models, tmp_path):
    """Unrolled, the two loops of 33 trips in the step and in the flush would take five times the space."""
    stepper, params, model = stepper_of(models / "speech/frequency_gru_script.onnx")
    path = tmp_path / "step.tflite"
    export_litert(stepper, params, path)
    assert path.stat().st_size < 2**17
    assert operations(Signature(path, "step"))["WHILE"] == 2
    assert verify_export(stepper, params, path, offline=model).ok


@needs_litert
def test_gates_are_splits_and_frames_are_rows(models, tmp_path):
    """Not three slices for each product, and no reshape of each frame; only the first buffer is empty."""
    model = jaxrnn.load(models / "exports/gru_no_state_script.onnx")
    stepper, path = model.stream(pulse=4), tmp_path / "step.tflite"
    schema = package("ai_edge_litert.schema_py_generated")
    export_litert(stepper, model.params, path, flush=False)
    found = operations(Signature(path, "step"))
    # The frames of a pulse, and both products of each frame; the input, the state and the outputs are reshaped.
    assert (found["SPLIT"], found["SLICE"]) == (1 + 2 * 4, 0)
    assert found["RESHAPE"] <= 5
    buffers = schema.ModelT.InitFromPackedBuf(path.read_bytes()).buffers
    assert [each.data is None for each in buffers] == [True] + [False] * (len(buffers) - 1)
    assert verify_export(stepper, model.params, path).ok


@needs_litert
def test_weights_of_16_bits(models, tmp_path, monkeypatch):
    """Without the quantizer; step and flush share the weights, and named products and Fourier matrices stay float32."""
    for name in ("ai_edge_quantizer", "ai_edge_quantizer.quantizer"):
        monkeypatch.setitem(sys.modules, name, None)
    size, path = {}, tmp_path / "step.tflite"
    for name, exclude in (("keyword_net", ()), ("dtln_1", ()), ("dtln_1", ("lstm", "dense"))):
        stepper, params, model = stepper_of(models / f"{name}.onnx")
        for quantize in (None, "float16") if not exclude else ("float16",):
            export_litert(stepper, params, path, quantize=quantize and Quantization(quantize, exclude))
            assert verify_export(stepper, params, path, offline=model).ok
            size[name, quantize, exclude] = path.stat().st_size
    plain, shared, whole, half, none = size.values()
    assert shared < 0.7 * plain
    assert half < 0.55 * whole
    assert none > 0.99 * whole
    with pytest.raises(MissingPackageError, match=r"jaxrnn\[litert\]"):
        export_litert(stepper, params, path, quantize="dynamic")


@needs_litert
def test_weights_beyond_the_range_of_16_bits_stay(tmp_path):
    table = np.float32([[7e4, 1], [2, 3]])
    export_litert(lambda x: x @ table, None, tmp_path / "f.tflite", example=X[:, :2], quantize="float16")
    found = LiteRt(Signature(tmp_path / "f.tflite", "function")).run({"x": X[:, :2]})
    np.testing.assert_allclose(*found.values(), X[:, :2] @ table, rtol=1e-5)


@needs_quantizer
def test_weights_of_other_types(models, tmp_path):
    stepper, params, _ = stepper_of(models / "dtln_1.onnx")
    size, errors = {}, {}
    for quantize in (None, "float16", "dynamic"):
        path = tmp_path / f"{quantize}.tflite"
        export_litert(stepper, params, path, quantize=quantize)
        report = verify_export(stepper, params, path)
        assert report.ok, quantize
        size[quantize] = path.stat().st_size
        errors[quantize] = max(each.max_abs for check in report.cases for each in check.outputs)
    assert size["float16"] < 0.55 * size[None]
    assert size["dynamic"] < 0.3 * size[None]
    assert errors[None] < 1e-4 < errors["float16"] < errors["dynamic"]
    assert operations(Signature(tmp_path / "None.tflite", "step"))["FULLY_CONNECTED"] == 5


@needs_litert
def test_the_command_writes_verifies_and_refuses(models, tmp_path):
    model, out = str(models / "keyword_net.onnx"), tmp_path / "step.tflite"
    base = ["export", model, "--symbol", "S", "-o", str(out)]
    result = CliRunner().invoke(main, [*base, "--pulse", "2", "--verify", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["verified"] is True
    assert facts["step_ms"] > 0
    assert [each["kind"] for each in facts["graphs"]] == ["step", "flush"]
    for words, reason in (
        (["--opset", "18"], "for ONNX files"),
        (["--flush", str(tmp_path / "f.onnx")], "has the flush as a signature"),
        (["--target", "tract"], "is for ONNX files"),
        (["--dtype", "bfloat16"], "--dtype float16"),
        (["--batch", "N"], "give the number of streams"),
    ):
        refused = CliRunner().invoke(main, [*base, *words])
        assert refused.exit_code == 2
        assert reason in " ".join(refused.output.split())
    named = CliRunner().invoke(main, [*base[:-1], str(tmp_path / "step.onnx"), "--target", "litert"])
    assert "must end in .tflite" in named.output


def test_a_missing_package_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "litert_converter", None)
    monkeypatch.setitem(sys.modules, "litert_converter.converter_api_ext", None)
    with pytest.raises(MissingPackageError, match=r"jaxrnn\[litert\]"):
        export_litert(lambda x: x, None, tmp_path / "f.tflite", example=X)
    with pytest.raises(InputError, match=r"must end in \.tflite"):
        export_litert(lambda x: x, None, tmp_path / "f.onnx", example=X)


@needs_litert
def test_a_damaged_file_is_one_error(tmp_path):
    path = tmp_path / "f.tflite"
    export_litert(lambda x: x + 1, None, path, example=X)
    whole = path.read_bytes()
    for damaged in (whole[:40], whole[:4] + b"none" + whole[8:], whole[:8] + b"\xff" * 60 + whole[68:]):
        path.write_bytes(damaged)
        with pytest.raises((ModelError, InputError), match=r"damaged|not a LiteRT file|no step"):
            FileRunner(path)
