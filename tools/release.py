"""The notes of a release, from the changelog: ``python -m tools.release v1.2.3``.

The tag must name the version of the package, and the newest version of the changelog must be this version with a date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from jaxrnn.version import __version__

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def notes(tag: str, version: str, changelog: str) -> str:
    """Return the section of a version.

    Raises:
        ValueError: if the tag, the package and the changelog name different versions.
    """
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, but jaxrnn/version.py has version {version}: expected the tag v{version}")
    _, newest, *_ = re.split(r"^## ", changelog, flags=re.MULTILINE)
    heading, _, section = newest.partition("\n")
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading):
        raise ValueError(
            f"CHANGELOG.md begins with {heading!r}: expected '{version} (YYYY-MM-DD)'; "
            "rename the section of unreleased changes"
        )
    return section.strip() + "\n"


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1], __version__, CHANGELOG.read_text()), end="")
    except ValueError as error:
        sys.exit(str(error))
