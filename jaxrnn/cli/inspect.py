"""``jaxrnn inspect``: what is in an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.cli.options import json_option, model_argument
from jaxrnn.cli.output import busy, console, plain, print_json, print_table, print_title, shape_text
from jaxrnn.messages import bytes_of

if TYPE_CHECKING:
    from rich.console import Console

    from jaxrnn.model.inspection import Inspection, ParameterInfo, RecurrentInfo, StreamInfo

_LARGEST = 5
_LONGEST = 300


@click.command()
@model_argument
@click.option("--params", "all_params", is_flag=True, help=f"List every parameter, not only the {_LARGEST} largest.")
@json_option
def inspect(file: Path, all_params: bool, as_json: bool) -> None:
    """Show what is in an ONNX file, also in one that cannot be run.

    Inputs and outputs with their open dimensions, opsets and producer, parameters, how often each operator is used
    (inside subgraphs too), the nodes that carry a state over time with their sizes, the model's state and why it was
    found to be that, and every node that jaxrnn cannot run, with the nearest operator that it can.

    For each open dimension that could be time, it says whether the model can be streamed over it, as 'jaxrnn stream
    --symbol' does: the smallest pulse, the delay of each output, the look-ahead and the size of the state; or which
    node stands in the way, and what to do (in full with --json). A model that is a step already, its whole state among
    its inputs and outputs, needs no such thing.

    \b
    Examples:
      jaxrnn inspect model.onnx
      jaxrnn inspect model.onnx --json | jq '.streams'
      jaxrnn inspect model.onnx --json | jq '.unsupported'
    """  # noqa: D301
    from jaxrnn.model.inspection import inspect_model

    with busy(f"inspecting {file.name}"):
        inspection = inspect_model(file, streams=True)
    if as_json:
        print_json(_as_json(inspection))
    else:
        _print(inspection, all_params)


def _as_json(inspection: Inspection) -> dict[str, Any]:
    # A file does not say which of its axes is time: that is the `symbol` of a stream.
    arrays = {
        key: [{name: value for name, value in array.items() if name != "time_axis"} for array in plain(group)]
        for key, group in (("inputs", inspection.inputs), ("outputs", inspection.outputs))
    }
    return {
        **plain(inspection),
        **arrays,
        "dimensions": _dimensions(inspection),
        "parameter_count": inspection.parameter_count,
        "parameter_bytes": inspection.parameter_bytes,
    }


def _dimensions(inspection: Inspection) -> list[str]:
    from jaxrnn.verification.sampling import symbols_of

    return list(symbols_of(inspection.inputs))


def _print(inspection: Inspection, all_params: bool) -> None:
    out = console()
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items())
    out.print(inspection.label, style="bold")
    out.print(f"producer {inspection.producer or 'unknown'}; IR version {inspection.ir_version}; opset {opsets}")
    dimensions = _dimensions(inspection)
    if dimensions:
        out.print(f"open dimensions of the inputs: {', '.join(dimensions)}")
    ends = [("input", info) for info in inspection.inputs] + [("output", info) for info in inspection.outputs]
    print_table(
        out,
        "Inputs and outputs",
        ("", "name", "dtype", "shape"),
        [(kind, info.name, info.dtype or "sequence or optional", shape_text(info.shape)) for kind, info in ends],
    )
    _print_parameters(out, inspection, all_params)
    print_table(
        out,
        f"Operators: {sum(operator.count for operator in inspection.operators):,} nodes",
        ("operator", "version", "nodes"),
        [
            (
                f"{operator.domain}::{operator.name}" if operator.domain else operator.name,
                operator.version or "-",
                operator.count,
            )
            for operator in inspection.operators
        ],
        right=("version", "nodes"),
    )
    if inspection.recurrent:
        _print_recurrent(out, inspection.recurrent)
    else:
        print_title(out, "Recurrent nodes: none")
    _print_state(out, inspection)
    if inspection.streams:
        _print_streams(out, inspection.streams)
    _print_problems(out, inspection)


def _print_parameters(out: Console, inspection: Inspection, all_params: bool) -> None:
    count, size = inspection.parameter_count, bytes_of(inspection.parameter_bytes)
    title = f"Parameters: {count:,} in {len(inspection.parameters)} arrays, {size}"
    shown: list[ParameterInfo] = list(inspection.parameters)
    if not all_params and len(shown) > _LARGEST:
        shown = sorted(shown, key=lambda parameter: -parameter.size)[:_LARGEST]
        title += f"; the {_LARGEST} largest (--params lists all)"
    if not shown:
        print_title(out, title)
        return
    print_table(
        out,
        title,
        ("name", "dtype", "shape", "elements"),
        [(item.name, item.dtype, shape_text(item.shape), f"{item.size:,}") for item in shown],
        right=("elements",),
    )


def _print_recurrent(out: Console, nodes: Sequence[RecurrentInfo]) -> None:
    columns = ("node", "operator", "direction", "input", "hidden", "weights", "carries", "inside")
    rows = [
        (
            node.name,
            node.operator,
            node.direction,
            node.input_size,
            node.hidden_size,
            None if node.weights is None else f"{node.weights:,}",
            ", ".join(node.carries),
            node.where,
        )
        for node in nodes
    ]
    filled = [index for index in range(len(columns)) if any(row[index] not in (None, "") for row in rows)]
    print_table(
        out,
        "Recurrent nodes",
        [columns[index] for index in filled],
        [[row[index] for index in filled] for row in rows],
        right=("input", "hidden", "weights"),
    )


def _print_state(out: Console, inspection: Inspection) -> None:
    if inspection.state_problem is not None:
        print_title(out, "State: ambiguous")
        out.print(inspection.state_problem, style="red")
    elif inspection.state:
        print_table(
            out,
            "State",
            ("name", "kind", "input", "output", "node", "shape", "dtype", "reason"),
            [
                (
                    item.name,
                    item.kind,
                    item.input,
                    item.output,
                    item.node,
                    shape_text(item.shape),
                    item.dtype,
                    item.reason,
                )
                for item in inspection.state
            ],
        )
        out.print(_about_steps(inspection))
    elif inspection.problem is None:
        print_title(out, "State: none")


def _about_steps(inspection: Inspection) -> str:
    """Whether the model runs in steps, and what a batch of streams looks like."""
    if any(item.kind == "internal" for item in inspection.state):
        return "Every call forgets the internal state, so this model has no steps."
    from jaxrnn.onnx.state import open_sizes

    batch, others = open_sizes(inspection.state)
    if others:
        return f"Runs in steps; init(dims=...) takes the size of {', '.join(others)}."
    if batch is not None:
        return f"Runs in steps; {batch} is the batch."
    return "Runs in steps; the batch is fixed, so init(batch=n) adds a leading axis and steps are mapped over it."


def _print_streams(out: Console, streams: Sequence[StreamInfo]) -> None:
    able = [item for item in streams if item.problem is None]
    if able:
        print_table(
            out,
            "Streams in pulses ('jaxrnn stream FILE --symbol NAME --pulse FRAMES')",
            ("over", "smallest pulse", "delay", "look-ahead", "receptive field", "state"),
            [
                (
                    item.symbol,
                    item.smallest_pulse,
                    ", ".join(
                        f"{name} {'at the end' if delay is None else delay}"
                        for name, delay in (item.delay or {}).items()
                    ),
                    item.look_ahead,
                    "all of the past" if item.receptive_field is None else item.receptive_field,
                    bytes_of(item.state_bytes or 0),
                )
                for item in able
            ],
            right=("smallest pulse", "look-ahead", "state"),
        )
        out.print("Pulse, look-ahead and receptive field are in input frames; delays in frames of the output.")
    for item in streams:
        if item.problem is not None:
            print_title(out, f"Cannot be streamed over {item.symbol}")
            out.print(_shortened(item.problem))


def _shortened(text: str) -> str:
    """The first line of a message, and no more of it than people read."""
    line = text.partition("\n")[0]
    return line if len(line) <= _LONGEST else line[:_LONGEST].rstrip() + " ... (in full with --json)"


def _print_problems(out: Console, inspection: Inspection) -> None:
    if inspection.unsupported:
        print_table(
            out,
            f"Cannot be run: {len(inspection.unsupported)} nodes",
            ("node", "operator", "domain", "opset", "inside", "why, and the nearest that can"),
            [
                (node.name, node.operator, node.domain or "ai.onnx", node.opset, node.where, node.reason)
                for node in inspection.unsupported
            ],
            right=("opset",),
        )
    elif inspection.problem is not None:
        print_title(out, "Cannot be loaded")
        out.print(inspection.problem, style="red")
    else:
        print_title(out, "Every node can be run.")
