"""What codecs say to the normalizer: the same words in all dialects, and their JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from multidict import CIMultiDict
from pydantic import TypeAdapter

from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Response
from adapters.wire.jsonvalue import format_json, parse_json

AT: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": "t1"}

EVENTS: tuple[ev.Event, ...] = (
    raw.BlockEnded(**AT, block="text", finish_reason="stop"),
    raw.BlockEnded(**AT, block="reasoning", status="discarded", synthetic=True),
    raw.CutDelta(
        **AT,
        delta=ev.ToolInputDelta(**AT, call_id="c1", text="x"),
        before=0xDE00,
        after=0xD83D,
        native=ev.NativeRef(dialect="eve"),
    ),
    ev.ToolCalled(
        **AT,
        call_id="c1",
        name="look",
        input={"deep": [None, 2**70, 1.0, {"": "a\u2028b"}]},
        native=ev.NativeRef(dialect="engine", type="tool_call", frame=3),
        extra={"none": None},
    ),
    ev.ToolReturned(
        **AT, call_id="c1", content=(ev.Text(text="x"), ev.Other(dialect="d", value=1))
    ),
    ev.ToolReturned(**AT, call_id="c1", output=None, output_known=False),
    ev.InteractionRequested(
        **AT, request_id="r", kind="approval", prompt="?", options=(ev.Option(id="a", label="A"),)
    ),
    ev.TurnEnded(**AT, outcome="failed", error=ev.ErrorInfo(code="c", message="m")),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.TYPE)
def test_a_raw_event_comes_back_from_json_as_it_was(event: ev.Event) -> None:
    written = format_json(raw.dump(event))
    assert raw.load(parse_json(written)) == event


@pytest.mark.parametrize("value", [None, [], {}, {"type": "raw.unheard_of"}, {"type": "gap"}])
def test_what_is_no_raw_event_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"canonical event|raw event|validation error"):
        raw.load(value)


@dataclasses.dataclass(slots=True)
class Keeping:
    """A state with events in it."""

    events: list[raw.Raw] = dataclasses.field(default_factory=list)


def test_a_state_can_hold_raw_events() -> None:
    adapter = TypeAdapter(Keeping)
    written = adapter.dump_json(Keeping(list(EVENTS)), exclude_defaults=True)
    assert adapter.validate_json(written) == Keeping(list(EVENTS))


def test_what_became_of_an_input_says_its_reason() -> None:
    error = ev.ErrorInfo(code="no", message="Not now.")
    assert raw.settled("c", "refused", error) == ev.InputSettled(
        thread_id=ev.MAIN, command_id="c", outcome="refused", reason="Not now.", error=error
    )
    assert raw.settled("c", "taken") == ev.InputSettled(
        thread_id=ev.MAIN, command_id="c", outcome="taken"
    )


def test_garbled_bytes_are_quoted_by_their_beginning() -> None:
    told = raw.garbled("herm", "no JSON", b"\xff" * 5_000, thread_id="child", turn_id="t")
    assert isinstance(told, ev.ErrorReported)
    assert (told.code, told.message) == ("backend_protocol", "herm: no JSON")
    assert (told.thread_id, told.turn_id, told.synthetic) == ("child", "t", True)
    assert (told.details, told.quote) == (None, "\\xff" * 512)


def test_a_doubt_is_an_error_that_is_tried_again() -> None:
    told = raw.in_doubt("Wait.")
    assert isinstance(told, ev.ErrorReported)
    assert (told.code, told.message, told.retry) == ("input_in_doubt", "Wait.", "retrying")
    assert told.synthetic
    assert raw.in_doubt("Wait.", "http_500") == told.model_copy(update={"code": "http_500"})


def test_a_release_says_whose_answer_did_not_count() -> None:
    assert raw.released("r", "c", thread_id="child") == ev.InteractionAnswered(
        thread_id="child", request_id="r", command_id="c", by="backend", state="released"
    )


@pytest.mark.parametrize(
    ("body", "value"), [(b"", None), (b"{oops", None), (b"[1]", [1]), (b'{"a":1}', {"a": 1})]
)
def test_a_body_is_read_where_it_is_json(body: bytes, value: Any) -> None:
    assert raw.json_of(Response(200, CIMultiDict(), body)) == value


def test_a_refusal_of_no_known_form_is_quoted_for_who_runs_this_only() -> None:
    told = raw.quoted(Response(418, CIMultiDict(), b"tea\xff" * 500, "pot"))
    assert told.code == "http_418"
    assert told.message == "Backend `pot` answered 418, not in a form of its dialect."
    assert told.quote == r"tea\xff" * 128


def test_what_a_backend_says_of_its_own_failure_is_quoted_for_who_runs_this_only() -> None:
    body = b'{"error": "E_DB", "message": "postgres://user:password@10.1.2.3/db"}'
    told = raw.refused(Response(500, CIMultiDict(), body, "pot"), "E_DB", "postgres://…", {"a": 1})
    assert (told.code, told.message) == ("E_DB", "Backend `pot` failed with 500.")
    assert (told.details, told.quote) == (None, body.decode())
    kept = raw.refused(Response(422, CIMultiDict(), body, "pot"), "E_LONG", "Too long.", {"a": 1})
    assert (kept.code, kept.message, kept.details, kept.quote) == (
        "E_LONG",
        "Too long.",
        {"a": 1},
        None,
    )


@pytest.mark.parametrize("words", ["Something went wrong", "no\n", "", "x" * 101, 7, None, "1a"])
def test_words_of_a_backend_are_no_code(words: object) -> None:
    assert raw.refused(Response(400, CIMultiDict(), b""), words, "No.").code == "http_400"
