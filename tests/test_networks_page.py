"""The page of known networks: equal to the output of its script, and true where that can be computed."""

from __future__ import annotations

import re

import pytest
from tiers import of_tiers

from jaxrnn.onnx.state.names import affinity
from tools.networks_page import KNOWN, PAGE, RUN, WAVES, measure, measure_waveform, page, read_page
from tools.package_networks import BOUNDED, IMPORTED, NETWORKS, network_of
from tools.package_networks import measure as measure_package

#: The rows of networks of packages on the page.
ROWS = read_page(PAGE.read_text(encoding="utf-8"))[2]
AGAIN = "make it again: python -m tools.networks_page --write docs/networks.md"


def test_the_page_is_that_of_the_script():
    text = PAGE.read_text(encoding="utf-8")
    ran, waves, packages = read_page(text)
    assert (ran.keys(), waves.keys()) == (RUN.keys(), WAVES.keys()), AGAIN
    assert packages.keys() <= {*NETWORKS, *BOUNDED}
    assert page(ran, waves, packages) == text, AGAIN
    assert all(row.endswith("| equal |") for row in ran.values())


@pytest.mark.parametrize("name", of_tiers(list(RUN), ["dtln_1.onnx", "exports/step_wkv_script.onnx"], ["gtcrn.onnx"]))
def test_figures_are_those_of_the_file(models, name):
    """Names and bytes of the state, the delay, and the comparison with ONNX Runtime."""
    assert measure(models, name) == read_page(PAGE.read_text(encoding="utf-8"))[0][name], AGAIN


@pytest.mark.parametrize("name", of_tiers(WAVES, (), ["DTLN"]))
def test_latencies_are_those_of_the_stream(models, name):
    assert measure_waveform(models, name) == read_page(PAGE.read_text(encoding="utf-8"))[1][name], AGAIN


@pytest.mark.nightly
@pytest.mark.parametrize("name", ROWS)
def test_networks_of_packages_give_their_rows(name):
    package = network_of(name).package
    pytest.importorskip(IMPORTED.get(package, package), reason=f"{package} is not installed: pip install {package}")
    assert measure_package(name) == ROWS[name]


def test_names_that_the_page_says_pair_do():
    said = {known.name: known.pairs for known in KNOWN if "pair by convention" in known.load}
    assert len(said) >= 3
    for name, pairs in said.items():
        assert pairs, name
        assert all(affinity(before, after) == 2 for before, after in pairs), name


def test_only_what_was_run_has_figures():
    """A network that was not run has no row of figures, and every file that was run belongs to a network."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [A-Z]", line)]
    not_run = [line for line in rows if line.endswith("| not run |")]
    assert len(not_run) == sum(not known.run for known in KNOWN) > 0
    assert {name for known in KNOWN for name in known.run} == set(RUN)
