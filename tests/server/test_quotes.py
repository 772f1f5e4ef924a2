"""What a backend writes of its own failure is for who runs this: no frontend gets it, in any
dialect."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import Fault, Faults, Status
from tests.server.test_message_outcomes import CREATES, ended
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.support.serving import served
from tests.support.waiting import SOON_S, until

SECRETS = ("postgres://user:pw-1@10.1.2.3/db", "<html>", "gateway-7.internal")

BODIES = {
    "a failure in the dialect's form": json.dumps(
        {"error": "E_DB", "code": "E_DB", "message": SECRETS[0], "details": {"at": SECRETS[2]}}
    ).encode(),
    "a page of a gateway": f"<html>{SECRETS[2]} could not reach {SECRETS[0]}".encode(),
}

KEYS = (key_of("ann"), key_of("root", admin=True))


class Failing(Faults):
    """Answers all that would begin a session with a status and a body."""

    def __init__(self, route: str, status: Status) -> None:
        super().__init__()
        self._route, self._status = route, status

    def take(self, route: str, *, stream: bool, talk: str = "") -> Fault | None:
        fault = super().take(route, stream=stream, talk=talk)
        return self._status if route == self._route else fault


async def shown(dragoman: Proxied, route: str) -> list[tuple[str, str]]:
    """Say something by each face, and return the sessions and all that each was answered."""
    session = await dragoman.say("hello", route=route, key="k-ann")
    await until(lambda: sum(ended(route).values()) == 1)
    eve = f"/as/eve/to/{route}/eve/v1/session/{session}/stream?follow=0"
    herm = f"/as/herm/to/{route}/v1/sessions/{session}"
    engine = f"/as/engine/to/{route}"
    run: dict[str, Any] = {
        "threadId": str(uuid.uuid4()),
        "runId": "r-1",
        "messages": [{"id": "m-1", "role": "user", "content": "hello"}],
        **{"tools": [], "context": [], "state": {}, "forwardedProps": {}},
    }
    part = {"type": "text", "text": "hello"}
    chat = {
        "id": str(uuid.uuid4()),
        "trigger": "submit-message",
        "messages": [{"id": "m-1", "role": "user", "parts": [part]}],
    }
    asked = [
        ("GET", eve, None),
        ("GET", f"{herm}/events", None),
        ("GET", herm, None),
        ("POST", f"{engine}/execute", {"task_id": f"t-{uuid.uuid4()}", "message": "hello"}),
        ("POST", f"/as/agui/to/{route}", run),
        ("POST", f"/as/aisdk/to/{route}/api/chat", chat),
    ]
    answers = []
    for method, path, body in asked:
        async with asyncio.timeout(SOON_S):
            status, answer = await dragoman.request(method, path, key="k-ann", json=body)
        answers.append((f"{method} {path}: {status}", json.dumps(answer)))
    return [(session, ""), *answers]


# An Engine may have taken what it answers with 500, or a gateway before it with 502.
@pytest.mark.parametrize(("what", "status"), [*zip(BODIES, (502, 503), strict=True)])
@pytest.mark.parametrize("dialect", CREATES)
async def test_what_a_backend_writes_of_its_failure_is_shown_to_administrators_only(
    dialect: str, what: str, status: int
) -> None:
    name = f"quarry-{uuid.uuid4()}"
    faults = Failing(CREATES[dialect], Status(status, body=BODIES[what]))
    app = BACKENDS[dialect](ScriptedOptions(key=BACKEND_KEY, pace=0.0, faults=faults))
    async with (
        served(app) as url,
        proxied(backends=[backend_settings(name, dialect, url)], keys=KEYS) as dragoman,
    ):
        (session, _), *answers = await shown(dragoman, name)
        assert len(answers) == 6
        for place, answer in answers:
            assert not [one for one in SECRETS if one in answer], place
        # They do say what failed.
        assert [place for place, answer in answers if f"Backend `{name}`" in answer]

        path = f"/api/v1/sessions/{session}/events?follow=0"
        _, events = await dragoman.request("GET", path, key="k-ann")
        assert not [one for one in SECRETS if one in events]
        _, events = await dragoman.request("GET", path, key="k-root")
        quotes = [
            event["error"]["quote"]
            for event in map(json.loads, filter(None, events.splitlines()))
            if (event.get("error") or {}).get("quote")
        ]
        assert all(one in "".join(quotes) for one in (SECRETS[0], SECRETS[2])), quotes
