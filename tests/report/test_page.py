"""The report's HTML: complete, well formed, small, without the network, whatever is missing in the run folder."""

import html.parser
import json
import re
import shutil
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.report.make_run import make_run

from conveyor.cli import main
from conveyor.errors import UserError
from conveyor.report import inputs, sections
from conveyor.report.page import SIZE_LIMIT, render, write_report

VOID = {"meta", "link", "br", "img"}


class Balance(html.parser.HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Balance:
    balance = Balance()
    balance.feed(text)
    balance.close()
    assert balance.open == []
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    links = re.findall(r"""(?:src|href)=["'](?!data:)[^"']*|url\(|@import""", text)
    assert links == []
    return balance


def test_everything_is_there(run_folder: Path) -> None:
    path = write_report([run_folder])
    text = path.read_text()
    checked(text)
    assert len(text.encode()) < SIZE_LIMIT
    for section in (
        "curves",
        "time",
        "layout",
        "timeline",
        "classes",
        "calibration",
        "mistakes",
        "right",
        "augmented",
        "layers",
        "operators",
        "options",
        "notes",
    ):
        assert f'<section id="{section}">' in text
    for words in (
        "88.36 %",
        "446 img/s",
        "18min 40s",
        "most often taken for",
        "conveyor train --model resnet20",
        "gradient exchange 4.7 %",
        "Expected calibration error 16.25 % (15 bins), on average 16.3 points too sure. Of the weights after update 3900",
        "It is too sure of itself, by 16 points",
        "mixed as in update 3900",
        "cat 70\u00a0%, dog 30\u00a0%",
    ):
        assert words in re.sub(r"</?span>", "", text)


def test_a_comparison_has_the_calibration_error(run_folder: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", mistakes=0)
    (other / "calibration.json").unlink()
    text = write_report([run_folder, other], tmp_path / "c.html").read_text()
    assert text.count("16.25 %") == 1
    assert "calibration error" in text


def test_a_live_page_has_no_inline_script_or_style(run_folder: Path) -> None:
    text = render([inputs.read_run(run_folder)], live=True)
    assert "<style" not in text
    assert " style=" not in text
    assert re.findall(r"<script[^>]*>[^<]*", text) == ['<script src="report.js">']


@pytest.mark.parametrize("missing", ["metrics.csv", "validation.csv", "timing.json", "confusion.json", "calibration.json", "mistakes", "right", "augmented", "options.yml", "timeline-0.json", "spec.json", "result.json", "profile"])  # fmt: skip
def test_any_file_may_be_missing(run_folder: Path, tmp_path: Path, missing: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    gone = copy / missing
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    checked(render([inputs.read_run(copy)]))


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    (tmp_path / "options.yml").write_text("model: resnet8\n")
    (tmp_path / "metrics.csv").write_text("update,epoch,loss\n1,0.1,nan\n2,0.2,2.5\n3,0.")
    run = inputs.read_run(tmp_path)
    assert run.series("loss") == [(0.2, 2.5)]
    text = render([run])
    checked(text)
    assert "unfinished" in text


def test_a_thousand_classes_and_large_pictures_stay_below_the_limit(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "large", classes=1000, mistakes=40, image_side=224)
    text = render([inputs.read_run(folder)])
    assert len(text.encode()) < SIZE_LIMIT
    assert 'class="matrix pixels"' in text
    assert text.count("data:image/webp") >= 8


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", mistakes=0)
    bad = "<script>alert(1)</script>"
    (folder / "confusion.json").write_text(
        json.dumps({"classes": [bad, "b"], "counts": [[0, 0, 3], [0, 1, 2], [1, 1, 4]]})
    )
    text = render([inputs.read_run(folder)])
    checked(text)
    assert bad not in text
    assert text.count("<script>") == 1


def test_comparison_shows_what_differs(run_folder: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", shift=1.5, mistakes=0)
    text = write_report([run_folder, other], tmp_path / "c.html").read_text()
    checked(text)
    rows = re.findall(
        r"<td[^>]*>([a-z-]+)</td><td[^>]*>(\S+)</td><td[^>]*>(\S+)</td>", text[text.index("options-table") :]
    )
    assert rows == [("seed", "0", "15")]


def test_confusion_counts_sparse_and_dense_agree(tmp_path: Path) -> None:
    (tmp_path / "options.yml").touch()

    def counts(**given: list[list[int]]) -> inputs.Confusion | None:
        (tmp_path / "confusion.json").write_text(json.dumps({"classes": ["a", "b"], **given}))
        return inputs.read_run(tmp_path).confusion

    dense, sparse = counts(matrix=[[3, 1], [0, 4]]), counts(counts=[[0, 0, 3], [0, 1, 1], [1, 1, 4]])
    assert dense == sparse
    assert dense is not None
    assert dense.recalls() == [0.75, 1.0]


def test_the_command(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run_folder), "--output", str(tmp_path / "x.html")]) == 0
    assert str(tmp_path / "x.html") in capsys.readouterr().out
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    with pytest.raises(UserError, match="holds no run"):
        inputs.read_run(tmp_path)


def test_a_damaged_file_is_named(run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    (copy / "timing.json").write_text("{")
    with pytest.raises(UserError, match=r"timing\.json cannot be read"):
        inputs.read_run(copy)


def test_the_picture_of_the_layout_deals_spans_as_the_run_does(tmp_path: Path) -> None:
    """Neighbouring replicas that share statistics stay in one lane: 8 slots on 3 lanes are 2, 3, 3, in pairs 2, 2, 4."""
    folder = make_run(tmp_path / "spans")
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**spec, "layout": "3x1", "stages": 1, "slots": 8}))
    pictures = []
    for span in (1, 2):
        options = [line for line in (folder / "options.yml").read_text().splitlines() if "bn_span" not in line]
        (folder / "options.yml").write_text("\n".join([*options, f"bn_span: {span}"]) + "\n")
        pictures.append(sections.layout(inputs.read_run(folder))["svg"])
    assert "slots 5 to 7" in pictures[0]
    assert "slots 4 to 7" in pictures[1]


def test_all_labels_of_a_multi_label_run_are_shown() -> None:
    """300 classes, of which one has no image: 299 rows, the weakest first, none left out."""
    from conveyor.report import sections

    found = {
        "classes": [f"class {n}" for n in range(300)], "update": 7, "thresholds": [0.5] * 300,
        "average_precision": [None if n == 5 else (n + 1) / 300 for n in range(300)],
        "counts": [(0 if n == 5 else 10, 10, 5) for n in range(300)],
    }  # fmt: skip
    shown = sections.labels(found)
    assert shown is not None
    rows = [*shown["rows"], *shown["others"]]
    assert len(rows) == 299
    assert "class 0" in str(rows[0][0])
    assert "class 299" in str(rows[-1][0])


def test_a_table_of_thousands_of_labels_is_cut_and_says_so() -> None:
    count = sections.MOST_LABELS + 500
    found = {
        "classes": [f"class {number}" for number in range(count)], "update": 3, "thresholds": [0.5] * count,
        "average_precision": [number / count for number in range(count)], "counts": [[1, 1, 1]] * count,
    }  # fmt: skip
    shown = sections.labels(found)
    assert shown is not None
    assert len(shown["rows"]) + len(shown["others"]) == sections.MOST_LABELS
    assert f"The weakest {sections.MOST_LABELS} of {count} classes" in shown["whose"]
    few = sections.labels({name: value if name == "update" else value[:20] for name, value in found.items()})  # type: ignore[index]
    assert few is not None
    assert len(few["rows"]) + len(few["others"]) == 20
    assert "weakest" not in few["whose"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("spec.json", "[1]"),
        ("result.json", "5"),
        ("timing.json", '{"data": "long"}'),
        ("confusion.json", "[1]"),
        ("confusion.json", '{"classes": ["a"]}'),
        ("labels.json", '{"classes": ["a"]}'),
        ("calibration.json", '{"bins": [1]}'),
        ("mistakes/mistakes.json", '[{"label": 1}]'),
        ("profile/layers.json", "[1]"),
        ("timeline-0.json", "[1]"),
    ],
)
def test_a_file_that_holds_something_else_is_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "options.yml").write_text("model: resnet8\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=r"cannot be read .*: remove it"):
        inputs.read_run(tmp_path)


def test_an_image_that_cannot_be_opened_is_left_out(run_folder: Path, tmp_path: Path) -> None:
    """One that claims billions of pixels, and one with a broken chunk."""
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    whole = (copy / "mistakes" / "0000.png").read_bytes()
    (copy / "mistakes" / "0000.png").write_bytes(png(60_000, 60_000))
    (copy / "mistakes" / "0001.png").write_bytes(whole.replace(b"IDAT", b"\xff\xc7\xc7\xc7"))
    write_report([copy])


def png(width: int, height: int) -> bytes:
    """The head of a picture of this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", b"")
    )


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("spec.json", ["replicas"], {}),
        ("spec.json", ["split_points"], -1),
        ("spec.json", ["notes"], True),
        ("timing.json", ["data"], 1e999),
        ("confusion.json", ["matrix", 0, 1], 1e999),
        ("confusion.json", ["classes"], []),
        ("mistakes/mistakes.json", [0, "heat"], [[1, 2], [3]]),
        ("mistakes/mistakes.json", [0, "label"], 1e999),
        ("profile/layers.json", [0, "seconds"], "long"),
        ("profile/operators.json", [0], {}),
        ("timeline-0.json", [0, "worker"], None),
    ],
)
def test_a_value_that_cannot_be_shown_is_named_with_its_file(
    run_folder: Path, tmp_path: Path, name: str, place: list[Any], value: Any
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    document = json.loads((copy / name).read_text())
    inner = document
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (copy / name).write_text(json.dumps(document))
    with pytest.raises(UserError, match=name.split("-")[0].replace(".json", "") + r".*: remove it to report the rest"):
        write_report([copy])
    for file in copy.glob(name.replace("-0", "*")):
        file.unlink()
    write_report([copy])
