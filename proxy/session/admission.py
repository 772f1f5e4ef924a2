"""Admission: whether a batch of commands is taken, and what the log says of it then.

A batch is refused as a whole, before anything is stored: `check` says of each command how it is
carried, or raises what its frontend is told. `admit` turns a batch that was checked into the events
of its acceptance and the inputs that go to the backend; between the two nothing may have changed.

Nothing here does IO, keeps time or makes ids: they are arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.backend_names import for_backend
from adapters.model.base import Support
from adapters.model.interactions import decide, declined
from adapters.model.session_info import check_metadata, merged
from adapters.model.state import RECEIVED_KINDS, LogState
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode, NotSupported
from proxy.base.errors import InteractionConflict, SessionClosed
from proxy.session.outbox import Outbox, OutboxInput
from proxy.session.settlements import taken

MOST_WAITING = 128
"""Messages of a session that nobody has received yet: a person has some, a program that waits for
no turn would have any number."""

WAITING_BYTES = 2 * 2**20
"""The same for their texts: each is in the state of the codec and of the faces until it is
received."""

MOST_INPUTS = 512
"""Inputs of any kind that are not settled: as many answers as interactions may be open, and as many
interrupts."""

_STOPS = ("decline", "interrupt")
"""The policies of messages that stop what runs, or decline what is asked."""

_OF_THE_SESSION = (cmd.Reset, cmd.Archive, cmd.UpdateSession, cmd.Delete)
"""The commands that concern the session as a whole."""

WENT_ON = "The person went on with another message."
"""Why what was asked is declined by a message."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a batch comes from: whose key, which face, what that notes of it, and the `traceparent`
    of the request. What a batch brings with it comes from no face."""

    by: str
    face: str | None
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trace: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class AdmittedBatch:
    """A batch that was taken: what the log says of it, and the inputs that go to the backend, in
    order."""

    events: list[ev.Event]
    inputs: list[OutboxInput]


def check_batch(commands: Sequence[cmd.AnyCommand]) -> list[cmd.Sealed]:
    """Check a batch for answers to the same interaction: only one of them could win. Return the
    sealed values in it.

    Raises:
        InteractionConflict: there are two.
    """
    answered: set[str] = set()
    sealed: list[cmd.Sealed] = []
    for command in commands:
        if isinstance(command, cmd.AnswerInteraction):
            if command.request_id in answered:
                raise InteractionConflict(
                    f"Request `{command.request_id}` is answered twice in one batch.",
                    details={"outcome": "claimed"},
                )
            answered.add(command.request_id)
            if command.sealed is not None:
                sealed.append(command.sealed)
    return sealed


def beside(commands: Sequence[cmd.AnyCommand | None]) -> list[cmd.AnyCommand | None]:
    """Return a batch whose messages say which requests are answered beside them."""
    answered = tuple(c.request_id for c in commands if isinstance(c, cmd.AnswerInteraction))
    return [
        command.model_copy(update={"beside": answered})
        if answered and isinstance(command, cmd.SendMessage)
        else command
        for command in commands
    ]


@dataclasses.dataclass(slots=True, eq=False)
class Admission:
    """Decides about the commands for one session."""

    outbox: Outbox

    # Checking.

    def check(self, command: cmd.AnyCommand, state: LogState) -> cmd.AnyCommand | None:
        """Return the command as it will be carried, or None when there is nothing to do.

        Raises:
            SessionClosed: the session has ended, or is archived and takes no input.
            ClientProtocolError: busy, paused, or an unknown interaction.
            InteractionConflict: an interaction is answered already.
            NotSupported: the backend cannot carry it.
            DragomanError: the metadata would be too large.
        """
        about = state.about
        if about.ended is not None and not isinstance(command, cmd.Delete):
            raise SessionClosed("The session has ended; start a new one.")
        said = isinstance(command, cmd.SendMessage | cmd.Steer | cmd.AnswerInteraction)
        if said and about.archived_at is not None:
            # Its backend may refuse it for now, as if a turn ran.
            raise SessionClosed("The session is archived and takes no input; start a new one.")
        match command:
            case cmd.SendMessage():
                command = self._check_message(command, state)
            case cmd.Steer():
                native = self.outbox.codec.abilities["steer"].support is Support.NATIVE
                # While something is asked, steering might withdraw it: then it waits as a message.
                if not native or state.interactions or not state.busy:
                    command = cmd.SendMessage(content=(ev.Text(text=command.text),), policy="queue")
            case cmd.AnswerInteraction():
                command = self._check_answer(command, state)
            case cmd.Interrupt():
                # A message on its way is work too: its turn has not begun, and is to be stopped.
                if not self._works(state):
                    return None
            case cmd.UpdateSession():
                check_metadata(merged(state.about.metadata, command.metadata or {}))
            case _:
                pass
        self.outbox.codec.check(for_backend(command, state))
        return command

    def check_room(self, commands: Sequence[cmd.AnyCommand], state: LogState) -> None:
        """Check that a batch finds room beside the inputs that wait already. Answers, stops and
        deletions find room beside messages.

        Raises:
            DragomanError: it does not.
        """
        inputs = state.inputs
        if not inputs:
            return
        waiting = sum(input_.kind in RECEIVED_KINDS for input_ in inputs.values())
        says = any(isinstance(command, cmd.SendMessage | cmd.Steer) for command in commands)
        if says and waiting and (waiting >= MOST_WAITING or self.outbox.size > WAITING_BYTES):
            raise self._full(f"{waiting} messages waiting")
        if len(inputs) >= MOST_INPUTS and not any(isinstance(c, cmd.Delete) for c in commands):
            raise self._full(f"{len(inputs)} inputs on their way")

    def _full(self, what: str) -> DragomanError:
        return DragomanError(
            f"The session has {what}; try again later.",
            code=ErrorCode.RATE_LIMITED,
            details={"retry_after": 2},
        )

    def _works(self, state: LogState) -> bool:
        return state.busy or self.outbox.working

    def _check_message(self, command: cmd.SendMessage, state: LogState) -> cmd.SendMessage:
        """Return the message as it is carried: what is said while a stop is under way waits for the
        end of the turn."""
        if command.policy == "decline" and self.unanswered(state):
            if self.declines(state) is None:
                self.check(cmd.Interrupt(), state)
            return command
        for open_ in state.interactions.values():
            if open_.event.kind in ev.SEALED_KINDS:
                raise ClientProtocolError(
                    f"Request `{open_.event.request_id}` waits for a {open_.event.kind}; "
                    "answer or decline it first.",
                    code=ErrorCode.PAUSED,
                )
        if command.policy == "interrupt":
            # What cannot be stopped is not promised to stop.
            self.check(cmd.Interrupt(), state)
        if command.policy not in ("reject", "decline"):
            return command
        if state.stopping or state.stopped:
            return command.model_copy(update={"policy": "queue"})
        if state.interactions:
            raise ClientProtocolError(
                "The agent waits for an answer; answer it first.", code=ErrorCode.PAUSED
            )
        if self._works(state):
            raise ClientProtocolError(
                "The agent is working; wait for the turn to end.", code=ErrorCode.BUSY
            )
        return command

    def unanswered(self, state: LogState) -> list[ev.InteractionRequested]:
        """Return what is asked and has no answer, nor one on its way."""
        return [
            open_.event
            for request_id, open_ in state.interactions.items()
            if open_.claimed_by is None and request_id not in self.outbox.claims
        ]

    def declines(
        self, state: LogState, answered: Collection[str] = ()
    ) -> list[cmd.AnswerInteraction] | None:
        """Return what declines all that is asked and not `answered`; None where the backend takes
        no such answer, and the turn is to be stopped instead."""
        found = []
        for event in self.unanswered(state):
            if event.request_id in answered:
                continue
            answer = declined(event, WENT_ON)
            try:
                answer = self._check_answer(answer, state)
                self.outbox.codec.check(answer)
            except DragomanError:
                return None
            found.append(answer)
        return found

    def _check_answer(
        self, command: cmd.AnswerInteraction, state: LogState
    ) -> cmd.AnswerInteraction:
        request_id = command.request_id
        open_ = state.interactions.get(request_id)
        if open_ is None:
            outcome = state.resolved.get(request_id)
            if outcome is not None:
                raise InteractionConflict(
                    f"Request `{request_id}` was answered: {outcome}.",
                    details={"outcome": outcome},
                )
            raise ClientProtocolError(
                f"The session has no request `{request_id}`.",
                code=ErrorCode.UNKNOWN_INTERACTION,
            )
        if open_.claimed_by is not None or request_id in self.outbox.claims:
            raise InteractionConflict(
                f"An answer to request `{request_id}` is under way.",
                details={"outcome": "claimed"},
            )
        if not open_.event.answerable:
            raise NotSupported(
                f"Request `{request_id}` is asked elsewhere and cannot be answered here."
            )
        return decide(command, open_.event)

    # Taking in.

    def admit(
        self,
        batch: Sequence[tuple[str, cmd.AnyCommand | None, bytes]],
        state: LogState,
        origin: Origin,
        *,
        request: Mapping[str, Any],
        now: int,
        new_id: Callable[[], str],
    ) -> AdmittedBatch:
        """Take in a batch of commands that were checked just now, each with its id and its JSON.

        `request` is what the log notes of the request that gave them. `new_id` gives an id for each
        interrupt that a message brings with it.
        """
        out = AdmittedBatch([], [])
        brought = Origin(origin.by, None, trace=origin.trace)
        for command_id, command, body in batch:
            if command is None:
                continue
            if isinstance(command, cmd.SendMessage) and command.policy in _STOPS:
                declined = []
                for one in self._brought_by(command, state):
                    one_id, mine = new_id(), origin
                    if isinstance(one, cmd.AnswerInteraction):
                        # What a face notes is about its own commands: no face gave these answers.
                        mine = brought
                        declined.append(one.request_id)
                    out.events.append(_accepted(one_id, one, mine, mine.details))
                    out.events.extend(self._follows(one_id, one, state, mine))
                    written = cmd.encode_command(one)
                    out.inputs.append(self.outbox.accept(one_id, one, written, now))
                if declined:
                    names = (*command.beside, *declined)
                    command = command.model_copy(update={"beside": names})
                    body = cmd.encode_command(command)
            details = {**origin.details, **request}
            out.events.append(_accepted(command_id, command, origin, details))
            if state.interactions:
                out.events.extend(self._follows(command_id, command, state, origin))
            if isinstance(command, _OF_THE_SESSION) and self._is_kept_here(command, state):
                out.events.extend(self._apply(command_id, command, state, now))
            else:
                out.inputs.append(self.outbox.accept(command_id, command, body, now))
        return out

    def _brought_by(self, command: cmd.SendMessage, state: LogState) -> list[cmd.AnyCommand]:
        """Return what a message brings with it: what was promised of it, so that it is the next
        one. Its work stops for it, or what is asked is declined."""
        if command.policy == "decline":
            declines = self.declines(state, command.beside)
            if declines is not None:
                return [*declines]
        stop = self.check(cmd.Interrupt(), state)
        return [] if stop is None else [stop]

    def _follows(
        self, command_id: str, command: cmd.AnyCommand, state: LogState, origin: Origin
    ) -> list[ev.Event]:
        """Return what the acceptance of a command changes for those who read."""
        if isinstance(command, cmd.AnswerInteraction) and command.sealed is None:
            return [
                ev.InteractionAnswered(
                    thread_id=state.interactions[command.request_id].event.thread_id,
                    request_id=command.request_id,
                    command_id=command_id,
                    by=origin.by,
                )
            ]
        beside = isinstance(command, cmd.SendMessage) and bool(command.beside)
        if beside or not state.interactions or not self.outbox.waits(command, state):
            return []
        turn = state.thread(ev.MAIN).turn
        if turn is None or turn.paused_on != "input":
            return []
        # The agent took an input and still waits: the pause is said again (law 6).
        return [
            ev.TurnPaused(
                thread_id=ev.MAIN,
                turn_id=turn.turn_id,
                on="input",
                request_ids=state.waiting_on(ev.MAIN),
                synthetic=True,
            )
        ]

    def _is_kept_here(
        self, command: cmd.Reset | cmd.Archive | cmd.UpdateSession | cmd.Delete, state: LogState
    ) -> bool:
        """Say whether a command never reaches the backend: its dialect has nothing for it, or it
        resets a session that the backend has never heard of."""
        ability = self.outbox.codec.abilities[command.TYPE]
        if ability.support is Support.EMULATED and ability.local:
            return True
        unmade = self.outbox.codec.native_id is None and not self._works(state)
        return isinstance(command, cmd.Reset) and unmade

    def _apply(
        self, command_id: str, command: cmd.AnyCommand, state: LogState, now: int
    ) -> list[ev.Event]:
        """Return what a command does that is kept here."""
        out: list[ev.Event] = [taken(command_id)]
        match command:
            case cmd.Reset():
                out += self.outbox.left(state)
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="completed", synthetic=True))
            case cmd.Archive():
                out.append(ev.SessionUpdated(thread_id=ev.MAIN, archived_at=now, synthetic=True))
            case cmd.UpdateSession():
                out.append(
                    ev.SessionUpdated(
                        thread_id=ev.MAIN,
                        title=command.title,
                        metadata=command.metadata,
                        agent=command.agent,
                        synthetic=True,
                    )
                )
            case cmd.Delete():
                out += self.outbox.left(state)
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="deleted", synthetic=True))
            case _:
                raise NotSupported(f"`{command.TYPE}` cannot be kept here.")
        return out


def _accepted(
    command_id: str, command: cmd.AnyCommand, origin: Origin, details: Mapping[str, Any]
) -> ev.InputAccepted:
    content = None
    if isinstance(command, cmd.SendMessage | cmd.AnswerInteraction):
        content = command.content
    kind = command.KIND
    said = (command.options or {}).get(cmd.SAID_AS_MESSAGE)
    if isinstance(command, cmd.AnswerInteraction) and said is not None:
        # A plain message that answers: a message for those who read, an answer for the backend.
        kind, content = "message", (ev.Text(text=said),)
    fields = command.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={"type", "content", "policy", "request_id", "sealed"},
    )
    return ev.InputAccepted(
        thread_id=command.thread_id or ev.MAIN,
        command_id=command_id,
        kind=kind,
        message_id=command_id if kind == "message" else None,
        content=content,
        request_id=getattr(command, "request_id", None),
        policy=command.policy if isinstance(command, cmd.SendMessage) else None,
        name=command.TYPE,
        details={**fields, **details} or None,
        by=origin.by,
        face=origin.face,
        trace=origin.trace,
    )
