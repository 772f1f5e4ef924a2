"""The managed-agents face over HTTP: sessions, sends, lists and streams as SDKs use them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from adapters.model import events as ev
from tests.support.alone import Alone
from tests.support.dragoman import BACKEND_KEY, starts
from tests.support.managed_agents_client import (
    Event,
    ManagedAgentsClient,
    Refused,
    check_join,
    message,
)
from tests.support.waiting import SOON_S


class Face(Alone):
    """A Dragoman as programs for Managed Agents see it."""

    def __init__(
        self, journal: Any, *, dialect: str = "herm", pace: float = 0.0, settings: Any = None
    ) -> None:
        options = {"pace": pace}
        # A command's outcome is waited for half a second, and not a moment.
        speed = 1.0 if pace else 10.0
        super().__init__(journal, dialect=dialect, options=options, speed=speed, settings=settings)

    @property
    def client(self) -> ManagedAgentsClient:
        return ManagedAgentsClient(self.http, self.face("managed-agents", self.dialect))


serve = starts(Face)


@pytest.fixture
async def face(serve: Any) -> Face:
    started: Face = await serve("memory:")
    return started


async def play(client: ManagedAgentsClient, session: str, *events: Event) -> list[Event]:
    """Open the stream, send, and read to the end of the turn or to a pause."""
    seen: list[Event] = []
    async with asyncio.timeout(SOON_S), aclosing(client.stream(session, late=True)) as stream:
        assert await anext(stream) == {}
        await client.send(session, *events)
        async for event in stream:
            seen.append(event)
            if event["type"] == "session.status_idle":
                return seen
    raise AssertionError("the stream has ended")


async def until_listed(
    client: ManagedAgentsClient, session: str, kind: str, *, times: int = 1
) -> list[str]:
    """Read the list until it has so many events of a type; return all types."""
    async with asyncio.timeout(SOON_S):
        while True:
            types = [one["type"] for one in await client.events(session)]
            if types.count(kind) >= times:
                return types
            await asyncio.sleep(0.01)


def use_of(seen: list[Event]) -> str:
    (use,) = seen[-1]["stop_reason"]["event_ids"]
    return str(use)


def confirm(use: str, result: str = "allow", **more: Any) -> Event:
    return {"type": "user.tool_confirmation", "tool_use_id": use, "result": result, **more}


async def test_the_quickstart(face: Face) -> None:
    client = face.client
    agent = await client.call("POST", "/v1/agents", {"name": "Assistant", "model": "any"})
    environment = await client.call("POST", "/v1/environments", {"name": "quickstart"})
    session = await client.create(agent=agent["id"], environment_id=environment["id"])
    assert session["environment_id"] == environment["id"]
    asked = await play(client, session["id"], message("script: approve"))
    assert asked[-1]["stop_reason"]["type"] == "requires_action"
    done = await play(client, session["id"], confirm(use_of(asked)))
    assert done[-1]["stop_reason"] == {"type": "end_turn"}
    listed = await client.events(session["id"])
    check_join([*asked, *done], listed)
    assert [one["type"] for one in listed].count("user.tool_confirmation") == 1


async def test_a_session_begins_with_its_initial_events(face: Face) -> None:
    client = face.client
    first = [message("script: text"), message("script: text")]
    session = await client.create(initial_events=first, title="Release notes", metadata={"a": "b"})
    assert session["metadata"] == {"a": "b"}
    types = await until_listed(client, session["id"], "session.status_idle", times=2)
    assert types.count("user.message") == 2
    (live,) = face.sessions.cache
    log = await face.log(live.id)
    told = [one.title for one in log if isinstance(one, ev.SessionStarted | ev.SessionUpdated)]
    assert [title for title in told if title] == ["Release notes", "The first turn"]
    # The backend has a title of its own, which may be there before the answer.
    assert session["title"] in told


async def test_a_message_while_calls_wait_is_refused_in_the_services_words(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    use = use_of(await play(client, session, message("script: approve")))
    with pytest.raises(Refused) as refused:
        await client.send(session, message("and?"))
    assert refused.value.status == 400
    assert refused.value.body["error"]["message"] == (
        f"Invalid user.message event at events[0]: waiting on responses to events [{use}]; only "
        "`user.tool_confirmation`, `user.custom_tool_result`, `user.tool_result`, or "
        "`user.interrupt` may be sent"
    )
    assert refused.value.headers["x-should-retry"] == "false"
    # Behind its answer it waits for the turn's end.
    seen = await play(client, session, confirm(use, "deny"), message("script: text"))
    assert seen[-1]["stop_reason"] == {"type": "end_turn"}


async def test_a_stop_and_a_message_behind_it_are_taken_in_this_order(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    await play(client, session, message("script: approve"))
    stored = await client.send(session, {"type": "user.interrupt"}, message("script: text"))
    assert [one["type"] for one in stored] == ["user.interrupt", "user.message"]
    await until_listed(client, session, "agent.message")


async def test_a_stop_of_a_session_that_rests_is_taken_and_nothing_follows(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    (stored,) = await client.send(session, {"type": "user.interrupt"})
    assert stored["type"] == "user.interrupt"
    assert [one["type"] for one in await client.events(session)] in ([], ["user.interrupt"])
    seen = await play(client, session, message("script: text"))
    assert seen[-1]["stop_reason"] == {"type": "end_turn"}


async def test_some_answers_leave_an_idle_with_the_rest(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    asked = await play(client, session, message("script: approve2"))
    first, second = asked[-1]["stop_reason"]["event_ids"]
    rest = await play(client, session, confirm(first))
    assert rest[-1]["stop_reason"] == {"type": "requires_action", "event_ids": [second]}
    done = await play(client, session, confirm(second))
    assert done[-1]["stop_reason"] == {"type": "end_turn"}


async def test_answers_that_nobody_waits_for_are_refused(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    asked = await play(client, session, message("script: approve"))
    use = use_of(asked)
    for event, words in (
        (confirm("sevt_other"), "does not match any tool use"),
        (confirm(use, session_thread_id="sthr_other"), "of another thread"),
        (
            {"type": "user.custom_tool_result", "custom_tool_use_id": use},
            "takes a `user.tool_confirmation`",
        ),
    ):
        with pytest.raises(Refused, match=words) as refused:
            await client.send(session, event)
        assert refused.value.status == 400
    primary = (await client.all_of(f"/v1/sessions/{session}/threads"))[0]["id"]
    await play(client, session, confirm(use, session_thread_id=primary))
    with pytest.raises(Refused, match="approved") as refused:
        await client.send(session, confirm(use))
    assert refused.value.status == 400


async def test_a_batch_with_one_bad_event_is_refused_whole(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    with pytest.raises(Refused, match=r"events\[1\]\.type"):
        await client.send(session, message("script: text"), {"type": "user.nonsense"})
    with pytest.raises(Refused, match="does not match"):
        await client.send(session, message("script: text"), confirm("sevt_other"))
    assert await client.events(session) == []


async def test_an_archived_session_takes_nothing_and_says_so(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    await play(client, session, message("script: text"))
    async with asyncio.timeout(SOON_S), aclosing(client.stream(session, late=True)) as stream:
        await anext(stream)
        archived = await client.call("POST", f"/v1/sessions/{session}/archive")
        assert (await anext(stream))["type"] == "session.status_terminated"
    assert archived["status"] == "terminated"
    assert archived["archived_at"] is not None
    with pytest.raises(Refused) as refused:
        await client.send(session, message("more"))
    assert refused.value.status == 400
    words = f"Cannot send events to archived session: {session}"
    assert refused.value.body["error"]["message"] == words
    again = await client.call("POST", f"/v1/sessions/{session}/archive")
    assert again["archived_at"] == archived["archived_at"]
    assert session not in [one["id"] for one in await client.all_of("/v1/sessions")]
    everything = await client.all_of("/v1/sessions", include_archived="true")
    assert session in [one["id"] for one in everything]


async def test_a_deleted_session_ends_its_streams_and_is_gone(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    async with asyncio.timeout(SOON_S), aclosing(client.stream(session)) as stream:
        await anext(stream)
        answer = await client.call("DELETE", f"/v1/sessions/{session}")
        assert answer == {"id": session, "type": "session_deleted"}
        assert [one["type"] async for one in stream][-1] == "session.deleted"
    for path in ("", "/events", "/events/stream", "/threads"):
        with pytest.raises(Refused) as refused:
            await client.call("GET", f"/v1/sessions/{session}{path}")
        assert (refused.value.status, refused.value.code) == (404, "not_found_error")


async def test_a_session_at_work_is_neither_archived_nor_deleted(serve: Any) -> None:
    face = await serve("memory:", pace=1.0)
    client = face.client
    session = (await client.create())["id"]
    await client.send(session, message("script: slow 3"))
    for method, path in (("POST", "/archive"), ("DELETE", "")):
        with pytest.raises(Refused, match="while it is running") as refused:
            await client.call(method, f"/v1/sessions/{session}{path}")
        assert refused.value.status == 400


async def test_sessions_are_listed_in_pages_both_ways(face: Face) -> None:
    client = face.client
    made = [(await client.create(metadata={"n": str(n)}))["id"] for n in range(5)]
    newest = [one["id"] for one in await client.all_of("/v1/sessions", limit=2)]
    assert newest == made[::-1]
    oldest = [one["id"] for one in await client.all_of("/v1/sessions", limit=2, order="asc")]
    assert oldest == made
    first = await client.call("GET", "/v1/sessions", params={"limit": "2"})
    assert first["prev_page"] is None
    more = {"limit": "2", "page": first["next_page"]}
    second = await client.call("GET", "/v1/sessions", params=more)
    back = {"limit": "2", "page": second["prev_page"]}
    assert (await client.call("GET", "/v1/sessions", params=back))["data"] == first["data"]
    since = (await client.call("GET", f"/v1/sessions/{made[3]}"))["created_at"]
    params = [("created_at[gte]", since), ("statuses[]", "idle")]
    found = await client.call("GET", "/v1/sessions", params=params)
    assert made[4] in [one["id"] for one in found["data"]]
    with pytest.raises(Refused, match="another `order`"):
        await client.call("GET", "/v1/sessions", params={**more, "order": "asc"})


async def test_an_update_changes_what_it_names(face: Face) -> None:
    client = face.client
    session = (await client.create(title="x", metadata={"a": "1", "b": "2"}))["id"]
    changes = {"metadata": {"a": None, "c": "3"}}
    found = await client.call("POST", f"/v1/sessions/{session}", changes)
    assert (found["title"], found["metadata"]) == ("x", {"b": "2", "c": "3"})
    found = await client.call("POST", f"/v1/sessions/{session}", {"title": None})
    assert found["title"] is None
    members: Any
    for members in ({"vault_ids": []}, {"agent": {"tools": []}}, {"budget": {"type": "limit"}}):
        with pytest.raises(Refused):
            await client.call("POST", f"/v1/sessions/{session}", members)


async def test_the_primary_thread_is_the_session(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    seen = await play(client, session, message("script: text"))
    (thread,) = await client.all_of(f"/v1/sessions/{session}/threads")
    assert (thread["parent_thread_id"], thread["status"]) == (None, "idle")
    path = f"/v1/sessions/{session}/threads/{thread['id']}"
    assert await client.call("GET", path) == thread
    check_join(seen, await client.all_of(f"{path}/events"))
    with pytest.raises(Refused, match="primary thread"):
        await client.call("POST", f"{path}/archive")
    other = (await client.create())["id"]
    for wrong in (f"{other}/threads/{thread['id']}", f"{session}/threads/sthr_x"):
        for below in ("", "/events", "/stream"):
            with pytest.raises(Refused) as refused:
                await client.call("GET", f"/v1/sessions/{wrong}{below}")
            assert refused.value.status == 404


async def test_a_child_has_events_of_its_own(serve: Any) -> None:
    face = await serve("memory:", dialect="eve")
    client = face.client
    session = (await client.create())["id"]
    seen = await play(client, session, message("script: child"))
    (made,) = (one for one in seen if one["type"] == "session.thread_created")
    threads = await client.all_of(f"/v1/sessions/{session}/threads")
    assert [one["id"] for one in threads][1] == made["session_thread_id"]
    assert threads[1]["parent_thread_id"] == threads[0]["id"]
    path = f"/v1/sessions/{session}/threads/{made['session_thread_id']}/events"
    own = await client.all_of(path)
    assert "agent.message" in [one["type"] for one in own]


async def test_a_question_is_answered_by_the_reserved_tool_under_its_configured_name(
    serve: Any,
) -> None:
    face = await serve("memory:", settings={"managed_agents": {"ask_tool": "ask_person"}})
    client = face.client
    session = await client.create()
    assert [tool["name"] for tool in session["agent"]["tools"]] == ["ask_person"]
    asked = await play(client, session["id"], message("script: ask"))
    use = next(one for one in asked if one["id"] == use_of(asked))
    assert use["name"] == "ask_person"
    label = use["input"]["options"][0]["label"]
    answer = {
        "type": "user.custom_tool_result",
        "custom_tool_use_id": use["id"],
        "content": [{"type": "text", "text": label}],
    }
    done = await play(client, session["id"], answer)
    assert done[-1]["stop_reason"] == {"type": "end_turn"}


async def test_previews_go_to_those_who_ask_for_them(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    seen: list[Event] = []
    previews = ["agent.message", "agent.thinking"]
    async with (
        asyncio.timeout(SOON_S),
        aclosing(client.stream(session, previews=previews)) as stream,
        aclosing(client.stream(session)) as plain,
    ):
        await anext(stream)
        await anext(plain)
        await client.send(session, message("script: reason"))
        async for event in stream:
            seen.append(event)
            if event["type"] == "session.status_idle":
                break
        others = []
        async for event in plain:
            others.append(event)
            if event["type"] == "session.status_idle":
                break
    assert {one["type"] for one in seen} >= {"event_start", "event_delta"}
    assert [one for one in seen if not one["type"].startswith("event_")] == others
    for wrong in ("agent.tool_use", "x"):
        path = f"/v1/sessions/{session}/events/stream"
        with pytest.raises(Refused, match="event_deltas"):
            await client.call("GET", path, params={"event_deltas[]": wrong})


async def test_an_unknown_agent_is_named_with_the_one_that_is_there(face: Face) -> None:
    with pytest.raises(Refused, match="this route has `agent_") as refused:
        await face.client.create(agent="agent_elsewhere")
    assert refused.value.status == 404


async def test_a_repeat_by_the_sdk_gets_the_first_answer(face: Face) -> None:
    client = face.client
    session = (await client.create())["id"]
    path, body = f"/v1/sessions/{session}/events", {"events": [message("script: text")]}
    first = await client.call("POST", path, body)
    retry = {"x-stainless-retry-count": "1"}
    again = await client.call("POST", path, body, headers=retry)
    assert [one["id"] for one in again["data"]] == [one["id"] for one in first["data"]]
    types = await until_listed(client, session, "session.status_idle")
    assert types.count("user.message") == 1


async def test_either_header_has_the_key_and_no_version_matters(serve: Any) -> None:
    face = await serve("memory:")
    client = face.client
    for headers in (
        {"x-api-key": "sk-demo", "anthropic-version": "2023-06-01", "anthropic-beta": "x,y"},
        {"anthropic-version": "", "anthropic-beta": ""},
    ):
        await client.call("GET", "/v1/sessions?beta=true", headers=headers)


# The same API behind it.


@pytest.fixture
async def same(serve: Any) -> Face:
    started: Face = await serve("memory:", dialect="managed-agents")
    return started


async def test_an_outcome_is_judged_under_the_id_that_it_was_answered_with(same: Face) -> None:
    client = same.client
    session = (await client.create())["id"]
    await play(client, session, message("script: text"))
    rubric = {"type": "text", "content": "It is short."}
    outcome = {"type": "user.define_outcome", "description": "A page", "rubric": rubric}
    (defined,) = await client.send(session, {**outcome, "max_iterations": 2})
    types = await until_listed(client, session, "session.status_idle", times=2)
    ends = [
        event
        for event in await client.events(session)
        if event["type"] == "span.outcome_evaluation_end"
    ]
    assert {event["outcome_id"] for event in ends} == {defined["outcome_id"]}
    assert types.count("span.outcome_evaluation_start") == len(ends) > 0
    shown = await client.call("GET", f"/v1/sessions/{session}")
    (told,) = shown["outcome_evaluations"]
    assert (told["outcome_id"], told["description"]) == (defined["outcome_id"], "A page")
    assert (told["result"], told["completed_at"] is not None) == (ends[-1]["result"], True)
    assert shown["stats"]["active_seconds"] >= 0


async def test_the_agent_of_the_service_is_the_agent_of_the_session(same: Face) -> None:
    client = same.client
    session = (await client.create())["id"]
    await play(client, session, message("script: text"))
    agent = (await client.call("GET", f"/v1/sessions/{session}"))["agent"]
    (talk,) = same.backend.talks.values()
    assert agent["model"] == {"id": "claude-opus-5", "speed": "standard"}
    assert agent["system"] == "Write plainly."
    assert [tool["name"] for tool in agent["tools"]] == ["dragoman_ask"]
    assert talk.id


@pytest.mark.parametrize("script", ["approve", "custom"])
async def test_an_answer_to_the_service_is_shown_once(same: Face, script: str) -> None:
    client = same.client
    session = (await client.create())["id"]
    use = use_of(await play(client, session, message(f"script: {script}")))
    answer = confirm(use)
    if script == "custom":
        content = [{"type": "text", "text": "12"}]
        answer = {"type": "user.custom_tool_result", "custom_tool_use_id": use, "content": content}
    seen = await play(client, session, answer)
    types = [event["type"] for event in await client.events(session)]
    assert types.count(answer["type"]) == 1
    assert [event["type"] for event in seen].count(answer["type"]) == 1
    assert types.count("agent.tool_result") == (script == "approve")


async def test_an_answer_of_another_application_is_shown_as_it_was_given(same: Face) -> None:
    client = same.client
    session = (await client.create())["id"]
    use = use_of(await play(client, session, message("script: approve")))
    (talk,) = same.backend.talks
    theirs = ManagedAgentsClient(same.http, same.backend_url("managed-agents"), key=BACKEND_KEY)
    await theirs.send(talk, confirm(use, "deny", deny_message="Not now."))
    await until_listed(client, session, "session.status_idle", times=2)
    (shown,) = [
        event for event in await client.events(session) if event["type"] == "user.tool_confirmation"
    ]
    assert (shown["tool_use_id"], shown["result"]) == (use, "deny")
    assert shown["deny_message"] == "Not now."
