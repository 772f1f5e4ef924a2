"""Streams that are not read: an eve of a later version is refused, and nothing waits for it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from adapters.eve.client import EveClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Request, Response
from adapters.offline.recorded_inputs import BadInput
from adapters.offline.translate import TranslateOptions, make_source
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from tests.eve.test_client import Wire
from tests.support.each import each

FACTS = (
    b'{"at":"2026-10-28T10:00:00.000Z","facts":[{"type":"turn.started","scope":{"turnId":"t0"},'
    b'"data":{"turnId":"t0","cause":{"deliveryId":"d1"},"follows":null}}]}'
)
PROGRESS = b'{"progress":{"type":"content.delta","data":{"partId":"p1","delta":"Hi"}}}'

MESSAGE = cmd.SendMessage(content=(ev.Text(text="hi"),), policy="queue")

READ = "stream versions 16 to 26 are read"


def head(version: str) -> Response:
    return Response(200, CIMultiDict({"x-eve-stream-version": version}))


def busy() -> Wire:
    """A session in a turn."""
    wire = Wire("S2")
    wire.begin("hi")
    wire.in_turn("step.started", 0)
    wire.in_turn("message.appended", 0, messageDelta="Half an ans")
    return wire


def check_refused(wire: Wire, version: str) -> None:
    """Nothing of the session is under way, and the log names both versions."""
    (report,) = wire.of(ev.ErrorReported)
    assert report.code == "backend_protocol"
    assert f"version {version}; {READ}" in report.message
    (ended,) = wire.of(ev.TurnEnded)
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert (ended.error.code, ended.error.message) == (report.code, report.message)
    state = wire.normalizer.state
    assert (state.status, state.inputs, state.ended) == ("idle", {}, None)
    assert wire.codec.streams() == ()
    assert wire.codec.wake_at is None


@pytest.mark.parametrize("version", ["27", "28", "9999", "15", "27.1", "x", ""])
def test_a_stream_of_another_version_ends_the_turn_and_is_not_read(version: str) -> None:
    wire = busy()
    assert wire.codec.streams()
    wire.take(wire.codec.opened(wire.main, head(version), wire.now))
    check_refused(wire, version)
    events = len(wire.events)
    for line in (b'{"$eve":"heartbeat"}', FACTS, b'{"type":"turn.started","data":{}}', b"{"):
        wire.take(wire.codec.feed(wire.main, line, wire.now))
    assert len(wire.events) == events


@pytest.mark.parametrize("line", [FACTS, PROGRESS])
@pytest.mark.parametrize("label", ["26", "21", None])
def test_lines_of_version_27_are_not_read_under_another_label(
    line: bytes, label: str | None
) -> None:
    wire = busy()
    answer = Response(200) if label is None else head(label)
    wire.take(wire.codec.opened(wire.main, answer, wire.now))
    wire.take(wire.codec.feed(wire.main, b'{"$eve":"heartbeat"}', wire.now))
    wire.take(wire.codec.feed(wire.main, line, wire.now))
    check_refused(wire, "27")


def test_a_message_that_was_taken_is_a_turn_that_has_failed() -> None:
    wire = Wire("S2")
    wire.take(wire.codec.opened(wire.main, head("27"), wire.now))
    check_refused(wire, "27")
    assert [e.outcome for e in wire.of(ev.InputSettled)] == ["taken"]
    assert len(wire.of(ev.MessageReceived)) == 1


def test_nothing_is_said_into_a_session_whose_stream_is_not_read_not_after_a_restart_either() -> (
    None
):
    wire = busy()
    wire.take(wire.codec.opened(wire.main, head("27"), wire.now))
    again = EveClient({})
    again.restore(wire.codec.snapshot(), None)
    commands: list[cmd.AnyCommand] = [
        MESSAGE,
        cmd.Steer(text="x"),
        cmd.AnswerInteraction(request_id="A", decision="allow"),
        cmd.Interrupt(),
        cmd.Clear(),
        cmd.Reset(),
    ]
    for codec in (wire.codec, again):
        assert codec.streams() == ()
        for command in commands:
            with pytest.raises(NotSupported, match=f"version 27; {READ}") as caught:
                codec.check(command)
            assert caught.value.code == ErrorCode.BACKEND_PROTOCOL
            with pytest.raises(NotSupported):
                codec.submit("c", command)
        assert codec.recover("c", MESSAGE) is None
        # What is kept here does not concern the backend.
        codec.check(cmd.UpdateSession(title="A title"))


def test_a_session_is_read_again_by_a_release_that_reads_its_version() -> None:
    wire = busy()
    wire.take(wire.codec.opened(wire.main, head("27"), wire.now))
    wire.codec._s.foreign = "26"
    snapshot = wire.codec.snapshot()
    wire.codec = EveClient({})
    wire.codec.restore(snapshot, None)
    wire.command(MESSAGE)
    assert wire.codec.streams()


def test_a_child_of_another_version_ends_alone() -> None:
    wire = busy()
    called = {"callId": "call-K", "childSessionId": "wrun_2", "name": "researcher"}
    wire.in_turn("subagent.called", 0, **called)
    (started,) = wire.of(ev.ThreadStarted)
    child = Call("stream", Request("GET", "/"), stream=True, thread_id=started.thread_id)
    wire.take(wire.codec.opened(child, head("27"), wire.now))
    wire.take(wire.codec.feed(child, FACTS, wire.now))
    (report,) = wire.of(ev.ErrorReported)
    assert (report.thread_id, report.code) == (started.thread_id, "backend_protocol")
    assert [e.status for e in wire.of(ev.ThreadEnded)] == ["failed"]
    assert [call.thread_id for call in wire.codec.streams()] == [ev.MAIN]


# Before the first message.


class Asked:
    """A first message, up to the answer of a server that was asked which it is."""

    def __init__(self, settings: dict[str, Any], message: cmd.SendMessage = MESSAGE) -> None:
        self.codec = EveClient(settings)
        self.call = self.codec.submit("c", message)
        if self.call.name == "prewarm":
            made = {"ok": True, "sessionId": "wrun_9", "status": "accepted"}
            assert self.answer(202, made) == []
            (self.call,) = self.codec.take_calls()
        request = self.call.request
        assert (request.method, request.path) == ("GET", "/eve/v1/info")

    def answer(self, status: int, body: Any) -> list[ev.Event]:
        response = Response(status, CIMultiDict(), orjson.dumps(body))
        return self.codec.respond(self.call, response, 1_000)


WITH_CALLBACK = cmd.SendMessage(
    content=(ev.Text(text="hi"),),
    policy="queue",
    options={"callback": {"url": "https://a.example/x"}, "protocolVersion": 2},
)

WAYS = [({}, MESSAGE), ({"session_id": "wrun_9"}, MESSAGE), ({}, WITH_CALLBACK)]
"""Into a session that is made for it, into one that is there, and with what makes one."""


@pytest.mark.parametrize(("settings", "message"), WAYS)
def test_the_first_message_is_not_posted_to_a_server_that_is_not_read(
    settings: dict[str, Any], message: cmd.SendMessage
) -> None:
    asked = Asked(settings, message)
    (settled,) = asked.answer(200, {"kind": "eve-agent-info", "version": 6})
    assert isinstance(settled, ev.InputSettled)
    assert (settled.command_id, settled.outcome) == ("c", "refused")
    assert settled.reason is not None
    assert "version 27 or later" in settled.reason
    assert READ in settled.reason
    assert settled.error is not None
    assert settled.error.code == "backend_protocol"
    assert asked.codec.take_calls() == []
    assert asked.codec.streams() == ()
    # The next one is asked about again.
    Asked(settings, message)


@each(("settings", "message"), WAYS)
@each(
    ("status", "body"),
    [(200, {"version": 5}), (200, {"version": 1}), (200, {"version": "6"}), (200, []), (401, {})],
)
def test_the_first_message_is_posted_unless_the_server_is_known_not_to_be_read(
    settings: dict[str, Any], message: cmd.SendMessage, status: int, body: Any
) -> None:
    asked = Asked(settings, message)
    assert asked.answer(status, body) == []
    (post,) = asked.codec.take_calls()
    assert post.name == ("create" if message is WITH_CALLBACK else "message")
    assert orjson.loads(post.request.body or b"")["message"] == "hi"
    assert asked.codec.take_calls() == []


@pytest.mark.parametrize(("settings", "message"), WAYS)
@pytest.mark.parametrize("sent", [True, False])
def test_a_server_that_does_not_say_which_it_is_gets_the_message(
    settings: dict[str, Any], message: cmd.SendMessage, sent: bool
) -> None:
    asked = Asked(settings, message)
    error = DragomanError("Away.", code=ErrorCode.BACKEND_TIMEOUT)
    assert asked.codec.failed(asked.call, error, sent=sent, now=1_000) == []
    (post,) = asked.codec.take_calls()
    assert orjson.loads(post.request.body or b"")["message"] == "hi"


@pytest.mark.parametrize(("settings", "message"), WAYS)
def test_a_server_is_asked_again_after_a_restart(
    settings: dict[str, Any], message: cmd.SendMessage
) -> None:
    asked = Asked(settings, message)
    again = EveClient(settings)
    again.restore(asked.codec.snapshot(), None)
    call = again.recover("c", message)
    if call is None:
        # It is sought on the stream, which begins with what is sent now.
        assert again.streams()
        (call,) = again.take_calls()
    assert (call.name, call.request.path) == ("info", "/eve/v1/info")
    assert again.take_calls() == []


def test_a_stream_of_another_version_lets_no_message_go_that_still_waits() -> None:
    asked = Asked({})
    (stream,) = asked.codec.streams()
    events = asked.codec.opened(stream, head("27"), 1_000)
    assert [e.outcome for e in events if isinstance(e, ev.InputSettled)] == ["refused"]
    assert asked.answer(404, {}) == []
    assert asked.codec.take_calls() == []


# Recorded bodies.


def test_a_recorded_stream_of_version_27_is_an_error_that_names_it() -> None:
    body = Path(__file__).with_name("version-27.ndjson").read_bytes()
    source = make_source("eve", TranslateOptions(strict=True))
    entries = itertools.chain(source.feed(body), source.close())
    with pytest.raises(BadInput, match=f"stream version 27; {READ}"):
        list(entries)
