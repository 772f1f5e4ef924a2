"""How an Engine's streams are read: which one is live, and what of a replay is new.

Nothing here is stored. A stream that is lost is replayed from what was read (`StreamPosition`),
and a replay that is lost begins again. It is read until it ends or breaks at the same place
`SAME_BREAKS` times: then that is all there is.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from adapters.engine import wire
from adapters.engine.alignment import (
    Alignment,
    AlignmentVerdict,
    Decision,
    MarkedFrame,
    StreamPosition,
    mark_of,
)
from adapters.engine.client.state import time_in
from adapters.model.base import Call, CloseReason
from adapters.wire.jsonvalue import time_of

SAME_BREAKS = 3
"""Replays in a row that break at the same place before that is taken as the end; ours."""


def known_of(name: str, payload: dict[str, Any] | None, data: bytes) -> MarkedFrame:
    """Return a frame with what tells it from others; `payload` is None where it is garbled."""
    if payload is None:
        return MarkedFrame(name, None, data, mark_of(name, None, data))
    at = time_in(payload)
    return MarkedFrame(
        name,
        payload,
        data,
        mark_of(name, payload, data),
        None if at is None else time_of(at),
        name == "thread_lifecycle" and payload.get("phase") == "started",
    )


@dataclasses.dataclass(slots=True)
class EngineStreams:
    """The streams of one session. `live` is the call whose body is read, `may_begin` says that it
    is that of a message whose turn has not begun, `torn` that a half frame was the last of it,
    `alignment` that it is a replay whose place is not found yet. `rest` is what a replay has shown
    to be new and is not processed yet, `ended` how the stream ended that brought it."""

    live: Call | None = None
    may_begin: bool = False
    torn: bool = False
    alignment: Alignment | None = None
    rest: collections.deque[MarkedFrame] = dataclasses.field(default_factory=collections.deque)
    ended: CloseReason | None = None
    # What was garbled when it was streamed, and comes again.
    _echoes: list[int] = dataclasses.field(default_factory=list)
    # Where the last replay broke, and how often it has there.
    _lost: tuple[int, int, int] | None = None
    # Whether a replay has shown the turn, or was read to its end without it.
    _confirmed: bool = False
    _denied: bool = False

    # Streams.

    def sent(self, call: Call | None) -> None:
        """Record that a message is being sent, or may have been: what was known is of the turn
        before."""
        self.live = call
        self._confirmed = self._denied = False

    def opened(self, call: Call, reached: StreamPosition, *, idle: bool) -> None:
        """Record that a body has begun; `idle` where no turn is open."""
        self.live = call
        self.torn = False
        self.alignment = None
        self._echoes = []
        self.may_begin = call.name != "replay"
        if self.may_begin:
            self._confirmed = self._denied = False
        else:
            self._echoes = reached.last_holes()
            self.alignment = Alignment(reached, idle=idle)

    def over(self, call: Call) -> None:
        """Record that a stream could not be had. A message may have begun another one meanwhile."""
        if self.live is call:
            self.live = None

    def closed(self, reason: CloseReason) -> Decision | None:
        """Record that a body is over; return what of it is new after all, None if that is open."""
        self.live = None
        alignment, self.alignment = self.alignment, None
        if reason is CloseReason.STOPPED or alignment is None:
            return None
        # A half frame at the end is not an end, however orderly it came.
        whole = reason is CloseReason.ENDED and not self.torn
        # A broken replay is read again; one that breaks at the same place is all there is.
        seen, sum_, times = alignment.seen, alignment.sum, 1
        if self._lost is not None and self._lost[:2] == (seen, sum_):
            times = self._lost[2] + 1
        if whole and not alignment.found:
            self._denied = True
        if times < SAME_BREAKS and (not whole or alignment.doubtful):
            self._lost = seen, sum_, times
            return None
        self._lost = None
        return self._decided(alignment.decide(over=True, last=times == SAME_BREAKS))

    def drop(self) -> None:
        """Record that nothing more is wanted of what was read."""
        self.alignment = self.ended = None
        self.rest.clear()

    # Frames of a replay.

    def sort(self, frame: MarkedFrame, now: int, *, in_turn: bool) -> Decision:
        """Return what is new of a replay with its next frame: nothing while its place is open."""
        alignment = self.alignment
        assert alignment is not None
        match alignment.take(frame, now):
            case AlignmentVerdict.WAIT:
                return Decision([], None)
            case AlignmentVerdict.DECIDE:
                if in_turn:
                    # It knows the turn. What it knows of earlier ones says nothing of a message
                    # whose turn has not begun.
                    self._know()
                return self._decided(alignment.decide())
            case AlignmentVerdict.NEW:
                decision = self._decided(alignment.decide(new=frame))
                return Decision([*decision.frames, frame], decision.gap)

    @property
    def due(self) -> int | None:
        """When what waits is processed, or a replay that does not go on is decided."""
        if self.rest:
            return 0
        return None if self.alignment is None else self.alignment.decide_at

    def tick(self, now: int) -> Decision | None:
        """Return what is new of a replay that has not gone on."""
        alignment = self.alignment
        if alignment is None or alignment.decide_at is None or now < alignment.decide_at:
            return None
        return self._decided(alignment.decide())

    def _decided(self, decision: Decision) -> Decision:
        self.alignment = None
        if decision.frames:
            self._know()
        return decision

    def _know(self) -> None:
        self._confirmed, self._denied = True, False

    def is_echo(self, mark: int) -> bool:
        """Say whether a garbled frame was told when it was streamed; each is known once."""
        if mark not in self._echoes:
            return False
        self._echoes.remove(mark)
        return True

    def went_on(self) -> None:
        """Record that a frame was good: what is garbled after it is not an echo."""
        self._echoes = []

    # Turns.

    def turn_begun(self) -> None:
        """Record that a turn has begun: a replay that shows it knows it."""
        self.may_begin = False
        if self.live is not None and self.live.name == "replay":
            self._know()

    def patience(self, *, paused: bool) -> int:
        """Return how long silence is borne, in milliseconds: as long as the Engine keeps a paused
        turn, 10 minutes for one that replay knows (section 11.3 names no figure), else one minute.

        A replay that was read to its end and does not know the turn makes it the shortest.
        """
        if paused and not self._denied:
            return wire.PAUSED_MS
        return 600_000 if self._confirmed and not self._denied else 60_000
