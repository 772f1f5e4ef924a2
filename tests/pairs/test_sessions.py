"""Sessions in all pairs: controls, failures, children, several people, coming back."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping

import pytest

from adapters.contract.dialect import Dialect
from adapters.model import events as ev
from adapters.registry import DIALECTS
from proxy.scripted.faults import Fault, Status
from tests.faults import backends as faults
from tests.pairs import backends, test_messages, test_people
from tests.pairs.backends import PROPERTIES
from tests.pairs.cells import NATIVE, Native, Refused, Says
from tests.pairs.expectations import FRONTENDS, Outcome
from tests.pairs.frontends import EveFrontend, Refusal, Seen
from tests.pairs.scenario import PLAYED, attempt, refused, scenario
from tests.pairs.table import CELLS, PEOPLE, TABLE, brought, lacking, table_of
from tests.pairs.world import World
from tests.wire import given_messages, served


@scenario("compact")
async def test_compact_shortens_the_history_or_is_refused(world: World) -> None:
    await _controlled(world, "compact")


@scenario("clear")
async def test_clear_drops_the_history_or_is_refused(world: World) -> None:
    await _controlled(world, "clear")


async def _controlled(world: World, name: str) -> None:
    person = world.person
    await person.say("hello")
    await person.settled()
    if await attempt(world.expect, lambda: person.control(name)):
        kinds: dict[str, type[ev.Event]] = {
            "compact": ev.ContextCompacted,
            "clear": ev.ContextCleared,
        }
        await person.until(
            lambda seen: any(t in ("compaction.completed", "context.cleared") for t in seen.types)
        )
        assert await world.log(kinds[name])
    await person.say("still there?")
    seen = await person.until(lambda seen: "still there?" in seen.text and seen.state == "rests")
    assert "You said: “still there?”." in seen.text


@scenario("reset", checked=False)
async def test_reset_retires_the_session_or_is_refused(world: World) -> None:
    person = world.person
    await person.say("hello")
    await person.settled()
    if not await attempt(world.expect, lambda: person.control("reset")):
        await person.say("still there?")
        await person.settled(turns=2)
        return
    await person.until(lambda seen: seen.state == "over")
    (ended,) = await world.log(ev.SessionEnded)
    assert ended.outcome in ("completed", "terminated")


@scenario("a title")
async def test_a_title_is_given_or_refused(world: World) -> None:
    person = world.person
    await person.say("hello")
    await person.settled()
    if await attempt(world.expect, lambda: person.rename("The garden")):
        await person.until(lambda seen: "The garden" in seen.titles)
        if isinstance(world.expect, Native):
            assert {"title": "The garden"} in world.received("update")


@scenario("a title that the agent gives")
async def test_a_title_of_the_agent_is_shown_where_there_is_a_place(world: World) -> None:
    person = world.person
    await person.say("hello")
    await person.settled()
    if world.properties.titles and isinstance(world.expect, Native):
        await person.until(lambda seen: seen.titles == ["The first turn"])
    else:
        assert person.seen.titles == []


@scenario("archive")
async def test_an_archived_session_takes_no_more(world: World) -> None:
    person = world.person
    await person.say("hello")
    await person.settled()
    if not await attempt(world.expect, lambda: person.control("archive")):
        return
    with refused(Refused(*person.refuses_archived)):
        await person.say("still there?")
    updated = await world.log(ev.SessionUpdated)
    assert any(event.archived_at is not None for event in updated)


@scenario("delete", checked=False)
async def test_a_deleted_session_is_gone(world: World) -> None:
    person = world.person
    await person.say("hello")
    await person.settled()
    if not await attempt(world.expect, lambda: person.control("delete")):
        await world.check()
        return
    with refused(Refused(*person.refuses_deleted)):
        await person.say("still there?")


@scenario("compaction by the agent")
async def test_a_compaction_by_the_agent_is_seen(world: World) -> None:
    await world.person.say("script: compact")
    seen = await world.person.settled()
    assert "I have shortened my notes." in seen.text
    if isinstance(world.expect, Says):
        assert world.expect.words in seen.text
        return
    (compacted,) = await world.log(ev.ContextCompacted)
    sizes = (31200, 9400) if world.properties.sizes else (None, None)
    assert (compacted.before_tokens, compacted.after_tokens) == sizes
    shown = {"herm": None, "eve": "compaction.completed", "engine": "compaction_event"}
    kind = shown.get(world.frontend, getattr(world.person, "compaction", None))
    assert kind is None or kind in seen.types


# Failures.


@scenario("a turn that fails at once")
async def test_a_turn_that_fails_at_once_says_why(world: World) -> None:
    person = world.person
    await person.say("script: fail")
    seen = await person.settled()
    assert seen.outcomes == ["failed"]
    assert any(
        "LLM_RATE_LIMITED" in text and "The provider is limiting requests." in text
        for text in seen.errors
    )
    await person.say("again?")
    seen = await person.settled(turns=2)
    assert "You said: “again?”. (turn 2)" in seen.text


@scenario("a turn that fails in the middle")
async def test_a_turn_that_fails_in_the_middle_keeps_what_was_said(world: World) -> None:
    person = world.person
    await person.say("script: failmid")
    seen = await person.settled()
    assert seen.outcomes == ["failed"]
    assert "The first lighthouse was built on " in seen.text
    assert any("LLM_PROVIDER_ERROR" in text for text in seen.errors)


def _refuses_first(backend: str) -> Mapping[tuple[str, int], Fault]:
    faulty = faults.found(backend)
    assert faulty is not None, faults.lacking(backend)
    return {(faulty.create, 1): Status(403)}


@scenario("a message that the backend refuses", faults=_refuses_first)
async def test_a_message_that_the_backend_refuses_ends_in_a_failed_turn(world: World) -> None:
    person = world.person
    await person.say("hello")
    await person.settled()
    (settled,) = await world.log(ev.InputSettled)
    assert settled.outcome == "refused"
    assert person.seen.outcomes == ["failed"]
    assert any("Refused on purpose." in text for text in person.seen.errors)


@scenario("a backend that is gone for good", pace=0.1, settings={"patience_seconds": 0.2})
async def test_a_backend_that_is_gone_for_good_ends_the_turn(world: World) -> None:
    person = world.person
    await person.say("script: slow 400")
    await person.until(lambda seen: "tick 1 " in seen.text)
    await world.lose_backend()
    seen = await person.settled()
    assert seen.outcomes == ["failed"]
    assert "tick 1 " in seen.text
    if world.frontend not in ENDS_FAILED:
        # A dialect whose tests bring its person says the code with the reason.
        (said,) = seen.errors
        assert said.startswith("backend_session_lost")
        assert world.properties.lost in said
        return
    kinds, message = _end_in_its_words(world)
    assert kinds == ENDS_FAILED[world.frontend]
    assert world.properties.lost in message


ENDS_FAILED = {
    "herm": ["session.status_idle", "error"],
    "eve": ["turn.failed", "session.waiting"],
    "engine": ["error", "thread_lifecycle", "errored"],
}
"""How each dialect says that a turn has failed."""


def _end_in_its_words(world: World) -> tuple[list[str], str]:
    """What the last frames of a failed turn are in the frontend's dialect, and why it failed; its
    code is where the dialect has one."""
    frames = world.person.frames
    match world.frontend:
        case "herm":
            reason = frames[-1]["payload"]["stop_reason"]
            code, _, message = reason["message"].partition(": ")
            kinds = [frames[-1]["type"], reason["type"]]
        case "eve":
            failed, waiting = frames[-2:]
            code, message = failed["data"]["code"], failed["data"]["message"]
            assert failed["data"]["terminal"] is False
            kinds = [failed["type"], waiting["type"]]
        case _:
            error, lifecycle = frames[-2:]
            code, message = error.payload["error"], error.payload["message"]
            kinds = [error.event, lifecycle.event, lifecycle.payload["phase"]]
    assert code == "backend_session_lost"
    return kinds, message


# Children.


@scenario("a child agent")
async def test_a_child_agent_is_seen_with_a_stream_of_its_own(world: World) -> None:
    person = world.person
    await person.say("script: child")
    seen = await person.settled()
    if isinstance(world.expect, Says):
        assert world.expect.words in seen.text
        return
    assert "The researcher says: 84 m." in seen.text
    await world.quiet()
    if world.frontend == "herm":
        await person.until(
            lambda seen: any("The north tower is 84 m tall." in text for text in seen.children)
        )
        told = seen.children + [str(tool.input) for tool in seen.tools.values()]
        assert any("Find the height of the north tower." in text for text in told)
    if isinstance(person, EveFrontend):
        name, _, child = seen.children[0].partition(": ")
        assert name == "researcher"
        own = await person.child(child)
        assert "The north tower is 84 m tall." in own.text
        if world.properties.child_tools:
            assert "CREATE TABLE t" in (own.called("read_file").output or "")


@scenario("a child agent asks")
async def test_what_a_child_asks_is_answered_by_the_person(world: World) -> None:
    person = world.person
    await person.say("script: childask")
    if isinstance(world.expect, Says):
        seen = await person.settled()
        assert world.expect.words in seen.text
        return
    ask = await person.asked()
    assert "rm -rf /srv/exports/2024" in ask.prompt + ask.about
    await person.confirm(ask, True)
    seen = await person.settled()
    assert "The cleaner is done." in seen.text
    (resolved,) = await world.log(ev.InteractionResolved)
    assert resolved.outcome == "approved"


# Several people, and coming back.


@scenario("people of all dialects watch")
async def test_people_of_all_dialects_see_the_same_turn(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    ask = await person.asked()
    watchers = [await world.join(name) for name in PEOPLE]
    for watcher in watchers:
        # An open interaction is shown to everyone who comes.
        shown = await watcher.asked()
        assert "rm -rf /srv/exports/2024" in shown.prompt + shown.about
    await person.confirm(ask, True)
    seen = await person.settled()
    for watcher in watchers:
        theirs = await watcher.until(lambda seen: bool(seen.outcomes))
        assert theirs.text == seen.text
        assert theirs.outcomes == seen.outcomes
        assert theirs.called("bash").input == seen.called("bash").input
        inputs = theirs.inputs if watcher.dialect != "herm" else await watcher.history()
        shown_words = ["script: approve"] if watcher.shows_words_of(person.dialect) else []
        assert inputs == shown_words or watcher.dialect == "engine"


@scenario("another one answers")
async def test_a_person_of_another_dialect_answers(world: World) -> None:
    person = world.person
    await person.say("script: approve-twice")
    await person.asked()
    others = [await world.join(name) for name in PEOPLE if name != world.frontend][:2]
    for number, (other, yes) in enumerate(zip(others, (True, False), strict=True), start=1):
        await other.until(_asks(number))
        await other.confirm(other.seen.ask, yes)
    seen = await person.settled(turns=1)
    assert "Done, 4.1 GB freed." in seen.text
    assert "Understood, I left /etc/hosts alone." in seen.text
    # And what one of them says next is seen by the first.
    await others[0].settled(turns=1)
    if world.frontend == "engine":
        # The body of its own turn is over: an Engine client looks into the replay.
        await person.attach()
    await others[0].say("thanks from here")
    await person.until(
        lambda seen: "You said: “thanks from here”." in seen.text and seen.state == "rests"
    )


def _asks(number: int) -> Callable[[Seen], bool]:
    return lambda seen: len(seen.asks) == number and seen.state == "asks"


@scenario("two answer at once")
async def test_the_first_of_two_answers_wins(world: World) -> None:
    person = world.person
    await person.say("script: approve")
    ask = await person.asked()
    other = await world.join("eve" if world.frontend != "eve" else "herm")
    theirs = await other.asked()
    results = await asyncio.gather(
        person.confirm(ask, True), other.confirm(theirs, True), return_exceptions=True
    )
    lost = [result for result in results if isinstance(result, Refusal)]
    answers = [one for one in await world.log(ev.InputAccepted) if one.kind == "answer"]
    assert len(answers) == 1
    if answers[0].face == world.frontend or not person.shows_what_came:
        assert len(lost) == 1, results
    assert all(refusal.status in (404, 409) for refusal in lost)
    person._works()
    seen = await person.until(lambda seen: bool(seen.outcomes))
    assert "Done, 4.1 GB freed." in seen.text
    assert len(await world.log(ev.InteractionResolved)) == 1


@scenario("coming back in the middle of a turn", pace=0.05)
async def test_whoever_comes_back_reads_the_same_frames(world: World) -> None:
    person = world.person
    await person.say("script: slow 20")
    await person.until(lambda seen: "tick 3 " in seen.text)
    place = len(person.frames) - 3
    again = asyncio.create_task(person.reread(place))
    await person.settled()
    await world.quiet()
    frames = await again
    assert frames == person.frames[place + 1 :][: len(frames)]
    assert len(frames) >= len(person.frames) - place - 2
    late = await person.reread(0)
    assert late == person.frames[1:][: len(late)]


def test_every_dialect_of_frontends_says_what_comes_of_each_scenario() -> None:
    # Those of `FRONTENDS` have a cell in each row, or the table is not made.
    own = [name for name in served() if name not in FRONTENDS]
    assert [lack for name in own if (lack := lacking(name, brought(name)))] == []


def test_what_a_dialect_lacks_in_the_pairs_is_a_sentence_that_names_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DIALECTS, "new-one", Dialect("new-one"))
    assert lacking("new-one", None).startswith("write tests/new_one/pairs.py: `PERSON`, a subclass")
    given: dict[str, Outcome] = dict.fromkeys(TABLE, NATIVE)
    assert lacking("new-one", (EveFrontend, given)) == ""
    del given["approve"], given["deny"]
    assert lacking("new-one", (EveFrontend, given)) == (
        "tests/new_one/pairs.py: write in `CELLS` what comes of approve, deny"
    )


def test_every_dialect_of_backends_says_what_it_has_and_lacks() -> None:
    assert [lack for name in given_messages() if (lack := backends.lacking(name))] == []
    assert list(PROPERTIES) == given_messages()


def test_a_dialect_of_backends_that_says_nothing_is_told_what_to_write_and_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DIALECTS, "new-one", Dialect("new-one"))
    told = "write tests/new_one/backend.py: `BACKEND`, a `tests.pairs.backends.BackendProperties`"
    assert backends.lacking("new-one").startswith(told)
    with pytest.raises(LookupError, match="says what a backend of `new-one` has and lacks"):
        backends.properties_of("new-one")
    monkeypatch.setattr(backends, "declared", lambda _: PROPERTIES["engine"])
    assert backends.lacking("new-one") == (
        "tests/new_one/backend.py: `BACKEND` is about `engine`, write one about `new-one`"
    )


def test_a_new_backend_needs_its_declaration_and_no_cell() -> None:
    declared = dataclasses.replace(PROPERTIES["engine"], dialect="new-one", lacks="There is no")
    table = table_of({**PROPERTIES, "new-one": declared})
    assert {name: set(row) for name, row in table.items()} == {
        name: {*row, *((frontend, "new-one") for frontend in CELLS[name])}
        for name, row in TABLE.items()
    }
    for name, row in TABLE.items():
        assert {pair: table[name][pair] for pair in row} == row
        for frontend in CELLS[name]:
            # As on an Engine, but where its name is said, or where both sides are one dialect.
            mine, its = table[name][frontend, "new-one"], row[frontend, "engine"]
            if isinstance(its, Says):
                assert mine == Says("There is no")
            elif isinstance(its, Refused):
                assert mine == dataclasses.replace(its, why=its.why.replace("engine:", "new-one:"))
            elif (name, frontend) != ("a schema for the answer", "engine"):
                assert mine == its
    assert table["a custom tool"]["eve", "new-one"] == Says("There is no")
    assert table["interrupt"]["eve", "new-one"] == Refused(
        409, "not_supported", "new-one: `interrupt` is impossible"
    )


def test_a_property_decides_the_cells_that_are_about_it() -> None:
    engine = PROPERTIES["engine"]
    other = dataclasses.replace(
        engine, secrets=True, files=False, interrupt="impossible", title=NATIVE, withdraws=NATIVE
    )
    before, after = table_of({"engine": engine}), table_of({"engine": other})
    assert {name for name in before if before[name] != after[name]} == {
        "files",
        "a message while an approval is open",
        "interrupt denies a held permission",
        "give a secret",
        "give a sudo password",
        "say a secret as a message",
        "decline a secret",
        "a title",
    }


def test_every_row_of_the_table_is_played() -> None:
    modules = (test_messages, test_people)
    assert set(TABLE) == PLAYED, modules
