"""Slow readers, heartbeats, leases, and a journal that fails: what a stream's reader notices."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.eve import wire
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call
from adapters.wire.errors import NotSupported
from proxy.base.errors import JournalUnavailable
from proxy.base.rows import SessionRow
from proxy.config.settings import ServerSettings
from proxy.faces import stream
from proxy.faces.face_request import FaceRequest
from proxy.fanout import hub, streams
from proxy.fanout.hub import TRANSPORT_BYTES, Reader, entries_of
from proxy.journal.base import Write
from proxy.session import Session
from proxy.session.inbound import InboundReader
from proxy.sessions.sessions import Sessions
from proxy.upstream.client import Frames, Upstream
from tests.support.clocks import HurriedClock
from tests.support.eve_client import EveSession, Form, Refused
from tests.support.journals import CrashJournal, Outliving, UntoldJournal
from tests.support.running import BACKEND, Live, Run, Running, types
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, settled, until

# About 11 kB of text in 4000 deltas: more than a megabyte of records in form `all`.
LONG = "script: long 4000"


class Stalled:
    """A reader that opens a stream and reads nothing until it is told to."""

    def __init__(self, running: Running, session_id: str) -> None:
        self._running = running
        self._path = f"/as/eve/to/{BACKEND}/eve/v1/session/{session_id}/stream"
        self.body = bytearray()
        self.closed = False
        self._socket = socket.socket()

    async def open(self) -> None:
        """Send the request and read the head's first byte, then nothing."""
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(self._socket, (HOST, self._running.port))
        request = f"GET {self._path} HTTP/1.0\r\nHost: {HOST}\r\n\r\n"
        await loop.sock_sendall(self._socket, request.encode())
        self.body += await loop.sock_recv(self._socket, 1)

    async def read(self, enough: Callable[[bytes], bool]) -> bytes:
        """Read on until there is enough, or until the server has closed; returns the body."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(SOON_S):
            while not enough(bytes(self.body)):
                try:
                    data = await loop.sock_recv(self._socket, 1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    self.closed = True
                    break
                self.body += data
        return bytes(self.body).partition(b"\r\n\r\n\n")[2]

    def close(self) -> None:
        self._socket.close()


@contextlib.asynccontextmanager
async def stalled(running: Running, session_id: str) -> AsyncIterator[Stalled]:
    reader = Stalled(running, session_id)
    await reader.open()
    try:
        yield reader
    finally:
        reader.close()


def over(body: bytes) -> bool:
    return b'"session.waiting"' in body and body.endswith(b"\n")


@pytest.mark.parametrize("ring", [hub.RING_BYTES, 1])
async def test_a_reader_that_stops_reading_costs_its_buffer_and_holds_up_nobody(
    run: Run, monkeypatch: pytest.MonkeyPatch, ring: int
) -> None:
    monkeypatch.setattr(hub, "RING_BYTES", ring)
    running = await run("sqlite")
    session = await running.eve().create()
    live = await running.live(session.session_id)
    largest = 0
    deliver = Reader.deliver

    def watched(reader: Reader, *args: Any) -> None:
        nonlocal largest
        deliver(reader, *args)
        largest = max(largest, reader.transport.get_write_buffer_size())

    monkeypatch.setattr(Reader, "deliver", watched)
    async with (
        stalled(running, session.session_id) as slow,
        Live(running, session.session_id) as quick,
    ):
        await session.send(LONG)
        await quick.until(lambda reader: over(b"".join(reader.lines[-1:])))
        await settled(live)
        whole = await running.lines(session.session_id)
        assert quick.lines == whole
        size = sum(map(len, whole))
        assert size > 4 * TRANSPORT_BYTES
        # One write may go over the mark, and is a piece of a backlog or a chunk of the Engine's.
        assert largest < 3 * TRANSPORT_BYTES
        readers = list(live.feeds.get("eve").readers)
        assert len(readers) == 2
        assert sum(reader.live for reader in readers) == 1
        assert all(r.transport.get_write_buffer_size() < 3 * TRANSPORT_BYTES for r in readers)
        # When it reads at last, it gets everything.
        assert await slow.read(over) == b"".join(whole)
        await until(lambda: all(reader.live for reader in live.feeds.get("eve").readers))


async def test_a_reader_that_never_reads_is_given_up(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run(settings={"server": {"write_timeout_seconds": 0.1}})
    session = await running.eve().create(LONG)
    await settled(await running.live(session.session_id))
    readers: list[Reader] = []

    def noted(*args: Any, **options: Any) -> Reader:
        readers.append(Reader(*args, **options))
        return readers[-1]

    monkeypatch.setattr(streams, "Reader", noted)
    async with stalled(running, session.session_id) as slow:
        await until(lambda: bool(readers) and readers[0].transport.is_closing())
        live = await running.live(session.session_id)
        await until(lambda: not live.feeds.get("eve").readers)
        body = await slow.read(lambda _: False)
        assert slow.closed
        assert not over(body)
        # Cut off, and nothing of ours behind what it has read.
        assert b"HTTP/1" not in body
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert over(b"".join((await running.lines(session.session_id))[-1:]))


async def test_readers_that_leave_are_forgotten(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    running = await run(engine={"pace": 0.05})
    session = await running.eve().create("script: slow 40")
    live = await running.live(session.session_id)
    feed = live.feeds.get("eve")
    for _ in range(10):
        async with Live(running, session.session_id) as reader:
            await reader.count(3)
            assert len(feed.readers) >= 1
    await settled(live)
    await until(lambda: not feed.readers)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# Heartbeats and leases


@pytest.mark.parametrize("form", ["all", "tokens", "newest"])
@pytest.mark.parametrize("query", ["", "streamControlVersion=1", "startIndex=2", "startIndex=99"])
async def test_an_idle_stream_gets_blank_lines(run: Run, form: Form, query: str) -> None:
    running = await run(settings={"server": {"heartbeat_seconds": 0.02}, "eve": {"form": form}})
    session = await running.eve(form).create("hello")
    await settled(await running.live(session.session_id))
    async with Live(running, session.session_id, query) as reader:
        await reader.until(lambda live: live.blank >= 4)
        lines = list(reader.lines)
    start = int(query.partition("=")[2]) if query.startswith("startIndex") else 0
    async with Live(running, session.session_id) as reader:
        whole = list(await reader.until(lambda live: over(b"".join(live.lines[-1:]))))
    assert lines == whole[start:]


async def test_a_record_between_two_heartbeats_puts_the_next_one_off_by_one_period_only(
    run: Run,
) -> None:
    period = 0.2
    running = await run(settings={"server": {"heartbeat_seconds": period}})
    session = await running.eve().create()
    async with Live(running, session.session_id) as reader:
        await asyncio.sleep(period / 10)
        await session.send("hello")
        await reader.until(lambda live: over(b"".join(live.lines[-1:])))
        # Time in which the server could do something.
        clock = HurriedClock(speed=1.0)
        before = reader.blank
        await reader.until(lambda live: live.blank > before)
        assert clock.monotonic() < period * 1.5


async def test_heartbeats_come_while_a_turn_pauses(run: Run) -> None:
    running = await run(settings={"server": {"heartbeat_seconds": 0.02}})
    session = await running.eve().create("script: approve")
    async with Live(running, session.session_id) as reader:
        await reader.until(lambda live: live.blank >= 5 and "input.requested" in types(live.lines))


def test_a_heartbeat_can_never_be_set_further_apart_than_ten_seconds() -> None:
    assert ServerSettings().heartbeat_seconds == 10
    with pytest.raises(ValidationError):
        ServerSettings(heartbeat_seconds=10.5)


async def test_a_busy_stream_gets_no_heartbeats_in_between(run: Run) -> None:
    running = await run(settings={"server": {"heartbeat_seconds": 0.2}}, engine={"pace": 0.05})
    session = await running.eve().create("script: slow 60")
    async with Live(running, session.session_id) as reader:
        await reader.until(lambda live: over(b"".join(live.lines[-1:])))
        assert reader.blank <= 3


@pytest.mark.parametrize("form", ["all", "newest"])
async def test_a_lease_ends_with_its_record_and_nothing_is_lost(
    run: Run, monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    monkeypatch.setattr(wire, "LEASE_MS", 30)
    running = await run(engine={"pace": 0.1}, settings={"eve": {"form": form}})
    client = running.eve(form)
    session = await client.create("script: slow 40")
    # The strict client takes leases, comes back, and refuses a record behind the end of one.
    turn = await session.read_turn()
    assert turn.text is not None
    async with running.get(session.session_id, "streamControlVersion=1") as response:
        body = await response.read()
    assert body.endswith(b'{"$eve":"stream.lease-ended","version":1}\n')
    assert body.count(b"lease-ended") == 1


@pytest.mark.parametrize("query", ["", "streamControlVersion=2", "streamControlVersion="])
async def test_who_asks_for_no_lease_gets_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(wire, "LEASE_MS", 20)
    running = await run(settings={"server": {"heartbeat_seconds": 0.02}})
    session = await running.eve().create("hello")
    async with Live(running, session.session_id, query) as reader:
        await reader.until(lambda live: live.blank >= 6)
        assert not any(b"$eve" in line for line in reader.lines)
        assert not reader.over


async def test_a_stop_ends_streams_in_order(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve().create("script: approve")
    await session.read_turn()
    async with Live(running, session.session_id) as reader:
        await reader.count(len(session.log))
        await running.stop()
        # The body ends as HTTP says, so that a client comes back instead of failing.
        await reader.until(lambda live: live.over)
    await running.start()
    assert await running.lines(session.session_id) == reader.lines


# The journal fails


@contextlib.contextmanager
def failing(running: Running, times: int = 1) -> Any:
    """Let the next writes fail as a full disk does. What was submitted before them is told first,
    as a journal promises."""
    journal = running.sessions.journal
    submit = journal.submit
    left = times

    def tell(write: Write, error: JournalUnavailable) -> None:
        assert write.done is not None
        if journal.backlog:
            asyncio.get_running_loop().call_soon(tell, write, error)
        else:
            write.done(error)

    def refuse(write: Write) -> None:
        nonlocal left
        if left == 0:
            submit(write)
            return
        left -= 1
        asyncio.get_running_loop().call_soon(tell, write, JournalUnavailable("the disk is full"))

    journal.submit = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        journal.submit = submit  # type: ignore[method-assign]


async def test_a_message_that_cannot_be_stored_is_refused_and_shown_to_nobody(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve().create("hello")
    await session.read_turn()
    await settled(await running.live(session.session_id))
    before = await running.lines(session.session_id)
    with failing(running):
        with pytest.raises(Refused) as caught:
            await session.send("lost")
        assert caught.value.status == 503
        assert caught.value.body["ok"] is False
    assert await running.lines(session.session_id) == before
    accepted = await session.send("kept")
    turn = await session.read_turn(accepted)
    assert turn.text is not None
    assert "“kept”. (turn 2)" in turn.text
    assert [body["message"] for body in running.requests("execute")] == ["hello", "kept"]


async def test_a_create_that_cannot_be_stored_is_refused(run: Run) -> None:
    running = await run("sqlite")
    with failing(running, 1), pytest.raises(Refused) as caught:
        await running.eve().create("hello")
    assert caught.value.status == 503
    session = await running.eve().create("hello")
    assert (await session.read_turn()).text
    assert [row.id for row in await running.sessions.journal.sessions()] == [session.session_id]


async def test_a_session_and_its_first_message_are_one_write_and_then_on_their_way(
    run: Run,
) -> None:
    journal = CrashJournal()
    running = await run(journal)
    with failing(running, 1), pytest.raises(Refused):
        await running.eve().create("lost")
    assert journal.writes == 0
    sent: list[int] = []
    opened = Upstream.stream

    def noted(self: Upstream, *args: Any) -> Any:
        sent.append(journal.writes)
        return opened(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Upstream, "stream", noted)
        session = await running.eve().create("hello")
        await session.read_turn()
    assert sent[0] == 1
    (row,) = await journal.sessions()
    first, *_ = await journal.read(row.key)
    assert [entry.event.TYPE for entry in entries_of(first.body, row.id)][:2] == [
        "session.started",
        "input.accepted",
    ]


async def test_a_message_that_is_refused_leaves_no_session_behind(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    running = await run("memory:")
    schema = cmd.SendMessage(
        content=(ev.Text(text="hello"),), policy="queue", output_schema={"type": "object"}
    )
    with pytest.raises(NotSupported):
        await running.sessions.create_with(
            [schema], by="local", owner="local", route=BACKEND, dialect="eve"
        )
    assert await running.sessions.journal.sessions() == []
    assert len(running.sessions) == 0
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("journal", ["memory:", "sqlite"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_turn_whose_events_cannot_be_stored_is_taken_up_again(
    run: Run, journal: str, times: int
) -> None:
    running = await run(journal, engine={"pace": 0.02})
    session = await running.eve().create("script: slow 60")
    records: list[Any] = []

    async def read(reader: EveSession) -> None:
        turn = await reader.read_turn()
        records.append((turn.text, reader.log))

    other = running.eve().attach(session.session_id)
    reading = [asyncio.create_task(read(one)) for one in (session, other)]
    await until(lambda: len(session.log) > 8)
    with failing(running, times):
        before = await running.live(session.session_id)
        await until(lambda: before.closed)
    await asyncio.gather(*reading)
    text = "".join(f"tick {n} " for n in range(60)) + " (turn 1)"
    assert [one[0] for one in records] == [text, text]
    assert records[0][1] == records[1][1]
    assert len(running.requests("execute")) == 1
    lines = await running.lines(session.session_id)
    assert [json.loads(line) for line in lines] == session.log


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_stream_is_opened_though_the_session_has_just_left_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    running = await run("memory:")
    session = await running.eve().create("hello")
    turn = await session.read_turn()
    ready, left = stream._ready, times

    async def late(visit: FaceRequest) -> Any:
        nonlocal left
        found = await ready(visit)
        if left:
            left -= 1
            (await running.live(session.session_id)).close()
        return found

    monkeypatch.setattr(stream, "_ready", late)
    other = running.eve().attach(session.session_id)
    if times < 3:
        assert (await other.read_turn()).text == turn.text
        return
    with pytest.raises(Refused) as caught:
        await other.read_turn()
    assert caught.value.status == 503


async def test_a_session_that_has_left_memory_takes_no_more_of_what_its_backend_says(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A piece may be on its way in the event loop when the session is closed.
    taken: list[Session] = []
    take = InboundReader._take

    def late(reading: InboundReader, call: Call, frames: Frames) -> None:
        if not session.closed:
            session.close()
        take(reading, call, frames)

    def keep(*arguments: Any) -> None:
        taken.append(session)
        kept(*arguments)

    running = await run()
    kept = running.sessions.journal.add_frames
    session = await running.live((await running.eve().create("hello")).session_id)
    await settled(session)
    monkeypatch.setattr(InboundReader, "_take", late)
    monkeypatch.setattr(running.sessions.journal, "add_frames", keep)
    await session.submit(
        [cmd.SendMessage(content=(ev.Text(text="again"),), policy="queue")], by="k", face="eve"
    )
    await until(lambda: session.closed)
    await asyncio.sleep(0)
    assert not taken


async def being_made(sessions: Sessions, journal: UntoldJournal) -> asyncio.Task[Session]:
    """A create whose session is stored, and does not know that yet."""
    journal.told.clear()
    making = asyncio.create_task(
        sessions.create(owner="local", route=BACKEND, dialect="eve"), name="make"
    )
    await until(lambda: bool(journal.late))
    return making


async def test_a_session_that_is_made_while_the_server_stops_sends_no_further_message(
    run: Run,
) -> None:
    journal = UntoldJournal()
    running = await run(journal)
    sessions = running.sessions
    making = await being_made(sessions, journal)
    await sessions.drain(0.01)
    journal.told.set()
    session = await making
    assert session.core.draining
    assert not session.closed


async def test_a_session_that_is_made_or_loaded_after_the_end_is_closed(run: Run) -> None:
    journal = UntoldJournal()
    running = await run(journal)
    sessions = running.sessions
    other = await running.eve().create()
    sessions.cache.forget(other.session_id)
    making = await being_made(sessions, journal)
    await sessions.aclose()
    journal.told.set()
    assert (await making).closed
    async with asyncio.timeout(SOON_S):
        assert (await running.live(other.session_id)).closed
    assert len(sessions) == 0


@pytest.mark.parametrize("ends", [True, False])
async def test_who_finds_a_session_that_is_being_made_waits_for_that_one(
    run: Run, ends: bool
) -> None:
    journal = UntoldJournal()
    running = await run(journal)
    sessions = running.sessions
    making = await being_made(sessions, journal)
    (row,) = await journal.sessions()
    waiting = asyncio.create_task(running.live(row.id), name="wait")
    await asyncio.sleep(0.05)
    if ends:
        journal.told.set()
        assert await making is await waiting
        return
    making.cancel()
    # Whatever it gets then, it does not wait for ever.
    await asyncio.wait({waiting}, timeout=SOON_S)
    assert waiting.done()


async def test_an_answer_that_cannot_be_stored_does_not_reach_the_engine(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve().create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    with failing(running):
        with pytest.raises(Refused) as caught:
            await session.respond(request, "approve")
        assert caught.value.status == 503
    assert running.requests("respond") == []
    await session.respond(request, "deny")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "alone" in turn.text
    assert [body["answer"] for body in running.requests("respond")] == ["no"]


class LateJournal(Outliving):
    """A journal whose disk takes its time with the end of a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Write] = []

    def submit(self, write: Write) -> None:
        if b'"type":"turn.ended"' in write.body:
            self.held.append(write)
        else:
            super().submit(write)

    def release(self) -> None:
        """Store what was held."""
        for write in self.held:
            super().submit(write)


async def test_a_session_stays_in_memory_until_its_last_write_is_stored(run: Run) -> None:
    journal = LateJournal()
    running = await run(journal)
    session = await running.eve().create("hello")
    live = await running.live(session.session_id)
    await until(lambda: bool(journal.held))
    assert not live.state.busy
    assert not live.quiet
    journal.release()
    await settled(live)
    assert live.quiet


async def test_a_session_stays_in_memory_while_a_request_looks_at_it(run: Run) -> None:
    running = await run()
    session, other = [await running.eve().create() for _ in range(2)]
    with running.sessions.holding():
        live = await running.live(session.session_id)
        made = await running.sessions.create(owner="local", route=BACKEND, dialect="eve")
        for held in (live, made):
            await settled(held)
            assert held.idle
            assert not held.quiet
        # It begins when the request is over, and has its context still.
        task = asyncio.create_task(running.live(other.session_id))
    await until(lambda: live.quiet and made.quiet)
    late = await task
    await until(lambda: late.quiet)


async def test_a_session_stays_in_memory_while_work_that_outlives_its_request_looks_at_it(
    run: Run,
) -> None:
    running = await run()
    session = await running.eve().create()

    async def work() -> None:
        live = await running.live(session.session_id)
        await settled(live)
        assert live.idle
        assert not live.quiet

    with running.sessions.holding():
        await running.sessions.keep(work())


async def test_a_session_that_is_put_away_before_who_asked_hears_of_it_is_loaded_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run("sqlite")
    session = await running.eve().create("hello")
    await settled(await running.live(session.session_id))
    await running.restart()
    live, closed = running.sessions.cache, 0
    load = live._load

    async def slow(row: SessionRow) -> Session:
        nonlocal closed
        found = await load(row)
        if closed < 2:
            closed += 1
            live.forget(found.id)
        return found

    monkeypatch.setattr(live, "_load", slow)
    assert not (await running.live(session.session_id)).closed
    assert closed == 2


async def test_a_session_that_was_put_away_is_gone_without_a_collection_of_cycles(run: Run) -> None:
    running = await run()
    session = await running.eve().create("script: tool")
    await session.read_turn()
    gone = weakref.ref(await running.live(session.session_id))
    gc.disable()
    try:
        await until(lambda: gone() is None)
    finally:
        gc.enable()
    assert session.session_id not in running.sessions.cache
