"""Deliveries at the server: who may send, what is taken, and who is answered when."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.app import deliveries
from proxy.base import metrics
from proxy.sessions.retention_limits import RetentionLimits
from proxy.upstream import mailbox
from proxy.upstream.backend_check import check_backends
from tests.hermes_agent.hooks import SESSION, begun, call, ended, hook, recorded
from tests.hermes_agent.served import BACKEND, HookReceiver, sign
from tests.support.dragoman import Start, starts
from tests.support.keys import credential, key_of
from tests.support.waiting import settled, stored, until

start = starts(HookReceiver)

ALLOW = (200, {"decision": "allow"})
DONE: tuple[int, Any] = (200, {})


def blocked(answer: tuple[int, Any]) -> str:
    """Return why a call was blocked."""
    status, value = answer
    assert (status, value["decision"]) == (200, "block")
    return str(value["message"])


def counted(outcome: str) -> float:
    return float(metrics.DELIVERIES.labels(BACKEND, outcome)._value.get())


# What is taken.


async def test_hooks_are_one_session_that_is_found_by_its_name(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    for one in recorded("tool"):
        assert await dragoman.send(one) == DONE
    (session,) = dragoman.all
    await settled(session)
    name = recorded("tool")[0]["session_id"]
    found = await dragoman.sessions.get(name, owner="local", route=BACKEND)
    assert found is session
    log = await dragoman.log(session.id)
    assert [e.outcome for e in log if isinstance(e, ev.TurnEnded)] == ["completed"]


async def test_a_child_is_of_its_parents_session(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    for one in recorded("child-in-background"):
        assert await dragoman.send(one) == DONE
    assert len(dragoman.all) == 1


async def test_sessions_that_begin_at_once_are_made_once_each(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    hooks = [{**begun(), "session_id": f"s{number % 3}"} for number in range(12)]
    assert await asyncio.gather(*map(dragoman.send, hooks)) == [DONE] * 12
    assert len(dragoman.all) == 3


async def test_what_has_no_session_and_begins_none_is_counted(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    before = counted("no_session")
    for one in (
        hook("on_session_reset", turn=None),
        hook("transform_terminal_output", session="", turn=None, command="ls"),
        hook("kanban_task_claimed", session="", turn=None, board="b"),
        ended(),
    ):
        assert await dragoman.send(one) == DONE
    assert dragoman.all == []
    assert counted("no_session") == before + 4


async def test_hooks_in_the_wrong_order_are_taken(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    for one in reversed(recorded("tool")):
        assert (await dragoman.send(one))[0] == 200
    (session,) = dragoman.all
    log = await dragoman.log(session.id)
    assert "tool.returned" in [event.TYPE for event in log]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "JSON object"),
        (b"[1]", 400, "JSON object"),
        (b"{", 400, "JSON object"),
        (b"\xff\xfe", 400, "JSON object"),
        (b"{}", 400, "hook_event_name"),
        (b'{"hook_event_name": ""}', 400, "hook_event_name"),
        (b'{"hook_event_name": "x", "extra": []}', 400, "extra"),
        (b'{"hook_event_name": "x", "pad": "' + b"x" * 2**20 + b'"}', 413, "1048576"),
        (b"[" * 300 + b"]" * 300, 400, "nested"),
    ],
)
async def test_what_is_not_a_hook_is_refused_with_the_reason(
    start: Start[HookReceiver], body: bytes, status: int, says: str
) -> None:
    dragoman = await start()
    given, value = await dragoman.post(body)
    assert given == status
    assert says in value["error"]["message"]
    assert dragoman.all == []


async def test_no_other_backend_takes_deliveries(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    url = dragoman.address.replace("/from/hermes", "/from/nobody")
    async with dragoman.http.post(url, data=b"{}") as response:
        assert response.status == 404


async def test_a_web_page_cannot_send_hooks(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    status, _ = await dragoman.send(begun(), Origin="https://evil.example")
    assert status == 403
    assert dragoman.all == []


async def test_a_session_that_was_deleted_here_takes_no_more(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    await dragoman.send(begun())
    await dragoman.send(ended())
    (session,) = dragoman.all
    url = f"http://127.0.0.1:{dragoman.port}/api/v1/sessions/{session.id}"
    async with dragoman.http.delete(url) as response:
        assert response.status in (200, 202, 204)
    await until(lambda: not dragoman.all)
    status, value = await dragoman.send(call(wait=60.0))
    assert (status, value["error"]["code"]) == (404, "not_found")


async def test_a_session_that_is_no_longer_kept_goes_on_behind_a_gap(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start("sqlite")
    await dragoman.send(begun())
    await dragoman.send(ended())
    (old,) = dragoman.all
    await settled(old)
    assert len(await dragoman.sessions.prune(RetentionLimits(age=-1))) == 1
    other = f"{SESSION}:task:ffff"
    again = {**begun(), "extra": {"turn_id": other, "user_message": "Go on."}}
    assert await dragoman.send(again) == DONE
    session = await dragoman.sessions.get(SESSION, owner="local", route=BACKEND)
    log = await dragoman.log(session.id)
    assert [event.TYPE for event in log[:3]] == ["session.started", "session.updated", "gap"]
    assert session.id != old.id


# Who may send.


async def test_only_who_has_the_secret_may_send(start: Start[HookReceiver]) -> None:
    dragoman = await start(secret="s3cret")
    assert await dragoman.send(begun()) == DONE
    body = json.dumps(begun()).encode()
    wrong: list[dict[str, str]] = [
        {},
        sign(body, "other"),
        sign(body + b" ", "s3cret"),
        {"X-Hermes-Signature-256": "sha256="},
        {"X-Hermes-Signature-256": "sha1=00"},
    ]
    before = counted("refused")
    for headers in wrong:
        status, value = await dragoman.post(body, headers)
        assert (status, value["error"]["code"]) == (401, "unauthorized")
    assert counted("refused") == before + len(wrong)
    assert len(dragoman.all) == 1


async def test_a_delivery_that_comes_again_is_taken_once(start: Start[HookReceiver]) -> None:
    dragoman = await start("sqlite", secret="s3cret")
    delivery = {**hook("on_session_finalize", turn=None, reason="x")}
    await dragoman.send(begun())
    for _ in range(3):
        assert await dragoman.send(delivery) == DONE
    await dragoman.restart()
    assert await dragoman.send(delivery) == DONE
    log = await dragoman.log(dragoman.all[0].id)
    assert len([e for e in log if isinstance(e, ev.Notice)]) == 1


@pytest.mark.parametrize("seconds", [-3_600, 3_600])
async def test_a_signed_delivery_of_another_time_is_refused(
    start: Start[HookReceiver], seconds: int
) -> None:
    dragoman = await start(secret="s3cret")
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    status, value = await dragoman.send({**begun(), "timestamp": at.isoformat()})
    assert (status, dragoman.all) == (400, [])
    assert "clock" in value["error"]["message"]


@pytest.mark.parametrize("seconds", [-120, 120])
async def test_a_signed_delivery_of_a_clock_a_little_off_is_taken(
    start: Start[HookReceiver], seconds: int
) -> None:
    dragoman = await start(secret="s3cret")
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    status, _ = await dragoman.send({**begun(), "timestamp": at.isoformat()})
    assert (status, len(dragoman.all)) == (200, 1)


async def test_sessions_are_those_of_the_key_that_the_backend_names(
    start: Start[HookReceiver],
) -> None:
    keys = [key_of("ann").model_dump(), key_of("bob").model_dump()]
    dragoman = await start(secret="s3cret", keys=keys)
    await dragoman.send(begun())
    (session,) = dragoman.all
    assert session.row.owner == "ann"
    seen = {}
    for name in ("ann", "bob"):
        url = f"http://127.0.0.1:{dragoman.port}/api/v1/sessions"
        async with dragoman.http.get(url, headers=credential(f"k-{name}")) as response:
            seen[name] = len((await response.json())["sessions"])
    assert seen == {"ann": 1, "bob": 0}


# What others may ask of it.


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/as/eve/to/hermes/eve/v1/session", {}),
        ("/as/eve/to/hermes/eve/v1/session", {"message": "Hello"}),
        ("/as/herm/to/hermes/v1/agents/hermes/sessions", {}),
        ("/as/engine/to/hermes/execute", {"task_id": "t", "message": "Hello"}),
        (
            "/as/managed-agents/to/hermes/v1/sessions",
            {"agent": "hermes", "environment_id": "env_hermes"},
        ),
    ],
)
async def test_no_frontend_begins_a_session(
    start: Start[HookReceiver], path: str, body: dict[str, Any]
) -> None:
    dragoman = await start()
    url = f"http://127.0.0.1:{dragoman.port}{path}"
    async with dragoman.http.post(url, json=body) as response:
        assert 400 <= response.status < 500, await response.text()
    assert dragoman.all == []


async def test_no_frontend_says_anything_in_a_session_that_is_watched(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start()
    await dragoman.send(begun())
    await dragoman.send(ended())
    url = f"{dragoman.face('eve', BACKEND)}/eve/v1/session/{SESSION}"
    async with dragoman.http.post(url, json={"message": "Go on."}) as response:
        assert response.status >= 400
        assert "watched and gated" in await response.text()


async def test_a_check_says_that_the_backend_calls_and_that_nothing_was_asked(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start(secret="s3cret")
    (found,) = await check_backends(dragoman.settings)
    states = {what: finding.state for what, finding in found.findings.items()}
    assert states == {
        "reachable": "ok",
        "credential": "ok",
        "dialect": "not asked",
        "streaming": "not asked",
    }
    assert "/from/hermes" in found.reachable.text


async def test_a_silent_turn_is_not_said_to_be_asked_about(
    start: Start[HookReceiver], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    dragoman = await start(speed=3_600.0)
    await dragoman.send(begun())
    (session,) = dragoman.all
    await settled(session)
    log = await dragoman.log(session.id)
    assert [e.outcome for e in log if isinstance(e, ev.TurnEnded)] == ["failed"]
    assert "is asked" not in caplog.text


# The gate.


@contextlib.asynccontextmanager
async def waiting(
    dragoman: HookReceiver, *, wait: float = 600.0
) -> AsyncIterator[tuple[asyncio.Task[Any], ev.InteractionRequested]]:
    """Give a call that waits, and what is asked about it."""
    await dragoman.send(begun())
    task = dragoman.sending(call(wait=wait))
    (asked,) = await dragoman.until_asked()
    try:
        yield task, asked
    finally:
        task.cancel()


async def test_a_call_waits_until_somebody_allows_it(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    async with waiting(dragoman) as (task, asked):
        assert not task.done()
        assert await dragoman.answer(asked, "allow") < 300
        assert await task == ALLOW
    (session,) = dragoman.all
    await until(lambda: not session.state.interactions and stored(session))
    log = await dragoman.log(session.id)
    assert [e.outcome for e in log if isinstance(e, ev.InteractionResolved)] == ["approved"]


async def test_a_denial_tells_the_agent_why(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    async with waiting(dragoman) as (task, asked):
        await dragoman.answer(asked, "deny", reason="Keep the exports.")
        assert blocked(await task) == "Keep the exports."


async def test_a_call_that_nobody_answers_is_blocked(start: Start[HookReceiver]) -> None:
    dragoman = await start(speed=600.0)
    async with waiting(dragoman, wait=60.0) as (task, _):
        assert "in time" in blocked(await task)


async def test_a_call_by_two_ways_is_asked_once_and_answered_twice(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start()
    async with waiting(dragoman) as (task, asked):
        other = dragoman.sending(call(wait=600.0))
        await until(lambda: dragoman_mailbox(dragoman).count == 2)
        await dragoman.answer(asked, "allow")
        assert [await task, await other] == [ALLOW, ALLOW]


def dragoman_mailbox(dragoman: HookReceiver) -> mailbox.Mailbox:
    backend = dragoman.sessions.backends.get(BACKEND)
    assert backend is not None
    found = dragoman.sessions.backends.upstream(backend)
    assert isinstance(found, mailbox.Mailbox)
    return found


async def test_a_call_that_asks_again_after_a_restart_gets_its_answer(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start("sqlite")
    await dragoman.send(begun())
    delivery = call(wait=600.0)
    task = dragoman.sending(delivery)
    await dragoman.until_asked()
    await dragoman.restart()
    with pytest.raises(aiohttp.ClientError):
        await task
    task = dragoman.sending(delivery)
    (asked,) = await dragoman.until_asked()
    await dragoman.answer(asked, "allow")
    assert await task == ALLOW


async def test_an_answer_waits_a_moment_for_a_hook_that_asks_again(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start("sqlite")
    await dragoman.send(begun())
    delivery = call(wait=600.0)
    task = dragoman.sending(delivery)
    await dragoman.until_asked()
    await dragoman.restart()
    task.cancel()
    await dragoman.sessions.get(SESSION, owner="local", route=BACKEND)
    (asked,) = await dragoman.until_asked()
    await dragoman.answer(asked, "allow")
    assert await dragoman.send(delivery) == ALLOW


async def test_an_answer_to_a_hook_that_has_left_is_refused(
    start: Start[HookReceiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "RETURN_SECONDS", 0.05)
    dragoman = await start()
    async with waiting(dragoman) as (task, asked):
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not dragoman_mailbox(dragoman)._waiting or gone(dragoman))
        await dragoman.answer(asked, "allow")
    (session,) = dragoman.all
    await until(lambda: not session.state.interactions and stored(session))
    log = await dragoman.log(session.id)
    assert [e.outcome for e in log if isinstance(e, ev.InputSettled)] == ["refused"]
    assert [e.outcome for e in log if isinstance(e, ev.InteractionResolved)] == ["expired"]


def gone(dragoman: HookReceiver) -> bool:
    senders = [one for many in dragoman_mailbox(dragoman)._waiting.values() for one in many]
    return not any(one.there() for one in senders)


async def test_hermes_own_approvals_cannot_be_answered_here(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    approval = hook(
        "pre_approval_request", session="", command="rm -rf x", description="recursive delete"
    )
    await dragoman.send(begun())
    await dragoman.send(approval)
    (asked,) = await dragoman.until_asked()
    assert await dragoman.answer(asked, "allow") >= 400


async def test_an_approval_without_a_turn_is_found_by_the_key_of_its_session(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start()
    approval = hook(
        "pre_approval_request",
        session="",
        turn="",
        command="<terminal> (plugin approval rule)",
        session_key=SESSION,
    )
    await dragoman.send(begun())
    await dragoman.send(approval)
    (asked,) = await dragoman.until_asked()
    assert not asked.answerable


async def test_too_many_calls_that_wait_are_refused(
    start: Start[HookReceiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MOST_WAITING", 1)
    dragoman = await start()
    async with waiting(dragoman):
        status, value = await dragoman.send(call("other", wait=600.0))
        assert (status, value["error"]["code"]) == (503, "overloaded")


async def test_a_test_of_the_gate_asks_nobody(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    test = call(wait=600.0, dragoman_test="n0nce")
    assert "n0nce" in blocked(await dragoman.send(test))
    assert dragoman.all == []


async def test_calls_that_wait_hold_nobody_else_up(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    tasks = [
        dragoman.sending({**call(wait=600.0), "session_id": f"s{number}"}) for number in range(50)
    ]
    asked = await dragoman.until_asked(50)
    for one in recorded("tool"):
        assert await dragoman.send(one) == DONE
    await asyncio.gather(*(dragoman.answer(one, "allow") for one in asked))
    assert await asyncio.gather(*tasks) == [ALLOW] * 50


async def test_a_body_that_never_ends_holds_nobody_else_up(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    head = b"POST /from/hermes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n\r\n{"
    _, writer = await asyncio.open_connection("127.0.0.1", dragoman.port)
    writer.write(head)
    await writer.drain()
    for one in recorded("tool"):
        assert await dragoman.send(one) == DONE
    writer.close()


async def test_a_flood_of_hooks_of_one_session_is_taken_in_order(
    start: Start[HookReceiver],
) -> None:
    dragoman = await start()
    await dragoman.send(begun())
    flood = [hook("on_something_new", number=number) for number in range(300)]
    other = dragoman.sending({**call(wait=600.0), "session_id": "other"})
    assert await asyncio.gather(*map(dragoman.send, flood)) == [DONE] * 300
    (asked,) = await dragoman.until_asked()
    await dragoman.answer(asked, "allow")
    assert await other == ALLOW
    log = await dragoman.log(dragoman.all[0].id)
    assert len([event for event in log if isinstance(event, ev.Native)]) == 300


async def test_a_server_that_stops_lets_calls_ask_again(start: Start[HookReceiver]) -> None:
    dragoman = await start()
    async with waiting(dragoman) as (task, _):
        await dragoman.stop()
        with pytest.raises(aiohttp.ClientError):
            await task
