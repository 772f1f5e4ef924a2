"""Cuts a log into a script.

Where a cue stands:

| what | its cue stands |
|---|---|
| a message that began a turn | before that turn |
| a message, an answer or an interrupt, while something was asked | behind the last pause before |
| a message or steering while the agent worked | where it was received; nothing waits for it |
| another interrupt, a control | where it was accepted |
| an answer that the log has no input of | as others; any will do where nothing says which it was |
| an interrupt that the log has no input of | before what ended the turn |
| a turn that a message began, which the log does not have | before the turn; any will do |

A pause is where nothing came without a person, so what a log tells later of an input is no reason
to go past it. A message that was taken for an answer is one cue. What the session writes by itself
is left out: it writes it again when it is replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from adapters.model import events as ev
from adapters.model.interactions import polarity
from adapters.offline.replay.script import ReplayCue, ReplayScript, ReplayStep, said_by, words_of

_OURS = (ev.SessionStarted, ev.InputAccepted, ev.InputSettled, ev.InteractionAnswered)
"""What the session writes by itself."""

_OURS_IF_SYNTHETIC = (ev.SessionUpdated, ev.ErrorReported)
"""The same, where they are marked: what was kept here, and what was wrong with a connection."""

_BEFORE_A_TURN = (ev.InputAccepted, ev.InputSettled, ev.SessionUpdated, ev.MessageReceived)
"""What may stand between the begin of a turn and the message that began it."""

_GIVEN = frozenset({"approved", "denied", "answered", "skipped"})
"""Outcomes of a request that somebody has answered."""

_LOCAL = frozenset({"create_session", "update_session", "archive", "delete"})
"""Commands that need no cue in a replay: they are done without the agent."""


_LEFT_BY_A_STOP = (
    ev.InteractionResolved,
    ev.ToolReturned,
    ev.TextCompleted,
    ev.ReasoningCompleted,
    ev.StepEnded,
)
"""What stands between an interrupt and the end of its turn: what that has closed."""

CUT_OFF = "capture_ended"
"""The error code of a turn that the recording breaks off in."""


@dataclasses.dataclass(slots=True)
class _Turn:
    """Where the main line stands at a place of the log."""

    open: bool = False
    paused: bool = False


class _ScriptBuilder:
    """Finds the place of each cue in a log."""

    def __init__(self, log: Sequence[ev.Entry]) -> None:
        self._events = [entry.event for entry in log]
        self._requests: dict[str, ev.InteractionRequested] = {}
        self._accepted: dict[str, tuple[int, ev.InputAccepted]] = {}
        self._settled: dict[str, tuple[int, ev.InputSettled]] = {}
        self._received: dict[str, int] = {}
        self._resolved: dict[str, tuple[int, ev.InteractionResolved]] = {}
        self._turns: list[_Turn] = []
        # Of each place: the cues that stand before it, and the input that it receives.
        self.cues: list[tuple[int, int, ReplayCue]] = []
        self.receives: dict[int, tuple[int, int]] = {}
        self._read()

    @property
    def is_open(self) -> bool:
        """Whether the log ends in a turn that works."""
        return self._last.open and not self._last.paused

    @property
    def is_paused(self) -> bool:
        """Whether the log ends where a person is waited for."""
        return self._last.paused

    @property
    def requests(self) -> dict[str, ev.InteractionRequested]:
        """What was asked, by its id."""
        return self._requests

    def _read(self) -> None:
        turn = _Turn()
        for place, event in enumerate(self._events):
            self._turns.append(turn)
            if event.thread_id == ev.MAIN:
                turn = _after(turn, event)
            match event:
                case ev.InteractionRequested():
                    self._requests[event.request_id] = event
                case ev.InputAccepted():
                    self._accepted[event.command_id] = (place, event)
                case ev.InputSettled():
                    self._settled[event.command_id] = (place, event)
                case ev.MessageReceived() | ev.GuidanceReceived():
                    if event.command_id is not None:
                        self._received[event.command_id] = place
                case ev.InteractionResolved():
                    self._resolved.setdefault(event.request_id, (place, event))
                case _:
                    pass
        self._last = turn

    def cut(self) -> None:
        """Place all cues."""
        answered = set[str]()
        for command_id, (place, accepted) in self._accepted.items():
            if accepted.request_id is not None or accepted.kind == "answer":
                answered |= self._place_answer(command_id, place, accepted)
            else:
                self._place_input(command_id, place, accepted)
        known = set(self._received.values())
        for place, event in enumerate(self._events):
            if isinstance(event, ev.MessageReceived) and event.thread_id == ev.MAIN:
                if place not in known or event.command_id not in self._accepted:
                    cue = ReplayCue("send_message", words_of(event.content), content=event.content)
                    self._place_message(place, place, cue)
            elif isinstance(event, ev.InteractionResolved):
                self._place_resolved(place, event, answered)
            elif isinstance(event, ev.TurnEnded) and event.outcome == "interrupted":
                self._place_interrupt(place, event)
        self._place_missing()
        self.cues = _merged(self.cues)

    def _place_input(self, command_id: str, place: int, accepted: ev.InputAccepted) -> None:
        settled = self._settled.get(command_id)
        outcome = None if settled is None else settled[1].outcome
        refused = None
        if settled is not None and outcome == "refused":
            refused = settled[1].error or ev.ErrorInfo(
                code="refused", message=settled[1].reason or "The backend refused it."
            )
        name = accepted.name or "send_message"
        received = self._received.get(command_id)
        if name in _LOCAL or (received is None and outcome in {"withdrawn", "unknown"}):
            return
        if accepted.kind in {"message", "system"}:
            content = accepted.content or ()
            cue = ReplayCue(
                "send_message",
                words_of(content),
                refused=refused,
                content=content,
                details={"policy": accepted.policy} if accepted.policy else {},
            )
            if received is None and refused is not None and settled is not None:
                # It may have waited here; by then the backend had it.
                self._add(settled[0], place, cue)
                return
            self._place_message(place if received is None else received, place, cue)
        elif accepted.kind == "steer":
            content = (ev.Text(text=str((accepted.details or {}).get("text", ""))),)
            words = words_of(content)
            cue = ReplayCue("steer", words, refused=refused, waits=False, content=content)
            at = place if received is None else received
            self._add(at, place, cue, receives=received)
        else:
            self._add(
                place, place, ReplayCue(name, refused=refused, details=accepted.details or {})
            )

    def _place_message(self, place: int, accepted: int, cue: ReplayCue) -> None:
        """Place the cue of a message that was received at a place, or accepted and no more."""
        receives = place if isinstance(self._events[place], ev.MessageReceived) else None
        pause = self._pause_before(place)
        if pause is not None and not self._is_answered(pause, place):
            # The agent waited for a person, and went on because of it.
            cue = dataclasses.replace(cue, asked=True)
            self._add(pause, accepted, cue, receives=receives)
            return
        begin = place
        for before in range(place - 1, -1, -1):
            event = self._events[before]
            if isinstance(event, ev.TurnStarted) and event.thread_id == ev.MAIN:
                begin = before
                break
            if not isinstance(event, _BEFORE_A_TURN):
                break
        turn = self._turns[begin]
        waits = not turn.open or turn.paused
        cue = dataclasses.replace(cue, waits=waits, asked=turn.paused)
        self._add(begin, accepted, cue, receives=receives)

    def _pause_before(self, place: int, request_id: str | None = None) -> int | None:
        """Return the place behind the last pause of the turn before a place, in which it waited for
        a person, or for the answer to one request; None where it did not."""
        for before in range(place - 1, -1, -1):
            match self._events[before]:
                case ev.TurnPaused(on="input") as pause:
                    if request_id is None or request_id in pause.request_ids:
                        return before + 1
                case ev.TurnStarted(thread_id=ev.MAIN) | ev.TurnEnded(thread_id=ev.MAIN):
                    return None
                case _:
                    pass
        return None

    def _is_answered(self, start: int, stop: int) -> bool:
        return any(isinstance(event, ev.InteractionAnswered) for event in self._events[start:stop])

    def _place_answer(self, command_id: str, place: int, accepted: ev.InputAccepted) -> set[str]:
        details = accepted.details or {}
        request_id = accepted.request_id
        if request_id is None:
            # A result of a tool, which the request's call names.
            call_id = details.get("call_id")
            request_id = next(
                (name for name, asked in self._requests.items() if asked.call_id == call_id), None
            )
        request = self._requests.get(request_id or "")
        if request_id is None or request is None:
            return set()
        settled = self._settled.get(command_id)
        refused = settled[1].error if settled is not None else None
        resolved = self._resolved.get(request_id)
        outcome = None if resolved is None or refused is not None else resolved[1].outcome
        answer = ev.Answer(
            option_ids=tuple(details.get("option_ids") or ()),
            text=details.get("text"),
            content=accepted.content,
            reason=details.get("reason"),
            is_error=bool(details.get("is_error")),
        )
        said = said_by(
            answer,
            request,
            outcome if outcome in _GIVEN else None,
            decision=details.get("decision"),
            skipped=bool(details.get("skip")),
        )
        cue = ReplayCue(
            "answer",
            request_id=request_id,
            said=said,
            refused=refused,
            answer=answer,
            scope=details.get("scope"),
        )
        pause = self._pause_before(place, request_id)
        self._add(place if pause is None else pause, place, cue)
        return set() if refused is not None else {request_id}

    def _place_resolved(
        self, place: int, event: ev.InteractionResolved, answered: set[str]
    ) -> None:
        """Place the cue of an answer that the log has no input of."""
        request = self._requests.get(event.request_id)
        if request is None or event.request_id in answered or not request.answerable:
            return
        if request.kind == "authorization":
            # A person signs in elsewhere.
            return
        said = None
        if event.outcome in _GIVEN:
            said = said_by(event.answer, request, event.outcome)
        elif event.outcome != "unknown" or self._ends(place):
            return
        answered.add(event.request_id)
        cue = ReplayCue(
            "answer",
            request_id=event.request_id,
            said=said,
            shown=True,
            answer=event.answer,
            scope=event.scope,
        )
        pause = self._pause_before(place, event.request_id)
        self._add(place if pause is None else pause, place, cue)

    def _place_interrupt(self, place: int, event: ev.TurnEnded) -> None:
        """Place the cue of an interrupt that the log has no input of."""
        begin = place
        for before in range(place - 1, -1, -1):
            known = self._events[before]
            if isinstance(known, ev.InputAccepted) and known.kind == "interrupt":
                return
            if isinstance(known, ev.TurnStarted) and known.turn_id == event.turn_id:
                break
            if begin == before + 1 and isinstance(known, _LEFT_BY_A_STOP):
                if isinstance(known, ev.InteractionResolved) and known.outcome in _GIVEN:
                    # Its answer has stopped the turn.
                    return
                begin = before
        if event.thread_id == ev.MAIN:
            self._add(begin, place, ReplayCue("interrupt", shown=True))

    def _ends(self, place: int) -> bool:
        """Say whether the turn ends with what is at a place: then nobody had answered."""
        thread_id = self._events[place].thread_id
        for event in self._events[place + 1 :]:
            if event.thread_id == thread_id and not isinstance(event, ev.InteractionResolved):
                return isinstance(event, ev.TurnEnded | ev.SessionEnded | ev.ThreadEnded)
        return True

    def _place_missing(self) -> None:
        """Place a cue before each turn that a message began, where the log has no such message."""
        ends = [
            place
            for place, event in enumerate(self._events)
            if isinstance(event, ev.TurnEnded) and event.thread_id == ev.MAIN
        ]
        messages = sorted(at for at, _, cue in self.cues if cue.name == "send_message")
        last = -1
        for place, event in enumerate(self._events):
            if not isinstance(event, ev.TurnStarted) or event.thread_id != ev.MAIN:
                continue
            end = next((end for end in ends if end > place), len(self._events))
            said = any(last < at <= place or place < at < end for at in messages)
            if not said and (event.cause == "message" or (last < 0 and not messages)):
                self._add(place, place, ReplayCue("send_message"))
            last = end

    def _add(self, place: int, order: int, cue: ReplayCue, receives: int | None = None) -> None:
        if self._turns[place].open:
            cue = dataclasses.replace(cue, after=self._done_before(place))
        self.cues.append((place, order, cue))
        if receives is not None:
            self.receives[receives] = (place, order)

    def _done_before(self, place: int) -> str | None:
        """Return the type of what the agent had done last in its turn."""
        for event in reversed(self._events[:place]):
            if event.thread_id != ev.MAIN or isinstance(event, _OURS):
                continue
            return None if isinstance(event, ev.TurnStarted | ev.MessageReceived) else event.TYPE
        return None


def _merged(cues: Sequence[tuple[int, int, ReplayCue]]) -> list[tuple[int, int, ReplayCue]]:
    """Return cues in which a message and the answer for which it was taken are one."""
    out = list(cues)
    for place, order, answer in cues:
        if not answer.shown or answer.said is None:
            continue
        for number, (other, said_at, message) in enumerate(out):
            if other != place or not message.asked or message.words is None:
                continue
            words = message.words.casefold()
            if words in answer.said.words or polarity(words)[0] == answer.said.decision:
                both = dataclasses.replace(
                    message,
                    request_id=answer.request_id,
                    said=answer.said,
                    answer=answer.answer,
                )
                out[number] = (other, said_at, both)
                out.remove((place, order, answer))
                break
    return out


def _after(turn: _Turn, event: ev.Event) -> _Turn:
    match event:
        case ev.TurnStarted() | ev.TurnResumed():
            return _Turn(open=True)
        case ev.TurnPaused():
            return _Turn(open=True, paused=event.on == "input")
        case ev.TurnEnded():
            return _Turn()
        case _:
            return turn


def script_of(log: Sequence[ev.Entry]) -> ReplayScript:
    """Return a log as a script."""
    cutter = _ScriptBuilder(log)
    cutter.cut()
    cues = sorted(cutter.cues, key=lambda one: one[:2])
    numbers = {(place, order): number for number, (place, order, _) in enumerate(cues)}
    steps: list[ReplayCue | ReplayStep] = []
    places: list[int] = []
    waiting = list(cues)
    received_by = {numbers[key] for key in cutter.receives.values()}
    for place, entry in enumerate(log):
        owing: list[int] = []
        while waiting and waiting[0][0] <= place:
            cue = waiting.pop(0)[2]
            number = len(places)
            if cue.name == "send_message" and cue.refused is None and number not in received_by:
                owing.append(number)
            places.append(len(steps))
            steps.append(cue)
        event = _played(entry.event)
        received = cutter.receives.get(place)
        if event is not None:
            steps.append(
                ReplayStep(event, entry.at, None if received is None else numbers[received])
            )
        # The turn begins, then the agent has the message.
        steps += [ReplayStep(_receipt(number), entry.at, number) for number in owing]
    if log and cutter.is_open:
        steps.append(ReplayStep(_end(log[-1].event.turn_id), log[-1].at))
    return ReplayScript(tuple(steps), tuple(places), cutter.requests, cutter.is_paused)


def _end(turn_id: str | None) -> ev.TurnEnded:
    """Return the end of a turn that the log breaks off in: nobody is to wait for ever."""
    message = "The capture ends in the middle of this turn."
    return ev.TurnEnded(
        thread_id=ev.MAIN,
        turn_id=turn_id,
        outcome="failed",
        error=ev.ErrorInfo(code=CUT_OFF, message=message),
        synthetic=True,
    )


def _receipt(number: int) -> ev.MessageReceived:
    return ev.MessageReceived(thread_id=ev.MAIN, message_id=f"said-{number}", content=())


def _played(event: ev.Event) -> ev.Event | None:
    """Return an event as the agent's codec says it, None where it is not the agent's."""
    if isinstance(event, _OURS) or (event.synthetic and isinstance(event, _OURS_IF_SYNTHETIC)):
        return None
    if isinstance(event, ev.SessionEnded) and event.outcome == "deleted":
        return None
    update: dict[str, object] = {}
    if event.native is not None:
        # Frames are counted anew.
        update["native"] = event.native.model_copy(update={"frame": None})
    if getattr(event, "command_id", None) is not None:
        update["command_id"] = None
    return event.model_copy(update=update) if update else event
