"""A fresh process that computes one output and prints the seconds of its stages: ``... start_child JOB``.

The process imports only the packages that its mode needs.
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import one_line
from benchmarks.stages import Stages


def main(path: str) -> None:
    """Run the job and print one JSON object: the seconds of the stages, and the outputs."""
    job = pickle.loads(Path(path).read_bytes())
    stages, report = Stages(), {}
    outputs: dict[str, Any] = {}
    if job["mode"] in WAYS:
        import jax  # noqa: F401

        stages.listen()
        outputs = WAYS[job["mode"]](job, stages)
        report["compiling"] = stages.compiling()
    else:
        try:
            outputs = _peer(job)
        except Exception as error:  # an engine's own errors have no common type
            report["refused"] = one_line(error)
        stages.done("first frame")
    report["stages"] = stages.report(job["began"])
    report["outputs"] = {name: np.asarray(value).tolist() for name, value in outputs.items()}
    print(json.dumps(report))


def _import(job: dict[str, Any], stages: Stages) -> dict[str, Any]:
    stages.done("import")
    return {}


def _onnx(job: dict[str, Any], stages: Stages) -> dict[str, Any]:
    import jaxrnn

    stages.done("import")
    model = jaxrnn.load(job["path"], static=job["static"])
    stages.done("load")
    stepper: Any = model
    if job["pulse"] is not None:
        stepper = model.stream(pulse=job["pulse"])
        stages.done("trace")
    run = jaxrnn.Runner(stepper, model.params)
    stages.done("init")
    outputs = run(job["frame"])
    stages.done("first frame")
    return outputs


def _compiled(job: dict[str, Any], stages: Stages) -> dict[str, Any]:
    import jaxrnn

    stages.done("import")
    native = job["mode"] == "native"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # jaxrnn warns of unused machine code
        stepper: Any = jaxrnn.load_compiled(job[job["mode"]], native=native)
    stages.done("load")
    state = stepper.init()
    stages.done("init")
    outputs, _ = stepper.step(None, state, job["frame"])
    outputs = {name: np.asarray(value) for name, value in outputs.items() if value is not None}
    stages.done("first frame")
    return outputs


def _peer(job: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.peers import engine_module
    from benchmarks.timing import no_trials

    engine = engine_module(job["mode"])
    if job["pulse"] is not None:
        engine.Pulse(job["path"], job["pulse"], *job["names"])(job["frame"])
        return {}  # the delay differs, so the first frames do too
    with no_trials():
        return engine.open_network(job["network"], job["threads"])(job["frame"])


#: The ways in which jaxrnn starts.
WAYS = {"import jax": _import, "onnx": _onnx, "compiled": _compiled, "native": _compiled}

if __name__ == "__main__":
    main(sys.argv[1])
