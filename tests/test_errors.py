"""Errors are texts that can be sent, whatever they quote."""

from __future__ import annotations

import pytest

from adapters.wire.errors import ClientProtocolError, DragomanError
from adapters.wire.jsonvalue import format_json


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("plain", "plain"),
        ("naïve — 茶 \U0001f98a", "naïve — 茶 \U0001f98a"),
        ("half \ud83e", "half \\ud83e"),
        ("bytes \udcff\udcfe", "bytes \\udcff\\udcfe"),
    ],
)
def test_what_an_error_quotes_can_be_sent(text: str, told: str) -> None:
    for error in (DragomanError(text), ClientProtocolError(text)):
        assert error.message == str(error) == told
        assert format_json({"error": error.message})
