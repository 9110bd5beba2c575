"""The state of a file that says itself what it is: one that jaxrnn wrote."""

from __future__ import annotations

import json
from collections.abc import Collection

import onnx
import onnx_ir as ir

from jaxrnn.errors import ModelError
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.state.find import EXTERNAL, Findings, StateVar
from jaxrnn.onnx.stepfile import FUNCTION, METADATA, STEP, StepFile
from jaxrnn.steps.specs import ArraySpec


def read_facts(proto: onnx.ModelProto, graph: ir.Graph) -> StepFile | None:
    """What the metadata of a file say of it; None where jaxrnn has written none.

    Raises:
        ModelError: they are damaged, or do not fit the graph.
    """
    texts = [entry.value for entry in proto.metadata_props if entry.key == METADATA]
    if not texts:
        return None
    try:
        facts = StepFile.from_json(json.loads(texts[-1]))
        _check_fits(facts, graph)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ModelError(
            f"the metadata {METADATA!r}, which say what is state, are damaged or of another graph: {error}; export the "
            "file again, or delete that key from its metadata_props, and what is state is found without them"
        ) from error
    return facts


def stated_state(facts: StepFile, proto: onnx.ModelProto, static: Collection[str]) -> Findings | None:
    """The state that a file says it has: all of it, whatever recurrences there are inside of a step.

    Args:
        facts: what the file says.
        proto: the file.
        static: inputs that are bound.

    Returns:
        None for a function, which says nothing of what its recurrences forget.
    """
    if facts.kind == FUNCTION:
        return None
    makers = {output: node.name for node in proto.graph.node for output in node.output}
    variables = [
        StateVar(
            names.input,
            EXTERNAL,
            names.input,
            names.output,
            makers.get(names.output, ""),
            each.sizes,
            each.dtype,
            f"the file says so: {each.name!r} of the step that was exported, {each.kind}",
        )
        for each in facts.spec.state
        if (names := facts.state[each.name]).output is not None and names.input not in static and each.dtype is not None
    ]
    return Findings(tuple(variables), {}, frozenset())


def _check_fits(facts: StepFile, graph: ir.Graph) -> None:
    inputs, outputs = ({str(v.name): spec_of(v) for v in values} for values in (graph.inputs, graph.outputs))
    spec = facts.spec
    expected: list[tuple[ArraySpec, str, dict[str, ArraySpec]]] = [
        *((each, facts.inputs[each.name], inputs) for each in spec.inputs),
        *((each, facts.outputs[each.name], outputs) for each in spec.outputs if each.name in facts.outputs),
        *((each, facts.state[each.name].input, inputs) for each in spec.state),
        *((each, str(facts.state[each.name].output), outputs) for each in spec.state if facts.kind == STEP),
    ]
    for each, name, there in expected:
        seen = there.get(name)
        if seen is None:
            raise ValueError(f"the graph has no {'input' if there is inputs else 'output'} {name!r}")
        if (seen.dtype, seen.shape) != (each.dtype, each.shape):
            raise ValueError(f"the graph has {seen}, which the metadata call {each}")
    for there in (inputs, outputs):
        names = [name for _, name, own in expected if own is there]
        if len({*names}) < len(names):
            raise ValueError("two arrays have one name")
