"""The launchers named beside the programs: poprun, gc-profile and gc-info.

`poprun` says how many copies of the model there are; where they run is decided by our layout. So on one machine the
program is read and run once, with the launcher's numbers, and its topology is folded onto the cores. With several hosts
the work goes to `conveyor launch`. The words `python` and `python3` in a launched command mean the interpreter that
runs this.
"""

import dataclasses
import functools
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from conveyor.cli import exit_code
from conveyor.dialects import scripts
from conveyor.dialects.agreement import agreed
from conveyor.dialects.mpi_options import read_options, split_options
from conveyor.dialects.running import run, run_command
from conveyor.dialects.translation import Launcher
from conveyor.errors import UserError, did_you_mean
from conveyor.launch.job import LaunchPlan, local_host_index

COUNTS = ("--num-instances", "--num-replicas", "--ipus-per-replica")
TEXTS = ("--host", "--numa-aware", "--mpi-global-args", "--mpi-local-args", "--executable-cache-path")
POOL = (
    "--vipu-server-host", "--vipu-server-port", "--vipu-server-timeout", "--vipu-partition", "--vipu-cluster",
    "--vipu-allocation", "--reset-partition", "--update-partition", "--remove-partition", "--num-ilds", "--sync-type",
    "--only-output-from-instance",
)  # fmt: skip
SWITCHES = ("-v", "-vv", "-vvv", "--vv", "--verbose", "--tag-output", "--dry-run", "--json", "-h", "--help")
MARK = re.compile(r"""from bootstrap import run\s+run\(["'](\w+)["'],\s*["'](\w+)["']\)""")
HELP = """usage: poprun [options] python3 SCRIPT [its options]

  --num-replicas N      data-parallel copies of the model in all
  --num-instances N     worker processes; at most the replicas; folded onto the cores that are there
  --ipus-per-replica N  devices of one copy (its pipeline stages)
  --host A,B            machines; the instances are spread over them
  --numa-aware 1|yes    bind workers to NUMA nodes
  --mpi-local-args T    '-x VAR' or '-x VAR=VALUE' for every worker; --tag-output marks lines with their worker;
                        '--mca btl_tcp_if_include NAME|NETWORK' chooses the interface between machines
  --dry-run [--json]    print the plan and contact nothing
  -v                    say more; options of the device pool (--vipu-..., --reset-partition, ...) are accepted and noted
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What a poprun command line asks for."""

    launcher: Launcher
    program: tuple[str, ...]
    variables: Mapping[str, str]
    notes: tuple[str, ...] = ()
    numa: bool = False
    tagged: bool = False
    interface: str | None = None
    switches: tuple[str, ...] = ()
    replicas_given: bool = True


def read_poprun(words: Sequence[str]) -> Request:
    """Options up to the first word that is none of them; the rest is the program."""
    queue, given, switches, notes = list(words), dict[str, str](), list[str](), list[str]()
    known = (*COUNTS, *TEXTS, *POOL)
    while queue and queue[0].startswith("-"):
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        if word in SWITCHES:
            switches.append(word)
            continue
        name = _full_name(name, known)
        if not equals:
            if not queue or queue[0].startswith("-"):
                if name not in COUNTS:
                    raise UserError(f"{name} needs a value")
                notes.append(f"{name} has no value: it is taken from the program")
                continue
            value = queue.pop(0)
        given[name] = value
    if not queue and not {"-h", "--help"} & set(switches):
        raise UserError("what is to be run? Add the command, such as: python3 train.py")
    launcher = _launcher(given)
    notes += [f"{name} has no effect here: there is no device pool to manage" for name in POOL if name in given]
    if "--executable-cache-path" in given:
        notes.append("--executable-cache-path has no effect here: there is nothing to compile")
    options = read_options(
        shlex.split(given.get("--mpi-global-args", "")) + shlex.split(given.get("--mpi-local-args", "")), os.environ
    )
    if options.interface and len(launcher.hosts) < 2:
        notes.append(f"the interface {options.interface} has no effect here: all workers are on one machine")
    return Request(
        launcher,
        tuple(queue),
        options.variables,
        (*notes, *options.notes),
        numa=given.get("--numa-aware", "no").lower() in ("1", "yes", "true", "on"),
        tagged=options.tagged or "--tag-output" in switches,
        interface=options.interface if len(launcher.hosts) > 1 else None,
        switches=tuple(switches),
        replicas_given="--num-replicas" in given,
    )


def _is_python(word: str) -> bool:
    return re.fullmatch(r"python(\d+(\.\d+)?)?", Path(word).name) is not None


def _with_this_interpreter(program: Sequence[str]) -> list[str]:
    return [sys.executable, *program[1:]] if _is_python(program[0]) else list(program)


def _full_name(name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    found = [option for option in known if option.startswith(name)] if name.startswith("--") else []
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{name} could mean {', '.join(found)}: write more of the name")
    raise UserError(f"there is no option {name}{did_you_mean(name, (*known, *SWITCHES))}")


def _launcher(given: Mapping[str, str]) -> Launcher:
    numbers = {}
    for name in COUNTS:
        text = given.get(name, "")
        if text and (not text.isdecimal() or int(text) < 1):
            raise UserError(f"{name} is {text!r}, but must be a whole number of at least 1")
        numbers[name] = int(text) if text else 0
    instances, replicas = numbers["--num-instances"] or 1, numbers["--num-replicas"] or numbers["--num-instances"] or 1
    hosts = tuple(host.strip() for host in given.get("--host", "").split(",") if host.strip())
    LaunchPlan(instances=instances, replicas=replicas, hosts=hosts)  # refuses numbers that do not go together
    return Launcher(replicas, instances, numbers["--ipus-per-replica"], hosts)


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """One of the dialects' scripts, called with `words`."""

    dialect: str
    name: str
    folder: Path
    words: tuple[str, ...]


def find_script(program: Sequence[str], folder: Path | None = None) -> Script | None:
    """The dialect's script that `python3 SCRIPT words...` starts; None for any other program.

    A command without a script means train.py, and the dialect of a path that does not exist here is taken from
    the scripts in this folder, or from the path's text.
    """
    words = list(program)
    if not words or not _is_python(words[0]):
        return None
    words.pop(0)
    here = folder or Path.cwd()
    if not words or words[0].startswith("--"):
        words.insert(0, "train.py")
    path = Path(words[0]) if Path(words[0]).is_absolute() else here / words[0]
    if path.suffix != ".py":
        return None
    if path.is_file():
        marked = MARK.search(path.read_text(encoding="utf-8", errors="replace")[:4000])
        return Script(marked[1], marked[2], path.resolve().parent, tuple(words[1:])) if marked else None
    dialect = _dialect_of(path, here)
    if dialect is None or path.stem not in scripts.SCRIPTS[dialect]:
        raise UserError(
            f"{words[0]} does not exist: start it from the folder of the dialect, such as compat/tensorflow1"
        )
    return Script(dialect, path.stem, here, tuple(words[1:]))


def _dialect_of(path: Path, here: Path) -> str | None:
    for sibling in sorted(here.glob("*.py")):
        if marked := MARK.search(sibling.read_text(encoding="utf-8", errors="replace")[:4000]):
            return marked[1]
    text = str(path).lower()
    names = {"tensorflow2": "tensorflow2", "tensorflow": "tensorflow1", "pytorch": "pytorch", "popart": "popart"}
    return next((dialect for word, dialect in names.items() if word in text), None)


def _poprun(words: list[str]) -> int:
    request = read_poprun(words)
    if {"-h", "--help"} & set(request.switches):
        print(HELP)
        return 0
    if len(request.launcher.hosts) == 1 and local_host_index(request.launcher.hosts) is None:
        raise UserError(
            f"--host {request.launcher.hosts[0]} is another machine: run the command there, or name several"
        )
    script = find_script(request.program)
    if script is None:
        return _launch_other(request)
    words = [*script.words, *(switch for switch in request.switches if switch in ("--dry-run", "--json"))]
    if {"-h", "--help"} & set(words):
        return _main(script, words)
    try:
        return _run(request, script, words)
    except UserError as error:
        raise UserError(scripts.told(error, script.dialect, script.name, words, script.folder)) from None


def _main(script: Script, words: Sequence[str] | None = None) -> int:
    """Run a dialect's script as if it had been started by itself."""
    return scripts.main(script.dialect, script.name, list(script.words if words is None else words), script.folder)


def _run(request: Request, script: Script, words: list[str]) -> int:
    values = scripts.values_of(script.dialect, script.name, script.words, script.folder)
    launcher, notes = agreed(request.launcher, values, replicas_given=request.replicas_given)
    request = dataclasses.replace(request, launcher=launcher, notes=(*request.notes, *notes))
    translation = scripts.translate(
        script.dialect, script.name, words, folder=script.folder, launcher=request.launcher,
        environment={**os.environ, **request.variables},
    )  # fmt: skip
    os.environ.update(request.variables)
    here = len(request.launcher.hosts) < 2 and not request.numa and not request.tagged
    if translation.dry_run or here:
        return run(dataclasses.replace(translation, notes=(*request.notes, *translation.notes)))
    _print_notes(request)
    program = [sys.executable, str(script.folder / f"{script.name}.py"), *script.words]
    # A restored run keeps its own replicas, whatever the launcher says.
    return run_command(launch_words(request, program, with_replicas=translation.command != "restore"))


def _launch_other(request: Request) -> int:
    program = _with_this_interpreter(request.program)
    _print_notes(request)
    if "--dry-run" in request.switches:
        print(shlex.join(["conveyor", *launch_words(request, program)]))
        return 0
    return run_command(launch_words(request, program))


def _print_notes(request: Request) -> None:
    for note in request.notes:
        print(f"note: {note}", file=sys.stderr)


def launch_words(request: Request, program: Sequence[str], with_replicas: bool = True) -> list[str]:
    """`conveyor launch`: instances beyond the cores of a machine are folded, which changes no result."""
    from conveyor.layout import usable_cores

    launcher = request.launcher
    hosts = max(1, len(launcher.hosts))
    instances = hosts * max(1, min(launcher.instances // hosts, usable_cores()))
    while launcher.replicas % instances:
        instances -= hosts
    words = ["launch", "--instances", str(instances)]
    words += ["--replicas", str(launcher.replicas)] if with_replicas else []
    words += ["--devices-per-replica", str(launcher.devices_per_replica)] if launcher.devices_per_replica else []
    words += ["--hosts", ",".join(launcher.hosts)] if launcher.hosts else []
    words += ["--interface", request.interface] if request.interface else []
    words += ["--numa"] * request.numa + ["--tag-output"] * request.tagged
    return [*words, *_environment(request.variables), "--", *program]


def _environment(variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def _mpirun_or_plan(words: list[str]) -> int:
    """`mpirun` in its older spelling (`-bind-to none`) for the installed one; without any, `conveyor launch`.

    With --dry-run among the program's words the plan is printed and nobody is contacted.
    """
    options, program = split_options(words)
    flat = [word for option in options for word in option]
    if not program:
        raise UserError("what is to be run? Add the command, such as: python3 train.py")
    if "--dry-run" not in program:
        return _mpirun(flat, program)
    os.environ.update(read_options(flat, os.environ).variables)
    script = find_script(program)
    if script is None:
        raise UserError(f"--dry-run is for the scripts of the dialects, not for {program[0]}")
    return _main(script)


def _mpirun(options: list[str], program: list[str]) -> int:
    program = _with_this_interpreter(program)
    own = Path(sys.argv[0]).resolve().parent
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = Path(folder) / "mpirun"
        if folder and found.resolve().parent != own and os.access(found, os.X_OK):
            os.execv(found, [str(found), *options, *program])
    read = read_options(options, os.environ)
    for note in read.notes:
        print(f"note: {note}", file=sys.stderr)
    words = ["launch", "--instances", str(read.count or len(read.hosts) or 1)]
    if len(read.hosts) > 1:
        words += ["--hosts", ",".join(read.hosts)]
        words += ["--interface", read.interface] if read.interface else []
    words += _environment(read.variables)
    return run_command([*words, *["--tag-output"] * read.tagged, "--", *program])


def _gc_profile(words: list[str]) -> int:
    """`gc-profile -d DIR -- COMMAND`: run a command whose profile goes to DIR."""
    cut = words.index("--") if "--" in words else 2
    options, program = words[:cut], words[cut + ("--" in words) :]
    if options and (len(options) != 2 or options[0] not in ("-d", "--output-dir")):
        raise UserError("write: gc-profile -d DIR -- python train.py --gc-profile")
    if not program:
        raise UserError("what is to be profiled? Write: gc-profile -d DIR -- python train.py --gc-profile")
    os.environ["GC_PROFILE_LOG_DIR"] = options[1] if options else "."
    script = find_script(program)
    if script is not None:
        return _main(script)
    program = _with_this_interpreter(program)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise UserError(f"cannot start {program[0]}: {error.strerror}") from None


def _gc_info(words: list[str]) -> int:
    """`gc-info -l`: the devices that are there."""
    if words not in ([], ["-l"], ["--list-devices"]):
        raise UserError(f"there is no option {words[0]}: write gc-info -l")
    return run_command(["devices", "--list"])


poprun, mpirun, gc_profile, gc_info = (
    functools.partial(exit_code, name, act)
    for name, act in (
        ("poprun", _poprun), ("mpirun", _mpirun_or_plan), ("gc-profile", _gc_profile), ("gc-info", _gc_info)
    )
)  # fmt: skip
"""The programs; their words are those of the command line unless given."""
