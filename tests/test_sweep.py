"""All primitives in all types at odd values: ONNX Runtime and LiteRT compute what NumPy or JAX computes, or refuse.

`tools/sweep.py` has the values, the cases, and what engines compute otherwise.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from packages import needs_litert
from refusals import check_refused
from tiers import of_tiers
from verifier import assert_something

from jaxrnn.errors import UnsupportedError
from jaxrnn.jaxprs.primitives import PRIMITIVES
from tools import sweep

QUICK = ["bool", "int8", "int32", "float32"]
ENGINES = [sweep.OnnxRuntime, sweep.Rewritten, pytest.param(sweep.LiteRT, marks=needs_litert)]


@pytest.mark.parametrize("name", of_tiers(sweep.TYPES, QUICK))
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_compute_what_numpy_computes(engine, name):
    """Or differ where the page says so."""
    cases = sweep.cases_of(engine, name)
    found = sweep.run(engine(), cases, name)
    assert_something([each for results in found.values() for each in results])
    wrong = {}
    for case, results in found.items():
        kinds = sweep.differences(case, name, results) - sweep.known_differences(engine, case)
        if kinds:
            wrong[case] = kinds
    assert not wrong


@pytest.mark.parametrize("name", of_tiers(sweep.TYPES, ["int32", "float32"]))
def test_what_is_not_known_is_refused(name):
    """In LiteRT: by the name of the primitive and the type."""
    allowed = sweep.cases_of(sweep.LiteRT, name)
    refused = [case for case in sweep.CASES if case not in allowed and sweep.exists(case, name)]
    for case in refused:
        if name not in sweep.REFUSED_FORMS.get(case, "") or case == "shift_left":
            with pytest.raises(UnsupportedError, match="sweep.py.*: LiteRT "):
                sweep.run(sweep.Rewritten(), [case], name)
    assert refused


def test_every_primitive_has_a_case():
    """Types of a primitive in LiteRT are not claimed without a case, other than of linear algebra (`test_litert.py`)."""
    swept = set(map(sweep.primitive_of, sweep.CASES))
    claimed = {name for name, entry in PRIMITIVES.items() if entry.litert and entry.kind != "linear algebra"}
    later = {"log2", "one_minus_square", "polynomial"}  # of JAX 0.12
    assert claimed - swept - later - set(sweep.SPELLINGS) == set()
    elementwise = {name for name, entry in PRIMITIVES.items() if entry.kind == "elementwise" and not entry.alone}
    assert elementwise - swept - later - set(sweep.SPELLINGS) == set(sweep.NOT_SWEPT)


def test_a_primitive_without_types_is_refused():
    """With the primitive, the type, the line, and a remedy."""
    x = np.float32([1, 2])
    words = r"'nextafter' .*test_sweep.*: LiteRT is not known to compute it in float32.*; or write it with other functions"
    check_refused(UnsupportedError, words, sweep.Rewritten().run, lambda d: lax.nextafter(d["x"], d["x"]), {"x": x})
    words = r"'cos' .*in bfloat16, only in float16, float32: convert to float32"
    function = lambda d: {"y": jnp.cos(d["x"].astype(jnp.bfloat16)).astype(jnp.float32)}  # noqa: E731
    check_refused(UnsupportedError, words, sweep.Rewritten().run, function, {"x": x})
