"""Run a server: bind, load, answer, and leave without losing a request."""

import asyncio
import contextlib
import gc
import json
import math
import os
import signal
import socket
import ssl
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image

from conveyor.errors import UserError
from conveyor.files import make_parent, write_atomically
from conveyor.options.units import many
from conveyor.serve import log
from conveyor.serve.app import make_app
from conveyor.serve.connections import LimitedProtocol, drain_connections, sweep
from conveyor.serve.hosts import Hosts
from conveyor.serve.protocols.grpc_server import make_server
from conveyor.serve.service import Service
from conveyor.serve.settings import NO_GRPC, ServeSettings

Say = Callable[[str], None]
BACKLOG = 2048
CLOCK_SECONDS = 0.05
"""A timer may fire this much too early."""
QUIET_SECONDS, MOST_QUIET_SECONDS = 0.2, 2.0
"""gRPC stops after this long without a call; and the longest wait for that."""


def serve(settings: ServeSettings, say: Say = lambda text: None) -> int:
    """Serve until SIGTERM or SIGINT; 0 when every accepted request was answered."""
    settings = settings.check()
    _check_files(settings)
    # The size of an image is checked against our own limit right after its header is read.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    with log.to_standard_error() as lines:
        try:
            import uvloop
        except ImportError:
            return asyncio.run(_serve(settings, say, lines))
        return uvloop.run(_serve(settings, say, lines))


def _check_files(settings: ServeSettings) -> None:
    """Try the files that are needed once the model is loaded, which may take minutes."""
    if settings.tls_cert and settings.tls_key:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                settings.tls_cert, settings.tls_key, password=lambda: ""
            )
        except OSError as error:  # unreadable, no PEM, a key of another certificate, a key behind a password
            raise UserError(
                f"--tls-cert {settings.tls_cert} and --tls-key {settings.tls_key} are no certificate with its key in PEM "
                f"form, or the key needs a password: {error.strerror or error}"
            ) from None
    if settings.ready_file:
        folder = Path(settings.ready_file).absolute().parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UserError(f"--ready-file {settings.ready_file} cannot be written: {error.strerror}") from None


async def _stop_grpc(service: Service, server: Any, drain: float) -> None:
    """Refuse new calls with an error that says so until none come; then stop.

    The library cancels calls that reach it while it stops, and their callers could not tell that nothing was done.
    """
    begun = service.refuses_calls_at = time.monotonic()
    ends = begun + min(MOST_QUIET_SECONDS, drain)
    while time.monotonic() < min(ends, service.refuses_calls_at + QUIET_SECONDS):
        await asyncio.sleep(QUIET_SECONDS / 10)
    await server.stop(grace=max(0.0, begun + drain - time.monotonic()))


async def _serve(settings: ServeSettings, say: Say, lines: log.LogLines) -> int:
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, leave.set)
    listener = bind(settings.host, settings.port)
    port = listener.getsockname()[1]
    try:
        if (second := _wanted_grpc_port(settings, port)) > 0:
            bind(settings.host, second, "--grpc-port").close()  # taken: told now, and not after minutes of loading
    except UserError:
        listener.close()
        raise
    service = Service(settings)
    # Engine processes start before gRPC has threads of its own.
    loading = loop.create_task(service.start())
    leaving = loop.create_task(leave.wait())
    await asyncio.wait((loading, leaving), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        listener.close()
        return 0
    try:
        await loading
        listen(listener, settings.host, port)
        grpc_server, grpc_port = await _start_grpc(service, port)
    except BaseException:
        listener.close()
        await service.close()
        raise
    http = HttpServer(uvicorn.Config(make_app(service), **uvicorn_settings(settings)), settings.timeout)
    running = loop.create_task(http.serve(sockets=[listener]))
    sweeping = loop.create_task(sweep(http, settings.timeout, lines.sum_up))
    while not http.started and not running.done():
        await asyncio.sleep(0.01)
    gc.collect()
    gc.freeze()  # these objects stay alive: the collector need not scan them again every few requests
    _announce(service, port, grpc_port, say)
    await asyncio.wait((leaving, running), return_when=asyncio.FIRST_COMPLETED)
    service.draining = True
    say(
        f"stopping: no longer ready, {settings.drain_delay:g} s for requests on their way, then new connections are refused"
    )
    await asyncio.sleep(settings.drain_delay)
    sweeping.cancel()
    await drain_connections(listener, http)
    http.should_exit = True
    service.patience_ends = time.monotonic() + settings.drain - CLOCK_SECONDS
    stopping = [running]
    if grpc_server is not None:
        stopping.append(loop.create_task(_stop_grpc(service, grpc_server, settings.drain)))
    await asyncio.gather(*stopping)
    await service.close()
    say(
        f"stopped: {many(service.accepted, 'request')} accepted, {service.answered} answered, {service.refused} refused, "
        f"{service.cancelled} cancelled by their callers, {service.lost} lost"
    )
    return 0 if service.lost == 0 else 1


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers (the signals are ours), and with our time limit for TLS handshakes."""

    def __init__(self, config: uvicorn.Config, timeout: float) -> None:
        super().__init__(config)
        self._tls_timeout = timeout if config.is_ssl else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def protocol() -> LimitedProtocol:
            return LimitedProtocol(config=self.config, server_state=self.server_state, app_state={})

        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=self.config.ssl,
                backlog=BACKLOG,
                ssl_handshake_timeout=self._tls_timeout,
                ssl_shutdown_timeout=self._tls_timeout,
            )
            for each in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening socket; an address that is taken or not ours is a user's mistake."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:  # the one after 65535
        listener.close()
        raise _cannot_listen(host, port, error, flag) from None
    listener.set_inheritable(False)
    return listener


def listen(listener: socket.socket, host: str, port: int) -> None:
    """Two servers that are started together may both bind the port; the first to listen has it."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: Exception, flag: str = "--port") -> UserError:
    why = getattr(error, "strerror", None) or error
    return UserError(f"cannot listen on {host} port {port}: {why}; choose another {flag} or --host")


def uvicorn_settings(settings: ServeSettings) -> dict[str, Any]:
    return {
        "log_config": None, "access_log": False, "lifespan": "off", "server_header": False, "backlog": BACKLOG,
        "timeout_keep_alive": 30, "timeout_graceful_shutdown": max(1, math.ceil(settings.drain)), "ws": "none",
        "proxy_headers": False, "ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key,
    }  # fmt: skip


def _wanted_grpc_port(settings: ServeSettings, http_port: int) -> int:
    """The port to ask for; 0: any, -1: none."""
    return settings.grpc_port if settings.grpc_port is not None else (http_port + 1 if settings.port else 0)


async def _start_grpc(service: Service, http_port: int) -> tuple[Any, int | None]:
    import grpc

    settings = service.settings
    wanted = _wanted_grpc_port(settings, http_port)
    if wanted == NO_GRPC:
        return None, None
    server = make_server(service)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{wanted}"
    try:
        if settings.tls_cert and settings.tls_key:
            pair = (Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes())
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise UserError(f"cannot listen on {address} for gRPC: choose another --grpc-port, or --no-grpc")
    await server.start()
    return server, port


def _announce(service: Service, port: int, grpc_port: int | None, say: Say) -> None:
    settings, model = service.settings, service.model()
    scheme = "https" if settings.tls_cert else "http"
    address = f"{scheme}://{'[' + settings.host + ']' if ':' in settings.host else settings.host}:{port}"
    for line in (model.described["chosen"], model.described["note"]):
        if line:
            say(line)
    if settings.host not in ("127.0.0.1", "::1", "localhost") and settings.token is None:
        say(
            f"note: {settings.host} can be reached from other machines and no token is set (see --token-file); by name only "
            f"as {', '.join(Hosts(settings).names[2:])} (see --host-name)"
        )
    grpc_text = f", gRPC port {grpc_port}" if grpc_port else ""
    say(
        f"serving {model.name} version {model.version} at {address}{grpc_text}: engine {model.described['engine']}, "
        f"{model.described['precision']}, {model.pool.count} x {many(model.pool.threads, 'thread')}, "
        f"batches of {', '.join(str(size) for size in model.sizes)}"
    )
    if settings.ready_file:
        document = {
            "url": address,
            "port": port,
            "grpc_port": grpc_port,
            "name": model.name,
            "version": model.version,
            "pid": os.getpid(),
        }
        make_parent(settings.ready_file)
        write_atomically(settings.ready_file, json.dumps(document))
