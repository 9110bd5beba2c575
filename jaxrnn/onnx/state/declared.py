"""Which pairs of an input and an output may be one state variable, and the pairs that a caller declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxrnn._files.arguments import argument
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec


def agree(source: ArraySpec, target: ArraySpec) -> bool:
    """Whether an output may be the updated value of an input: equal dtypes, and no dimensions that surely differ."""
    if source.dtype is None or source.dtype != target.dtype:
        return False
    if source.shape is None or target.shape is None:
        return True
    return len(source.shape) == len(target.shape) and all(
        first == second or isinstance(first, str) or isinstance(second, str)
        for first, second in zip(source.shape, target.shape, strict=True)
    )


def check_pairs(inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec], state: Mapping[str, str]) -> dict[str, str]:
    """Check the pairs of a state input and the output with its updated value that a caller declares.

    Raises:
        InputError: there is no such input or output, the two differ, or an output is named twice.
    """
    ins, outs = {info.name: info for info in inputs}, {info.name: info for info in outputs}
    for name, updated in state.items():
        if name not in ins or updated not in outs:
            raise InputError(
                f"{argument('state', {name: updated})}: pairs go from an input ({', '.join(ins)}) "
                f"to an output ({', '.join(outs)})"
            )
        if ins[name].dtype != outs[updated].dtype:
            raise InputError(f"state: {ins[name]} and {outs[updated]} differ in dtype")
        if not agree(ins[name], outs[updated]):
            raise InputError(f"state: {ins[name]} and {outs[updated]} differ in shape")
    if len(set(state.values())) < len(state):
        raise InputError(f"{argument('state', dict(state))}: one output cannot be the updated value of two inputs")
    return dict(state)
