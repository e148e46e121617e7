"""Commands that start the programs of `peers/`, each in an environment of its own where it needs one."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from conveyor.measure.rounds import Program

PEER_ENVIRONMENTS = "CONVEYOR_PEERS"
"""Folder of virtual environments of peers that cannot be installed with ours: `$CONVEYOR_PEERS/keras/bin/python`."""


def peer_program(name: str, program: str, asked: dict[str, Any], environment_name: str = "") -> Program:
    """A program of `peers/` with its settings; in an environment of its own if it needs one that is there."""
    python, env = environment(environment_name)
    path = Path(__file__).parent / "peers" / f"{program}.py"
    return Program(name, [python, str(path), json.dumps(asked)], env)


def environment(name: str) -> tuple[str, dict[str, str]]:
    """The interpreter of a peer's own environment, if it has one, and what lets it import us; else our interpreter."""
    own = peer_python(name) if name else None
    return (own, {"PYTHONPATH": str(Path(__file__).parents[2])}) if own else (sys.executable, {})


def peer_python(name: str) -> str | None:
    """The interpreter of `$CONVEYOR_PEERS/<name>`, if it exists."""
    folder = os.environ.get(PEER_ENVIRONMENTS)
    own = Path(folder) / name / "bin" / "python" if folder else None
    return str(own) if own is not None and own.exists() else None
