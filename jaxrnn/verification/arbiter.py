"""The arbiter between two engines that differ: the same graph in float64, computed by both kinds of engine.

jaxrnn alone cannot judge itself, because a wrong operator is as wrong in float64. If jaxrnn and another engine agree on
the graph in float64, both know the same function, and a difference in a narrower type is a matter of rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from jaxrnn._jax.context import exact_types
from jaxrnn.comparison import Comparison, compare, tolerances
from jaxrnn.errors import JaxrnnError
from jaxrnn.model import Model
from jaxrnn.model.loading import load, write_graph
from jaxrnn.verification.inside import intermediates
from jaxrnn.verification.peers import candidates, complete_proto, first_to_run

#: Absolute and relative tolerance of two engines in float64, far below the tolerances of float32.
EQUAL = 1e-7
#: How much further from float64 than the peer jaxrnn may be: another order of roundings.
FURTHER = 2.0
#: The largest error that is rounding, as a share of the largest value.
ROUNDING = 0.01

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: The names of attributes that hold the element type of the arithmetic or of the result.
_TYPES = ("to", "dtype", "stash_type", "softmax_precision", "output_datatype")


class NoArbiterError(Exception):
    """The graph does not run in float64."""


class Arbiter:
    """A graph in float64, in jaxrnn and in a second engine."""

    def __init__(self, proto: Callable[[], ModelProto], inputs: Mapping[str, Any], static: Mapping[str, Any]):
        self._proto, self._inputs, self._static = proto, inputs, static
        self._found: tuple[dict[str, Any], dict[str, Any]] | str | None = None

    def judge(
        self,
        found: Comparison,
        here: Any,
        peer: Any,
        sides: tuple[str, str] = ("jaxrnn", "the peer"),
        *,
        atol: float | None = None,
        rtol: float | None = None,
        scaled: bool = False,
        precision: np.dtype | None = None,
    ) -> Comparison:
        """Return the verdict on values; the comparison of floats that differ changes.

        The comparison is ``ok`` if jaxrnn and the second engine agree in float64, and `here` is as near to float64 as
        the tolerances demand, or nearly as near as `peer`. Otherwise the values differ. `Comparison.reason` or
        `Comparison.arbiter` reports how far both are off.

        Args:
            found: the comparison of `here` and `peer`.
            here: an array; it may end before the value in float64.
            peer: the array of the other engine.
            sides: the names of both sides in the reason.
            atol, rtol, scaled, precision: as in `jaxrnn.verification.compare`.
        """
        if not found.differs:
            return found
        one, other = np.asarray(here), np.asarray(peer)
        if found.worst is None or not jnp.issubdtype(one.dtype, jnp.floating) or one.dtype == np.float64:
            return found
        try:
            exact = self._exact(found.name)
        except NoArbiterError as unknown:
            return replace(found, nearer="unknown", arbiter=f"which side is nearer to float64 is unknown: {unknown}")
        exact = None if exact is None else exact[tuple(map(slice, one.shape))]
        if exact is not None and exact.shape != one.shape:
            return found
        if exact is None:
            return replace(found, arbiter="the engines also differ in float64")
        scale = max(1.0, float(np.abs(exact).max(initial=0.0, where=np.isfinite(exact))))
        atol, rtol = tolerances(one.dtype, atol, rtol, precision)
        off, peer_off = _distance(one, exact), _distance(other, exact)
        far, peer_far = (float(each.max(initial=0.0)) for each in (off, peer_off))
        near = off <= atol * (scale if scaled else 1.0) + rtol * np.abs(np.nan_to_num(exact))
        said = f"{sides[0]} is off float64 by up to {far:.3g}, {sides[1]} by {peer_far:.3g}"
        nearer = "here" if far < peer_far else "peer"
        if near.all() or far <= min(FURTHER * peer_far, ROUNDING * scale):
            return replace(found.accepted(f"up to rounding: {said}"), nearer=nearer)
        return replace(found, nearer=nearer, arbiter=said)

    def _exact(self, name: str) -> np.ndarray | None:
        """Return the value in float64, or None if the engines differ in float64."""
        if self._found is None:
            try:
                self._found = self._run()
            except (JaxrnnError, OSError, TypeError, ValueError) as error:
                self._found = str(error)
        if isinstance(self._found, str):
            raise NoArbiterError(self._found)
        here, peer = (side.get(name) for side in self._found)
        if getattr(here, "dtype", None) != np.float64 or getattr(peer, "dtype", None) != np.float64:
            raise NoArbiterError(f"the value {name!r} has no form in float64")
        return np.asarray(here) if compare(name, here, peer, atol=EQUAL, rtol=EQUAL, scaled=True).ok else None

    def _run(self) -> tuple[dict[str, Any], dict[str, Any]]:
        proto = in_float64(self._proto())
        inputs, static = ({name: _wide(each) for name, each in given.items()} for given in (self._inputs, self._static))
        model = load(proto, static=static)
        with exact_types(), jax.default_matmul_precision("highest"):
            here = {name: value for name, (_, value) in intermediates(model, inputs).items()} | model(inputs)
        feeds = {name: np.asarray(each) for name, each in {**inputs, **static}.items()}
        engines = reversed(candidates("auto"))
        return here, first_to_run(engines, lambda opener: opener(proto).run(feeds), "no engine runs the graph")[0]


@dataclass(frozen=True)
class Whole:
    """A model with parameters as a function of whole recordings, which has an arbiter."""

    model: Model
    params: Any

    def __call__(self, recordings: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the model."""
        return self.model.apply(self.params, recordings)

    def arbiter(self, recordings: Mapping[str, Any]) -> Arbiter:
        """Return the arbiter between results on these recordings."""
        return Arbiter(self._proto, recordings, self.model.static)

    def _proto(self) -> ModelProto:
        with tempfile.TemporaryDirectory() as folder:
            write_graph(self.model, self.params, Path(folder, "whole.onnx"))
            return complete_proto(Path(folder, "whole.onnx"))


def _distance(array: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the distance of each element from the value in float64; infinite if only one value is finite."""
    with np.errstate(all="ignore"):
        rounded, wide = exact.astype(array.dtype), array.astype(np.float64)
        equal = (array == rounded) | (np.isnan(array) & np.isnan(rounded))
        distance = np.abs(wide - exact)
    return np.where(equal, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _wide(array: Any) -> Any:
    dtype = getattr(array, "dtype", np.dtype(object))
    return array.astype(np.float64) if dtype.itemsize > 1 and jnp.issubdtype(dtype, jnp.floating) else array


def in_float64(proto: ModelProto) -> ModelProto:
    """Return a copy of a model with float64 in place of float32, float16 and bfloat16: types, tensors and casts."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    del copy.metadata_props[:]  # the description of a state has the types of the file
    opsets = {entry.domain: entry.version for entry in copy.opset_import}
    _widen(copy, opsets)
    return copy


def _widen(message: Any, opsets: Mapping[str, int]) -> None:
    """Widen a message and all messages below, in place."""
    if isinstance(message, TensorProto):
        if message.data_type in _NARROW:
            array = numpy_helper.to_array(message).astype(np.float64)
            message.CopyFrom(numpy_helper.from_array(array, message.name))
        return
    if isinstance(message, onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) and message.elem_type in _NARROW:
        message.elem_type = TensorProto.DOUBLE
    if isinstance(message, NodeProto):
        _widen_defaults(message, opsets)
    if isinstance(message, AttributeProto) and message.name in _TYPES and message.i in _NARROW:
        message.i = TensorProto.DOUBLE
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if isinstance(value, list) or hasattr(value, "extend") else [value]:
                _widen(each, opsets)


def _widen_defaults(node: NodeProto, opsets: Mapping[str, int]) -> None:
    """Write out default attributes, which engines read in float32 or float64, and constants that are float32."""
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            numbers = np.asarray(helper.get_attribute_value(attribute), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(numbers)))
    written = {attribute.name for attribute in node.attribute}
    if node.op_type == "ConstantOfShape" and not written:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return  # a local function, which is widened itself, or an operator without a definition
    for name, declared in schema.attributes.items():
        if name in written:
            continue
        if declared.default_value.type == AttributeProto.FLOAT:
            node.attribute.append(declared.default_value)
        elif name in _TYPES and declared.default_value.i in _NARROW:
            node.attribute.append(helper.make_attribute(name, TensorProto.DOUBLE))
