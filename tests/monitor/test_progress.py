"""The live bar: silent where it must be, and what it shows where it may."""

import os
import pty
import subprocess
import sys

import pytest

from conveyor.monitor import progress, records

SCRIPT = """
import sys
from conveyor.monitor.progress import track, say
with track(1000, "Validate") as bar:
    for _ in range(5):
        bar.advance(100)
    bar.reach(1000, note="half way")
    say("a line above")
    with track(10, "Inner", "file") as inner:
        inner.reach(10)
assert "torch" not in sys.modules
"""


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.track(10, "Work") as bar:
        bar.advance(5)
        progress.say("line")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("line\n", "")


def test_a_terminal_sees_the_bar_and_the_line() -> None:
    parent, child = pty.openpty()
    try:
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        subprocess.run([sys.executable, "-c", SCRIPT], stdout=child, stderr=child, check=True, env=env, timeout=60)
        os.close(child)
        seen = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # the other end of a pseudo-terminal is gone
                break
            if not part:
                break
            seen += part
    finally:
        os.close(parent)
    text = seen.decode()
    for word in ("Validate", "a line above", "Inner", "100 %", "half way"):
        assert word in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.6, "8s"), (200, "3min 20s"), (3900, "1h 05min"), (183600, "2d 03h"), (-1, "0s")]
)
def test_readable_time(seconds: float, text: str) -> None:
    assert records.readable_time(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(0.853, "0.85"), (24.53, "24.5"), (446.2, "446"), (12345.6, "12 346")])
def test_readable_rate(rate: float, text: str) -> None:
    assert records.readable_rate(rate) == text


def test_a_long_line_is_folded_on_a_terminal_between_figures() -> None:
    line = "validation  update 44  epoch 1.00  accuracy 96.67 %  (top-5 100.00 %)  loss 0.1383  360 images"
    script = f"from conveyor.monitor.progress import say; say({line!r})"
    parent, child = pty.openpty()
    with open(parent, "rb", buffering=0) as reader:
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        subprocess.run([sys.executable, "-c", script], stdout=child, check=True, env=env, timeout=60)
        text = reader.read(4096).decode()
        os.close(child)
    shown = text.split("\r\n")
    assert shown[:2] == [line.partition("  loss")[0], "  loss 0.1383  360 images"]
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    for columns, expected in (({}, shown[:2]), ({"COLUMNS": "200"}, [line])):  # without a terminal
        told = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=env | columns
        )
        assert told.stdout.splitlines() == expected
