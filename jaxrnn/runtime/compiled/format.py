"""The file: a line of magic, a line with the SHA-256 of the rest, and a zip archive.

The archive holds ``manifest.json``, arrays as ``.npy`` entries, functions serialised by ``jax.export``, and perhaps the
machine code of some; nothing in it is packed or pickled, and what it claims is held against what is there. Machine code
is not read unless it is asked for.

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

import numpy as np

from jaxrnn._files.arrays import read_member
from jaxrnn._files.files import check_regular
from jaxrnn._files.stores import in_place_of
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import ModelError
from jaxrnn.runtime.compiled.manifest import check_manifest, check_native
from jaxrnn.runtime.compiled.native import Native, arguments_of
from jaxrnn.steps.specs import dtype_named
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.version import __version__

#: The first line of a file; another format has another.
MAGIC = b"jaxrnn compiled model, format 2\n"
#: What the first lines of all formats begin with.
FAMILY = MAGIC.partition(b",")[0]


class Archive(NamedTuple):
    """What a file holds.

    Attributes:
        spec: the facts about the stepper.
        jax: the version of JAX that it was compiled with.
        params: arrays that the functions take.
        start: the state before the first frame, in the order of `StepSpec.carried`, each of its shape or one that is
            broadcast to it; None where a function ``init`` computes it.
        functions: serialised functions by name.
        native: their machine code; None where the file holds none, or none was asked for.
        digest: SHA-256 of the file; of one that is to be written, nothing yet.
    """

    spec: StepSpec
    jax: str
    params: Sequence[Any]
    start: Sequence[np.ndarray] | None
    functions: Mapping[str, bytes]
    native: Native | None = None
    digest: str = ""


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a compiled one, of whatever format.

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
    groups = {"params": archive.params, "start": archive.start or ()}
    arrays = {group: [np.asarray(array) for array in entries] for group, entries in groups.items()}
    facts = {
        "jaxrnn": __version__,
        "jax": archive.jax,
        "spec": archive.spec.to_json(),
        "functions": list(archive.functions),
        **{group: [array.dtype.name for array in entries] for group, entries in arrays.items()},
    }
    if archive.native is not None:
        facts["native"] = {"made": archive.native.made, "results": archive.native.results}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("manifest.json", json.dumps(facts, indent=1))
        for group, entries in arrays.items():
            for index, array in enumerate(entries):
                with opened.open(f"{group}/{index}.npy", "w", force_zip64=True) as entry:
                    # Raw bytes: NumPy's files do not know types such as bfloat16.
                    np.lib.format.write_array(entry, array.view(f"V{array.dtype.itemsize}"), allow_pickle=False)
        for name, data in archive.functions.items():
            opened.writestr(f"functions/{name}", data)
        for name, data in ({} if archive.native is None else archive.native.code).items():
            opened.writestr(f"native/{name}", data)
    body = buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest().encode() + b"\n"
    with in_place_of(path) as written:
        written.write_bytes(MAGIC + digest + body)


def read(path: str | os.PathLike[str], native: bool = False) -> Archive:
    """Read a file.

    Args:
        path: where it is.
        native: whether its machine code is read, too.

    Raises:
        ModelError: no such file, another kind of file, one that has been damaged, or one that makes no sense.
    """
    try:
        data = check_regular(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}") from error
    if not data.startswith(MAGIC):
        other = data.partition(b"\n")[0][:80].decode(errors="replace")
        what = f"it says {other!r}" if data.startswith(FAMILY) else "it is another kind of file"
        raise ModelError(
            f"{os.fspath(path)} is not a model compiled by this version of jaxrnn: {what}; write it with "
            "'jaxrnn compile'"
        )
    digest, _, body = data[len(MAGIC) :].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ModelError(
            f"{os.fspath(path)} is damaged: its contents do not have the digest that it gives; compile it again"
        )
    try:
        with exact_types():
            return _content(body, native)._replace(digest=digest.decode())
    except (ValueError, LookupError, TypeError, RuntimeError, OSError, zipfile.BadZipFile, MemoryError) as error:
        raise ModelError(
            f"{os.fspath(path)} has the digest that it gives, but not the content of a compiled model: {error}; "
            "compile it again"
        ) from error


def _content(body: bytes, native: bool) -> Archive:
    with zipfile.ZipFile(io.BytesIO(body)) as opened:
        members = {member.filename: member for member in opened.infolist()}
        claimed = sum(member.file_size for member in opened.infolist())
        if claimed > len(body) or any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError(f"its entries are packed, or more than the file holds ({claimed} bytes of {len(body)})")
        manifest = json.loads(opened.read("manifest.json"))
        functions = {
            name.removeprefix("functions/"): opened.read(name) for name in members if name.startswith("functions/")
        }
        spec = check_manifest(manifest, functions)
        params, start = (
            [
                _array(opened, members[f"{group}/{index}.npy"], dtype)
                for index, dtype in enumerate(map(dtype_named, manifest[group]))
            ]
            for group in ("params", "start")
        )
        code = _native(opened, members, manifest.get("native"), spec) if native else None
    if "init" in functions:
        return Archive(spec, manifest["jax"], tuple(params), None, functions, code)
    for each, array in zip(spec.carried, start, strict=True):
        if array.dtype != each.dtype:
            raise ValueError(f"state {each} begins with {array.dtype}")
        np.broadcast_to(array, [1 if isinstance(size, str) else size for size in each.shape or ()])
    return Archive(spec, manifest["jax"], tuple(params), tuple(start), functions, code)


def _native(
    opened: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], facts: Any, spec: StepSpec
) -> Native | None:
    if facts is None:
        return None
    check_native(facts)
    for name in facts["results"]:
        arguments_of(spec, name)  # there is such a function
    code = {name: opened.read(members[f"native/{name}"]) for name in facts["results"]}
    return Native(facts["made"], facts["results"], code)


def _array(opened: zipfile.ZipFile, member: zipfile.ZipInfo, dtype: np.dtype) -> np.ndarray:
    raw = read_member(opened, member)
    if raw.dtype.itemsize != dtype.itemsize:
        raise ValueError(f"{member.filename} holds elements of {raw.dtype.itemsize} bytes, not {dtype}")
    return raw.view(dtype)
