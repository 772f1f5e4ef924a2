"""A person at a client of Claude Managed Agents, and what comes of each scenario on each
backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.pairs.expectations import (
    NATIVE,
    Carried,
    Outcomes,
    Refused,
    able,
    denies,
    form,
    interrupts,
    native_as,
    tells,
)
from tests.pairs.frontends import Frontend, Tool
from tests.people import Ask, Picture
from tests.support.managed_agents_client import Event, ManagedAgentsClient, message
from tests.support.waiting import SOON_S

__all__ = ["CELLS", "PERSON"]


class ManagedAgentsFrontend(Frontend):
    """One stream with all previews, opened before anything is sent; who comes late reads the list
    first, and joins both by id (page, section 6.4)."""

    dialect = "managed-agents"
    compaction = "agent.thread_context_compacted"
    shows_reasoning = False
    refuses_archived = (400, "invalid_request_error")
    refuses_deleted = (404, "not_found_error")

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        self.client = ManagedAgentsClient(http, url)
        self._known: set[str] = set()
        self._parts: dict[str, str] = {}
        self._error = ""

    # Reading.

    async def open(self) -> None:
        """Make a session, and open its stream."""
        if self.session is None:
            self.session = (await self.client.create())["id"]
        await self._follow(late=False)

    async def attach(self) -> None:
        """Read the list, and from then on the stream."""
        await self._follow(late=True)
        assert self.session is not None
        for event in await self.client.events(self.session):
            if event["processed_at"] is not None:
                self._once(event)

    async def _follow(self, *, late: bool) -> None:
        assert self.session is not None
        stream = self.client.stream(self.session, previews=["agent.message"], late=late)
        assert await anext(stream) == {}
        self._pump(stream)

    def take(self, frame: Any) -> None:
        if frame["type"] in ("event_start", "event_delta"):
            # Gone where they were missed: the message that they preview is what lists have.
            self._see(frame)
            self._changed.set()
        elif frame["processed_at"] is not None:
            self._once(frame)

    def _once(self, event: Event) -> None:
        if event["id"] not in self._known:
            self._known.add(event["id"])
            super().take(event)

    async def reread(self, after: int) -> list[Any]:
        """Nothing is resumed here: the list has what came behind an event."""
        assert self.session is not None
        stored = [one for one in self.frames[: after + 1] if "processed_at" in one]
        async with asyncio.timeout(SOON_S):
            while True:
                listed = await self.client.events(self.session)
                ids = [one["id"] for one in listed]
                behind = listed[ids.index(stored[-1]["id"]) + 1 :] if stored else listed
                if any(one["type"] == "session.status_idle" for one in behind):
                    return behind
                await asyncio.sleep(0.01)

    async def history(self) -> list[str]:
        assert self.session is not None
        listed = await self.client.events(self.session, types=["user.message"])
        return [_words(event["content"]) for event in listed]

    # Doing.

    async def _send(self, *events: Event, works: bool = True) -> None:
        assert self.session is not None
        async with self.doing(works=works):
            await self.client.send(self.session, *events)

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """`user.message`; a schema has no place, a file is a block."""
        if not self._tasks:
            async with self.doing(works=False):
                await self.open()
        event = message(text)
        for file in files:
            source = {"type": "base64", "media_type": file.media_type, "data": file.base64}
            event["content"].append({"type": "image", "source": source})
        if schema is not None:
            event["output_schema"] = schema
        await self._send(event)

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """`user.tool_confirmation`; it has no scope."""
        event = {
            "type": "user.tool_confirmation",
            "tool_use_id": ask.id,
            "result": "allow" if yes else "deny",
        }
        await self._send(event if reason is None else {**event, "deny_message": reason})

    async def mumble(self, ask: Ask) -> None:
        """A `result` that the page does not know."""
        event = {"type": "user.tool_confirmation", "tool_use_id": ask.id, "result": "perhaps"}
        await self._send(event)

    async def choose(self, ask: Ask, label: str) -> None:
        """The words of the option."""
        await self.write(ask, label)

    async def write(self, ask: Ask, text: str) -> None:
        """The result of the reserved tool."""
        await self.give(ask, text)

    async def skip(self, ask: Ask) -> None:
        """A result without words."""
        await self._send({"type": "user.custom_tool_result", "custom_tool_use_id": ask.id})

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """`user.custom_tool_result`."""
        await self._send(
            {
                "type": "user.custom_tool_result",
                "custom_tool_use_id": ask.id,
                "content": [{"type": "text", "text": result}],
                "is_error": failed,
            }
        )

    async def reveal(self, ask: Ask, value: str) -> None:
        """The value as the result of the reserved tool."""
        await self.give(ask, value)

    async def decline(self, ask: Ask) -> None:
        """The one option."""
        await self.give(ask, "decline")

    async def steer(self, text: str) -> None:
        """No event steers: a message is queued."""
        await self._send(message(text))

    async def interrupt(self, note: str | None = None) -> None:
        """`user.interrupt`."""
        await self._send({"type": "user.interrupt"})

    async def control(self, name: str) -> None:
        """Archive and delete have routes; what has no route is tried beside them."""
        path = f"/v1/sessions/{self.session}"
        async with self.doing(works=False):
            if name == "delete":
                await self.client.call("DELETE", path)
            else:
                await self.client.call("POST", f"{path}/{name}")

    async def rename(self, title: str) -> None:
        """POST of the session."""
        async with self.doing(works=False):
            path = f"/v1/sessions/{self.session}"
            body = await self.client.call("POST", path, {"title": title})
        assert body["title"] == title

    # Seeing.

    def _see(self, frame: Any) -> None:
        kind = frame["type"]
        self.seen.types.append(kind)
        match kind:
            case "session.status_running":
                self.seen.state = "working"
                self.seen.open.clear()
            case "session.status_idle":
                self._idle(frame["stop_reason"])
            case "event_delta":
                self.seen.running += frame["delta"]["content"]["text"]
            case "agent.message":
                self.seen.texts.append(_words(frame["content"]))
                self.seen.running = ""
            case "span.model_request_end" if frame["is_error"]:
                self._close_text()
            case "user.message":
                self.seen.inputs.append(_words(frame["content"]))
            case "agent.tool_use" | "agent.mcp_tool_use" | "agent.custom_tool_use":
                self.seen.tools[frame["id"]] = Tool(frame["name"], frame["input"])
                self.seen.asks += [ask for ask in [_ask_of(frame)] if ask is not None]
            case "agent.tool_result":
                self._result(frame["tool_use_id"], frame)
            case "agent.mcp_tool_result":
                self._result(frame["mcp_tool_use_id"], frame)
            case "user.custom_tool_result":
                self._result(frame["custom_tool_use_id"], frame)
            case "session.error":
                self._error = frame["error"]["message"]
                self.seen.errors.append(self._error)
            case "session.updated" if "title" in frame:
                self.seen.titles.append(frame["title"])
            case "agent.thread_message_received":
                self.seen.children.append(_words(frame["content"]))
            case "session.status_terminated" | "session.deleted":
                self.seen.state = "over"

    def _result(self, use: str, frame: Event) -> None:
        tool = self.seen.tools[use]
        tool.output, tool.failed = _words(frame["content"]), frame["is_error"]

    def _idle(self, reason: Event) -> None:
        if reason["type"] == "requires_action":
            asks = {ask.id: ask for ask in self.seen.asks}
            for use in reason["event_ids"]:
                if use not in asks:
                    # A call that was shown before it was known to ask.
                    tool = self.seen.tools[use]
                    asks[use] = Ask(use, "approval", "", (), str(tool.input), True)
                    self.seen.asks.append(asks[use])
            self.seen.open = {use: asks[use] for use in reason["event_ids"]}
            self.seen.state = "asks"
        elif reason["type"] == "end_turn":
            self._ends(reason.get("outcome", "completed"))
        else:
            self._ends("failed")


def _ask_of(frame: Event) -> Ask | None:
    name, given = frame["id"], frame["input"]
    if frame["type"] != "agent.custom_tool_use":
        if frame.get("evaluated_permission") != "ask":
            return None
        return Ask(name, "approval", frame["name"], (), str(given), True)
    if frame["name"] != "dragoman_ask":
        return Ask(name, "custom", frame["name"], about=str(given))
    options = tuple((one["id"], one["label"]) for one in given["options"])
    about = str(given) if given["kind"] != "authorization" else ""
    return Ask(name, given["kind"], given["question"], options, about)


def _words(blocks: Sequence[Event]) -> str:
    return "".join(block.get("text", "") for block in blocks)


PERSON = ManagedAgentsFrontend

INVALID = "invalid_request_error"
NO_ROUTE = Refused(404, "not_found_error", "There is no")
WAITS = Refused(400, INVALID, "waiting on responses to events")
QUEUED = Carried("held by the session until the turn is over")
_ONLY_DECLINED = Refused(400, INVALID, "can only be declined")

CELLS: Outcomes = {
    "a first message": NATIVE,
    "a follow-up": NATIVE,
    "parallel tools": NATIVE,
    "a tool that fails": NATIVE,
    "a long answer": NATIVE,
    "files": able("files", 400, INVALID),
    "a schema for the answer": Carried("no member for it: it is ignored as unknown members are"),
    "a message while a turn runs": QUEUED,
    "a message while an approval is open": WAITS,
    "steer": QUEUED,
    "interrupt": interrupts(400, INVALID),
    "interrupt while an approval is open": interrupts(400, INVALID),
    "interrupt denies a held permission": denies(400, INVALID),
    "a message that interrupts": interrupts(400, None),
    "approve": NATIVE,
    "deny": NATIVE,
    "deny with a reason": form("reasons"),
    "approve for the session": Carried("once: a confirmation has no scope"),
    "two approvals, one by one": NATIVE,
    "a second answer": Refused(400, INVALID),
    "an answer that does not fit": Refused(400, INVALID, "must be `allow` or `deny`"),
    "choose an option": tells("questions", Carried("a custom tool with options")),
    "answer with other words": tells("questions", Carried("a custom tool with options")),
    "an open question": tells("questions", Carried("a custom tool")),
    "skip a question": tells("questions", native_as("a result without words", form("skips"))),
    "answer by a plain message": tells("questions", WAITS),
    "a custom tool": tells("custom_tools"),
    "a custom tool that fails": tells("custom_tools"),
    "give a secret": tells("secrets", _ONLY_DECLINED),
    "give a sudo password": tells("secrets", _ONLY_DECLINED),
    "say a secret as a message": tells("secrets", WAITS),
    "decline a secret": tells("secrets", Carried("the one option, `decline`")),
    "sign in": tells("sign_ins", Carried("a custom tool that shows the address")),
    "call off a sign-in": tells("sign_ins", Carried("the one option, `decline`")),
    "answer a sign-in": tells("sign_ins", _ONLY_DECLINED),
    "a token limit, and on": tells("limits", Carried("a custom tool with two options")),
    "a token limit, and stop": tells("limits", Carried("a custom tool with two options")),
    "compact": NO_ROUTE,
    "clear": NO_ROUTE,
    "reset": NO_ROUTE,
    "a title": form("title"),
    "archive": form("archive"),
    "delete": form("delete"),
    "a title that the agent gives": NATIVE,
    "compaction by the agent": tells("compactions"),
    "a turn that fails at once": NATIVE,
    "a turn that fails in the middle": NATIVE,
    "a message that the backend refuses": NATIVE,
    "a backend that is gone for good": NATIVE,
    "a child agent": tells("child_agents"),
    "a child agent asks": tells("child_agents"),
    "people of all dialects watch": NATIVE,
    "another one answers": NATIVE,
    "two answer at once": NATIVE,
    "coming back in the middle of a turn": NATIVE,
}
