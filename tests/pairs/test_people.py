"""Approvals, questions, custom tools and secrets in all pairs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from adapters.model import events as ev
from tests.pairs.backends import HELD
from tests.pairs.cells import Carried, Native, Refused, Says
from tests.pairs.frontends import Ask, Refusal
from tests.pairs.scenario import attempt, refused, scenario
from tests.pairs.table import PEOPLE
from tests.pairs.world import World

COMMAND = "rm -rf /srv/exports/2024"
SECRET = "n0-0ne-may-see-7h1s"


async def _asked(world: World, script: str) -> Ask | None:
    """Say a script; return what is asked, or None where the agent says that it cannot ask."""
    await world.person.say(f"script: {script}")
    if isinstance(world.expect, Says):
        seen = await world.person.settled()
        assert world.expect.words in seen.text
        assert seen.asks == []
        return None
    return await world.person.asked()


@scenario("approve")
async def test_a_yes_runs_the_tool(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    ask = await person.asked()
    # An approval always carries what it is about.
    assert COMMAND in ask.prompt + ask.about
    assert person.seen.called("bash").output is None
    await person.confirm(ask, True)
    seen = await person.settled()
    assert "Done, 4.1 GB freed." in seen.text
    tool = seen.called("bash")
    assert tool.input == {"command": COMMAND}
    assert not tool.failed
    (resolved,) = await world.log(ev.InteractionResolved)
    assert resolved.outcome == "approved"


@scenario("deny")
async def test_a_no_does_not_run_the_tool(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    await person.confirm(await person.asked(), False)
    seen = await person.settled()
    assert "Understood, I left /srv/exports/2024 alone." in seen.text
    assert seen.called("bash").failed
    (resolved,) = await world.log(ev.InteractionResolved)
    assert resolved.outcome == "denied"


@scenario("deny with a reason")
async def test_a_reason_goes_with_a_no_where_it_can(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    await person.confirm(await person.asked(), False, reason="the audit is not over")
    seen = await person.settled()
    shown = seen.text + (seen.called("bash").output or "")
    assert ("the audit is not over" in shown) == isinstance(world.expect, Native)


@scenario("approve for the session")
async def test_a_scope_is_kept_or_narrowed_and_never_widened(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    await person.confirm(await person.asked(), True, scope="session")
    seen = await person.settled()
    assert ("I remember this: session." in seen.text) == isinstance(world.expect, Native)
    assert "always" not in seen.text


@scenario("two approvals, one by one")
async def test_two_approvals_are_answered_one_by_one(world: World) -> None:
    person = world.person
    await person.say("script: approve-twice")
    first = await person.asked()
    assert COMMAND in first.prompt + first.about
    await person.confirm(first, True)
    await person.until(lambda seen: len(seen.asks) == 2 and seen.state == "asks")
    second = person.seen.ask
    assert "/etc/hosts" in second.prompt + second.about
    assert second.id != first.id
    await person.confirm(second, False)
    seen = await person.settled()
    assert "Done, 4.1 GB freed." in seen.text
    assert "Understood, I left /etc/hosts alone." in seen.text
    resolved = await world.log(ev.InteractionResolved)
    assert [event.outcome for event in resolved] == ["approved", "denied"]


@scenario("a second answer")
async def test_a_second_answer_is_refused(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    ask = await person.asked()
    await person.confirm(ask, True)
    if isinstance(world.expect, Refused):
        with refused(world.expect):
            await person.confirm(ask, False)
    else:
        assert person.shows_what_came
        # Refused only while the first is on its way still.
        with contextlib.suppress(Refusal):
            await person.confirm(ask, False)
    seen = await person.settled()
    assert "Done, 4.1 GB freed." in seen.text
    assert len([one for one in await world.log(ev.InputAccepted) if one.kind == "answer"]) == 1


@scenario("an answer that does not fit")
async def test_an_answer_that_does_not_fit_leaves_the_request_open(world: World) -> None:
    assert isinstance(world.expect, Refused)
    person = world.person
    await person.say("script: approve")
    ask = await person.asked()
    with refused(world.expect):
        await person.mumble(ask)
    await person.confirm(ask, True)
    seen = await person.settled()
    assert "Done, 4.1 GB freed." in seen.text


@scenario("a message while an approval is open")
async def test_an_unrelated_message_never_answers(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    ask = await person.asked()
    done = await attempt(world.expect, lambda: person.say("what about the cat?"))
    if done and world.expect != HELD:
        # A page keeps the buttons of a message that it has read to its end.
        keeps = world.frontend == "aisdk"
        seen = await person.until(
            lambda seen: (
                (keeps or seen.state == "rests") and "You said: “what about the cat?”." in seen.text
            )
        )
        assert "Done" not in seen.text
        (resolved,) = await world.log(ev.InteractionResolved)
        assert resolved.outcome in ("withdrawn", "cancelled", "denied")
        return
    assert (await world.session()).open_interactions()
    await person.confirm(ask, True)
    if not done:
        await person.settled()
        await person.say("what about the cat?")
    seen = await person.until(
        lambda seen: seen.state == "rests" and "You said: “what about the cat?”." in seen.text
    )
    assert "Done, 4.1 GB freed." in seen.text


@scenario("interrupt while an approval is open")
async def test_an_interrupt_while_an_approval_is_open_ends_the_turn(world: World) -> None:
    await _interrupted(world)


@scenario("interrupt denies a held permission", settings={"interrupt": "deny"})
async def test_an_interrupt_may_deny_a_held_permission(world: World) -> None:
    await _interrupted(world)


async def _interrupted(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    ask = await person.asked()
    if not await attempt(world.expect, person.interrupt):
        await person.confirm(ask, True)
        seen = await person.settled()
        assert "Done, 4.1 GB freed." in seen.text
        return
    seen = await person.settled(turns=1)
    assert "Done" not in seen.text
    if isinstance(world.expect, Carried):
        assert "Understood, I left /srv/exports/2024 alone." in seen.text
        assert seen.outcomes == ["completed"]
    else:
        assert seen.outcomes == [world.stopped]
    (resolved,) = await world.log(ev.InteractionResolved)
    assert resolved.outcome in ("cancelled", "withdrawn", "denied")
    await person.say("still there?")
    seen = await person.settled(turns=2)
    assert "You said: “still there?”." in seen.text


@scenario("choose an option")
async def test_an_option_is_chosen(world: World) -> None:
    person = world.person
    ask = await _asked(world, "ask")
    if ask is None:
        return
    assert ask.prompt == "Which departure do you prefer?"
    assert ask.labels == ["07:40", "09:10"]
    await person.choose(ask, "09:10")
    seen = await person.settled()
    assert "Holding a seat on the 09:10." in seen.text


@scenario("an open question")
async def test_an_open_question_takes_words(world: World) -> None:
    person = world.person
    ask = await _asked(world, "askopen")
    if ask is None:
        return
    assert ask.prompt == "Which name shall the ticket carry?"
    assert ask.options == ()
    await person.write(ask, "Ada {answer} Lovelace")
    seen = await person.settled()
    assert "The ticket carries the name Ada {answer} Lovelace." in seen.text


@scenario("answer with other words")
async def test_a_question_with_options_may_take_other_words(world: World) -> None:
    person = world.person
    ask = await _asked(world, "ask")
    if ask is None:
        return
    if await attempt(world.expect, lambda: person.write(ask, "the night train")):
        seen = await person.settled()
        assert "Holding a seat on the the night train." in seen.text
    else:
        await person.choose(ask, "07:40")
        await person.settled()


@scenario("skip a question")
async def test_a_question_is_skipped_where_it_can_be(world: World) -> None:
    person = world.person
    ask = await _asked(world, "ask")
    if ask is None:
        return
    if await attempt(world.expect, lambda: person.skip(ask)):
        await person.settled()
        (resolved,) = await world.log(ev.InteractionResolved)
        assert resolved.outcome == "skipped"
        return
    await person.choose(ask, "07:40")
    seen = await person.settled()
    assert "Holding a seat on the 07:40." in seen.text


@scenario("answer by a plain message")
async def test_a_plain_message_may_be_the_answer(world: World) -> None:
    person = world.person
    ask = await _asked(world, "ask")
    if ask is None:
        return
    if not await attempt(world.expect, lambda: person.say("09:10")):
        await person.choose(ask, "09:10")
    seen = await person.settled()
    assert "Holding a seat on the 09:10." in seen.text
    assert seen.outcomes == ["completed"]


@scenario("a custom tool")
async def test_a_custom_tool_gets_its_result(world: World) -> None:
    person = world.person
    ask = await _asked(world, "custom")
    if ask is None:
        return
    assert "lookup_stock" in ask.prompt + ask.about + str(person.seen.tools)
    assert "basil-7" in ask.prompt + ask.about + str(person.seen.tools)
    await person.give(ask, "12 pots")
    seen = await person.settled()
    assert "The application says: 12 pots" in seen.text


@scenario("a custom tool that fails")
async def test_a_custom_tool_may_fail(world: World) -> None:
    ask = await _asked(world, "custom")
    if ask is None:
        return
    await world.person.give(ask, "no stock today", failed=True)
    seen = await world.person.settled()
    wanted = "an error, " if isinstance(world.expect, Native) else ""
    assert f"The application says: {wanted}no stock today" in seen.text


@scenario("give a secret", stored=True)
async def test_a_secret_reaches_the_backend_alone(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await _give(world, "secret", "The token works.", tmp_path, caplog)


@scenario("give a sudo password", stored=True)
async def test_a_password_reaches_the_backend_alone(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await _give(world, "sudo", "The update is installed.", tmp_path, caplog)


async def _give(
    world: World, kind: str, done: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    person = world.person
    ask = await _asked(world, kind)
    if ask is None:
        return
    watchers = [await world.join(name) for name in PEOPLE]
    if await attempt(world.expect, lambda: person.reveal(ask, SECRET)):
        seen = await person.settled()
        assert done in seen.text
        assert any(SECRET.encode() in r.body for r in world.scripted.received)
    else:
        # It may not be quoted either: it is a secret all the same.
        with pytest.raises(Refusal) as caught:
            await person.reveal(ask, SECRET)
        assert SECRET not in caught.value.text
        await person.decline(ask)
        seen = await person.settled()
        assert "stop here." in seen.text
    await world.quiet()
    for watcher in watchers:
        await watcher.until(lambda seen: seen.outcomes == ["completed"])
        assert SECRET not in repr(watcher.frames)
    assert SECRET not in repr(person.frames) + repr(await world.entries()) + caplog.text
    await world.sessions.aclose()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@scenario("say a secret as a message")
async def test_a_secret_that_is_said_as_a_message_is_refused_unquoted(world: World) -> None:
    person = world.person
    ask = await _asked(world, "secret")
    if ask is None:
        return
    if not isinstance(world.expect, Refused):
        await person.say("no, thank you")
        seen = await person.settled(turns=2)
        assert "Without a token I stop here." in seen.text
        assert "You said: “no, thank you”." in seen.text
        return
    with pytest.raises(Refusal) as caught:
        await person.say(SECRET)
    assert (caught.value.status, caught.value.code) == (world.expect.status, world.expect.code)
    assert SECRET not in caught.value.text
    await person.decline(ask)
    seen = await person.settled()
    assert "Without a token I stop here." in seen.text
    assert SECRET not in repr(await world.entries())


@scenario("decline a secret")
async def test_a_secret_can_be_declined(world: World) -> None:
    ask = await _asked(world, "secret")
    if ask is None:
        return
    if world.frontend != "herm":
        assert [label.lower() for label in ask.labels] == ["decline"]
    await world.person.decline(ask)
    seen = await world.person.settled()
    assert "Without a token I stop here." in seen.text


# Sign-ins and limits.


@scenario("sign in")
async def test_a_sign_in_elsewhere_lets_the_agent_go_on(world: World) -> None:
    person = world.person
    ask = await _asked(world, "signin")
    if ask is None:
        return
    assert "Sign in to the ledger." in ask.prompt
    # The person opens the address; its provider sends the browser back to the agent's server.
    back = re.search(r"back=([^\s&'\"]+)", ask.prompt + ask.about)
    assert back is not None
    async with world.http.get(unquote(back[1])) as page:
        assert page.status == 200
    person._works()
    seen = await person.until(lambda seen: bool(seen.outcomes))
    assert "Page 3 of the ledger is in order." in seen.text
    assert seen.called("read_ledger").output is not None
    (resolved,) = await world.log(ev.InteractionResolved)
    assert resolved.outcome in ("answered", "approved")


@scenario("call off a sign-in")
async def test_a_sign_in_can_be_called_off(world: World) -> None:
    ask = await _asked(world, "signin")
    if ask is None:
        return
    await world.person.decline(ask)
    seen = await world.person.settled(turns=1)
    assert seen.outcomes == ["interrupted"]
    assert "in order" not in seen.text
    (resolved,) = await world.log(ev.InteractionResolved)
    assert resolved.outcome in ("cancelled", "denied", "skipped")


@scenario("answer a sign-in")
async def test_nothing_on_the_wire_answers_a_sign_in(world: World) -> None:
    ask = await _asked(world, "signin")
    if ask is None:
        return
    assert isinstance(world.expect, Refused)
    with refused(world.expect):
        await world.person.write(ask, "I am signed in")
    assert (await world.session()).open_interactions()
    await world.person.decline(ask)
    await world.person.settled(turns=1)


@scenario("a token limit, and on")
async def test_a_session_goes_on_over_its_limit_when_it_may(world: World) -> None:
    person = world.person
    ask = await _asked(world, "limit")
    if ask is None:
        return
    assert "This session has hit the input-token limit (60)" in ask.prompt
    assert len(ask.labels) == 2
    await person.choose(ask, ask.labels[0])
    seen = await person.settled()
    assert "I go on within the new budget." in seen.text
    assert seen.outcomes == ["completed"]


@scenario("a token limit, and stop")
async def test_a_session_stops_at_its_limit_when_told(world: World) -> None:
    ask = await _asked(world, "limit")
    if ask is None:
        return
    await world.person.choose(ask, ask.labels[-1])
    seen = await world.person.settled(turns=1)
    assert "I go on" not in seen.text
    assert seen.outcomes == ["interrupted"]
