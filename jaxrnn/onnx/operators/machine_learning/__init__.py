"""The domain ``ai.onnx.ml``, as far as it works on arrays; ZipMap, CastMap and DictVectorizer work on maps."""

from __future__ import annotations

from jaxrnn.onnx.operators.machine_learning import encoders, features, linear, older_trees, support_vectors, trees

OPERATORS = (
    encoders.OPERATORS
    | features.OPERATORS
    | linear.OPERATORS
    | older_trees.OPERATORS
    | support_vectors.OPERATORS
    | trees.OPERATORS
)
