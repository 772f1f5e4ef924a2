"""The route of the control API that checks a backend as `dragoman check` does."""

from __future__ import annotations

from typing import Literal

from aiohttp import web

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.control.api import VERSION, ApiModel, Endpoint, administrator, json_response
from proxy.entry.keys import SESSIONS
from proxy.upstream.backend_check import CheckResult
from proxy.upstream.findings import Finding, Kind


class CheckFindingOut(ApiModel):
    """What was found of one thing: what is wrong and what to do, for people, and its `kind`, for
    programs."""

    state: Literal["ok", "failed", "not_asked", "unknown"]
    text: str
    kind: Kind | None


class BackendCheckOut(ApiModel):
    """What was found of a backend, in the form of `dragoman check --json`; `ok` says that nothing
    failed."""

    version: int = VERSION
    name: str
    url: str
    configured_dialect: str
    ok: bool
    reachable: CheckFindingOut
    credential: CheckFindingOut
    dialect: CheckFindingOut
    streaming: CheckFindingOut


async def check_backend(request: web.Request) -> web.StreamResponse:
    """Check whether a backend can be used; for administrators.

    It is asked what has no effect there, by one check at a time, which takes 10 seconds at most.
    What was found less than 5 seconds ago is not asked again.
    """
    administrator(request)
    backends, name = request.app[SESSIONS].backends, request.match_info["backend"]
    backend = backends.get(name)
    if backend is None:
        text = f"There is no backend `{name[:80]}`: name one of [[backends]]."
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    return json_response(_check_out(await backends.readiness.check(backend)))


def _check_out(found: CheckResult) -> BackendCheckOut:
    return BackendCheckOut(
        name=found.name,
        url=found.url,
        configured_dialect=found.dialect,
        ok=found.failed is None,
        reachable=_finding_out(found.reachable),
        credential=_finding_out(found.credential),
        dialect=_finding_out(found.speaks),
        streaming=_finding_out(found.streaming),
    )


def _finding_out(finding: Finding) -> CheckFindingOut:
    state = finding.state
    return CheckFindingOut(
        state="not_asked" if state == "not asked" else state, text=finding.text, kind=finding.kind
    )


ENDPOINTS = (Endpoint("GET", "/backends/{backend}/check", check_backend, BackendCheckOut),)
