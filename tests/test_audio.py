"""Short-time spectra, and networks over spectra as functions of waveforms, in JAX, in files and in commands."""

from __future__ import annotations

import re
import shlex
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
import scipy.signal
import soundfile
from exported_files import ExportedStream, check_exported
from onnx import helper
from packages import needs
from refusals import check_refused
from small_models import graph_of, make_model
from streaming_verifier import check_gradients, check_values
from test_cli import call, call_json
from tiers import of_tiers

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform, istft, latency, read_sound, stft, write_wav
from jaxrnn.demo import PACKAGED, denoise_at_once, mixture
from jaxrnn.signal import si_sdr

#: A small transform: samples of a frame, hop, and frequencies.
SIZE, HOP = 8, 2
BINS = SIZE // 2 + 1
PADDINGS = ("causal", "zeros", "reflect", "none")
#: The largest difference to an offline pipeline, relative to full scale.
TOLERANCE = 1e-5


def noise(samples, seed=0):
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def padded(x, size, hop, padding):
    """The waveform with the padding of the definition."""
    width = {"causal": size - hop, "none": 0}.get(padding, size // 2)
    return np.pad(x.astype(np.float64), width, mode="reflect" if padding == "reflect" else "constant")


def spectra(x, size, hop, window, padding):
    """The definition: the Fourier transform of each windowed frame."""
    whole = padded(x, size, hop, padding)
    return np.stack([np.fft.rfft(whole[at : at + size] * window) for at in range(0, len(whole) - size + 1, hop)])


def waveform(spectra, size, hop, window, padding, length):
    """The definition: overlapping windowed frames, divided by the overlapping squares of the window."""
    total = (len(spectra) - 1) * hop + size
    result, squares = np.zeros(total), np.zeros(total)
    for index, frame in enumerate(np.fft.irfft(spectra, size)):
        part = slice(index * hop, index * hop + size)
        result[part] += frame * window
        squares[part] += window**2
    before = {"causal": size - hop, "none": 0}.get(padding, size // 2)
    return (result / np.where(squares > 1e-10, squares, 1))[before : before + length]


@pytest.mark.parametrize("padding", PADDINGS)
def test_values(padding):
    """Against the definition in float64, and masked spectra back."""
    x, window = noise(400), scipy.signal.get_window("hamming", 32)
    found = np.asarray(jax.jit(lambda x: stft(x, 32, 8, "hamming", padding=padding))(x))
    expected = spectra(x, 32, 8, window, padding)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    gains = np.random.default_rng(1).uniform(size=expected.shape)
    back = jax.jit(lambda frames: istft(frames, 32, 8, "hamming", padding=padding, length=400))
    masked = back(found * gains.astype(np.float32))
    np.testing.assert_allclose(masked, waveform(expected * gains, 32, 8, window, padding, 400), atol=1e-5)
    np.testing.assert_allclose(back(found), x, atol=1e-5)


def test_values_of_scipy():
    x = noise(400)
    _, _, expected = scipy.signal.stft(x, nperseg=32, noverlap=24, padded=False)
    found = np.asarray(stft(x, 32, 8, padding="zeros", norm="window"))
    np.testing.assert_allclose(found, expected.T, atol=1e-6)
    _, expected = scipy.signal.istft(0.5 * expected, nperseg=32, noverlap=24)
    np.testing.assert_allclose(
        istft(np.complex64(0.5) * found, 32, 8, padding="zeros", norm="window"), expected, atol=1e-6
    )


SIZES = [(8, 4, 10), (9, 4, 30), (8, 8, 21), (10, 4, 24), (7, 2, 18)]


@pytest.mark.parametrize(("size", "hop", "samples"), of_tiers(SIZES, SIZES[:3]))
def test_ends(size, hop, samples):
    """Every sample that a frame holds comes back, also where the hop divides neither the length nor the frame."""
    x, before = noise(samples), {"causal": size - hop, "none": 0}

    @jax.jit
    def there_and_back(x):
        results = []
        for padding in PADDINGS:
            given, options = stft(x, size, hop, "hamming", padding=padding), {"padding": padding}
            held = (len(given) - 1) * hop + size - before.get(padding, size // 2)
            lengths = (min(samples, held), None)
            results += [istft(given, size, hop, "hamming", length=length, **options) for length in lengths]
            with pytest.raises(jaxrnn.InputError, match=f"the frames hold {held} samples; give no more"):
                istft(given, size, hop, "hamming", length=held + 1, **options)
            assert len(results[-2]) == lengths[0]
        return results

    for back in there_and_back(x):
        shared = min(len(back), samples)
        np.testing.assert_allclose(back[:shared], x[:shared], atol=1e-5)


@pytest.mark.thorough
def test_conventions():
    """Norms are factors, a batch has leading axes, and a window may be an array."""
    x, window = noise(64).reshape(2, 32), np.arange(1.0, 9)
    plain = np.asarray(stft(x, 8, 4, window))
    np.testing.assert_allclose(stft(x, 8, 4, window, norm="ortho"), plain / np.sqrt(8), atol=TOLERANCE)
    np.testing.assert_allclose(stft(x, 8, 4, window, norm="window"), plain / window.sum(), atol=TOLERANCE)
    np.testing.assert_allclose(stft(x[1], 8, 4, window), plain[1], atol=TOLERANCE)
    np.testing.assert_allclose(Frames(8, 4, "sqrt_hann").weights ** 2, Frames(8, 4).weights, atol=1e-12)
    summed = Frames(8, 2, "boxcar", synthesis="sum")
    np.testing.assert_allclose(summed.istft(summed.stft(x)), 4 * x, rtol=1e-5)
    # Without a hop that divides the frame: features, such as 25 ms every 10 ms.
    assert stft(noise(1600), 400, 160).shape == ((1600 + 2 * 240 - 400) // 160 + 1, 201)


def masked(padding, size=SIZE, hop=HOP):
    """A function of waveforms: spectra, a mask, and a waveform of the same length."""

    def function(x):
        found = stft(x, size, hop, "sqrt_hann", padding=padding)
        masks = jax.nn.sigmoid(jnp.abs(found))
        return istft(found * masks.astype(found.dtype), size, hop, "sqrt_hann", padding=padding)

    return function


@pytest.mark.parametrize("padding", of_tiers(PADDINGS, (), ("reflect",)))
def test_streams(padding, tmp_path):
    """Exact for every length and pulse, with gradients, in JAX and in ONNX Runtime."""
    options = {"multiple": HOP, "constraints": [f"S >= {SIZE // HOP}"]}
    lengths = (4, 5, 9)
    streamed = check_values(masked(padding), (16,), lengths=lengths, **options)
    assert streamed.smallest_pulse == HOP
    check_gradients(masked(padding), (16,), **options)
    check_exported(masked(padding), (16,), tmp_path, lengths=lengths, pulses=(1,), **options)


def step_model(path):
    """A GRU over magnitudes, one frame a step, to a mask."""
    rng = np.random.default_rng(3)
    shapes = {"W": (1, 12, BINS), "R": (1, 12, 4), "P": (4, BINS)}
    weights = {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["Y", "h_out"], hidden_size=4),
        helper.make_node("MatMul", ["Y", "P"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["y"]),
    ]
    inputs, outputs = {"x": [1, 1, BINS], "h": [1, 1, 4]}, {"y": [1, 1, 1, BINS], "h_out": [1, 1, 4]}
    onnx.save(make_model(graph_of(nodes, inputs, outputs, weights)), path)
    return path


def offline_model(path, channels=1):
    """A convolution over time and frequency that looks a frame ahead: ``[1, channels, T, BINS]`` to the same."""
    rng = np.random.default_rng(4)
    weights = {"W": (0.4 * rng.standard_normal((channels, channels, 3, 3))).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Tanh", ["a"], ["y"]),
    ]
    shape = [1, channels, "T", BINS]
    onnx.save(make_model(graph_of(nodes, {"x": shape}, {"y": shape}, weights)), path)
    return path


def samples_model(path, size=SIZE):
    """Tanh of the samples of a frame."""
    onnx.save(make_model(graph_of([helper.make_node("Tanh", ["x"], ["y"])], {"x": [1, size]}, {"y": [1, size]})), path)
    return path


def to_power(spectra, exponent):
    magnitudes = np.abs(spectra)
    return spectra * np.where(magnitudes > 0, magnitudes, 1) ** (exponent - 1)


def pipeline(network, x, window, exponent=1.0):
    """The offline pipeline in NumPy: causal frames, and a network from compressed spectra to compressed spectra."""
    whole = np.pad(x, (0, -len(x) % HOP))
    found = spectra(whole, SIZE, HOP, window, "causal")
    given = network(to_power(found, exponent).astype(np.complex64))
    return waveform(to_power(given, 1 / exponent), SIZE, HOP, window, "causal", len(x))


def by_steps(model):
    def network(seen):
        state, masks = model.init(), []
        for frame in np.abs(seen):
            outputs, state = model.step(model.params, state, {"x": frame[None, None]})
            masks.append(np.asarray(outputs["y"])[0, 0, 0])
        return seen * np.stack(masks)

    return network


def by_frames(model):
    return lambda seen: seen * np.asarray(model({"x": np.abs(seen)[None, None]})["y"])[0, 0]


def as_magnitude(model):
    return lambda seen: np.asarray(model({"x": np.abs(seen)[None, None]})["y"])[0, 0] * np.exp(1j * np.angle(seen))


def as_pairs(model):
    def network(seen):
        y = np.asarray(model({"x": np.stack([seen.real, seen.imag])[None]})["y"])[0]
        return y[0] + 1j * y[1]

    return network


def times_pairs(model):
    return lambda seen: seen * as_pairs(model)(seen)


#: By name: the file, the options of the network, and the network of the pipeline in NumPy.
NETWORKS = {
    "mask in steps": (step_model, {"gives": "mask"}, by_steps),
    "compressed": (step_model, {"gives": "mask", "exponent": 0.5}, by_steps),
    "mask": (offline_model, {"gives": "mask", "symbol": "T"}, by_frames),
    "magnitude": (offline_model, {"gives": "magnitude", "symbol": "T", "takes": "magnitude"}, as_magnitude),
    "spectrum": (lambda path: offline_model(path, 2), {"gives": "spectrum", "symbol": "T"}, as_pairs),
    "complex mask": (lambda path: offline_model(path, 2), {"gives": "mask", "symbol": "T"}, times_pairs),
}


@pytest.mark.parametrize("name", of_tiers(NETWORKS, ("complex mask",), thorough=()))
def test_networks(name, tmp_path):
    """A network between the transforms equals the pipeline, and so do its stream and its files, for every length."""
    write, options, network = NETWORKS[name]
    model = jaxrnn.load(write(tmp_path / "network.onnx"))
    built = Waveform(Network(model, **options), Frames(SIZE, HOP, "sqrt_hann"))
    streamed = built.stream()
    assert streamed.smallest_pulse == HOP
    jaxrnn.export_onnx(streamed, built.params, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    exported = ExportedStream(tmp_path / "step.onnx", tmp_path / "flush.onnx")
    for length in (1, 7, 24):
        x = noise(length, length)
        expected = pipeline(network(model), x, built.frames.weights, options.get("exponent", 1.0))
        for found in (built, lambda inputs: streamed.run(built.params, inputs), exported.run):
            np.testing.assert_allclose(
                found({"samples": x})["audio"], expected, atol=TOLERANCE * max(1, np.abs(expected).max())
            )


@pytest.mark.nightly
def test_gradients_of_a_network(tmp_path):
    """Of parameters and samples, through pulses and offline; also of silence under a compressed magnitude."""
    built = Waveform(
        Network(jaxrnn.load(step_model(tmp_path / "n.onnx")), gives="mask", exponent=0.3), Frames(SIZE, HOP)
    )
    streamed = built.stream()

    def loss(run, params, x):
        return jnp.sum((run(params, {"samples": x})["audio"] - 1) ** 2)

    x = jnp.asarray(noise(21)).at[:9].set(0)
    found, expected = (jax.grad(loss, (1, 2))(run, built.params, x) for run in (streamed.run, built.apply))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(found))


def test_networks_in_a_row(tmp_path):
    """A mask and then a network over samples, whose frames are added as they are."""
    first, second = (jaxrnn.load(write(tmp_path / f"{write.__name__}.onnx")) for write in (step_model, samples_model))
    frames = Frames(SIZE, HOP, "boxcar", synthesis="sum")
    built = Waveform([Network(first, gives="mask"), Network(second)], frames)
    x, expected = noise(24), np.zeros(24 + SIZE)
    seen = spectra(x, SIZE, HOP, np.ones(SIZE), "causal").astype(np.complex64)
    given = np.tanh(np.fft.irfft(by_steps(first)(seen), SIZE))
    whole = np.zeros((len(given) - 1) * HOP + SIZE)
    for index, frame in enumerate(given):
        whole[index * HOP : index * HOP + SIZE] += frame
    expected = whole[SIZE - HOP :][:24]
    for found in (built({"samples": x}), built.stream().run(built.params, {"samples": x})):
        np.testing.assert_allclose(found["audio"], expected, atol=TOLERANCE)
    assert "multiply unmodified frames by 4" in built.description[-1]


def test_results_over_frames(tmp_path):
    """A result of each hop, also where the hop does not divide the frame, beside the sound of a mask."""
    first, second = (jaxrnn.load(write(tmp_path / f"{write.__name__}.onnx")) for write in (step_model, samples_model))
    heard = Network(second, gives="result")
    opened = Network(jaxrnn.load(samples_model(tmp_path / "open.onnx", "n")), takes="samples", gives="result")
    both = Waveform([Network(first, gives="mask"), heard], Frames(SIZE, HOP, "sqrt_hann"))
    masked_only = Waveform(both.networks[0], both.frames)
    assert [each.name for each in both.outputs] == ["audio", "y"]
    for built, length in ((both, 1), (both, 24), *((Waveform(each, Frames(SIZE, 3)), 7) for each in (heard, opened))):
        x, frames = noise(length), built.frames
        found = built({"samples": x})
        streamed = built.stream().run(built.params, {"samples": x})
        assert found.keys() == streamed.keys()
        for name, values in found.items():
            np.testing.assert_allclose(streamed[name], values, atol=TOLERANCE)
        seen = frames.cut(np.pad(x, (0, -length % frames.hop)))
        if built is both:
            np.testing.assert_allclose(found["audio"], masked_only({"samples": x})["audio"], atol=TOLERANCE)
            spectrum = frames.transform(seen)
            seen = frames.inverse(by_steps(first)(np.asarray(spectrum)))
        np.testing.assert_allclose(found["y"], np.tanh(seen)[: -(-length // frames.hop)], atol=TOLERANCE)


MISTAKES = {
    "hop": (
        lambda m: Waveform(Network(m["step"], gives="mask"), Frames(8, 3)),
        "hop of 3 does not divide the 8 samples",
    ),
    "long hop": (lambda m: stft(noise(20), 8, 9), "hop must be from 1 to the 8 samples of a frame, not 9"),
    "window": (lambda m: stft(noise(20), 8, 2, np.ones(6)), "window is float64[6], but a frame has 8 samples"),
    "window name": (lambda m: stft(noise(20), 8, 2, "hanning"), "window: "),
    "no overlap": (lambda m: istft(np.zeros((3, 5), np.complex64), 8, 8), "do not reconstruct: sample 0 of each hop"),
    "frequencies": (
        lambda m: Waveform(Network(m["step"], gives="mask"), Frames(16, 4)),
        "9 frequencies (and one of 2 for complex numbers), or one axis of 16 samples; 5 frequencies are those "
        "of frames of 8 samples",
    ),
    "spectra": (lambda m: istft(np.zeros((3, 4), np.complex64), 8, 2), "complex numbers of 5 frequencies"),
    "real spectra": (lambda m: istft(np.zeros((3, 5), np.float32), 8, 2), "complex numbers of 5 frequencies"),
    "one frame": (lambda m: istft(np.zeros(5, np.complex64), 8, 2), "put an axis of frames before them"),
    "one number": (lambda m: stft(np.float32(3), 8, 2), "a waveform has an axis of samples"),
    "nothing to mirror": (lambda m: stft(noise(0), 8, 2, padding="reflect"), "but the waveform has none"),
    "length": (lambda m: istft(np.zeros((3, 5), np.complex64), 8, 2, length=10.5), "a whole number of samples"),
    "negative length": (lambda m: istft(np.zeros((3, 5), np.complex64), 8, 2, length=-1), "a whole number of samples"),
    "window that sums to 0": (
        lambda m: stft(noise(20), 4, 2, np.array([1, -1, 1, -1]), norm="window"),
        "divides by the sum of the window, which is 0",
    ),
    "integers": (lambda m: stft(np.arange(20), 8, 2), "a waveform has samples of float32 or float64, not int"),
    "half precision": (lambda m: stft(jnp.zeros(20, jnp.bfloat16), 8, 2), "float32 or float64, not bfloat16"),
    "a window that is not finite": (lambda m: Frames(8, 2, np.full(8, np.inf)), "has 8 values that are not finite"),
    "near window": (
        lambda m: Frames(8, 2, "sqrthann"),
        "'sqrthann' in parameter window='sqrthann'! (did you mean 'sqrt_hann'?)",
    ),
    "window with numbers": (lambda m: Frames(8, 2, "kaiser"), "'kaiser' must have parameters"),
    "padding": (lambda m: Frames(8, 2, padding="centre"), "padding` must be one of zeros, reflect, causal, none"),
    "not said": (
        lambda m: Waveform(Network(m["step"]), Frames(8, 2))({"samples": noise(20)}),
        "does not say what it is: its sizes fit mask or magnitude; say which with `gives",
    ),
    "not samples": (
        lambda m: Waveform(Network(m["step"], gives="samples"), Frames(8, 2))({"samples": noise(20)}),
        "is not samples: its sizes fit mask or magnitude",
    ),
    "not a spectrum": (
        lambda m: Waveform(Network(m["step"], takes="spectrum", gives="mask"), Frames(8, 2)),
        "takes magnitude, not spectrum",
    ),
    "no symbol": (
        lambda m: Waveform(Network(m["offline"], gives="mask"), Frames(8, 2)),
        "has no state, and leaves T open: give `symbol='T'",
    ),
    "other symbol": (
        lambda m: Waveform(Network(m["offline"], gives="mask", symbol="S"), Frames(8, 2)),
        "has no dimension 'S'; its open dimensions: T",
    ),
    "state with a symbol": (
        lambda m: Waveform(Network(m["step"], gives="mask", symbol="T"), Frames(8, 2)),
        "also takes h: fix each with `jaxrnn.load(path, static={NAME: VALUE})",
    ),
    "open size": (
        lambda m: Waveform(Network(m["open"]), Frames(8, 2)),
        "if n is the size of a frame, say what the network takes with `takes`",
    ),
    "role": (
        lambda m: Network(m["step"], gives="masks"),
        "gives` must be one of samples, mask, magnitude, spectrum, result, not 'masks' (did you mean 'mask'?)",
    ),
    "exponent": (lambda m: Network(m["step"], exponent=0), "exponent` must be a number above 0"),
}


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    files = {"step": step_model(folder / "step.onnx"), "offline": offline_model(folder / "offline.onnx")}
    files["open"] = samples_model(folder / "open.onnx", "n")
    return {name: jaxrnn.load(path) for name, path in files.items()}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, networks):
    act, message = MISTAKES[mistake]
    with pytest.raises(jaxrnn.JaxrnnError) as caught:
        act(networks)
    assert message in str(caught.value)


def test_the_condition_of_overlap_is_said():
    assert Frames(8, 4, "sqrt_hann").note is None
    assert Frames(8, 2, "hann").note is None
    assert "no constant overlap-add (weights from" in Frames(8, 4, "hann").note


def test_sounds(tmp_path):
    x = np.clip(noise(50) / 3, -1, 1)
    write_wav(tmp_path / "x.wav", x, 8000)
    found, rate = read_sound(tmp_path / "x.wav")
    assert rate == 8000
    np.testing.assert_allclose(found, x, atol=1 / 32768)
    every = np.arange(-(2**15), 2**15, dtype=np.int16)  # a copy of a file has the same samples
    scipy.io.wavfile.write(tmp_path / "every.wav", 8000, every)
    write_wav(tmp_path / "copy.wav", *read_sound(tmp_path / "every.wav"))
    np.testing.assert_array_equal(scipy.io.wavfile.read(tmp_path / "copy.wav")[1], every)
    scipy.io.wavfile.write(tmp_path / "two.wav", 8000, np.zeros((5, 2), np.int16))
    for name, said in {"two.wav": "has 2 channels, but one", "none.wav": "there is no file"}.items():
        check_refused(jaxrnn.InputError, said, read_sound, tmp_path / name)
    # A chunk of another program, as in files of floats by libsndfile, before the samples.
    scipy.io.wavfile.write(tmp_path / "float.wav", 8000, x)
    data = (tmp_path / "float.wav").read_bytes()
    start = data.index(b"data")
    (tmp_path / "peak.wav").write_bytes(data[:start] + b"PEAK" + (16).to_bytes(4, "little") + bytes(16) + data[start:])
    np.testing.assert_array_equal(read_sound(tmp_path / "peak.wav")[0], x)
    x[3] = np.nan
    for suffix, sample in (("wav", "nan"), ("w64", "-inf")):  # read by SciPy and by soundfile
        x[3] = float(sample)
        soundfile.write(tmp_path / f"odd.{suffix}", x, 8000, subtype="FLOAT")
        check_refused(jaxrnn.InputError, rf"odd.{suffix}: sample 3 is {sample}", read_sound, tmp_path / f"odd.{suffix}")
    x[3] = np.nan
    # A recording that was not ended, a file that was cut off, and a size of 64 bits that no memory holds.
    sizes = struct.pack("<IQQQI", 28, 2**50, 2**50, 2**49, 0)
    long = b"RF64" + b"\xff" * 4 + b"WAVEds64" + sizes + data[12:start] + b"data" + b"\xff" * 4
    for name, content in {"open.wav": data[:4] + bytes(4) + data[8:], "cut.wav": data[:24], "long.wav": long}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(jaxrnn.InputError, match=f"{name} cannot be read as WAV: a part of it is missing or wrong"):
            read_sound(tmp_path / name)
    for samples, rate, said in ((np.ones((3, 2)), 8000, "must have one axis, not 2"), (np.ones(3), 0.5, "not 0.5")):
        check_refused(jaxrnn.InputError, said, write_wav, tmp_path / "nan.wav", samples, rate)
    check_refused(jaxrnn.InputError, "cannot be read: it is a folder, not a regular file", read_sound, tmp_path)
    with pytest.raises(jaxrnn.InputError, match=r"nan.wav cannot hold the 1 samples that are NaN"):
        write_wav(tmp_path / "nan.wav", x, 8000)
    assert not (tmp_path / "nan.wav").exists()


OPTIONS = ("--stft", "256", "--hop", "128", "--window", "sqrt_hann", "--gives", "mask")


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """A noisy synthetic voice of a length that is no number of hops: the file, the samples, and the clean voice."""
    path = tmp_path_factory.mktemp("sound") / "noisy.wav"
    clean, samples = mixture(np.random.default_rng(5), 1.3, 0)
    write_wav(path, samples[:-33], 16_000)
    return path, read_sound(path)[0], clean[:-33]


def test_sound_that_a_wav_file_cannot_hold(noisy, tmp_path):
    """Loud samples are clipped, with a warning. A rate that is not whole is refused, and so is a short recording."""
    loud, out = tmp_path / "loud.npy", tmp_path / "out.wav"
    np.save(loud, 50 * noisy[1])
    given = (PACKAGED, *OPTIONS, "--input", f"samples={loud}", "-o", out)
    stderr = call("stream", *given, "--rate", 16_000).stderr
    clipped = int(np.count_nonzero(np.abs(read_sound(out)[0]) >= 32767 / 32768))
    assert f"{clipped:,} of {len(noisy[1]):,} samples exceed full scale and are clipped" in stderr
    out.unlink()
    said = call("stream", *given, "--rate", 8000.5, status=2).stderr
    assert "must be a whole number from 1 to 2**31 - 1, not 8000.5" in said
    np.save(loud, noisy[1][:128])
    said = call("stream", *given, "--rate", 16_000, "--padding", "reflect", status=2).stderr
    assert "a recording of 128 frames is too short" in said
    assert "needs 129 or more" in said
    assert not out.exists()
    compiled, model = tmp_path / "step.jaxrnn", jaxrnn.load(step_model(tmp_path / "step.onnx"))
    jaxrnn.save_compiled(model, compiled)
    assert "--stft needs the ONNX file" in call("stream", compiled, *given[1:], status=2).stderr


@pytest.mark.thorough
def test_commands(noisy, tmp_path):
    """`run`, `stream` and `export` give the sound of the denoiser of the package."""
    path, samples, clean = noisy
    expected = denoise_at_once(samples, jaxrnn.load(PACKAGED))
    given = (*OPTIONS, "--input", f"samples={path}", "--output")
    ran = call_json("run", PACKAGED, *given, tmp_path / "ran.npz")
    assert ran["sound"] == ["denoiser.onnx takes magnitudes as 'magnitude', and gives mask as 'mask'"]
    np.testing.assert_allclose(np.load(tmp_path / "ran.npz")["audio"], expected, atol=TOLERANCE)
    streamed = call_json("stream", PACKAGED, *given, tmp_path / "out.wav", "--verify")
    assert (streamed["pulse"], streamed["latency_ms"], streamed["verified"]) == (128, 16, True)
    found, rate = read_sound(tmp_path / "out.wav")
    assert rate == 16_000
    np.testing.assert_allclose(found, expected, atol=1 / 32768)
    assert si_sdr(found, clean) > si_sdr(samples, clean) + 2
    compiled, again = tmp_path / "compiled.jaxrnn", tmp_path / "again.wav"
    call("compile", PACKAGED, *OPTIONS, "-o", compiled)
    call("stream", compiled, "--input", f"samples={path}", "--output", again)  # at the rate of the WAV file
    found, rate = read_sound(again)
    assert rate == 16_000
    np.testing.assert_allclose(found, expected, atol=1 / 32768)
    step, flush = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    exported = call_json("export", PACKAGED, *OPTIONS, "-o", step, "--flush", flush, "--rate", "16000", "--verify")
    assert exported["verified"]
    assert exported["outputs"][0]["delay_ms"] == 8
    np.testing.assert_allclose(ExportedStream(step, flush).run({"samples": samples})["audio"], expected, atol=TOLERANCE)


@pytest.mark.thorough
def test_evaluate_command(noisy, tmp_path):
    _, samples, clean = noisy
    for name, sound in {"noisy": samples, "clean": clean}.items():
        (tmp_path / name).mkdir()
        write_wav(tmp_path / name / "a.wav", sound, 16_000)
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "corpus: {folder: noisy, reference: clean}\nmetrics: [si_sdr]\nout: out\n"
        f"system: {{stream: {{model: {PACKAGED}}}}}\n"
    )
    result = call_json("evaluate", settings, *OPTIONS)
    enhanced = denoise_at_once(samples, jaxrnn.load(PACKAGED))
    assert (
        abs(result["summary"]["si_sdr"]["mean"] - si_sdr(enhanced, read_sound(tmp_path / "clean" / "a.wav")[0])) < 1e-2
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--stft", "256"), "--stft needs --hop SAMPLES"),
        (("--gives", "mask"), "--gives needs --stft SAMPLES"),
        (("--stft", "256", "--hop", "100"), "a hop of 100 does not divide the 256 samples of a frame; the nearest"),
        (("--stft", "320", "--hop", "80"), "frequencies are those of frames of 256 samples"),
        (("--stft", "256", "--hop", "128"), "say which with --gives"),
        (
            (*OPTIONS, "--padding", "zeros", "--symbol", "time"),
            "also takes h: fix each with --static NAME=VALUE; if h is",
        ),
    ],
)
def test_mistakes_of_options(options, said, tmp_path):
    result = call("export", PACKAGED, *options, "-o", tmp_path / "out.onnx", status=2)
    assert said in " ".join(result.stderr.split())
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["dtln", "gtcrn"])
def test_real_networks(name, models, audio, tmp_path):
    """The offline pipelines of the authors: samples, SI-SDR, and the exported file in ONNX Runtime."""
    noisy, clean = (read_sound(audio / f"{part}_16k.wav")[0] for part in ("noisy", "clean"))
    reference = np.load(audio / f"{name}_reference_16k.npy")
    if name == "dtln":
        networks = [
            Network(jaxrnn.load(models / "dtln_1.onnx"), gives="mask"),
            Network(jaxrnn.load(models / "dtln_2.onnx")),
        ]
        built = Waveform(networks, Frames(512, 128, "boxcar", synthesis="sum"))
        # The output of the reference is late, and it ends with the last whole frame.
        expected, inner = np.roll(reference, -384), slice(0, 160_000)
    else:
        built = Waveform(
            Network(jaxrnn.load(models / "gtcrn.onnx"), gives="spectrum"), Frames(512, 256, "sqrt_hann", padding="none")
        )
        expected, inner = reference, slice(512, 160_000)
    offline = np.asarray(built({"samples": noisy})["audio"])
    np.testing.assert_allclose(offline[inner], expected[inner], atol=TOLERANCE)
    assert abs(si_sdr(offline[inner], clean[inner]) - si_sdr(expected[inner], clean[inner])) < 1e-3
    streamed = built.stream()
    assert latency(streamed, 16_000) == 32
    step, flush = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, built.params, step, flush=flush)
    part = noisy[:20_011]
    found = ExportedStream(step, flush).run({"samples": part})["audio"]
    np.testing.assert_allclose(found, built({"samples": part})["audio"], atol=TOLERANCE)


@needs("sherpa_onnx")
@pytest.mark.nightly
def test_the_denoisers_of_sherpa_onnx(models, tmp_path, monkeypatch):
    """The command of docs/deploying.md: live frames are causal, and frames of recordings are centred."""
    import sherpa_onnx

    page = (Path(__file__).parent.parent / "docs" / "deploying.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^jaxrnn (export gtcrn.onnx [^`]*)```", page, re.M)
    monkeypatch.chdir(tmp_path)
    Path("gtcrn.onnx").symlink_to(models / "gtcrn.onnx")
    call(*shlex.split(command.replace("\\\n", "")))
    live, whole = sherpa_onnx.OnlineSpeechDenoiserConfig(), sherpa_onnx.OfflineSpeechDenoiserConfig()
    for config in (live, whole):
        config.model.gtcrn.model = "gtcrn_sherpa.onnx"
    samples, hops = mixture(np.random.default_rng(3), 1.5, 0)[1][:20_000], 78 * 256
    denoiser, network = sherpa_onnx.OnlineSpeechDenoiser(live), Network(jaxrnn.load("gtcrn.onnx"), gives="spectrum")
    parts = [denoiser.run(each, 16_000).samples for each in np.array_split(samples, 37)]
    streamed = np.concatenate([*parts, denoiser.flush().samples])
    at_once = sherpa_onnx.OfflineSpeechDenoiser(whole).run(samples[:hops], 16_000).samples
    for padding, given, sound in (("causal", samples, streamed), ("reflect", samples[:hops], at_once)):
        enhance = Waveform(network, Frames(512, 256, "sqrt_hann", padding=padding))
        np.testing.assert_allclose(sound, enhance({"samples": given})["audio"], atol=1e-6)


@pytest.mark.thorough
def test_an_export_may_have_other_entries_of_state(models, tmp_path):
    """Layers that one equation computes have one state in the file, and several in JAX."""
    first, second = (jaxrnn.load(models / f"dtln_{number}.onnx") for number in (1, 2))
    frames = Frames(512, 128, "boxcar", synthesis="sum")
    built = Waveform([Network(first, gives="mask"), Network(second)], frames)
    stream = built.stream()
    written = jaxrnn.export_onnx(stream, built.params, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    assert len(written.step.facts.spec.state) < len(stream.spec.state)
    assert jaxrnn.export.verify_export(stream, built.params, tmp_path / "step.onnx").ok
