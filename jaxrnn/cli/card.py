"""``jaxrnn card``: write the model card of an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from jaxrnn.cli.commands import FrameCount, Given, NumberRange, Option, Taken, command
from jaxrnn.cli.inspect import facts_of, inspected
from jaxrnn.cli.options import OUTPUT, Dims, ModelFile, new_file, split_pairs
from jaxrnn.cli.output import show


@command
def card(
    *,
    file: ModelFile,
    output: Annotated[Path, new_file("CARD.md", *OUTPUT)] | None = None,
    about: Annotated[
        Given,
        Taken(
            "jaxrnn.inspection.card:write_card",
            symbol=Option(metavar="NAME"),
            rate=Option(metavar="HZ", type=NumberRange(0, min_open=True)),
            license=Option(metavar="ID"),
            task=Option(metavar="TAG"),
        ),
    ],
    metrics: Annotated[dict[str, str], Option(metavar="DATASET=FOLDER", parse=split_pairs)] | None = None,
    past: FrameCount | None = None,
    dims: Dims | None = None,
) -> None:
    """Write the model card of an ONNX file in Markdown, from the facts of 'jaxrnn inspect'.

    The card says what the network is, its size, operations, state and delays, and its metrics from folders of 'jaxrnn
    evaluate'. It begins with the metadata of Hugging Face's model cards, so that it can be published as README.md. What
    is not known is said: delays are in milliseconds only with --rate, or with the rate in the metadata of an exported
    file. Without --output, the card is printed.

    Examples:
      jaxrnn card dtln_1.onnx -o README.md --license mit
      jaxrnn card net.onnx --symbol S --rate 100 --task audio-to-audio --metrics "my test set=runs/net"
      jaxrnn card net.onnx --json | jq '.delay_ms'

    Args:
        output: File to write, such as README.md.
        metrics: The folder of results of 'jaxrnn evaluate' on a data set; may be given several times.
        past: Try streams with this --past of 'jaxrnn stream'.
        dims: Size of an open dimension.
    """
    from jaxrnn.inspection.card import card_of, write_text

    evaluations = {}
    for name, folder in (metrics or {}).items():
        from jaxrnn.evaluation.results import read_results

        evaluations[name] = read_results(folder).document
    inspection = inspected(file, dims, about.pop("symbol", None), past)
    made = card_of(inspection, evaluations, **about)
    if output is not None:
        write_text(output, made["text"])
    result = {**facts_of(inspection), **made, "output": None if output is None else str(output)}
    show(result, lambda _: [made["text"].rstrip() if output is None else f"wrote {output}"])
