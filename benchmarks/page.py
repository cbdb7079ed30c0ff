"""How large the page of a big comparison is, and how long a browser takes to open it.

Run with: .venv/bin/python benchmarks/page.py [CHROMIUM]
12 methods x 5 seeds x 300 rounds x 100 users, synthetic. The time is the page's own: from the
start of its navigation until its script has drawn everything and the first frame is painted.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from report.synthetic import write_runs
from ucfl.report import gather, page, tell

OPENINGS = 5
UNTIL_PAINTED = """() => new Promise((done) => requestAnimationFrame(() =>
    requestAnimationFrame(() => done([performance.now(), document.documentElement.dataset.ready]))))
"""


def main() -> None:
    named = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("UCFL_CHROMIUM")
    browser_path = named or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        write_runs(Path(folder))
        began = time.perf_counter()
        text = page(tell(gather([Path(folder)])))
        print(f"made in {time.perf_counter() - began:.1f} s, {len(text.encode()) / 1e6:.2f} MB")
        file = Path(folder) / "report.html"
        file.write_text(text, encoding="utf-8")
        browser = driver.chromium.launch(executable_path=browser_path)
        for _ in range(OPENINGS):
            tab = browser.new_page()
            tab.goto(file.as_uri(), wait_until="commit")
            tab.wait_for_function("document.documentElement.dataset.ready")
            milliseconds, _ = tab.evaluate(UNTIL_PAINTED)
            print(f"opened in {milliseconds / 1000:.2f} s")
            tab.close()
        browser.close()


if __name__ == "__main__":
    main()
