"""What is asked: the words and choices of a request at this face, and what answers it.

No refusal quotes an answer: it may hold the value of a sealed request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from adapters.herm import wire
from adapters.herm.requests import UserEvent
from adapters.model.commands import (
    AnswerInteraction,
    AnyCommand,
    Interrupt,
    Sealed,
    SendMessage,
    Steer,
)
from adapters.model.events import SEALED_KINDS, InteractionRequested, Policy, Text
from adapters.model.interactions import NEGATIVE, POSITIVE, decide
from adapters.serving.members import refuse
from adapters.wire.errors import ClientProtocolError, ErrorCode


def question_of(event: InteractionRequested) -> str:
    """Return what a person reads of a request."""
    details = event.details or {}
    if event.kind != "authorization":
        return event.prompt
    # Nothing here answers a sign-in: the address must be in the words.
    named = (details.get(name) for name in ("url", "user_code", "instructions"))
    parts = [event.prompt, *(str(value) for value in named if value)]
    return "\n".join(dict.fromkeys(part for part in parts if part))


def choices_of(event: InteractionRequested) -> list[str] | None:
    """Return the choices of a request; None where it takes any words."""
    if event.kind == "authorization":
        return [wire.CANCEL]
    if event.kind == "limit" and not event.options:
        return ["continue", "stop"]
    return [option.label for option in event.options] if event.options else None


Lookup: TypeAlias = Callable[[str], InteractionRequested | str | None]
"""The open request that a frontend's id means, the id of one that is over, or None for one that
never was."""


def to_commands(events: Sequence[UserEvent], lookup: Lookup) -> list[AnyCommand]:
    """Return the commands of a batch, in order.

    A message behind an interrupt waits for the turn to end; any other is refused while a turn runs
    (section 3.1).

    Raises:
        ClientProtocolError: an answer does not fit its request, or the request never was.
    """
    commands: list[AnyCommand] = []
    policy: Policy = "reject"
    for event in events:
        match event.type:
            case "user.message":
                content = tuple(Text(text=text) for text in event.blocks)
                commands.append(SendMessage(content=content, policy=policy))
            case "user.steer":
                commands.append(Steer(text=event.text))
            case "user.interrupt":
                commands.append(Interrupt(note=event.text or None))
                policy = "queue"
            case _:
                commands.append(_to_answer(event, lookup(event.request)))
    return commands


_TAKEN_BY = {
    "approval": "user.tool_confirmation",
    "tool_result": "user.custom_tool_result",
    "sudo": "user.sudo_result",
    "secret": "user.secret_result",
}
"""Kind of a request -> the event that answers it; the rest is answered by `user.clarify_result`."""


def _to_answer(event: UserEvent, found: InteractionRequested | str | None) -> AnswerInteraction:
    if found is None:
        raise ClientProtocolError(
            f"`{event.place}` answers an id that was never asked in this session; the session's "
            "events have the ids.",
            code=ErrorCode.UNKNOWN_INTERACTION,
        )
    if isinstance(found, str):
        # Over: the session says so, with the outcome.
        return AnswerInteraction(request_id=found, skip=True)
    wanted = _TAKEN_BY.get(found.kind, "user.clarify_result")
    # Shown as a question; what answers a secret or a password is taken too.
    either = found.kind == "unknown" and event.type in ("user.sudo_result", "user.secret_result")
    if event.type != wanted and not either:
        refuse(f"`{event.place}` answers a request that takes `{wanted}`.")
    said = functools.partial(AnswerInteraction, request_id=found.request_id)
    if found.kind in SEALED_KINDS:
        # What is not known may be a secret: its words are sealed.
        sealed = Sealed(event.text) if event.text else event.sealed
        answer = said(sealed=sealed, skip=sealed is None)
    elif found.kind == "approval":
        answer = said(decision=event.decision, scope=event.scope)
    elif found.kind == "tool_result":
        content = tuple(Text(text=text) for text in event.blocks)
        answer = said(content=content, is_error=event.is_error)
    else:
        answer = _clarified(event, found, said)
    return decide(answer, found)


def _clarified(
    event: UserEvent, request: InteractionRequested, said: Callable[..., AnswerInteraction]
) -> AnswerInteraction:
    words = event.text
    if request.kind == "authorization":
        if words and words.lower() not in NEGATIVE:
            refuse(f"`{event.place}`: a sign-in ends elsewhere; `{wire.CANCEL}` is all it takes.")
        return said(decision="deny", skip=True)
    if not words:
        return said(skip=True)
    for option in request.options or ():
        if words in (option.label, option.id):
            return said(option_ids=(option.id,))
    if request.kind == "limit" and not request.options:
        if words.lower() not in POSITIVE | NEGATIVE:
            refuse(f"`{event.place}.answer` must be `continue` or `stop`.")
        return said(decision="allow" if words.lower() in POSITIVE else "deny")
    return said(text=words)
