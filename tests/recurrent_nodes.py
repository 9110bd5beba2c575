"""Models of one recurrent node, with every feature of the specification drawn at random."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper
from recurrent_reference import DEFAULTS, ROWS

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
