"""LSTM, GRU and RNN in float64 NumPy, written from the ONNX specification as loops: slow, plain, independent.

Gate by gate, frame by frame, row by row; nothing is shared with `jaxrnn.cells`.
"""

from __future__ import annotations

import numpy as np

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
