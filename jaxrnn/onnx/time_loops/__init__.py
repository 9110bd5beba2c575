"""A Loop that walks time, as a scan: counters become trip numbers, reads at the counter scanned inputs, growth outputs.

Converters write recurrent layers as Loops. `body` sorts what such a loop carries, `positions` knows where its counters
are in a trip, `trips` solves its condition for their number, `reads` finds the frames that it takes, `walk` runs it.
"""

from jaxrnn.onnx.time_loops.body import LoopBody
from jaxrnn.onnx.time_loops.walk import CarryTypeError, TimeLoop

__all__ = ["CarryTypeError", "LoopBody", "TimeLoop"]
