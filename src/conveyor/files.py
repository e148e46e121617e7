"""Files that are complete or absent: temporary name, flush to disk, rename."""

import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from conveyor.errors import UserError


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write `content` so that `path` holds the old file or the whole new one, even after a crash in between.

    Names of files that are no UTF-8 are written with the bytes that they have.
    """
    with open_replacing(Path(path)) as file:
        file.write(content.encode(errors="surrogateescape") if isinstance(content, str) else content)


@contextlib.contextmanager
def open_replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `target` when the body ends well; otherwise `target` stays as it was."""
    with replacing(target) as temporary, open(temporary, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def append(path: Path, content: bytes) -> None:
    """Add `content` at the end of a file by one write: all of it or, where the disk is full, nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        if os.write(descriptor, content) < len(content):
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary name beside `target`; renamed to it on success, removed on failure.

    The body must flush and fsync what it writes; the folder entry is synced here. The folder must exist: a run folder
    that somebody removed is not created again by the next write to it.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        raise_if_full(error, target)
        if error.filename == str(temporary):
            error.filename = str(target)  # what the user has named
        raise
    finally:
        temporary.unlink(missing_ok=True)


def make_parent(path: str | Path) -> None:
    """Make the folder that `path` is to be written in, for paths that a user names and for caches."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)


def user_path(text: str | os.PathLike[str]) -> Path:
    """A path as it was typed: `~` and `~NAME` are home folders, and where there is no such user part of a name (`~$1.jpg`)."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises where there is no such user


def free_name(path: Path, first: int = 2) -> Path:
    """`path`, or where that exists the first of `path-2`, `path-3`, ... that does not."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(first))
    return next(one for one in itertools.chain([path], others) if not one.exists())


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The content of a file; OSError where `path` is a pipe, which may never give anything, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files that killed processes left in `folder`; only where no other process writes."""
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", path.name):
            path.unlink(missing_ok=True)


def parse_json(text: str | bytes) -> Any:
    """The document in `text`; whatever is wrong with it, deep nesting included, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none, or something else."""
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_lines(path: Path) -> list[str]:
    """The lines of a text in UTF-8 without the white space around them; blank ones are left out."""
    try:
        return [line for text in path.read_text(encoding="utf-8").splitlines() if (line := text.strip())]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8 (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the file size limit",
}


def why(error: OSError) -> str:
    """Why something could not be written."""
    return FULL.get(error.errno or 0) or (error.strerror or str(error)).lower()


def raise_if_full(error: OSError, target: Path) -> None:
    """Turn the operating system's error for a full disk into a sentence for the user."""
    if error.errno in FULL:
        raise UserError(
            f"cannot write {target}: {why(error)}; free some space or choose another folder (nothing that was there is lost)"
        ) from error


def cache_folder() -> Path:
    """Where measurements and indexes are kept between runs: `$CONVEYOR_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("CONVEYOR_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conveyor"
