"""What `conveyor launch` makes of its words before it starts anything."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.version import __version__

Command = Callable[..., tuple[int, str, str]]

DOCS = Path(__file__).parents[2] / "docs"


def test_a_command_of_conveyor_is_no_program(conveyor: Command) -> None:
    code, _, err = conveyor("launch", "--instances", "2", "--", "train", "--epochs", "3")
    assert code == 2
    assert "write `-- conveyor train ...`" in err


def test_the_program_is_found_where_no_path_leads_to_it() -> None:
    """As in a container that calls its environment's interpreter by its full name."""
    command = [sys.executable, "-P", "-m", "conveyor", "launch", "--instances", "2", "--", "conveyor", "--version"]
    done = subprocess.run(
        command, env={**os.environ, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert f"conveyor {__version__}" in done.stdout


@pytest.mark.parametrize("words", [["--instances", "0"], ["--instances", "-1"], ["--replicas", "0"]])
def test_no_instances_are_no_job(conveyor: Command, words: list[str]) -> None:
    code, _, err = conveyor("launch", *words, "--print", "--", "conveyor", "train")
    assert code == 2
    assert "at least one" in err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--threads", "-2"], "--threads is -2; the smallest value is 1"),
        (["--hosts", "a,b", "--port", "70000"], "--port is 70000; the largest value is 65535"),
        (["--max-restarts", "-1"], "--max-restarts is -1; the smallest value is 0"),
        (["--emit", "k8s", "--cpus", "0"], "--cpus is 0; the smallest value is 1"),
        (["--emit", "slurm", "--nodes", "-1"], "should be a whole number above 0"),
        (["--env", "=x"], "is no name of a variable"),
    ],
)
def test_numbers_out_of_range_are_refused(conveyor: Command, words: list[str], part: str) -> None:
    code, _, err = conveyor("launch", *words, "--print", "--", "true")
    assert (code, part in err) == (2, True), err


def test_the_documented_commands_name_a_program() -> None:
    """They need several machines, so no test runs them."""
    text = "".join(path.read_text() for path in DOCS.glob("*.md"))
    programs = re.findall(r"conveyor launch [^`\n]*?-- (\S+)", text)
    assert len(programs) >= 2
    assert set(programs) == {"conveyor"}
