"""The HTTP side: addresses, limits, errors. Bodies are read here, with every limit applied while they arrive."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import PurePath
from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conveyor.infer.predict import above
from conveyor.serve import openapi
from conveyor.serve.deadline import Limit
from conveyor.serve.errors import Refused, TooLarge, TooSlow, Unauthenticated, Unsupported
from conveyor.serve.hosts import Hosts
from conveyor.serve.metrics import CONTENT_TYPE
from conveyor.serve.protocols import http_tf, http_v2
from conveyor.serve.service import Asked, Service
from conveyor.serve.settings import ServeSettings

PAGE_FILES = {
    "/": "page.html", "/page.js": "page.js", "/page.css": "page.css", "/docs": "docs.html", "/docs.js": "docs.js",
}  # fmt: skip
OPEN_PATHS = (*PAGE_FILES, "/v2/health/live", "/v2/health/ready", "/favicon.ico")
"""Paths that need no token: the page itself (its requests do need it) and the health checks of load balancers."""
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_logger = logging.getLogger(__name__)


def make_app(service: Service) -> ASGIApp:
    """The whole HTTP interface of a server."""
    http = Http(service)
    routes = [
        *(Route(path, http.page) for path in PAGE_FILES),
        Route("/classify", http.classify, methods=["POST"]),
        Route("/metrics", http.metrics),
        Route("/openapi.json", http.openapi),
        Route("/v2", http.server_metadata),
        Route("/v2/health/live", http.live),
        Route("/v2/health/ready", http.ready),
    ]
    for model in ("/models/{name}", "/models/{name}/versions/{version}"):
        routes += [
            Route(f"/v2{model}", http.model_metadata),
            Route(f"/v2{model}/ready", http.model_ready),
            Route(f"/v2{model}/infer", http.infer, methods=["POST"]),
            Route(f"/v1{model}:predict", http.predict, methods=["POST"]),
            Route(f"/v1{model}", http.tf_status),
        ]
    handlers: dict[Any, Any] = {404: _plain_error, 405: _plain_error, Refused: _refusal}
    return CheckMiddleware(Starlette(routes=routes, exception_handlers=handlers), service)


class Http:
    """The handlers, one method per address."""

    def __init__(self, service: Service) -> None:
        self._service = service
        folder = resources.files("conveyor.serve")
        self._page = {path: folder.joinpath(file).read_text(encoding="utf-8") for path, file in PAGE_FILES.items()}

    async def page(self, request: Request) -> Response:
        path = request.url.path
        media_type = PAGE_TYPES[PurePath(PAGE_FILES[path]).suffix]
        return Response(self._page[path], media_type=media_type, headers=PAGE_HEADERS)

    async def live(self, request: Request) -> Response:
        return _json({"live": True})

    async def ready(self, request: Request) -> Response:
        return _json({"ready": self._service.ready}, 200 if self._service.ready else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics_text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        return _json(openapi.document(self._service.model()))

    async def server_metadata(self, request: Request) -> Response:
        return _json(http_v2.server_metadata())

    async def model_metadata(self, request: Request) -> Response:
        return _json(http_v2.model_metadata(self._service.model(**request.path_params)))

    async def model_ready(self, request: Request) -> Response:
        model = self._service.model(**request.path_params)
        return _json({"name": model.name, "ready": self._service.ready}, 200 if self._service.ready else 503)

    async def tf_status(self, request: Request) -> Response:
        return _json(http_tf.status(self._service, **request.path_params))

    async def infer(self, request: Request) -> Response:
        async with self._asked("http-v2", request) as asked:
            async with received(self._service, request, asked) as body:
                header_length = request.headers.get(http_v2.BINARY_HEADER)
                content, headers = await http_v2.infer(self._service, asked, body, header_length)
            asked.spend("encode")
            return _timed(asked, Response(content, headers=headers))

    async def predict(self, request: Request) -> Response:
        async with self._asked("http-tensorflow", request) as asked:
            async with received(self._service, request, asked) as body:
                content = await http_tf.predict(self._service, asked, body)
            asked.spend("encode")
            return _timed(asked, Response(content, headers={"Content-Type": "application/json"}))

    async def classify(self, request: Request) -> Response:
        """The request of the page: the bytes of one photograph in, the five best classes out, or all labels."""
        async with self._asked("http-page", request) as asked:
            model = asked.model
            kind = request.headers.get("content-type", "").partition(";")[0]
            if kind in ("multipart/form-data", "application/json"):
                raise Unsupported(
                    f"{kind} is not taken here: send the file itself as the body, as curl --data-binary @photo.jpg "
                    f"does; JSON goes to /v1/models/{model.name}:predict"
                )
            async with received(self._service, request, asked) as body:
                images = await self._service.decode(asked, [body])
            logits = await self._service.infer(asked, images)
            row = model.probabilities(logits)[0]
            best = [
                {"class": index, "label": label, "probability": probability}
                for index, label, probability in model.best(row)
            ]
            found: dict[str, Any] = {"model": model.name, "version": model.version, "best": best}
            if model.thresholds is not None:
                found["labels"] = [
                    {"class": index, "label": model.label(index), "probability": float(row[index])}
                    for index in above(row, model.thresholds)
                ]
            elif row.max() < model.abstain_below:
                found["abstains"] = True
            found["milliseconds"] = 1000 * asked.spend("encode")
            return _timed(asked, _json(found))

    @contextlib.asynccontextmanager
    async def _asked(self, protocol: str, request: Request) -> AsyncIterator[Asked]:
        """A request with its time limit, for the version that its address names, else the one in service."""
        async with Limit(self._service.settings.timeout) as limit:
            with self._service.request(protocol, limit, **request.path_params) as asked:
                yield asked


@contextlib.asynccontextmanager
async def received(service: Service, request: Request, asked: Asked) -> AsyncIterator[bytes]:
    """The body of a request, read within the limits of size and time; its memory counts until the end of the block."""
    if request.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise Unsupported("compressed requests are not accepted: send the body as it is")
    limit, held = service.settings.max_body, 0
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise TooLarge(f"the request has {declared} bytes: at most {limit} are accepted")
    parts: list[bytes] = []
    try:
        try:
            async for part in request.stream():
                if held + len(part) > limit:
                    raise TooLarge(f"the request has more than {limit} bytes")
                service.hold(len(part))
                held += len(part)
                parts.append(part)
        except asyncio.CancelledError:
            if asked.limit.up:
                raise TooSlow(f"the request did not arrive within {asked.limit.seconds:g} seconds") from None
            raise
        except ClientDisconnect:
            raise Refused("the connection ended before the request was complete") from None
        asked.spend("receive")
        body = b"".join(parts)
        parts.clear()
        yield body
    finally:
        service.release(held)


class Guarded(Protocol):
    """What is behind the checks: a model server, or the page of a run."""

    @property
    def settings(self) -> ServeSettings: ...

    @property
    def draining(self) -> bool: ...

    def allows(self, authorization: bytes) -> bool: ...


class CheckMiddleware:
    """Runs before every handler: checks `Host` and the token, and answers an unexpected exception with an error."""

    def __init__(self, app: ASGIApp, service: Guarded) -> None:
        self._app, self._service, self._hosts = app, service, Hosts(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def passing(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if self._service.draining or message["status"] in (408, 413, 415):
                    # What is left of the refused body is not read: the connection cannot be used again.
                    message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        try:
            self._hosts.check(scope["method"], scope["headers"])
            if not self._allowed(scope):
                raise Unauthenticated("a bearer token is needed: send the header 'Authorization: Bearer TOKEN'")
            await self._app(scope, receive, passing)
        except Refused as error:
            await _error(error)(scope, receive, passing)
        except Exception:
            _logger.exception("an error of the server itself")
            if not started:
                await _json({"error": "the server failed; its log says why"}, 500)(scope, receive, passing)

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return scope["path"] in OPEN_PATHS or self._service.allows(given)


def _json(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, headers={"Content-Type": "application/json"})


def _error(error: Refused) -> Response:
    response = _json({"error": str(error)}, error.status)
    if error.status == 429:
        response.headers["Retry-After"] = "1"
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _error(error)


def _timed(asked: Asked, response: Response) -> Response:
    """The answer with the milliseconds of its phases in the header `Server-Timing`."""
    response.headers["Server-Timing"] = ", ".join(f"{one};dur={1000 * s:.3f}" for one, s in asked.spent.items())
    return response


async def _plain_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    allowed = (getattr(error, "headers", None) or {}).get("Allow", "another method")
    said = "there is nothing at this address" if status == 404 else f"this address takes {allowed}"
    if request.method == "POST":
        said += ": send photographs to /classify"
    return _json({"error": f"{said}; /docs lists the addresses, /openapi.json describes them"}, status)
