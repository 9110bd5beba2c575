"""What a model's state is: found by following every element of every value through the graph.

`provenance` says how an element came from an input, `dataflow` follows the elements, `evidence` and `pairing` decide
which output carries which input's updated value, `find` tells the result in words, and `declared` checks what a
caller names instead.
"""

from jaxrnn.onnx.state.declared import check_pairs
from jaxrnn.onnx.state.find import Findings, StateVar, find_state, open_sizes

__all__ = ["Findings", "StateVar", "check_pairs", "find_state", "open_sizes"]
