"""Files in one engine: ``python -m benchmarks.engines_child ENGINE FOLDER NUMBER...``."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Network, engine_module, one_line
from jaxrnn.verification.litert import LiteRt, Signature


def encoded(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return arrays as JSON values, for engines in other languages."""
    return {
        name: {
            "type": array.dtype.name,
            "dims": list(array.shape),
            "base64": base64.b64encode(array.tobytes()).decode(),
        }
        for name, array in arrays.items()
    }


def decoded(entries: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Invert `encoded`."""
    return {
        name: np.frombuffer(base64.b64decode(each["base64"]), each["type"]).reshape(each["dims"])
        for name, each in entries.items()
    }


def main(engine: str, folder: str, *numbers: str) -> None:
    """Run each numbered file once, and write the outputs or the refusal beside it."""
    module = None if engine == "LiteRT" else engine_module(engine)
    for number in numbers:
        place = Path(folder)
        entry = json.loads((place / f"{number}.json").read_text())
        names = tuple(entry["outputs"])
        try:
            path, feeds = Path(entry["path"]), decoded(entry["feeds"])
            if module is None:
                outputs = LiteRt(Signature(path, entry["signature"])).run(feeds)
            else:
                network = Network(path, feeds, names, names)
                outputs = module.open_network(network, 1)(network.frame)
            answer = {"outputs": encoded({name: np.asarray(outputs[name]) for name in names})}
        except Exception as error:  # errors of engines have no common type
            answer = {"refused": one_line(error)}
        (place / f"{number}.out.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
