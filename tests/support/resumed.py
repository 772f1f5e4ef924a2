"""Eve sessions over crashes: reading until the connection breaks, and comparing two runs."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence

import aiohttp

from tests.support.eve_client import EveSession
from tests.support.eve_records import Record

__all__ = ["masked", "read"]

# What differs from run to run: our ids and times, and the ids that the scripted Engine numbers.
MASKED = re.compile(
    r'"(?:at|id|continuationToken)":"[^"]*"|\b(?:hitl|call|turn)-[0-9a-f]+-\d+\b'
    r'|"deliveryIds":\["[^"]*"\]'
)


def masked(records: Sequence[Record]) -> list[str]:
    """Records as text without what differs from run to run."""
    numbers: dict[str, str] = {}

    def mask(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith('"'):
            return text.partition(":")[0]
        return numbers.setdefault(text, f"{text.partition('-')[0]}-{len(numbers)}")

    return [MASKED.sub(mask, json.dumps(record, separators=(",", ":"))) for record in records]


async def read(session: EveSession) -> None:
    """Read until the connection breaks."""
    with contextlib.suppress(aiohttp.ClientError):
        async for _ in session.stream():
            pass
