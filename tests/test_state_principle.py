"""State by principle: proved by flow, said by names, asked, declared; and sizes by equations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from refusals import check_refused
from state_graphs import check_asked, example_of
from tiers import in_later_tier, of_tiers

import jaxrnn
from jaxrnn.cells.cell import RNN, Weights
from jaxrnn.cells.recurrence import run_layer
from jaxrnn.jaxprs.flows import COPY, UPDATED, grades
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx.state.sizes import Sizes, follow

CELL = "a = MatMul (f, W) b = MatMul (h, R) s = Add (a, b) h_out = Tanh (s) y = MatMul (h_out, V)"
WEIGHTS = {"W": (4, 4), "R": (4, 4), "V": (4, 2), "GW": (1, 12, 4), "GR": (1, 12, 4), "P": (4, 17)}
WORDS = "k v x key value audio frames mask mel noisy tokens keys cache".split()  # noqa: SIM905


def load(graph, weights=None, opset=18, **options):
    """The model of a graph in ONNX's text format, with random weights by shape."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>' + graph)
    rng = np.random.default_rng(0)
    for name, shape in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    return jaxrnn.load(proto, **options)


def external(model):
    return {variable.input: variable.output for variable in model.state if variable.kind == "external"}


@pytest.mark.parametrize("word", WORDS)
def test_a_growing_cache_is_proved_under_any_name(word):
    graph = f"""g (float[1,1,4] inp, float[1,past,4] {word}) => (float[1,1,4] y, float[1,longer,4] {word}_out) {{
      {word}_out = Concat <axis = 1> ({word}, inp)
      y = ReduceMean <keepdims = 1> ({word}_out, axis)
    }}"""
    graph = graph.replace(") {", ") <int64[1] axis = {1}> {", 1)
    assert external(load(graph)) == {word: f"{word}_out"}


@pytest.mark.parametrize(
    "update", ["Mul (gain, f)", "Mul (gain, old)", "MatMul (gain, A)", "Max (gain, f)", "Identity (f)"]
)
def test_any_arithmetic_is_state_where_names_pair(update):
    graph = f"""g (float[1,4] inp, float[1,4] speaker, float[1,4] gain) => (float[1,4] y, float[1,4] gain_out)
    <float[1] old = {{0.9}}> {{
      f = Sigmoid (inp)
      gain_out = {update}
      z = Add (gain, speaker)
      y = Mul (z, inp)
    }}"""
    assert external(load(graph, {"A": (4, 4)})) == {"gain": "gain_out"}


def test_a_ring_with_a_known_place_is_state_by_its_name_and_asked_about_without():
    graph = """g (float[1,1] inp, float[1,1] other, float[1,5] NAME) => (float[1,1] y, float[1,5] NEW)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}, int64[1] five = {5}, int64[1] one = {1}> {
      before = Slice (NAME, zero, two, one)
      after = Slice (NAME, three, five, one)
      NEW = Concat <axis = 1> (before, inp, after)
      mean = ReduceMean <keepdims = 1> (NEW, one)
      y = Add (mean, other)
    }"""
    assert external(load(graph.replace("NAME", "buf").replace("NEW", "buf_out"))) == {"buf": "buf_out"}
    unnamed = load(graph.replace("NAME", "t1").replace("NEW", "t2").replace("inp", "t3").replace("other", "t4"))
    check_asked(r"'t3' -> 'y'.*found: 't1' -> 't2'", unnamed)


def test_data_that_another_output_comes_from_is_no_state():
    graph = """g (float[1,4] x, float[1,4] speaker, float[1,4] h)
    => (float[1,4] emb, float[1,2] logits, float[1,4] h_out) {
      by_speaker = MatMul (speaker, W)
      emb = Add (x, by_speaker)
      sum = Add (emb, h)
      h_out = Tanh (sum)
      logits = MatMul (h_out, V)
    }"""
    assert external(load(graph, {"W": (4, 4), "V": (4, 2)})) == {"h": "h_out"}


def test_a_name_for_a_result_is_no_next_state():
    """By its name, the sum is data; the flow alone would propose it first."""
    graph = """g (float[1,4] x, float[1,4] past_key) => (float[1,4] product, float[1,4] logits) {
      bounded = Tanh (x)
      product = Mul (bounded, past_key)
      logits = Add (bounded, past_key)
    }"""
    check_asked("'past_key' -> 'logits'", model := load(graph))
    assert example_of(model) == {"past_key": "product"}
    assert example_of(load(graph.replace("logits", "other"))) == {"past_key": "other"}


def test_elements_are_not_followed_where_nothing_can_be_state():
    """A network without recurrences, whose outputs have other shapes, takes no memory for its elements."""
    graph = "g (float[1,10000] x) => (float[1] y) { a = Tanh (x) b = Sin (a) y = ReduceMax <keepdims = 0> (b, axis) }"
    graph = graph.replace("{", "<int64[1] axis = {1}> {", 1)
    assert load(graph, limits=jaxrnn.Limits(constant_bytes=2**16)).state == ()


def test_averages_that_read_each_other():
    """If each keeps a part of itself as well, names decide. Else the names may be exchanged."""
    graph = """g (float[1,4] x, float[1,4] m, float[1,4] v) => (float[1,4] y, float[1,4] m_out, float[1,4] v_out)
    <float[1] old = {0.9}, float[1] new = {0.1}> {
      a = Mul (v, old)
      b = Mul (x, new)
      c = Mul (m, old)
      m_out = Sum (a, b, M)
      v_out = Sum (c, b, V)
      y = Sub (m_out, v_out)
    }"""
    named = {"m": "m_out", "v": "v_out"}
    assert external(load(graph.replace("M)", "c)").replace("V)", "a)"))) == named
    crossed = graph.replace(", M)", ")").replace(", V)", ")")
    check_asked("disagree.*'m' -> 'v_out'", load(crossed))
    assert external(load(crossed, state=named)) == named


def test_data_joined_to_its_features_is_no_cache():
    """An output may grow only along an axis that the input leaves open, and its features are no buffer of it."""
    graph = f"""g (float[u1,u2] t1, float[u3,4] t2) => (float[o1,o2] t3, float[o3,4] t4) {{
      f = Identity (t1) {CELL.replace("h_out", "t4").replace("MatMul (h,", "MatMul (t2,").replace("y =", "z =")}
      t3 = Concat <axis = 1> (t1, t4)
    }}"""
    check_asked("'t1' -> 't4', 't2' -> 't4'; found: none", load(graph, WEIGHTS))


def test_what_equations_fix_does_not_grow():
    graph = """g (float[b,u,4] t1, float[b,1,4] t3) => (float[b,4] t5, float[b,w,4] t2) <int64[1] one = {1}> {
      f = Squeeze (t1, one)
      t5 = Tanh (f)
      t2 = Concat <axis = 1> (t1, t3)
    }"""
    check_asked("'t1' -> 't2', 't3' -> 't2'; found: none", load(graph))


def test_names_against_a_recurrence_are_asked_about():
    graph = """g (float[1,1,4] x, float[1,1,4] z, float[1,1,4] h)
    => (float[1,1,1,4] y, float[1,1,4] last, float[1,1,4] h_out) {
      y, last = GRU <hidden_size = 4> (x, W, R, "", "", h)
      h_out = MatMul (z, V)
    }"""
    check_asked(r"'h' -> 'last', 'h' -> 'h_out'", load(graph, {"W": (1, 12, 4), "R": (1, 12, 4), "V": (4, 4)}))


def test_the_only_input_is_data():
    graph = "g (int64[1] n) => (int64[1] m, float[1,4] y) <int64[1] one = {1}> { m = Add (n, one) y = Gather (E, m) }"
    assert load(graph, {"E": (9, 4)}).state == ()


@pytest.mark.parametrize("names", [("h0", "hn"), ("c_0", "c_n"), ("h_0", "hn")])
def test_conventions_of_pytorch(names):
    body = CELL.replace("h_out", names[1]).replace("MatMul (h,", f"MatMul ({names[0]},")
    graph = f"""g (float[1,4] x, float[1,4] cond, float[1,4] {names[0]}) => (float[1,2] y, float[1,4] {names[1]}) {{
      f = Add (x, cond) {body}
    }}"""
    assert external(load(graph, WEIGHTS)) == {names[0]: names[1]}


STEP = """step (float[1,1,FEATURES] spec, float[1,4] state) => (float[1,1,FEATURES] y, float[1,4] state_out)
<int64[3] rows = {FEATURES,1,1}, int64[3] flat = {1,1,FEATURES}, int64[1] one = {1}> {
  by_frequency = Reshape (spec, rows)
  ["bands"] bands, _ = GRU <hidden_size = 1> (by_frequency, W, R)
  features = Reshape (bands, flat)
  row = Squeeze (features, one)
  a = MatMul (row, A)
  b = MatMul (state, B)
  sum = Add (a, b)
  state_out = Tanh (sum)
  c = MatMul (state_out, C)
  d = Unsqueeze (c, one)
  y = Mul (spec, d)
}""".replace("FEATURES", "6")
STEP_WEIGHTS = {"W": (1, 3, 1), "R": (1, 3, 1), "A": (6, 4), "B": (4, 4), "C": (4, 6)}


def test_a_recurrence_over_frequency_forgets_nothing():
    model = load(STEP, STEP_WEIGHTS)
    assert [(variable.kind, variable.input) for variable in model.state] == [("external", "state")]
    frames = np.random.default_rng(0).normal(size=(5, 1, 1, 6)).astype(np.float32)
    outputs, _ = model.scan(model.params, model.init(), {"spec": frames})
    state = model.init()
    for frame, expected in zip(frames, outputs["y"], strict=True):
        y, state = model.step(model.params, state, {"spec": frame})
        np.testing.assert_allclose(y["y"], expected, atol=1e-6)


def test_an_operator_of_the_user_carries_what_its_function_says():
    """A function that ignores the initial state gives no state, whatever the operator's name is."""
    graph = """g (float[1,1,4] x, float[1,1,4] h) => (float[1,1,1,4] y, float[1,1,4] h_last) {
      y, h_last = RNN <hidden_size = 4> (x, W, R, "", "", h)
    }"""
    shapes = {"W": (1, 4, 4), "R": (1, 4, 4)}
    assert "RNN" in load(graph, shapes).state[0].reason

    def ignoring(X, W, R, B=None, sequence_lens=None, initial_h=None, *, hidden_size=0):
        y = jnp.tanh(X @ W[0].T)
        return [y[:, None], y]

    model = load(graph, shapes, operators={("", "RNN"): ignoring})
    assert "RNN" not in "".join(variable.reason for variable in model.state)


@pytest.mark.parametrize("form", ["scan", "while", "layer", "counted", "unchanged", "forgetful"])
def test_what_the_loops_of_a_users_operator_carry(form):
    """Its loops tell: counters and values that no step changes are no state."""
    graph = """g (float[t,1,4] x, float[1,1,4] a) => (float[t,1,4] y, float[1,1,4] b) {
      ["mine"] y, b = Mine (x, W, a)
    }"""

    def mine(x, w, a):
        def step(h, frame):
            h = jnp.tanh(frame + h @ w)
            return h, h

        if form == "layer":
            weights = Weights(w[None], w[None])
            y, (h,) = run_layer([RNN()], weights, x, [a])
            return [y[:, 0], h]
        if form == "while":
            body = lambda state: (state[0] + 1, step(state[1], x[0])[0])  # noqa: E731
            _, h = jax.lax.while_loop(lambda state: state[0] < 3, body, (0, a[0]))
            return [x + h, h[None]]
        if form == "counted":
            (_, h), y = jax.lax.scan(lambda c, f: ((c[0] + 1, step(c[1], f)[0]), f), (0, a[0]), x)
            return [y, h[None]]
        if form == "unchanged":
            h, y = jax.lax.scan(lambda h, frame: (h, frame + h), a[0], x)
            return [y, h[None]]
        h, y = jax.lax.scan(step, jnp.zeros_like(a[0]) if form == "forgetful" else a[0], x)
        return [y, h[None] + a if form == "forgetful" else h[None]]

    options = {"state": {}} if form in ("unchanged", "forgetful") else {}
    state = load(graph, {"W": (4, 4)}, operators={("", "Mine"): mine}, **options).state
    if form == "unchanged":
        assert not state
    elif form == "forgetful":
        assert [(each.name, each.kind) for each in state] == [("mine.carry", "internal")]
    else:
        slot = {"scan": "carry", "layer": "h"}.get(form, "carry 1")
        (variable,) = state
        assert (variable.input, variable.output, variable.node) == ("a", "b", "mine")
        assert variable.reason == f"{slot} of Mine 'mine' starts from 'a' and ends in 'b', at the same places"


@pytest.mark.parametrize("steps", [1, 3])
def test_what_a_scan_hands_on_is_moved(steps):
    """What its body gives back unchanged comes out as the elements that went in, beside what it carries."""
    graph = f"""g (float[{steps},1,4] x, float[1,4] h, float[1,2] past)
      => (float[{steps},1,4] y, float[1,4] a, float[1,4] b)
    {{
      both = Concat <axis = 1> (past, past)
      a, same, y = Scan <num_scan_inputs = 1, body = body (float[1,4] i, float[1,4] k, float[1,4] f)
        => (float[1,4] o, float[1,4] l, float[1,4] p) {{
          s = MatMul (i, R)
          t = Add (s, f)
          o = Tanh (t)
          l = Identity (k)
          p = Identity (f)
        }}> (h, both, x)
      b = Identity (same)
    }}"""
    model = load(graph, {"R": (4, 4)}, state={"h": "a"})
    flow = follow(model.program, {}, {}, ["h", "past"], True)
    assert (grades(flow.outputs["b"].codes["past"]) == COPY).all()
    assert (grades(flow.outputs["a"].codes["h"]) == UPDATED).all()
    assert [site.slot for site in flow.sites] == ["i"]


@pytest.mark.parametrize("function", ["Tanh", "Softsign", "Gelu", "Mish"])
def test_a_function_of_several_steps_is_a_function_of_its_argument(function):
    """The hidden state of an LSTM in single operators comes from its cell through any function of one argument."""
    graph = f"""g (float[1,3] x, float[1,4] a, float[1,4] b) => (float[1,3] y, float[1,4] p, float[1,4] q) {{
      s = MatMul (x, W) t = MatMul (a, R) u = Add (s, t) i = Sigmoid (u) g = Tanh (u)
      kept = Mul (i, b) new = Mul (i, g) q = Add (kept, new)
      outer = {function} (q) p = Mul (i, outer) y = MatMul (p, V)
    }}"""
    model = load(graph, {"W": (3, 4), "R": (4, 4), "V": (4, 3)}, opset=20)
    assert external(model) == {"a": "p", "b": "q"}


EQUATIONS = {
    "one batch under three names": (
        "g (float[b,4] x, float[b2,4] h) => (float[b,2] y, float[b3,4] h_out)",
        f"f = Identity (x) {CELL}",
        {"b": "b", "b2": "b"},
    ),
    "features by weights": (
        "g (float[u1,u2] x, float[u3,u4] h) => (float[o1,2] y, float[o2,4] h_out)",
        f"f = Identity (x) {CELL}",
        {"u1": "u1", "u2": 4, "u3": "u1", "u4": 4},
    ),
    "a squeezed axis": (
        "g (float[u1,u9,4] x, float[u1,4] h) => (float[o1,2] y, float[o2,4] h_out)",
        f"f = Squeeze (x, one) {CELL}",
        {"u1": "u1", "u9": 1},
    ),
    "a batch that the exporter wrote into a reshape": (
        "g (float[u1,4] x, float[u2,4] h) => (float[o1,2] y, float[o2,4] h_out)",
        f"f = Reshape (x, shape) {CELL}",
        {"u1": 1, "u2": "u2"},
    ),
    "a batch of 1 in the next value of a state": (
        "g (float[u1,4] x, float[u2,4] last) => (float[o1,2] y, float[o2,4] last_out)",
        "last_out = Reshape (x, shape) d = Sub (last_out, last) y = MatMul (d, V)",
        {"u1": 1, "u2": 1},
    ),
    "features by the weights of a layer": (
        "g (float[t,b,f] x, float[1,b2,u] h) => (float[t,1,b,u] y, float[1,b2,u] h_out)",
        'y, h_out = GRU <hidden_size = 4> (x, GW, GR, "", "", h)',
        {"t": "t", "b": "b", "f": 4, "b2": "b", "u": 4},
    ),
    "a constant of as many frames as the first trial has": (
        "g (float[4,t] x, float[b,4] h) => (float[b,2] y, float[b,4] h_out)",
        "p = Add (x, P) f = ReduceMean <keepdims = 0> (p, one) n = Add (f, h) h_out = Tanh (n) y = MatMul (n, V)",
        {"t": 17, "b": "b"},
    ),
    "two ties": (
        "g (float[b,t,4] x, float[b2,t2,4] far, float[b3,4] h) => (float[b,t,4] y, float[b3,4] h_out)",
        "s = Add (x, far) m = ReduceMean <keepdims = 0> (s, one) n = Add (m, h) h_out = Tanh (n) y = Tanh (s)",
        {"b": "b", "t": "t", "b2": "b", "t2": "t", "b3": "b"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUATIONS)
def test_sizes_by_equations(name):
    head, body, expected = EQUATIONS[name]
    constants = "<int64[1] one = {1}, int64[2] shape = {1, 4}>"
    model = load(f"{head} {constants} {{ {body} }}", WEIGHTS)
    assert model.dimensions == expected
    assert list(external(model).values()) in (["h_out"], ["last_out"])


def test_a_reshape_of_nothing_gives_no_equation():
    graph = "g (float[t,0] x) => (float[o,3] y) <int64[2] shape = {2, 3}> { y = Reshape <allowzero = 1> (x, shape) }"
    assert load(graph).dimensions == {"t": "t"}


def test_many_dimensions_stay_independent():
    """Each has a number of its own while the equations are solved, however many there are."""
    sizes = Sizes([f"batch{index}" for index in range(40)] + [f"u{index}" for index in range(40)])
    for base, spread in ((16, False), (16, True), (4096, True)):
        assert len({*sizes.distinct(base, spread).values()}) == 80
    inputs = [f"float[batch{index},{index + 2}] b{index}" for index in range(6)] + ["float[time,5] far"]
    outputs = [f"float[o{index},{index + 2}] y{index}" for index in range(6)] + ["float[o,5] z"]
    body = " ".join([*(f"y{index} = Tanh (b{index})" for index in range(6)), "z = Tanh (far)"])
    model = load(f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {body} }}", state={})
    assert all(name == value for name, value in model.dimensions.items())


def test_a_size_that_nothing_reads_is_an_error():
    head, body, _ = EQUATIONS["one batch under three names"]
    graph, shapes = f"{head} {{ {body} }}", WEIGHTS
    with pytest.raises(jaxrnn.InputError, match="the nodes need this dimension to be 'b'"):
        load(graph, shapes).init(dims={"b2": 5})
    for dims, words in (
        ({"batch": 5}, r"no input has an open dimension of this name; the open dimensions are: b, b2"),
        *(({"b": given}, "expected a name, a size from 1 on, or a multiple") for given in (0, True, "4+b", 2.5)),
    ):
        check_refused(jaxrnn.InputError, words, load, graph, shapes, dims=dims)
    assert load(graph, shapes, dims={"b": np.int64(3)}).inputs == load(graph, shapes, dims={"b": 3}).inputs
    model = load(graph, shapes, dims={"b": "batch", "b2": "batch"})
    assert (model.inputs[0].shape, model.dimensions, model.spec.batch_symbol) == (
        ("batch", 4), {"batch": "batch"}, "batch",
    )  # fmt: skip
    assert load(graph, shapes, dims={"b": 3}).inputs[0].shape == (3, 4)


STREAMED = {
    "two inputs by equations": ("keras_two_inputs", "unk__5035", {}),
    "two inputs by name": ("keras_two_inputs", "time", {"unk__5033": "time", "unk__5035": "time", "unk__5032": 1}),
    "a first state that is an input": ("keras_two_inputs_state", "unk__168", {}),
    "two rates": ("tworates_script", "U", {"T": "4*U"}),
}


@pytest.mark.parametrize("name", of_tiers(STREAMED, ["two rates"], ["two inputs by name"]))
def test_streams_over_all_inputs(models, name):
    """Every input of a class of dimensions is streamed, at its rate; the framework's outputs at every length."""
    file, symbol, dims = STREAMED[name]
    model = jaxrnn.load(models / "speech" / f"{file}.onnx", dims=dims)
    streamed = model.stream(symbol)
    with np.load(models / "speech" / f"{file}.npz") as arrays:
        for length in sorted({key.split(".")[0] for key in arrays.files}, key=int):
            given, expected = (
                {key.split(f".{side}.")[1]: arrays[key] for key in arrays.files if key.startswith(f"{length}.{side}.")}
                for side in ("in", "out")
            )
            outputs = streamed.run(model.params, given)
            for key, value in expected.items():
                np.testing.assert_allclose(outputs[key], value, atol=2e-6, err_msg=f"{length}: {key}")


#: Files, dimensions, the nodes with internal state, and the number of recurrences inside a frame.
SPEECH = {
    "rates that the file relates": ("tworates_dynamo", {}, ["node_gru__1"], 0),
    "rates that the caller relates": ("tworates_script", {"T": "4*U"}, ["/g/GRU"], 0),
    "over frequency, then over time": ("keras_frequency_bigru", {}, ["functional_1_1/gru_3_1/while_loop"], 2),
    "over frequency only": ("keras_frequency_bigru_only", {}, [], 2),
}


@pytest.mark.parametrize("name", in_later_tier(SPEECH, ["over frequency only"]))
def test_internal_state_is_along_time(models, name):
    file, dims, nodes, of_frame = SPEECH[name]
    model = jaxrnn.load(models / "speech" / f"{file}.onnx", dims=dims)
    assert [(each.kind, each.node) for each in model.state] == [("internal", node) for node in nodes]
    assert len(model.frame_recurrences) == of_frame


@pytest.mark.thorough
def test_unrelated_rates_are_asked_for(models):
    check_asked(
        r"'/Concat_1' fails.*Relate or fix open dimensions with .*dims=",
        jaxrnn.load(models / "speech" / "tworates_script.onnx"),
    )


def test_what_a_declared_state_leaves_to_the_frame():
    """A recurrence of a fixed length that the declaration does not name starts anew in every step, and is listed."""
    graph = """g (float[8,1,4] x, float[1,1,4] a) => (float[8,1,1,4] y, float[1,1,4] b) {
      ["bands"] y, last = GRU <hidden_size = 4> (x, W, R)
      b = Add (a, last)
    }"""
    shapes = {"W": (1, 12, 4), "R": (1, 12, 4)}
    model = load(graph, shapes, state={"a": "b"})
    assert [each.name for each in model.state] == ["a"]
    assert model.frame_recurrences == ("h of GRU 'bands'",)
    inspected = inspect_model(model.proto, state={"a": "b"})
    assert inspected.frame_recurrences == ("h of GRU 'bands'",)
    carried = graph.replace("(x, W, R)", '(x, W, R, "", "", a)').replace("b = Add (a, last)", "b = Identity (last)")
    assert load(carried, shapes).frame_recurrences == ()


W1, R1 = (np.full((1, 12, 4), value, np.float32) for value in (0.3, -0.2))
W2, R2 = (np.repeat(array, 2, 0) for array in (W1, R1))
#: Graphs in which a recurrence is not what its names or its ends suggest.
NOT_QUITE = {
    "both directions": (
        'y, hn = GRU <hidden_size = 4, direction = "bidirectional"> (x, W2, R2, "", "", h0)',
        "float[T,1,4] x, float[2,1,4] h0",
        "float[T,2,1,4] y, float[2,1,4] hn",
    ),
    "a loop from the end": (
        """sh = Shape <start = 0, end = 1> (x)
        n = Squeeze (sh)
        t = Constant <value = bool {1}> ()
        last = Sub (n, one)
        s_out = Loop (n, t, s) <body = b (int64 i, bool c, float[4] q) => (bool go, float[4] qo) {
            go = Identity (c)
            k = Sub (last, i)
            f = Gather (x, k)
            th = Tanh (q)
            qo = Add (th, f) }>""",
        "float[T,4] x, float[4] s",
        "float[4] s_out",
    ),
    "a layer that starts from zeros": (
        """inner, end = GRU <hidden_size = 4> (x, W1, R1)
        s = Squeeze (inner, axis)
        y, h_out = GRU <hidden_size = 4> (s, W1, R1, "", "", h)""",
        "float[1,1,4] x, float[1,1,4] h",
        "float[1,1,1,4] y, float[1,1,4] h_out",
    ),
}
#: Graphs whose state jaxrnn asks for.
ASKED = {
    "a function of data": (
        """h0 = Tanh (spk)
        y, hN = GRU <hidden_size = 4> (x, W1, R1, "", "", h0)""",
        "float[T,1,4] x, float[1,1,4] spk",
        "float[T,1,1,4] y, float[1,1,4] hN",
        "'spk' -> 'hN'",
    ),
    "a part of the final value": (
        """all, end = GRU <hidden_size = 4> (x, W1, R1, "", "", h)
        a, c = Split <axis = 2, num_outputs = 2> (end)
        d, b = Split <axis = 2, num_outputs = 2> (x)
        y = Concat <axis = 2> (a, b)""",
        "float[1,1,4] x, float[1,1,4] h",
        "float[1,1,4] y",
        "only a part of the recurrence that it starts",
    ),
}


def parsed(body, inputs, outputs):
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    constants = {"W1": W1, "R1": R1, "W2": W2, "R2": R2, "one": np.int64(1), "axis": np.array([1])}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items() if name in body
    )
    return proto


@pytest.mark.parametrize("name", NOT_QUITE)
def test_recurrences_that_no_step_continues(name):
    """Beside a pair that names or flow suggest, a recurrence that every call begins again is internal."""
    model = jaxrnn.load(parsed(*NOT_QUITE[name]))
    assert [variable.kind for variable in model.state] == ["external", "internal"]
    check_refused(jaxrnn.StateError, "forgets its state", model.step, model.params, None, {})


@pytest.mark.parametrize("name", ASKED)
def test_pairs_that_look_like_state_are_asked_for(name):
    *graph, words = ASKED[name]
    check_asked(words, jaxrnn.load(parsed(*graph)))
