"""Import of scripts in ``examples``, which is not a package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parent.parent / "examples"


def import_example(name: str) -> ModuleType:
    """Import a script as a module, with ``examples`` first on the path."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
