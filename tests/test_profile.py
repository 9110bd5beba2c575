"""Profiles: times add up, and each region belongs to its nodes."""

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
from tiers import of_tiers

from jaxrnn import InputError, StateError, load
from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.profiling import Profile, profile, profile_model
from jaxrnn.profiling.regions import CALL, CompiledProgram, Event, find_node, record


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
    """Check that both tables have equal sums of time, and that regions and rest are the recorded call."""
    for rows in (found.rows("region"), found.rows("node")):
        np.testing.assert_allclose(sum(row.seconds for row in rows), found.in_regions, rtol=1e-9)
        assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    for by in ("region", "node"):
        *lines, total = found.lines(by, 3)
        np.testing.assert_allclose(sum(line.seconds for line in lines), max(total.seconds, found.in_regions), rtol=1e-9)
        assert total.time_share == 1
    assert all(abs(sum(region.related.values()) - 1) < 1e-9 for region in found.regions if region.related)


#: Operators that compute products.
PRODUCTS = ("Conv", "ConvTranspose", "GRU", "LSTM", "MatMul", "Gemm")


def check_products(found: Profile):
    """Check that each product belongs to one node that computes products, and that each such node is there."""
    heavy = {name for name, operator in found.operators.items() if operator.partition("-")[0] in PRODUCTS}
    # On CPUs, XLA gives products of matrices to the library YNNPACK.
    products = [each for each in found.regions if each.kind in ("dot", "convolution") or each.name.startswith("ynn_")]
    assert products
    wrong = {region.name: region.related for region in products if not {*region.related} & heavy}
    assert not wrong
    shared = [region.name for region in products if region.kind != "fusion" and len(region.related) != 1]
    assert not shared
    assert heavy <= {row.name for row in found.rows("node")}


def product(a, b):
    """Multiply two matrices."""
    return a @ b


def test_a_product_and_a_loop_of_products():
    a, b = np.ones((64, 96), np.float32), np.ones((96, 48), np.float32)
    found = profile(product, a, b)
    assert found.label == "product"
    assert found.xla["flops"] == 2 * 64 * 96 * 48
    assert found.xla["bytes"] == 4 * (64 * 96 + 96 * 48 + 64 * 48)
    check_sums(found)
    assert "XLA's cost analysis: 590 kFLOP, 55.3 kB" in found.table()

    square = np.full((32, 32), 0.01, np.float32)

    def looped(x):
        with jax.named_scope("once"):
            x = x @ square
        with jax.named_scope("many"):
            return lax.scan(lambda y, _: (jnp.tanh(y @ square), y[0]), x, length=7)

    found = profile(looped, square)
    assert 8 * 2 * 32**3 > found.xla["flops"] >= 2 * 2 * 32**3  # XLA counts a loop once
    assert found.has_loops
    assert "each loop once" in found.table()
    for name, executions in (("once", 1), ("many", 7)):
        assert executions == max(row.executions for row in found.rows("node") if row.name.startswith(name))
    check_sums(found)


@pytest.mark.parametrize(
    ("name", "options"),
    of_tiers(
        [
            ("dtln_1", {}),
            ("dtln_1", {"what": "scan", "length": 20}),
            ("keyword_net", {"what": "stream"}),
            ("filter_net", {"dims": {"S": 8}}),
        ],
        [],
        [("dtln_1", {}), ("keyword_net", {"what": "stream"})],
    ),
)
def test_products_belong_to_their_nodes(models, name, options):
    found = profile_model(load(models / f"{name}.onnx"), **options)
    check_sums(found)
    check_products(found)
    assert sum(region.seconds for region in found.regions if not region.related) < 0.1 * found.in_regions
    assert {row.name for row in found.rows("node")} - {"(none)"} <= set(found.operators)


def test_a_recording_is_the_faster_half_of_its_calls(monkeypatch):
    """Events belong to the call in which they begin; other programs, and the host beside a device, do not count."""

    def events(file):
        for start, seconds in ((0, 4), (10, 1), (20, 2), (30, 9)):
            yield Event(CALL, None, False, start, seconds)
        for start, seconds in ((0.5, 3), (10.1, 0.25), (10.5, 0.25), (20.5, 1), (30.5, 8)):
            yield Event("dot", "jit_f", True, start, seconds)
            yield Event("dot", "jit_g", True, start, seconds)
            yield Event("fusion", "jit_f", False, start, seconds)
        yield Event("copy", None, True, 20.7, 0.5)

    monkeypatch.setattr("jaxrnn.profiling.regions.events_of", events)
    assert record(lambda: jnp.zeros(2), "jit_f", 1.0) == (1.5, {"dot": (0.75, 2), "copy": (0.25, 0)})


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
            found = profile(named(name), np.ones((16, 16), np.float32), label="f")
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
  %outside.4 = f32[4]{0} negate(%copy.2), metadata={op_name="jit(f)/neg"}
  %late.5 = f32[4]{0} tanh(%outside.4), metadata={op_name="jit(f)/scale/tanh"}
  %while.3 = (s32[], f32[4]{0}) while(%fusion.1), condition=%none, body=%body
  ROOT %t = (f32[12]{0}, bf16[2]{0}) tuple(%fusion.1, %while.3)
}
"""
    program = CompiledProgram(text, ["scale", "bias's", "join", "loop"])
    assert program.name == "jit_f"
    recorded = {"dot.1": (4.0, 1), "fusion.1": (3.0, 1), "while.3": (2.0, 1), "inner": (1.0, 5), "unknown": (0.5, 1)}
    recorded["outside.4"] = (0.25, 1)
    regions = {region.name: region for region in program.regions(recorded, 16.0)}
    # Not the loop around a recorded instruction; and time of an instruction that the text lacks belongs to no node.
    assert list(regions) == ["dot.1", "fusion.1", "inner", "unknown", "outside.4"]
    assert (regions["dot.1"].related, regions["dot.1"].time_share) == ({"bias's": 1.0}, 0.25)
    assert regions["fusion.1"].related == {"join": 0.6, "scale": 0.2, "bias's": 0.2}
    assert (regions["inner"].related, regions["inner"].executions) == ({"loop": 1.0}, 5)
    assert regions["unknown"].related == regions["outside.4"].related == {}


def test_a_backend_without_regions_still_times_the_call(monkeypatch):
    calls = [Event(CALL, None, False, 0.0, 2.0)]
    monkeypatch.setattr("jaxrnn.profiling.regions.events_of", lambda file: calls)
    found = profile(product, np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))
    assert found.regions == ()
    assert found.rest == found.recorded == 2
    assert "no regions" in found.notes[0]
    assert "no regions" in found.table("node")
    calls.clear()
    found = profile(product, np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))
    assert (found.regions, found.recorded) == ((), found.seconds)
    assert "JAX's profiler failed: it recorded no calls" in found.notes[0]


def test_command_prints_tables_and_json(layers):
    found = json.loads(call(layers, "--dim", "T=6", "--dim", "batch=2", "--json").stdout, parse_constant=pytest.fail)
    assert found["by"] == "node"
    assert found["label"].endswith("apply (T=6, batch=2)")
    names = {row["name"] for row in found["rows"]}
    assert {"lstm", "project"} <= names <= {"scale", "squash", "lstm", "squeeze", "project", "(none)"}
    lstm = next(row for row in found["rows"] if row["name"] == "lstm")
    assert lstm["kind"].startswith("LSTM")
    assert found["xla"]["flops"] >= 2 * 2 * HIDDEN * 4 * HIDDEN
    np.testing.assert_allclose(found["in_regions"] + found["rest"], max(found["recorded"], found["in_regions"]))

    text = call(layers, "--length", 6, "--by", "region", "--top", 2).stdout
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
        assert said in call(*arguments, status=2).output
    for arguments in ((layers, "--what", "step"), (layers, "--what", "scan")):
        assert "forgets its state" in call(*arguments, status=2).output


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
    streamed = load(models / "keyword_net.onnx").stream("S", None)
    check_refused(InputError, r"`what` must be one of step, not 'scan'", profile_model, streamed, "scan")
    check_refused(InputError, r"`dtype` is for models, not for a Streamed", profile_model, streamed, dtype="bfloat16")
    given = jax.jit(lambda x: x + 1, donate_argnums=0)
    check_refused(InputError, r"consumed its arguments; do not donate", profile, given, jnp.ones(8))
    found = profile(product, np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    check_refused(InputError, r"`by` must be one of node, region, not 'layer'", found.rows, "layer")
    check_refused(InputError, r"top must be a whole number from 1 on", found.table, top=0)
