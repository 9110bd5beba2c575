"""Recurrent layers as nodes of ONNX: with every feature, for ONNX Runtime as it is."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowering_verifier import operators_of, verify_lowering
from recurrent_nodes import build, nodes

import jaxrnn
from jaxrnn.cells import plain_forms


def lowered_layer(case, dtype, **options):
    """The graph of a layer whose weights are known."""
    operator, arrays, attributes, wanted, opset = case
    arrays = {name: array if name == "sequence_lens" else array.astype(dtype) for name, array in arrays.items()}
    weights = [name for name in arrays if name in ("W", "R", "B", "P")]
    x = [name for name in arrays if name not in weights]
    model = jaxrnn.load(build(operator, arrays, attributes, wanted, opset, set(x)))

    def function(*values):
        named = dict(zip([*x, *weights], values, strict=True))
        params = {name: named[name] for name in weights}
        return model.apply(params, {name: named[name] for name in x})

    with plain_forms():
        known = range(len(x), len(x) + len(weights))
        return verify_lowering(function, *(arrays[name] for name in (*x, *weights)), known=known, **options)


@given(nodes(), st.sampled_from((np.float32, np.float32, np.float64, np.float16)))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_feature(case, dtype):
    """One node where ONNX Runtime computes what the specification says, with no more moves than it needs."""
    operator, _, attributes, *_ = case
    lowered = lowered_layer(case, dtype, roundings=500)
    counts = operators_of(lowered.graph)
    differs = {"Softplus", "ThresholdedRelu"} & set(attributes.get("activations", ()))
    clips = operator == "LSTM" and "clip" in attributes
    assert counts[operator] == (0 if clips or differs or dtype == np.float64 else 1)
