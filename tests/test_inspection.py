"""The page of a file: facts about the graph, sections, and the written HTML."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from inspected_models import HOSTILE, chain_model, loop_model, step_model
from onnx import TensorProto, helper
from small_models import graph_of, layers_model, look_ahead_model, make_model

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.inspection.page import facts_of, render, sections_of
from jaxrnn.model.inspection import inspect_model


def looked_at(model, **options):
    return inspect_model(model, graph=True, **{"streams": True, **options})


def node_named(graph, name):
    (found,) = [number for number, node in enumerate(graph.nodes) if node.name == name]
    return found


def value_named(graph, name):
    (found,) = [number for number, value in enumerate(graph.values) if value.name == name]
    return found


def test_bodies_are_connected_to_their_node():
    graph = looked_at(loop_model()).graph
    outer, body = graph.graphs
    walk = graph.nodes[body.node]
    assert (walk.name, body.name, outer.node) == ("walk", "body", None)
    assert [graph.nodes[body.node].inputs[place][0] for place in (0, 1)] == ["max_trip_count", "cond"]
    names = {place: graph.values[number].name for place, number in enumerate(body.inputs)}
    assert names == {0: "t", 1: "go", 2: "h", 3: "r"}
    # The trip count has no input in the body; all other inputs and outputs of the node have.
    assert body.entries == ((1, 1), (2, 2), (3, 3))
    assert [(graph.values[body.outputs[i]].name, graph.values[walk.outputs[o]].name) for i, o in body.exits] == [
        ("h_next", "h_last"),
        ("r_same", "r_last"),
        ("collected", "hs"),
    ]
    # Only values that a step computes are carried to the next step.
    assert body.carries == ((1, 2),)
    assert {node.name for node in graph.nodes if node.graph == 1} == {
        *("read", "from_input", "from_state", "sum", "update", "collect", "go_on", "hand_on")
    }
    # Parameters are marked in bodies that read them from outside.
    (read,) = [graph.values[value] for _, value in graph.nodes[node_named(graph, "from_input")].inputs[1:]]
    assert (read.kind, read.parameter, read.shape) == ("parameter", "in", (3, 4))


def test_state_has_a_place():
    """External state is at its input and output, internal state at its node, and both have reasons."""
    stepped = looked_at(step_model())
    (place,) = stepped.graph.state
    assert (stepped.graph.values[place.input].name, stepped.graph.values[place.output].name) == ("h", "h_next")
    assert stepped.state[0].reason
    whole = looked_at(loop_model())
    (place,) = whole.graph.state
    assert (place.input, place.output) == (None, None)
    assert [whole.graph.nodes[node].name for node in place.nodes] == ["walk"]
    assert {graph.name for graph in stepped.graph.graphs} == {"", "then_branch", "else_branch"}


@pytest.mark.thorough
def test_values_have_their_delays():
    inspected = looked_at(loop_model())
    graph, stream = inspected.graph, inspected.graph_stream
    known = {graph.values[number].name: value for number, value in stream.values.items()}
    assert stream.symbol == "T"
    assert {name: (value.delay, value.axis) for name, value in known.items()} == {
        **dict.fromkeys(["features", "positive"], (1, 2)),
        **dict.fromkeys(["rows", "hs", "y"], (1, 0)),
    }
    assert known["rows"].shape == ("T", 1, 3)
    assert (known["features"].first, known["features"].last) == (-1, 1)
    assert known["y"].first is None
    kept = {graph.nodes[node].name: [entry.kind for entry in entries] for node, entries in stream.kept.items()}
    assert kept == {"enc/look_ahead": ["history"], "walk": ["carry"]}
    # The batch keeps its name, although one stream is traced.
    inspected = looked_at(layers_model(), streams="T")
    known = {inspected.graph.values[number].name: value for number, value in inspected.graph_stream.values.items()}
    assert (known["scaled"].shape, known["Y_h"].axis) == (("T", "batch", 3), None)
    # Values at the end have no frames, and values that depend on them are marked too.
    model = look_ahead_model()
    model.graph.node.append(helper.make_node("Identity", ["y"], ["again"], name="copy"))
    model.graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, [1, 2, "T"]))
    inspected = looked_at(model)
    total, again = (inspected.graph_stream.values[value_named(inspected.graph, name)] for name in ("total", "again"))
    assert (total.axis, total.rate, again.delay) == (None, None, 1)


def test_what_cannot_be_streamed_is_shown_at_its_node():
    model = loop_model()
    del model.graph.node[5:]
    reverse = helper.make_node("GRU", ["rows", "W", "R2"], ["hs"], name="back", hidden_size=2, direction="reverse")
    model.graph.node.append(reverse)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("hs", TensorProto.FLOAT, ["T", 1, 1, 2]))
    for name, shape in {"W": (1, 6, 3), "R2": (1, 6, 2)}.items():
        array = np.ones(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    inspected = looked_at(model)
    (stream,) = inspected.streams
    assert "backwards" in stream.problem
    found = inspected.graph_stream
    assert inspected.graph.nodes[found.refused].name == "back"
    # Values before the refused node have facts.
    assert found.values[value_named(inspected.graph, "rows")].delay == 1
    assert value_named(inspected.graph, "hs") not in found.values


def test_nodes_that_cannot_be_run_are_shown():
    nodes = [helper.make_node("Bogus", ["x"], ["a"], name="odd"), helper.make_node("Relu", ["a"], ["y"], name="r")]
    inspected = looked_at(make_model(graph_of(nodes, {"x": [1, "T"]}, {"y": [1, "T"]})))
    assert [(node.operator, node.problem is None) for node in inspected.graph.nodes] == [
        ("Bogus", False),
        ("Relu", True),
    ]
    assert "Cannot be run: 1 nodes" in render(inspected)


def test_statistics_of_parameters():
    model = step_model()
    array = np.array([[0, 0, np.nan, 1], [0, -2, np.inf, 3], [1, 1, 1, 1]], np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "W"))
    found = looked_at(model).graph.statistics["W"]
    finite = array[np.isfinite(array)]
    assert (found.smallest, found.largest, found.not_finite, found.zeros) == (-2, 3, 2, 0.25)
    assert (found.mean, found.deviation) == (pytest.approx(finite.mean()), pytest.approx(finite.std()))


@pytest.mark.parametrize("count", [10, 150, 1000])
def test_sections_are_few_and_in_order(count):
    graph = looked_at(chain_model(count), streams=False).graph
    found = sections_of(graph)
    if count == 10:
        assert not found.sections
    chains = []
    for section in found.of_node:
        chain = []
        while section is not None:
            chain.append(section)
            section = found.sections[section].parent
        chains.append(tuple(reversed(chain)))
    # The nodes of a section are consecutive, so no section needs a later one; no level has many parts.
    for depth in range(max(map(len, chains)) + 1):
        heads = [chain[:depth] for chain in chains]
        runs = [head for place, head in enumerate(heads) if not place or heads[place - 1] != head]
        assert len(runs) == len(set(runs))
        for head in set(runs):
            parts = [chain[: depth + 1] for chain in chains if chain[:depth] == head]
            assert len(set(parts)) - (head in parts) + parts.count(head) <= 36


def test_sections_are_modules():
    nodes = [
        helper.make_node("Relu", [f"v{place}"], [f"v{place + 1}"], name=f"/net/{module}/layer{place % 2}/Relu")
        for place, module in enumerate(["enc"] * 30 + ["mid"] * 2 + ["dec"] * 30)
    ]
    found = sections_of(looked_at(make_model(graph_of(nodes, {"v0": [1]}, {"v62": [1]}))).graph)
    assert [section.name for section in found.sections] == ["enc", "2 Relu", "dec"][0::2]
    assert [found.of_node.count(place) for place in (0, None, 1)] == [30, 2, 30]


class Page(HTMLParser):
    """Elements of a page and the content of its scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def test_names_are_text_in_the_page():
    model = step_model(f"h{HOSTILE}", f"h{HOSTILE}_out", HOSTILE)
    model.producer_name = HOSTILE
    inspected = looked_at(model)
    page = Page(render(inspected))
    plain = Page(render(looked_at(step_model())))
    assert page.tags == plain.tags
    facts, script = page.scripts
    assert script == plain.scripts[1]
    assert json.loads(facts, parse_constant=pytest.fail) == facts_of(inspected)


def test_the_command_writes_a_page(tmp_path, monkeypatch):
    onnx.save(loop_model(), tmp_path / "m.onnx")

    def call(*arguments):
        return CliRunner().invoke(main, ["inspect", str(tmp_path / "m.onnx"), *map(str, arguments)])

    page = tmp_path / "page.html"
    ran = call("--html", page, "--symbol", "T", "--json")
    told = json.loads(ran.stdout)
    assert (told["page"], told["streams"][0]["symbol"]) == (str(page), "T")
    assert "graph" not in told
    assert "<title>m.onnx</title>" in page.read_text()
    assert f"wrote {page}" in call("--html", page).stdout
    ran = call("--symbol", "S")
    assert (ran.exit_code, ran.stderr.count("m.onnx"), "dimensions left open: T" in ran.stderr) == (2, 1, True)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert "pip install 'jaxrnn[graph]'" in call("--html", page).stderr
    with pytest.raises(jaxrnn.MissingPackageError):
        jaxrnn.inspection.write_page(tmp_path / "m.onnx", page)
