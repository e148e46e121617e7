"""Find the installed package for the scripts in these folders.

With a Python that has no conveyor, the repository's own environment (.venv, made by `make install`) takes over.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.path.join(os.path.dirname(HERE), ".venv", "bin", "python")


def find():
    """Make `import conveyor` work, in another interpreter if need be."""
    try:
        import conveyor  # noqa: F401
    except ImportError:
        started_here = os.environ.get("CONVEYOR_COMPAT") == PYTHON
        if not os.path.exists(PYTHON) or started_here:
            sys.exit("conveyor is not installed for this Python: run `make install` in the repository, then try again.")
        os.environ["CONVEYOR_COMPAT"] = PYTHON
        os.execv(PYTHON, [PYTHON] + sys.orig_argv[1:] if hasattr(sys, "orig_argv") else [PYTHON] + sys.argv)
    os.environ["PATH"] = os.pathsep.join([os.path.join(HERE, "bin"), os.path.dirname(sys.executable), os.environ["PATH"]])


def run(dialect, script):
    """One of the dialects' scripts."""
    find()
    from conveyor.dialects.scripts import main

    sys.exit(main(dialect, script))


def tool(name):
    """One of the launchers in bin/."""
    find()
    from conveyor.dialects import launchers

    sys.exit(getattr(launchers, name)())


def benchmark():
    """`python3 -m examples_utils benchmark --spec FILE [--benchmark NAME ...]`."""
    find()
    from conveyor.dialects.benchmarks import main

    sys.exit(main())
