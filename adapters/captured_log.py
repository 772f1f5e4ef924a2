"""The canonical log of a capture: its own where it has one, else what its bodies say.

A client opens many streams in one conversation, and reads some of it twice. The dialect says what
of a body is new (`adapters.capture.dialect`), so each record counts once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from adapters import commands as cmd
from adapters import events as ev
from adapters.capture import BadCapture, Capture, Exchange
from adapters.errors import NotSupported
from adapters.recorded_inputs import BadInput, read_inputs
from adapters.registry import DIALECTS
from adapters.translate import Options, make_source

__all__ = ["Reading", "log_of"]


@dataclasses.dataclass(slots=True)
class Reading:
    """A log, and what of the capture it does not hold, in words."""

    log: list[ev.Entry]
    notes: list[str] = dataclasses.field(default_factory=list)


def log_of(capture: Capture, dialect: str | None = None) -> Reading:
    """Return the log of a capture. `dialect` is that of its bodies, where its head names none.

    Raises:
        BadCapture: nothing says which dialect it is of.
        NotSupported: the dialect cannot be read.
    """
    notes = [f"it was cut off: {capture.cut}"] if capture.cut else []
    if capture.log:
        return Reading(list(capture.log), notes)
    dialect = dialect or capture.head.dialect
    if dialect is None:
        raise BadCapture(
            "it does not say which dialect it is of: name it with --from", name=capture.name
        )
    captured = DIALECTS[dialect].captured
    if captured is None:
        raise NotSupported(f"Captures of `{dialect}` cannot be read yet.")
    exchanges = capture.of_side("backend") or capture.of_side("frontend")
    inputs = list(_inputs(exchanges, notes))
    options = Options(session_id=capture.head.session, inputs=inputs)
    source = make_source(dialect, options)
    entries: list[ev.Entry] = []
    for body in captured.new(_streams(exchanges, captured.media), notes):
        entries += source.feed(body)
    entries += source.close()
    if source.inputs_left:
        notes.append(f"{source.inputs_left} requests have no place in what was answered")
    return Reading(entries, notes)


def _inputs(exchanges: Sequence[Exchange], notes: list[str]) -> Iterator[cmd.AnyCommand]:
    """Yield what the requests said; of those that were refused nothing counts."""
    for exchange in exchanges:
        response = exchange.response
        if exchange.request.method == "GET" or not exchange.sent:
            continue
        if response is None or response.status >= 300:
            notes.append(f"exchange {exchange.request.exchange} was not accepted")
            continue
        try:
            yield from read_inputs(exchange.body)
        except BadInput:
            # A control, or what makes an empty session: its effect is in the answers.
            continue


def _streams(exchanges: Sequence[Exchange], media: str) -> list[Exchange]:
    return [one for one in exchanges if _media_of(one) == media]


def _media_of(exchange: Exchange) -> str | None:
    """Return the media type of an answer, None of a refusal."""
    response = exchange.response
    if response is None or response.status >= 300:
        return None
    media = next((v for name, v in response.headers if name.lower() == "content-type"), "")
    return media.partition(";")[0].strip().lower()
