"""What to write in place of what cannot be streamed: by the function of JAX that is called, and by primitive."""

from __future__ import annotations

import re

from jaxrnn.streaming.sources import Place

#: What advice about Python has in it.
_PYTHON = re.compile(r"\b(?:jax|jnp|lax|np|jaxrnn)\.|fori_loop")

_POSITIONS = "select by position instead: jnp.where(jnp.arange(x.shape[0]) == 0, value, x) sets the first frame"
_OUTSIDE = "move it outside, to the inputs and outputs of a step"
_WINDOWS = "use lax.conv_general_dilated or lax.reduce_window, whose pads are fixed numbers of frames"

#: By function, as users write it.
_CALLS = {
    "jnp.roll": "to shift frames into the future by k, write jnp.pad(x, ((k, 0), (0, 0)))[: x.shape[0]]; jnp.roll by "
    "-k, which moves the first k frames to the end, does stream",
    "jnp.pad": "jnp.pad takes values from near the end it pads in modes 'constant', 'edge', 'reflect' and 'symmetric'; "
    "jnp.concatenate([x, x[:k]]) wraps the first frames to the end",
    "lax.associative_scan": "call jaxrnn.associative_scan, which takes the same arguments",
    "jnp.flip": "run forwards in time",
    "jnp.convolve": _WINDOWS,
    "jnp.correlate": _WINDOWS,
    "jnp.linspace": "count frames with jnp.arange(x.shape[0]) and divide by a fixed number",
    "jnp.tile": "repeat along another axis, or each frame with jnp.repeat",
    "jnp.split": "cut at fixed frames, or reshape into blocks",
}

#: By primitive.
_PRIMITIVES = {
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"), _POSITIONS),
    "dynamic_update_slice": _POSITIONS,
    **dict.fromkeys(("random_bits", "random_wrap", "random_unwrap", "threefry2x32"), "draw random numbers outside, and "
    "pass them as an input with a time axis"),
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback", "debug_print"), _OUTSIDE),
}  # fmt: skip

#: By what JAX says, where it hides the function that says it.
_MESSAGES = {
    "associative scan over axis": "call jaxrnn.associative_scan, which takes the same arguments",
    "slice indices must be integers": "cut an array of JAX, and not of NumPy: jnp.asarray(table)[: x.shape[0]]",
}


#: Errors of JAX about the shapes of a node, and their text for the reader of a file.
_ABOUT_FILES = (
    (r"Shape polymorphism is supported for jnp\.pad .*", "it reflects more frames than a short recording has"),
    (r"\w+ got incompatible shapes for broadcasting: (.*)", r"the shapes \1 do not broadcast"),
    (r"reshape new_sizes must all be positive, got (.*)", r"the new shape \1 is not positive"),
    (r"Cannot divide evenly the sizes of shapes (.*) and (.*)", r"\1 elements do not fill the shape \2"),
)


def error_in_words_of_file(error: Exception) -> str:
    """Return the text of an error about a node of a file without JAX's advice."""
    text = str(error).rstrip(".")
    for pattern, words in _ABOUT_FILES:
        text = re.sub(pattern, words, text)
    return text


def mend_of_message(message: str) -> str | None:
    """What to write in place of what JAX cannot trace; None where nothing is known."""
    return next((mend for part, mend in _MESSAGES.items() if part in message), None)


def mend_of_call(calls: str | None) -> str | None:
    """What to write in place of a function of JAX; None where nothing is known."""
    return None if calls is None else _CALLS.get(calls)


def mend_of_equation(primitive: str, place: Place) -> str | None:
    """What to write in place of an equation that cannot be streamed; None where its rule knows best."""
    if (place.calls, primitive) == ("jnp.pad", "pad"):  # the advice on jnp.pad is about its modes
        return None
    return mend_of_call(place.calls) or _PRIMITIVES.get(primitive)


def in_words_of_file(mend: str) -> str:
    """What to do about a node of a file: no advice about Python."""
    if _PYTHON.search(mend):
        return "export the model with other operators there, or without this part"
    return mend.replace("the function that is streamed", "the model").replace("the function", "the model")
