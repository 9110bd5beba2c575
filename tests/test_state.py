"""The state tables of real models, internal state, declared pairs, and errors."""

from __future__ import annotations

import json

import jax
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper
from refusals import check_refused
from small_models import graph_of, layers_model
from state_graphs import (
    BOOL,
    F32,
    I64,
    ONE,
    C,
    N,
    check_asked,
    gru,
    internal,
    model_of,
    node,
    pairs,
    step_of_two_lstms,
    weights,
)
from tiers import in_later_tier, of_tiers

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.model.inspection import inspect_model

LSTM_16 = "If_0_then_branch__Inline_0__/decoder/rnn/LSTM"
LSTM_8 = "If_0_else_branch__Inline_0__/decoder/rnn/LSTM"
ADDED = "model_2/lstm_{}/add_1", "model_2/lstm_{}/mul_2"
EXTERNAL = {
    "dtln_1": ({}, {"input_3": ("tf_op_layer_stack_2", "lstm_4, lstm_5", (1, 2, 128, 2))}),
    "dtln_2": (
        {},
        {
            "input_5": (
                "tf_op_layer_stack_5",
                ", ".join(name.format(layer) for layer in (6, 7) for name in ADDED),
                (1, 2, 128, 2),
            )
        },
    ),
    "silero_vad_16k_op15": ({}, {"state": ("stateN", "/model/decoder/rnn/LSTM", (2, "batch", 128))}),
    "silero_vad": ({}, {"state": ("stateN", f"{LSTM_16}, {LSTM_8}", (2, "input_dim_0", 128))}),
    "gtcrn": (
        {},
        {
            "conv_cache": (
                "conv_cache_out",
                "Concat_141, Concat_331, Concat_521, Concat_1097, Concat_1334, Concat_1571",
                (2, 1, 16, 16, 33),
            ),
            "tra_cache": ("tra_cache_out", "GRU_153, GRU_343, GRU_533, GRU_1111, GRU_1348, GRU_1585", (2, 3, 1, 1, 16)),
            "inter_cache": ("inter_cache_out", "GRU_780, GRU_784, GRU_957, GRU_961", (2, 1, 33, 16)),
        },
    ),
    "predictor_net": (
        {},
        {
            "h": ("h_out", "node_LSTM_56, node_LSTM_117", (2, "batch", 96)),
            "c": ("c_out", "node_LSTM_56, node_LSTM_117", (2, "batch", 96)),
        },
    ),
}
#: Variants of a network that has a case without them.
LATER = ("silero_vad_16k_op15, sr=16000", "silero_vad, sr=16000", "silero_vad, sr=8000", "silero_vad_16k_op15")
EXTERNAL |= {
    "silero_vad_16k_op15, sr=16000": ({"sr": 16000}, EXTERNAL["silero_vad_16k_op15"][1]),
    "silero_vad, sr=16000": ({"sr": 16000}, {"state": ("stateN", LSTM_16, (2, "input_dim_0", 128))}),
    "silero_vad, sr=8000": ({"sr": 8000}, {"state": ("stateN", LSTM_8, (2, "input_dim_0", 128))}),
}
INTERNAL = {
    "filter_net": {
        f"/{name}.h": (1, 1, 64) for name in ("gru/GRU", "gru_b/GRU", "gru_b/GRU_1", "gru_s/GRU", "gru_s/GRU_1")
    },
    "dual_path_net": {f"/inter.{block}/GRU.h": (1, 33, 12) for block in (0, 1)},
    "keyword_net": {f"/lstm/{name}.{slot}": (1, 1, 48) for name in ("LSTM", "LSTM_1") for slot in "hc"},
    "wave_net": {"/gru/GRU.h": (1, 1, 64)},
    "ocr_net": {
        f"/lstm/{name}.{slot}{end}": (1, "batch", 32)
        for name in ("LSTM", "LSTM_1")
        for slot in "hc"
        for end in ("", "_reverse")
    },
}


@pytest.mark.parametrize("name", of_tiers(EXTERNAL, {*EXTERNAL} - {*LATER}, LATER[1:2]))
def test_external_state_of_real_models(models, name):
    static, expected = EXTERNAL[name]
    model = jaxrnn.load(models / f"{name.split(',')[0]}.onnx", static=static)
    found = {v.name: (v.output, v.node, v.shape) for v in model.state}
    assert found == expected
    for variable in model.state:
        assert variable.kind == "external"
        assert variable.input == variable.name
        assert variable.dtype == np.float32
        assert variable.input in variable.reason
        assert variable.output in variable.reason


@pytest.mark.parametrize("name", in_later_tier(INTERNAL, ["filter_net", "ocr_net", "dual_path_net"]))
def test_internal_state_of_real_models(models, name):
    model = jaxrnn.load(models / f"{name}.onnx")
    assert internal(model) == INTERNAL[name]
    for variable in model.state:
        assert variable.node == variable.name.rpartition(".")[0]
        assert variable.dtype == np.float32
        assert "starts from a constant at every call" in variable.reason
        assert ("runs backwards" in variable.reason) == variable.name.endswith("_reverse")


def test_internal_state_names_the_batch():
    model = jaxrnn.load(layers_model())
    assert internal(model) == {"lstm.h": (1, "batch", 5), "lstm.c": (1, "batch", 5)}
    reasons = {variable.name: variable.reason for variable in model.state}
    assert "becomes only the output 'Y_h', which no input takes back" in reasons["lstm.h"]
    assert "becomes no output" in reasons["lstm.c"]


def test_state_is_found_while_tracing():
    model = step_of_two_lstms()
    traced = jax.make_jaxpr(lambda x: (pairs(model), x)[1])(1.0)
    assert len(traced.eqns) == 0


@pytest.mark.parametrize("steps", ["S", 1, 7])
def test_wired_but_unseen_is_internal(steps):
    """GRU with initial_h and Y_h wired, to a constant and to a head that no caller can take a state from."""
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "one"], ["batch"]),
        node("Concat", ["one", "batch", "hidden"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["h0"]),
        gru("gru", "x", "h0", "Y", "Y_h"),
        node("MatMul", ["Y_h", "V"], ["summary"]),
        node("Squeeze", ["Y", "one"], ["y"]),
    ]
    constants = C | {"hidden": np.array([N])}
    model = model_of(nodes, {"x": [steps, 1, N]}, {"y": [steps, 1, N], "summary": [1, 1, N]}, constants)
    assert internal(model) == {"gru.h": (1, 1, N)}
    (variable,) = model.state
    assert "constant" in variable.reason
    assert "becomes no output" in variable.reason


def test_backwards_is_forgotten():
    """No later call can continue what runs backwards, over time; every direction begins anew at each call."""
    for direction, count in (("reverse", 1), ("bidirectional", 2)):
        constants = weights(W=(count, 3 * N, N), R=(count, 3 * N, N))
        cell = node("GRU", ["x", "W", "R"], ["Y", "Y_h"], name="gru", hidden_size=N, direction=direction)
        outputs = {"Y": ["S", count, 1, N], "Y_h": [count, 1, N]}
        model = model_of([cell], {"x": ["S", 1, N]}, outputs, constants)
        assert (
            internal(model)
            == {
                "reverse": {"gru.h": (1, 1, N)},
                "bidirectional": {"gru.h": (1, 1, N), "gru.h_reverse": (1, 1, N)},
            }[direction]
        )
        assert "runs backwards from the last frame" in model.state[-1].reason


def test_recurrences_inside_a_frame():
    """Beside a recurrence over single steps, a longer one runs over another axis; beside one over S, a fixed one."""
    nodes = [
        gru("bands", "x", "", "Y"),
        node("ReduceMean", ["Y"], ["frame"], axes=[0], keepdims=0),
        gru("time", "frame", "h", "", "h_out"),
    ]
    step = model_of(nodes, {"x": [9, 1, N], "h": ONE}, {"h_out": ONE}, C)
    assert pairs(step) == {"h": "h_out"}
    nodes = [
        node("Transpose", ["x"], ["frames"], perm=[1, 0, 2]),
        gru("bands", "frames", "", "Y"),
        node("Squeeze", ["Y", "one"], ["y"]),
        node("Transpose", ["y"], ["back"], perm=[1, 0, 2]),
        gru("time", "back", "", "", "end"),
    ]
    whole = model_of(nodes, {"x": ["S", 9, N]}, {"end": [1, 9, N]}, C)
    assert internal(whole) == {"time.h": (1, 9, N)}


def scan_body(update="Add"):
    nodes = [node(update, ["s", "f"], ["s2"]), node("Identity", ["s2"], ["o"]), node("Identity", ["k"], ["k2"])]
    ends = ({name: [N] for name in names} for names in (("s", "k", "f"), ("s2", "k2", "o")))
    return graph_of(nodes, *ends, name="body")


def test_scan():
    """A Scan's carry; what it only hands on is none."""
    scan = node(
        "Scan", ["s_in", "k_in", "x"], ["s_end", "k_end", "y"], name="scan", body=scan_body(), num_scan_inputs=1
    )
    outputs = {"s_end": [N], "y": ["S", N]}
    assert pairs(model_of([scan], {"s_in": [N], "k_in": [N], "x": ["S", N]}, outputs)) == {"s_in": "s_end"}
    constants = {"s_in": np.zeros(N, np.float32), "k_in": np.zeros(N, np.float32)}
    model = model_of([scan], {"x": ["S", N]}, outputs, constants)
    assert internal(model) == {"scan.s": (N,)}
    scan.attribute.append(helper.make_attribute("scan_input_directions", [1]))
    (variable,) = model_of([scan], {"x": ["S", N]}, outputs, constants).state
    assert "runs backwards from the last frame" in variable.reason


def loop_model(first, constants=()):
    body = graph_of(
        [
            node("Gather", ["x", "i"], ["frame"]),
            node("Mul", ["s", "half"], ["decayed"]),
            node("Add", ["decayed", "frame"], ["s2"]),
            node("Identity", ["go"], ["go2"]),
            node("Identity", ["s2"], ["o"]),
        ],
        {"i": (I64, []), "go": (BOOL, []), "s": [N]},
        {"go2": (BOOL, []), "s2": [N], "o": [N]},
    )
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "zero0"], ["steps"]),
        node("Loop", ["steps", "", first], ["s_end", "y"], name="loop", body=body),
    ]
    inputs = {"x": ["S", N]} | ({} if first in dict(constants) else {first: [N]})
    fixed = {"half": np.float32(0.5), "zero0": np.array(0)} | dict(constants)
    return model_of(nodes, inputs, {"s_end": [N], "y": ["S", N]}, fixed)


def test_loop():
    assert pairs(loop_model("s_in")) == {"s_in": "s_end"}
    assert internal(loop_model("s0", {"s0": np.zeros(N, np.float32)})) == {"loop.s": (N,)}


#: Inputs and outputs of a recurrence whose final value comes out under two names.
TWICE = {"x": ONE, "h": ONE}, {"p": ONE, "q": ONE}, C


def test_declared_pairs_win():
    model = step_of_two_lstms(state={"a": "q", "b": "p"})
    assert pairs(model) == {"a": "q", "b": "p", "c": "r", "d": "s"}
    assert "declared" in next(variable.reason for variable in model.state if variable.name == "a")
    nodes = [gru("gru", "x", "h", "", "p"), node("Identity", ["p"], ["q"])]
    check_asked("ambiguous", model_of(nodes, *TWICE))
    assert pairs(model_of(nodes, *TWICE, load={"state": {"h": "q"}})) == {"h": "q"}


def test_declared_pairs_are_checked():
    check_refused(jaxrnn.InputError, "pairs go from an input", step_of_two_lstms, state={"a": "nothing"})
    nodes = [gru("gru", "x", "h", "Y", "end"), node("Concat", ["end", "end"], ["both"], axis=0)]
    ends = {"x": ONE, "h": ONE}, {"both": [2, 1, N], "end": ONE}, C
    check_refused(jaxrnn.InputError, "differ in shape", model_of, nodes, *ends, load={"state": {"h": "both"}})
    check_refused(jaxrnn.InputError, "one output", model_of, nodes, *ends, load={"state": {"h": "end", "x": "end"}})


def test_shapes_that_depend_on_data():
    """A recurrence whose shapes nobody knows before the data comes cannot be told, and says so."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Transpose", ["places"], ["rows"]),
        node("Cast", ["rows"], ["frames"], to=F32),
        node("Unsqueeze", ["frames", "one"], ["sequence"]),
        node("GRU", ["sequence", "W1", "R"], ["Y"], name="gru", hidden_size=N),
    ]
    constants = C | weights(W1=(1, 3 * N, 1))
    model = model_of(nodes, {"x": [9]}, {"Y": ["k", 1, 1, N]}, constants)
    check_asked(r"'gru'.*'places' fails.*depends on data.*static=", model)


def test_inspection_shows_the_state(models, tmp_path):
    """As a table or as JSON; a model whose state is ambiguous can be inspected all the same."""
    runner = CliRunner()
    path = str(models / "dtln_1.onnx")
    text = runner.invoke(main, ["inspect", path]).output
    assert "input_3   external   tf_op_layer_stack_2   [1, 2, 128, 2]   float32\n" in text
    (found,) = json.loads(runner.invoke(main, ["inspect", path, "--json"]).output)["state"]
    assert found["reason"] in " ".join(text.split())
    assert found.keys() == {"name", "kind", "input", "output", "node", "shape", "dtype", "reason"}
    assert found["shape"] == [1, 2, 128, 2]
    assert found["dtype"] == "float32"
    ambiguous = model_of([gru("gru", "x", "h", "", "p"), node("Identity", ["p"], ["q"])], *TWICE)
    inspected = inspect_model(ambiguous.proto)
    assert inspected.problem is None
    assert inspected.state == ()
    assert "state={'h': 'p'}" in inspected.state_problem
    onnx.save(ambiguous.proto, tmp_path / "model.onnx")
    text = runner.invoke(main, ["inspect", str(tmp_path / "model.onnx")]).output
    assert "State: ambiguous" in text
    assert "'h' -> 'p', 'h' -> 'q'" in " ".join(text.split())
