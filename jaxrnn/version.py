"""The version of jaxrnn, and the tested versions of JAX."""

from __future__ import annotations

import re

__version__ = "0.2.1"

#: The first version of JAX that the tests run on, and the first untested version.
JAX_RANGE = ("0.10", "0.11")


def why_unsupported(jax: str) -> str | None:
    """Return the reason why a version of JAX is not supported, and the fix; None if the version is supported.

    Compiled files, recognised cells and streams use parts of JAX that may change in any minor version. With an untested
    version, an error could appear far from the cause.
    """
    first, untried = JAX_RANGE
    if _numbers(first) <= _numbers(jax) < _numbers(untried):
        return None
    return (
        f"jaxrnn {__version__} is tested with JAX {first} up to, not including, {untried}, and this is JAX {jax}: "
        f"pip install 'jax>={first},<{untried}', or another version of jaxrnn. "
        "JAXRNN_ANY_JAX=1 in the environment lets it run all the same, untested"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return major and minor version; for an invalid version, the empty tuple, which is smallest."""
    matched = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, matched.groups())) if matched else ()
