"""A person at an AG-UI client, and what comes of each scenario on each backend."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp

from tests.pairs.expectations import (
    NATIVE,
    Carried,
    Outcomes,
    Refused,
    able,
    form,
    interrupts,
    tells,
)
from tests.pairs.frontends import Frontend, Tool
from tests.people import Ask, Picture
from tests.support.agui_client import AguiClient, Applied
from tests.support.waiting import SOON_S

__all__ = ["CELLS", "PERSON"]


class AguiFrontend(Frontend):
    """Each message and each answer is a run; what happens is read from the thread."""

    dialect = "agui"
    compaction = "dragoman.compacted"
    shows_what_came = True
    _numbers = itertools.count(1)

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        self.client = AguiClient(http, url)
        self.thread = session or f"thread-{next(self._numbers)}"
        # Ids that no page had which has said something in that thread, in another process too.
        self._late = "" if session is None else "late-"
        self.applied = Applied()
        self._roles: dict[str, str | None] = {}
        self._stamp = 0

    # Reading.

    async def attach(self) -> None:
        """Read the thread from its first run, and come back for more."""
        self._pump(self._watch())

    async def _watch(self) -> AsyncGenerator[dict[str, Any], None]:
        while True:
            path = f"/threads/{self.thread}?after={self._stamp}"
            async with aclosing(self.client.read(path)) as events:
                async for event in events:
                    yield event
            await self._pause()

    async def reread(self, after: int) -> list[Any]:
        stamp = self.frames[after]["timestamp"]
        path = f"/threads/{self.thread}?after={stamp}"
        async with asyncio.timeout(SOON_S), aclosing(self.client.again(path)) as events:
            return [event async for event in events]

    async def history(self) -> list[str]:
        fresh = Applied()
        async with aclosing(self.client.read(f"/threads/{self.thread}")) as events:
            async for event in events:
                fresh.apply(event)
        return [m["content"] for m in fresh.messages if m["role"] == "user"]

    def take(self, frame: Any) -> None:
        self._stamp = frame["timestamp"]
        self.applied.apply(frame)
        super().take(frame)

    # Doing.

    async def _run(self, messages: Sequence[dict[str, Any]] = (), **more: Any) -> None:
        run = f"{self._late}run-{next(self._numbers)}"
        known = [m for m in self.applied.messages if m["role"] != "activity"]
        body = self.client.run(self.thread, run, [*known, *messages], **more)
        async with self.doing():
            first = await anext(body)
        assert first["type"] == "RUN_STARTED"
        self._pump(body, seen=False)
        if self.session is None:
            self.session = self.thread
            self._pump(self._watch())

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """A message behind the whole history."""
        content: Any = text
        if files:
            content = [{"type": "text", "text": text}]
            for file in files:
                source = {"type": "data", "value": file.base64, "mimeType": file.media_type}
                content.append({"type": "image", "source": source})
        more = {} if schema is None else {"outputSchema": schema}
        message = {"id": f"{self._late}u-{next(self._numbers)}", "role": "user", "content": content}
        await self._run([message], **more)

    async def _resume(self, ask: Ask, status: str = "resolved", payload: Any = None) -> None:
        entry = {"interruptId": ask.id, "status": status}
        if payload is not None:
            entry["payload"] = payload
        await self._run(resume=[entry])

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """`{"approved": …}`."""
        more = {"reason": reason, "scope": scope}
        given = {name: value for name, value in more.items() if value is not None}
        await self._resume(ask, payload={"approved": yes, **given})

    async def mumble(self, ask: Ask) -> None:
        """A word that is neither yes nor no."""
        await self._resume(ask, payload="perhaps")

    async def choose(self, ask: Ask, label: str) -> None:
        """The label of an option; of a decision its id."""
        option = {"optionId": ask.option(label)}
        await self._resume(ask, payload=option if ask.kind == "confirmation" else label)

    async def write(self, ask: Ask, text: str) -> None:
        """The words."""
        await self._resume(ask, payload=text)

    async def skip(self, ask: Ask) -> None:
        """The interrupt is abandoned."""
        await self._resume(ask, "cancelled")

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """A tool message answers the call of a frontend tool."""
        name = f"{self._late}t-{next(self._numbers)}"
        message = {"id": name, "role": "tool", "toolCallId": ask.id}
        more = {"error": result} if failed else {}
        await self._run([{**message, "content": "" if failed else result, **more}])

    async def reveal(self, ask: Ask, value: str) -> None:
        """The one member of the schema."""
        await self._resume(ask, payload={"value": value})

    async def decline(self, ask: Ask) -> None:
        """The interrupt is abandoned."""
        await self._resume(ask, "cancelled")

    async def interrupt(self, note: str | None = None) -> None:
        """No route: one is tried."""
        await self._try("stop")

    async def _try(self, name: str) -> None:
        async with self.doing(works=False):
            await self.client.ask("POST", f"/threads/{self.thread}/{name}", {})

    async def steer(self, text: str) -> None:
        """No route: one is tried."""
        await self._try("steer")

    async def control(self, name: str) -> None:
        """No route: one is tried."""
        await self._try(name)

    async def rename(self, title: str) -> None:
        """No route: one is tried."""
        await self._try("title")

    # Seeing.

    def _see(self, frame: Any) -> None:  # noqa: C901 - one case for each event
        kind = frame["type"]
        self.seen.types.append(kind if kind != "CUSTOM" else frame["name"])
        match kind:
            case "RUN_STARTED":
                self._works()
                self.seen.open.clear()
                given = frame.get("input", {}).get("messages", ())
                self.seen.inputs += [_words(m["content"]) for m in given if m["role"] == "user"]
                for message in given:
                    if message["role"] == "tool":
                        about = {"isError": "error" in message}
                        self._result(message["toolCallId"], message["content"], about)
            case "TEXT_MESSAGE_START":
                role = frame["role"] if "subagentRunId" not in frame else None
                self._roles[frame["messageId"]] = role
            case "TEXT_MESSAGE_CONTENT":
                self._said(frame)
            case "TEXT_MESSAGE_END" if self._roles[frame["messageId"]] == "assistant":
                if _ours(frame).get("status") == "discarded":
                    self.seen.running = ""
                self._close_text()
            case "REASONING_MESSAGE_CONTENT":
                self.seen.thinking += frame["delta"]
            case "TOOL_CALL_START":
                self.seen.tools[frame["toolCallId"]] = Tool(frame["toolCallName"], None)
            case "TOOL_CALL_END":
                function = self.applied.call(frame["toolCallId"])["function"]
                given = json.loads(function["arguments"] or "null")
                self.seen.tools[frame["toolCallId"]].input = given
            case "TOOL_CALL_RESULT":
                self._result(frame["toolCallId"], frame["content"], _ours(frame))
            case "SUBAGENT_FINISHED" if "result" in frame:
                self.seen.children.append(str(frame["result"]))
            case "CUSTOM" if frame["name"] == "dragoman.turn_ended":
                self.seen.outcomes.append(frame["value"]["outcome"])
            case "CUSTOM" if frame["name"] == "dragoman.turn_failed":
                self.seen.errors.append(f"{frame['value']['code']}: {frame['value']['message']}")
            case "RUN_FINISHED":
                self._finished(frame)
            case "RUN_ERROR":
                self.seen.errors.append(f"{frame['code']}: {frame['message']}")
                self._ends("failed")

    def _said(self, frame: Mapping[str, Any]) -> None:
        match self._roles[frame["messageId"]]:
            case "assistant":
                self.seen.running += frame["delta"]
            case "user":
                self.seen.inputs.append(frame["delta"])
            case _:
                self.seen.children.append(frame["delta"])

    def _result(self, call_id: str, content: Any, about: Mapping[str, Any]) -> None:
        tool = self.seen.tools[call_id]
        tool.output = _words(content)
        tool.failed = bool(about.get("isError")) or about.get("status") == "rejected"
        if "error" in about:
            tool.output += f" {about['error'].get('message', '')}"

    def _finished(self, frame: Mapping[str, Any]) -> None:
        if "result" in frame:
            self.seen.results.append(frame["result"])
        outcome = frame.get("outcome", {})
        asks = [_ask(one) for one in outcome.get("interrupts", ())]
        for call_id in outcome.get("pendingToolCallIds", ()):
            tool = self.seen.tools[call_id]
            asks.append(Ask(call_id, "tool_result", tool.name, (), str(tool.input)))
        if not asks:
            self._ends(_ours(frame).get("outcome", "completed"))
            return
        known = {ask.id for ask in self.seen.asks}
        self.seen.asks += [ask for ask in asks if ask.id not in known]
        self.seen.open = {ask.id: ask for ask in asks}
        self.seen.state = "asks"


def _ask(interrupt: Mapping[str, Any]) -> Ask:
    about = interrupt["metadata"]["dragoman"]
    options = tuple((o["id"], o["label"]) for o in about.get("options", ()))
    reason, details = interrupt["reason"], str(about.get("details", ""))
    if reason.startswith("dragoman:"):
        options = (("decline", "decline"),)
    approval = about["kind"] == "approval"
    message = interrupt["message"]
    return Ask(interrupt["id"], reason, message, options, details, approval)


def _ours(frame: Mapping[str, Any]) -> dict[str, Any]:
    ours: dict[str, Any] = frame.get("metadata", {}).get("dragoman", {})
    return ours


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


PERSON = AguiFrontend

NO_ROUTE = Refused(404, "not_found", "There is no")
PAUSED = Refused(409, "paused", "waits for an answer")
ONLY_CANCELLED = Refused(400, "invalid_request", "can only be cancelled")


CELLS: Outcomes = {
    "a first message": NATIVE,
    "a follow-up": NATIVE,
    "parallel tools": NATIVE,
    "a tool that fails": NATIVE,
    "a long answer": NATIVE,
    "files": able("files", 400, "not_supported"),
    "a schema for the answer": Carried("no member for it: it is ignored as unknown members are"),
    "a message while a turn runs": Refused(409, "busy", "is working"),
    "a message while an approval is open": PAUSED,
    "steer": NO_ROUTE,
    "interrupt": NO_ROUTE,
    "interrupt while an approval is open": NO_ROUTE,
    "interrupt denies a held permission": NO_ROUTE,
    "a message that interrupts": interrupts(400, None),
    "approve": NATIVE,
    "deny": NATIVE,
    "deny with a reason": form("reasons"),
    "approve for the session": form("scopes"),
    "two approvals, one by one": NATIVE,
    "a second answer": Refused(409, "already_answered"),
    "an answer that does not fit": Refused(400, "invalid_request", "takes the payload"),
    "choose an option": tells("questions"),
    "answer with other words": tells("questions"),
    "an open question": tells("questions"),
    "skip a question": tells("questions", form("skips")),
    "answer by a plain message": tells("questions", PAUSED),
    "a custom tool": tells("custom_tools"),
    "a custom tool that fails": tells("custom_tools"),
    "give a secret": tells("secrets", Carried("an interrupt with a sealed payload")),
    "give a sudo password": tells("secrets", Carried("an interrupt with a sealed payload")),
    "say a secret as a message": tells("secrets", Refused(409, "paused")),
    "decline a secret": tells("secrets", Carried("an interrupt that is cancelled")),
    "sign in": tells("sign_ins", Carried("an interrupt that shows the address")),
    "call off a sign-in": tells("sign_ins", Carried("an interrupt that is cancelled")),
    "answer a sign-in": tells("sign_ins", ONLY_CANCELLED),
    "a token limit, and on": tells("limits", Carried("a confirmation")),
    "a token limit, and stop": tells("limits", Carried("a confirmation")),
    "compact": NO_ROUTE,
    "clear": NO_ROUTE,
    "reset": NO_ROUTE,
    "a title": NO_ROUTE,
    "archive": NO_ROUTE,
    "delete": NO_ROUTE,
    "a title that the agent gives": Carried("a custom event"),
    "compaction by the agent": tells("compactions", Carried("a custom event")),
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
