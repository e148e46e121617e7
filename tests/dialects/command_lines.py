"""The command lines that the older programs' documents print, and how to read one as a shell and its launchers would."""

import json
import os
import re
import shlex
from contextlib import contextmanager
from pathlib import Path

from conveyor.dialects import benchmarks, launchers, scripts
from conveyor.options.coerce import to_plain

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


STORED = {
    "pytorch-4": ("checkpoints/resnet18_cifar10_1.pt", "python3 train.py", "resnet18_cifar10_1.pt"),
    "pytorch-5": ("checkpoints", "python3 train.py", ""),
    "tensorflow1-3": ("logs/RN20_bs32_BN_16.16_v0.9.115_3S9/", "python train.py --dataset cifar-10", ""),
    "tensorflow1-18": ("generated_checkpoints_dir_path", "python train.py --config mk2_resnet50_gn_16ipus --data-dir imagenet", ""),
    "tensorflow1-20": ("generated_checkpoints_dir_path", "python train.py --config mk2_resnet50_bn_16ipus --data-dir imagenet", ""),
    "tensorflow1-22": ("generated_checkpoints_dir_path", "python train.py --config mk2_resnet50_bn_64ipus --data-dir imagenet", ""),
}  # fmt: skip
"""Lines about a stored run: the path in them, the line that makes such a run, and a name in its folder."""


def with_stored_run(entry, folder):
    """The line of `entry` about a run in `folder`, which gets the options of its training and one checkpoint."""
    if entry["id"] not in STORED:
        return command_of(entry)
    from conveyor.checkpoint import folder as checkpoints
    from conveyor.checkpoint.state import State
    from conveyor.run import folder as rundir

    printed, line, name = STORED[entry["id"]]
    with inside(COMPAT / entry["folder"], {}):
        options = scripts.translate(entry["folder"], "train", split(line)[1][2:], folder=Path.cwd()).options
    folder.mkdir(parents=True, exist_ok=True)
    rundir.write_options(folder, options)
    state = State(
        model={}, progress={"update": 5, "epoch": 1.0}, options={k: to_plain(v) for k, v in options.flat().items()}
    )
    checkpoints.save(folder / "checkpoints" / "5", state)
    return command_of(entry).replace(printed, str(folder / name) if name else str(folder))


def plan_of(command, folder, capsys, extra=(), variables=None):
    """The JSON plan of a dry run."""
    code = run_line(command, folder, [*extra, "--dry-run", "--json"], variables)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)
