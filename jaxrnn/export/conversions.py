"""Conversions of a finished graph: quantisation by ONNX Runtime's quantizer, and half precision."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn._files.messages import near_or_all, short_repr
from jaxrnn._jax.context import compute_type
from jaxrnn.errors import InputError, MissingPackageError, UnsupportedError, install_command
from jaxrnn.export import kernels
from jaxrnn.export.calibration import Calls, Recordings
from jaxrnn.export.writer import MADE, OWN_DOMAIN, constant_of
from jaxrnn.onnx.graph import subgraphs_of

#: Just below protobuf's limit. The tensors of larger models go to an external file.
LARGEST = 2**31 - 2**24


@short_repr
@dataclass(frozen=True)
class Quantization:
    """The quantisation of an exported file: the argument ``quantize`` of an export, where options are needed.

    Example::

        quantize = jaxrnn.export.Quantization("static", recordings=[{"x": jnp.zeros((8, 2))}], exclude=["mask"])

    Attributes:
        kind: ``"dynamic"``: weights are 8-bit integers, and each call quantises the inputs of products, convolutions
            and LSTMs. ``"static"``: products and convolutions also get their inputs and outputs as integers, in the
            ranges of recordings. ``"float16"``, for LiteRT: weights have 16 bits.
        exclude: products, convolutions and LSTMs that stay float32, by the start of the node's name.
        recordings: the recordings for ``"static"``, in a list, or in a dict with names as keys: each a dict of arrays
            by input, in the layout of the stepper with all frames. The file runs over each recording from the first
            state, and the ranges include all calls.
    """

    kind: str
    exclude: Sequence[str] = ()
    recordings: Recordings | None = None


def quantization_of(given: Any, kinds: Sequence[str]) -> Quantization | None:
    """Check the argument ``quantize`` of an export: the kind, a `Quantization`, or None."""
    if given is None:
        return None
    found = given if isinstance(given, Quantization) else Quantization(given)
    if found.kind not in kinds:
        raise InputError(f"quantize must be None or {' or '.join(map(repr, kinds))}, not {found.kind!r}")
    if isinstance(found.exclude, str) or not all(isinstance(each, str) and each for each in found.exclude):
        raise InputError(f"`Quantization.exclude` must be a sequence of names of nodes, not {found.exclude!r}")
    if (found.kind == "static") != (found.recordings is not None):
        raise InputError("`quantize='static'` and `Quantization.recordings` go together: ranges come from recordings")
    return found


def check_excluded(exclude: Sequence[str], names: Sequence[str]) -> None:
    """Raise an error for a name in `exclude` with which no name of a product begins."""
    for each in exclude:
        if not any(name.startswith(each) for name in names):
            raise InputError(
                f"`Quantization.exclude`: the name of no product, convolution or LSTM starts with {each!r}"
                f"{near_or_all(each, dict.fromkeys(names))}"
            )


@dataclass(frozen=True)
class Conversion:
    """The types of an export: see `jaxrnn.export_onnx`."""

    dtype: np.dtype | None
    io_dtype: np.dtype | None
    quantize: Quantization | None

    @classmethod
    def of(cls, dtype: Any, io_dtype: Any, quantize: Any) -> Conversion | None:
        """Check the arguments of an export; return None if no conversion is needed."""
        quantize = quantization_of(quantize, ("dynamic", "static"))
        if dtype is not None and quantize is not None:
            raise InputError(
                f"give dtype or quantize, not both: quantised products are not {compute_type(dtype)}, and come back as "
                "float32"
            )
        known, of_io = compute_type(dtype), compute_type(io_dtype)
        if of_io is not None and of_io != known:
            raise InputError(f"io_dtype must be equal to dtype, or None for float32, not {of_io}")
        return None if known is None and quantize is None else cls(known, of_io, quantize)

    def check(self, models: Sequence[ir.Model]) -> None:
        """Raise an error for an excluded name with which no node of the models begins."""
        if self.quantize is not None:
            nodes = [node for model in models for node in model.graph.all_nodes()]
            check_excluded(self.quantize.exclude, [str(node.name) for node in nodes if node.op_type in _QUANTISED])

    def apply(self, model: ir.Model, facts: Any, calls: Calls | None = None) -> tuple[ir.Model, Any]:
        """Convert a model and the `StepFile`, which is None for the whole graph of a model's file.

        ``calls`` are the inputs of all calls by kind, for static quantisation.
        """
        if not model.opset_imports.keys() & {"", "ai.onnx"}:  # two names of ONNX's operators, such as casts
            model.opset_imports[""] = _OPSET
        if self.quantize is not None:
            return _quantized(model, self.quantize.exclude, None if calls is None else calls[facts.kind]), facts
        assert self.dtype is not None
        dtype = self.dtype
        if facts is None:
            ends = () if self.io_dtype else (*model.graph.inputs, *model.graph.outputs)
            _narrow(model, dtype, [str(value.name) for value in ends], (), is_step=False)
            return model, None
        spec = facts.spec
        names = [facts.state[each.name] for each in spec.state if each.kind in WIDE_KINDS]
        wide = [name for each in names for name in (each.input, each.output) if name is not None]
        ends = [] if self.io_dtype else [*facts.inputs.values(), *facts.outputs.values()]
        _narrow(model, dtype, [*ends, *wide], wide, is_step=True)

        def changed(each: Any) -> Any:
            return dataclasses.replace(each, dtype=dtype) if each.dtype == np.float32 else each

        state = tuple(each if each.kind in WIDE_KINDS else changed(each) for each in spec.state)
        spec = dataclasses.replace(spec, state=state)
        if self.io_dtype:
            inputs, outputs = (tuple(map(changed, each)) for each in (spec.inputs, spec.outputs))
            spec = dataclasses.replace(spec, inputs=inputs, outputs=outputs)
        types = {each.name: each.dtype for each in state}
        first = {
            name: _converted(array, types[name]) if types[name] == dtype else array
            for name, array in facts.first.items()
        }
        parts = {name: tuple(map(changed, parts)) for name, parts in facts.parts.items() if types[name] == dtype}
        return model, dataclasses.replace(facts, spec=spec, first=first, parts={**facts.parts, **parts})


#: The operators with weights that ONNX Runtime's quantizer stores as integers: in dynamic, and in static quantisation.
_QUANTISED = frozenset(("MatMul", "Gemm", "Conv", "LSTM", "Gather"))
_STATIC = frozenset(("MatMul", "Gemm", "Conv"))
#: The opset of quantised weights with a scale for each channel.
_CHANNELS = 13


def _quantized(model: ir.Model, exclude: Sequence[str], calls: Sequence[Any] | None = None) -> ir.Model:
    """Quantise the weights of products, convolutions and LSTMs to 8 bits; each call quantises the inputs.

    With the inputs of calls, the products and convolutions of the graph, but not of bodies, are quantised statically:
    their inputs and outputs have the ranges of all calls. Arrays that depend on no parameter, such as Fourier matrices
    and tables of positions, stay float32.
    """
    try:
        from onnxruntime import quantization
    except ImportError as error:
        raise MissingPackageError(
            f"ONNX Runtime, which quantises the file, is not installed: {install_command('verify')}"
        ) from error
    nodes = [node for node in model.graph.all_nodes() if node.op_type in _QUANTISED]
    kept = {
        node.name
        for node in nodes
        if (node.name or "").startswith(tuple(exclude))
        or any(each is not None and each.meta.get(MADE) for each in node.inputs)
    }
    weighted = [node for node in nodes if node.graph is model.graph and constant_of(node.inputs[1]) is not None]
    static = [node.name for node in weighted if calls and node.op_type in _STATIC and node.name not in kept]
    if static and model.opset_imports[""] < _CHANNELS:
        raise InputError(f"`quantize='static'` needs opset {_CHANNELS}: give `opset={_CHANNELS}` or more")
    before = Counter(node.op_type for node in model.graph.all_nodes())
    # The quantizer rewrites products even if it is told to exclude them, so it does not see them.
    for node in nodes:
        if node.name in kept or (calls and node.op_type != "LSTM"):
            node.domain, node.op_type = OWN_DOMAIN, f"{node.domain}::{node.op_type}"
            model.opset_imports[OWN_DOMAIN] = 1
    with tempfile.TemporaryDirectory(prefix=".jaxrnn.") as folder:
        path = Path(folder, "quantized.onnx")
        quantization.quantize_dynamic(_prepared(model), path, sorted(_QUANTISED), per_channel=True)
        result = _shown(ir.load(path))
        if static:
            _apart(result, frozenset(static))
            reader: Any = _Reader(calls or ())
            quantization.quantize_static(
                _prepared(result),
                path,
                reader,
                op_types_to_quantize=sorted(_STATIC),
                nodes_to_quantize=static,
                per_channel=True,
                # x86 processors without VNNI saturate sums of two products of 8 bits: weights of 7 bits are exact.
                reduce_range=True,
            )
            result = ir.load(path)
            _unrounded(result, frozenset(static))
    _shown(model)
    after = Counter(node.op_type for node in result.graph.all_nodes())
    if not any("Quantize" in name for name in after - before):
        raise InputError(
            "there is nothing to quantise: the file has no MatMul, Gemm, Conv or LSTM with weights that are parameters "
            "and that `Quantization.exclude` leaves; leave out quantize"
        )
    result.metadata_props.clear()
    result.metadata_props.update(model.metadata_props)
    return result


def _apart(model: ir.Model, static: Collection[str | None]) -> None:
    """Write the sum of a quantised Gemm apart, unless the addend is a constant vector as the quantizer takes it."""
    for node in [each for each in model.graph if each.op_type == "Gemm" and each.name in static]:
        added, total = node.inputs[2] if len(node.inputs) > 2 else None, node.outputs[0]
        weight, vector = constant_of(node.inputs[1]), constant_of(added)
        if added is None or weight is None:
            continue
        columns = weight.shape[0 if "transB" in node.attributes and node.attributes["transB"].as_int() else 1]
        if vector is not None and vector.shape == (columns,):
            continue
        product = ir.node("Gemm", node.inputs[:2], node.attributes, name=node.name)
        sum_ = ir.node("Add", [product.outputs[0], added], name=f"{node.name}/Add")
        product.outputs[0].name = f"{total.name}_before"
        product.outputs[0].type, product.outputs[0].shape = total.type, total.shape
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], [product, sum_], [total], [sum_.outputs[0]])


def _unrounded(model: ir.Model, static: Collection[str | None]) -> None:
    """Let only quantised nodes read rounded inputs: other nodes, and outputs such as the state, are not rounded."""
    for node in [each for each in model.graph if each.op_type == "DequantizeLinear"]:
        rounded, after = node.inputs[0].producer() if node.inputs[0] is not None else None, node.outputs[0]
        before = None if rounded is None else rounded.inputs[0]
        maker = None if before is None else before.producer()
        if before is None or (maker is not None and maker.name in static):
            continue
        for user, index in tuple(after.uses()):
            if user.name not in static:
                user.replace_input_with(index, before)
        if after in model.graph.outputs:
            model.graph.outputs[model.graph.outputs.index(after)] = before
            before.name, after.name = after.name, f"{after.name}_rounded"
            before.type, before.shape = after.type, after.shape


def _prepared(model: ir.Model) -> onnx.ModelProto:
    """Return a model for ONNX Runtime's quantizer, with the entry without which it logs advice."""
    proto = ir.to_proto(model)
    if proto.ByteSize() > LARGEST:
        raise InputError("the file is larger than 2 GB: quantise parts of the model separately")
    proto.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    return proto


def _shown(model: ir.Model) -> ir.Model:
    """Give hidden nodes their operators again."""
    model.opset_imports.pop(OWN_DOMAIN, None)
    for node in model.graph.all_nodes():
        if node.domain == OWN_DOMAIN:
            node.domain, _, node.op_type = node.op_type.partition("::")
    return model


class _Reader:
    """The inputs of all calls, as ONNX Runtime's quantizer reads them."""

    def __init__(self, calls: Sequence[Any]):
        self._calls = iter(calls)

    def get_next(self) -> Any:
        return next(self._calls, None)


#: The opset of ONNX's operators in a model that only has operators of other domains.
_OPSET = 17
#: The opset whose convolutions and recurrent layers take bfloat16.
_BFLOAT16 = 22
#: Integers that may be positions in time.
_COUNTS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)
#: State entries that stay float32: float totals exceed the range or the digits of smaller types.
WIDE_KINDS = frozenset(("total", "remainder", "counter", "base"))


def _narrow(model: ir.Model, dtype: np.dtype, fixed: Collection[str], wide: Collection[str], *, is_step: bool) -> None:
    """Compute in a smaller float type: weights, state and arithmetic change in place.

    Positions in time, totals and loops stay float32, and so do operators that engines or ONNX lack in the type. Inputs
    and outputs in ``fixed`` stay float32. ``wide`` are inputs, such as totals over time, that stay float32 together
    with the updated values.
    """
    imports = model.opset_imports
    opset = imports.get("") or imports["ai.onnx"]
    if dtype.name == "bfloat16" and opset < _BFLOAT16:
        has = f"bfloat16 needs opset {_BFLOAT16}, and the"
        if is_step:
            raise UnsupportedError(f"{has} file gets opset {opset}: give `opset={_BFLOAT16}`")
        raise UnsupportedError(f"{has} model has opset {opset}: convert the file with onnx.version_converter")
    if any(node.op_type.startswith(("QLinear", "Quantize", "Dequantize")) for node in model.graph.all_nodes()):
        raise InputError("the model is quantised and computes in integers: leave out dtype")
    _Narrowing(model.graph, opset, dtype, fixed, wide).run()


class _Narrowing:
    """The conversion of the float32 values of a graph to a smaller type, apart from wide values."""

    def __init__(self, graph: ir.Graph, opset: int, dtype: np.dtype, fixed: Collection[str], wide: Collection[str]):
        self.graph, self.opset = graph, opset
        self.dtype, self.kind = dtype, ir.DataType.from_numpy(dtype)
        self.fixed = set(fixed)
        self.wide = self._wide_values(wide)
        self._casts: dict[tuple[ir.Value, np.dtype], ir.Value] = {}

    def _wide_values(self, names: Collection[str]) -> set[ir.Value]:
        """Return the values that stay float32: positions, totals, and values computed only from these."""
        wide = {value for value in self.graph.inputs if value.name in names}
        reached, ends = set(wide), {value for value in self.graph.outputs if value.name in self.fixed & set(names)}
        for node in self.graph:  # from totals
            if any(each in reached for each in node.inputs):
                reached.update(node.outputs)
        for node in reversed(list(self.graph)):  # to totals
            if any(each in ends for each in node.outputs):
                ends.update(each for each in node.inputs if each is not None)
        wide |= reached & ends
        for node in self.graph:
            moving = [each for each in node.inputs if each is not None and each.const_value is None]
            floats = [each for each in moving if self._is_float(each)]
            counted = node.op_type == "Cast" and moving and moving[0].dtype in _COUNTS
            if counted or (floats and all(each in wide for each in floats)):
                wide.update(filter(self._is_float, node.outputs))
        return wide

    def run(self) -> None:
        """Change the types of values, and cast where types meet."""
        for value in self.graph.inputs:
            if self._is_changed(value) and value.name not in self.fixed:
                value.dtype = self.kind
        for node in list(self.graph):
            self._convert(node)
        for value in list(self.graph.outputs):
            dtype = np.dtype(np.float32) if value.name in self.fixed else self.dtype
            if self._is_float(value) and value.dtype != _kind_of(dtype):
                self._give(value, self._cast(value, dtype, after=value.producer()))
        for (value, _), made in self._casts.items():
            if value.is_initializer() and not value.uses() and made.is_initializer():
                name = str(value.name)
                del self.graph.initializers[name], self.graph.initializers[str(made.name)]
                made.name = name
                self.graph.register_initializer(made)

    def _is_changed(self, value: ir.Value) -> bool:
        return value.dtype == ir.DataType.FLOAT and value not in self.wide

    def _convert(self, node: ir.Node) -> None:
        """Convert the operands and results of a node."""
        bodies = [body for _, body in subgraphs_of(node)]
        changed = [self._is_changed(value) for value in node.outputs]
        is_wide = bool(bodies) or any(value in self.wide for value in node.outputs)
        for body in bodies:
            for inner in body.all_nodes():
                self._with_types(inner, [np.dtype(np.float32)] * len(inner.inputs), node)
        target = np.dtype(np.float32) if is_wide else self.dtype
        types = [target if self._is_float(each) else _type_of(each) for each in node.inputs]
        results = [target if value.dtype == ir.DataType.FLOAT else _type_of(value) for value in node.outputs]
        if not is_wide and node.domain in ("", "ai.onnx"):
            types, results = self._with_kernels(node, types, results)
        if node.op_type != "Cast":  # which accepts all types
            self._with_types(node, types, node)
        if not is_wide:
            _retype(node, self.kind)
        for value, dtype, is_changed in zip(list(node.outputs), results, changed, strict=True):
            if not is_changed:
                continue
            if dtype == self.dtype or (node.op_type == "Cast" and not is_wide):
                value.dtype = self.kind
                continue
            narrow = self._cast(value, self.dtype, after=node)
            for use in list(value.uses()):
                if use.node is not narrow.producer():
                    use.node.replace_input_with(use.idx, narrow)
            if value.is_graph_output() and value.name not in self.fixed:
                self._give(value, narrow)

    def _with_types(self, node: ir.Node, types: Sequence[np.dtype | None], before: ir.Node) -> None:
        """Cast the float operands of a node to these types; new casts are inserted before ``before``."""
        for place, (value, dtype) in enumerate(zip(list(node.inputs), types, strict=True)):
            if value is None or dtype is None or not self._is_float(value) or value.dtype == _kind_of(dtype):
                continue
            if (value, dtype) not in self._casts:
                known = constant_of(value)
                cast = self._cast(value, dtype, before=before) if known is None else self._constant(value, known, dtype)
                self._casts[value, dtype] = cast
            node.replace_input_with(place, self._casts[value, dtype])

    def _is_float(self, value: ir.Value | None) -> bool:
        return value is not None and value.dtype in (ir.DataType.FLOAT, self.kind)

    def _constant(self, value: ir.Value, known: np.ndarray, dtype: np.dtype) -> ir.Value:
        """Add a copy of a constant in a different type to the graph."""
        made = ir.Value(name=f"{value.name}_{dtype.name}", shape=value.shape, type=ir.TensorType(_kind_of(dtype)))
        made.const_value = ir.tensor(_converted(known, dtype), name=made.name)
        self.graph.register_initializer(made)
        return made

    def _cast(
        self, value: ir.Value, dtype: np.dtype, *, before: ir.Node | None = None, after: ir.Node | None = None
    ) -> ir.Value:
        """Write a cast of a value before or after a node."""
        name = f"{value.name}_{dtype.name}"
        made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(_kind_of(dtype)))
        attributes = [ir.AttrInt64("to", int(_kind_of(dtype)))]
        node = ir.Node("", "Cast", [value], attributes, outputs=[made], name=f"{name}/Cast")
        if before is not None:
            self.graph.insert_before(before, node)
        elif after is not None:
            self.graph.insert_after(after, node)
        else:
            self.graph.insert_before(self.graph[0], node)
        return made

    def _give(self, value: ir.Value, other: ir.Value) -> None:
        """Replace an output of the graph by another value with the same name."""
        self.graph.outputs[list(self.graph.outputs).index(value)] = other
        other.name, value.name = value.name, f"{value.name}_inside"

    def _with_kernels(self, node: ir.Node, types: list[Any], results: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the types in which a node computes: float32 if ONNX or engines lack the type."""
        if self.dtype.name == "bfloat16":  # no engine on CPUs has kernels: keep to the specification
            if kernels.takes(node.op_type, self.opset, types):
                return types, results
            return [np.dtype(np.float32) if each == self.dtype else each for each in types], [np.float32] * len(results)
        known = [np.dtype(np.float32) if each is None else each for each in results]
        changed = kernels.substitutes(node.op_type, self.opset, types, known)
        if not changed:
            return types, results
        of_inputs, of_results = kernels.changed_types(node.op_type, self.opset, changed, len(types), len(results))
        return (
            [old if new is None else new for old, new in zip(types, of_inputs, strict=True)],
            [old if new is None else new for old, new in zip(results, of_results, strict=True)],
        )


def _type_of(value: ir.Value | None) -> np.dtype | None:
    return None if value is None or value.dtype is None else value.dtype.numpy()


def _kind_of(dtype: np.dtype) -> ir.DataType:
    return ir.DataType.from_numpy(dtype)


def _retype(node: ir.Node, kind: ir.DataType) -> None:
    """Change the attributes that state the type of the result."""
    for name, attribute in list(node.attributes.items()):
        if name in ("to", "dtype") and attribute.value == int(ir.DataType.FLOAT):
            node.attributes[name] = ir.AttrInt64(name, int(kind))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == ir.DataType.FLOAT:
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(_converted(attribute.value.numpy(), kind.numpy())))


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an array in a smaller type; finite numbers stay finite, and a single small number does not become 0."""
    info = jnp.finfo(dtype)
    finite = np.isfinite(array)
    result = np.where(finite, np.clip(array, float(info.min), float(info.max)), array)
    if array.size == 1:
        small = (result != 0) & (np.abs(result) < float(info.smallest_subnormal))
        result = np.where(small, np.copysign(float(info.smallest_subnormal), result), result)
    return result.astype(dtype).reshape(array.shape)
