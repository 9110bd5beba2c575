"""A fresh process that evaluates a network on the only recording of a folder, and prints its peak memory."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import jaxrnn
from benchmarks.networks import RATE, path_of
from benchmarks.processes import peak_bytes
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.evaluation import Evaluation, Framed, Offline, System, from_folder


def dtln() -> Framed:
    """Return DTLN over frames of 512 samples, 128 samples apart."""
    first, second = (jaxrnn.load(path_of(name)) for name in ("dtln_1", "dtln_2"))
    frames = Frames(512, 128, "boxcar", synthesis="sum")
    return Framed(Waveform((Network(first, gives="mask"), Network(second)), frames))


def gtcrn() -> Framed:
    """Return GTCRN over frames of 512 samples, 256 samples apart."""
    return Framed(Waveform(Network(jaxrnn.load(path_of("gtcrn")), gives="spectrum"), Frames(512, 256, "sqrt_hann")))


def filter_net() -> Offline:
    """Return the streamed filter_net."""
    model = jaxrnn.load(path_of("filter_net"))
    return Offline(model.stream(), model.params, rate=LONG["filter_net"][0])


SYSTEMS = {"DTLN": dtln, "GTCRN": gtcrn, "filter_net": filter_net}

#: Frames or samples per second, and for recordings of features the shape of a frame of each input.
LONG: dict[str, tuple[int, dict[str, tuple[int, ...]] | None]] = {
    "DTLN": (RATE, None),
    "GTCRN": (RATE, None),
    "filter_net": (100, {"feat_erb": (32,), "feat_spec": (2, 96)}),
}


def main(name: str, folder: Path) -> None:
    """Evaluate the recording in ``folder/in``, and print one JSON object."""
    system: System = SYSTEMS[name]()
    sound = LONG[name][1] is None
    began = time.perf_counter()
    evaluation = Evaluation(system, from_folder(folder / "in"), [], folder / "out", keep=sound)
    evaluation.run()
    took = time.perf_counter() - began
    (row,) = evaluation.rows()
    if row["status"] != "ok":
        raise RuntimeError(f"{name}: {row}")
    print(json.dumps({"us": took * 1e6, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
