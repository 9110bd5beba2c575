"""Settings and internals of JAX, and code that depends on these internals."""
