"""XLA's options by processor: which they are, and that they reach all that the library compiles and nothing else."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import FEATURES, WIDTH, layers_model, step_model

import jaxrnn
from jaxrnn import compiling

WIDE, NARROW = {"X86_V3", "X86_V4", "AVX512_ICL"}, {"X86_V3", "X86_V4", "AVX512F", "AVX512_SKX"}
CPUINFO = pathlib.Path("/proc/cpuinfo")
#: An option that no XLA has: a program that is compiled with it says so.
UNKNOWN = {"jaxrnn_unknown": 1}


@pytest.mark.parametrize(
    ("features", "flags", "platform", "options"),
    [
        (WIDE, "", "cpu", {"xla_cpu_prefer_vector_width": 512}),
        (WIDE, "--xla_cpu_use_fusion_emitters=false", "cpu", {"xla_cpu_prefer_vector_width": 512}),
        (NARROW, "", "cpu", {}),
        (set(), "", "cpu", {}),
        (WIDE, "", "gpu", {}),
        (WIDE, "--xla_cpu_prefer_vector_width=128", "cpu", {}),
        (WIDE, "--xla_cpu_max_isa=AVX2", "cpu", {}),
    ],
)
def test_options_are_those_of_the_processor(monkeypatch, features, flags, platform, options):
    monkeypatch.setattr(compiling, "_features", lambda: features)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(compiling, "_options", compiling._options.__wrapped__)
    assert jaxrnn.compiler_options() == options
    large = {"xla_cpu_experimental_ynn_fusion_type": ""} if platform == "cpu" else {}
    assert jaxrnn.compiler_options(large_products=True) == {**options, **large}
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_cpu_experimental_ynn_fusion_type=")
    assert jaxrnn.compiler_options(large_products=True) == options


def test_an_option_that_xla_does_not_know_is_left_out():
    assert compiling._knows({})
    assert compiling._knows({"xla_cpu_prefer_vector_width": 512})
    assert not compiling._knows({"xla_cpu_prefer_vector_width": 512, **UNKNOWN})


@pytest.mark.skipif(not CPUINFO.exists(), reason="no other word about the processor")
def test_numpy_says_what_the_processor_has():
    assert (compiling._WIDE in compiling._features()) == ("avx512_vbmi2" in CPUINFO.read_text())


def cases():
    """What compiles by itself, by name."""
    layers, steps = jaxrnn.load(layers_model()), step_model()
    x, frames = np.ones((5, 1, FEATURES), np.float32), np.ones((6, 1, WIDTH), np.float32)
    yield "call", lambda: layers(x=x)
    yield "apply", lambda: layers.apply(layers.params, {"x": x})
    yield "scan", lambda: steps.scan(steps.params, steps.init(), {"x": frames})
    yield "run", lambda: layers.stream("T", pulse=2).run(layers.params, {"x": x})

    def pool():
        pool = jaxrnn.StreamPool(steps, steps.params, 2)
        pool.push(pool.open(), {"x": frames[0]})
        return pool.run()

    yield "pool", pool


@pytest.mark.parametrize("name", ["call", "apply", "scan", "run", "pool"])
def test_what_the_library_compiles_has_the_options(monkeypatch, name):
    monkeypatch.setattr(compiling, "compiler_options", lambda: UNKNOWN)
    with pytest.raises(jax.errors.JaxRuntimeError, match="jaxrnn_unknown"):
        dict(cases())[name]()


def test_a_compiled_file_has_the_options(monkeypatch, tmp_path):
    steps = step_model()
    jaxrnn.save_compiled(steps, tmp_path / "steps.jaxrnn")
    loaded = jaxrnn.load_compiled(tmp_path / "steps.jaxrnn")
    monkeypatch.setattr(compiling, "compiler_options", lambda: UNKNOWN)
    with pytest.raises(jaxrnn.ModelError, match="jaxrnn_unknown"):  # XLA's word, which stands for a bad file otherwise
        loaded.step(None, loaded.init(), {"x": np.ones((1, WIDTH), np.float32)})


def function(x):
    return jnp.sin(x) @ x


INSIDE = {
    "jit": lambda f, x: jax.jit(lambda x: f(x) + 1)(x),
    "grad": lambda f, x: jax.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: jax.vjp(f, x)[1](x),
    "linearize": lambda f, x: jax.linearize(f, x)[1](x),
    "vmap of grad": lambda f, x: jax.vmap(jax.grad(lambda x: f(x).sum()))(x[None]),
    "scan": lambda f, x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "checkpoint": lambda f, x: jax.grad(lambda x: jax.checkpoint(f)(x).sum())(x),
    "export": lambda f, x: jax.export.export(jax.jit(lambda x: f(x)))(x).call(x),
    "hessian": lambda f, x: jax.hessian(lambda x: f(x).sum())(x),
}
ALONE = {
    "call": lambda f, x: f(x),
    "vmap": lambda f, x: jax.vmap(f)(x[None]),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,))[1],
}


@pytest.mark.parametrize("how", [*INSIDE, *ALONE])
def test_options_are_for_programs_of_their_own(monkeypatch, how):
    """JAX refuses them in a function that is a part of another program."""
    x, transformed = jnp.linspace(0, 1, 9).reshape(3, 3), {**INSIDE, **ALONE}[how]
    monkeypatch.setattr(compiling, "compiler_options", lambda: {"xla_cpu_prefer_vector_width": 256})
    expected = transformed(function, x)
    np.testing.assert_allclose(transformed(compiling.jit(function), x), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(compiling, "compiler_options", lambda: UNKNOWN)
    compiled = compiling.jit(function)
    if how in INSIDE:
        transformed(compiled, x)
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match="jaxrnn_unknown"):
            transformed(compiled, x)
