"""Tree ensembles of ``ai.onnx.ml``, current and older operators."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._jax import varying
from jaxrnn.onnx.operators.machine_learning.features import TRANSFORMS, best, label_at, labels_of, of_two, transformed
from jaxrnn.onnx.registry import Versions, earlier, inherits, since
from jaxrnn.onnx.values import Value, check_choice, traced

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
            raise ValueError("a branch leads to a node or a leaf that does not exist")
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


def _numbers(floats: tuple[float, ...], tensor: np.ndarray | None) -> np.ndarray:
    """Return an attribute that is a list of float32 or a tensor of float64."""
    return tensor.ravel() if tensor is not None and tensor.size else np.asarray(floats, np.float32)


def _forest(
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
) -> tuple[Forest, dict[tuple[int, int], int], int]:
    """Return the trees of an older ensemble, the places of nodes by tree and number, and the number of leaves."""
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
            raise ValueError(f"{name} leads to a node that does not exist")
        return np.asarray(places, np.int32)

    thresholds = _numbers(nodes_values, nodes_values_as_tensor)
    missing = nodes_missing_value_tracks_true or (0,) * modes.size
    roots = {tree: of[tree, number] for tree, number in reversed(keys)}
    forest = Forest(
        features=inside("nodes_featureids", nodes_featureids, np.int32),
        modes=np.asarray([MODES.index(mode) for mode in modes[inner]], np.int32),
        thresholds=inside("nodes_values", thresholds, thresholds.dtype),
        members=np.zeros((count, 0), np.float32),
        if_true=children("nodes_truenodeids", nodes_truenodeids),
        if_false=children("nodes_falsenodeids", nodes_falsenodeids),
        missing_is_true=inside("nodes_missing_value_tracks_true", missing, bool),
        roots=np.asarray(list(roots.values()), np.int32),
    )
    return forest, of, modes.size - count


def _total(
    x: Value, nodes: dict[str, Any], votes: tuple[Any, Any, Any], weights: np.ndarray, targets: int, how: str
) -> jax.Array:
    """Return the aggregated votes of all trees, ``[batch, targets]``."""
    forest, place, leaf_count = _forest(**nodes)
    trees, numbers, voted = votes
    if not len(trees) == len(numbers) == len(voted) == weights.size:
        raise ValueError("votes need a tree, a node, a target and a weight each")
    places = [place.get(key, -1) - forest.features.size for key in zip(trees, numbers, strict=True)]
    if min(places, default=0) < 0:
        raise ValueError("a vote belongs to a node that is not a leaf")
    table = np.asarray(places, np.int64), np.asarray(voted, np.int64), weights
    return aggregated(forest.leaves(jnp.atleast_2d(traced(x))), table, (leaf_count, targets), how)


@inherits(_forest)
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


@inherits(_forest)
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
        # Votes for one class are scores of the second class, as shares of 1 if no weight is negative.
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
    """Return the operator without the float64 attributes (``..._as_tensor``)."""
    return earlier(function, *(name for name in inspect.signature(function).parameters if name.endswith("_as_tensor")))


#: The comparisons of a node, in the order of TreeEnsemble's ``nodes_modes``.
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")


@dataclasses.dataclass(frozen=True)
class Forest:
    """Trees with numbered nodes; the numbers of leaves follow the numbers of nodes."""

    features: np.ndarray  # the feature that each node compares
    modes: np.ndarray  # the comparison of each node, as an index into `MODES`
    thresholds: np.ndarray  # the number that each node compares with
    #: for BRANCH_MEMBER the set of members, ``[nodes, most]``, padded with NaN, which does not equal any number
    members: np.ndarray
    if_true: np.ndarray  # the next node, or the number of nodes plus a leaf number, if the comparison is true
    if_false: np.ndarray  # the same if the comparison is false
    missing_is_true: np.ndarray  # whether the comparison is true for NaN
    roots: np.ndarray  # the first node of each tree

    def __post_init__(self) -> None:
        count = self.features.size
        fields = (self.modes, self.thresholds, self.members, self.if_true, self.if_false, self.missing_is_true)
        if any(len(values) != count for values in fields):
            raise ValueError(
                f"the attributes of nodes must have equal lengths, not {count} and {list(map(len, fields))}"
            )
        if self.modes.size and not 0 <= self.modes.min() <= self.modes.max() < len(MODES):
            raise ValueError(f"modes of nodes are numbers from 0 to {len(MODES) - 1}")
        if self.features.size and self.features.min() < 0:
            raise ValueError("features are numbered from 0")
        if self.roots.size and not 0 <= self.roots.min() <= self.roots.max() < count + 1:
            raise ValueError(f"the root of a tree is not among the {count} nodes")

    @functools.cached_property
    def depth(self) -> int:
        """Return the largest number of comparisons between a root and a leaf."""
        count = self.features.size
        level, depth = np.unique(self.roots), 0
        while (level := level[level < count]).size:
            depth += 1
            if depth > count:
                raise ValueError("a node of a tree is its own descendant")
            level = np.unique(np.concatenate([self.if_true[level], self.if_false[level]]))
        return depth

    def leaves(self, x: jax.Array) -> jax.Array:
        """Return the leaf of each row ``[batch, features]`` in each tree: ``[batch, trees]``."""
        count = self.features.size
        if count and self.features.max() >= x.shape[1]:
            raise ValueError(f"a node looks at feature {self.features.max()}, but there are {x.shape[1]}")
        start = jnp.broadcast_to(jnp.asarray(self.roots, jnp.int32), (x.shape[0], self.roots.size))
        if not count:
            return start
        wide = np.promote_types(np.promote_types(x.dtype, np.float32), self.thresholds.dtype)
        x = x.astype(wide)
        thresholds, members = self.thresholds.astype(wide), self.members.astype(wide)

        def descend(place: jax.Array, _: None) -> tuple[jax.Array, None]:
            node = jnp.minimum(place, count - 1)
            value = jnp.take_along_axis(x, jnp.asarray(self.features, jnp.int32)[node], 1)
            limit = jnp.asarray(thresholds)[node]
            answers = [value <= limit, value < limit, value >= limit, value > limit, value == limit, value != limit]
            if members.shape[1]:
                answers.append(jnp.any(value[..., None] == jnp.asarray(members)[node], -1))
            mode = jnp.asarray(self.modes, jnp.int32)[node]
            answer = functools.reduce(
                lambda result, index: jnp.where(mode == index, answers[index], result),
                range(len(answers)),
                jnp.zeros_like(value, bool),
            )
            answer = jnp.where(jnp.isnan(value), jnp.asarray(self.missing_is_true)[node], answer)
            following = jnp.where(answer, jnp.asarray(self.if_true)[node], jnp.asarray(self.if_false)[node])
            return jnp.where(place < count, following, place), None

        return varying.scan(descend, start, length=self.depth)[0] - count


def aggregated(
    leaves: jax.Array, votes: tuple[np.ndarray, np.ndarray, np.ndarray], shape: tuple[int, int], how: str
) -> jax.Array:
    """Aggregate the votes of leaves in all trees: ``[batch, targets]``; a target without votes gets 0."""
    place, target, weight = votes
    if not place.size == target.size == weight.size:
        raise ValueError(f"votes need a leaf, a target and a weight each: {place.size}, {target.size}, {weight.size}")
    if place.size and not (
        place.min() >= 0 and place.max() < shape[0] and target.min() >= 0 and target.max() < shape[1]
    ):
        raise ValueError(f"a vote belongs to a leaf that does not exist, or to a target beyond {shape[1]}")
    check_choice("aggregate_function", how, _AGGREGATES)
    if how in ("SUM", "AVERAGE"):
        table = np.zeros(shape, weight.dtype)
        np.add.at(table, (place, target), weight)
        total = jnp.sum(jnp.asarray(table)[leaves], 1)
        return total / weight.dtype.type(max(leaves.shape[1], 1)) if how == "AVERAGE" else total
    neutral = np.inf if how == "MIN" else -np.inf
    table = np.full(shape, neutral, weight.dtype)
    (np.minimum if how == "MIN" else np.maximum).at(table, (place, target), weight)
    reduce = jnp.min if how == "MIN" else jnp.max
    extreme = reduce(jnp.asarray(table)[leaves], 1, initial=weight.dtype.type(neutral))
    return jnp.where(jnp.isinf(extreme), jnp.zeros((), weight.dtype), extreme)


def members_of(modes: np.ndarray, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Split a list into the sets of BRANCH_MEMBER nodes; NaN ends each set."""
    nodes = np.flatnonzero(modes == MODES.index("BRANCH_MEMBER"))
    flat = np.asarray(values)
    ends = np.flatnonzero(np.isnan(flat))
    if ends.size != nodes.size:
        raise ValueError(f"{nodes.size} nodes need a set of members, but membership_values has {ends.size} sets")
    sets = [part[~np.isnan(part)] for part in np.split(flat, ends + 1)[: nodes.size]]
    table = np.full((modes.size, max(map(len, sets), default=0)), np.nan, flat.dtype)
    for node, members in zip(nodes, sets, strict=True):
        table[node, : members.size] = members
    return table


OPERATORS: dict[str, Versions] = {
    "ai.onnx.ml::TreeEnsemble": since(tree_ensemble, 5),
    "ai.onnx.ml::TreeEnsembleClassifier": since(_before_tensors(tree_ensemble_classifier), 1)
    | since(tree_ensemble_classifier, 3, 5),
    "ai.onnx.ml::TreeEnsembleRegressor": since(_before_tensors(tree_ensemble_regressor), 1)
    | since(tree_ensemble_regressor, 3, 5),
}
