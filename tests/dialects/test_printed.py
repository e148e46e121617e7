"""commands.json repeats the documents: every entry is a whole line or a whole quoted span of its document."""

import re
from pathlib import Path

import pytest
from tests.dialects.command_lines import entries

DOCUMENT = {"pytorch": "000", "tensorflow1": "001", "tensorflow2": "002", "popart": "003", "benchmarks": "004"}
FOLDERS = [parent / "shared" / "seeds" for parent in Path(__file__).resolve().parents]
STARTS = re.compile(r"(\w+='.*' )?(python3? (-|\w+\.py)|poprun -|mpirun -|gc-\w+ -)")


@pytest.fixture(scope="module")
def documents():
    """Number of the document -> its lines, those that end with a backslash joined with the next by one blank."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        pytest.skip("the documents are not here: they lie in ../shared/seeds beside a working copy")
    texts = {path.name[:3]: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}
    return {
        number: [line.strip() for line in re.sub(r" *\\\n *", " ", text).splitlines()] for number, text in texts.items()
    }


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["id"])
def test_an_entry_is_what_the_document_prints(entry, documents):
    lines = documents[DOCUMENT[entry["id"].rpartition("-")[0]]]
    spans = [span for line in lines for span in re.findall(r"`([^`]+)`", line)]
    assert entry["printed"] in lines or entry["printed"] in spans


def test_no_printed_command_is_missing(documents):
    known = {entry["printed"] for entry in entries()}
    printed = [line for lines in documents.values() for line in lines if STARTS.match(line)]
    assert len(printed) > 30
    assert [line for line in printed if line not in known] == []
