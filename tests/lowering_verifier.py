"""One verifier for lowerings: a function of arrays as a graph of ONNX computes what JAX computes.

- ONNX's checker passes in full mode, and its shape inference in strict mode: every type and shape written is inferred;
- ONNX Runtime's results, or where that has no kernel for a type those of ONNX's reference evaluator, are JAX's: types,
  shapes, NaN, infinities, and numbers within some roundings;
- nodes are as many as the test says.

And of refusals: an equation that cannot be written is the only one that the error names.
"""

from __future__ import annotations

import itertools
from collections import Counter
from unittest import mock

import jax
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from verifier import assert_something, session

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import UnsupportedError
from jaxrnn.export.graphs import NamedArgument, lower
from jaxrnn.export.lowering import Lowering
from jaxrnn.jaxprs.canonical import canonical


def lowered(function, *examples, known=(), opset=17, target=None):
    """A function of arrays as a model of ONNX with inputs ``x0``, ``x1``, ... and results ``y0``, ``y1``, ...

    Args:
        function: of arrays; its results are a tree of arrays.
        examples: its arguments.
        known: the positions of those that are initializers.
        opset: the version of ONNX's operators.
        target: the engine that the graph is for.
    """
    return ir.to_proto(lower(*_traced(function, examples, known), opset=opset, label="function", target=target))


def _traced(function, examples, known=()):
    """The jaxpr, its arguments, and the names of its results."""
    examples = [np.asarray(example) for example in examples]
    with exact_types():
        closed = canonical(jax.make_jaxpr(lambda *arrays: jax.tree.leaves(function(*arrays)))(*examples))
    arguments = [
        NamedArgument(f"x{index}", example if index in known else None) for index, example in enumerate(examples)
    ]
    return closed, arguments, [f"y{index}" for index in range(len(closed.jaxpr.outvars))]


def check_well_formed(model):
    """The checker in full mode, and shape inference in strict mode: what is written is what is inferred."""
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def outputs_of(model, inputs):
    """The outputs of a model in ONNX Runtime, or in ONNX's reference evaluator where that lacks a type."""
    if not any(value.dtype.kind == "V" or hasattr(ml_dtypes, value.dtype.name) for value in inputs.values()):
        try:
            opened = session(model)
        except NoKernel:
            pass
        else:
            return opened.run(None, inputs)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, inputs)


def operators_of(graph):
    """How many nodes of each operator a graph and its subgraphs have."""
    counts = Counter(node.op_type for node in graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                counts += operators_of(attribute.g)
    return counts


def verify_lowering(
    function,
    *examples,
    known=(),
    opset=17,
    roundings=4,
    scale=None,
    signed_zeros=False,
    operators=None,
    target=None,
    something=True,
):
    """Check one function on one set of arguments; returns the model.

    Args:
        function: of arrays, which JAX can trace; its results are a tree of arrays.
        examples: its arguments.
        known: the positions of those that are initializers; all others are inputs.
        opset: the version of ONNX's operators.
        roundings: by how many roundings of a number of the scale, or of the result's own size, results may differ.
            Whole numbers and booleans are equal.
        scale: the size of the numbers that are rounded; by default the largest result's. 0 for each result's own.
        signed_zeros: zeros have their signs.
        operators: how many nodes of each operator the graph has, if that matters.
        target: the engine that the graph is for.
        something: False if the results may be empty, or without a finite number, which is then what is compared.
    """
    examples = [np.asarray(example) for example in examples]
    model = lowered(function, *examples, known=known, opset=opset, target=target)
    check_well_formed(model)
    with exact_types():
        expected = [np.asarray(value) for value in jax.tree.leaves(jax.jit(function)(*examples))]
    if something:
        assert_something(expected)
    inputs = {f"x{index}": example for index, example in enumerate(examples) if index not in known}
    for found, value in zip(outputs_of(model, inputs), expected, strict=True):
        assert_close(found, value, roundings, scale, signed_zeros)
    if operators is not None:
        assert operators_of(model.graph) == Counter(operators), operators_of(model.graph)
    return model


def verify_refusals(function, *examples, opset=17):
    """Refuse each equation in turn: the error names that equation alone. Return the number of equations."""
    traced, write = _traced(function, examples), Lowering.written
    refused, count = None, itertools.count()

    def written(lowering, equation, operands):
        if next(count) == refused:
            lowering.refuse("refused here")
        return write(lowering, equation, operands)

    with mock.patch.object(Lowering, "written", written):
        lower(*traced, opset=opset, label="function")
        equations = next(count)
        for refused in range(equations):  # noqa: B007 - `written` reads the number
            count = itertools.count()
            with pytest.raises(UnsupportedError, match=r"^.*refused here$"):
                lower(*traced, opset=opset, label="function")
    return equations


def assert_close(found, expected, roundings, scale=None, signed_zeros=False):
    """An array is the expected one, up to some roundings of numbers of a size (see `verify_lowering`)."""
    found = np.asarray(found)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    kind = np.complex128 if expected.dtype.kind == "c" else np.float64
    epsilon = float(ml_dtypes.finfo(expected.dtype).eps)
    found, expected = found.astype(kind), expected.astype(kind)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    size = np.abs(expected[finite])
    size = np.maximum(size, size.max(initial=0) if scale is None else scale)
    wrong = ~(np.abs(found[finite] - expected[finite]) <= roundings * epsilon * size)
    assert not wrong.any(), (found[finite][wrong], expected[finite][wrong])
    if signed_zeros:
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))
