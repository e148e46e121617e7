"""Obtain a small data set: find a copy, else fetch it; of many workers one fetches while the others wait."""

import contextlib
import logging
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from conveyor.data import catalogue
from conveyor.data.formats import locate
from conveyor.data.formats.download import fetch
from conveyor.data.formats.idx import LARGEST
from conveyor.data.formats.locate import Copy
from conveyor.data.formats.lock_file import exclusive
from conveyor.data.formats.sources import SOURCES, Source
from conveyor.errors import UserError
from conveyor.files import open_replacing
from conveyor.options.data import DataOptions

log = logging.getLogger(__name__)


def obtain(name: str, options: DataOptions) -> Copy:
    """The copy of `name` that a run uses: found on the machine, or fetched when `--no-download` does not forbid it."""
    folder = catalogue.data_dir(options)
    found = locate.search(name, folder)
    if found is not None:
        return found
    if not options.download:
        raise locate.missing(name, folder)
    source = SOURCES[name]
    log.warning("%s is not here: fetching %.0f MB from %s", name, source.download_bytes / 1e6, source.mirrors[0])
    return get(name, folder or locate.default_folder())


def get(name: str, folder: Path, mirrors: Sequence[str] | None = None) -> Copy:
    """Fetch `name` into `folder`; when several processes ask at once, one does it and the others take its result."""
    source = SOURCES[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {folder} for {name} ({error.strerror}): choose another --data-dir"
        ) from None
    with exclusive(folder / f".{name}.lock"):
        present = locate.copy_below(source, folder)
        if present is not None:
            return present
        target = folder / source.folder
        try:
            for download in source.downloads:
                path = fetch(download, [f"{mirror.rstrip('/')}/" for mirror in mirrors or source.mirrors], target)
                if path.name.endswith(".tar.gz"):
                    _unpack(path, source, target)
                    path.unlink()
        finally:
            with contextlib.suppress(OSError):
                target.rmdir()  # if nothing arrived: beside class folders an empty one would be a class
    found = locate.copy_in(source, target)
    if found is None:
        raise UserError(
            f"the archive of {name} lacks some of {', '.join(source.files)}: remove {folder} and fetch it again"
        )
    return found


def _unpack(archive: Path, source: Source, folder: Path) -> None:
    """Unpack only the known files, by base name, as plain files: other members of an archive are ignored."""
    wanted = {*source.files, "batches.meta.txt", "fine_label_names.txt", "coarse_label_names.txt"}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                if not member.isfile() or name not in wanted:
                    continue
                if member.size > LARGEST:
                    raise tarfile.TarError(f"{name} would have {member.size} bytes")
                content = tar.extractfile(member)
                assert content is not None
                with open_replacing(folder / name) as file:
                    shutil.copyfileobj(content, file, 1 << 20)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{archive} is damaged ({error}): remove it and fetch it again") from None
