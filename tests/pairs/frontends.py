"""One person in front of any of the three dialects: what they can do, and what they have seen.

`Frontend` is the abstract person: say, answer, steer, stop, read until something holds. Each
dialect has one over its strict client of `tests.support`, so whatever a person does goes over the
wire as the dialect's own clients send it, and whatever comes back is checked by that client first.
`Seen` is what the person saw, in words that all dialects share: that is what the scenarios compare.

Where a dialect has no request for something, the method sends what a person who tries anyway would
send, and the answer is a `Refusal` like any other.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import contextlib
import datetime as dt
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support import engine_client, eve_client, herm_client
from tests.support.engine_client import EngineClient, EngineEvent
from tests.support.eve_client import EveClient, EveSession
from tests.support.herm_client import HermClient

__all__ = [
    "FRONTENDS",
    "Ask",
    "EnginePerson",
    "EvePerson",
    "Frontend",
    "HermPerson",
    "Picture",
    "Refusal",
    "Seen",
    "Tool",
]

SOON_S = 20.0
"""An answer that must come soon, on a machine that does much else."""


class Refusal(Exception):
    """The face refused a request, in its dialect's own form."""

    def __init__(self, status: int, code: str | None, text: str) -> None:
        super().__init__(f"{status} {code}: {text}")
        self.status = status
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class Picture:
    """A file that a person sends along."""

    media_type: str
    data: bytes

    @property
    def base64(self) -> str:
        """Return the bytes as requests carry them."""
        return base64.b64encode(self.data).decode()


@dataclass(slots=True)
class Tool:
    """A tool call as a person sees it; `output` is None until it has returned."""

    name: str
    input: Any
    output: str | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that the agent waits for, as a person sees it.

    `kind` is the dialect's own word, `options` are ids and labels.
    """

    id: str
    kind: str
    prompt: str
    options: tuple[tuple[str, str], ...] = ()
    about: str = ""

    def option(self, label: str) -> str:
        """Return the id of the option with this label or id."""
        return next(id_ for id_, name in self.options if label in (id_, name))

    @property
    def labels(self) -> list[str]:
        """Return what a person can choose from."""
        return [label for _, label in self.options]


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


class Frontend(abc.ABC):
    """A person with one session in front of them.

    Args:
        http: the HTTP client to use.
        url: the base URL of the face.
        session: the public id of a session that exists; without, the person opens one.
    """

    dialect: str

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        self.http = http
        self.url = url
        self.session = session
        self.watching = session is not None
        self.seen = Seen()
        self.frames: list[Any] = []
        self._changed = asyncio.Event()
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # What a person does.

    @abc.abstractmethod
    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """Send a message; return when the face has accepted it."""

    @abc.abstractmethod
    async def attach(self) -> None:
        """Begin to read a session that somebody else opened."""

    @abc.abstractmethod
    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """Answer an approval."""

    @abc.abstractmethod
    async def mumble(self, ask: Ask) -> None:
        """Answer an approval with a word that is no answer to it."""

    @abc.abstractmethod
    async def choose(self, ask: Ask, label: str) -> None:
        """Answer with an option."""

    @abc.abstractmethod
    async def write(self, ask: Ask, text: str) -> None:
        """Answer a question with words."""

    @abc.abstractmethod
    async def skip(self, ask: Ask) -> None:
        """Leave a question unanswered, and say so."""

    @abc.abstractmethod
    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """Give the result of a tool that the application runs."""

    @abc.abstractmethod
    async def reveal(self, ask: Ask, value: str) -> None:
        """Give a secret or a password."""

    @abc.abstractmethod
    async def decline(self, ask: Ask) -> None:
        """Refuse to give a secret or a password, or call off a sign-in."""

    @abc.abstractmethod
    async def steer(self, text: str) -> None:
        """Guide the running work."""

    @abc.abstractmethod
    async def interrupt(self) -> None:
        """Stop the running turn."""

    @abc.abstractmethod
    async def control(self, name: str) -> None:
        """`compact`, `clear`, `reset`, `archive` or `delete` the session."""

    @abc.abstractmethod
    async def rename(self, title: str) -> None:
        """Give the session a title."""

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

    def _pump(self, frames: AsyncGenerator[Any, None]) -> None:
        task = asyncio.create_task(self._read(frames))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, frames: AsyncGenerator[Any, None]) -> None:
        try:
            async with aclosing(frames) as opened:
                async for frame in opened:
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
    async def _doing(self, *, works: bool = True) -> Any:
        """Do a request: the agent works from now on, unless the face refuses.

        Whatever makes the agent work is done in this context, messages and answers alike: what is
        seen until then is old. A refusal is raised in it: by a strict client as `Refused`.
        """
        before = self.seen.state
        if works:
            self._works()
        try:
            yield
        except (
            Refusal,
            herm_client.Refused,
            eve_client.Refused,
            engine_client.Refused,
        ) as refused:
            if works and self.seen.state == "working":
                self.seen.state = before
            if isinstance(refused, Refusal):
                raise
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


class HermPerson(Frontend):
    """A person at a Herm client: one stream, opened before anything is said (page, 4.3)."""

    dialect = "herm"

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        self._client = HermClient(http, url, expect=herm_client.Expect())

    async def _open(self) -> None:
        if self.session is None:
            agents = (await self._client.call("GET", "/v1/agents"))[1]
            self.session = (await self._client.create(agents["data"][0]["id"]))["id"]
        stream = self._client.stream(self.session)
        assert await anext(stream) == {}
        self._pump(stream)

    async def attach(self) -> None:
        """Read from the beginning of the session: its stream after sequence 0."""
        assert self.session is not None
        stream = self._client.stream(self.session, query="?after=0")
        assert await anext(stream) == {}
        self._pump(stream)

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """`user.message`; files and a schema go where a client would put them (3.1)."""
        if not self._tasks:
            async with self._doing(works=False):
                await self._open()
        message = herm_client.message(text)
        if files:
            message["attachments"] = [{"type": file.media_type} for file in files]
        if schema is not None:
            message["output_schema"] = schema
        await self._post(message)
        self.seen.inputs.append(text)

    async def _post(self, *events: dict[str, Any], works: bool = True) -> None:
        assert self.session is not None
        async with self._doing(works=works):
            await self._client.post(self.session, *events)

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """`user.tool_confirmation` has no place for a reason (3.2): it is left out."""
        event = {
            "type": "user.tool_confirmation",
            "tool_use_id": ask.id,
            "result": "allow" if yes else "deny",
        }
        await self._post(event | ({} if scope is None else {"scope": scope}))

    async def mumble(self, ask: Ask) -> None:
        """A `result` that the page does not know."""
        event = {"type": "user.tool_confirmation", "tool_use_id": ask.id, "result": "perhaps"}
        await self._post(event)

    async def choose(self, ask: Ask, label: str) -> None:
        """`user.clarify_result` with the choice's words."""
        await self.write(ask, label)

    async def write(self, ask: Ask, text: str) -> None:
        """`user.clarify_result`."""
        await self._post({"type": "user.clarify_result", "request_id": ask.id, "answer": text})

    async def skip(self, ask: Ask) -> None:
        """`user.clarify_result` with an empty answer (3.2)."""
        await self.write(ask, "")

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """`user.custom_tool_result`."""
        content = [{"type": "text", "text": result}]
        await self._post(
            {
                "type": "user.custom_tool_result",
                "tool_use_id": ask.id,
                "content": content,
                "is_error": failed,
            }
        )
        # The application's own event is the record of it (section 5).
        tool = self.seen.tools[ask.id]
        tool.output, tool.failed = result, failed

    async def reveal(self, ask: Ask, value: str) -> None:
        """`user.secret_result` or `user.sudo_result`."""
        name = "password" if ask.kind == "sudo" else "value"
        await self._post({"type": f"user.{ask.kind}_result", "request_id": ask.id, name: value})

    async def decline(self, ask: Ask) -> None:
        """An empty value declines; a sign-in has the choice `cancel`."""
        if ask.kind == "clarify":
            await self.write(ask, "cancel")
        else:
            await self.reveal(ask, "")

    async def steer(self, text: str) -> None:
        """`user.steer`."""
        await self._post({"type": "user.steer", "message": text})

    async def interrupt(self) -> None:
        """`user.interrupt`."""
        await self._post({"type": "user.interrupt"})

    async def control(self, name: str) -> None:
        """Archive and delete have routes (2.3); what has none is tried beside them."""
        path = f"/v1/sessions/{self.session}"
        async with self._doing(works=False):
            if name == "delete":
                await self._client.call("DELETE", path)
            else:
                await self._client.call("POST", f"{path}/{name}")

    async def rename(self, title: str) -> None:
        """PATCH of the session."""
        async with self._doing(works=False):
            _, body = await self._client.call(
                "PATCH", f"/v1/sessions/{self.session}", {"title": title}
            )
        assert herm_client.check_session(body)["title"] == title

    async def reread(self, after: int) -> list[Any]:
        assert self.session is not None
        found: list[Any] = []
        stream = self._client.stream(self.session, self.frames[after]["id"])
        async with asyncio.timeout(SOON_S), aclosing(stream) as opened:
            async for frame in opened:
                if frame:
                    found.append(frame)
                if frame.get("type") == "session.status_idle":
                    break
        return found

    async def history(self) -> list[str]:
        assert self.session is not None
        listed = await self._client.list(self.session)
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
                self._use(kind, payload)
            case "agent.tool_result" | "agent.mcp_tool_result":
                tool = self.seen.tools[payload["tool_use_id"]]
                tool.output = _words(payload["content"])
                tool.failed = payload["is_error"]
            case "agent.clarify_request":
                choices = tuple((name, name) for name in payload.get("choices") or ())
                self._known(Ask(payload["request_id"], "clarify", payload["question"], choices))
            case "agent.secret_request" | "agent.sudo_request":
                name = kind.removeprefix("agent.").removesuffix("_request")
                self._known(Ask(payload["request_id"], name, payload.get("prompt", "")))
            case "session.title_updated":
                self.seen.titles.append(payload["title"])
            case "agent.thread_message_sent" | "agent.thread_message_received":
                words = _words(payload["content"])
                self.seen.children.append(f"{payload['name']}: {words}")

    def _use(self, kind: str, payload: dict[str, Any]) -> None:
        known = self.seen.tools.setdefault(payload["id"], Tool(payload["tool"], payload["input"]))
        known.input = payload["input"]
        about = str(payload["input"])
        prompt = payload.get("preview", "")
        if kind == "agent.custom_tool_use":
            self._known(Ask(payload["id"], "custom", payload["tool"], about=about))
        elif payload.get("requires_action"):
            self._known(Ask(payload["id"], "approval", prompt, about=about))

    def _known(self, ask: Ask) -> None:
        if all(ask.id != known.id for known in self.seen.asks):
            self.seen.asks.append(ask)

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


class EvePerson(Frontend):
    """A person at an eve client of the newest generation, on the form for all clients."""

    dialect = "eve"

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        self.client = EveClient(http, url, form="all")
        self._eve: EveSession | None = None

    async def attach(self) -> None:
        """Read from the first record."""
        assert self.session is not None
        self._eve = self.client.attach(self.session)
        self._pump(self._eve.follow())

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """A create for the first message, then follow-ups (sections 4 and 5)."""
        parts: Any = text
        if files:
            parts = [{"type": "text", "text": text}]
            parts += [
                {"type": "file", "mediaType": file.media_type, "data": file.base64}
                for file in files
            ]
        members: dict[str, Any] = {} if schema is None else {"outputSchema": schema}
        async with self._doing():
            if self._eve is None:
                self._eve = await self.client.create(parts, **members)
                self.session = self._eve.session_id
                self._pump(self._eve.follow())
            else:
                turn_policy: Any = policy
                await self._eve.send(parts, turn_policy=turn_policy, **members)

    async def _respond(self, ask: Ask, option: str | None, text: str | None = None) -> None:
        assert self._eve is not None
        async with self._doing():
            await self._eve.respond(ask.id, option, text)

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """The request's own options decide, the words are the reason; there is no scope (9.4)."""
        await self._respond(ask, ask.options[0 if yes else -1][0], reason)

    async def mumble(self, ask: Ask) -> None:
        """An option that was not offered."""
        await self._respond(ask, "perhaps")

    async def choose(self, ask: Ask, label: str) -> None:
        """`optionId`."""
        await self._respond(ask, ask.option(label))

    async def write(self, ask: Ask, text: str) -> None:
        """`text`."""
        await self._respond(ask, None, text)

    async def skip(self, ask: Ask) -> None:
        """No answer to a question says nothing: an empty text is the nearest (section 5)."""
        await self._respond(ask, None, "")

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """A custom tool is a question, its result the words (design section 5)."""
        await self._respond(ask, None, result)

    async def reveal(self, ask: Ask, value: str) -> None:
        """Whoever types a secret here types it as an answer."""
        await self._respond(ask, None, value)

    async def decline(self, ask: Ask) -> None:
        """The one option, `decline`."""
        if ask.kind == "authorization":
            await self.interrupt()
        else:
            await self._respond(ask, ask.options[0][0])

    async def steer(self, text: str) -> None:
        """A message with `turnPolicy` steer (section 5.1)."""
        await self.say(text, policy="steer")

    async def interrupt(self) -> None:
        """Cancel."""
        assert self._eve is not None
        async with self._doing():
            assert await self._eve.cancel() == "accepted"

    async def control(self, name: str) -> None:
        """Compact, clear and reset have routes (section 6); what has none is tried beside them."""
        assert self._eve is not None
        async with self._doing(works=False):
            match name:
                case "compact":
                    assert await self._eve.compact() == "accepted"
                case "clear":
                    assert await self._eve.clear() == "accepted"
                case "reset":
                    assert await self._eve.reset() == "reset"
                case "delete":
                    await self.client.request("DELETE", f"/eve/v1/session/{self.session}")
                case _:
                    await self.client.request("POST", f"/eve/v1/session/{self.session}/{name}")

    async def rename(self, title: str) -> None:
        """No route: a PATCH is tried."""
        async with self._doing(works=False):
            await self.client.request("PATCH", f"/eve/v1/session/{self.session}", {"title": title})

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
        watcher = EvePerson(self.http, self.url)
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
                    self._asks(self._ask(request))
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

    def _ask(self, request: dict[str, Any]) -> Ask:
        options = tuple((o["id"], o["label"]) for o in request.get("options", ()))
        about = str(request["action"]["input"])
        return Ask(request["requestId"], request["kind"], request["prompt"], options, about)

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


class EnginePerson(Frontend):
    """A person at an Engine client: each message is a request whose body is its turn."""

    dialect = "engine"
    _numbers = itertools.count(1)

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        # Some events are ours: the page tells clients to ignore what they do not know (8).
        expect = engine_client.Expect(stamped=True, known_types=False)
        self._client = EngineClient(http, url, expect=expect)
        self.task = session or f"task-{next(self._numbers)}"
        self._stamp = 0

    async def attach(self) -> None:
        """Read what is buffered, then come back for more (section 11)."""
        self._pump(self._watch())

    async def _watch(self) -> AsyncGenerator[EngineEvent, None]:
        while True:
            async with aclosing(self._client.replay(self._stamp, self.task)) as replayed:
                async for seen in replayed:
                    yield seen
            await asyncio.sleep(0.005)

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """`POST /execute`; its first event says that it was accepted (section 6)."""
        members: dict[str, Any] = {}
        if files:
            members["media"] = [
                {
                    "type": "image",
                    "source": {
                        "type": "base64",
                        "media_type": file.media_type,
                        "data": file.base64,
                    },
                }
                for file in files
            ]
        if schema is not None:
            members["output_schema"] = schema
        body = self._client.execute(text, self.task, **members)
        async with self._doing():
            first = await anext(body)
        self.seen.inputs.append(text)
        if self.watching:
            # The watcher sees this turn too; the body is read to its end all the same.
            self._pump(self._unseen(body))
            return
        self.take(first)
        self._pump(body)

    @staticmethod
    async def _unseen(body: AsyncGenerator[EngineEvent, None]) -> AsyncGenerator[Any, None]:
        async for _ in body:
            pass
        return
        yield

    async def _respond(self, answer: str, **members: Any) -> None:
        async with self._doing():
            await self._client.respond(self.task, answer, **members)

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """`yes` or `no`, with `feedback`; there is no scope (section 10.2)."""
        members = {} if reason is None else {"feedback": reason}
        await self._respond("yes" if yes else "no", **members)

    async def mumble(self, ask: Ask) -> None:
        """A word that is neither yes nor no."""
        await self._respond("perhaps")

    async def choose(self, ask: Ask, label: str) -> None:
        """The option's words."""
        await self._respond(label)

    async def write(self, ask: Ask, text: str) -> None:
        """The words."""
        await self._respond(text)

    async def skip(self, ask: Ask) -> None:
        """An empty answer is the nearest."""
        await self._respond("")

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """A custom tool is a question, its result the words (design section 5)."""
        await self._respond(result)

    async def reveal(self, ask: Ask, value: str) -> None:
        """Whoever types a secret here types it as an answer."""
        await self._respond(value)

    async def decline(self, ask: Ask) -> None:
        """The one option: `decline`, of a sign-in `cancel`."""
        await self._respond(ask.labels[0])

    async def _post(self, path: str, **members: Any) -> None:
        async with self._doing(works=False):
            await self._client._json("POST", path, json={"task_id": self.task, **members})

    async def steer(self, text: str) -> None:
        """No route: one is tried."""
        await self._post("/steer", message=text)

    async def interrupt(self) -> None:
        """No route (section 12): one is tried."""
        await self._post("/interrupt")

    async def control(self, name: str) -> None:
        """No route: one is tried."""
        await self._post(f"/{name}")

    async def rename(self, title: str) -> None:
        """No route: one is tried."""
        await self._post("/title", title=title)

    async def reread(self, after: int) -> list[Any]:
        found: list[Any] = []
        stamp = _ms(self.frames[after])
        async with (
            asyncio.timeout(SOON_S),
            aclosing(self._client.replay(stamp, self.task)) as events,
        ):
            found += [seen async for seen in events if seen.event != "heartbeat"]
        return found

    async def history(self) -> list[str]:
        events = [seen async for seen in self._client.replay(0, self.task)]
        return [seen.payload["message"] for seen in events if seen.event == "message_received"]

    def take(self, frame: Any) -> None:
        """Take one event; a heartbeat says nothing and repeats a time."""
        if frame.event != "heartbeat":
            self._stamp = _ms(frame)
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
                given = payload.get("options") or ()
                labels = [o if isinstance(o, str) else o["label"] for o in given]
                kind = payload.get("reason", payload["kind"])
                about = str(payload.get("input", ""))
                options = tuple((label, label) for label in labels)
                self._asks(Ask(payload["request_id"], kind, payload["question"], options, about))
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
                self._ends(payload.get("outcome", "failed"))


def _ms(frame: EngineEvent) -> int:
    return round(dt.datetime.fromisoformat(frame.payload["timestamp"]).timestamp() * 1000)


FRONTENDS: dict[str, type[Frontend]] = {
    "herm": HermPerson,
    "eve": EvePerson,
    "engine": EnginePerson,
}
