"""Frames that wait for the next stream."""

from __future__ import annotations

from adapters.serving.later import WAITING_BYTES, WAITING_MOST, WaitingFrame, WaitingFrames


def test_frames_are_taken_once_and_in_their_order() -> None:
    waiting = WaitingFrames()
    waiting.put("CUSTOM", {"name": "é"}, "child")
    waiting.put("TEXT", {})
    # `{"name":"é"}` has 13 bytes, and `{}` two.
    assert waiting.size == 15
    assert waiting.take() == [
        WaitingFrame("CUSTOM", {"name": "é"}, "child"),
        WaitingFrame("TEXT", {}),
    ]
    assert waiting == WaitingFrames()
    assert waiting.take() == []


def test_there_are_too_many_frames_at_the_limit() -> None:
    waiting = WaitingFrames()
    full = []
    for _ in range(WAITING_MOST):
        waiting.put("TEXT", {})
        full.append(waiting.full)
    assert full == [False] * (WAITING_MOST - 1) + [True]
    waiting.take()
    assert not waiting.full


def test_there_are_too_many_bytes_beyond_the_limit() -> None:
    waiting = WaitingFrames()
    waiting.put("TEXT", {"t": "x" * (WAITING_BYTES - len('{"t":""}'))})
    assert (waiting.size, waiting.full) == (WAITING_BYTES, False)
    waiting.put("TEXT", {})
    assert waiting.full
