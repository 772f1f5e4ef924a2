"""Drives a Herm gateway: commands become its requests, its envelopes become canonical events.

A session is made at the backend with the first command, then the stream is opened, then the command
is posted, so that nothing of the first turn is missed (herm page, section 4.3). After every other
opening of the stream the events are listed, and what the list has and the stream does not repeat is
put in its place by `sequence`: whether a server honours `Last-Event-ID`, replays history or starts
live is not documented. While a list is read, frames wait.

A frame whose number leaves a hole waits too: `sequence` rises (section 4.1), so what comes after it
with a lower number belongs before it. A hole that nothing fills soon is looked for in the list.

No list has deltas (section 4.4). Where some are missing, those after them are held back until the
whole text comes: not every frontend can put right what it was shown.

What says that an envelope is not new: for stored ones a `sequence` at or below the highest
processed; for deltas, whose numbers may be missing, equal or of another counter (section 4.4),
their id, and just after a reconnect their number.

What this dialect leaves open is taken as it comes and never relied on: the spelling of a batch,
echoes of `user.*`, a `session.status_running` after an answer, what `event_ids` hold.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from multidict import CIMultiDict, MultiDict

from adapters import commands as cmd
from adapters import events as ev
from adapters.base import (
    Ability,
    BlockEnded,
    Call,
    ClientCodec,
    CloseReason,
    Request,
    Response,
    Support,
)
from adapters.errors import DragomanError, ErrorCode, NotSupported
from adapters.framing.sse import SseFrame
from adapters.herm import wire
from adapters.jsonvalue import JsonError, compact, format_json, parse_json

RUNNING_PATIENCE_MS = 3_600_000
"""How long a turn may be silent on a stream that opens: a tool of an hour. The page names no
figure."""

PAUSED_PATIENCE_MS = 72 * 3_600_000
"""How long an answer may take on a stream that opens: the longest that a dialect of ours
promises."""

RETRY_MS = 2_000
BUSY_RETRY_MS = 5_000
RETRY_FOR_MS = 600_000
"""A message that was refused for now (409, 429: surely not taken) is posted again after these, for
ten minutes."""

LOOK_AGAIN_MS = 2_000
"""How long after an input was cut off the list is asked for the last time: what the connection
still held has arrived by then. Ours."""

LOOKS = 12
LOOK_RETRY_MS = 5_000
"""How often, and how long after, a list that cannot be read is asked again for an input in doubt:
as long as a backend that is away is borne."""

HOLE_MS = 100
"""How long what is missing before a frame is waited for: an answer that tells the number of an
input of ours, or a frame that came in another order. Ours."""

HOLES = 3
"""After so many holes on a stream of which the list knows nothing, the numbers have holes of their
own, which the page allows (section 4.4), and are waited for no more."""

LIST_ATTEMPTS = 3
PAGES = 1_000
"""How often a page is asked for, and how many pages a list may have: 100,000 stored events."""

RECENT = 4_096
"""Envelope ids that are remembered to know repeats of what has no number."""

KEPT = 64
"""Inputs and posted ids that are remembered until their echo is seen."""

SESSION_LOST = "backend_session_lost"

TURN_LOST = "turn_end_missing"
"""The error code of a turn that the backend has no more, while it keeps the session."""

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.NATIVE),
    "send_message": Ability(Support.NATIVE),
    "steer": Ability(Support.NATIVE),
    "interrupt": Ability(Support.NATIVE),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(
        Support.IMPOSSIBLE, "built-in tools run at the backend; only custom tools take results"
    ),
    "compact": Ability(Support.IMPOSSIBLE, "Herm has no route for it (herm page, section 2)"),
    "clear": Ability(Support.IMPOSSIBLE, "Herm has no route for it (herm page, section 2)"),
    "reset": Ability(Support.EMULATED, "the session is archived there and ends here", local=False),
    "archive": Ability(Support.NATIVE),
    "archive_thread": Ability(Support.IMPOSSIBLE, "Herm has no threads route (section 2)"),
    "delete": Ability(Support.NATIVE),
    "define_outcome": Ability(Support.IMPOSSIBLE, "Herm has no such event (section 3.2)"),
    "update_session": Ability(Support.NATIVE),
}

APPROVAL_OPTIONS = (
    ev.Option(id="allow", label="Allow", decision="allow", scope="once", style="primary"),
    ev.Option(
        id="allow_session", label="Allow for this session", decision="allow", scope="session"
    ),
    ev.Option(id="allow_always", label="Always allow", decision="allow", scope="always"),
    ev.Option(id="deny", label="Deny", decision="deny", style="danger"),
)
"""A tool confirmation names no options; these are its results and scopes (section 3.2)."""

_FINAL = {
    "completed": "completed",
    "complete": "completed",
    "done": "completed",
    "failed": "failed",
    "error": "failed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "interrupted": "cancelled",
}
"""`status` of a thread message that ends the thread -> canonical (section 4.5: expected, not
documented)."""


@dataclasses.dataclass(slots=True)
class _State:
    """What must survive a restart, besides the position. Deltas do not change it."""

    session: str | None = None
    form: Literal["events", "single"] | None = None
    posted: bool = False
    wanted: bool = False
    turn: str | None = None
    turns: int = 0
    paused: bool = False
    interrupting: bool = False
    blocks: int = 0
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    # Deltas that are held back, by the kind of text.
    withheld: dict[str, str] = dataclasses.field(default_factory=dict)
    calls: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    requests: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    asked: list[str] = dataclasses.field(default_factory=list)
    threads: list[str] = dataclasses.field(default_factory=list)
    ended_threads: list[str] = dataclasses.field(default_factory=list)
    unnamed_threads: int = 0
    pending: dict[str, Any] | None = None
    later: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Posted, and the answer lost: when the list decides, and how often it was asked.
    doubts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    lists_inputs: bool = False
    first: dict[str, Any] | None = None
    inbox: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    sent: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    ids: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs_mark: int = 0
    # Numbers that inputs have: a stream need not show them.
    inputs: list[int] = dataclasses.field(default_factory=list)
    title: str | None = None


_Waiting = tuple[int, dict[str, Any]]
"""A frame's number and its envelope."""


@dataclasses.dataclass(slots=True)
class _Fill:
    """A list that is being read. `number` tells its calls from those of an abandoned one; `decides`
    names the inputs in doubt that are settled when it is read; `ends` is a turn that is over if
    this list does not tell how it goes on; `look` says that it is read for these alone, `hole` that
    it is read for numbers that the stream lacks."""

    number: int
    decides: tuple[str, ...] = ()
    look: bool = False
    ends: str | None = None
    hole: bool = False
    pages: int = 0
    attempts: int = 0
    cursor: str | None = None
    listed: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    retry_at: int | None = None


class HermClient(ClientCodec):
    """The client codec. `settings`: `agent` and `user_id` are what a create names, `task_id` is the
    session's known name."""

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "sse"
    abilities: Mapping[str, Ability] = ABILITIES

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._agent: str | None = settings.get("agent")
        self._user_id: str | None = settings.get("user_id")
        self._title: str | None = None
        self._metadata: dict[str, Any] = {}
        self._s = _State()
        # The position: frames fed, highest numbers of stored envelopes and of deltas, the newest id
        # of the stream.
        self._frames = 0
        self._mark = 0
        self._delta_mark = 0
        self._last_id = ""
        # What a lost connection or a restart makes anew.
        self._calls: list[Call] = []
        self._recent: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._live = False
        self._tried = False
        self._opens = False
        self._catching_up = False
        self._fill: _Fill | None = None
        self._fills = 0
        self._buffer: list[_Waiting] = []
        self._highest_waiting = 0
        self._hole_at: int | None = None
        self._holes = 0
        # Until the first frames of a stream tell whether deltas were missed before them.
        self._joined = False
        self._retry_at: int | None = None
        self.wake_at = None

    def started(self, event: ev.SessionStarted) -> None:
        options = event.options or {}
        self._title = event.title
        self._metadata = dict(event.metadata or {})
        if isinstance(options.get("userId"), str):
            self._user_id = options["userId"]
        if self._agent is None and event.agent is not None:
            self._agent = event.agent.get("id")

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        ability = self.abilities[command.TYPE]
        if ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"herm: `{command.TYPE}` is impossible: {ability.how}")
        match command:
            case cmd.SendMessage():
                for name in ("output_schema", "edit_of", "retry_of", "system"):
                    if getattr(command, name) is not None:
                        raise NotSupported(
                            f"herm: `{name}` is impossible: no field carries it (3.2)"
                        )
                _content_blocks(command.content, command.client_context)
            case cmd.AnswerInteraction(content=content) if content:
                _content_blocks(content)
            case cmd.Interrupt(thread_id=thread) if thread not in (None, ev.MAIN):
                raise NotSupported("herm: a thread alone cannot be interrupted (section 3.2)")
            case cmd.UpdateSession(agent=agent) if agent is not None:
                raise NotSupported("herm: `agent` is pinned at creation (section 2.2)")
            case _:
                pass

    def submit(self, command_id: str, command: cmd.AnyCommand, blobs: Mapping[str, bytes]) -> Call:
        self._s.wanted = True
        if self._s.session is None:
            return self._create(command_id, command)
        return self._step(command_id, command)

    def _create(self, command_id: str, command: cmd.AnyCommand) -> Call:
        """Make the session first; the command follows when the backend has it and the stream is
        open."""
        if self._agent is None:
            raise NotSupported("herm: no agent is configured: set `create = { agent = … }`")
        if isinstance(command, cmd.UpdateSession):
            self._title = command.title or self._title
            self._metadata |= command.metadata or {}
        if isinstance(command, cmd.SendMessage):
            self._expect(command_id, command)
        self._s.first = {
            "command_id": command_id,
            "command": command.model_dump(mode="json", exclude_defaults=True, exclude={"sealed"})
            | {"type": command.TYPE},
        }
        body: dict[str, Any] = {}
        if self._user_id is not None:
            body["userId"] = self._user_id
        if self._title is not None:
            body["title"] = self._title
        if self._metadata:
            body["metadata"] = self._metadata
        path = f"{wire.AGENTS}/{self._agent}/sessions"
        return self._request("create", "POST", path, body, command_id)

    def _step(self, command_id: str, command: cmd.AnyCommand) -> Call:
        assert self._s.session is not None
        match command:
            case cmd.SendMessage():
                return self._message(command_id, command)
            case cmd.Steer():
                return self._post({"type": "user.steer", "message": command.text}, command_id)
            case cmd.Interrupt():
                payload = {"type": "user.interrupt"}
                if command.note:
                    payload["message"] = command.note
                return self._post(payload, command_id)
            case cmd.AnswerInteraction():
                return self._answer(command_id, command)
            case cmd.Archive() | cmd.Reset():
                path = wire.session_path(self._s.session, "archive")
                return self._request(command.TYPE, "POST", path, None, command_id)
            case cmd.Delete():
                path = wire.session_path(self._s.session)
                return self._request("delete", "DELETE", path, None, command_id)
            case cmd.UpdateSession():
                changes: dict[str, Any] = {}
                if command.title is not None:
                    changes["title"] = command.title
                if command.metadata is not None:
                    changes["metadata"] = command.metadata
                path = wire.session_path(self._s.session)
                return self._request("update_session", "PATCH", path, changes, command_id)
            case _:
                raise NotSupported(f"herm: nothing carries `{command.TYPE}`")

    def _message(self, command_id: str, command: cmd.SendMessage) -> Call:
        busy = self._s.turn is not None
        if busy and command.policy == "steer":
            words = ev.text_of(command.content)
            # Where the turn is over when it arrives, it is a message after all.
            message = self._expected(command_id, command)
            return self._post({"type": "user.steer", "message": words}, command_id, message=message)
        if self._s.pending is not None and self._s.pending["command_id"] != command_id:
            # One message at a time: it follows when that one's turn is over.
            self._s.later.append(self._expected(command_id, command))
            path = wire.session_path(self._s.session or "")
            return self._request("session", "GET", path, None, command_id)
        self._expect(command_id, command)
        if busy and command.policy == "withdraw":
            # What is asked goes with its turn: the message is posted when that has ended.
            assert self._s.pending is not None
            self._s.pending["held"] = True
            return self._post({"type": "user.interrupt"}, command_id)
        return self._post_message()

    def _expect(self, command_id: str, command: cmd.SendMessage) -> None:
        self._s.pending = self._expected(command_id, command)

    def _expected(self, command_id: str, command: cmd.SendMessage) -> dict[str, Any]:
        content = [
            block.model_dump(mode="json", exclude_defaults=True) for block in command.content
        ]
        return {
            "command_id": command_id,
            "content": content,
            "blocks": _content_blocks(command.content, command.client_context),
            "policy": command.policy,
            "settled": False,
            "sequence": None,
            "held": False,
            "since": None,
        }

    def _post_message(self) -> Call:
        pending = self._s.pending
        assert pending is not None
        pending["held"] = False
        payload = {"type": "user.message", "content": pending["blocks"]}
        return self._post(payload, pending["command_id"])

    def _answer(self, command_id: str, command: cmd.AnswerInteraction) -> Call:
        request = self._s.requests.get(command.request_id)
        if request is None:
            raise NotSupported(f"herm: request `{command.request_id}` is not open any more")
        native, outcome = request["native"], "answered"
        payload: dict[str, Any]
        match request["kind"]:
            case "approval":
                allowed = command.decision == "allow"
                outcome = "approved" if allowed else "denied"
                payload = {"type": "user.tool_confirmation", "tool_use_id": native}
                payload["result"] = "allow" if allowed else "deny"
                if allowed and command.scope is not None:
                    payload["scope"] = command.scope
            case "tool_result":
                content = command.content or (ev.Text(text=command.text or ""),)
                payload = {
                    "type": "user.custom_tool_result",
                    "tool_use_id": native,
                    "content": _content_blocks(content),
                    "is_error": command.is_error,
                }
            case "sudo" | "secret" | "unknown":
                type_ = "user.sudo_result" if request["kind"] == "sudo" else "user.secret_result"
                field = _SEALED_FIELDS[type_]
                payload = {"type": type_, "request_id": native}
                # The one place where a sealed value is revealed; the empty string declines.
                payload[field] = "" if command.sealed is None else command.sealed.reveal()
                outcome = "answered" if command.sealed is not None else "skipped"
            case _:
                labels: dict[str, str] = request.get("labels", {})
                chosen = ", ".join(labels.get(name, name) for name in command.option_ids)
                words = "" if command.skip else command.text or chosen
                payload = {"type": "user.clarify_result", "request_id": native, "answer": words}
                outcome = "answered" if words else "skipped"
        given = ev.Answer(
            option_ids=command.option_ids,
            text=command.text,
            content=command.content,
            reason=command.reason,
            is_error=command.is_error,
        )
        request["answer"] = {
            "command_id": command_id,
            "outcome": outcome,
            "scope": command.scope or "once" if outcome == "approved" else None,
            "answer": given.model_dump(mode="json", exclude_defaults=True),
        }
        return self._post(payload, command_id)

    def _post(
        self,
        payload: dict[str, Any],
        command_id: str,
        *,
        single: bool = False,
        message: dict[str, Any] | None = None,
    ) -> Call:
        """Return a POST of one event: as `events`, as a lone object where the backend wants that
        (section 3). `message` is the message that this is the steering of."""
        assert self._s.session is not None
        self._s.posted = True
        self._forget_sent(command_id)
        item = {"command_id": command_id, "key": _key(payload), "settled": False}
        if message is not None:
            item["message"] = message
        self._s.sent.append(item)
        del self._s.sent[:-KEPT]
        alone = single or self._s.form == "single"
        body: Any = payload if alone else {"events": [payload]}
        path = wire.session_path(self._s.session, "events")
        return self._request("events", "POST", path, body, command_id)

    def _request(
        self, name: str, method: str, path: str, body: Any, command_id: str | None
    ) -> Call:
        headers = CIMultiDict({"Accept": "application/json"})
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = compact(format_json(body))
        return Call(name, Request(method, path, headers=headers, body=data), command_id=command_id)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        """Look for the envelope of a command in the list: what is there was taken."""
        if self._s.session is None:
            # Nothing was said yet: a session that was perhaps made is empty, and another is made.
            return None if self._agent is None else self._create(command_id, command)
        if any(message["command_id"] == command_id for message in self._s.later):
            return None
        pending = self._s.pending
        posted = any(item["command_id"] == command_id for item in self._s.sent)
        if self._held_for(command_id) and pending is not None and pending["held"] and not posted:
            # Refused for now, and so not taken: waiting goes on.
            self._retry_at = self.wake_at = 0
            return None
        if not isinstance(
            command, cmd.SendMessage | cmd.Steer | cmd.Interrupt | cmd.AnswerInteraction
        ):
            return None
        if not any(item["command_id"] == command_id for item in self._s.sent):
            # A crash came before the state was stored: what was sent is worked out again, and not
            # sent.
            try:
                self._step(command_id, command)
            except NotSupported:
                # It has become pointless, but not undone: the list may show it all the same.
                self._s.sent.append({"command_id": command_id, "key": "", "settled": False})
        self._s.doubts.setdefault(command_id, {"at": None, "looks": 0})
        return self._start_fill()

    def take_calls(self) -> list[Call]:
        calls, self._calls = self._calls, []
        if self._s.later and self._s.pending is None and self._s.turn is None and self._s.session:
            self._s.pending = self._s.later.pop(0)
            calls.append(self._post_message())
        first = self._s.first
        if first is not None and self._s.session is not None and (self._live or self._tried):
            # The stream is open, or cannot be had: then the list tells what it would have.
            self._s.first = None
            pending = self._s.pending
            if pending is not None and pending["command_id"] == first["command_id"]:
                calls.append(self._post_message())
            else:
                calls.append(self._step(first["command_id"], cmd.decode_command(first["command"])))
        return calls

    def streams(self) -> tuple[Call, ...]:
        if self._live or self._s.session is None or not self._s.wanted:
            return ()
        headers = CIMultiDict({"Accept": "text/event-stream", "Cache-Control": "no-cache"})
        if self._last_id:
            headers[wire.LAST_EVENT_ID] = self._last_id
        path = wire.session_path(self._s.session, "events", "stream")
        return (Call("stream", Request("GET", path, headers=headers), stream=True),)

    @property
    def native_id(self) -> str | None:
        return self._s.session

    # What came of calls.

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        self._live = self._tried = self._opens = True
        self._catching_up = True
        self._drop_waiting()
        self._holes = 0
        self._joined = bool(self._mark or self._s.posted)
        if self._joined:
            self._calls.append(self._start_fill(now))
        return []

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        ok = 200 <= response.status < 300
        match call.name:
            case "stream":
                self._live, self._tried, self._opens = False, True, False
                return []
            case "create":
                return self._created(call, response, ok)
            case "events":
                # Its answer may tell the number that a frame waits for.
                return [*self._posted(call, response, ok, now), *self._go_on(now)]
            case "session":
                return self._looked(response, ok)
            case "archive" | "reset" | "delete" | "update_session":
                return self._administered(call, response, ok, now)
            case _:
                return self._listed(call, response, ok, now)

    def _created(self, call: Call, response: Response, ok: bool) -> list[ev.Event]:
        assert call.command_id is not None
        body = _json_of(response)
        session = body.get("id") if isinstance(body, dict) else None
        if not ok or not isinstance(session, str) or not session or "/" in session:
            self._s.first = self._s.pending = None
            error = refusal(response) if not ok else _no_id(response)
            return [_settled(call.command_id, "refused", error)]
        self._s.session = session
        agent: dict[str, Any] = {"id": body.get("agentId") or self._agent}
        if isinstance(body.get("agentVersion"), int):
            agent["version"] = body["agentVersion"]
        user_id = body.get("userId")
        return [
            ev.SessionUpdated(
                thread_id=ev.MAIN,
                agent=agent,
                options={"userId": user_id} if isinstance(user_id, str) else None,
                native=ev.NativeRef(dialect=wire.DIALECT, id=session, at=_text(body, "createdAt")),
                extra=_rest(body, _SESSION_KEYS),
            )
        ]

    def _posted(self, call: Call, response: Response, ok: bool, now: int) -> list[ev.Event]:
        assert call.command_id is not None
        assert call.request.body is not None
        value: Any = parse_json(call.request.body)
        alone = "events" not in value
        payload: dict[str, Any] = value if alone else value["events"][0]
        if ok:
            self._s.form = "single" if alone else "events"
            return self._taken(call.command_id, payload, _envelopes(_json_of(response)))
        if response.status == 400 and not alone and self._s.form is None:
            # A 400 took nothing: the other spelling is tried once.
            self._calls.append(self._post(payload, call.command_id, single=True))
            return []
        if response.status >= 500:
            return self._unsure(call.command_id)
        error = refusal(response)
        if response.status in _TURN_OVER and self._follows(call.command_id, now):
            return []
        if payload["type"] == "user.message":
            return self._message_refused(call.command_id, response, error, now)
        request_id, request = self._answered_by(call.command_id)
        unknown = request is not None and request["kind"] == "unknown" and response.status != 409
        if unknown and payload["type"] == "user.secret_result":
            # Which of the two it asked for was not told; this one it did not take.
            other = {"type": "user.sudo_result", "request_id": payload["request_id"]}
            other["password"] = payload["value"]
            self._calls.append(self._post(other, call.command_id, single=alone))
            return []
        out = self._settle(call.command_id, "refused", error)
        if self._held_for(call.command_id):
            self._s.pending = None
        if request is not None and request_id is not None:
            request["answer"] = None
            out.append(_released(request_id, call.command_id))
        return out

    def _held_for(self, command_id: str) -> bool:
        pending = self._s.pending
        return pending is not None and pending["command_id"] == command_id

    def _follows(self, command_id: str, now: int) -> bool:
        """Post a message that was to steer a turn, which is over, as a message; the refusal proves
        that it was not taken."""
        s = self._s
        message = next((i.get("message") for i in s.sent if i["command_id"] == command_id), None)
        if message is None:
            return False
        self._forget_sent(command_id)
        if s.pending is not None:
            s.later.append(message)
            return True
        s.pending = message
        if s.turn is None:
            self._calls.append(self._post_message())
            return True
        # The stream is behind: it is about to say that the turn is over.
        message["held"] = True
        self._retry_at = now + RETRY_MS
        self._set_alarm()
        return True

    def _unsure(self, command_id: str) -> list[ev.Event]:
        """Look whether a command arrived that got no sure answer; it is never posted again."""
        self._s.doubts[command_id] = {"at": None, "looks": 0}
        self._calls.append(self._start_fill())
        return []

    def _taken(
        self, command_id: str, payload: dict[str, Any], echoed: list[dict[str, Any]]
    ) -> list[ev.Event]:
        if command_id in self._s.ids.values():
            # Its echo was faster.
            return []
        sequence, id_ = None, ""
        for envelope in echoed:
            if envelope.get("type") == payload["type"]:
                sequence, id_ = _int(envelope.get("sequence")), _id(envelope)
        self._know_input(sequence)
        self._s.inputs_mark = max(self._s.inputs_mark, sequence or 0)
        out = self._took(command_id, payload, sequence)
        if id_:
            self._remember_id(id_, command_id)
        return out

    def _took(
        self, command_id: str, payload: dict[str, Any], sequence: int | None
    ) -> list[ev.Event]:
        """Return what it means that the backend took an input of ours."""
        pending = self._s.pending
        match payload["type"]:
            case "user.message":
                if pending is None or pending["command_id"] != command_id:
                    return []
                pending["sequence"] = sequence
                return self._settle_pending()
            case "user.steer":
                return self._steered(command_id, payload["message"])
            case "user.interrupt":
                self._s.interrupting = self._s.turn is not None
                if pending is not None and pending["command_id"] == command_id:
                    # A message that withdraws: it follows when the turn has ended.
                    if self._s.turn is None and pending["held"]:
                        self._calls.append(self._post_message())
                    return []
        return self._settle(command_id, "taken")

    def _settle(
        self,
        command_id: str,
        outcome: Literal["taken", "refused", "unknown"],
        error: ev.ErrorInfo | None = None,
    ) -> list[ev.Event]:
        """Settle a posted input, once; what was taken is remembered until its echo is seen."""
        for item in self._s.sent:
            if item["command_id"] == command_id:
                if item["settled"]:
                    return []
                item["settled"] = True
        self._s.doubts.pop(command_id, None)
        if outcome != "taken":
            self._forget_sent(command_id)
        return [_settled(command_id, outcome, error)]

    def _settle_pending(self) -> list[ev.Event]:
        pending = self._s.pending
        if pending is None or pending["settled"]:
            return []
        pending["settled"] = True
        return self._settle(pending["command_id"], "taken")

    def _steered(self, command_id: str, text: str) -> list[ev.Event]:
        if self._s.turn is None:
            lost = ev.ErrorInfo(
                code="turn_over", message="The turn had ended before the backend took the steering."
            )
            return self._settle(command_id, "unknown", lost)
        taken = self._settle(command_id, "taken")
        if not taken:
            return []
        return [
            *taken,
            ev.GuidanceReceived(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                text=text,
                command_id=command_id,
                synthetic=True,
            ),
        ]

    def _message_refused(
        self, command_id: str, response: Response, error: ev.ErrorInfo, now: int
    ) -> list[ev.Event]:
        pending = self._s.pending
        if pending is None or pending["command_id"] != command_id:
            return []
        status = response.status
        since = pending["since"] = pending["since"] or now
        not_ready = status == 429 or error.code == "deployment_not_ready"
        waits = not_ready or (status == 409 and pending["policy"] != "reject")
        if waits and now - since < RETRY_FOR_MS:
            # Section 9: on a 409 wait for `session.status_idle`, or for a while.
            pending["held"] = True
            self._forget_sent(command_id)
            self._retry_at = now + _retry_after(response, RETRY_MS if not_ready else BUSY_RETRY_MS)
            self._set_alarm()
            return []
        self._s.pending = None
        return self._settle(command_id, "refused", error)

    def _administered(self, call: Call, response: Response, ok: bool, now: int) -> list[ev.Event]:
        assert call.command_id is not None
        gone = call.name == "delete" and response.status in (404, 410)
        if not ok and not gone:
            return [_settled(call.command_id, "refused", refusal(response))]
        out: list[ev.Event] = [_settled(call.command_id, "taken")]
        match call.name:
            case "archive":
                out.append(ev.SessionUpdated(thread_id=ev.MAIN, archived_at=now, synthetic=True))
            case "reset":
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="completed", synthetic=True))
                self._s.wanted = False
            case "delete":
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="deleted", synthetic=True))
                self._s.wanted = False
            case _:
                sent: Any = parse_json(call.request.body or b"{}")
                out.append(
                    ev.SessionUpdated(
                        thread_id=ev.MAIN,
                        title=sent.get("title"),
                        metadata=sent.get("metadata"),
                        synthetic=True,
                    )
                )
        return out

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        info = ev.ErrorInfo(code=str(error.code), message=error.message)
        match call.name:
            case "stream":
                self._live, self._tried, self._opens = False, True, False
                return []
            case "session":
                return []
            case "events" | "create" | "archive" | "reset" | "delete" | "update_session":
                assert call.command_id is not None
                if sent and call.name == "events":
                    return self._unsure(call.command_id)
                return self._not_done(call, info, sent)
            case _:
                return self._list_failed(call, info.message, now)

    def _not_done(self, call: Call, info: ev.ErrorInfo, sent: bool) -> list[ev.Event]:
        assert call.command_id is not None
        if call.name == "create":
            self._s.first = None
        if self._held_for(call.command_id):
            self._s.pending = None
        # A session that was perhaps made is never used: what should have been said there was not.
        unknown = sent and call.name != "create"
        out = self._settle(call.command_id, "unknown" if unknown else "refused", info)
        request_id, request = self._answered_by(call.command_id)
        if request is not None and request_id is not None and not sent:
            request["answer"] = None
            out.append(_released(request_id, call.command_id))
        return out

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._live = False
        self._drop_waiting()
        return []

    def _drop_waiting(self) -> None:
        """Forget the frames that wait. Where they were not processed, the next stream or list has
        them again."""
        self._buffer = []
        self._highest_waiting = 0
        self._hole_at = None

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        info = ev.ErrorInfo(code=SESSION_LOST, message=error.message)
        self._s.wanted = False
        out: list[ev.Event] = []
        pending = self._s.pending
        if pending is not None and self._s.turn is None:
            if not pending["settled"]:
                out.append(_settled(pending["command_id"], "unknown", info))
            else:
                out += self._begin(None, synthetic=True)
        if self._s.turn is not None:
            out += self._end("failed", info, None)
        out += [_settled(message["command_id"], "refused", info) for message in self._s.later]
        self._s.pending, self._s.later = None, []
        return out

    @property
    def patience(self) -> int:  # type: ignore[override]
        """Return how long silence is borne on a stream that opens; a backend that is away has a
        minute."""
        if self._s.turn is None or not self._opens:
            return 60_000
        return PAUSED_PATIENCE_MS if self._s.paused else RUNNING_PATIENCE_MS

    def tick(self, now: int) -> list[ev.Event]:
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            if self._s.pending is not None and self._s.pending["held"]:
                self._calls.append(self._post_message())
        if self._hole_at is not None and now >= self._hole_at:
            self._calls.append(self._start_fill(now, hole=True))
        fill = self._fill
        if fill is not None and fill.retry_at is not None and now >= fill.retry_at:
            fill.retry_at = None
            self._calls.append(self._page(fill))
        due = [doubt for doubt in self._s.doubts.values() if (doubt["at"] or now + 1) <= now]
        if fill is None and due and self._s.session is not None:
            self._calls.append(self._start_fill(now, look=True))
        self._set_alarm()
        return []

    def _set_alarm(self) -> None:
        times = [self._retry_at, self._hole_at]
        times.append(None if self._fill is None else self._fill.retry_at)
        if self._fill is None:
            times += [doubt["at"] for doubt in self._s.doubts.values()]
        self.wake_at = min((at for at in times if at is not None), default=None)

    # Lists.

    def _start_fill(
        self, now: int | None = None, *, look: bool = False, hole: bool = False
    ) -> Call:
        """Begin to read the list; one that begins late enough decides what is in doubt."""
        self._fills += 1
        decides: tuple[str, ...] = ()
        if now is not None:
            doubts = self._s.doubts.items()
            decides = tuple(id_ for id_, doubt in doubts if (doubt["at"] or now + 1) <= now)
        # What waits for a list that is abandoned waits for this one.
        self._fill = _Fill(self._fills, decides, look=look and self._fill is None, hole=hole)
        self._hole_at = None
        return self._page(self._fill)

    def _page(self, fill: _Fill) -> Call:
        assert self._s.session is not None
        query = MultiDict({"limit": str(wire.LIMIT_MOST)})
        if fill.cursor is not None:
            query["cursor"] = fill.cursor
        headers = CIMultiDict({"Accept": "application/json"})
        request = Request("GET", wire.session_path(self._s.session, "events"), query, headers)
        return Call(f"list {fill.number}", request)

    def _listed(self, call: Call, response: Response, ok: bool, now: int) -> list[ev.Event]:
        fill = self._fill
        if fill is None or call.name != f"list {fill.number}":
            return []
        body = _json_of(response) if ok else None
        page = _envelopes(body)
        if not ok or not isinstance(body, list | dict):
            final = response.status in (404, 405, 501)
            return self._list_failed(call, f"HTTP {response.status}", now, final=final)
        fill.listed += page
        fill.pages += 1
        fill.attempts = 0
        cursor = body.get("nextCursor") if isinstance(body, dict) else None
        if isinstance(cursor, str) and cursor and cursor != fill.cursor and fill.pages < PAGES:
            fill.cursor = cursor
            self._calls.append(self._page(fill))
            return []
        return self._filled(fill, now)

    def _list_failed(
        self, call: Call, why: str, now: int, *, final: bool = False
    ) -> list[ev.Event]:
        fill = self._fill
        if fill is None or call.name != f"list {fill.number}":
            return []
        fill.attempts += 1
        if self._is_whole():
            return self._filled(fill, now, read=False)
        # While nothing waits for it, a list has as long as a backend that is away.
        most = LIST_ATTEMPTS if self._buffer else LOOKS
        if not final and fill.attempts < most:
            fill.retry_at = now + min(1_000 * fill.attempts, LOOK_RETRY_MS)
            self._set_alarm()
            return []
        gap = ev.Gap(
            thread_id=ev.MAIN,
            turn_id=self._s.turn,
            reason=f"the events could not be listed: {why}",
            cursor_from=self._last_id or None,
            synthetic=True,
        )
        told = self._filled(fill, now, read=False)
        # A list that was read for an input in doubt leaves no hole in what is shown; and of numbers
        # alone nobody can say that something is missing.
        return told if fill.look or (fill.hole and final) else [gap, *told]

    def _filled(self, fill: _Fill, now: int, *, read: bool = True) -> list[ev.Event]:
        """Process what was listed and what waited, in one order, and settle what was looked up."""
        self._fill = None
        numbers = [_int(envelope.get("sequence")) or 0 for envelope in fill.listed]
        if fill.hole:
            self._holes = 0 if self._is_whole(numbers) else self._holes + 1
        buffered = _in_order(self._buffer, {*numbers, *self._s.inputs})
        self._drop_waiting()
        waiting = {_id(envelope) for _, envelope in buffered}
        listed = [e for e in fill.listed if not (_id(e) and _id(e) in waiting)]
        listed.sort(key=lambda envelope: _int(envelope.get("sequence")) or 0)
        merged: list[tuple[int, dict[str, Any]]] = []
        for frame, envelope in buffered:
            # A delta may repeat the number of the stored event before it (section 4.4).
            number = (_int(envelope.get("sequence")) or 0) - (not _is_delta(envelope))
            while listed and (_int(listed[0].get("sequence")) or 0) <= number:
                merged.append((0, listed.pop(0)))
            merged.append((frame, envelope))
        merged += [(0, envelope) for envelope in listed]
        out: list[ev.Event] = []
        told = lists_status = False
        known = max([self._mark, *(_int(e.get("sequence")) or 0 for _, e in buffered)])
        for frame, envelope in merged:
            if str(envelope.get("type")).startswith("session.status"):
                lists_status = lists_status or not frame
                told = told or not self._is_old(envelope)
            out += self._envelope(envelope, frame)
        self._s.inputs_mark = max([self._s.inputs_mark, *numbers])
        # The list is ahead of the stream, whose older deltas still come.
        self._catching_up = self._catching_up or max(numbers, default=0) > known
        for command_id in list(self._s.doubts):
            out += self._looked_up(command_id, now, fill, read=read)
        self._set_alarm()
        if self._s.turn is None or self._s.paused or told or self._s.session is None:
            return out
        if fill.ends != self._s.turn:
            # The list does not say what became of the turn: the session object knows whether it
            # still runs.
            path = wire.session_path(self._s.session)
            self._calls.append(self._request("session", "GET", path, None, None))
        elif lists_status:
            message = "Herm's session is idle, and its list has no end of the turn."
            error = ev.ErrorInfo(code=TURN_LOST, message=message)
            out += self._end("failed", error, None, synthetic=True)
        else:
            out += self._end("completed", None, None, synthetic=True)
        return out

    def _looked_up(self, command_id: str, now: int, fill: _Fill, *, read: bool) -> list[ev.Event]:
        """Settle what the list shows, or, when it decides, what it does not show."""
        s = self._s
        doubt, pending = s.doubts[command_id], s.pending
        mine = pending if pending is not None and pending["command_id"] == command_id else None
        waits = any(item["command_id"] == command_id and not item["settled"] for item in s.sent)
        if not waits or (mine is not None and mine["settled"]):
            # Its echo was in the list, or its turn.
            del s.doubts[command_id]
            return []
        # A list that was asked for so often is as good as so many.
        doubt["looks"] = LOOKS if fill.attempts >= LOOKS else doubt["looks"] + 1
        if not read and doubt["looks"] < LOOKS:
            doubt["at"] = now + LOOK_RETRY_MS
            return []
        if read and command_id not in fill.decides:
            if doubt["at"] is not None:
                return []
            doubt["at"] = now + LOOK_AGAIN_MS
            # The time is stored with this: a restart goes on waiting, and does not begin again.
            return [
                ev.ErrorReported(
                    thread_id=ev.MAIN,
                    code="input_in_doubt",
                    message="Herm's list does not show an input yet; it will be asked once more.",
                    retry="retrying",
                    synthetic=True,
                )
            ]
        if mine is not None:
            s.pending = None
        # Where inputs are not listed, a message that was taken would have begun a turn; of the
        # others nothing tells.
        if read and (s.lists_inputs or mine is not None):
            lost = ev.ErrorInfo(
                code="not_arrived", message="The input did not reach the backend; send it again."
            )
            out = self._settle(command_id, "refused", lost)
        else:
            lost = ev.ErrorInfo(
                code="no_evidence", message="The backend has no record of the input."
            )
            out = self._settle(command_id, "unknown", lost)
        request_id, request = self._answered_by(command_id)
        if request is not None and request_id is not None:
            # It never arrived: the request is open as before, and is to be answered again.
            request["answer"] = None
            out.append(_released(request_id, command_id))
        return out

    def _looked(self, response: Response, ok: bool) -> list[ev.Event]:
        body = _json_of(response)
        if not ok or not isinstance(body, dict):
            return []
        out: list[ev.Event] = []
        title = _text(body, "title")
        if title is not None and title != self._s.title:
            self._s.title = title
            out.append(ev.SessionUpdated(thread_id=ev.MAIN, title=title, synthetic=True))
        if body.get("status") == "idle" and self._s.turn is not None and not self._s.paused:
            # Its end is in a list that is read now, or in none.
            self._calls.append(self._start_fill(look=True))
            assert self._fill is not None
            self._fill.ends = self._s.turn
        return out

    # The state.

    @property
    def frames(self) -> int:
        return self._frames

    @property
    def position(self) -> bytes:
        return b"%d,%d,%d,%b" % (
            self._frames,
            self._mark,
            self._delta_mark,
            self._last_id.encode("utf-8", "surrogatepass"),
        )

    def snapshot(self) -> bytes:
        return format_json(dataclasses.asdict(self._s))

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        if snapshot is not None:
            value: Any = parse_json(snapshot)
            self._s = _State(**value)
        if position is not None:
            frames, mark, delta_mark, last_id = position.split(b",", 3)
            self._frames, self._mark, self._delta_mark = int(frames), int(mark), int(delta_mark)
            self._last_id = last_id.decode("utf-8", "surrogatepass")
        self._live = False
        # What a crash cut off is looked up by `recover`, never posted from here.
        self._s.first = None
        if self._s.session is None:
            self._s.pending = None
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, SseFrame)
        try:
            envelope = parse_json(frame.data)
        except JsonError as error:
            return self._garbage_frame(frame, str(error))
        if not isinstance(envelope, dict):
            return self._garbage_frame(frame, "the data is not a JSON object")
        if not isinstance(envelope.get("type"), str):
            payload = envelope.get("payload")
            type_ = payload.get("type") if isinstance(payload, dict) else None
            envelope["type"] = type_ if isinstance(type_, str) else frame.event
        if not envelope["type"]:
            return self._garbage_frame(frame, "the envelope has no type")
        if "id" not in envelope and frame.id:
            envelope["id"] = frame.id
        if self._is_old(envelope):
            self._pass(envelope)
            return []
        self._frames += 1
        if self._fill is None and self._hole_at is None and self._is_early(envelope):
            self._hole_at = now + HOLE_MS
            self._set_alarm()
        if self._fill is not None or self._hole_at is not None:
            number, highest = _int(envelope.get("sequence")) or 0, self._highest_waiting
            self._buffer.append((self._frames, envelope))
            self._highest_waiting = max(number, highest)
            # What comes in order fills no hole but the first one.
            return self._go_on(now) if number < highest or len(self._buffer) == 1 else []
        out = self._envelope(envelope, self._frames)
        if frame.id:
            self._last_id = frame.id
        return out

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        return [
            ev.ErrorReported(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                code=str(ErrorCode.BACKEND_PROTOCOL),
                message=f"herm: {reason}",
                details={"offending": offending[:512].decode("utf-8", "backslashreplace")},
                synthetic=True,
            )
        ]

    def _garbage_frame(self, frame: SseFrame, reason: str) -> list[ev.Event]:
        """Report a frame that is no envelope; the stream goes on."""
        self._frames += 1
        name = frame.event or "message"
        return self.garbage(_NO_CALL, frame.data, f"event `{name}`: {reason}", 0)

    def _is_old(self, envelope: dict[str, Any]) -> bool:
        """Say whether an envelope was processed before; inputs are known by their ids,
        elsewhere."""
        if envelope["type"].startswith("user."):
            return False
        if _id(envelope) in self._recent:
            return True
        number = _int(envelope.get("sequence"))
        if number is None:
            return False
        if _is_delta(envelope):
            return self._catching_up and number <= max(self._mark, self._delta_mark)
        return number <= self._mark

    # What waits.

    def _before_new(self) -> int | None:
        """Return the number after which new ones are expected; None where nothing tells it."""
        number = max(self._mark, self._delta_mark)
        if not number and self._s.inputs:
            # Nothing was shown yet: the first input is where the numbers begin.
            return min(self._s.inputs) - 1
        return number or None

    def _is_early(self, envelope: dict[str, Any]) -> bool:
        """Say whether the numbers show that something is missing before an envelope."""
        number, before = _int(envelope.get("sequence")), self._before_new()
        if number is None or before is None or number <= before + 1:
            return False
        if self._s.session is None or self._holes >= HOLES:
            return False
        return not _are_all(range(before + 1, number), self._s.inputs)

    def _is_whole(self, listed: Iterable[int] = ()) -> bool:
        """Say whether the numbers show that nothing is missing before and in what waits."""
        before = self._before_new()
        waiting = {n for _, e in self._buffer if (n := _int(e.get("sequence"))) is not None}
        if before is None or not waiting:
            return False
        known = waiting.union(listed, self._s.inputs)
        return _are_all(range(before + 1, max(waiting)), known)

    def _go_on(self, now: int) -> list[ev.Event]:
        """Process what waits, where the numbers show that nothing is missing before it."""
        fill = self._fill
        if not self._buffer or (fill is not None and not fill.attempts) or not self._is_whole():
            return []
        if fill is not None:
            # The list cannot be had, and is not needed.
            return self._filled(fill, now, read=False)
        buffered = _in_order(self._buffer, self._s.inputs)
        self._drop_waiting()
        self._set_alarm()
        return [event for frame, e in buffered for event in self._envelope(e, frame)]

    def _join(self, envelope: dict[str, Any]) -> None:
        """Begin to hold back where deltas may be missing before one: a stream may begin in the
        middle of a text."""
        kind = _KINDS.get(envelope["type"])
        if kind is None or not _is_delta(envelope):
            return
        number, before = _int(envelope.get("sequence")), self._before_new()
        torn = self._is_early(envelope)
        if self._joined:
            torn = torn or number is None or before is None or number <= before
        self._joined = False
        if torn:
            self._s.withheld.setdefault(kind, "")

    def _pass(self, envelope: dict[str, Any]) -> None:
        """Hear from the stream what ends a run of deltas: those before it are not needed, and those
        after it are another run."""
        type_ = envelope["type"]
        if _is_delta(envelope) or not type_.startswith(("agent.", "session.status")):
            return
        self._joined = False
        if type_ in _KINDS:
            self._s.withheld.pop(_KINDS[type_], None)
        else:
            self._s.withheld.clear()

    def _know_input(self, number: int | None) -> None:
        """Remember a number that an input has, until the stream is past it."""
        s, past = self._s, max(self._mark, self._delta_mark)
        if number is not None and number > past and number not in s.inputs:
            s.inputs = [*(n for n in s.inputs if n > past), number][-KEPT:]

    def _count(self, envelope: dict[str, Any]) -> None:
        id_, number = _id(envelope), _int(envelope.get("sequence"))
        if id_:
            self._recent[id_] = None
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
            # An id that a list gave is a position too; the stream's own `id:` lines are ids.
            self._last_id = id_
        if number is None:
            return
        if _is_delta(envelope):
            if number > max(self._mark, self._delta_mark):
                self._catching_up = False
            self._delta_mark = max(self._delta_mark, number)
        else:
            self._catching_up = False
            self._mark = max(self._mark, number)

    def _envelope(self, envelope: dict[str, Any], frame: int) -> list[ev.Event]:
        """Return what one envelope means, whether it was streamed or listed (`frame` 0)."""
        type_ = envelope.get("type")
        if not isinstance(type_, str):
            return []
        payload = envelope.get("payload")
        if not isinstance(payload, dict):
            # Lenient: an event without its envelope.
            payload = {k: v for k, v in envelope.items() if k not in _ENVELOPE_KEYS or k == "type"}
        if type_.startswith("user."):
            self._s.lists_inputs = self._s.lists_inputs or not frame
            return self._user_event(type_, envelope, payload)
        if self._is_old(envelope):
            return []
        self._join(envelope)
        self._count(envelope)
        native = ev.NativeRef(
            dialect=wire.DIALECT,
            id=_id(envelope) or None,
            type=type_,
            at=_text(envelope, "createdAt"),
            frame=frame or None,
        )
        complete = envelope.get("status") == "complete"
        known = _ENVELOPE_KEYS | {"status"} if complete else _ENVELOPE_KEYS
        rest = _rest(envelope, known) if envelope.get("payload") is payload else None
        handler = _HANDLERS.get(type_)
        if handler is None:
            return [self._unknown(type_, payload, native, rest)]
        out: list[ev.Event] = handler(self, _Seen(type_, envelope, payload, native, rest))
        if frame:
            self._pass(envelope)
        return out

    def _unknown(
        self, type_: str, payload: dict[str, Any], native: ev.NativeRef, rest: Any
    ) -> ev.Event:
        return ev.Native(
            thread_id=ev.MAIN,
            turn_id=self._s.turn,
            dialect=wire.DIALECT,
            name=type_,
            frame=payload,
            native=native,
            extra=None if rest is None else {"envelope": rest},
        )

    # Turns.

    def _in_turn(self, native: ev.NativeRef) -> list[ev.Event]:
        """Begin or resume the turn where the backend did not say so (section 5)."""
        if self._s.turn is None:
            return self._begin(native, synthetic=True)
        return self._resume(native, synthetic=True) if self._s.paused else []

    def _begin(
        self,
        native: ev.NativeRef | None,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        s = self._s
        s.turns += 1
        s.turn = f"turn-{s.turns}"
        s.paused, s.interrupting = False, False
        pending = s.pending if s.pending is not None and not s.pending["held"] else None
        out: list[ev.Event] = []
        if pending is not None:
            out += self._settle_pending()
            s.pending = None
        cause: Any = "message" if pending is not None or s.inbox else "background"
        out.append(
            ev.TurnStarted(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                cause=cause,
                native=native,
                synthetic=synthetic,
                extra=extra,
            )
        )
        if pending is not None:
            out.append(
                ev.MessageReceived(
                    thread_id=ev.MAIN,
                    turn_id=s.turn,
                    message_id=pending["command_id"],
                    content=tuple(pending["content"]),
                    command_id=pending["command_id"],
                    synthetic=True,
                )
            )
        inbox, s.inbox = s.inbox, []
        for message in inbox:
            out.append(self._foreign_message(message["id"], message["text"], s.turn))
        return out

    def _foreign_message(self, id_: str, text: str, turn: str | None) -> ev.Event:
        return ev.MessageReceived(
            thread_id=ev.MAIN,
            turn_id=turn,
            message_id=id_,
            content=(ev.Text(text=text),),
            native=ev.NativeRef(dialect=wire.DIALECT, id=id_, type="user.message"),
        )

    def _resume(
        self,
        native: ev.NativeRef,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        """The agent works again: what we answered is over, and what somebody else must have
        answered."""
        s = self._s
        answered = [name for name, request in s.requests.items() if request["answer"] is not None]
        if not answered and len(s.requests) == 1:
            answered = list(s.requests)
        out: list[ev.Event] = []
        for name in answered:
            out += self._resolve(name, native)
        s.paused = False
        out.append(
            ev.TurnResumed(
                thread_id=ev.MAIN, turn_id=s.turn, native=native, synthetic=synthetic, extra=extra
            )
        )
        return out

    def _resolve(
        self, name: str, native: ev.NativeRef | None, *, denied: bool | None = None
    ) -> list[ev.Event]:
        """Resolve a request: with our answer where we gave one, else with what the backend
        shows."""
        request = self._s.requests.pop(name, None)
        if request is None:
            return []
        answer = request["answer"] or {}
        outcome = answer.get("outcome", "unknown")
        if not answer and denied is not None and request["kind"] == "approval":
            outcome = "denied" if denied else "approved"
        given = answer.get("answer")
        out: list[ev.Event] = []
        call_id = request["call"]
        if outcome == "denied" and call_id in self._s.calls:
            self._s.calls[call_id]["denied"] = True
        if request["kind"] == "tool_result" and answer and call_id in self._s.calls:
            # A custom tool has no result event: what was sent is its result (section 4.5).
            del self._s.calls[call_id]
            told = ev.Answer(**given) if given else ev.Answer()
            failed = told.is_error
            out.append(
                ev.ToolReturned(
                    thread_id=ev.MAIN,
                    turn_id=self._s.turn,
                    call_id=call_id,
                    content=told.content,
                    output_known=told.content is not None,
                    is_error=failed,
                    status="failed" if failed else "completed",
                    native=native,
                    synthetic=True,
                )
            )
        out.append(
            ev.InteractionResolved(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                request_id=name,
                outcome=outcome,
                answer=None if not given else ev.Answer(**given),
                scope=answer.get("scope"),
                native=native,
                synthetic=True,
            )
        )
        return out

    def _running(self, seen: _Seen) -> list[ev.Event]:
        if self._s.turn is None:
            return self._begin(seen.native, extra=seen.extra(frozenset()))
        if not self._s.paused:
            return []
        return self._resume(seen.native, extra=seen.extra(frozenset()))

    def _idle(self, seen: _Seen) -> list[ev.Event]:
        reason = seen.payload.get("stop_reason")
        reason = reason if isinstance(reason, dict) else {}
        kind = reason.get("type")
        if kind == "requires_action":
            return self._waits(seen, reason)
        out: list[ev.Event] = []
        if self._s.turn is None:
            if not self._answers_pending(seen):
                return []
            out = self._begin(seen.native, synthetic=True)
        error = None
        outcome = "completed"
        if kind == "error":
            outcome = "failed"
            message = reason.get("message")
            error = ev.ErrorInfo(
                code="error",
                message=message if isinstance(message, str) and message else "The turn failed.",
            )
        if self._s.interrupting:
            outcome = "interrupted"
        extra = seen.extra({"stop_reason"}) or {}
        if kind not in ("end_turn", "error") or reason.keys() - {"type", "message"}:
            # Unknown reasons are kept, and taken as idle (section 4.6).
            extra["stop_reason"] = seen.payload.get("stop_reason")
        out += self._end(outcome, error, seen.native, extra=extra or None)
        held = self._s.pending
        if held is not None and held["held"]:
            self._retry_at = None
            self._set_alarm()
            self._calls.append(self._post_message())
        return out

    def _answers_pending(self, seen: _Seen) -> bool:
        """Say whether an idle without a running turn is what became of our message."""
        pending = self._s.pending
        if pending is None or not pending["settled"] or pending["held"]:
            return False
        number = _int(seen.envelope.get("sequence"))
        return pending["sequence"] is None or number is None or number > pending["sequence"]

    def _end(
        self,
        outcome: Any,
        error: ev.ErrorInfo | None,
        native: ev.NativeRef | None,
        *,
        extra: dict[str, Any] | None = None,
        synthetic: bool = False,
    ) -> list[ev.Event]:
        s = self._s
        out = self._close_texts("complete" if outcome == "completed" else "partial", native)
        for name in list(s.requests):
            if outcome == "interrupted":
                break
            out += self._resolve(name, native)
        out.append(
            ev.TurnEnded(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                outcome=outcome,
                error=error,
                native=native,
                synthetic=synthetic,
                extra=extra,
            )
        )
        s.turn, s.paused, s.interrupting = None, False, False
        s.calls, s.requests = {}, {}
        return out

    def _close_texts(self, status: Any, native: ev.NativeRef | None) -> list[ev.Event]:
        """Close open runs of deltas: a tool or an idle ends them (section 4.4), and then no whole
        text comes for what is held back."""
        out: list[ev.Event] = []
        held_back, self._s.withheld = self._s.withheld, {}
        for kind, text in held_back.items():
            make_delta = ev.TextDelta if kind == "text" else ev.ReasoningDelta
            out.append(make_delta(**self._block(kind), text=text, native=native))
        open_, self._s.texts = self._s.texts, {}
        return out + [
            BlockEnded(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                block="text" if kind == "text" else "reasoning",
                status=status,
                synthetic=True,
            )
            for kind in open_
        ]

    def _waits(self, seen: _Seen, reason: dict[str, Any]) -> list[ev.Event]:
        s = self._s
        ids = reason.get("event_ids")
        names = [name for name in ids if isinstance(name, str)] if isinstance(ids, list) else []
        out: list[ev.Event] = []
        if s.turn is None:
            out += self._begin(seen.native, synthetic=True)
        out += self._close_texts("complete", seen.native)
        matched = []
        for name in names:
            request_id = self._request_named(name)
            if request_id is None:
                request_id, asked = self._ask_late(name, seen.native)
                out += asked
            matched.append(request_id)
        # Evidence: what is listed no longer has been answered.
        gone = (
            [request_id for request_id in s.requests if request_id not in matched] if names else []
        )
        for request_id in gone:
            out += self._resolve(request_id, seen.native)
        s.paused = True
        out.append(
            ev.TurnPaused(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                on="input",
                request_ids=tuple(matched),
                native=seen.native,
                extra=seen.extra({"stop_reason"}),
            )
        )
        return out

    def _request_named(self, name: str) -> str | None:
        """Match an `event_ids` entry: payload id, request id, envelope id, in that order (section
        4.6)."""
        for request_id, request in reversed(self._s.requests.items()):
            if request["native"] == name:
                return request_id
        for request_id, request in self._s.requests.items():
            if request["envelope"] == name:
                return request_id
        return None

    def _ask_late(self, name: str, native: ev.NativeRef) -> tuple[str, list[ev.Event]]:
        """Make a request of an id that only a pause names: an open call, or something not told."""
        for call_id, call in self._s.calls.items():
            if name in (call_id, call["envelope"]):
                return self._ask_approval(call_id, call, native)
        return self._ask(
            name,
            "unknown",
            native,
            prompt="The agent waits for an answer and does not say for which.",
        )

    # Text.

    def _block(self, kind: str) -> dict[str, Any]:
        """Return what an event of the open run of a kind has, opened where none is."""
        s = self._s
        block = s.texts.get(kind)
        if block is None:
            s.blocks += 1
            block = s.texts[kind] = f"b{s.blocks}"
        return {
            "thread_id": ev.MAIN,
            "turn_id": s.turn,
            "block_id": block,
            "message_id": block,
        }

    def _text(self, seen: _Seen) -> list[ev.Event]:
        s, payload, kind = self._s, seen.payload, _KINDS[seen.type]
        text = wire.text_of_blocks(payload.get("content"))
        out = self._in_turn(seen.native)
        delta = payload.get("delta") is True
        if delta and s.withheld:
            s.withheld[kind] = s.withheld.get(kind, "") + text
            return out
        fields = {**self._block(kind), "text": text, "native": seen.native}
        if delta:
            make_delta = ev.TextDelta if kind == "text" else ev.ReasoningDelta
            out.append(make_delta(**fields, extra=seen.extra(_TEXT_KEYS)))
            return out
        s.texts.pop(kind, None)
        s.withheld.pop(kind, None)
        # `status` is how a Dragoman says that a text was cut or taken back.
        told = payload.get("status")
        status: ev.BlockStatus = "complete"
        if told in ("partial", "discarded"):
            status = "partial" if told == "partial" else "discarded"
        make = ev.TextCompleted if kind == "text" else ev.ReasoningCompleted
        known = _TEXT_KEYS | ({"status"} if status != "complete" else set())
        out.append(make(**fields, status=status, extra=seen.extra(known)))
        return out

    # Tools.

    def _tool_use(self, seen: _Seen) -> list[ev.Event]:
        s, payload = self._s, seen.payload
        call_id = _text(payload, "id") or seen.native.id or f"call-of-frame-{self._frames}"
        asks = payload.get("requires_action") is True
        known = s.calls.get(call_id)
        if known is not None:
            # Said again: an ask that was not known before, or news of a running call.
            if asks and not known["asked"]:
                return self._ask_approval(call_id, known, seen.native)[1]
            return []
        out = self._in_turn(seen.native) + self._close_texts("complete", seen.native)
        tool = _text(payload, "tool") or "unknown"
        mcp = seen.type == "agent.mcp_tool_use"
        custom = seen.type == "agent.custom_tool_use"
        server = _server(payload, tool) if mcp else None
        used = _USE_KEYS
        if payload.get("status") == "running":
            used |= {"status"}
        s.calls[call_id] = {
            "tool": tool,
            "input": payload.get("input"),
            "preview": _text(payload, "preview"),
            "envelope": seen.native.id,
            "asked": False,
        }
        out.append(
            ev.ToolCalled(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                call_id=call_id,
                name=tool,
                kind="mcp" if mcp else "custom" if custom else "builtin",
                server=server,
                input=payload.get("input"),
                input_known="input" in payload,
                preview=_text(payload, "preview"),
                permission="ask" if asks else "allow",
                native=seen.native,
                extra=seen.extra(used),
            )
        )
        if custom:
            out += self._ask_result(call_id, s.calls[call_id], seen.native)
        elif asks:
            out += self._ask_approval(call_id, s.calls[call_id], seen.native)[1]
        return out

    def _ask_approval(
        self, call_id: str, call: dict[str, Any], native: ev.NativeRef
    ) -> tuple[str, list[ev.Event]]:
        call["asked"] = True
        return self._ask(
            call_id,
            "approval",
            native,
            prompt=call["preview"] or f"Allow `{call['tool']}`?",
            options=APPROVAL_OPTIONS,
            call_id=call_id,
            details={"tool": call["tool"], "input": call["input"]},
        )

    def _ask_result(
        self, call_id: str, call: dict[str, Any], native: ev.NativeRef
    ) -> list[ev.Event]:
        call["asked"] = True
        _, asked = self._ask(
            call_id,
            "tool_result",
            native,
            prompt=f"Run `{call['tool']}` and give its result.",
            freeform=True,
            call_id=call_id,
            details={"tool": call["tool"], "input": call["input"]},
        )
        return asked

    def _ask(
        self, name: str, kind: ev.InteractionKind, native: ev.NativeRef, **fields: Any
    ) -> tuple[str, list[ev.Event]]:
        """Open a request and return its id: the backend's, unless that was used before."""
        s = self._s
        request_id = name
        if name in s.asked:
            request_id = f"{name}~{s.asked.count(name) + 1}"
        s.asked.append(name)
        del s.asked[:-KEPT]
        s.requests[request_id] = {
            "native": name,
            "kind": kind,
            "call": fields.get("call_id"),
            "envelope": native.id,
            "answer": None,
            "labels": {o.id: o.label for o in fields.get("options") or ()},
        }
        return request_id, [
            ev.InteractionRequested(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                request_id=request_id,
                kind=kind,
                native=native,
                **fields,
            )
        ]

    def _tool_result(self, seen: _Seen) -> list[ev.Event]:
        s, payload = self._s, seen.payload
        call_id = _text(payload, "tool_use_id") or next(iter(s.calls), f"call-{self._frames}")
        call = s.calls.pop(call_id, None)
        failed = payload.get("is_error") is True or payload.get("status") == "failed"
        text = wire.text_of_blocks(payload.get("content"))
        out: list[ev.Event] = [] if s.turn is not None else self._begin(seen.native, synthetic=True)
        asked = next((n for n, r in s.requests.items() if r["call"] == call_id), None)
        # A denial is resolved when the turn goes on, before its call comes back (section 5).
        rejected = failed and call is not None and call.get("denied") is True
        if asked is not None:
            answer = s.requests[asked]["answer"] or {}
            rejected = failed and (
                answer.get("outcome") == "denied" or (not answer and "denied" in text.lower())
            )
            out += self._resolve(asked, seen.native, denied=rejected)
            if s.paused and not s.requests:
                s.paused = False
                out.append(
                    ev.TurnResumed(
                        thread_id=ev.MAIN, turn_id=s.turn, native=seen.native, synthetic=True
                    )
                )
        extra = seen.extra(_RESULT_KEYS) or {}
        if call is None and _text(payload, "tool"):
            extra["name"] = payload["tool"]
        output, content = _output(payload.get("content"))
        info = None
        if failed:
            info = ev.ErrorInfo(
                code="permission_denied" if rejected else "tool_failed",
                message=text or _text(payload, "error") or "The tool failed.",
            )
        out.append(
            ev.ToolReturned(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                call_id=call_id,
                output=output,
                content=content,
                is_error=failed,
                error=info,
                status="rejected" if rejected else "failed" if failed else "completed",
                native=seen.native,
                extra=extra or None,
            )
        )
        return out

    # Questions.

    def _clarify(self, seen: _Seen) -> list[ev.Event]:
        payload = seen.payload
        out = self._in_turn(seen.native) + self._close_texts("complete", seen.native)
        choices = payload.get("choices")
        labels = [c for c in choices if isinstance(c, str)] if isinstance(choices, list) else []
        options = tuple(ev.Option(id=label, label=label) for label in dict.fromkeys(labels))
        # An answer is any string (section 3.2), so words of one's own are taken beside choices.
        _, asked = self._ask(
            self._request_id(seen),
            "question",
            seen.native,
            prompt=_text(payload, "question") or "",
            options=options or None,
            freeform=True,
            extra=seen.extra({"request_id", "question", "choices"}),
        )
        return out + asked

    def _request_id(self, seen: _Seen) -> str:
        return _text(seen.payload, "request_id") or seen.native.id or f"request-{self._frames}"

    def _sudo(self, seen: _Seen) -> list[ev.Event]:
        out = self._in_turn(seen.native) + self._close_texts("complete", seen.native)
        prompt = _text(seen.payload, "prompt")
        _, asked = self._ask(
            self._request_id(seen),
            "sudo",
            seen.native,
            prompt=prompt or "",
            extra=seen.extra({"request_id", "prompt"}),
        )
        return out + asked

    def _secret(self, seen: _Seen) -> list[ev.Event]:
        out = self._in_turn(seen.native) + self._close_texts("complete", seen.native)
        variable = _text(seen.payload, "env_var")
        _, asked = self._ask(
            self._request_id(seen),
            "secret",
            seen.native,
            prompt=_text(seen.payload, "prompt") or "",
            details=None if variable is None else {"env_var": variable},
            extra=seen.extra({"request_id", "prompt", "env_var"}),
        )
        return out + asked

    # Threads.

    def _thread_sent(self, seen: _Seen) -> list[ev.Event]:
        thread, out = self._thread(seen, "to_thread_id")
        return [*out, self._thread_message(seen, "sent", thread)]

    def _thread_received(self, seen: _Seen) -> list[ev.Event]:
        s, payload = self._s, seen.payload
        thread, out = self._thread(seen, "from_thread_id")
        out.append(self._thread_message(seen, "received", thread))
        status = _text(payload, "status")
        final = "completed" if status is None else _FINAL.get(status)
        if final is None or thread in s.ended_threads:
            return out
        s.threads.remove(thread)
        s.ended_threads.append(thread)
        del s.ended_threads[:-KEPT]
        text = wire.text_of_blocks(payload.get("content"))
        failed = final == "failed"
        out.append(
            ev.ThreadEnded(
                thread_id=thread,
                status=final,  # type: ignore[arg-type]
                output=None if failed else text,
                error=ev.ErrorInfo(code="thread_failed", message=text) if failed else None,
                native=seen.native,
            )
        )
        return out

    def _thread(self, seen: _Seen, field: str) -> tuple[str, list[ev.Event]]:
        """Return the child that a thread event is about, opened where it is the first one (section
        4.5: expected)."""
        s, payload = self._s, seen.payload
        name = _text(payload, "name")
        thread = _text(payload, "thread_id") or _text(payload, field)
        if thread is None or thread == ev.MAIN:
            thread = f"thread-{name}" if name else next(reversed(s.threads), None)
        if thread is None:
            s.unnamed_threads += 1
            thread = f"thread-{s.unnamed_threads}"
        if thread in s.threads or thread in s.ended_threads:
            return thread, []
        s.threads.append(thread)
        return thread, [
            ev.ThreadStarted(
                thread_id=thread, parent=ev.MAIN, name=name, native_id=thread, native=seen.native
            )
        ]

    def _thread_message(
        self, seen: _Seen, direction: Literal["sent", "received"], thread: str
    ) -> ev.Event:
        content = seen.payload.get("content")
        blocks = content if isinstance(content, list) else [content] if content else []
        return ev.ThreadMessage(
            thread_id=ev.MAIN,
            turn_id=self._s.turn,
            direction=direction,
            sender=ev.MAIN if direction == "sent" else thread,
            recipient=thread if direction == "sent" else ev.MAIN,
            content=tuple(_block(block) for block in blocks),
            native=seen.native,
            extra=seen.extra({"content"}),
        )

    # The session.

    def _title_updated(self, seen: _Seen) -> list[ev.Event]:
        title = _text(seen.payload, "title")
        if title is None:
            return [self._unknown(seen.type, seen.payload, seen.native, seen.rest)]
        self._s.title = title
        return [
            ev.SessionUpdated(
                thread_id=ev.MAIN, title=title, native=seen.native, extra=seen.extra({"title"})
            )
        ]

    def _gap(self, seen: _Seen) -> list[ev.Event]:
        return [
            ev.Gap(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                reason=_text(seen.payload, "reason") or "the backend lost events",
                cursor_from=_text(seen.payload, "from"),
                cursor_to=_text(seen.payload, "to"),
                native=seen.native,
            )
        ]

    # Inputs that the backend shows: our own, and those that others sent it.

    def _user_event(
        self, type_: str, envelope: dict[str, Any], payload: dict[str, Any]
    ) -> list[ev.Event]:
        id_, number = _id(envelope), _int(envelope.get("sequence"))
        self._know_input(number)
        command_id = self._s.ids.get(id_) if id_ else None
        if command_id is not None:
            return self._own_done(command_id) if envelope.get("status") == "complete" else []
        payload = {**payload, "type": type_}
        key = _key(payload)
        mine = next((item for item in self._s.sent if item["key"] == key), None)
        if mine is not None:
            # Our input came back before we knew its id: it was taken.
            command_id = mine["command_id"]
            out = [] if mine["settled"] else self._took(command_id, payload, number)
            self._forget_sent(command_id)
            if id_:
                self._remember_id(id_, command_id)
            if envelope.get("status") == "complete":
                out += self._own_done(command_id)
            return out
        if id_ in self._recent or (number is not None and number <= self._s.inputs_mark):
            return []
        if id_:
            self._recent[id_] = None
        return self._foreign(type_, id_, payload)

    def _own_done(self, command_id: str) -> list[ev.Event]:
        request_id, request = self._answered_by(command_id)
        if request is None or request_id is None:
            return []
        return self._resolve(request_id, None)

    def _foreign(self, type_: str, id_: str, payload: dict[str, Any]) -> list[ev.Event]:
        s = self._s
        match type_:
            case "user.message":
                text = wire.text_of_blocks(payload.get("content"))
                id_ = id_ or f"message-{s.turns}-{len(s.inbox)}"
                if s.turn is None:
                    s.inbox.append({"id": id_, "text": text})
                    return []
                return [self._foreign_message(id_, text, s.turn)]
            case "user.steer" if s.turn is not None:
                text = _text(payload, "message") or ""
                return [ev.GuidanceReceived(thread_id=ev.MAIN, turn_id=s.turn, text=text)]
            case "user.interrupt":
                s.interrupting = s.turn is not None
            case _:
                self._answered_elsewhere(payload)
        return []

    def _answered_elsewhere(self, payload: dict[str, Any]) -> None:
        name = _text(payload, "tool_use_id") or _text(payload, "request_id") or ""
        request = self._s.requests.get(self._request_named(name) or "")
        if request is None or request["answer"] is not None:
            return
        outcome = "answered"
        if payload.get("result") in ("allow", "deny"):
            outcome = "approved" if payload["result"] == "allow" else "denied"
        answer: dict[str, Any] = {}
        if _text(payload, "answer"):
            answer["text"] = payload["answer"]
        request["answer"] = {
            "command_id": None,
            "outcome": outcome,
            "scope": None,
            "answer": answer,
        }

    def _answered_by(self, command_id: str) -> tuple[str | None, dict[str, Any] | None]:
        for request_id, request in self._s.requests.items():
            if request["answer"] is not None and request["answer"]["command_id"] == command_id:
                return request_id, request
        return None, None

    def _remember_id(self, id_: str, command_id: str) -> None:
        self._forget_sent(command_id)
        self._s.ids[id_] = command_id
        for old in list(self._s.ids)[:-KEPT]:
            del self._s.ids[old]

    def _forget_sent(self, command_id: str | None) -> None:
        self._s.sent = [item for item in self._s.sent if item["command_id"] != command_id]


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """One envelope on its way to a handler; `rest` are the members that an envelope does not
    have."""

    type: str
    envelope: dict[str, Any]
    payload: dict[str, Any]
    native: ev.NativeRef
    rest: dict[str, Any] | None

    def extra(self, known: set[str] | frozenset[str]) -> dict[str, Any] | None:
        """Return the payload's members that the model does not know."""
        extra = {k: v for k, v in self.payload.items() if k not in known and k != "type"}
        if self.rest:
            extra["envelope"] = self.rest
        return extra or None


_NO_CALL = Call("none", Request("GET", "/"))

_ENVELOPE_KEYS = frozenset(
    {"id", "type", "sessionId", "sequence", "payload", "processedAt", "createdAt"}
)
_SESSION_KEYS = frozenset(
    {
        *("id", "agentId", "agentVersion", "userId", "title", "metadata", "status"),
        *("createdAt", "updatedAt", "archivedAt", "messages"),
    }
)
_KINDS = {"agent.message": "text", "agent.thinking": "reasoning"}
_TEXT_KEYS = frozenset({"content", "delta"})
_USE_KEYS = frozenset({"id", "tool", "input", "preview", "requires_action"})
_RESULT_KEYS = frozenset({"tool_use_id", "tool", "status", "content", "is_error"})

_TURN_OVER = frozenset({400, 409, 422, 429})
"""What steering may be refused with when no turn runs; the page names no status (section 3.1)."""

_SEALED_FIELDS = {"user.sudo_result": "password", "user.secret_result": "value"}

_HANDLERS: dict[str, Any] = {
    "agent.message": HermClient._text,
    "agent.thinking": HermClient._text,
    "agent.tool_use": HermClient._tool_use,
    "agent.mcp_tool_use": HermClient._tool_use,
    "agent.custom_tool_use": HermClient._tool_use,
    "agent.tool_result": HermClient._tool_result,
    "agent.mcp_tool_result": HermClient._tool_result,
    "agent.clarify_request": HermClient._clarify,
    "agent.sudo_request": HermClient._sudo,
    "agent.secret_request": HermClient._secret,
    "agent.thread_message_sent": HermClient._thread_sent,
    "agent.thread_message_received": HermClient._thread_received,
    "session.status_running": HermClient._running,
    "session.status_idle": HermClient._idle,
    "session.title_updated": HermClient._title_updated,
    "session.gap": HermClient._gap,
}


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what an error body says, in any of the three forms of section 6; any other is
    quoted."""
    body = _json_of(response)
    if isinstance(body, dict):
        error = body.get("error")
        source = error if isinstance(error, dict) else body
        code = source.get("code") if isinstance(source.get("code"), str) else None
        if code is None and isinstance(error, str):
            code = error
        if code is not None:
            message = source.get("message")
            return ev.ErrorInfo(code=code, message=message if isinstance(message, str) else code)
    text = response.body[:512].decode("utf-8", "backslashreplace")
    return ev.ErrorInfo(
        code=f"http_{response.status}", message=f"Herm answered {response.status}: {text}"
    )


def _no_id(response: Response) -> ev.ErrorInfo:
    return ev.ErrorInfo(
        code=str(ErrorCode.BACKEND_PROTOCOL),
        message=f"Herm answered a create with {response.status} and no usable session id.",
    )


def _retry_after(response: Response, default: int) -> int:
    text = response.headers.get("Retry-After", "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 4 else default


def _json_of(response: Response) -> Any:
    try:
        return parse_json(response.body) if response.body else None
    except JsonError:
        return None


def _envelopes(body: Any) -> list[dict[str, Any]]:
    """Return the envelopes of an answer: `data`, `events`, a bare array or a single one (sections 3
    and 4.2)."""
    if isinstance(body, dict):
        for name in ("data", "events"):
            if isinstance(body.get(name), list):
                body = body[name]
                break
        else:
            body = [body] if isinstance(body.get("type"), str) else []
    if not isinstance(body, list):
        return []
    return [item for item in body if isinstance(item, dict) and isinstance(item.get("type"), str)]


def _key(payload: dict[str, Any]) -> str:
    """Return what tells an input from others: its type and what it is about, never a sealed
    value."""
    type_ = payload["type"]
    name = payload.get("tool_use_id") or payload.get("request_id")
    if name is not None:
        return f"{type_} {name}"
    if type_ == "user.message":
        return f"{type_} {wire.text_of_blocks(payload.get('content'))}"
    return f"{type_} {payload.get('message') or ''}"


def _content_blocks(content: tuple[Any, ...], context: Any = None) -> list[dict[str, str]]:
    """Return a content as the blocks that Herm takes.

    Raises:
        NotSupported: it is not text, or too long for 100 blocks of 20,000 characters (section 3.1).
    """
    blocks: list[dict[str, str]] = []
    items = context if isinstance(context, list) else [] if context is None else [context]
    for item in items:
        words = item if isinstance(item, str) else format_json(item).decode()
        blocks += wire.text_blocks(f"Client context:\n{words}")
    for block in content:
        if not isinstance(block, ev.Text):
            what = "file" if isinstance(block, ev.File) else block.type
            raise NotSupported(f"herm: a {what} is impossible: only text is carried (section 3.1)")
        blocks += wire.text_blocks(block.text)
    if not 1 <= len(blocks) <= wire.MAX_BLOCKS:
        raise NotSupported(
            f"herm: {len(blocks)} blocks of text are impossible: 1 to {wire.MAX_BLOCKS} blocks of "
            f"{wire.MAX_BLOCK_TEXT} characters are carried (section 3.1)"
        )
    return blocks


def _settled(
    command_id: str,
    outcome: Literal["taken", "refused", "unknown"],
    error: ev.ErrorInfo | None = None,
) -> ev.Event:
    return ev.InputSettled(
        thread_id=ev.MAIN,
        command_id=command_id,
        outcome=outcome,
        reason=None if error is None else error.message,
        error=error,
    )


def _released(request_id: str, command_id: str) -> ev.Event:
    return ev.InteractionAnswered(
        thread_id=ev.MAIN,
        request_id=request_id,
        command_id=command_id,
        by="backend",
        state="released",
    )


def _server(payload: dict[str, Any], tool: str) -> str | None:
    """Return a connector's name; the field that has it is not documented (sections 4.5 and 8)."""
    for name in ("server_name", "server"):
        if found := _text(payload, name):
            return found
    parts = tool.split("__")
    return parts[1] if len(parts) > 2 and parts[0] == "mcp" else None


def _output(content: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """Return a result as output, where it is one text, else as blocks."""
    if not isinstance(content, list):
        return content, None
    if len(content) == 1 and isinstance(content[0], dict) and content[0].keys() == {"type", "text"}:
        return content[0]["text"], None
    return None, tuple(_block(block) for block in content)


def _block(block: Any) -> Any:
    if isinstance(block, str):
        return ev.Text(text=block)
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        rest = _rest(block, frozenset({"type", "text"}))
        return ev.Text(text=block["text"], extra=rest)
    return ev.Other(dialect=wire.DIALECT, value=block)


def _id(envelope: dict[str, Any]) -> str:
    value = envelope.get("id")
    return value if isinstance(value, str) else ""


def _in_order(waiting: list[_Waiting], known: Collection[int]) -> list[_Waiting]:
    """Return what waits by number, where the numbers leave nothing out and each is there once.

    Else deltas may count by themselves (section 4.4) and stay in their places, and the stored ones
    alone are sorted.
    """
    ids: dict[int, str] = {}
    for _, envelope in waiting:
        number = _int(envelope.get("sequence"))
        if number is None or ids.setdefault(number, _id(envelope)) != _id(envelope):
            break
    else:
        if ids and _are_all(range(min(ids), max(ids)), {*ids, *known}):
            return sorted(waiting, key=_number)
    stored = iter(sorted((item for item in waiting if not _is_delta(item[1])), key=_number))
    return [item if _is_delta(item[1]) else next(stored) for item in waiting]


def _number(item: _Waiting) -> int:
    return _int(item[1].get("sequence")) or 0


def _are_all(numbers: range, known: Collection[int]) -> bool:
    return len(numbers) <= len(known) and all(number in known for number in numbers)


def _is_delta(envelope: dict[str, Any]) -> bool:
    payload = envelope.get("payload")
    return isinstance(payload, dict) and payload.get("delta") is True


def _text(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    return text if isinstance(text, str) and text else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rest(payload: dict[str, Any], known: frozenset[str]) -> dict[str, Any] | None:
    rest = {key: value for key, value in payload.items() if key not in known}
    return rest or None
