"""Every case by kind, seed and number: the same file every time."""

from __future__ import annotations

import functools
import random

import onnx

from fuzzing import compiled
from fuzzing.nodes import odd, random_node
from fuzzing.seeds import real_seeds, small_seeds
from fuzzing.structure import changed, damaged

KINDS = ("bytes", "structure", "nodes", "real", "odd", "compiled", "files")


@functools.cache
def _small():
    return small_seeds()


@functools.cache
def _real():
    return real_seeds()


@functools.cache
def _without_weights(name):
    """A real file whose weights are inputs: what is left is small."""
    proto = onnx.ModelProto.FromString(_real()[name])
    for index in reversed(range(len(proto.graph.initializer))):
        tensor = proto.graph.initializer[index]
        if len(tensor.raw_data) > 4096:
            del proto.graph.initializer[index]
            if tensor.name not in {each.name for each in proto.graph.input}:
                proto.graph.input.append(
                    onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
                )
    return proto


def make(kind, seed, number):
    """The file of a case, or its path, and how to try it."""
    rng = random.Random(f"{kind} {seed} {number}")
    options = {"size": rng.choice((2, 3)), "streams": rng.random() < 0.2, "eager": rng.random() < 0.2}
    names = sorted(_small())
    if kind == "compiled":
        return compiled.changed_file(rng), {"batch": rng.choice((None, 1, 2))}
    if kind == "files":
        from fuzzing import files  # the packages of evaluations and trainings take seconds to import

        return files.changed_file(rng), {}
    if kind == "nodes":
        return random_node(rng), options
    if kind == "real" and _real():
        name = rng.choice(sorted(_real()))
        data = _real()[name]
        if rng.random() < 0.5:
            return damaged(rng, data, data), options
        return changed(rng, _without_weights(name)), options
    if kind == "odd":
        return odd(rng, f"{kind}-{seed}-{number}", [_small()[name] for name in names]), options
    proto = _small()[rng.choice(names)]
    if kind == "structure":
        copy = changed(rng, proto)
        return (copy if rng.random() < 0.5 else copy.SerializeToString()), options
    return damaged(rng, proto.SerializeToString(), _small()[rng.choice(names)].SerializeToString()), options
