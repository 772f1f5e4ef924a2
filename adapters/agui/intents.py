"""What a `RunAgentInput` means to its session: commands, and what is noted with each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from adapters.agui import answers, wire
from adapters.agui.interactions import ResumeEntry, interrupt_of, to_answer
from adapters.agui.requests import RunInput, ToolMessage
from adapters.agui.server import AguiEncoder
from adapters.agui.state import NOTES, RunNotes
from adapters.contract.faces import SessionView
from adapters.model.commands import AnswerInteraction, AnyCommand
from adapters.model.events import InteractionRequested, Text
from adapters.model.interactions import fits
from adapters.serving.conversation import Intent, said_again, with_members
from adapters.serving.members import refuse
from adapters.serving.messages import OmittedMessage, PersonMessage, choose, fresh
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import JsonError, parse_json


def intent_of(given: RunInput, seen: SessionView[AguiEncoder]) -> Intent:
    """Return what an input means to its session, perhaps nothing: see `check`.

    Raises:
        DragomanError: an answer does not fit what is asked.
    """
    asked = {event.request_id: event for event in seen.open_interactions}
    answers_, passed, by_tool = _answers(given, seen.encoder, asked)
    words, left_out = _words(given, seen, answers=bool(answers_ or given.resume))
    carried = given.carried(seen.backend.dialect)
    commands: list[AnyCommand] = [with_members(one, carried) for one in answers_]
    if words:
        message = given.message_of(words, seen.encoder.state.inputs.context)
        # What was said while something was asked comes behind the turn that asked.
        policy = "queue" if answers_ else "reject"
        message = said_again(message.model_copy(update={"policy": policy}), words, seen)
        commands.append(with_members(message, carried))
    notes = notes_of(given, words, left_out)
    if carried:
        notes.ignored = []
    notes.parts, notes.passed, notes.answers = len(commands), passed, by_tool
    return Intent(commands, NOTES.write(notes))


def _words(
    given: RunInput, seen: SessionView[AguiEncoder], *, answers: bool
) -> tuple[Sequence[PersonMessage], Sequence[OmittedMessage]]:
    """Return what the person says, and what is left out of it."""
    new = fresh(given.words, given.earlier, seen.encoder.state.inputs.heard)
    if new:
        return choose(new, seen.refusal)
    if answers:
        return (), ()
    if given.words:
        # Said before and nothing behind it: it is to be answered again, or was edited.
        return given.words[-1:], ()
    if _reloads(given, seen):
        return [one for one in given.earlier([given.asked]) if one.wrong is None][-1:], ()
    return (), ()


def _reloads(given: RunInput, seen: SessionView[AguiEncoder]) -> bool:
    """Say whether the last answer is wanted again, for which the agent had called a tool: then the
    result of that is the last message, or what came of an ask that was shown as a call."""
    told = given.told
    if told is None or not given.asked or seen.working or given.resume:
        return False
    if told.call_id in seen.encoder.state.given:
        return False
    # A late answer of a person is a message of its client's.
    return seen.encoder.is_ours(told.id) or not late(given, seen)


def _answers(
    given: RunInput, encoder: AguiEncoder, asked: Mapping[str, InteractionRequested]
) -> tuple[list[AnswerInteraction], list[str], dict[str, tuple[str, str]]]:
    """Return the answers, the entries of `resume` that answer nothing open, and the messages of
    tools that answer."""
    found: dict[str, AnswerInteraction] = {}
    passed: list[str] = []
    for entry in given.resume:
        event = asked.get(entry.interrupt_id)
        if event is None:
            passed.append(entry.interrupt_id)
        else:
            found[entry.interrupt_id] = to_answer(entry, event)
    by_tool: dict[str, tuple[str, str]] = {}
    calls = encoder.calls() if given.results else {}
    for told in given.results:
        event = asked.get(calls.get(told.call_id, ""))
        if event is None or event.request_id in found:
            # The result of a call that the agent has, or a repeat of what `resume` says.
            continue
        answer, spent = functools.partial(_told, told, event), encoder.state.pauses.spent
        if given.words and (spent(event.request_id) or not fits(answer, event)):
            # It would be refused with the words, for ever.
            continue
        by_tool[event.request_id] = (told.id, told.call_id)
        found[event.request_id] = answer()
    # What the run tells of these is noted with each command: so few.
    return list(found.values()), passed[:32], by_tool


def _told(told: ToolMessage, event: InteractionRequested) -> AnswerInteraction:
    if event.kind == "tool_result":
        return AnswerInteraction(
            request_id=event.request_id, content=(Text(text=told.text),), is_error=told.failed
        )
    payload: Any = told.text
    with contextlib.suppress(JsonError):
        payload = parse_json(told.text)
    if not isinstance(payload, dict | bool):
        payload = told.text
    cancelled = isinstance(payload, dict) and payload.get("status") == wire.CANCELLED
    return to_answer(ResumeEntry(event.request_id, cancelled or told.failed, payload), event)


def check(intent: Intent, given: RunInput, seen: SessionView[AguiEncoder]) -> None:
    """Refuse what says nothing to its session, and new words while that waits for a person: who has
    lost the interrupts gets them again.

    Raises:
        DragomanError: as it is.
    """
    if not intent.commands:
        if not late(given, seen):
            _nothing_new(given)
        return
    if any(isinstance(command, AnswerInteraction) for command in intent.commands):
        return
    open_ = [event for event in seen.open_interactions if event.kind != "tool_result"]
    interrupts = [interrupt_of(event) for event in open_]
    if interrupts and not given.asks:
        raise DragomanError(
            "The agent waits for an answer: say this again when it is given.",
            code=ErrorCode.PAUSED,
            details={answers.INTERRUPTS: interrupts},
        )


def late(given: RunInput, seen: SessionView[AguiEncoder]) -> Mapping[str, str]:
    """Return the requests that an input answers, with what came of them, where all of these were
    answered before: its client is told so, or it would hold them for ever."""
    resolved = seen.state.resolved
    names = [entry.interrupt_id for entry in given.resume]
    if not names and given.told is not None:
        names = [given.told.call_id.removeprefix(wire.ASK_CALL)]
    return {name: resolved[name] for name in names} if resolved.keys() >= set(names) else {}


def _nothing_new(given: RunInput) -> NoReturn:
    """Refuse an input that says nothing to its session.

    Raises:
        ClientProtocolError: as it is.
        DragomanError: what it answers was never asked.
    """
    if given.resume:
        raise DragomanError(
            "No interrupt of this thread is open under such an id.",
            code=ErrorCode.UNKNOWN_INTERACTION,
        )
    where = wire.THREAD.replace("{session}", "THREAD")
    refuse(
        "There is nothing new in `messages`: the last one is not of the user, and no call waits "
        f"for a result. `GET {where}` reads what there is."
    )


def notes_of(
    given: RunInput, words: Sequence[PersonMessage], left_out: Sequence[OmittedMessage]
) -> RunNotes:
    """Return what is noted with words."""
    return RunNotes(
        run=given.run,
        modern=given.modern,
        asks=given.asks,
        said=[(one.id, len(one.content)) for one in words],
        left_out=list(left_out),
        ignored=list(given.ignored),
        context=given.digest if words else None,
    )


# Repeats.


def names_of(given: RunInput) -> Sequence[str]:
    """Return what a repeat of the request has as well: the ids of what it answers, with the answer
    where that is a yes or a no, and of what it says; never the run's, which CopilotKit uses again.
    """
    names = []
    for entry in given.resume:
        payload = entry.payload
        said = payload.get("approved") if isinstance(payload, dict) else payload
        yes = str(said) if isinstance(said, bool) else ""
        names.append(f"interrupt {entry.interrupt_id} {entry.cancelled} {yes}")
    if given.words:
        return names + [f"message {one.id}" for one in given.words]
    # An older one stands in every history behind it.
    return names if given.told is None else [*names, f"message {given.told.id}"]


def asks_anew(given: RunInput, seen: SessionView[AguiEncoder]) -> bool:
    """Say whether what was said before is said once more, and not a repeat of the request: a
    request that is still open is answered, words that no backend took are said again, or others
    are answered again in another run."""
    state = seen.encoder.state
    if given.resume:
        unanswered = state.pauses.unanswered
        return all(entry.interrupt_id in unanswered for entry in given.resume)
    if not given.words:
        return _reloads(given, seen) and all(one.name != given.run for one in state.kept)
    last = given.words[-1].id
    if last not in state.inputs.heard.ids:
        return True
    kept = next((one for one in reversed(state.kept) if last in one.ids), None)
    return bool(last) and not seen.working and kept is not None and kept.name != given.run
