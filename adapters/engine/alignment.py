"""Finds the place in a replay up to which a stream was read (engine page, section 11.2).

Replay is by time and deltas carry none, so a replay repeats some of what was streamed, or much of
it. `Reached` describes in a few bytes what was read: the **anchor**, which is the newest frame with
a time of its own or that began a turn, how many frames came from it on, a running checksum of them,
and the prints of the last few. `Alignment` reads a replay against that. Three things are evidence
that a place in the replay is the one that was reached, the first being the best:

* from a frame equal to the anchor on, as many frames as were read, with the same checksum;
* the last frames that were read, in their order, anywhere;
* the replay begins with some of the last frames that were read.

What stands behind the place is new. Without evidence nothing is known to be missing or not, so that
is told as a `gap` and all that may be new is taken. When to decide is a question of its own: a
frame that is certainly new, the end of the replay, or a while after the evidence was found.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

TAIL = 8
"""Prints of the last frames that are kept: enough to be unlikely twice, few enough to store."""

SETTLE_MS = 300
"""How long a place that may not be the last one waits: what a server has buffered comes at once."""

LACKING_MS = 1_000
"""How long a replay without anything that we know may be silent before it is taken as it is."""

KEPT = 50_000
"""Frames of a replay that wait for a decision; a buffer of three hours has fewer (section 11.1)."""

_MASK = 0xFFFFFFFF
_SEEDS: dict[str, int] = {}


class Known(NamedTuple):
    """A frame with what alignment needs of it; `payload` is None where it is no JSON object."""

    name: str
    payload: dict[str, Any] | None
    data: bytes
    mark: int
    time: int | None
    begins: bool


def mark_of(name: str, payload: dict[str, Any] | None, data: bytes) -> int:
    """Return a frame's print: of its value, so that a replay may write the same JSON otherwise."""
    seed = _SEEDS.get(name)
    if seed is None:
        seed = zlib.crc32(name.encode())
        # A peer that invents names must not fill memory; there are some thirty (section 8).
        if len(_SEEDS) < 256:
            _SEEDS[name] = seed
    if payload is None:
        return zlib.crc32(data, seed)
    if len(payload) == 1 and type(text := payload.get("text")) is str:
        return zlib.crc32(text.encode(), seed)
    try:
        canonical = orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        # Integers beyond 64 bits.
        canonical = json.dumps(payload, sort_keys=True).encode()
    return zlib.crc32(canonical, seed)


@dataclasses.dataclass(slots=True)
class Reached:
    """How far a stream was read. `frames` is their number; `time` the newest seen, Unix ms."""

    frames: int = 0
    time: int | None = None
    timed: bool = False
    anchor: int = 0
    since: int = 0
    sum: int = 0
    tail: collections.deque[int] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=TAIL)
    )

    def count(self, mark: int, time: int | None = None, begins: bool = False) -> None:
        """Take the next frame."""
        self.frames += 1
        self.tail.append(mark)
        if time is not None and (self.time is None or time >= self.time):
            self.time = time
            self.timed = True
        elif begins or self.since == 0:
            self.timed = False
        else:
            self.since += 1
            self.sum = (self.sum * 31 + mark) & _MASK
            return
        self.anchor = self.sum = mark
        self.since = 1

    def dump(self) -> list[Any]:
        """Return the fields as JSON values."""
        return [
            self.frames,
            self.time,
            self.timed,
            self.anchor,
            self.since,
            self.sum,
            list(self.tail),
        ]

    @classmethod
    def load(cls, value: list[Any]) -> Reached:
        """Return what `dump` gave."""
        frames, time, timed, anchor, since, sum_, tail = value
        return cls(frames, time, timed, anchor, since, sum_, collections.deque(tail, TAIL))


class Verdict(enum.Enum):
    """What a frame of a replay means for the alignment."""

    WAIT = enum.auto()
    """Read on: the frame is known, or kept until it is decided."""

    HERE = enum.auto()
    """The place is right behind this frame: what follows is new."""

    DECIDE = enum.auto()
    """Decide about the kept frames now, this one among them."""

    NEW = enum.auto()
    """The frame is new: decide about the kept ones, then take it."""


class Decision(NamedTuple):
    """The kept frames that are new, and why something may be missing before them."""

    frames: list[Known]
    gap: str | None


def _of_turn(begin: Known, frames: Iterable[Known]) -> list[Known]:
    """Return the frames that name the turn which a frame begins: some may come before it."""
    turn = (begin.payload or {}).get("turn_id")
    if turn is None:
        return []
    return [frame for frame in frames if (frame.payload or {}).get("turn_id") == turn]


class Alignment:
    """Reads one replay. `reached` is where the stream was left, `idle` that no turn was open then.

    An idle stream goes on with a turn that begins: remains of earlier ones are not taken for it.
    `decide_at` is when to decide without another frame, Unix ms; `seen` and `sum` tell replays
    apart.
    """

    def __init__(self, reached: Reached, *, idle: bool) -> None:
        self._known = dataclasses.replace(reached, tail=reached.tail.copy())
        self._idle = idle
        # Where the anchor may have been: frames and checksum since.
        self._candidates: list[list[int]] = []
        self._recent: collections.deque[int] = collections.deque(maxlen=len(reached.tail))
        self._aligned = False
        self._counted = False
        self._differs = False
        self._before = False
        self._kept: collections.deque[Known] = collections.deque(maxlen=KEPT)
        self.seen = 0
        self.sum = 0
        self.decide_at: int | None = None

    @property
    def found(self) -> bool:
        """Say whether the replay has shown something that we know."""
        return self._aligned or bool(self._candidates)

    def take(self, frame: Known, now: int) -> Verdict:
        """Take the next frame of the replay."""
        known = self._known
        self.seen += 1
        self.sum = (self.sum * 31 + frame.mark) & _MASK
        if self._is_new(frame):
            return Verdict.NEW
        self._look_back(frame)
        matched = self._count(frame)
        self._recent.append(frame.mark)
        if matched:
            self._aligned = self._counted = True
            self._kept.clear()
            # A frame with a time of its own comes once; without one, turns may look the same.
            if known.timed:
                return Verdict.HERE
            self.decide_at = now + SETTLE_MS
            return Verdict.WAIT
        if not self._counted and self._recent and self._recent == known.tail:
            self._aligned = True
            self._kept.clear()
            self.decide_at = now + SETTLE_MS
            return Verdict.HERE if self._differs else Verdict.WAIT
        return self._keep(frame, now)

    def _is_new(self, frame: Known) -> bool:
        """Say whether a frame is certainly new: nothing that we know has so late a time."""
        if frame.time is None or self._known.time is None:
            return False
        return frame.time > self._known.time and (not self._idle or frame.begins)

    def _look_back(self, frame: Known) -> None:
        """Forget what was kept where a frame shows that all up to it is older than the anchor."""
        known = self._known
        if frame.time is None or known.time is None or frame.time >= known.time:
            return
        if not (known.timed and self._candidates):
            self._before = True
            self._kept.clear()
            self._candidates.clear()

    def _count(self, frame: Known) -> bool:
        """Follow the candidates; say whether one has just come to the place that was reached."""
        known = self._known
        matched = False
        going: list[list[int]] = []
        for count, sum_ in self._candidates:
            sum_ = (sum_ * 31 + frame.mark) & _MASK
            if count + 1 < known.since:
                going.append([count + 1, sum_])
            elif sum_ == known.sum:
                matched = True
            elif known.timed:
                self._differs = True
        if known.since and frame.mark == known.anchor:
            self._before = False
            if known.timed:
                self._kept.clear()
            if known.since == 1:
                matched = True
            else:
                going.append([1, frame.mark])
        self._candidates = going
        return matched

    def _keep(self, frame: Known, now: int) -> Verdict:
        """Keep what may be new until it is decided."""
        if self._idle and frame.begins and not self._aligned:
            # The last turn that the replay has is the one that may be ours.
            before = _of_turn(frame, self._kept)
            self._kept.clear()
            self._kept.extend(before)
            self.decide_at = now + SETTLE_MS
        if self._aligned:
            self._kept.append(frame)
            if self._differs:
                return Verdict.DECIDE
            if not self._counted:
                # What a server has buffered comes without pauses.
                self.decide_at = now + SETTLE_MS
        elif self._differs and not self._kept and self.decide_at is None:
            # The last frame of a count that was right, of frames that were not.
            self.decide_at = now + LACKING_MS
        elif not (self._known.timed and self._candidates):
            self._kept.append(frame)
            if not self._idle and not self._before and not self._candidates:
                self.decide_at = now + LACKING_MS
        return Verdict.WAIT

    def decide(self, *, over: bool = False, new: Known | None = None) -> Decision:
        """Say what of the kept frames is new.

        `over` when the replay has come to its end, `new` is a frame that is certainly new and comes
        next.
        """
        kept = list(self._kept)
        if self._aligned:
            return Decision(kept, None)
        if self._idle:
            if new is not None:
                return Decision(_of_turn(new, kept), None)
            return Decision(kept if any(frame.begins for frame in kept) else [], None)
        if over and (self._before or self._candidates or not self.seen):
            # It ended before it came to what we have.
            return Decision([], None)
        if self._differs or self._candidates:
            return Decision(kept, "the replay differs from what was streamed")
        tail = list(self._known.tail)
        marks = [frame.mark for frame in kept[: len(tail)]]
        for length in range(min(len(tail), len(marks)), 0, -1):
            if marks[:length] == tail[-length:]:
                return Decision(kept[length:], None)
        return Decision(kept, "the replay does not hold the last event that was streamed")
