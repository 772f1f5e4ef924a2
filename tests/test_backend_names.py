"""Whatever a backend calls its sessions, children and callbacks, its names stay names.

No call of a codec has another path than the one that was meant, and what a codec could still be
made to ask for, such as by a snapshot of an earlier release, is not sent.
"""

from __future__ import annotations

import json
from urllib.parse import quote

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from adapters.eve import requests
from adapters.eve.client import EveClient
from adapters.herm.client import HermClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Request, Response
from adapters.wire.framing.sse import SseFrame
from adapters.wire.url_paths import is_header_value, is_segment, path_of, segments_of
from proxy.base.errors import UpstreamUnavailable
from proxy.upstream.client import Upstream
from tests.eve.test_client import Wire
from tests.eve.test_server import encoder, entries, frames
from tests.eve.test_server import said as conversation
from tests.herm.test_client import NOW, SESSION, STREAM, Driver, said
from tests.support.each import each
from tests.support.names import HOSTILE, NAMES
from tests.support.origin import head, serve_origin

SECRET = b"s" * 32


def encodable(name: str) -> bool:
    """JSON has no lone surrogates that anybody reads."""
    return not any("\ud800" <= sign <= "\udfff" for sign in name)


TOLD = NAMES.filter(encodable)
"""Names that can come in JSON."""


def paths(calls: list[Call] | tuple[Call, ...]) -> list[tuple[str, ...] | None]:
    return [segments_of(call.request.path) for call in calls]


@given(TOLD)
def test_an_eve_session_is_asked_for_by_its_name_or_not_at_all(name: str) -> None:
    codec = EveClient({})
    create = codec.submit("k", cmd.SendMessage(content=(ev.Text(text="hi"),), policy="queue"))
    if create.name == "prewarm":
        codec.respond(create, Response(400, CIMultiDict(), b'{"error":"Missing"}'), 0)
        (create,) = codec.take_calls()
    told = orjson.dumps({"ok": True, "sessionId": name, "status": "accepted"})
    events = codec.respond(create, Response(202, CIMultiDict(), told), 0)
    if not is_segment(name):
        assert codec.native_id is None
        assert codec.streams() == ()
        assert [event.outcome for event in events if isinstance(event, ev.InputSettled)] == [
            "refused"
        ]
        return
    assert paths(codec.streams()) == [("eve", "v1", "session", name, "stream")]
    again = codec.submit("m", cmd.Interrupt())
    assert paths([again]) == [("eve", "v1", "session", name, "cancel")]


@given(TOLD, TOLD | TOLD.map(lambda path: f"/eve/v1/session/{path}/stream"), st.booleans())
def test_a_childs_stream_is_asked_for_at_a_path_of_segments_below_the_backend(
    name: str, path: str, task: bool
) -> None:
    wire = Wire("S2" if task else "T")
    wire.begin("hi")
    if task:
        asked = {"callId": "c", "taskId": "r-1", "name": "r", "turnId": "turn_0"}
        wire.say("task.started", kind="agent", **asked)
        wire.say("agent.started", sessionId=name, streamPath=path, **asked)
    else:
        wire.in_turn("subagent.called", childSessionId=name, childStreamPath=path, callId="c")
    children = [call for call in wire.codec.streams() if call.thread_id != ev.MAIN]
    if not is_segment(name):
        assert children == []
        return
    (found,) = paths(children)
    assert found == (segments_of(path) or ("eve", "v1", "session", name, "stream"))
    assert all(map(is_segment, found))


@given(TOLD)
def test_a_herm_session_is_asked_for_by_its_name_or_not_at_all(name: str) -> None:
    driver = Driver()
    create = driver.submit("k1", said("Hello"))
    driver.answer(create, 201, {**SESSION, "id": name})
    if not is_segment(name):
        assert driver.codec.native_id is None
        assert driver.codec.streams() == ()
        return
    session = ("v1", "sessions", name)
    assert paths(driver.codec.streams()) == [(*session, "events", "stream")]
    for command, path in (
        (cmd.Archive(), (*session, "archive")),
        (cmd.Delete(), session),
        (cmd.Interrupt(), (*session, "events")),
    ):
        assert paths([driver.codec.submit("k", command)]) == [path]


@given(TOLD)
def test_a_herms_stream_is_asked_for_from_the_last_id_that_a_header_can_carry(id_: str) -> None:
    driver = Driver()
    driver.open()
    known = driver.envelope("session.status_idle")
    driver.feed_envelope(known)
    # By the line of its frame, which an envelope without an id has, and by its own.
    lone = driver.envelope("session.status_running", id="-")
    frame = SseFrame("session.status_running", json.dumps(lone).encode(), id_)
    driver.take(driver.codec.feed(STREAM, frame, NOW))
    own = driver.envelope("session.status_idle", id=id_)
    frame = SseFrame("session.status_idle", json.dumps(own).encode(), None)
    driver.take(driver.codec.feed(STREAM, frame, NOW))
    driver.codec.restore(driver.codec.snapshot(), driver.codec.position)
    (stream,) = driver.codec.streams()
    sent = stream.request.headers["Last-Event-ID"]
    assert sent == (id_ if id_ and is_header_value(id_) else known["id"])


@given(TOLD)
def test_where_a_childs_stream_is_shown_is_a_path_of_the_segments_that_were_meant(
    child: str,
) -> None:
    started = ev.ThreadStarted(
        thread_id=child or "x", parent=ev.MAIN, name="r", kind="agent", call_id="c", task_id="r-1"
    )
    log = entries([*conversation("t1"), started])
    (path,) = (
        record["data"]["streamPath"]
        for frame in frames(encoder("newest"), log)
        if "streamPath" in (record := json.loads(frame.data))["data"]
    )
    assert path == path_of("/eve/v1/session", child or "x", "stream")
    assert path.isascii()
    assert path.count("/") == 5


@given(NAMES)
def test_a_herms_agent_is_one_segment_or_is_never_asked(agent: str) -> None:
    codec = HermClient({"agent": agent, "task_id": "s"})
    call = codec.submit("k1", said("Hello"))
    fits = ("v1", "agents", agent, "sessions") if is_segment(agent) else None
    assert segments_of(call.request.path) == fits


@given(TOLD, TOLD)
def test_a_webhook_of_a_backend_leads_to_a_callback_of_a_connection_only(
    name: str, token: str
) -> None:
    for address in (
        f"http://127.0.0.1:1/eve/v1/connections/{name}/callback/{token}",
        f"http://127.0.0.1:1/eve/v1/connections/{quote(name, '')}/callback/7/{quote(token, '')}",
        name + token,
    ):
        path = requests.callback_path(address)
        if path is not None:
            found = segments_of(path)
            assert found is not None
            assert "connections" in found[-5:-3]
            assert "callback" in found[-3:-1]


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/eve/v1/connections/../../admin",
        "http://127.0.0.1/eve/v1/connections/x/callback/../../../../admin",
        "http://127.0.0.1/eve/v1/connections/%2e%2e/callback/%2e%2e/session",
        "http://127.0.0.1/eve/v1/session",
        "http://[/connections/x/callback/t",
        "",
    ],
)
def test_a_webhook_that_is_no_callback_is_not_followed(address: str) -> None:
    assert requests.callback_path(address) is None


@given(TOLD, TOLD)
def test_addresses_in_eve_records_have_the_segments_that_were_meant(
    name: str, request: str
) -> None:
    path = requests.webhook_path(SECRET, "dgs_1", name, request, None)
    token = requests.webhook_token(SECRET, "dgs_1", request)
    meant = ("eve", "v1", "connections", name, "callback", token)
    assert path.isascii()
    assert path.count("/") == len(meant)
    assert segments_of(path) == (meant if is_segment(name) else None)


@given(TOLD)
def test_a_session_id_in_a_header_of_eve_has_no_control_character(name: str) -> None:
    for headers in (
        requests.stream_headers("all", name, 1),
        requests.create_answer("all", name).headers,
        requests.follow_up_answer("all", name, delivery_id="d").headers,
        requests.control_answer("cancel", "tokens", name).headers,
    ):
        assert all(map(is_header_value, headers.values()))


@each(
    "path",
    [
        *(f"/v1/sessions/{quote(name, '', errors='surrogatepass')}/x" for name in HOSTILE),
        "/v1/../admin",
        "/v1\\..\\admin",
        "/v1/x?admin=1",
        "/v1/x#y",
        "/v1//x",
        "@127.0.0.2/x",
        ".example/x",
        "x",
        "/",
        "/v1/a\r\nb",
    ],
)
async def test_a_path_that_could_lead_elsewhere_is_never_sent(path: str) -> None:
    async with serve_origin() as origin, aiohttp.ClientSession() as http:
        origin.answers = [head("200 OK", "Content-Length: 0")]
        upstream = Upstream(http, origin.url, {"X-Engine-Key": "k"})
        with pytest.raises(UpstreamUnavailable) as refused:
            await upstream.call(Call("x", Request("GET", path)))
        assert not refused.value.sent
        assert origin.connections == 0
