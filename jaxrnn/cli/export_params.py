"""Options that say where the parameters of an export are: in a training's checkpoints, or in an archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.cli.files import load_archive
from jaxrnn.cli.options import grouped

if TYPE_CHECKING:
    from jaxrnn.model import Model


@dataclass(frozen=True)
class ParamsOptions:
    """Where parameters are; false where nothing is said.

    Attributes:
        checkpoint: a folder of checkpoints.
        step: which of them; None for the best or the last.
        best: whether it is the best.
        archive: a .npz file.
    """

    checkpoint: Path | None
    step: int | None
    best: bool
    archive: Path | None

    def __bool__(self) -> bool:
        return self.checkpoint is not None or self.archive is not None

    def of(self, model: Model) -> dict[str, Any]:
        """The parameters of a model, its own where nothing is said."""
        if self.checkpoint is not None:
            from jaxrnn.training import load_checkpoint

            return load_checkpoint(self.checkpoint, model=model, step=self.step, best=self.best)
        return model.params if self.archive is None else _from_archive(model, self.archive)


def _from_archive(model: Model, path: Path) -> dict[str, Any]:
    from jaxrnn.steps.specs import ArraySpec
    from jaxrnn.verification.sampling import restore_types

    infos = [ArraySpec(name, array.dtype, array.shape) for name, array in model.program.parameters.items()]
    return restore_types(infos, load_archive(path))


def _params(checkpoint: Path | None, step: int | None, last: bool, best: bool, archive: Path | None) -> ParamsOptions:
    options = [
        option for option, value in {"--step": step is not None, "--last": last, "--best": best}.items() if value
    ]
    if checkpoint is not None and archive is not None:
        raise click.UsageError("give either --checkpoint DIR or --params FILE.npz, where the parameters are")
    if options and checkpoint is None:
        raise click.UsageError(f"{options[0]} chooses a checkpoint: it needs --checkpoint DIR")
    if len(options) > 1:
        raise click.UsageError(f"{' and '.join(options)} exclude each other")
    return ParamsOptions(checkpoint, step, not last, archive)


#: The options about parameters, as the argument ``params``.
params_options = grouped(
    "params",
    _params,
    click.option(
        "--checkpoint",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Take the parameters from this folder of checkpoints, as a training with 'checkpoints' leaves it.",
    ),
    click.option("--step", metavar="N", type=click.IntRange(min=0), help="With --checkpoint: those of this step."),
    click.option("--last", is_flag=True, help="With --checkpoint: those of the last step that was saved."),
    click.option("--best", is_flag=True, help="With --checkpoint: those of the best validation. [default]"),
    click.option(
        "--params",
        "archive",
        metavar="FILE.npz",
        type=click.Path(path_type=Path),
        help="Take the parameters by name from a .npz file. 'jaxrnn inspect --params' shows the names.",
    ),
)
