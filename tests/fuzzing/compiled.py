"""Compiled files with a changed manifest, function or array, and a digest that is right for the changed content."""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import json
import tempfile
import zipfile
from pathlib import Path

import jax
import numpy as np

import jaxrnn
from fuzzing.structure import FLOATS, NUMBERS, damaged
from jaxrnn.demo import PACKAGED
from jaxrnn.runtime.compiled.format import MAGIC

_DIGEST = hashlib.sha256().digest_size * 2 + 1  # with a line break
_WORDS = ("", "batch", "time", "x", "float32", "int64", "bfloat16", "object", "step", "1/2", "\0", "é" * 9)


def _moving(x):
    """A function with a history, a total, an output at the end, and a state that begins with a constant input."""
    mean = jax.lax.scan(lambda h, frame: ((h + frame) / 2,) * 2, x["start"], x["x"])[1]
    return {"mean": mean, "sum": x["x"].sum(0), "next": x["x"][1:] - x["x"][:-1]}


@functools.cache
def seeds():
    """Compiled files: a model in steps, and streams with and without a function for the first state."""
    model, shape = jaxrnn.load(PACKAGED), jax.ShapeDtypeStruct
    example, start = {"x": shape((8, 2), np.float32)}, {"start": shape((2,), np.float32)}
    fixed = lambda x: _moving({**x, "start": np.zeros(2, np.float32)})  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seed")

        def saved(stepper, **options):
            jaxrnn.save_compiled(stepper, path, **options)
            return path.read_bytes()

        return {
            "steps": saved(model, dims={"time": 1}),
            "stream": saved(jaxrnn.stream(fixed, example, axes=0, pulse=2)),
            "started": saved(jaxrnn.stream(_moving, {**example, **start}, axes={"x": 0, "start": None}, pulse=2)),
        }


def changed_file(rng):
    """A compiled file with changes, in the manifest with a probability of three quarters."""
    data = seeds()[rng.choice(sorted(seeds()))]
    with zipfile.ZipFile(io.BytesIO(data[len(MAGIC) + _DIGEST :])) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(("manifest.json",) * 3 + (rng.choice(sorted(entries)),))
    if name == "manifest.json":
        facts = changed_json(rng, json.loads(entries[name]))
        entries[name] = json.dumps(facts).encode()
    else:
        entries[name] = damaged(rng, entries[name], entries[rng.choice(sorted(entries))])
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    whole = body.getvalue()
    return MAGIC + hashlib.sha256(whole).hexdigest().encode() + b"\n" + whole


def changed_json(rng, value):
    """A copy of a JSON value with one or two changed values, missing or additional entries."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_places(value))
        outer, key = rng.choice(places)
        change = rng.choice(("alike", "alike", "alike", "other", "scalar", "drop", "more"))
        if change == "drop":
            del outer[key]
        elif change == "scalar":
            outer[key] = rng.choice((rng.choice(NUMBERS), rng.choice(FLOATS), rng.choice(_WORDS), None, True, [], {}))
        elif change == "other":
            donor, place = rng.choice(places)
            outer[key] = copy.deepcopy(donor[place])
        elif change == "alike":
            outer[key] = _alike(rng, outer[key], [each[place] for each, place in places])
        elif isinstance(outer, list):
            outer.insert(key, copy.deepcopy(outer[key]))
        else:
            outer[rng.choice(_WORDS)] = copy.deepcopy(outer[key])
        if not value:
            break
    return value


def _alike(rng, old, values):
    """A value of the same type, which a check of types lets through."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice((rng.choice(NUMBERS), old + rng.choice((-1, 1)), 2 * old))
    return copy.deepcopy(rng.choice([value for value in values if type(value) is type(old)]))


def _places(value):
    """Yield each container with each key, at any depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def run(stepper, batch):
    """Run all functions of a file on zeros of the declared shapes."""
    repr((stepper, stepper.spec, stepper.spec.state))
    spec = stepper.spec
    one, inputs = ({each.name: _zeros(each, spec, size) for each in spec.inputs} for size in (None, batch))
    constants = {name: one[name] for name in spec.constants} or None
    _, state = stepper.step(None, stepper.init(batch, constants=constants), inputs)
    stepper.flush(None, state, inputs if spec.streams else None)
    if not spec.streams and inputs:
        stepper.scan(None, state, {name: np.stack([array] * 2) for name, array in inputs.items()})
    jaxrnn.Runner(stepper, constants=constants)(one)


def _zeros(each, spec, batch):
    """Zeros of a small array; an InputError for a large one, which a caller would not have."""
    lead = () if batch is None or spec.batch_symbol is not None else (batch,)
    shape = (*lead, *((batch or 1) if isinstance(size, str) else size for size in each.shape))
    if np.prod(shape, dtype=float) > 1e6:
        raise jaxrnn.InputError("a large input")
    return np.zeros(shape, each.dtype)
