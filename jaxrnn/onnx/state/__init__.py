"""The state of a model, found by following every element of every value through it.

`tracing` traces the graph as a jaxpr and follows its elements (`jaxrnn.jaxprs.origins`), `sizes` and `probe` find sizes
for its open dimensions, `evidence` and `pairing` decide which output carries the updated value of which input, `find`
assembles the result with its `reasons`, and `declared` checks the pairs that a caller declares. `stated` reads what a
file that jaxrnn wrote says itself.
"""

from jaxrnn.onnx.state.find import Findings, StateVar, check_pairs, find_state, open_sizes, read_facts, stated_state

__all__ = ["Findings", "StateVar", "check_pairs", "find_state", "open_sizes", "read_facts", "stated_state"]
