"""``jaxrnn inspect`` and ``jaxrnn card``: the content of an ONNX file as a report, a page, or a model card."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jaxrnn._files.messages import as_json, bytes_of
from jaxrnn.cli.commands import FrameCount, Given, NumberRange, Option, Taken, command
from jaxrnn.cli.options import OUTPUT, Dims, ModelFile, new_file, split_pairs
from jaxrnn.cli.output import Block, Table, TextLine, busy, fields, past_line, plain_warnings, show, wrapped
from jaxrnn.errors import JaxrnnError

if TYPE_CHECKING:
    from jaxrnn.model.inspection import Inspection

_LARGEST = 5
#: Longest text in a cell; longer lists take a line for each item.
_CELL = 40

Facts = Mapping[str, Any]


@command
def inspect(
    *,
    file: ModelFile,
    params: bool = False,
    html: Annotated[Path, new_file("PAGE.html")] | None = None,
    symbol: Annotated[str, Option(metavar="NAME")] | None = None,
    past: FrameCount | None = None,
    dims: Dims | None = None,
) -> None:
    """Show the content of an ONNX file, even of a file that cannot run.

    The report lists inputs and outputs with their open dimensions, opsets and producer, parameters, the other float
    tensors and why training leaves these unchanged, the number of nodes of each operator (with subgraphs), recurrent
    nodes with their sizes, the state of the model with the reason for each entry, and each node that jaxrnn cannot run,
    with the nearest operator that it can.

    For each open dimension that could be time, the report says whether 'jaxrnn stream --symbol' can stream the model
    over it: the smallest pulse, the delay of each output, the look-ahead and the size of the state. Otherwise it names
    the node that prevents streaming and a remedy. A model that runs in steps, with all of its
    state among its inputs and outputs, needs no pulses.

    Examples:
      jaxrnn inspect model.onnx
      jaxrnn inspect model.onnx --html model.html
      jaxrnn inspect vad.onnx --static sr=16000 --dim sequence=576
      jaxrnn inspect model.onnx --json | jq '.streams'
      jaxrnn inspect model.onnx --json | jq '.unsupported'

    Args:
        params: List every parameter and every constant, not only the five largest.
        html: Also write a page with the graph: bodies unfold in place, state is drawn as arrows, time in colour. The
            page needs no network.
        symbol: The open dimension that is time. [default: try each candidate]
        past: Try streams with this --past of 'jaxrnn stream'.
        dims: Size of an open dimension.
    """
    from jaxrnn.inspection.card import write_text
    from jaxrnn.inspection.page import library, render

    if html is not None:
        library()  # raises before the inspection of a large file, which takes long
    inspection = inspected(file, dims, symbol, past, graph=html is not None)
    if html is not None:
        write_text(html, render(inspection))
    result = facts_of(inspection) | {"page": None if html is None else str(html)}
    show(result, lambda result: map(_folded, _report(result, _about_steps(inspection), params)))


@command
def card(
    *,
    file: ModelFile,
    output: Annotated[Path, new_file("CARD.md", *OUTPUT)] | None = None,
    about: Annotated[
        Given,
        Taken(
            "jaxrnn.inspection.card:write_card",
            symbol=Option(metavar="NAME"),
            rate=Option(metavar="HZ", type=NumberRange(0, min_open=True)),
            license=Option(metavar="ID"),
            task=Option(metavar="TAG"),
        ),
    ],
    metrics: Annotated[dict[str, str], Option(metavar="DATASET=FOLDER", parse=split_pairs)] | None = None,
    past: FrameCount | None = None,
    dims: Dims | None = None,
) -> None:
    """Write the model card of an ONNX file in Markdown, from the facts of 'jaxrnn inspect'.

    The card says what the network is, its size, operations, state and delays, and its metrics from folders of 'jaxrnn
    evaluate'. It begins with the metadata of Hugging Face's model cards, so that it can be published as README.md. What
    is not known is said: delays are in milliseconds only with --rate, or with the rate in the metadata of an exported
    file. Without --output, the card is printed.

    Examples:
      jaxrnn card dtln_1.onnx -o README.md --license mit
      jaxrnn card net.onnx --symbol S --rate 100 --task audio-to-audio --metrics "my test set=runs/net"
      jaxrnn card net.onnx --json | jq '.delay_ms'

    Args:
        output: File to write, such as README.md.
        metrics: The folder of results of 'jaxrnn evaluate' on a data set; may be given several times.
        past: Try streams with this --past of 'jaxrnn stream'.
        dims: Size of an open dimension.
    """
    from jaxrnn.inspection.card import card_of, write_text

    evaluations = {}
    for name, folder in (metrics or {}).items():
        from jaxrnn.evaluation.results import read_results

        evaluations[name] = read_results(folder).document
    inspection = inspected(file, dims, about.pop("symbol", None), past)
    made = card_of(inspection, evaluations, **about)
    if output is not None:
        write_text(output, made["text"])
    result = {**facts_of(inspection), **made, "output": None if output is None else str(output)}
    show(result, lambda _: [made["text"].rstrip() if output is None else f"wrote {output}"])


def inspected(
    file: ModelFile, dims: Mapping[str, int] | None, symbol: str | None, past: int | None, graph: bool = False
) -> Inspection:
    """Inspect a file with the options of a command."""
    from jaxrnn.model.inspection import inspect_model
    from jaxrnn.model.streaming import warn_of_batch
    from jaxrnn.onnx.graph import is_batch_name

    if symbol is not None and is_batch_name(symbol):
        with contextlib.suppress(JaxrnnError):  # which the report has
            with plain_warnings(shown=False):
                model = file.load()
            warn_of_batch(model, symbol)
    given = {"static": file.static, "state": file.state, "dims": {**file.dims, **(dims or {})}}
    with busy(f"inspecting {file.path.name}"), plain_warnings(shown=False):  # the report has their facts
        return inspect_model(file.path, **given, streams=symbol or True, past=past, graph=graph)


def facts_of(inspection: Inspection) -> dict[str, Any]:
    """Return the facts about a file for JSON, without nodes and values."""
    from jaxrnn.verification.sampling import symbols_of

    # The file does not say which axis is time; the symbol of a stream does.
    arrays = {
        key: [{name: value for name, value in array.items() if name != "time_axis"} for array in as_json(group)]
        for key, group in (("inputs", inspection.inputs), ("outputs", inspection.outputs))
    }
    # Only the page shows nodes and values.
    facts = as_json(dataclasses.replace(inspection, graph=None, graph_stream=None))
    del facts["graph"], facts["graph_stream"]
    return {
        **facts,
        **arrays,
        "dimensions": symbols_of(inspection.inputs),
        "parameter_count": inspection.parameter_count,
        "parameter_bytes": inspection.parameter_bytes,
    }


def _about_steps(inspection: Inspection) -> str:
    """Return a sentence about steps and batches of streams."""
    from jaxrnn.onnx.state import open_sizes

    if any(item.kind == "internal" for item in inspection.state):
        return "Every call forgets the internal state, so this model has no steps."
    batch, others = open_sizes(inspection.state, inspection.growing)
    if others:
        return f"Runs in steps; {' '.join(f'--dim {name}=SIZE' for name in others)} sizes the state."
    if batch is not None:
        return f"Runs in steps; {batch} is the batch."
    return "Runs in steps; the batch is fixed, so a batch of streams adds a leading axis, over which steps are mapped."


def _folded(block: Block) -> Block:
    return dataclasses.replace(block, folded=True) if isinstance(block, Table) else block


def _report(result: Facts, about_steps: str, all_params: bool) -> Iterator[Block]:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in result["opsets"].items())
    yield TextLine(result["label"], "bold")
    yield wrapped(f"producer {result['producer'] or 'unknown'}; IR version {result['ir_version']}; opset {opsets}")
    if result["dimensions"]:
        yield wrapped(f"open dimensions of the inputs: {', '.join(result['dimensions'])}")
    yield Table(
        "Inputs and outputs",
        {
            "": "kind",
            "name": "name",
            "dtype": lambda item: item["dtype"] or "sequence or optional",
            "shape": lambda item: "[...]" if item["shape"] is None else item["shape"],
        },
        [{**item, "kind": kind} for kind in ("input", "output") for item in result[f"{kind}s"]],
    )
    yield from (wrapped(text) for text in (*result["corrected"], *result["opened"]))
    yield _parameters(result, all_params)
    yield from _constants(result["constants"], all_params)
    yield Table(
        f"Operators: {sum(item['count'] for item in result['operators']):,} nodes",
        {
            "operator": lambda item: "::".join(filter(None, (item["domain"], item["name"]))),
            "version": lambda item: item["version"] or None,
            "nodes": "count",
        },
        result["operators"],
    )
    yield _recurrent(result["recurrent"])
    for node in result["recurrent"]:
        if node["where"]:
            yield wrapped(f"{node['name']} is inside {node['where']}")
    yield from _state(result, about_steps)
    yield from past_line(result["past"])
    yield from _streams(result["streams"])
    yield from _problems(result)
    if result["page"] is not None:
        yield f"wrote {result['page']}"


def _parameters(result: Facts, all_params: bool) -> Table:
    shown = result["parameters"]
    title = f"Parameters: {result['parameter_count']:,} in {len(shown)} arrays, {bytes_of(result['parameter_bytes'])}"
    if not all_params and len(shown) > _LARGEST:
        shown = sorted(shown, key=lambda item: -item["size"])[:_LARGEST]
        title += f"; the {_LARGEST} largest (--params lists all)"
    return Table(title, {**fields("name", "dtype", "shape"), "elements": "size"}, shown)


def _constants(constants: Sequence[Facts], all_params: bool) -> Iterator[Block]:
    if not constants:
        return
    total = sum(each["size"] for each in constants)
    yield Table(f"Constants, which training leaves unchanged: {total:,} in {len(constants)} arrays")
    for reason in dict.fromkeys(each["reason"] for each in constants):
        same = [each for each in constants if each["reason"] == reason]
        yield wrapped(reason)
        for each in same if all_params else sorted(same, key=lambda item: -item["size"])[:_LARGEST]:
            yield f"  {each['name']}: {each['dtype']}[{', '.join(map(str, each['shape']))}]"
        if not all_params and len(same) > _LARGEST:
            yield f"  and {len(same) - _LARGEST} more (--params lists all)"


def _carries(node: Facts) -> str:
    """Return the carries of a node, without the part of their names that repeats the name of the node."""
    label = re.sub(r"\W", "_", node["name"])
    shown = []
    counters = 0
    for carry in node["carries"]:
        name, _, kind = carry.rpartition(": ")
        if kind.endswith("[]") and "int" in kind:
            counters += 1
            continue
        pairs = zip(label, re.sub(r"\W", "_", name), strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        shown.append(f"{name[name.rfind('_', 0, same) + 1 :]}: {kind}" if name else kind)
    shown += [f"{counters} counter{'s' if counters > 1 else ''}"] if counters else []
    return _listed(shown)


def _listed(items: Sequence[str]) -> str:
    """Join items with commas, or with line breaks if the line is too long."""
    line = ", ".join(items)
    return line if len(line) <= _CELL else "\n".join(items)


def _recurrent(nodes: Sequence[Facts]) -> Table:
    columns = {
        "node": "name",
        **fields("operator", "direction"),
        "input": "input_size",
        "hidden": "hidden_size",
        "weights": "weights",
        "carries": _carries,
    }
    table = Table("Recurrent nodes" if nodes else "Recurrent nodes: none", columns, nodes)
    filled = [any(cell not in (None, "") for cell in column) for column in zip(*table.cells(), strict=True)]
    return Table(table.title, dict(item for item, some in zip(columns.items(), filled, strict=False) if some), nodes)


def _state(result: Facts, about_steps: str) -> Iterator[Block]:
    if result["state_problem"] is not None:
        yield Table("State: ambiguous")
        yield TextLine("\n".join(map(wrapped, result["state_problem"].splitlines())), "red")
    elif result["state"]:
        caller = [] if all(item["kind"] == "internal" for item in result["state"]) else ["output"]
        yield Table("State", fields("name", "kind", *caller, "shape", "dtype"), result["state"])
        yield from (wrapped(item["reason"]) for item in result["state"])
        yield wrapped(about_steps)
    elif result["problem"] is None:
        yield Table("State: none")
    if result["frame_recurrences"]:
        yield wrapped(f"Every step starts anew: {', '.join(result['frame_recurrences'])}. These belong to the frame.")
    if pairs := result["undeclared_pairs"]:
        listed = ", ".join(f"{given!r} -> {updated!r}" for given, updated in pairs)
        yield wrapped(f"Data, because the declaration of the state leaves them out: {listed}. They could be state.")


def _streams(streams: Sequence[Facts]) -> Iterator[Block]:
    if able := [item for item in streams if item["problem"] is None]:
        yield Table(
            "Streams in pulses ('jaxrnn stream FILE --symbol NAME --pulse FRAMES')",
            {
                "over": "symbol",
                **fields("smallest pulse"),
                "delay": lambda item: _listed(
                    [f"{name} {'at the end' if delay is None else delay}" for name, delay in item["delay"].items()]
                ),
                "look-ahead": "look_ahead",
                "receptive field": lambda item: (
                    "all of the past" if item["receptive_field"] is None else item["receptive_field"]
                ),
                "state": lambda item: bytes_of(item["state_bytes"]),
            },
            able,
            right=("state",),
        )
        yield "Pulse, look-ahead and receptive field are in input frames; delays in frames of the output."
        yield from past_line(able[0]["past"])
    for item in streams:
        if item["problem"] is not None:
            yield Table(f"Cannot be streamed over {item['symbol']}")
            line, _, more = item["problem"].partition("\n")
            yield wrapped(f"{line} ... (in full with --json)" if more else line)


def _problems(result: Facts) -> Iterator[Block]:
    if result["unsupported"]:
        yield Table(
            f"Cannot be run: {len(result['unsupported'])} nodes",
            {
                "node": "name",
                "operator": "operator",
                "domain": lambda node: node["domain"] or "ai.onnx",
                "opset": "opset",
            },
            result["unsupported"],
        )
        for node in result["unsupported"]:
            inside = f" (inside {node['where']})" if node["where"] else ""
            yield wrapped(f"{node['name']}{inside}: {node['reason']}")
    elif result["problem"] is not None:
        yield Table("Cannot be loaded")
        yield TextLine("\n".join(map(wrapped, result["problem"].splitlines())), "red")
    else:
        yield Table("Every node can be run.")
