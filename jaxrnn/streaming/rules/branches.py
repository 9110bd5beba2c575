"""Conditionals, and loops of unknown length, that time passes through."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from jaxrnn._jax import varying
from jaxrnn.jaxprs.primitives import choose, platforms_of
from jaxrnn.streaming.interpreter import interpret
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.reach import union
from jaxrnn.streaming.rules.elementwise import refuse_final_values
from jaxrnn.streaming.rules.templates import Template, around, array_of, arrays_of, made, templates_of
from jaxrnn.streaming.values import Chunk


def while_(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """A loop of unknown length: time may pass through it, if it keeps nothing from frame to frame.

    Its condition may be one for each frame, as `jax.vmap` makes it: a frame then stays as it is once its own is false.
    """
    refuse_final_values(run, operands)
    params = equation.params
    heads, bodies = params["cond_nconsts"], params["body_nconsts"]
    spread = [run.spread(value) if isinstance(value, Chunk) else value for value in operands]
    operands = tuple(run.together(*spread))
    test_consts, body_consts = operands[:heads], operands[heads : heads + bodies]
    start = operands[heads + bodies :]
    reach = union(value.reach for value in operands if isinstance(value, Chunk))
    kinds = [Template.of(value) for value in start]

    def inner(part: Any, values: list[Any]) -> tuple[Pass, list[Any]]:
        child = run.child("", None)
        results = interpret(child, part, values)
        if child.new:
            run.refuse(
                "its body remembers past frames, or sums over time, and its number of rounds is not known while "
                "tracing",
                "use a loop of known length (lax.scan, or fori_loop with constant bounds)",
            )
        return child, results

    def going(arrays: Any) -> Any:
        """The condition: one for all, or one for each frame (and other rows in front), false where none exists."""
        child, (value,) = inner(params["cond_jaxpr"], [*test_consts, *around(kinds, arrays)])
        return child.fill(child.spread(value), False).array if isinstance(value, Chunk) else array_of(value)

    def body(arrays: Any) -> list[Any]:
        child, values = inner(params["body_jaxpr"], [*body_consts, *around(kinds, arrays)])
        values = [child.spread(value) if isinstance(value, Chunk) else value for value in values]
        if any(Template.of(a).is_same_as[:4] != kind.is_same_as[:4] for a, kind in zip(values, kinds, strict=True)):
            run.refuse(
                "a round changes the time axis or the delay of its carry",
                "start with arrays that have the time axis that the body returns",
            )
        here = going(arrays)
        if here.ndim == 0:
            return arrays_of(values)
        return [
            jnp.where(here.reshape(*here.shape, *(1,) * (before.ndim - here.ndim)), after, before)
            for after, before in zip(arrays_of(values), arrays, strict=True)
        ]

    last = varying.while_loop(lambda arrays: jnp.any(going(arrays)), body, [jnp.asarray(array_of(x)) for x in start])
    results = [made(run, kind, array) for kind, array in zip(kinds, last, strict=True)]
    return [dataclasses.replace(each, reach=reach) if isinstance(each, Chunk) else each for each in results]


def cond(run: Pass, equation: JaxprEqn, index: Any, *operands: Any) -> list[Any]:
    """A choice that is the same in every step, that by platform too; the branches keep state each for itself."""
    refuse_final_values(run, [index, *operands])
    branches, platforms = equation.params["branches"], platforms_of(equation)
    # A choice by platform is no part of the model: what else bears its name keeps it, whether there is a choice or not.
    prefix = run.unique(f"{run.prefix}{run.here or 'cond'}{'.platform' if platforms else ''}") + "/"
    inputs = [Template.of(value) for value in operands]

    def trial(place: int, delays: list[Any] | None, state: Any) -> Any:
        def branch(arrays: Any) -> Any:
            child = run.child(f"{prefix}{place}/", state)
            outs = interpret(child, branches[place], around(inputs, arrays))
            if delays is not None:
                outs = [_late(child, out, delay) for out, delay in zip(outs, delays, strict=True)]
            return outs, child

        return branch

    arrays = [jnp.asarray(array_of(value)) for value in operands]
    kinds = [
        templates_of(lambda arrays, place=place: trial(place, None, None)(arrays)[0], arrays)
        for place in range(len(branches))
    ]
    delays = [_common(run, choices) for choices in zip(*kinds, strict=True)]
    before = run.state
    if before is None:
        before = {}
        for place in range(len(branches)):
            _, child = trial(place, delays, None)(arrays)
            before.update(child.begun)
        run.begun.update(before)
    own = {name: value for name, value in before.items() if name.startswith(prefix)}
    results: list[Template] = []

    def choice(place: int) -> Any:
        def branch(arrays: Any, state: Any) -> Any:
            outs, child = trial(place, delays, state)(arrays)
            results[:] = map(Template.of, outs)
            return arrays_of(outs), {**state, **child.new}

        return branch

    choices = [choice(place) for place in range(len(branches))]
    if platforms:
        chosen, kept = choose(platforms, choices, arrays, own)
    else:
        chosen, kept = varying.switch(jnp.asarray(index), choices, arrays, own)
    run.new.update(kept)
    return [made(run, kind, array) for kind, array in zip(_reaching(results, kinds), chosen, strict=True)]


def _reaching(results: list[Template], kinds: list[list[Template]]) -> list[Template]:
    """Results of one branch, with the reach of all of them."""
    merged = []
    for result, *choices in zip(results, *kinds, strict=True):
        if result.chunk is not None:
            reach = union(choice.chunk.reach for choice in choices if choice.chunk is not None)
            result = Template(dataclasses.replace(result.chunk, reach=reach))
        merged.append(result)
    return merged


def _common(run: Pass, choices: Any) -> int | None:
    if any(kind.final for kind in choices):
        run.refuse("a branch returns a value that is known only at the end", "compute it outside of the branch")
    if not all(kind.chunk is not None for kind in choices):
        return None
    return max((kind.delay for kind in choices if kind.delay is not None), default=None)


def _late(run: Pass, value: Any, delay: int | None) -> Any:
    if not isinstance(value, Chunk) or delay is None:
        return value
    return run.delayed(run.spread(value, delay), delay)


RULES: dict[str, Any] = {"while": while_, "cond": cond}
