"""Strings in and out, what moves them, what reads them, and what is said where there can be none."""

from __future__ import annotations

import sys

import jax
import numpy as np
import onnx
import onnx.version_converter
import pytest
from node_models import check_node_refused, one_operator
from node_models import compare as check
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused
from tiers import of_tiers

import jaxrnn

WORDS = np.array([["a", "", "b c"], ["ü日本", "a", "zz\0"]], object)


def text(values):
    return np.array(values, object)


def model(nodes, inputs, outputs, constants=()):
    values = [[helper.make_tensor_value_info(name, kind, None) for name, kind in group] for group in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *values, [numpy_helper.from_array(v, n) for n, v in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


INDEX = np.int64([[0, 2, 1], [1, 1, 0]])
MOVES = {
    "Identity": ({}, {}, lambda x: x),
    "Concat": ({"y": WORDS[:1]}, {"axis": 0}, lambda x: np.concatenate([x, WORDS[:1]])),
    "Reshape": ({"y": np.int64([3, -1])}, {}, lambda x: x.reshape(3, 2)),
    "Transpose": ({}, {}, lambda x: x.T),
    "Unsqueeze": ({"y": np.int64([0])}, {}, lambda x: x[None]),
    "Slice": ({"s": np.int64([0]), "e": np.int64([2]), "a": np.int64([1])}, {}, lambda x: x[:, :2]),
    "Gather": ({"i": np.int64([2, 0])}, {"axis": 1}, lambda x: x[:, [2, 0]]),
    "GatherElements": ({"i": INDEX}, {"axis": 1}, lambda x: np.take_along_axis(x, INDEX, 1)),
    "GatherND": ({"i": np.int64([[1, 0], [0, 2]])}, {}, lambda x: x[[1, 0], [0, 2]]),
    "Tile": ({"r": np.int64([1, 2])}, {}, lambda x: np.tile(x, (1, 2))),
    "Expand": ({"s": np.int64([2, 2, 3])}, {}, lambda x: np.broadcast_to(x, (2, 2, 3))),
    "Compress": ({"c": np.array([True, False, True])}, {"axis": 1}, lambda x: x[:, [0, 2]]),
    "Pad": ({"p": np.int64([0, 1, 0, 0])}, {}, lambda x: np.concatenate([text([[""], [""]]), x], 1)),
    "ScatterElements": (
        {"i": np.int64([[1], [0]]), "u": text([["N"], ["M"]])},
        {"axis": 1},
        lambda x: text([["a", "N", "b c"], ["M", "a", "zz\0"]]),
    ),
    "Shape": ({}, {}, lambda x: np.int64([2, 3])),
}


@pytest.mark.parametrize("operator", MOVES)
def test_strings_are_moved(operator):
    """Given, and as a constant of the file; what stands beside them may be data."""
    others, attributes, expected = MOVES[operator]
    inputs = {"x": WORDS, **others}
    needed = tuple(name for name in others if operator not in ("Concat", "ScatterElements") and name != "i")
    for constants in (needed, (*needed, "x")):
        built, arrays = one_operator(operator, inputs, constants=constants, **attributes)
        found = jaxrnn.load(built)(arrays)["y0"]
        assert np.array_equal(np.asarray(found), expected(WORDS))
        assert isinstance(found, np.ndarray) == (operator != "Shape")


def test_choosing_and_comparing():
    nodes = [
        helper.make_node("Equal", ["x", "y"], ["same"]),
        helper.make_node("Where", ["same", "x", "z"], ["chosen"]),
        helper.make_node("Cast", ["same"], ["number"], to=TensorProto.FLOAT),
    ]
    strings = TensorProto.STRING
    outputs = [("same", TensorProto.BOOL), ("chosen", strings), ("number", TensorProto.FLOAT)]
    loaded = jaxrnn.load(model(nodes, [("x", strings), ("y", strings)], outputs, [("z", text(["-"]))]))
    found = loaded(x=WORDS, y=[["a"], ["a"]])
    same = WORDS == "a"
    np.testing.assert_array_equal(found["same"], same)
    np.testing.assert_array_equal(found["chosen"], np.where(same, WORDS, "-"))
    assert found["chosen"].dtype == object
    np.testing.assert_array_equal(found["number"], same.astype(np.float32))
    assert str(loaded.inputs[0]).startswith("x: string[")


def test_unique_words():
    built, arrays = one_operator("Unique", {"x": text(["b", "a", "b", ""])}, outputs=4)
    found = jaxrnn.load(built)(arrays)
    assert found["y0"].tolist() == ["", "a", "b"]
    assert [np.asarray(found[f"y{i}"]).tolist() for i in (1, 2, 3)] == [[3, 1, 0], [2, 1, 2, 0], [1, 1, 2]]


def test_numbers_are_read_and_written():
    strings = text(["1.5", "NaN", "INF", "-inf", "-1e3", " 7"])
    check("Cast", {"x": strings}, to=TensorProto.FLOAT)
    check("Cast", {"x": text(["300", "-7", "2.9"])}, to=TensorProto.INT32)
    numbers = np.float32([0, 1, -1.1, np.nan, np.inf, -np.inf, 1e-7, 1e20, 123456.78])
    for x in (numbers, np.int8([1, -5]), np.array([True, False])):
        check("Cast", {"x": x}, to=TensorProto.STRING)
    exact = np.random.default_rng(0).standard_normal(100)
    for kind, values in ((TensorProto.FLOAT, exact.astype(np.float32)), (TensorProto.DOUBLE, exact)):
        nodes = [helper.make_node("Cast", ["x"], ["s"], to=TensorProto.STRING)]
        nodes.append(helper.make_node("Cast", ["s"], ["y"], to=kind))
        loaded = jaxrnn.load(model(nodes, [("x", kind)], [("y", kind)]))
        np.testing.assert_array_equal(loaded.apply({}, {"x": values})["y"], values)
    for wrong, to in ((["1", "x"], TensorProto.FLOAT), (["256"], TensorProto.UINT8), (["inf"], TensorProto.INT64)):
        check_node_refused(jaxrnn.NodeError, r"Cast-21.*string\[", "Cast", {"x": text(wrong)}, to=to)


@pytest.mark.parametrize("bound", [False, True])
def test_what_jit_says(bound):
    nodes = [helper.make_node("StringConcat", ["x", "y"], ["z"])]
    built = model(nodes, [("x", TensorProto.STRING), ("y", TensorProto.STRING)], [("z", TensorProto.STRING)])
    x, y = text(["a", "b"]), text(["c"])
    if not bound:
        with pytest.raises(TypeError):  # JAX's own, before anything here is asked
            jax.jit(jaxrnn.load(built).apply)({}, {"x": x, "y": y})
        with pytest.raises(jaxrnn.InputError, match="JAX has no strings"):
            jax.jit(jaxrnn.load(built).apply)({}, {"x": np.zeros(2), "y": np.zeros(2)})
        return
    loaded = jaxrnn.load(built, static={"x": x, "y": y})
    assert loaded()["z"].tolist() == ["ac", "bc"]
    # Inside, strings may come and go; it is the border that they cannot pass.
    nodes += [helper.make_node("Equal", ["z", "c"], ["e"]), helper.make_node("And", ["e", "f"], ["g"])]
    inputs = [("x", TensorProto.STRING), ("y", TensorProto.STRING), ("f", TensorProto.BOOL)]
    built = model(nodes, inputs, [("g", TensorProto.BOOL)], [("c", text(["bc"]))])
    run = jax.jit(jaxrnn.load(built, static={"x": x, "y": y}).apply)
    np.testing.assert_array_equal(run({}, {"f": np.array([True, True])})["g"], [False, True])
    gather = [helper.make_node("Gather", ["c", "i"], ["z"])]
    chooser = jaxrnn.load(model(gather, [("i", TensorProto.INT64)], [("z", TensorProto.STRING)], [("c", y)]))
    assert chooser(i=np.int64([0]))["z"].tolist() == ["c"]
    check_refused(jaxrnn.StaticValueError, "strings", jax.jit(chooser.apply), {}, {"i": np.int32([0])})


@pytest.mark.parametrize("wrong", [[1, 2], np.zeros(2), text(["a", 3]), [b"a", b"b"], [["a"], ["b", "c"]]])
def test_what_is_no_string_is_refused(wrong):
    built, _ = one_operator("Identity", {"x": text(["a", "b"])})
    check_refused(jaxrnn.InputError, "input x", jaxrnn.load(built), x=wrong)


def test_numbers_are_no_operands_of_strings_and_strings_none_of_arithmetic():
    for operator, inputs in (("StringConcat", {"x": np.zeros(1), "y": np.zeros(1)}), ("Neg", {"x": text(["a"])})):
        check_node_refused(jaxrnn.JaxrnnError, r"[Ss]tring", operator, inputs, kinds=[TensorProto.STRING])


def test_splitting():
    found = check("StringSplit", {"x": text([["a,b,,c", "e"], [",", "d"]])}, outputs=2, delimiter=",")
    assert found["y1"].tolist() == [[4, 1], [2, 1]]
    built, arrays = one_operator("StringSplit", {"x": text(["  a  b\tc", " ", "d e f g"])}, outputs=2, maxsplit=2)
    found = jaxrnn.load(built)(arrays)
    assert found["y0"].tolist() == [["a", "b", "c"], ["", "", ""], ["d", "e", "f g"]]
    assert found["y1"].tolist() == [3, 0, 3]
    check_node_refused(jaxrnn.NodeError, "maxsplit", "StringSplit", {"x": text(["a"])}, outputs=2, maxsplit=-1)


NORMALISED = {
    ("NONE", 0): ["TUESDAY", "Émile"],
    ("NONE", 1): ["Monday", "TUESDAY", "Émile"],
    ("LOWER", 1): ["monday", "tuesday", "émile"],
    ("UPPER", 0): ["TUESDAY", "ÉMILE"],
}


@pytest.mark.parametrize(("case", "sensitive"), NORMALISED)
def test_normalising(case, sensitive):
    options = {"stopwords": ["monday"], "case_change_action": case, "is_case_sensitive": sensitive}
    words = text(["Monday", "TUESDAY", "Émile", "monday"])
    for x, expected in ((words, NORMALISED[case, sensitive]), (text([["monday"]]), [[""]])):
        built, arrays = one_operator("StringNormalizer", {"x": x}, **options)
        assert jaxrnn.load(built)(arrays)["y0"].tolist() == expected
    check_node_refused(jaxrnn.NodeError, "locale", "StringNormalizer", {"x": words}, locale="tr_TR")


PATTERNS = [
    (r"[a-z]+@\w+\.com", ["me@example.com", "me@example.org", ""], [True, False, False]),
    (r"(?i)a(b|c)*\z", ["abcB", "x", "A"], [True, False, True]),
    (r"[[:digit:]]{2,3}", ["12", "1", "٣٤"], [True, False, False]),
    ("", ["", "a"], [True, False]),
]


@pytest.mark.parametrize("engine", ["re2", "re"])
def test_patterns(engine, monkeypatch):
    if engine == "re":
        monkeypatch.setitem(sys.modules, "re2", None)
    for pattern, words, expected in PATTERNS:
        built, arrays = one_operator("RegexFullMatch", {"x": text(words)}, pattern=pattern)
        assert np.asarray(jaxrnn.load(built)(arrays)["y0"]).tolist() == expected, pattern
    for wrong in ("(", r"(a)\1", "a(?=b)"):
        check_node_refused(jaxrnn.NodeError, "pattern", "RegexFullMatch", {"x": text(["a"])}, pattern=wrong)


@pytest.mark.parametrize("mode", of_tiers(["TF", "IDF", "TFIDF"], [], []))
def test_counting_words(mode):
    """Single words, pairs and triples; the same as numbers, compiled."""
    rng = np.random.default_rng(1)
    pool = [0, 1, 2, 0, 1, 3, 3, 2, 1, 0, 1, 2]
    options = {"ngram_counts": [0, 3, 9], "ngram_indexes": [6, 0, 1, 2, 3, 4, 5], "mode": mode, "max_skip_count": 2}
    options |= {"weights": rng.uniform(0.5, 2, 7).astype(np.float32).tolist()}
    arrays = rng.integers(0, 5, (4, 30)), rng.integers(0, 4, 7), rng.integers(0, 4, (1, 1))
    for x, shortest, longest in (*((x, 1, 3) for x in arrays), (arrays[0], 2, 2)):
        options |= {"min_gram_length": shortest, "max_gram_length": longest}
        counted = check("TfIdfVectorizer", {"x": x}, pool_int64s=pool, rtol=2e-7, **options)
        words = {"x": x.astype(str).astype(object)}
        spelled = check("TfIdfVectorizer", words, pool_strings=list(map(str, pool)), rtol=2e-7, **options)
        np.testing.assert_array_equal(counted["y0"], spelled["y0"])


def test_broken_text_in_a_file_is_refused():
    built, _ = one_operator("Concat", {"x": text(["a"]), "c": text(["b"])}, constants=("c",), axis=0)
    built.graph.initializer[0].string_data[0] = b"\xff"
    with pytest.raises(jaxrnn.ModelError, match=r"'c'.*utf-8"):
        jaxrnn.load(built)


def test_files_of_old_opsets_run_where_nothing_has_changed_since(tmp_path):
    def old(operator, **attributes):
        node = helper.make_node(operator, ["x"], ["y"], **attributes)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
        graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=3)

    assert np.array_equal(jaxrnn.load(old("Softsign"))(x=np.float32([1, -3]))["y"], np.float32([0.5, -0.75]))
    path = str(tmp_path / "old.onnx")
    onnx.save(old("Tanh"), path)
    with pytest.raises(jaxrnn.UnsupportedError, match=r"Tanh-1.*: `onnx.version_converter.*`") as refused:
        jaxrnn.load(path)
    advised = str(refused.value).split("`")[1]
    converted = jaxrnn.load(eval(advised, {"onnx": onnx, "path": path}))
    np.testing.assert_allclose(converted(x=np.float32([1, -3]))["y"], np.tanh([1, -3]), rtol=1e-6)
