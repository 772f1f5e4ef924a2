"""Any order of appends, deletions, restarts and crashes leaves what a plain list would hold."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from proxy.base.errors import CursorExpired, JournalError, SequenceConflict, SessionClosed
from proxy.journal.base import Journal, Write
from proxy.journal.postgres import PostgresJournal
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import begin, create, joined, line, lines
from tests.support.postgres import shared_server


@dataclasses.dataclass
class Model:
    """What a session should hold."""

    key: int
    id: str
    entries: list[bytes]
    position: bytes | None = None
    title: str | None = None
    deleted: bool = False


class JournalMachine(RuleBasedStateMachine):
    """A journal whose index is written early, so that all its states are met."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="journal-"))
        self.loop = asyncio.new_event_loop()
        self.models: list[Model] = []
        self.files = 0

    @initialize(index_rows=st.integers(1, 12))
    def begin(self, index_rows: int) -> None:
        self.index_rows = index_rows
        self.journal = self.made()
        self.loop.run_until_complete(self.journal.open())

    def made(self) -> Journal:
        """Return a journal on what is stored."""
        path = self.folder / f"{self.files}.db"
        return SqliteJournal(path, index_rows=self.index_rows, window_ms=0)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.journal.aclose())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)

    def any_of(self, number: int) -> Model:
        return self.models[number % len(self.models)]

    def store(self, *writes: Write) -> list[JournalError | None]:
        async def together() -> list[JournalError | None]:
            return await asyncio.gather(*[begin(self.journal, write) for write in writes])

        return self.loop.run_until_complete(together())

    @rule()
    def create(self) -> None:
        id = f"s{len(self.models)}"
        row = self.loop.run_until_complete(create(self.journal, id))
        self.models.append(Model(row.key, id, [line(1)]))

    @precondition(lambda self: self.models)
    @rule(
        appends=st.lists(
            st.tuples(st.integers(0, 99), st.integers(1, 4), st.booleans(), st.booleans()),
            min_size=1,
            max_size=12,
        )
    )
    def append(self, appends: list[tuple[int, int, bool, bool]]) -> None:
        writes: list[Write] = []
        expected: list[type] = []
        for number, count, has_position, is_late in appends:
            model = self.any_of(number)
            first = len(model.entries) + (0 if is_late else 1)
            body = lines(first, count, f"{number}-{count}")
            position = b"at %d" % first if has_position else None
            writes.append(Write(model.key, first, count, body, position=position))
            if model.deleted:
                expected.append(SessionClosed)
            elif is_late:
                expected.append(SequenceConflict)
            else:
                expected.append(type(None))
                model.entries += body.splitlines(keepends=True)
                model.position = position or model.position
        assert [type(result) for result in self.store(*writes)] == expected

    @precondition(lambda self: self.models)
    @rule(number=st.integers(0, 99), title=st.text(max_size=3), position=st.binary(max_size=3))
    def change(self, number: int, title: str, position: bytes) -> None:
        model = self.any_of(number)
        (error,) = self.store(Write(model.key, title=title, position=position))
        if model.deleted:
            assert isinstance(error, SessionClosed)
        else:
            assert error is None
            model.title, model.position = title, position

    @precondition(lambda self: self.models)
    @rule(
        number=st.integers(0, 99), after=st.integers(0, 99), limit=st.sampled_from([1, 300, 9999])
    )
    def read(self, number: int, after: int, limit: int) -> None:
        model = self.any_of(number)
        after %= len(model.entries) + 1
        reading = self.journal.read(model.key, after=after, limit_bytes=limit)
        if model.deleted and after < len(model.entries):
            with pytest.raises(CursorExpired):
                self.loop.run_until_complete(reading)
            return
        chunks = self.loop.run_until_complete(reading)
        entries = joined(chunks)
        if after == len(model.entries):
            assert entries == []
            return
        first = chunks[0].first
        assert first <= after + 1 <= chunks[0].first + chunks[0].count - 1
        assert entries == model.entries[first - 1 :][: len(entries)]

    @precondition(lambda self: self.models)
    @rule(number=st.integers(0, 99))
    def delete(self, number: int) -> None:
        model = self.any_of(number)
        self.loop.run_until_complete(self.journal.delete(model.key, at=5))
        model.deleted, model.title, model.position = True, None, None

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.journal.aclose())
        self.loop.run_until_complete(self.journal.open())
        self.compare()

    @rule()
    def crash(self) -> None:
        self.break_off()
        self.loop.run_until_complete(self.journal.aclose())
        self.journal = self.made()
        self.loop.run_until_complete(self.journal.open())
        self.compare()

    def break_off(self) -> None:
        """Let nothing be stored any more that is not stored yet."""
        assert isinstance(self.journal, SqliteJournal)
        old = self.folder / f"{self.files}.db"
        self.files += 1
        new = self.folder / f"{self.files}.db"
        # In the writer's thread, so that no checkpoint comes between the two files.
        self.loop.run_until_complete(self.journal._job(lambda transaction: copy(old, new)))

    def compare(self) -> None:
        rows = self.loop.run_until_complete(self.journal.sessions())
        assert [(row.key, row.id, row.title, row.last_seq) for row in reversed(rows)] == [
            (model.key, model.id, model.title, len(model.entries)) for model in self.models
        ]
        for model in self.models:
            (leg,) = self.loop.run_until_complete(self.journal.legs(model.key))
            assert leg.position == model.position
            if not model.deleted:
                chunks = self.loop.run_until_complete(self.journal.read(model.key))
                assert joined(chunks) == model.entries


def copy(old: Path, new: Path) -> None:
    """Copy a database and its write-ahead log, as a crash leaves them."""
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{old}{suffix}", f"{new}{suffix}")


JournalMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
test_the_journal_holds_what_a_list_would_hold = JournalMachine.TestCase


class DatabaseMachine(JournalMachine):
    """A journal in PostgreSQL, which loses its connections and its place in a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.database = shared_server().new_database()

    def made(self) -> Journal:
        return PostgresJournal(shared_server().url(self.database), window_ms=0)

    def break_off(self) -> None:
        shared_server().forget_nodes(self.database)
        shared_server().hang_up(self.database)


DatabaseMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)
test_the_database_holds_what_a_list_would_hold = pytest.mark.postgres(DatabaseMachine.TestCase)
