"""One folder on an object store: what it holds, downloads and uploads. Errors of the store become one sentence."""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conveyor.errors import UserError

PACKAGES = {"s3": "conveyor[remote]", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
SHOWN = 200
"""Letters of an error of the store."""


class Store:
    """The objects below an address, by their relative names."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        with self._explained("opened"):
            from fsspec.core import url_to_fs

            self._files, self._root = url_to_fs(self.address)
            kinds = self._files.protocol
            self._kinds = {kinds} if isinstance(kinds, str) else set(kinds)

    def versions(self) -> dict[str, str]:
        """`{name: version}` of all objects; a version is another one after every change. A single object has the name ''."""
        with self._explained("listed"):
            self._files.invalidate_cache()
            try:
                found: Mapping[str, Mapping[str, Any]] = self._files.find(self._root, detail=True)
            except FileNotFoundError:
                found = {}
        root = self._root.rstrip("/")
        return {path[len(root) :].lstrip("/"): _version(info) for path, info in found.items()}

    def download(self, names: Sequence[str], folder: Path) -> None:
        """Each object as a file below `folder`, complete or absent: under a temporary name first."""
        targets = [folder / _inside(name) if name else folder for name in names]
        parts = [target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp") for target in targets]
        try:
            for part in parts:
                part.parent.mkdir(parents=True, exist_ok=True)
            with self._explained("read"):
                if parts:
                    self._files.get([self._path(name) for name in names], [os.fspath(part) for part in parts])
            for part, target in zip(parts, targets, strict=True):
                os.replace(part, target)
        finally:
            for part in parts:
                part.unlink(missing_ok=True)

    def upload(self, name: str, file: Path) -> str:
        """The version of the object that now holds the content of `file`; a store shows the old or the whole new one."""
        path = self._path(name)
        with self._explained("written"):
            try:
                self._files.put_file(os.fspath(file), path)
            except FileNotFoundError:
                if not file.exists():
                    raise
                # A store without buckets wants its folders made; one with them says that there is none.
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.put_file(os.fspath(file), path)
            self._files.invalidate_cache()
            return _version(self._files.info(path))

    def check_writable(self) -> None:
        """An error now and not after hours of training."""
        with self._explained("written"):
            try:
                if self._kinds.isdisjoint(PACKAGES):  # no buckets: its folders are made
                    self._files.makedirs(self._root, exist_ok=True)
                self._files.pipe_file(self._path(".conveyor"), b"")
                self._files.rm_file(self._path(".conveyor"))
            except FileNotFoundError:
                raise OSError("there is no such bucket") from None

    def remove(self, name: str) -> None:
        """Delete an object; one that is gone already is no error."""
        with self._explained("written"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Whatever the library of the store raises, in one sentence: they have no common class of errors."""
        try:
            yield
        except ImportError:
            package = PACKAGES.get(self.address.partition("://")[0], "the package that fsspec names for it")
            raise UserError(f"{self.address} needs a library: pip install '{package}'") from None
        except FileNotFoundError:
            raise
        except Exception as problem:
            words = " ".join(str(problem).split())[:SHOWN] or type(problem).__name__
            raise UserError(
                f"{self.address} cannot be {what}: {words}; check the address, the credentials and the network"
            ) from None


def _version(info: Mapping[str, Any]) -> str:
    when = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or info.get("created")
    return f"{info.get('size')} {when}"


def _inside(name: str) -> str:
    """`name`, unless it would leave the folder."""
    if name.startswith("/") or ".." in name.split("/"):
        raise UserError(f"an object on the store is called {name!r}, which is no name for a file in a folder")
    return name
