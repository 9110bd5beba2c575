"""Options that turn a model over whole recordings into one in pulses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.cli.options import grouped

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.streaming import Streamed


@dataclass(frozen=True)
class PulseOptions:
    """What is said of pulses; ``symbol`` is None for a model in steps."""

    symbol: str | None
    pulse: int | None
    multiple: int
    shortest: int
    longest: int | None

    def stream(self, model: Model, dims: Mapping[str, int]) -> Streamed:
        """The model in these pulses, by default the smallest that fit, with sizes of its other open dimensions."""
        assert self.symbol is not None
        least = -(-self.shortest // self.multiple)
        constraints = [f"S >= {least}"] if self.shortest > self.multiple else []
        constraints += [] if self.longest is None else [f"S <= {self.longest // self.multiple}"]
        return model.stream(self.symbol, self.pulse, dims=dims, multiple=self.multiple, constraints=constraints)


def _pulses(
    symbol: str | None, pulse: int | None, multiple: int | None, shortest: int | None, longest: int | None
) -> PulseOptions:
    options = {"--pulse": pulse, "--multiple": multiple, "--shortest": shortest, "--longest": longest}
    check_pulse_options(symbol, options)
    if longest is not None and longest < max(shortest or 1, multiple or 1):
        raise click.UsageError(f"no recording has at most --longest {longest} frames and fits the other options")
    return PulseOptions(symbol, pulse, multiple or 1, shortest or 1, longest)


def check_pulse_options(symbol: str | None, options: Mapping[str, Any]) -> None:
    """Refuse options about pulses, by name, where no dimension was said to be time."""
    option = next((option for option, value in options.items() if value), None)
    if symbol is None and option is not None:
        raise click.UsageError(f"{option} is about pulses: it needs --symbol NAME, the dimension that is time")


_FRAMES: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "FRAMES"}
#: The options of a command that turns a model over whole recordings into one in pulses, as the argument ``pulses``.
pulse_options = grouped(
    "pulses",
    _pulses,
    click.option(
        "--symbol",
        metavar="NAME",
        help="The open dimension of the inputs that is time: work in pulses of it. 'jaxrnn inspect' shows which can.",
    ),
    click.option(
        "--pulse",
        **_FRAMES,
        help="New input frames a step, with --symbol. [default: the fewest that fit the model's strides]",
    ),
    click.option(
        "--multiple",
        **_FRAMES,
        help="With --symbol: recordings are a multiple of so many frames long, for a model that takes no other length.",
    ),
    click.option(
        "--shortest",
        **_FRAMES,
        help="With --symbol: no recording has fewer frames. Give it if an error asks for such a constraint.",
    ),
    click.option(
        "--longest",
        **_FRAMES,
        help="With --symbol: no recording has more frames, such as the rows of a table of positions.",
    ),
)
