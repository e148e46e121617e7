"""The documentation is true: links lead somewhere, generated pages are current, commands are run or say why not.

The commands of a code block are run, `train` and `validate` dry, `plan` without its measurement. `<!-- run -->` before a
block has them run for real, one after the other in one folder; `<!-- not run: reason -->` says why not even that.
`test_tutorial.py` runs what is marked `tutorial` and `served`.
"""

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.recipe_options import OPTIONS

import conveyor as package
from conveyor.options import specs

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)```", re.DOTALL)


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
PLAIN = [
    (block.page.name, command)
    for block in ALL
    if not block.mark
    for command in block.commands
    if command[0] == "conveyor"
]
MADE = ("api.md", "options.md")
"""Pages that `scripts/reference.py` makes while the site is built."""
RUN = [page for page in PAGES if any(block.mark == "run" for block in blocks(page))]


@pytest.mark.parametrize(("page", "command"), PLAIN, ids=[f"{page}: {' '.join(words)}" for page, words in PLAIN])
def test_plain_commands(
    page: str,
    command: list[str],
    conveyor: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for word in command[1:] if word != "--measure"]
    if words[0] in ("train", "validate") and "--dry-run" not in words:
        words.append("--dry-run")
    code, output, error = conveyor(*words)
    assert code == 0, error
    assert output


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
    makefile = (ROOT / "Makefile").read_text()
    strange = [
        f"{block.page.name}: {' '.join(command)}"
        for block in ALL
        if not block.mark
        for command in block.commands
        if command[0] != "conveyor" and not (command[0] == "make" and f"\n{command[1]}: " in makefile)
    ]
    assert strange == []


def test_marks_are_known() -> None:
    marks = {block.mark for block in ALL if block.mark}
    assert [
        mark for mark in marks if mark not in ("run", "tutorial", "served") and not re.match(r"not run: .{10}", mark)
    ] == []


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: the headings in lower case, without marks, blanks as hyphens."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(f"{target}#{anchor}")
    assert lost == []


def test_the_site_has_every_page_and_links_stay_inside_it() -> None:
    """What `mkdocs build --strict` complains about, without mkdocs."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted([*(page.name for page in pages), *MADE])
    outside = [
        f"{page.name}: {target}" for page in pages for target in re.findall(r"\]\((\.\./[^)]*)\)", page.read_text())
    ]
    assert outside == []


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


def test_the_reference_has_every_option_and_every_public_name() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
    options, python = made["options_page"](), made["api_page"]()
    assert [spec.flag for spec in specs().values() if f"`{spec.flag}`" not in options] == []
    assert [name for name in package.__all__ if name != "__version__" and f"`conveyor.{name}`" not in python] == []
    assert "- `.predict()`:" in python
    shown = made["examples"]()
    assert shown["--label-smoothing"].startswith("`--label-smoothing 0.1`")
    for name in (name for names in OPTIONS.values() for name in names):
        found = [shown.get(flag, "") for flag in specs()[name].flags]
        alone = isinstance(specs()[name].default, bool)
        examples = [one for one in found if re.match(r"`--[a-z-]+`" if alone else r"`--[a-z-]+ [^`]+`", one)]
        assert any(re.search(r"\(([\w-]+)\.md\)", one)[1] in made["HOW_TO"] for one in examples), (name, found)  # type: ignore[index]
    for line in (
        "sweep sweep.yml",
        "batch-find --model",
        "data audit --data-dir",
        "export runs/two --calibrate --abstain 99",
    ):
        assert re.search(rf"^conveyor {line}", options, re.MULTILINE), line


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "--learning-rate" in (tmp_path / "site" / "options" / "index.html").read_text()


def test_the_script_of_the_pictures_starts() -> None:
    """It is run by hand only: a name that it imports may be gone."""
    script = Path(__file__).parents[2] / "scripts" / "screenshots.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
