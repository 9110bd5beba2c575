"""Bounded futures: the limit, the definition in NumPy, the stream, causality, and what cannot be bounded."""

from __future__ import annotations

import functools
import json

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from flax import nnx
from jax import lax
from onnx import TensorProto, helper, numpy_helper
from quick_compiling import QUICK as QUICK_COMPILING
from refusals import check_refused
from stream_fuzzing import campaign
from stream_fuzzing.trial import Cut, everything, joined_outputs
from tiers import of_tiers

import jaxrnn
from jaxrnn import InputError, StreamError
from jaxrnn.cli import main
from jaxrnn.export import verify_export
from jaxrnn.jaxprs.equations import walk
from jaxrnn.streaming import check

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(3, 3)).astype(np.float32)
X = RNG.normal(size=(23, 3)).astype(np.float32)
WHOLE = 40  # more frames than any recording has


def step(carry, frame):
    carry = jnp.tanh(frame @ WEIGHT.astype(frame.dtype) + 0.5 * carry)
    return carry, carry


def run(x, *, reverse=False):
    return lax.scan(step, jnp.zeros(3, x.dtype), x, reverse=reverse)[1]


def backwards(x):
    return run(x, reverse=True)


def flipped(x):
    """Both directions, the second between flips, with products and activations behind the first flip."""
    turned = jax.nn.relu(jnp.flip(x, 0) @ WEIGHT.astype(x.dtype) + 1)
    return jnp.concatenate([run(x), jnp.flip(run(turned), 0)], -1)


def sums(x):
    return lax.cumsum(x, 0, reverse=True) + jnp.flip(lax.cummax(jnp.flip(x, 0), axis=0), 0)


def instance_norm(x):
    mean = x.mean(0, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(0, keepdims=True) + 1e-5)


def shared_norm(x):
    distance = x - x.mean(0)
    return distance / jnp.sqrt((distance * distance).sum(0) / x.shape[0] + 1e-5)


def turned_norm(x):
    """A norm between flips, around a recurrence."""
    x = jnp.flip(x, 0)
    return jnp.flip(run((x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)), 0)


def pooled(x):
    """The mean of all frames, weighted by a softmax over time."""
    return x - (jax.nn.softmax(x @ WEIGHT, 0) * x).sum(0)


def global_norms(x):
    """Two global layer norms, of which the second is about the results of the first."""
    for _ in range(2):
        x = jax.nn.relu((x - x.mean()) / jnp.sqrt(x.var() + 1e-5) @ WEIGHT + 0.3)
    return x


def peak(x):
    return x / jnp.abs(x).max()


def excited(x):
    return x * jax.nn.sigmoid(x.mean(0) @ WEIGHT)


def conditioned(x):
    return x + lax.scan(step, jnp.zeros(3), x)[0]


def loud(x):
    return x - jax.nn.logsumexp(x, axis=0)


def linear_attention(x):
    """Products of each frame with a matrix of all frames."""
    return jax.nn.relu(x) @ (jax.nn.relu(x).T @ x) / (1 + x.shape[1] * jnp.abs(x).sum())


def attention(x):
    return jax.nn.softmax((x @ WEIGHT.astype(x.dtype)) @ x.T, -1) @ x


def layers(x):
    """Norms, reversed recurrences and attention in a loop over layers."""

    def layer(x, weight):
        x = run(instance_norm(x) @ weight, reverse=True)
        return attention(x), x.sum(1)

    return lax.scan(layer, x, np.stack([WEIGHT, WEIGHT.T]).astype(x.dtype))


@jax.custom_vjp
def ruled(x):
    return peak(x)


ruled.defvjp(lambda x: (peak(x), x), lambda x, g: (g,))


def wrapped(x):
    """Statistics in branches, loops, checkpoints and functions with derivative rules."""
    x = lax.cond(jnp.array(1) > 0, lambda x: conditioned(x), lambda x: jnp.flip(lax.cumsum(jnp.flip(x, 0)), 0), x)
    x = jax.checkpoint(lambda x: attention(x) + excited(x))(x)
    return ruled(lax.fori_loop(0, 2, lambda _, x: x - x.mean(0), x))


def of_results(x):
    """Statistics of results to which other statistics were added."""
    x = x - jax.nn.logsumexp(x, axis=0)
    return instance_norm(instance_norm(jax.nn.softmax(x - x.max(0), 0)) ** 2)


def frames(x):
    """The last frame so far, and the number of the largest."""
    return x * x[-1] + jnp.argmax(x, 0).astype(x.dtype)


def heads(x):
    """Attention of several heads with a mask of frames, and then with a mask of positions and frames."""
    queries, n = x.reshape(-1, 3, 1), jnp.arange(x.shape[0])
    scores = jnp.einsum("qhd,khd->hqk", queries @ jnp.ones((1, 2), x.dtype), queries @ jnp.ones((1, 2), x.dtype))
    for mask in ((x[:, 0] > -1)[None], (x[:, 0] > -1)[None] & (n[:, None] >= n) | (n[:, None] == n)):
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
        queries = jnp.einsum("hqk,khd->qhd", weights, queries)
    return queries.reshape(-1, 3)


def associated(x):
    combine = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
    return jaxrnn.signal.associative_scan(combine, (jax.nn.sigmoid(x), x), reverse=True)[1]


def parts(x):
    """Operations along the channels between two flips: parts, a running sum, an order, a pad, a place."""
    x = jnp.flip(x, 0)
    first, second = jnp.split(jnp.pad(x, ((0, 0), (0, 1))), 2, 1)
    y = jnp.cumsum(jnp.concatenate([second, first], 1)[:, :3], 1) + jnp.sort(x, 1)
    return jnp.flip(run(y) * jnp.argmax(x, 1).astype(x.dtype)[:, None], 0)


#: Functions in which several operations are bounded, or operations inside of others.
CONSTRUCTS = {each.__name__: each for each in (layers, wrapped, of_results, frames, heads, associated)}
CASES = {
    each.__name__: each
    for each in (
        *(
            backwards,
            flipped,
            sums,
            instance_norm,
            shared_norm,
            turned_norm,
            global_norms,
            peak,
            excited,
            pooled,
            conditioned,
            loud,
            linear_attention,
            parts,
        ),
        attention,
    )
}
QUICK = ["flipped", "instance_norm", "attention", "excited", "parts"]
THOROUGH = ["backwards", "sums", "layers", "heads", "associated"]
RECURRENT = {"backwards", "flipped", "parts", "sums"}


def bounded(name, **options):
    return jaxrnn.bounded({**CASES, **CONSTRUCTS}[name], X, axes=0, **options)


@pytest.mark.parametrize("name", of_tiers([*CASES, *CONSTRUCTS], QUICK, THOROUGH))
def test_a_bound_longer_than_the_recording_changes_nothing(name):
    for block, lengths in ((None, (5, 23)), (4, (1, 23))):
        live = bounded(name, future=WHOLE, past=WHOLE, block=block)
        for frames in lengths:
            known = jax.jit({**CASES, **CONSTRUCTS}[name])(X[:frames])
            for found, expected in zip(jax.tree.leaves(live(X[:frames])), jax.tree.leaves(known), strict=True):
                np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)


def expected(name, x, future, past, block):
    """The definition: each block, from what it may see, by the function itself."""
    return np.asarray(jax.jit(functools.partial(blocks, name, future, past, block))(x))  # one program


def blocks(name, future, past, block, x):
    frames = []
    for start in range(0, len(x), block):
        end = min(start + block + future, len(x))
        if name == "attention":
            seen = x[max(0, start - past) : end]
            scores = (x[start : start + block] @ WEIGHT) @ seen.T
            frames.append(jax.nn.softmax(scores, -1) @ seen)
        elif name in RECURRENT:
            rest = CASES[name](x[start:end])[:block]
            if name == "flipped":  # the forward half has no bound
                rest = jnp.concatenate([run(x)[start : start + block], rest[:, 3:]], -1)
            frames.append(rest)
        else:
            frames.append(CASES[name](x[:end])[start : start + block])
    return jnp.concatenate(frames)


@pytest.mark.parametrize(
    "name",
    of_tiers([name for name in CASES if name not in ("global_norms", "turned_norm")], QUICK, [*THOROUGH[:2], "peak"]),
)
def test_each_block_sees_what_the_definition_says(name):
    for future, block, lengths in ((0, 1, (14,)), (2, 1, (1, 4)), (3, 4, (1, 4, 14)), (5, 2, (14,))):
        live = bounded(name, future=future, past=4, block=block)
        for frames in lengths:
            known = expected(name, X[:frames], future, 4, block)
            np.testing.assert_allclose(live(X[:frames]), known, rtol=0, atol=3e-6, err_msg=f"{future} {block} {frames}")


@pytest.mark.parametrize(("future", "block"), of_tiers([(0, None), (1, 1), (5, 4), (16, 7)], [(5, 4)], []))
@pytest.mark.parametrize("name", of_tiers([*CASES, *CONSTRUCTS], QUICK, THOROUGH))
def test_streams_are_exact(name, future, block):
    check(bounded(name, future=future, past=6, block=block), X, axes=0, lengths=(1, 6, 11))


ALL_LENGTHS = [
    (name, future, block)
    for future in (0, 1, 5, 16)
    for name, block in (("flipped", 7), ("instance_norm", 4), ("attention", 1), ("attention", 7))
]


@pytest.mark.parametrize(("name", "future", "block"), of_tiers(ALL_LENGTHS, [("attention", 5, 7)], []))
def test_all_lengths(name, future, block):
    """The stream for all lengths of 0 to 40 frames and four schedules of pulses, and gradients of some, in float64."""
    with jax.enable_x64(True):
        x = RNG.normal(size=(40, 3))
        live = jaxrnn.bounded(lambda x: [CASES[name](x)], x, axes=0, future=future, past=6, block=block)
        streamed = jaxrnn.stream(live, x, axes=0)
        cuts = []
        for total in range(41):
            units = total // streamed.smallest_pulse
            singles = (units, max(0, units - 1), max(0, units - 2))
            cuts += [*(Cut(total, single, 0) for single in singles), Cut(total, min(1, units), max(0, units - 1) // 3)]
        compiled = jax.jit(everything(live, streamed, cuts)).lower(x).compile(QUICK_COMPILING)
        for cut, _, found, known in joined_outputs(streamed, cuts, *jax.device_get(compiled(x))):
            np.testing.assert_allclose(found, known, rtol=0, atol=1e-10, err_msg=str(cut))
        for frames, times in ((1, 1), (11, 2), (40, 3)):
            run_ = functools.partial(streamed.with_pulse(times * streamed.smallest_pulse).run, None)
            weights = np.cos(np.arange(frames))[:, None]
            slope = lambda f, weights=weights: jax.grad(lambda x: jnp.sum(jnp.sin(f(x)[0]) * weights))  # noqa: E731
            np.testing.assert_allclose(slope(run_)(x[:frames]), slope(live)(x[:frames]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("first", of_tiers(range(0, 40, 2), [0], []))
def test_programs_at_random(first):
    """Limit, stream and definition of random programs: see `stream_fuzzing.offline`."""
    found = campaign.run(0, first, 2, bounded=True)
    assert not found.defects, "\n\n".join(found.defects)
    assert found.ends["exact"] >= 1, found.refusals


@pytest.mark.parametrize("name", ["backwards", "sums"])
def test_a_far_future_needs_no_larger_program(name):
    """The programs of windows of 8 and of 200 frames have the same equations."""
    near, far = (bounded(name, future=future, block=1) for future in (8, 200))
    count = lambda live: sum(1 for _ in walk(jax.make_jaxpr(live)(X).jaxpr))  # noqa: E731
    assert count(near) == count(far)
    # By default, a recurrence computes each frame at most twice, in the smallest such blocks.
    assert "blocks of 8 and 8 later" in bounded(name, future=8).table()


@pytest.mark.parametrize("name", of_tiers(CASES, ["backwards", "global_norms"], ["attention"]))
def test_without_a_future_a_function_is_causal(name):
    live = bounded(name, future=0, past=3)
    other = np.concatenate([X[:9], 7 * X[:4]])
    np.testing.assert_allclose(live(X[:13])[:9], live(other)[:9], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", of_tiers(["backwards", "instance_norm", "attention"], ["instance_norm"], ["attention"])
)
def test_gradients_of_the_stream_are_those_of_the_function(name):
    with jax.enable_x64(True):
        x = X[:9].astype(np.float64)
        live = jaxrnn.bounded(CASES[name], x, axes=0, future=2, past=3)
        streamed = jaxrnn.stream(live, x, axes=0)
        loss = lambda function: lambda x: jnp.sum(jnp.sin(function(x)) * np.arange(9.0)[:, None])  # noqa: E731
        known, found = (jax.jit(jax.grad(loss(each)))(x) for each in (live, functools.partial(streamed.run, None)))
        assert np.abs(known).max() > 0.1
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["instance_norm", "backwards"])
def test_an_empty_recording_has_empty_outputs(name):
    assert bounded(name, future=2)(X[:0]).shape == (0, 3)


def test_places_and_futures_by_name():
    def network(params, x):
        with jax.named_scope("first"):
            x = run(x @ params, reverse=True)
        with jax.named_scope("second"):
            return run(x, reverse=True)

    live = jaxrnn.bounded(network, X, axes=0, params=WEIGHT, future={"": 1, "second": 6}, block=1)
    assert [each.look_ahead for each in live.places] == [1, 6]
    assert "backwards over blocks of 1 and 6 later frame(s)" in live.table()
    assert jaxrnn.stream(live, X, axes=0, params=WEIGHT).look_ahead == 7
    assert jaxrnn.bounded(lambda x: x - x[:1] * x[2:3], X, axes=0, constraints=["S >= 3"]).places == ()
    forward = jaxrnn.bounded(run, X, axes=0, future=3)
    assert forward.places == ()
    assert "nothing to bound" in forward.table()
    np.testing.assert_array_equal(forward(X), jax.jit(run)(X))


def test_bidirectional_layers_of_flax():
    cell = linen.GRUCell(features=4)
    layer = linen.Bidirectional(linen.RNN(cell), linen.RNN(linen.GRUCell(features=4)))
    x = X[None, :7]
    variables = layer.init(jax.random.key(0), x)
    far = jaxrnn.bounded(layer.apply, x, axes=1, params=variables, future=WHOLE)
    for part in (x, x[:, :1]):
        np.testing.assert_allclose(far(variables, part), jax.jit(layer.apply)(variables, part), rtol=0, atol=1e-6)
    module = nnx.Bidirectional(*(nnx.RNN(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(seed))) for seed in (0, 1)), rngs=nnx.Rngs(2))
    live = jaxrnn.bounded(module, x, axes=1, future=2)
    check(live, x, axes=1, lengths=(1, 6))
    assert any("backwards" in each.became for each in live.places)


def test_a_file_goes_the_whole_way(models, tmp_path):
    """A bidirectional LSTM of PyTorch, bounded, streamed and exported."""
    model = jaxrnn.load(models / "exports" / "bilstm_script.onnx")
    streamed = model.stream(future=4, pulse=8)
    (info,) = streamed.spec.inputs
    shape = [26 if axis == info.time_axis else size for axis, size in enumerate(info.shape)]
    x = {info.name: RNG.normal(size=shape).astype(np.float32)}
    whole, live = model.apply(model.params, x), streamed.run(model.params, x)
    for name, expected in streamed.offline(model.params, x).items():
        np.testing.assert_allclose(live[name], expected, rtol=0, atol=1e-6)
        assert np.abs(expected - whole[name]).max() > 1e-3  # the future matters
    far = model.stream(future=WHOLE).offline(model.params, x)
    for name, expected in whole.items():
        np.testing.assert_allclose(far[name], expected, rtol=0, atol=1e-6)
    path = tmp_path / "live.onnx"
    jaxrnn.export_onnx(streamed, model.params, path, flush=tmp_path / "flush.onnx")
    assert verify_export(streamed, model.params, path).ok


def reversed_loops():
    """Files with a reversed Scan, CumSum and Loop, by the name of the operator."""

    def file(nodes, **constants):
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["time", 3]) for name in "xy"]
        arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
        graph = helper.make_graph(nodes, "reversed", infos[:1], infos[1:], arrays)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def body(nodes, inputs, outputs):
        kinds = {"i": TensorProto.INT64, "c": TensorProto.BOOL, "d": TensorProto.BOOL}
        infos = [
            [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), [] if name in kinds else [3])
             for name in names]
            for names in (inputs, outputs)
        ]  # fmt: skip
        nodes = [*nodes, helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("Add", ["t", "f"], ["g"])]
        return helper.make_graph([*nodes, helper.make_node("Identity", ["g"], ["out"])], "body", *infos)

    node, zeros, directions = helper.make_node, np.zeros(3, np.float32), {"scan_input_directions": [1]}
    scanned = body([], "hf", ["g", "out"])
    scan = node(
        "Scan", ["start", "x"], ["", "y"], body=scanned, num_scan_inputs=1, **directions, scan_output_directions=[1]
    )
    yield "Scan", file([scan], start=zeros)
    yield "CumSum", file([node("CumSum", ["x", "axis"], ["y"], reverse=1)], axis=np.int64(0))
    frame = [node("Sub", ["last", "i"], ["k"]), node("Gather", ["x", "k"], ["f"]), node("Identity", ["c"], ["d"])]
    nodes = [node("Shape", ["x"], ["s"], end=1), node("Squeeze", ["s"], ["n"]), node("Sub", ["n", "one"], ["last"])]
    nodes += [node("Loop", ["n", "true", "start"], ["", "r"], body=body(frame, "ich", ["d", "g", "out"]))]
    nodes += [node("Slice", ["r", "end", "front", "axis", "end"], ["y"])]
    numbers = {"end": np.array([-1]), "front": np.array([-(2**62)]), "axis": np.array([0]), "one": np.int64(1)}
    yield "Loop", file(nodes, start=zeros, true=np.array(True), **numbers)


@pytest.mark.parametrize(("name", "file"), [pytest.param(*case, id=case[0]) for case in reversed_loops()])
def test_reversed_loops_of_files(name, file):
    model = jaxrnn.load(file)
    x = {"x": X}
    far, near = (model.stream("time", future=future) for future in (WHOLE, 3))
    np.testing.assert_allclose(far.offline(model.params, x)["y"], model.apply(model.params, x)["y"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(near.run(model.params, x)["y"], near.offline(model.params, x)["y"], rtol=0, atol=1e-6)
    assert np.abs(near.offline(model.params, x)["y"] - far.offline(model.params, x)["y"]).max() > 1e-3


@pytest.mark.thorough
def test_the_command_exports_and_verifies_a_bounded_file(models, tmp_path):
    file, out = str(models / "exports" / "bilstm_script.onnx"), str(tmp_path / "live.onnx")
    options = ["--symbol", "T", "--flush", str(tmp_path / "flush.onnx"), "-o", out]
    said = CliRunner().invoke(main, ["export", file, *options]).output
    assert "bound the future (`jaxrnn.bounded`, or --future 8 for a file)" in " ".join(said.split())
    result = CliRunner().invoke(main, ["export", file, *options, "--future", "4", "--verify", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["verified"]


def test_what_cannot_be_bounded_names_the_place():
    refused = functools.partial(check_refused, StreamError)
    joining = lambda x: jnp.concatenate([x, x.mean(0)[None]])  # noqa: E731
    refused("meets frames in another operation than arithmetic", jaxrnn.bounded, joining, X, axes=0)
    refused("depends on all earlier and later frames; give `past=64`", jaxrnn.bounded, attention, X, axes=0)
    # Time is an axis before and after the reshape, but other elements are side by side.
    mixed = lambda x: run(jnp.flip(x, 0).reshape(3, x.shape[0]).T)  # noqa: E731
    refused(r"jnp.flip in test_bounded.py.* reverses time", jaxrnn.bounded, mixed, X, axes=0)
    refused(r"jnp.flip in test_bounded.py.* reverses time", jaxrnn.bounded, lambda x: x + jnp.flip(x, 0), X, axes=0)
    for ordered in (  # an order of time between flips
        lambda x: jnp.sort(x, 0),
        lambda x: x[jnp.argsort(x[:, 0])],
        lambda x: x.at[x[:, 0].astype(jnp.int32)].get(mode="clip"),
    ):
        turned = lambda x, ordered=ordered: jnp.flip(ordered(jnp.flip(x, 0)), 0)  # noqa: E731
        refused("cannot be bounded", jaxrnn.bounded, turned, X, axes=0, future=2)
    refused(r"'div' .*, or the length\); use a causal form", jaxrnn.bounded, lambda x: x / x.shape[0], X, axes=0)
    refused(r"'sort' .test_bounded.py", jaxrnn.bounded, lambda x: jnp.sort(x, 0), X, axes=0)
    branching = lambda x: x * (2 if isinstance(x.shape[0], int) and x.shape[0] < 5 else 1)  # noqa: E731
    refused("depends on the length", jaxrnn.bounded, branching, X, axes=0)
    check_refused(InputError, "a whole number from 0 on, not -1", jaxrnn.bounded, run, X, axes=0, future=-1)
    check_refused(
        InputError,
        r"x must be float32\[23, 3\].*not float32\[23, 4\]",
        jaxrnn.bounded(run, X, axes=0),
        X[:, [0, 0, 1, 2]],
    )
    norm = jaxrnn.bounded(peak, X, axes=0)
    check_refused(InputError, "call the function with x only", norm, None, X)
    check_refused(InputError, "x must be a tree like the example", norm, {"x": X})
    check_refused(
        InputError,
        "no bounded operation is in a scope or node 'nope'",
        jaxrnn.bounded,
        peak,
        X,
        axes=0,
        future={"nope": 3},
    )
    check_refused(InputError, "block must be", jaxrnn.bounded, run, X, axes=0, block=0)


def group_norm(x):
    """Two groups of channels, normalised as PyTorch exports the norm: over one axis of channels and frames."""
    groups = x.T.reshape(1, 2, -1)
    distance = groups - groups.mean(2, keepdims=True)
    scale = jnp.sqrt(jnp.square(distance).mean(2, keepdims=True) + 1e-5)
    return (distance / scale * 2).reshape(x.shape[1], x.shape[0]).T


def flat_peak(x):
    flat = x.reshape(-1)
    return (flat / jnp.abs(flat).max()).reshape(x.shape)


@pytest.mark.parametrize("function", of_tiers([group_norm, flat_peak], [group_norm], []))
def test_time_joined_with_other_axes_stays_time(function):
    """A frame sees all channels of the frames up to `future`, although no axis of the statistic is time."""
    x = RNG.normal(size=(11, 4)).astype(np.float32)
    live = jaxrnn.bounded(function, x, axes=0, future=3)
    known = jax.jit(lambda x: [function(x[: frame + 4])[frame] for frame in range(11)])(x)
    np.testing.assert_allclose(live(x), known, rtol=0, atol=1e-6)
    check(live, x, axes=0, lengths=(1, 6, 11))
