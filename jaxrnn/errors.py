"""The errors of jaxrnn, with a common base class, and checks of packages and of counts that raise these errors."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

__all__ = [
    "InputError",
    "JaxrnnError",
    "LimitError",
    "MissingPackageError",
    "ModelError",
    "NodeError",
    "StateError",
    "StaticValueError",
    "StoreError",
    "StreamError",
    "TrainingError",
    "UnsupportedError",
    "optional_package",
]
__dir__ = __all__.copy


class JaxrnnError(Exception):
    """Base class of all errors that jaxrnn raises on purpose."""

    #: True if the message names the node of the graph.
    located: bool = False
    #: The node, and the operands: concrete arrays, or shapes of traced arrays.
    node: Any = None
    operands: tuple[Any, ...] = ()


class ModelError(JaxrnnError, ValueError):
    """A file that is malformed, inconsistent or unsafe, so that it cannot run as a model."""


class UnsupportedError(JaxrnnError, NotImplementedError):
    """A valid ONNX model with a feature that jaxrnn does not implement."""


class LimitError(ModelError):
    """A file that needs more memory or work than allowed; the message names the limit and how to raise it."""


class InputError(JaxrnnError, ValueError):
    """An argument whose name, dtype, rank or dimension does not fit the model."""


class NodeError(JaxrnnError, ValueError):
    """A failed evaluation of a node; the message names the node and its operands.

    Attributes:
        place: the node and the operands, with which the message begins; empty if unknown.
    """

    place: str = ""


class StaticValueError(NodeError):
    """A value that the trace needs, such as a shape, but that depends on data."""


class StateError(JaxrnnError, ValueError):
    """A state that is ambiguous, that a model forgets, or that does not fit."""


class StreamError(JaxrnnError, ValueError):
    """A function that cannot be streamed, or a pulse that does not fit.

    Attributes:
        has_condition: True if the message names lengths for which the function can be streamed.
    """

    has_condition: bool = False


class TrainingError(JaxrnnError, RuntimeError):
    """A training run that cannot begin, continue or resume; the message names the last step and the kept files."""


class StoreError(JaxrnnError):
    """An object store with unknown content, because it is unreachable or denies access."""


class MissingPackageError(JaxrnnError, ImportError):
    """A missing optional package."""


@contextlib.contextmanager
def optional_package(package: str | None, purpose: str, *extras: str) -> Iterator[None]:
    """Wrap the import of an optional package.

    Args:
        package: the name on PyPI; None to use the name of the missing module.
        purpose: the feature that needs the package, for the message.
        extras: the extras of jaxrnn that install the package; empty to install the package directly.

    Raises:
        MissingPackageError: the import fails; the message shows how to install the package.
    """
    try:
        yield
    except ImportError as error:
        install = " or ".join(f"pip install 'jaxrnn[{extra}]'" for extra in extras) or f"pip install {package}"
        raise MissingPackageError(f"{package or error.name} is needed for {purpose}: {install}") from error


def check_kind(name: str, value: Any, kind: Any, form: str) -> None:
    """Check the type of a value.

    Raises:
        InputError: the value is not of this type, or these types.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} must be {form}, not {type(value).__name__}")


def is_count(value: Any, least: int = 0) -> bool:
    """Return True for an integer, not a boolean, of at least ``least``."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        return False


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a value as an ``int``.

    Raises:
        InputError: the value is not an integer of at least ``least``.
    """
    if not is_count(value, least):
        raise InputError(f"{name} must be a whole number from {least} on, not {value!r}")
    return operator.index(value)
