"""Captures in the control API: a session as a capture, and what is in a file that somebody sends.

What is sent is read for the answer and stored nowhere. One file is read at a time, in a thread.

Why one module: the routes about captures, beside the models of their bodies.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import secrets
import zipfile
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web
from pydantic import Field

from adapters.captures import CapturedFrame, CaptureHead, LogLine, Record, format_record
from adapters.captures.redact import Redactor
from adapters.model import events as ev
from adapters.model.ignored_fields import UnknownField
from adapters.model.state import LawBroken, LogState
from adapters.offline.compare.difference import Comparison, compare
from adapters.offline.raw_sides import differences_json, raw_sides
from adapters.offline.session_logs import FileForm, SessionLog, Unreadable, read_log
from adapters.offline.translate import TranslateOptions, make_frames, readable_dialects
from adapters.registry import DIALECTS, deltas, faces
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json
from proxy import __version__
from proxy.base.rows import BackendBinding, SessionRow
from proxy.config.settings import Settings
from proxy.control.api import (
    READING,
    TURNS,
    VERSION,
    ApiModel,
    Endpoint,
    LineStream,
    administrator,
    body_of,
    integer,
    invalid,
    kept_row,
    principal_of,
    reads,
    streamed,
)
from proxy.control.legs import leg_begun
from proxy.entry.entry import read, read_bytes, takes
from proxy.entry.keys import SESSIONS
from proxy.fanout.hub import entry_of
from proxy.journal.base import Journal

PAGE = 500
"""Events on a page unless asked otherwise."""

MOST = 10 * PAGE
"""Events on the longest page, frames beside them that gave none, and differences of an answer."""

_log = logging.getLogger(__name__)


class ReadFrameOut(ApiModel):
    """A source frame: the seqs of the events that came of it, and its place in the file."""

    number: int
    seqs: list[int]
    place: str
    dialect: str | None
    text: str


class ReadCaptureOut(ApiModel):
    """What is in a file: a page of its canonical log, and the source frames of these events as far
    as it has them. `dialect` is that of its backend, `notes` say what is missing; with `more` the
    next page begins after the last seq."""

    version: int = VERSION
    name: str
    form: FileForm
    dialect: str | None
    notes: list[str]
    entries: list[dict[str, Any]]
    frames: list[ReadFrameOut]
    more: bool


class WrittenFrameOut(ApiModel):
    """A frame as a face sends it, the event that it is of, and its place in the dialect's own
    counting."""

    seq: int
    cursor: int
    text: str


class WrittenCaptureOut(ApiModel):
    """A file's log as a face sends it; `next` is the `after` of the next page."""

    version: int = VERSION
    dialect: str
    framing: str
    frames: list[WrittenFrameOut]
    next: int | None


class CompareIn(ApiModel):
    """Two files as texts; `from_a` and `from_b` are the dialects of recorded bodies, `ignore` has
    fields that may differ."""

    a: str
    b: str
    name_a: str = Field(default="a", max_length=200)
    name_b: str = Field(default="b", max_length=200)
    from_a: str | None = None
    from_b: str | None = None
    ignore: tuple[str, ...] = Field(default=(), max_length=100)


class FirstDifferenceOut(ApiModel):
    """Where the first difference stands in both logs; null on a side that lacks the event."""

    seq_a: int | None
    seq_b: int | None


class CompareOut(ApiModel):
    """How two files differ in meaning: the first 5,000 of `count` differences, as `dragoman diff`
    prints them, and the notes of both sides."""

    version: int = VERSION
    equal: bool
    count: int
    differences: list[dict[str, Any]]
    first: FirstDifferenceOut | None
    notes: list[str]


# A session as a capture.


@reads
async def capture(request: web.Request) -> web.StreamResponse:
    """Stream a session as a capture, which `dragoman replay` serves; for administrators.

    It has the canonical log, and the backend's frames as far as the journal has them, without what
    is found to be a secret. A body that breaks off says why in its last line.
    """
    principal = administrator(request)
    sessions = request.app[SESSIONS]
    row = await kept_row(sessions.journal, request.match_info["session"])
    dialects = await _dialects(sessions.journal, sessions.settings)
    legs = await sessions.journal.legs(row.key)
    lines = _capture_lines(sessions.journal, row, legs, dialects, _redactor(sessions.settings))
    _log.info("session `%s` is captured by `%s`", row.id, principal.name)
    body = LineStream(request, sse=False)
    body.response.headers["Content-Disposition"] = _attachment(f"{row.id}.ndjson")

    async def write() -> None:
        async with aclosing(request.app[TURNS].of(lines)) as pieces:
            async for piece in pieces:
                await body.write(piece)

    return await streamed(request, body, write())


async def _dialects(journal: Journal, settings: Settings) -> dict[str, str]:
    """Return the dialect of each backend, of those too that are no longer configured."""
    known = {row.name: row.dialect for row in await journal.known_backends()}
    return known | {backend.name: backend.dialect for backend in settings.backends}


def _redactor(settings: Settings) -> Redactor:
    """Return what finds secrets, as in captures of this server."""
    given = settings.capture
    keys, patterns = ((), ()) if given is None else (given.redact_keys, given.redact_patterns)
    redactor = Redactor(secrets.token_bytes(16), deltas(), keys, patterns)
    for secret in settings.secrets():
        redactor.hide(secret)
    return redactor


def _attachment(name: str) -> str:
    return f'attachment; filename="{_file_name(name)}"'


def _file_name(name: str) -> str:
    """Return a name as one of a file: without folders, spaces and the like."""
    return re.sub(r"[^A-Za-z0-9._-]+|^\.+", "_", name)[-100:]


async def _capture_lines(
    journal: Journal,
    row: SessionRow,
    legs: Sequence[BackendBinding],
    dialects: Mapping[str, str],
    redactor: Redactor,
) -> AsyncGenerator[bytes]:
    """Yield a session as the lines of a capture, a few at a time."""
    dialect = dialects.get(legs[0].backend) if legs else None
    head = CaptureHead(
        made_by=f"dragoman {__version__}", at=row.created_at, dialect=dialect, session=row.id
    )
    yield format_record(head)

    def lines(records: Sequence[Record]) -> bytes:
        return b"".join(format_record(one) for record in records for one in redactor.add(record))

    async with aclosing(_records(journal, row, legs, dialects)) as all_records:
        async for records in all_records:
            # To look for secrets takes longer than a turn is.
            yield await asyncio.to_thread(lines, records)
    yield b"".join(map(format_record, redactor.close()))


async def _records(
    journal: Journal,
    row: SessionRow,
    legs: Sequence[BackendBinding],
    dialects: Mapping[str, str],
) -> AsyncGenerator[list[Record]]:
    """Yield the log, each source frame before the first event that came of it, in pieces of some
    32 KiB."""
    backends = {leg.number: dialects.get(leg.backend, "") for leg in legs}
    frames = _KeptFrames(journal, row.key, backends, legs[0].number if legs else 0)
    some: list[Record] = []
    size = at = 0
    async for chunk in journal.scan(row.key, size=128 * 1024):
        for line in filter(None, chunk.body.split(b"\n")):
            entry = entry_of(line, row.id)
            at, native = entry.at, entry.event.native
            if native is not None and native.frame is not None:
                async for before in frames.up_to(native.frame, at):
                    yield before
            if (leg := leg_begun(entry.event)) is not None:
                async for before in frames.rest(at):
                    yield before
                frames.begin(leg)
            some.append(LogLine(at, entry.encode()))
            size += len(line)
            if len(some) >= 64 or size >= 32 * 1024:
                yield some
                some, size = [], 0
    yield some
    async for after in frames.rest(at):
        yield after


class _KeptFrames:
    """The source frames of a session in the journal, read once in their order."""

    def __init__(
        self, journal: Journal, session: int, dialects: Mapping[int, str], leg: int
    ) -> None:
        self._journal = journal
        self._session = session
        self._dialects = dialects
        self.begin(leg)

    def begin(self, leg: int) -> None:
        """Go on with the frames of a leg."""
        self._leg = leg
        self._next = 0
        self._read: list[tuple[int, bytes]] = []
        self._all = False

    async def up_to(self, number: int, at: int) -> AsyncGenerator[list[Record]]:
        """Yield the frames of the leg up to a number that were not yielded before."""
        while True:
            if not self._read and not self._all:
                # A frame has 64 KiB at most unless the settings say otherwise.
                self._read = await self._journal.frames(
                    self._session, self._leg, first=self._next, limit=64
                )
                self._all = not self._read
            count = bisect_right(self._read, number, key=lambda frame: frame[0])
            some, self._read = self._read[:count], self._read[count:]
            if not some:
                return
            self._next = some[-1][0] + 1
            yield [self._record(number, data, at) for number, data in some]

    def rest(self, at: int) -> AsyncGenerator[list[Record]]:
        """Yield the frames of the leg that are left."""
        return self.up_to(2**63, at)

    def _record(self, number: int, data: bytes, at: int) -> CapturedFrame:
        dialect = self._dialects.get(self._leg, "")
        return CapturedFrame.of(data, at=at, leg=self._leg, number=number, dialect=dialect)


# Files that somebody sends.


@reads
@takes("conversation")
async def read_capture(request: web.Request) -> web.StreamResponse:
    """Read a file: a capture, a HAR, a cassette of vcrpy, the output of `curl -i`, or a canonical
    log, or with `from` a recorded body of a dialect.

    The body is the file as it is; nothing of it is stored. The answer has a page of its log and the
    source frames of that.
    """
    source, name = _source(request, "from"), _name(request)
    after, limit = _page(request)
    return await _read_file(request, lambda data: _read_page(data, name, source, after, limit))


@reads
@takes("conversation")
async def write_capture(request: web.Request) -> web.StreamResponse:
    """Return a file's log as the frames that a face of a dialect sends, by pages of events."""
    source, name = _source(request, "from"), _name(request)
    after, limit = _page(request)
    dialect = request.match_info["dialect"]
    known = DIALECTS.get(dialect)
    if known is None:
        raise DragomanError(f"There is no dialect `{dialect[:80]}`.", code=ErrorCode.NOT_FOUND)
    return await _read_file(
        request, lambda data: _written_page(data, name, source, dialect, after, limit)
    )


@reads
@takes("conversation")
async def compare_captures(request: web.Request) -> web.StreamResponse:
    """Compare two files by meaning, as `dragoman diff` does."""
    principal_of(request)
    given = await read(request, lambda body: body_of(CompareIn, body))
    for dialect in (given.from_a, given.from_b):
        _check_source(dialect)
    size = len(given.a) + len(given.b)
    return _json(await _in_turn(request, size, lambda: _compared(given)))


@reads
@takes("conversation")
async def capture_as_pytest(request: web.Request) -> web.StreamResponse:
    """Return a zip with a file's session as a capture and a test that replays it with the plugin
    `pytest-dragoman`, in the dialect `serve`."""
    source, name = _source(request, "from"), _name(request)
    serve = request.query.get("serve") or None
    if serve is not None and serve not in _SERVED:
        raise invalid(f"`serve` is one of {', '.join(_SERVED)}, not `{serve[:40]}`.")
    settings = request.app[SESSIONS].settings
    answer = await _read_file(
        request, lambda data: _pytest_zip(data, name, source, serve, settings)
    )
    answer.content_type = ZIP
    answer.headers["Content-Disposition"] = _attachment("recorded-session.zip")
    return answer


async def _read_file(request: web.Request, work: Callable[[bytes], bytes]) -> web.Response:
    """Answer with what `work` makes of the file that is the body of a request."""
    principal_of(request)
    data = await read_bytes(request)
    return _json(await _in_turn(request, len(data), lambda: work(data)))


async def _in_turn(request: web.Request, size: int, work: Callable[[], bytes]) -> bytes:
    """Do some work in a thread, after what came before it; `size` is of what waits for it."""
    with request.app[SESSIONS].bodies.held(size):
        async with request.app[READING]:
            return await asyncio.to_thread(work)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _source(request: web.Request, name: str) -> str | None:
    """Return the dialect that a query names."""
    dialect = request.query.get(name) or None
    _check_source(dialect)
    return dialect


def _check_source(dialect: str | None) -> None:
    if dialect is not None and dialect not in readable_dialects():
        names = ", ".join(readable_dialects())
        raise invalid(f"`from` is one of {names}, not `{dialect[:40]}`.")


def _name(request: web.Request) -> str:
    return (request.query.get("name") or "the file")[:200]


def _page(request: web.Request) -> tuple[int, int]:
    """Return after which seq a page begins, and how many events it has at most."""
    limit = integer(request, "limit", PAGE) or 0
    if not 1 <= limit <= MOST:
        raise invalid(f"`limit` is 1 to {MOST}, not `{limit}`.")
    return integer(request, "after", 0) or 0, limit


def _read(data: bytes, name: str, source: str | None) -> SessionLog:
    """Read a file whose events stand in their order."""
    session = read_log(io.BytesIO(data), name, source)
    seq = 0
    for entry in session.entries:
        if entry.seq <= seq:
            raise Unreadable(f"{name}: its event {entry.seq} stands after its event {seq}.")
        seq = entry.seq
    return session


def _notes(session: SessionLog, name: str) -> list[str]:
    return [note.removeprefix(f"{name}: ") for note in session.warnings]


def _read_page(data: bytes, name: str, source: str | None, after: int, limit: int) -> bytes:
    session = _read(data, name, source)
    entries = session.entries
    start = bisect_right(entries, after, key=lambda entry: entry.seq)
    end = min(start + limit, len(entries))
    out = ReadCaptureOut(
        name=name,
        form=session.form,
        dialect=session.dialect or _dialect_of(entries),
        notes=_notes(session, name),
        entries=[],
        frames=_frames_on(session, start, end),
        more=end < len(entries),
    ).model_dump(mode="json")
    del out["entries"]
    lines = b",".join(entry.encode() for entry in entries[start:end])
    # The events are JSON already.
    return b'%b,"entries":[%b]}' % (format_json(out)[:-1], lines)


def _dialect_of(entries: Sequence[ev.Entry]) -> str | None:
    natives = (entry.event.native for entry in entries)
    return next((native.dialect for native in natives if native is not None), None)


def _frames_on(session: SessionLog, start: int, end: int) -> list[ReadFrameOut]:
    """Return the frames of a page of the log, and of those that gave no event what stands between
    them, and before the first one since the page before."""
    named: dict[tuple[int, int], list[int]] = {}
    dialects: dict[tuple[int, int], str] = {}
    leg, before = 0, (0, 0)
    for index, entry in enumerate(session.entries[:end]):
        moved = leg_begun(entry.event)
        leg = leg if moved is None else moved
        native = entry.event.native
        if native is None or native.frame is None:
            continue
        if index < start:
            before = max(before, (leg, native.frame))
        else:
            named.setdefault((leg, native.frame), []).append(entry.seq)
            dialects[leg, native.frame] = native.dialect
    last = max(named, default=before)
    if end == len(session.entries):
        # The last events may have frames behind them.
        last = (last[0] + MOST, 0) if session.kept else (last[0], last[1] + MOST)
    found = {
        key: frame
        for key, frame in _found(session, named, before, last).items()
        if key in named or before < key <= last
    }
    unnamed = [key for key in found if key not in named][MOST:]
    return [
        ReadFrameOut(
            number=key[1],
            seqs=named.get(key, []),
            place=place,
            dialect=dialect or dialects.get(key) or session.dialect,
            text=data.decode(errors="backslashreplace"),
        )
        for key, (place, dialect, data) in sorted(found.items())
        if key not in unnamed
    ]


def _found(
    session: SessionLog,
    named: Mapping[tuple[int, int], object],
    before: tuple[int, int],
    last: tuple[int, int],
) -> dict[tuple[int, int], tuple[str, str, bytes]]:
    """Return the place, the dialect and the bytes of frames, by their leg and number."""
    if session.kept:
        return {
            (frame.leg, frame.number): (f"frame {frame.number}", frame.dialect, frame.data)
            for frame in session.kept
        }
    if session.frames is None:
        return {}
    # In the bodies of a file all frames are numbered as of one leg.
    wanted = {number for _, number in named} | set(range(before[1] + 1, last[1] + 1))
    leg = last[0]
    return {
        (leg, number): (frame.place, "", frame.data)
        for number, frame in session.frames(wanted).items()
    }


def _written_page(
    data: bytes, name: str, source: str | None, dialect: str, after: int, limit: int
) -> bytes:
    face = DIALECTS[dialect].face
    forms = {} if face is None else face.forms
    form = "" if "" in forms or not forms else next(iter(forms))
    written = make_frames(dialect, TranslateOptions(form=form))
    assert face is not None
    session = _read(data, name, source)
    start = bisect_right(session.entries, after, key=lambda entry: entry.seq)
    end = min(start + limit, len(session.entries))
    state = LogState()
    frames = []
    for entry in session.entries[:end]:
        try:
            state.apply_entry(entry)
        except LawBroken as error:
            raise Unreadable(f"{name}: its event {entry.seq} cannot stand here: {error}.") from None
        new = written(entry)
        if entry.seq > after:
            frames += [
                WrittenFrameOut(seq=entry.seq, cursor=one.cursor, text=one.data.decode())
                for one in new
            ]
    more = end < len(session.entries)
    out = WrittenCaptureOut(
        dialect=dialect,
        framing=face.framing,
        frames=frames,
        next=session.entries[end - 1].seq if more else None,
    )
    return format_json(out.model_dump(mode="json"))


def _compared(given: CompareIn) -> bytes:
    a = read_log(io.BytesIO(given.a.encode()), given.name_a, given.from_a)
    b = read_log(io.BytesIO(given.b.encode()), given.name_b, given.from_b)
    try:
        found = compare(a.entries, b.entries, given.ignore)
    except UnknownField as error:
        raise invalid(f"`ignore`: {error}") from None
    shown = Comparison(found.differences[:MOST])
    first = None
    if found:
        one = found.differences[0]
        first = FirstDifferenceOut(
            seq_a=None if one.a.index is None else a.entries[one.a.index].seq,
            seq_b=None if one.b.index is None else b.entries[one.b.index].seq,
        )
    out = CompareOut(
        equal=not found,
        count=len(found.differences),
        differences=differences_json(shown, raw_sides(shown, a.spoken, b.spoken)),
        first=first,
        notes=[*a.warnings, *b.warnings],
    )
    return format_json(out.model_dump(mode="json"))


_TEST = '''"""A recorded session as a test of a frontend, by the plugin `pytest-dragoman`.

`pytest --dragoman-update` writes the snapshot: look at it and check it in. `pytest` compares.
"""

import os
import subprocess
from pathlib import Path

import pytest
from pytest_dragoman import DragomanBackend, Snapshot

CAPTURE = Path(__file__).parent / "captures" / "{stem}.ndjson"


def frontend(url: str, command: str) -> None:
    """Say to the agent at `url` what the recorded person said. Put your frontend in its place."""
    words = [command, "replay", str(CAPTURE), "--drive", url, "--dialect", "{serve}"]
    subprocess.run(words, check=True)


@pytest.mark.dragoman(capture="captures/{stem}.ndjson", serve="{serve}")
def test_the_recorded_session(
    request: pytest.FixtureRequest,
    dragoman_backend: DragomanBackend,
    dragoman_snapshot: Snapshot,
) -> None:
    command = request.config.getoption("dragoman") or os.environ.get("DRAGOMAN", "dragoman")
    frontend(dragoman_backend.url, command)
    # Some frontends name their session, anew each time.
    ignore = ("usage", "session.started")
    dragoman_snapshot(dragoman_backend.log(), "{stem}", ignore)
'''
"""The test: the command says what was recorded until there is a frontend that does."""

_SERVED = tuple(name for name in faces() if DIALECTS[name].has_client)
"""The dialects that are served to frontends, and that the command speaks as one."""


def _pytest_zip(
    data: bytes, name: str, source: str | None, serve: str | None, settings: Settings
) -> bytes:
    session = _read(data, name, source)
    if not session.entries:
        raise Unreadable(f"{name}: there is nothing in it to replay.")
    if serve is None:
        dialect = session.dialect or _dialect_of(session.entries)
        serve = dialect if dialect in _SERVED else _SERVED[0]
    if session.form != "capture" or source is not None:
        data = _capture_of(session, settings)
    stem = _file_name(name.rpartition("/")[2].partition(".")[0]) or "session"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as folder:
        folder.writestr(f"captures/{stem}.ndjson", data)
        folder.writestr("test_recorded_session.py", _TEST.format(stem=stem, serve=serve))
    return out.getvalue()


def _capture_of(session: SessionLog, settings: Settings) -> bytes:
    """Return a log as a capture."""
    first, redactor = session.entries[0], _redactor(settings)
    head = CaptureHead(
        made_by=f"dragoman {__version__}",
        at=first.at,
        dialect=session.dialect or _dialect_of(session.entries),
        session=first.session_id,
    )
    records = redactor.add_log([LogLine(one.at, one.encode()) for one in session.entries])
    return b"".join(map(format_record, [head, *records, *redactor.close()]))


_COUNT = {"type": "integer", "minimum": 0}
_FROM = {"enum": readable_dialects()}
_QUERY: Mapping[str, Mapping[str, Any]] = {
    "from": _FROM,
    "name": {"type": "string"},
    "after": {**_COUNT, "default": 0},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": PAGE},
}

FILE, ZIP = "application/octet-stream", "application/zip"

ENDPOINTS = (
    Endpoint("GET", "/sessions/{session}/capture", capture, None, archive="gives"),
    Endpoint("POST", "/captures/read", read_capture, ReadCaptureOut, query=_QUERY, takes=FILE),
    Endpoint(
        "POST",
        "/captures/as/{dialect}",
        write_capture,
        WrittenCaptureOut,
        query=_QUERY,
        takes=FILE,
    ),
    Endpoint(
        "POST",
        "/captures/pytest",
        capture_as_pytest,
        None,
        query={"from": _FROM, "name": {"type": "string"}, "serve": {"enum": list(_SERVED)}},
        takes=FILE,
        gives=ZIP,
    ),
    Endpoint("POST", "/captures/diff", compare_captures, CompareOut, body=CompareIn),
)
"""The routes about captures."""
