"""Proxies that bear the silence of a backend for a moment only, so that no test waits for it."""

from __future__ import annotations

import pytest

from proxy.upstream.client import Upstream

__all__ = ["HASTE", "impatient", "shorten"]

SILENCE_S = 0.3
"""Long enough for a machine that does much else."""
HASTE = 60 / (SILENCE_S * 1.8)
"""The speed of a clock with which two silences fit into the patience of a minute."""


def shorten(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Shorten those of the upstream client's limits."""
    defaults = Upstream.__init__.__kwdefaults__
    assert defaults is not None
    for name in names:
        monkeypatch.setitem(defaults, name, SILENCE_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bear the silence of a backend for a moment only."""
    shorten(monkeypatch, "answer_seconds", "silence_seconds")
