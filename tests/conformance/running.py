"""Run a case as a user would: in a shell, from the dialect's folder, with the launchers in the PATH."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml
from tests.conformance.cases import Case
from tests.dialects.command_lines import COMPAT

LIMIT = 1800


@dataclasses.dataclass(frozen=True)
class Result:
    """How a case ended."""

    id: str
    ok: bool
    ran: str
    said: str
    seconds: float
    output: str = ""


def run(case: Case, workspace: Path) -> Result:
    """The result of one case; foreign hosts are first planned as printed, then run on local ones."""
    started = time.monotonic()
    data, runs, folder = workspace / "data", workspace / "runs", workspace / "compat" / case.folder
    text = case.text.replace("{data}", str(data)).replace("{runs}", str(runs))
    variables = {name: value.replace("{data}", str(data)) for name, value in case.variables}
    if "10.1" in case.command and "--host" in case.command:
        printed = case.command
        for old, new in case.replaced:
            if "{runs}" in new:  # a dry run of a stored run needs the run
                printed = printed.replace(old, new.replace("{runs}", str(runs)))
        planned, output = shell(f"{printed} --dry-run", folder, variables)
        if planned != 0:
            return Result(case.id, False, "dry run", last_words(output), time.monotonic() - started, output)
    if "--distributed" in case.command:
        code, output = two_workers(text, folder, variables)
    else:
        code, output = shell(text, folder, variables)
    refused = case.note.startswith("must be refused")
    ok = (code == 2 if refused else code == 0) and "Traceback" not in output
    ok = ok and (not case.expects or re.search(case.expects, output) is not None)
    said = last_words(output)
    missing = "" if refused or not ok else what_is_missing(case, text, folder, output)
    return Result(
        case.id, ok and not missing, shortened(case), missing or said, time.monotonic() - started, output + missing
    )


def what_is_missing(case: Case, text: str, folder: Path, output: str) -> str:
    """What a command should have left behind and has not: all its updates, a line of metrics, a checkpoint, a profile."""
    if case.leaves and not any(path.stat().st_size for path in folder.glob(case.leaves)):
        return f"no file {case.leaves}"
    if case.kind not in ("train", "restore", "fragment") or "--training False" in text:
        return ""
    named = re.search(r"run folder: (\S+)", output)
    if named is None:
        return "no run folder is named"
    run = folder / named[1]
    result = json.loads((run / "result.json").read_text())
    asked = re.findall(r"--updates (\d+)", text)
    if asked and result["updates"] != int(asked[-1]):
        return f"{result['updates']} updates, not {asked[-1]}"
    if len((run / "metrics.csv").read_text().splitlines()) < 2:
        return "no line in metrics.csv"
    options = yaml.safe_load((run / "options.yml").read_text())
    wanted = options.get("checkpoints_per_epoch", 1) != 0
    return "" if not wanted or any((run / "checkpoints").glob("*/manifest")) else "no checkpoint"


def copy_folders(target: Path) -> None:
    """The dialects' folders in a place where runs may leave their files."""
    shutil.copytree(COMPAT, target, symlinks=True, ignore=shutil.ignore_patterns("logs", "runs", "__pycache__"))
    for link in COMPAT.glob("*/configs.yml"):
        copied = target / link.parent.name / link.name
        copied.unlink()
        shutil.copyfile(link, copied)


def shell(text: str, folder: Path, variables: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of a command line in bash."""
    process = start(text, folder, variables)
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        end(process)
        return 124, f"not finished after {LIMIT} s"
    return process.returncode, output


def start(text: str, folder: Path, variables: dict[str, str]) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(COMPAT / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **variables, "PATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        ["bash", "-c", text], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def end(process: "subprocess.Popen[str]") -> None:
    """End a command and all that it started."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def two_workers(text: str, folder: Path, variables: dict[str, str]) -> tuple[int, str]:
    """Both workers of a TF_CONFIG job here: under mpirun by one command, else one command each."""
    port = free_port()
    here = f'127.0.0.1:{port}","127.0.0.1:{port + 1}'
    if text.startswith("mpirun"):
        text = text.replace('worker0:3636","worker1:3636', here)
        text = text.replace("-H worker0,worker1", "-H localhost:2").replace(
            "mpirun ", "mpirun --allow-run-as-root --oversubscribe -np 2 ", 1
        )
        return shell(text, folder, variables)
    processes = []
    for index in (0, 1):
        config = f'{{"cluster":{{"worker":["{here}"]}},"task":{{"type":"worker","index":{index}}}}}'
        processes.append(start(text, folder, {**variables, "TF_CONFIG": config}))
    outputs, codes = [], []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            end(process)
            output = f"not finished after {LIMIT} s"
        outputs.append(output)
        codes.append(process.returncode)
    return max(abs(code) for code in codes), "\n".join(reversed(outputs))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


STANDS_FOR = {
    "{data}/imagenet-data": "300 photographs in TFRecord files",
    "{data}/imagenet-raw-dataset": "300 photographs in class folders",
    "{data}": "a folder with small data sets",
    "{runs}": "a run folder made by the row before",
}


def shortened(case: Case) -> str:
    """What was appended and what was replaced, in words."""
    appended = re.sub(r"(--[a-z-]+) \{(data|runs)\}\S*", r"\1 ...", case.appended)
    words = [case.filled] if case.filled else []
    words += [f"appended `{appended}`"] if appended else []
    made = [f"`{old}` by {in_words(old, new)}" for old, new in case.replacements]
    words += [f"replaced {', '.join(made)}"] if made else []
    words += ["batch-size variant"] if case.id.endswith("b") else []
    if "--distributed" in case.command:
        words.append("replaced the workers of TF_CONFIG by two on this machine")
    if "--host" in case.command and "10.1" in case.command:
        words.append("dry run as printed, then two local hosts")
    return "; ".join([*(words or ["as printed"]), *([case.note] if case.note else [])])


def in_words(old: str, new: str) -> str:
    """What stands for a placeholder or an address; `old` may be longer than what is replaced in it."""
    for mark, meaning in STANDS_FOR.items():
        if mark in new:
            return meaning
    return f"`{new}`" if new else "nothing"


def last_words(output: str) -> str:
    """The line that says most: accuracy, throughput or the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    table = [row for head, row in itertools.pairwise(lines) if head.startswith("checkpoint ")]
    if table:
        return f"checkpoint, epoch, top-1, top-5, loss, images, img/s: {' '.join(table[-1].split())}"
    for pattern in (r"top-1", r"accuracy|throughput|img/sec|samples/sec", r"error"):
        matching = [line for line in lines if re.search(pattern, line) and not line.startswith(("conveyor ", "note:"))]
        if matching:
            return matching[-1][:160]
    return lines[-1][:160] if lines else ""
