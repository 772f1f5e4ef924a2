"""What a POST means to its session: commands, and what is noted with each."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from adapters.aisdk.interactions import PageAnswer, to_answer
from adapters.aisdk.requests import ChatRequest
from adapters.aisdk.server import AisdkEncoder
from adapters.aisdk.state import NOTES, ChatNotes, ChatStream
from adapters.contract.faces import SessionView
from adapters.model.commands import AnswerInteraction, AnyCommand
from adapters.model.events import InteractionRequested, Text
from adapters.model.interactions import fits
from adapters.serving.conversation import Intent, said_again
from adapters.serving.members import refuse
from adapters.serving.messages import OmittedMessage, PersonMessage, choose, fresh
from adapters.wire.errors import DragomanError, ErrorCode


def intent_of(given: ChatRequest, seen: SessionView[AisdkEncoder], *, declines: bool) -> Intent:
    """Return what a request means to its session, perhaps nothing: see `check`. With `declines`
    what is asked is declined by words that do not answer it.

    Raises:
        DragomanError: an answer does not fit what is asked, or words come while the agent waits and
            do not decline.
    """
    inputs = seen.encoder.state.inputs
    heard = inputs.heard
    again = bool(given.words) and given.words[-1].id in heard.ids
    answers, ended = _answers((*given.older, *given.given), seen, beside_words=bool(given.words))
    words: list[PersonMessage] = []
    left_out: list[OmittedMessage] = []
    if given.words and not (again and answers):
        # Else it was said before, and what comes now are the answers.
        new = fresh(given.words, given.earlier, heard)
        words, left_out = choose([*new, given.words[-1]] if again else new, seen.refusal)
    commands: list[AnyCommand] = list(answers)
    if words:
        left = _unanswered(seen, answers)
        answer = None if again or ended else _answered_by(words, left, given, seen)
        if answer is not None:
            commands.append(answer)
        elif left and not declines:
            raise DragomanError(
                "The agent waits for an answer: say this again when it is given.",
                code=ErrorCode.PAUSED,
            )
        else:
            message = given.message_of(words, inputs.context)
            # What was said while something was asked comes behind the turn that asked.
            if left or (answers and _all_decline(answers)):
                policy = "decline"
            else:
                policy = "queue" if answers else "reject"
            message = said_again(message.model_copy(update={"policy": policy}), words, seen)
            commands.append(message)
    notes = notes_of(given, words, left_out)
    notes.parts = len(commands)
    return Intent(commands, NOTES.write(notes))


def _answers(
    found: Sequence[PageAnswer], seen: SessionView[AisdkEncoder], *, beside_words: bool
) -> tuple[list[AnswerInteraction], bool]:
    """Return the answers to what is open; the rest of what was ever answered stays in the history.
    Beside words nothing is answered that is answered already, was in vain or does not fit: the
    words would be refused with it. Say, too, whether the page has ended something itself beside
    them, which declines it.

    Raises:
        ClientProtocolError: an answer does not fit its request.
    """
    asked = {event.request_id: event for event in seen.open_interactions}
    pauses = seen.encoder.state.pauses
    calls, approvals = seen.encoder.calls(), seen.encoder.approvals()
    answers: dict[str, AnswerInteraction] = {}
    ended = False
    for one in found:
        name = one.name
        if one.approved is None:
            name = calls.get(one.name, approvals.get(one.name, "") if one.failed else "")
        event = asked.get(name)
        if event is None:
            continue
        if beside_words and one.failed and event.kind != "tool_result":
            ended = True
            continue
        answer = functools.partial(to_answer, one, event)
        if not beside_words or (not pauses.spent(name) and fits(answer, event)):
            answers[name] = answer()
    return list(answers.values()), ended


def _all_decline(answers: Sequence[AnswerInteraction]) -> bool:
    return all(one.skip or one.decision == "deny" for one in answers)


def _unanswered(
    seen: SessionView[AisdkEncoder], answers: Sequence[AnswerInteraction]
) -> list[InteractionRequested]:
    """Return what is asked and has no answer, here or on its way."""
    given = {one.request_id for one in answers}
    return [
        open_.event
        for name, open_ in seen.state.interactions.items()
        if name not in given and open_.claimed_by is None
    ]


def _answered_by(
    words: Sequence[PersonMessage],
    open_: Sequence[InteractionRequested],
    given: ChatRequest,
    seen: SessionView[AisdkEncoder],
) -> AnswerInteraction | None:
    """Return the answer that words are to the one open question which takes any words, and which
    stands in the page: where the person has edited what led to it, nobody sees it."""
    content = [block for one in words for block in one.content]
    text = "\n".join(block.text for block in content if isinstance(block, Text))
    if len(open_) != 1 or not text or not all(isinstance(block, Text) for block in content):
        return None
    event = open_[0]
    if event.kind != "question" or not (event.freeform or not event.options):
        return None
    if not given.alone and seen.encoder.message_of(event.request_id) not in given.known:
        return None
    return AnswerInteraction(request_id=event.request_id, text=text)


def check(intent: Intent, given: ChatRequest, seen: SessionView[AisdkEncoder]) -> None:
    """Refuse what says nothing to its session.

    Raises:
        DragomanError: as it is.
    """
    if intent.commands or late(given, seen) is not None:
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
    refuse(
        "There is nothing new in `messages`: the last one is not of the user, and nothing in it "
        "answers what is asked."
    )


def late(given: ChatRequest, seen: SessionView[AisdkEncoder]) -> ChatStream | None:
    """Return the first stream that the page does not show yet of what followed a request which it
    answers once more."""
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


def notes_of(
    given: ChatRequest, words: Sequence[PersonMessage], left_out: Sequence[OmittedMessage]
) -> ChatNotes:
    """Return what is noted with words."""
    return ChatNotes(
        said=[one.id for one in words],
        left_out=list(left_out),
        goes_on=not words,
        ignored=list(given.ignored),
        context=given.digest if words else None,
    )


# Repeats.


def names_of(given: ChatRequest) -> Sequence[str]:
    """Return what a repeat of the request has as well: the ids of the messages that it says, or of
    what it answers."""
    if given.words:
        return [f"message {given.words[-1].id}"]
    return [
        f"answer {one.name} {'' if one.approved is None else one.approved}" for one in given.given
    ]


def asks_anew(given: ChatRequest, seen: SessionView[AisdkEncoder]) -> bool:
    """Say whether what was said before is said once more, and not a repeat of the request: words
    that no backend took, or that are to be answered again; but not while they are being answered.
    A request that is still open is answered."""
    state = seen.encoder.state
    if not given.words:
        calls = seen.encoder.calls()
        names = [calls.get(one.name, one.name) for one in given.given]
        open_ = [state.pauses.requests[name] for name in names if name in state.pauses.requests]
        # Of what is over only a page is told that lacks what came of it.
        return any(not one.claimed for one in open_) or (not open_ and late(given, seen) is None)
    last = given.words[-1].id
    if last not in state.inputs.heard.ids:
        return True
    running = seen.encoder.running
    if running is not None and last in running.ids:
        return False
    return given.again or given.edits
