"""Messages in all pairs: what is said arrives, what is done is seen, and busy is busy."""

from __future__ import annotations

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.wire.errors import NotSupported
from tests.pairs.cells import Native, Refused
from tests.pairs.frontends import Picture
from tests.pairs.scenario import attempt, scenario
from tests.pairs.world import World

PNG = Picture("image/png", b"\x89PNG\r\n\x1a\nnot much of a picture")


def ticks(count: int) -> str:
    return "".join(f"tick {n} " for n in range(count))


@scenario("a first message")
async def test_a_first_message_starts_a_session(world: World) -> None:
    await world.person.say("script: tool")
    seen = await world.person.settled()
    assert seen.text.startswith("Checking the rounding helper.")
    assert "`to_cents` truncates instead of rounding, so 19.99 becomes 1998." in seen.text
    if world.person.shows_reasoning and world.properties.reasons_aloud:
        assert seen.thinking.startswith("The failing test is about rounding.")
    read = seen.called("read_file")
    assert read.input == {"path": "/workspace/src/money.py"}
    assert read.output is not None
    assert "def to_cents(x):" in read.output
    assert not read.failed
    assert seen.outcomes == ["completed"]


@scenario("a follow-up")
async def test_a_follow_up_meets_the_same_conversation(world: World) -> None:
    await world.person.say("script: text")
    first = await world.person.settled(turns=1)
    assert "Basil likes six hours of sun — a south-facing sill at the café works." in first.text
    await world.person.say("and the thyme?")
    second = await world.person.settled(turns=2)
    assert second.text.endswith("You said: “and the thyme?”. (turn 2)")
    assert second.outcomes == ["completed", "completed"]
    received = await world.log(ev.MessageReceived)
    assert [ev.text_of(event.content) for event in received] == ["script: text", "and the thyme?"]


@scenario("parallel tools")
async def test_parallel_tools_keep_their_own_results(world: World) -> None:
    await world.person.say("script: tools")
    seen = await world.person.settled()
    outputs = {tool.input["path"]: tool.output or "" for tool in seen.tools.values()}
    assert "CREATE TABLE t" in outputs["/workspace/a.sql"]
    assert "DROP TABLE u" in outputs["/workspace/b.sql"]


@scenario("a tool that fails")
async def test_a_tool_that_fails_says_so_and_why(world: World) -> None:
    await world.person.say("script: toolfail")
    seen = await world.person.settled()
    (tool,) = seen.tools.values()
    names = ("gmail.read_thread", "read_thread")
    assert tool.name in (names if world.properties.servers else names[:1])
    assert tool.input == {"thread": "t-9"}
    assert tool.failed
    assert tool.output is not None
    assert "connector token expired" in tool.output
    assert seen.outcomes == ["completed"]


@scenario("a long answer")
async def test_a_long_answer_arrives_whole(world: World) -> None:
    await world.person.say("script: long 400")
    seen = await world.person.settled()
    assert seen.text == f"{ticks(400)} (turn 1)"


@scenario("files")
async def test_a_file_goes_along_or_is_refused_by_name(world: World) -> None:
    person = world.person
    if await attempt(world.expect, lambda: person.say("look", files=[PNG])):
        seen = await person.settled()
        assert f"I received image image/png of {len(PNG.data)} bytes" in seen.text or (
            "image/png" in seen.text
        )
    await person.say("and without?")
    seen = await person.settled()
    assert "You said: “and without?”." in seen.text


@scenario("a schema for the answer")
async def test_a_schema_gets_a_structured_answer_or_a_refusal(world: World) -> None:
    person = world.person
    schema = {"type": "object"}
    if not await attempt(world.expect, lambda: person.say("script: structured", schema=schema)):
        await person.say("script: structured")
    seen = await person.settled()
    if isinstance(world.expect, Native):
        assert {"title": "Towers", "count": 2} in seen.results
    elif (world.frontend, world.backend) == ("engine", "engine"):
        assert any("`output_schema` is not a documented member" in text for text in seen.errors)
    elif world.properties.output_schema or world.properties.results:
        told = '{"title":"Towers","count":2}' in seen.text
        assert told or {"title": "Towers", "count": 2} in seen.results
    else:
        assert "has no structured results." in seen.text


@scenario("a message while a turn runs", pace=0.05)
async def test_a_message_while_a_turn_runs_is_treated_as_the_face_promises(world: World) -> None:
    person = world.person
    await person.say("script: slow 30")
    await person.until(lambda seen: "tick 1 " in seen.text)
    if await attempt(world.expect, lambda: person.say("and then?", policy="queue")):
        seen = await person.settled(turns=2)
        assert seen.text.endswith("You said: “and then?”. (turn 2)")
    else:
        seen = await person.settled(turns=1)
        await person.say("and then?")
        seen = await person.settled(turns=2)
    assert ticks(30) in seen.text
    assert set(seen.outcomes) == {"completed"}


@scenario("steer", pace=0.1)
async def test_steering_reaches_the_work_or_waits_for_its_end(world: World) -> None:
    person = world.person
    await person.say("script: slow 20")
    await person.until(lambda seen: "tick 1 " in seen.text)
    if not await attempt(world.expect, lambda: person.steer("be brief")):
        await person.settled()
        return
    seen = await person.until(lambda seen: "be brief" in seen.text and seen.state == "rests")
    settled = await world.log(ev.InputSettled)
    assert {event.outcome for event in settled} == {"taken"}
    if isinstance(world.expect, Native) and world.properties.joins:
        assert "(Steered: be brief)" in seen.text
        assert seen.outcomes == ["completed"]
    else:
        assert "You said: “be brief”." in seen.text


@scenario("interrupt", pace=0.1)
async def test_an_interrupt_stops_the_turn(world: World) -> None:
    person = world.person
    await person.say("script: slow 30")
    await person.until(lambda seen: "tick 1 " in seen.text)
    if not await attempt(world.expect, person.interrupt):
        seen = await person.settled()
        assert ticks(30) in seen.text
        return
    seen = await person.settled()
    assert seen.outcomes == [world.stopped]
    assert "tick 29" not in seen.text
    await person.say("still there?")
    seen = await person.settled(turns=2)
    assert "You said: “still there?”." in seen.text


@scenario("a message that interrupts", pace=0.1)
async def test_a_message_that_interrupts_is_taken_up_next(world: World) -> None:
    person = world.person
    await person.say("script: slow 30")
    await person.until(lambda seen: "tick 1 " in seen.text)
    session = await world.session()
    message = cmd.SendMessage(content=(ev.Text(text="now this"),), policy="interrupt")
    if isinstance(world.expect, Refused):
        before = len(await world.log())
        with pytest.raises(NotSupported, match=world.expect.why):
            await session.submit([message], by="anyone", face="test")
        accepted = await world.log(ev.InputAccepted)
        assert len(await world.log()) >= before
        assert len(accepted) == 1
        await person.settled()
        return
    (command_id,) = await session.submit([message], by="anyone", face="test")
    if world.frontend == "engine":
        # The body of its own turn ends with that turn: what follows is in the replay.
        await person.settled(turns=1)
        await person.attach()
    seen = await person.settled(turns=2)
    assert seen.outcomes == [world.stopped, "completed"]
    assert "You said: “now this”." in seen.text
    assert "tick 29" not in seen.text
    received = await world.log(ev.MessageReceived)
    assert received[-1].command_id == command_id
