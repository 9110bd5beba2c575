#!/bin/sh
# Compare and time jaxrnn on the first device that JAX has here, such as a GPU: from a bare checkout, without network,
# in at most eight minutes. It needs Python with JAX, onnx, onnx-ir, flax and optax; PyTorch runs beside it if installed.
# Usage: tools/accelerator.sh [--out FOLDER] [--minutes N]; PYTHON names another interpreter.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m benchmarks.accelerator "$@"
