"""One live session: what its backend says becomes its log, what its frontends say reaches its
backend.

Commands go through an outbox in the journal: `accepted` before the frontend gets its 2xx, `sent`
before the request leaves, `settled` with the events that say so. The session keeps the policy that
the face promised, whatever the backend would do by itself.

This is the facade that the rest of the proxy uses. Its rooms, each of which knows only those after
it: `intake`, `sending`, `reading`, `replies`, `record`, `snapshots`, `feeds`, `admission`,
`outbox`. What a room tells those above it goes through `work.Upward`.

Why one room: it is the facade, with a method for each thing that others ask of a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import ClientCodec
from adapters.model.normalizer import Rule
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import parse_json
from proxy.base import metrics, traces
from proxy.base.clock import Clock, IdSource
from proxy.base.errors import JournalCorrupt, JournalError, SessionClosed, reading_back
from proxy.base.outcomes import SETTLED
from proxy.base.repeats import Submission
from proxy.base.rows import BackendBinding, CommandRow, NewSession, SessionRow
from proxy.base.tasks import Tasks
from proxy.fanout.hub import Feed
from proxy.journal.base import Journal
from proxy.recording.session import SessionCapture
from proxy.session.admission import Admission, Origin
from proxy.session.feeds import Feeds
from proxy.session.intake import Intake
from proxy.session.outbox import Outbox
from proxy.session.reading import Reading
from proxy.session.record import Record
from proxy.session.replies import Replies
from proxy.session.sending import Sending
from proxy.session.snapshots import may_have_one
from proxy.session.work import Upward, Work
from proxy.telemetry.spans import SessionSpans
from proxy.upstream.client import Upstream

_log = logging.getLogger(__name__)


class Session:
    """A session in memory. Made by `proxy.sessions.sessions`, which also puts it away."""

    __slots__ = (
        "__weakref__",
        "_admission",
        "_broken",
        "_clock",
        "_feeds",
        "_intake",
        "_journal",
        "_loaded",
        "_outbox",
        "_reading",
        "_record",
        "_replies",
        "_sending",
        "_upward",
        "_work",
        "codec",
        "holders",
        "id",
        "leg",
        "row",
        "used_at",
    )

    def __init__(
        self,
        row: SessionRow,
        leg: BackendBinding,
        *,
        journal: Journal,
        codec: ClientCodec,
        upstream: Upstream,
        tasks: Tasks,
        clock: Clock,
        ids: IdSource,
        broken: Callable[[Session], None],
        deleted: Callable[[Session], None],
        rested: Callable[[Session, int], None],
        keep_frames: bool,
        patience: int | None,
        quiet: int,
        face_settings: Mapping[str, Mapping[str, Any]],
        slots: asyncio.Semaphore,
        capture: SessionCapture | None,
        spans: SessionSpans | None,
    ) -> None:
        self.id = row.id
        self.row = row
        self.leg = leg
        self.codec = codec
        self._journal = journal
        self._clock = clock
        self._broken = broken
        self._loaded = False
        self._upward = upward = Upward()
        self._work = work = Work(row.id, tasks, upward)
        self._outbox = Outbox(row.key, codec)
        self._feeds = Feeds(row, leg, journal=journal, slots=slots, settings=face_settings)
        self._record = Record(
            row,
            leg,
            journal=journal,
            codec=codec,
            upstream=upstream,
            clock=clock,
            outbox=self._outbox,
            feeds=self._feeds,
            work=work,
            upward=upward,
            capture=capture,
            spans=spans,
        )
        self._replies = Replies(row.key, journal=journal, clock=clock, record=self._record)
        self._reading = Reading(
            leg,
            journal=journal,
            codec=codec,
            upstream=upstream,
            clock=clock,
            fraction=ids.fraction,
            record=self._record,
            work=work,
            upward=upward,
            patience=patience,
            quiet=quiet,
            keep_frames=keep_frames,
        )
        self._admission = Admission(codec, self._outbox)
        self._sending = Sending(
            codec=codec,
            admission=self._admission,
            clock=clock,
            ids=ids,
            outbox=self._outbox,
            record=self._record,
            reading=self._reading,
            work=work,
        )
        self._intake = Intake(
            row.id,
            journal=journal,
            clock=clock,
            ids=ids,
            admission=self._admission,
            outbox=self._outbox,
            record=self._record,
            replies=self._replies,
            sending=self._sending,
            work=work,
        )
        upward.go_on = self._sending.go_on
        upward.wake = self._reading.wake
        upward.broke = self._reading.give_up
        upward.lost = self._fail
        upward.erased = lambda: deleted(self)
        upward.rested = lambda seq: rested(self, seq)
        self.used_at = clock.monotonic()
        self.holders = 0
        """How many requests look at it: it stays in memory until they are answered."""

    # What others ask of it.

    @property
    def state(self) -> LogState:
        """Return what is open, as of the newest event, stored or on its way."""
        return self._record.state

    @property
    def repairs(self) -> Mapping[Rule, int]:
        """Return how often each rule of the normalizer was used."""
        return self._record.repairs

    @property
    def reconnecting_since(self) -> int | None:
        """Return since when the backend's stream is wanted and cannot be had, in Unix ms."""
        return self._reading.reconnecting_since

    @property
    def readers(self) -> int:
        """Return how many streams of frontends are open."""
        return self._feeds.readers

    @property
    def last_seq(self) -> int:
        """Return the seq of the newest stored event."""
        return self._feeds.stored_seq

    @property
    def closed(self) -> bool:
        """Say whether it has left memory."""
        return self._work.closed

    @property
    def quiet(self) -> bool:
        """Say whether the session could be put away: nothing runs, waits, reads or is on its way to
        the disk."""
        return self.idle and self.holders == 0 and not self._feeds.used

    @property
    def idle(self) -> bool:
        """Say whether nothing is under way but that somebody may read."""
        return self._work.stranded is not None or not (
            not self._record.stored
            or self.state.busy
            or self._outbox.busy
            or self._work.running - set(self._reading.streams.values())
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
        return self._record.news()

    def open_interactions(self) -> list[ev.InteractionRequested]:
        """Return the open interactions, oldest first."""
        return [open_.event for open_ in self.state.interactions.values()]

    def queued(self) -> list[CommandRow]:
        """Return the messages that wait here for their turn, in order."""
        return self._outbox.rows(self._outbox.queue)

    def webhook(self, request_id: str) -> str | None:
        """Return the OAuth callback URL of an open sign-in at the backend, or None."""
        open_ = self.state.interactions.get(request_id)
        if self._work.stranded or open_ is None:
            return None
        return self.codec.webhook(open_.native_id)

    def feed(self, dialect: str, thread_id: str = ev.MAIN, form: str = "") -> Feed:
        """Return the frames of a thread in a dialect, and there in a form where one is named.

        Raises:
            NotSupported: the dialect has no encoder.
        """
        return self._feeds.get(dialect, thread_id, form)

    def settings_of(self, dialect: str) -> Mapping[str, Any]:
        """Return the settings that shape the session's frames in a dialect: those that were
        configured when it was first read there."""
        return self._feeds.settings_of(dialect)

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
            self._feeds.fix([new.codec])
        for event in first:
            self._record.made(event)
        self.feed(self.row.dialect)
        self.used_at = self._clock.monotonic()
        origin = Origin(by, self.row.dialect, trace=traces.current.get())
        return await self._intake.submit(
            commands, origin, blobs=blobs or {}, submission=submission, first=first, new=new
        )

    async def load(self, names: Collection[tuple[str, str]] = ()) -> None:
        """Fold the log from its newest snapshot on, put the codec back where it was, take up what
        was under way. `names` are its aliases.

        Where what is stored beside the log cannot be read, the log alone is there for readers.
        """
        self._loaded = True
        key, record = self.row.key, self._record
        if may_have_one(self.row):
            codecs, _ = await asyncio.gather(self._journal.codecs(key), record.begin())
        else:
            codecs = await self._journal.codecs(key)
        self._feeds.fix(codecs)
        await record.load()
        record.requests.lose(names)
        rows = await self._journal.commands(key)
        try:
            self._put_back()
            commands = [_command_of(self.id, row) for row in rows]
        except JournalCorrupt as error:
            self._strand(error)
        else:
            self._sending.take_up(list(zip(rows, commands, strict=True)))

    def _put_back(self) -> None:
        """Put the codec back where it was.

        Raises:
            JournalCorrupt: its state is damaged, or a later release wrote it.
        """
        with reading_back(f"the state of session `{self.id}` at its backend"):
            self.codec.restore(self.leg.state, self.leg.position)

    def _strand(self, error: JournalError) -> None:
        """Leave the backend alone and take nothing: what is stored of it stays as it is, for a
        release that can read it. The log is whole, and is shown."""
        self._work.stranded = error
        metrics.STRANDED.inc()
        _log.error("session `%s` can be read only: %s", self.id, error.whole)

    def drain(self) -> None:
        """End all readers and send no further message; what is on its way to the backend goes on,
        and so does what it says."""
        self._work.draining = True
        self._record.tell_news()
        self._feeds.end()

    def close(self) -> None:
        """Stop all that runs, end all readers; what was under way is taken up by the next
        `load`."""
        self._work.closed = True
        self._record.held.clear()
        self._record.tell_news()
        self._work.close()
        self._reading.close()
        self._feeds.close()
        self._record.close()
        self._upward.cut()

    def _fail(self) -> None:
        """Leave memory. The next request loads the session anew."""
        if not self.closed:
            self._broken(self)
            self.close()

    async def tell(self, events: Sequence[ev.Event]) -> None:
        """Write events of our own; durable on return.

        Raises:
            JournalError: they could not be stored.
        """
        self._work.check_usable()
        stored = self._record.emit(events)
        await self._record.until_stored(stored)

    async def settle(self, *, by: str) -> bool:
        """Bring the session to rest whatever its backend says: the turn ends as failed, what it has
        asked is withdrawn, and what was sent and not settled counts as unknown. Messages that wait
        go on. Return whether anything was open; durable on return.

        Raises:
            DragomanError: a reset, an archive or the like is on its way.
            JournalError: it could not be stored.
        """
        self._work.check_usable()
        if self._outbox.administering:
            text = "A reset, an archive or the like is on its way; it is decided within a minute."
            raise DragomanError(text, code=ErrorCode.BUSY)
        record, queued = self._record, {one.command_id for one in self._outbox.queue}
        if not (self.state.busy or self._outbox.owed or self.state.inputs.keys() - queued):
            return False
        # An administrator's name is nothing for frontends.
        who = f"`{by}`" if by == self.row.owner else "An administrator"
        error = DragomanError(f"{who} brought the session to rest.", code=ErrorCode.NOT_ACTIVE)
        info = ev.ErrorInfo(code=SETTLED, message=error.message)
        self._sending.end(error, info)
        reached = record.seq
        while self.last_seq < reached and not self.closed:
            await record.news().wait()
        self._work.check_usable()
        self._sending.go_on()
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
        self.leg = leg
        self.codec = codec
        self._outbox.rebind(codec)
        self._admission.rebind(codec)
        self._feeds.rebind(leg)
        self._record.rebind(leg, codec, upstream)
        self._reading.rebind(leg, codec, upstream, patience=patience, quiet=quiet)
        self._sending.rebind(codec)
        stored = self._record.emit([event], new_leg=leg)
        await self._record.until_stored(stored)
        self._sending.go_on()

    def check_movable(self) -> None:
        """Check that the session may go on at another backend now.

        Raises:
            SessionClosed: it has ended.
            DragomanError: something is under way.
            JournalError: it has left memory, or only its log can be read.
        """
        self._work.check_usable()
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

    async def submit(
        self,
        commands: Sequence[cmd.AnyCommand],
        *,
        by: str,
        face: str,
        details: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        submission: Submission | None = None,
    ) -> list[str]:
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
        self.used_at = self._clock.monotonic()
        origin = Origin(by, face, details or {}, traces.current.get())
        return await self._intake.submit(commands, origin, blobs=blobs or {}, submission=submission)

    def check_carried(self, command: cmd.AnyCommand) -> None:
        """Check that the backend can carry a command, whatever the session does just now.

        Raises:
            NotSupported: it cannot.
        """
        self.codec.check(command)

    async def withdraw(self, command_id: str, *, by: str) -> None:
        """Take a message out of the queue, so that it never goes to the backend; durable on return.

        Raises:
            DragomanError: it is on its way to the backend, or nothing waits under this id.
            JournalError: it could not be stored, and waits as before.
        """
        await self._intake.withdraw(command_id, by=by)

    def repeated(self, submission: Submission) -> list[str] | None:
        """Return the ids of the commands that a request gave which this one repeats, or None: then
        it is new. `proxy.base.repeats` says what a repeat is.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's.
        """
        return self._replies.repeated(submission)


def _command_of(session_id: str, row: CommandRow) -> cmd.AnyCommand:
    """Return a command that is open.

    Raises:
        JournalCorrupt: it is damaged, or a later release wrote it.
    """
    with reading_back(f"a command of session `{session_id}`"):
        value: Any = parse_json(row.body)
        return cmd.decode_command(value)
