"""docs/operators.md says what the registry says, and what trying an operator shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrnn.onnx.operators import operator_table
from tools.operators_page import entries, page, read_page
from tools.trials import Evidence

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"
AGAIN = "make it again: python -m tools.operators_page --write docs/operators.md"


def test_the_page_is_not_stale():
    written, registered = read_page(PAGE.read_text(encoding="utf-8")), entries()
    assert set(written) == set(registered) == set(operator_table()), AGAIN
    stale = {key: written[key][0] for key, entry in registered.items() if written[key][0] != entry}
    assert not stale, AGAIN
    assert all(facts[0] in ("yes", "no", "-") for _, facts in written.values())


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("LSTM", ("yes", "yes")),
        ("Conv", ("yes", "yes")),
        ("Floor", ("no", "yes")),
        ("And", ("-", "yes")),
        ("NonZero", ("-", "-")),
    ],
)
def test_facts_that_are_known(name, facts):
    assert read_page(PAGE.read_text(encoding="utf-8"))["", name][1] == facts


def test_a_page_is_read_as_it_is_written():
    """Operators that were not tried, that have no derivative, and primitives without a rule."""
    seen = {("", "Relu"): Evidence(True, ()), ("", "TopK"): Evidence(False, ("sort", "top_k")), ("", "NonZero"): None}
    read = read_page(page(seen))
    assert read["", "Relu"][1] == ("yes", "yes")
    assert read["", "TopK"][1] == ("no", "not `sort`, `top_k`")
    assert read["", "NonZero"][1] == ("-", "-")
    assert {key: entry for key, (entry, _) in read.items()} == entries()
