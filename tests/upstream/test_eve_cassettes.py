"""eve backends of both generations from cassettes: the real upstream client and the real codec."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest

from adapters.model import events as ev
from adapters.wire.jsonvalue import parse_json
from tests.record_cassettes import CASSETTES, EVE_T, PIXEL
from tests.support.cassettes import load
from tests.upstream.playing import play, settled, texts, types, without_origin

Release = Literal["0.30.8", "0.80.1"]

pytestmark = pytest.mark.parametrize("release", ["0.30.8", "0.80.1"])


def asked(release: Release, name: str) -> list[tuple[str, str, Any]]:
    """Return method, target and body of the recorded requests; `ID` is the session's id."""
    path = CASSETTES / f"eve-{release}" / f"{name}.yaml"
    return [
        (
            request["method"],
            re.sub("wrun_[0-9A-Z]{26}", "ID", request["uri"].removeprefix(EVE_T.host)),
            None if request["body"] is None else parse_json(request["body"].encode()),
        )
        for request in (exchange["request"] for exchange in load(path))
    ]


def stream(release: Release, start: int) -> tuple[str, str, Any]:
    path = f"/eve/v1/session/ID/stream?startIndex={start}&streamControlVersion=1"
    # A T shows by its tail alone that it has lost a session (section 7.2).
    return ("GET", path + "&includeTailIndex=1" if release == "0.30.8" else path, None)


def first(release: Release, message: Any) -> list[tuple[str, str, Any]]:
    """Return what begins a session: S makes it empty and says which server it is, T knows no
    session without a message."""
    made: list[tuple[str, str, Any]] = [("POST", "/eve/v1/session", None)]
    if release == "0.30.8":
        return [*made, ("POST", "/eve/v1/session", {"message": message}), stream(release, 0)]
    body = {"message": message, "turnPolicy": "queue"}
    info = ("GET", "/eve/v1/info", None)
    return [*made, info, stream(release, 0), ("POST", "/eve/v1/session/ID", body)]


def token(release: Release, name: str) -> dict[str, str]:
    """Return the member that T wants with every later input: the newest token (section 5)."""
    if release == "0.80.1":
        return {}
    bodies = [
        e["response"]["body"]["string"] for e in load(CASSETTES / f"eve-{release}/{name}.yaml")
    ]
    return {"continuationToken": re.findall('"continuationToken":"(.*?)"', "".join(bodies))[-1]}


async def test_a_message_becomes_a_turn(release: Release) -> None:
    driver = await play(f"eve-{release}/create")
    assert types(driver) == [
        "session.started",
        "input.accepted",
        "input.settled",
        "session.updated",
        "turn.started",
        "message.received",
        "step.started",
        "text.delta",
        "text.completed",
        "step.ended",
        "turn.ended",
    ]
    assert texts(driver) == [
        "Basil likes six hours of sun — a south-facing sill at the café works. (turn 1)"
    ]
    assert driver.state.status == "idle"
    assert asked(release, "create") == first(release, "script: text")


async def test_a_second_message_is_a_second_turn_of_the_same_session(release: Release) -> None:
    driver = await play(f"eve-{release}/turns")
    ended = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert [event.outcome for event in ended] == ["completed", "completed"]
    assert len({event.turn_id for event in ended}) == 2
    assert texts(driver)[-1].endswith("(turn 2)")
    policy = {} if release == "0.30.8" else {"turnPolicy": "queue"}
    body = {"message": "script: tool", **policy, **token(release, "turns")}
    assert asked(release, "turns")[-2:] == [
        ("POST", "/eve/v1/session/ID", body),
        stream(release, 11),
    ]


async def test_a_file_goes_along_as_a_data_url(release: Release) -> None:
    driver = await play(f"eve-{release}/file")
    (received,) = [e for e in driver.events if isinstance(e, ev.MessageReceived)]
    assert "dot.png" in str(received.content)
    (body,) = [body for _, _, body in asked(release, "file") if body is not None]
    text, file = body["message"]
    assert text == {"type": "text", "text": "Look:"}
    assert file == {
        "type": "file",
        "mediaType": "image/png",
        "filename": "dot.png",
        "data": "data:image/png;base64,iVBORw0KGgo=",
    }
    assert len(PIXEL) == 8


@pytest.mark.parametrize(
    ("name", "outcome", "status"),
    [("approve", "approved", "completed"), ("deny", "denied", "rejected")],
)
async def test_an_approval_is_answered_while_the_stream_is_open(
    release: Release, name: str, outcome: str, status: str
) -> None:
    driver = await play(f"eve-{release}/{name}")
    (request,) = [e for e in driver.events if isinstance(e, ev.InteractionRequested)]
    (called,) = [e for e in driver.events if isinstance(e, ev.ToolCalled)]
    (resolved,) = [e for e in driver.events if isinstance(e, ev.InteractionResolved)]
    (returned,) = [e for e in driver.events if isinstance(e, ev.ToolReturned)]
    assert (request.kind, request.call_id) == ("approval", called.call_id)
    assert request.details == {"tool": "bash", "input": {"command": "rm -rf /srv/exports/2024"}}
    assert (resolved.request_id, resolved.outcome) == (request.request_id, outcome)
    assert (returned.call_id, returned.status) == (called.call_id, status)
    # What T closes and opens again for the answer is one turn.
    assert sum(isinstance(event, ev.TurnStarted) for event in driver.events) == 1
    assert settled(driver) == [("taken", None), ("taken", None)]
    # The option that refuses has another name in each generation (section 9.4).
    negative = {"0.30.8": "deny", "0.80.1": "cancel"}[release]
    answer = {"optionId": "approve"}
    if name == "deny":
        answer = {"optionId": negative, "text": "Keep the exports."}
    body = {"inputResponses": [{"requestId": request.request_id, **answer}]}
    assert asked(release, name)[-1] == (
        "POST",
        "/eve/v1/session/ID",
        body | token(release, name),
    )


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("ask", {"optionId": "09:10"}, "Holding a seat on the 09:10. (turn 1)"),
        (
            "askopen",
            {"text": "Grüße, \N{SNOWMAN}"},
            "The ticket carries the name Grüße, \N{SNOWMAN}. (turn 1)",
        ),
    ],
)
async def test_a_question_is_answered_by_an_option_or_by_words(
    release: Release, name: str, given: dict[str, str], text: str
) -> None:
    driver = await play(f"eve-{release}/{name}")
    (request,) = [e for e in driver.events if isinstance(e, ev.InteractionRequested)]
    assert request.kind == "question"
    assert bool(request.options) == (name == "ask")
    assert texts(driver)[-1] == text
    *_, (_, _, body) = asked(release, name)
    (response,) = body["inputResponses"]
    assert given.items() <= response.items()
    assert "turnPolicy" not in body


async def test_a_failed_turn_says_why(release: Release) -> None:
    driver = await play(f"eve-{release}/fail")
    (ended,) = [event for event in driver.events if isinstance(event, ev.TurnEnded)]
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert ended.error.message


@pytest.mark.parametrize(("name", "whole"), [("resume", None), ("resume-approve", "approve")])
async def test_a_stream_goes_on_at_the_record_reached(
    release: Release, name: str, whole: str | None
) -> None:
    driver = await play(f"eve-{release}/{name}")
    starts = [target for _, target, _ in asked(release, name) if "/stream?" in target]
    reached = {"resume": 6, "resume-approve": {"0.30.8": 11, "0.80.1": 14}[release]}[name]
    assert starts == [stream(release, 0)[1], stream(release, reached)[1]]
    assert sum(isinstance(event, ev.TurnStarted) for event in driver.events) == 1
    assert [e.outcome for e in driver.events if isinstance(e, ev.TurnEnded)] == ["completed"]
    if whole is not None:
        assert without_origin(driver) == without_origin(await play(f"eve-{release}/{whole}"))


async def test_a_refused_answer_releases_its_claim(release: Release) -> None:
    driver = await play(f"eve-{release}/answer-refused")
    assert settled(driver) == [("taken", None), ("refused", "http_429"), ("taken", None)]
    claims = [e.state for e in driver.events if isinstance(e, ev.InteractionAnswered)]
    assert claims == ["claimed", "released", "claimed"]
    *_, one, other = asked(release, "answer-refused")
    assert one == other


async def test_each_refusal_of_a_session_is_told_with_its_status(release: Release) -> None:
    driver = await play(f"eve-{release}/create-refusals")
    codes = [f"http_{status}" for status in (403, 404, 422, 429, 500)]
    assert settled(driver) == [("refused", code) for code in ("backend_refused", *codes)]
    assert driver.codec.native_id is None
    assert not any(isinstance(event, ev.TurnStarted) for event in driver.events)


async def test_a_refused_message_leaves_the_session_as_it_was(release: Release) -> None:
    driver = await play(f"eve-{release}/refusals")
    codes = [f"http_{status}" for status in (400, 403, 404, 409, 429)]
    assert settled(driver) == [("taken", None), *(("refused", code) for code in codes)]
    assert driver.state.status == "idle"


@pytest.mark.parametrize(
    ("name", "code"), [("wrong-key", "backend_refused"), ("redirect", "http_302")]
)
async def test_a_wrong_key_and_a_redirect_refuse_the_message(
    release: Release, name: str, code: str
) -> None:
    driver = await play(f"eve-{release}/{name}")
    assert settled(driver) == [("refused", code)]
    assert driver.calls == ["prewarm"]
