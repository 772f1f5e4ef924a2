"""What an object still refers to: whether a name is left in memory that nothing needs any more."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["remembers"]


def remembers(holder: object, name: str) -> bool:
    """Say whether a text is anywhere in an object, in its fields and what is in them."""
    seen: set[int] = set()
    waiting: list[Any] = [holder]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if value == name:
                return True
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif dataclasses.is_dataclass(value):
            waiting += [getattr(value, field.name) for field in dataclasses.fields(value)]
        elif hasattr(value, "__dict__"):
            waiting += value.__dict__.values()
    return False
