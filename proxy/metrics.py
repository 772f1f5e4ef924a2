"""What this process counts, for Prometheus: rare things when they happen, the rest when asked for.

Labels are dialects, rules and kinds. No label names a session, a key, a route or a backend: so the
numbers tell no names, and a label with a session's id would grow for ever.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from adapters import events as ev
from adapters.errors import ErrorCode
from adapters.normalizer import Rule
from adapters.registry import DIALECTS
from proxy.errors import (
    JournalCorrupt,
    JournalError,
    JournalUnavailable,
    NameTaken,
    SequenceConflict,
    SessionClosed,
    SessionNotFound,
)
from proxy.loop_lag import LAG

# When a series began is nothing that anybody asks for, and doubles them.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
"""All that `/metrics` shows."""

BACKENDS = tuple(name for name, dialect in DIALECTS.items() if dialect.client is not None)
"""The dialects of backends."""

COUNTED = frozenset({"native", "gap", "error.reported"})
"""The types of the events that `count_event` looks at."""

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
_unusable = _counter(
    "dragoman_snapshots_unusable",
    "Snapshots that were found and could not be used.",
    "kind",
    ("state", "frames"),
)

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
MALFORMED = Counter(
    "dragoman_malformed_requests",
    "Connections that were answered 400 because what they sent is not HTTP.",
    registry=REGISTRY,
)


class Commits:
    """What the journal's writer does of one kind: transactions, what was in them, CPU of its
    thread."""

    __slots__ = ("commits", "items", "seconds")

    def __init__(self) -> None:
        self.commits = 0
        self.items = 0
        self.seconds = 0.0

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


class _Summed(Collector):
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


_summed = _Summed()
REGISTRY.register(_summed)


def count_event(event: ev.Event, dialect: str) -> None:
    """Count an event of one of the types in `COUNTED`; `dialect` is that of the backend."""
    if isinstance(event, ev.Native):
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
