"""Files as LiteRT by onnx2tf: ``PYTHON engines_lite.py FOLDER NUMBER...``, with the Python that has onnx2tf.

This script does not import jaxrnn, because onnx2tf needs older packages.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import numpy as np
import onnx2tf
import tensorflow as tf


def converted(path: str, feeds: dict[str, np.ndarray], folder: str) -> bytes:
    """Convert a file; inputs keep the order of their axes."""
    keep = [name for name, array in feeds.items() if array.ndim > 2]
    onnx2tf.convert(
        input_onnx_file_path=path,
        output_folder_path=folder,
        output_signaturedefs=True,
        not_use_onnxsim=True,
        keep_shape_absolutely_input_names=keep,
        non_verbose=True,
    )
    return next(Path(folder).glob("*_float32.tflite")).read_bytes()


def plain(name: str, names: dict) -> str:
    """Return the name that onnx2tf gave an array: equal up to characters other than letters and digits."""
    bare = re.sub(r"[\W_]", "", name)
    return next((each for each in names if re.sub(r"[\W_]", "", each) == bare), name)


def run(entry: dict) -> dict:
    """Convert and run one file."""
    feeds = {
        name: np.frombuffer(base64.b64decode(each["base64"]), each["type"]).reshape(each["dims"])
        for name, each in entry["feeds"].items()
    }
    with tempfile.TemporaryDirectory() as folder:
        content = converted(entry["path"], feeds, folder)
    runner = tf.lite.Interpreter(model_content=content, num_threads=1).get_signature_runner()
    shapes = {name: each["shape"] for name, each in runner.get_input_details().items()}
    given = {plain(name, shapes): array for name, array in feeds.items()}
    results = runner(**{name: array.reshape(shapes[name]) for name, array in given.items()})
    outputs = {}
    for name in entry["outputs"]:
        array = np.asarray(results[plain(name, results)])
        outputs[name] = {
            "type": array.dtype.name,
            "dims": list(array.shape),
            "base64": base64.b64encode(array.tobytes()).decode(),
        }
    return {"outputs": outputs}


def main(folder: str, *numbers: str) -> None:
    """Run each numbered file once, and write the outputs or the refusal beside it."""
    for number in numbers:
        try:
            answer = run(json.loads(Path(folder, f"{number}.json").read_text()))
        except (Exception, SystemExit) as error:  # onnx2tf also exits
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            answer = {"refused": f"{type(error).__name__}: {(lines or [''])[0][:200]}"}
        Path(folder, f"{number}.out.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
