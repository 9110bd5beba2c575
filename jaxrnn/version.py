"""The version of jaxrnn, and the tested versions of JAX."""

from __future__ import annotations

import re

__version__ = "0.2.1"

#: The first version of JAX that the tests run on, and the first untested version.
JAX_RANGE = ("0.10", "0.13")


def why_unsupported(jax: str) -> str | None:
    """Return why a version of JAX is too old, and the fix, or None if the version is new enough."""
    first, untried = JAX_RANGE
    if _numbers(jax) >= _numbers(first):
        return None
    needs = f"jaxrnn {__version__} needs JAX {first} or later, and this is JAX {jax}"
    return f"{needs}: pip install 'jax>={first},<{untried}'"


def why_untested(jax: str) -> str | None:
    """Return a warning for a version of JAX beyond the tested range, or None."""
    first, untried = JAX_RANGE
    if _numbers(jax) < _numbers(untried):
        return None
    return (
        f"jaxrnn {__version__} is tested with JAX {first} up to, not including, {untried}, and this is JAX {jax}: "
        f"if an error looks strange, pip install 'jax>={first},<{untried}', or a later jaxrnn"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return major and minor version; for an invalid version, the empty tuple, which is smallest."""
    matched = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, matched.groups())) if matched else ()
