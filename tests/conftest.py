"""Where the real models and recordings are, and the strictness that every test runs under."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings
from quick_compiling import compile_once, compile_quickly, keep_compiled
from tiers import TIERS, tier_of

ROOT = Path(__file__).parent.parent
MODELS = Path(os.environ.get("JAXRNN_MODELS", ROOT.parent / "shared" / "models"))
AUDIO = Path(os.environ.get("JAXRNN_AUDIO", ROOT.parent / "shared" / "audio"))

# The same examples in every run, however long one takes; HYPOTHESIS_PROFILE=default looks for others.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# An implicit promotion in the library is a mistake: ONNX has none.
jax.config.update("jax_numpy_dtype_promotion", "strict")

compile_quickly()
compile_once()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`: quick tests cover every feature, thorough tests every network, nightly tests more of everything."""
    parser.addoption("--tier", choices=(*TIERS, "all"), action="append", help="which tests to run; may be repeated")
    parser.addoption("--cases", type=int, metavar="N", help="run only the first N cases of each test")
    parser.addoption("--no-skips", action="store_true", help="fail tests that would be skipped")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other tiers; tests that the command line names one by one run in any case."""
    if any("::" in argument for argument in config.args):
        return
    tiers, cases = config.getoption("--tier") or TIERS[:1], config.getoption("--cases")
    kept, left_out, counts = [], [], Counter[str]()
    for item in items:
        wanted = "all" in tiers or tier_of(item) in tiers
        name = item.nodeid.partition("[")[0]
        counts[name] += wanted
        (kept if wanted and (cases is None or counts[name] <= cases) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """With `--no-skips`, a test that is skipped has failed: it compared nothing."""
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome, report.longrepr = "failed", f"skipped: {report.longrepr}"
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Keep what child processes compile."""
    keep_compiled(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """What is imported and collected stays: no collection of garbage looks through it.

    Tracing makes objects by the million, of which hardly any are garbage: `settled_heap` collects after each module.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def settled_heap():
    """What a module leaves in JAX's caches is not looked through again by every collection after it."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_new_thread() -> Iterator[None]:
    """The test leaves no thread: one that is about to end may end, and a pool or event loop in a cycle is collected."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    # A thread that Python did not start, such as XLA's, has no end that could be waited for.
    new = [each for each in set(threading.enumerate()) - before if type(each).__name__ != "_DummyThread"]
    for each in new:
        each.join(10)
    assert not [each.name for each in new if each.is_alive()]


@pytest.fixture(autouse=True, scope="session")
def installed_from_pypi():
    """Messages show how users install jaxrnn; the tests run on a folder of source."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxrnn.errors.source_folder", lambda: None)
        yield


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of real models; without it the test is skipped."""
    if not MODELS.is_dir():
        pytest.skip(f"no models at {MODELS}; set JAXRNN_MODELS")
    return MODELS


@pytest.fixture(scope="session")
def audio() -> Path:
    """The folder of real recordings; without it the test is skipped."""
    if not AUDIO.is_dir():
        pytest.skip(f"no recordings at {AUDIO}; set JAXRNN_AUDIO")
    return AUDIO


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests of pages in a process."""
    from browsers import started

    yield from started(tmp_path_factory.mktemp("profile"))


@pytest.fixture
def few_draws(monkeypatch):
    """Confidence intervals of a tenth of the draws, for tests of what is written and not of the intervals."""
    monkeypatch.setattr("jaxrnn.evaluation.summary.DRAWS", 100)


@pytest.fixture
def wrong_compiled_files(monkeypatch):
    """Let every compiled file come back with other parameters than were written."""
    import jaxrnn.runtime.compiled

    load = jaxrnn.runtime.compiled.load_compiled

    def load_wrongly(path, **how):
        compiled = load(path, **how)
        compiled.params = tuple(1.01 * array for array in compiled.params)
        return compiled

    monkeypatch.setattr(jaxrnn.runtime.compiled, "load_compiled", load_wrongly)
