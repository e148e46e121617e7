import json
import sys

import pytest

from conveyor.bench import inference_peers as peers
from conveyor.bench.records import OURS
from conveyor.bench.rounds import Contestant

FAKE = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"images": asked["batch"] * SPEED, "seconds": 2.0, "cpu_seconds": 4.0}), flush=True)
"""


def fake(name: str, speed: int) -> Contestant:
    return Contestant(name, [sys.executable, "-c", FAKE.replace("SPEED", str(speed))])


def test_everybody_is_asked_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [fake(OURS, 10), fake("slow", 5), fake("quick", 8), Contestant("absent", ["/nowhere/at/all"])]
    monkeypatch.setattr(peers, "contestants", lambda *_, **__: found)
    said: list[str] = []
    records = peers.measure("resnet50", [1, 4], rounds=3, threads=1, report=said.append)
    assert [record.conditions["batch"] for record in records] == [1, 4]
    assert records[1].results["slow rate"].values == (10.0, 10.0, 10.0)
    assert records[1].results[peers.BEST].values == (1.25, 1.25, 1.25), "the best peer is the quick one"
    assert records[1].results[peers.BEST_CPU].median == 1.25
    assert list(records[0].conditions["absent"]) == ["absent"]
    assert "ratio to the best: 1.25 x" in said[0]


def test_the_time_is_filled_with_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "contestants", lambda *_, **__: [fake(OURS, 10), fake("quick", 8)])
    monkeypatch.setattr(peers, "MOST_ROUNDS", 7)
    records = peers.measure("resnet50", [1, 4], rounds=2, seconds=30.0, threads=1)
    assert [record.results[peers.BEST].n for record in records] == [7, 7]
    assert peers.measure("resnet50", [1], rounds=2, seconds=0.0, threads=1)[0].results[peers.BEST].n == 2


def test_the_commands_name_model_and_batches() -> None:
    found = peers.contestants("resnet50", [1, 90], image_size=224, threads=2, folder="f", only=["OpenVINO"])
    assert [each.name for each in found] == [OURS, "OpenVINO"]
    asked = json.loads(found[1].command[-1])
    assert (asked["engine"], asked["batches"], asked["threads"]) == ("openvino", [1, 90], 2)
    assert len(peers.contestants("resnet50", [1], image_size=224, threads=2, folder="f")) == len(peers.PEERS)
