"""export.json: UTF-8 whatever the locale says, and one sentence for what is no export."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.errors import UserError
from conveyor.infer import metadata
from conveyor.infer.load import load

SCRIPT = """
import locale, sys
from pathlib import Path
from conveyor.infer import metadata

assert locale.getpreferredencoding(False).lower() != "utf-8", "the locale of this test"
folder = Path(sys.argv[1])
(folder / "model.onnx").write_bytes(b"x")
labels = ["M\\u00fcller", "\\u732b"]
metadata.write(folder, {"format": "onnx", "num_classes": 2, "labels": labels, "preprocessing": {"image_size": 8}})
assert metadata.read(folder)["labels"] == labels
"""


def test_labels_of_any_language_in_a_plain_locale(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env={**os.environ, **plain}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "猫" in (tmp_path / "export.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("torch", {}),
        ("torch", {"options": None}),
        ("torch", {"options": ["x"]}),
        ("torch", {"options": {"model": 5}}),
        ("onnx", {"batch": "x"}),
        ("onnx", {"batch": 0}),
        ("onnx", {"preprocessing": {"image_size": 8, "normalization": [1]}}),
        ("onnx", {"preprocessing": {"image_size": 8, "interpolation": [1]}}),
    ],
)
def test_an_export_that_is_none_is_one_sentence(tmp_path: Path, form: str, changes: dict[str, object]) -> None:
    """Its checksums are right: whoever made it made them too."""
    (tmp_path / metadata.MODEL_FILES[form]).write_bytes(b"no tensors")
    document = {
        "format": form, "num_classes": 10, "preprocessing": {"image_size": 8}, "options": {"model": "resnet8"}, **changes,
    }  # fmt: skip
    metadata.write(tmp_path, {key: value for key, value in document.items() if value is not None})
    with pytest.raises(UserError):
        load(tmp_path)
