"""Conversion of a Loop over time to a scan: positions become known, reads become scanned inputs.

Converters write recurrent layers as Loops. `body` sorts the carried values of such a loop, computes the counters in
any trip and solves the condition for the number of trips. `walk` turns reads of frames into scanned inputs and runs the
scan.
"""

from jaxrnn.onnx.time_loops.body import LoopBody
from jaxrnn.onnx.time_loops.walk import CarryTypeError, TimeLoop

__all__ = ["CarryTypeError", "LoopBody", "TimeLoop"]
