"""ONNX's own backend suite: node, simple and converted PyTorch cases; each under jit, and its gradient.

Cases of an operator with the same attributes, modes and ranks have one gradient. Where a case writes an operator out as
its body (``_expanded``), there is none: the operators in there have cases of their own, and of the bodies that are made
of the same operators one is run. One case of each operator is in the quick tier.

The suite is computed where it is imported, in seconds: a test takes a part of the cases, so that processes that run
none of them, or only collect them, do not import it.

Every case passes that no entry of `EXCLUDED` names, and an entry whose cases pass has to go. ``python
tests/test_backend_suite.py [PREFIX ...]`` says how many pass, and why the others fail.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from quick_compiling import EMITTERS
from tiers import of_tiers

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.onnx.operators import operator_table
from jaxrnn.onnx.registry import read_signature

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

#: Prefixes of the names of cases that do not pass, and why.
EXCLUDED = {
    # The expected values are NumPy's, which rounds every partial sum of a softmax to bfloat16 (a sum of ones then stops
    # growing at 256); sums here are in 32 bits and rounded once.
    **dict.fromkeys(
        (
            "test_attention_3d_causal_bf16",
            "test_attention_4d_causal_bf16",
            "test_attention_4d_padded_kv_bf16",
            "test_attention_4d_causal_padded_kv_bf16",
            "test_attention_4d_attn_mask_causal_bf16_expanded",
        ),
        "sums in bfloat16",
    ),
    # Random numbers of NumPy's global state; the specification promises no particular ones, even for a seed.
    "test_bernoulli": "random numbers of another generator",
    # jax.grad takes its place: the operator differentiates a part of a graph by the names of its values.
    "test_gradient_of_add": "the Gradient operator",
}

#: What stands in the name of a case behind that of the operator whose body it is.
BODY = "_expanded"

#: Operators whose result has a shape or a type that only data tell, or that JAX has no type for: they run outside jit.
OUTSIDE_JIT = {
    *("Compress", "NonMaxSuppression", "NonZero", "Unique"),
    *("Equal", "LabelEncoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
    "ImageDecoder",
    "Range",
    "Ceil",  # in the body that Range stands for
}

#: Cases whose derivative is infinite where the suite evaluates it, or not a number by the formula of its graph.
SINGULAR = {
    "test_acosh_example": "at 1, where the slope is infinite",
    "test_operator_sqrt": "at 0, where the slope is infinite",
    "test_operator_pow": "negative numbers to a fractional power",
    "test_mod_float_edge_cases": "by 0",
}


@functools.cache
def all_cases() -> dict[str, Any]:
    """Every case by name. The suite computes them while it is imported, with overflows that are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for kind in KINDS for case in load_model_tests(kind=kind)}


def names() -> list[str]:
    """The cases that are to pass."""
    return [name for name in all_cases() if not name.startswith(tuple(EXCLUDED))]


@functools.cache
def in_tiers() -> tuple[list[str], list[str]]:
    """The cases that are to pass, quick and thorough: the first of each operator, and of each kind, are quick."""
    seen, tiers = set(), ([], [])
    for name in names():
        case, (origin, body, _) = all_cases()[name], name.partition(BODY)
        keys = {case.kind}
        if body:
            whole = all_cases()[origin].model
            keys = {(*operators_of(whole.graph.node), *sorted(set(operators_of(case.model.graph.node))))}
        elif case.model is not None:
            keys = {(case.kind, node.domain, node.op_type) for node in case.model.graph.node}
        if keys - seen or not body:
            tiers[bool(body) or not keys - seen].append(name)
        seen |= keys
    return tiers


@functools.cache
def differentiated() -> set[str]:
    """The cases whose gradients are taken."""
    seen, found = set(), set()
    for name, case in all_cases().items():
        if BODY in name:
            continue
        key: Any = name
        if case.model is not None and len(case.model.graph.node) == 1:
            (node,) = case.model.graph.node
            ranks = [len(value.type.tensor_type.shape.dim) for value in case.model.graph.input]
            key = (node.op_type, *ranks, *sorted((given.name, given.s) for given in node.attribute))
        if key not in seen:
            found.add(name)
        seen.add(key)
    return found


def content(case: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """The model of a case, and its inputs and expected outputs."""
    if case.model is not None:
        return case.model, [tuple([as_value(v) for v in part] for part in data) for data in case.data_sets]
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        types = {value.name: value.type for value in (*model.graph.input, *model.graph.output)}
        given = [
            [read(data / f"{kind}_{index}.pb", types[name]) for index, name in enumerate(names)]
            for kind, names in (
                ("input", inputs_of(model.graph)),
                ("output", [value.name for value in model.graph.output]),
            )
        ]
        sets.append((given[0], given[1]))
    return model, sets


def inputs_of(graph: onnx.GraphProto) -> list[str]:
    """The names of the inputs that have no value in the file."""
    given = {tensor.name for tensor in graph.initializer}
    return [value.name for value in graph.input if value.name not in given]


def read(path: Any, kind: onnx.TypeProto) -> Any:
    """A value from a file of the suite."""
    proto = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}.get(
        kind.WhichOneof("value"), onnx.TensorProto
    )()
    proto.ParseFromString(path.read_bytes())
    return as_value(proto)


def as_value(value: Any) -> Any:
    """What the suite stores, as arrays: a tensor, a list of them, or None."""
    match value:
        case onnx.TensorProto():
            return numpy_helper.to_array(value)
        case onnx.SequenceProto():
            return numpy_helper.to_list(value)
        case onnx.OptionalProto():
            return numpy_helper.to_optional(value)
        case np.generic():
            return np.asarray(value)
    return value


def assert_equal(actual: Any, expected: Any, rtol: float, atol: float) -> None:
    """The same dtype, shape and value; integers, booleans and strings exactly."""
    if expected is None or isinstance(expected, (list, tuple)):
        assert type(actual) is (tuple if isinstance(expected, list) else type(expected))
        for pair in zip(actual or (), expected or (), strict=True):
            assert_equal(*pair, rtol, atol)
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    if expected.dtype.kind in "OUS":
        assert actual.shape == expected.shape
        assert [str(text) for text in actual.flat] == [str(text) for text in expected.flat]
        return
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        np.testing.assert_array_equal(actual, expected)
    else:
        wide = np.promote_types(expected.dtype, np.float32) if expected.dtype.kind in "fc" else np.float32
        np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), rtol=rtol, atol=atol)


def is_float(value: Any) -> bool:
    """Whether a derivative can be taken by a value."""
    return isinstance(value, (np.ndarray, jax.Array)) and jnp.issubdtype(value.dtype, jnp.floating)


def evaluate(
    model: jaxrnn.Model, values: dict[str, Any], with_gradient: bool, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs, and the gradient of the sum of the float ones by the float inputs, from one compiled function."""
    floats = {name: value for name, value in values.items() if with_gradient and is_float(value)}

    def both(floats: dict[str, Any], others: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        def run(floats: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
            outputs = model.apply(model.params, {**others, **floats})
            return [leaf for leaf in jax.tree.leaves(outputs) if is_float(leaf)], outputs

        results, pull, outputs = jax.vjp(run, floats, has_aux=True)
        return outputs, pull([jnp.ones_like(result) for result in results])[0]

    others = {name: value for name, value in values.items() if name not in floats}
    if not floats:
        return jax.jit(model.apply, compiler_options=options)(model.params, values), {}
    return jax.jit(both, compiler_options=options)(floats, others)


def run_case(case: Any) -> bool:
    """Run a case on all its data, and whether it ran under jit; raises whatever is wrong."""
    proto, data_sets = content(case)
    names = inputs_of(proto.graph)
    results = [value.name for value in proto.graph.output]
    jitted = True
    # Compiled quickly (quick_compiling.py), what underflows in types without a negative zero becomes NaN.
    options = EMITTERS if "FNUZ" in case.name else {}
    for inputs, expected in data_sets:
        values = dict(zip(names, inputs, strict=False))
        outputs, gradient, jitted = outcome(proto, values, case.name in differentiated(), options)
        assert sorted(outputs) == sorted(results)
        for name, value in zip(results, expected, strict=True):
            assert_equal(outputs[name], value, case.rtol, case.atol)
        if not case.name.startswith(tuple(SINGULAR)):
            for name, value in gradient.items():
                bad = ~np.isfinite(np.asarray(value, np.float64)) & np.isfinite(np.asarray(values[name], np.float64))
                assert not bad.any(), f"the gradient by {name!r} is not finite"
    return jitted


def outcome(
    proto: onnx.ModelProto, values: dict[str, Any], with_gradient: bool, options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Outputs, gradient, and whether they were compiled; inputs that decide on shapes are bound if need be."""
    model = jaxrnn.load(proto)
    shaping = needed_while_tracing(proto.graph)
    fixed = {
        name: value
        for name, value in values.items()
        if isinstance(value, np.ndarray) and (name in shaping or not is_float(value))
    }
    with exact_types():
        if not any(np.asarray(leaf).dtype.kind in "OUS" for leaf in jax.tree.leaves(values)):
            for bound in ({}, fixed) if fixed else ({},):
                rest = {name: value for name, value in values.items() if name not in bound}
                with contextlib.suppress(jaxrnn.StaticValueError):
                    bound_model = jaxrnn.load(proto, static=bound) if bound else model
                    return *evaluate(bound_model, rest, with_gradient, options), True
        return model.apply(model.params, values), {}, False


def needed_while_tracing(graph: onnx.GraphProto) -> set[str]:
    """The inputs of nodes of the default domain that their newest version needs while tracing."""
    needed = set()
    for node in graph.node:
        versions = operator_table().get((node.domain, node.op_type), {})
        slots = read_signature(versions[max(versions)])[0] if versions else ()
        needed |= {name for name, slot in zip(node.input, slots, strict=False) if slot.static}
    return needed


def operators_of(nodes: Any) -> Iterator[str]:
    """The operators of nodes, those in their subgraphs included."""
    for node in nodes:
        yield node.op_type
        for attribute in node.attribute:
            yield from operators_of(attribute.g.node)


#: Into how many tests the cases of each tier are cut.
PARTS = (8, 24)
CASES = [(tier, part) for tier, parts in enumerate(PARTS) for part in range(parts)]


@pytest.mark.parametrize(("tier", "part"), of_tiers(CASES, CASES[: PARTS[0]], thorough=[]))
def test_cases(tier: int, part: int) -> None:
    failures = []
    for name in in_tiers()[tier][part :: PARTS[tier]]:
        case = all_cases()[name]
        try:
            outside = OUTSIDE_JIT & set(operators_of(content(case)[0].graph.node))
            assert run_case(case) or outside, "this case has to run under jit"
        except Exception as error:
            error.add_note(name)
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} cases", failures)


def passes(case: Any) -> tuple[bool, Exception | None]:
    """Whether a case passes, and if not, why."""
    try:
        run_case(case)
    except Exception as error:
        return False, error
    return True, None


@pytest.mark.parametrize("prefix", EXCLUDED)
def test_every_exclusion_is_still_needed(prefix: str) -> None:
    cases = [case for name, case in all_cases().items() if name.startswith(prefix)]
    assert cases, "there is no such case"
    assert not [case.name for case in cases if passes(case)[0]]


def test_nearly_all_of_the_suite_passes() -> None:
    nodes = [name for name, case in all_cases().items() if case.kind == "node"]
    excluded = [name for name in nodes if name.startswith(tuple(EXCLUDED))]
    assert len(nodes) - len(excluded) >= 0.98 * len(nodes)


def main() -> None:
    """Run all cases and say which do not pass, and why."""
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_disable_most_optimizations", True)
    chosen = [case for name, case in all_cases().items() if name.startswith(tuple(sys.argv[1:]) or "test")]
    failed = 0
    for case in chosen:
        try:
            if not run_case(case):
                print(f"{case.name}: outside jit: {sorted(set(operators_of(content(case)[0].graph.node)))}")
        except Exception as error:
            failed += 1
            print(f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} cases pass")


if __name__ == "__main__":
    main()
