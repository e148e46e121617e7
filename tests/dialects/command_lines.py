"""The command lines that the older programs' documents print, and how to read one as a shell and its launchers would."""

import json
import os
import re
import shlex
from contextlib import contextmanager
from pathlib import Path

from conveyor.dialects import benchmarks, launchers, scripts

HERE = Path(__file__).parent
COMPAT = HERE.parent.parent / "compat"
RUNNABLE = ("train", "validate", "restore", "serve", "benchmark", "help", "tool")
FRAGMENT_BASES = {
    "tensorflow1": "python train.py --dataset imagenet --data-dir imagenet-data --model-size 50 --pipeline-splits b2/0/relu b3/0/relu",
    "tensorflow2": "python3 train.py",
}
"""What a fragment is appended to."""


def entries():
    return json.loads((HERE / "commands.json").read_text())


def command_of(entry):
    text = entry.get("filled", entry["printed"])
    return f"{FRAGMENT_BASES[entry['folder']]} {text}" if entry["kind"] == "fragment" else text


@contextmanager
def inside(folder, variables):
    """A working folder and variables, put back afterwards."""
    before, environment = Path.cwd(), dict(os.environ)
    os.chdir(folder)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def split(command):
    """Variables set for the command, and its words."""
    words = shlex.split(command)
    variables = {}
    while re.match(r"^\w+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return variables, words


def run_line(command, folder, extra=(), variables=None):
    """The exit code of a command line run in this process from a dialect's folder, with words appended to it."""
    set_here, words = split(command)
    words += list(extra)
    with inside(COMPAT / folder, {**set_here, **(variables or {})}):
        if words[0] == "poprun":
            return launchers.poprun(words[1:])
        if words[0] == "mpirun":
            return launchers.mpirun(words[1:])
        if words[0] == "gc-profile":
            return launchers.gc_profile(words[1:])
        if words[0] == "gc-info":
            return launchers.gc_info(words[1:])
        if words[1:3] == ["-m", "examples_utils"]:
            return benchmarks.main(words[3:])
        script = launchers.find_script(words)
        return scripts.main(script.dialect, script.name, list(script.words), script.folder)


def plan_of(command, folder, capsys, extra=(), variables=None):
    """The JSON plan of a dry run."""
    code = run_line(command, folder, [*extra, "--dry-run", "--json"], variables)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)
