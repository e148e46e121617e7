import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.infer import measure_speed
from conveyor.infer.engines.engine import Source
from conveyor.options import Options


def test_only_without_real_images_and_on_the_processor() -> None:
    assert measure_speed.applies(Options().replace(generated_data=True, device="cpu"))
    assert measure_speed.applies(Options().replace(synthetic_data=True, device="cpu"))
    assert not measure_speed.applies(Options().replace(device="cpu"))
    assert not measure_speed.applies(Options().replace(generated_data=True, device="cuda"))


def test_repeats_and_images_are_as_asked() -> None:
    options = Options().replace(
        model="resnet8",
        data="digits",
        generated_data=True,
        micro_batch_size=4,
        repeat=3,
        max_validation_images=20,
        threads=1,
    )
    said: list[str] = []
    measured, records = measure_speed.measure_options(options, engine="torch", say=said.append)
    assert [record["images"] for record in records] == [20, 20, 20]
    assert measured.images_per_second == pytest.approx(
        (records[1]["images_per_second"] + records[2]["images_per_second"]) / 2
    )
    assert sum("samples/sec" in line for line in said) == 3
    assert 0 <= records[0]["accuracy"] <= records[0]["accuracy_top5"] <= 100


def test_from_the_command_line(
    conveyor: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "engines", lambda self: ("torch",))
    words = [
        "validate",
        "--model",
        "resnet8",
        "--data",
        "digits",
        "--generated-data",
        "--repeat",
        2,
        "--micro-batch-size",
        2,
    ]
    words += ["--max-validation-images", 8, "--threads", 1, "--run-dir", tmp_path]
    code, out, _ = conveyor(*words)
    assert code == 0
    assert out.count("samples/sec") == 3
    assert "latency avg:" in out
    assert "latency 99p9:" in out
    code, out, _ = conveyor(*words, "--json-logs")
    assert len(json.loads(out)) == 2
