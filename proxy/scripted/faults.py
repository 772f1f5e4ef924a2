"""What a scripted backend does wrong on purpose, and on which request.

`Faults` is a plan: the k-th request of a route gets a fault. Routes are counted one by one from 1,
refused requests included, so a test writes `Faults({("execute", 2): Cut(after_event=3)})` and knows
that the second `POST /execute` breaks.

`Faults.seeded` draws the plan from a seed instead. What a request gets follows from the seed, the
conversation that it is about, its route, and how many requests of that route the conversation has
had. A conversation goes by its place among those of the backend, in the order of their first
streams: its id is another one in each run. So what happens between the requests of one conversation
never changes its faults, and `first` repeats one conversation of a busy backend alone.
"""

import json
import logging
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from proxy.scripted.mutations import altered

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The body of a stream ends after that many events or bytes; how, its kinds say."""

    after_event: int | None = None
    at_byte: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one place is named."""
        if (self.after_event is None) == (self.at_byte is None):
            raise ValueError("the end of a body needs either `after_event` or `at_byte`")


@dataclass(frozen=True, slots=True)
class Cut(StreamEnd):
    """The connection is closed there; with `clean` the body ends in order, as if complete."""

    clean: bool = False


@dataclass(frozen=True, slots=True)
class Reset(StreamEnd):
    """The connection is reset there (TCP RST): the reader gets an error, not an end."""


@dataclass(frozen=True, slots=True)
class HalfClose(StreamEnd):
    """Nothing more is sent there (TCP FIN), and the connection stays open to the other side."""


@dataclass(frozen=True, slots=True)
class HalfFrame:
    """After that many events comes half of the next frame, then an orderly end of the body."""

    after_event: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """After that many events nothing comes but `data`, not even heartbeats; for ever without
    `seconds`."""

    after_event: int = 0
    seconds: float | None = None
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Garbage:
    """After that many events come these bytes, then the stream goes on.

    The default is a frame of a known kind whose JSON and UTF-8 are broken.
    """

    after_event: int = 0
    data: bytes = b'event: text_delta\ndata: {"text":"\xff\xfe\n\n'


@dataclass(frozen=True, slots=True)
class LoseTurn:
    """The backend is killed after that many events: the stream breaks and the turn is gone."""

    after_event: int = 1


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The event after that many comes twice."""

    after_event: int = 0


@dataclass(frozen=True, slots=True)
class Reorder:
    """The event after that many comes after the next one; alone in its write it stays in place."""

    after_event: int = 0


@dataclass(frozen=True, slots=True)
class Altered:
    """Every frame has other bytes in place of these: what is read again differs from before."""

    was: bytes = b"1998"
    now: bytes = b"1997"


@dataclass(frozen=True, slots=True)
class Mutated:
    """Every third frame or so has something else in place of a value, drawn from the seed."""

    seed: int = 0


@dataclass(frozen=True, slots=True)
class SplitCharacters:
    """Every write ends inside of a character, where there is one of several bytes."""


@dataclass(frozen=True, slots=True)
class WrongContentType:
    """The answer claims to be something else."""

    content_type: str = "text/html"


@dataclass(frozen=True, slots=True)
class Redirect:
    """The request is sent elsewhere; by default to an origin that must never get credentials."""

    location: str = "http://elsewhere.invalid/execute"
    status: int = 302


@dataclass(frozen=True, slots=True)
class Status:
    """The request is refused with that status; without `body`, with the dialect's own body.

    `retry_after`, in seconds, goes where the dialect puts it; an eve names the `code`.
    """

    status: int
    retry_after: int | None = None
    body: bytes | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Silence:
    """No byte of an answer ever comes; with `done` what was asked for happens all the same."""

    done: bool = True


@dataclass(frozen=True, slots=True)
class SlowHead:
    """What was asked for happens at once, the answer's head comes that many seconds later."""

    seconds: float = 5.0


Fault = (
    Cut
    | Reset
    | HalfClose
    | HalfFrame
    | Stall
    | Garbage
    | LoseTurn
    | Duplicate
    | Reorder
    | Altered
    | Mutated
    | SplitCharacters
    | WrongContentType
    | Redirect
    | Status
    | Silence
    | SlowHead
)


_OF_STREAMS = (
    StreamEnd
    | HalfFrame
    | Stall
    | Garbage
    | LoseTurn
    | Duplicate
    | Reorder
    | Altered
    | Mutated
    | SplitCharacters
)

KINDS: Mapping[str, type[Fault]] = {
    "Cut": Cut,
    "Reset": Reset,
    "HalfClose": HalfClose,
    "HalfFrame": HalfFrame,
    "Stall": Stall,
    "Garbage": Garbage,
    "LoseTurn": LoseTurn,
    "Duplicate": Duplicate,
    "Reorder": Reorder,
    "Altered": Altered,
    "Mutated": Mutated,
    "SplitCharacters": SplitCharacters,
    "WrongContentType": WrongContentType,
    "Redirect": Redirect,
    "Status": Status,
    "Silence": Silence,
    "SlowHead": SlowHead,
}
"""Every fault by its name on the command line; each can be drawn."""

SEEDED: tuple[type[Fault], ...] = (
    Cut,
    Reset,
    HalfClose,
    HalfFrame,
    Garbage,
    Status,
    SplitCharacters,
)
"""What is drawn where nothing else is asked for: a backend of any dialect heals from it at once."""


def disturbed(fault: Fault | None, frames: Sequence[bytes], sent: int) -> Sequence[bytes]:
    """Return the frames of a write as `Duplicate`, `Reorder`, `Altered` or `Mutated` has them.

    Args:
        fault: the one of the stream.
        frames: the whole frames of one write.
        sent: how many came before.
    """
    match fault:
        case Altered(was, now):
            return [frame.replace(was, now) for frame in frames]
        case Mutated(seed):
            return [
                _mutated(frame, random.Random(f"{seed}:{n}"))
                for n, frame in enumerate(frames, sent)
            ]
        case Duplicate(place) if sent <= place < sent + len(frames):
            at = place - sent
            return [*frames[: at + 1], *frames[at:]]
        case Reorder(place) if sent <= place < sent + len(frames) - 1:
            at = place - sent
            return [*frames[:at], frames[at + 1], frames[at], *frames[at + 2 :]]
        case _:
            return frames


def _mutated(frame: bytes, source: random.Random) -> bytes:
    """Return a frame whose JSON, the last line of it, says something else in a third of all
    cases."""
    begin = frame.find(b"{")
    if begin < 0 or source.randrange(3):
        return frame
    body = frame[begin:].rstrip(b"\r\n")
    text = altered(json.loads(body), source)
    return frame[:begin] + text.encode() + frame[begin + len(body) :]


def pieces(fault: Fault | None, data: bytes) -> Iterator[bytes]:
    """Yield a frame in the pieces in which `SplitCharacters` writes it, whole for other faults."""
    if not isinstance(fault, SplitCharacters):
        yield data
        return
    start = 0
    for at in range(1, len(data)):
        # A byte that goes on with a character: UTF-8 has 10 as its first bits.
        if data[at] & 0xC0 == 0x80:
            yield data[start:at]
            start = at
    yield data[start:]


class Faults:
    """The plan of one backend, and how many requests each of its routes has had."""

    def __init__(self, plan: Mapping[tuple[str, int], Fault] | None = None) -> None:
        """Take a plan: (route, number of the request on it from 1) -> fault."""
        self.plan = dict(plan or {})
        self.requests: Counter[str] = Counter()
        self._seed: int | None = None
        self._rate = 0.0
        self._kinds: Collection[type[Fault]] = SEEDED
        self._first = 1
        self._talks: dict[str, int] = {}
        self._streams: Counter[tuple[int, str]] = Counter()

    @classmethod
    def seeded(
        cls,
        seed: int,
        rate: float = 0.2,
        kinds: Collection[type[Fault]] = SEEDED,
        *,
        first: int = 1,
    ) -> "Faults":
        """Break that share of all streams, in these ways, at places that follow from the seed.

        Args:
            seed: what the faults follow from.
            rate: the share of streams that break, from 0 to 1.
            kinds: the faults to draw from.
            first: the number of the first conversation; the log has it with each drawn fault.
        """
        faults = cls()
        faults._seed = seed
        faults._rate = rate
        faults._kinds = kinds
        faults._first = first
        return faults

    def take(self, route: str, *, stream: bool, talk: str = "") -> Fault | None:
        """Count a request of a route and return its fault.

        Args:
            route: the backend's own name of the route.
            stream: whether the route answers with a stream; only these get seeded faults.
            talk: the id of the conversation that it is about, empty where it names none.

        Raises:
            ValueError: the plan has a fault of streams for a route without a stream.
        """
        self.requests[route] += 1
        fault = self.plan.get((route, self.requests[route]))
        if fault is None and stream and self._seed is not None:
            fault = self._seeded(route, talk)
        if not stream and isinstance(fault, _OF_STREAMS):
            raise ValueError(f"`{route}` has no stream for {fault}")
        return fault

    def _seeded(self, route: str, talk: str) -> Fault | None:
        # What is about no conversation, a question of a check, must not move the places of others.
        place = self._talks.setdefault(talk, self._first + len(self._talks)) if talk else 0
        self._streams[place, route] += 1
        number = self._streams[place, route]
        fault = self._drawn(random.Random(f"{self._seed}:{place}:{route}:{number}"))
        if fault is not None:
            _log.info("conversation %d, %s %d: %r", place, route, number, fault)
        return fault

    def _drawn(self, source: random.Random) -> Fault | None:
        if source.random() >= self._rate:
            return None
        place = source.randrange(8)
        byte = source.randrange(600)
        drawn: tuple[Fault, ...] = (
            Cut(after_event=place),
            Cut(at_byte=byte),
            Cut(after_event=place, clean=True),
            Reset(at_byte=byte),
            HalfClose(at_byte=byte),
            HalfFrame(place),
            Stall(place, source.choice((None, 1.0, 20.0))),
            Garbage(place),
            LoseTurn(place),
            Duplicate(place),
            Reorder(place),
            Altered(),
            Mutated(byte),
            SplitCharacters(),
            WrongContentType(),
            Redirect(),
            # Those that pass: a 404 or 410 of a stream says that its session is gone.
            Status(source.choice((425, 429, 500, 502, 503, 504))),
            Silence(done=source.random() < 0.5),
            SlowHead(),
        )
        return source.choice([fault for fault in drawn if isinstance(fault, tuple(self._kinds))])
