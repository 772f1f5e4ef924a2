"""One person in front of any of the three dialects: what they have seen of all that they did.

`Frontend` is a person (`tests.people`) who looks at everything: they read until something holds.
Whatever comes back is checked by the dialect's strict client first. `Seen` is what the person saw,
in words that all dialects share: that is what the scenarios compare.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.people import Ask, EnginePerson, EvePerson, HermPerson, Person, Picture
from tests.support import herm_client, strictness
from tests.support.engine_client import EngineClient, EngineEvent, Expect
from tests.support.eve_client import EveClient
from tests.support.herm_client import HermClient
from tests.support.waiting import SOON_S

__all__ = [
    "FRONTENDS",
    "Ask",
    "EngineFrontend",
    "EveFrontend",
    "Frontend",
    "HermFrontend",
    "Picture",
    "Refusal",
    "Seen",
    "Tool",
]


class Refusal(Exception):
    """The face refused a request, in its dialect's own form."""

    def __init__(self, status: int, code: str | None, text: str) -> None:
        super().__init__(f"{status} {code}: {text}")
        self.status = status
        self.code = code
        self.text = text


@dataclass(slots=True)
class Tool:
    """A tool call as a person sees it; `output` is None until it has returned."""

    name: str
    input: Any
    output: str | None = None
    failed: bool = False


@dataclass(slots=True)
class Seen:
    """What a person saw, in the order of each kind.

    `state`: `working`, `asks` (the agent waits for an answer), `rests`, or `over`. `outcomes` has
    an entry for each turn that came to its end: `completed`, `failed` or `interrupted`.
    """

    state: str = "rests"
    texts: list[str] = field(default_factory=list)
    running: str = ""
    thinking: str = ""
    inputs: list[str] = field(default_factory=list)
    tools: dict[str, Tool] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    open: dict[str, Ask] = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return all that the agent said, also what was cut off."""
        return "".join(self.texts) + self.running

    @property
    def ask(self) -> Ask:
        """Return the oldest open ask."""
        return next(iter(self.open.values()))

    def called(self, name: str) -> Tool:
        """Return the newest call of a tool."""
        return next(tool for tool in reversed(self.tools.values()) if tool.name == name)


BACK_S = 0.01
SELDOM_S = 1.0
"""How soon a client comes back where something is expected of it, and where nothing is."""


class Frontend(Person):
    """A person who sees all that happens in their session.

    Args:
        http: the HTTP client to use.
        url: the base URL of the face.
        session: the public id of a session that exists; without, the person opens one.
    """

    shows_reasoning = True
    """Whether the agent's thoughts are shown in words."""
    refuses_archived = (409, "archived")
    refuses_deleted = (404, "not_found")
    """Status and code of what is said to a session that is archived, or gone."""
    shows_what_came = False
    """Whether a late answer is given what came of the request meanwhile, and not refused, where its
    client has not seen that."""

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url)
        self.session = session
        self.watching = session is not None
        self.app: Frontend | None = None
        """Who speaks the same dialect in the session: the app of both keeps what its client has."""
        self.seen = Seen()
        self.frames: list[Any] = []
        self._changed = asyncio.Event()
        self._expecting = asyncio.Event()
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def shows_words_of(self, dialect: str) -> bool:
        """Say whether a reader sees what people said by a dialect."""
        return True

    @abc.abstractmethod
    async def attach(self) -> None:
        """Begin to read a session that somebody else opened."""

    @abc.abstractmethod
    async def reread(self, after: int) -> list[Any]:
        """Come back with the cursor of a frame; return what is read from there to the turn's end.

        Args:
            after: the index in `frames` of the last frame that was received before.
        """

    @abc.abstractmethod
    async def history(self) -> list[str]:
        """Return the user's messages as the dialect shows them to a reader who comes late."""

    # How it is read.

    async def until(self, condition: Callable[[Seen], bool]) -> Seen:
        """Read until something holds of what was seen.

        Raises:
            AssertionError: it did not come to hold in time; the text says what was seen instead.
        """
        self._expecting.set()
        try:
            async with asyncio.timeout(SOON_S):
                while True:
                    if self._fault is not None:
                        raise self._fault
                    if condition(self.seen):
                        return self.seen
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it does not come: {self.seen}") from None
        finally:
            self._expecting.clear()

    async def _pause(self) -> None:
        """Wait until a client comes back whose stream has ended."""
        await asyncio.sleep(BACK_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._expecting.wait(), SELDOM_S)

    async def settled(self, turns: int | None = None) -> Seen:
        """Read until the agent rests or asks; with `turns`, so many have come to their end."""
        return await self.until(
            lambda seen: seen.state != "working" and (turns is None or len(seen.outcomes) >= turns)
        )

    async def asked(self) -> Ask:
        """Read until the agent asks something, and return it."""
        return (await self.until(lambda seen: seen.state == "asks" and bool(seen.open))).ask

    async def close(self) -> None:
        """Stop reading."""
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def _pump(self, frames: AsyncGenerator[Any, None], *, seen: bool = True) -> None:
        task = asyncio.create_task(self._read(frames, seen))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, frames: AsyncGenerator[Any, None], seen: bool) -> None:
        try:
            async with aclosing(frames) as opened:
                async for frame in opened:
                    if seen:
                        self.take(frame)
        except asyncio.CancelledError:
            raise
        except BaseException as fault:  # noqa: BLE001 - raised by `until`
            self._fault = fault
        finally:
            self._changed.set()

    def take(self, frame: Any) -> None:
        """Take one frame of the dialect."""
        self.frames.append(frame)
        self._see(frame)
        self._changed.set()

    @abc.abstractmethod
    def _see(self, frame: Any) -> None: ...

    def _works(self) -> None:
        self.seen.state = "working"

    @contextlib.asynccontextmanager
    async def doing(self, *, works: bool = True) -> Any:
        """Do a request: the agent works from now on, unless the face refuses.

        Whatever makes the agent work is done in this context, messages and answers alike: what is
        seen until then is old. A refusal is raised in it: by a strict client as `Refused`.
        """
        before = self.seen.state
        if works:
            self._works()
        try:
            yield
        except strictness.Refused as refused:
            if works and self.seen.state == "working":
                self.seen.state = before
            raise Refusal(refused.status, refused.code, str(refused.body)) from None

    def _asks(self, ask: Ask) -> None:
        self.seen.asks.append(ask)
        self.seen.open[ask.id] = ask

    def _ends(self, outcome: str) -> None:
        self.seen.outcomes.append(outcome)
        self.seen.open.clear()
        self.seen.state = "rests"
        self._close_text()

    def _close_text(self) -> None:
        if self.seen.running:
            self.seen.texts.append(self.seen.running)
            self.seen.running = ""


def _words(blocks: Any) -> str:
    return "".join(block["text"] for block in blocks)


class HermFrontend(HermPerson, Frontend):
    """A person at a Herm client: one stream, opened before anything is said (page, 4.3)."""

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        self.client = HermClient(http, url, expect=herm_client.Expect())

    async def open(self) -> None:
        if self.session is None:
            await super().open()
        assert self.session is not None
        stream = self.client.stream(self.session)
        assert await anext(stream) == {}
        self._pump(stream)

    async def attach(self) -> None:
        """Read from the beginning of the session: its stream after sequence 0."""
        assert self.session is not None
        stream = self.client.stream(self.session, query="?after=0")
        assert await anext(stream) == {}
        self._pump(stream)

    async def say(self, text: str, **extras: Any) -> None:
        if not self._tasks:
            async with self.doing(works=False):
                await self.open()
        await super().say(text, **extras)
        self.seen.inputs.append(text)

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        await super().give(ask, result, failed=failed)
        # The application's own event is the record of it (section 5).
        tool = self.seen.tools[ask.id]
        tool.output, tool.failed = result, failed

    async def reread(self, after: int) -> list[Any]:
        assert self.session is not None
        found: list[Any] = []
        stream = self.client.stream(self.session, self.frames[after]["id"])
        async with asyncio.timeout(SOON_S), aclosing(stream) as opened:
            async for frame in opened:
                if frame:
                    found.append(frame)
                if frame.get("type") == "session.status_idle":
                    break
        return found

    async def history(self) -> list[str]:
        assert self.session is not None
        listed = await self.client.list(self.session)
        return [
            _words(seen["payload"]["content"])
            if seen["type"] == "user.message"
            else seen["payload"]["message"]
            for seen in listed
            if seen["type"] in ("user.message", "user.steer")
        ]

    def _see(self, frame: Any) -> None:
        kind, payload = frame["type"], frame["payload"]
        self.seen.types.append(kind)
        ask = self.ask_of(payload)
        if ask is not None and all(ask.id != known.id for known in self.seen.asks):
            self.seen.asks.append(ask)
        match kind:
            case "session.status_running":
                self.seen.state = "working"
                self.seen.open.clear()
            case "session.status_idle":
                self._idle(payload["stop_reason"])
            case "agent.message" if payload["delta"]:
                self.seen.running += _words(payload["content"])
            case "agent.message":
                if payload.get("status") != "discarded":
                    self.seen.texts.append(_words(payload["content"]))
                self.seen.running = ""
            case "agent.thinking" if not payload["delta"]:
                self.seen.thinking += _words(payload["content"])
            case "agent.tool_use" | "agent.mcp_tool_use" | "agent.custom_tool_use":
                tool = Tool(payload["tool"], payload["input"])
                self.seen.tools.setdefault(payload["id"], tool).input = payload["input"]
            case "agent.tool_result" | "agent.mcp_tool_result":
                tool = self.seen.tools[payload["tool_use_id"]]
                tool.output = _words(payload["content"])
                tool.failed = payload["is_error"]
            case "session.title_updated":
                self.seen.titles.append(payload["title"])
            case "agent.thread_message_sent" | "agent.thread_message_received":
                words = _words(payload["content"])
                self.seen.children.append(f"{payload['name']}: {words}")

    def _idle(self, reason: dict[str, Any]) -> None:
        match reason["type"]:
            case "requires_action":
                asks = {ask.id: ask for ask in self.seen.asks}
                self.seen.open = {id_: asks[id_] for id_ in reason["event_ids"]}
                self.seen.state = "asks"
            case "end_turn":
                self._ends(reason.get("outcome", "completed"))
            case _:
                self.seen.errors.append(reason["message"])
                interrupted = "interrupted" in reason["message"]
                self._ends("interrupted" if interrupted else "failed")


class EveFrontend(EvePerson, Frontend):
    """A person at an eve client of the newest generation, on the form for all clients."""

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        self.client = EveClient(http, url, form="all")

    async def attach(self) -> None:
        """Read from the first record."""
        assert self.session is not None
        self.eve = self.client.attach(self.session)
        self._pump(self.eve.follow())

    async def say(self, text: str, **extras: Any) -> None:
        is_first = self.eve is None
        await super().say(text, **extras)
        if is_first:
            self.session = self.opened.session_id
            self._pump(self.opened.follow())

    async def interrupt(self, note: str | None = None) -> None:
        async with self.doing():
            assert await self.opened.cancel() == "accepted"

    async def reread(self, after: int) -> list[Any]:
        assert self.session is not None
        found: list[Any] = []
        again = self.client.attach(self.session)
        async with asyncio.timeout(SOON_S), aclosing(again.stream(after + 1)) as records:
            async for record in records:
                found.append(record)
                if record["type"] == "session.waiting":
                    break
        return found

    async def child(self, session: str, path: str | None = None) -> Seen:
        """Follow a child's own stream to its end, and return what was seen there."""
        watcher = EveFrontend(self.http, self.url)
        stream = self.client.child(session, path).stream(0)
        async with asyncio.timeout(SOON_S), aclosing(stream) as records:
            async for record in records:
                watcher.take(record)
                if record["type"] == "turn.completed" and not watcher.seen.open:
                    break
        return watcher.seen

    async def history(self) -> list[str]:
        assert self.session is not None
        again = self.client.attach(self.session)
        records = [record async for record in again.stream(0, follow=False)]
        return [r["data"]["message"] for r in records if r["type"] == "message.received"]

    def _see(self, frame: Any) -> None:  # noqa: C901 - one case for each record
        kind, data = frame["type"], frame.get("data", {})
        self.seen.types.append(kind)
        match kind:
            case "turn.started":
                self.seen.state, self._in_turn = "working", True
            case "message.received":
                self.seen.inputs.append(data["message"])
                self._stopped = False
            case "message.appended":
                self.seen.running = data.get("messageSoFar", self.seen.running)
            case "message.completed":
                self.seen.texts.append(data["message"])
                self.seen.running = ""
            case "reasoning.completed":
                self.seen.thinking += data["reasoning"]
            case "actions.requested":
                for action in data["actions"]:
                    name = action.get("toolName") or action.get("subagentName") or action["name"]
                    self.seen.tools[action["callId"]] = Tool(name, action["input"])
            case "action.result":
                self._result(data)
            case "input.requested":
                for request in data["requests"]:
                    self._asks(self.ask_of(request))
            case "input.resolved":
                for resolution in data["resolutions"]:
                    self.seen.open.pop(resolution["requestId"], None)
                said = {resolution["outcome"] for resolution in data["resolutions"]}
                if said == {"cancelled"} and not (self._in_turn or self.seen.open):
                    # All that is said of the end of a turn whose pause has closed it.
                    self._ends("interrupted")
                    self._stopped = True
            case "authorization.required":
                about = str(data.get("authorization", {}))
                ask = Ask(data["name"], "authorization", data["description"], about=about)
                self._asks(ask)
                # Nothing ends the turn here: it is silent until the sign-in is over (8.2).
                self.seen.state = "asks"
            case "authorization.completed":
                self.seen.open.pop(data["name"], None)
                self.seen.results.append(("sign-in", data["outcome"]))
            case "result.completed":
                self.seen.results.append(data["result"])
            case "turn.failed":
                self.seen.errors.append(f"{data['code']}: {data['message']}")
                self._ending = "failed"
            case "turn.cancelled":
                self._ending = "interrupted"
            case "session.waiting":
                self._wait()
            case "session.completed" | "session.failed":
                self.seen.state = "over"
            case "subagent.called":
                self.seen.children.append(f"{data['name']}: {data['childSessionId']}")
            case "subagent.completed":
                self.seen.children.append(f"{data['subagentName']}: {data['output']}")

    _ending = "completed"
    _in_turn = False
    _stopped = False

    def _result(self, data: dict[str, Any]) -> None:
        result = data["result"]
        tool = self.seen.tools.setdefault(result["callId"], Tool(result.get("toolName", "?"), None))
        output = result["output"]
        tool.output = output if isinstance(output, str) else str(output)
        tool.failed = data["status"] != "completed"
        if "error" in data:
            tool.output += f" {data['error']['message']}"

    def _wait(self) -> None:
        self._in_turn = False
        if self.seen.open:
            self.seen.state = "asks"
            return
        ending, self._ending = self._ending, "completed"
        if self._stopped:
            # The refusal that stops a T (section 8.2) set off this, in the same turn.
            self.seen.outcomes.pop()
            self._stopped = False
        self._ends(ending)


class EngineFrontend(EnginePerson, Frontend):
    """A person at an Engine client: each message is a request whose body is its turn."""

    _numbers = itertools.count(1)

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        # Some events are ours: the page tells clients to ignore what they do not know (8).
        expect = Expect(stamped=True, known_types=False)
        self.client = EngineClient(http, url, expect=expect)
        self.task = session or f"task-{next(self._numbers)}"
        self._stamp = 0

    async def attach(self) -> None:
        """Read what is buffered, then come back for more (section 11)."""
        self._pump(self._watch())

    async def _watch(self) -> AsyncGenerator[EngineEvent, None]:
        while True:
            async with aclosing(self.client.replay(self._stamp, self.task)) as replayed:
                async for seen in replayed:
                    yield seen
            await self._pause()

    async def say(self, text: str, *, policy: str | None = None, **extras: Any) -> None:
        """`POST /execute`; its first event says that it was accepted (section 6)."""
        body = self.execute(text, **extras)
        async with self.doing():
            first = await anext(body)
        self.seen.inputs.append(text)
        if self.watching:
            # The watcher sees this turn too; the body is read to its end all the same.
            self._pump(body, seen=False)
            return
        self.take(first)
        self._pump(body)

    async def reread(self, after: int) -> list[Any]:
        found: list[Any] = []
        stamp = self.stamp(self.frames[after])
        async with (
            asyncio.timeout(SOON_S),
            aclosing(self.client.replay(stamp, self.task)) as events,
        ):
            found += [seen async for seen in events if seen.event != "heartbeat"]
        return found

    async def history(self) -> list[str]:
        events = [seen async for seen in self.client.replay(0, self.task)]
        return [seen.payload["message"] for seen in events if seen.event == "message_received"]

    def take(self, frame: Any) -> None:
        """Take one event; a heartbeat says nothing and repeats a time."""
        if frame.event != "heartbeat":
            self._stamp = self.stamp(frame)
            super().take(frame)

    def _see(self, frame: Any) -> None:
        name, payload = frame
        self.seen.types.append(payload["phase"] if name == "thread_lifecycle" else name)
        match name:
            case "thread_lifecycle":
                self._lifecycle(payload)
            case "text_delta":
                self.seen.running += payload["text"]
            case "thinking_delta":
                self.seen.thinking += payload["text"]
            case "tool_call":
                self._close_text()
                self.seen.tools[payload["tool_call_id"]] = Tool(payload["tool"], payload["input"])
            case "tool_result":
                tool = self.seen.tools[payload["tool_call_id"]]
                tool.output = str(payload["output"])
                tool.failed = "error" in payload
                if tool.failed:
                    more = (payload["error"], payload.get("reason"))
                    tool.output += " ".join(str(word) for word in more if word)
            case "hitl_request":
                self._asks(self.ask_of(payload))
                self.seen.state = "asks"
            case "hitl_resolved":
                self.seen.open.clear()
                self.seen.state = "working"
            case "message_received":
                self.seen.inputs.append(payload["message"])
            case "error":
                self.seen.errors.append(f"{payload['error']}: {payload['message']}")

    def _lifecycle(self, payload: dict[str, Any]) -> None:
        match payload["phase"]:
            case "started":
                self.seen.state = "working"
            case "completed":
                self._ends("completed")
            case _:
                # Dragoman also says in which way a turn failed: exhausted, refused, over budget.
                interrupted = payload.get("outcome") == "interrupted"
                self._ends("interrupted" if interrupted else "failed")


FRONTENDS: dict[str, type[Frontend]] = {
    "herm": HermFrontend,
    "eve": EveFrontend,
    "engine": EngineFrontend,
}
