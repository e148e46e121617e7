"""A folder and its address are kept equal; a checkpoint on the store is complete or absent at every moment."""

import contextlib
import shutil
from pathlib import Path

import pytest
import torch

from conveyor.checkpoint import folder as checkpoints
from conveyor.checkpoint.state import State
from conveyor.errors import UserError
from conveyor.remote.mirror import Mirror
from conveyor.remote.store import Store


class Dies(Store):
    """A store that can be reached for `left` more changes."""

    left = 0

    def upload(self, name: str, file: Path) -> str:
        self._count()
        return super().upload(name, file)

    def remove(self, name: str) -> None:
        self._count()
        super().remove(name)

    def _count(self) -> None:
        if self.left == 0:
            raise UserError("gone")
        self.left -= 1


def saved(mirror: Mirror, update: int, value: float) -> None:
    mirror.folder.mkdir(exist_ok=True)
    state = State(model={"weight": torch.full((4,), value)}, progress={"update": update}, options={})
    checkpoints.save(mirror.folder / "checkpoints" / str(update), state)


def read(address: str, home: Path) -> dict[str, float]:
    """{checkpoint: value} as another machine finds them; each is whole or the test fails."""
    mirror = Mirror(address, home)
    mirror.fetch()
    found = sorted((mirror.folder / "checkpoints").glob("*"))
    return {path.name: float(checkpoints.load(path).model["weight"][0]) for path in found if any(path.iterdir())}


def test_a_checkpoint_is_complete_or_absent_whenever_the_upload_ends(bucket: str, tmp_path: Path) -> None:
    for left in range(8):
        address = f"{bucket}/{left}"
        mirror = Mirror(address, tmp_path / f"here-{left}")
        mirror.fetch()
        saved(mirror, 10, 1.0)
        mirror.push()
        # A new one, the old one overwritten, both in one push that ends after `left` changes.
        saved(mirror, 10, 2.0)
        saved(mirror, 20, 3.0)
        mirror.store = Dies(address)
        mirror.store.left = left
        whole = True
        try:
            mirror.push()
        except UserError:
            whole = False
        there = read(address, tmp_path / f"there-{left}")
        assert there.get("10") in (None, 1.0, 2.0)
        assert there.get("20") in (None, 3.0)
        if whole:
            assert there == {"10": 2.0, "20": 3.0}
        # The machine comes back: what it has is newer than what it left on the store.
        again = Mirror(address, tmp_path / f"here-{left}")
        again.fetch()
        again.push()
        assert read(address, tmp_path / f"after-{left}") == {"10": 2.0, "20": 3.0}
    assert whole, "the last of them came to its end"


def test_tables_are_never_behind_a_checkpoint(bucket: str, tmp_path: Path) -> None:
    for left in range(6):
        mirror = Mirror(f"{bucket}/{left}", tmp_path / f"here-{left}")
        mirror.fetch()
        saved(mirror, 10, 1.0)
        (mirror.folder / "best.json").write_text("{}")
        (mirror.folder / "validation.csv").write_text("update,accuracy\n8,50\n")
        mirror.store = Dies(f"{bucket}/{left}")
        mirror.store.left = left
        with contextlib.suppress(UserError):
            mirror.push()
        there = Store(f"{bucket}/{left}").versions()
        assert "checkpoints/10/manifest" not in there or "validation.csv" in there
        assert "best.json" not in there or "checkpoints/10/manifest" in there
    assert "best.json" in there


def test_what_is_removed_here_is_removed_there_the_manifest_first(bucket: str, tmp_path: Path) -> None:
    mirror = Mirror(f"{bucket}/run", tmp_path / "here")
    mirror.fetch()
    saved(mirror, 10, 1.0)
    saved(mirror, 20, 2.0)
    mirror.push()
    checkpoints.remove(mirror.folder / "checkpoints" / "10")
    mirror.store = Dies(f"{bucket}/run")
    mirror.store.left = 1
    with pytest.raises(UserError, match="gone"):
        mirror.push()
    assert read(f"{bucket}/run", tmp_path / "there") == {"20": 2.0}
    mirror.store.left = 9
    mirror.push()
    assert not [name for name in mirror.store.versions() if name.startswith("checkpoints/10")]


@pytest.mark.parametrize("removed", ["here/run", "here"])
def test_a_folder_that_was_removed_takes_nothing_from_the_store(bucket: str, tmp_path: Path, removed: str) -> None:
    mirror = Mirror(f"{bucket}/run", tmp_path / "here")
    mirror.fetch()
    saved(mirror, 10, 1.0)
    mirror.push()
    shutil.rmtree(tmp_path / removed)
    assert mirror.push() == mirror.close() == []
    assert read(f"{bucket}/run", tmp_path / "there") == {"10": 1.0}


def test_a_run_that_went_on_elsewhere_replaces_what_is_here(bucket: str, tmp_path: Path) -> None:
    here, other = (Mirror(f"{bucket}/run", tmp_path / name) for name in ("here", "other"))
    here.fetch()
    saved(here, 10, 1.0)
    here.push()
    other.fetch()
    saved(other, 20, 2.0)
    other.push()
    saved(here, 15, 9.0)  # never uploaded: the machine died
    again = Mirror(f"{bucket}/run", tmp_path / "here")
    again.fetch()
    assert sorted(path.name for path in (again.folder / "checkpoints").iterdir() if any(path.iterdir())) == ["10", "20"]


def test_nothing_leaves_the_folder(bucket: str, tmp_path: Path) -> None:
    import fsspec

    files, root = fsspec.core.url_to_fs(f"{bucket}/run")
    files.pipe_file(f"{root}/../evil", b"")
    mirror = Mirror(f"{bucket}/run", tmp_path / "here")
    if any(".." in name for name in mirror.store.versions()):
        with pytest.raises(UserError, match="no name for a file"):
            mirror.fetch()
    assert not (tmp_path / "here" / "evil").exists()


def test_errors_are_one_sentence(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is no such bucket; check the address"):
        Store("s3://there-is-no-such-bucket/run").check_writable()
    with pytest.raises(UserError, match="needs a library: pip install 'gcsfs'"):
        Store("gs://bucket/run")
    with pytest.raises(UserError, match="cannot be opened"):
        Store("nonsense://bucket/run")
