"""One checkpoint as a folder: `model.safetensors`, `optimizer.safetensors`, `averages.safetensors`, `state.json`, `manifest`.

Written under a temporary name in the same parent, every file and the folder fsynced, then renamed: if the process or
the machine dies at any moment, a checkpoint is complete or absent. The manifest has one line `sha256  size  name` for
each file and a last line with the hash of the lines above, so a flipped bit is found before a byte is used.
"""

import dataclasses
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

import torch

from conveyor.checkpoint import tensors
from conveyor.checkpoint.choice import MANIFEST as MANIFEST
from conveyor.checkpoint.choice import MODEL, STATE
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.files import parse_json, sync_folder
from conveyor.version import __version__

FILES = {STATE, MODEL, "optimizer.safetensors", "averages.safetensors"}
FORMAT = 1
LARGEST_MANIFEST = 1 << 16
_ENTRY = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<size>[0-9]{1,18})  (?P<name>[^\n]+)\n")
TEMPORARY = ".writing-"
REPLACED = ".replaced-"
DISCARDED = ".discarded-"


class DamagedError(UserError):
    """A checkpoint that must not be used; says which file and why."""


def _damaged(folder: Path, what: str) -> DamagedError:
    return DamagedError(f"checkpoint {folder} is damaged: {what}; use the one before it")


def save(folder: Path | str, state: State) -> Path:
    """Write `state` as `folder`, replacing one that is there; complete or absent at any moment."""
    folder = Path(folder)
    # Not its parents: a run folder that was removed stays removed.
    folder.parent.mkdir(exist_ok=True)
    temporary = folder.parent / f"{TEMPORARY}{folder.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        lines = [
            _write(temporary / f"{group}.safetensors", tensors.chunks(content, {"format": "pt"}))
            for group, content in state.groups().items()
        ]
        lines.append(_write(temporary / STATE, [memoryview(_state_json(state))]))
        body = "".join(lines).encode()
        _write(temporary / MANIFEST, [memoryview(body + f"{hashlib.sha256(body).hexdigest()}\n".encode())])
        sync_folder(temporary)
        _put_in_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def load(folder: Path | str) -> State:
    """Read and check a checkpoint. Raises `DamagedError` with one sentence when anything in it is not as it was written."""
    folder = Path(folder)
    content = _checked_files(folder)
    state = _without_tensors(folder, content.pop(STATE))
    try:
        return dataclasses.replace(state, **{Path(name).stem: tensors.parse(data) for name, data in content.items()})
    except (KeyError, TypeError, ValueError) as problem:
        raise unreadable(folder, problem) from None


def load_without_tensors(folder: Path | str) -> State:
    """Progress and options alone. Of the files with tensors only the sizes are checked: `load` finds what else is wrong."""
    return _without_tensors(Path(folder), _checked_files(Path(folder), {STATE})[STATE])


def _without_tensors(folder: Path, data: bytes) -> State:
    try:
        document = parse_json(data)
        if document["format"] != FORMAT:
            raise DamagedError(
                f"checkpoint {folder} has format {document['format']}, this version reads format {FORMAT}"
            )
        progress, options = document["progress"], document["options"]
        if not isinstance(progress, dict) or not isinstance(options, dict) or not _is_count(progress.get("update", 0)):
            raise ValueError(f"{STATE} does not hold the progress and the options of a run")
        if not isinstance(progress.get("epoch", 0.0), int | float) or not 0 <= progress.get("epoch", 0.0) < 2**63:
            raise ValueError(f"{STATE} does not say how many epochs are done")
        about = progress.get("data", {})
        if not isinstance(about, dict):
            raise ValueError(f"{STATE} does not say which data the run had")
        for names in (progress.get("class_names", []), about.get("class_names", [])):
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{STATE} does not hold the names of the classes")
        return State(model={}, progress=progress, options=options)
    except (KeyError, TypeError, ValueError) as problem:
        raise unreadable(folder, problem) from None


def unreadable(folder: Path | str, problem: BaseException) -> DamagedError:
    """The error for a checkpoint whose checksums are right and whose content cannot be read."""
    words = str(problem) if isinstance(problem, ValueError) else f"{type(problem).__name__} {problem}"
    return DamagedError(f"checkpoint {folder} cannot be read: {words[:200]}; use the one before it")


def verify(folder: Path | str) -> None:
    """Check every file against the manifest; raises `DamagedError`."""
    _checked_files(Path(folder))


def remove(folder: Path) -> None:
    """Delete a checkpoint; renamed first, so that a crash leaves no half of it under its name."""
    aside = folder.parent / f"{DISCARDED}{folder.name}-{os.getpid()}"
    try:
        folder.rename(aside)
    except OSError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def tidy(parent: Path) -> None:
    """Undo or remove what a killed run was replacing or writing; only for the holder of the run's lock."""
    if not parent.is_dir():
        return
    for entry in list(parent.iterdir()):
        if entry.name.startswith(REPLACED):
            original = parent / entry.name.removeprefix(REPLACED).rsplit("-", 1)[0]
            if not original.exists():
                entry.rename(original)
                continue
        if entry.name.startswith((TEMPORARY, DISCARDED, REPLACED)):
            shutil.rmtree(entry, ignore_errors=True)


def _put_in_place(temporary: Path, folder: Path) -> None:
    replaced = folder.parent / f"{REPLACED}{folder.name}-{os.getpid()}"
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    temporary.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _write(path: Path, pieces: Iterable[memoryview]) -> str:
    digest, size = hashlib.sha256(), 0
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            while len(piece):
                piece = piece[file.write(piece) :]
        os.fsync(file.fileno())
    return f"{digest.hexdigest()}  {size}  {path.name}\n"


def _state_json(state: State) -> bytes:
    document = {
        "format": FORMAT,
        "progress": state.progress,
        "options": state.options,
        "versions": {"conveyor": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    return json.dumps(document, indent=1).encode()


def _checked_files(folder: Path, wanted: Collection[str] = FILES) -> dict[str, bytes]:
    """`{name: bytes}` of the `wanted` files in the manifest, checked by digest; of the other files only the size is checked."""
    if not folder.is_dir():
        raise UserError(f"there is no checkpoint at {folder}")
    try:
        content = {}
        for name, (digest, size) in _manifest(folder).items():
            data, found = _read(folder / name, size if name in wanted else 0)
            if found != size or (name in wanted and len(data) != size):
                raise _damaged(folder, f"{name} has {found} bytes instead of {size}")
            if name not in wanted:
                continue
            if hashlib.sha256(data).hexdigest() != digest:
                raise _damaged(folder, f"the checksum of {name} is wrong")
            content[name] = data
        return content
    except OSError as problem:
        raise _damaged(folder, f"{problem.strerror or problem} ({problem.filename})") from None


def _manifest(folder: Path) -> dict[str, tuple[str, int]]:
    data, _ = _read(folder / MANIFEST, LARGEST_MANIFEST)
    *lines, last = data.decode("ascii", errors="replace").splitlines(keepends=True) or [""]
    body = "".join(lines)
    if not lines or last != f"{hashlib.sha256(body.encode()).hexdigest()}\n":
        raise _damaged(folder, "its manifest is not as it was written")
    entries = [_ENTRY.fullmatch(line) for line in lines]
    names = {entry["name"]: (entry["digest"], int(entry["size"])) for entry in entries if entry is not None}
    if len(names) != len(lines) or not {STATE, MODEL} <= names.keys() or not names.keys() <= FILES:
        raise _damaged(folder, "its manifest does not list the files of a checkpoint")
    return names


def _read(path: Path, most: int) -> tuple[bytes, int]:
    """(up to `most` + 1 bytes, so that a longer file shows, and the size) of a regular file: no device, no pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(min(most, status.st_size) + 1), status.st_size


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
