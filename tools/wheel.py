"""A build of the source distribution and the wheel, and a test of the installed wheel: ``python -m tools.wheel``.

The wheel is built from the source distribution and installed into a fresh environment outside of the checkout. The test
runs the demo and the programs of the README, and writes a page about a file that these export.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: The extras of the README's first command, and the extra for the page of a file.
EXTRAS = "verify,plot,graph"


def main() -> None:
    """Build into the given folder, or a temporary folder, and check the results."""
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/dist").resolve()
        _run(ROOT, sys.executable, "-m", "build", "--outdir", dist, ROOT)
        (wheel,) = dist.glob("*.whl")
        _check_files(wheel)
        _use(wheel, Path(folder))
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; installed, and the README's commands and program run")


def _check_files(wheel: Path) -> None:
    """Check that the wheel has all files of the package under version control, and no other files."""
    tracked = subprocess.run(
        ["git", "ls-files", "jaxrnn"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    if packed != set(tracked):
        sys.exit(f"{wheel.name} lacks {sorted(set(tracked) - packed)} and has besides {sorted(packed - set(tracked))}")


def _use(wheel: Path, folder: Path) -> None:
    """Install the wheel in an environment without the checkout, and run the commands and the program of the README."""
    environment = folder / "environment"
    binaries = environment / "bin"
    _run(folder, sys.executable, "-m", "venv", environment)
    constraints = ROOT / "constraints.txt"
    _run(folder, binaries / "pip", "install", "-q", "--no-compile", "-c", constraints, f"{wheel}[{EXTRAS}]")
    _run(folder, binaries / "jaxrnn", "demo", "--out", "demo-out")
    program = programs((ROOT / "README.md").read_text(encoding="utf-8"))
    _run(folder, binaries / "python", "-c", program)
    written = "demo-out/denoised.wav demo-out/spectrogram.png live.onnx tuned.onnx streaming.onnx flush.onnx"
    for name in written.split():
        if not (folder / name).stat().st_size:
            sys.exit(f"{name} is empty")
    _run(folder, binaries / "jaxrnn", "inspect", "streaming.onnx", "--html", "streaming.html")


def programs(page: str) -> str:
    """Return all blocks of Python on a page, as one program."""
    found = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError("the page has no block of Python")
    return "\n".join(found)


def _run(folder: Path, *command: str | Path) -> None:
    """Run a command with visible output in a folder, in an environment without the checkout on Python's path."""
    print("+", *(str(part).splitlines()[0] for part in command), flush=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(list(map(str, command)), cwd=folder, env=kept, check=True)


if __name__ == "__main__":
    main()
