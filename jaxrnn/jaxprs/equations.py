"""Jaxprs as lists of equations: tracing, the common evaluator, slices, and custom derivative rules.

A function defines how an equation applies to operands: `bind` applies the primitive, and other domains (chunks of a
stream, partly known values) have functions of their own. The evaluator reads the operands, enters the scope of the
equation, and writes the results. The module uses no private interface of JAX.

An evaluator that runs the equations of a function with a custom derivative rule on other values (chunks of a stream,
values that vary over other mesh axes) would lose the rule. When JAX asks for the rule, `with_rule` therefore traces the
rule, and the same evaluator runs it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from jaxrnn._jax.context import own_arithmetic
from jaxrnn._jax.varying import Axes, alike, axes_of, struct_of, vary
from jaxrnn.cells.forms import Types
from jaxrnn.jaxprs.canonical import called, canonical, inlined
from jaxrnn.jaxprs.primitives import entry_of

Atom = Var | Literal
Environment = dict[Var, Any]
#: A function that computes the results of an equation on operands, in some domain.
Apply = Callable[[JaxprEqn, list[Any]], Sequence[Any]]


def trace(function: Callable[..., Any], *examples: Any) -> tuple[ClosedJaxpr, Any]:
    """Return the canonical jaxpr of a function of pytrees, and the tree of its outputs."""
    with jax.disable_jit(False):  # without programs, loops would run as Python
        closed, structure = _trace(function, examples)
        return canonical(closed), structure


def trace_inlined(function: Callable[..., Any], *examples: Any) -> tuple[ClosedJaxpr, Any]:
    """Return the jaxpr of a function of pytrees without calls, to run on devices, and the tree of its outputs."""
    with jax.disable_jit(False):
        closed, structure = _trace(function, examples)
        return inlined(closed), structure


def _trace(function: Callable[..., Any], examples: Any) -> tuple[ClosedJaxpr, Any]:
    leaves, structure = jax.tree.flatten(examples)
    out_structure: Any = None

    def flat(*arguments: Any) -> list[Any]:
        nonlocal out_structure
        results, out_structure = jax.tree.flatten(function(*jax.tree.unflatten(structure, arguments)))
        return results

    return jax.make_jaxpr(flat)(*leaves), out_structure


def bind(equation: JaxprEqn, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """Apply the primitive of an equation to operands, with some parameters changed.

    Inside `jax.shard_map`, operands may vary over other mesh axes than in the trace (see `jaxrnn._jax.varying`).
    """
    here, traced = [*map(axes_of, operands)], [axes_of(atom.aval) for atom in equation.invars]
    if here == traced:
        return _bind(equation, operands, changed)
    # Jaxprs inside of an equation may contain constants that were cast like the operands of the trace.
    nested = entry_of(equation).kind != "call" and any(True for _ in inner_jaxprs(equation))
    return _bind_varying(equation, operands, frozenset().union(*here, *(traced if nested else ())), changed)


def _bind(equation: JaxprEqn, operands: Sequence[Any], changed: Mapping[str, Any]) -> list[Any]:
    parameters = equation.primitive.get_bind_params({**equation.params, **changed})
    mesh = jax.sharding.get_abstract_mesh()
    with equation.ctx.manager, jax.sharding.use_abstract_mesh(mesh):  # the caller's mesh, and not the mesh of the trace
        results = equation.primitive.bind(*operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def _bind_varying(equation: JaxprEqn, operands: Sequence[Any], axes: Axes, changed: Mapping[str, Any]) -> list[Any]:
    """Apply the primitive to operands that are cast to a common type; the results vary over the same axes.

    JAX takes the types of the results from the jaxprs inside of an equation, so these jaxprs are traced again.
    """
    kind, operands = entry_of(equation).kind, vary(list(operands), axes)
    if equation.primitive.name == "pvary":
        return vary(operands, frozenset(equation.params["axes"]))
    if kind == "call":
        return vary(evaluate(called(equation), operands), axes)
    if kind == "custom rule":
        as_traced = functools.partial(_bind, equation, changed={})
        domain = Domain(lambda jaxpr, arrays: vary(evaluate(jaxpr, vary(arrays, axes)), axes))
        return with_rule(equation, lambda *arrays: as_traced(arrays), domain, [None] * len(operands))(*operands)
    if any(True for _ in inner_jaxprs(equation)):
        changed = {**{key: _traced_again(value, axes) for key, value in equation.params.items()}, **changed}
    return _bind(equation, operands, changed)


def _traced_again(value: Any, axes: Axes) -> Any:
    """Trace the jaxprs in a parameter of an equation again, on values that vary over these axes."""
    if isinstance(value, ClosedJaxpr):
        structs = jax.eval_shape(lambda *arrays: vary(arrays, axes), *map(struct_of, value.in_avals))
        return jax.make_jaxpr(lambda *arrays: vary(evaluate(value, arrays), axes))(*structs)
    if isinstance(value, Jaxpr):  # a separate class up to JAX 0.10
        return _traced_again(ClosedJaxpr(value, ()), axes).jaxpr
    if isinstance(value, tuple):
        parts = [_traced_again(part, axes) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def evaluate(inner: Any, arguments: Sequence[Any], apply: Apply = bind) -> list[Any]:
    """Evaluate a jaxpr, closed or without constants."""
    jaxpr, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
    environment: Environment = dict(zip(jaxpr.constvars, consts, strict=True))
    environment.update(zip(jaxpr.invars, arguments, strict=True))
    run(jaxpr.eqns, environment, apply)
    return [read(atom, environment) for atom in jaxpr.outvars]


def run(equations: Iterable[JaxprEqn], environment: Environment, apply: Apply = bind) -> None:
    """Evaluate equations in order in an environment.

    The scope of an equation, which is the name of its ONNX node, extends to inner traces.
    """
    for equation in equations:
        operands = [read(atom, environment) for atom in equation.invars]
        scope = str(equation.source_info.name_stack)
        with jax.named_scope(scope) if scope else contextlib.nullcontext():
            results = apply(equation, operands)
        environment.update(zip(equation.outvars, results, strict=True))


def read(atom: Atom, environment: Mapping[Var, Any]) -> Any:
    """Return the value of an operand."""
    return atom.val if isinstance(atom, Literal) else environment[atom]


def shape_of(atom: Atom) -> tuple[Any, ...]:
    """Return the shape of a variable or literal."""
    return tuple(getattr(atom.aval, "shape", ()))


def type_of(atom: Atom) -> Any:
    """Return the element type of a variable or literal, or None if it is not an array."""
    return getattr(atom.aval, "dtype", None)


def free_axes(equation: JaxprEqn) -> list[list[int]]:
    """Return the axes of both operands of a ``dot_general`` that are neither summed nor batch axes."""
    bound = [{*summed, *batch} for summed, batch in zip(*equation.params["dimension_numbers"], strict=True)]
    return [
        [axis for axis in range(len(shape_of(atom))) if axis not in axes]
        for atom, axes in zip(equation.invars, bound, strict=True)
    ]


def is_key(dtype: Any) -> bool:
    """Return True for the type of random keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def variables(atoms: Iterable[Atom]) -> list[Var]:
    """Return the operands that are variables."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def dependents(equations: Iterable[JaxprEqn], sources: Iterable[Var], known: Collection[Var] = ()) -> set[Var]:
    """Return the forward slice: the sources and all variables computed from them, except known variables."""
    slice_ = set(sources).difference(known)
    for equation in equations:
        if not slice_.isdisjoint(variables(equation.invars)):
            slice_.update(variable for variable in equation.outvars if variable not in known)
    return slice_


def needed(
    equations: Sequence[JaxprEqn], targets: Iterable[Atom], known: Collection[Var] = (), *, effects: bool = False
) -> list[JaxprEqn]:
    """Return the backward slice: the equations that compute the targets from known variables, in order."""
    open_ = set(variables(targets)).difference(known)
    slice_ = []
    for equation in reversed(equations):
        if not open_.isdisjoint(equation.outvars) or (effects and equation.effects):
            slice_.append(equation)
            open_.update(variable for variable in variables(equation.invars) if variable not in known)
    return slice_[::-1]


def read_by(equations: Iterable[JaxprEqn]) -> set[Var]:
    """Return the variables that equations read."""
    return {variable for equation in equations for variable in variables(equation.invars)}


def made_by(equations: Iterable[JaxprEqn]) -> set[Var]:
    """Return the variables that equations compute."""
    return {variable for equation in equations for variable in equation.outvars}


def inner_jaxprs(equation: JaxprEqn) -> Iterator[Any]:
    """Yield the jaxprs inside an equation (bodies of calls, loops and branches) without their constants."""
    return jaxprs_in_params(equation.params)


def walk(jaxpr: Any) -> Iterator[JaxprEqn]:
    """Yield the equations of a jaxpr, at any depth."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation):
            yield from walk(inner)


class Domain:
    """A way to evaluate jaxprs. This class evaluates on arrays, by ``run(jaxpr, arrays)``.

    Attributes:
        arrays: other arrays that the evaluator reads. A rule is traced later than its function, and may not close over
            tracers.
        types: the types in which rules are traced: the types of the function, also if they differ at differentiation.
    """

    def __init__(self, run: Callable[[Any, list[Any]], list[Any]]):
        self._run, self.types = run, Types.here()
        self.arrays: list[Any] = []

    def check(self, arrays: list[Any], operands: Sequence[Any]) -> None:
        """Raise an error if a function of these operands cannot keep its rule."""

    def evaluate(self, arrays: list[Any], jaxpr: Any, kinds: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr on the arrays of operands of these kinds."""
        return self._run(jaxpr, list(operands))

    def arrays_of(self, values: Sequence[Any]) -> list[Any]:
        """Return the arrays of values."""
        return list(values)

    def kinds_of(self, values: Sequence[Any]) -> list[Any]:
        """Return the static descriptions of values, without arrays; None for an array."""
        return [None] * len(values)


def with_rule(
    equation: JaxprEqn,
    as_traced: Callable[..., list[Any]],
    domain: Domain,
    inputs: Sequence[Any],
) -> Callable[..., list[Any]]:
    """Return a function of arrays that evaluates a ``custom_jvp_call`` or ``custom_vjp_call`` and keeps its rule."""

    def function(own: Any, *arrays: Any) -> list[Any]:
        return domain.arrays_of(domain.evaluate(own, equation.params["call_jaxpr"], inputs, arrays))

    give_rule = _with_jvp if equation.primitive.name == "custom_jvp_call" else _with_vjp
    ruled = give_rule(function, equation, as_traced, domain, inputs)
    return lambda *arrays: ruled(domain.arrays, *alike(*arrays))


def _with_jvp(function: Any, equation: JaxprEqn, as_traced: Any, domain: Domain, inputs: Sequence[Any]) -> Any:
    structs = [struct_of(atom.aval) for atom in equation.invars]
    moving = [index for index, struct in enumerate(structs) if jnp.issubdtype(struct.dtype, jnp.inexact)]

    def derivative(primals: Any, tangents: Any) -> Any:
        def of_moving(*some: Any) -> Any:
            merged = list(primals)
            for index, value in zip(moving, some, strict=True):
                merged[index] = value
            return as_traced(*merged)

        return jax.jvp(of_moving, [primals[index] for index in moving], tangents)

    kinds, count = [*inputs, *(inputs[index] for index in moving)], len(equation.outvars)

    def rule(primals: Any, tangents: Any) -> Any:
        (own, *arrays), (_, *directions) = primals, tangents
        operands = [*arrays, *(directions[index] for index in moving)]
        with domain.types.in_force(), own_arithmetic():
            domain.check(own, arrays)
            traced, _ = trace(derivative, structs, [structs[index] for index in moving])
            values = domain.arrays_of(domain.evaluate(own, traced, kinds, operands))
        return values[:count], values[count:]

    ruled = jax.custom_jvp(function)
    ruled.defjvp(rule)
    return ruled


def _with_vjp(function: Any, equation: JaxprEqn, as_traced: Any, domain: Domain, inputs: Sequence[Any]) -> Any:
    structs = [struct_of(atom.aval) for atom in equation.invars]
    count = len(equation.outvars)
    residuals: list[Any] = []

    @functools.cache
    def forward() -> tuple[Any, Any]:
        closed, results = jax.make_jaxpr(lambda *arrays: jax.vjp(as_traced, *arrays), return_shape=True)(*structs)
        return canonical(closed), results

    def with_residuals(own: Any, *arrays: Any) -> Any:
        with domain.types.in_force(), own_arithmetic():
            domain.check(own, arrays)
            values = domain.evaluate(own, forward()[0], inputs, arrays)
        residuals[:] = domain.kinds_of(values)
        return domain.arrays_of(values[:count]), (own, domain.arrays_of(values[count:]))

    def pull_back(kept: Any, cotangents: Any) -> Any:
        own, arrays = kept
        kinds = [*residuals[count:], *residuals[:count]]
        with domain.types.in_force(), own_arithmetic():
            results, back = forward()[1]
            backward, _ = trace(lambda back, cotangents: back(cotangents), back, results)
            values = domain.arrays_of(domain.evaluate(own, backward, kinds, [*arrays, *cotangents]))
        differentiable = [jnp.issubdtype(struct.dtype, jnp.inexact) for struct in structs]
        gradients = [value if moves else None for value, moves in zip(values, differentiable, strict=True)]
        return ([None] * len(own), *gradients)

    ruled = jax.custom_vjp(function)
    ruled.defvjp(with_residuals, pull_back)
    return ruled
