"""The command ``jaxrnn``, also as ``python -m jaxrnn``, and what to install where its packages are not there."""

from __future__ import annotations

import importlib.util
import sys

#: What `jaxrnn.cli` is made with; the extra ``cli``, and every extra with a command of its own, brings them.
_PACKAGES = ("click", "filelock", "platformdirs", "rich")


def main() -> None:
    """Run the command line; without its packages, say in one line how to install them, with exit status 2."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"error: the command line needs {' and '.join(missing)}: pip install 'jaxrnn[cli]'", file=sys.stderr)
        sys.exit(2)
    from jaxrnn.cli import main as command

    command(prog_name="jaxrnn")


if __name__ == "__main__":
    main()
