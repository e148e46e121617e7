"""The wheel in a fresh environment, away from the checkout and without a compiler: a person's first commands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent.parent
FIRST = (
    "--version",
    "train --epochs 2 --run-dir runs/first",
    "report runs/first",
    "runs",
    "validate runs/first",
    "compare runs/first runs/first",
)
MISSING = {"serve runs/first": "serve", "export runs/first --out exported": "export"}
"""Commands that need an extra, and its name."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with the wheel and what it requires, nothing more."""
    made = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(made), str(ROOT)]
    subprocess.run(wheel, check=True, timeout=600)
    (file,) = made.glob("conveyor-*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(made / "env")], check=True)
    install = [str(made / "env" / "bin" / "pip"), "--disable-pip-version-check", "--quiet", "install"]
    for words in (
        ("--require-hashes", "-r", str(ROOT / "requirements" / "core.txt")),
        ("--no-deps", "-r", str(ROOT / "requirements" / "torch.txt")),
        ("--no-deps", str(file)),
    ):
        done = subprocess.run([*install, *words], capture_output=True, text=True, timeout=2000)
        if done.returncode and re.search(r"No matching distribution|Connection|Network", done.stderr):
            pytest.skip(f"the packages cannot be had here: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr[-2000:]
    return made / "env" / "bin"


@pytest.mark.conformance
@pytest.mark.timeout(3000)
def test_the_first_day_with_the_wheel(programs: Path, tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CONVEYOR"))}
    env = {**plain, "PATH": str(programs), "CONVEYOR_CACHE": str(tmp_path / "cache")}

    def conveyor(words: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / "conveyor"), *words.split()]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)

    where = [str(programs / "python"), "-c", "import conveyor; print(conveyor.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60).stdout
    assert str(programs.parent) in found
    for words in FIRST:
        done = conveyor(words)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        assert "without compiled kernels" not in done.stdout
    Image.new("L", (20, 20), 255).save(tmp_path / "seven.png")
    (answer,) = json.loads(conveyor("predict runs/first seven.png --json").stdout)
    assert answer["label"] in "0123456789"
    for command, extra in MISSING.items():
        refused = conveyor(command)
        assert refused.returncode == 2, refused.stdout
        assert f"pip install 'conveyor[{extra}]'" in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
