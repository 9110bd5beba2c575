"""Where the real models and recordings are, and the strictness that every test runs under."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import jax
import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
MODELS = Path(os.environ.get("JAXRNN_MODELS", ROOT.parent / "shared" / "models"))
AUDIO = Path(os.environ.get("JAXRNN_AUDIO", ROOT.parent / "shared" / "audio"))

# The same examples in every run, however long one takes; HYPOTHESIS_PROFILE=default looks for others.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# An implicit promotion in the library is a mistake: ONNX has none.
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Nearly all the time goes into compiling programs that run once, which takes less than half as long so. Programs in
# processes of their own, examples and commands among them, are compiled as users compile them.
jax.config.update("jax_disable_most_optimizations", True)
QUICK_COMPILER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
_flags = os.environ.get("XLA_FLAGS")
os.environ["XLA_FLAGS"] = f"{QUICK_COMPILER} {_flags or ''}"
jax.devices()  # XLA reads its flags here, once
if _flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = _flags


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests: the quick ones cover every feature, the thorough ones more cases of each."""
    parser.addoption("--tier", choices=("quick", "thorough", "all"), default="quick", help="which tests to run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the other tier; those that the command line names one by one run in any case."""
    tier = config.getoption("--tier")
    if tier == "all" or any("::" in argument for argument in config.args):
        return
    kept, left_out = [], []
    for item in items:
        is_thorough = item.get_closest_marker("thorough") is not None
        (kept if is_thorough == (tier == "thorough") else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """What one test has compiled, no other compiles again: not in another worker, in a child process or in a next run.

    The folder is pytest's own; ``pytest --cache-clear`` empties it, and ``-p no:cacheprovider`` does without.
    """
    if not hasattr(config, "cache"):
        return
    kept = {
        "jax_compilation_cache_dir": str(config.cache.mkdir("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in kept.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


@pytest.fixture(autouse=True, scope="module")
def settled_heap():
    """What a module leaves in JAX's caches is not looked through again by every collection after it."""
    yield
    gc.collect()
    gc.freeze()


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
