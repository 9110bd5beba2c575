"""A model's file and its data files, written so that whoever looks sees the old model or the new one, whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from jaxrnn.errors import UnsupportedError
from jaxrnn.onnx.origins import Address, Origin
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.writing.external import stored_tensors, write_data
from jaxrnn.onnx.writing.numbers import in_attribute, in_tensor
from jaxrnn.onnx.writing.wire import Edit, edited


def write_model(
    source: SourceFile,
    arrays: Mapping[str, np.ndarray],
    changed: frozenset[str],
    origins: Mapping[str, Origin],
    path: Path,
) -> None:
    """Write a model as it was read, with other numbers in some of its tensors.

    Args:
        source: the model as it was read.
        arrays: parameters by name, in the element types and shapes of their tensors.
        changed: the names of those that are not what was read.
        origins: where the tensors of all of them lie, by name.
        path: the file to write. Data files come beside it, and before it, under names that nobody reads.

    Raises:
        InputError: two tensors share bytes of a data file, and would need different ones.
        ModelError: a data file is not there any more, or has become too short.
        UnsupportedError: the model is a proto that is too large for a file.
    """
    if source.data is None:
        raise UnsupportedError("the model is larger than the 2 GB of a protobuf message; load it with external data")
    # In a folder of its own, a new file gets the rights that any file of the user's gets.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        scratch = Path(folder)
        created: list[Path] = []
        written = scratch / "model"
        written.touch()
        try:
            edits: dict[Address, Edit] = {}
            external: set[Address] = set()
            if source.folder is not None:
                tensors = list(stored_tensors(onnx.ModelProto.FromString(source.data), source.folder))
                external = {tensor.address for tensor in tensors}
                # Also the unchanged ones: the data file may have changed since.
                named = {origins[name].address: name for name in arrays if origins[name].address in external}
                data = {address: arrays[name] for address, name in named.items()}
                edits = write_data(tensors, data, named, source.folder, path, scratch, created)
            for name in changed:
                address, kind, _ = origins[name]
                if address not in external:
                    edits[address] = (in_tensor if kind is onnx.TensorProto else in_attribute)(arrays[name])
            with written.open("wb") as file:
                file.writelines(edited(memoryview(source.data), edits) if edits else [source.data])
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, path)
        except BaseException:
            # Gone only if it has taken its place, and then the data files are read.
            if written.exists():
                for each in created:
                    each.unlink(missing_ok=True)
            raise
