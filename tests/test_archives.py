"""The form of an archive, what is checked of it, and what stays of one that does not come whole."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest
from hypothesis import given, settings

from adapters.engine.client import EngineClient
from adapters.model import events as ev
from adapters.model.normalizer import Normalizer
from adapters.wire.errors import DragomanError
from proxy.archives import form
from proxy.archives.files import new_file, parts_of
from proxy.archives.form import ArchiveError, Foot, Piece, SessionHead, Unpacker
from proxy.archives.packing import pack
from proxy.archives.unpacking import ImportResult, Wishes, lines_of, unpack
from proxy.base.errors import JournalUnavailable, SessionNotFound
from proxy.base.rows import BackendRow, Chunk, CodecRow
from proxy.config.settings import Settings
from proxy.journal.base import Journal, Write
from proxy.journal.sqlite import SqliteJournal
from proxy.session import codec_of
from proxy.session.settlements import ended, unknown
from tests.test_laws import streams

BACKEND = {"name": "lab", "dialect": "engine", "url": "http://127.0.0.1:9"}
HERE = Settings.model_validate({"backends": [BACKEND]})

T = TypeVar("T")

NAME = "dgs_00000000000000000000000001"
SECRET = b"\x00" + b"secret" * 5 + b"\xff"

BEGIN: list[ev.Event] = [ev.SessionStarted(thread_id=ev.MAIN)]


def encoded(events: Sequence[ev.Event]) -> bytes:
    return b"".join(
        ev.Entry(seq, 1000 + seq, NAME, event).encode_row() + b"\n"
        for seq, event in enumerate(events, 1)
    )


async def filled(
    journal: Journal, events: Sequence[ev.Event] = BEGIN, files: Sequence[bytes] = ()
) -> str:
    """Make a session at rest with some entries and files."""
    body = encoded(events)
    lines = body.splitlines(keepends=True)
    row = await journal.create_session(
        id=NAME,
        owner="local",
        route="lab",
        dialect="eve",
        backend="lab",
        secret=SECRET,
        at=1001,
        body=lines[0],
        aliases=[("task", "t-1"), ("thread", "child-1"), ("lost", "r-1")],
        native_id="native-1",
        codec=codec_of("eve", "lab", {}),
    )
    names = [await journal.put_blob(data) for data in files]
    rest = lines[1:]
    codec = EngineClient({"task_id": "native-1"})
    write = Write(
        row.key,
        2,
        len(rest),
        b"".join(rest),
        blobs=names,
        at=2000,
        leg_state=codec.snapshot(),
        position=codec.position,
    )
    if not rest:
        write.first = 0
    await journal.append(write)
    await journal.keep_backends([BackendRow("lab", "engine", "http://127.0.0.1:9")])
    return row.id


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = SqliteJournal(tmp_path / "source.db")
    await journal.open()
    yield journal
    await journal.aclose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "target.db"


@pytest.fixture
async def target(path: Path) -> AsyncIterator[SqliteJournal]:
    journal = SqliteJournal(path)
    await journal.open()
    yield journal
    await journal.aclose()


async def archive_of(journal: Journal, name: str = NAME) -> bytes:
    packed = await pack(journal, name)
    return b"".join([lines async for lines in packed.lines()])


async def chunks(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def take(
    journal: Journal, data: bytes, wishes: Wishes | None = None, size: int = 1000
) -> ImportResult:
    return await unpack(journal, HERE, lines_of(chunks(data, size)), wishes or Wishes())


async def body_of(journal: Journal, name: str = NAME) -> bytes:
    row = await journal.session(name)
    return b"".join([chunk.body async for chunk in journal.scan(row.key)])


def resting(frames: Sequence[Sequence[ev.Event]]) -> list[ev.Event]:
    """A lawful log of a stream, in which nothing is left open."""
    normalizer = Normalizer()
    log = list(normalizer.feed([ev.SessionStarted(thread_id=ev.MAIN)]))
    for frame in frames:
        log += normalizer.feed(list(frame))
    state = normalizer.state
    log += normalizer.feed(ended(state, ev.ErrorInfo(code="E", message="m")))
    log += normalizer.feed([unknown(name, "m") for name in list(state.inputs)])
    return log


@given(streams())
@settings(max_examples=40, deadline=None)
def test_an_archive_of_any_lawful_log_gives_it_back_byte_for_byte(
    frames: list[list[ev.Event]],
) -> None:
    log = resting(frames)

    async def round_trip() -> None:
        with tempfile.TemporaryDirectory() as folder:
            one = SqliteJournal(Path(folder) / "1.db", synced=False)
            two = SqliteJournal(Path(folder) / "2.db", synced=False)
            await one.open()
            await two.open()
            try:
                data = await archive_of(one, await filled(one, log))
                done = await take(two, data)
                assert (done.status, done.entries) == ("imported", len(log))
                assert await body_of(two) == encoded(log)
            finally:
                await one.aclose()
                await two.aclose()

    asyncio.run(round_trip())


async def test_all_that_is_stored_of_a_session_arrives(
    source: Journal, target: Journal, path: Path
) -> None:
    files = [b"", b"small", bytes(range(256)) * 30_000]
    name = await filled(source, files=files)
    data = await archive_of(source)
    assert data.count(b'{"blob":') == 1 + 1 + 3
    # Others came between: the keys are not the same.
    for number in range(3):
        await target.create_session(
            id=f"other-{number}",
            owner="local",
            route="lab",
            dialect="eve",
            backend="lab",
            secret=b"x",
            at=1,
            body=encoded(BEGIN),
            aliases=[("thread", "child-1")] if number == 0 else [],
        )
    done = await take(target, data, size=100_000)
    assert dataclasses.astuple(done)[:5] == (name, "imported", "local", "lab", "lab")

    async def check(target: Journal) -> None:
        was, now = await source.session(name), await target.session(name)
        assert now.key != was.key
        same = dataclasses.replace(now, key=was.key, bytes=was.bytes)
        assert same == was
        assert now.bytes == len(await body_of(source)) + sum(map(len, files)) == done.bytes
        legs, had = await target.legs(now.key), await source.legs(was.key)
        assert [dataclasses.replace(leg, session=was.key) for leg in legs] == had
        assert had[0].position
        assert await target.codecs(now.key) == await source.codecs(was.key)
        assert await target.blobs(now.key) == await source.blobs(was.key)
        for sha256, _ in await target.blobs(now.key):
            assert await target.blob(sha256) == await source.blob(sha256)
        # A child's name is the newest session's who has it.
        assert await target.aliases(now.key) == [("lost", "r-1"), ("task", "t-1")]
        assert await body_of(target) == await body_of(source)
        assert await target.sizes() == {"lab": now.bytes + 3 * len(encoded(BEGIN))}

    await check(target)
    # As a crash leaves it: the newest rows are looked for in the file.
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{path}.crashed{suffix}")
    crashed = SqliteJournal(f"{path}.crashed")
    await crashed.open()
    await check(crashed)
    await crashed.aclose()
    await target.aclose()
    again = SqliteJournal(path)
    await again.open()
    await check(again)
    # It takes more, and goes as any other does.
    row = await again.session(name)
    two = ev.Entry(2, 3000, name, ev.Gap(thread_id=ev.MAIN, reason="x")).encode_row() + b"\n"
    await again.append(Write(row.key, 2, 1, two, at=3000))
    assert await body_of(again) == await body_of(source) + two
    await again.delete(row.key, at=4000)
    assert await again.blob(hashlib.sha256(b"small").hexdigest()) is None
    await again.aclose()


async def test_a_field_that_legs_get_later_is_archived_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class LaterRow:
        session: int
        number: int
        backend: str
        ended: int | None = None
        said: bytes | None = None

    monkeypatch.setitem(form._CHECKS, "LaterRow", form._checks(LaterRow))
    row = LaterRow(7, 0, "lab", 5, b"\xff")
    written = form._written(row)
    assert "session" not in written
    assert form._read(LaterRow, written) == dataclasses.replace(row, session=0)
    # An archive of a release that did not have them yet.
    del written["ended"], written["said"]
    assert form._read(LaterRow, written) == LaterRow(0, 0, "lab")


def changed(data: bytes, line: int, change: Callable[[Any], Any]) -> bytes:
    """Change what a line says, its foot as well, so that nothing else is wrong."""
    lines = data.splitlines(keepends=True)
    lines[line - 1] = json.dumps(change(json.loads(lines[line - 1]))).encode() + b"\n"
    foot = json.loads(lines[-1])
    if line < len(lines):
        foot["sha256"] = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
        lines[-1] = json.dumps(foot).encode() + b"\n"
    return b"".join(lines)


def with_(**members: Any) -> Callable[[Any], Any]:
    return lambda value: {**value, **members}


def in_session(**members: Any) -> Callable[[Any], Any]:
    return lambda value: {**value, "session": {**value["session"], **members}}


def without(member: str, name: str) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        del value[member][name]
        return value

    return change


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "cut off in a line": (
        lambda data: data[:-5],
        4,
        "the archive is cut off here: session `dgs_00000000000000000000000001`",
    ),
    "cut off between lines": (
        lambda data: b"".join(data.splitlines(keepends=True)[:-1]),
        3,
        "the archive is cut off here: session `dgs_00000000000000000000000001` is not whole",
    ),
    "empty": (lambda data: b"", 1, "there is nothing in it"),
    "another file": (lambda data: b"PK\x03\x04\n", 1, "it is damaged"),
    "a log": (lambda data: data.split(b"\n", 1)[1], 1, "no session of an archive begins here"),
    "a later version": (
        lambda data: changed(data, 1, with_(dragoman_archive=2)),
        1,
        "has version 2, and this Dragoman knows versions up to 1: run a later release",
    ),
    "a version that is none": (
        lambda data: changed(data, 1, with_(dragoman_archive="x")),
        1,
        "not a number",
    ),
    "a field of a later release": (
        lambda data: changed(data, 1, in_session(mood="good")),
        1,
        "`session` has `mood`, which is not known",
    ),
    "a field that is wrong": (
        lambda data: changed(data, 1, in_session(secret=5)),
        1,
        "`session.secret` is wrong",
    ),
    "a field that is missing": (
        lambda data: changed(data, 1, without("session", "owner")),
        1,
        "a field of `session` is missing",
    ),
    "no legs": (lambda data: changed(data, 1, with_(legs=[])), 1, "`legs` are not numbered"),
    "no dialect": (
        lambda data: changed(data, 1, with_(dialects={})),
        1,
        "does not have backend `lab`",
    ),
    "a count that is wrong": (
        lambda data: changed(data, 1, with_(entries=2)),
        1,
        "`entries` is not `session.last_seq`",
    ),
    "another entry": (
        lambda data: data.replace(b'{"seq":1,"at":1001', b'{"seq":1,"at":1002'),
        2,
        "the entries up to here are not those of the head",
    ),
    "no entry": (
        lambda data: b"\n".join([*data.split(b"\n")[:1], *data.split(b"\n")[2:]]),
        2,
        "an entry was to come, and 1 are missing",
    ),
    "another file's bytes": (
        lambda data: changed(data, 3, with_(base64="c21hbGw=")),
        3,
        "the file's SHA-256 is another",
    ),
    "too many bytes": (
        lambda data: changed(data, 3, with_(base64="c21hbGxzbWFsbA==")),
        3,
        "the file has another size",
    ),
    "no base64": (lambda data: changed(data, 3, with_(base64="?")), 3, "it is damaged"),
    "a line that was changed": (
        lambda data: data.replace(b'"title":null', b'"title":"xx"'),
        4,
        "the lines from 1 to here are not those that were written",
    ),
    "another foot": (
        lambda data: changed(data, 4, with_(end="s2")),
        4,
        "the end of session `dgs_00000000000000000000000001`",
    ),
    "more after it": (lambda data: data + b"{}\n", 5, "no session of an archive begins here"),
}


NUMBER = "a whole number from 0 to "


def in_leg(**members: Any) -> Callable[[Any], Any]:
    return lambda value: {**value, "legs": [{**value["legs"][0], **members}]}


def in_codec(**members: Any) -> Callable[[Any], Any]:
    return lambda value: {**value, "codecs": [{**value["codecs"][0], **members}]}


def named(kind: Any, name: Any) -> Callable[[Any], Any]:
    return lambda value: {**value, "aliases": [["task", "t"], [kind, name]]}


def base64_of(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    *(
        (in_session(id=id_), "`session.id` is not `dgs_` and 26 of")
        for id_ in ("", "s1", "../../etc/passwd", NAME + "\n", NAME.upper(), NAME + "0", "é" * 30)
    ),
    (in_session(owner="a/b"), "`session.owner` is not up to 64 letters"),
    (in_session(owner=""), "`session.owner` is not up to 64 letters"),
    (in_session(route="x" * 65), "`session.route` is not up to 64 letters"),
    (in_session(route="a\r\nb"), "`session.route` is not up to 64 letters"),
    (in_session(dialect="nothing"), "`session.dialect` is not one of"),
    (in_session(secret=base64_of(b"")), "`session.secret` is not 32 bytes"),
    (in_session(secret="x" * 32), "`session.secret` is wrong"),
    (in_session(created_at=-1), f"`session.created_at` is not {NUMBER}"),
    (in_session(updated_at=253_402_300_800_000), f"`session.updated_at` is not {NUMBER}"),
    (in_session(archived_at=2**70), "`session.archived_at` is "),
    (in_session(created_at="1"), "`session.created_at` is wrong"),
    (in_session(created_at=True), "`session.created_at` is wrong"),
    (in_session(bytes=2**60), f"`session.bytes` is not {NUMBER}"),
    (in_session(last_seq=1.0), "`session.last_seq` is wrong"),
    (with_(entries=2**70), f"`entries` is not {NUMBER}"),
    (with_(entries=True), f"`entries` is not {NUMBER}"),
    (with_(bytes=-1), f"`bytes` is not {NUMBER}"),
    (with_(blobs=[["0" * 64, 2**29]]), "`blobs` has a file of more than"),
    (with_(blobs=[["0" * 64, -1]]), f"`blobs.0` is not {NUMBER}"),
    (with_(dialects={"lab": "nothing"}), "`dialects.lab` is not one of"),
    (in_leg(backend="a b"), "`legs.0.backend` is not up to 64 letters"),
    (in_leg(native_id=""), "`legs.0.native_id` is not a text of 1 to 4096 bytes"),
    (in_leg(native_id="a\r\nHost: x"), "without control characters"),
    (in_leg(native_id="é" * 2049), "`legs.0.native_id` is not a text of 1 to 4096 bytes"),
    (in_leg(resumes=0), "`legs.0.resumes` is not an earlier leg's number"),
    (in_codec(dialect="nothing"), "`codecs.0.dialect` is not one of"),
    (in_codec(version=2**40), f"`codecs.0.version` is not {NUMBER}"),
    (in_codec(settings=base64_of(b"[]")), "`codecs.0.settings` is not a JSON object"),
    (in_codec(settings=base64_of(b"{")), "`codecs.0.settings` is not a JSON object"),
    (named("nickname", "x"), "`aliases.1` has the kind `nickname`: known are task, handle"),
    (named("task", ""), "`aliases.1` of the kind `task` is not a text of 1 to 4096 bytes"),
    (named("operation", "x" * 4097), "`aliases.1` of the kind `operation` is not a text"),
    (named("handle", "0123"), "`aliases.1` of the kind `handle` is not 16 digits"),
    (named("thread", "x" * 1001), "`aliases.1` of the kind `thread` is not a text"),
    (named("idempotent", "my key"), "`aliases.1` of the kind `idempotent` is not 32 digits"),
    (named("request", "0" * 33), "`aliases.1` of the kind `request` is not 32 digits"),
    (named("shadow", "x"), "`aliases.1` of the kind `shadow` is not `dgs_`"),
    (named("shadowed", f"../{NAME}"), "`aliases.1` of the kind `shadowed` is not `BACKEND/ID`"),
]


@pytest.mark.parametrize(("change", "why"), WRONG, ids=[why for _, why in WRONG])
async def test_what_could_not_be_of_a_session_made_here_is_refused_by_its_place(
    source: Journal,
    target: SqliteJournal,
    path: Path,
    change: Callable[[Any], Any],
    why: str,
) -> None:
    await filled(source)
    data = changed(await archive_of(source), 1, change)
    with pytest.raises(ArchiveError, match=r"^line 1: ") as told:
        await take(target, data)
    assert why in told.value.whole
    assert "secretsecret" not in told.value.whole
    assert len(told.value.whole) < 400
    await nothing_stays(target, path)


@pytest.mark.parametrize("name", ["a", "Ä name, of a person", "/../..", "x" * 4096])
async def test_any_name_that_a_frontend_may_choose_arrives(
    source: Journal, target: Journal, name: str
) -> None:
    await filled(source)
    data = changed(await archive_of(source), 1, with_(aliases=[["task", name]]))
    assert (await take(target, data)).status == "imported"
    row = await target.session(NAME)
    assert await target.aliases(row.key) == [("task", name)]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b'{"seq":1,"at":-5,', f"`at` is not {NUMBER}"),
        (b'{"seq":1,"at":253402300800000,', f"`at` is not {NUMBER}"),
        (b'{"seq":1,"at":1001,"turn_id":"",', "`turn_id` is not a text of 1 to 4096 bytes"),
        (
            b'{"seq":1,"at":1001,"turn_id":"%b",' % (b"x" * 4097),
            "`turn_id` is not a text of 1 to 4096 bytes",
        ),
    ],
)
async def test_an_entry_with_a_time_or_an_id_that_cannot_be_is_named_with_its_line(
    source: Journal, target: SqliteJournal, path: Path, entry: bytes, why: str
) -> None:
    await filled(source)
    head = (await pack(source, NAME)).head
    body = encoded(BEGIN).replace(b'{"seq":1,"at":1001,', entry)
    of = dataclasses.replace(head, bytes=len(body), digest=hashlib.sha256(body).hexdigest())
    data = form.head_line(of) + body
    data += form.foot_line(NAME, 2, hashlib.sha256(data).hexdigest())
    with pytest.raises(ArchiveError) as told:
        await take(target, data)
    assert (told.value.line, why in told.value.whole) == (2, True), told.value
    await nothing_stays(target, path)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_named_with_its_line_and_nothing_stays(
    source: Journal, target: SqliteJournal, path: Path, damage: str
) -> None:
    await filled(source, files=[b"large"])
    change, line, why = DAMAGES[damage]
    data = change(await archive_of(source))
    with pytest.raises(ArchiveError, match=f"^line {line}: ") as told:
        parts_of(io.BytesIO(data), lambda _: None)
    assert why in told.value.whole
    if not data:
        return
    with pytest.raises(ArchiveError) as told:
        await take(target, data)
    assert (told.value.line, why in told.value.whole) == (line, True)
    await nothing_stays(target, path)


async def nothing_stays(journal: Journal, path: Path) -> None:
    """Check that no row of the file is an archive's."""
    with pytest.raises(SessionNotFound):
        await journal.session(NAME)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    for table in ("sessions", "legs", "events", "event_index", "aliases", "blobs", "session_blobs"):
        assert connection.execute(f"SELECT count(*) FROM {table}").get == 0, table
    assert connection.execute("SELECT name FROM meta").fetchall() == [("indexed",)]
    connection.close()


def long_log(entries: int = 400) -> list[ev.Event]:
    """A log of more than one transaction."""
    gaps = [ev.Gap(thread_id=ev.MAIN, reason=f"{n} " + "x" * 8000) for n in range(entries)]
    return [*BEGIN, *gaps]


async def test_a_law_that_is_broken_is_named_with_its_line(
    source: Journal, target: SqliteJournal, path: Path
) -> None:
    log = [*long_log(), ev.TurnStarted(thread_id=ev.MAIN, turn_id="t", cause="message")]
    await filled(source, long_log())
    head = (await pack(source, NAME)).head
    over = ev.TurnEnded(thread_id=ev.MAIN, turn_id="u", outcome="completed")
    foreign = encoded(long_log()).replace(b'{"seq":7,', b'{"seq":7,"session_id":"s2",')
    for events, body, line, why in (
        (log, encoded(log), len(log) + 2, "is not at rest: turn `t` is open"),
        (
            broken := [*log[:300], over, *log[300:]],
            encoded(broken),
            302,
            "the entry is damaged: law ",
        ),
        (long_log(), foreign, 8, "it is an entry of another session"),
    ):
        of = dataclasses.replace(
            head,
            row=dataclasses.replace(head.row, last_seq=len(events)),
            entries=len(events),
            bytes=len(body),
            digest=hashlib.sha256(body).hexdigest(),
        )
        data = form.head_line(of) + body
        data += form.foot_line(NAME, len(events) + 1, hashlib.sha256(data).hexdigest())
        with pytest.raises(ArchiveError) as told:
            await take(target, data, size=100_000)
        assert (told.value.line, why in told.value.whole) == (line, True), told.value
        await nothing_stays(target, path)


class Failing(SqliteJournal):
    """A journal that cannot store one of its transactions."""

    left = 99

    async def _job(self, run: Callable[[Any], T]) -> T:
        self.left -= 1
        if self._fails():
            raise JournalUnavailable("the disk is full")
        return await super()._job(run)

    def _fails(self) -> bool:
        return self.left == -1


class Killed(Failing):
    """One whose process ends there: nothing is cleaned up."""

    def _fails(self) -> bool:
        return self.left < 0


@pytest.mark.parametrize("kind", [Failing, Killed])
async def test_what_breaks_off_at_any_step_leaves_nothing(
    source: Journal, tmp_path: Path, kind: type[Failing]
) -> None:
    await filled(source, long_log(), [b"one", b"two"])
    data = await archive_of(source)
    steps = 0
    while True:
        path = tmp_path / f"{steps}.db"
        journal = kind(path)
        await journal.open()
        journal.left = steps
        try:
            await take(journal, data, size=100_000)
        except JournalUnavailable:
            if kind is Killed:
                await journal.aclose()
                journal = kind(path)
                await journal.open()
            await nothing_stays(journal, path)
            # The next one has the key that it had, and none of its entries.
            assert (await take(journal, data, size=100_000)).status == "imported"
            assert await body_of(journal) == await body_of(source)
        else:
            break
        finally:
            await journal.aclose()
        steps += 1
    # Some transactions of entries, two files, the session itself.
    assert steps > 5


async def test_a_name_that_is_taken_meanwhile_is_a_refusal_and_leaves_nothing(
    source: Journal, target: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(source, files=[b"one"])
    data = await archive_of(source)
    stage = target.stage

    async def after_another(session: int, chunks: Sequence[Chunk]) -> None:
        await filled(target, long_log(3))
        await stage(session, chunks)

    monkeypatch.setattr(target, "stage", after_another)
    with pytest.raises(
        DragomanError, match="there is a session `dgs_00000000000000000000000001` already"
    ):
        await take(target, data)
    assert await body_of(target) == encoded(long_log(3))
    assert await target.blob(hashlib.sha256(b"one").hexdigest()) is None


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (b"v99 {}", "has version 99, and this Dragoman knows versions up to"),
        (b"{}", "cannot be read: the state of an Engine's session has no version"),
    ],
)
async def test_a_state_that_cannot_be_read_here_is_refused(
    source: Journal, target: SqliteJournal, path: Path, state: bytes, why: str
) -> None:
    data = await archive_of(source, await filled(source))
    written = b'"state":{"base64":"%b"}' % base64.b64encode(state)
    data = re.sub(rb'"state":\{"base64":"[^"]*"\}', written, data)
    with pytest.raises(DragomanError, match=re.escape(why)) as told:
        await take(target, data)
    assert "restore a backup" not in told.value.whole
    await nothing_stays(target, path)


async def test_a_dialect_that_is_shown_by_a_later_release_is_refused(
    source: Journal, target: Journal
) -> None:
    row = await source.session(await filled(source))
    await source.fix_codec(row.key, CodecRow("herm", 99, b'{"agent":"lab"}'))
    with pytest.raises(DragomanError, match="shown by version 99 of `herm`, which this Dragoman"):
        await take(target, await archive_of(source))


async def test_a_session_that_is_one_at_the_backend_already_is_refused(
    source: Journal, target: Journal
) -> None:
    data = await archive_of(source, await filled(source))
    await target.create_session(
        id="s2",
        owner="local",
        route="lab",
        dialect="eve",
        backend="lab",
        secret=b"x",
        at=1,
        body=encoded(BEGIN),
        native_id="native-1",
    )
    with pytest.raises(DragomanError, match="`native-1` at backend `lab`, which is another"):
        await take(target, data)


async def test_what_happens_while_it_is_written_leaves_it_without_a_foot(source: Journal) -> None:
    await filled(source)
    packed = await pack(source, NAME)
    lines = packed.lines()
    got = await anext(lines)
    two = ev.Entry(2, 3000, NAME, ev.Gap(thread_id=ev.MAIN, reason="x")).encode_row() + b"\n"
    await source.append(Write(packed.key, 2, 1, two, at=3000))
    got += await anext(lines)
    with pytest.raises(
        DragomanError,
        match="Something happened in session `dgs_00000000000000000000000001` meanwhile",
    ):
        await anext(lines)
    assert got.count(b"\n") == 2


def test_a_new_file_replaces_none_and_is_there_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with pytest.raises(ZeroDivisionError), new_file(file) as out:
        out.write(b"%d" % (1 // 0))
    assert list(tmp_path.iterdir()) == []
    with new_file(file) as out:
        out.write(b"first")
    with pytest.raises(FileExistsError), new_file(file) as out:
        out.write(b"second")
    assert file.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [file]


def test_the_parts_of_a_line_are_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "LINE_MOST", 10)
    with pytest.raises(ArchiveError, match="line 1: it is longer than 10 bytes"):
        Unpacker().take(b"x" * 11)


async def test_each_line_is_known_for_what_it_is(source: Journal) -> None:
    await filled(source, files=[b"a file"])
    unpacker = Unpacker()
    data = await archive_of(source)
    head, entry, piece, foot = [unpacker.take(one) for one in data.splitlines(keepends=True)]
    assert isinstance(head, SessionHead)
    (leg,) = await source.legs((await source.session(NAME)).key)
    assert head.legs == (dataclasses.replace(leg, session=0),)
    assert entry == encoded(BEGIN)
    assert piece == Piece(hashlib.sha256(b"a file").hexdigest(), b"a file", True)
    assert foot == Foot(NAME)
    unpacker.close()
