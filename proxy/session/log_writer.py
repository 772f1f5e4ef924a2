"""The log of a session: what happens gets its place in it, goes to the journal, and is shown once
it is stored.

Every event takes this one way: normalizer, `seq` and `at`, journal, feeds. Nobody sees an event
that a crash could take back. With it goes what changed beside it: commands in the outbox, the
position of the codec in its backend's stream, new names, and at intervals a snapshot of the state.

Why one module: one write takes all of it, in one order.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence

from adapters.contract.step import apply
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import ClientCodec
from adapters.model.conversation import Conversation
from adapters.model.normalizer import Normalizer, Rule
from adapters.model.state import SNAPSHOT_SHAPE, LogState
from proxy.base import metrics
from proxy.base.errors import JournalError
from proxy.base.repeats import RecentRequests
from proxy.base.rows import (
    AliasKind,
    BackendBinding,
    CommandRow,
    NewSession,
    StoredSnapshot,
)
from proxy.base.sealed import SecretScrubber
from proxy.fanout.hub import entries_by_steps, entries_in
from proxy.journal.base import Write
from proxy.session.core import STATE_MOST, SessionCore, too_much_open
from proxy.session.feeds import Feeds
from proxy.session.messages import MessageResult
from proxy.session.notices import TurnObserver
from proxy.session.outbox import Outbox
from proxy.session.settlements import settled_in
from proxy.session.snapshots import STATE, Snapshots
from proxy.session.start_times import StartTimes

_log = logging.getLogger(__name__)

_CHANGES = frozenset(
    one.TYPE for one in (ev.InputSettled, ev.SessionEnded, ev.TurnEnded, ev.InteractionAnswered)
)
"""What may settle something that waits here."""


@dataclasses.dataclass(slots=True, eq=False)
class LogWriter:
    """The log of one session. `state` is what is open as of event `seq`, which has the time `at`,
    stored or on its way.

    `held` has the sealed values that all that is heard is cleaned of, `requests` what gave the
    newest inputs.
    """

    core: SessionCore
    outbox: Outbox
    feeds: Feeds
    state: LogState = dataclasses.field(init=False)
    seq: int = dataclasses.field(default=0, init=False)
    at: int = dataclasses.field(default=0, init=False)
    held: SecretScrubber = dataclasses.field(default_factory=SecretScrubber, init=False)
    requests: RecentRequests = dataclasses.field(init=False)
    _normalizer: Normalizer = dataclasses.field(init=False)
    _snapshots: Snapshots = dataclasses.field(init=False)
    _counts: TurnObserver = dataclasses.field(init=False)
    _status: str = dataclasses.field(init=False)
    _native_id: str | None = dataclasses.field(init=False)
    _lead: int = dataclasses.field(default=0, init=False)
    _name_stored: asyncio.Future[None] | None = dataclasses.field(default=None, init=False)
    _news: asyncio.Event | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        self._begin_at(LogState())
        self._snapshots = Snapshots(self.core.row.key, self.outbox)
        self._counts = TurnObserver(self.core)
        self._status = self.core.row.state
        self._native_id = self.core.leg.native_id
        self.requests = self._snapshots.requests
        if not self.core.codec.remembers:
            self.core.codec.conversation = Conversation()
        if self.core.capture is not None:
            self.core.capture.guard(self.core.codec, self.held)

    def _begin_at(self, state: LogState) -> None:
        self.state = state
        self._normalizer = Normalizer(state, totals=metrics.REPAIRS[self.core.codec.dialect])

    def rebind(self) -> None:
        """Record what another backend says from the next event on."""
        core = self.core
        self._counts.rebind()
        if core.spans is not None:
            core.spans.rebind(core.leg.backend, core.codec.dialect)
        self._native_id = core.leg.native_id
        self._name_stored = None
        self._normalizer = Normalizer(self.state, totals=metrics.REPAIRS[core.codec.dialect])
        if core.capture is not None:
            core.capture.guard(core.codec, self.held)

    # What others ask of it.

    @property
    def repairs(self) -> Mapping[Rule, int]:
        """Return how often each rule of the normalizer was used."""
        return self._normalizer.repairs

    @property
    def times(self) -> StartTimes:
        """Return since when what is open is open."""
        return self._snapshots.times

    @property
    def stored(self) -> bool:
        """Say whether all that happened is stored and shown."""
        return self.seq == self.feeds.stored_seq

    @property
    def trace(self) -> str | None:
        """Return the `traceparent` of the message that the backend works on."""
        return self._snapshots.messages.trace

    async def until_stored(self, write: asyncio.Future[None] | None) -> None:
        """Wait until a write is stored, as `emit` gave it."""
        if write is not None:
            await write

    def time(self) -> int:
        """Return the time that waits are measured by, the codec's too: no step of the system's
        clock moves it."""
        return self.core.clock.steady() + self._lead

    def now(self) -> int:
        """Return the time that an event of now gets: it never decreases."""
        return max(self.at, self.core.clock.now())

    def close(self) -> None:
        """Hold nothing back any more of what is recorded."""
        if self.core.capture is not None:
            self.core.capture.close()

    def news(self) -> asyncio.Event:
        """Return an event that is set when more is stored, or when the session leaves memory."""
        if self._news is None:
            self._news = asyncio.Event()
            if self.core.closed:
                self._news.set()
        return self._news

    def tell_news(self) -> None:
        """Wake those who wait for news."""
        news, self._news = self._news, None
        if news is not None:
            news.set()

    async def named(self) -> None:
        """Wait until the name of the session at its backend is stored: a crash must not forget a
        session of whose turn the backend was asked already.

        Raises:
            JournalError: it could not be stored.
        """
        if self._name_stored is not None:
            await self._name_stored
            self._name_stored = None

    # Loading.

    async def begin(self) -> None:
        """Begin at the newest snapshot of the state, where there is a usable one."""
        key = self.core.row.key
        found, begin = await asyncio.gather(
            self.core.journal.snapshot(key, STATE, SNAPSHOT_SHAPE),
            # How the session was made is the first entry.
            self.core.journal.read(key, limit_rows=1),
        )
        if found is None:
            return
        try:
            state = self._snapshots.restore(found.data)
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("session `%s`: a snapshot is of no use: %s", self.core.row.id, error)
            metrics.count_unusable_snapshot(STATE)
            return
        self.made(next(entries_in(begin[0].body, self.core.row.id)).event)
        self._begin_at(state)

    async def load(self, *, recalled: bool) -> None:
        """Fold what is stored after the snapshot. With `recalled` a codec whose backend remembers
        nothing gets the conversation."""
        begun = self.state.seq
        if recalled and not self.core.codec.remembers:
            await self.recall(self.core.codec, begun)
        async for chunk in self.core.journal.scan(self.core.row.key, after=begun):
            async for entry in entries_by_steps(chunk.body, self.core.row.id):
                self._fold(entry)
        self.seq = self.feeds.stored_seq = self.state.seq
        self._snapshots.begin_at(begun)
        if (snapshot := self._snapshots.take(self.state)) is not None:
            self.core.journal.add_snapshot(self.core.row.key, snapshot)
        self.at = self.state.at
        # What the codec has noted is not to come in an hour because the clock was set back.
        self._lead = max(self.at - self.core.clock.now(), 0)

    async def recall(self, codec: ClientCodec, last: int) -> None:
        """Let a codec whose backend remembers nothing have the conversation up to an entry."""
        said = codec.conversation = Conversation()
        async for chunk in self.core.journal.scan(self.core.row.key, after=0):
            async for entry in entries_by_steps(chunk.body, self.core.row.id):
                if entry.seq > last:
                    return
                said.hear(entry.event)

    def _fold(self, entry: ev.Entry) -> None:
        if entry.seq > self.state.seq:
            self.made(entry.event)
            if self.core.codec.conversation is not None:
                self.core.codec.conversation.hear(entry.event)
            self.state.apply_entry(entry)
            self.outbox.hear(entry.event, self.state, entry.at)
            self._snapshots.hear(entry.event, entry.at)

    def made(self, event: ev.Event) -> None:
        """Let the codec hear how the session was made, if the event says so."""
        if isinstance(event, ev.SessionStarted):
            self.core.codec.started(event)

    # The way of an event.

    def hear(self, raw: Sequence[ev.Event], at: int | None = None, *, answer: bool = False) -> None:
        """Take what the backend said, as its codec means it. What an `answer` changes is stored in
        any case: a stream tells it all again after a restart, an answer does not."""
        if self.held.active:
            raw = self.held.events(raw)
        if self.core.closed or not (raw or answer):
            return
        for event in raw:
            if event.TYPE not in ev.DELTAS:
                self.emit(self._with_receipts(raw), upstream=True, at=at)
                self.core.pump()
                return
        self.emit(raw, upstream=True, at=at, keep=answer)

    def _with_receipts(self, raw: Sequence[ev.Event]) -> Sequence[ev.Event]:
        """Add the receipt of a message that answered an interaction, since no backend echoes it as
        a message; and what becomes of what waits here when the session ends, or when the step
        is over that it is part of."""
        if _CHANGES.isdisjoint([event.TYPE for event in raw]):
            return raw
        state, outbox = self.state, self.outbox
        out: list[ev.Event] = []
        for event in raw:
            if isinstance(event, ev.SessionEnded):
                out += outbox.left(state, settled_in([*out, *raw]))
            elif isinstance(event, ev.TurnEnded):
                out += outbox.stopped_with(event, settled_in(out))
            out.append(event)
            if isinstance(event, ev.InputSettled) and event.outcome == "taken":
                out += self._receipt(event.command_id)
        return out + outbox.failed_with(raw, state, settled_in(out))

    def _receipt(self, command_id: str) -> list[ev.Event]:
        one = self.outbox.get(command_id)
        if one is None or not isinstance(one.command, cmd.AnswerInteraction):
            return []
        said = (one.command.options or {}).get(cmd.SAID_AS_MESSAGE)
        if said is None:
            return []
        return [
            ev.MessageReceived(
                thread_id=ev.MAIN,
                message_id=command_id,
                content=(ev.Text(text=said),),
                command_id=command_id,
                synthetic=True,
            )
        ]

    def emit(
        self,
        raw: Iterable[ev.Event],
        *,
        commands: Sequence[CommandRow] = (),
        upstream: bool = False,
        blobs: Sequence[str] = (),
        at: int | None = None,
        new: NewSession | None = None,
        new_leg: BackendBinding | None = None,
        keep: bool = False,
    ) -> asyncio.Future[None] | None:
        """Give events their `seq` and `at`, and submit them as one write to the journal; the future
        is done when they are stored.

        `upstream` says that they come from the backend's frames, so that the position reached is
        stored with them. `at` is the time, where the caller has just looked. With `keep` a changed
        state of the codec is stored without any event too.
        """
        codec, state = self.core.codec, self.state
        batch = apply(
            codec,
            self._normalizer,
            raw,
            self.core.clock.now() if at is None else at,
            self.core.row.id,
            upstream=upstream,
            # What a command changed in the codec goes with it.
            changes=bool(commands),
            keep=keep,
        )
        if batch is None:
            return None
        entries, whole, first = batch.entries, batch.whole, self.seq + 1
        self.seq, self.at = seq, now = state.seq, state.at
        rows = list(map(ev.Entry.encode_row, entries))
        rows.append(b"")
        changes = list(commands)
        concluded: Sequence[MessageResult] = ()
        if self._counts.waiting is not None:
            self._counts.look(entries, codec.dialect, now)
        if whole:
            concluded, takes = self._follow(entries, changes)
        write = Write(
            self.core.row.key,
            first,
            len(entries),
            b"\n".join(rows),
            leg=self.core.leg.number,
            leg_state=batch.state,
            position=batch.position,
            commands=changes,
            blobs=blobs,
            at=now,
            new=new,
            new_leg=new_leg,
        )
        if whole:
            if self.held.active:
                self.let_go()
            native_id = codec.native_id
            if native_id is not None and native_id != self._native_id:
                write.native_id = self._native_id = native_id
            write.takes = takes
            status = state.status
            if status == "idle" and self.outbox.busy:
                status = "running"
            if status != self._status:
                self._status = status
                write.state = status  # type: ignore[assignment]
            if state.about.title != self.core.row.title:
                write.title = state.about.title
            if concluded:
                write.outcome = concluded[-1].outcome.value
        rests = write.state in ("idle", "ended")
        stored: asyncio.Future[None] | None = None
        if not upstream or write.native_id is not None:
            stored = asyncio.get_running_loop().create_future()
        if write.native_id is not None:
            self._name_stored = stored
        snapshot = self._snapshots.take(state) if seq >= self._snapshots.due else None
        write.done = functools.partial(
            self._written, entries, commands, concluded, stored, snapshot, rests
        )
        self.core.journal.submit(write)
        if codec.wake_at is not None:
            self.core.wake()
        if upstream and whole:
            self._check_open(batch.state or b"")
        return stored

    def _follow(
        self, entries: Iterable[ev.Entry], changes: list[CommandRow]
    ) -> tuple[list[MessageResult], list[tuple[str, str]]]:
        """Let all that goes with the log hear its new entries; return the messages that end with
        them and the aliases that they bring, and add the rows of the commands that they settle."""
        concluded: list[MessageResult] = []
        takes: list[tuple[str, str]] = []
        state, now, said = self.state, self.at, self.core.codec.conversation
        for entry in entries:
            event = entry.event
            if event.TYPE in ev.DELTAS:
                continue
            if said is not None:
                said.hear(event)
            row = self.outbox.hear(event, state, now)
            if row is not None:
                changes.append(row)
            over = self._snapshots.hear(event, now)
            concluded += over
            if event.TYPE in metrics.COUNTED:
                self._counts.hear(event, self.core.codec.dialect, state, self.outbox, now)
            if isinstance(event, ev.TurnEnded):
                self._counts.tell(event, over[0].trace if over else None)
            elif isinstance(event, ev.ThreadStarted):
                # Every child thread is found by its own name. A backend may have given the same to
                # a child of another session; the newest has it.
                takes.append((AliasKind.THREAD, event.thread_id))
        return concluded, takes

    def _check_open(self, kept: bytes) -> None:
        """Fail the turn where more is open than the codec's stored state `kept`, or memory, may
        have of it."""
        thread = self.state.thread(ev.MAIN)
        if thread.turn is None:
            return
        if len(kept) > STATE_MOST:
            self.core.broke(too_much_open(f"the {STATE_MOST} bytes that are kept of it"))
        elif len(thread.calls) > 2_000:
            # They are small in what is stored, and each takes some kilobytes of memory in the codec
            # and in every encoder.
            self.core.broke(too_much_open("2000 calls"))

    def _written(
        self,
        entries: Sequence[ev.Entry],
        commands: Sequence[CommandRow],
        concluded: Sequence[MessageResult],
        stored: asyncio.Future[None] | None,
        snapshot: StoredSnapshot | None,
        rests: bool,
        error: JournalError | None,
    ) -> None:
        """Hear from the journal what became of a write; only now others may see its events."""
        if stored is not None and not stored.done():
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)
                stored.exception()
        if self.core.capture is not None and error is None:
            self.core.capture.entries(entries)
        if error is None:
            if concluded:
                self._counts.conclude(concluded)
            if self.core.spans is not None:
                sent = [row.command_id for row in commands if row.status == "sent"]
                over = {one.command_id: (one.outcome, one.code) for one in concluded}
                self.core.spans.hear(entries, sent, over, self.core.clock.now())
        if error is not None:
            self.core.lost()
        elif entries and not self.core.closed:
            feeds = self.feeds
            feeds.stored_seq = entries[-1].seq
            if self._news is not None:
                self.tell_news()
            for feed in feeds.open.values():
                feed.publish(entries)
            if snapshot is not None:
                self.core.journal.add_snapshot(self.core.row.key, snapshot)
                if feeds.behind:
                    self.core.start(feeds.keep_up(), "keep snapshots up")
            if entries[-1].event.TYPE == "session.ended" and self.state.ended == "deleted":
                self.core.erased()
            elif rests:
                self.core.rested(entries[-1].seq)

    def let_go(self) -> None:
        """Forget sealed values when the turn is over that they were for, and their fate is
        known."""
        if not self.held.active or self.outbox.claims or self.state.busy:
            return
        if not self.held.is_in(self.state.inputs):
            self.held.clear()
