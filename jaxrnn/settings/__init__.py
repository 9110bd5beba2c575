"""Files of settings: a pydantic model of each command's keys, read by OmegaConf, with errors that name the key."""

from __future__ import annotations

from jaxrnn.errors import optional_package

# Here, since this runs before any module of the package imports them.
for _package in ("pydantic", "omegaconf"):
    with optional_package(_package, "files of settings", "train", "evaluate"):
        __import__(_package)
