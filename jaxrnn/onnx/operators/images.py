"""Decoding of image files, with Pillow on bytes that are known while tracing."""

from __future__ import annotations

import io

import numpy as np

from jaxrnn.errors import optional_package
from jaxrnn.onnx.registry import Static, since
from jaxrnn.onnx.values import Value

#: The mode that Pillow is asked for.
_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


def image_decoder(encoded_stream: Static, *, pixel_format: str = "RGB") -> Value:
    """ImageDecoder: uint8 pixels ``[height, width, channels]``, or ``[0, 0, channels]`` where the bytes are no image.

    Raises:
        MissingPackageError: Pillow is not installed.
        ValueError: the format is unknown, or the image has more pixels than Pillow's limit for decompression bombs.
    """
    if pixel_format not in _MODES:
        raise ValueError(f"pixel_format must be one of {', '.join(_MODES)}, not {pixel_format!r}")
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


OPERATORS = {"ImageDecoder": since(image_decoder, 20)}
