"""What the strict clients of all dialects have in common: how they say what a server did wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

__all__ = [
    "ISO_MS",
    "SILENCE_S",
    "Disconnected",
    "ProtocolViolation",
    "Refused",
    "merged",
    "refuse",
]

SILENCE_S = 120.0
"""Only a server that hangs is ever this slow in a test."""

ISO_MS = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
"""A time in UTC with milliseconds."""


class ProtocolViolation(AssertionError):
    """The server broke a promise of the page; `frame` is what broke it."""

    def __init__(self, reason: str, frame: object = None) -> None:
        """Say which promise, and show the frame or record."""
        super().__init__(f"{reason}: {frame!r}" if frame is not None else reason)
        self.reason = reason
        self.frame = frame


class Disconnected(Exception):
    """The body ended or broke before what was waited for, which is not a result."""


class Refused(Exception):
    """The server answered with an error status."""

    @property
    def code(self) -> str | None:
        """The code in the body; each dialect has it in a place of its own."""
        return None

    def __init__(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        """Keep status, body (JSON, or text when it is not JSON) and headers."""
        super().__init__(f"{status}: {body!r}")
        self.status = status
        self.body = body
        self.headers = headers


async def refuse(response: aiohttp.ClientResponse, kind: type[Refused]) -> None:
    """Raise a dialect's refusal unless the answer is a success."""
    if response.status < 300:
        return
    text = await response.text(errors="replace")
    try:
        body: Any = json.loads(text)
    except ValueError:
        body = text
    raise kind(response.status, body, response.headers)


def merged(types: Sequence[str]) -> list[str]:
    """The types in order, equal neighbours merged."""
    return [kind for index, kind in enumerate(types) if index == 0 or types[index - 1] != kind]
