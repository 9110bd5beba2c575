"""Maps over blocks of frames: ``lax.map(f, frames, batch_size=b)`` is replaced by a map over all frames.

JAX traces such a map to a scan over whole blocks of ``b`` frames and a call of ``f`` on the rest of the frames, and
joins both results. The size of the rest depends on the length, so this form cannot stream. The scan and the rest are
replaced by a call on all frames if two conditions are met: both programs are equal except for the number of frames, and
the program computes each frame separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn._jax.versions import Scan
from jaxrnn.jaxprs.equations import (
    Atom,
    made_by,
    needed,
    read_by,
    shape_of,
    type_of,
    variables,
    walk,
)
from jaxrnn.jaxprs.numbering import Numbering
from jaxrnn.streaming.dimensions import counted_size, cut_of, is_symbolic, own_sizes
from jaxrnn.streaming.plan import COUNT, Closed
from jaxrnn.streaming.rewriting import at_sizes, cuts_from, forms_of, renamed
from jaxrnn.streaming.streamed import Streamed

#: Streams a function of parameters and frames, with example shapes.
Stream = Callable[[Callable[[Any, Any], Any], Any, Any], Streamed]


class _Map(NamedTuple):
    """A map over blocks: constants, frames, the program for the rest, and the equations that join results."""

    consts: Sequence[Any]
    frames: Sequence[Any]
    rest: Closed
    joins: list[JaxprEqn]
    body: Any
    block: int
    left: Any  # the number of frames of the rest

    def shapes(self, count: Any) -> tuple[list[Any], list[Any]]:
        """Return the shapes of the constants, and the shapes of a number of frames."""
        consts = [jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in self.consts]
        return consts, [jax.ShapeDtypeStruct((count, *shape_of(each)[1:]), type_of(each)) for each in self.frames]

    def program(self, inner: Any, count: Any) -> Any:
        """Return the jaxpr of a program for a number of frames."""
        consts, frames = self.shapes(count)
        return jax.make_jaxpr(lambda *arrays: at_sizes(inner, arrays, self.size(count)))(*consts, *frames)

    def size(self, count: Any) -> Callable[[Any], Any]:
        """Return a function of a dimension that replaces the number of frames of the rest by this count."""
        return lambda size: count if str(size) == str(self.left) else size

    def on_all_frames(self, stream: Stream) -> Any:
        """Return the jaxpr of the map on all frames, or None if the scan and the rest are different maps."""
        of_block, of_rest = (Numbering().program(self.program(each, self.block)) for each in (self.body, self.rest))
        on_all = self.program(self.rest, shape_of(self.frames[0])[0])
        equal = of_block == of_rest
        is_map = (
            equal
            and not any(is_symbolic(counted_size(each)) for each in walk(on_all.jaxpr))
            and self._is_of_frames(stream)
        )
        return on_all if is_map else None

    def _is_of_frames(self, stream: Stream) -> bool:
        """Return True if the program of the rest computes each frame separately and in the same way."""

        def rest(consts: Any, frames: Any) -> Any:
            return at_sizes(self.rest, [*consts, *frames], self.size(frames[0].shape[0]))

        consts, frames = self.shapes(self.block)
        streamed = stream(rest, frames, consts)
        alone = {*jax.tree.leaves(streamed.delay)} == {0} and {*jax.tree.leaves(streamed.rate)} == {1}
        return alone and streamed.receptive_field == 1 and [each.name for each in streamed.state] == [COUNT]


def without_blocks(closed: Any, stream: Stream) -> Any:
    """Replace each map over blocks of frames in a closed jaxpr by a map over all frames."""
    jaxpr = closed.jaxpr
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    for scan in jaxpr.eqns:
        try:
            found = _map_of(jaxpr, scan, constants)
            on_all = None if found is None else found.on_all_frames(stream)
            jaxpr = jaxpr if found is None or on_all is None else _replaced(jaxpr, found, on_all)
        except Exception:  # an error while comparing means that there is no map; the stream is refused later
            continue
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _map_of(jaxpr: Any, scan: JaxprEqn, values: Mapping[Var, Any]) -> _Map | None:
    """Return the map over blocks that contains this scan, or None; `values` are the values of constants."""
    params = scan.params
    if not own_sizes(scan) or params["reverse"]:
        return None
    consts, carry, blocks = Scan.of(scan).split(scan.invars)
    if carry:
        return None
    makers = {variable: [equation] for equation in jaxpr.eqns for variable in equation.outvars}
    readers: dict[Var, list[JaxprEqn]] = {}
    for equation in jaxpr.eqns:
        for variable in variables(equation.invars):
            readers.setdefault(variable, []).append(equation)

    def only(atoms: Sequence[Atom], name: str, of: Mapping[Var, list[JaxprEqn]]) -> list[JaxprEqn] | None:
        """Return the only equation of each atom, if all are of this primitive, or None."""
        found = [[] if isinstance(atom, Literal) else of.get(atom, []) for atom in atoms]
        fits = all(len(each) == 1 and each[0].primitive.name == name for each in found)
        return [each[0] for each in found] if fits else None

    results = [variable for variable in scan.outvars if variable in readers]
    cuts = only(blocks, "reshape", makers)
    flat = only(results, "reshape", readers)
    heads = cuts and only([each.invars[0] for each in cuts], "gather", makers)
    joins = flat and only([each.outvars[0] for each in flat], "concatenate", readers)
    if not heads or not flat or not joins or any(isinstance(each, Literal) for each in consts):
        return None
    block, frames = shape_of(blocks[0])[1], [each.invars[0] for each in heads]
    total, covered = shape_of(frames[0])[0], block * params["length"]
    left = total - covered
    tails = _tails(jaxpr, frames, left)
    forms = forms_of(jaxpr)
    starts = [*((each, 0) for each in heads), *((each, covered) for each in tails or ())]
    if (
        tails is None
        or not all(cuts_from(each, 0, start, forms) for each, start in starts)
        or any(str(shape_of(each)[0]) != str(total) for each in frames)
        or any(
            each.params["dimension"] or [*each.invars[:-1]] != [*made.outvars]
            for each, made in zip(joins, flat, strict=True)
        )
    ):
        return None
    known = [*consts, *(each.outvars[0] for each in tails)]
    ends = [each.invars[1] for each in joins]
    equations = needed(jaxpr.eqns, ends, known)
    # A constant inside the function appears as two variables with equal values.
    key_of = Numbering().key_of
    of_scan = {key_of(values[each]): each for each in variables(consts) if each in values}
    others = {*read_by(equations), *variables(ends)} - made_by(equations) - {*known}
    names = {each: of_scan.get(key_of(values[each])) for each in others if each in values}
    if None in names.values() or names.keys() != others:
        return None
    rest = jaxpr.replace(constvars=[], invars=known, outvars=ends, eqns=renamed(equations, names))
    return _Map(consts, frames, Closed(rest), joins, params["jaxpr"], block, left)


def _tails(jaxpr: Any, frames: Sequence[Atom], left: Any) -> list[JaxprEqn] | None:
    """Return the equation that reads the last frames of each array, or None."""
    found: list[JaxprEqn] = []
    for array in frames:
        for equation in jaxpr.eqns:
            cuts = cut_of(equation) is not None and equation.invars[0] is array and equation not in found
            if cuts and str(shape_of(equation.outvars[0])[0]) == str(left):
                found.append(equation)
                break
        else:
            return None
    return found


def _replaced(jaxpr: Any, found: _Map, on_all: Any) -> Any:
    """Return a jaxpr with the program on all frames in place of the joined results."""
    results = [each.outvars[0] for each in found.joins]
    inner = on_all.jaxpr
    if inner.constvars or len({*inner.outvars}) != len(results) or not made_by(inner.eqns) >= {*inner.outvars}:
        return jaxpr
    names = dict(zip((*inner.invars, *inner.outvars), (*found.consts, *found.frames, *results), strict=True))
    place = min(jaxpr.eqns.index(each) for each in found.joins)
    rest = [each for each in jaxpr.eqns[place:] if each not in found.joins]
    return jaxpr.replace(eqns=[*jaxpr.eqns[:place], *renamed(inner.eqns, names), *rest])
