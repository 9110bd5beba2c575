"""The table of primitives knows every primitive of the installed JAX; identities and calls change no program.

``PYTHONPATH=. python tests/test_primitives.py`` prints the primitives of the installed JAX, as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from lowering_verifier import lowered, verify_lowering
from streaming_verifier import check_gradients, check_values
from tiers import in_later_tier, of_tiers

from jaxrnn.jaxprs.equations import evaluate, trace
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.jaxprs.primitives import KINDS, PRIMITIVES
from tools.primitives_page import GONE, HEADING, PAGE, STREAMED, table

#: Where JAX defines primitives of kernels, which no program contains outside of a call of the kernel.
KERNELS = (
    "jax._src.pallas",
    "jax.experimental.pallas",
    "jax._src.thunky",
    "jax.experimental.thunky",
    "jax.experimental.mosaic",
    "jax._src.tpu_custom_call",
)
#: Primitives of a module that cannot be imported.
WRITTEN = re.compile(r"\bPrimitive\(\s*['\"]([^'\"]+)")


def imported_primitives() -> dict[str, set[str]]:
    """The modules of JAX that were imported, by the primitives that they name."""
    found = defaultdict(set)
    for module in list(sys.modules.values()):
        if (getattr(module, "__name__", None) or "").split(".")[0] == "jax":
            for value in list(vars(module).values()):
                if isinstance(value, Primitive):
                    found[value.name].add(module.__name__)
    return found


def all_primitives() -> dict[str, set[str]]:
    """The same for all modules; what cannot be imported (without TensorFlow, say) is read."""
    unknown = []
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(jax.__path__, "jax.", onerror=lambda name: None):
            try:
                importlib.import_module(module.name)
            except Exception:
                unknown.append(module)
    found = imported_primitives()
    for module in unknown:
        spec = module.module_finder.find_spec(module.name)
        with open(spec.origin, encoding="utf-8") as file:
            for name in WRITTEN.findall(file.read()):
                found[name].add(module.name)
    return found


def of_programs(primitives) -> list[str]:
    return [name for name, modules in primitives.items() if not all(each.startswith(KERNELS) for each in modules)]


@pytest.mark.parametrize("which", ["imported", pytest.param("all", marks=pytest.mark.thorough)])
def test_every_primitive_is_known(which):
    """Each has a rule of streams and of exports, or a reason."""
    if which == "all":  # in a process of its own, which imports everything
        run = subprocess.run(
            [sys.executable, __file__], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
        )
        assert run.returncode == 0, run.stderr.decode()
        found = of_programs(json.loads(run.stdout))
    else:
        found = of_programs(imported_primitives())
    assert len(found) > 200, "nothing was looked at"
    assert [name for name in found if name not in PRIMITIVES] == [], "primitives without an entry"


def test_every_entry_has_a_rule_or_a_reason():
    for name, entry in PRIMITIVES.items():
        assert entry.kind in KINDS, name
        assert entry.why or entry.kind in GONE or STREAMED.of(name) is not None, f"{name} has no streaming rule"


def test_the_page_is_not_stale():
    written = HEADING + PAGE.read_text(encoding="utf-8").partition(HEADING)[2]
    assert written == table(), "make it again: python -m tools.primitives_page --write"


@jax.custom_batching.custom_vmap
def mapped(x):
    return x


mapped.def_vmap(lambda size, batched, x: (x, batched[0]))


def on_one_device(x):
    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()[:1]), "d"), jax.sharding.PartitionSpec()
    return jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def constrained(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "d")
    return lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


#: Functions that return their operand, by the primitives that they use.
IDENTITIES = {
    "call": lambda x: jax.jit(lambda x: x)(x),
    "checkpoint_name": lambda x: checkpoint_name(x, "kept"),
    "composite": lambda x: lax.composite(lambda x: x, "jaxrnn.same")(x),
    "convert_element_type": lambda x: lax.convert_element_type_p.bind(
        x, new_dtype=x.dtype, weak_type=False, sharding=None
    ),
    "copy": jnp.copy,
    "custom_vmap": mapped,
    "device_put": lambda x: jax.device_put(x, jax.devices()[0]),
    "linear_call": lambda x: jax.custom_derivatives.linear_call(lambda r, x: x, lambda r, x: x, (), x),
    "named_call": lambda x: jax.named_call(lambda x: x, name="layer")(x),
    "optimization_barrier": lax.optimization_barrier,
    "shard_map": on_one_device,
    "sharding_constraint": constrained,
}
#: Movements that return their operand.
MOVEMENTS = {
    "squeeze": lambda x: lax.squeeze(lax.expand_dims(x, (0,)), (0,)),
    "stack, unstack": lambda x: jnp.unstack(jnp.stack([x]))[0],
}


def all_of_identities(x):
    for same in IDENTITIES.values():
        x = same(x)
    return x


def all_of_them(x):
    for same in MOVEMENTS.values():
        x = same(x)
    return all_of_identities(x)


def positions(x):
    return jnp.arange(x.shape[0], dtype=np.int32)


def masked_attention(same, x):
    i, j = positions(x)[:, None], positions(x)[None, :]
    mask = same((same(i) - j >= 0) & (i - j < 3))
    return jax.nn.softmax(jnp.where(mask, same(x @ x.T), -jnp.inf), -1) @ x


def linear_attention(same, x):
    causal = positions(x)[:, None] >= same(positions(x))[None, :]
    return same(jnp.where(causal, same(x @ x.T), 0)) @ x


def loop(same, x):
    step = lambda carry, frame: (same(jnp.tanh(carry + frame)), same(carry))  # noqa: E731
    outputs = lax.scan(step, same(jnp.zeros_like(x[0])), x)[1]
    return lax.fori_loop(0, 2, lambda i, y: same(y * 2), lax.cond(True, same, jnp.sin, outputs))


def ruled(same, x):
    @jax.custom_vjp
    def function(x):
        return same(jnp.sin(x))

    function.defvjp(lambda x: (function(x), same(x)), lambda x, cotangent: (same(cotangent) * x,))
    return jax.checkpoint(lambda x: function(same(x)))(x)


#: Where an identity may stand, and hide from rules what they look for.
CONTEXTS = {
    "index": lambda same, x: x[same(positions(x)[1:]) - 1] + x[:-1],
    "stride": lambda same, x: x[same(2 * jnp.arange(x.shape[0] // 2))] + same(x)[1::2],
    "mask": lambda same, x: jnp.where(same(positions(x) < 3)[:, None], same(x), 0.5),
    "attention": masked_attention,
    "linear attention": linear_attention,
    "the end": lambda same, x: jnp.sum(jnp.square(same(x) - same(x.mean(0))), 0),
    "loop": loop,
    "rule": ruled,
    "length": lambda same, x: x.sum(0) / same(jnp.asarray(x.shape[0], x.dtype)),
}
MULTIPLES = {"stride": 2}


@pytest.mark.parametrize("context", CONTEXTS)
def test_identities_vanish(context):
    """The canonical program is the program without the identity."""
    function, size = CONTEXTS[context], MULTIPLES.get(context, 1)
    (length,) = jax.export.symbolic_shape(f"{size}*S", constraints=["S >= 4"])
    x = jax.ShapeDtypeStruct((length, 3), np.float32)
    plain = fingerprint(trace(lambda x: function(lambda y: y, x), x)[0])
    for name, same in IDENTITIES.items():
        with_identity = trace(lambda x, same=same: function(same, x), x)[0]
        assert fingerprint(with_identity) == plain, f"{name} stays in {with_identity}"


QUICK = ("index",)


@pytest.mark.parametrize("context", of_tiers(CONTEXTS, QUICK, ["loop", "attention", "the end"]))
def test_streams_through_identities(context):
    function = CONTEXTS[context]
    options = {"lengths": (4, 7), "chunkings": ((1,), (3, 1)), "multiple": MULTIPLES.get(context, 1)}
    check_values(
        lambda x: function(all_of_them, x), (20, 3), constraints=("S >= 4",) if context in ("index",) else (), **options
    )


def test_exports_of_identities():
    x = np.ones((6, 3), np.float32)
    for name, function in CONTEXTS.items():
        sames = (lambda y: y), all_of_identities
        plain, found = (lowered(functools.partial(function, same), x) for same in sames)
        operators = [[node.op_type for node in model.graph.node] for model in (plain, found)]
        assert operators[0] == operators[1], name
        assert operators[0], name


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="JAX before 0.12")
def test_primitives_of_the_newest_jax():
    """Streams, their gradients, and exports."""

    def function(x):
        later = jnp.pad(x, ((2, 0), (0, 0)))[:-2] - jnp.pad(x[1:], ((0, 1), (0, 0)))
        polynomial = lax.polynomial(later, [jnp.ones_like(x), 2 * jnp.ones_like(x), later])
        one_minus_square = importlib.import_module("jax.extend.core.primitives").one_minus_square_p
        return lax.log2(jnp.abs(later) + 0.1) + polynomial * one_minus_square.bind(later)

    check_values(function, (20, 3))
    check_gradients(function, (20, 3))
    verify_lowering(function, np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32))


if __name__ == "__main__":
    print(json.dumps({name: sorted(modules) for name, modules in all_primitives().items()}))


#: Functions whose bodies close over an array inside of a jitted call, which the body then gets as a constant.
TABLE = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
BODIES = {
    "checkpoint": jax.checkpoint(lambda x: jax.jit(lambda x: jnp.sin(x @ TABLE.T @ TABLE))(x)),
    "scan": lambda x: lax.scan(lambda c, row: (jax.jit(lambda c: c * TABLE[1] + row)(c),) * 2, x[0], x)[1],
    "cond": lambda x: lax.cond(x[0, 0] > 0, jax.jit(lambda x: x * TABLE[2]), jax.jit(lambda x: x - TABLE[0]), x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 9, jax.jit(lambda c: jnp.abs(c) + TABLE[2]), x),
    "custom rule": lambda x: jax.nn.relu(x @ jax.jit(lambda: jnp.asarray(TABLE.T @ TABLE))()),
    "linear solve": lambda x: jnp.linalg.solve(jnp.eye(4) + TABLE.T @ TABLE, x.T).T,
}


@pytest.mark.parametrize("name", in_later_tier(BODIES, ["linear solve"]))
def test_canonical_programs_run_as_their_functions(name):
    function, x = BODIES[name], np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    closed, _ = trace(function, x)
    (found,), expected = jax.jit(lambda x: evaluate(closed, [x]))(x), jax.jit(function)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    (changes,) = jax.jit(lambda x: evaluate(trace(lambda x: jax.jvp(function, [x], [x])[1], x)[0], [x]))(x)
    expected = jax.jit(lambda x: jax.jvp(function, [x], [x])[1])(x)
    np.testing.assert_allclose(changes, expected, rtol=1e-5, atol=1e-5)
