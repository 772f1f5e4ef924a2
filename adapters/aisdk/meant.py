"""What a POST means to its session: commands, and what is noted with each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from adapters.aisdk.asked import Given, to_answer
from adapters.aisdk.requests import ChatRequest, Words
from adapters.aisdk.server import AisdkEncoder
from adapters.aisdk.state import NOTES, Kept, Notes
from adapters.contract.faces import Seen
from adapters.model.commands import AnswerInteraction, AnyCommand, SendMessage
from adapters.model.events import InteractionRequested, Text
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode

__all__ = ["Meant", "asks_anew", "check", "first_words", "late", "meant_by", "names_of"]


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
    if given.words is None:
        _refuse("A chat begins with a message of the user at the end of `messages`.")
    ignored = list(given.ignored)
    if given.history:
        # What was said before this chat began, no agent hears of.
        ignored.append("messages")
    message = _message(given, given.words, new_context=True)
    return message, _dumped(_notes(given, given.words, ignored=ignored))


def meant_by(given: ChatRequest, seen: Seen[AisdkEncoder]) -> Meant:
    """Return what a request means to its session, perhaps nothing: see `check`.

    Raises:
        DragomanError: an answer does not fit what is asked, or words come while the agent waits.
    """
    state = seen.encoder.state
    answers = _answers((*given.older, *given.given), seen)
    words = given.words
    again = words is not None and words.id in state.heard
    if again and answers:
        # It was said before, and what comes now are the answers.
        words = None
    commands: list[AnyCommand] = list(answers)
    left = [
        event
        for event in seen.open_interactions
        if event.request_id not in {one.request_id for one in answers}
    ]
    if words is not None and left:
        commands.append(_answered_by(words, left, again=again))
    elif words is not None:
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


def _answered_by(
    words: Words, open_: Sequence[InteractionRequested], *, again: bool
) -> AnswerInteraction:
    """Return the answer that words are to the one open question which takes any words.

    Raises:
        DragomanError: these were said before, or the agent waits for something else.
    """
    text = "\n".join(block.text for block in words.content if isinstance(block, Text))
    plain = bool(text) and all(isinstance(block, Text) for block in words.content)
    event = open_[0]
    takes = event.kind == "question" and (event.freeform or not event.options)
    if len(open_) == 1 and takes and plain and not again:
        return AnswerInteraction(request_id=event.request_id, text=text)
    raise DragomanError(
        "The agent waits for an answer: say this again when it is given.", code=ErrorCode.PAUSED
    )


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


def late(given: ChatRequest, seen: Seen[AisdkEncoder]) -> Kept | None:
    """Return the stream with which that begins which came of a request answered here once more, and
    which the page lacks."""
    encoder = seen.encoder
    for one in given.given:
        after = encoder.after(one.name)
        if after is None:
            continue
        lacking = encoder.lacking(given.message, given.steps)
        if given.message == after.message and lacking is not None:
            return lacking
        if given.message != after.message or not encoder.steps_of(after):
            return after
    return None


def _message(given: ChatRequest, words: Words, *, new_context: bool) -> SendMessage:
    if not words.content:
        _refuse("The message of the user has neither a text nor a file.")
    return SendMessage(
        content=words.content,
        policy="reject",
        client_context=list(given.context) if given.context and new_context else None,
    )


def _notes(given: ChatRequest, words: Words | None, *, ignored: Sequence[str]) -> Notes:
    return Notes(
        said=[] if words is None else [words.id],
        goes_on=words is None,
        ignored=list(ignored),
        context=None if words is None else given.digest,
    )


def _dumped(notes: Notes) -> Mapping[str, Any]:
    value: Mapping[str, Any] = NOTES.dump_python(notes, mode="json", exclude_defaults=True)
    return value


# Repeats.


def names_of(given: ChatRequest) -> Sequence[str]:
    """Return what a repeat of the request has as well: the ids of the messages that it says, or of
    what it answers."""
    if given.words is not None:
        return [f"message {given.words.id}"]
    return [
        f"answer {one.name} {'' if one.approved is None else one.approved}" for one in given.given
    ]


def asks_anew(given: ChatRequest, seen: Seen[AisdkEncoder]) -> bool:
    """Say whether what was said before is said once more, and not a repeat of the request: words
    that no backend took, or that are to be answered again; but not while they are being answered.
    A request that is still open is answered."""
    state = seen.encoder.state
    if given.words is None:
        calls = seen.encoder.calls()
        names = [calls.get(one.name, one.name) for one in given.given]
        open_ = [state.requests[name] for name in names if name in state.requests]
        # Of what is over only a page is told that lacks what came of it.
        return any(not one.claimed for one in open_) or (not open_ and late(given, seen) is None)
    last = given.words.id
    if last not in state.heard:
        return True
    running = seen.encoder.running
    if running is not None and last in running.ids:
        return False
    return given.again or given.edits


def _refuse(text: str) -> NoReturn:
    raise ClientProtocolError(text)
