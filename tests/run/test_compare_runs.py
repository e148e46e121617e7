"""Two runs compared: identical, or where they part."""

from pathlib import Path

import pytest
import torch
from tests.run.runs import small_spec

from conveyor.checkpoint import folder as checkpoints
from conveyor.commands import compare as command
from conveyor.errors import UserError
from conveyor.run import worker
from conveyor.run.compare_runs import compare


def run(folder: Path, **changes: object) -> Path:
    worker.run(small_spec(run_dir=str(folder), updates=4, updates_per_log=2, updates_per_checkpoint=2, **changes))
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("compare")
    return run(place / "one"), run(place / "other")


def test_equal_runs_are_identical(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = compare(*two)
    assert found.identical
    assert (found.log_points, found.checkpoints) == (2, 2)
    assert command.run(command_arguments(*two)) == 0
    assert capsys.readouterr().out == "identical (2 log points and 2 checkpoints compared)\n"


def command_arguments(one: Path, other: Path) -> "object":
    import argparse

    return argparse.Namespace(one=str(one), other=str(other), json=False)


def test_one_bit_is_found(two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    third = run(tmp_path / "third")
    path = third / "checkpoints" / "2"
    state = checkpoints.load(path)
    state.model["bn1.weight"][0] = torch.nextafter(state.model["bn1.weight"][0], torch.tensor(9.0))
    checkpoints.save(path, state)
    found = compare(two[0], third)
    assert (found.identical, found.update) == (False, 2)
    assert found.what.startswith("bn1.weight (model)")
    assert command.run(command_arguments(two[0], third)) == 1
    assert "different from update 2 on: bn1.weight" in capsys.readouterr().out


def test_the_digest_finds_what_checkpoints_do_not_hold(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = run(tmp_path / "seed", seed=7, checkpoints_per_epoch="0")
    found = compare(two[0], other)
    assert found.update == 2


def test_runs_without_anything_in_common(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="nothing can be compared"):
        compare(two[0], tmp_path / "empty")
    with pytest.raises(UserError, match="is not a run"):
        compare(two[0], tmp_path / "nowhere")
