"""Every public name has a docstring, an example and an entry in the reference; examples of docstrings run."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from onnx import helper
from small_models import graph_of, make_model
from test_package import MODULES

import jaxrnn
import jaxrnn.steps.specs
import jaxrnn.steps.stepper
from jaxrnn.demo import PACKAGED

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted((DOCS / "reference").glob("*.md"))
#: What mkdocstrings shows in its place.
ENTRY = re.compile(r"^::: (jaxrnn[\w.]*)$(?:\n    options:\n      members: \[(.*)\]$)?", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def resolved(path: str) -> Any:
    """What a dotted path stands for."""
    module, rest = path, []
    while True:
        try:
            return functools.reduce(getattr, rest, importlib.import_module(module))
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = [last, *rest]


def public_objects() -> dict[str, Any]:
    """Every public name by the shortest of its paths."""
    paths = [f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__]
    first: dict[Any, str] = {}
    for path in sorted(paths, key=lambda path: (path.count("."), path)):
        item = resolved(path)
        first.setdefault(id(item), path)
    return {path: resolved(path) for path in first.values()}


def members(item: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class of jaxrnn defines, or inherits from a private one."""
    for base in item.__mro__:
        if base.__module__.startswith("jaxrnn"):
            for name, member in vars(base).items():
                kinds = (property, functools.cached_property, classmethod, staticmethod)
                if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, kinds)):
                    continue
                # ``nnx.tabulate`` leaves methods of Flax on classes that it has looked at.
                if getattr(member, "__module__", base.__module__).startswith("jaxrnn"):
                    yield name, member


def code_of(page: Path) -> str:
    """The code of a page, and of the pages and scripts of this repository that it links to."""
    text = page.read_text(encoding="utf-8")
    code = PYTHON.findall(text)
    for target in re.findall(r"\]\(([^)#:]+)", text):
        linked = (page.parent / target).resolve()
        if linked.suffix == ".py":
            code.append(linked.read_text(encoding="utf-8"))
        elif linked.suffix == ".md" and linked.parent == DOCS:
            code += PYTHON.findall(linked.read_text(encoding="utf-8"))
    return "\n".join(code)


def examples_in(text: str | None) -> list[str]:
    """The indented blocks of code of a docstring, after ``::``."""
    blocks = re.findall(r"::\n\n((?:(?:    .*)?\n)*    .*)$", inspect.cleandoc(text or ""), re.MULTILINE)
    return [inspect.cleandoc("\n" + block) for block in blocks]


def test_every_public_name_has_docstring_example_and_entry():
    entries = {path: (page, shown) for page in PAGES for path, shown in ENTRY.findall(page.read_text(encoding="utf-8"))}
    by_object = {id(resolved(path)): entry for path, entry in entries.items()}
    missing = []
    for path, item in public_objects().items():
        if id(item) not in by_object:
            missing.append(f"{path}: no entry")
            continue
        page, shown = by_object[id(item)]
        code = "\n".join([code_of(page), *examples_in(item.__doc__)])
        if not re.search(rf"(?<!\w){path.rpartition('.')[2]}\b", code):
            missing.append(f"{path}: no example")
        if (inspect.isclass(item) or inspect.isfunction(item)) and not item.__doc__:
            missing.append(f"{path}: no docstring")
        # An entry that lists the members of a class leaves out those that are none of its users'.
        for name, member in members(item) if isinstance(item, type) else ():
            if shown and name not in shown.split(", "):
                continue
            if not inspect.getdoc(member):
                missing.append(f"{path}.{name}: no docstring")
            if not re.search(rf"\.{name}\b", code):
                missing.append(f"{path}.{name}: no example")
    assert not missing, "\n".join(missing)


def offline_model() -> jaxrnn.Model:
    """Sums over time, ``float32[S, 2]``, whose names are those of the examples."""
    node, shape = helper.make_node("CumSum", ["input", "axis"], ["output"]), ["S", 2]
    return jaxrnn.load(make_model(graph_of([node], {"input": shape}, {"output": shape}, {"axis": np.array(0)}, "sums")))


@pytest.mark.thorough
def test_examples_of_docstrings_run(tmp_path, monkeypatch):
    """Each in a namespace of its own, with what its reader has: the packaged denoiser, an offline model and arrays.

    Examples that need PyTorch or Keras stand on the pages of both, which run where these are installed.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copy(PACKAGED, "denoiser.onnx")
    model, x = jaxrnn.load("denoiser.onnx"), np.ones((4, 2), np.float32)
    modules = {"jaxrnn": jaxrnn, "jax": jax, "jnp": jnp, "np": np, "nnx": nnx}
    public = [
        (jaxrnn.steps, jaxrnn.steps.__all__),
        (jaxrnn.evaluation, ["Framed", "evaluate_table"]),
        (jaxrnn.audio, ["Frames", "Network", "Waveform"]),
        (jaxrnn.verification, ["verify"]),
    ]
    imported = {name: getattr(module, name) for module, names in public for name in names}
    models = {"model": model, "params": model.params, "offline": offline_model(), "denoiser": jaxrnn.nnx.Module(model)}
    spectra = {"frame": (1, 1, 129), "frames": (5, 1, 1, 129), "magnitudes": (3, 5, 129), "h": (1, 1, 80)}
    arrays = {"pulse": x, "last": x[:3], "microphone": [x, x], "a": x, "b": x}
    arrays |= {name: np.ones(shape, np.float32) for name, shape in spectra.items()}
    examples = [(path, code) for path, item in public_objects().items() for code in examples_in(item.__doc__)]
    examples = [(path, code) for path, code in examples if not path.endswith(("_torch", "_keras"))]
    assert len(examples) >= 15
    for path, code in examples:
        own = {"frames": x} if path == "jaxrnn.stream" else {}  # of the function that it defines
        exec(compile(code, path, "exec", dont_inherit=True), {**modules, **imported, **models, **arrays, **own})
