"""What is wrong with the images of a data set: duplicates, leaks into validation, broken and odd pictures, doubtful labels."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from conveyor.data import catalogue
from conveyor.data.formats import lists
from conveyor.data.formats.memory import MemoryDataset, Pixels
from conveyor.data.open import open_dataset, open_store
from conveyor.data.photo.decode import BadImageError, Encoded
from conveyor.data.verify import check_image
from conveyor.errors import UserError
from conveyor.monitor.progress import mapped
from conveyor.options import Options

SIDE = 96
NEAR = 3
"""Bits of the 64 of `difference_hash` in which near duplicates may differ."""
SMALL, LONG, FLAT = 32, 5.0, 2.0
"""Odd: a photograph's shorter side below this many pixels, a longer side of so many shorter ones, a deviation of grey below."""
SURE = 0.9
"""A label is doubtful where the model is at least this sure of another class."""


class Finding(NamedTuple):
    """One thing about one image; `exclude`: training is better off without it."""

    kind: str
    split: str
    path: str
    label: str
    detail: str
    other: str = ""
    exclude: bool = False


class Seen(NamedTuple):
    """One image as it was looked at; `problem`: why it cannot be read."""

    split: str
    number: int
    path: str
    label: int
    digest: bytes
    hash: int
    odd: str
    problem: str


class Pictures:
    """All images of a data set, by split and number."""

    def __init__(self, options: Options) -> None:
        info = catalogue.info(options.data)
        self.classes = info.class_names or tuple(str(number) for number in range(info.num_classes))
        self._sets: dict[str, Any] = {}
        self._counts: Counter[tuple[str, int]] = Counter()
        for split, count in (("train", info.train_images), ("validation", info.validation_images)):
            folder = catalogue.data_dir(options.data)
            if count and info.kind == "files" and folder is not None:
                self._sets[split] = open_store(folder, split, options.data, catalogue.hold_out(options.data, info))
            elif count:
                self._sets[split] = open_dataset(options, split)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return ((split, index) for split, part in self._sets.items() for index in range(len(part)))

    def count(self, one: Seen) -> None:
        sets = getattr(self._sets[one.split], "label_sets", None)
        for label in (one.label,) if sets is None else sets[one.number]:
            self._counts[one.split, label] += 1

    def key(self, split: str, index: int) -> str:
        return str(self._sets[split].key(index))

    def balance(self) -> dict[str, tuple[int, int]]:
        """Images of each class in training and validation, by the last look at them."""
        return {
            name: (self._counts["train", number], self._counts["validation", number])
            for number, name in enumerate(self.classes)
        }

    def pixels(self, split: str, index: int) -> Pixels:
        """uint8 [H, W, 3], a photograph squeezed into `SIDE` x `SIDE`; `BadImageError`, `UserError`: it cannot be read."""
        part = self._sets[split]
        if isinstance(part, MemoryDataset):
            image = part.images[index].numpy()
            return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image[..., :3]
        return _squeezed(Encoded(part.fetch(index).data))

    def look(self, split: str, index: int) -> Seen:
        part, label, problem = self._sets[split], -1, None
        try:
            if isinstance(part, MemoryDataset):
                label = int(part.labels[index] if part.labels.dim() == 1 else part.labels[index].argmax())
                data = part.images[index].numpy().tobytes()
            else:
                fetched = part.fetch(index)
                label, data, problem = fetched.label, fetched.data, check_image(fetched.data)
            pixels = self.pixels(split, index)
            odd = "" if isinstance(part, MemoryDataset) else oddity(Encoded(data), pixels)
        except (BadImageError, UserError) as error:
            return Seen(split, index, part.key(index), label, b"", 0, "", problem or str(error))
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return Seen(split, index, part.key(index), label, digest, difference_hash(pixels), odd, problem or "")


def _squeezed(photo: Encoded) -> Pixels:
    out = np.empty((SIDE, SIDE, 3), np.uint8)
    photo.crop_into(out, (0.0, 0.0, float(photo.width), float(photo.height)))
    return out


def oddity(photo: Encoded, pixels: Pixels) -> str:
    """What is unusual about a photograph; empty: nothing."""
    height, width = photo.height, photo.width
    if min(height, width) < SMALL:
        return f"only {width} x {height} pixels"
    if max(height, width) > LONG * min(height, width):
        return f"{width} x {height} pixels"
    return "nearly one colour" if float(pixels.mean(axis=2).std()) < FLAT else ""


def difference_hash(pixels: Pixels) -> int:
    """64 bits: whether each of 8 x 8 grey fields is darker than its right neighbour. Equal for copies of other size."""
    grey = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L").resize((9, 8), Image.Resampling.BOX))
    return int.from_bytes(np.packbits(grey[:, :-1].astype(int) < grey[:, 1:]).tobytes(), "big")


def near_pairs(hashes: Sequence[int], splits: Sequence[str]) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, whose hashes differ in at most `NEAR` bits: of each i the first such j of every split.

    All pairs would be half the square of the frames of one film. Of four bands of 16 bits, at least one is equal in such a
    pair: only images that share a band are compared.
    """
    values, first = np.array(hashes, np.uint64), dict[tuple[int, int], int]()
    names, kinds = np.unique(np.array(splits, dtype=np.str_), return_inverse=True)
    for band in range(4):
        keys = (values >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        order = np.argsort(keys, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            for place, one in enumerate(members[:-1]):
                rest = members[place + 1 :]
                close = rest[np.bitwise_count(values[rest] ^ values[one]) <= NEAR]
                for kind in range(len(names)) if len(close) else ():
                    of_kind = close[kinds[close] == kind]
                    if len(of_kind):
                        place_of = (int(one), kind)
                        first[place_of] = min(first.get(place_of, len(values)), int(of_kind[0]))
    return {(one, other) for (one, _), other in first.items()}


def audit(pictures: Pictures, answers: Iterable[Path] = (), threads: int = 4) -> list[Finding]:
    """All findings, in a fixed order. Of two equal images the later one goes, of a leak the one in training."""
    seen = list(mapped(lambda place: pictures.look(*place), list(pictures), "Audit", threads=threads))
    for one in seen:
        pictures.count(one)

    def finding(kind: str, one: Seen, detail: str, other: str = "", exclude: bool = False) -> Finding:
        label = pictures.classes[one.label] if 0 <= one.label < len(pictures.classes) else ""
        return Finding(kind, one.split, one.path, label, detail, other, exclude)

    found = [finding("broken", one, one.problem, exclude=True) for one in seen if one.problem]
    found += [finding("odd", one, one.odd) for one in seen if one.odd and not one.problem]
    good = [one for one in seen if one.digest]
    equal: dict[bytes, list[Seen]] = defaultdict(list)
    for one in good:
        equal[one.digest].append(one)
    first = {
        one.path: same[-1] if same[-1].split != same[0].split else same[0] for same in equal.values() for one in same
    }
    for one in good:
        kept = first[one.path]
        if one is not kept:
            found.append(finding(*_kind("duplicate", one, kept), kept.path, exclude=one.path != kept.path))
    # Flat pictures are all alike to the hash; exact copies are told already.
    distinct = [one for one in good if first[one.path] is one and "colour" not in one.odd]
    for i, j in sorted(near_pairs([one.hash for one in distinct], [one.split for one in distinct])):
        found.append(
            finding(*_kind("near duplicate", distinct[i], distinct[j]), distinct[j].path,
                    exclude=distinct[i].split != distinct[j].split)
        )  # fmt: skip
    return [*found, *doubtful(answers, {one.path: one.split for one in seen})]


def _kind(kind: str, one: Seen, other: Seen) -> tuple[str, Seen, str]:
    labels = "" if one.label == other.label else ", and their labels differ"
    if one.split != other.split:
        return "leak", one, f"{kind} of a {other.split} image{labels}"
    return kind, one, f"{kind} in {one.split}{labels}"


def doubtful(files: Iterable[Path], known: dict[str, str]) -> list[Finding]:
    """Labels that a trained model doubts, the surest first, from files of `conveyor validate --answers`."""
    found = []
    for file in files:
        rows = lists.columns(file, "surrogateescape")
        if not {"path", "label", "answer", "confidence", "right"} <= rows.keys():
            raise UserError(f"{file} is no file of answers: make one with conveyor validate RUN --answers FILE")
        wanted = [rows[name] for name in ("path", "label", "answer", "confidence", "right")]
        try:
            sure = [
                (float(confidence), path, label, answer)
                for path, label, answer, confidence, right in zip(*wanted, strict=True)
                if not int(right)
            ]
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{file} is damaged ({error}): make it again with conveyor validate RUN --answers FILE"
            ) from None
        for confidence, path, label, answer in sure:
            if confidence >= SURE and path in known:
                detail = f"the model says {answer}, {100 * confidence:.1f} % sure"
                found.append((confidence, Finding("doubtful label", known[path], path, str(label), detail)))
    return [one for _, one in sorted(found, key=lambda pair: -pair[0])]
