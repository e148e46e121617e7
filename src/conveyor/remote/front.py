"""Addresses in a command or a call from Python: each becomes a local folder for the time of a command.

A run that is trained has one folder per machine and address, in the cache, which stays: it is what the store does not
have yet if the machine dies, and saves a download. Whatever else is named is fetched into a folder of its own, as far as
the command needs it, and what the command adds to it (a report) is uploaded at its end.
"""

import atexit
import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conveyor import scratch
from conveyor.errors import UserError
from conveyor.files import read_object
from conveyor.remote import is_address
from conveyor.remote.mirror import CHECKPOINTS, Mirror, Wanted

_logger = logging.getLogger(__name__)

DATA = ("data_dir",)
"""Options whose addresses stay: the run's options name the data on the store, on whatever machine it goes on."""
ALL_CHECKPOINTS = ("validate", "average", "compare", "restore", "train")
"""Commands that take every checkpoint of a run; others take the last, the best and the one that was named."""


@contextlib.contextmanager
def local(command: str, given: Mapping[str, Any], *, writes: bool = True) -> Iterator[dict[str, Any]]:
    """`given` with local paths in place of addresses; `writes`: whether this process uploads (one of a job does)."""
    addresses = {
        text: name == "run_dir" or (command == "restore" and name == "checkpoint_path")
        for name, value in given.items()
        if name not in DATA
        for text in (value if isinstance(value, list | tuple) else [value])
        if is_address(text)
    }
    with contextlib.ExitStack() as stack:
        paths = {
            text: stack.enter_context(_worked_on(text, writes) if stays else _fetched(command, text, given))
            for text, stays in addresses.items()
        }

        def replaced(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(replaced, value))
            return paths.get(value, value) if isinstance(value, str) else value

        yield {name: replaced(value) for name, value in given.items()}


def fetched(path: Any) -> Any:
    """A run, checkpoint or export that stays until the process ends, for `conveyor.load`."""
    if not is_address(path):
        return path
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(_fetched("load", path, {}))


@contextlib.contextmanager
def _worked_on(address: str, writes: bool) -> Iterator[str]:
    """The folder in which a run is trained."""
    run, checkpoint = _split(address)
    mirror = Mirror.cached(run)
    mirror.fetch()
    if writes:
        mirror.store.check_writable()
        _logger.warning("note: %s is worked on in %s and uploaded as it grows", run, mirror.folder)
        mirror.start()
    try:
        yield str(mirror.folder / checkpoint)
    finally:
        if writes:
            mirror.close()


@contextlib.contextmanager
def _fetched(command: str, address: str, given: Mapping[str, Any]) -> Iterator[str]:
    """What a command reads, in a folder of its own."""
    run, checkpoint = _split(address)
    with scratch.folder("remote") as home:
        mirror = Mirror(run, home)
        some = checkpoint or command not in ALL_CHECKPOINTS
        if not mirror.fetch(*([_some(mirror, checkpoint, given)] if some else [])) and command not in (
            "export",
            "report",
        ):
            raise UserError(f"there is nothing at {address}")
        yield str(mirror.folder / checkpoint)
        for name in mirror.close():
            _logger.warning("note: uploaded to %s", "/".join(filter(None, (run, name))))


def _some(mirror: Mirror, checkpoint: str, given: Mapping[str, Any]) -> Wanted:
    """All files besides the checkpoints, and those of them that a command can mean."""
    names = mirror.store.versions()
    saved = {name.split("/")[1] for name in names if name.startswith(f"{CHECKPOINTS}/") and name.endswith("/manifest")}
    numbered = sorted((one for one in saved if one.isdecimal()), key=int)
    chosen = {checkpoint.rpartition("/")[2]} if checkpoint else {*numbered[-1:], str(given.get("checkpoint"))}
    if not checkpoint and "best.json" in names:
        mirror.store.download(["best.json"], mirror.folder)
        chosen.add(str(read_object(mirror.folder / "best.json").get("update")))
    if not numbered:
        chosen |= saved  # averages alone
    return lambda name: not name.startswith(f"{CHECKPOINTS}/") or name.split("/")[1] in chosen


def _split(address: str) -> tuple[str, str]:
    """(address of the run, path of a checkpoint in it or nothing)."""
    address = address.rstrip("/")
    run, middle, name = address.rpartition(f"/{CHECKPOINTS}/")
    return (run, str(Path(CHECKPOINTS) / name)) if middle and "/" not in name else (address, "")
