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

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import UnsupportedError
from jaxrnn.jaxprs.primitives import PRIMITIVES
from tools import sweep

LITERT = ["bool", "int8", "int32", "float32"]
#: Except in LiteRT, all other types are nightly.
THOROUGH = ("bool", "uint8", "float16")
QUICK = {sweep.OnnxRuntime: ["float32"], sweep.Rewritten: ["int32", "float32"], sweep.LiteRT: LITERT}


def _engines():
    """Return each engine with each type."""
    for engine, quick in QUICK.items():
        for name in sweep.TYPES:
            if engine is not sweep.OnnxRuntime and name in ("uint64", "float64"):
                continue  # LiteRT has no case
            later = pytest.mark.thorough if engine is sweep.LiteRT or name in THOROUGH else pytest.mark.nightly
            marks = [] if name in quick else [later]
            yield pytest.param(engine, name, marks=marks + [needs_litert] * (engine is sweep.LiteRT))


@pytest.mark.parametrize(("engine", "name"), list(_engines()))
def test_engines_compute_what_numpy_computes(engine, name):
    """Or differ where the page says so."""
    cases = sweep.cases_of(engine, name)
    found = sweep.run(engine(), cases, name)
    assert_something([each for results in found.values() for each in results])
    wrong = {}
    for case, results in found.items():
        if kinds := sweep.differences(case, name, results) - sweep.known_differences(engine, case):
            wrong[case] = kinds
    assert wrong == {}


#: Types that LiteRT has; of others, single cases are refused below.
TYPES = [name for name in sweep.TYPES if name not in ("uint64", "float64", "complex64")]


@pytest.mark.parametrize("name", of_tiers(TYPES, ["int32", "float32"]))
def test_what_is_not_known_is_refused(name):
    """In LiteRT: by the name of the primitive and the type."""
    allowed = sweep.cases_of(sweep.LiteRT, name)
    refused = [case for case in sweep.CASES if case not in allowed and sweep.exists(case, name)]
    for case in refused:
        if name not in sweep.REFUSED_FORMS.get(case, "") or case == "shift_left":
            with pytest.raises(UnsupportedError, match=r"sweep\.py.*: LiteRT "):
                sweep.run(sweep.Rewritten(), [case], name)
    assert refused


#: Kinds of primitives that `test_litert.py` compares.
ELSEWHERE = ("linear algebra", "transform")


def test_every_primitive_has_a_case():
    """No type is claimed without a case."""
    swept = set(map(sweep.primitive_of, sweep.CASES))
    claimed = {name for name, entry in PRIMITIVES.items() if entry.litert and entry.kind not in ELSEWHERE}
    later = {"log2", "one_minus_square", "polynomial"}  # of JAX 0.12
    assert claimed - swept - later - set(sweep.SPELLINGS) == set()
    elementwise = {name for name, entry in PRIMITIVES.items() if entry.kind == "elementwise" and not entry.alone}
    assert elementwise - swept - later - set(sweep.SPELLINGS) == set(sweep.NOT_SWEPT)


def test_a_primitive_without_types_is_refused():
    """With the primitive, the type, the line, and a remedy."""
    x = np.float32([1, 2])
    words = (
        r"'nextafter' .*test_sweep.*: LiteRT is not known to compute it in float32.*; or write it with other functions"
    )
    check_refused(UnsupportedError, words, sweep.Rewritten().run, lambda d: lax.nextafter(d["x"], d["x"]), {"x": x})
    words = (
        r"'not' .*test_sweep.*: LiteRT is not known to compute it in int64, only in bool, .*, uint16: convert to uint16"
    )
    with exact_types():
        check_refused(UnsupportedError, words, sweep.Rewritten().run, lambda d: ~d["x"], {"x": np.int64([1])})
    for case, name in (("add", "uint64"), ("exp", "float64"), ("sqrt", "complex64")):
        with pytest.raises(UnsupportedError, match=f"{case}.*{'complex numbers' if name == 'complex64' else name}"):
            sweep.run(sweep.Rewritten(), [case], name)
    words = r"'convert_element_type' .*in bfloat16, only in .*: convert to float32; or"
    check_refused(UnsupportedError, words, sweep.Rewritten().run, lambda d: d["x"].astype(jnp.bfloat16), {"x": x})
