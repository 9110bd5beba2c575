"""``lax.scan`` at sequence speed: work without a carry runs for all frames at once, and cells run as sequences.

`schedule_of_cells` chooses and orders the parts of a step: recognised cells, loops around the rest of the carry, and
delayed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn, Var
from jax.extend.core.primitives import copy_p

from jaxrnn._jax import varying
from jaxrnn.cells.forms import in_chunks, is_plain
from jaxrnn.jaxprs.equations import Atom, made_by, needed, read_by, shape_of, type_of, variables
from jaxrnn.jaxprs.own import only_followed, platforms_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.jaxprs.recognition.algebra import Algebra
from jaxrnn.jaxprs.recognition.body import (
    Body,
    CarryPiece,
    CarryPieces,
    Elements,
    all_elements,
    joined_positions,
    operands_of,
)
from jaxrnn.jaxprs.recognition.matching import CellMatch, match
from jaxrnn.jaxprs.recognition.parts import Delayed, RecognisedCell
from jaxrnn.jaxprs.schedule import Function, Loop, Part, Schedule, Step, arrange, loop_around, one_loop

Update = Callable[[Any, Any, Any], Any]


def scan(
    step: Function, params: Any, frames: Any, carry: Any, *, exists: Any = None, masked_update: Update | None = None
) -> tuple[Any, Any]:
    """Scan a step, with the work before and after the carry taken out of the loop.

    The LSTM, GRU and RNN cells in the step, including written-out cells, become sequences. Returns the outputs with
    time as the first axis, and the last carry, equal to the loop of steps up to rounding of batched products.
    """

    def masked(params: Any, frame: tuple[Any, Any], old: Any) -> tuple[Any, Any]:
        outputs, new = step(params, frame[0], old)
        return outputs, new if masked_update is None else masked_update(frame[1], new, old)

    def run(carry: Any, part: tuple[Any, Any]) -> tuple[Any, Any]:
        traced = Step.trace(masked, params, _first(part), carry)
        # Outputs do not matter in frames that do not exist.
        schedule = _with_cells(traced, part, loose=masked_update is not None) or one_loop(traced)
        return _run(schedule, params, part, carry)[::-1]

    params, frames, exists, carry = varying.alike(params, frames, exists, carry)
    last, outputs = in_chunks(run, carry, (frames, exists))
    return outputs, last


def scan_cells(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frames: Any) -> tuple[Any, Any]:
    """Evaluate ``lax.scan(step, carry, frames)`` with recurrent cells as sequences, equal up to rounding."""
    return scan_recognised(step, carry, frames) or varying.scan(step, carry, frames)


def scan_recognised(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frames: Any, *, loose: bool = False
) -> tuple[Any, Any] | None:
    """Evaluate like `scan_cells`; return None without cells, or in plain forms with cells that are not layers.

    While state is traced, no cell is recognised: recognition would take most of the time, and not change the state.
    """
    if not jax.tree.leaves(frames) or only_followed():
        return None
    traced = Step.trace(lambda _, frame, carry: step(carry, frame)[::-1], (), _first(frames), carry)
    schedule = _with_cells(traced, frames, loose=loose, scoped=False)  # the caller has a scope, of a loop
    if schedule is None:
        return None
    if is_plain() and not all(part.is_layer for part in schedule.parts if isinstance(part, RecognisedCell)):
        return None
    return _run(schedule, (), frames, carry)[::-1]


def step_with_layers(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frame: Any) -> tuple[Any, Any]:
    """Evaluate ``step(carry, frame)``; in plain forms, its recurrent cells are layers of a single frame."""
    found = scan_recognised(step, carry, jax.tree.map(lambda array: array[None], frame)) if is_plain() else None
    if found is None:
        return step(carry, frame)
    last, outputs = found
    return last, jax.tree.map(lambda array: array[0], outputs)


def _first(frames: Any) -> Any:
    """Return the shapes of a frame."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), frames)


def _with_cells(step: Step, frames: Any, *, loose: bool = False, scoped: bool = True) -> Schedule | None:
    """Return the schedule of a step over frames with its cells as sequences; None without cells."""
    length = jax.tree.leaves(frames)[0].shape[0]
    return None if isinstance(length, int) and length == 0 else schedule_of_cells(step, loose=loose, scoped=scoped)


def _run(schedule: Schedule, params: Any, frames: Any, carry: Any) -> tuple[Any, Any]:
    """Return the outputs, with time as the first axis, and the last carry."""
    leaves = [jax.tree.leaves(tree) for tree in (params, frames, carry)]
    last, outputs = schedule.run(*leaves)
    return jax.tree.unflatten(schedule.step.structure, [*outputs, *last])


def schedule_of_cells(step: Step, *, loose: bool, scoped: bool = True) -> Schedule | None:
    """Return the schedule of a step in which recurrent cells run as sequences, or None without a usable cell.

    With `scoped`, each cell has the scope of its equations.
    """
    if not step.frame or not step.carry or not _keeps_types(step) or not _has_static_shapes(step) or step.effects:
        return None
    # Over all frames at once, all branches of a condition would run, and a loop would run as long as for any frame.
    if any(e.primitive.name in ("cond", "while") and platforms_of(e) is None for e in step.equations):
        return None
    planner = _Planner(step, loose, scoped)
    parts = planner.parts()
    return arrange(step, parts, planner.final()) if planner.cells else None


def _keeps_types(step: Step) -> bool:
    """Return True if the next carry has the shapes and types of the carry."""
    pairs = zip(step.carry, step.next_carry, strict=True)
    return all((shape_of(a), type_of(a)) == (shape_of(b), type_of(b)) for a, b in pairs)


def _has_static_shapes(step: Step) -> bool:
    """Return True if all sizes are numbers."""
    atoms = [*step.closed.jaxpr.invars, *made_by(step.equations)]
    return all(isinstance(size, int) for atom in atoms for size in shape_of(atom))


class _Planner:
    def __init__(self, step: Step, loose: bool, scoped: bool):
        self.step, self.loose, self.scoped = step, loose, scoped
        self.body = Body(step)
        self.carries = CarryPieces(self.body)
        self.algebra = Algebra(self.body)
        self.next_of = dict(zip(step.carry, step.next_carry, strict=True))
        self.cells: list[CellMatch] = []
        #: The arrays of the carry that a part computes, for each frame and at the end.
        self.covered: set[Var] = set()
        self._known_before_loop: set[Var] = set()

    def parts(self) -> list[Part]:
        """Return all parts that compute the carry, in order."""
        parts: list[Part] = []
        candidates = self.carries.sources()
        while True:
            cell = self._cell(candidates)
            if cell is not None:
                candidates.remove(cell.output)
                self.cells.append(cell)
                self.body.learn([cell.output])
                equation = self.body.equation_of(cell.output) if self.scoped else None
                scope = "" if equation is None else str(equation.source_info.name_stack)
                parts.append(RecognisedCell.of(cell, self.body.is_fixed, scope))
                continue
            open_carries = self._open()
            if not open_carries:
                return parts
            carry = next((carry for carry in open_carries if self.body.is_known(self.next_of[carry])), None)
            if carry is not None:
                self.covered.add(carry)
                self.body.learn([carry])
                parts.append(Delayed.of(carry, all_elements(carry), all_elements(self.next_of[carry])))
                continue
            delayed = self._delayed(open_carries)
            if delayed:
                self.body.learn([variable for part in delayed for variable in part.gives])
                parts += delayed
                continue
            parts.append(self._loop(self._first_group(open_carries), parts))

    def known_at_the_end(self) -> set[Var]:
        """Return the arrays of the carry with only pieces of cells, or copies of such pieces."""
        others = {piece.carry for piece in self.carries.pieces if not self._ends_in_a_cell(piece)}
        return {carry for carry in self.step.carry if carry not in others}

    def final(self) -> list[JaxprEqn]:
        """Return the equations from the final values of cells to final values of the carry.

        If a mask keeps a cell, its final value is already the old value: a masked update copies the new value.
        """
        known = {state.new.atom for cell in self.cells for state in cell.states if isinstance(state.new.atom, Var)}
        updates = self.carries.updates
        equations = [
            equation.replace(primitive=copy_p, invars=[updates[equation.outvars[0]]], params={})
            if equation.outvars[0] in updates
            else equation
            for equation in self.step.equations
        ]
        return needed(equations, [self.next_of[carry] for carry in self.known_at_the_end()], known | self.step.fixed)

    def _ends_in_a_cell(self, piece: CarryPiece) -> bool:
        return any(
            state.new.atom is piece.source.atom and (state.carry is piece.carry or not (cell.mask or piece.mask))
            for cell in self.cells
            for state in cell.states
        )

    def _cell(self, candidates: Iterable[Var]) -> CellMatch | None:
        for variable in candidates:
            cell = match(self.algebra, self.carries, variable)
            if cell is not None and (self.loose or cell.mask is None or self._only_under_mask(cell, cell.output)):
                return cell
        return None

    def _only_under_mask(self, cell: CellMatch, variable: Var) -> bool:
        """Return True if a masked hidden state is only read under its mask."""
        assert cell.mask is not None
        if any(atom is variable for atom in (*self.step.outputs, *self.step.next_carry)):
            return False
        row_of = {place: row for row, places in enumerate(cell.states[0].new.at) for place in places.tolist()}
        for equation in self.body.equations:
            if not any(atom is variable for atom in equation.invars):
                continue
            if entry_of(equation).arithmetic != "select":
                moves = all(joined_positions(equation, index) is not None for index in range(len(equation.outvars)))
                if not moves or not all(self._only_under_mask(cell, moved) for moved in equation.outvars):
                    return False
                continue
            at = all_elements(equation.outvars[0]).at
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
        """Return the unknown variables from which unknown targets are computed, with the targets."""
        open_ = [atom for atom in variables(targets) if not self.body.is_known(atom)]
        return {*open_, *read_by(needed(self.body.equations, open_, self.body.known))} - self.body.known

    def _open(self) -> list[Var]:
        """Return the arrays of the carry that are still needed, in each frame or at the end."""
        final = self.known_at_the_end()
        open_ = [carry for carry in self.step.carry if carry not in final and carry not in self.covered]
        while True:
            reached = self._reached([*self.step.outputs, *(self.next_of[carry] for carry in open_)])
            more = [carry for carry in self.step.carry if carry in reached or carry in open_]
            if len(more) == len(open_):
                return more
            open_ = more

    def _delayed(self, open_carries: list[Var]) -> list[Delayed]:
        """Return the reads of open arrays whose next values are known, as values of the previous frame."""
        parts = []
        reached = self._reached([*self.step.outputs, *(self.next_of[carry] for carry in open_carries)])
        for variable in (variable for variable in self.step.makers if variable in reached):
            before = self.body.source(all_elements(variable))
            if before.atom not in open_carries:
                continue
            for piece in self.carries.pieces:
                if piece.carry is before.atom and piece.mask is None and self.body.is_known(piece.source.atom):
                    order = np.argsort(piece.at)
                    index = order[np.searchsorted(piece.at[order], before.at).clip(max=piece.at.size - 1)]
                    if np.array_equal(piece.at[index], before.at):
                        parts.append(Delayed.of(variable, before, Elements(piece.source.atom, piece.source.at[index])))
                        break
        return parts

    def _first_group(self, open_carries: list[Var]) -> list[Var]:
        """Return arrays that depend on each other and on no other open array."""
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

    def _loop(self, group: list[Var], parts: list[Part]) -> Loop:
        """Return the loop around these arrays, merged with a loop directly before."""
        if parts and isinstance(parts[-1], Loop):
            self.body.known = self._known_before_loop
            group = [*parts[-1].carry, *group]
            parts.pop()
        self._known_before_loop = set(self.body.known)
        loop = loop_around(self.step, group, self.body.known)
        self.covered.update(group)
        self.body.learn(loop.gives)
        return loop
