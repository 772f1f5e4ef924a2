"""The control API's lines are those of the log, made without reading them."""

from __future__ import annotations

import pytest

from adapters import events as ev
from adapters.framing.sse import format_sse
from proxy import lines as made
from proxy.lines import Lines, Recent
from tests.support.logs import asked, block, opened, started

EVENTS = [started("A \u2028 title"), *opened(1), asked(1), *block(["a", "b\n", '"c"'])]
ENTRIES = [ev.Entry(seq, 1000 + seq, 's "1"', event) for seq, event in enumerate(EVENTS, 1)]
ROWS = b"".join(entry.encode_row() + b"\n" for entry in ENTRIES)


def whole(entry: ev.Entry, *, sse: bool) -> bytes:
    value = entry.encode()
    if sse:
        return format_sse(value, event=entry.event.TYPE, id=str(entry.seq))
    return value + b"\n"


@pytest.mark.parametrize("sse", [False, True])
@pytest.mark.parametrize("size", [1, 200, 1 << 20])
def test_lines_are_the_entries_as_they_are_encoded(
    monkeypatch: pytest.MonkeyPatch, sse: bool, size: int
) -> None:
    monkeypatch.setattr(made, "WRITE_BYTES", size)
    lines = Lines('s "1"', sse=sse)
    for after in range(len(ENTRIES) + 1):
        parts = [part for part in lines.of(ROWS, after) if part is not None]
        assert b"".join(data for _, data in parts) == b"".join(
            whole(entry, sse=sse) for entry in ENTRIES[after:]
        )
        if parts:
            assert parts[-1][0] == len(ENTRIES)


def test_a_row_of_another_form_is_read() -> None:
    rows = b"".join(entry.encode() + b"\n" for entry in ENTRIES)
    lines = Lines("s", sse=False)
    assert [part[1] for part in lines.of(rows, 0) if part is not None] == [rows]


@pytest.mark.parametrize("sse", [False, True])
def test_followers_get_the_newest_lines_from_memory(sse: bool) -> None:
    recent, lines = Recent(), Lines('s "1"', sse=sse)
    rows = [entry.encode_row() + b"\n" for entry in ENTRIES]
    recent.add(1, 1, rows[0])
    assert list(recent.after(0, lines)) == []
    recent.followers = 1
    recent.add(3, 2, rows[2] + rows[3])
    recent.add(5, 1, rows[4])
    expected = [whole(entry, sse=sse) for entry in ENTRIES]
    assert list(recent.after(2, lines)) == [(4, b"".join(expected[2:4])), (5, expected[4])]
    assert list(recent.after(4, lines)) == [(5, expected[4])]
    # Before what is kept, or in the middle of a write: the journal has it.
    assert list(recent.after(1, lines)) == list(recent.after(3, lines)) == []
    # What is missing in between is not jumped over.
    recent.add(7, 1, rows[6])
    assert list(recent.after(2, lines)) == []
    assert list(recent.after(6, lines)) == [(7, expected[6])]


def test_no_more_is_kept_than_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [entry.encode_row() + b"\n" for entry in ENTRIES]
    monkeypatch.setattr(made, "RECENT_BYTES", len(rows[1]) + len(rows[2]))
    recent, lines = Recent(), Lines('s "1"', sse=False)
    recent.followers = 1
    for seq in (1, 2, 3):
        recent.add(seq, 1, rows[seq - 1])
        assert list(recent.after(seq - 1, lines))
    assert list(recent.after(0, lines)) == []
    assert [seq for seq, _ in recent.after(1, lines)] == [2, 3]
    assert len(recent._made) <= 2
