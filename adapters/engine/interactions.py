"""What is asked: the words and choices of a request at this face, and what answers it.

No refusal quotes an answer: it may hold the value of a sealed request.
"""

from __future__ import annotations

from typing import assert_never

from adapters.engine import wire
from adapters.engine.requests import RespondRequest
from adapters.model.commands import AnswerInteraction
from adapters.model.events import SEALED_KINDS, InteractionRequested, Text
from adapters.model.interactions import decide, option_named
from adapters.serving.members import refuse
from adapters.serving.prompts import lines_of

CANCEL = "cancel"
DECLINE = "decline"
CONTINUE = "continue"
STOP = "stop"
"""The one answer to a sign-in and to a sealed request, and the two to a limit (design section
7)."""

_YES = frozenset({"yes", "y", "true", "allow", "approve", "approved"})
_NO = frozenset({"no", "n", "false", "deny", "denied", "reject"})
"""How people spell the two answers to a permission; everything else is refused (design section
4)."""


def question_of(event: InteractionRequested) -> str:
    """Return what a person reads: a prompt always shows what it is about (design section 7)."""
    if wire.is_native(event) and event.prompt:
        return event.prompt
    lines = lines_of(event)
    match event.kind:
        case "authorization":
            lines.append("Sign in there; here it can only be called off with `cancel`.")
        case "secret" | "sudo" | "unknown":
            lines.append(
                "It cannot be given here: answer `decline`, or give it in a frontend that can."
            )
        case _ if not lines:
            lines.append("The agent waits for an answer.")
    if not event.answerable:
        lines.append("It is asked elsewhere and cannot be answered here.")
    return "\n".join(lines)


def offered(request: InteractionRequested) -> list[str]:
    """Return the choices that this face shows for a request, and takes; none for a permission.

    A sealed kind has `decline` alone, a sign-in `cancel` (design section 7).
    """
    match request.kind:
        case "approval":
            return []
        case "secret" | "sudo" | "unknown":
            return [DECLINE]
        case "authorization":
            return [CANCEL]
        case "limit":
            return [CONTINUE, STOP]
        case "question" | "tool_result":
            return [option.label or option.id for option in request.options or ()]
        case _:
            assert_never(request.kind)


def to_command(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    """Return the command that an answer means to a request.

    Raises:
        ClientProtocolError: the answer does not fit; the request stays open.
    """
    if request.kind in SEALED_KINDS:
        return _declined(given, request)
    answer = _meant(given, request)
    if given.feedback is not None and answer.reason is None:
        answer = answer.model_copy(update={"reason": given.feedback})
    return decide(answer, request)


def _declined(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    # Nothing else may come with it: it could be the value itself (design section 7).
    alone = given.feedback is None and not given.content
    if not alone or given.answer.strip().lower() != DECLINE:
        refuse(f"Request `{request.request_id}` takes only `{DECLINE}` here: no secret is taken.")
    return decide(AnswerInteraction(request_id=request.request_id, skip=True), request)


def _meant(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    word = given.answer.strip().lower()
    said = AnswerInteraction(request_id=request.request_id, content=given.content or None)
    match request.kind:
        case "approval":
            if word not in _YES | _NO:
                refuse(f"Request `{request.request_id}` is a permission: answer `yes` or `no`.")
            return said.model_copy(update={"decision": "allow" if word in _YES else "deny"})
        case "limit":
            if word not in _YES | _NO | {CONTINUE, STOP}:
                refuse(f"Request `{request.request_id}` takes `{CONTINUE}` or `{STOP}`.")
            allowed = word == CONTINUE or word in _YES
            return said.model_copy(update={"decision": "allow" if allowed else "deny"})
        case "authorization":
            if word != CANCEL:
                text = f"Request `{request.request_id}` is a sign-in: it takes only `{CANCEL}`."
                refuse(text)
            return said.model_copy(update={"skip": True})
        case _:
            return _words_for(given, request)


def _words_for(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    """Return the answer to a question: one of its options by its words, else the words."""
    options = request.options or ()
    chosen = option_named(given.answer, options) if given.answer.strip() else None
    if chosen is not None:
        return AnswerInteraction(
            request_id=request.request_id, option_ids=(chosen.id,), content=given.content or None
        )
    if options and not request.freeform:
        names = ", ".join(f"`{name}`" for name in offered(request))
        refuse(f"Request `{request.request_id}` takes one of {names}.")
    if not given.answer and not given.content:
        refuse(f"Request `{request.request_id}` takes a non-empty `answer`.")
    content = given.content
    if content and request.kind == "tool_result" and given.answer:
        # What the tool returned has several blocks, its words first.
        return AnswerInteraction(
            request_id=request.request_id, content=(Text(text=given.answer), *content)
        )
    return AnswerInteraction(
        request_id=request.request_id, text=given.answer or None, content=content or None
    )
