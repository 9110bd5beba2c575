"""Comparison of an imported model with the original module, at several lengths and batches."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from jaxrnn.comparison import STEPS, Check, Comparison, agree, compare, tolerances
from jaxrnn.errors import InputError, JaxrnnError, ModelError, StreamError
from jaxrnn.jaxprs.held import Held
from jaxrnn.model import Model
from jaxrnn.onnx.tensors import graphs_below, tensors_of
from jaxrnn.steps.specs import Arrays
from jaxrnn.verification.inside import precisions

#: The multiples of the length of the example that are compared; the second only if the length is at most `_LONG`. Runs
#: of a module up to twice `_LONG` show if the module fills a cache there.
_LONGER, _LONG = (5, 17), 4096
#: Axis and name of the open dimensions of each input.
Axes = Mapping[str, Mapping[int, str]]
#: Runs the module on a dict of inputs, and returns the outputs in order.
Run = Callable[[Arrays], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Agreement(Check):
    """The comparison of a model with the original module; `failure` is an error of the model where the module runs."""

    failure: JaxrnnError | None = None

    @property
    def differs(self) -> bool:
        """True if the model fails, or an output differs."""
        return self.failure is not None or super().differs


@dataclass(frozen=True)
class Checked:
    """The comparisons of a model with a module, and the lengths for which the two agree.

    Attributes:
        cases: the comparisons.
        shortest: the smallest compared length.
        reason: why the model does not agree at shorter lengths; empty if there are none.
        limit: a long recording with which the module runs and the model fails, and why; empty if there is none.
    """

    cases: tuple[Agreement, ...]
    shortest: int
    reason: str
    limit: str = ""

    def report(self, name: str, framework: str, constants: Sequence[str] = ()) -> None:
        """Warn of weights that are constants of the file, and of short lengths at which the file differs."""
        if constants:
            listed = ", ".join(map(repr, constants))
            warnings.warn(
                f"the file of {name} has constants in place of the weights {listed}: the module reads these outside of "
                "the exported graph, for example as `weight.data`, a Python number or a NumPy array. The file agrees "
                "for their present values, and training does not change them",
                UserWarning,
                stacklevel=3,
            )
        if self.reason:
            warnings.warn(
                f"the file of {name} agrees with {framework} from {self.shortest} frames on; for fewer: "
                f"{self.reason[:300]}; with `shortest={self.shortest}` this is expected",
                UserWarning,
                stacklevel=3,
            )
        if self.limit:
            warnings.warn(
                f"{framework} runs {name} and the file fails, {self.limit}\nThe file agrees for shorter recordings",
                UserWarning,
                stacklevel=3,
            )


def check_agreement(
    model: Model,
    run: Run,
    example: Arrays,
    axes: Axes,
    framework: str,
    held: Held,
    shortest: int | None = None,
    verify: bool = False,
) -> Checked:
    """Compare a model with the original module at the sizes of the example and at other sizes.

    Each size is a compiled program, so by default a size is left out if another size decides the same: doubled sizes
    if the module runs at the sizes plus 1, and shorter multiples if the file runs at the longest multiple. `verify`
    compares all sizes.

    The smallest size of the time dimensions is 1, or `shortest`. If the two disagree only there, it is the smallest
    size from which on they agree. `run` starts from what the module holds at first, and `held` knows what a run has
    changed: at lengths for which a run fills a cache, the file may contain what the cache held before.

    A ModelError lists the outputs that differ, names sizes at which the module runs and the model fails, or reports
    that no element was compared: the outputs are empty or not finite, or the module runs at a single size.
    """
    start = sizes_of(example, axes)
    least, reason = 1 if shortest is None else shortest, ""

    def at(sizes: Mapping[str, int], required: bool = False, positions: int = 0) -> Agreement | None:
        inputs = resized(example, axes, sizes)
        try:
            there = run(inputs)
        except Exception:  # modules refuse sizes with errors of any type
            if required:
                raise
            return None
        try:
            with jax.default_matmul_precision("highest"):
                return Agreement(sizes, compared(model, inputs, model(inputs), there, positions))
        except JaxrnnError as error:
            return Agreement(sizes, failure=error)

    def of_length(length: int) -> dict[str, int]:
        return {name: 1 if name == "batch" else min(size, length) for name, size in start.items()}

    others: list[Agreement | None] = []
    for sizes in _choices(example, axes):
        if sizes not in (start, of_length(1)) and (verify or all(each is None for each in others)):
            others.append(at(sizes))
    found = [each for each in (at(start, required=True), *others, at(of_length(least))) if each is not None]
    wrong = [case for case in found if case.differs]
    if shortest is None and len(wrong) == 1 and wrong[0] is found[-1]:
        below, least = 1, max(start.values())
        while least - below > 1:
            middle = (below + least) // 2
            case = at(of_length(middle))
            below, least = (middle, least) if case is not None and case.differs else (below, middle)
        case = at(of_length(least))
        if case is not None and not case.differs and least > 1:
            reason = str(wrong[0].failure or next(each.reason for each in wrong[0].outputs if each.differs))
            found, wrong = [*found[:-1], case], []
    if failed := [case for case in wrong if case.failure is not None]:
        runs = "" if found[0].failure else "; at the sizes of the example, the file runs"
        raise ModelError(
            f"with {_listed(failed[0].dims)}, {framework} runs and the file fails: {failed[0].failure}{runs}"
        ) from failed[0].failure
    if wrong:
        raise ModelError(
            f"the file differs from {framework}: {_described(wrong, len(found))}{_cause(held.changes(), framework)}"
        )

    def decides(sizes: Mapping[str, int]) -> bool:
        case = None if verify else at(sizes, positions=max(sizes.values()))
        return case is not None and case.failure is None

    limit = ""
    for sizes in _longer(start, held, lambda sizes: _runs(run, resized(example, axes, sizes)), decides):
        if (case := at(sizes, positions=max(sizes.values()))) is None:
            continue
        cause = _cause(held.changes(), framework) if case.differs else ""
        if case.failure is not None:
            limit = f"with {_listed(sizes)}: {str(case.failure)[:300]}{cause}"
            break
        found.append(case)
        if case.differs:
            raise ModelError(f"the file differs from {framework}: {_described([case], len(found))}{cause}")
    if not agree(output for case in found for output in case.outputs):
        unknown = [case for case in found if not case.ok]
        raise ModelError(
            f"the file could not be compared with {framework}, because the example gives no finite outputs: "
            f"{_described(unknown, len(found))}\nGive another example"
        )
    if len(found) == 1 and any(axes.values()):
        raise ModelError(
            f"{framework} runs the module only at the sizes of the example, {_listed(found[0].dims)}, so an "
            "open dimension cannot be checked; give an example at which the module also runs twice as long, or "
            "leave out time"
        )
    return Checked(tuple(found), least, reason, limit)


def output_shapes(run: Run, example: Arrays, axes: Axes) -> list[list[int | str | None]]:
    """Return the shapes of the outputs from runs at several sizes: a number, the name of an open dimension, or None.

    None means that a size depends on the open dimensions otherwise, or that the runs do not decide.
    """
    start = sizes_of(example, axes)
    alone = [{**start, symbol: 2 * size} for symbol, size in start.items()]
    runs = [(start, [array.shape for array in run(example)])]
    for sizes in (*alone, *_choices(example, axes)[1:]):
        # Modules refuse sizes with errors of any type.
        with contextlib.suppress(Exception):
            runs.append((sizes, [array.shape for array in run(resized(example, axes, sizes))]))

    def size_of(output: int, axis: int) -> int | str | None:
        rank = len(runs[0][1][output])
        found = [shapes[output][axis] if len(shapes[output]) == rank else None for _, shapes in runs]
        names = [symbol for symbol in start if found == [sizes[symbol] for sizes, _ in runs]]
        if all(len({sizes[symbol] for sizes, _ in runs}) > 1 for symbol in start):
            return found[0] if len({*found}) == 1 else names[0] if len(names) == 1 else None
        return None

    return [[size_of(output, axis) for axis in range(len(shape))] for output, shape in enumerate(runs[0][1])]


def repeats(run: Run, example: Arrays) -> bool:
    """Return True if a module returns equal outputs for an example before and after a run on other inputs."""
    first = run(example)
    run({name: np.flip(array) for name, array in example.items()})
    pairs = itertools.zip_longest(run(example), first)
    return not any(compare("", *pair, scaled=True).differs for pair in pairs)


def check_stream(
    model: Model, run: Run, example: Arrays, axes: Axes, framework: str, shortest: int = 1
) -> tuple[Agreement, ...]:
    """Compare the streams of a model over each time axis with the original module, for several lengths.

    The lengths are the lengths of the example, these plus 1 and doubled, and the shortest. A time axis over which
    `Model.stream` refuses the model is not compared. A ModelError lists the outputs that differ.
    """
    start, found = sizes_of(example, axes), []
    for symbol in start.keys() - {"batch"}:
        others = {name: size for name, size in start.items() if name not in (symbol, "batch")}
        try:
            limits = [f"S >= {shortest}"] if shortest > 1 else ()
            streamed = model.stream(symbol, dims=others, constraints=limits)
        except (InputError, StreamError):
            continue
        runs: list[tuple[dict[str, int], dict[str, np.ndarray], Sequence[np.ndarray]]] = []
        for length in sorted({shortest, start[symbol], start[symbol] + 1, 2 * start[symbol]}):
            sizes = dict.fromkeys(start, 1) | others | {symbol: length}
            inputs = resized(example, axes, sizes)
            with contextlib.suppress(Exception):  # modules refuse sizes with errors of any type
                runs.append((sizes, inputs, run(inputs)))
        if runs:
            with jax.default_matmul_precision("highest"):
                results = streamed.run_prefixes(model.params, [inputs for _, inputs, _ in runs])
                for (sizes, inputs, there), here in zip(runs, results, strict=True):
                    found.append(Agreement(sizes, compared(model, inputs, here, there)))
    if wrong := [case for case in found if case.differs]:
        raise ModelError(f"the stream of the file differs from {framework}: {_described(wrong, len(found))}")
    return tuple(found)


def compared(
    model: Model, inputs: Arrays, here: Mapping[str, Any], there: Sequence[np.ndarray], positions: int = 0
) -> tuple[Comparison, ...]:
    """Compare the outputs of a model with the outputs of the module, in the same order.

    Sines of `positions` frames have angles of that size, and each rounding step of an angle is an error of the sine.
    """

    def atol_of(value: np.ndarray, precision: np.dtype | None) -> float:
        atol, _ = tolerances(value.dtype, None, None, precision)
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return atol
        return max(atol, STEPS * positions * float(min(jnp.finfo(each).eps for each in (value.dtype, np.float32))))

    return tuple(
        compare(info.name, here[info.name], value, atol=atol_of(value, precision), scaled=True, precision=precision)
        for info, precision, value in zip(model.outputs, narrowest(model, inputs), there, strict=True)
    )


def narrowest(model: Model, inputs: Arrays) -> list[np.dtype | None]:
    """Return the float type with the fewest digits in which each output is computed, if it is below float32."""
    narrow = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    attributes = (each for graph in graphs_below(model.proto.graph) for node in graph.node for each in node.attribute)
    types = {each.i for each in attributes if each.name == "to"}
    types |= {tensor.data_type for _, tensor in tensors_of(model.proto.graph)}
    found = precisions(model, inputs) if types & narrow else {}
    return [found.get(info.name) for info in model.outputs]


def resized(example: Arrays, axes: Axes, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Repeat or cut an example along open axes, so that the values stay in the range of the example."""
    result = {}
    for name, array in example.items():
        for axis, symbol in axes.get(name, {}).items():
            factor, base = parsed(symbol)
            array = array.take(np.arange(sizes[base] * factor) % array.shape[axis], axis)
        result[name] = array
    return result


def sizes_of(example: Arrays, axes: Axes) -> dict[str, int]:
    """Return the sizes of the open dimensions in an example, which must agree in all inputs."""
    sizes: dict[str, int] = {}
    for name, array in example.items():
        for axis, symbol in axes.get(name, {}).items():
            factor, base = parsed(symbol)
            size = int(array.shape[axis])
            if size % factor:
                raise InputError(f"axis {axis} of {name!r} has size {size}, which is not a multiple as in {symbol!r}")
            expected = sizes.setdefault(base, size // factor) * factor
            if size != expected:
                raise InputError(
                    f"axis {axis} of {name!r} has size {size}, but {symbol!r} is {expected} elsewhere in the example; "
                    f"give the axis another name: time={{{name!r}: ({axis}, 'name')}}"
                )
    return sizes


def parsed(symbol: str) -> tuple[int, str]:
    """Split ``"4*T"`` into 4 and ``"T"``."""
    factor, star, base = symbol.partition("*")
    if not star:
        return 1, symbol
    if not re.fullmatch(r"\s*0*[1-9][0-9]*\s*", factor) or not base.strip().isidentifier():
        raise InputError(f"a dimension is a name, or a multiple of a name such as '4*T', not {symbol!r}")
    return int(factor), base.strip()


def _choices(example: Arrays, axes: Axes) -> list[dict[str, int]]:
    """Return the sizes of the example, all sizes 1, the sizes of the example plus 1, and these doubled."""
    start = sizes_of(example, axes)
    changes = (lambda size: size, lambda size: 2 * size, lambda size: size + 1, lambda size: 1)
    unique = {tuple((name, change(size)) for name, size in start.items()) for change in changes}
    return [start, *(dict(sizes) for sizes in sorted(unique - {tuple(start.items())}))]


def _longer(
    start: Mapping[str, int],
    held: Held,
    runs: Callable[[Mapping[str, int]], bool],
    decides: Callable[[Mapping[str, int]], bool],
) -> Iterator[dict[str, int]]:
    """Yield longer sizes, only the longest if this size decides, and sizes at which a run changes the module.

    A cache that earlier calls have filled ends at a size that the module holds. A cache that each run fills may end
    somewhere below `_LONG`.
    """
    symbols = start.keys() - {"batch"}
    if not symbols:
        return
    longest = max(start[symbol] for symbol in symbols)

    def of(times: Fraction | int) -> dict[str, int]:
        return {name: int(size * times) if name in symbols else 1 for name, size in start.items()}

    multiples = [times for times in _LONGER if times == _LONGER[0] or times * longest <= _LONG]
    yield from map(of, multiples[-1:] if decides(of(multiples[-1])) else multiples)
    ends = {size + 1 for size in held.sizes() if multiples[-1] * longest <= size < 2 * _LONG}
    if (ends or held.changes()) and multiples[-1] * longest < _LONG:
        ends.add(_LONG)
    for sizes in (of(Fraction(length, longest)) for length in sorted(ends)):
        if runs(sizes) and held.changes():
            yield sizes


def _runs(run: Run, inputs: Arrays) -> bool:
    try:
        run(inputs)
    except Exception:  # modules refuse sizes with errors of any type
        return False
    return True


def _cause(filled: Sequence[str], framework: str) -> str:
    """Return advice about caches that a run has filled; empty if there are none."""
    if not filled:
        return ""
    return (
        f"\n{framework} changes {', '.join(map(repr, filled[:8]))} in a call, and the file may keep what an earlier "
        "call has left there: export a module that was not called before, or compute the values in each call"
    )


def _described(wrong: Sequence[Agreement], total: int) -> str:
    lines = [f"{len(wrong)} of {total} sizes"]
    for case in wrong[:4]:
        for output in case.outputs:
            if not output.ok:
                size = "" if output.max_abs is None or not output.differs else f", by up to {output.max_abs:.2g}"
                lines.append(f"  with {_listed(case.dims)}: output {output.name!r}: {output.reason}{size}")
    return "\n".join(lines)


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the sizes of the example"
