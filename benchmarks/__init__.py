"""Timing jaxrnn beside other engines: ``python -m benchmarks``."""
