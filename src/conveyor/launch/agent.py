"""This machine's share of a job under torchrun's elastic agent.

Only this module and `launch.rendezvous_state` use the agent's private parts.

What we add to the agent: launchers and workers find each other through a store of our own, which requires the job's
secret (`launch.rendezvous`); a job starts again only when that can help (a worker was killed or lost a peer, never
after an ordinary error); the first failing worker's error message is kept.
"""

import contextlib
import logging
import os
import signal
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from conveyor import scratch
from conveyor.errors import UserError
from conveyor.launch import failure as failures
from conveyor.launch import rendezvous, secret
from conveyor.launch.failure import Failure
from conveyor.launch.interface import address_of, interface_with, own_address, use_interface
from conveyor.launch.job import LaunchPlan
from conveyor.launch.rendezvous_state import JsonBackend
from conveyor.launch.store import UNIX, Server, Store
from conveyor.processes import handling, of_module
from conveyor.training import handover
from conveyor.world import restarts

log = logging.getLogger(__name__)

ABSENCE_SECONDS = 3.0
"""How long a machine may be missing before it counts as lost; one that joins again is missing for a moment."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class JobFailedError(Exception):
    """A job ended because a worker failed; `failure` says which one and how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence())
        self.failure = failure


class JobInterruptedError(Exception):
    """A signal ended the job; all its workers are gone."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class _Agent(LocalElasticAgent):
    """The elastic agent with our rule of when to start again."""

    first_failure: Failure | None = None
    starts = 0
    """Begins with those of the job that this launcher is part of, such as one that SLURM has queued again."""
    between_starts = False
    """Whether workers were stopped in order to start them again, and have not been yet."""
    _complete_at = 0.0

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        self._complete_at = time.monotonic()
        handler: Any = worker_group.spec.rdzv_handler
        # Workers that start again must not find the addresses of dead ones.
        os.environ[rendezvous.ROUND] = str(handler._state_holder.state.round)
        # All machines of a job use one number for it, and keep it when they start again.
        number = handler._store.compare_set(f"conveyor/{handler.get_run_id()}", "", uuid.uuid4().hex[:12])
        os.environ["CONVEYOR_JOB"] = number.decode()

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self.between_starts = True
        handover.announce_start()
        try:
            super()._restart_workers(worker_group)
        finally:
            # A signal to this launcher raises here: with the announcement withdrawn, workers that get it end the run.
            handover.withdraw_start()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        handover.withdraw_start()
        self.between_starts = False
        # A new machine restarts the workers too, and torchrun does not count that: a worker must know to resume.
        os.environ["CONVEYOR_STARTS"] = str(self.starts)
        self.starts += 1
        return dict(super()._start_workers(worker_group))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.FAILED:
            found = [failures.read(rank, one.exitcode, one.error_file) for rank, one in result.failures.items()]
            if all(one.exit_code == failures.HANDED_OVER for one in found):
                # Another machine's launcher stopped all workers, to start them again: that is no failure of this one.
                self._remaining_restarts += 1
                return result
            self.first_failure = failures.first(found)
            if any(one.is_own and not one.may_restart for one in found):
                self._remaining_restarts = 0
        elif result.state == WorkerState.HEALTHY and self._machine_lost(worker_group):
            self.first_failure = Failure(
                worker_group.group_rank or 0, failures.LOST_PEER, "a machine of the job is gone."
            )
            result = RunResult(state=WorkerState.FAILED)
        if result.state == WorkerState.FAILED and self._remaining_restarts > 0:
            assert self.first_failure is not None
            log.warning("%s Going on with the workers started again.", self.first_failure.sentence())
        return result

    def _machine_lost(self, worker_group: WorkerGroup) -> bool:
        """Whether a machine of this round has been missing for `ABSENCE_SECONDS` and no machine waits to join.

        A machine that lost its power or its cable closes no connection: its peers' workers would wait for minutes.
        """
        handler: Any = worker_group.spec.rdzv_handler
        state = handler._state_holder.state
        machines = worker_group.group_world_size or 1
        # A machine that is alone and was suspended finds itself missing; no other machine can be.
        if machines == 1 or len(state.participants) >= machines or state.wait_list:
            self._complete_at = time.monotonic()
        return time.monotonic() - self._complete_at > ABSENCE_SECONDS


def run(argv: Sequence[str], plan: LaunchPlan) -> None:
    """Start this host's workers, each running `argv`, and wait for the end of the job.

    Raises JobFailedError with the first failing worker's own error, JobInterruptedError after one of SIGNALS.
    """
    with (
        _environment(plan.worker_environment()),
        _without_agent_log(),
        # The agent replaces signal handlers and never restores them; a caller from Python wants its own back.
        handling({number: signal.getsignal(number) or signal.SIG_DFL for number in _handled_signals()}),
        scratch.folder("launch") as folder,
        scratch.folder("handover", in_memory=True) as memory,
    ):
        os.environ[handover.VARIABLE] = str(memory)
        known = _secret(plan)
        os.environ[secret.VARIABLE] = known.decode()
        server = _server(plan, known, folder)
        try:
            os.environ[rendezvous.ADDRESS] = server.address if server else f"{plan.meeting_host}:{plan.port}"
            with contextlib.closing(Store(os.environ[rendezvous.ADDRESS], known)) as store:
                _run(argv, plan, store, folder)
        except dist.DistNetworkError as error:
            raise UserError(_rendezvous_error(plan, None, RendezvousConnectionError(str(error)))) from error
        finally:
            if server is not None:
                server.close()


def _secret(plan: LaunchPlan) -> bytes:
    if plan.num_hosts == 1:
        return secret.new().encode()
    return plan.secret.encode() if plan.secret else secret.load(os.environ, plan.secret_file)


def _server(plan: LaunchPlan, known: bytes, folder: Path) -> Server | None:
    """The store of the job, on its first host."""
    if plan.num_hosts == 1:
        return Server(f"{UNIX}{folder / 'store'}", known)
    others = [host.rpartition("@")[2] for host in plan.hosts]
    mine = others.pop(plan.this_host or 0)
    if plan.interface is None:
        with contextlib.suppress(UserError):
            if interface := interface_with(own_address(mine, others)):
                use_interface(os.environ, interface)
    if plan.this_host:
        return None
    here = address_of(plan.interface) if plan.interface else own_address(mine, others)
    return Server(f"{here}:{plan.port}", known)


def _run(argv: Sequence[str], plan: LaunchPlan, store: Store, folder: Path) -> None:
    several = plan.num_hosts > 1
    run_id = plan.job if several else uuid.uuid4().hex[:12]
    address = plan.hosts[plan.this_host or 0].rpartition("@")[2] if several else plan.meeting_host
    handler = DynamicRendezvousHandler.from_backend(
        run_id,
        store,
        JsonBackend(store, run_id),
        min_nodes=plan.min_hosts or plan.num_hosts,
        max_nodes=plan.num_hosts,
        local_addr=address,
        timeout=RendezvousTimeout(join=timedelta(seconds=plan.timeout), last_call=timedelta(seconds=1)),
        # A machine that vanished is noticed after 10 s; a busy one may be silent for some.
        keep_alive_interval=1,
        keep_alive_max_attempt=10,
    )
    python, *enter = of_module("conveyor.launch.pin_and_exec")
    spec = WorkerSpec(
        role="worker",
        local_world_size=plan.workers_per_host,
        entrypoint=python,
        args=(*enter, *argv),
        rdzv_handler=handler,
        max_restarts=plan.max_restarts,
        monitor_interval=0.1,
        local_addr=address,
    )
    agent = _Agent(
        spec=spec,
        logs_specs=DefaultLogsSpecs(
            log_dir=str(folder),
            tee=Std.ALL if plan.tagged else Std.NONE,
            local_ranks_filter=None if plan.all_output or plan.this_host else {0},
        ),
        exit_barrier_timeout=60,
        log_line_prefix_template="[${rank}] " if plan.tagged else None,
        shutdown_timeout=plan.grace,
    )
    agent.starts = restarts.starts()
    closing = True
    try:
        result = agent.run()
        if result.is_failed():
            raise JobFailedError(agent.first_failure or Failure(0, 1))
    except SignalException as stopped:
        # The rendezvous stays open for the other machines: only this one has left.
        closing = not several
        raise JobInterruptedError(int(stopped.sigval)) from None
    except (RendezvousTimeoutError, RendezvousClosedError, RendezvousConnectionError, RendezvousStateError) as error:
        raise UserError(_rendezvous_error(plan, agent.first_failure, error)) from error
    finally:
        # The state of workers that handed over and will not be started again must outlive this process.
        if agent.between_starts and (kept := handover.keep()) is not None:
            log.warning("The state of the run is saved in %s: go on with conveyor restore.", kept)
        if closing:
            handler.shutdown()


def _rendezvous_error(plan: LaunchPlan, first: Failure | None, error: Exception) -> str:
    if first is not None:
        return first.sentence()
    where = f"{plan.meeting_host}:{plan.port}"
    if isinstance(error, RendezvousClosedError):
        return f"the job at {where} has ended, or another machine failed: its own output says why."
    if isinstance(error, RendezvousStateError):
        return f"{error}: every machine of the job at {where} needs the same version of conveyor."
    if isinstance(error, RendezvousConnectionError):
        return (
            f"no connection to {where}: the job has ended, or its first host is not up; check the address, the port and the "
            "firewall."
        )
    return (
        f"not all of the {plan.num_hosts} hosts met at {where} within {plan.timeout:.0f} s: start the command on each host, "
        "and check the address, the port and the firewall."
    )


def _handled_signals() -> list[signal.Signals]:
    """The signals that end the job; one that the caller ignores (nohup and SIGHUP) stays ignored."""
    return [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """The agent hands its own environment to the workers: set ours, and put everything back afterwards."""
    before = dict(os.environ)
    os.environ.update(variables)
    # A worker must find this package however the caller found it.
    os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    # Otherwise the agent opens one of torch's stores for the workers, on all interfaces.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(one.name for one in _handled_signals())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _without_agent_log() -> Iterator[None]:
    """Hide the agent's log: it reports every signal it sends as a warning, which is of use to its developers only."""
    package = "torch.distributed.elastic"
    names = {package, *(name for name in logging.root.manager.loggerDict if name.startswith(package))}
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.distributed")
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
