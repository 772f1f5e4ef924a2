"""Locks by name."""

from __future__ import annotations

import asyncio
import weakref


class KeyedLock:
    """One lock for each key, which is there for as long as somebody has it or waits for it."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[tuple[str, ...], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def lock(self, *key: str) -> asyncio.Lock:
        """Return the lock of a key, for `async with`."""
        return self._locks.setdefault(key, asyncio.Lock())
