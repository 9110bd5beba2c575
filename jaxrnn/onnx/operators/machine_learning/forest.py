"""Forests of decision trees as arrays, walked level by level for all rows and trees at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._jax import varying

#: The comparisons of a node, in the order of TreeEnsemble's ``nodes_modes``.
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")


@dataclasses.dataclass(frozen=True)
class Forest:
    """Trees with numbered nodes; the numbers of leaves follow those of the nodes.

    Attributes:
        features: the feature that each node compares.
        modes: its comparison, as an index into `MODES`.
        thresholds: what it compares with.
        members: for BRANCH_MEMBER the set of members, ``[nodes, most]``, padded with NaN, which equals nothing.
        if_true: the next node, or the number of nodes plus that of a leaf, if the comparison holds.
        if_false: the same if it does not.
        missing_is_true: whether it holds for NaN.
        roots: the first node of each tree.
    """

    features: np.ndarray
    modes: np.ndarray
    thresholds: np.ndarray
    members: np.ndarray
    if_true: np.ndarray
    if_false: np.ndarray
    missing_is_true: np.ndarray
    roots: np.ndarray

    def __post_init__(self) -> None:
        count = self.features.size
        fields = (self.modes, self.thresholds, self.members, self.if_true, self.if_false, self.missing_is_true)
        if any(len(values) != count for values in fields):
            raise ValueError(f"the attributes of nodes must have one length, not {count} and {list(map(len, fields))}")
        if self.modes.size and not 0 <= self.modes.min() <= self.modes.max() < len(MODES):
            raise ValueError(f"modes of nodes are numbers from 0 to {len(MODES) - 1}")
        if self.features.size and self.features.min() < 0:
            raise ValueError("features are numbered from 0")
        if self.roots.size and not 0 <= self.roots.min() <= self.roots.max() < count + 1:
            raise ValueError(f"a tree begins at a node that is none of the {count}")

    @functools.cached_property
    def depth(self) -> int:
        """The most comparisons between a root and a leaf.

        Raises:
            ValueError: a node is reached from itself.
        """
        count = self.features.size
        level, depth = np.unique(self.roots), 0
        while (level := level[level < count]).size:
            depth += 1
            if depth > count:
                raise ValueError("a node of a tree is its own descendant")
            level = np.unique(np.concatenate([self.if_true[level], self.if_false[level]]))
        return depth

    def leaves(self, x: jax.Array) -> jax.Array:
        """The leaf that each row ``[batch, features]`` falls to in each tree: ``[batch, trees]``."""
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
    """The aggregated votes of the leaves of all trees, ``[batch, targets]``; a target without votes gets 0.

    Args:
        leaves: ``[batch, trees]``.
        votes: the leaf, the target and the weight of each vote.
        shape: the numbers of leaves and of targets.
        how: SUM, AVERAGE (over trees), MIN or MAX.
    """
    place, target, weight = votes
    if not place.size == target.size == weight.size:
        raise ValueError(f"votes need a leaf, a target and a weight each: {place.size}, {target.size}, {weight.size}")
    if place.size and not (
        place.min() >= 0 and place.max() < shape[0] and target.min() >= 0 and target.max() < shape[1]
    ):
        raise ValueError(f"a vote is of a leaf that there is not, or for a target beyond {shape[1]}")
    if how in ("SUM", "AVERAGE"):
        table = np.zeros(shape, weight.dtype)
        np.add.at(table, (place, target), weight)
        total = jnp.sum(jnp.asarray(table)[leaves], 1)
        return total / weight.dtype.type(max(leaves.shape[1], 1)) if how == "AVERAGE" else total
    if how not in ("MIN", "MAX"):
        raise ValueError(f"aggregate_function must be AVERAGE, SUM, MIN or MAX, not {how!r}")
    neutral = np.inf if how == "MIN" else -np.inf
    table = np.full(shape, neutral, weight.dtype)
    (np.minimum if how == "MIN" else np.maximum).at(table, (place, target), weight)
    reduce = jnp.min if how == "MIN" else jnp.max
    extreme = reduce(jnp.asarray(table)[leaves], 1, initial=weight.dtype.type(neutral))
    return jnp.where(jnp.isinf(extreme), jnp.zeros((), weight.dtype), extreme)


def members_of(modes: np.ndarray, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The sets of the nodes of mode BRANCH_MEMBER, from a list in which each set ends with NaN."""
    nodes = np.flatnonzero(modes == MODES.index("BRANCH_MEMBER"))
    flat = np.asarray(values)
    ends = np.flatnonzero(np.isnan(flat))
    if ends.size != nodes.size:
        raise ValueError(f"{nodes.size} nodes ask for membership, but membership_values holds {ends.size} sets")
    sets = [part[~np.isnan(part)] for part in np.split(flat, ends + 1)[: nodes.size]]
    table = np.full((modes.size, max(map(len, sets), default=0)), np.nan, flat.dtype)
    for node, members in zip(nodes, sets, strict=True):
        table[node, : members.size] = members
    return table
