"""What a backend says of a request that it refuses is shown to people: cut, whatever its size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from multidict import CIMultiDict

from adapters.engine.client import refusal as engine
from adapters.eve.client import refusal as eve
from adapters.herm.client import refusal as herm
from adapters.model import events as ev
from adapters.model.base import Response
from adapters.wire.errors import CODE_LIMIT, DETAILS_LIMIT, MESSAGE_LIMIT
from tests.support.each import each

Refusal = Callable[[Response], ev.ErrorInfo]
LONG = "no \u2028" * 100_000
BODIES: tuple[Any, ...] = (
    {"error": LONG, "code": LONG, "message": LONG, "details": {"why": LONG}, "violations": [LONG]},
    {"error": {"code": LONG, "message": LONG}},
    {"code": LONG, "message": LONG},
    LONG,
    [LONG],
)


@each("body", BODIES, ids=["flat", "nested", "plain", "text", "list"])
@each("refusal", [engine, eve, herm], ids=["engine", "eve", "herm"])
def test_a_long_refusal_is_cut(refusal: Refusal, body: Any) -> None:
    error = refusal(Response(400, CIMultiDict(), json.dumps(body).encode()))
    assert len(error.code) <= CODE_LIMIT + 1
    assert len(error.message) <= MESSAGE_LIMIT + 1
    assert error.details is None


def test_a_short_refusal_is_whole() -> None:
    details = {"why": "x" * (DETAILS_LIMIT - 100)}
    body = {"error": "no", "message": "m" * MESSAGE_LIMIT, "details": details}
    error = engine(Response(400, CIMultiDict(), json.dumps(body).encode()))
    assert error == ev.ErrorInfo(
        code="no", message="m" * MESSAGE_LIMIT, details=details, status=400
    )
