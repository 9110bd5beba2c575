"""Operators on strings and image files. They run in Python on values that are known while tracing."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.errors import optional_package
from jaxrnn.onnx.registry import Static, Versions, since
from jaxrnn.onnx.values import Value, check_choice, describe, is_text, text_array, traced


def _text(value: Value) -> np.ndarray:
    if not is_text(value):
        raise TypeError(f"strings are expected, not {describe(value)}")
    return value


def string_concat(x: Value, y: Value) -> Value:
    """StringConcat, with broadcasting."""
    return np.strings.add(_text(x), _text(y))


def string_split(x: Value, *, delimiter: str = "", maxsplit: int | None = None) -> list[Value]:
    """StringSplit: the parts of each string along a new last axis, filled with empty strings, and the numbers of parts.

    Without a delimiter, white space separates parts, and strings have no empty parts at their ends.
    """
    if maxsplit is not None and maxsplit < 0:
        raise ValueError(f"maxsplit must not be negative, not {maxsplit}")
    x = _text(x)
    limit = -1 if maxsplit is None else maxsplit
    parts = [item.split(delimiter or None, limit) for item in x.ravel().tolist()]
    longest = max(map(len, parts), default=0)
    filled = [part for row in parts for part in (*row, *[""] * (longest - len(row)))]
    counts = np.array(list(map(len, parts)), np.int64)
    return [text_array(filled, (*x.shape, longest)), counts.reshape(x.shape)]


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def string_normalizer(
    x: Value,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: tuple[str, ...] = (),
) -> Value:
    """StringNormalizer: drop the stop words and change the case; an empty string if no word is left.

    Case conversion follows Unicode, as in all locales except the Turkic and Lithuanian locales.
    """
    if locale is not None and locale.lower().startswith(("tr", "az", "lt")):
        raise ValueError(f"the case rules of the locale {locale!r} are not supported")
    check_choice("case_change_action", case_change_action, _CASES)
    x = _text(x)
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"strings of shape [C] or [1, C] are expected, not {describe(x)}")
    compared: Callable[[str], str] = str if is_case_sensitive else str.casefold
    stops = set(map(compared, stopwords))
    kept = [_CASES[case_change_action](item) for item in x.ravel().tolist() if compared(item) not in stops] or [""]
    return text_array(kept, (*x.shape[:-1], len(kept)))


def regex_full_match(x: Value, *, pattern: str = "") -> Value:
    """RegexFullMatch: whether each whole string matches the pattern, which is in RE2's syntax.

    The package google-re2, if installed, matches in linear time; otherwise Python's ``re`` matches.
    """
    try:
        import re2 as engine  # type: ignore[import-not-found]

        read = engine.compile
    except ImportError:
        engine = re
        read = lambda text: re.compile(_in_python(text), re.ASCII)  # noqa: E731
    try:
        matches = read(pattern).fullmatch
    except engine.error as error:
        raise ValueError(f"the pattern {pattern!r} cannot be read: {error}") from error
    x = _text(x)
    return np.array([matches(item) is not None for item in x.ravel().tolist()], bool).reshape(x.shape)


#: Syntax that RE2 lacks: back references and lookaround.
_NOT_IN_RE2 = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?(?:[=!]|<[=!]|P=|\())")

_POSIX_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


def _in_python(pattern: str) -> str:
    """Translate a pattern from RE2's to Python's syntax."""
    if _NOT_IN_RE2.search(pattern):
        raise ValueError(f"the pattern {pattern!r} is not in the syntax of RE2")
    for name, members in _POSIX_CLASSES.items():
        pattern = pattern.replace(f"[:{name}:]", members)
    return pattern.replace(r"\z", r"\Z")


def tf_idf_vectorizer(
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...],
    pool_int64s: tuple[int, ...] | None = None,
    pool_strings: tuple[str, ...] | None = None,
    weights: tuple[float, ...] | None = None,
) -> Value:
    """TfIdfVectorizer: how often each n-gram of a pool occurs in a row, with skips of equal size between words."""
    check_choice("mode", mode, ("TF", "IDF", "TFIDF"))
    if (pool_int64s is None) == (pool_strings is None):
        raise ValueError("exactly one of pool_int64s and pool_strings must be given")
    if len(x.shape) not in (1, 2):
        raise ValueError(f"an input of shape [C] or [N, C] is expected, not {describe(x)}")
    if min_gram_length < 1 or max_gram_length < min_gram_length or max_skip_count < 0:
        raise ValueError("1 <= min_gram_length <= max_gram_length and 0 <= max_skip_count must hold")
    size = max(ngram_indexes) + 1
    pool: Sequence[int] = pool_int64s or ()
    if pool_strings is not None:
        places: dict[str, int] = {}
        pool = [places.setdefault(word, len(places)) for word in pool_strings]
        words = _text(x)
        x = np.array([places.get(word, -1) for word in words.ravel().tolist()], np.int64).reshape(words.shape)
    rows = jnp.atleast_2d(traced(x)).astype(jnp.int64)
    total = jnp.zeros((rows.shape[0], size), jnp.int32)
    for length, grams in _grams(pool, ngram_counts, ngram_indexes).items():
        if not min_gram_length <= length <= max_gram_length:
            continue
        # No n-gram of a row has its words farther apart than the row is long.
        for step in range(1, min(max_skip_count + 1, rows.shape[1]) + 1 if length > 1 else 2):
            total = total + _occurrences(rows, length, step, grams, size)
    counts = total.astype(jnp.float32)
    if mode == "IDF":
        counts = jnp.minimum(counts, 1)
    if mode != "TF" and weights:
        if len(weights) != len(ngram_indexes):
            raise ValueError(f"weights has {len(weights)} entries for {len(ngram_indexes)} n-grams")
        by_column = np.zeros(size, np.float32)
        by_column[list(ngram_indexes)] = weights
        counts = counts * by_column
    return counts.reshape((*x.shape[:-1], size))


def _grams(pool: Sequence[int], counts: Sequence[int], columns: Sequence[int]) -> dict[int, dict[tuple[int, ...], int]]:
    """Return the n-grams of a pool and their output columns by length; the last of equal n-grams counts."""
    grams: dict[int, dict[tuple[int, ...], int]] = {}
    places = iter(columns)
    for length, (start, end) in enumerate(zip(counts, (*counts[1:], len(pool)), strict=True), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            raise ValueError(f"ngram_counts {list(counts)} does not cut a pool of {len(pool)} into n-grams")
        for first in range(start, end, length):
            column = next(places, -1)
            if column < 0:
                raise ValueError("ngram_indexes must hold a column for each n-gram of the pool, none of them negative")
            grams.setdefault(length, {})[tuple(pool[first : first + length])] = column
    return grams


def _occurrences(rows: jax.Array, length: int, step: int, grams: Mapping[tuple[int, ...], int], size: int) -> jax.Array:
    """Count each n-gram, with words ``step`` apart, in each row; ``[rows, columns]``."""
    starts = rows.shape[1] - step * (length - 1)
    if starts <= 0:
        return jnp.zeros((rows.shape[0], size), jnp.int32)
    words = np.array(list(grams), np.int64)
    same: Any = True
    for word in range(length):
        part = lax.slice_in_dim(rows, word * step, word * step + starts, axis=1)
        same = same & (part[:, :, None] == words[:, word])
    count = jnp.sum(same, 1, dtype=jnp.int32)
    return jnp.zeros((rows.shape[0], size), jnp.int32).at[:, np.array(list(grams.values()))].add(count)


#: The image modes of Pillow.
_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


def image_decoder(encoded_stream: Static, *, pixel_format: str = "RGB") -> Value:
    """ImageDecoder: uint8 pixels ``[height, width, channels]``, or ``[0, 0, channels]`` if the bytes are not an image.

    Needs Pillow. An image with more pixels than Pillow's limit for decompression bombs is an error.
    """
    check_choice("pixel_format", pixel_format, _MODES)
    with optional_package("pillow", "decoding images", "images"):
        from PIL import Image
    mode = _MODES[pixel_format]
    try:
        with Image.open(io.BytesIO(np.ascontiguousarray(encoded_stream, np.uint8).tobytes())) as image:
            if image.mode.startswith("I;16"):  # which Pillow would clip to 255
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            pixels = np.array(image.convert(mode))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(str(error)) from error
    except (OSError, SyntaxError, ValueError, EOFError):
        return np.zeros((0, 0, 1 if mode == "L" else 3), np.uint8)
    if mode == "L":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels


OPERATORS: dict[str, Versions] = {
    "RegexFullMatch": since(regex_full_match, 20),
    "StringConcat": since(string_concat, 20),
    "StringNormalizer": since(string_normalizer, 10),
    "StringSplit": since(string_split, 20),
    "TfIdfVectorizer": since(tf_idf_vectorizer, 9),
    "ImageDecoder": since(image_decoder, 20),
}
