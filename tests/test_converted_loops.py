"""A Loop as tf2onnx writes it, with an open batch, sizes in 32 bits, a mask, and one zero for all of its purposes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

import jaxrnn

#: The zero is compared with the length, fills the first state, and takes the places of masked frames.
LOOP = """
<ir_version: 8, opset_import: ["" : 15], producer_name: "tf2onnx">
converted (float[unk__1,unk__2,3] x) => (float[unk__3,unk__4,4] y)
<float const_fold_opt__9 = {0}, int32 first = {0}, int32 one = {1}, bool true = {1}, int64[1] at_0 = {0},
 int64[1] at_1 = {1}, int64[1] at_2 = {2}, int32[1] hidden = {4}> {
  unmasked = Greater (x, const_fold_opt__9)
  numbers = Cast <to = 1> (unmasked)
  kept = Mul (numbers, x)
  absent = Not (unmasked)
  places = Cast <to = 1> (absent)
  filled = Mul (const_fold_opt__9, places)
  rectified = Add (kept, filled)
  frames = Transpose <perm = [1, 0, 2]> (rectified)
  sizes = Shape (frames)
  sizes_32 = Cast <to = 6> (sizes)
  length_1 = Slice (sizes_32, at_0, at_1, at_0)
  length = Squeeze (length_1, at_0)
  length_float = Cast <to = 1> (length)
  some = Less (const_fold_opt__9, length_float)
  going = And (some, true)
  trips = Cast <to = 7> (length)
  batch_size = Slice (sizes_32, at_1, at_2, at_0)
  state_shape_32 = Concat <axis = 0> (batch_size, hidden)
  state_shape = Cast <to = 7> (state_shape_32)
  zeros = Expand (const_fold_opt__9, state_shape)
  ["while_loop"] place_last, h_last, outputs = Loop (trips, going, first, zeros) <body = body (
      int64 trip, bool condition, int32 place, float[n,4] h
    ) => (bool go_on, int32 next_place, float[n,4] h_next, float[n,4] h_out) {
      frame = Gather (frames, place)
      by_frame = MatMul (frame, W)
      by_state = MatMul (h, R)
      sum = Add (by_frame, by_state)
      h_next = Tanh (sum)
      h_out = Identity (h_next)
      next_place = Add (place, one)
      place_float = Cast <to = 1> (next_place)
      go_on = Less (place_float, length_float)
  }>
  y = Transpose <perm = [1, 0, 2]> (outputs)
}"""


def test_an_open_batch_and_merged_zeros():
    rng = np.random.default_rng(0)
    weights = {
        "W": (0.3 * rng.standard_normal((3, 4))).astype("f"),
        "R": (0.3 * rng.standard_normal((4, 4))).astype("f"),
    }
    proto = onnx.parser.parse_model(LOOP)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    model = jaxrnn.load(proto)
    assert set(model.params) == set(weights)
    (variable,) = model.state
    assert (variable.kind, variable.shape) == ("internal", ("unk__1", 4))

    x = rng.standard_normal((2, 7, 3)).astype("f")
    h, expected = np.zeros((2, 4), "f"), []
    for frame in np.maximum(x, 0).swapaxes(0, 1):
        h = np.tanh(frame @ weights["W"] + h @ weights["R"])
        expected.append(h)
    np.testing.assert_allclose(model.apply(model.params, {"x": x})["y"], np.stack(expected, 1), rtol=1e-5, atol=1e-6)
    pulses = model.stream("unk__2", pulse=2).run(model.params, {"x": x[:1]})["y"]
    np.testing.assert_allclose(pulses, np.stack(expected, 1)[:1], rtol=1e-5, atol=1e-6)
