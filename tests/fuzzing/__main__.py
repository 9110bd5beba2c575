"""``python -m tests.fuzzing``: tries cases for some minutes, keeps each defect with its file, and counts the ends."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzzing import campaign
from fuzzing.cases import KINDS, make


def bytes_of(source):
    return source.read_bytes() if isinstance(source, Path) else source.SerializeToString()


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="one kind of case; all in turn by default")
    parser.add_argument("--out", type=Path, default=Path("fuzzing-findings"), help="folder for what is found")
    parser.add_argument(
        "--case", nargs=3, metavar=("KIND", "SEED", "NUMBER"), help="run one case here, and nothing else"
    )
    options = parser.parse_args()
    if options.case:
        from fuzzing import trial

        source, how = make(options.case[0], int(options.case[1]), int(options.case[2]))
        print("" if options.case[0] in trial.TRIALS else trial.describe(source))
        print(json.dumps(trial.try_case(options.case[0], source, how), indent=2))
        return
    options.out.mkdir(exist_ok=True, parents=True)

    def keep(facts):
        name = "-".join(map(str, facts["case"]))
        source, _ = make(*facts["case"])
        kind, suffix = facts["case"][0], "onnx"
        if kind == "compiled":
            suffix = "jaxrnn"
        elif kind == "files":
            file, source = source
            suffix = file.replace("/", "-")
        data = source if isinstance(source, bytes) else bytes_of(source)
        (options.out / f"{name}.{suffix}").write_bytes(data)
        (options.out / f"{name}.json").write_text(json.dumps(facts, indent=2))
        print(name, facts["defect"][:200], flush=True)

    end = time.monotonic() + 60 * options.minutes
    kinds = options.kind or KINDS
    round_, defects = 0, 0
    while time.monotonic() < end:
        for kind in kinds:
            share = time.monotonic() + min(120, 60 * options.minutes / len(kinds))
            seed = options.seed + 1000 * round_
            found = campaign.run(kind, seed, 0, 10**6, until=min(end, share), on_defect=keep)
            defects += len(found.defects)
            print(f"{kind}, seed {seed}: {found.cases} cases, {len(found.defects)} defects, slowest {found.slowest} s")
            for outcome, count in found.outcomes.most_common():
                print(f"  {count:6} {outcome}")
        round_ += 1
    sys.exit(defects > 0)


if __name__ == "__main__":
    main()
