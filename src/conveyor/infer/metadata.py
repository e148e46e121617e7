"""`export.json`: what an export is, what it expects, and the checksums of its files. No torch here."""

import hashlib
import json
from pathlib import Path
from typing import Any

from conveyor.errors import UserError

METADATA = "export.json"
FORMATS = ("onnx", "openvino", "torch")
INPUT, OUTPUT = "images", "logits"
BATCH_DIMENSION = "batch"
"""Name of the free size in ONNX files."""
"""Names of the graph's input and output."""
MODEL_FILES = {"onnx": "model.onnx", "openvino": "model.xml", "torch": "model.safetensors"}


def is_export(path: Path) -> bool:
    return (path / METADATA).is_file()


def write(folder: Path, document: dict[str, Any]) -> None:
    """Write the metadata with the checksum of every other file in `folder`."""
    files = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.is_file() and file.name != METADATA}
    (folder / METADATA).write_text(json.dumps({**document, "files": files}, indent=1, ensure_ascii=False) + "\n")


def read(folder: Path) -> dict[str, Any]:
    """The metadata, after the files' checksums were verified; a damaged export is named, never loaded."""
    try:
        document = json.loads((folder / METADATA).read_text())
        files = dict(document["files"])
        form = document["format"]
        if form not in FORMATS or MODEL_FILES[form] not in files or not isinstance(document["preprocessing"], dict):
            raise ValueError("not an export of this program")
        int(document["num_classes"])
    except FileNotFoundError:
        raise UserError(f"{folder} is not an export: it has no {METADATA}") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{folder / METADATA} is damaged ({error}): export the model again") from None
    for name, expected in files.items():
        file = folder / name
        if Path(name).name != name or not file.is_file():
            raise UserError(f"the export {folder} lacks its file {name}: export the model again")
        if checksum(file) != expected:
            raise UserError(f"{file} is damaged: its checksum is not the one in {METADATA}; export the model again")
    assert isinstance(document, dict)
    return document


def checksum(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
