"""What goes to the backend: inputs when their turn has come, and the calls that the codec asks for
by itself.

Each command is carried at most once. It is stored as sent before its request leaves; when the
answer is lost, the backend is asked what became of it.

Why one module: what goes out, and what ends when nothing comes of it, is one order of steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.backend_names import for_backend
from adapters.model.base import Call
from adapters.wire.errors import SESSION_LOST, DragomanError, ErrorCode, NotSupported
from proxy.base.errors import InteractionConflict, UpstreamError, UpstreamUnavailable
from proxy.base.outcomes import STOP_UNCONFIRMED
from proxy.base.rows import CommandRow
from proxy.session.admission import Admission
from proxy.session.core import SessionCore
from proxy.session.inbound import InboundReader, may_have_arrived
from proxy.session.log_writer import LogWriter
from proxy.session.outbox import Fate, Outbox, OutboxInput
from proxy.session.settlements import ended, interrupted, refused, unknown, withdrawn

STOPPED_SECONDS = 5.0
"""How long the end of a turn that was stopped is waited for, before an answer to what it asked is
sent all the same. Ours."""

CUT_OFF = "The proxy stopped while the command was on its way; the backend has no record."
"""Why the fate of an input is unknown: there is no evidence."""

IN_VAIN = "Nothing is left of what it was to stop."
"""Why an interrupt is withdrawn for which no turn began, or whose turn another one stopped."""

NOT_STOPPED = "The backend did not end the turn after it was told to stop, so it was ended here."

NEVER_BEGUN = "The backend took the message, and no turn of it began."


STAYS_ASKED = "The agent still waits for an answer: it could not be declined."
"""Why a message is refused for which a backend that cannot be stopped was to decline something."""

OURS = "dragoman"
"""Whose inputs are those that nobody gave."""


Commands: TypeAlias = Mapping[str, cmd.AnyCommand]
"""Commands that go to the backend as one, by their ids."""


class Step(NamedTuple):
    """Commands that are stored as sent, and the call that carries them; None where the codec keeps
    them."""

    commands: Commands
    call: Call | None


@dataclasses.dataclass(slots=True, eq=False)
class CommandSender:
    """Carries the inputs of one session to its backend."""

    core: SessionCore
    admission: Admission
    outbox: Outbox
    log: LogWriter
    inbound: InboundReader
    # The messages for which a turn was stopped that could not be declined.
    _stopped_for: set[str] = dataclasses.field(default_factory=set, init=False)

    # When.

    def pump(self) -> None:
        """Do what is due: send the next message, do the codec's calls, open the backend's
        streams."""
        state, outbox, inbound = self.log.state, self.outbox, self.inbound
        if self.core.closed or state.about.ended is not None:
            return
        if outbox.waits_for_something:
            self._send_due()
        busy, watcher = state.busy, inbound.watcher
        if busy or outbox.owed or state.stopping or watcher.watch.active:
            owed = bool(outbox.owed) and not busy
            if watcher.check(working=self._is_expecting(), owed=owed, stopped=self._is_stopped()):
                self._end_here()
                return
        for call in self.core.codec.take_calls():
            self.core.start(self._run_step(call), call.name)
        inbound.open_streams()
        if self.core.codec.wake_at is not None:
            inbound.wake()

    def _send_due(self) -> None:
        """Send what waits and may go now."""
        state = self.log.state
        due, vain = self.outbox.due_stops(state)
        for one in due:
            self._start(one)
        if vain:
            self.log.emit([withdrawn(one.command_id, IN_VAIN) for one in vain])
        self._decline_for_words()
        if not self.core.draining and (first := self.outbox.next_message(state)) is not None:
            self.outbox.leave(first.command_id)
            self._start(first)

    def _decline_for_words(self) -> None:
        """Decline what is asked while a message waits that lets it be declined. Where the backend
        does not let it be declined its turn is stopped: once, since what it does not stop ends here
        in time."""
        state = self.log.state
        one = self.outbox.declining(state)
        if one is None or one.command_id in self._stopped_for:
            return
        asked = self.admission.unanswered(state)
        if not asked:
            return
        assert isinstance(one.command, cmd.SendMessage)
        declined = one.command.beside
        answers = None
        # An agent that goes on asking is stopped.
        if len(declined) < 16 and not {a.request_id for a in asked} & {*declined}:
            answers = self.admission.declines(state)
        if answers is None:
            self._stopped_for.add(one.command_id)
            self._stop_for(one)
            return
        names = (*declined, *(answer.request_id for answer in answers))
        one.command = one.command.model_copy(update={"beside": names})
        self.start(self._give(answers, one))

    def _stop_for(self, one: OutboxInput) -> None:
        """Stop what runs for a message, or refuse that where nothing stops it."""
        try:
            self.core.codec.check(cmd.Interrupt())
        except NotSupported:
            error = DragomanError(STAYS_ASKED, code=ErrorCode.PAUSED)
            self.log.emit([refused(one.command_id, error)])
            return
        self._give([cmd.Interrupt()], one)
        for due in self.outbox.due_stops(self.log.state)[0]:
            self._start(due)

    def _give(self, commands: Sequence[cmd.AnyCommand], message: OutboxInput) -> list[OutboxInput]:
        """Accept commands that nobody gave, for a message; return those that go at once."""
        events: list[ev.Event] = []
        inputs: list[OutboxInput] = []
        state, now = self.log.state, self.log.now()
        for command in commands:
            name = self.core.context.ids.uuid()
            request = getattr(command, "request_id", None)
            events.append(
                ev.InputAccepted(
                    thread_id=ev.MAIN,
                    command_id=name,
                    kind=command.KIND,
                    request_id=request,
                    name=command.TYPE,
                    by=OURS,
                    trace=state.inputs[message.command_id].trace,
                )
            )
            if request is not None:
                thread = state.interactions[request].event.thread_id
                events.append(
                    ev.InteractionAnswered(
                        thread_id=thread, request_id=request, command_id=name, by=OURS
                    )
                )
            written = cmd.encode_command(command)
            inputs.append(self.outbox.accept(name, command, written, now))
        at_once = self.outbox.line_up(inputs, state)
        self.log.emit(events, commands=self.outbox.rows(inputs))
        return at_once

    def _is_expecting(self) -> bool:
        """Say whether the backend has something to tell: a turn runs, or one is owed."""
        state = self.log.state
        turn = state.threads[ev.MAIN].turn
        if turn is not None and turn.paused_on is not None:
            # Of a person where something is asked; of a task else.
            return not state.waiting_on(ev.MAIN) or state.is_answered(ev.MAIN)
        return turn is not None or bool(self.outbox.owed)

    def doubt(self, why: str) -> None:
        """Ask the backend how things stand."""
        self.inbound.watcher.doubt(why)
        self.pump()

    def _is_stopped(self) -> bool:
        """Say whether a person stops what is open."""
        state = self.log.state
        return state.stopped or (state.stopping and (state.busy or self.outbox.working))

    def _end_here(self) -> None:
        """End what the backend has not ended in the time that it has."""
        stopped = self.inbound.watcher.watch.is_stopped
        code, why = (STOP_UNCONFIRMED, NOT_STOPPED) if stopped else (SESSION_LOST, NEVER_BEGUN)
        error = DragomanError(why, code=ErrorCode.BACKEND_TIMEOUT)
        self.end(error, ev.ErrorInfo(code=code, message=why), stopped=stopped)
        self.pump()

    def end(self, error: DragomanError, info: ev.ErrorInfo, *, stopped: bool = False) -> None:
        """Bring what is open to an end whatever the backend says, as failed or as what a person has
        `stopped`: what it has asked is withdrawn, and what was sent and not settled counts as
        unknown. What waits in the queue stays there."""
        log = self.log
        queued = {one.command_id for one in self.outbox.queue}
        ends = ended(log.state, info)
        log.emit([interrupted(event) for event in ends] if stopped else ends)
        self.inbound.settle(error, stopped=stopped)
        left = [name for name in log.state.inputs if name not in queued]
        log.emit([unknown(name, error.message) for name in left])
        self.inbound.watcher.watch.rest()

    def _start(self, one: OutboxInput) -> None:
        if isinstance(one.command, cmd.Interrupt):
            self.inbound.watcher.watch.lift(lifted=False)
        work = self._send(one.command_id, one.command)
        self.core.start(work, f"send {one.command_id}")

    def start(self, inputs: Sequence[OutboxInput]) -> None:
        """Send what does not wait: answers, which were given at once, as one step."""
        answers = {
            one.command_id: one.command
            for one in inputs
            if isinstance(one.command, cmd.AnswerInteraction)
        }
        if answers:
            watch = self.inbound.watcher.watch
            if (watch.is_stopped or self._is_stopped()) and self._is_newest(answers):
                watch.lift()
            self.core.start(self._send_answers(answers), f"send {next(iter(answers))}")
        for one in inputs:
            if one.command_id not in answers:
                self._start(one)

    def leave(self, one: OutboxInput) -> Step | None:
        """Return a message or an answer that was just lined up as it goes, if it may go at once: it
        is stored as sent then.

        A commit of its own for that would cost its time and win nothing: the fate of an input is
        open to a crash from the commit that calls it sent to its request.
        """
        state, outbox, name = self.log.state, self.outbox, one.command_id
        if isinstance(one.command, cmd.AnswerInteraction):
            stopped = state.stopped or state.stopping or self.inbound.watcher.watch.is_stopped
            if stopped or one.body is None:
                return None
            command: cmd.AnyCommand = for_backend(one.command, state)
        elif self.core.draining or outbox.next_message(state) is not one:
            return None
        else:
            command = one.command
        try:
            call = self.core.codec.submit(name, command)
        except NotSupported:
            # It is refused when it is sent, in sight of everybody.
            return None
        if call is None:
            # The codec keeps an answer, which is stored with it; its `tick` says what comes of it.
            return Step({}, None) if one.fate is Fate.LEAVING else None
        step = {name: one.command}
        for other in outbox.stored(call.also) if call.also else ():
            step[other.command_id] = other.command
        outbox.send(step, one.at)
        return Step(step, call)

    def begin(self, step: Step | None, inputs: Sequence[OutboxInput]) -> None:
        """Do what `leave` returned and what `line_up` did, once it is stored, and what is due."""
        if step is not None and step.call is not None:
            work = self._carry(step.commands, step.call)
            self.core.start(work, f"send {next(iter(step.commands))}")
        if inputs:
            self.start(inputs)
        self.pump()

    def _is_newest(self, answers: Collection[str]) -> bool:
        """Say whether no interrupt came after these answers."""
        for name, one in reversed(self.log.state.inputs.items()):
            if name in answers or one.kind == "interrupt":
                return name in answers
        return True

    # How.

    async def _send(self, command_id: str, command: cmd.AnyCommand) -> None:
        """Carry one accepted command to the backend, at most once."""
        try:
            call = self.core.codec.submit(command_id, for_backend(command, self.log.state))
        except NotSupported as error:
            self._release([command])
            self.log.hear([refused(command_id, error)])
            return
        if call is None:
            self._kept_by_codec()
            return
        with_it = self.outbox.stored(call.also)
        step = {command_id: command, **{one.command_id: one.command for one in with_it}}
        await self._send_step(step, call)

    def _kept_by_codec(self) -> None:
        """Store that the codec keeps an answer; its `tick` says what comes of that."""
        self.log.emit([], keep=True)
        self.inbound.wake()

    async def _send_answers(self, answers: Mapping[str, cmd.AnswerInteraction]) -> None:
        """Carry answers that were given at once: in one request where the backend takes several,
        the message beside them in the same one where it takes that, else one after the other."""
        answers = await self._still_asked(answers)
        if not answers:
            return
        beside = self._said_beside(answers)
        call: Call | None = None
        if len(answers) > 1 or beside is not None:
            try:
                state = self.log.state
                theirs = {name: for_backend(one, state) for name, one in answers.items()}
                call = self.core.codec.submit_answers(theirs, beside)
            except NotSupported as error:
                self._release(answers.values())
                self.log.hear([refused(command_id, error) for command_id in answers])
                return
        if call is not None:
            step: dict[str, cmd.AnyCommand] = {**answers}
            if beside is not None and beside[0] in call.command_ids:
                self.outbox.leave(beside[0])
                step[beside[0]] = beside[1]
            await self._send_step(step, call)
            return
        for command_id, command in answers.items():
            await self._send(command_id, command)

    async def _still_asked(
        self, answers: Mapping[str, cmd.AnswerInteraction]
    ) -> Mapping[str, cmd.AnswerInteraction]:
        """Return the answers whose requests are open when the interrupts before them have done what
        they do: a backend may take an answer to a request that is over for something that was
        said."""
        scope, log = self.core, self.log
        while self.outbox.halting and not scope.closed:
            await log.news().wait()
        due = self.core.clock.monotonic() + STOPPED_SECONDS
        while not scope.closed and any(log.state.drops(a.request_id) for a in answers.values()):
            left = due - self.core.clock.monotonic()
            if left <= 0 or not await self.core.clock.wait(log.news(), left):
                break
        if scope.closed:
            return {}
        open_ = log.state.interactions
        over = {name: answer for name, answer in answers.items() if answer.request_id not in open_}
        if not over:
            return answers
        self._release(over.values())
        conflict = InteractionConflict("The request was over before the answer was sent.")
        log.hear([refused(command_id, conflict) for command_id in over])
        return {name: answer for name, answer in answers.items() if name not in over}

    def _said_beside(
        self, answers: Mapping[str, cmd.AnswerInteraction]
    ) -> tuple[str, cmd.SendMessage] | None:
        """Return the next message, if it came with these answers and may go with them."""
        if self.core.draining:
            return None
        answered = {answer.request_id for answer in answers.values()}
        return self.outbox.said_beside(answered, self.log.state)

    async def _send_step(self, commands: Commands, call: Call) -> None:
        """Store that the commands of a call are sent, then do it."""
        sent = self.outbox.send(commands, self.core.clock.now())
        stored = self.log.emit([], commands=self.outbox.rows(sent))
        await self.log.until_stored(stored)
        try:
            await self._carry(commands, call)
        finally:
            self._release(commands.values())

    def _release(self, commands: Iterable[cmd.AnyCommand]) -> None:
        """Record that commands are not on their way any more: what they answered, sealed, may be
        answered anew."""
        for command in commands:
            if isinstance(command, cmd.AnswerInteraction) and command.sealed is not None:
                self.outbox.claims.discard(command.request_id)
                self.log.let_go()

    def _carry(self, commands: Commands, call: Call) -> Coroutine[Any, Any, None]:
        """Return what does the call of commands that are stored as sent; a stream, which may last,
        does not keep the command."""
        if call.leaves:
            return self.inbound.leave(call)
        if call.stream:
            return self.inbound.begin(call)
        return self._run_call(commands, call)

    async def _run_step(self, call: Call) -> None:
        """Do a call that the codec asked for by itself."""
        if call.stream:
            await self.inbound.run(call)
            return
        inputs = self.outbox.stored(call.command_ids)
        if inputs:
            # A later step of a command: what the step before brought, a session's id above all, is
            # stored before this one is sent, and what may have been sent is looked up as any other.
            stored = self.log.emit([], commands=self.outbox.rows(inputs))
            await self.log.until_stored(stored)
            await self._run_call({one.command_id: one.command for one in inputs}, call)
            return
        try:
            response = await self.inbound.answer(call)
        except UpstreamError as error:
            self.inbound.failed(call, error)
        else:
            # Many may be here at once, and each changes a state that may be large.
            self.inbound.respond(call, response)
        self.pump()

    async def _run_call(self, commands: Commands, call: Call) -> None:
        try:
            response = await self.inbound.answer(call)
        except UpstreamError as error:
            left = [name for name in commands if name in self.log.state.inputs]
            if not left:
                # The backend's stream was faster than its answer, and has told what came of it.
                self.pump()
                return
            if may_have_arrived(error):
                look: Call | None = None
                for name in left:
                    # That of a request which is over is looked for under no name.
                    with contextlib.suppress(NotSupported):
                        command = for_backend(commands[name], self.log.state)
                        look = self.core.codec.recover(name, command)
                if look is not None:
                    text = f"{error.message} It is looked for whether the input arrived."
                    self.log.hear([raw.in_doubt(text, quote=error.quote)])
                    # The last one asked for tells of all.
                    await self._look_up(look)
                    return
            self.inbound.failed(call, error)
        else:
            # Many may be here at once, and each changes a state that may be large.
            self.inbound.respond(call, response)
        # The answer may be a step only, which says nothing yet and asks for the next one.
        self.pump()

    # What a start finds.

    def take_up(self, found: Iterable[tuple[CommandRow, cmd.AnyCommand]]) -> None:
        """Go on with the inputs that the journal has kept, in order."""
        at_once: list[OutboxInput] = []
        lost: list[str] = []
        for row, command in found:
            one = self.outbox.load(row, command)
            if row.status != "accepted":
                if not self._recover(one):
                    lost.append(one.command_id)
            elif self.core.draining and not isinstance(command, cmd.SendMessage):
                continue
            elif self.outbox.take_up(one):
                at_once.append(one)
        self.start(at_once)
        # A sealed answer was in memory only; its request is open again.
        lost += [name for name in self.log.state.inputs if name not in self.outbox]
        self._settle_unknown(lost)
        self.pump()

    def _settle_unknown(self, command_ids: Sequence[str]) -> None:
        """Settle commands whose fate nobody can tell; what they answered may be answered again."""
        if command_ids:
            told = self.core.codec.unknown(command_ids, self.log.time())
            known = {one.command_id for one in told if isinstance(one, ev.InputSettled)}
            left = [unknown(name, CUT_OFF) for name in command_ids if name not in known]
            self.log.hear([*left, *told], answer=True)

    def _recover(self, one: OutboxInput) -> bool:
        """Look for evidence of a command that a crash may have cut off; never send it again. Return
        whether something may tell of it."""
        try:
            command = for_backend(one.command, self.log.state)
        except NotSupported:
            # What the backend says of its request's id is of another request by now.
            return False
        call = self.core.codec.recover(one.command_id, command)
        if call is not None:
            one.move(Fate.SOUGHT)
            self.core.start(self._look_up(call), f"recover {one.command_id}")
        elif self.core.codec.streams():
            one.move(Fate.DOUBTED)
            self.inbound.doubt(one.at + self.core.clock.steady() - self.core.clock.now())
        else:
            return False
        return True

    async def _look_up(self, call: Call) -> None:
        """Ask the backend what became of a command."""
        # With backoff about 10 s; after that the fate of the command is `unknown`.
        attempts, backoff = 5, self.inbound.backoff()
        for attempt in range(attempts):
            with contextlib.suppress(UpstreamError):
                response = await self.inbound.answer(call)
                if response.status < 500 or attempt == attempts - 1:
                    self.inbound.respond(call, response)
                    self.pump()
                    return
            await self.core.clock.sleep(backoff.next_wait(self.log.time()) / 1000)
        error = UpstreamUnavailable("The backend gives no evidence of the command.", sent=True)
        self.inbound.failed(call, error)
        self.pump()
