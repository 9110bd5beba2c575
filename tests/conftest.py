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

# The same examples in every run; HYPOTHESIS_PROFILE=default looks for others.
settings.register_profile("suite", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# An implicit promotion in the library is a mistake: ONNX has none.
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Nearly all the time goes into compiling programs that run once. Those that run in processes of their own, examples and
# commands among them, are compiled as users compile them.
jax.config.update("jax_disable_most_optimizations", True)


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
