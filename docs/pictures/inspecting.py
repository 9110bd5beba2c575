"""Take the picture of a file's page, with a browser: a loop that unfolded, what it carries, and delays.

    python docs/pictures/inspecting.py --out docs/pictures/inspecting.png

The file is one of the tests' own.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

import click
import onnx
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

import jaxrnn.inspection

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from inspected_models import loop_model

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1240,860")


def picture() -> Image.Image:
    """Open the page with the loop selected."""
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(loop_model(), Path(folder) / "recurrence.onnx")
        jaxrnn.inspection.write_page(Path(folder) / "recurrence.onnx", Path(folder) / "page.html")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            browser.get((Path(folder) / "page.html").as_uri())
            browser.find_element(By.CSS_SELECTOR, "[data-state-row] button").click()
            browser.find_element(By.CSS_SELECTOR, "[data-action=fit]").click()
            browser.execute_script("document.getAnimations().forEach(each => each.finish())")
            return Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
        finally:
            browser.quit()


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(out: Path) -> None:
    """Write the picture with few colours, so that it is small."""
    picture().quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(out, optimize=True)


if __name__ == "__main__":
    main()
