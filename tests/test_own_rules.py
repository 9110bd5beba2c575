"""Primitives and operators of one's own: the example that adds both is exact, and what cannot be added is refused."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from lowering_verifier import verify_lowering
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of, make_model
from streaming_verifier import check_gradients, check_values

import jaxrnn
from jaxrnn import InputError, ModelError, StreamError, UnsupportedError
from jaxrnn.jaxprs.primitives import ADDED
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx.registry import Static
from jaxrnn.streaming import Entry
from jaxrnn.streaming.interpreter import EXPORTS, RULES
from tools.examples import import_example

SHAPE = ["S", 3]


@pytest.fixture(scope="module")
def own():
    return import_example("own_primitive_and_operator")


@pytest.mark.thorough
def test_the_example_streams_exactly(own, capsys):
    own.main()
    assert "largest difference" in capsys.readouterr().out
    median = own.median_of_three
    check_values(lambda x: jnp.cumsum(median(jnp.pad(median(x), ((1, 2), (0, 0)))), 0), (6, 3))


def test_rules_are_registered_once(own):
    rule = RULES["median_of_three"]
    assert rule is own.stream_median
    with pytest.raises(InputError, match=r"'tanh' has a rule already, elementwise.*replace=True"):
        jaxrnn.streaming.register("tanh", rule)
    check_refused(InputError, "a JAX primitive or its name, not 3", jaxrnn.streaming.register, 3, rule)
    check_refused(InputError, "'mine' must be a function", jaxrnn.streaming.register, "mine", "rule")
    assert jaxrnn.streaming.register(own.median_p, rule, replace=True) is rule


def test_one_call_registers_both_rules(monkeypatch, tmp_path):
    """A step with a primitive of one's own is exported with the rule that was registered beside the stream rule."""
    for table in (RULES, EXPORTS):  # without the entry before and after the test
        monkeypatch.setitem(table, "squashed", None)
        del table["squashed"]
    squashed = Primitive("squashed")
    squashed.def_impl(whole := lambda x: x / (1 + jnp.abs(x)))
    squashed.def_abstract_eval(lambda x: x)
    mlir.register_lowering(squashed, mlir.lower_fun(whole, multiple_results=False))
    path, example = tmp_path / "step.onnx", jnp.asarray(X)
    with pytest.raises(UnsupportedError, match=r"squashed.*jaxrnn.streaming.register\(..., export=rule\)"):
        jaxrnn.export_onnx(squashed.bind, None, path, example=example)
    with pytest.raises(InputError, match="the export rule of 'squashed' must be a function"):
        jaxrnn.streaming.register(squashed, jnp.tanh, export="Softsign")
    write = lambda lowering, equation, x: lowering.writer.node("Softsign", x)  # noqa: E731
    jaxrnn.streaming.register(squashed, export=write)(lambda run, equation, x: run.frame_by_frame(equation, x))
    jaxrnn.export_onnx(squashed.bind, None, path, example=example)
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Softsign"]
    np.testing.assert_allclose(jaxrnn.load(path)({"x": X})["y"], X / (1 + np.abs(X)), rtol=1e-6)
    streamed = jaxrnn.stream(squashed.bind, example, axes=0)
    np.testing.assert_allclose(streamed.run(None, example), X / (1 + np.abs(X)), rtol=1e-6)


def test_an_entry_is_enough(monkeypatch):
    """An operation on elements with a singular derivative streams, has gradients, and is exported."""
    for table in (RULES, ADDED):  # without the entry before and after the test
        monkeypatch.setitem(table, "root", None)
        del table["root"]
    root, entry = Primitive("root"), Entry(kind="elementwise", operator="Sqrt", harmless=0.5)
    root.def_impl(jnp.sqrt)
    root.def_abstract_eval(lambda x: x)
    ad.defjvp(root, lambda tangent, x: tangent / (2 * jnp.sqrt(x)))
    batching.defvectorized(root)
    mlir.register_lowering(root, mlir.lower_fun(jnp.sqrt, multiple_results=False))
    register = functools.partial(jaxrnn.streaming.register, root)
    for kind, words in (("other", "must be an Entry of a kind in .*, not 'other'"), ("product", "'root' needs a rule")):
        check_refused(InputError, words, register, entry=Entry(kind=kind))
    assert register(entry=entry) is RULES.of("tanh")
    check_refused(InputError, "'root' has a rule already", register, entry=entry)
    check_values(lambda x: root.bind(x[2:] ** 2), (5, 3), lengths=(3, 8))
    check_gradients(lambda x: root.bind(x[2:] ** 2), (5, 3))
    verify_lowering(root.bind, np.abs(X), operators={"Sqrt": 1})


def test_a_primitive_without_a_rule_says_how_to_add_one():
    nameless = Primitive("nameless")
    nameless.def_abstract_eval(lambda x: x)
    with pytest.raises(jaxrnn.StreamError, match=r"'nameless'.*add a rule with jaxrnn.streaming.register"):
        jaxrnn.stream(nameless.bind, jax.ShapeDtypeStruct((4, 3), np.float32), axes=0)


def test_a_rule_gives_as_many_results_as_its_primitive(own, monkeypatch):
    monkeypatch.setitem(RULES, "median_of_three", lambda run, equation, x: [x, x])
    with pytest.raises(jaxrnn.StreamError, match=r"'median_of_three'.*returns 2 results, and the primitive has 1"):
        jaxrnn.stream(own.median_of_three, jax.ShapeDtypeStruct((4, 3), np.float32), axes=0)


@pytest.mark.parametrize("fault", ["", "reach", "value", "fill"])
def test_the_check_for_authors_finds_a_wrong_rule(fault, monkeypatch):
    """The maximum of a frame and the frame before, with a rule that has a fault."""
    monkeypatch.setitem(RULES, "peaks", None)
    del RULES["peaks"]
    peaks = Primitive("peaks")  # without rules for batches and without a lowering
    peaks.def_impl(lambda x: jnp.maximum(x, jnp.pad(x, (1, 0))[:-1]))
    peaks.def_abstract_eval(lambda x: x)

    @jaxrnn.streaming.register(peaks)
    def rule(run, equation, x):
        frames = run.window(x if fault == "fill" else run.fill(run.spread(x), 0.0), 1, "history")
        largest = frames[1:] if fault == "value" else jnp.maximum(frames[1:], frames[:-1])
        return run.make(largest, x.axis, x.timeline, x.delay, x.reach if fault == "reach" else x.reach.unbounded)

    for kind, words in (
        ("reach", "`receptive_field` 1, and an output changes with 2 frames.*widen the `reach`"),
        ("value", r"output 0 for a recording of 6 frames in pulses of 1: \d of 6 elements differ"),
        ("fill", "output 0 for a recording of 1 frames.*NaNs are elsewhere"),
    ):
        if fault == kind:
            with pytest.raises(StreamError, match=words):
                jaxrnn.streaming.check(lambda x: peaks.bind(x), jnp.zeros(6), axes=0)
    if not fault:
        jaxrnn.streaming.check(lambda x: peaks.bind(x), jnp.zeros(6), axes=0)


def test_the_check_for_authors_takes_what_stream_takes():
    def network(weight, x):
        step = lambda h, frame: (jnp.tanh(frame @ weight + h),) * 2  # noqa: E731
        return {"y": jax.lax.scan(step, jnp.zeros(3), x["a"])[1] + x["b"][::2], "sum": x["a"].sum()}

    example = {"a": jnp.zeros((4, 3)), "b": jax.ShapeDtypeStruct((8, 3), np.float32)}
    jaxrnn.streaming.check(network, example, axes=0, params=jnp.ones((3, 3)))
    with pytest.raises(InputError, match="params must be arrays"):
        jaxrnn.streaming.check(network, example, axes=0, params=jax.ShapeDtypeStruct((3, 3), np.float32))
    with pytest.raises(StreamError, match="nothing was compared"):
        jaxrnn.streaming.check(lambda x: jnp.log(-1 - x * x), jnp.zeros(6), axes=0)


# -- operators


def model_of(*nodes, inputs=("x",)):
    value = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=SHAPE)
    graph = helper.make_graph(list(nodes), "own", [value(name) for name in inputs], [value("y")])
    return make_model(graph, "mine")


def doubled(x, other=None, *rest, times: int, offset: float = 0.0):
    return x * times + offset + (0 if other is None else other) + sum(rest)


def tripled(x, other=None, *rest, times: int, offset: float = 0.0):
    return x * times * 1.5 + offset


def cubed(x):
    return x**3


def layered(x, w, r):
    return [jnp.tanh(x), x[None, :1], x[None, :1]]


MINE = {("mine", "Doubled"): doubled}
X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def test_the_signature_is_the_schema():
    node = helper.make_node("Doubled", ["x", "", "x"], ["y"], domain="mine", times=2)
    model = jaxrnn.load(model_of(node), operators=MINE)
    np.testing.assert_array_equal(model({"x": X})["y"], 3 * X)
    for wrong, message in (
        ({"times": 2, "speed": 1}, r"mine::Doubled-1.*unknown attribute 'speed'"),
        ({}, "required attribute 'times' is missing"),
    ):
        with pytest.raises(ModelError, match=message):
            jaxrnn.load(model_of(helper.make_node("Doubled", ["x"], ["y"], domain="mine", **wrong)), operators=MINE)
    check_refused(UnsupportedError, r"mine::Doubled.*operators=", jaxrnn.load, model_of(node))
    assert inspect_model(model_of(node)).unsupported
    inspected = inspect_model(model_of(node), operators=MINE)
    assert not inspected.unsupported
    assert inspected.problem is None


def test_any_number_may_be_the_version_of_a_domain():
    """ONNX's own table of definitions takes numbers of 32 bits."""
    proto = model_of(helper.make_node("Doubled", ["x"], ["y"], domain="mine", times=2))
    proto.opset_import[1].version = 2**40
    np.testing.assert_array_equal(jaxrnn.load(proto, operators=MINE)({"x": X})["y"], 2 * X)


def test_operators_take_the_place_of_the_packages():
    proto = model_of(helper.make_node("Tanh", ["x"], ["y"]))
    plain, own = jaxrnn.load(proto), jaxrnn.load(proto, operators={("ai.onnx", "Tanh"): cubed})
    np.testing.assert_allclose(plain({"x": X})["y"], np.tanh(X), rtol=1e-6)
    np.testing.assert_allclose(own({"x": X})["y"], X**3, rtol=1e-6)
    with pytest.raises(InputError, match="a different program"):
        own.apply(plain.pack(plain.params), {"x": X})


def test_the_state_of_a_graph_with_a_jitted_operator_that_reads_a_constant():
    """JAX keeps a NumPy array of a jitted function as a constant of that function's jaxpr."""
    ramp = np.arange(X.shape[-1], dtype=np.float32)
    proto = model_of(helper.make_node("Ramp", ["x"], ["y"], domain="mine"))
    model = jaxrnn.load(proto, operators={("mine", "Ramp"): jax.jit(lambda x: x + ramp)})
    assert not model.state
    np.testing.assert_array_equal(model({"x": X})["y"], X + ramp)


def test_operators_are_part_of_the_model():
    proto = model_of(helper.make_node("Doubled", ["x"], ["y"], domain="mine", times=2))
    model, other = (jaxrnn.load(proto, operators={("mine", "Doubled"): each}) for each in (doubled, tripled))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again({"x": X})["y"], 2 * X)
    again.apply(model.pack(model.params), {"x": X})
    check_refused(InputError, "a different program", other.apply, model.pack(model.params), {"x": X})
    local = jaxrnn.load(proto, operators={("mine", "Doubled"): lambda x, *, times: x})
    check_refused(ModelError, r"cannot be pickled.*operators.*top level of a module", pickle.dumps, local)


def test_the_name_of_ones_own_operator_means_nothing():
    """An operator of another domain that is called LSTM is none, and begins no recurrence anew at each call."""
    node = helper.make_node("LSTM", ["x", "x", "x"], ["y"], domain="mine")
    assert jaxrnn.load(model_of(node), operators={("mine", "LSTM"): layered}).state == ()
    made = helper.make_node("Constant", [], ["c"], domain="mine", value_float=2.0)
    model = jaxrnn.load(
        model_of(made, helper.make_node("Mul", ["x", "c"], ["y"])),
        operators={("mine", "Constant"): lambda *, value_float: jnp.float32(value_float + 1)},
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(model.apply({}, {"x": x})["y"], 3 * x)


def test_an_identity_of_ones_own_starts_a_recurrence():
    """The zeros of a carry that the operator changes are no parameter, as with any other operator."""
    trip, go = (TensorProto.INT64, []), (TensorProto.BOOL, [])
    changes = helper.make_node("Identity", ["h0"], ["h1"], domain="mine")
    body = graph_of(
        [helper.make_node("And", ["go", "go"], ["same"]), changes],
        {"t": trip, "go": go, "h0": [1]},
        {"same": go, "h1": [1]},
    )
    nodes = [
        helper.make_node("Loop", ["trips", "", "zero"], ["hn"], body=body),
        helper.make_node("Add", ["x", "hn"], ["y"]),
    ]
    constants = {"trips": np.array(4), "zero": np.zeros(1, np.float32)}
    proto = make_model(graph_of(nodes, {"x": [1]}, {"y": [1]}, constants), "mine")
    assert jaxrnn.load(proto, operators={("mine", "Identity"): lambda x: x + 1}).params == {}


def repeated(x, count: Static):
    return jnp.concatenate([x] * int(count))


def test_inputs_that_must_be_known_while_tracing():
    proto = model_of(helper.make_node("Repeat", ["x", "count"], ["y"], domain="mine"))
    proto.graph.initializer.append(helper.make_tensor("count", TensorProto.FLOAT, [], [2]))
    model = jaxrnn.load(proto, operators={("mine", "Repeat"): repeated})
    assert not model.params
    np.testing.assert_array_equal(jax.jit(model.apply)({}, {"x": X})["y"], np.concatenate([X, X]))


WRONG = {
    "no pair": ({"Doubled": doubled}, r"'Doubled'.*a pair \(domain, name\)"),
    "no function": ({("mine", "A"): 3}, "mine::A: an operator is a function, not int"),
    "any attribute": ({("mine", "A"): lambda x, **more: x}, r"mine::A: \*\*more would hide unknown attributes"),
    "an input with a value": ({("mine", "A"): lambda x, y=1: x}, "the input 'y' has the default 1.*keyword-only"),
    "an attribute of no kind": ({("mine", "A"): lambda x, *, y={}: x}, r"attribute 'y' has the default \{\}"),
    "no signature": ({("mine", "A"): max}, "mine::A: its signature.*cannot be read"),
    "no dict": ([doubled], r"a dict \{\(domain, name\): function\}"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_operator_is_refused(what):
    operators, message = WRONG[what]
    with pytest.raises(InputError, match=message):
        jaxrnn.load(model_of(helper.make_node("Tanh", ["x"], ["y"])), operators=operators)


def loop_of(*nodes):
    """Four trips of a Loop in which nodes make h1 of the trip's number t, h0 and x."""
    t, go = (TensorProto.INT64, []), (TensorProto.BOOL, [])
    nodes = [*nodes, helper.make_node("And", ["go", "go"], ["same"])]
    body = graph_of(nodes, {"t": t, "go": go, "h0": [1]}, {"same": go, "h1": [1]})
    loop = helper.make_node("Loop", ["trips", "", "h"], ["hn"], body=body)
    return make_model(graph_of([loop], {"x": [4, 1], "h": [1]}, {"hn": [1]}, {"trips": np.array(4)}))


def test_what_overrides_an_operator_of_onnx_is_called_in_loops_too():
    """Nothing is done with it that only ONNX's own allows: it is no way to see through, and no read of a frame."""
    x, h = np.array([[1.0], [2], [3], [4]], np.float32), np.array([16.0], np.float32)
    halving = jaxrnn.load(
        loop_of(helper.make_node("Identity", ["h0"], ["h1"])), operators={("", "Identity"): lambda x: x * 0.5}
    )
    assert halving.apply({}, {"x": x, "h": h})["hn"] == 1
    twice = {("", "Gather"): lambda data, indices, *, axis=0: 2 * jnp.take(data, indices, axis=axis)}
    doubling = jaxrnn.load(
        loop_of(helper.make_node("Gather", ["x", "t"], ["v"]), helper.make_node("Add", ["h0", "v"], ["h1"])),
        operators=twice,
    )
    assert doubling.apply({}, {"x": x, "h": h * 0})["hn"] == 20


@pytest.mark.thorough
def test_the_check_of_empty_results_does_not_end_the_process():
    """XLA ends the process when it compiles this function on one frame (in a process of its own, for that reason)."""
    code = (
        "import jax.numpy as jnp; from jaxrnn.streaming import check; "
        "cut = lambda x: jnp.concatenate([jnp.zeros((1,)), x[:-1]])[1:]; "
        "check(lambda x: (cut(x), 2 * x), jnp.zeros(5), axes=0, lengths=(1, 3), pulses=((1,),)); print('compared')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout == "compared\n", found.stderr[-500:]
