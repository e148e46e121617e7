"""Start a server as a process of its own, wait until it answers, stop it. No torch here."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conveyor import scratch
from conveyor.errors import UserError
from conveyor.processes import of_module
from conveyor.serve.settings import ServeSettings

READY_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready."""

    process: "subprocess.Popen[str]"
    url: str
    port: int
    grpc_port: int | None
    name: str
    version: str
    log: Path

    def stop(self, timeout: float = 60.0) -> int:
        return stop(self.process, timeout)


@contextlib.contextmanager
def running_server(settings: ServeSettings, ready_seconds: float = READY_SECONDS) -> Iterator[RunningServer]:
    """A server for the body of a `with` statement; its output goes to a file that an error message quotes."""
    import uvicorn  # noqa: F401  absent: one sentence of the command, not the end of the server's log

    settings.check()
    with scratch.folder("serve") as folder:
        ready, log = folder / "ready.json", folder / "server.log"
        settings = dataclasses.replace(settings, path=str(Path(settings.path).absolute()), ready_file=str(ready))
        with open(log, "w") as output:
            process = subprocess.Popen(
                of_module("conveyor.serve", settings.to_json()),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        server = None
        try:
            document = wait_ready(process, ready, ready_seconds)
            if document is None and process.poll() is None:
                raise UserError(f"the server was not ready within {ready_seconds:g} seconds")
            if document is None:
                words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"]
                raise UserError(f"the server ended before it was ready: {words[-1].removeprefix('conveyor: error: ')}")
            known = {key: document[key] for key in ("url", "port", "grpc_port", "name", "version")}
            server = RunningServer(process=process, log=log, **known)
            yield server
        finally:
            if server is not None:
                server.stop()
            else:
                process.kill()
                process.wait()


def wait_ready(process: "subprocess.Popen[Any]", ready: Path, seconds: float = READY_SECONDS) -> dict[str, Any] | None:
    """What a server's ready file says; none if the process ends before, or takes longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ready.exists():
            document: dict[str, Any] = json.loads(ready.read_text())
            return document
        if process.poll() is not None:
            return None
        time.sleep(0.05)
    return None


def stop(process: "subprocess.Popen[Any]", timeout: float = 60.0) -> int:
    """Send a server the stop signal and wait; returns its exit code (0: no request was lost)."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
