"""Modules of PyTorch as people write these: loops over frames, nested states, states in buffers, TorchScript."""

import copy

import jax
import numpy as np
import pytest
from refusals import check_refused
from test_frameworks import trained
from tiers import of_tiers

import jaxrnn

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'torch' onnxscript")
nn = torch.nn
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Cells(nn.Module):
    """A loop over frames as `run` writes it."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            (self.register_parameter if isinstance(part, nn.Parameter) else self.add_module)(name, part)

    def forward(self, x):
        return self.run(self, x)


def zeros(x, size=5):
    return torch.zeros(x.shape[0], size)


def gru_cells(net, x):
    h, outputs = zeros(x), []
    for t in range(x.shape[1]):
        h = net.cell(x[:, t], h)
        outputs.append(net.head(h))
    return torch.stack(outputs, 1)


def without_state(net, x):
    """The first state is None, and frames come from `unbind`."""
    state, outputs = None, []
    for frame in x.unbind(1):
        state = net.cell(frame, state)
        outputs.append(net.head(state[0] if isinstance(state, tuple) else state))
    return torch.stack(outputs, 1)


def stacked_cells(net, x):
    """A `ModuleList` with a list of (h, c)."""
    states, outputs = [(zeros(x), zeros(x)) for _ in net.cells], []
    for t in range(x.shape[1]):
        y = x[:, t]
        for index, cell in enumerate(net.cells):
            states[index] = cell(y, states[index])
            y = states[index][0]
        outputs.append(net.head(y))
    return torch.stack(outputs, 1)


def beside_layer(net, x):
    """A layer, and a loop over its outputs; the loop begins with a frame."""
    y = net.rnn(x)[0]
    h, outputs = torch.zeros_like(y[:, 0]), []
    for t in range(y.shape[1]):
        h = torch.sigmoid(net.rate) * h + y[:, t]
        outputs.append(h)
    return net.head(torch.stack(outputs, 1))


def last_state(net, x):
    h = zeros(x)
    for frame in x.transpose(0, 1):
        h = net.cell(frame, h)
    return net.head(h)


def second_order(net, x):
    """A filter with two former outputs, divided by the number of the frame."""
    one = two = torch.zeros_like(x[:, 0])
    outputs = []
    for t in range(x.shape[1]):
        y = net.b[0] * x[:, t] + net.b[1] * one + net.b[2] * two
        one, two = y, one
        outputs.append(y / (t + 1))
    return torch.stack(outputs, 1)


def two_loops(net, x):
    """Two loops, the second over outputs of the first in a list and with its own output fed back."""
    h, frames = x[:, 0, :5] * 0, []
    for t in range(x.shape[1]):
        h = net.first(x[:, t], h)
        frames += [h]
    y = torch.tanh(torch.stack(frames, 1))
    state, out, outputs = (zeros(x), zeros(x)), zeros(x, 3), []
    for t in range(y.shape[1]):
        state = net.second(torch.cat([y[:, t], out], 1), state)
        out = net.head(state[0])
        outputs.append(out.unsqueeze(1))
    return torch.cat(outputs, dim=1)


def state_of_parts(net, x):
    """The state is split into parts and joined again, and nothing reads the state after the last frame."""
    state, outputs = zeros(x, 8), []
    for t in range(x.shape[1]):
        one, two = torch.split(state, [5, 3], 1)
        one = net.first(x[:, t], one)
        two = net.second(one, two)
        outputs.append(two)
        state = torch.cat([one, two], 1)
    return torch.stack(outputs, 1)


def kept_shape(net, x):
    """The module keeps its state in an attribute, of which a call reads the shape, as neurons of snnTorch do."""
    h, outputs = torch.zeros_like(getattr(net, "kept", torch.zeros(()))), []
    for frame in x.unbind(1):
        h = torch.sigmoid(net.rate) * (h if h.shape == frame.shape else torch.zeros_like(frame)) + frame
        net.kept = h
        outputs.append(h)
    return torch.stack(outputs, 1)


def backwards(net, x):
    h, outputs = zeros(x), []
    for t in reversed(range(x.shape[1])):
        h = net.cell(x[:, t], h)
        outputs.append(net.head(h))
    return torch.stack(outputs[::-1], 1)


def written(net, x):
    """Frames are written into a tensor, and the tensor of the state changes in place."""
    h, y = zeros(x), torch.zeros(x.shape[0], x.shape[1], 3)
    for t in range(x.shape[1]):
        h.copy_(net.cell(x[:, t], h))
        y[:, t] = net.head(h)
    return y


def loops():
    head = nn.Linear(5, 3)
    filters = nn.Parameter(torch.tensor([0.5, 0.3, -0.2]))
    return {
        "GRUCell": Cells(gru_cells, cell=nn.GRUCell(6, 5), head=head),
        "RNNCell": Cells(gru_cells, cell=nn.RNNCell(6, 5, nonlinearity="relu"), head=head),
        "LSTMCell": Cells(without_state, cell=nn.LSTMCell(6, 5), head=head),
        "GRUCell without state": Cells(without_state, cell=nn.GRUCell(6, 5, bias=False), head=head),
        "ModuleList": Cells(
            stacked_cells, cells=nn.ModuleList([nn.LSTMCell(6, 5), nn.LSTMCell(5, 5), nn.LSTMCell(5, 5)]), head=head
        ),
        "beside GRU": Cells(
            beside_layer, rnn=nn.GRU(6, 5, batch_first=True), rate=nn.Parameter(torch.randn(5)), head=head
        ),
        "beside LSTM": Cells(
            beside_layer, rnn=nn.LSTM(6, 5, 2, batch_first=True), rate=nn.Parameter(torch.randn(5)), head=head
        ),
        "last state": Cells(last_state, cell=nn.GRUCell(6, 5), head=head),
        "second order": Cells(second_order, b=filters),
        "two loops": Cells(two_loops, first=nn.GRUCell(6, 5), second=nn.LSTMCell(8, 5), head=head),
        "state of parts": Cells(state_of_parts, first=nn.RNNCell(6, 5), second=nn.RNNCell(5, 3)),
        "kept shape": Cells(kept_shape, rate=nn.Parameter(torch.randn(6))),
        "backwards": Cells(backwards, cell=nn.GRUCell(6, 5), head=head),
        "written": Cells(written, cell=nn.GRUCell(6, 5), head=head),
    }


def check_round_trip(module, model, names, batches=(1, 3)):
    """All weights are parameters with gradients, and trained weights in the module give the same outputs."""
    assert set(model.params) == names
    params, inputs = trained(model)
    slopes = jax.grad(lambda params: sum(abs(each).sum() for each in model.apply(params, inputs).values()))(
        model.params
    )
    assert all(np.abs(slope).max() > 0 for slope in slopes.values())
    jaxrnn.to_torch(params, module, model=model)
    for frames in (1, 2, 11, 40):
        for batch in batches:
            x = torch.randn(batch, frames, 6)
            ours = model.apply(params, {model.inputs[0].name: x.numpy()})
            theirs = module(x).detach().numpy()
            assert np.abs(next(iter(ours.values())) - theirs).max() < 2e-6 * max(1, np.abs(theirs).max())


#: Loops that combine the most.
COMBINED = ("ModuleList", "beside LSTM", "two loops", "state of parts", "backwards", "second order")


@pytest.mark.parametrize("name", of_tiers(loops(), (), COMBINED))
def test_loops_over_frames(name):
    """A loop in Python over frames is a loop of the file: one step at a time, with all weights."""
    torch.manual_seed(0)
    module = loops()[name]
    before = copy.deepcopy(module.state_dict())
    model = jaxrnn.from_torch(module, torch.randn(2, 7, 6), time=1)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    check_round_trip(module, model, set(before))
    if name == "backwards":
        check_refused(jaxrnn.StreamError, "reverses time", model.stream)
        return
    streamed, x = model.stream("time", pulse=1), torch.randn(1, 9, 6)
    outputs, whole = streamed.run(model.params, {"x": x.numpy()}), model(x=x.numpy())
    assert np.abs(outputs["output"] - whole["output"]).max() < 1e-6
    assert streamed.delay == {"output": None if name == "last state" else 0}


def test_states_that_only_later_turns_read():
    """The last turns lack operations on states, such as the scaled maximum of RWKV, because nothing reads these."""

    def run(net, x):
        most, total, outputs = torch.zeros_like(x[:, 0]) - 9, torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            outputs.append(torch.exp(most - torch.maximum(most, x[:, t] + net.a)) * total + x[:, t])
            new = torch.maximum(most + net.b, x[:, t])
            total = torch.exp(most + net.b - new) * total + torch.exp(x[:, t] - new)
            most = new
        return torch.stack(outputs, 1)

    module = Cells(run, a=nn.Parameter(torch.tensor(0.2)), b=nn.Parameter(torch.tensor(-0.3)))
    model = jaxrnn.from_torch(module, torch.randn(2, 9, 6), time=1, exporter="script", shortest=3)
    for frames in (3, 4, 9, 30):
        x = torch.randn(3, frames, 6)
        assert np.abs(model(x=x.numpy())["output"] - module(x).detach().numpy()).max() < 1e-5


def test_lists_of_states():
    """Lists and tuples of states, by position and by name, are inputs with numbers, and are states of the model."""

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.ModuleList([nn.GRUCell(6, 5), nn.GRUCell(5, 5)])
            self.lstm = nn.LSTM(5, 4, batch_first=True)

        def forward(self, x, hidden, state):
            hidden, outputs = list(hidden), []
            for t in range(x.shape[1]):
                y = x[:, t]
                for index, cell in enumerate(self.cells):
                    hidden[index] = y = cell(y, hidden[index])
                outputs.append(y)
            y, state = self.lstm(torch.stack(outputs, 1), state)
            return y, hidden, state

    torch.manual_seed(0)
    module, x = Layers(), torch.randn(2, 7, 6)
    states = [zeros(x), zeros(x)], (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    for example in ((x, *states), dict(zip(("x", "hidden", "state"), (x, *states), strict=True))):
        model = jaxrnn.from_torch(module, example, time=1)
        names = ["hidden_0", "hidden_1", "state_0", "state_1"]
        assert [(each.input, each.output) for each in model.state] == [
            (name, f"output_{index}") for index, name in enumerate(names, 1)
        ]
        assert set(model.params) == set(module.state_dict())
        jaxrnn.to_torch(model.params, module, model=model)
        state, outputs = model.init(2), []
        for chunk in np.split(x.numpy(), [1, 4], axis=1):
            output, state = model.step(model.params, state, {"x": chunk})
            outputs.append(output["output"])
        assert np.abs(np.concatenate(outputs, 1) - module(x, *states)[0].detach().numpy()).max() < 1e-6
    check_refused(jaxrnn.InputError, "lists of tensors", jaxrnn.from_torch, module, (x, "h", "c"))


class Buffers(nn.Module):
    """A recurrence whose state is in a buffer; `keep` writes the next state."""

    def __init__(self, keep, start=0.0):
        super().__init__()
        self.cell, self.keep = nn.GRUCell(6, 5), keep
        self.register_buffer("h", torch.full((1, 5), start))
        self.register_buffer("rows", torch.zeros(1, 3, 5))
        self.states = [torch.zeros(1, 5)]

    def forward(self, x):
        h = self.cell(x, self.h + self.rows.sum(1) + self.states[0])
        self.keep(self, h)
        return h


def shifted(net, h):
    net.rows[:, :-1] = net.rows[:, 1:].clone()
    net.rows[:, -1] = h


KEPT = {
    "copy_": (lambda net, h: net.h.copy_(h), ["h"]),
    "index": (lambda net, h: net.h.__setitem__(slice(None), h), ["h"]),
    "assigned": (lambda net, h: setattr(net, "h", h), ["h"]),
    "shifted": (shifted, ["rows"]),
}


@pytest.mark.parametrize("name", KEPT)
def test_states_in_buffers(name):
    """A buffer that is zero at first and that calls change is a state of the model; the module stays as it was."""
    torch.manual_seed(0)
    keep, states = KEPT[name]
    module = nn.Sequential(Buffers(keep), nn.Linear(5, 2))
    model = jaxrnn.from_torch(module, torch.randn(1, 6))
    names = [f"0.{state}" for state in states]
    assert [(each.input, each.output) for each in model.state] == [(each, f"{each}_next") for each in names]
    assert not any(buffer.count_nonzero() for buffer in module.buffers())
    assert set(model.params) >= set(dict(module.named_parameters()))
    assert not set(model.params) & set(names)
    params = {key: 1.1 * value for key, value in model.params.items()}
    jaxrnn.to_torch(params, module, model=model)
    state = model.init()
    for frame in torch.randn(8, 1, 6):
        output, state = model.step(params, state, {"input": frame.numpy()})
        assert np.abs(output["output"] - module(frame).detach().numpy()).max() < 1e-6


def test_states_that_are_refused():
    """A state in a list, a state that is not zero and random numbers are refused by name."""

    def in_list(net, h):
        net.states[0] = h

    x = torch.randn(1, 6)
    words = "keeps a state in states, and states is not a buffer.*register_buffer"
    check_refused(jaxrnn.InputError, words, jaxrnn.from_torch, Buffers(in_list), x)
    module = Buffers(KEPT["copy_"][0], 0.5)
    check_refused(jaxrnn.InputError, "state in h, and h is not zero", jaxrnn.from_torch, module, x)
    assert (module.h == 0.5).all()
    noise = Buffers(lambda net, h: h.add_(torch.rand(1)))
    check_refused(jaxrnn.InputError, "draws random numbers", jaxrnn.from_torch, noise, x)


class Offline(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(6, 5, 2, batch_first=True), nn.Linear(5, 3)
        nn.init.zeros_(self.gru.bias_ih_l0)
        nn.init.zeros_(self.gru.bias_hh_l0)

    def forward(self, x):
        return self.head(self.gru(x)[0])


def loaded(module, path):
    torch.jit.save(module, path)
    return torch.jit.load(path)


@pytest.mark.parametrize("name", ["script", "trace", "load", "load trace", "holder"])
def test_modules_of_torchscript(name, tmp_path):
    """Modules of TorchScript have all weights, also equal ones, under their names, and do not change."""
    torch.manual_seed(0)
    x, plain = torch.randn(2, 7, 6), Offline().eval()
    module = {
        "script": lambda: torch.jit.script(plain),
        "trace": lambda: torch.jit.trace(plain, x),
        "load": lambda: loaded(torch.jit.script(plain), tmp_path / "a.pt"),
        "load trace": lambda: loaded(torch.jit.trace(plain, x), tmp_path / "a.pt"),
        "holder": lambda: nn.Sequential(torch.jit.script(plain), nn.Linear(3, 2)),
    }[name]()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    model = jaxrnn.from_torch(module, x, time=1)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    check_round_trip(module, model, set(before))
    assert model.stream().delay == {"output": 0}


def test_frozen_modules():
    """A frozen module has no weights, and a warning says how to keep these."""
    plain, x = Offline().eval(), torch.randn(2, 7, 6)
    for frozen in (torch.jit.freeze(torch.jit.script(plain)), torch.jit.freeze(torch.jit.trace(plain, x))):
        with pytest.warns(UserWarning, match=r"frozen module.*torch\.jit\.freeze"):
            model = jaxrnn.from_torch(frozen, x, time=1)
        assert not model.params
        assert np.abs(model({str(model.inputs[0].name): x.numpy()})["output"] - plain(x).detach().numpy()).max() < 1e-6


class Unsupported(nn.Module):
    """Functions that TorchScript's exporter refuses, and blocks of 4 frames, padded only if a block is not whole."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x):
        y = torch.diff(self.head(x), dim=1, prepend=torch.zeros_like(x[:, :1]))
        y = y + nn.functional.pad(y, (0, 0, 2, 0)).unfold(1, 3, 1).sum(-1)
        system = torch.eye(6) + torch.tril(0.3 * self.head.weight, -1)
        y = torch.linalg.solve_triangular(system, y.transpose(1, 2), upper=False, unitriangular=True).transpose(1, 2)
        y = y * torch.histc(self.head.bias, 3, -1.0, 1.0).sum()
        query, pair = y.reshape(*y.shape[:2], 2, 3).transpose(1, 2), y[:, None, :, :3]
        y = nn.functional.scaled_dot_product_attention(query, pair, pair, is_causal=True, enable_gqa=True)
        y = y.transpose(1, 2).reshape(x.shape)
        if pads := (4 - x.shape[1] % 4) % 4:
            y = nn.functional.pad(y, (0, 0, 0, pads))
        y = torch.cumsum(y.reshape(x.shape[0], -1, 4, 6), 2).reshape(x.shape[0], -1, 6)
        y = y[:, : x.shape[1]] if pads else y
        return y / (1 + torch.cumsum(x[..., :1] > 0, 1))


def test_functions_that_torchscript_refuses():
    """Such functions are written with others, and a length that needs all branches of the module is tried."""
    torch.manual_seed(0)
    module, x = Unsupported(), torch.randn(2, 8, 6)
    model = jaxrnn.from_torch(module, x, time=1, exporter="script")
    assert set(model.params) == {"head.weight", "head.bias"}
    for frames in (1, 7, 12, 30):
        x = torch.randn(3, frames, 6)
        known = module(x).detach().numpy()
        assert np.abs(model(x=x.numpy())["output"] - known).max() < 4e-6 * max(1, np.abs(known).max())


def test_trainable_weights_that_are_constants():
    """A trainable weight that is a constant of the file is an error, unless the caller allows it."""

    class Number(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.7, 0.3]))

        def forward(self, x):
            return x * self.w[0].item()

    module, x = Number(), torch.randn(2, 5, 2)
    words = r"trainable weights 'w' would be constants.*`constants=\['w'\]`"
    check_refused(jaxrnn.ModelError, words, jaxrnn.from_torch, module, x, time=1, exporter="script")
    assert not jaxrnn.from_torch(module, x, time=1, exporter="script", constants=["w"]).params
    words = r"names of weights of Number: there is no 'v'"
    check_refused(jaxrnn.InputError, words, jaxrnn.from_torch, module, x, time=1, constants=["v"])
    module.w.requires_grad_(False)
    with pytest.warns(UserWarning, match="constants in place of the weights 'w'"):
        jaxrnn.from_torch(module, x, time=1, exporter="script")
