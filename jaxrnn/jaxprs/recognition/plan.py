"""In which order the parts of a body run over all frames: cells that were recognised, loops around the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from jaxrnn.jaxprs.equations import variables
from jaxrnn.jaxprs.recognition.algebra import Algebra
from jaxrnn.jaxprs.recognition.body import Body, operands_of, whole
from jaxrnn.jaxprs.recognition.carries import Carries, Piece
from jaxrnn.jaxprs.recognition.matching import Match, match
from jaxrnn.jaxprs.recognition.positions import Atom, Elements, joined_positions, shape_of
from jaxrnn.jaxprs.stages import needed_by


@dataclass(frozen=True)
class Shift:
    """An array of the carry that a known variable becomes: its values are known, one frame late."""

    carry: Var


@dataclass(frozen=True)
class Late:
    """Elements of the carry, moved, of which each becomes an element of a known variable: that one, a frame late.

    Attributes:
        variable: the elements.
        before: what they are before the first step.
        source: what they become.
    """

    variable: Var
    before: Elements
    source: Elements


@dataclass(frozen=True)
class Loop:
    """Arrays of the carry that depend on each other in a way that is no cell's.

    Attributes:
        carries: the arrays.
        core: the equations in the loop.
        given: the variables that the loop takes of each frame.
        emitted: the variables that it gives for each frame.
    """

    carries: tuple[Var, ...]
    core: tuple[JaxprEqn, ...]
    given: tuple[Var, ...]
    emitted: tuple[Var, ...]


Step = Match | Loop | Shift | Late


@dataclass(frozen=True)
class Plan:
    """A body in parts, in the order in which they run.

    Attributes:
        body: the body.
        carries: the pieces of its carry.
        steps: cells, loops and what is a frame late.
        settled: the arrays of the carry whose last value the cells give.
    """

    body: Body
    carries: Carries
    steps: tuple[Step, ...]
    settled: frozenset[Var]


def plan(closed: ClosedJaxpr, sizes: tuple[int, int], *, loose: bool) -> Plan | None:
    """Look for cells in a body.

    Args:
        closed: a jaxpr of parameters, one frame and the carry, whose outputs end with the next carry.
        sizes: how many of its inputs are parameters, and how many belong to the frame.
        loose: outputs do not matter in frames in which a mask keeps the carry.

    Returns:
        None where there is no cell, or what there is cannot be cut.
    """
    if any(equation.effects for equation in closed.jaxpr.eqns) or not _is_plain(closed):
        return None
    # For all frames at once, every branch of a condition would run, and a loop for as long as the longest.
    if any(equation.primitive.name in ("cond", "while") for equation in closed.jaxpr.eqns):
        return None
    body = Body(closed, sizes)
    carries = Carries(body)
    planner = _Planner(body, carries, loose)
    steps = planner.steps()
    if not any(isinstance(step, Match) for step in steps):
        return None
    return Plan(body, carries, tuple(steps), frozenset(planner.settled()))


def _is_plain(closed: ClosedJaxpr) -> bool:
    """Whether every size is a number."""
    atoms = [*closed.jaxpr.invars, *(variable for equation in closed.jaxpr.eqns for variable in equation.outvars)]
    return all(isinstance(size, int) for atom in atoms for size in shape_of(atom))


class _Planner:
    def __init__(self, body: Body, carries: Carries, loose: bool):
        self.body, self.carries, self.loose = body, carries, loose
        self.algebra = Algebra(body)
        self.next_of = dict(zip(body.carry, body.next_carry, strict=True))
        self.found: list[Match] = []
        self.looped: set[Var] = set()
        self._known_before_loop: set[Var] = set()

    def steps(self) -> list[Step]:
        """All steps."""
        steps: list[Step] = []
        waiting = self.carries.sources()
        while True:
            cell = self._cell(waiting)
            if cell is not None:
                waiting.remove(cell.output)
                self.found.append(cell)
                self.body.learn([cell.output])
                steps.append(cell)
                continue
            open_carries = self._open()
            if not open_carries:
                return steps
            late = next((carry for carry in open_carries if self.body.is_known(self.next_of[carry])), None)
            if late is not None:
                self.looped.add(late)
                self.body.learn([late])
                steps.append(Shift(late))
                continue
            moved = self._late(open_carries)
            if moved:
                self.body.learn([late.variable for late in moved])
                steps += moved
                continue
            steps.append(self._loop(self._first_group(open_carries), steps))

    def settled(self) -> set[Var]:
        """The arrays of the carry of which every piece is a cell's, or becomes the same as one."""
        return {carry for carry in self.body.carry if all(map(self._is_settled, self._pieces_of(carry)))}

    def _pieces_of(self, carry: Var) -> list[Piece]:
        return [piece for piece in self.carries.pieces if piece.carry is carry]

    def _is_settled(self, piece: Piece) -> bool:
        return any(
            held.new.atom is piece.source.atom and (held.carry is piece.carry or not (cell.mask or piece.mask))
            for cell in self.found
            for held in cell.held
        )

    def _cell(self, waiting: Iterable[Var]) -> Match | None:
        for variable in waiting:
            cell = match(self.algebra, self.carries, variable)
            if cell is not None and (self.loose or cell.mask is None or self._only_under_mask(cell, cell.output)):
                return cell
        return None

    def _only_under_mask(self, cell: Match, variable: Var) -> bool:
        """Whether a masked hidden state is only looked at where the mask lets it through."""
        assert cell.mask is not None
        if any(atom is variable for atom in (*self.body.outputs, *self.body.next_carry)):
            return False
        row_of = {place: row for row, places in enumerate(cell.held[0].new.at) for place in places.tolist()}
        for equation in self.body.equations:
            if not any(atom is variable for atom in equation.invars):
                continue
            if equation.primitive.name != "select_n":
                moves = all(joined_positions(equation, index) is not None for index in range(len(equation.outvars)))
                if not moves or not all(self._only_under_mask(cell, moved) for moved in equation.outvars):
                    return False
                continue
            at = whole(equation.outvars[0]).at
            chooser, *cases = operands_of(equation, at)
            chooser = self.body.source(chooser)
            seen = self.body.source(cases[cell.mask.when])
            other = self.body.source(cases[not cell.mask.when])
            if seen.atom is not cell.output or other.atom is cell.output:
                return False
            rows = np.array([row_of[place] for place in seen.at.tolist()])
            mask = cell.mask.elements
            if chooser.atom is not mask.atom or not np.array_equal(chooser.at, mask.at[rows, 0]):
                return False
        return True

    def _reached(self, targets: Iterable[Atom]) -> set[Var]:
        """The unknown variables that unknown targets are computed from, themselves included."""
        wanted = [atom for atom in variables(targets) if not self.body.is_known(atom)]
        unknown = [e for e in self.body.equations if not all(map(self.body.is_known, e.outvars))]
        return {variable for variable in needed_by(unknown, wanted) if not self.body.is_known(variable)}

    def _open(self) -> list[Var]:
        """The arrays of the carry whose values are still needed, for each frame or at the end."""
        settled = self.settled()
        wanted = [carry for carry in self.body.carry if carry not in settled and carry not in self.looped]
        while True:
            reached = self._reached([*self.body.outputs, *(self.next_of[carry] for carry in wanted)])
            found = [carry for carry in self.body.carry if carry in reached or carry in wanted]
            if len(found) == len(wanted):
                return found
            wanted = found

    def _late(self, open_carries: list[Var]) -> list[Late]:
        """What is read of open arrays that cells have made known, but for a frame."""
        found = []
        reached = self._reached([*self.body.outputs, *(self.next_of[carry] for carry in open_carries)])
        for variable in (variable for variable in self.body.maker if variable in reached):
            before = self.body.source(whole(variable))
            if before.atom not in open_carries:
                continue
            for piece in self.carries.pieces:
                if piece.carry is before.atom and piece.mask is None and self.body.is_known(piece.source.atom):
                    order = np.argsort(piece.at)
                    index = order[np.searchsorted(piece.at[order], before.at).clip(max=piece.at.size - 1)]
                    if np.array_equal(piece.at[index], before.at):
                        found.append(Late(variable, before, Elements(piece.source.atom, piece.source.at[index])))
                        break
        return found

    def _first_group(self, open_carries: list[Var]) -> list[Var]:
        """Arrays that depend on each other and on no other open one."""
        depends = {carry: self._reached([self.next_of[carry]]) & set(open_carries) for carry in open_carries}
        closed = {carry: self._closure(carry, depends) for carry in open_carries}
        smallest = min(open_carries, key=lambda carry: len(closed[carry]))
        return [carry for carry in open_carries if carry in closed[smallest]]

    def _closure(self, carry: Var, depends: dict[Var, set[Var]]) -> set[Var]:
        group, pending = {carry}, [carry]
        while pending:
            for other in depends[pending.pop()] - group:
                group.add(other)
                pending.append(other)
        return group

    def _loop(self, group: list[Var], steps: list[Step]) -> Loop:
        """The loop around these arrays, and what it learns; a loop just before it becomes a part of it."""
        if steps and isinstance(steps[-1], Loop):
            before = steps.pop()
            assert isinstance(before, Loop)
            self.body.known = self._known_before_loop
            group = [*before.carries, *group]
        self._known_before_loop = set(self.body.known)
        loop = self._cut(group)
        self.looped.update(group)
        self.body.learn([*group, *loop.emitted])
        return loop

    def _cut(self, group: list[Var]) -> Loop:
        body, after = self.body, [self.next_of[carry] for carry in group]
        inside, depending = set(group), []
        for equation in body.equations:
            if inside.intersection(variables(equation.invars)) and not all(map(body.is_known, equation.outvars)):
                inside.update(equation.outvars)
                depending.append(equation)
        needed = needed_by(depending, after)
        core = [equation for equation in depending if needed.intersection(equation.outvars)]
        made = list(dict.fromkeys(variable for equation in core for variable in equation.outvars))
        read = dict.fromkeys((*(v for equation in core for v in variables(equation.invars)), *variables(after)))
        given = [v for v in read if v not in {*made, *group} and not body.is_fixed(v)]
        inner = set(map(id, core))
        used = {v for equation in body.equations if id(equation) not in inner for v in variables(equation.invars)}
        used.update(variables([*body.outputs, *(self.next_of[carry] for carry in body.carry if carry not in group)]))
        return Loop(tuple(group), tuple(core), tuple(given), tuple(v for v in made if v in used))
