"""What the operator is told of a session: by ids and codes, never by what was said."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.engine.client import EngineClient
from adapters.model import events as ev
from adapters.model.base import Call, ClientCodec, Request, Response
from adapters.wire.errors import ErrorCode
from proxy.base.errors import UpstreamRejected, UpstreamUnavailable
from proxy.base.traces import trace_id
from proxy.session.notices import TurnObserver, judge, judge_head, no_stream
from proxy.upstream.health import Trouble

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

CALL = Call("execute", Request("POST", "/execute"))


class Upstream:
    """Notes the trouble that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Trouble, str]] = []

    def trouble(self, kind: Trouble, why: str) -> None:
        self.told.append((kind, why))


def leg(backend: str) -> Any:
    return SimpleNamespace(backend=backend)


def ended(
    thread_id: str = ev.MAIN, outcome: Any = "failed", code: str | None = "x"
) -> ev.TurnEnded:
    error = None if code is None else ev.ErrorInfo(code=code, message="the words of a backend")
    return ev.TurnEnded(thread_id=thread_id, turn_id="t", outcome=outcome, error=error)


def test_a_turn_that_failed_is_told_by_its_code_and_the_backend_that_it_was_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row: Any = SimpleNamespace(id="dgs_1", owner="me", route="r")
    upstream: Any = Upstream()
    core: Any = SimpleNamespace(row=row, leg=leg("old"), upstream=upstream)
    observer = TurnObserver(core)
    for event in (
        ended(),
        ended("child-1"),
        ended(outcome="completed"),
        ended(code=None),
    ):
        observer.tell(event, TRACE)
    core.leg = leg("new")
    observer.rebind()
    observer.tell(ended(), None)
    assert [one.getMessage() for one in caplog.records] == [
        "session `dgs_1`: a turn of backend `old` failed: x",
        "session `dgs_1`: a turn of backend `old` failed: no reason was given",
        "session `dgs_1`: a turn of backend `new` failed: x",
    ]
    assert {one.levelno for one in caplog.records} == {logging.WARNING}
    found = [one.__dict__.get("trace") for one in caplog.records]
    assert found == [trace_id(TRACE), trace_id(TRACE), None]


def refused(status: int, body: bytes) -> tuple[Any, list[ev.Event], Response]:
    """An Engine's codec, what it makes of an answer to a message, and the answer."""
    codec = EngineClient({"task_id": "t"})
    error = ev.ErrorInfo(code=f"http_{status}", message="m")
    settled = ev.InputSettled(
        thread_id=ev.MAIN, command_id="c", outcome="refused", error=error, synthetic=True
    )
    return codec, [settled], Response(status, body=body)


@pytest.mark.parametrize(
    ("status", "kinds"), [(404, [Trouble.DIALECT]), (401, [Trouble.CREDENTIAL]), (503, [])]
)
def test_an_answer_shows_a_wrong_dialect_or_credential(status: int, kinds: list[Trouble]) -> None:
    codec, heard, answer = refused(status, b"<html>")
    upstream: Any = Upstream()
    judge(upstream, codec, CALL, answer, heard)
    assert [kind for kind, _ in upstream.told] == kinds
    assert all(f"`execute` with {status}" in why for _, why in upstream.told)


def test_a_refusal_in_the_dialects_own_form_shows_nothing() -> None:
    codec, _, answer = refused(404, b"{}")
    upstream: Any = Upstream()
    error = ev.ErrorInfo(code="TASK_NOT_FOUND", message="m")
    said = ev.InputSettled(thread_id=ev.MAIN, command_id="c", outcome="refused", error=error)
    judge(upstream, codec, CALL, answer, [said])
    assert upstream.told == []


def test_a_stream_of_a_version_that_is_not_read_is_told() -> None:
    upstream: Any = Upstream()
    report = ev.ErrorReported(thread_id=ev.MAIN, code=ErrorCode.BACKEND_PROTOCOL, message="v 99")
    judge_head(upstream, [report])
    assert upstream.told == [(Trouble.DIALECT, "v 99")]
    other = ev.ErrorReported(thread_id=ev.MAIN, code="other", message="m")
    judge_head(upstream, [other])
    assert len(upstream.told) == 1


def test_a_stream_that_is_refused_says_whether_it_was_the_credential() -> None:
    codec: Any = ClientCodec
    refused = no_stream(codec, Response(401, backend="quarry"))
    assert isinstance(refused, UpstreamRejected)
    assert refused.message == "Backend `quarry` refused the proxy's credential."
    other = no_stream(codec, Response(404))
    assert isinstance(other, UpstreamUnavailable)
    assert other.message == "The backend answered 404 where a stream was asked for."
