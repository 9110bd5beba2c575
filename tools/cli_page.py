"""The reference of the command line as Markdown, generated from the help of the commands."""

from __future__ import annotations

import html
import inspect
import re

import click

from jaxrnn.cli import COMMANDS, main

HEAD = """# Command line

`pip install -e '.[cli]'` brings the command `jaxrnn`. This page is what `jaxrnn --help` and `jaxrnn COMMAND --help`
say."""


def page() -> str:
    """Return the page: the command, and a section for each subcommand."""
    context = click.Context(main, info_name="jaxrnn")
    parts = [HEAD, *_section(main, context)]
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        parts += [f"## jaxrnn {name}", *_section(command, inner)]
    return "\n\n".join(parts) + "\n"


def _section(command: click.Command, context: click.Context) -> list[str]:
    """Return usage, help and options of a command."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    options = [f"`{names}`\n:   {_escaped(text)}" for names, text in filter(None, records) if text]
    return [
        f"```text\n{usage}\n```",
        *map(_paragraph, re.split(r"\n{2,}", inspect.cleandoc(command.help or ""))),
        *options,
    ]


def _paragraph(text: str) -> str:
    """Format a paragraph of click's help; a paragraph with a leading backspace stays unchanged."""
    if not text.startswith("\b"):
        return _escaped(" ".join(text.split()))
    first, *lines = text.removeprefix("\b").strip("\n").splitlines()
    if not first.endswith(":"):
        return "\n".join(["```text", first, *lines, "```"])
    return "\n".join([_escaped(first), "", "```text", *inspect.cleandoc("\n" + "\n".join(lines)).splitlines(), "```"])


def _escaped(text: str) -> str:
    return re.sub(r"([*_\[\]`])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
