"""What a release of AI SDK UI takes from a body: its frames, the fields of each chunk, their order.

Written from sections 1, 4, 5 and 7 of the protocol page. A profile is the releases that must all
take a chunk: `5` is 5.0.0, `6` is both 6.0.0 and 7.0.0, and any other is a release of its own, as
`7.0.173`. In each an unknown field is an error, as it is in the oldest releases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.strictness import Disconnected, ProtocolViolation

__all__ = ["Call", "Checker", "Frames", "Release", "releases_of", "split"]

Release = tuple[int, int]
"""Major and patch: 6.0.15 is `(6, 15)`."""

_OWN = {"5": ((5, 0),), "6": ((6, 0), (7, 0))}
_NEVER = 1 << 30


def releases_of(profile: str) -> tuple[Release, ...]:
    """Return the releases that must take a chunk of this profile."""
    if profile in _OWN:
        return _OWN[profile]
    major, _, patch = profile.split(".")
    return ((int(major), int(patch)),)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field: what its value must be, and the first patch of 5, 6 and 7 that knows it."""

    takes: Callable[[Any], bool]
    since: tuple[int, int, int] = (0, 0, 0)
    needed: bool = False


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _objects(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, dict) for one in value.values())


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _anything(value: Any) -> bool:
    return True


def _encoding(value: Any) -> bool:
    return value in ("json", "text")


def _needed(takes: Callable[[Any], bool]) -> _Field:
    return _Field(takes, needed=True)


_SIX = (_NEVER, 0, 0)
_SEVEN = (_NEVER, _NEVER, 0)
_ID = {"id": _needed(_text)}
_CALL = {"toolCallId": _needed(_text)}
_ABOUT = {"providerMetadata": _Field(_objects)}
_KIND = {"providerExecuted": _Field(_flag), "dynamic": _Field(_flag)}
_TOOL = {"toolMetadata": _Field(_object, (_NEVER, 176, 0))}
_NAMED = {**_CALL, "toolName": _needed(_text), **_KIND, "title": _Field(_text, _SIX), **_TOOL}
_RESULT = {**_CALL, **_KIND, **_TOOL, "providerMetadata": _Field(_objects, (_NEVER, 120, 0))}
_FILE = {"url": _needed(_text), "mediaType": _needed(_text), **_ABOUT}
_METADATA = {"messageMetadata": _Field(_anything)}

_CHUNKS: dict[str, tuple[tuple[int, int, int], dict[str, _Field]]] = {
    "start": ((0, 0, 0), {"messageId": _Field(_text), **_METADATA}),
    "start-step": ((0, 0, 0), {}),
    "finish-step": ((0, 0, 0), {}),
    "finish": ((0, 0, 0), {**_METADATA, "finishReason": _Field(_text, (92, 0, 0))}),
    "message-metadata": ((0, 0, 0), {"messageMetadata": _needed(_anything)}),
    "error": ((0, 0, 0), {"errorText": _needed(_text)}),
    "abort": ((0, 0, 0), {"reason": _Field(_text, (_NEVER, 15, 0))}),
    "text-start": ((0, 0, 0), {**_ID, **_ABOUT}),
    "text-delta": ((0, 0, 0), {**_ID, "delta": _needed(_text), **_ABOUT}),
    "text-end": (
        (0, 0, 0),
        {**_ID, **_ABOUT, "citations": _Field(_list, (_NEVER, _NEVER, 138))},
    ),
    "reasoning-start": ((0, 0, 0), {**_ID, **_ABOUT}),
    "reasoning-delta": ((0, 0, 0), {**_ID, "delta": _needed(_text), **_ABOUT}),
    "reasoning-end": ((0, 0, 0), {**_ID, **_ABOUT}),
    "tool-input-start": (
        (0, 0, 0),
        {
            **_NAMED,
            "providerMetadata": _Field(_objects, (_NEVER, 39, 0)),
            "inputEncoding": _Field(_encoding, (_NEVER, 308, 142)),
        },
    ),
    "tool-input-delta": ((0, 0, 0), {**_CALL, "inputTextDelta": _needed(_text)}),
    "tool-input-available": ((0, 0, 0), {**_NAMED, "input": _needed(_anything), **_ABOUT}),
    "tool-input-error": (
        (7, 0, 0),
        {**_NAMED, "input": _needed(_anything), "errorText": _needed(_text), **_ABOUT},
    ),
    "tool-approval-request": (
        _SIX,
        {
            "approvalId": _needed(_text),
            **_CALL,
            "signature": _Field(_text, (_NEVER, 202, 0)),
            "approvalDescriptor": _Field(_anything, (_NEVER, 274, 87)),
            "inputSchemaInput": _Field(_anything, (_NEVER, 290, 113)),
            "isAutomatic": _Field(_flag, _SEVEN),
            "reason": _Field(_text, (_NEVER, _NEVER, 82)),
        },
    ),
    "tool-approval-response": (
        _SEVEN,
        {
            "approvalId": _needed(_text),
            "approved": _needed(_flag),
            "reason": _Field(_text),
            "providerExecuted": _Field(_flag),
            **_ABOUT,
        },
    ),
    "tool-output-available": (
        (0, 0, 0),
        {**_RESULT, "output": _needed(_anything), "preliminary": _Field(_flag, (11, 0, 0))},
    ),
    "tool-output-error": ((0, 0, 0), {**_RESULT, "errorText": _needed(_text)}),
    "tool-output-denied": (_SIX, _CALL),
    "source-url": (
        (0, 0, 0),
        {
            "sourceId": _needed(_text),
            "url": _needed(_text),
            "title": _Field(_text),
            **_ABOUT,
        },
    ),
    "source-document": (
        (0, 0, 0),
        {
            "sourceId": _needed(_text),
            "mediaType": _needed(_text),
            "title": _needed(_text),
            "filename": _Field(_text),
            **_ABOUT,
        },
    ),
    "file": ((0, 0, 0), _FILE),
    "reasoning-file": (_SEVEN, _FILE),
    "custom": (_SEVEN, {"kind": _needed(_text), **_ABOUT}),
    "reset-step": ((_NEVER, _NEVER, 70), {}),
    "data-": (
        (0, 0, 0),
        {"data": _needed(_anything), "id": _Field(_text), "transient": _Field(_flag)},
    ),
}
"""Chunk -> the first patches that know it, and its fields (sections 5.1 and 5.2)."""

_REASONS = {"stop", "length", "content-filter", "tool-calls", "error", "other"}


def _knows(since: tuple[int, int, int], releases: Sequence[Release]) -> bool:
    return all(patch >= since[major - 5] for major, patch in releases)


def _check_fields(chunk: Any, releases: Sequence[Release]) -> None:
    kind = chunk.get("type") if isinstance(chunk, dict) else None
    name = "data-" if isinstance(kind, str) and kind.startswith("data-") else kind
    if name not in _CHUNKS or not _knows(_CHUNKS[name][0], releases):
        raise ProtocolViolation(f"{releases} do not know the chunk", chunk)
    fields = _CHUNKS[name][1]
    for given, value in chunk.items():
        if given == "type":
            continue
        if given not in fields or not _knows(fields[given].since, releases):
            raise ProtocolViolation(f"{releases} do not know `{given}`", chunk)
        if not fields[given].takes(value):
            raise ProtocolViolation(f"`{given}` is of a wrong type", chunk)
    missing = [one for one, field in fields.items() if field.needed and one not in chunk]
    if missing:
        raise ProtocolViolation(f"it lacks {missing}", chunk)
    if kind == "finish" and chunk.get("finishReason", "stop") not in _reasons(releases):
        raise ProtocolViolation("a finish reason that is unknown", chunk)


def _reasons(releases: Sequence[Release]) -> set[str]:
    fives = {"unknown"} if all(major == 5 for major, _ in releases) else set()
    return (
        _REASONS | fives | ({"interrupted"} if _knows((_NEVER, _NEVER, 149), releases) else set())
    )


class Frames:
    """Cuts a body into its chunks, as `DefaultChatTransport` reads it.

    `[DONE]` must be the last that comes. `numbered` asks for the number of each frame and for a
    comment at once, which are Dragoman's promises.
    """

    def __init__(self, *, numbered: bool = False) -> None:
        self.numbered = numbered
        self.number = -1
        self.comments: list[bytes] = []
        self.done = False
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the chunks that the next bytes complete."""
        *parts, self._rest = (self._rest + data).split(b"\n\n")
        for part in parts:
            found = self._frame(part)
            if found is not None:
                yield found

    def end(self) -> None:
        """Check that the body came to its end."""
        if self._rest:
            raise Disconnected(f"the body ends inside an event: {self._rest[:200]!r}")
        if not self.done:
            raise Disconnected("the body ends without [DONE]")

    def _frame(self, part: bytes) -> dict[str, Any] | None:
        if b"\r" in part:
            raise ProtocolViolation("a carriage return in the framing", part)
        said: list[bytes] = []
        for line in part.split(b"\n"):
            name, colon, value = line.partition(b":")
            match name:
                case b"" if colon:
                    self.comments.append(value.strip())
                case b"data":
                    said.append(value.removeprefix(b" "))
                case b"id" if value.strip().isdigit() and int(value) > self.number:
                    self.number = int(value)
                case _:
                    raise ProtocolViolation("a line that is not of the protocol", part)
        if not said:
            return None
        if self.numbered and self.comments[:1] != [b"stream-open"]:
            raise ProtocolViolation("no comment came at once", part)
        if self.done:
            raise ProtocolViolation("something comes behind [DONE]", part)
        if said == [b"[DONE]"]:
            self.done = True
            return None
        try:
            chunk = json.loads(b"\n".join(said))
        except ValueError:
            raise ProtocolViolation("a frame is not JSON", part) from None
        if not isinstance(chunk, dict):
            raise ProtocolViolation("a frame is not an object", part)
        if self.numbered and not part.startswith(b"id:") and chunk.get("type") != "error":
            # The error that ends a body which is cut is not of the log: it has none.
            raise ProtocolViolation("a frame without its number", part)
        return chunk


def split(body: bytes) -> list[dict[str, Any]]:
    """Return the chunks of a whole body."""
    frames = Frames()
    found = list(frames.feed(body))
    frames.end()
    return found


@dataclass(slots=True)
class Call:
    """A tool call of the message that is written; `state` is that of its part."""

    name: str
    dynamic: bool
    state: str
    approval: str | None = None
    step: int = 0


_OVER = {"output-available", "output-error", "output-denied"}
_IN_STEP = {"tool-input-start", "tool-input-available", "tool-input-error"}
_IN_STEP |= {"source-url", "source-document", "file", "reasoning-file", "custom", "reset-step"}


class Checker:
    """Checks the chunks of one body: their fields, and their order.

    Args:
        profile: which releases must take them, see above.
        calls: the calls of the message that the body goes on with, by their ids.
        ours: whether it is Dragoman that writes, which promises more: an id of the message, texts
            that are closed before an error, and an end for each answered approval (rules 3, 6, 8).
    """

    def __init__(
        self, profile: str = "6", *, calls: dict[str, Call] | None = None, ours: bool = False
    ) -> None:
        self.releases = releases_of(profile)
        self.calls = calls or {}
        self.answered = {i for i, c in self.calls.items() if c.state == "approval-responded"}
        self.ours = ours
        self.state = "new"
        self.aborted = False
        self.in_step = False
        self.open: set[tuple[str, str]] = set()
        self.told: set[str] = set()
        self.steps = 1

    def feed(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Check the next chunk, and return it."""
        _check_fields(chunk, self.releases)
        kind = chunk["type"]
        if (kind == "start") != (self.state == "new"):
            raise ProtocolViolation(f"it comes where the body is {self.state}", chunk)
        closing = kind in ("finish-step", "finish", "message-metadata") or kind.startswith("data-")
        if self.state == "over" or (self.state == "broken" and not closing):
            raise ProtocolViolation(f"it comes where the body is {self.state}", chunk)
        match kind:
            case "start":
                self.state = "open"
                if self.ours and "messageId" not in chunk:
                    raise ProtocolViolation("a start without the message's id", chunk)
            case "start-step" | "finish-step":
                self._step(chunk, begins=kind == "start-step")
            case "finish":
                if self.in_step:
                    raise ProtocolViolation("it comes within a step", chunk)
                self._whole(chunk)
                self.state = "over"
            case "error" | "abort":
                if self.ours and self.open:
                    raise ProtocolViolation(f"it leaves this open: {self.open}", chunk)
                self.aborted = True
                if kind == "error":
                    self.state = "broken"
            case _ if kind.startswith(("text-", "reasoning-s", "reasoning-d", "reasoning-e")):
                self._text(chunk)
            case _ if kind.startswith("tool-"):
                self._tool(chunk)
        if kind in _IN_STEP and not self.in_step:
            raise ProtocolViolation("it comes outside of a step", chunk)
        return chunk

    def end(self) -> None:
        """Check that the message was whole at the end of the body."""
        if self.state not in ("over", "broken") and not self.aborted:
            raise Disconnected(f"the body ends while the message is {self.state}")

    def _step(self, chunk: dict[str, Any], *, begins: bool) -> None:
        if self.in_step == begins:
            raise ProtocolViolation("a step in a step, or the end of none", chunk)
        if self.open and (self.ours or not self.aborted):
            raise ProtocolViolation(f"it leaves this open: {self.open}", chunk)
        self.open.clear()
        self.in_step = begins
        self.steps += begins

    def _whole(self, chunk: dict[str, Any]) -> None:
        if self.aborted:
            return
        left = [i for i, call in self.calls.items() if call.state == "input-streaming"]
        if left:
            raise ProtocolViolation(f"inputs that are not whole: {left}", chunk)
        asked = any(call.state == "approval-requested" for call in self.calls.values())
        left = [i for i in self.answered if self.calls[i].state not in _OVER]
        if self.ours and left and not asked:
            raise ProtocolViolation(f"answered approvals without an end: {left}", chunk)

    def _text(self, chunk: dict[str, Any]) -> None:
        family, _, what = chunk["type"].partition("-")
        part = (family, chunk["id"])
        if not self.in_step:
            raise ProtocolViolation("it comes outside of a step", chunk)
        if (what == "start") == (part in self.open):
            raise ProtocolViolation("a part that is open already, or not yet", chunk)
        if what == "start":
            self.open.add(part)
        elif what == "end":
            self.open.remove(part)

    def _tool(self, chunk: dict[str, Any]) -> None:
        kind = chunk["type"].removeprefix("tool-")
        call = self.calls.get(chunk.get("toolCallId", ""))
        match kind:
            case "input-start":
                if call is not None:
                    raise ProtocolViolation("a call that is there already", chunk)
                self._call(chunk, "input-streaming")
            case "input-available" | "input-error":
                state = "input-available" if kind == "input-available" else "input-error"
                if call is not None:
                    self._same(call, chunk)
                self._call(chunk, state)
            case "approval-response":
                by_id = {c.approval: c for c in self.calls.values()}
                if chunk["approvalId"] not in by_id:
                    raise ProtocolViolation("an approval that was not asked for", chunk)
                by_id[chunk["approvalId"]].state = "approval-responded"
            case _ if call is None:
                raise ProtocolViolation("a call that is not of this message", chunk)
            case "input-delta":
                if call.state != "input-streaming":
                    raise ProtocolViolation("more input where it is whole", chunk)
            case "approval-request":
                if call.state != "input-available" or call.approval is not None:
                    raise ProtocolViolation("it asks about a call that does not wait", chunk)
                call.state, call.approval = "approval-requested", chunk["approvalId"]
            case _:
                self._output(call, chunk)

    def _call(self, chunk: dict[str, Any], state: str) -> None:
        dynamic = chunk.get("dynamic", False)
        call = Call(chunk["toolName"], dynamic, state, step=self.steps)
        self.calls[chunk["toolCallId"]] = call

    def _same(self, call: Call, chunk: dict[str, Any]) -> None:
        # In its own step a call may be told anew until it has an output: its part is updated.
        anew = call.state == "input-available" and call.step == self.steps
        if call.state != "input-streaming" and not anew:
            raise ProtocolViolation(f"the input of a call that is {call.state}", chunk)
        if (call.name, call.dynamic) != (chunk["toolName"], chunk.get("dynamic", False)):
            raise ProtocolViolation("the call began as another tool", chunk)

    def _output(self, call: Call, chunk: dict[str, Any]) -> None:
        kind = chunk["type"].removeprefix("tool-")
        if call.state == "input-streaming" and kind != "output-error":
            # A call whose input never became whole may only fail.
            raise ProtocolViolation("an output before the input", chunk)
        fives = any(major == 5 for major, _ in self.releases)
        if fives and call.dynamic and not chunk.get("dynamic"):
            raise ProtocolViolation("the output of a dynamic call without `dynamic`", chunk)
        if kind == "output-denied" and call.approval is None:
            raise ProtocolViolation("a denial of what was not asked", chunk)
        if self.ours and chunk["toolCallId"] in self.told:
            raise ProtocolViolation(f"an output of a call that is {call.state}", chunk)
        if not chunk.get("preliminary"):
            # What a page gave itself may be told again: as it was taken.
            self.told.add(chunk["toolCallId"])
            call.state = kind
