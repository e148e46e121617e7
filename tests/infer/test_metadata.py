"""export.json is UTF-8 whatever the locale says."""

import os
import subprocess
import sys
from pathlib import Path

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
