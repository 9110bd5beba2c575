"""The file: a line of magic, a line with the SHA-256 of the rest, and a zip archive.

The archive holds ``manifest.json``, arrays as ``.npy`` entries, and functions serialised by ``jax.export``; nothing in
it is packed or pickled, and what it claims is held against what is there.

The digest tells damage: a transfer that was cut, a disk that lost a bit. It is no signature: whoever can write the file
can write the digest, too. The functions are programs, which JAX compiles and runs with the rights of the caller: a
compiled file is to be trusted as a program is, for where it comes from.
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
import numpy as np

from jaxrnn.arrays import read_member
from jaxrnn.errors import ModelError
from jaxrnn.files import check_regular
from jaxrnn.guards import exact_types
from jaxrnn.runtime.compiled.manifest import check_manifest, dtype_named
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
        ModelError: no such file, another kind of file, one that has been damaged, or one that makes no sense.
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
    try:
        with exact_types():
            return _content(magic, body)
    except (ValueError, LookupError, TypeError, RuntimeError, OSError, zipfile.BadZipFile, MemoryError) as error:
        raise ModelError(
            f"{os.fspath(path)} has the digest that it gives, but not the content of a compiled model: {error}; "
            "compile it again"
        ) from error


def _content(magic: bytes, body: bytes) -> Archive:
    with zipfile.ZipFile(io.BytesIO(body)) as opened:
        members = {member.filename: member for member in opened.infolist()}
        claimed = sum(member.file_size for member in opened.infolist())
        if claimed > len(body) or any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError(f"its entries are packed, or more than the file holds ({claimed} bytes of {len(body)})")
        manifest = json.loads(opened.read("manifest.json"))
        functions = {
            name.removeprefix("functions/"): opened.read(name) for name in members if name.startswith("functions/")
        }
        check_manifest(manifest, functions, streamed=magic == STREAMED_MAGIC)
        params: list[jax.Array] = []
        for index, dtype in enumerate(map(dtype_named, manifest["dtypes"])):
            raw = read_member(opened, members[f"params/{index}.npy"])
            if raw.dtype.itemsize != dtype.itemsize:
                raise ValueError(f"params/{index}.npy holds elements of {raw.dtype.itemsize} bytes, not {dtype}")
            params.append(jnp.asarray(raw.view(dtype)))
    return Archive(magic, manifest, tuple(params), functions)
