"""What earlier releases stored of a Herm's session, as later ones have it."""

from __future__ import annotations

from typing import Any

from adapters.herm.client.envelopes import short
from adapters.herm.client.records import State
from adapters.stored import completed

__all__ = ["place_and_state"]


def place_and_state(stored: Any) -> list[Any]:
    """Return what version 1 stored as version 2 has it: a position was four fields between commas,
    the snapshot had the blocks and what was listed, and the keys of inputs were long."""
    if isinstance(stored, bytes):
        frames, mark, delta_mark, last_id = stored.split(b",", 3)
        return [[int(frames), int(mark), int(delta_mark), last_id.decode()]]
    names = ("listed", "blocks", "texts")
    listed, blocks, texts = (stored.pop(name) for name in names)
    for item in stored["sent"]:
        item["key"] = short(item["key"])
    stored["doubts"] = {"open": stored["doubts"]}
    pending = stored["pending"]
    posted = {item["command_id"] for item in stored["sent"]}
    if pending is not None and pending["held"]:
        # It was refused for now; when it was to be posted again was not stored.
        at = None if pending["command_id"] in posted else 0
        pending["again"] = {"waits": True, "at": at, "since": pending["since"]}
    state = completed(State, stored)
    return [[0, 0, 0, "", listed, blocks, texts], state]
