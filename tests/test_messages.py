"""How messages are worded, and what is said where a package is missing."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from onnx import TensorProto, helper
from small_models import make_model
from tiers import of_tiers

import jaxrnn
from jaxrnn._files.messages import bytes_of, first_line, near, near_or_all, pairs_of, whole_message
from jaxrnn._files.progress import progress_bar
from jaxrnn.errors import optional_package


def test_sizes_names_and_errors():
    sizes = {3: "3 bytes", 2048: "2.0 KiB", 40 << 20: "40 MiB", 3 << 61: "6.0 EiB"}
    assert {size: bytes_of(size) for size in sizes} == sizes
    assert pairs_of({"S": 20, "batch": 1}) == "S=20, batch=1"
    assert near("HIDEN", ["hidden", "input"]) == " (did you mean 'hidden'?)"
    assert near_or_all("?", ["hidden", "input"]) == "; there is: hidden, input"
    assert near_or_all("?", []) == ""
    assert first_line(ValueError("\n one \ntwo\n")) == "one "
    assert first_line(AssertionError()) == "AssertionError"
    assert first_line(ValueError("x" * 20), 10) == "xxxxxxx..."
    assert whole_message(ValueError("\n one \n\ntwo\n")) == "one\n\ntwo"
    assert whole_message(AssertionError(), "; do that") == "AssertionError; do that"


def test_what_jax_explains_is_not_cut_off():
    """The first line says where, and all that JAX says stands after it."""

    def drifts(x):
        return lax.scan(lambda carry, _: (carry.astype(jnp.float16), None), x, length=2)[0]

    node = helper.make_node("Drift", ["x"], ["y"], name="drift", domain="own")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    model = jaxrnn.load(
        make_model(helper.make_graph([node], "drift", infos[:1], infos[1:]), "own"),
        operators={("own", "Drift"): drifts},
    )
    with pytest.raises(jaxrnn.NodeError) as raised:
        model.apply({}, {"x": jnp.zeros(2)})
    _holds_its_cause(raised.value, "node 'drift' (own::Drift-1) on float32[2]: scan body function carry input")
    for function in (lambda x: x if x.shape[0] > 3 else 2 * x, np.asarray):
        with pytest.raises(jaxrnn.StreamError) as raised:
            jaxrnn.stream(function, jnp.zeros(5), axes=0)
        _holds_its_cause(raised.value, "the function cannot be traced")


def _holds_its_cause(error, beginning):
    first, *rest = str(error).splitlines()
    cause = str(error.__cause__).strip().splitlines()
    assert len(cause) > 1
    assert first.startswith(beginning)
    assert cause[0].strip(" .") in first
    assert rest == cause[1:]


def test_a_missing_package_says_what_installs_it():
    said = {
        (
            "one",
            "this",
            "train",
            "evaluate",
        ): "one is needed for this: pip install 'jaxrnn[train]' or pip install",
        ("one", "this"): "one is needed for this: pip install one",
        (None, "a page", "evaluate"): "not_there is needed for a page: pip install 'jaxrnn[evaluate]'",
    }
    for arguments, words in said.items():
        with pytest.raises(jaxrnn.MissingPackageError) as raised, optional_package(*arguments):
            import not_there  # noqa: F401  # pyright: ignore[reportMissingImports]
        assert str(raised.value).startswith(words)


@pytest.mark.parametrize("package", of_tiers(["pydantic", "omegaconf"], ["omegaconf"]))
def test_commands_that_read_settings_name_a_missing_package(tmp_path, package):
    (tmp_path / "a.yaml").write_text("model: a.onnx\n")
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from jaxrnn.cli import main\n"
        "for command in ('finetune', 'evaluate'):\n"
        "    main([command, 'a.yaml'], standalone_mode=False)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
    )
    install = "pip install 'jaxrnn[train]' or pip install 'jaxrnn[evaluate]'"
    line = f"error: {package} is needed for files of settings: {install}"
    assert run.stderr.splitlines() == [line] * 2


def test_progress_is_shown_where_it_is_wanted(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for shown, terminal, texts in (
        (None, True, {"counting", "at start", "at item 3"}),
        (None, False, set()),
        (True, False, {"counting", "at item 3"}),
        (False, True, set()),
    ):
        stream = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("counting", 3, "at {task.fields[place]}", shown=shown, place="start") as show:
            for done in (1, 2, 3):
                show(done, place=f"item {done}")
        written = stream.getvalue()
        assert {text for text in ("counting", "at start", "at item 3") if text in written} == texts
        assert bool(written) == bool(texts)
