"""Long lists of a Herm: what is read of them, in which pieces, and what a hostile one can do."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
from multidict import CIMultiDict

from adapters.herm.client import HermClient
from adapters.herm.client.catching_up import HOLE_MS, PAGES, SLICE, WAITING
from adapters.herm.client.numbers import HOLES
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, Request, Response
from adapters.wire.framing.sse import SseFrame
from tests.support.herm_client import Envelope
from tests.support.played import Played

NOW = 1_781_775_000_000
Order = Literal["asked", "oldest", "refused"]


def envelope(number: Any, type_: str = "agent.message", **payload: Any) -> Envelope:
    payload = payload or {"delta": False, "content": [{"type": "text", "text": f"n{number}"}]}
    return {
        "id": f"evt_{number}",
        "type": type_,
        "sequence": number,
        "status": "complete",
        "payload": {"type": type_, **payload},
        "createdAt": "2026-06-18T09:31:09.442Z",
    }


class Backend:
    """Lists its events as a server would, and counts what is asked."""

    def __init__(self, order: Order = "asked") -> None:
        self.events: list[Envelope] = [envelope(1, "session.status_running")]
        self.order = order
        self.pages = 0

    def answer(self, call: Call) -> Response:
        query = call.request.query
        if call.name == "session":
            return Response(200, CIMultiDict(), b'{"id":"s","status":"running"}')
        self.pages += 1
        if self.order == "refused" and "order" in query:
            return Response(400, CIMultiDict(), b'{"error":"validation_error"}')
        found = self.events
        if self.order == "asked" and query.get("order") == "desc":
            found = found[::-1]
        start, limit = int(query.get("cursor", 0)), int(query["limit"])
        following = str(start + limit) if len(found) > start + limit else None
        page = {"data": found[start : start + limit], "nextCursor": following}
        return Response(200, CIMultiDict(), json.dumps(page).encode())


class Session(Played):
    """A codec with its backend, driven as the proxy does; `steps` are the events of each call."""

    codec: HermClient

    def __init__(self, backend: Backend) -> None:
        super().__init__(lambda: HermClient({"agent": "a"}))
        self.backend = backend
        self.steps: list[int] = []
        self.do(lambda: [ev.SessionStarted(thread_id=ev.MAIN)])
        call = self.codec.submit(
            "k1", cmd.SendMessage(content=(ev.Text(text="go"),), policy="queue")
        )
        self.do(lambda: self.codec.respond(call, Response(201, CIMultiDict(), b'{"id":"s"}'), NOW))
        self.open()
        (post,) = self.codec.take_calls()
        self.do(lambda: self.codec.respond(post, Response(202), NOW))
        self.feed(self.backend.events[0])

    def do(self, step: Callable[[], list[ev.Event]]) -> None:
        self.steps.append(len(self.take(step())))

    def open(self) -> Call:
        (stream,) = self.codec.streams()
        self.do(lambda: self.codec.opened(stream, Response(200), NOW))
        return stream

    def feed(self, event: Envelope) -> None:
        frame = SseFrame(event["type"], json.dumps(event).encode(), event["id"])
        self.do(lambda: self.codec.feed(STREAM, frame, NOW))

    def lose(self) -> None:
        self.do(lambda: self.codec.closed(STREAM, CloseReason.LOST, NOW))

    def step(self, wait: int = 0) -> bool:
        """Do what the codec wants next, or will within so many milliseconds; say whether that was
        anything."""
        calls = self.codec.take_calls()
        for call in calls:
            self.do(partial(self.codec.respond, call, self.backend.answer(call), NOW))
        if calls:
            return True
        if self.codec.wake_at is None or self.codec.wake_at > NOW + wait:
            return False
        self.do(lambda: self.codec.tick(NOW + wait))
        return True

    def settle(self, wait: int = 0) -> None:
        while self.step(wait):
            pass

    def texts(self) -> list[str]:
        return [event.text for event in self.of(ev.TextCompleted)]


STREAM = Call("stream", Request("GET", "/"), stream=True)


def follow(session: Session, first: int, last: int) -> None:
    """Let events happen that the stream shows."""
    for number in range(first, last + 1):
        session.backend.events.append(envelope(number))
        session.feed(session.backend.events[-1])


def miss(session: Session, first: int, last: int) -> None:
    """Let events happen while the stream is away."""
    session.lose()
    session.backend.events += [envelope(number) for number in range(first, last + 1)]
    session.open()


def words(first: int, last: int) -> list[str]:
    return [f"n{number}" for number in range(first, last + 1)]


def test_only_what_was_missed_is_read_where_the_newest_come_first() -> None:
    session = Session(Backend())
    follow(session, 2, 5_000)
    miss(session, 5_001, 5_150)
    session.settle()
    assert session.texts() == words(2, 5_150)
    assert session.backend.pages == 2
    miss(session, 5_151, 5_151)
    session.settle()
    assert session.texts() == words(2, 5_151)
    assert session.backend.pages == 3


@pytest.mark.parametrize("order", ["oldest", "refused"])
def test_a_server_that_heeds_no_order_is_read_to_its_end(order: Order) -> None:
    session = Session(Backend(order))
    follow(session, 2, 500)
    miss(session, 501, 750)
    session.settle()
    assert session.texts() == words(2, 750)
    assert session.backend.pages == 8 + (order == "refused")


@pytest.mark.parametrize("order", ["asked", "oldest"])
def test_a_long_list_is_taken_in_small_pieces(order: Order) -> None:
    session = Session(Backend(order))
    miss(session, 2, 4_000)
    session.steps = []
    session.settle()
    assert session.texts() == words(2, 4_000)
    # A stored text is a delta and its end.
    assert max(session.steps) <= 2 * SLICE
    assert session.codec.wake_at is None


def test_frames_that_come_while_a_long_list_is_taken_stand_behind_it() -> None:
    session = Session(Backend())
    miss(session, 2, 400)
    session.feed(envelope(401))
    for number in range(402, 600):
        session.step()
        session.feed(envelope(number))
    session.settle()
    assert session.texts() == words(2, 599)


@pytest.mark.parametrize("order", ["asked", "oldest"])
@pytest.mark.parametrize("steps", [1, 5, 9, 11, 12, 14])
def test_a_crash_in_the_middle_of_a_long_list_changes_nothing(order: Order, steps: int) -> None:
    session = Session(Backend(order))
    follow(session, 2, 10)
    miss(session, 11, 700)
    for _ in range(steps):
        session.step()
    session.restart()
    session.open()
    session.settle()
    assert session.texts() == words(2, 700)
    assert not session.of(ev.Gap)


def test_what_others_said_to_the_backend_is_found_though_the_stream_went_past_it() -> None:
    session = Session(Backend())
    # Numbers with holes of their own: in the end what is missing is not waited for.
    for number in range(3, 3 + 2 * HOLES, 2):
        follow(session, number, number)
        session.settle(HOLE_MS)
    last = session.backend.events[-1]["sequence"]
    follow(session, last + 2, last + 2)
    said = envelope(last + 1, "user.message", content=[{"type": "text", "text": "Hi"}])
    session.backend.events.insert(-1, said)
    miss(session, last + 3, last + 3)
    session.settle()
    assert [ev.text_of(e.content) for e in session.of(ev.MessageReceived)] == ["go", "Hi"]


def test_a_list_without_end_is_cut_and_told() -> None:
    session = Session(Backend())
    session.backend.answer = lambda call: Response(  # type: ignore[method-assign]
        200,
        CIMultiDict(),
        json.dumps(
            {
                "data": [envelope(10**9 - session.backend.pages)],
                "nextCursor": f"c{session.backend.pages}",
            }
        ).encode(),
    )
    miss(session, 2, 2)
    for _ in range(PAGES * 2):
        session.backend.pages += 1
        session.step()
    assert [gap.reason for gap in session.of(ev.Gap)] == [
        "the list of events is longer than is read"
    ]
    assert len(session.texts()) == PAGES


def test_frames_that_wait_for_a_list_that_does_not_come_are_bounded() -> None:
    session = Session(Backend())
    miss(session, 2, 2)
    for number in range(3, WAITING + 10):
        session.feed(envelope(number))
    (gap,) = session.of(ev.Gap)
    assert gap.reason == "too many frames came before the events were listed"
    session.step()
    session.settle()
    assert session.texts() == words(3, WAITING + 9)


@pytest.mark.parametrize("falls", [False, True])
def test_what_waited_for_a_missing_number_is_taken_in_small_pieces(falls: bool) -> None:
    session = Session(Backend())
    follow(session, 2, 2)
    waiting = [envelope(number) for number in range(4, 1_000)]
    for event in reversed(waiting) if falls else waiting:
        session.feed(event)
    session.steps = []
    session.feed(envelope(3))
    # What comes meanwhile stands behind it.
    for number in range(1_000, 1_010):
        session.feed(envelope(number))
    session.settle()
    assert session.texts() == words(2, 1_009)
    assert max(session.steps) <= 2 * SLICE
    assert session.backend.pages == 0
    assert session.codec.wake_at is None


def test_frames_that_fill_no_hole_are_not_looked_through_each_time() -> None:
    session = Session(Backend())
    follow(session, 2, 2)
    for number in range(5, WAITING - 5):
        session.feed(envelope(number))
    # 4 is missing too, so that none of these makes it whole.
    looked = 0

    class Numbers(set[int]):
        def __contains__(self, number: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(number)

    waiting = session.codec._catching_up
    waiting._there = Numbers(waiting._there)
    for _ in range(3):
        session.feed(envelope(3))
    assert looked < 10


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_a_list_that_begins_while_waiting_frames_are_taken_loses_none_of_them(steps: int) -> None:
    session = Session(Backend())
    follow(session, 2, 2)
    for number in range(4, 500):
        session.feed(envelope(number, delta=True, content=[{"type": "text", "text": f"n{number}"}]))
    session.feed(envelope(3))
    for _ in range(steps):
        session.do(lambda: session.codec.tick(NOW))
    # An input whose fate is open is looked for in the list, which has no deltas.
    stop = session.codec.submit("k2", cmd.Interrupt())
    session.do(lambda: session.codec.respond(stop, Response(500), NOW))
    session.settle()
    deltas = [event.text for event in session.of(ev.TextDelta)]
    assert deltas[-496:] == words(4, 499)


BAD = [2**70, 2**53, -1, -(2**70), 1.5, 1e300, 10**400]


@pytest.mark.parametrize(
    "number", BAD, ids=lambda number: f"{number:.3g}"[:12] if number < 1e301 else "10^400"
)
def test_a_number_that_is_none_is_reported_and_its_event_is_kept(number: Any) -> None:
    session = Session(Backend())
    follow(session, 2, 3)
    session.feed({**envelope(number), "id": "evt_bad"})
    follow(session, 4, 5)
    (error,) = session.of(ev.ErrorReported)
    assert error.code == "backend_protocol"
    assert "`sequence`" in error.message
    assert session.texts() == ["n2", "n3", f"n{number}", "n4", "n5"]
    # A list and a restart know it by its id.
    session.backend.events.append({**envelope(number), "id": "evt_bad"})
    session.restart()
    session.open()
    session.settle()
    assert len(session.texts()) == 5


def test_an_answer_with_a_number_that_is_none_is_an_answer() -> None:
    session = Session(Backend())
    call = session.codec.submit("k2", cmd.Steer(text="Left."))
    echo = {**envelope(2**70, "user.steer", message="Left."), "id": "evt_steer"}
    answer = Response(202, CIMultiDict(), json.dumps({"data": [echo]}).encode())
    session.do(lambda: session.codec.respond(call, answer, NOW))
    follow(session, 2, 3)
    assert session.texts() == ["n2", "n3"]
