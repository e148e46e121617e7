"""A run from its first line to its last file."""

import csv
import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.runs import assert_same_bits, checkpoint, names, train

from conveyor.checkpoint import choice, store
from conveyor.checkpoint.lock import RunLock
from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.run.finish import best_checkpoint
from conveyor.training.update import Updater
from conveyor.training.whole_model_lane import WholeModelLane


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 updates in 2 epochs that nobody may change."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    train(run, quiet=False, logs_per_epoch=2)
    return run


def test_a_run_leaves_a_complete_folder(finished: Path) -> None:
    present = {path.name for path in finished.iterdir()}
    assert {
        "options.yml", "metrics.csv", "validation.csv", "log.txt", "timing.json", "confusion.json", "best.json", "checkpoints",
    } <= present  # fmt: skip
    assert names(finished) == ["4", "8"]
    assert [row["update"] for row in rows(finished / "metrics.csv")] == ["2", "4", "6", "8"]
    assert [row["update"] for row in rows(finished / "validation.csv")] == ["4", "8"]
    confusion = json.loads((finished / "confusion.json").read_text())
    assert sum(map(sum, confusion["matrix"])) == 30
    timing = json.loads((finished / "timing.json").read_text())
    assert set(timing) >= {"data", "forward", "backward", "reduce", "update"}
    assert all(seconds >= 0 for seconds in timing.values())
    mistakes = json.loads((finished / "mistakes" / "mistakes.json").read_text())
    assert mistakes
    assert all(
        (finished / "mistakes" / entry["file"]).exists() and entry["label"] != entry["predicted"] for entry in mistakes
    )
    best = best_checkpoint(finished)
    assert best is not None
    assert best.name in ("4", "8")


def test_the_stored_options_rerun_the_run_exactly(finished: Path, tmp_path: Path) -> None:
    options = Options.from_yaml(finished / "options.yml")
    assert options.model.model == "resnet8"
    assert options.model.image_size == 8
    train(tmp_path / "again", **options.replace(run_dir=str(tmp_path / "again")).changed())
    assert_same_bits(checkpoint(finished, 8), checkpoint(tmp_path / "again", 8))


def test_the_end_of_a_stored_run_can_be_moved(finished: Path, tmp_path: Path) -> None:
    """Stop after 4 of 8 updates, go on to 8: the same bits, the same rows."""
    run = tmp_path / "half"
    train(run, logs_per_epoch=2, updates=4, lr_schedule="constant")
    train(run, logs_per_epoch=2, updates=8, lr_schedule="constant", resume="auto")
    train(tmp_path / "whole", logs_per_epoch=2, updates=8, lr_schedule="constant")
    assert_same_bits(checkpoint(tmp_path / "whole", 8), checkpoint(run, 8))
    kept = ("update", "loss", "accuracy")
    assert [[row[k] for k in kept] for row in rows(run / "metrics.csv")] == [
        [row[k] for k in kept] for row in rows(tmp_path / "whole" / "metrics.csv")
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adamw", "weight_decay": 0.01, "mixup_alpha": 0.2},
        {"precision": "16.16", "stochastic_rounding": "weights", "loss_scale": "128"},
        {"precision": "16.32", "loss_scale": "auto", "recompute": ["block"]},
        {"accumulation": 2, "replicas": 2, "bn_span": 2, "cutmix_lambda": 0.5, "ema_decay": 0.8},
        {"model": "efficientnet_cifar", "optimizer": "rmsprop", "survival": 0.7, "dropout": 0.3, "image_size": 16},
    ],
    ids=["adamw", "half", "mixed", "span", "dropout"],
)
def test_resume_is_exact_whatever_the_options(tmp_path: Path, changes: dict[str, Any]) -> None:
    common: dict[str, Any] = {"updates": 4, "updates_per_checkpoint": 2, "validation": False, **changes}
    train(tmp_path / "whole", **common)
    train(tmp_path / "rest", **{**common, "checkpoint_path": str(tmp_path / "whole" / "checkpoints" / "2")})
    assert_same_bits(checkpoint(tmp_path / "whole", 4), checkpoint(tmp_path / "rest", 4))


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": 2, "ema_decay": 0.9, "momentum": 0.9, "optimizer": "momentum"},
        {"precision": "16.16", "stochastic_rounding": "weights", "loss_scale": "128"},
        {"norm": "group", "optimizer": "adamw", "recompute": ["block"]},
    ],
    ids=["averaged", "half", "group"],
)
def test_only_the_named_parameters_are_trained(tmp_path: Path, changes: dict[str, Any]) -> None:
    common: dict[str, Any] = {
        "updates": 4, "updates_per_checkpoint": 2, "validation": False, "checkpoint_at_start": True,
        "weight_decay": 0.1, "l2_regularization": 0.1, "train_only": ["^layer3.", "fc.weight"], **changes,
    }  # fmt: skip
    train(tmp_path / "whole", **common)
    first, last = checkpoint(tmp_path / "whole", 0), checkpoint(tmp_path / "whole", 4)
    for name, start in first.model.items():
        trained = name.startswith(("layer3.", "fc.weight")) and "running" not in name and "tracked" not in name
        statistic = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        assert torch.equal(start, last.model[name]) != (trained or statistic), name
        if not trained and not statistic and last.averages:
            assert torch.equal(last.averages[name], start.float()), name
    owners = {name.partition("/")[2] for name in last.optimizer if "/" in name}
    assert owners <= {name for name in first.model if name.startswith(("layer3.", "fc.weight"))}
    train(tmp_path / "rest", **{**common, "checkpoint_path": str(tmp_path / "whole" / "checkpoints" / "2")})
    assert_same_bits(last, checkpoint(tmp_path / "rest", 4))


def test_training_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--train-only layer9 fits no parameter of the network"):
        train(tmp_path / "run", train_only=["fc", "layer9"])


def test_a_folder_holds_one_run(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already holds a run"):
        train(finished)
    with RunLock(tmp_path / "busy"), pytest.raises(UserError, match="in use by process"):
        train(tmp_path / "busy")


def test_a_folder_stays_free_where_the_data_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without validation too: nothing opens the data before the training does."""

    def missing(*_: object) -> None:
        raise UserError("no data")

    with monkeypatch.context() as patched, pytest.raises(UserError, match="no data"):
        patched.setattr("conveyor.run.assemble.open_dataset", missing)
        train(tmp_path, validation=False)
    train(tmp_path, validation=False)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "whole", updates=6, updates_per_checkpoint=2, validation=False)
    train(tmp_path / "hurt", updates=6, updates_per_checkpoint=2, validation=False)
    for name in ("4", "6"):
        file = tmp_path / "hurt" / store.CHECKPOINTS / name / "optimizer.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(bytes(content))
    with caplog.at_level(logging.WARNING):
        train(tmp_path / "hurt", updates=6, updates_per_checkpoint=2, validation=False, resume="auto")
    assert "checkpoints/6 is damaged" in caplog.text
    assert "checkpoints/4 is damaged" in caplog.text
    assert_same_bits(checkpoint(tmp_path / "whole", 6), checkpoint(tmp_path / "hurt", 6))


def test_keeping_few_keeps_the_best(tmp_path: Path) -> None:
    train(tmp_path / "run", updates=12, updates_per_epoch=3, checkpoints_to_keep=1)
    best = choice.read_best(tmp_path / "run")
    assert best is not None
    assert names(tmp_path / "run") == [str(update) for update in sorted({best[0], 12})]


def test_a_run_stops_when_it_is_good_enough(tmp_path: Path) -> None:
    result = train(tmp_path / "run", updates=400, target_accuracy=20.0, micro_batch_size=32)
    assert result["reason"] == "target reached"
    assert result["accuracy"] is not None
    assert result["accuracy"] >= 20.0
    assert result["updates"] < 400
    assert names(tmp_path / "run")[-1] == str(result["updates"])


def test_a_run_stops_when_it_learns_no_more(tmp_path: Path) -> None:
    result = train(
        tmp_path / "run", updates=400, updates_per_epoch=1, patience=3, learning_rate=0.0, lr_schedule="constant"
    )
    assert result["reason"] == "patience"
    assert result["updates"] == 4


def test_a_run_stops_when_its_time_is_up_and_goes_on_later(tmp_path: Path) -> None:
    result = train(tmp_path / "run", updates=6, max_time="0s", lr_schedule="constant")
    assert (result["reason"], result["updates"]) == ("time", 1)
    assert names(tmp_path / "run") == ["1"]
    train(tmp_path / "run", updates=6, resume="auto", lr_schedule="constant")
    train(tmp_path / "whole", updates=6, lr_schedule="constant")
    assert_same_bits(checkpoint(tmp_path / "whole", 6), checkpoint(tmp_path / "run", 6))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_layer(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"updates": 9, "updates_per_checkpoint": 1, "lr_schedule": "stepped", "lr_drops": ["3up"]}
    with pytest.raises(
        UserError, match=r"not finite in update 5 .*learning rate 5e\+37.*first not finite: the output of bn1"
    ):
        train(tmp_path / "run", **changes, lr_values=[1e39], validation=False)
    assert names(tmp_path / "run")[:3] == ["1", "2", "3"]
    checkpoint(tmp_path / "run", 3)


def test_a_validation_without_answers_has_no_accuracy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Finite weights whose answers overflow: no 0 %, no nan, the run goes on."""
    run = tmp_path / "run"
    result = train(run, updates=4, lr_schedule="stepped", lr_drops=["3up"], lr_values=[1e36])
    assert (result["reason"], result["updates"], result["accuracy"]) == ("done", 4, None)
    assert result["best_update"] is None
    assert "the validation after update 4 gave answers that are not finite" in caplog.text
    assert not (run / "validation.csv").exists() or rows(run / "validation.csv") == []
    assert choice.read_best(run) is None
    assert names(run) == ["4"]


@pytest.mark.parametrize("validation", [True, False], ids=["validated", "saved"])
def test_weights_that_are_not_finite_end_the_run_before_they_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: bool
) -> None:
    """They have no accuracy, and no checkpoint that would push out a good one."""
    run, true = tmp_path / "run", Updater.apply

    def apply(updater: Updater, update: int, rate: float) -> None:
        true(updater, update, rate)
        if update == 7:
            with torch.no_grad():
                updater._parameters[0].view(-1)[0] = float("nan")

    monkeypatch.setattr(Updater, "apply", apply)
    with pytest.raises(
        UserError, match=r"the weights conv1.weight are not finite after update 8 \(epoch 2.00, learning"
    ):
        train(run, validation=validation, checkpoints_per_epoch=1, checkpoints_to_keep=1)
    assert names(run) == ["4"]
    if validation:
        assert [row["update"] for row in rows(run / "validation.csv")] == ["4"]


def test_the_exact_layer_is_found_at_once_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"in update 2 .* bn1 is not finite"):
        train(tmp_path / "run", learning_rate=1e38, lr_schedule="constant", fp_exceptions=True, validation=False)


def test_without_metrics_there_is_throughput_only(tmp_path: Path) -> None:
    train(tmp_path / "run", disable_metrics=True, validation=False)
    (row,) = rows(tmp_path / "run" / "metrics.csv")[-1:]
    assert row["loss"] == ""
    assert float(row["images_per_second"]) > 0


def test_checkpoints_and_averages_are_validated_after_training(tmp_path: Path) -> None:
    train(tmp_path / "run", validation_mode="after", average_last=[1], average_decay=[0.5], checkpoints_per_epoch=2)
    found = [row["name"] for row in rows(tmp_path / "run" / "validation.csv")]
    assert found == ["2", "4", "6", "8", "average-exponential-0.5", "average-last-1"]
    assert checkpoint_average(tmp_path / "run", "average-last-1") == ["6", "8"]


def checkpoint_average(run: Path, name: str) -> list[str]:
    from conveyor.checkpoint import folder as one

    averaged = one.load(run / store.CHECKPOINTS / name).progress["averaged"]
    assert isinstance(averaged, list)
    return averaged


def test_no_checkpoints_means_none(tmp_path: Path) -> None:
    train(tmp_path / "run", checkpoints_per_epoch=0)
    assert names(tmp_path / "run") == []


def test_the_initial_weights_can_be_kept(tmp_path: Path) -> None:
    train(tmp_path / "run", updates=2, checkpoint_at_start=True, validation=False)
    assert names(tmp_path / "run") == ["0", "2"]


def test_training_starts_from_given_weights(finished: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", updates=1, learning_rate=0.0, weights=str(finished), validation=False)
    expected, found = checkpoint(finished, 8).model, checkpoint(tmp_path / "run", 1).model
    assert (expected["conv1.weight"] == found["conv1.weight"]).all()


def test_a_checkpoint_of_another_shape_is_one_sentence(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="updates per epoch"):
        train(tmp_path / "run", checkpoint_path=str(finished), updates_per_epoch=5)
    with pytest.raises(UserError, match="does not fit the model"):
        train(tmp_path / "other", weights=str(finished), model="resnet20")


def test_checkpoints_begin_at_the_first_epoch_asked_for(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"updates": None, "epochs": 5, "updates_per_epoch": 1, "validation": False}
    train(tmp_path / "run", **changes, checkpoints_per_epoch="1/3", first_checkpoint_epoch=2)
    assert names(tmp_path / "run") == ["2", "5"]


def test_the_running_average_is_what_is_validated(tmp_path: Path) -> None:
    from conveyor import validate

    result = train(tmp_path / "run", ema_decay=0.5, micro_batch_size=32)
    state = checkpoint(tmp_path / "run", 8)
    assert not (state.averages["conv1.weight"] == state.model["conv1.weight"]).all()
    assert [record["accuracy"] for record in validate(checkpoint_path=tmp_path / "run")][-1] == result["accuracy"]


@pytest.mark.parametrize("kind", ["generated_data", "synthetic_data"])
def test_throughput_needs_no_data(tmp_path: Path, kind: str) -> None:
    from conveyor import validate

    result = train(tmp_path / "run", **{kind: True}, data="cifar10", updates=2)
    assert result["updates"] == 2
    records = validate(checkpoint_path=tmp_path / "run", repeat=2)
    assert [record["images"] for record in records] == [30, 30]


def test_a_split_that_names_no_layer_is_refused_on_any_layout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no layer 'layer9' to split at"):
        train(tmp_path / "run", splits=["layer9"])


def test_a_run_that_could_not_begin_leaves_its_folder_free(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no weights file"):
        train(tmp_path / "run", weights=str(tmp_path / "nothing.pt"))
    assert train(tmp_path / "run")["reason"] == "done"


@pytest.mark.parametrize("last", [4, 8])
def test_a_validation_that_a_signal_left_out_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Told to leave in the last update of an epoch, or of the run: the best, patience and the files are as without it."""
    run, plain = tmp_path / "run", tmp_path / "plain"
    train(plain, updates=8)
    compute = WholeModelLane.gradients

    def gradients(lane: WholeModelLane, batches: Any, update: int, loss_scale: float) -> Any:
        if update == last - 1:
            signal.raise_signal(signal.SIGTERM)
        return compute(lane, batches, update, loss_scale)

    with monkeypatch.context() as patched:
        patched.setattr(WholeModelLane, "gradients", gradients)
        assert train(run, updates=8)["reason"] == "interrupted"
    assert not [row for row in rows(run / "validation.csv") if row["update"] == str(last)]
    result = train(run, updates=8, resume="auto")
    assert result["reason"] == "done"
    assert [row["accuracy"] for row in rows(run / "validation.csv")] == [
        row["accuracy"] for row in rows(plain / "validation.csv")
    ]
    assert choice.read_best(run) == choice.read_best(plain)
    assert checkpoint(run, last).progress["validated_at"] == last
    assert_same_bits(checkpoint(plain, 8), checkpoint(run, 8))
