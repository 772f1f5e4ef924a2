"""The older generations of eve as backends: what waits for a person, from every frontend.

The pairs are played with the newest eve, which holds its turn while it waits. 0.30 and 0.52
close it and open another one for the answer (eve page, section 8.2), so the same scenarios go
through other code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from adapters.model import events as ev
from proxy.scripted.eve_turns import Generation
from tests.pairs import test_people, test_sessions
from tests.pairs.table import FRONTENDS, TABLE
from tests.pairs.world import World

OLDER: tuple[Generation, ...] = ("T", "S1")

SCENARIOS: dict[str, Callable[[World], Awaitable[None]]] = {
    "approve": test_people.test_a_yes_runs_the_tool,
    "deny": test_people.test_a_no_does_not_run_the_tool,
    "two approvals, one by one": test_people.test_two_approvals_are_answered_one_by_one,
    "choose an option": test_people.test_an_option_is_chosen,
    "an open question": test_people.test_an_open_question_takes_words,
    "answer by a plain message": test_people.test_a_plain_message_may_be_the_answer,
    "sign in": test_people.test_a_sign_in_elsewhere_lets_the_agent_go_on,
    "a token limit, and on": test_people.test_a_session_goes_on_over_its_limit_when_it_may,
    "a token limit, and stop": test_people.test_a_session_stops_at_its_limit_when_told,
    "a child agent": test_sessions.test_a_child_agent_is_seen_with_a_stream_of_its_own,
    "a child agent asks": test_sessions.test_what_a_child_asks_is_answered_by_the_person,
}


@pytest.mark.parametrize("generation", OLDER)
@pytest.mark.parametrize(
    ("name", "frontend"),
    [(name, f) for name in SCENARIOS for f in FRONTENDS if (f, "eve") in TABLE[name]],
)
async def test_an_older_eve_is_as_good_a_backend(
    name: str, frontend: str, generation: Generation
) -> None:
    async with World(frontend, "eve", TABLE[name][frontend, "eve"], generation=generation) as world:
        await SCENARIOS[name](world)
        await world.check()


@pytest.mark.parametrize("generation", OLDER)
@pytest.mark.parametrize("frontend", ["herm", "eve"])
async def test_an_interrupt_of_a_closed_pause_denies_and_then_cancels(
    frontend: str, generation: Generation
) -> None:
    async with World(
        frontend, "eve", TABLE["deny"][frontend, "eve"], generation=generation
    ) as world:
        person = world.person
        await person.say("script: approve")
        await person.asked()
        await person.interrupt()
        seen = await person.settled(turns=1)
        assert "Done" not in seen.text
        (resolved,) = await world.log(ev.InteractionResolved)
        assert resolved.outcome in ("denied", "cancelled")
        # The cancel may come when the turn of the denial is over already.
        assert seen.outcomes == ["interrupted"] or "I left /srv/exports/2024 alone" in seen.text
        await world.check()
