"""What the process counts: each number moves when what it counts happens, and says no names."""

from __future__ import annotations

import asyncio
import platform
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from adapters.model import events as ev
from adapters.model.normalizer import Normalizer, Rule
from adapters.model.state import SNAPSHOT_SHAPE, LogState
from adapters.registry import faces
from proxy import __version__
from proxy.app import health
from proxy.base import metrics
from proxy.base.errors import JournalCorrupt, JournalError, JournalUnavailable
from proxy.base.rows import StoredSnapshot
from proxy.config.settings import ListenerSettings
from proxy.fanout.hub import Feed
from proxy.journal import _writer
from proxy.journal.base import Journal, Write
from proxy.journal.sqlite import SqliteJournal
from proxy.scripted.faults import Faults, Garbage
from proxy.session import snapshots
from proxy.upstream import readiness
from proxy.upstream.health import Health
from tests.journal.conftest import create, journal, line, path, postgres, store, until
from tests.journal.test_sqlite import empty_disk, execute, fill_disk
from tests.support.dragoman import starts
from tests.support.keys import key_of
from tests.support.proxied import proxied
from tests.support.running import Run, Running
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, settled
from tests.test_hub import Log, Step, log

__all__ = ["journal", "log", "path", "postgres", "run"]

run = starts(Running)

MONITORING = Path(__file__).parents[1] / "docs" / "monitoring.md"


def number(name: str, **labels: str) -> float:
    """Return what a series stands at."""
    found = metrics.REGISTRY.get_sample_value(name, labels)
    assert found is not None, f"there is no series {name} {labels}"
    return found


@pytest.fixture
def counted() -> Callable[..., float]:
    """How far a series has moved since the test first asked for it; ask once before."""
    begin: dict[str, float] = {}

    def moved(name: str, **labels: str) -> float:
        now = number(name, **labels)
        return now - begin.setdefault(f"{name} {labels}", now)

    return moved


def exposed(text: str) -> dict[str, float]:
    """Return the series of an answer."""
    lines = [one for one in text.splitlines() if not one.startswith("#")]
    pairs = [one.rpartition(" ") for one in lines]
    return {name: float(value) for name, _, value in pairs}


# The route.


async def test_the_numbers_need_a_key_and_name_backends_only() -> None:
    keys = (key_of("carlotta"),)
    async with proxied(backends=("quarry",), keys=keys) as dragoman:
        assert (await dragoman.request("GET", "/metrics"))[0] == 401
        assert (await dragoman.request("GET", "/metrics", key="k-other"))[0] == 401
        name = await dragoman.say("hello", route="quarry", key="k-carlotta")
        await dragoman.until_idle(name)
        url = f"{dragoman.url}/metrics"
        async with dragoman.http.get(url, headers={"x-api-key": "k-carlotta"}) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = await response.text()
    assert exposed(text)
    assert exposed(text)['dragoman_backend_up{backend="quarry"}'] == 1
    for secret in ("carlotta", name, "hello"):
        assert secret not in text


async def test_without_keys_the_numbers_are_for_this_machine_only() -> None:
    async with proxied() as dragoman:
        assert (await dragoman.request("GET", "/metrics"))[0] == 200
        foreign = {"Origin": "http://evil.example"}
        assert (await dragoman.request("GET", "/metrics", headers=foreign))[0] == 403


async def test_what_is_open_now_is_told_when_it_is_asked_for() -> None:
    async with proxied() as dragoman:
        empty = exposed((await dragoman.request("GET", "/metrics"))[1])
        name = await dragoman.say("hello")
        await dragoman.until_idle(name)
        live = await dragoman.session(name)
        stream = f"{dragoman.url}/as/eve/to/engine/eve/v1/session/{name}/stream"
        async with dragoman.http.get(stream) as response:
            await response.content.readany()
            full = exposed((await dragoman.request("GET", "/metrics"))[1])
        await until(lambda: dragoman.sessions.readers == 0)
        left = exposed((await dragoman.request("GET", "/metrics"))[1])
    names = ("dragoman_sessions_in_memory", "dragoman_readers_open", "dragoman_events_stored_total")
    assert [empty[name] for name in names] == [0, 0, 0]
    assert [full[name] for name in names] == [1, 1, live.last_seq]
    assert [left[name] for name in names] == [1, 0, live.last_seq]
    assert full["dragoman_journal_backlog_bytes"] == 0


def test_every_series_begins_at_zero_before_anything_happens() -> None:
    # Prometheus' `increase` sees no first event of a series that begins with it.
    program = (
        "from proxy.base import metrics\n"
        "print(metrics.exposition(sessions=0, readers=0, stored=0, backlog=0).decode(), end='')"
    )
    fresh = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    series = exposed(fresh.stdout.decode())
    for label, values in {
        "native_events_total{dialect": metrics.BACKENDS,
        "gaps_total{dialect": metrics.BACKENDS,
        "backend_faults_total{dialect": metrics.BACKENDS,
        "journal_failed_writes_total{kind": (*metrics._KINDS.values(), "other"),
        "journal_failed_reads_total{kind": ("unavailable", "corrupt"),
        "snapshots_unusable_total{kind": ("state", "frames"),
        "journal_commits_total{work": ("writes", "later"),
        "journal_commit_cpu_seconds_total{work": ("writes", "later"),
    }.items():
        for value in values:
            assert series[f'dragoman_{label}="{value}"}}'] == 0
    assert not any(name.startswith("dragoman_backend_up") for name in series)
    for face in (*faces(), "control", "other"):
        assert series[f'dragoman_http_requests_total{{face="{face}",status="200"}}'] == 0
    for backend in metrics.BACKENDS:
        assert series[f'dragoman_turn_first_event_seconds_count{{dialect="{backend}"}}'] == 0
        for outcome in metrics.OUTCOMES:
            labels = f'dialect="{backend}",outcome="{outcome}"'
            assert series[f"dragoman_turns_total{{{labels}}}"] == 0
        for rule in Rule:
            assert series[f'dragoman_repairs_total{{dialect="{backend}",rule="{rule.value}"}}'] == 0


def test_the_documentation_has_every_number_and_no_other() -> None:
    # What is known of a backend is shown from its first answer on.
    Health("engine", "http://127.0.0.1:9").counts.answered(200)
    metrics.DELIVERIES.labels("hermes", "taken")
    metrics.expect_messages("a", "engine")
    text = metrics.exposition(sessions=0, readers=0, stored=0, backlog=0).decode()
    text = re.sub(r"(dragoman_\w+_seconds)_(?:bucket|sum|count)", r"\1", text)
    text = re.sub(r',?\ble="[^"]*"', "", text)
    shown = {re.split(r"[{ ]", name)[0] for name in exposed(text)}
    assert {name for name in shown if not name.startswith("dragoman_")} == {
        f"process_{name}"
        for name in (
            "virtual_memory_bytes",
            "resident_memory_bytes",
            "start_time_seconds",
            "cpu_seconds_total",
            "open_fds",
            "max_fds",
        )
    }
    shown = {name for name in shown if name.startswith("dragoman_")}
    page = MONITORING.read_text()
    assert "| `process_*` | |" in page
    documented = set(re.findall(r"^\| `(dragoman_\w+)", page, re.MULTILINE))
    assert documented == shown
    labels = {
        found[1]: set(re.findall(r"(\w+)=", found[2]))
        for found in re.finditer(r"^(dragoman_\w+)\{(.*)\}", text, re.MULTILINE)
    }
    for name, those in labels.items():
        row = re.search(rf"^\| `{name}` \|.*", page, re.MULTILINE)
        assert row, name
        assert those == set(re.findall(r"`(\w+)`", row[0].split("|")[2])), name


# What backends say.


async def test_what_is_wrong_with_a_backends_frames_is_counted(
    run: Run, counted: Callable[..., float]
) -> None:
    names = ("native_events", "backend_faults", "gaps")
    for name in names:
        counted(f"dragoman_{name}_total", dialect="engine")
    rule = Rule.SECOND_SETTLEMENT.value
    counted("dragoman_repairs_total", dialect="engine", rule=rule)
    future = b'event: from_the_future\ndata: {"a":1}\n\n'
    plan = Faults({("execute", 1): Garbage(3, future), ("execute", 2): Garbage(3)})
    running = await run(engine={"faults": plan})
    client = await running.eve().create("hello")
    await client.read_turn()
    assert [counted(f"dragoman_{name}_total", dialect="engine") for name in names] == [1, 0, 0]
    second = await running.eve().create("hello")
    await second.read_turn()
    assert [counted(f"dragoman_{name}_total", dialect="engine") for name in names] == [1, 1, 0]

    live = await running.live(second.session_id)
    await settled(live)
    settlement = ev.InputSettled(thread_id=ev.MAIN, command_id="c-nobody", outcome="taken")
    await live.tell([ev.Gap(thread_id=ev.MAIN, reason="a test"), settlement, settlement])
    assert [counted(f"dragoman_{name}_total", dialect="engine") for name in names] == [1, 1, 1]
    # What comes from elsewhere, or is not the backend's fault, is not one of these.
    mine = ev.Native(thread_id=ev.MAIN, dialect="engine", name="x", frame={}, synthetic=True)
    said = ev.ErrorReported(thread_id=ev.MAIN, code="backend_protocol", message="m")
    other = ev.ErrorReported(thread_id=ev.MAIN, code="internal", message="m", synthetic=True)
    await live.tell([mine, said, other])
    assert [counted(f"dragoman_{name}_total", dialect="engine") for name in names] == [1, 1, 1]
    repaired = live.repairs[Rule.SECOND_SETTLEMENT]
    assert repaired > 0
    assert counted("dragoman_repairs_total", dialect="engine", rule=rule) == repaired


def test_a_write_of_no_known_kind_and_what_waits_are_shown(counted: Callable[..., float]) -> None:
    counted("dragoman_journal_failed_writes_total", kind="other")
    metrics.count_failed_write(JournalError("a new one"))
    assert counted("dragoman_journal_failed_writes_total", kind="other") == 1
    text = metrics.exposition(sessions=0, readers=0, stored=0, backlog=7).decode()
    assert exposed(text)["dragoman_journal_backlog_bytes"] == 7


def test_repairs_are_counted_for_the_session_and_for_the_process() -> None:
    one, other = (Normalizer(LogState(), totals=metrics.REPAIRS["herm"]) for _ in range(2))
    before = number("dragoman_repairs_total", dialect="herm", rule="open-turn")
    for normalizer in (one, other, other):
        turn = f"t{normalizer.repairs[Rule.OPEN_TURN]}"
        normalizer.feed([ev.StepStarted(thread_id=ev.MAIN, turn_id=turn, step_index=0)])
    assert (one.repairs[Rule.OPEN_TURN], other.repairs[Rule.OPEN_TURN]) == (1, 2)
    assert number("dragoman_repairs_total", dialect="herm", rule="open-turn") == before + 3


# Backends.


async def answers(running: Running, path: str) -> tuple[int, Any]:
    """Ask the proxy, and return the status and the JSON of its answer."""
    async with running.http.get(f"http://{HOST}:{running.port}{path}") as response:
        return response.status, await response.json(content_type=None)


def of_backend(counted: Callable[..., float], backend: str) -> list[float]:
    """Return how many requests to a backend were answered, refused, in vain and not answered."""
    return [
        counted("dragoman_backend_requests_total", backend=backend, status=status)
        for status in ("2xx", "4xx", "5xx", "none")
    ]


async def test_a_backend_that_is_down_and_comes_back_is_shown(
    run: Run, counted: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "KEPT_SECONDS", 0.0)
    ready = (200, {"status": "ready"})
    running = await run()
    of_backend(counted, "engine")
    assert await answers(running, "/readyz?backends=1") == ready
    client = await running.eve().create("hello")
    await client.read_turn()
    assert number("dragoman_backend_up", backend="engine") == 1
    answered, *others = of_backend(counted, "engine")
    assert (answered > 0, others) == (True, [0, 0, 0])
    assert await answers(running, "/readyz?backends=1") == ready

    await running.stop_backend("engine")
    await running.eve().create("is anybody there")
    await until(lambda: number("dragoman_backend_up", backend="engine") == 0)
    assert of_backend(counted, "engine")[3] > 0
    why = {"engine": "connection_refused"}
    down = (503, {"status": "backends_down", "backends": ["engine"], "why": why})
    assert await answers(running, "/readyz?backends=1") == down
    assert await answers(running, "/readyz") == ready
    assert await answers(running, "/readyz?backends=0") == ready

    await running.start_backend("engine")
    client = await running.eve().create("hello again")
    await client.read_turn()
    assert number("dragoman_backend_up", backend="engine") == 1
    assert await answers(running, "/readyz?backends=1") == ready


async def test_nothing_is_said_of_a_backend_that_was_not_asked() -> None:
    async with proxied(backends=("never-asked",)) as dragoman:
        text = (await dragoman.request("GET", "/metrics"))[1]
        status, _ = await dragoman.request("GET", "/readyz?backends=1")
    assert status == 200
    assert 'dragoman_backend_up{backend="never-asked"}' not in text
    requests = 'dragoman_backend_requests_total{backend="never-asked",status="none"}'
    assert exposed(text)[requests] == 0


async def test_a_backend_that_refuses_is_up_and_its_refusals_are_counted(
    counted: Callable[..., float],
) -> None:
    async with proxied(engine={"key": "another"}, backends=("strict",)) as dragoman:
        of_backend(counted, "strict")
        await dragoman.request("POST", "/as/eve/to/strict/eve/v1/session", json={"message": "m"})
        await until(lambda: of_backend(counted, "strict")[1] > 0)
        status, body = await dragoman.request("GET", "/readyz?backends=1")
        assert (status, body["why"]) == (503, {"strict": "credential_refused"})
    assert number("dragoman_backend_up", backend="strict") == 1


def test_statuses_that_nobody_knows_have_one_label(counted: Callable[..., float]) -> None:
    counts = metrics.BackendCounts("odd")
    for status in (100, 700, 999):
        counts.answered(status)
    assert number("dragoman_backend_requests_total", backend="odd", status="other") == 3
    metrics.count_request("other", 799)
    metrics.count_request("other", 798)
    assert number("dragoman_http_requests_total", face="other", status="other") == 2


async def test_turns_are_counted_with_their_outcome_and_the_time_to_their_first_event(
    run: Run, counted: Callable[..., float]
) -> None:
    def found() -> list[float]:
        ended = [
            counted("dragoman_turns_total", dialect="engine", outcome=outcome)
            for outcome in ("completed", "failed")
        ]
        return [*ended, counted("dragoman_turn_first_event_seconds_count", dialect="engine")]

    found()
    running = await run()
    client = await running.eve().create("hello")
    await client.read_turn()
    assert found() == [1, 0, 1]
    await client.read_turn(await client.send("again"))
    assert found() == [2, 0, 2]
    live = await running.live(client.session_id)
    await settled(live)
    # A turn that nobody asked for is counted, and is not measured.
    await live.tell([ev.TurnStarted(thread_id=ev.MAIN, turn_id="t-of-its-own", cause="unknown")])
    text = ev.TextCompleted(
        thread_id=ev.MAIN, turn_id="t-of-its-own", message_id="m", block_id="b", index=0, text="x"
    )
    await live.tell([text])
    end = ev.TurnEnded(thread_id=ev.MAIN, turn_id="t-of-its-own", outcome="failed")
    await live.tell([end])
    assert found() == [2, 1, 2]


class Turns:
    """The counts of a session of the Engine, and the state that its events make."""

    def __init__(self) -> None:
        self.counts = metrics.TurnCounts()
        self.state = LogState()
        self.queue: list[Any] = []

    def hear(self, event: ev.Event, now: int) -> None:
        """Let an event happen."""
        entry = ev.Entry(self.state.seq + 1, now, "s", event)
        self.state.apply_entry(entry)
        if self.counts.waiting is not None:
            self.counts.look([entry], "engine", now)
        if event.TYPE in metrics.COUNTED:
            self.counts.hear(event, "engine", self.state, self, now)

    def accept(self, command_id: str, now: int) -> None:
        """Take a message."""
        event = ev.InputAccepted(
            thread_id=ev.MAIN, command_id=command_id, kind="message", by="somebody"
        )
        self.hear(event, now)


def test_the_first_event_is_measured_from_the_message_to_the_first_text(
    counted: Callable[..., float],
) -> None:
    def found() -> tuple[float, float]:
        names = ("count", "sum")
        count, seconds = [
            counted(f"dragoman_turn_first_event_seconds_{name}", dialect="engine") for name in names
        ]
        return count, round(seconds, 3)

    def start(turn: str, now: int) -> None:
        started = ev.TurnStarted(thread_id=ev.MAIN, turn_id=turn, cause="message")
        turns.hear(started, now)

    def text(turn: str, now: int, kind: type[ev.TextDelta | ev.TextCompleted]) -> None:
        said = kind(thread_id=ev.MAIN, turn_id=turn, message_id=f"m-{turn}", block_id="b", text="x")
        turns.hear(said, now)

    def end(turn: str, now: int) -> None:
        turns.hear(ev.TurnEnded(thread_id=ev.MAIN, turn_id=turn, outcome="completed"), now)

    found()
    turns = Turns()
    turns.accept("c-1", 1_000)
    start("t-1", 1_500)
    text("t-1", 3_000, ev.TextDelta)
    text("t-1", 9_000, ev.TextCompleted)
    assert found() == (1, 2)
    # What waits for the end of a turn is measured from there on.
    turns.accept("c-2", 10_000)
    turns.queue = [CommandOf("c-2")]
    end("t-1", 20_000)
    turns.queue = []
    start("t-2", 20_100)
    text("t-2", 20_500, ev.TextDelta)
    text("t-2", 20_900, ev.TextCompleted)
    assert found() == (2, 2.5)
    end("t-2", 21_000)
    # What is refused is waited for no longer.
    turns.accept("c-3", 30_000)
    refused = ev.InputSettled(
        thread_id=ev.MAIN, command_id="c-3", outcome="refused", reason="it is refused"
    )
    turns.hear(refused, 31_000)
    turns.accept("c-4", 90_000)
    start("t-4", 90_000)
    text("t-4", 91_000, ev.TextDelta)
    assert found() == (3, 3.5)


class CommandOf(NamedTuple):
    """A message that waits."""

    command_id: str


# Requests.


async def test_requests_are_counted_by_face_and_status(counted: Callable[..., float]) -> None:
    series = [
        ("eve", "200"),
        ("eve", "202"),
        ("eve", "401"),
        ("control", "200"),
        ("other", "200"),
        ("other", "404"),
    ]

    def found() -> dict[tuple[str, str], float]:
        return {
            (face, status): counted("dragoman_http_requests_total", face=face, status=status)
            for face, status in series
        }

    # What has not been answered yet has no series.
    metrics.count_request("eve", 202)
    found()
    keys = (key_of("a"),)
    listener = ListenerSettings(listen="127.0.0.1:0", dialect="eve", route="engine")
    async with proxied(keys=keys, listeners=(listener,)) as dragoman:
        name = await dragoman.say("hello", key="k-a")
        await dragoman.until_idle(name)
        path = f"/eve/v1/session/{name}/stream?follow=0"
        for base in (f"{dragoman.url}/as/eve/to/engine", dragoman.listeners[0].url):
            assert (await dragoman.request("GET", base + path, key="k-a"))[0] == 200
        assert (await dragoman.request("GET", f"/as/eve/to/engine{path}"))[0] == 401
        assert (await dragoman.request("GET", "/api/v1/sessions", key="k-a"))[0] == 200
        assert (await dragoman.request("GET", "/readyz"))[0] == 200
        assert (await dragoman.request("GET", "/as/none/to/engine/x"))[0] == 404
    assert list(found().values()) == [2, 1, 1, 1, 1, 1]


async def test_a_stream_whose_reader_leaves_is_counted_once(counted: Callable[..., float]) -> None:
    def found() -> float:
        return counted("dragoman_http_requests_total", face="eve", status="200")

    found()
    async with proxied() as dragoman:
        name = await dragoman.say("hello")
        await dragoman.until_idle(name)
        before = found()
        stream = f"{dragoman.url}/as/eve/to/engine/eve/v1/session/{name}/stream"
        async with dragoman.http.get(stream) as response:
            await response.content.readany()
            # It is counted when it opens, not when it ends.
            assert found() == before + 1
        await until(lambda: dragoman.sessions.readers == 0)
    assert found() == before + 1


async def test_an_answer_that_nobody_gets_is_not_counted(
    counted: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise ConnectionResetError

    def found() -> list[float]:
        return [
            counted("dragoman_http_requests_total", face="other", status=status)
            for status in ("200", "other")
        ]

    metrics.count_request("other", 799)
    found()
    monkeypatch.setattr(health, "healthz", broken)
    async with proxied() as dragoman:
        await dragoman.request("GET", "/healthz")
        assert found() == [0, 0]
        await dragoman.request("GET", "/readyz")
        assert found() == [1, 0]


def test_the_build_is_named_and_the_process_is_measured() -> None:
    python = platform.python_version()
    assert number("dragoman_build_info", version=__version__, python=python) == 1
    assert number("process_resident_memory_bytes") > 0


# The journal.


async def test_writes_that_are_not_stored_are_counted_by_kind(
    journal: Journal, counted: Callable[..., float]
) -> None:
    kinds = ("sequence_conflict", "name_taken", "session_not_found", "session_closed")

    def found() -> list[float]:
        return [counted("dragoman_journal_failed_writes_total", kind=kind) for kind in kinds]

    found()
    one, two = await create(journal, "s1"), await create(journal, "s2")
    assert await store(journal, Write(one.key, 2, 1, line(2), aliases=[("task", "t")])) is None
    two_lines = line(3) + line(4)
    assert await store(journal, Write(one.key, 3, 2, two_lines)) is None
    assert journal.stored == 5
    assert found() == [0, 0, 0, 0]
    await store(journal, Write(one.key, 2, 1, line(2)))
    assert found() == [1, 0, 0, 0]
    await store(journal, Write(two.key, 2, 1, line(2), aliases=[("task", "t")]))
    assert found() == [1, 1, 0, 0]
    await store(journal, Write(99, 1, 1, line(1)))
    assert found() == [1, 1, 1, 0]
    await journal.delete(one.key, at=2)
    await store(journal, Write(one.key, 3, 1, line(3)))
    assert found() == [1, 1, 1, 1]
    assert journal.stored == 5


async def test_commits_are_counted_with_what_is_in_them_and_what_they_take(
    path: Path, counted: Callable[..., float]
) -> None:
    def found() -> tuple[float, float, float]:
        return (
            counted("dragoman_journal_commits_total", work="writes"),
            counted("dragoman_journal_committed_writes_total"),
            counted("dragoman_journal_commits_total", work="later"),
        )

    found()
    seconds = [("dragoman_journal_commit_cpu_seconds_total", work) for work in ("writes", "later")]
    for name, work in seconds:
        counted(name, work=work)
    # So long a window that what is submitted together is in one commit.
    journal = SqliteJournal(path, window_ms=50.0, frame_seconds=0.001)
    await journal.open()
    row = await create(journal)
    for seq in range(2, 5):
        journal.submit(Write(row.key, seq, 1, line(seq)))
    await store(journal, Write(row.key, 5, 1, line(5)))
    journal.add_frames(row.key, 0, 0, [b"frame"], 1)
    # One for the session, one for the four events.
    await until(lambda: found()[:2] == (2, 5) and found()[2] > 0)
    assert all(counted(name, work=work) > 0 for name, work in seconds)
    await journal.aclose()


async def test_a_disk_that_is_full_is_counted(
    path: Path, counted: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "RETRY_SECONDS", 0.01)
    names = ("journal_failed_writes_total", "journal_postponed_total")

    def found() -> list[float]:
        return [
            counted(f"dragoman_{names[0]}", kind="unavailable"),
            counted(f"dragoman_{names[1]}"),
        ]

    found()
    journal = SqliteJournal(path, frame_seconds=0.001)
    await journal.open()
    row = await create(journal)
    assert found() == [0, 0]
    await journal._job(fill_disk)
    assert isinstance(
        await store(journal, Write(row.key, 2, 1, line(2, "y" * 50_000))), JournalError
    )
    assert found()[0] == 1
    journal.add_frames(row.key, 0, 0, [bytes(range(256)) * 4096], 1)
    journal.add_snapshot(row.key, StoredSnapshot("big", 1, 0, 1, random_bytes(60_000)))
    await until(lambda: found()[1] > 0)
    await journal._job(empty_disk)
    await journal.aclose()
    await store(journal, Write(row.key, 2, 1, line(2)))
    assert found()[0] == 2


def random_bytes(count: int) -> bytes:
    """Return bytes that do not compress."""
    return random.Random(1).randbytes(count)


async def test_questions_that_a_damaged_journal_cannot_answer_are_counted(
    path: Path, counted: Callable[..., float]
) -> None:
    kinds = ("corrupt", "unavailable")

    def found() -> list[float]:
        return [counted("dragoman_journal_failed_reads_total", kind=kind) for kind in kinds]

    found()
    journal = SqliteJournal(path)
    await journal.open()
    row = await create(journal)
    for seq in range(2, 6):
        await store(journal, Write(row.key, seq, 1, line(seq)))
    await journal.aclose()
    execute(path, "DELETE FROM events WHERE first = 3")
    execute(path, "ALTER TABLE blobs RENAME TO elsewhere")
    await journal.open()
    with pytest.raises(JournalCorrupt):
        await journal.read(row.key)
    assert found() == [1, 0]
    with pytest.raises(JournalUnavailable):
        await journal.blob("0" * 64)
    assert found() == [1, 1]
    await journal.aclose()


async def test_a_session_that_loses_its_place_in_the_journal_is_counted(
    counted: Callable[..., float],
) -> None:
    counted("dragoman_sessions_lost_total")
    async with proxied() as dragoman:
        name = await dragoman.say("hello")
        await dragoman.until_idle(name)
        live = await dragoman.session(name)
        stranger = ev.Notice(thread_id=ev.MAIN, text="a second writer")
        body = ev.Entry(live.last_seq + 1, live.state.at, name, stranger).encode_row() + b"\n"
        await dragoman.sessions.journal.append(Write(live.row.key, live.last_seq + 1, 1, body))
        status, _ = await dragoman.request(
            "POST", f"/as/eve/to/engine/eve/v1/session/{name}", json={"message": "again"}
        )
        assert status >= 500
        assert counted("dragoman_sessions_lost_total") == 1
        await dragoman.say("once more", name)
        await dragoman.until_idle(name, turns=2)
    assert counted("dragoman_sessions_lost_total") == 1


# Snapshots and feeds.


async def test_snapshots_of_no_use_are_counted(
    path: Path, log: Log, counted: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[float]:
        kinds = ("state", "frames")
        return [counted("dragoman_snapshots_unusable_total", kind=kind) for kind in kinds]

    found()
    # Of a face's frames.
    feed = log.feed
    version = Feed._version(feed.encoder)
    log.journal.add_snapshot(log._key, StoredSnapshot(feed._kind, version, 0, 1, b"no number"))
    _, after = await feed.encoder_at()
    assert (after, found()) == (0, [0, 1])
    # Of a session's state.
    monkeypatch.setattr(snapshots, "SNAPSHOT_ENTRIES", 2)
    async with proxied() as dragoman:
        name = await dragoman.say("hello")
        await dragoman.until_idle(name)
        live = await dragoman.session(name)
        bad = StoredSnapshot(snapshots.STATE, SNAPSHOT_SHAPE, 0, live.last_seq, b"{}")
        dragoman.sessions.journal.add_snapshot(live.row.key, bad)
        kept = dragoman.sessions.journal.snapshot
        async with asyncio.timeout(SOON_S):
            while await kept(live.row.key, snapshots.STATE, SNAPSHOT_SHAPE) != bad:
                pass
        dragoman.sessions.cache.forget(name)
        assert (await dragoman.session(name)).last_seq == live.last_seq
    assert found() == [1, 1]
    # One whose bytes are damaged on the disk.
    journal = SqliteJournal(path)
    await journal.open()
    row = await create(journal)
    await journal.aclose()
    execute(
        path,
        "INSERT INTO snapshots (session, kind, version, cursor, seq, data)"
        " VALUES (?, 'frames/eve/main', 1, 0, 1, ?)",
        (row.key, zlib.compress(b"x")[:-3]),
    )
    await journal.open()
    assert await journal.snapshot(row.key, "frames/eve/main", 1) is None
    await journal.aclose()
    assert found() == [1, 2]


async def test_a_feed_that_lacks_a_frame_is_counted(
    log: Log, counted: Callable[..., float]
) -> None:
    counted("dragoman_feed_holes_total")
    feed = log.feed
    await feed.catch_up()
    log.say(Step(1))

    async def nothing(*_: Any, **__: Any) -> Any:
        for chunk in list[Any]():
            yield chunk

    feed._ring_start = feed.encoder.next_cursor = 5
    log.journal.scan = nothing
    with pytest.raises(JournalUnavailable, match="lacks the frame at cursor 0"):
        await anext(feed.read(0))
    assert counted("dragoman_feed_holes_total") == 1
    feed._ring_start = 0
    feed.encoder.next_cursor = 9
    with pytest.raises(JournalUnavailable, match="no frame"):
        await anext(feed.read(7))
    assert counted("dragoman_feed_holes_total") == 2
