"""A local folder and its address on an object store, kept equal.

A checkpoint is complete or absent on the store as on a disk: its manifest, without which nothing opens it, is uploaded
last and removed first. An index beside the folder says which version of each object was transferred last, so that
either side's changes are known:

    the store is as it was left    the folder is current, and ahead where the process was killed before an upload
    the store has changed          another machine went on with the run: the folder becomes what the store holds
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.files import cache_folder, read_object, write_atomically
from conveyor.remote.store import Store

INTERVAL = 5.0
"""Seconds between two looks at what the run has written."""
CHECKPOINTS = "checkpoints"
MANIFEST = "manifest"
INDEX = "index.json"

_logger = logging.getLogger(__name__)
Wanted = Callable[[str], bool]


class Mirror:
    """The folder `home/NAME`, for the last word of the address."""

    def __init__(self, address: str, home: Path) -> None:
        self.store = Store(address)
        self.folder = home / (self.store.address.rpartition("/")[2] or "root")
        self._home, self._index_file = home, home / INDEX
        self._known: dict[str, list[Any]] = {}
        """`{name: [version on the store, local mark]}` after the last transfer."""
        self._pending: set[str] = set()
        """Names that were on their way when the index was written: the store may have either version."""
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    @classmethod
    def cached(cls, address: str) -> "Mirror":
        """The folder that stays, in the cache of this machine."""
        return cls(address, _cached() / hashlib.sha256(address.encode()).hexdigest()[:16])

    def fetch(self, wanted: Wanted = lambda name: True) -> bool:
        """Make the folder what the store holds of the `wanted` names, if anything changed there; False if it has none.

        A checkpoint without its manifest is not there. All processes of a machine may call it.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        with _locked(self._home / "fetch.lock"):
            self._read_index()
            there = {name: version for name, version in self.store.versions().items() if wanted(name)}
            before = {name: version for name, (version, _) in self._known.items() if name not in self._pending}
            if before != {name: version for name, version in there.items() if name not in self._pending}:
                self._become(_complete(there))
        return bool(there)

    def _become(self, there: dict[str, str]) -> None:
        marks = self._marks()
        stale = [name for name, version in there.items() if self._known.get(name) != [version, marks.get(name)]]
        for name in set(marks) - set(there):
            (self.folder / name).unlink(missing_ok=True)
        # Manifests last here, too.
        for names in ([n for n in stale if not _is_manifest(n)], [n for n in stale if _is_manifest(n)]):
            self.store.download(names, self.folder)
        self._pending = set()
        marks = self._marks()
        self._known = {name: [version, marks.get(name)] for name, version in there.items()}
        self._write_index()

    def start(self) -> None:
        """Upload what changes from now on, in a thread."""
        self._write_index()  # which tells `nearby` the address
        self._thread = threading.Thread(target=self._watch, name="upload", daemon=True)
        self._thread.start()

    def close(self) -> list[str]:
        """Upload what is left and name it; a store that cannot be reached is an error, and the folder keeps everything."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        try:
            return self.push()
        except UserError as problem:
            raise UserError(f"{problem}; what is missing there is in {self.folder}") from None

    def push(self) -> list[str]:
        """Upload every file that is not on the store as it is here, remove there what was removed here; the uploaded.

        A folder that was removed as a whole, by hand or with the cache, takes nothing from the store.
        """
        if self._known and not self.folder.exists():
            return []
        uploaded = []
        for names in _batches(self._marks(), self._known):
            for name in sorted(names, key=_is_manifest):
                file, mark = self.folder / name, _mark(self.folder / name)
                if mark is None:
                    continue
                self._announce(name)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    self._known[name] = [self.store.upload(name, file), mark]
                    uploaded.append(name)
        for name in sorted(set(self._known) - set(self._marks()), key=lambda name: (not _is_manifest(name), name)):
            self._announce(name)
            self.store.remove(name)
            del self._known[name]
        self._pending = set()
        self._write_index()
        return uploaded

    def _announce(self, name: str) -> None:
        """Note that `name` changes on the store; what replaces a file of a checkpoint there withdraws its manifest first."""
        manifest = f"{name.rpartition('/')[0]}/{MANIFEST}"
        if _in_checkpoint(name) and not _is_manifest(name) and manifest in self._known:
            self._announce(manifest)
            self.store.remove(manifest)
            del self._known[manifest]
        if name not in self._pending:
            self._pending.add(name)
            self._write_index()

    def _watch(self) -> None:
        told = ""
        while not self._end.wait(INTERVAL):
            try:
                self.push()
                told = ""
            except UserError as problem:
                if str(problem) != told:
                    _logger.warning("%s; trying again", problem)
                told = str(problem)

    def _marks(self) -> dict[str, list[int]]:
        """`{name: mark}` of the files in the folder; what is being written or locks the folder begins with a dot."""
        found = {}
        for path in [self.folder] if self.folder.is_file() else self.folder.rglob("*"):
            name = "" if path == self.folder else path.relative_to(self.folder).as_posix()
            hidden = any(part.startswith(".") for part in name.split("/"))
            if not hidden and (mark := _mark(path)) is not None:
                found[name] = mark
        # A checkpoint that is being removed: its manifest is gone, or the whole folder.
        return _complete(found)

    def _read_index(self) -> None:
        document = read_object(self._index_file)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            self._known, self._pending = dict(document["known"]), set(document["pending"])

    def _write_index(self) -> None:
        document = {"address": self.store.address, "known": self._known, "pending": sorted(self._pending)}
        write_atomically(self._index_file, json.dumps(document))


def nearby(path: str | Path) -> str:
    """A path as one would type it here: below the working folder without that, in a run's cached folder by its address."""
    full, here, cached = Path(path).absolute(), Path.cwd(), _cached().absolute()
    if full.is_relative_to(cached):
        home, _, *inside = full.relative_to(cached).parts
        if address := read_object(cached / home / INDEX).get("address"):
            return "/".join((str(address), *inside))
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(path)


def typed(path: str | Path) -> str:
    """`nearby` as one word of a command to copy: quoted where it holds a space."""
    return shlex.quote(nearby(path))


def _cached() -> Path:
    return cache_folder() / "remote"


def _batches(marks: dict[str, list[int]], known: dict[str, list[Any]]) -> list[list[str]]:
    """The changed names: tables; then those of each checkpoint together, the oldest first; then the rest.

    A run that goes on from a checkpoint keeps the rows of its tables up to there, so they must not be behind it; rows beyond
    are dropped. The other files follow, so that what they say of a checkpoint is never ahead of it.
    """
    groups: dict[str, list[str]] = {}
    for name, mark in marks.items():
        if name not in known or known[name][1] != mark:
            groups.setdefault(name.rpartition("/")[0] if _in_checkpoint(name) else "", []).append(name)
    rest = groups.pop("", [])
    ordered = sorted(groups.items(), key=lambda item: (len(item[0]), item[0]))
    tables = [name for name in rest if name.endswith(".csv")]
    return [tables, *(names for _, names in ordered), [name for name in rest if name not in tables]]


def _complete(found: dict[str, Any]) -> dict[str, Any]:
    """Without the files of checkpoints that have no manifest."""
    return {
        name: value
        for name, value in found.items()
        if not _in_checkpoint(name) or f"{name.rpartition('/')[0]}/{MANIFEST}" in found
    }


def _in_checkpoint(name: str) -> bool:
    return name.startswith(f"{CHECKPOINTS}/") and name.count("/") == 2


def _is_manifest(name: str) -> bool:
    return _in_checkpoint(name) and name.endswith(f"/{MANIFEST}")


def _mark(path: Path) -> list[int] | None:
    """What changes with the content of a file; None if it is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size, status.st_ino] if path.is_file() else None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
