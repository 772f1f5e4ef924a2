"""A stream that was cut goes on where it was left, whatever the replay repeats (page, 11.2)."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.engine.client import codec
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason
from adapters.wire import jsonvalue
from adapters.wire.errors import DragomanError
from adapters.wire.framing.sse import SseFrame
from tests.engine.driver import MESSAGE, START, Session, frames_of, recordings, task_of

TASK = "task"


def frame(name: str, **payload: object) -> SseFrame:
    return SseFrame(name, json.dumps(payload).encode())


def iso(ms: int) -> str:
    when = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def started(turn: str | None = None, at: int | None = None) -> SseFrame:
    return lifecycle("started", turn, at)


def lifecycle(phase: str, turn: str | None = None, at: int | None = None) -> SseFrame:
    payload: dict[str, object] = {"phase": phase, "task_id": TASK}
    if turn is not None:
        payload["turn_id"] = turn
    if at is not None:
        payload["timestamp"] = iso(at)
    return frame("thread_lifecycle", **payload)


def text(words: str) -> SseFrame:
    return frame("text_delta", text=words)


def without_times(frames: Sequence[SseFrame]) -> list[SseFrame]:
    """Return the frames as an Engine sends them that tells no times and no turns."""
    out = []
    for item in frames:
        try:
            payload = json.loads(item.data)
        except ValueError:
            out.append(item)
            continue
        for key in ("timestamp", "created_at", "turn_id"):
            payload.pop(key, None)
        out.append(frame(item.event, **payload))
    return out


def rewritten(item: SseFrame) -> SseFrame:
    """Return the same frame, its JSON written in another way."""
    try:
        payload = json.loads(item.data)
    except ValueError:
        return item
    keys = reversed(payload)
    return SseFrame(item.event, json.dumps({k: payload[k] for k in keys}, indent=1).encode())


def log_of(session: Session, *, numbers: bool = True) -> list[dict[str, object]]:
    """Return the log as values; without `numbers` the source frames are not counted."""
    log = []
    for event in session.log:
        value = event.model_dump(exclude_none=True)
        if not numbers and "native" in value:
            del value["native"]["frame"]
        log.append(value)
    return log


def texts(session: Session) -> str:
    return "".join(event.text for event in session.log if isinstance(event, ev.TextDelta))


def gaps(session: Session) -> int:
    return sum(isinstance(event, ev.Gap) for event in session.log)


def whole(frames: Sequence[SseFrame]) -> Session:
    session = Session(task_of(frames))
    session.execute(frames)
    session.tick()
    return session


def cut(frames: Sequence[SseFrame], at: int, *, restart: bool) -> Session:
    """Read `at` frames of a message's stream and lose the rest."""
    session = Session(task_of(frames))
    call = session.send()
    session.open(call)
    session.feed(call, frames[:at])
    session.close(call)
    if restart:
        session.restart()
    return session


def bodies() -> Iterator[tuple[str, list[SseFrame]]]:
    for path in recordings():
        # The one that is the rest of a replay has no beginning that could be lost.
        if path.name != "07b-replay-after.sse":
            yield path.stem, frames_of(path.read_bytes())


BODIES = dict(bodies())
FORMS = {
    **BODIES,
    **{
        f"{name} untimed": without_times(frames)
        for name, frames in BODIES.items()
        # A frame before `started` that names no turn cannot be told from the rest of another turn.
        if name != "10-likely-forms"
    },
}


def pairs(form: str) -> Iterator[tuple[list[SseFrame], int, bool]]:
    frames = FORMS[form]
    for at in range(len(frames) + 1):
        for restart in (False, True):
            yield frames, at, restart


@pytest.mark.parametrize("form", FORMS)
def test_a_replay_from_zero_continues_a_cut_at_every_frame(form: str) -> None:
    expected = log_of(whole(FORMS[form]))
    for frames, at, restart in pairs(form):
        for heartbeats in (True, False):
            session = cut(frames, at, restart=restart)
            if session.codec.streams():
                kept = [f for f in frames if heartbeats or f.event != "heartbeat"]
                session.replay(kept)
            session.tick()
            assert log_of(session) == expected, (at, restart, heartbeats)


@pytest.mark.parametrize("form", BODIES)
def test_an_input_that_is_stored_meanwhile_does_not_part_state_and_position(form: str) -> None:
    """The session stores a snapshot with its own events too, without a position beside it."""
    expected = log_of(whole(FORMS[form]))
    for at in range(len(FORMS[form]) + 1):
        session = cut(FORMS[form], at, restart=False)
        session.accept(MESSAGE)
        session.restart()
        if session.codec.streams():
            session.replay(FORMS[form])
        session.tick()
        log = [e for e in log_of(session) if e.get("command_id") != "c2"]
        assert log == expected, at


@pytest.mark.parametrize("form", FORMS)
def test_a_replay_may_write_the_same_json_in_another_way(form: str) -> None:
    expected = log_of(whole(FORMS[form]))
    for frames, at, restart in pairs(form):
        session = cut(frames, at, restart=restart)
        if session.codec.streams():
            session.replay([rewritten(f) for f in frames])
        session.tick()
        assert log_of(session) == expected, (at, restart)


@pytest.mark.parametrize("form", FORMS)
def test_a_replay_that_is_cut_at_every_frame_is_continued_by_the_next(form: str) -> None:
    frames = FORMS[form]
    expected = log_of(whole(frames))
    # Every place for the first cut, and a spread of places for the second: n * n / 5 pairs.
    for first in range(len(frames) + 1):
        for second in range(first % 5, len(frames), 5):
            session = cut(frames, first, restart=bool(second % 2))
            if session.codec.streams():
                session.replay(frames[:second], CloseReason.LOST)
                if second % 3 == 0:
                    session.restart()
            if session.codec.streams():
                session.replay(frames)
            session.tick()
            assert log_of(session) == expected, (first, second)


@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("form", BODIES)
def test_the_boundary_of_replay_may_be_inclusive_or_exclusive(form: str, inclusive: bool) -> None:
    expected = log_of(whole(BODIES[form]))
    for frames, at, restart in pairs(form):
        session = cut(frames, at, restart=restart)
        for call in session.codec.streams():
            after = int(call.request.query["after"])
            session.replay(Server(frames).replay(after, inclusive=inclusive))
        session.tick()
        assert log_of(session) == expected, (at, restart)


@pytest.mark.parametrize("form", FORMS)
def test_other_tasks_and_earlier_turns_in_a_replay_are_skipped(form: str) -> None:
    frames = FORMS[form]
    task = task_of(frames)
    other = [
        SseFrame(f.event, f.data.replace(task.encode(), b"another-task"))
        for f in frames
        if b"task_id" in f.data
    ]
    earlier = [
        SseFrame(
            f.event,
            f.data.replace(b"2026-06-09T08:1", b"2026-06-09T07:1").replace(b"turn-", b"old-"),
        )
        for f in BODIES["01-plain-text"]
    ]
    earlier = [SseFrame(f.event, f.data.replace(b"garden-17", task.encode())) for f in earlier]
    if form.endswith("untimed"):
        earlier = without_times(earlier)
    expected = log_of(whole(frames))
    for _, at, restart in pairs(form):
        session = cut(frames, at, restart=restart)
        if session.codec.streams():
            mixed = [item for pair in zip(frames, other * 20, strict=False) for item in pair]
            session.replay([*other, *earlier, *mixed])
        session.tick()
        assert log_of(session) == expected, (at, restart)


@pytest.mark.parametrize("form", BODIES)
def test_a_replay_that_lacks_the_anchor_doubles_nothing(form: str) -> None:
    """What a replay repeats is skipped, and what may be missing before it is told."""
    for frames, at, restart in pairs(form):
        expected = whole(frames)
        clean = [f for f in frames if f.event != "heartbeat"]
        read = len([f for f in frames[:at] if f.event != "heartbeat"])
        for begin in range(1, len(clean) + 1):
            session = cut(frames, at, restart=restart)
            if not session.codec.streams() or not session.normalizer.state.busy:
                continue
            known = session.codec.frames if restart else read
            # What would leave a gap is believed the third time.
            for _ in range(3):
                if session.codec.streams() and not gaps(session):
                    session.replay(clean[begin:])
            session.tick()
            where = (at, restart, begin)
            missing = begin > known
            if missing and clean[begin:]:
                assert gaps(session) == 1, where
            elif begin < known:
                assert gaps(session) == 0, where
                assert log_of(session) == log_of(expected), where
            assert expected_contains(texts(expected), texts(session)), where
            if not missing and clean[begin:]:
                assert texts(session) == texts(expected), where


def expected_contains(whole_text: str, part: str) -> bool:
    """Say whether `part` is `whole_text` with pieces left out."""
    rest = iter(whole_text)
    return all(letter in rest for letter in part)


def test_a_replay_without_anything_new_changes_nothing_and_is_asked_again() -> None:
    frames = BODIES["02-thinking-and-tool"]
    session = cut(frames, 9, restart=False)
    before = log_of(session)
    for body in ([], frames[:4], frames[:9]):
        session.replay(body)
        assert log_of(session) == before
        assert session.codec.streams()
    session.replay(frames)
    assert log_of(session) == log_of(whole(frames))


def test_replay_is_asked_for_from_just_before_the_newest_time() -> None:
    session = cut(BODIES["03-hitl-permission-yes"], 6, restart=True)
    (call,) = session.codec.streams()
    assert call.request.path == "/execute/replay"
    assert call.stream
    # created_at of the request is the newest time; a heartbeat's does not count.
    assert call.request.query["after"] == str(START + 2309)
    assert call.request.query["task_id"] == "ops-33"


def test_without_any_time_replay_is_asked_for_from_the_beginning() -> None:
    session = cut(BODIES["01b-plain-text-short-form"], 2, restart=False)
    (call,) = session.codec.streams()
    assert call.request.query["after"] == "0"


def turn_of(words: Sequence[str], name: str | None, at: int | None) -> list[SseFrame]:
    end = None if at is None else at + 500
    return [started(name, at), *map(text, words), lifecycle("completed", name, end)]


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("timed", [True, False])
def test_equal_turns_of_a_task_are_told_apart(timed: bool, restart: bool) -> None:
    """Two times "yes" are two: without times only their order tells them apart."""
    turns = [
        turn_of(
            ["Yes", ", ", "yes"], f"t{n}" if timed else None, START + n * 1000 if timed else None
        )
        for n in range(3)
    ]
    for at in range(1, 5):
        session = Session(TASK)
        session.execute(turns[0])
        session.execute(turns[1])
        call = session.send()
        session.open(call)
        session.feed(call, turns[2][:at])
        session.close(call)
        if restart:
            session.restart()
        session.replay([f for turn in turns for f in turn])
        assert texts(session) == "Yes, yes" * 3, at
        assert gaps(session) == 0


def test_a_live_tail_is_not_held_back_for_ever_where_turns_look_alike() -> None:
    """A task may have had turns before the session: our first is the last that fits."""
    turn = turn_of(["a", "b"], None, None)
    session = cut(turn, 2, restart=False)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, [*turn, *turn[:3]])
    assert texts(session) == "a"
    session.tick()
    assert texts(session) == "ab"
    session.feed(replay, [text("c"), turn[-1]])
    assert texts(session) == "abc"


def test_a_live_tail_is_not_held_back_where_all_turns_are_counted() -> None:
    turn = turn_of(["a", "b"], None, None)
    session = Session(TASK)
    session.execute(turn)
    call = session.send()
    session.open(call)
    session.feed(call, turn[:2])
    session.close(call)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, [*turn, *turn[:3]])
    assert texts(session) == "abab"


def test_a_running_replay_without_anything_known_is_taken_after_a_silence() -> None:
    frames = BODIES["02-thinking-and-tool"]
    session = cut(frames, 3, restart=False)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, [text("something else")])
    assert gaps(session) == 0
    session.tick()
    assert gaps(session) == 1
    assert texts(session) == "something else"
    session.feed(replay, [text(", at once")])
    assert texts(session) == "something else, at once"


def test_frames_that_the_replay_lacks_are_told_as_a_gap_or_found_by_what_follows() -> None:
    """An event that is not buffered must not make a new one be taken for known."""
    ephemeral = frame("progress", percent=10)
    letters = [text(letter) for letter in "abcdefghijkl"]
    live = [started("t", START), ephemeral, *letters]
    rest = [text("m"), text("n"), lifecycle("completed", "t", START + 900)]
    session = cut(live, len(live), restart=True)
    session.replay([live[0], *letters, *rest])
    session.tick()
    assert texts(session) == "abcdefghijklmn"
    assert gaps(session) == 0


@pytest.mark.parametrize("waits", [False, True])
def test_the_last_frames_are_the_place_where_a_replay_comes_short_of_one(waits: bool) -> None:
    """It counts one frame less than were read, so it seems to have more to tell of them. What is
    certainly new behind them, or a silence, shows that it has not."""
    letters = [text(letter) for letter in "abcdefghijkl"]
    live = [started("t", START), frame("progress", percent=10), *letters]
    session = cut(live, len(live), restart=True)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, [live[0], *letters])
    if waits:
        session.tick()
        session.feed(replay, [text("m")])
    session.feed(replay, [lifecycle("completed", "t", START + 900)])
    session.close(replay, CloseReason.ENDED)
    assert texts(session) == "abcdefghijkl" + "m" * waits
    assert gaps(session) == 0


def test_a_replay_that_differs_is_told_as_a_gap() -> None:
    live = [started("t", START), text("a"), text("b")]
    session = cut(live, 3, restart=False)
    session.replay(
        [live[0], text("a"), text("x"), text("c"), lifecycle("completed", "t", START + 9)]
    )
    session.tick()
    assert gaps(session) == 1
    assert texts(session) == "abc"


def test_garbage_is_aligned_like_any_other_frame() -> None:
    broken = [
        SseFrame("text_delta", b'{"text": oops'),
        SseFrame("usage", b"[1]"),
        SseFrame("", b"x"),
    ]
    frames = [
        started("t", START),
        text("a"),
        *broken,
        text("b"),
        lifecycle("completed", "t", START + 9),
    ]
    expected = log_of(whole(frames))
    assert sum(value["type"] == "error.reported" for value in expected) == 3
    for at in range(len(frames) + 1):
        for restart in (True, False):
            session = cut(frames, at, restart=restart)
            if session.codec.streams():
                session.replay(frames)
            session.tick()
            assert log_of(session) == expected, (at, restart)


def test_a_broken_replay_is_not_taken_for_a_whole_one() -> None:
    """It begins at zero and breaks before the place that was reached: nothing is new yet."""
    old = turn_of(["old"], None, None)
    live = turn_of(["new", " words"], None, None)
    session = Session(TASK)
    session.execute(old)
    call = session.send()
    session.open(call)
    session.feed(call, live[:2])
    session.close(call)
    session.replay(old, CloseReason.LOST)
    session.replay([*old, *live[:1]], CloseReason.LOST)
    assert texts(session) == "oldnew"
    session.replay([*old, *live])
    assert texts(session) == "oldnew words"
    assert gaps(session) == 0


def test_a_replay_that_always_breaks_at_the_same_place_is_all_there_is() -> None:
    live = turn_of(["one", " two", " three"], "t", START)
    session = cut(live, 2, restart=False)
    for _ in range(3):
        session.replay([text(" three")], CloseReason.LOST)
    assert gaps(session) == 1
    assert texts(session) == "one three"


# After a crash between the sending of a message and its first event.


def lost_message(before: Sequence[Sequence[SseFrame]]) -> Session:
    """Return a session that has sent a message and died; the codec looks for its turn."""
    session = Session(TASK)
    for turn in before:
        session.execute(turn)
    command_id = session.accept(MESSAGE)
    session.codec.submit(command_id, MESSAGE)
    session.restart()
    assert session.codec.recover(command_id, MESSAGE) is None
    return session


def settled(session: Session) -> list[str]:
    return [e.outcome for e in session.log if isinstance(e, ev.InputSettled)]


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_earlier_turns_are_no_evidence_for_a_message(count: int, timed: bool) -> None:
    turns = [
        turn_of([f"answer {n}"], f"t{n}" if timed else None, START + 1000 * n if timed else None)
        for n in range(3)
    ]
    earlier, mine = turns[:count], turns[2]
    for known_in_replay in (True, False):
        session = lost_message(earlier)
        old = [f for turn in earlier for f in turn] if known_in_replay else []
        session.replay(old)
        assert settled(session) == ["taken"] * count
        assert session.codec.streams(), "it is looked for until patience is over"
        # One that is shorter than what was read is believed the third time.
        for _ in range(3):
            if session.codec.streams():
                session.replay([*old, *mine])
        session.tick()
        assert settled(session) == ["taken"] * (count + 1)
        said = "".join(f"answer {n}" for n in range(count))
        assert texts(session) == said + "answer 2"
        received = [e for e in session.log if isinstance(e, ev.MessageReceived)]
        assert [e.command_id for e in received] == [f"c{n + 1}" for n in range(count + 1)]


def test_the_inclusive_end_of_the_last_turn_is_no_evidence_for_a_message() -> None:
    old = turn_of(["old"], "t0", START)
    session = lost_message([old])
    (call,) = session.codec.streams()
    assert call.request.query["after"] == str(START + 499)
    session.replay(old[-1:])
    session.tick()
    assert settled(session) == ["taken"]
    assert texts(session) == "old"


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_a_message_is_not_waited_for_longer_because_earlier_turns_are_replayed(
    timed: bool, whole: bool
) -> None:
    old = turn_of(["old"], "t0" if timed else None, START if timed else None)
    session = lost_message([old])
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, old if whole else old[-1:])
    session.tick()
    assert session.codec.patience == 60_000
    session.close(replay, CloseReason.LOST)
    assert session.codec.patience == 60_000
    # A turn that was known once says nothing of the next message.
    session.restart()
    assert session.codec.patience == 60_000


def test_what_was_known_of_a_turn_is_forgotten_with_the_next_message() -> None:
    first = turn_of(["one"], "t0", START)
    session = Session(TASK)
    session.execute(first[:2], CloseReason.LOST)
    session.replay(first)
    session.tick()
    assert session.codec.streams() == ()
    call = session.send()
    error = DragomanError("The connection broke.")
    session.emit(session.codec.failed(call, error, sent=True, now=session.now))
    assert session.codec.patience == 60_000


def test_a_turn_that_only_a_replay_shows_is_known() -> None:
    old = turn_of(["old"], "t0", START)
    session = lost_message([old])
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, [*old, *turn_of(["new"], "t1", START + 5_000)[:2]])
    assert session.codec.patience == 600_000


def test_a_message_without_evidence_becomes_unknown() -> None:
    session = lost_message([turn_of(["old"], "t0", START)])
    assert session.codec.patience == 60_000
    session.emit(session.codec.give_up(DragomanError("The backend is silent."), session.now))
    assert settled(session) == ["taken", "unknown"]
    assert session.codec.streams() == ()


# The whole, with everything at once.


@dataclasses.dataclass
class Server:
    """Keeps the frames of a task with a stamp each, as the page advises (11.2)."""

    frames: Sequence[SseFrame]

    def stamped(self) -> Iterator[tuple[int, SseFrame]]:
        stamp = START - 1000
        for item in self.frames:
            stamp = max(stamp + 1, time_of(item) or 0)
            yield stamp, item

    def replay(self, after: int, *, inclusive: bool) -> list[SseFrame]:
        return [f for stamp, f in self.stamped() if stamp > after or (inclusive and stamp == after)]


def time_of(item: SseFrame) -> int | None:
    try:
        payload = json.loads(item.data)
    except ValueError:
        return None
    return jsonvalue.time_of(payload.get("timestamp") or payload.get("created_at"))


WORDS = st.sampled_from(["a", "b", " "])


@st.composite
def turns(draw: st.DrawFn, number: int, timed: bool) -> list[SseFrame]:
    """A turn of little variety: repetition is what makes alignment hard."""
    at = START + number * 100_000
    out = [started(f"t{number}" if timed else None, at if timed else None)]
    for n in range(draw(st.integers(0, 6))):
        match draw(st.integers(0, 5)):
            case 0:
                out.append(frame("content_block_start", block_index=0, block_type="text"))
                out.append(text(draw(WORDS)))
                out.append(frame("content_block_stop", block_index=0))
            case 1:
                out += [frame("thinking_delta", text=draw(WORDS))] * draw(st.integers(1, 3))
            case 2:
                call = f"call-{number}-{n}"
                out.append(
                    frame("tool_call", tool="run", tool_call_id=call, input={"x": draw(WORDS)})
                )
                if draw(st.booleans()):
                    request: dict[str, object] = {
                        "request_id": f"h-{number}-{n}",
                        "kind": "permission",
                    }
                    if timed:
                        request["created_at"] = iso(at + 10 * n)
                    out.append(frame("hitl_request", question="run?", **request))
                    out.append(frame("hitl_resolved", request_id=f"h-{number}-{n}"))
                out.append(frame("tool_result", tool_call_id=call, output=draw(WORDS)))
            case 3:
                out.append(SseFrame("text_delta", b"{" + draw(WORDS).encode()))
            case 4:
                out.append(frame("usage", input_tokens=1, output_tokens=1))
            case _:
                out += [text(draw(WORDS))] * draw(st.integers(1, 4))
    if draw(st.booleans()):
        out.append(
            lifecycle("completed", f"t{number}" if timed else None, at + 90_000 if timed else None)
        )
    else:
        out.append(frame("error", error="LLM_PROVIDER_ERROR", message="no"))
    return out


@given(st.data(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=300)
def test_any_cuts_and_restarts_give_the_log_of_an_uncut_stream(
    data: st.DataObject, timed: bool, inclusive: bool, from_zero: bool
) -> None:
    count = data.draw(st.integers(1, 3))
    # A turn that nothing is known of yet cannot be told from an equal one without times: a first
    # word of its own makes each one different.
    conversation = [data.draw(turns(number, timed)) for number in range(count)]
    for number, turn in enumerate(conversation):
        turn.insert(1, text(f"{number}: "))
    uncut, session = Session(TASK), Session(TASK)
    for turn in conversation:
        uncut.execute(turn)
        uncut.tick()
    happened: list[SseFrame] = []
    for turn in conversation:
        call = session.send()
        session.open(call)
        at = data.draw(st.integers(0, len(turn)))
        session.feed(call, turn[:at])
        session.close(call, CloseReason.ENDED if at == len(turn) else CloseReason.LOST)
        happened += turn
        for round_ in range(4):
            if data.draw(st.booleans()):
                session.restart()
            wanted: tuple[Call, ...] = session.codec.streams()
            if not wanted:
                break
            after = 0 if from_zero else int(wanted[0].request.query["after"])
            body = Server(happened).replay(after, inclusive=inclusive)
            if round_ < 2 and data.draw(st.booleans()):
                session.replay(body[: data.draw(st.integers(0, len(body)))], CloseReason.LOST)
            else:
                session.replay(body)
        session.tick()
    assert log_of(session) == log_of(uncut)


# Much that is new.


def many(count: int) -> list[SseFrame]:
    return [text(f"n{number} ") for number in range(count)]


def words(count: int) -> str:
    return "".join(f"n{number} " for number in range(count))


@pytest.mark.parametrize("closes", [True, False])
def test_what_a_replay_shows_to_be_new_is_taken_in_pieces(closes: bool) -> None:
    session = cut([started("t", START), text("a"), text("b")], 3, restart=False)
    steps: list[int] = []
    emit = session.emit

    def counted(raw: Sequence[ev.Event], *, upstream: bool = True) -> list[ev.Event]:
        found = emit(raw, upstream=upstream)
        steps.append(len(found))
        return found

    session.emit = counted  # type: ignore[method-assign]
    (replay,) = session.codec.streams()
    session.open(replay)
    # It does not know the turn, so that all of it waits for the decision.
    session.feed(replay, many(1_000))
    assert not any(steps)
    if closes:
        for _ in range(2):
            session.emit(session.codec.closed(replay, CloseReason.ENDED, session.now))
            (replay,) = session.codec.streams()
            session.open(replay)
            session.feed(replay, many(1_000))
        session.emit(session.codec.closed(replay, CloseReason.ENDED, session.now))
        # No other replay is asked for while this one is not processed.
        assert session.codec.streams() == ()
    session.tick()
    assert texts(session) == "ab" + words(1_000)
    assert gaps(session) == 1
    assert max(steps) <= codec.SLICE + 2
    assert [call.name for call in session.codec.streams()] == ["replay"] * closes


def test_what_comes_while_a_replay_is_taken_in_pieces_stands_behind_it() -> None:
    session = cut([started("t", START), text("a"), text("b")], 3, restart=False)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, many(1_000)[:300])
    assert session.codec.wake_at is not None
    session.now = session.codec.wake_at
    session.emit(session.codec.tick(session.now))
    assert len(texts(session)) < len(words(300))
    session.feed(replay, many(1_000)[300:])
    # What waits gets shorter with each frame.
    assert texts(session) == "ab" + words(1_000)
    session.feed(replay, [lifecycle("completed", "t", START + 900)])
    session.close(replay, CloseReason.ENDED)
    assert session.codec.streams() == ()
    assert isinstance(session.log[-1], ev.TurnEnded)


def test_the_end_of_a_replay_counts_when_all_of_it_is_taken() -> None:
    session = cut([started("t", START), text("a"), text("b")], 3, restart=False)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, [*many(300), lifecycle("errored", "t", START + 900)])
    session.now = session.codec.wake_at or 0
    session.emit(session.codec.tick(session.now))
    session.close(replay, CloseReason.ENDED)
    assert texts(session) == "ab" + words(300)
    (end,) = [event for event in session.log if isinstance(event, ev.TurnEnded)]
    assert end.outcome == "failed"


@pytest.mark.parametrize("ticks", [1, 3])
def test_a_crash_while_a_replay_is_taken_in_pieces_loses_nothing(ticks: int) -> None:
    live = [started("t", START), text("a"), text("b")]
    session = cut(live, 3, restart=False)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, many(300))
    for _ in range(ticks):
        session.now = max(session.now, session.codec.wake_at or 0)
        session.emit(session.codec.tick(session.now))
    session.restart()
    session.replay([*live, *many(300), lifecycle("completed", "t", START + 900)])
    session.tick()
    assert texts(session).endswith(words(300))
    assert texts(session).count("n299 ") == 1


def test_a_session_that_is_given_up_takes_no_more_of_a_replay() -> None:
    session = cut([started("t", START), text("a"), text("b")], 3, restart=False)
    (replay,) = session.codec.streams()
    session.open(replay)
    session.feed(replay, many(300))
    session.now = session.codec.wake_at or 0
    session.emit(session.codec.tick(session.now))
    session.emit(session.codec.give_up(DragomanError("gone"), session.now))
    before = texts(session)
    session.tick()
    assert texts(session) == before


@pytest.mark.parametrize("size", range(1, 9))
def test_no_piece_of_a_replay_ends_between_two_turns(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(codec, "SLICE", size)
    session = cut([started("t", START), text("a"), text("b")], 3, restart=False)
    (replay,) = session.codec.streams()
    session.open(replay)
    end = lifecycle("completed", "t")
    session.feed(replay, [*many(2), end, started("u"), *many(3)])
    session.now = session.codec.wake_at or 0
    while session.codec.wake_at is not None:
        session.emit(session.codec.tick(session.now))
        # A message would be sent as soon as nothing runs, and be taken for that of the next turn.
        assert session.state.busy
    begun = [event.turn_id for event in session.log if isinstance(event, ev.TurnStarted)]
    assert begun == ["t", "u"]
    assert texts(session) == "ab" + words(2) + words(3)
