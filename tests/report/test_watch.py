"""The page of a run that goes on: refreshed in the browser, nothing else within reach, no other name."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.browser import started
from tests.report.make_run import make_run

from conveyor.monitor.observers import CsvWriter


@contextlib.contextmanager
def watching(*folders: Path) -> Iterator[str]:
    """The address of `conveyor report --watch` on these runs."""
    command = [sys.executable, "-m", "conveyor", "report", "--watch", *map(str, folders), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert found is not None, said
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")


def test_the_page_is_safe_and_nothing_else_is_within_reach(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with watching(folder) as address, httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
        page = client.get("/")
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        assert "resnet20" in page.text
        for path in ("/options.yml", "/report.html", "/..%2f..%2fetc/passwd", "/mistakes/0000.png", "/metrics.csv"):
            assert client.get(path).status_code == 404
        assert client.post("/").status_code == 405
        rebound = client.get("/", headers={"Host": "elsewhere.example"})
        assert rebound.status_code == 421
        assert "resnet20" not in rebound.text
        before = client.get("/state").json()
        assert client.get("/state").json() == before
        (folder / "result.json").write_text(json.dumps({"reason": "patience"}))
        assert client.get("/state").json() != before
        assert "patience" in client.get("/").text


@pytest.mark.browser
def test_the_page_refreshes_by_itself(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with started() as browser, watching(folder) as address:
        browser.open(address)
        assert browser.script("return document.querySelectorAll('svg.chart').length") == 7
        CsvWriter(folder).validation({"name": "11", "update": 4290, "epoch": 11.0, "accuracy": 99.125, "loss": 0.1})
        text = browser.script_that_waits(
            "const done = arguments[0], look = () => document.body.textContent.includes('99.12') || "
            "document.body.textContent.includes('99.13') ? done(document.title) : setTimeout(look, 100); look();"
        )
        assert text == "run"
        assert browser.script("return document.querySelectorAll('th[tabindex]').length") > 0
        assert browser.errors() == []


def test_a_folder_without_a_run_is_refused_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conveyor", "report", "--watch", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "holds no run" in done.stderr
