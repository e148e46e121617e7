"""The command line: overview, version, completion, unknown commands."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor import commands
from conveyor.cli import parser_of
from conveyor.version import __version__

Run = Callable[..., tuple[int, str, str]]


def test_overview_lists_the_commands_that_are_there(conveyor: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    code, out, _ = conveyor("--help")
    assert code == 0
    for title, names in commands.NAMES.items():
        assert f"{title}:" in out
        for name in names:
            assert f"  {name} " in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert conveyor()[1] == out


def test_version(conveyor: Run) -> None:
    assert conveyor("--version") == (0, f"conveyor {__version__}\n", "")


def test_unknown_command_suggests_the_nearest(conveyor: Run) -> None:
    code, _, error = conveyor("trian")
    assert code == 2
    assert "'train'" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("name", [name for names in commands.NAMES.values() for name in names])
def test_every_command_explains_itself(name: str) -> None:
    module = commands.load(name)
    assert module.HELP.endswith(".")
    assert len(module.HELP) < 100
    assert f"conveyor {name}" in parser_of(name).format_help()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts(shell: str, conveyor: Run) -> None:
    code, out, _ = conveyor("--print-completion", shell)
    assert code == 0
    assert "micro-batch-size" in out


def test_completion_needs_a_known_shell(conveyor: Run) -> None:
    code, _, error = conveyor("--print-completion", "fish")
    assert code == 2
    assert "bash" in error


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m conveyor train --help | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("runs", "x" * 5000), "file name too long"),
        (("plan", "--model", "resnet8", "--devices", "1", "--picture", "{file}/plan.svg"), "file exists"),
    ],
)
def test_a_path_that_the_system_refuses_is_one_sentence(
    words: tuple[str, ...], part: str, tmp_path: Path, conveyor: Run
) -> None:
    (tmp_path / "file").write_text("")
    code, _, error = conveyor(*(word.format(file=tmp_path / "file") for word in words))
    assert code == 2
    assert len(error.splitlines()) == 1
    assert part in error
