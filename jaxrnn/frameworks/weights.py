"""Weights of a module as the parameters of a file: stated under their names, checked with other values, put back."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxrnn._files.messages import near
from jaxrnn.comparison import Comparison, agree, compare, tolerances
from jaxrnn.errors import InputError, ModelError, StateError
from jaxrnn.frameworks.agreement import compared, narrowest
from jaxrnn.model import Model
from jaxrnn.onnx.parameters import WEIGHTS
from jaxrnn.onnx.tensors import graphs_below, graphs_in
from jaxrnn.steps.specs import Arrays
from jaxrnn.verification.sampling import verifiable_inputs

Outputs = Sequence[np.ndarray]
#: Runs a module on inputs by name with weights by name, and returns the outputs in order.
RunWith = Callable[[Arrays, Arrays], Outputs]

#: Powers of two between which the sizes of other weights lie, relative to the weights of the module. If rounding
#: errors grow too much in a recurrence with large weights, smaller weights follow.
_SPREADS = ((-6, 3), (-6, 1), (-3, 0), (-1, 1))
#: The share of the tolerance that a rounding step of all weights may use.
_ROUNDING_SHARE = 1 / 4


def state_weights(proto: onnx.ModelProto, weights: Arrays) -> None:
    """Write the weights of a module into a file, and list the names as the parameters of the file.

    In the exported graph, a weight is an input or an initializer with the name of the weight, so that the exporter
    has not computed with the value. Weights that no output needs are left out.

    Raises:
        ModelError: an initializer with the name of a weight has a different value.
    """
    graph = proto.graph
    kept = {tensor.name: tensor for tensor in graph.initializer}
    for name, tensor in kept.items():
        if name in weights and not _same(numpy_helper.to_array(tensor), weights[name]):
            raise ModelError(f"the exporter wrote another value under the name of the weight {name!r}")
    used = read_for(graph, [output.name for output in graph.output])
    there = {entry.name for entry in graph.input} | kept.keys()
    written = [name for name in weights if name in there and name in used]
    inputs = [entry for entry in graph.input if entry.name not in weights and entry.name not in kept]
    tensors = [tensor for tensor in graph.initializer if tensor.name not in weights]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(inputs)
    graph.initializer.extend(tensors)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(weights[name], order="C"), name) for name in written)
    proto.metadata_props.add(key=WEIGHTS, value=json.dumps(written))


def lost_weights(proto: onnx.ModelProto, weights: Arrays) -> list[str]:
    """Return the weights whose names a file lacks, and whose values are constants of the file."""
    names = {entry.name for entry in proto.graph.input} | {tensor.name for tensor in proto.graph.initializer}
    values = {_key(numpy_helper.to_array(tensor)) for tensor in _constants_in(proto)}
    return [name for name, array in weights.items() if name not in names and _key(array) in values]


def marked(weights: Arrays) -> dict[str, np.ndarray]:
    """Return weights of about the same values, so that all values differ."""
    rng, found = np.random.default_rng(0), {}
    for name, array in weights.items():
        changed = np.where(array == 0, 1e-3, array) * (1 + rng.uniform(0.01, 0.02, array.shape))
        found[name] = np.asarray(changed, array.dtype)
    return found


def restored(proto: onnx.ModelProto, other: onnx.ModelProto, weights: Arrays, marks: Arrays) -> onnx.ModelProto:
    """Return a file in which the constants that are weights of a module have the names of the weights.

    `other` is the file of the module with `marks` in place of these weights, which identifies the constants: equal
    weights, such as zeros, and equal numbers of the code have different values there. A compiled layer, for example,
    reads its weights from a list, and the exporter writes the list as constants. All other constants must be equal in
    both files.
    """
    names = {_key(array): name for name, array in marks.items()}
    known = {_key(numpy_helper.to_array(tensor)) for tensor in _constants_in(proto)}
    found = {_key(numpy_helper.to_array(tensor)) for tensor in _constants_in(other)}
    if not found - names.keys() <= known or not found & names.keys():
        return proto  # the code computes with the value of a weight
    moved = [tensor for tensor in other.graph.initializer if _key(numpy_helper.to_array(tensor)) in names]
    kept = [tensor for tensor in other.graph.initializer if _key(numpy_helper.to_array(tensor)) not in names]
    nodes = [
        helper.make_node("Identity", [names[_key(numpy_helper.to_array(tensor))]], [tensor.name]) for tensor in moved
    ]
    for graph in graphs_below(other.graph):
        for node in graph.node:
            name = names.get(_key(numpy_helper.to_array(node.attribute[0].t))) if _is_constant(node) else None
            if name is not None:
                node.CopyFrom(helper.make_node("Identity", [name], node.output, name=node.name))
    nodes += other.graph.node
    del other.graph.node[:], other.graph.initializer[:]
    other.graph.node.extend(nodes)
    other.graph.initializer.extend(kept)
    added = [name for key, name in names.items() if key in found]
    other.graph.initializer.extend(numpy_helper.from_array(np.asarray(weights[name]), name) for name in added)
    return other


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and node.attribute[0].HasField("t")


def _constants_in(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a graph and its subgraphs that are constants."""
    for graph in graphs_below(proto.graph):
        yield from graph.initializer if isinstance(graph, onnx.GraphProto) else ()
        yield from (node.attribute[0].t for node in graph.node if _is_constant(node))


def _key(array: np.ndarray) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def check_names(constants: Sequence[str], weights: Arrays, owner: str) -> None:
    """Refuse names in `constants` that are not weights."""
    for name in [constants] if isinstance(constants, str) else constants:
        if name not in weights:
            raise InputError(
                f"`constants` must be names of weights of {owner}: there is no {name!r}{near(name, weights)}"
            )


def check_constants(found: Sequence[str], trainable: Collection[str], allowed: Sequence[str]) -> None:
    """Refuse trainable weights that are constants of a file, and that the caller has not allowed."""
    if lost := [name for name in found if name in trainable and name not in allowed]:
        listed = ", ".join(map(repr, lost))
        raise ModelError(
            f"the trainable weights {listed} would be constants of the file, which no training changes: the module "
            "reads their values outside of the exported graph, as Python numbers or NumPy arrays, for example by "
            f"`w.item()`. Compute with the tensors, or allow this: `constants={lost}`"
        )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def read_for(graph: onnx.GraphProto, outputs: Sequence[str]) -> set[str]:
    """Return the names of all values that outputs depend on; a node depends on all values inside its subgraphs."""
    producers: dict[str, list[onnx.NodeProto]] = {}
    for each in graphs_below(graph):
        for node in each.node:
            for name in node.output:
                producers.setdefault(name, []).append(node)
    found, pending = set(outputs), list(outputs)
    while pending:
        for node in producers.pop(pending.pop(), ()):
            inner = [
                below for attribute in node.attribute for each in graphs_in(attribute) for below in graphs_below(each)
            ]
            names = {*node.input, *(name for below in inner for part in below.node for name in part.input)}
            names |= {entry.name for below in inner if isinstance(below, onnx.GraphProto) for entry in below.output}
            pending += names - found
            found |= names
    return found


def check_other_weights(model: Model, run: RunWith, weights: Arrays, inputs: Arrays, framework: str) -> list[str]:
    """Compare a model with the module for other weights: random, of both signs, large and small, and their negatives.

    A weight that the module reads as a number while it is exported is a constant of the file, and the two agree only
    for this value. Return the names of such weights. Other weights do not decide if the outputs do not change, are not
    finite, or let rounding errors grow; then smaller weights follow, and at last weights with the signs of the
    module's, as for a filter bank before a logarithm.

    Raises:
        ModelError: the module and the model differ, or no choice of weights decides. The message names the weights.
    """
    if not weights:
        return []
    first = run(inputs, weights)
    for seed, (spread, keeps_signs) in enumerate([*((each, False) for each in _SPREADS), (_SPREADS[1], True)]):
        drawn = _accepted(model, inputs, weights, _drawn(weights, spread, seed))
        if keeps_signs:
            others = drawn[0], _drawn(weights, spread, seed + 1)
            drawn = [{name: np.copysign(each[name], weights[name]) for name in each} for each in others]
        constants = _constants(model, run, inputs, weights, first, drawn[0])
        kept = {name: weights[name] for name in constants}
        decided = [_decides(model, run, inputs, weights, first, {**other, **kept}, framework) for other in drawn]
        if all(decided):
            return constants
    raise ModelError(
        f"the weights cannot be checked: for other random weights, the outputs of {framework} do not change, are not "
        "finite, or depend on rounding errors"
    )


def _constants(model: Model, run: RunWith, inputs: Arrays, weights: Arrays, first: Outputs, other: Arrays) -> list[str]:
    """Return the weights that change the outputs of the module, and are not parameters of the model."""
    found = []
    for name in sorted(weights.keys() - model.params.keys()):
        pairs = ((first, {**weights, name: other[name]}), (run(inputs, other), {**other, name: weights[name]}))
        if any(_changed(before, run(inputs, changed)) for before, changed in pairs):
            found.append(name)
    return found


def _decides(
    model: Model, run: RunWith, inputs: Arrays, weights: Arrays, first: Outputs, other: Arrays, framework: str
) -> bool:
    """Return True if model and module agree for other weights, and False if these weights do not decide."""
    there = run(inputs, other)
    narrow = narrowest(model, inputs)
    if not _agree(there, run(inputs, _rounded(other)), narrow, _ROUNDING_SHARE):
        return False
    if not model.params:
        return True  # no parameter changes an output
    if not _finite(there) or _agree(there, first, narrow, 1):
        return False
    wrong = _differences(model, run, inputs, other)
    if not wrong:
        return True
    alone = [name for name in model.params if _differences(model, run, inputs, {**weights, name: other[name]})]
    raise ModelError(
        f"the file agrees with {framework} for the weights of the module, but not for other values of "
        f"{', '.join(map(repr, alone)) or 'all weights'}: output {wrong[0].name!r}: {wrong[0].reason}. The module "
        "branches on a weight, or reads the weight as a number, while it is exported; compute with tensors instead"
    )


def _drawn(weights: Arrays, spread: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
    """Return random weights of both signs, with sizes spread over powers of two times the size of each weight."""
    drawn = {}
    for name, array in weights.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        size = float(np.sqrt(np.mean(np.square(array.astype(np.float64))))) if array.size else 0.0
        size = size if np.isfinite(size) and size > 0 else 0.25
        drawn[name] = (size * np.exp2(rng.uniform(*spread, array.shape)) * _signs(rng, array)).astype(array.dtype)
    return drawn


def _rounded(weights: Arrays) -> dict[str, np.ndarray]:
    """Return weights with random errors of a rounding step."""
    rng = np.random.default_rng(0)
    return {
        name: (array * (1 + float(jnp.finfo(array.dtype).eps) * _signs(rng, array))).astype(array.dtype)
        for name, array in weights.items()
    }


def _signs(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    return rng.choice([-1.0, 1.0], array.shape)


def _accepted(model: Model, inputs: Arrays, weights: Arrays, drawn: Arrays) -> tuple[Arrays, Arrays]:
    """Return weights and their negatives, in which weights that must be positive, such as variances, are positive.

    A weight must be positive if the weight of the module is, and outputs with a negative value are not finite.
    """
    negative = {name: -array for name, array in drawn.items()}

    def is_finite(values: Arrays) -> bool:
        return _finite([*_applied(model, values, inputs).values()])

    if is_finite(drawn) and is_finite(negative):
        return drawn, negative
    positive = [name for name in model.params if (weights[name] > 0).all()]
    needed = [name for name in positive if not is_finite({**weights, name: -np.abs(drawn[name])})]
    kept = {name: np.abs(drawn[name]) for name in needed}
    return {**drawn, **kept}, {**negative, **kept}


def _finite(outputs: Sequence[Any]) -> bool:
    return all(bool(jnp.isfinite(value).all()) for value in outputs if jnp.issubdtype(value.dtype, jnp.inexact))


def _agree(one: Outputs, other: Outputs, narrow: Sequence[np.dtype | None], share: float) -> bool:
    """Return True if no outputs differ by more than a share of the tolerance."""
    return not any(
        compare("", a, b, atol=share * atol, rtol=share * rtol, scaled=True).differs
        for a, b, precision in zip(one, other, narrow, strict=True)
        for atol, rtol in [tolerances(a.dtype, None, None, precision)]
    )


def _changed(one: Outputs, other: Outputs) -> bool:
    return any(compare("", a, b, atol=0.0, rtol=0.0).differs for a, b in zip(one, other, strict=True))


def _applied(model: Model, weights: Arrays, inputs: Arrays) -> Mapping[str, Any]:
    with jax.default_matmul_precision("highest"):
        return model.apply({name: weights[name] for name in model.params}, inputs)


def _differences(model: Model, run: RunWith, inputs: Arrays, weights: Arrays) -> list[Comparison]:
    found = compared(model, inputs, _applied(model, weights, inputs), run(inputs, weights))
    return [each for each in found if each.differs]


def check_states(model: Model, states: Mapping[str, str], given: Mapping[str, str] | None) -> None:
    """Refuse a model that does not carry a state of the module from an input to an output.

    Raises:
        StateError: a state is not carried.
    """
    carried = {(variable.input, variable.output) for variable in model.state} if states else set()
    if missing := {name: output for name, output in states.items() if (name, output) not in carried}:
        said = {**(given or {}), **missing}
        raise StateError(f"{model.label} keeps states that the model does not: `state={said}`")


def check_weights(
    params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], owner: str, model: Model | None
) -> dict[str, np.ndarray]:
    """Return the arrays of a module's weights among parameters, after a check of names and shapes."""
    arrays = {name: np.asarray(params[name]) for name in shapes if name in params}
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise InputError(f"params[{name!r}] has shape {array.shape}, but {owner} has {shapes[name]}")
    known = {} if model is None else model.params
    others = [name for name in params if name not in shapes]
    changed = [name for name in others if name not in known or not np.array_equal(params[name], known[name])]
    if changed:
        raise InputError(
            f"{owner} has no weight {changed[0]!r}, so its value cannot be put back. Make the model with "
            "from_torch or from_keras, which keep the names, and freeze parameters that are not weights of the module"
        )
    missing = [name for name in shapes if name not in params]
    if missing and model is None:
        raise InputError(
            f"params have no {missing[0]!r} of {owner}: the exporter folded it into another weight, or the module does "
            "not use it. Pass the model too, model=model, so that the result is checked by a run"
        )
    return arrays


def check_after(model: Model, params: Mapping[str, Any], run: Callable[[Arrays], Outputs], framework: str) -> None:
    """Compare a module with new weights with the model, on random inputs."""
    with jax.default_matmul_precision("highest"):
        inputs = verifiable_inputs(model).inputs
        here = model.apply(params, inputs)
    outputs = compared(model, inputs, here, run(inputs))
    if not agree(outputs):
        wrong = [each for each in outputs if not each.ok]
        raise ModelError(
            f"{framework} with these weights differs from the model: output {wrong[0].name!r}: {wrong[0].reason}; the "
            "weights were not kept"
        )


@contextlib.contextmanager
def quiet(level: int) -> Iterator[None]:
    """Silence the warnings of an exporter, and logs up to a level."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def declare_shapes(proto: onnx.ModelProto, shapes: Sequence[Sequence[int | str | None]]) -> None:
    """Declare the shapes of the outputs, which exporters state wrongly or not at all."""
    for output, shape in zip(proto.graph.output, shapes, strict=True):
        kind = output.type.tensor_type.elem_type
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, shape))


def rename_values(proto: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename values of a graph."""
    taken = {name for graph in graphs_below(proto.graph) for node in graph.node for name in node.output}
    taken |= {tensor.name for tensor in proto.graph.initializer} | {entry.name for entry in proto.graph.input}
    changes = {old: new for old, new in names.items() if old != new}
    changes |= {new: f"{new}.inner" for new in changes.values() if new in taken and new not in changes}
    for graph in graphs_below(proto.graph):
        for node in graph.node:
            for values in (node.input, node.output):
                values[:] = [changes.get(name, name) for name in values]
        if isinstance(graph, onnx.GraphProto):
            for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
                entry.name = changes.get(entry.name, entry.name)
