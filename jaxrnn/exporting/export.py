"""`export_onnx`: a model's graph with other parameters, or any pure step as a graph of its own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from jaxrnn._files.arguments import argument
from jaxrnn.errors import InputError, UnsupportedError, check_count
from jaxrnn.exporting.describing import describe_file
from jaxrnn.exporting.exported import Exported, ExportedGraph
from jaxrnn.exporting.graphs import Graph, flush_graph, function_graph, step_graph
from jaxrnn.exporting.sources import Source, is_stepper
from jaxrnn.exporting.writing import check_targets, start_path, write_files
from jaxrnn.model import Model
from jaxrnn.model.exporting import write_graph
from jaxrnn.onnx.stepfile import is_rate
from jaxrnn.steps.stepper import Stepper

#: The opset of files that ask for no other: what every engine of the last years runs.
OPSET = 17

File = str | os.PathLike[str]


def export_onnx(
    stepper: Model | Stepper | Callable[..., Any],
    params: Any,
    path: File,
    *,
    step: bool = False,
    flush: File | None = None,
    example: Any = None,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    opset: int | None = None,
    label: str | None = None,
    frame_rate: float | None = None,
) -> Exported | None:
    """Write a model, a stream, a step or a function as an ONNX file.

    - Of a model, the file that it was loaded from, with these parameters in it: `jaxrnn.model.exporting.write_graph`
      says how. Every other byte stays as it was.
    - Of a model with ``step=True``, its step: the state goes in and out by the names of its file.
    - Of a streamed function, or one's own `Stepper`, a step on a pulse. An entry ``NAME`` of the state goes in under
      its name, and comes out as ``NAME_next``; with ``flush``, a second file gives what is left when a recording has
      ended.
    - Of a function of arrays, ``function(params, x)``, or ``function(x)`` where params is None: the function. A module
      of Flax NNX or Equinox is one, as in `jaxrnn.stream`.

    Parameters are in the file as numbers. Its metadata say what a program must know to run it, under the key
    ``jaxrnn`` as JSON (`jaxrnn.onnx.stepfile.StepFile`), and the descriptions of graph, inputs and outputs say it in
    sentences. Beside a step ``NAME.onnx`` lies ``NAME.first_state.npz``, its state before the first frame by the names
    of its inputs. `jaxrnn.load` takes such a file with its state and first state.

    The files appear when all of them are complete and ONNX's own checks have passed, or not at all. Tensors of more
    than 2 GB go to ``NAME.onnx.data``. Complex numbers are pairs along a last axis, the real part first.

    Example::

        jaxrnn.export_onnx(model, params, "tuned.onnx")
        jaxrnn.export_onnx(offline.stream(pulse=4), offline.params, "streaming.onnx", flush="flush.onnx")

    Args:
        stepper: what is written.
        params: its parameters; None for those that it has itself.
        path: the file to write; it may replace another.
        step: of a model, whether its step is written, as a graph of its own.
        flush: the file for the flush, in the same folder or another.
        example: of a function, its input: an array, which is then called ``x``, or arrays by name; shapes will do.
        batch: streams that a step is for: every array has an axis in front, or its own batch dimension, of that size.
            None for one stream.
        dims: sizes of the dimensions that a step leaves open, other than the batch.
        opset: the version of ONNX's operators; 17 by default.
        label: what a step or function calls itself; by default its own name.
        frame_rate: of a stream, input frames a second (samples, where a frame is one): the metadata then say delay and
            look-ahead in milliseconds, too.

    Returns:
        What was written; None of a model's whole graph.

    Raises:
        InputError: an argument does not fit; names it, and the mend.
        StateError: the model forgets its state after every call, so it has no steps; or its state grows.
        UnsupportedError: something has no counterpart in ONNX, or needs a newer opset; names its node or line.
        ModelError: ONNX refuses the graph.
    """
    options = {"flush": flush, "example": example, "batch": batch, "dims": dims, "opset": opset, "label": label}
    options |= {"frame_rate": frame_rate}
    if frame_rate is not None and not is_rate(frame_rate):
        raise InputError(f"frame_rate must be a number of frames a second, not {frame_rate!r}")
    if isinstance(stepper, Model) and not step:
        if given := [name for name, value in options.items() if value is not None]:
            raise InputError(
                f"{given[0]} is for a step, and a model is written as the graph that it was: give "
                f"{argument('step', True)} for its step"
            )
        write_graph(stepper, stepper.params if params is None else params, path)
        return None
    paths = [Path(path), *([] if flush is None else [Path(flush)])]
    check_targets(paths)
    version = _known_opset(OPSET if opset is None else opset)
    graphs = _graphs(stepper, params, options)
    if frame_rate is not None:
        known = float(frame_rate)
        graphs = [dataclasses.replace(each, facts=dataclasses.replace(each.facts, frame_rate=known)) for each in graphs]
    return _write(graphs, paths, version)


def _graphs(stepper: Any, params: Any, options: Mapping[str, Any]) -> list[Graph]:
    """The step, and the flush if it is asked for; or the function."""
    example, batch = options["example"], options["batch"]
    if is_stepper(stepper):
        if example is not None:
            raise InputError(f"example is for a function; a {type(stepper).__name__} knows its inputs")
        if batch is not None:
            check_count("batch, the number of streams,", batch)
        source = Source(stepper, params, batch, options["dims"] or {}, options["label"])
        names = source.file_names()
        return [step_graph(source, names), *([flush_graph(source, names)] if options["flush"] is not None else [])]
    if not callable(stepper):
        raise InputError(
            f"expected a model, a streamed function, another stepper or a function, not {type(stepper).__name__}"
        )
    if example is None:
        raise InputError("a function is traced on an example: give example=x, an array or a dict of arrays by name")
    if given := [name for name in ("flush", "batch", "dims", "frame_rate") if options[name] is not None]:
        raise InputError(f"{given[0]} is for a step with a state; a function is written as its example is")
    return [function_graph(stepper, params, example, options["label"])]


def _write(graphs: list[Graph], paths: list[Path], opset: int) -> Exported:
    """Lower, describe and write the graphs."""
    beside = {start_path(paths[0]): first} if (first := graphs[0].facts.first_inputs) else {}
    names = [("step", paths[0]), *(("flush", path) for path in paths[1:]), *(("first_state", path) for path in beside)]
    models, facts = {}, []
    for graph, path in zip(graphs, paths, strict=True):
        model = graph.lowered(opset)
        files = {kind: Path(os.path.relpath(other, path.parent)).as_posix() for kind, other in names}
        facts.append(dataclasses.replace(graph.facts, files=files))
        describe_file(model, facts[-1])
        models[path] = model
    written = write_files(dict(reversed(models.items())), beside)
    exported = [
        ExportedGraph(path, each, sum(1 for _ in model.graph.all_nodes()))
        for (path, model), each in zip(models.items(), facts, strict=True)
    ]
    return Exported(exported[0], exported[1] if len(exported) > 1 else None, written)


def _known_opset(opset: Any) -> int:
    newest = onnx.defs.onnx_opset_version()
    if check_count("opset", opset) > newest:
        raise UnsupportedError(
            f"opset {opset} is newer than the {newest} that the installed onnx {onnx.__version__} knows; upgrade onnx"
        )
    return int(opset)
