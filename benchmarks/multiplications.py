"""Multiplications of exported files beside those of their equations, for the table of engines and its test.

A product of matrices or a convolution that a file computes in a wasteful form, such as a convolution over rows of
zeros, takes more multiplications than its equation. The numbers need no clock. Counted are products that sum: of
matrices, convolutions, recurrent layers and Fourier transforms, the last as products with the Fourier matrix.
Products of single elements are not counted.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax.extend.core import JaxprEqn

import jaxrnn
from benchmarks.report import markdown
from jaxrnn._jax.context import exact_types
from jaxrnn.cells.convolution import Windows, windows_of
from jaxrnn.cells.forms import plain_forms
from jaxrnn.errors import JaxrnnError
from jaxrnn.export import export_litert, verify_export
from jaxrnn.jaxprs.equations import free_axes, inner_jaxprs, needed, shape_of, trace, type_of
from jaxrnn.jaxprs.own import computed
from jaxrnn.verification.litert import Signature, package

# -- of a program


def of_program(jaxpr: Any, *, zeros: bool = False) -> int:
    """Return the multiplications of a program, by default without those by zeros of padding and dilated operands."""
    return sum(_of_equation(each, zeros) for each in needed(jaxpr.eqns, jaxpr.outvars, effects=True))


def _of_equation(equation: JaxprEqn, zeros: bool) -> int:
    name, params = equation.primitive.name, equation.params
    shapes = [shape_of(each) for each in equation.invars]
    if name == "dot_general":
        ((contracted, _), (batch, _)), (rows, columns) = params["dimension_numbers"], free_axes(equation)
        parts = math.prod(2 if np.dtype(type_of(each)).kind == "c" else 1 for each in equation.invars)
        return parts * math.prod(
            [*(shapes[0][axis] for axis in (*contracted, *batch, *rows)), *(shapes[1][axis] for axis in columns)]
        )
    if name == "conv_general_dilated":
        numbers = params["dimension_numbers"]
        batch, _, *sizes = (shapes[0][axis] for axis in numbers.lhs_spec)
        out, channels, *taps = (shapes[1][axis] for axis in numbers.rhs_spec)
        distances = (params[each] for each in ("window_strides", "padding", "lhs_dilation", "rhs_dilation"))
        windows = windows_of(sizes, taps, *distances)
        met = math.prod(each.count * each.taps if zeros else _met(each) for each in windows)
        return batch // params["batch_group_count"] * out * channels * met
    if name == "recurrent_layer":
        x, _, weights, _ = jax.tree.unflatten(params["structure"], shapes)
        return math.prod(x[:2]) * sum(map(math.prod, (weights.input, weights.recurrent)))
    if name == "fft":
        return _of_transform(params["fft_type"].name, params["fft_lengths"], shape_of(equation.outvars[0]))
    if name == "onnx_operator":
        structs = [jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in equation.invars]
        return of_program(trace(lambda *arrays: computed(*arrays, **params), *structs)[0].jaxpr, zeros=zeros)
    inner = [of_program(getattr(each, "jaxpr", each), zeros=zeros) for each in inner_jaxprs(equation)]
    if name == "cond":
        return max(inner)
    if name == "while" and any(inner):
        raise ValueError("the number of trips of a loop depends on data")
    return sum(inner) * (params["length"] if name == "scan" else 1)


def _met(windows: Windows) -> int:
    """Return how often a tap of a window meets an element."""
    at = np.arange(windows.count)[:, None] * windows.stride + np.arange(windows.taps) * windows.dilation - windows.low
    return int(np.sum((at % windows.spacing == 0) & (at >= 0) & (at // windows.spacing < windows.size)))


def _of_transform(kind: str, lengths: Sequence[int], shape: Sequence[int]) -> int:
    """Return the multiplications of products with Fourier matrices, for the shape of the result."""
    each = 4 if kind in ("FFT", "IFFT") else 2
    return each * math.prod(shape[: -len(lengths)]) * math.prod(lengths) * sum(lengths)


# -- of files


def of_onnx(model: ir.Model) -> int:
    """Return the multiplications of a call of an ONNX model whose sizes are known."""
    return _of_graph(model.graph)


def _of_graph(graph: Any) -> int:
    return sum(map(_of_node, graph))


def _of_node(node: ir.Node) -> int:
    def shape(value: ir.Value | None) -> list[int]:
        if value is None or value.shape is None:
            raise ValueError(f"{node.name} has an operand of unknown shape")
        return [int(size) for size in value.shape]  # type: ignore[arg-type]

    kind, inputs = node.op_type, node.inputs
    bodies = [each.as_graph() for each in node.attributes.values() if each.type == ir.AttributeType.GRAPH]
    if kind in ("Conv", "ConvInteger", "QLinearConv"):
        weight = inputs[3 if kind == "QLinearConv" else 1]
        return math.prod(shape(node.outputs[0])) * math.prod(shape(weight)[1:])
    if kind == "ConvTranspose":
        return math.prod(shape(inputs[0])) * math.prod(shape(inputs[1])[1:])
    if kind in ("MatMul", "MatMulInteger", "QLinearMatMul"):
        return math.prod(shape(node.outputs[0])) * shape(inputs[0])[-1]
    if kind == "Gemm":
        return math.prod(shape(node.outputs[0])) * shape(inputs[0])[0 if node.attributes.get_int("transA", 0) else 1]
    if kind in ("LSTM", "GRU", "RNN"):
        return math.prod(shape(inputs[0])[:2]) * sum(math.prod(shape(each)) for each in inputs[1:3])
    if kind in ("Einsum", "DFT", "STFT", "Attention"):
        raise ValueError(f"the multiplications of {kind} are not known")
    if kind == "Scan":
        scanned = inputs[len(inputs) - node.attributes["num_scan_inputs"].as_int()]
        return shape(scanned)[0] * _of_graph(bodies[0])
    if kind == "Loop":
        if _of_graph(bodies[0]) == 0:
            return 0
        trips = inputs[0] and ir.convenience.get_const_tensor(inputs[0])
        if not trips:
            raise ValueError("the number of trips of a loop depends on data")
        return int(trips.numpy().item()) * _of_graph(bodies[0])
    return max(map(_of_graph, bodies), default=0)


def of_litert(signature: Signature) -> int:
    """Return the multiplications of a signature of a LiteRT file."""
    schema = package("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(signature.path.read_bytes())
    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}

    def of_graph(index: int) -> int:
        graph = model.subgraphs[index]
        return sum(
            of_operator(graph, each, names[model.operatorCodes[each.opcodeIndex].builtinCode])
            for each in graph.operators
        )

    def trips(index: int) -> int:
        """Return the number with which the condition of a loop compares."""
        graph = model.subgraphs[index]
        known = [model.buffers[each.buffer].data for each in graph.tensors]
        numbers = [np.frombuffer(bytes(each), np.int32) for each in known if each is not None and len(each)]
        if len(numbers) != 1 or numbers[0].size != 1:
            raise ValueError("the number of trips of a loop depends on data")
        return int(numbers[0][0])

    def of_operator(graph: Any, operator: Any, kind: str) -> int:
        shapes = [[] if each < 0 else [*map(int, graph.tensors[each].shape)] for each in operator.inputs]
        result = math.prod(map(int, graph.tensors[operator.outputs[0]].shape)) if len(operator.outputs) else 0
        if kind == "FULLY_CONNECTED":
            return result * shapes[1][-1]
        if kind == "CONV_2D":
            return result * math.prod(shapes[1][1:])
        if kind == "DEPTHWISE_CONV_2D":
            return result * math.prod(shapes[1][1:3])
        if kind == "CONV_3D":
            return result * math.prod(shapes[1][:4])
        if kind == "TRANSPOSE_CONV":
            return math.prod(shapes[2]) * math.prod(shapes[1][:3])
        if kind == "BATCH_MATMUL":
            return result * shapes[0][-2 if operator.builtinOptions.adjX else -1]
        if kind == "RFFT2D":
            return _of_transform("RFFT", shapes[0][-1:], [*shapes[0][:-1], shapes[0][-1] // 2 + 1])
        if kind == "WHILE":
            options = operator.builtinOptions
            return trips(options.condSubgraphIndex) * of_graph(options.bodySubgraphIndex)
        if "LSTM" in kind or "RNN" in kind or kind == "IF":
            raise ValueError(f"the multiplications of {kind} are not known")
        return 0

    found = {each.signatureKey.decode(): each.subgraphIndex for each in model.signatureDefs}
    return of_graph(found[signature.name])


# -- of networks

#: Options of `Model.stream` for files that do not stream without, and the time of files with several open dimensions.
OPTIONS: dict[str, dict[str, Any]] = {
    "speech/convstft_center_script": {"constraints": ["S >= 161"]},
    "speech/edge_causal_reflect_script": {"constraints": ["S >= 5"]},
    "speech/position_table_script": {"constraints": ["S <= 512"]},
    "speech/tworates_dynamo": {"symbol": "U"},
    "speech/tworates_script": {"symbol": "U", "dims": {"T": "4*U"}},
}
#: Files that neither stream without a change of the model nor are a step.
UNSTREAMED = re.compile(r"ocr|bidir|bilstm|backwards|causal_(dynamo|script)$|attention|one_frame")
#: Fixed inputs, and the sizes of open dimensions of steps; all other open dimensions have the size 1.
STATIC = {"silero_vad": {"sr": 16000}}
SIZES = {
    "silero_vad": {"input_dim_1": 576},
    "silero_vad_16k_op15": {"sequence": 576},
    "step_attend_dynamo": {"S": 20},
    "step_attend_script": {"S": 20},
}


@dataclass
class File:
    """A step in the file of an engine: multiplications, size, and if verified the time of a step and the error."""

    multiplications: int
    bytes: int
    microseconds: float | None = None
    error: float | None = None


@dataclass
class Counts:
    """The multiplications of a step of a network, and the file of each engine, or the reason of its refusal."""

    equation: int
    files: dict[str, File | str] = field(default_factory=dict)


def opened(folder: Path, name: str) -> tuple[Any, Any, jaxrnn.Model, dict[str, int]]:
    """Return a network as a stepper for export, with the parameters, the model, and the sizes of a step.

    The stepper is the model if its state is external, and else its stream over time.
    """
    short = name.rpartition("/")[2]
    model = jaxrnn.load(folder / f"{name}.onnx", static=STATIC.get(short))
    symbols = [size for info in model.inputs for size in info.shape or () if isinstance(size, str)]
    if name not in OPTIONS and model.state and {each.kind for each in model.state} == {"external"}:
        return model, model.params, model, {**dict.fromkeys(symbols, 1), **SIZES.get(short, {})}
    options = dict(OPTIONS.get(name, {}))
    opens = [size for size in model.inputs[0].shape or () if isinstance(size, str)]
    if not opens:
        raise jaxrnn.InputError(f"{name} has no open axis, and forgets its state")
    symbol = options.pop("symbol", opens[-1])
    return model.stream(symbol, **options), model.params, model, {}


def of_equation(stepper: Any, params: Any, model: jaxrnn.Model, sizes: Mapping[str, int]) -> int:
    """Return the multiplications of a step by the graph of the model's own file.

    For a stream, a recording of many pulses is compared with a recording of twice as many.
    """

    def of_whole(function: Any, inputs: Mapping[str, Any]) -> int:
        with plain_forms(), exact_types():
            return of_program(trace(function, params, inputs)[0].jaxpr)

    if stepper is model:
        shapes = {
            each.name: [size if isinstance(size, int) else sizes[size] for size in each.shape or ()]
            for each in model.inputs
        }
        kinds = {each.name: np.dtype(each.dtype) for each in model.inputs}
        structs = {key: jax.ShapeDtypeStruct(tuple(shape), kinds[key]) for key, shape in shapes.items()}
        return of_whole(model.apply, structs)
    counts = [of_whole(stepper.offline, _recordings(stepper, number)) for number in (PULSES, 2 * PULSES)]
    return round((counts[1] - counts[0]) / PULSES)


def _recordings(stepper: Any, pulses: int) -> dict[str, Any]:
    """Return the inputs of a recording of a number of pulses."""
    found = {}
    for each in stepper.spec.inputs:
        axis, shape = each.time_axis, list(each.sizes)
        if axis is not None:
            shape[axis] *= pulses
        found[each.name] = jax.ShapeDtypeStruct(tuple(shape), np.dtype(each.dtype))
    return found


#: The length of a recording in pulses.
PULSES = 64
#: The engine whose files are LiteRT's.
LITE = "LiteRT"


def counted(folder: Path, name: str, to: Path, engines: Sequence[str], *, verified: bool = False) -> Counts:
    """Export a network for engines, and count the multiplications of a step; if ``verified``, also run the files.

    The error is relative to the largest number of an output, or to 1.
    """
    stepper, params, model, sizes = opened(folder, name)
    found = Counts(of_equation(stepper, params, model, sizes))
    options: dict[str, Any] = {"dims": sizes} if sizes else {}
    for engine in engines:
        try:
            if engine == LITE:
                export_litert(stepper, params, path := to / "step.tflite", flush=False, **options)
                count = of_litert(Signature(path, "step"))
            else:
                step = {"step": True} if stepper is model else {}
                jaxrnn.export_onnx(stepper, params, path := to / "step.onnx", **step, **options)
                count = of_onnx(ir.load(path))
            file = found.files[engine] = File(count, path.stat().st_size)
            if verified:
                report = verify_export(stepper, params, path)
                outputs = [each for case in report.cases for each in case.outputs]
                file.microseconds = None if report.seconds is None else 1e6 * report.seconds
                file.error = max((each.max_abs or 0.0) / max(1.0, each.scale or 0.0) for each in outputs)
        except JaxrnnError as error:
            found.files[engine] = str(error)
    return found


def names_in(folder: Path) -> list[str]:
    """Return the networks in a folder of models that are steps or stream."""
    folders = (folder, folder / "exports", folder / "speech")
    paths = [path for each in folders for path in sorted(each.glob("*.onnx"))]
    return [str(path.relative_to(folder).with_suffix("")) for path in paths if not UNSTREAMED.search(path.stem)]


def table(folder: Path, only: Sequence[str], engines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the counts of all networks whose names have one of these texts, as JSON values."""
    found: dict[str, dict[str, Any]] = {}
    for name in names_in(folder):
        if not only or any(each in name for each in only):
            with tempfile.TemporaryDirectory() as to:
                found[name] = dataclasses.asdict(counted(folder, name, Path(to), engines, verified=True))
    return found


#: The columns of a file.
COLUMNS = ("multiplications", "KB", "us", "error")


def written(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table in Markdown. The multiplications of a file are relative to those of the equation."""
    engines = list(dict.fromkeys(engine for row in rows.values() for engine in row["files"]))
    head = ["network", "multiplications", *(f"{engine}: {each}" for engine in engines for each in COLUMNS)]
    return markdown(head, [_cells(name, row, engines) for name, row in rows.items()])


def _cells(name: str, row: Mapping[str, Any], engines: Sequence[str]) -> list[str]:
    cells = [name.rpartition("/")[2], f"{row['equation']:,}"]
    for engine in engines:
        file = row["files"].get(engine, "")
        if isinstance(file, str):
            cells += ["refused", *[""] * (len(COLUMNS) - 1)]
            continue
        ratio = file["multiplications"] / row["equation"] if row["equation"] else 1.0
        time, error = file["microseconds"], file["error"]
        cells += [f"{ratio:.2f}", f"{file['bytes'] / 1000:,.0f}"]
        cells += ["" if time is None else f"{time:,.0f}", "" if error is None else f"{error:.0e}"]
    return cells
