"""New numbers in the message of a tensor, stored in the same way as the old ones.

The fields are those of TensorProto and AttributeProto in onnx.proto,
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto: a tensor has its elements in ``raw_data``, in little-endian
order, or in the typed field of its element type, where 16-bit floats are the integers that have their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx

from jaxrnn.onnx.writing.wire import BYTES, FIXED32, FIXED64, VARINT, Edit, Pieces, edited, fields_of, with_content


class _Storage(NamedTuple):
    """A typed field: its number, the wire type of one element, and how elements are encoded."""

    field: int
    wire_type: int
    encode: Callable[[np.ndarray], bytes]


def little_endian(array: np.ndarray) -> bytes:
    """The elements of an array, as ``raw_data`` and files of external data have them."""
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return bits.astype(bits.dtype.newbyteorder("<")).tobytes()


def _varints_of_bits(array: np.ndarray) -> bytes:
    """The bits of 16-bit elements as protobuf's varints, of at most three bytes each."""
    bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32)
    length = 1 + (bits >= 1 << 7) + (bits >= 1 << 14)
    place = np.arange(3)
    groups = (bits[:, None] >> 7 * place) & 0x7F
    groups |= np.where(place < length[:, None] - 1, 0x80, 0).astype(np.uint32)
    return groups.astype(np.uint8)[place < length[:, None]].tobytes()


_BITS = _Storage(onnx.TensorProto.INT32_DATA_FIELD_NUMBER, VARINT, _varints_of_bits)
_TYPED = {
    np.dtype(np.float16): _BITS,
    np.dtype(ml_dtypes.bfloat16): _BITS,
    np.dtype(np.float32): _Storage(onnx.TensorProto.FLOAT_DATA_FIELD_NUMBER, FIXED32, little_endian),
    np.dtype(np.float64): _Storage(onnx.TensorProto.DOUBLE_DATA_FIELD_NUMBER, FIXED64, little_endian),
}
_FLOATS = _Storage(onnx.AttributeProto.FLOATS_FIELD_NUMBER, FIXED32, little_endian)
_RAW = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


def in_tensor(array: np.ndarray) -> Edit:
    """An edit that gives a TensorProto these elements, which have its element type and shape."""

    def edit(tensor: memoryview) -> Pieces:
        if any(field.number == _RAW for field in fields_of(tensor)):
            return edited(tensor, {((_RAW, None),): lambda _: [little_endian(array)]})
        return _with_elements(tensor, array.reshape(-1), _TYPED[array.dtype])

    return edit


def in_attribute(array: np.ndarray) -> Edit:
    """An edit that gives an AttributeProto these ``floats``."""
    return lambda attribute: _with_elements(attribute, array, _FLOATS)


def _with_elements(message: memoryview, elements: np.ndarray, storage: _Storage) -> Pieces:
    """Replace the elements of a repeated field, whose entries may be packed, single, or a mix of both."""
    pieces: Pieces = []
    copied = taken = 0
    for field in fields_of(message):
        if field.number != storage.field:
            continue
        old = message[field.content : field.end]
        count = _count(old, storage.wire_type) if field.wire_type == BYTES else 1
        new = storage.encode(elements[taken : taken + count])
        head = message[field.start : field.content]
        entry = with_content(message, field, [new]) if field.wire_type == BYTES else [head, new]
        pieces += [message[copied : field.start], *entry]
        copied, taken = field.end, taken + count
    assert taken == elements.size, "checked when the file was read"
    return [*pieces, message[copied:]]


def _count(packed: memoryview, wire_type: int) -> int:
    if wire_type == VARINT:
        return int(np.count_nonzero(np.frombuffer(packed, np.uint8) < 0x80))
    return len(packed) // (4 if wire_type == FIXED32 else 8)
