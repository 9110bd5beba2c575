"""Operators of ai.onnx.ml against ONNX Runtime; losses, optimizer steps and image files among the operators."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from node_models import check_node_refused, one_operator
from node_models import compare as check
from PIL import Image
from tiers import of_tiers

import jaxrnn

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 4)).astype(np.float32)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ")


def numbers(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32).tolist()


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_models(transform):
    options = {"post_transform": transform, "atol": 2e-6}
    three = {"coefficients": numbers(12), "intercepts": numbers(3)}
    check("ai.onnx.ml::LinearClassifier", {"x": X}, outputs=2, classlabels_ints=[4, 6, 9], **three, **options)
    two = {"coefficients": numbers(4), "intercepts": numbers(1)}
    check("ai.onnx.ml::LinearClassifier", {"x": X}, outputs=2, classlabels_strings=["a", "b"], **two, **options)
    check("ai.onnx.ml::LinearRegressor", {"x": X}, targets=3, **three, **options)


@pytest.mark.parametrize("kernel", of_tiers(["LINEAR", "POLY", "RBF", "SIGMOID"], ("RBF",), thorough=()))
def test_support_vector_machines(kernel):
    options = {"kernel_type": kernel, "kernel_params": [0.3, 0.2, 3.0], "atol": 2e-5}
    two = {"coefficients": numbers(7), "support_vectors": numbers(28), "vectors_per_class": [3, 4], "rho": [0.1]}
    labels = {"classlabels_ints": [3, 1], "outputs": 2}
    for transform in ("NONE", "LOGISTIC"):
        check("ai.onnx.ml::SVMClassifier", {"x": X}, post_transform=transform, **two, **labels, **options)
    three = {"coefficients": numbers(18), "support_vectors": numbers(36), "vectors_per_class": [3, 4, 2]}
    three |= {"rho": [0.1, 0.2, -0.1], "classlabels_strings": ["x", "y", "z"], "outputs": 2}
    check("ai.onnx.ml::SVMClassifier", {"x": X}, **three, **options)
    pairs = {"prob_a": [-1.2, -0.9, -1.5], "prob_b": [0.1, 0.0, -0.2]}
    check("ai.onnx.ml::SVMClassifier", {"x": X}, **three, **pairs, **options)
    regression = {"coefficients": numbers(6), "support_vectors": numbers(24), "n_supports": 6, "rho": [0.2]}
    for one_class in (0, 1):
        check("ai.onnx.ml::SVMRegressor", {"x": X}, one_class=one_class, **regression, **options)


def forest(seed, targets, *, trees=4, depth=3, positive=False, vote="target"):
    """Whole binary trees with every comparison; every leaf votes for each target."""
    rng = np.random.default_rng(seed)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    places = np.tile(np.arange(count), trees)
    leaf = places >= inner
    owner = np.repeat(np.arange(trees), count)
    nodes = {
        "nodes_treeids": owner,
        "nodes_nodeids": places,
        "nodes_featureids": np.where(leaf, 0, rng.integers(0, 4, places.size)),
        "nodes_values": np.round(rng.standard_normal(places.size), 1),
        "nodes_truenodeids": np.where(leaf, 0, 2 * places + 1),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * places + 2),
        "nodes_missing_value_tracks_true": rng.integers(0, 2, places.size),
    }
    modes = ["LEAF" if is_leaf else MODES[rng.integers(len(MODES))] for is_leaf in leaf]
    weights = rng.standard_normal(leaf.sum() * len(targets)).astype(np.float32)
    votes = {
        "treeids": np.repeat(owner[leaf], len(targets)),
        "nodeids": np.repeat(places[leaf], len(targets)),
        "ids": np.tile(targets, leaf.sum()),
        "weights": abs(weights) / trees if positive else weights,
    }
    attributes = nodes | {f"{vote}_{key}": value for key, value in votes.items()}
    return {key: value.tolist() for key, value in attributes.items()} | {"nodes_modes": modes}


def with_missing(x):
    x = np.round(x, 1)
    x[::7, 1] = np.nan
    return x


@pytest.mark.parametrize("positive", of_tiers([False, True], [False], []))
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_forests_that_classify(transform, positive):
    options = {"outputs": 2, "post_transform": transform, "atol": 2e-6}
    x = {"x": with_missing(X)}
    three = forest(1, [0, 1, 2], positive=positive, vote="class")
    base = {"base_values": [0.1, 0.2, 0.3], "classlabels_strings": ["p", "q", "r"]}
    check("ai.onnx.ml::TreeEnsembleClassifier", x, **three, **base, **options)
    for only, labels in ((0, {"base_values": [0.3]}), (1, {})):
        two = forest(2, [only], positive=positive, vote="class")
        check("ai.onnx.ml::TreeEnsembleClassifier", x, classlabels_int64s=[5, 2], **two, **labels, **options)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_forests_that_regress(aggregate):
    trees = forest(3, [0, 1]) | {"n_targets": 2, "aggregate_function": aggregate, "base_values": [0.5, -1.0]}
    check("ai.onnx.ml::TreeEnsembleRegressor", {"x": with_missing(X)}, atol=2e-6, **trees)
    whole = np.round(X * 3).astype(np.int64)
    model, arrays = one_operator("ai.onnx.ml::TreeEnsembleRegressor", {"x": whole}, **trees)
    as_floats, floats = one_operator("ai.onnx.ml::TreeEnsembleRegressor", {"x": whole.astype(np.float32)}, **trees)
    np.testing.assert_array_equal(jaxrnn.load(model)(arrays)["y0"], jaxrnn.load(as_floats)(floats)["y0"])


def test_a_forest_that_has_no_end_is_refused():
    trees = forest(4, [0], trees=1, depth=2)
    trees["nodes_truenodeids"][1] = 0
    operator = "ai.onnx.ml::TreeEnsembleRegressor"
    check_node_refused(jaxrnn.NodeError, "descendant", operator, {"x": X}, n_targets=1, **trees)


FEATURES = {
    "Normalizer": [{"norm": norm} for norm in ("MAX", "L1", "L2")],
    "Scaler": [{"offset": [0.5, 1.0, 2.0, 3.0], "scale": [2.0, 3.0, 4.0, 5.0]}, {"offset": [0.5], "scale": [2.0]}],
    "Binarizer": [{"threshold": 0.3}],
    "Imputer": [
        {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")},
        {"imputed_value_floats": [9.0], "replaced_value_float": 0.0},
    ],
}


@pytest.mark.parametrize("operator", FEATURES)
def test_features(operator):
    x = np.concatenate([X, np.zeros((1, 4), np.float32)])
    for attributes in FEATURES[operator]:
        check(f"ai.onnx.ml::{operator}", {"x": x}, rtol=1e-6, **attributes)
    if operator == "Imputer":
        check("ai.onnx.ml::Imputer", {"x": with_missing(X)}, **FEATURES[operator][0])


def test_features_are_chosen_and_joined():
    check("ai.onnx.ml::ArrayFeatureExtractor", {"x": X, "y": np.int64([1, 3])})
    check("ai.onnx.ml::ArrayFeatureExtractor", {"x": X[0], "y": np.int64([[1, 3, 2]])})
    words = np.array([["a", "b"], ["c", "d"]], object)
    check("ai.onnx.ml::ArrayFeatureExtractor", {"x": words, "y": np.int64([1])})
    check("ai.onnx.ml::FeatureVectorizer", {"a": X, "b": X[:, :2]}, inputdimensions=[4, 2])


WORDS = np.array([["a", "b", "zz"], ["c", "a", ""]], object)


@pytest.mark.parametrize(
    ("operator", "x", "attributes"),
    [
        ("LabelEncoder", WORDS, {"keys_strings": ["a", "b"], "values_int64s": [4, 5]}),
        ("LabelEncoder", WORDS, {"keys_strings": ["a", "b"], "values_strings": ["A", "B"], "default_string": "?"}),
        ("LabelEncoder", np.int64([1, 2, 3]), {"keys_int64s": [1, 2], "values_floats": [0.5, 1.5]}),
        ("LabelEncoder", np.float32([1, 2.5]), {"keys_floats": [2.5, 7.0], "values_strings": ["A", "B"]}),
        ("CategoryMapper", WORDS, {"cats_strings": ["a", "b"], "cats_int64s": [10, 20]}),
        ("CategoryMapper", np.int64([10, 3]), {"cats_strings": ["a", "b"], "cats_int64s": [10, 20]}),
        ("OneHotEncoder", WORDS, {"cats_strings": ["a", "c", "b"]}),
        ("OneHotEncoder", np.float32([[1.2, 5.9, 2.0]]), {"cats_int64s": [5, 2, 1]}),
    ],
)
def test_categories(operator, x, attributes):
    check(f"ai.onnx.ml::{operator}", {"x": x}, version=2 if operator == "LabelEncoder" else 1, **attributes)


def test_an_element_without_a_category_is_refused_if_it_must_have_one():
    options = {"cats_strings": ["a"], "zeros": 0}
    check_node_refused(jaxrnn.NodeError, "category", "ai.onnx.ml::OneHotEncoder", {"x": WORDS}, **options)


def test_maps_are_refused_with_a_reason():
    node = onnx.helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    x = onnx.helper.make_tensor_value_info("x", 1, ["n", 2])
    graph = onnx.helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    with pytest.raises(jaxrnn.UnsupportedError, match="maps"):
        jaxrnn.load(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10))


SCORES = np.random.default_rng(0).standard_normal((5, 4, 3)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 4, (5, 3))
WEIGHTS = np.float32([0.5, 1, 2, 0.25])


def loss_of(scores, labels, weights=None, **attributes):
    inputs = {"scores": scores, "labels": labels, "weights": weights}
    model, arrays = one_operator("SoftmaxCrossEntropyLoss", inputs, outputs=2, opset=13, **attributes)
    return jaxrnn.load(model), arrays


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_cross_entropy_and_its_gradient(kind):
    """Ignored samples count for nothing, whatever their scores are."""
    labels = LABELS.copy()
    labels[0] = -1
    scores = SCORES.astype(kind)
    scores[0, 0] = -np.inf
    loaded, arrays = loss_of(scores, labels, WEIGHTS.astype(kind), ignore_index=-1)
    run = jax.jit(lambda x: loaded.apply({}, {**arrays, "scores": x})["y0"])
    wide = scores[1:].astype(np.float64)
    shares = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    hot = np.moveaxis(np.eye(4)[labels[1:]], -1, 1)
    share = WEIGHTS[labels[1:]] / WEIGHTS[labels[1:]].sum()
    eps = float(jnp.finfo(kind).eps)
    assert run(scores).dtype == kind
    np.testing.assert_allclose(run(scores), -(np.log(shares) * hot * share[:, None]).sum(), rtol=4 * eps)
    slope = np.asarray(jax.grad(run)(jnp.asarray(scores))).astype(np.float64)
    np.testing.assert_array_equal(slope[0], 0)
    np.testing.assert_allclose(slope[1:], (shares - hot) * share[:, None], atol=4 * eps)


def test_a_class_that_does_not_exist_is_no_number():
    for wrong in (4, -1):
        labels = LABELS.copy()
        labels[2, 1] = wrong
        loaded, arrays = loss_of(SCORES, labels, reduction="none")
        loss = np.asarray(jax.jit(loaded.apply)({}, arrays)["y0"])
        assert np.isnan(loss[2, 1])
        assert np.isnan(loss).sum() == 1


def encoded(image, kind):
    stream = io.BytesIO()
    image.save(stream, kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


def decoded(data, **attributes):
    proto, arrays = one_operator("ImageDecoder", {"x": data}, opset=20, **attributes)
    model = jaxrnn.load(proto)
    return np.asarray(model.apply(model.params, arrays)["y0"])


def test_images():
    pixels = np.random.default_rng(2).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    png = encoded(Image.fromarray(pixels), "PNG")
    np.testing.assert_array_equal(decoded(png), pixels)
    np.testing.assert_array_equal(decoded(png, pixel_format="BGR"), pixels[:, :, ::-1])
    assert decoded(png, pixel_format="Grayscale").shape == (5, 7, 1)
    transparent = encoded(Image.fromarray(np.dstack([pixels, pixels[:, :, :1]])), "PNG")
    np.testing.assert_array_equal(decoded(transparent), pixels)
    deep = encoded(Image.fromarray(np.uint16([[0, 257, 65535]])), "PNG")
    assert decoded(deep).tolist() == [[[0] * 3, [1] * 3, [255] * 3]]
    for broken in (png[:40], png[:-30], np.zeros(0, np.uint8), np.zeros(100, np.uint8)):
        assert decoded(broken).shape == (0, 0, 3)


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(jaxrnn.errors.MissingPackageError, match=r"jaxrnn\[images\]"):
        decoded(np.zeros(3, np.uint8))
