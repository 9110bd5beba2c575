"""State that a caller names: which output carries the updated value of which input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxrnn.errors import InputError
from jaxrnn.onnx.state.find import agree
from jaxrnn.specs import ArraySpec


def check_pairs(inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec], state: Mapping[str, str]) -> dict[str, str]:
    """Pairs of a state input and the output with its updated value, found to fit each other.

    Raises:
        InputError: there is no such input or output, the two differ, or an output is named twice.
    """
    ins, outs = {info.name: info for info in inputs}, {info.name: info for info in outputs}
    for given, updated in state.items():
        if given not in ins or updated not in outs:
            raise InputError(
                f"state={{{given!r}: {updated!r}}}: pairs go from an input ({', '.join(ins)}) "
                f"to an output ({', '.join(outs)})"
            )
        if ins[given].dtype != outs[updated].dtype:
            raise InputError(f"state: {ins[given]} and {outs[updated]} differ in dtype")
        if not agree(ins[given], outs[updated]):
            raise InputError(f"state: {ins[given]} and {outs[updated]} differ in shape")
    if len(set(state.values())) < len(state):
        raise InputError(f"state={dict(state)}: one output cannot be the updated value of two inputs")
    return dict(state)
