"""The page of a file in a real browser without a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from browsers import opened, requests_of, screen, webdriver
from inspected_models import HOSTILE, chain_model, loop_model, step_model

from jaxrnn.inspection import write_page

pytestmark = pytest.mark.thorough


@pytest.fixture
def page(browser, tmp_path):
    """A function that writes and opens the page of a model."""

    def open_page(model: Any) -> Any:
        write_page(model, tmp_path / "page.html")
        opened(browser, tmp_path / "page.html")
        return tmp_path / "page.html"

    return open_page


def shown(browser: Any) -> list[str]:
    """Return the first line of each card."""
    return browser.execute_script(
        "return [...document.querySelectorAll('.card')].map(card => card.querySelector('text').textContent)"
    )


def element(browser: Any, text: str, kind: str = "card") -> Any:
    """Return a card, or the bar of an open box, by its text."""
    (found,) = browser.execute_script(
        "const [text, kind] = arguments;"
        "return [...document.querySelectorAll(`.${kind}`)].filter(one => one.textContent.startsWith(text))",
        text,
        kind,
    )
    return found.find_element("css selector", "text")


def click(browser: Any, target: Any) -> None:
    webdriver.ActionChains(browser).move_to_element(target).click().perform()


def test_browser_unfolds_a_loop_in_place(browser, page):
    path = page(loop_model())
    assert browser.get_log("browser") == []
    assert requests_of(browser, path) == {path.as_uri()}
    # A small file opens unfolded: the loop is a box with its body.
    assert {"h", "h_next", "Tanh", "Conv", "MatMul"} <= set(shown(browser))
    click(browser, element(browser, "Loop  walk", "bar"))
    assert "Loop" in shown(browser)
    assert not {"h", "h_next", "Tanh"} & set(shown(browser))
    assert browser.find_elements("css selector", ".return.carry") == []
    click(browser, element(browser, "Loop"))
    assert {"h", "h_next", "Tanh"} <= set(shown(browser))
    inside, box = browser.execute_script(
        "const card = [...document.querySelectorAll('.card')].find(one => one.textContent.startsWith('Tanh'));"
        "const rect = (one) => one.getBoundingClientRect().toJSON();"
        "return [rect(card), rect(document.querySelector('.box .body'))]"
    )
    assert box["left"] < inside["left"] < inside["right"] < box["right"]
    assert box["top"] < inside["top"] < inside["bottom"] < box["bottom"]
    # The panel shows the state of the node and the facts of the stream.
    detail = browser.find_element("id", "detail").text
    assert "walk" in detail
    assert "starts from a constant at every call" in detail
    assert len(browser.find_elements("css selector", ".return.carry")) == 1
    late = browser.find_elements("css selector", ".card .time-late")
    assert len(late) > 2
    assert browser.get_log("browser") == []


def test_browser_tells_why_it_is_state(browser, page):
    page(step_model())
    (arrow,) = browser.find_elements("css selector", ".return.state .wide")
    middle = browser.execute_script(
        "const path = arguments[0], at = path.getPointAtLength(path.getTotalLength() / 2), to = path.getScreenCTM();"
        "return [at.x * to.a + to.e, at.y * to.d + to.f]",
        arrow,
    )
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": middle[0], "y": middle[1]})
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed()
    assert tip.text.startswith("state: h_next → h\nfloat32[1, 4]\n")
    assert len(tip.text.splitlines()[2]) > 20
    lit = browser.find_elements("css selector", ".card.lit")
    assert {card.find_element("tag name", "text").text for card in lit} == {"h", "h_next"}
    # The list of states selects the node.
    browser.find_element("css selector", "[data-state-row] button").click()
    assert browser.find_element("css selector", ".card.selected text").text == "h"


def test_browser_finds_what_is_folded(browser, page):
    page(chain_model(1500))
    assert len(shown(browser)) < 60
    assert float(browser.execute_script("return document.body.dataset.drawn")) < 3000
    webdriver.ActionChains(browser).send_keys("/").perform()
    box = browser.find_element("id", "search")
    assert browser.switch_to.active_element == box
    box.send_keys("add n1234")
    assert browser.find_element("id", "hits").text == "1 hit"
    box.send_keys(webdriver.Keys.ENTER)
    assert browser.find_element("css selector", ".selected").is_displayed()
    assert browser.find_element("css selector", "#detail .name").text == "n1234"
    centre = browser.execute_script(
        "const one = document.querySelector('.card.selected').getBoundingClientRect(), all = "
        "document.getElementById('canvas').getBoundingClientRect();"
        "return [one.x + one.width / 2 - all.x - all.width / 2, one.y + one.height / 2 - all.y - all.height / 2]"
    )
    assert np.abs(centre).max() < 30
    box.clear()
    box.send_keys("[1,2]")
    assert int(browser.find_element("id", "hits").text.split()[0].replace(",", "")) >= 1500
    assert browser.get_log("browser") == []


def test_browser_shows_hostile_names_as_text(browser, page):
    path = page(step_model(f"h{HOSTILE}", f"h{HOSTILE}_next", HOSTILE))
    assert browser.title == "model 'step'"
    click(browser, element(browser, "Tanh"))
    browser.find_element("css selector", "[data-state-row] button").click()
    assert browser.find_elements("css selector", "aside script, svg script, #tip script") == []
    assert browser.get_log("browser") == []
    # The browser refuses a foreign script in the page.
    foreign = "<main><script>document.title = 'foreign'</script>"
    path.write_text(path.read_text(encoding="utf-8").replace("<main>", foreign, 1), encoding="utf-8")
    opened(browser, path)
    assert browser.title == "model 'step'"
    assert "Content Security Policy" in str(browser.get_log("browser"))


@pytest.mark.parametrize("width", [390, 1280])
def test_browser_on_phone_and_desk(browser, page, width):
    with screen(browser, width) as seen:
        page(loop_model())
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
        # The whole drawing is in the window at first.
        drawing, window = browser.execute_script(
            "return ['#scene', '#canvas'].map(one => document.querySelector(one).getBoundingClientRect().toJSON())"
        )
        assert window["left"] <= drawing["left"] < drawing["right"] <= window["right"]
        assert window["top"] <= drawing["top"] < drawing["bottom"] <= window["bottom"]
        for scheme in ("light", "dark"):
            picture = seen(scheme)
            assert np.median(picture) > 0.9 if scheme == "light" else np.median(picture) < 0.2
