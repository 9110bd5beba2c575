"""The errors that jaxrnn raises: one family, so that a caller can catch all of them or one kind."""

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


def __dir__() -> list[str]:
    return sorted(__all__)


class JaxrnnError(Exception):
    """Base of every error that jaxrnn raises on purpose."""

    #: Whether the message already says which node of the graph it is about.
    located: bool = False
    #: The node, and of its operands the arrays that are known while tracing, or the shapes.
    node: Any = None
    operands: tuple[Any, ...] = ()


class ModelError(JaxrnnError, ValueError):
    """The file is not a model that can be run: malformed, inconsistent or unsafe."""


class UnsupportedError(JaxrnnError, NotImplementedError):
    """The model is valid ONNX, but uses something that jaxrnn does not implement."""


class LimitError(ModelError):
    """The file asks for more memory or work than it may; the message names the limit and what raises it."""


class InputError(JaxrnnError, ValueError):
    """An argument of a call does not fit the model: a wrong name, dtype, rank or dimension."""


class NodeError(JaxrnnError, ValueError):
    """Evaluating one node of the graph failed; the message names the node and its operands.

    Attributes:
        place: the node and its operands, as the message begins; empty where that is not known.
    """

    place: str = ""


class StaticValueError(NodeError):
    """A value that shapes the computation depends on data that is not known while tracing."""


class StateError(JaxrnnError, ValueError):
    """What a model's state is cannot be decided, or what was given does not fit it."""


class StreamError(JaxrnnError, ValueError):
    """A function cannot be turned into a streaming one, or a pulse does not fit it."""


class TrainingError(JaxrnnError, RuntimeError):
    """A training cannot begin, go on or be resumed; the message says where it stopped and what is kept."""


class StoreError(JaxrnnError):
    """A store of objects cannot be reached or refuses, so that nothing is known of what it holds."""


class MissingPackageError(JaxrnnError, ImportError):
    """An optional package is needed for this and is not installed."""


@contextlib.contextmanager
def optional_package(package: str | None, purpose: str, *extras: str) -> Iterator[None]:
    """Wraps the import of a package that the core does without.

    Args:
        package: as pip knows it; None for the one that is missing, where there are several.
        purpose: what it is needed for.
        extras: of jaxrnn, each of which installs it; none where the package is to be installed by itself.

    Raises:
        MissingPackageError: it cannot be imported; says how to install it.
    """
    try:
        yield
    except ImportError as error:
        install = " or ".join(f"pip install 'jaxrnn[{extra}]'" for extra in extras) or f"pip install {package}"
        raise MissingPackageError(f"{package or error.name} is needed for {purpose}: {install}") from error


def is_count(value: Any, least: int = 0) -> bool:
    """Whether a value is a whole number that is large enough; True and False are none."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        return False


def check_count(name: str, value: Any, least: int = 1) -> int:
    """A whole number that is large enough.

    Raises:
        InputError: it is not one.
    """
    if not is_count(value, least):
        raise InputError(f"{name} must be a whole number from {least} on, not {value!r}")
    return operator.index(value)
