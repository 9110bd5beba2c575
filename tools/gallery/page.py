"""The gallery as Markdown for the site."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import onnx

from jaxrnn.onnx.operators import operator_table
from tools.gallery import engines, streamed
from tools.gallery.entry import Figures, Item, Picture, Printed, Sound
from tools.gallery.making import Made


def markdown(entries: Iterable[Made], *, pictures: str, sounds: str) -> str:
    """Return all entries in sequence, and last the entries that were not made.

    Args:
        entries: the results.
        pictures: the folder of the gallery relative to the source of the page, for links that MkDocs converts.
        sounds: the same folder relative to the built page, for HTML, which MkDocs leaves unchanged.
    """
    ordered = sorted(entries, key=lambda made: bool(made.missing))
    return "\n\n".join("\n\n".join(_entry(made, pictures, sounds)) for made in ordered)


def home(made: Made, *, sounds: str) -> str:
    """Return the players of an entry, and three numbers: made with the players, measured by benchmarks, and counted.

    Args:
        made: the result of `tools.gallery.streamed`.
        sounds: as for `markdown`.
    """
    items = [item for item in made.items if isinstance(item, Sound)]
    difference = next((item.rows[streamed.DIFFERENCE] for item in made.items if isinstance(item, Figures)), "not made")
    means = [result.means()["speech"]["ONNX Runtime"] for result in engines.results_of("step")]
    defined = {("", schema.name) for schema in onnx.defs.get_all_schemas() if not schema.domain}
    numbers = {
        difference: "is the largest difference of the streamed from the offline sound: [Streaming](streaming.md)",
        f"{min(means):.2f} to {max(means):.2f}": (
            f"of ONNX Runtime's time for a live step, the mean of speech networks on {len(means)} machines; other "
            "engines and uses: [Performance](performance.md)"
        ),
        f"{len(defined & operator_table().keys())} of {len(defined)}": "of ONNX's operators run: [all](operators.md)",
    }
    cells = (f"<div markdown>\n**{value}**\n\n{words}\n</div>" for value, words in numbers.items())
    heard = (
        "A noisy voice, denoised by the network in the package: offline, in one call over the whole recording, and "
        "streamed, 8 ms at a time."
    )
    if made.missing:
        heard = f"*No sounds here: they need {made.missing}.*"
    rows = [heard, *_items(items, "", f"{sounds}/{made.name}"), '<div class="home-numbers" markdown>', *cells, "</div>"]
    return "\n\n".join(rows)


def _entry(made: Made, pictures: str, sounds: str) -> Iterable[str]:
    yield f"## {made.title}"
    yield made.see
    if made.missing:
        yield f"*Not made here: it needs {made.missing}.*"
    yield from _items(made.items, f"{pictures}/{made.name}", f"{sounds}/{made.name}")
    script = f"tools/gallery/{made.name}.py"
    yield f"Made by [{script}](../{script}), of which this is the part that does it:"
    yield f"```python\n{made.code.rstrip()}\n```"
    if made.source:
        yield f"<small>{made.source}</small>"


def _items(items: Sequence[Item], pictures: str, sounds: str) -> Iterable[str]:
    players: list[str] = []
    for item in items:
        if isinstance(item, Sound):
            players.append(_player(item, sounds))
            continue
        yield from _row(players)
        players = []
        if isinstance(item, Picture):
            looks = (f"![{item.alt}]({pictures}/{item.name}.{look}.svg#only-{look})" for look in ("light", "dark"))
            size = f"width={item.width} height={item.height}"
            yield "\n".join(f"{look}{{ .gallery loading=lazy {size} }}" for look in looks)
        elif isinstance(item, Figures):
            rows = (
                f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
                for name, value in item.rows.items()
            )
            yield "\n".join(['<dl class="gallery-figures">', *rows, "</dl>"])
        elif isinstance(item, Printed):
            yield f"```text\n{item.text}\n```"
    yield from _row(players)


def _row(players: Sequence[str]) -> Iterable[str]:
    """Yield a row of players, which break into several rows on a narrow page."""
    if players:
        yield "\n".join(['<div class="gallery-players">', *players, "</div>"])


def _player(sound: Sound, folder: str) -> str:
    source = html.escape(f"{folder}/{sound.name}.flac")
    label = html.escape(sound.label)
    return (
        f"<figure><figcaption>{label}</figcaption>"
        # Without entries in its menu, a player has none, and room to seek in.
        f'<audio controls controlslist="nodownload noplaybackrate" preload="metadata" src="{source}" '
        f'aria-label="{label}"></audio></figure>'
    )
