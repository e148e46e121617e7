"""One worker of a run: start or resume, train, leave the run folder in order."""

import contextlib
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint import store
from conveyor.checkpoint.lock import RunLock
from conveyor.checkpoint.state import State
from conveyor.errors import UserError, explained_memory
from conveyor.files import remove_unfinished
from conveyor.models import user_module as own_code
from conveyor.monitor.callbacks import Callbacks, on_every_worker
from conveyor.monitor.observers import append_log, make_observers, tell
from conveyor.monitor.progress import say
from conveyor.monitor.worker_profile import make_worker_profile
from conveyor.numerics.gpu_arithmetic import gpu_arithmetic
from conveyor.numerics.native import build
from conveyor.numerics.precision import Precision
from conveyor.numerics.threads import using_threads
from conveyor.run import folder as rundir
from conveyor.run.assemble import UserObjects, make_feed, make_prepare, make_session, make_validation
from conveyor.run.describe import opening_lines
from conveyor.run.finish import Result, finish
from conveyor.run.gemm_rate import share_of_peak
from conveyor.run.recompute_memory import recompute_note
from conveyor.run.rescue import rescue
from conveyor.run.start import begun_anew, starting_state, with_stored_threads
from conveyor.spec import RunSpec
from conveyor.training.events import Events
from conveyor.training.handover import Handover, folder_here
from conveyor.training.loop import train
from conveyor.training.session import Session
from conveyor.training.signals import Signals
from conveyor.training.stopping import Reason
from conveyor.world import restarts
from conveyor.world.world import World, device_for


def run(spec: RunSpec, world: World | None = None, own: UserObjects | None = None) -> Result:
    """Run `spec` to its end as one worker of `world`. Several workers need `run_dir` set, so that they agree on it."""
    world, own = world or World(device_for(spec.options.layout)), own or UserObjects()
    folder = rundir.choose(spec)
    spec = spec.replace(options=rundir.resolved_options(spec, folder))
    lock = RunLock(folder) if world.is_main else None
    threads, locked = using_threads(spec.layout.threads), lock or contextlib.nullcontext()
    with explained_memory(), threads, locked, Signals() as signals:
        state = starting_state(spec, folder, world)
        spec = with_stored_threads(spec, state)
        if world.is_main and state is None:
            spec = spec.replace(notes=(*spec.notes, *rundir.foreign_files(folder)))
        with using_threads(spec.layout.threads), gpu_arithmetic(spec.options.precision):
            result = _run(spec, world, own, folder, state, signals, lock)
    gc.collect()  # model, state and connections are in circles of references; a process may train many times
    return result


def _run(
    spec: RunSpec,
    world: World,
    own: UserObjects,
    folder: Path,
    state: State | None,
    signals: Signals,
    lock: RunLock | None,
) -> Result:
    if world.is_main:
        checkpoints.tidy(folder / store.CHECKPOINTS)
        remove_unfinished(folder)
    prepare = make_prepare(spec, world)
    session = make_session(spec, world, own, state, prepare)
    if state is None:
        session.restarts, session.updates_repeated = begun_anew(folder, world)
    validation = make_validation(session.spec, world, own, prepare)
    feed = make_feed(spec, world, own, prepare, session.update, session.lane.reads_data)
    during = spec.options.events.validation_mode == "during"
    if world.is_main:
        # From here on the folder holds a run; what went wrong before leaves it free for the next attempt.
        rundir.write_options(folder, spec.options)
    observers = make_observers(spec.options, folder) if world.is_main else []
    called = (
        [*own.callbacks, *_callbacks(spec.options.run.callback)] if world.is_main else on_every_worker(own.callbacks)
    )
    if called:
        observers.append(Callbacks(called))
    peak = share_of_peak(session.flops, spec, world.device) if world.is_main else None
    handover = Handover(session, folder_here())
    events = Events(session, folder, observers, validation if during else None, peak, lock)
    if world.is_main:
        announce(session, folder)
    for observer in observers:
        # What is done again is recorded again.
        observer.start(spec.to_json(), session.update - session.events_due)
    try:
        watch = make_worker_profile(
            spec.options.run, folder, world.rank, session.lane.module, on_cpu=world.device.type == "cpu"
        )
        with events, contextlib.closing(watch) as session.timing.watch, feed as batches:
            if session.update == 0 and spec.options.events.checkpoint_at_start:
                events.save()
            events.catch_up()
            train(session, batches, events, signals, handover)
        if session.reason is Reason.FOLDER_GONE:
            rescue(session, folder)
        if session.reason is Reason.START_AGAIN:
            # This worker must not exit before its peers have received their copies.
            world.barrier()
            raise restarts.StartedAgain
        result = finish(events, validation, signals.received, feed, prepare)
    except BaseException:
        # Writing now would create a removed folder again.
        reason = Reason.START_AGAIN if session.reason is Reason.START_AGAIN else Reason.FAILED
        record: dict[str, Any] = {"updates": session.update, "seconds": session.stopping.seconds, "reason": reason}
        tell([] if events.folder_is_gone() else observers, lambda one: one.end(record))
        handover.write()
        raise
    finally:
        session.lane.close()
    if world.is_main and events.writer.problem is not None:
        raise UserError(events.writer.problem)
    return result


def _callbacks(names: Sequence[str]) -> list[Any]:
    """The user's own code; what a stored run names is called only if the user named it too."""
    made = []
    for name in names:
        if own_code.is_admitted(name):
            made.append(own_code.imported(name, "callback")())
        else:
            say(f"note: --callback {name} is not called: give it again if you trust it")
    return made


def announce(session: Session, folder: Path) -> None:
    """The run in a few lines, before it starts; they stand in its log too."""
    options = session.spec.options
    if options.run.quiet or options.run.json_logs:
        return
    precision = Precision.from_options(options.precision, session.spec.half).describe(session.world.device)
    lines = opening_lines(session.spec, session.parameters, precision)
    if options.batch.recompute and session.world.depth == 1:
        lines.append(recompute_note(session.lane.module, session.spec, session.world.device) or "")
    if session.world.device.type == "cpu":
        lines.append(_without_kernels())
    told = [line for line in lines if line]
    for line in told:
        say(line)
    append_log(folder, told)


def _without_kernels() -> str:
    """One line if kernels are off: the run is the same within rounding, but slower."""
    missing = build.missing()
    why = "; ".join(dict.fromkeys(missing.values()))
    return f"without compiled kernels ({', '.join(missing)}): {why}; see `conveyor devices`" if missing else ""
