"""The encoder that faces share."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import TypeAdapter

from adapters.model import events as ev
from adapters.model.base import EncoderContext, Frame
from adapters.serving.encoder import EncoderWriter, ShownBlock, TableEncoder


@dataclasses.dataclass(slots=True)
class State:
    """What the encoder of these tests knows."""

    notices: int = 0
    after: int = 0
    open: dict[str, ShownBlock] = dataclasses.field(default_factory=dict)


def _notice(w: EncoderWriter[State], event: ev.Notice) -> None:
    w.s.notices += 1
    w.s.open[event.text] = ShownBlock(event.text, f"{w.ids}{w.s.notices}")
    w.out.append(Frame(w.s.notices, f"{event.text} at {w.at}".encode()))


def _after(w: EncoderWriter[State]) -> None:
    w.s.after += 1


class NoticeEncoder(TableEncoder[EncoderWriter[State], State]):
    """Writes a frame for each notice."""

    dialect = "notices"
    version = 1

    def __init__(self, context: EncoderContext) -> None:
        writer = EncoderWriter(State(), context.session_id, "m-")
        table = {"notice": _notice}
        super().__init__(writer, table, lambda s: s.notices + 1, TypeAdapter(State), _after)


def encoder() -> NoticeEncoder:
    return NoticeEncoder(EncoderContext("session", b""))


def entry(seq: int, event: ev.Event) -> ev.Entry:
    return ev.Entry(seq, 1_000 + seq, "session", event)


def notice(text: str) -> ev.Event:
    return ev.Notice(thread_id=ev.MAIN, text=text)


UNKNOWN = ev.ContextCleared(thread_id=ev.MAIN)


def test_an_entry_gives_the_frames_of_its_function_alone() -> None:
    found = encoder()
    assert found.feed(entry(1, notice("a"))) == [Frame(1, b"a at 1001")]
    assert found.feed(entry(2, notice("b"))) == [Frame(2, b"b at 1002")]
    assert (found.state.after, found.next_cursor) == (2, 3)


def test_an_event_without_a_function_changes_nothing() -> None:
    found = encoder()
    found.feed(entry(1, notice("a")))
    assert found.feed(entry(2, UNKNOWN)) == []
    assert (found.state.after, found.next_cursor) == (1, 2)


def test_a_restored_encoder_goes_on_as_the_one_that_was_stored() -> None:
    first, second = encoder(), encoder()
    first.feed(entry(1, notice("a")))
    snapshot = first.snapshot()
    assert snapshot == b'{"notices":1,"after":1,"open":{"a":{"id":"a","shown_as":"m-1"}}}'
    second.restore(snapshot)
    assert second.next_cursor == first.next_cursor == 2
    assert second.state == first.state
    following: list[Any] = [entry(2, notice("b")), entry(3, UNKNOWN), entry(4, notice("c"))]
    assert [second.feed(one) for one in following] == [first.feed(one) for one in following]
    assert second.snapshot() == first.snapshot() != snapshot


def test_a_message_is_ours_where_its_id_begins_as_the_session_s() -> None:
    assert encoder().is_ours("m-7")
    assert not encoder().is_ours("n-m-7")
