"""Modules of PyTorch and Keras: imported, trained and put back."""

import functools
import itertools
import os
import subprocess
import sys
import types
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn.verification.sampling import random_inputs

pytestmark = pytest.mark.thorough


def trained(model, seed=0):
    """Return parameters after a step along the gradient of all outputs, and the inputs of that step."""
    inputs = random_inputs(model, seed=seed).inputs

    def loss(params):
        outputs = model.apply(params, inputs)
        return sum(jnp.sum(jnp.sin(value)) for value in outputs.values() if jnp.issubdtype(value.dtype, jnp.floating))

    slopes = jax.grad(loss)(model.params)
    largest = max(float(jnp.abs(slope).max()) for slope in slopes.values())
    assert largest > 0
    new = {name: model.params[name] + 0.02 * slope / largest for name, slope in slopes.items()}
    # Variances stay positive.
    return {name: array if "var" in name else new[name] for name, array in model.params.items()}, inputs


def check_equal(model, params, outputs, inputs):
    ours = model.apply(params, inputs)
    for info, theirs in zip(model.outputs, outputs, strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        assert np.abs(np.asarray(ours[info.name]) - theirs).max() < 1e-6 * scale


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'torch' onnxscript")


def torch_modules(torch):
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self, run, **parts):
            super().__init__()
            self.run = run
            for name, part in parts.items():
                self.add_module(name, part)

        def forward(self, x):
            return self.run(self, x)

    def banded(net, x):
        frames = torch.arange(x.shape[1])
        mask = (frames[None] > frames[:, None]) | (frames[None] < frames[:, None] - 6)
        return net.block(net.attention(x, x, x, attn_mask=mask, need_weights=False)[0], src_mask=mask)

    window = torch.hann_window(16)

    def transform(x):
        return torch.stft(x, 16, 4, 16, window, pad_mode="constant", return_complex=True)

    def masked(net, x):
        """A complex mask of the STFT, with the phase of a sum, as vocoders and complex masks write these."""
        spectrum = transform(x).transpose(1, 2)
        parts = net.mask(torch.view_as_real(spectrum).flatten(2)).unflatten(2, (9, 2))
        mask = torch.view_as_complex(parts) * torch.polar(spectrum.abs().square() + 1, parts.sum(3))
        return (mask / (2 + 1j) + 0.5 * torch.exp(1j * parts[..., 0])).transpose(1, 2)

    norms = torch.nn.utils.parametrizations
    return {
        "gru": (
            Net(lambda net, x: net.head(net.rnn(x)[0]), rnn=nn.GRU(8, 6, 2, batch_first=True), head=nn.Linear(6, 3)),
            1,
        ),
        "bidirectional": (
            Net(lambda net, x: net.rnn(x), rnn=nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)),
            1,
        ),
        "projections": (Net(lambda net, x: net.rnn(x), rnn=nn.LSTM(8, 6, 2, bidirectional=True, proj_size=4)), 0),
        "relu": (Net(lambda net, x: net.rnn(x)[0], rnn=nn.RNN(8, 6, nonlinearity="relu", bias=False)), 0),
        "convolutions": (
            Net(
                lambda net, x: net.up(net.act(net.group(net.conv(nn.functional.pad(x, (4, 0)))))),
                conv=norms.weight_norm(nn.Conv1d(8, 6, 5, groups=2)),
                group=nn.GroupNorm(2, 6),
                act=nn.PReLU(6),
                up=norms.weight_norm(nn.ConvTranspose1d(6, 4, 4, stride=2)),
            ),
            2,
        ),
        "normalisations": (
            Net(
                lambda net, x: net.layer(net.batch(net.conv(x)).transpose(1, 2)),
                conv=nn.Conv1d(8, 6, 3, padding=1),
                batch=nn.BatchNorm1d(6),
                layer=nn.LayerNorm(6),
            ),
            2,
        ),
        "spectra": (
            Net(
                lambda net, x: torch.istft(transform(x) * masked(net, x), 16, 4, 16, window, length=x.shape[1]),
                mask=nn.Linear(18, 18),
            ),
            1,
        ),
        "attention": (
            Net(
                banded,
                attention=nn.MultiheadAttention(8, 2, batch_first=True),
                block=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            ),
            1,
        ),
    }


NAMES = ("gru", "bidirectional", "projections", "relu", "convolutions", "normalisations", "spectra", "attention")


@pytest.mark.parametrize("name", of_tiers(NAMES, [], ["bidirectional", "convolutions", "spectra", "attention"]))
def test_torch_round_trip(torch, name):
    """All weights are parameters under their names; trained parameters in the module give the same outputs."""
    torch.manual_seed(0)
    module, time = torch_modules(torch)[name]
    shape = (2, 64) if name == "spectra" else {0: (20, 2, 8), 1: (2, 20, 8), 2: (2, 8, 20)}[time]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    model = jaxrnn.from_torch(module, torch.randn(shape), time=time)
    floats = {key for key, value in before.items() if value.is_floating_point()}
    assert set(model.params) == floats
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert module.training
    params, inputs = trained(model)
    jaxrnn.to_torch(params, module, model=model)
    result = module.eval()(torch.from_numpy(np.array(inputs["x"])))
    leaves = jax.tree.leaves(jax.tree.map(lambda value: value.detach().numpy(), result))
    check_equal(model, params, leaves, inputs)


def test_torch_states_and_names(torch):
    """States of `forward` are states of the model, a dict names the outputs, and shared weights are one parameter."""

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(11, 8)
            self.lstm = torch.nn.LSTM(8, 8, 2, batch_first=True)
            self.head = torch.nn.Linear(8, 11)
            self.head.weight = self.table.weight

        def forward(self, ids, h, c):
            y, (h_next, c_next) = self.lstm(self.table(ids), (h, c))
            return {"logits": self.head(y), "h_next": h_next, "c_next": c_next}

    tagger = Tagger()
    example = torch.randint(0, 11, (3, 9)), torch.zeros(2, 3, 8), torch.zeros(2, 3, 8)
    model = jaxrnn.from_torch(tagger, example, time=1)
    assert str(model.inputs[0]) == "ids: int64[batch, time]"
    assert [(each.input, each.output) for each in model.state] == [("h", "h_next"), ("c", "c_next")]
    assert "table.weight" in model.params
    assert "head.weight" not in model.params
    params, _ = trained(model)
    jaxrnn.to_torch(params, tagger, model=model)
    assert np.array_equal(tagger.head.weight.detach().numpy(), params["table.weight"])


def test_torch_inputs_at_two_rates(torch):
    """Inputs at related rates, given by name, stream together."""

    class Up(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.mix = torch.nn.ConvTranspose1d(4, 4, 4, stride=4), torch.nn.Conv1d(4, 2, 1)

        def forward(self, slow, fast):
            return self.mix(self.up(slow) + fast)

    example = {"slow": torch.randn(2, 4, 5), "fast": torch.randn(2, 4, 20)}
    module = Up()
    model = jaxrnn.from_torch(module, dict(reversed(example.items())), time={"slow": (2, "T"), "fast": (2, "4*T")})
    jaxrnn.to_torch(trained(model)[0], module, model=model)  # by name, in any order
    inputs = random_inputs(model, dims={"T": 7, "batch": 1}).inputs
    whole = model(inputs)["output"]
    assert np.abs(model.stream("T").run(model.params, inputs)["output"] - whole).max() < 1e-6


def test_torch_arguments_without_names(torch):
    """A module with `*arguments` in `forward`, and a function that only the newer exporter writes."""

    class Slopes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, *xs):
            return self.scale * torch.diff(xs[0] + xs[1], dim=1)

    module, xs = Slopes(), (torch.randn(2, 9, 4), torch.randn(2, 9, 4))
    model = jaxrnn.from_torch(module, xs, time={"input_0": 1, "input_1": 1})
    assert [str(each) for each in model.params] == ["scale"]
    assert model.stream().delay == {"output": 1}


def test_torch_windows_from_one_recording(torch, capfd):
    """An operator that only the newer exporter writes, and an example of one recording, whose batch it fixes."""

    class Filter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.taps = torch.nn.Linear(6, 3 * 6)

        def forward(self, x):
            taps = self.taps(x).reshape(x.shape[0], x.shape[1], 6, 3)
            return (taps * torch.ops.aten.unfold(torch.nn.functional.pad(x, (0, 0, 2, 0)), 1, 3, 1)).sum(3)

    module, x = Filter(), torch.randn(1, 9, 6)
    model = jaxrnn.from_torch(module, x, time=1)
    assert [size for size in model.inputs[0].shape if isinstance(size, str)] == ["batch", "time"]
    streamed = model.stream()
    assert streamed.delay == {"output": 0}
    whole = module(x).detach().numpy()
    assert np.abs(streamed.run(model.params, {"x": x.numpy()})["output"] - whole).max() < 1e-6
    with pytest.raises(jaxrnn.ModelError, match=r"script: .*operator Unfold, input size not accessible") as error:
        jaxrnn.from_torch(module, x, time=1, exporter="script")
    assert "Caused by" not in str(error.value)
    assert "graph" not in capfd.readouterr().out


def test_torch_loops_in_python(torch):
    """A loop over the frames stays a loop, if TorchScript compiles the part around it; the module is unchanged."""

    class Leaky(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = torch.nn.Linear(4, 4)

        def forward(self, x):
            h, outputs = x[:, 0] * 0, []
            for index in range(x.shape[1]):
                h = torch.sigmoid(self.rate(h)) * h + x[:, index]
                outputs.append(h)
            return torch.stack(outputs, 1)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = torch.nn.Sequential(torch.nn.Linear(4, 4), Leaky()), torch.nn.Linear(4, 3)

        def forward(self, x, **options):
            return (lambda y: self.out(y))(self.inner(x))

    module, x = Outer(), torch.randn(2, 9, 4)
    before = all_of(module)
    model = jaxrnn.from_torch(module, x, time=1)
    assert all_of(module) == before
    assert set(model.params) == set(module.state_dict())
    streamed = model.stream()
    assert streamed.delay == {"output": 0}
    assert (
        np.abs(streamed.run(model.params, {"x": x[:1].numpy()})["output"] - module(x[:1]).detach().numpy()).max() < 1e-6
    )


def test_torch_windows_that_overlap(torch):
    """`fold` to an open size, after the logarithm of a filter bank, whose weights must be positive."""

    class Windows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("bank", torch.rand(6, 6))

        def forward(self, x):
            windows = torch.nn.functional.unfold(x[..., None], (3, 1), padding=(1, 0), stride=(2, 1))
            levels = torch.log(torch.matmul(self.bank, windows.square()) + 1e-3)
            size = (x.shape[2], 1)
            return torch.nn.functional.fold(levels, size, (3, 1), padding=(1, 0), stride=(2, 1))[..., 0]

    model = jaxrnn.from_torch(Windows(), torch.randn(3, 2, 21), time=2, exporter="script")
    assert set(model.params) == {"bank"}


def test_torch_logarithms_of_running_sums(torch):
    """`logcumsumexp`, with which minimal GRUs are trained, stays a loop, also for minus infinity and large numbers."""

    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor([0.5, 1.5, 1.0]))

        def forward(self, x):
            return (self.scale * x).logcumsumexp(dim=1)

    module = Sums()
    model = jaxrnn.from_torch(module, torch.randn(2, 8, 3), time=1, exporter="script")
    x = torch.randn(1, 30, 3)
    x[:, :4, 0], x[:, 5, 1], x[:, 9, 2], x[:, 12, 2] = -np.inf, np.inf, 500.0, 490.0
    whole = module(x).detach().numpy()
    assert np.isneginf(whole[:, :4, 0]).all()
    assert np.isposinf(whole[:, 5:, 1]).all()
    for found in (model(x=x.numpy()), model.stream().run(model.params, {"x": x.numpy()})):
        np.testing.assert_allclose(found["output"], whole, rtol=1e-5, atol=1e-5)


def test_torch_groups_that_a_shape_counts(torch):
    """`group_norm` with the heads of the input as groups, as in xLSTM."""

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(8))

        def forward(self, x):
            batch, time, heads, size = x.shape
            rows = x.reshape(batch * time, heads * size)
            return torch.nn.functional.group_norm(rows, num_groups=heads, weight=self.weight).view(x.shape)

    module, x = Heads(), torch.randn(2, 7, 2, 4)
    model = jaxrnn.from_torch(module, x, time=1, exporter="script")
    assert set(model.params) == {"weight"}
    found = model.stream().run(model.params, {"x": x[:1].numpy()})["output"]
    assert np.abs(found - module(x[:1]).detach().numpy()).max() < 1e-5


def test_torch_problems(torch):
    """A loop over the frames of the example, bad axes and bad arguments are named; the module stays as it was."""

    class Frames(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.GRUCell(4, 5)

        def forward(self, x):
            h, y = x.new_zeros(x.shape[0], 5), x.new_zeros(x.shape[0], x.shape[1], 5)
            for index in range(x.shape[1]):
                h = self.cell(x[:, index], h)
                y[:, index, :4] = h[:, :4]
            return y

    module, x = Frames(), torch.randn(2, 6, 4)
    with pytest.raises(
        jaxrnn.ModelError, match=r"script: with .*PyTorch runs and the file fails(.|\n)*dynamo: "
    ) as error:
        jaxrnn.from_torch(module, x, time=1)
    assert "collected in a list, `outputs.append(y)`" in str(error.value)
    assert module.training

    class Singular(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.svd(x)[0]

    with pytest.raises(jaxrnn.ModelError, match=r"linalg_svd' to ONNX.*\ndynamo: .*No ONNX function found") as error:
        jaxrnn.from_torch(Singular(), torch.randn(4, 4))
    assert "\x1b" not in str(error.value)
    assert len(str(error.value).splitlines()) == 3

    class Phases(torch.nn.Module):
        def forward(self, x):
            return torch.stft(x, 8, window=torch.ones(8), return_complex=True).log10()

    words = "script: the function 'log10' of complex numbers has no real form"
    check_refused(
        (jaxrnn.ModelError, jaxrnn.InputError), words, jaxrnn.from_torch, Phases(), torch.randn(2, 64), time=1
    )
    cases = [
        ({"time": 3}, "has no axis 3"),
        ({"time": "time"}, "has no axis time"),
        ({"time": {"y": 1}}, "there is no input 'y'; the inputs are: x"),
        ({"time": 1, "batch": 1}, "cannot be both"),
        ({"outputs": ["a", "b"]}, "outputs must be 1 names"),
        ({"exporter": "both"}, "exporter must be"),
    ]
    for options, message in cases:
        check_refused(jaxrnn.InputError, message, jaxrnn.from_torch, module, x, **options)
    check_refused(jaxrnn.InputError, r"expected a torch\.nn\.Module, not function", jaxrnn.from_torch, lambda x: x, x)
    check_refused(jaxrnn.InputError, "example must be", jaxrnn.from_torch, module, 3)

    class Counted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), x.shape[1]

    check_refused(jaxrnn.InputError, "returns a value of type int", jaxrnn.from_torch, Counted(4, 4), x, time=1)
    square = torch.zeros(2, 2, 4), torch.zeros(2, 2, 4)
    check_refused(jaxrnn.InputError, "2 axes of size 2", jaxrnn.from_torch, torch.nn.Bilinear(4, 4, 2), square)


def test_torch_functions_of_weights(torch):
    """A function of a weight stays a function; a weight that is read outside of the graph is refused by name."""

    class Scale(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function, self.w = function, torch.nn.Parameter(torch.tensor([-0.2, 0.3, 1.5]))

        def forward(self, x):
            return x * self.function(self.w)

    x, ones = torch.randn(2, 5, 3), {"x": np.ones((1, 1, 3), np.float32)}
    minimum = torch.ones(())
    functions = torch.relu, torch.abs, lambda w: w.clip(0, 1), lambda w: torch.minimum(w, minimum)
    for function, (_, values) in zip(functions, FUNCTIONS.values(), strict=True):
        module = Scale(function)
        model = jaxrnn.from_torch(module, x, time=1, exporter="script")
        assert np.allclose(model(ones)["output"].ravel(), values, atol=1e-6)
        slope = jax.grad(lambda params, model=model: model.apply(params, ones)["output"].sum())(model.params)["w"]
        assert np.array_equal(slope, torch.autograd.grad(function(module.w).sum(), module.w)[0])
    for function, names in ((lambda w: w.data, {"w"}), (lambda w: w[0].item(), set())):  # a weight, and a constant
        module = Scale(function)
        model = jaxrnn.from_torch(module, x, time=1, exporter="script", constants=["w"])
        assert set(model.params) == names
        assert np.abs(model({"x": x.numpy()})["output"] - module(x).detach().numpy()).max() < 1e-6
    for function in (lambda w: w if w.sum() > 0 else 2 * w, lambda w: w + w.tolist()[1]):
        words = "not for other values of 'w'"
        check_refused(jaxrnn.ModelError, words, jaxrnn.from_torch, Scale(function), x, time=1, exporter="script")


def all_of(module):
    """Return all that a call could change in a module: attributes, their contents, tensors, modes and hooks."""
    parts = {name: dict(vars(part)) for name, part in module.named_modules()}
    contents = [list(value) for part in parts.values() for value in part.values() if isinstance(value, (dict, list))]
    tensors = [
        (id(tensor), tensor.data_ptr(), tensor.requires_grad, tensor.tolist())
        for tensor in module.state_dict(keep_vars=True).values()
    ]
    return {name: {key: id(value) for key, value in part.items()} for name, part in parts.items()}, contents, tensors


def test_torch_modules_are_unchanged(torch):
    """A module keeps its attributes, tensors and modes, whatever `forward` changes and wherever an error occurs."""

    class Busy(torch.nn.Module):
        def __init__(self, carries=False, fails=None):
            super().__init__()
            self.gru, self.norm = torch.nn.GRU(4, 4, batch_first=True), torch.nn.BatchNorm1d(4)
            self.register_buffer("count", torch.zeros(()))
            self.carries, self.fails, self.h, self.calls, self.cache = carries, fails, None, [], {}
            self.ticks = itertools.count(1)  # an iterator cannot be put back
            self.norm.eval()
            self.gru.weight_ih_l0.requires_grad_(False)

        def forward(self, x):
            self.calls.append(x.shape)
            self.cache["frames"], self.new = x.shape[1], True
            self.count.add_(1)
            if next(self.ticks) == self.fails:
                raise KeyboardInterrupt("stopped")
            y, h = self.gru(x, self.h)
            self.h = h if self.carries else None
            torch.rand(1)
            x.mul_(2)
            return self.norm(y.transpose(1, 2))

    x = torch.randn(2, 6, 4)
    for options, error in (({}, None), ({"carries": True}, jaxrnn.InputError), ({"fails": 12}, KeyboardInterrupt)):
        module, given = Busy(**options), x.clone()
        before, random = all_of(module), torch.random.get_rng_state()
        if error is None:
            model = jaxrnn.from_torch(module, given, time=1)
            jaxrnn.to_torch(model.params, module, model=model)
        else:
            words = "keeps a state in .*h" if options.get("carries") else "stopped"
            check_refused(error, words, jaxrnn.from_torch, module, given, time=1)
        assert all_of(module) == before
        assert torch.equal(given, x)
        assert torch.equal(random, torch.random.get_rng_state())


def table(torch, frames):
    """Positions as sines, which a module would compute once for many calls."""
    return torch.sin(torch.arange(frames)[:, None] * torch.arange(1, 5))


POSITIONS = {}


def caching_modules(torch):
    """Return modules that keep a table of positions, and fill it where a recording is longer than the table."""

    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate, self.helper, self.count = torch.nn.Linear(4, 4), types.SimpleNamespace(known={}), 0
            self.register_buffer("rows", torch.zeros(6000, 4), persistent=False)
            self.register_buffer("grown", None, persistent=False)

        def forward(self, x):
            return self.rate(x) + self.positions(x.shape[1])

    class InPlace(Positions):
        def positions(self, frames):
            if frames > self.count:
                self.rows[:frames], self.count = table(torch, frames), frames
            return self.rows[:frames]

    class Replaced(Positions):
        def positions(self, frames):
            if self.grown is None or self.grown.shape[0] < frames:
                self.register_buffer("grown", table(torch, frames), persistent=False)
            return self.grown[:frames]

    def in_dict(known, frames):
        if "table" not in known or known["table"].shape[0] < frames:
            known["table"] = table(torch, frames)
        return known["table"][:frames]

    class InHelper(Positions):
        def positions(self, frames):
            return in_dict(self.helper.known, frames)

    class InGlobal(Positions):
        def positions(self, frames):
            return in_dict(POSITIONS, frames)

    @functools.cache
    def cached(frames):
        return table(torch, frames)

    class Cached(Positions):
        def positions(self, frames):
            return cached(frames)

    return {"in place": InPlace, "replaced": Replaced, "helper": InHelper, "global": InGlobal, "cached": Cached}


@pytest.mark.parametrize("name", ["in place", "replaced", "helper", "global", "cached"])
def test_torch_caches(torch, name):
    """A cache that a module fills is no constant of the file, and is as before; what earlier calls filled is named."""
    module, other = (caching_modules(torch)[name]().eval() for _ in range(2))
    before, POSITIONS["left"] = all_of(module), None
    model = jaxrnn.from_torch(module, torch.randn(2, 12, 4), time=1)
    assert all_of(module) == before
    assert [*POSITIONS] == ["left"]
    for frames in (12, 25, 61, 205, 5000):
        x = torch.randn(1, frames, 4)
        assert np.abs(model({"x": x.numpy()})["output"] - module(x).detach().numpy()).max() < 1e-3
    POSITIONS.clear()
    other(torch.randn(1, 700, 4))  # as in training
    if name == "in place":
        words = "time=701(.|\n)*'rows', 'count' in a call"
        check_refused(jaxrnn.ModelError, words, jaxrnn.from_torch, other, torch.randn(2, 12, 4), time=1)
    elif name != "cached":  # the table of the file is too short, so the file says so
        parts = {"replaced": "'grown'", "helper": r"'helper\.known\.table'", "global": r"'.*POSITIONS\.table'"}
        with pytest.warns(UserWarning, match=rf"the file fails, with time=(701|4096)(.|\n)*{parts[name]}"):
            jaxrnn.from_torch(other, torch.randn(2, 12, 4), time=1)
    POSITIONS.clear()


def test_torch_weights_that_differ(torch):
    """Weights of another model are refused, and the module keeps its own."""
    model = jaxrnn.from_torch(torch.nn.Conv1d(4, 4, 3), torch.randn(2, 4, 9), time=2)
    other = torch.nn.Conv1d(4, 4, 3, padding=1, padding_mode="replicate")
    before = other.weight.detach().clone()
    with pytest.raises(jaxrnn.ModelError, match="PyTorch with these weights differs from the model: output 'output'"):
        jaxrnn.to_torch(model.params, other, model=model)
    assert torch.equal(other.weight, before)
    check_refused(jaxrnn.InputError, "has shape", jaxrnn.to_torch, model.params, torch.nn.Conv1d(4, 4, 5))


@pytest.fixture(scope="module")
def keras():
    for package in ("keras", "tensorflow", "tf2onnx"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install keras tensorflow tf2onnx")
    import keras

    if keras.config.backend() != "tensorflow":
        pytest.skip("Keras has another backend than TensorFlow")
    return keras


KERAS = {
    "gru": lambda L, x: L.Dense(3)(L.GRU(6, return_sequences=True)(x)),
    "gru_before": lambda L, x: L.GRU(6, return_sequences=True, reset_after=False)(x),
    "lstm": lambda L, x: L.Dense(3)(L.LSTM(6, return_sequences=True)(x)),
    "bidirectional": lambda L, x: L.Bidirectional(L.LSTM(6, return_sequences=True))(x),
    "simple": lambda L, x: L.SimpleRNN(6)(x),
    "convolutions": lambda L, x: L.SeparableConv1D(5, 3, padding="same")(L.Conv1D(6, 3, padding="causal")(x)),
    "negated": lambda L, x: L.PReLU(shared_axes=[1])(L.Conv1DTranspose(5, 4, strides=4, padding="same")(x)),
    "normalisations": lambda L, x: L.LayerNormalization()(L.Dense(4, activation="gelu")(L.BatchNormalization()(x))),
    "folded": lambda L, x: L.BatchNormalization()(
        L.GRU(4)(L.BatchNormalization()(L.Conv1D(6, 3, padding="causal")(x)))
    ),
    "attention": lambda L, x: L.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True),
    "distributed": lambda L, x: L.TimeDistributed(L.Dense(3))(
        L.TimeDistributed(L.Flatten())(L.TimeDistributed(L.Conv2D(3, 2))(L.Reshape((-1, 2, 2, 2))(x)))
    ),
    "blocks": lambda L, x: L.Conv1D(4, 3, groups=4, padding="causal")(
        L.Conv1D(8, 3, groups=2, dilation_rate=2, padding="same")(x)
    ),
    "counted": lambda L, x: L.Attention(use_scale=True, name="attention")([x, x], use_causal_mask=True),
    "loops": lambda L, x: loops()(L.BatchNormalization()(x)),
}


def loops():
    """Return a layer of recurrences as people write these: without an initializer, and by the number of a frame."""
    import keras
    import tensorflow as tf

    class Loops(keras.layers.Layer):
        def build(self, shape):
            self.decay = self.add_weight(shape=(shape[-1],), name="decay")

        def call(self, x):
            frames = tf.transpose(x, [1, 0, 2])
            first = tf.scan(lambda h, frame: self.decay * h + frame, frames)
            _, second = keras.ops.scan(lambda h, frame: (h * self.decay + frame,) * 2, tf.ones_like(frames[0]), frames)

            def body(t, h, outputs):
                h = self.decay * h + first[t] + x[:, t]
                return t + 1, h, outputs.write(t, h)

            count, start = tf.shape(x)[1], tf.zeros_like(x[:, 0])
            outputs = tf.TensorArray(tf.float32, count)
            *_, outputs = tf.while_loop(lambda t, *_: t < count, body, (0, start, outputs))
            return tf.transpose(outputs.stack() + second, [1, 0, 2])

        def compute_output_shape(self, shape):
            return shape

    return Loops(name="loops")


def keras_model(keras, build, shape=(None, 8), **options):
    """Return a network with random weights and statistics, as after training."""
    keras.utils.set_random_seed(0)
    x = keras.Input(shape, name="x", **options)
    network, rng = keras.Model(x, build(keras.layers, x)), np.random.default_rng(0)
    for weight in network.weights:
        if "seed" not in weight.path:
            weight.assign(rng.uniform(0.1 if "variance" in weight.path else -0.5, 0.5, weight.shape))
    return network


@pytest.mark.parametrize("name", of_tiers(KERAS, [], ["gru", "negated"]))
def test_keras_round_trip(keras, name):
    """All weights are parameters by path; trained parameters in Keras give the same outputs."""
    network = keras_model(keras, KERAS[name])
    before = [weight.numpy() for weight in network.weights]
    model = jaxrnn.from_keras(network)
    assert all(np.array_equal(old, weight.numpy()) for old, weight in zip(before, network.weights, strict=True))
    assert set(model.params) == {weight.path for weight in network.weights}
    assert str(model.inputs[0]) == "x: float32[batch, time, 8]"
    params, inputs = trained(model)
    jaxrnn.to_keras(params, network, model=model)
    check_equal(model, params, [network(np.array(inputs["x"]), training=False).numpy()], inputs)


def test_keras_states_and_streams(keras):
    """A state among the inputs is a state of the model; a model with named outputs streams."""
    x, h = keras.Input((None, 8), name="x"), keras.Input((6,), name="h")
    y, last = keras.layers.GRU(6, return_sequences=True, return_state=True)(x, initial_state=h)
    steps = jaxrnn.from_keras(keras.Model([x, h], [keras.layers.Dense(2, name="out")(y), last]))
    assert [each.input for each in steps.state] == ["h"]
    x = keras.Input((None, 4), name="x")
    y, h = keras.layers.GRU(3, return_sequences=True, return_state=True)(x)
    named = jaxrnn.from_keras(keras.Model(x, {"y": y, "h": h, "a": keras.layers.Dense(2)(y)}))
    inputs = random_inputs(named).inputs
    streamed = named.stream("time").run(named.params, inputs)
    assert [*map(str, (each.name for each in named.outputs))] == [*named(inputs)] == [*streamed] == ["y", "h", "a"]
    assert all(np.abs(streamed[name] - value).max() < 1e-6 for name, value in named(inputs).items())
    model = jaxrnn.from_keras(keras_model(keras, KERAS["counted"]))
    assert model.stream("time", past=4).delay == {"attention": 0}


@pytest.mark.parametrize("name", of_tiers(["gru", "distributed", "blocks", "loops"], [], ["loops"]))
def test_keras_streams(keras, name):
    """A model of a whole recording streams."""
    model = jaxrnn.from_keras(keras_model(keras, KERAS[name]))
    inputs = random_inputs(model).inputs
    whole = model(inputs)
    streamed = model.stream("time", pulse=1).run(model.params, inputs)
    assert all(np.abs(streamed[name] - value).max() < 1e-6 for name, value in whole.items())


def test_keras_examples(keras):
    """Examples relate inputs at several rates; a network with long windows takes longer random examples by itself."""
    slow, fast = keras.Input((None, 4), name="slow"), keras.Input((None, 4), name="fast")
    rates = keras.Model([slow, fast], keras.layers.Concatenate()([keras.layers.UpSampling1D(4)(slow), fast]))
    check_refused(jaxrnn.InputError, r"does not run on slow\[2, 12, 4\], .*`example=`", jaxrnn.from_keras, rates)
    example = {"fast": np.ones((2, 20, 4)), "slow": np.ones((2, 5, 4))}
    model = jaxrnn.from_keras(rates, example=example)
    assert [str(each) for each in model.inputs] == ["slow: float32[batch, time, 4]", "fast: float32[batch, 4*time, 4]"]
    check_refused(jaxrnn.InputError, "an array for each input: slow, fast", jaxrnn.from_keras, rates, example=[1])
    wrong = [np.ones((2, 5, 4)), np.ones((2, 20, 3))]
    check_refused(jaxrnn.InputError, r"'fast' is float64\[2, 20, 3\]", jaxrnn.from_keras, rates, example=wrong)

    def waveform(layers, x):
        return layers.BatchNormalization(name="y")(layers.Conv1D(4, 64, strides=32)(x))

    wave = jaxrnn.from_keras(keras_model(keras, waveform, (None, 1)))
    sound = np.random.default_rng(0).standard_normal((1, 320, 1)).astype(np.float32)
    streamed = wave.stream("time", pulse=32).run(wave.params, {"x": sound})
    assert np.abs(streamed["y"] - wave({"x": sound})["y"]).max() < 1e-6


@pytest.mark.parametrize("policy", of_tiers(["mixed_float16", "mixed_bfloat16"], [], ["mixed_float16"]))
def test_keras_precision(keras, policy):
    """Layers in a narrow type agree within its rounding."""

    def build(L, x):
        return L.Dense(2, dtype="float32")(L.GRU(3, return_sequences=True)(L.BatchNormalization()(L.Dense(4)(x))))

    keras.mixed_precision.set_global_policy(policy)
    try:
        network = keras_model(keras, build)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    model = jaxrnn.from_keras(network)
    assert set(model.params) == {weight.path for weight in network.weights}
    assert {tensor.dtype.name for tensor in model.params.values()} == {"float32"}


def test_keras_statistics(keras):
    """The statistics of a `Normalization` are constants of the file."""
    layer, data = keras.layers.Normalization(), 3 * np.random.default_rng(0).standard_normal((5, 12, 8)) + 1
    layer.adapt(data.astype(np.float32))
    network = keras_model(keras, lambda L, x: L.Dense(3, name="y")(layer(x)))
    model, x = jaxrnn.from_keras(network), data.astype(np.float32)
    assert np.abs(model({"x": x})["y"] - network(x)).max() < 1e-5
    assert set(model.params) == {weight.path for weight in network.layers[-1].weights}


def spectra(keras, x):
    """Return sound from transforms and complex numbers, as Keras and TensorFlow write these."""
    import tensorflow as tf

    real, imag = keras.ops.stft(x, 16, 4, 16)
    power = real * real + imag * imag
    cleaned = keras.ops.istft((real * power, imag * power), 16, 4, 16)[:, : x.shape[1]]
    frames = tf.signal.frame(cleaned, 12, 4)
    one = tf.signal.rfft(frames) * (0.5 - 0.3j) + tf.complex(1.0, 2.0)
    other = tf.math.conj(one[..., ::-1]) / tf.cast(1.5 + tf.abs(one), tf.complex64)
    return tf.concat([tf.signal.irfft(one - other / one, [12]), tf.math.real(other), tf.math.imag(one)], -1)


@pytest.mark.thorough
def test_keras_transforms(keras):
    """Fourier transforms and complex numbers are written with real numbers; a parallel scan is a loop over frames."""
    import tensorflow as tf

    x = np.random.default_rng(0).standard_normal((2, 120)).astype(np.float32)
    network = keras_model(keras, lambda L, x: L.Lambda(lambda x: spectra(keras, x), (None, 26))(x), (None,))
    model = jaxrnn.from_keras(network, example=x)
    assert np.allclose(model({"x": x})["lambda"], network(x), rtol=1e-4, atol=1e-4)

    def scanned(x):
        pairs = tf.ones_like(x) * tf.constant([0.5, -0.9, 1.0]), x

        def combine(one, other):
            return one[0] * other[0], one[1] * other[0] + other[1]

        return keras.ops.associative_scan(combine, pairs, axis=1)[1]

    network = keras_model(keras, lambda L, x: L.Lambda(scanned, (None, 3), name="y")(x), (None, 3))
    model, x = jaxrnn.from_keras(network), np.random.default_rng(0).standard_normal((1, 11, 3)).astype(np.float32)
    streamed = model.stream("time")
    assert streamed.delay == {"y": 0}
    assert np.abs(streamed.run(model.params, {"x": x})["y"] - network(x)).max() < 1e-5


def test_keras_on_jax():
    """With Keras' backend JAX, a network is a JAX function: the example streams it, and `from_keras` points there."""
    pytest.importorskip("keras", reason="keras is not installed: pip install keras")
    root = Path(__file__).parent.parent
    example, environment = root / "examples/stream_keras_model.py", {"KERAS_BACKEND": "jax", "PYTHONPATH": str(root)}
    environment = {**os.environ, **environment}
    result = subprocess.run([sys.executable, example], env=environment, capture_output=True, text=True, check=False)
    assert "same outputs as Keras" in result.stdout, result.stderr
    code = "import keras, jaxrnn\nx = keras.Input((None, 3))\njaxrnn.from_keras(keras.Model(x, keras.layers.GRU(2)(x)))"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "InputError: from_keras exports with Keras' backend TensorFlow" in result.stderr
    assert "stateless_call" in result.stderr


#: Functions of a weight that an exporter could fold, because their argument is a constant.
FUNCTIONS = {
    "relu": (lambda ops, w: ops.relu(w), [0, 0.3, 1.5]),
    "abs": (lambda ops, w: ops.absolute(w), [0.2, 0.3, 1.5]),
    "clip": (lambda ops, w: ops.clip(w, 0, 1), [0, 0.3, 1]),
    "minimum": (lambda ops, w: ops.minimum(w, 1.0), [-0.2, 0.3, 1]),
}


def test_keras_functions_of_weights(keras):
    """A function of a weight stays a function: values, gradients, and values of other weights."""

    class Scale(keras.layers.Layer):
        def build(self, shape):
            for name in FUNCTIONS:
                setattr(self, name, self.add_weight(shape=(3,), name=name))

        def call(self, x):
            parts = [x * function(keras.ops, getattr(self, name)) for name, (function, _) in FUNCTIONS.items()]
            return keras.ops.concatenate(parts, axis=-1)

    network = keras_model(keras, lambda L, x: Scale(name="scale")(x), (None, 3))
    for weight in network.weights:
        weight.assign([-0.2, 0.3, 1.5])
    model = jaxrnn.from_keras(network)
    ones = {"x": np.ones((1, 1, 3), np.float32)}
    expected = [value for _, values in FUNCTIONS.values() for value in values]
    assert np.allclose(model(ones)["scale"].ravel(), expected, atol=1e-6)
    slopes = jax.grad(lambda params: model.apply(params, ones)["scale"].sum())(model.params)
    slopes = {name.partition("/")[2]: list(map(float, slope)) for name, slope in slopes.items()}
    assert slopes == {"relu": [0, 1, 1], "abs": [-1, 1, 1], "clip": [0, 1, 0], "minimum": [1, 1, 0]}
    jaxrnn.to_keras({name: -array for name, array in model.params.items()}, network, model=model)


@pytest.mark.parametrize(("batch", "frames"), of_tiers([(2, None), (1, None), (2, 4), (1, 1)], [], [(1, None), (2, 4)]))
def test_keras_stateful_layers(keras, batch, frames):
    """States of layers with ``stateful=True`` are states of the model, and the states of the network do not change."""

    def build(layers, x):
        options = {"return_sequences": True, "stateful": True}
        y = layers.LSTM(4, dropout=0.5, recurrent_dropout=0.5, name="lstm", **options)(x)
        return layers.Dense(2, name="y")(layers.GRU(3, name="gru", **options)(y))

    network = keras_model(keras, build, (frames, 3), batch_size=batch)
    own = [state for layer in network.layers for state in getattr(layer, "states", None) or ()]
    for state in own:
        state.assign(np.full(state.shape, 0.25))
    model = jaxrnn.from_keras(network)
    assert len(own) == 3
    assert all((state.numpy() == 0.25).all() for state in own)
    assert [(each.output, each.shape) for each in model.state] == [
        ("lstm/rnn_state_next", (batch, 4)),
        ("lstm/rnn_state_2_next", (batch, 4)),
        ("gru/rnn_state_next", (batch, 3)),
    ]
    jaxrnn.to_keras({name: 1.1 * array for name, array in model.params.items()}, network, model=model)
    assert all((state.numpy() == 0.25).all() for state in own)
    params = {name: 1.1 * array for name, array in model.params.items()}
    for state in own:
        state.assign(np.zeros(state.shape))
    state = model.init()
    for chunk in np.random.default_rng(0).standard_normal((3, batch, frames or 1, 3)).astype(np.float32):
        outputs, state = model.step(params, state, {"x": chunk})
        assert np.abs(outputs["y"] - network(chunk).numpy()).max() < 1e-6
    assert all(
        np.abs(value - there.numpy()).max() < 1e-6
        for value, there in zip((state[each.input] for each in model.state), own, strict=True)
    )


def test_keras_caches(keras):
    """The table of a layer is as before each call, and is named if earlier calls have filled the table."""

    class InPlace(keras.layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.rows, self.count = np.zeros((6000, 4), np.float32), 0

        def call(self, x):
            frames = x.shape[1]
            if frames is not None and frames > self.count:
                self.rows[:frames], self.count = np.sin(np.arange(frames)[:, None] * np.arange(1, 5)), frames
            return x + keras.ops.convert_to_tensor(self.rows)[: keras.ops.shape(x)[1]]

    class Replaced(keras.layers.Layer):
        def call(self, x):
            frames = keras.ops.shape(x)[1]
            known = vars(self).get("known")
            if known is not None and (not isinstance(frames, int) or frames <= known.shape[0]):
                return x + known[:frames]
            table = x[0] * 0 + keras.ops.cumsum(keras.ops.ones_like(x[0]), 0)
            if isinstance(frames, int):
                self.known = table
            return x + table

    for kind, words in ((InPlace, r"'inner\.count', 'inner\.rows' in a call"), (Replaced, None)):
        entry = keras.Input((None, 4))
        network = keras.Model(entry, kind(name="inner")(keras.layers.Dense(4)(entry)))
        layer = network.get_layer("inner")
        if words is None:
            before = dict(vars(layer))
            model = jaxrnn.from_keras(network)
            assert {**vars(layer)} == before
            x = np.ones((1, 205, 4), np.float32)
            assert np.abs(next(iter(model({str(model.inputs[0].name): x}).values())) - network(x)).max() < 1e-4
        else:
            network(np.zeros((1, 700, 4), np.float32))
            check_refused(jaxrnn.ModelError, words, jaxrnn.from_keras, network)
            assert layer.count == 700
            assert not layer.rows[700:].any()


def test_keras_problems(keras):
    """Layers that tf2onnx writes wrongly or not at all are refused with what to write instead."""
    layers = keras.layers
    options = {"return_sequences": True, "stateful": True}
    traced = layers.Lambda(lambda x: x if type(x).__name__ == "EagerTensor" else 2 * x)
    wrong = keras_model(keras, lambda L, x: traced(L.GRU(4, **options)(x)), (None, 8), batch_size=3)
    variables = [*wrong.weights, *wrong.layers[-2].states]
    before = [variable.numpy() for variable in variables]
    check_refused(jaxrnn.ModelError, "another function than Keras", jaxrnn.from_keras, wrong)
    assert all(np.array_equal(old, variable.numpy()) for old, variable in zip(before, variables, strict=True))
    spectral = keras_model(keras, lambda L, x: L.Lambda(lambda x: keras.ops.fft((x, x))[0])(x))
    words = r"left operators of TensorFlow in the file: .*FFT.*\n.*keras\.ops\.stft return.*\n.*stateless_call"
    check_refused(jaxrnn.ModelError, words, jaxrnn.from_keras, spectral)

    class Counter(keras.layers.Layer):
        def call(self, x):
            self.counts = [*getattr(self, "counts", ()), 1]
            return x * len(self.counts)

    counter = keras_model(keras, lambda L, x: Counter()(x))
    check_refused(jaxrnn.InputError, "or keeps a state that is not a keras.Variable", jaxrnn.from_keras, counter)
    check_refused(jaxrnn.InputError, r"expected a keras\.Model, not Dense", jaxrnn.from_keras, layers.Dense(3))
    check_refused(jaxrnn.InputError, "has no declared inputs", jaxrnn.from_keras, keras.Sequential([layers.Dense(3)]))
