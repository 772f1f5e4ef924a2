"""Plays a conversation with a backend that misbehaves, and tells what the backend was told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from proxy.scripted.faults import Fault, Faults
from tests.faults.backends import Kind
from tests.faults.conversation import SCRIPT, Conversation, check_replayed, greeted
from tests.faults.faulty import Plan
from tests.support.alone import Alone
from tests.support.dragoman import Start
from tests.support.eve_client import Form, TurnResult
from tests.support.patience import HASTE

__all__ = ["Run", "begin", "bodies", "check_survives", "fails_next", "heard", "play"]

Run = Start[Alone]


async def begin(
    run: Run,
    kind: Kind,
    plan: Plan | None = None,
    *,
    form: Form = "all",
    journal: str = "memory:",
    speed: float = HASTE,
    **options: Any,
) -> Alone:
    """Start a Dragoman over a backend that is going to do wrong what a plan says.

    Args:
        run: what starts it.
        kind: the backend.
        plan: its faults.
        form: of the eve face.
        journal: a URL.
        speed: how much faster than real time the proxy's clock runs.
        options: further arguments of the scripted backend.
    """
    return await run(
        journal,
        dialect=kind.dialect,
        options={**kind.options, "faults": Faults(plan or {}), **options},
        settings={"eve": {"form": form}},
        speed=speed,
    )


async def play(
    run: Run,
    kind: Kind,
    plan: Plan | None = None,
    script: str = SCRIPT,
    *,
    form: Form = "all",
    **options: Any,
) -> Conversation:
    """Say something first and read the turn; `options` are further arguments of `begin`."""
    house = await begin(run, kind, plan, form=form, **options)
    session = await house.eve(form).create(script)
    return Conversation(house, session, await session.read_turn())


def fails_next(house: Alone, route: str, fault: Fault) -> None:
    """Let the next request of a route go wrong."""
    faults = house.backend.faults
    faults.plan[route, faults.requests[route] + 1] = fault


def bodies(house: Alone) -> list[Any]:
    """The JSON bodies that the backend got, in order."""
    return [json.loads(received.body) for received in house.backend.received if received.body]


def heard(kind: Kind, house: Alone) -> list[str]:
    """The messages that the backend was told, whatever it made of them."""
    said = [kind.faulty.says(body) for body in bodies(house)]
    return [text for text in said if text is not None]


async def check_survives(
    kind: Kind, conversation: Conversation, said: Sequence[str] = (SCRIPT,)
) -> TurnResult:
    """The next message is answered and said once, replay shows the same, and nothing else was said.

    Args:
        kind: the backend.
        conversation: what was played.
        said: what the backend was told before.

    Returns:
        The turn of the next message.
    """
    assert heard(kind, conversation.house) == list(said)
    turn = await greeted(conversation.house, conversation.session)
    assert heard(kind, conversation.house) == [*said, "hello"]
    await check_replayed(conversation.session)
    return turn
