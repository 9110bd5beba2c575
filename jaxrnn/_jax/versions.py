"""What differs between the supported versions of JAX; no other module asks which version is installed."""

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


def operands_by_use(equation: JaxprEqn) -> dict[str, int]:
    """Return the numbers of the leading operands of a loop by use, under the names of parameters; empty for others."""
    if equation.primitive.name == "scan":
        return dict(zip(("num_consts", "num_carry"), Scan.of(equation), strict=True))
    return {key: equation.params[key] for key in ("cond_nconsts", "body_nconsts") if key in equation.params}


def expanded(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the function of a primitive that JAX expands when it lowers a program, such as a search, or None."""
    primitive = equation.params.get("_prim")
    if equation.primitive.name != "call_hi_primitive" or not hasattr(primitive, "expand"):
        return None

    def function(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, arrays)))

    structs = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in equation.invars]  # type: ignore
    return jax.make_jaxpr(function)(*structs)
