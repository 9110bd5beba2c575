"""Recurrent cells: weights, activations, and the LSTM, GRU and RNN with their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.forms import by_platform, is_plain, product, product_of_rows

Carry = tuple[jax.Array, ...]


class Weights(NamedTuple):
    """The weights of one direction in ONNX's layout; G is the number of gates of the cell."""

    input: jax.Array  # ``[G * hidden, features]``
    recurrent: jax.Array  # ``[G * hidden, hidden]``
    bias: jax.Array | None = None  # ``[2 * G * hidden]``, the input bias, then the recurrent bias
    peephole: jax.Array | None = None  # ``[3 * hidden]``; LSTM only


class RecurrentCell(Protocol):
    """A recurrent cell: a step and its derivative. The skeleton adds time, direction and lengths.

    The derivative has two parts. `tangent` is linear in the tangents of the carry and of the projected frame, with the
    coefficients from `linearize`. `weight_tangents` adds the contribution of the weights' tangents, as a single product
    for all frames.
    """

    #: The number of gates, whose weights are stacked along the first axis of `Weights.input`.
    gates: ClassVar[int]
    #: The number of arrays in the carry; the first array is the output.
    carries: ClassVar[int]

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """Return the weights for `project` (a matrix, and a bias or None) and the weights for `step`."""
        ...

    def project(self, prepared: tuple[jax.Array, jax.Array | None], x: jax.Array) -> jax.Array:
        """Compute the part of the gates without carry, for all frames: ``[..., features] -> [..., G * hidden]``."""
        w, bias = prepared
        projected = product(x, w)
        return projected if bias is None else projected + bias

    def split_gates(self, projected: jax.Array) -> Any:
        """Split projected frames for `step`: an array, or several arrays if a loop over several arrays is faster."""
        return projected

    def step(self, recurrent: Any, carry: Carry, projected: Any) -> Carry:
        """Compute a step from carry arrays ``[batch, hidden]`` and a projected frame from `split_gates`."""
        ...

    def linearize(self, recurrent: Any, carry: Carry, projected: Any) -> tuple[Carry, tuple[jax.Array, ...]]:
        """Compute a step, and the coefficients of its derivative, arrays ``[batch, k * hidden]``."""
        ...

    def tangent(self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: Any) -> Carry:
        """Return the tangent of the carry after a step; ``d_projected`` is split like the projected frame."""
        ...

    def residuals(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """Return the parts of the carries around a step that `weight_tangents` needs besides the hidden state."""
        return ()

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Return the contribution of weight tangents to projected frames, ``[time, batch, G * hidden]``.

        ``d_recurrent`` has the structure of the recurrent weights. ``residuals`` are the hidden state before each step,
        then the arrays from `residuals`; like ``coefficients``, they have a leading time axis.
        """
        ...


def sum_biases(bias: jax.Array | None) -> jax.Array | None:
    """Return the sum of ONNX's input and recurrent biases, ``[G * hidden]``."""
    return None if bias is None else bias[: bias.shape[0] // 2] + bias[bias.shape[0] // 2 :]


def clip_input(x: jax.Array, limit: float | None) -> jax.Array:
    """Clip the input of an activation to ``[-limit, limit]`` (ONNX's attribute ``clip``), unless the limit is None."""
    return x if limit is None else jnp.clip(x, -limit, limit)


def elu(x: jax.Array, alpha: jax.Array) -> jax.Array:
    """Return x, or ``alpha * (exp(x) - 1)`` for negative x.

    Except in plain forms, ``exp(x) - 1`` is ``2 t / (1 - t)`` with ``t = tanh(x / 2)``: as accurate as ``expm1``, at
    half the time on a CPU.
    """
    low = jnp.minimum(x, 0)
    if is_plain():
        return jnp.where(x >= 0, x, alpha * jnp.expm1(low))
    t = jnp.tanh(low * x.dtype.type(0.5))
    # A power, as `jaxrnn.stream` would guard a division against zeros in frames that do not exist.
    return jnp.where(x >= 0, x, alpha * ((t + t) * (1 - t) ** -1))


@jax.custom_jvp
def relu(x: jax.Array) -> jax.Array:
    """Return ``max(x, 0)``, with the derivative 0 at 0. JAX traces `jax.nn.relu` again for each shape: 0.5 ms."""
    return lax.max(x, np.zeros((), x.dtype))


relu.defjvps(lambda tangent, _, x: lax.select(x > 0, tangent, lax.full_like(tangent, 0)))


#: Functions by ONNX's names, with the defaults of their coefficients (alpha, then beta).
_FUNCTIONS: dict[str, tuple[Callable[..., jax.Array], tuple[float, ...]]] = {
    "Relu": (relu, ()),
    "Tanh": (jnp.tanh, ()),
    "Sigmoid": (jax.nn.sigmoid, ()),
    "Softsign": (jax.nn.soft_sign, ()),
    "Softplus": (jax.nn.softplus, ()),
    "Affine": (lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "LeakyRelu": (lambda x, alpha: jnp.where(x >= 0, x, alpha * x), (0.01,)),
    "ThresholdedRelu": (lambda x, alpha: jnp.where(x >= alpha, x, jnp.zeros((), x.dtype)), (1.0,)),
    "ScaledTanh": (lambda x, alpha, beta: alpha * jnp.tanh(beta * x), (1.0, 1.0)),
    "HardSigmoid": (lambda x, alpha, beta: jnp.clip(alpha * x + beta, 0, 1), (0.2, 0.5)),
    "Elu": (elu, (1.0,)),
}


@dataclass(frozen=True)
class Activation:
    """An activation function with coefficients. Comparable, so that cells recognise standard activations."""

    name: str
    coefficients: tuple[float, ...] = ()

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the function elementwise, in the type of ``x``."""
        function, _ = _FUNCTIONS[self.name]
        return function(x, *(jnp.asarray(value, x.dtype) for value in self.coefficients))


SIGMOID, TANH = Activation("Sigmoid"), Activation("Tanh")


def value_and_slope(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the value and the derivative of an elementwise function at x."""
    return jax.jvp(function, (x,), (jnp.ones_like(x),))


def parse_activations(
    names: Sequence[str], alphas: Sequence[float] = (), betas: Sequence[float] = ()
) -> tuple[Activation, ...]:
    """Parse ONNX's three lists of activations; names are case-insensitive.

    Each function consumes the coefficients that it takes, in order. Defaults apply once a list is used up. An unknown
    name raises a ValueError.
    """
    queues, result = [list(alphas), list(betas)], []
    known = {name.lower(): name for name in _FUNCTIONS}
    for spelling in names:
        if (name := known.get(spelling.lower())) is None:
            raise ValueError(f"unknown activation {spelling!r}; there are: {', '.join(_FUNCTIONS)}")
        _, defaults = _FUNCTIONS[name]
        coefficients = [queue.pop(0) if queue else default for queue, default in zip(queues, defaults, strict=False)]
        result.append(Activation(name, tuple(map(float, coefficients))))
    return tuple(result)


@dataclass(frozen=True)
class LSTM(RecurrentCell):
    """An LSTM cell; the carry is ``(h, c)``.

    The activations are f (gates), g (cell input) and h (cell output). ``clip`` bounds the inputs of all activations.
    With ``input_forget``, the forget gate is 1 minus the input gate.
    """

    activations: tuple[Activation, Activation, Activation] = (SIGMOID, TANH, TANH)
    clip: float | None = None
    input_forget: bool = False

    gates: ClassVar[int] = 4
    carries: ClassVar[int] = 2

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """Transpose the matrices, keep R for the tangent, add the biases, and split the peepholes."""
        w, r, bias, peephole = weights
        return (w.T, sum_biases(bias)), (r.T, r, None if peephole is None else jnp.split(peephole, 3))

    def step(self, recurrent: Any, carry: Carry, projected: jax.Array) -> Carry:
        """Compute one step."""
        r, _, peephole = recurrent
        h, c = carry
        gates = projected + product(h, r)
        if peephole is None:
            i, o, f, g = jnp.split(self._gates(gates), 4, -1)
        else:
            a_i, a_o, a_f, a_g = jnp.split(gates, 4, -1)
            i, f = self._sigmoid(a_i + peephole[0] * c), self._sigmoid(a_f + peephole[2] * c)
            o, g = a_o, self._input(a_g)
        c = (1 - i if self.input_forget else f) * c + i * g
        if peephole is not None:
            o = self._sigmoid(o + peephole[1] * c)
        return o * self._output(c), c

    def _gates(self, gates: jax.Array) -> jax.Array:
        """Compute all four gates from their inputs, without peepholes."""
        gates = clip_input(gates, self.clip)
        if self.activations[:2] == (SIGMOID, TANH):
            return by_platform(_sigmoid_gates_by_one_tanh, self._each_gate, gates)
        return self._each_gate(gates)

    def _each_gate(self, gates: jax.Array) -> jax.Array:
        """Apply the activations of i, o and f, and of the cell input."""
        cut = gates.shape[-1] // 4 * 3
        return jnp.concatenate([self.activations[0](gates[..., :cut]), self.activations[1](gates[..., cut:])], -1)

    def _sigmoid(self, gate: jax.Array) -> jax.Array:
        return self.activations[0](clip_input(gate, self.clip))

    def _input(self, gate: jax.Array) -> jax.Array:
        return self.activations[1](clip_input(gate, self.clip))

    def _output(self, c: jax.Array) -> jax.Array:
        return self.activations[2](clip_input(c, self.clip))

    # The derivative: c = f c0 + i g and h = o H(c).

    def linearize(self, recurrent: Any, carry: Carry, projected: jax.Array) -> tuple[Carry, tuple[jax.Array, ...]]:
        """Compute a step; the coefficients are g i', H(c) o', c0 f', i g' concatenated in gate order, f and o H'(c)."""
        r, _, peephole = recurrent
        h, c0 = carry
        gates = projected + product(h, r)
        if peephole is None:
            values, slopes = value_and_slope(self._gates, gates)
            i, o, f, g = jnp.split(values, 4, -1)
            s_i, s_o, s_f, s_g = jnp.split(slopes, 4, -1)
        else:
            a_i, a_o, a_f, a_g = jnp.split(gates, 4, -1)
            i, s_i = value_and_slope(self._sigmoid, a_i + peephole[0] * c0)
            f, s_f = value_and_slope(self._sigmoid, a_f + peephole[2] * c0)
            g, s_g = value_and_slope(self._input, a_g)
            o = s_o = a_o
        if self.input_forget:
            f = 1 - i
        c = f * c0 + i * g
        if peephole is not None:
            o, s_o = value_and_slope(self._sigmoid, o + peephole[1] * c)
        output, slope = value_and_slope(self._output, c)
        by_i, by_f = ((g - c0) * s_i, jnp.zeros_like(f)) if self.input_forget else (g * s_i, c0 * s_f)
        return (o * output, c), (jnp.concatenate([by_i, output * s_o, by_f, i * s_g], -1), f, o * slope)

    def tangent(
        self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: jax.Array
    ) -> Carry:
        """Return the tangents of h and c after a step."""
        _, rows, peephole = recurrent
        scales, f, output_scale = coefficients
        dh, dc = d_carry
        d_gates = d_projected + product_of_rows(dh, rows)
        if peephole is None:
            by_i, by_o, by_f, by_g = jnp.split(scales * d_gates, 4, -1)
            dc = f * dc + by_i + by_f + by_g
            return by_o + output_scale * dc, dc
        d_i, d_o, d_f, d_g = jnp.split(d_gates, 4, -1)
        s_i, s_o, s_f, s_g = jnp.split(scales, 4, -1)
        before = dc
        dc = f * before + s_i * (d_i + peephole[0] * before) + s_f * (d_f + peephole[2] * before) + s_g * d_g
        return s_o * (d_o + peephole[1] * dc) + output_scale * dc, dc

    def residuals(self, recurrent: Any, before: Carry, after: Carry) -> tuple[jax.Array, ...]:
        """Return the cell state before and after the step, which the peepholes read."""
        return () if recurrent[-1] is None else (before[1], after[1])

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Return ``h0 dR'`` plus the contribution of the peepholes."""
        matrix, _, peephole = d_recurrent
        total = product(residuals[0], matrix)
        if peephole is None:
            return total
        _, before, after = residuals
        d_i, d_o, d_f = peephole
        return total + jnp.concatenate([d_i * before, d_o * after, d_f * before, jnp.zeros_like(before)], -1)


def _sigmoid_gates_by_one_tanh(gates: jax.Array) -> jax.Array:
    """Compute all four gates with a single tanh: sigmoid(x) = tanh(x / 2) / 2 + 1 / 2.

    One vectorised function over a row is faster on the CPU than four functions over slices of the row.
    """
    hidden = gates.shape[-1] // 4
    scale = np.repeat(np.asarray([0.5, 0.5, 0.5, 1.0], gates.dtype), hidden)
    offset = np.repeat(np.asarray([0.5, 0.5, 0.5, 0.0], gates.dtype), hidden)
    return jnp.tanh(gates * scale) * scale + offset


@dataclass(frozen=True)
class GRU(RecurrentCell):
    """A GRU cell; the carry is ``(h,)``.

    The activations are f (gates) and g (candidate). ``clip`` bounds the inputs of both activations. With
    ``linear_before_reset``, the reset gate scales the recurrent product, and not the hidden state before the product.
    """

    activations: tuple[Activation, Activation] = (SIGMOID, TANH)
    clip: float | None = None
    linear_before_reset: bool = False

    gates: ClassVar[int] = 3
    carries: ClassVar[int] = 1

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """Transpose the matrices, keep R for the tangent, and add the biases.

        The recurrent bias of the candidate stays separate if the reset gate scales the bias.
        """
        w, r, bias, _ = weights
        hidden = r.shape[-1]
        if bias is None:
            bias = jnp.zeros(6 * hidden, dtype)
        input_bias, recurrent_bias = jnp.split(bias, 2)
        if self.linear_before_reset:
            candidate_bias = recurrent_bias[2 * hidden :]
            recurrent_bias = jnp.concatenate([recurrent_bias[: 2 * hidden], jnp.zeros_like(candidate_bias)])
        else:
            candidate_bias = None
        # A reset before the product needs two products: split the matrices here and not in each step.
        cuts = [] if self.linear_before_reset else [2 * hidden]
        columns, rows = (tuple(jnp.split(matrix, cuts, axis)) for matrix, axis in ((r.T, 1), (r, 0)))
        return (w.T, input_bias + recurrent_bias), (columns, rows, candidate_bias)

    def split_gates(self, projected: jax.Array) -> list[jax.Array]:
        """Return an array for each gate; a loop over gates in the middle of rows is two to three times slower."""
        return jnp.split(projected, 3, -1)

    def step(self, recurrent: Any, carry: Carry, projected: list[jax.Array]) -> Carry:
        """Compute one step."""
        (h,) = carry
        z, r, candidate = self._products(recurrent, h, projected)
        z, r = self._gate(z), self._gate(r)
        g = self._candidate(self._candidate_input(recurrent, h, projected, candidate, r))
        return ((1 - z) * g + z * h,)

    def _products(
        self, recurrent: Any, h: jax.Array, projected: list[jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Return the inputs of gates z and r, and the candidate's recurrent part, or None if the reset is first."""
        columns, _, candidate_bias = recurrent
        z, r, *rest = jnp.split(product(h, columns[0]), 3 if self.linear_before_reset else 2, -1)
        return projected[0] + z, projected[1] + r, rest[0] + candidate_bias if rest else None

    def _candidate_input(
        self, recurrent: Any, h: jax.Array, projected: list[jax.Array], candidate: jax.Array | None, r: jax.Array
    ) -> jax.Array:
        """Return the input of the candidate's activation."""
        return projected[2] + (product(r * h, recurrent[0][1]) if candidate is None else r * candidate)

    def _gate(self, gate: jax.Array) -> jax.Array:
        return self.activations[0](clip_input(gate, self.clip))

    def _candidate(self, candidate: jax.Array) -> jax.Array:
        return self.activations[1](clip_input(candidate, self.clip))

    # The derivative: h = (1 - z) g + z h0. n is the candidate's recurrent part without the reset, or h0 if the reset
    # comes before the product.

    def linearize(
        self, recurrent: Any, carry: Carry, projected: list[jax.Array]
    ) -> tuple[Carry, tuple[jax.Array, ...]]:
        """Compute a step; the coefficients are (h0 - g) z', n r' (or h0 r'), (1 - z) g', z and r."""
        (h,) = carry
        z, r, candidate = self._products(recurrent, h, projected)
        (z, slope_z), (r, slope_r) = value_and_slope(self._gate, z), value_and_slope(self._gate, r)
        g, slope = value_and_slope(self._candidate, self._candidate_input(recurrent, h, projected, candidate, r))
        by_r = (h if candidate is None else candidate) * slope_r
        return ((1 - z) * g + z * h,), ((h - g) * slope_z, by_r, (1 - z) * slope, z, r)

    def tangent(
        self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: list[jax.Array]
    ) -> Carry:
        """Return the tangent of h after a step."""
        by_z, by_r, slope, z, r = coefficients
        (dh,), rows = d_carry, recurrent[1]
        d_z, d_r, *rest = jnp.split(product_of_rows(dh, rows[0]), 3 if self.linear_before_reset else 2, -1)
        of_r = by_r * (d_projected[1] + d_r)
        candidate = of_r + r * rest[0] if rest else product_of_rows(of_r + r * dh, rows[1])
        return (by_z * (d_projected[0] + d_z) + slope * (d_projected[2] + candidate) + z * dh,)

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Return ``h0 dR'``, with the reset gate on the candidate before or after the product."""
        columns, _, candidate_bias = d_recurrent
        (h,), r = residuals, coefficients[-1]
        if not self.linear_before_reset:
            return jnp.concatenate([product(h, columns[0]), product(r * h, columns[1])], -1)
        z, reset, candidate = jnp.split(product(h, columns[0]), 3, -1)
        return jnp.concatenate([z, reset, r * (candidate + candidate_bias)], -1)


@dataclass(frozen=True)
class RNN(RecurrentCell):
    """A simple recurrent cell ``h = f(x W' + h0 R' + b)`` with carry ``(h,)``; ``clip`` bounds the input of f."""

    activations: tuple[Activation] = (TANH,)
    clip: float | None = None

    gates: ClassVar[int] = 1
    carries: ClassVar[int] = 1

    def prepare(self, weights: Weights, dtype: Any) -> tuple[Any, Any]:
        """Transpose the matrices for ``x @ w``, keep R for the tangent, and add the two biases."""
        w, r, bias, _ = weights
        return (w.T, sum_biases(bias)), (r.T, r)

    def step(self, recurrent: Any, carry: Carry, projected: jax.Array) -> Carry:
        """Compute one step."""
        return (self._activate(projected + product(carry[0], recurrent[0])),)

    def _activate(self, gate: jax.Array) -> jax.Array:
        return self.activations[0](clip_input(gate, self.clip))

    def linearize(self, recurrent: Any, carry: Carry, projected: jax.Array) -> tuple[Carry, tuple[jax.Array, ...]]:
        """Compute a step; the coefficient is the slope f'."""
        h, slope = value_and_slope(self._activate, projected + product(carry[0], recurrent[0]))
        return (h,), (slope,)

    def tangent(
        self, recurrent: Any, coefficients: tuple[jax.Array, ...], d_carry: Carry, d_projected: jax.Array
    ) -> Carry:
        """Return ``dh = f' (d_projected + dh0 R')``."""
        (slope,) = coefficients
        return (slope * (d_projected + product_of_rows(d_carry[0], recurrent[1])),)

    def weight_tangents(
        self, d_recurrent: Any, residuals: tuple[jax.Array, ...], coefficients: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Return ``h0 dR'``."""
        return product(residuals[0], d_recurrent[0])
