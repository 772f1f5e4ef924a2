"""What a face may say besides: bodies with whole conversations, names in bodies, the base URL as a
route, a stop by leaving, refusals inside a stream. Held by a made-up dialect over the example of
the documentation."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapters.contract import faces
from adapters.model import events as ev
from adapters.model.base import Response
from adapters.model.commands import AnyCommand, SendMessage
from adapters.registry import DIALECTS
from adapters.wire.errors import ClientProtocolError, ErrorCode
from adapters.wire.jsonvalue import JsonError, format_json, parse_json
from docs.examples.tiny import (
    FACE,
    STATUS,
    TINY,
    TinyEncoder,
    answers,
    head,
    parse_said,
    reading,
    refuse,
)
from proxy.base.metrics import exposition
from proxy.base.repeats import Submission
from proxy.config.settings import ListenerSettings
from proxy.http import bodies
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.sessions.sessions import Sessions
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.support.serving import served
from tests.support.waiting import SOON_S, until
from tests.test_faces import Person, lines, refusal, text_of

Chat = faces.SessionView[TinyEncoder]


@dataclasses.dataclass(frozen=True, slots=True)
class Thread:
    """What a body says: the ids of all messages, and the newest one."""

    chat: str
    ids: Sequence[str]
    text: str
    after: int | None
    anew: bool


def parse(body: bytes, _: faces.Incoming) -> Thread:
    try:
        value: Any = parse_json(body)
        messages = value["messages"]
        ids = [one["id"] for one in messages]
        text = messages[-1]["text"] if messages else ""
        return Thread(value["chat"], ids, text, value.get("after"), value.get("anew", False))
    except (JsonError, KeyError, TypeError):
        raise ClientProtocolError("Give `chat` and `messages`.") from None


def chat_of(_: faces.Incoming, said: Thread) -> faces.Target:
    return faces.ClientNamedSession(said.chat)


def message(incoming: faces.Incoming, text: str) -> SendMessage:
    policy = "queue" if "queue" in incoming.query else "reject"
    return SendMessage.model_validate(
        {"content": [{"type": "text", "text": text}], "policy": policy}
    )


def says(incoming: faces.Incoming, _: Chat, said: Thread) -> Sequence[AnyCommand]:
    return [message(incoming, said.text)] if said.text else []


def opening(incoming: faces.Incoming, said: Thread, _: faces.RouteContext) -> faces.Opening:
    return faces.Opening([message(incoming, said.text)])


def begun(_: faces.Incoming, seen: Chat, said: Thread, command_id: str) -> faces.FrameRange | None:
    first = seen.encoder.state.begun.get(command_id)
    if first is None:
        return None
    return reading(first if said.after is None else said.after + 1, turn=command_id)


def idle(_: faces.Incoming, seen: Chat, said: Thread) -> faces.FrameRange | Response:
    if said.after is None:
        return Response(204)
    return reading(said.after + 1, stop=seen.encoder.next_cursor)


def watched(_: faces.Incoming, __: Chat, said: Thread) -> faces.FrameRange:
    return reading((said.after or 0) + 1)


def refused(failure: faces.RequestFailure) -> Response:
    answer = refuse(failure)
    if failure.said is None:
        return answer
    status = STATUS.get(str(failure.error.code), 400)
    return dataclasses.replace(answer, status=200, refused=status)


def base(method: str, does: faces.Act) -> faces.Route:
    example = faces.Example({"chat": "{session}", "messages": [{"id": "m", "text": "hello"}]})
    return faces.Route(method=method, path="", needs=faces.Action.WRITE, example=example, does=does)


BODY = faces.RequestBody(parse, takes="conversation")
SAY = base(
    "POST",
    faces.Submit(
        body=BODY,
        where=chat_of,
        opens=opening,
        names=lambda _, said: said.ids,
        anew=lambda _, __, said: said.anew,
        commands=says,
        answer=faces.TurnBody(
            headers=head,
            begun=begun,
            over=lambda seen: seen.encoder.state.ended,
            nothing=idle,
            cut=lambda _, said: format_json({"type": "cut", "chat": said.chat}) + b"\n",
            stops=lambda incoming: "stops" in incoming.query,
        ),
    ),
)
WATCH = dataclasses.replace(
    base("POST", faces.Stream(body=BODY, where=chat_of, reading=watched)), path="/watch"
)
RESUME = dataclasses.replace(
    FACE.routes[1],
    path="/resume",
    does=faces.Submit(
        body=faces.RequestBody(parse_said, takes="answer"),
        where=lambda _, said: faces.ClientNamedSession(said.chat),
        commands=answers,
        answer=faces.TurnBody(
            headers=head,
            begun=lambda _, seen, __, ___: reading(
                seen.encoder.next_cursor, turn=seen.encoder.state.running
            ),
            over=lambda seen: seen.encoder.state.ended,
            stops=lambda _: True,
        ),
    ),
)
LOOP = dataclasses.replace(
    TINY,
    face=dataclasses.replace(FACE, refuse=refused, routes=(SAY, WATCH, RESUME, *FACE.routes)),
)
LISTENER = {"listen": "127.0.0.1:0", "dialect": "tiny", "route": "engine"}
MOST_TAKEN = ", the most that is taken here."
KEYS = (key_of("ann"), key_of("bob"))


@pytest.fixture(autouse=True)
def loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "tiny", LOOP)


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    listeners = (ListenerSettings.model_validate(LISTENER),)
    async with proxied(listeners=listeners, keys=KEYS) as running:
        yield running


def thread(*messages: str, chat: str = "c1", **members: Any) -> dict[str, Any]:
    """A conversation, of whose messages each is its id too."""
    said = [{"id": text[:40], "text": text} for text in messages]
    return {"chat": chat, "messages": said, **members}


def large(value: Any) -> io.BytesIO:
    """A body that aiohttp's client sends without a warning."""
    return io.BytesIO(json.dumps(value).encode())


def accepted(entries: Sequence[ev.Event]) -> list[str]:
    return [event.kind for event in entries if isinstance(event, ev.InputAccepted)]


async def log(dragoman: Proxied, chat: str = "c1") -> list[ev.Event]:
    session = await dragoman.sessions.get(chat, owner="ann", route="engine")
    return [
        ev.Entry.decode(line, session_id=session.id).event
        async for chunk in dragoman.sessions.journal.scan(session.row.key)
        for line in chunk.body.splitlines()
    ]


# A whole conversation.


@pytest.mark.parametrize("old", [False, True])
async def test_of_a_whole_conversation_only_what_is_new_may_not_be_longer_than_a_text(
    old: bool,
) -> None:
    server = {"max_text_bytes": 2000, "max_body_bytes": 100_000, "max_bodies_bytes": 1_000_000}
    async with proxied(keys=KEYS, server=server) as dragoman:
        ann = Person(dragoman)
        if old:
            await ann.ask("POST", "", json=thread("hello"))
        status, body = await ann.ask("POST", "", json=thread("x" * 50_000, "and more"))
        assert (status, "“and more”" in text_of(body)) == (200, True)
        long = thread("y" * 2001, chat="c1" if old else "c2")
        status, body = await ann.ask("POST", "", json=long)
        assert (status, json.loads(body)) == (
            200,
            {
                "error": "too_large",
                "message": f"What is new in the body is larger than 2000 bytes{MOST_TAKEN}",
            },
        )
        assert refusal(await ann.ask("POST", "", json=thread("x" * 100_000))) == (413, "too_large")
        # Others are not longer than before.
        assert refusal(await ann.say("x" * 3000)) == (413, "too_large")


async def test_a_whole_conversation_has_more_values_than_a_message_and_not_any_number(
    dragoman: Proxied,
) -> None:
    ann = Person(dragoman)
    many = thread(*map(str, range(bodies.VALUES)))
    assert (await ann.ask("POST", "", data=large(many)))[0] == 200
    many["more"] = [0] * 200_000
    assert refusal(await ann.ask("POST", "", data=large(many))) == (413, "too_large")


# Repeats.


async def test_equal_names_in_a_body_are_the_same_request_whatever_else_is_in_it(
    dragoman: Proxied,
) -> None:
    ann = Person(dragoman)
    _, first = await ann.ask("POST", "", json=thread("one"))
    again = thread("one", more="history")
    assert await ann.ask("POST", "", json=again, headers={"Idempotency-Key": "k"}) == (200, first)
    _, second = await ann.ask("POST", "", json=thread("one", "two"))
    assert "“two”" in text_of(second)
    # The order of names says nothing, and neither does a key.
    swapped = thread("two", "one")
    assert await ann.ask("POST", "", json=swapped, headers={"Idempotency-Key": "k"}) == (
        200,
        second,
    )
    _, third = await ann.ask("POST", "", json=thread("3"), headers={"Idempotency-Key": "k"})
    assert "“3”" in text_of(third)
    assert accepted(await log(dragoman)) == ["message"] * 3


async def test_names_hold_within_a_session_and_not_where_they_are_asked_for_anew(
    dragoman: Proxied,
) -> None:
    ann = Person(dragoman)
    _, first = await ann.ask("POST", "", json=thread("one"))
    _, other = await ann.ask("POST", "", json=thread("one", chat="c2"))
    assert lines(other)[0]["n"] == 0
    assert accepted(await log(dragoman, "c2")) == ["message"]
    _, anew = await ann.ask("POST", "", json=thread("one", anew=True))
    assert lines(anew)[0]["n"] == lines(first)[-1]["n"] + 1
    # The newest has them.
    assert await ann.ask("POST", "", json=thread("one")) == (200, anew)


async def test_a_request_that_comes_again_while_its_turn_runs_joins_it(dragoman: Proxied) -> None:
    ann = Person(dragoman)
    async with asyncio.timeout(SOON_S), ann.stream("", json=thread("script: approve")) as turn:
        shown = await until_asked(turn)
        async with ann.stream("", json=thread("script: approve", more=1)) as again:
            joined = await until_asked(again)
            given = {"chat": "c1", "ask": shown[-1]["ask"], "text": "yes"}
            assert (await ann.ask("POST", "/answer", json=given))[0] == 200
            joined += lines(await again.text())
        shown += lines(await turn.text())
    assert joined == shown
    assert accepted(await log(dragoman)) == ["message", "answer"]


async def test_equal_requests_at_once_are_one(dragoman: Proxied) -> None:
    ann = Person(dragoman)
    answers = await asyncio.gather(
        *(ann.ask("POST", "", json=thread("one", more=number)) for number in range(3))
    )
    assert len(set(answers)) == 1
    assert accepted(await log(dragoman)) == ["message"]


@pytest.mark.parametrize("later", [False, True])
async def test_names_are_known_after_a_restart(tmp_path: Path, later: bool) -> None:
    journal = {"url": f"sqlite:///{tmp_path / 'journal.db'}"}
    said = thread("one", "two") if later else thread("one")
    async with proxied(keys=KEYS, journal=journal) as dragoman:
        ann = Person(dragoman)
        first = await ann.ask("POST", "", json=thread("one"))
        if later:
            first = await ann.ask("POST", "", json=said)
    async with proxied(keys=KEYS, journal=journal) as dragoman:
        again = {**said, "more": 1}
        assert await Person(dragoman).ask("POST", "", json=again) == first
        assert accepted(await log(dragoman)) == ["message"] * (1 + later)


# Where a body begins.


async def test_a_turns_body_begins_where_its_request_says(dragoman: Proxied) -> None:
    ann = Person(dragoman)
    _, first = await ann.ask("POST", "", json=thread("one"))
    _, second = await ann.ask("POST", "", json=thread("one", "two", after=1))
    assert second.startswith("".join(first.splitlines(keepends=True)[2:]))
    assert "“two”" in text_of(second)


async def test_a_request_without_a_command_is_answered_or_reads(dragoman: Proxied) -> None:
    ann = Person(dragoman)
    _, first = await ann.ask("POST", "", json=thread("one"))
    empty = {"chat": "c1", "messages": []}
    assert await ann.ask("POST", "", json=empty) == (204, "")
    status, rest = await ann.ask("POST", "", json={**empty, "after": 0})
    assert (status, rest) == (200, "".join(first.splitlines(keepends=True)[1:]))


async def test_what_is_followed_may_be_named_in_a_body(dragoman: Proxied) -> None:
    ann = Person(dragoman)
    _, first = await ann.ask("POST", "", json=thread("one"))
    wanted = large(thread("x" * 2**21, after=0))
    async with asyncio.timeout(SOON_S), ann.stream("/watch", data=wanted) as watched:
        shown = await watched.content.readline()
        assert shown.decode() == first.splitlines(keepends=True)[1]
    assert refusal(await ann.ask("POST", "/watch", data=b"{")) == (400, "invalid_request")
    gone = await ann.ask("POST", "/watch", json=thread("one", chat="c9"))
    assert refusal(gone) == (200, "not_found")


# The base URL.


async def test_the_base_url_is_a_route_with_a_slash_and_without_and_on_listeners(
    dragoman: Proxied,
) -> None:
    (listener,) = dragoman.listeners
    known = f"{dragoman.url}/as/tiny/to/engine"
    for number, address in enumerate((known, f"{known}/", listener.url, f"{listener.url}/")):
        ann = Person(dragoman, root=address)
        status, body = await ann.ask("POST", "", json=thread(f"hello {number}"))
        assert (status, f"hello {number}" in text_of(body)) == (200, True)
        status, page = await ann.ask("GET", "")
        assert (status, "They ask it with POST." in page) == (200, True)
        status, _ = await ann.ask("HEAD", "")
        assert status == 200
        status, body = await ann.ask("PUT", "")
        assert (status, json.loads(body)["message"]) == (
            400,
            "The base URL itself takes GET and POST only. "
            "Below it there are `/answer`, `/resume`, `/say`, `/watch` and what is below these.",
        )


async def test_a_get_route_at_the_base_url_takes_the_place_of_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    get = base("GET", faces.Static(lambda _, __: Response(200, head(), b"{}\n")))
    face = dataclasses.replace(FACE, routes=(get, *FACE.routes))
    monkeypatch.setitem(DIALECTS, "tiny", dataclasses.replace(TINY, face=face))
    async with proxied(keys=KEYS) as dragoman:
        ann = Person(dragoman)
        for path in ("", "/"):
            assert await ann.ask("GET", path) == (200, "{}\n")
        assert (await Person(dragoman, key=None).ask("GET", ""))[0] == 401


# Leaving.


async def until_asked(turn: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    while not shown or shown[-1]["type"] != "ask":
        line = (await turn.content.readline()).strip()
        if line:
            shown.append(json.loads(line))
    return shown


@contextlib.asynccontextmanager
async def asked(ann: Person, query: str = "?stops") -> AsyncIterator[aiohttp.ClientResponse]:
    """A turn that waits for an answer; at the end its client leaves."""
    async with (
        asyncio.timeout(SOON_S),
        ann.stream(query, json=thread("script: approve")) as turn,
    ):
        await until_asked(turn)
        yield turn
        turn.close()


async def outcomes(dragoman: Proxied) -> list[str]:
    return [one.outcome for one in await log(dragoman) if isinstance(one, ev.TurnEnded)]


@pytest.fixture
async def stoppable() -> AsyncIterator[Proxied]:
    """A proxy in front of a backend that can be stopped."""
    app = BACKENDS["herm"](ScriptedOptions(key=BACKEND_KEY, pace=0.0))
    async with (
        served(app) as url,
        proxied(backends=[backend_settings("engine", "herm", url)], keys=KEYS) as running,
    ):
        yield running


async def test_who_leaves_stops_the_turn_where_that_is_set(stoppable: Proxied) -> None:
    async with asked(Person(stoppable)):
        pass
    session = await stoppable.sessions.get("c1", owner="ann", route="engine")
    await stoppable.until_idle(session.id)
    stops = [
        event
        for event in await log(stoppable)
        if isinstance(event, ev.InputAccepted) and event.kind == "interrupt"
    ]
    assert [(stop.by, stop.face) for stop in stops] == [("ann", "tiny")]
    assert await outcomes(stoppable) == ["interrupted"]


async def answer(dragoman: Proxied, ann: Person) -> None:
    """Say yes to what is asked."""
    session = await dragoman.sessions.get("c1", owner="ann", route="engine")
    (ask,) = session.open_interactions()
    given = {"chat": "c1", "ask": ask.request_id, "text": "yes"}
    assert (await ann.ask("POST", "/answer", json=given))[0] == 200


async def test_who_leaves_once_a_message_that_waited_has_its_turn_stops_it(
    stoppable: Proxied,
) -> None:
    ann = Person(stoppable)
    waiting = thread("once", "script: approve")
    async with (
        asked(ann, ""),
        asyncio.timeout(SOON_S),
        ann.stream("?stops&queue", json=waiting) as queued,
    ):
        await answer(stoppable, ann)
        await until_asked(queued)
        queued.close()
        session = await stoppable.sessions.get("c1", owner="ann", route="engine")
        await stoppable.until_idle(session.id, turns=2)
    assert await outcomes(stoppable) == ["completed", "interrupted"]


async def test_who_answers_and_leaves_stops_the_turn_that_goes_on(stoppable: Proxied) -> None:
    ann = Person(stoppable)
    async with asyncio.timeout(SOON_S):
        async with ann.stream("", json=thread("script: approve-twice")) as turn:
            (*_, ask) = await until_asked(turn)
        given = {"chat": "c1", "ask": ask["ask"], "text": "yes"}
        async with ann.stream("/resume", json=given) as resumed:
            await until_asked(resumed)
            resumed.close()
    session = await stoppable.sessions.get("c1", owner="ann", route="engine")
    await stoppable.until_idle(session.id)
    assert await outcomes(stoppable) == ["interrupted"]


@pytest.mark.parametrize("left", ["before it is taken", "as soon as it is taken"])
async def test_who_leaves_before_there_is_an_answer_stops_the_turn_too(
    stoppable: Proxied, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    arrived, go_on, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
    make, over = Sessions.create_with, Submission.over

    async def held(self: Sessions, *args: Any, **named: Any) -> Any:
        made = None if left.startswith("before") else await make(self, *args, **named)
        arrived.set()
        await go_on.wait()
        return made or await make(self, *args, **named)

    def tell(self: Submission, *, whole: bool) -> None:
        over(self, whole=whole)
        gone.set()

    monkeypatch.setattr(Sessions, "create_with", held)
    monkeypatch.setattr(Submission, "over", tell)
    ann = Person(stoppable)
    asking = asyncio.create_task(ann.ask("POST", "?stops", json=thread("script: approve")))
    async with asyncio.timeout(SOON_S):
        await arrived.wait()
        asking.cancel()
        await gone.wait()
        go_on.set()
        await until(lambda: len(stoppable.sessions) == 1)
    session = await stoppable.sessions.get("c1", owner="ann", route="engine")
    await stoppable.until_idle(session.id)
    assert await outcomes(stoppable) == ["interrupted"]


async def test_who_leaves_a_backend_that_cannot_be_stopped_leaves_the_turn_as_it_is(
    dragoman: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ann = Person(dragoman)
    async with asked(ann):
        pass
    await until(lambda: "is not stopped: " in caplog.text)
    await goes_on(dragoman, ann)


async def test_who_leaves_stops_nothing_by_default(stoppable: Proxied) -> None:
    ann = Person(stoppable)
    async with asked(ann, ""):
        pass
    session = await stoppable.sessions.get("c1", owner="ann", route="engine")
    await until(lambda: session.feeds.readers == 0)
    await goes_on(stoppable, ann)


async def goes_on(dragoman: Proxied, ann: Person) -> None:
    """The turn waits as before, and nobody has stopped it."""
    session = await dragoman.sessions.get("c1", owner="ann", route="engine")
    (ask,) = session.open_interactions()
    given = {"chat": "c1", "ask": ask.request_id, "text": "yes"}
    assert (await ann.ask("POST", "/answer", json=given))[0] == 200
    await dragoman.until_idle(session.id)
    assert "interrupt" not in accepted(await log(dragoman))
    assert await outcomes(dragoman) == ["completed"]


async def test_a_repeat_that_leaves_stops_nothing(stoppable: Proxied) -> None:
    ann = Person(stoppable)
    async with asked(ann) as turn:
        session = await stoppable.sessions.get("c1", owner="ann", route="engine")
        async with asked(ann):
            assert session.feeds.readers == 2
        await until(lambda: session.feeds.readers == 1)
        await goes_on(stoppable, ann)
        assert lines(await turn.text())[-1]["type"] == "over"


async def test_who_has_read_the_end_and_leaves_stops_nothing(stoppable: Proxied) -> None:
    ann = Person(stoppable)
    async with asyncio.timeout(SOON_S), ann.stream("?stops", json=thread("one")) as turn:
        assert lines(await turn.text())[-1]["type"] == "over"
        turn.close()
    async with asked(ann, ""):
        pass
    await goes_on_after(stoppable, ann)


async def goes_on_after(dragoman: Proxied, ann: Person) -> None:
    session = await dragoman.sessions.get("c1", owner="ann", route="engine")
    (ask,) = session.open_interactions()
    given = {"chat": "c1", "ask": ask.request_id, "text": "yes"}
    assert (await ann.ask("POST", "/answer", json=given))[0] == 200
    await dragoman.until_idle(session.id, turns=2)
    assert "interrupt" not in accepted(await log(dragoman))


async def test_who_leaves_while_another_message_has_the_turn_stops_nothing(
    stoppable: Proxied,
) -> None:
    ann = Person(stoppable)
    async with asked(ann, ""):
        session = await stoppable.sessions.get("c1", owner="ann", route="engine")
        waiting = thread("script: approve", "later")
        async with asyncio.timeout(SOON_S), ann.stream("?stops&queue", json=waiting) as queued:
            assert queued.status == 200
            await until(lambda: session.feeds.readers == 2)
            queued.close()
        await until(lambda: session.feeds.readers == 1)
        await goes_on_after(stoppable, ann)
    assert await outcomes(stoppable) == ["completed"] * 2


@pytest.mark.parametrize("query", ["?stops", ""])
async def test_a_server_that_stops_ends_bodies_with_words_and_stops_no_turn(query: str) -> None:
    async with proxied(keys=KEYS) as dragoman:
        ann = Person(dragoman)
        async with (
            asyncio.timeout(SOON_S),
            ann.stream(query, json=thread("script: approve")) as turn,
        ):
            await until_asked(turn)
            await dragoman.sessions.drain(0.0)
            assert lines(await turn.text()) == [{"type": "cut", "chat": "c1"}]
        assert "interrupt" not in accepted(await log(dragoman))


@pytest.mark.parametrize("words", [True, False])
async def test_a_body_in_which_something_goes_wrong_ends_with_words_or_breaks_off(
    monkeypatch: pytest.MonkeyPatch, words: bool
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("nothing of this is shown")

    assert isinstance(SAY.does, faces.Submit)
    body = SAY.does.answer
    assert isinstance(body, faces.TurnBody)
    body = dataclasses.replace(body, begun=broken, cut=body.cut if words else None)
    route = dataclasses.replace(SAY, does=dataclasses.replace(SAY.does, answer=body))
    face = dataclasses.replace(FACE, routes=(route, *FACE.routes))
    monkeypatch.setitem(DIALECTS, "tiny", dataclasses.replace(TINY, face=face))
    async with proxied(keys=KEYS) as dragoman:
        ann = Person(dragoman)
        if words:
            status, text = await ann.ask("POST", "?stops", json=thread("one"))
            assert (status, lines(text)) == (200, [{"type": "cut", "chat": "c1"}])
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await ann.ask("POST", "?stops", json=thread("one"))
        session = await dragoman.sessions.get("c1", owner="ann", route="engine")
        await dragoman.until_idle(session.id)
        assert accepted(await log(dragoman)) == ["message"]


# Refusals.


def refusals(status: int) -> float:
    """How many requests of the face were counted under a status."""
    name = f'dragoman_http_requests_total{{face="tiny",status="{status}"}} '
    text = exposition(sessions=0, readers=0, stored=0, backlog=0).decode()
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if name in line)


async def test_a_refusal_inside_a_stream_is_counted_and_told_as_one(
    dragoman: Proxied, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    ann = Person(dragoman)
    async with asked(ann, ""):
        before, busy = refusals(200), refusals(409)
        said = thread("two")
        for _ in range(2):
            # What was refused is not remembered as taken.
            answer = await ann.ask("POST", "", json=said, headers={"Idempotency-Key": "k"})
            assert refusal(answer) == (200, "paused")
        assert (refusals(200), refusals(409)) == (before, busy + 2)
    assert accepted(await log(dragoman)) == ["message"]

    def forbidden(_: faces.Incoming, said: Thread) -> faces.Action:
        raise ClientProtocolError("no", code=ErrorCode.FORBIDDEN)

    caplog.clear()
    assert isinstance(SAY.does, faces.Submit)
    route = dataclasses.replace(SAY, does=dataclasses.replace(SAY.does, needs=forbidden))
    face = dataclasses.replace(FACE, refuse=refused, routes=(route, *FACE.routes))
    monkeypatch.setitem(DIALECTS, "tiny", dataclasses.replace(TINY, face=face))
    async with proxied(keys=KEYS) as other:
        assert refusal(await Person(other).ask("POST", "", json=said)) == (200, "forbidden")
    (line,) = [one.getMessage() for one in caplog.records if hasattr(one, "face")]
    assert line.startswith("POST /as/tiny/to/{route} is refused with 403, to ")
