"""A real browser without a network for tests of pages."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tools.browser import chromium, programs

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")


def started(profile: Path, flags: str = "", *, local: bool = False) -> Iterator[Any]:
    """Start Chromium with a folder for its profile; with ``local``, it may reach servers of this machine."""
    if programs() is None:
        pytest.skip("there is no chromium: apt-get install chromium chromium-driver")
    with chromium(profile, flags, local=local) as browser:
        yield browser


def opened(browser: Any, path: Path) -> None:
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.as_uri())
    end = time.monotonic() + 60
    while not browser.execute_script("return document.body.dataset.drawn !== undefined"):
        assert time.monotonic() < end, browser.get_log("browser")
        time.sleep(0.05)


@contextlib.contextmanager
def screen(browser: Any, width: int) -> Iterator[Callable[[str], np.ndarray]]:
    """Emulate a screen, a phone below a width of 600; yield a function from "light" or "dark" to pixels from 0 to 1."""
    emulate = browser.execute_cdp_cmd

    def seen(scheme: str) -> np.ndarray:
        emulate("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        return np.asarray(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("L"), float) / 255

    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    emulate("Emulation.setDeviceMetricsOverride", size)
    try:
        yield seen
    finally:
        emulate("Emulation.clearDeviceMetricsOverride", {})
        emulate("Emulation.setEmulatedMedia", {"features": []})


def requests_of(browser: Any, path: Path) -> set[str]:
    """Return the addresses that an opened page requested, without data addresses, and check that no request failed."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    # The empty first page of the browser may request something too.
    requests = {
        event["params"]["requestId"]: event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent" and event["params"]["documentURL"] == path.as_uri()
    }
    failed = [event["params"]["requestId"] for event in events if event["method"] == "Network.loadingFailed"]
    assert not requests.keys() & failed
    return {url for url in requests.values() if not url.startswith("data:")}
