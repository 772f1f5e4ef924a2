"""What an eve stream may say: the record shapes and the state machine of the eve page.

`RecordChecker` takes the records of one session in order, from its first one, and raises
`ProtocolViolation` with the record that breaks a promise of sections 7.5, 8 and 9. The order of
checks is: envelope, members that the declared stream version forbids, shape of the type, place in
the state machine.
"""

import collections
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.eve_shown import ShownCalls
from tests.support.strictness import ISO_MS, ProtocolViolation

__all__ = ["Form", "ProtocolViolation", "RecordChecker", "check_shape"]

Form = Literal["all", "tokens", "newest"]
"""What plays the server: `all` is the union of section 1.1 (version 24), `tokens` the token
generation (21 and lower), `newest` the session-ID generation with held turns (26)."""

Record = dict[str, Any]

_EVENT_ID = re.compile(r"^evt_[0-9A-HJKMNP-TV-Z]{26}$")

_FINISH = {"stop", "length", "content-filter", "tool-calls", "error", "other"}
_OUTCOMES = {"answered", "approved", "denied", "ignored", "cancelled", "invalid"}
_ACTION_KINDS = {
    "tool-call",
    "workflow-tool-call",
    "load-skill",
    "subagent-call",
    "remote-agent-call",
}
_RESULT_KINDS = {"tool-result", "load-skill-result", "subagent-result"}
_REQUEST_KINDS = {"tool-approval", "question", "session-limit"}
_DISPLAYS = {"confirmation", "select", "text"}
_REQUEST_MEMBERS = {
    "requestId",
    "kind",
    "prompt",
    "action",
    "display",
    "allowFreeform",
    "options",
}
_OPTION_MEMBERS = {"id", "label", "description", "style"}
_CUMULATIVE = (
    "messageSoFar",
    "messageOffset",
    "reasoningSoFar",
    "reasoningOffset",
    "inputTextOffset",
)
# Section 13: 26 brings the held turn and the tasks.
_HELD_VERSION = 26
_DELTA_ONLY_VERSION = 25

_SHOWN = 40
"""Records that a violation shows before its own."""


def _fail(reason: str, record: object) -> None:
    raise ProtocolViolation(reason, record)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_filled_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _is_number_or_null(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _anything(value: object) -> bool:
    return True


def _one_of(*allowed: str) -> Callable[[object], bool]:
    return lambda value: value in allowed


Test = Callable[[object], bool]
_C: Mapping[str, Test] = {"sequence": _is_count, "turnId": _is_name}
_CS: Mapping[str, Test] = {**_C, "stepIndex": _is_count}

# Section 9: the members that are always there.
_REQUIRED: Mapping[str, Mapping[str, Test]] = {
    "session.started": {},
    "turn.started": _C,
    "message.received": {**_C, "message": _is_text},
    "turn.completed": _C,
    "turn.failed": {**_C, "code": _is_name, "message": _is_text},
    "turn.cancelled": _C,
    "turn.waiting": {**_C, "on": _one_of("input", "tasks")},
    "session.waiting": {
        "continuationToken": _is_name,
        "wait": _one_of("next-user-message"),
    },
    "session.completed": {},
    "session.failed": {"code": _is_name, "message": _is_text, "sessionId": _is_name},
    "context.cleared": {**_C, "sessionId": _is_name},
    "compaction.requested": {
        **_C,
        "modelId": _is_text,
        "sessionId": _is_name,
        "usageInputTokens": _is_number_or_null,
    },
    "compaction.completed": {**_C, "modelId": _is_text, "sessionId": _is_name},
    "step.started": _CS,
    "step.completed": {**_CS, "finishReason": _one_of(*_FINISH)},
    "step.failed": {**_CS, "code": _is_name, "message": _is_text},
    "reasoning.appended": {**_CS, "reasoningDelta": _is_text},
    "reasoning.completed": {**_CS, "reasoning": _is_text},
    "message.appended": {**_CS, "messageDelta": _is_text},
    "message.completed": {**_CS, "finishReason": _one_of(*_FINISH)},
    "result.completed": {**_CS, "result": _anything},
    "action.input.appended": {
        **_CS,
        "callId": _is_name,
        "toolName": _is_name,
        "inputTextDelta": _is_text,
    },
    "actions.requested": {**_CS, "actions": _is_filled_list},
    "action.partial": {**_CS, "result": _is_object},
    "action.result": {
        **_CS,
        "result": _is_object,
        "status": _one_of("completed", "failed", "rejected"),
    },
    "input.requested": {**_CS, "requests": _is_filled_list},
    "input.resolved": {**_CS, "resolutions": _is_filled_list},
    "approval.settled": {
        **_CS,
        "requestId": _is_name,
        "outcome": _one_of("approved", "cancelled"),
        "responderPrincipalId": _is_name,
    },
    "authorization.required": {**_CS, "name": _is_name, "description": _is_text},
    "authorization.completed": {
        **_CS,
        "name": _is_name,
        "outcome": _one_of("authorized", "declined", "failed", "timed-out"),
    },
    "subagent.called": {
        **_C,
        "callId": _is_name,
        "childSessionId": _is_name,
        "sessionId": _is_name,
        "name": _is_name,
        "toolName": _is_name,
        "workflowId": _is_name,
    },
    "subagent.completed": {
        "callId": _is_name,
        "subagentName": _is_name,
        "output": _is_text,
    },
    "task.started": {
        "callId": _is_name,
        "turnId": _is_name,
        "taskId": _is_name,
        "name": _is_name,
        "kind": _one_of("agent", "tool"),
    },
    "agent.started": {
        "callId": _is_name,
        "turnId": _is_name,
        "name": _is_name,
        "sessionId": _is_name,
        "streamPath": _is_name,
    },
    "task.settled": {
        "callId": _is_name,
        "turnId": _is_name,
        "taskId": _is_name,
        "status": _one_of("completed", "failed", "cancelled"),
    },
}

_HELD_ONLY = {"turn.waiting", "task.started", "task.settled", "agent.started"}
_BEFORE_HELD_ONLY = {"subagent.called", "subagent.completed"}
_WITHOUT_DATA = {"session.completed"}
# Section 6: control events name the next turn although no turn is open.
_CONTROLS = {"context.cleared", "compaction.requested", "compaction.completed"}
_ENDS_TURN = {"turn.completed", "turn.failed", "turn.cancelled"}
_ENDS_SESSION = {"session.completed", "session.failed"}
_IN_STEP = {
    "reasoning.appended",
    "reasoning.completed",
    "message.appended",
    "message.completed",
    "action.input.appended",
    "actions.requested",
    "step.completed",
    "step.failed",
}


def check_shape(record: Record, version: int) -> None:
    """Check one record by itself: envelope and data (section 9) for a declared stream version.

    Raises:
        ProtocolViolation: with the record.
    """
    kind = _check_envelope(record)
    data = record.get("data", {})
    _check_versions(record, version)
    for name, test in _REQUIRED.get(kind, {}).items():
        if name not in data or not test(data[name]):
            _fail(f"`{kind}` without a valid `{name}`", record)
    if {"sequence", "turnId"} <= data.keys() and data["turnId"] != f"turn_{data['sequence']}":
        _fail("`turnId` is not `turn_<sequence>`", record)
    check = _SHAPES.get(kind)
    if check is not None:
        check(record, version)


def _check_versions(record: Record, version: int) -> None:
    kind, data = record["type"], record.get("data", {})
    if version >= _DELTA_ONLY_VERSION:
        for name in _CUMULATIVE:
            if name in data:
                _fail(f"version {version} forbids `{name}`", record)
    if (kind in _HELD_ONLY and version < _HELD_VERSION) or (
        kind in _BEFORE_HELD_ONLY and version >= _HELD_VERSION
    ):
        _fail(f"version {version} has no `{kind}`", record)


def _check_envelope(record: Record) -> str:
    kind = record.get("type")
    if not isinstance(kind, str) or not kind:
        raise ProtocolViolation("a record without `type`", record)
    if not record.keys() <= {"type", "data", "meta"}:
        _fail("a member that the envelope does not have", record)
    if not isinstance(record.get("data"), dict) and (kind not in _WITHOUT_DATA or "data" in record):
        _fail("a record without `data`", record)
    meta = record.get("meta")
    if not isinstance(meta, dict) or not meta.keys() <= {"id", "at", "deliveryIds"}:
        raise ProtocolViolation("a record without a valid `meta`", record)
    if not isinstance(meta.get("id"), str) or not _EVENT_ID.match(meta["id"]):
        _fail("`meta.id` is not `evt_` and a ULID", record)
    if not isinstance(meta.get("at"), str) or not ISO_MS.match(meta["at"]):
        _fail("`meta.at` is not an ISO time with milliseconds", record)
    deliveries = meta.get("deliveryIds", [""])
    if not isinstance(deliveries, list) or not all(isinstance(one, str) for one in deliveries):
        _fail("`meta.deliveryIds` is not a list of ids", record)
    return kind


def _check_cumulative(record: Record, version: int) -> None:
    if version >= _DELTA_ONLY_VERSION:
        return
    data = record["data"]
    channel = record["type"].removesuffix(".appended")
    delta, so_far = f"{channel}Delta", f"{channel}SoFar"
    if not isinstance(data.get(so_far), str):
        _fail(f"version {version} needs `{so_far}`", record)
    if not data[so_far].endswith(data[delta]):
        _fail(f"`{so_far}` does not end with `{delta}`", record)


def _check_message(record: Record, version: int) -> None:
    message = record["data"].get("message", 0)
    # Section 9.2: the token generation writes null for a message without text.
    if not isinstance(message, str) and not (message is None and version <= 21):
        _fail("`message.completed` without a valid `message`", record)


def _check_input(record: Record, version: int) -> None:
    if version == 24 and not _is_count(record["data"].get("inputTextOffset")):
        _fail("version 24 needs an integer `inputTextOffset`", record)


def _check_actions(record: Record, version: int) -> None:
    for action in record["data"]["actions"]:
        _check_action(action, record)


def _check_partial(record: Record, version: int) -> None:
    if record["data"]["result"].get("kind") not in _RESULT_KINDS:
        _fail("a partial result of an unknown kind", record)


def _check_requests(record: Record, version: int) -> None:
    for request in record["data"]["requests"]:
        _check_request(request, record)


def _check_resolutions(record: Record, version: int) -> None:
    for resolution in record["data"]["resolutions"]:
        _check_resolution(resolution, record)


def _check_parts(record: Record, version: int) -> None:
    for part in record["data"].get("parts", []):
        match part.get("type") if isinstance(part, dict) else None:
            case "text" if isinstance(part.get("text"), str):
                pass
            case "file" if isinstance(part.get("mediaType"), str):
                pass
            case _:
                _fail("a part that is neither text nor file", record)


def _check_action(action: object, record: Record) -> None:
    if not isinstance(action, dict) or action.get("kind") not in _ACTION_KINDS:
        raise ProtocolViolation("an action of an unknown kind", record)
    named = {
        "tool-call": ("toolName",),
        "workflow-tool-call": ("toolName", "workflowId"),
        "subagent-call": ("name", "subagentName", "nodeId", "description"),
        "remote-agent-call": ("name", "remoteAgentName", "nodeId", "description"),
    }.get(action["kind"], ())
    for name in ("callId", *named):
        if not _is_text(action.get(name)) or (name == "callId" and not action[name]):
            _fail(f"an action without `{name}`", record)
    if "input" not in action or not isinstance(action["input"], dict):
        _fail("an action without an `input` object", record)


def _check_result(record: Record, version: int) -> None:
    data = record["data"]
    result = data["result"]
    if result.get("kind") not in _RESULT_KINDS or not _is_name(result.get("callId")):
        _fail("a result of an unknown kind or without `callId`", record)
    if "output" not in result:
        _fail("a result without `output`", record)
    if result["kind"] == "tool-result" and not _is_name(result.get("toolName")):
        _fail("a result without `toolName`", record)
    if data["status"] != "completed":
        error = data.get("error")
        if not isinstance(error, dict) or not _is_name(error.get("code")):
            raise ProtocolViolation("a result that is not completed and has no `error`", record)
        if not _is_text(error.get("message")):
            _fail("an error without `message`", record)
    elif "error" in data:
        _fail("a completed result with an `error`", record)


def _check_request(request: object, record: Record) -> None:
    """Section 9.4: a request is a strict object."""
    if not isinstance(request, dict):
        raise ProtocolViolation("a request that is not an object", record)
    unknown = request.keys() - _REQUEST_MEMBERS
    if unknown:
        _fail(f"a request with the unknown member `{min(unknown)}`", record)
    if not _is_name(request.get("requestId")) or request.get("kind") not in _REQUEST_KINDS:
        _fail("a request without id or of an unknown kind", record)
    if not _is_text(request.get("prompt")):
        _fail("a request without `prompt`", record)
    action = request.get("action")
    if not isinstance(action, dict) or action.get("kind") != "tool-call":
        raise ProtocolViolation("a request without the call that it belongs to", record)
    _check_action(action, record)
    if "display" in request and request["display"] not in _DISPLAYS:
        _fail("a request with an unknown `display`", record)
    if "allowFreeform" in request and not _is_flag(request["allowFreeform"]):
        _fail("`allowFreeform` is not a boolean", record)
    options = request.get("options", [])
    if not isinstance(options, list):
        raise ProtocolViolation("`options` is not a list", record)
    for option in options:
        if not isinstance(option, dict) or not option.keys() <= _OPTION_MEMBERS:
            _fail("an option with an unknown member", record)
        if not _is_name(option.get("id")) or not _is_name(option.get("label")):
            _fail("an option without `id` or `label`", record)
        if option.get("style", "default") not in ("primary", "danger", "default"):
            _fail("an option of an unknown style", record)
    ids = [option["id"] for option in options]
    if len(set(ids)) != len(ids):
        _fail("two options with the same id", record)
    if not options and not request.get("allowFreeform", request["kind"] == "question"):
        _fail("a request that nothing can answer", record)


def _check_resolution(resolution: object, record: Record) -> None:
    if not isinstance(resolution, dict):
        raise ProtocolViolation("a resolution that is not an object", record)
    if not _is_name(resolution.get("requestId")) or resolution.get("kind") not in _REQUEST_KINDS:
        _fail("a resolution without id or kind", record)
    if resolution.get("outcome") not in _OUTCOMES:
        _fail("a resolution with an unknown outcome", record)


_SHAPES: Mapping[str, Callable[[Record, int], None]] = {
    "message.appended": _check_cumulative,
    "reasoning.appended": _check_cumulative,
    "action.input.appended": _check_input,
    "message.completed": _check_message,
    "message.received": _check_parts,
    "actions.requested": _check_actions,
    "action.result": _check_result,
    "action.partial": _check_partial,
    "input.requested": _check_requests,
    "input.resolved": _check_resolutions,
}


@dataclass(slots=True)
class _Open:
    """What is open in the session now."""

    turn: int | None = None
    step: int | None = None
    last_step: int = -1
    text: str | None = None
    reasoning: str | None = None
    paused: bool = False
    ended_turn: bool = False
    control: bool = False
    calls: dict[str, bool] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    sign_ins: set[str] = field(default_factory=set)


class RecordChecker:
    """Checks the records of one session in their order (section 8).

    Args:
        version: the stream version that the server declared.
        form: what plays the server.
        real: a real server: retried steps may repeat starts, and a session may fail in a turn
            (sections 8.1 and 8.2 report both); Dragoman has no retry to show.
        exact: a `message.completed` repeats its deltas. Off where the backend corrects itself.
        child: the stream of a child session, whose records may lack deliveries (section 9).
    """

    def __init__(
        self,
        version: int,
        *,
        form: Form = "all",
        real: bool = False,
        exact: bool = True,
        child: bool = False,
    ) -> None:
        """Start before the first record of the session."""
        self.version = version
        self._form = form
        self._real = real
        self._exact = exact
        self._held = version >= _HELD_VERSION
        self._open = _Open()
        self._ids: set[str] = set()
        self._next_turn = 0
        self._records = 0
        self._over = False
        self._last: collections.deque[Record] = collections.deque(maxlen=_SHOWN)
        self._child = child
        # A backend that we do not play shows calls as it does.
        self._shown = ShownCalls() if form == "all" and not real else None

    def check(self, record: Record) -> None:
        """Take the next record.

        Raises:
            ProtocolViolation: with the record, and a note of those before it.
        """
        try:
            self._check(record)
        except ProtocolViolation as violation:
            violation.add_note("\n".join(["after:", *map(repr, self._last)]))
            raise
        self._last.append(record)

    def _check(self, record: Record) -> None:
        check_shape(record, self.version)
        kind: str = record["type"]
        identity: str = record["meta"]["id"]
        if identity in self._ids:
            _fail("the same `meta.id` twice", record)
        self._ids.add(identity)
        if self._over:
            _fail("a record after the end of the session", record)
        if (self._records == 0) != (kind == "session.started") and not (
            self._real and kind == "session.started"
        ):
            _fail("a session starts with `session.started`, and once", record)
        self._records += 1
        if self._form == "all" and kind == "action.input.appended":
            _fail("the union of section 1.1 does not send `action.input.appended`", record)
        delivered = bool(record["meta"].get("deliveryIds")) or self._child
        if kind == "message.received" and self._form != "tokens" and not delivered:
            _fail("a received message without its `deliveryIds`", record)
        self._place(kind, record)
        if self._shown is not None:
            self._shown.take(record)

    def _place(self, kind: str, record: Record) -> None:
        data = record.get("data", {})
        if kind in _CONTROLS:
            self._control(record)
            return
        if kind in _ENDS_SESSION:
            if self._open.turn is not None and not self._real:
                _fail("a session ends inside of a turn", record)
            self._over = True
            return
        if kind == "session.started":
            return
        if kind == "session.waiting":
            self._session_waiting(record)
            return
        if kind == "turn.started":
            self._turn_started(record)
            return
        if kind not in _REQUIRED:
            return
        if self._open.turn is None:
            self._outside(kind, record)
            return
        if "sequence" in data and data["sequence"] != self._open.turn:
            _fail(f"a record of another turn than the open `turn_{self._open.turn}`", record)
        if kind in _ENDS_TURN:
            self._end_turn(record)
            return
        if kind in _IN_STEP:
            self._in_step(kind, record)
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, record)

    def _control(self, record: Record) -> None:
        """Sections 6 and 8.1: control events never open a turn."""
        opened = self._open.turn
        expected = self._next_turn if opened is None else opened
        if record["data"]["sequence"] != expected:
            _fail(f"a control event that does not name turn {expected}", record)
        if opened is None:
            self._open.control = True

    def _session_waiting(self, record: Record) -> None:
        if self._open.turn is not None:
            _fail("`session.waiting` inside of a turn", record)
        # Section 6: compact with nothing to do gives only a `session.waiting`.
        self._open.ended_turn = False
        self._open.control = False

    def _turn_started(self, record: Record) -> None:
        sequence = record["data"]["sequence"]
        if self._open.turn is not None:
            if self._real and sequence == self._open.turn:
                return
            _fail("a turn starts inside of a turn", record)
        if sequence != self._next_turn:
            _fail(f"turn {self._next_turn} was expected", record)
        if self._open.ended_turn or self._open.control:
            _fail("`session.waiting` must come before the next turn", record)
        held = self._open
        # Section 8.2: what was asked in a closed turn stays open until it is answered.
        self._open = _Open(turn=sequence, calls=held.calls, sign_ins=held.sign_ins)
        if not self._held:
            self._open.requests = held.requests
        self._next_turn = sequence + 1

    def _outside(self, kind: str, record: Record) -> None:
        """Section 8.2: what a closed pause may still say between two turns."""
        late = {
            "action.result",
            "input.resolved",
            "approval.settled",
            "authorization.completed",
            "subagent.completed",
            "task.settled",
            "agent.started",
        }
        if kind == "input.requested" and not self._real:
            self._asked_again(record)
            return
        if kind not in late:
            _fail("a record of a turn, and no turn is open", record)
        if kind == "action.result":
            if record["data"]["status"] == "completed":
                _fail("a completed result outside of a turn", record)
            self._answered(record)
        elif kind == "input.resolved":
            self._resolved(record)

    def _end_turn(self, record: Record) -> None:
        terminal = _is_flag(record["data"].get("terminal")) or self._form == "tokens"
        if record["type"] == "turn.failed" and not terminal:
            _fail("`turn.failed` without `terminal`", record)
        if record["type"] == "turn.completed" and self._open.text is not None:
            _fail("a turn completes while a message is open", record)
        if self._held and self._open.requests:
            _fail("a held turn ends while a request is open", record)
        if not self._held and record["type"] != "turn.completed":
            self._open.requests.clear()
        self._open.turn = None
        self._open.step = None
        self._open.ended_turn = True

    def _in_step(self, kind: str, record: Record) -> None:
        index = record["data"]["stepIndex"]
        if self._open.step is None:
            _fail("a record of a step, and no step is open", record)
        if index != self._open.step:
            _fail(f"a record of another step than the open {self._open.step}", record)

    def _step_started(self, record: Record) -> None:
        index = record["data"]["stepIndex"]
        allowed = {self._open.last_step + 1}
        if self._real:
            # Retried steps repeat their number; token servers restart it after a subagent.
            allowed |= {self._open.last_step, 0}
        elif self._open.step is not None and not self._open.paused:
            # A limit is asked before the model call, in a step that never completes.
            _fail("a step starts inside of a step", record)
        if index not in allowed:
            _fail(f"step {self._open.last_step + 1} was expected", record)
        if self._open.paused and not self._held:
            _fail("a turn that asked goes on without closing", record)
        if self._held and self._open.paused and self._open.requests:
            _fail("a held turn goes on while a request is open", record)
        self._open.step = index
        self._open.last_step = index
        self._open.text = None
        self._open.reasoning = None
        self._open.paused = False

    def _step_ended(self, record: Record) -> None:
        cut = record["type"] == "step.failed" or record["data"]["finishReason"] == "other"
        if self._open.text is not None and not cut:
            _fail("a step completes while a message is open", record)
        self._open.step = None
        self._open.text = None
        self._open.reasoning = None

    def _message_delta(self, record: Record) -> None:
        data = record["data"]
        self._open.text = (self._open.text or "") + data["messageDelta"]
        if data.get("messageSoFar", self._open.text) != self._open.text:
            _fail("`messageSoFar` is not the sum of the deltas", record)

    def _message_completed(self, record: Record) -> None:
        message = record["data"]["message"]
        if self._exact and self._open.text is not None and message != self._open.text:
            _fail("`message` is not the sum of the deltas", record)
        self._open.text = None

    def _reasoning_delta(self, record: Record) -> None:
        data = record["data"]
        self._open.reasoning = (self._open.reasoning or "") + data["reasoningDelta"]
        if data.get("reasoningSoFar", self._open.reasoning) != self._open.reasoning:
            _fail("`reasoningSoFar` is not the sum of the deltas", record)

    def _reasoning_completed(self, record: Record) -> None:
        reasoning = record["data"]["reasoning"]
        if self._exact and self._open.reasoning is not None and reasoning != self._open.reasoning:
            _fail("`reasoning` is not the sum of the deltas", record)
        self._open.reasoning = None

    def _called(self, record: Record) -> None:
        for action in record["data"]["actions"]:
            call = action["callId"]
            if call in self._open.calls and not self._real:
                _fail("the same call twice", record)
            self._open.calls[call] = False

    def _answered(self, record: Record) -> None:
        call = record["data"]["result"]["callId"]
        if call not in self._open.calls:
            _fail("a result without its call", record)
        if self._open.calls[call]:
            _fail("a second result of the same call", record)
        self._open.calls[call] = True

    def _progressed(self, record: Record) -> None:
        if self._open.calls.get(record["data"]["result"].get("callId"), True):
            _fail("progress of a call that is not running", record)

    def _requested(self, record: Record) -> None:
        for request in record["data"]["requests"]:
            if request["requestId"] in self._open.requests:
                _fail("the same request twice", record)
            self._open.requests[request["requestId"]] = request["kind"]
        self._open.paused = True

    def _asked_again(self, record: Record) -> None:
        """What was answered in vain is asked once more, under another name."""
        (request,) = record["data"]["requests"]
        before, _, number = request["requestId"].rpartition("~")
        if not before or not number.isdecimal():
            _fail("a request of a turn, and no turn is open", record)
        for name in [n for n in self._open.requests if n.partition("~")[0] == before]:
            del self._open.requests[name]
        self._open.requests[request["requestId"]] = request["kind"]

    def _resolved(self, record: Record) -> None:
        for resolution in record["data"]["resolutions"]:
            kind = self._open.requests.pop(resolution["requestId"], None)
            if kind is None and self._held:
                _fail("a resolution of a request that is not open", record)
            if kind is not None and kind != resolution["kind"]:
                _fail("a resolution of another kind than its request", record)

    def _turn_waiting(self, record: Record) -> None:
        asked = self._open.requests or self._open.sign_ins
        if record["data"]["on"] == "input" and not asked:
            _fail("a turn waits for input, and nothing is asked", record)
        self._open.paused = True

    def _sign_in(self, record: Record) -> None:
        self._open.sign_ins.add(record["data"]["name"])

    def _signed_in(self, record: Record) -> None:
        if record["data"]["name"] not in self._open.sign_ins:
            _fail("a sign-in ends that was not required", record)
        self._open.sign_ins.discard(record["data"]["name"])


_HANDLERS: Mapping[str, Callable[[RecordChecker, Record], None]] = {
    "step.started": RecordChecker._step_started,
    "step.completed": RecordChecker._step_ended,
    "step.failed": RecordChecker._step_ended,
    "message.appended": RecordChecker._message_delta,
    "message.completed": RecordChecker._message_completed,
    "reasoning.appended": RecordChecker._reasoning_delta,
    "reasoning.completed": RecordChecker._reasoning_completed,
    "actions.requested": RecordChecker._called,
    "action.result": RecordChecker._answered,
    "action.partial": RecordChecker._progressed,
    "input.requested": RecordChecker._requested,
    "input.resolved": RecordChecker._resolved,
    "turn.waiting": RecordChecker._turn_waiting,
    "authorization.required": RecordChecker._sign_in,
    "authorization.completed": RecordChecker._signed_in,
}
