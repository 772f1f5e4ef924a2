"""What a file looks like that is not of the dialect it was taken for, for people."""

from __future__ import annotations

import re
from typing import Any

from adapters.model.raw import value_of
from adapters.wire.jsonvalue import JsonError

HEAD_BYTES = 64 * 1024
"""Bytes of the begin of a file that are looked at."""

_EVENT = re.compile(rb"^event: ?(.*)$", re.MULTILINE)
_FIELD = re.compile(rb"^(?:event|data|id|retry)?:", re.MULTILINE)

_OF_ENGINE = frozenset({b"thread_lifecycle", b"text_delta", b"thinking_delta", b"tool_call"})
_OF_EVE = ("session.", "turn.", "step.", "message.", "reasoning.", "action", "input.", "context.")
_OF_HERM = (b"agent.", b"session.status_", b"user.")


def describe_input(head: bytes) -> str:
    """Return what a file looks like that begins so."""
    head = head.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").strip()
    if not head:
        return "the input is empty"
    if head.startswith(b"HTTP/"):
        return "it looks like an HTTP answer with its head, which must be cut off"
    if head.startswith(b"<"):
        return "it looks like HTML or XML"
    if head.startswith((b"{", b"[")):
        return f"it looks like {_of_json(head)}"
    if _FIELD.search(head):
        return f"it looks like {_of_events(head)}"
    return "it looks like no dialect that is known here"


def _of_events(head: bytes) -> str:
    names = set(_EVENT.findall(head))
    if names & _OF_ENGINE:
        return "an event stream of `engine`"
    if any(name.startswith(_OF_HERM) for name in names):
        return "an event stream of `herm`"
    if b'"choices"' in head or b'"chat.completion' in head:
        return "an event stream of chat completions, which is not a dialect here"
    return "an event stream of a dialect that is not known here"


def _of_json(head: bytes) -> str:
    for line in head.splitlines():
        try:
            value: Any = value_of(line)
        except JsonError:
            continue
        if isinstance(value, dict) and ("facts" in value or "progress" in value):
            return "NDJSON of an eve whose stream version is 27 or later, which is not read"
        type_ = value.get("type") if isinstance(value, dict) else None
        if not isinstance(type_, str):
            continue
        if "seq" in value and "session_id" in value:
            return "a log of Dragoman (`canonical`)"
        if "payload" in value or "sessionId" in value:
            return "envelopes of `herm`, whose event stream is read"
        if type_.startswith(_OF_EVE):
            return "NDJSON of `eve`"
    return "JSON of no dialect that is known here"
