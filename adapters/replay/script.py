"""A log as a script: what the agent did, and the cues at which a person did something.

Where a cue stands:

| what | its cue stands |
|---|---|
| a message that began a turn | before that turn |
| a message while something was asked | where it was accepted |
| a message or steering while the agent worked | where it was received; nothing waits for it |
| an answer, an interrupt, a control | where it was accepted |
| an answer that the log has no input of | where the request was resolved; any answer will do where
nothing says which it was |
| a turn that a message began, which the log does not have | before the turn; any message will do |

What the session writes by itself is left out: it writes it again when it is replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from adapters import commands as cmd
from adapters import events as ev
from adapters.interactions import decision_of

__all__ = ["Cue", "Play", "Said", "Script", "said_by", "script_of", "words_of"]

_OURS = (ev.SessionStarted, ev.InputAccepted, ev.InputSettled, ev.InteractionAnswered)
"""What the session writes by itself."""

_OURS_IF_SYNTHETIC = (ev.SessionUpdated, ev.ErrorReported)
"""The same, where they are marked: what was kept here, and what was wrong with a connection."""

_BEFORE_A_TURN = (ev.InputAccepted, ev.InputSettled, ev.SessionUpdated, ev.MessageReceived)
"""What may stand between the begin of a turn and the message that began it."""

_GIVEN = frozenset({"approved", "denied", "answered", "skipped"})
"""Outcomes of a request that somebody has answered."""

_LOCAL = frozenset({"create_session", "update_session", "archive", "delete"})
"""Commands of which a replay needs no cue: they are done without the agent."""


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What an answer means. `words` are the labels of the options, or the text."""

    decision: str | None = None
    words: frozenset[str] = frozenset()
    skipped: bool = False
    failed: bool = False

    def __str__(self) -> str:
        if self.skipped:
            return "nothing (it was skipped)"
        if self.decision is not None:
            return f"`{self.decision}`"
        said = ", ".join(f"`{word}`" for word in sorted(self.words))
        return said or ("an error" if self.failed else "a value")


@dataclasses.dataclass(frozen=True, slots=True)
class Cue:
    """Something that a person did. `name` is the type of its command.

    `words` are those of a message, None where any will do. `request_id` and `said` are of an
    answer, None where any will do. `refused` is what the backend said where it refused it. A replay
    goes past a cue that does not wait; that of an answer which the log has no input of is `shown`
    by what came of it.

    `content` and `answer` are what was said, in full, `scope` says for how long it holds, and
    `details` what else the command had. `asked` says that the agent waited for a person then, and
    `after` names the type of what it had done last in the turn in which it worked.
    """

    name: str
    words: str | None = None
    request_id: str | None = None
    said: Said | None = None
    refused: ev.ErrorInfo | None = None
    waits: bool = True
    shown: bool = False
    content: tuple[ev.Content, ...] = ()
    answer: ev.Answer | None = None
    scope: Literal["once", "session", "always"] | None = None
    details: ev.JsonObject = dataclasses.field(default_factory=dict)
    asked: bool = False
    after: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Play:
    """Something that the agent did, `at` its time in milliseconds; `cue` is the number of the input
    that it receives."""

    event: ev.Event
    at: int
    cue: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """The steps in their order. `cues` has the place of each cue, by its number; `requests` what
    was asked, by its id."""

    steps: tuple[Cue | Play, ...]
    cues: tuple[int, ...]
    requests: dict[str, ev.InteractionRequested]

    def cue(self, number: int) -> Cue:
        """Return a cue by its number."""
        step = self.steps[self.cues[number]]
        assert isinstance(step, Cue)
        return step


def words_of(content: Iterable[ev.Content] | None) -> str:
    """Return what a message says, for comparison: its words, and what else is in it."""
    parts: list[str] = []
    for block in content or ():
        if isinstance(block, ev.Text):
            parts += block.text.split()
        elif isinstance(block, ev.File):
            parts.append(f"({block.media_type or 'file'})")
        else:
            parts.append(f"({block.type})")
    return " ".join(parts)


def said_by(
    answer: cmd.AnswerInteraction | ev.Answer | None,
    request: ev.InteractionRequested,
    outcome: str | None = None,
    *,
    decision: str | None = None,
    skipped: bool = False,
) -> Said:
    """Return what an answer to a request means. `outcome` is what the backend made of it."""
    decision = decision or {"approved": "allow", "denied": "deny"}.get(outcome or "")
    skipped = skipped or outcome == "skipped"
    chosen = [] if answer is None else list(answer.option_ids)
    options = {option.id: option for option in request.options or ()}
    if request.kind in {"approval", "limit", "authorization"}:
        for name in chosen:
            if decision is None and name in options:
                decision = decision_of(options[name])[0]
        return Said(decision=decision)
    if request.kind in ev.SEALED_KINDS:
        return Said(skipped=skipped or decision == "deny")
    if skipped or answer is None:
        return Said(skipped=skipped)
    if request.kind == "tool_result":
        return Said(failed=answer.is_error)
    labels = [options[name].label if name in options else name for name in chosen]
    said = [*labels, *([answer.text] if answer.text else ()), words_of(answer.content)]
    words = frozenset(" ".join(word.split()).casefold() for word in said if word and word.strip())
    return Said(words=words)


# From a log.


@dataclasses.dataclass(slots=True)
class _Turn:
    """Where the main line stands at a place of the log."""

    open: bool = False
    paused: bool = False


class _Cutter:
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
        self.cues: list[tuple[int, int, Cue]] = []
        self.receives: dict[int, tuple[int, int]] = {}
        self._read()

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
                    cue = Cue("send_message", words_of(event.content), content=event.content)
                    self._place_message(place, place, cue)
            elif isinstance(event, ev.InteractionResolved):
                self._place_resolved(place, event, answered)
        self._place_missing()

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
            cue = Cue(
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
            cue = Cue("steer", words, refused=refused, waits=False, content=content)
            at = place if received is None else received
            self._add(at, place, cue, receives=received)
        else:
            self._add(place, place, Cue(name, refused=refused, details=accepted.details or {}))

    def _place_message(self, place: int, accepted: int, cue: Cue) -> None:
        """Place the cue of a message that was received at a place, or accepted and no more."""
        receives = place if isinstance(self._events[place], ev.MessageReceived) else None
        if accepted < place and self._turns[accepted].paused and not self._ended(accepted, place):
            # The agent waited for a person, and went on because of it.
            cue = dataclasses.replace(cue, asked=True)
            self._add(accepted, accepted, cue, receives=receives)
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

    def _ended(self, start: int, stop: int) -> bool:
        between = self._events[start:stop]
        return any(isinstance(e, ev.TurnEnded) and e.thread_id == ev.MAIN for e in between)

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
        cue = Cue(
            "answer",
            request_id=request_id,
            said=said,
            refused=refused,
            answer=answer,
            scope=details.get("scope"),
        )
        self._add(place, place, cue)
        return set() if refused is not None else {request_id}

    def _place_resolved(
        self, place: int, event: ev.InteractionResolved, answered: set[str]
    ) -> None:
        """Place the cue of an answer that the log has no input of."""
        request = self._requests.get(event.request_id)
        if request is None or event.request_id in answered or not request.answerable:
            return
        said = None
        if event.outcome in _GIVEN:
            said = said_by(event.answer, request, event.outcome)
        elif event.outcome != "unknown" or self._ends(place):
            return
        answered.add(event.request_id)
        cue = Cue(
            "answer",
            request_id=event.request_id,
            said=said,
            shown=True,
            answer=event.answer,
            scope=event.scope,
        )
        self._add(place, place, cue)

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
                self._add(place, place, Cue("send_message"))
            last = end

    def _add(self, place: int, order: int, cue: Cue, receives: int | None = None) -> None:
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


def script_of(log: Sequence[ev.Entry]) -> Script:
    """Return a log as a script."""
    cutter = _Cutter(log)
    cutter.cut()
    cues = sorted(cutter.cues, key=lambda one: one[:2])
    numbers = {(place, order): number for number, (place, order, _) in enumerate(cues)}
    steps: list[Cue | Play] = []
    places: list[int] = []
    waiting = list(cues)
    for place, entry in enumerate(log):
        while waiting and waiting[0][0] <= place:
            places.append(len(steps))
            steps.append(waiting.pop(0)[2])
        if (event := _played(entry.event)) is not None:
            received = cutter.receives.get(place)
            steps.append(Play(event, entry.at, None if received is None else numbers[received]))
    return Script(tuple(steps), tuple(places), cutter.requests)


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
