"""The table of JAX's primitives: an entry for each, with its kind and all facts that the rules of jaxrnn use.

A rule is found by `Rules`: first by the name of a primitive, then by its kind. So a new primitive needs an entry, and a
rule only where the rule of its kind does not fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn._files.messages import short_repr
from jaxrnn.jaxprs import elements as of


@short_repr
@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """The facts about a primitive.

    Example::

        jaxrnn.streaming.Entry(kind="elementwise", operator="Sqrt", harmless=0.5)

    Attributes:
        kind: the family of the primitive, such as "elementwise" or "reduction"; the guide lists all kinds.
        numpy: the function ``(params, *operands)`` in NumPy, up to rounding and the type of the result.
        moved: the operands whose elements the primitive moves, if it computes no new elements; the other operands are
            positions.
        arithmetic: how an elementwise primitive combines an element with other operands: "add", "multiply", "select",
            "keep" or "other" (see `jaxprs.flows`), or "convert" if the primitive only converts the type.
        signs: the sign of each operand, if the result is a sum of the operands.
        compares: "order" for a comparison of two operands by size, and "equality" for a test of equality.
        harmless: a value inside of the domain, if the derivative is singular somewhere. Operands get this value in
            frames that do not exist.
        singular: the operands in which the derivative is singular; all operands if None.
        monoid: the associative operation of a reduction, a running reduction, a scatter or a search for an extreme, or
            that an elementwise primitive is: "sum", "prod", "max", "min", "and", "or", "xor" or "logsumexp".
        still: True for a movement without effect if the result has the shape of the first operand.
        ordered: True for a movement that keeps the order of frames if the result has as many frames.
        operator: the ONNX operator of the same meaning.
        litert: the types in which a test has compared the primitive in LiteRT, such as "int32 float32". LiteRT files
            have the primitive in no other type.
        homogeneous: True if the result grows as the operands do: ``f(t * x) = t * f(x)`` for t > 0.
        wraps: True if integers of small types may overflow.
        by_parts: True if the primitive applies to the real and imaginary part separately.
        absorbs: True if a zero operand makes the result zero.
        subtracts: True for a scatter that subtracts.
        divides: True if the primitive divides the first operand by the second operand.
        joins: True if the primitive joins its operands along the axis ``dimension``.
        repeated: True if it is cheaper to repeat the equation than to keep the result.
        placed: True for a call that places a computation on devices; programs for devices keep the call.
        alone: True for an exchange between devices that returns the operands, up to axes of size 1, if there is only
            one device.
        core: the number of last axes of the first operand on which linear algebra works.
        why: why a primitive has no rule.
    """

    kind: str
    numpy: Callable[..., Any] | None = None
    moved: slice | None = None
    arithmetic: str = "other"
    signs: tuple[int, ...] = ()
    compares: str = ""
    harmless: float | None = None
    singular: slice | None = None
    monoid: str = ""
    still: bool = False
    ordered: bool = False
    operator: str = ""
    litert: str = ""
    homogeneous: bool = False
    wraps: bool = False
    by_parts: bool = False
    absorbs: bool = False
    subtracts: bool = False
    divides: bool = False
    joins: bool = False
    repeated: bool = False
    placed: bool = False
    alone: bool = False
    core: int = 0
    why: str = ""


#: The kinds of primitives.
KINDS = {
    "identity": "returns its operands; canonical programs lose it",
    "spelling": "equals other primitives, which canonical programs contain",
    "call": "calls a function; canonical programs contain the equations of the function",
    "checkpoint": "calls a function whose values a gradient computes again",
    "custom rule": "calls a function with its own derivative rule",
    "loop": "runs functions repeatedly, or chooses a function",
    "elementwise": "computes each element from the elements of the operands at the same place",
    "movement": "moves, repeats, drops or selects elements",
    "constant": "creates an array without operands",
    "reduction": "reduces axes",
    "cumulative": "reduces the earlier elements of an axis, for each element",
    "window": "reduces windows of axes",
    "scatter": "combines elements at places that operands contain",
    "product": "sums products of elements",
    "order": "sorts, or finds extremes",
    "transform": "a Fourier transform of axes",
    "linear algebra": "factors or solves matrices",
    "random": "draws random numbers, or derives random keys",
    "size": "the length of a recording",
    "bits": "reads the bits of elements as a different type",
    "own": "a primitive of jaxrnn",
    "collective": "exchanges arrays between devices",
    "callback": "calls a function of Python",
    "effect": "acts on memory, the host, or the order of execution",
    "kernel": "a function that was written for an accelerator or a library",
    "sparse": "works on the parts of a sparse array",
    "internal": "appears only inside of a transformation of JAX, never in a finished program",
}

_HALF: dict[str, Any] = {"harmless": 0.5}
_FIRST: dict[str, Any] = {"singular": slice(1)}
_DIVIDE: dict[str, Any] = {"singular": slice(1, 2), "divides": True}
_ADD: dict[str, Any] = {"arithmetic": "add", "homogeneous": True, "wraps": True, "by_parts": True}
_MULTIPLY: dict[str, Any] = {"arithmetic": "multiply"}
_KEEP: dict[str, Any] = {"arithmetic": "keep"}


def _elementwise(function: Callable[..., Any] | None = None, operator: str = "", **facts: Any) -> Entry:
    numpy = None if function is None else lambda params, *operands: function(*operands)
    return Entry(kind="elementwise", numpy=numpy, operator=operator, **facts)


def _movement(numpy: Callable[..., Any], moved: slice = slice(1), kind: str = "movement", **facts: Any) -> Entry:
    return Entry(kind=kind, numpy=numpy, moved=moved, by_parts=True, **facts)


def _each(names: str, **facts: Any) -> dict[str, Entry]:
    return dict.fromkeys(names.split(), Entry(**facts))


def _monoids(before: str, names: str, kind: str) -> dict[str, Entry]:
    return {f"{before}{name}": Entry(kind=kind, monoid=name, by_parts=name == "sum") for name in names.split()}


_same = _movement(lambda params, x: x, kind="identity")
_all_same = _movement(lambda params, *parts: list(parts), slice(None), kind="identity")
_DEVICES = "it exchanges arrays between devices, and a stream runs on one"
_EFFECT = "it acts on memory, or on the host"
_KERNEL = "it is a kernel of a library or of an accelerator, whose frames nobody can tell apart"
_INTERNAL = "JAX uses it inside of a transformation, and no finished program contains it"
_SPARSE = "its operands are the parts of a sparse array; convert it to a dense array with todense()"
_UNMAPPED = "JAX cannot map it over a batch, so it cannot work on each frame"
_OWN = "streams and files are traced without it"

PRIMITIVES: dict[str, Entry] = {
    # Identities and calls, which canonical programs do not contain.
    "consume": _same,
    "copy": _same,
    "device_put": _all_same,
    "layout_constraint": _same,
    "name": _same,
    "optimization_barrier": _all_same,
    "relayout": _same,
    "reshard": _same,
    "shard_alike": _all_same,
    "sharding_constraint": _same,
    "with_memory_space_constraint": _same,
    "xla_metadata_value": _same,
    **_each("call call_hi_primitive closed_call composite custom_vmap_call jit linear_call", kind="call"),
    **_each("compute_on custom_partitioning fused_call xla_metadata_call", kind="call", placed=True),
    "remat2": Entry(kind="checkpoint"),
    **_each("custom_jvp_call custom_vjp_call", kind="custom rule"),
    # Loops and choices.
    **_each("cond scan while", kind="loop"),
    # Elementwise arithmetic.
    "abs": _elementwise(np.abs, "Abs", homogeneous=True, wraps=True, **_HALF),
    "acos": _elementwise(None, "Acos", **_HALF),
    "acosh": _elementwise(None, "Acosh", harmless=2.0),
    "add": _elementwise(np.add, "Add", monoid="sum", signs=(1, 1), **_ADD),
    "add_any": _elementwise(np.add, "Add", signs=(1, 1), **_ADD),
    "and": _elementwise(np.bitwise_and, monoid="and"),
    "asin": _elementwise(None, "Asin", **_HALF),
    "asinh": _elementwise(None, "Asinh"),
    "atan": _elementwise(None, "Atan"),
    "atan2": _elementwise(**_HALF),
    "atanh": _elementwise(None, "Atanh", **_HALF),
    "bessel_i0e": _elementwise(),
    "bessel_i1e": _elementwise(),
    "cbrt": _elementwise(**_HALF),
    "ceil": _elementwise(np.ceil, "Ceil"),
    "clamp": _elementwise(lambda low, x, high: np.minimum(np.maximum(x, low), high), homogeneous=True, **_KEEP),
    "clz": _elementwise(),
    "complex": _elementwise(),
    "conj": _elementwise(),
    "convert_element_type": _elementwise(lambda x: x, arithmetic="convert", homogeneous=True),
    "cos": _elementwise(np.cos, "Cos"),
    "cosh": _elementwise(None, "Cosh"),
    "digamma": _elementwise(**_HALF),
    "div": _elementwise(**_MULTIPLY, **_HALF, **_DIVIDE),
    "eq": _elementwise(np.equal, "Equal", compares="equality"),
    "erf": _elementwise(None, "Erf"),
    "erf_inv": _elementwise(**_HALF),
    "erfc": _elementwise(),
    "exp": _elementwise(np.exp, "Exp"),
    "exp2": _elementwise(),
    "expm1": _elementwise(None, "Expm1"),
    "floor": _elementwise(np.floor, "Floor"),
    "ge": _elementwise(np.greater_equal, "GreaterOrEqual", compares="order"),
    "gt": _elementwise(np.greater, "Greater", compares="order"),
    "igamma": _elementwise(**_HALF),
    "igamma_grad_a": _elementwise(**_HALF),
    "igammac": _elementwise(**_HALF),
    "imag": _elementwise(),
    "integer_pow": Entry(kind="elementwise", numpy=lambda params, x: x ** params["y"], **_HALF),
    "is_finite": _elementwise(np.isfinite),
    "le": _elementwise(np.less_equal, "LessOrEqual", compares="order"),
    "le_to": _elementwise(),
    "lgamma": _elementwise(**_HALF),
    "log": _elementwise(np.log, "Log", **_HALF),
    "log1p": _elementwise(None, "Log1p", **_HALF),
    "log2": _elementwise(np.log2, **_HALF),
    "logistic": _elementwise(None, "Sigmoid"),
    "lt": _elementwise(np.less, "Less", compares="order"),
    "lt_to": _elementwise(),
    "max": _elementwise(np.maximum, "Max", monoid="max", homogeneous=True, **_KEEP),
    "min": _elementwise(np.minimum, "Min", monoid="min", homogeneous=True, **_KEEP),
    "mul": _elementwise(np.multiply, "Mul", monoid="prod", wraps=True, absorbs=True, **_MULTIPLY),
    "mulhi": _elementwise(),
    "ne": _elementwise(np.not_equal, compares="equality"),
    "neg": _elementwise(np.negative, "Neg", signs=(-1,), homogeneous=True, wraps=True, by_parts=True, **_MULTIPLY),
    "nextafter": _elementwise(),
    "not": _elementwise(np.invert),
    "one_minus_square": _elementwise(lambda x: 1 - x * x),
    "or": _elementwise(np.bitwise_or, monoid="or"),
    "polygamma": _elementwise(harmless=2.0),
    "polynomial": _elementwise(),
    "population_count": _elementwise(),
    "pow": _elementwise(None, "Pow", **_HALF, **_FIRST),
    "real": _elementwise(),
    "reduce_precision": _elementwise(arithmetic="convert"),
    "regularized_incomplete_beta": _elementwise(**_HALF),
    "rem": _elementwise(**_KEEP, **_HALF, **_DIVIDE),
    "round": _elementwise(),
    "rsqrt": _elementwise(**_HALF),
    "shift_left": _elementwise(),
    "shift_right_arithmetic": _elementwise(),
    "shift_right_logical": _elementwise(),
    "sign": _elementwise(np.sign, "Sign"),
    "sin": _elementwise(np.sin, "Sin"),
    "sinh": _elementwise(None, "Sinh"),
    "sqrt": _elementwise(np.sqrt, "Sqrt", **_HALF),
    "square": _elementwise(np.square),
    "sub": _elementwise(np.subtract, "Sub", signs=(1, -1), **_ADD),
    "tan": _elementwise(None, "Tan"),
    "tanh": _elementwise(np.tanh, "Tanh"),
    "xor": _elementwise(np.bitwise_xor, monoid="xor"),
    "zeta": _elementwise(harmless=2.0),
    # Movements. The first three keep each element at its place.
    "select_n": _movement(of.select, slice(1, None), kind="elementwise", arithmetic="select"),
    "stop_gradient": _movement(lambda params, x: x, kind="elementwise"),
    "pvary": _movement(lambda params, *parts: list(parts), slice(None), kind="elementwise", alone=True),
    "broadcast_in_dim": _movement(
        lambda params, x, *_: of.broadcast(params, x), still=True, ordered=True, repeated=True
    ),
    "concatenate": _movement(
        lambda params, *parts: np.concatenate(parts, params["dimension"]),
        slice(None),
        still=True,
        ordered=True,
        joins=True,
    ),
    "dynamic_slice": _movement(
        lambda params, x, *starts: x[of.window(x.shape, starts, params["slice_sizes"])], still=True
    ),
    "dynamic_update_slice": _movement(of.dynamic_update, slice(2)),
    "gather": _movement(of.gather),
    "pad": _movement(of.pad, slice(2)),
    "reshape": _movement(lambda params, x, *_: of.reshape(params, x), still=True, ordered=True),
    "rev": _movement(lambda params, x: np.flip(x, tuple(params["dimensions"]))),
    "slice": _movement(of.slice_, still=True, ordered=True),
    "split": _movement(lambda params, x: np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])),
    "squeeze": _movement(lambda params, x: np.squeeze(x, tuple(params["dimensions"])), kind="spelling", still=True),
    "stack": _movement(lambda params, *parts: np.stack(parts, params["axis"]), slice(None), kind="spelling"),
    "tile": _movement(lambda params, x: np.tile(x, params["reps"]), still=True),
    "transpose": _movement(lambda params, x: np.transpose(x, params["permutation"]), ordered=True),
    "unstack": _movement(lambda params, x: list(np.moveaxis(x, params["axis"], 0)), kind="spelling"),
    "bitcast_convert_type": Entry(kind="bits"),
    # Arrays without operands, and lengths.
    "iota": Entry(kind="constant", numpy=of.counted, repeated=True),
    "empty": Entry(kind="spelling"),
    "dim_as_value": Entry(kind="size", numpy=lambda params: params["dim"]),
    # Reductions.
    **_monoids("reduce_", "sum prod max min and or xor", "reduction"),
    "reduce": Entry(kind="reduction"),
    "cumsum": Entry(kind="cumulative", monoid="sum", by_parts=True, numpy=of.running_sum),
    **_monoids("cum", "prod max min logsumexp", "cumulative"),
    **_monoids("reduce_window_", "sum max min", "window"),
    "reduce_window": Entry(kind="window"),
    "conv_general_dilated": Entry(kind="window", absorbs=True),
    **_each("select_and_scatter select_and_scatter_add select_and_gather_add", kind="window"),
    "scatter": _movement(of.scatter, slice(0, None, 2), kind="scatter"),
    "scatter-add": Entry(kind="scatter", monoid="sum", by_parts=True),
    "scatter-sub": Entry(kind="scatter", monoid="sum", subtracts=True),
    "scatter-mul": Entry(kind="scatter", monoid="prod"),
    "scatter-min": Entry(kind="scatter", monoid="min"),
    "scatter-max": Entry(kind="scatter", monoid="max"),
    "dot_general": Entry(kind="product", absorbs=True),
    "ragged_dot_general": Entry(kind="product", absorbs=True),
    "argmax": Entry(kind="order", operator="ArgMax", monoid="max"),
    "argmin": Entry(kind="order", operator="ArgMin", monoid="min"),
    **_each("sort top_k approx_top_k", kind="order"),
    "fft": Entry(kind="transform"),
    # Matrices.
    **_each("cholesky eig eigh geqrf hessenberg householder_product lu", kind="linear algebra", core=2),
    **_each("ormqr qr schur svd symmetric_product triangular_solve tridiagonal", kind="linear algebra", core=2),
    **_each("lu_pivots_to_permutation tridiagonal_solve", kind="linear algebra", core=1),
    "custom_linear_solve": Entry(kind="linear algebra"),
    **_each("cholesky_update geqp3", kind="linear algebra", why=_UNMAPPED),
    # Random numbers.
    **_each("random_bits random_clone random_fold_in random_gamma random_seed random_split", kind="random"),
    **_each("random_unwrap random_wrap rng_bit_generator rng_uniform threefry2x32", kind="random"),
    **_each("iota_2x32_shape philox2x32 philox4x32 threefry4x32", kind="random"),
    # Primitives without rules.
    "shard_map": Entry(kind="collective", why=_DEVICES),
    **_each(
        """
        all_gather all_gather_invariant all_to_all axis_index pbroadcast pmax pmin ppermute psum psum_invariant
        reduce_scatter
        """,
        kind="collective",
        alone=True,
        why=_DEVICES,
    ),
    **_each(
        """
        all_gather_reduced global_array_to_host_local_array host_local_array_to_global_array pbroadcast_dynamic precv
        preduced psend ragged_all_to_all reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin
        unreduced_psum unreduced_reduce_scatter vary_unreduced_cast vary_unreduced_cast_p
        all_gather_done all_gather_reduced_start all_gather_start all_to_all_done all_to_all_start pbroadcast_done
        pbroadcast_start ppermute_done ppermute_start psum_done psum_invariant_start psum_start reduce_scatter_done
        reduce_scatter_start unreduced_psum_start unreduced_reduce_scatter_start
        """,
        kind="collective",
        why=_DEVICES,
    ),
    **_each("debug_callback debug_print io_callback pure_callback", kind="callback", why=_EFFECT),
    **_each(
        """
        accum_grad_in_ref addupdate after_all assert_consumed_value box_get box_set broadcast_to buffer_callback check
        create_token dce_sink empty_ref free_ref freeze get inspect_sharding log_extend log_read new_box new_log
        new_ref pin program_order run_state stage swap unpin
        """,
        kind="effect",
        why=_EFFECT,
    ),
    **_each(
        """
        call_exported cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper
        dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
        dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd dot_product_attention_fwd_wrapper ffi_call
        pallas_call rnn_bwd rnn_fwd scaled_dot scaled_matmul scaled_matmul_wrapper tpu_custom_call
        """,
        kind="kernel",
        why=_KERNEL,
    ),
    **_each(
        """
        bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general
        bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense
        coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense csr_fromdense csr_matmat csr_matvec csr_spmm
        csr_spmv csr_todense spsolve todense
        """,
        kind="sparse",
        why=_SPARSE,
    ),
    **_each(
        """
        call_hi_primitive_linearized create_linear custom_jvp_call_jaxpr custom_lin dimension_size
        empty2 eq_to eval_jaxpr from_edtype remat_opt shape_assertion tie to_edtype unreachable zeros_like
        """,
        kind="internal",
        why=_INTERNAL,
    ),
    # Primitives of jaxrnn.
    **_each("onnx_operator recurrent_layer", kind="own"),
    "platform_index": Entry(kind="own", repeated=True, why=_OWN),
    "recurrence": Entry(kind="own", why=_OWN),
}

_NUMBERS = "int8 int16 int32 int64 uint8 uint16 uint32 float16 float32"
_MOVED = "bool int8 int16 int32 int64 uint8 uint32 float16 float32 complex64"
#: The primitives of LiteRT files by the types in which `tools/sweep.py` compared them at odd values.
_IN_LITERT = {
    f"bool {_NUMBERS} complex64": "convert_element_type eq ne select_n stop_gradient",
    f"{_NUMBERS} complex64": "add add_any iota mul neg square sub",
    _NUMBERS: "bitcast_convert_type clamp ge gt integer_pow le le_to lt lt_to max min rem",
    _MOVED: "broadcast_in_dim concatenate pad reshape transpose",
    "bool int8 int16 int32 int64 uint8 uint32 float32 complex64": "tile",
    "bool int8 int32 int64 uint8 uint32 float16 float32 complex64": "slice split",
    "bool int8 int32 int64 uint8 uint32 float16 float32": "scatter",
    "bool int8 int16 int32 uint8 uint16": "not xor",
    "bool int8 int32 int64 uint8 float32 complex64": "dynamic_slice gather",
    "bool int8 int32 int64 float32 complex64": "dynamic_update_slice",
    "bool int8 int32 uint8 float32": "argmax",
    "int8 int32 uint8 float32": "argmin",
    "bool int16 int32 int64 uint8 float32 complex64": "rev",
    "bool int32 int64 float16 float32": "reduce_max",
    "bool": "and or reduce_and reduce_or",
    "int8 int16 int32 int64 uint8 uint16 uint32": "shift_left",
    "int8 int16 int32 int64 uint8 float32": "top_k",
    "int8 int16 int32 int64 float16 float32 complex64": "abs",
    "int8 int16 int32 uint8 uint16 uint32": "shift_right_arithmetic shift_right_logical",
    "int8 int16 int32 uint8 uint16 float16 float32": "sign",
    "int8 int16 int32 uint8 uint16 float16 float32 complex64": "div",
    "int8 uint8 float16 float32": "conv_general_dilated",
    "int8 uint8 float16 float32 complex64": "dot_general",
    "int16 int32 int64 float32": "cumprod reduce_window_sum",
    "int32 int64 float16 float32 complex64": "reduce_sum",
    "int32 int64 float32 complex64": "cumsum",
    "int32 int64 float32": """
        cummax cummin reduce_min reduce_prod reduce_window_max reduce_window_min scatter-add scatter-max
        scatter-min scatter-mul sort
        """,
    "int32": "lu_pivots_to_permutation",
    "float16 float32 complex64": "exp log",
    "float16 float32": """
        acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp2
        expm1 floor is_finite lgamma log1p log2 logistic one_minus_square polynomial pow round rsqrt sin sinh sqrt tan
        tanh zeta
        """,
    "float32 complex64": "conj fft",
    "float32": "cholesky complex custom_linear_solve lu triangular_solve",
    "complex64": "imag real",
}
for _types, _names in _IN_LITERT.items():
    PRIMITIVES |= {name: replace(PRIMITIVES[name], litert=_types) for name in _names.split()}
#: Entries that callers add, which come first.
ADDED: dict[str, Entry] = {}

#: Primitives without an entry, which no rule knows.
_UNKNOWN = Entry(kind="unknown")


def entry_of(primitive: str | JaxprEqn) -> Entry:
    """Return the entry of a primitive, by its name or an equation; unknown primitives have the kind "unknown"."""
    name = primitive if isinstance(primitive, str) else primitive.primitive.name
    return ADDED.get(name) or PRIMITIVES.get(name, _UNKNOWN)


def numpy_of(equation: JaxprEqn) -> Callable[..., Any]:
    """Return an equation as a function of its operands in NumPy; the entry of the primitive has such a function."""
    function = entry_of(equation).numpy
    assert function is not None, equation.primitive.name
    return functools.partial(function, equation.params)


def on_elements(equation: JaxprEqn) -> Callable[..., Any] | None:
    """Return the function in NumPy of an equation that computes elements from elements, or None."""
    entry = entry_of(equation)
    return numpy_of(equation) if entry.kind == "elementwise" and entry.moved is None and entry.numpy else None


Rule = TypeVar("Rule", bound=Callable[..., Any])


class Rules(dict[str, Rule]):
    """The rules of one context, such as streaming or export: keyed by the name of a primitive, or else by the kind.

    Example::

        RULES = Rules()

        @RULES.add("reshape", "transpose")
        def moved(...): ...

        @RULES.add(kind="elementwise")
        def elementwise(...): ...

    ``shared`` are rules of several contexts, which an own rule replaces.
    """

    def __init__(self, shared: Rules[Rule] | None = None) -> None:
        super().__init__(shared or {})
        self.of_kind: dict[str, Any] = dict(shared.of_kind) if shared else {}

    def add(self, *names: str, kind: str = "") -> Callable[[Rule], Rule]:
        """Decorate the rule of primitives with these names, or of all primitives of a kind."""

        def decorate(rule: Rule) -> Rule:
            self.update(dict.fromkeys(names, rule))
            if kind:
                self.of_kind[kind] = rule
            return rule

        return decorate

    def of(self, primitive: str | JaxprEqn) -> Any:
        """Return the rule of a primitive, by its name or an equation, or None."""
        name = primitive if isinstance(primitive, str) else primitive.primitive.name
        return self.get(name) or self.of_kind.get(entry_of(name).kind)
