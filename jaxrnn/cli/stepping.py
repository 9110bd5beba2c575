"""A model that runs in steps, from an ONNX file or a compiled one, over recordings: what ``jaxrnn stream`` runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.errors import InputError

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.runtime.compiled import Compiled
    from jaxrnn.specs import ArraySpec

Arrays = Mapping[str, Any]

#: What is said of the times of all steps, besides the longest.
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Steps:
    """A model's steps, whatever file they come from.

    Attributes:
        label: the file.
        inputs: declarations of the inputs of one step.
        state: names of the state.
        batch_symbol: name of the open batch dimension, if there is one.
        limits: numbers that random integers must be below, by input.
        step: ``(params, state, inputs) -> (outputs, state)``.
        init_state: the state before the first step, of a batch.
        pack: the packed parameters for given sizes of open dimensions.
    """

    label: str
    inputs: tuple[ArraySpec, ...]
    state: tuple[str, ...]
    batch_symbol: str | None
    limits: Mapping[str, int]
    step: Callable[[Any, Arrays, Arrays], tuple[dict[str, Any], dict[str, Any]]]
    init_state: Callable[[int], dict[str, Any]]
    pack: Callable[[Mapping[str, int]], Any]

    @classmethod
    def of_model(cls, model: Model) -> Steps:
        """The steps of a loaded model.

        Raises:
            StateError: it forgets its state after every call.
        """
        from jaxrnn.verification.sampling import index_limits

        return cls(
            label=model.label,
            inputs=model.step_inputs,
            state=tuple(variable.name for variable in model.state),
            batch_symbol=model.batch_symbol,
            limits=index_limits(model),
            step=model.step,
            init_state=model.init_state,
            pack=lambda sizes: model.pack(model.params, dims=sizes),
        )

    @classmethod
    def of_compiled(cls, compiled: Compiled, label: str) -> Steps:
        """The steps of a compiled file."""
        import jax.numpy as jnp

        from jaxrnn.specs import ArraySpec

        return cls(
            label=label,
            inputs=tuple(
                ArraySpec(entry["name"], jnp.dtype(entry["dtype"]), tuple(entry["shape"])) for entry in compiled.inputs
            ),
            state=tuple(entry["name"] for entry in compiled.state),
            batch_symbol=compiled.batch_symbol,
            limits={},
            step=compiled.step,
            init_state=compiled.init_state,
            pack=lambda sizes: compiled.params,
        )

    def batch(self, sizes: Mapping[str, int]) -> int:
        """The batch that the inputs have; 1 where the file fixed it."""
        return sizes.get(self.batch_symbol, 1) if self.batch_symbol is not None else 1


@dataclass(frozen=True)
class Ready:
    """Steps compiled for frames of one shape: ``call(params, state, frame)``, and the seconds that this took."""

    call: Callable[[Any, Arrays, Arrays], tuple[dict[str, Any], dict[str, Any]]]
    params: Any
    state: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Run:
    """What a run over recordings gave.

    Attributes:
        seconds: ``float64[steps]``, of each step: NumPy arrays in, NumPy arrays out.
        outputs: stacked along the first axis, by name; empty if they were not kept.
        state: the state behind the last step.
    """

    seconds: np.ndarray
    outputs: dict[str, np.ndarray]
    state: dict[str, np.ndarray]


def frame_of(recordings: Arrays, index: int) -> dict[str, Any]:
    """The inputs of one step."""
    return {name: array[index] for name, array in recordings.items()}


def count_frames(steps: Steps, recordings: Mapping[str, np.ndarray]) -> int | None:
    """The number of frames that all recordings have; None where there is none.

    Raises:
        InputError: a name is not that of an input, a recording has no axis for frames, or their lengths differ.
    """
    declared = {info.name: info for info in steps.inputs}
    for name, array in recordings.items():
        if name in steps.state:
            raise InputError(f"{name!r} is state, which is carried from step to step: it takes no recording")
        if name not in declared:
            raise InputError(f"there is no input {name!r}; the inputs of a step are: {_listed(steps.inputs)}")
        shape = declared[name].shape
        if shape is not None and array.ndim != len(shape) + 1:
            wanted = ", ".join(["frames", *map(str, shape)])
            raise InputError(
                f"input {name!r} must be a recording with its frames along a first axis, [{wanted}], "
                f"not {array.dtype}{list(array.shape)}"
            )
    counts = {name: len(array) for name, array in recordings.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"the recordings have different numbers of frames: {counts}")
    count = next(iter(counts.values()), None)
    if count == 0:
        raise InputError("the recordings have no frames")
    return count


def missing_inputs(steps: Steps, recordings: Arrays) -> str:
    """The declarations of inputs without a recording, in words; empty if there are none."""
    return _listed([info for info in steps.inputs if info.name not in recordings])


def _listed(infos: Iterable[ArraySpec]) -> str:
    return ", ".join(map(str, infos))


def make_ready(steps: Steps, frame: Arrays, sizes: Mapping[str, int]) -> Ready:
    """Pack the parameters, compile the step for such a frame, and call it once."""
    import jax

    from jaxrnn.guards import exact_types

    began = time.perf_counter()
    params, state = steps.pack(sizes), steps.init_state(steps.batch(sizes))
    # Otherwise JAX makes float64 and int64 narrower before the model sees them and can refuse what does not fit.
    with exact_types():
        call = jax.jit(steps.step).lower(params, state, frame).compile()
        # What the first call sets up is no part of a step; its results are dropped.
        jax.block_until_ready(call(params, state, frame))
    return Ready(call, params, state, time.perf_counter() - began)


def run_steps(ready: Ready, recordings: Arrays, indices: Iterable[int], *, keep: bool) -> Run:
    """Step over frames with the state carried on, each step timed.

    Args:
        ready: the compiled step.
        recordings: inputs with frames along the first axis.
        indices: the frames to take; wrapped in a progress bar, say.
        keep: keep the outputs.
    """
    from jaxrnn.guards import exact_types

    seconds, kept, state = [], [], ready.state
    with exact_types():
        for index in indices:
            frame = frame_of(recordings, index)
            began = time.perf_counter()
            results, state = ready.call(ready.params, state, frame)
            outputs = {name: np.asarray(value) for name, value in results.items()}
            seconds.append(time.perf_counter() - began)
            if keep:
                kept.append(outputs)
    stacked = {name: np.stack([outputs[name] for outputs in kept]) for name in (kept[0] if kept else {})}
    return Run(np.array(seconds), stacked, {name: np.asarray(value) for name, value in state.items()})


def times_of(seconds: np.ndarray) -> dict[str, float] | None:
    """Percentiles of the times of steps and the longest, in microseconds; None where there was no step."""
    if not len(seconds):
        return None
    figures = {f"p{level}": float(np.percentile(1e6 * seconds, level)) for level in PERCENTILES}
    return {**figures, "max": float(1e6 * seconds.max())}


def has_no_number(array: np.ndarray) -> bool:
    """Whether an element is NaN or infinite."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(array.dtype, jnp.inexact)) and not np.isfinite(array.astype(np.complex128)).all()
