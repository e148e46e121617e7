"""Ctrl-C is heard, whatever the libraries do."""

import subprocess
import sys
import tomllib
from pathlib import Path

SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
except BaseException:
    pass
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "greedy.py").write_text(SWALLOWS)
    start = "from conveyor.interrupt import heard_in_imports\nimport os, signal\n"
    start += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a shell's background jobs
    return subprocess.run(
        [sys.executable, "-c", start + code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_import_that_catches_everything_does_not_keep_the_program_alive(tmp_path: Path) -> None:
    done = run(tmp_path, "with heard_in_imports():\n    import greedy\nprint('still here')")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "conveyor: interrupted\n")


def test_while_the_program_itself_is_imported_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    entry = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]["conveyor"]
    module, _, function = entry.partition(":")
    code = f"import sys\nsys.path.insert(0, '.')\nfrom {module} import {function}\nsys.exit({function}())"
    done = run(tmp_path, code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "conveyor: interrupted\n")


def test_elsewhere_it_is_the_usual_exception(tmp_path: Path) -> None:
    code = """
try:
    with heard_in_imports():
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("as ever", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    assert run(tmp_path, code).stdout == "as ever True\n"


def test_a_handler_of_somebody_else_stays(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwith heard_in_imports():\n    import greedy\nprint('here')"
    assert run(tmp_path, code).stdout == "here\n"
