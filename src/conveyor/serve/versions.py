"""Which version a folder holds now, found without opening any model. No torch here."""

import dataclasses
from pathlib import Path

from conveyor.checkpoint import choice
from conveyor.errors import nothing_at
from conveyor.infer import metadata


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A version that can be loaded; `stamp` changes when it is written anew."""

    path: Path
    stamp: tuple[str, int]

    def text(self) -> str:
        """Which checkpoint of a run it is; empty for an export."""
        return "" if metadata.is_export(self.path) else choice.text(self.path)


def newest(path: Path, which: str | None = None) -> Version:
    """The version to serve at `path`: the export itself, the highest numbered one, or the checkpoint that `which` means.

    A folder whose marker file (`export.json`, `manifest`) is missing is still being written and is passed over.
    """
    if not path.exists():
        raise nothing_at(path, "a run, a checkpoint or an export")
    if path.is_file():
        path = path.parent
    export = metadata.newest(path, which)
    if export is None:
        return _version(choice.find(path, which), choice.MANIFEST)
    return _version(export, metadata.METADATA)


def _version(path: Path, marker: str) -> Version:
    return Version(path, (str(path), (path / marker).stat().st_mtime_ns))
