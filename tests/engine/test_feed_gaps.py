"""A feed whose cursors have gaps, as the stamps of an Engine's frames do."""

from __future__ import annotations

import pytest

import proxy.fanout.hub
from adapters.engine.server import EngineEncoder
from adapters.model import events as ev
from adapters.model.base import EncoderContext, Frame
from proxy.fanout.hub import Feed
from proxy.journal.base import Write
from proxy.journal.sqlite import TemporaryJournal

START = 1_780_992_900_000


def entries() -> list[ev.Entry]:
    events: list[ev.Event] = [
        ev.SessionStarted(thread_id=ev.MAIN),
        ev.TurnStarted(thread_id=ev.MAIN, turn_id="t1", cause="unknown"),
    ]
    events += [
        ev.TextDelta(thread_id=ev.MAIN, turn_id="t1", block_id="b", message_id="m", text=str(n))
        for n in range(30)
    ]
    return [ev.Entry(seq, START + 3 * seq, "s", event) for seq, event in enumerate(events, 1)]


@pytest.mark.parametrize("ring", [1, 400, 10**6])
async def test_a_read_gives_every_frame_from_a_position_on_whatever_is_in_memory(
    ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.fanout.hub, "RING_BYTES", ring)
    monkeypatch.setattr(proxy.fanout.hub, "WRITE_BYTES", 200)
    journal = TemporaryJournal()
    await journal.open()
    log = entries()
    row = await journal.create_session(
        id="s",
        owner="anna",
        route="r",
        dialect="engine",
        backend="b",
        secret=b"",
        at=START,
        body=log[0].encode_row() + b"\n",
    )
    rest = b"".join(entry.encode_row() + b"\n" for entry in log[1:])
    journal.submit(Write(row.key, first=2, count=len(log) - 1, body=rest, at=START))
    context = EncoderContext(session_id="s", secret=b"")
    feed = Feed(journal, row.key, "s", lambda: EngineEncoder(context), lambda: len(log))
    await feed.catch_up()
    encoder = EngineEncoder(context)
    frames = [frame for entry in log for frame in encoder.feed(entry)]
    assert feed.next_cursor == frames[-1].cursor + 1
    for position in (0, *range(frames[0].cursor - 2, frames[-1].cursor + 4)):
        read: list[Frame] = []
        async for piece in feed.read(position):
            read += piece
        assert read == [frame for frame in frames if frame.cursor >= position]
