"""A headless Chromium driven over plain WebDriver HTTP on the loopback."""

import base64
import contextlib
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage",
]  # fmt: skip


class Browser:
    def __init__(self, address: str) -> None:
        self._address = address
        options = {"args": FLAGS, "binary": shutil.which("chromium") or shutil.which("google-chrome")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def open(self, page: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file or an address in a window of this size; a narrow one is a telephone's."""
        self._cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._cdp(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self._call(f"{self._session}/url", {"url": page if isinstance(page, str) else page.resolve().as_uri()})

    def script(self, body: str, *arguments: Any) -> Any:
        """Run `body` as a function in the page and return what it returns."""
        return self._call(f"{self._session}/execute/sync", {"script": body, "args": list(arguments)})

    def script_that_waits(self, body: str, *arguments: Any) -> Any:
        """Run `body`, whose last argument is the function to call with the result; 30 seconds at most."""
        self._call(f"{self._session}/timeouts", {"script": 30_000})
        return self._call(f"{self._session}/execute/async", {"script": body, "args": list(arguments)})

    def errors(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        entries = self._call(f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def screenshot(self, target: Path) -> None:
        """The whole page, not only the window."""
        taken = self._cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        self._call(self._session, None, method="DELETE")

    def _cdp(self, command: str, **parameters: Any) -> Any:
        return self._call(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _call(self, path: str, body: Any, method: str = "POST") -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser for the time of the block; the test is skipped where there is none."""
    driver = shutil.which("chromedriver")
    if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("needs chromium and chromedriver")
    with _driving(driver) as port:
        browser = Browser(f"http://127.0.0.1:{port}")
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def _driving(driver: str) -> Iterator[str]:
    """The port of a running driver. It picks a free IPv4 port and ends where that port is taken on IPv6: then once more."""
    for _ in range(5):
        with subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            told = (re.search(r"successfully on port (\d+)", line) for line in process.stdout)
            if (port := next((match[1] for match in told if match), None)) is not None:
                try:
                    yield port
                finally:
                    process.terminate()
                return
    raise AssertionError("chromedriver ended five times before it had a port")
