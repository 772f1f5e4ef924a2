"""One live session: what its backend says becomes its log, what its frontends say reaches its
backend.

Commands go through an outbox in the journal: `accepted` before the frontend gets its 2xx, `sent`
before the request leaves, `settled` with the events that say so. The session keeps the policy that
the face promised, whatever the backend would do by itself.

This is the facade that the rest of the proxy uses. Its modules, each of which knows only those
after it: `accept`, `outbound`, `inbound`, `log_writer`, `snapshots`, `feeds`, `admission`,
`outbox`, `core`. What a module tells those above it goes through `core`.

Why one module: it is the facade, with a method for each thing that others ask of a session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import ClientCodec
from adapters.model.normalizer import Rule
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import parse_json
from proxy.base import metrics, traces
from proxy.base.errors import JournalCorrupt, JournalError, SessionClosed, reading_back
from proxy.base.outcomes import SETTLED
from proxy.base.repeats import Submission
from proxy.base.rows import BackendBinding, CommandRow, NewSession, SessionRow
from proxy.session.accept import CommandAcceptor
from proxy.session.admission import Admission, Origin
from proxy.session.core import SessionCore
from proxy.session.feeds import Feeds
from proxy.session.inbound import InboundReader
from proxy.session.log_writer import LogWriter
from proxy.session.outbound import CommandSender
from proxy.session.outbox import Outbox
from proxy.session.snapshots import may_have_one
from proxy.session.start_times import StartTimes
from proxy.upstream.client import Upstream

_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """A session in memory. Made by `proxy.sessions.sessions`, which also puts it away.

    `broken`, `deleted` and `rested` hear what becomes of it.
    """

    core: SessionCore
    broken: Callable[[Session], None]
    deleted: dataclasses.InitVar[Callable[[Session], None]]
    rested: dataclasses.InitVar[Callable[[Session, int], None]]
    row: SessionRow = dataclasses.field(init=False)
    id: str = dataclasses.field(init=False)
    """Its public id."""
    state: LogState = dataclasses.field(init=False)
    """What is open, as of the newest event, stored or on its way."""
    used_at: float = dataclasses.field(init=False)
    holders: int = dataclasses.field(default=0, init=False)
    """How many requests look at it: it stays in memory until they are answered."""
    names: list[str] = dataclasses.field(default_factory=list, init=False)
    """The names that frontends have chosen for it."""
    _loaded: bool = dataclasses.field(default=False, init=False)
    _outbox: Outbox = dataclasses.field(init=False)
    feeds: Feeds = dataclasses.field(init=False)
    """How it is shown."""
    _log: LogWriter = dataclasses.field(init=False)
    _inbound: InboundReader = dataclasses.field(init=False)
    _sender: CommandSender = dataclasses.field(init=False)
    _acceptor: CommandAcceptor = dataclasses.field(init=False)

    def __post_init__(
        self,
        deleted: Callable[[Session], None],
        rested: Callable[[Session, int], None],
    ) -> None:
        core = self.core
        self.row, self.id = core.row, core.row.id
        self._outbox = outbox = Outbox(core.row.key, core.codec)
        self.feeds = Feeds(core)
        self._log = log = LogWriter(core, outbox, self.feeds)
        self.state = log.state
        self._inbound = inbound = InboundReader(core, log)
        admission = Admission(outbox)
        self._sender = CommandSender(core, admission, outbox, log, inbound)
        self._acceptor = CommandAcceptor(core, admission, outbox, log, self._sender)
        core.pump, core.wake, core.broke = self._sender.pump, inbound.wake, inbound.give_up
        core.lost = self._fail
        core.erased = lambda: deleted(self)
        core.rested = lambda seq: rested(self, seq)
        self.used_at = core.clock.monotonic()

    # What others ask of it.

    @property
    def leg(self) -> BackendBinding:
        """Return its newest part, at one backend."""
        return self.core.leg

    @property
    def repairs(self) -> Mapping[Rule, int]:
        """Return how often each rule of the normalizer was used."""
        return self._log.repairs

    @property
    def skipped(self) -> int:
        """Return how many frames of the backend could not be read, since the session was loaded or
        moved there."""
        return self._inbound.watcher.watch.skips

    @property
    def times(self) -> StartTimes:
        """Return since when what is open is open."""
        return self._log.times

    @property
    def reconnecting_since(self) -> int | None:
        """Return since when the backend's stream is wanted and cannot be had, in Unix ms."""
        return self._inbound.reconnecting_since

    @property
    def last_seq(self) -> int:
        """Return the seq of the newest stored event."""
        return self.feeds.stored_seq

    @property
    def closed(self) -> bool:
        """Say whether it has left memory."""
        return self.core.closed

    @property
    def quiet(self) -> bool:
        """Say whether the session could be put away: nothing runs, waits, reads or is on its way to
        the disk."""
        return self.idle and self.holders == 0 and not self.feeds.used

    @property
    def idle(self) -> bool:
        """Say whether nothing is under way but that somebody may read."""
        return self.core.stranded is not None or not (
            not self._log.stored
            or self.state.busy
            or self._outbox.busy
            or self.core.running - set(self._inbound.streams.values())
        )

    @property
    def working(self) -> bool:
        """Say whether a turn runs, or a message is on its way whose turn has not begun."""
        return self.state.busy or self._outbox.working

    @property
    def resetting(self) -> bool:
        """Say whether a reset is under way: accepted, and neither refused nor done."""
        return self._outbox.resets(self.state)

    @property
    def sending(self) -> bool:
        """Say whether a command is on its way to the backend and its answer not here yet."""
        return self._outbox.sending and not self.closed

    @property
    def forgot_its_message(self) -> bool:
        """Say whether a stop came between the session and the message that it was made with."""
        return self._loaded and self.state.seq <= 1

    def news(self) -> asyncio.Event:
        """Return an event that is set when more is stored, or when the session leaves memory."""
        return self._log.news()

    async def until_shown(self) -> None:
        """Wait until all that has happened is stored and shown, or the session leaves memory."""
        reached = self._log.seq
        while self.last_seq < reached and not self.closed:
            await self._log.news().wait()

    def open_interactions(self) -> list[ev.InteractionRequested]:
        """Return the open interactions, oldest first."""
        return [open_.event for open_ in self.state.interactions.values()]

    def queued(self) -> list[CommandRow]:
        """Return the messages that wait here for their turn, in order."""
        return self._outbox.rows(self._outbox.queue)

    def unanswered(self) -> tuple[int, int | None]:
        """Return how many messages have no turn yet, and since when, in Unix ms, the first of those
        that the backend has not taken waits."""
        messages, owed = self._outbox.messages, self._outbox.owed
        return len(messages) + len(owed), min((one.at for one in messages), default=None)

    def webhook(self, request_id: str) -> str | None:
        """Return the OAuth callback URL of an open sign-in at the backend, or None."""
        open_ = self.state.interactions.get(request_id)
        if self.core.stranded or open_ is None:
            return None
        return self.core.codec.webhook(open_.native_id)

    # Its life.

    async def begin(
        self,
        new: NewSession,
        first: Sequence[ev.Event],
        commands: Sequence[cmd.AnyCommand],
        *,
        by: str,
        blobs: Mapping[str, bytes] | None = None,
        submission: Submission | None = None,
    ) -> list[str]:
        """Store a session that is being made, with its first events and commands, and return the
        ids of these; durable on return. Its own face reads it next.

        Raises:
            DragomanError: as `submit`.
            NameTaken: a name is taken.
        """
        if new.codec is not None:
            self.feeds.fix([new.codec])
        for event in first:
            self._log.made(event)
        if new.codec is not None:
            self.feeds.get(self.row.dialect)
        self.used_at = self.core.clock.monotonic()
        origin = Origin(by, self.row.dialect, trace=traces.current.get())
        return await self._acceptor.accept(
            commands, origin, blobs=blobs or {}, submission=submission, first=first, new=new
        )

    async def load(self, names: Collection[tuple[str, str]] = ()) -> None:
        """Fold the log from its newest snapshot on, put the codec back where it was, take up what
        was under way. `names` are its aliases.

        Where what is stored beside the log cannot be read, the log alone is there for readers.
        """
        await self._fold(names, recalled=True)
        rows = await self.core.journal.commands(self.row.key)
        try:
            self._put_back()
            commands = [_command_of(self.id, row) for row in rows]
        except JournalCorrupt as error:
            self._strand(error)
        else:
            self._sender.take_up(list(zip(rows, commands, strict=True)))

    async def look(self, names: Collection[tuple[str, str]]) -> None:
        """Fold the log as `load` does, and nothing more: for who only looks at a session that
        another process may have."""
        await self._fold(names, recalled=False)

    async def _fold(self, names: Collection[tuple[str, str]], *, recalled: bool) -> None:
        self._loaded = True
        key, log = self.row.key, self._log
        if may_have_one(self.row):
            codecs, _ = await asyncio.gather(self.core.journal.codecs(key), log.begin())
        else:
            codecs = await self.core.journal.codecs(key)
        self.feeds.fix(codecs)
        self.state = log.state
        await log.load(recalled=recalled)
        log.requests.lose(names)

    def _put_back(self) -> None:
        """Put the codec back where it was.

        Raises:
            JournalCorrupt: its state is damaged, or a later release wrote it.
        """
        with reading_back(f"the state of session `{self.id}` at its backend"):
            self.core.codec.restore(self.leg.state, self.leg.position)

    def _strand(self, error: JournalError) -> None:
        """Leave the backend alone and take nothing: what is stored of it stays as it is, for a
        release that can read it. The log is whole, and is shown."""
        self.core.stranded = error
        metrics.STRANDED.inc()
        _log.error("session `%s` can be read only: %s", self.id, error.whole)

    def drain(self) -> None:
        """End all readers and send no further message; what is on its way to the backend goes on,
        and so does what it says."""
        self.core.draining = True
        self._log.tell_news()
        self.feeds.end()

    def close(self) -> None:
        """Stop all that runs, end all readers; what was under way is taken up by the next
        `load`."""
        self.core.closed = True
        self._log.held.clear()
        self._log.tell_news()
        self._inbound.close()
        self.feeds.close()
        self._log.close()
        self.core.close()

    def _fail(self) -> None:
        """Leave memory. The next request loads the session anew."""
        if not self.closed:
            self.broken(self)
            self.close()

    async def tell(self, events: Sequence[ev.Event]) -> None:
        """Write events of our own; durable on return.

        Raises:
            JournalError: they could not be stored.
        """
        self.core.check_usable()
        stored = self._log.emit(events)
        await self._log.until_stored(stored)

    async def receive(self, frame: bytes) -> None:
        """Take what the backend sends by itself; durable on return.

        Raises:
            JournalError: it could not be stored, or the session has left memory.
        """
        self.core.check_usable()
        self.used_at = self.core.clock.monotonic()
        await self._inbound.receive(frame)
        await self.until_shown()
        self.core.check_usable()

    async def settle(self, *, by: str) -> bool:
        """Bring the session to rest whatever its backend says: the turn ends as failed, what it has
        asked is withdrawn, and what was sent and not settled counts as unknown. Messages that wait
        go on. Return whether anything was open; durable on return.

        Raises:
            DragomanError: a reset, an archive or the like is on its way.
            JournalError: it could not be stored.
        """
        self.core.check_usable()
        if self._outbox.administering:
            text = "A reset, an archive or the like is on its way; it is decided within a minute."
            raise DragomanError(text, code=ErrorCode.BUSY)
        queued = {one.command_id for one in self._outbox.queue}
        if not (self.state.busy or self._outbox.owed or self.state.inputs.keys() - queued):
            return False
        # An administrator's name is nothing for frontends.
        who = f"`{by}`" if by == self.row.owner else "An administrator"
        error = DragomanError(f"{who} brought the session to rest.", code=ErrorCode.NOT_ACTIVE)
        info = ev.ErrorInfo(code=SETTLED, message=error.message)
        self._sender.end(error, info)
        await self.until_shown()
        self.core.check_usable()
        self._sender.pump()
        return True

    async def move(
        self,
        leg: BackendBinding,
        codec: ClientCodec,
        upstream: Upstream,
        event: ev.SessionUpdated,
        *,
        patience: int | None,
        quiet: int,
    ) -> None:
        """Go on at another backend, in the session's part `leg`, by a codec that knows how the
        session was made; `event` says so in the log. Durable on return, or nothing has changed:
        then the session leaves memory. Who reads the session reads on.

        Raises:
            DragomanError: something is under way.
            JournalError: it could not be stored.
        """
        self.check_movable()
        if not codec.remembers:
            await self._log.recall(codec, self._log.seq)
            # Something may have begun while the log was read.
            self.check_movable()
        core = self.core
        core.leg, core.codec, core.upstream = leg, codec, upstream
        core.patience, core.silence = patience, quiet
        self._outbox.rebind(codec)
        self._log.rebind()
        self._inbound.rebind()
        stored = self._log.emit([event], new_leg=leg)
        await self._log.until_stored(stored)
        self._sender.pump()

    def check_movable(self) -> None:
        """Check that the session may go on at another backend now.

        Raises:
            SessionClosed: it has ended.
            DragomanError: something is under way.
            JournalError: it has left memory, or only its log can be read.
        """
        self.core.check_usable()
        if self.state.ended is not None:
            raise SessionClosed(f"Session `{self.id}` has ended, so nothing of it goes on.")
        if self.state.interactions:
            asked = next(iter(self.state.interactions))
            text = f"Session `{self.id}` waits for the answer to request `{asked}`."
            raise DragomanError(text, code=ErrorCode.BUSY)
        if not self.idle:
            text = f"Session `{self.id}` is at work; it moves between two turns."
            raise DragomanError(text, code=ErrorCode.BUSY)

    # Commands.

    def submit(
        self,
        commands: Sequence[cmd.AnyCommand],
        *,
        by: str,
        face: str,
        details: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        submission: Submission | None = None,
    ) -> Coroutine[Any, Any, list[str]]:
        """Accept a batch of commands and return their ids, one each; durable on return.

        The batch is refused as a whole, before anything is stored. A repeat of the request
        `submission` is found by `repeated` from then on.

        Raises:
            SessionClosed: the session has ended.
            ClientProtocolError: busy, paused, an unknown interaction, an option that was not
            offered.
            InteractionConflict: an interaction is answered already.
            NotSupported: the backend cannot carry a command.
            JournalError: it could not be stored.
        """
        origin = Origin(by, face, details or {}, traces.current.get())
        return self._acceptor.accept(commands, origin, blobs=blobs or {}, submission=submission)

    def check_carried(self, command: cmd.AnyCommand) -> None:
        """Check that the backend can carry a command, whatever the session does just now.

        Raises:
            NotSupported: it cannot.
        """
        self.core.codec.check(command)

    async def withdraw(self, command_id: str, *, by: str) -> None:
        """Take a message out of the queue, so that it never goes to the backend; durable on return.

        Raises:
            DragomanError: it is on its way to the backend, or nothing waits under this id.
            JournalError: it could not be stored, and waits as before.
        """
        await self._acceptor.withdraw(command_id, by=by)

    def repeated(self, submission: Submission) -> list[str] | None:
        """Return the ids of the commands that a request gave which this one repeats, or None: then
        it is new. `proxy.base.repeats` says what a repeat is.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's.
        """
        return self._acceptor.repeated(submission)

    def gave(self, submission: Submission) -> bool:
        """Say whether `repeated` would return something, and record nothing.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's.
        """
        return self._log.requests.find(submission, self.core.clock.now()) is not None


def _command_of(session_id: str, row: CommandRow) -> cmd.AnyCommand:
    """Return a command that is open.

    Raises:
        JournalCorrupt: it is damaged, or a later release wrote it.
    """
    with reading_back(f"a command of session `{session_id}`"):
        value: Any = parse_json(row.body)
        return cmd.decode_command(value)
