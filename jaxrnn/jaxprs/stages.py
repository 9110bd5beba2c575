"""split: cut one step of a recurrence into what depends on what.

A step is a function of parameters, one frame and a carry. Its equations fall into four stages:

- *pack*: depend on parameters alone; computed once.
- *before*: depend on the frame but not on the carry; computed for all frames at once, before the loop.
- *core*: what the next carry needs of the carry; the loop itself.
- *after*: depends on the carry, but no carry depends on it; computed for all frames at once, behind the loop.

Stages hand their results on as residuals. An equation that only makes a small value large (a broadcast) is repeated in
every stage that uses it rather than handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from jaxrnn.jaxprs.equations import Environment, read, run, trace, variables

PACK, BEFORE, CORE, AFTER = range(4)


@dataclass(frozen=True)
class Stages:
    """The step, cut. Values go between stages as lists of arrays, in the order of the variables listed here."""

    closed: ClosedJaxpr
    equations: tuple[tuple[JaxprEqn, ...], ...]
    repeated: tuple[tuple[JaxprEqn, ...], ...]
    #: By stage, the variables that it takes from each earlier stage, its own kind of input included.
    inputs: tuple[tuple[Var, ...], ...]
    params: tuple[Var, ...]
    frame: tuple[Var, ...]
    carry: tuple[Var, ...]
    outputs: tuple[Var | Literal, ...]
    next_carry: tuple[Var | Literal, ...]
    stage_of: dict[Var, int]
    structure: Any

    @property
    def folded(self) -> tuple[Var, ...]:
        """The variables that the pack stage hands on, unchanged parameters among them."""
        later = (variable for stage in (BEFORE, CORE, AFTER) for variable in self.inputs[stage])
        closed_over = set(self.closed.jaxpr.constvars)
        return tuple(dict.fromkeys(v for v in later if self.stage_of[v] == PACK and v not in closed_over))

    def results(self, environment: Environment) -> Any:
        """What the step returned, from an environment that holds all of it."""
        leaves = collect((*self.outputs, *self.next_carry), environment)
        return jax.tree.unflatten(self.structure, leaves)

    def constants(self) -> Environment:
        """The values that the step closed over."""
        return dict(zip(self.closed.jaxpr.constvars, self.closed.consts, strict=True))


def cut(step: Callable[..., Any], params: Any, frame: Any, carry: Any) -> Stages:
    """Trace ``step(params, frame, carry) -> (outputs, carry)`` and cut it into stages."""
    closed, structure = trace(step, params, frame, carry)
    jaxpr = closed.jaxpr
    sizes = [len(jax.tree.leaves(tree)) for tree in (params, frame, carry)]
    first, second = sizes[0], sizes[0] + sizes[1]
    groups = jaxpr.invars[:first], jaxpr.invars[first:second], jaxpr.invars[second:]
    outputs, next_carry = jaxpr.outvars[: len(jaxpr.outvars) - sizes[2]], jaxpr.outvars[len(jaxpr.outvars) - sizes[2] :]

    stage_of: dict[Var, int] = dict.fromkeys((*jaxpr.constvars, *groups[0]), PACK)
    stage_of.update(dict.fromkeys(groups[1], BEFORE))
    stage_of.update(dict.fromkeys(groups[2], CORE))
    needed = needed_by(jaxpr.eqns, next_carry)
    staged: list[list[JaxprEqn]] = [[], [], [], []]
    for equation in jaxpr.eqns:
        stage = max((stage_of[variable] for variable in variables(equation.invars)), default=PACK)
        if stage >= CORE:
            stage = CORE if any(variable in needed for variable in equation.outvars) else AFTER
        elif equation.effects:
            stage = CORE
        staged[stage].append(equation)
        stage_of.update(dict.fromkeys(equation.outvars, stage))
    repeated, inputs = _hand_on(staged, stage_of, outputs, next_carry)
    return Stages(
        closed=closed,
        equations=tuple(map(tuple, staged)),
        repeated=repeated,
        inputs=inputs,
        params=tuple(groups[0]),
        frame=tuple(groups[1]),
        carry=tuple(groups[2]),
        outputs=tuple(outputs),
        next_carry=tuple(next_carry),
        stage_of=stage_of,
        structure=structure,
    )


def needed_by(equations: Sequence[JaxprEqn], results: Sequence[Var | Literal]) -> set[Var]:
    """Every variable that the results are computed from."""
    needed = set(variables(results))
    for equation in reversed(equations):
        if any(variable in needed for variable in equation.outvars):
            needed.update(variables(equation.invars))
    return needed


def _hand_on(
    staged: list[list[JaxprEqn]],
    stage_of: dict[Var, int],
    outputs: Sequence[Var | Literal],
    next_carry: Sequence[Var | Literal],
) -> tuple[tuple[tuple[JaxprEqn, ...], ...], tuple[tuple[Var, ...], ...]]:
    """For each stage, the equations to repeat in it, and the variables to hand to it."""
    producer = {variable: equation for group in staged for equation in group for variable in equation.outvars}
    repeated, inputs = [], []
    for stage, group in enumerate(staged):
        wanted = [variable for equation in group for variable in variables(equation.invars)]
        if stage == CORE:
            wanted += variables(next_carry)
        if stage == AFTER:
            wanted += variables(outputs)
        again: list[JaxprEqn] = []
        taken: dict[Var, None] = {}
        seen: set[Var] = set()
        while wanted:
            variable = wanted.pop()
            if variable in seen or (stage_of[variable] == stage and variable in producer):
                continue
            seen.add(variable)
            maker = producer.get(variable)
            if maker is not None and _repeats(maker):
                again.append(maker)
                wanted += variables(maker.invars)
            else:
                taken[variable] = None
        order = {id(equation): index for index, equation in enumerate(e for g in staged for e in g)}
        repeated.append(tuple(sorted(again, key=lambda equation: order[id(equation)])))
        inputs.append(tuple(taken))
    return tuple(repeated), tuple(inputs)


def _repeats(equation: JaxprEqn) -> bool:
    """Whether an equation only repeats a value along new axes, at no cost worth remembering."""
    return equation.primitive.name in ("broadcast_in_dim", "iota")


def run_stage(stages: Stages, stage: int, values: Environment) -> Environment:
    """Evaluate one stage on the variables handed to it; the environment with all its results."""
    environment = {**stages.constants(), **values}
    run(stages.repeated[stage], environment)
    run(stages.equations[stage], environment)
    return environment


def collect(atoms: Sequence[Var | Literal], environment: Environment) -> list[Any]:
    """The values of some operands."""
    return [read(atom, environment) for atom in atoms]
