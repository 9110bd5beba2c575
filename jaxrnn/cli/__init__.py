"""The command ``jaxrnn``. Each sub-command is a module of this package, imported when it is called."""

from __future__ import annotations

import errno
import importlib
from typing import Any

import click

from jaxrnn._files.arguments import writing_for
from jaxrnn.cli.cache import keep_programs
from jaxrnn.cli.errors import MISMATCH, MISTAKE, MismatchError, ask_for_json, print_error, print_json_error
from jaxrnn.errors import JaxrnnError

#: Sub-command to the module and attribute that hold it, and its one line in ``jaxrnn --help``.
COMMANDS = {
    "inspect": ("jaxrnn.cli.inspect:inspect", "Show what is in an ONNX file, and what cannot be run."),
    "run": ("jaxrnn.cli.run:run", "Run a model on arrays from files, or on random ones."),
    "verify": ("jaxrnn.cli.verify:verify", "Compare a model's results with another engine's."),
    "stream": ("jaxrnn.cli.stream:stream", "Run a model in steps or pulses over recordings, and time them."),
    "profile": ("jaxrnn.cli.profile:profile", "Show where a model's time goes, by node or by region."),
    "compile": (
        "jaxrnn.cli.compile:compile_model",
        "Write a model's step and scan to a file that runs without ONNX.",
    ),
    "finetune": ("jaxrnn.cli.finetune:finetune", "Train a model on examples, as a file of settings says."),
    "export": ("jaxrnn.cli.export:export", "Write an ONNX file: a stream, a step, or trained parameters."),
    "evaluate": ("jaxrnn.cli.evaluate:evaluate", "Run a model over a corpus: metrics, tables and a report."),
    "demo": ("jaxrnn.cli.demo:demo", "Denoise a synthetic signal with the packaged network."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, and whose errors are one line and exit status 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, without importing them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember whether errors are wanted as JSON, before any command reads its options."""
        if "--json" in args:
            ask_for_json(ctx)
        if "--no-cache" in args:  # after a command, too
            args = ["--no-cache", *(each for each in args if each != "--no-cache")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what the user can mend is said in one line and not as a traceback."""
        try:
            with writing_for("command"):
                return super().invoke(ctx)
        except click.ClickException as error:
            print_json_error(error.format_message())
            raise
        except JaxrnnError as error:
            print_error(str(error))
            ctx.exit(MISMATCH if isinstance(error, MismatchError) else MISTAKE)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            print_error(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
            ctx.exit(MISTAKE)


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    import jax
    import numpy as np
    import onnx

    from jaxrnn import __version__

    try:
        devices = ", ".join(f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices())
    except RuntimeError as error:
        devices = f"none: {error}"
    for name, version in {
        "jaxrnn": __version__,
        "jax": jax.__version__,
        "onnx": onnx.__version__,
        "numpy": np.__version__,
        "devices": devices,
    }.items():
        click.echo(f"{name} {version}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the versions of jaxrnn, jax, onnx and numpy, and the devices that JAX sees.",
)
@click.option(
    "--cache/--no-cache",
    default=True,
    help="Keep compiled programs for the next command, in your cache folder or in JAX_COMPILATION_CACHE_DIR.",
)
def main(cache: bool) -> None:
    """Recurrent networks from ONNX files as pure JAX functions.

    \b
    jaxrnn inspect model.onnx                          what is in it
    jaxrnn verify model.onnx                           does jaxrnn compute what ONNX Runtime computes
    jaxrnn run model.onnx --random --output out.npz    compute its outputs
    jaxrnn stream model.onnx --random                  how long a step takes, its state carried on
    jaxrnn stream net.onnx --symbol S --random         a model over whole recordings, in pulses of S
    jaxrnn profile model.onnx                          where the time of a step goes, node by node
    jaxrnn compile model.onnx -o model.jaxrnn          its step in a file that needs no ONNX
    jaxrnn finetune settings.yaml                      train it further on examples
    jaxrnn export model.onnx --checkpoint DIR -o out   the file again, with trained parameters
    jaxrnn export net.onnx --symbol S -o out.onnx      its pulses as an ONNX file of their own
    jaxrnn evaluate settings.yaml                      run it over a corpus: metrics, tables, a report
    jaxrnn demo                                        no file at hand: denoise a synthetic voice

    Exit status: 0 if all is well, 1 if a comparison failed, 2 for a bad file, input or option. With --json a command
    prints one JSON object on standard output and nothing else; an error is {"error": ...}.
    """  # noqa: D301
    if cache:
        keep_programs()
