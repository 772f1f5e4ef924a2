"""The scripted Managed Agents service, driven by the strict client: scripts, variants, refusals."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from proxy.scripted.managed_agents import MANAGED_AGENTS, create_managed_agents_app
from proxy.scripted.managed_agents_frames import BODIES, EVENTS, OTHERS
from proxy.scripted.managed_agents_turns import (
    ScriptedManagedAgents,
)
from proxy.scripted.templates import dump
from tests.support.each import each
from tests.support.managed_agents_client import (
    Event,
    ManagedAgentsClient,
    check_join,
    message,
)
from tests.support.waiting import SOON_S

KEY = "sk-local-9"
NONE: tuple[Event, ...] = ()

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


async def raw_stream(client: ManagedAgentsClient, path: str) -> AsyncIterator[Event]:
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
    async with asyncio.timeout(SOON_S), aclosing(streamed) as stream:  # type: ignore[type-var]
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
