"""The command ``jaxrnn``. Each subcommand is a module of this package, imported on demand."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pkgutil
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from jaxrnn._jax.processors import features
from jaxrnn.cli.errors import (
    INTERRUPTED,
    MISMATCH,
    MISTAKE,
    MismatchError,
    ask_for_json,
    naming_output,
    print_error,
    print_json_error,
    printable,
)
from jaxrnn.errors import JaxrnnError

#: Each subcommand: its module and attribute, and its line in ``jaxrnn --help``.
COMMANDS = {
    "inspect": ("jaxrnn.cli.inspect:inspect", "Show the content of an ONNX file, and the nodes that cannot run."),
    "card": ("jaxrnn.cli.inspect:card", "Write the model card of an ONNX file."),
    "run": ("jaxrnn.cli.run:run", "Run a model on arrays from files, or on random arrays."),
    "verify": ("jaxrnn.cli.verify:verify", "Compare a model's outputs with those of another engine."),
    "stream": ("jaxrnn.cli.stream:stream", "Run a model over recordings in steps or pulses, and time them."),
    "profile": ("jaxrnn.cli.profile:profile", "Show the time of a model by node or by region."),
    "compile": ("jaxrnn.cli.compile:compile_", "Write a model's step and scan to a file that runs without ONNX."),
    "check": ("jaxrnn.cli.check:check", "Read recordings, and list every one that cannot be used."),
    "finetune": ("jaxrnn.cli.finetune:finetune", "Train a model on examples, with a file of settings."),
    "export": ("jaxrnn.cli.export:export", "Write an ONNX file: a stream, a step, or trained parameters."),
    "evaluate": ("jaxrnn.cli.evaluate:evaluate", "Run a model over a corpus: metrics, tables and a report."),
    "demo": ("jaxrnn.cli.demo:demo", "Denoise a synthetic signal with the packaged network."),
}


class LazyGroup(click.Group):
    """A click group that imports subcommands on demand, and prints an error as a line without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands without an import."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        return pkgutil.resolve_name(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return a subcommand, or raise a usage error with the nearest name."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from jaxrnn._files.messages import near

            ctx.fail(f"there is no command {args[0]!r}{near(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note ``--json`` before a subcommand parses options, and accept ``--no-cache`` after the subcommand."""
        if "--json" in args:
            ask_for_json(ctx)
        if "--no-cache" in args:  # also after a subcommand
            args = ["--no-cache", *(each for each in args if each != "--no-cache")]
        with _printed_errors(ctx), naming_output():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, and print an error that the user can fix without a traceback."""
        from jaxrnn.cli.output import plain_warnings

        with _printed_errors(ctx), plain_warnings():
            return super().invoke(ctx)


@contextlib.contextmanager
def _printed_errors(ctx: click.Context) -> Iterator[None]:
    """Print errors inside of the context as a line, and exit."""
    try:
        yield
    except click.ClickException as error:
        error.message = printable(error.message)  # pyright: ignore[reportAttributeAccessIssue]  # not changed again
        print_json_error(error.format_message())
        raise
    except KeyboardInterrupt:
        print_error("interrupted")
        ctx.exit(INTERRUPTED)
    except JaxrnnError as error:
        print_error(str(error))
        ctx.exit(MISMATCH if isinstance(error, MismatchError) else MISTAKE)
    except MemoryError as error:
        print_error(f"there is not enough memory: {error}".removesuffix(": "))
        ctx.exit(MISTAKE)
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
    help="Show the versions of jaxrnn, jax, onnx and numpy, and the devices of JAX.",
)
@click.option(
    "--cache/--no-cache",
    default=True,
    help="Keep compiled programs for later commands, in your cache folder or in JAX_COMPILATION_CACHE_DIR.",
)
def main(cache: bool) -> None:
    """Recurrent networks from ONNX files as pure JAX functions.

    \b
    jaxrnn inspect model.onnx                          show inputs, state, operators
    jaxrnn card model.onnx -o README.md                write its model card
    jaxrnn verify model.onnx                           compare with ONNX Runtime
    jaxrnn run model.onnx --random --output out.npz    compute the outputs
    jaxrnn stream model.onnx --random                  run a model in steps, and time them
    jaxrnn stream net.onnx --symbol S --random         run an offline model in pulses of S
    jaxrnn profile model.onnx                          show the time of each node
    jaxrnn compile model.onnx -o model.jaxrnn          write a step that needs no ONNX
    jaxrnn finetune settings.yaml                      train a model on examples
    jaxrnn export model.onnx --checkpoint DIR -o out   write the file with trained parameters
    jaxrnn export net.onnx --symbol S -o out.onnx      write a stream as an ONNX file
    jaxrnn evaluate settings.yaml                      run a model over a corpus
    jaxrnn demo                                        denoise a synthetic voice; needs no file

    Exit status: 0 for success, 1 for a failed comparison, 2 for a bad file, input or option, 130 for an interrupt. With
    --json, a command prints one JSON object on standard output and nothing else; an error is {"error": ...}.
    """  # noqa: D301
    if cache:
        keep_programs()


#: Largest size of the folder in bytes; JAX removes the least recently used programs first.
_SIZE = 1 << 30


def keep_programs() -> None:
    """Turn on JAX's compilation cache in the user's cache folder. Call this before JAX is imported.

    ``JAX_COMPILATION_CACHE_DIR`` and the related variables take precedence. Without a writable folder, the cache stays
    off.
    """
    if "jax" in sys.modules:
        return  # part of a larger program, which chooses the cache
    import platformdirs

    # Machines that share the folder may differ in instructions.
    described = " ".join([platform.machine(), *features()])
    processor = hashlib.sha256(described.encode()).hexdigest()[:16]
    folder = Path(platformdirs.user_cache_path("jaxrnn")) / "programs" / processor
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return
    _remove_unfinished(os.environ.get("JAX_COMPILATION_CACHE_DIR", folder))
    for name, value in {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(_SIZE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }.items():
        os.environ.setdefault(name, value)


def _remove_unfinished(folder: str | os.PathLike[str]) -> None:
    """Remove programs without a time of use, left by a killed process: such a program stops JAX from caching."""
    with contextlib.suppress(OSError):
        names = set(os.listdir(folder))
        for name in names:
            key = name.removesuffix("-cache")
            if key != name and f"{key}-atime" not in names:
                os.unlink(os.path.join(folder, name))
