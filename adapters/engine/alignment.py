"""Finds the place in a replay up to which a stream was read (engine page, section 11.2).

Replay is by time and deltas carry none, so a replay repeats some of what was streamed, or much of
it. `StreamPosition` describes in a few bytes what was read, as **trails**: an anchor, how many
frames came from it on, and a running checksum of them. The far trail begins with the newest frame
that has a time of its own, or with the session where none had; the near one with the newest turn
that tells no time. `Alignment` reads a replay against that, and what stands behind the place is
new.

Evidence for the place, the best first:

* the far trail, as many frames with the same checksum: turns that look alike are counted with it;
* the near trail, the last time that it fits: what came before may have expired;
* the last frames that were read, in their order, anywhere;
* the replay begins with some of the last frames that were read.

A frame that could not be decoded has no content to compare. It is not part of a trail, only a
**hole** at its place: what was garbled there may be a frame of the replay, or nothing of it. The
same holds for a garbled frame of a replay.

What cannot be decided is told as a `gap`, and all that may be new is taken:

* nothing of the above was found: frames were lost, or came back otherwise;
* a hole stands before a run of equal frames: how many of them were read is not known.

And what is not known to be undecidable, because the Engine tells no times (section 8.1 does): where
frames expire or another client runs turns of the same task, and turns look alike up to the place,
the last of them is taken for ours; where turns are equal to their ends, no turn is new.

When to decide is a question of its own: a replay that ends without the place, or would leave a gap,
is read again, and believed when it has been the same three times; one that does not end is waited
for.

Why one module: the evidence for one place is one algorithm; its pieces share prints and trails, and
nobody else uses them.
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

_PIECE = 64 * 1024
_LONG_TEXT = 32 * 1024

TAIL = 8
"""Prints of the last frames that are kept: enough to be unlikely twice, few enough to store."""

HOLES = 16
"""Garbled places of a trail that are kept: more, and nothing can be trusted anyway."""

SETTLE_MS = 300
"""How long a place that may not be the last one waits: what a server has buffered comes at once."""

KEPT = 50_000
KEPT_BYTES = 32 * 2**20
"""Frames of a replay that wait for a decision, and their bytes; a buffer of three hours has fewer
(section 11.1). The oldest are forgotten beyond that, as most stand before the place."""

DIFFERS = "the replay differs from what was streamed"
LACKS = "the replay does not hold the last event that was streamed"
UNCLEAR = "a garbled frame hides how many of several equal events were streamed"

_MASK = 0xFFFFFFFF
_SEEDS: dict[str, int] = {}


class MarkedFrame(NamedTuple):
    """A frame with what alignment needs of it.

    `payload` is None where the frame is garbled; `reason` says why where framing could not even
    make a frame of it.
    """

    name: str
    payload: dict[str, Any] | None
    data: bytes
    mark: int
    time: int | None = None
    begins: bool = False
    reason: str | None = None


def _seed_of(name: str) -> int:
    seed = _SEEDS.get(name)
    if seed is None:
        seed = zlib.crc32(name.encode())
        # A peer that invents names must not fill memory; there are some thirty (section 8).
        if len(_SEEDS) < 256:
            _SEEDS[name] = seed
    return seed


def mark_of_text(name: str, text: str) -> int:
    """Return the print of a frame whose payload is `{"text": text}`: nearly all frames are that."""
    seed = _SEEDS.get(name) or _seed_of(name)
    if len(text) <= _PIECE:
        return zlib.crc32(text.encode(), seed)
    return _checksum(text, seed)


def _checksum(text: str, seed: int) -> int:
    # By pieces: to fill as much memory anew takes as long as to read it.
    for start in range(0, len(text), _PIECE):
        seed = zlib.crc32(text[start : start + _PIECE].encode(), seed)
    return seed


def mark_of(name: str, payload: dict[str, Any] | None, data: bytes) -> int:
    """Return a frame's print: of its value, so that a replay may write the same JSON otherwise."""
    seed = _seed_of(name)
    if payload is None:
        return zlib.crc32(data, seed)
    if len(payload) == 1 and type(text := payload.get("text")) is str:
        return mark_of_text(name, text)
    for member in payload.values():
        if type(member) is str and len(member) > _LONG_TEXT:
            payload = {key: _short(member) for key, member in payload.items()}
            break
    try:
        canonical = orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        # Integers beyond 64 bits.
        canonical = json.dumps(payload, sort_keys=True).encode()
    return zlib.crc32(canonical, seed)


def _short(member: Any) -> Any:
    """Return what stands for a long text: to write it takes as long as all else of its frame."""
    if type(member) is str and len(member) > _LONG_TEXT:
        return [len(member), _checksum(member, 0)]
    return member


@dataclasses.dataclass(slots=True)
class Trail:
    """Frames that were read one after the other: `since` of them with the checksum `sum`.

    `anchor` is the print of the first, None where the trail begins with the session. A hole is how
    many frames were counted before it, and the print of what stood there.
    """

    anchor: int | None = None
    since: int = 0
    sum: int = 0
    holes: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, mark: int) -> Trail:
        """Return the trail that a frame begins."""
        return cls(mark, 1, mark)

    def add(self, mark: int) -> None:
        """Count the next frame."""
        self.since += 1
        self.sum = (self.sum * 31 + mark) & _MASK

    def add_hole(self, mark: int) -> None:
        """Note a garbled frame."""
        self.holes = [*self.holes[1 - HOLES :], (self.since, mark)]

    @classmethod
    def load(cls, value: list[Any] | None) -> Trail | None:
        """Return what `StreamPosition.dump` has of it; None for None."""
        if value is None:
            return None
        anchor, since, sum_, holes = value
        return cls(anchor, since, sum_, [(at, mark) for at, mark in holes])


@dataclasses.dataclass(slots=True)
class StreamPosition:
    """How far a stream was read. `frames` is their number; `time` the newest seen, Unix ms."""

    frames: int = 0
    time: int | None = None
    far: Trail | None = dataclasses.field(default_factory=Trail)
    near: Trail | None = None
    # Not a deque, which takes 700 bytes for these few.
    tail: list[int] = dataclasses.field(default_factory=list)

    def count(self, mark: int, time: int | None = None, begins: bool = False) -> None:
        """Take the next frame."""
        self.frames += 1
        self.tail.append(mark)
        if len(self.tail) > TAIL:
            del self.tail[0]
        if time is not None and (self.time is None or time >= self.time):
            self.time = time
            self.far, self.near = Trail.of(mark), None
            return
        if self.far is not None:
            self.far.add(mark)
        if begins or (self.far is None and self.near is None):
            self.near = Trail.of(mark)
        elif self.near is not None:
            self.near.add(mark)

    def count_garbled(self, mark: int, *, framed: bool) -> None:
        """Take a frame that cannot be decoded; not `framed` where framing failed too."""
        self.frames += framed
        for trail in (self.far, self.near):
            if trail is not None:
                trail.add_hole(mark)

    def last_holes(self) -> list[int]:
        """Return the prints of the garbled frames behind the last good one."""
        trail = self.far or self.near
        return [] if trail is None else [mark for at, mark in trail.holes if at == trail.since]

    def part(self) -> None:
        """Record that what comes next does not follow on what was read: trails begin anew."""
        self.far = self.near = None
        self.tail.clear()

    def dump(self) -> list[Any]:
        """Return the fields as JSON values."""
        far, near = self.far, self.near
        return [
            self.frames,
            self.time,
            # Once for each event.
            None if far is None else [far.anchor, far.since, far.sum, far.holes],
            None if near is None else [near.anchor, near.since, near.sum, near.holes],
            list(self.tail),
        ]

    @classmethod
    def load(cls, value: list[Any]) -> StreamPosition:
        """Return what `dump` gave."""
        frames, time, far, near, tail = value
        return cls(frames, time, Trail.load(far), Trail.load(near), tail[-TAIL:])


class AlignmentVerdict(enum.Enum):
    """What a frame of a replay means for the alignment."""

    WAIT = enum.auto()
    """Read on: the frame is known, or kept until it is decided."""

    DECIDE = enum.auto()
    """Decide about the kept frames now, this one among them."""

    NEW = enum.auto()
    """The frame is new: decide about the kept ones, then take it."""


class Decision(NamedTuple):
    """The kept frames that are new, and why something may be missing before them."""

    frames: list[MarkedFrame]
    gap: str | None


class _TrailMatch(NamedTuple):
    """One way to read a replay along a trail: `hole` is the next one of the trail.

    `total` is the checksum, None where a garbled frame was counted in, whose content is not known.
    """

    number: int
    total: int | None
    hole: int


@dataclasses.dataclass(slots=True)
class _TrailFollower:
    """Follows a trail through a replay; places are numbers of frames of it."""

    trail: Trail
    tail: list[int]
    begun: bool = False
    places: list[int] = dataclasses.field(default_factory=list)
    likely: int | None = None
    differs: int | None = None
    _matches: dict[_TrailMatch, None] = dataclasses.field(default_factory=dict)
    # The matches are of a later anchor than the places.
    _later: bool = False

    def __post_init__(self) -> None:
        if self.trail.anchor is None and self.trail.since:
            self._go_on(_TrailMatch(0, 0, 0))

    @property
    def going(self) -> bool:
        """Say whether the place may still come."""
        return any(match.total is not None for match in self._matches)

    @property
    def over(self) -> bool:
        """Say whether it was followed to its end, whether it fits there or not."""
        known = self.likely is not None or self.differs is not None
        return not self.going and (bool(self.places) or known)

    def take(self, frame: MarkedFrame, number: int) -> None:
        """Take the next frame of the replay."""
        matches, self._matches = self._matches, {}
        if frame.payload is None:
            for match in matches:
                self._take_garbled(match, frame.mark, number)
            return
        if frame.mark == self.trail.anchor:
            self.begun = self._later = True
            matches = {_TrailMatch(0, 0, 0): None}
        for match in matches:
            if match.total is not None:
                self._count(match, (match.total * 31 + frame.mark) & _MASK, number)
            elif self._fits(match.number + 1, frame.mark):
                self._count(match, None, number)
            if self._hole(match) is not None:
                self._go_on(match._replace(hole=match.hole + 1))

    def _hole(self, match: _TrailMatch) -> int | None:
        """Return the print of the hole where a match is."""
        holes = self.trail.holes
        if match.hole < len(holes) and holes[match.hole][0] == match.number:
            return holes[match.hole][1]
        return None

    def _fits(self, count: int, mark: int) -> bool:
        """Say whether a frame may have that number in the trail, as far as the tail tells."""
        back = self.trail.since - count + 1
        return back > len(self.tail) or self.tail[-back] == mark

    def _take_garbled(self, match: _TrailMatch, mark: int, number: int) -> None:
        if self._hole(match) == mark:
            # It was garbled then as it is now.
            self._go_on(match._replace(hole=match.hole + 1))
            return
        self._go_on(match)
        self._count(match, None, number)

    def _count(self, match: _TrailMatch, total: int | None, number: int) -> None:
        """Read a frame of the replay as the next one of the trail."""
        trail, count, hole = self.trail, match.number + 1, match.hole
        while hole < len(trail.holes) and trail.holes[hole][0] < count:
            hole += 1
        if count < trail.since:
            self._go_on(_TrailMatch(count, total, hole))
        elif total is None:
            self.likely = number
        elif total == trail.sum:
            self.places = [number] if self._later else [*self.places, number]
            self._later = False
        else:
            self.differs = number

    def _go_on(self, match: _TrailMatch) -> None:
        # Ways to read the holes that are followed at once; ours, as `HOLES` is.
        if len(self._matches) < 64:
            self._matches[match] = None


def _of_turn(begin: MarkedFrame, frames: Iterable[MarkedFrame]) -> list[MarkedFrame]:
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

    def __init__(self, reached: StreamPosition, *, idle: bool) -> None:
        self._idle = idle
        self._time = reached.time
        far, near = reached.far, reached.near
        if not idle and far is not None and near is not None and far.since == near.since:
            # The first turn of a session: its task may have had others, so the last that fits is
            # taken.
            far = None
        self._tail = collections.deque(reached.tail)
        self._far, self._near = (
            None if trail is None else _TrailFollower(dataclasses.replace(trail), list(self._tail))
            for trail in (far, near)
        )
        self._recent: collections.deque[int] = collections.deque(maxlen=len(self._tail))
        self._tail_at: int | None = None
        self._before = False
        self._place: int | None = None
        self._kept: collections.deque[tuple[int, MarkedFrame]] = collections.deque()
        self._kept_bytes = 0
        # The number of the last frame that was forgotten.
        self._forgotten = 0
        self.seen = 0
        self.sum = 0
        self.decide_at: int | None = None

    @property
    def found(self) -> bool:
        """Say whether the replay has shown something that we know."""
        return (
            any(
                follower is not None and (follower.begun or bool(follower.places))
                for follower in (self._far, self._near)
            )
            or self._tail_at is not None
        )

    @property
    def doubtful(self) -> bool:
        """Say whether another reading may tell more: it ended too soon, or leaves a gap."""
        place, decision = self._find(), self.decide(over=True)
        if place is None and (self._short or (self._tail and decision.frames)):
            return True
        return decision.gap is not None

    @property
    def _short(self) -> bool:
        """Say whether the replay would have to go on to come to the place."""
        return any(follower is not None and follower.going for follower in (self._far, self._near))

    def take(self, frame: MarkedFrame, now: int) -> AlignmentVerdict:
        """Take the next frame of the replay."""
        self.seen += 1
        self.sum = (self.sum * 31 + frame.mark) & _MASK
        if self._is_new(frame):
            return AlignmentVerdict.NEW
        self._look_back(frame)
        for follower in (self._far, self._near):
            if follower is not None:
                follower.take(frame, self.seen)
        if frame.payload is not None:
            self._recent.append(frame.mark)
            if self._tail and self._recent == self._tail:
                self._tail_at = self.seen
        self._keep(frame)
        return self._judge(frame, now)

    def _keep(self, frame: MarkedFrame) -> None:
        self._kept.append((self.seen, frame))
        self._kept_bytes += len(frame.data)
        while len(self._kept) > KEPT or self._kept_bytes > KEPT_BYTES:
            self._forgotten, oldest = self._kept.popleft()
            self._kept_bytes -= len(oldest.data)

    def _is_new(self, frame: MarkedFrame) -> bool:
        """Say whether a frame is certainly new: nothing that we know has so late a time."""
        if frame.time is None or self._time is None:
            return False
        return frame.time > self._time and (not self._idle or frame.begins)

    def _look_back(self, frame: MarkedFrame) -> None:
        """Forget what was kept where a frame shows that all up to it is older than the anchor."""
        if frame.time is None or self._time is None or frame.time >= self._time:
            return
        if self._far is None or not self._far.begun:
            self._before = True
            self._kept.clear()
            self._kept_bytes = self._forgotten = 0

    def _find(self, *, forced: bool = False) -> tuple[int, str | None] | None:
        """Return the place and, where it is not certain, why; `forced` when no more will come."""
        far = self._far
        if far is not None:
            if far.places:
                return far.places[0], None if len(far.places) == 1 else UNCLEAR
            if far.likely is not None:
                return far.likely, None
            if far.going and not forced:
                return None
        near = self._near
        if near is not None:
            if near.going and not forced:
                return None
            if near.places:
                return near.places[0], None if len(near.places) == 1 else UNCLEAR
            if near.likely is not None:
                return near.likely, None
        return None if self._tail_at is None else (self._tail_at, None)

    def _judge(self, frame: MarkedFrame, now: int) -> AlignmentVerdict:
        far, place = self._far, self._find()
        if place is not None:
            if place[1] is None and far is not None and far.over:
                return AlignmentVerdict.DECIDE
            self._wait(now + SETTLE_MS, place[0])
        elif self._short:
            # It has more to tell, unless what it lacks shows elsewhere.
            # It may only have come to a halt before the place: no network is silent for longer.
            self.decide_at = None if self._find(forced=True) is None else now + 5_000
        elif self._idle:
            if frame.begins:
                self.decide_at = now + SETTLE_MS
        elif not self._before:
            # Nothing in it is known to us; when it is silent for so long it is taken as it is.
            self.decide_at = now + 1_000
        return AlignmentVerdict.WAIT

    def _wait(self, until: int, place: int) -> None:
        """Wait for another place; what goes on behind this one is not waited for."""
        if place != self._place or self.decide_at is None:
            self._place = place
            self.decide_at = until

    def decide(
        self, *, over: bool = False, last: bool = False, new: MarkedFrame | None = None
    ) -> Decision:
        """Say what of the kept frames is new.

        `over` when the replay has come to its end, `last` when there is no more to come from
        another one either; `new` is a frame that is certainly new and comes next.
        """
        place = self._find(forced=last or not over)
        if place is not None:
            lost = LACKS if place[0] < self._forgotten else None
            return Decision(self._behind(place[0]), place[1] or lost)
        short = self._short
        kept = [frame for _, frame in self._kept]
        if self._idle:
            if new is not None:
                return Decision(_of_turn(new, kept), None)
            return Decision([] if short and not last else _last_turn(kept), None)
        if over and (self._before or short or not self.seen):
            # It ended before it came to what we have.
            return Decision([], None)
        if short:
            return Decision([], DIFFERS)
        for follower in (self._far, self._near):
            if follower is not None and follower.differs is not None:
                return Decision(self._behind(follower.differs), DIFFERS)
        tail = list(self._tail)
        marks = [frame.mark for frame in kept[: len(tail)]]
        for length in range(min(len(tail), len(marks)), 0, -1):
            if marks[:length] == tail[-length:]:
                return Decision(kept[length:], None)
        return Decision(kept, LACKS)

    def _behind(self, place: int) -> list[MarkedFrame]:
        return [frame for number, frame in self._kept if number > place]


def _last_turn(frames: list[MarkedFrame]) -> list[MarkedFrame]:
    """Return the last turn that frames begin: it is the one that may be ours."""
    begins = [number for number, frame in enumerate(frames) if frame.begins]
    if not begins:
        return []
    at = begins[-1]
    return _of_turn(frames[at], frames[:at]) + frames[at:]
