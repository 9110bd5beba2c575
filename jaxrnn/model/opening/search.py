"""The search for the constants of a graph that follow from the lengths of opened axes.

The graph is evaluated node by node with the axes as symbols (`Opening`). The equations of the graph decide between the
number in a `BakedPlace` and its readings: a node that fails with the number gets a reading. A place that no equation
decides is asked, and a constant that no reading explains is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn._jax.context import exact_types
from jaxrnn.cells.forms import plain_forms
from jaxrnn.errors import InputError, JaxrnnError, LimitError, ModelError
from jaxrnn.model.opening.formulas import Openings, SizeFormulas, multiple
from jaxrnn.model.opening.places import BakedPlace, Choice, Places, agree, is_size
from jaxrnn.onnx import ir, symbols
from jaxrnn.onnx.binding import BoundGraph
from jaxrnn.onnx.evaluate import Block, BoundNode, Scope, call, copied_from, evaluate, reads_of
from jaxrnn.onnx.graph import bind_static, spec_of
from jaxrnn.onnx.registry import Movement
from jaxrnn.onnx.values import Value, is_static, settle, traced
from jaxrnn.streaming.dimensions import expression, names_in

#: The kinds of places in operands that stay known integers.
_OF_SIZES = ("element", "layout")
#: The most evaluations of a node, each with other readings.
_ATTEMPTS = 300
#: The most evaluations of a graph, each with other readings.
_TRIALS = 200


class _ConflictError(Exception):
    """The error for a node that no reading of the operands fits."""

    def __init__(self, node: BoundNode, cause: Exception):
        super().__init__(str(cause))
        self.node, self.cause = node, cause


@dataclass
class Written:
    """An operand of a node with readings in place of numbers.

    Attributes:
        array: the operand in the file.
        value: the operand with formulas in place of elements.
        readings: the places and their formulas.
    """

    array: np.ndarray
    value: Value
    readings: list[tuple[BakedPlace, Any]]


@dataclass
class Trial:
    """An evaluation of the graph with a choice of readings.

    Attributes:
        chosen: the readings of places.
        finder: the known sizes in this evaluation.
        places: the places of all evaluated nodes, in order.
        written: the operands with readings, by the first output of the node and the number of the operand.
        passed: the first outputs of the nodes that were evaluated.
        outputs: the shapes of the outputs.
        failed: the error of the first node that no reading fits, or None.
    """

    chosen: Choice
    finder: Places
    places: dict[tuple[Any, ...], BakedPlace] = field(default_factory=dict)
    written: dict[tuple[ir.Value, int], Written] = field(default_factory=dict)
    passed: set[ir.Value] = field(default_factory=set)
    outputs: tuple[Any, ...] = ()
    failed: _ConflictError | None = None


class Opening:
    """The search for the constants of a graph that follow from the lengths of axes."""

    def __init__(
        self,
        program: BoundGraph,
        opened: Openings,
        *,
        static: Mapping[str, Any] | None = None,
        along: str | None = None,
        producer: str = "",
    ):
        """Take axes to open, or with `along` an open dimension of the file that is followed as if it was opened."""
        self.program, self.producer = program, producer
        inputs = self.program.block.inputs
        names = {str(value.name) for value in inputs}
        self.opened = {name: dict(axes) for name, axes in opened.items() if name in names}
        #: What the caller says of constants: numbers that stay, and names of dimensions that they follow.
        constants = {name: given for name, given in opened.items() if name not in self.opened}
        self.said = {(name, place): each for name, given in constants.items() for place, each in given.items()}
        self.static = bind_static(tuple(map(spec_of, inputs)), static or {})
        self.sizes = SizeFormulas([value for value in inputs if value.name not in self.static], self.opened)
        if along is not None:
            self.sizes.opened.add(self.sizes.names[along])
        #: The shapes and known integers of each value in the file, as it is, one for each evaluation of a loop's body.
        self._before: dict[ir.Value, set[Any]] = {}
        self._constants: dict[ir.Value, np.ndarray] = {}
        self._makers: dict[ir.Value, BoundNode] = {}
        #: For each node of a body, by the first output: the node with the body, and the nodes of the body.
        self._around: dict[ir.Value, list[BoundNode]] = {}
        for block in _blocks(self.program.block):
            self._makers |= block.makers()
            self._constants |= block.constants
            self._constants |= {value: self.program.parameters[name] for value, name in block.parameters.items()}
            for node in block.nodes:
                self._around |= {each.outputs[0]: [node, *inner.nodes] for inner in node.blocks for each in inner.nodes}
        copies = {value: copied_from(value, self._makers) for value, node in self._makers.items()}
        self._constants |= {value: self._constants[key] for value, key in copies.items() if key in self._constants}
        self._constraints: tuple[str, ...] = ()
        self._trials = 0

    def solved(self) -> Trial:
        """Return an evaluation in which every place is decided, or raise a ModelError."""
        self.read()
        trial = self._solve({}, frozenset())
        if trial.failed is not None:
            # Comparisons that recordings shorter than in the file would decide differently.
            symbols = sorted(self.sizes.opened)
            self._constraints = tuple(f"{symbol} >= {self.sizes.numbers[symbol]}" for symbol in symbols)
            trial = self._solve({}, frozenset())
        if trial.failed is not None:
            raise self._refused(trial.failed)
        self._check_said(trial)
        self._check_decided(trial)
        return trial

    def read(self) -> None:
        """Evaluate the unchanged file, and keep all sizes."""
        failed = self._evaluated(self._record, None)
        if failed is not None:
            raise ModelError(
                f"the file cannot be evaluated at its own length, so no axis can be opened: {first_line(failed.cause)}"
            )

    def _solve(self, chosen: Choice, fixed: frozenset[Any]) -> Trial:
        """Choose readings until the graph can be evaluated; the result has `failed` if no choice does."""
        trial = self.tried(chosen)
        while trial.failed is not None:
            node, places = trial.failed.node.outputs[0], self._free(trial, fixed)
            others = (
                {**trial.chosen, place.key: reading}
                for place in places
                for reading in (*map(str, place.readings), None)
                if trial.chosen.get(place.key) != reading
            )
            passing = (better for each in others if node in (better := self.tried(each)).passed)
            found = next(passing, None) or self._all_of(trial, node, places)
            if found is None:
                return trial
            trial = found
        return trial

    def _free(self, trial: Trial, fixed: frozenset[Any]) -> list[BakedPlace]:
        """Return the places that the failed node depends on and that may have another reading, the last first."""
        assert trial.failed is not None, "a trial without an error needs no other readings"
        before = self._upstream(trial.failed.node)
        return [
            place
            for place in reversed(trial.places.values())
            if place.readings
            and place.key not in fixed
            and not self._is_said(place)
            and place.node.outputs[0] in before
        ]

    def _upstream(self, node: BoundNode) -> set[ir.Value]:
        """Return the first outputs of the nodes that a node depends on; in a body these are all nodes of the body."""
        found: set[ir.Value] = set()
        pending = [node]
        while pending:
            each = pending.pop()
            if each.outputs[0] not in found:
                found.add(each.outputs[0])
                pending += [self._makers[value] for value in reads_of(each) if value in self._makers]
                pending += self._around.get(each.outputs[0], ())
        return found

    def _all_of(self, trial: Trial, node: ir.Value, places: Sequence[BakedPlace]) -> Trial | None:
        """Return an evaluation that passes a node with as few further readings as possible, or None."""
        chosen, added, found = dict(trial.chosen), [], None
        for place in places:
            if chosen.get(place.key) is None:
                chosen[place.key] = str(place.readings[0])
                added.append(place.key)
                if len(added) > 1 and node in (found := self.tried(chosen)).passed:
                    break
        if found is None or node not in found.passed:
            return None
        for key in added[:-1]:
            without = self.tried({**found.chosen, key: None})
            found = without if node in without.passed else found
        return found

    def _check_decided(self, trial: Trial) -> None:
        """Ask for the numbers that no equation decides."""
        known: set[Any] = set()  # the places that no reading fits, whatever the others are
        for key, place in trial.places.items():
            if trial.chosen.get(key) is not None or self._is_said(place):
                continue
            if place.doubt:
                raise self._asked(place, place.doubt)
            if place.number == 1:
                continue  # an axis of one element fits all sizes
            for reading in map(str, place.readings):
                if self._solve({**trial.chosen, key: reading}, frozenset({key, *known})).failed is None:
                    formula = self.sizes.spelled(reading)
                    raise self._asked(place, f"may be a number of its own, or {formula}: the graph fits both")
            known.add(key)

    def _check_said(self, trial: Trial) -> None:
        """Refuse an answer about a constant without this place."""
        places = {(place.name, place.index) for place in trial.places.values()}
        for name, index in self.said.keys() - places:
            raise InputError(
                f"`dims={ {name: {index: self.said[name, index]}} }`: no input has this name, and no constant of this "
                f"name has a number at {index} that may follow from the length"
            )

    def _is_said(self, place: BakedPlace) -> bool:
        return (place.name, place.index) in self.said

    def _asked(self, place: BakedPlace, doubt: str) -> ModelError:
        """Return the error that asks about a number."""

        def line(said: Any) -> str:
            own = {**self.opened.get(place.name, {}), place.index: said}
            return f"`jaxrnn.load(path, dims={ {**self.opened, place.name: own} })`"

        number = int(place.number) if float(place.number).is_integer() else place.number
        answers = [f"{line(number)} if it is a number of its own"]
        for formula in place.readings[:1]:
            symbol = min(names_in(expression(formula)) & self.sizes.opened)
            answers.append(f"{line(self.sizes.spelled(symbol))} if it is {self.sizes.spelled(formula)}")
        if not place.readings:
            answers.append("if not, export the network with an open axis")
        where = f"node {place.node.name!r} ({place.node.operator}): the number {place.number:g} of {place.name!r}"
        return ModelError(f"{where} {doubt}. Say what it is: {'; '.join(answers)}")

    def _refused(self, conflict: _ConflictError) -> ModelError:
        """Return the error for a node that fixes the length."""
        axes = ", ".join(f"axis {axis} of {name!r}" for name, given in self.opened.items() for axis in given)
        lengths = {self.sizes.numbers[symbol] for symbol in self.sizes.opened}
        others = [
            f"axis {axis} of {name!r}"
            for name, shape in self.sizes.shapes.items()
            for axis, size in enumerate(shape)
            if size in lengths and axis not in self.opened.get(name, {})
        ]
        constants = [
            f"{key.name!r} {list(array.shape)}"
            for key in conflict.node.inputs
            if key is not None and (array := self._constants.get(key)) is not None and array.size > 1
        ]
        node = f"node {conflict.node.name!r} ({conflict.node.operator})"
        text = f"{axes} cannot be opened: {node}: {first_line(conflict.cause).rstrip('.')}"
        if constants:
            text += f". The length is in the graph, perhaps in the constant {' or '.join(constants)}"
        if others:
            text += f". If {' or '.join(others)} has the same length, open it too"
        return ModelError(f"{text}. Otherwise export the network with an open axis")

    def tried(self, chosen: Choice) -> Trial:
        """Evaluate the graph with a choice of readings."""
        self._trials += 1
        if self._trials > _TRIALS:
            raise ModelError(
                f"the constants that follow from the length were not found in {_TRIALS} trials; export the network "
                "with an open axis"
            )
        trial = Trial(dict(chosen), Places(self.sizes, self._constants, self._before, self.producer))
        trial.failed = self._evaluated(functools.partial(self._called, trial), trial)
        return trial

    def _evaluated(self, caller: Any, trial: Trial | None) -> _ConflictError | None:
        """Evaluate the graph, for a trial with symbols in place of the lengths; return the error of a node."""
        block, scope = self.program.block, jax.export.SymbolicScope(self._constraints if trial else ())
        structs: dict[str, Any] = {}
        for spec in map(spec_of, block.inputs):
            if spec.name not in self.static:
                if spec.shape is None or spec.dtype is None or spec.is_text:
                    raise InputError(f"{spec.as_input} has no declared rank or holds strings, so no axis can be opened")
                shape = self.sizes.shape(spec.name, scope, opened=trial is not None)
                structs[spec.name] = jax.ShapeDtypeStruct(shape, spec.dtype)
                if trial is not None:
                    trial.finder.see(shape)
        arrays = self.program.parameters.items()
        params = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays}

        def applied(params: Any, arrays: Any) -> list[Any]:
            given = {**self.static, **arrays}
            values = [given[str(key.name)] for key in block.inputs]
            outputs = evaluate(block, values, Scope(params, caller=caller))
            if trial is not None:
                trial.outputs = tuple(getattr(value, "shape", None) for value in outputs)
            return [traced(value) for value in outputs if hasattr(value, "shape")]

        try:
            with exact_types(), plain_forms(), jax.disable_jit(False):
                jax.eval_shape(applied, params, structs)
        except JaxrnnError as error:
            if isinstance(error, (InputError, LimitError)):
                raise
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, _ConflictError):
                cause = cause.__cause__
            return _ConflictError(getattr(error, "node", None) or block.nodes[-1], error) if cause is None else cause
        return None

    def _record(self, node: BoundNode, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
        """Evaluate a node of the unchanged file, and keep its sizes."""
        outputs = call(node, inputs, scope)
        for key, value in zip(node.outputs, outputs, strict=False):
            self._before.setdefault(key, set()).add(self._facts(value))
        return outputs

    def _facts(self, value: Value) -> Any:
        shape = getattr(value, "shape", None)
        if shape is None:
            return None
        known = None
        if is_static(value) and value.dtype.kind in "iuO" and value.size <= 64:
            known = tuple(self.sizes.number(item) if is_size(item) else None for item in value.flat)
        return tuple(map(self.sizes.number, shape)), known

    def _called(self, trial: Trial, node: BoundNode, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
        """Evaluate a node on the chosen readings of its places, or on the first readings that fit."""
        own = list(trial.finder.of(node, inputs, scope))
        for place in own:
            trial.places[place.key] = place
            said = self.said.get((place.name, place.index))
            if said is not None:
                trial.chosen[place.key] = self._reading_of(place, said)
            elif place.key not in trial.chosen and place.is_open:
                trial.chosen[place.key] = str(place.readings[0])
        outputs = self._first_that_fits(trial, node, inputs, own, scope)
        trial.passed.add(node.outputs[0])
        chosen = [(place, formula) for place in own if (formula := place.chosen(trial.chosen)) is not None]
        values = self._with(inputs, [place for place, _ in chosen if place.kind in _OF_SIZES], trial.chosen)
        for place, formula in chosen:
            array = self._constants.get(place.value)
            if place.kind == "limit":
                written = Written(np.asarray(array), symbols.each(lambda _, size=formula: size, np.asarray(array)), [])
            else:
                written = Written(inputs[place.operand] if array is None else array, values[place.operand], [])
            trial.written.setdefault((place.node.outputs[0], place.operand), written).readings.append((place, formula))
        trial.finder.note(node, self._with(inputs, own, trial.chosen), outputs, scope)
        return outputs

    def _reading_of(self, place: BakedPlace, said: Any) -> str | None:
        """Return the reading in the caller's answer."""
        if not isinstance(said, str):
            if not math.isclose(said, place.number, rel_tol=1e-5):
                raise InputError(f"dims: {place.name!r} has {place.number:g} at {place.index}, not {said:g}")
            return None
        symbol = self.sizes.names.get(multiple(said)[1])
        for formula in place.readings:
            if symbol is not None and symbol in names_in(expression(formula)):
                return str(formula)
        raise InputError(
            f"dims: {place.number:g} in {place.name!r} at {place.index} is no size that follows from {said}"
        )

    def _first_that_fits(
        self, trial: Trial, node: BoundNode, inputs: Sequence[Value], own: Sequence[BakedPlace], scope: Scope
    ) -> tuple[Value, ...]:
        def attempt(chosen: Choice) -> tuple[Value, ...]:
            operands = self._with(inputs, own, chosen)
            outputs = call(*_limited(node, operands, own, chosen, scope))
            self._check_sizes(node, operands, outputs)
            for key, value in zip(node.outputs, outputs, strict=False):
                facts, known = self._facts(value), self._before.get(key, {})
                if facts is not None and known and not any(agree(facts, each) for each in known):
                    shapes = " or ".join(str(list(each[0])) for each in known if each is not None)
                    raise ValueError(
                        f"the result has the shape {list(facts[0])} at the length of the file, not {shapes}"
                    )
            return outputs

        try:
            return attempt(trial.chosen)
        except LimitError:
            raise
        except Exception as error:
            first = error
        free = [
            each for each in own if each.readings and trial.chosen.get(each.key) is None and not self._is_said(each)
        ]
        # As few readings as possible.
        single = ({each.key: str(reading)} for each in free for reading in each.readings)
        several = itertools.chain.from_iterable(itertools.combinations(free, n) for n in range(2, len(free) + 1))
        joint = ({each.key: str(each.readings[0]) for each in places} for places in several)
        for added in itertools.islice(itertools.chain(single, joint), _ATTEMPTS):
            chosen = {**trial.chosen, **added}
            try:
                outputs = attempt(chosen)
            except Exception:  # operators raise any error on sizes that do not fit
                continue
            trial.chosen.update(added)
            return outputs
        raise _ConflictError(node, first) from first

    def _check_sizes(self, node: BoundNode, operands: Sequence[Value], outputs: Sequence[Value]) -> None:
        """Refuse sizes that ONNX needs to be equal, and that JAX broadcasts or does not compare."""
        shapes = [getattr(value, "shape", None) for value in operands]
        traits, pairs = node.operator.traits, []
        if traits.moves is Movement.REARRANGES and shapes[0] is not None:
            pairs = [(math.prod(shapes[0]), math.prod(outputs[0].shape))]
        elif traits.equal_sizes is not None and traits.moves is None:
            pairs = list(traits.equal_sizes(node.attributes, shapes, ()))
        for first, second in pairs:
            if not self.sizes.are_equal(first, second):
                raise ValueError(
                    f"the sizes {self.sizes.spelled(first)} and {self.sizes.spelled(second)} must be equal"
                )

    def _with(self, inputs: Sequence[Value], own: Sequence[BakedPlace], chosen: Choice) -> list[Value]:
        """Return the operands of a node with readings in place of numbers."""
        values = list(inputs)
        for place in own:
            formula = place.chosen(chosen)
            if formula is None:
                continue
            value = values[place.operand]
            if place.kind == "element":
                items = np.array(value, object)
                items.reshape(-1)[place.index] = formula
                value = settle(items)
            elif place.kind == "layout":
                value = settle(np.array([*formula, None], object)[:-1])
            elif place.kind in ("axis", "band"):  # of a band, the shape is enough
                for axis in place.axes:
                    one = jax.lax.slice_in_dim(traced(value), 0, 1, axis=axis)
                    value = jnp.broadcast_to(one, (*value.shape[:axis], formula, *value.shape[axis + 1 :]))
            elif place.kind in ("range", "count", "reversed"):
                line = jnp.arange(formula, dtype=jnp.int64)
                line = formula - 1 - line if place.kind == "reversed" else line + int(place.kind == "count")
                line = line.astype(value.dtype)
                value = line.reshape([1 if size == 1 else formula for size in value.shape])
            values[place.operand] = value
        return values


def _limited(
    node: BoundNode, operands: Sequence[Value], own: Sequence[BakedPlace], chosen: Choice, scope: Scope
) -> tuple[BoundNode, Sequence[Value], Scope]:
    """Return the arguments of `call`, for a loop with the readings of the numbers in its condition."""
    limits: dict[ir.Value, Any] = {}
    for place in own:
        formula = place.chosen(chosen) if place.kind == "limit" else None
        if formula is not None:
            array = np.asarray(scope.find(place.value) if scope.find(place.value) is not None else 0)
            item = symbols.IntegralFloat(formula, array.dtype) if array.dtype.kind == "f" else formula
            limits[place.value] = symbols.boxed(item).reshape(array.shape)
    if not limits:
        return node, operands, scope
    inner = Scope(scope.params, scope, scope.caller, scope.block)
    for key, value in limits.items():
        inner[key] = value
    attributes = {
        name: dataclasses.replace(
            each, constants={key: limits.get(key, array) for key, array in each.constants.items()}
        )
        if isinstance(each, Block)
        else each
        for name, each in node.attributes.items()
    }
    return dataclasses.replace(node, attributes=attributes), operands, inner


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for node in block.nodes:
        for inner in node.blocks:
            yield from _blocks(inner)
