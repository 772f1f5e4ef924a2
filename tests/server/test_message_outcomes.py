"""How messages end, as an operator sees it: each is counted and told once, and a backend that does
not do its work is not up."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from proxy.base import metrics
from proxy.base.outcomes import FAILURES, Code
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import Fault, Faults, Status
from proxy.session.snapshots import SNAPSHOT_ENTRIES
from proxy.upstream import readiness
from proxy.upstream.health import FAILED_MOST
from tests.faults.backends import BACKENDS as KINDS
from tests.pairs.backends import properties_of
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.proxied import Proxied, proxied
from tests.support.serving import served
from tests.support.waiting import until
from tests.test_metrics import number, run
from tests.wire import given_messages

__all__ = ["run"]

CREATES = {kind.dialect: kind.faulty.create for kind in KINDS}
"""The route of the first message of a session, as each scripted backend calls it."""

MANY = 12


class Refusing(Faults):
    """Refuses what begins a session for as long as it is told to."""

    def __init__(self, route: str, status: int) -> None:
        super().__init__()
        self.refuses = True
        self._route = route
        self._status = status

    def take(self, route: str, *, stream: bool, talk: str = "") -> Fault | None:
        fault = super().take(route, stream=stream, talk=talk)
        return Status(self._status) if self.refuses and route == self._route else fault


def ended(backend: str) -> Counter[tuple[str, str]]:
    """How often messages of a backend ended so far, by outcome and code, over all its routes."""
    found: Counter[tuple[str, str]] = Counter()
    for family in metrics.REGISTRY.collect():
        for sample in family.samples:
            labels = sample.labels
            if sample.name == "dragoman_messages_total" and labels["backend"] == backend:
                found[labels["outcome"], labels["code"]] += int(sample.value)
    return +found


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The warnings that tell of a message."""
    return [
        one.__dict__
        for one in caplog.records
        if one.levelno == logging.WARNING and one.__dict__.get("kind", "").startswith("message_")
    ]


async def listed(dragoman: Proxied) -> list[str]:
    """The sessions whose last message failed."""
    status, body = await dragoman.request("GET", "/api/v1/sessions?failed=1")
    assert status == 200
    return [one["id"] for one in body["sessions"]]


async def ready(dragoman: Proxied) -> Any:
    return await dragoman.request("GET", "/readyz?backends=1")


async def standing(dragoman: Proxied) -> tuple[bool | None, str | None]:
    """Whether the backend is up as the control API has it, and why not."""
    [one] = (await dragoman.request("GET", "/api/v1/backends"))[1]["backends"]
    return one["up"], one["why"]


@pytest.mark.parametrize("dialect", CREATES)
async def test_messages_that_a_backend_answers_with_502_are_told_one_by_one_and_it_is_down(
    dialect: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "KEPT_SECONDS", 0.0)
    name = f"broken-{dialect}"
    faults = Refusing(CREATES[dialect], 502)
    app = BACKENDS[dialect](ScriptedOptions(key=BACKEND_KEY, pace=0.0, faults=faults))
    async with (
        served(app) as url,
        proxied(backends=[backend_settings(name, dialect, url)]) as dragoman,
    ):
        assert await standing(dragoman) == (None, None)
        sessions = [await dragoman.say(f"message {n}", route=name) for n in range(MANY)]
        await until(lambda: len(told(caplog)) == MANY)
        assert ended(name) == {(one := told(caplog)[0]["outcome"], Code.BACKEND_5XX): MANY}
        assert {line["session"] for line in told(caplog)} == set(sessions)
        assert {line["code"] for line in told(caplog)} == {Code.BACKEND_5XX}
        for line in told(caplog):
            assert (line["face"], line["route"], line["backend"]) == ("eve", name, name)
            assert line["owner"]
        assert one in FAILURES
        assert number("dragoman_backend_up", backend=name) == 0
        assert await standing(dragoman) == (False, Code.BACKEND_5XX)
        # What takes messages may also be what is asked whether it is well.
        probed = CREATES[dialect] in properties_of(dialect).probed
        why = {name: "server_error" if probed else "messages_fail"}
        down = {"status": "backends_down", "backends": [name], "why": why}
        assert await ready(dragoman) == (503, down)
        assert await listed(dragoman) == sessions[::-1]

        faults.refuses = False
        good = await dragoman.say("hello", route=name)
        await dragoman.until_idle(good)
        await until(lambda: ended(name).get(("completed", "ok")) == 1)
        assert len(told(caplog)) == MANY
        assert number("dragoman_backend_up", backend=name) == 1
        assert await standing(dragoman) == (True, None)
        assert await ready(dragoman) == (200, {"status": "ready"})
        assert good not in await listed(dragoman)


async def test_refusals_of_what_was_said_leave_a_backend_up() -> None:
    faults = Refusing("execute", 422)
    async with proxied(engine={"faults": faults}, backends=("picky",)) as dragoman:
        for n in range(FAILED_MOST + 1):
            await dragoman.say(f"message {n}", route="picky")
        await until(lambda: sum(ended("picky").values()) == FAILED_MOST + 1)
        assert (await ready(dragoman))[0] == 200
        assert number("dragoman_backend_up", backend="picky") == 1


async def test_a_session_is_listed_as_failed_until_a_later_message_succeeds() -> None:
    faults = Refusing("execute", 502)
    async with proxied(engine={"faults": faults}, backends=("mending",)) as dragoman:
        session = await dragoman.say("hello", route="mending")
        await until(lambda: sum(ended("mending").values()) == 1)
        assert await listed(dragoman) == [session]
        faults.refuses = False
        await dragoman.say("hello again", session, route="mending")
        await until(lambda: ("completed", "ok") in ended("mending"))
        assert await listed(dragoman) == []


@pytest.mark.parametrize("dialect", CREATES)
async def test_each_message_ends_once_also_when_it_waits_or_joins_a_turn(dialect: str) -> None:
    name = f"busy-{dialect}"
    app = BACKENDS[dialect](ScriptedOptions(key=BACKEND_KEY, pace=0.05))
    async with (
        served(app) as url,
        proxied(backends=[backend_settings(name, dialect, url)]) as dragoman,
    ):
        session = await dragoman.say("script: slow 8", route=name)
        live = await dragoman.session(session)
        await until(lambda: live.state.busy)
        for text in ("first", "second"):
            await dragoman.say(text, session, route=name)
        await until(lambda: sum(ended(name).values()) == 3)
        await until(lambda: not live.state.busy and not live.queued())
        assert ended(name) == {("completed", "ok"): 3}
        assert await listed(dragoman) == []


async def test_a_message_that_waits_in_a_session_that_is_deleted_is_withdrawn() -> None:
    async with proxied(engine={"pace": 0.05}, backends=("leaving",)) as dragoman:
        session = await dragoman.say("script: slow 400", route="leaving")
        live = await dragoman.session(session)
        await until(lambda: live.state.busy)
        await dragoman.say("it waits", session, route="leaving")
        status, _ = await dragoman.request("DELETE", f"/api/v1/sessions/{session}")
        assert status in (200, 202, 204)
        await until(lambda: sum(ended("leaving").values()) == 2)
        assert ended("leaving")["withdrawn", "withdrawn"] == 1


async def test_a_restart_counts_no_message_again_and_ends_the_one_that_was_open(
    run: Callable[..., Any],
) -> None:
    before = ended("engine")

    def new() -> Counter[tuple[str, str]]:
        return ended("engine") - before

    running = await run("sqlite", engine={"pace": 0.05})
    client = await running.eve().create("hello")
    await client.read_turn()
    # It is counted behind what is shown.
    await until(lambda: new() == {("completed", "ok"): 1})
    session = (await running.eve().create("script: slow 200")).session_id
    live = await running.live(session)
    # Its message is in a snapshot then, and no more in what is read after that.
    await until(lambda: live.state.busy and live.last_seq > SNAPSHOT_ENTRIES + 10)
    await running.restart()
    live = await running.live(session)
    await until(lambda: not live.state.busy and live.last_seq == live.state.seq)
    await until(lambda: new() == {("completed", "ok"): 2})


def test_every_dialect_that_can_be_driven_is_here() -> None:
    assert list(CREATES) == given_messages()
