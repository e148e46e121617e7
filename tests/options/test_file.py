"""YAML that somebody else wrote: one sentence, in bounded time and memory."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.errors import UserError
from conveyor.options import Options
from conveyor.options.file import MOST_BYTES, MOST_NODES, parse_mapping


def levels(first: str, one: str, separator: str, count: int, copies: int) -> str:
    """Each line holds the one before it `copies` times."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {one % separator.join([f'*a{n - 1}'] * copies)}" for n in range(1, count)]
    return "\n".join(lines) + "\n"


HOSTILE = {
    "deep lists": "a: " + "[" * 100_000,
    "deep lists that end": "a: " + "[" * 3000 + "]" * 3000,
    "deep mappings": "a: " + "{a: " * 3000 + "}" * 3000,
    "deep blocks": "\n".join(" " * n + "a:" for n in range(1400)),
    "merges of merges": levels("{x: 1}", "{<<: [%s]}", ", ", 30, 9),
    "lists of lists": levels("[1]", "[%s]", ", ", 30, 9),
    "a long chain of aliases": levels("[1]", "[%s]", ", ", 5000, 1),
    "a long chain of merges": levels("{x: 1}", "{<<: %s}", ", ", 5000, 1),
    "a list that holds itself": "a: &a [*a]",
    "a mapping merged into itself": "a: &a {<<: *a, b: 1}",
    "too many values": "a: [" + "1," * (MOST_NODES + 1) + "]",
    "too large": "a: " + "x" * MOST_BYTES,
    "too many digits": "updates: " + "9" * 5000,
    "many hexadecimal digits": "updates: 0x" + "f" * 100_000,
    "beyond any count": "updates: " + "9" * 400,
    "beyond any rate": "learning_rate: " + "9" * 400,
    "beyond any duration": "epochs: " + "9" * 5000 + "ep",
    "beyond any fraction": "updates_per_log: 1/" + "9" * 5000,
    "base sixty": "updates: " + ":".join(["59"] * 2000),
    "a day that is not": "epochs: 2024-99-99",
    "a time zone that is not": "epochs: 2001-01-01 00:00:00 +99:99",
    "no text": "a: \x00",
    "a program": "a: !!python/object/apply:os.system [ls]",
    "a set": "updates: !!set {a, b}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_options_are_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^f\.yml") as caught:
        Options.from_mapping(parse_mapping(text, "f.yml"), "f.yml")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_two_names_of_one_option_are_refused() -> None:
    with pytest.raises(UserError, match=r"mine\.yml: lr is a second name of learning-rate"):
        Options.from_mapping(parse_mapping("learning-rate: 0.1\nlr: 0.2\n", "mine.yml"), where="mine.yml")


def test_a_merge_bomb_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    """In a process of its own: more than this memory or this time ends it."""
    (tmp_path / "bomb.yml").write_text(HOSTILE["merges of merges"])

    def bounds() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    command = [sys.executable, "-m", "conveyor", "train", "--config", str(tmp_path / "bomb.yml"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=bounds)
    assert done.returncode == 2, done.stderr
    assert "aliases stand for more than" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ordinary_anchors_and_merges_go_on_working() -> None:
    text = (
        "base: &base {model: resnet8, seed: 1}\nmine: {<<: *base, seed: 2}\nlist: &list [1, 2]\nagain: [*list, *list]\n"
    )
    assert parse_mapping(text, "f.yml") == {
        "base": {"model": "resnet8", "seed": 1}, "mine": {"model": "resnet8", "seed": 2}, "list": [1, 2],
        "again": [[1, 2], [1, 2]],
    }  # fmt: skip
