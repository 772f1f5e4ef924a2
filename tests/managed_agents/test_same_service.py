"""The service behind us and an SDK in front of us: what the one says reaches the other as it was.

Statuses of threads and inputs are made anew, so compared is what the agent, its model requests, the
session and messages show, by frames, without what `MAPPING.md` masks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_same_dialect import exactly, shown, through
from tests.wire import bodies, name_of

COMPARED = (
    *("agent.", "span.", "workflow_run.", "session.error", "session.updated"),
    *("session.status_idle", "session.deleted", "user.message", "user.tool_confirmation"),
    "user.custom_tool_result",
)

BODIES = [
    body
    for body in bodies("managed-agents")
    if body.parent.name in ("live", "documented", "python-2.12.0")
]

DIFFERS = {
    "03-asks-of-two-children": "an idle that names an answered use is written without it",
    "confirmations.01": "what is left after one of two answers is said, as by the service",
    "02-errors": "an unknown retry status, and the idle that ends a session which has terminated",
    "07-tolerance": "an error frame becomes a `session.error`: the stream of an SDK goes on",
}
"""Bodies that are not the same again, and why."""


def told(data: bytes) -> list[tuple[str, Any]]:
    """Return what is compared of a stream."""
    return [(kind, _plain(kind, frame)) for kind, frame in shown("managed-agents", data)]


def _plain(kind: str, frame: dict[str, Any]) -> dict[str, Any]:
    frame = {name: value for name, value in frame.items() if name not in ("id", "processed_at")}
    if kind == "span.model_request_end":
        # Ours: the words that were cut off.
        frame.pop("content", None)
    if frame.get("is_error") is False:
        # The same as without it.
        del frame["is_error"]
    reason = frame.get("stop_reason")
    if isinstance(reason, dict):
        # Ours is the outcome; older documentation nests the ids.
        nested = reason.get("requires_action", {})
        frame["stop_reason"] = {k: v for k, v in {**reason, **nested}.items() if k != "outcome"}
        frame["stop_reason"].pop("requires_action", None)
    return frame


def source(body: Path) -> list[tuple[str, Any]]:
    """Return the frames of a body that we show: an input without a time comes once more."""
    lines = [line for line in body.read_bytes().split(b"\n\n") if b"data:" in line]
    kept = []
    for frame in lines:
        try:
            value = json.loads(frame[frame.index(b"data:") + 5 :].split(b"\n")[0])
        except ValueError:
            continue
        if not (value.get("type", "").startswith("user.") and value.get("processed_at") is None):
            kept.append(frame)
    return told(b"\n\n".join(kept) + b"\n\n")


@pytest.mark.parametrize("body", BODIES, ids=[name_of(body) for body in BODIES])
def test_the_service_reaches_an_sdk_as_it_was(body: Path) -> None:
    made = told(through("managed-agents", body.read_bytes(), ""))
    there, here = (
        exactly([one for one in frames if one[0].startswith(COMPARED)])
        for frames in (source(body), made)
    )
    if body.stem in DIFFERS:
        assert there != here, "it is equal: take it off the list"
    else:
        assert there == here[: len(there)]
