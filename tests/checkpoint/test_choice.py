"""`--checkpoint best|last|N`: one meaning and one default."""

from pathlib import Path

import pytest

from conveyor.checkpoint import choice
from conveyor.errors import UserError
from conveyor.serve import versions

ROWS = "name,update,epoch,accuracy\n4,4,1,80.5\n8,8,2,91.25\n12,12,3,90\naverage-3,-1,3,93\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints, an average and one that is still being written."""
    folder = tmp_path / "digits"
    for name in ("4", "8", "12", "average-3", "16"):
        (folder / choice.CHECKPOINTS / name).mkdir(parents=True)
        if name != "16":
            (folder / choice.CHECKPOINTS / name / choice.MANIFEST).write_text("{}")
    (folder / "validation.csv").write_text(ROWS)
    choice.write_best(folder, 8, 91.25)
    return folder


@pytest.mark.parametrize(
    ("which", "name"), [(None, "12"), ("last", "12"), ("best", "8"), ("4", "4"), ("average-3", "average-3")]
)
def test_the_words_name_a_checkpoint(run: Path, which: str | None, name: str) -> None:
    assert choice.find(run, which).name == name
    assert choice.find(run / choice.CHECKPOINTS, None).name == "12"
    assert versions.newest(run, which).path.name == name


def test_a_choice_says_what_it_is_and_what_else_there_is(run: Path) -> None:
    assert choice.text(choice.find(run)) == (
        "checkpoint 12 of digits, the last (90.00 %); the best is 8 (91.25 %): --checkpoint best"
    )
    assert choice.text(choice.find(run, "best")) == "checkpoint 8 of digits, the best (91.25 %)"
    choice.write_best(run, 12, 95.0)
    assert choice.text(choice.find(run)) == "checkpoint 12 of digits, the last and the best (95.00 %)"


def test_what_cannot_be_chosen_is_one_sentence(run: Path) -> None:
    with pytest.raises(
        UserError, match="does not hold a checkpoint 5: choose --checkpoint best, last or one of 4, 8, 12"
    ):
        choice.find(run, "5")
    with pytest.raises(UserError, match="is one checkpoint: leave out --checkpoint best"):
        choice.find(run / choice.CHECKPOINTS / "4", "best")
    (run / choice.BEST_FILE).write_text('{"update": Infinity, "accuracy": 1}')
    with pytest.raises(UserError, match="none is the best"):
        choice.find(run, "best")
    (run / choice.BEST_FILE).unlink()
    with pytest.raises(UserError, match="none is the best: use --checkpoint last"):
        choice.find(run, "best")
    with pytest.raises(UserError, match="no complete model in"):
        choice.find(run / "absent")


def test_a_new_best_is_a_new_version_to_serve(run: Path) -> None:
    before = versions.newest(run, "best").stamp
    (run / choice.CHECKPOINTS / "16" / choice.MANIFEST).write_text("{}")
    assert versions.newest(run, "best").stamp == before
    choice.write_best(run, 16, 99.0)
    assert versions.newest(run, "best").path.name == "16"
