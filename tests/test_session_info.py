"""What a session is, as its own events say it."""

from __future__ import annotations

import pytest

from adapters.model import events as ev
from adapters.model.session_info import (
    ABOUT_BYTES,
    TITLE_CHARACTERS,
    SessionInfo,
    check_metadata,
    merged,
)
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json


def about(*events: ev.Event) -> SessionInfo:
    found = SessionInfo()
    for event in events:
        found.apply(event)
    return found


def test_the_newest_of_each_is_what_a_session_is() -> None:
    found = about(
        ev.SessionStarted(
            thread_id=ev.MAIN, agent={"id": "a", "model": "m"}, title="T", metadata={"x": 1, "y": 2}
        ),
        ev.SessionUpdated(
            thread_id=ev.MAIN, agent={"version": 2}, options={"o": 1}, predecessor="p"
        ),
        ev.SessionUpdated(
            thread_id=ev.MAIN, title="U", metadata={"x": None, "z": [3]}, archived_at=0
        ),
        ev.SessionUpdated(thread_id=ev.MAIN, replaced_by="r"),
        ev.SessionEnded(thread_id=ev.MAIN, outcome="completed"),
        ev.ErrorReported(thread_id=ev.MAIN, code="c", message="m"),
    )
    assert found == SessionInfo(
        agent={"id": "a", "model": "m", "version": 2},
        options={"o": 1},
        title="U",
        metadata={"y": 2, "z": [3]},
        archived_at=0,
        ended="completed",
        predecessor="p",
        replaced_by="r",
    )


def test_an_event_is_not_changed_by_those_after_it() -> None:
    started = ev.SessionStarted(thread_id=ev.MAIN, metadata={"x": 1})
    about(started, ev.SessionUpdated(thread_id=ev.MAIN, metadata={"x": 2}))
    assert started.metadata == {"x": 1}


def test_null_takes_a_member_away() -> None:
    assert merged({"a": 1, "b": 2}, {"a": None, "c": 0, "d": None}) == {"b": 2, "c": 0}


@pytest.mark.parametrize("member", ["agent", "options", "metadata"])
def test_of_a_backend_that_says_ever_more_the_newest_is_kept(member: str) -> None:
    found = about(
        *(
            ev.SessionUpdated.model_validate(
                {"thread_id": ev.MAIN, member: {f"k{number}": "x" * 1000}}
            )
            for number in range(200)
        )
    )
    kept = getattr(found, member)
    assert ABOUT_BYTES - 1100 < len(format_json(kept)) <= ABOUT_BYTES
    assert list(kept) == [f"k{number}" for number in range(200 - len(kept), 200)]


def test_of_a_title_that_a_backend_makes_ever_longer_the_begin_is_shown() -> None:
    said = ev.SessionUpdated(thread_id=ev.MAIN, title="é" * 900_000)
    assert about(said).title == "é" * TITLE_CHARACTERS


def test_metadata_that_is_too_large_is_refused_with_a_way_out() -> None:
    room = ABOUT_BYTES - len(format_json({"a": ""}))
    check_metadata({"a": "x" * room})
    with pytest.raises(DragomanError, match="null") as caught:
        check_metadata({"a": "x" * (room + 1)})
    assert caught.value.code is ErrorCode.TOO_LARGE
