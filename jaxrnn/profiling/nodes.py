"""Which ONNX nodes, or scopes of a JAX function, each instruction of a compiled program came from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

from jaxrnn.profiling.costs import cost_of
from jaxrnn.profiling.hlo import Computation, HloModule, Instruction

#: JAX writes a transformation around the scope that it was applied to, such as ``vmap(lstm)``.
_WRAPPED = re.compile(r"\b(?:vmap|jvp|transpose|pmap|shard_map)\(([^()]*)\)")
_CALL = re.compile(r"^(?:jit|pjit)\(.*?\)/")
_MOVES = {"bitcast", "copy", "reshape", "transpose", "broadcast", "convert"}
#: A transcendental function takes about as long as so many additions.
_TRANSCENDENTAL = 16
#: How many readers on from an instruction without a name its node is looked for.
_FAR = 3


class Names:
    """Finds the node of an instruction by the scopes in its ``op_name``.

    Args:
        nodes: the names of a model's nodes, each of which is a scope while the model is traced; None for a function
            that is no model, whose scopes are shown as they are.
    """

    def __init__(self, nodes: Collection[str] | None):
        self._nodes = None if nodes is None else [name for name in nodes if name]
        self._known: dict[str, str | None] = {}

    def find(self, op_name: str) -> str | None:
        """The innermost node around an operation; None where there is none."""
        if op_name not in self._known:
            self._known[op_name] = self._scope(op_name) if self._nodes is None else self._node(op_name)
        return self._known[op_name]

    def _node(self, op_name: str) -> str | None:
        for path in (op_name, _unwrapped(op_name)):
            padded = f"/{path}/"
            places = [
                (place + len(name), len(name), name)
                for name in self._nodes or ()
                if (place := padded.rfind(f"/{name}/")) >= 0
            ]
            if places:
                return max(places)[2]
        return None

    @staticmethod
    def _scope(op_name: str) -> str | None:
        """The path without the function it begins with and the primitive it ends with."""
        path, _, _ = _CALL.sub("", _unwrapped(op_name)).rpartition("/")
        return path or None


def _unwrapped(op_name: str) -> str:
    before = None
    while before != op_name:
        before, op_name = op_name, _WRAPPED.sub(r"\1", op_name)
    return op_name


def shares_of(module: HloModule, computation: Computation, item: Instruction, names: Names) -> dict[str, float]:
    """The nodes that an instruction works for, each with its share of the work, which add up to 1.

    Work is estimated by the operations that the node's part of the instruction needs. An instruction that XLA made
    without saying for whom, as it does when it rewrites a product of matrices, belongs to the node that its result is
    named after where it is read, else to the nodes that read it, else to those that made its operands.
    """
    work = _work_of(module, computation, item, names) or _by_others(module, computation, item, names, _FAR)
    total = sum(work.values())
    return {name: amount / total for name, amount in work.most_common()}


def _by_others(module: HloModule, computation: Computation, item: Instruction, names: Names, far: int) -> Counter[str]:
    """Nodes of an instruction without a name, by those around it; nodes of what reads it where they have none."""
    for related in _related(module, computation, item):
        if work := Counter(name for other in related if (name := names.find(other.op_name)) is not None):
            return work
    work = Counter()
    for user in computation.users(item.name) if far else ():
        work += _work_of(module, computation, user, names) or _by_others(module, computation, user, names, far - 1)
    return work


def _work_of(module: HloModule, computation: Computation, item: Instruction, names: Names) -> Counter[str]:
    """Operations by node, of an instruction and what it calls."""
    work: Counter[str] = Counter()
    if item.opcode in ("fusion", "call", "while", "conditional"):
        for body in module.called(item):
            for part in body.instructions.values():
                if part.opcode not in ("parameter", "constant"):
                    work += _work_of(module, body, part, names)
    if not work and (name := names.find(item.op_name)) is not None:
        cost = cost_of(module, computation, item)
        work[name] = max(round(cost.flops + _TRANSCENDENTAL * cost.transcendentals), item.elements, 1)
    return work


def _related(module: HloModule, computation: Computation, item: Instruction) -> Iterator[tuple[Instruction, ...]]:
    """Instructions whose names say for whom another works, the surest first."""
    users = computation.users(item.name)
    read_as: list[Instruction] = []
    for user in users:
        bodies = module.called(user) if user.opcode == "fusion" else []
        for body in bodies[:1]:
            for index, operand in enumerate(user.operands):
                parameter = body.parameter(index) if operand == item.name else None
                read_as += body.users(parameter.name) if parameter is not None else []
    read_as += [user for user in users if user.opcode != "fusion"]
    yield tuple(reader for reader in read_as if reader.opcode in _MOVES)
    yield tuple(read_as)
    yield tuple(users)
    yield tuple(computation.instructions[name] for name in item.operands if name in computation.instructions)
