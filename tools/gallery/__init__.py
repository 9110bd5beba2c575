"""The gallery of the documentation: pictures, sounds and figures that are made when the site is built.

Each entry is a module that runs jaxrnn and keeps the results; the page shows code from the module itself. Results from
models and recordings of other projects are never part of the repository.

    python -m tools.gallery --out build/gallery
"""

from __future__ import annotations

from tools.gallery.entry import Entry, Figures, Item, Picture, Printed, Sound
from tools.gallery.making import NAMES, Made, kept, make
from tools.gallery.page import home, markdown

__all__ = [
    "NAMES",
    "Entry",
    "Figures",
    "Item",
    "Made",
    "Picture",
    "Printed",
    "Sound",
    "home",
    "kept",
    "make",
    "markdown",
]
