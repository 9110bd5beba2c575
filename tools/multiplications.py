"""Multiplications of exported files beside those of their equations: ``python -m tools.multiplications``.

A product of matrices or a convolution that a file computes in a wasteful form, such as a convolution over rows of
zeros, takes more multiplications than its equation. The numbers need no clock. Counted are products that sum: of
matrices, convolutions, recurrent layers and Fourier transforms, the last as products with the Fourier matrix.
Products of single elements are not counted.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np
import onnx_ir as ir
from jax.extend.core import JaxprEqn

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.cells.convolution import Windows, windows_of
from jaxrnn.cells.forms import plain_forms
from jaxrnn.errors import JaxrnnError
from jaxrnn.export import export_litert
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
class Counts:
    """The multiplications of a step of a network: of the equation, and of the file of each engine, or its refusal."""

    equation: int
    files: dict[str, int | str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


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
        shapes = {each.name: [sizes.get(size, size) for size in each.shape or ()] for each in model.inputs}
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


def counted(folder: Path, name: str, to: Path, engines: Sequence[str]) -> Counts:
    """Export a network for engines, and count the multiplications of a step."""
    stepper, params, model, sizes = opened(folder, name)
    found = Counts(of_equation(stepper, params, model, sizes))
    dims = {"dims": sizes} if sizes else {}
    for engine in engines:
        try:
            if engine == "ONNX":
                step = {"step": True} if stepper is model else {}
                path = jaxrnn.export_onnx(stepper, params, to / "step.onnx", **step, **dims).step.path
                found.files[engine] = of_onnx(ir.load(path))
            else:
                path = export_litert(stepper, params, to / "step.tflite", flush=False, **dims).step.path
                found.files[engine] = of_litert(Signature(path, "step"))
            found.sizes[engine] = path.stat().st_size
        except JaxrnnError as error:
            found.files[engine] = str(error)
    return found


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--only", multiple=True)
def main(folder: Path, only: tuple[str, ...]) -> None:
    """Print the multiplications and sizes of the networks in a folder."""
    for path in sorted(folder.rglob("*.onnx")):
        name = str(path.relative_to(folder).with_suffix(""))
        if (only and not any(each in name for each in only)) or "damaged" in name:
            continue
        try:
            with tempfile.TemporaryDirectory() as to:
                found = counted(folder, name, Path(to), ("ONNX", "LiteRT"))
        except JaxrnnError as error:
            click.echo(f"{name}: {str(error).splitlines()[0][:100]}")
            continue
        row = [f"{found.equation:>10,}"]
        for engine, number in found.files.items():
            ratio = f"{number / max(found.equation, 1):7.2f}" if isinstance(number, int) else str(number)[:90]
            row.append(f"{engine} {ratio} {found.sizes.get(engine, 0):>9,}")
        click.echo(f"{name:40}" + " ".join(row))


if __name__ == "__main__":
    main()
