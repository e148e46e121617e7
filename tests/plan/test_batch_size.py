"""The micro-batch that fits: real runs in processes of their own."""

import json

import pytest

from conveyor import cli
from conveyor.cli import main

MODEL = ["--model", "resnet8", "--data", "cifar10", "--threads", "1", "--layout", "1x1"]


@pytest.mark.parametrize("sizes", [["4"], ["0", "4"], ["4", "4"], ["8", "300"]])
def test_sizes_that_say_nothing_are_refused(sizes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch-find", *MODEL, "--sizes", *sizes]) == 2
    assert "--sizes needs" in capsys.readouterr().err


@pytest.mark.conformance
def test_the_largest_one_fills_the_memory_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    def found(*more: str) -> dict[str, float]:
        assert cli.main(["batch-find", *MODEL, "--json", *more]) == 0
        result: dict[str, float] = json.loads(capsys.readouterr().out)
        return result

    first = found("--sizes", "16", "64", "--most", "64")
    assert first["capped"]
    assert first["per_image"] > 0
    limit = first["fixed"] + 100 * first["per_image"]
    second = found("--sizes", "16", "64", "--memory", f"{limit:.0f}MiB")
    assert not second["capped"]
    assert 64 < second["largest"] < 140
    by_size = {one["batch"]: one["mib"] for one in second["sizes"]}  # type: ignore[attr-defined]
    assert by_size[second["largest"]] <= limit + 1
