"""Value numbers: equal computations have equal numbers, however often they are traced, loaded or unpickled.

The number of a result is a digest of the primitive, its parameters, and the numbers of the operands. Names of
variables, derivative rules, unread results, and the order of equations without effects do not matter. The number of an
equation with an effect also depends on all effects before.

A `Numbering` is an evaluator of programs whose values are numbers. A subclass that knows more finds more equal
computations. `fingerprint` is a digest of facts, among them programs, for caches and files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from jaxrnn.jaxprs.equations import Atom, evaluate, is_key, type_of
from jaxrnn.jaxprs.primitives import PRIMITIVES, entry_of

#: The address of an object in a repr, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
#: Primitives whose results differ between calls, although JAX declares no effect.
_STATEFUL = frozenset({"rng_uniform"})
#: The keys of larger arrays are kept.
_SMALL = 1 << 14
#: Nested tuples of texts, equal for equal facts.
Key = Any


def fingerprint(*facts: Any) -> str:
    """Return the SHA-256 of numbers, strings, arrays, jaxprs, and of tuples, lists, sets and dicts of such values.

    Names of variables and derivative rules do not matter. Other objects count by their repr, and functions by their
    name, except for callbacks in programs. A traced value is identified by its identity.
    """
    return digest(Numbering().key_of(facts))


def digest(key: Key) -> str:
    """Return a text that is equal for equal keys only."""
    return hashlib.sha256(repr(key).encode()).hexdigest()


@dataclass(frozen=True)
class Number:
    """A value that is computed or unknown: equal digests mean equal computations."""

    digest: str


class Numbering:
    """The numbers of the values of programs.

    Attributes:
        ignored: parameters of equations that do not count.
    """

    ignored: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[Any, Key]] = {}  # large arrays with their keys, by identity
        self._depth = 0  # the number of programs around
        self._past = ""  # a digest of the effects so far

    def key_of(self, value: Any) -> Key:
        """Return the key of a number, an array, a program, or other facts."""
        if isinstance(value, Number):
            return "number", value.digest
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            return self.program(value)
        if isinstance(value, Tracer):
            return "traced", id(value)
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return self._array(value)
        if isinstance(value, Mapping):
            entries = [(str(key), self.key_of(entry)) for key, entry in value.items()]
            return "mapping", tuple(sorted(entries, key=lambda entry: entry[0]))
        if isinstance(value, (set, frozenset)):  # the order of its elements differs between processes
            return "set", tuple(sorted(map(str, value)))
        if isinstance(value, (tuple, list)):
            return tuple(map(self.key_of, value))
        if isinstance(value, np.dtype):  # equal types can have different representations
            value = jnp.dtype(value.name)
        named = callable(value) and hasattr(value, "__qualname__")
        shown = f"{value.__module__}.{value.__qualname__}" if named else _ADDRESS.sub("", repr(value))
        return f"{type(value).__name__} {shown}"

    def _array(self, value: Any) -> Key:
        if (known := self._arrays.get(id(value))) is not None:
            return known[1]
        is_random = isinstance(value, jax.Array) and is_key(value.dtype)
        array = np.asarray(jax.random.key_data(value) if is_random else value)
        if array.dtype.kind in "OT":
            content = self.key_of(array.ravel().tolist())
        else:
            in_order = array.astype(array.dtype.newbyteorder("="), copy=False)
            content = hashlib.sha256(in_order.tobytes()).hexdigest()
        key = "array", str(value.dtype) if is_random else array.dtype.name, array.shape, content
        if array.size > _SMALL:
            self._arrays[id(value)] = value, key
        return key

    def program(self, program: Any) -> Key:
        """Return the key of a program of unknown inputs."""
        inputs = self.unknown("input", getattr(program, "jaxpr", program).invars)
        return self.key_of(inputs), self.body(program, inputs)

    def body(self, program: Any, inputs: Sequence[Any]) -> Key:
        """Return the key of a program on these inputs; without the values of its constants, these are unknown too."""
        jaxpr = getattr(program, "jaxpr", program)
        constants = getattr(program, "consts", ()) or self.unknown("constant", jaxpr.constvars)
        past, self._past, self._depth = self._past, "", self._depth + 1
        try:
            results = evaluate(ClosedJaxpr(jaxpr, constants), inputs, self.apply)
            return self.key_of([*map(typed, jaxpr.outvars, results)]), self._past
        finally:
            self._past, self._depth = past, self._depth - 1

    def unknown(self, kind: str, variables: Sequence[Any]) -> list[Any]:
        """Return unknown values of a program; programs inside of each other have different values."""
        return [self.make((kind, self._depth, place), each) for place, each in enumerate(variables)]

    def apply(self, equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of an equation."""
        keys = tuple(self.key_of(typed(*pair)) for pair in zip(equation.invars, operands, strict=True))
        return self.made(equation, (equation.primitive.name, self.key_of(self.parameters(equation)), keys))

    def parameters(self, equation: JaxprEqn) -> dict[str, Any]:
        """Return the parameters of an equation that count.

        Functions in parameters count by their name, because a jaxpr beside them says what they compute. A callback, or
        a primitive without an entry in the table, may call the function: then the function counts by its identity.
        """
        params = {key: value for key, value in equation.params.items() if key not in self.ignored}
        may_call = equation.primitive.name not in PRIMITIVES or entry_of(equation).kind == "callback"
        return {**params, "identity": digest(repr(params))} if may_call else params

    def made(self, equation: JaxprEqn, key: Key) -> list[Any]:
        """Return the results of an equation with this key."""
        if equation.effects or equation.primitive.name in _STATEFUL:
            key = self._past = digest((key, self._past))
        key = digest(key)
        return [self.make((key, place), each) for place, each in enumerate(equation.outvars)]

    def make(self, key: Key, variable: Any) -> Any:
        """Return the value of a variable with this key."""
        return Number(digest((key, str(variable.aval))))


def typed(atom: Atom, value: Any) -> Any:
    """Return the value of a literal as an array of its type, and other values unchanged."""
    return np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else value
