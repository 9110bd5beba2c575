"""Facts of operators: one registration serves every part, and no list of names is left elsewhere."""

from __future__ import annotations

import ast
import contextlib
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import jaxrnn
from jaxrnn._jax.versions import Scan
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx import operators
from jaxrnn.onnx.operators import elementwise_operators, operator_table
from jaxrnn.onnx.registry import Carries, Movement, Traits, since

PACKAGE = Path(jaxrnn.__file__).parent
NAMES = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
#: Modules that name ONNX's operators for another reason than to state facts about them.
OTHERWISE = {
    "cells/__init__.py": "names of cells",
    "cells/cell.py": "the values of ONNX's attribute `activations`",
    "onnx/operators": "the registry",
    "export": "patterns of nodes that lowering writes, and kernels that ONNX Runtime lacks",
    "frameworks/keras_complex.py": "nodes that a framework writes for complex numbers, and real nodes in their place",
    "model/opening/formulas.py": "nodes that compute sizes",
    "verification/peers.py": "kernels of ONNX Runtime that end the process",
}


def names_in(node: ast.AST) -> list[str]:
    """The names of operators in a set, tuple, list, dict or split string."""
    items = []
    if isinstance(node, ast.Set | ast.Tuple | ast.List):
        items = node.elts
    elif isinstance(node, ast.Dict):
        items = [key for key in node.keys if key is not None]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
        text = node.func.value
        return [word for word in text.value.split() if word in NAMES] if isinstance(text, ast.Constant) else []
    return [each.value for each in items if isinstance(each, ast.Constant) and each.value in NAMES]


@pytest.mark.thorough
def test_no_list_of_operators_outside_of_the_registry():
    """A fact in a list of names is wrong for a user's operator, and for the next operator that somebody adds."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(tuple(OTHERWISE)):
            tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            found += [f"{place}:{node.lineno}: {names}" for node in tree if len(names := names_in(node)) > 1]
    assert not found
    assert names_in(ast.parse("{'Add': 1, 'Sub': 2}").body[0].value) == ["Add", "Sub"]


def leaky(x, h=None, *, rate: float):
    start = jnp.zeros(x.shape[1:], x.dtype) if h is None else jnp.asarray(h)

    def step(carry, frame):
        carry = rate * carry + frame
        return carry, carry

    last, y = jax.lax.scan(step, start, jnp.asarray(x))
    return [y, last]


def plus(a, b):
    return a + b


def turned(x):
    return jnp.swapaxes(x, -1, -2)


REGISTERED = {
    ("mine", "LeakyIntegrator"): since(leaky, 1, carries=Carries({"h": (1, 1)}, time_axis=0)),
    ("mine", "Plus"): since(plus, 1, elementwise=True, linear="all"),
    ("mine", "Turned"): since(turned, 1, moves=Movement.REARRANGES),
}
STEPS = """g (float[3,1,4] x, float[1,4] a) => (float[3,1,4] y, float[1,4] b) {
  ["leak"] y, b = mine.LeakyIntegrator <rate = 0.5> (x, a)
}"""
OFFLINE = """g (float[time,1,4] x) => (float[time,1,4] y) {
  zeros = mine.Turned (Z)
  ["leak"] y = mine.LeakyIntegrator <rate = 0.5> (x, zeros)
}"""
LOOP = """g (float[5,2] x) => (float[2] y) {
  trips = Constant <value_int = 4> ()
  start = Constant <value_floats = [0.0, 0.0]> ()
  y = Loop <body = step (int64 trip, bool go, float[2] s) => (bool go_on, float[2] s_next) {
    one = Constant <value_int = 1> ()
    next = mine.Plus (trip, one)
    frame = Gather <axis = 0> (x, next)
    s_next = Add (s, frame)
    go_on = Identity (go)
  }> (trips, , start)
}"""


@contextlib.contextmanager
def in_the_table():
    """Inside, the operators are registered as those of the package are."""
    table = operator_table()
    table |= REGISTERED
    operators.find_operator.cache_clear()
    try:
        yield None
    finally:
        for key in REGISTERED:
            del table[key]
        operators.find_operator.cache_clear()


@pytest.fixture(params=["given to load", "registered"])
def own(request):
    with contextlib.nullcontext(REGISTERED) if request.param == "given to load" else in_the_table() as given:
        yield given


def proto_of(graph, **weights):
    proto = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18, "mine" : 1]> ' + graph)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


def test_state_of_ones_own_operator(own):
    model = jaxrnn.load(proto_of(STEPS), operators=own)
    (variable,) = model.state
    assert (variable.input, variable.output, variable.kind, variable.node) == ("a", "b", "external", "leak")
    assert variable.reason == "h of LeakyIntegrator 'leak' starts from 'a' and ends in 'b', at the same places"
    x = np.random.default_rng(0).standard_normal((3, 1, 4)).astype(np.float32)
    outputs, state = model.step(model.params, model.init(), {"x": x})
    np.testing.assert_allclose(state["a"], outputs["y"][-1])
    (found,) = inspect_model(proto_of(STEPS), operators=own).recurrent
    assert (found.name, found.operator, found.direction) == ("leak", "LeakyIntegrator", "forward")
    assert found.carries == ("a: float32[1, 4]",)


def test_an_offline_file_with_ones_own_operator(own):
    """Zeros that only begin the recurrence are not a parameter, though an own operator moves them before."""
    model = jaxrnn.load(proto_of(OFFLINE, Z=np.zeros((4, 1), np.float32)), operators=own)
    assert not model.params
    (variable,) = model.state
    assert (variable.name, variable.kind) == ("leak.h", "internal")
    streamed = model.stream("time", pulse=2)
    x = np.random.default_rng(0).standard_normal((5, 1, 4)).astype(np.float32)
    np.testing.assert_allclose(streamed.run(model.params, {"x": x})["y"], model.apply({}, {"x": x})["y"], rtol=1e-6)


def test_without_the_facts_the_same_files_say_less():
    """The test of the tests above: a bare function has no traits."""
    bare = {key: next(iter(versions.values())) for key, versions in REGISTERED.items()}
    assert jaxrnn.load(proto_of(OFFLINE, Z=np.zeros((4, 1), np.float32)), operators=bare).params
    assert inspect_model(proto_of(STEPS), operators=bare).recurrent == ()
    model = jaxrnn.load(proto_of(LOOP), operators=bare)
    assert len(scanned(model)) == 1


def scanned(model):
    """The shapes of what a loop takes frame by frame."""
    jaxpr = jax.make_jaxpr(model.apply)({}, {"x": np.ones((5, 2), np.float32)}).jaxpr
    loops = [each for each in jax.tree.leaves(jaxpr.eqns) if each.primitive.name == "scan"]
    (loop,) = loops
    return [atom.aval.shape for atom in Scan.of(loop).split(loop.invars)[2]]


def test_positions_by_ones_own_arithmetic(own):
    """The frames at positions that an own linear operator computes become scanned inputs of the loop."""
    model = jaxrnn.load(proto_of(LOOP), operators=own)
    assert (4, 2) in scanned(model)
    x = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    np.testing.assert_allclose(model({"x": x})["y"], x[1:].sum(0), rtol=1e-5)


def test_a_model_with_ones_own_registration_is_pickled():
    model = pickle.loads(pickle.dumps(jaxrnn.load(proto_of(STEPS), operators=REGISTERED)))
    assert [each.name for each in model.state] == ["a"]


def test_an_operator_that_takes_the_place_of_a_recurrence_carries_nothing():
    """The traits of the package's operator do not hold for a function of the caller."""
    graph = """g (float[3,1,4] x) => (float[3,1,1,4] y) { ["r"] y = RNN <hidden_size = 4> (x, W, R, "", "", Z) }"""
    zeros = {name: np.zeros((1, 4, 4), np.float32) for name in "WR"} | {"Z": np.zeros((1, 1, 4), np.float32)}
    ignoring = {
        ("", "RNN"): lambda x, w, r, b=None, lengths=None, h=None, *, hidden_size=None: (x + w + r + h)[:, None]
    }
    model = jaxrnn.load(proto_of(graph, **zeros), operators=ignoring)
    assert model.state == ()
    assert "Z" in model.params
    assert inspect_model(proto_of(graph, **zeros), operators=ignoring).recurrent == ()
    assert "Z" not in jaxrnn.load(proto_of(graph, **zeros)).params


def test_traits_of_entries_are_joined():
    entry = since(leaky, 1, elementwise=True) | since(leaky, 2, carries={"h": (1, 1)})
    assert set(entry) == {1, 2}
    assert entry.traits == Traits(elementwise=True, carries=Carries({"h": (1, 1)}))
    with pytest.raises(AssertionError, match="disagree on linear"):
        since(leaky, 1, linear="all") | since(leaky, 2, linear="each")


def test_operators_on_elements_keep_shapes():
    """Lowering moves transposes and reshapes over these operators."""
    x = np.ones((2, 3), np.float32)
    for name in elementwise_operators():
        if name not in ("BitwiseNot", "Cast", "Not"):
            versions = operator_table()["", name]
            assert versions[max(versions)](x).shape == x.shape, name
    assert {"Abs", "Cast", "Swish", "Sin"} <= set(elementwise_operators())
    assert not {"Add", "Clip", "Softmax", "Identity", "Bernoulli"} & set(elementwise_operators())
