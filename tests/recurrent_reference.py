"""A float64 reference of the recurrent operators, and nodes with their features drawn by Hypothesis."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

DEFAULTS = {
    "Relu": (None, None),
    "Tanh": (None, None),
    "Sigmoid": (None, None),
    "Softsign": (None, None),
    "Softplus": (None, None),
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01, None),
    "ThresholdedRelu": (1.0, None),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, None),
}

#: In forms that do not overflow: logaddexp(0, x) is log(1 + exp(x)).
FORMULAS = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: np.exp(-np.logaddexp(0, -x)),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x >= a, x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.minimum(np.maximum(a * x + b, 0), 1),
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
}


def _functions(names, alphas, betas, clip):
    """One callable a name; coefficients are consumed in order by the functions that take them."""
    alphas, betas = list(alphas or ()), list(betas or ())
    result = []
    for name in names:
        alpha, beta = DEFAULTS[name]
        if alpha is not None and alphas:
            alpha = alphas.pop(0)
        if beta is not None and betas:
            beta = betas.pop(0)

        def function(x, formula=FORMULAS[name], alpha=alpha, beta=beta):
            if clip:
                x = np.minimum(np.maximum(x, -clip), clip)
            return formula(x, alpha, beta)

        result.append(function)
    return result


def _lstm_row(x, h, c, w, r, b, p, functions, attributes):
    f_act, g_act, h_act = functions
    n = len(h)
    i_, o_, f_, c_ = (slice(k * n, (k + 1) * n) for k in range(4))
    wb, rb = b[: 4 * n], b[4 * n :]
    pi, po, pf = p[:n], p[n : 2 * n], p[2 * n :]
    i = f_act(w[i_] @ x + r[i_] @ h + pi * c + wb[i_] + rb[i_])
    f = 1 - i if attributes.get("input_forget") else f_act(w[f_] @ x + r[f_] @ h + pf * c + wb[f_] + rb[f_])
    g = g_act(w[c_] @ x + r[c_] @ h + wb[c_] + rb[c_])
    new_c = f * c + i * g
    o = f_act(w[o_] @ x + r[o_] @ h + po * new_c + wb[o_] + rb[o_])
    return o * h_act(new_c), new_c


def _gru_row(x, h, c, w, r, b, p, functions, attributes):
    f_act, g_act = functions
    n = len(h)
    z_, r_, h_ = (slice(k * n, (k + 1) * n) for k in range(3))
    wb, rb = b[: 3 * n], b[3 * n :]
    z = f_act(w[z_] @ x + r[z_] @ h + wb[z_] + rb[z_])
    reset = f_act(w[r_] @ x + r[r_] @ h + wb[r_] + rb[r_])
    if attributes.get("linear_before_reset"):
        candidate = g_act(w[h_] @ x + reset * (r[h_] @ h + rb[h_]) + wb[h_])
    else:
        candidate = g_act(w[h_] @ x + r[h_] @ (reset * h) + rb[h_] + wb[h_])
    return (1 - z) * candidate + z * h, c


def _rnn_row(x, h, c, w, r, b, p, functions, attributes):
    n = len(h)
    return functions[0](w @ x + r @ h + b[:n] + b[n:]), c


ROWS = {"LSTM": (_lstm_row, 4, ("Sigmoid", "Tanh", "Tanh")), "GRU": (_gru_row, 3, ("Sigmoid", "Tanh")),
        "RNN": (_rnn_row, 1, ("Tanh",))}  # fmt: skip


def recurrent(operator, inputs, attributes):
    """Y, Y_h and (LSTM) Y_c of one node.

    Args:
        operator: "LSTM", "GRU" or "RNN".
        inputs: arrays by ONNX's names; absent optional ones are left out.
        attributes: ONNX's attributes.
    """
    row, gates, default = ROWS[operator]
    x, w, r = (np.asarray(inputs[name], np.float64) for name in "XWR")
    layout = attributes.get("layout", 0)
    if layout:
        x = x.transpose(1, 0, 2)
    time, batch, _ = x.shape
    directions, _, hidden = r.shape
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        attributes.get("direction", "forward")
    ]
    names = attributes.get("activations") or default * directions
    functions = _functions(
        names, attributes.get("activation_alpha"), attributes.get("activation_beta"), attributes.get("clip")
    )
    each = len(default)
    lengths = inputs.get("sequence_lens", np.full(batch, time))
    b = np.asarray(inputs.get("B", np.zeros((directions, 2 * gates * hidden))), np.float64)
    p = np.asarray(inputs.get("P", np.zeros((directions, 3 * hidden))), np.float64)

    def initial(name):
        start = np.asarray(inputs.get(name, np.zeros((directions, batch, hidden))), np.float64)
        return start.transpose(1, 0, 2) if layout and name in inputs else start

    start_h, start_c = initial("initial_h"), initial("initial_c")
    y = np.zeros((time, directions, batch, hidden))
    last_h, last_c = np.zeros((directions, batch, hidden)), np.zeros((directions, batch, hidden))
    for d in range(directions):
        acts = functions[d * each : (d + 1) * each]
        for k in range(batch):
            h, c = start_h[d, k], start_c[d, k]
            steps = range(lengths[k])
            for t in reversed(steps) if backwards[d] else steps:
                h, c = row(x[t, k], h, c, w[d], r[d], b[d], p[d], acts, attributes)
                y[t, d, k] = h
            last_h[d, k], last_c[d, k] = h, c
    if layout:
        y, last_h, last_c = y.transpose(2, 0, 1, 3), last_h.transpose(1, 0, 2), last_c.transpose(1, 0, 2)
    return [y, last_h, last_c] if operator == "LSTM" else [y, last_h]


INPUTS = {
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
}
OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}


@st.composite
def nodes(draw):
    """An operator, its input arrays in float64, its attributes, the wanted outputs and the opset."""
    operator = draw(st.sampled_from(tuple(ROWS)))
    _, gates, default = ROWS[operator]
    direction = draw(st.sampled_from(("forward", "reverse", "bidirectional")))
    directions = 2 if direction == "bidirectional" else 1
    time, batch, features, hidden = (draw(st.integers(1, high)) for high in (5, 3, 4, 4))
    attributes = {"direction": direction, "hidden_size": hidden}
    opset = draw(st.sampled_from((7, 13, 14, 21, 22, 25)))
    if opset >= 14:
        attributes["layout"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        chosen = [draw(st.sampled_from(tuple(DEFAULTS))) for _ in default * directions]
        attributes["activations"] = chosen
        small = st.floats(0.125, 0.75, width=32)
        for key, column in (("activation_alpha", 0), ("activation_beta", 1)):
            takers = sum(DEFAULTS[name][column] is not None for name in chosen)
            if takers and draw(st.booleans()):
                attributes[key] = [draw(small) for _ in range(draw(st.integers(1, takers)))]
    if draw(st.booleans()):
        attributes["clip"] = draw(st.floats(0.25, 2, width=32))
    if operator == "LSTM" and draw(st.booleans()):
        attributes["input_forget"] = 1
    if operator == "GRU" and draw(st.booleans()):
        attributes["linear_before_reset"] = 1
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    turned = attributes.get("layout", 0) == 1
    carry = (batch, directions, hidden) if turned else (directions, batch, hidden)
    shapes = {
        "X": (batch, time, features) if turned else (time, batch, features),
        "W": (directions, gates * hidden, features),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
        "initial_h": carry,
        "initial_c": carry,
        "P": (directions, 3 * hidden),
    }
    arrays = {}
    for name in INPUTS[operator]:
        if name == "sequence_lens":
            if draw(st.booleans()):
                arrays[name] = rng.integers(0, time + 1, batch).astype(np.int32)
        elif name in "XWR" or draw(st.booleans()):
            arrays[name] = rng.normal(size=shapes[name]) * 0.8
    wanted = [draw(st.booleans()) for _ in OUTPUTS[operator]]
    wanted = wanted if any(wanted) else [True] * len(wanted)
    return operator, arrays, attributes, wanted, opset


def build(operator, arrays, attributes, wanted, opset, as_inputs):
    """The node as a model: arrays named in ``as_inputs`` are graph inputs, the others initializers."""
    names = [name if name in arrays else "" for name in INPUTS[operator]]
    results = [name if keep else "" for name, keep in zip(OUTPUTS[operator], wanted, strict=True)]
    node = helper.make_node(operator, names, results, name="layer", **attributes)
    kind = lambda array: helper.np_dtype_to_tensor_dtype(array.dtype)  # noqa: E731
    float_kind = kind(arrays["X"])
    graph = helper.make_graph(
        [node],
        "one_layer",
        [helper.make_tensor_value_info(n, kind(a), a.shape) for n, a in arrays.items() if n in as_inputs],
        [helper.make_tensor_value_info(n, float_kind, None) for n in results if n],
        [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in as_inputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
