"""Steps of streams written at random, as ONNX: the same bits as JAX's, in every step."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from lowering_verifier import check_well_formed, lowered, outputs_of
from stream_fuzzing.programs import program_of
from stream_fuzzing.trial import recording
from stream_fuzzing.writing import INPUTS

from jaxrnn import StreamError
from jaxrnn.cells.products import plain_forms
from jaxrnn.streaming import stream

STEPS = 5


def check(number):
    """One program; None where it is no stream."""
    program = program_of(3, number)
    with plain_forms():
        try:
            streamed = stream(program.function(), INPUTS, axes=0, pulse=None, constraints=program.constraints)
        except StreamError:
            return
        whole = recording(STEPS * streamed.pulse)
        frames = [
            {name: x[index * streamed.pulse : (index + 1) * streamed.pulse] for name, x in whole.items()}
            for index in range(STEPS)
        ]
        state, structure = jax.tree.flatten(streamed.init())

        def step(*arrays):
            before, inputs = arrays[: len(state)], arrays[len(state) :]
            return streamed.step(None, jax.tree.unflatten(structure, before), dict(zip(INPUTS, inputs, strict=True)))

        model = lowered(step, *state, *frames[0].values(), opset=18)
        compiled = jax.jit(step)
        check_well_formed(model)
        carry = [np.asarray(array) for array in state]
        for each in frames:
            arrays = [*carry, *each.values()]
            found = outputs_of(model, {f"x{index}": array for index, array in enumerate(arrays)})
            expected = [np.asarray(value) for value in jax.tree.leaves(compiled(*arrays))]
            for value, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(value, other)
            carry = found[len(found) - len(carry) :]


def test_two_programs():
    """What they compute is whole numbers, and so exact."""
    for number in (2, 5):
        check(number)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_programs(number):
    """Others."""
    check(number)
