"""Where a replay goes on, when frames are garbled, replays break and turns look alike (11.2).

The stories of a seed are what the hunt in `tests/server/test_chaos.py` found with that seed: how
many frames were read of each body before it broke.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.engine import alignment, wire
from adapters.engine.alignment import (
    LACKS,
    UNCLEAR,
    Alignment,
    MarkedFrame,
    StreamPosition,
    mark_of,
    mark_of_text,
)
from adapters.engine.client import codec
from adapters.model import events as ev
from adapters.model.base import CloseReason
from adapters.wire.framing.sse import SseFrame
from tests.engine.driver import MESSAGE, START, Session
from tests.engine.test_replay import (
    TASK,
    Server,
    frame,
    gaps,
    lifecycle,
    log_of,
    started,
    text,
    texts,
    turn_of,
    turns,
)


@pytest.fixture(scope="module", autouse=True)
def small_slices() -> Iterator[None]:
    """What a replay has shown to be new is processed in pieces, here in very small ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "SLICE", 2)
        yield


GARBAGE = SseFrame("text_delta", b'{"text":"\xff\xfe')
Turn = Sequence[SseFrame]
How = Literal["ended", "torn", "lost", "crash"]
HOWS: tuple[How, ...] = ("ended", "torn", "lost", "crash")


@dataclasses.dataclass(frozen=True)
class Body:
    """What is read of one body: so many frames, garbage before some of them, then its end.

    `crash` loses the process. A message whose `turn` is `lost` crashes before its body is read.
    """

    of: Literal["execute", "replay", "lost"]
    read: int = 0
    garbage: tuple[int, ...] = ()
    how: How = "ended"


def execute(read: int, how: How, *garbage: int) -> Body:
    return Body("execute", read, garbage, how)


def replay(read: int, how: How, *garbage: int) -> Body:
    return Body("replay", read, garbage, how)


LOST = Body("lost")


def read_body(session: Session, body: Body, conversation: Sequence[Turn], number: int) -> None:
    """Read one body of a conversation in which that many turns have begun."""
    if body.of == "lost":
        command_id = session.accept(MESSAGE)
        session.codec.submit(command_id, MESSAGE)
        session.restart()
        session.codec.recover(command_id, MESSAGE)
        return
    if body.of == "execute":
        call, frames = session.send(), list(conversation[number - 1])
    else:
        (call,) = session.codec.streams()
        happened = [item for turn in conversation[:number] for item in turn]
        after = int(call.request.query["after"])
        frames = Server(happened).replay(after, inclusive=False)
    session.open(call)
    for at, item in enumerate([*frames[: body.read], None]):
        session.feed(call, [GARBAGE] * body.garbage.count(at))
        session.feed(call, [] if item is None else [item])
    if body.how == "torn":
        session.emit(session.codec.garbage(call, b"event: te", "half a frame", session.now))
    if body.how == "crash":
        session.restart()
        settled = {e.command_id for e in session.log if isinstance(e, ev.InputSettled)}
        for event in session.log:
            if isinstance(event, ev.InputAccepted) and event.command_id not in settled:
                session.codec.recover(event.command_id, MESSAGE)
    else:
        session.close(call, CloseReason.LOST if body.how == "lost" else CloseReason.ENDED)


def finish(session: Session, conversation: Sequence[Turn], number: int) -> None:
    """Read replays to their ends as long as they are wanted."""
    for _ in range(5):
        if not session.codec.streams():
            break
        read_body(session, replay(10_000, "ended"), conversation, number)
    session.tick()


def told(session: Session, *, gap: bool = False) -> list[dict[str, object]]:
    """Return the log without what it says about garbled frames."""
    left_out = ("error.reported", "gap") if gap else ("error.reported",)
    return [value for value in log_of(session, numbers=False) if value["type"] not in left_out]


def settled_alike(log: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return a log without the settling of inputs, whose place differs where a crash was before."""
    return [value for value in log if value["type"] != "input.settled"]


def uncut(conversation: Sequence[Turn]) -> Session:
    session = Session(TASK)
    for turn in conversation:
        session.execute(turn)
        session.tick()
    return session


def ticks(number: int, count: int = 30, *, timed: bool = False) -> Turn:
    name, at = (f"t{number}", START + 100_000 * number) if timed else (None, None)
    return turn_of([f"tick {n} " for n in range(count)] + [f"({number})"], name, at)


def words(number: int, *said: str) -> Turn:
    return turn_of([*said, f"({number})"], None, None)


FAILED = [started(), text("The first "), lifecycle("errored")]
REASON = [frame("thinking_delta", text="The failing test"), text("so 1998."), text("(n)")]


def reasoned() -> Turn:
    return [started(), *REASON, lifecycle("completed")]


def asking(number: int, *, timed: bool = False) -> Turn:
    """Two permissions, one after the other: without turn ids, requests are what has a time."""
    at = START + 100_000 * number
    out = [started(f"t{number}", at) if timed else started()]
    for n in (1, 2):
        out += [
            frame("hitl_request", request_id=f"h{number}{n}", kind="permission", question="go?",
                  created_at=wire.format_time(at + 10 * n)),
            frame("hitl_resolved"),
            frame("tool_call", tool="bash", input={"n": n}),
            frame("tool_result", output=""),
            text("Done."),
        ]  # fmt: skip
    return [*out, text(f"({number})"), lifecycle("completed")]


TIMED = [ticks(n, timed=True) for n in range(1, 6)]
STORIES: dict[str, tuple[Sequence[Turn], Sequence[Body]]] = {
    # Garbage in the middle of what was streamed; the replay ends before the turn does.
    "21": (TIMED[:1], [execute(8, "crash", 4), replay(31, "ended")]),
    # Garbage in the replay, before the place.
    "173": (
        [asking(1, timed=True)],
        [execute(6, "ended"), replay(4, "ended", 3), replay(1, "ended"), replay(5, "ended")],
    ),
    "204": (TIMED[:1], [execute(4, "torn"), replay(12, "crash"), replay(33, "ended", 5)]),
    # Replays that come to an orderly end within an earlier turn that began alike.
    "10": (
        [ticks(1), words(2, "Basil"), words(3, "audit"), words(4, "more"), ticks(5)],
        [execute(1, "torn"), replay(8, "ended"), replay(99, "ended"),
         execute(1, "lost"), replay(2, "torn"), replay(99, "ended"),
         execute(9, "ended"), execute(9, "ended"),
         execute(3, "crash"), replay(99, "ended")],
    ),
    "11": (
        [ticks(1), words(2, "Starting"), ticks(3)],
        [execute(1, "crash"), replay(27, "ended"), replay(99, "ended", 1),
         LOST, replay(99, "ended"), LOST, replay(36, "ended"), replay(36, "ended"),
         replay(6, "lost"), replay(36, "ended"), replay(2, "ended")],
    ),
    "21, no times": (
        [FAILED, words(2, "Done"), ticks(3), words(4, "audit", "risk"), ticks(5)],
        [execute(0, "lost"), replay(2, "torn"), replay(99, "ended"), execute(99, "ended"),
         execute(13, "crash"), replay(99, "ended"), execute(3, "crash"), replay(99, "ended"),
         execute(8, "crash", 4), replay(72, "ended"), replay(99, "ended")],
    ),
    "31": (
        [reasoned(), FAILED, words(3, "Basil"), ticks(4)],
        [execute(1, "crash"), replay(99, "ended"), execute(99, "ended"), execute(99, "ended"),
         LOST, replay(12, "ended"), replay(12, "ended"), replay(2, "torn")],
    ),
    "56": (
        [words(1, "a"), FAILED, words(3, "b"), words(4, "c"), asking(5), FAILED, asking(7)],
        [execute(99, "ended"), execute(99, "ended"), execute(1, "crash"), replay(0, "lost"),
         replay(99, "ended"), execute(99, "ended"), execute(1, "torn"), replay(6, "ended"),
         replay(99, "ended"), execute(99, "ended"), execute(6, "ended"),
         replay(1, "ended"), replay(1, "ended"), replay(6, "ended", 6), replay(5, "crash"),
         replay(7, "crash")],
    ),
    "147": (
        [ticks(1), ticks(2), reasoned(), FAILED],
        [execute(99, "ended"), execute(7, "crash"), replay(99, "ended", 7), LOST,
         replay(99, "crash"), LOST, replay(70, "ended"), replay(70, "ended"), replay(7, "torn")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", STORIES)
def test_what_a_seed_of_the_hunt_found_is_mended(seed: str) -> None:
    conversation, bodies = STORIES[seed]
    session, number = Session(TASK), 0
    for body in bodies:
        if body.of != "replay":
            finish(session, conversation, number)
            number += 1
        elif not session.codec.streams():
            continue
        read_body(session, body, conversation, number)
    finish(session, conversation, number)
    assert number == len(conversation)
    assert settled_alike(told(session)) == settled_alike(told(uncut(conversation)))


# What can be decided, and what cannot.


@pytest.mark.parametrize("timed", [True, False])
def test_a_garbled_frame_at_the_end_of_what_was_read_is_had_from_the_replay(timed: bool) -> None:
    turn = turn_of(["a", "b", "c"], "t" if timed else None, START if timed else None)
    session = Session(TASK)
    call = session.send()
    session.open(call)
    session.feed(call, [*turn[:2], GARBAGE])
    session.close(call)
    session.restart()
    finish(session, [turn], 1)
    assert texts(session) == "abc"
    assert gaps(session) == 0


def garbled_between(last: Sequence[str], replayed: Sequence[str]) -> Session:
    """Read "a", a garbled frame and some more; then a replay."""
    session = Session(TASK)
    call = session.send()
    session.open(call)
    begin, end = started("t", START), lifecycle("completed", "t", START + 9)
    session.feed(call, [begin, text("a"), GARBAGE, *map(text, last)])
    session.close(call)
    session.restart()
    session.replay([begin, *map(text, replayed), end])
    for _ in range(2):
        if session.codec.streams():
            session.replay([begin, *map(text, replayed), end])
    return session


def test_a_garbled_place_may_be_a_frame_of_the_replay_or_none() -> None:
    session = garbled_between("bc", "abcd")
    assert (texts(session), gaps(session)) == ("abcd", 0)
    # What was garbled had been told as an error; what comes after it is not shown before it.
    session = garbled_between("bc", "axbcd")
    assert (texts(session), gaps(session)) == ("abcd", 0)


def test_a_garbled_frame_before_equal_ones_cannot_be_decided() -> None:
    session = garbled_between("b", "abbc")
    assert [event.reason for event in session.log if isinstance(event, ev.Gap)] == [UNCLEAR]
    assert texts(session) == "abbc"


def test_a_garbled_frame_of_the_replay_may_be_one_that_was_read() -> None:
    begin, end = started("t", START), lifecycle("completed", "t", START + 9)
    for at in range(1, 5):
        session = Session(TASK)
        call = session.send()
        session.open(call)
        session.feed(call, [begin, *map(text, "abcd")])
        session.close(call)
        body = [begin, *map(text, "abcdef"), end]
        session.replay([*body[:at], GARBAGE, *body[at + 1 :]])
        assert (texts(session), gaps(session)) == ("abcdef", 0), at


def test_a_frame_that_is_too_large_is_told_once() -> None:
    session = Session(TASK)
    call = session.send()
    session.open(call)
    session.feed(call, [started(), text("a")])
    session.emit(session.codec.garbage(call, b"event: x" * 99, "too large", session.now))
    session.close(call)
    session.restart()
    (again,) = session.codec.streams()
    session.open(again)
    session.feed(again, [started(), text("a")])
    session.emit(session.codec.garbage(again, b"event: x" * 99, "too large", session.now))
    session.feed(again, [text("b"), lifecycle("completed")])
    session.close(again, CloseReason.ENDED)
    session.tick()
    assert texts(session) == "ab"
    assert sum(isinstance(event, ev.ErrorReported) for event in session.log) == 1


def test_the_print_of_a_long_frame_is_that_of_its_value() -> None:
    output = "x" * 100_000
    payload = {"tool_call_id": "c", "output": output}
    mark = mark_of("tool_result", payload, b"")
    assert mark == mark_of("tool_result", dict(reversed(payload.items())), b"other")
    assert mark != mark_of("tool_result", payload | {"output": "y" + output[1:]}, b"")
    assert mark != mark_of("tool_result", payload | {"output": output + "x"}, b"")
    assert mark != mark_of("tool_result", payload | {"tool_call_id": "d"}, b"")
    assert mark_of("text_delta", {"text": output}, b"") == mark_of_text("text_delta", output)


def test_readings_of_many_holes_are_bounded() -> None:
    reached = StreamPosition()
    known = [
        MarkedFrame("text_delta", {"text": "a"}, b"", mark_of("text_delta", {"text": "a"}, b""))
    ]
    for _ in range(200):
        reached.count(known[0].mark)
        reached.count_garbled(1, framed=True)
    alignment = Alignment(reached, idle=False)
    for _ in range(400):
        alignment.take(known[0], START)
    assert len(json.dumps(reached.dump())) < 1_000
    assert alignment.found


@given(st.data(), st.booleans())
@settings(max_examples=300, report_multiple_bugs=False)
def test_garbage_breaks_and_crashes_give_the_log_of_an_uncut_stream(
    data: st.DataObject, timed: bool
) -> None:
    """Garbage comes between frames; bodies end within, orderly or not."""
    count = data.draw(st.integers(1, 3))
    conversation = [data.draw(turns(number, timed)) for number in range(count)]
    for number, turn in enumerate(conversation):
        turn.insert(1, text(f"{number}: "))
    hows: st.SearchStrategy[How] = st.sampled_from(HOWS)
    places = st.lists(st.integers(0, 12), max_size=2).map(tuple)
    session = Session(TASK)
    for number in range(1, count + 1):
        length = len(conversation[number - 1])
        if data.draw(st.integers(0, 3)) == 0:
            read_body(session, LOST, conversation, number)
        else:
            read = data.draw(st.integers(0, length))
            how: How = "ended" if read == length else data.draw(hows)
            body = Body("execute", read, data.draw(places), how)
            read_body(session, body, conversation, number)
        # Three that end at the same place would be believed.
        for _ in range(2):
            if data.draw(st.booleans()) and session.codec.streams():
                body = Body("replay", data.draw(st.integers(0, 40)), data.draw(places),
                            data.draw(hows))  # fmt: skip
                read_body(session, body, conversation, number)
        finish(session, conversation, number)
    unclear = [event for event in session.log if isinstance(event, ev.Gap)]
    if unclear:
        assert {event.reason for event in unclear} == {UNCLEAR}
    else:
        expected = told(uncut(conversation))
        assert settled_alike(told(session)) == settled_alike(expected)


@given(st.data(), st.booleans())
@settings(max_examples=300, report_multiple_bugs=False)
def test_of_frames_that_differ_only_the_garbled_are_missing(
    data: st.DataObject, timed: bool
) -> None:
    """Frames are garbled themselves, as streamed or as replayed; each of the others comes once."""
    said = [f"{n} " for n in range(data.draw(st.integers(1, 12)))]
    turn = turn_of(said, "t" if timed else None, START if timed else None)
    session, garbled = Session(TASK), set()

    def broken(frames: Turn, most: int) -> list[SseFrame]:
        # Neither the beginning nor the end: what makes a turn is not what is asked here.
        places = data.draw(st.sets(st.integers(1, max(1, len(said))), max_size=most))
        return [GARBAGE if n in places else item for n, item in enumerate(frames)]

    live = broken(turn, 2)[: data.draw(st.integers(1, len(turn) - 1))]
    garbled |= {n for n, item in enumerate(live) if item is GARBAGE}
    call = session.send()
    session.open(call)
    session.feed(call, live)
    session.close(call)
    if data.draw(st.booleans()):
        session.restart()
    if data.draw(st.booleans()):
        body = broken(turn, 1)
        garbled |= {n for n, item in enumerate(body) if item is GARBAGE}
        session.replay(body, CloseReason.LOST)
    finish(session, [turn], 1)
    got = [event.text for event in session.log if isinstance(event, ev.TextDelta)]
    assert gaps(session) == 0
    assert got == sorted(set(got), key=said.index)
    assert {n for n, item in enumerate(said, 1) if item not in got} <= garbled


# What waits for a decision.


@pytest.mark.parametrize("kept", ["KEPT", "KEPT_BYTES"])
def test_of_frames_that_wait_for_the_place_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    letters = [text(letter) for letter in "abcdefghijkl"]
    monkeypatch.setattr(alignment, kept, 4 if kept == "KEPT" else 4 * len(letters[0].data))
    reached = StreamPosition()
    seen = [known(item) for item in letters]
    for item in seen[:10]:
        reached.count(item.mark)
    # The place is behind what was forgotten: nothing is lost.
    found = Alignment(reached, idle=False)
    for item in seen:
        found.take(item, START)
    assert [item.payload for item in found.decide().frames] == [{"text": "k"}, {"text": "l"}]
    assert found.decide().gap is None
    # It is before that: what stood between is told as a gap.
    found = Alignment(reached, idle=False)
    for item in [*seen[:10], *seen[:8]]:
        found.take(item, START)
    assert len(found.decide().frames) == 4
    assert found.decide().gap == LACKS


def known(item: SseFrame) -> MarkedFrame:
    payload = json.loads(item.data)
    return MarkedFrame(item.event, payload, item.data, mark_of(item.event, payload, item.data))
