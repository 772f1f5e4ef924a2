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
from proxy.session.log_writer import LogWriter
from proxy.session.outbound import CommandSender
from proxy.session.outbox import Outbox
from proxy.session.replies import RequestReplies, noted
from proxy.session.settlements import withdrawn
from proxy.session.task_scope import TaskScope

RESET_SECONDS = 60.0
"""How long a reset is given for the backend's own answer: a real eve 0.30.8 has taken 7 s, and 19 s
on a busy machine."""


@dataclasses.dataclass(slots=True)
class _StoredBlobs:
    """The blobs of a batch that are stored; whether the write that names them is handed over."""

    names: list[str] = dataclasses.field(default_factory=list)
    handed_over: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class CommandAcceptor:
    """Takes in the commands for one session."""

    session_id: str
    _: dataclasses.KW_ONLY
    journal: Journal
    clock: Clock
    ids: IdSource
    admission: Admission
    outbox: Outbox
    log: LogWriter
    replies: RequestReplies
    sender: CommandSender
    scope: TaskScope

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
            self.log.held.check_room(sealed)
        checked = self._check(commands)
        put = _StoredBlobs()
        try:
            for data in blobs.values():
                put.names.append(await self.journal.put_blob(data))
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
        put: _StoredBlobs,
        submission: Submission | None,
        first: Sequence[ev.Event],
        new: NewSession | None,
    ) -> list[str]:
        """Accept a batch that is checked and whose blobs are stored."""
        ids = [self.ids.uuid() for _ in checked]
        batch = beside(checked)
        bodies = [b"" if one is None else cmd.encode_command(one) for one in batch]
        request_id = ids[0] if ids else self.session_id
        admitted = self.admission.admit(
            list(zip(ids, batch, bodies, strict=True)),
            self.log.state,
            origin,
            request=noted(submission, request_id, checked),
            now=self.log.now(),
            new_id=self.ids.uuid,
        )
        for one in admitted.inputs:
            if isinstance(one.command, cmd.AnswerInteraction) and one.command.sealed is not None:
                self.log.held.add(one.command_id, one.command.sealed)
        at_once = self.outbox.line_up(admitted.inputs, self.log.state)
        # A long one is sent in a turn of the loop of its own.
        alone = len(ids) == 1 and not at_once and len(bodies[0]) <= 64 * 1024
        leaving = self.sender.leave(ids[0]) if alone else None
        put.handed_over = True
        stored = self.log.emit(
            [*first, *admitted.events],
            commands=self.outbox.rows(admitted.inputs),
            blobs=put.names,
            new=new,
        )
        await self.log.until_stored(stored)
        self.replies.accepted(submission, request_id)
        if self.scope.closed:
            # What is stored goes out, or is looked for, when the session is loaded again.
            return ids
        if leaving is not None:
            self.sender.start_step(leaving)
        self.sender.start(at_once)
        self.sender.go_on()
        if self.log.state.interactions and self._is_said_instead(batch):
            # Who speaks in place of an answer may see a request that nobody waits for.
            self.sender.doubt("words came while something is asked")
        return ids

    def _is_said_instead(self, batch: Sequence[cmd.AnyCommand | None]) -> bool:
        """Say whether a batch is words without an answer, which wait for one."""
        said = any(
            isinstance(one, cmd.SendMessage) and not one.beside and one.policy != "decline"
            for one in batch
        )
        return said and bool(self.outbox.queue)

    async def _drop(self, put: _StoredBlobs) -> None:
        """Let nothing stay of the files of a batch that is refused: no session names them, so none
        would ever be deleted with them."""
        if put.names:
            with contextlib.suppress(JournalError):
                await self.journal.drop_blobs(put.names, handed_over=put.handed_over)

    def _check(self, commands: Sequence[cmd.AnyCommand]) -> list[cmd.AnyCommand | None]:
        if commands:
            self.scope.check_usable()
        self.admission.check_room(commands, self.log.state)
        return [self.admission.check(command, self.log.state) for command in commands]

    async def _reset_is_decided(self) -> None:
        """Wait until it is known what became of a reset that is under way: the backend loses what
        it is given meanwhile.

        Raises:
            DragomanError: the backend does not tell in time.
        """
        due = self.clock.monotonic() + RESET_SECONDS
        while self.outbox.resets(self.log.state) and not self.scope.closed:
            left = due - self.clock.monotonic()
            if left <= 0 or not await self.clock.wait(self.log.news(), left):
                text = "The backend has not answered a reset yet; look again later."
                raise DragomanError(text, code=ErrorCode.BACKEND_TIMEOUT)

    async def withdraw(self, command_id: str, *, by: str) -> None:
        """Take a message out of the queue; durable on return.

        Raises:
            DragomanError: it does not wait there, or that could not be stored.
        """
        self.scope.check_usable()
        if not any(one.command_id == command_id for one in self.outbox.queue):
            if command_id in self.log.state.inputs:
                raise DragomanError(
                    f"Input `{command_id}` is on its way to the backend and cannot be withdrawn.",
                    code=ErrorCode.NOT_ACTIVE,
                )
            raise DragomanError(f"No input `{command_id}` waits here.", code=ErrorCode.NOT_FOUND)
        stored = self.log.emit([withdrawn(command_id, f"Withdrawn by `{by}` before it was sent.")])
        await self.log.until_stored(stored)
        self.sender.go_on()
