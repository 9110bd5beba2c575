"""A model in pulses against the model on the whole recording: ``jaxrnn stream --verify``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxrnn.cli.pulses import Arrays, Pulses, cut, run_pulses
from jaxrnn.errors import JaxrnnError

if TYPE_CHECKING:
    from jaxrnn.verification.comparison import Comparison


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


def awkward_lengths(pulse: int, multiple: int, total: int, shortest: int) -> list[int]:
    """Lengths of recordings at which streaming goes wrong first: a frame, about a pulse, and some pulses and a rest."""
    lengths = {multiple, pulse - multiple, pulse, pulse + multiple, 3 * pulse + multiple}
    return sorted(length for length in lengths if max(1, shortest) <= length < total)


def check_pulses(pulses: Pulses, recordings: Arrays, total: int, outputs: Arrays | None = None) -> Check:
    """Compare the outputs in pulses with `Model.apply` on the whole recording, by the rule of ``jaxrnn verify``.

    Args:
        pulses: the compiled model.
        recordings: inputs in the file's layout.
        total: frames to take.
        outputs: what the pulses gave; by default they are run now.
    """
    from jaxrnn.verification.comparison import compare

    try:
        offline = pulses.model(cut(pulses.axes, recordings, 0, total))
    except JaxrnnError as error:
        return Check(total, (), str(error))
    streamed = run_pulses(pulses, recordings, total).outputs if outputs is None else outputs
    return Check(total, tuple(compare(name, streamed[name], offline[name]) for name in streamed))
