"""A Loop over time as a scan: counters become trip numbers, reads at a counter scanned inputs, growing values outputs.

Converters write recurrent layers as Loops. `body` sorts what such a loop carries, `positions` computes its counters in
any trip, `trips` solves its condition for the number of trips, `reads` finds the frames that it reads, `hoisting` moves
reads out of subgraphs, and `walk` runs the scan.
"""

from jaxrnn.onnx.time_loops.body import LoopBody
from jaxrnn.onnx.time_loops.walk import CarryTypeError, TimeLoop

__all__ = ["CarryTypeError", "LoopBody", "TimeLoop"]
