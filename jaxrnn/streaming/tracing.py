"""Tracing a function over a time axis of any length, and what is said where that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import InconclusiveDimensionOperation

from jaxrnn._files.messages import whole_message
from jaxrnn.errors import JaxrnnError, NodeError, StreamError
from jaxrnn.jaxprs.equations import trace_nested
from jaxrnn.streaming.dimensions import UndecidedError
from jaxrnn.streaming.mends import mend_of_call, mend_of_message
from jaxrnn.streaming.sources import place_of_error

#: What tracing raises where a function asks for what is no array of JAX, besides errors of its own.
_UNTRACEABLE = (TypeError, AssertionError, NotImplementedError, jax.errors.JAXTypeError, jax.errors.JAXIndexError)


def trace_over_time(function: Callable[..., Any], params: Any, whole: Any) -> tuple[Any, Any]:
    """The jaxpr of a function whose arrays have a symbolic dimension, and the tree of its outputs.

    Raises:
        UndecidedError: the length does not let it be traced; what JAX raised is the cause.
        JaxrnnError: what the function raised.
    """
    try:
        return trace_nested(function, params, whole)
    except JaxrnnError as error:
        if type(error) is not NodeError:
            raise
        raise UndecidedError(str(error)) from error
    except Exception as error:
        raise UndecidedError(_said_of(error, "cannot be traced for every length of its time axis")) from error


def mend_of(error: UndecidedError, function: Callable[..., Any], params: Any, example: Any) -> str:
    """What to do about an error of tracing, whatever the lengths.

    Raises:
        Exception: what the function raised, where it fails on the example too, or a node of a model did.
        StreamError: JAX cannot trace it at all.
    """
    cause = error.__cause__
    if cause is None:
        return ""
    if isinstance(cause, JaxrnnError):
        raise cause
    try:
        jax.eval_shape(function, params, example)
    except Exception as same:
        if isinstance(same, JaxrnnError) or not isinstance(same, _UNTRACEABLE):
            raise same from None
        raise StreamError(_said_of(same, "cannot be traced: jax.jit of it fails, too")) from same
    return (
        mend_of_message(str(cause))
        or mend_of_call(place_of_error(cause).calls)
        or (
            "use the length x.shape[0] only in shapes and in jax.numpy: Python does not know it as a "
            "number, as in len(), range(), float() or a condition"
        )
    )


def _said_of(error: Exception, what: str) -> str:
    place = str(place_of_error(error))
    kind = "" if isinstance(error, InconclusiveDimensionOperation) else f"{type(error).__name__}: "
    at = f" ({place})" if place else ""
    first, *rest = whole_message(error).splitlines()
    return "\n".join([f"the function {what}{at}: {kind}{first.rstrip('.')}", *rest])
