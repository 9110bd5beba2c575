"""Profiles: counts are right, times add up, and each region is traced to its node."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from jax import lax
from quick_compiling import EMITTERS
from refusals import check_refused
from small_models import FEATURES, HIDDEN, graph_of, layers_model, make_model

from jaxrnn import InputError, StateError, load
from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.profiling import Peaks, Profile, measure_peaks, profile, profile_model
from jaxrnn.profiling.hlo import Cost, HloModule, cost_of
from jaxrnn.profiling.measure import NodeNames

PEAKS = Peaks("float32", 1e12, {1 << 19: 1e11, 1 << 25: 1e10})


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """The file of a small model."""
    path = tmp_path_factory.mktemp("models") / "layers.onnx"
    onnx.save(layers_model(), path)
    return path


def call(*arguments, status: int = 0):
    """Run the command in this process."""
    result = CliRunner().invoke(main, ["profile", *map(str, arguments)])
    assert not isinstance(result.exception, Exception), result.exception
    assert result.exit_code == status, result.output
    return result


def check_sums(found: Profile):
    """Check that both tables have equal sums of time, operations and bytes, and that regions and rest are the call."""
    by_region, by_node = found.rows("region"), found.rows("node")
    in_regions = sum(region.seconds for region in found.regions)
    for rows in (by_region, by_node):
        np.testing.assert_allclose(sum(row.seconds for row in rows), in_regions, rtol=1e-9)
        np.testing.assert_allclose(sum(row.flops for row in rows), found.cost.flops, rtol=1e-9)
        np.testing.assert_allclose(sum(row.nbytes for row in rows), found.cost.nbytes, rtol=1e-9)
        assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    np.testing.assert_allclose(in_regions + found.rest, found.seconds, rtol=1e-9)
    assert found.rest >= 0
    assert all(abs(sum(region.nodes.values()) - 1) < 1e-9 for region in found.regions if region.nodes)


def product(a, b):
    """Multiply two matrices."""
    return a @ b


def counted(function, *arguments) -> tuple[Cost, dict]:
    """Return our cost of a function and XLA's cost analysis, for a program compiled as by users."""
    compiled = jax.jit(function).lower(*arguments).compile(EMITTERS)
    module = HloModule.parse(compiled.as_text())
    entry = module.computations[module.entry]
    parts = [cost_of(module, entry, item) for item in entry.instructions.values()]
    return sum(parts, Cost()), compiled.cost_analysis()


IMAGE, KERNEL = np.ones((2, 8, 30, 21), np.float32), np.ones((12, 8, 3, 5), np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME"),
        lambda x, k: lax.conv_general_dilated(x, k[:, :2], (1, 1), "SAME", rhs_dilation=(2, 3), feature_group_count=4),
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), ((2, 2), (3, 3)), lhs_dilation=(2, 3)),
        lambda x, k: jnp.einsum("bcij,ocij->bo", x[..., :3, :5], k) + jnp.tanh(x).sum() * jnp.sqrt(k.sum()),
        lambda x, k: lax.reduce_window(x, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") + k.max(),
        lambda x, k: x.at[:, jnp.array([0, 3])].add(x[:, 4:6]) + k[0, 0, 0, 0],
        lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x + k[0, 0, 0, 0]), 20),
        lambda x, k: jnp.sort(x.ravel()) + k[0, 0, 0, 0],
    ],
    ids=["strided", "grouped", "transposed", "elementwise", "pooling", "scatter", "fourier", "sort"],
)
def test_operations_are_those_of_the_cost_analysis(function):
    cost, xla = counted(function, IMAGE, KERNEL)
    assert cost.flops == xla.get("flops", 0.0)
    assert cost.transcendentals == xla.get("transcendentals", 0.0)


@pytest.mark.thorough
def test_operations_of_a_model_are_those_of_the_cost_analysis(models):
    model = load(models / "silero_vad_16k_op15.onnx", static={"sr": 16000})
    frame = {"input": np.zeros((1, 576), np.float32)}
    cost, xla = counted(lambda s, x: model.step(model.params, s, x), model.init(), frame)
    assert (cost.flops, cost.transcendentals) == (xla["flops"], xla["transcendentals"])
    np.testing.assert_allclose(cost.nbytes, xla["bytes accessed"], rtol=0.01)


def test_a_product_and_a_loop_of_products():
    a, b = np.ones((64, 96), np.float32), np.ones((96, 48), np.float32)
    found = profile(product, a, b, peaks=PEAKS)
    assert found.label == "product"
    assert found.cost.flops == found.xla["flops"] == 2 * 64 * 96 * 48
    assert found.cost.nbytes == 4 * (64 * 96 + 96 * 48 + 64 * 48)
    check_sums(found)
    (row,) = found.rows("region")
    np.testing.assert_allclose(row.flops_share, row.flops / row.seconds / PEAKS.flops)
    np.testing.assert_allclose(row.bytes_share, row.nbytes / row.seconds / PEAKS.bandwidth(0))

    square = np.full((32, 32), 0.01, np.float32)

    def looped(x):
        with jax.named_scope("many"):
            return lax.scan(lambda y, _: (jnp.tanh(y @ square), y[0]), x, length=7)

    found = profile(looped, square, peaks=False)
    assert found.cost.flops >= 7 * 2 * 32**3 > found.xla["flops"] >= 2 * 32**3
    assert found.cost.transcendentals == 7 * 32**2
    assert found.peaks is None
    assert "of peak" not in found.table()
    check_sums(found)


@pytest.mark.thorough
def test_every_heavy_node_of_a_model_is_found(models):
    model = load(models / "dtln_1.onnx")
    found = profile_model(model, peaks=PEAKS)
    check_sums(found)
    rows = {row.name: row for row in found.rows("node")}
    assert rows.keys() - {"(none)"} <= set(found.operators)
    # The products with the input and the carry of each layer, and at most a tenth of other operations.
    products = {"lstm_4": 2 * (257 + 128) * 512, "lstm_5": 2 * (128 + 128) * 512, "dense_2": 2 * 128 * 257}
    for name, flops in products.items():
        assert flops <= rows[name].flops <= 1.1 * flops
        assert rows[name].kind == found.operators[name]
    assert max(rows.values(), key=lambda row: row.flops).name == "lstm_4"
    assert sum(region.seconds for region in found.regions if not region.nodes) < 0.1 * found.seconds


@pytest.mark.thorough
def test_a_stream_and_its_nodes(models):
    model = load(models / "keyword_net.onnx")
    found = profile_model(model, "stream", batch=2, peaks=False)
    check_sums(found)
    assert "batch 2" in found.label
    heavy = {node.name for node in model.program.block.nodes if node.operator.name in ("GRU", "Conv")}
    assert heavy
    assert heavy <= {row.name for row in found.rows("node")}


def test_names_are_found_in_scopes():
    names = NodeNames(["lstm", "net/lstm", "/a/Conv", "outer", "Sigmoid"])
    assert names.find("jit(step)/net/lstm/dot_general") == "net/lstm"
    assert names.find("jit(f)//a/Conv/jit(_pad)/pad") == "/a/Conv"
    assert names.find("jit(f)/vmap(jit(g))/transpose(jvp(outer))/vmap(lstm)/while/body/add") == "lstm"
    assert names.find("jit(f)/lstm_2/dot_general") is None
    assert names.find("params['lstm']") is None
    assert NodeNames(None).find("jit(f)/encoder/vmap(layer)/dot_general") == "encoder/layer"
    assert NodeNames(None).find("jit(f)/add") is None


def test_text_of_compiled_programs_is_read():
    text = """HloModule jit_f, is_scheduled=true

%fused (p0: f32[8,4], p1: s32[]) -> f32[1,4] {
  %p0 = f32[8,4]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %cut = f32[1,4]{1,0} dynamic-slice(%p0, %p1, /*index=2*/%zero), dynamic_slice_sizes={1,4}
}

ENTRY %main (x: f32[8,4], i: s32[]) -> (f32[1,4], bf16[2]) {
  %x = f32[8,4]{1,0:T(8,128)} parameter(0), metadata={op_name="x[\\'a\\']"}
  %i = s32[] parameter(1)
  %fusion.1 = f32[1,4]{1,0} fusion(f32[8,4]{1,0} %x, s32[] %i), kind=kLoop, calls=%fused
  %c = bf16[2]{0} constant({1, 2})
  ROOT %t = (f32[1,4]{1,0}, bf16[2]{0}) tuple(%fusion.1, %c)
}
"""
    module = HloModule.parse(text)
    entry = module.computations[module.entry]
    assert (module.name, entry.name, entry.root.name, entry.root.nbytes) == ("jit_f", "main", "t", 4 * 4 + 2 * 2)
    assert entry.instructions["x"].op_name == "x['a']"
    fusion = entry.instructions["fusion.1"]
    assert (fusion.operands, fusion.called) == (("x", "i"), ("fused",))
    # The fusion reads one row and its index, and writes the row.
    assert cost_of(module, entry, fusion).nbytes == 16 + 4 + 16


def test_a_backend_without_regions_still_times_the_call(monkeypatch):
    monkeypatch.setattr("jaxrnn.profiling.timing._of_plane", lambda plane, module: iter(()))
    found = profile(product, np.ones((8, 8), np.float32), np.ones((8, 8), np.float32), peaks=False)
    assert found.regions == ()
    assert found.rest == found.seconds > 0
    assert "no regions" in found.notes[0]
    assert "no regions" in found.table("node")


@pytest.mark.nightly
def test_peaks_are_measured():
    peaks = measure_peaks("bfloat16", sizes=(1 << 16, 1 << 18))
    assert peaks.dtype == "bfloat16"
    assert peaks.flops > 0
    assert all(rate > 0 for rate in peaks.bandwidths.values())
    assert [PEAKS.bandwidth(size) for size in (0, 1 << 19, (1 << 19) + 1, 1 << 30)] == [1e11, 1e11, 1e10, 1e10]


def test_command_prints_tables_and_json(layers):
    found = json.loads(
        call(layers, "--dim", "T=6", "--dim", "batch=2", "--no-peak", "--json").stdout, parse_constant=pytest.fail
    )
    assert found["by"] == "node"
    assert found["label"].endswith("apply (T=6, batch=2)")
    names = {row["name"] for row in found["rows"]}
    assert {"lstm", "project"} <= names <= {"scale", "squash", "lstm", "squeeze", "project", "(none)"}
    lstm = next(row for row in found["rows"] if row["name"] == "lstm")
    assert lstm["flops"] >= 6 * 2 * 2 * (FEATURES + HIDDEN) * 4 * HIDDEN
    np.testing.assert_allclose(found["in_regions"] + found["rest"], found["seconds"])

    text = call(layers, "--length", 6, "--by", "region", "--top", 2, "--no-peak").stdout
    assert "apply (T=6, batch=1)" in text
    assert " more " in text
    assert "100.0%" in text


def test_command_says_what_does_not_fit(layers, models):
    dtln = models / "dtln_1.onnx"
    for arguments, said in {
        (layers, "--batch", 2): "--dim NAME=SIZE",
        (layers, "--length", 5, "--dim", "T=6"): "--dim gives T=6",
        (layers, "--symbol", "T", "--what", "scan"): "--symbol is for streams",
        (PACKAGED, "--stft", 256, "--hop", 128, "--what", "apply"): "--stft is for streams",
        (layers, "--pulse", 2): "needs --symbol",
        (layers, "--dim", "U=6"): "there is no dimension 'U'",
        (dtln, "--length", 5): "length is for the whole graph and scans",
        (dtln, "--what", "stream"): "name the time dimension with --symbol NAME; possible dimensions: none",
    }.items():
        assert said in call(*arguments, "--no-peak", status=2).output
    for arguments in ((layers, "--what", "step"), (layers, "--what", "scan")):
        assert "forgets its state" in call(*arguments, "--no-peak", status=2).output


def test_library_says_what_does_not_fit(layers, models):
    model = load(layers)
    words = r"'train' of a model cannot be profiled; expected one of apply, step, scan, stream"
    check_refused(InputError, words, profile_model, model, "train")
    check_refused(StateError, r"forgets its state", profile_model, model, "step")
    with pytest.raises(InputError, match=r"stream is given, but 'apply'"):
        profile_model(model, "apply", stream=load(models / "keyword_net.onnx").stream("S", None))
    kinds = {"x": (onnx.TensorProto.STRING, [2])}, {"y": (onnx.TensorProto.INT64, [1])}
    words = graph_of([onnx.helper.make_node("Shape", ["x"], ["y"])], *kinds)
    with pytest.raises(InputError, match=r"cannot compile functions of strings; bind the input with .*static"):
        profile_model(load(make_model(words)), "apply", inputs={"x": np.array(["a", "b"])})
    given = jax.jit(lambda x: x + 1, donate_argnums=0)
    check_refused(InputError, r"consumed its arguments; do not donate", profile, given, jnp.ones(8), peaks=False)
    found = profile(product, np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), peaks=False)
    check_refused(InputError, r"by must be 'node' or 'region'", found.rows, "layer")
    check_refused(InputError, r"top must be a whole number from 1 on", found.table, top=0)
