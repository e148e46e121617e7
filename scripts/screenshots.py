"""The pictures in docs/images, taken in Chromium from real runs: `python scripts/screenshots.py RUN OTHER-RUN`.

The first run is reported and served, both are compared. Needs chromium and chromedriver; `make install` for the rest.
"""

import argparse
import base64
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser import Browser, started  # noqa: E402

from conveyor.report.page import write_report  # noqa: E402
from conveyor.serve.launcher import running_server  # noqa: E402
from conveyor.serve.settings import NO_GRPC, ServeSettings  # noqa: E402

LARGEST = 150_000
"""Bytes of one picture."""
FORMS = ((1280, False), (400, True))
"""(width, dark) of the pictures of each page."""
PARTS = {
    "report": ("header", "#curves"),
    "classes": ("#classes", "#calibration"),
    "images": ("#mistakes", "#augmented"),
}
"""Pictures of a report: from the first element to the last."""
ASK = """
const done = arguments[arguments.length - 1], data = new DataTransfer();
data.items.add(new File([Uint8Array.from(atob(arguments[0]), letter => letter.charCodeAt(0))], "photograph.png"));
window.dispatchEvent(new DragEvent("drop", { dataTransfer: data }));
const look = () => document.querySelector("#best li") ? setTimeout(done, 800) : setTimeout(look, 50);
look();
"""


def take(
    browser: Browser,
    page: str | Path,
    name: str,
    folder: Path,
    script: str = "",
    *values: str,
    part: tuple[str, str] = ("main", "main"),
) -> None:
    """One picture of a part of the page for each form; `script` is run first and calls its last argument when it is done."""
    edges = "const [first, last] = arguments; return [document.querySelector(first).getBoundingClientRect().top, document.querySelector(last).getBoundingClientRect().bottom];"
    for width, dark in FORMS:
        browser.open(page, width=width, height=700, dark=dark)
        if script:
            browser.script_that_waits(script, *values)
        top, bottom = browser.script(edges, *part)
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            browser.screenshot(Path(file.name))
            with Image.open(file.name) as image:
                target = folder / f"{name}-{width}-{'dark' if dark else 'light'}.webp"
                shown = (0, max(0, int(top) - 12), width, min(image.height, int(bottom) + 12))
                target.write_bytes(_small(image.convert("RGB").crop(shown)))
        print(f"{target} ({target.stat().st_size / 1000:.0f} kB)")


def _small(image: Image.Image) -> bytes:
    """As WebP, with as much quality as the limit allows."""
    for quality in (85, 75, 60, 45, 30):
        buffer = io.BytesIO()
        image.save(buffer, "WEBP", quality=quality, method=6)
        if buffer.tell() < LARGEST:
            return buffer.getvalue()
    raise SystemExit(f"a picture of {image.width} x {image.height} does not fit into {LARGEST} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=2, metavar="RUN", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    first, folder = arguments.runs[0], arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    ready = "const done = arguments[0], look = () => document.querySelector('section') ? done() : setTimeout(look, 50); look();"
    photograph = base64.b64encode((first / "right" / "0000.png").read_bytes()).decode()
    settings = ServeSettings(path=str(first), name=first.name, port=0, grpc_port=NO_GRPC, workers=1)
    with tempfile.TemporaryDirectory() as scratch, started() as browser, running_server(settings) as server:
        pages = Path(scratch)
        report = write_report([first], pages / "report.html")
        for name, part in PARTS.items():
            take(browser, report, name, folder, part=part)
        take(browser, write_report(arguments.runs, pages / "comparison.html"), "comparison", folder)
        take(browser, f"{server.url}/", "server", folder, ASK, photograph)
        take(browser, f"{server.url}/docs", "addresses", folder, ready)


if __name__ == "__main__":
    main()
