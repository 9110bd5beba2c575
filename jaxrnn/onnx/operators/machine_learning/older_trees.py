"""TreeEnsembleRegressor and TreeEnsembleClassifier of ``ai.onnx.ml``, whose nodes and leaves are one list."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.onnx.operators.machine_learning.forest import MODES, Forest, aggregated
from jaxrnn.onnx.operators.machine_learning.scores import best, label_at, labels_of, of_two, transformed
from jaxrnn.onnx.registry import earlier, inherits, since
from jaxrnn.onnx.values import Value, traced


def _numbers(floats: tuple[float, ...], tensor: np.ndarray | None) -> np.ndarray:
    """An attribute that is a list of float32 or a tensor of float64."""
    return tensor.ravel() if tensor is not None and tensor.size else np.asarray(floats, np.float32)


class _Nodes:
    """The nodes of an older ensemble, leaves among them, by tree and number."""

    def __init__(
        self,
        *,
        nodes_falsenodeids: tuple[int, ...] = (),
        nodes_featureids: tuple[int, ...] = (),
        nodes_hitrates: tuple[float, ...] = (),
        nodes_hitrates_as_tensor: np.ndarray | None = None,
        nodes_missing_value_tracks_true: tuple[int, ...] = (),
        nodes_modes: tuple[str, ...] = (),
        nodes_nodeids: tuple[int, ...] = (),
        nodes_treeids: tuple[int, ...] = (),
        nodes_truenodeids: tuple[int, ...] = (),
        nodes_values: tuple[float, ...] = (),
        nodes_values_as_tensor: np.ndarray | None = None,
    ):
        del nodes_hitrates, nodes_hitrates_as_tensor  # for an engine that sorts its nodes
        trees, numbers, modes = nodes_treeids, nodes_nodeids, np.asarray(nodes_modes, object)
        unknown = set(modes.tolist()) - {*MODES[:-1], "LEAF"}
        if unknown or not len(trees) == len(numbers) == modes.size:
            raise ValueError(f"nodes need a tree, a number and a mode each; unknown modes: {sorted(unknown)}")
        keys = list(zip(trees, numbers, strict=True))
        is_leaf = modes == "LEAF"
        count = int(np.sum(~is_leaf))
        # Inner nodes are numbered first, then leaves.
        place = np.where(is_leaf, count + np.cumsum(is_leaf) - 1, np.cumsum(~is_leaf) - 1)
        of = dict(zip(keys, place.tolist(), strict=True))
        inner = np.flatnonzero(~is_leaf)

        def inside(name: str, values: Any, dtype: Any) -> np.ndarray:
            array = np.asarray(values)
            if array.size != modes.size:
                raise ValueError(f"{name} has {array.size} entries for {modes.size} nodes")
            return array[inner].astype(dtype)

        def children(name: str, numbers: tuple[int, ...]) -> np.ndarray:
            targets = inside(name, numbers, np.int64)
            places = [of.get((trees[node], int(child)), -1) for node, child in zip(inner, targets, strict=True)]
            if -1 in places:
                raise ValueError(f"{name} leads to a node that there is not")
            return np.asarray(places, np.int32)

        thresholds = _numbers(nodes_values, nodes_values_as_tensor)
        missing = nodes_missing_value_tracks_true or (0,) * modes.size
        roots = {tree: of[tree, number] for tree, number in reversed(keys)}
        self.leaf_count = modes.size - count
        self.first_leaf = count
        self.place = of
        self.forest = Forest(
            features=inside("nodes_featureids", nodes_featureids, np.int32),
            modes=np.asarray([MODES.index(mode) for mode in modes[inner]], np.int32),
            thresholds=inside("nodes_values", thresholds, thresholds.dtype),
            members=np.zeros((count, 0), np.float32),
            if_true=children("nodes_truenodeids", nodes_truenodeids),
            if_false=children("nodes_falsenodeids", nodes_falsenodeids),
            missing_is_true=inside("nodes_missing_value_tracks_true", missing, bool),
            roots=np.asarray(list(roots.values()), np.int32),
        )

    def votes(self, trees: Any, numbers: Any, targets: Any, weights: np.ndarray) -> tuple[np.ndarray, ...]:
        """Votes by leaf, from votes by tree and node number."""
        if not len(trees) == len(numbers) == len(targets) == weights.size:
            raise ValueError("votes need a tree, a node, a target and a weight each")
        places = [self.place.get(key, -1) - self.first_leaf for key in zip(trees, numbers, strict=True)]
        if min(places, default=0) < 0:
            raise ValueError("a vote is of a node that is no leaf")
        return np.asarray(places, np.int64), np.asarray(targets, np.int64), weights


def _total(
    x: Value, nodes: dict[str, Any], votes: tuple[Any, Any, Any], weights: np.ndarray, targets: int, how: str
) -> jax.Array:
    """The aggregated votes of all trees, ``[batch, targets]``, which are the trees, nodes and targets of ``votes``."""
    ensemble = _Nodes(**nodes)
    place, target, weight = ensemble.votes(*votes, weights)
    leaves = ensemble.forest.leaves(jnp.atleast_2d(traced(x)))
    return aggregated(leaves, (place, target, weight), (ensemble.leaf_count, targets), how)


@inherits(_Nodes)
def tree_ensemble_regressor(
    x: Value,
    *,
    aggregate_function: str = "SUM",
    base_values: tuple[float, ...] = (),
    base_values_as_tensor: np.ndarray | None = None,
    n_targets: int = 1,
    post_transform: str = "NONE",
    target_ids: tuple[int, ...] = (),
    target_nodeids: tuple[int, ...] = (),
    target_treeids: tuple[int, ...] = (),
    target_weights: tuple[float, ...] = (),
    target_weights_as_tensor: np.ndarray | None = None,
    **nodes: Any,
) -> Value:
    """TreeEnsembleRegressor: one float32 column for each target."""
    weights = _numbers(target_weights, target_weights_as_tensor)
    votes = (target_treeids, target_nodeids, target_ids)
    total = _total(x, nodes, votes, weights, n_targets, aggregate_function)
    base = _numbers(base_values, base_values_as_tensor)
    if base.size not in (0, n_targets):
        raise ValueError(f"base_values has {base.size} entries for {n_targets} targets")
    y = total + base.astype(total.dtype) if base.size else total
    return transformed(y.astype(jnp.float32), post_transform)


@inherits(_Nodes)
def tree_ensemble_classifier(
    x: Value,
    *,
    base_values: tuple[float, ...] = (),
    base_values_as_tensor: np.ndarray | None = None,
    class_ids: tuple[int, ...] = (),
    class_nodeids: tuple[int, ...] = (),
    class_treeids: tuple[int, ...] = (),
    class_weights: tuple[float, ...] = (),
    class_weights_as_tensor: np.ndarray | None = None,
    classlabels_int64s: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    post_transform: str = "NONE",
    output_count: int = 2,
    **nodes: Any,
) -> list[Value]:
    """TreeEnsembleClassifier: labels and float32 scores."""
    labels = labels_of(classlabels_strings, classlabels_int64s)
    weights = _numbers(class_weights, class_weights_as_tensor)
    total = _total(x, nodes, (class_treeids, class_nodeids, class_ids), weights, labels.size, "SUM")
    base = _numbers(base_values, base_values_as_tensor).astype(total.dtype)
    one_of_two = labels.size == 2 and len(set(class_ids)) == 1
    share = bool(np.all(weights >= 0))
    if one_of_two and class_ids[0] == 0 and base.size < 2:
        # Votes for one class score the second one, as shares of 1 where no weight is negative.
        score = (total[:, :1] + base if base.size else total[:, :1]).astype(jnp.float32)
        second = score[:, 0] > (0.5 if share else 0)
        scores = of_two(score, post_transform, share=share)
        return [label_at(second.astype(jnp.int32), labels), scores][:output_count]
    if base.size not in (0, labels.size):
        raise ValueError(f"base_values has {base.size} entries for {labels.size} classes")
    scores = (total + base if base.size else total).astype(jnp.float32)
    if one_of_two and class_ids[0] == 1 and not base.size:
        label = label_at((scores[:, 1] > (0.5 if share else 0)).astype(jnp.int32), labels)
    else:
        label = best(scores, labels)
    return [label, transformed(scores, post_transform)][:output_count]


def _before_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator before it had float64 attributes, whose names end in ``_as_tensor``."""
    return earlier(function, *(name for name in inspect.signature(function).parameters if name.endswith("_as_tensor")))


OPERATORS = {
    "ai.onnx.ml::TreeEnsembleClassifier": since(_before_tensors(tree_ensemble_classifier), 1)
    | since(tree_ensemble_classifier, 3, 5),
    "ai.onnx.ml::TreeEnsembleRegressor": since(_before_tensors(tree_ensemble_regressor), 1)
    | since(tree_ensemble_regressor, 3, 5),
}
