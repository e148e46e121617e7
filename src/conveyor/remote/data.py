"""Images on an object store: fetched once into the cache of each machine, and read from there."""

import functools
from pathlib import Path

from conveyor.errors import UserError
from conveyor.files import user_path
from conveyor.remote import is_address
from conveyor.remote.mirror import Mirror


def data_folder(text: str) -> Path:
    """The folder with the data at `text`, a path or an address."""
    return _fetched(text.rstrip("/")) if is_address(text) else user_path(text)


def absolute(text: str) -> str:
    """The form that a run keeps: an address as it is, a path from the root."""
    return text if is_address(text) else str(user_path(text).absolute())


@functools.cache
def _fetched(address: str) -> Path:
    """One look at the store per process; what did not change there is not fetched again."""
    mirror = Mirror.cached(address)
    if not mirror.fetch():
        raise UserError(f"there are no data at {address}")
    return mirror.folder
