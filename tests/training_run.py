"""A small training in a process of its own: what is killed, limited and split by the tests of checkpoints and devices.

``python training_run.py '{"folder": ..., ...}'`` trains and writes the parameters to ``out``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np


def main(options: dict) -> None:
    import jax

    jax.config.update("jax_numpy_dtype_promotion", "strict")
    # As in quick_compiling.py: other machine code rounds in other places, and results are compared to the last bit.
    jax.config.update("jax_disable_most_optimizations", True)
    if "file_limit" in options:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (options["file_limit"], options["file_limit"]))

    from training_cases import examples, flat_fit, mean_square, recurrent_model

    lengths = options["lengths"]
    delay = options.get("delay", 0.0)
    loaded: list[int] = []

    class Data:
        """A list that takes its time, and says which of its examples this process asked for."""

        def __init__(self) -> None:
            self.examples = examples(lengths)

        def __len__(self) -> int:
            return len(self.examples)

        def __getitem__(self, index: int):
            loaded.append(int(index))
            time.sleep(delay)
            return self.examples[index]

    model = recurrent_model("time")
    fitted = flat_fit(
        model,
        Data(),
        mean_square,
        time_axis=1,
        checkpoints=options.get("folder"),
        validation=examples([4, 6, 5], seed=5) if options.get("validate") else None,
        **options["fit"],
    )
    steps = np.array([record["step"] for record in fitted.history])
    losses = np.array([record["loss"] for record in fitted.history])
    extra = {"best_step": fitted.best_step, "loaded": loaded, "devices": len(jax.devices())}
    written = Path(options["out"])
    partial = written.with_suffix(".part.npz")
    np.savez(
        partial,
        steps=steps,
        losses=losses,
        extra=json.dumps(extra),
        **{f"best/{name}": np.asarray(array) for name, array in fitted.params.items()},
        **{f"last/{name}": np.asarray(array) for name, array in fitted.last_params.items()},
    )
    partial.rename(written)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
