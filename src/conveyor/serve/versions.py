"""Which version a folder holds now, found without opening any model. No torch here."""

import dataclasses
from pathlib import Path

from conveyor.errors import UserError
from conveyor.infer import metadata


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A version that can be loaded; `stamp` changes when it is written anew."""

    path: Path
    stamp: tuple[str, int]


def newest(path: Path) -> Version:
    """The newest complete version at `path`: the highest numbered export, the export itself, or the newest checkpoint.

    A folder whose marker file (`export.json`, `manifest`) is missing is still being written and is passed over.
    """
    if not path.exists():
        raise UserError(f"there is nothing at {path}: give a run, a checkpoint or an export")
    if path.is_file():
        path = path.parent
    for marker in (metadata.METADATA, "manifest"):
        if (path / marker).is_file():
            return _version(path, marker)
    for folder, marker in ((path, metadata.METADATA), (path / "checkpoints", "manifest"), (path, "manifest")):
        numbered = [entry for entry in folder.iterdir() if entry.name.isdecimal()] if folder.is_dir() else []
        complete = [entry for entry in numbered if (entry / marker).is_file()]
        if complete:
            return _version(max(complete, key=lambda entry: (int(entry.name), entry.name)), marker)
    raise UserError(f"there is no complete model in {path}: give a run with a checkpoint, a checkpoint or an export")


def _version(path: Path, marker: str) -> Version:
    return Version(path, (str(path), (path / marker).stat().st_mtime_ns))
