"""What a scripted backend does wrong on purpose, and on which request.

`Faults` is a plan: the k-th request of a route gets a fault. Routes are counted one by one from 1,
refused requests included, so a test writes `Faults({("execute", 2): Cut(after_event=3)})` and knows
that the second `POST /execute` breaks. `Faults.seeded` draws the plan from a seed instead; the same
seed gives the same faults whatever the order of the requests.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "Cut",
    "Fault",
    "Faults",
    "Garbage",
    "HalfFrame",
    "LoseTurn",
    "Redirect",
    "Silence",
    "SlowHead",
    "Stall",
    "Status",
    "WrongContentType",
]


@dataclass(frozen=True, slots=True)
class Cut:
    """The body of a stream ends after that many events or bytes.

    The connection breaks; with `clean` the body ends in order, as if it were complete.
    """

    after_event: int | None = None
    at_byte: int | None = None
    clean: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one place is named."""
        if (self.after_event is None) == (self.at_byte is None):
            raise ValueError("a cut needs either `after_event` or `at_byte`")


@dataclass(frozen=True, slots=True)
class HalfFrame:
    """After that many events comes half of the next frame, then an orderly end of the body."""

    after_event: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """After that many events nothing comes, not even heartbeats; for ever without `seconds`."""

    after_event: int = 0
    seconds: float | None = None


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

    `retry_after`, in seconds, goes where the dialect puts it.
    """

    status: int
    retry_after: int | None = None
    body: bytes | None = None


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
    | HalfFrame
    | Stall
    | Garbage
    | LoseTurn
    | WrongContentType
    | Redirect
    | Status
    | Silence
    | SlowHead
)


class Faults:
    """The plan of one backend, and how many requests each of its routes has had."""

    def __init__(self, plan: Mapping[tuple[str, int], Fault] | None = None) -> None:
        """Take a plan: (route, number of the request on it from 1) -> fault."""
        self.plan = dict(plan or {})
        self.requests: Counter[str] = Counter()
        self._seed: int | None = None
        self._rate = 0.0

    @classmethod
    def seeded(cls, seed: int, rate: float = 0.2) -> "Faults":
        """Break that share of all streams, at places that follow from the seed."""
        faults = cls()
        faults._seed = seed
        faults._rate = rate
        return faults

    def take(self, route: str, *, stream: bool) -> Fault | None:
        """Count a request of a route and return its fault.

        Args:
            route: the backend's own name of the route.
            stream: whether the route answers with a stream; only these get seeded faults.

        Raises:
            ValueError: the plan has a fault of streams for a route without a stream.
        """
        self.requests[route] += 1
        number = self.requests[route]
        fault = self.plan.get((route, number))
        if fault is None and stream and self._seed is not None:
            fault = self._drawn(random.Random(f"{self._seed}:{route}:{number}"))
        if not stream and isinstance(fault, Cut | HalfFrame | Stall | Garbage | LoseTurn):
            raise ValueError(f"`{route}` has no stream for {fault}")
        return fault

    def _drawn(self, source: random.Random) -> Fault | None:
        if source.random() >= self._rate:
            return None
        place = source.randrange(8)
        drawn: tuple[Fault, ...] = (
            Cut(after_event=place),
            Cut(at_byte=source.randrange(600)),
            Cut(after_event=place, clean=True),
            HalfFrame(place),
            Garbage(place),
            Status(source.choice((429, 500, 502, 503, 504))),
        )
        return source.choice(drawn)
