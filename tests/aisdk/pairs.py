"""A person at an AI SDK UI page, and what comes of each scenario on each backend."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp

from adapters.wire.jsonvalue import format_json
from tests.pairs.expectations import (
    NATIVE,
    Carried,
    Outcomes,
    Refused,
    able,
    denies,
    form,
    interrupts,
    tells,
)
from tests.pairs.frontends import Frontend, Refusal, Seen, Tool
from tests.people import Ask, Picture
from tests.support.aisdk_client import AisdkClient, Body, Message, Page, Part, tool_name
from tests.support.waiting import SOON_S

__all__ = ["CELLS", "PERSON"]

OURS = "data-dragoman-"


class AisdkFrontend(Frontend):
    """A page of 6 and 7: it posts its whole history, and comes back for what others do.

    What is seen is what its messages show, which is all that such a page has: it is looked at anew
    with every chunk.
    """

    dialect = "aisdk"
    compaction = f"{OURS}compacted"
    shows_what_came = True
    _numbers = itertools.count(1)

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        super().__init__(http, url, session)
        self.client = AisdkClient(http, url)
        number = next(self._numbers)
        # Ids that no page had which has said something in that session, in another process too.
        prefix = f"page{number}" if session is None else f"late{number}"
        self.page = Page(session or f"chat-{number}", prefix=prefix)
        self.failed: set[str] = set()
        self._posts = 0
        self._reading = 0
        self._live = False

    # Reading.

    def shows_words_of(self, dialect: str) -> bool:
        """A page has what it said itself, and no other one is told."""
        return dialect != self.dialect

    async def attach(self) -> None:
        """Come back to the chat again and again."""
        self._pump(self._watch())

    async def _watch(self) -> AsyncGenerator[dict[str, Any], None]:
        while True:
            await self._pause()
            if not self._reading:
                async with aclosing(self._come_back()) as chunks:
                    async for chunk in chunks:
                        yield chunk

    async def _come_back(self) -> AsyncGenerator[dict[str, Any], None]:
        """Read what runs, in a copy that is shown when it has caught up with what is seen."""
        posts, message_id = self._posts, ""
        shown = Page(self.page.chat, messages=self.page.messages, prefix=f"{self.page.prefix}-")
        async with aclosing(self.client.resume(shown, on_return="replay")) as chunks:
            async for chunk in chunks:
                if self._posts != posts:
                    return
                message_id = chunk.get("messageId", message_id)
                self._failing(message_id, chunk)
                self._adopt(shown, message_id)
                yield chunk
        self._live = False
        if message_id and self._posts == posts:
            self._adopt(shown, message_id, whole=True)
            self._look()
        elif isinstance(self.app, AisdkFrontend) and not self.app._reading:
            self._load(self.app.page)

    def _load(self, kept: Page) -> None:
        """Load what the app has kept: nothing runs, as another page has read it to its end."""
        for message in kept.messages:
            more = _size(message) > _size(self.page.message(message["id"]))
            if message["role"] == "assistant" and more:
                self.page.put(copy.deepcopy(message), None)
                self._look()
                self._changed.set()

    def _adopt(self, read: Page, message_id: str, *, whole: bool = False) -> None:
        theirs, ours = read.message(message_id), self.page.message(message_id)
        assert theirs is not None
        more = _size(theirs) > _size(ours)
        self._live = (self._live or more) and not whole
        if more or whole:
            self.page.put(theirs, None)

    async def reread(self, after: int) -> list[Any]:
        fresh = Page(self.page.chat)
        resumed = self.client.resume(fresh, on_return="replay")
        async with asyncio.timeout(SOON_S), aclosing(resumed) as chunks:
            return [chunk async for chunk in chunks][after + 1 :]

    async def history(self) -> list[str]:
        return list(self.seen.inputs)

    # Doing.

    async def _post(self, made: Callable[[], Body]) -> None:
        self._posts += 1
        self._reading += 1
        chunks = self.client.post(self.page, made())
        try:
            async with self.doing():
                first = await anext(chunks)
        except BaseException:
            self._reading -= 1
            # What was under way may have ended meanwhile: no chunk will come that says so.
            self._look()
            self._changed.set()
            raise
        self._pump(self._answer(first, chunks))
        if self.session is None:
            self.session = self.page.chat
            await self.attach()

    async def _answer(
        self, first: dict[str, Any], chunks: AsyncGenerator[dict[str, Any], None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(chunks):
            yield first
            async for chunk in chunks:
                self._failing(first["messageId"], chunk)
                yield chunk
        self._reading -= 1
        self._look()

    def _failing(self, message_id: str, chunk: Mapping[str, Any]) -> None:
        if chunk["type"] == "error":
            self.failed.add(message_id)
        elif chunk["type"] == "finish":
            # It went on since.
            self.failed.discard(message_id)

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """A message behind the whole history; files before the words."""
        parts = [
            {
                "type": "file",
                "mediaType": file.media_type,
                "url": f"data:{file.media_type};base64,{file.base64}",
            }
            for file in files
        ]
        more = {} if schema is None else {"outputSchema": schema}
        try:
            await self._post(lambda: {**self.page.say(text, files=parts), **more})
        except Refusal:
            # The person takes it back, or it would be said with the next words.
            del self.page.messages[-1]
            raise

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """`addToolApprovalResponse`: it has no place for a scope."""
        await self._post(lambda: self.page.go_on(self.page.approve(ask.id, yes, reason)))

    async def _output(self, ask: Ask, output: Any = None, *, error: str | None = None) -> None:
        call = self._about(ask.id)["toolCallId"]
        await self._post(lambda: self.page.go_on(self.page.output(call, output, error=error)))

    def _about(self, request_id: str) -> dict[str, Any]:
        found = [data for _, name, data in self._data() if name == "request"]
        return next(data for data in found if data["id"] == request_id)

    async def mumble(self, ask: Ask) -> None:
        """`addToolOutput` where an approval is wanted."""
        await self._output(ask, "perhaps")

    async def choose(self, ask: Ask, label: str) -> None:
        """The label of an option."""
        await self._output(ask, label)

    async def write(self, ask: Ask, text: str) -> None:
        """The words."""
        await self._output(ask, text)

    async def skip(self, ask: Ask) -> None:
        """The question is declined."""
        await self._output(ask, {"decline": True})

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """The output of the tool, or why it failed."""
        await self._output(ask, result, error=result if failed else None)

    async def reveal(self, ask: Ask, value: str) -> None:
        """The words."""
        await self._output(ask, value)

    async def decline(self, ask: Ask) -> None:
        """The one option."""
        await self._output(ask, "decline")

    async def interrupt(self, note: str | None = None) -> None:
        """The route for an explicit stop."""
        async with self.doing():
            await self.client.stop(self.page)

    async def _try(self, name: str) -> None:
        async with self.doing(works=False):
            await self.client.ask("POST", self.client.at(self.page.chat, name), {})

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

    def _see(self, frame: Any) -> None:
        self.seen.types.append(frame["type"])
        self._look()

    def _data(self) -> Iterator[tuple[Message, str, dict[str, Any]]]:
        for message in self.page.messages:
            for part in message["parts"]:
                if part["type"].startswith(OURS):
                    yield message, part["type"].removeprefix(OURS), part["data"]

    def _look(self) -> None:
        """See what the messages show."""
        types, state = self.seen.types, self.seen.state
        self.seen = seen = Seen(types=types, state=state)
        for message in self.page.messages:
            if message["role"] == "user":
                seen.inputs += [p["text"] for p in message["parts"] if p["type"] == "text"]
            for part in message["parts"] if message["role"] == "assistant" else ():
                self._part(part)
            if message["role"] == "assistant":
                self._outcome(message)
        if not self._reading and not self._live:
            seen.state = "asks" if seen.open else "rests"
        elif seen.open and all(ask.kind == "authorization" for ask in seen.open.values()):
            # Nothing ends the stream here: the page reads on.
            seen.state = "asks"
        else:
            seen.state = "working"

    def _part(self, part: Part) -> None:
        seen, kind = self.seen, part["type"]
        match kind:
            case "text":
                seen.texts.append(part["text"])
            case "reasoning":
                seen.thinking += part["text"]
            case _ if kind == "dynamic-tool" or kind.startswith("tool-"):
                if tool_name(part) != "dragoman_ask":
                    seen.tools[part["toolCallId"]] = _tool(part)
            case "data-dragoman-request":
                self._request(part["data"])
            case "data-dragoman-message":
                seen.inputs.append(part["data"]["text"])
            case "data-dragoman-child-text":
                seen.children.append(part["data"]["text"])
            case "data-dragoman-failure":
                seen.errors.append(f"{part['data']['code']}: {part['data']['message']}")
            case "data-dragoman-result":
                told = part["data"].get("errorText", part["data"].get("output"))
                tool = seen.tools[part["data"]["toolCallId"]]
                tool.output = _words(told) if told is not None else tool.output
                tool.failed |= part["data"]["state"] in ("output-denied", "output-error")
            case "data-dragoman-result-value":
                seen.results.append(part["data"])
            case "data-dragoman-turn":
                seen.outcomes.append(part["data"]["outcome"])

    def _request(self, data: Mapping[str, Any]) -> None:
        call = self.page.part(data["toolCallId"]) if "toolCallId" in data else None
        ask = _ask(data, call)
        if all(ask.id != known.id for known in self.seen.asks):
            self.seen.asks.append(ask)
        waits = call is None or call["state"] in ("input-available", "approval-requested")
        if data["state"] == "open" and waits:
            assert call is None or not call.get("providerExecuted"), call
            self.seen.open[ask.id] = ask

    def _outcome(self, message: Message) -> None:
        outcome = message.get("metadata", {}).get("dragoman", {}).get("outcome", "asked")
        if message["id"] in self.failed:
            outcome = "failed"
        if outcome != "asked":
            self.seen.outcomes.append(outcome)


def _size(message: Message | None) -> int:
    """Return how much a message shows."""
    if message is None:
        return 0
    return sum(1 + len(part.get("text", "")) for part in message["parts"])


def _words(value: Any) -> str:
    return value if isinstance(value, str) else format_json(value).decode()


def _tool(part: Part) -> Tool:
    tool = Tool(tool_name(part), part.get("input"))
    match part["state"]:
        case "output-available" if not part.get("preliminary"):
            tool.output = _words(part["output"])
        case "output-error":
            tool.output, tool.failed = part["errorText"], True
        case "output-denied":
            tool.output, tool.failed = "", True
    return tool


def _ask(data: Mapping[str, Any], call: Part | None) -> Ask:
    given = data.get("options", ())
    if call is not None and tool_name(call) == "dragoman_ask":
        assert call["input"]["requestId"] == data["id"]
        given = call["input"].get("options", given)
    options = tuple((option["id"], option["label"]) for option in given)
    about = str(data.get("details", ""))
    if call is not None:
        about += f" {call.get('input')}"
    return Ask(data["id"], data["kind"], data["prompt"], options, about, data["kind"] == "approval")


PERSON = AisdkFrontend

NO_ROUTE = Refused(404, "not_found", "There is no")
ONLY_DECLINED = Refused(400, "invalid_request", "takes only")
STOPS = interrupts(400, "not_supported")


CELLS: Outcomes = {
    "a first message": NATIVE,
    "a follow-up": NATIVE,
    "parallel tools": NATIVE,
    "a tool that fails": NATIVE,
    "a long answer": NATIVE,
    "files": able("files", 400, "not_supported"),
    "a schema for the answer": Carried("no member for it: it is ignored as unknown members are"),
    "a message while a turn runs": Refused(409, "busy", "is working"),
    "a message while an approval is open": Carried("the approval is denied, then it is said"),
    "steer": NO_ROUTE,
    "interrupt": STOPS,
    "interrupt while an approval is open": STOPS,
    "interrupt denies a held permission": denies(400, "not_supported"),
    "a message that interrupts": interrupts(400, None),
    "approve": NATIVE,
    "deny": NATIVE,
    "deny with a reason": form("reasons"),
    "approve for the session": Carried("once: an answered approval has no scope"),
    "two approvals, one by one": NATIVE,
    "a second answer": Carried("the page is given what came of the first"),
    "an answer that does not fit": Refused(400, "invalid_request", "nothing new"),
    "choose an option": tells("questions"),
    "answer with other words": tells("questions"),
    "an open question": tells("questions"),
    "skip a question": tells("questions", form("skips")),
    "answer by a plain message": tells("questions"),
    "a custom tool": tells("custom_tools"),
    "a custom tool that fails": tells("custom_tools"),
    "give a secret": tells("secrets", ONLY_DECLINED),
    "give a sudo password": tells("secrets", ONLY_DECLINED),
    "say a secret as a message": tells(
        "secrets", Carried("the secret is declined, then it is said")
    ),
    "decline a secret": tells("secrets", Carried("the one option, `decline`")),
    "sign in": tells("sign_ins", Carried("a call that shows the address")),
    "call off a sign-in": tells("sign_ins", Carried("the one option, `decline`")),
    "answer a sign-in": tells("sign_ins", ONLY_DECLINED),
    "a token limit, and on": tells("limits", Carried("a question with two options")),
    "a token limit, and stop": tells("limits", Carried("a question with two options")),
    "compact": NO_ROUTE,
    "clear": NO_ROUTE,
    "reset": NO_ROUTE,
    "a title": NO_ROUTE,
    "archive": NO_ROUTE,
    "delete": NO_ROUTE,
    "a title that the agent gives": Carried("a data part"),
    "compaction by the agent": tells("compactions", Carried("a data part")),
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
