"""The plans of the encoders: how many frames each entry of a log gives, which and in what order.

A plan is what a codec version freezes: readers come back with cursors that count frames. There is
in `plans.json` a digest of the plan of every golden log, by face and version, and of the stream of
each child thread in it, which counts by itself. A log is known by its own digest too, so that a log
that was recorded anew is no change of an encoder.

`python -m tests.plans --write` adds what is not there. It refuses to replace a plan of a version:
raise the encoder's `version`, and keep the old encoder in `Dialect.older`. `--unreleased` replaces
it all the same, for a version that no release has.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adapters.model.base import Encoder, EncoderContext, Frame
from adapters.model.events import MAIN, Entry, ThreadStarted
from adapters.registry import DIALECTS, faces
from tests.wire import forms

REPOSITORY = Path(__file__).parents[2]
PLANS = Path(__file__).with_name("plans.json")

FACES: dict[str, tuple[str, Mapping[str, Any]]] = {
    f"{dialect}-{form}" if form else dialect: (dialect, settings)
    for dialect, form, settings in forms()
}
"""Face -> dialect and the settings that shape its frames."""

CHILD_STREAMS = frozenset(name for name, face in faces().items() if face.child_streams)
"""The dialects in which a child thread has a stream of its own."""

SESSION = "dgs_plan"

_SSE_EVENT = re.compile(rb"^event: (.+)$", re.MULTILINE)
_SSE_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)

Plans = dict[str, dict[str, str]]
"""Face and version, such as `herm/1` -> name (with the child thread) and digest of a log -> digest
of the plan."""


def logs() -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every golden log."""
    for path in sorted((REPOSITORY / "fixtures" / "golden").glob("*/canonical.ndjson")):
        yield path.parent.name, path.read_bytes()
    for path in sorted((REPOSITORY / "fixtures" / "canonical").glob("*.ndjson")):
        yield path.stem, path.read_bytes()


def threads(log: bytes) -> list[str]:
    """Return the threads of a log, the main one first."""
    entries = (Entry.decode(line, session_id=SESSION) for line in log.splitlines())
    children = {e.event.thread_id: None for e in entries if isinstance(e.event, ThreadStarted)}
    return [MAIN, *children]


def encoders(thread_id: str = MAIN) -> Iterator[tuple[str, Encoder]]:
    """Yield a fresh encoder of every face and version that has a stream for a thread, with its
    name."""
    for face, (dialect, settings) in FACES.items():
        known = DIALECTS[dialect]
        assert known.encoder is not None
        if thread_id != MAIN and dialect not in CHILD_STREAMS:
            continue
        context = EncoderContext(SESSION, b"plan", thread_id, settings=settings)
        for make in (known.encoder, *known.older.values()):
            encoder = make(context)
            yield f"{face}/{encoder.version}", encoder


def plan_of(encoder: Encoder, log: bytes) -> list[list[str]]:
    """Return the kinds of the frames that each entry gives."""
    entries = (Entry.decode(line, session_id=SESSION) for line in log.splitlines())
    return [[kind_of(frame) for frame in encoder.feed(entry)] for entry in entries]


def kind_of(frame: Frame) -> str:
    """Return what a frame is called on the wire; a comment is `:`, what says no type is `-`."""
    data = frame.data
    named = _SSE_EVENT.search(data)
    if named is not None:
        return named[1].decode()
    if data.startswith(b":"):
        return ":"
    lines = _SSE_DATA.findall(data)
    try:
        value = json.loads(b"\n".join(lines) if lines else data)
    except ValueError:
        value = None
    return str(value.get("type", "-")) if isinstance(value, dict) else "-"


def plans() -> Plans:
    """Return the plans as the encoders are now."""
    made: Plans = {}
    for name, log in logs():
        for thread_id in threads(log):
            stream = name if thread_id == MAIN else f"{name}@{thread_id}"
            key = f"{stream} {digest(log)}"
            for face, encoder in encoders(thread_id):
                plan = json.dumps(plan_of(encoder, log)).encode()
                made.setdefault(face, {})[key] = digest(plan)
    return made


def stored() -> Plans:
    """Return the plans that are committed."""
    if not PLANS.exists():
        return {}
    value: Plans = json.loads(PLANS.read_bytes())
    return value


def changed(now: Plans, before: Plans) -> list[str]:
    """Return the plans, as face and log, that differ from the committed ones of the same log."""
    return sorted(
        f"{face}: {log.split()[0]}"
        for face, of_face in now.items()
        for log, plan in of_face.items()
        if before.get(face, {}).get(log, plan) != plan
    )


def digest(data: bytes) -> str:
    """Return a short digest."""
    return hashlib.sha256(data).hexdigest()[:12]
