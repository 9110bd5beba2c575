"""The public surface, the cost of importing, and the registry against ONNX's own definitions."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import onnx
import pytest
from refusals import check_refused

import jaxrnn
from jaxrnn.errors import source_folder
from jaxrnn.onnx.operators import find_operator, operator_table
from jaxrnn.onnx.registry import REQUIRED, operator
from jaxrnn.version import JAX_RANGE
from tools.extras import COMMANDS, LEFT_OUT
from tools.mutants import MUTANTS, ROOT

PUBLIC = {
    "InputError",
    "JaxrnnError",
    "LimitError",
    "Limits",
    "MissingPackageError",
    "Model",
    "ModelError",
    "NodeError",
    "NonFiniteError",
    "Runner",
    "StateError",
    "StateVar",
    "StreamPool",
    "StaticValueError",
    "StoreError",
    "StreamError",
    "Streamed",
    "TrainingError",
    "UnsupportedError",
    "bounded",
    "export_onnx",
    "from_keras",
    "from_torch",
    "load",
    "load_cached",
    "load_compiled",
    "CompiledStepper",
    "save_compiled",
    "stream",
    "to_keras",
    "to_torch",
}
EVALUATION = {
    "METRICS",
    "Accumulator",
    "Column",
    "PairedComparison",
    "Evaluation",
    "Framed",
    "Item",
    "Metric",
    "NoValueError",
    "Offline",
    "Piece",
    "Pool",
    "Results",
    "System",
    "Workers",
    "build_metric",
    "compare",
    "evaluate",
    "evaluate_table",
    "from_folder",
    "from_manifest",
    "over_whole",
    "read_results",
    "write_report",
    "write_results",
}
MODEL = {
    "apply",
    "corrected",
    "declared_state",
    "dimensions",
    "fingerprint",
    "flush",
    "frame_recurrences",
    "growing_dimensions",
    "init",
    "initial_values",
    "inputs",
    "intermediates",
    "label",
    "opsets",
    "opened",
    "outputs",
    "pack",
    "params",
    "program",
    "proto",
    "run",
    "scan",
    "spec",
    "state",
    "static",
    "step",
    "step_file",
    "stream",
    "symbolic_inputs",
    "undeclared_pairs",
    "with_static",
}


#: Modules that users import from: packages of ``import jaxrnn``, and what pages name besides.
MODULES = (
    "jaxrnn",
    *(f"jaxrnn.{name}" for name in jaxrnn._PACKAGES),
    "jaxrnn.errors",
    "jaxrnn.evaluation.metrics",
    "jaxrnn.steps",
    "jaxrnn.training.losses",
    "jaxrnn.training.metrics",
)


@pytest.mark.parametrize("module", MODULES)
def test_completions_show_public_names_alone(module):
    """No ``TYPE_CHECKING``, no ``annotations``, no helper that a module imports for itself."""
    loaded = importlib.import_module(module)
    public = {*loaded.__all__, *(jaxrnn._PACKAGES if module == "jaxrnn" else ()), "__version__"}
    assert set(dir(loaded)) <= public
    assert set(loaded.__all__) <= set(dir(loaded))
    assert all(getattr(loaded, name) is not None for name in dir(loaded))


def test_pages_import_from_public_modules_alone():
    folder = pathlib.Path(jaxrnn.__file__).parent.parent
    imported = {
        found
        for page in (folder / "README.md", *(folder / "docs").rglob("*.md"))
        for found in re.findall(r"^(?:from|import) (jaxrnn[\w.]*)", page.read_text(), re.MULTILINE)
    }
    assert imported <= set(MODULES)


def test_public_names(models):
    assert set(jaxrnn.__all__) == PUBLIC
    assert all(getattr(jaxrnn, name).__doc__ for name in PUBLIC)
    from jaxrnn import evaluation

    assert set(evaluation.__all__) == EVALUATION
    assert all(getattr(evaluation, name).__doc__ for name in EVALUATION)
    loaded = jaxrnn.load(models / "dtln_1.onnx")
    assert {name for name in dir(loaded) if not name.startswith("_")} == MODEL
    shown = repr(loaded)
    assert all(
        word in shown for word in ("dtln_1.onnx", "input_2: float32[1, 1, 257]", "parameters", "tf_op_layer_stack_2")
    )


def test_names_that_moved_say_where():
    for name, module in jaxrnn._MOVED.items():
        assert name in importlib.import_module(module).__all__
        check_refused(AttributeError, rf"no attribute '{name}': it is now {module}\.{name}$", getattr, jaxrnn, name)
    check_refused(AttributeError, "no attribute 'lfiltr'$", getattr, jaxrnn, "lfiltr")


PACKAGES = {
    "audio",
    "demo",
    "evaluation",
    "export",
    "inspection",
    "nnx",
    "profiling",
    "signal",
    "streaming",
    "training",
    "verification",
}


@pytest.mark.thorough
def test_each_extra_is_tried_alone_or_left_out_for_a_reason():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tried = {name for names in COMMANDS for name in names.split("+")}
    assert tried | {*LEFT_OUT} == {*extras}
    assert not tried & {*LEFT_OUT}


def test_importing_is_light_and_packages_are_reached_from_the_first():
    """In a new process, where nobody has imported them yet. Packages show public names only."""
    code = (
        "import json, sys, jax; before = set(sys.modules); import jaxrnn; "
        "loaded, packages = sorted(set(sys.modules) - before), sys.argv[1:]; "
        "print(json.dumps([loaded, dir(jaxrnn), {name: dir(getattr(jaxrnn, name)) for name in packages}]))"
    )
    ran = subprocess.run([sys.executable, "-c", code, *PACKAGES], capture_output=True, check=True, text=True)
    loaded, names, inside = json.loads(ran.stdout)
    heavy = {"onnx", "onnx_ir", "flax", "matplotlib", "onnxruntime", "click", "rich"}
    assert not heavy & {name.split(".")[0] for name in loaded}
    assert sum(name.startswith("jaxrnn") for name in loaded) <= 3
    assert set(names) == PUBLIC | PACKAGES | {"__version__"}
    for package, shown in inside.items():
        assert shown == sorted(getattr(jaxrnn, package).__all__), package


@pytest.mark.thorough
def test_loading_leaves_sympy_to_those_who_use_it():
    """onnx-ir calls SymPy for arithmetic on dimensions, which finds the real package then."""
    code = (
        "import sys, jaxrnn; jaxrnn.load(jaxrnn.demo.PACKAGED); print('sympy' in sys.modules); import onnx_ir; "
        "print(onnx_ir.SymbolicDim('a') + 1); import sympy; print(sympy.Symbol('x') + 1)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ran.stdout.split("\n")[:3] == ["False", "a + 1", "x + 1"]


def test_the_command_says_what_to_install():
    code = "import sys; sys.modules['click'] = None; from jaxrnn.__main__ import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    outside = f"pip install -e '{source_folder()}[cli]'" if source_folder() else "pip install 'jaxrnn[cli]'"
    assert ran.stderr == f"error: the command line needs click: {outside}\n"


def test_a_jax_before_the_tested_range_is_refused_and_a_later_one_is_warned_of(monkeypatch):
    for version in ("0.9.2", "unknown"):
        monkeypatch.setattr(importlib.metadata, "version", lambda package, version=version: version)
        with pytest.raises(jaxrnn.MissingPackageError, match=rf"this is JAX {version}: pip install 'jax>=0.10,<0.13'"):
            jaxrnn._check_jax()
    for version in ("0.13.0", "0.13.0.dev20270101", "1.0"):
        monkeypatch.setattr(importlib.metadata, "version", lambda package, version=version: version)
        with pytest.warns(UserWarning, match=rf"this is JAX {version}: if an error looks strange, pip install"):
            jaxrnn._check_jax()
    for version in ("0.10.0", "0.12.99", "0.10.3.dev1"):
        monkeypatch.setattr(importlib.metadata, "version", lambda package, version=version: version)
        jaxrnn._check_jax()


def test_packaging_asks_for_the_tested_range():
    settings = tomllib.loads((pathlib.Path(jaxrnn.__file__).parent.parent / "pyproject.toml").read_text())
    first, untried = JAX_RANGE
    wanted = {f"{package}>={first},<{untried}" for package in ("jax", "jaxlib")}
    assert wanted <= set(settings["project"]["dependencies"])


DEFINED = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()}


@functools.cache
def histories():
    """The schema of each version of each operator."""
    found = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.deprecated:
            found.setdefault((schema.domain, schema.name), {})[schema.since_version] = schema
    return found


# Those of Microsoft's own, and a few that an older onnx has not, are held against ONNX Runtime in their own tests.
@pytest.mark.parametrize("key", sorted(DEFINED & set(operator_table())), ids=lambda key: "::".join(filter(None, key)))
def test_every_version_is_listed_and_every_attribute_read(key):
    """Each definition from opset 7 on has its entry, and its function takes just the attributes that ONNX defines."""
    (domain, name), history = key, histories()[key]
    newest_at_7 = max((version for version in history if version <= 7), default=0)
    expected = {version for version in history if version >= newest_at_7} if not domain else set(history)
    listed = operator_table()[key]
    assert expected <= set(listed)
    for version in expected:
        found = operator(name, domain, version, listed)
        defined = history[version].attributes
        assert set(defined) <= set(found.attributes), version
        required = {attribute for attribute, default in found.attributes.items() if default is REQUIRED}
        assert required <= {attribute for attribute, entry in defined.items() if entry.required}, version
        assert find_operator(domain, name, version) == found
        inputs = history[version].inputs
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        assert len([each for each in inputs if each.option != variadic]) <= len(found.slots) or found.variadic


def test_mutants_fit_the_code():
    """`python -m tools.mutants` changes a text that occurs once."""
    counts = {each.name: (ROOT / "jaxrnn" / each.file).read_text().count(each.old) for each in MUTANTS}
    assert counts == dict.fromkeys(counts, 1)
