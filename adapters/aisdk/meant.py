"""What a POST means to its session: commands, and what is noted with each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from adapters.aisdk import wire
from adapters.aisdk.asked import Given, to_answer
from adapters.aisdk.requests import ChatRequest, Words
from adapters.aisdk.server import AisdkEncoder
from adapters.aisdk.state import NOTES, Notes
from adapters.commands import AnswerInteraction, AnyCommand, SendMessage
from adapters.errors import ClientProtocolError, DragomanError, ErrorCode
from adapters.events import InteractionRequested, Text
from adapters.faces import Seen

__all__ = ["Meant", "asks_anew", "check", "first_words", "late", "meant_by", "names_of"]

INSTEAD = "The user said something else instead."
"""Why an approval is denied to which the person says words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Meant:
    """The commands, and what is noted with each."""

    commands: Sequence[AnyCommand]
    notes: Mapping[str, Any]


def first_words(given: ChatRequest) -> tuple[SendMessage, Mapping[str, Any]]:
    """Return the message with which a chat begins, and what is noted with it.

    Raises:
        ClientProtocolError: there is none.
    """
    if not given.words:
        _refuse("A chat begins with a message of the user at the end of `messages`.")
    ignored = list(given.ignored)
    if given.history:
        # What was said before this chat began, no agent hears of.
        ignored.append("messages")
    # Of a history without the agent's messages only the newest is asked now.
    message = _message(given, given.words, new_context=True)
    return message, _dumped(_notes(given, given.words, ignored=ignored))


def meant_by(given: ChatRequest, seen: Seen[AisdkEncoder]) -> Meant:
    """Return what a request means to its session, perhaps nothing: see `check`.

    Raises:
        DragomanError: an answer does not fit what is asked, or words come while the agent waits.
    """
    state = seen.encoder.state
    answers = _answers((*given.older, *given.given), seen)
    heard = set(state.heard)
    words: Sequence[Words] = [one for one in given.words if one.id not in heard]
    if not words and given.words and not answers:
        # Said before and nothing behind it: it is to be answered again, or was edited.
        words = given.words[-1:]
    commands: list[AnyCommand] = list(answers)
    left = [
        event
        for event in seen.open_interactions
        if event.request_id not in {one.request_id for one in answers}
    ]
    if words and left:
        commands += _instead(words, left)
    if words and not _is_answer(commands, words):
        message = _message(given, words, new_context=given.digest != state.context)
        # What was said while something was asked comes behind the turn that asked.
        policy = "queue" if commands else "reject"
        commands.append(message.model_copy(update={"policy": policy}))
    notes = _notes(given, words, ignored=list(given.ignored))
    notes.parts = len(commands)
    return Meant(commands, _dumped(notes))


def _answers(found: Sequence[Given], seen: Seen[AisdkEncoder]) -> list[AnswerInteraction]:
    """Return the answers to what is open; the rest of what was ever answered stays in the history.

    Raises:
        ClientProtocolError: an answer does not fit its request.
    """
    asked = {event.request_id: event for event in seen.open_interactions}
    calls = seen.encoder.calls()
    answers: dict[str, AnswerInteraction] = {}
    for one in found:
        name = one.name if one.approved is not None else calls.get(one.name, "")
        event = asked.get(name)
        if event is not None:
            answers[name] = to_answer(one, event)
    return list(answers.values())


def _instead(
    words: Sequence[Words], open_: Sequence[InteractionRequested]
) -> list[AnswerInteraction]:
    """Return what words say to open requests: the answer to the one question that takes any words,
    or that what is to be approved shall not be.

    Raises:
        DragomanError: these words answer nothing of it.
    """
    content = [block for one in words for block in one.content]
    text = "\n".join(block.text for block in content if isinstance(block, Text))
    plain = bool(text) and all(isinstance(block, Text) for block in content)
    if len(open_) == 1 and open_[0].kind == "question" and plain:
        event = open_[0]
        if event.freeform or not event.options:
            return [AnswerInteraction(request_id=event.request_id, text=text)]
    if all(event.kind == "approval" and event.answerable for event in open_):
        return [
            AnswerInteraction(request_id=event.request_id, decision="deny", reason=INSTEAD)
            for event in open_
        ]
    raise DragomanError(
        "The agent waits for an answer: say this again when it is given.", code=ErrorCode.PAUSED
    )


def _is_answer(commands: Sequence[AnyCommand], words: Sequence[Words]) -> bool:
    """Say whether words were taken as an answer."""
    last = commands[-1] if commands else None
    return isinstance(last, AnswerInteraction) and last.text is not None and bool(words)


def check(meant: Meant, given: ChatRequest, seen: Seen[AisdkEncoder]) -> None:
    """Refuse what says nothing to its session.

    Raises:
        DragomanError: as it is.
    """
    if meant.commands or late(given, seen) is not None:
        return
    approvals = [one for one in given.given if one.approved is not None]
    if approvals and not seen.encoder.state.after.keys() & {one.name for one in approvals}:
        raise DragomanError(
            "No approval of this chat is open under such an id.",
            code=ErrorCode.UNKNOWN_INTERACTION,
        )
    if approvals:
        raise DragomanError(
            "It was answered before, by somebody else.", code=ErrorCode.ALREADY_ANSWERED
        )
    _refuse(
        "There is nothing new in `messages`: the last one is not of the user, and nothing in it "
        "answers what is asked."
    )


def late(given: ChatRequest, seen: Seen[AisdkEncoder]) -> str | None:
    """Return the request that is over and answered here once more, with what came of it to tell."""
    encoder = seen.encoder
    for one in given.given:
        for name in (one.name, one.name.removeprefix(wire.ASK_CALL)):
            if encoder.after(name) is not None:
                return name
    return None


def _message(given: ChatRequest, words: Sequence[Words], *, new_context: bool) -> SendMessage:
    content = tuple(block for one in words for block in one.content)
    if not content:
        _refuse("The message of the user has neither a text nor a file.")
    return SendMessage(
        content=content,
        policy="reject",
        client_context=list(given.context) if given.context and new_context else None,
    )


def _notes(given: ChatRequest, words: Sequence[Words], *, ignored: Sequence[str]) -> Notes:
    return Notes(
        said=[one.id for one in words],
        goes_on=not words,
        ignored=list(ignored),
        context=given.digest if words else None,
    )


def _dumped(notes: Notes) -> Mapping[str, Any]:
    value: Mapping[str, Any] = NOTES.dump_python(notes, mode="json", exclude_defaults=True)
    return value


# Repeats.


def names_of(given: ChatRequest) -> Sequence[str]:
    """Return what a repeat of the request has as well: the ids of the messages that it says, or of
    what it answers."""
    if given.words:
        return [f"message {one.id}" for one in given.words]
    return [
        f"answer {one.name} {'' if one.approved is None else one.approved}" for one in given.given
    ]


def asks_anew(given: ChatRequest, seen: Seen[AisdkEncoder]) -> bool:
    """Say whether what was said before is said once more, and not a repeat of the request: words
    that no backend took, or that are to be answered again; but not while they are being answered.
    A request that is still open is answered."""
    state = seen.encoder.state
    if not given.words:
        asked = [state.requests.get(one.name) for one in given.given]
        return any(one is not None and not one.claimed for one in asked)
    last = given.words[-1].id
    if last not in state.heard:
        return True
    running = seen.encoder.running
    if running is not None and last in running.ids:
        return False
    return given.again or given.edits


def _refuse(text: str) -> NoReturn:
    raise ClientProtocolError(text, dialect=wire.DIALECT)
