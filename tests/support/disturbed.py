"""A conversation of an eve client over a backend that misbehaves, and what holds all the same."""

from __future__ import annotations

from typing import Any

from adapters import events as ev
from tests.support.dragoman import Dragoman
from tests.support.eve_client import EveSession, TurnResult
from tests.support.waiting import until

__all__ = [
    "LETTERS",
    "SAID",
    "SCRIPT",
    "STATUSES",
    "check_answered_again",
    "check_said_once",
    "check_survives",
    "failure",
    "rested",
    "told",
]

SCRIPT = "script: tool"
STATUSES = (401, 403, 404, 409, 410, 425, 429, 500, 502, 503, 504)
"""The statuses with which a backend may refuse what it would take at another time."""
SAID = "so 19.99 becomes 1998."
"""How the answer to it ends, but for the number of the turn."""
LETTERS = "Žižkov, naïve — 茶 and 🜁"
"""A message with characters of two, three and four bytes, which the answer quotes."""


def failure(turn: TurnResult) -> dict[str, Any]:
    """The data of the one failure that a turn ends with."""
    (failed,) = turn.data("turn.failed")
    assert turn.records[-1]["type"] == "session.waiting"
    return failed


async def check_answered_again(session: EveSession, turn: TurnResult) -> None:
    """The open request of `script: approve` is shown again after an answer, and takes another."""
    request = turn.requests[0]["requestId"]
    await session.respond(request, "approve")
    # The agent waits again: a boundary tells it (law 6).
    again = await session.read_turn()
    assert again.status == "waiting"
    assert "message.completed" not in again.types
    await session.respond(request, "approve")
    last = await session.read_turn()
    assert last.text is not None
    assert "4.1 GB freed" in last.text


async def check_said_once(dragoman: Dragoman, session: EveSession) -> list[str]:
    """Each text of `SCRIPT` is in the log once, whatever its words, and so is its call; no gap.

    Returns:
        The texts.
    """
    await rested(dragoman, session)
    events = await dragoman.log(session.session_id)
    kinds = [event.TYPE for event in events]
    assert [kinds.count(kind) for kind in ("tool.called", "tool.returned", "turn.ended")] == [1] * 3
    assert "gap" not in kinds
    texts = [event.text for event in events if isinstance(event, ev.TextCompleted)]
    assert len(texts) == 2
    return texts


async def rested(dragoman: Dragoman, session: EveSession) -> None:
    """Return when nothing of a session is under way."""
    live = await dragoman.live(session.session_id)
    await until(lambda: live.idle)


async def told(dragoman: Dragoman, session: EveSession, *without: str) -> list[tuple[str, ...]]:
    """The events of a session without ids and times, and without what tells of faults only.

    Args:
        dragoman: where the session is.
        session: whose events.
        without: further types that a fault may leave out.
    """
    return [
        (event.TYPE, *(str(getattr(event, name, "")) for name in ("text", "name", "outcome")))
        for event in await dragoman.log(session.session_id)
        if event.TYPE not in ("error.reported", "native", *without)
    ]


async def check_survives(dragoman: Dragoman, session: EveSession) -> None:
    """The next message is answered, and replay shows the same."""
    await rested(dragoman, session)
    accepted = await session.send("hello")
    turn = await session.read_turn(accepted)
    while "message.received" not in turn.types:
        turn = await session.read_turn(accepted)
    assert turn.text is not None, turn.types
    assert "You said: “hello”." in turn.text
    again = session.client.attach(session.session_id)
    assert [record async for record in again.stream(0, follow=False)] == session.log
