"""Value numbers: equal computations have equal fingerprints, and other programs never do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrnn.jaxprs.numbering import fingerprint

X = jax.ShapeDtypeStruct((4, 3), np.float32)
WEIGHTS = [np.arange(20_000, dtype=np.float32) + start for start in (0, 1)]


def unread(x):
    jnp.cos(x)
    return jnp.sin(x) + 1


def in_order(x):
    a, b = jnp.sin(x), jnp.cos(x)
    return a - b


def in_another_order(x):
    b, a = jnp.cos(x), jnp.sin(x)
    return a - b


def loop(body):
    return lambda x: lax.scan(body, x[0], x)


EQUAL = {
    "another trace": (lambda x: jnp.sin(x) * 2, lambda y: jnp.sin(y) * 2),
    "an unread result": (lambda x: jnp.sin(x) + 1, unread),
    "the order of equations": (in_order, in_another_order),
    "a computation twice": (lambda x: jnp.sin(x) * jnp.sin(x), lambda x: (lambda y: y * y)(jnp.sin(x))),
    "a copied constant": (lambda x: x[0, 0] + WEIGHTS[0], lambda x: x[0, 0] + WEIGHTS[0].copy()),
    "the body of a loop": (loop(lambda c, f: (c + f, c)), loop(lambda total, f: (total + f, total))),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_computations(name):
    first, second = (fingerprint(jax.make_jaxpr(each)(X)) for each in EQUAL[name])
    assert first == second


def printed(*texts):
    def function(x):
        for text in texts:
            jax.debug.print(text)
        return x

    return function


def read_and_written(x):
    ref = jax.new_ref(x)
    before = ref[...]
    ref[...] = before + 1
    return before - ref[...]


def read_twice(x):
    ref = jax.new_ref(x)
    before = ref[...]
    ref[...] = before + 1
    return before - before


def random(*, twice):
    def function(x):
        first = lax.rng_uniform(0.0, 1.0, (3,))
        return x + first - (lax.rng_uniform(0.0, 1.0, (3,)) if twice else first)

    return function


OTHER = {
    "operands": (lambda x: x - jnp.sin(x), lambda x: jnp.sin(x) - x),
    "parameters": (lambda x: x[:2], lambda x: x[1:3]),
    "a literal": (lambda x: x * 2, lambda x: x * 3),
    "the sign of zero": (lambda x: x * np.float32(0.0), lambda x: x * np.float32(-0.0)),
    "a constant": (lambda x: x[0, 0] + WEIGHTS[0], lambda x: x[0, 0] + WEIGHTS[1]),
    "the results": (lambda x: (x, x + 1), lambda x: (x + 1, x)),
    "a function": (jax.jit(jnp.sin), jax.jit(jnp.cos)),
    "what a loop collects": (loop(lambda c, f: (c + f, c)), loop(lambda c, f: (c + f, f))),
    "an outer carry": (
        loop(lambda c, f: lax.scan(lambda d, g: (d + g, d), c, f[None].repeat(2, 0))),
        loop(lambda c, f: lax.scan(lambda d, g: (d + g, c), c, f[None].repeat(2, 0))),
    ),
    "the order of effects": (printed("a", "b"), printed("b", "a")),
    "the number of effects": (printed("a"), printed("a", "a")),
    "a reference before and after": (read_and_written, read_twice),
    "numbers drawn twice": (random(twice=True), random(twice=False)),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_programs(name):
    first, second = (fingerprint(jax.make_jaxpr(each)(X)) for each in OTHER[name])
    assert first != second


def test_unread_inputs_count():
    first, second = (jax.make_jaxpr(lambda x, y: x)(X, jax.ShapeDtypeStruct((size,), np.int32)) for size in (2, 3))
    assert fingerprint(first) != fingerprint(second)


def test_sets_have_no_order():
    """Mesh axes of `jax.shard_map` are a set, whose order differs between processes."""
    first, second = frozenset([0, 8]), frozenset([8, 0])
    assert list(first) != list(second)
    assert fingerprint({"axes": first}) == fingerprint({"axes": second}) != fingerprint({"axes": frozenset([8])})


def test_types_and_arrays_have_one_byte_order():
    """Arrays of files can have an explicit byte order."""
    named, ordered = np.dtype("f4"), np.dtype("f4").newbyteorder("<")
    assert repr(named) != repr(ordered)
    assert fingerprint(named) == fingerprint(ordered) != fingerprint(np.dtype("f8"))
    array = np.arange(3, dtype="<f4")
    assert fingerprint(array) == fingerprint(array.astype(">f4")) != fingerprint(array.view(">f4"))


def test_facts_are_not_their_texts():
    facts = [1, 1.0, "1", True, (1,), (), None, {"1": 1}, np.int32(1), np.int64(1), ("number", "1"), "number"]
    assert len({*map(fingerprint, facts)}) == len(facts)
