"""A session goes on at another backend, and its frontends notice nothing but who answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.captures import read_capture
from adapters.engine.client import EngineClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Ability, Fidelity, Support
from adapters.wire.errors import DragomanError, NotSupported
from proxy.base.rows import Chunk
from proxy.migration.moving import move, roll_back
from proxy.session import Session
from tests.migration.support import House
from tests.support.dragoman import Backend, Start, starting
from tests.support.journals import CrashJournal
from tests.support.waiting import asks, settled, until


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[House]]:
    async with starting(House, tmp_path) as start:
        yield start


async def test_the_next_message_goes_to_the_new_backend_with_what_was_said(
    start: Start[House],
) -> None:
    house = await start()
    client = house.eve_client("old", style="S")
    session = await client.create("My dog is called Rex.")
    first = await session.read_turn()
    assert "My dog is called Rex." in (first.text or "")
    moved = await move(house.sessions, session.session_id, to="engine", by="me")
    assert (moved.before, moved.backend, moved.leg, moved.moved) == ("old", "engine", 1, True)
    await session.send("What is my dog called?")
    second = await session.read_turn()
    said = json.loads(house.bodies("engine", "execute")[0])["message"]
    assert "User: My dog is called Rex." in said
    assert "Assistant: You said" in said
    assert said.endswith("What is my dog called?")
    assert "(turn 1)" in (second.text or "")
    assert [one["message"] for one in second.data("message.received")] == ["What is my dog called?"]
    # Once it is there, it is not said again.
    await session.send("And the cat?")
    await session.read_turn()
    said = json.loads(house.bodies("engine", "execute")[1])["message"]
    assert said == "And the cat?"


async def test_what_was_said_goes_over_as_messages_where_all_of_it_is_sent_each_time(
    start: Start[House],
) -> None:
    house = await start("sqlite")
    session = await house.eve_client("old", style="S").create("script: tool")
    await session.read_turn()
    moved = await move(house.sessions, session.session_id, to="runs", by="me")
    told = {one.what: one.fidelity for one in moved.history}
    assert (told["messages of people"], told["tool calls"]) == (Fidelity.EXACT, Fidelity.EXACT)
    assert (moved.characters, session.session_id) == (0, moved.session)
    await house.restart()
    await session.send("And now?")
    turn = await session.read_turn()
    assert "(turn 2)" in (turn.text or "")
    messages = json.loads(house.bodies("runs", "run")[-1])["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[0]["content"] == "script: tool"
    (call,) = messages[1]["toolCalls"]
    assert call["function"]["name"] == "read_file"
    assert messages[2]["toolCallId"] == call["id"]
    assert messages[-1]["content"] == "And now?"
    # And what was said there goes along when it is taken back.
    await roll_back(house.sessions, session.session_id, by="me")
    await session.send("And here?")
    turn = await session.read_turn()
    history, _ = json.loads(house.bodies("old", "message")[-1])["message"]
    assert "And now?" in history["text"]


@pytest.mark.parametrize("to", ["herm", "agents"])
async def test_a_session_that_moved_goes_on_after_a_restart(start: Start[House], to: str) -> None:
    house = await start("sqlite")
    session = await house.eve_client("old", style="S").create("My dog is called Rex.")
    await session.read_turn()
    await move(house.sessions, session.session_id, to=to, by="me")
    await house.restart()
    await session.send("What is my dog called?")
    turn = await session.read_turn()
    assert "My dog is called Rex." in (turn.text or "")
    log = await house.log(session.session_id)
    said = [one.content for one in log if isinstance(one, ev.MessageReceived)]
    assert said[-1] == (ev.Text(text="What is my dog called?"),)


async def test_what_was_said_elsewhere_goes_along_when_a_session_is_taken_back(
    start: Start[House],
) -> None:
    house = await start()
    session = await house.eve_client("old", style="S").create("My dog is called Rex.")
    await session.read_turn()
    await move(house.sessions, session.session_id, to="engine", by="me")
    await session.send("My cat is called Tom.\nscript: text")
    await session.read_turn()
    back = await roll_back(house.sessions, session.session_id, by="me")
    assert (back.before, back.backend, back.leg) == ("engine", "old", 2)
    await session.send("What are they called?")
    turn = await session.read_turn()
    # It is the conversation that it had there, not a new one.
    assert "(turn 2)" in (turn.text or "")
    history, said = json.loads(house.bodies("old", "message")[-1])["message"]
    assert said["text"] == "What are they called?"
    history = history["text"]
    assert "Tom" in history
    assert "Rex" not in history
    # And what was taken back before is not taken back again.
    with pytest.raises(DragomanError, match="nothing to take back"):
        await roll_back(house.sessions, session.session_id, by="me")


async def test_what_was_said_elsewhere_goes_along_to_managed_agents(start: Start[House]) -> None:
    house = await start()
    session = await house.eve_client("agents", style="S").create("My dog is called Rex.")
    await session.read_turn()
    await move(house.sessions, session.session_id, to="engine", by="me")
    await session.send("My cat is called Tom.\nscript: text")
    await session.read_turn()
    await roll_back(house.sessions, session.session_id, by="me")
    await session.send("What are they called?")
    turn = await session.read_turn()
    assert "(turn 2)" in (turn.text or "")
    assert [one["message"] for one in turn.data("message.received")] == ["What are they called?"]
    assert len(house.bodies("agents", "create")) == 1
    (event,) = json.loads(house.bodies("agents", "send")[-1])["events"]
    history, said = (block["text"] for block in event["content"])
    assert said == "What are they called?"
    assert "Tom" in history
    assert "Rex" not in history


async def test_two_moves_are_taken_back_one_after_the_other(start: Start[House]) -> None:
    house = await start()
    session = await house.eve_client("old", style="S").create("One.")
    await session.read_turn()
    for to in ("engine", "herm"):
        await move(house.sessions, session.session_id, to=to, by="me")
        await session.send(f"At {to}.\nscript: text")
        await session.read_turn()
    assert (await roll_back(house.sessions, session.session_id, by="me")).backend == "engine"
    await session.send("Again at engine.\nscript: text")
    turn = await session.read_turn()
    assert "(turn 2)" in (turn.text or "")
    assert (await roll_back(house.sessions, session.session_id, by="me")).backend == "old"
    await session.send("Again at the first.")
    turn = await session.read_turn()
    assert "(turn 2)" in (turn.text or "")
    history = json.loads(house.bodies("old", "message")[-1])["message"][0]["text"]
    assert "At engine." in history
    assert "At herm." in history
    assert "Again at engine." in history
    assert "User: One." not in history


async def test_a_move_after_one_that_was_taken_back_is_taken_back_too(
    start: Start[House],
) -> None:
    house = await start()
    session = await house.eve_client("old", style="S").create("One.")
    await session.read_turn()
    for number in (2, 3):
        await move(house.sessions, session.session_id, to="engine", by="me")
        await session.send("At engine.\nscript: text")
        await session.read_turn()
        back = await roll_back(house.sessions, session.session_id, by="me")
        assert back.backend == "old"
        await session.send("Back.")
        turn = await session.read_turn()
        assert f"(turn {number})" in (turn.text or "")


async def test_a_session_that_was_taken_back_before_it_said_anything_gives_all_later(
    start: Start[House],
) -> None:
    """The history that the second backend never got goes to the third one."""
    house = await start()
    session = await house.eve_client("old", style="S").create("My dog is called Rex.")
    await session.read_turn()
    await move(house.sessions, session.session_id, to="engine", by="me")
    await move(house.sessions, session.session_id, to="herm", by="me")
    await session.send("My cat is called Tom.\nscript: text")
    await session.read_turn()
    await roll_back(house.sessions, session.session_id, by="me")
    await session.send("What are they called?")
    await session.read_turn()
    said = json.loads(house.bodies("engine", "execute")[-1])["message"]
    assert "Rex" in said
    assert "Tom" in said


@pytest.mark.parametrize("to", ["new", "engine", "herm", "agents"])
@pytest.mark.parametrize("face", ["eve", "engine", "herm", "managed-agents"])
async def test_requests_of_both_backends_are_answered(
    start: Start[House], face: str, to: str
) -> None:
    """Their ids may be the same ones."""
    house = await start()
    backend = "engine2" if to == "engine" else "old"
    live = await house.sessions.create(owner="local", route=backend, dialect=face)
    for _ in range(3):
        await say(live, "script: approve")
        await until(lambda: asks(live))
        (request,) = live.open_interactions()
        answer = cmd.AnswerInteraction(request_id=request.request_id, decision="allow")
        await live.submit([answer], by="local", face=face)
        await settled(live)
        if live.leg.number < 2:
            await move(house.sessions, live.id, to=to if live.leg.number == 0 else backend, by="me")
    log = await house.log(live.id)
    asked = [one.request_id for one in log if isinstance(one, ev.InteractionRequested)]
    outcomes = [one.outcome for one in log if isinstance(one, ev.InteractionResolved)]
    ends = [one.outcome for one in log if isinstance(one, ev.TurnEnded)]
    assert len(set(asked)) == 3
    assert outcomes == ["approved"] * 3
    assert ends == ["completed"] * 3


async def say(session: Session, text: str) -> None:
    said = cmd.SendMessage(content=(ev.Text(text=text),), policy="queue")
    await session.submit([said], by="local", face=session.row.dialect)


async def test_nothing_moves_while_something_is_under_way(start: Start[House]) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    # Else the turn comes to its question while the backend is checked.
    (engine,) = [one for one in house.settings.backends if one.name == "engine"]
    await house.sessions.backends.readiness.check(engine)
    await say(live, "script: approve")
    with pytest.raises(DragomanError, match="is at work"):
        await move(house.sessions, live.id, to="engine", by="me")
    await until(lambda: asks(live))
    (request,) = live.open_interactions()
    with pytest.raises(
        DragomanError, match=f"waits for the answer to request `{request.request_id}`"
    ):
        await move(house.sessions, live.id, to="engine", by="me")
    assert [leg.backend for leg in await house.sessions.journal.legs(live.row.key)] == ["old"]


async def test_what_cannot_move_says_why_and_stays(start: Start[House]) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    await say(live, "Hello")
    await settled(live)
    with pytest.raises(DragomanError, match="There is no backend `nowhere`; configured are: `old`"):
        await move(house.sessions, live.id, to="nowhere", by="me")
    with pytest.raises(DragomanError, match="is at backend `old`, not at `new`"):
        await move(house.sessions, live.id, to="herm", expected="new", by="me")
    with pytest.raises(DragomanError, match="has not moved"):
        await roll_back(house.sessions, live.id, by="me")
    await house.stop_backend("engine")
    with pytest.raises(
        DragomanError, match="Backend `engine` is not ready: nothing listens on port"
    ):
        await move(house.sessions, live.id, to="engine", by="me")
    same = await move(house.sessions, live.id, to="old", by="me")
    assert (same.moved, same.leg) == (False, 0)
    would = await move(house.sessions, live.id, to="herm", dry_run=True, by="me")
    assert (would.moved, would.leg, bool(would.history)) == (False, 1, True)
    assert live.leg.number == 0
    await live.submit([cmd.Delete()], by="local", face="eve")
    await until(lambda: live.state.ended is not None)
    with pytest.raises(DragomanError):
        await move(house.sessions, live.id, to="herm", by="me")


async def test_a_message_that_the_new_backend_did_not_get_leaves_the_history_for_the_next(
    start: Start[House],
) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="engine")
    await say(live, "My dog is called Rex.")
    await settled(live)
    await move(house.sessions, live.id, to="engine", by="me")
    await house.stop_backend("engine")
    await say(live, "What is it called?")
    await settled(live)
    await house.start_backend("engine")
    await say(live, "What is it called now?")
    await settled(live)
    said = json.loads(house.bodies("engine", "execute")[-1])["message"]
    assert "My dog is called Rex." in said
    assert said.endswith("What is it called now?")


@pytest.mark.parametrize("to", ["new", "agents"])
async def test_files_go_over_where_the_new_backend_takes_them(start: Start[House], to: str) -> None:
    house = await start()
    picture = {
        "type": "file",
        "data": "data:image/png;base64,iVBORw0KGgo=",
        "mediaType": "image/png",
        "filename": "rex.png",
    }
    parts = [{"type": "text", "text": "This is my dog."}, picture]
    session = await house.eve_client("old", style="S").create(parts)
    await session.read_turn()
    would = await move(house.sessions, session.session_id, to="herm", dry_run=True, by="me")
    (lost,) = [one for one in would.history if one.fidelity == "dropped"]
    assert (lost.what, "only text is carried" in lost.why) == ("file `rex.png`", True)
    await move(house.sessions, session.session_id, to=to, by="me")
    await session.send("What is it?")
    turn = await session.read_turn()
    # The backend tells of the file, and the frontend's own message is what it said.
    assert "image/png" in (turn.text or "")
    assert [one["message"] for one in turn.data("message.received")] == ["What is it?"]


async def test_who_reads_reads_on(start: Start[House]) -> None:
    """A stream that is open while its session moves has no end and no gap."""
    house = await start()
    client = house.herm("herm")
    session = (await client.create())["id"]
    await client.say(session, "Hello")
    await settled(await house.live(session))
    seen: list[str] = []
    stream = client.stream(session)
    reading = asyncio.create_task(collect(stream, seen))
    live = await house.live(session)
    await until(lambda: live.feeds.readers == 1)
    await move(house.sessions, session, to="engine", by="me")
    await client.say(session, "Hello again")
    await until(lambda: "(turn 1)" in "".join(seen))
    assert live.feeds.readers == 1
    reading.cancel()


async def collect(stream: AsyncGenerator[dict[str, Any], None], seen: list[str]) -> None:
    async for envelope in stream:
        seen += [json.dumps(envelope)]


@pytest.mark.parametrize("stored", [False, True])
async def test_a_crash_leaves_a_session_at_one_backend_or_the_other(
    start: Start[House], stored: bool
) -> None:
    journal = CrashJournal()
    house = await start(journal)
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    await say(live, "My dog is called Rex.")
    await settled(live)
    journal.crash_at(1 if stored else 0, confirmed=False)
    moving = asyncio.create_task(move(house.sessions, live.id, to="engine", by="me"))
    await journal.crashed.wait()
    moving.cancel()
    await house.restart()
    live = await house.live(live.id)
    assert (live.leg.number, live.leg.backend) == ((1, "engine") if stored else (0, "old"))
    await say(live, "What is it called?")
    await settled(live)
    text = (await house.texts(live.id))[-1]
    assert ("Rex" in text, "(turn 1)" in text) == (stored, stored)
    assert ("(turn 2)" in text) is not stored


async def test_a_session_that_goes_on_while_it_is_looked_at_does_not_move(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its history would lack what was said meanwhile."""
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    await say(live, "Hello")
    await settled(live)
    scan = house.sessions.journal.scan

    async def slow(key: int) -> AsyncGenerator[Chunk]:
        await say(live, "And more")
        await settled(live)
        async for chunk in scan(key):
            yield chunk

    monkeypatch.setattr(house.sessions.journal, "scan", slow)
    with pytest.raises(DragomanError, match="has gone on meanwhile"):
        await move(house.sessions, live.id, to="engine", by="me")
    assert live.leg.backend == "old"


async def test_a_second_move_to_a_backend_begins_a_conversation_of_its_own(
    start: Start[House],
) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    for to in ("engine", "herm", "engine"):
        await say(live, "script: text")
        await settled(live)
        await move(house.sessions, live.id, to=to, by="me")
    await say(live, "Hello")
    await settled(live)
    assert (await house.texts(live.id))[-1].endswith("(turn 1)")
    tasks = [json.loads(body)["task_id"] for body in house.bodies("engine", "execute")]
    assert tasks == [live.id, f"{live.id}-3"]


async def test_a_second_move_to_managed_agents_begins_a_session_of_its_own(
    start: Start[House],
) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="agents", dialect="eve")
    for to in ("engine", "agents"):
        await say(live, "script: text")
        await settled(live)
        await move(house.sessions, live.id, to=to, by="me")
    await say(live, "Hello")
    await settled(live)
    assert (await house.texts(live.id))[-1].endswith("(turn 1)")
    assert len(house.bodies("agents", "create")) == 2


@pytest.mark.parametrize("to", ["herm", "agents"])
async def test_the_new_backend_is_told_how_the_session_was_made(
    start: Start[House], to: str
) -> None:
    house = await start()
    live = await house.sessions.create(
        owner="local", route="old", dialect="herm", title="Before", metadata={"team": "blue"}
    )
    await say(live, "Hello")
    await settled(live)
    update = cmd.UpdateSession(title="Now")
    await live.submit([update], by="local", face="herm")
    await settled(live)
    await move(house.sessions, live.id, to=to, by="me")
    await say(live, "Hello")
    await settled(live)
    (created,) = [json.loads(body) for body in house.bodies(to, "create")]
    assert (created["title"], created["metadata"]) == ("Now", {"team": "blue"})


async def test_a_recording_goes_on_with_the_log_and_the_frontend(
    start: Start[House], tmp_path: Path
) -> None:
    house = await start("sqlite", settings={"capture": {"dir": str(tmp_path / "captures")}})
    session = await house.eve_client("old", style="S").create("Hello")
    await session.read_turn()
    await move(house.sessions, session.session_id, to="engine", by="me")
    await session.send("Hello again")
    await session.read_turn()
    await house.restart()
    await session.send("And again")
    await session.read_turn()
    await house.stop()
    (file,) = (tmp_path / "captures").rglob("*.ndjson")
    capture = read_capture(file.read_bytes().splitlines(keepends=True), file.name)
    asked = [one.request for one in capture.exchanges if one.request.side == "backend"]
    assert asked
    assert not any("execute" in one.target for one in asked)
    texts = [one for one in capture.log if isinstance(one.event, ev.TextCompleted)]
    assert len(texts) == 3


async def test_what_the_new_backend_cannot_do_is_refused_from_then_on(start: Start[House]) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    await say(live, "Hello")
    await settled(live)
    picture = ev.File(media_type="image/png", ref=ev.Url(url="https://example.org/a.png"))
    said = cmd.SendMessage(content=(picture,), policy="queue")
    await live.submit([said], by="local", face="eve")
    await settled(live)
    await move(house.sessions, live.id, to="herm", by="me")
    with pytest.raises(NotSupported, match="only text is carried"):
        await live.submit([said], by="local", face="eve")
    # Herm is steered at once, and an Engine is not.
    house.backends["engine"] = Backend("engine", {"pace": 5.0})
    await house.stop_backend("engine")
    await house.start_backend("engine")
    await move(house.sessions, live.id, to="engine", by="me")
    await say(live, "script: slow 3")
    await until(lambda: live.state.busy)
    steer = cmd.SendMessage(content=(ev.Text(text="Quick."),), policy="steer")
    await live.submit([steer], by="local", face="eve")
    assert [row.status for row in live.queued()] == ["accepted"]


async def test_a_dialect_that_reads_it_first_now_is_shown_the_backend_of_now(
    start: Start[House],
) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    await say(live, "Hello")
    await settled(live)
    await move(house.sessions, live.id, to="engine", by="me")
    await house.herm("old").list(live.id)
    codecs = {one.dialect: one for one in await house.sessions.journal.codecs(live.row.key)}
    agents = {name: json.loads(one.settings)["agent"] for name, one in codecs.items()}
    assert agents == {"eve": "old", "herm": "engine"}


@pytest.mark.parametrize("backend", ["herm", "agents"])
async def test_a_backend_is_read_on_when_its_session_comes_back(
    start: Start[House], backend: str
) -> None:
    """Also before anybody says something: an agent may speak by itself."""
    house = await start()
    live = await house.sessions.create(owner="local", route=backend, dialect="herm")
    await say(live, "Hello")
    await settled(live)

    def streams() -> int:
        return sum(one.route == "stream" for one in house.scripted[backend].received)

    await move(house.sessions, live.id, to="engine", by="me")
    before = streams()
    await roll_back(house.sessions, live.id, by="me")
    await until(lambda: streams() == before + 1)


async def test_a_backend_that_takes_no_history_gets_new_conversations_only(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineClient, "history", Ability(Support.IMPOSSIBLE, "it has no ears"))
    house = await start()
    live = await house.sessions.create(owner="local", route="old", dialect="eve")
    empty = await move(house.sessions, live.id, to="engine", by="me")
    assert (empty.moved, empty.characters) == (True, 0)
    await move(house.sessions, live.id, to="herm", by="me")
    await say(live, "Hello")
    await settled(live)
    with pytest.raises(NotSupported, match=r"`engine2` of dialect `engine` .*: it has no ears"):
        await move(house.sessions, live.id, to="engine2", by="me")
    assert live.leg.backend == "herm"


async def test_a_session_that_has_ended_stays(start: Start[House]) -> None:
    house = await start()
    live = await house.sessions.create(owner="local", route="new", dialect="eve")
    await say(live, "Hello")
    await settled(live)
    await live.submit([cmd.Reset()], by="local", face="eve")
    await until(lambda: live.state.ended is not None)
    with pytest.raises(DragomanError, match="has ended"):
        await move(house.sessions, live.id, to="engine", by="me")


async def test_a_turn_that_fails_is_told_of_the_backend_that_it_was_at(
    start: Start[House], caplog: pytest.LogCaptureFixture
) -> None:
    house = await start()
    session = await house.eve_client("old", style="S").create("hello")
    await session.read_turn()
    await move(house.sessions, session.session_id, to="engine", by="me")
    await session.send("script: failmid")
    await session.read_turn()
    told = [one for one in caplog.records if one.__dict__.get("kind") == "turn_failed"]
    assert [one.__dict__["backend"] for one in told] == ["engine"]
