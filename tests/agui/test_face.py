"""The AG-UI face over HTTP: what is new of a conversation, threads, interrupts, and refusals."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from proxy.base.metrics import REGISTRY
from tests.support.agui_client import AguiClient, Applied, Checker, Refused, split
from tests.support.alone import Alone
from tests.support.clocks import SPEED
from tests.support.dragoman import starts
from tests.support.strictness import ProtocolViolation
from tests.support.waiting import SOON_S, settled, until


class Face(Alone):
    """A Dragoman as AG-UI frontends see it."""

    def __init__(self, journal: Any, *, dialect: str = "engine", pace: float = 0.0) -> None:
        speed = 1.0 if pace else SPEED
        super().__init__(journal, dialect=dialect, options={"pace": pace}, speed=speed)

    @property
    def url(self) -> str:
        return self.face("agui", self.dialect)


serve = starts(Face)


class Talk:
    """A client with its history; `declared` says that it is one of 1.0."""

    def __init__(self, face: Face, thread: str = "t-1", *, declared: bool = True) -> None:
        self.client = AguiClient(face.http, face.url)
        self.thread = thread
        self.more = {} if declared else {"protocolVersion": None}
        self.applied = Applied()
        self.runs = 0

    async def run(self, *messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        self.runs += 1
        sent = [*self.applied.messages, *messages]
        self.applied.messages += messages
        seen = []
        name = more.pop("run", f"run-{self.runs}")
        events = self.client.run(self.thread, name, sent, **self.more, **more)
        async with asyncio.timeout(SOON_S), aclosing(events) as body:
            async for event in body:
                self.applied.apply(event)
                seen.append(event)
        return seen

    async def say(self, words: str, message_id: str, **more: Any) -> list[dict[str, Any]]:
        return await self.run(user(words, message_id), **more)


def user(words: str, message_id: str) -> dict[str, Any]:
    return {"id": message_id, "role": "user", "content": words}


def entry(interrupt: dict[str, Any], payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}


def named(seen: list[dict[str, Any]], name: str) -> list[Any]:
    return [event["value"] for event in seen if event.get("name") == f"dragoman.{name}"]


@pytest.fixture
async def face(serve: Any) -> Face:
    started: Face = await serve("memory:")
    return started


def said(face: Face) -> list[str]:
    sent = [json.loads(one.body) for one in face.backend.received if one.route == "execute"]
    return [one["message"] for one in sent]


async def test_a_history_is_not_said_again(face: Face) -> None:
    talk = Talk(face)
    await talk.say("one", "u1")
    seen = await talk.say("two", "u2")
    assert [m["id"] for m in seen[0]["input"]["messages"]] == ["u2"]
    assert said(face) == ["one", "two"]
    thin = Talk(face)
    await thin.say("three", "u3")
    assert said(face) == ["one", "two", "three"]


async def test_the_base_url_has_a_slash_at_its_end_or_none(face: Face) -> None:
    talk = Talk(face)
    await talk.say("one", "u1")
    talk.client.url += "/"
    await talk.say("two", "u2")
    assert said(face) == ["one", "two"]


async def test_a_regenerated_answer_is_the_words_once_more(face: Face) -> None:
    talk = Talk(face)
    await talk.say("one", "u1")
    again = Talk(face)
    again.runs = 1
    seen = await again.say("one", "u1")
    assert seen[-1]["outcome"] == {"type": "success"}
    edited = Talk(face)
    edited.runs = 2
    await edited.say("two, but better", "u1")
    assert said(face) == ["one", "one", "two, but better"]


async def test_a_regenerated_answer_takes_the_place_of_the_first_where_all_is_sent(
    serve: Any,
) -> None:
    face: Face = await serve("memory:", dialect="agui")
    talk = Talk(face)
    await talk.say("one", "u1")
    await talk.say("two", "u2")
    again = Talk(face)
    again.runs = 2
    await again.say("two, but better", "u2")
    bodies = [json.loads(one.body) for one in face.backend.received]
    sent = [[m["content"] for m in b["messages"] if m["role"] == "user"] for b in bodies]
    assert sent == [["one"], ["one", "two"], ["one", "two, but better"]]
    assert "(turn 2)" in again.applied.messages[-1]["content"]


async def test_the_same_request_again_is_a_repeat(face: Face) -> None:
    first = await Talk(face).say("one", "u1")
    assert await Talk(face).say("one", "u1") == first
    assert said(face) == ["one"]


async def test_a_conversation_is_as_long_as_it_is(face: Face) -> None:
    talk = Talk(face)
    await talk.say("one", "u1")
    old = [
        {"id": f"old-{n}", "role": role, "content": "x" * 20_000}
        for n in range(50)
        for role in ("user", "assistant")
    ]
    talk.applied.messages = [*old, *talk.applied.messages]
    await talk.say("two", "u2")
    assert said(face) == ["one", "two"]
    with pytest.raises(Refused) as caught:
        await talk.say("x" * 2_000_000, "u3")
    assert (caught.value.status, caught.value.code) == (413, "too_large")
    assert len(said(face)) == 2


async def test_what_was_said_before_a_thread_is_reported_and_not_said(face: Face) -> None:
    talk = Talk(face)
    before = [user("long ago", "a"), {"id": "b", "role": "assistant", "content": "Yes."}]
    seen = await talk.run(*before, user("one", "u1"))
    assert said(face) == ["one"]
    assert named(seen, "ignored")[0]["members"] == ["messages"]


async def test_members_without_a_place_never_refuse_a_run(face: Face) -> None:
    talk = Talk(face)
    more: dict[str, Any] = {
        "tools": [{"name": "pick", "description": "Pick.", "parameters": {}}],
        "state": {"a": 1},
        "context": [{"description": "The page", "value": "money.py"}],
    }
    first = await talk.say("one", "u1", **more)
    assert named(first, "ignored")[0]["members"] == ["tools", "state"]
    second = await talk.say("two", "u2", **more)
    assert named(second, "ignored") == []
    more["context"] = [{"description": "The page", "value": "tax.py"}]
    await talk.say("three", "u3", **more)
    words = said(face)
    assert "The page: money.py" in words[0]
    assert words[0].endswith("one")
    assert words[1] == "two"
    assert "The page: tax.py" in words[2]


async def test_an_answer_behind_a_call_of_the_agent_is_given_again(face: Face) -> None:
    talk = Talk(face)
    await talk.say("script: tool", "u1")
    *before, result, _ = talk.applied.messages
    assert result["role"] == "tool"
    for number in range(2):
        again = Talk(face)
        again.runs = 1 + number
        again.applied = Applied([*before, result])
        seen = await again.run()
        assert seen[0]["input"]["messages"][0]["id"] == "u1"
        assert said(face) == ["script: tool"] * (2 + number)


async def test_an_answer_behind_an_ask_that_was_shown_as_a_call_is_given_again(face: Face) -> None:
    talk = Talk(face, declared=False)
    await talk.say("script: approve", "u1")
    (asked,) = talk.applied.interrupts
    await talk.run(resume=[entry(asked, {"approved": True})])
    messages = talk.applied.messages
    results = [at for at, one in enumerate(messages) if one["role"] == "tool"]
    # A client has the results behind their calls: that of the ask is the last one.
    (told,) = [at for at in results if messages[at]["toolCallId"].startswith("ask-")]
    others = [one for one in messages[: results[-1] + 1] if one is not messages[told]]
    again = Talk(face, declared=False)
    again.runs = talk.runs
    again.applied = Applied([*others, messages[told]])
    await again.run()
    assert said(face) == ["script: approve"] * 2
    assert len(again.applied.interrupts) == 1


async def test_nothing_new_is_refused(face: Face) -> None:
    talk = Talk(face)
    with pytest.raises(Refused, match="begins with a message") as caught:
        await talk.run()
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    await talk.say("one", "u1")
    with pytest.raises(Refused, match="nothing new") as caught:
        await talk.run()
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    stray = {"id": "x", "role": "tool", "toolCallId": "c", "content": "green"}
    with pytest.raises(Refused, match="nothing new"):
        await talk.run(stray)
    with pytest.raises(Refused) as caught:
        await talk.run(resume=[entry({"id": "i"}, True)])
    assert (caught.value.status, caught.value.code) == (404, "unknown_interaction")
    assert len(said(face)) == 1


async def test_an_answer_is_given_once_and_its_repeat_is_the_same_run(face: Face) -> None:
    talk = Talk(face)
    seen = await talk.say("script: approve", "u1")
    (asked,) = talk.applied.interrupts
    assert asked["reason"] == "tool-approval"
    # CopilotKit gives the run that resumes the name of the one that asked.
    yes = entry(asked, {"approved": True})
    asking = Talk(face)
    asking.applied = Applied(talk.applied.messages)
    done = await talk.run(resume=[yes], run="run-1")
    assert done[0]["runId"] == seen[0]["runId"]
    assert done[-1]["outcome"] == {"type": "success"}
    assert await asking.run(resume=[yes], run="run-1") == done
    # Who says no to it later is told that it was approved, and holds the request no longer.
    with pytest.raises(Refused) as caught:
        await talk.run(resume=[entry(asked, {"approved": False})])
    assert (caught.value.status, caught.value.code) == (409, "already_answered")
    late = caught.value.body["events"]
    for event in late:
        talk.applied.apply(event)
    assert named(late, "passed_over")[0] == {
        "interruptId": asked["id"],
        "message": "It was answered before: approved.",
    }
    assert late[-1]["outcome"] == {"type": "success"}
    assert talk.applied.interrupts == []
    seen = await talk.run(user("on", "u2"), resume=[yes])
    assert named(seen, "passed_over")[0]["interruptId"] == asked["id"]


async def test_edited_arguments_are_refused_and_the_request_stays_open(face: Face) -> None:
    talk = Talk(face)
    await talk.say("script: approve", "u1")
    (asked,) = talk.applied.interrupts
    with pytest.raises(Refused, match="editedArgs") as caught:
        await talk.run(resume=[entry(asked, {"approved": True, "editedArgs": {"command": "ls"}})])
    assert (caught.value.status, caught.value.code) == (400, "not_supported")
    assert (await talk.run(resume=[entry(asked, False)]))[-1]["outcome"] == {"type": "success"}


async def test_new_words_give_a_client_its_interrupts_again(face: Face) -> None:
    await Talk(face).say("script: approve", "u1")
    fresh = Talk(face)
    with pytest.raises(Refused) as caught:
        await fresh.say("hello?", "u2")
    body = caught.value.body
    assert body["code"] == "paused"
    (asked,) = body["interrupts"]
    seen = await fresh.run(resume=[entry(asked, {"approved": True})])
    assert seen[-1]["outcome"] == {"type": "success"}
    # The words come behind the turn that asked, in the same run.
    assert said(face)[-1] == "hello?"
    assert "You said: “hello?”." in str(fresh.applied.messages)


async def test_an_old_client_answers_with_a_tool_message(face: Face) -> None:
    talk = Talk(face, declared=False)
    seen = await talk.say("script: approve", "u1")
    ask = next(e for e in seen if e.get("toolCallName") == "dragoman_ask")
    answer = {
        "id": "x1",
        "role": "tool",
        "toolCallId": ask["toolCallId"],
        "content": json.dumps({"approved": False}),
    }
    seen = await talk.run(answer)
    assert seen[-1]["outcome"] == {"type": "success"}
    assert "I left /srv/exports/2024 alone." in str(talk.applied.messages)
    results = [m for m in talk.applied.messages if m.get("toolCallId") == ask["toolCallId"]]
    assert [m["id"] for m in results] == ["x1"]


async def test_a_second_run_at_once_is_refused(serve: Any) -> None:
    face: Face = await serve("memory:", pace=0.1)
    talk, other = Talk(face), Talk(face)
    body = talk.client.run("t-1", "run-1", [user("script: slow 20", "u1")])
    async with aclosing(body) as events:
        await anext(events)
        with pytest.raises(Refused) as caught:
            await other.say("and me?", "u2")
        assert (caught.value.status, caught.value.code) == (409, "busy")


async def test_a_run_goes_on_when_its_client_leaves_unless_it_wants_a_stop(serve: Any) -> None:
    face: Face = await serve("memory:", dialect="herm", pace=0.1)
    for thread, query in (("t-1", ""), ("t-2", "?on_leave=stop")):
        body = {"threadId": thread, "runId": "r", "messages": [user("script: slow 20", thread)]}
        async with face.http.post(f"{face.url}{query}", json=body) as answer:
            await answer.content.readuntil(b"TEXT_MESSAGE_CONTENT")
        path = f"/threads/{thread}"
        client = AguiClient(face.http, face.url)
        async with asyncio.timeout(SOON_S):
            seen = [event async for event in client.read(path)]
        stopped = seen[-1].get("metadata") == {"dragoman": {"outcome": "interrupted"}}
        assert stopped == bool(query)


async def test_what_another_one_says_comes_before_the_next_run(face: Face) -> None:
    talk, other = Talk(face), Talk(face)
    await talk.say("one", "u1")
    await other.say("from elsewhere", "u9")
    seen = await talk.say("two", "u2")
    runs = [event["runId"] for event in seen if event["type"] == "RUN_STARTED"]
    assert len(runs) == 2
    assert "from elsewhere" in [m["content"] for m in talk.applied.messages if m["role"] == "user"]


async def test_a_thread_is_read_from_any_event(face: Face) -> None:
    talk = Talk(face)
    first = await talk.say("script: text", "u1")
    second = await talk.say("script: tools", "u2")
    assert [e async for e in talk.client.read("/threads/t-1")] == first + second
    after = f"/threads/t-1?after={first[-1]['timestamp']}"
    assert [e async for e in talk.client.read(after)] == second
    last = {"Last-Event-ID": str(second[2]["timestamp"])}
    async with face.http.get(f"{face.url}/threads/t-1", headers=last) as answer:
        assert split(await answer.read()) == second[3:]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/threads/t-1?after=x", 400),
        ("GET", "/threads/none", 404),
        ("GET", "/nothing", 404),
        ("POST", "/threads/t-1", 405),
    ],
)
async def test_what_is_not_there_is_refused(
    face: Face, method: str, path: str, status: int
) -> None:
    talk = Talk(face)
    await talk.say("one", "u1")
    with pytest.raises(Refused) as caught:
        await talk.client.ask(method, path)
    assert caught.value.status == status
    assert isinstance(caught.value.body["error"], str)


async def test_a_thread_outlives_a_restart(serve: Any, tmp_path: Path) -> None:
    face: Face = await serve(f"sqlite:///{tmp_path}/j.db")
    talk = Talk(face)
    seen = await talk.say("script: approve", "u1")
    await face.restart()
    talk.client = AguiClient(face.http, face.url)
    assert [e async for e in talk.client.read("/threads/t-1")] == seen
    (asked,) = talk.applied.interrupts
    seen = await talk.run(resume=[entry(asked, {"approved": True})])
    assert seen[-1]["outcome"] == {"type": "success"}


async def test_a_body_that_the_server_cuts_ends_with_an_error(serve: Any) -> None:
    face: Face = await serve("memory:", pace=0.1)
    body = {"threadId": "t-1", "runId": "r", "messages": [user("script: slow 200", "u1")]}
    async with face.http.post(face.url, json=body) as answer:
        await answer.content.readuntil(b"\n\n")
        await face.sessions.aclose()
        rest = split(await answer.read())
    assert (rest[-1]["type"], rest[-1]["code"]) == ("RUN_ERROR", "incomplete")


def test_the_strict_client_refuses_a_run_that_leaves_something_open() -> None:
    run = {"threadId": "t", "runId": "r"}
    checker = Checker()
    checker.feed({"type": "RUN_STARTED", **run})
    checker.feed({"type": "STEP_STARTED", "stepName": "s"})
    with pytest.raises(ProtocolViolation, match="leaves this open"):
        checker.feed({"type": "RUN_FINISHED", **run})


@pytest.mark.parametrize("declared", [True, False])
async def test_a_client_whose_request_was_answered_elsewhere_is_told_and_goes_on(
    face: Face, declared: bool
) -> None:
    talk = Talk(face, declared=declared)
    seen = await talk.say("script: approve", "u1")
    asked = talk.applied.interrupts[0]
    live = await face.live(next(iter(face.sessions.cache)).id)
    elsewhere = face.eve().attach(live.id)
    await elsewhere.respond(asked["id"], "approve")
    await settled(live)
    if declared:
        told = await talk.run(resume=[entry(asked, {"approved": True})])
    else:
        ask = next(e for e in seen if e.get("toolCallName") == "dragoman_ask")
        given = {"id": "x1", "role": "tool", "toolCallId": ask["toolCallId"]}
        told = await talk.run({**given, "content": json.dumps({"approved": True})})
    # What came of it: the result of the call and the rest of the turn.
    assert any(event["type"] == "TOOL_CALL_RESULT" for event in told)
    assert told[-1]["outcome"] == {"type": "success"}
    assert talk.applied.interrupts == []
    texts = [m.get("content") for m in talk.applied.messages]
    assert str(texts[-1]).strip() == "Done, 4.1 GB freed. (turn 1)"
    # A second time there is nothing to tell.
    if declared:
        with pytest.raises(Refused) as caught:
            await talk.run(resume=[entry(asked, {"approved": True})])
        again = caught.value.body["events"]
        assert [event["type"] for event in again] == ["RUN_STARTED", "CUSTOM", "RUN_FINISHED"]
    seen = await talk.say("on", "u2")
    assert seen[-1]["outcome"] == {"type": "success"}
    assert [m.get("content") for m in talk.applied.messages].count(texts[-1]) == 1


async def test_a_second_answer_by_another_page_is_refused_inside_its_stream(face: Face) -> None:
    talk = Talk(face)
    await talk.say("script: approve", "u1")
    (asked,) = talk.applied.interrupts
    page = Talk(face)
    page.applied = Applied([*talk.applied.messages])
    page.runs = 7
    await talk.run(resume=[entry(asked, {"approved": True})])
    counted = {"face": "agui", "status": "409"}
    before = REGISTRY.get_sample_value("dragoman_http_requests_total", counted) or 0.0
    with pytest.raises(Refused) as caught:
        await page.run(resume=[entry(asked, {"approved": False})])
    assert (caught.value.status, caught.value.code) == (409, "already_answered")
    # Its head was a 200: the numbers know better.
    assert REGISTRY.get_sample_value("dragoman_http_requests_total", counted) == before + 1


async def test_a_late_answer_follows_a_turn_that_runs_to_its_end(serve: Any) -> None:
    face: Face = await serve("memory:", pace=0.05)
    talk = Talk(face)
    await talk.say("script: approve", "u1")
    (asked,) = talk.applied.interrupts
    live = await face.live(next(iter(face.sessions.cache)).id)
    await face.eve().attach(live.id).respond(asked["id"], "approve")
    await until(lambda: asked["id"] in live.state.resolved)
    told = await talk.run(resume=[entry(asked, {"approved": True})])
    assert told[-1]["type"] == "RUN_FINISHED"
    assert "Done, 4.1 GB freed." in str(talk.applied.messages[-1]["content"])


async def test_an_old_answer_within_a_history_is_nothing_new(face: Face) -> None:
    talk = Talk(face, declared=False)
    seen = await talk.say("script: ask", "u1")
    ask = next(e for e in seen if e.get("toolCallName") == "dragoman_ask")
    given = {"id": "x1", "role": "tool", "toolCallId": ask["toolCallId"]}
    await talk.run({**given, "content": "Lisbon"})
    assert talk.applied.messages[-1]["role"] == "assistant"
    with pytest.raises(Refused, match="nothing new"):
        await talk.run()
