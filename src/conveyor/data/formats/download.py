"""Fetch a file: an interrupted download is continued, and the file gets its name after its check. No torch."""

import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from conveyor.data.formats.sources import Download
from conveyor.errors import UserError
from conveyor.files import raise_if_full, sync_folder
from conveyor.monitor.progress import Bar, track
from conveyor.version import __version__

log = logging.getLogger(__name__)

_PIECE = 1 << 18
_TIMEOUT = 30.0
ATTEMPTS = 4
"""Tries per address; each continues where the last one stopped."""


def fetch(download: Download, mirrors: Sequence[str], folder: Path, *, pause: float = 1.0) -> Path:
    """`folder/download.name`, fetched unless it is there already with the right size and checksum.

    What has arrived is kept as `NAME.part`, and the next attempt, in this process or a later one, asks only for the
    rest. Addresses are tried in turn. The file gets its name after its MD5 was found right.
    """
    target = folder / download.name
    if target.is_file() and target.stat().st_size == download.size and md5_of(target) == download.md5:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{download.name}.part"
    reasons: list[str] = []
    with track(download.size, download.name, unit="B") as bar:
        for mirror in mirrors:
            address = mirror + download.name
            try:
                _fetch_with_retries(address, part, download, bar, pause)
            except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: what is no address
                if isinstance(error, OSError):
                    raise_if_full(error, part)
                reasons.append(f"{address}: {_reason(error)}")
                log.info("could not fetch %s: %s", address, _reason(error))
                continue
            found = md5_of(part)
            if found != download.md5:
                part.unlink()
                reasons.append(f"{address}: another file (MD5 {found} instead of {download.md5})")
                continue
            os.replace(part, target)
            sync_folder(folder)
            return target
    raise UserError(
        f"cannot fetch {download.name} ({'; '.join(reasons)}): check the network or name a mirror with "
        f"`conveyor data get --mirror URL`, or copy the file to {folder} yourself"
    )


def md5_of(path: Path) -> str:
    """MD5 of a file: the publishers' checksum, which detects damage but not tampering."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fetch_with_retries(address: str, part: Path, download: Download, bar: Bar, pause: float) -> None:
    for attempt in range(ATTEMPTS):
        try:
            _fetch_rest(address, part, download, bar)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 or attempt == ATTEMPTS - 1:
                raise
        except (OSError, http.client.HTTPException):
            if attempt == ATTEMPTS - 1:
                raise
        else:
            if part.stat().st_size == download.size:
                return
            if attempt == ATTEMPTS - 1:
                raise http.client.IncompleteRead(b"", download.size - part.stat().st_size)
        time.sleep(pause * 2**attempt)


def _fetch_rest(address: str, part: Path, download: Download, bar: Bar) -> None:
    """Append what is missing to `part`; start over when the server cannot continue or the part is too long."""
    have = part.stat().st_size if part.exists() else 0
    if have > download.size:
        part.unlink()
        have = 0
    if have == download.size:
        return
    headers = {"User-Agent": f"conveyor/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=_TIMEOUT) as answer:
        if have and answer.status != http.client.PARTIAL_CONTENT:
            have = 0
        bar.reach(have)
        with open(part, "ab" if have else "wb") as file:
            while piece := answer.read(_PIECE):
                have += len(piece)
                if have > download.size:
                    raise OSError(f"the server sends more than the expected {download.size} bytes")
                file.write(piece)
                bar.reach(have)
            file.flush()
            os.fsync(file.fileno())


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason) or type(error).__name__
