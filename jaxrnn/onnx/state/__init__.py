"""What a model's state is: found by following every element of every value through the graph.

`provenance` says how an element came from an input, `dataflow` follows the elements, `evidence` and `pairing` decide
which output carries which input's updated value, and `find` tells the result in words.
"""

from jaxrnn.onnx.state.find import StateVar, agree, find_state

__all__ = ["StateVar", "agree", "find_state"]
