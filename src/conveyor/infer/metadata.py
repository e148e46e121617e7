"""`export.json`: what an export is, what it expects, and the checksums of its files. No torch here."""

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Any

from conveyor.checkpoint.choice import EXPORT
from conveyor.errors import UserError
from conveyor.files import parse_json

METADATA = EXPORT
INPUT, OUTPUT = "images", "logits"
"""Names of the graph's input and output."""
BATCH_DIMENSION = "batch"
"""Name of the free size in ONNX files."""
MOST_CLASSES = 1 << 24
MODEL_FILES = {
    "onnx": "model.onnx",
    "openvino": "model.xml",
    "torch": "model.safetensors",
    "saved-model": "model.onnx",
}
"""The file that this program opens; a SavedModel for TensorFlow lies beside the ONNX file that it was made from."""
FORMATS = tuple(MODEL_FILES)


def is_export(path: Path) -> bool:
    return (path / METADATA).is_file()


def newest(path: Path, checkpoint: str | None = None) -> Path | None:
    """The export that `path` means: itself, or of numbered ones in it (`1`, `002`, ...) the highest; None: there is none.

    So other model servers keep versions. A `checkpoint` can be chosen of a run only.
    """
    entries = path.iterdir() if path.is_dir() and not is_export(path) else ()
    numbered = [entry for entry in entries if entry.name.isdecimal() and is_export(entry)]
    found = path if is_export(path) else max(numbered, key=lambda entry: (int(entry.name), entry.name), default=None)
    if found is not None and checkpoint is not None:
        raise UserError(f"{path} is an export, which has no checkpoints: leave out --checkpoint {checkpoint}")
    return found


def write(folder: Path, document: dict[str, Any]) -> None:
    """Write the metadata with the checksum of every other file in `folder`."""
    found = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / METADATA)
    files = {file.relative_to(folder).as_posix(): checksum(file) for file in found}
    text = json.dumps({**document, "files": files}, indent=1, ensure_ascii=False)
    (folder / METADATA).write_text(f"{text}\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """The metadata, after the files' checksums were verified; a damaged export is named, never loaded."""
    try:
        document = parse_json((folder / METADATA).read_text(encoding="utf-8"))
        files = dict(document["files"].items())
        form = document["format"]
        labels = document.get("labels", [])
        if form not in FORMATS or MODEL_FILES[form] not in files or not 0 < int(document["num_classes"]) < MOST_CLASSES:
            raise ValueError("not an export of this program")
        if not 0 < float(document.get("temperature", 1)) < 1e6 or not 0 <= float(document.get("abstain_below", 0)) <= 1:
            raise ValueError("its temperature or abstain_below is none")
        thresholds = document.get("thresholds") or [0.5] * int(document["num_classes"])
        if len(thresholds) != int(document["num_classes"]) or not all(0 <= float(one) <= 1 for one in thresholds):
            raise ValueError("its thresholds are none")
        batch = document.get("batch")
        if not isinstance(document["preprocessing"], dict) or not isinstance(labels, list):
            raise ValueError("not an export of this program")
        if not isinstance(document.get("options", {}), dict) or not (
            batch is None or (type(batch) is int and batch > 0)
        ):
            raise ValueError("its options or its batch are none")
    except FileNotFoundError:
        raise UserError(f"{folder} is not an export: it has no {METADATA}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as error:
        raise UserError(f"{folder / METADATA} is damaged ({error}): export the model again") from None
    for name, expected in files.items():
        file = folder / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or not file.is_file():
            raise UserError(f"the export {folder} lacks its file {name}: export the model again")
        if checksum(file) != expected:
            raise UserError(f"{file} is damaged: its checksum is not the one in {METADATA}; export the model again")
    assert isinstance(document, dict)
    return document


def checksum(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
