"""The arithmetic of a run, without torch."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.data.photos import make_folder

from conveyor.errors import UserError
from conveyor.layout import Machine
from conveyor.options import Options
from conveyor.run.describe import describe
from conveyor.spec import resolve

KEYS = [
    "micro_batch",
    "accumulation",
    "replicas",
    "stages",
    "devices",
    "global_batch",
    "epochs",
    "updates_per_epoch",
    "updates_total",
    "warmup_updates",
    "peak_lr",
    "optimiser",
    "schedule",
    "updates_per_log",
    "updates_per_checkpoint",
    "updates_per_call",
    "calls",
    "split_points",
    "precision",
    "validation",
    "layout",
    "notes",
    "command",
]


def spec_of(**changes: Any) -> Any:
    return resolve(Options().replace(**changes), machine=Machine(2))


def test_the_defaults_are_a_small_network_on_the_digits() -> None:
    spec = spec_of()
    assert (spec.subject.name, spec.data.name, spec.subject.image_size, spec.subject.num_classes, spec.subject.in_channels) == (
        "resnet8", "digits", 8, 10, 1,
    )  # fmt: skip
    assert (spec.length.updates_per_epoch, spec.length.updates_total, spec.topology.global_batch) == (44, 880, 32)
    assert spec.notes == (
        "29 of 1437 images do not fill a global batch of 32 and sit out each epoch (other ones each time)",
    )


def test_one_image_that_sits_out_is_one() -> None:
    assert spec_of(micro_batch_size=4, max_train_images=33).notes == (
        "1 of 33 images does not fill a global batch of 4 and sits out each epoch (another one each time)",
    )


def test_the_json_object_has_every_promised_key_and_is_json() -> None:
    document = spec_of(data="cifar10", micro_batch_size=8, accumulation=8, epochs=6).to_json()
    assert set(KEYS) <= document.keys()
    assert json.loads(json.dumps(document)) == document
    assert (document["global_batch"], document["updates_per_epoch"], document["updates_total"]) == (64, 781, 4686)
    assert document["validation"] == {"batch": 8, "replicas": 1, "images": 10_000}
    assert document["command"].startswith("conveyor train ")


def test_the_rate_follows_the_batch() -> None:
    spec = spec_of(
        data="imagenet", learning_rate=0.5, lr_reference_batch=256, micro_batch_size=16, replicas=4, accumulation=8
    )
    assert spec.schedule.peak == 0.5 * 512 / 256
    assert spec.schedule.rate(0) == spec.schedule.peak


def test_warm_up_is_rounded_down_to_updates() -> None:
    assert spec_of(warmup="1.5ep").schedule.warmup == 66
    assert spec_of(warmup="10%").schedule.warmup == 88


def test_the_rmsprop_decay_follows_the_batch() -> None:
    spec = spec_of(optimizer="rmsprop", rmsprop_decay_per_sample=2.0**-14, micro_batch_size=24, accumulation=32)
    assert spec.to_json()["rmsprop_decay"] == 0.953125
    with pytest.raises(UserError, match="negative"):
        spec_of(rmsprop_decay_per_sample=0.5)


def test_a_span_must_divide_the_replicas() -> None:
    with pytest.raises(UserError, match="span of 2 does not divide 3 replicas"):
        spec_of(bn_span=2, replicas=3)


def test_the_last_epoch_and_events_are_counted_in_updates() -> None:
    spec = spec_of(data="cifar10", micro_batch_size=8, accumulation=8, epochs=6, logs_per_epoch=10)
    assert (spec.events.updates_per_log, spec.events.updates_per_call, spec.events.calls) == (71, 71, 66)
    assert any("closest is 11" in note for note in spec.notes)


def test_a_plan_for_a_person_names_what_matters() -> None:
    text = describe(spec_of(model="resnet20", data="cifar10", warmup="1ep", splits=["b1/0/relu"]))
    for part in (
        "resnet20",
        "cifar10",
        "50,000",
        "warm-up 1562 updates",
        "layout",
        "split at b1/0/relu",
        "conveyor train",
    ):
        assert part in text


def test_unknown_names_are_one_sentence_with_the_nearest() -> None:
    with pytest.raises(UserError, match="resnet2"):
        spec_of(model="resnet2O")
    with pytest.raises(UserError, match="cifar10"):
        spec_of(data="cifer10")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"average_decay": [1.0]}, "below 1"),
        ({"average_last": [2], "checkpoints_per_epoch": 0}, "needs checkpoints"),
        ({"average_decay": [0.9], "checkpoints_per_epoch": 0}, "needs checkpoints"),
        ({"num_classes": 5}, "less than the 10 classes of digits"),
    ],
)
def test_what_would_fail_at_the_end_or_in_the_first_update_is_said_before(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        spec_of(**changes)


def test_device_ids_are_noted_on_a_cpu_and_must_exist_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec_of(**changes: Any) -> Any:
        return resolve(Options().replace(**changes))

    monkeypatch.setattr("conveyor.layout.count_accelerators", lambda: 0)
    (note,) = (note for note in spec_of(device_ids=[3]).notes if "--device-ids" in note)
    assert note == "--device-ids 3 has no effect: the run is on the CPU"
    assert not any("--device-ids" in note for note in spec_of().notes)
    monkeypatch.setattr("conveyor.layout.count_accelerators", lambda: 2)
    assert not any("--device-ids" in note for note in spec_of(device_ids=[1]).notes)
    assert any("--device cpu" in note for note in spec_of(device_ids=[1], device="cpu").notes)
    with pytest.raises(UserError, match="--device-ids 3: there is no such device, this machine has devices 0 to 1"):
        spec_of(device_ids=[0, 3])


def test_odd_data_are_noted(tmp_path: Path) -> None:
    make_folder(tmp_path, 3, 2)
    assert "has no effect: the digits are embedded" in notes_of(data="digits", data_dir=str(tmp_path))
    assert "answers will be numbers without names" in notes_of(data_dir=str(tmp_path), num_classes=5)
    (tmp_path / "validation").rename(tmp_path / "test")
    assert "test is the validation set, so the best checkpoint is chosen by it" in notes_of(data_dir=str(tmp_path))
    shutil.rmtree(tmp_path / "test" / "bee")
    assert "test has no images of bee" in notes_of(data_dir=str(tmp_path))
    shutil.rmtree(tmp_path / "train" / "bee")
    assert "one class alone" in notes_of(data_dir=str(tmp_path))


def notes_of(**changes: Any) -> str:
    return "; ".join(spec_of(**changes, micro_batch_size=1).notes)


def test_a_folder_without_images_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "train" / "cats").mkdir(parents=True)
    with pytest.raises(UserError, match="no image to train on"):
        spec_of(data="folder", data_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"updates": 3, "progressive_image_size": ["0:8", "5:32"]}, "--progressive-image-size 5:32 has no effect"),
        ({"updates": 3, "warmup": "200%"}, "--warmup 200% is longer than the run of 3 updates"),
        ({"epochs": 0.001}, "--epochs 0.001 is less than one update: nothing is trained"),
        ({"freeze": "backbone"}, "--freeze backbone leaves random weights"),
        ({"half_type": "bfloat16", "saturate": True}, "--half-type, --saturate: no effect at --precision 32.32"),
    ],
)
def test_what_has_no_effect_in_this_run_is_noted(changes: dict[str, Any], note: str) -> None:
    assert [note in said for said in spec_of(**changes).notes].count(True) == 1


def test_what_comes_to_its_turn_is_not_noted() -> None:
    spec = spec_of(epochs=6, progressive_image_size=["0:8", "5:32"], warmup="5ep", freeze="backbone", weights="w.pth")
    assert not any(flag in note for note in spec.notes for flag in ("--progressive", "--warmup", "--freeze"))
