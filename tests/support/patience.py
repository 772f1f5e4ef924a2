"""Proxies that bear the silence of a backend for a moment only, so that no test waits for it."""

from __future__ import annotations

import copy
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from adapters.model.base import Call, Response
from proxy.scripted.faults import Silence, Stall, WrongContentType
from proxy.upstream.client import BackendStream, Upstream
from tests.support.dragoman import SCRIPTED

__all__ = ["HASTE", "impatient", "shorten"]

SILENCE_S = 0.3
HASTE = 60 / (SILENCE_S * 1.8)
"""The speed of a clock with which two silences fit into the patience of a minute."""

ROUTES = {
    **{"events": "post", "prewarm": "create", "answer": "message"},
    **{"session": "show", "terminated": "show"},
}
"""The routes of scripted backends that calls go to, where they have another name."""


def shorten(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Shorten those of the upstream client's limits."""
    defaults = Upstream.__init__.__kwdefaults__
    assert defaults is not None
    for name in names:
        monkeypatch.setitem(defaults, name, SILENCE_S)


def waits_for_ever(upstream: Upstream, call: Call) -> bool:
    """Whether a scripted backend is going to be silent at a call that is about to leave."""
    backend = SCRIPTED.get(upstream._address.base)
    if backend is None:
        return False
    # Some calls are numbered: `list 3`.
    name = call.name.partition(" ")[0]
    route = ROUTES.get(name, name)
    match backend.faults.plan.get((route, backend.faults.requests[route] + 1)):
        case Silence() | Stall(seconds=None):
            return True
        case WrongContentType():
            # A stream with the content type of an answer is read as one, and its end never comes.
            return call.stream
        case _:
            return False


def hasty(upstream: Upstream, call: Call) -> Upstream:
    """The upstream client that bears silence for a moment only, where a fault makes it wait."""
    if not waits_for_ever(upstream, call):
        return upstream
    hasty = copy.copy(upstream)
    hasty.answer_seconds = hasty.silence_seconds = SILENCE_S
    return hasty


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bear the silence of a backend for a moment only, where a fault makes it silent.

    A machine that does much else may hold up an answer for longer than a moment; no test may take
    that for the silence of a backend.
    """
    do, stream = Upstream.call, Upstream.stream

    async def hasty_call(self: Upstream, call: Call, *rest: Any) -> Response:
        return await do(hasty(self, call), call, *rest)

    def hasty_stream(
        self: Upstream, call: Call, framing: str, *rest: Any
    ) -> AbstractAsyncContextManager[BackendStream | Response]:
        return stream(hasty(self, call), call, framing, *rest)

    monkeypatch.setattr(Upstream, "call", hasty_call)
    monkeypatch.setattr(Upstream, "stream", hasty_stream)
