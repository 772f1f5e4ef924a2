"""What this process counts, for Prometheus: rare things when they happen, the rest when asked for.

Labels are configured backends and routes, dialects, statuses, rules, kinds, and outcomes and codes
of ours. Routes are as few as the configuration has. No label names a session or a key, or has words
of a backend: these would grow for ever.

Why one module: one list of all that `/metrics` shows.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Protocol, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from adapters.model import events as ev
from adapters.model.normalizer import Rule
from adapters.model.state import LogState
from adapters.registry import DIALECTS, faces
from adapters.wire.errors import ErrorCode
from proxy import __version__
from proxy.base.errors import (
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    NameTaken,
    SequenceConflict,
    SessionClosed,
    SessionNotFound,
)
from proxy.base.loop_lag import LAG
from proxy.base.outcomes import POSSIBLE, Code, MessageOutcome

# When a series began is nothing that anybody asks for, and doubles them.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
"""All that `/metrics` shows."""

BACKENDS = tuple(name for name, dialect in DIALECTS.items() if dialect.has_client)
"""The dialects of backends."""

COUNTED = frozenset(
    {"native", "gap", "error.reported", "input.accepted", "input.settled", "turn.ended"}
)
"""The types of the events that `TurnCounts.hear` looks at."""

OUTCOMES: tuple[str, ...] = get_args(ev.TurnEnded.model_fields["outcome"].annotation)
"""How a turn may end."""

NO_ANSWER = "none"
"""The status of a request to a backend that was not answered."""

CLASSES = ("2xx", "3xx", "4xx", "5xx")
"""The statuses of backends' answers; a backend may say any number."""

LEFT = 499
"""The status of an answer that nobody gets, since the client has left; it is not counted."""

FIRST = frozenset(
    one.TYPE for one in (ev.TextDelta, ev.TextCompleted, ev.ToolInputDelta, ev.ToolCalled)
)
"""The types of the events that show that a turn has come to something."""

_KNOWN = frozenset(HTTPStatus)

_STATUSES = ("200", "401", "403", "404", "500", "502", "503")
"""The statuses of answers that are shown before there is one; more are shown as they come."""

_KINDS: dict[type[JournalError], str] = {
    SequenceConflict: "sequence_conflict",
    NameTaken: "name_taken",
    SessionClosed: "session_closed",
    SessionNotFound: "session_not_found",
    JournalUnavailable: "unavailable",
    JournalCorrupt: "corrupt",
}

REPAIRS: dict[str, collections.Counter[Rule]] = collections.defaultdict(
    collections.Counter, {name: collections.Counter() for name in BACKENDS}
)
"""How often each rule of the normalizer was used, by the dialect of the backend: normalizers are
given these and count in them."""


def _counter(name: str, text: str, label: str, values: tuple[str, ...]) -> Counter:
    counter = Counter(name, text, (label,), registry=REGISTRY)
    for value in values:
        # A series that begins with its first event hides that one from Prometheus' `increase`.
        counter.labels(value)
    return counter


_native = _counter(
    "dragoman_native_events", "Backend frames without canonical meaning.", "dialect", BACKENDS
)
_gaps = _counter("dragoman_gaps", "Gaps in the logs of sessions.", "dialect", BACKENDS)
_faults = _counter(
    "dragoman_backend_faults",
    "Frames of backends that could not be used.",
    "dialect",
    BACKENDS,
)
_failed_writes = _counter(
    "dragoman_journal_failed_writes",
    "Writes that the journal refused or could not store.",
    "kind",
    (*_KINDS.values(), "other"),
)
_failed_reads = _counter(
    "dragoman_journal_failed_reads",
    "Questions that the journal could not answer.",
    "kind",
    ("unavailable", "corrupt"),
)
_over_limit = _counter(
    "dragoman_over_limit",
    "Requests that were refused because their key has as much as it may have.",
    "kind",
    ("streams", "readers", "sessions"),
)
_unusable = _counter(
    "dragoman_snapshots_unusable",
    "Snapshots that were found and could not be used.",
    "kind",
    ("state", "frames"),
)

_backend_up = Gauge(
    "dragoman_backend_up",
    "Whether a backend answered the last request, and its last messages did not all fail.",
    ("backend",),
    registry=REGISTRY,
)
_backend_requests = Counter(
    "dragoman_backend_requests",
    "Requests to backends, by the class of the answer's status.",
    ("backend", "status"),
    registry=REGISTRY,
)
_troubles = Counter(
    "dragoman_backend_troubles",
    "Troubles with backends, by the kind of their line in the log.",
    ("backend", "kind"),
    registry=REGISTRY,
)
_turns = Counter(
    "dragoman_turns",
    "Turns that ended, by their outcome.",
    ("dialect", "outcome"),
    registry=REGISTRY,
)
_messages = Counter(
    "dragoman_messages",
    "Messages of frontends that are over, by how they ended.",
    ("route", "backend", "outcome", "code"),
    registry=REGISTRY,
)
_first_event = Histogram(
    "dragoman_turn_first_event_seconds",
    "Time from a message to the first text or tool call of its turn.",
    ("dialect",),
    buckets=(0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    registry=REGISTRY,
)
_http_requests = Counter(
    "dragoman_http_requests",
    "Requests that were answered, by the face that they came to.",
    ("face", "status"),
    registry=REGISTRY,
)
for _names in itertools.product(BACKENDS, OUTCOMES):
    _turns.labels(*_names)
for _name in BACKENDS:
    _first_event.labels(_name)
for _names in itertools.product((*faces(), "control", "other"), _STATUSES):
    _http_requests.labels(*_names)

Gauge(
    "dragoman_build_info",
    "Always 1; its labels say what runs.",
    ("version", "python"),
    registry=REGISTRY,
).labels(__version__, platform.python_version()).set(1)
ProcessCollector(registry=REGISTRY)

POSTPONED = Counter(
    "dragoman_journal_postponed",
    "Times that the journal put off its index, snapshots and source frames after a failure.",
    registry=REGISTRY,
)
LOST = Counter(
    "dragoman_sessions_lost",
    "Sessions that left memory because a write failed, to be loaded anew.",
    registry=REGISTRY,
)
STRANDED = Counter(
    "dragoman_sessions_stranded",
    "Sessions that were loaded for readers only, because their state cannot be read.",
    registry=REGISTRY,
)
HOLES = Counter(
    "dragoman_feed_holes",
    "Reads of a feed that ended because a frame is missing.",
    registry=REGISTRY,
)
CAPTURES_LEFT_OUT = Counter(
    "dragoman_capture_records_left_out",
    "Records that captures lack because their recorder was behind.",
    registry=REGISTRY,
)
CAPTURES_BROKEN = Counter(
    "dragoman_captures_broken",
    "Captures that ended early: what was to be written of them cannot be.",
    registry=REGISTRY,
)
MALFORMED = Counter(
    "dragoman_malformed_requests",
    "Connections that were answered 400 because what they sent is not HTTP.",
    registry=REGISTRY,
)

DELIVERIES = Counter(
    "dragoman_deliveries",
    "What backends sent by themselves, by what became of it.",
    ("backend", "outcome"),
    registry=REGISTRY,
)
RESUMED = Counter(
    "dragoman_sessions_resumed",
    "Sessions with work under way that the start found.",
    registry=REGISTRY,
)
FORWARDED = Counter(
    "dragoman_requests_forwarded",
    "Requests that another process answered, which has their session.",
    registry=REGISTRY,
)
FORWARDED_BYTES = Counter(
    "dragoman_forwarded_bytes",
    "Bytes of answers that came from another process.",
    registry=REGISTRY,
)
TAKEN_OVER = Counter(
    "dragoman_sessions_taken_over",
    "Sessions with work that were loaded since no process had them.",
    registry=REGISTRY,
)
LEASE_AGE = Gauge(
    "dragoman_lease_age_seconds",
    "Seconds since this process last renewed its lease on the journal.",
    registry=REGISTRY,
)
KILLED = Gauge(
    "dragoman_previous_killed",
    "Whether the process before this one on the journal ended without a stop.",
    registry=REGISTRY,
)
CLOCK_STEPS = Counter(
    "dragoman_clock_steps",
    "Times that the system's clock was set while the process ran.",
    registry=REGISTRY,
)
RELOADS = Counter("dragoman_reloads", "Reloads, by their end.", ("outcome",), registry=REGISTRY)
for _outcome in ("ok", "refused"):
    RELOADS.labels(_outcome)


@dataclasses.dataclass(slots=True, eq=False)
class Commits:
    """What the journal's writer does of one kind: transactions, what was in them, CPU of its
    thread."""

    commits: int = 0
    items: int = 0
    seconds: float = 0.0

    def add(self, items: int, seconds: float) -> None:
        """Count a transaction."""
        self.commits += 1
        self.items += items
        self.seconds += seconds


COMMITS = {"writes": Commits(), "later": Commits()}
"""`writes` are what somebody waits for; `later` are source frames, snapshots and the index."""

_sessions = Gauge("dragoman_sessions_in_memory", "Sessions in memory.", registry=REGISTRY)
_readers = Gauge("dragoman_readers_open", "Streams of frontends that are open.", registry=REGISTRY)
Gauge(
    "dragoman_loop_lag_seconds",
    "Longest delay of the event loop within the last 15 to 30 seconds.",
    registry=REGISTRY,
).set_function(lambda: LAG.longest)
_backlog = Gauge(
    "dragoman_journal_backlog_bytes",
    "Bytes of events that wait for the disk.",
    registry=REGISTRY,
)


class _SummaryCollector(Collector):
    """What others sum up, shown when it is asked for."""

    def __init__(self) -> None:
        self.stored = 0

    def collect(self) -> Iterator[Metric]:
        repairs = CounterMetricFamily(
            "dragoman_repairs",
            "Repairs of what backends said, by the rule of the normalizer.",
            labels=("dialect", "rule"),
        )
        for dialect, counts in REPAIRS.items():
            for rule in Rule:
                repairs.add_metric((dialect, rule.value), counts[rule])
        yield repairs
        yield CounterMetricFamily(
            "dragoman_events_stored", "Canonical events stored since the start.", self.stored
        )
        yield from _commits()


def _commits() -> Iterator[Metric]:
    commits = CounterMetricFamily(
        "dragoman_journal_commits", "Transactions of the journal's writer.", labels=("work",)
    )
    cpu = CounterMetricFamily(
        "dragoman_journal_commit_cpu_seconds",
        "CPU time of the journal's writer for its transactions.",
        labels=("work",),
    )
    for work, done in COMMITS.items():
        commits.add_metric((work,), done.commits)
        cpu.add_metric((work,), done.seconds)
    yield commits
    yield CounterMetricFamily(
        "dragoman_journal_committed_writes",
        "Writes in the transactions that somebody waits for.",
        COMMITS["writes"].items,
    )
    yield cpu


_summed = _SummaryCollector()
REGISTRY.register(_summed)


class BackendCounts:
    """Counts the requests to one configured backend. `up` says whether the last one was answered,
    None before the first; `working` whether it does what it is asked for."""

    __slots__ = ("_name", "_working", "up")

    def __init__(self, name: str, working: Callable[[], bool] = lambda: True) -> None:
        self._name = name
        self._working = working
        self.up: bool | None = None
        for status in (*CLASSES, NO_ANSWER):
            _backend_requests.labels(name, status)

    def answered(self, status: int) -> None:
        """Count an answer, or a stream that opened."""
        known = f"{status // 100}xx"
        self._count(known if known in CLASSES else "other", up=True)

    def failed(self) -> None:
        """Count a request that the backend did not answer."""
        self._count(NO_ANSWER, up=False)

    def expect(self, troubles: Iterable[str]) -> None:
        """Show the kinds of trouble that there may be, before there is one."""
        for kind in troubles:
            _troubles.labels(self._name, kind)

    def troubled(self, kind: str) -> None:
        """Count a trouble, whether or not the log tells of it again."""
        _troubles.labels(self._name, kind).inc()

    def forget(self) -> None:
        """Say no more whether a backend is up that is not configured any more."""
        if self.up is not None:
            _backend_up.remove(self._name)
            self.up = None

    def _count(self, status: str, *, up: bool) -> None:
        _backend_requests.labels(self._name, status).inc()
        if self.up is None:
            _backend_up.labels(self._name).set_function(lambda: bool(self.up and self._working()))
        self.up = up


class WaitingMessage(Protocol):
    """A message that waits."""

    @property
    def command_id(self) -> str: ...


class WaitingMessages(Protocol):
    """Has the messages that wait, in order."""

    @property
    def queue(self) -> Sequence[WaitingMessage]: ...


@dataclasses.dataclass(slots=True, eq=False)
class TurnCounts:
    """Counts what happens in one session, and measures how long its turns take to their first
    event.

    `waiting` is the message whose turn has shown nothing yet, and when it went out.
    """

    waiting: tuple[str, int] | None = None

    def hear(
        self,
        event: ev.Event,
        dialect: str,
        state: LogState,
        outbox: WaitingMessages,
        now: int,
    ) -> None:
        """Hear an event of one of the types in `COUNTED`. `dialect` is that of the backend, the
        queue of `outbox` has the messages that wait for the end of the turn."""
        count_event(event, dialect)
        if isinstance(event, ev.InputAccepted):
            rests = state.threads[ev.MAIN].turn is None
            if event.kind == "message" and rests and self.waiting is None:
                self.waiting = (event.command_id, now)
        elif isinstance(event, ev.InputSettled):
            if event.outcome != "taken" and self.waiting and self.waiting[0] == event.command_id:
                self.waiting = None
        elif isinstance(event, ev.TurnEnded) and event.thread_id == ev.MAIN:
            queue = outbox.queue
            self.waiting = (queue[0].command_id, now) if queue else None

    def look(self, entries: Iterable[ev.Entry], dialect: str, now: int) -> None:
        """Look for the first event of the turn that is waited for."""
        assert self.waiting is not None
        for entry in entries:
            if entry.event.TYPE in FIRST and entry.event.thread_id == ev.MAIN:
                _first_event.labels(dialect).observe((now - self.waiting[1]) / 1000)
                self.waiting = None
                return


@functools.cache
def expect_messages(route: str, backend: str) -> None:
    """Show how messages to a backend of a route may end, before one does."""
    for outcome, codes in POSSIBLE.items():
        for code in codes:
            _messages.labels(route, backend, outcome, code)


def count_message(route: str, backend: str, outcome: MessageOutcome, code: Code) -> None:
    """Count a message that is over."""
    _messages.labels(route, backend, outcome, code).inc()


def count_request(face: str, status: int) -> None:
    """Count a request of a frontend or an operator when its answer begins."""
    if status != LEFT:
        _http_requests.labels(face, str(status) if status in _KNOWN else "other").inc()


def count_event(event: ev.Event, dialect: str) -> None:
    """Count an event of one of the types in `COUNTED`; `dialect` is that of the backend."""
    if isinstance(event, ev.TurnEnded):
        if event.thread_id == ev.MAIN:
            _turns.labels(dialect, event.outcome).inc()
    elif isinstance(event, ev.Native):
        # What the normalizer could not repair is counted among its repairs.
        if not event.synthetic:
            _native.labels(dialect).inc()
    elif isinstance(event, ev.Gap):
        _gaps.labels(dialect).inc()
    elif (
        isinstance(event, ev.ErrorReported)
        and event.synthetic
        and event.code == ErrorCode.BACKEND_PROTOCOL
    ):
        _faults.labels(dialect).inc()


def count_failed_write(error: JournalError) -> None:
    """Count a write that was not stored, by what was wrong."""
    _failed_writes.labels(_KINDS.get(type(error), "other")).inc()


def count_failed_read(error: JournalError) -> None:
    """Count a question that the journal could not answer."""
    _failed_reads.labels(_KINDS.get(type(error), "other")).inc()


def count_over_limit(kind: str) -> None:
    """Count a request that was refused because its key has as much of a kind as it may have."""
    _over_limit.labels(kind).inc()


def count_unusable_snapshot(kind: str) -> None:
    """Count a snapshot that was found and is of no use; `kind` is the journal's, such as
    `frames/eve/main`."""
    _unusable.labels(kind.partition("/")[0]).inc()


def exposition(*, sessions: int, readers: int, stored: int, backlog: int) -> bytes:
    """Return all numbers in Prometheus' text format, given those that are asked for only now."""
    _sessions.set(sessions)
    _readers.set(readers)
    _backlog.set(backlog)
    _summed.stored = stored
    return generate_latest(REGISTRY)
