"""Pauses: how the main thread stands, and which requests wait for a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from adapters.model import events as ev
from adapters.serving.encoder import EncoderWriter

Next: TypeAlias = Literal["start", "work", "wait", "end"]
"""What an encoder does next: a turn has begun; the thread works, so a stream is open; it waits for
a person, so the stream ends; the turn is over."""


HEARD = ("turn.started", "turn.paused", "turn.resumed", "turn.ended", "interaction.answered")
"""The types of events that `Pauses.hear` hears."""

W = TypeVar("W", bound=EncoderWriter[Any])


def handlers(
    start: Callable[[W], None],
    work: Callable[[W], None],
    wait: Callable[[W], None],
    end: Callable[[W, ev.TurnEnded], None],
) -> dict[str, Callable[[W, Any], None]]:
    """Return the functions that hear of turns and answers, by type of event: each does what follows
    in the encoder whose state has `pauses`."""

    def stand(w: W, event: ev.Event) -> None:
        match w.s.pauses.hear(event):
            case "start":
                start(w)
            case "work":
                work(w)
            case "wait":
                wait(w)
            case "end":
                assert isinstance(event, ev.TurnEnded)
                end(w, event)

    return dict.fromkeys(HEARD, stand)


@dataclasses.dataclass(slots=True)
class ShownRequest:
    """An open request. `call` is the call that it is about or that asks it, `shown_in` the stream
    in which it was shown as something that can be answered. `in_vain` says that it was answered and
    the answer came to nothing."""

    event: ev.InteractionRequested
    call: str | None = None
    claimed: bool = False
    in_vain: bool = False
    shown_in: str = ""


@dataclasses.dataclass(slots=True)
class Pauses:
    """`turn` and `halted` say whether the main thread has a turn, and whether that waits for a
    person; `paused` that this is still to be told. `shown` are the requests that were told last."""

    turn: bool = False
    halted: bool = False
    paused: bool = False
    requests: dict[str, ShownRequest] = dataclasses.field(default_factory=dict)
    shown: list[str] = dataclasses.field(default_factory=list)

    def hear(self, event: ev.Event) -> Next | None:
        """Return what follows from an event about a turn of the main thread, or from an answer."""
        if isinstance(event, ev.InteractionAnswered):
            return self._answered(event)
        if event.thread_id != ev.MAIN:
            return None
        match event:
            case ev.TurnStarted():
                self.turn = True
                self.halted = self.paused = False
                return "start"
            case ev.TurnPaused():
                # Where it waits for nobody, what its children do is shown in a stream.
                self.halted = self.paused = event.on == "input"
                return "wait" if self.halted else "work"
            case ev.TurnResumed():
                self.halted = self.paused = False
                self.shown = []
                return "work"
            case ev.TurnEnded():
                self.turn = self.halted = self.paused = False
                self.shown = []
                return "end"
        return None

    def _answered(self, event: ev.InteractionAnswered) -> Next | None:
        request = self.requests.get(event.request_id)
        if request is None:
            return None
        request.claimed = event.state == "claimed"
        if request.claimed:
            return None
        request.in_vain = True
        self.shown = [name for name in self.shown if name != event.request_id]
        return "wait"

    def requested(self, event: ev.InteractionRequested) -> ShownRequest:
        """Keep a request for the end of the stream."""
        request = self.requests[event.request_id] = ShownRequest(event)
        return request

    def updated(self, event: ev.InteractionUpdated) -> ShownRequest | None:
        """Add details to a request; return it where it is open."""
        request = self.requests.get(event.request_id)
        if request is not None:
            details = {**(request.event.details or {}), **event.details}
            request.event = request.event.model_copy(update={"details": details})
        return request

    def resolved(self, event: ev.InteractionResolved) -> ShownRequest | None:
        """Return a request that is over, unless it was before."""
        return self.requests.pop(event.request_id, None)

    @property
    def unanswered(self) -> list[str]:
        """Return the requests that nobody answers just now."""
        return [name for name, request in self.requests.items() if not request.claimed]

    def spent(self, request_id: str) -> bool:
        """Say whether a request is being answered, or an answer to it came to nothing: the same one
        is not given again beside new words."""
        request = self.requests.get(request_id)
        return request is not None and (request.claimed or request.in_vain)
