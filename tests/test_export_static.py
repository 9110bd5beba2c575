"""Static quantisation of steps and streams for ONNX engines and LiteRT: ranges, errors, what stays float, refusals."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto
from packages import needs_quantizer
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.errors import InputError
from jaxrnn.export import FileRunner, Quantization, export_litert, verify_export
from jaxrnn.verification.litert import Signature, operations

ENDINGS = ["onnx", pytest.param("tflite", marks=needs_quantizer)]

RNG = np.random.default_rng(0)
WIDTH = 30  # not a power of two: the transforms are products in every engine
PARAMS = {name: RNG.normal(size=(16, 16)).astype(np.float32) / 4 for name in ("first", "second")}


def masking(params, inputs):
    """A mask from this frame and the next, between Fourier transforms; the mask decays over thousands of frames."""
    spectrum = jnp.fft.rfft(inputs["x"], axis=-1)
    ahead = jnp.pad(jnp.abs(spectrum), ((0, 1), (0, 0)))[1:]
    with jax.named_scope("encoder"):
        hidden = jnp.tanh(ahead @ params["first"])
    with jax.named_scope("mask"):
        mask = jax.nn.sigmoid(hidden @ params["second"])
    _, slow = jax.lax.scan(lambda carry, row: (carry + 1e-3 * (row - carry),) * 2, jnp.zeros(16), mask)
    return {"y": jnp.fft.irfft(spectrum * (mask + slow).astype(jnp.complex64), WIDTH, axis=-1)}


STREAM = jaxrnn.stream(masking, {"x": jnp.zeros((8, WIDTH))}, axes=0, params=PARAMS, pulse=2)


def recording(frames, loudness=1.0, seed=0):
    return {"x": (loudness * np.random.default_rng(seed).normal(size=(frames, WIDTH))).astype(np.float32)}


#: The loudest frames are few, and in the middle of the second recording, which ends within a pulse.
LOUD = np.concatenate([recording(frames, loudness, seed=1)["x"] for frames, loudness in ((8, 0.1), (24, 10), (9, 0.1))])
RECORDINGS = {"quiet": recording(200, 0.1), "loud": {"x": LOUD}}


def exported(path, stepper=STREAM, **options):
    if path.suffix == ".tflite":
        return export_litert(stepper, PARAMS, path, **options)
    return jaxrnn.export_onnx(stepper, PARAMS, path, flush=path.with_name("flush.onnx"), **options)


def outputs(path, arrays):
    run, frames = FileRunner(path), len(arrays["x"])
    whole = [run({"x": arrays["x"][at : at + 2]})["y"] for at in range(0, frames - 1, 2)]
    rest = run.flush({"x": arrays["x"][-1:]}, 1) if frames % 2 else run.flush()
    return np.concatenate([*whole, rest["y"]])[1:]


def decibels(found, known):
    with np.errstate(divide="ignore"):  # without an error, the ratio is infinite
        return 10 * np.log10(np.sum(known**2) / np.sum((found - known) ** 2))


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_error_is_that_of_the_recordings(ending, tmp_path):
    path = tmp_path / f"step.{ending}"
    written = exported(path, quantize=Quantization("static", recordings=RECORDINGS))
    pairs = [(outputs(path, each), np.asarray(masking(PARAMS, each)["y"])) for each in RECORDINGS.values()]
    measured = decibels(*map(np.concatenate, zip(*pairs, strict=True)))
    assert written.errors == {"y": pytest.approx(measured, abs=0.1)}
    assert measured > 28
    # The range is that of the loudest frames, not of an average, also in the flush of a recording that ends with them.
    assert decibels(*pairs[1]) > 28
    loud = {"x": LOUD[8:23]}
    assert decibels(outputs(path, loud)[-2], np.asarray(masking(PARAMS, loud)["y"])[-2]) > 25
    # The state is float: an error does not grow with time.
    long = recording(4000, 5.0, seed=2)
    assert decibels(outputs(path, long)[-500:], np.asarray(masking(PARAMS, long)["y"])[-500:]) > 28
    report = verify_export(STREAM, PARAMS, path, inputs=RECORDINGS["loud"])
    assert report.ok
    assert "dB below the output" in report.cases[-1].outputs[0].reason
    assert all(each.dtype != np.int8 for each in (*written.step.facts.spec.state, *written.step.facts.spec.inputs))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("quantize", of_tiers(["dynamic", "static"], ["dynamic"]))
def test_transforms_and_named_products_stay_float(quantize, ending, tmp_path):
    errors, recordings = [], RECORDINGS if quantize == "static" else None
    for exclude, products in (((), 2), (("mask",), 1)):
        path = tmp_path / f"step.{ending}"
        exported(path, quantize=Quantization(quantize, exclude, recordings))
        errors.append(decibels(outputs(path, RECORDINGS["loud"]), np.asarray(masking(PARAMS, RECORDINGS["loud"])["y"])))
        if ending == "onnx":
            weights = [each for each in onnx.load(path).graph.initializer if each.data_type == TensorProto.INT8]
            assert [[*each.dims] for each in weights if len(each.dims) > 1] == [[16, 16]] * products
        elif quantize == "static":
            assert operations(Signature(path, "step"))["DEQUANTIZE"] == products
    assert errors[1] > errors[0] > 28
    unknown = {"quantize": Quantization(quantize, ("decoder",), recordings)}
    check_refused(InputError, "starts with 'decoder'", exported, path, **unknown)


@pytest.mark.parametrize("ending", ENDINGS)
def test_only_products_read_rounded_numbers(ending, tmp_path):
    """Past frames of a convolution, and a term beside a product whose first column is 0, are those of the input."""

    def both(params, inputs):
        x = inputs["x"][:, :16]
        taps = params["second"][:3, :, None] * params["first"][None]
        late = jnp.pad(x, ((2, 0), (0, 0)))
        layout = ("NHC", "HIO", "NHC")
        near = jax.lax.conv_general_dilated(late[None], taps, (1,), "VALID", dimension_numbers=layout)
        none = x @ jnp.where(np.arange(16) > 0, params["first"], 0)
        return {"near": near[0], "late": late[:-2], "y": x - x * none, "sum": x @ params["first"] + 0.5}

    stream = jaxrnn.stream(both, {"x": jnp.zeros((8, WIDTH))}, axes=0, params=PARAMS, pulse=2)
    path, x = tmp_path / f"step.{ending}", recording(8, 3.0)["x"]
    exported(path, stream, quantize=Quantization("static", recordings=RECORDINGS))
    run = FileRunner(path)
    (*_, last) = [run({"x": x[at : at + 2]}) for at in range(0, 8, 2)]
    for name, array in both(PARAMS, {"x": x}).items():
        assert decibels(last[name], np.asarray(array)[-2:]) > 20
    np.testing.assert_array_equal(last["y"][:, 0], x[-2:, 0])
    np.testing.assert_array_equal(last["late"], x[-4:-2, :16])


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("left", [0, 1e-7])
def test_pruned_channels_keep_their_bias(left, ending, tmp_path):
    """The bias of a channel without weights is beyond 32 bits in steps of its weights."""
    params = {"w": PARAMS["first"] * np.where(np.arange(16) > 0, 1, np.float32(left)), "b": np.ones(16, np.float32)}
    stream = jaxrnn.stream(
        lambda p, i: {"y": i["x"][:, :16] @ p["w"] + p["b"]},
        {"x": jnp.zeros((8, WIDTH))},
        axes=0,
        params=params,
        pulse=2,
    )
    quantize, path = Quantization("static", recordings=[recording(200)]), tmp_path / f"step.{ending}"
    if ending == "onnx":
        jaxrnn.export_onnx(stream, params, path, quantize=quantize)
    else:
        export_litert(stream, params, path, quantize=quantize)
    np.testing.assert_allclose(FileRunner(path)({"x": recording(2)["x"]})["y"][:, 0], 1, atol=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ENDINGS)
def test_recurrent_layers_and_convolutions(ending, tmp_path, models):
    """A network of convolutions and LSTMs, whose LSTMs are quantised dynamically."""
    model = jaxrnn.load(models / "keyword_net.onnx")
    streamed = model.stream("S", pulse=8)
    path = tmp_path / f"step.{ending}"
    calibrate = [{"feats": RNG.normal(size=(1, 40, frames)).astype(np.float32)} for frames in (40, 28)]
    sizes = {}
    for quantize in ("dynamic", "static"):
        options = {"quantize": Quantization(quantize, recordings=calibrate if quantize == "static" else None)}
        if ending == "tflite":
            written = export_litert(streamed, model.params, path, **options)
        else:
            written = jaxrnn.export_onnx(streamed, model.params, path, flush=tmp_path / "flush.onnx", **options)
        sizes[quantize] = path.stat().st_size
    assert sizes["static"] < 1.1 * sizes["dynamic"]
    assert written.errors["logits"] > 40
    assert verify_export(streamed, model.params, path, offline=model, inputs=calibrate[0]).ok


def test_recordings_that_do_not_fit_are_one_error(tmp_path):
    path, x = tmp_path / "step.onnx", RECORDINGS["loud"]["x"]
    for calibrate, words in (
        ([], "no recordings"),
        ([{}], "recording 0: missing input 'x'"),
        ([{"x": x}, {"z": x}], "recording 1: there is no input 'z'"),
        ({"a.wav": {"x": x[:, :9]}}, r"recording a\.wav: .*30"),
        ([{"x": x[:0]}], "recording 0: .*frames"),
        ([{"x": np.full_like(x, np.nan)}], "recording 0: 'x' is not finite"),
        ([x], "recording 0: .*must be a dict"),
        (None, "`quantize='static'` and `Quantization.recordings` go together"),
    ):
        check_refused(InputError, words, exported, path, quantize=Quantization("static", recordings=calibrate))
    check_refused(InputError, "go together", exported, path, quantize=Quantization("dynamic", recordings=[{"x": x}]))
    plain = jaxrnn.stream(lambda p, i: {"y": i["x"][:, :16] @ p["first"]}, {"x": jnp.asarray(x)}, axes=0, params=PARAMS)
    static = Quantization("static", recordings=[{"x": x}])
    check_refused(InputError, "opset 13", exported, path, plain, quantize=static, opset=12)
    options = {"quantize": static, "example": {"x": x}}
    check_refused(InputError, "for a step or a stream", jaxrnn.export_onnx, masking, PARAMS, path, **options)
    assert not list(tmp_path.iterdir())


def said(folder, *options):
    """What an export of the packaged denoiser says."""
    command = ["export", str(PACKAGED), "-o", str(folder / "step.onnx"), "--quantize", "static", *options]
    result = CliRunner().invoke(main, command)
    return result, " ".join(result.output.split())


def test_the_command_reads_a_folder(tmp_path):
    folder, step = tmp_path / "recordings", ("--dim", "time=1", "--calibrate", str(tmp_path / "recordings"))
    folder.mkdir()
    (folder / "notes.txt").write_text("no recording")
    for options, words in (((), "go together"), (step, "has no recordings")):
        result, text = said(tmp_path, *options)
        assert (result.exit_code, words in text) == (2, True), text
    frames = RNG.uniform(0, 1, (20, 1, 1, 129)).astype(np.float32)
    np.save(folder / "a.npy", frames)
    np.savez(folder / "b.npz", magnitude=frames[..., :7])
    result, text = said(tmp_path, *step)
    assert (result.exit_code, "recording b.npz" in text, list(tmp_path.glob("step*"))) == (2, True, []), text
    np.savez(folder / "b.npz", magnitude=frames[:9])
    result, text = said(tmp_path, *step, "--json")
    assert result.exit_code == 0, text
    assert json.loads(result.stdout)["error_db"]["mask"] > 30
    assert "2 recordings; left out: 1 *.txt" in result.stderr


@pytest.mark.thorough
def test_the_command_reads_sound(tmp_path):
    """Sound files calibrate the packaged denoiser between its transforms, and verify the file."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    samples = 0.1 * RNG.normal(size=3000).astype(np.float32)
    jaxrnn.audio.write_wav(folder / "a.wav", samples, 16000)
    np.save(folder / "b.npy", 2 * samples[:2000])
    options = ["--stft", "256", "--hop", "128", "--gives", "mask", "--calibrate", str(folder), "--verify", "--json"]
    result, text = said(tmp_path, *options)
    assert result.exit_code == 0, text
    facts = json.loads(result.stdout)
    assert facts["verified"]
    assert facts["error_db"]["audio"] > 30
