"""Backends made of recorded bodies: an Engine and a Herm, which show what was recorded as far as
what they were sent allows.

A `Trouble` says what becomes of the n-th request that changes something: it is refused, its answer
is lost before or after the backend took it, it never arrives.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Literal

from multidict import CIMultiDict

from adapters.model.base import Call, CloseReason, Response
from adapters.wire.framing.sse import SseFrame
from tests.kept.leg import Frame, Lost, World

Kind = Literal["refused", "lost", "lost on the way", "unreachable"]


@dataclasses.dataclass(frozen=True)
class Trouble:
    """What becomes of the `number`-th post (from 1), and of so many after it."""

    kind: Kind
    number: int = 1
    times: int = 1
    status: int = 500
    body: dict[str, Any] = dataclasses.field(default_factory=dict)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        status = f" {self.status}" if self.kind == "refused" else ""
        return f"{self.kind}{status} {self.number}"


def json_response(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(status, CIMultiDict(headers or {}), json.dumps(value).encode())


class Recorded(World):
    """What both have: posts and their troubles, and how far streams are read."""

    def __init__(self, troubles: Sequence[Trouble] = ()) -> None:
        self.troubles = list(troubles)
        self.posts = 0
        self.places: dict[int, int] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorded:
        # The frames are shared: only what changes is copied.
        other = copy.copy(self)
        memo[id(self)] = other
        for name, value in vars(self).items():
            if isinstance(value, dict | set) or name in self.lists:
                setattr(other, name, copy.copy(value))
        return other

    lists: tuple[str, ...] = ()

    def trouble(self) -> Trouble | None:
        """Count a post, and return what becomes of it."""
        self.posts += 1
        for trouble in self.troubles:
            if trouble.number <= self.posts < trouble.number + trouble.times:
                return trouble
        return None

    def post(self, call: Call) -> Response:
        """Take a post, as its trouble lets it."""
        trouble = self.trouble()
        if trouble is None:
            return self.take(call)
        match trouble.kind:
            case "refused":
                return json_response(trouble.status, trouble.body, trouble.headers)
            case "lost":
                self.take(call)
                raise Lost(sent=True)
            case "lost on the way":
                raise Lost(sent=True)
            case _:
                raise Lost(sent=False)

    def take(self, call: Call) -> Response:
        raise NotImplementedError


class Engine(Recorded):
    """An Engine that plays a body for each message. What follows a request needs its answer."""

    dialect = "engine"
    lists = ("bodies", "shown")

    def __init__(
        self, task: str, bodies: Sequence[Sequence[SseFrame]], troubles: Sequence[Trouble] = ()
    ) -> None:
        super().__init__(troubles)
        self.settings = {"task_id": task, "interrupt": "deny"}
        self.bodies = list(bodies)
        self.begun = 0
        self.answers = 0
        # The frames that were shown, which a replay repeats, and the ends of turns among them.
        self.shown: list[SseFrame] = []
        self.ends: dict[int, None] = {}
        self.body = 0

    def _frames(self) -> list[SseFrame]:
        """Return all that may be shown now."""
        out: list[SseFrame] = []
        asked = 0
        self.ends = {}
        for body in self.bodies[: self.begun]:
            for frame in body:
                out.append(frame)
                if frame.event == "hitl_request":
                    asked += 1
                    if asked > self.answers:
                        return out
            self.ends[len(out)] = None
        return out

    def take(self, call: Call) -> Response:
        if call.name == "execute":
            self.begun += 1
            return Response(200)
        if self._pending() is None:
            return json_response(404, {"error": "NOTHING_PENDING", "message": "Nothing."})
        self.answers += 1
        return json_response(200, {"status": "resumed"})

    def _pending(self) -> dict[str, Any] | None:
        frames = self._frames()
        open_ = frames[-1] if frames and frames[-1].event == "hitl_request" else None
        if open_ is None:
            return None
        asked: dict[str, Any] = json.loads(open_.data)
        return asked

    def answer(self, call: Call) -> Response:
        if call.request.method == "POST":
            return self.post(call)
        pending = self._pending()
        return json_response(200, {"pending": [] if pending is None else [pending]})

    def open(self, call: Call) -> Response:
        if call.name == "execute":
            before = len(self._frames())
            response = self.post(call)
            self.places[id(call)] = before
            return response
        self.places[id(call)] = 0
        return Response(200)

    def next(self, call: Call) -> Frame | CloseReason | None:
        frames = self._frames()
        at = self.places[id(call)]
        if at < len(frames):
            self.places[id(call)] = at + 1
            return frames[at]
        if at in self.ends and at == len(frames):
            return CloseReason.ENDED
        return None


class Herm(Recorded):
    """A Herm that plays bodies one after the other. What follows a pause needs its answers, what
    follows an end the next message. It numbers what it shows and what it is sent."""

    dialect = "herm"
    lists = ("log",)

    def __init__(
        self,
        frames: Sequence[SseFrame],
        troubles: Sequence[Trouble] = (),
        *,
        spelling: Literal["events", "single"] = "events",
    ) -> None:
        super().__init__(troubles)
        self.settings = {"agent": "agent_K4", "task_id": "session_7c"}
        self.frames = frames
        self.spelling = spelling
        self.at = 0
        self.messages = 0
        self.answers = 0
        self.needed = 0
        self.over = True
        self.created = False
        # All envelopes with their numbers, deltas and inputs too.
        self.log: list[dict[str, Any]] = []

    def take(self, call: Call) -> Response:
        body: Any = json.loads(call.request.body or b"{}")
        if call.name == "create":
            self.created = True
            return json_response(201, {"id": "session_7c", "agentId": "agent_K4"})
        if call.name != "events":
            return json_response(200, {"id": "session_7c"})
        if ("events" in body) != (self.spelling == "events"):
            return json_response(400, {"code": "validation_error", "message": "Not so."})
        events = body.get("events", [body])
        echoed = []
        for event in events:
            match event["type"]:
                case "user.message" if not self.over:
                    return json_response(409, {"error": {"code": "turn_running"}})
                case "user.message":
                    self.messages += 1
                    self.over = False
                case "user.steer" | "user.interrupt" if self.over:
                    return json_response(409, {"error": {"code": "no_turn_running"}})
                case "user.steer":
                    pass
                case "user.interrupt":
                    # Only the end of the turn is left of it.
                    while not self._ends(self.at):
                        self.at += 1
                    self.needed = self.answers
                case _:
                    self.answers += 1
            echoed.append(self._number({"type": event["type"], "payload": event}))
        return json_response(202, {"data": echoed})

    def _ends(self, at: int) -> bool:
        payload = json.loads(self.frames[at].data).get("payload", {})
        reason = payload.get("stop_reason") or {}
        idle = payload.get("type") == "session.status_idle"
        return idle and reason.get("type") != "requires_action"

    def _number(self, envelope: dict[str, Any]) -> dict[str, Any]:
        number = len(self.log) + 1
        made = {"id": f"evt_{number}", "status": "complete", **envelope}
        if "sequence" in envelope or envelope["type"].startswith("user."):
            made["sequence"] = number
        if "id" in envelope:
            made["id"] = f"evt_{number}"
        self.log.append(made)
        return made

    def _release(self) -> None:
        """Let the next recorded frame happen, where that may be."""
        if self.at == len(self.frames) or not self.messages:
            return
        if self.over or self.answers < self.needed:
            return
        frame = self.frames[self.at]
        self.at += 1
        envelope: dict[str, Any] = json.loads(frame.data)
        self._number(envelope)
        if envelope.get("type") == "session.status_idle":
            reason = envelope["payload"]["stop_reason"]
            if isinstance(reason, dict) and reason.get("type") == "requires_action":
                self.needed = self.answers + max(len(reason.get("event_ids") or ()), 1)
            else:
                self.over = True

    def answer(self, call: Call) -> Response:
        if call.request.method != "GET":
            return self.post(call)
        if call.name == "session":
            return json_response(200, {"status": "idle" if self.over else "running"})
        listed = [e for e in self.log if not is_delta(e)]
        if call.request.query.get("order") == "desc":
            listed.reverse()
        return json_response(200, {"data": listed, "nextCursor": None})

    def open(self, call: Call) -> Response:
        last = call.request.headers.get("Last-Event-ID")
        ids = [e.get("id") for e in self.log]
        self.places[id(call)] = ids.index(last) + 1 if last in ids else len(self.log)
        return Response(200)

    def next(self, call: Call) -> Frame | CloseReason | None:
        at = self._skipped(self.places[id(call)])
        while at == len(self.log):
            before = self.at
            self._release()
            if self.at == before:
                return None
            at = self._skipped(at)
        envelope = self.log[at]
        self.places[id(call)] = at + 1
        return SseFrame(envelope["type"], json.dumps(envelope).encode(), envelope.get("id"))

    def _skipped(self, at: int) -> int:
        """Return the next place of a stream: inputs are in the list only (section 4.4)."""
        while at < len(self.log) and self.log[at]["type"].startswith("user."):
            at += 1
        return at


def is_delta(envelope: dict[str, Any]) -> bool:
    payload = envelope.get("payload")
    return isinstance(payload, dict) and payload.get("delta") is True
