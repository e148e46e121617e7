"""The small public data sets: which files they consist of, where they come from, how they are checked. No torch."""

import dataclasses
import json
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Download:
    """A file to fetch; `size` in bytes and `md5` say whether it arrived whole."""

    name: str
    size: int
    md5: str


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A data set of a few files.

    `folder` is the name it has when unpacked, `files` are the files that a complete copy has, with the MD5 of their
    (unzipped) content, or an empty text where the publisher gives none; `python_files` are those of the layout that
    torchvision downloads.
    """

    name: str
    mirrors: tuple[str, ...]
    downloads: tuple[Download, ...]
    folder: str
    files: dict[str, str]
    python_folder: str = ""
    python_files: dict[str, str] = dataclasses.field(default_factory=dict)
    other_folders: tuple[str, ...] = ()
    """Where other programs keep the same files, below their own data folder; `*` matches any name."""

    @property
    def download_bytes(self) -> int:
        return sum(download.size for download in self.downloads)


def _read(name: str, about: dict[str, Any]) -> Source:
    downloads = tuple(Download(file, size, md5) for file, (size, md5) in about.pop("downloads").items())
    mirrors, others = tuple(about.pop("mirrors")), tuple(about.pop("other_folders"))
    return Source(name=name, mirrors=mirrors, downloads=downloads, other_folders=others, **about)


SOURCES = {
    name: _read(name, about)
    for name, about in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}
"""The sets that `conveyor data get` knows, by name."""
