"""Names of the older programs' checkpoints, in a run folder of ours."""

import json

import pytest

from conveyor.dialects.checkpoint_names import checkpoint_path
from conveyor.errors import UserError


@pytest.fixture
def run(tmp_path):
    for name, epoch in (
        ("10", 1.0),
        ("15", 1.5),
        ("20", 2.0),
        ("average-last-2", 2.0),
        ("average-exponential-0.97", 2.0),
    ):
        folder = tmp_path / "run" / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"progress": {"epoch": epoch, "update": 1}}))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50_imagenet_1.pt", "10"),
        ("mobilenet-v3-large_cifar10_2.pt", "20"),
        ("ckpt-15", "15"),
        ("ckpt-15.index", "15"),
        ("epoch_1.5", "15"),
        ("epoch_1.5.h5", "15"),
        ("weight_avg_N_2", "average-last-2"),
        ("weight_avg_exp_0.97", "average-exponential-0.97"),
    ],
)
def test_a_name_opens_its_checkpoint(run, name, expected):
    for path in (run / name, run / "checkpoints" / name, run / "ckpt" / name):
        assert checkpoint_path(str(path)) == str(run / "checkpoints" / expected)


def test_other_paths_stay_as_they_are(run, tmp_path):
    own = tmp_path / "resnet50_imagenet_1.pt"
    own.write_bytes(b"")
    for path in (own, run, run / "checkpoints", tmp_path / "absent" / "ckpt-3", run / "notes.txt"):
        assert checkpoint_path(str(path)) == str(path)
    assert checkpoint_path(str(run / "ckpt")) == str(run)
    assert checkpoint_path("") == ""


@pytest.mark.parametrize("name", ["resnet50_imagenet_3.pt", "ckpt-11", "epoch_0.5.h5", "weight_avg_N_9"])
def test_a_name_without_a_checkpoint_says_what_there_is(run, name):
    with pytest.raises(UserError, match=r"15 \(epoch 1.5\), 20 \(epoch 2\)"):
        checkpoint_path(str(run / name))
