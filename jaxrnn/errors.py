"""The errors of jaxrnn, with a common base class, and checks of packages and of counts that raise these errors."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import operator
import types
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "InputError",
    "JaxrnnError",
    "LimitError",
    "MissingPackageError",
    "ModelError",
    "NodeError",
    "NonFiniteError",
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


class NonFiniteError(StateError):
    """A step of a live stream whose state or outputs have NaN or infinities; the stream stays as before the step.

    Attributes:
        outputs: zeros in place of the outputs of the step; empty for a pool.
        streams: the ids of the streams of a pool; empty for a single stream.
    """

    outputs: Mapping[str, Any] = types.MappingProxyType({})
    streams: tuple[int, ...] = ()


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
        MissingPackageError: the import fails; the message shows how to install the package. If the package is
            installed, the message shows why its import fails.
    """
    try:
        yield
    except ImportError as error:
        install = " or ".join(map(install_command, extras)) or f"pip install {package}"
        name = package or error.name
        if package is not None and _is_broken(package, error):
            reason = f"{package} is installed, and its import fails ({error})"
            raise MissingPackageError(f"{reason}, but it is needed for {purpose}: {install}") from error
        raise MissingPackageError(f"{name} is needed for {purpose}: {install}") from error


def _is_broken(package: str, error: ImportError) -> bool:
    """Return True if a package is installed, and the error is about a module of another package."""
    try:
        own = {*importlib.metadata.distribution(package).metadata.get_all("Name", [])}
    except importlib.metadata.PackageNotFoundError:
        return False
    owners = importlib.metadata.packages_distributions().get((error.name or "").partition(".")[0], [])
    return not isinstance(error, ModuleNotFoundError) or own.isdisjoint(owners)


def install_command(extra: str) -> str:
    """Return the command that installs an extra of jaxrnn, as jaxrnn is installed: from PyPI or a folder of source."""
    folder = source_folder()
    return f"pip install 'jaxrnn[{extra}]'" if folder is None else f"pip install -e '{folder}[{extra}]'"


def source_folder() -> str | None:
    """Return the folder of an editable installation; None if the installation is not editable."""
    try:
        text = importlib.metadata.distribution("jaxrnn").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = json.loads(text or "{}")
    is_editable = url.get("dir_info", {}).get("editable", False)
    return urllib.parse.unquote(urllib.parse.urlsplit(url["url"]).path) if is_editable else None


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
