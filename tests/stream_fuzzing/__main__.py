"""``python -m tests.stream_fuzzing``: tries programs, prints each defect, and counts the ends."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_disable_most_optimizations", True)

from stream_fuzzing import campaign  # noqa: E402


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.stream_fuzzing", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--refusals", type=int, default=0, help="show so many programs of each reason")
    parser.add_argument("--bounded", action="store_true", help="programs that need all frames, with bounded futures")
    options = parser.parse_args()
    shown, begin = Counter(), time.monotonic()
    gc.disable()  # The campaign collects now and then.

    def show(outcome, text):
        shown[outcome] += 1
        if not outcome.fine or (outcome.end == "refused" and shown[outcome] <= options.refusals):
            print(text, end="\n\n", flush=True)

    found = campaign.run(options.seed, options.first, options.programs, show, bounded=options.bounded)
    print(f"seed {options.seed}: {options.programs} programs in {time.monotonic() - begin:.0f} s")
    for end, count in (*found.ends.most_common(), *found.refusals.most_common()):
        print(f"  {count:6} {end}")
    sys.exit(bool(found.defects))


if __name__ == "__main__":
    main()
