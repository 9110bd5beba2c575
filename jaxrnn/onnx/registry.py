"""Registration of ONNX operators: a function for each version, and the facts that other parts of jaxrnn read.

The signature of the function is the schema. Positional parameters are the inputs of the operator, in order (``None``
for an absent optional input, ``*name`` for variadic inputs). Keyword-only parameters are the attributes, with
ONNX's names and defaults; an attribute without a default is required. Two annotations mark inputs:

- ``Static``: the value is needed while tracing; the function receives a NumPy array.
- ``Foldable``: a constant in this place is a number of the formula (an exponent, a bound) and not a parameter of the
  model.

A function returns the output, or a list of several outputs; a tuple is a value of ONNX's sequence type. Two
keyword-only parameters are not attributes: ``output_count`` receives the number of outputs that the node names, and
``output_name`` the name of the first output, which identifies the node.

A family of operators is a table ``OPERATORS`` of `since` entries. The facts (`Traits`) are arguments of `since`:
parameters, time loops, limits, state and lowering read these facts. No other module lists names of operators::

    OPERATORS = {"my.domain::LeakyIntegrator": since(leaky_integrator, 1, carries={"h": (1, 1)})}
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import onnx

STATIC = "static"
FOLDABLE = "foldable"
Static = Annotated[np.ndarray, STATIC]
Foldable = Annotated[Any, FOLDABLE]

OUTPUT_COUNT = "output_count"
OUTPUT_NAME = "output_name"
REQUIRED = inspect.Parameter.empty

#: The largest opset number that ONNX's functions accept; a file may hold a larger number.
_NEWEST = 2**31 - 1

Function = TypeVar("Function", bound=Callable[..., Any])


class Movement(enum.Enum):
    """The way in which an operator moves elements without computing."""

    #: Each element of the first input appears once.
    REARRANGES = "rearranges"
    #: Like `REARRANGES`, with a different element type.
    CASTS = "casts"
    #: Elements of the first input, at most as many as the product of the sizes of all inputs.
    PICKS = "picks"
    #: Elements of the first input, any number of times.
    REPEATS = "repeats"
    #: The elements of all inputs.
    JOINS = "joins"


@dataclass(frozen=True)
class Carries:
    """The state that an operator carries from step to step."""

    #: For each name, the input with the old value and the output with the new value. Empty for `BODY`.
    states: Mapping[str, tuple[int, int]]
    time_axis: int | None = None  # of the first input; None if a call is a single step
    #: True if the function declares its carries with `jaxprs.primitives.visible`, because the carries depend on
    #: attributes. Otherwise the evaluator declares the carries.
    by_function: bool = False
    weights: tuple[int, ...] = ()  # the inputs with weights
    features: tuple[int, int] | None = None  # an input, and the axis of the features of a frame
    hidden: tuple[int, int] | None = None  # an input, and the axis of the hidden units of a cell


#: The carries of Scan and Loop, which the graph attribute ``body`` determines.
BODY = Carries({}, by_function=True)

#: Two sizes that must be equal.
Pair = tuple[int, int]
#: A rule of `Traits.equal_sizes`: attributes, shapes or known values of the inputs (None if neither is known), and the
#: numbers that represent open dimensions.
SizeRule = Callable[[Mapping[str, Any], Sequence[Any], typing.Collection[int]], Iterable[Pair]]


@dataclass(frozen=True)
class Traits:
    """Facts about all versions of an operator.

    Attributes:
        moves: how the operator moves elements, or None if it computes.
        elementwise: whether each element of the result depends on a single element of each input, after broadcasting.
        bounded: whether a result has at most as many elements as the product of the sizes of all inputs, for all values
            of inputs and attributes. `moves` and `elementwise` often imply this fact.
        most: returns a bound of the number of elements of the result, from inputs whose values are known.
        of_shape: whether the result depends on the shapes of the inputs, and not on their values.
        random: whether equal inputs may give different results.
        linear: "all" if the result is linear in all inputs together, "each" if linear in each input.
        compares: the comparison of the two inputs: ``"="``, ``"<"``, ``"<="``, ``">"`` or ``">="``.
        selects: whether each result is an element of an input, or 0, chosen by a condition or a position.
        reads: how the operator reads frames of its first input by position: ``"indices"`` along ``axis``, ``"range"``
            with starts and ends, or ``"element"`` of a sequence.
        of_places: whether static inputs may be sums of traced integers and known numbers (`symbols.Place`).
        statistics: the inputs with running statistics, which are parameters that training does not change.
        carries: the state that the operator carries from step to step.
        equal_sizes: yields pairs of sizes that the operator needs to be equal; None if sizes broadcast.
        check: raises ValueError if the declared shapes of weights, by input name, do not fit each other and the
            attributes. Called when a file is loaded.
    """

    moves: Movement | None = None
    elementwise: bool = False
    bounded: bool = False
    most: Callable[..., float] | None = None
    of_shape: bool = False
    random: bool = False
    linear: str = ""
    compares: str = ""
    selects: bool = False
    reads: str = ""
    of_places: bool = False
    statistics: tuple[int, ...] = ()
    carries: Carries | None = None
    equal_sizes: SizeRule | None = None
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], object] | None = None

    @property
    def moves_first(self) -> bool:
        """Return True if all elements of the result come from the first input, perhaps cast."""
        return self.moves not in (None, Movement.JOINS)

    @property
    def is_bounded(self) -> bool:
        """Return True if `bounded` is stated or follows from other facts."""
        return self.bounded or self.elementwise or self.moves not in (None, Movement.REPEATS)

    def __or__(self, other: Traits) -> Traits:
        stated = {name: value for name, value in vars(self).items() if value != getattr(_NO_TRAITS, name)}
        for name, value in stated.items():
            assert getattr(other, name) in (value, getattr(_NO_TRAITS, name)), f"two entries disagree on {name}"
        return dataclasses.replace(other, **stated)


_NO_TRAITS = Traits()


class Versions(dict[int, Callable[..., Any]]):
    """The functions of an operator by opset version, and the operator's traits."""

    def __init__(self, functions: Mapping[int, Callable[..., Any]], traits: Traits = _NO_TRAITS):
        super().__init__(functions)
        self.traits = traits

    def __or__(self, other: Any) -> Versions:
        return Versions({**self, **other}, self.traits | getattr(other, "traits", _NO_TRAITS))


def since(
    function: Callable[..., Any],
    *versions: int,
    carries: Carries | Mapping[str, tuple[int, int]] | None = None,
    **traits: Any,
) -> Versions:
    """Register a function for the opset versions that define an operator as the function computes it.

    Join the entries of several functions by ``|``. Traits are stated in a single entry and apply to all versions.

    Args:
        function: the operator.
        versions: the versions.
        carries: for each state variable, the input with the old value and the output with the new value; or `Carries`.
        traits: other fields of `Traits`.
    """
    state = Carries(dict(carries)) if isinstance(carries, Mapping) else carries
    return Versions(dict.fromkeys(versions, function), Traits(carries=state, **traits))


#: `since` for operators on elements, and for operators that are `Traits.bounded`.
elementwise, bounded = functools.partial(since, elementwise=True), functools.partial(since, bounded=True)


def schema_of(domain: str, name: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return ONNX's definition of an operator in an opset, or None."""
    try:
        return onnx.defs.get_schema(name, min(max(opset, 0), _NEWEST), domain)
    except onnx.defs.SchemaError:
        return None


@dataclass(frozen=True)
class InputSlot:
    """A declared input of an operator."""

    name: str
    static: bool
    foldable: bool
    required: bool


@dataclass(frozen=True)
class Operator:
    """A version of an operator: the function, the schema read from the signature, and the traits.

    ``own`` is True for an operator that the caller passed to `jaxrnn.load`.
    """

    name: str
    domain: str
    since: int
    function: Callable[..., Any]
    slots: tuple[InputSlot, ...]
    variadic: InputSlot | None
    attributes: Mapping[str, Any]
    wants_output_count: bool
    wants_output_name: bool
    traits: Traits = _NO_TRAITS
    own: bool = False

    def slot(self, index: int) -> InputSlot | None:
        """Return the declared input at this position, or None if the operator takes fewer inputs."""
        return self.slots[index] if index < len(self.slots) else self.variadic

    @functools.cached_property
    def schema(self) -> onnx.defs.OpSchema | None:
        """Return ONNX's definition of the operator, or None."""
        return schema_of(self.domain, self.name, self.since)

    def __str__(self) -> str:
        return f"{self.domain + '::' if self.domain else ''}{self.name}-{self.since}"


@functools.cache
def read_signature(
    function: Callable[..., Any],
) -> tuple[tuple[InputSlot, ...], InputSlot | None, dict[str, Any], bool, bool]:
    """Return slots, variadic slot, attributes with defaults, and whether the function takes output count and name."""
    inner = function.func if isinstance(function, functools.partial) else function
    hints = typing.get_type_hints(inner, include_extras=True)
    slots, variadic, attributes, of_outputs = [], None, {}, set()
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        own = getattr(hint, "__metadata__", ())
        marks = own or tuple(mark for part in typing.get_args(hint) for mark in getattr(part, "__metadata__", ()))
        slot = InputSlot(parameter.name, STATIC in marks, FOLDABLE in marks, parameter.default is REQUIRED)
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = slot
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            slots.append(slot)
        elif parameter.name in (OUTPUT_COUNT, OUTPUT_NAME):
            of_outputs.add(parameter.name)
        else:
            attributes[parameter.name] = parameter.default
    return tuple(slots), variadic, attributes, OUTPUT_COUNT in of_outputs, OUTPUT_NAME in of_outputs


def operator(name: str, domain: str, version: int, versions: Versions, *, own: bool = False) -> Operator:
    """Return a version of a registered operator."""
    function = versions[version]
    return Operator(name, domain, version, function, *read_signature(function), versions.traits, own)


def earlier(function: Callable[..., Any], *absent: str, **fixed: Any) -> Callable[..., Any]:
    """Return an earlier version of an operator, without some inputs and attributes."""
    signature = inspect.signature(function)
    assert {*absent, *fixed} <= signature.parameters.keys()
    parameters = [each for each in signature.parameters.values() if each.name not in {*absent, *fixed}]
    version = functools.partial(function, **fixed)
    version.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return version


def as_attributes(function: Callable[..., Any], *names: str, **defaults: int) -> Callable[..., Any]:
    """Return an earlier version of an operator, with integer attributes in place of some inputs."""
    signature = inspect.signature(function)
    moved = {name: signature.parameters[name].default for name in names} | defaults

    @functools.wraps(function)
    def version(*inputs: Any, **attributes: Any) -> Any:
        values = {name: attributes.pop(name, default) for name, default in moved.items()}
        arrays = {name: None if value is None else np.asarray(value, np.int64) for name, value in values.items()}
        return function(*inputs, **arrays, **attributes)

    kept = [each for each in signature.parameters.values() if each.name not in moved]
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=moved[name]) for name in moved]
    version.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    return version


def inherits(source: Callable[..., Any], *names: str) -> Callable[[Function], Function]:
    """Return a decorator for an operator that passes its ``**attributes`` on to ``source``.

    The decorator adds the keyword-only parameters of ``source`` to the schema of the operator, or only ``names``.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        inherited = [
            each
            for each in inspect.signature(source).parameters.values()
            if each.kind is each.KEYWORD_ONLY and (each.name in names or not names)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *inherited])  # type: ignore[attr-defined]
        return function

    return decorate
