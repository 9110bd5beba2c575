"""Profiles: times add up, and each region is traced to its node."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from jax import lax
from refusals import check_refused
from small_models import HIDDEN, graph_of, layers_model, make_model

from jaxrnn import InputError, StateError, load
from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.profiling import Peaks, Profile, measure_peaks, profile, profile_model
from jaxrnn.profiling.recording import CompiledProgram, find_node

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
    """Check that both tables have equal sums of time, and that regions and rest are the call."""
    by_region, by_node = found.rows("region"), found.rows("node")
    in_regions = sum(region.seconds for region in found.regions)
    for rows in (by_region, by_node):
        np.testing.assert_allclose(sum(row.seconds for row in rows), in_regions, rtol=1e-9)
        assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    np.testing.assert_allclose(in_regions + found.rest, found.seconds, rtol=1e-9)
    assert found.rest >= 0
    assert all(abs(sum(region.nodes.values()) - 1) < 1e-9 for region in found.regions if region.nodes)


def product(a, b):
    """Multiply two matrices."""
    return a @ b


def test_a_product_and_a_loop_of_products():
    a, b = np.ones((64, 96), np.float32), np.ones((96, 48), np.float32)
    found = profile(product, a, b, peaks=PEAKS)
    assert found.label == "product"
    assert found.xla["flops"] == 2 * 64 * 96 * 48
    assert found.xla["bytes"] == 4 * (64 * 96 + 96 * 48 + 64 * 48)
    check_sums(found)
    np.testing.assert_allclose(
        found.shares_of_peaks,
        (found.xla["flops"] / found.seconds / PEAKS.flops, found.xla["bytes"] / found.seconds / PEAKS.bandwidth(0)),
    )
    assert "of the peak FLOP/s" in found.table()

    square = np.full((32, 32), 0.01, np.float32)

    def looped(x):
        with jax.named_scope("many"):
            return lax.scan(lambda y, _: (jnp.tanh(y @ square), y[0]), x, length=7)

    found = profile(looped, square, peaks=PEAKS)
    assert 7 * 2 * 32**3 > found.xla["flops"] >= 2 * 32**3  # XLA counts a loop once
    assert (found.has_loops, found.shares_of_peaks, found.bound) == (True, None, None)
    assert "each loop once" in found.table()
    assert "of the peak" not in found.table()
    assert max(region.executions for region in found.regions) == 7
    assert found.rows("node")[0].name.startswith("many/")
    check_sums(found)


@pytest.mark.thorough
def test_every_heavy_node_of_a_model_is_found(models):
    model = load(models / "dtln_1.onnx")
    found = profile_model(model, peaks=PEAKS)
    check_sums(found)
    rows = {row.name: row for row in found.rows("node")}
    assert rows.keys() - {"(none)"} <= set(found.operators)
    for name in ("lstm_4", "lstm_5", "dense_2"):
        assert rows[name].kind == found.operators[name]
    assert [row.name for row in found.rows("node")[:3]] == ["lstm_4", "lstm_5", "dense_2"]
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


@pytest.mark.thorough
def test_recognised_cells_of_a_scan_keep_their_nodes(models):
    found = profile_model(load(models / "dtln_1.onnx"), "scan", length=20, peaks=False)
    assert {row.name for row in found.rows("node")[:3]} == {"lstm_4", "lstm_5", "dense_2"}
    assert not any("belongs to no node" in note for note in found.notes)


def test_a_program_in_the_cache_on_the_disk_keeps_other_names(tmp_path):
    from jax.experimental.compilation_cache import compilation_cache

    def named(name):
        def function(x):
            with jax.named_scope(name):
                return jnp.tanh(x @ x)

        return function

    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()
    try:
        for name in ("first", "second"):
            found = profile(named(name), np.ones((16, 16), np.float32), label="f", peaks=False)
            assert {row.name for row in found.rows("node")} == {name}
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
        compilation_cache.reset_cache()


def test_names_are_found_in_scopes():
    nodes = ["lstm", "net/lstm", "/a/Conv", "outer", "Sigmoid"]
    assert find_node("jit(step)/net/lstm/dot_general", nodes) == "net/lstm"
    assert find_node("jit(f)//a/Conv/jit(_pad)/pad", nodes) == "/a/Conv"
    assert find_node("jit(f)/vmap(jit(g))/transpose(jvp(outer))/vmap(lstm)/while/body/add", nodes) == "lstm"
    assert find_node("jit(f)/lstm_2/dot_general", nodes) is None
    assert find_node("params['lstm']", nodes) is None
    assert find_node("jit(f)/encoder/vmap(layer)/dot_general", None) == "encoder/layer"
    assert find_node("jit(f)/add", None) is None


def test_text_of_compiled_programs_is_read():
    """A product without a scope belongs to the node that reads the product inside of a fusion."""
    text = """HloModule jit_f, is_scheduled=true

%fused (p0: f32[4], p1: f32[4]) -> f32[4] {
  %p0 = f32[4]{0} parameter(0)
  %p1 = f32[4]{0} parameter(1)
  %first = f32[4]{0} tanh(%p0), metadata={op_name="jit(f)/scale/tanh"}
  %second = f32[4]{0} add(%p1, %p1), metadata={op_name="jit(f)/bias\\'s/add"}
  ROOT %third = f32[12]{0} concatenate(%first, %second, /*index=2*/%p0), metadata={op_name="jit(f)/join/concatenate"}
}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]{0:T(8,128)}) parameter(0)
  ROOT %inner = (s32[], f32[4]{0}) custom-call(%p), metadata={op_name="jit(f)/loop/while/body/add"}
}

ENTRY %main (x: f32[8,4], i: s32[]) -> (f32[1,4], bf16[2]) {
  %x = f32[8,4]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %dot.1 = f32[4]{0} dot(%x, %x), lhs_contracting_dims={0}
  %copy.2 = f32[4]{0} copy(%dot.1)
  %fusion.1 = f32[12]{0} fusion(f32[4]{0} %x, f32[4]{0} %copy.2), kind=kLoop, calls=%fused
  %while.3 = (s32[], f32[4]{0}) while(%fusion.1), condition=%none, body=%body
  ROOT %t = (f32[12]{0}, bf16[2]{0}) tuple(%fusion.1, %while.3)
}
"""
    program = CompiledProgram(text, ["scale", "bias's", "join", "loop"])
    assert (program.name, program.has_loops) == ("jit_f", True)
    recorded = {"dot.1": (4.0, 1), "fusion.1": (3.0, 1), "while.3": (2.0, 1), "inner": (1.0, 5)}
    regions = {region.name: region for region in program.regions(recorded)}
    assert list(regions) == ["dot.1", "fusion.1", "inner"]  # not the loop around a recorded instruction
    assert regions["dot.1"].nodes == {"bias's": 1.0}
    assert regions["fusion.1"].nodes == {"join": 0.6, "scale": 0.2, "bias's": 0.2}
    assert (regions["inner"].nodes, regions["inner"].executions) == ({"loop": 1.0}, 5)


def test_a_backend_without_regions_still_times_the_call(monkeypatch):
    monkeypatch.setattr("jaxrnn.profiling.recording.events_of", lambda file, module: iter(()))
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
    assert lstm["kind"].startswith("LSTM")
    assert found["xla"]["flops"] >= 2 * 2 * HIDDEN * 4 * HIDDEN
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
    words = r"`what` must be one of apply, step, scan, stream, not 'train'"
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
