"""Recorded traffic of Managed Agents: what its files say is there, and is read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.herm.probe import PROBE as HERM
from adapters.managed_agents import wire
from adapters.managed_agents.captured import NAMING
from adapters.managed_agents.probe import PROBE
from adapters.managed_agents.requests import parse_create, parse_events
from adapters.wire.jsonvalue import format_json
from tests.wire import FIXTURES, bodies

FOLDER = FIXTURES / "wire" / "managed-agents"
SERVER = FOLDER / "open-managed-agents-0.1.0"
SDKS = [FOLDER / "python-2.12.0", FOLDER / "typescript-1.12.0"]
LIVE = FOLDER / "live"
DOCUMENTED = FOLDER / "documented"

Exchange = dict[str, Any]


def exchanges(*folders: Path) -> Iterator[Exchange]:
    """Yield the exchanges of all scenarios of some folders that were answered."""
    for folder in folders:
        for file in sorted(folder.glob("*.json")):
            found = json.loads(file.read_bytes())["exchanges"]
            yield from (exchange for exchange in found if "response" in exchange)


def events_of(body: Path) -> list[dict[str, Any]]:
    lines = body.read_text(encoding="utf-8").splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


# What the files say of each other.


def test_each_stream_is_a_file_of_the_session_or_of_a_thread_and_each_file_is_a_stream() -> None:
    named = set()
    for folder in (SERVER, *SDKS):
        for exchange in exchanges(folder):
            if (name := exchange["response"].get("bodyFile")) is None:
                continue
            file, path = folder / name, exchange["request"]["path"]
            own = re.fullmatch(r"/v1/sessions/[^/]+/events/stream", path) is not None
            assert file.suffix == (".sse" if own else ".thread")
            assert own or path.endswith("/stream")
            sizes = [size for _, size in exchange["response"].get("chunks", ())]
            assert folder != SERVER or sum(sizes) == file.stat().st_size
            named.add(file)
    kept = {file for file in FOLDER.rglob("*") if file.suffix in (".sse", ".thread")}
    assert named == {file for file in kept if file.parent in (SERVER, *SDKS)}
    assert {file.parent for file in kept - named} == {LIVE, DOCUMENTED}


def test_recordings_name_no_folder_of_the_machine_but_the_one_that_stands_for_it() -> None:
    folder = re.compile(rb"(?<![\w.])/(?:work|tmp|home|root|usr)/")
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    assert len(files) > 50
    assert [file.name for file in files if folder.search(file.read_bytes())] == []


# What is composed after the description of the service.

FRAME = re.compile(rb'event: message\ndata: (\{"[^\n]*\})\n\n|:keepalive\n\n')


@pytest.mark.parametrize("body", sorted(LIVE.glob("*-*")), ids=lambda body: body.name)
def test_a_stream_of_the_service_is_framed_as_described(body: Path) -> None:
    data = body.read_bytes()
    assert data.startswith(wire.CONNECTED)
    at = len(wire.CONNECTED)
    times = []
    while at < len(data):
        frame = FRAME.match(data, at)
        assert frame is not None, data[at : at + 60]
        at = frame.end()
        if frame[1] is None:
            continue
        value = json.loads(frame[1])
        written = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert written.encode() == frame[1]
        if value["type"] in ("event_start", "event_delta"):
            continue
        digits = 3 if value["type"] == "agent.thinking" else 6
        assert re.fullmatch(rf"\S+T\d\d:\d\d:\d\d\.\d{{{digits}}}Z", value["processed_at"])
        times.append(wire.micros_of(value["processed_at"]) or 0)
    # A time of three digits is cut off, and may so stand before that of the event before.
    assert all(after > before - 1_000 for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("body", sorted(LIVE.glob("*.sse")), ids=lambda body: body.name)
def test_a_stream_of_the_service_has_its_events_in_the_order_that_is_described(body: Path) -> None:
    types = [event["type"] for event in events_of(body)]
    for number, type_ in enumerate(types):
        if type_ == wire.STATUS_IDLE:
            assert types[number - 1] == "session.usage"
        if type_ == "user.message":
            assert types[number - 1] == wire.THREAD_RUNNING
    ids = [event["id"] for event in events_of(body) if "id" in event]
    assert len(ids) == len(set(ids))


def test_the_previews_of_a_text_are_what_the_text_begins_with() -> None:
    whole = cut = 0
    for body in LIVE.glob("*.sse"):
        events = events_of(body)
        texts = {e["id"]: e["content"][0]["text"] for e in events if e["type"] == "agent.message"}
        pieces: dict[str, str] = {}
        for event in events:
            if event["type"] == "event_delta":
                piece = event["delta"]["content"]["text"]
                pieces[event["event_id"]] = pieces.get(event["event_id"], "") + piece
        for id_, said in pieces.items():
            whole += texts.get(id_) == said
            cut += id_ not in texts
    assert (whole, cut) == (2, 1)


def test_an_idle_names_a_call_that_was_answered_and_the_child_knows_the_answer_by_another_id() -> (
    None
):
    parent = events_of(LIVE / "03-asks-of-two-children.sse")
    child = events_of(LIVE / "03-asks-of-two-children.child.thread")
    answered: set[str] = set()
    again = []
    for event in parent:
        if event["type"] == "user.tool_confirmation":
            answered.add(event["tool_use_id"])
        if event["type"] == wire.STATUS_IDLE and event["stop_reason"]["type"] != "end_turn":
            again.append(bool(answered & set(event["stop_reason"]["event_ids"])))
    assert again == [False, True, False, True]
    (own,) = (e for e in child if e["type"] == "user.tool_confirmation")
    (shown,) = (e for e in parent if e.get("tool_use_id") == own["tool_use_id"])
    assert own["id"] != shown["id"]
    statuses = {e["id"] for e in child if e["type"].startswith("session.thread_status")}
    assert len(statuses) == 4
    assert statuses <= {e["id"] for e in parent}


# What is recorded.


@pytest.mark.parametrize("folder", SDKS, ids=lambda folder: folder.name)
def test_the_face_reads_what_the_sdks_send(folder: Path) -> None:
    sent = created = 0
    for exchange in exchanges(folder):
        request, status = exchange["request"], exchange["response"]["status"]
        if request["method"] != "POST" or status != 200 or "body" not in request:
            continue
        body = format_json(request["body"])
        if request["path"] == wire.SESSIONS:
            assert parse_create(body).environment
            created += 1
        elif request["path"].endswith("/events"):
            assert len(parse_events(body).events) == len(request["body"]["events"])
            sent += 1
    assert (sent > 5, created > 5) == (True, True)


def test_the_check_knows_the_answers_of_a_server_that_others_wrote() -> None:
    pages = refusals = 0
    for exchange in exchanges(SERVER, *SDKS):
        request, answer = exchange["request"], exchange["response"]
        status, body = answer["status"], answer.get("body")
        if not isinstance(body, dict):
            continue
        fits = PROBE.keyed.fits(status, body)
        listed = status == 200 and (request["method"], request["path"]) == ("GET", wire.SESSIONS)
        # An empty page is one of anything.
        assert fits == (listed or status == 401 or body.get("data") == []), request
        assert not HERM.keyed.fits(status, body)
        pages += listed
        refusals += status == 401
    assert pages > 5
    assert refusals > 0


def test_the_check_does_not_take_the_answers_of_a_herm_for_its_own() -> None:
    files = sorted((FIXTURES / "wire" / "herm").glob("*.response.json"))
    for file in files:
        for status in (200, 401, 403):
            assert not PROBE.keyed.fits(status, json.loads(file.read_bytes()))
    assert len(files) > 3


def test_the_captures_know_the_session_of_each_request() -> None:
    for exchange in exchanges(SERVER, *SDKS):
        request, answer = exchange["request"], exchange["response"]
        path = request["path"]
        named = re.match(r"/v1/sessions/([^/]+)", path)
        assert NAMING.of_request(path, b"") == (named and named[1])
        if (request["method"], path) == ("POST", wire.SESSIONS) and answer["status"] < 300:
            made = NAMING.of_answer(path, format_json(answer["body"]))
            assert made == answer["body"]["id"]


def test_no_body_of_a_session_is_empty() -> None:
    found = bodies(wire.DIALECT)
    assert len(found) > 50
    assert all(file.stat().st_size for file in found)
