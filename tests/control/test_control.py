"""The control API from end to end: the real application over a scripted Engine, in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from adapters.model import events as ev
from adapters.model.events import MAIN, Entry, InteractionRequested, Option
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.errors import JournalUnavailable
from proxy.control import control
from proxy.control.api import STATUS, ErrorOut
from proxy.control.control import (
    ENDPOINTS,
    AcceptedOut,
    AnswerIn,
    BackendsOut,
    InteractionsOut,
    SessionDetailOut,
    openapi,
)
from proxy.control.listing import SessionsOut
from proxy.scripted.faults import Faults, Silence
from proxy.session import Session
from tests.control.openapi import PATH, text
from tests.support.dragoman import BACKEND_KEY
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import SOON_S, until

API = "/api/v1"


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    async with proxied() as running:
        yield running


async def failed(
    dragoman: Proxied, method: str, path: str, *, key: str | None = None, **options: Any
) -> tuple[int, str, str]:
    """Return the status, the code and the message of a refusal, whose form is checked."""
    status, body = await dragoman.request(method, API + path, key=key, **options)
    error = ErrorOut.model_validate(body).error
    assert status == STATUS[error.code], body
    return status, error.code, error.message


async def log_of(dragoman: Proxied, session_id: str, query: str = "") -> list[Entry]:
    """Return the entries of a session as the API gives them in NDJSON."""
    status, body = await dragoman.request("GET", f"{API}/sessions/{session_id}/events{query}")
    assert status == 200
    return [Entry.decode(line) for line in body.splitlines() if line]


# Backends.


async def test_backends_come_with_their_abilities_and_without_their_credential(
    dragoman: Proxied,
) -> None:
    status, body = await dragoman.request("GET", f"{API}/backends")
    (backend,) = BackendsOut.model_validate(body).backends
    assert (status, body["version"]) == (200, 1)
    assert (backend.name, backend.dialect) == ("engine", "engine")
    assert backend.abilities["send_message"].support == "native"
    assert backend.abilities["interrupt"].support == "impossible"
    assert backend.abilities["interrupt"].how
    assert BACKEND_KEY not in json.dumps(body)


async def test_abilities_are_those_of_the_backends_settings() -> None:
    denying = {
        "name": "denying",
        "dialect": "engine",
        "url": "http://127.0.0.1:9",
        "settings": {"interrupt": "deny"},
    }
    unbuilt = {"name": "unbuilt", "dialect": "managed-agents", "url": "http://127.0.0.1:9"}
    async with proxied(backends=(denying, unbuilt)) as running:
        _, body = await running.request("GET", f"{API}/backends")
    first, second = BackendsOut.model_validate(body).backends
    assert first.abilities["interrupt"].support == "emulated"
    assert (second.name, second.dialect) == ("unbuilt", "managed-agents")


# Sessions.


async def test_a_session_is_listed_and_shown_with_its_leg(dragoman: Proxied) -> None:
    session_id = await dragoman.say("script: text")
    await dragoman.until_idle(session_id)
    _, body = await dragoman.request("GET", f"{API}/sessions")
    page = SessionsOut.model_validate(body)
    (listed,) = page.sessions
    assert (listed.id, listed.route, listed.dialect) == (session_id, "engine", "eve")
    assert (listed.owner, listed.state, page.next) == ("local", "idle", None)
    assert listed.created_at <= listed.updated_at
    _, body = await dragoman.request("GET", f"{API}/sessions/{session_id}")
    shown = SessionDetailOut.model_validate(body)
    assert [(leg.number, leg.backend) for leg in shown.legs] == [(0, "engine")]
    assert (shown.id, shown.open_interactions) == (session_id, [])
    assert shown.last_seq == len(await log_of(dragoman, session_id))
    # Half a continuation token is nobody's business.
    assert shown.aliases == []


async def test_a_title_is_listed_as_it_was_changed_last(dragoman: Proxied) -> None:
    session_id = await dragoman.say("script: text")
    await dragoman.until_idle(session_id)
    live = await dragoman.session(session_id)
    for title in ("Lunch", "Dinner"):
        told = ev.SessionUpdated(thread_id=MAIN, title=title)
        await live._log.until_stored(live._log.emit([told]))
        _, body = await dragoman.request("GET", f"{API}/sessions")
        assert SessionsOut.model_validate(body).sessions[0].title == title


async def test_sessions_come_in_pages_newest_first(dragoman: Proxied) -> None:
    made = [await dragoman.say(f"session {number}") for number in range(5)]
    found: list[str] = []
    query = "?limit=2"
    for size in (2, 2, 1):
        _, body = await dragoman.request("GET", f"{API}/sessions{query}")
        page = SessionsOut.model_validate(body)
        assert len(page.sessions) == size
        found += [session.id for session in page.sessions]
        query = f"?limit=2&before={page.next}"
    assert page.next is None
    assert found == made[::-1]


async def test_sessions_are_narrowed_by_state_and_route() -> None:
    async with proxied(backends=("one", "two")) as dragoman:
        idle = await dragoman.say("hello", route="one")
        paused = await dragoman.say("script: approve", route="two")
        await dragoman.until_idle(idle)
        await dragoman.asked(paused)

        async def ids(query: str) -> list[str]:
            _, body = await dragoman.request("GET", f"{API}/sessions?{query}")
            return [session.id for session in SessionsOut.model_validate(body).sessions]

        assert await ids("route=one") == [idle]
        assert await ids("state=paused") == [paused]
        assert await ids("state=idle&state=paused") == [paused, idle]
        assert await ids("state=idle&route=two") == []
        assert await ids("state=deleted") == []
        assert await ids("route=three") == []
        assert await ids(f"name={idle[:8]}") == await ids(f"name={idle[4:]}") == [idle]
        assert await ids(f"name={idle[:7]}") == await ids("name=") == []
        assert await ids(f"name={idle}&state=paused") == []
        assert await ids("limit=1") == [paused]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/sessions?state=busy", "busy"),
        ("/sessions?limit=x", "`limit`"),
        ("/sessions?limit=-1", "`limit`"),
        ("/sessions?limit=0", "`limit` is from 1 to 1000, not 0"),
        ("/sessions?limit=1001", "`limit` is from 1 to 1000, not 1001"),
        ("/sessions?limit=NaN", "`limit`"),
        ("/sessions?limit=1.5", "`limit`"),
        ("/sessions?limit=1e2", "`limit`"),
        ("/sessions?limit=%2B5", "`limit`"),
        ("/sessions?before=-1", "`before`"),
        ("/migration/sessions?from=engine&limit=0", "`limit`"),
        ("/migration/sessions?from=engine&before=Infinity", "`before`"),
        ("/sessions?before=", "`before`"),
        ("/sessions?before=" + "9" * 5000, "`before`"),
        ("/sessions?before=99999999999999999999", "`before`"),
        ("/sessions?before=\N{DIGIT ONE}\N{SUPERSCRIPT TWO}", "`before`"),
    ],
)
async def test_a_query_that_means_nothing_is_refused_by_name(
    dragoman: Proxied, path: str, names: str
) -> None:
    status, code, message = await failed(dragoman, "GET", path)
    assert (status, code) == (400, "invalid_request")
    assert names in message
    assert len(message) < 300


@pytest.mark.parametrize("after", ["-1", "x", "1.0", "NaN", "", "1" * 19, "0x10", "1_000"])
async def test_a_seq_that_is_no_number_is_refused_by_name(dragoman: Proxied, after: str) -> None:
    session_id = await dragoman.say("hello")
    path = f"/sessions/{session_id}/events?after={after}"
    status, code, message = await failed(dragoman, "GET", path)
    assert (status, code) == (400, "invalid_request")
    assert "`after` is a whole number" in message


@pytest.mark.parametrize("name", ["older_than_seconds", "max_bytes", "max_bytes_per_backend"])
@pytest.mark.parametrize("value", [b"-1", b'"5"', b"true", b"9" * 40, b"[]"])
async def test_a_limit_of_a_prune_that_is_no_number_is_refused_by_name(
    dragoman: Proxied, name: str, value: bytes
) -> None:
    body = b'{"%b":%b}' % (name.encode(), value)
    status, code, message = await failed(dragoman, "POST", "/prune", data=body)
    assert (status, code) == (400, "invalid_request")
    assert f"`{name}`" in message


async def test_what_does_not_exist_is_404(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    for method, path in (
        ("GET", "/sessions/dgs_unknown"),
        ("GET", "/sessions/dgs_unknown/events"),
        ("POST", "/sessions/dgs_unknown/interactions/r"),
        ("GET", f"/sessions/{session_id}/other"),
        ("GET", "/other"),
        ("GET", "/"),
    ):
        status, code, _ = await failed(dragoman, method, path)
        assert (status, code) == (404, "not_found"), path
    status, code, _ = await failed(dragoman, "POST", f"/sessions/{session_id}/interactions/r")
    assert (status, code) == (404, "unknown_interaction")


@pytest.mark.parametrize(
    ("method", "path", "takes"),
    [
        ("POST", "/sessions", "GET"),
        ("DELETE", "/backends", "GET"),
        ("GET", "/sessions/s/interactions/r", "POST"),
        ("PUT", "/sessions/s/events", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(
    dragoman: Proxied, method: str, path: str, takes: str
) -> None:
    status, code, message = await failed(dragoman, method, path)
    assert (status, code) == (405, "method_not_allowed")
    assert f"takes {takes} only" in message


# Events.


async def test_events_are_the_log_from_any_seq_on(dragoman: Proxied) -> None:
    session_id = await dragoman.say("script: tool")
    await dragoman.until_idle(session_id)
    whole = await log_of(dragoman, session_id)
    assert [entry.seq for entry in whole] == list(range(1, len(whole) + 1))
    assert {entry.session_id for entry in whole} == {session_id}
    types = [entry.event.TYPE for entry in whole]
    assert types[0] == "session.started"
    assert types[-1] == "turn.ended"
    for after in range(len(whole) + 2):
        assert await log_of(dragoman, session_id, f"?after={after}") == whole[after:]


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
@pytest.mark.parametrize("follow_", ["0", "1"])
async def test_events_end_after_as_many_as_were_asked_for(
    dragoman: Proxied, accept: str, follow_: str
) -> None:
    session_id = await dragoman.say("script: tool")
    await dragoman.until_idle(session_id)
    whole = await log_of(dragoman, session_id)
    for limit in (1, 3, len(whole)):
        path = f"{API}/sessions/{session_id}/events?after=0&limit={limit}&follow={follow_}"
        _, body = await dragoman.request("GET", path, headers={"Accept": accept})
        lines = [line.removeprefix("data: ") for line in body.splitlines() if "{" in line]
        assert [Entry.decode(line) for line in lines] == whole[:limit]
    assert await log_of(dragoman, session_id, "?after=2&limit=2") == whole[2:4]
    assert await log_of(dragoman, session_id, f"?limit={10**6}") == whole
    refused = await failed(dragoman, "GET", f"/sessions/{session_id}/events?limit=0")
    assert refused[2] == "`limit` is at least 1, not 0."


async def test_events_come_as_sse_with_their_seq_as_id_and_as_ndjson(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    path = f"{API}/sessions/{session_id}/events"
    headers = {"Accept": "text/event-stream"}
    url = f"{dragoman.url}{path}?follow=0"
    async with dragoman.http.get(url, headers=headers) as response:
        assert response.content_type == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store, no-transform"
        body = await response.read()
    whole = await log_of(dragoman, session_id)
    assert body == b"".join(
        b"event: %b\nid: %d\ndata: %b\n\n" % (one.event.TYPE.encode(), one.seq, one.encode())
        for one in whole
    )
    async with dragoman.http.get(dragoman.url + path) as response:
        assert response.content_type == "application/x-ndjson"
        assert await response.read() == b"".join(one.encode() + b"\n" for one in whole)


def blocks(body: str) -> list[str]:
    return [block for block in body.split("\n\n") if block]


async def test_a_reconnecting_reader_goes_on_behind_its_last_id(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    whole = await log_of(dragoman, session_id)

    async def seqs(query: str, last: str) -> list[int]:
        path = f"{API}/sessions/{session_id}/events{query}"
        status, body = await dragoman.request("GET", path, headers={"Last-Event-ID": last})
        assert status == 200
        return [Entry.decode(line).seq for line in body.splitlines()]

    everything = [entry.seq for entry in whole]
    assert await seqs("", "4") == everything[4:]
    # An EventSource repeats the URL that it began with.
    assert await seqs("?after=2", "4") == everything[4:]
    # What is not an id of ours counts as absent.
    assert await seqs("?after=2", "later") == everything[2:]
    assert await seqs("", "9" * 5000) == everything


async def follow(dragoman: Proxied, session_id: str, query: str = "") -> AsyncGenerator[bytes]:
    """Yield the lines of a stream that follows, heartbeats too."""
    url = f"{dragoman.url}{API}/sessions/{session_id}/events?follow=1{query}"
    async with dragoman.http.get(url) as response:
        assert response.status == 200
        async for line in response.content:
            yield line


async def test_a_following_stream_goes_on_live(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    seen: list[Entry] = []
    turns = 0
    async with asyncio.timeout(SOON_S), aclosing(follow(dragoman, session_id)) as lines:
        async for line in lines:
            if line == b"\n":
                continue
            seen.append(Entry.decode(line))
            if seen[-1].event.TYPE == "turn.ended":
                turns += 1
                if turns == 2:
                    break
                await dragoman.say("again", session_id)
    assert [entry.seq for entry in seen] == list(range(1, len(seen) + 1))
    assert seen == (await log_of(dragoman, session_id))[: len(seen)]


async def test_a_following_stream_says_that_it_lives(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    last = (await dragoman.session(session_id)).last_seq
    async with asyncio.timeout(SOON_S):
        async with aclosing(follow(dragoman, session_id, f"&after={last}")) as lines:
            assert [await anext(lines) for _ in range(3)] == [b"\n"] * 3
        headers = {"Accept": "text/event-stream"}
        url = f"{dragoman.url}{API}/sessions/{session_id}/events?after={last}"
        async with dragoman.http.get(url, headers=headers) as response:
            # SSE follows unless it is told not to.
            assert await response.content.readexactly(6) == b":\n\n:\n\n"


async def test_a_session_that_is_watched_stays_in_memory(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    last = (await dragoman.session(session_id)).last_seq
    async with (
        asyncio.timeout(SOON_S),
        aclosing(follow(dragoman, session_id, f"&after={last}")) as lines,
    ):
        await anext(lines)
        session = await dragoman.session(session_id)
        session.used_at = 0.0
        while not session.used_at:
            await anext(lines)


async def test_a_following_stream_outlives_the_session_in_memory(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    seen: list[Entry] = []
    put_away = False
    async with asyncio.timeout(SOON_S), aclosing(follow(dragoman, session_id)) as lines:
        async for line in lines:
            if line != b"\n":
                seen.append(Entry.decode(line))
                continue
            if not put_away:
                put_away = True
                (await dragoman.session(session_id)).close()
                await dragoman.say("again", session_id)
            elif sum(entry.event.TYPE == "turn.ended" for entry in seen) == 2:
                break
    assert [entry.seq for entry in seen] == list(range(1, len(seen) + 1))


async def test_a_following_stream_ends_with_the_session(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    path = f"/as/eve/to/engine/eve/v1/session/{session_id}/reset"
    lines: list[bytes] = []
    async with asyncio.timeout(SOON_S):
        async for line in follow(dragoman, session_id):
            lines.append(line)
            if len(lines) == 1:
                status, _ = await dragoman.request("POST", path, json={})
                assert status == 200
    ended = [line for line in lines if line != b"\n"][-1]
    assert Entry.decode(ended).event.TYPE == "session.ended"
    # And one that is opened later ends too.
    assert len([line async for line in follow(dragoman, session_id)]) == len(
        [line for line in lines if line != b"\n"]
    )


async def test_a_following_stream_ends_when_the_server_stops(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    async with asyncio.timeout(SOON_S):
        async for line in follow(dragoman, session_id):
            if line == b"\n":
                await dragoman.sessions.aclose()


@pytest.mark.parametrize("follow_", ["yes", "", "2"])
async def test_follow_is_yes_or_no(dragoman: Proxied, follow_: str) -> None:
    session_id = await dragoman.say("hello")
    path = f"/sessions/{session_id}/events?follow={follow_}"
    assert (await failed(dragoman, "GET", path))[:2] == (400, "invalid_request")


@pytest.mark.parametrize("sse", [False, True])
async def test_a_stream_that_breaks_off_says_so(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch, sse: bool
) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    journal = dragoman.sessions.journal
    scan, reads = journal.scan, True

    async def cut(session: int, *, after: int = 0, size: int) -> AsyncIterator[Any]:
        async for chunk in scan(session, after=after, size=size):
            if reads:
                yield chunk
            raise JournalUnavailable("The disk is gone.")

    monkeypatch.setattr(journal, "scan", cut)
    headers = {"Accept": "text/event-stream"} if sse else {}
    path = f"{API}/sessions/{session_id}/events"
    status, body = await dragoman.request("GET", path, headers=headers)
    assert status == 200
    last = blocks(body)[-1].removeprefix("event: error\ndata: ") if sse else body.splitlines()[-1]
    assert ErrorOut.model_validate_json(last).error.message == "The disk is gone."
    reads = False
    # Before anything is said there is a status for it.
    path = f"/sessions/{session_id}/events"
    assert (await failed(dragoman, "GET", path))[:2] == (503, "journal_unavailable")


async def test_a_reader_that_stalls_is_cut_off(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)

    async def stalled(self: web.StreamResponse, data: bytes) -> None:
        raise TimeoutError

    monkeypatch.setattr(web.StreamResponse, "write", stalled)
    url = f"{dragoman.url}{API}/sessions/{session_id}/events"
    async with asyncio.timeout(SOON_S), dragoman.http.get(url) as response:
        with pytest.raises(Exception, match=r"(?i)payload|disconnected|reset"):
            await response.read()


# Interactions and answers.


async def answered(
    dragoman: Proxied, session_id: str, request_id: str, body: dict[str, Any]
) -> tuple[int, Any]:
    path = f"{API}/sessions/{session_id}/interactions/{request_id}"
    return await dragoman.request("POST", path, json=body)


async def test_open_interactions_are_listed_with_what_they_are_about(dragoman: Proxied) -> None:
    first, second = await dragoman.say("script: approve"), await dragoman.say("script: ask")
    asked = [await dragoman.asked(first), await dragoman.asked(second)]
    _, body = await dragoman.request("GET", f"{API}/interactions")
    listed = InteractionsOut.model_validate(body).interactions
    assert [(i.session_id, i.request_id) for i in listed] == [
        (first, asked[0].request_id),
        (second, asked[1].request_id),
    ]
    approval, question = listed
    assert (approval.kind, approval.freeform, approval.claimed) == ("approval", False, False)
    assert approval.details == {"tool": "bash", "input": {"command": "rm -rf /srv/exports/2024"}}
    assert "rm -rf" in approval.prompt
    assert [option["id"] for option in question.options] == ["07:40", "09:10"]
    _, body = await dragoman.request("GET", f"{API}/sessions/{first}")
    shown = SessionDetailOut.model_validate(body)
    assert (shown.state, shown.open_interactions) == ("paused", [approval])


@pytest.mark.parametrize(
    ("script", "body", "outcome", "said"),
    [
        ("approve", {"decision": "allow"}, "approved", "Done, 4.1 GB freed."),
        ("approve", {"option_ids": ["approve"]}, "approved", "Done, 4.1 GB freed."),
        ("approve", {"decision": "deny", "reason": "Keep it."}, "denied", "You added: Keep it."),
        ("approve", {"skip": True}, "denied", "I left /srv/exports/2024 alone."),
        ("ask", {"option_ids": ["09:10"]}, "answered", "Holding a seat on the 09:10."),
        ("ask", {"text": "10:15"}, "answered", "Holding a seat on the 10:15."),
        ("askopen", {"text": "Grüße"}, "answered", "The ticket carries the name Grüße."),
    ],
)
async def test_an_answer_reaches_the_backend(
    dragoman: Proxied, script: str, body: dict[str, Any], outcome: str, said: str
) -> None:
    session_id = await dragoman.say(f"script: {script}")
    asked = await dragoman.asked(session_id)
    status, answer = await answered(dragoman, session_id, asked.request_id, body)
    accepted = AcceptedOut.model_validate(answer)
    assert status == 202
    await dragoman.until_idle(session_id)
    events = [entry.event for entry in await log_of(dragoman, session_id)]
    (resolved,) = [event for event in events if isinstance(event, ev.InteractionResolved)]
    assert (resolved.request_id, resolved.outcome) == (asked.request_id, outcome)
    (settled,) = [
        event
        for event in events
        if isinstance(event, ev.InputSettled) and event.command_id == accepted.command_id
    ]
    assert settled.outcome == "taken"
    assert said in [event.text for event in events if isinstance(event, ev.TextCompleted)][-1]
    assert (
        InteractionsOut.model_validate(
            (await dragoman.request("GET", f"{API}/interactions"))[1]
        ).interactions
        == []
    )


@pytest.mark.parametrize(
    ("script", "body", "names"),
    [
        ("approve", {}, "allow or deny"),
        ("approve", {"text": "yes"}, "allow or deny"),
        ("approve", {"option_ids": ["maybe"]}, "offers no option `maybe`"),
        ("approve", {"option_ids": ["deny"], "decision": "allow"}, "says deny, not allow"),
        ("approve", {"decision": "maybe"}, "`decision`"),
        ("approve", {"decision": "allow", "scope": "ever"}, "`scope`"),
        ("approve", {"decison": "allow"}, "`decison`"),
        ("approve", {"decision": "allow", "sealed": "hunter2"}, "no sealed value"),
        ("approve", {"sealed": ["hunter2"]}, "`sealed`"),
        ("ask", {}, "an option or with text"),
        ("ask", {"option_ids": ["10:15"]}, "offered are: `07:40`, `09:10`"),
    ],
)
async def test_an_answer_that_does_not_fit_changes_nothing(
    dragoman: Proxied, script: str, body: dict[str, Any], names: str
) -> None:
    session_id = await dragoman.say(f"script: {script}")
    asked = await dragoman.asked(session_id)
    before = (await dragoman.session(session_id)).last_seq
    path = f"/sessions/{session_id}/interactions/{asked.request_id}"
    status, code, message = await failed(dragoman, "POST", path, json=body)
    assert (status, code) == (400, "invalid_request")
    assert names in message
    assert "hunter2" not in message
    assert (await dragoman.session(session_id)).last_seq == before
    assert not any(received.route == "respond" for received in dragoman.engine.received)


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff", b'{"reason": "\\ud800"}'])
async def test_a_body_that_is_no_answer_is_refused(dragoman: Proxied, body: bytes) -> None:
    session_id = await dragoman.say("script: approve")
    asked = await dragoman.asked(session_id)
    path = f"/sessions/{session_id}/interactions/{asked.request_id}"
    status, code, message = await failed(dragoman, "POST", path, data=body)
    assert (status, code) == (400, "invalid_request")
    assert message.startswith("The body")


async def test_a_body_over_the_limit_is_refused() -> None:
    async with proxied(server={"max_body_bytes": 1024}) as dragoman:
        session_id = await dragoman.say("script: approve")
        asked = await dragoman.asked(session_id)
        path = f"/sessions/{session_id}/interactions/{asked.request_id}"
        answer = {"decision": "deny", "reason": "x" * 2000}
        status, code, message = await failed(dragoman, "POST", path, json=answer)
    assert (status, code) == (413, "too_large")
    assert "1024" in message


async def test_the_first_answer_wins_and_the_second_hears_of_it(dragoman: Proxied) -> None:
    session_id = await dragoman.say("script: approve")
    asked = await dragoman.asked(session_id)
    body = {"decision": "allow"}
    answers = await asyncio.gather(
        *(answered(dragoman, session_id, asked.request_id, body) for _ in range(5))
    )
    assert sorted(status for status, _ in answers) == [202, 409, 409, 409, 409]
    await dragoman.until_idle(session_id)
    # Even with words that would not fit: what counts is that it is over.
    path = f"/sessions/{session_id}/interactions/{asked.request_id}"
    status, code, _ = await failed(dragoman, "POST", path, json={"decision": "deny"})
    assert (status, code) == (409, "already_answered")
    _, again = await answered(dragoman, session_id, asked.request_id, {"option_ids": ["x"]})
    assert again["error"]["details"] == {"outcome": "approved"}
    assert [received.route for received in dragoman.engine.received].count("respond") == 1


async def test_a_secret_takes_its_value_only_sealed_and_nothing_is_quoted(
    dragoman: Proxied,
) -> None:
    session_id = await dragoman.say("script: approve")
    await dragoman.asked(session_id)
    session = await dragoman.session(session_id)
    session._log.hear(
        [
            InteractionRequested(
                thread_id=MAIN,
                turn_id=session.open_interactions()[0].turn_id,
                request_id="secret-1",
                kind="secret",
                prompt="Token?",
                options=(Option(id="decline", label="Decline"),),
            )
        ]
    )
    path = f"/sessions/{session_id}/interactions/secret-1"
    for body in (
        {"text": "hunter2"},
        {"option_ids": ["hunter2"]},
        {"decision": "allow", "reason": "hunter2"},
        {"skip": True, "text": "hunter2"},
        {"sealed": {"value": "hunter2"}},
        {"sealed": "hunter2", "text": "hunter2"},
    ):
        status, code, message = await failed(dragoman, "POST", path, json=body)
        assert (status, code) == (400, "invalid_request")
        assert "hunter2" not in message
    assert b"hunter2" not in b"".join([e.encode() for e in await log_of(dragoman, session_id)])
    assert "hunter2" not in repr(AnswerIn(sealed="hunter2"))  # type: ignore[arg-type]


async def test_a_session_that_cannot_be_loaded_hides_no_other(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, other = await dragoman.say("script: approve"), await dragoman.say("script: approve")
    await dragoman.asked(lost)
    await dragoman.asked(other)
    get = dragoman.sessions.cache.get

    async def some(name: str, **options: Any) -> Any:
        if name == lost:
            raise DragomanError("Its backend is gone.", code=ErrorCode.BACKEND_UNAVAILABLE)
        return await get(name, **options)

    monkeypatch.setattr(dragoman.sessions.cache, "get", some)
    _, body = await dragoman.request("GET", f"{API}/interactions")
    found = InteractionsOut.model_validate(body).interactions
    assert [interaction.session_id for interaction in found] == [other]


async def test_all_pages_of_sessions_are_looked_through(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MOST", 2)
    made = [await dragoman.say("script: approve") for _ in range(5)]
    for session_id in made:
        await dragoman.asked(session_id)
    _, body = await dragoman.request("GET", f"{API}/interactions")
    found = InteractionsOut.model_validate(body).interactions
    assert [interaction.session_id for interaction in found] == made


async def test_a_stopping_server_takes_no_answer(dragoman: Proxied) -> None:
    session_id = await dragoman.say("script: approve")
    asked = await dragoman.asked(session_id)
    dragoman.sessions.cache.stopping = True
    path = f"/sessions/{session_id}/interactions/{asked.request_id}"
    status, code, _ = await failed(dragoman, "POST", path, json={"decision": "allow"})
    assert (status, code) == (503, "stopping")


async def test_what_belongs_to_another_key_does_not_exist() -> None:
    async with proxied(keys=(key_of("a"), key_of("b"))) as dragoman:
        session_id = await dragoman.say("script: approve", key="k-a")
        asked = await dragoman.asked(session_id)
        unknown = "dgs_unknown"
        for method, rest in (
            ("GET", ""),
            ("GET", "/events"),
            ("POST", f"/interactions/{asked.request_id}"),
        ):
            foreign = await failed(
                dragoman, method, f"/sessions/{session_id}{rest}", key="k-b", json={}
            )
            nobodys = await failed(
                dragoman, method, f"/sessions/{unknown}{rest}", key="k-b", json={}
            )
            assert foreign[:2] == (404, "not_found")
            assert foreign[2] == nobodys[2].replace(unknown, session_id)
        for path, key, count in (
            ("/sessions", "k-b", 0),
            ("/sessions", "k-a", 1),
            ("/interactions", "k-b", 0),
            ("/interactions", "k-a", 1),
        ):
            _, body = await dragoman.request("GET", API + path, key=key)
            assert len(body[path[1:]]) == count


async def test_a_key_sees_only_the_backends_that_it_may_use() -> None:
    keys = (key_of("all"), key_of("one", ("one",)))
    async with proxied(backends=("one", "two"), keys=keys) as dragoman:
        for key, names in (("k-all", ["one", "two"]), ("k-one", ["one"])):
            _, body = await dragoman.request("GET", f"{API}/backends", key=key)
            assert [b.name for b in BackendsOut.model_validate(body).backends] == names


# Errors.


async def test_a_fault_of_ours_is_500_with_an_id_and_without_its_text(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(**_: object) -> None:
        raise RuntimeError("the inside of it")

    monkeypatch.setattr(dragoman.sessions.journal, "sessions", broken)
    status, code, message = await failed(dragoman, "GET", "/sessions")
    assert (status, code) == (500, "internal")
    assert "the inside of it" not in message
    (error_id,) = re.findall(r"`([0-9a-f-]{36})`", message)
    assert error_id in caplog.text


def test_every_error_code_has_a_status() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert all(400 <= status < 600 for status in STATUS.values())


# The OpenAPI document.


async def test_the_document_is_served_and_kept_in_step(dragoman: Proxied) -> None:
    status, body = await dragoman.request("GET", f"{API}/openapi.json")
    assert (status, body) == (200, openapi())
    assert PATH.read_text() == text(), "write it anew: python -m tests.control.openapi"


def test_the_document_describes_every_endpoint() -> None:
    document = openapi()
    assert document["openapi"].startswith("3.1.")
    described = {
        (method.upper(), path.removeprefix(API))
        for path, item in document["paths"].items()
        for method in item
    }
    assert described == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}
    operations = [op for item in document["paths"].values() for op in item.values()]
    assert len({op["operationId"] for op in operations}) == len(operations)
    for path, item in document["paths"].items():
        for operation in item.values():
            assert operation["summary"]
            assert operation["responses"].keys() > {"default"}
            for response in operation["responses"].values():
                assert response["description"]
                assert response["content"]
            named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert all(p["required"] is (p["in"] == "path") for p in operation["parameters"])


def test_every_reference_in_the_document_leads_somewhere() -> None:
    document = openapi()
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
    schemas = document["components"]["schemas"]
    assert references == {f"#/components/schemas/{name}" for name in schemas}
    schemes = document["components"]["securitySchemes"]
    assert {name for one in document["security"] for name in one} == set(schemes)


async def test_the_routes_of_the_application_are_those_of_the_document(dragoman: Proxied) -> None:
    served = {
        (route.method, route.resource.canonical)
        for route in dragoman.routes
        if route.resource is not None and route.resource.canonical.startswith("/api/")
    }
    described = {
        (method.upper(), path) for path, item in openapi()["paths"].items() for method in item
    }
    assert served - described == {
        ("GET", f"{API}/openapi.json"),
        ("*", "/api/{tail}"),
    }
    assert described <= served


def test_the_page_names_every_endpoint() -> None:
    names = ("control-api.md", "translation-api.md")
    page = "".join((PATH.parent / name).read_text() for name in names)
    for endpoint in ENDPOINTS:
        assert f"{endpoint.method} /api/v1{endpoint.path}" in page
        for name in endpoint.query:
            assert f"`{name}`" in page
    for name in AnswerIn.model_fields:
        assert f"`{name}`" in page


# Queued messages.


async def queue_of(dragoman: Proxied, session_id: str) -> list[dict[str, Any]]:
    _, body = await dragoman.request("GET", f"{API}/sessions/{session_id}")
    return [one.model_dump() for one in SessionDetailOut.model_validate(body).queue]


async def test_a_queued_message_is_seen_and_withdrawn(dragoman: Proxied) -> None:
    session = await dragoman.say("script: approve")
    request = await dragoman.asked(session)
    for text_ in ("first", "second"):
        await dragoman.say(text_, session)
    first, second = await queue_of(dragoman, session)
    assert first["content"] == [{"type": "text", "text": "first"}]
    assert first["accepted_at"] <= second["accepted_at"]
    path = f"/sessions/{session}/inputs/{first['command_id']}"
    answer = await dragoman.request("DELETE", API + path)
    gone = {"version": 1, "command_id": first["command_id"], "status": "withdrawn"}
    assert answer == (200, gone)
    assert await queue_of(dragoman, session) == [second]
    settled = (await log_of(dragoman, session))[-1].event
    assert isinstance(settled, ev.InputSettled)
    assert (settled.command_id, settled.outcome) == (first["command_id"], "withdrawn")
    assert (await failed(dragoman, "DELETE", path))[:2] == (404, "not_found")
    await dragoman.request(
        "POST",
        f"{API}/sessions/{session}/interactions/{request.request_id}",
        json={"decision": "allow"},
    )
    await dragoman.until_idle(session, turns=2)
    bodies = [got.body for got in dragoman.engine.received if got.route == "execute"]
    said = [json.loads(body)["message"] for body in bodies]
    assert said == ["script: approve", "second"]


async def test_a_message_on_its_way_is_not_withdrawn() -> None:
    faults = Faults({("execute", 1): Silence()})
    async with proxied(engine={"faults": faults}) as dragoman:
        session = await dragoman.say("hello")
        await until(lambda: bool(dragoman.engine.received))
        (command,) = (await dragoman.session(session)).state.inputs
        assert await queue_of(dragoman, session) == []
        path = f"/sessions/{session}/inputs/{command}"
        status, code, message = await failed(dragoman, "DELETE", path)
    assert (status, code) == (409, "not_active")
    assert "on its way" in message


async def test_a_session_that_is_stuck_is_brought_to_rest(dragoman: Proxied) -> None:
    session = await dragoman.say("script: approve")
    request = await dragoman.asked(session)
    await dragoman.say("later", session)
    answer = await dragoman.request("POST", f"{API}/sessions/{session}/settle")
    assert answer == (200, {"version": 1, "id": session, "settled": True})
    events = [entry.event for entry in await log_of(dragoman, session)]
    (ended, *_) = [one for one in events if isinstance(one, ev.TurnEnded)]
    assert (ended.outcome, ended.error and ended.error.code) == ("failed", "settled_by_operator")
    said = [one for one in events if isinstance(one, ev.ErrorReported)]
    assert said[0].message.endswith("brought the session to rest.")
    (resolved,) = [one for one in events if isinstance(one, ev.InteractionResolved)]
    assert (resolved.request_id, resolved.outcome) == (request.request_id, "withdrawn")
    # What waited goes on; this Engine refuses it, as it still waits itself.
    live = await dragoman.session(session)
    codec: Any = live.core.codec
    assert codec._s.turn is None
    await until(lambda: live.idle and not live.state.inputs)
    bodies = [got.body for got in dragoman.engine.received if got.route == "execute"]
    assert [json.loads(body)["message"] for body in bodies] == ["script: approve", "later"]


async def test_a_message_that_nobody_answers_is_settled_too() -> None:
    faults = Faults({("execute", 1): Silence()})
    async with proxied(engine={"faults": faults}) as dragoman:
        session = await dragoman.say("hello")
        await until(lambda: bool(dragoman.engine.received))
        status, body = await dragoman.request("POST", f"{API}/sessions/{session}/settle")
        assert (status, body["settled"]) == (200, True)
        settled = [
            entry.event
            for entry in await log_of(dragoman, session)
            if isinstance(entry.event, ev.InputSettled)
        ]
        assert [one.outcome for one in settled] == ["unknown"]


async def test_a_session_at_rest_has_nothing_to_settle(dragoman: Proxied) -> None:
    session = await dragoman.say("hello")
    await dragoman.until_idle(session, turns=1)
    before = await log_of(dragoman, session)
    status, body = await dragoman.request("POST", f"{API}/sessions/{session}/settle")
    assert (status, body["settled"]) == (200, False)
    assert await log_of(dragoman, session) == before
    assert (await failed(dragoman, "POST", "/sessions/none/settle"))[:2] == (404, "not_found")


async def test_a_session_that_is_being_archived_is_not_settled(dragoman: Proxied) -> None:
    session = await dragoman.say("hello")
    await dragoman.until_idle(session)
    live = await dragoman.session(session)
    held: Any = SimpleNamespace(
        core=live.core, _outbox=SimpleNamespace(administering=True), _log=live._log
    )
    with pytest.raises(DragomanError, match="decided within a minute"):
        await Session.settle(held, by="local")
