"""Open requests to a person, their options, and the answers to them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar

from adapters.eve.client.state import (
    EveClientState,
    InputAnswer,
    InputRequest,
    Stray,
    ThreadState,
)
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import DECLINED, answer_of, decision_of, option_for
from adapters.model.state import RECENT_IDS
from adapters.wire.errors import NotSupported

_DECIDED: dict[str, ev.InteractionOutcome] = {"allow": "approved", "deny": "denied"}

K = TypeVar("K")


@dataclasses.dataclass(slots=True)
class InputRequests:
    """Open requests and answers, indexed."""

    state: EveClientState
    # The requests that a thread waits for, and those about a call.
    in_thread: dict[str, dict[str, None]] = dataclasses.field(default_factory=dict, init=False)
    of_call: dict[tuple[str, str | None], dict[str, None]] = dataclasses.field(
        default_factory=dict, init=False
    )

    def check_answer(self, command: cmd.AnswerInteraction) -> None:
        """Refuse what answers no request of an eve."""
        if command.system is not None:
            raise NotSupported("eve: `system` is impossible: no field carries it (5)")
        if any(not isinstance(block, ev.Text) for block in command.content or ()):
            raise NotSupported("eve: only words and options answer a request (5)")
        request = self.state.asks.open.get(command.request_id)
        if len(command.option_ids) > 1 and (request is None or request.kind != "authorization"):
            raise NotSupported("eve: a request takes one option (5)")
        signs_in = request is not None and request.kind == "authorization"
        if signs_in and command.decision != "allow" and self.state.generation == "T":
            raise NotSupported("eve: 0.30 and older cannot cancel a sign-in (8.2)")

    def needs_stop(self, command: cmd.AnswerInteraction) -> bool:
        """Say whether nothing that a request takes declines it, so that its turn is to be stopped:
        it takes one of its options, and none of these is a no (section 9.4)."""
        request = self.state.asks.open.get(command.request_id)
        if request is None or not command.skip or request.kind != "question":
            return False
        return not request.freeform and self._option(request, "deny") is None

    def kind_of(self, command: cmd.AnswerInteraction) -> str:
        """Return the kind of the request that is answered."""
        request = self.state.asks.open.get(command.request_id)
        return "question" if request is None else str(request.kind)

    def response(
        self, command_id: str, command: cmd.AnswerInteraction, *, step: str, place: int = 0
    ) -> dict[str, Any]:
        """Return an answer as it is posted, and remember it; `step` names the first of those that
        are posted together, `place` is its own among them."""
        request = self.state.asks.open.get(command.request_id)
        kind = self.kind_of(command)
        response: dict[str, Any] = {"requestId": command.request_id}
        option_id = self._option_id(command, request)
        words = command.text if command.text is not None else command.reason
        if command.content:
            words = ev.text_of(command.content)
        if command.skip and option_id is None and kind == "question":
            words = DECLINED
        if option_id is not None:
            response["optionId"] = option_id
        if words:
            response["text"] = words
        outcome: ev.InteractionOutcome
        if kind in ("approval", "limit"):
            outcome = "approved" if command.decision == "allow" else "denied"
        else:
            outcome = "skipped" if command.skip else "answered"
        self.remember_answer(command_id, command, outcome, option_id, step=step, place=place)
        return response

    def remember_answer(
        self,
        command_id: str,
        command: cmd.AnswerInteraction,
        outcome: ev.InteractionOutcome,
        option_id: str | None = None,
        *,
        step: str | None = None,
        place: int = 0,
        taken: bool = False,
    ) -> None:
        """Remember an answer that is posted; with `taken` it is told by what it is posted as."""
        answer = answer_of(command)
        if not answer.option_ids and option_id is not None:
            answer = answer.model_copy(update={"option_ids": (option_id,)})
        step = command_id if step is None else step
        given = InputAnswer(command_id, outcome, answer, taken=taken, step=step, place=place)
        if command.request_id in self.state.asks.open:
            self.state.asks.give(command.request_id, given)
        else:
            self.state.late[command.request_id] = given

    def _option_id(
        self, command: cmd.AnswerInteraction, request: InputRequest | None
    ) -> str | None:
        """Return the request's own option for an answer (section 9.4: never fixed ids)."""
        offered = [] if request is None else [option.id for option in request.options]
        for option_id in command.option_ids:
            if option_id in offered or not offered:
                return option_id
        decision = command.decision
        if decision is None and command.skip:
            decision = "deny"
        if request is None or decision is None:
            return None
        own = self._option(request, decision)
        if own is not None or request.kind == "question":
            return own
        if decision == "allow":
            return "continue" if request.kind == "limit" else "approve"
        if request.kind == "limit":
            return "stop"
        return "deny" if self.state.generation == "T" else "cancel"

    def _option(self, request: InputRequest, decision: Literal["allow", "deny"]) -> str | None:
        asked = ev.InteractionRequested(
            thread_id=ev.MAIN, request_id="", kind="approval", prompt="", options=request.options
        )
        own = option_for(asked, decision)
        return None if own is None else own.id

    def on_their_way(self) -> bool:
        """Say whether answers are posted that the backend has neither confirmed nor refused."""
        return any(
            self.is_answered(request) and request.given is not None and not request.given.taken
            for request in self.state.asks.open.values()
            if request.kind != "authorization"
        )

    def is_answered(self, request: InputRequest) -> bool:
        """Say whether an answer to a request is on its way or there, as far as is known."""
        given = request.given
        return given is not None and given.command_id not in self.state.silence.open

    def given(self) -> list[InputAnswer]:
        """Return the answers that were posted, but for those of what is over since."""
        found = [r.given for r in self.state.asks.open.values() if r.given is not None]
        return [*found, *self.state.late.values()]

    def together(self, step: str | None) -> list[InputAnswer]:
        """Return the answers that were posted together, in their order."""
        found = [given for given in self.given() if given.step == step]
        return sorted(found, key=lambda given: given.place)

    def take_back_negative(self) -> None:
        """Forget the answers that let requests end: they came to nothing."""
        for request in self.state.asks.open.values():
            if request.given is not None and request.given.command_id is None:
                request.given = None

    def negative(self, request_id: str, request: InputRequest) -> dict[str, Any]:
        """Return an answer that lets a request end, and remember it."""
        response = {"requestId": request_id}
        approval = request.kind == "approval"
        option_id = self.refusal(request) if approval else self._option(request, "deny")
        if option_id is None and request.options and not request.freeform:
            option_id = request.options[-1].id
        if option_id is None:
            response["text"] = "Cancelled."
        else:
            response["optionId"] = option_id
        if request.given is None:
            self.state.asks.give(request_id, InputAnswer(None, "cancelled", taken=True))
        return response

    def refusal(self, request: InputRequest) -> str:
        """Return the option that refuses an approval."""
        default = "deny" if self.state.generation == "T" else "cancel"
        return self._option(request, "deny") or default

    def index(self) -> None:
        """Find again what asks, and about what."""
        self.in_thread, self.of_call = {}, {}
        for request_id, request in self.state.asks.open.items():
            self._note_request(request_id, request)

    def _note_request(self, request_id: str, request: InputRequest) -> None:
        for thread in _threads_of(request):
            self.in_thread.setdefault(thread, {})[request_id] = None
        of_call = request.thread_id, request.call_id
        self.of_call.setdefault(of_call, {})[request_id] = None

    def resolve(self, request_id: str, turn_id: str | None, **said: Any) -> list[ev.Event]:
        """Record that a request is over; return what says so."""
        self._forget_request(request_id)
        found = self.state.asks.resolve(request_id, turn_id, **said)
        return [] if found is None else [found.event]

    def _forget_request(self, request_id: str) -> None:
        s = self.state
        request = s.asks.open[request_id]
        for thread in _threads_of(request):
            _drop(self.in_thread, thread, request_id)
        _drop(self.of_call, (request.thread_id, request.call_id), request_id)
        s.resolved[request_id] = self.turns_of(_threads_of(request))
        if len(s.resolved) > RECENT_IDS:
            del s.resolved[next(iter(s.resolved))]

    def turns_of(self, threads: set[str]) -> list[str]:
        """Return the canonical turns that threads are in."""
        turns = [
            self.state.lines[thread].turn
            for thread in sorted(threads)
            if thread in self.state.lines
        ]
        return [turn for turn in turns if turn is not None]

    def was_asked(self, request_id: str) -> bool:
        """Say whether a request is over that was asked in a turn which is open still: what shows it
        now is another stream, or tells it again. In a later turn the id is that of a new one."""
        turns = self.state.resolved.get(request_id)
        return turns is not None and any(line.turn in turns for line in self.state.lines.values())

    def open_request(self, request_id: str, request: InputRequest) -> None:
        """Remember a request."""
        if self.state.resolved.pop(request_id, None) is None:
            request.given = self.state.late.pop(request_id, None)
        self.state.asks.ask(request_id, request)
        self._note_request(request_id, request)

    def close_requests(self, line: ThreadState) -> None:
        """Forget the requests of a thread: the normalizer settles them with what they are in."""
        for request_id in list(self.in_thread.get(line.thread, ())):
            if (request := self.state.asks.open[request_id]).thread_id == line.thread:
                self.stray(request)
                self._forget_request(request_id)
                del self.state.asks.open[request_id]

    def stray(self, request: InputRequest) -> None:
        """Remember an answer whose request is over without it: it may become words of the user
        (section 5), which nobody is to be shown a second time."""
        given = request.given
        if given is None or given.answer is None or given.command_id is None:
            return
        answer, chosen = given.answer, given.answer.option_ids
        labels = [option.label for option in request.options if option.id in chosen]
        said = [answer.text, answer.reason, *chosen, *labels]
        words = [word for word in said if word is not None]
        main = self.state.lines[ev.MAIN]
        turn = main.turn or main.last
        stray = Stray(given.command_id, turn, words)
        # The newest 8 are remembered until the next turn is over.
        self.state.strays = [*self.state.strays, stray][-8:]

    def said_as_answer(self, line: ThreadState, text: str) -> str | None:
        """Return the command of the answer that a message was, if any."""
        strays = self.state.strays if line.thread == ev.MAIN else []
        stray = next((stray for stray in strays if text in stray.words), None)
        if stray is None:
            return None
        strays.remove(stray)
        return stray.command_id

    def asked(self, line: ThreadState) -> list[str]:
        """Return the requests that a thread waits for."""
        return list(self.in_thread.get(line.thread, ()))

    def decided(self, request: InputRequest, option_id: object) -> ev.InteractionOutcome:
        """Return what the choice of an option decides."""
        for option in request.options:
            if option.id == option_id:
                decision, _ = decision_of(option)
                return _DECIDED.get(decision or "", "answered")
        return "answered"

    @staticmethod
    def asked_now(line: ThreadState, request: InputRequest) -> bool:
        """Say whether a request was asked in the eve turn that a thread is in, or nobody knows."""
        asked_in = request.turn if request.thread_id == line.thread else request.shown_turn
        return asked_in is None or asked_in == line.native

    def webhook(self, request_id: str) -> str | None:
        request = self.state.asks.open.get(request_id)
        return None if request is None else request.webhook


def decided_by(command: cmd.AnswerInteraction) -> ev.InteractionOutcome:
    """Return what the decision of an answer makes of its request."""
    return _DECIDED.get(command.decision or "", "answered")


def _threads_of(request: InputRequest) -> set[str]:
    """Return the threads that wait for a request."""
    return {request.thread_id, request.shown_on or request.thread_id}


def _drop(index: dict[K, dict[str, None]], key: K, name: str) -> None:
    """Take a name out of an index."""
    del index[key][name]
    if not index[key]:
        del index[key]
