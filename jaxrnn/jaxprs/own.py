"""Primitives of jaxrnn: the platform of a program, an ONNX operator as one equation, and declared recurrences.

The index of a choice by platform (`lax.platform_dependent`) is the primitive ``platform_index``, a number that
lowering determines. An earlier evaluation would fix the program to the platform of this process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn, Literal, Primitive, Var
from jax.extend.core.primitives import cond_p, jit_p
from jax.interpreters import ad, batching, mlir

from jaxrnn._jax.context import own_arithmetic
from jaxrnn._jax.varying import platform_dependent
from jaxrnn.cells.forms import is_plain
from jaxrnn.jaxprs.equations import Atom, evaluate

#: The platforms of each branch; None for the branch of all other platforms.
Platforms = tuple[tuple[str, ...] | None, ...]


def is_platform_index(equation: JaxprEqn) -> bool:
    """Return True if an equation asks for the platform."""
    return equation.primitive.name == "platform_index"


def platforms_of(equation: JaxprEqn) -> Platforms | None:
    """Return the platforms of the branches of a choice by platform, or None if the equation is not a choice."""
    return equation.params.get("branches_platforms") if equation.primitive is cond_p else None


def choose(platforms: Platforms, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Evaluate the branch for the platform for which a program is lowered."""
    named = {name: branch for names, branch in zip(platforms, branches, strict=True) for name in names or ()}
    default = next((branch for names, branch in zip(platforms, branches, strict=True) if names is None), None)
    return platform_dependent(*operands, default=default, **named)


@dataclass(frozen=True)
class Form:
    """A branch of a choice, written on the operands of the choice, with its own variables; read-only."""

    equations: list[JaxprEqn]  # the equations in order, with jitted calls inlined
    results: list[Atom]  # the results of the choice
    constants: dict[Var, Any]  # the values of variables that no equation computes


def forms_of(equation: JaxprEqn) -> list[Form]:
    """Return the branches of a choice by platform."""
    return [_form(branch, equation.invars[1:]) for branch in equation.params["branches"]]


def _form(branch: Any, operands: Sequence[Atom]) -> Form:
    form = Form([], [], {})

    def atom_of(value: Any) -> Atom:
        if isinstance(value, Var | Literal):
            return value
        variable = Var(jax.typeof(value))
        form.constants[variable] = value
        return variable

    def write(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        if equation.primitive is jit_p:
            return evaluate(equation.params["jaxpr"], operands, write)
        pairs = zip(equation.invars, operands, strict=True)
        atoms = [atom if isinstance(atom, Literal) else atom_of(value) for atom, value in pairs]
        results = [Var(variable.aval) for variable in equation.outvars]
        form.equations.append(equation.replace(invars=atoms, outvars=results))
        return results

    form.results.extend(map(atom_of, evaluate(branch, operands, write)))
    return form


#: An ONNX operator. Its operands are the present operands. Its parameters are the ``name`` in ONNX; the ``function`` of
#: all operands and attributes; ``present``, a flag for each operand; ``attributes``, pairs; and ``along``:
#: ``"elements"`` or ``"rows"`` (along the last axis) if it works on each separately, ``"windows"`` for a convolution
#: over the axes from the third on, otherwise ``""``.
operator_p = Primitive("onnx_operator")
operator_p.multiple_results = True


def one_equation(name: str, along: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of arrays (some None) and attributes, so that it is one equation in plain forms."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*operands: Any, **attributes: Any) -> Any:
            if not is_plain():
                return function(*operands, **attributes)
            pairs = [(key, tuple(value) if isinstance(value, list) else value) for key, value in attributes.items()]
            results = operator_p.bind(
                *(jnp.asarray(each) for each in operands if each is not None),
                name=name,
                function=function,
                present=tuple(each is not None for each in operands),
                attributes=tuple(sorted(pairs)),
                along=along,
            )
            return results if len(results) > 1 else results[0]

        return call

    return decorate


@own_arithmetic()
def computed(
    *operands: Any, function: Callable[..., Any], present: Sequence[bool], attributes: Sequence[Any], **_: Any
) -> list[jax.Array]:
    """Evaluate the primitive."""
    each = iter(operands)
    results = function(*(next(each) if there else None for there in present), **dict(attributes))
    return [*results] if isinstance(results, list | tuple) else [results]


def _shapes(*operands: Any, **params: Any) -> list[Any]:
    structs = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    results = jax.eval_shape(functools.partial(computed, **params), *structs)
    return [ShapedArray(each.shape, each.dtype) for each in results]


def _batched(operands: Any, axes: Any, **params: Any) -> Any:
    others = zip(axes[1:], operands[1:], strict=True)
    alike = all(axis is None and operand.size == 1 for axis, operand in others)
    if params["along"] == "elements" and alike:
        results = operator_p.bind(*operands, **params)
        return results, [axes[0]] * len(results)
    results = jax.vmap(functools.partial(computed, **params), axes)(*operands)
    return results, [0] * len(results)


operator_p.def_impl(computed)
operator_p.def_abstract_eval(_shapes)
mlir.register_lowering(operator_p, mlir.lower_fun(computed, multiple_results=True))
batching.primitive_batchers[operator_p] = _batched


#: Whether recurrences are equations: no, yes, or only those around the code that is traced. Part of the keys of all
#: caches of JAX.
_NO, _YES, _AROUND = "no", "yes", "around"
_visible = jax.make_user_context(_NO)


@contextlib.contextmanager
def visible_recurrences(wanted: bool = True) -> Iterator[None]:
    """Trace recurrences as equations of `recurrence_p` (or, if not wanted, as computations)."""
    with _visible(_YES if wanted else _NO if _visible.value == _NO else _AROUND):
        yield


def are_visible() -> bool:
    """Return True if recurrences are traced as equations."""
    return _visible.value == _YES


def only_followed() -> bool:
    """Return True while state is traced: no rule looks inside a recurrence, so that its form does not matter."""
    return _visible.value != _NO


@dataclass(frozen=True)
class Carried:
    """A carry of a recurrence."""

    slot: str
    result: int  # the number of the result that is the final value
    start: int | None  # the number of the operand that is the initial value, None for zeros
    forward: bool = True  # whether a later call can continue from the final value
    #: the axis of the directions, and the index of this direction; None for the whole array
    half: tuple[int, int] | None = None


#: The operands are the results of the recurrence, which are returned unchanged, and the initial values, which
#: `Carried.start` indexes. Parameters: ``carried``; ``steps``, None if the number depends on data; ``shown``, the time
#: axis of the first result if its last frame is the final value of the first slot; ``count``, the number of results.
recurrence_p = Primitive("recurrence")
recurrence_p.multiple_results = True


def visible(
    results: Sequence[Any],
    starts: Sequence[Any],
    slots: Sequence[Carried],
    steps: int | None,
    *,
    shown: int | None = None,
) -> list[Any]:
    """Wrap the results of a recurrence in an equation that declares its carries, if recurrences are visible."""
    if not are_visible() or not slots:
        return list(results)
    present = [index for index, start in enumerate(starts) if start is not None]
    carried = tuple(
        Carried(s.slot, s.result, present.index(s.start) if s.start in present else None, s.forward, s.half)
        for s in slots
    )
    operands = [*results, *(starts[index] for index in present)]
    return recurrence_p.bind(*operands, carried=carried, steps=steps, shown=shown, count=len(results))


def _results(*operands: Any, count: int, **_: Any) -> list[Any]:
    return list(operands[:count])


recurrence_p.def_impl(_results)
recurrence_p.def_abstract_eval(_results)
batching.primitive_batchers[recurrence_p] = lambda operands, axes, count, **_: (operands[:count], axes[:count])
ad.primitive_jvps[recurrence_p] = lambda primals, tangents, count, **_: (primals[:count], tangents[:count])
