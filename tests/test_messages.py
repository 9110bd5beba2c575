"""How messages are worded, and what is said where a package is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import jaxrnn
from jaxrnn.errors import optional_package
from jaxrnn.messages import bytes_of, first_line, near, near_or_all, pairs_of


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


@pytest.mark.parametrize("package", ["pydantic", "omegaconf"])
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
