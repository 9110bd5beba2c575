"""From an ONNX file to a JAX function: reading, checking, binding and evaluating a graph."""
