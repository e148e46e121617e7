"""What is installed is what was locked, and its licences are on a page."""

import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
FOLDER = HERE / "requirements"


def requirements(file: str) -> list[str]:
    text = (FOLDER / file).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith(("#", "-r"))]


@pytest.mark.parametrize("file", ["core.txt", "all.txt"])
def test_every_requirement_has_a_version_and_hashes(file: str) -> None:
    found = requirements(file)
    assert len(found) > 20
    for line in found:
        name, *hashes = line.split()
        pinned, _, version = name.partition("==")
        assert hashes, line
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes), line
        assert metadata.version(pinned).split("+")[0] == version, "run `make lock` after changing a version"


@pytest.mark.parametrize("file", sorted(one.name for one in FOLDER.glob("peers/*.txt")))
def test_an_environment_without_torch_is_locked_too(file: str) -> None:
    """pip asks for hashes as soon as one line has one."""
    found = requirements(f"peers/{file}")
    free = (
        any(line.startswith("torch==") for line in found) or "-r ../core.txt" in (FOLDER / "peers" / file).read_text()
    )
    assert all(("--hash=sha256:" in line) is not free for line in found)


def test_they_are_installed_with_their_hashes() -> None:
    """Only torch, whose build depends on the machine, comes without; then without anything it would pull in."""
    installs = [line.strip() for line in (HERE / "Makefile").read_text().splitlines() if "$(PIP) " in line]
    assert installs == [
        "$(PIP) --require-hashes -r requirements/core.txt",
        "$(PIP) --no-deps -r requirements/torch.txt",
        "$(PIP) --no-build-isolation --no-deps --editable .",
        "$(PIP) --require-hashes -r requirements/all.txt",
        "$(PIP) --require-hashes -r requirements/docs.txt",
    ]
    assert [line.partition("==")[0] for line in requirements("torch.txt")] == ["torch"]


def test_the_page_of_licences_is_of_these_packages() -> None:
    page = runpy.run_path(str(HERE / "scripts/licences.py"))["page"]
    assert (HERE / "docs/licences.md").read_text() == page(), "run scripts/licences.py"
    assert "not stated" not in page()


def test_a_group_of_tests_stays_on_one_worker(tmp_path: Path) -> None:
    """The daemons of SLURM must not run twice; a version of pytest that pytest-xdist did not know broke this silently."""
    (tmp_path / "test_group.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.xdist_group('one')\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_it(number):\n"
        "    open(os.environ['PYTEST_XDIST_WORKER'], 'a').close()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    subprocess.run([*command, "test_group.py"], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert len(list(tmp_path.glob("gw*"))) == 1
