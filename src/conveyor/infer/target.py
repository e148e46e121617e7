"""The folder that an export goes to: refused unless it is new or empty, complete or absent afterwards."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from conveyor.errors import UserError
from conveyor.files import raise_if_full, sync_folder


def check_target(target: str | Path | None, flag: str = "--out") -> Path:
    """The folder to write, absent or empty; a file or a folder with something in it is never overwritten."""
    if target is None or not str(target):
        raise UserError(f"no folder was given to write to: add {flag} DIR")
    path = Path(target)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} exists and is not a folder: give another one with {flag}")
    try:
        if path.is_dir() and any(path.iterdir()):
            raise UserError(f"the folder {path} is not empty: give a new or an empty one with {flag}")
    except OSError as error:
        raise _cannot_write(path, error) from None
    return path


def _cannot_write(target: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {target}: {(error.strerror or str(error)).lower()}; give another folder with --out")


@contextlib.contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that replaces it, complete and synced, when the body ends without an error."""
    target = target.absolute()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise_if_full(error, target)
        raise _cannot_write(target, error) from None
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        sync_folder(temporary)
        temporary.rename(target)  # over an empty folder at most: a folder that was filled meanwhile is an error
        sync_folder(target.parent)
    except OSError as error:
        raise_if_full(error, target)
        if target.is_dir() and any(target.iterdir()):
            raise UserError(f"the folder {target} was filled by someone else meanwhile: nothing was written") from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
