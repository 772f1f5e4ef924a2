"""The scripted eve: it does what the page and the recordings say, checked by a strict client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from proxy.base.clock import ManualClock
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.eve import EVE, create_eve_app
from proxy.scripted.eve_frames import FRAMES
from proxy.scripted.eve_turns import EveVariant, ScriptedEve
from proxy.scripted.faults import Cut, Faults, Garbage, HalfFrame, LoseTurn, Status
from proxy.scripted.templates import Template
from tests.support.each import each
from tests.support.eve_client import (
    EveClient,
    EveSession,
    Form,
    ProtocolViolation,
    Refused,
    TurnResult,
)
from tests.support.waiting import SOON_S

RECORDINGS = Path(__file__).parent.parent / "fixtures" / "wire" / "eve"
FORMS: dict[str, Form] = {"T": "tokens", "S2": "newest"}
GENERATIONS = sorted(FORMS)


class Served:
    """A scripted eve and a strict client of its generation."""

    def __init__(self, eve: ScriptedEve, client: EveClient) -> None:
        self.eve = eve
        self.client = client


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start scripted eves."""
    servers: list[TestServer] = []
    http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    async def start(generation: str = "S2", **options: Any) -> Served:
        app = create_eve_app(variant=EveVariant(generation), **{"pace": 0.0, **options})  # type: ignore[arg-type]
        server = TestServer(app)
        servers.append(server)
        await server.start_server()
        client = EveClient(http, str(server.make_url("")), form=FORMS[generation])
        return Served(app[EVE], client)

    yield start
    await http.close()
    for server in servers:
        await server.close()


@each(("generation", "name"), [(g, name) for g in GENERATIONS for name in FRAMES[g]])
def test_every_template_stands_in_the_recording_that_it_names(generation: str, name: str) -> None:
    template = FRAMES[generation][name]
    found = [
        record.get("data")
        for line in (RECORDINGS / template.source).read_text().splitlines()
        if line.strip() and (record := json.loads(line)).get("type") == template.type
    ]
    data = json.loads(template.data) if template.data else None
    assert data in [_first_line_of_traces(value) for value in found]


def _first_line_of_traces(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("details"), dict):
        detail = value["details"]["detail"].split("\n")[0]
        return {**value, "details": {**value["details"], "detail": detail}}
    return value


def test_a_template_takes_no_member_that_its_source_has_not() -> None:
    template = Template("x", "y", '{"a":1,"b":[{"c":2}]}')
    assert template.filled(a=3) == {"a": 3, "b": [{"c": 2}]}
    assert template.inner("b", c=4) == {"c": 4}
    with pytest.raises(KeyError):
        template.filled(z=1)
    with pytest.raises(KeyError):
        template.inner("b", z=1)


SCRIPTS = (
    ("text", (), "Basil likes six hours of sun"),
    ("reason", (), "`to_cents` truncates instead of rounding"),
    ("tool", (), "so 19.99 becomes 1998."),
    ("tools", (), "One risk found"),
    ("toolfail", (), "The mail connector must be connected again."),
    ("approve", ("approve",), "Done, 4.1 GB freed."),
    ("approve", ("no",), "I left /srv/exports/2024 alone."),
    ("approve-twice", ("approve", "no"), "I left /etc/hosts alone."),
    ("ask", ("09:10",), "Holding a seat on the 09:10."),
    ("ask", ("text:the night train",), "a seat on the the night train."),
    ("askopen", ("text:Ada",), "The ticket carries the name Ada."),
    ("child", (), "The researcher says: 84 m."),
    ("structured", (), '{"title":"Towers","count":2}'),
    ("limit", ("continue",), "I go on within the new budget."),
    ("custom", (), "This eve has no tools that the application runs."),
    ("secret", (), "This eve has no secrets to ask for."),
    ("sudo", (), "This eve has no passwords to ask for."),
    ("compact", (), "This eve has no compaction within a turn."),
    ("memory", (), "This eve has no notes."),
    ("unknown", (), "This eve has no records that its page does not know."),
    ("long 300", (), "tick 299 "),
)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("script", "answers", "text"), SCRIPTS)
async def test_a_strict_client_accepts_every_script(
    serve: Serve, generation: str, script: str, answers: tuple[str, ...], text: str
) -> None:
    served = await serve(generation)
    # T counts its steps anew after a subagent, which no other server may.
    served.client.real = (generation, script) == ("T", "child")
    session = await served.client.create(f"script: {script}")
    turn = await session.read_turn()
    for answer in answers:
        request = turn.requests[-1]
        words = answer.removeprefix("text:") if answer.startswith("text:") else None
        option = None if words else request["options"][1]["id"] if answer == "no" else answer
        await session.respond(request["requestId"], option, words)
        turn = await session.read_turn()
    assert turn.text is not None
    assert text in turn.text
    assert turn.text.endswith(f"(turn {1})")
    again = session.client.attach(session.session_id)
    whole = [r async for r in again.stream(0, follow=False)]
    assert whole == session.log


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_schema_gets_a_structured_result(serve: Serve, generation: str) -> None:
    served = await serve(generation)
    session = await served.client.create("script: structured", outputSchema={"type": "object"})
    turn = await session.read_turn()
    assert turn.result == {"title": "Towers", "count": 2}
    assert turn.text is None


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("script", ["fail", "failmid"])
async def test_a_failed_turn_is_followed_by_another_one(
    serve: Serve, generation: str, script: str
) -> None:
    served = await serve(generation)
    session = await served.client.create(f"script: {script}")
    turn = await session.read_turn()
    assert turn.types[-3:] == ["step.failed", "turn.failed", "session.waiting"]
    accepted = await session.send("hello")
    turn = await session.read_turn(accepted)
    assert turn.text == "You said: “hello”. (turn 2)"


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_child_has_a_stream_of_its_own_and_asks_on_its_parents(
    serve: Serve, generation: str
) -> None:
    served = await serve(generation)
    served.client.real = True
    session = await served.client.create("script: childask")
    turn = await session.read_turn()
    (request,) = turn.requests
    kind, member = (
        ("subagent.called", "childSessionId")
        if generation == "T"
        else ("agent.started", "sessionId")
    )
    (started,) = turn.data(kind)
    child = served.client.child(started[member])
    assert child.session_id != session.session_id
    records = []
    async for record in child.stream(0):
        records.append(record)
        if record["type"] == "input.requested":
            break
    assert records[-1]["data"]["requests"] == [request]
    await session.respond(request["requestId"], "approve")
    ends = {"T": "subagent.completed", "S2": "task.settled"}[generation]
    async for line in _raw(served.client, session.session_id, session.cursor):
        if line["type"] == ends:
            assert line["data"]["output"] == " Done, 4.1 GB freed."
        if line["type"] == "session.waiting":
            break


async def _raw(client: EveClient, session: str, start: int) -> AsyncIterator[dict[str, Any]]:
    """Records without checks: real T servers break the page's own state machine here."""
    url = f"{client.host}/eve/v1/session/{session}/stream?startIndex={start}"
    async with asyncio.timeout(SOON_S), client.http.get(url) as response:
        async for line in response.content:
            if line.strip():
                yield json.loads(line)


async def test_a_message_that_is_no_answer_withdraws_a_held_approval(serve: Serve) -> None:
    served = await serve("S2")
    session = await served.client.create("script: approve")
    await session.read_turn()
    await session.send("hello")
    turn = await session.read_turn()
    (resolved,) = turn.data("input.resolved")
    assert resolved["resolutions"][0]["outcome"] == "ignored"
    assert turn.data("action.result")[0]["status"] == "rejected"
    assert turn.text == "You said: “hello”. (turn 1)"


async def test_an_answer_to_what_is_closed_is_a_message_and_a_held_question_gives_way(
    serve: Serve,
) -> None:
    served = await serve("S2")
    session = await served.client.create("script: askopen")
    await session.read_turn()
    await session.respond("aitxt-of-another-turn", "cancel")
    turn = await session.read_turn()
    (resolved,) = turn.data("input.resolved")
    assert [(one["kind"], one["outcome"]) for one in resolved["resolutions"]] == [
        ("question", "cancelled")
    ]
    assert turn.data("action.result")[0]["result"]["output"] == {"interrupted": True}
    assert turn.text == "You said: “cancel”. (turn 1)"


async def test_a_cancel_withdraws_a_held_question(serve: Serve) -> None:
    served = await serve("S2")
    session = await served.client.create("script: askopen")
    await session.read_turn()
    assert await session.cancel() == "accepted"
    turn = await session.read_turn()
    (resolved,) = turn.data("input.resolved")
    assert [(one["kind"], one["outcome"]) for one in resolved["resolutions"]] == [
        ("question", "cancelled")
    ]
    assert "turn.cancelled" in turn.types


async def test_a_message_that_is_no_answer_leaves_a_closed_approval_open(serve: Serve) -> None:
    served = await serve("T")
    session = await served.client.create("script: approve")
    (request,) = (await session.read_turn()).requests
    await session.send("hello")
    assert (await session.read_turn()).types == [
        "turn.started",
        "message.received",
        "turn.completed",
        "session.waiting",
    ]
    # What was put aside is said again, and answered after what was asked.
    await session.respond(request["requestId"], "approve")
    assert _steps(await session.read_turn()) == [
        "hello",
        " Done, 4.1 GB freed. (turn 1)",
        "You said: “hello”. (turn 3)",
    ]


def _steps(turn: TurnResult) -> list[str]:
    """What was said in a turn, by people and in each step."""
    assert turn.types[-2:] == ["turn.completed", "session.waiting"]
    said = ("message.received", "message.completed")
    return [r["data"]["message"] for r in turn.records if r["type"] in said]


async def _asked(
    serve: Serve, script: str, *, real: bool = False
) -> tuple[EveSession, list[dict[str, Any]]]:
    """A session of the token generation that waits for answers, and its requests."""
    served = await serve("T")
    served.client.real = real
    session = await served.client.create(f"script: {script}")
    return session, (await session.read_turn()).requests


def _yes(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"requestId": r["requestId"], "optionId": r["options"][0]["id"]} for r in requests]


@pytest.mark.parametrize("choice", ["approve", "deny"])
async def test_a_message_beside_an_answer_is_the_step_after_the_results(
    serve: Serve, choice: str
) -> None:
    session, (request,) = await _asked(serve, "approve")
    answer = {"requestId": request["requestId"], "optionId": choice}
    await session.respond_all([answer], message="script: tool")
    turn = await session.read_turn()
    told = "Done, 4.1 GB freed." if choice == "approve" else "I left /srv/exports/2024 alone."
    received, first, *others = _steps(turn)
    assert received == "script: tool"
    assert told in first
    assert others[-1].endswith("so 19.99 becomes 1998. (turn 2)")
    assert [d["stepIndex"] for d in turn.data("step.started")] == [0, 1, 2]
    # The result of a refused call is of the old turn (section 8.2).
    assert turn.types[0] == ("turn.started" if choice == "approve" else "action.result")
    await session.send("script: text")
    assert len(_steps(await session.read_turn())) == 2


async def test_a_message_beside_all_answers_joins_their_turn(serve: Serve) -> None:
    session, requests = await _asked(serve, "approve2")
    await session.respond_all(_yes(*requests), message="hello")
    turn = await session.read_turn()
    assert _steps(turn)[0] == "hello"
    assert _steps(turn)[2] == "You said: “hello”. (turn 2)"
    assert len(turn.data("action.result")) == 2


async def test_a_message_beside_one_of_two_answers_waits_for_the_other(serve: Serve) -> None:
    session, (one, other) = await _asked(serve, "approve2")
    await session.respond_all(_yes(one), message="first")
    assert _steps(await session.read_turn()) == ["first"]
    await session.respond_all(_yes(other), message="second")
    received, results, said = _steps(await session.read_turn())
    assert received == "first\n\nsecond"
    assert "4.1 GB freed" in results
    assert said == "You said: “first\n\nsecond”. (turn 3)"


async def test_a_message_waits_where_the_agent_asks_once_more(serve: Serve) -> None:
    session, (one,) = await _asked(serve, "approve-twice")
    await session.respond_all(_yes(one), message="hello")
    turn = await session.read_turn()
    (other,) = turn.requests
    assert _steps(turn)[0] == "hello"
    await session.respond_all(_yes(other))
    assert _steps(await session.read_turn())[::2] == ["hello", "You said: “hello”. (turn 3)"]


async def test_a_message_beside_the_answer_to_a_question_is_in_its_step(serve: Serve) -> None:
    session, requests = await _asked(serve, "ask")
    await session.respond_all(_yes(*requests), message="hello")
    turn = await session.read_turn()
    assert _steps(turn) == [
        "hello",
        "Holding a seat on the 07:40. (turn 1)You said: “hello”. (turn 2)",
    ]
    assert len(turn.data("step.started")) == 1


async def test_a_message_beside_the_answer_for_a_child_has_a_turn_of_its_own(serve: Serve) -> None:
    session, requests = await _asked(serve, "childask", real=True)
    await session.respond_all(_yes(*requests), message="hello")
    # The strict client knows no turn without a start, as this one of the child's answer.
    types: list[str] = []
    async for record in _raw(session.client, session.session_id, session.cursor):
        types.append(record["type"])
        if record["type"] == "message.received":
            break
    assert types[-4:] == ["turn.completed", "session.waiting", "turn.started", "message.received"]
    assert "subagent.completed" in types


async def test_what_a_cancel_stops_beside_answers_is_forgotten_or_said_again(serve: Serve) -> None:
    session, requests = await _asked(serve, "approve")
    await session.respond_all(_yes(*requests), message="script: slow 100")
    await _read_to(session, "message.completed")
    await _read_to(session, "message.appended")
    await session.cancel()
    assert "turn.cancelled" in (await session.read_turn()).types
    await session.send("hello")
    received, said = _steps(await session.read_turn())
    assert received == "script: slow 100\n\nhello"
    assert said.startswith("tick 0")


async def test_an_empty_message_beside_answers_is_none(serve: Serve) -> None:
    session, requests = await _asked(serve, "approve")
    with pytest.raises(Refused, match="or both"):
        await session.send("")
    await session.respond_all(_yes(*requests), message="")
    assert len(_steps(await session.read_turn())) == 1


async def test_the_later_generation_takes_no_message_beside_answers(serve: Serve) -> None:
    served = await serve("S2")
    session = await served.client.create("script: approve")
    (request,) = (await session.read_turn()).requests
    with pytest.raises(Refused, match="mutually exclusive"):
        await session.respond_all(_yes(request), message="hello")
    with pytest.raises(Refused, match="Expected a non-empty 'message' or"):
        await session.send("")
    await session.respond_all(_yes(request), message="")
    turn = await session.read_turn()
    assert turn.text == " Done, 4.1 GB freed. (turn 1)"


async def _read_to(session: EveSession, kind: str) -> None:
    async with aclosing(session.stream()) as records:
        async for record in records:
            if record["type"] == kind:
                return


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_cancel_ends_a_running_turn(serve: Serve, generation: str) -> None:
    served = await serve(generation, pace=0.05)
    session = await served.client.create("script: slow 2000")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    assert await session.cancel() == "accepted"
    turn = await session.read_turn()
    assert turn.types[-2:] == ["turn.cancelled", "session.waiting"]
    accepted = await session.send("hello")
    assert (await session.read_turn(accepted)).text == "You said: “hello”. (turn 2)"


async def test_a_cancel_ends_a_held_turn_and_not_a_closed_one(serve: Serve) -> None:
    held, closed = await serve("S2"), await serve("T")
    session = await held.client.create("script: approve")
    await session.read_turn()
    await session.cancel()
    turn = await session.read_turn()
    assert turn.types == ["input.resolved", "turn.cancelled", "session.waiting"]
    session = await closed.client.create("script: approve")
    (request,) = (await session.read_turn()).requests
    assert await session.cancel() == "accepted"
    await session.respond(request["requestId"], "approve")
    assert "turn.cancelled" not in (await session.read_turn()).types


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_controls_are_said_on_the_stream_and_a_reset_ends_the_session(
    serve: Serve, generation: str
) -> None:
    served = await serve(generation)
    session = await served.client.create("script: text")
    await session.read_turn()
    assert await session.compact() == "accepted"
    assert (await session.read_turn()).types == [
        "compaction.requested",
        "compaction.completed",
        "session.waiting",
    ]
    assert await session.clear() == "accepted"
    assert (await session.read_turn()).types == ["context.cleared", "session.waiting"]
    assert await session.reset() == "reset"
    if generation == "S2":
        assert (await session.read_turn()).types == ["session.completed"]
    for control in (session.compact, session.clear, session.reset):
        assert await control() == "no_active_session"
    assert await session.cancel() == "no_active_turn"
    with pytest.raises(Refused) as refused:
        await session.send("hello")
    code = {"T": (404, "SESSION_NOT_RESUMABLE"), "S2": (409, "session_not_active")}
    assert (refused.value.status, refused.value.code) == code[generation]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_recorded_requests_get_the_recorded_answers(generation: str) -> None:
    """`errors.json`: what is refused there is refused here, in the same words."""
    release = {"T": "0.30.8", "S2": "0.80.1"}[generation]
    recorded = json.loads((RECORDINGS / f"eve-{release}/server/errors.json").read_text())

    async def check() -> int:
        app = create_eve_app(variant=EveVariant(generation), pace=0.0)  # type: ignore[arg-type]
        compared = 0
        names: dict[str, str] = {}
        async with TestServer(app) as server, aiohttp.ClientSession() as http:
            for exchange in recorded["exchanges"]:
                request, expected = exchange["request"], exchange["response"]
                if request["method"] != "POST":
                    continue
                path, body = request["path"], request.get("body")
                data = body if isinstance(body, str) else None if body is None else json.dumps(body)
                for theirs, ours in names.items():
                    path = path.replace(theirs, ours)
                    data = None if data is None else data.replace(theirs, ours)
                async with http.post(server.make_url(path), data=data) as response:
                    answer = await response.json()
                if "callback" in (body if isinstance(body, dict) else {}):
                    # Delegation between deployments is not played.
                    continue
                assert response.status == expected["status"], request
                assert answer.keys() == expected["body"].keys(), request
                for member in ("error", "code", "ok", "status"):
                    assert answer.get(member) == expected["body"].get(member), request
                for member in ("sessionId", "continuationToken"):
                    if member in answer:
                        names.setdefault(expected["body"][member], answer[member])
                compared += 1
        return compared

    assert asyncio.run(check()) > 20


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_streams_open_where_they_are_asked_to(serve: Serve, generation: str) -> None:
    served = await serve(generation)
    session = await served.client.create("script: text")
    await session.read_turn()
    last = [r async for r in _some(served, session.session_id, "startIndex=-1")]
    assert last == session.log[-1:]
    everything = [r async for r in _some(served, session.session_id, "startIndex=-1000")]
    assert everything == session.log
    for bad in ("abc", "1.5", ""):
        with pytest.raises(Refused) as refused:
            await served.client.request(
                "GET", f"/eve/v1/session/{session.session_id}/stream?startIndex={bad}"
            )
        assert refused.value.body["error"] == "Expected startIndex to be an integer."


async def _some(served: Served, session: str, query: str) -> AsyncIterator[dict[str, Any]]:
    """What a stream has to say at once."""
    url = f"{served.client.host}/eve/v1/session/{session}/stream?{query}"
    async with served.client.http.get(url) as response:
        body = await response.content.readany()
    for line in body.splitlines():
        if line:
            yield json.loads(line)


async def test_an_unknown_stream_is_404_here_and_empty_there(serve: Serve) -> None:
    newest, tokens = await serve("S2"), await serve("T")
    with pytest.raises(Refused) as refused:
        await newest.client.request("GET", "/eve/v1/session/not-an-id/stream")
    assert refused.value.status == 404
    assert [r async for r in _some(tokens, "not-an-id", "")] == []


async def test_an_idle_stream_beats_and_its_lease_ends(serve: Serve) -> None:
    clock = ManualClock()
    served = await serve("S2", clock=clock)
    session = await served.client.create("script: text")
    await session.read_turn()
    url = f"{served.client.host}/eve/v1/session/{session.session_id}/stream"
    query = {"streamControlVersion": "1", "startIndex": str(session.cursor)}
    async with asyncio.timeout(SOON_S), served.client.http.get(url, params=query) as response:
        assert await response.content.readline() == b"\n"
        for _ in range(5):
            await clock.advance(10)
            assert await response.content.readline() == b"\n"
        await clock.advance(10)
        assert json.loads(await response.content.readline()) == {
            "$eve": "stream.lease-ended",
            "version": 1,
        }
        assert await response.content.read() == b""


async def test_a_key_is_asked_for_before_everything_but_health(serve: Serve) -> None:
    served = await serve("S2", key="k-1")
    assert (await served.client.health())["status"] == "ready"
    with pytest.raises(Refused) as refused:
        await served.client.create("hello")
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")
    served.client.headers = {"Authorization": "Bearer k-1"}
    session = await served.client.create("hello")
    assert (await session.read_turn()).text == "You said: “hello”. (turn 1)"


async def test_a_broken_stream_is_the_same_when_it_is_read_again(serve: Serve) -> None:
    faults = Faults(
        {("stream", 1): Cut(after_event=3), ("stream", 2): Cut(after_event=2, clean=True)}
    )
    served = await serve("S2", faults=faults)
    session = await served.client.create("script: tool")
    turn = await session.read_turn()
    assert turn.types[-1] == "session.waiting"
    assert served.eve.faults.requests["stream"] >= 3


async def test_faults_break_what_they_name(serve: Serve) -> None:
    served = await serve("S2", faults=Faults({("create", 1): Status(503)}))
    with pytest.raises(Refused) as refused:
        await served.client.create("hello")
    assert refused.value.status == 503
    for fault in (HalfFrame(2), Garbage(2, b"{\n")):
        served = await serve("S2", faults=Faults({("stream", 1): fault}))
        session = await served.client.create("script: text")
        with pytest.raises(ProtocolViolation):
            await session.read_turn()


async def test_a_lost_turn_never_ends_and_the_session_goes_on(serve: Serve) -> None:
    served = await serve("S2", pace=0.1, faults=Faults({("stream", 1): LoseTurn(5)}))
    session = await served.client.create("script: slow 50")
    _ = [record async for record in session.stream()]
    await session.send("hello")
    seen = []
    async for record in _raw(served.client, session.session_id, 0):
        seen.append(record["type"])
        if record["type"] == "session.waiting":
            break
    assert seen.count("turn.started") == 2
    assert seen.count("turn.completed") == 1


def test_the_options_choose_the_generation() -> None:
    app = BACKENDS["eve"](ScriptedOptions(key="k", generation="T"))
    assert app[EVE].variant.tokens


async def test_the_generation_between_closes_its_pauses_and_has_no_tokens(serve: Serve) -> None:
    FORMS["S1"] = "newest"
    served = await serve("S1")
    async with served.client.http.post(
        f"{served.client.host}/eve/v1/session", json={"message": "script: approve"}
    ) as response:
        created = await response.json()
    assert created.keys() == {"ok", "sessionId", "status"}
    types = []
    async for record in _raw(served.client, created["sessionId"], 0):
        types.append(record["type"])
        if record["type"] == "session.waiting":
            break
    assert types[-3:] == ["input.requested", "turn.completed", "session.waiting"]
