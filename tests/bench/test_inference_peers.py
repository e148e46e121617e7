"""The engines take turns at every batch size; those far behind leave early."""

import json
import sys

import pytest

from conveyor.bench import inference_peers as peers
from conveyor.bench import limits, page, tables
from conveyor.bench.records import OURS, is_ours, precision_of
from conveyor.measure.processor import multiplies_bfloat16
from conveyor.measure.rounds import Program

FAKE = """
import json, sys
batch = 1
print(json.dumps({"ready": True, "versions": {"library": "1.0"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "prepare" in asked:
        batch = asked["prepare"]
        print(json.dumps({"prepared": batch, "chosen": "this"}), flush=True)
    else:
        print(json.dumps({"images": batch * SPEED, "seconds": 2.0, "cpu_seconds": 4.0}), flush=True)
"""
BROKEN = """
import json, sys, time
print(json.dumps({"ready": True}), flush=True)
input()
time.sleep(100)
"""


def fake(name: str, speed: int) -> Program:
    return Program(name, [sys.executable, "-c", FAKE.replace("SPEED", str(speed))])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose limits are known at once."""
    monkeypatch.setattr(limits, "programs", lambda threads: [fake(name, 100) for name in limits.UNITS])


@pytest.mark.usefixtures("machine")
def test_everybody_is_asked_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [fake(OURS, 10), fake("slow", 7), fake("quick", 8), Program("absent", ["/nowhere/at/all"])]
    monkeypatch.setattr(peers, "programs", lambda *_, **__: found)
    said = []
    records = peers.measure(
        "resnet50", [1, 4], rounds=3, threads=1, report=lambda record: said.append(peers.text(record))
    )
    assert [record.conditions["batch"] for record in records] == [1, 4]
    assert records[1].results["slow rate"].values == (14.0, 14.0, 14.0)
    assert records[1].results[peers.BEST].values == (1.25, 1.25, 1.25), "the best peer is the quick one"
    assert records[1].results[peers.BEST_CPU].median == 1.25
    assert records[1].results["GEMM"].values == (50.0, 50.0, 50.0)
    flops = limits.needs("resnet50", 224, 1000, training=False).flops
    assert records[1].results["conveyor share of GEMM"].median == pytest.approx(100 * 20.0 * flops / 50e9)
    assert list(records[0].conditions["absent"]) == ["absent"]
    assert records[0].conditions["chosen"] == {OURS: "this"}
    assert records[0].conditions["versions"]["quick"] == {"library": "1.0"}
    assert "ratio to the best: 1.25 x" in said[0]


@pytest.mark.usefixtures("machine")
def test_the_time_is_filled_with_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "programs", lambda *_, **__: [fake(OURS, 10), fake("quick", 8), fake("far off", 4)])
    monkeypatch.setattr(peers, "MOST_ROUNDS", 7)
    records = peers.measure("resnet50", [1, 4], rounds=2, seconds=30.0, threads=1)
    assert [record.results[peers.BEST].n for record in records] == [7, 7]
    assert records[0].results["ratio to far off"].values == (2.5, 2.5), "it has shown what it can do"
    assert peers.measure("resnet50", [1], rounds=2, seconds=0.0, threads=1)[0].results[peers.BEST].n == 2


@pytest.mark.usefixtures("machine")
def test_who_takes_too_long_to_get_ready_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Program("broken", [sys.executable, "-c", BROKEN])
    monkeypatch.setattr(peers, "programs", lambda *_, **__: [fake(OURS, 10), broken, fake("quick", 8)])
    monkeypatch.setattr("conveyor.measure.rounds.GRACE_SECONDS", 0.1)
    records = peers.measure("resnet50", [1, 4], rounds=1, threads=1, prepare_seconds=1.0)
    for record in records:
        assert list(record.conditions["absent"]) == ["broken"]
        assert record.results[peers.BEST].values == (1.25,)


def test_the_commands_name_model_and_threads() -> None:
    found = peers.programs("resnet50", image_size=224, threads=2, folder="f", only=["OpenVINO"])
    ours = [name for name in peers.ENGINES if is_ours(name) and half(name)]
    assert ours[::2] == ["conveyor float32", "conveyor int8"][: len(ours[::2])]
    assert [each.name for each in found] == [*ours, "OpenVINO"]
    asked = json.loads(found[-1].command[-1])
    assert (asked["engine"], asked["model"], asked["threads"]) == ("openvino", "resnet50", 2)
    everybody = peers.programs("resnet50", image_size=224, threads=2, folder="f")
    assert [each.name for each in everybody] == [*ours, *filter(half, peers.PEERS)]


def half(name: str) -> bool:
    """Whether this processor runs it: bfloat16 only where it multiplies it."""
    return multiplies_bfloat16() or precision_of(name) != "bfloat16"


@pytest.mark.usefixtures("machine")
def test_each_precision_is_compared_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"conveyor float32": 10, "conveyor int8": 30, "lib": 8, "other": 5, "lib int8": 20, "other int8": 24}
    monkeypatch.setattr(peers, "programs", lambda *_, **__: [fake(name, speed) for name, speed in speeds.items()])
    [record] = peers.measure("resnet50", [1], rounds=3, threads=1)
    results = record.results
    assert results["conveyor rate"] == results["conveyor int8 rate"], "our fastest"
    assert results[peers.BEST].values == (1.25, 1.25, 1.25), "int8 beside int8"
    assert results["ratio to lib"].median == 3.75
    assert (results["ratio at float32"].median, results["ratio at int8"].median) == (1.25, 1.25)
    assert results["lib rate"].n == 3, "far behind int8, but the best in float32"
    assert results["other rate"].n == 2, "left out of the later rounds"
    rows = {row[1]: row for row in tables.peers_rows([record])}
    assert list(rows)[:2] == ["**conveyor float32**", "**conveyor int8**"]
    assert rows["lib"][3:] == ["1.25x (1.25..1.25)", "3.75x (3.75..3.75)", "ahead"], "float32 beside it, and int8"
    [head] = page.head_rows([record])
    assert head[1:4] == ["int8: 15", "other int8: 12", "1.25x (1.25..1.25)"]
    assert head[4:] == [f"{record.machine['processor']}, {record.time[:10]}"]


@pytest.mark.conformance
def test_real_engines_compete() -> None:
    (record,) = peers.measure(
        "efficientnet-b0", [2], rounds=2, threads=1, image_size=32, only=["torch eager", "ONNX Runtime int8"]
    )
    assert {name for name in record.results if name.endswith(" rate")} == {
        "conveyor rate", "torch eager rate", "ONNX Runtime int8 rate",
        *(f"{name} rate" for name in peers.ENGINES if is_ours(name) and half(name)),
    }  # fmt: skip
    assert all(rate > 0 for rate in record.results["conveyor rate"].values)
    assert record.conditions["chosen"]


def test_one_that_was_spared_stays_out() -> None:
    """Rounds are paired by their numbers: a peer that came back when the best became slow would be paired wrongly."""
    rates = peers.Rates({OURS: [10.0, 10.0], "best": [10.0, 10.0], "slow": [5.0, 5.0]})
    assert [name for name in rates.wall if rates.worth_another_round(name)] == [OURS, "best"]
    del rates.wall["best"]
    assert not rates.worth_another_round("slow")
