"""The state of a model, found by following elements through the model.

`sizes` solves the equations between open dimensions, traces the graph as a jaxpr with numbers that fit, and follows
elements (`jaxrnn.jaxprs.following`). `pairing` decides which output carries the updated value of an input, by the
flow and by `names`, and `dresses` finds updated values that leave in another shape or type. `find` assembles the result
with reasons, checks declared pairs, and reads the state that exported files declare.
"""

from jaxrnn.onnx.state.find import (
    FoundState,
    StateSearch,
    StateVar,
    agree,
    are_plain,
    check_pairs,
    open_sizes,
    read_facts,
    stated_state,
)

__all__ = [
    "FoundState",
    "StateSearch",
    "StateVar",
    "agree",
    "are_plain",
    "check_pairs",
    "open_sizes",
    "read_facts",
    "stated_state",
]
