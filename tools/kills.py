"""End a training at random updates, resume it, and compare it with a training that nothing ended.

    python -m tools.kills --times 50

Each end is SIGTERM, ``kill -9``, an exception in a callback, or a broken recording, at a random update; a signal
comes at a random moment after it. ``kill -9`` loses at most the updates since the last checkpoint, and the other
ends lose none. The finished training has the same parameters to the last bit, and complete logs (JSONL, CSV and
TensorBoard).
"""

from __future__ import annotations

import collections
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

#: Updates of a training, and updates from one checkpoint to the next.
STEPS, EVERY = 40, 5
KINDS = ("SIGTERM", "exception", "file", "SIGKILL")
RATE = 8_000


#: An end: the kind, the updates from the start of a run on, and the seconds from the update to a signal.
End = tuple[str, int, float]


def train(folder: Path, end: End | None) -> None:
    """Train in this process, which comes to an end unless this is None."""
    import jaxrnn
    from jaxrnn.audio import Frames, Network, Waveform
    from jaxrnn.demo import PACKAGED
    from jaxrnn.training import Callback, Checkpoints, Mixtures, fit, logs, losses

    kind, after, delay = end or ("", 0, 0.0)
    timer = threading.Timer(delay, lambda: os.kill(os.getpid(), getattr(signal, kind)))
    timer.daemon = True

    class Ending(Callback):
        def begin(self, training: Any) -> None:
            self.at = len(training.history) + after

        def update(self, record: Mapping[str, Any], training: Any) -> None:
            if record["step"] != self.at or not kind:
                return
            if kind == "exception":
                raise RuntimeError("the callback failed")
            if kind == "file":
                (folder / "noise.wav").write_bytes(b"broken")
            else:
                timer.start()

        def end(self) -> None:
            timer.cancel()

    fitted = fit(
        Waveform(Network(jaxrnn.load(PACKAGED), gives="mask"), Frames(256, 128, "sqrt_hann")),
        Mixtures(folder / "voice.wav", noise=folder / "noise.wav", rate=RATE, seconds=0.1),
        losses.mse("audio", "clean"),
        steps=STEPS,
        batch_size=2,
        checkpoints=Checkpoints(folder / "run", every=EVERY),
        callbacks=[*logs(["csv", "jsonl", "tensorboard"], folder / "run"), Ending()],
        progress=False,
    )
    params: dict[str, Any] = {name: np.asarray(array) for name, array in fitted.params.items()}
    np.savez(folder / "result.npz", **params)


def train_on(folder: Path, plan: list[End]) -> None:
    """Train until the plan or the training ends; print the number of updates that each end loses."""
    for end in plan:
        try:
            train(folder, end)
            return
        except (Exception, KeyboardInterrupt):
            write_sounds(folder)
            click.echo(json.dumps([end[0], *check_end(folder, end[0])]))
    train(folder, None)


def run(folder: Path, plan: list[End]) -> Iterator[tuple[str, int, int]]:
    """Train in another process; yield the kind, the update and the number of updates that are lost for each end."""
    command = [sys.executable, "-m", "tools.kills", "--child", str(folder), json.dumps(plan)]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled")}
    cache |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    ran = subprocess.run(command, env=os.environ | cache, capture_output=True, text=True, check=False)
    yield from map(json.loads, ran.stdout.splitlines())
    if ran.returncode == -signal.SIGKILL:
        yield "SIGKILL", *check_end(folder, "SIGKILL")
    else:
        assert ran.returncode == 0, ran.stderr


def history_of(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the history without times."""
    lines = (folder / "run" / "history.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def write_sounds(folder: Path) -> None:
    """Write the recordings of the training, which are always the same."""
    import soundfile

    rng = np.random.default_rng(0)
    soundfile.write(folder / "voice.wav", 0.3 * np.sin(np.arange(RATE) * 0.3), RATE)
    soundfile.write(folder / "noise.wav", 0.1 * rng.standard_normal(RATE), RATE)


def check_end(folder: Path, kind: str) -> tuple[int, int]:
    """Check what an end left; return the last update, and the number of updates that are lost."""
    done = [record["step"] for record in history_of(folder)] if (folder / "run" / "history.jsonl").exists() else []
    kept = max((int(each.name) for each in (folder / "run").iterdir() if each.name.isdigit()), default=0)
    assert done == [*range(1, len(done) + 1)], f"{kind}: the history has the updates {done}"
    lost = len(done) - kept
    assert lost <= (EVERY if kind == "SIGKILL" else 0), f"{kind}: {lost} updates lost, of {len(done)}"
    return len(done), max(lost, 0)


def check_result(folder: Path, whole: Path) -> None:
    """Check that a training is the same as the one that nothing ended, with complete logs."""
    from jaxrnn.training.callbacks import values_in

    with np.load(whole / "result.npz") as expected, np.load(folder / "result.npz") as found:
        assert all(expected[name].tobytes() == found[name].tobytes() for name in expected), "other parameters"
    assert history_of(folder) == history_of(whole), "another history"
    rows = list(csv.DictReader((folder / "run" / "history.csv").read_text(encoding="utf-8").splitlines()))
    assert [float(row["loss"]) for row in rows] == [record["loss"] for record in history_of(whole)], "another CSV"
    losses = {step: value for (step, tag), value in values_in(folder / "run" / "tensorboard").items() if tag == "loss"}
    assert losses == {each["step"]: np.float32(each["loss"]) for each in history_of(whole)}, "other events"


def ends(times: int, seed: int, parent: Path) -> Iterator[tuple[str, int, int]]:
    """End trainings so many times; yield the kind, the update and the number of updates that are lost."""
    rng, whole, number = np.random.default_rng(seed), parent / "whole", 0
    whole.mkdir()
    write_sounds(whole)
    list(run(whole, []))
    while number < times:
        folder = Path(tempfile.mkdtemp(dir=parent))
        write_sounds(folder)
        while not (folder / "result.npz").exists():
            # A process that is killed comes to no other end.
            kinds = [*map(str, rng.permutation(KINDS[:-1])), KINDS[-1]][: times - number]
            for each in run(folder, [(kind, int(rng.integers(1, 10)), float(rng.uniform(0, 0.1))) for kind in kinds]):
                number += 1
                yield each
        check_result(folder, whole)


@click.command()
@click.option("--times", default=50, show_default=True, help="Ends of a training.")
@click.option("--seed", default=0, show_default=True)
@click.option("--child", nargs=2, type=str, hidden=True, default=None)
def main(times: int, seed: int, child: tuple[str, str] | None) -> None:
    """End a training at random updates, resume it, and compare the result with that of an undisturbed training."""
    if child is not None:
        train_on(Path(child[0]), json.loads(child[1]))
        return
    lost: dict[str, list[int]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as parent:
        for kind, at, count in ends(times, seed, Path(parent)):
            lost[kind].append(count)
            click.echo(f"{kind} after update {at}: {count} updates lost")
    for kind, counts in lost.items():
        click.echo(f"{kind}: {len(counts)} times, at most {max(counts)} of {EVERY} updates lost")
    click.echo("the parameters are the same to the last bit, and all logs are complete")


if __name__ == "__main__":
    main()
