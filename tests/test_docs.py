"""The pages: code that runs and prints what they show, links, installation and the table of operators."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Set
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import matplotlib as mpl
import pytest
from conftest import MODELS
from jax.experimental.compilation_cache import compilation_cache
from tiers import of_tiers

from jaxrnn.onnx.operators import operator_table
from tools import reference_page
from tools.operators_page import entries, page, read_page
from tools.trials import Evidence, try_operators

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>needs|not run): (?P<words>[^>]+) -->\n+)?"
    r"```(?P<language>python|text|sh|yaml)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<content>.*?)^```$",
    re.M | re.S,
)
#: The first line of a page none of whose code runs without these packages.
NEEDS = re.compile(r"<!-- needs: ([^>]+) -->\n")


class Block(NamedTuple):
    """A block of code, of commands, of a file or of what code prints.

    Attributes:
        language: ``python``, ``sh``, ``yaml`` or ``text``.
        title: the name of a file.
        content: the lines.
        line: the line before the content.
        needs: the packages, programs and models that the block needs.
        not_run: why the block is not run; empty if it is.
    """

    language: str
    title: str | None
    content: str
    line: int
    needs: str
    not_run: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            found["title"],
            found["content"],
            text[: found.start("content")].count("\n"),
            *((found["words"] or "") if found["mark"] == mark else "" for mark in ("needs", "not run")),
        )
        for found in BLOCK.finditer(text)
    ]


def names_of(needs: str) -> list[str]:
    return [name for name in map(str.strip, needs.split(",")) if name]


def missing(needs: str) -> list[str]:
    """The packages, programs and models of ``name, name`` that are not there; ``a GPU`` always is missing."""

    def found(name: str) -> bool:
        if name.endswith(".onnx"):
            return (MODELS / name).is_file()
        return importlib.util.find_spec(name) is not None or shutil.which(name) is not None

    return [name for name in names_of(needs) if not found(name)]


def pages_with(language: str, *patterns: str) -> list[str]:
    return sorted(
        page.relative_to(ROOT).as_posix()
        for pattern in patterns
        for page in ROOT.glob(pattern)
        if f"\n```{language}\n" in page.read_text(encoding="utf-8")
    )


#: The pages whose code runs, and those whose commands run: all that have any.
PAGES = pages_with("python", "docs/**/*.md")
COMMANDED = pages_with("sh", "README.md", "docs/**/*.md")
#: Pages that train networks, for several seconds each, by functions that have tests of their own.
TRAINED = {"docs/training.md", "docs/offline-to-live.md", "docs/reference/training.md"}
#: Pages that are made when the site is built; `mkdocs build --strict` checks links to them.
MADE = {"changelog.md", "contributing.md", "security.md", "reference/cli.md"}


@pytest.fixture
def _settings_of_the_cache():
    """Put back the settings of JAX's cache of programs, which a page changes."""
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("_settings_of_the_cache")
@pytest.mark.parametrize("name", of_tiers(PAGES, [], {*PAGES} - TRAINED))
def test_code_runs_and_prints_what_the_page_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a page may write files
    run_page(ROOT / name, languages={"python", "text"})


@pytest.mark.nightly
@pytest.mark.usefixtures("_settings_of_the_cache")
@pytest.mark.parametrize("name", COMMANDED)
def test_commands_run(name, tmp_path, monkeypatch):
    """Code and commands run in the order of the page, in a fresh folder of sources.

    ``pip`` does nothing, because the packages are there; `test_install_lines_run` reads these lines. ``jaxrnn`` is the
    program of the sources.
    """
    folder, programs = tmp_path / "sources", tmp_path / "programs"
    for part in ("configs", "examples", "jaxrnn"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    programs.mkdir()
    for program, line in {"pip": "", "jaxrnn": f'exec "{sys.executable}" -m jaxrnn "$@"'}.items():
        (programs / program).write_text(f"#!/bin/sh\n{line}\n")
        (programs / program).chmod(0o755)
    paths = (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(folder)
    run_page(ROOT / name, languages={"python", "sh", "yaml"})


def run_page(page: Path, *, languages: Set[str]) -> None:
    """Run the blocks of some languages, code in one namespace; a block of text behind one of code is what it prints.

    ``<!-- needs: torch, onnxscript -->`` before a block, or as the first line of a page, leaves it out where a package,
    program or model is missing; the test then says so and counts as skipped after all other blocks have run.
    ``<!-- not run: the reason -->`` before commands always leaves them out. A block with a title is a file.
    """
    whole_page = NEEDS.match(page.read_text(encoding="utf-8"))
    if whole_page and missing(whole_page[1]):
        pytest.skip(f"{page.name} needs {', '.join(missing(whole_page[1]))}")
    namespace: dict[str, object] = {"__name__": "page"}
    printed: str | None = None
    left_out = {}
    for block in blocks_of(page):
        if block.language not in languages or block.not_run:
            continue
        if block.language == "text":
            if printed is not None:
                lines = [text.rstrip() for text in printed.splitlines()]
                assert lines == block.content.splitlines(), f"{page.name}, line {block.line}"
            continue
        printed = None
        if missing(block.needs):
            left_out[block.line] = missing(block.needs)
        elif block.language == "sh":
            run_commands(page, block)
        elif block.language == "yaml":
            if block.title:
                Path(block.title).write_text(block.content, encoding="utf-8")
        else:
            output = io.StringIO()
            # The line numbers of the page stand in tracebacks.
            code = compile("\n" * block.line + block.content, str(page), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(output):
                exec(code, namespace)
            printed = output.getvalue()
    if left_out:
        pytest.skip("; ".join(f"line {line} needs {', '.join(names)}" for line, names in left_out.items()))


def run_commands(page: Path, block: Block) -> None:
    """Run commands, the first of which that fails ends the test; models that they need are beside them."""
    for name in names_of(block.needs):
        if name.endswith(".onnx") and not Path(name).exists():
            Path(name).symlink_to(MODELS / name)
    ran = subprocess.run(
        ["bash", "-xeuo", "pipefail", "-c", block.content], capture_output=True, text=True, timeout=900
    )
    last = "\n".join((ran.stdout + ran.stderr).splitlines()[-30:])
    assert ran.returncode == 0, f"{page.name}, line {block.line}: {last}"


@pytest.mark.parametrize("name", sorted({*PAGES, *COMMANDED}))
def test_every_block_is_found_and_every_output_shown(name):
    """No block prints what the page does not show, and commands are those of a shell; a reason is a sentence."""
    blocks = blocks_of(ROOT / name)
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search("^ *```(bash|shell|console)", text, re.M), "a block of commands begins with ```sh"
    for language in ("python", "sh"):
        assert sum(block.language == language for block in blocks) == len(
            re.findall(rf"^ *```{language}\b", text, re.M)
        )
    for block, behind in zip(blocks, [*blocks[1:], None], strict=True):
        shown = behind is not None and behind.language == "text"
        place = f"{name}, line {block.line}"
        assert block.language != "python" or name not in PAGES or ("print(" in block.content) == shown, place
        assert not block.not_run or (block.language == "sh" and len(block.not_run.split()) > 3), place
    commands = "\n".join(block.content for block in blocks if block.language == "sh")
    parsed = subprocess.run(["bash", "-n"], input=commands, capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        assert "://" in target or path.exists() or path.relative_to(DOCS).as_posix() in MADE, target


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", PICTURES / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("which", of_tiers(["engines", "*"], ["engines"]))
def test_pictures_are_those_of_the_script(tmp_path, which):
    """The picture of the engines is drawn from the kept results of benchmarks, which change without the script."""
    script, kept = drawing(), {path.stem for path in PICTURES.glob(f"{which}.svg")}
    drawn = script.draw(tmp_path, script.PICTURES if which == "*" else kept)
    assert {path.stem for path in drawn} == kept
    for path in drawn:
        kept = (PICTURES / path.name).read_bytes()
        assert len(kept) < 90_000
        # Another matplotlib may place a glyph elsewhere.
        if b"Matplotlib v" not in kept or f"Matplotlib v{mpl.__version__}".encode() in kept:
            assert path.read_bytes() == kept, f"run docs/pictures/draw.py: {path.name} has changed"


def test_a_moving_picture_stands_still_for_readers_who_want_no_motion():
    rules = [line for line in (PICTURES / "moving.svg").read_text(encoding="utf-8").splitlines() if "animation" in line]
    assert len(rules) > 20
    for rule in rules:
        allowed, _, moves = rule.partition("@media(prefers-reduced-motion:no-preference)")
        assert "animation" not in allowed
        assert moves


#: Words that mark a module with a shortcut: private names of JAX, derivative rules and forms by platform.
SHORTCUTS = re.compile(r"jax\._src|xla_client|@jax\.custom_[jv][vj]p|partial\(jax\.custom|by_platform\(")


def test_every_shortcut_has_tests_that_exist():
    """The table names modules and tests that exist, and every module that `SHORTCUTS` finds."""
    _, table = (DOCS / "architecture.md").read_text(encoding="utf-8").split("\n## Shortcuts")
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    package, tests = DOCS.parent / "jaxrnn", DOCS.parent / "tests"
    named = set()
    for shortcut, where, equal, by in rows[2:]:
        modules, functions = re.findall(r"`([\w/]+\.py)`", where), re.findall(r"`(\w+\.py)::(\w+)`", by)
        assert modules, shortcut
        assert functions, shortcut
        assert equal, shortcut
        assert [name for name in modules if not (package / name).is_file()] == [], shortcut
        for name, function in functions:
            assert f"\ndef {function}(" in (tests / name).read_text(encoding="utf-8"), f"{name}::{function}"
        named.update(modules)
    found = (path for path in package.rglob("*.py") if SHORTCUTS.search(path.read_text(encoding="utf-8")))
    assert {path.relative_to(package).as_posix() for path in found} - named == set()


INSTALLED_BY = [page for page in sorted(ROOT.glob("docs/*.md")) if "\n```python\n" in page.read_text(encoding="utf-8")]
NAME = re.compile(r"([\w.-]+)(?:\[([^]]*)\])?")
#: The files that say how to install something: pages, settings, examples, and the head of the page of commands.
SAYING = [
    path
    for pattern in ("*.md", "docs/**/*.md", "configs/*.yaml", "examples/*.py", "tools/*.py", "tools/gallery/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
]


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def providers(package: str) -> set[str]:
    """The distributions that bring a package; where none is installed, that of its name."""
    return set(map(normalised, distributions().get(package, [package])))


@functools.cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def install_lines(text: str) -> list[list[str]]:
    """The arguments of each ``pip install`` of a text, in scripts between fences and in sentences between backticks."""
    scripts = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    sentences = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    commands = [line for script in scripts for line in script.splitlines()]
    commands += [" ".join(found.split()) for _, found in re.findall(r"(`+)([^`]+)\1", sentences)]
    found = [
        re.split(r'"| && ', command.split("pip install ", 1)[1])[0] for command in commands if "pip install " in command
    ]
    return [shlex.split(arguments, comments=True) for arguments in found]


def brought(requirement: str) -> set[str]:
    """The distributions that a requirement names; for the sources, those of jaxrnn and its extras."""
    found = NAME.match(requirement)
    if found is None:
        return set()
    name, extras = found.groups("")
    if name not in (".", "jaxrnn"):
        return {normalised(name)}
    optional = project()["optional-dependencies"]
    further = [*project()["dependencies"], *(each for extra in extras.split(",") if extra for each in optional[extra])]
    return {"jaxrnn"}.union(*map(brought, further))


def installed(text: str) -> set[str]:
    """The distributions that the commands of a page install, and jaxrnn with what it needs."""
    words = [word for line in install_lines(text) for word in line if not word.startswith("-")]
    return set().union(*map(brought, [".", *words]))


def test_install_lines_are_found():
    text = """Run `.venv/bin/pip install -e
'.[a,b]' && pytest` first.

```sh
pip install s3fs       # for s3://
    --command="pip install '/mnt/sources[train]' 'jax[tpu]'"
```

Requires ``pip install -e '.[audio]'``.

```text
some-codec is needed: pip install 'jaxrnn[audio]'
```
"""
    assert install_lines(text) == [["s3fs"], ["/mnt/sources[train]", "jax[tpu]"], ["-e", ".[a,b]"], ["-e", ".[audio]"]]


def from_sources() -> dict[str, set[str]]:
    """Each installation of jaxrnn by a page, with the pages; a folder on another machine stands for the sources."""
    found: dict[str, set[str]] = {}
    for path in SAYING:
        for words in install_lines(path.read_text(encoding="utf-8")):
            for word in words:
                folder, bracket, extras = word.partition("[")
                if folder == "jaxrnn" or folder.startswith((".", "/")):
                    place = folder if folder in (".", "jaxrnn") else "."
                    found.setdefault(f"{place}{bracket}{extras}", set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_jaxrnn_is_installed_from_its_sources():
    """No index has it: a page that asks an index for it would install nothing, or something else."""
    found = from_sources()
    assert len(found) > 10
    assert {word: pages for word, pages in found.items() if not word.startswith(".")} == {}


@pytest.mark.nightly
def test_install_lines_run(tmp_path):
    """pip takes the lines in a copy of the sources, and knows each extra; it installs nothing."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    backend, sources = tmp_path / "backend", tmp_path / "sources"
    (sources / "jaxrnn").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "jaxrnn/__init__.py", "jaxrnn/version.py"):
        shutil.copy(ROOT / name, sources / name)
    (needed,) = tomllib.loads((sources / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    fetched = subprocess.run([*pip, "--target", backend, needed], capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"{needed}, which builds jaxrnn, cannot be fetched: {fetched.stderr.splitlines()[-1]}")
    options = ["--verbose", "--dry-run", "--ignore-installed", "--no-deps", "--no-build-isolation", "--no-index"]
    lines = [argument for requirement in sorted(from_sources()) for argument in ("-e", requirement)]
    ran = subprocess.run(
        [*pip, *options, *lines],
        capture_output=True,
        text=True,
        cwd=sources,
        env={**os.environ, "PYTHONPATH": str(backend)},
    )
    assert ran.returncode == 0, ran.stderr
    assert "Would install jaxrnn-" in ran.stdout
    assert re.findall("does not provide the extra .*", ran.stdout + ran.stderr) == []


@pytest.mark.nightly
def test_the_site_is_built_by_the_script(tmp_path):
    """`mkdocs` finds the packages at the root as `python -m mkdocs` does, which has the root on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    build = [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--site-dir", tmp_path / "site"]
    ran = subprocess.run(
        build,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, "JAXRNN_GALLERY": "kept", "NO_MKDOCS_2_WARNING": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "site" / "index.html").is_file()


def imported(text: str) -> set[str]:
    """The packages that the code of a page imports, but for those of Python and jaxrnn."""
    names = set()
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module))
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"jaxrnn"}


@pytest.mark.parametrize("page", INSTALLED_BY, ids=lambda page: page.name)
def test_a_page_says_how_to_install_what_it_imports(page):
    text = page.read_text(encoding="utf-8")
    here = installed(text)
    assert [name for name in sorted(imported(text)) if here.isdisjoint(providers(name))] == []


PAGE = Path(__file__).parent.parent / "docs" / "operators.md"
AGAIN = "make it again: python -m tools.operators_page --write docs/operators.md"


def test_the_page_is_not_stale():
    written, registered = read_page(PAGE.read_text(encoding="utf-8")), entries()
    assert set(written) == set(registered) == set(operator_table()), AGAIN
    stale = {key: written[key][0] for key, entry in registered.items() if written[key][0] != entry}
    assert not stale, AGAIN
    assert all(facts[0] in ("yes", "no", "-") for _, facts in written.values())


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("LSTM", ("yes", "yes")),
        ("Conv", ("yes", "yes")),
        ("Floor", ("no", "yes")),
        ("And", ("-", "yes")),
        ("NonZero", ("-", "-")),
    ],
)
def test_facts_that_are_known(name, facts):
    assert read_page(PAGE.read_text(encoding="utf-8"))["", name][1] == facts


@pytest.mark.nightly
def test_a_trial_finds_the_rules_of_streams():
    found = try_operators([("", "Floor"), ("", "LSTM"), ("", "MaxPool")], {})
    assert all(evidence is not None and evidence.missing == () for evidence in found.values())


def test_a_page_is_read_as_it_is_written():
    """Operators that were not tried, that have no derivative, and primitives without a rule."""
    seen = {("", "Relu"): Evidence(True, ()), ("", "TopK"): Evidence(False, ("sort", "top_k")), ("", "NonZero"): None}
    read = read_page(page(seen))
    assert read["", "Relu"][1] == ("yes", "yes")
    assert read["", "TopK"][1] == ("no", "not `sort`, `top_k`")
    assert read["", "NonZero"][1] == ("-", "-")
    assert {key: entry for key, (entry, _) in read.items()} == entries()


def test_table_of_public_names():
    page = reference_page.PAGE.read_text(encoding="utf-8")
    assert page == reference_page.with_table(page), "make it again: python -m tools.reference_page --write"
