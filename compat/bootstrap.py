"""Find the installed package for the scripts in these folders.

With a Python that has no conveyor, the repository's own environment (.venv, made by `make install`) takes over.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHON = str(HERE.parent / ".venv" / "bin" / "python")


def find() -> None:
    """Make `import conveyor` work, in another interpreter if need be; launchers and interpreter come first in PATH."""
    try:
        import conveyor  # noqa: F401
    except ImportError:
        if not Path(PYTHON).exists() or os.environ.get("CONVEYOR_COMPAT") == PYTHON:
            sys.exit("conveyor is not installed for this Python: run `make install` in the repository, then try again.")
        os.environ["CONVEYOR_COMPAT"] = PYTHON
        os.execv(PYTHON, [PYTHON, *getattr(sys, "orig_argv", ["", *sys.argv])[1:]])
    folders = [str(HERE / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    os.environ["PATH"] = os.pathsep.join(folders)


def run(dialect: str, script: str) -> None:
    """One of the dialects' scripts."""
    find()
    from conveyor.dialects.scripts import main

    sys.exit(main(dialect, script))


def tool(name: str) -> None:
    """One of the launchers in bin/."""
    find()
    from conveyor.dialects import launchers

    sys.exit(getattr(launchers, name)())


def benchmark() -> None:
    """`python3 -m examples_utils benchmark --spec FILE [--benchmark NAME ...]`."""
    find()
    from conveyor.dialects.benchmarks import main

    sys.exit(main())
