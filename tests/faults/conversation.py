"""A conversation of an eve client over a backend that misbehaves, and what holds all the same."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from proxy.scripted.faults import Fault
from tests.support.alone import Alone
from tests.support.eve_client import EveSession, TurnResult
from tests.support.waiting import until

__all__ = [
    "FIRST",
    "LETTERS",
    "SAID",
    "SCRIPT",
    "Conversation",
    "check_replayed",
    "failure",
    "greeted",
    "rested",
    "told",
]

SCRIPT = "script: tool"
FIRST = "Checking the rounding helper."
SAID = "`to_cents` truncates instead of rounding, so 19.99 becomes 1998. (turn 1)"
"""The two texts of the answer to it."""
LETTERS = "Žižkov, naïve — 茶 and 🜁"
"""A message with characters of two, three and four bytes, which the answer quotes."""


class Conversation(NamedTuple):
    """What was played: where, the client's session, and its last turn."""

    house: Alone
    session: EveSession
    turn: TurnResult


def failure(turn: TurnResult) -> dict[str, Any]:
    """The data of the one failure that a turn ends with."""
    (failed,) = turn.data("turn.failed")
    assert turn.records[-1]["type"] == "session.waiting"
    return failed


async def rested(house: Alone, session: EveSession) -> None:
    """Return when nothing of a session is under way."""
    live = await house.live(session.session_id)
    await until(lambda: live.idle)


async def told(
    conversation: Conversation, fault: Fault | None, without: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """The events of a session without ids and times, and without what tells of faults only.

    Args:
        conversation: whose events.
        fault: not asked: none of them leaves out more than another one.
        without: further types that a fault may leave out.
    """
    return [
        (event.TYPE, *(str(getattr(event, name, "")) for name in ("text", "name", "outcome")))
        for event in await conversation.house.log(conversation.session.session_id)
        if event.TYPE not in ("error.reported", "native", *without)
    ]


async def greeted(house: Alone, session: EveSession) -> TurnResult:
    """Say hello as soon as nothing is under way, and return the turn that answers it."""
    await rested(house, session)
    accepted = await session.send("hello")
    turn = await session.read_turn(accepted)
    while "message.received" not in turn.types:
        turn = await session.read_turn(accepted)
    assert turn.text is not None, turn.types
    assert "You said: “hello”." in turn.text
    return turn


async def check_replayed(session: EveSession) -> None:
    """A client that reads the session again sees what this one has seen."""
    again = session.client.attach(session.session_id)
    assert [record async for record in again.stream(0, follow=False)] == session.log
