"""TreeEnsemble of ``ai.onnx.ml``."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.operators.machine_learning.forest import Forest, aggregated, members_of
from jaxrnn.onnx.operators.machine_learning.scores import TRANSFORMS, transformed
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def tree_ensemble(
    x: Value,
    *,
    aggregate_function: int = 1,
    leaf_targetids: tuple[int, ...],
    leaf_weights: np.ndarray,
    membership_values: np.ndarray | None = None,
    n_targets: int = 1,
    nodes_falseleafs: tuple[int, ...],
    nodes_falsenodeids: tuple[int, ...],
    nodes_featureids: tuple[int, ...],
    nodes_hitrates: np.ndarray | None = None,
    nodes_missing_value_tracks_true: tuple[int, ...] = (),
    nodes_modes: np.ndarray,
    nodes_splits: np.ndarray,
    nodes_truenodeids: tuple[int, ...],
    nodes_trueleafs: tuple[int, ...],
    post_transform: int = 0,
    tree_roots: tuple[int, ...],
) -> Value:
    """TreeEnsemble: one column for each target, in the type of the input."""
    del nodes_hitrates  # for an engine that sorts its nodes
    if not 0 <= aggregate_function < len(_AGGREGATES) or not 0 <= post_transform < len(TRANSFORMS):
        raise ValueError(f"aggregate_function {aggregate_function} or post_transform {post_transform} is unknown")
    modes, count, leaf_count = nodes_modes.astype(np.int32), len(nodes_featureids), len(leaf_targetids)

    def children(ids: tuple[int, ...], are_leaves: tuple[int, ...]) -> np.ndarray:
        places, leaf = np.asarray(ids, np.int32), np.asarray(are_leaves, bool)
        if places.shape != leaf.shape or np.any((places < 0) | (places >= np.where(leaf, leaf_count, count))):
            raise ValueError("a branch leads to a node or a leaf that there is not")
        return np.where(leaf, places + count, places).astype(np.int32)

    forest = Forest(
        features=np.asarray(nodes_featureids, np.int32),
        modes=modes,
        thresholds=nodes_splits,
        members=members_of(modes, np.zeros(0, np.float32) if membership_values is None else membership_values),
        if_true=children(nodes_truenodeids, nodes_trueleafs),
        if_false=children(nodes_falsenodeids, nodes_falseleafs),
        missing_is_true=np.asarray(nodes_missing_value_tracks_true or (0,) * count, bool),
        roots=np.asarray(tree_roots, np.int32),
    )
    x = jnp.atleast_2d(traced(x))
    votes = (np.arange(leaf_count), np.asarray(leaf_targetids), leaf_weights)
    y = aggregated(forest.leaves(x), votes, (leaf_count, n_targets), _AGGREGATES[aggregate_function])
    return transformed(y, TRANSFORMS[post_transform]).astype(x.dtype)


OPERATORS = {"ai.onnx.ml::TreeEnsemble": since(tree_ensemble, 5)}
