"""The way in: a batch of commands is checked, stored as accepted, and only then begun.

A request that comes again gets what its first try got: `proxy.base.repeats` says what a repeat is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.errors import JournalError
from proxy.base.repeats import REQUEST, SeenRequest, Submission, identity
from proxy.base.rows import AliasKind, NewSession
from proxy.journal.base import Write
from proxy.session.admission import Admission, Origin, beside, check_batch
from proxy.session.core import SessionCore
from proxy.session.log_writer import LogWriter
from proxy.session.outbound import CommandSender, Step
from proxy.session.outbox import Outbox, OutboxInput
from proxy.session.settlements import withdrawn

RESET_SECONDS = 60.0
"""How long a reset is given for the backend's own answer: a real eve 0.30.8 has taken 7 s, and 19 s
on a busy machine."""

_AT_ONCE_BYTES = 64 * 1024
"""A message up to this length is stored as sent with its acceptance; a longer one is made ready for
its backend in a turn of the loop of its own."""


class _AdmittedBatch(NamedTuple):
    """What is stored of a batch at a time, and what is begun then: the inputs that go `at_once`, or
    the step that is stored with it. `waits` says that it has words that answer nothing."""

    at: int
    events: Sequence[ev.Event]
    inputs: Sequence[OutboxInput]
    at_once: Sequence[OutboxInput]
    step: Step | None
    waits: bool


@dataclasses.dataclass(slots=True, eq=False)
class CommandAcceptor:
    """Takes in the commands for one session."""

    core: SessionCore
    admission: Admission
    outbox: Outbox
    log: LogWriter
    sender: CommandSender

    async def accept(
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
        if self.outbox.resets(self.log.state):
            await self._reset_is_decided()
        sealed = check_batch(commands)
        if sealed:
            self.log.held.check_room(sealed)
        checked = self._check(commands)
        names: list[str] = []
        batch = None
        try:
            for data in blobs.values():
                # What is stored is dropped where a later one fails.
                names.append(await self.core.journal.put_blob(data))  # noqa: PERF401
            if names:
                # Nothing may have changed meanwhile.
                checked = self._check(commands)
            ids = []
            for _ in checked:
                ids.append(self.core.context.ids.uuid())  # noqa: PERF401 - one call less
            request_id = ids[0] if ids else self.core.row.id
            request = {}
            if submission is not None:
                request = {REQUEST: identity(submission, request_id, sealed=bool(sealed))}
            batch = self._admit(ids, checked, origin, request)
            stored = self.log.emit(
                [*first, *batch.events],
                commands=self.outbox.rows(batch.inputs),
                blobs=names,
                at=batch.at,
                new=new,
            )
            if stored is not None:
                await stored
        except BaseException:
            await self._drop(names, handed_over=batch is not None)
            raise
        if submission is not None and (known := self.log.requests.get(request_id)) is not None:
            submission.accept(known, self._replied)
        # What is stored goes out, or is looked for, when a closed session is loaded again.
        if not self.core.closed:
            self.sender.begin(batch.step, batch.at_once)
            if batch.waits and self.log.state.interactions and self.outbox.queue:
                # Who speaks in place of an answer may see a request that nobody waits for.
                self.sender.doubt("words came while something is asked")
        return ids

    def _admit(
        self,
        ids: Sequence[str],
        checked: Sequence[cmd.AnyCommand | None],
        origin: Origin,
        request: Mapping[str, Any],
    ) -> _AdmittedBatch:
        """Take in a batch that was checked just now, up to what is stored of it."""
        log, outbox = self.log, self.outbox
        batch = checked if len(checked) == 1 else beside(checked)
        bodies: list[bytes] = []
        waits = False
        for one in batch:
            bodies.append(b"" if one is None else cmd.encode_command(one))
            if isinstance(one, cmd.SendMessage) and not one.beside and one.policy != "decline":
                waits = True
        now = log.now()
        admitted = self.admission.admit(
            list(zip(ids, batch, bodies, strict=True)),
            log.state,
            origin,
            request=request,
            now=now,
            new_id=self.core.context.ids.uuid,
        )
        inputs, step = admitted.inputs, None
        for input_ in inputs:
            if isinstance(input_.command, cmd.AnswerInteraction) and input_.body is None:
                assert input_.command.sealed is not None
                log.held.add(input_.command_id, input_.command.sealed)
        at_once = outbox.line_up(inputs, log.state)
        if len(ids) == len(inputs) == 1 and len(bodies[0]) <= _AT_ONCE_BYTES:
            step = self.sender.leave(inputs[0])
        if step is not None:
            at_once = []
            if len(step.commands) > 1:
                inputs = outbox.stored(step.commands)
        return _AdmittedBatch(now, admitted.events, inputs, at_once, step, waits)

    async def _drop(self, names: Sequence[str], *, handed_over: bool) -> None:
        """Let nothing stay of the files of a batch that is refused: no session names them, so none
        would ever be deleted with them."""
        if names:
            with contextlib.suppress(JournalError):
                await self.core.journal.drop_blobs(names, handed_over=handed_over)

    def _check(self, commands: Sequence[cmd.AnyCommand]) -> list[cmd.AnyCommand | None]:
        if commands:
            self.core.check_usable()
        admission, state = self.admission, self.log.state
        admission.check_room(commands, state)
        checked = []
        for command in commands:
            checked.append(admission.check(command, state))  # noqa: PERF401 - one call less
        return checked

    async def _reset_is_decided(self) -> None:
        """Wait until it is known what became of a reset that is under way: the backend loses what
        it is given meanwhile.

        Raises:
            DragomanError: the backend does not tell in time.
        """
        due = self.core.clock.monotonic() + RESET_SECONDS
        while self.outbox.resets(self.log.state) and not self.core.closed:
            left = due - self.core.clock.monotonic()
            if left <= 0 or not await self.core.clock.wait(self.log.news(), left):
                text = "The backend has not answered a reset yet; look again later."
                raise DragomanError(text, code=ErrorCode.BACKEND_TIMEOUT)

    async def withdraw(self, command_id: str, *, by: str) -> None:
        """Take a message out of the queue; durable on return.

        Raises:
            DragomanError: it does not wait there, or that could not be stored.
        """
        self.core.check_usable()
        if not any(one.command_id == command_id for one in self.outbox.queue):
            if command_id in self.log.state.inputs:
                raise DragomanError(
                    f"Input `{command_id}` is on its way to the backend and cannot be withdrawn.",
                    code=ErrorCode.NOT_ACTIVE,
                )
            raise DragomanError(f"No input `{command_id}` waits here.", code=ErrorCode.NOT_FOUND)
        stored = self.log.emit([withdrawn(command_id, f"Withdrawn by `{by}` before it was sent.")])
        await self.log.until_stored(stored)
        self.sender.pump()

    # Repeats.

    def repeated(self, submission: Submission) -> list[str] | None:
        """Return the ids of the commands that a request gave which this one repeats, or None: then
        it is new.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's.
        """
        known = self.log.requests.find(submission, self.core.clock.now())
        if known is None:
            return None
        if known.lost_at is not None:
            known.lost_at = None
            self._name(AliasKind.REPEATED, known)
        known.retry = max(known.retry, submission.retry)
        submission.accept(known, self._replied)
        return known.ids

    def _replied(self, request: SeenRequest, whole: bool) -> None:
        """Hear whether the reply to a request was written to its end."""
        if not whole:
            request.lost_at = self.core.clock.now()
            self._name(AliasKind.LOST, request)

    def _name(self, kind: AliasKind, request: SeenRequest) -> None:
        name = (kind, request.id)
        self.core.journal.submit(Write(self.core.row.key, aliases=[name], at=self.log.at))
