"""Read, check, bind and evaluate ONNX graphs as JAX functions."""
