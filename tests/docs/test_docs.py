"""The documentation is true: links lead somewhere, generated pages are current, commands are run or at least understood.

A code block's commands are parsed, and `train` and `validate` are run dry. `<!-- run -->` before a block has them run for
real, one after the other in one folder; `<!-- not run: reason -->` says why not even that.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from conveyor.cli import parser_of

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<mark>.*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    mark: str
    commands: list[list[str]]


def blocks(page: Path) -> list[Block]:
    found = []
    for match in BLOCK.finditer(page.read_text()):
        if match["language"] not in ("bash", "sh", "shell", ""):
            continue
        lines = match["body"].replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines if line.strip()]
        found.append(Block(page, match["mark"] or "", [line for line in words if line]))
    return found


ALL = [block for page in PAGES for block in blocks(page)]
PARSED = [
    (block.page.name, command)
    for block in ALL
    if not block.mark
    for command in block.commands
    if command[0] == "conveyor"
]
RUN = [page for page in PAGES if any(block.mark == "run" for block in blocks(page))]


@pytest.mark.parametrize(("page", "command"), PARSED, ids=[f"{page}: {' '.join(words)}" for page, words in PARSED])
def test_commands_are_understood(page: str, command: list[str], conveyor: Callable[..., tuple[int, str, str]]) -> None:
    name, words = command[1], command[2:]
    if name.startswith("--"):
        assert conveyor(*command[1:])[0] == 0
        return
    parser_of(name).parse_args(words)
    if name in ("train", "validate") and "--checkpoint-path" not in words:
        code, _, error = conveyor(name, *words, *([] if "--dry-run" in words else ["--dry-run"]))
        assert code == 0, error


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.mark != "run":
            continue
        for command in block.commands:
            words = [sys.executable, "-m", *command] if command[0] == "conveyor" else command
            result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=250)
            assert result.returncode == 0, f"{shlex.join(command)}\n{result.stdout}\n{result.stderr}"


def test_unmarked_blocks_hold_our_commands_only() -> None:
    strange = [
        f"{block.page.name}: {' '.join(command)}"
        for block in ALL
        if not block.mark
        for command in block.commands
        if command[0] not in ("conveyor", "make")
    ]
    assert strange == []


def test_marks_are_known() -> None:
    marks = {block.mark for block in ALL if block.mark}
    assert [mark for mark in marks if mark != "run" and not re.match(r"not run: .{10}", mark)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def test_the_architecture_page_is_current() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/architecture.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_python_examples_compile() -> None:
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            if match["language"] == "python":
                compile(match["body"], page.name, "exec")
