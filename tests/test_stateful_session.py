"""Sessions, journal and cursors against a plain model, over any order of what can happen to them.

A backend that keeps everything it said, people who say things and answer, readers of all dialects
with cursors of their own, crashes after any write, restarts, putting away, expiry and deletion. The
model is a list of entries and, for each dialect, the frames of an encoder that has read it from the
first entry on and was never put back: anybody who reads must get exactly these, from any cursor.

The backend stands behind a codec of its own that speaks canonical events, so nothing here depends
on how a dialect is spoken upstream. Snapshots and rings are small, so that a short log needs them.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import hypothesis.strategies as st
import pytest
from aiohttp import web
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import (
    Ability,
    Call,
    ClientCodec,
    CloseReason,
    Encoder,
    Frame,
    Request,
    Response,
    Support,
)
from adapters.model.state import LogState
from adapters.wire.errors import ClientProtocolError, DragomanError
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import format_json, parse_json
from proxy.base.clock import ManualClock, SeededIds
from proxy.base.errors import (
    CursorExpired,
    InteractionConflict,
    JournalError,
    SessionExpired,
    SessionNotFound,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.base.rows import StoredSnapshot
from proxy.base.tasks import Tasks
from proxy.config.settings import BackendSettings, Settings
from proxy.fanout import hub
from proxy.fanout.hub import entries_of
from proxy.fanout.streams import StreamPlan, write_stream
from proxy.journal._changes import Transaction
from proxy.journal._writer import Job
from proxy.journal.base import Write
from proxy.journal.postgres import PostgresJournal
from proxy.journal.postgres._database import Connection
from proxy.journal.sqlite import SqliteJournal
from proxy.session import Session, snapshots
from proxy.sessions.backends import Backends
from proxy.sessions.cache import QUIET_SECONDS
from proxy.sessions.retention_limits import RetentionLimits
from proxy.sessions.sessions import Sessions
from proxy.upstream.client import Load, Take
from tests.support.journals import ON_POSTGRES, journal_url, release_databases
from tests.test_hub import Wire
from tests.wire import served

FACES = tuple(served())
BACKEND = "plain"
MOST = 3
"""Sessions at a time: few, so that rules meet on them."""

PLAN = StreamPlan(heartbeat=None, heartbeat_seconds=3600.0, write_timeout=3600.0)

EXAMPLES = 20 if ON_POSTGRES else 40
"""How many orders are tried; a database is slower than a file."""

ROUNDS = 3_000
"""Looks until what does not come to rest is a failure; a rest takes ten or so."""


# The backend.


@dataclasses.dataclass
class Talk:
    """One conversation at the backend: all that it said, and what it was asked to do."""

    frames: list[tuple[ev.Event, ...]] = dataclasses.field(default_factory=list)
    executed: Counter[str] = dataclasses.field(default_factory=Counter)
    messages: list[str] = dataclasses.field(default_factory=list)
    answered: Counter[str] = dataclasses.field(default_factory=Counter)
    turn: str | None = None
    asks: list[str] = dataclasses.field(default_factory=list)
    block: list[str] = dataclasses.field(default_factory=list)
    words: str = ""
    numbers: int = 0
    fate: str = "done"
    piece: int = 1
    cut: bool = False
    wrong: list[str] = dataclasses.field(default_factory=list)
    more: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def say(self, *events: ev.Event) -> None:
        self.frames.append(events)
        self.wake()

    def wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()

    def name(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers}"

    def take(self, command_id: str, command: cmd.AnyCommand) -> int:
        """Do what is asked, as a backend does it, and return the status of the answer."""
        match command:
            case cmd.SendMessage():
                if self.turn is not None:
                    self.wrong.append("a message came while a turn ran")
                    return 409
                text = "".join(b.text for b in command.content if isinstance(b, ev.Text))
                self.messages.append(text)
                self.turn = self.name("turn")
                self.say(
                    ev.MessageReceived(
                        thread_id=ev.MAIN,
                        message_id=command_id,
                        content=command.content,
                        command_id=command_id,
                    ),
                    ev.TurnStarted(thread_id=ev.MAIN, turn_id=self.turn, cause="message"),
                )
            case cmd.AnswerInteraction(request_id=request_id):
                if request_id not in self.asks:
                    return 409
                self.asks.remove(request_id)
                self.answered[request_id] += 1
                resolved = ev.InteractionResolved(
                    thread_id=ev.MAIN,
                    turn_id=self.turn,
                    request_id=request_id,
                    outcome="approved",
                )
                resumed = ev.TurnResumed(thread_id=ev.MAIN, turn_id=self.turn)
                self.say(resolved, *([] if self.asks else [resumed]))
            case cmd.Interrupt():
                if self.turn is None:
                    return 409
                self.end("interrupted")
            case _:
                return 404
        self.executed[command_id] += 1
        return 200

    def end(self, outcome: str) -> None:
        self.say(
            ev.TurnEnded(thread_id=ev.MAIN, turn_id=self.turn, outcome=cast(Any, outcome)),
        )
        self.turn = None
        self.asks.clear()
        self.block.clear()


class PlainCodec(ClientCodec):
    """Speaks canonical events: a frame is the number of what the conversation has said."""

    dialect = BACKEND
    framing = "ndjson"
    abilities: Mapping[str, Ability] = {
        name: Ability(Support.EMULATED if name == "delete" else Support.NATIVE)
        for name in cmd.COMMAND_TYPES
    }
    patience = 10**12

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._next = 0
        self._begun = False

    def check(self, command: cmd.AnyCommand) -> None:
        pass

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._begun = True
        body = cmd.encode_command(command)
        return Call("do", Request("POST", "/do", body=body), command_id=command_id)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call:
        body = cmd.encode_command(command)
        return Call("look", Request("GET", "/look", body=body), command_id=command_id)

    def streams(self) -> tuple[Call, ...]:
        if not self._begun:
            return ()
        return (Call("stream", Request("GET", f"/stream/{self._next}"), stream=True),)

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        return []

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        if response.status == 200:
            return self._settled(call, "taken")
        return self._settled(call, "refused" if call.name == "do" else "unknown")

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        if call.stream:
            return []
        return self._settled(call, "unknown" if sent else "refused")

    def _settled(self, call: Call, outcome: Any) -> list[ev.Event]:
        assert call.command_id is not None
        settled = ev.InputSettled(
            thread_id=ev.MAIN, command_id=call.command_id, outcome=outcome, reason="as asked"
        )
        command = decoded(call)
        if outcome == "taken" or not isinstance(command, cmd.AnswerInteraction):
            return [settled]
        released = ev.InteractionAnswered(
            thread_id=ev.MAIN,
            request_id=command.request_id,
            command_id=call.command_id,
            by="backend",
            state="released",
        )
        return [settled, released]

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, bytes)
        number = int(frame)
        if number != self._next:
            self._talk.wrong.append("a frame came twice, or one is missing")
        self._next += 1
        return list(self._talk.frames[number])

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        self._talk.wrong.append("garbage")
        return []

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        return []

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        # What the session does when there is a bug in it; patience does not end here.
        self._talk.wrong.append(f"given up: {error}")
        return []

    def tick(self, now: int) -> list[ev.Event]:
        return []

    @property
    def frames(self) -> int:
        return self._next

    @property
    def position(self) -> bytes:
        return b"%d" % self._next

    def snapshot(self) -> bytes:
        return format_json({"begun": self._begun})

    @property
    def changed(self) -> bool:
        return False

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        value: Any = parse_json(snapshot) if snapshot else {"begun": False}
        self._begun = value["begun"]
        self._next = int(position or 0)


def decoded(call: Call) -> cmd.AnyCommand:
    value: Any = parse_json(call.request.body or b"")
    return cmd.decode_command(value)


@dataclasses.dataclass
class PlainStream:
    """The frames of a conversation from a number on."""

    talk: Talk
    at: int
    head: Response = dataclasses.field(default_factory=lambda: Response(200))
    tail: bytes = b""
    stopped: bool = False

    def stop(self) -> None:
        """Break it as a silence does: the backend is asked how the turn stands."""
        self.stopped = True
        self.talk.wake()

    async def read(self, take: Take) -> None:
        talk = self.talk
        while True:
            more = talk.more
            if self.stopped:
                raise UpstreamTimeout("silent")
            while self.at < len(talk.frames):
                piece = range(self.at, min(self.at + talk.piece, len(talk.frames)))
                self.at = piece.stop
                if (busy := take([b"%d" % number for number in piece])) is not None:
                    await busy
                await asyncio.sleep(0)
            if talk.cut:
                talk.cut = False
                raise UpstreamUnavailable("cut", sent=True)
            await more.wait()


class PlainUpstream:
    """What stands where the connections to a backend are."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def call(self, call: Call, load: Load, trace: str | None) -> Response:
        talk = self._talk
        await asyncio.sleep(0)
        assert call.command_id is not None
        if call.name == "look":
            return Response(200 if talk.executed[call.command_id] else 404)
        fate, talk.fate = talk.fate, "done"
        match fate:
            case "unreachable":
                raise UpstreamUnavailable("nobody is there", sent=False)
            case "lost on the way":
                raise UpstreamUnavailable("cut", sent=True)
            case "refused":
                return Response(409)
        status = talk.take(call.command_id, decoded(call))
        await asyncio.sleep(0)
        if fate == "answer lost":
            raise UpstreamUnavailable("cut", sent=True)
        return Response(status)

    @contextlib.asynccontextmanager
    async def stream(
        self, call: Call, framing: str, load: Load, trace: str | None
    ) -> AsyncIterator[PlainStream]:
        await asyncio.sleep(0)
        yield PlainStream(self._talk, int(call.request.path.rpartition("/")[2]))

    def trouble(self, *_: object) -> None:
        """Ignore that the backend cannot be used."""

    def skipped(self, *_: object) -> None:
        """Ignore a frame that could not be read."""

    def concluded(self, *_: object) -> None:
        """Ignore how a message ended."""


class PlainSessions(Sessions):
    """The sessions as they are, over the backend of this test."""

    def __init__(self, talks: dict[str, Talk], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        make = self.cache.make

        def codec(backend: BackendSettings, task_id: str) -> ClientCodec:
            return PlainCodec(talks.setdefault(task_id, Talk()))

        def plain(*arguments: Any) -> Session:
            made = make(*arguments)
            upstream: Any = PlainUpstream(talks[made.id])
            made.core.upstream = upstream
            return made

        self.backends.codec = codec  # type: ignore[method-assign]
        self.cache.make = plain  # type: ignore[method-assign, assignment]


# The journals.

T = TypeVar("T")


class Crash(abc.ABC):
    """What makes a journal lose everything after its k-th write, and counts what is being read.

    Whatever it does is over before the loop goes on: so an example is the same each time.
    """

    crashed: asyncio.Event
    left: int | None
    confirmed: bool
    busy: int

    @abc.abstractmethod
    def store(self, write: Write) -> None:
        """Store a write, and wait for that; `write.done` is then to be called by the loop."""

    def arm(self, writes: int | None, *, confirmed: bool = True) -> None:
        """Let that many writes through; nobody hears of the last one unless `confirmed`."""
        self.left = writes
        self.confirmed = confirmed
        self.crashed = asyncio.Event()

    def watched(self) -> None:
        """Count the reads that are under way, which a thread may be busy with."""
        self.busy = 0
        for name in ("session", "sessions", "resolve", "aliases", "legs", "commands", "read"):
            self._watch(name)
        for name in ("snapshot", "codecs", "fix_codec", "delete", "expire", "create_session"):
            self._watch(name)

    def _watch(self, name: str) -> None:
        work = getattr(self, name)

        async def counted(*arguments: Any, **options: Any) -> Any:
            self.busy += 1
            try:
                return await work(*arguments, **options)
            finally:
                self.busy -= 1

        setattr(self, name, counted)

    def submit(self, write: Write) -> None:
        if self.left == 0:
            self.crashed.set()
            return
        if self.left is not None:
            self.left -= 1
            if self.left == 0 and not self.confirmed:
                write.done = None
                self.crashed.set()
        self.store(write)


class CrashingFile(Crash, SqliteJournal):
    """Such a journal in a file, whose index is written early and whose threads are waited for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, index_rows=5, window_ms=0, synced=False)
        self.arm(None)
        self.watched()
        self.settled = threading.Semaphore(0)

    async def open(self) -> None:
        """Open it, and let each item be waited for."""
        await super().open()
        writer = self._writer
        assert writer is not None
        tell = writer._tell

        def counted(callback: Callable[..., None], *arguments: Any) -> None:
            tell(callback, *arguments)
            if callback == self._settle:
                self.settled.release(len(arguments[0]))

        writer._tell = counted  # type: ignore[method-assign]

    async def _job(self, run: Callable[[Transaction], T]) -> T:
        if self._writer is None or not self._is_open:
            raise self._refusal()
        future: asyncio.Future[T] = self._loop.create_future()
        self._writer.put(Job(run, future))
        self.settled.acquire()
        return await future

    async def _ask(self, question: Callable[[apsw.Connection], T]) -> T:
        if not self._is_open:
            raise self._refusal()
        connection = self._readers.get()
        try:
            return question(connection)
        finally:
            self._readers.put(connection)

    def store(self, write: Write) -> None:
        is_open = self._is_open
        SqliteJournal.submit(self, write)
        if is_open:
            self.settled.acquire()


class CrashingDatabase(Crash, PostgresJournal):
    """Such a journal in a database, on a loop of its own in a thread, which is waited for."""

    def __init__(self, url: str) -> None:
        super().__init__(url, window_ms=0, frames=False)
        self.arm(None)
        self.watched()
        self.own = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.own.run_forever, daemon=True)

    async def _apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the journal's own loop; any other stands meanwhile."""
        if asyncio.get_running_loop() is self.own:
            return await work
        return asyncio.run_coroutine_threadsafe(work, self.own).result()

    async def open(self) -> None:
        self.thread.start()
        await self._apart(super().open())

    async def aclose(self) -> None:
        if not self._is_open:
            return
        await self._apart(super().aclose())
        await self._apart(self.own.shutdown_default_executor())
        self.own.call_soon_threadsafe(self.own.stop)
        self.thread.join()
        self.own.close()

    async def _job(
        self, run: Callable[[Connection], Awaitable[T]], *, forget: int | None = None
    ) -> T:
        return await self._apart(super()._job(run, forget=forget))

    async def _ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._apart(super()._ask(question))

    async def _flush(self) -> None:
        await self._apart(super()._flush())

    def add_snapshot(self, session: int, snapshot: StoredSnapshot) -> None:
        if self._is_open:
            self.own.call_soon_threadsafe(super().add_snapshot, session, snapshot)

    def store(self, write: Write) -> None:
        if not self._is_open:
            PostgresJournal.submit(self, write)
            return
        done = write.done

        async def stored() -> JournalError | None:
            heard: asyncio.Future[JournalError | None] = self.own.create_future()
            write.done = heard.set_result
            PostgresJournal.submit(self, write)
            return await heard

        error = asyncio.run_coroutine_threadsafe(stored(), self.own).result()
        if done is not None:
            asyncio.get_running_loop().call_soon(done, error)


Crashing = CrashingFile | CrashingDatabase


# The model.

SPEECH = st.lists(
    st.sampled_from(["word", "word", "word", "whole", "thought", "tool", "ask"]),
    min_size=1,
    max_size=8,
)
ENDS = st.sampled_from([None, None, "completed", "failed"])
FATES = st.sampled_from(["done"] * 5 + ["answer lost", "lost on the way", "unreachable", "refused"])
LONG = 12
"""Entries of a session that it is worth to lose."""


@dataclasses.dataclass
class Reader:
    """A client with a cursor, and the connection that it has now."""

    dialect: str
    start: int
    fast: bool
    wire: Wire | None = None
    task: asyncio.Task[None] | None = None


@dataclasses.dataclass
class Model:
    """What a session must be."""

    id: str
    key: int
    talk: Talk
    rows: list[bytes] = dataclasses.field(default_factory=list)
    events: list[ev.Event] = dataclasses.field(default_factory=list)
    state: LogState = dataclasses.field(default_factory=LogState)
    encoders: dict[str, Encoder] = dataclasses.field(default_factory=dict)
    shown: dict[str, list[Frame]] = dataclasses.field(default_factory=dict)
    readers: list[Reader] = dataclasses.field(default_factory=list)
    said: list[str] = dataclasses.field(default_factory=list)
    unsure: list[str] = dataclasses.field(default_factory=list)
    refused: list[str] = dataclasses.field(default_factory=list)
    gone: str | None = None
    leaving: bool = False

    def take(self, rows: Sequence[bytes], entries: Sequence[ev.Entry]) -> None:
        """Go on with what is stored; raises what a law raises that does not hold."""
        for row, entry in zip(rows, entries, strict=True):
            assert entry.seq == len(self.rows) + 1
            assert entry.at >= self.state.at
            self.state.apply_entry(entry)
            self.rows.append(row)
            self.events.append(entry.event)
            for dialect, encoder in self.encoders.items():
                self.shown[dialect] += encoder.feed(entry)

    def of(self, cls: type[ev.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, cls)]


class SessionMachine(RuleBasedStateMachine):
    """Everything that can happen to some sessions, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module, name, value in (
            (snapshots, "SNAPSHOT_ENTRIES", 6),
            (snapshots, "SNAPSHOT_SHARE", 10**6),
            (hub, "SNAPSHOT_ENTRIES", 6),
            (hub, "SNAPSHOT_BYTES", 10**6),
            (hub, "RING_BYTES", 1_500),
            (hub, "WRITE_BYTES", 300),
            (hub, "FIRST_ROWS", 2),
        ):
            self.patch.setattr(module, name, value)
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.ids = SeededIds(1)
        self.talks: dict[str, Talk] = {}
        self.models: list[Model] = []
        self.numbers = 0
        self.folder: Path | None = None
        backend = BackendSettings(name=BACKEND, dialect="engine", url="http://127.0.0.1:9")
        self.settings = Settings.model_validate({"backends": (backend,)})

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(dialects=st.lists(st.sampled_from(FACES), min_size=1, max_size=2))
    def begin(self, dialects: list[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sessions-"))
        self.journal = self.made_journal()
        self.run(self.start())
        for dialect in dialects:
            self.run(self.made(dialect))

    def made_journal(self) -> Crashing:
        """Return a journal on what is stored."""
        assert self.folder is not None
        path = self.folder / "journal.db"
        if ON_POSTGRES:
            return CrashingDatabase(journal_url(f"sqlite:///{path}"))
        return CrashingFile(path)

    def teardown(self) -> None:
        try:
            if hasattr(self, "journal"):
                self.run(self.end())
        finally:
            self.run(self.stop())
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()
            self.patch.undo()
            if self.folder is not None:
                shutil.rmtree(self.folder)
            release_databases()

    # Start, stop, rest.

    async def start(self) -> None:
        await self.journal.open()
        self.tasks = Tasks("test")
        http: Any = None
        self.sessions = PlainSessions(
            self.talks,
            self.settings,
            self.journal,
            tasks=self.tasks,
            clock=self.clock,
            ids=self.ids,
            backends=Backends(self.settings, http, self.ids),
        )
        await self.sessions.open()

    async def stop(self) -> None:
        """Stop as a crash does: what is not stored is gone, and nobody has seen it."""
        for model in self.models:
            for reader in model.readers:
                await self.leave(model, reader)
        await self.sessions.aclose()
        await self.tasks.aclose()
        await self.journal.aclose()

    async def restart(self) -> None:
        await self.look()
        await self.stop()
        self.journal = self.made_journal()
        await self.start()
        for model in self.models:
            # What was stored is what it was.
            known = len(model.rows)
            if model.gone is None and not model.leaving:
                rows, _ = await self.stored(model, 0)
                assert rows[:known] == model.rows

    async def rest(self) -> None:
        """Let everything run until nothing moves any more, through crashes that come meanwhile."""
        still = written = 0
        for _ in range(ROUNDS):
            for _ in range(20):
                await asyncio.sleep(0)
            before, written = written, self.written()
            if self.journal.crashed.is_set():
                await self.restart()
                still = 0
            elif self.journal.busy or self.journal.backlog:
                await asyncio.sleep(0.0005)
                still = 0
            elif self.moves():
                await self.clock.advance(0.2)
                still = 0
            elif written != before:
                # A reader is on its way through history.
                still = 0
            elif (still := still + 1) > 2:
                await self.look(still=True)
                return
        raise AssertionError("it does not come to rest")

    def moves(self) -> bool:
        if self.sessions.cache.loading:
            return True
        for live in self.sessions.cache:
            codec = cast(PlainCodec, live.core.codec)
            behind = codec._begun and codec._next < len(codec._talk.frames)
            if live.sending or live._outbox.owed or behind or not live._log.stored:
                return True
        return False

    def written(self) -> int:
        """Return how much the readers that are there have got."""
        wires = [reader.wire for model in self.models for reader in model.readers]
        return sum(wire.writes for wire in wires if wire is not None)

    async def attempt(self, work: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
        """Do what a request does; a crash may cut it off, and then nobody knows."""
        task = asyncio.create_task(work)
        crash = asyncio.create_task(self.journal.crashed.wait())
        await asyncio.wait({task, crash}, return_when=asyncio.FIRST_COMPLETED)
        crash.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            return False, None
        return True, task.result()

    # What is stored, and who has it.

    async def stored(self, model: Model, after: int) -> tuple[list[bytes], list[ev.Entry]]:
        rows: list[bytes] = []
        entries: list[ev.Entry] = []
        async for chunk in self.journal.scan(model.key, after=after):
            for row, entry in zip(
                chunk.body.splitlines(), entries_of(chunk.body, model.id), strict=True
            ):
                if entry.seq > after + len(rows):
                    rows.append(row)
                    entries.append(entry)
        return rows, entries

    async def look(self, *, still: bool = False) -> None:
        """Compare everything with the model; nothing is on its way any more when all is `still`."""
        for model in self.models:
            assert model.talk.wrong == []
            if model.gone is None and model.leaving:
                row = await self.journal.session(model.id)
                if row.state in ("deleted", "expired"):
                    model.gone = row.state
            if model.gone is None:
                with contextlib.suppress(CursorExpired):
                    model.take(*await self.stored(model, len(model.rows)))
            for reader in model.readers:
                self.compare(model, reader, still)

    def compare(self, model: Model, reader: Reader, still: bool) -> None:
        """What a reader has are the frames of the model from its cursor on, byte for byte."""
        if reader.wire is None:
            return
        shown = model.shown[reader.dialect]
        due = b"".join(frame.data for frame in shown if frame.cursor >= reader.start)
        if reader.fast:
            reader.wire.take()
        taken = reader.wire.taken
        if model.gone or model.leaving:
            # Its last frames may have been read and erased before the model could read them.
            assert due.startswith(taken) or taken.startswith(due)
            return
        assert due.startswith(taken)
        if still and reader.fast and reader.task is not None and not reader.task.done():
            assert taken == due, "a reader that keeps up has everything"

    async def leave(self, model: Model, reader: Reader) -> None:
        """Cut a reader's connection; it keeps the frames that came whole."""
        if reader.wire is None:
            return
        reader.wire.gone = True
        if reader.task is not None:
            reader.task.cancel()
            await asyncio.wait({reader.task})
        taken = reader.wire.taken
        for frame in model.shown[reader.dialect]:
            if frame.cursor < reader.start:
                continue
            if not taken.startswith(frame.data):
                # Less than one frame does not count.
                break
            taken = taken[len(frame.data) :]
            reader.start = frame.cursor + 1
        reader.wire = reader.task = None

    # What happens.

    def at_hand(self) -> list[Model]:
        return [model for model in self.models if model.gone is None and not model.leaving]

    def any_of(self, number: int) -> Model | None:
        models = self.at_hand()
        return models[number % len(models)] if models else None

    async def live(self, model: Model) -> Session:
        return await self.sessions.get(model.id, owner=None, route=None)

    @precondition(lambda self: len(self.at_hand()) < MOST)
    @rule(dialect=st.sampled_from(FACES))
    def create(self, dialect: str) -> None:
        self.run(self.made(dialect))

    async def made(self, dialect: str) -> None:
        known, made = await self.attempt(
            self.sessions.create(owner="local", route=BACKEND, dialect=dialect)
        )
        if not known:
            # It may be there, but nobody has its name.
            return
        model = Model(made.id, made.row.key, self.talks[made.id])
        for name in FACES:
            model.encoders[name] = made.feeds.encoders(name, ev.MAIN)()
            model.shown[name] = []
        self.models.append(model)
        await self.rest()

    @precondition(lambda self: self.at_hand())
    @rule(
        which=st.integers(0, 9),
        policy=st.sampled_from(["queue", "reject"]),
        fate=FATES,
        what=SPEECH,
        end=ENDS,
        face=st.sampled_from(FACES),
        settle=st.booleans(),
    )
    def send(
        self,
        which: int,
        policy: Any,
        fate: str,
        what: list[str],
        end: str | None,
        face: str,
        settle: bool,
    ) -> None:
        """Say something; the backend, if it is told that, answers at once."""
        model = self.any_of(which)
        if model is None:
            return
        self.numbers += 1
        text = f"message {self.numbers}"
        model.talk.fate = fate

        async def work() -> None:
            live = await self.live(model)
            command = cmd.SendMessage(content=(ev.Text(text=text),), policy=policy)
            try:
                known, _ = await self.attempt(live.submit([command], by="key", face=face))
            except ClientProtocolError:
                assert policy == "reject"
                model.refused.append(text)
            else:
                (model.said if known else model.unsure).append(text)
            if settle:
                await self.rest()
                self.utter(model.talk, what, end)
                await self.rest()

        self.run(work())

    @precondition(lambda self: any(m.talk.turn for m in self.at_hand()))
    @rule(
        which=st.integers(0, 9),
        what=SPEECH,
        end=ENDS,
        piece=st.integers(1, 4),
        settle=st.booleans(),
    )
    def speak(self, which: int, what: list[str], end: str | None, piece: int, settle: bool) -> None:
        models = [model for model in self.at_hand() if model.talk.turn]
        talk = models[which % len(models)].talk
        talk.piece = piece
        self.utter(talk, what, end)
        if settle:
            self.run(self.rest())

    def utter(self, talk: Talk, what: list[str], end: str | None) -> None:
        """Let the backend say something in the turn that is open, if one is."""
        if talk.turn is None:
            return
        for kind in what:
            if kind == "ask" or not talk.asks:
                self.utter_one(talk, kind)
        if end is not None and not talk.asks:
            talk.end(end)

    def utter_one(self, talk: Talk, kind: str) -> None:
        of: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": talk.turn}
        if kind not in ("word", "whole"):
            self.whole(talk)
        match kind:
            case "word":
                word = f"{talk.name('w')} "
                talk.words += word
                if not talk.block:
                    talk.block.append(talk.name("block"))
                talk.block.append(word)
                name = talk.block[0]
                talk.say(ev.TextDelta(**of, block_id=name, message_id=name, index=0, text=word))
            case "whole":
                self.whole(talk)
            case "thought":
                name = talk.name("thought")
                say = {**of, "block_id": name, "message_id": name, "index": 0, "text": "hm"}
                talk.say(ev.ReasoningDelta(**say), ev.ReasoningCompleted(**say, status="complete"))
            case "tool":
                call = talk.name("call")
                talk.say(ev.ToolCalled(**of, call_id=call, name="run", input={"a": 1}))
                talk.say(ev.ToolReturned(**of, call_id=call, output="ok", status="completed"))
            case _:
                request = talk.name("ask")
                talk.asks.append(request)
                talk.say(
                    ev.InteractionRequested(
                        **of, request_id=request, kind="approval", prompt=request
                    ),
                    ev.TurnPaused(**of, on="input", request_ids=tuple(talk.asks)),
                )

    @staticmethod
    def whole(talk: Talk) -> None:
        if not talk.block:
            return
        name, *words = talk.block
        talk.block.clear()
        talk.say(
            ev.TextCompleted(
                thread_id=ev.MAIN,
                turn_id=talk.turn,
                block_id=name,
                message_id=name,
                index=0,
                text="".join(words),
                status="complete",
            )
        )

    @precondition(lambda self: any(m.talk.asks for m in self.at_hand()))
    @rule(
        which=st.integers(0, 9),
        number=st.integers(0, 9),
        twice=st.booleans(),
        fate=st.sampled_from(["done", "done", "answer lost", "lost on the way", "refused"]),
        settle=st.booleans(),
    )
    def answer(self, which: int, number: int, twice: bool, fate: str, settle: bool) -> None:
        models = [model for model in self.at_hand() if model.talk.asks]
        model = models[which % len(models)]
        request = model.talk.asks[number % len(model.talk.asks)]
        model.talk.fate = fate

        async def one(live: Session) -> bool:
            command = cmd.AnswerInteraction(request_id=request, decision="allow")
            try:
                await live.submit([command], by="key", face="herm")
            except (InteractionConflict, ClientProtocolError):
                # Answered by somebody else, or not asked of us yet.
                return False
            return True

        async def answers(live: Session) -> list[bool]:
            return await asyncio.gather(*[one(live) for _ in range(1 + twice)])

        async def work() -> None:
            known, taken = await self.attempt(answers(await self.live(model)))
            assert not known or sum(taken) <= 1, "two answers were accepted"
            if settle:
                await self.rest()

        self.run(work())

    @precondition(lambda self: self.at_hand())
    @rule(which=st.integers(0, 9))
    def interrupt(self, which: int) -> None:
        model = self.any_of(which)
        assert model is not None
        # What a backend does not stop ends here in time, which no model of a backend knows.
        model.talk.fate = "done"

        async def work() -> None:
            live = await self.live(model)
            await self.attempt(live.submit([cmd.Interrupt()], by="key", face="herm"))
            await self.rest()

        self.run(work())

    @precondition(lambda self: self.at_hand())
    @rule(
        which=st.integers(0, 9),
        dialect=st.sampled_from(FACES),
        back=st.integers(0, 40),
        fast=st.booleans(),
    )
    def join(self, which: int, dialect: str, back: int, fast: bool) -> None:
        """Read from any cursor of the session, or from its beginning."""
        model = self.any_of(which)
        assert model is not None
        shown = model.shown[dialect]
        start = shown[-back].cursor if 0 < back <= len(shown) else 0
        reader = Reader(dialect, start, fast)
        model.readers.append(reader)
        self.run(self.connect(model, reader))

    @precondition(lambda self: any(m.readers for m in self.at_hand()))
    @rule(which=st.integers(0, 9), number=st.integers(0, 9), back=st.booleans())
    def cut(self, which: int, number: int, back: bool) -> None:
        """Break a reader's connection; it comes back with its cursor, or stays away for now."""
        models = [model for model in self.at_hand() if model.readers]
        model = models[which % len(models)]
        reader = model.readers[number % len(model.readers)]
        self.run(self.look())
        self.run(self.leave(model, reader))
        if back:
            self.run(self.connect(model, reader))

    @precondition(lambda self: any(m.readers for m in self.at_hand()))
    @rule(which=st.integers(0, 9), number=st.integers(0, 9), size=st.integers(1, 400))
    def take(self, which: int, number: int, size: int) -> None:
        """Let a slow reader read a little."""
        models = [model for model in self.at_hand() if model.readers]
        model = models[which % len(models)]
        reader = model.readers[number % len(model.readers)]
        if reader.wire is not None:
            reader.wire.take(size)
        self.run(self.rest())

    async def connect(self, model: Model, reader: Reader) -> None:
        if reader.wire is None:
            known, live = await self.attempt(self.live(model))
            if known:
                reader.wire = wire = Wire(fast=reader.fast)
                work = write_stream(
                    cast(web.Request, wire),
                    cast(web.StreamResponse, wire),
                    live.feeds.get(reader.dialect),
                    reader.start,
                    PLAN,
                )
                reader.task = asyncio.create_task(work)
        await self.rest()

    @precondition(lambda self: self.at_hand())
    @rule(which=st.integers(0, 9))
    def break_stream(self, which: int) -> None:
        model = self.any_of(which)
        assert model is not None
        model.talk.cut = True
        model.talk.wake()
        self.run(self.rest())

    @precondition(lambda self: self.at_hand())
    @rule(writes=st.integers(0, 6), confirmed=st.booleans())
    def crash_soon(self, writes: int, confirmed: bool) -> None:
        # A crash that has come must not be taken back.
        self.run(self.rest())
        self.journal.arm(writes if confirmed else writes + 1, confirmed=confirmed)

    @precondition(lambda self: any(m.said for m in self.at_hand()))
    @rule()
    def crash(self) -> None:
        """Crash now, whatever is on its way."""
        self.run(self.restart())
        self.run(self.rest())

    @precondition(lambda self: self.at_hand())
    @rule()
    def put_away(self) -> None:
        """Let time pass: what nobody uses leaves memory."""

        async def work() -> None:
            await self.rest()
            for _ in range(5):
                await self.clock.advance(QUIET_SECONDS / 2)
                await self.rest()
            for live in self.sessions.cache:
                assert not live.quiet

        self.run(work())

    @precondition(lambda self: any(len(m.rows) > LONG for m in self.at_hand()))
    @rule()
    def expire(self) -> None:
        """Keep nothing that is older than now; what has work is kept."""

        async def work() -> None:
            await self.rest()
            await self.clock.advance(2.0)
            there = self.at_hand()
            for model in there:
                model.leaving = True
            done, doomed = await self.attempt(self.sessions.prune(RetentionLimits(age=1)))
            await self.rest()
            for model in there:
                # It stays where it had work, or a crash came before it was its turn.
                model.leaving = model.gone is not None
                if model.gone is not None:
                    assert (model.gone, model.talk.turn) == ("expired", None)
                    self.settled(model)
            if done:
                # A crash may have left a session that nobody was told about.
                known = {one.row.id for one in doomed} & {model.id for model in there}
                assert known == {model.id for model in there if model.gone}

        self.run(work())

    @precondition(lambda self: any(len(m.rows) > LONG for m in self.at_hand()))
    @rule()
    def delete(self) -> None:
        model = max(self.at_hand(), key=lambda model: len(model.rows))

        async def work() -> None:
            live = await self.live(model)
            model.leaving = True
            await self.attempt(live.submit([cmd.Delete()], by="key", face="herm"))
            await self.rest()
            if model.gone is None and not model.of(ev.SessionEnded):
                # The crash came before it was accepted.
                model.leaving = False

        self.run(work())

    # In the end.

    def settled(self, model: Model) -> None:
        """Every command is settled once, and says what became of it."""
        outcomes = {settled.command_id: settled.outcome for settled in model.of(ev.InputSettled)}
        accepted = [accepted.command_id for accepted in model.of(ev.InputAccepted)]
        assert sorted(outcomes) == sorted(accepted)
        assert len(model.of(ev.InputSettled)) == len(accepted)
        for command_id, outcome in outcomes.items():
            times = model.talk.executed[command_id]
            assert times == (outcome == "taken"), (outcome, times)
        assert max(model.talk.answered.values(), default=0) <= 1

    async def end(self) -> None:
        """Finish all turns, then compare what is left with what was done and said."""
        await self.rest()
        self.journal.arm(None)
        for _ in range(60):
            for model in self.at_hand():
                await self.live(model)
            await self.rest()
            talks = [model.talk for model in self.at_hand() if model.talk.turn is not None]
            if not talks:
                break
            for talk in talks:
                self.whole(talk)
                talk.end("completed")
        else:
            raise AssertionError("turns without end")
        for model in self.at_hand():
            await self.finished(model)
        for model in self.models:
            if model.gone is not None:
                with pytest.raises(SessionNotFound if model.gone == "deleted" else SessionExpired):
                    await self.live(model)
                with pytest.raises(CursorExpired):
                    await self.journal.read(model.key)

    async def finished(self, model: Model) -> None:
        self.settled(model)
        rows, entries = await self.stored(model, 0)
        assert rows == model.rows
        assert [entry.seq for entry in entries] == list(range(1, len(rows) + 1))
        assert "".join(delta.text for delta in model.of(ev.TextDelta)) == model.talk.words
        texts = Counter(
            block.text
            for accepted in model.of(ev.InputAccepted)
            for block in accepted.content or ()
        )
        assert max(texts.values(), default=1) == 1
        assert set(model.said) <= set(texts)
        assert not set(model.refused) & set(texts)
        assert set(texts) <= set(model.said) | set(model.unsure)
        received = [
            block.text for message in model.of(ev.MessageReceived) for block in message.content
        ]
        assert received == model.talk.messages
        asked = [request.request_id for request in model.of(ev.InteractionRequested)]
        said = [
            event.request_id
            for frame in model.talk.frames
            for event in frame
            if isinstance(event, ev.InteractionRequested)
        ]
        assert asked == said
        await self.read_late(model)

    async def read_late(self, model: Model) -> None:
        """A late reader gets what the others got, from the first frame and from the middle."""
        live = await self.live(model)
        for dialect in FACES:
            feed = live.feeds.get(dialect)
            await feed.catch_up()
            shown = model.shown[dialect]
            for first in {0, len(shown) // 2, max(len(shown) - 1, 0)}:
                due = shown[first:]
                if not due:
                    continue
                found = [
                    (frame.cursor, frame.data)
                    async for frames in feed.read(due[0].cursor)
                    for frame in frames
                ]
                assert found == [(frame.cursor, frame.data) for frame in due]


_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]

SessionMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, suppress_health_check=_CHECKS
)

test_sessions_are_what_the_model_is = SessionMachine.TestCase
