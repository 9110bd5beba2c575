"""``jaxrnn finetune``: a model trained on examples, as a configuration file says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.options import INTERRUPTED, config_options, json_option
from jaxrnn.cli.output import busy, console, number, print_json, print_table

if TYPE_CHECKING:
    from jaxrnn.training import Fitted
    from jaxrnn.training.recipe import Recipe


@click.command()
@config_options("loss.power=0.5")
@click.option(
    "--resume/--fresh",
    default=None,
    help="Go on from checkpoints that are there, or refuse to where there are some. [default: as the file says, else "
    "resume]",
)
@json_option
@click.pass_context
def finetune(ctx: click.Context, config: Path, overrides: tuple[str, ...], resume: bool | None, as_json: bool) -> None:
    """Fine-tune a model as CONFIG.yaml says, and write it as an ONNX file again.

    The file names the model, the examples, the loss and what else jaxrnn.training.fit takes:

    \b
      model: denoiser.onnx
      data: {npz: training/*.npz}          # or {function: module:make, arguments: {...}}
      validation: {npz: validation/*.npz}
      loss: {name: mse, output: y, target: clean}
      metrics: {sdr: {name: si_sdr, output: y, target: clean}}
      time_axis: 1
      freeze: ["*running_mean", "*running_var"]
      epochs: 10
      optimizer: {name: adamw, weight_decay: 0.01}
      learning_rate: {schedule: cosine_decay_schedule, init_value: 0.001, decay_steps: 1000}
      checkpoints: run/checkpoints
      export: run/denoiser.onnx
      plot: run/loss.png

    Paths are relative to the file and may hold ${VARIABLE} or ${VARIABLE:-default}. A key that is not known, or has a
    value of another kind, is an error that says where it stands and what was expected. A run that was cut short goes on
    from its last checkpoint when it is started again.

    \b
    Examples:
      jaxrnn finetune denoiser.yaml
      jaxrnn finetune denoiser.yaml --set steps=100 --set learning_rate=1e-4 --json
      jaxrnn finetune denoiser.yaml --fresh --set checkpoints=another/folder
    """  # noqa: D301
    from jaxrnn.training.recipe import read_recipe

    with busy(f"reading {config.name}"):
        recipe = read_recipe(config, overrides)
    before = _measured(recipe, recipe.params, "measuring the model as it is")
    began = time.monotonic()
    try:
        fitted = recipe.run(resume=resume, progress=False if as_json else None)
    except KeyboardInterrupt:
        if recipe.config.checkpoints is None:
            raise
        click.echo(f"interrupted; the same command goes on from {recipe.config.checkpoints}", err=True)
        ctx.exit(INTERRUPTED)
    seconds = time.monotonic() - began
    after = _measured(recipe, fitted.params, "measuring the trained model")
    result = _result(config, recipe, fitted, before, after, seconds)
    print_json(result) if as_json else _print(result)


def _measured(recipe: Recipe, params: Mapping[str, Any], what: str) -> dict[str, float] | None:
    if recipe.validation is None:
        return None
    with busy(what):
        return recipe.evaluate(params)


def _result(
    config: Path,
    recipe: Recipe,
    fitted: Fitted,
    before: dict[str, float] | None,
    after: dict[str, float] | None,
    seconds: float,
) -> dict[str, Any]:
    """The figures by name, ready for JSON."""
    losses = [record["loss"] for record in fitted.history]
    tenth = max(1, len(losses) // 10)
    settings = recipe.config
    paths = {"export": settings.export, "plot": settings.plot, "checkpoints": settings.checkpoints}
    return {
        "config": str(config),
        "model": str(settings.model.file),
        "steps": fitted.step,
        "best_step": fitted.best_step,
        "stopped": fitted.stopped,
        "seconds": seconds,
        "loss_first_tenth": float(np.mean(losses[:tenth])) if losses else None,
        "loss_last_tenth": float(np.mean(losses[-tenth:])) if losses else None,
        "validation_before": before,
        "validation_after": after,
        **{key: None if path is None else str(path) for key, path in paths.items()},
    }


def _print(result: dict[str, Any]) -> None:
    out = console()
    why = " (early: no better validation loss)" if result["stopped"] == "patience" else ""
    out.print(f"{result['model']}: {result['steps']} updates in {result['seconds']:.1f} s{why}")
    first, last = number(result["loss_first_tenth"]), number(result["loss_last_tenth"])
    out.print(f"loss: {first} in the first tenth of them, {last} in the last")
    before, after = result["validation_before"], result["validation_after"]
    if before is not None and after is not None:
        rows = [
            (key, number(before[key]), number(value), f"{value - before[key]:+.4g}") for key, value in after.items()
        ]
        title = f"On the validation examples (parameters of update {result['best_step']})"
        print_table(out, title, ("", "before", "after", "change"), rows, right=("before", "after", "change"))
        out.print()
    for key, what in (("export", "model"), ("plot", "loss curve"), ("checkpoints", "checkpoints")):
        if result[key] is not None:
            out.print(f"{what}: {result[key]}")
