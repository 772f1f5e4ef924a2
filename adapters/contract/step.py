"""One step of a session, without IO: raw events in, out comes what is stored of them.

The way is the same wherever a codec is driven: what it says is made lawful, gets its place and its
time in the log, and is stored together with what the codec has to remember for it. The session does
so with the journal behind it, `adapters.offline.translate` with a recorded body before it.

What the codec remembers is stored in two pieces (`ClientCodec.position` and `snapshot`). The
position goes with all that came from the backend, so that nothing is read twice. The snapshot goes
with everything but mere deltas, which come by thousands and change the position only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from adapters.model.base import ClientCodec
from adapters.model.events import DELTAS, Entry, Event
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState


class StepResult(NamedTuple):
    """What one step brings: it is stored whole or not at all.

    `position` and `state` are the codec's, None where what is stored of them still holds. `whole`
    says that there is more in it than deltas.
    """

    entries: list[Entry]
    whole: bool
    position: bytes | None
    state: bytes | None


def apply(
    codec: ClientCodec,
    normalizer: Normalizer,
    raw: Iterable[Event],
    at: int,
    session_id: str,
    *,
    upstream: bool = True,
    changes: bool = False,
    keep: bool = False,
) -> StepResult | None:
    """Take raw events at a time; return what is to be stored, None where that is nothing.

    `upstream` says that they come from the backend, `changes` that something else is stored with
    them that the codec knows of, as a command's fate. With `keep` a changed state of the codec is
    stored without any event too.
    """
    events = normalizer.feed(raw)
    # To see whether the state has changed is to write it, which is done for the snapshot too.
    whole = changes or (keep and not events and codec.changed)
    if not events and not whole:
        return None
    state = normalizer.state
    seq = state.seq
    if at < state.at:
        at = state.at
    entries = []
    for event in events:
        seq += 1
        entries.append(Entry(seq, at, session_id, event))
        if event.TYPE not in DELTAS:
            whole = True
    whole = whole or (keep and codec.changed)
    state.seq, state.at = seq, at
    # All that was fed so far has given its events by now, so the codec is where they end. The
    # snapshot is first: a position has nothing that the snapshot of the same moment has.
    kept = codec.snapshot() if whole else None
    position = codec.position if upstream or whole else None
    # Faster than `StepResult(…)`: on a slow stream every delta is a step of its own.
    return tuple.__new__(StepResult, (entries, whole, position, kept))


def stamp(state: LogState, events: Sequence[Event], at: int, session_id: str) -> list[Entry]:
    """Give lawful events, which `state` has folded in, their places and one time (law 1)."""
    if at < state.at:
        at = state.at
    first = state.seq + 1
    entries = [Entry(seq, at, session_id, event) for seq, event in enumerate(events, first)]
    state.seq += len(entries)
    state.at = at
    return entries
