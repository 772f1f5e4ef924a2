"""What differs, shown in the dialects of both sides: frames, or how an event is written."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.captures import CapturedRequest, CapturedResponse, CaptureHead, body_of, format_record
from adapters.model import events as ev
from adapters.offline.compare.difference import compare
from adapters.offline.raw_sides import DialectLog, RawEvent, raw_sides
from adapters.offline.session_logs import read_log
from proxy.cli import printing
from tests.test_difference import ENGINE, OF, dragoman, log_of
from tests.test_project import REPOSITORY


def changed(body: bytes, before: bytes = b"so 19.99", after: bytes = b"and 19.99") -> bytes:
    assert body.count(before) == 1
    return body.replace(before, after)


def first(path: Path, other: Path) -> dict[str, dict[str, object]]:
    done = dragoman(path, other, "--from", "engine", "--json")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)["differences"][0]
    return {side: found[side].get("raw") for side in "ab"}


def frame(text: str) -> str:
    return f'event: text_delta\ndata: {{"text":"{text}"}}'


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.sse"
    path.write_bytes(changed(ENGINE.read_bytes()))
    return path


def test_of_two_bodies_the_frames_are_shown(other: Path) -> None:
    assert first(ENGINE, other) == {
        "a": {
            "kind": "frame",
            "dialect": "engine",
            "place": "line 47",
            "text": frame("so 19.99 becomes 1998."),
        },
        "b": {
            "kind": "frame",
            "dialect": "engine",
            "place": "line 47",
            "text": frame("and 19.99 becomes 1998."),
        },
    }
    done = dragoman(ENGINE, other, "--from", "engine")
    assert (
        f"""
--- {ENGINE}, line 47, in `engine`
    event: text_delta
    data: {{"text":"so 19.99 becomes 1998."}}

+++ {other}, line 47, in `engine`
    event: text_delta
    data: {{"text":"and 19.99 becomes 1998."}}

If it may differ"""
        in done.stdout
    )


def test_a_body_from_a_pipe_has_its_frames_too(other: Path) -> None:
    done = dragoman(ENGINE, "-", "--from", "engine", stdin=other.read_bytes())
    assert "\n+++ <stdin>, line 47, in `engine`\n" in done.stdout


class Pipe(io.BytesIO):
    """What can be read once."""

    def seekable(self) -> bool:
        return False


def test_what_can_be_read_once_has_no_frames() -> None:
    assert read_log(Pipe(ENGINE.read_bytes()), "x", "engine").frames is None


def test_of_a_capture_the_exchange_and_its_line_are_named(other: Path, tmp_path: Path) -> None:
    body = other.read_bytes()
    middle = body.index(b"\n\n", len(body) // 2) + 2
    records: list[CaptureHead | CapturedRequest | CapturedResponse] = [
        CaptureHead(made_by="t", at=1.0, dialect="engine")
    ]
    lines = [format_record(one) for one in records]
    for number, part in ((4, body[:middle]), (7, b": a comment\n\n" + body[middle:])):
        headers = (("Content-Type", "text/event-stream"),)
        request = CapturedRequest(
            exchange=number, side="backend", at=1.0, method="POST", target="/execute"
        )
        lines += [
            format_record(request),
            format_record(CapturedResponse(exchange=number, at=1.0, status=200, headers=headers)),
            format_record(body_of(number, "response", 1.0, part)),
        ]
    capture = tmp_path / "c.ndjson"
    capture.write_bytes(b"".join(lines))
    line = body[middle:].partition(b'data: {"text":"and')[0].count(b"\n") + 3
    raw = first(ENGINE, capture)
    assert raw["b"]["place"] == f"exchange 7, line {line}"
    assert raw["b"]["text"] == frame("and 19.99 becomes 1998.")


@pytest.mark.parametrize("name", ["chrome.har", "cassette-urllib.yaml", "curl-heads.txt"])
def test_of_files_of_other_tools_the_exchange_is_named(name: str, tmp_path: Path) -> None:
    file = REPOSITORY / "fixtures/captures" / name
    done = dragoman(file, ENGINE, "--from", "engine", "--json")
    assert done.exit_code == 1, done.output
    raws = [one["a"].get("raw") for one in json.loads(done.stdout)["differences"]]
    places = [raw["place"] for raw in raws if raw is not None and raw["kind"] == "frame"]
    assert places
    assert all(place.startswith("exchange ") for place in places)


def said(text: str, native: ev.NativeRef | None = None) -> list[ev.Entry]:
    of = {**OF, "block_id": "b", "message_id": "m"}
    return log_of(
        ev.SessionStarted(thread_id="main"),
        ev.TurnStarted(**OF, cause="message", native=ev.NativeRef(dialect="engine")),
        ev.TextDelta(**of, text=text, native=native),
        ev.TextCompleted(**of, text=text),
        ev.TurnEnded(**OF, outcome="completed"),
    )


def raws(a: Sequence[ev.Entry], b: Sequence[ev.Entry]) -> tuple[RawEvent | None, RawEvent | None]:
    return raw_sides(compare(a, b), DialectLog(a), DialectLog(b))[0]


def test_of_a_log_the_event_is_written_in_its_dialect() -> None:
    one, other = raws(said("hot"), said("cold"))
    assert one is not None
    assert other is not None
    assert (one.kind, one.dialect) == ("written", "engine")
    assert 'data: {"text":"hot"' in one.text
    assert 'data: {"text":"cold"' in other.text
    assert one.title("x") == "x, as `engine` writes it"


def test_of_what_no_dialect_shows_the_native_names_are_left() -> None:
    native = ev.NativeRef(dialect="hermes-agent", id="e-1", type="agent.message", frame=7)
    lost = [e for e in said("hot", native) if not isinstance(e.event, ev.SessionStarted)]
    one, _ = raws(lost, said("cold"))
    assert one is None
    a, b = said("hot", native), said("cold")
    found = compare(a, b)
    one, _ = raw_sides(found, DialectLog(a, "hermes-agent"), DialectLog(b))[0]
    assert one == RawEvent("native", "hermes-agent", "", "type agent.message, id e-1")


def test_a_frame_that_is_counted_otherwise_is_not_shown() -> None:
    log = said("hot", ev.NativeRef(dialect="engine", type="text_delta", frame=2))
    log[3] = log[3]._replace(event=log[3].event.model_copy(update={"native": log[2].event.native}))
    file = io.BytesIO(ENGINE.read_bytes())
    frames = read_log(file, "x", "engine").frames
    b = said("cold")
    one, _ = raw_sides(compare(log, b), DialectLog(log, "engine", frames), DialectLog(b))[0]
    assert one is not None
    assert one.kind == "written"


def test_an_event_that_one_side_has_not_is_nothing_there(tmp_path: Path) -> None:
    body = ENGINE.read_bytes()
    shorter = tmp_path / "shorter.sse"
    shorter.write_bytes(body[: body.rindex(b"event: ")])
    done = dragoman(shorter, ENGINE, "--from", "engine")
    assert f"\n--- {shorter}\n    (nothing)\n\n+++ {ENGINE}, line 56, in `engine`\n" in done.stdout


def test_a_long_frame_is_cut_to_what_is_near_the_difference(tmp_path: Path) -> None:
    texts = ("Water it. " * 100 + end + "Then rest. " * 100 for end in ("Now. ", "Later. "))
    files = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.sse"
        path.write_bytes(changed(ENGINE.read_bytes(), b"so 19.99 becomes", text.encode()))
        files.append(path)
    lines = dragoman(*files, "--from", "engine").stdout.splitlines()
    shown = [line for line in lines if line.startswith("    …")]
    assert [("Now." in line, "Later." in line) for line in shown] == [(True, False), (False, True)]
    assert all(len(line) < 210 for line in shown)


@pytest.mark.parametrize(("width", "beside"), [("160", True), ("80", False)])
def test_a_wide_terminal_has_the_dialects_side_by_side(
    width: str, beside: bool, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("NO_COLOR", "1")
    lines = dragoman(ENGINE, other, "--from", "engine").stdout.splitlines()
    both = [line for line in lines if line.count("becomes 1998") == 2]
    assert bool(both) is beside
    assert any(line.startswith("If it may differ") for line in lines)
