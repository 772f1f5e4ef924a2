"""The scripted Herm, driven by the strict Herm client: scripts, variants, refusals, faults."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import (
    Cut,
    Fault,
    Faults,
    Garbage,
    HalfFrame,
    LoseTurn,
    Redirect,
    Status,
    WrongContentType,
)
from proxy.scripted.herm import HERM, create_herm_app
from proxy.scripted.herm_frames import BODIES, EVENTS
from proxy.scripted.herm_turns import HermVariant, ScriptedHerm
from proxy.scripted.scripts import SCRIPT_NAMES
from proxy.scripted.templates import dump
from tests.support.each import each
from tests.support.herm_client import (
    Disconnected,
    Envelope,
    Expect,
    HermClient,
    HermTurn,
    ProtocolViolation,
    Refused,
    StreamChecker,
    check_join,
    message,
)
from tests.support.waiting import SOON_S

KEY = "k-local-9"
WIRE = Path(__file__).parent.parent / "fixtures" / "wire" / "herm"
ALLOW = {"type": "user.tool_confirmation", "result": "allow"}
DENY = {"type": "user.tool_confirmation", "result": "deny"}

Served = tuple[HermClient, ScriptedHerm]
Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start scripted Herms; each call gives a strict client of a new one and its state."""
    closing: list[Callable[[], Awaitable[None]]] = []

    async def start(*, expect: Expect | None = None, **options: Any) -> Served:
        app = create_herm_app(**{"key": KEY, "pace": 0.0, **options})
        server = TestServer(app)
        await server.start_server(shutdown_timeout=1.0)
        session = aiohttp.ClientSession()
        closing.extend((session.close, server.close))
        return HermClient(session, str(server.make_url("")), KEY, expect=expect), app[HERM]

    yield start
    for close in closing:
        await close()


@each("name", [*EVENTS, *BODIES])
def test_every_template_names_its_section_and_how_sure_it_is(name: str) -> None:
    template = EVENTS.get(name) or BODIES[name]
    assert re.fullmatch(r"herm page, section [2-6](\.\d)? \([DOI]\)", template.source)
    assert dump(json.loads(template.data)) == template.data
    assert name not in EVENTS or name == "envelope" or json.loads(template.data)["type"] == name


@pytest.mark.parametrize(
    ("template", "name"),
    [("session", "http-create.response.json"), ("envelope", "http-list.response.json")],
)
def test_the_pages_examples_are_the_templates(template: str, name: str) -> None:
    body = json.loads((WIRE / name).read_text())
    if template == "envelope":
        assert EVENTS["envelope"].filled() == body["data"][0]
    else:
        assert BODIES["session"].filled() == body


# Scripts.


@pytest.mark.parametrize(
    ("script", "answers", "said"),
    [
        ("text", [], "Basil likes six hours of sun"),
        ("reason", [], "so 19.99 becomes 1998."),
        ("tool", [], "Checking the rounding helper."),
        ("tools", [], "without a guard."),
        ("toolfail", [], "must be connected again."),
        ("approve", [ALLOW], "4.1 GB freed."),
        ("approve", [DENY], "I left /srv/exports/2024 alone."),
        ("approve2", [ALLOW, DENY], "I left /etc/hosts alone."),
        ("approve-twice", [ALLOW, DENY], "I left /etc/hosts alone."),
        ("ask", [{"type": "user.clarify_result", "answer": "09:10"}], "a seat on the 09:10."),
        ("askopen", [{"type": "user.clarify_result", "answer": ""}], "the name (skipped)."),
        (
            "custom",
            [{"type": "user.custom_tool_result", "content": [{"type": "text", "text": "7"}]}],
            "The application says: 7",
        ),
        ("secret", [{"type": "user.secret_result", "value": "v"}], "The token works."),
        ("secret", [{"type": "user.secret_result", "value": ""}], "I stop here."),
        ("sudo", [{"type": "user.sudo_result", "password": "p"}], "The update is installed."),
        ("child", [], "The researcher says: 84 m."),
        ("childask", [ALLOW], "The cleaner is done."),
        ("structured", [], "Herm has no structured results."),
        ("signin", [], "Herm has no sign-in to ask for."),
        ("limit", [], "Herm has no limit to ask about."),
        ("long 50", [], "tick 49 "),
        ("slow 3", [], "tick 2 "),
        ("compact", [], "I have shortened my notes."),
        ("memory", [], "I noted which files to check."),
    ],
)
async def test_a_script_tells_its_story(
    serve: Serve, script: str, answers: list[Envelope], said: str
) -> None:
    client, herm = await serve()
    session = (await client.create())["id"]
    turn = await client.turn(session, f"script: {script}", answers)
    assert said in turn.text
    assert turn.text == turn.streamed
    assert turn.text.endswith("(turn 1)")
    check_join(turn.envelopes, await client.list(session, limit=7))
    assert herm.refusals == []


async def test_a_failing_turn_says_so(serve: Serve) -> None:
    client, _ = await serve()
    session = (await client.create())["id"]
    for script in ("fail", "failmid"):
        turn = await client.turn(session, f"script: {script}")
        assert turn.stop_reason["type"] == "error"
        assert "LLM_" in turn.stop_reason["message"]
    assert (await client.turn(session, "hi")).text.endswith("(turn 3)")


async def test_the_first_turn_gives_a_title_live_only(serve: Serve) -> None:
    client, _ = await serve()
    session = (await client.create(title="Old"))["id"]
    seen: Envelope = {}
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "hi")
        async for seen in stream:
            if seen["type"] == "session.title_updated":
                break
    assert (await client.get(session))["title"] == seen["payload"]["title"]
    assert seen["id"] not in {item["id"] for item in await client.list(session)}


async def test_steering_shows_in_the_text_and_makes_no_status(serve: Serve) -> None:
    client, _ = await serve(pace=1.0)
    session = (await client.create())["id"]
    turn = HermTurn()
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: slow 5")
        async for seen in stream:
            turn.envelopes.append(seen)
            if len(turn.envelopes) == 3:
                await client.post(session, {"type": "user.steer", "message": "left"})
            if seen["type"] == "session.status_idle":
                break
    assert "(Steered: left)" in turn.text
    assert turn.types.count("session.status_running") == 1


@pytest.mark.parametrize("reason", ["end_turn", "error"])
async def test_an_interrupt_drops_what_is_asked(serve: Serve, reason: Any) -> None:
    client, _ = await serve(variant=HermVariant(interrupt_reason=reason))
    session = (await client.create())["id"]
    turn = await client.turn(
        session, "script: approve", lambda turn: [{"type": "user.interrupt", "message": "no"}]
    )
    assert turn.stop_reason["type"] == reason
    asked = turn.payloads("agent.tool_use")[0]["id"]
    with pytest.raises(Refused) as refused:
        await client.post(session, {**ALLOW, "tool_use_id": asked})
    assert (refused.value.status, refused.value.code) == (409, "already_answered")


async def test_a_message_and_its_interrupt_in_one_batch_leave_an_idle_session(
    serve: Serve,
) -> None:
    client, herm = await serve(pace=1.0)
    session = (await client.create())["id"]
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.post(session, message("script: slow 50"), {"type": "user.interrupt"})
        async for seen in stream:
            if seen["type"] == "session.status_idle":
                break
    assert herm.talk(session).runner is None


# Variants.

VARIANTS: dict[str, tuple[HermVariant, Expect]] = {
    "echo": (HermVariant(echo_inputs=True), Expect(inputs=True)),
    "equal": (HermVariant(delta_numbers="equal"), Expect(numbered_deltas=False)),
    "none": (HermVariant(delta_numbers="none"), Expect(numbered_deltas=False)),
    "data": (HermVariant(lines="data"), Expect(three_lines=False)),
    "envelope": (HermVariant(event_ids="envelope"), Expect(payload_ids=False)),
    "unknown": (HermVariant(), Expect(known_types=False)),
}


@pytest.mark.parametrize("name", VARIANTS)
async def test_a_lenient_reader_reads_a_variant_and_a_strict_one_refuses_it(
    serve: Serve, name: str
) -> None:
    variant, expect = VARIANTS[name]
    script = {"envelope": "approve", "unknown": "unknown"}.get(name, "text")
    for asked, strict in ((expect, False), (Expect(), True)):
        client, _ = await serve(variant=variant, expect=asked)
        session = (await client.create())["id"]

        def answers(turn: HermTurn) -> list[Envelope]:
            return [{**ALLOW, "tool_use_id": turn.payloads("agent.tool_use")[0]["id"]}]

        playing = client.turn(session, f"script: {script}", answers)
        if strict:
            with pytest.raises(ProtocolViolation):
                await playing
        else:
            assert (await playing).text.endswith("(turn 1)")


async def test_a_fresh_stream_replays_or_starts_live(serve: Serve) -> None:
    for variant, first in ((HermVariant(), 3), (HermVariant(fresh_stream="history"), 2)):
        client, herm = await serve(variant=variant)
        session = (await client.create())["id"]
        await client.turn(session, "one")
        checker = client.stream(session, query="?")
        async with aclosing(checker) as stream:
            await anext(stream)
            await client.say(session, "two")
            seen = await anext(stream)
        running = [
            entry.envelope["sequence"]
            for entry in herm.talk(session).entries
            if entry.envelope["type"] == "session.status_running"
        ]
        assert seen["sequence"] == (running[1] if first == 3 else running[0])


async def test_a_resumed_stream_replays_what_was_missed(serve: Serve) -> None:
    client, _ = await serve()
    session = (await client.create())["id"]
    turn = await client.turn(session, "script: tool")
    async with aclosing(client.stream(session, turn.envelopes[4]["id"])) as stream:
        await anext(stream)
        again = [await anext(stream) for _ in turn.envelopes[5:]]
    assert again == turn.envelopes[5:]


@pytest.mark.parametrize(("form", "taken"), [("any", "oas"), ("events", "o"), ("single", "s")])
async def test_a_batch_has_the_spellings_of_the_variant(
    serve: Serve, form: Any, taken: str
) -> None:
    client, _ = await serve(variant=HermVariant(body=form))
    bodies = {"o": {"events": [message("x")]}, "a": [message("x")], "s": message("x")}
    for name, body in bodies.items():
        session = (await client.create())["id"]
        path = f"/v1/sessions/{session}/events"
        if name in taken:
            status, answer = await client.call("POST", path, body)
            assert (status, answer["data"][0]["status"]) == (202, "pending")
        else:
            with pytest.raises(Refused) as refused:
                await client.call("POST", path, body)
            assert refused.value.status == 400


@pytest.mark.parametrize("form", ["nested", "flat", "plain"])
async def test_an_error_has_the_form_of_the_variant(serve: Serve, form: Any) -> None:
    client, _ = await serve(variant=HermVariant(error_form=form))
    with pytest.raises(Refused) as refused:
        await client.get("nothing")
    assert (refused.value.status, refused.value.code) == (404, "not_found")


# Refusals.


async def test_the_key_is_checked_before_anything_else(serve: Serve) -> None:
    client, herm = await serve()
    client._headers = {"Authorization": "Bearer wrong"}
    for method, path in (("GET", "/v1/sessions"), ("POST", "/v1/agents/a/sessions")):
        with pytest.raises(Refused) as refused:
            await client.call(method, path)
        assert (refused.value.status, refused.value.code) == (401, "unauthorized")
    assert herm.talks == {}


async def test_one_turn_at_a_time_and_each_answer_once(serve: Serve) -> None:
    client, _ = await serve()
    session = (await client.create())["id"]

    async def refused(*events: Envelope) -> tuple[int, str | None]:
        with pytest.raises(Refused) as caught:
            await client.post(session, *events)
        return caught.value.status, caught.value.code

    assert await refused({"type": "user.steer", "message": "x"}) == (409, "no_turn_running")
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: approve")
        async for seen in stream:
            if seen["type"] == "session.status_idle":
                break
        name = seen["payload"]["stop_reason"]["event_ids"][0]
        assert await refused(message("hi")) == (409, "turn_running")
        assert await refused({**ALLOW, "tool_use_id": "other"}) == (400, "unknown_request")
        wrong = {"type": "user.clarify_result", "request_id": name, "answer": "x"}
        assert await refused(wrong) == (400, "validation_error")
        await client.post(session, {**ALLOW, "tool_use_id": name})
        assert await refused({**DENY, "tool_use_id": name}) == (409, "already_answered")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "user.dance"},
        {"type": "user.message", "content": []},
        {"type": "user.message", "content": [{"type": "text", "text": "x" * 20_001}]},
        {"type": "user.message", "content": [{"type": "image"}]},
        {"type": "user.message", "content": [{"type": "text", "text": "x"}], "extra": 1},
        {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "maybe"},
        {"type": "user.steer"},
    ],
)
async def test_what_the_page_does_not_have_is_refused(serve: Serve, event: Envelope) -> None:
    client, herm = await serve()
    session = (await client.create())["id"]
    with pytest.raises(Refused) as refused:
        await client.post(session, event)
    assert (refused.value.status, refused.value.code) == (400, "validation_error")
    assert herm.talk(session).entries == []


async def test_sessions_are_listed_changed_archived_and_deleted(serve: Serve) -> None:
    client, herm = await serve()
    session = (await client.create(userId="u", metadata={"a": 1}))["id"]
    await client.create()
    _, found = await client.call("GET", "/v1/sessions", params={"userId": "u", "limit": "1"})
    assert [item["id"] for item in found["data"]] == [session]
    path = f"/v1/sessions/{session}"
    _, changed = await client.call("PATCH", path, {"title": "T", "metadata": {"b": 2}})
    assert (changed["title"], changed["metadata"]) == ("T", {"a": 1, "b": 2})
    with pytest.raises(Refused):
        await client.call("PATCH", path, {"userId": "v"})
    _, archived = await client.call("POST", f"{path}/archive")
    assert archived["status"] == "archived"
    with pytest.raises(Refused) as refused:
        await client.say(session, "hi")
    assert refused.value.status == 409
    assert (await client.call("DELETE", path))[0] == 204
    assert session not in herm.talks


# Faults.


@pytest.mark.parametrize(
    "fault", [Cut(after_event=3), Cut(at_byte=500), HalfFrame(2), LoseTurn(2), Cut(3, clean=True)]
)
async def test_a_stream_breaks_where_the_plan_says(serve: Serve, fault: Any) -> None:
    client, _ = await serve(faults=Faults({("stream", 1): fault}))
    session = (await client.create())["id"]
    with pytest.raises(Disconnected):
        await client.turn(session, "script: tool")
    listed = await client.list(session)
    if isinstance(fault, LoseTurn):
        assert [seen["type"] for seen in listed][-1] != "session.status_idle"


async def test_garbage_comes_in_between(serve: Serve) -> None:
    client, _ = await serve(faults=Faults({("stream", 1): Garbage(2)}))
    session = (await client.create())["id"]
    with pytest.raises(ProtocolViolation):
        await client.turn(session, "script: tool")


async def test_requests_are_refused_and_redirected_on_purpose(serve: Serve) -> None:
    plan: dict[tuple[str, int], Fault] = {
        ("create", 1): Status(429, retry_after=3),
        ("create", 2): Redirect(),
        ("create", 3): Status(409),
        ("list", 1): WrongContentType(),
    }
    client, _ = await serve(faults=Faults(plan))
    with pytest.raises(Refused) as refused:
        await client.create()
    assert (refused.value.code, refused.value.headers["Retry-After"]) == ("rate_limited", "3")
    with pytest.raises(aiohttp.ClientConnectorError):
        await client.create()
    with pytest.raises(Refused) as refused:
        await client.create()
    assert refused.value.code == "deployment_not_ready"
    session = (await client.create())["id"]
    url = f"{client._base}/v1/sessions/{session}/events"
    async with client._http.get(url, headers=client._headers) as response:
        assert response.content_type == "text/html"


async def test_comments_keep_a_silent_stream_alive(serve: Serve) -> None:
    client, herm = await serve(heartbeat_s=0.01)
    session = (await client.create())["id"]
    url = f"{client._base}/v1/sessions/{session}/events/stream"
    async with client._http.get(url, headers=client._headers) as response:
        data = await response.content.readexactly(len(b": heartbeat\n\n") * 2)
    assert data == b": heartbeat\n\n" * 2
    assert [received.route for received in herm.received] == ["create", "stream"]


# The strict client.


def frame(seen: Envelope, **lines: str) -> bytes:
    fields = {"event": seen["type"], "id": seen["id"], "data": dump(seen), **lines}
    return "".join(f"{name}: {value}\n" for name, value in fields.items()).encode() + b"\n"


def seen(number: int, type_: str, **payload: Any) -> Envelope:
    return EVENTS["envelope"].filled(
        id=f"evt_{number}", type=type_, sequence=number, payload={"type": type_, **payload}
    )


RUNNING = frame(seen(1, "session.status_running"))
DELTA = seen(2, "agent.message", delta=True, content=[{"type": "text", "text": "Hi"}])
FINAL = seen(3, "agent.message", delta=False, content=[{"type": "text", "text": "Hi"}])
IDLE = seen(4, "session.status_idle", stop_reason={"type": "end_turn"})


@each(
    ("data", "reason"),
    [
        (RUNNING + RUNNING, "an id comes twice"),
        (RUNNING + frame({**DELTA, "sequence": 1}), "does not rise"),
        (RUNNING + frame(DELTA, event="agent.thinking"), "not the type"),
        (RUNNING + frame(DELTA, id="evt_9"), "not the id"),
        (RUNNING + frame({**DELTA, "type": "agent.thinking"}), "`payload.type`"),
        (RUNNING + frame(DELTA) + frame(IDLE), "was not closed"),
        (RUNNING + frame({**FINAL, "createdAt": "today"}), "not an ISO 8601"),
        (RUNNING + frame({**FINAL, "status": "fine"}), "unknown status"),
        (RUNNING + frame(IDLE) + frame({**DELTA, "id": "e", "sequence": 9}), "idle"),
        (
            RUNNING
            + frame(seen(2, "session.status_idle", stop_reason={"type": "requires_action"})),
            "`event_ids`",
        ),
        (
            RUNNING
            + frame(
                seen(
                    2,
                    "session.status_idle",
                    stop_reason={"type": "requires_action", "event_ids": ["evt_1"]},
                )
            ),
            "`event_ids` name",
        ),
        (RUNNING + frame(seen(2, "agent.dance")), "unknown type"),
        (RUNNING + frame(seen(2, "user.message", content=[])), "an input"),
        (b"data: {}\n\n", "not `event:`"),
        (
            RUNNING
            + frame(DELTA)
            + frame({**FINAL, "payload": {**FINAL["payload"], "content": []}}),
            "the deltas were",
        ),
    ],
)
def test_the_strict_client_names_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolViolation) as violated:
        StreamChecker().feed(data)
    assert reason in violated.value.reason


def test_the_strict_client_takes_a_whole_turn() -> None:
    checker = StreamChecker("session_7c")
    data = RUNNING + b": heartbeat\n\n" + frame(DELTA) + frame(FINAL) + frame(IDLE)
    found = [envelope for byte in data for envelope in checker.feed(bytes([byte]))]
    checker.close()
    assert len(found) == 4
    assert checker.comments == 1


def test_the_join_finds_what_a_list_lacks() -> None:
    held = [DELTA, FINAL, IDLE]
    check_join(held, [FINAL, IDLE])
    for listed in ([IDLE], [IDLE, FINAL], [FINAL, {**IDLE, "status": "failed"}], [DELTA, FINAL]):
        with pytest.raises(ProtocolViolation):
            check_join(held, listed)


def test_herm_is_in_the_list_of_backends() -> None:
    app = BACKENDS["herm"](ScriptedOptions(key="k", pace=0.5))
    assert app[HERM].pace == 0.5
    assert app[HERM].admits("Bearer k")
    assert not app[HERM].admits("Basic k")


def test_every_script_is_played_by_a_test_of_this_file() -> None:
    text = Path(__file__).read_text()
    played = [name for name in SCRIPT_NAMES if f'"{name}' in text or f"script: {name}" in text]
    assert played == list(SCRIPT_NAMES)


def test_every_choice_of_a_variant_is_explained() -> None:
    explained = (HermVariant.__doc__ or "").split("Args:")[1]
    for field in dataclasses.fields(HermVariant):
        assert f"        {field.name}: " in explained


async def test_the_backend_stops_with_turns_and_streams_open(serve: Serve) -> None:
    client, herm = await serve(pace=1.0)
    session = (await client.create())["id"]
    async with aclosing(client.stream(session)) as stream:
        await anext(stream)
        await client.say(session, "script: slow 100")
        await anext(stream)
        async with asyncio.timeout(SOON_S):
            await herm.stop()
            rest = [seen["type"] async for seen in stream]
        assert "session.status_idle" not in rest
