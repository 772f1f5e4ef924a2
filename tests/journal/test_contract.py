"""What every journal must do, whatever it is made of."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import string
from typing import Any

import pytest

from proxy.base.errors import (
    CursorExpired,
    JournalError,
    JournalUnavailable,
    SequenceConflict,
    SessionClosed,
    SessionNotFound,
)
from proxy.base.rows import (
    BackendBinding,
    BackendRow,
    CodecRow,
    CommandRow,
    SessionRow,
    ShareRow,
    StoredSnapshot,
)
from proxy.journal.base import OF_WORDS, Journal, Write
from tests.journal.conftest import begin, create, joined, line, lines, store
from tests.support.waiting import SOON_S


async def test_a_new_session_is_returned_whole_and_holds_its_first_entry(journal: Journal) -> None:
    made = await journal.create_session(
        id="s1",
        owner="web",
        route="research",
        dialect="eve",
        backend="lab",
        secret=b"\x00\xff",
        at=1000,
        body=line(1, "hello"),
        aliases=[("task", "t-1")],
        native_id="native-1",
    )

    assert made == SessionRow(
        made.key,
        "s1",
        "web",
        "research",
        "eve",
        1000,
        b"\x00\xff",
        updated_at=1000,
        last_seq=1,
        bytes=len(line(1, "hello")),
    )
    # The size is counted with the index, which is written later, so it may be told a moment late.
    found = await journal.session("s1")
    assert dataclasses.replace(found, bytes=made.bytes) == made
    assert await journal.legs(made.key) == [
        BackendBinding(made.key, 0, "lab", native_id="native-1")
    ]
    assert await journal.aliases(made.key) == [("task", "t-1")]
    assert joined(await journal.read(made.key)) == [line(1, "hello")]


async def test_an_id_is_unique(journal: Journal) -> None:
    await create(journal, "s1")

    with pytest.raises(SequenceConflict):
        await create(journal, "s1", owner="other")


async def test_an_alias_is_unique_in_owner_route_and_kind(journal: Journal) -> None:
    async def make(id: str, owner: str, route: str, kind: str) -> SessionRow:
        return await journal.create_session(
            id=id,
            owner=owner,
            route=route,
            dialect="engine",
            backend="lab",
            secret=b"",
            at=1,
            body=line(1),
            aliases=[(kind, "t-1")],
        )

    await make("s1", "web", "research", "task")
    with pytest.raises(SequenceConflict):
        await make("s2", "web", "research", "task")
    await make("s3", "cli", "research", "task")
    await make("s4", "web", "support", "task")
    await make("s5", "web", "research", "thread")

    assert await journal.resolve(owner="web", route="research", kind="task", name="t-1") == "s1"
    assert await journal.resolve(owner="cli", route="research", kind="task", name="t-1") == "s3"
    assert await journal.resolve(owner="cli", route="support", kind="task", name="t-1") is None
    with pytest.raises(SessionNotFound):
        await journal.session("s2")


async def test_a_write_may_add_aliases_but_not_take_one_of_another_session(
    journal: Journal,
) -> None:
    one, two = await create(journal, "s1"), await create(journal, "s2")

    assert await store(journal, Write(one.key, aliases=[("task", "t"), ("thread", "t")])) is None
    assert await store(journal, Write(one.key, aliases=[("task", "t")])) is None
    taken = await store(
        journal, Write(two.key, 2, 1, line(2), aliases=[("new", "n"), ("task", "t")], title="lost")
    )

    assert isinstance(taken, SequenceConflict)
    assert await journal.aliases(one.key) == [("task", "t"), ("thread", "t")]
    assert await journal.aliases(two.key) == []
    assert (await journal.session("s2")).title is None
    assert joined(await journal.read(two.key)) == [line(1)]


async def test_a_write_may_take_a_name_from_another_session(journal: Journal) -> None:
    one, two = await create(journal, "s1"), await create(journal, "s2")
    for row in (one, two, two):
        assert await store(journal, Write(row.key, takes=[("thread", "t")])) is None
        assert await journal.aliases(row.key) == [("thread", "t")]
    assert await journal.aliases(one.key) == []


async def test_writes_are_acknowledged_in_the_order_of_submission(journal: Journal) -> None:
    sessions = [await create(journal, f"s{n}") for n in range(3)]
    order: list[tuple[int, JournalError | None]] = []
    finished = asyncio.Event()

    def note(number: int, error: JournalError | None) -> None:
        order.append((number, error))
        if len(order) == 300:
            finished.set()

    for number in range(300):
        key = sessions[number % 3].key
        seq = 2 + number // 3
        journal.submit(
            Write(key, seq, 1, line(seq), done=lambda error, n=number: note(n, error))  # type: ignore[misc]
        )
    assert order == []
    async with asyncio.timeout(SOON_S):
        await finished.wait()

    assert order == [(number, None) for number in range(300)]
    assert journal.backlog == 0
    for session in sessions:
        entries = joined(await journal.read(session.key))
        assert entries == [line(seq) for seq in range(1, 102)]


async def test_a_write_at_the_wrong_seq_fails_alone(journal: Journal) -> None:
    one, two = await create(journal, "s1"), await create(journal, "s2")

    results = await asyncio.gather(
        begin(journal, Write(one.key, 2, 2, lines(2, 2))),
        begin(journal, Write(one.key, 3, 1, line(3, "again"), title="lost")),
        begin(journal, Write(two.key, 5, 1, line(5))),
        begin(journal, Write(two.key, 2, 1, line(2))),
        begin(journal, Write(one.key, 4, 1, line(4))),
    )

    assert [type(result) for result in results] == [
        type(None),
        SequenceConflict,
        SequenceConflict,
        type(None),
        type(None),
    ]
    assert joined(await journal.read(one.key)) == [line(seq) for seq in range(1, 5)]
    assert joined(await journal.read(two.key)) == [line(1), line(2)]
    assert (await journal.session("s1")).title is None


async def test_a_write_for_no_session_fails_alone(journal: Journal) -> None:
    session = await create(journal)

    results = await asyncio.gather(
        begin(journal, Write(session.key + 99, 2, 1, line(2))),
        begin(journal, Write(session.key, 2, 1, line(2))),
    )

    assert isinstance(results[0], SessionNotFound)
    assert results[1] is None


async def test_a_write_is_all_or_nothing(journal: Journal) -> None:
    session = await create(journal)
    command = CommandRow(session.key, 1, "c1", "accepted", b"{}", 5)

    error = await store(
        journal,
        Write(
            session.key,
            2,
            1,
            line(2),
            leg=7,
            leg_state=b"no such leg",
            commands=[command],
            state="running",
        ),
    )

    assert isinstance(error, SessionNotFound)
    assert joined(await journal.read(session.key)) == [line(1)]
    assert await journal.commands(session.key) == []
    assert (await journal.session("s1")).state == "idle"


@pytest.mark.parametrize("body", [b"", b"{}", b"{}\n{}\n", b"\n{}"])
async def test_a_body_that_is_not_count_lines_is_refused_at_once(
    journal: Journal, body: bytes
) -> None:
    session = await create(journal)

    with pytest.raises(ValueError, match="as many lines"):
        journal.submit(Write(session.key, 2, 1, body))


async def test_one_done_that_raises_does_not_silence_the_others(journal: Journal) -> None:
    session = await create(journal)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["exception"])
    )
    fault = RuntimeError("a subscriber's fault")

    def fail(error: JournalError | None) -> None:
        raise fault

    journal.submit(Write(session.key, 2, 1, line(2), done=fail))
    assert await store(journal, Write(session.key, 3, 1, line(3))) is None

    assert reported == [fault]


async def test_a_write_that_nobody_waits_for_is_stored_in_silence(journal: Journal) -> None:
    session = await create(journal)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    journal.submit(Write(session.key, 2, 1, line(2)))
    assert await store(journal, Write(session.key, 3, 1, line(3))) is None

    assert joined(await journal.read(session.key)) == [line(1), line(2), line(3)]
    assert reported == []


async def test_read_begins_at_the_write_that_holds_the_cursor_and_stops_at_the_limit(
    journal: Journal,
) -> None:
    session = await create(journal)
    body = lines(2, 10, "y" * 100)
    for first in range(2, 1002, 10):
        last = begin(journal, Write(session.key, first, 10, lines(first, 10, "y" * 100)))
    assert await last is None

    everything = await journal.read(session.key)
    assert joined(everything) == [line(1), *lines(2, 1000, "y" * 100).splitlines(keepends=True)]
    middle = await journal.read(session.key, after=505, limit_bytes=1)
    assert middle[0].first == 502
    assert len(joined(middle)) == 10
    some = await journal.read(session.key, after=1, limit_bytes=5 * len(body))
    assert 40 <= len(joined(some)) <= 70
    assert await journal.read(session.key, after=1001) == []
    assert await journal.read(session.key, after=5000) == []


async def test_scan_yields_all_to_the_end(journal: Journal) -> None:
    session = await create(journal)
    for seq in range(2, 52):
        last = begin(journal, Write(session.key, seq, 1, line(seq, "z" * 100_000)))
    assert await last is None

    seqs = [
        seq
        async for chunk in journal.scan(session.key, after=3)
        for seq in range(chunk.first, chunk.first + chunk.count)
    ]

    assert seqs == list(range(4, 52))


async def test_reading_no_session_is_an_error(journal: Journal) -> None:
    with pytest.raises(SessionNotFound):
        await journal.read(99)


async def test_state_title_and_archive_are_kept_and_the_rest_is_left_alone(
    journal: Journal,
) -> None:
    session = await create(journal)

    await store(journal, Write(session.key, state="running", title="A title", at=2000))
    await store(journal, Write(session.key, archived_at=3000, at=3000))
    await store(journal, Write(session.key, 2, 1, line(2), at=4000))
    await store(journal, Write(session.key, 3, 1, line(3), at=3500))

    found = await journal.session("s1")
    assert (found.state, found.title, found.archived_at) == ("running", "A title", 3000)
    assert (found.updated_at, found.created_at, found.last_seq) == (4000, 1000, 3)


async def test_a_leg_keeps_the_last_state_position_and_native_id_that_were_named(
    journal: Journal,
) -> None:
    session = await create(journal)
    key = session.key

    await store(journal, Write(key, 2, 1, line(2), position=b"p1", leg_state=b"snapshot 1"))
    await store(journal, Write(key, 3, 1, line(3), position=b"p2", native_id="n"))
    await store(journal, Write(key, 4, 1, line(4)))
    assert await journal.legs(key) == [BackendBinding(key, 0, "lab", "n", b"snapshot 1", b"p2")]

    await store(journal, Write(key, position=b"p3"))
    assert (await journal.legs(key))[0].position == b"p3"

    both = [
        begin(journal, Write(key, position=b"p4")),
        begin(journal, Write(key, 5, 1, line(5), position=b"p5", leg_state=b"snapshot 2")),
    ]
    assert await asyncio.gather(*both) == [None, None]
    assert await journal.legs(key) == [BackendBinding(key, 0, "lab", "n", b"snapshot 2", b"p5")]


async def test_commands_move_through_the_outbox_in_the_order_of_acceptance(
    journal: Journal,
) -> None:
    session = await create(journal)

    def command(number: int, status: str) -> CommandRow:
        return CommandRow(session.key, number, f"c{number}", status, b'{"n":1}', 7)  # type: ignore[arg-type]

    await store(journal, Write(session.key, commands=[command(2, "accepted")]))
    await store(
        journal, Write(session.key, commands=[command(1, "accepted"), command(3, "accepted")])
    )
    await store(journal, Write(session.key, commands=[command(1, "sent")]))
    await store(journal, Write(session.key, commands=[command(2, "settled")]))

    assert await journal.commands(session.key) == [command(1, "sent"), command(3, "accepted")]
    assert await journal.commands(session.key, statuses=["settled"]) == [command(2, "settled")]


async def test_sessions_are_listed_newest_first_filtered_and_in_pages(journal: Journal) -> None:
    rows = [await create(journal, f"s{n}", owner="web" if n % 2 else "cli") for n in range(6)]
    await store(journal, Write(rows[5].key, 2, 3, lines(2, 3), state="running", at=9))

    async def ids(**conditions: object) -> list[str]:
        return [row.id for row in await journal.sessions(**conditions)]  # type: ignore[arg-type]

    assert await ids() == ["s5", "s4", "s3", "s2", "s1", "s0"]
    assert await ids(owner="web") == ["s5", "s3", "s1"]
    assert await ids(owner="web", before=rows[5].key, limit=1) == ["s3"]
    assert await ids(route="support") == []
    assert await ids(owner="web", route="research", states=["idle"]) == ["s3", "s1"]
    assert await ids(states=["running", "paused"]) == ["s5"]
    assert await ids(states=[]) == []
    assert (await journal.sessions(limit=1))[0].last_seq == 4


async def test_sessions_are_listed_by_how_their_last_message_ended(journal: Journal) -> None:
    rows = [await create(journal, f"s{n}", owner="web" if n % 2 else "cli") for n in range(5)]
    for row, outcome in zip(rows, ("failed", "refused", "unknown", "completed"), strict=False):
        await store(journal, Write(row.key, state="running", outcome="failed", at=9))
        await store(journal, Write(row.key, outcome=outcome, at=9))
        await store(journal, Write(row.key, title="It is left alone.", at=9))

    async def ids(**conditions: object) -> list[str]:
        return [row.id for row in await journal.sessions(failed=True, **conditions)]  # type: ignore[arg-type]

    assert await ids() == ["s2", "s1", "s0"]
    assert await ids(owner="cli", states=["running"], limit=1) == ["s2"]
    assert await ids(before=rows[2].key, named="It is left alone.") == ["s1", "s0"]
    assert await ids(states=["idle"]) == []
    found = [(await journal.session(row.id)).outcome for row in rows]
    assert found == ["failed", "refused", "unknown", "completed", None]


async def test_sessions_are_listed_by_the_backend_that_their_last_move_left(
    journal: Journal,
) -> None:
    rows = [await create(journal, f"s{n}") for n in range(3)]
    for key, number, backend in (
        (rows[0].key, 1, "new"),
        (rows[1].key, 1, "new"),
        (rows[1].key, 2, "newer"),
    ):
        leg = BackendBinding(key, number, backend, None)
        await store(journal, Write(key, leg=number, leg_state=b"{}", new_leg=leg))

    async def ids(**conditions: object) -> list[str]:
        return [row.id for row in await journal.sessions(**conditions)]  # type: ignore[arg-type]

    assert await ids(came_from="lab") == ["s0"]
    assert await ids(came_from="new") == ["s1"]
    assert await ids(came_from="new", backend="lab") == []
    assert await ids(came_from="newer") == []


async def test_sessions_are_listed_in_which_something_happened_since(journal: Journal) -> None:
    rows = [await create(journal, f"s{n}") for n in range(4)]
    for row, at in zip(rows[:3], (3000, 2000, 2001), strict=True):
        await store(journal, Write(row.key, 2, 1, line(2), at=at))

    async def ids(changed: int, **conditions: Any) -> list[str]:
        return [row.id for row in await journal.sessions(changed=changed, **conditions)]

    assert await ids(0) == ["s3", "s2", "s1", "s0"]
    assert await ids(2000) == ["s2", "s1", "s0"]
    assert await ids(2001) == ["s2", "s0"]
    assert await ids(2001, before=rows[2].key) == await ids(2001, limit=1, after=0) == ["s0"]
    assert await ids(3001) == []
    # What is in the index on disk counts as what is not yet.
    await store(journal, Write(rows[1].key, 3, 1000, lines(3, 1000), at=4000))
    await store(journal, Write(rows[3].key, 2, 1, line(2), at=4001))
    assert await ids(4000) == ["s3", "s1"]


async def test_the_backends_of_many_sessions_come_with_one_question(journal: Journal) -> None:
    rows = [await create(journal, f"s{n}") for n in range(3)]
    for number, backend in ((1, "new"), (2, "newer")):
        leg = BackendBinding(rows[1].key, number, backend, None)
        await store(journal, Write(rows[1].key, leg=number, leg_state=b"{}", new_leg=leg))

    keys = [row.key for row in rows]
    assert await journal.backends_of(keys) == dict(zip(keys, ("lab", "newer", "lab"), strict=True))
    assert await journal.backends_of([keys[1], 999_999]) == {keys[1]: "newer"}
    assert await journal.backends_of([]) == {}


async def test_frames_are_kept_by_number_and_leg(journal: Journal) -> None:
    session = await create(journal)
    key = session.key
    journal.add_frames(key, 0, 0, [b"f0", b"f1"], 100)
    journal.add_frames(key, 0, 2, [b"f2"], 200)
    journal.add_frames(key, 1, 0, [b"other leg"], 200)
    journal.add_frames(key, 0, 10, [b"f10"], 300)

    assert await journal.frames(key, 0) == [(0, b"f0"), (1, b"f1"), (2, b"f2"), (10, b"f10")]
    assert await journal.frames(key, 0, first=1, limit=2) == [(1, b"f1"), (2, b"f2")]
    assert await journal.frames(key, 0, first=1, limit_bytes=3) == [(1, b"f1"), (2, b"f2")]
    assert await journal.frames(key, 1) == [(0, b"other leg")]
    assert await journal.frames(key, 0, first=11) == []

    journal.add_frames(key, 0, 11, [b"f11"], 900)
    assert await journal.frames(key, 0, first=10) == [(10, b"f10"), (11, b"f11")]
    assert await journal.prune_frames(before=900) >= 2
    assert await journal.frames(key, 0) == [(11, b"f11")]
    assert await journal.prune_frames(before=900) == 0


async def test_a_long_frame_is_cut_and_says_so(journal: Journal) -> None:
    session = await create(journal)

    journal.add_frames(session.key, 0, 1, [b"x" * (65536 + 7)], 1)

    assert await journal.frames(session.key, 0) == [(1, b"x" * 65536 + b"\n[cut: 7 bytes]")]


async def test_a_blob_is_stored_once_under_its_hash(journal: Journal) -> None:
    name = await journal.put_blob(b"a file")

    assert name == "7365d029861e32c521f8089b00a6fb32daf0615025b69b599d1ce53501b845c2"
    assert await journal.put_blob(b"a file") == name
    assert await journal.blob(name) == b"a file"
    assert await journal.blob("0" * 64) is None


async def test_a_deleted_session_is_a_tombstone(journal: Journal) -> None:
    session = await create(journal)
    key = session.key
    command = CommandRow(key, 1, "c1", "accepted", b"{}", 5)
    await store(
        journal,
        Write(
            key,
            2,
            2,
            lines(2, 2),
            position=b"p",
            leg_state=b"snapshot",
            native_id="n",
            commands=[command],
            aliases=[("task", "t"), *((kind, "a hash of words") for kind in OF_WORDS)],
            title="secret title",
        ),
    )
    journal.add_frames(key, 0, 0, [b"frame"], 1)

    await journal.delete(key, at=5000)

    found = await journal.session("s1")
    assert (found.state, found.title, found.secret) == ("deleted", None, b"")
    assert (found.updated_at, found.last_seq) == (5000, 3)
    assert await journal.resolve(owner="web", route="research", kind="task", name="t") == "s1"
    assert await journal.aliases(key) == [("task", "t")]
    assert await journal.legs(key) == [BackendBinding(key, 0, "lab", native_id="n")]
    assert await journal.commands(key) == []
    assert await journal.frames(key, 0) == []
    with pytest.raises(CursorExpired):
        await journal.read(key, after=2)
    assert await journal.read(key, after=3) == []
    assert isinstance(await store(journal, Write(key, 4, 1, line(4))), SessionClosed)
    journal.add_frames(key, 0, 1, [b"late"], 1)
    assert await journal.frames(key, 0) == []
    await journal.delete(key, at=6000)
    with pytest.raises(SessionNotFound):
        await journal.delete(key + 1, at=6000)


async def test_writes_before_a_deletion_are_stored_and_those_after_it_refused(
    journal: Journal,
) -> None:
    session = await create(journal)

    before = begin(journal, Write(session.key, 2, 1, line(2)))
    deletion = asyncio.ensure_future(journal.delete(session.key, at=5))
    await asyncio.sleep(0)
    after = begin(journal, Write(session.key, 3, 1, line(3)))

    await deletion
    assert await before is None
    assert isinstance(await after, SessionClosed)
    assert (await journal.session("s1")).last_seq == 2


async def test_deletion_erases_blobs_that_nobody_else_names(journal: Journal) -> None:
    one, two = await create(journal, "s1"), await create(journal, "s2")
    own, shared, fresh = [await journal.put_blob(b) for b in (b"own", b"shared", b"fresh")]
    await store(journal, Write(one.key, blobs=[own, shared, fresh]))
    await store(journal, Write(two.key, blobs=[shared]))
    # Put again by somebody who has not named it yet.
    await journal.put_blob(b"fresh")

    await journal.delete(one.key, at=5)

    assert await journal.blob(own) is None
    assert await journal.blob(shared) == b"shared"
    assert await journal.blob(fresh) == b"fresh"


async def test_a_blob_that_two_put_is_fresh_until_both_have_named_it(journal: Journal) -> None:
    one, two = await create(journal, "s1"), await create(journal, "s2")
    (name,) = {await journal.put_blob(b"a file"), await journal.put_blob(b"a file")}
    await store(journal, Write(one.key, blobs=[name]))
    await journal.delete(one.key, at=5)
    assert await journal.blob(name) == b"a file"
    await store(journal, Write(two.key, blobs=[name]))
    await journal.delete(two.key, at=6)
    assert await journal.blob(name) is None


async def test_a_blob_that_nobody_will_name_is_erased_unless_it_is_another_s(
    journal: Journal,
) -> None:
    session = await create(journal)
    named, fresh, own = [await journal.put_blob(b) for b in (b"named", b"fresh", b"own")]
    await store(journal, Write(session.key, blobs=[named]))
    for data in (b"named", b"fresh"):
        await journal.put_blob(data)
    await journal.drop_blobs([named, fresh, own])
    assert await journal.blob(named) == b"named"
    assert await journal.blob(fresh) == b"fresh"
    assert await journal.blob(own) is None
    await journal.drop_blobs([fresh])
    assert await journal.blob(fresh) is None


async def test_a_blob_whose_write_was_handed_over_is_dropped_as_no_other_s(
    journal: Journal,
) -> None:
    await create(journal)
    (name,) = {await journal.put_blob(b"a file"), await journal.put_blob(b"a file")}
    # The one of them has handed over a write that was refused.
    assert isinstance(await store(journal, Write(999, blobs=[name])), JournalError)
    await journal.drop_blobs([name], handed_over=True)
    assert await journal.blob(name) == b"a file"
    await journal.drop_blobs([name])
    assert await journal.blob(name) is None


async def test_a_closed_journal_refuses_everything(journal: Journal) -> None:
    session = await create(journal)
    await journal.aclose()
    await journal.aclose()

    assert isinstance(await store(journal, Write(session.key, 2, 1, line(2))), JournalUnavailable)
    journal.add_frames(session.key, 0, 0, [b"frame"], 1)
    for asked in (
        create(journal, "s2"),
        journal.session("s1"),
        journal.sessions(),
        journal.resolve(owner="web", route="research", kind="task", name="t-1"),
        journal.aliases(session.key),
        journal.legs(session.key),
        journal.commands(session.key),
        journal.read(session.key),
        journal.put_blob(b"x"),
        journal.drop_blobs(["0" * 64]),
        journal.blob("0" * 64),
        journal.sizes(),
        journal.oldest(),
        journal.delete(session.key, at=1),
    ):
        with pytest.raises(JournalUnavailable):
            await asked


async def test_an_opened_again_journal_holds_everything(journal: Journal) -> None:
    session = await create(journal)
    key = session.key
    writes = [
        begin(journal, Write(key, seq, 1, line(seq), position=b"p%d" % seq, at=seq))
        for seq in range(2, 50)
    ]
    journal.add_frames(key, 0, 3, [b"frame"], 1)
    await journal.aclose()
    assert await asyncio.gather(*writes) == [None] * 48

    await journal.open()

    assert joined(await journal.read(key)) == [line(seq) for seq in range(1, 50)]
    assert (await journal.session("s1")).last_seq == 49
    assert (await journal.legs(key))[0].position == b"p49"
    assert await journal.frames(key, 0) == [(3, b"frame")]
    assert await store(journal, Write(key, 50, 1, line(50))) is None
    assert isinstance(await store(journal, Write(key, 50, 1, line(50))), SequenceConflict)


async def test_what_waits_for_the_disk_is_the_events_and_the_codecs_state(
    journal: Journal,
) -> None:
    session = await create(journal)
    write = Write(session.key, 2, 1, line(2), leg_state=b"s" * 5_000)
    stored = begin(journal, write)
    await asyncio.sleep(0)
    assert journal.backlog == len(line(2)) + 5_000
    assert await stored is None
    assert journal.backlog == 0


VERSION = 3 << 32 | 4_000_000_000
"""As of frames: the version of an encoder, and the shape of its state in 32 bits."""


async def test_the_newest_snapshot_of_a_kind_and_version_is_found_by_cursor(
    journal: Journal,
) -> None:
    row = await create(journal)
    other = await create(journal, "other")
    assert await journal.snapshot(row.key, "frames/a", VERSION) is None
    for cursor, data in ((10, b"ten"), (20, b"twenty"), (20, b"twenty again"), (30, b"thirty")):
        journal.add_snapshot(row.key, StoredSnapshot("frames/a", VERSION, cursor, cursor * 2, data))
    journal.add_snapshot(row.key, StoredSnapshot("frames/a", 2, 25, 1, b"newer"))
    journal.add_snapshot(row.key, StoredSnapshot("frames/b", VERSION, 25, 1, b"of another face"))
    journal.add_snapshot(
        other.key, StoredSnapshot("frames/a", VERSION, 25, 1, b"of another session")
    )
    await journal.aclose()
    await journal.open()

    async def found(cursor: int | None, seq: int | None = None) -> bytes | None:
        snapshot = await journal.snapshot(row.key, "frames/a", VERSION, cursor=cursor, seq=seq)
        return None if snapshot is None else snapshot.data

    assert [await found(None, seq) for seq in (0, 19, 20, 39, 40, 59, 60, 1 << 40)] == [
        None,
        None,
        b"ten",
        b"ten",
        b"twenty again",
        b"twenty again",
        b"thirty",
        b"thirty",
    ]
    assert [await found(cursor) for cursor in (9, 10, 19, 20, 29, 30, None)] == [
        None,
        b"ten",
        b"ten",
        b"twenty again",
        b"twenty again",
        b"thirty",
        b"thirty",
    ]
    newest = await journal.snapshot(row.key, "frames/a", VERSION)
    assert newest == StoredSnapshot("frames/a", VERSION, 30, 60, b"thirty")
    await journal.delete(row.key, at=1)
    assert await found(None) is None
    journal.add_snapshot(row.key, StoredSnapshot("frames/a", VERSION, 10, 1, b"too late"))
    await journal.aclose()
    await journal.open()
    assert await found(None) is None


async def test_a_codec_is_fixed_once(journal: Journal) -> None:
    row = await create(journal)
    first = CodecRow("eve", 1, b'{"form":"all"}')
    assert await journal.fix_codec(row.key, first) == first
    assert await journal.fix_codec(row.key, CodecRow("eve", 2, b"{}")) == first
    assert await journal.codecs(row.key) == [first]
    await journal.delete(row.key, at=1)
    assert await journal.codecs(row.key) == []
    with pytest.raises(SessionClosed):
        await journal.fix_codec(row.key, first)


async def test_a_read_is_bounded_by_rows(journal: Journal) -> None:
    row = await create(journal)
    for seq in range(2, 12):
        journal.submit(Write(row.key, first=seq, count=1, body=b"%d\n" % seq))
    await journal.aclose()
    await journal.open()
    chunks = await journal.read(row.key, after=3, limit_rows=2)
    assert b"".join(chunk.body for chunk in chunks) == b"4\n5\n"
    scanned = [chunk.body async for chunk in journal.scan(row.key, after=3, rows=2)]
    assert b"".join(scanned) == b"".join(b"%d\n" % seq for seq in range(4, 12))


async def test_a_backend_s_names_are_found_those_of_gone_sessions_and_public_ids_too(
    journal: Journal,
) -> None:
    one = await create(journal, "s1", native_id="n1")
    await create(journal, "s2", native_id="n2")
    await journal.delete(one.key, at=5)
    assert [await journal.is_named("lab", name) for name in ("n1", "n2", "s1", "s2", "n3")] == [
        *(True, True, True, True),
        False,
    ]
    assert not await journal.is_named("other", "n2")
    assert await journal.is_named("other", "s2")


async def test_the_shares_of_a_route_are_kept_as_they_were_set_last(journal: Journal) -> None:
    assert await journal.shares() == []
    blue, green = ShareRow("main", "blue", 9), ShareRow("main", "green", 0)
    other = ShareRow("lab", "blue", 1)
    await journal.keep_shares("main", [blue, green])
    await journal.keep_shares("lab", [other])
    assert await journal.shares() == [other, blue, green]
    await journal.keep_shares("main", [green])
    assert await journal.shares() == [other, green]
    await journal.keep_shares("lab", [])
    assert await journal.shares() == [green]


async def test_what_backends_are_is_kept_of_those_with_sessions(journal: Journal) -> None:
    lab, other = (
        BackendRow("lab", "engine", "http://127.0.0.1:1"),
        BackendRow("other", "eve", "http://127.0.0.1:2"),
    )
    await journal.keep_backends([lab, other])
    assert await journal.known_backends() == []
    session = await create(journal, "s1")
    assert await journal.known_backends() == [lab]
    moved = BackendRow("lab", "engine", "http://127.0.0.1:3")
    await journal.keep_backends([moved])
    assert await journal.known_backends() == [moved]
    await journal.delete(session.key, at=5)
    assert await journal.known_backends() == []


async def test_a_write_may_move_a_session_and_do_nothing_else(journal: Journal) -> None:
    session = await create(journal)
    leg = BackendBinding(session.key, 1, "elsewhere")
    assert await store(journal, Write(session.key, leg=1, new_leg=leg)) is None
    assert [one.backend for one in await journal.legs(session.key)] == ["lab", "elsewhere"]


async def test_names_may_be_as_long_as_frontends_may_choose_them(journal: Journal) -> None:
    # No page of an index has room for one, and packing makes it no shorter.
    long = "".join(random.Random(1).choices(string.printable, k=4096))
    session = await journal.create_session(
        id="s1",
        owner="web",
        route="research",
        dialect="engine",
        backend="lab",
        secret=b"",
        at=1,
        body=line(1),
        aliases=[("task", long)],
        native_id=long,
    )
    assert await journal.resolve(owner="web", route="research", kind="task", name=long) == "s1"
    assert (
        await journal.resolve(owner="web", route="research", kind="task", name=long + "x") is None
    )
    assert await journal.is_named("lab", long)
    assert not await journal.is_named("lab", long[:-1])
    assert [row.id for row in await journal.sessions(named=long)] == ["s1"]
    other = await create(journal, "s2")
    taken = await store(journal, Write(other.key, aliases=[("task", long)]))
    assert isinstance(taken, SequenceConflict)
    assert await store(journal, Write(other.key, takes=[("task", long)])) is None
    assert await journal.aliases(session.key) == []
