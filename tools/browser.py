"""Chromium without a network, for pages and for engines of the Web."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking "
    "--disable-component-update --disable-sync --no-first-run --disable-extensions --hide-scrollbars --mute-audio"
)


def programs() -> list[str] | None:
    """Return the paths of Chromium and its driver, or None if one is not installed."""
    found = [path for path in map(shutil.which, ("chromium", "chromedriver")) if path is not None]
    return found if len(found) == 2 else None


@contextlib.contextmanager
def chromium(profile: Path, flags: str = "", *, local: bool = False) -> Iterator[Any]:
    """Start Chromium with a folder for its profile; with ``local``, it may reach servers of this machine."""
    from selenium import webdriver

    found = programs()
    if found is None:
        raise FileNotFoundError("there is no Chromium: `apt-get install chromium chromium-driver`")
    options = webdriver.ChromeOptions()
    options.binary_location, driver = found
    for flag in (*FLAGS.split(), *flags.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_argument(f"--host-resolver-rules=MAP * ~NOTFOUND{', EXCLUDE 127.0.0.1' if local else ''}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_script_timeout(60)
    try:
        yield browser
    finally:
        browser.quit()
