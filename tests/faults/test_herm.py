"""What a Herm alone does wrong, or what comes of it there alone."""

from __future__ import annotations

import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Status
from tests.faults.backends import Kind
from tests.faults.conversation import SAID, SCRIPT, Conversation, failure
from tests.faults.playing import Run, check_survives, play
from tests.support.patience import SILENCE_S

HERM = Kind("herm")

pytestmark = pytest.mark.usefixtures("impatient")


async def test_a_turn_that_the_herm_has_forgotten_fails_with_what_was_said(
    run: Run,
) -> None:
    script = "script: slow 400"
    house = await run(
        "memory:",
        dialect=HERM.dialect,
        options={**HERM.options, "pace": 0.2},
        table={"settings": {"silence_seconds": SILENCE_S}},
        settings={"eve": {"form": "all"}},
        speed=1.0,
    )
    session = await house.eve().create(script)
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    # A restart, with the sessions and without what ran in them.
    (talk,) = house.backend.talks.values()
    assert talk.runner is not None
    talk.runner.cancel()
    turn = await session.read_turn()
    assert failure(turn)["code"] == "turn_end_missing"
    said = [e for e in await house.log(session.session_id) if isinstance(e, ev.TextCompleted)]
    assert [(text.status, text.text[:4]) for text in said] == [("partial", "tick")]
    await check_survives(HERM, Conversation(house, session, turn), [script])


@pytest.mark.parametrize("status", [409, 429])
async def test_a_message_that_is_refused_for_now_is_said_again(run: Run, status: int) -> None:
    conversation = await play(run, HERM, {("post", 1): Status(status)})
    assert SAID in (conversation.turn.text or "")
    await check_survives(HERM, conversation, [SCRIPT, SCRIPT])
