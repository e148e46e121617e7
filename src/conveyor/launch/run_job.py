"""Begin a run: join the workers that a launcher started, run in this process, or start workers of our own.

Workers are started by executing a module with a file that describes the job, never by importing the caller's main
module again: a script needs no `if __name__ == "__main__"`.
"""

import dataclasses
import importlib
import itertools
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conveyor import scratch
from conveyor.errors import USER_ERROR, UserError
from conveyor.launch import failure
from conveyor.launch.cores import describe
from conveyor.launch.job import LaunchPlan
from conveyor.launch.rank import Place, detect, number, of_group
from conveyor.layout import Machine
from conveyor.options import Options
from conveyor.processes import end_with_parent, of_module
from conveyor.spec import RunSpec, resolve
from conveyor.training.stopping import Reason
from conveyor.world import restarts
from conveyor.world.world import World, device_for

log = logging.getLogger(__name__)

Run = Callable[[RunSpec, World], Any]
"""What a worker does: `module:function`, called with the spec and the world; the main worker's value is the result."""
Check = Callable[[RunSpec], None]

TRAIN = "conveyor.run.worker:run"


@dataclass(frozen=True, slots=True)
class _Work:
    """What every worker does, see `start`."""

    run: str | Run
    check: Check | None = None
    resolving: Callable[..., RunSpec] = resolve
    chosen: tuple[str, str] | None = None
    """The layout that our own launcher chose, and its note."""

    @property
    def trains(self) -> bool:
        return self.run == TRAIN or not isinstance(self.run, str)

    def __call__(self, spec: RunSpec, world: World) -> Any:
        run = self.run
        if isinstance(run, str):
            module, _, function = run.partition(":")
            run = getattr(importlib.import_module(module), function)
        if not self.trains:
            return run(spec, world)
        if not _TRAINING.acquire(blocking=False):
            raise UserError(
                "another thread of this process is training, and both would draw from PyTorch's one random generator: wait for "
                "it, or train in a process of its own"
            )
        try:
            return run(spec, world)
        finally:
            _TRAINING.release()


_TRAINING = threading.Lock()
"""Held while this process trains."""


_JOINED = itertools.count()
"""Runs of this process among the workers of a launcher: a script may train several times."""


def start(
    options: Options,
    *,
    run: str | Run = TRAIN,
    after: Sequence[Options] = (),
    check: Check | None = None,
    resolving: Callable[..., RunSpec] = resolve,
    everywhere: bool = False,
) -> Any:
    """Run `options` on the layout that fits; returns what the main worker's `run` returned.

    `check` may refuse the resolved run, before workers are started or joined. `after` are further phases, each begun
    when the one before has come to its end. Workers of a foreign launcher run all phases in one process group: they
    could not form a second one, because the addresses of the first are still in the store. A `run` that is a function
    trains objects of the caller's, with the spec that `resolving` makes of the options; no other process can be started
    with them, but workers that a launcher started can all have them. `everywhere`: every worker gets its own result.
    """
    place, work = of_group(os.environ) or detect(os.environ), _Work(run, check, resolving)
    if place is not None:
        if "TORCHELASTIC_RUN_ID" in os.environ and not os.environ.get("CONVEYOR_STORE"):
            # torchrun dies of the signals it does not know (SIGUSR1), and its workers would go on alone.
            end_with_parent(signal.SIGTERM)
        try:
            result = _joined((options, *after), place, work)
        except Exception as error:
            from conveyor.launch import watch

            watch.abandon()
            # The launcher shows the first failing worker's error and starts again after the loss of a peer.
            code = failure.record(error, os.environ)
            if code in (failure.LOST_PEER, failure.HANDED_OVER):
                if code == failure.LOST_PEER:
                    log.warning("worker %d: another worker is gone", place.rank)
                if place.catches:
                    raise failure.PeerLostError(f"worker {place.rank}: another worker is gone") from error
                raise SystemExit(code) from None
            if code == failure.OWN_ERROR and place.launcher == "slurm":
                log.exception("worker %d failed", place.rank)
                raise SystemExit(failure.in_step(code, os.environ)) from None
            raise
        return result if place.rank == 0 or everywhere else None
    for phase in (options, *after):
        if not isinstance(run, str) and phase.layout.layout not in ("auto", "1x1"):
            raise UserError(
                f"--layout {phase.layout.layout} needs several processes, and only this one has the objects that you pass: start "
                "the script with torchrun, or give them by name (--model, --data, --callback FILE.py:NAME)"
            )
        spec = resolving(phase if isinstance(run, str) else phase.replace(layout="1x1"))
        if check is not None and phase is options:
            check(spec)
        alone = spec.layout.workers == 1 or not isinstance(run, str)
        result = work(spec, World(device_for(phase.layout))) if alone else _launched(spec, str(run))
        if not _ended(result):
            break
    return result


def _ended(result: Any) -> bool:
    """Whether a run came to its end, so that what follows it may begin."""
    return bool(result) and not Reason(result["reason"]).to_be_continued if isinstance(result, dict) else False


def _joined(phases: Sequence[Options], place: Place, work: _Work) -> Any:
    """This process is one of several that a launcher started."""
    number = next(_JOINED)
    if number and place.job:
        place = dataclasses.replace(place, job=f"{place.job}-{number + 1}")
    world: World | None = None
    for phase in phases:
        result, world = _phase(phase, place, work, world, number)
        # After an error the groups are left as they are: the process ends at once, and its peers see that.
        world.barrier()
        if not _ended(result):
            break
    assert world is not None
    world.close()
    return result


def _phase(options: Options, place: Place, work: _Work, before: World | None, number: int) -> tuple[Any, World]:
    """One phase: what the work returned on this worker, and the world it ran in; the group of `before` is reused."""
    options = under_launcher(options, os.environ)
    if work.trains and place.rank == 0 and before is None and _is_torchrun(place):
        from conveyor.launch.rendezvous import starts_under_torchrun

        os.environ["CONVEYOR_STARTS"] = str(starts_under_torchrun(place, number))
    if restarts.goes_on():
        options = options.replace(resume="auto")
    machine = machine_of(options, place, os.environ)
    asked, chosen = options.layout.layout, work.chosen
    spec = work.resolving(options.replace(layout=chosen[0] if chosen else asked), workers=place.size, machine=machine)
    if work.check is not None and before is None:
        work.check(spec)
    # The run is stored as it was asked for: the next machine has other cores.
    options = spec.options.replace(layout=asked)
    spec = spec.replace(options=options, layout_note=chosen[1] if chosen else spec.layout_note)
    if place.size == 1:
        # Alone for now: machines may join, and must find the same folder.
        if work.trains:
            spec = spec.replace(options=spec.options.replace(run_dir=_run_folder(spec, place, number)))
        world = World(device_for(options.layout))
        return work(spec, world), world
    from conveyor.launch.interface import follow_mpi
    from conveyor.launch.join import join
    from conveyor.world.distributed import ProcessWorld

    follow_mpi(os.environ)

    note = os.environ.get("CONVEYOR_BUDGET", "")
    if note:
        spec = spec.replace(layout_note=f"{spec.layout_note}; {note}")
    layout = spec.layout
    sharing = spec.lanes_per_span(layout.lanes)
    if before is None:
        kind, devices = device_for(options.layout).type, options.layout.device_ids
        world = join(place, layout.lanes, layout.depth, kind, devices, sharing, number)
    else:
        assert isinstance(before, ProcessWorld)
        world = ProcessWorld(layout.lanes, layout.depth, before.device, sharing, before.meeting, before.backend)
    if work.trains:
        folder = world.broadcast_object(_run_folder(spec, place, number) if world.is_main else None)
        spec = spec.replace(options=spec.options.replace(run_dir=folder))
        if world.is_main and restarts.goes_on() and spec.options.run.checkpoint_path is None:
            _note_lost_run(Path(folder))
    if layout.depth > 1:
        spec = _cut(spec, world)
    return work(spec, world), world


def machine_of(options: Options, place: Place, environment: Mapping[str, str]) -> Machine | None:
    """The cores of all workers together; None on accelerators.

    A worker that was pinned sees its own share of a machine only, so the total comes from what assigned the share: our
    launcher, SLURM, or else the number of workers beside this one.
    """
    here = Machine.here(options.layout.device)
    if here.accelerators:
        return None
    dealt = environment.get("CONVEYOR_THREADS") or environment.get("SLURM_CPUS_PER_TASK") or ""
    share = int(dealt) if dealt.isdecimal() else max(1, here.cores // place.local_size)
    return Machine(share * place.size, hosts=max(1, place.size // place.local_size))


def _cut(spec: RunSpec, world: World) -> RunSpec:
    """The same run with its stages named: as the main worker chooses them, if nobody has."""
    from conveyor.run import autosplit

    if not autosplit.is_automatic(spec):
        return spec
    folder = spec.options.run.run_dir
    found = autosplit.choose(spec, Path(folder) if folder else None, world.device) if world.is_main else None
    names, note = world.broadcast_object(found)
    options = spec.options.replace(splits=tuple(names))
    return spec.replace(options=options, notes=(*spec.notes, note))


def _note_lost_run(folder: Path) -> None:
    from conveyor.run.folder import holds_run

    if restarts.starts() and not holds_run(folder):
        log.warning(
            "the job was started again and finds no run in %s: it begins anew. Machines that are to take over from each "
            "other need a --run-dir that all of them see.",
            folder,
        )


def _launched(spec: RunSpec, run: str) -> Any:
    """Start `spec.layout.workers` workers on this machine and wait for them."""
    from conveyor.launch.agent import JobFailedError, JobInterruptedError
    from conveyor.launch.agent import run as run_agent

    layout, options = spec.layout, spec.options
    plan = LaunchPlan(
        instances=layout.workers,
        threads=layout.threads,
        max_restarts=options.layout.max_restarts,
        all_output=False,
        grace=options.layout.grace + 5,
    )
    plan = dataclasses.replace(plan, environment={"CONVEYOR_BUDGET": describe(plan.budgets())})
    if run == TRAIN:
        options = options.replace(run_dir=_run_folder(spec))
    with scratch.folder("job") as folder:
        result = folder / "result.json"
        job = {
            "options": options.to_yaml(),
            "layout": (str(layout), spec.layout_note),
            "run": run,
            "result": str(result),
        }
        path = folder / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        try:
            run_agent(of_module("conveyor.launch.worker_process", str(path)), plan)
        except JobInterruptedError as stopped:
            # A worker that was asked to end early saved a checkpoint and has a result that says so.
            if not result.exists():
                raise KeyboardInterrupt(str(stopped)) from None
        except JobFailedError as error:
            _explain(error)
        return json.loads(result.read_text(encoding="utf-8")) if result.exists() else None


def _explain(error: Any) -> None:
    """A user's mistake stays one sentence; our own bug comes with the worker's traceback."""
    first = error.failure
    if first.exit_code == USER_ERROR or first.exit_code < 0:
        raise UserError(first.sentence()) from None
    raise RuntimeError(f"{first.sentence()}\n{first.trace}".rstrip()) from None


def _is_torchrun(place: Place) -> bool:
    """Whether a foreign torchrun started this worker and shares its store with it."""
    from conveyor.launch.rendezvous import has_torchrun_store

    return place.launcher == "torchrun" and has_torchrun_store() and not os.environ.get("CONVEYOR_STORE")


def _run_folder(spec: RunSpec, place: Place | None = None, number: int = 0) -> str:
    """The one folder of all workers and restarts: chosen before the first of them starts, or named by the job."""
    if spec.options.run.run_dir is not None:
        return spec.options.run.run_dir
    from conveyor.run.folder import DEFAULT_PARENT, choose, default_name

    if job := restarts.job() if place is None else place.job:
        return str(Path(DEFAULT_PARENT) / default_name(spec, job))
    folder = str(choose(spec))
    if place is None or not _is_torchrun(place):
        return folder
    from conveyor.launch.rendezvous import kept_by_torchrun

    return kept_by_torchrun(place, folder, number)


def work(job: Mapping[str, Any]) -> None:
    """What a worker started by `start` does."""
    place = detect(os.environ)
    if place is None:
        raise UserError("this worker was started without a rank: use `conveyor train` or `conveyor launch`.")
    from conveyor.options.file import parse_mapping

    options = Options.from_mapping(parse_mapping(job["options"], "the job file"), where="the job file")
    result = _joined([options], place, _Work(job["run"], chosen=job["layout"]))
    if place.rank == 0:
        Path(job["result"]).write_text(json.dumps(result, default=str), encoding="utf-8")


def under_launcher(options: Options, environment: Mapping[str, str]) -> Options:
    """The launcher's number of replicas overrides the program's own."""
    replicas = number(environment, "CONVEYOR_REPLICAS", options.batch.replicas)
    if replicas == options.batch.replicas:
        return options
    log.warning("the launcher says %d replicas in all: this overrules --replicas %d", replicas, options.batch.replicas)
    return options.replace(replicas=replicas)
