"""Cursors of pages, and which records are kept."""

from __future__ import annotations

import base64

import pytest

from adapters.serving.cursors import NUMBER, make_cursor, parts_of
from adapters.serving.records import forget


def test_a_cursor_gives_its_parts_back() -> None:
    assert parts_of(make_cursor(17, 4, "desc"), NUMBER, NUMBER, "asc|desc") == ("17", "4", "desc")


@pytest.mark.parametrize(
    "text", ["", "?", "é", "page_AAAA", make_cursor(17), make_cursor("x", 4), make_cursor(9**30, 4)]
)
def test_what_is_not_a_cursor_has_no_parts(text: str) -> None:
    assert parts_of(text, NUMBER, NUMBER) is None


def test_a_cursor_that_is_not_text_has_no_parts() -> None:
    assert parts_of(base64.urlsafe_b64encode(b"1.\xff").decode(), NUMBER, NUMBER) is None


def test_the_oldest_records_that_are_over_are_forgotten() -> None:
    records = {"a": True, "b": False, "c": True, "d": True}
    forget(records, 1, lambda over: over)
    assert list(records) == ["b", "d"]
