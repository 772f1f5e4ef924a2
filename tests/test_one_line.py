"""What faces send has no character at which a careless reader ends a line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from adapters.model.base import EncoderContext
from adapters.registry import DIALECTS
from adapters.wire.framing import on_one_line
from tests.support.slipped import slipped
from tests.support.waiting import SOON_S

ENDS = "\u2028\u2029\x85"
TEXT = f"a{ENDS}b — “c” \u2027\u202a\xa0é"
S: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": "t1"}

LOG: list[ev.Event] = [
    ev.SessionStarted(thread_id=ev.MAIN),
    ev.TurnStarted(**S, cause="background"),
    ev.StepStarted(**S, step_index=0),
    ev.ReasoningDelta(**S, block_id="r", message_id="m", text=TEXT),
    ev.ReasoningCompleted(**S, block_id="r", message_id="m", text=TEXT),
    ev.TextDelta(**S, block_id="b", message_id="m", text=TEXT),
    ev.TextDelta(**S, block_id="b", message_id="m", text=TEXT, extra={"more": TEXT}),
    ev.TextCompleted(**S, block_id="b", message_id="m", text=TEXT * 2),
    ev.ToolCalled(**S, call_id="c", name="x", input={TEXT: TEXT}),
    ev.ToolReturned(**S, call_id="c", output=TEXT),
    ev.StepEnded(**S, step_index=0),
    ev.TurnEnded(**S, outcome="completed"),
]


def test_other_characters_stay_as_they_are() -> None:
    text = json.dumps(TEXT, ensure_ascii=False).encode()
    line = on_one_line(text)
    assert json.loads(line) == TEXT
    assert line.decode() == text.decode().replace(ENDS, r"\u2028\u2029\u0085")
    assert on_one_line(b'"abc"') == b'"abc"'


@pytest.mark.parametrize("dialect", [name for name, known in DIALECTS.items() if known.encoder])
def test_no_frame_of_a_face_is_several_lines_for_anybody(dialect: str) -> None:
    make = DIALECTS[dialect].encoder
    assert make is not None
    encoder = make(EncoderContext(session_id="s", secret=b"x"))
    data = b"".join(
        frame.data
        for seq, event in enumerate(LOG, 1)
        for frame in encoder.feed(ev.Entry(seq, seq, "s", event))
    ).decode()
    assert data.splitlines() == data.removesuffix("\n").split("\n")
    lines = [line.removeprefix("data: ") for line in data.splitlines()]
    assert any(TEXT in json.dumps(json.loads(line), ensure_ascii=False) for line in _json(lines))


def _json(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("{")]


async def test_a_backend_over_http_says_them_and_a_reader_splits_its_lines_there(
    tmp_path: Path,
) -> None:
    piece = json.dumps({"text": TEXT}, ensure_ascii=False).encode()
    data = b"event: text_delta\ndata: " + piece + b"\n\n"
    async with slipped(tmp_path, "engine", data, 1) as dragoman:
        base = f"{dragoman.url}/as/eve/to/lab/eve/v1/session"
        async with dragoman.http.post(base, json={"message": "script: text"}) as response:
            session = (await response.json())["sessionId"]
        stream = dragoman.http.get(f"{base}/{session}/stream")
        async with asyncio.timeout(SOON_S), stream as response:
            whole = await _until(response, b'{"type":"session.waiting"')
    records = [json.loads(line) for line in whole.decode().splitlines() if line]
    said = [r["data"]["message"] for r in records if r["type"] == "message.completed"]
    assert any(TEXT in message for message in said)


async def _until(response: aiohttp.ClientResponse, last: bytes) -> bytes:
    lines = []
    async for line in response.content:
        lines.append(line)
        if line.startswith(last):
            break
    return b"".join(lines)
