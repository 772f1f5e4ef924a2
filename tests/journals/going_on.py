"""Goes on with the sessions of a journal, and says what each came to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from adapters.model import events as ev
from adapters.model.state import LogState
from tests.journals.house import Talk, at_rest
from tests.support.journals import stored_entries

__all__ = ["go_on", "outcome_of"]

PATIENCE_S = 120.0


async def go_on(talk: Talk) -> None:
    """Answer what is open until nothing is under way, and say one thing more."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not at_rest(live := await talk.live()):
                for open_ in list(live.state.interactions.values()):
                    if open_.claimed_by is None:
                        await _answer(talk, open_.event)
                await asyncio.sleep(0.01)
            if live.state.ended is None:
                await talk.say("hello once more")
                await talk.rests()
    except TimeoutError as error:
        live = await talk.live()
        raise AssertionError(f"{talk.name} does not come to rest: {live.state}") from error


async def _answer(talk: Talk, asked: ev.InteractionRequested) -> None:
    try:
        await talk.answer(asked)
    except AssertionError:
        # It may have been resolved, or its answer found, just now.
        live = await talk.live()
        open_ = live.state.interactions.get(asked.request_id)
        if open_ is not None and open_.claimed_by is None:
            raise


async def outcome_of(talk: Talk, taken: Sequence[str]) -> dict[str, Any]:
    """Return what is in the log of a session that rests, in the order of each kind, and which of
    its messages are among those that the backend has `taken`."""
    state = LogState()
    events = []
    for entry in await stored_entries(talk.house.sessions.journal, talk.id):
        state.apply_entry(entry)
        events.append(entry.event)
    assert state.inputs == {}, f"{talk.name}: not settled: {list(state.inputs)}"
    settled = {e.command_id: e.outcome for e in events if isinstance(e, ev.InputSettled)}
    resolved = {e.request_id: e.outcome for e in events if isinstance(e, ev.InteractionResolved)}
    accepted = [e for e in events if isinstance(e, ev.InputAccepted)]
    said = [m for m in taken if talk.text("") in m]
    _check_once(talk, said, [(e, settled[e.command_id]) for e in accepted])

    def words(texts: list[str]) -> list[str]:
        return [text.replace(talk.text(""), "") for text in texts]

    return {
        "inputs": words(
            [f"{e.name} {settled[e.command_id]}: {ev.text_of(e.content)}" for e in accepted]
        ),
        "said": words(said),
        "received": words(
            [ev.text_of(e.content) for e in events if isinstance(e, ev.MessageReceived)]
        ),
        "asked": [
            f"{e.kind} {resolved.get(e.request_id, 'open')}"
            for e in events
            if isinstance(e, ev.InteractionRequested)
        ],
        "turns": [
            f"{'main' if e.thread_id == ev.MAIN else 'child'} {e.outcome}"
            for e in events
            if isinstance(e, ev.TurnEnded)
        ],
        "texts": words([e.text for e in events if isinstance(e, ev.TextCompleted)]),
        "gaps": sum(isinstance(e, ev.Gap) for e in events),
        "ended": state.ended,
    }


def _check_once(talk: Talk, said: list[str], inputs: list[tuple[ev.InputAccepted, str]]) -> None:
    """Check that the backend has taken what the log says it took, once, and nothing else."""
    messages = [(ev.text_of(e.content), how) for e, how in inputs if e.name == "send_message"]
    sure = Counter(text for text, how in messages if how == "taken")
    may = sure + Counter(text for text, how in messages if how == "unknown")
    assert sure <= Counter(said) <= may, f"{talk.name}: said {said} of {messages}"
