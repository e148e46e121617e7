"""Damaged checkpoints and records, through the command line: all are named, none is used."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoint.test_folder import forge, sign
from tests.conformance import reliability
from tests.data.photos import encoded, picture
from tests.run.runs import train

from conveyor.checkpoint import folder as one
from conveyor.data.formats import tfrecord_dataset
from conveyor.data.formats.tfrecord import scan, write_records
from conveyor.data.formats.tfrecord_example import encode_example

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]
CHECKPOINTS, RECORDS = 1400, 400
RECORD_FRAME = 16
"""Bytes of a record besides its data: length, checksum of it, checksum of the data."""
Conveyor = Callable[..., tuple[int, str, str]]
Damage = Callable[[Path, random.Random], None]


def change(path: Path, edit: Callable[[bytes], bytes]) -> None:
    path.write_bytes(edit(path.read_bytes()))


def any_file(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(path for path in folder.iterdir() if path.name != tfrecord_dataset.SUMMARY))


def flip_bit(folder: Path, draw: random.Random) -> None:
    def edit(whole: bytes) -> bytes:
        place, flipped = draw.randrange(8 * len(whole)), bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        return bytes(flipped)

    change(any_file(folder, draw), edit)


def flip_header(folder: Path, draw: random.Random) -> None:
    def edit(whole: bytes) -> bytes:
        place, flipped = draw.randrange(min(2000, 8 * len(whole))), bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        return bytes(flipped)

    change(any_file(folder, draw), edit)


def cut(folder: Path, draw: random.Random) -> None:
    change(any_file(folder, draw), lambda whole: whole[: draw.randrange(len(whole))])


def cut_after_a_record(folder: Path, draw: random.Random) -> None:
    """The file looks complete; only the stated number of images tells."""
    path = folder / "train-00000-of-00001"
    offset, length = draw.choice(scan(path).tolist())
    change(path, lambda whole: whole[: offset + RECORD_FRAME + length])


def lengthen(folder: Path, draw: random.Random) -> None:
    change(any_file(folder, draw), lambda whole: whole + draw.randbytes(draw.randint(1, 4096)))


def zero_page(folder: Path, draw: random.Random) -> None:
    def edit(whole: bytes) -> bytes:
        """As a power failure leaves a file whose size was written before its content."""
        start = draw.randrange(len(whole))
        ones = bytes(byte ^ 0xFF for byte in whole[start : start + 512])
        return whole[:start] + ones + whole[start + 512 :]

    change(any_file(folder, draw), edit)


def exchange_piece(folder: Path, draw: random.Random) -> None:
    change(any_file(folder, draw), lambda whole: whole[1:] + bytes([whole[0] ^ draw.randint(1, 255)]))


def remove(folder: Path, draw: random.Random) -> None:
    any_file(folder, draw).unlink()


def exchange_files(folder: Path, draw: random.Random) -> None:
    first, second = draw.sample(sorted(folder.iterdir()), 2)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def make_folder(folder: Path, draw: random.Random) -> None:
    path = any_file(folder, draw)
    path.unlink()
    path.mkdir()


def forge_manifest(folder: Path, draw: random.Random) -> None:
    lines = (folder / one.MANIFEST).read_text().splitlines(keepends=True)[:-1]
    digest, size, name = draw.choice(lines).rstrip("\n").split("  ")
    extra = draw.choice(
        ["word\n", f"{digest}  {'9' * draw.randint(19, 5000)}  {name}\n", f"{digest}  {size}\n", f"{digest}  {size}  ../{name}\n",
         f"{digest}  -1  {name}\n", f"{digest[1:]}  {size}  {name}\n", "\n", f"{digest}  {size}  {name}x\n"]
    )  # fmt: skip
    lines.insert(draw.randrange(len(lines) + 1), extra)
    sign(folder, "".join(lines))


def forge_state(folder: Path, draw: random.Random) -> None:
    document = json.loads((folder / one.STATE).read_text())
    text = draw.choice(
        [b"[" * draw.randint(2000, 200_000), b'{"a":' * draw.randint(2000, 100_000), b"null", b"7", b"[]", b'"x"', b"{}",
         json.dumps({**document, "format": draw.choice([0, 2, "1", None, [], 10**30])}).encode(),
         json.dumps({**document, "progress": draw.choice([[], None, 7, "x", {"update": -1}, {"update": "7"}])}).encode(),
         json.dumps({**document, "options": draw.choice([[], None, 7, "x", [[]]])}).encode(),
         json.dumps(document).encode()[: draw.randrange(1, 500)], draw.randbytes(draw.randint(1, 3000))]
    )  # fmt: skip
    forge(folder, one.STATE, text)


def forge_tensors(folder: Path, draw: random.Random) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    header = int.from_bytes(whole[:8], "little")
    text = draw.choice(
        [b"", whole[: draw.randrange(len(whole))], whole[:8] + b"{" * header + whole[8 + header :],
         (1 << draw.randint(40, 63)).to_bytes(8, "little") + whole[8:], draw.randbytes(draw.randint(1, 5000)),
         whole[:8] + whole[8 : 8 + header].replace(b'"F32"', b'"F64"', 1) + whole[8 + header :], b"\x80\x04N."]
    )  # fmt: skip
    forge(folder, draw.choice(["model.safetensors", "optimizer.safetensors"]), text)


CHECKPOINT_DAMAGES: list[Damage] = [
    flip_bit, flip_header, cut, lengthen, zero_page, exchange_piece, remove, exchange_files, make_folder, forge_manifest,
    forge_state, forge_tensors,
]  # fmt: skip
RECORD_DAMAGES: list[Damage] = [flip_bit, flip_header, cut, cut_after_a_record, lengthen, zero_page, exchange_piece]


def damaged(good: Path, bad: Path, damages: list[Damage], count: int) -> Iterator[tuple[str, Path]]:
    """`count` copies of `good`, each damaged in one way; (name of the damage, folder)."""
    draw = random.Random(0)
    for number in range(count):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        damage = damages[number % len(damages)]
        before = fingerprint(bad)
        while fingerprint(bad) == before:
            damage(bad, draw)
        yield f"{damage.__name__} {number}", bad


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in folder.iterdir()
    }


def test_damaged_checkpoints_are_named(tmp_path: Path, conveyor: Conveyor) -> None:
    train(tmp_path / "run", updates=2, updates_per_checkpoint=1, ema_decay=0.9)
    good = tmp_path / "run" / "checkpoints" / "2"
    bad = tmp_path / "bad" / "2"
    wrong: list[str] = []
    for name, folder in damaged(good, bad, CHECKPOINT_DAMAGES, CHECKPOINTS):
        code, _, err = conveyor("validate", "--checkpoint-path", folder, "--max-validation-images", 8)
        if code != 2 or str(tmp_path / "bad") not in err or len(err.strip().splitlines()) != 1 or len(err) > 1000:
            wrong.append(f"{name}: {code} {err[:300]}")
    assert not wrong, "\n".join(wrong[:20])
    reliability.write("checkpoints", f"{CHECKPOINTS} in {len(CHECKPOINT_DAMAGES)} ways, all named")


def write_data(folder: Path) -> None:
    folder.mkdir()
    generator = np.random.default_rng(0)
    for split, images in (("train", 8), ("validation", 4)):
        examples = [
            encode_example(
                {
                    "image/encoded": [encoded(picture(24, 24, int(generator.integers(1 << 30))))],
                    "image/class/label": [1 + n % 2],
                }
            )
            for n in range(images)
        ]
        write_records(folder / f"{split}-00000-of-00001", examples)
    summary = {"train_images": 8, "validation_images": 4, "classes": ["ape", "bee"]}
    (folder / tfrecord_dataset.SUMMARY).write_text(json.dumps(summary))


def test_damaged_records_are_named(tmp_path: Path, conveyor: Conveyor) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    write_data(good)
    words = ["--data", "imagenet", "--model", "resnet8", "--image-size", 16, "--micro-batch-size", 8,
             "--updates", 1, "--threads", 1, "--layout", "1x1", "--no-report", "--no-tensorboard"]  # fmt: skip
    code, _, err = conveyor("train", "--data-dir", good, "--run-dir", tmp_path / "first", *words)
    assert code == 0, err
    wrong: list[str] = []
    for name, folder in damaged(good, bad, RECORD_DAMAGES, RECORDS):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        code, _, err = conveyor("train", "--data-dir", folder, "--run-dir", run, *words)
        sentences = [line for line in err.splitlines() if line.startswith("conveyor: error:")]
        if code != 2 or len(sentences) != 1 or str(folder) not in sentences[0] or "Traceback" in err:
            wrong.append(f"{name}: {code} {err[:300]}")
        code, out, _ = conveyor("data", "verify", folder)
        if code != 1 or f"bad: {folder}" not in out.replace("bad: record", "bad:"):
            wrong.append(f"verify {name}: {code} {out[:300]}")
    assert not wrong, "\n".join(wrong[:20])
    reliability.write("records", f"{RECORDS} in {len(RECORD_DAMAGES)} ways, all named")
