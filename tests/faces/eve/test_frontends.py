"""Several frontends on one session, its controls, its tokens, and whose sessions are whose."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.scripted.engine_turns import EngineVariant
from tests.support.eve_client import EveSession, Form, Refused, TurnResult
from tests.support.journals import CrashJournal
from tests.support.keys import credential, key_of
from tests.support.running import BACKEND, Live, Run, Running, types
from tests.support.serving import HOST
from tests.support.waiting import settled, until


def refused(caught: pytest.ExceptionInfo[Refused]) -> tuple[int, str | None]:
    return caught.value.status, caught.value.code


# Two at one session


async def test_two_frontends_see_the_same_session_and_either_answers(run: Run) -> None:
    running = await run()
    first = await running.eve().create("script: approve")
    second = running.eve().attach(first.session_id)
    asked, seen = await asyncio.gather(first.read_turn(), second.read_turn())
    assert asked.records == seen.records
    await second.respond(asked.requests[0]["requestId"], "approve")
    turns = await asyncio.gather(first.read_turn(), second.read_turn())
    assert turns[0].records == turns[1].records
    assert first.log == second.log
    accepted = await first.send("hello")
    turns = await asyncio.gather(first.read_turn(accepted), second.read_turn())
    assert turns[0].records == turns[1].records


async def test_the_second_answer_to_a_request_is_a_conflict_with_the_first_outcome(
    run: Run,
) -> None:
    running = await run()
    first = await running.eve().create("script: approve")
    request = (await first.read_turn()).requests[0]["requestId"]
    second = running.eve().attach(first.session_id)
    outcomes = await asyncio.gather(
        *(session.respond(request, "approve") for session in (first, second)),
        return_exceptions=True,
    )
    (late,) = [one for one in outcomes if isinstance(one, Refused)]
    assert (late.status, late.code) == (409, "input_already_resolved")
    await first.read_turn()
    await settled(await running.live(first.session_id))
    with pytest.raises(Refused) as caught:
        await second.respond(request, "deny")
    assert refused(caught) == (409, "input_already_resolved")
    assert "approved" in caught.value.body["error"]
    assert [body["answer"] for body in running.requests("respond")] == ["yes"]


async def test_a_late_answer_by_token_is_refused_as_the_token_generation_refuses(run: Run) -> None:
    running = await run()
    session = await running.eve(style="T").create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    await session.respond(request, "deny")
    await session.read_turn()
    with pytest.raises(Refused) as caught:
        await session.respond(request, "approve")
    assert refused(caught) == (400, "input_already_resolved")
    with pytest.raises(Refused) as caught:
        await session.respond("hitl-nobody", "approve")
    assert refused(caught) == (400, "input_already_resolved")


async def test_an_answer_to_a_request_of_another_session_is_refused(run: Run) -> None:
    running = await run()
    one = await running.eve().create("script: approve")
    other = await running.eve().create("script: approve")
    request = (await one.read_turn()).requests[0]["requestId"]
    await other.read_turn()
    with pytest.raises(Refused) as caught:
        await other.respond(request, "approve")
    assert refused(caught) == (409, "input_already_resolved")
    assert running.requests("respond") == []


@pytest.mark.parametrize("option", ["maybe", "", "APPROVE ALL"])
async def test_an_option_that_was_not_offered_leaves_the_request_open(
    run: Run, option: str
) -> None:
    running = await run()
    session = await running.eve().create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    with pytest.raises(Refused) as caught:
        await session.respond(request, option)
    assert caught.value.status == 400
    assert "'approve'" in caught.value.body["error"]
    await session.respond(request, "approve")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "4.1 GB freed" in turn.text


async def test_answers_and_a_message_by_token_are_one_batch_the_answers_first(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve(style="T").create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    before = await running.log(session.session_id)
    wrong = {"requestId": request, "optionId": "maybe"}
    with pytest.raises(Refused) as caught:
        await session.respond_all([wrong], message="then this")
    assert caught.value.status == 400
    # Refused as a whole: the message is not accepted either.
    assert await running.log(session.session_id) == before
    answer = {"requestId": request, "optionId": "approve"}
    await session.respond_all([answer], message="then this")
    await settled(await running.live(session.session_id))
    # One step, so one read has both.
    turn = [turn for turn in await rest(session) if turn.text][-1]
    said = [r["data"]["message"] for r in turn.records if r["type"] == "message.completed"]
    assert "4.1 GB freed" in said[-2]
    assert "“then this”. (turn 2)" in said[-1]


async def test_two_answers_to_one_request_in_a_batch_are_refused(run: Run) -> None:
    running = await run()
    session = await running.eve().create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    twice = [{"requestId": request, "optionId": one} for one in ("approve", "deny")]
    with pytest.raises(Refused) as caught:
        await session.respond_all(twice)
    assert refused(caught) == (409, "input_already_resolved")
    assert running.requests("respond") == []
    await session.respond(request, "deny")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "alone" in turn.text


@pytest.mark.parametrize(
    ("said", "answer"), [("approve", "yes"), ("Yes", "yes"), ("2", "no"), ("deny", "no")]
)
@pytest.mark.parametrize("style", ["S", "T"])
async def test_a_message_that_names_an_option_is_the_answer(
    run: Run, style: Any, said: str, answer: str
) -> None:
    running = await run()
    session = await running.eve(style=style).create("script: approve")
    await session.read_turn()
    accepted = await session.send(said)
    turn = await session.read_turn(accepted)
    assert [body["answer"] for body in running.requests("respond")] == [answer]
    assert turn.data("message.received")[0]["message"] == said
    assert turn.text is not None
    assert len(running.requests("execute")) == 1


async def test_a_message_answers_an_open_question(run: Run) -> None:
    running = await run()
    session = await running.eve().create("script: askopen")
    await session.read_turn()
    accepted = await session.send("Ada")
    turn = await session.read_turn(accepted)
    assert turn.text is not None
    assert "the name Ada." in turn.text


@pytest.mark.parametrize("style", ["S", "T"])
async def test_another_message_during_an_approval_gets_a_boundary_and_waits(
    run: Run, style: Any
) -> None:
    running = await run()
    session = await running.eve(style=style).create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    accepted = await session.send("What is it about?")
    boundary = await session.read_turn(accepted)
    assert boundary.status == "waiting"
    assert boundary.text is None
    assert len(running.requests("execute")) == 1
    await session.respond(request, "approve")
    await settled(await running.live(session.session_id))
    said = [turn.text for turn in await rest(session)]
    assert any("4.1 GB freed" in (text or "") for text in said)
    assert any("What is it about?" in (text or "") for text in said)
    assert len(running.requests("execute")) == 2


async def rest(session: EveSession) -> list[TurnResult]:
    """All turns up to now."""
    turns = [TurnResult()]
    async for record in session.stream(follow=False):
        turns[-1].records.append(record)
        if record["type"] == "session.waiting":
            turns.append(TurnResult())
    return turns


@pytest.mark.parametrize("form", ["all", "newest"])
@pytest.mark.parametrize("policy", ["steer", "queue", None])
async def test_messages_during_a_turn_wait_and_come_in_order(
    run: Run, form: Form, policy: Any
) -> None:
    running = await run(engine={"pace": 0.05}, settings={"eve": {"form": form}})
    session = await running.eve(form).create("script: slow 20")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    accepted = [await session.send(f"number {n}", turn_policy=policy) for n in range(3)]
    for n, one in enumerate(accepted):
        turn = await session.read_turn(one)
        assert turn.text is not None
        assert f"“number {n}”" in turn.text
    messages = [body["message"] for body in running.requests("execute")]
    assert messages == ["script: slow 20", "number 0", "number 1", "number 2"]


async def test_messages_sent_at_once_reach_the_engine_one_after_the_other(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve().create()
    accepted = await asyncio.gather(*(session.send(f"number {n}") for n in range(8)))
    await settled(await running.live(session.session_id))
    assert len({one.delivery_id for one in accepted}) == 8
    turns = [turn for turn in await rest(session) if turn.records]
    assert [turn.types[-1] for turn in turns] == ["session.waiting"] * 8
    assert not any(turn.data("turn.failed") for turn in turns)
    assert running.engine.refusals == []
    sent = sorted(body["message"] for body in running.requests("execute"))
    assert sent == [f"number {n}" for n in range(8)]


async def test_the_same_words_twice_are_two_messages(run: Run) -> None:
    running = await run()
    session = await running.eve().create("continue")
    await session.read_turn()
    for number in (2, 3):
        accepted = await session.send("continue")
        turn = await session.read_turn(accepted)
        assert turn.text is not None
        assert f"(turn {number})" in turn.text


async def test_a_client_that_leaves_at_any_moment_leaves_its_message_whole_or_not_at_all(
    run: Run,
) -> None:
    running = await run("sqlite")
    body = json.dumps({"message": "hello"}).encode()
    heard = 0
    for turns in range(12):
        session = await running.eve().create()
        path = f"/as/eve/to/{BACKEND}/eve/v1/session/{session.session_id}"
        _, writer = await asyncio.open_connection(HOST, running.port)
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(body), body)
        )
        await writer.drain()
        live = await running.live(session.session_id)
        if turns == 11:
            await until(lambda state=live.state: state.seq > 1)  # type: ignore[misc]
        else:
            await asyncio.sleep(turns * 0.0005)
        writer.close()
        await asyncio.sleep(0.01)
        await settled(live)
        said = [turn.text or "" for turn in await rest(session) if turn.records]
        assert all("“hello”. (turn 1)" in text for text in said)
        heard += len(said)
        assert len(said) <= 1
    assert heard >= 1
    assert len(running.requests("execute")) == heard


# Controls


@pytest.mark.parametrize("style", ["S", "T"])
async def test_a_turn_of_the_engine_cannot_be_cancelled_and_that_is_said(
    run: Run, style: Any
) -> None:
    running = await run(engine={"pace": 0.05})
    session = await running.eve(style=style).create("script: slow 30")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    with pytest.raises(Refused) as caught:
        await session.cancel()
    assert refused(caught) == (409, "not_supported")
    assert "engine" in caught.value.body["error"]
    # A turn that is over, or not this one: nothing to do, and no error.
    assert await session.cancel("turn_7") == "accepted"
    await session.read_turn()
    assert await session.cancel() == "accepted"
    assert await session.cancel("turn_0") == "accepted"


async def test_cancel_denies_a_held_permission_where_that_is_configured(run: Run) -> None:
    running = await run()
    running.backends[BACKEND].table = {"settings": {"interrupt": "deny"}}
    await running.restart()
    session = await running.eve().create("script: approve")
    await session.read_turn()
    # In a closed form the turn that was asked in is over, whatever its number was.
    assert await session.cancel() == "accepted"
    turn = await session.read_turn()
    assert turn.text is not None
    assert "alone" in turn.text
    assert [body["answer"] for body in running.requests("respond")] == ["no"]


@pytest.mark.parametrize("style", ["S", "T"])
@pytest.mark.parametrize("control", ["compact", "clear"])
async def test_what_the_engine_has_no_route_for_is_refused(
    run: Run, style: Any, control: str
) -> None:
    running = await run()
    session = await running.eve(style=style).create("hello")
    await session.read_turn()
    with pytest.raises(Refused) as caught:
        await getattr(session, control)()
    assert refused(caught) == (400 if style == "T" else 409, "not_supported")
    assert f"`{control}`" in caught.value.body["error"]


@pytest.mark.parametrize("style", ["S", "T"])
@pytest.mark.parametrize("state", ["idle", "paused", "prewarmed"])
async def test_a_reset_ends_the_session_and_its_streams(run: Run, style: Any, state: str) -> None:
    running = await run("sqlite")
    client = running.eve(style=style)
    if state == "prewarmed":
        if style == "T":
            return
        session = await client.create()
    else:
        session = await client.create("hello" if state == "idle" else "script: approve")
        await session.read_turn()
    async with Live(running, session.session_id) as live:
        assert await session.reset() == "reset"
        await live.until(lambda reader: reader.over)
        assert types(live.lines)[-1] == "session.completed"
    for again in range(2):
        assert await session.reset() == "no_active_session"
        assert await session.cancel() == "accepted"
        with pytest.raises(Refused) as caught:
            await session.send("hello?")
        assert refused(caught) == (
            (404, "SESSION_NOT_RESUMABLE") if style == "T" else (409, "session_not_active")
        )
        assert await running.lines(session.session_id) == live.lines
        if again == 0:
            await running.restart()
            client.host = running.base


async def test_a_reset_in_the_middle_of_a_turn_leaves_the_engine_alone(run: Run) -> None:
    running = await run(engine={"pace": 0.05})
    session = await running.eve().create("script: slow 30")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    assert await session.reset("enough") == "reset"
    rest_ = [record["type"] async for record in session.stream()]
    assert rest_[-3:] == ["turn.cancelled", "session.waiting", "session.completed"]
    assert running.requests("respond") == []


# Tokens


async def test_tokens_change_with_every_wait_and_the_last_two_are_taken(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve(style="T").create("hello")
    tokens = [session.token]
    for _ in range(3):
        await session.read_turn()
        tokens.append(session.token)
        await session.send("more")
    await session.read_turn()
    tokens.append(session.token)
    assert len(set(tokens)) == len(tokens)
    for stale in tokens[:-2]:
        session.token = stale
        with pytest.raises(Refused) as caught:
            await session.send("too late")
        assert refused(caught) == (404, "SESSION_NOT_RESUMABLE")
        assert "stale" in caught.value.body["error"]
    # The one before the newest is taken as long as the newest was not used.
    session.token = tokens[-2]
    await session.send("still good")
    await session.read_turn()
    newest = session.token
    await session.send("newest")
    await session.read_turn()
    session.token = tokens[-2]
    with pytest.raises(Refused) as caught:
        await session.send("used up")
    assert refused(caught) == (404, "SESSION_NOT_RESUMABLE")
    session.token = newest
    await session.send("the one before the newest, which nobody has used")


async def test_a_token_is_the_same_after_a_restart_and_in_replay(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve(style="T").create("hello")
    await session.read_turn()
    await running.restart()
    again = running.eve(style="T").attach(session.session_id)
    await again.read_turn()
    assert again.token == session.token
    await session.send("more")
    turn = await session.read_turn()
    assert turn.text is not None


async def test_a_token_addresses_its_session_whatever_the_path_says(run: Run) -> None:
    running = await run()
    client = running.eve(style="T")
    session = await client.create("hello")
    await session.read_turn()
    for path in ("anything", "reset-nothing", "wrun_01HZX8Q0000000000000000001"):
        _, body = await client.request(
            "POST",
            f"/eve/v1/session/{path}",
            {"continuationToken": session.token, "message": "more"},
        )
        assert body["sessionId"] == session.session_id
        turn = await session.read_turn()
        assert turn.text is not None


@pytest.mark.parametrize(
    "token",
    [
        "eve:6b1f0a52-7d0e-4f0f-9f6a-2f3a1c9d0e11",
        "nonsense",
        "eve:op:1234",
        "eve:6B1F0A52-7D0E-4F0F-9F6A-2F3A1C9D0E11",
        "\u0000😀",
    ],
)
async def test_a_token_that_is_none_of_ours_is_not_resumable(run: Run, token: str) -> None:
    running = await run()
    session = await running.eve(style="T").create("hello")
    await session.read_turn()
    session.token = token
    with pytest.raises(Refused) as caught:
        await session.send("more")
    assert refused(caught) == (404, "SESSION_NOT_RESUMABLE")


async def test_half_a_right_token_is_not_enough(run: Run) -> None:
    running = await run()
    session = await running.eve(style="T").create("hello")
    await session.read_turn()
    assert session.token is not None
    changed = session.token[:-1] + ("0" if session.token[-1] != "0" else "1")
    session.token = changed
    with pytest.raises(Refused) as caught:
        await session.send("more")
    assert refused(caught) == (404, "SESSION_NOT_RESUMABLE")


async def test_without_rotation_one_token_serves_for_life(run: Run) -> None:
    running = await run(settings={"eve": {"token_rotation": False}})
    session = await running.eve(style="T").create("hello")
    first = session.token
    for _ in range(4):
        await session.read_turn()
        assert session.token == first
        await session.send("more")
    await session.read_turn()


# Keys


def keyed(**more: Any) -> dict[str, Any]:
    """Settings with three keys, one of which may use nothing."""
    return {"keys": [key_of("web"), key_of("ops"), key_of("narrow", ())], **more}


ROUTES = [
    ("POST", "/eve/v1/session", {"message": "hello"}),
    ("POST", "/eve/v1/session/{id}", {"message": "hello"}),
    ("POST", "/eve/v1/session/{id}", {"inputResponses": [{"requestId": "r", "text": "x"}]}),
    ("POST", "/eve/v1/session/{id}/cancel", None),
    ("POST", "/eve/v1/session/{id}/compact", None),
    ("POST", "/eve/v1/session/{id}/clear", None),
    ("POST", "/eve/v1/session/{id}/reset", None),
    ("GET", "/eve/v1/session/{id}/stream", None),
    ("GET", "/eve/v1/info", None),
]


async def answer(
    running: Running, method: str, path: str, body: Any, key: str | None
) -> tuple[int, Any, list[str]]:
    async with running.http.request(
        method, running.base + path, json=body, headers=credential(key)
    ) as response:
        text = await response.text()
        challenges = response.headers.getall("www-authenticate", [])
    return response.status, json.loads(text), challenges


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_a_wrong_key_is_refused_before_anything_is_looked_at(
    run: Run, method: str, path: str, body: Any
) -> None:
    running = await run(settings=keyed())
    for key in (None, "k-wrong", "", "k-web-and-more"):
        status, refusal, challenges = await answer(
            running, method, path.replace("{id}", "x"), body, key
        )
        assert (status, refusal["ok"], refusal["code"]) == (401, False, "unauthorized")
        assert challenges == ['Bearer realm="eve"', 'Basic realm="eve", charset="UTF-8"']
    if method == "POST":
        # Before the body is parsed too.
        async with running.http.post(
            running.base + path.replace("{id}", "x"), data=b"{ not json"
        ) as response:
            assert response.status == 401


@pytest.mark.parametrize(("method", "path", "body"), [r for r in ROUTES if "{id}" in r[1]])
async def test_another_key_s_session_looks_like_one_that_never_was(
    run: Run, method: str, path: str, body: Any
) -> None:
    running = await run(settings=keyed())
    session = await running.eve(key="k-web").create("script: approve")
    await session.read_turn()
    real = await answer(running, method, path.replace("{id}", session.session_id), body, "k-ops")
    unknown = await answer(running, method, path.replace("{id}", "dgs_nobody"), body, "k-ops")
    assert _without_ids(real) == _without_ids(unknown)
    assert real[1].get("ok") is not True or real[1]["status"] == "no_active_session"
    turn = await running.eve(key="k-web").attach(session.session_id).read_turn()
    assert turn.requests


def _without_ids(value: object) -> str:
    return re.sub(r"dgs_\w+", "ID", json.dumps(value))


async def test_a_token_of_another_key_is_none(run: Run) -> None:
    running = await run(settings=keyed())
    session = await running.eve(style="T", key="k-web").create("hello")
    await session.read_turn()
    other = running.eve(style="T", key="k-ops").attach(session.session_id, token=session.token)
    with pytest.raises(Refused) as caught:
        await other.send("more")
    assert refused(caught) == (404, "SESSION_NOT_RESUMABLE")


async def test_a_key_without_this_backend_finds_no_route(run: Run) -> None:
    running = await run(settings=keyed())
    with pytest.raises(Refused) as caught:
        await running.eve(key="k-narrow").create("hello")
    assert caught.value.status == 404
    assert running.requests("execute") == []


async def test_an_operation_is_done_once_for_each_key(run: Run) -> None:
    running = await run("sqlite", settings=keyed())
    web = running.eve(key="k-web")
    made = await asyncio.gather(
        *(
            web.request("POST", "/eve/v1/session", {"message": "hello", "operationId": "op-1"})
            for _ in range(4)
        )
    )
    ids = {body["sessionId"] for _, body in made}
    assert len(ids) == 1
    (session_id,) = ids
    await settled(await running.live(session_id))
    assert len(running.requests("execute")) == 1
    await running.restart()
    _, body = await running.eve(key="k-web").request(
        "POST", "/eve/v1/session", {"message": "hello", "operationId": "op-1"}
    )
    assert body["sessionId"] == session_id
    _, body = await running.eve(key="k-ops").request(
        "POST", "/eve/v1/session", {"message": "hello", "operationId": "op-1"}
    )
    assert body["sessionId"] != session_id
    _, body = await running.eve(key="k-web").request(
        "POST", "/eve/v1/session", {"message": "hello", "operationId": "op-2"}
    )
    assert body["sessionId"] != session_id
    token = body["continuationToken"]
    session = running.eve(style="T", key="k-web").attach(body["sessionId"], token=token)
    await session.read_turn()
    await session.send("more")


async def test_the_token_of_a_repeated_operation_is_its_session_s(run: Run) -> None:
    running = await run(settings=keyed())
    client = running.eve(style="T", key="k-web")
    for _ in range(2):
        _, body = await client.request(
            "POST", "/eve/v1/session", {"message": "hello", "operationId": "op-1"}
        )
        await settled(await running.live(body["sessionId"]))
    session = client.attach(body["sessionId"], token=body["continuationToken"])
    await session.send("more")


async def test_an_operation_whose_message_a_crash_cut_off_gets_it_with_the_repeat(
    run: Run,
) -> None:
    journal = CrashJournal()
    running = await run(journal, settings=keyed())
    wanted = {"message": "hello", "operationId": "op-1"}
    # The session is stored, the message is not.
    journal.crash_at(0, confirmed=True)
    first = asyncio.create_task(running.eve(key="k-web").request("POST", "/eve/v1/session", wanted))
    await journal.crashed.wait()
    await running.restart()
    with pytest.raises((aiohttp.ClientError, Refused)):
        await first
    client = running.eve(key="k-web")
    for _ in range(2):
        _, body = await client.request("POST", "/eve/v1/session", wanted)
        await settled(await running.live(body["sessionId"]))
    turn = await client.attach(body["sessionId"]).read_turn()
    assert turn.text is not None
    assert len(running.requests("execute")) == 1


async def test_an_operation_needs_somebody_who_asks(run: Run) -> None:
    running = await run()
    with pytest.raises(Refused) as caught:
        await running.eve().create("hello", operationId="op-1")
    assert caught.value.status == 400


# Content


async def test_files_reach_the_engine_as_media(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve().create(
        [
            {"type": "text", "text": "See this."},
            {"type": "file", "mediaType": "image/png", "data": "iVBORw0KGgo=", "filename": "a.png"},
            {"type": "file", "mediaType": "text/plain", "data": "data:text/plain,hi%20there"},
            {"type": "file", "mediaType": "image/png", "data": "https://example.com/b.png"},
        ],
        clientContext=["The user is in Berlin."],
    )
    turn = await session.read_turn()
    assert turn.text is not None
    assert "I received image image/png of 8 bytes." in turn.text
    assert "I received document text/plain of 8 bytes." in turn.text
    assert "I received image at https://example.com/b.png." in turn.text
    (body,) = running.requests("execute")
    assert "Client context:\nThe user is in Berlin." in body["message"]
    received = turn.data("message.received")[0]
    assert received["message"].splitlines()[:2] == ["See this.", "[file: a.png (image/png)]"]


async def test_what_the_engine_cannot_honour_is_refused_and_makes_no_session(run: Run) -> None:
    running = await run()
    client = running.eve()
    for members in (
        {"outputSchema": {"type": "object"}},
        {"mode": "task"},
        {"capabilities": {"requestInput": False}},
    ):
        with pytest.raises(Refused) as caught:
            await client.create("hello", **members)
        assert refused(caught) == (409, "not_supported")
        assert "engine" in caught.value.body["error"]
    assert len(await running.sessions.journal.sessions()) == 0
    session = await client.create("hello")
    await session.read_turn()
    with pytest.raises(Refused) as caught:
        await session.send("hello", outputSchema={"type": "object"})
    assert refused(caught) == (409, "not_supported")


async def test_every_input_is_settled_and_every_message_received_once(run: Run) -> None:
    running = await run(engine={"variant": EngineVariant(tool_call_id=False)})
    session = await running.eve().create("script: approve")
    request = (await session.read_turn()).requests[0]["requestId"]
    await session.send("wait")
    await session.respond(request, "approve", "But keep the log.")
    await settled(await running.live(session.session_id))
    events = await running.log(session.session_id)
    accepted = [event for event in events if isinstance(event, ev.InputAccepted)]
    outcomes = {e.command_id: e.outcome for e in events if isinstance(e, ev.InputSettled)}
    assert [outcomes[event.command_id] for event in accepted] == ["taken"] * 3
    messages = [e.command_id for e in events if isinstance(e, ev.MessageReceived)]
    assert messages == [event.command_id for event in accepted if event.kind == "message"]
