"""SavedModel exports, written and read by a real TensorFlow: that of this environment, or that of `make peers`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conveyor.infer.engines.engine import open_engine
from conveyor.infer.export import export
from conveyor.infer.load import from_options, load
from conveyor.options import Options

PEER = Path(os.environ.get("CONVEYOR_PEERS", Path(__file__).parents[2] / ".peers")) / "keras"
HERE = importlib.util.find_spec("tensorflow") is not None
needs_tensorflow = pytest.mark.skipif(
    not HERE and not (PEER / "bin" / "python").exists(),
    reason="TensorFlow is neither installed here nor in the environment keras of `make peers`",
)
WRITE = """
import sys
import torch
from torch import nn
from conveyor.infer.export import export
from conveyor.infer.graph import serving_graph
from conveyor.infer.load import from_options
from conveyor.options import Options
from conveyor.models import register

@register("pools")
class Pools(nn.Module):
    '''What no shipped model has: average pooling of both kinds, a window that is partly outside, tanh, flatten.'''
    def __init__(self, num_classes=10, in_channels=3):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 8, 3, (1, 2), 1, groups=1)
        self.pools = nn.Sequential(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Tanh(), nn.AvgPool2d(3, 2, 1),
                                   nn.MaxPool2d(3, 2, ceil_mode=True))
        self.fc = nn.Linear(8 * 4 * 2, num_classes)
    def forward(self, x):
        return self.fc(torch.flatten(self.pools(self.conv(x)), 1))

for index, (model, batch, more) in enumerate(MODELS):
    loaded = from_options(Options().replace(model=model, data="cifar10", seed=3, **more), "made")
    print(export(loaded, f"{sys.argv[1]}/{index}", "saved-model", batch=batch).text(), flush=True)
"""
MODELS = [
    ("resnet8", 4, {}), ("resnext14", None, {}), ("resnet18", None, {"norm": "group"}), ("resnet18", None, {"norm": "proxy"}),
    ("cifar_resnet8", None, {"norm": "group", "stable_norm": True}), ("cifar_resnet8", 2, {"norm": "group"}),
    ("efficientnet_b0", None, {}), ("efficientnet_lite0", 1, {}), ("mobilenet_v2", None, {}),
    ("mobilenet_v3_small", None, {}), ("squeezenet", None, {}), ("cifar_fast", None, {}), ("toy_model_bn", None, {}),
    ("pools", None, {}),
]  # fmt: skip
READ = """
import sys
import numpy as np
import tensorflow as tf
images = np.load(sys.argv[1])
for folder in sys.argv[2:]:
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    size = signature.structured_input_signature[1]["images"].shape[0] or len(images)
    logits = [signature(images=tf.constant(images[i : i + size]))["logits"].numpy() for i in range(0, len(images), size)]
    np.save(folder + "/logits.npy", np.concatenate(logits))
"""


def python(code: str, *words: str, tensorflow_only: bool = False) -> str:
    """Run a program with TensorFlow at hand, in another process: its threads and ours do not share one well."""
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    interpreter = sys.executable
    if not HERE:
        interpreter = str(PEER / "bin" / "python") if tensorflow_only else sys.executable
        packages = next(PEER.glob("lib/python*/site-packages"))
        variables |= {} if tensorflow_only else {"PYTHONPATH": str(packages)}
    ended = subprocess.run(
        [interpreter, "-c", code, *words], env=variables, text=True, capture_output=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@needs_tensorflow
@pytest.mark.conformance
@pytest.mark.timeout(1900)
def test_tensorflow_alone_reads_what_was_written(tmp_path: Path) -> None:
    said = python(f"MODELS = {MODELS!r}\n{WRITE}", str(tmp_path))
    assert said.count("largest difference to the model") == len(MODELS)
    images = np.random.default_rng(5).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    folders = [tmp_path / str(index) for index in range(len(MODELS))]
    for folder, (_, batch, _) in zip(folders, MODELS, strict=True):
        loaded = load(folder)  # ours opens the ONNX file beside it
        assert (loaded.spec["format"], loaded.batch) == ("saved-model", batch)
    python(READ, str(tmp_path / "images.npy"), *map(str, folders), tensorflow_only=True)
    for folder in folders:
        expected = open_engine(load(folder), "onnxruntime", batch=4, threads=1)(images)
        np.testing.assert_allclose(
            np.load(folder / "logits.npy"), expected, atol=1e-4 * max(1.0, np.abs(expected).max())
        )


@pytest.mark.skipif(HERE, reason="TensorFlow is installed here, so nothing is missing")
def test_without_tensorflow_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    from conveyor.errors import UserError

    loaded = from_options(Options().replace(model="resnet8", data="digits"), "digits")
    with pytest.raises(UserError, match="needs the package tensorflow: pip install tensorflow-cpu"):
        export(loaded, tmp_path / "out", "saved-model")
    assert not (tmp_path / "out").exists()
