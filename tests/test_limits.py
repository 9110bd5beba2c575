"""Limits on what a file may ask for, and hostile files that ask for more."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused

import jaxrnn
from jaxrnn import Limits
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx.operators.pooling import WindowAttributes

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
HUGE = 10**12


def value(name, *shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, list(shape))


def open_value(name, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, None)


def node(operator, inputs, outputs=("y",), **attributes):
    return helper.make_node(operator, inputs, outputs, **attributes)


def numbers(**arrays):
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def model(*nodes, inputs=None, outputs=("y",), tensors=(), opset=21, functions=(), kind=FLOAT):
    inputs = [value("x", 1, 3)] if inputs is None else inputs
    graph = helper.make_graph(nodes, "hostile", inputs, [open_value(name, kind) for name in outputs], list(tensors))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def doubled(operator, count, **attributes):
    """A value joined to itself again and again."""
    names = ["x", *(f"v{index}" for index in range(count))]
    nodes = [
        node(operator, [before] * 2 if operator == "Concat" else [before, "twos"], [after], **attributes)
        for before, after in zip(names, [*names[1:-1], "y"], strict=False)
    ]
    return model(*nodes[:count], tensors=numbers(twos=np.array([1, 2])))


def doubled_constant(count):
    """The same of a constant, which is folded while tracing."""
    nodes = [node("Concat", [f"v{index}"] * 2, [f"v{index + 1}"], axis=0) for index in range(count)]
    last = [node("ReduceSum", [f"v{count}"], ["sum"], keepdims=0), node("Cast", ["sum"], ["f"], to=FLOAT)]
    return model(*nodes, *last, node("Add", ["x", "f"]), tensors=numbers(v0=np.ones(2**10, np.int64)))


def doubled_text(count):
    nodes = [node("StringConcat", [f"v{index}"] * 2, [f"v{index + 1}"]) for index in range(count)]
    text = helper.make_tensor("v0", TensorProto.STRING, [1], [b"ha" * 500])
    return model(*nodes, tensors=[text], outputs=[f"v{count}"], kind=TensorProto.STRING)


def moved_text(operator, amount):
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"ha"])
    tensors = [text, *numbers(n=np.int64(amount))]
    return model(node(operator, ["t", "n"]), tensors=tensors, inputs=[], kind=TensorProto.STRING)


def looped(trips, *, scanned=False, grows=False, depth=1):
    """Loops in each other, each of so many trips."""

    def body(level):
        nodes = [node("Identity", [f"go{level}"], [f"on{level}"])]
        if level == depth - 1:
            nodes.append(
                node("Concat", [f"a{level}"] * 2, [f"b{level}"], axis=0)
                if grows
                else node("Neg", [f"a{level}"], [f"b{level}"])
            )
        else:
            nodes.append(
                node("Loop", ["trips", "", f"a{level}"], [f"b{level}"], name=f"loop{level + 1}", body=body(level + 1))
            )
        results = [value(f"on{level}", kind=BOOL), open_value(f"b{level}")]
        if scanned:
            nodes.append(node("Identity", [f"b{level}"], [f"s{level}"]))
            results.append(open_value(f"s{level}"))
        starts = [value(f"i{level}", kind=INT64), value(f"go{level}", kind=BOOL), open_value(f"a{level}")]
        return helper.make_graph(nodes, f"body{level}", starts, results)

    outputs = ["y", "all"] if scanned else ["y"]
    return model(
        node("Loop", ["trips", "", "x"], outputs, name="loop0", body=body(0)),
        outputs=outputs,
        tensors=numbers(trips=np.int64(trips)),
    )


def calling(depth, calls):
    """Functions of which each calls the next so many times."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(depth):
        last = level == depth - 1
        nodes = [
            node(
                "Neg" if last else f"F{level + 1}",
                ["a" if index == 0 else f"t{index}"],
                ["b" if index == calls - 1 else f"t{index + 1}"],
                domain="" if last else "own",
            )
            for index in range(calls)
        ]
        functions.append(helper.make_function("own", f"F{level}", ["a"], ["b"], nodes, opsets))
    return model(node("F0", ["x"], domain="own"), functions=functions)


def recursive(count):
    """Functions that call each other in a circle."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", f"F{index}", ["a"], ["b"], [node(f"F{(index + 1) % count}", ["a"], ["b"], domain="own")], opsets
        )
        for index in range(count)
    ]
    return model(node("F0", ["x"], domain="own"), functions=functions)


def nested(depth, *, in_functions=False):
    """Branches in each other."""

    def choice(level, inner):
        branch = helper.make_graph([inner], f"branch{level}", [], [open_value(f"y{level}")])
        other = helper.make_graph([node("Neg", ["x"], [f"n{level}"])], f"other{level}", [], [open_value(f"n{level}")])
        return node("If", ["c"], [f"y{level + 1}"], then_branch=branch, else_branch=other, name=f"if{level}")

    inputs = [value("x", 1, 3), value("c", kind=BOOL)]
    if not in_functions:
        made = node("Abs", ["x"], ["y0"])
        for level in range(depth):
            made = choice(level, made)
        return model(made, inputs=inputs, outputs=[f"y{depth}"])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(depth):
        inner = node("Abs", ["x"], ["y0"])
        if level < depth - 1:
            inner = node(f"F{level + 1}", ["x", "c"], ["y0"], domain="own")
        functions.append(helper.make_function("own", f"F{level}", ["x", "c"], ["y1"], [choice(0, inner)], opsets))
    return model(node("F0", ["x", "c"], domain="own"), inputs=inputs, functions=functions)


def nested_in_place(depth):
    """Branches in each other, deeper than protobuf reads them from bytes."""
    proto = model(inputs=[value("x", 1, 3), value("c", kind=BOOL)], outputs=["y0"])
    graph = proto.graph
    for level in range(depth):
        made = graph.node.add(op_type="If", input=["c"], output=[f"y{level}"], name=f"if{level}")
        for name in ("then_branch", "else_branch"):
            graph = made.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g
            graph.output.add(name=f"y{level + 1}")
            if name == "then_branch":
                graph.node.add(op_type="Neg", input=["x"], output=[f"y{level + 1}"])
    graph.node.add(op_type="Abs", input=["x"], output=[f"y{depth}"])
    return proto


def sparse(shape, places, numbers_, *, constant=False):
    """A sparse initializer or constant added to a number."""
    tensor = helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(numbers_, np.float32), "s"),
        numpy_helper.from_array(np.asarray(places, np.int64), "s_indices"),
        list(shape),
    )
    made = [node("Constant", [], ["s"], sparse_value=tensor)] if constant else []
    proto = model(*made, node("Add", ["s", "one"]), tensors=numbers(one=np.float32(1)), inputs=[])
    if not constant:
        proto.graph.sparse_initializer.append(tensor)
    return proto


#: What asks for too much when it is run: the model, and which limit refuses it.
WISHES = {
    "ConstantOfShape": (
        lambda: model(node("ConstantOfShape", ["shape"]), tensors=numbers(shape=np.array([HUGE])), inputs=[]),
        "value_bytes",
    ),
    "Expand": (lambda: model(node("Expand", ["x", "s"]), tensors=numbers(s=np.array([HUGE, 3]))), "value_bytes"),
    "Expand of a constant": (
        lambda: model(node("Expand", ["c", "s"]), tensors=numbers(c=np.float32(1), s=np.array([HUGE])), inputs=[]),
        "_bytes",
    ),
    "Tile": (lambda: model(node("Tile", ["x", "r"]), tensors=numbers(r=np.array([HUGE, 1]))), "value_bytes"),
    "Tile of a constant": (
        lambda: model(node("Tile", ["c", "r"]), tensors=numbers(c=np.ones(3, np.float32), r=[HUGE]), inputs=[]),
        "_bytes",
    ),
    "Expand of strings": (lambda: moved_text("Expand", [HUGE]), "constant_bytes"),
    "Tile of strings": (lambda: moved_text("Tile", [HUGE]), "constant_bytes"),
    "Pad of strings": (lambda: moved_text("Pad", [0, HUGE]), "constant_bytes"),
    "Range": (
        lambda: model(
            node("Range", ["a", "b", "c"]),
            tensors=numbers(a=np.int64(0), b=np.int64(2**62), c=np.int64(1)),
            inputs=[],
            kind=INT64,
        ),
        "value_bytes",
    ),
    "OneHot": (
        lambda: model(
            node("OneHot", ["i", "d", "v"]),
            inputs=[value("i", 4, kind=INT64)],
            tensors=numbers(d=np.int64(HUGE), v=np.array([0, 1], np.float32)),
        ),
        "value_bytes",
    ),
    "EyeLike": (
        lambda: model(
            node("Tile", ["x", "s"], ["wide"]), node("EyeLike", ["wide"]), tensors=numbers(s=np.array([10**6, 10**6]))
        ),
        "value_bytes",
    ),
    "Pad": (lambda: model(node("Pad", ["x", "p"]), tensors=numbers(p=np.array([0, HUGE, 0, 0]))), "value_bytes"),
    "Resize": (
        lambda: model(
            node("Resize", ["x", "", "", "sizes"], mode="nearest"), tensors=numbers(sizes=np.array([10**6, 10**6]))
        ),
        "_bytes",
    ),
    "RandomNormal": (lambda: model(node("RandomNormal", [], shape=[HUGE]), inputs=[]), "value_bytes"),
    "a convolution's stride": (
        lambda: model(
            node("ConvTranspose", ["x", "w"], strides=[HUGE]),
            inputs=[value("x", 1, 1, 3)],
            tensors=numbers(w=np.ones((1, 1, 2), np.float32)),
        ),
        "value_bytes",
    ),
    "a window without end": (
        lambda: model(node("MaxPool", ["x"], kernel_shape=[2**30], pads=[2**40, 2**40]), inputs=[value("x", 1, 1, 3)]),
        "value_bytes",
    ),
    "an outer sum": (
        lambda: model(
            node("Expand", ["x", "s"], ["wide"]),
            node("Unsqueeze", ["wide", "last"], ["column"]),
            node("Add", ["wide", "column"]),
            inputs=[value("x", 1)],
            tensors=numbers(s=np.array([10**6]), last=np.array([1])),
        ),
        "value_bytes",
    ),
    "Concat of itself": (lambda: doubled("Concat", 45, axis=0), "value_bytes"),
    "Tile of itself": (lambda: doubled("Tile", 45), "value_bytes"),
    "Concat of a constant": (lambda: doubled_constant(30), "constant_bytes"),
    "a Loop of 2**62 trips": (lambda: looped(2**62), "value_bytes"),
    "a Loop with scan outputs": (lambda: looped(2**62, scanned=True), "value_bytes"),
    "a Loop that grows": (lambda: looped(2**62, grows=True), "value_bytes"),
    "a Loop that Python counts": (lambda: growing_slowly(2**62), "evaluations"),
    "slices of a sequence": (
        lambda: model(
            node("Expand", ["x", "s"], ["wide"]),
            node("SplitToSequence", ["wide"], ["parts"], axis=1),
            node("SequenceAt", ["parts", "zero"]),
            inputs=[value("x", 1, 1)],
            tensors=numbers(s=np.array([1, 10**6]), zero=np.int64(0)),
        ),
        "evaluations",
    ),
}


def growing_slowly(trips):
    """A loop whose trips are computations of their own: what it carries gets longer by an element."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Slice", ["a", "from", "to"], ["b"])],
        "body",
        [value("i", kind=INT64), value("go", kind=BOOL), open_value("a")],
        [value("on", kind=BOOL), open_value("b")],
    )
    tensors = numbers(trips=np.int64(trips), **{"from": np.array([1]), "to": np.array([2**40])})
    return model(
        node("Concat", ["x"] * 200, ["long"], axis=0),
        node("Loop", ["trips", "", "long"], ["y"], name="loop", body=body),
        tensors=tensors,
    )


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
    words = rf"node '.*jaxrnn\.Limits\({limit if limit != '_bytes' else '.*_bytes'}="
    check_refused(jaxrnn.LimitError, words, call, loaded.params, inputs_of(loaded))


@pytest.mark.parametrize("what", WISHES)
def test_looking_at_wishes(what):
    """A command that only looks at the file ends with facts: what it asks for is not done."""
    assert inspect_model(WISHES[what][0](), limits=SMALL).problem is None


def test_limits_are_raised_by_name():
    proto = model(node("Expand", ["x", "s"]), tensors=numbers(s=np.array([2**20, 3])))
    with pytest.raises(jaxrnn.LimitError, match=r"float32\[1048576, 3\] takes 12 MiB, and the limit is 1\.0 MiB"):
        jaxrnn.load(proto, limits=Limits(value_bytes=2**20))(x=np.ones((1, 3), np.float32))
    allowed = jaxrnn.load(proto, limits=Limits(value_bytes=2**24))
    assert allowed(x=np.ones((1, 3), np.float32))["y"].shape == (2**20, 3)
    for wrong in (0, -1, 1.5, True, "8 GB"):
        check_refused(jaxrnn.InputError, "value_bytes must be a whole number from 1 on", Limits, value_bytes=wrong)


def test_an_empty_value_of_huge_sizes():
    """XLA would end the process."""
    proto = model(node("RandomUniform", [], shape=[2**62, 2**63 - 1, 3, 0]))
    loaded = jaxrnn.load(proto)
    check_refused(jaxrnn.LimitError, "empty value .* product has over 63 bits", loaded, inputs_of(loaded))


@pytest.mark.parametrize("low", [3, 300, 2**40])
def test_reflections(low):
    """JAX appends reflections one by one, which never ends."""
    proto = model(node("Pad", ["x", "pads"], mode="reflect"), tensors=numbers(pads=np.array([0, low, 0, 7])))
    loaded, x = jaxrnn.load(proto), np.arange(3, dtype=np.float32)[None]
    if low > 300:
        check_refused(jaxrnn.LimitError, "takes 4.0 TiB", loaded, x=x)
    else:
        np.testing.assert_array_equal(loaded(x=x)["y"], np.pad(x, ((0, 0), (low, 7)), mode="reflect"))


def test_functions():
    """Copies of functions are counted before they are made, and circles are found."""
    x = np.ones((1, 3), np.float32)
    check_refused(jaxrnn.LimitError, r"10,000,000,000 nodes.*Limits\(nodes=", jaxrnn.load, calling(10, 10))
    check_refused(jaxrnn.LimitError, "64 nodes", jaxrnn.load, calling(3, 4), limits=Limits(nodes=62))
    np.testing.assert_array_equal(jaxrnn.load(calling(3, 4), limits=Limits(nodes=63))(x=x)["y"], x)
    np.testing.assert_array_equal(jaxrnn.load(calling(40, 1))(x=x)["y"], -x)
    check_refused(jaxrnn.ModelError, "nested deeper than", jaxrnn.load, calling(2000, 1))
    for count in (1, 3):
        check_refused(jaxrnn.ModelError, "calls itself", jaxrnn.load, recursive(count))


def test_depth():
    x, yes = np.full((1, 3), -2, np.float32), np.array(True)
    deep = jaxrnn.load(nested(12))
    for call in (deep.apply, jax.jit(deep.apply)):
        np.testing.assert_array_equal(call(deep.params, {"x": x, "c": yes})["y12"], -x)
    for proto in (nested(13), nested(20), nested_in_place(100), nested(20, in_functions=True)):
        check_refused(jaxrnn.ModelError, "deeper than 12 levels", jaxrnn.load, proto)
    with pytest.raises(jaxrnn.LimitError, match="evaluations"):  # each level is traced more than once
        jaxrnn.load(looped(2, depth=10), limits=SMALL)(x=x)


def test_text():
    with pytest.raises(jaxrnn.LimitError, match=r"StringConcat.*constant_bytes"):
        jaxrnn.load(doubled_text(40), limits=SMALL)(x=np.ones((1, 3), np.float32))


def test_state_behind_a_huge_pad():
    """The window of a pool takes the pad, which is refused before memory is taken."""
    far = {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2**31 - 1] * 2, "auto_pad": "SAME_UPPER"}
    proto = model(node("MaxPool", ["x"], **far), inputs=[value("x", 1, 1, 5, 5)], opset=22)
    assert inspect_model(proto).problem is None


def test_pads_whose_sums_overflow():
    """ONNX refuses them only where it knows the shape of the operand."""
    windows = WindowAttributes([2], [2], pads=(-(2**63), -(2**63)))
    with pytest.raises(ValueError, match=r"pads .* are not between"):
        _ = windows.pads


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
    check_refused(jaxrnn.ModelError, words, jaxrnn.load, sparse(shape, places, [2.0, 7.0]))


def test_exporting_a_sparse_parameter(tmp_path):
    """It lies nowhere in the file as what it is now."""
    loaded = jaxrnn.load(sparse((2, 3), [1, 5], [2.0, 7.0]))
    with pytest.raises(jaxrnn.JaxrnnError, match="'s'"):
        jaxrnn.export_onnx(loaded, {**loaded.params, "s": loaded.params["s"] + 1}, tmp_path / "new.onnx")
    assert not list(tmp_path.iterdir())
