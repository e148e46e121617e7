"""The page in a real browser."""

import base64
import contextlib
import functools
import http.server
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.browser import Browser, started
from tests.serve.conftest import IMAGES

from conveyor.serve.launcher import RunningServer

pytestmark = pytest.mark.browser
DROP = """
const done = arguments[arguments.length - 1];
const bytes = Uint8Array.from(atob(arguments[0]), letter => letter.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], "photograph.png", { type: "image/png" }));
window.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
const end = Date.now() + 15000;
(function look() {
  const text = document.getElementById("status").textContent;
  if (text.startsWith("Answered") || document.getElementById("status").className === "bad" || Date.now() > end)
    setTimeout(() => done({ status: text, rows: [...document.querySelectorAll("#best li")].map(row => ({
      label: row.querySelector(".label").textContent, percent: row.querySelector(".percent").textContent,
      width: row.querySelector(".bar").getBoundingClientRect().width,
      track: row.querySelector(".track").getBoundingClientRect().width })) }), 700);
  else setTimeout(look, 20);
})();
"""


TELEPHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


@contextlib.contextmanager
def elsewhere(folder: Path) -> Iterator[str]:
    """Another web server on this machine."""
    (folder / "index.html").write_text("<!doctype html><title>elsewhere</title>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        yield f"http://localhost:{other.server_port}/"
        other.shutdown()


def counted(server: RunningServer) -> list[str]:
    """The accounts of the requests for the model."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    return [line for line in text.splitlines() if line.startswith("conveyor_requests_total")]


def photograph() -> str:
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[0, ..., 0]).resize((300, 200)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_a_dropped_photograph_gets_five_bars(browser: Browser, server: RunningServer, tmp_path: Path) -> None:
    browser.open(server.url + "/", **TELEPHONE)
    shown = browser.script_that_waits(DROP, photograph())
    assert shown["status"].startswith("Answered in")
    assert len(shown["rows"]) == 5
    percents = [float(row["percent"].removesuffix(" %")) for row in shown["rows"]]
    assert percents == sorted(percents, reverse=True)
    right = httpx.post(f"{server.url}/classify", content=base64.b64decode(photograph()), trust_env=False).json()["best"]
    assert [row["label"] for row in shown["rows"]] == [one["label"] for one in right]
    for row, percent in zip(shown["rows"], percents, strict=True):
        assert row["width"] == pytest.approx(row["track"] * percent / 100, abs=2)
    wide = browser.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "no sideways scrolling on a telephone"
    browser.screenshot(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.width == TELEPHONE["width"]


def test_a_file_that_is_no_photograph_is_explained(browser: Browser, server: RunningServer) -> None:
    browser.open(server.url + "/", **TELEPHONE)
    shown = browser.script_that_waits(DROP, base64.b64encode(b"not an image").decode())
    assert "no image" in shown["status"]
    assert shown["rows"] == []


def test_dark_mode_changes_the_colours(browser: Browser, server: RunningServer) -> None:
    def background(dark: bool) -> str:
        browser.open(server.url + "/", dark=dark, **TELEPHONE)
        return str(browser.script("return getComputedStyle(document.body).backgroundColor"))

    dark, light = background(True), background(False)
    brightness = [np.mean([int(part) for part in colour.strip("rgb()").split(",")[:3]]) for colour in (dark, light)]
    assert brightness[0] < 64 < 192 < brightness[1]


def test_the_page_needs_nothing_from_elsewhere(server: RunningServer) -> None:
    for path in ("/", "/page.js", "/page.css"):
        response = httpx.get(server.url + path, trust_env=False)
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "http://" not in response.text
        assert "https://" not in response.text


def test_nothing_is_inline_and_no_page_may_frame_this_one(server: RunningServer) -> None:
    response = httpx.get(server.url + "/", trust_env=False)
    policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
    assert policy["frame-ancestors"] == policy["default-src"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert not re.search(r"<style|<script(?! src=)|\son\w+=|\sstyle=|javascript:", response.text)


def test_a_page_from_elsewhere_cannot_ask(browser: Browser, server: RunningServer, tmp_path: Path) -> None:
    """A page of another origin (another port), in a real browser: its request leaves, and is refused."""
    asked = """
    const done = arguments[arguments.length - 1];
    fetch(arguments[0], { method: "POST", mode: "no-cors", headers: { "Content-Type": "text/plain" }, body: "x" })
      .then(() => done("sent"), () => done("not sent"));
    """
    address = f"{server.url}/v1/models/digits:predict"
    with elsewhere(tmp_path) as url:
        browser.open(url)
        before = counted(server)
        assert browser.script_that_waits(asked, address) == "sent"
        assert counted(server) == before, "it was not even counted as a request for the model"


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_of_addresses(browser: Browser, server: RunningServer, width: int) -> None:
    browser.errors()  # those of the tests before
    browser.open(f"{server.url}/docs", width=width)
    shown = browser.script_that_waits(
        "const done = arguments[0], look = () => document.querySelector('section') ? "
        "done([...document.querySelectorAll('h2')].map(one => one.textContent)) : setTimeout(look, 20); look();"
    )
    assert "POST/classify" in shown
    assert "POST/v1/models/digits:predict" in shown
    assert f"curl --data-binary @photo.jpg {server.url}/classify" in browser.script("return document.body.textContent")
    assert browser.script("return document.documentElement.scrollWidth") <= width
    assert browser.errors() == []
