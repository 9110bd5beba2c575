"""Operators of the domain ``com.microsoft``: fused and quantised forms that ONNX Runtime writes."""
