"""What a small file may make jaxrnn allocate, unroll and repeat, and that one option raises each limit."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hostile_models import (
    HUGE,
    WISHES,
    calling,
    doubled_text,
    looped,
    model,
    nested,
    nested_in_place,
    node,
    numbers,
    recursive,
    sparse,
    value,
)

import jaxrnn
from jaxrnn import Limits
from jaxrnn.model.inspection import inspect_model

#: Small, so that what stays just below them takes no time.
SMALL = Limits(value_bytes=2**24, constant_bytes=2**22, evaluations=200)


def inputs_of(loaded):
    return {
        info.name: np.ones([1 if isinstance(s, str) else s for s in info.shape], info.dtype) for info in loaded.inputs
    }


@pytest.mark.parametrize("what", WISHES)
@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_wishes(what, compiled):
    """One error that names the node and the limit, compiled and node by node; looking for the state survives it."""
    make, limit = WISHES[what]
    proto = make()
    assert proto.ByteSize() < 20_000
    loaded = jaxrnn.load(proto, limits=SMALL)
    call = jax.jit(loaded.apply) if compiled else loaded.apply
    with pytest.raises(
        jaxrnn.LimitError, match=rf"node '.*jaxrnn\.Limits\({limit if limit != '_bytes' else '.*_bytes'}="
    ):
        call(loaded.params, inputs_of(loaded))


@pytest.mark.parametrize("what", WISHES)
def test_looking_at_wishes(what):
    """A command that only looks at the file ends with facts: what it asks for is not done."""
    assert inspect_model(WISHES[what][0](), limits=SMALL).problem is None


def test_limits_are_raised_by_name():
    proto = model(node("Expand", ["x", "s"]), tensors=numbers(s=np.array([2**20, 3])))
    with pytest.raises(jaxrnn.LimitError, match=r"float32\[1048576, 3\] takes 12 MiB, but no more than 1\.0 MiB"):
        jaxrnn.load(proto, limits=Limits(value_bytes=2**20))(x=np.ones((1, 3), np.float32))
    allowed = jaxrnn.load(proto, limits=Limits(value_bytes=2**24))
    assert allowed(x=np.ones((1, 3), np.float32))["y"].shape == (2**20, 3)
    for wrong in (0, -1, 1.5, True, "8 GB"):
        with pytest.raises(jaxrnn.InputError, match="value_bytes must be a whole number from 1 on"):
            Limits(value_bytes=wrong)


def test_functions():
    """Copies of functions are counted before they are made, and circles are found."""
    x = np.ones((1, 3), np.float32)
    with pytest.raises(jaxrnn.LimitError, match=r"10,000,000,000 nodes.*Limits\(nodes="):
        jaxrnn.load(calling(10, 10))
    with pytest.raises(jaxrnn.LimitError, match="64 nodes"):
        jaxrnn.load(calling(3, 4), limits=Limits(nodes=62))
    np.testing.assert_array_equal(jaxrnn.load(calling(3, 4), limits=Limits(nodes=63))(x=x)["y"], x)
    np.testing.assert_array_equal(jaxrnn.load(calling(40, 1))(x=x)["y"], -x)
    with pytest.raises(jaxrnn.ModelError, match="deep"):
        jaxrnn.load(calling(2000, 1))
    for count in (1, 3):
        with pytest.raises(jaxrnn.ModelError, match="calls itself"):
            jaxrnn.load(recursive(count))


def test_depth():
    x, yes = np.full((1, 3), -2, np.float32), np.array(True)
    deep = jaxrnn.load(nested(12))
    for call in (deep.apply, jax.jit(deep.apply)):
        np.testing.assert_array_equal(call(deep.params, {"x": x, "c": yes})["y12"], -x)
    for proto in (nested(13), nested(20), nested_in_place(100), nested(20, in_functions=True)):
        with pytest.raises(jaxrnn.ModelError, match="deep"):
            jaxrnn.load(proto)
    with pytest.raises(jaxrnn.LimitError, match="evaluations"):  # each level is traced more than once
        jaxrnn.load(looped(2, depth=10), limits=SMALL)(x=x)


def test_text():
    with pytest.raises(jaxrnn.LimitError, match=r"StringConcat.*constant_bytes"):
        jaxrnn.load(doubled_text(40), limits=SMALL)(x=np.ones((1, 3), np.float32))


def test_state_of_huge_inputs():
    huge = [value(name, HUGE, 3) for name in ("x", "h")]
    with pytest.raises(jaxrnn.LimitError, match="constant_bytes"):
        _ = jaxrnn.load(model(node("Add", ["x", "h"]), inputs=huge)).state


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_tensors(constant, places):
    """They are tensors like others, dense: a parameter, where a dense one is."""
    loaded = jaxrnn.load(sparse((2, 3), places, [2.0, 7.0], constant=constant))
    dense = np.array([[0, 2, 0], [0, 0, 7]], np.float32)
    np.testing.assert_array_equal(loaded()["y"], dense + 1)
    np.testing.assert_array_equal(loaded.params["s"], dense)
    gradient = jax.grad(lambda params: loaded.apply(params, {})["y"].sum())(loaded.params)
    np.testing.assert_array_equal(gradient["s"], np.ones((2, 3)))


@pytest.mark.parametrize(
    ("shape", "places", "words"),
    [
        ((HUGE, 3), [1, 5], "Limits\\(constant_bytes="),
        ((2**14, 2**14), [1, 5], "Limits\\(constant_bytes="),
        ((2, 3), [1, 6], "outside of the shape"),
        ((2, 3), [1, -1], "outside of the shape"),
        ((2, 3), [[0, 3], [0, 0]], "outside of the shape"),
        ((2, 3), [1], r"indices of shape \[2\]"),
        ((2, -3), [1, 5], "negative"),
    ],
)
def test_sparse_tensors_that_are_refused(shape, places, words):
    with pytest.raises(jaxrnn.ModelError, match=words):
        jaxrnn.load(sparse(shape, places, [2.0, 7.0]))


def test_exporting_a_sparse_parameter(tmp_path):
    """It lies nowhere in the file as what it is now."""
    loaded = jaxrnn.load(sparse((2, 3), [1, 5], [2.0, 7.0]))
    with pytest.raises(jaxrnn.JaxrnnError, match="'s'"):
        jaxrnn.export_onnx(loaded, {**loaded.params, "s": loaded.params["s"] + 1}, tmp_path / "new.onnx")
    assert not list(tmp_path.iterdir())
