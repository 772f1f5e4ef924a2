"""What the token generation makes unsaid when a cancel stops the step after an approval.

As a real 0.30.8 does it: an approval whose first step was stopped is open again and holds every
message back, and a refusal of one that is not open joins the words of the message beside it (eve
page, section 8.2).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.scripted.eve_turns import EveWorker
from tests.backends.eve.conftest import Serve
from tests.support.eve_client import EveSession, TurnResult
from tests.support.houses import Eves
from tests.support.waiting import until

HELLO = "You said: “still there?”."


def received(turn: TurnResult) -> list[str]:
    return [data["message"] for data in turn.data("message.received")]


async def asked(house: Eves) -> tuple[EveSession, str]:
    """Return a conversation that waits for an approval, and the request."""
    session = await house.eve("T").create("script: approve")
    turn = await session.read_turn()
    return session, turn.requests[-1]["requestId"]


async def test_the_words_after_a_cancelled_approval_are_those_of_the_user(
    serve: Serve,
) -> None:
    house = await serve(speed=20.0)
    session, _ = await asked(house)
    await session.cancel()
    assert (await session.read_turn()).text is not None
    for words in ("still there?", "and now?"):
        turn = await session.read_turn(await session.send(words))
        assert received(turn) == [words]
        assert (turn.text or "").startswith(f"You said: “{words}”.")
    assert all("inputResponses" not in json.loads(body) for body in house.posted("T")[1:])


@pytest.mark.parametrize("yes", [True, False])
async def test_an_approval_that_a_cancel_opens_again_holds_nothing_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, yes: bool
) -> None:
    pause = EveWorker._pause

    async def slow(worker: EveWorker, _: float = 0.0) -> None:
        await pause(worker, 0.1)

    house = await serve(pace=1.0)
    session, request = await asked(house)
    monkeypatch.setattr(EveWorker, "_pause", slow)
    (talk,) = house.eves["T"].talks.values()
    await session.respond(request, "approve" if yes else "deny")
    await until(lambda: [entry.type for entry in talk.log].count("step.started") == 2)
    await session.cancel()
    turn = await session.read_turn()
    assert "turn.cancelled" in turn.types
    monkeypatch.setattr(EveWorker, "_pause", pause)
    assert talk.reopened is not None
    turn = await session.read_turn(await session.send("still there?"))
    assert received(turn) == ["still there?"]
    assert HELLO in (turn.text or "")
    sent: list[dict[str, Any]] = [json.loads(body) for body in house.posted("T")]
    assert sent[-1]["inputResponses"] == [{"requestId": request, "optionId": "deny"}]
    turn = await session.read_turn(await session.send("still there?"))
    assert received(turn) == ["still there?"]
    assert (turn.text or "").startswith(HELLO)
    assert talk.reopened is None
