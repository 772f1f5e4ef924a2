"""Which records of an encoder are kept: the newest ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

RecordT = TypeVar("RecordT")


def forget(records: dict[str, RecordT], keep: int, over: Callable[[RecordT], bool]) -> None:
    """Drop the oldest records that are over, so that at most `keep` of them stay."""
    finished = [name for name, record in records.items() if over(record)]
    for name in finished[: max(0, len(finished) - keep)]:
        del records[name]
