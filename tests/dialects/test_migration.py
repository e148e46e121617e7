"""The migration page is made from the tables and is current."""

from pathlib import Path

from conveyor.dialects import migration
from conveyor.dialects.scripts import DIALECTS

DOCS = Path(__file__).parent.parent.parent / "docs" / "migration.md"


def test_the_page_is_current():
    assert DOCS.read_text() == migration.page(), "run: python -m conveyor.dialects.migration > docs/migration.md"


def test_every_spelling_is_on_the_page():
    text = migration.page()
    for dialect in DIALECTS.values():
        for name in dialect.table.spellings():
            assert f"`{name}`" in text
