"""ONNX's own backend suite: its node cases, and which of them pass.

``backend_suite_passes.txt`` names the cases that pass. It can only grow: a case named there that fails is a failure,
and so is one that passes and is not named. ``python tests/test_backend_suite.py --write`` runs all cases and rewrites
it; ``--why`` says why the others fail.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import jaxrnn
from jaxrnn.onnx.values import exact_types

LIST = Path(__file__).with_name("backend_suite_passes.txt")
PASSES = LIST.read_text().split() if LIST.exists() else []

RECURRENT = {"LSTM", "GRU", "RNN", "Scan", "Loop", "If"}

#: Cases with a recurrent or control operator that are not in the list, by prefix of their names, and why.
NOT_YET: dict[str, str] = {}


@functools.cache
def all_cases():
    """Every node case by name. The suite computes them while it is imported, with overflows that are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for case in load_model_tests(kind="node")}


def as_value(value):
    """What the suite stores, as arrays: a tensor, a list of them, or None."""
    match value:
        case onnx.TensorProto():
            return numpy_helper.to_array(value)
        case onnx.SequenceProto():
            return numpy_helper.to_list(value)
        case onnx.OptionalProto():
            return numpy_helper.to_optional(value)
    return value


def assert_equal(actual, expected, rtol, atol):
    """The same dtype, shape and value; integers and booleans exactly."""
    if expected is None or isinstance(expected, (list, tuple)):
        assert type(actual) is (tuple if isinstance(expected, list) else type(expected))
        for pair in zip(actual or (), expected or (), strict=True):
            assert_equal(*pair, rtol, atol)
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if not jax.numpy.issubdtype(expected.dtype, jax.numpy.inexact):
        np.testing.assert_array_equal(actual, expected)
    else:
        wide = np.promote_types(expected.dtype, np.float32) if expected.dtype.kind in "fc" else np.float32
        np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), rtol=rtol, atol=atol)


def run_case(case):
    """Run one case on all its data; raises whatever is wrong."""
    model = jaxrnn.load(case.model)
    names = [value.name for value in case.model.graph.input]
    for inputs, expected in case.data_sets:
        values = dict(zip(names, map(as_value, inputs), strict=True))
        # Compiling the nodes of a graph one by one takes longer than compiling it, but XLA rounds 16-bit values between
        # nodes only if it must, and what is expected was rounded there.
        narrow = any(kind in case.name for kind in ("fp16", "bf16", "float16"))
        run = model.apply if narrow or len(case.model.graph.node) <= 2 else jax.jit(model.apply)
        try:
            with exact_types():
                outputs = run(model.params, values)
        except jaxrnn.StaticValueError:
            outputs = model.apply(model.params, values)
        results = [value.name for value in case.model.graph.output]
        assert sorted(outputs) == sorted(results)
        for name, value in zip(results, expected, strict=True):
            assert_equal(outputs[name], as_value(value), case.rtol, case.atol)


def passes(case):
    """Whether a case passes, and if not, why."""
    try:
        run_case(case)
    except Exception as error:
        return False, error
    return True, None


def operators_of(nodes):
    """The operators of nodes, those in their subgraphs included."""
    for node in nodes:
        yield node.op_type
        for attribute in node.attribute:
            yield from operators_of(attribute.g.node)


@pytest.mark.parametrize("name", PASSES)
def test_case(name):
    run_case(all_cases()[name])


def test_unlisted_cases_do_not_pass():
    new = sorted(name for name, case in all_cases().items() if name not in set(PASSES) and passes(case)[0])
    assert not new, f"these cases pass now; add them: python tests/test_backend_suite.py --write\n{new}"


def test_the_list_is_long_and_in_order():
    assert len(PASSES) >= 1000
    assert sorted(set(PASSES)) == PASSES


def test_recurrent_operators_and_control_flow_pass():
    missing = [
        name
        for name, case in all_cases().items()
        if name not in set(PASSES) and RECURRENT & set(operators_of(case.model.graph.node))
    ]
    unexplained = [name for name in missing if not name.startswith(tuple(NOT_YET))]
    assert not unexplained
    assert all(any(name.startswith(prefix) for name in missing) for prefix in NOT_YET), "a reason that has gone"


def main():
    """Run all cases and rewrite the list."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite the list; otherwise only say what would change")
    parser.add_argument("--why", action="store_true", help="say why each case that does not pass fails")
    arguments = parser.parse_args()
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    found = {name: passes(case) for name, case in all_cases().items()}
    passing = sorted(name for name, (passed, _) in found.items() if passed)
    print(f"{len(passing)} of {len(found)} cases pass")
    for mark, names in (("+", set(passing) - set(PASSES)), ("-", set(PASSES) - set(passing))):
        print("".join(f"{mark} {name}\n" for name in sorted(names)), end="")
    if arguments.why:
        for name, (passed, error) in found.items():
            if not passed:
                print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    if arguments.write:
        LIST.write_text("\n".join(passing) + "\n")


if __name__ == "__main__":
    main()
