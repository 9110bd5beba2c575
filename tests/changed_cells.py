"""Steps that are a recurrent cell but for some changes at random: most are no cell, some are another one."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np

ROWS, UNITS, MATRICES = 2, 3, 6
_DRAW = np.random.default_rng(0).normal
#: Matrices of the frame and of the hidden state, and biases.
W, R, B = (
    [jnp.asarray(0.6 * _DRAW(size=shape)) for _ in range(MATRICES)]
    for shape in ((UNITS, UNITS), (UNITS, UNITS), (UNITS,))
)

FUNCTIONS = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "neg": jnp.negative,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "written sigmoid": lambda x: 1 / (1 + jnp.exp(-x)),
    "relu": jax.nn.relu,
    "maximum": lambda x: jnp.maximum(x, 0),
    "rows": lambda x: x[::-1],
    "units": lambda x: jnp.roll(x, 1, 1),
}


def gate(index):
    return ("add", ("add", ("W", index), ("R", index, ("h",))), ("B", index))


def sigmoid(index):
    return ("sigmoid", gate(index))


def cells():
    """What the two arrays of the carry become, as terms; only an LSTM has a use for the second one."""
    c = ("add", ("mul", sigmoid(0), ("c",)), ("mul", sigmoid(1), ("tanh", gate(2))))
    z, r, kept = sigmoid(0), sigmoid(1), ("mul", ("number", 0.5), ("c",))
    after = ("tanh", ("add", ("add", ("W", 2), ("B", 3)), ("mul", r, ("add", ("R", 2, ("h",)), ("B", 2)))))
    before = ("tanh", ("add", ("add", ("W", 2), ("B", 2)), ("R", 2, ("mul", r, ("h",)))))
    return [
        (("mul", sigmoid(3), ("tanh", c)), c),
        (("add", ("mul", ("sub", ("number", 1.0), z), after), ("mul", z, ("h",))), kept),
        (("add", before, ("mul", z, ("sub", ("h",), before))), kept),
        (("tanh", gate(0)), kept),
        (("relu", gate(0)), kept),
    ]


def places(term, place=()):
    """Where the terms inside of a term are."""
    for index, part in enumerate(term):
        if isinstance(part, tuple):
            yield (*place, index)
            yield from places(part, (*place, index))


def part_at(term, place):
    for index in place:
        term = term[index]
    return term


def replaced(term, place, part):
    if not place:
        return part
    first, *rest = place
    return (*term[:first], replaced(term[first], tuple(rest), part), *term[first + 1 :])


def changed(chance: random.Random, term):
    """A term with one change."""
    place = chance.choice(list(places(term)))
    part, index = part_at(term, place), chance.randrange(MATRICES)
    leaf = chance.choice([("W", index), ("R", index, ("h",)), ("B", index), ("h",), ("c",), ("x",), ("number", 2.0)])
    other = chance.choice([leaf, ("relu", ("neg", leaf)), ("mul", ("number", 0.0), leaf)])
    number = ("number", chance.choice([0.5, 2.0, -1.0, -0.5]))
    new = chance.choice(
        [
            ("mul", number, part),
            ("add", part, other),
            ("mul", part, other),
            ("sub", leaf, part),
            (chance.choice(list(FUNCTIONS)[3:]), part),
            part_at(term, chance.choice(list(places(term)))),
            leaf,
        ]
    )
    return replaced(term, place, new)


def value(term, h, c, x):
    """The array that a term is."""
    name, *rest = term
    if name in FUNCTIONS:
        return FUNCTIONS[name](*(value(part, h, c, x) for part in rest))
    match name:
        case "h":
            return h
        case "c":
            return c
        case "x":
            return x
        case "number":
            return jnp.full((ROWS, UNITS), rest[0], x.dtype)
        case "W":
            return x @ W[rest[0]].astype(x.dtype)
        case "R":
            return value(rest[1], h, c, x) @ R[rest[0]].astype(x.dtype)
        case "B":
            return jnp.broadcast_to(B[rest[0]].astype(x.dtype), (ROWS, UNITS))
    raise ValueError(name)


def steps(seed: int, count: int):
    """So many different steps ``(carry, x) -> (carry, outputs)``."""
    chance, seen = random.Random(seed), set()
    while len(seen) < count:
        terms = chance.choice(cells())
        for _ in range(chance.randint(0, 3)):
            terms = changed(chance, terms)
        if terms in seen:
            continue
        seen.add(terms)

        def step(carry, x, terms=terms):
            new = tuple(value(term, *carry, x) for term in terms)
            return new, new

        yield terms, step
