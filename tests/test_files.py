"""Reading what is on the disk."""

import pytest

from conveyor.files import parse_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, b"[" * 100_000, "{", "", b"\xff", "9" * 5000])
def test_whatever_is_wrong_with_a_document_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_documents_are_read() -> None:
    assert parse_json('{"a": [1, null]}') == parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
