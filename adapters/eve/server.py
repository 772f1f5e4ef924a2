"""Serves eve: the log of a session becomes the records of its NDJSON stream.

Record *n* is the same for ever: the records are a pure function of the log. Three forms (eve page,
sections 1 and 1.1):

* `all`: one server for every client of 0.30 to 0.80: stream version 24, cumulative texts beside the
deltas, a turn that
  pauses is closed and another one opens at the answer;
* `tokens`: the token generation (0.30.8, version 21): the same without what came later;
* `newest`: 0.80.1 (version 26): deltas only, a paused turn is held open with `turn.waiting`.

A canonical turn that pauses is one turn; the closed forms unfold it into several. Cumulative fields
are quadratic in the length of a block, so the deltas of a long block are merged, by a rule on the
log alone.

Why one module: an encoder has a method for each kind of event, and three forms of records; all
share what is open.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Callable
from typing import Any, cast

import orjson

from adapters.eve import wire
from adapters.eve.requests import make_token, name_again, offered_options, webhook_path
from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext, Frame, fields_of, shape_of
from adapters.model.interactions import decision_of
from adapters.model.normalizer import ABANDONED
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json, parse_json
from adapters.wire.url_paths import path_of

EVE_VERSIONS = {"all": "0.46.1", "tokens": "0.30.8", "newest": "0.80.1"}
"""The release whose stream version a form declares (section 13)."""

FINISH_REASONS = frozenset({"stop", "length", "content-filter", "tool-calls", "error", "other"})
"""Section 9.2."""

_OUTCOMES = {
    "approved": "approved",
    "denied": "denied",
    "answered": "answered",
    "skipped": "answered",
    "expired": "cancelled",
    "cancelled": "cancelled",
    "withdrawn": "ignored",
    "failed": "invalid",
    "unknown": "answered",
}
"""Canonical outcome of an interaction -> `outcome` of a resolution (section 9.4)."""

_SIGN_IN_OUTCOMES = {
    "approved": "authorized",
    "answered": "authorized",
    "denied": "declined",
    "skipped": "declined",
    "withdrawn": "declined",
    "cancelled": "declined",
    "expired": "timed-out",
    "failed": "failed",
    "unknown": "authorized",
}
"""Canonical outcome of a sign-in -> `outcome` of `authorization.completed` (section 9.4)."""

LIMIT_TOOL = "session_limit_continuation"
"""Section 9.4: the action of a limit request."""

QUESTION_TOOL = "ask_question"
"""The model's tool for questions (section 9.4): the action of a question that has no call of its
own."""

_SESSION_ENDS = frozenset({"session.completed", "session.failed"})

_LIMIT_MEMBERS = {"limit_kind": "kind", "used_tokens": "usedTokens"}
"""Key of a limit's `details` -> member of the action's input (section 9.4)."""

_SIGN_IN_MEMBERS = {
    "url": "url",
    "user_code": "userCode",
    "instructions": "instructions",
    "display_name": "displayName",
}
"""Key of a sign-in's `details` -> member of `authorization` (section 9.4)."""


UNKNOWN_MODEL = "unknown"
"""The `modelId` of a step whose backend does not say which model it calls."""


_DELTA_COORDINATES = (
    b'%b,"sequence":%d,"stepIndex":%d,"turnId":"turn_%d"},"meta":{"at":"%b","id":"%b%012d"%b}}\n'
)
_TEXT_RECORD = b'{"type":"message.appended","data":{"messageDelta":%b' + _DELTA_COORDINATES
_REASONING_RECORD = b'{"type":"reasoning.appended","data":{"reasoningDelta":%b' + _DELTA_COORDINATES


_NOTHING = ("", b'""')

DELIVERIES_MOST = 256
"""Deliveries that a record names, which is on each record of their turn: the newest. Who said
something earlier has seen a record that names it."""


@dataclasses.dataclass(slots=True)
class _EveEncoderState:
    records: int = 0
    started: bool = False
    ended: bool = False
    waits: int = 0
    used: int = -1
    sequence: int = 0
    turn: int | None = None
    turn_at: int = 0
    step: int | None = None
    steps: int = 0
    first_step: int = 0
    held: bool = False
    answering: bool = False
    stopping: str | None = None
    unreturned: list[str] = dataclasses.field(default_factory=list)
    relayed: bool = False
    relayed_text: str | None = None
    deliveries: list[str] = dataclasses.field(default_factory=list)
    unsettled: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    # Those of them that answer what was asked.
    unsettled_answers: list[str] = dataclasses.field(default_factory=list)
    controls: list[str] = dataclasses.field(default_factory=list)
    taken: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    refused: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # What was said beside answers and has not been received: whether it is shown already. `folded`
    # is the end of a turn that is over and goes on here with such a message.
    beside: dict[str, bool] = dataclasses.field(default_factory=dict)
    folded: dict[str, Any] | None = None
    # The members of the source of a turn that has begun and whose owner is not known yet: its
    # first record names it.
    opening: dict[str, Any] | None = None
    pause_follows: bool = False
    step_failed: bool = False
    text: str = ""
    text_open: bool = False
    reasoning: str = ""
    unwritten: str = ""
    unwritten_kind: str | None = None
    calls: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    requests: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    threads: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    model: str | None = None
    step_native: bool = False
    # It began with words that go on, and nobody has said yet that it did.
    step_implied: bool = False
    intro: dict[str, Any] = dataclasses.field(default_factory=dict)
    compacting: bool = False
    control: bool = False
    usage: dict[str, float] = dataclasses.field(default_factory=dict)


class EveEncoder(Encoder):
    """The encoder of one thread's stream. Settings: `form` (`all`, `tokens`, `newest`),
    `token_rotation`."""

    dialect = wire.DIALECT
    version = 1
    shape = shape_of(1, _EveEncoderState)

    def __init__(self, context: EncoderContext) -> None:
        self._context = context
        self._thread_id = context.thread_id
        self._form: str = context.settings.get("form", "all")
        self._rotate: bool = context.settings.get("token_rotation", True)
        self._closed_form = self._form != "newest"
        self._cumulative = self._form != "newest"
        self._s = _EveEncoderState()
        seed = f"{context.session_id}/{context.thread_id}".encode()
        # Ids look like the real ones, `evt_` and 26 characters; readers take them as opaque
        # (section 9).
        self._id_prefix = b"evt_" + hashlib.sha256(seed).hexdigest()[:14].upper().encode()
        self._out: list[Frame] = []
        self._at = 0
        self._second = -1
        self._second_text = b""
        self._deliveries_json = b""
        # The text that is growing, and its JSON on one line.
        self._carried = _NOTHING

    # What the face asks besides.

    @property
    def waits(self) -> int:
        """Return the number of `session.waiting` so far: the number of the newest continuation
        token."""
        return self._s.waits if self._rotate else 0

    @property
    def used(self) -> int:
        """Return the number of the newest token that a request used, -1 for none."""
        return self._s.used

    @property
    def turn_id(self) -> str | None:
        """Return the id of the turn that this face shows as open, or None."""
        turn = self._s.turn if self._s.opening is None else self._s.sequence
        return None if turn is None else f"turn_{turn}"

    @property
    def turn_at(self) -> int:
        """Return the index of the record that starts the open turn, else the last one."""
        return self._s.turn_at

    @property
    def token(self) -> str:
        """Return the newest continuation token of the session."""
        return make_token(self._context.secret, self.waits)

    # The Encoder contract.

    def feed(self, entry: ev.Entry) -> list[Frame]:
        event = entry.event
        self._at = entry.at
        type_ = event.TYPE
        out = self._out = []
        if type_ == "text.delta" or type_ == "reasoning.delta":
            values = event.__dict__
            if values["thread_id"] == self._thread_id:
                self._delta(values["text"], type_ == "text.delta")
            return out
        handler = _HANDLERS.get(type_)
        if handler is not None and (
            event.thread_id == self._context.thread_id
            or type_ in _ACROSS_THREADS
            or getattr(event, "shown_on", None) == self._context.thread_id
            # What a child asked here is resolved here, though it is the child's event.
            or (type_ in _OF_REQUESTS and event.request_id in self._s.requests)  # type: ignore[attr-defined]
        ):
            if self._s.opening is not None and type_ not in _BEFORE_THE_TURN:
                self._in_turn()
            handler(self, event)
        return out

    def snapshot(self) -> bytes:
        return ev.format_state(fields_of(self._s) | {"next_cursor": self.next_cursor})

    def restore(self, snapshot: bytes) -> None:
        value = cast("dict[str, Any]", parse_json(snapshot))
        self.next_cursor = value.pop("next_cursor")
        self._s = _EveEncoderState(**value)
        self._deliveries_changed()

    # Records.

    def _write(
        self,
        type_: str,
        data: dict[str, Any] | None,
        event: ev.Event | None = None,
        *,
        end: bool = False,
    ) -> None:
        """Write a record; members of the source that the model does not know come back."""
        if event is not None and event.extra is not None and _is_native(event):
            data = {**_frame_members(event), **(data or {})}
        if not self._s.started:
            self._start_session()
        if self._s.unwritten_kind is not None:
            self._flush_delta()
        self._append(type_, None if data is None else format_json(data), end=end)

    def _append(self, type_: str, data: bytes | None, *, end: bool = False) -> None:
        n = self._s.records
        self._s.records = n + 1
        self.next_cursor = n + 1
        line = b'{"type":"%s",%s"meta":{"at":"%s","id":"%s%012d"%s}}\n' % (
            type_.encode(),
            b"" if data is None else b'"data":%s,' % data,
            self._time(),
            self._id_prefix,
            n,
            self._deliveries_json,
        )
        self._out.append(Frame(n, on_one_line(line), "session" if end else None))

    def _time(self) -> bytes:
        second, ms = divmod(self._at, 1000)
        if second != self._second:
            self._second = second
            moment = datetime.datetime.fromtimestamp(second, datetime.UTC)
            self._second_text = moment.strftime("%Y-%m-%dT%H:%M:%S.").encode()
        return b"%b%03dZ" % (self._second_text, ms)

    def _deliveries_changed(self) -> None:
        # Deliveries exist since 0.52 (section 9); the token generation never had them.
        if self._form == "tokens" or not self._s.deliveries:
            self._deliveries_json = b""
        else:
            deliveries = on_one_line(format_json(self._s.deliveries))
            self._deliveries_json = b',"deliveryIds":' + deliveries

    def _deliver(self, command_id: str) -> None:
        s = self._s
        if s.opening is not None:
            # They were those of the turn before.
            s.deliveries = []
        if command_id not in s.deliveries:
            s.deliveries = [*s.deliveries, command_id][-DELIVERIES_MOST:]
            self._deliveries_changed()

    def _c(self) -> dict[str, Any]:
        """Return the coordinates of the open turn, else of the last one (section 8.2), else of the
        next."""
        number = self._s.turn
        if number is None:
            number = max(self._s.sequence - 1, 0)
        return {"sequence": number, "turnId": f"turn_{number}"}

    def _cs(self) -> dict[str, Any]:
        step = self._s.step
        if step is None:
            step = max(self._s.steps - 1, 0)
        return {**self._c(), "stepIndex": step}

    # Turns.

    def _start_session(self) -> None:
        self._s.started = True
        intro = self._s.intro
        runtime: dict[str, Any] = {
            "agentId": self._context.agent,
            "agentName": self._context.agent,
            **intro.get("runtime", {}),
            "eveVersion": EVE_VERSIONS[self._form],
        }
        if self._form != "newest" and self._s.model is not None:
            runtime.setdefault("modelId", self._s.model)
        elif self._form == "newest":
            runtime.pop("modelId", None)
        self._append("session.started", format_json({**intro, "runtime": runtime}))

    def _session_updated(self, event: ev.SessionUpdated | ev.ThreadUpdated) -> None:
        """Keep how an eve introduces the session, for the record that introduces it here."""
        native = event.native
        if native is None or native.dialect != wire.DIALECT or self._s.started:
            return
        if native.type != "session.started":
            return
        extra = dict(event.extra or {})
        agent = event.agent or {}
        runtime = {
            theirs: agent[ours]
            for ours, theirs in (("id", "agentId"), ("name", "agentName"), ("model", "modelId"))
            if ours in agent
        }
        intro = {**extra, "runtime": {**extra.get("runtime", {}), **runtime}}
        if isinstance(event, ev.SessionUpdated) and event.predecessor is not None:
            intro["predecessor"] = {"sessionId": event.predecessor}
        if self._context.thread_id != ev.MAIN and isinstance(intro.get("invocation"), dict):
            # The parent is the session that we serve.
            parent = {"parentSessionId": self._context.session_id}
            intro["invocation"] = {**intro["invocation"], **parent}
        self._s.intro = intro

    def _thread_updated(self, event: ev.ThreadUpdated) -> None:
        native = event.native
        if event.thread_id == self._context.thread_id:
            self._session_updated(event)
        elif (
            self._form == "newest"
            and event.thread_id in self._s.threads
            and native is not None
            and (native.dialect, native.type) == (wire.DIALECT, "agent.started")
        ):
            self._agent_started(event.thread_id, event)

    def _open_turn(self, event: ev.Event | None = None) -> None:
        s = self._s
        if s.control:
            # A compaction that was begun and never ended: its readers wait for this (section 6).
            self._wait()
        opening, s.opening = s.opening or {}, None
        s.turn = s.sequence
        s.sequence += 1
        s.step, s.steps = None, 0
        self._write("turn.started", opening | self._c(), event)
        # The first one comes with what introduces the session.
        s.turn_at = 0 if s.turn == 0 else s.records - 1

    def _in_turn(self, event: ev.Event | None = None) -> None:
        if self._s.turn is None:
            self._open_turn(event)

    def _in_step(self) -> None:
        self._in_turn()
        if self._s.step is None:
            self._start_step(None)

    def _start_step(self, model: str | None, event: ev.Event | None = None) -> None:
        s = self._s
        self._show_beside()
        s.step_failed = s.step_implied = False
        s.step = s.steps
        s.step_native = event is not None and _is_native(event) and not event.synthetic
        if isinstance(event, ev.StepStarted) and s.step_native and self._form == "tokens":
            # The steps of a token server may count from 0 again in a turn; later clients would take
            # such a step for the first one, tried again.
            if s.steps == 0:
                s.first_step = event.step_index
            s.step = max(event.step_index - s.first_step, 0)
        s.steps = s.step + 1
        data = self._cs()
        if self._form != "tokens":
            # Not optional (section 9.2): the terminal program of S fails on a step without it.
            data["modelId"] = model or s.model or UNKNOWN_MODEL
        self._write("step.started", data, event)
        # A block that goes on in the next model call begins anew for readers.
        s.text = s.reasoning = ""
        s.text_open = False

    def _close_step(self, finish_reason: str = "other") -> None:
        if self._s.step_native:
            self._s.step = None
        if self._s.step is not None:
            reason = self._finish_reason(finish_reason)
            self._write("step.completed", {**self._cs(), "finishReason": reason})
            self._s.step = None

    def _finish_reason(self, reason: str | None) -> str:
        """Return why a step is over; one whose text has no end was cut (section 5.1)."""
        return reason if reason in FINISH_REASONS and not self._s.text_open else "other"

    def _usage_reported(self, event: ev.UsageReported) -> None:
        if event.scope == "session" and _is_native(event):
            self._s.usage = _usage(event.usage)

    def _wait(self, event: ev.Event | None = None) -> None:
        s = self._s
        s.turn = None
        s.control = s.answering = False
        s.folded = None
        s.waits += 1
        token = self._context.session_id if self._form == "newest" else self.token
        data: dict[str, Any] = {"continuationToken": token, "wait": "next-user-message"}
        if self._form != "tokens" and s.usage:
            data["usage"] = self._session_usage()
        if event is not None and event.extra is not None:
            data = {**event.extra.get(wire.BOUNDARY, {}), **data}
        self._write("session.waiting", data)

    def _session_usage(self) -> dict[str, Any]:
        names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
        return dict.fromkeys(names, 0) | self._s.usage

    def _turn_started(self, event: ev.TurnStarted) -> None:
        s = self._s
        s.held = s.pause_follows = False
        s.stopping = None
        if s.folded is not None:
            # The steps of a token server count from 0 again.
            s.folded, s.first_step = None, -s.steps
            for command_id in s.taken:
                self._deliver(command_id)
        elif s.taken and event.cause == "background":
            # What somebody else has said is not the answer to what was said here.
            s.deliveries = []
            self._deliveries_changed()
        elif s.taken:
            # The deliveries that own the turn stand on its first records already, as real servers
            # write them.
            s.deliveries = list(s.taken)[-DELIVERIES_MOST:]
            self._deliveries_changed()
        elif s.unsettled and s.turn is None and self._form != "tokens":
            # The turn was faster than the backend's answer to the message. A first record without
            # its delivery is one that its sender does not see (section 7.6).
            s.opening = _frame_members(event) if _is_native(event) else {}
            return
        # A message or a child that came before the turn has opened it here already.
        self._in_turn(event)

    def _turn_resumed(self, event: ev.TurnResumed) -> None:
        self._s.held = self._s.pause_follows = False
        if self._closed_form and not self._unheard():
            for command_id in self._s.unsettled_answers:
                # The turn was faster than the backend's answer to it.
                self._deliver(command_id)
            self._in_turn(event)

    def _unheard(self) -> bool:
        """Say whether the closed turn was told to stop and nobody waits for what it still does:
        what opens and ends without a word would be the empty answer to the next message."""
        return self._s.turn is None and self._s.stopping is not None and not self._s.answering

    def _turn_paused(self, event: ev.TurnPaused) -> None:
        if event.on == "retry":
            # The agent goes on by itself; no record says that it rests (section 9.1).
            return
        self._s.pause_follows = False
        if event.usage is not None:
            self._s.usage = _usage(event.usage)
        if event.native is not None and event.native.type == "authorization.required":
            # T and S1 have no boundary at a sign-in (section 8.2).
            return
        if self._closed_form and event.on == "tasks":
            return
        if event.synthetic and self._s.stopping is not None:
            # What is asked is about to be over, and the message gets its own turn.
            return
        self._s.stopping = None
        for refused in self._s.refused:
            # It is shown when the turn is over; its sender must not wait for that.
            self._deliver(refused["id"])
        if self._closed_form:
            if self._s.turn is None:
                # Closed already: an empty turn, as after one of two answers (section 8.2).
                self._deliver_waiting()
            self._in_turn()
            self._close_step()
            self._show_refused_beside()
            self._write("turn.completed", self._c(), event)
            self._wait(event)
            self._s.held = True
            return
        if self._s.held:
            self._deliver_waiting()
        self._close_step()
        self._write("turn.waiting", self._waiting_on(event.on), event)
        self._s.held = event.on == "input"

    def _waiting_on(self, what: str) -> dict[str, Any]:
        data: dict[str, Any] = {**self._c(), "on": what}
        if self._s.usage:
            data["usage"] = self._session_usage()
        return data

    def _deliver_waiting(self) -> None:
        """Give the messages that wait while something is asked their boundary with the next one:
        their senders would wait for one until the turn is over (section 7.6)."""
        for command_id in self._s.unsettled:
            self._deliver(command_id)

    def _stop(self, command_id: str) -> None:
        """Keep that a frontend has stopped what rests here, which the backend has yet to do."""
        self._s.stopping = command_id

    def _rests(self) -> bool:
        """Say whether the turn waits for an answer, and this face has shown nothing of one."""
        s = self._s
        return s.held and (s.turn is None if self._closed_form else bool(s.requests))

    def _rest_again(self) -> None:
        """Say once more that the turn rests, for who waits for a boundary with its delivery."""
        if self._closed_form:
            self._open_turn()
            self._write("turn.completed", self._c())
            self._wait()
        else:
            self._write("turn.waiting", self._waiting_on("input"))

    def _ends_unseen(self, event: ev.TurnEnded) -> bool:
        """Say whether the turn that ends is not to be shown: this face has shown its end already,
        at its pause, and nobody waits for another one. An empty turn would be taken for the answer
        to the next message by clients up to 0.44, which read to the first boundary (sections 7.5
        and 7.6); real servers of such turns say nothing either (section 8.2)."""
        s = self._s
        rests = s.held or s.stopping is not None
        if not self._closed_form or s.turn is not None or s.answering or not rests:
            return False
        return event.outcome in ("completed", "interrupted")

    def _turn_ended(self, event: ev.TurnEnded) -> None:
        s = self._s
        unseen = self._ends_unseen(event)
        s.held = s.pause_follows = False
        s.stopping = None
        if event.usage is not None:
            s.usage = _usage(event.usage)
        if event.native is not None and event.native.type in _SESSION_ENDS:
            # An eve whose session fails says no more of the turn.
            s.turn = s.step = None
            return
        if event.outcome == "interrupted":
            # What is still to come has not been stopped, and is a turn of its own.
            s.beside.clear()
        if unseen:
            s.refused = [refused for refused in s.refused if not _is_withdrawn_beside(refused)]
            self._show_refused()
            return
        self._in_turn()
        if s.beside:
            self._fold(event)
            return
        self._close_step("stop" if event.outcome == "completed" else "other")
        self._end_with_beside(event.outcome, event.error, event)

    def _fold(self, event: ev.TurnEnded) -> None:
        """Go on in a turn that is over with what was said beside its answers. The token generation
        does both in one turn (section 8.2), and its clients read to the first boundary (section
        7.5): behind one, the answer to the message would be the answer to their next one."""
        s = self._s
        if event.outcome not in ("completed", "interrupted") and not s.step_failed:
            self._in_step()
            data = {**self._cs(), **_failure(event.error, event.outcome)}
            self._write("step.failed", data)
            s.step = None
        self._close_step("stop" if event.outcome == "completed" else "other")
        s.text = s.reasoning = ""
        error = None if event.error is None else event.error.model_dump(exclude_none=True)
        s.folded = {"outcome": event.outcome, "error": error}

    def _end_folded(self, folded: dict[str, Any]) -> None:
        """End a turn that went on for a message that came to nothing."""
        error = None if folded["error"] is None else ev.ErrorInfo(**folded["error"])
        self._end_with_beside(folded["outcome"], error)

    def _end_with_beside(
        self, outcome: str, error: ev.ErrorInfo | None, event: ev.TurnEnded | None = None
    ) -> None:
        """End a turn; what was said beside its answers and not taken is told with it."""
        for refused in self._take_refused_beside():
            if outcome == "completed" and "error" in refused:
                outcome, error = "failed", ev.ErrorInfo(**refused["error"])
        self._end_turn(outcome, error, event)

    def _show_refused_beside(self) -> None:
        """Show, while something is asked, what was said beside answers and not taken: by a step,
        since a turn that fails would say that nothing is asked any more."""
        for refused in self._take_refused_beside():
            if "error" in refused:
                self._start_step(None)
                failure = _failure(ev.ErrorInfo(**refused["error"]), "failed")
                self._write("step.failed", {**self._cs(), **failure})
                self._s.step = None

    def _take_refused_beside(self) -> list[dict[str, Any]]:
        """Return what was said beside answers and not taken, once it is shown that it was said."""
        s = self._s
        mine = [refused for refused in s.refused if "shown" in refused]
        s.refused = [refused for refused in s.refused if "shown" not in refused]
        for refused in mine:
            self._deliver(refused["id"])
            if not refused["shown"]:
                words, parts = refused["message"]
                self._write("message.received", {**self._c(), "message": words, "parts": parts})
        return mine

    def _show_beside(self) -> None:
        """Show what was said beside answers before the work that they lead to, as the token
        generation does (section 8.2)."""
        s = self._s
        for command_id, shown in s.beside.items():
            if shown:
                continue
            s.beside[command_id] = True
            self._deliver(command_id)
            words, parts = s.unsettled.get(command_id) or s.taken[command_id]
            self._write("message.received", {**self._c(), "message": words, "parts": parts})

    def _end_turn(
        self, outcome: str, error: ev.ErrorInfo | None, event: ev.TurnEnded | None = None
    ) -> None:
        if outcome == "completed":
            self._write("turn.completed", self._c(), event)
        elif outcome == "interrupted":
            self._write("turn.cancelled", self._c(), event)
        else:
            data = {**self._c(), **_failure(error, outcome)}
            if self._form != "tokens":
                data["terminal"] = False
                if event is not None and _is_native(event):
                    data["terminal"] = (event.extra or {}).get("terminal", False)
            self._write("turn.failed", data, event)
        self._s.text = self._s.reasoning = ""
        if event is not None and (event.extra or {}).get(wire.BOUNDARY) is False:
            # The session ends with this turn, and nothing waits.
            self._s.turn = None
            return
        self._wait(event)
        self._show_refused()

    # Inputs.

    def _input_accepted(self, event: ev.InputAccepted) -> None:
        number = (event.details or {}).get("eve_token")
        if isinstance(number, int):
            self._s.used = max(self._s.used, number)
        if event.request_id is not None:
            # Its sender reads to the next boundary.
            self._s.answering = True
        if event.kind == "interrupt" and self._s.held:
            self._stop(event.command_id)
        if event.kind == "control" and event.name in ("compact", "clear"):
            self._s.controls.append(event.command_id)
        if event.kind in ("message", "steer"):
            self._s.unsettled[event.command_id] = [
                _flat(event.content),
                _parts(event.content, self._form),
            ]
            if event.request_id is not None:
                self._s.unsettled_answers.append(event.command_id)
            if self._closed_form and (event.details or {}).get("beside"):
                self._s.beside[event.command_id] = False

    def _input_settled(self, event: ev.InputSettled) -> None:
        s = self._s
        if event.command_id == s.stopping and event.outcome != "taken":
            s.stopping = None
            if self._rests() and s.unsettled:
                self._deliver_waiting()
                self._rest_again()
        if event.command_id in s.controls:
            self._control_settled(event)
        message = s.unsettled.pop(event.command_id, None)
        if message is None:
            return
        if event.command_id in s.unsettled_answers:
            s.unsettled_answers.remove(event.command_id)
        if event.outcome == "taken":
            s.taken[event.command_id] = message
            if s.opening is not None:
                self._deliver(event.command_id)
                self._in_turn()
            return
        if s.opening is not None:
            self._in_turn()
        error = event.error or ev.ErrorInfo(
            code=f"input_{event.outcome}",
            message=event.reason or f"The message was {event.outcome}.",
        )
        refused: dict[str, Any] = {"id": event.command_id, "message": message}
        if event.outcome != "withdrawn":
            refused["error"] = error.model_dump(exclude_none=True)
        if event.command_id in s.beside:
            refused["shown"] = s.beside.pop(event.command_id)
        s.refused.append(refused)
        if s.folded is not None and not s.beside:
            self._end_folded(s.folded)
        elif self._rests() and not _is_withdrawn_beside(refused):
            # What is asked is asked still: a turn that fails now would say that it is over.
            self._deliver(event.command_id)
            if not s.pause_follows:
                self._rest_again()
        elif s.turn is None and not self._rests():
            self._show_refused()

    def _control_settled(self, event: ev.InputSettled) -> None:
        """End a control; its sender reads to the next boundary, also where it came to nothing."""
        self._s.controls.remove(event.command_id)
        if event.outcome != "taken" and self._s.turn is None and not self._rests():
            self._wait()

    def _show_refused(self) -> None:
        """Show messages that were not taken, each as a turn of its own: the sender waits for a
        boundary that carries its delivery (section 7.6), and that of another turn would show the
        message as done."""
        s = self._s
        refused, s.refused = s.refused, []
        for item in refused:
            s.deliveries = [item["id"]]
            self._deliveries_changed()
            self._open_turn()
            words, parts = item["message"]
            self._write("message.received", {**self._c(), "message": words, "parts": parts})
            if "error" in item:
                self._end_turn("failed", ev.ErrorInfo(**item["error"]))
            else:
                self._end_turn("interrupted", None)

    def _message_received(self, event: ev.MessageReceived) -> None:
        if event.command_id is not None:
            self._s.taken.pop(event.command_id, None)
            self._deliver(event.command_id)
            if self._s.beside.pop(event.command_id, False):
                return
        self._heard(event, _flat(event.content), _parts(event.content, self._form))

    def _guidance_received(self, event: ev.GuidanceReceived) -> None:
        if event.command_id is not None:
            self._s.taken.pop(event.command_id, None)
            self._deliver(event.command_id)
        self._heard(event, event.text, [{"type": "text", "text": event.text}])

    def _heard(self, event: ev.Event, words: str, parts: list[dict[str, Any]]) -> None:
        self._in_turn()
        self._write("message.received", {**self._c(), "message": words, "parts": parts}, event)

    # Steps and text.

    def _step_started(self, event: ev.StepStarted) -> None:
        if event.model is not None:
            self._s.model = event.model
        if self._unheard():
            return
        self._in_turn()
        s = self._s
        if s.step is not None and s.step_implied:
            # A busy 0.30.8 tells the first words of a step before the step.
            s.step_implied, s.first_step = False, event.step_index - s.step
            s.step_native = _is_native(event) and not event.synthetic
            return
        self._close_step()
        self._start_step(event.model, event)

    def _step_ended(self, event: ev.StepEnded) -> None:
        s = self._s
        if event.usage is not None:
            self._count(event.usage)
        if s.step is None:
            return
        if event.synthetic and s.step_native:
            # An eve leaves a step open that is cut off.
            s.step = None
            return
        data = self._cs()
        if event.error is not None:
            self._write("step.failed", {**data, **_failure(event.error, "failed")}, event)
            s.step_failed = True
        else:
            data["finishReason"] = self._finish_reason(event.finish_reason)
            if event.usage is not None:
                data["usage"] = _usage(event.usage)
            self._write("step.completed", data, event)
        s.step = None

    def _count(self, usage: ev.Usage) -> None:
        for name, value in _usage(usage).items():
            self._s.usage[name] = self._s.usage.get(name, 0) + value

    def _delta(self, piece: str, is_text: bool) -> None:
        s = self._s
        if s.step is None or s.turn is None:
            self._in_step()
            s.step_implied = True
        if is_text:
            s.text_open = True
        kind = "text" if is_text else "reasoning"
        if s.unwritten_kind is not None and s.unwritten_kind != kind:
            self._flush_delta()
        if self._cumulative:
            so_far = len(s.text if is_text else s.reasoning)
            # Up to here every delta is a record of its own. Beyond it a record waits until it adds
            # a 64th of the block: 256 kB in deltas of 8 bytes stay under 80 times their text.
            if so_far > 4096:
                s.unwritten += piece
                s.unwritten_kind = kind
                if len(s.unwritten) * 64 >= so_far:
                    self._flush_delta()
                return
        self._write_delta(piece, is_text)

    def _write_delta(self, piece: str, is_text: bool) -> None:
        """Write the record that `_append` would, in one piece: nearly all records are deltas."""
        s = self._s
        cumulative = b""
        piece_json = on_one_line(orjson.dumps(piece))
        if is_text:
            if self._cumulative:
                before = s.text
                s.text = before + piece
                cumulative = b',"messageSoFar":%b' % self._carry_on(before, s.text, piece_json)
            record = _TEXT_RECORD
        else:
            if self._cumulative:
                before = s.reasoning
                s.reasoning = before + piece
                cumulative = b',"reasoningSoFar":%b' % self._carry_on(
                    before, s.reasoning, piece_json
                )
            record = _REASONING_RECORD
        n = s.records
        s.records = self.next_cursor = n + 1
        line = record % (
            piece_json,
            cumulative,
            s.turn,
            s.step,
            s.turn,
            self._time(),
            self._id_prefix,
            n,
            self._deliveries_json,
        )
        self._out.append(Frame(n, line))

    def _carry_on(self, before: str, text: str, piece_json: bytes) -> bytes:
        """Return the JSON of a text that has grown by a piece, from that of what it was before.

        A text that grows is not written from its beginning each time.
        """
        carried, json = self._carried if before else _NOTHING
        if carried is not before:
            json = on_one_line(orjson.dumps(before))
        json = json[:-1] + piece_json[1:]
        self._carried = text, json
        return json

    def _flush_delta(self) -> None:
        s = self._s
        piece, kind = s.unwritten, s.unwritten_kind
        s.unwritten, s.unwritten_kind = "", None
        if piece:
            self._write_delta(piece, kind == "text")

    def _text_completed(self, event: ev.TextCompleted) -> None:
        if self._s.unwritten_kind == "text":
            self._flush_delta()
        self._s.text, self._s.step_implied = "", False
        self._carried = _NOTHING
        # A block that was cut stays open: half a text must not look like an answer (traps, 8).
        if event.status != "complete":
            return
        self._in_step()
        self._s.text_open = False
        reason = event.finish_reason
        self._write(
            "message.completed",
            {
                **self._cs(),
                "message": event.text,
                "finishReason": reason if reason in FINISH_REASONS else "stop",
            },
            event,
        )

    def _reasoning_completed(self, event: ev.ReasoningCompleted) -> None:
        if self._s.unwritten_kind == "reasoning":
            self._flush_delta()
        self._s.reasoning, self._s.step_implied = "", False
        self._carried = _NOTHING
        if event.status != "complete":
            return
        self._in_step()
        self._write("reasoning.completed", {**self._cs(), "reasoning": event.text}, event)

    def _result_produced(self, event: ev.ResultProduced) -> None:
        if _is_native(event):
            # An eve tells it after its step.
            self._in_turn()
        else:
            self._in_step()
        self._write("result.completed", {**self._cs(), "result": event.value}, event)

    # Tools.

    def _tool_input_delta(self, event: ev.ToolInputDelta) -> None:
        # Version 24 would need an offset and 21 has no such record (sections 1.1 and 13).
        if self._form == "newest":
            self._in_step()
            self._write(
                "action.input.appended",
                {
                    **self._cs(),
                    "callId": event.call_id,
                    "toolName": event.name or "unknown",
                    "inputTextDelta": event.text,
                },
                event,
            )

    def _tool_called(self, event: ev.ToolCalled) -> None:
        self._in_step()
        self._s.calls[event.call_id] = {"name": event.name, "kind": event.kind}
        action = {**self._action(event), **_object_members(event)}
        data: dict[str, Any] = {**self._cs(), "actions": [action]}
        if event.label is not None and self._form != "tokens":
            data["presentation"] = {event.call_id: {"label": event.label}}
        self._write("actions.requested", data, event)

    def _action(self, event: ev.ToolCalled) -> dict[str, Any]:
        input_ = _input(event)
        base = {"callId": event.call_id, "input": input_}
        match event.kind:
            case "subagent":
                return base | {
                    "kind": "subagent-call",
                    "name": event.name,
                    "subagentName": event.name,
                    "nodeId": event.name,
                    "description": event.label or event.name,
                }
            case "remote":
                return base | {
                    "kind": "remote-agent-call",
                    "name": event.name,
                    "remoteAgentName": event.name,
                    "nodeId": event.name,
                    "description": event.label or event.name,
                }
            case "skill":
                return base | {"kind": "load-skill", "name": event.name}
            case "workflow" if self._form == "newest":
                return base | {
                    "kind": "workflow-tool-call",
                    "toolName": event.name,
                    "workflowId": event.name,
                }
            case _:
                return base | {"kind": "tool-call", "toolName": event.name}

    def _tool_progressed(self, event: ev.ToolProgressed) -> None:
        call = self._s.calls.get(event.call_id, {"name": "unknown"})
        self._in_turn()
        result = {
            "kind": "tool-result",
            "callId": event.call_id,
            "toolName": call["name"],
            "output": event.output,
            **_object_members(event),
        }
        self._write("action.partial", {**self._cs(), "result": result}, event)

    def _tool_returned(self, event: ev.ToolReturned) -> None:
        call = self._s.calls.pop(event.call_id, None) or {"name": "unknown", "kind": "builtin"}
        waited_for = event.call_id in self._s.unreturned
        if waited_for:
            self._s.unreturned.remove(event.call_id)
        code = None if event.error is None else event.error.code
        abandoned = event.synthetic and code in (ABANDONED, wire.DISCARDED)
        if abandoned and not waited_for:
            # Only closes the call; eve never writes a result that did not come (traps, 15).
            return
        output = event.output
        if output is None and event.content is not None:
            output = [
                block.model_dump(mode="json", exclude_defaults=True) for block in event.content
            ]
        result: dict[str, Any] = {"callId": event.call_id, "output": output}
        told = _object_members(event)
        kind = call["kind"]
        if told.get("kind") == "tool-result":
            # An S2 reports a task's receipt as a tool's (section 9.3).
            kind = "builtin"
        match kind:
            case "subagent" | "remote":
                result |= {
                    "kind": "subagent-result",
                    "subagentName": call["name"],
                    "origin": "child",
                }
            case "skill":
                result |= {"kind": "load-skill-result", "name": call["name"]}
            case _:
                result |= {"kind": "tool-result", "toolName": call["name"]}
        status = event.status
        if status == "interrupted" or (status == "completed" and event.is_error):
            status = "failed"
        # A result of a call that was denied comes with the old turn's coordinates (section 8.2),
        # and so does that of one which is left behind; any other is work, which a closed pause has
        # none of.
        if not (self._s.held and (abandoned or event.status == "rejected")):
            self._in_turn()
            self._show_beside()
        if event.is_error or status == "failed":
            result["isError"] = True
        data: dict[str, Any] = {**self._cs(), "result": result, "status": status}
        if status != "completed":
            data["error"] = _result_error(event, status)
            if _is_native(event) and event.error is not None and event.error.details:
                details = dict(event.error.details)
                if "errorName" in details:
                    result["errorName"] = details.pop("errorName")
                data["error"] = {**details, **data["error"]}
        told.pop("name", None)
        data["result"] = {**result, **told}
        self._write("action.result", data, event)

    # Interactions.

    def _interaction_requested(self, event: ev.InteractionRequested) -> None:
        self._in_turn()
        if event.kind == "authorization":
            self._sign_in(event)
            return
        request = self._request(event)
        data: dict[str, Any] = {**self._cs(), "requests": [request]}
        if self._form == "newest" and event.thread_id != self._context.thread_id:
            data["callId"] = request["action"]["callId"]
        kept = self._s.requests[event.request_id] = {"kind": request["kind"], "data": data}
        if event.call_id in self._s.calls:
            allows = (o.id for o in offered_options(event) if decision_of(o)[0] == "allow")
            kept |= {"call": event.call_id, "allows": next(allows, None)}
        self._write("input.requested", data, event)

    def _interaction_answered(self, event: ev.InteractionAnswered) -> None:
        """Ask once more what was answered in vain: who answered was told that it is accepted.

        Under another name, since clients of 0.80 pass over a request that they have seen; between
        turns with the coordinates of the first time, so that a reducer finds the call that waits
        (section 8.2).
        """
        if event.state == "released":
            self._s.pause_follows = True
        request = self._s.requests.get(event.request_id)
        if event.state != "released" or not request or "data" not in request:
            return
        data = request["data"]
        (asked,) = data["requests"]
        if self._s.turn is not None:
            data |= self._cs()
        if self._form != "tokens":
            invalid = {name: asked[name] for name in ("requestId", "kind")} | {"outcome": "invalid"}
            place = {name: data[name] for name in ("sequence", "turnId", "stepIndex")}
            self._write("input.resolved", {**place, "resolutions": [invalid]})
        request["times"] = request.get("times", 1) + 1
        asked["requestId"] = name_again(event.request_id, request["times"])
        self._write("input.requested", data)

    def _request(self, event: ev.InteractionRequested) -> dict[str, Any]:
        details = event.details or {}
        sealed = event.kind in ev.SEALED_KINDS
        options = offered_options(event)
        kind = {"approval": "tool-approval", "limit": "session-limit"}.get(event.kind, "question")
        call_id = event.call_id or event.request_id
        if event.kind == "limit":
            name = LIMIT_TOOL
        elif event.call_id is not None and event.call_id in self._s.calls:
            name = self._s.calls[event.call_id]["name"]
        else:
            name = details.get("tool") or (QUESTION_TOOL if kind == "question" else "permission")
        input_ = details.get("input", details)
        if event.kind == "limit":
            input_ = {_LIMIT_MEMBERS.get(name, name): value for name, value in details.items()}
        if not isinstance(input_, dict):
            input_ = {"value": input_}
        if not input_ and event.kind != "approval":
            input_ = {"prompt": event.prompt}
        request: dict[str, Any] = {
            "requestId": event.request_id,
            "kind": kind,
            "prompt": _prompt(event, name),
            "action": {"kind": "tool-call", "callId": call_id, "toolName": name, "input": input_},
            "allowFreeform": not sealed and (event.freeform or not options),
        }
        if kind in ("tool-approval", "session-limit"):
            request["display"] = "confirmation"
        else:
            request["display"] = "select" if options else "text"
        if options:
            request["options"] = [_option(option) for option in options]
        return {**request, **_object_members(event)}

    def _sign_in(self, event: ev.InteractionRequested) -> None:
        details = event.details or {}
        name = details.get("service") or "sign-in"
        self._s.requests[event.request_id] = {"kind": "authorization", "name": name}
        data: dict[str, Any] = {**self._cs(), "name": name, "description": event.prompt}
        shown = {
            ours: details[theirs]
            for theirs, ours in _SIGN_IN_MEMBERS.items()
            if details.get(theirs) is not None
        }
        if event.expires_at is not None:
            moment = datetime.datetime.fromtimestamp(event.expires_at / 1000, datetime.UTC)
            shown["expiresAt"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = _object_members(event)
        if _is_native(event) and "expires_at" in details:
            shown["expiresAt"] = details["expires_at"]
        shown |= told.pop("authorization", {})
        if shown:
            data["authorization"] = shown
        if self._form != "tokens":
            data["attemptId"] = event.request_id
        extra = event.extra or {}
        if extra.get(wire.WEBHOOK) is True:
            attempt = None if self._form == "tokens" else event.request_id
            secret, session_id = self._context.secret, self._context.session_id
            data["webhookUrl"] = webhook_path(secret, session_id, name, event.request_id, attempt)
        told.pop(wire.WEBHOOK, None)
        self._write("authorization.required", {**told, **data})

    def _interaction_resolved(self, event: ev.InteractionResolved) -> None:
        request = self._s.requests.pop(event.request_id, None)
        if request is None:
            return
        if request["kind"] == "authorization":
            completed: dict[str, Any] = {
                **_object_members(event),
                **self._cs(),
                "name": request["name"],
                "outcome": _SIGN_IN_OUTCOMES[event.outcome],
            }
            if event.reason is not None:
                completed["reason"] = event.reason
            if self._form != "tokens":
                completed["attemptId"] = event.request_id
                if event.by is not None:
                    completed["principalId"] = event.by
            self._write("authorization.completed", completed)
            # Who waits for a sign-in reads on over the boundary of its pause (section 7.6).
            self._s.answering = True
            return
        # The token generation proves an answer by its effects only (section 14).
        if self._form == "tokens":
            return
        name = name_again(event.request_id, request.get("times", 1))
        told = _object_members(event)
        settled = told.pop(wire.SETTLED, {})
        native = event.native if _is_native(event) else None
        if (
            self._form == "newest"
            and request["kind"] == "tool-approval"
            and (native is None or native.type != "input.resolved")
        ):
            self._write(
                "approval.settled",
                {
                    **settled,
                    **self._cs(),
                    "requestId": name,
                    "outcome": "approved" if event.outcome == "approved" else "cancelled",
                    "responderPrincipalId": event.by or "unknown",
                },
            )
        resolution: dict[str, Any] = {
            "requestId": name,
            "kind": request["kind"],
            "outcome": _OUTCOMES[event.outcome],
        }
        if request["kind"] == "session-limit" and event.outcome in ("approved", "denied"):
            # What was chosen is in the response (section 9.4).
            resolution["outcome"] = "answered"
        if event.answer is not None:
            response: dict[str, Any] = {"requestId": name}
            if event.answer.option_ids:
                response["optionId"] = event.answer.option_ids[0]
            words = event.answer.text if event.answer.text is not None else event.answer.reason
            if words is not None:
                response["text"] = words
            resolution["response"] = response
        self._settle_call(request, resolution)
        data = {**self._cs(), "resolutions": [{**told, **resolution}]}
        self._write("input.resolved", data, event)

    def _settle_call(self, request: dict[str, Any], resolution: dict[str, Any]) -> None:
        """Make the resolution of an approval one that every release shows well in the closed form.

        The terminal program of 0.80 takes a call that was `approved` for one that was interrupted,
        since its turn is closed; `answered` lets it wait for the result. It waits for ever where
        none comes, and hides all that was said: so the result of such a call is always told. The
        reducers of 0.44 to 0.64 take what they have back where the resolution comes after the
        result; 0.71 shows a call as interrupted that is answered outside of a turn, and as done
        where there is no response.
        """
        call_id = request.get("call")
        if self._form != "all" or request["kind"] != "tool-approval" or call_id is None:
            return
        if call_id not in self._s.calls:
            # Left behind already, with its turn: nobody ignored it.
            if resolution["outcome"] == "ignored":
                resolution["outcome"] = "cancelled"
            return
        if resolution["outcome"] in ("approved", "answered"):
            response = resolution.setdefault("response", {"requestId": resolution["requestId"]})
            if resolution["outcome"] == "approved" and request["allows"] is not None:
                # What it came to is in the option now.
                response.setdefault("optionId", request["allows"])
            resolution["outcome"] = "answered"
            self._in_turn()
        if resolution["outcome"] in ("answered", "ignored", "invalid"):
            self._s.unreturned.append(call_id)

    # The session.

    def _session_ended(self, event: ev.SessionEnded) -> None:
        if self._s.ended:
            return
        self._s.ended = True
        if self._s.turn is not None:
            # Opened by what came between two turns; the turns of the log are over.
            self._close_step()
            self._write("turn.cancelled", self._c())
            self._s.turn = None
        if event.outcome == "failed":
            failure = _failure(event.error, "failed")
            self._write(
                "session.failed", {**failure, "sessionId": self._context.session_id}, end=True
            )
        elif self._form == "tokens":
            self._write("session.completed", None, end=True)
        else:
            self._write("session.completed", {"usage": self._session_usage()}, end=True)

    def _context_compacted(self, event: ev.ContextCompacted) -> None:
        s = self._s
        inside = s.turn is not None
        coordinates = self._control()
        data = {
            **coordinates,
            "modelId": event.model or s.model or UNKNOWN_MODEL,
            "sessionId": self._context.session_id,
        }
        if event.phase == "started" or not s.compacting:
            requested = {**data, "usageInputTokens": event.before_tokens}
            started = event.phase == "started"
            self._write("compaction.requested", requested, event if started else None)
        s.compacting = event.phase == "started"
        if event.phase == "completed":
            self._write("compaction.completed", data, event)
            if not inside:
                self._wait()

    def _context_cleared(self, event: ev.ContextCleared) -> None:
        inside = self._s.turn is not None
        data = {**self._control(), "sessionId": self._context.session_id}
        # It has no step (section 9.1).
        data.pop("stepIndex", None)
        self._write("context.cleared", data, event)
        if not inside:
            self._wait()

    def _control(self) -> dict[str, Any]:
        """Return the coordinates of a control record: between turns it names the next one (section
        6)."""
        self._s.control = self._s.turn is None
        number = self._s.turn if self._s.turn is not None else self._s.sequence
        data: dict[str, Any] = {"sequence": number, "turnId": f"turn_{number}"}
        if self._form != "tokens":
            data["stepIndex"] = self._s.step or 0
        return data

    def _gap(self, event: ev.Gap) -> None:
        data: dict[str, Any] = {"reason": event.reason}
        if event.cursor_from is not None:
            data["from"] = event.cursor_from
        if event.cursor_to is not None:
            data["to"] = event.cursor_to
        # Unknown types pass through every client untouched (section 7.5).
        self._write("dragoman.gap", data)

    def _native(self, event: ev.Native) -> None:
        """Write what only an eve says, with our coordinates."""
        frame = event.frame
        if event.dialect != wire.DIALECT or not isinstance(frame, dict):
            return
        if event.extra is not None and wire.LATE in event.extra:
            # With the coordinates of now it would be of another turn.
            return
        if not (self._s.started or self._s.intro):
            # Nothing comes before the first turn.
            return
        if event.name == "session.waiting":
            self._wait(event)
            return
        data = frame.get("data")
        if isinstance(data, dict):
            ours = {**self._cs(), "sessionId": self._context.session_id}
            data = {**data, **{name: ours[name] for name in ours if name in data}}
        self._write(event.name or "unknown", data)

    # Child threads.

    def _thread_started(self, event: ev.ThreadStarted) -> None:
        if event.parent != self._context.thread_id:
            return
        s = self._s
        name = event.name or "agent"
        call_id = event.call_id or event.thread_id
        s.threads[event.thread_id] = {"name": name, "call": call_id, "kind": event.kind}
        self._in_turn()
        if self._form == "newest":
            task_id = event.task_id or event.thread_id
            kind = "tool" if event.kind == "tool" else "agent"
            self._write(
                "task.started",
                {
                    "callId": call_id,
                    **_turn_only(self._c()),
                    "taskId": task_id,
                    "name": name,
                    "kind": kind,
                },
                event,
            )
            s.threads[event.thread_id]["task"] = task_id
            if event.native is None or event.native.type != "task.started":
                self._agent_started(event.thread_id)
            return
        told = (event.extra or {}) if _is_native(event) else {}
        self._write(
            "subagent.called",
            {
                "toolName": name,
                "workflowId": name,
                **told,
                "callId": call_id,
                "childSessionId": event.thread_id,
                "sessionId": self._context.session_id,
                **self._c(),
                "name": name,
            },
        )

    def _agent_started(self, thread_id: str, event: ev.Event | None = None) -> None:
        """Say where the stream of a child is; a tool that runs as a task has none (section 10)."""
        child = self._s.threads[thread_id]
        self._write(
            "agent.started",
            {
                "callId": child["call"],
                **_turn_only(self._c()),
                "taskId": child["task"],
                "name": child["name"],
                "sessionId": thread_id,
                "streamPath": path_of(wire.SESSION_PATH, thread_id, "stream"),
            },
            event,
        )

    def _thread_message(self, event: ev.ThreadMessage) -> None:
        """Show on a child's own stream what its parent and it say to each other, where its backend
        tells nothing else of it: an unmodified client follows that stream (section 10)."""
        s = self._s
        own = self._context.thread_id
        if own not in (event.sender, event.recipient) or own == ev.MAIN:
            return
        if s.sequence and not s.relayed:
            # It has turns of its own, and they say it.
            return
        s.relayed = True
        self._in_turn()
        if event.recipient == own:
            parts = _parts(event.content, self._form)
            data = {**self._c(), "message": _flat(event.content), "parts": parts}
            self._write("message.received", data)
        else:
            self._relay(_flat(event.content))

    def _relay(self, words: str) -> None:
        self._in_step()
        data = {**self._cs(), "message": words, "finishReason": "stop"}
        self._write("message.completed", data)
        self._s.relayed_text = words

    def _end_relayed(self, event: ev.ThreadEnded) -> None:
        """End the one turn of a child whose backend told only what it said."""
        s = self._s
        if s.sequence and not (s.relayed and s.turn is not None):
            return
        output = event.output
        if output is not None:
            words = output if isinstance(output, str) else format_json(output).decode()
            if words != s.relayed_text:
                self._relay(words)
        self._in_turn()
        self._close_step("stop")
        outcomes = {"failed": "failed", "cancelled": "interrupted"}
        self._end_turn(outcomes.get(event.status, "completed"), event.error)
        s.relayed = False

    def _thread_ended(self, event: ev.ThreadEnded) -> None:
        if event.thread_id == self._context.thread_id:
            self._end_relayed(event)
            return
        child = self._s.threads.pop(event.thread_id, None)
        if child is None:
            return
        output = event.output
        if self._form == "newest":
            data: dict[str, Any] = {
                "callId": child["call"],
                **_turn_only(self._c()),
                "taskId": child.get("task", event.thread_id),
                "name": child["name"],
                "kind": "tool" if child["kind"] == "tool" else "agent",
                "status": event.status,
            }
            if output is not None:
                data["output"] = output
            if event.error is not None:
                data["error"] = {"message": event.error.message}
            self._write("task.settled", data, event)
            return
        if event.error is not None:
            output = event.error.message
        text = output if isinstance(output, str) else format_json(output).decode()
        self._write(
            "subagent.completed",
            {"callId": child["call"], "subagentName": child["name"], "output": text},
            event,
        )


_OF_REQUESTS = frozenset({"interaction.answered", "interaction.resolved"})

_HANDLERS: dict[str, Callable[[EveEncoder, Any], None]] = {
    type_: getattr(EveEncoder, "_" + type_.replace(".", "_"))
    for type_ in ev.EVENT_TYPES
    if hasattr(EveEncoder, "_" + type_.replace(".", "_"))
}
"""Type of an event -> the method that shows it."""

_BEFORE_THE_TURN = frozenset(
    {"input.accepted", "input.settled", "message.received", "guidance.received"}
)
"""What may still say whose a turn is that has begun. All else is of the turn, or after it."""

_ACROSS_THREADS = frozenset(
    {"thread.started", "thread.updated", "thread.ended", "thread.message", "session.ended"}
)
"""What the stream of one thread shows of others: children, what is said to them, and the end of
all."""


def _is_withdrawn_beside(refused: dict[str, Any]) -> bool:
    """Say whether nobody waits to hear of a message that was not taken: it came with answers, whose
    boundary has been told, and was withdrawn."""
    return "shown" in refused and "error" not in refused


def _is_native(event: ev.Event) -> bool:
    return event.native is not None and event.native.dialect == wire.DIALECT


def _object_members(event: ev.Event) -> dict[str, Any]:
    """Return the unknown members of the object that an event of `_NESTED` is about."""
    if not _is_native(event):
        return {}
    return {name: value for name, value in (event.extra or {}).items() if name != wire.FRAME}


def _frame_members(event: ev.Event) -> dict[str, Any]:
    """Return the unknown members that stood in the record itself, beside what it is about."""
    extra = event.extra or {}
    if event.TYPE in _NESTED:
        return cast("dict[str, Any]", extra.get(wire.FRAME, {}))
    return {name: value for name, value in extra.items() if name != wire.BOUNDARY}


_NESTED = frozenset(
    {
        "tool.called",
        "tool.progressed",
        "tool.returned",
        "interaction.requested",
        "interaction.resolved",
    }
)
"""Events that are about an object inside the frame: their `extra` is that object's."""


def _turn_only(coordinates: dict[str, Any]) -> dict[str, Any]:
    return {"turnId": coordinates["turnId"]}


def _flat(content: tuple[Any, ...] | None) -> str:
    """Return a message as one text: files as `[file: name (type)]`, a line per part (section
    9.1)."""
    lines = []
    for block in content or ():
        if isinstance(block, ev.File):
            kind = block.media_type or "image/*"
            lines.append(f"[file: {block.name or kind} ({kind})]")
        else:
            lines.append(block.text if isinstance(block, ev.Text) else ev.text_of((block,)))
    return "\n".join(lines)


def _parts(content: tuple[Any, ...] | None, form: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in content or ():
        if isinstance(block, ev.File):
            part: dict[str, Any] = {"type": "file", "mediaType": block.media_type or "image/*"}
            if block.name is not None:
                part["filename"] = block.name
            if block.size is not None and form != "tokens":
                part["size"] = block.size
            if isinstance(block.ref, ev.Url):
                part["url"] = block.ref.url
            parts.append(part)
        else:
            text = block.text if isinstance(block, ev.Text) else ev.text_of((block,))
            parts.append({"type": "text", "text": text})
    return parts


def _usage(usage: ev.Usage) -> dict[str, float]:
    pairs = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadTokens": usage.cache_read_tokens,
        "cacheWriteTokens": usage.cache_write_tokens,
        "costUsd": usage.cost_usd,
    }
    return {name: value for name, value in pairs.items() if value is not None}


def _failure(error: ev.ErrorInfo | None, outcome: str) -> dict[str, Any]:
    if error is None:
        return {"code": outcome.upper(), "message": f"The turn ended: {outcome}."}
    data: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.details:
        data["details"] = error.details
    return data


def _result_error(event: ev.ToolReturned, status: str) -> dict[str, str]:
    """Return the error that a result which is not completed must have (section 9.3)."""
    code = "TOOL_EXECUTION_DENIED" if status == "rejected" else "ACTION_RESULT_FAILED"
    if event.error is None:
        output = event.output if event.output is not None else ev.text_of(event.content)
        message = output if isinstance(output, str) else format_json(output).decode()
        return {"code": code, "message": message}
    return {
        "code": code if status == "rejected" else event.error.code,
        "message": event.error.message,
    }


def _input(event: ev.ToolCalled) -> dict[str, Any]:
    """Return a call's input as the object that an action must have (section 9.3)."""
    if isinstance(event.input, dict):
        return event.input
    if event.input is not None:
        return {"value": event.input}
    return {"preview": event.preview} if event.preview is not None else {}


def _prompt(event: ev.InteractionRequested, tool: str) -> str:
    if event.kind in ev.SEALED_KINDS:
        what = event.prompt or f"The agent asks for a {event.kind}."
        return f"{what} (It cannot be given here; decline, or answer it where secrets are taken.)"
    return event.prompt or f"Approve tool call: {tool}"


def _option(option: ev.Option) -> dict[str, Any]:
    data: dict[str, Any] = {"id": option.id, "label": option.label}
    if option.description is not None:
        data["description"] = option.description
    if option.style is not None:
        data["style"] = option.style
    return data
