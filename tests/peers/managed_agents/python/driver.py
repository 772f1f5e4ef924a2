"""Talks to a managed-agents face with an unmodified `anthropic` of some release, in the way that
its documentation tells people to.

It runs in an environment of its own: `driver.py URL SCENE...` prints `PASS` or `FAIL` for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any

import anthropic  # type: ignore[import-not-found,unused-ignore]

VERSION = tuple(int(part) for part in version("anthropic").split(".")[:2])
TEXT = "script: text"
OPTIONS: dict[str, Any] = {"api_key": "sk-demo", "max_retries": 0, "timeout": 120}


def message(text: str) -> dict[str, Any]:
    """Return a `user.message`."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def words(event: Any) -> str:
    """Return the text of an event's blocks."""
    return "".join(block.text for block in event.content if block.type == "text")


def check(holds: object, shown: object) -> None:
    """Check what must hold.

    Raises:
        AssertionError: it does not; the text says what there was instead.
    """
    if not holds:
        raise AssertionError(shown)


def refused(do: Callable[[], Any], kind: Any, text: str = "") -> Any:
    """Return the refusal of a kind that something must meet, which no SDK repeats."""
    try:
        do()
    except kind as error:
        check(text in str(error), error)
        check(error.response.headers["x-should-retry"] == "false", error.response.headers)
        return error
    raise AssertionError(f"it was not refused: {kind}")


def start(sdk: Any, **more: Any) -> str:
    """Make agent, environment and session as the quickstart does."""
    agent = sdk.beta.agents.create(
        name="Coding Assistant",
        model="claude-opus-4-7",
        system="You are a helpful coding assistant.",
        tools=[{"type": "agent_toolset_20260401"}],
    )
    environment = sdk.beta.environments.create(
        name="quickstart-env", config={"type": "cloud", "networking": {"type": "unrestricted"}}
    )
    session = sdk.beta.sessions.create(
        agent=agent.id, environment_id=environment.id, title="Quickstart session", **more
    )
    check(session.status in ("idle", "running"), session.status)
    return str(session.id)


def play(sdk: Any, session: str, *events: Any) -> list[Any]:
    """Open the stream, send, and read to the end of the turn or to a pause."""
    found = []
    with sdk.beta.sessions.events.stream(session) as stream:
        sdk.beta.sessions.events.send(session, events=list(events))
        for event in stream:
            found.append(event)
            if event.type == "session.status_idle":
                return found
    raise AssertionError(f"the stream ended: {[event.type for event in found]}")


def check_text(found: Sequence[Any]) -> None:
    """Check that a turn has said something and ended well."""
    said = [words(event) for event in found if event.type == "agent.message"]
    check("".join(said), [event.type for event in found])
    check(found[-1].stop_reason.type == "end_turn", found[-1])


def smoke(url: str) -> None:
    """Create, stream, send, approve, list two pages, archive."""
    sdk = anthropic.Anthropic(base_url=url, **OPTIONS)
    session = start(sdk)
    check_text(play(sdk, session, message(TEXT)))
    asked = play(sdk, session, message("script: approve"))
    reason = asked[-1].stop_reason
    check(reason.type == "requires_action", reason)
    uses = {event.id for event in asked if event.type.endswith("tool_use")}
    check(set(reason.event_ids) <= uses, (reason, uses))
    answers = [
        {"type": "user.tool_confirmation", "tool_use_id": name, "result": "allow"}
        for name in reason.event_ids
    ]
    done = play(sdk, session, *answers)
    check(done[-1].stop_reason.type == "end_turn", done[-1])
    events = sdk.beta.sessions.events
    everything = [event.id for event in events.list(session, limit=1000)]
    by_pages = [event.id for event in events.list(session, limit=len(everything) // 2 + 1)]
    check(by_pages == everything, by_pages)
    check(len(set(everything)) == len(everything), everything)
    streamed = {event.id for event in (*asked, *done) if event.processed_at is not None}
    check(streamed <= set(everything), streamed)
    archived = sdk.beta.sessions.archive(session)
    check(archived.status == "terminated" and archived.archived_at is not None, archived)
    refused(
        lambda: events.send(session, events=[message(TEXT)]),
        anthropic.BadRequestError,
        "archived session",
    )


def initial(url: str) -> None:
    """A session that begins with a message; older releases send it as an extra member."""
    sdk = anthropic.Anthropic(base_url=url, **OPTIONS)
    given = {"initial_events": [message(TEXT)]}
    session = start(sdk, **(given if VERSION >= (1, 0) else {"extra_body": given}))
    types: list[str] = []
    while "session.status_idle" not in types:
        time.sleep(0.05)
        types = [event.type for event in sdk.beta.sessions.events.list(session)]
    check("agent.message" in types and types.count("user.message") == 1, types)


async def by_async(url: str) -> None:
    """The async client, which answers while it reads."""
    sdk = anthropic.AsyncAnthropic(base_url=url, **OPTIONS)
    agents = [agent async for agent in sdk.beta.agents.list()]
    environments = [one async for one in sdk.beta.environments.list()]
    session = await sdk.beta.sessions.create(
        agent={"type": "agent", "id": agents[0].id, "version": 1},
        environment_id=environments[0].id,
        metadata={"team": "docs"},
    )
    check(session.metadata == {"team": "docs"}, session.metadata)
    events = sdk.beta.sessions.events
    stream = await events.stream(session.id)
    await events.send(session.id, events=[message("script: approve")])
    answered = []
    async for event in stream:
        if event.type != "session.status_idle":
            continue
        if event.stop_reason.type != "requires_action":
            break
        for name in event.stop_reason.event_ids:
            if name not in answered:
                answered.append(name)
                deny = {"type": "user.tool_confirmation", "tool_use_id": name, "result": "deny"}
                await events.send(session.id, events=[{**deny, "deny_message": "Not today."}])
    await stream.close()
    check(answered, "nothing was asked")
    found = await sdk.beta.sessions.retrieve(session.id)
    check(found.status == "idle", found.status)
    deleted = await sdk.beta.sessions.delete(session.id)
    check(deleted.type == "session_deleted", deleted)


def routes(url: str) -> None:
    """Every route that the release has."""
    sdk = anthropic.Anthropic(base_url=url, **OPTIONS)
    session = start(sdk, metadata={"team": "docs"})
    check_text(play(sdk, session, message(TEXT)))
    sessions = sdk.beta.sessions
    check(sessions.retrieve(session).status == "idle", "it does not rest")
    updated = sessions.update(session, title="Release notes", metadata={"team": None, "x": "y"})
    check((updated.title, updated.metadata) == ("Release notes", {"x": "y"}), updated)
    for query in ({"limit": 2}, {"limit": 100, "order": "asc"}):
        check(session in [one.id for one in sessions.list(**query)], query)
    events = sessions.events
    oldest = [event.id for event in events.list(session, order="asc")]
    newest = [event.id for event in events.list(session, order="desc", limit=3)]
    check(newest == oldest[::-1], (newest, oldest))
    for event in ({"type": "user.nonsense"}, {"type": "user.message", "content": []}):
        send = functools.partial(events.send, session, events=[message("never"), event])
        refused(send, anthropic.BadRequestError)
    check([event.id for event in events.list(session)] == oldest, "a part of a batch was taken")
    if VERSION >= (0, 105):
        said = list(events.list(session, types=["agent.message"]))
        check({event.type for event in said} == {"agent.message"}, said)
        later = [event.id for event in events.list(session, created_at_gte=said[0].processed_at)]
        check(later == oldest[oldest.index(said[0].id) :], later)
    if hasattr(sessions, "threads"):
        _threads(sdk, session, oldest)
    if VERSION >= (0, 115):
        _previews(sdk, session)
    check(not list(sessions.resources.list(session)), "something is mounted")
    refused(lambda: sdk.beta.agents.retrieve("agent_elsewhere"), anthropic.NotFoundError)
    sessions.delete(session)
    refused(lambda: sessions.retrieve(session), anthropic.NotFoundError)


def _threads(sdk: Any, session: str, oldest: list[str]) -> None:
    threads = sdk.beta.sessions.threads
    (primary,) = list(threads.list(session_id=session))
    check(primary.parent_thread_id is None, primary)
    check(threads.retrieve(primary.id, session_id=session).id == primary.id, primary)
    listed = [event.id for event in threads.events.list(primary.id, session_id=session)]
    check(listed == oldest, (listed, oldest))
    with threads.events.stream(primary.id, session_id=session) as stream:
        sdk.beta.sessions.events.send(session, events=[message(TEXT)])
        for event in stream:
            if event.type == "session.status_idle":
                return
    raise AssertionError("the stream of the primary thread ended")


def _previews(sdk: Any, session: str) -> None:
    events = sdk.beta.sessions.events
    parts: dict[str, str] = {}
    with events.stream(session, event_deltas=["agent.message", "agent.thinking"]) as stream:
        events.send(session, events=[message(TEXT)])
        for event in stream:
            if event.type == "event_start" and event.event.type == "agent.message":
                parts[event.event.id] = ""
            elif event.type == "event_delta":
                parts[event.event_id] += event.delta.content.text
            elif event.type == "agent.message":
                check(words(event) == parts[event.id], parts)
            elif event.type == "session.status_idle":
                break
    check(parts, "nothing was previewed")
    refused(
        lambda: events.stream(session, event_deltas=["agent.tool_use"]), anthropic.BadRequestError
    )


async def runner(url: str) -> None:
    """The SDK's own runner of tools gives the result of a tool that it has, and leaves alone one
    that it has not."""
    sdk = anthropic.AsyncAnthropic(base_url=url, **OPTIONS)
    agents = [agent async for agent in sdk.beta.agents.list()]
    session = await sdk.beta.sessions.create(agent=agents[0].id, environment_id="env")
    events = sdk.beta.sessions.events

    @anthropic.beta_async_tool  # type: ignore[untyped-decorator,unused-ignore]
    async def lookup_stock(sku: str = "") -> str:
        """Look up what is in stock."""
        return f"{sku}: 12 in stock"

    calls: list[str] = []
    asked = asyncio.Event()

    async def run() -> None:
        async for call in events.tool_runner(session.id, tools=[lookup_stock], max_idle=None):
            calls.append(call.name)
            if call.name == "dragoman_ask":
                asked.set()

    running = asyncio.create_task(run())
    stream = await events.stream(session.id)
    await events.send(session.id, events=[message("script: custom")])
    async for event in stream:
        if event.type == "session.status_idle" and event.stop_reason.type == "end_turn":
            break
    await stream.close()
    await events.send(session.id, events=[message("script: ask")])
    await asked.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    listed = [event async for event in events.list(session.id)]
    check(calls == ["lookup_stock", "dragoman_ask"], calls)
    types = [event.type for event in listed]
    check(types.count("user.custom_tool_result") == 1, types)
    await events.send(session.id, events=[{"type": "user.interrupt"}])


SCENES: dict[str, Callable[[str], Awaitable[None] | None]] = {
    "smoke": smoke,
    "initial": initial,
    "async": by_async,
    "routes": routes,
    "runner": runner,
}


def main(url: str, scenes: Sequence[str]) -> int:
    """Play scenes; return 1 after a failure."""
    failed = 0
    for name in scenes:
        try:
            found = SCENES[name](url)
            if found is not None:
                asyncio.run(_finish(found))
        except BaseException as error:  # noqa: BLE001 - each failure is printed
            failed = 1
            frames = traceback.extract_tb(error.__traceback__)
            line = next(one.lineno for one in reversed(frames) if one.filename == __file__)
            print(f"FAIL {name}: line {line}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"PASS {name}", flush=True)
    return failed


async def _finish(found: Awaitable[None]) -> None:
    await found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
