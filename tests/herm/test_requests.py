"""The request side of the Herm face: bodies, queries and errors."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, cast

import pytest
from multidict import MultiDict

from adapters.herm import answers, interactions, requests
from adapters.herm.pages import EventsPage
from adapters.herm.server import HermEncoder
from adapters.herm.writer import Envelope
from adapters.model import events as ev
from adapters.model.base import Response
from adapters.model.commands import AnswerInteraction, Interrupt, SendMessage, Steer
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from tests.support.each import each

BODIES = Path(__file__).parent.parent.parent / "fixtures" / "wire" / "herm"
HELLO = {"type": "user.message", "content": [{"type": "text", "text": "Hello"}]}


def parse(value: Any) -> tuple[requests.UserEvent, ...]:
    return requests.parse_events(json.dumps(value).encode())


def request(kind: ev.InteractionKind, **fields: Any) -> ev.InteractionRequested:
    return ev.InteractionRequested(
        **{"thread_id": "main", "request_id": "r1", "kind": kind, "prompt": "?", **fields}
    )


def answered(event: dict[str, Any], asked: Any) -> AnswerInteraction:
    (command,) = interactions.to_commands(parse(event), lambda name: asked)
    assert isinstance(command, AnswerInteraction)
    return command


def body(response: Response) -> Any:
    return json.loads(response.body)


@pytest.mark.parametrize("value", [{"events": [HELLO]}, [HELLO], HELLO])
def test_a_batch_has_three_spellings(value: Any) -> None:
    (event,) = parse(value)
    assert (event.type, event.blocks) == ("user.message", ("Hello",))


@pytest.mark.parametrize("name", ["post-events", "post-array", "post-single", "answers"])
def test_every_documented_body_is_taken(name: str) -> None:
    assert requests.parse_events((BODIES / f"http-{name}.request.json").read_bytes())


def test_unknown_fields_are_ignored() -> None:
    (event,) = parse({**HELLO, "priority": 1})
    assert event.blocks == ("Hello",)
    (event,) = parse(
        {
            "type": "user.tool_confirmation",
            "tool_use_id": "t",
            "result": "deny",
            "deny_message": "never",
        }
    )
    assert event.decision == "deny"


@each(
    "value",
    [
        {},
        [],
        "text",
        {"events": {}},
        {"events": [1]},
        {"type": "user.dance"},
        {"type": "agent.message", "content": []},
        {**HELLO, "content": []},
        {**HELLO, "content": "Hello"},
        {**HELLO, "content": [{"type": "text", "text": "x"}] * 101},
        {**HELLO, "content": [{"type": "text", "text": "x" * 20_001}]},
        {**HELLO, "content": [{"type": "image", "url": "https://x.example"}]},
        {**HELLO, "content": [{"type": "text", "text": 1}]},
        {**HELLO, "attachments": [{"type": "image"}]},
        {"events": [HELLO, HELLO]},
        {"type": "user.steer"},
        {"type": "user.steer", "message": ""},
        {"type": "user.interrupt", "message": 1},
        {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "maybe"},
        {"type": "user.tool_confirmation", "tool_use_id": "", "result": "allow"},
        {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "allow", "scope": "ever"},
        {"type": "user.custom_tool_result", "tool_use_id": "t"},
        {
            "type": "user.custom_tool_result",
            "tool_use_id": "t",
            "content": HELLO["content"],
            "is_error": "no",
        },
        {"type": "user.clarify_result", "request_id": "r"},
        {"type": "user.sudo_result", "request_id": "r", "value": "x"},
        {"type": "user.secret_result", "request_id": "r", "value": None},
        [{"type": "user.clarify_result", "request_id": "r", "answer": "a"}] * 2,
    ],
)
def test_what_section_3_does_not_allow_is_a_validation_error(value: Any) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        parse(value)
    response = answers.refusal(refused.value)
    assert response.status == 400
    assert body(response)["error"]["code"] == "validation_error"


def test_a_refusal_quotes_nothing_of_the_body() -> None:
    for data in (b'{"password":"hunter2"', b'{"type":"user.sudo_result","password":["hunter2"]}'):
        with pytest.raises(ClientProtocolError) as refused:
            requests.parse_events(data)
        assert "hunter2" not in answers.refusal(refused.value).body.decode()


def test_the_most_that_is_allowed_is_taken() -> None:
    content = [{"type": "text", "text": "x" * 20_000}] * 100
    (event,) = parse({**HELLO, "content": content})
    assert len(event.blocks) == 100


def test_a_message_is_refused_while_a_turn_runs_unless_an_interrupt_comes_first() -> None:
    def policies(*events: Any) -> list[Any]:
        commands = interactions.to_commands(parse(list(events)), lambda name: None)
        return [command.policy for command in commands if isinstance(command, SendMessage)]

    assert policies(HELLO) == ["reject"]
    assert policies({"type": "user.interrupt"}, HELLO) == ["queue"]
    assert policies(HELLO, {"type": "user.interrupt"}) == ["reject"]


def test_steering_and_interrupts_are_commands_of_their_own() -> None:
    commands = interactions.to_commands(
        parse(
            [{"type": "user.steer", "message": "left"}, {"type": "user.interrupt", "message": "x"}]
        ),
        lambda name: None,
    )
    assert commands == [Steer(text="left"), Interrupt(note="x")]


OPTIONS = (ev.Option(id="a", label="Aye"), ev.Option(id="b", label="Bee"))


def clarify(answer: str) -> dict[str, str]:
    return {"type": "user.clarify_result", "request_id": "r1", "answer": answer}


@pytest.mark.parametrize(
    ("answer", "asked", "expected"),
    [
        ("Bee", request("question", options=OPTIONS), {"option_ids": ("b",)}),
        ("b", request("question", options=OPTIONS), {"option_ids": ("b",)}),
        ("", request("question", options=OPTIONS), {"skip": True}),
        ("mine", request("question", options=OPTIONS, freeform=True), {"text": "mine"}),
        ("mine", request("question", freeform=True), {"text": "mine"}),
        ("continue", request("limit"), {"decision": "allow"}),
        ("stop", request("limit"), {"decision": "deny"}),
        ("cancel", request("authorization"), {"decision": "deny", "skip": True}),
    ],
)
def test_a_clarification_is_read_as_the_request_takes_it(
    answer: str, asked: Any, expected: dict[str, Any]
) -> None:
    assert answered(clarify(answer), asked) == AnswerInteraction(request_id="r1", **expected)


@pytest.mark.parametrize(
    ("event", "asked"),
    [
        (clarify("neither"), request("question", options=OPTIONS)),
        (clarify("perhaps"), request("limit")),
        (clarify("done"), request("authorization")),
        (clarify("yes"), request("approval")),
        (
            {"type": "user.tool_confirmation", "tool_use_id": "r1", "result": "allow"},
            request("question"),
        ),
        ({"type": "user.secret_result", "request_id": "r1", "value": "x"}, request("sudo")),
        ({"type": "user.sudo_result", "request_id": "r1", "password": "x"}, request("question")),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(event: Any, asked: Any) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        answered(event, asked)
    assert answers.refusal(refused.value).status == 400


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("sudo", {"type": "user.sudo_result", "password": "s3cret"}),
        ("secret", {"type": "user.secret_result", "value": "s3cret"}),
        ("unknown", {"type": "user.secret_result", "value": "s3cret"}),
        ("unknown", {"type": "user.sudo_result", "password": "s3cret"}),
    ],
)
def test_a_secret_is_sealed_from_the_first_moment(kind: Any, event: Any) -> None:
    events = parse({**event, "request_id": "r1"})
    assert "s3cret" not in repr(events)
    (command,) = interactions.to_commands(events, lambda name: request(kind))
    assert isinstance(command, AnswerInteraction)
    assert command.sealed is not None
    assert command.sealed.reveal() == "s3cret"
    assert "s3cret" not in repr(command) + command.model_dump_json()


def test_an_empty_secret_declines() -> None:
    event = {"type": "user.secret_result", "request_id": "r1", "value": ""}
    command = answered(event, request("secret"))
    assert (command.sealed, command.skip) == (None, True)


def test_an_answer_to_nothing_is_told_from_one_that_comes_late() -> None:
    event = {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "allow"}
    with pytest.raises(ClientProtocolError) as refused:
        answered(event, None)
    assert refused.value.code is ErrorCode.UNKNOWN_INTERACTION
    assert body(answers.refusal(refused.value))["error"]["code"] == "unknown_request"
    # The session knows the outcome of what is over.
    assert answered(event, "r7").request_id == "r7"


def test_scope_and_content_of_answers_go_along() -> None:
    event = {
        "type": "user.tool_confirmation",
        "tool_use_id": "r1",
        "result": "allow",
        "scope": "session",
    }
    assert answered(event, request("approval")).scope == "session"
    result = {
        "type": "user.custom_tool_result",
        "tool_use_id": "r1",
        "content": [{"type": "text", "text": "12"}],
        "is_error": True,
    }
    command = answered(result, request("tool_result"))
    assert (command.content, command.is_error) == ((ev.Text(text="12"),), True)


def test_a_create_takes_its_three_fields_and_nothing_of_the_wrong_type() -> None:
    made = requests.parse_create(b'{"userId":"u","title":"T","metadata":{"a":1},"x":2}')
    assert made == requests.HermCreate("u", "T", {"a": 1})
    assert requests.parse_create(b"") == requests.HermCreate()
    for bad in (
        b"[]",
        b'{"title":1}',
        b'{"metadata":[]}',
        b"{",
        b'{"userId":"%b"}' % (b"x" * 1001),
    ):
        with pytest.raises(ClientProtocolError):
            requests.parse_create(bad)


# Queries and pages.


def query(**values: str) -> MultiDict[str]:
    return MultiDict(values)


def test_positions_are_numbers_or_ids() -> None:
    assert requests.parse_position("7", "s", "after") == 7
    assert requests.parse_position("evt_s_7", "s", "after") == 7
    for bad in ("evt_t_7", "-1", "x", "evt_s_", "9" * 16):
        with pytest.raises(ClientProtocolError):
            requests.parse_position(bad, "s", "after")


def test_a_stream_begins_after_its_position_or_live() -> None:
    parse_stream = requests.parse_stream
    assert parse_stream(query(), {}, "s") is None
    assert parse_stream(query(after="3"), {}, "s") == 3
    assert parse_stream(query(sequence="4"), {}, "s") == 4
    assert parse_stream(query(after="3"), {"Last-Event-ID": "evt_s_9"}, "s") == 9


@pytest.mark.parametrize(
    "bad", [{"limit": "0"}, {"limit": "101"}, {"order": "up"}, {"cursor": "?"}]
)
def test_a_list_query_outside_of_the_page_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ClientProtocolError):
        requests.parse_list(query(**bad), "s")


@pytest.mark.parametrize(
    "plain", ["9" * 19 + ".0", "1." + "9" * 4000, "-1.0", "1_0.0", " 1.0", "1"]
)
def test_a_cursor_that_the_journal_could_not_hold_is_refused(plain: str) -> None:
    cursor = base64.urlsafe_b64encode(plain.encode()).decode()
    for parse in (requests.parse_sessions, lambda asked: requests.parse_list(asked, "s")):
        with pytest.raises(ClientProtocolError):
            parse(query(cursor=cursor))


def test_sessions_are_narrowed_and_unknown_parameters_ignored() -> None:
    found = requests.parse_sessions(
        query(**{"userId": "u", "status": "idle", "metadata[k]": "v", "colour": "x", "limit": "5"})
    )
    assert found == requests.SessionQuery(limit=5, user_id="u", status="idle", metadata={"k": "v"})


class Part:
    """Stands in for an encoder: its log entries are envelopes already."""

    def __init__(self, next_cursor: int) -> None:
        self.next_cursor = next_cursor

    def envelopes(self, entry: Envelope) -> list[Envelope]:
        return [entry]


def begin(page: EventsPage, cursor: int) -> None:
    page.begin(cast("HermEncoder", Part(cursor)))


def add(page: EventsPage, made: Envelope) -> bool:
    return page.add(cast("ev.Entry", made))


def pages(order: str, limit: int, numbers: list[int], grow: bool = False) -> list[int]:
    """Read a list page by page; it may grow while it is read."""
    seen: list[int] = []
    params = {"limit": str(limit), "order": order}
    while True:
        page = EventsPage(requests.parse_list(query(**params), "s"), numbers[-1])
        while (at := page.wanted) is not None:
            # Parts begin where a snapshot is: here at every fourth place.
            start = at - (at - 1) % 4
            begin(page, start)
            for number in numbers:
                made = Envelope(number, "agent.message", b"%d" % number)
                if number >= start and not add(page, made):
                    break
            page.end()
        answer = json.loads(page.out)
        seen += answer["data"]
        if answer["nextCursor"] is None:
            return seen
        params["cursor"] = answer["nextCursor"]
        if grow:
            numbers = [*numbers, numbers[-1] + 3]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_have_everything_once_and_end_though_the_list_grows(limit: int) -> None:
    numbers = [1, 4, 5, 9, 12]
    assert pages("asc", limit, numbers, grow=True) == numbers
    assert pages("desc", limit, numbers, grow=True) == numbers[::-1]


def test_a_page_of_large_events_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.herm.pages.PAGE_BYTES", 2)
    numbers = [1, 4, 12, 13, 14]
    assert pages("asc", 100, numbers) == numbers
    page = EventsPage(requests.ListQuery(), 14)
    begin(page, 1)
    for number in numbers:
        add(page, Envelope(number, "agent.message", b"%d" % number))
    page.end()
    answer = json.loads(page.out)
    assert answer["data"] == [1, 4]
    assert answer["nextCursor"] is not None


def test_a_page_shows_the_newest_form_and_no_deltas() -> None:
    for inputs in ({}, {1: b'"complete"'}):
        page = EventsPage(requests.ListQuery(), 2, inputs)
        begin(page, 1)
        assert add(page, Envelope(1, "user.message", b'{"status":"pending"}'))
        # Beyond the end of the page it is read on only for what became of the input.
        assert add(page, Envelope(2, "agent.message", b'"delta"', listed=False)) is not bool(inputs)
        assert not add(page, Envelope(1, "user.message", b'"complete"', update=True))
        page.end()
        assert page.wanted is None
        assert json.loads(page.out) == {"data": ["complete"], "nextCursor": None}


# Errors.


@each("code", ErrorCode)
def test_every_error_has_a_status_and_a_code_of_this_dialect(code: ErrorCode) -> None:
    response = answers.refusal(DragomanError("Why.", code=code, details={"retry_after": 3}))
    assert response.status >= 400
    error = body(response)["error"]
    assert error.keys() == {"code", "message"}
    assert error["message"] == "Why."
    assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("code", "status", "name"),
    [
        (ErrorCode.UNAUTHORIZED, 401, "unauthorized"),
        (ErrorCode.NOT_FOUND, 404, "not_found"),
        (ErrorCode.BUSY, 409, "turn_running"),
        (ErrorCode.PAUSED, 409, "turn_running"),
        (ErrorCode.ALREADY_ANSWERED, 409, "already_answered"),
        (ErrorCode.KEY_REUSED, 409, "idempotency_key_conflict"),
        (ErrorCode.NOT_SUPPORTED, 400, "not_supported"),
        (ErrorCode.RATE_LIMITED, 429, "rate_limited"),
        (ErrorCode.JOURNAL_UNAVAILABLE, 503, "unavailable"),
        (ErrorCode.INTERNAL, 500, "server_error"),
    ],
)
def test_the_documented_codes_are_used(code: ErrorCode, status: int, name: str) -> None:
    response = answers.refusal(DragomanError("x", code=code))
    assert (response.status, body(response)["error"]["code"]) == (status, name)


def test_what_is_not_served_says_why() -> None:
    response = answers.not_served("POST", "/v1/agents")
    assert response.status == 501
    assert "agents are configured at the backend" in body(response)["error"]["message"]
    older = answers.no_route("POST", "/v1/deployments/x/messages", "Write another.")
    assert older.status == 404
    assert "older generation" in body(older)["error"]["message"]
    other = answers.no_route("POST", "/v1/x", "Write another.")
    assert body(other)["error"]["message"] == "There is no `POST /v1/x`. Write another."
