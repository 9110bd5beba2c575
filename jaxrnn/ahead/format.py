"""The file: a line of magic, a line with the SHA-256 of the rest, and a zip archive.

The archive holds ``manifest.json``, arrays as ``.npy`` entries, and functions serialised by ``jax.export``. Nothing in
it is executed or unpickled before the digest has been seen to be right.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxrnn.errors import ModelError
from jaxrnn.files import check_regular
from jaxrnn.onnx.values import exact_types
from jaxrnn.writing import in_place_of

#: The first line of a file with a model's steps.
MAGIC = b"jaxrnn compiled model, format 1\n"
#: The first line of a file with a streamed function, which versions without streaming refuse.
STREAMED_MAGIC = b"jaxrnn compiled model, streamed, format 1\n"
#: What all first lines of this format and others begin with.
FAMILY = MAGIC.partition(b",")[0]


class Archive(NamedTuple):
    """What a file holds.

    Attributes:
        magic: its first line, which says what kind of file it is.
        manifest: the facts, in JSON's types.
        params: arrays that the functions take.
        functions: serialised functions by name.
    """

    magic: bytes
    manifest: Mapping[str, Any]
    params: Sequence[Any]
    functions: Mapping[str, bytes]


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a compiled one, of whatever kind and format.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        with check_regular(path).open("rb") as opened:
            return opened.read(len(FAMILY)) == FAMILY
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}") from error


def write(path: Path, archive: Archive) -> None:
    """Write a file, whole or not at all."""
    arrays = [np.asarray(array) for array in archive.params]
    facts = {**archive.manifest, "params": len(arrays), "dtypes": [array.dtype.name for array in arrays]}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("manifest.json", json.dumps(facts, indent=1))
        for index, array in enumerate(arrays):
            with opened.open(f"params/{index}.npy", "w", force_zip64=True) as entry:
                # Raw bytes: NumPy's files do not know types such as bfloat16.
                np.lib.format.write_array(entry, array.view(f"V{array.dtype.itemsize}"), allow_pickle=False)
        for name, data in archive.functions.items():
            opened.writestr(f"functions/{name}", data)
    body = buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest().encode() + b"\n"
    with in_place_of(path) as written:
        written.write_bytes(archive.magic + digest + body)


def read(path: str | os.PathLike[str]) -> Archive:
    """Read a file.

    Raises:
        ModelError: no such file, another kind of file, or one that has been damaged.
    """
    try:
        data = check_regular(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}") from error
    magic = next((magic for magic in (MAGIC, STREAMED_MAGIC) if data.startswith(magic)), None)
    if magic is None:
        raise ModelError(
            f"{os.fspath(path)} is not a model compiled by this version of jaxrnn; write it with 'jaxrnn compile'"
        )
    digest, _, body = data[len(magic) :].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ModelError(
            f"{os.fspath(path)} is damaged: its contents do not have the digest that it gives; compile it again"
        )
    with exact_types(), zipfile.ZipFile(io.BytesIO(body)) as opened:
        manifest = json.loads(opened.read("manifest.json"))
        params: list[jax.Array] = []
        for index in range(manifest["params"]):
            with opened.open(f"params/{index}.npy") as entry:
                raw = np.lib.format.read_array(entry, allow_pickle=False)
            params.append(jnp.asarray(raw.view(dtype_named(manifest["dtypes"][index]))))
        functions = {
            name.removeprefix("functions/"): opened.read(name)
            for name in opened.namelist()
            if name.startswith("functions/")
        }
    return Archive(magic, manifest, tuple(params), functions)


def dtype_named(name: str) -> np.dtype:
    """An element type by its name, those that NumPy does not have itself included."""
    return np.dtype(getattr(ml_dtypes, name, name))
