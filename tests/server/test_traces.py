"""One name from end to end: the `traceparent` of a frontend's request is found at the backend, in
the answer, in the log of the session, in that of the process, and in a capture."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.captures import CapturedExchange
from adapters.model import events as ev
from proxy.base.logs import JsonFormatter
from proxy.base.traces import HEADER, taken, trace_id
from tests.faults.backends import Kind
from tests.pairs.backends import properties_of
from tests.pairs.table import PEOPLE
from tests.server.test_captures import House
from tests.support.alone import Alone
from tests.support.journals import sqlite, stored_entries
from tests.support.keys import credential, key_of
from tests.support.proxied import proxied
from tests.support.recording import backgrounds
from tests.support.waiting import settled, until
from tests.wire import given_messages

__all__ = ["backgrounds"]

A = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
B = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
BACKENDS = given_messages()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The lines of the log."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root, ours = logging.getLogger(), logging.getLogger("proxy")
    root.addHandler(handler)
    before = ours.level
    ours.setLevel(logging.DEBUG)
    yield stream
    ours.setLevel(before)
    root.removeHandler(handler)


def traces_of(lines: io.StringIO, kind: str) -> list[str | None]:
    """The traces of the lines of a kind."""
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    return [one.get("trace") for one in told if one.get("kind") == kind]


def header_of(one: CapturedExchange) -> str | None:
    """The only `traceparent` of a recorded request."""
    values = [value for name, value in one.request.headers if name.lower() == HEADER]
    assert len(values) <= 1
    return values[0] if values else None


def answered(one: CapturedExchange) -> str | None:
    """The `traceparent` of a recorded answer."""
    assert one.response is not None
    return next((v for name, v in one.response.headers if name.lower() == HEADER), None)


def carrying(house: Alone, words: str) -> str | None:
    """The `traceparent` of the only request that brought a message to a backend."""
    says = Kind(house.dialect).faulty.says
    received = house.backend.received
    (sent,) = [one for one in received if one.body and words in (says(json.loads(one.body)) or "")]
    found: str | None = sent.headers.get(HEADER)
    return found


async def inputs(house: Alone, session_id: str) -> list[ev.InputAccepted]:
    """What the log of a session says of its inputs."""
    stored = await stored_entries(house.sessions.journal, session_id)
    return [one.event for one in stored if isinstance(one.event, ev.InputAccepted)]


def is_child(found: str | None, of: str) -> bool:
    """Say whether a `traceparent` is of the same trace and was made for another request."""
    return (
        found is not None
        and taken([found]) == found
        and trace_id(found) == trace_id(of)
        and found[52:] == of[52:]
        and found != of
    )


@pytest.mark.usefixtures("backgrounds")
@pytest.mark.parametrize("given", [A, B, None, A.upper(), "00-0-0-00"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("face", sorted(PEOPLE))
async def test_a_message_has_one_name_at_the_backend_in_logs_events_and_captures(
    tmp_path: Path, lines: io.StringIO, face: str, backend: str, given: str | None
) -> None:
    async with House(tmp_path, backend) as house:
        if given is not None:
            house.http.headers[HEADER] = given
        person = house.person(face)
        await person.say("hello there")
        await person.settled(1)
        name = await house.rest()
        (message,) = [one for one in await inputs(house, name) if one.kind == "message"]
        trace = message.trace
        assert trace is not None
        if given in (A, B):
            assert trace == given
        else:
            assert trace.endswith("-01")
            assert trace_id(trace) not in (trace_id(A), trace_id(B))
        assert is_child(carrying(house, "hello there"), trace)
        await until(lambda: traces_of(lines, "message_completed") == [trace_id(trace)])
        await person.close()
        capture = await house.agrees()
    (asked,) = [
        one
        for one in capture.of_side("frontend")
        if b"hello there" in one.body and header_of(one) == trace
    ]
    assert answered(asked) == trace
    (sent,) = [one for one in capture.of_side("backend") if b"hello there" in one.body]
    assert is_child(header_of(sent), trace)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("crash", [False, True])
async def test_a_message_that_waits_keeps_its_own_name_also_after_a_restart(
    tmp_path: Path, lines: io.StringIO, backend: str, crash: bool
) -> None:
    options = {"pace": 0.05}
    journal = sqlite(tmp_path)
    async with Alone(journal, dialect=backend, options=options) as house:
        url = f"{house.base}/eve/v1/session"
        first = {"message": "script: slow 30"}
        async with house.http.post(url, json=first, headers={HEADER: A}) as answer:
            session_id = (await answer.json())["sessionId"]
        live = await house.live(session_id)
        await until(lambda: live.state.busy)
        later = {"message": "and then this", "turnPolicy": "queue"}
        async with house.http.post(f"{url}/{session_id}", json=later, headers={HEADER: B}) as one:
            assert one.status in (200, 202), await one.text()
        assert len(live.queued()) == 1
        if crash:
            await house.restart()
        await settled(await house.live(session_id))
        await until(lambda: any(b"and then this" in one.body for one in house.backend.received))
        await settled(await house.live(session_id))
        assert is_child(carrying(house, "script: slow"), A)
        assert is_child(carrying(house, "and then this"), B)
        given = [one.trace for one in await inputs(house, session_id) if one.kind == "message"]
        assert given == [A, B]
        ids = [trace_id(A), trace_id(B)]
        lost = crash and not properties_of(backend).reopens
        failed, completed = (ids[:1], ids[1:]) if lost else ([], ids)
        await until(lambda: traces_of(lines, "message_completed") == completed)
        await until(lambda: traces_of(lines, "message_failed") == failed)


async def test_every_answer_says_its_name_errors_and_streams_too(lines: io.StringIO) -> None:
    async with proxied(keys=[key_of("ann")]) as dragoman:
        session = await dragoman.say("hello", key="k-ann")
        await dragoman.until_idle(session)
        base = "/as/eve/to/engine/eve/v1/session"
        for path, status in (
            ("/healthz", 200),
            ("/nowhere", 404),
            ("/api/v1/nowhere", 404),
            ("/api/v1/sessions", 200),
            (f"{base}/{session}/stream?follow=0", 200),
            (f"{base}/unknown/stream", 404),
        ):
            headers = {**credential("k-ann"), HEADER: A}
            async with dragoman.http.get(dragoman.url + path, headers=headers) as answer:
                assert (answer.status, answer.headers.getall(HEADER)) == (status, [A]), path
        made = set()
        for _ in range(2):
            async with dragoman.http.get(f"{dragoman.url}{base}/{session}/stream") as answer:
                assert answer.status == 401
                made.add(answer.headers[HEADER])
        assert len(made) == 2
        told = [json.loads(line) for line in lines.getvalue().splitlines()]
        refused = [one["trace"] for one in told if one.get("status") == 401]
        assert sorted(refused) == sorted(map(trace_id, made))
