"""The README's pictures of the report: the page in light colours, and two figures.

Run with: .venv/bin/python docs/screenshots.py runs/wireless docs
(The runs are those of docs/wireless.md; needs Chromium on the PATH, or named in UCFL_CHROMIUM.)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from ucfl.report import FIGURES, Look, gather, page, save, tell

WINDOW = {"width": 1240, "height": 620}
SHOWN = {"x": 0, "y": 0, "width": 1240, "height": 1610}
FIGURES_SHOWN = ("mean-over-time", "weights")


def main(source: Path, target: Path) -> None:
    """Take the pictures."""
    runs = gather([source])
    for name in FIGURES_SHOWN:
        save(FIGURES[name](runs, Look()), target / f"figure-{name}.png")
        shrink(target / f"figure-{name}.png", 700)
    browser_path = os.environ.get("UCFL_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder) / "report.html"
        file.write_text(page(tell(runs)), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=browser_path)
        tab = browser.new_page(viewport=WINDOW, color_scheme="light")
        tab.goto(file.as_uri())
        tab.screenshot(path=target / "report.png", full_page=True, clip=SHOWN)
        browser.close()
    shrink(target / "report.png", WINDOW["width"])


def shrink(file: Path, width: int) -> None:
    """At most so many pixels wide, in 256 colours: a picture of a few colours loses nothing."""
    with Image.open(file) as picture:
        size = (width, round(picture.height * width / picture.width))
        smaller = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    smaller.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
