"""A fresh process that runs one step and says when it was done: ``python -m benchmarks.start_child JOB``.

It imports only what its way of starting needs.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.base import brief

#: JAX's event around every compilation by XLA; reading from the persistent cache counts as well.
COMPILING = "/jax/core/compile/backend_compile_duration"


def main(path: str) -> None:
    """Run the job and print one JSON object."""
    job = pickle.loads(Path(path).read_bytes())
    report: dict[str, Any] = {"outputs": {}}
    if job["mode"] == "import jax":
        import jax  # noqa: F401
    elif job["mode"] in ("onnx", "compiled"):
        compiling: list[float] = []
        _listen(compiling)
        report["outputs"] = _onnx(job) if job["mode"] == "onnx" else _compiled(job)
        report["compiling"] = sum(compiling)
    else:
        try:
            report["outputs"] = _peer(job)
        except Exception as error:  # an engine's own errors have no common type
            report["refused"] = brief(error)
    report["first"] = time.monotonic_ns()
    report["outputs"] = {name: np.asarray(value).tolist() for name, value in report["outputs"].items()}
    print(json.dumps(report))


def _listen(durations: list[float]) -> None:
    import jax

    def heard(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILING:
            durations.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(heard)


def _onnx(job: dict[str, Any]) -> dict[str, Any]:
    import jaxrnn

    model = jaxrnn.load(job["network"].path, static=job["static"])
    return jaxrnn.Runner(model)(job["network"].frame)


def _compiled(job: dict[str, Any]) -> dict[str, Any]:
    import jaxrnn

    model: Any = jaxrnn.load_compiled(job["compiled"])
    outputs, _ = model.step(None, model.init(), job["network"].frame)
    return {name: np.asarray(value) for name, value in outputs.items()}


def _peer(job: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.peers import engine_module
    from benchmarks.timing import no_trials

    with no_trials():
        return engine_module(job["mode"]).open_network(job["network"], job["threads"])(job["network"].frame)


if __name__ == "__main__":
    main(sys.argv[1])
