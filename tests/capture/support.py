"""Where the files of other tools are, and what they are read to."""

from __future__ import annotations

from pathlib import Path

from adapters.captures import CapturedExchange
from adapters.captures.foreign import ForeignCapture
from adapters.captures.kinds import read_any

__all__ = ["CAPTURES", "SSE", "datas", "end_of", "foreign"]

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"

SSE = (
    'event: text_delta\ndata: {"text":"Basil — café"}\n\n'
    'event: thread_lifecycle\ndata: {"phase":"completed"}\n\n'
).encode()
"""The body that most of the files have."""


def foreign(file: str | bytes) -> ForeignCapture:
    """Read a file of `fixtures/captures/`, or bytes."""
    data = file if isinstance(file, bytes) else (CAPTURES / file).read_bytes()
    capture = read_any(data, file if isinstance(file, str) else "x")
    assert isinstance(capture, ForeignCapture)
    return capture


def datas(exchange: CapturedExchange) -> list[bytes]:
    """Return the pieces of a response's body."""
    return [piece.data for piece in exchange.received]


def end_of(exchange: CapturedExchange) -> tuple[str, str | None]:
    """Return how and why an exchange ended."""
    assert exchange.end is not None
    return exchange.end.how, exchange.end.why
