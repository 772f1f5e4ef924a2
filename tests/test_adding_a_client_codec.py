"""The example of a client codec drives a backend of its protocol, and the page that explains it
names every method that there is."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from adapters.contract.step import apply
from adapters.model import events as ev
from adapters.model.base import ClientCodec, Response
from adapters.model.commands import SendMessage
from adapters.model.stored import StoredByNewer
from adapters.offline.moves.handover import HandoverCodec
from adapters.registry import DIALECTS
from docs.examples import tiny_backend
from proxy.migration import moving
from proxy.session.admission import Admission
from proxy.session.inbound import InboundReader
from proxy.session.log_writer import LogWriter
from proxy.session.notices import judge, no_stream
from proxy.session.outbound import CommandSender
from proxy.session.outbox import Outbox
from proxy.session.session import Session
from proxy.session.watcher import Watcher
from proxy.sessions.backends import Backends
from tests.support.dragoman import KNOWN, Backend, Dragoman, Known, Start, starts
from tests.support.eve_client import Refused
from tests.support.waiting import SOON_S, stored, until

REPOSITORY = Path(__file__).parent.parent

start_dragoman = starts(Dragoman)


class Chat:
    """A chat: its lines so far, and what its agent waits for."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.over = True
        self.asked: dict[str, asyncio.Future[str]] = {}
        self.news = asyncio.Event()

    def write(self, type_: str, **members: Any) -> None:
        line = {"n": len(self.lines), "type": type_, **members}
        self.lines.append(json.dumps(line).encode() + b"\n")
        self.over = type_ == "over"
        self.news.set()
        self.news = asyncio.Event()


class TinyAgent:
    """A scripted server of the protocol: what is said names the script. `gate` is what a slow turn
    waits for; `lost` names requests whose answers are lost once, and whether they are taken.
    Messages `hang` that get no answer at all."""

    def __init__(self) -> None:
        self.chats: dict[str, Chat] = {}
        self.posts: list[tuple[str, dict[str, str]]] = []
        self.reads: list[str] = []
        self.gate = asyncio.Event()
        self.lost: dict[str, bool] = {}
        self.hang = False
        self._turns: set[asyncio.Task[None]] = set()

    def said(self) -> list[str]:
        return [body["text"] for path, body in self.posts if path == "/say"]

    async def say(self, request: web.Request) -> web.StreamResponse:
        body = await self._posted(request)
        chat, words = self.chats.setdefault(body["chat"], Chat()), body["text"]
        if words == "refuse":
            return web.json_response({"error": "rude", "message": "Say please."}, status=422)
        if words == "fail":
            return web.Response(status=500, text="oops")
        first = len(chat.lines)
        if self.lost.get("/say", True):
            chat.over = False
            turn = asyncio.create_task(self._turn(chat, words))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)
        if self.hang:
            await asyncio.Event().wait()
        if self.lost.pop("/say", None) is not None:
            return _cut(request)
        return await self._stream(request, chat, first, most=2 if words == "break" else None)

    async def read(self, request: web.Request) -> web.StreamResponse:
        chat = self.chats.setdefault(request.match_info["chat"], Chat())
        self.reads.append(request.query["after"])
        return await self._stream(request, chat, int(request.query["after"]) + 1)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await self._posted(request)
        asked = self.chats[body["chat"]].asked
        if self.lost.get("/answer", True):
            if body["ask"] not in asked or asked[body["ask"]].done():
                answer = {"error": "already_answered", "message": "Somebody was faster."}
                return web.json_response(answer, status=409)
            asked[body["ask"]].set_result(body["text"])
        if self.lost.pop("/answer", None) is not None:
            return _cut(request)
        return web.json_response({})

    async def _posted(self, request: web.Request) -> dict[str, str]:
        body: dict[str, str] = await request.json()
        self.posts.append((request.path, body))
        return body

    async def _stream(
        self, request: web.Request, chat: Chat, at: int, most: int | None = None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        while True:
            news = chat.news
            for line in chat.lines[at : None if most is None else at + most]:
                await response.write(line)
                at += 1
                most = None if most is None else most - 1
            if most == 0:
                return _cut(request)
            if chat.over and at >= len(chat.lines):
                return response
            await news.wait()

    async def _turn(self, chat: Chat, words: str) -> None:
        chat.write("said", text=words)
        chat.write("text", text="Let me ")
        if words == "slow":
            await self.gate.wait()
        chat.write("text", text="see. ")
        if words == "odd":
            chat.lines.append(b"this is not JSON\n")
            chat.write("mood", mood="fine")
            chat.write("text")
        failed = False
        if words in ("tool", "approve"):
            number = len(chat.lines)
            chat.write("tool", call=f"call-{number}", name="rm", input={"path": "/tmp"})
            if words == "approve":
                failed = await self._ask(chat, "approval", ["Yes", "No"]) == "no"
            output = "denied" if failed else "gone"
            chat.write("result", call=f"call-{number}", output=output, failed=failed)
        if words == "ask":
            chat.write("text", text=await self._ask(chat, "question", ["red", "blue"]))
        chat.write("text", text="Kept." if failed else "Done.")
        chat.write("over", outcome="failed" if words == "failing" else "completed")

    async def _ask(self, chat: Chat, kind: str, options: list[str]) -> str:
        name = f"ask-{len(chat.lines)}"
        chat.asked[name] = asyncio.get_running_loop().create_future()
        chat.write("ask", ask=name, kind=kind, text="Shall I?", options=options)
        words = await chat.asked[name]
        outcome = {"yes": "approved", "no": "denied"}.get(words, "answered")
        chat.write("answered", ask=name, outcome=outcome)
        return words

    async def close(self, _: web.Application) -> None:
        for turn in self._turns:
            turn.cancel()


def _cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


AGENT = web.AppKey("agent", TinyAgent)


def create_tiny_app(*, key: str, pace: float) -> web.Application:
    """Make the application of a scripted server, as the rig asks for it."""

    @web.middleware
    async def guard(request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "unauthorized", "message": "No."}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    agent, app = TinyAgent(), web.Application(middlewares=[guard])
    app[AGENT] = agent
    app.on_cleanup.append(agent.close)
    app.router.add_post("/say", agent.say)
    app.router.add_post("/answer", agent.answer)
    app.router.add_get("/chats/{chat}", agent.read)
    return app


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "tiny", tiny_backend.TINY)
    monkeypatch.setitem(cast(Any, KNOWN), "tiny", Known(create_tiny_app, AGENT))


class Rig:
    """A Dragoman over one scripted server, and a person at its Tiny face."""

    def __init__(self, dragoman: Dragoman) -> None:
        self.dragoman = dragoman
        self.agent: TinyAgent = dragoman.scripted["tiny"]

    def ask(self, method: str, path: str, **options: Any) -> Any:
        return self.dragoman.http.request(
            method, self.dragoman.face("tiny", "tiny") + path, **options
        )

    async def post(self, path: str, **members: str) -> tuple[int, str]:
        async with self.ask("POST", path, json={"chat": "c1", **members}) as response:
            return response.status, await response.text()

    async def say(self, text: str) -> list[dict[str, Any]]:
        """Say something; return the lines of its whole turn."""
        async with asyncio.timeout(SOON_S):
            status, body = await self.post("/say", text=text)
        assert status == 200, body
        return lines(body)

    async def shown(self) -> list[dict[str, Any]]:
        async with self.ask("GET", "/chats/c1") as response:
            # There is no chat before its first message is stored.
            return lines(await response.text()) if response.status == 200 else []

    async def until_shown(self, type_: str, times: int = 1) -> dict[str, Any]:
        """Wait until a line of a type is shown so many times; return the last of them."""
        async with asyncio.timeout(SOON_S):
            while True:
                found = [line for line in await self.shown() if line["type"] == type_]
                if len(found) >= times:
                    return found[-1]
                await asyncio.sleep(0.01)

    async def log(self) -> list[ev.Event]:
        (session,) = [one.id for one in self.dragoman.sessions.cache]
        return await self.dragoman.log(session)


def lines(body: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines() if line]


def text_of(shown: list[dict[str, Any]]) -> str:
    return "".join(line["text"] for line in shown if line["type"] == "text")


def only(events: list[ev.Event], kind: type[Any]) -> Any:
    (found,) = [event for event in events if isinstance(event, kind)]
    return found


async def until_released(rig: Rig) -> None:
    """Wait until what is asked may be answered again."""
    (session,) = rig.dragoman.sessions.cache
    open_ = session.state.interactions
    await until(lambda: stored(session) and all(one.claimed_by is None for one in open_.values()))


@pytest.fixture
async def rig(start_dragoman: Start[Dragoman]) -> Rig:
    return Rig(await start_dragoman("sqlite", backends={"tiny": Backend("tiny")}, speed=20.0))


async def test_text_and_a_tool_cross_to_a_frontend_of_the_same_protocol(rig: Rig) -> None:
    first = await rig.say("hello")
    assert [line["type"] for line in first] == ["said", "text", "text", "text", "over"]
    assert text_of(first) == "Let me see. Done."
    second = await rig.say("tool")
    assert {(line["name"], line["input"]["path"]) for line in second if line["type"] == "tool"} == {
        ("rm", "/tmp")
    }
    (result,) = [line for line in second if line["type"] == "result"]
    assert (result["output"], result["failed"]) == ("gone", False)
    assert second[-1]["outcome"] == "completed"
    assert only(await rig.log(), ev.ToolCalled).permission == "allow"
    # Both bodies were read to their ends: nothing was asked for again.
    assert (rig.agent.said(), rig.agent.reads) == (["hello", "tool"], [])


async def test_an_approval_is_allowed_and_denied(rig: Rig) -> None:
    for words, outcome, end in (("yes", "approved", "Done."), ("no", "denied", "Kept.")):
        before = len(rig.agent.said())
        turn = asyncio.create_task(rig.say("approve"))
        asked = await rig.until_shown("ask", before + 1)
        assert (asked["kind"], asked["options"]) == ("approval", ["Yes", "No"])
        assert await rig.post("/answer", ask=asked["ask"], text=words) == (200, "{}\n")
        shown = await turn
        (answered,) = [line for line in shown if line["type"] == "answered"]
        assert (answered["ask"], answered["outcome"]) == (asked["ask"], outcome)
        assert text_of(shown).endswith(end)
        assert rig.agent.posts[-1][1]["text"] == words
    log = await rig.log()
    calls = [event for event in log if isinstance(event, ev.ToolCalled)]
    asks = [event for event in log if isinstance(event, ev.InteractionRequested)]
    assert [call.permission for call in calls] == ["ask", "ask"]
    assert [ask.call_id for ask in asks] == [call.call_id for call in calls]
    results = [event for event in log if isinstance(event, ev.ToolReturned)]
    assert [result.status for result in results] == ["completed", "failed"]
    # What the codec says obeys the laws as it is.
    (session,) = rig.dragoman.sessions.cache
    assert [rule for rule, times in session.repairs.items() if times] == []


async def test_a_question_is_answered_from_a_frontend_of_another_dialect(rig: Rig) -> None:
    client = rig.dragoman.eve_client("tiny")
    session = await client.create("ask")
    first = await session.read_turn()
    (request,) = first.requests
    assert [option["id"] for option in request["options"]] == ["red", "blue"]
    await session.respond(request["requestId"], option_id="blue")
    second = await session.read_turn()
    assert (second.status, second.text) == ("waiting", "blueDone.")


async def test_an_approval_is_denied_from_a_frontend_of_another_dialect(rig: Rig) -> None:
    session = await rig.dragoman.eve_client("tiny").create("approve")
    (request,) = (await session.read_turn()).requests
    assert request["action"]["toolName"] == "rm"
    await session.respond(request["requestId"], option_id="No")
    result = await session.read_turn()
    assert (result.text, rig.agent.posts[-1][1]["text"]) == ("Kept.", "no")


async def test_what_the_protocol_cannot_carry_is_refused_before_it_is_stored(rig: Rig) -> None:
    session = await rig.dragoman.eve_client("tiny").create("hello")
    await session.read_turn()
    with pytest.raises(Refused, match="client_context"):
        await session.send("and this", clientContext="a page")
    with pytest.raises(Refused, match="block is impossible"):
        await session.send([{"type": "file", "data": "aGk=", "mediaType": "text/plain"}])
    assert rig.agent.said() == ["hello"]


async def test_a_refusal_reaches_the_frontend_in_the_words_of_the_backend(rig: Rig) -> None:
    assert (await rig.say("refuse"))[-1]["outcome"] == "refused"
    settled = only(await rig.log(), ev.InputSettled)
    assert (settled.error.code, settled.error.message) == ("rude", "Say please.")
    # The chat is as it was.
    assert text_of(await rig.say("hello")) == "Let me see. Done."


async def test_a_body_that_breaks_is_read_on_where_it_broke(rig: Rig) -> None:
    shown = await rig.say("break")
    assert (text_of(shown), shown[-1]["outcome"]) == ("Let me see. Done.", "completed")
    assert (rig.agent.said(), rig.agent.reads) == (["break"], ["1"])


async def test_a_restart_in_the_middle_of_a_turn_reads_the_rest_of_it(rig: Rig) -> None:
    turn = asyncio.create_task(rig.post("/say", text="slow"))
    await rig.until_shown("text")
    await rig.dragoman.restart()
    with contextlib.suppress(aiohttp.ClientError):
        await turn
    rig.agent.gate.set()
    await rig.until_shown("over")
    shown = await rig.shown()
    assert [line["type"] for line in shown] == ["said", "text", "text", "text", "over"]
    assert (text_of(shown), rig.agent.reads) == ("Let me see. Done.", ["1"])
    assert rig.agent.said() == ["slow"]


async def test_an_answer_is_given_after_a_restart_in_the_pause(rig: Rig) -> None:
    turn = asyncio.create_task(rig.post("/say", text="approve"))
    asked = await rig.until_shown("ask")
    await rig.dragoman.restart()
    with contextlib.suppress(aiohttp.ClientError):
        await turn
    assert (await rig.post("/answer", ask=asked["ask"], text="yes"))[0] == 200
    await rig.until_shown("over")
    shown = await rig.shown()
    assert text_of(shown) == "Let me see. Done."
    assert [line["outcome"] for line in shown if line["type"] == "answered"] == ["approved"]


@pytest.mark.parametrize(("taken", "outcome"), [(True, "completed"), (False, "unknown")])
async def test_a_message_whose_answer_is_lost_is_looked_for_and_never_sent_again(
    rig: Rig, taken: bool, outcome: str
) -> None:
    rig.agent.lost["/say"] = taken
    assert (await rig.say("hello"))[-1]["outcome"] == outcome
    assert (rig.agent.said(), rig.agent.reads) == (["hello"], ["-1"])


async def test_an_answer_that_got_lost_may_be_given_again(rig: Rig) -> None:
    rig.agent.lost["/answer"] = False
    turn = asyncio.create_task(rig.say("approve"))
    asked = await rig.until_shown("ask")
    await rig.post("/answer", ask=asked["ask"], text="yes")
    await until_released(rig)
    settled = [event for event in await rig.log() if isinstance(event, ev.InputSettled)]
    assert [event.outcome for event in settled] == ["taken", "unknown"]
    await rig.post("/answer", ask=asked["ask"], text="no")
    assert text_of(await turn).endswith("Kept.")
    assert [body["text"] for path, body in rig.agent.posts if path == "/answer"] == ["yes", "no"]


async def test_an_answer_whose_reply_is_lost_counts(rig: Rig) -> None:
    rig.agent.lost["/answer"] = True
    turn = asyncio.create_task(rig.say("approve"))
    asked = await rig.until_shown("ask")
    await rig.post("/answer", ask=asked["ask"], text="yes")
    assert text_of(await turn).endswith("Done.")
    settled = [event for event in await rig.log() if isinstance(event, ev.InputSettled)]
    assert [event.outcome for event in settled] == ["taken", "taken"]


@pytest.mark.parametrize(("taken", "outcome"), [(True, "completed"), (False, "unknown")])
async def test_a_message_that_a_crash_cuts_off_is_looked_for_and_never_sent_again(
    rig: Rig, taken: bool, outcome: str
) -> None:
    rig.agent.hang, rig.agent.lost["/say"] = True, taken
    turn = asyncio.create_task(rig.post("/say", text="hello"))
    await until(lambda: bool(rig.agent.posts))
    await rig.dragoman.restart()
    with contextlib.suppress(aiohttp.ClientError):
        await turn
    assert (await rig.until_shown("over"))["outcome"] == outcome
    assert rig.agent.said() == ["hello"]


async def test_a_failure_of_the_server_says_nothing_so_the_chat_is_read(rig: Rig) -> None:
    assert (await rig.say("fail"))[-1]["outcome"] == "unknown"
    assert (rig.agent.said(), rig.agent.reads) == (["fail"], ["-1"])


async def test_lines_that_are_not_known_are_told_and_the_turn_goes_on(rig: Rig) -> None:
    shown = await rig.say("odd")
    assert (text_of(shown), shown[-1]["outcome"]) == ("Let me see. Done.", "completed")
    log = await rig.log()
    assert only(log, ev.Native).frame["mood"] == "fine"
    # The line that cannot be read had a number too.
    assert only(log, ev.Gap).reason == "lines are missing"
    told = [event.message for event in log if isinstance(event, ev.ErrorReported)]
    assert told == ["tiny: a line has no number", "tiny: a line lacks a member"]


async def test_a_turn_fails_whose_stream_cannot_be_had_again(rig: Rig) -> None:
    turn = asyncio.create_task(rig.say("slow"))
    await rig.until_shown("text")
    await rig.dragoman.stop_backend("tiny")
    assert (await turn)[-1]["outcome"] == "failed"
    assert only(await rig.log(), ev.TurnEnded).error.code == "backend_session_lost"


async def test_a_failed_turn_says_so(rig: Rig) -> None:
    assert (await rig.say("failing"))[-1]["outcome"] == "failed"
    assert only(await rig.log(), ev.TurnEnded).error.code == "agent_failed"


async def test_a_refused_credential_is_told_in_our_words(start_dragoman: Start[Dragoman]) -> None:
    rig = Rig(await start_dragoman("sqlite", backends={"tiny": Backend("tiny", key="wrong")}))
    assert (await rig.say("hello"))[-1]["outcome"] == "refused"
    error = only(await rig.log(), ev.InputSettled).error
    assert error.message == "Backend `tiny` refused the proxy's credential."


# The page.


PAGE = (REPOSITORY / "docs" / "adding-a-client-codec.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(\w+)` \| (`[A-Z][^|]*`|`[a-z_]+`[^|]*) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.M
)
CALLERS: Mapping[str, Any] = {
    one.__name__: one
    for one in (
        *(Admission, Backends, CommandSender, HandoverCodec, InboundReader, LogWriter, Outbox),
        *(Session, Watcher, apply, judge, no_stream),
    )
}
CALLERS = {**CALLERS, "_check_takes": getattr(moving, "_check_takes")}  # noqa: B009 - private


def test_the_table_has_each_member_of_a_client_codec_once() -> None:
    members = {*vars(ClientCodec), *ClientCodec.__annotations__}
    wanted = sorted(name for name in members if not name.startswith("_"))
    assert sorted(name for name, *_ in ROWS) == wanted


@pytest.mark.parametrize(("member", "callers"), [(row[0], row[1]) for row in ROWS])
def test_who_is_said_to_call_a_member_does(member: str, callers: str) -> None:
    for caller in re.findall(r"`([^`]+)`", callers):
        found: Any = CALLERS[caller.partition(".")[0]]
        if "." in caller:
            found = inspect.getattr_static(found, caller.partition(".")[2])
        assert re.search(rf"\.{member}\b", inspect.getsource(found)), caller


def test_the_parts_and_the_steps_are_those_of_the_example() -> None:
    source = Path(tiny_backend.__file__).read_text(encoding="utf-8")
    parts = re.findall(r"^# (\S+\.py): ", source, re.MULTILINE)
    assert [name for name in parts if f"`{name}`" not in PAGE and "/" not in name] == []
    taken = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert [name for name in taken if not re.search(rf"\b{name}\b", source)] == []
    assert len(taken) == 5


def test_what_is_stored_of_the_example_is_whole_and_is_read_back() -> None:
    codec = tiny_backend.TinyClient({"task_id": "c1"})
    message = SendMessage(content=(ev.Text(text="hello"),), policy="queue")
    call = codec.submit("m1", message)
    kept = codec.snapshot()
    changed: list[bool] = [codec.changed]
    codec.opened(call, Response(200), 1_000)
    codec.feed(call, b'{"n": 0, "type": "said", "text": "hello"}', 1_000)
    codec.feed(call, b'{"n": 1, "type": "tool", "call": "c", "name": "rm", "input": 5}', 1_000)
    assert [*changed, codec.changed] == [False, True]
    again = tiny_backend.TinyClient({"task_id": "c1"})
    again.restore(kept, codec.position)
    assert (again.snapshot(), again.wake_at) == (codec.snapshot(), 1_250)
    (read,) = again.streams()
    assert (read.request.path, read.request.query["after"]) == ("/chats/c1", "1")
    # The call is told in time, once, and a line that comes again is not.
    (called,) = again.tick(1_250)
    assert isinstance(called, ev.ToolCalled)
    assert again.feed(read, b'{"n": 1, "type": "tool", "call": "c", "name": "rm"}', 1_300) == []
    with pytest.raises(StoredByNewer):
        again.restore(b"v2 [0,{}]", None)
