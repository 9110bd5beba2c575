"""The compiled file: a magic line, a line with the SHA-256 of the rest, and a zip archive.

The archive contains ``manifest.json``, arrays as ``.npy`` entries, functions serialised by ``jax.export``, and machine
code of some functions on request. The entries are neither compressed nor pickled, and all claims of the manifest are
checked against the content. Machine code is read on request only.

The digest detects damage, such as an incomplete transfer. The digest is not a signature, because anyone with write
access to the file can also write the digest. JAX compiles and runs the functions with the rights of the caller.
`load_function` refuses calls of host code in a function, but the compiler and the kernels of JAX trust a program, so a
compiled file needs as much trust as a program.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.interpreters import mlir

from jaxrnn._files.arrays import BROKEN, MAX_ARRAY_BYTES, read_member
from jaxrnn._files.messages import first_line
from jaxrnn._files.stores import check_regular
from jaxrnn._files.writing import in_place_of
from jaxrnn._jax.context import exact_types
from jaxrnn._jax.versions import stable_kernels
from jaxrnn.errors import ModelError
from jaxrnn.runtime.compiled.native import BATCHED, Native, arguments_of, portable_arguments, structs
from jaxrnn.steps.schemas import COMPILED, SPEC, check, check_size, checked_spec, is_dtype, is_size, is_text
from jaxrnn.steps.specs import dtype_named
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.version import __version__

#: The limit of a file in bytes: more than the parameters of all recurrent networks.
_MOST = 4 * MAX_ARRAY_BYTES
#: The first line of a file, with the version of the format.
MAGIC = COMPILED + b", format 2\n"

#: The targets of custom calls in a function: the kernels that JAX keeps for later versions. A kernel of Mosaic for GPUs
#: contains a program for the host, and so does a function of TensorFlow.
TARGETS = stable_kernels() - {"mosaic_gpu_v2", "tf.call_tf_function"}
PORTABLE = "a compiled file contains operations of StableHLO and calls of JAX's kernels, without callbacks into Python"
#: The dialects of the other operations, and the operations among them that exchange data with the host.
_DIALECTS = {"builtin", "chlo", "func", "sdy", "stablehlo"}
_OF_HOST = {f"stablehlo.{name}" for name in ("infeed", "outfeed", "recv", "send")}


class Archive(NamedTuple):
    """The content of a file."""

    spec: StepSpec
    jax: str  # the version of JAX that compiled the functions
    params: Sequence[Any]  # the leaves of the parameters
    #: The state before the first frame, in the order of `StepSpec.carried`, each array up to broadcasting; None if a
    #: function ``init`` computes the state.
    start: Sequence[np.ndarray] | None
    functions: Mapping[str, bytes]  # names to serialised functions
    native: Native | None = None  # the machine code; None without machine code, or if it was not read
    digest: str = ""  # the SHA-256 of the file; empty before the file is written
    #: The SHA-256 of the ONNX file and of its external data, by name; only in files of `load_cached`.
    sources: Mapping[str, str] = MappingProxyType({})
    warnings: Sequence[str] | None = None  # of the first load; only in files of `load_cached`


def is_compiled(path: str | os.PathLike[str]) -> bool:
    """Return True if a file begins like a compiled file of any version; raise ModelError for an unreadable file."""
    try:
        with check_regular(path).open("rb") as opened:
            return opened.read(len(COMPILED)) == COMPILED
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}") from error


def write(path: Path, archive: Archive) -> Archive:
    """Write a file completely, or leave the disk unchanged; return the archive with the digest of the file."""
    groups = {"params": archive.params, "start": archive.start or ()}
    arrays = {group: [np.asarray(array) for array in entries] for group, entries in groups.items()}
    facts = {
        "jaxrnn": __version__,
        "jax": archive.jax,
        "spec": archive.spec.to_json(),
        "functions": list(archive.functions),
        **{group: [array.dtype.name for array in entries] for group, entries in arrays.items()},
    }
    if archive.sources:
        facts["sources"] = dict(archive.sources)
    if archive.warnings is not None:
        facts["warnings"] = list(archive.warnings)
    if archive.native is not None:
        facts["native"] = {"made": archive.native.made, "results": archive.native.results}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("manifest.json", json.dumps(facts, indent=1))
        for group, entries in arrays.items():
            for index, array in enumerate(entries):
                with opened.open(f"{group}/{index}.npy", "w", force_zip64=True) as entry:
                    # Raw bytes, because NumPy's format has no dtypes such as bfloat16.
                    np.lib.format.write_array(entry, array.view(f"V{array.dtype.itemsize}"), allow_pickle=False)
        for name, data in archive.functions.items():
            opened.writestr(f"functions/{name}", data)
        for name, data in ({} if archive.native is None else archive.native.code).items():
            opened.writestr(f"native/{name}", data)
    body = buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest()
    with in_place_of(path) as written:
        written.write_bytes(MAGIC + digest.encode() + b"\n" + body)
    return archive._replace(digest=digest)


def read(path: str | os.PathLike[str], native: bool = False) -> Archive:
    """Read a file, including machine code if ``native``; raise ModelError for a missing, damaged or different file."""
    try:
        data = check_regular(path, _MOST).read_bytes()
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}") from error
    if not data.startswith(MAGIC):
        other = data.partition(b"\n")[0][:80].decode(errors="replace")
        what = f"the first line is {other!r}" if data.startswith(COMPILED) else "it is another kind of file"
        raise ModelError(
            f"{os.fspath(path)} is not a model compiled by this version of jaxrnn: {what}; write it with "
            "'jaxrnn compile'"
        )
    end = data.find(b"\n", len(MAGIC))
    digest, body = data[len(MAGIC) : end], memoryview(data)[end + 1 :]  # without a copy of many megabytes
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ModelError(
            f"{os.fspath(path)} is damaged: the content does not match the digest in the file; compile it again"
        )
    try:
        with exact_types():
            return _content(body, native)._replace(digest=digest.decode())
    except (*BROKEN, LookupError, TypeError, OSError) as error:
        raise ModelError(
            f"{os.fspath(path)} matches its digest, but does not have the content of a compiled model: {error}; "
            "compile it again"
        ) from error


def load_function(archive: Archive, name: str) -> jax.export.Exported:
    """Return a function of a file after a check of the operations, the arguments and the results.

    A wrong function raises ModelError. A function that JAX cannot read raises ValueError, because the reason can be the
    version of JAX.
    """
    try:
        exported = jax.export.deserialize(bytearray(archive.functions[name]))
        refused = host_operations(exported)
    except Exception as error:  # JAX only checks versions
        raise ValueError(f"JAX cannot read it ({type(error).__name__}: {first_line(error)})") from None
    if exported.has_vjp():
        refused.append("a program for its derivative")  # which JAX would compile without a check
    if refused:
        raise ModelError(f"it needs {', '.join(refused)}, and {PORTABLE}")
    arguments = portable_arguments(archive.spec, name, *jax.export.symbolic_shape("time, batch"))
    given = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    if not _equal(given, (([*archive.params], *arguments), {})):
        raise ModelError("its arguments are not the parameters, the state and the inputs of the manifest")
    results = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    if name == "init":
        results, arguments = ({}, results), (structs(archive.spec.carried, archive.spec, ()),)
    match results:
        case (dict() as outputs, dict() as after) if name.startswith("flush"):  # the second are numbers of frames
            fits = _named(outputs, archive.spec) and _named(after, archive.spec)
        case (dict() as outputs, after):
            fits = _named(outputs, archive.spec) and _equal(after, arguments[0])
        case _:
            fits = False
    if not fits:
        raise ModelError("its results are not the outputs and the state of the manifest")
    return exported


def _equal(arrays: Any, described: Any) -> bool:
    """Return True if two trees have arrays of the same shapes and dtypes; symbolic sizes are compared as text."""
    one, other = (
        jax.tree.flatten(jax.tree.map(lambda each: (each.dtype.name, *map(str, each.shape)), tree))
        for tree in (arrays, described)
    )
    return one == other


def _named(arrays: Mapping[Any, Any], spec: StepSpec) -> bool:
    """Return True if arrays, or None in place of an array, have names of outputs."""
    names = {output.name for output in spec.outputs}
    return all(name in names and (array is None or hasattr(array, "shape")) for name, array in arrays.items())


def host_operations(exported: jax.export.Exported) -> list[str]:
    """Return the operations of a function, in all regions, that can run code of the host."""
    refused: set[str] = set()

    def visit(operation: Any) -> Any:
        name = operation.name
        if name == "stablehlo.custom_call":
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if target not in TARGETS:
                refused.add(f"the custom call {target!r:.60}")
        elif name in _OF_HOST or name.partition(".")[0] not in _DIALECTS:
            refused.add(f"the operation {name!r:.60}")
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        exported.mlir_module(serialized=False).operation.walk(visit)
    return sorted(refused)


def _content(body: memoryview, native: bool) -> Archive:
    with zipfile.ZipFile(io.BytesIO(body)) as opened:
        members = _Members({member.filename: member for member in opened.infolist()})
        claimed = sum(member.file_size for member in opened.infolist())
        if claimed > len(body) or any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError(f"its entries are compressed, or larger than the file ({claimed} bytes of {len(body)})")
        manifest = json.loads(opened.read(members["manifest.json"]))
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
        code, facts = None, manifest.get("native") if native else None
        if facts is not None:
            check_native(facts)
            for name in facts["results"]:
                arguments_of(spec, name)  # refuses unknown functions
            bodies = {name: opened.read(members[f"native/{name}"]) for name in facts["results"]}
            code = Native(facts["made"], facts["results"], bodies)
    sources = manifest.get("sources", {})
    check(sources, {}, "sources")
    for name, value in sources.items():
        check(value, is_text, f"sources.{name}")
    texts = manifest.get("warnings")
    if texts is not None:
        check(texts, [is_text], "warnings")
    first = None if "init" in functions else tuple(start)
    found = Archive(spec, manifest["jax"], tuple(params), first, functions, code, sources=sources, warnings=texts)
    if first is None:
        return found
    for each, array in zip(spec.carried, start, strict=True):
        if array.dtype != each.dtype:
            raise ValueError(f"state {each} begins with {array.dtype}")
        np.broadcast_to(array, [1 if isinstance(size, str) else size for size in each.shape or ()])
    return found


class _Members(dict[str, zipfile.ZipInfo]):
    """Entries of an archive, with names as keys."""

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"it lacks {name}")


def _array(opened: zipfile.ZipFile, member: zipfile.ZipInfo, dtype: np.dtype) -> np.ndarray:
    raw = read_member(opened, member)
    if raw.dtype.itemsize != dtype.itemsize:
        raise ValueError(f"{member.filename} holds elements of {raw.dtype.itemsize} bytes, not {dtype}")
    return raw.view(dtype)


#: The schema of a manifest.
_MANIFEST = {
    "jaxrnn": is_text,
    "jax": is_text,
    "params": [is_dtype],
    "start": [is_dtype],
    "functions": [is_text],
    "spec": SPEC,
}


def check_manifest(manifest: Any, functions: Collection[str]) -> StepSpec:
    """Check a manifest, and return the spec of the step; raise ValueError if an entry is wrong."""
    check(manifest, _MANIFEST, "")
    spec = checked_spec(manifest["spec"], "spec")
    if spec.joined and spec.batch_symbol is not None:
        raise ValueError("a state in vectors has a leading batch axis, not a batch dimension")
    for kind, arrays in (("inputs", spec.inputs), ("outputs", spec.outputs), ("state", spec.state)):
        if len({each.name for each in arrays}) < len(arrays):
            raise ValueError(f"spec.{kind} lists a name twice")
        for name, others in ((each, set(each.symbols) - {spec.batch_symbol}) for each in arrays if kind != "outputs"):
            if others:
                raise ValueError(f"{name}: the dimension {others.pop()!r} is not the batch of the step")
    if unknown := set(spec.constants) - {each.name for each in spec.inputs}:
        raise ValueError(f"the constant {min(unknown)!r} is not an input")
    flushes = spec.streams or "flush" in manifest["functions"]
    needed = [name + ending for name in ("step", "flush")[: 1 + flushes] for ending in ("", BATCHED)]
    missing = {*needed, *manifest["functions"]} - set(functions)
    if missing:
        raise ValueError(f"it lacks the function(s) {', '.join(sorted(missing))}")
    if "init" not in functions and len(manifest["start"]) != len(spec.carried):
        raise ValueError(f"it lacks the function init, or the {len(spec.carried)} arrays of the first state")
    return spec


def check_native(facts: Any) -> None:
    """Check the entry of a manifest about machine code; otherwise raise ValueError."""
    check(facts, {"made": {}, "results": {}}, "native")
    for name, value in facts["made"].items():
        check(value, is_text, f"native.made.{name}")
    for name, results in facts["results"].items():
        where = f"native.results.{name}"
        check(results, [{}], where)
        if not 0 < len(results) < 3:
            raise ValueError(f"{where} has {len(results)} groups of arrays")
        for array, described in (pair for each in results for pair in each.items()):
            check(described, [lambda _: True], f"{where}.{array}")
            if len(described) != 2:
                raise ValueError(f"{where}.{array} is not a pair of dtype and shape")
            check(described[0], is_dtype, f"{where}.{array}")
            check(described[1], [is_size], f"{where}.{array}")
            check_size(f"{where}.{array}", described[1], described[0])
