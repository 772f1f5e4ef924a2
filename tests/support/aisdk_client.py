"""A strict client of AI SDK UI: what `DefaultChatTransport` and `AbstractChat` check and do.

`Page` has the messages of one chat and makes the bodies that a page posts (protocol page, section
3), `Answer` builds the message that a body writes (section 6), `AisdkClient` posts, resumes and
stops. `tests.support.aisdk_chunks` checks every chunk. `ProtocolViolation` is raised for whatever
the oldest of these clients would refuse, and for what would make a page post for ever (8.1).
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp

from tests.support.aisdk_chunks import Call, Checker, Frames, Release, releases_of
from tests.support.strictness import SILENCE_S, ProtocolViolation
from tests.support.strictness import Refused as AnyRefused

__all__ = ["AisdkClient", "Answer", "Page", "Refused", "resends", "tool_name", "tools_of"]

HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
"""What the vendor's own servers answer with (section 4), and that nobody may compress it."""

Body = dict[str, Any]
Message = dict[str, Any]
Part = dict[str, Any]


class Refused(AnyRefused):
    """The server answered with an error status; its body is what the page shows."""

    @property
    def code(self) -> str | None:
        """The code, which Dragoman gives in a header."""
        return self.headers.get("x-dragoman-error")


def tools_of(parts: Sequence[Part]) -> list[Part]:
    """Return the tool parts of some parts."""
    return [p for p in parts if p["type"].startswith("tool-") or p["type"] == "dynamic-tool"]


def tool_name(part: Part) -> str:
    """Return the name of the tool of a part."""
    name: str = part["toolName"] if part["type"] == "dynamic-tool" else part["type"][5:]
    return name


def resends(messages: Sequence[Message], profile: str = "6") -> list[str]:
    """Return which of the two stock predicates are true, so that a page would post by itself.

    `lastAssistantMessageIsCompleteWithToolCalls` and `…WithApprovalResponses`, as the releases have
    them that are the most eager (8.1): neither looks at a text that is still open, the second one
    takes a denied call as complete, and in 5 a call that the provider ran counts too.
    """
    if not messages or messages[-1]["role"] != "assistant":
        return []
    parts = messages[-1]["parts"]
    last = max((at for at, p in enumerate(parts) if p["type"] == "step-start"), default=-1)
    calls = tools_of(parts[last + 1 :])
    if profile[0] != "5":
        calls = [call for call in calls if not call.get("providerExecuted")]
    states = {call["state"] for call in calls}
    found = []
    if states and states <= {"output-available", "output-error"}:
        found.append("tool calls")
    answered = {"approval-responded", "output-available", "output-error", "output-denied"}
    if "approval-responded" in states and states <= answered:
        found.append("approval responses")
    return found


class Page:
    """One page with a chat: its messages, and what it posts.

    Args:
        chat: the id of the chat.
        profile: the releases of the page, see `tests.support.aisdk_chunks`.
        messages: what the page has when it is loaded.
    """

    def __init__(
        self,
        chat: str,
        *,
        profile: str = "6",
        messages: Sequence[Message] = (),
        prefix: str = "client",
    ) -> None:
        self.chat = chat
        self.profile = profile
        self.messages: list[Message] = copy.deepcopy(list(messages))
        self.prefix = prefix
        self._ids = 0

    def new_id(self) -> str:
        """Return an id that no message of this page has."""
        self._ids += 1
        return f"{self.prefix}-{self._ids}"

    def message(self, message_id: str) -> Message | None:
        """Return a message by its id."""
        return next((m for m in self.messages if m["id"] == message_id), None)

    def part(self, call_id: str) -> Part:
        """Return the newest part of a call."""
        calls = [
            p for m in self.messages for p in tools_of(m["parts"]) if p["toolCallId"] == call_id
        ]
        return calls[-1]

    def resends(self) -> list[str]:
        """Return which of the two stock predicates are true now."""
        return resends(self.messages, self.profile)

    # What it posts.

    def _body(self, trigger: str, message_id: str | None = None) -> Body:
        named = {} if message_id is None else {"messageId": message_id}
        history = json.loads(json.dumps(self.messages))
        return {"id": self.chat, "messages": history, "trigger": trigger, **named}

    def say(
        self,
        text: str | None = None,
        *,
        files: Sequence[Part] = (),
        edits: str | None = None,
        **more: Any,
    ) -> Body:
        """Say something new, or in the place of a user message: all behind it is cut off.

        Args:
            text: the words.
            files: file parts, which come before the words.
            edits: the id of the message that is edited.
            more: other members of the message, as `metadata`.
        """
        words = [] if text is None else [{"type": "text", "text": text}]
        message = {"role": "user", "parts": [*files, *words], **more}
        if edits is None:
            self.messages.append({"id": self.new_id(), **message})
            return self._body("submit-message")
        del self.messages[self._index(edits) :]
        self.messages.append({"id": edits, **message})
        return self._body("submit-message", edits)

    def regenerate(self, message_id: str | None = None) -> Body:
        """Ask for another answer: to the last user message, or in the place of a message."""
        at = len(self.messages) - 1 if message_id is None else self._index(message_id)
        keeps = self.messages[at]["role"] == "user"
        del self.messages[at + keeps :]
        return self._body("regenerate-message", message_id)

    def go_on(self, message_id: str | None = None) -> Body:
        """Post the history as it is: what a page does when all is answered."""
        return self._body("submit-message", message_id or self.messages[-1]["id"])

    def _index(self, message_id: str) -> int:
        return next(at for at, m in enumerate(self.messages) if m["id"] == message_id)

    def approve(self, approval_id: str, approved: bool, reason: str | None = None) -> str:
        """Answer an approval; return the id of its message."""
        for message in reversed(self.messages):
            for part in tools_of(message["parts"]):
                if part.get("approval", {}).get("id") == approval_id:
                    said = {} if reason is None else {"reason": reason}
                    part["approval"] = {**part["approval"], "approved": approved, **said}
                    part["state"] = "approval-responded"
                    found: str = message["id"]
                    return found
        raise LookupError(approval_id)

    def output(self, call_id: str, output: Any = None, *, error: str | None = None) -> str:
        """Give the output of a call of the page's own, or why it failed; return its message's id.

        It fills every part with this id, as `addToolOutput` does.
        """
        found = [
            m for m in self.messages for p in tools_of(m["parts"]) if p["toolCallId"] == call_id
        ]
        for part in tools_of(found[-1]["parts"]):
            if part["toolCallId"] == call_id and error is None:
                part |= {"state": "output-available", "output": output}
            elif part["toolCallId"] == call_id:
                part |= {"state": "output-error", "errorText": error}
        last: str = found[-1]["id"]
        return last

    # What it reads.

    def target(self, body: Body | None) -> tuple[Message, bool]:
        """Return the message that an answer writes, and whether it goes on with one that is there.

        `body` is None where the page resumes, which begins with nothing from the second of the four
        generations on (10.1).
        """
        if body is not None and body["trigger"] != "regenerate-message":
            named = self.message(body.get("messageId", ""))
            for message in (named, *self.messages[-1:]):
                if message is not None and message["role"] == "assistant":
                    return copy.deepcopy(message), True
        return {"id": self.new_id(), "role": "assistant", "parts": []}, False

    def put(self, message: Message, was: str | None) -> None:
        """Show a message: in the place of the one with its id, else behind all."""
        ids = [m["id"] for m in self.messages]
        if message["id"] in ids:
            self.messages[ids.index(message["id"])] = message
        elif was in ids:
            self.messages[ids.index(was)] = message
        else:
            self.messages.append(message)


class Answer:
    """Builds the message that one body writes, and shows it in its page (section 6)."""

    def __init__(self, page: Page, body: Body | None = None, *, ours: bool = True) -> None:
        self.page = page
        self.ours = ours
        self.resumes = body is None
        self.message, self.goes_on = page.target(body)
        self.release: Release = releases_of(page.profile)[0]
        self.checker = Checker(page.profile, calls=_calls(self.message), ours=ours)
        self.error: str | None = None
        self.finish: dict[str, Any] = {}
        self.transient: list[dict[str, Any]] = []
        self._open: dict[tuple[str, str], Part] = {}
        self._raw: dict[str, str] = {}

    def feed(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Check the next chunk, apply it as the client does, and return it."""
        self.checker.feed(chunk)
        if self.error is None:
            # At an error the client stops reading.
            self._apply(chunk)
        return chunk

    def end(self) -> None:
        """Check the end of the body, and that the page posts nothing by itself then."""
        self.checker.end()
        loops = self.page.resends() if self.error is None else []
        if self.ours and loops:
            raise ProtocolViolation(f"the page would post again: {loops}", self.page.messages[-1])

    @property
    def parts(self) -> list[Part]:
        """Return the parts of the message, the boundaries that are not shown yet included."""
        found: list[Part] = self.message["parts"]
        return found

    def _apply(self, chunk: dict[str, Any]) -> None:
        kind = chunk["type"]
        family, _, what = kind.partition("-")
        match kind:
            case "start":
                self._start(chunk)
            case "start-step":
                self.parts.append({"type": "step-start"})
            case "finish-step":
                self._open.clear()
            case "finish" | "message-metadata":
                if kind == "finish":
                    self.finish = chunk
                if self._metadata(chunk):
                    self._show()
            case "error":
                self.error = chunk["errorText"]
            case "abort":
                pass
            case "source-url" | "source-document" | "file" | "reasoning-file" | "custom":
                self.parts.append(dict(chunk))
                self._show()
            case _ if family == "data":
                self._data(chunk)
            case _ if family in ("text", "reasoning"):
                self._text(family, what, chunk)
                self._show()
            case _:
                self._tool(what, chunk)
                self._show()

    def _start(self, chunk: dict[str, Any]) -> None:
        was, named = self.message["id"], chunk.get("messageId")
        if named is not None:
            known = self.page.message(named)
            if self.goes_on and named != was and self.ours:
                raise ProtocolViolation("a continuation with another id: shown twice", chunk)
            if known is not None and (
                known["role"] == "user" or not (self.goes_on or self.resumes)
            ):
                raise ProtocolViolation("a new message with an id of the history", chunk)
            self.message["id"] = named
        if self._metadata(chunk) or named is not None:
            self._show(was if self.goes_on else None)

    def _show(self, was: str | None = None) -> None:
        self.page.put({**self.message, "parts": [*self.parts]}, was)

    def _metadata(self, chunk: dict[str, Any]) -> bool:
        given = chunk.get("messageMetadata")
        if given is None:
            return False
        self.message["metadata"] = _merged(self.message.get("metadata"), given)
        return True

    def _data(self, chunk: dict[str, Any]) -> None:
        if chunk.get("transient"):
            self.transient.append(chunk)
            return
        wanted = (chunk["type"], chunk.get("id"))
        for part in self.parts:
            if wanted[1] is not None and (part["type"], part.get("id")) == wanted:
                part["data"] = chunk["data"]
                break
        else:
            self.parts.append(dict(chunk))
        self._show()

    def _text(self, family: str, what: str, chunk: dict[str, Any]) -> None:
        key = (family, chunk["id"])
        if what == "start":
            # The first patches that keep the id of a thought.
            keeps = {5: 234, 6: 253, 7: 63}[self.release[0]] <= self.release[1]
            named = {"id": chunk["id"]} if family == "reasoning" and keeps else {}
            self._open[key] = {"type": family, **named, "text": "", "state": "streaming"}
            self.parts.append(self._open[key])
        part = self._open[key]
        part["text"] += chunk.get("delta", "")
        if chunk.get("providerMetadata"):
            part["providerMetadata"] = chunk["providerMetadata"]
        if what == "end":
            part["state"] = "done"
            del self._open[key]

    def _find(self, call_id: str) -> Part:
        return next(p for p in reversed(tools_of(self.parts)) if p["toolCallId"] == call_id)

    def _tool(self, what: str, chunk: dict[str, Any]) -> None:
        match what:
            case "input-start":
                self._raw[chunk["toolCallId"]] = ""
                self._named(chunk, "input-streaming")
            case "input-delta":
                self._delta(chunk)
            case "input-available":
                self._named(chunk, "input-available")["input"] = chunk["input"]
            case "input-error":
                part = self._named(chunk, "output-error")
                part.pop("input", None)
                keeps = self.release >= (7, 103)
                part["input" if keeps else "rawInput"] = chunk["input"]
                part["errorText"] = chunk["errorText"]
            case "approval-request":
                part = self._find(chunk["toolCallId"])
                names = {"isAutomatic": "isAutomatic", "reason": "requestReason"}
                names |= {"approvalDescriptor": "descriptor", "signature": "signature"}
                more = {names[k]: v for k, v in chunk.items() if k in names}
                part["approval"] = {"id": chunk["approvalId"], **more}
                part["state"] = "approval-requested"
            case "approval-response":
                self._responded(chunk)
            case _:
                self._output(what, chunk)

    def _named(self, chunk: dict[str, Any], state: str) -> Part:
        dynamic = chunk.get("dynamic", False)
        type_ = "dynamic-tool" if dynamic else f"tool-{chunk['toolName']}"
        found = [p for p in tools_of(self.parts) if p["toolCallId"] == chunk["toolCallId"]]
        if not found:
            named = {"toolName": chunk["toolName"]} if dynamic else {}
            found = [{"type": type_, **named, "toolCallId": chunk["toolCallId"]}]
            self.parts.append(found[0])
        part = found[-1]
        part["state"] = state
        for name in ("providerExecuted", "title", "toolMetadata"):
            if name in chunk:
                part[name] = chunk[name]
        if "providerMetadata" in chunk:
            part["callProviderMetadata"] = chunk["providerMetadata"]
        return part

    def _delta(self, chunk: dict[str, Any]) -> None:
        """Take more of an input; a part that is not JSON yet is left out, the client repairs it."""
        part = self._find(chunk["toolCallId"])
        self._raw[chunk["toolCallId"]] += chunk["inputTextDelta"]
        try:
            part["input"] = json.loads(self._raw[chunk["toolCallId"]])
        except ValueError:
            part.pop("input", None)

    def _responded(self, chunk: dict[str, Any]) -> None:
        for part in tools_of(self.parts):
            if part.get("approval", {}).get("id") == chunk["approvalId"]:
                said = {name: chunk[name] for name in ("approved", "reason") if name in chunk}
                part["approval"] = {**part["approval"], **said}
                part["state"] = "approval-responded"

    def _output(self, what: str, chunk: dict[str, Any]) -> None:
        part = self._find(chunk["toolCallId"])
        part["state"] = what
        part.pop("preliminary", None)
        for name in ("output", "errorText", "preliminary", "toolMetadata"):
            if name in chunk:
                part[name] = chunk[name]
        if chunk.get("providerExecuted"):
            part["providerExecuted"] = True
        if "providerMetadata" in chunk:
            part["resultProviderMetadata"] = chunk["providerMetadata"]


def _calls(message: Message) -> dict[str, Call]:
    found = {}
    for part in tools_of(message["parts"]):
        approval = part.get("approval", {}).get("id")
        dynamic = part["type"] == "dynamic-tool"
        found[part["toolCallId"]] = Call(tool_name(part), dynamic, part["state"], approval)
    return found


def _merged(old: Any, new: Any) -> Any:
    """Return metadata with more laid over it: objects deeply, all else replaces."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}


class AisdkClient:
    """Posts, resumes and stops, as a page on `DefaultChatTransport` does.

    Args:
        http: the HTTP client.
        url: the `api` of the transport.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def post(self, page: Page, body: Body) -> AsyncGenerator[dict[str, Any], None]:
        """Post a body and yield the chunks of its answer, which the page shows by then.

        Raises:
            Refused: with the status and the words of the refusal.
        """
        sent = io.BytesIO(json.dumps(body).encode())
        headers = {"Content-Type": "application/json"}
        async with self.http.post(
            self.url, data=sent, headers=headers, timeout=_PATIENT
        ) as response:
            await _refuse(response)
            async for chunk in self._read(response, Answer(page, body)):
                yield chunk

    async def resume(self, page: Page, **query: str) -> AsyncGenerator[dict[str, Any], None]:
        """Ask for the message that is being written, and yield its chunks, if there is one."""
        url = self.at(page.chat, "stream")
        async with self.http.get(url, params=query, timeout=_PATIENT) as response:
            await _refuse(response)
            if response.status == 204:
                return
            async for chunk in self._read(response, Answer(page)):
                yield chunk

    async def stop(self, page: Page) -> None:
        """Stop the turn that runs."""
        answer = await self.ask("POST", self.at(page.chat, "stop"))
        if answer != {"success": True}:
            raise ProtocolViolation("not the answer of a stop", answer)

    def at(self, chat: str, what: str) -> str:
        """Return the URL of something of a chat: its id is one segment."""
        return f"{self.url}/{quote(chat, safe='')}/{what}"

    async def ask(self, method: str, url: str, body: Any = None) -> Any:
        """Ask for anything, and return the JSON."""
        async with self.http.request(method, url, json=body) as response:
            await _refuse(response)
            return await response.json()

    @staticmethod
    async def _read(
        response: aiohttp.ClientResponse, answer: Answer
    ) -> AsyncGenerator[dict[str, Any], None]:
        _check_head(response.status, response.headers)
        frames = Frames(numbered=True)
        async for data in response.content.iter_any():
            for chunk in frames.feed(data):
                yield answer.feed(chunk)
        frames.end()
        answer.end()


_PATIENT = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)


async def _refuse(response: aiohttp.ClientResponse) -> None:
    """Raise the refusal of an answer, unless it is a success: its words are plain text."""
    if response.status < 300:
        return
    words = await response.text(errors="replace")
    if response.content_type != "text/plain" or not words:
        raise ProtocolViolation("a refusal without plain words", (response.content_type, words))
    raise Refused(response.status, words, response.headers)


def _check_head(status: int, headers: Mapping[str, str]) -> None:
    found = {name: headers.get(name) for name in HEADERS}
    if (status, found) != (200, HEADERS):
        raise ProtocolViolation("not the head of a stream", (status, found))
