"""State without a recurrent operator: buffers, averages, counters, written-out cells; and data treated alike."""

from __future__ import annotations

import numpy as np
import pytest
from state_graphs import BOOL, F32, I64, ROW, C, N, check_asked, model_of, node, pairs, weights
from verifier import run_session, session

import jaxrnn


def conv_caches(frames, kept):
    """Two causal convolutions with caches of one shape; cache outputs come in the other order."""
    nodes = []
    for name, source in (("a", "x"), ("b", "mid")):
        nodes += [
            node("Concat", [f"cache_{name}", source], [f"all_{name}"], axis=2, name=f"join_{name}"),
            node("Conv", [f"all_{name}", "K"], ["mid" if name == "a" else "y"], name=f"conv_{name}"),
            node("Slice", [f"all_{name}", "minus", "far", "two"], [f"tail_{name}"]),
        ]
    constants = C | weights(K=(N, N, kept + 1)) | {"minus": np.array([-kept])}
    cache, shape = [1, N, kept], [1, N, frames]
    inputs = {"cache_b": cache, "x": shape, "cache_a": cache}
    outputs = {"tail_a": cache, "y": shape, "tail_b": cache}
    return model_of(nodes, inputs, outputs, constants)


@pytest.mark.parametrize(("frames", "kept"), [(1, 2), (2, 2), (5, 2), (1, 1), (2, 7)])
def test_convolution_caches(frames, kept):
    """Buffers that keep a part of what they held, or nothing of it: what matters is where the convolution reads."""
    model = conv_caches(frames, kept)
    assert pairs(model) == {"cache_a": "tail_a", "cache_b": "tail_b"}
    assert {variable.node for variable in model.state} == {"join_a", "join_b"}
    assert all("buffer" in variable.reason for variable in model.state)


@pytest.mark.parametrize("names", [("wav", "cache", "cache_out"), ("in0", "in1", "out0")])
@pytest.mark.parametrize("shape", [(), (1,), ("batch",)])
@pytest.mark.parametrize("kept", [1, 3, 64])
def test_a_context_beside_a_block_of_open_length(kept, shape, names):
    """A window of fixed length holds a shorter block as a whole, as a growing cache does; the window is no cache.

    Without a second input for data, a block that leaves with its context is data as well.
    """
    wav, cache, cache_out = names
    axis, blocks = len(shape), [*shape, "n"]
    nodes = [
        node("Concat", [cache, wav], ["window"], axis=axis),
        node("Slice", ["window", "start", "far", "axis"], [cache_out]),
        node("Reshape", ["window", "planes"], ["sound"]),
        node("Conv", ["sound", "K"], ["y"], strides=[2]),
    ]
    constants = C | weights(K=(2, 1, kept + 2)) | {"start": np.array([-kept]), "axis": np.array([axis])}
    constants |= {"planes": np.array([0 if axis else 1, 1, -1])}
    inputs = {wav: blocks, cache: [*shape, kept]}
    for outputs in ({}, {"window": None}):
        model = model_of(nodes, inputs, {"y": None, cache_out: [*shape, kept], **outputs}, constants)
        assert pairs(model) == {cache: cache_out}
        assert not model.growing_dimensions
    file, rng = session(model.proto), np.random.default_rng(0)
    state = {name: np.asarray(value) for name, value in model.init().items()}
    for frames in (8, 100, 2):
        block = {wav: rng.normal(size=[1] * axis + [frames]).astype(np.float32)}
        outputs, _ = model.step(model.params, state, block)
        expected = run_session(file, {**state, **block})
        np.testing.assert_allclose(outputs["y"], expected["y"], atol=1e-4)
        state = {cache: expected[cache_out]}


def test_growing_caches_whose_lengths_no_equation_ties():
    """Keys and values grow together, although only their longer next values need to be equal."""
    nodes = [
        node("Concat", ["in1", "in0"], ["out1"], axis=1),
        node("Concat", ["in2", "in0"], ["out2"], axis=1),
        node("Transpose", ["out1"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["in0", "turned"], ["scores"]),
        node("MatMul", ["scores", "out2"], ["out0"]),
    ]
    inputs = {"in0": [1, 1, N], "in1": [1, "P", N], "in2": [1, "R", N]}
    model = model_of(nodes, inputs, {"out0": [1, 1, N], "out1": [1, "Q", N], "out2": [1, "S", N]})
    assert pairs(model) == {"in1": "out1", "in2": "out2"}


def test_data_in_a_window_of_fixed_length_are_no_growing_cache():
    """Five samples leave, of which a short block is the end, beside other data."""
    nodes = [
        node("Concat", ["nothing", "x"], ["padded"], axis=1),
        node("Slice", ["padded", "start", "far", "one"], ["y"]),
        node("Add", ["y", "mic"], ["z"]),
    ]
    constants = C | {"nothing": np.zeros((1, 5), np.float32), "start": np.array([-5])}
    model = model_of(nodes, {"x": [1, "n"], "mic": [1, 1]}, {"y": [1, 5], "z": None}, constants)
    assert model.state == ()


@pytest.mark.parametrize("names", [("x", "y"), ("in0", "out0")])
def test_padded_data_are_no_growing_cache(names):
    """The only input is data, although it grows into the output."""
    x, y = names
    nodes = [node("Concat", ["nothing", x], [y], axis=1), node("Relu", [y], ["z"])]
    model = model_of(nodes, {x: [1, "n"]}, {y: [1, "m"], "z": None}, {"nothing": np.zeros((1, 5), np.float32)})
    assert model.state == ()


@pytest.mark.parametrize(
    "names", [("keys", "keys_out", "kept"), ("keys", "joined", "keys_out"), ("in0", "out0", "out1")]
)
def test_a_cache_that_leaves_whole_and_cut(names):
    """The names say which is the next value; without names, the part of the same length is."""
    keys, whole, part = names
    nodes = [
        node("Shape", [keys], ["length"], start=1, end=2),
        node("Neg", ["length"], ["start"]),
        node("Concat", [keys, "x"], [whole], axis=1),
        node("Slice", [whole, "start", "far", "one"], [part]),
        node("ReduceMean", [whole], ["y"], axes=[1]),
    ]
    outputs = {"y": None, whole: [1, "Q", N], part: [1, "P", N]}
    model = model_of(nodes, {"x": [1, 1, N], keys: [1, "P", N]}, outputs, C)
    assert pairs(model) == {keys: "keys_out" if keys == "keys" else part}


def test_overlap_add():
    """What overlaps is kept, moved to the front, added to; zeros come in at the end."""
    nodes = [
        node("MatMul", ["x", "V"], ["frame"]),
        node("Add", ["tail", "frame"], ["sum"]),
        node("Slice", ["sum", "zero", "one", "last"], ["y"]),
        node("Slice", ["sum", "one", "far", "last"], ["rest"]),
        node("Concat", ["rest", "nothing"], ["overlap"], axis=-1),
    ]
    constants = C | {"nothing": np.zeros((1, 1), np.float32)}
    model = model_of(nodes, {"x": [1, N], "tail": [1, N]}, {"y": [1, 1], "overlap": [1, N]}, constants)
    assert pairs(model) == {"tail": "overlap"}


def test_running_statistics():
    """Nothing but names tells an average from what it averages; without them the finder asks."""
    assert pairs(average("mean", "new_mean")) == {"mean": "new_mean"}
    with pytest.raises(jaxrnn.StateError) as caught:
        _ = average("a", "b", "c").state
    message = str(caught.value)
    assert "'a' -> 'b'" in message
    assert "'c' -> 'b'" in message
    assert "'a' -> 'y'" not in message  # y is computed from b
    assert "jaxrnn.load(path, state={'" in message


def test_running_mean_and_variance():
    nodes = [
        node("Sub", ["x", "mean"], ["d"]),
        node("Mul", ["d", "half"], ["part"]),
        node("Add", ["mean", "part"], ["mean_next"]),
        node("Sub", ["x", "mean_next"], ["e"]),
        node("Mul", ["e", "e"], ["square"]),
        node("Mul", ["var", "half"], ["kept"]),
        node("Mul", ["square", "half"], ["new"]),
        node("Add", ["kept", "new"], ["var_next"]),
        node("Sqrt", ["var_next"], ["deviation"]),
        node("Div", ["e", "deviation"], ["y"]),
    ]
    shapes = {key: [1, N] for key in ("var", "mean", "x")}
    model = model_of(nodes, shapes, {key: [1, N] for key in ("y", "mean_next", "var_next")}, C)
    assert pairs(model) == {"mean": "mean_next", "var": "var_next"}


def test_step_counter():
    nodes = [
        node("Add", ["n", "one"], ["m"]),
        node("Cast", ["n"], ["time"], to=F32),
        node("Mul", ["x", "time"], ["y"]),
    ]
    model = model_of(nodes, {"x": [N], "n": (I64, [1])}, {"y": [N], "m": (I64, [1])}, C)
    assert pairs(model) == {"n": "m"}
    assert model.state[0].dtype == np.int64


def test_averages_in_batches():
    """A dimension that nothing slides along is a batch, and may stay open; one that is time makes it no state."""
    nodes = [
        node("Conv", ["x", "K"], ["level"]),
        node("Mul", ["m", "half"], ["kept"]),
        node("Add", ["kept", "level"], ["m_out"]),
        node("Sub", ["level", "m_out"], ["y"]),
    ]
    for batch, time, expected in (("B", N, {"m": "m_out"}), (1, "S", {})):
        shape = [batch, N, time]
        model = model_of(nodes, {"x": shape, "m": shape}, {"y": shape, "m_out": shape}, C | weights(K=(N, N, 1)))
        assert pairs(model) == expected


def test_many_states_of_one_shape():
    """More than can be tried in every order; numbered names tell them apart."""
    numbers = range(1, 10)
    total = [node("Sum", [f"h{i}" for i in numbers], ["all"]), node("Add", ["all", "x"], ["sum"])]
    updates = [node("Mul", ["sum", f"w{i}"], [f"h{i}_out"]) for i in numbers]
    constants = {f"w{i}": np.float32(i) for i in numbers}
    inputs = {**{f"h{i}": ROW for i in numbers}, "x": [1, 1]}
    outputs = {f"h{i}_out": ROW for i in reversed(numbers)}
    mean = node("ReduceMean", ["all"], ["y"], axes=[1])
    model = model_of([*total, *updates, mean], inputs, {**outputs, "y": [1, 1]}, constants)
    assert pairs(model) == {f"h{i}": f"h{i}_out" for i in numbers}


def test_names_say_more_than_arithmetic():
    """What is called the state's update is computed from what looks like it."""
    nodes = [
        node("Mul", ["h", "half"], ["kept"]),
        node("Add", ["kept", "x"], ["y"]),
        node("Mul", ["y", "half"], ["h_out"]),
    ]
    assert pairs(model_of(nodes, {"x": [1, 1], "h": ROW}, {"y": ROW, "h_out": ROW}, C)) == {"h": "h_out"}


def test_ring_buffer():
    """Written at a place that a counter holds: the rest is kept."""
    nodes = [
        node("ScatterElements", ["ring", "at", "x"], ["ring_2"], axis=0, name="write"),
        node("ReduceMean", ["ring_2"], ["y"], keepdims=1),
        node("Add", ["at", "one"], ["up"]),
        node("Mod", ["up", "two"], ["at_2"]),
    ]
    inputs = {"x": [1], "at": (I64, [1]), "ring": [N]}
    model = model_of(nodes, inputs, {"y": [1], "ring_2": [N], "at_2": (I64, [1])}, C)
    assert pairs(model) == {"ring": "ring_2", "at": "at_2"}


def average(mean, mean_out, x="x"):
    nodes = [
        node("Mul", [mean, "half"], ["kept"]),
        node("Mul", [x, "half"], ["added"]),
        node("Add", ["kept", "added"], [mean_out]),
        node("Sub", [x, mean_out], ["y"]),
    ]
    return model_of(nodes, {x: [1, N], mean: [1, N]}, {"y": [1, N], mean_out: [1, N]}, C)


def written_lstm(tag, x, h, c, h_out, c_out):
    gates = []
    for gate, function in zip("ifog", ("Sigmoid", "Sigmoid", "Sigmoid", "Tanh"), strict=True):
        name = f"{gate}{tag}"
        gates += [
            node("MatMul", [x, "V"], [f"{name}x"]),
            node("MatMul", [h, "U"], [f"{name}h"]),
            node("Add", [f"{name}x", f"{name}h"], [f"{name}s"]),
            node(function, [f"{name}s"], [name]),
        ]
    return [
        *gates,
        node("Mul", [f"f{tag}", c], [f"k{tag}"]),
        node("Mul", [f"i{tag}", f"g{tag}"], [f"n{tag}"]),
        node("Add", [f"k{tag}", f"n{tag}"], [c_out]),
        node("Tanh", [c_out], [f"t{tag}"]),
        node("Mul", [f"o{tag}", f"t{tag}"], [h_out]),
    ]


def test_written_out_lstms():
    """Two layers with four states of one shape, outputs in another order, names without meaning."""
    nodes = [
        *written_lstm(1, "x", "s1", "s2", "e1", "e2"),
        *written_lstm(2, "e1", "s3", "s4", "e3", "e4"),
        node("MatMul", ["e3", "P"], ["y"]),
    ]
    state = {key: [1, N] for key in ("s4", "s1", "s3", "s2")}
    constants = weights(V=(N, N), U=(N, N), P=(N, 2), E=(7, N))
    lookup = [node("Gather", ["E", "token"], ["x"])]
    ends = {**{key: [1, N] for key in ("e2", "e3", "e1", "e4")}, "y": [1, 2]}
    model = model_of([*lookup, *nodes], {"token": (I64, [1]), **state}, ends, constants)
    assert pairs(model) == {"s1": "e1", "s2": "e2", "s3": "e3", "s4": "e4"}


def written_gru(h, h_out, size=N):
    gates = []
    for gate in "zn":
        gates += [
            node("MatMul", ["x", "V"], [f"{gate}x"]),
            node("MatMul", [h, "U"], [f"{gate}h"]),
            node("Add", [f"{gate}x", f"{gate}h"], [f"{gate}s"]),
            node("Sigmoid" if gate == "z" else "Tanh", [f"{gate}s"], [gate]),
        ]
    blend = [
        node("Sub", [h, "n"], ["gap"]),
        node("Mul", ["z", "gap"], ["part"]),
        node("Add", ["n", "part"], [h_out]),
        node("MatMul", [h_out, "P"], ["y"]),
    ]
    constants = weights(V=(size, N), U=(N, N), P=(N, size))
    return model_of([*gates, *blend], {"x": [1, size], h: [1, N]}, {"y": [1, size], h_out: [1, N]}, constants)


def test_written_out_gru():
    assert pairs(written_gru("s", "e")) == {"s": "e"}
    assert pairs(written_gru("s", "e", 3)) == {"s": "e"}


def written_rnn(x_size, h, h_out, leak=False):
    nodes = [
        node("MatMul", ["x", "V"], ["a"]),
        node("MatMul", [h, "U"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        *(
            [node("Mul", [h, "half"], ["l"]), node("Add", ["c", "l"], ["d"])]
            if leak
            else [node("Identity", ["c"], ["d"])]
        ),
        node("Tanh", ["d"], [h_out]),
        node("MatMul", [h_out, "P"], ["y"]),
    ]
    constants = weights(V=(x_size, N), U=(N, N), P=(N, x_size)) | {"half": np.float32(0.5)}
    return model_of(nodes, {"x": [1, x_size], h: [1, N]}, {"y": [1, x_size], h_out: [1, N]}, constants)


def test_written_out_rnn():
    """In ``tanh(V x + U h)`` the two inputs differ by shape or by name, if at all."""
    assert pairs(written_rnn(3, "s", "e")) == {"s": "e"}
    assert pairs(written_rnn(3, "s", "e", leak=True)) == {"s": "e"}
    assert pairs(written_rnn(N, "h", "h_new")) == {"h": "h_new"}
    check_asked("'s' -> 'e', 'x' -> 'e'", written_rnn(N, "s", "e"))
    assert "product with weights" in written_rnn(3, "s", "e").state[0].reason


def test_models_without_state():
    shape = [1, N]
    mask = [node("MatMul", ["x", "V"], ["m"]), node("Sigmoid", ["m"], ["g"]), node("Mul", ["g", "x"], ["x_out"])]
    residual = [node("MatMul", ["x", "V"], ["m"]), node("Add", ["m", "x"], ["x_out"])]
    for nodes in (mask, residual, [*residual[:1], node("Tanh", ["m"], ["x_out"])]):
        assert model_of(nodes, {"x": shape}, {"x_out": shape}, C).state == ()
    two = [
        *(node("Conv", [name, "K"], [f"{name}_c"], kernel_shape=[3], pads=[1, 1]) for name in "ab"),
        node("Add", ["a_c", "b_c"], ["sum"]),
        node("Add", ["a", "sum"], ["a_out"]),
        node("Relu", ["sum"], ["other"]),
        node("ReduceMean", ["sum"], ["mean"]),
    ]
    wave = [1, N, "S"]
    ends = {"a": wave, "b": wave}, {"a_out": wave, "other": wave, "mean": [1, 1, 1]}
    assert model_of(two, *ends, weights(K=(N, N, 3))).state == ()


def test_data_that_is_treated_like_state():
    """With inputs and outputs to spare, residuals, masks, norms, convolutions and attention are still no state.

    Names say so: an input whose name says nothing could be what the output continues.
    """
    extra = [node("ReduceMean", ["ref"], ["level"])]
    inputs, outputs = {"mic": ROW, "ref": ROW}, {"enhanced": ROW, "level": [1, 1]}
    product = [node("MatMul", ["ref", "V"], ["f"])]
    norm = [
        *product,
        node("ReduceMean", ["mic"], ["mean"], axes=[1]),
        node("Sub", ["mic", "mean"], ["centred"]),
        node("Mul", ["centred", "half"], ["scaled"]),
        node("Add", ["scaled", "f"], ["enhanced"]),
    ]
    for name, nodes in {
        "residual": [*product, node("Add", ["mic", "f"], ["enhanced"])],
        "residual, scaled": [*product, node("Add", ["mic", "f"], ["sum"]), node("Mul", ["sum", "half"], ["enhanced"])],
        "mask": [*product, node("Sigmoid", ["f"], ["m"]), node("Mul", ["mic", "m"], ["enhanced"])],
        "mask and residual": [*product, node("Mul", ["mic", "f"], ["m"]), node("Add", ["m", "f"], ["enhanced"])],
        "norm": norm,
        "clip": [node("Clip", ["mic", "", "half"], ["enhanced"])],
        "offset": [node("Add", ["mic", "half"], ["enhanced"])],
        "layer": [node("MatMul", ["mic", "V"], ["m"]), node("Tanh", ["m"], ["enhanced"])],
        "dropout": [node("Dropout", ["mic"], ["d", "kept"]), *product, node("Add", ["d", "f"], ["enhanced"])],
    }.items():
        assert model_of([*nodes, *extra], inputs, outputs, C).state == (), name
    nodes = [node("MatMul", ["zustand", "V"], ["f"]), node("Add", ["mic", "f"], ["enhanced"])]
    level = node("ReduceMean", ["zustand"], ["level"])
    check_asked("'zustand' -> 'enhanced'", model_of([*nodes, level], {"mic": ROW, "zustand": ROW}, outputs, C))
    attention = [
        node("Transpose", ["k"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["q", "turned"], ["logits"]),
        node("Softmax", ["logits"], ["a"]),
        node("MatMul", ["a", "v"], ["y"]),
        node("ReduceMean", ["y"], ["level"], axes=[2]),
    ]
    shape = [1, 3, N]
    assert model_of(attention, dict.fromkeys("qkv", shape), {"y": shape, "level": [1, 3, 1]}, C).state == ()


def test_data_that_is_used_further():
    """Outputs that others are computed from, as states are: a normalised input, a masked one, the only input."""
    nodes = [
        node("MatMul", ["ref", "V"], ["e"]),
        node("MatMul", ["e", "U"], ["f"]),
        node("ReduceMean", ["mic"], ["mean"], axes=[1]),
        node("Sub", ["mic", "mean"], ["centred"]),
        node("Mul", ["centred", "half"], ["scaled"]),
        node("Add", ["scaled", "f"], ["normal"]),
        node("MatMul", ["normal", "U"], ["y"]),
    ]
    assert model_of(nodes, {"mic": ROW, "ref": ROW}, {"normal": ROW, "y": ROW}, C).state == ()
    nodes = [node("Dropout", ["mic"], ["enhanced", "mask"]), node("Cast", ["mask"], ["y"], to=F32)]
    assert model_of(nodes, {"mic": ROW}, {"enhanced": ROW, "mask": (BOOL, ROW), "y": ROW}).state == ()
    nodes = [node("Add", ["token", "one"], ["shifted"]), node("Gather", ["V", "shifted"], ["y"])]
    assert model_of(nodes, {"token": (I64, [1])}, {"shifted": (I64, [1]), "y": ROW}, C).state == ()
    nodes = [
        node("ReduceMean", ["mic"], ["mean"], axes=[1]),
        node("Slice", ["mic", "one", "far", "one"], ["rest"]),
        node("Concat", ["rest", "mean"], ["mic_out"], axis=1),
        node("MatMul", ["mic_out", "V"], ["y"]),
    ]
    assert model_of(nodes, {"mic": ROW}, {"mic_out": ROW, "y": ROW}, C).state == ()


def test_sums_are_state_by_name():
    """An integral and a residual connection are one arithmetic."""
    cases = ("angle", "angle_out", True), ("spec", "enhanced", False), ("a", "b", None), ("phase", "phase_out", None)
    cases += ("pitch", "enhanced", None), ("zustand", "zustand_neu", None), ("speicher", "speicher_out2", None)
    for given, updated, expected in cases:
        nodes = [node("Add", [given, "x"], [updated]), node("Sin", [updated], ["y"])]
        model = model_of(nodes, {"x": [1, 1], given: ROW}, {"y": ROW, updated: ROW}, C)
        if expected is None:
            check_asked("may be incomplete", model)
        else:
            assert pairs(model) == ({given: updated} if expected else {})


def test_a_cell_by_itself():
    """h and c come back, and nothing else: the hidden state is known by the cell that it comes from."""
    nodes = written_lstm(1, "x", "s1", "s2", "e1", "e2")
    lookup = node("Gather", ["E", "token"], ["x"])
    constants = weights(V=(N, N), U=(N, N), E=(7, N))
    ends = {"token": (I64, [1]), "s1": ROW, "s2": ROW}, {"e2": ROW, "e1": ROW, "x": ROW}
    assert pairs(model_of([lookup, *nodes], *ends, constants)) == {"s1": "e1", "s2": "e2"}


def test_an_average_of_data_is_state_by_its_names():
    """A name for data makes no doubt about an average whose names pair."""
    nodes = [
        node("Mul", ["spectrum", "half"], ["old"]),
        node("Mul", ["x", "half"], ["new"]),
        node("Add", ["old", "new"], ["spectrum_out"]),
        node("Relu", ["spectrum_out"], ["y"]),
    ]
    model = model_of(nodes, {"x": ROW, "spectrum": ROW}, {"y": ROW, "spectrum_out": ROW}, C)
    assert pairs(model) == {"spectrum": "spectrum_out"}
