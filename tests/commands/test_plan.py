"""`conveyor plan` from the command line."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conveyor.cli import main
from conveyor.data.subject import planned
from conveyor.options import Options, specs
from conveyor.plan import planner
from conveyor.plan.choose import optimiser_copies

SMALL = ["plan", "--model", "cifar_resnet8", "--image-size", "16", "--num-classes", "10"]


def result(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*SMALL, *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_a_plan_for_two_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    answer = result(capsys, "--devices", "2", "--global-batch", "64", "--picture", str(picture), "--top", "20")
    assert (answer["devices"], answer["global_batch"]) == (2, 64)
    layouts = {one["layout"] for one in answer["proposals"]}  # type: ignore[attr-defined]
    assert layouts == {"2x1", "1x2"}
    assert str(answer["command"]).startswith("conveyor train --model cifar_resnet8")
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.parametrize("words", ["--top 0", "--check --rounds 0", "--simulate devices=4 --scaling 4 0"])
def test_less_than_one_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words.split()]) == 2
    assert "should be a whole number above 0, not '0'" in capsys.readouterr().err


def test_more_workers_than_cores_are_said_to_share_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert result(capsys, "--devices", "1", "--device", "cpu", "--global-batch", "64")["notes"] == []
    (note,) = result(capsys, "--devices", "512", "--device", "cpu", "--global-batch", "512")["notes"]  # type: ignore[misc]
    assert "512 workers share" in note


def test_the_command_of_a_plan_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    words = str(result(capsys, "--layout", "1x2", "--global-batch", "64", "--recompute", "block")["command"]).split()
    assert main([*words[1:], "--data", "cifar10", "--dry-run", "--json"]) == 0
    spec = json.loads(capsys.readouterr().out)
    assert (spec["layout"], spec["stages"], spec["global_batch"]) == ("1x2", 2, 64)


def test_memory_decides(capsys: pytest.CaptureFixture[str]) -> None:
    free = result(capsys, "--devices", "2", "--global-batch", "64")
    least = min(max(one["memory_per_device"]) for one in free["proposals"])  # type: ignore[attr-defined]
    tight = result(capsys, "--devices", "2", "--global-batch", "64", "--memory", str(int(least)))
    assert all(max(one["memory_per_device"]) <= least for one in tight["proposals"])  # type: ignore[attr-defined]
    assert main([*SMALL, "--devices", "2", "--memory", "10k"]) == 2
    assert "nothing fits" in capsys.readouterr().err


def test_the_text_has_table_stages_and_picture(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*SMALL, "--devices", "2", "--layout", "1x2", "--micro-batch-size", "8", "--global-batch", "32"]) == 0
    out = capsys.readouterr().out
    for words in ("img/s", "MiB/device", "forward ms", "timetable of one lane with 4 slots", "run it: conveyor train"):
        assert words in out
    assert all(len(line) <= 80 for line in out.partition("\n\n")[0].splitlines()), "what is no table is folded"
    rows = [line for line in out.splitlines() if line.startswith(("   0 |", "   1 |"))]
    assert len(rows) == 2
    assert {"0", "1", "2", "3", "a", "b", "c", "d"} <= set("".join(rows))


def test_simulation_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    answer = result(
        capsys, "--simulate", "hosts=2", "devices=8", "straggler=0.02", "mtbf=100h", "--scaling", "4", "16",
        "--micro-batch-size", "4", "--stages", "2", "--splits", "auto", "--accumulation", "64", "--replicas", "2",
    )  # fmt: skip
    four, sixteen = answer["forecasts"]  # type: ignore[misc]
    assert (four["devices"], four["accumulation"], sixteen["devices"], sixteen["accumulation"]) == (4, 64, 16, 16)
    assert sixteen["images_per_second"] > four["images_per_second"]
    assert four["finish"]["mean"] >= four["finish"]["work"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--devices", "0"], "should be a whole number above 0"),
        (["--scaling", "4"], "belongs to --simulate"),
        (["--simulate", "hots=3"], "did you mean 'hosts'"),
        (["--devices", "2", "--memory", "much"], "is not a size"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], words: list[str], answer: str) -> None:
    assert main([*SMALL, *words]) == 2
    assert answer in capsys.readouterr().err


def test_the_subject_of_a_plan() -> None:
    assert planned(Options()).image_size == 224
    assert planned(Options().replace(model="resnet18", data="cifar10")).num_classes == 10
    assert planned(Options().replace(model="resnet18", image_size=64)).image_size == 64


def test_a_batch_given_at_its_default_value_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    answer = result(capsys, "--devices", "2", "--micro-batch-size", "32", "--global-batch", "192")
    assert {one["micro_batch"] for one in answer["proposals"]} == {32}  # type: ignore[attr-defined]
    assert result(capsys, "--devices", "2", "--global-batch", "48")["global_batch"] == 48


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "sequential", "zero-bubble", "interleaved-1f1b", "looped-bfs"])
def test_a_schedule_that_was_asked_for_is_the_one_planned(schedule: str, capsys: pytest.CaptureFixture[str]) -> None:
    """gpipe too, which is the default of training; and those without a timetable keep their name."""
    answer = result(
        capsys, "--devices", "2", "--stages", "2", "--global-batch", "64", "--pipeline-schedule", schedule, "--top", "9"
    )
    assert {one["schedule"] for one in answer["proposals"]} == {schedule}  # type: ignore[attr-defined]
    assert main([*str(answer["command"]).split()[1:], "--data", "cifar10", "--dry-run"]) == 0
    assert (f"--pipeline-schedule {schedule}" in str(answer["command"])) == (schedule != "gpipe")
    timed = [note for note in answer["notes"] if "is timed as" in note]  # type: ignore[attr-defined]
    assert len(timed) == (schedule in ("zero-bubble", "interleaved-1f1b", "looped-bfs"))


def test_the_machines_memory_is_a_limit_that_its_workers_share(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --memory nothing is recommended that this machine could not hold."""
    words = ("--devices", "2", "--device", "cpu", "--global-batch", "64", "--top", "99")
    small = 6 * 2**20
    monkeypatch.setattr(planner, "usable_memory", lambda: small)
    answer = result(capsys, *words)
    for one in answer["proposals"]:  # type: ignore[attr-defined]
        assert one["lanes"] * sum(one["memory_per_device"]) <= small


def test_the_state_of_every_update_rule_is_counted() -> None:
    expected = {"sgd": 2, "momentum": 3, "lars": 3, "muon": 3, "rmsprop": 4, "adam": 4, "adamw": 4, "lamb": 4}
    for name, copies in expected.items():
        assert optimiser_copies(Options().replace(optimizer=name).optimizer) == copies
    assert set(expected) == set(specs()["optimizer"].about.choices or ())
    assert optimiser_copies(Options().replace(optimizer="muon", ema_decay=0.99).optimizer) == 4
    for name in ("lars", "muon"):  # their filters keep a moment even without momentum
        assert optimiser_copies(Options().replace(optimizer=name, momentum=0.0).optimizer) == 3


def test_a_cluster_of_8_64_and_1024_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--micro-batch-size", "32", "--cluster", "devices=8", "mtbf=4000h", "storage=1GB/s", "image=3k"]
    answer = result(capsys, *words)
    forecasts = answer["forecasts"]
    assert [one["devices"] for one in forecasts] == [8, 64, 1024]  # type: ignore[attr-defined]
    assert forecasts[-1]["data_seconds"] > 0  # type: ignore[index]
    assert main([*SMALL, *words]) == 0
    assert "with 1024 devices an update waits for the storage" in capsys.readouterr().out
    assert main([*SMALL, "--cluster", "--simulate", "hosts=2"]) == 2
    assert "give one of them" in capsys.readouterr().err
