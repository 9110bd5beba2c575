"""`lower`: a jaxpr as an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from jax.extend.core import ClosedJaxpr

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import UnsupportedError
from jaxrnn.export.lowering import Lowering
from jaxrnn.export.movement import source_of
from jaxrnn.export.patterns import rewrite
from jaxrnn.export.quantized import Quantized
from jaxrnn.export.rewrites import REWRITES, WRITTEN_OUT, split_slices
from jaxrnn.export.rules import RULES
from jaxrnn.export.writer import Operand, Writer, constant_of, dtype_of, make_value, maker_of
from jaxrnn.export.writer import shape_of as size_of
from jaxrnn.jaxprs.equations import shape_of, type_of
from jaxrnn.streaming.interpreter import EXPORTS

#: The newest file format that engines of the default opset read.
_IR_VERSION = 8


@dataclass(frozen=True)
class Argument:
    """The name of an input; or the name and value of a parameter, which becomes an initializer."""

    name: str
    value: np.ndarray | None = None


def lower(
    closed: ClosedJaxpr,
    arguments: Sequence[Argument],
    results: Sequence[str],
    *,
    opset: int = 17,
    label: str = "",
    target: str | None = None,
) -> ir.Model:
    """Write a jaxpr with fixed sizes as an ONNX model, for all engines or in the form for a target engine.

    Arguments are in the order of the jaxpr's inputs. Results that depend only on arguments with a value are computed
    now. The returned model is not yet checked by ONNX. An `UnsupportedError` lists all nodes or lines without a
    counterpart in ONNX.
    """
    _refuse_complex(closed, arguments, results)
    writer = Writer(opset, target)
    for name in (*(argument.name for argument in arguments if argument.value is None), *results):
        writer.unused(name)
    values: list[Operand] = []
    for argument, variable in zip(arguments, closed.jaxpr.invars, strict=True):
        if argument.value is None:
            values.append(make_value(argument.name, shape_of(variable), type_of(variable)))
        else:
            array = np.asarray(argument.value)
            writer.parameter(argument.name, array)
            values.append(array)
    inputs = [value for value in values if isinstance(value, ir.Value)]
    with exact_types():
        lowering = Lowering(writer, {**RULES, **EXPORTS})
        found = lowering.evaluate(closed, values)
        lowering.check()
    # The attribute prevents a merge of equal results.
    ends = [writer.node("Result", result, place=place) for place, result in enumerate(found)]
    graph = ir.Graph(inputs, ends, nodes=writer.nodes, opset_imports={"": opset}, name=label)
    model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="jaxrnn")
    # Patterns compare values by identity, so equal values are merged before and after.
    for rewrites in (REWRITES, WRITTEN_OUT):
        passes.CommonSubexpressionEliminationPass()(model)
        rewrite(graph, writer, rewrites)
    passes.CommonSubexpressionEliminationPass()(model)
    for node in graph.all_nodes():
        if node.op_type == "Erfc":
            place = node.meta["place"]
            raise UnsupportedError(f"{place}: ONNX has no erfc with the digits of float64; compute it in float32")
    split_slices(graph, writer)
    _write_quantized(graph, writer)
    for value in writer.initializers:
        graph.register_initializer(value)
    for subgraph in graph.subgraphs():
        _trim_results(subgraph)
    _name_outputs(graph, results)
    passes.RemoveUnusedNodesPass()(model)
    name_nodes(graph)
    return model


def _refuse_complex(closed: ClosedJaxpr, arguments: Sequence[Argument], results: Sequence[str]) -> None:
    names = [argument.name if argument.value is None else "" for argument in arguments]
    for name, variable in zip([*names, *results], [*closed.jaxpr.invars, *closed.jaxpr.outvars], strict=True):
        if name and type_of(variable).kind == "c":
            raise UnsupportedError(f"{name!r} is complex, and ONNX engines have no complex type: use two real arrays")


def _write_quantized(graph: ir.Graph, writer: Writer) -> None:
    """Dequantise constants, such as an int32 bias, that are read between DequantizeLinear and QuantizeLinear."""
    for value in writer.initializers:
        array = constant_of(value)
        if not isinstance(array, Quantized):
            continue
        for node, place in list(value.uses()):
            here = writer.inside()
            here.scope = node.meta.get("scope", "")
            if _is_between(node, value) and (quantized := here.quantized(array)) is not None:
                assert node.graph is not None
                node.graph.insert_before(node, here.nodes)
                node.replace_input_with(place, quantized)
        value.const_value = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=value.name)


def _is_between(node: ir.Node, constant: ir.Value) -> bool:
    """Return True if a node's result is quantised, and all operands except a constant are dequantised."""
    uses = [use.node.op_type for result in node.outputs for use in result.uses()]
    others = [each for each in node.inputs if each is not None and each is not constant]
    return uses == ["QuantizeLinear"] and bool(others) and all(maker_of(each, "DequantizeLinear") for each in others)


def _trim_results(graph: ir.Graph) -> None:
    """Remove the `Identity` before a body's result if the body computes the value."""
    for index, end in enumerate(graph.outputs):
        node = maker_of(end, "Identity")
        value = end if node is None else source_of(node)
        maker = value.producer()
        if node is None or maker is None or maker.graph is not graph or value.is_graph_output() or end.uses():
            continue
        graph.outputs[index] = value
        graph.remove(node, safe=True)


def _name_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Name the results. An `Identity` separates a result from an input or a second result."""
    for index, name in enumerate(names):
        end = graph.outputs[index].producer()
        assert end is not None
        value = source_of(end)
        maker = value.producer()
        if maker is None or maker.graph is not graph or value.is_graph_output():
            identity = ir.node("Identity", [value], outputs=[make_value(name, size_of(value), dtype_of(value))])
            graph.insert_before(end, identity)
            value = identity.outputs[0]
        graph.outputs[index] = value
        graph.remove(end, safe=True)
        value.name = name


def name_nodes(graph: ir.Graph) -> None:
    """Name nodes by scope, in order, and values by their nodes. Inputs and outputs keep their names."""
    taken: set[str] = set()

    def unused(name: str) -> str:
        candidate, count = name, 0
        while candidate in taken:
            count += 1
            candidate = f"{name}_{count}"
        taken.add(candidate)
        return candidate

    nodes = list(graph.all_nodes())
    kept = {id(value): value for each in (graph, *graph.subgraphs()) for value in (*each.inputs, *each.outputs)}
    kept |= {id(value): value for each in (graph, *graph.subgraphs()) for value in each.initializers.values()}
    taken.update(str(value.name) for value in kept.values())
    for node in nodes:
        scope = node.meta.get("scope", "")
        node.name = unused(scope if scope.endswith(node.op_type) else f"{scope}/{node.op_type}")
        for index, value in enumerate(node.outputs):
            if id(value) not in kept:
                value.name = unused(f"{node.name}_output{f'_{index}' if len(node.outputs) > 1 else ''}")
