"""The operators, by family, and how a node finds its own."""

from __future__ import annotations

import difflib
import functools
import importlib

from jaxrnn._files.arguments import Placeholder, argument
from jaxrnn.errors import UnsupportedError
from jaxrnn.onnx.registry import Operator, Versions, operator, schema_of

#: The modules with operators, each with a table ``OPERATORS``.
FAMILIES = tuple(
    importlib.import_module(f"{__name__}.{family}")
    for family in """
        activations arithmetic attention constants control convolution images
        indexing linear_attention logic losses machine_learning matrix microsoft movement normalization older patches
        pooling quantization random recurrent reduction regions reshaping resize rotary sampling scattering selection
        sequences spectral strings training_steps types
    """.split()  # noqa: SIM905
)

_MAPS = "it works on maps, and values here are arrays; export the model without it (in skl2onnx, zipmap=False)"

#: Operators that stay out, and why.
REFUSED = {
    ("ai.onnx.ml", "CastMap"): _MAPS,
    ("ai.onnx.ml", "DictVectorizer"): _MAPS,
    ("ai.onnx.ml", "ZipMap"): _MAPS,
    ("ai.onnx.preview.training", "Gradient"): "differentiate the model with jax.grad in its place",
}


@functools.cache
def operator_table() -> dict[tuple[str, str], Versions]:
    """Every operator, keyed by domain and name, as ``{since_version: function}``; older definitions by themselves."""
    table: dict[tuple[str, str], Versions] = {}
    for family in FAMILIES:
        for name, versions in family.OPERATORS.items():
            domain, _, plain = name.rpartition("::")
            key = (domain, plain)
            known = table.setdefault(key, {})
            assert not known.keys() & versions.keys(), f"{name} is registered twice"
            known |= versions
    return table


@functools.cache
def find_operator(domain: str, name: str, opset: int | None) -> Operator:
    """The operator that a node of this opset means.

    Raises:
        UnsupportedError: says what is missing, and the nearest operator that there is.
    """
    full_name = f"{domain}::{name}" if domain else name
    versions = operator_table().get((domain, name))
    if opset is None:
        raise UnsupportedError(f"{full_name}: the file imports no opset for the domain {domain or 'ai.onnx'!r}")
    if versions is None:
        reason = REFUSED.get((domain, name)) or _nearest(domain, name)
        raise UnsupportedError(
            f"{full_name} (opset {opset}) is not implemented; {reason}, or "
            f"{argument('operators', {(domain, name): Placeholder('function')}, 'jaxrnn.load(path)')} adds one's own"
        )
    schema = schema_of(domain, name, opset)
    version = None if schema is None else schema.since_version
    if version is None:
        version = max((known for known in versions if known <= opset), default=None)
        if version is None:
            raise UnsupportedError(f"{full_name} does not exist in opset {opset}; it came with opset {min(versions)}")
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise UnsupportedError(
            f"{full_name}-{version} (opset {opset}) is not implemented, only the versions {known}; "
            "convert the file to a newer opset with onnx.version_converter"
        )
    return operator(name, domain, version, versions[version])


def _nearest(domain: str, name: str) -> str:
    names = {known: known_domain for known_domain, known in operator_table()}
    for candidate in difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        where = f" of the domain {names[candidate] or 'ai.onnx'!r}" if names[candidate] != domain else ""
        return f"the nearest operator that is: {candidate}{where}"
    return "nothing near it is either"
