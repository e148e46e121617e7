"""`conveyor report --watch`: the page of a run, or of several, served on this machine and refreshed while they go on."""

import asyncio
import hashlib
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from conveyor.checkpoint.lock import is_held
from conveyor.errors import UserError
from conveyor.report.inputs import read_run
from conveyor.report.page import render, script, style
from conveyor.serve.app import PAGE_HEADERS, CheckMiddleware
from conveyor.serve.connections import sweep
from conveyor.serve.server import HttpServer, bind, listen, uvicorn_settings
from conveyor.serve.settings import ServeSettings

Say = Callable[[str], None]
HEADERS = {**PAGE_HEADERS, "Cache-Control": "no-store"}


class Watched:
    """The runs of a page: their state by the files, and the page as of that state, rendered at most once."""

    draining = False

    def __init__(self, folders: Sequence[str | Path], settings: ServeSettings, checkpoint: str | None = None) -> None:
        self.settings, self._checkpoint = settings, checkpoint
        self._folders = [Path(folder) for folder in folders]
        self._page, self._stamp = "", ""
        self._turn = asyncio.Lock()

    def allows(self, authorization: bytes) -> bool:
        return True

    def stamp(self) -> str:
        """Changes whenever a file of the runs is written."""
        found = []
        for folder in self._folders:
            found.append(str(is_held(folder)))
            for path in sorted((*folder.glob("*.csv"), *folder.glob("*.json"), *folder.glob("*/*.json"))):
                try:
                    about = path.stat()
                except OSError:  # replaced at this moment
                    continue
                found.append(f"{path.name} {about.st_mtime_ns} {about.st_size}")
        return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]

    def render(self) -> str:
        """The page as the files are now."""
        return render([read_run(folder) for folder in self._folders], checkpoint=self._checkpoint, live=True)

    async def page(self, request: Request) -> Response:
        async with self._turn:
            stamp = await asyncio.to_thread(self.stamp)
            if stamp != self._stamp:
                try:
                    self._page, self._stamp = await asyncio.to_thread(self.render), stamp
                except UserError as problem:  # a folder that was moved: what was known stays
                    if not self._page:
                        return Response(f"{problem}\n", 503, HEADERS, "text/plain")
            return Response(self._page, headers=HEADERS, media_type="text/html")

    async def state(self, request: Request) -> Response:
        stamp = await asyncio.to_thread(self.stamp)
        return Response(json.dumps({"stamp": stamp}), headers=HEADERS, media_type="application/json")

    async def style(self, request: Request) -> Response:
        return Response(style(), headers=HEADERS, media_type="text/css")

    async def script(self, request: Request) -> Response:
        return Response(script(), headers=HEADERS, media_type="text/javascript")

    def app(self) -> ASGIApp:
        """These four addresses and no other; no part of an address is ever a file's name."""
        routes = [
            Route("/", self.page),
            Route("/state", self.state),
            Route("/report.css", self.style),
            Route("/report.js", self.script),
        ]
        return CheckMiddleware(Starlette(routes=routes), self)


def watch(folders: Sequence[str | Path], port: int, checkpoint: str | None = None, say: Say = print) -> int:
    """Serve the page on loopback until SIGINT or SIGTERM."""
    settings = ServeSettings(path=str(folders[0]), port=port).check()
    return asyncio.run(_serve(Watched(folders, settings, checkpoint), say))


async def _serve(watched: Watched, say: Say) -> int:
    watched.render()  # a folder without a run is refused at once
    settings, loop, leave = watched.settings, asyncio.get_running_loop(), asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, leave.set)
    listener = bind(settings.host, settings.port)
    listen(listener, settings.host, settings.port)
    http = HttpServer(uvicorn.Config(watched.app(), **uvicorn_settings(settings)), settings.timeout)
    running = loop.create_task(http.serve(sockets=[listener]))
    sweeping = loop.create_task(sweep(http, settings.timeout))
    say(f"the page is at http://{settings.host}:{listener.getsockname()[1]}/ until Ctrl-C")
    await leave.wait()
    sweeping.cancel()
    http.should_exit = http.force_exit = True
    await running
    return 0
