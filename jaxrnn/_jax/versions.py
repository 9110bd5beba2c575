"""Differences between the supported versions of JAX; no other module asks which version is installed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn


class Scan(NamedTuple):
    """The numbers of leading operands of a ``scan``: constants, and arrays of the carry."""

    consts: int
    carry: int

    @classmethod
    def of(cls, equation: JaxprEqn) -> Scan:
        """Return the numbers for an equation."""
        params = equation.params
        if "num_consts" in params:  # up to JAX 0.11
            return cls(params["num_consts"], params["num_carry"])
        consts, carry, _ = params["ft_in"].unpack()
        return cls(len(list(consts)), len(list(carry)))

    def split(self, values: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the constants, the carry, and the scanned arrays among operands or variables of the body."""
        values, first = list(values), self.consts
        return values[:first], values[first : first + self.carry], values[first + self.carry :]


def stable_kernels() -> frozenset[str]:
    """Return the kernels for which JAX guarantees that later versions still read programs with these kernels."""
    from jax._src.export._export import _CUSTOM_CALL_TARGETS_GUARANTEED_STABLE

    return frozenset(_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE)


def operands_by_use(equation: JaxprEqn) -> dict[str, int]:
    """Return the numbers of the leading operands of a loop, keyed by the parameter that counts these operands."""
    if equation.primitive.name == "scan":
        return dict(zip(("num_consts", "num_carry"), Scan.of(equation), strict=True))
    return {key: equation.params[key] for key in ("cond_nconsts", "body_nconsts") if key in equation.params}


def expanded(equation: JaxprEqn) -> ClosedJaxpr:
    """Return the function of a ``call_hi_primitive`` (from JAX 0.11 on, such as a search) in other primitives.

    The function keeps the derivative rule: the other primitives can have a different derivative, or no derivative, as
    the root of a function. Raises NotImplementedError if the primitive lacks this function.
    """
    primitive = equation.params["_prim"]

    def function(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, arrays)))

    def as_written(*arrays: Any) -> list[Any]:
        return equation.primitive.bind(*arrays, _prim=primitive)

    structs = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in equation.invars]  # type: ignore
    if not any(jax.numpy.issubdtype(each.aval.dtype, jax.numpy.inexact) for each in equation.outvars):  # type: ignore
        return jax.make_jaxpr(function)(*structs)
    ruled: Any
    if _has(primitive, "jvp"):
        ruled = jax.custom_jvp(function)
        ruled.defjvp(lambda primals, tangents: jax.jvp(as_written, primals, tangents))
    else:
        ruled = jax.custom_vjp(function)
        ruled.defvjp(lambda *arrays: jax.vjp(as_written, *arrays), lambda back, cotangents: back(cotangents))
    return jax.make_jaxpr(ruled)(*structs)


def _has(primitive: Any, name: str) -> bool:
    """Return True if the class of a primitive overrides a method that raises."""
    *_, base, _ = type(primitive).__mro__  # the class of all such primitives, and object
    return getattr(type(primitive), name) is not getattr(base, name)
