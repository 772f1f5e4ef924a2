"""Captures in the control API: a session as a capture, and what is in files that somebody sends."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.captures import Capture, read_capture
from adapters.model.events import Entry
from adapters.offline.compare.difference import compare
from adapters.offline.replay import script_of
from adapters.offline.session_logs import read_log
from adapters.offline.translate import TranslateOptions, make_sink
from adapters.registry import faces
from tests.replay.support import replayed
from tests.support.dragoman import BACKEND_KEY
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.test_difference import dragoman as diff
from tests.test_plugin import Project

API = "/api/v1"
FIXTURES = Path("fixtures")
AS_ENGINE: dict[str, Any] = {"from": "engine"}
HAR = FIXTURES / "captures" / "chrome.har"
CASSETTE = FIXTURES / "captures" / "cassette-aiohttp.yaml"


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    async with proxied() as running:
        yield running


async def said(dragoman: Proxied, text: str = "script: tool") -> str:
    """Return a session in which something was said, at rest."""
    session_id = await dragoman.say(text)
    await dragoman.until_idle(session_id)
    return session_id


async def captured(dragoman: Proxied, session_id: str) -> bytes:
    """Return a session as its capture."""
    status, text = await dragoman.request("GET", f"{API}/sessions/{session_id}/capture")
    assert status == 200, text
    return str(text).encode()


async def log_of(dragoman: Proxied, session_id: str) -> list[Entry]:
    """Return a session's log as the API gives it."""
    _, text = await dragoman.request("GET", f"{API}/sessions/{session_id}/events")
    return [Entry.decode(line) for line in text.encode().splitlines()]


def parsed(data: bytes) -> Capture:
    return read_capture(io.BytesIO(data), "the capture")


async def post(
    dragoman: Proxied, path: str, data: bytes, status: int = 200, **query: Any
) -> dict[str, Any]:
    """Send a file, and return the answer."""
    found, body = await dragoman.request("POST", API + path, data=io.BytesIO(data), params=query)
    assert found == status, body
    assert isinstance(body, dict)
    return body


async def refused(dragoman: Proxied, data: bytes, **query: Any) -> str:
    """Send a file that cannot be read, and return why."""
    answer = await post(dragoman, "/captures/read", data, 400, **query)
    assert answer["error"]["code"] == "recording"
    return str(answer["error"]["message"])


# A session as a capture.


async def test_a_capture_has_the_log_and_the_frames_that_it_came_of(dragoman: Proxied) -> None:
    session_id = await said(dragoman)
    capture = parsed(await captured(dragoman, session_id))
    assert capture.log == await log_of(dragoman, session_id)
    assert capture.head.dialect == "engine"
    assert capture.head.session == session_id
    row = await dragoman.sessions.journal.session(session_id)
    kept = await dragoman.sessions.journal.frames(row.key, 0)
    assert [(one.number, one.data) for one in capture.frames] == kept
    assert {(one.leg, one.dialect) for one in capture.frames} == {(0, "engine")}


async def test_a_frame_stands_before_the_first_event_that_came_of_it(dragoman: Proxied) -> None:
    data = await captured(dragoman, await said(dragoman))
    seen: set[int] = set()
    for line in map(json.loads, data.splitlines()[1:]):
        if line["type"] == "frame":
            seen.add(line["number"])
        else:
            frame = line["entry"].get("native", {}).get("frame")
            assert frame is None or frame in seen
    assert seen


async def test_a_capture_is_a_file_with_the_name_of_its_session(dragoman: Proxied) -> None:
    session_id = await said(dragoman)
    url = f"{dragoman.url}{API}/sessions/{session_id}/capture"
    async with dragoman.http.get(url) as response:
        assert response.content_type == "application/x-ndjson"
        disposition = response.headers["Content-Disposition"]
    assert disposition == f'attachment; filename="{session_id}.ndjson"'


async def test_secrets_are_left_out_of_the_log_and_of_the_frames(dragoman: Proxied) -> None:
    key = "sk-" + "a1B2c3D4" * 6
    session_id = await said(dragoman, f"my key is {key}")
    data = await captured(dragoman, session_id)
    assert key.encode() not in data
    assert b"[redacted-" in data
    text = "".join(entry.encode().decode() for entry in await log_of(dragoman, session_id))
    assert key in text


async def test_the_credential_of_a_backend_is_left_out_wherever_it_stands(
    dragoman: Proxied,
) -> None:
    session_id = await said(dragoman, f"you are asked with {BACKEND_KEY}, I hear")
    data = await captured(dragoman, session_id)
    assert BACKEND_KEY.encode() not in data
    text = "".join(entry.encode().decode() for entry in await log_of(dragoman, session_id))
    assert BACKEND_KEY in text


async def test_a_session_that_is_not_there_has_no_capture(dragoman: Proxied) -> None:
    assert (await dragoman.request("GET", f"{API}/sessions/dgs_0/capture"))[0] == 404
    session_id = await said(dragoman)
    await dragoman.request("DELETE", f"{API}/sessions/{session_id}")
    assert (await dragoman.request("GET", f"{API}/sessions/{session_id}/capture"))[0] in (404, 410)


@pytest.mark.parametrize("face", ["engine", "herm"])
async def test_what_was_downloaded_is_replayed_and_read_by_a_client(
    dragoman: Proxied, face: str
) -> None:
    capture = parsed(await captured(dragoman, await said(dragoman)))
    async with replayed(capture.log, "engine", face) as house:
        driven = await house.drive(script_of(capture.log), face, face)
    assert driven.failed is None
    assert driven.given == 1
    if face == "engine":
        found = compare(capture.log, driven.log, ("usage", "agent"))
        assert not found, found.lines()


# What is in a file.


async def test_what_was_downloaded_reads_as_the_session_was(dragoman: Proxied) -> None:
    session_id = await said(dragoman)
    data = await captured(dragoman, session_id)
    answer = await post(dragoman, "/captures/read", data, name="mine.ndjson")
    log = await log_of(dragoman, session_id)
    assert answer["entries"] == [json.loads(entry.encode()) for entry in log]
    assert (answer["name"], answer["form"], answer["dialect"]) == (
        "mine.ndjson",
        "capture",
        "engine",
    )
    assert (answer["notes"], answer["more"]) == ([], False)
    kept = parsed(data).frames
    assert [(one["number"], one["text"]) for one in answer["frames"]] == [
        (one.number, one.data.decode()) for one in kept
    ]
    named = {entry.event.native.frame for entry in log if entry.event.native is not None} - {None}
    assert {one["number"] for one in answer["frames"] if one["seqs"]} == named


@pytest.mark.parametrize(
    ("file", "query", "form"),
    [
        (HAR, {"from": "herm"}, "har"),
        (CASSETTE, {"from": "herm"}, "cassette"),
    ],
)
async def test_files_of_other_tools_are_read(
    dragoman: Proxied, file: Path, query: dict[str, Any], form: str
) -> None:
    answer = await post(dragoman, "/captures/read", file.read_bytes(), **query)
    assert (answer["form"], answer["dialect"]) == (form, "herm")
    assert [entry["seq"] for entry in answer["entries"]] == [*range(1, len(answer["entries"]) + 1)]
    frames = {one["number"]: one for one in answer["frames"]}
    for entry in answer["entries"]:
        native = entry.get("native")
        if native is not None and "frame" in native:
            frame = frames[native["frame"]]
            assert entry["seq"] in frame["seqs"]
            assert native.get("id", "") in frame["text"]
            assert frame["place"].startswith("exchange ")


BODY = b"".join(b'event: text_delta\ndata: {"text":"%d "}\n\n' % number for number in range(20))
"""A body of an Engine that says numbers."""


async def test_a_body_is_read_as_the_dialect_that_is_named(dragoman: Proxied) -> None:
    answer = await post(dragoman, "/captures/read", BODY, **AS_ENGINE)
    assert (answer["form"], answer["dialect"], answer["name"]) == ("body", "engine", "the file")
    texts = [one["text"] for one in answer["entries"] if one["type"] == "text.delta"]
    assert "".join(texts) == "".join(f"{number} " for number in range(20))
    assert [one["number"] for one in answer["frames"]] == [*range(1, 21)]
    assert answer["frames"][3]["place"] == "line 11"


async def test_a_canonical_log_is_read_as_it_is(dragoman: Proxied) -> None:
    session_id = await said(dragoman)
    log = await log_of(dragoman, session_id)
    data = b"".join(entry.encode() + b"\n" for entry in log)
    answer = await post(dragoman, "/captures/read", data)
    assert answer["form"] == "canonical"
    assert answer["entries"] == [json.loads(entry.encode()) for entry in log]
    assert answer["frames"] == []


@pytest.mark.parametrize("downloaded", [True, False], ids=["capture", "body"])
async def test_pages_together_are_the_whole_file(dragoman: Proxied, downloaded: bool) -> None:
    query: dict[str, Any] = {} if downloaded else {"from": "engine"}
    data = await captured(dragoman, await said(dragoman)) if downloaded else BODY
    whole = await post(dragoman, "/captures/read", data, **query)
    entries: list[Any] = []
    frames: dict[int, Any] = {}
    more = True
    while more:
        after = entries[-1]["seq"] if entries else 0
        page = await post(dragoman, "/captures/read", data, after=after, limit=7, **query)
        entries += page["entries"]
        for one in page["frames"]:
            known = frames.setdefault(one["number"], {**one, "seqs": []})
            known["seqs"] += one["seqs"]
        more = page["more"]
    assert entries == whole["entries"]
    assert list(frames.values()) == whole["frames"]


@pytest.mark.parametrize("limit", ["0", "5001", "many", "-1"])
async def test_a_page_has_a_limit(dragoman: Proxied, limit: str) -> None:
    answer = await post(dragoman, "/captures/read", BODY, 400, limit=limit)
    assert answer["error"]["code"] == "invalid_request"


# A file as a face writes it.


@pytest.mark.parametrize("dialect", ["herm", "eve", "agui", "aisdk", "engine", "managed-agents"])
async def test_a_file_is_written_as_the_face_of_a_dialect_sends_it(
    dragoman: Proxied, dialect: str
) -> None:
    data = await captured(dragoman, await said(dragoman))
    log = parsed(data).log
    answer = await post(dragoman, f"/captures/as/{dialect}", data)
    assert (answer["dialect"], answer["next"]) == (dialect, None)
    face = faces()[dialect]
    assert answer["framing"] == face.framing
    sink = make_sink(dialect, TranslateOptions(form=next(iter(face.forms))))
    told = {entry.seq: sink(entry).decode() for entry in log}
    assert {one["seq"] for one in answer["frames"]} == {seq for seq, text in told.items() if text}
    assert "".join(one["text"] for one in answer["frames"]) == "".join(told.values())
    cursors = [one["cursor"] for one in answer["frames"]]
    assert cursors == sorted(set(cursors))


async def test_pages_of_frames_go_on_where_the_last_one_ended(dragoman: Proxied) -> None:
    data = await captured(dragoman, await said(dragoman))
    whole = await post(dragoman, "/captures/as/herm", data)
    frames: list[Any] = []
    after: int | None = 0
    while after is not None:
        page = await post(dragoman, "/captures/as/herm", data, after=after, limit=5)
        frames += page["frames"]
        after = page["next"]
    assert frames == whole["frames"]


async def test_a_file_is_not_written_in_what_is_not_a_dialect(dragoman: Proxied) -> None:
    answer = await post(dragoman, "/captures/as/klingon", BODY, 404)
    assert answer["error"]["message"] == "There is no dialect `klingon`."
    answer = await post(dragoman, "/captures/as/hermes-agent", BODY, 409)
    assert answer["error"]["code"] == "not_supported"


async def test_an_edited_log_that_breaks_a_law_is_not_written(dragoman: Proxied) -> None:
    log = await log_of(dragoman, await said(dragoman))
    data = b"".join(entry.encode() + b"\n" for entry in log if entry.event.TYPE != "turn.started")
    answer = await post(dragoman, "/captures/as/herm", data, 400)
    assert answer["error"]["code"] == "recording"
    assert "cannot stand here" in answer["error"]["message"]
    # It is shown all the same.
    assert (await post(dragoman, "/captures/read", data))["entries"]


# Two files.


async def differing(dragoman: Proxied, status: int = 200, **members: Any) -> dict[str, Any]:
    found, body = await dragoman.request("POST", f"{API}/captures/diff", json=members)
    assert found == status, body
    assert isinstance(body, dict)
    return body


async def test_two_files_that_mean_the_same_do_not_differ(dragoman: Proxied) -> None:
    a = await captured(dragoman, await said(dragoman))
    b = await captured(dragoman, await said(dragoman))
    answer = await differing(dragoman, a=a.decode(), b=b.decode())
    assert answer == {
        "version": 1,
        "equal": True,
        "count": 0,
        "differences": [],
        "first": None,
        "notes": [],
    }


async def test_the_first_difference_is_found_in_both_logs(
    dragoman: Proxied, tmp_path: Path
) -> None:
    a = await captured(dragoman, await said(dragoman))
    b = a.replace(b"int(x * 100)", b"int(x / 100)")
    assert a != b
    answer = await differing(dragoman, a=a.decode(), b=b.decode())
    assert not answer["equal"]
    assert answer["count"] == len(answer["differences"]) > 0
    first = answer["first"]
    assert first["seq_a"] == first["seq_b"]
    entry = next(one for one in parsed(a).log if one.seq == first["seq_a"])
    assert b"int(x * 100)" in entry.encode()
    # It is what the command line says.
    paths = [tmp_path / "a.ndjson", tmp_path / "b.ndjson"]
    for path, data in zip(paths, (a, b), strict=True):
        path.write_bytes(data)
    done = diff(*paths, "--json")
    assert json.loads(done.stdout)["differences"] == answer["differences"]
    assert answer["differences"][0]["a"]["raw"]["kind"] == "frame"


async def test_bodies_are_compared_as_their_dialects(dragoman: Proxied) -> None:
    other = BODY.replace(b'"7 "', b'"seven "').decode()
    sides: dict[str, Any] = {"a": BODY.decode(), "b": other}
    answer = await differing(dragoman, **sides, from_a="engine", from_b="engine")
    assert answer["first"] is not None
    ignored = await differing(
        dragoman, **sides, from_a="engine", from_b="engine", ignore=["text.delta.text"]
    )
    assert ignored["equal"]
    answer = await differing(dragoman, 400, **sides, from_a="engine", from_b="x")
    assert answer["error"]["message"].startswith("`from` is one of ")
    sides |= {"from_a": "engine", "from_b": "engine"}
    answer = await differing(dragoman, 400, **sides, ignore=["colour"])
    assert answer["error"]["message"].startswith("`ignore`: ")
    answer = await differing(dragoman, 400, **{**sides, "a": "{}"})
    assert answer["error"]["code"] == "recording"
    assert answer["error"]["message"].startswith("a:1: byte ")


# A file as a test.


@pytest.mark.pages
@pytest.mark.parametrize("form", ["capture", "canonical"])
async def test_a_file_becomes_a_test_that_passes(
    dragoman: Proxied, tmp_path: Path, form: str
) -> None:
    session_id = await said(dragoman)
    data = await captured(dragoman, session_id)
    if form == "canonical":
        data = b"".join(entry.encode() + b"\n" for entry in parsed(data).log)
    url = f"{dragoman.url}{API}/captures/pytest?name=mine.ndjson"
    async with dragoman.http.post(url, data=data) as response:
        assert (response.status, response.content_type) == (200, "application/zip")
        packed = await response.read()
    project = Project(tmp_path)
    project.home.mkdir()
    with zipfile.ZipFile(io.BytesIO(packed)) as folder:
        assert folder.namelist() == ["captures/mine.ndjson", "test_recorded_session.py"]
        folder.extractall(project.home)
    if form == "capture":
        assert (project.home / "captures" / "mine.ndjson").read_bytes() == data
    run = asyncio.to_thread
    assert "is missing" in await run(project.run)
    assert "dragoman wrote" in await run(project.run, "--dragoman-update", status=0)
    assert "1 passed" in await run(project.run, status=0)


@pytest.mark.parametrize(
    ("data", "query"), [(b"", {}), (BODY, {}), (BODY, {**AS_ENGINE, "serve": "aisdk"})]
)
async def test_no_test_is_made_of_what_cannot_be_replayed(
    dragoman: Proxied, data: bytes, query: dict[str, Any]
) -> None:
    await post(dragoman, "/captures/pytest", data, 400, **query)


# What nobody should send.


def har_of(text: bytes, encoding: str) -> bytes:
    """A HAR with one answer, which is in base64 and compressed."""
    har = json.loads(HAR.read_bytes())
    entry = har["log"]["entries"][0]
    entry["response"]["headers"] = [
        {"name": "Content-Type", "value": "text/event-stream"},
        {"name": "Content-Encoding", "value": encoding},
    ]
    entry["response"]["content"] = {
        "size": 1,
        "mimeType": "text/event-stream",
        "encoding": "base64",
        "text": base64.b64encode(text).decode(),
    }
    har["log"]["entries"] = [entry]
    return json.dumps(har).encode()


HEAD = b'{"capture":1,"made_by":"somebody","at":0}\n'

HOSTILE: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "nothing": (b"", {}, "the file: it is neither a capture nor a canonical log"),
    "deep JSON": (b"[" * 1_000_000, {}, "it is neither a capture nor"),
    "deep capture": (HEAD + b'{"type":' + b"[" * 1_000_000 + b"\n", {}, "the file: line 2: "),
    "deep HAR": (b'{"log":' + b"[" * 1_000_000, {"from": "herm"}, "the file: "),
    "deep cassette": (b"interactions: " + b"[" * 100_000, {"from": "herm"}, "the file: "),
    "a long line": (b"x" * 10_000_000, {}, "it is neither a capture nor"),
    "a long line of a body": (
        b'data: {"text":"' + b"x" * 10_000_000,
        {"from": "engine"},
        "no event of `engine`",
    ),
    "a long line of a log": (
        b'{"seq":1,"at":0,"type":"' + b"x" * 10_000_000 + b'"}',
        {},
        "the file:1: ",
    ),
    "a bomb": (har_of(gzip.compress(bytes(80 * 2**20)), "gzip"), {"from": "herm"}, "split it"),
    "many aliases": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%b]\n" % (name + 1, name + 1, b",".join([b"*%c" % name] * 9))
            for name in range(ord("a"), ord("y"))
        )
        + b"interactions: *y\n",
        {"from": "herm"},
        "the file: ",
    ),
    "another version": (b'{"capture":99}\n', {}, "it has version 99 of captures"),
    "a frame without bytes": (
        HEAD + b'{"type":"frame","at":0,"leg":0,"number":1,"dialect":"herm"}\n',
        {},
        "the file: line 2: a `frame` has either `text` or `base64`",
    ),
    "a body where none is": (HEAD, {}, "it does not say which dialect it is of"),
    "not UTF-8": (b"\xff\xfe\x00\x00", {}, "it is neither a capture nor"),
    "no dialect's": (HEAD[:-2] + b',"dialect":"klingon"}\n', {}, "which is not a dialect"),
    "events out of order": (
        b'{"session_id":"s","seq":2,"at":0,"type":"session.started","thread_id":"main"}\n' * 2,
        {},
        "its event 2 stands after its event 2",
    ),
}


@pytest.mark.parametrize(("data", "query", "why"), HOSTILE.values(), ids=HOSTILE)
async def test_what_cannot_be_read_is_refused_with_its_place(
    dragoman: Proxied, data: bytes, query: dict[str, Any], why: str
) -> None:
    assert why in await refused(dragoman, data, **query)


async def test_a_dialect_that_is_not_read_is_refused(dragoman: Proxied) -> None:
    answer = await post(dragoman, "/captures/read", BODY, 400, **{"from": "klingon"})
    assert answer["error"]["message"].startswith("`from` is one of ")


async def test_a_body_that_is_too_large_is_refused(dragoman: Proxied) -> None:
    data = b"x" * (36 * 2**20 + 1)
    answer = await post(dragoman, "/captures/read", data, 413)
    assert answer["error"]["code"] == "too_large"


# Who may.


async def test_files_are_read_for_every_key_and_sessions_for_administrators() -> None:
    keys = (key_of("ann"), key_of("boss", admin=True))
    async with proxied(keys=keys) as dragoman:
        session_id = await dragoman.say("hello", key="k-ann")

        async def ask(method: str, path: str, key: str | None, **options: Any) -> int:
            return (await dragoman.request(method, API + path, key=key, **options))[0]

        path = f"/sessions/{session_id}/capture"
        found = [await ask("GET", path, key) for key in (None, "k-ann", "k-boss")]
        assert found == [401, 403, 200]
        for path in ("/captures/read?from=engine", "/captures/as/herm?from=engine"):
            found = [await ask("POST", path, key, data=BODY) for key in (None, "k-ann", "k-boss")]
            assert found == [401, 200, 200]
        sides = {"a": BODY.decode(), "b": BODY.decode(), "from_a": "engine", "from_b": "engine"}
        found = [
            await ask("POST", "/captures/diff", key, json=sides)
            for key in (None, "k-ann", "k-boss")
        ]
        assert found == [401, 200, 200]


async def test_nothing_of_a_file_is_stored(dragoman: Proxied) -> None:
    await post(dragoman, "/captures/read", BODY, **AS_ENGINE)
    _, listed = await dragoman.request("GET", f"{API}/sessions")
    assert listed["sessions"] == []
    assert dragoman.sessions.bodies.under_way == 0


async def test_one_file_is_read_at_a_time(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: list[int] = []
    most: list[int] = []
    whole = read_log

    def counted(*given: Any) -> Any:
        at_work.append(1)
        most.append(len(at_work))
        try:
            return whole(*given)
        finally:
            at_work.pop()

    monkeypatch.setattr("proxy.control.captures.read_log", counted)
    answers = await asyncio.gather(
        *(post(dragoman, "/captures/read", BODY, **AS_ENGINE) for _ in range(8))
    )
    assert len(answers) == len(most) == 8
    assert max(most) == 1
