"""Many cases in processes of their own, so that a crash or a hang is one finding and not the end."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent.parent
#: Seconds without a word after which a process hangs: one case, and the start of a process.
PATIENCE, START = 120, 300


@dataclass
class Findings:
    """What a campaign saw: how many cases came to which end, and every defect."""

    cases: int = 0
    outcomes: Counter = field(default_factory=Counter)
    defects: list = field(default_factory=list)
    slowest: float = 0.0


def run(kind, seed, first, count, *, until=None, on_defect=None):
    """Try so many cases of a kind from a number on, or as many as there is time for."""
    findings = Findings()
    number, last = first, first + count
    while number < last and (until is None or time.monotonic() < until):
        number = _one_process(kind, seed, number, last, until, findings, on_defect)
    return findings


def _one_process(kind, seed, number, last, until, findings, on_defect):
    """Cases until the process ends; the number of the next one."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
    command = [sys.executable, "-m", "fuzzing.trial", kind, str(seed), str(number), str(last - number)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=TESTS
        )
        lines = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        at, patience, ended = number, START, None
        try:
            while True:
                line = lines.get(timeout=patience)
                if line is None:
                    break
                facts = json.loads(line)
                if "at" in facts:
                    at, patience = facts["at"], PATIENCE
                    continue
                _note(findings, kind, seed, facts, on_defect)
                ended = facts["done"]
                if until is not None and time.monotonic() > until:
                    return last
        except queue.Empty:
            process.kill()
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()
        if ended == last - 1:
            return last
        errors.seek(0)
        died = f"the process died with {process.returncode} or hung"
        _note(findings, kind, seed, {"done": at, "defect": died, "trace": errors.read()[-3000:]}, on_defect)
        return at + 1


def _read(stream, lines):
    for line in stream:
        if line.startswith("{"):
            lines.put(line)
    lines.put(None)


def _note(findings, kind, seed, facts, on_defect):
    findings.cases += 1
    findings.slowest = max(findings.slowest, facts.get("took", 0))
    if "defect" in facts:
        facts = {"case": [kind, seed, facts["done"]], **facts}
        findings.defects.append(facts)
        if on_defect is not None:
            on_defect(facts)
    else:
        steps = {k: v for k, v in facts.items() if k not in ("done", "took")}
        findings.outcomes.update(f"{step}: {end}" for step, end in steps.items())
