"""Branches on lengths: a comparison that depends on the length is refused, and so is a trace that shows no comparison.

The two defences are tested separately: without the first, this module counts as a part of JAX, whose comparisons of
sizes JAX answers with False.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import node
from refusals import check_refused
from streaming_verifier import check_values
from test_stream_sizes import PARTS, graph_of

import jaxrnn
from jaxrnn._jax import sizes
from jaxrnn.answers import Unknown
from jaxrnn.streaming import comparison
from jaxrnn.streaming.dimensions import is_zero, value_of
from jaxrnn.streaming.lengths import Lengths

X = jax.ShapeDtypeStruct((20, 3), np.float32)
A, B = np.float32(2), np.float32(3)


def sums_of_two(x):
    return lax.reduce_window(x, 0.0, lax.add, (2, 1), (2, 1), "VALID")


def with_an_odd_frame_repeated(x):
    if x.shape[0] % 2 == 1:
        x = jnp.concatenate([x, x[-1:]])
    return sums_of_two(x)


def beside_attention(x):
    numbers = jnp.arange(x.shape[0])
    return jnp.where(jnp.abs(numbers[:, None] - numbers) <= 2, x @ x.T, 0) @ x


def matched(x):
    match x.shape[0]:
        case 13:
            return x * A
    return x * B


def by(answer):
    """A function whose result depends on an answer about the size."""
    return lambda x: x * (A if answer(x) else B)


@functools.lru_cache
def cached(size):
    return A if size == 13 else B


#: Functions, and the remedy.
BRANCHES = {
    "an odd frame repeated": (with_an_odd_frame_repeated, "multiple=2"),
    "an odd frame beside attention": (
        lambda x: beside_attention(x) + by(lambda x: x.shape[0] % 2 == 1)(x),
        "multiple=2",
    ),
    "a remainder that is 0": (by(lambda x: not x.shape[0] % 4), "multiple=4"),
    "a single frame": (by(lambda x: x.shape[0] == 1), r"\['S >= 2'\]"),
    "any other number": (by(lambda x: x.shape[0] != 13), r"\['S >= 14'\]"),
    "a number that no trace has": (by(lambda x: x.shape[0] == 57), r"\['S >= 58'\]"),
    "the number in front": (by(lambda x: np.int64(13) == x.shape[0]), r"\['S >= 14'\]"),
    "one of two numbers": (by(lambda x: x.shape[0] in (13, 24)), r"\['S >= 25'\]"),
    "a short range": (by(lambda x: x.shape[0] in range(5)), r"\['S >= 5'\]"),
    "a shape": (by(lambda x: x.shape == (13, 3)), r"\['S >= 14'\]"),
    "the number of elements": (by(lambda x: x.size == 3), r"\['S >= 2'\]"),
    "a quotient": (by(lambda x: x.shape[0] // 8 == 3), r"\['S >= 32'\]"),
    "a float": (by(lambda x: x.shape[0] == 13.0), r"\['S >= 14'\]"),
    "a match statement": (matched, r"\['S >= 14'\]"),
    "inside of transformations": (jax.jit(jax.vmap(by(lambda x: x.shape[0] == 13), 1, 1)), r"\['S >= 14'\]"),
    "a dict": (lambda x: x * {13: A}.get(x.shape[0], B), "looked up in a dict or set"),
    "a set": (by(lambda x: x.shape[0] in {13, 24}), "looked up in a dict or set"),
    "a cache": (lambda x: x * cached(x.shape[0]), "looked up in a dict or set"),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_comparisons_that_depend_on_the_length(name):
    """The message has the line and the remedy."""
    function, remedy = BRANCHES[name]
    said = "" if remedy.startswith("looked") else "depends on the length of the recording.*"
    words = rf"\(test_stream_equality.py:\d+ .*{said}{remedy}"
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, X, axes=0)


@pytest.mark.parametrize("name", BRANCHES)
def test_traces_at_single_lengths(name, monkeypatch):
    """The traces alone find the same functions, with two lengths in the message."""
    monkeypatch.setattr(sizes, "_JAX", sizes._JAX | {__name__})
    function, _ = BRANCHES[name]
    words = (
        r"depends on the length in a way .*: at \d+ frames, output .*differs at [\d, ]+ and agrees at [\d, ]+ frames"
    )
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, X, axes=0)


def of_longer_ones(x):
    try:
        long = x.shape[0] > 20
    except Exception:
        long = False
    return x * (A if long else B)


def of_a_first_number(at_a_length, at_all_lengths, x):
    """The first row is one of two numbers, or stays, by whether the length is known."""
    first = at_a_length if isinstance(x.shape[0], int) else at_all_lengths
    return x if first is None else jnp.where((jnp.arange(x.shape[0]) == 0)[:, None], np.float32(first), x)


def test_branches_without_a_comparison():
    """Only traces at single lengths show them; other operations for the same numbers are no difference."""
    one, two = by(lambda x: isinstance(x.shape[0], int)), of_longer_ones
    check_refused(jaxrnn.StreamError, "at 1 frames, output differs by .*pad outside", jaxrnn.stream, one, X, axes=0)
    check_refused(jaxrnn.StreamError, "at 24 frames, .*differs at 24, 100 and", jaxrnn.stream, two, X, axes=0)
    beside = lambda x: {"a": jnp.tanh(x), "b": one(x)}  # noqa: E731
    check_refused(jaxrnn.StreamError, r"output\['b'\] differs by .*pad outside", jaxrnn.stream, beside, X, axes=0)
    for inside, outside in ((np.nan, None), (None, np.nan), (np.inf, -np.inf), (np.nan, np.inf)):
        odd = functools.partial(of_a_first_number, inside, outside)
        check_refused(jaxrnn.StreamError, "output differs by inf", jaxrnn.stream, odd, X, axes=0)
    same = lambda x: 2 * x if isinstance(x.shape[0], int) else x + x  # noqa: E731
    check_values(same, X.shape)


def of_few_lengths(x):
    if isinstance(x.shape[0], int) and x.shape[0] not in (2, 8):
        raise ValueError("not this length")
    return 2 * x


def test_lengths_at_which_the_function_raises_an_error():
    """They are not compared, and count as nothing: too few others are a refusal."""
    check_values(of_few_lengths, X.shape, lengths=(2, 8))
    words = "not compared at single lengths: ValueError: not this length"
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, of_few_lengths, X, axes=0, constraints=["S >= 4"])


def of_a_domain(a, b, inputs):
    """Finite for a level above 40 only, and multiplied by one of two numbers, by whether the length is known."""
    x, level = inputs
    return {"y": jnp.sqrt(level - 40) * x * np.float32(a if isinstance(x.shape[0], int) else b), "same": x + 1}


def test_outputs_without_finite_numbers_are_said_and_values_of_the_caller_decide():
    struct, axes = (X, jax.ShapeDtypeStruct((), np.float32)), (0, None)
    equal, wrong = (functools.partial(of_a_domain, 1, b) for b in (1, 2))
    said = [jaxrnn.stream(each, struct, axes=axes).table() for each in (equal, wrong)]
    assert ["not compared     output['y']" in each for each in said] == [False, True]
    check_refused(jaxrnn.StreamError, r"output\['y'\] differs", jaxrnn.stream, wrong, (X, np.float32(50)), axes=axes)


def test_a_model_takes_values_for_the_comparison(monkeypatch):
    monkeypatch.setattr(comparison.TraceComparison, "_by_computation", lambda *_: Unknown("numbers decide"))
    nodes = [
        helper.make_node("Sub", ["level", "least"], ["above"]),
        helper.make_node("Sqrt", ["above"], ["scale"]),
        helper.make_node("Mul", ["x", "scale"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(np.float32(40), "least")]
    inputs = [helper.make_tensor_value_info("x", 1, ["time"]), helper.make_tensor_value_info("level", 1, [])]
    outputs = [helper.make_tensor_value_info("y", 1, ["time"])]
    graph = helper.make_graph(nodes, "domain", inputs, outputs, tensors)
    model = jaxrnn.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    said = [model.stream(inputs=given).table() for given in ({}, {"level": 50})]
    assert ["not compared" in each for each in said] == [True, False]
    check_refused(jaxrnn.InputError, "'x': it has a time axis", model.stream, inputs={"x": [1.0]})
    check_refused(jaxrnn.InputError, "not 'levle'.*did you mean", model.stream, inputs={"levle": 1.0})
    check_refused(
        jaxrnn.InputError, r"must be float32\[\], not float64\[2\]", model.stream, inputs={"level": np.ones(2)}
    )


def decided(x):
    n = x.shape[0]
    assert n == x.shape[0]
    assert n != n + 1
    assert 2 * n != 13
    assert n not in (0, -1, None, "S", 2.5)
    assert n // 2 * 2 + n % 2 == n
    assert x.shape == (n, 3)
    assert n
    return jnp.cumsum(x, 0)


def of_sums(x):
    return x.sum(0) * jnp.where(jnp.asarray(x.shape[0]) == 13, A, B)


REMEDIES = {
    "decided for all lengths": (decided, {}),
    "a multiple": (with_an_odd_frame_repeated, {"constraints": ("mod(S, 2) == 0",), "lengths": (2, 8, 14)}),
    "a least length": (BRANCHES["one of two numbers"][0], {"constraints": ("S >= 25",), "lengths": (25, 30)}),
    "padding outside": (lambda x: sums_of_two(jnp.pad(x, ((0, x.shape[0] % 2), (0, 0)))), {}),
    "a frame by number": (lambda x: jnp.where((jnp.arange(x.shape[0]) == 12)[:, None], x * A, x), {"lengths": (13, 8)}),
    # The end of the stream decides.
    "a number of JAX": (of_sums, {"lengths": (12, 13, 14)}),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_remedies(name):
    function, options = REMEDIES[name]
    check_values(function, X.shape, **options)


def test_a_number_of_jax_in_every_frame_is_known_at_the_end_only():
    by_number = lambda x: jnp.where(x.shape[0] == jnp.asarray(13), x * A, x * B)  # noqa: E731
    check_refused(jaxrnn.StreamError, "known only when the stream has ended", jaxrnn.stream, by_number, X, axes=0)


def test_sizes_of_other_scopes_compare_as_before():
    """JAX's caches and a caller's exports hold sizes of other traces."""
    (other,) = jax.export.symbolic_shape("T")

    def function(x):
        assert (other == 3, other == other, {other: 1}[other]) == (False, True, 1)
        return jnp.cumsum(x)

    assert jaxrnn.stream(function, jax.ShapeDtypeStruct((8,), jnp.float32), axes=0).delay == 0


def test_other_code_compares_as_before():
    """Outside of a trace of `stream`, JAX's answers are unchanged."""
    jaxrnn.stream(jnp.tanh, X, axes=0)
    (size,) = jax.export.symbolic_shape("S")
    assert (size == 13, size != 13, {size: 1}[size], bool(size % 2)) == (False, True, 1, True)


@pytest.mark.thorough
@given(PARTS, PARTS, st.sampled_from([(), ("S >= 5",), ("mod(S, 2) == 0",), ("S <= 9",)]))
@settings(max_examples=60, deadline=None)
def test_answers_are_those_of_all_lengths(first, second, constraints):
    allowed = Lengths(constraints)
    difference = f"{first} - ({second})"
    lengths = np.arange(1, 3000)[allowed.allow(np.arange(1, 3000))]
    zero = np.broadcast_to(value_of(difference, lengths) == 0, lengths.shape)
    answer = is_zero(difference, allowed.allow, allowed.period, 10)
    assert isinstance(answer, Unknown) if zero.any() and not zero.all() else answer is bool(zero.all())


def file_of(use, divisor, number):
    """A file that compares the length, or the remainder, with a number."""
    nodes = [
        node("Shape", ["x"], ["shape"], name="shape"),
        node("Gather", ["shape", "zero"], ["length"], name="length"),
        node("Mod", ["length", "divisor"], ["rest"], name="rest"),
        node("Equal", ["rest" if divisor > 1 else "length", "number"], ["equal"], name="equal"),
    ]
    if use == "If":
        branches = {
            f"{name}_branch": helper.make_graph(
                [node("Mul", ["x", name], [f"{name}_y"], name=name)],
                name,
                [],
                [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
            )
            for name in ("then", "else")
        }
        nodes += [node("If", ["equal"], name="use", **branches)]
    elif use == "Pad":
        nodes += [
            node("Cast", ["equal"], ["one"], name="one", to=TensorProto.INT64),
            node("Mul", ["one", "ends"], ["pads"], name="pads"),
            node("Pad", ["x", "pads"], name="use"),
        ]
    elif use == "Slice":
        nodes += [
            node("Where", ["equal", "ones", "zeros"], ["start"], name="start"),
            node("Slice", ["x", "start", "ends"], name="use"),
        ]
    else:
        nodes += [node("Not", ["equal"], ["other"], name="other")] if use == "Not" else []
        answer = "other" if use == "Not" else "equal"
        nodes += [
            node("Cast", [answer], ["factor"], name="factor", to=TensorProto.FLOAT)
            if use == "Cast"
            else node("Where", [answer, "then", "else"], ["factor"], name="factor"),
            node("Mul", ["x", "factor"], name="use"),
        ]
    values = {"zero": np.array(0), "divisor": np.array(divisor), "number": np.array(number), "then": A, "else": B}
    values |= {"ones": np.array([1]), "zeros": np.array([0])}
    return graph_of(nodes, ["T", 3], ends=np.array([0, 0, 1, 0] if use == "Pad" else [1_000_000_000]), **values)


@pytest.mark.parametrize("use", ["If", "Where", "Not", "Cast", "Pad", "Slice"])
def test_files_that_compare_lengths(use):
    """The node is named, with the constraint if the result decides a size or a branch; apply takes any length."""
    for divisor, number, remedy in ((1, 13, "T >= 14"), (2, 1, "multiple=2")):
        loaded = jaxrnn.load(file_of(use, divisor, number))
        words = "known only when the stream has ended" if use in ("Where", "Not", "Cast") else f"every length.*{remedy}"
        check_refused(jaxrnn.StreamError, rf"node '\w+' \(.*{words}", loaded.stream, "T")
        x = np.ones((13, 3), np.float32)
        equal, whole = 13 % divisor == number or divisor == 1, loaded.apply(loaded.params, {"x": x})["y"]
        factor = {"If": A, "Where": A, "Not": B, "Cast": 1.0}.get(use, 1.0)
        assert equal
        assert whole.shape == (13 + (use == "Pad") - (use == "Slice"), 3)
        np.testing.assert_array_equal(np.asarray(whole)[:12], np.full((12, 3), factor))
    for number in (0, -1):  # no length is 0 or -1
        loaded = jaxrnn.load(file_of(use, 1, number))
        streamed = loaded.stream("T")
        found = streamed.run(loaded.params, {"x": x})["y"]
        np.testing.assert_array_equal(found, streamed.offline(loaded.params, {"x": x})["y"])


def running(body):
    return lambda x: lax.scan(body, x[0], x)[1]


def forms(*functions, shape=(6, 2)):
    """The forms of the results of functions of an array."""
    traced = [jax.make_jaxpr(each)(np.ones(shape, np.float32)) for each in functions]
    made = comparison.NumberingAtLength()
    inputs = made.unknown("input", traced[0].jaxpr.invars)
    return [[made.key_of(each) for each in made.of(closed, inputs, shape[0])] for closed in traced]


MOVEMENTS = [
    lambda x: x.T,
    lambda x: x[::-1],
    lambda x: x[1:3],
    lambda x: x[2:],
    lambda x: x[2:3],
    lambda x: x.reshape(-1, 2),
    lambda x: x.reshape(-1),
    lambda x: x[..., None],
    lambda x: x[None],
    lambda x: x[-1],
]


def test_forms_of_movements():
    """Two chains of movements have the same form exactly if they give the same elements in the same shape."""
    chains = [lambda x, f=f, g=g: g(f(x)) for f, g in itertools.product(MOVEMENTS, repeat=2)]
    places = [chain(np.arange(16).reshape(4, 4)) for chain in chains]
    same = [(each.shape, each.tobytes()) for each in places]
    found = [form for (form,) in forms(*chains, shape=(4, 4))]
    assert len({*same}) == len({*found}) == len({*zip(same, found, strict=True)}) > 50


def test_forms_of_equal_traces():
    """Other spellings of a view, a slice or a size are one form, and other numbers are not."""
    same = [
        (lambda x: x[2:4], lambda x: lax.dynamic_slice(x, (2, 0), (2, 2))),
        (lambda x: x[3], lambda x: jnp.squeeze(lax.slice_in_dim(x, 3, 4), 0)),
        (lambda x: x.reshape(12), lambda x: x.reshape(3, 4).reshape(12)),
        (lambda x: x * 6, lambda x: x * jnp.float32(jnp.int32(5) + 1)),
        (lambda x: lax.cond(True, jnp.sin, jnp.cos, x), jnp.sin),
        (lambda x: jnp.concatenate([x[:0], x]), lambda x: jnp.pad(x, 0)),
        (running(lambda c, f: (c + f, c)), running(lambda total, f: (total + f, total))),
    ]
    other = [
        (lambda x: x[2:4], lambda x: x[1:3]),
        (lambda x: x * 6, lambda x: x * 5),
        (lambda x: x.T.reshape(12), lambda x: x.reshape(12)),
        (lambda x: x + TABLES[0], lambda x: x + TABLES[1]),
        (jax.jit(jnp.sin), jnp.cos),
        (
            lambda x: lax.scan(lambda c, f: (c + f, c), x[0], x)[1],
            lambda x: lax.scan(lambda c, f: (c + f, f), x[0], x)[1],
        ),
        (inside_a_loop(lambda outer, inner: outer), inside_a_loop(lambda outer, inner: inner)),
    ]
    for pairs, expected in ((same, True), (other, False)):
        for pair in pairs:
            first, second = forms(*pair)
            assert (first == second) is expected


def inside_a_loop(collected):
    """Collect a carry of one of two loops."""

    def body(outer, f):
        return outer + f, lax.scan(lambda inner, g: (inner + g, collected(outer, inner)), f, x_of(f))[1]

    x_of = lambda f: jnp.stack([f, 2 * f])  # noqa: E731
    return lambda x: lax.scan(body, x[0], x)[1]


TABLES = [np.arange(12, dtype=np.float32).reshape(6, 2) + start for start in (0, 1)]
