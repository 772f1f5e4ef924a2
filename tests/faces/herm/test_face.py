"""Whole conversations of strict Herm clients with the Herm face, on a Herm and on an Engine."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from adapters.herm import wire
from adapters.model import events as ev
from adapters.model.commands import AnswerInteraction, Sealed
from proxy.base.errors import InteractionConflict
from proxy.faces import stream as herm
from proxy.scripted.faults import Faults, Silence
from proxy.scripted.herm_turns import HermVariant
from proxy.session import told
from proxy.session.snapshots import SNAPSHOT_ENTRIES
from tests.faces.herm.conftest import Serve
from tests.support.herm_client import (
    Envelope,
    Expect,
    HermClient,
    HermTurn,
    Refused,
    check_join,
    message,
)
from tests.support.keys import key_of
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, asks, settled, until

ALLOW = {"type": "user.tool_confirmation", "result": "allow"}
DENY = {"type": "user.tool_confirmation", "result": "deny"}


async def joined(client: HermClient, session: str, turn: HermTurn) -> None:
    """Check that the list is what the stream was."""
    check_join(turn.envelopes, await client.list(session))


@pytest.mark.parametrize("backend", ["herm", "engine"])
@pytest.mark.parametrize(
    ("script", "answers", "text"),
    [
        ("text", (), "Basil likes six hours of sun"),
        ("reason", (), "`to_cents` truncates instead of rounding"),
        ("tool", (), "so 19.99 becomes 1998."),
        ("tools", (), "One risk found: b.sql drops table u without a guard."),
        ("toolfail", (), "The mail connector must be connected again."),
        ("approve", (ALLOW,), "Done, 4.1 GB freed."),
        ("approve", (DENY,), "I left /srv/exports/2024 alone."),
        ("approve2", (ALLOW, DENY), "I left /etc/hosts alone."),
        ("approve-twice", (ALLOW, DENY), "I left /etc/hosts alone."),
        ("ask", ({"type": "user.clarify_result", "answer": "09:10"},), "a seat on the 09:10."),
        ("askopen", ({"type": "user.clarify_result", "answer": "Ada"},), "carries the name Ada."),
        ("long 300", (), "tick 299 "),
    ],
)
async def test_a_herm_client_holds_every_conversation(
    serve: Serve, backend: str, script: str, answers: tuple[Envelope, ...], text: str
) -> None:
    house = await serve()
    client = house.client(backend)
    session = (await client.create(backend if backend == "engine" else "agent_K4"))["id"]
    turn = await client.turn(session, f"script: {script}", answers)
    assert text in turn.text
    assert turn.text.endswith("(turn 1)")
    assert turn.stop_reason == {"type": "end_turn"}
    await joined(client, session, turn)
    again = await client.turn(session, "still there?")
    assert again.text == "You said: “still there?”. (turn 2)"


async def test_what_only_herm_asks_is_answered_over_herm(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    custom = {
        "type": "user.custom_tool_result",
        "content": [{"type": "text", "text": "12 pots"}],
    }
    turn = await client.turn(session, "script: custom", [custom])
    assert "The application says: 12 pots" in turn.text
    assert turn.payloads("agent.tool_result") == []
    turn = await client.turn(
        session, "script: secret", [{"type": "user.secret_result", "value": "hunter2-s"}]
    )
    assert "The token works." in turn.text
    turn = await client.turn(
        session, "script: sudo", [{"type": "user.sudo_result", "password": "hunter2-p"}]
    )
    assert "The update is installed." in turn.text
    turn = await client.turn(
        session, "script: secret", [{"type": "user.secret_result", "value": ""}]
    )
    assert "Without a token I stop here." in turn.text
    turn = await client.turn(session, "script: child")
    sent, received = turn.payloads("agent.thread_message_sent", "agent.thread_message_received")
    assert sent["name"] == received["name"] == "researcher"
    assert received["content"][0]["text"] == "The north tower is 84 m tall."


@pytest.mark.parametrize("journal", ["memory:", "sqlite"])
async def test_children_of_two_sessions_may_have_one_name(
    serve: Serve, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await serve(journal)
    new_id = house.herm.new_id
    monkeypatch.setattr(
        house.herm, "new_id", lambda kind: "thread_1" if kind == "thread" else new_id(kind)
    )
    client = house.client()
    sessions = [(await client.create())["id"] for _ in "ab"]
    for session in sessions:
        turn = await client.turn(session, "script: child")
        assert len(turn.payloads("agent.thread_message_received")) == 1
    found = []
    for path in (*(f"{one}/subagents/c/thread_1" for one in sessions), "thread_1"):
        address = f"{house.face('eve', 'herm')}/eve/v1/session/{path}/stream?follow=0"
        async with house.http.get(address) as answer:
            assert answer.status == 200
            found.append(await answer.text())
    # Without the name of its parent it is the newest.
    assert found[0] != found[1] == found[2]


async def test_a_sealed_value_reaches_the_backend_and_nothing_else(
    serve: Serve, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    house = await serve("sqlite")
    client = house.client()
    session = (await client.create())["id"]
    secret = "correct-horse-battery"
    turn = await client.turn(
        session, "script: sudo", [{"type": "user.sudo_result", "password": secret}]
    )
    assert "The update is installed." in turn.text
    assert [secret.encode() in body for body in house.posts()].count(True) == 1
    listed = await client.list(session)
    assert secret not in json.dumps(listed)
    (shown,) = [seen for seen in listed if seen["type"] == "user.sudo_result"]
    assert shown["payload"].keys() == {"type", "request_id"}
    await house.stop()
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()
    assert secret not in caplog.text


async def test_scopes_reach_the_backend(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    turn = await client.turn(session, "script: approve", [{**ALLOW, "scope": "session"}])
    assert "I remember this: session." in turn.text
    (posted,) = [body for body in house.posts() if b"tool_confirmation" in body]
    assert json.loads(posted)["events"][0]["scope"] == "session"


async def test_same_dialect_in_and_out_is_equal_but_for_what_is_ours(
    serve: Serve,
) -> None:
    house = await serve(herm={"variant": HermVariant(strict=False)})
    scripts = ("tool", "toolfail", "approve", "ask", "custom", "child", "failmid", "unknown")
    expect = Expect(known_types=False)
    answers = {
        "approve": [ALLOW],
        "ask": [{"type": "user.clarify_result", "answer": "07:40"}],
        "custom": [{"type": "user.custom_tool_result", "content": [{"type": "text", "text": "1"}]}],
    }
    straight = await _played(house.direct(expect), scripts, answers)
    through = await _played(house.client(expect=expect), scripts, answers)
    assert through == straight


async def _played(
    client: HermClient, scripts: tuple[str, ...], answers: dict[str, Any]
) -> list[Envelope]:
    """Return the payloads of some scripts with the ids that number runs replaced."""
    session = (await client.create())["id"]
    names: dict[str, str] = {}
    out: list[Envelope] = []

    def mask(value: Any) -> Any:
        match value:
            case dict():
                return {key: mask(item) for key, item in value.items()}
            case list():
                return [mask(item) for item in value]
            case str() if value.startswith(("toolu_", "custom_toolu_", "req_", "thread_")):
                return names.setdefault(value, f"id{len(names)}")
            case _:
                return value

    for script in scripts:
        turn = await client.turn(session, f"script: {script}", answers.get(script, ()))
        out += [mask(seen["payload"]) for seen in turn.envelopes]
    return [payload for payload in out if payload["type"] != "session.title_updated"]


# The stream.


async def test_replay_after_any_id_equals_live(serve: Serve) -> None:
    house = await serve("sqlite")
    client = house.client()
    session = (await client.create())["id"]
    held: list[Envelope] = []
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: tool")
        async for seen in stream:
            held.append(seen)
            if seen["type"] == "session.title_updated":
                break
    for _ in range(2):
        for place in (0, 1, 3, len(held) // 2, len(held) - 2):
            async with aclosing(client.stream(session, held[place]["id"])) as stream:
                await anext(stream)
                again = [await anext(stream) for _ in held[place + 1 :]]
            assert again == held[place + 1 :]
        await house.restart()
        client = house.client()
    by_number = client.stream(session, query=f"?after={held[1]['sequence']}")
    async with aclosing(by_number) as stream:
        await anext(stream)
        assert await anext(stream) == held[2]


async def test_a_stream_without_a_position_is_live(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    first = await client.turn(session, "one")
    second = await client.turn(session, "two")
    assert not {seen["id"] for seen in first.envelopes} & {s["id"] for s in second.envelopes}
    numbers = [seen["sequence"] for seen in (*first.envelopes, *second.envelopes)]
    assert numbers == sorted(set(numbers))


async def test_lists_page_in_both_orders_and_show_inputs_once(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    turn = await client.turn(session, "script: approve", [ALLOW])
    whole = await client.list(session)
    assert [seen["type"] for seen in whole if seen["type"].startswith("user.")] == [
        "user.message",
        "user.tool_confirmation",
    ]
    assert all(seen["status"] == "complete" for seen in whole)
    assert await client.list(session, limit=2) == whole
    assert await client.list(session, limit=3, order="desc") == whole[::-1]
    asked = turn.payloads("agent.tool_use")[0]["id"]
    after = next(seen for seen in whole if seen["payload"].get("id") == asked)
    assert await client.list(session, after=after["id"]) == whole[whole.index(after) + 1 :]
    assert (
        await client.list(session, after=str(after["sequence"]))
        == (whole[whole.index(after) + 1 :])
    )


# Inputs.


async def test_a_message_is_refused_while_a_turn_runs_and_while_it_waits(
    serve: Serve,
) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]

    def answers(turn: HermTurn) -> list[Envelope]:
        return [ALLOW]

    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: approve")
        async for seen in stream:
            if seen["type"] == "session.status_idle":
                break
        with pytest.raises(Refused) as refused:
            await client.say(session, "hello?")
        assert (refused.value.status, refused.value.code) == (409, "turn_running")
        ids = seen["payload"]["stop_reason"]["event_ids"]
        await client.post(session, {**answers(HermTurn())[0], "tool_use_id": ids[0]})
        with pytest.raises(Refused) as refused:
            await client.post(session, {**DENY, "tool_use_id": ids[0]})
        assert (refused.value.status, refused.value.code) == (409, "already_answered")
        with pytest.raises(Refused) as refused:
            await client.post(session, {**DENY, "tool_use_id": "toolu_none"})
        assert (refused.value.status, refused.value.code) == (400, "unknown_request")


async def test_a_batch_is_refused_as_a_whole(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    before = await client.list(session)
    with pytest.raises(Refused) as refused:
        await client.post(session, message("hi"), {"type": "user.dance"})
    assert (refused.value.status, refused.value.code) == (400, "validation_error")
    assert await client.list(session) == before
    assert house.posts() == []


async def test_steering_reaches_the_running_turn(serve: Serve) -> None:
    house = await serve(herm={"pace": 1.0})
    client = house.client()
    session = (await client.create())["id"]
    turn = HermTurn()
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: slow 6")
        async for seen in stream:
            turn.envelopes.append(seen)
            if len(turn.payloads("agent.message")) == 2:
                (steer,) = await client.post(
                    session, {"type": "user.steer", "message": "in French"}
                )
                assert steer["payload"] == {"type": "user.steer", "message": "in French"}
            if seen["type"] == "session.status_idle":
                break
    assert "(Steered: in French)" in turn.text
    shown = [seen["type"] for seen in await client.list(session)]
    assert shown.count("user.steer") == 1
    assert any(isinstance(event, ev.GuidanceReceived) for event in await house.log(session))


@pytest.mark.parametrize("reason", ["end_turn", "error"])
async def test_an_interrupt_stops_the_turn(serve: Serve, reason: Any) -> None:
    house = await serve(herm={"pace": 1.0, "variant": HermVariant(interrupt_reason=reason)})
    client = house.client()
    session = (await client.create())["id"]
    seen: Envelope = {}
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: slow 100")
        async for seen in stream:
            if seen["type"] == "agent.message":
                break
        await client.post(session, {"type": "user.interrupt", "message": "enough"})
        async for seen in stream:
            if seen["type"] == "session.status_idle":
                break
    assert seen["payload"]["stop_reason"]["type"] == "end_turn"
    (ended,) = [e for e in await house.log(session) if isinstance(e, ev.TurnEnded)]
    assert ended.outcome == "interrupted"
    again = await client.turn(session, "go on")
    assert again.text.endswith("(turn 2)")


async def test_an_interrupt_and_a_message_in_one_batch_follow_each_other(
    serve: Serve,
) -> None:
    house = await serve(herm={"pace": 1.0})
    client = house.client()
    session = (await client.create())["id"]
    ends: list[Envelope] = []
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: slow 100")
        async for seen in stream:
            if seen["type"] == "agent.message":
                break
        await client.post(session, {"type": "user.interrupt"}, message("other"))
        async for seen in stream:
            ends += [seen] if seen["type"] == "session.status_idle" else []
            if len(ends) == 2:
                break
    said = [body for body in house.posts() if b"user.message" in body]
    assert len(said) == 2


async def test_what_an_engine_cannot_do_is_refused_in_herms_form(
    serve: Serve,
) -> None:
    house = await serve()
    client = house.client("engine")
    session = (await client.create("engine"))["id"]
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: ask")
        async for seen in stream:
            if seen["type"] == "session.status_idle":
                break
    with pytest.raises(Refused) as refused:
        await client.post(session, {"type": "user.interrupt"})
    assert (refused.value.status, refused.value.code) == (400, "not_supported")
    assert "engine" in refused.value.body["error"]["message"]


async def test_a_repeated_request_with_its_key_is_one(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    headers = {"Idempotency-Key": "k-1"}
    path, body = f"/v1/sessions/{session}/events", {"events": [message("hi")]}
    first, second = await asyncio.gather(
        client.call("POST", path, body, headers=headers),
        client.call("POST", path, body, headers=headers),
    )
    assert first[1]["data"][0]["id"] == second[1]["data"][0]["id"]
    await settled(await house.live(session))
    assert len(house.posts()) == 1


# Sessions.


async def test_a_second_answer_is_refused_while_a_sealed_one_is_on_its_way(
    serve: Serve,
) -> None:
    house = await serve(herm={"faults": Faults({("post", 2): Silence()})})
    client = house.client()
    session = (await client.create("herm"))["id"]
    await client.say(session, "script: secret")
    live = await house.live(session)
    await until(lambda: asks(live))
    answer = AnswerInteraction(request_id=next(iter(live.state.interactions)), sealed=Sealed("pw"))
    await live.submit([answer], by="ann", face="herm")
    await until(lambda: len(house.posts()) == 2)
    with pytest.raises(InteractionConflict, match="under way"):
        await live.submit([answer], by="ann", face="herm")


async def test_a_change_of_a_session_that_somebody_deletes_meanwhile_finds_it_gone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The backend's silence does not end it, however slow the machine.
    monkeypatch.setattr("proxy.sessions.sessions.SETTLE_SECONDS", SOON_S)
    house = await serve(herm={"faults": Faults({("update", 1): Silence(done=False)})})
    client = house.client()
    session = (await client.create())["id"]
    await client.turn(session, "hello")
    change = asyncio.create_task(client.call("PATCH", f"/v1/sessions/{session}", {"title": "x"}))
    await until(lambda: len(house.posts("update")) == 1)
    url = f"http://{HOST}:{house.port}/api/v1/sessions/{session}?local=1"
    async with house.http.delete(url) as response:
        assert response.status == 200
    with pytest.raises(Refused) as refused:
        await change
    assert refused.value.status == 404


async def test_a_session_is_gone_while_it_is_being_erased(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, erased = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr("proxy.sessions.sessions.SETTLE_SECONDS", SOON_S)
    house = await serve(herm={"faults": Faults({("update", 1): Silence(done=False)})})
    delete = house.sessions.journal.delete

    async def slow(session: int, *, at: int) -> None:
        begun.set()
        await erased.wait()
        await delete(session, at=at)

    monkeypatch.setattr(house.sessions.journal, "delete", slow)
    client = house.client()
    session = (await client.create())["id"]
    await client.turn(session, "hello")
    change = asyncio.create_task(client.call("PATCH", f"/v1/sessions/{session}", {"title": "x"}))
    await until(lambda: len(house.posts("update")) == 1)
    url = f"http://{HOST}:{house.port}/api/v1/sessions/{session}?local=1"
    deletion = asyncio.create_task(house.http.delete(url))
    await begun.wait()
    with pytest.raises(Refused) as refused:
        await change
    assert refused.value.status == 404
    erased.set()
    async with await deletion as response:
        assert response.status == 200


async def test_what_a_session_was_told_is_known_also_when_its_log_has_grown_long(
    serve: Serve,
) -> None:
    house = await serve()
    client = house.client("engine")
    session = (await client.create("engine", metadata={"ticket": "A-17"}))["id"]
    await client.call("PATCH", f"/v1/sessions/{session}", {"metadata": {"x": 1}})
    await client.turn(session, "script: long 400")
    # By then what was told is in a snapshot of the state.
    live = await house.live(session)
    await settled(live)
    about, after = await told(house.sessions.journal, live.row)
    assert after == 0
    row = await house.sessions.journal.session(session)
    async with asyncio.timeout(SOON_S):
        while not after:
            about, after = await told(house.sessions.journal, row)
    assert about.metadata == {"ticket": "A-17", "x": 1}
    assert after > SNAPSHOT_ENTRIES // 2
    assert (await client.get(session))["metadata"] == {"ticket": "A-17", "x": 1}


async def test_a_title_stays_however_often_something_else_changed(serve: Serve) -> None:
    house = await serve("sqlite")
    client = house.client("engine")
    session = (await client.create("engine", title="Plan", metadata={"x": 0, "kept": 1}))["id"]
    live = await house.live(session)
    for number in range(600):
        update = ev.SessionUpdated(thread_id=ev.MAIN, metadata={"x": number})
        await live.tell([update])
    for _ in range(2):
        _, listed = await client.call("GET", "/v1/sessions")
        for one in (await client.get(session), *listed["data"]):
            assert (one["title"], one["metadata"]) == ("Plan", {"x": 599, "kept": 1})
        await house.restart()
        client = house.client("engine")


async def test_metadata_has_a_bound_that_many_small_changes_do_not_pass(serve: Serve) -> None:
    house = await serve()
    client = house.client("engine")
    session = (await client.create("engine"))["id"]
    for part in "ab":
        piece = {f"{part}{number}": "x" * 1000 for number in range(30)}
        await client.call("PATCH", f"/v1/sessions/{session}", {"metadata": piece})
    before = (await client.get(session))["metadata"]
    assert len(before) == 60
    more = {"c": "x" * 10_000}
    with pytest.raises(Refused) as refused:
        await client.call("PATCH", f"/v1/sessions/{session}", {"metadata": more})
    assert refused.value.status == 413
    assert "null" in str(refused.value)
    assert (await client.get(session))["metadata"] == before
    # What is taken away makes room.
    change = {**dict.fromkeys(before), **more}
    await client.call("PATCH", f"/v1/sessions/{session}", {"metadata": change})
    assert (await client.get(session))["metadata"] == more
    with pytest.raises(Refused) as refused:
        # As small as the body is, the value is not.
        await client.create("engine", metadata={f"k{n}": 1e15 for n in range(4_000)})
    assert refused.value.status == 413


@pytest.mark.parametrize("backend", ["herm", "engine"])
async def test_a_session_is_described_changed_archived_and_deleted(
    serve: Serve, backend: str
) -> None:
    house = await serve()
    client = house.client(backend)
    made = await client.create(
        backend, userId="u-7", title="Autumn plan", metadata={"ticket": "A-17"}
    )
    session = made["id"]
    assert (made["userId"], made["title"], made["status"]) == ("u-7", "Autumn plan", "idle")
    await client.turn(session, "hi")
    got = await client.get(session)
    assert [m["role"] for m in got["messages"]] == ["user", "agent"]
    assert got["messages"][1]["content"][0]["text"].startswith("You said: “hi”")
    _, changed = await client.call(
        "PATCH", f"/v1/sessions/{session}", {"title": "Winter", "metadata": {"x": 1}}
    )
    assert (changed["title"], changed["metadata"]) == ("Winter", {"ticket": "A-17", "x": 1})
    _, found = await client.call("GET", "/v1/sessions", params={"userId": "u-7"})
    assert [item["id"] for item in found["data"]] == [session]
    _, found = await client.call("GET", "/v1/sessions", params={"metadata[ticket]": "A-17"})
    assert [item["id"] for item in found["data"]] == [session]
    _, found = await client.call("GET", "/v1/sessions", params={"userId": "other"})
    assert found["data"] == []
    _, archived = await client.call("POST", f"/v1/sessions/{session}/archive")
    assert archived["status"] == "archived"
    _, found = await client.call("GET", "/v1/sessions")
    assert found["data"] == []
    with pytest.raises(Refused) as refused:
        await client.say(session, "hello?")
    assert (refused.value.status, refused.value.code) == (409, "archived")
    status, _ = await client.call("DELETE", f"/v1/sessions/{session}")
    assert status == 204
    for path in ("", "/events", "/events/stream"):
        with pytest.raises(Refused) as refused:
            await client.call("GET", f"/v1/sessions/{session}{path}")
        assert (refused.value.status, refused.value.code) == (404, "not_found")
    if backend == "herm":
        assert house.herm.talks == {}


async def test_what_a_backend_has_no_word_for_is_kept_here_and_never_on_its_way_to_it(
    serve: Serve,
) -> None:
    house = await serve()
    client = house.client("engine")
    session = (await client.create("engine"))["id"]
    await client.turn(session, "hi")
    live = await house.sessions.get(session, owner=None, route=None)
    await until(lambda: live.idle)

    await client.call("PATCH", f"/v1/sessions/{session}", {"title": "Winter"})

    assert (await client.get(session))["title"] == "Winter"
    assert live.idle
    # Nobody refused it afterwards.
    assert live.repairs == {}
    assert await house.sessions.journal.commands(live.row.key) == []
    assert [received.route for received in house.scripted["engine"].received] == ["execute"]


async def test_the_backend_hears_how_the_session_was_made(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create(userId="u-1", title="T", metadata={"k": "v"}))["id"]
    assert house.posts("create") == []
    await client.turn(session, "hi")
    assert [json.loads(body) for body in house.posts("create")] == [
        {"userId": "u-1", "title": "T", "metadata": {"k": "v"}}
    ]
    other = (await client.create())["id"]
    await client.turn(other, "hi")
    assert json.loads(house.posts("create")[1]) == {"userId": "team_blue"}


async def test_sessions_page_newest_first(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    made = [(await client.create())["id"] for _ in range(5)]
    seen: list[str] = []
    params = {"limit": "2"}
    while True:
        _, page = await client.call("GET", "/v1/sessions", params=params)
        seen += [item["id"] for item in page["data"]]
        if page["nextCursor"] is None:
            break
        params["cursor"] = page["nextCursor"]
    assert seen == made[::-1]


async def test_a_list_of_what_is_rare_leads_on_page_by_page(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who asks for what is not there must not have all sessions looked into for one answer.
    monkeypatch.setattr(wire, "LIMIT_MOST", 2)
    monkeypatch.setattr(herm, "LOOKED_SECONDS", 0)
    house = await serve()
    client = house.client()
    oldest = (await client.create(metadata={"rare": "yes"}))["id"]
    for _ in range(4):
        await client.create()
    pages: list[list[str]] = []
    params = {"limit": "2", "metadata[rare]": "yes"}
    while True:
        _, page = await client.call("GET", "/v1/sessions", params=params)
        pages.append([item["id"] for item in page["data"]])
        if page["nextCursor"] is None:
            break
        params["cursor"] = page["nextCursor"]
    assert pages == [[], [], [], [], [oldest], []]


async def test_the_one_agent_of_a_route_is_found(serve: Serve) -> None:
    house = await serve()
    client = house.client()
    _, found = await client.call("GET", "/v1/agents")
    (agent,) = found["data"]
    assert agent["id"] == "agent_K4"
    assert (await client.call("GET", "/v1/agents/agent_K4"))[1] == agent
    for path in ("/v1/agents/agent_other", "/v1/nothing", "/v1/deployments"):
        with pytest.raises(Refused) as refused:
            await client.call("GET", path)
        assert (refused.value.status, refused.value.code) == (404, "not_found")
    with pytest.raises(Refused) as refused:
        await client.create("agent_other")
    assert refused.value.status == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/agents", 501, "not_supported"),
        ("PATCH", "/v1/agents/agent_K4", 501, "not_supported"),
        ("DELETE", "/v1/agents/agent_K4", 501, "not_supported"),
        ("POST", "/v1/agents/agent_K4/archive", 501, "not_supported"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("DELETE", "/v1/sessions/x/events", 405, "method_not_allowed"),
        ("POST", "/v1/deployments", 404, "not_found"),
    ],
)
async def test_what_is_not_served_says_so(
    serve: Serve, method: str, path: str, status: int, code: str
) -> None:
    house = await serve()
    with pytest.raises(Refused) as refused:
        await house.client().call(method, path)
    assert (refused.value.status, refused.value.code) == (status, code)


async def test_another_key_sees_nothing_of_a_session(serve: Serve) -> None:
    house = await serve(settings={"keys": [key_of("ann"), key_of("bob")]})
    ann, bob = house.client(key="k-ann"), house.client(key="k-bob")
    session = (await ann.create())["id"]
    calls: tuple[tuple[str, str, Any], ...] = (
        ("GET", "", None),
        ("PATCH", "", {"title": "x"}),
        ("DELETE", "", None),
        ("POST", "/archive", None),
        ("GET", "/events", None),
        ("GET", "/events/stream", None),
        ("POST", "/events", {"events": [message("hi")]}),
    )
    for method, path, body in calls:
        with pytest.raises(Refused) as refused:
            await bob.call(method, f"/v1/sessions/{session}{path}", body)
        assert (refused.value.status, refused.value.code) == (404, "not_found")
    assert (await bob.call("GET", "/v1/sessions"))[1]["data"] == []
    with pytest.raises(Refused) as refused:
        await house.client().call("GET", "/v1/sessions")
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")
