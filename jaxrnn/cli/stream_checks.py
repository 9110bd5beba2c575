"""A model in pulses against the model on the whole recording: ``jaxrnn stream --verify``."""

from __future__ import annotations

from dataclasses import dataclass

from jaxrnn.cli.stepping import Arrays, Ready, run
from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.model import Model
from jaxrnn.recordings import part
from jaxrnn.verification.comparison import Comparison, compare


@dataclass(frozen=True)
class Check:
    """Outputs in pulses against those of the whole recording; ``problem`` says why the latter could not be computed."""

    frames: int
    outputs: tuple[Comparison, ...]
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every output agrees."""
        return all(output.ok for output in self.outputs)


def check_lengths(
    model: Model, ready: Ready, recordings: Arrays, total: int, outputs: Arrays, shortest: int
) -> list[Check]:
    """Compare a recording, then parts of it whose lengths do not fit the pulse, with `Model.apply` on the whole of it.

    Args:
        model: over whole recordings.
        ready: the same in pulses.
        recordings: inputs in the file's layout.
        total: frames to take.
        outputs: what the pulses gave for so many.
        shortest: the fewest frames that a recording has.

    Raises:
        InputError: the model does not run on the whole recording.
    """
    spec = ready.stream.spec
    whole = _check(model, ready, recordings, total, outputs)
    if whole.problem is not None:
        raise InputError(f"nothing to compare with: {whole.problem}")
    lengths = awkward_lengths(spec.pulse, spec.multiple, total, shortest)
    return [whole, *(_check(model, ready, recordings, length) for length in lengths)]


def awkward_lengths(pulse: int, multiple: int, total: int, shortest: int) -> list[int]:
    """Lengths of recordings at which streaming goes wrong first: a frame, about a pulse, and some pulses and a rest."""
    lengths = {multiple, pulse - multiple, pulse, pulse + multiple, 3 * pulse + multiple}
    return sorted(length for length in lengths if max(1, shortest) <= length < total)


def _check(model: Model, ready: Ready, recordings: Arrays, total: int, outputs: Arrays | None = None) -> Check:
    """By the rule of ``jaxrnn verify``."""
    try:
        offline = model(part(ready.stream.spec, recordings, 0, total))
    except JaxrnnError as error:
        return Check(total, (), str(error))
    streamed = run(ready, recordings, total).outputs if outputs is None else outputs
    return Check(total, tuple(compare(name, streamed[name], value) for name, value in offline.items()))
