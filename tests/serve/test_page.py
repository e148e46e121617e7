"""The page in a real browser, driven over the WebDriver protocol."""

import base64
import contextlib
import io
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serve.conftest import IMAGES

from conveyor.serve.launcher import Running

pytestmark = pytest.mark.browser
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=390,844",
]  # fmt: skip
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


class Browser:
    """A session of a WebDriver server."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=60, trust_env=False)
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": ARGUMENTS, "binary": shutil.which("chromium")},
        }
        self._path = ""
        self._path = f"/session/{self.post('/session', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def post(self, path: str, **body: Any) -> Any:
        response = self._client.post(self._path + path, json=body)
        assert response.status_code == 200, response.text
        return response.json()["value"]

    def get(self, path: str) -> Any:
        return self._client.get(self._path + path).raise_for_status().json()["value"]

    def run(self, script: str, *values: Any) -> Any:
        return self.post("/execute/sync", script=script, args=list(values))

    def close(self) -> None:
        self._client.delete(self._path)
        self._client.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium or chromedriver is not installed")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with open(tmp_path_factory.mktemp("browser") / "log", "w") as log:
        driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=log, stderr=log)
    opened = None
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/status", trust_env=False).json()["value"]["ready"]:
                    break
            time.sleep(0.1)
        opened = Browser(f"http://127.0.0.1:{port}")
        yield opened
    finally:
        if opened is not None:
            opened.close()
        driver.terminate()
        driver.wait(10)


def photograph() -> str:
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[0, ..., 0]).resize((300, 200)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_a_dropped_photograph_gets_five_bars(browser: Browser, server: Running, tmp_path: Path) -> None:
    browser.post("/url", url=server.url + "/")
    browser.post("/timeouts", script=30_000)
    shown = browser.post("/execute/async", script=DROP, args=[photograph()])
    assert shown["status"].startswith("Answered in")
    assert len(shown["rows"]) == 5
    percents = [float(row["percent"].removesuffix(" %")) for row in shown["rows"]]
    assert percents == sorted(percents, reverse=True)
    right = httpx.post(f"{server.url}/classify", content=base64.b64decode(photograph()), trust_env=False).json()["best"]
    assert [row["label"] for row in shown["rows"]] == [one["label"] for one in right]
    for row, percent in zip(shown["rows"], percents, strict=True):
        assert row["width"] == pytest.approx(row["track"] * percent / 100, abs=2)
    wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "no sideways scrolling on a telephone"
    picture = base64.b64decode(browser.get("/screenshot"))
    (tmp_path / "page.png").write_bytes(picture)
    assert Image.open(io.BytesIO(picture)).size[0] > 300


def test_a_file_that_is_no_photograph_is_explained(browser: Browser, server: Running) -> None:
    browser.post("/url", url=server.url + "/")
    shown = browser.post("/execute/async", script=DROP, args=[base64.b64encode(b"not an image").decode()])
    assert "no image" in shown["status"]
    assert shown["rows"] == []


def test_dark_mode_changes_the_colours(browser: Browser, server: Running) -> None:
    browser.post("/url", url=server.url + "/")

    def background(scheme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.post("/goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"features": features})
        return str(browser.run("return getComputedStyle(document.body).backgroundColor"))

    dark, light = background("dark"), background("light")
    brightness = [np.mean([int(part) for part in colour.strip("rgb()").split(",")[:3]]) for colour in (dark, light)]
    assert brightness[0] < 64 < 192 < brightness[1]


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    response = httpx.get(server.url + "/", trust_env=False)
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert "http://" not in response.text
    assert "https://" not in response.text
