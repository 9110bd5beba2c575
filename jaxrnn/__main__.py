"""The entry point of the command ``jaxrnn`` and of ``python -m jaxrnn``."""

from __future__ import annotations

import importlib.util
import sys

from jaxrnn.errors import install_command

#: Packages that `jaxrnn.cli` needs. The extra ``cli``, and each extra with a command, installs these packages.
_PACKAGES = ("click", "filelock", "platformdirs", "rich")


def main() -> None:
    """Run the command line. If packages are missing, print how to install the packages, and exit with status 2."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        needed = f"the command line needs {' and '.join(missing)}"
        print(f"error: {needed}: {install_command('cli')}", file=sys.stderr)
        sys.exit(2)
    from jaxrnn.cli import main as command

    command(prog_name="jaxrnn")


if __name__ == "__main__":
    main()
