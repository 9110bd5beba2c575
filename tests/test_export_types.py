"""Exports in smaller types: half precision, and dynamic quantisation by ONNX Runtime's quantizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from refusals import check_refused
from small_models import graph_of, layers_model, make_model
from tiers import of_tiers
from verifier import peer_outputs

import jaxrnn
from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.export import Quantization, verify_export

RNG = np.random.default_rng(0)
PARAMS = {"kernel": RNG.normal(size=(12, 6)).astype(np.float32), "gain": np.full(6, 0.3, np.float32)}


def mixed(params, inputs):
    """Past frames, also of a running mean, a loop, a position, a number beyond float16, and a very small number."""
    x = inputs["x"]
    before = jnp.pad(x, ((1, 0), (0, 0)))[:-1]
    h = jnp.tanh(jnp.concatenate([x, before], 1) @ params["kernel"])
    _, kept = jax.lax.scan(lambda carry, row: (0.5 * carry + row * params["gain"],) * 2, jnp.zeros(6), h)
    count = jnp.arange(1, x.shape[0] + 1, dtype=jnp.float32)[:, None]
    mean = jnp.cumsum(300 * x, 0) / count
    masked = jnp.max(jnp.where(h > 0, h, -1e9), 1, keepdims=True)
    late = jnp.tanh(jnp.pad(mean / 300, ((1, 0), (0, 0)))[:-1])
    y = kept + mean / 300 / (jnp.abs(mean) + 1e-12) + jnp.cos(count / 7) + late
    return {"y": y, "top": jnp.maximum(masked, -1)}


def exported(folder, **options):
    streamed = jaxrnn.stream(mixed, {"x": jnp.zeros((8, 6))}, axes=0, params=PARAMS, pulse=2)
    path = folder / "step.onnx"
    written = jaxrnn.export_onnx(streamed, PARAMS, path, flush=folder / "flush.onnx", **options)
    return streamed, path, written


@pytest.mark.parametrize(("dtype", "opset"), of_tiers([("float16", 17), ("bfloat16", 22)], [("bfloat16", 22)]))
def test_weights_state_and_arithmetic_are_smaller(dtype, opset, tmp_path):
    streamed, path, written = exported(tmp_path, dtype=dtype, opset=opset)
    report = verify_export(streamed, PARAMS, path, offline=lambda inputs: streamed.run(PARAMS, inputs))
    assert report.ok, report
    assert report.engine.startswith("ONNX Runtime" if dtype == "float16" else "ONNX reference")
    model = onnx.load(path)
    kinds = {each.name: each.data_type for each in model.graph.initializer}
    small = getattr(TensorProto, dtype.upper())
    assert kinds["kernel"] == kinds["gain"] == small
    types = {each.name: each.type.tensor_type.elem_type for each in (*model.graph.input, *model.graph.output)}
    assert types["x"] == types["y"] == types["top"] == TensorProto.FLOAT
    state = {each.name: each for each in written.step.facts.spec.state}
    wide = {name for name, each in state.items() if each.kind in ("total", "remainder")}
    assert wide
    assert {name for name, each in state.items() if each.dtype == np.float32} == wide
    assert all(types[name] == small for name, each in state.items() if each.dtype.name == dtype)
    with np.load(tmp_path / "step.first_state.npz") as first:
        assert {each.nbytes for each in first.values()} >= {each.nbytes for each in state.values()}


def test_inputs_and_outputs_on_request(tmp_path):
    streamed, path, written = exported(tmp_path, dtype="float16", io_dtype="float16")
    assert verify_export(streamed, PARAMS, path).ok
    spec = written.step.facts.spec
    assert {each.dtype for each in (*spec.inputs, *spec.outputs)} == {np.dtype(np.float16)}
    again = jaxrnn.load(path)
    outputs, _ = again.step(again.params, again.init(), {"x": jnp.ones((2, 6), jnp.float16)})
    assert outputs["y"].dtype == np.float16


REFUSED = [
    ({"dtype": "bfloat16"}, UnsupportedError, "bfloat16 needs opset 22"),
    ({"dtype": "int8"}, InputError, "dtype must be 'bfloat16' or 'float16'"),
    ({"dtype": "float16", "io_dtype": "bfloat16"}, InputError, "io_dtype must be equal to dtype"),
    ({"dtype": "float16", "quantize": "dynamic"}, InputError, "give dtype or quantize, not both"),
    ({"quantize": "int4"}, InputError, "quantize must be None or 'dynamic' or 'static'"),
    ({"quantize": Quantization("dynamic", recordings=[])}, InputError, "`Quantization.recordings` go together"),
    ({"quantize": Quantization("dynamic", "kernel")}, InputError, "must be a sequence of names of nodes"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED, ids=lambda value: str(value))
def test_refused_types(options, error, message, tmp_path):
    check_refused(error, message, exported, tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_whole_graphs(tmp_path):
    model = jaxrnn.load(layers_model())
    x = {each.name: RNG.normal(size=[5 if isinstance(n, str) else n for n in each.shape]) for each in model.inputs}
    x = {name: array.astype(np.float32) for name, array in x.items()}
    known = model.apply(model.params, x)
    for options, tolerance in (({"dtype": "float16"}, 4e-3), ({"quantize": "dynamic"}, 0.05)):
        path = tmp_path / "whole.onnx"
        assert jaxrnn.export_onnx(model, None, path, **options) is None
        found = peer_outputs(path, x)
        for name, value in known.items():
            assert found[name].dtype == np.float32
            scale = max(1.0, float(np.abs(value).max()))
            np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * scale)
            assert not np.array_equal(found[name], value)


def test_whole_graphs_that_name_the_domain_or_lack_it(tmp_path):
    """ONNX's operators have two names, and a model can have operators of other domains only."""
    for domain, operator in (("ai.onnx", "MatMul"), ("com.microsoft", "FusedMatMul")):
        node = onnx.helper.make_node(operator, ["x", "w"], ["y"], domain="" if domain == "ai.onnx" else domain)
        graph = graph_of([node], {"x": [2, 3]}, {"y": [2, 3]}, {"w": np.eye(3, dtype=np.float32) / 3})
        opsets = [onnx.helper.make_opsetid(domain, 17 if domain == "ai.onnx" else 1)]
        model = jaxrnn.load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8))
        path, x = tmp_path / "half.onnx", np.ones((2, 3), np.float32)
        jaxrnn.export_onnx(model, None, path, dtype="float16")
        (y,) = jaxrnn.load(path)({"x": x}).values()
        np.testing.assert_array_equal(y, x * np.float32(np.float16(1 / 3)))
        with pytest.raises(UnsupportedError, match="the model has opset 17: convert the file with onnx"):
            jaxrnn.export_onnx(model, None, path, dtype="bfloat16")


def test_steps_quantised_by_onnx_runtime(tmp_path):
    weight = jnp.asarray(RNG.normal(size=(6, 64)), jnp.float32)

    def function(params, inputs):
        return {"y": jnp.tanh(inputs["x"] @ params) @ params.T + jnp.pad(inputs["x"], ((1, 0), (0, 0)))[:-1]}

    streamed = jaxrnn.stream(function, {"x": jnp.zeros((8, 6))}, axes=0, params=weight)
    path, plain = tmp_path / "step.onnx", tmp_path / "plain.onnx"
    jaxrnn.export_onnx(streamed, weight, path, quantize="dynamic")
    jaxrnn.export_onnx(streamed, weight, plain)
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert operators.count("MatMulInteger") == 2
    report = verify_export(streamed, weight, path)
    assert report.ok
    assert report.cases[-1].outputs[0].reason.startswith("with an error of quantisation of ")
    assert not verify_export(streamed, 2 * weight, path).ok  # not a small error
    again = jaxrnn.load(path)
    assert [each.input for each in again.state] == [each.input for each in jaxrnn.load(plain).state]
    with pytest.raises(InputError, match="nothing to quantise"):
        jaxrnn.export_onnx(lambda x: jnp.tanh(x), None, plain, example=jnp.zeros(3), quantize="dynamic")


def test_dynamic_quantisation_before_streaming_is_refused():
    node = onnx.helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="quantize"),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    model = jaxrnn.load(make_model(graph_of(nodes, {"x": ["T", 3]}, {"y": ["T", 3]})))
    with pytest.raises(jaxrnn.errors.StreamError, match=r"'quantize'.*stream the float model first.*quantize_dynamic"):
        model.stream("T")


def test_quantised_models_stay_in_integers(tmp_path):
    node = onnx.helper.make_node
    scale = numpy_helper.from_array(np.float32(0.1), "s")
    graph = graph_of(
        [node("QuantizeLinear", ["x", "s"], ["q"]), node("DequantizeLinear", ["q", "s"], ["y"])],
        {"x": ["T", 3]},
        {"y": ["T", 3]},
    )
    graph.initializer.append(scale)
    model = jaxrnn.load(make_model(graph))
    with pytest.raises(InputError, match="quantised and computes in integers"):
        jaxrnn.export_onnx(model.stream("T"), model.params, tmp_path / "step.onnx", dtype="float16")


def spectral(params, inputs):
    """A network between two Fourier transforms of frames, and a table of positions."""
    spectrum = jnp.fft.rfft(inputs["x"], axis=-1)
    mask = jax.nn.sigmoid(jnp.tanh(jnp.abs(spectrum) @ params["first"]) @ params["second"] + params["bias"])
    table = jnp.sin(jnp.arange(40.0)[:, None] * jnp.arange(1.0, 31))
    return {"y": jnp.fft.irfft(spectrum * mask.astype(jnp.complex64), 30) + 0.1 * table[inputs["index"]]}


def test_what_depends_on_no_parameter_is_not_quantised(tmp_path):
    """Fourier matrices and positions stay float32, and so do the products that the caller names."""
    kernels = {name: RNG.normal(size=(16, 16)).astype(np.float32) / 8 for name in ("first", "second")}
    params = {**kernels, "bias": np.ones(16, np.float32)}
    example = {"x": RNG.normal(size=(8, 30)).astype(np.float32), "index": np.arange(8, dtype=np.int32)}
    path, known, options = tmp_path / "network.onnx", spectral(params, example)["y"], {"example": example}
    jaxrnn.export_onnx(spectral, params, path, **options)
    plain = onnx.load(path).graph
    (second,) = (node for node in plain.node if "second" in node.input)
    assert second.op_type == "Gemm"
    # The transforms share a matrix.
    tables = [each for each in plain.initializer if sorted(each.dims) == [30, 32]]
    assert len(tables) == 1
    np.testing.assert_allclose(peer_outputs(path, example)["y"], known, rtol=0, atol=2e-6)
    for exclude, integers in (((), ["first", "second"]), ((second.name,), ["first"])):
        jaxrnn.export_onnx(spectral, params, path, quantize=Quantization("dynamic", exclude), **options)
        (table,) = (each for each in onnx.load(path).graph.initializer if sorted(each.dims) == [30, 32])
        np.testing.assert_array_equal(numpy_helper.to_array(table), numpy_helper.to_array(tables[0]))
        stored = {each.name for each in onnx.load(path).graph.initializer if each.data_type == TensorProto.INT8}
        assert stored == {f"{name}_{part}" for name in integers for part in ("quantized", "zero_point")}
        error = peer_outputs(path, example)["y"] - known
        assert np.sqrt(np.mean(error**2) / np.mean(known**2)) < 0.003  # 0.010 with integers in the transforms
    unknown = {**options, "quantize": Quantization("dynamic", ("fft/Matmul",))}
    check_refused(InputError, "starts with 'fft/Matmul'", jaxrnn.export_onnx, spectral, params, path, **unknown)


def shared_step(folder, **options):
    """Export a stream whose step and flush have the same weight."""
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(64, 48)), jnp.float32)

    def function(params, inputs):
        x = jnp.pad(inputs["x"], ((0, 1), (0, 0)))[1:]
        return {"y": jnp.tanh(x @ params) @ params.T + inputs["x"]}

    streamed = jaxrnn.stream(function, {"x": jnp.zeros((8, 64))}, axes=0, params=weight)
    options = {"flush": folder / "flush.onnx", **options}
    return streamed, weight, jaxrnn.export_onnx(streamed, weight, folder / "step.onnx", **options)


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float16"}, {"quantize": "dynamic"}], ids=lambda each: [*each, ""][0]
)
def test_a_step_and_a_flush_share_large_arrays(options, tmp_path):
    streamed, weight, written = shared_step(tmp_path, shared_weights=True, **options)
    data = tmp_path / "step.onnx.data"
    assert {each.name for each in written.files} >= {data.name, "step.onnx", "flush.onnx"}
    places = []
    for name in ("step.onnx", "flush.onnx"):
        tensors = onnx.load(tmp_path / name, load_external_data=False).graph.initializer
        outside = [{each.key: each.value for each in tensor.external_data} for tensor in tensors]
        places.append({(each["location"], each["offset"], each["length"]) for each in outside if each})
    assert places[0] == places[1] != set()
    assert data.stat().st_size < 1.1 * (weight.nbytes if not options else weight.nbytes / 2)
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in written.files:
        path.rename(moved / path.name)
    report = verify_export(streamed, weight, moved / "step.onnx")
    assert report.ok, report
    assert jaxrnn.load(moved / "step.onnx").state


def test_vectors_of_integers_are_not_shared(tmp_path):
    """ONNX's inference reads vectors of integers, and no files."""
    numbers = np.arange(300, dtype=np.int32)
    streamed = jaxrnn.stream(
        lambda inputs: {"y": jnp.pad(inputs["x"], (0, 1))[1:, None] + numbers}, {"x": np.zeros(8, np.int32)}, axes=0
    )
    files = {"flush": tmp_path / "flush.onnx", "shared_weights": True}
    jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", **files)
    assert verify_export(streamed, None, tmp_path / "step.onnx").ok


def test_shared_weights_need_a_flush_in_the_same_folder(tmp_path):
    (tmp_path / "other").mkdir()
    for flush in (None, tmp_path / "other" / "flush.onnx"):
        message = "shared_weights is for a step and a flush in the same folder"
        check_refused(InputError, message, shared_step, tmp_path, shared_weights=True, flush=flush)
    assert [each.name for each in tmp_path.iterdir()] == ["other"]
