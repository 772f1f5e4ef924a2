"""How long a stream of a backend may be silent: what its table says, else its dialect."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from adapters.registry import DIALECTS
from proxy.base.clock import SeededIds
from proxy.config.settings import Settings
from proxy.sessions.backends import Backends


@pytest.mark.parametrize(("told", "silence"), [({}, 7.0), ({"silence_seconds": 900.0}, 900.0)])
def test_a_stream_may_be_silent_as_long_as_its_backend_says_or_else_its_dialect(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], silence: float
) -> None:
    patient = dataclasses.replace(DIALECTS["engine"], silence_seconds=7.0)
    monkeypatch.setitem(DIALECTS, "engine", patient)
    table = {"name": "e", "dialect": "engine", "url": "http://127.0.0.1:1", "settings": told}
    settings = Settings.model_validate({"backends": [table]})
    # Nothing is asked: it makes no connection.
    backends = Backends(settings, object(), SeededIds(1))  # type: ignore[arg-type]
    assert backends.upstream(settings.backends[0]).silence_seconds == silence
