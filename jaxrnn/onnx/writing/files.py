"""Writing a model's file and its data files atomically: a reader sees the old model or the new one."""

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
    """Write a model as it was read, with new numbers in some of its tensors.

    Args:
        source: the model as it was read.
        arrays: all parameters by name, in the element types and shapes of their tensors.
        changed: the names of the parameters that differ from the file.
        origins: the origins of all parameters by name.
        path: the file to write. Data files are written before it, into its folder, under unused names.

    Raises:
        InputError: two tensors share bytes of a data file, but would need different ones.
        ModelError: a data file is missing or has become too short.
        UnsupportedError: the model is a proto that is too large for a file.
    """
    if source.data is None:
        raise UnsupportedError("the model is larger than the 2 GB of a protobuf message; load it with external data")
    # A new file in a folder of its own gets the user's default permissions.
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
                # Unchanged parameters too: the data file may have changed since it was read.
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
            # It is gone only after it has been moved into place, and then the data files are in use.
            if written.exists():
                for each in created:
                    each.unlink(missing_ok=True)
            raise
