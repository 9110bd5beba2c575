"""Canonical programs: jaxprs in which equal computations have equal spellings, so that rules know a single spelling.

`canonical` inlines calls, drops equations that return their operands, and spells movements of axes of size 1, stacks,
squares, reductions and repeated numbers in one way. A `shard_map` over a single device is a call. Functions with custom
derivative rules stay wrapped, and so do the functions of JAX in `KEPT`, for which some rules need the whole function.
Each equation keeps the line of the user's code, and the scope, which is the name of the ONNX node.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core.primitives import broadcast_in_dim_p, concatenate_p, jit_p, reshape_p, slice_p, square_p
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxrnn._jax.varying import axes_of, vary
from jaxrnn._jax.versions import expanded
from jaxrnn.jaxprs.primitives import Rules, entry_of

_LIBRARIES = tuple(f"{pathlib.Path(each).parent}{os.sep}" for each in (jax.__file__, pathlib.Path(__file__).parent))

#: Functions of JAX that stay calls.
KEPT = frozenset(("floor_divide", "remainder", "_resize"))

#: The kinds of equations whose functions can have constants. From JAX 0.11 on, the types of jaxprs do not tell.
_KEEP_CONSTANTS = frozenset(("call", "custom rule", "linear algebra", "loop"))


def canonical(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the canonical form of a jaxpr, also of the functions inside of its equations."""
    return _Canonical().closed(closed)


def inlined(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a jaxpr without calls, for a program that runs on devices as it was written.

    Equations stay that place arrays, order computations, or name what a gradient stores.
    """
    return _Canonical(only_calls=True).closed(closed)


def rewritten(closed: ClosedJaxpr, rule: Callable[[JaxprEqn], Callable[..., Any] | None]) -> ClosedJaxpr:
    """Return a canonical jaxpr in which functions replace equations, also inside of each function.

    `rule` returns the function of the operands that computes the results of an equation, or None to keep the equation.
    """
    return _Canonical(rule=rule).closed(closed)


def called(equation: JaxprEqn) -> Any:
    """Return the jaxpr that a call evaluates; a closed jaxpr keeps its constants."""
    return next(value for value in equation.params.values() if hasattr(getattr(value, "jaxpr", value), "eqns"))


def kept_name(equation: JaxprEqn) -> str | None:
    """Return the name of the function in `KEPT` that an equation calls, or None."""
    name = equation.params.get("name")
    is_kept = equation.primitive is jit_p and name in KEPT and _is_of_library(equation.params["jaxpr"].jaxpr)
    return name if is_kept else None


def _is_of_library(jaxpr: Jaxpr) -> bool:
    """Return True if a traced function is a function of JAX or jaxrnn, and not of the user."""
    file = jaxpr.debug_info.func_filename
    return file is None or file.startswith(_LIBRARIES)


class _Canonical:
    def __init__(self, *, only_calls: bool = False, mesh: Any = None, rule: Any = None):
        self.only_calls, self.rule = only_calls, rule
        self.mesh = mesh  # the mesh of one device, inside of its `shard_map`
        self.done: dict[int, tuple[Any, Any]] = {}  # functions that several equations share
        self.numbers: dict[Var, Literal] = {}  # the number in all elements

    def closed(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        if id(closed) not in self.done:
            constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
            jaxpr = self.jaxpr(closed.jaxpr, constants)
            self.done[id(closed)] = closed, ClosedJaxpr(jaxpr, list(constants.values()))
        return self.done[id(closed)][1]

    def jaxpr(self, jaxpr: Jaxpr, constants: dict[Var, Any] | None) -> Jaxpr:
        """Return the canonical form, and add the constants of inlined calls; without constants, keep such calls."""
        names: dict[Any, Any] = {}
        if self.mesh:
            names.update((each, self.variable(each)) for each in (*jaxpr.constvars, *jaxpr.invars))
            for each in list(constants or ()):
                constants[names[each]] = constants.pop(each)  # type: ignore[index, union-attr]
        equations = list(self.equations(jaxpr, names, constants, None))
        invars, outvars = ([_renamed(each, names) for each in atoms] for atoms in (jaxpr.invars, jaxpr.outvars))
        constvars = [_renamed(each, names) for each in jaxpr.constvars] if constants is None else list(constants)
        return jaxpr.replace(constvars=constvars, invars=invars, eqns=equations, outvars=outvars)

    def variable(self, like: Var) -> Var:
        """Return a new variable; inside of a `shard_map` over one device, types have no mesh."""
        kind = like.aval
        return Var(ShapedArray(kind.shape, kind.dtype, kind.weak_type) if self.mesh else kind)  # type: ignore[attr-defined]

    def equations(
        self, jaxpr: Jaxpr, names: dict[Any, Any], constants: dict[Var, Any] | None, caller: Any
    ) -> Iterator[JaxprEqn]:
        """Yield the equations of a jaxpr; `caller` is the source of the call, with its scope, if this is a call."""
        outer = caller is not None and _is_of_library(jaxpr)
        for equation in jaxpr.eqns:
            source = equation.source_info
            if caller is not None:
                stack = caller.name_stack + source.name_stack
                source = (caller if outer else source).replace(name_stack=stack)
            invars = [_renamed(each, names) for each in equation.invars]
            inner = self.called(equation)
            if inner is not None and (constants is not None or not inner.consts):
                within = dict(zip(inner.jaxpr.invars, invars, strict=True))
                for variable, value in zip(inner.jaxpr.constvars, inner.consts, strict=True):
                    within[variable] = self.constant(variable, value, constants)
                yield from self.inside(equation).equations(inner.jaxpr, within, constants, source)
                results = [_renamed(each, within) for each in inner.jaxpr.outvars]
                names.update(zip(equation.outvars, results, strict=True))
            elif not self.only_calls and (kept := _identity(equation)) is not None:
                names.update(zip(equation.outvars, invars[kept:], strict=False))
            else:
                as_is = caller is None and not self.mesh
                outvars = equation.outvars if as_is else list(map(self.variable, equation.outvars))
                names.update(zip(equation.outvars, outvars, strict=True))
                changed = equation.replace(invars=invars, outvars=outvars, source_info=source)
                yield from [changed] if self.only_calls else self.spelled(changed)

    def called(self, equation: JaxprEqn) -> ClosedJaxpr | None:
        """Return the function that an equation calls, if the equation is only a call, or a canonical spelling."""
        entry = entry_of(equation)
        if not self.only_calls and (function := self.function(equation)) is not None:
            return jax.make_jaxpr(function)(*(ShapedArray(_shape_of(x), _type_of(x)) for x in equation.invars))
        calls = not (self.only_calls and entry.placed) if entry.kind == "call" else self.inside(equation) is not self
        if not calls or kept_name(equation):
            return None
        if equation.primitive.name == "call_hi_primitive":
            return expanded(equation)
        inner = called(equation)
        return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())

    def function(self, equation: JaxprEqn) -> Callable[..., Any] | None:
        """Return an equation as a function of other primitives, or None if the equation is canonical."""
        if self.rule is not None and (function := self.rule(equation)) is not None:
            return function
        entry = entry_of(equation)
        if self.mesh and entry.alone and set(_axes_of(equation)) <= set(self.mesh.axis_names):
            return _alone(equation)
        if self.mesh and entry.kind == "custom rule" and axes_of([each.aval for each in equation.outvars]):
            return self.ruled(equation)
        spelled = _SPELLED.get(equation.primitive.name)
        return None if spelled is None else spelled(equation)

    def inside(self, equation: JaxprEqn) -> _Canonical:
        """Return the pass for the function that an equation calls; the pass knows the axes of a mesh of one device."""
        if self.only_calls or equation.primitive.name != "shard_map" or (mesh := equation.params["mesh"]).size > 1:
            return self
        return _Canonical(mesh=mesh)

    def ruled(self, equation: JaxprEqn) -> Callable[..., Any]:
        """Return a function with the derivative rule of an equation, which knows only the types inside of the mesh."""
        body = self.closed(equation.params["call_jaxpr"])

        def inside(*arrays: Any) -> Any:
            operands = [vary(x, axes_of(atom.aval)) for x, atom in zip(arrays, equation.invars, strict=True)]
            results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
            return [lax.psum(x, tuple(axes)) if (axes := axes_of(x)) else x for x in results]

        on_mesh = jax.shard_map(inside, mesh=self.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
        if equation.primitive.name == "custom_jvp_call":
            ruled: Any = jax.custom_jvp(jaxpr_as_fun(body))
            ruled.defjvp(lambda primals, tangents: jax.jvp(on_mesh, primals, tangents))
        else:
            ruled = jax.custom_vjp(jaxpr_as_fun(body))
            ruled.defvjp(lambda *arrays: jax.vjp(on_mesh, *arrays), lambda back, cotangents: back(cotangents))
        return ruled

    def constant(self, variable: Var, value: Any, constants: Any) -> Var:
        """Return the variable of a constant, which several calls may share."""
        for each, other in constants.items():
            if other is value:
                return each
        constants[new := self.variable(variable)] = value
        return new

    def spelled(self, equation: JaxprEqn) -> Sequence[JaxprEqn]:
        """Return equations with the same result in the canonical spelling."""
        placed = [key for key, value in equation.params.items() if _is_automatic(value)]
        if placed:
            equation = equation.replace(params={**equation.params, **dict.fromkeys(placed)})
        if any(True for _ in jaxprs_in_params(equation.params)):
            keeps = entry_of(equation).kind in _KEEP_CONSTANTS
            return [equation.replace(params={key: self.value(each, keeps) for key, each in equation.params.items()})]
        if equation.primitive is broadcast_in_dim_p and len(equation.invars) == 1:
            x = equation.invars[0]
            if (number := x if isinstance(x, Literal) else self.numbers.get(x)) is not None and not _shape_of(number):
                self.numbers[equation.outvars[0]] = number
                params = {**equation.params, "broadcast_dimensions": ()}
                equation = equation.replace(invars=[number], params=params)
        spelling = SPELLINGS.of(equation)
        return [equation] if spelling is None else spelling(equation)

    def value(self, value: Any, keeps: bool) -> Any:
        """Return a parameter of an equation with functions in canonical form, with constants if the equation can."""
        if isinstance(value, ClosedJaxpr) and (keeps or value.consts):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self.jaxpr(value, None)
        if isinstance(value, tuple):
            parts = (self.value(each, keeps) for each in value)
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return value


def _renamed(atom: Any, names: Mapping[Any, Any]) -> Any:
    return atom if isinstance(atom, Literal) else names.get(atom, atom)


def _type_of(atom: Any) -> Any:
    return getattr(atom.aval, "dtype", None)


def _identity(equation: JaxprEqn) -> int | None:
    """Return the place of the first operand if the results of an equation are operands from there on, or None."""
    entry, same = entry_of(equation), None
    kinds = [_type_of(each) for each in (*equation.invars[:1], *equation.outvars)]
    if entry.kind == "identity":
        same = 0
    elif equation.primitive.name == "stop_gradient":
        same = None if jnp.issubdtype(kinds[0], jnp.inexact) else 0
    elif equation.primitive.name == "convert_element_type":
        same = 0 if kinds[0] == kinds[1] else None
    elif entry.joins:  # the other operands are empty
        whole, parts = str(_shape_of(equation.outvars[0])), map(_shape_of, equation.invars)
        filled = [(place, str(shape)) for place, shape in enumerate(parts) if "0" not in map(str, shape)]
        same = filled[0][0] if len(filled) == 1 and filled[0][1] == whole else None
    elif entry.still and not equation.params.get("dimensions"):
        same = 0 if str(_shape_of(equation.invars[0])) == str(_shape_of(equation.outvars[0])) else None
    return same


def _is_automatic(value: Any) -> bool:
    """Return True for the sharding of an array that the compiler places."""
    return isinstance(value, NamedSharding) and set(value.mesh.axis_types) <= {AxisType.Auto}


# -- spellings


def _axes_of(equation: JaxprEqn) -> Sequence[Any]:
    """Return the axes of the mesh over which devices exchange arrays."""
    axes = equation.params.get("axes", equation.params.get("axis_name"))
    return axes if isinstance(axes, tuple) else (axes,)


def _alone(equation: JaxprEqn) -> Callable[..., Any]:
    """Return an exchange of arrays between devices as a function on one device."""
    shapes = [*map(_shape_of, equation.outvars)]
    if equation.primitive.name == "axis_index":
        return lambda: np.int32(0)
    if equation.params.get("perm") == ():  # the device receives from no device
        return jnp.zeros_like
    return lambda *parts: [lax.reshape(x, shape) for x, shape in zip(parts, shapes, strict=True)]


#: Rules ``(equation) -> function`` of other primitives, or None if the equation is canonical.
_SPELLED: Rules[Callable[[JaxprEqn], Callable[..., Any] | None]] = Rules()


@_SPELLED.add("empty")
def _emptied(equation: JaxprEqn) -> Callable[..., Any]:
    return lambda: jnp.zeros(_shape_of(equation.outvars[0]), equation.params["dtype"])


@_SPELLED.add("reduce")
def _reduced(equation: JaxprEqn) -> Callable[..., Any] | None:
    """Return a reduction by an associative operation that starts from its neutral value, or None."""
    inner = canonical(equation.params["jaxpr"]).jaxpr
    if len(inner.eqns) != 1 or inner.eqns[0].outvars != inner.outvars:
        return None
    (step,) = inner.eqns
    monoid = entry_of(step).monoid
    if not monoid or {*map(id, step.invars)} != {*map(id, inner.invars)}:  # literals have no hash
        return None
    reduce, start, axes = getattr(lax, f"reduce_{monoid}"), equation.invars[1], equation.params["dimensions"]
    with jax.ensure_compile_time_eval():
        neutral = isinstance(start, Literal) and reduce(jnp.zeros(0, _type_of(start)), (0,)) == start.val
    return (lambda x, _: reduce(x, axes)) if neutral else None


@_SPELLED.add("tile")
def _tiled(equation: JaxprEqn) -> Callable[..., Any] | None:
    """Return a repetition along axes of size 1 by a size that depends on a length, or None: it is a broadcast."""
    sizes, times = _shape_of(equation.invars[0]), equation.params["reps"]
    repeated = [size for size, each in zip(sizes, times, strict=True) if not isinstance(each, int) or each > 1]
    if all(isinstance(each, int) for each in times) or any(not isinstance(each, int) or each > 1 for each in repeated):
        return None
    shape = _shape_of(equation.outvars[0])
    return lambda x: lax.broadcast_in_dim(x, shape, range(x.ndim))


SPELLINGS: Rules[Callable[[JaxprEqn], Sequence[JaxprEqn]]] = Rules()


@SPELLINGS.add("broadcast_in_dim", "squeeze")
def _reshaped(equation: JaxprEqn) -> list[JaxprEqn]:
    """Spell a movement of axes of size 1 as a reshape."""
    old, new = map(_shape_of, (equation.invars[0], equation.outvars[0]))
    if len(equation.invars) != 1 or _without_ones(old) != _without_ones(new):
        return [equation]
    return [_reshape(equation, equation.invars[0], equation.outvars[0])]


def _shape_of(atom: Any) -> tuple[Any, ...]:
    return atom.aval.shape


def _without_ones(shape: Sequence[Any]) -> list[str]:
    return [str(size) for size in shape if not (isinstance(size, int) and size == 1)]


def _reshape(equation: JaxprEqn, x: Any, result: Any) -> JaxprEqn:
    params = {"new_sizes": _shape_of(result), "dimensions": None, "sharding": None}
    return equation.replace(primitive=reshape_p, invars=[x], outvars=[result], params=params)


@SPELLINGS.add("stack")
def _stacked(equation: JaxprEqn) -> list[JaxprEqn]:
    """Spell a stack as a concatenation."""
    axis, whole = equation.params["axis"], _shape_of(equation.outvars[0])
    if len(equation.invars) == 1:
        return [_reshape(equation, equation.invars[0], equation.outvars[0])]
    shape = (*whole[:axis], 1, *whole[axis + 1 :])
    parts: list[Any] = [Var(each.aval.update(shape=shape)) for each in equation.invars]
    views = [_reshape(equation, x, part) for x, part in zip(equation.invars, parts, strict=True)]
    return [*views, equation.replace(primitive=concatenate_p, invars=parts, params={"dimension": axis})]


@SPELLINGS.add("unstack")
def _unstacked(equation: JaxprEqn) -> list[JaxprEqn]:
    """Spell the parts of an array along an axis as slices of size 1."""
    axis, (x,) = equation.params["axis"], equation.invars
    if len(equation.outvars) == 1:
        return [_reshape(equation, x, equation.outvars[0])]
    shape = tuple(1 if each == axis else size for each, size in enumerate(_shape_of(x)))
    parts: list[Any] = [Var(x.aval.update(shape=shape)) for _ in equation.outvars]
    views = [_reshape(equation, part, result) for part, result in zip(parts, equation.outvars, strict=True)]
    return [*_slices(equation, parts, axis), *views]


def _slices(equation: JaxprEqn, parts: Sequence[Any], axis: int) -> Iterator[JaxprEqn]:
    """Yield the slices that compute consecutive parts of the operand along an axis."""
    shape, start = _shape_of(equation.invars[0]), 0
    for part in parts:
        end = start + _shape_of(part)[axis]
        starts = tuple(start if each == axis else 0 for each in range(len(shape)))
        limits = tuple(end if each == axis else size for each, size in enumerate(shape))
        params = {"start_indices": starts, "limit_indices": limits, "strides": None}
        yield equation.replace(primitive=slice_p, outvars=[part], params=params)
        start = end


@SPELLINGS.add("split")
def _cut(equation: JaxprEqn) -> list[JaxprEqn]:
    """Spell a split into parts of size 1 as slices; before JAX 0.10.2, `jax.numpy.unstack` is such a split."""
    alone = all(isinstance(size, int) and size == 1 for size in equation.params["sizes"])
    return list(_slices(equation, equation.outvars, equation.params["axis"])) if alone else [equation]


@SPELLINGS.add("integer_pow")
def _squared(equation: JaxprEqn) -> list[JaxprEqn]:
    """Spell a second power as a square."""
    return [equation if equation.params["y"] != 2 else equation.replace(primitive=square_p, params={})]
