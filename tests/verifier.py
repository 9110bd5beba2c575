"""One verifier for operators and models: whatever is imported must agree with a peer and with itself.

- values: the peer's (ONNX Runtime, or what the caller expects), dtype and shape included;
- ``jit`` equals evaluation node by node;
- ``vmap`` equals a loop;
- gradients equal finite differences in float64.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime as ort
from jax.test_util import check_grads
from onnx import TensorProto, helper

import jaxrnn
from jaxrnn._jax.context import exact_types


def session(source):
    """A model or file in ONNX Runtime, on one thread: where it shares work out, it quantises each part by itself."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    data = source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source)
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run_session(opened, inputs):
    """The outputs of a session by name."""
    names = [value.name for value in opened.get_outputs()]
    return dict(zip(names, opened.run(names, inputs), strict=True))


def peer_outputs(source, inputs):
    """ONNX Runtime's outputs by name."""
    return run_session(session(source), {name: np.asarray(value) for name, value in inputs.items()})


def assert_same(actual, expected, atol, rtol=0.0):
    """Equal names, dtypes and shapes, and values within the tolerance."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        found = actual[name]
        assert found.dtype == value.dtype, name
        assert tuple(found.shape) == tuple(value.shape), name
        limit = atol[name] if isinstance(atol, dict) else atol
        wide = (
            np.asarray(x).astype(np.float64) if value.dtype.kind not in "biu" else np.asarray(x) for x in (found, value)
        )
        np.testing.assert_allclose(*wide, atol=limit, rtol=rtol, err_msg=name)


def assert_close(found, expected, atol=2e-6, where=""):
    """Compare trees: equal structure, shapes and dtypes, and values up to ``atol`` times the largest (at least 1)."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=atol * scale, err_msg=where)


def assert_something(expected):
    """The leaves of a tree hold a finite number to compare with, so that a check of nothing fails."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(expected)]
    counts = [
        np.isfinite(leaf.astype(np.complex128)).sum() if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.size
        for leaf in leaves
    ]
    assert sum(counts), f"nothing is compared: {[leaf.shape for leaf in leaves]}"


def verify(
    source,
    inputs,
    *,
    expected=None,
    static=None,
    atol=1e-5,
    rtol=0.0,
    jit=True,
    eager=True,
    gradient=None,
    something=True,
):
    """Check one model on one set of inputs; returns the model.

    Args:
        source: what `jaxrnn.load` takes.
        inputs: arrays by name.
        expected: outputs by name; ONNX Runtime's where absent.
        static: inputs to bind, which the peer gets as well.
        atol, rtol: tolerances; ``atol`` may be one for each output.
        jit: the shapes do not depend on data, so that compiling must give the same.
        eager: also node by node, which compiles every operation by itself.
        gradient: names of inputs to check against finite differences; default none.
        something: False if the outputs may be empty, or without a finite number, which is then what is compared.
    """
    assert jit or eager or gradient, "nothing is compared"
    model = jaxrnn.load(source, static=static)
    if expected is None:
        expected = peer_outputs(source, {**inputs, **(static or {})})
    if something:
        assert_something(expected)
    if eager:
        assert_same(node_by_node(model, inputs), expected, atol, rtol)
    if jit:
        assert_same(jax.jit(model.apply)(model.params, inputs), expected, atol, rtol)
    if gradient:
        check_gradient(source, inputs, gradient, static)
    return model


def node_by_node(model, inputs):
    """The outputs of a model where nothing is compiled as a whole: of operators that see their values."""
    with exact_types():
        return model._evaluate(model.params, model._bind(inputs))


def loss_of(model, fixed, varied_names):
    """The sum over float outputs of mean(output ** 2), as a function of the named inputs."""

    def loss(varied):
        outputs = model.apply(model.params, {**fixed, **varied})
        floats = [value for value in outputs.values() if jnp.issubdtype(value.dtype, jnp.floating)]
        return sum(jnp.mean(value**2) for value in floats)

    return loss, {name: jnp.array(fixed[name]) for name in varied_names}


def in_float64(proto):
    """A copy of a float32 model in float64: types, tensors, and casts."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    single, double = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE

    def widen(tensor):
        if tensor.data_type == single:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
            )

    def walk(graph):
        for info in (*getattr(graph, "input", ()), *getattr(graph, "output", ()), *getattr(graph, "value_info", ())):
            if isinstance(info, onnx.ValueInfoProto) and info.type.tensor_type.elem_type == single:
                info.type.tensor_type.elem_type = double
        for tensor in getattr(graph, "initializer", ()):
            widen(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                widen(attribute.t)
                if attribute.name == "to" and attribute.i == single:
                    attribute.i = double
                if attribute.HasField("g"):
                    walk(attribute.g)

    walk(copy.graph)
    for function in copy.functions:
        walk(function)
    return copy


def check_gradient(proto, inputs, names, static=None):
    """Reverse and forward mode against central differences, all in float64."""
    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in inputs.items()}
    model = jaxrnn.load(in_float64(proto), static=static)
    with jax.enable_x64(True):
        loss, point = loss_of(model, wide, names)
        check_grads(loss, (point,), order=1, modes=("rev", "fwd"), atol=1e-6, rtol=1e-6, eps=1e-5)


def check_vmap(model, inputs, count=3):
    """Mapping over a new leading axis of every float input equals a loop over it."""
    rng = np.random.default_rng(1)
    floats = {n: v for n, v in inputs.items() if np.asarray(v).dtype.kind == "f"}
    stacked = {
        n: (np.stack([v] * count) * rng.uniform(0.5, 1.5, (count, *[1] * v.ndim))).astype(v.dtype)
        for n, v in floats.items()
    }
    mapped = jax.vmap(lambda varied: model.apply(model.params, {**inputs, **varied}))(stacked)
    for index in range(count):
        single = model.apply(model.params, {**inputs, **{n: v[index] for n, v in stacked.items()}})
        assert_same({n: v[index] for n, v in mapped.items()}, single, atol=2e-5)


#: Roundings in a value: some dozen operations one behind the other, each of sums of up to a hundred products.
ROUNDINGS = 1000


def difference(function, point, direction, step=1e-5, scale=0.0):
    """The derivative of a function along a direction as a central difference, and its doubt: two lists of arrays.

    Between the one-sided differences lies the derivative of whatever is convex or concave from one end to the other, at
    a kink in between too, so what they differ by bounds the error. Rounding adds its part, divided by the step: of the
    largest value, or of ``scale``, the size of what the values are computed from.
    """
    before, here, after = (
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(function(moved(point, direction, s)))]
        for s in (-step, 0.0, step)
    )
    largest = max(scale, *(float(np.abs(leaf).max(initial=0)) for leaf in here))
    noise = ROUNDINGS * np.finfo(np.float64).eps * largest / step
    central = [(b - a) / (2 * step) for a, b in zip(before, after, strict=True)]
    doubt = [np.abs(b - 2 * h + a) / step + noise for a, h, b in zip(before, here, after, strict=True)]
    return central, doubt


def assert_derivative(found, function, point, direction, step=1e-5, scale=0.0):
    """Whether a pytree holds the derivative of a function along a direction, element by element."""
    differences = difference(function, point, direction, step, scale)
    for place, (value, central, doubt) in enumerate(zip(jax.tree.leaves(found), *differences, strict=True)):
        error = np.abs(np.asarray(value) - central)
        worst = np.argmax(error - doubt) if error.size else None
        assert np.all(error <= doubt), (place, worst, *(np.ravel(x)[worst] for x in (value, central, doubt)))


def moved(point, direction, step):
    """The point, a step further along a direction; pytrees of arrays. In NumPy, which compiles nothing for a shape."""
    return jax.tree.map(lambda x, d: np.asarray(x) + step * np.asarray(d), point, direction)


def random_like(tree, seed):
    """Standard normal arrays of the shapes of a pytree."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.array(rng.normal(size=np.shape(leaf)), leaf.dtype), tree)


def dot(first, second):
    """The inner product of two pytrees of arrays."""
    return sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def size_of(tree):
    """The largest absolute value in a pytree."""
    return max((float(np.max(np.abs(leaf), initial=0)) for leaf in jax.tree.leaves(tree)), default=0.0)


def all_in_float64(proto):
    """`in_float64`, also where a normalisation would compute in float32 by default."""
    wide = in_float64(proto)
    for node in wide.graph.node:
        if node.op_type in ("LayerNormalization", "GroupNormalization", "RMSNormalization"):
            kept = [attribute for attribute in node.attribute if attribute.name != "stash_type"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("stash_type", TensorProto.DOUBLE)])
    return wide


@functools.cache
def network(path, wide, **static):
    """A model, loaded once: in float64, or as it is."""
    proto = onnx.load(path)
    return jaxrnn.load(all_in_float64(proto) if wide else proto, static=static)


def floats(inputs, dtype=np.float64):
    """The inputs that have derivatives, in one type."""
    return {name: jnp.array(value, dtype) for name, value in inputs.items() if value.dtype.kind == "f"}


def mean_squares(outputs):
    """The sum over float outputs of mean(output ** 2)."""
    return sum(jnp.mean(y**2) for y in outputs.values() if jnp.issubdtype(y.dtype, jnp.floating))


#: The same sums in another order, in float64: some ten thousand roundings relative to the largest value.
EQUAL = 1e-11


def assert_equal(found, expected):
    """Two pytrees agree up to the order of sums, relative to the largest value of either."""
    limit = EQUAL * max(size_of(found), size_of(expected))
    assert limit > 0
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=limit)
