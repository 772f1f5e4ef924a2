"""The way in: a batch of commands is checked, stored as accepted, and only then begun."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.clock import Clock, IdSource
from proxy.base.errors import JournalError
from proxy.base.repeats import Submission
from proxy.base.rows import NewSession
from proxy.journal.base import Journal
from proxy.session.admission import Admission, Origin, beside, check_batch
from proxy.session.outbox import Outbox
from proxy.session.record import Record
from proxy.session.replies import Replies, noted
from proxy.session.sending import Sending
from proxy.session.settlements import withdrawn
from proxy.session.work import Work

RESET_SECONDS = 60.0
"""How long a reset is given for the backend's own answer: a real eve 0.30.8 has taken 7 s, and 19 s
on a busy machine."""


LONG_BYTES = 64 * 1024
"""Bytes of a command above which it is accepted in one turn of the loop and sent in another one."""


@dataclasses.dataclass(slots=True)
class _Put:
    """The blobs of a batch that are stored; whether the write that names them is handed over."""

    names: list[str] = dataclasses.field(default_factory=list)
    handed_over: bool = False


class Intake:
    """Takes in the commands for one session."""

    __slots__ = (
        "_admission",
        "_clock",
        "_ids",
        "_journal",
        "_outbox",
        "_record",
        "_replies",
        "_sending",
        "_session_id",
        "_work",
    )

    def __init__(
        self,
        session_id: str,
        *,
        journal: Journal,
        clock: Clock,
        ids: IdSource,
        admission: Admission,
        outbox: Outbox,
        record: Record,
        replies: Replies,
        sending: Sending,
        work: Work,
    ) -> None:
        self._session_id = session_id
        self._journal = journal
        self._clock = clock
        self._ids = ids
        self._admission = admission
        self._outbox = outbox
        self._record = record
        self._replies = replies
        self._sending = sending
        self._work = work

    async def submit(
        self,
        commands: Sequence[cmd.AnyCommand],
        origin: Origin,
        *,
        blobs: Mapping[str, bytes],
        submission: Submission | None,
        first: Sequence[ev.Event] = (),
        new: NewSession | None = None,
    ) -> list[str]:
        """Accept a batch and return the ids of its commands; durable on return.

        `first` are events that come before it, and `new` makes the session with them.

        Raises:
            DragomanError: the batch is refused, or could not be stored.
        """
        await self._reset_is_decided()
        check_batch(commands)
        sealed = [
            one.sealed
            for one in commands
            if isinstance(one, cmd.AnswerInteraction) and one.sealed is not None
        ]
        if sealed:
            self._record.held.check_room(sealed)
        checked = self._check(commands)
        put = _Put()
        try:
            for data in blobs.values():
                put.names.append(await self._journal.put_blob(data))
            if put.names:
                # Nothing may have changed meanwhile.
                checked = self._check(commands)
            return await self._take(checked, origin, put, submission, first, new)
        except BaseException:
            await self._drop(put)
            raise

    async def _take(
        self,
        checked: Sequence[cmd.AnyCommand | None],
        origin: Origin,
        put: _Put,
        submission: Submission | None,
        first: Sequence[ev.Event],
        new: NewSession | None,
    ) -> list[str]:
        """Accept a batch that is checked and whose blobs are stored."""
        ids = [self._ids.uuid() for _ in checked]
        batch = beside(checked)
        bodies = [b"" if one is None else cmd.encode_command(one) for one in batch]
        request_id = ids[0] if ids else self._session_id
        admitted = self._admission.admit(
            list(zip(ids, batch, bodies, strict=True)),
            self._record.state,
            origin,
            request=noted(submission, request_id, checked),
            now=self._record.now(),
            new_id=self._ids.uuid,
        )
        for one in admitted.inputs:
            if isinstance(one.command, cmd.AnswerInteraction) and one.command.sealed is not None:
                self._record.held.add(one.command_id, one.command.sealed)
        at_once = self._outbox.line_up(admitted.inputs, self._record.state)
        # A long one is sent in a turn of the loop of its own.
        alone = len(ids) == 1 and not at_once and len(bodies[0]) <= LONG_BYTES
        leaving = self._sending.leave(ids[0]) if alone else None
        put.handed_over = True
        stored = self._record.emit(
            [*first, *admitted.events],
            commands=self._outbox.rows(admitted.inputs),
            blobs=put.names,
            new=new,
        )
        await self._record.until_stored(stored)
        self._replies.accepted(submission, request_id)
        if self._work.closed:
            # What is stored goes out, or is looked for, when the session is loaded again.
            return ids
        if leaving is not None:
            self._sending.start_step(leaving)
        self._sending.start(at_once)
        self._sending.go_on()
        if self._record.state.interactions and self._is_said_instead(batch):
            # Who speaks in place of an answer may see a request that nobody waits for.
            self._sending.doubt("words came while something is asked")
        return ids

    def _is_said_instead(self, batch: Sequence[cmd.AnyCommand | None]) -> bool:
        """Say whether a batch is words without an answer, which wait for one."""
        said = any(
            isinstance(one, cmd.SendMessage) and not one.beside and one.policy != "decline"
            for one in batch
        )
        return said and bool(self._outbox.queue)

    async def _drop(self, put: _Put) -> None:
        """Let nothing stay of the files of a batch that is refused: no session names them, so none
        would ever be deleted with them."""
        if put.names:
            with contextlib.suppress(JournalError):
                await self._journal.drop_blobs(put.names, handed_over=put.handed_over)

    def _check(self, commands: Sequence[cmd.AnyCommand]) -> list[cmd.AnyCommand | None]:
        if commands:
            self._work.check_usable()
        self._admission.check_room(commands, self._record.state)
        return [self._admission.check(command, self._record.state) for command in commands]

    async def _reset_is_decided(self) -> None:
        """Wait until it is known what became of a reset that is under way: the backend loses what
        it is given meanwhile.

        Raises:
            DragomanError: the backend does not tell in time.
        """
        due = self._clock.monotonic() + RESET_SECONDS
        while self._outbox.resets(self._record.state) and not self._work.closed:
            left = due - self._clock.monotonic()
            if left <= 0 or not await self._clock.wait(self._record.news(), left):
                text = "The backend has not answered a reset yet; look again later."
                raise DragomanError(text, code=ErrorCode.BACKEND_TIMEOUT)

    async def withdraw(self, command_id: str, *, by: str) -> None:
        """Take a message out of the queue; durable on return.

        Raises:
            DragomanError: it does not wait there, or that could not be stored.
        """
        self._work.check_usable()
        if not any(one.command_id == command_id for one in self._outbox.queue):
            if command_id in self._record.state.inputs:
                raise DragomanError(
                    f"Input `{command_id}` is on its way to the backend and cannot be withdrawn.",
                    code=ErrorCode.NOT_ACTIVE,
                )
            raise DragomanError(f"No input `{command_id}` waits here.", code=ErrorCode.NOT_FOUND)
        stored = self._record.emit(
            [withdrawn(command_id, f"Withdrawn by `{by}` before it was sent.")]
        )
        await self._record.until_stored(stored)
        self._sending.go_on()
