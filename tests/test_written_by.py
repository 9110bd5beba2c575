"""Networks as ONNX Runtime's quantizers, converters and optimisers write them: loaded, compared, and streamed."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn.verification import verify

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore"),  # of the tools
]
FRAMES = 64


class Noise(CalibrationDataReader):
    """Two recordings of noise."""

    def __init__(self, path):
        draw = np.random.default_rng(0).standard_normal
        inputs = {each.name: each.shape for each in jaxrnn.load(path).inputs}
        sizes = {name: [each if isinstance(each, int) else FRAMES for each in shape] for name, shape in inputs.items()}
        self.left = [{name: draw(shape).astype(np.float32) for name, shape in sizes.items()} for _ in range(2)]

    def get_next(self):
        return self.left.pop() if self.left else None


def static(kind, path, out):
    quantize_static(path, out, Noise(path), quant_format=kind)


def weights_of_4_bits(path, out):
    quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=False, bits=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(out))


def halves(path, out):
    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), out)


def optimised(level, path, out):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.optimized_model_filepath = level, str(out)
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


TOOLS = {
    "dynamic": quantize_dynamic,
    "static QDQ": functools.partial(static, QuantFormat.QDQ),
    "static QOperator": functools.partial(static, QuantFormat.QOperator),
    "4 bits": weights_of_4_bits,
    "float16": halves,
    "basic": functools.partial(optimised, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC),
    "extended": functools.partial(optimised, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED),
}


@pytest.mark.parametrize("network", of_tiers(["keyword_net", "filter_net"], ["keyword_net"], []))
@pytest.mark.parametrize("tool", of_tiers(TOOLS, [tool for tool in TOOLS if tool != "basic"], []))
def test_a_network_as_a_tool_writes_it(tool, network, models, tmp_path):
    path, out = str(models / f"{network}.onnx"), tmp_path / "written.onnx"
    TOOLS[tool](path, out)
    model = jaxrnn.load(out)
    assert verify(out, dims={"S": FRAMES}).ok
    assert sorted(each.shape for each in model.state) == sorted(each.shape for each in jaxrnn.load(path).state)
    if tool == "dynamic":  # each number depends on the range of the whole recording
        check_refused(jaxrnn.StreamError, "DynamicQuantizeLinear", model.stream)
        return
    streamed = model.stream()
    x = Noise(path).get_next()
    expected, found = model.apply(model.params, x), streamed.run(model.params, x)
    for name, array in expected.items():
        apart = np.abs(np.asarray(found[name], np.float64) - np.asarray(array, np.float64))
        if tool in ("float16", "static QDQ", "static QOperator"):
            # A rounding difference can move single numbers by a step; a wrong frame is 1.6 % of the numbers.
            assert np.quantile(apart, 0.99) <= 2e-3
        else:
            assert apart.max() <= 1e-5


def test_the_highest_level_is_for_one_processor(models, tmp_path):
    out = tmp_path / "written.onnx"
    optimised(ort.GraphOptimizationLevel.ORT_ENABLE_ALL, str(models / "filter_net.onnx"), out)
    if any(node.domain == "com.microsoft.nchwc" for node in onnx.load(out).graph.node):
        check_refused(jaxrnn.UnsupportedError, "ORT_ENABLE_EXTENDED", jaxrnn.load, out)
