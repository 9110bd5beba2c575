"""Kinds of state update, as layers of a random step model (`state_generator`)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

#: By name, a function from a `state_generator.Graph` and a signal to a signal.
UPDATES: dict[str, Callable] = {}
#: Updates that a reader recognizes in the graph without names.
EVIDENT: set[str] = set()
#: Updates by several frames in one step.
CHUNKED: set[str] = set()
#: Updates whose weights determine the features of state and data.
FIXED_BY_WEIGHTS: set[str] = set()


def update(name: str, *, evident: bool = False, chunked: bool = False, by_weights: bool = False):
    """Register a kind of update."""

    def register(function):
        UPDATES[name] = function
        for wanted, names in ((evident, EVIDENT), (chunked, CHUNKED), (by_weights, FIXED_BY_WEIGHTS)):
            if wanted:
                names.add(name)
        return function

    return register


# Recurrent nodes, Scan and Loop.


def recurrent(g, signal, kind, gates):
    order = g.rng.choice(("1BH", "1BH", "BH", "B1H", "HB")) if not g.by_weights else g.rng.choice(("1BH", "BH"))
    hidden, frames = g.size["H"], g.frames(signal)
    carried = [g.state(order, words) for words in (("h", "c") if kind == "LSTM" else ("h",))]
    initial = [g.turn(value, order, "1BH") for value in carried]
    weights = g.weight(1, gates * hidden, 4), g.weight(1, gates * hidden, hidden)
    bias = g.weight(1, 2 * gates * hidden) if g.chance(0.5) else ""
    count = 1 + len(carried)
    y, *ends = g.op(kind, frames, *weights, bias, "", *initial, outputs=count, hidden_size=hidden)
    for value, end in zip(carried, ends, strict=True):
        g.update(value, g.turn(end, "1BH", order), shown=y)
    return g.like(signal, g.op("MatMul", g.squeeze(y, 1), g.weight(hidden, 4)))


for kind, gate_count in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
    layer = functools.partial(recurrent, kind=kind, gates=gate_count)
    update(f"{kind} node", evident=True, chunked=True, by_weights=True)(layer)


def looped_body(g):
    """Return nodes from a carry ``/c`` and a frame ``/f`` to the new carry ``/n``: a cell, or an average."""
    node = helper.make_node
    if g.chance(0.6):
        nodes = [node("MatMul", ["/f", g.weight(4, 4)], ["/a"]), node("MatMul", ["/c", g.weight(4, 4)], ["/b"])]
        nodes += [node("Add", ["/a", "/b"], ["/s"]), node("Tanh", ["/s"], ["/n"])]
    else:
        nodes = [node("Mul", ["/c", g.const(np.float32(0.8))], ["/a"])]
        nodes += [node("Mul", ["/f", g.const(np.float32(0.2))], ["/b"]), node("Add", ["/a", "/b"], ["/n"])]
    return [*nodes, node("Neg", ["/n"], ["/y"])]


def infos(*names, kind=F32, shape=("rows", 4)):
    return [helper.make_tensor_value_info(name, kind, shape) for name in names]


@update("Scan", evident=True, chunked=True)
def scan(g, signal):
    order, frames = g.order("BF"), g.frames(signal)
    h = g.state(order, "h carry acc")
    body = helper.make_graph(looped_body(g), "body", infos("/c", "/f"), infos("/n", "/y"))
    end, y = g.op("Scan", g.turn(h, order, "BF"), frames, outputs=2, body=body, num_scan_inputs=1)
    g.update(h, g.turn(end, "BF", order))
    return g.like(signal, y)


@update("Loop", evident=True, chunked=True)
def loop(g, signal):
    order, frames = g.order("BF"), g.frames(signal)
    h = g.state(order, "h carry acc")
    nodes = [helper.make_node("Gather", [frames, "/i"], ["/f"], axis=0), *looped_body(g)]
    nodes.append(helper.make_node("Identity", ["/going"], ["/on"]))
    flags = functools.partial(infos, kind=BOOL, shape=[])
    body = helper.make_graph(
        nodes,
        "body",
        [*infos("/i", kind=I64, shape=[]), *flags("/going"), *infos("/c")],
        [*flags("/on"), *infos("/n", "/y")],
    )
    trips = g.const(np.array(g.count(signal)))
    if "T" in g.open_letters or g.chance(0.5):
        trips = g.squeeze(g.slice(g.op("Shape", frames), 0, 1, 0), 0)
    end, y = g.op("Loop", trips, "", g.turn(h, order, "BF"), outputs=2, body=body)
    g.update(h, g.turn(end, "BF", order))
    return g.like(signal, y)


# Cells in single operators.


def gates(g, count, x, h):
    """Return the pre-activations of ``count`` gates."""
    hidden = g.size["H"]
    if g.chance(0.35):
        return [g.either_way("Add", g.linear(x, 4, hidden), g.linear(h, hidden, hidden)) for _ in range(count)]
    if g.chance(0.4):
        both = g.op("Concat", x, h, axis=1)
        total = g.linear(both, 4 + hidden, count * hidden)
    else:
        total = g.either_way("Add", g.linear(x, 4, count * hidden), g.linear(h, hidden, count * hidden))
    total = g.op("Add", total, g.weight(count * hidden))
    return [total] if count == 1 else g.op("Split", total, outputs=count, axis=1)


def new_of_cell(g, kind, x, carried):
    """Return the new carry of a cell; all values are ``"BH"``."""
    h, hidden = carried[0], g.size["H"]
    if kind == "RNN":
        return [g.op(g.rng.choice(("Tanh", "Tanh", "Sigmoid")), *gates(g, 1, x, h))]
    if kind == "LSTM":
        i, f, o, n = gates(g, 4, x, h)
        i, f, o, n = g.op("Sigmoid", i), g.op("Sigmoid", f), g.op("Sigmoid", o), g.op("Tanh", n)
        c = g.either_way("Add", g.either_way("Mul", f, carried[1]), g.either_way("Mul", i, n))
        return [g.op("Mul", o, g.op("Tanh", c)), c]
    z, r = (g.op("Sigmoid", gate) for gate in gates(g, 2, x, h))
    n = g.op("Add", g.linear(x, 4, hidden), g.linear(g.op("Mul", r, h), hidden, hidden))
    return [mixed(g, z, h, g.op("Tanh", n))]


def mixed(g, z, old, new):
    """Return ``z * old + (1 - z) * new``."""
    if g.chance(0.3):
        return g.op("Add", new, g.op("Mul", z, g.op("Sub", old, new)))
    rest = g.op("Sub", 1.0, z)
    return g.either_way("Add", g.either_way("Mul", z, old), g.either_way("Mul", rest, new))


def written_out(g, signal, kind):
    order, x = g.order("BH"), g.frame(signal)
    carried = [g.state(order, words) for words in (("h", "c") if kind == "LSTM" else ("h hidden hx",))]
    new = new_of_cell(g, kind, x, [g.turn(value, order, "BH") for value in carried])
    for value, end in zip(carried, new, strict=True):
        g.update(value, g.turn(end, "BH", order))
    return (g.linear(new[0], g.size["H"], 4) if g.size["H"] != 4 else new[0]), "BF"


# Not evident for RNN: without names, x and h are alike in ``tanh(x W + h R)``.
for kind in ("LSTM", "GRU", "RNN"):
    update(f"{kind} written out", evident=kind != "RNN", by_weights=True)(functools.partial(written_out, kind=kind))


@update("minimal GRU", evident=True)
def minimal_gru(g, signal):
    order, x = g.order("BF"), g.frame(signal)
    h = g.state(order, "h z_state")
    z, new = g.op("Sigmoid", g.linear(x, 4, 4)), g.op("Tanh", g.linear(x, 4, 4))
    out = mixed(g, z, g.turn(h, order, "BF"), new)
    g.update(h, g.turn(out, "BF", order))
    return out, "BF"


# Arithmetic on every element.


def elementwise(name, words, **options):
    """Register a kind of update whose function takes and returns values in the layout of the state."""

    def register(function):
        @update(name, **options)
        def layer(g, signal):
            order, x = g.order("BF"), g.frame(signal)
            state = g.state(order, words, values="positive" if name in ("product", "maximum") else "")
            new, y = function(g, state, g.turn(x, "BF", order))
            g.update(state, new)
            return g.turn(y, order, "BF"), "BF"

        return layer

    return register


def average_of(g, m, x, rate):
    if g.chance(0.3):
        return g.op("Add", m, g.op("Mul", g.op("Sub", x, m), rate))
    return g.either_way("Add", g.either_way("Mul", m, 1 - rate), g.either_way("Mul", x, rate))


@elementwise("average", "mean avg level ema")
def average(g, m, x):
    new = average_of(g, m, x, g.rng.choice((0.1, 0.05)))
    return new, g.op("Sub", x, new)


@elementwise("gated average", "mean trace smooth")
def gated_average(g, m, x):
    new = mixed(g, g.op("Sigmoid", x), m, x)
    return new, g.op("Sub", x, new)


@elementwise("product", "gain scale")
def product(g, gain, x):
    new = g.either_way("Mul", gain, g.op("Add", g.op("Mul", g.op("Tanh", x), 0.2), 1.0))
    return new, g.op("Mul", x, new)


@elementwise("decay", "S energy trace")
def decay(g, s, x):
    new = g.either_way("Mul", s, 0.9)
    if g.chance(0.5):
        new = g.either_way("Add", new, x)
        return new, g.op("Tanh", new)
    return new, g.op("Add", x, new)


@elementwise("sum", "total angle integral")
def sum_(g, s, x):
    new = g.either_way("Add", s, x)
    return new, g.op("Sin", new)


@elementwise("maximum", "peak top env")
def maximum(g, peak, x):
    old = g.op("Mul", peak, 0.95) if g.chance(0.5) else peak
    new = g.either_way("Max", old, g.op("Abs", x))
    return new, g.op("Div", x, g.op("Add", new, 1.0))


@elementwise("replaced", "delayed held one_back")
def replaced(g, last, x):
    return (g.op("Mul", x, 0.5) if g.chance(0.3) else g.op("Identity", x)), g.op("Sub", x, last)


@elementwise("cascade", "stage slow")
def cascade(g, slow, x):
    """An average of an average."""
    order = g.layout(slow)
    fast = g.state(order, "fast first")
    new = average_of(g, fast, x, 0.2)
    g.update(fast, new)
    return average_of(g, slow, new, 0.1), g.op("Sub", x, new)


@elementwise("averages that read each other", "slow m2")
def mutual(g, v, x):
    order = g.layout(v)
    m = g.state(order, "fast m1")
    g.update(m, g.op("Sum", g.op("Mul", m, 0.5), g.op("Mul", v, 0.4), g.op("Mul", x, 0.05)))
    return g.op("Sum", g.op("Mul", v, 0.5), g.op("Mul", m, 0.4), g.op("Mul", x, 0.1)), g.op("Sub", x, v)


@elementwise("two histories", "older d2")
def two_histories(g, second, x):
    order = g.layout(second)
    first = g.state(order, "newer d1")
    y = g.op("Sum", x, g.op("Mul", first, 0.5), g.op("Mul", second, 0.25))
    g.update(first, g.op("Identity", x))
    return g.op("Identity", first), y


@elementwise("flag beside average", "mean avg")
def flag_beside_average(g, m, x):
    flag = g.state("1", "started seen", BOOL, "zero")
    g.update(flag, g.const(np.array([True])))
    new = g.op("Where", flag, average_of(g, m, x, 0.1), x)
    return new, g.op("Sub", x, new)


@elementwise("Kalman filter", "estimate")
def kalman(g, estimate, x):
    order = g.layout(estimate)
    variance = g.state(order, "P variance", values="positive")
    predicted = g.op("Add", variance, 0.1)
    gain = g.op("Div", predicted, g.op("Add", predicted, 0.5))
    g.update(variance, g.op("Mul", g.op("Sub", 1.0, gain), predicted))
    new = g.op("Add", estimate, g.op("Mul", gain, g.op("Sub", x, estimate)))
    return new, g.op("Sub", x, new)


# Products with matrices.


def contraction(g):
    """Draw a square matrix with singular values 0.9."""
    return g.const((0.9 * np.linalg.qr(g.numbers.normal(size=(4, 4)))[0]).astype(np.float32))


@update("matrix", by_weights=True)
def matrix(g, signal):
    order, x = g.order("BF"), g.frame(signal)
    s = g.state(order, "S modes")
    new = g.op("MatMul", g.turn(s, order, "BF"), contraction(g))
    if g.by_weights or g.chance(0.6):
        new = g.either_way("Add", new, g.linear(x, 4, 4) if g.by_weights or g.chance(0.5) else x)
    g.update(s, g.turn(new, "BF", order))
    return g.op("Add", g.op("MatMul", x, g.weight(4, 4)), new), "BF"


@update("Kalman filter of matrices")
def kalman_of_matrices(g, signal):
    order, x, a = g.order("BF"), g.frame(signal), contraction(g)
    s, p = g.state(order, "estimate S"), g.state("FF", "P covariance")
    predicted = g.op("MatMul", g.op("MatMul", a, p), g.op("Transpose", a, perm=[1, 0]))
    predicted = g.op("Add", predicted, g.const(np.eye(4, dtype=np.float32)))
    gain = g.op("Softmax", g.op("Mul", predicted, 0.5), axis=-1)
    prior = g.op("MatMul", g.turn(s, order, "BF"), a)
    new = g.op("Add", prior, g.op("MatMul", g.op("Sub", x, prior), gain))
    g.update(p, g.op("Mul", predicted, 0.6))
    g.update(s, g.turn(new, "BF", order))
    return new, "BF"


@update("outer products")
def outer_products(g, signal):
    """Linear attention."""
    order, x = g.rng.choice(("BFH", "BHF", "B1FH", "1BFH")), g.frame(signal)
    s = g.state(order, "S kv memory wkv")
    k, q = (g.op("Unsqueeze", g.linear(x, 4, 4), g.const(np.array([2]))) for _ in "kq")
    v = g.op("Unsqueeze", g.linear(x, 4, g.size["H"]), g.const(np.array([1])))
    added = g.op("Mul", k, v) if g.chance(0.5) else g.op("MatMul", k, v)
    old = g.turn(s, order, "BFH")
    if g.chance(0.5):
        old = g.op("Mul", old, g.op("Sigmoid", k) if g.chance(0.5) else 0.9)
    new = g.either_way("Add", old, added)
    g.update(s, g.turn(new, "BFH", order))
    y = g.op("ReduceSum", g.op("Mul", q, new), g.const(np.array([1])), keepdims=0)
    return g.linear(y, g.size["H"], 4), "BF"


# Flags and counters.


@update("constant")
def constant(g, signal):
    x, kind = g.frame(signal), g.rng.choice((BOOL, BOOL, F32, I64))
    flag = g.state(g.rng.choice(("1", "1", "")), "started flag seen", kind, "zero")
    order = g.layout(flag)
    true = np.ones([1] * len(order), helper.tensor_dtype_to_np_dtype(kind))
    g.update(flag, g.const(true))
    first = flag if kind == BOOL else g.op("Cast", flag, to=BOOL)
    return g.op("Where", first, x, g.op("Mul", x, 2.0)), "BF"


@update("counter", evident=True)
def counter(g, signal):
    x, order = g.frame(signal), g.rng.choice(("1", "1", ""))
    n = g.state(order, "count n pos step_index", I64, "zero")
    up = g.either_way("Add", n, g.const(np.ones([1] * len(order), np.int64)))
    if g.chance(0.3):
        up = g.op("Mod", up, g.const(np.array(8)))
    g.update(n, up)
    return g.op("Mul", x, g.op("Cos", g.op("Cast", n, to=F32))), "BF"


# Buffers.


def buffer_order(g, axis="K"):
    letters = f"B{axis}F"
    orders = [letters, letters, f"{axis}BF", f"BF{axis}", f"F{axis}B", f"B1{axis}F", f"BF{axis}1"]
    return g.rng.choice([*orders, *([f"{axis}F", f"F{axis}"] if g.batch == 1 else [])])


def frames_in(g, signal, order, axis):
    """Return the frames of a signal in the layout of a buffer."""
    return g.turn(g.frames(signal), "TBF", order.replace(axis, "T"))


@update("sliding buffer", evident=True, chunked=True)
def sliding_buffer(g, signal):
    order = buffer_order(g)
    buffer, axis, count = g.state(order, "buffer context fifo left_pad"), order.index("K"), g.count(signal)
    old_first = g.chance(0.7)
    new = frames_in(g, signal, order, "K")
    window = g.op("Concat", *((buffer, new) if old_first else (new, buffer)), axis=axis)
    kept = g.slice(window, count, 2**62, axis) if old_first else g.slice(window, 0, 3, axis)
    if old_first and g.chance(0.3):
        kept = g.slice(window, -3, 2**62, axis)
    if count == 1 and g.chance(0.3):
        rest = g.slice(buffer, 1, 3, axis) if old_first else g.slice(buffer, 0, 2, axis)
        kept = g.op("Concat", *((rest, new) if old_first else (new, rest)), axis=axis)
    g.update(buffer, kept)
    taps = g.turn(g.op("ReduceMean", window, axes=[axis], keepdims=1), order.replace("K", "1"), "BF")
    return g.op("Tanh", taps), "BF"


@update("convolution cache", evident=True, chunked=True)
def convolution_cache(g, signal):
    order = g.rng.choice(("BFK", "BFK", "BKF", "KBF", "BF1K"))
    cache = g.state(order, "conv_cache cache left_context")
    frames = g.turn(g.frames(signal), "TBF", "BFT")
    window = g.op("Concat", g.turn(cache, order, "BFK"), frames, axis=2)
    kept = g.slice(window, -3, 2**62, 2)
    g.update(cache, g.turn(kept, "BFK", order))
    if g.chance(0.3):
        plane, kernel = g.op("Unsqueeze", window, g.const(np.array([2]))), g.weight(4, 4, 1, 4)
        y = g.squeeze(g.op("Conv", plane, kernel), 2)
    else:
        groups = g.rng.choice((1, 4))
        y = g.op("Conv", window, g.weight(4, 4 // groups, 4), group=groups)
    return g.like(signal, g.op("Tanh", g.op("Transpose", y, perm=[2, 0, 1])))


@update("context beside a block of open length", evident=True)
def context(g, signal):
    """The front end of a recogniser: a strided convolution over a block of sound and the samples before the block."""
    g.open_letters.add("W")
    g.size |= {"C": g.rng.choice((1, 3, 16, 64)), "W": g.rng.choice((2, 5, 40))}
    kept = g.size["C"]
    order = g.rng.choice(("BC", "BC", "B1C", *(("C",) if g.batch == 1 else ())))
    axis, block = order.index("C"), order.replace("C", "W")
    cache = g.state(order, "context cache tail")
    sound = g.data(block, word=g.rng.choice(("wav", "pcm", "block")))
    old_first = g.chance(0.8)
    window = g.op("Concat", *((cache, sound) if old_first else (sound, cache)), axis=axis)
    g.update(cache, g.slice(window, -kept, 2**62, axis) if old_first else g.slice(window, 0, kept, axis))
    heard = g.op("Conv", g.turn(window, block, "B1W"), g.weight(2, 1, kept + 1), strides=[2])
    level = g.op("MatMul", g.op("ReduceMax", heard, axes=[2], keepdims=0), g.weight(2, 4))
    return g.op("Add", g.frame(signal), level), "BF"


@update("growing cache", evident=True, chunked=True)
def growing_cache(g, signal):
    """Attention over all past frames, with keys and values in one cache or two."""
    order = g.rng.choice(("BPF", "BPF", "B1PF", "PBF", "BFP"))
    axis, frames = order.index("P"), g.frames(signal)
    caches, old_first = [], g.chance(0.8)
    words_of_both = ("keys past_key|present_key past_key_values.0.key|present.0.key", "values past_value|present_value")
    for words in words_of_both[: g.rng.choice((1, 2))]:
        cache = g.state(order, words)
        made = g.op("MatMul", frames, g.weight(4, 4)) if g.chance(0.7) else frames
        new = g.turn(made, "TBF", order.replace("P", "T"))
        joined = g.op("Concat", *((cache, new) if old_first else (new, cache)), axis=axis)
        g.update(cache, joined)
        caches.append(g.turn(joined, order, "BPF"))
    query = g.turn(g.frame(signal), "BF", "B1F")
    scores = g.op("MatMul", query, g.op("Transpose", caches[0], perm=[0, 2, 1]))
    return g.turn(g.op("MatMul", g.op("Softmax", scores, axis=-1), caches[-1]), "B1F", "BF"), "BF"


def ring_buffer(g, signal, form):
    order = buffer_order(g)
    ring, axis = g.state(order, "ring buffer delay_line"), order.index("K")
    new = g.turn(g.frame(signal), "BF", order.replace("K", "1"))
    kind = g.rng.choice(("counter", "counter", "constant", "data"))
    if kind == "counter":
        place = g.state("1", "pos write_index ptr", I64, "zero")
        g.update(place, g.op("Mod", g.op("Add", place, g.const(np.array([1]))), g.const(np.array([3]))))
    else:
        place = g.const(np.array([1])) if kind == "constant" else g.data("1", I64, "position")
    if form == "ScatterND":
        at = g.op("Unsqueeze", place, g.const(np.array([1])))
        frame = g.turn(new, order.replace("K", "1"), "1BF")
        written = g.turn(g.op("ScatterND", g.turn(ring, order, "KBF"), at, frame), "KBF", order)
    elif form == "ScatterElements":
        at = g.op("Expand", place, g.op("Shape", new))
        written = g.op("ScatterElements", ring, at, new, axis=axis)
    elif form == "Where":
        numbers = np.arange(3).reshape([3 if letter == "K" else 1 for letter in order])
        written = g.op("Where", g.op("Equal", g.const(numbers), place), new, ring)
    else:
        g.compiles &= kind == "constant"
        behind = g.op("Add", place, g.const(np.array([1])))
        written = g.op("Concat", g.slice(ring, 0, place, axis), new, g.slice(ring, behind, 2**62, axis), axis=axis)
    g.update(ring, written)
    taps = g.turn(g.op("ReduceMean", written, axes=[axis], keepdims=1), order.replace("K", "1"), "BF")
    return g.op("Add", g.op("Tanh", taps), g.frame(signal)), "BF"


for form in ("ScatterND", "ScatterElements", "Where", "slices"):
    update(f"ring by {form}", evident=True)(functools.partial(ring_buffer, form=form))


# Several in one, and attention.


def packed(g, signal, kinds):
    along = g.rng.choice(("stacked", "joined"))
    g.size["Q"] = 4 * len(kinds)
    order = g.rng.choice(("LBF", "BLF")) if along == "stacked" else g.order("BQ")
    g.size["L"] = len(kinds)
    x = g.frame(signal)
    whole = g.state(order, "packed states")
    read = whole if along == "stacked" else g.turn(whole, order, "BQ")
    axis = order.index("L") if along == "stacked" else 1
    width, news = (1 if along == "stacked" else 4), []
    for place, kind in enumerate(kinds):
        part = g.slice(read, place * width, (place + 1) * width, axis)
        h = g.squeeze(part, axis) if along == "stacked" else part
        if kind == "RNN":
            new = g.op("Tanh", g.op("Add", g.linear(x, 4, 4), g.linear(h, 4, 4)))
        elif kind == "GRU":
            new = mixed(g, g.op("Sigmoid", g.op("Add", g.linear(x, 4, 4), g.linear(h, 4, 4))), h, x)
        else:
            new = average_of(g, h, x, 0.1) if kind == "average" else g.op("Mul", x, 0.5)
        x = g.op("Add", g.linear(new, 4, 4), h)
        news.append(g.op("Unsqueeze", new, g.const(np.array([axis]))) if along == "stacked" else new)
    joined = g.op("Concat", *news, axis=axis)
    g.update(whole, joined if along == "stacked" else g.turn(joined, "BQ", order))
    return x, "BF"


@update("packed cells", evident=True)
def packed_cells(g, signal):
    return packed(g, signal, g.rng.choices(("GRU", "GRU", "RNN"), k=g.rng.choice((2, 3))))


@update("packed averages")
def packed_averages(g, signal):
    return packed(g, signal, g.rng.sample(("GRU", "average", "RNN", "replaced"), g.rng.choice((2, 3))))


@update("attention weights")
def attention_weights(g, signal):
    """Location-sensitive attention over a memory that is data."""
    if g.batch is None and g.chance(0.5):
        g.open_letters.add("S")
    order, x = g.rng.choice(("BS", "BS", "1BS", "B1S")), g.frame(signal)
    memory = g.data("BSF", word=g.rng.choice(("encoded", "encoder_out", "source")))
    w = g.state(order, "alignment attention_weights")
    old = g.turn(w, order, "B1S")
    located = g.op("Conv", old, g.weight(1, 1, 3), pads=[1, 1])
    query = g.turn(g.op("MatMul", x, g.weight(4, 4)), "BF", "BF1")
    scores = g.op("Add", g.turn(g.op("MatMul", memory, query), "BS1", "BS"), g.squeeze(located, 1))
    new = g.op("Softmax", scores, axis=-1)
    if g.chance(0.4):
        total = g.state(order, "cumulative attention_sum")
        g.update(total, g.turn(g.op("Add", g.turn(total, order, "BS"), new), "BS", order))
    g.update(w, g.turn(new, "BS", order))
    return g.turn(g.op("MatMul", g.turn(new, "BS", "B1S"), memory), "B1F", "BF"), "BF"
