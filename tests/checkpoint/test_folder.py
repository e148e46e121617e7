"""One checkpoint: what is written is what is read, and damage of any kind is found before a byte is used."""

import hashlib
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.checkpoint.states import make_state, same

from conveyor.checkpoint import folder as one
from conveyor.checkpoint.state import State
from conveyor.errors import UserError


def test_what_is_written_is_read_back_to_the_bit(tmp_path: Path) -> None:
    state = make_state()
    path = one.save(tmp_path / "checkpoints" / "7", state)
    assert same(one.load(path), state)
    assert sorted(entry.name for entry in path.iterdir()) == [
        "averages.safetensors", "manifest", "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    assert [entry.name for entry in path.parent.iterdir()] == ["7"]


def test_the_weights_are_a_plain_safetensors_file(tmp_path: Path) -> None:
    state = make_state()
    path = one.save(tmp_path / "7", state)
    found = safetensors.torch.load_file(path / "model.safetensors")
    assert found.keys() == state.model.keys()
    assert torch.equal(found["conv.weight"], state.model["conv.weight"])


def test_saving_again_replaces(tmp_path: Path) -> None:
    one.save(tmp_path / "7", make_state(seed=1))
    one.save(tmp_path / "7", make_state(seed=2))
    assert same(one.load(tmp_path / "7"), make_state(seed=2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["7"]


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir())


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = one.save(tmp_path / "7", make_state())
    generator = random.Random(0)
    for file in files_of(path):
        whole = file.read_bytes()
        lengths = {0, 1, 7, 8, len(whole) // 2, len(whole) - 1, *(generator.randrange(len(whole)) for _ in range(20))}
        for length in lengths:
            file.write_bytes(whole[:length])
            with pytest.raises(one.DamagedError, match=r"checkpoint .*7"):
                one.load(path)
        file.write_bytes(whole)
    assert same(one.load(path), make_state())


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = one.save(tmp_path / "7", make_state())
    generator = random.Random(1)
    for file in files_of(path):
        whole = file.read_bytes()
        places = [generator.randrange(8 * len(whole)) for _ in range(120)]
        for place in places:
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            file.write_bytes(bytes(flipped))
            with pytest.raises(one.DamagedError):
                one.load(path)
        file.write_bytes(whole)


def test_longer_and_missing_files_are_found(tmp_path: Path) -> None:
    path = one.save(tmp_path / "7", make_state())
    for file in files_of(path):
        whole = file.read_bytes()
        file.write_bytes(whole + b"\0")
        with pytest.raises(one.DamagedError):
            one.load(path)
        file.unlink()
        with pytest.raises(one.DamagedError):
            one.load(path)
        file.mkdir()
        with pytest.raises(one.DamagedError):
            one.load(path)
        file.rmdir()
        file.write_bytes(whole)


class Hostile:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def forge(path: Path, name: str, content: bytes) -> None:
    """Replace a file and sign the manifest anew, as someone who knows the format would."""
    (path / name).write_bytes(content)
    lines = (path / one.MANIFEST).read_text().splitlines()[:-1]
    signed = f"{hashlib.sha256(content).hexdigest()}  {len(content)}  {name}"
    body = "".join((signed if line.endswith(f"  {name}") else line) + "\n" for line in lines)
    (path / one.MANIFEST).write_text(body + hashlib.sha256(body.encode()).hexdigest() + "\n")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "averages.safetensors", "state.json"])
def test_a_hostile_pickle_is_never_executed(tmp_path: Path, name: str) -> None:
    path = one.save(tmp_path / "7", make_state())
    mark = tmp_path / "executed"
    torch.save({"weight": Hostile(mark)}, tmp_path / "archive.pt")
    for content in (pickle.dumps(Hostile(mark)), (tmp_path / "archive.pt").read_bytes()):
        forge(path, name, content)
        with pytest.raises(one.DamagedError):
            one.load(path)
        assert not mark.exists()


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    path = one.save(tmp_path / "7", make_state())
    body = "".join((path / one.MANIFEST).read_text().splitlines(keepends=True)[:-1])
    body += f"{hashlib.sha256(b'').hexdigest()}  0  ../elsewhere\n"
    (path / one.MANIFEST).write_text(body + hashlib.sha256(body.encode()).hexdigest() + "\n")
    with pytest.raises(one.DamagedError, match="manifest"):
        one.load(path)


def test_a_failed_write_leaves_the_old_one(tmp_path: Path) -> None:
    """In a process of its own: the file size limit stands in for a full disk."""
    one.save(tmp_path / "7", make_state(seed=1))
    code = """
import resource, sys
from collections.abc import Callable
from pathlib import Path
from conveyor.checkpoint.writer import BackgroundWriter
sys.path.insert(0, sys.argv[2])
from tests.checkpoint.states import make_state
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
writer = BackgroundWriter()
writer.save(Path(sys.argv[1]) / "7", make_state(seed=2))
writer.wait()
print(writer.problem)
writer.save(Path(sys.argv[1] + "-alone") / "7", make_state(seed=2))
writer.wait()
print(writer.problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
writer.save(Path(sys.argv[1]) / "8", make_state(8))
writer.wait()
print(writer.problem)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(root)], capture_output=True, text=True, timeout=120, check=True
    )
    first, alone, second = done.stdout.splitlines()
    assert "was not written" in first
    assert "file size limit" in first
    assert "earlier checkpoints are intact" in first
    assert "there is no earlier one: make room, then conveyor restore" in alone
    assert second == "None"
    assert same(one.load(tmp_path / "7"), make_state(seed=1))
    assert same(one.load(tmp_path / "8"), make_state(8))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["7", "8"]


def test_tidy_clears_leftovers_and_brings_back_what_was_being_replaced(tmp_path: Path) -> None:
    one.save(tmp_path / "7", make_state())
    (tmp_path / "7").rename(tmp_path / f"{one.REPLACED}7-123")
    (tmp_path / f"{one.TEMPORARY}9-123").mkdir()
    (tmp_path / f"{one.DISCARDED}3-123").mkdir()
    one.save(tmp_path / "8", make_state(8))
    one.save(tmp_path / f"{one.REPLACED}8-123", make_state(8, seed=5))
    one.tidy(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["7", "8"]
    assert same(one.load(tmp_path / "7"), make_state())
    assert same(one.load(tmp_path / "8"), make_state(8))


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = one.save(tmp_path / "7", make_state())
    forge(path, one.STATE, b'{"format": 99, "progress": {}, "options": {}}')
    with pytest.raises(UserError, match="format 99"):
        one.load(path)


def test_missing_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint at"):
        one.load(tmp_path / "none")


def test_best_weights_prefer_the_running_average() -> None:
    state = State(
        model={"a": torch.zeros(2, dtype=torch.float16), "b": torch.ones(2)}, averages={"a": torch.full((2,), 0.5)}
    )
    best = state.best_weights()
    assert torch.equal(best["a"], torch.full((2,), 0.5, dtype=torch.float16))
    assert torch.equal(best["b"], torch.ones(2))


def sign(path: Path, body: str) -> None:
    """Write `body` as a manifest whose own checksum is right."""
    (path / one.MANIFEST).write_text(body + hashlib.sha256(body.encode()).hexdigest() + "\n")


LINE = f"{'0' * 64}  7  "


@pytest.mark.parametrize(
    "change",
    [
        lambda body: "one word\n",
        lambda body: body + "a b\n",
        lambda body: body.replace("  ", " "),
        lambda body: body + LINE.replace("7", "seven") + "extra\n",
        lambda body: body + LINE.replace("7", "9" * 5000) + "extra\n",
        lambda body: body + LINE.replace("7", "-1") + "extra\n",
        lambda body: body + LINE + "name\0with nothing\n",
        lambda body: body + LINE + "x" * 300 + "\n",
        lambda body: body + LINE + "..\n",
        lambda body: body + body,
        lambda body: body + LINE + "extra.safetensors\n",
        lambda body: body.replace("averages.safetensors", "averaged.safetensors"),
        lambda body: body.replace("model.safetensors", "weights.safetensors"),
        lambda body: body + (LINE + "extra\n") * 10_000,
    ],
)
def test_a_manifest_with_a_right_checksum_and_wrong_content_is_named(
    tmp_path: Path, change: Callable[[str], str]
) -> None:
    path = one.save(tmp_path / "7", make_state())
    sign(path, change("".join((path / one.MANIFEST).read_text().splitlines(keepends=True)[:-1])))
    for read in (one.load, one.verify):
        with pytest.raises(one.DamagedError, match="manifest"):
            read(path)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "pipe"])
@pytest.mark.parametrize("name", ["manifest", "model.safetensors"])
def test_what_is_no_file_is_not_read(tmp_path: Path, name: str, target: str) -> None:
    """A device has no end, a pipe no beginning."""
    path = one.save(tmp_path / "7", make_state())
    (path / name).unlink()
    if target == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).symlink_to(target)
    with pytest.raises(one.DamagedError, match="not a regular file"):
        one.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"format": 1, "progress": ' + b'{"a":' * 50_000,
        b'{"format": 1, "progress": [], "options": {}}',
        b'{"format": 1, "progress": {}, "options": []}',
        b'{"format": 1, "progress": {"update": "x"}, "options": {}}',
        b'{"format": 1, "progress": {"update": -1}, "options": {}}',
        b'{"format": 1, "progress": {"update": ' + b"9" * 4000 + b'}, "options": {}}',
        b'{"format": 1, "progress": {"update": ' + b"9" * 5000 + b'}, "options": {}}',
        b'{"format": 1, "progress": {"update": 1e999}, "options": {}}',
        b'{"format": 1, "progress": {"data": []}, "options": {}}',
        b'{"format": 1, "progress": {"class_names": 5}, "options": {}}',
        b'{"format": 1, "progress": {"class_names": [1]}, "options": {}}',
        b'{"format": 1, "progress": {"data": {"class_names": [1]}}, "options": {}}',
        b'{"format": 1, "progress": {"epoch": ""}, "options": {}}',
        b'{"format": 1, "progress": {"epoch": NaN}, "options": {}}',
        b'{"format": 1}',
        b"[1]",
        b"null",
    ],
)
def test_a_state_with_a_right_checksum_and_wrong_content_is_named(tmp_path: Path, content: bytes) -> None:
    path = one.save(tmp_path / "7", make_state())
    forge(path, one.STATE, content)
    with pytest.raises(one.DamagedError, match=r"checkpoint .*7 cannot be read") as caught:
        one.load(path)
    assert len(str(caught.value)) < 500


def test_progress_and_options_are_read_without_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    path = one.save(tmp_path / "7", state)
    monkeypatch.setattr(one.tensors, "parse", None)
    found = one.load_without_tensors(path)
    assert (found.progress, found.options) == (state.progress, state.options)
    assert (found.model, found.optimizer, found.averages) == ({}, {}, {})
    whole = (path / "optimizer.safetensors").read_bytes()
    (path / "optimizer.safetensors").write_bytes(whole[:-1])
    with pytest.raises(one.DamagedError, match=r"optimizer\.safetensors has"):
        one.load_without_tensors(path)
    (path / "optimizer.safetensors").write_bytes(whole)
    (path / "state.json").write_bytes((path / "state.json").read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(one.DamagedError, match=r"checksum of state\.json"):
        one.load_without_tensors(path)
