"""A whole job: on this machine, or on many through ssh. `run` is what `conveyor launch` calls."""

import contextlib
import dataclasses
import logging
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from conveyor.errors import UserError
from conveyor.launch import secret
from conveyor.launch.job import DEFAULT_PORT, LaunchPlan, host_command, local_host_index, ssh_command
from conveyor.processes import this_program

log = logging.getLogger(__name__)

END_SECONDS = 40.0
"""More than a worker has to save and end after a signal."""


def commands(argv: Sequence[str], plan: LaunchPlan) -> list[tuple[str, list[str]]]:
    """(host, command to run on it) for every host of the job."""
    hosts = plan.hosts or ("localhost",)
    if plan.num_hosts == 1:
        return [(hosts[0], list(argv))]
    return [(host, host_command(plan, index, argv)) for index, host in enumerate(hosts)]


def run(argv: Sequence[str], plan: LaunchPlan) -> None:
    """Run the job to its end.

    Raises `agent.JobFailedError` with the first failing worker's own error and `agent.JobInterruptedError` after a
    signal; in both cases no worker is left behind.
    """
    if not argv:
        raise UserError("there is nothing to start: give the command of a worker after --.")
    argv = this_program(argv)
    from conveyor.launch.agent import JobInterruptedError
    from conveyor.launch.agent import run as run_here

    if plan.num_hosts == 1 or plan.this_host is not None:
        run_here(argv, plan)
        return
    here = local_host_index(plan.hosts)
    if here == 0:
        plan = dataclasses.replace(plan, port=_usable_port(plan.port))
    known = plan.secret or (secret.load(os.environ, plan.secret_file).decode() if plan.secret_file else secret.new())
    plan = dataclasses.replace(plan, secret=known, secret_file=None)
    others = _start_others(argv, plan, here)
    grace = 0.0
    try:
        if here is not None:
            run_here(argv, dataclasses.replace(plan, this_host=here))
        _wait(others)
    except JobInterruptedError:
        # The workers have agreed to save and end: the other hosts are about to end by themselves.
        grace = plan.grace
        raise
    finally:
        _end(others, grace)


def _usable_port(port: int) -> int:
    """The port, or another one when it is the default and a job on this machine uses it already."""
    for wanted in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", wanted))
            except OSError:
                if wanted != DEFAULT_PORT:
                    raise UserError(f"port {wanted} is taken: choose another --port, or end what uses it.") from None
                continue
            found = int(probe.getsockname()[1])
        if found != port:
            log.warning("port %d is taken, so the job meets at port %d", port, found)
        return found
    raise UserError("no port is free on this machine.")


def _start_others(
    argv: Sequence[str], plan: LaunchPlan, here: int | None
) -> list[tuple[str, "subprocess.Popen[bytes]"]]:
    """The shares of the other hosts, each behind an ssh of its own.

    They read the secret from standard input, where no other user can see it; end of file means that this process has
    ended.
    """
    plan = dataclasses.replace(plan, secret_file="-")
    started: list[tuple[str, subprocess.Popen[bytes]]] = []
    for index, host in enumerate(plan.hosts):
        if index == here:
            continue
        # A shell behind ssh does not have this environment on its path.
        command = this_program(host_command(plan, index, argv))
        if local_host_index([host]) is None:
            command = ssh_command(host, command, str(Path.cwd()))
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE)
        except OSError as error:
            _end(started)
            why = (
                "is not installed here"
                if isinstance(error, FileNotFoundError)
                else f"cannot be started ({error.strerror})"
            )
            raise UserError(
                f"ssh {why}: run the commands that --print shows on each host, or use --emit slurm or k8s."
            ) from None
        started.append((host, process))
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.write(plan.secret.encode() + b"\n")
            process.stdin.flush()
        log.info("started the share of %s", host)
    return started


def _wait(others: Sequence[tuple[str, "subprocess.Popen[bytes]"]]) -> None:
    """Until all have ended well, or one has failed."""
    from conveyor.launch.agent import JobFailedError
    from conveyor.launch.failure import Failure

    while True:
        codes = [(host, process.poll()) for host, process in others]
        for host, code in codes:
            if code:
                raise JobFailedError(Failure(0, code, f"the share of host {host} ended with exit code {code}."))
        if all(code == 0 for _, code in codes):
            return
        time.sleep(0.1)


def _end(others: Sequence[tuple[str, "subprocess.Popen[bytes]"]], grace: float = 0.0) -> None:
    """Wait `grace` seconds, then end what still runs: at end of file on its input each share saves and ends."""
    if not _ended(others, grace):
        for _, process in others:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        _ended(others, END_SECONDS)
    for _, process in others:
        process.kill()
        process.wait()


def _ended(others: Sequence[tuple[str, "subprocess.Popen[bytes]"]], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(process.poll() is None for _, process in others):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
