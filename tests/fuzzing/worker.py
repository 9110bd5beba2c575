"""One process that tries cases, with little memory and little patience, and says which one it is at."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import resource
import signal
import sys
import time
import traceback

import jax

from fuzzing import cases, trial

MEMORY = 6 * 2**30


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=20, help="of the processor, for one case")
    options = parser.parse_args()
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    signal.signal(signal.SIGPROF, _out_of_time)
    for number in range(options.first, options.first + options.count):
        say(at=number)
        before, peak = time.perf_counter(), _peak()
        try:
            source, how = cases.make(options.kind, options.seed, number)
            signal.setitimer(signal.ITIMER_PROF, options.seconds)
            try:
                said = trial.run(source, **how)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            outcome = {step: words.split(":")[0] for step, words in said.items()}
        except trial.Defect as defect:
            cause = defect.__cause__
            lines = traceback.format_exception(cause)[-12:]
            outcome = {"defect": str(defect), "trace": "".join(lines)[-2500:], "model": trial.describe(source)}
        took, grew = time.perf_counter() - before, _peak() - peak
        if grew > 2**30:
            outcome.setdefault("defect", f"{grew / 2**30:.1f} GiB were allocated")
        say(done=number, took=round(took, 3), **outcome)
        if number % 25 == 24:
            jax.clear_caches()
            gc.collect()


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class OutOfTimeError(BaseException):
    """Nothing may catch this as an error of a node."""


def _out_of_time(*_):
    faulthandler.dump_traceback(file=sys.stderr)
    raise OutOfTimeError


def say(**facts):
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
