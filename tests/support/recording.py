"""Waits for the thread that writes captures."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from proxy.recording.background import CaptureThread

_all: weakref.WeakSet[CaptureThread] = weakref.WeakSet()


@pytest.fixture
def backgrounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Know the threads that are begun meanwhile."""
    begin = CaptureThread.__init__

    def begun(self: CaptureThread) -> None:
        begin(self)
        _all.add(self)

    monkeypatch.setattr(CaptureThread, "__init__", begun)
    yield
    _all.clear()


def written() -> None:
    """Wait until all is written that was to be so far."""
    for one in [one for one in _all if one._thread is not None and one._thread.is_alive()]:
        done = threading.Event()
        one.put(None, done.set)
        assert done.wait(30)
