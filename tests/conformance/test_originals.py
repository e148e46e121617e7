"""The list of the older programs' tests points at tests and commands that exist."""

import re
from pathlib import Path

import pytest
from tests.conformance import page
from tests.conformance.cases import cases
from tests.conformance.originals import ORIGINALS
from tests.conformance.running import shortened

TESTS = Path(__file__).parent.parent
LINES = [line for lines in ORIGINALS.values() for line in lines]


@pytest.mark.parametrize(("what", "evidence"), LINES, ids=[str(number) for number in range(len(LINES))])
def test_evidence_exists(what, evidence):
    assert what
    if evidence.startswith("not: "):
        assert len(evidence) > 15
    elif evidence.startswith("runs: "):
        assert evidence.removeprefix("runs: ") in {case.id for case in cases()}
    else:
        file, name = evidence.split("::")
        assert re.search(rf"def {name}\(", (TESTS / file).read_text())


def test_the_page_has_every_line_and_every_command():
    text = page.PAGE.read_text()
    for what, _ in LINES:
        assert page.cell(what) in text
    for case in cases():
        # What was replaced stands in every row, as the case has it now: no row may claim more than ran.
        row = f"| `{case.id}` | `{page.begins(case.command)}` | {page.cell(shortened(case))} | works: "
        assert row in text, case.id
