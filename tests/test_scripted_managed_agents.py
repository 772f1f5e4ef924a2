"""The scripted Managed Agents service, driven by the strict client: scripts, variants, refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import Cut, Faults, LoseTurn, Status
from proxy.scripted.managed_agents import MANAGED_AGENTS, create_managed_agents_app
from proxy.scripted.managed_agents_frames import BODIES, EVENTS, OTHERS
from proxy.scripted.managed_agents_turns import ManagedAgentsVariant, ScriptedManagedAgents
from proxy.scripted.scripts import SCRIPT_NAMES
from proxy.scripted.templates import dump
from tests.support.each import each
from tests.support.managed_agents_client import (
    Event,
    ManagedAgentsClient,
    Refused,
    check_join,
    message,
)
from tests.support.strictness import Disconnected
from tests.support.waiting import SOON_S, until

KEY = "sk-local-9"

Served = tuple[ManagedAgentsClient, ScriptedManagedAgents]
Serve = Callable[..., Awaitable[Served]]
Answers = Callable[[Event, list[Event]], Sequence[Event]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start scripted services; each call gives a strict client of a new one and its state."""
    closing: list[Callable[[], Awaitable[None]]] = []

    async def start(**options: Any) -> Served:
        app = create_managed_agents_app(**{"key": KEY, "pace": 0.0, **options})
        server = TestServer(app)
        await server.start_server(shutdown_timeout=1.0)
        session = aiohttp.ClientSession()
        closing.extend((session.close, server.close))
        return ManagedAgentsClient(session, str(server.make_url("")), KEY), app[MANAGED_AGENTS]

    yield start
    for close in closing:
        await close()


def kinds(events: Sequence[Event]) -> list[str]:
    return [event["type"] for event in events]


def of(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event["type"] == kind]


def text(events: Sequence[Event]) -> str:
    said = of(events, "agent.message")
    return "".join(block["text"] for event in said for block in event["content"])


def confirm(result: str = "allow", **members: Any) -> Answers:
    """Answer each call that waits, one after the other."""

    def answers(idle: Event, seen: list[Event]) -> list[Event]:
        done = {event.get("tool_use_id") for event in of(seen, "user.tool_confirmation")}
        left = [name for name in idle["stop_reason"]["event_ids"] if name not in done]
        kind = "user.tool_confirmation"
        return [{"type": kind, "tool_use_id": n, "result": result, **members} for n in left[:1]]

    return answers


async def raw_stream(client: ManagedAgentsClient, path: str) -> AsyncGenerator[Event, None]:
    """Yield `{}` once a stream is open, then its events, unchecked."""
    async with client._http.get(client._base + path, headers=client._headers) as response:
        assert response.status == 200, await response.text()
        yield {}
        async for line in response.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


async def turn(
    client: ManagedAgentsClient,
    session: str,
    *events: Event,
    answers: Answers | None = None,
    strict: bool = True,
    query: str = "",
) -> list[Event]:
    """Send a batch and return what the session's stream shows until the turn is over."""
    path = f"/v1/sessions/{session}/events/stream{query}"
    previews = re.findall(r"agent\.\w+", query)
    streamed = client.stream(session, previews=previews) if strict else raw_stream(client, path)
    seen: list[Event] = []
    async with asyncio.timeout(SOON_S), aclosing(streamed) as stream:
        await anext(stream)
        await client.call("POST", f"/v1/sessions/{session}/events", {"events": [*events]})
        async for event in stream:
            seen.append(event)
            if event["type"] == "session.status_terminated":
                break
            if event["type"] != "session.status_idle":
                continue
            if event["stop_reason"]["type"] != "requires_action" or answers is None:
                break
            given = answers(event, seen)
            if given:
                await client.send(session, *given)
    return seen


async def begun(serve: Serve, **options: Any) -> tuple[ManagedAgentsClient, Any, str]:
    client, service = await serve(**options)
    session = (await client.create())["id"]
    return client, service.talk(session), session


@each("name", [*EVENTS, *OTHERS, *BODIES])
def test_every_template_names_its_source(name: str) -> None:
    page = r"managed agents page, section \d+(\.\d)? \([DIS]\)"
    recorded = r"(python-2\.12\.0/\w+\.json|open-managed-agents-0\.1\.0/\w+\.ndjson)"
    for template in (group[name] for group in (EVENTS, OTHERS, BODIES) if name in group):
        assert re.fullmatch(f"{page}|{recorded}", template.source)
        assert dump(json.loads(template.data)) == template.data
        if template is not BODIES.get(name):
            assert template.payload()["type"] == name


# Scripts.


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("text", "Basil likes six hours of sun"),
        ("tools", "without a guard."),
        ("toolfail", "must be connected again."),
        ("compact", "I have shortened my notes."),
        ("child", "The researcher says: 84 m."),
        ("long 20", "tick 19 "),
        ("slow 3", "tick 2 "),
        ("ask", "Managed Agents has no questions to ask."),
        ("askopen", "Managed Agents has no questions to ask."),
        ("secret", "Managed Agents has no secrets to ask for."),
        ("sudo", "Managed Agents has no passwords to ask for."),
        ("signin", "Managed Agents has no sign-in to ask for."),
        ("limit", "Managed Agents has no limit to ask about."),
        ("structured", "Managed Agents has no structured results."),
        ("memory", "Managed Agents has no event for notes."),
        ("nonsense", "There is no script `nonsense`"),
    ],
)
async def test_a_script_is_played_in_events_that_a_strict_client_takes(
    serve: Serve, script: str, said: str
) -> None:
    client, _, session = await begun(serve)
    seen = await turn(client, session, message(f"script: {script}"))
    assert said in text(seen)
    assert text(seen).endswith("(turn 1)")
    assert seen[-1]["stop_reason"] == {"type": "end_turn"}
    check_join(seen, await client.events(session))


@pytest.mark.parametrize("script", ["reason", "tool"])
async def test_a_turn_has_the_order_of_the_recorded_one(serve: Serve, script: str) -> None:
    client, _, session = await begun(serve)
    seen = await turn(client, session, message(f"script: {script}"), strict=False)
    assert kinds(seen)[:5] == [
        "session.status_running",
        "session.thread_status_running",
        "user.message",
        "span.model_request_start",
        "agent.thinking",
    ]
    assert kinds(seen)[-4:] == [
        "span.model_request_end",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    assert re.search(r":\d\d\.\d{3}Z$", of(seen, "agent.thinking")[0]["processed_at"])


async def test_previews_come_to_who_asks_and_are_the_beginning_of_the_message(
    serve: Serve,
) -> None:
    client, _, session = await begun(serve)
    seen = await turn(
        client, session, message("script: text"), query="?event_deltas[]=agent.message"
    )
    deltas = [event["delta"]["content"]["text"] for event in of(seen, "event_delta")]
    assert len(deltas) == 4
    assert "".join(deltas) == text(seen)
    assert len(of(seen, "event_start")) == 1
    listed = await client.events(session)
    assert not of(listed, "event_start") + of(listed, "event_delta")


async def test_only_the_start_of_thinking_is_previewed(serve: Serve) -> None:
    client, _, session = await begun(serve)
    query = "?event_deltas[]=agent.thinking"
    seen = await turn(client, session, message("script: reason"), strict=False, query=query)
    (start,) = of(seen, "event_start")
    assert start["event"] == {"type": "agent.thinking", "id": of(seen, "agent.thinking")[0]["id"]}
    assert not of(seen, "event_delta")


async def test_a_reader_that_comes_into_a_message_gets_no_part_of_it(serve: Serve) -> None:
    client, service = await serve(pace=1.0)
    session = (await client.create())["id"]
    async with aclosing(client.stream(session, previews=["agent.message"])) as first:
        await anext(first)
        await client.send(session, message("script: slow 4"))
        async for event in first:
            if event["type"] == "event_delta":
                break
        late = client.stream(session, previews=["agent.message"], late=True)
        async with aclosing(late) as second:
            seen = [await anext(second), await anext(second)]
    assert kinds(seen[1:]) == ["agent.message"]
    assert service.talk(session).turns == 1


@pytest.mark.parametrize("result", ["allow", "deny"])
async def test_a_call_is_asked_about_and_the_answer_counts(serve: Serve, result: str) -> None:
    client, _, session = await begun(serve)
    more = {"deny_message": "Not today."} if result == "deny" else {}
    asked = message("script: approve")
    seen = await turn(client, session, asked, answers=confirm(result, **more))
    (use,) = of(seen, "agent.tool_use")
    assert use["evaluated_permission"] == "ask"
    ids = [one["stop_reason"].get("event_ids") for one in of(seen, "session.status_idle")]
    assert ids == [[use["id"]], None]
    (returned,) = of(seen, "agent.tool_result")
    assert returned["tool_use_id"] == use["id"]
    assert returned["is_error"] is (result == "deny")
    if result == "deny":
        assert returned["content"] == [{"type": "text", "text": "Not today."}]
    after = kinds(seen)[kinds(seen).index("user.tool_confirmation") :]
    assert after[:5] == [
        "user.tool_confirmation",
        "session.status_running",
        "session.thread_status_running",
        "agent.tool_result",
        "span.model_request_start",
    ]
    assert ("4.1 GB freed" in text(seen)) is (result == "allow")
    check_join(seen, await client.events(session))


@pytest.mark.parametrize("named", [True, False])
async def test_an_idle_after_one_of_two_answers_may_name_what_was_answered(
    serve: Serve, named: bool
) -> None:
    client, _, session = await begun(serve, variant=ManagedAgentsVariant(idle_names_answered=named))
    seen = await turn(client, session, message("script: approve2"), answers=confirm())
    first, second = (use["id"] for use in of(seen, "agent.tool_use"))
    ids = [one["stop_reason"].get("event_ids") for one in of(seen, "session.status_idle")]
    assert ids == [[first, second], [first, second] if named else [second], None]


async def test_a_server_may_say_nothing_between_two_answers(serve: Serve) -> None:
    client, talk, session = await begun(serve, variant=ManagedAgentsVariant(partial_idle=False))
    await turn(client, session, message("script: approve2"))
    for name in talk.waiting():
        kind = "user.tool_confirmation"
        await client.send(session, {"type": kind, "tool_use_id": name, "result": "allow"})
    await until(lambda: talk.runner is None)
    idles = of(await client.events(session), "session.status_idle")
    assert [one["stop_reason"]["type"] for one in idles] == ["requires_action", "end_turn"]


async def test_calls_one_after_the_other_are_asked_one_after_the_other(serve: Serve) -> None:
    client, _, session = await begun(serve)
    seen = await turn(client, session, message("script: approve-twice"), answers=confirm())
    assert len(of(seen, "session.status_idle")) == 3


async def test_the_application_runs_its_own_tool(serve: Serve) -> None:
    client, _, session = await begun(serve)

    def answers(idle: Event, seen: list[Event]) -> list[Event]:
        return [custom_result(of(seen, "agent.custom_tool_use")[0]["id"], "12 left")]

    seen = await turn(client, session, message("script: custom"), answers=answers)
    assert "The application says: 12 left" in text(seen)
    check_join(seen, await client.events(session))


def custom_result(name: str, words: str) -> Event:
    content = [{"type": "text", "text": words}]
    kind = "user.custom_tool_result"
    return {"type": kind, "custom_tool_use_id": name, "content": content, "is_error": False}


async def test_a_refused_answer_may_be_given_again(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    await turn(client, session, message("script: approve refused"))
    answer = {"type": "user.tool_confirmation", "tool_use_id": talk.waiting()[0], "result": "allow"}
    assert await refusal(client, session, answer) == (422, "This answer is refused on purpose.")
    (stored,) = await client.send(session, answer)
    assert stored["processed_at"] is not None


async def refusal(client: ManagedAgentsClient, session: str, *events: Event) -> tuple[int, str]:
    """Send what is refused; return the status and the message."""
    with pytest.raises(Refused) as refused:
        await client.send(session, *events)
    return refused.value.status, str(refused.value.body["error"]["message"])


@pytest.mark.parametrize("script", ["approve slowly", "approve fails", "failmid"])
async def test_what_follows_an_answer_or_words_may_take_long_or_fail(
    serve: Serve, script: str
) -> None:
    client, _, session = await begun(serve)
    seen = await turn(client, session, message(f"script: {script}"), answers=confirm())
    failed = script != "approve slowly"
    reason = "retries_exhausted" if failed else "end_turn"
    assert seen[-1]["stop_reason"] == {"type": reason}
    assert bool(of(seen, "session.error")) is failed


async def test_an_unknown_event_comes_before_known_ones(serve: Serve) -> None:
    client, _, session = await begun(serve)
    seen = await turn(client, session, message("script: unknown"), strict=False)
    assert of(seen, "agent.future_event")
    assert text(seen).startswith("Something new: There was something new")


# Inputs.


@pytest.mark.parametrize(
    ("inputs", "times"), [("once", [True]), ("twice", [False, True]), ("unprocessed", [False])]
)
async def test_a_message_is_shown_as_the_variant_says(
    serve: Serve, inputs: Any, times: list[bool]
) -> None:
    client, _, session = await begun(serve, variant=ManagedAgentsVariant(inputs=inputs))
    seen = await turn(client, session, message("hi"))
    shown = of(seen, "user.message")
    assert [event["processed_at"] is not None for event in shown] == times
    assert len({event["id"] for event in shown}) == 1
    first = "session.status_running" if inputs == "once" else "user.message"
    assert kinds(seen)[0] == first
    (listed,) = of(await client.events(session), "user.message")
    assert listed == shown[-1]


async def test_a_message_while_a_turn_runs_waits_at_the_end_of_the_list(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    talk.stuck = True
    await client.send(session, message("one"))
    await until(lambda: bool(talk.primary.streamed))
    (queued,) = await client.send(session, message("two"))
    assert queued["processed_at"] is None
    assert (await client.events(session))[-1] == queued
    assert len(of((await client.events(session))[:-1], "user.message")) == 1
    talk.stuck = False
    seen = await turn(client, session, {"type": "user.interrupt"})
    assert kinds(seen)[-4:] == [
        "user.interrupt",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    await until(lambda: talk.turns == 2 and talk.status == "idle")
    listed = await client.events(session)
    assert listed[-1]["type"] == "session.status_idle"
    assert text(listed) == "You said: “two”. (turn 2)"


@pytest.mark.parametrize("variant", [ManagedAgentsVariant(), ManagedAgentsVariant(spans=False)])
async def test_an_interrupt_closes_what_is_open(
    serve: Serve, variant: ManagedAgentsVariant
) -> None:
    client, talk, session = await begun(serve, variant=variant)
    await turn(client, session, message("script: approve2"), strict=variant.spans)
    seen = await turn(client, session, {"type": "user.interrupt"}, strict=False)
    assert kinds(seen) == [
        "agent.tool_result",
        "agent.tool_result",
        "user.interrupt",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    assert [event["is_error"] for event in seen[:2]] == [True, True]
    assert seen[2]["processed_at"] is not None
    assert seen[-1]["stop_reason"] == {"type": "end_turn"}
    assert talk.waiting() == []


async def test_an_interrupted_message_is_not_said(serve: Serve) -> None:
    client, _, session = await begun(serve, pace=1.0)
    seen = []
    stream = client.stream(session, previews=["agent.message"])
    async with asyncio.timeout(SOON_S), aclosing(stream):
        await anext(stream)
        await client.send(session, message("script: slow 50"))
        async for event in stream:
            seen.append(event)
            if event["type"] == "event_start":
                await client.send(session, {"type": "user.interrupt"})
            if event["type"] == "session.status_idle":
                break
    assert not of(seen, "agent.message")
    (end,) = of(seen, "span.model_request_end")
    assert end["is_error"] is True


@pytest.mark.parametrize("after", ["nothing", "idle"])
async def test_an_interrupt_of_an_idle_session_brings_what_the_variant_says(
    serve: Serve, after: Any
) -> None:
    variant = ManagedAgentsVariant(
        interrupt_idle=after, interrupt_reason="interrupted", interrupt_id=False
    )
    client, _, session = await begun(serve, variant=variant)
    body = {"events": [{"type": "user.interrupt"}]}
    answer = await client.call("POST", f"/v1/sessions/{session}/events", body)
    assert answer["data"][0]["id"] == ""
    listed = (await client.call("GET", f"/v1/sessions/{session}/events"))["data"]
    more = ["session.usage", "session.status_idle"] if after == "idle" else []
    assert kinds(listed) == ["user.interrupt", *more]
    if more:
        assert listed[-1]["stop_reason"] == {"type": "interrupted"}


@pytest.mark.parametrize(
    ("inputs", "times"), [("once", [True]), ("twice", [False, True]), ("unprocessed", [False])]
)
async def test_answers_and_interrupts_are_shown_as_often_as_messages_but_results_once(
    serve: Serve, inputs: Any, times: list[bool]
) -> None:
    client, talk, session = await begun(serve, variant=ManagedAgentsVariant(inputs=inputs))

    async def shown(kind: str, *events: Event) -> list[bool]:
        seen = await turn(client, session, *events, strict=False)
        return [event["processed_at"] is not None for event in of(seen, kind)]

    await turn(client, session, message("script: approve"))
    kind = "user.tool_confirmation"
    answer = {"type": kind, "tool_use_id": talk.waiting()[0], "result": "deny"}
    assert await shown(kind, answer) == times
    await turn(client, session, message("script: custom"))
    assert await shown("user.interrupt", {"type": "user.interrupt"}) == times
    await turn(client, session, message("script: custom"))
    result = custom_result(talk.waiting()[0], "x")
    assert await shown("user.custom_tool_result", result) == times[-1:]


async def test_an_interrupt_and_a_message_in_one_batch_end_a_turn_and_begin_another(
    serve: Serve,
) -> None:
    client, talk, session = await begun(serve)
    await turn(client, session, message("script: approve"))
    await client.send(session, {"type": "user.interrupt"}, message("instead"))
    await until(lambda: talk.turns == 2 and talk.status == "idle")
    assert text(await client.events(session)).endswith("“instead”. (turn 2)")


async def test_a_system_message_goes_with_its_message(serve: Serve) -> None:
    client, _, session = await begun(serve)
    system = {"type": "system.message", "content": [{"type": "text", "text": "Be brief."}]}
    seen = await turn(client, session, message("hi"), system)
    assert kinds(seen)[2:4] == ["user.message", "system.message"]
    (stored,) = await client.send(session, system)
    assert stored["processed_at"] is not None


# Children.


async def test_a_child_has_a_thread_with_a_list_and_a_stream_of_its_own(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    seen = await turn(client, session, message("script: child"))
    path = f"/v1/sessions/{session}/threads"
    primary, child = await client.all_of(path)
    assert primary["parent_thread_id"] is None
    assert (child["parent_thread_id"], child["agent"]["name"]) == (primary["id"], "researcher")
    assert await client.call("GET", f"{path}/{child['id']}") == child
    listed = await client.all_of(f"{path}/{child['id']}/events")
    assert kinds(listed) == [
        "session.thread_status_running",
        "agent.thread_message_received",
        "span.model_request_start",
        "agent.tool_use",
        "span.model_request_end",
        "agent.tool_result",
        "span.model_request_start",
        "agent.message",
        "span.model_request_end",
        "agent.thread_message_sent",
        "session.thread_status_idle",
    ]
    assert listed[0] in seen
    assert listed[-1] in seen
    assert "84 m tall" in text(listed)
    assert "to_agent_name" not in listed[-2]
    (received,) = of(seen, "agent.thread_message_received")
    assert received["from_session_thread_id"] == child["id"]
    assert talk.threads[child["id"]].status == "idle"
    archived = await client.call("POST", f"{path}/{child['id']}/archive")
    assert archived["status"] == "terminated"
    with pytest.raises(Refused):
        await client.call("POST", f"{path}/{primary['id']}/archive")


async def test_a_childs_call_is_asked_about_on_the_sessions_stream(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    seen = await turn(client, session, message("script: childask"), answers=confirm())
    (use,) = of(seen, "agent.tool_use")
    child = use["session_thread_id"]
    listed = await client.all_of(f"/v1/sessions/{session}/threads/{child}/events")
    (own,) = of(listed, "agent.tool_use")
    assert {**own, "session_thread_id": child} == use
    (answer,) = of(seen, "user.tool_confirmation")
    (inside,) = of(listed, "user.tool_confirmation")
    assert answer["session_thread_id"] == child
    assert "session_thread_id" not in inside
    assert answer["id"] != inside["id"]
    reasons = [one["stop_reason"].get("event_ids") for one in of(seen, "session.status_idle")]
    assert reasons == [[use["id"]], [use["id"]], None]
    after = kinds(seen)[kinds(seen).index("user.tool_confirmation") :]
    assert after[1:4] == [
        "session.status_running",
        "session.thread_status_running",
        "session.thread_status_idle",
    ]
    assert of(listed, "agent.tool_result")
    assert talk.primary.status == "idle"


@pytest.mark.parametrize("alone", [True, False])
async def test_an_interrupt_stops_a_child_alone_or_with_all(serve: Serve, alone: bool) -> None:
    client, talk, session = await begun(serve)
    await turn(client, session, message("script: childask"))
    child = list(talk.threads)[1]
    more = {"session_thread_id": child} if alone else {}
    seen = await turn(client, session, {"type": "user.interrupt", **more}, strict=False)
    assert ("The cleaner is done." in text(seen)) is alone
    listed = await client.all_of(f"/v1/sessions/{session}/threads/{child}/events")
    assert of(listed, "agent.tool_result")[0]["is_error"] is True
    assert listed[-1]["stop_reason"] == {"type": "end_turn"}
    assert seen[-1]["stop_reason"] == {"type": "end_turn"}


async def test_a_waiting_child_may_be_archived_and_takes_no_answer_then(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    await turn(client, session, message("script: childask"))
    (name,) = talk.waiting()
    child = list(talk.threads)[1]
    await client.call("POST", f"/v1/sessions/{session}/threads/{child}/archive")
    await until(lambda: talk.runner is None)
    answer = {"type": "user.tool_confirmation", "tool_use_id": name, "result": "allow"}
    assert (await refusal(client, session, answer))[0] == 400
    assert of(await client.events(session), "session.thread_status_terminated")


async def test_a_childs_stream_previews_the_child_alone(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    await turn(client, session, message("script: childask"))
    (child, call) = (list(talk.threads)[1], talk.waiting()[0])
    stream = client.stream(session, thread=child, previews=["agent.message"], late=True)
    seen = []
    async with asyncio.timeout(SOON_S), aclosing(stream):
        await anext(stream)
        answer = {"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"}
        await client.send(session, {**answer, "session_thread_id": child})
        async for event in stream:
            seen.append(event)
            if event["type"] == "session.thread_status_idle":
                break
    assert "".join(one["delta"]["content"]["text"] for one in of(seen, "event_delta")) == text(seen)
    assert "4.1 GB" in text(seen)


# Failures, outcomes, budgets.


@pytest.mark.parametrize(
    ("failure", "last"),
    [
        ("exhausted", "retries_exhausted"),
        ("refusal", "refusal"),
        ("rescheduled", "end_turn"),
        ("terminated", None),
    ],
)
async def test_a_failed_turn_ends_as_the_variant_says(
    serve: Serve, failure: Any, last: str | None
) -> None:
    client, _, session = await begun(serve, variant=ManagedAgentsVariant(failure=failure))
    # The strict client knows no session that runs again without an idle.
    strict = failure != "rescheduled"
    seen = await turn(client, session, message("script: fail"), strict=strict)
    retry = {"exhausted": "exhausted", "rescheduled": "retrying", "terminated": "terminal"}
    errors = [event["error"]["retry_status"]["type"] for event in of(seen, "session.error")]
    assert errors == ([] if failure == "refusal" else [retry[failure]])
    if last is None:
        assert seen[-1]["type"] == "session.status_terminated"
        status, words = await refusal(client, session, message("hi"))
        assert (status, words) == (400, f"Cannot send events to archived session: {session}")
        return
    assert seen[-1]["stop_reason"]["type"] == last
    assert ("stop_details" in seen[-1]) is (failure == "refusal")
    assert bool(of(seen, "session.status_rescheduled")) is (failure == "rescheduled")
    again = await turn(client, session, message("hi"))
    assert text(again).endswith("(turn 2)")


async def test_what_was_queued_behind_a_failed_turn_is_dropped(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    await client.send(session, message("script: fail"), message("two"))
    await until(lambda: talk.runner is None)
    assert talk.turns == 1
    assert (await client.events(session))[-1]["processed_at"] is None


@pytest.mark.parametrize(("most", "results"), [(1, 1), (3, 2)])
async def test_an_outcome_is_judged_after_the_work(serve: Serve, most: int, results: int) -> None:
    client, _, session = await begun(serve)
    outcome = {
        "type": "user.define_outcome",
        "description": "script: text",
        "rubric": {"type": "text", "content": "It names hours."},
        "max_iterations": most,
    }
    seen = await turn(client, session, outcome)
    assert kinds(seen)[0] == "user.define_outcome"
    found = [event["result"] for event in of(seen, "span.outcome_evaluation_end")]
    assert found == ["needs_revision", "satisfied"][-results:]
    shown = await client.call("GET", f"/v1/sessions/{session}")
    assert shown["outcome_evaluations"][0]["outcome_id"] == seen[0]["outcome_id"]


async def test_a_session_at_its_budget_takes_work_once_the_budget_changes(serve: Serve) -> None:
    client, service = await serve()
    budget = {"type": "limit", "max_list_cost": {"amount": "50", "currency": "USD"}}
    session = (await client.create(budget=budget))["id"]
    seen = await turn(client, session, message("hi"))
    assert seen[-1]["stop_reason"] == {"type": "budget_reached"}
    assert seen[-2]["budget"] == budget
    status, words = await refusal(client, session, message("more"))
    assert status == 400
    assert "budget" in words
    assert await client.send(session, {"type": "user.interrupt"}) == []
    await client.call("POST", f"/v1/sessions/{session}", {"budget": None})
    assert service.talk(session).primary.stored[-1].event["budget"] is None
    assert (await turn(client, session, message("more")))[-1]["stop_reason"]["type"] == "end_turn"


async def test_a_client_runs_the_built_in_tools_where_it_hosts_them(serve: Serve) -> None:
    client, talk, session = await begun(serve, variant=ManagedAgentsVariant(self_hosted=True))
    await turn(client, session, message("script: tools"))
    first, second = talk.waiting()

    def result(name: str) -> Event:
        content = [{"type": "text", "text": "done"}]
        kind = "user.tool_result"
        return {"type": kind, "tool_use_id": name, "content": content, "is_error": False}

    (held,) = await client.send(session, result(second))
    assert held["processed_at"] is None
    assert (await client.events(session))[-1] == held
    assert talk.waiting() == [first]
    await client.send(session, result(first))
    await until(lambda: talk.runner is None)
    listed = await client.events(session)
    names = [event["tool_use_id"] for event in of(listed, "user.tool_result")]
    assert names == [first, second]
    assert not of(listed, "agent.tool_result")


async def test_a_client_runs_a_built_in_tool_after_it_was_allowed(serve: Serve) -> None:
    client, talk, session = await begun(serve, variant=ManagedAgentsVariant(self_hosted=True))
    await turn(client, session, message("script: approve"))
    (name,) = talk.waiting()
    allow = {"type": "user.tool_confirmation", "tool_use_id": name, "result": "allow"}
    seen = await turn(client, session, allow, strict=False)
    assert seen[-1]["stop_reason"] == {"type": "requires_action", "event_ids": [name]}
    assert (await refusal(client, session, allow))[0] == 400
    result = {"type": "user.tool_result", "tool_use_id": name}
    seen = await turn(client, session, result, strict=False)
    assert "4.1 GB freed" in text(seen)


# Variants of what is sent.


async def test_another_server_names_calls_and_reasons_otherwise(serve: Serve) -> None:
    variant = ManagedAgentsVariant(
        permissions="policy", result_names="own", reason_ids="nested", error_form="flat"
    )
    client, talk, session = await begun(serve, variant=variant)
    seen = await turn(client, session, message("script: approve fails"), strict=False)
    (use,) = of(seen, "agent.tool_use")
    assert use["permission_policy"] == {"type": "always_ask"}
    assert "evaluated_permission" not in use
    assert seen[-1]["stop_reason"]["requires_action"] == {"event_ids": [use["id"]]}
    answer = {"type": "user.tool_confirmation", "tool_use_id": use["id"], "result": "allow"}
    await client.call("POST", f"/v1/sessions/{session}/events", {"events": [answer]})
    await until(lambda: talk.runner is None)
    listed = [stored.event for stored in talk.primary.stored]
    assert of(listed, "agent.tool_result")[0]["tool_use_id"] == use["tool_use_id"] != use["id"]
    (error,) = of(listed, "session.error")
    assert error["message"] == "LLM_RATE_LIMITED: The provider is limiting requests."
    assert "error" not in error


async def test_a_fresh_stream_may_replay_the_history(serve: Serve) -> None:
    for variant, turns in (
        (ManagedAgentsVariant(), 1),
        (ManagedAgentsVariant(fresh_stream="history"), 2),
    ):
        client, _, session = await begun(serve, variant=variant)
        await turn(client, session, message("one"), strict=False)
        seen: list[Event] = []
        path = f"/v1/sessions/{session}/events/stream"
        async with aclosing(raw_stream(client, path)) as stream:
            await anext(stream)
            await client.send(session, message("two"))
            async for event in stream:
                seen.append(event)
                if text(seen).endswith("(turn 2)"):
                    break
        assert len(of(seen, "user.message")) == turns


async def test_a_stream_begins_with_a_comment_and_is_kept_alive_by_others(serve: Serve) -> None:
    client, _, session = await begun(
        serve, heartbeat_s=0.01, variant=ManagedAgentsVariant(frame_names="type")
    )
    url = f"{client._base}/v1/sessions/{session}/events/stream"
    expected = b": connected\n\n:keepalive\n\n:keepalive\n\n"
    async with client._http.get(url, headers=client._headers) as response:
        assert await response.content.readexactly(len(expected)) == expected
        await client.send(session, message("hi"))
        async for line in response.content:
            if line.startswith(b"event"):
                break
        assert line == b"event: session.status_running\n"
        data = await response.content.readline()
    names = list(json.loads(data.removeprefix(b"data: ")))
    assert names == sorted(names)


async def test_previews_and_usage_may_be_missing(serve: Serve) -> None:
    variant = ManagedAgentsVariant(previews=False, usage=False)
    client, _, session = await begun(serve, variant=variant)
    seen = await turn(client, session, message("hi"), strict=False, query="?event_deltas[]=x")
    assert not of(seen, "event_start") + of(seen, "session.usage")


@pytest.mark.parametrize(("order", "last"), [("processed", "user.message"), ("stored", None)])
async def test_a_list_is_sorted_as_the_variant_says(
    serve: Serve, order: Any, last: str | None
) -> None:
    variant = ManagedAgentsVariant(list_order=order, inputs="unprocessed")
    client, _, session = await begun(serve, variant=variant)
    await turn(client, session, message("hi"))
    listed = await client.events(session)
    place = -1 if last else 0
    assert listed[place]["type"] == "user.message"


# Refusals.


async def test_the_key_counts_in_either_header(serve: Serve) -> None:
    client, service = await serve()
    client._headers["authorization"] = "Bearer wrong"
    with pytest.raises(Refused) as refused:
        await client.create()
    assert (refused.value.status, refused.value.code) == (401, "authentication_error")
    del client._headers["authorization"]
    client._headers["x-api-key"] = KEY
    await client.create()
    assert len(service.talks) == 1


@pytest.mark.parametrize("name", ["anthropic-beta", "anthropic-version"])
async def test_a_header_that_is_missing_is_named(serve: Serve, name: str) -> None:
    client, _, session = await begun(serve)
    client._headers[name] = "other"
    paths = {"": 400, "/threads": 404 if name == "anthropic-beta" else 400}
    for path, status in paths.items():
        with pytest.raises(Refused) as refused:
            await client.call("GET", f"/v1/sessions/{session}{path}")
        assert refused.value.status == status
    lenient, _ = await serve(variant=ManagedAgentsVariant(strict=False))
    lenient._headers[name] = "other"
    await lenient.create(anything=1)


async def test_while_calls_wait_a_message_is_refused_in_the_services_words(serve: Serve) -> None:
    client, talk, session = await begun(serve)
    await turn(client, session, message("script: approve2"))
    first, second = talk.waiting()
    allowed = (
        "only `user.tool_confirmation`, `user.custom_tool_result`, `user.tool_result`, or "
        "`user.interrupt` may be sent"
    )
    assert await refusal(client, session, message("hi")) == (
        400,
        "Invalid user.message event at events[0]: waiting on responses to events "
        f"[{first}, {second}]; {allowed}",
    )
    answer = {"type": "user.tool_confirmation", "tool_use_id": first, "result": "allow"}
    assert (await refusal(client, session, answer, message("hi")))[1].startswith(
        "Invalid user.message event at events[1]: waiting on responses"
    )
    assert talk.waiting() == [first, second]
    await client.send(session, answer)
    assert f"events [{second}]" in (await refusal(client, session, answer))[1]
    assert (await refusal(client, session, custom_result(second, "x")))[0] == 400
    assert (await refusal(client, session, {**answer, "tool_use_id": "sevt_x"}))[0] == 400


async def test_a_message_while_calls_wait_may_be_queued(serve: Serve) -> None:
    client, talk, session = await begun(serve, variant=ManagedAgentsVariant(while_waiting="queued"))
    await turn(client, session, message("script: approve"))
    await client.send(session, message("two"))
    kind = "user.tool_confirmation"
    await client.send(session, {"type": kind, "tool_use_id": talk.waiting()[0], "result": "deny"})
    await until(lambda: talk.turns == 2 and talk.runner is None)
    assert text(await client.events(session)).endswith("“two”. (turn 2)")


async def test_a_message_right_after_the_last_answer_may_be_refused_once(serve: Serve) -> None:
    variant = ManagedAgentsVariant(after_answer="refused_once")
    client, talk, session = await begun(serve, variant=variant)
    await turn(client, session, message("script: approve"))
    (name,) = talk.waiting()
    answer = {"type": "user.tool_confirmation", "tool_use_id": name, "result": "allow"}
    await client.send(session, answer)
    assert (
        f"waiting on responses to events [{name}]"
        in (await refusal(client, session, message("hi")))[1]
    )
    await client.send(session, message("hi"))


async def test_a_message_while_a_turn_runs_may_be_a_conflict(serve: Serve) -> None:
    variant = ManagedAgentsVariant(while_running="conflict", archived_status=409)
    client, talk, session = await begun(serve, variant=variant)
    talk.stuck = True
    await client.send(session, message("one"))
    url = f"{client._base}/v1/sessions/{session}/events"
    body = {"events": [message("two")]}
    async with client._http.post(url, json=body, headers=client._headers) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["type"]) == (409, "conflict_error")
    for path, method in (("/archive", "POST"), ("", "DELETE")):
        with pytest.raises(Refused) as refused:
            await client.call(method, f"/v1/sessions/{session}{path}")
        assert refused.value.status == 400
    await client.send(session, {"type": "user.interrupt"})
    await until(lambda: talk.runner is None)
    await client.call("POST", f"/v1/sessions/{session}/archive")
    async with client._http.post(url, json=body, headers=client._headers) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["type"]) == (409, "invalid_request_error")


BLOCK = {"type": "text", "text": "x"}


@each(
    "event",
    [
        {"type": "user.dance"},
        {"type": "agent.message", "content": [BLOCK]},
        {"type": "user.message"},
        {"type": "user.message", "content": "x"},
        {"type": "user.message", "content": []},
        {"type": "user.message", "content": [{"type": "redacted"}]},
        {"type": "user.message", "content": [BLOCK], "extra": 1},
        {"type": "user.message", "content": [{**BLOCK, "extra": 1}]},
        {"type": "user.message", "content": [{"type": "image", "source": {"type": "url"}}]},
        {"type": "user.interrupt", "session_thread_id": "sthr_other"},
        {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "maybe"},
        {
            "type": "user.tool_confirmation",
            "tool_use_id": "t",
            "result": "allow",
            "deny_message": "x",
        },
        {"type": "user.custom_tool_result", "custom_tool_use_id": "t", "is_error": "no"},
        {"type": "user.define_outcome", "description": "x", "rubric": "y"},
        {
            "type": "user.define_outcome",
            "description": "x",
            "rubric": {"type": "file", "file_id": "f"},
            "max_iterations": 21,
        },
        {"type": "system.message", "content": [{"type": "image"}]},
    ],
)
async def test_an_event_that_the_page_does_not_have_is_refused(serve: Serve, event: Event) -> None:
    client, talk, session = await begun(serve)
    assert (await refusal(client, session, event))[0] == 400
    system = {"type": "system.message", "content": [BLOCK]}
    assert (await refusal(client, session, system, message("hi")))[0] == 400
    assert talk.primary.stored == []


@each(
    "members",
    [
        {"title": 1},
        {"metadata": {"a": 1}},
        {"metadata": {str(n): "" for n in range(17)}},
        {"budget": {"type": "limit", "max_list_cost": {"amount": "1.5", "currency": "USD"}}},
        {"initial_events": [{"type": "user.interrupt"}]},
        {"resources": [{"type": "file"}]},
        {"agent": {"type": "other", "id": "a"}},
        {"agent": ""},
        {"environment_id": None},
        {"extra": 1},
    ],
)
async def test_a_create_that_the_page_does_not_have_is_refused(
    serve: Serve, members: Event
) -> None:
    client, service = await serve()
    with pytest.raises(Refused) as refused:
        await client.create(**members)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request_error")
    assert service.talks == {}


async def test_a_server_may_not_know_initial_events(serve: Serve) -> None:
    client, _ = await serve(variant=ManagedAgentsVariant(initial_events=False, create_status=201))
    with pytest.raises(Refused) as refused:
        await client.create(initial_events=[message("hi")])
    assert refused.value.status == 422
    url = f"{client._base}/v1/sessions"
    body = {"agent": "a", "environment_id": "e"}
    async with client._http.post(url, json=body, headers=client._headers) as response:
        assert response.status == 201


async def test_a_session_begins_its_initial_events(serve: Serve) -> None:
    client, service = await serve()
    agent = {"type": "agent_with_overrides", "id": "agent_7", "system": "Be brief."}
    body = await client.create(agent=agent, initial_events=[message("one"), message("two")])
    talk = service.talk(body["id"])
    assert (body["status"], body["agent"]["system"]) == ("running", "Be brief.")
    await until(lambda: talk.turns == 2 and talk.runner is None)
    assert text(await client.events(body["id"])).endswith("“two”. (turn 2)")


# Lists, updates, ends.


async def test_a_list_is_filtered_and_comes_in_pages(serve: Serve) -> None:
    client, _, session = await begun(serve, variant=ManagedAgentsVariant(page_limit=3))
    await turn(client, session, message("script: text"))
    whole = await client.events(session)
    assert await client.events(session, limit=2) == whole
    assert await client.events(session, order="desc", limit=2) == whole[::-1]
    types = {"types[]": ["agent.message", "user.message"]}
    assert kinds(await client.events(session, **types)) == ["user.message", "agent.message"]
    at = whole[3]["processed_at"]
    assert await client.events(session, **{"created_at[gt]": at}) == whole[4:]
    assert await client.events(session, **{"created_at[lte]": at}) == whole[:4]
    path = f"/v1/sessions/{session}/events"
    cursor = (await client.call("GET", path))["next_page"]
    for query in (
        {"page": cursor, "order": "desc"},
        {"page": "x"},
        {"limit": "0"},
        {"order": "up"},
        {"after_seq": "1"},
        {"created_at[gt]": "today"},
    ):
        with pytest.raises(Refused) as refused:
            await client.call("GET", path, params=query)
        assert refused.value.status == 400
    await client.call("GET", path, params={"beta": "true"})


async def test_a_stream_takes_two_types_to_preview_and_nothing_else(serve: Serve) -> None:
    client, _, session = await begun(serve)
    path = f"/v1/sessions/{session}/events/stream"
    for query in ("event_deltas[]=agent.tool_use", "after_seq=1"):
        with pytest.raises(Refused) as refused:
            await client.call("GET", f"{path}?{query}")
        assert refused.value.status == 400


async def test_sessions_are_listed_changed_archived_and_deleted(serve: Serve) -> None:
    client, service = await serve()
    first = await client.create(agent="agent_1", metadata={"a": "1"})
    second = await client.create(agent="agent_2")
    path = f"/v1/sessions/{first['id']}"
    names = [one["id"] for one in await client.all_of("/v1/sessions", limit=1)]
    assert names == [second["id"], first["id"]]
    assert await client.all_of("/v1/sessions", agent_id="agent_1") == [first]
    async with asyncio.timeout(SOON_S), aclosing(client.stream(first["id"])) as stream:
        await anext(stream)
        changes = {"title": "T", "metadata": {"a": None, "b": "2"}}
        changed = await client.call("POST", path, changes)
        assert (changed["title"], changed["metadata"]) == ("T", {"b": "2"})
        updated = await anext(stream)
        assert (updated["title"], updated["metadata"]) == ("T", {"b": "2"})
        with pytest.raises(Refused):
            await client.call("POST", path, {"vault_ids": []})
        archived = await client.call("POST", f"{path}/archive")
        assert archived["status"] == "terminated"
        assert (await anext(stream))["type"] == "session.status_terminated"
        status, words = await refusal(client, first["id"], message("hi"))
        assert (status, words) == (400, f"Cannot send events to archived session: {first['id']}")
        assert await client.all_of("/v1/sessions") == [second]
        assert len(await client.all_of("/v1/sessions", include_archived="true")) == 2
        gone = await client.call("DELETE", path)
        assert gone == {"id": first["id"], "type": "session_deleted"}
        assert [event["type"] async for event in stream] == ["session.deleted"]
    with pytest.raises(Refused) as refused:
        await client.call("GET", path)
    assert refused.value.code == "not_found_error"
    assert list(service.talks) == [second["id"]]


# Faults and the rest.


@pytest.mark.parametrize("fault", [Cut(after_event=3), LoseTurn(2)])
async def test_a_stream_breaks_where_the_plan_says(serve: Serve, fault: Any) -> None:
    client, talk, session = await begun(serve, faults=Faults({("stream", 1): fault}))
    with pytest.raises(Disconnected):
        await turn(client, session, message("script: slow 5"))
    await until(lambda: talk.runner is None)
    assert talk.status == "idle"


async def test_a_request_is_refused_on_purpose(serve: Serve) -> None:
    plan = {("create", 1): Status(429, retry_after=3), ("send", 1): Status(529)}
    client, _ = await serve(faults=Faults(plan))
    with pytest.raises(Refused) as refused:
        await client.create()
    assert (refused.value.code, refused.value.headers["Retry-After"]) == ("rate_limit_error", "3")
    session = (await client.create())["id"]
    assert (await refusal(client, session, message("hi")))[0] == 529


async def test_the_service_stops_with_turns_and_streams_open(serve: Serve) -> None:
    client, service = await serve(pace=1.0)
    session = (await client.create())["id"]
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.send(session, message("script: slow 100"))
        await anext(stream)
        async with asyncio.timeout(SOON_S):
            await service.stop()
            rest = [seen["type"] async for seen in stream]
        assert "session.status_idle" not in rest


def test_managed_agents_is_in_the_list_of_backends() -> None:
    app = BACKENDS["managed-agents"](ScriptedOptions(key="k", pace=0.5))
    assert app[MANAGED_AGENTS].pace == 0.5
    assert app[MANAGED_AGENTS].admits("k")
    assert not app[MANAGED_AGENTS].admits("other")


def test_every_script_is_played_by_a_test_of_this_file() -> None:
    words = Path(__file__).read_text()
    played = [name for name in SCRIPT_NAMES if f'"{name}' in words or f"script: {name}" in words]
    assert played == list(SCRIPT_NAMES)


def test_every_choice_of_a_variant_is_explained() -> None:
    explained = (ManagedAgentsVariant.__doc__ or "").split("Args:")[1]
    for field in dataclasses.fields(ManagedAgentsVariant):
        assert f"        {field.name}: " in explained
