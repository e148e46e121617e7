"""Checks of `Host` and `Origin`: a page from another site must not make a browser send requests to this server.

A page at a name that its owner points to 127.0.0.1 (DNS rebinding) is, to the browser, of the same origin as this
server: only the name in `Host` shows the difference. An address instead of a name cannot be pointed elsewhere. Where a
token is needed no name is checked: the page does not have the token. No torch here.
"""

import fnmatch
import ipaddress
import re
import socket
from collections.abc import Iterable

from conveyor.serve.errors import Forbidden, Misdirected, Refused
from conveyor.serve.settings import ServeSettings

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+?)\.?(?::\d{1,5})?")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Hosts:
    """The names that a server answers to."""

    def __init__(self, settings: ServeSettings) -> None:
        machine = socket.gethostname().lower()
        known = ("localhost", "*.localhost", machine, machine.partition(".")[0], settings.host.lower())
        self.names = (*known, *(name.lower() for name in settings.host_name))
        self._any_name = settings.token is not None

    def check(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise `Refused` for a request with another server's name, or from a page of another origin."""
        given: dict[bytes, list[str]] = {b"host": [], b"origin": []}
        for name, value in headers:
            if name in given:
                given[name].append(value.decode("latin-1").lower())
        found = _AUTHORITY.fullmatch(given[b"host"][0]) if len(given[b"host"]) == 1 else None
        if found is None:
            raise Refused("a request needs one Host header with a name or an address")
        if not self._any_name and not self._answers_to(found[1]):
            raise Misdirected(
                f"this server does not answer to the name {found[1][:60]!r}: ask by its address; conveyor serve also takes "
                f"--host-name {found[1][:60]!r}, or a token"
            )
        if method not in SAFE_METHODS and any(
            origin.partition("://")[2] != given[b"host"][0] for origin in given[b"origin"]
        ):
            raise Forbidden("a page from elsewhere may not ask this server: Origin and Host differ")

    def _answers_to(self, name: str) -> bool:
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)
        return True
