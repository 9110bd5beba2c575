"""Graphs of random operations, so that rewrites meet in ways no one thought of; in whole numbers all is exact."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax
from lowering_verifier import verify_lowering, verify_refusals
from tiers import of_tiers

#: Numbers that identities and activations are made of.
CONSTANTS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.25, 6.0]


def shapes_of(draw, size):
    """A shape of that many elements."""
    shape = []
    while size > 1:
        factor = draw(st.sampled_from([each for each in range(2, size + 1) if size % each == 0]))
        shape.append(factor)
        size //= factor
    for _ in range(draw(st.integers(0 if shape else 1, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


class Program:
    """Values, each computed from earlier ones by an operation that is drawn."""

    def __init__(self, draw, x, count):
        self.draw, self.values = draw, [x, x + 1]
        for _ in range(count):
            self.values.append(getattr(self, draw(st.sampled_from(OPERATIONS)))(self.pick()))

    def pick(self, shape=None):
        """One of the last values, of a shape if one is given."""
        near = [each for each in self.values[-4:] if shape is None or each.shape == shape]
        return near[self.draw(st.integers(0, len(near) - 1))] if near else jnp.zeros(shape, jnp.float32) + 3

    def known(self, x):
        """A known array that broadcasts to a value, of all its axes or some."""
        kept = self.draw(st.integers(0, x.ndim))
        shape = [size if self.draw(st.booleans()) else 1 for size in x.shape[kept:]]
        if self.draw(st.booleans()):
            return jnp.full(shape, self.draw(st.sampled_from(CONSTANTS)), jnp.float32)
        return (jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32) % 5 - 2).reshape(shape)

    def reshape(self, x):
        return x.reshape(shapes_of(self.draw, x.size))

    def transpose(self, x):
        return x.transpose(self.draw(st.permutations(range(x.ndim))))

    def axis(self, x):
        return self.draw(st.integers(0, x.ndim - 1))

    def cut(self, x):
        axis = self.axis(x)
        start = self.draw(st.integers(0, x.shape[axis] - 1))
        end = self.draw(st.integers(start + 1, x.shape[axis]))
        return lax.slice_in_dim(x, start, end, 1, axis)

    def split(self, x):
        axis = self.axis(x)
        parts = jnp.split(x, x.shape[axis], axis) if x.shape[axis] < 5 else [x]
        return jnp.concatenate([*parts, parts[0]][: 1 + self.draw(st.integers(0, len(parts)))], axis)

    def join(self, x):
        axis = self.axis(x)
        return jnp.concatenate([x, self.pick(x.shape)][:: self.draw(st.sampled_from([1, -1]))], axis)

    def stack(self, x):
        return jnp.stack([x, self.pick(x.shape)], self.draw(st.integers(0, x.ndim)))

    def flip(self, x):
        return jnp.flip(x, self.axis(x))

    def pad(self, x):
        mode = self.draw(st.sampled_from(["constant", "reflect", "edge"]))
        widths = [(0, 0)] * x.ndim
        axis = self.axis(x)
        if x.shape[axis] > 1:
            widths[axis] = self.draw(st.integers(0, 1)), self.draw(st.integers(0, 1))
        return jnp.pad(x, widths, mode)

    def activation(self, x):
        slope, limit = jnp.float32(0.5), jnp.float32(3)
        functions = [
            lambda x: jnp.maximum(x, 0),
            lambda x: jnp.clip(x, -limit, limit),
            lambda x: jnp.where(x >= 0, x, x * slope),
            lambda x: jnp.where(x < 0, x * self.known(x), x),
            lambda x: jnp.where(x > limit, x, 0),
            jnp.abs,
            jnp.negative,
            jnp.floor,
        ]
        return functions[self.draw(st.integers(0, len(functions) - 1))](x)

    def with_known(self, x):
        function = self.draw(st.sampled_from([jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum]))
        operands = [x, self.known(x)]
        return function(*operands[:: self.draw(st.sampled_from([1, -1]))])

    def with_other(self, x):
        function = self.draw(st.sampled_from([jnp.add, jnp.subtract, jnp.maximum]))
        return function(x, self.pick(x.shape))

    def product(self, x):
        columns = self.draw(st.integers(1, 2))
        weight = (jnp.arange(x.shape[-1] * columns, dtype=jnp.float32) % 3 - 1).reshape(x.shape[-1], columns)
        return jnp.clip(x @ weight, -64, 64)

    def convolution(self, x):
        if x.ndim < 3:
            return x
        kernel = (jnp.arange(2 * x.shape[1], dtype=jnp.float32) % 3 - 1).reshape(2, x.shape[1], *(1,) * (x.ndim - 2))
        y = lax.conv_general_dilated(x, kernel, (1,) * (x.ndim - 2), [(1, 0)] * (x.ndim - 2))
        return jnp.clip(y, -64, 64)

    def mean(self, x):
        axis = self.axis(x)
        total = jnp.sum(x, axis, keepdims=self.draw(st.booleans()))
        return jnp.maximum(jnp.clip(total, -64, 64), 0).reshape(total.shape or (1,))


OPERATIONS = [
    *("reshape", "transpose", "reshape", "transpose", "cut", "split", "join", "stack", "flip", "pad", "activation"),
    *("with_known", "with_known", "with_other", "product", "convolution", "mean"),
]


@pytest.mark.parametrize("programs", of_tiers([10, 60], quick=[], thorough=[10]))
def test_random_graphs(programs):
    # Smaller programs are searched for by hand: each is compiled.
    @settings(max_examples=programs, deadline=None, database=None, phases=[Phase.generate])
    @given(st.data())
    def check(data):
        shape = shapes_of(data.draw, data.draw(st.sampled_from([4, 6, 12])))
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 7 - 3
        drawn = []

        def function(x):
            # Tracing again draws the same again.
            draws = iter(list(drawn))

            def draw(strategy):
                value = next(draws, None)
                if value is None:
                    drawn.append((data.draw(strategy),))
                    value = drawn[-1]
                return value[0]

            return [each for each in Program(draw, x, 8).values[-3:] if each.size < 2000]

        verify_lowering(function, x, roundings=0)
        verify_refusals(function, x)

    check()
