"""Bad input over the wire: each refusal of the eve page in its words, and the session survives."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from yarl import URL

from tests.support.eve_client import EveSession, Refused
from tests.support.running import Run, Running
from tests.support.serving import HOST
from tests.support.waiting import SOON_S

KIB = 1024


def say(text: str) -> Any:
    return {"message": text}


NOT_EMPTY = "Expected 'message' to be non-empty when provided."
NO_MESSAGE = "Expected a non-empty 'message' or a non-empty 'inputResponses' array."
NO_TOKEN = "Missing or empty 'continuationToken' field."
NO_DATA = "File parts require a 'data' string (base64, data URL, or URL)."
NO_ENTRY = (
    "Expected every 'inputResponses' entry to match the HITL response schema: 'requestId', and "
    "'optionId' or 'text', all strings."
)
NO_JSON = "Invalid JSON body. Send a JSON object, in UTF-8."
NOT_ALONE = (
    "Creating a session without a message does not accept 'clientContext', 'callback', or"
    " 'outputSchema'."
)


def part(**members: Any) -> Any:
    return {"message": [members]}


def file(**members: Any) -> Any:
    return part(**{"type": "file", "mediaType": "image/png", "data": "aGk=", **members})


# Sections 4.1 and 4.2: body, status, text.
CREATES: list[tuple[Any, int, str]] = [
    (b"{", 400, NO_JSON),
    (b"\xff\xfe", 400, NO_JSON),
    (b'{"message":"a"} x', 400, NO_JSON),
    (b'{"message":NaN}', 400, NO_JSON),
    (b"[" * 10_000, 400, NO_JSON),
    ([], 400, "Expected a JSON object."),
    ("hello", 400, "Expected a JSON object."),
    (None, 400, "Expected a JSON object."),
    (say(""), 400, NOT_EMPTY),
    ({"message": []}, 400, NOT_EMPTY),
    ({"message": 7}, 400, "Expected 'message' to be a string or an array of text/file parts."),
    ({"message": ["x"]}, 400, "Expected each message part to be an object."),
    (part(type="text", text=""), 400, "Text parts require a non-empty 'text' string."),
    (part(type="text"), 400, "Text parts require a non-empty 'text' string."),
    (file(mediaType=""), 400, "File parts require a non-empty 'mediaType' string."),
    (file(data=7), 400, NO_DATA),
    (file(data="***"), 400, NO_DATA),
    (file(data="data:text/plain"), 400, NO_DATA),
    (file(data="ftp://x.example/y"), 400, NO_DATA),
    (
        file(data="eve-sandbox:x"),
        400,
        "File part 'data' must not use a framework-internal ref scheme.",
    ),
    (
        part(type="image", url="x"),
        400,
        "Unsupported message part type \"image\". Use 'text' or 'file'.",
    ),
    (part(), 400, "Unsupported message part type \"undefined\". Use 'text' or 'file'."),
    (
        {"message": "a", "clientContext": 7},
        400,
        "Expected 'clientContext' to be a string, string array, or JSON object.",
    ),
    (
        {"message": "a", "clientContext": [""]},
        400,
        "Expected 'clientContext' array entries to be non-empty strings.",
    ),
    ({"clientContext": "a"}, 400, NOT_ALONE),
    ({"outputSchema": {}}, 400, NOT_ALONE),
    (
        {"message": "a", "outputSchema": []},
        400,
        "Expected 'outputSchema' to be a JSON-serializable object.",
    ),
    ({"message": "a", "capabilities": []}, 400, "Expected 'capabilities' to be an object."),
    (
        {"message": "a", "capabilities": {"other": True}},
        400,
        "Expected 'capabilities.requestInput' to be a boolean when provided.",
    ),
    (
        {"message": "a", "operationId": ""},
        400,
        "Expected 'operationId' to be a non-empty string.",
    ),
    (
        {"message": "a", "operationId": "o"},
        400,
        "operationId requires an authenticated principal.",
    ),
    ({"message": "a", "stubs": []}, 403, "Tool stubbing is not permitted for this caller."),
    (
        {"message": "a", "forwardedPrincipal": {}},
        403,
        "This deployment does not accept a forwarded principal.",
    ),
    (
        {"message": "a", "inputResponses": []},
        400,
        "'inputResponses' is only accepted for an existing session.",
    ),
    (
        {"message": "a", "callback": 7},
        400,
        "Invalid callback metadata: callback: Invalid input: expected object, received number",
    ),
]

# Section 5, by id; then by token, where its rules differ.
FOLLOW_UPS: list[tuple[Any, int, str]] = [
    (b"", 400, NO_JSON),
    (b"{", 400, NO_JSON),
    ([], 400, "Expected a JSON object."),
    ({}, 400, NO_MESSAGE),
    (say(""), 400, NO_MESSAGE),
    ({"inputResponses": []}, 400, "Expected 'inputResponses' to be a non-empty array."),
    ({"inputResponses": ["x"]}, 400, NO_ENTRY),
    ({"inputResponses": [{"optionId": "x"}]}, 400, NO_ENTRY),
    ({"inputResponses": [{"requestId": "x", "more": 1}]}, 400, NO_ENTRY),
    ({"inputResponses": [{"requestId": "x", "text": 1}]}, 400, NO_ENTRY),
    (
        {"message": "a", "inputResponses": [{"requestId": "x"}]},
        400,
        "'message' and 'inputResponses' are mutually exclusive.",
    ),
    (
        {"message": "a", "turnPolicy": "now"},
        400,
        "Expected 'turnPolicy' to be either 'queue' or 'steer'.",
    ),
    ({"message": "a", "stubs": []}, 400, "Tool stubs are fixed at session creation."),
    ({"message": "a", "continuationToken": ""}, 400, NO_TOKEN),
    ({"message": "a", "continuationToken": 7}, 400, NO_TOKEN),
    (
        {"message": "a", "continuationToken": "x", "forwardedPrincipal": {}},
        400,
        "A forwarded principal is only accepted on session creation.",
    ),
    (
        {"continuationToken": "x"},
        400,
        "Expected a non-empty 'message', a non-empty 'inputResponses' array, or both.",
    ),
]

CONTROLS: list[tuple[str, Any, int, str]] = [
    ("cancel", {"turnId": ""}, 400, "Expected 'turnId' to be a non-empty string."),
    ("cancel", {"turnId": 7}, 400, "Expected 'turnId' to be a non-empty string."),
    ("cancel", [], 400, "Expected a JSON object."),
    ("cancel", b"{", 400, NO_JSON),
    ("reset", {"reason": ""}, 400, "Expected 'reason' to be a non-empty string."),
    ("reset", b"nope", 400, NO_JSON),
    (
        "clear",
        {"continuationToken": "x"},
        400,
        "Session-ID routes do not accept 'continuationToken'.",
    ),
    (
        "compact",
        {"continuationToken": "x"},
        400,
        "Session-ID routes do not accept 'continuationToken'.",
    ),
]


async def refused(running: Running, path: str, body: Any, status: int, error: str) -> Any:
    """Post a body that must be refused, and check the answer's form (section 2)."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Refused) as caught:
        await running.eve().request("POST", path, raw=raw)
    answer = caught.value.body
    assert (caught.value.status, answer["ok"], answer["error"]) == (status, False, error), body
    return answer


async def still_alive(session: EveSession) -> None:
    accepted = await session.send("still there?")
    turn = await session.read_turn(accepted)
    assert turn.text is not None
    assert "still there?" in turn.text


async def test_a_create_that_eve_refuses_makes_no_session_and_costs_nothing(run: Run) -> None:
    running = await run()
    for body, status, error in CREATES:
        await refused(running, "/eve/v1/session", body, status, error)
    assert await running.sessions.journal.sessions() == []
    assert running.requests("execute") == []
    await still_alive(await running.eve().create())


async def test_a_follow_up_that_eve_refuses_leaves_the_session_as_it_was(run: Run) -> None:
    running = await run()
    session = await running.eve().create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    path = f"/eve/v1/session/{session.session_id}"
    before = await running.log(session.session_id)
    for body, status, error in FOLLOW_UPS:
        await refused(running, path, body, status, error)
    for control, body, status, error in CONTROLS:
        await refused(running, f"{path}/{control}", body, status, error)
    for control in ("compact", "clear", "reset"):
        error = "Expected 'continuationToken' to be a non-empty string."
        await refused(running, f"/eve/v1/session/{control}", {}, 400, error)
    assert await running.log(session.session_id) == before
    await session.respond(request, "approve")
    await session.read_turn()
    await still_alive(session)


async def test_the_upload_policy_is_kept(run: Run) -> None:
    policy = {"max_bytes": 8, "media_types": ["image/*", "text/plain"]}
    running = await run(settings={"eve": {"upload": policy}})
    large = base64.b64encode(b"123456789").decode()
    answer = await refused(
        running,
        "/eve/v1/session",
        file(data=large, filename="a.png"),
        413,
        "a.png (9 bytes) exceeds the 8-byte upload limit.",
    )
    assert answer["violations"] == [
        {
            "kind": "too-large",
            "byteLength": 9,
            "limit": 8,
            "mediaType": "image/png",
            "filename": "a.png",
        }
    ]
    answer = await refused(
        running,
        "/eve/v1/session",
        {
            "message": [
                file(mediaType="application/pdf")["message"][0],
                file(data=large)["message"][0],
            ]
        },
        415,
        'application/pdf has media type "application/pdf" which is not allowed by this route.'
        " Allowed: image/*, text/plain.",
    )
    assert [one["kind"] for one in answer["violations"]] == ["disallowed-media-type", "too-large"]
    session = await running.eve().create([file()["message"][0]])
    turn = await session.read_turn()
    assert turn.text is not None
    assert "image/png of 2 bytes" in turn.text


async def test_a_body_that_is_too_long_is_refused_in_the_dialect_s_form(run: Run) -> None:
    running = await run(settings={"server": {"max_body_bytes": 4 * KIB}})
    raw = json.dumps(say("x" * 8 * KIB)).encode()
    with pytest.raises(Refused) as caught:
        await running.eve().request("POST", "/eve/v1/session", raw=raw)
    assert caught.value.status == 413
    assert caught.value.body["ok"] is False
    await still_alive(await running.eve().create())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/eve/v1/session"),
        ("DELETE", "/eve/v1/session/x"),
        ("PUT", "/eve/v1/session/x"),
        ("POST", "/eve/v1/session/x/stream"),
        ("POST", "/eve/v1/health"),
        ("GET", "/eve/v1/nothing"),
        ("GET", "/eve/v2/health"),
        ("OPTIONS", "/eve/v1/session"),
        ("POST", "/eve/v1/session/x/cancel/more"),
    ],
)
async def test_an_unknown_path_or_a_wrong_method_is_a_404_of_the_framework(
    run: Run, method: str, path: str
) -> None:
    running = await run()
    async with running.http.request(method, running.base + path) as response:
        assert response.status == 404
        body = await response.json()
    assert (body["error"], body["status"]) == (True, 404)
    assert body["message"].startswith(f"Cannot find any route matching [{method}] ")


async def test_health_and_info_are_as_clients_check_them(run: Run) -> None:
    running = await run()
    await running.eve().health()
    _, info = await running.eve().request("GET", "/eve/v1/info")
    assert info["agent"]["name"] == "engine"
    async with running.http.head(f"{running.base}/eve/v1/health") as response:
        assert response.status == 200


@pytest.mark.parametrize("name", ["..%2F..%2Fapi", "%00", "a%2Fb", "x" * 2000, "%F0%9F%98%80"])
async def test_odd_session_names_are_unknown_sessions(run: Run, name: str) -> None:
    running = await run("sqlite")
    base = f"{running.base}/eve/v1/session/{name}"
    async with running.http.get(URL(f"{base}/stream", encoded=True)) as response:
        assert response.status == 404
    async with running.http.post(URL(base, encoded=True), json=say("hello")) as response:
        assert response.status in (404, 409)


async def test_a_route_that_does_not_exist_is_not_found_in_the_dialect_s_form(run: Run) -> None:
    running = await run()
    base = running.base.replace("/to/engine", "/to/nobody")
    for method, path in (
        ("POST", "/eve/v1/session"),
        ("GET", "/eve/v1/session/x/stream"),
        ("GET", "/eve/v1/info"),
    ):
        async with running.http.request(method, base + path, json=say("hello")) as response:
            assert response.status == 404
            assert (await response.json())["ok"] is False


async def test_bytes_that_are_no_http_close_their_own_connection_only(run: Run) -> None:
    running = await run()
    session = await running.eve().create("hello")
    for raw in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"x" * 20_000,
    ):
        reader, writer = await asyncio.open_connection(HOST, running.port)
        writer.write(raw)
        writer.write_eof()
        async with asyncio.timeout(SOON_S):
            await reader.read()
        writer.close()
        await writer.wait_closed()
    assert (await session.read_turn()).text
