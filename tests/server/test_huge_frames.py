"""Nobody waits for one huge frame of a backend: no turn of the event loop takes more than 20 ms.

A scripted backend slips it into an otherwise good stream. What it says must be in the log, or the
log must say that it was too much; and the rest of the stream is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.bulk import FRAME_TEXT
from adapters.limits import FRAME_VALUES
from adapters.state import BLOCK_TEXT
from proxy.scripted import BACKENDS, Options
from proxy.scripted.faults import Faults, Garbage, Status
from tests.support.serving import served
from tests.support.waiting import SOON_S
from tests.support.watched import Watched, watched

FILE = "data:image/png;base64," + "A" * (8 * 2**20)
"""A file as an eve shows it again."""

STREAM = {"engine": "execute", "herm": "stream", "eve": "stream"}


@contextlib.asynccontextmanager
async def slipped(
    folder: Path, dialect: str, data: bytes, place: int | None, *, stream: int = 1
) -> AsyncIterator[Watched]:
    """A watched Dragoman before a backend one of whose streams has these bytes in it, or is refused
    with them."""
    fault = Status(400, body=data) if place is None else Garbage(place, data)
    faults = Faults({(STREAM[dialect], stream): fault})
    backend = BACKENDS[dialect](Options(pace=0.0, faults=faults))
    create = 'create = { agent = "agent_K4" }' if dialect == "herm" else ""
    async with served(backend) as url:
        table = f'[[backends]]\nname = "lab"\ndialect = "{dialect}"\nurl = "{url}"\n{create}\n'
        async with watched(folder, table) as dragoman:
            yield dragoman


async def conversation(dragoman: Watched) -> list[dict[str, Any]]:
    """Talk once, while somebody reads; return the events of its log."""
    base = f"{dragoman.url}/as/eve/to/lab/eve/v1/session"
    async with dragoman.http.post(base, json={"message": "script: text"}) as response:
        session = (await response.json())["sessionId"]
    async with asyncio.timeout(SOON_S), dragoman.http.get(f"{base}/{session}/stream") as response:
        async for line in response.content:
            if line.startswith(b'{"type":"session.waiting"'):
                break
    body = await dragoman.get(f"/api/v1/sessions/{session}/events")
    return [json.loads(line) for line in body.splitlines()]


def herm(*payloads: dict[str, Any]) -> bytes:
    """Frames of a Herm's stream that have no number."""
    out = b""
    for place, payload in enumerate(payloads):
        envelope = {
            "id": f"evt_x{place}",
            "type": payload["type"],
            "sessionId": "session_7d",
            "status": "complete",
            "payload": payload,
            "processedAt": "2026-06-18T09:31:10.440Z",
            "createdAt": "2026-06-18T09:31:10.441Z",
        }
        out += b"event: %b\nid: evt_x%d\n" % (payload["type"].encode(), place)
        out += b"data: %b\n\n" % json.dumps(envelope).encode()
    return out


def used(call_id: str) -> dict[str, Any]:
    """A call of a Herm's tool."""
    return {"type": "agent.tool_use", "id": call_id, "tool": "bash", "input": {"command": "ls"}}


def returned(call_id: str, texts: list[str]) -> dict[str, Any]:
    """What it returned."""
    blocks = [{"type": "text", "text": text} for text in texts]
    status = {"status": "completed", "content": blocks}
    return {"type": "agent.tool_result", "tool_use_id": call_id, "tool": "bash", **status}


def engine(name: str, **data: object) -> bytes:
    """A frame of an Engine's stream."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(data).encode())


def eve(kind: str, **data: object) -> bytes:
    """A line of an eve's stream."""
    return b"%b\n" % json.dumps({"type": kind, "data": data}).encode()


def words(size: int) -> str:
    """A text whose JSON has about so many bytes, with escapes in it."""
    line = 'hello "wörld"\n or so it is said of a long text. '
    return line * (size // len(json.dumps(line)))


LONG = words(FRAME_TEXT - 40_000)

TAKEN: dict[str, tuple[str, bytes, int, str, str]] = {
    "a piece of text": ("engine", engine("text_delta", text=LONG), 4, "text.completed", "text"),
    "a tool's output": (
        "engine",
        engine("tool_call", tool="read", tool_call_id="q", input={})
        + engine("tool_result", tool_call_id="q", output=LONG),
        4,
        "tool.returned",
        "output",
    ),
    "a Herm's message": (
        "herm",
        herm(
            {"type": "agent.message", "delta": False, "content": [{"type": "text", "text": LONG}]}
        ),
        3,
        "text.completed",
        "text",
    ),
    "a Herm's tool": ("herm", herm(used("q"), returned("q", [LONG])), 3, "tool.returned", "output"),
    "an eve's message": (
        "eve",
        eve("message.completed", message=LONG, finishReason="stop"),
        5,
        "text.completed",
        "text",
    ),
}


@pytest.mark.parametrize("what", TAKEN)
async def test_a_frame_with_a_long_text_is_taken(tmp_path: Path, what: str) -> None:
    dialect, data, place, type_, member = TAKEN[what]
    async with slipped(tmp_path, dialect, data, place) as dragoman:
        events = await conversation(dragoman)
    said = [json.dumps(event[member]) for event in events if event["type"] == type_]
    assert any(json.dumps(LONG)[1:-1] in one for one in said)
    assert not [event for event in events if event["type"] == "error.reported"]


async def test_a_text_that_is_json_is_shown_by_the_engine_face(tmp_path: Path) -> None:
    said = "[" + "[]," * 340_000 + "[]]"
    block = {"block_index": 0, "block_type": "text"}
    data = engine("text_delta", text=said) + engine("content_block_stop", **block)
    async with slipped(tmp_path, "engine", data, 2) as dragoman:
        url = f"{dragoman.url}/as/engine/to/lab/execute"
        body = {"message": "script: text", "task_id": "t-1"}
        async with dragoman.http.post(url, json=body) as response:
            shown = await response.read()
    assert said.encode() in shown


async def test_a_block_without_an_end_is_cut_into_blocks_that_are_taken(
    tmp_path: Path,
) -> None:
    """No frame of it is too large; all of it is."""
    pieces = [f"{number}: {words(400_000)}" for number in range(16)]
    data = b"".join(engine("text_delta", text=piece) for piece in pieces)
    async with slipped(tmp_path, "engine", data, 4) as dragoman:
        base = f"{dragoman.url}/as/eve/to/lab/eve/v1/session"
        async with dragoman.http.post(base, json={"message": "script: text"}) as response:
            session = (await response.json())["sessionId"]
        shown = await heard(
            dragoman,
            f"/as/eve/to/lab/eve/v1/session/{session}/stream",
            b'"session.waiting"',
            asyncio.Barrier(1),
        )
        page = json.loads(await dragoman.get(f"/as/herm/to/lab/v1/sessions/{session}/events"))
        events = await dragoman.get(f"/api/v1/sessions/{session}/events")
    told = [json.loads(line) for line in events.splitlines()]
    blocks = [event["text"] for event in told if event["type"] == "text.completed"]
    assert "".join(pieces) in "".join(blocks)
    assert max(map(len, blocks)) <= BLOCK_TEXT
    ends = [json.loads(line) for line in shown.splitlines() if b'"message.completed"' in line[:30]]
    assert [record["data"]["message"] for record in ends] == blocks
    # A page of a list is not as long as its events could make it.
    assert page["nextCursor"] is not None


async def heard(dragoman: Watched, path: str, end: bytes, ready: asyncio.Barrier) -> bytes:
    """What a stream brings up to its first line with `end` in it."""
    headers = {"Accept": "text/event-stream"}
    async with dragoman.http.get(dragoman.url + path, headers=headers) as response:
        assert response.status == 200, await response.text()
        said = await response.content.readline()
        await ready.wait()
        async for line in response.content:
            said += line
            if end in line:
                break
    return said


async def test_many_who_read_a_long_text_get_all_of_it(tmp_path: Path) -> None:
    dialect, data, place, *_ = TAKEN["a piece of text"]
    async with slipped(tmp_path, dialect, data, place, stream=2) as dragoman:
        base = f"{dragoman.url}/as/eve/to/lab/eve/v1/session"
        async with dragoman.http.post(base, json={"message": "script: text"}) as response:
            made = await response.json()
        session = made["sessionId"]
        stream = f"/as/eve/to/lab/eve/v1/session/{session}/stream"
        first = await heard(dragoman, stream, b'"session.waiting"', asyncio.Barrier(1))
        shown = first.count(b'{"type":')
        told = json.loads(await dragoman.get(f"/api/v1/sessions/{session}"))["last_seq"]
        streams = {
            f"{stream}?startIndex={shown}": b'"session.waiting"',
            f"/as/herm/to/lab/v1/sessions/{session}/events/stream": b"status_idle",
            f"/api/v1/sessions/{session}/events?after={told}": b'"type":"turn.ended"',
        }
        each = 12
        ready = asyncio.Barrier(each * len(streams) + 1)
        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            reading = {
                path: [group.create_task(heard(dragoman, path, end, ready)) for _ in range(each)]
                for path, end in streams.items()
            }
            await ready.wait()
            more = {"message": "script: text", "continuationToken": made["continuationToken"]}
            async with dragoman.http.post(f"{base}/{session}", json=more) as response:
                assert response.status < 300, await response.text()
            await asyncio.wait([task for tasks in reading.values() for task in tasks])
    # A Herm's blocks have 20,000 characters each.
    piece = json.dumps(LONG[:19_000], ensure_ascii=False).encode()[1:-1]
    for tasks in reading.values():
        (said,) = {task.result() for task in tasks}
        assert piece in said


REFUSED: dict[str, tuple[str, bytes, int, str]] = {
    "too long a piece of text": (
        "engine",
        engine("text_delta", text=words(FRAME_TEXT + 200_000)),
        4,
        f"has more than {FRAME_TEXT} bytes, files not counted, and was skipped",
    ),
    "far too long a piece of text": (
        "engine",
        engine("text_delta", text=words(8 * 2**20)),
        4,
        f"is longer than the limit of {2 * FRAME_TEXT} bytes and was skipped",
    ),
    "far too long a line": (
        "eve",
        eve("message.appended", messageDelta=words(8 * 2**20)),
        5,
        f"has more than {FRAME_TEXT} bytes, files not counted, and was skipped",
    ),
    "too many blocks": (
        "herm",
        herm(used("q"), returned("q", ["x"] * 20_000)),
        3,
        f"has more than {FRAME_VALUES} values and was skipped",
    ),
    "too many ids": (
        "herm",
        herm(
            {
                "type": "session.status_idle",
                "stop_reason": {
                    "type": "requires_action",
                    "event_ids": [f"e{number}" for number in range(100_000)],
                },
            }
        ),
        3,
        f"has more than {FRAME_VALUES} values and was skipped",
    ),
    "too many actions": (
        "eve",
        eve(
            "actions.requested",
            actions=[
                {"kind": "tool-call", "callId": f"c{number}", "toolName": "x", "input": {}}
                for number in range(100_000)
            ],
        ),
        5,
        f"has more than {FRAME_VALUES} values and was skipped",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_frame_with_too_much_in_it_is_told_of_and_skipped(
    tmp_path: Path, what: str
) -> None:
    dialect, data, place, why = REFUSED[what]
    async with slipped(tmp_path, dialect, data, place) as dragoman:
        events = await conversation(dragoman)
    told = [event["message"] for event in events if event["type"] == "error.reported"]
    assert [text for text in told if text.endswith(why)] == told
    assert len(told) == 1
    # The rest of the stream is used.
    assert [event["outcome"] for event in events if event["type"] == "turn.ended"] == ["completed"]


async def test_a_file_that_an_eve_shows_again_is_left_out_of_its_frame(
    tmp_path: Path,
) -> None:
    part = {"type": "file", "mediaType": "image/png", "url": FILE}
    data = eve("message.received", message="Look.", parts=[{"type": "text", "text": "Look."}, part])
    async with slipped(tmp_path, "eve", data, 5) as dragoman:
        events = await conversation(dragoman)
    told = [event["message"] for event in events if event["type"] == "error.reported"]
    assert told == [f"eve: {len(FILE)} bytes of files were left out of a frame"]
    heard = [event["content"] for event in events if event["type"] == "message.received"]
    assert any(block.get("media_type") == "image/png" for content in heard for block in content)


async def test_a_refusal_with_too_many_values_is_told_by_its_begin(tmp_path: Path) -> None:
    body = b"[" + b"[]," * 1_200_000 + b"[]]"
    slip = slipped(tmp_path, "engine", body, None)
    async with slip as dragoman:
        events = await conversation(dragoman)
    (settled,) = (event for event in events if event["type"] == "input.settled")
    assert settled["outcome"] == "refused"
    assert body[:100].decode() in settled["reason"]
