"""Options of the commands that read a file of settings."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from jaxrnn._files.arguments import writing_for


def settings_options(model: str, example: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The argument ``SETTINGS.yaml``, and the options ``--set``, ``--print-config`` and ``--keys``.

    Args:
        model: the module and name of the model of what may stand in the file.
        example: a key and its value, for the help.
    """

    def print_keys(ctx: click.Context, parameter: click.Parameter, chosen: bool) -> None:
        if not chosen or ctx.resilient_parsing:
            return
        from jaxrnn.settings.reference import reference

        formatter = ctx.make_formatter()
        rows = reference(_imported(model))
        formatter.write_dl([(key, f"{text} [{default}]" if default else text) for key, default, text in rows])
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()

    argument = click.argument("path", metavar="SETTINGS.yaml", type=click.Path(path_type=Path))
    override = click.option(
        "--set",
        "overrides",
        metavar="KEY.SUB=VALUE",
        multiple=True,
        help="Put a value, written as in YAML, in place of the file's; may be given several times. Example: "
        f"--set {example}.",
    )
    printed = click.option(
        "--print-config",
        is_flag=True,
        help="Print all settings as they are understood, with defaults, overrides and variables, and do nothing else.",
    )
    keys = click.option(
        "--keys",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=print_keys,
        help="Explain every key of the file.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(path: Path, overrides: tuple[str, ...], print_config: bool, **others: Any) -> Any:
            if not print_config:
                with writing_for("settings"):
                    return command(path=path, overrides=overrides, **others)
            from jaxrnn.settings.files import SettingsFile

            return click.echo(SettingsFile(_imported(model), path, overrides).to_yaml(), nl=False)

        return argument(override(printed(keys(run))))

    return decorate


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
