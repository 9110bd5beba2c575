"""The page: its parts in one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrnn._files.templates import environment
from jaxrnn.evaluation.report.comparing import differences, paired
from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.figures import errors, files, slices, summary, tiles
from jaxrnn.evaluation.report.pictures import RANGE
from jaxrnn.evaluation.report.plots import PlotData, library
from jaxrnn.evaluation.report.sections import compared, curves, distributions, listening
from jaxrnn.evaluation.report.sounds import Player
from jaxrnn.evaluation.report.wording import duration, flat, is_number, number, size, text, whole

TEMPLATES = Path(__file__).parent / "templates"


def render(content: Content, title: str | None, times: Mapping[str, Any]) -> str:
    """The page as text."""
    page = environment(TEMPLATES)
    page.filters |= {each.__name__: each for each in (duration, flat, number, size, text, whole)}
    page.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    player = Player(content.rate)
    heard = listening(content, player)
    sounding = {each.file for group in heard.values() for each in group if any(sound.uri for sound in each.sounds)}
    names, sounds = [text(row["id"]) for row in content.rows], [file in sounding for file in range(len(content.rows))]
    data = PlotData(file=names, sound=sounds)
    # The browser runs these scripts and no others, whatever text is in the page.
    scripts = [library(), _file("report.js")]
    return page.get_template("report.html").render(
        title=text(title or f"Evaluation of {content.results.name}"),
        is_named=title is not None,
        content=content,
        comparison=content.comparison,
        times=times,
        speed=times.get("times_real_time") if is_number(times.get("times_real_time")) else None,
        seconds=content.results.document["recordings"]["seconds"],
        tiles=tiles(content),
        summary=summary(content),
        paired=paired(content),
        compared=compared(content, data),
        differences=differences(content),
        slices=slices(content),
        curves=curves(content),
        distributions=distributions(content, data),
        heard=heard,
        player=player,
        errors=errors(content),
        files=files(content),
        data=data.columns,
        style=_file("report.css"),
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        range=RANGE,
    )


def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
