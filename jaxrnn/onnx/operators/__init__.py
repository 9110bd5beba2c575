"""The table of operators, the operators of a caller, and the choice of an operator for a node."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from jaxrnn.errors import InputError, UnsupportedError, check_kind
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.registry import (
    REQUIRED,
    Movement,
    Operator,
    Traits,
    Versions,
    operator,
    read_signature,
    schema_of,
    since,
)

#: The modules with operators, each with a table ``OPERATORS``.
FAMILIES = tuple(
    importlib.import_module(f"{__name__}.{family}")
    for family in """
        activations arithmetic attention control indexing linear machine_learning.features machine_learning.trees
        machine_learning.vectors microsoft.attention microsoft.blocks microsoft.fused microsoft.quantized normalization
        older pooling quantization random recurrent reduction regions resize sampling sequences shaping spectral strings
        training types
    """.split()  # noqa: SIM905
)

_MAPS = "maps are not supported; export the model without it (in skl2onnx, zipmap=False)"


def _of_runtime(reason: str, names: str) -> dict[tuple[str, str], str]:
    """Return the reason for some operators of ONNX Runtime."""
    return {("com.microsoft", name): reason for name in names.split()}


#: Operators that are not implemented, with reasons.
REFUSED = {
    ("ai.onnx.ml", "CastMap"): _MAPS,
    ("ai.onnx.ml", "DictVectorizer"): _MAPS,
    ("ai.onnx.ml", "ZipMap"): _MAPS,
    ("ai.onnx.preview.training", "Gradient"): "differentiate the model with jax.grad instead",
    **_of_runtime(
        "it generates a whole sequence; load the file of the decoder, and call its step",
        "BeamSearch GreedySearch Sampling WhisperBeamSearch",
    ),
    **_of_runtime(
        "its caches are buffers that a server shares; export the decoder with its caches as inputs and outputs",
        """
        DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention GroupQueryAttention PagedAttention
        SparseAttention SparsePagedAttention
        """,
    ),
    **_of_runtime(
        "ONNX Runtime has this form for GPUs only; optimise the file for the CPU",
        """
        BiasAdd BiasDropout BiasSoftmax BiasSplitGelu BitmaskBiasDropout BitmaskDropout ComplexMul ComplexMulConj
        DecoderAttention FusedMatMulActivation GatedRelativePositionBias GemmFastGelu GemmFloat8 GroupNorm Irfft
        LongformerAttention NhwcConv NhwcFusedConv PackedAttention PackedMultiHeadAttention QOrderedAttention
        QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul RelativePositionBias
        RemovePadding RestorePadding Rfft SkipGroupNorm
        """,
    ),
}

#: Domains of operators that are not implemented, with reasons.
REFUSED_DOMAINS: Mapping[str, str] = dict.fromkeys(
    ("com.microsoft.nchwc", "com.ms.internal.nhwc"),
    "the file was saved for one processor, at ONNX Runtime's highest optimisation level, and does not say how its "
    "weights are ordered; save it at the level ORT_ENABLE_EXTENDED",
)

#: Operators of a caller, by domain and name: functions, or entries of `registry.since`.
OwnOperators = Mapping[tuple[str, str], Callable[..., Any] | Versions]


@functools.cache
def operator_table() -> dict[tuple[str, str], Versions]:
    """Return the operators of the package, by domain and name."""
    table: dict[tuple[str, str], Versions] = {}
    for family in FAMILIES:
        for name, versions in family.OPERATORS.items():
            domain, _, plain = name.rpartition("::")
            known = table.get((domain, plain), Versions({}))
            assert not known.keys() & versions.keys(), f"{name} is registered twice"
            table[domain, plain] = known | versions
    return table


@functools.cache
def elementwise_operators() -> tuple[str, ...]:
    """Return the names of ONNX's operators that compute, or cast, each element of a single input."""

    def is_one(name: str, versions: Versions) -> bool:
        newest = operator(name, "", max(versions), versions)
        return len(newest.slots) == 1 and newest.variadic is None

    return tuple(
        name
        for (domain, name), versions in sorted(operator_table().items())
        if not domain
        and not versions.traits.random
        and (versions.traits.elementwise or versions.traits.moves is Movement.CASTS)
        and is_one(name, versions)
    )


_CONVERTED = "convert the file to a newer opset: `onnx.version_converter.convert_version(onnx.load(path), 13)`"
#: Operators of old opsets for which onnx.version_converter has no adapter.
_WITHOUT_ADAPTER = frozenset({"Cast", "GlobalLpPool", "LpPool", "Pad", "Split", "Tile", "Upsample"})


@functools.cache
def find_operator(domain: str, name: str, opset: int | None) -> Operator:
    """Return the operator that a node of this opset means."""
    full_name = f"{domain}::{name}" if domain else name
    versions = operator_table().get((domain, name))
    if opset is None:
        raise UnsupportedError(f"{full_name}: the file imports no opset for the domain {domain or 'ai.onnx'!r}")
    if versions is None:
        reason = REFUSED.get((domain, name)) or REFUSED_DOMAINS.get(domain) or _nearest(domain, name)
        raise UnsupportedError(
            f"{full_name} (opset {opset}) is not implemented; {reason}, or "
            f"`jaxrnn.load(path, operators={{{(domain, name)}: function}})` adds your own operator"
        )
    schema = schema_of(domain, name, opset)  # without a definition of ONNX, use the newest registered version
    newest = max((known for known in versions if known <= opset), default=None)
    version = newest if schema is None else schema.since_version
    if version is None:
        raise UnsupportedError(f"{full_name} does not exist in opset {opset}; it was added in opset {min(versions)}")
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise UnsupportedError(
            f"{full_name}-{version} (opset {opset}) is not implemented, only the versions {known}; "
            + ("export the model again with a newer opset" if name in _WITHOUT_ADAPTER else _CONVERTED)
        )
    return operator(name, domain, version, versions)


def _nearest(domain: str, name: str) -> str:
    names = {known: known_domain for known_domain, known in operator_table()}
    for candidate in difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        where = f" of the domain {names[candidate] or 'ai.onnx'!r}" if names[candidate] != domain else ""
        return f"the nearest implemented operator is {candidate}{where}"
    return "no similar operator is implemented"


def operator_of(node: ir.Node, own: OwnOperators) -> Operator:
    """Return the operator of a node: the caller's before the package's."""
    domain = normal_domain(node.domain)
    given = own.get((domain, node.op_type))
    if given is None or node.version is None:
        return find_operator(domain, node.op_type, node.version)
    if isinstance(given, Versions):
        older = [version for version in given if version <= node.version]
        return operator(node.op_type, domain, max(older, default=min(given)), given, own=True)
    schema = schema_of(domain, node.op_type, node.version)
    version = node.version if schema is None else schema.since_version
    return operator(node.op_type, domain, version, since(given, version), own=True)


def traits_of(node: ir.Node, own: OwnOperators | None = None) -> Traits:
    """Return the traits of a node's operator, also if the version is not implemented."""
    key = normal_domain(node.domain), node.op_type
    found = own[key] if own and key in own else operator_table().get(key)
    return found.traits if isinstance(found, Versions) else Traits()


def own_operators(functions: OwnOperators | None) -> dict[tuple[str, str], Callable[..., Any] | Versions]:
    """Check the operators of a caller, and return a table by normal domain and name."""
    if functions is None:
        return {}
    check_kind("operators", functions, Mapping, "a dict {(domain, name): function}")
    problems, own = [], {}
    for key, given in functions.items():
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key) and key[1]):
            problems.append(f"  {key!r}: a key is a pair (domain, name), such as ('my.domain', 'Scale')")
            continue
        each = list(dict.fromkeys(given.values())) if isinstance(given, Versions) else [given]
        found = [problem for function in each if (problem := _signature_problem(function)) is not None]
        problems += [f"  {key[0] or 'ai.onnx'}::{key[1]}: {problem}" for problem in found]
        own[normal_domain(key[0]), key[1]] = given
    if problems:
        raise InputError(f"operators: {len(problems)} of {len(functions)} cannot be used:\n" + "\n".join(problems))
    return own


def _signature_problem(function: Any) -> str | None:
    """Return why a function cannot be an operator, or None."""
    if not callable(function):
        return f"an operator is a function, not {type(function).__name__}"
    try:
        _, _, attributes, *_ = read_signature(function)
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        return f"its signature, which is the operator's schema, cannot be read: {error}"
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return (
                f"**{parameter.name} would hide unknown attributes: declare each attribute as a keyword-only parameter"
            )
        if parameter.kind is parameter.KEYWORD_ONLY:
            default = attributes.get(parameter.name)
            if default is not REQUIRED and not _is_attribute(default):
                return (
                    f"the attribute {parameter.name!r} has the default {default!r}, and ONNX's attributes are numbers, "
                    "strings, and tuples of them (None: absent)"
                )
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.default not in (REQUIRED, None):
            return (
                f"the input {parameter.name!r} has the default {parameter.default!r}: an absent optional input is "
                "None. Declare an attribute as a keyword-only parameter, after a *"
            )
    return None


def _is_attribute(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_attribute, value))
    return value is None or isinstance(value, (int, float, str))
