"""What the operator is told of a session: in the log of the process, by its ids and never by its
contents."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from adapters.model import events as ev
from adapters.model.base import Call, ClientCodec, Response
from adapters.model.raw import refusal_of
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base import traces
from proxy.base.errors import (
    UpstreamDenied,
    UpstreamError,
    UpstreamRejected,
    UpstreamUnavailable,
)
from proxy.base.metrics import TurnCounts, count_message, expect_messages
from proxy.base.outcomes import FAILURES
from proxy.base.rows import BackendBinding
from proxy.session.core import SessionCore
from proxy.session.messages import MessageResult
from proxy.upstream.client import Upstream
from proxy.upstream.health import Trouble

_FOR_NOW = (401, 402, 403, 408, 425, 429)
"""Refusals that speak of who asks, or of the moment, and not of what was asked for."""

_log = logging.getLogger(__name__)


class TurnObserver(TurnCounts):
    """Counts the turns and messages of one session, and tells of those that fail."""

    __slots__ = ("_core",)

    def __init__(self, core: SessionCore) -> None:
        super().__init__()
        self._core = core
        self.rebind()

    def rebind(self) -> None:
        """Show how messages to the backend of the session's newest part may end."""
        expect_messages(self._core.row.route, self._core.leg.backend)

    def conclude(self, messages: Iterable[MessageResult]) -> None:
        """Hear of messages that are over, once that is stored: what is not stored happens again."""
        row, backend = self._core.row, self._core.leg.backend
        for _, face, outcome, code, trace in messages:
            count_message(row.route, backend, outcome, code)
            self._core.upstream.concluded(outcome, code)
            _log.log(
                logging.WARNING if outcome in FAILURES else logging.DEBUG,
                "session `%s`: a message to backend `%s` ended as %s: %s",
                *(row.id, backend, outcome, code),
                extra={
                    "session": row.id,
                    "owner": row.owner,
                    "face": face,
                    "route": row.route,
                    "backend": backend,
                    "outcome": str(outcome),
                    "code": str(code),
                    "kind": f"message_{outcome}",
                    **_of(trace),
                },
            )

    def tell(self, event: ev.TurnEnded, trace: str | None) -> None:
        """Tell of a turn that failed; `trace` is the `traceparent` of its message."""
        if event.outcome == "failed" and event.thread_id == ev.MAIN:
            # Its words may quote what was said.
            code = "no reason was given" if event.error is None else event.error.code
            _log.warning(
                "session `%s`: a turn of backend `%s` failed: %s",
                *(self._core.row.id, self._core.leg.backend, code),
                extra={
                    "session": self._core.row.id,
                    "backend": self._core.leg.backend,
                    "kind": "turn_failed",
                    **_of(trace),
                },
            )


def _of(trace: str | None) -> dict[str, str]:
    """Return what a line says of a `traceparent`."""
    return {} if trace is None else {"trace": traces.trace_id(trace)}


def judge(
    upstream: Upstream, codec: ClientCodec, call: Call, answer: Response, heard: Iterable[ev.Event]
) -> None:
    """Tell of an answer that refuses our credential, or that has no form which the dialect knows;
    `heard` is what the codec made of it."""
    status = answer.status
    if codec.refuses_credential(answer):
        upstream.trouble(Trouble.CREDENTIAL, f"it answers `{call.name}` with {status}")
        return
    # A page with 200 is what a login in front answers.
    foreign = ErrorCode.BACKEND_PROTOCOL if status < 300 else f"http_{status}"
    if status < 500 and any(_code_of(event) == foreign for event in heard):
        why = f"it answers `{call.name}` with {status}, in a form that is not its dialect's"
        upstream.trouble(Trouble.DIALECT, why)


def judge_head(upstream: Upstream, heard: Iterable[ev.Event]) -> None:
    """Tell of a stream whose version is not read; `heard` is what the codec made of its head."""
    for event in heard:
        if isinstance(event, ev.ErrorReported) and event.code == ErrorCode.BACKEND_PROTOCOL:
            upstream.trouble(Trouble.DIALECT, event.message)


def no_stream(codec: ClientCodec, answer: Response) -> UpstreamError:
    """Return why a stream cannot be had, by the answer that came in its place."""
    if codec.refuses_credential(answer):
        return UpstreamRejected(refusal_of(answer), status=answer.status)
    text = f"The backend answered {answer.status} where a stream was asked for."
    if 400 <= answer.status < 500 and answer.status not in _FOR_NOW:
        return UpstreamDenied(text)
    return UpstreamUnavailable(text, sent=True)


def denies(answer: Response) -> bool:
    """Say whether an answer may mean that the backend does not know what it is asked for: that is
    evidence, as silence is."""
    return answer.status in (404, 409, 410)


def nothing_new(because: UpstreamError | None) -> UpstreamError:
    """Return why a stream is given up that opens and tells nothing new; `because` is what broke it
    before, which is not the newest reason: the backend has forgotten what it was asked for."""
    if because is None:
        text = "The backend's stream ends without anything new."
        return UpstreamUnavailable(text, sent=True)
    text = "The backend answers again, but tells nothing new. Before that:"
    whole, shown = f"{text} {because.whole}", f"{text} {because.message}"
    return UpstreamUnavailable(whole, sent=True, shown=shown)


def away(error: DragomanError) -> ev.Event:
    """Return what is told of a stream that is wanted and cannot be had for some time."""
    return ev.ErrorReported(
        thread_id=ev.MAIN,
        code=str(error.code),
        message=error.message,
        quote=error.quote,
        retry="retrying",
        synthetic=True,
    )


def given_up(name: str, leg: BackendBinding, error: DragomanError) -> None:
    """Tell that a session's turn is ended here, whatever its backend says."""
    _log.warning(
        "session `%s`: what runs at backend `%s` is given up: %s",
        *(name, leg.backend, error.whole),
        extra={"session": name, "backend": leg.backend, "kind": "settled"},
    )


def _code_of(event: ev.Event) -> str | None:
    """Return the code of the refusal that an event tells of."""
    if isinstance(event, ev.InputSettled):
        return None if event.error is None else event.error.code
    return event.code if isinstance(event, ev.ErrorReported) else None
