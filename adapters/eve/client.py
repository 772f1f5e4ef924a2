"""Drives an eve server of any generation: commands become requests, NDJSON streams become events.

One codec for the token generation (T) and the two session-ID generations (S1, S2); which one it is
shows in the first create answer, the status of a follow-up, the stream's version header and
`session.started` (eve page, section 1).

T and S1 close a turn at a pause and open another one at the answer; here that is one canonical turn
(`_Line.closed`). What proves that an answer arrived differs too (section 8.2): S2 and later S1 say
so, T shows effects only. Every thread has a stream of its own with a count of its own: the main
line, and every child that the backend names.

What waits: a tool call, 250 ms at most, until its permission shows; the end of a turn, until the
boundary that follows tells the usage; the end of a child, until its own stream has been read.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote

import orjson
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
from adapters.eve import wire
from adapters.framing.sse import SseFrame
from adapters.interactions import decision_of, option_for
from adapters.jsonvalue import JsonError, compact, format_json, parse_json

HOLD_MS = 250
"""How long a tool call waits for evidence of its permission (design section 3)."""

END_HOLD_MS = 2_000
"""How long the end of a turn waits for its boundary (design section 3)."""

CHILD_HOLD_MS = 15_000
"""How long the end of a child waits for its own stream, what it said being there and nowhere else;
ours: a busy 0.30.8 has needed seconds to show it.
"""

RECOVER_MS = 10_000
"""How long the stream may take to show a command that a crash or a lost answer left in doubt."""

CATCH_UP_MS = 1_000
"""How long a stream that was opened again is read until its silence counts: what it holds already
comes at once. Ours."""

FIRST_MOST = 262_144
"""Bytes of a first message that are kept while its session is made; larger ones go with the create.
Ours."""

CANCEL_MS = 5_000
"""How long a cancel waits for the turn that the negative answers open (section 8.2); ours."""

CANCELLED_MS = 60_000
"""How long a cancel that was accepted may show nothing, neither its end nor any work, until the
turn counts as forgotten: an idle session accepts it too and does nothing (section 6). Ours."""

READY_FIRST_MS = 250
READY_MOST_MS = 2_000
READY_TOTAL_MS = 20_000
"""Section 7.5: `session_not_ready` is tried again after 250 ms doubling to 2 s, for 20 s."""

TARGET_TRIES = 10
TARGET_WAIT_MS = 200
"""Section 7.5: T tries answers again, 200 ms apart, while the target session is not found."""

PAUSED_PATIENCE_MS = 30 * 24 * 3_600_000
"""Section 8.1: a session lives 30 days by default; a pause may last as long."""

QUIET_PATIENCE_MS = 24 * 3_600_000
"""Silence of a server that opens its streams is no fault: T is silent while a tool runs (7.3)."""

LOST_PATIENCE_MS = 600_000
"""How long a stream may refuse to open; the clients give up after about 45 s (section 7.5), we can
wait longer.
"""

AT_ONCE_MS = 5_000
AT_ONCE_MOST = 5
AT_ONCE_PATIENCE_MS = 60_000
"""A body ends in order when its log is closed (section 7.3). One that does so within 5 s and brings
nothing, five times in a row (the clients' own limit, section 7.5) and for a minute, has no more to
tell. A lease, a restart or a host's limit on the time of a request ends bodies later, or not so
often. Times ours."""

RECENT_IDS = 256
"""Event ids that are remembered to drop a frame that comes twice."""

SESSION_LOST = "backend_session_lost"

TURN_LOST = "turn_end_missing"
"""The error code of a turn that the backend has no more, while it keeps the session."""

NOT_READY = "backend_not_ready"
"""The `kind` of the notice that says that a request is tried again."""

_STEER_FROM = (0, 33, 0)
"""Section 5: the first release that knows `turnPolicy`."""

_RESOLVED_FROM = (0, 39, 1)
"""Section 9.4: the first release that says `input.resolved`."""

_HELD_FROM = (0, 70, 0)
"""Section 1: from here on no pause closes its turn."""

_STEER_NATIVE = Ability(Support.NATIVE, "`turnPolicy` steer while nothing is open (section 5.1)")
_STEER_QUEUED = Ability(
    Support.EMULATED, "queued as the next message: this eve does not steer (5.1)"
)

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.EMULATED, "made with or before its first message"),
    "send_message": Ability(Support.NATIVE),
    "steer": _STEER_QUEUED,
    "interrupt": Ability(Support.NATIVE),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(Support.IMPOSSIBLE, "tools run on the eve server (section 8.1)"),
    "compact": Ability(Support.NATIVE),
    "clear": Ability(Support.NATIVE),
    "reset": Ability(Support.NATIVE),
    "archive": Ability(Support.EMULATED, "kept here"),
    "archive_thread": Ability(Support.IMPOSSIBLE, "a child belongs to its turn (section 10)"),
    "delete": Ability(Support.EMULATED, "erased here; an eve has no DELETE (section 2)"),
    "define_outcome": Ability(Support.IMPOSSIBLE, "an eve has no outcomes (section 3)"),
    "update_session": Ability(Support.EMULATED, "title and metadata are kept here"),
}
"""Until the generation is known; then `steer` is as it has it."""

Generation = Literal["T", "S1", "S2"]

_SENSITIVE = frozenset({"continuationToken", "childContinuationToken", "webhookUrl"})
"""Members that are credentials (sections 1 and 9.4): they never leave the codec."""


@dataclasses.dataclass(slots=True)
class _Line:
    """One thread: where its stream is, and what is open in it; deltas of an open block leave it."""

    thread: str
    parent: str | None = None
    session: str | None = None
    path: str | None = None
    name: str | None = None
    # The canonical turn, the eve turn in it, and the last canonical one that is over.
    turn: str | None = None
    native: str | None = None
    sequence: int = -1
    last: str | None = None
    # It has ended, and was cancelled afterwards: the boundary of that is still to come.
    taken_back: bool = False
    # It was written before the boundary that follows it had come.
    owed: bool = False
    turns: int = 0
    # `closed`: eve ended its turn at a pause, ours is open. `empty`: this eve turn has not worked.
    # `named`: the requests that were open when eve last said that it waits. `unrelayed`: those of a
    # child that its parent does not show yet: it would take no answer.
    closed: bool = False
    paused: str | None = None
    named: list[str] = dataclasses.field(default_factory=list)
    unrelayed: list[str] = dataclasses.field(default_factory=list)
    empty: bool = True
    heard: str | None = None
    step: int | None = None
    step_turn: str | None = None
    steps: int = 0
    # Steps of the eve turns that are folded into this one: theirs begin at 0 again.
    step_base: int = 0
    step_top: int = -1
    step_open: bool = False
    step_done: bool = True
    text: bool = False
    reasoning: bool = False
    blocks: int = 0
    calls: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    said: list[list[Any]] = dataclasses.field(default_factory=list)
    deliveries: list[str] = dataclasses.field(default_factory=list)
    agent: dict[str, Any] | None = None
    ending: dict[str, Any] | None = None
    ending_at: int = 0
    # An approval of which only `approval.settled` has come.
    settled: dict[str, Any] | None = None
    settled_at: int = 0
    held: list[Any] = dataclasses.field(default_factory=list)
    held_at: int = 0
    # A child that is over: `outcome` waits for its own stream, then it is `done`.
    outcome: dict[str, Any] | None = None
    outcome_at: int = 0
    done: bool = False
    closed_stream: bool = False


@dataclasses.dataclass(slots=True)
class _State:
    """What must survive a restart, besides the counts."""

    session: str | None = None
    token: str | None = None
    generation: str | None = None
    version: list[int] | None = None
    model: str | None = None
    ended: bool = False
    lines: dict[str, _Line] = dataclasses.field(default_factory=dict)
    tasks: dict[str, str] = dataclasses.field(default_factory=dict)
    pending: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    requests: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    resolved: list[str] = dataclasses.field(default_factory=list)
    answers: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    doubtful: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    # The message that a session is being made for: its command, the bodies of the create with it
    # and of the follow-up.
    first: dict[str, Any] | None = None
    retries: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    cancel: dict[str, Any] | None = None
    # What T makes unsaid when a cancel stops the turn that approvals have just resumed: refusals of
    # these approvals; whether that turn was told to stop; and what it has made unsaid, if it did.
    answered: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    stopping: bool = False
    unsaid: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    reset_at: int | None = None
    orphans_at: int | None = None
    # A turn was cancelled: when it is over if nothing more of it comes, and after what silence.
    gone_at: int | None = None
    gone_after: int = 0
    control: int = 0


class _Record(NamedTuple):
    """One event of a stream, taken apart."""

    type: str
    data: dict[str, Any]
    deliveries: list[str]
    native: ev.NativeRef
    now: int


class EveClient(ClientCodec):
    """The client codec. `settings` may have the `session_id` of a session that exists, and
    `single_stream` where the streams of children are not read.
    """

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "ndjson"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._s = _State()
        self._s.lines[ev.MAIN] = _Line(ev.MAIN)
        self._s.session = settings.get("session_id")
        self.abilities: Mapping[str, Ability] = ABILITIES
        # A recorded body is one stream: nothing else is read.
        self._reads_children: bool = not settings.get("single_stream", False)
        self._frames = 0
        self._counts: dict[str, int] = {ev.MAIN: 0}
        # The revision counts changes: the newer one of snapshot and position is the state.
        self._revision = 0
        self._dirty = True
        self._recent: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._todo: list[Call] = []
        self._opened_at: int | None = None
        self._opened_frames = 0
        # Answers that the stream has shown before the reply to their request was there.
        self._shown: set[str] = set()
        self._ended_at_once = 0
        self._refused: set[str] = set()
        self.wake_at = None

    # What it is.

    @property
    def native_id(self) -> str | None:
        return self._s.session

    @property
    def generation(self) -> Generation | None:
        """Return the generation of the server, once it is known."""
        return cast(Generation | None, self._s.generation)

    def _know(self, generation: Generation, *, sure: bool = False) -> None:
        known = self._s.generation
        if known is None or sure or (known[0] == "S" and generation == "S2"):
            self._s.generation = generation
        self._set_abilities()

    def _know_version(self, text: object) -> None:
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", text) if isinstance(text, str) else None
        if found is None:
            return
        version = [int(part) for part in found.groups()]
        self._s.version = version
        generation: Generation = "T" if version < [0, 31] else "S1" if version < [0, 69] else "S2"
        # What accepts S's requests is S, whatever version it names (section 1.1).
        if self._s.generation in (None, "S1", "S2") or generation == "T":
            self._know(generation, sure=self._s.generation is None or generation != "T")

    def _set_abilities(self) -> None:
        steers = self._s.generation in ("S1", "S2") and self._at_least(_STEER_FROM)
        self.abilities = {**ABILITIES, "steer": _STEER_NATIVE if steers else _STEER_QUEUED}

    def _at_least(self, version: tuple[int, int, int]) -> bool:
        """Say whether the server is of this release or a later one; an unknown one is."""
        return self._s.version is None or tuple(self._s.version) >= version

    @property
    def _explicit(self) -> bool:
        """Say whether the server itself says that a request is resolved."""
        generation = self._s.generation
        return generation == "S2" or (generation == "S1" and self._at_least(_RESOLVED_FROM))

    @property
    def _folds(self) -> bool:
        """Say whether a pause closes the eve turn."""
        return not (self._s.generation == "S2" and self._at_least(_HELD_FROM))

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        ability = self.abilities[command.TYPE]
        if ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"eve: `{command.TYPE}` is impossible: {ability.how}")
        # Requests of a child are shown on the parent and answered there (section 10).
        answers = isinstance(command, cmd.AnswerInteraction)
        if command.thread_id not in (None, ev.MAIN) and not answers:
            raise NotSupported(
                f"eve: `{command.TYPE}` for thread `{command.thread_id}` is impossible: "
                "a child takes no input (10)"
            )
        match command:
            case cmd.SendMessage():
                self._check_message(command)
            case cmd.Steer() if self._s.requests:
                raise NotSupported(
                    "eve: `steer` is impossible while a request is open: "
                    "it would withdraw the request (5.1)"
                )
            case cmd.AnswerInteraction():
                self._check_answer(command)
            case cmd.UpdateSession() if command.agent is not None:
                raise NotSupported(
                    "eve: `agent` is impossible: no route changes an agent (section 3)"
                )
            case cmd.CreateSession() if command.environment_id is not None:
                raise NotSupported("eve: `environment_id` is impossible: no field carries it (4.1)")
            case cmd.Compact() | cmd.Clear() if self._s.session is None:
                raise NotSupported(f"eve: `{command.TYPE}` needs a session: send a message first")

    def _check_message(self, command: cmd.SendMessage) -> None:
        if command.system is not None:
            raise NotSupported("eve: `system` is impossible: no field carries it (4.1)")
        if command.edit_of is not None or command.retry_of is not None:
            raise NotSupported(
                "eve: `edit_of` and `retry_of` are impossible: history is not rewritten (5)"
            )
        if not any(not isinstance(b, ev.Text) or b.text for b in command.content):
            raise NotSupported("eve: an empty message is impossible (4.1)")
        for block in command.content:
            if isinstance(block, ev.File) and isinstance(block.ref, ev.FileId):
                raise NotSupported(
                    f"eve: file `{block.ref.id}` is known to a {block.ref.dialect} backend only; "
                    "send its bytes or a URL"
                )
            url = getattr(getattr(block, "ref", None), "url", "")
            if url.startswith(wire.INTERNAL_SCHEMES):
                raise NotSupported("eve: URLs of the framework's own schemes are refused (4.2)")
            if not isinstance(block, ev.Text | ev.File | ev.SearchResult):
                raise NotSupported(
                    f"eve: a `{block.type}` block is impossible: no part carries it (4.2)"
                )

    def _check_answer(self, command: cmd.AnswerInteraction) -> None:
        if command.system is not None:
            raise NotSupported("eve: `system` is impossible: no field carries it (5)")
        if any(not isinstance(block, ev.Text) for block in command.content or ()):
            raise NotSupported("eve: only words and options answer a request (5)")
        request = self._s.requests.get(command.request_id)
        if request is None:
            return
        if request["kind"] == "authorization":
            if command.decision != "allow" and self._s.generation == "T":
                raise NotSupported("eve: 0.30 and older cannot cancel a sign-in (8.2)")
            return
        skips = command.skip and request["kind"] == "question"
        if skips and self._option(request, "deny") is None:
            raise NotSupported(
                "eve: this question cannot be skipped: it has no option that declines (9.4)"
            )
        if len(command.option_ids) > 1:
            raise NotSupported("eve: a request takes one option (5)")

    def submit(self, command_id: str, command: cmd.AnyCommand, blobs: Mapping[str, bytes]) -> Call:
        self._touch()
        match command:
            case cmd.SendMessage():
                return self._send(command_id, command, blobs)
            case cmd.Steer():
                self.check(command)
                content = (ev.Text(text=command.text),)
                message = cmd.SendMessage(content=content, policy="steer")
                return self._send(command_id, message, blobs, kind="steer")
            case cmd.CreateSession() if self._s.session is None:
                return Call("create", Request("POST", wire.SESSION_PATH), command_id=command_id)
            case cmd.AnswerInteraction():
                return self._answer(command_id, command)
            case cmd.Interrupt():
                return self._interrupt(command_id, command)
            case cmd.Compact() | cmd.Clear() | cmd.Reset():
                return self._control(command_id, command)
            case _:
                raise NotSupported(f"eve: nothing carries `{command.TYPE}` now")

    def _send(
        self,
        command_id: str,
        command: cmd.SendMessage,
        blobs: Mapping[str, bytes],
        *,
        kind: str = "message",
    ) -> Call:
        s = self._s
        body: dict[str, Any] = {"message": _wire_message(command.content, blobs)}
        if command.client_context is not None:
            body["clientContext"] = command.client_context
        if command.output_schema is not None:
            body["outputSchema"] = command.output_schema
        creates = s.session is None
        options = command.options or {}
        for name in (_CREATE_OPTIONS if creates else _FOLLOW_UP_OPTIONS) & options.keys():
            body[name] = options[name]
        self._expect(command_id, command.content, kind, creates=creates)
        if creates:
            return self._create(command_id, command, body)
        if s.generation == "T":
            body["continuationToken"] = s.token
            if s.unsaid:
                # Approvals that a cancel has perhaps opened again would hold the message back for
                # ever; a refusal of one that is not open does nothing (section 8.2).
                body["inputResponses"] = list(s.unsaid)
        elif self._at_least(_STEER_FROM):
            body["turnPolicy"] = "steer" if command.policy in ("steer", "withdraw") else "queue"
        return self._post("message", self._path(), body, command_id)

    def _create(self, command_id: str, command: cmd.SendMessage, body: dict[str, Any]) -> Call:
        """Make the session without its first message, so that no lost answer hides where it went; a
        server that makes no session without one (before 0.59, section 4.1) says so."""
        follow_up = {name: body[name] for name in body if name not in _CREATE_ONLY}
        follow_up["turnPolicy"] = "queue"
        first = {
            "command_id": command_id,
            "create": compact(format_json(body)).decode(),
            "message": compact(format_json(follow_up)).decode(),
        }
        if _WITH_MESSAGE & body.keys() or len(first["create"]) > FIRST_MOST:
            return self._post("create", wire.SESSION_PATH, body, command_id)
        self._s.first = first
        return self._prewarm(command_id)

    def _prewarm(self, command_id: str) -> Call:
        first: dict[str, Any] = {}
        if self._s.first is not None:
            whole = cast(dict[str, Any], parse_json(self._s.first["create"].encode()))
            first = {name: whole[name] for name in _CREATE_ONLY & whole.keys()}
        return self._post("prewarm", wire.SESSION_PATH, first or None, command_id)

    def _prewarmed(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any]
    ) -> list[ev.Event]:
        """Post the first message into its session, or with the create where that needs it."""
        s = self._s
        command_id = call.command_id
        assert command_id is not None
        first, s.first = s.first, None
        if first is None:
            return []
        if ok:
            self._learn(response, body)
        if ok and s.session is not None:
            follow_up = cast(dict[str, Any], parse_json(first["message"].encode()))
            if s.generation == "T":
                follow_up = {**follow_up, "continuationToken": s.token}
            self._todo.append(self._post("message", self._path(), follow_up, command_id))
        elif response.status == 400:
            call = self._raw_post("create", wire.SESSION_PATH, first["create"], command_id)
            self._todo.append(call)
        else:
            error = refusal(response)
            if ok:
                error = ev.ErrorInfo(
                    code=str(ErrorCode.BACKEND_PROTOCOL),
                    message="eve: a create answer without session id",
                )
            return self._not_sent(command_id, error)
        return []

    def _expect(
        self, command_id: str, content: tuple[Any, ...], kind: str, *, creates: bool = False
    ) -> None:
        if any(item["command_id"] == command_id for item in self._s.pending):
            return
        self._s.pending.append(
            {
                "command_id": command_id,
                "kind": kind,
                "flat": _flat(content),
                "content": [_dump(block) for block in content],
                "delivery": None,
                "settled": False,
                "creates": creates,
            }
        )

    def _answer(self, command_id: str, command: cmd.AnswerInteraction) -> Call:
        request = self._s.requests.get(command.request_id)
        kind = "question" if request is None else request["kind"]
        if kind == "authorization":
            # Nothing on the wire answers a sign-in: it is cancelled with its turn, or left alone.
            if command.decision == "allow" or not (
                command.decision or command.option_ids or command.skip
            ):
                self._remember_answer(command_id, command, "approved")
                return Call("nothing", Request("GET", wire.HEALTH_PATH), command_id=command_id)
            self._remember_answer(command_id, command, "denied")
            return self._cancel_call("answer", command_id, None)
        response: dict[str, Any] = {"requestId": command.request_id}
        option_id = self._option_id(command, request)
        words = command.text if command.text is not None else command.reason
        if command.content:
            words = ev.text_of(command.content)
        if option_id is not None:
            response["optionId"] = option_id
        if words:
            response["text"] = words
        if kind in ("approval", "limit"):
            outcome = "approved" if command.decision == "allow" else "denied"
        else:
            outcome = "skipped" if command.skip else "answered"
        self._remember_answer(command_id, command, outcome, option_id)
        body: dict[str, Any] = {"inputResponses": [response]}
        for name in _FOLLOW_UP_OPTIONS & (command.options or {}).keys():
            body[name] = (command.options or {})[name]
        return self._responses("answer", body, command_id)

    def _responses(self, name: str, body: dict[str, Any], command_id: str) -> Call:
        if self._s.generation == "T":
            body["continuationToken"] = self._s.token
        return self._post(name, self._path(), body, command_id)

    def _remember_answer(
        self,
        command_id: str,
        command: cmd.AnswerInteraction,
        outcome: str,
        option_id: str | None = None,
    ) -> None:
        answer = ev.Answer(
            option_ids=command.option_ids or (() if option_id is None else (option_id,)),
            text=command.text,
            content=command.content,
            reason=command.reason,
        )
        self._s.answers[command.request_id] = {
            "command_id": command_id,
            "outcome": outcome,
            "answer": _dump(answer),
            "settled": False,
        }

    def _option_id(
        self, command: cmd.AnswerInteraction, request: dict[str, Any] | None
    ) -> str | None:
        """Return the request's own option for an answer (section 9.4: never fixed ids)."""
        offered = [] if request is None else [option["id"] for option in request["options"]]
        for option_id in command.option_ids:
            if option_id in offered or not offered:
                return option_id
        decision = command.decision
        if decision is None and command.skip:
            decision = "deny"
        if request is None or decision is None:
            return None
        own = self._option(request, decision)
        if own is not None or request["kind"] == "question":
            return own
        if decision == "allow":
            return "continue" if request["kind"] == "limit" else "approve"
        if request["kind"] == "limit":
            return "stop"
        return "deny" if self._s.generation == "T" else "cancel"

    def _option(self, request: dict[str, Any], decision: Literal["allow", "deny"]) -> str | None:
        options = tuple(ev.Option(**option) for option in request["options"])
        asked = ev.InteractionRequested(
            thread_id=ev.MAIN, request_id="", kind="approval", prompt="", options=options
        )
        own = option_for(asked, decision)
        return None if own is None else own.id

    def _interrupt(self, command_id: str, command: cmd.Interrupt) -> Call:
        s = self._s
        line = s.lines[ev.MAIN]
        negative = [
            self._negative(request_id, request)
            for request_id, request in s.requests.items()
            if request["kind"] != "authorization"
        ]
        wanted = command.turn_id
        if line.closed and negative and wanted in (None, line.turn):
            # A closed pause has no turn to cancel (section 8.2): the answers open one, which is.
            s.cancel = {"command_id": command_id, "at": None}
            return self._responses("negative", {"inputResponses": negative}, command_id)
        if s.session is None and s.pending:
            # The session has no name yet: its first turn is cancelled when it begins.
            s.cancel = {"command_id": command_id, "at": None}
            return Call("early", Request("GET", wire.HEALTH_PATH), command_id=command_id)
        if line.turn is None and wanted is None and any(p["settled"] for p in s.pending):
            # Section 6: a cancel before the turn of a taken message begins is accepted and does
            # nothing, so it is said again when that turn begins.
            s.cancel = {"command_id": None, "at": None}
        turn_id = wanted
        if wanted is not None and wanted == line.turn:
            turn_id = line.native or wanted
        return self._cancel_call("cancel", command_id, turn_id)

    def _negative(self, request_id: str, request: dict[str, Any]) -> dict[str, Any]:
        response = {"requestId": request_id}
        approval = request["kind"] == "approval"
        option_id = self._refusal(request) if approval else self._option(request, "deny")
        if option_id is None and request["options"] and not request["freeform"]:
            option_id = request["options"][-1]["id"]
        if option_id is None:
            response["text"] = "Cancelled."
        else:
            response["optionId"] = option_id
        self._s.answers.setdefault(
            request_id,
            {"command_id": None, "outcome": "cancelled", "answer": None, "settled": True},
        )
        return response

    def _refusal(self, request: dict[str, Any]) -> str:
        """Return the option that refuses an approval."""
        default = "deny" if self._s.generation == "T" else "cancel"
        return self._option(request, "deny") or default

    def _cancel_call(self, name: str, command_id: str | None, turn_id: str | None) -> Call:
        body = None if turn_id is None else {"turnId": turn_id}
        self._s.stopping = self._s.lines[ev.MAIN].turn is not None
        return self._post(name, self._path("/cancel"), body, command_id)

    def _control(self, command_id: str, command: cmd.Compact | cmd.Clear | cmd.Reset) -> Call:
        name = command.TYPE
        if self._s.session is None:
            raise NotSupported(f"eve: `{name}` needs a session: send a message first")
        if self._s.generation == "T":
            body = {"continuationToken": self._s.token}
            return self._post(name, f"{wire.SESSION_PATH}/{name}", body, command_id)
        reason = command.reason if isinstance(command, cmd.Reset) else None
        return self._post(
            name, self._path(f"/{name}"), {"reason": reason} if reason else None, command_id
        )

    def _path(self, below: str = "") -> str:
        if self._s.session is None:
            raise NotSupported("eve: there is no session yet: send a message first")
        return f"{wire.SESSION_PATH}/{quote(self._s.session, safe='')}{below}"

    def _post(
        self, name: str, path: str, body: dict[str, Any] | None, command_id: str | None
    ) -> Call:
        headers: CIMultiDict[str] = CIMultiDict()
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else compact(format_json(body))
        return Call(name, Request("POST", path, headers=headers, body=data), command_id=command_id)

    def _raw_post(self, name: str, path: str, body: str, command_id: str | None) -> Call:
        headers = CIMultiDict({"Content-Type": "application/json"})
        request = Request("POST", path, headers=headers, body=body.encode())
        return Call(name, request, command_id=command_id)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        """Look for a command in the stream: nothing else of an eve tells (section 5)."""
        self._touch()
        s = self._s
        if s.first is not None and s.first["command_id"] == command_id:
            # Nothing was said yet: a session that was perhaps made is empty, and another is made.
            return self._prewarm(command_id)
        if s.session is None:
            # A create without an answer leaves no name to look under.
            s.pending = [item for item in s.pending if item["command_id"] != command_id]
            return None
        if isinstance(command, cmd.SendMessage):
            self._expect(command_id, command.content, "message")
        elif isinstance(command, cmd.Steer):
            self._expect(command_id, (ev.Text(text=command.text),), "steer")
        elif isinstance(command, cmd.AnswerInteraction) and command.request_id in s.requests:
            decided = {"allow": "approved", "deny": "denied"}.get(command.decision or "")
            if command.request_id not in s.answers:
                self._remember_answer(command_id, command, decided or "answered")
        self._doubt(command_id)
        return None

    def _doubt(self, command_id: str) -> None:
        self._s.doubtful.setdefault(command_id, {"at": None})

    def take_calls(self) -> list[Call]:
        todo, self._todo = self._todo, []
        return todo

    # Streams.

    def streams(self) -> tuple[Call, ...]:
        s = self._s
        if s.session is None or s.ended:
            return ()
        main = s.lines[ev.MAIN]
        busy = main.turn is not None or main.ending is not None
        wanted = busy or s.pending or s.answers or s.doubtful or s.control or s.reset_at or s.cancel
        calls = [self._stream(main)] if wanted else []
        for line in s.lines.values():
            if line.thread == ev.MAIN or line.closed_stream or line.done or line.session is None:
                continue
            # A child whose end is told is read to its end, also when its parent's turn is over.
            over = line.outcome is not None
            if over or (wanted and (busy or line.turn is not None)):
                calls.append(self._stream(line))
        return tuple(calls)

    def _stream(self, line: _Line) -> Call:
        path = line.path
        if path is None:
            session = self._s.session if line.thread == ev.MAIN else line.session
            assert session is not None
            path = f"{wire.SESSION_PATH}/{quote(session, safe='')}/stream"
        query = MultiDict({wire.START_INDEX_QUERY: str(self._counts.get(line.thread, 0))})
        # From 0.57 on this asks for heartbeats and a lease (section 7.4); others ignore it.
        query[wire.STREAM_CONTROL_VERSION_QUERY] = wire.STREAM_CONTROL_VERSION
        if self._s.generation == "T":
            # Section 7.2: T shows a session that it has lost as an empty stream. S says 404, and
            # would end the body at the tail.
            query[wire.INCLUDE_TAIL_INDEX_QUERY] = "1"
        headers = CIMultiDict({"Accept": "application/x-ndjson"})
        request = Request("GET", path, query, headers)
        return Call("stream", request, stream=True, thread_id=line.thread)

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        self._refused.discard(call.thread_id)
        out: list[ev.Event] = []
        text = head.headers.get(wire.STREAM_VERSION_HEADER)
        version = int(text) if text is not None and re.fullmatch(r"[0-9]{1,4}", text) else None
        if text is not None and (
            version is None
            or not wire.OLDEST_STREAM_VERSION <= version <= wire.NEWEST_STREAM_VERSION
        ):
            out.append(
                ev.ErrorReported(
                    thread_id=call.thread_id,
                    code=str(ErrorCode.BACKEND_PROTOCOL),
                    message=f"eve: stream version `{text[:20]}` is not known; "
                    f"it is read as {wire.NEWEST_STREAM_VERSION}",
                    synthetic=True,
                )
            )
        if version is not None and version != 21 and self._s.version is None:
            self._know("T" if version < 21 else "S1" if version < 26 else "S2")
        if call.thread_id == ev.MAIN:
            self._opened_at, self._opened_frames = now, self._frames
            new = [item for item in self._s.doubtful.values() if item["at"] is None]
            for item in new:
                item["at"] = now + RECOVER_MS
            if new:
                # The time is stored with this: a restart goes on waiting, and does not begin again.
                out.append(
                    ev.ErrorReported(
                        thread_id=ev.MAIN,
                        code="input_in_doubt",
                        message="eve: the stream will show what became of an input.",
                        retry="retrying",
                        synthetic=True,
                    )
                )
            out += self._check_tail(head)
        self._touch()
        self._set_alarm()
        return out

    def _check_tail(self, head: Response) -> list[ev.Event]:
        """End what runs when the log is empty that had records: the session is not there any more.
        One that is only shorter may be a copy that lags."""
        if head.headers.get(wire.STREAM_TAIL_INDEX_HEADER) != "-1" or not self._counts[ev.MAIN]:
            return []
        self._counts[ev.MAIN] = 0
        self._s.lines[ev.MAIN].sequence = -1
        message = "eve: the session's stream is empty, and has shown records already"
        return self._lost(ev.ErrorInfo(code=SESSION_LOST, message=message))

    # What came of calls.

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._touch()
        ok = 200 <= response.status < 300
        body = _body(response)
        try:
            if self._was_shown(call):
                if ok:
                    self._learn(response, body)
                return []
            if response.status == 400 and self._without_token(call, response):
                return []
            match call.name:
                case "stream":
                    return self._no_stream(call, response)
                case "nothing":
                    return self._acknowledged(call)
                case "early":
                    return self._awaited(now)
                case "prewarm":
                    return self._prewarmed(call, response, ok, body)
                case "create" | "message":
                    return self._sent(call, response, ok, body, now)
                case "answer" | "negative":
                    return self._answered(call, response, ok, body, now)
                case _:
                    return self._controlled(call, response, ok, body, now)
        finally:
            self._set_alarm()

    def _without_token(self, call: Call, response: Response) -> bool:
        """Send a request again without its token, where an S has come in the place of a T: it takes
        none (section 5), and has done nothing with the request."""
        posts = call.name in ("message", "answer", "negative")
        if not posts or b"continuationToken" not in response.body:
            return False
        value = cast(dict[str, Any], parse_json(call.request.body or b""))
        if value.pop("continuationToken", None) is None:
            return False
        self._know("S1", sure=True)
        request = dataclasses.replace(call.request, body=compact(format_json(value)))
        self._todo.append(dataclasses.replace(call, request=request))
        return True

    def _learn(self, response: Response, body: dict[str, Any]) -> None:
        """Read the generation, the session and the token off an answer (sections 1 and 4.3)."""
        s = self._s
        session = body.get("sessionId") or response.headers.get(wire.SESSION_ID_HEADER)
        if s.session is None and isinstance(session, str) and session:
            s.session = session
            s.lines[ev.MAIN].session = session
        token = body.get("continuationToken")
        if isinstance(token, str) and token:
            s.token = token
        if s.generation is None:
            if body.get("status") == "accepted":
                self._know("S1")
            elif token is not None or response.status == 200:
                self._know("T")
            else:
                self._know("S1")

    def _sent(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any], now: int
    ) -> list[ev.Event]:
        s = self._s
        command_id = call.command_id
        assert command_id is not None
        item = next((p for p in s.pending if p["command_id"] == command_id), None)
        if response.status == 204:
            return self._dropped(command_id)
        if ok:
            self._learn(response, body)
            if s.session is None:
                error = ev.ErrorInfo(
                    code=str(ErrorCode.BACKEND_PROTOCOL),
                    message="eve: a create answer without session id",
                )
                return self._not_sent(command_id, error)
            delivery = body.get("deliveryId")
            if item is None:
                # A create without message, or the stream was faster than this answer.
                return [] if call.name == "message" else [_settled(command_id, "taken")]
            if isinstance(delivery, str):
                item["delivery"] = delivery
            if item["settled"]:
                return []
            item["settled"] = True
            s.doubtful.pop(command_id, None)
            return [_settled(command_id, "taken")]
        if item is None and call.name == "create" and response.status == 400:
            # Section 1: T has no create without a message; the session begins with its first one.
            self._know("T")
            return [_settled(command_id, "taken")]
        if item is not None and item["settled"]:
            return []
        code = body.get("code")
        if code == wire.SESSION_NOT_READY and self._again(call, now):
            return [_retried("The session is not ready yet; the message will be sent again.")]
        if response.status >= 500 and call.name == "message":
            return self._in_doubt(command_id, refusal(response), now)
        if response.status >= 500:
            # A create that failed may have made a session, but nobody knows its name.
            s.pending = [p for p in s.pending if p["command_id"] != command_id]
            return [_settled(command_id, "unknown", refusal(response))]
        return self._not_sent(command_id, refusal(response)) + self._over(code, refusal(response))

    def _again(self, call: Call, now: int) -> bool:
        """Plan a refused request once more, as the clients do; False when its time is over."""
        assert call.command_id is not None
        retries = self._s.retries
        known = next((r for r in retries if r["command_id"] == call.command_id), None)
        body = call.request.body
        if known is None:
            known = {
                "command_id": call.command_id,
                "name": call.name,
                "path": call.request.path,
                "body": None if body is None else body.decode(),
                "since": now,
                "tries": 0,
                "at": None,
            }
            retries.append(known)
        answers = call.name != "message"
        over = known["tries"] >= TARGET_TRIES if answers else now - known["since"] >= READY_TOTAL_MS
        if over:
            retries.remove(known)
            return False
        wait = TARGET_WAIT_MS if answers else min(READY_MOST_MS, READY_FIRST_MS << known["tries"])
        known["tries"] += 1
        known["at"] = now + wait
        return True

    def _dropped(self, command_id: str) -> list[ev.Event]:
        error = ev.ErrorInfo(
            code="dropped", message="eve: the message was dropped by a hook of the app"
        )
        return self._not_sent(command_id, error)

    def _not_sent(self, command_id: str, error: ev.ErrorInfo) -> list[ev.Event]:
        """Refuse a command: it is not looked for any more, and a claim of it is released."""
        s = self._s
        s.pending = [item for item in s.pending if item["command_id"] != command_id]
        s.retries = [item for item in s.retries if item["command_id"] != command_id]
        s.doubtful.pop(command_id, None)
        out = [_settled(command_id, "refused", error)]
        return out + self._release_claims(command_id)

    def _release_claims(self, command_id: str) -> list[ev.Event]:
        out: list[ev.Event] = []
        for request_id, answer in list(self._s.answers.items()):
            if answer["command_id"] != command_id:
                continue
            del self._s.answers[request_id]
            request = self._s.requests.get(request_id)
            if request is not None:
                out.append(
                    ev.InteractionAnswered(
                        thread_id=request["thread"],
                        request_id=request_id,
                        command_id=command_id,
                        by="backend",
                        state="released",
                    )
                )
        return out

    def _in_doubt(self, command_id: str, error: ev.ErrorInfo, now: int) -> list[ev.Event]:
        """The backend may have it: the stream will show (section 2: a 500 says nothing)."""
        self._doubt(command_id)
        doubt = self._s.doubtful[command_id]
        if doubt["at"] is None and self._opened_at is not None:
            doubt["at"] = now + RECOVER_MS
        return [
            ev.ErrorReported(
                thread_id=ev.MAIN,
                code=error.code,
                message=f"{error.message} The stream will show whether it arrived.",
                retry="retrying",
                synthetic=True,
            )
        ]

    def _was_shown(self, call: Call) -> bool:
        """Say whether the stream has shown already what a call did: what becomes of its reply says
        nothing more."""
        if call.command_id not in self._shown:
            return False
        self._shown.discard(call.command_id)
        return True

    def _over(self, code: object, error: ev.ErrorInfo) -> list[ev.Event]:
        """End our session where the backend says that its own is over for good (section 5)."""
        if code not in (wire.SESSION_NOT_ACTIVE, wire.SESSION_STRANDED) or self._s.ended:
            return []
        return self._end_session("failed", error)

    def _acknowledged(self, call: Call) -> list[ev.Event]:
        """Settle an answer that goes nowhere: the sign-in stays open."""
        assert call.command_id is not None
        return [_settled(call.command_id, "taken"), *self._release_claims(call.command_id)]

    def _awaited(self, now: int) -> list[ev.Event]:
        """Give the turn that is to be cancelled its time to begin."""
        if self._s.cancel is not None:
            self._s.cancel["at"] = now + RECOVER_MS
        return []

    def _answered(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any], now: int
    ) -> list[ev.Event]:
        command_id = call.command_id
        assert command_id is not None
        s = self._s
        if ok:
            self._learn(response, body)
            s.doubtful.pop(command_id, None)
            for answer in s.answers.values():
                if answer["command_id"] == command_id:
                    answer["settled"] = True
            if call.name == "negative" and s.cancel is not None:
                s.cancel["at"] = now + CANCEL_MS
                return []
            return [_settled(command_id, "taken")]
        error = refusal(response)
        if response.status >= 500 and "target session was not found" in error.message:
            if self._again(call, now):
                return [_retried("The session is not ready yet; the answer will be sent again.")]
        elif response.status >= 500 and call.name == "answer":
            return self._in_doubt(command_id, error, now)
        if call.name == "negative":
            s.cancel = None
            s.answers = {k: a for k, a in s.answers.items() if a["command_id"] is not None}
        return self._not_sent(command_id, error) + self._over(body.get("code"), error)

    def _controlled(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any], now: int
    ) -> list[ev.Event]:
        s = self._s
        command_id = call.command_id
        if call.name == "cancel" and ok:
            self._expect_end(call, body, now)
        if call.name == "cancel" and command_id is None:
            return []
        assert command_id is not None
        if not ok:
            error = refusal(response)
            return [_settled(command_id, "refused", error), *self._over(body.get("code"), error)]
        if body.get("status") == "no_active_session":
            error = ev.ErrorInfo(
                code="no_active_session", message=f"eve: there is no active session to {call.name}"
            )
            return [_settled(command_id, "refused", error)]
        out = [_settled(command_id, "taken")]
        if call.name == "cancel" and s.cancel is not None and s.cancel["command_id"] is None:
            s.cancel["at"] = now + RECOVER_MS
        if call.name in ("compact", "clear"):
            s.control += 1
        if call.name == "reset":
            if s.generation == "T":
                # Section 6: T says nothing on the stream.
                return out + self._end_session("terminated", None)
            s.reset_at = now + END_HOLD_MS
        return out

    def _expect_end(self, call: Call, body: dict[str, Any], now: int) -> None:
        """Wait for the end of a turn that is cancelled. One without was forgotten, at once where
        the server says that it has none (section 6): its end may be on the stream already."""
        s = self._s
        main = s.lines[ev.MAIN]
        data = call.request.body
        wanted = None if data is None else cast(dict[str, Any], parse_json(data)).get("turnId")
        if main.turn is None or main.closed or wanted not in (None, main.native):
            return
        none = body.get("status") == "no_active_turn"
        s.gone_after = CATCH_UP_MS if none else CANCELLED_MS
        s.gone_at = now + s.gone_after

    def _no_stream(self, call: Call, response: Response) -> list[ev.Event]:
        """A stream was refused: most refusals pass (7.5), some are for good (7.2)."""
        self._refused.add(call.thread_id)
        error = refusal(response)
        code = _body(response).get("code")
        final = response.status in (400, 401, 403, 410) or code == wire.SESSION_STRANDED
        if not final:
            return []
        line = self._s.lines[call.thread_id]
        if call.thread_id != ev.MAIN:
            line.closed_stream = True
            return self._end_child(line)
        if code == wire.SESSION_STRANDED:
            return self._over(code, error)
        out: list[ev.Event] = []
        if response.status == 410:
            count = str(self._counts[ev.MAIN])
            out.append(
                ev.Gap(thread_id=ev.MAIN, reason=error.message, cursor_from=count, synthetic=True)
            )
        return out + self._lost(error)

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._touch()
        info = ev.ErrorInfo(code=str(error.code), message=error.message)
        try:
            if self._was_shown(call):
                return []
            if call.name == "stream":
                self._refused.add(call.thread_id)
                if call.thread_id == ev.MAIN:
                    self._opened_at = None
                return []
            command_id = call.command_id
            if command_id is None:
                return []
            if call.name == "nothing":
                return self._acknowledged(call)
            if call.name == "early":
                return self._awaited(now)
            if call.name == "negative" and not sent:
                self._s.cancel = None
            if call.name == "prewarm":
                self._s.first = None
                return self._not_sent(command_id, info)
            if not sent:
                return self._not_sent(command_id, info)
            if call.name in ("message", "answer") and self._s.session is not None:
                return self._in_doubt(command_id, info, now)
            self._s.pending = [p for p in self._s.pending if p["command_id"] != command_id]
            self._s.doubtful.pop(command_id, None)
            if call.name == "negative":
                self._s.cancel = None
            return [_settled(command_id, "unknown", info)]
        finally:
            self._set_alarm()

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._touch()
        line = self._s.lines.get(call.thread_id)
        if call.thread_id == ev.MAIN:
            at_once = self._opened_at is not None and now - self._opened_at < AT_ONCE_MS
            silent = self._frames == self._opened_frames
            ended = reason is CloseReason.ENDED and at_once and silent
            self._ended_at_once = self._ended_at_once + 1 if ended else 0
            self._opened_at = None
        out: list[ev.Event] = []
        if line is not None and reason is CloseReason.ENDED:
            if line.settled is not None:
                out += self._settle(line, line.settled)
            out += self._decide_and_release(line, "unknown")
            out += self._flush(line)
        self._set_alarm()
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._touch()
        line = self._s.lines.get(thread_id)
        if thread_id != ev.MAIN and line is not None:
            line.closed_stream = True
            self._refused.discard(thread_id)
            return self._end_child(line)
        out = self._lost(ev.ErrorInfo(code=SESSION_LOST, message=error.message))
        self._set_alarm()
        return out

    def _lost(self, error: ev.ErrorInfo) -> list[ev.Event]:
        s = self._s
        error = ev.ErrorInfo(code=SESSION_LOST, message=error.message, details=error.details)
        taken = [item["command_id"] for item in s.pending if item["settled"]]
        out = self._close_inputs(error)
        if taken and s.lines[ev.MAIN].turn is None:
            # Nothing came of what was taken, and whoever said it waits for an end.
            turn_id = f"lost_{taken[0]}"
            begin = ev.TurnStarted(
                thread_id=ev.MAIN, turn_id=turn_id, cause="message", synthetic=True
            )
            end = ev.TurnEnded(
                thread_id=ev.MAIN, turn_id=turn_id, outcome="failed", error=error, synthetic=True
            )
            out = [begin, *out, end]
        for line in s.lines.values():
            out += self._decide_and_release(line, "unknown")
            if line.turn is not None:
                line.ending = {"outcome": "failed", "error": _dump(error)}
                out += self._flush(line)
            line.closed_stream = line.thread != ev.MAIN
        s.control, s.reset_at, s.cancel = 0, None, None
        s.answers.clear()
        return out

    def _close_inputs(self, error: ev.ErrorInfo | None) -> list[ev.Event]:
        """Settle what will not show any more; a message that was taken gets its receipt (law 7)."""
        s = self._s
        out: list[ev.Event] = []
        for item in s.pending:
            if item["settled"]:
                out += self._receipt(item, None, None, synthetic=True)
            else:
                out.append(_settled(item["command_id"], "unknown", error))
            s.doubtful.pop(item["command_id"], None)
        if s.cancel is not None:
            out += self._cancelled(s.cancel)
            s.cancel = None
        for command_id in s.doubtful:
            out.append(_settled(command_id, "unknown", error))
        s.pending, s.doubtful, s.retries = [], {}, []
        return out

    @property
    def patience(self) -> int:  # type: ignore[override]
        """Return how long nothing new is borne: who opens streams may be silent for long."""
        if self._refused:
            return LOST_PATIENCE_MS
        if self._ended_at_once >= AT_ONCE_MOST:
            return AT_ONCE_PATIENCE_MS
        return PAUSED_PATIENCE_MS if self._s.requests else QUIET_PATIENCE_MS

    # Time.

    def tick(self, now: int) -> list[ev.Event]:
        self._touch()
        s = self._s
        out: list[ev.Event] = []
        for line in list(s.lines.values()):
            if line.held and now >= line.held_at + HOLD_MS:
                out += self._decide_and_release(line, "unknown")
            if line.settled is not None and now >= line.settled_at + HOLD_MS:
                out += self._settle(line, line.settled)
            if line.ending is not None and now >= line.ending_at + END_HOLD_MS:
                out += self._flush(line)
            if line.outcome is not None and now >= line.outcome_at + CHILD_HOLD_MS:
                out += self._end_child(line)
        for retry in s.retries:
            if retry["at"] is not None and now >= retry["at"]:
                retry["at"] = None
                self._retry(retry)
        for command_id, item in list(s.doubtful.items()):
            due = self._decided_at(item)
            if due is not None and now >= due:
                out += self._nothing_shows(command_id)
        out += self._overdue(now)
        self._set_alarm()
        return out

    def _retry(self, retry: dict[str, Any]) -> None:
        headers = CIMultiDict({"Content-Type": "application/json"})
        body = None if retry["body"] is None else retry["body"].encode()
        request = Request("POST", retry["path"], headers=headers, body=body)
        self._todo.append(Call(retry["name"], request, command_id=retry["command_id"]))

    def _decided_at(self, item: dict[str, Any]) -> int | None:
        """Return when silence is evidence: the time is over, and the stream has been read."""
        if item["at"] is None or self._opened_at is None:
            return None
        return max(cast(int, item["at"]), self._opened_at + CATCH_UP_MS)

    def _nothing_shows(self, command_id: str) -> list[ev.Event]:
        s = self._s
        s.doubtful.pop(command_id, None)
        known = [item for item in s.pending if item["command_id"] == command_id]
        if known and known[0]["settled"]:
            return []
        s.pending = [item for item in s.pending if item["command_id"] != command_id]
        error = ev.ErrorInfo(
            code="no_evidence", message="eve: the stream shows nothing of the command"
        )
        return [_settled(command_id, "unknown", error), *self._release_claims(command_id)]

    def _overdue(self, now: int) -> list[ev.Event]:
        s = self._s
        out: list[ev.Event] = []
        if s.cancel is not None and s.cancel["at"] is not None and now >= s.cancel["at"]:
            if s.cancel["command_id"] is None:
                s.cancel = None
            else:
                out += self._cancel_now()
        if s.reset_at is not None and now >= s.reset_at:
            out += self._end_session("terminated", None)
        due = self._gone_due()
        if due is not None and now >= due:
            s.gone_at = None
            out += self._gone(s.lines[ev.MAIN], "the turn was cancelled and shows no end")
        if s.orphans_at is not None and now >= s.orphans_at:
            s.orphans_at = None
            for line in list(s.lines.values()):
                if line.thread != ev.MAIN and not line.done:
                    line.outcome = line.outcome or {"status": "cancelled", "synthetic": True}
                    out += self._end_child(line)
        return out

    def _gone(self, line: _Line, message: str, usage: ev.Usage | None = None) -> list[ev.Event]:
        """End a turn as failed that the backend does not have any more, and not the session."""
        out = self._decide_and_release(line, "unknown")
        error = ev.ErrorInfo(code=TURN_LOST, message=f"eve: {message}")
        line.ending = {"outcome": "failed", "error": _dump(error)}
        return out + self._flush(line, usage)

    def _gone_due(self) -> int | None:
        """Return when a turn that is not active has had its time to show its end."""
        if self._s.gone_at is None or self._opened_at is None:
            return None
        return max(self._s.gone_at, self._opened_at + CATCH_UP_MS)

    def _cancel_now(self, turn_id: str | None = None) -> list[ev.Event]:
        """Do the second step of an interrupt: the turn that it is for has begun."""
        cancel, self._s.cancel = self._s.cancel, None
        assert cancel is not None
        if self._s.session is not None:
            self._todo.append(self._cancel_call("cancel", None, turn_id))
        return self._cancelled(cancel)

    def _cancelled(self, cancel: dict[str, Any]) -> list[ev.Event]:
        command_id = cancel["command_id"]
        return [] if command_id is None else [_settled(command_id, "taken")]

    def _set_alarm(self) -> None:
        s = self._s
        times: list[int] = []
        for line in s.lines.values():
            if line.held:
                times.append(line.held_at + HOLD_MS)
            if line.settled is not None:
                times.append(line.settled_at + HOLD_MS)
            if line.ending is not None:
                times.append(line.ending_at + END_HOLD_MS)
            if line.outcome is not None:
                times.append(line.outcome_at + CHILD_HOLD_MS)
        times += [retry["at"] for retry in s.retries if retry["at"] is not None]
        dues = [self._decided_at(item) for item in s.doubtful.values()]
        times += [due for due in dues if due is not None]
        times += [at for at in (s.reset_at, s.orphans_at, self._gone_due()) if at is not None]
        if s.cancel is not None and s.cancel["at"] is not None:
            times.append(s.cancel["at"])
        self.wake_at = min(times, default=None)

    # The state.

    def _touch(self) -> None:
        self._revision += 1
        self._dirty = True

    @property
    def frames(self) -> int:
        return self._frames

    @property
    def position(self) -> bytes:
        # The token is in the snapshot only: what changes it is never followed by deltas alone.
        return self._stored(token=False) if self._dirty else self._stored(state=False)

    def snapshot(self) -> bytes:
        self._dirty = False
        return self._stored()

    def _stored(self, *, state: bool = True, token: bool = True) -> bytes:
        value: dict[str, Any] = {"f": self._frames, "n": self._counts, "r": self._revision}
        if state:
            held = {t: line.held for t, line in self._s.lines.items() if line.held}
            kept = self._s.token
            try:
                for thread, events in held.items():
                    self._s.lines[thread].held = [_raw_dump(event) for event in events]
                if not token:
                    self._s.token = None
                value["s"] = orjson.Fragment(orjson.dumps(self._s))
            finally:
                self._s.token = kept
                for thread, events in held.items():
                    self._s.lines[thread].held = events
        return orjson.dumps(value)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        found = [cast(dict[str, Any], parse_json(b)) for b in (snapshot, position) if b is not None]
        states = [value for value in found if "s" in value]
        if states:
            newest = max(states, key=lambda value: value["r"])
            state = dict(newest["s"])
            token = state["token"] or next((v["s"]["token"] for v in states), None)
            lines = {t: _Line(**line) for t, line in state["lines"].items()}
            self._s = _State(**{**state, "lines": lines, "token": token})
            for line in lines.values():
                line.held = [_raw_load(item) for item in line.held]
        for value in found:
            self._frames = max(self._frames, value["f"])
            self._revision = max(self._revision, value["r"])
            for thread, count in value["n"].items():
                self._counts[thread] = max(self._counts.get(thread, 0), count)
        self._recent.clear()
        self._todo, self._refused, self._dirty = [], set(), True
        self._opened_at = None
        if self._s.generation is not None:
            self._set_abilities()
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, bytes)
        thread = call.thread_id
        try:
            value = parse_json(frame)
        except JsonError as error:
            return self.garbage(call, frame, str(error), now)
        if type(value) is not dict or not isinstance(value.get("type"), str):
            if type(value) is dict and "$eve" in value:
                # A control record is no event and is not counted (section 7.4).
                return []
            return self.garbage(call, frame, "a line is no event", now)
        self._frames += 1
        line = self._s.lines.get(thread)
        if line is None:
            line = self._s.lines[thread] = _Line(thread, parent=ev.MAIN)
        if self._s.gone_at is not None and thread == ev.MAIN:
            self._s.gone_at = now + self._s.gone_after
        type_: str = value["type"]  # type: ignore[assignment]
        data: Any = value.get("data")
        meta: Any = value.get("meta")
        if type(data) is not dict:
            data = {}
        if type(meta) is not dict:
            meta = {}
        id_, at = meta.get("id"), meta.get("at")
        if type(id_) is str and id_:
            key = f"{thread}/{id_}"
            check = zlib.crc32(frame)
            if self._recent.get(key) == check:
                # Not counted: a place too early brings it once more, one too late loses a record.
                return []
            self._recent[key] = check
            if len(self._recent) > RECENT_IDS:
                self._recent.popitem(last=False)
        else:
            id_ = None
        self._counts[thread] = self._counts.get(thread, 0) + 1
        native = ev.NativeRef(
            dialect="eve",
            id=id_,
            type=type_,
            at=at if type(at) is str else None,
            frame=self._frames,
        )
        # The hot path: the next piece of the open block.
        if (
            line.text
            and type_ == "message.appended"
            and not line.held
            and line.ending is None
            and line.settled is None
            and line.paused is None
        ):
            piece = data.get("messageDelta")
            if type(piece) is str:
                return [
                    ev.TextDelta(
                        thread_id=thread,
                        turn_id=line.turn,
                        block_id=_block_id(line),
                        message_id=_message_id(line),
                        text=piece,
                        native=native,
                        extra=_rest(data, _APPENDED_KEYS),
                    )
                ]
        self._touch()
        deliveries = meta.get("deliveryIds")
        ids = [d for d in deliveries if isinstance(d, str)] if isinstance(deliveries, list) else []
        record = _Record(type_, data, ids, native, now)
        out = self._overtaken(line, type_)
        handler = _HANDLERS.get(type_, EveClient._unknown)
        out += handler(self, line, record)
        out = self._hold(line, out, now)
        if self._todo or line.held or self.wake_at is not None or self._waits():
            self._set_alarm()
        return out

    def _overtaken(self, line: _Line, type_: str) -> list[ev.Event]:
        """Return what waited for a record that has not come: another one has."""
        out: list[ev.Event] = []
        if line.settled is not None and type_ != "input.resolved":
            out += self._settle(line, line.settled)
        if line.ending is not None and type_ != "session.waiting":
            if type_ in ("session.completed", "session.failed"):
                # The session ends with the turn: nothing says that it waits.
                line.ending["extra"] = {**(line.ending.get("extra") or {}), wire.BOUNDARY: False}
            out += self._flush(line)
        return out

    def _waits(self) -> bool:
        s = self._s
        return (
            s.orphans_at is not None
            or s.gone_at is not None
            or any(
                line.ending is not None or line.outcome is not None or line.settled is not None
                for line in s.lines.values()
            )
        )

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        line = self._s.lines.get(call.thread_id)
        return [
            ev.ErrorReported(
                thread_id=call.thread_id,
                turn_id=None if line is None else line.turn,
                code=str(ErrorCode.BACKEND_PROTOCOL),
                message=f"eve: {reason}",
                details={"offending": offending[:512].decode("utf-8", "backslashreplace")},
                synthetic=True,
            )
        ]

    # Holding a tool call until its permission is known.

    def _hold(self, line: _Line, events: list[ev.Event], now: int) -> list[ev.Event]:
        """Keep back undecided calls, and what may not overtake them."""
        if not line.held and not any(type(event) is ev.ToolCalled for event in events):
            return events
        if not line.held:
            line.held_at = now
        line.held = line.held + events
        return self._released(line)

    def _released(self, line: _Line) -> list[ev.Event]:
        """Return what may go: calls in the order in which they were asked for (section 8.1)."""
        out: list[ev.Event] = []
        kept: list[ev.Event] = []
        held: set[str] = set()
        stopped = False
        for event in line.held:
            if stopped:
                kept.append(event)
            elif isinstance(event, ev.ToolCalled):
                call = line.calls.get(event.call_id)
                permission = "unknown" if call is None else call["permission"]
                if permission is None or held:
                    kept.append(event)
                    held.add(event.call_id)
                else:
                    out.append(event.model_copy(update={"permission": permission}))
            elif isinstance(event, ev.ToolProgressed | ev.ToolReturned) and event.call_id in held:
                kept.append(event)
            elif kept and event.TYPE not in _OVERTAKING:
                stopped = True
                kept.append(event)
            else:
                out.append(event)
        line.held = kept
        return out

    def _decide(self, line: _Line, call_id: object, permission: ev.Permission) -> None:
        call = line.calls.get(call_id) if isinstance(call_id, str) else None
        if call is not None and call["permission"] is None:
            call["permission"] = permission

    def _decide_all(self, line: _Line, permission: ev.Permission) -> None:
        for call in line.calls.values():
            if call["permission"] is None:
                call["permission"] = permission

    def _decide_and_release(self, line: _Line, permission: ev.Permission) -> list[ev.Event]:
        self._decide_all(line, permission)
        return self._released(line)

    # Turns.

    def _turn_id(self, line: _Line, record: _Record) -> str:
        native = record.data.get("turnId")
        if not isinstance(native, str) or not native:
            number = record.data.get("sequence")
            native = f"turn_{number}" if isinstance(number, int) else f"turn_{line.turns}"
        # Every stream counts its turns from 0: a child's are told apart by its name.
        return native if line.thread == ev.MAIN else f"{line.thread}:{native}"

    def _begin(
        self, line: _Line, turn_id: str, native: ev.NativeRef | None, **fields: Any
    ) -> ev.Event:
        line.turn, line.closed, line.paused, line.empty, line.heard = (
            turn_id,
            False,
            None,
            True,
            None,
        )
        line.turns += 1
        line.step, line.step_turn, line.step_open, line.step_done = None, None, False, True
        line.step_base, line.step_top = 0, -1
        line.text = line.reasoning = False
        line.calls, line.said, line.unrelayed = {}, [], []
        waiting = line.thread != ev.MAIN or any(p for p in self._s.pending)
        return ev.TurnStarted(
            thread_id=line.thread,
            turn_id=turn_id,
            cause="message" if waiting else "unknown",
            native=native,
            **fields,
        )

    def _in_turn(self, line: _Line, record: _Record) -> list[ev.Event]:
        """Open or resume the turn that the work of a record is in, where nothing said so."""
        line.empty = False
        if line.turn is None:
            turn_id = self._turn_id(line, record)
            if self._is_over(line, record):
                return []
            line.native = _text(record.data.get("turnId"))
            line.sequence = _sequence(record, line.sequence)
            return [self._begin(line, turn_id, record.native, synthetic=True)]
        if line.paused is None:
            return []
        line.paused = None
        if line.closed:
            # After a relayed request T goes on without a `turn.started` (section 8.2).
            line.closed = False
            line.step_base = line.step_top + 1
            number = _sequence(record, line.sequence + 1)
            line.native = _text(record.data.get("turnId")) or f"turn_{number}"
            line.sequence = _sequence(record, line.sequence)
        return [
            ev.TurnResumed(
                thread_id=line.thread, turn_id=line.turn, native=record.native, synthetic=True
            )
        ]

    def _is_over(self, line: _Line, record: _Record) -> bool:
        """Say whether a record belongs to a turn that has ended."""
        number = record.data.get("sequence")
        return line.last is not None and isinstance(number, int) and number <= line.sequence

    def _current(self, line: _Line, record: _Record) -> str | None:
        """Return the canonical turn of a record: the open one, else the one it is late for."""
        return line.turn if line.turn is not None else line.last

    def _turn_started(self, line: _Line, record: _Record) -> list[ev.Event]:
        native_id = _text(record.data.get("turnId"))
        extra = _rest(record.data, _C_KEYS)
        out: list[ev.Event] = []
        if line.turn is not None:
            resumes = line.closed
            if not resumes and line.native in (None, native_id):
                # The same turn, said again (a retried step) or announced before by us.
                line.native = native_id
                line.sequence = _sequence(record, line.sequence)
                return []
            if not resumes:
                # The normalizer writes the end that this one does not have.
                out += self._decide_and_release(line, "unknown") + self._turn_over(line)
            else:
                line.native, line.sequence = native_id, _sequence(record, line.sequence)
                line.closed, line.paused, line.empty, line.heard = False, None, True, None
                line.said = []
                # A child that resumes says its own turn again, and counts on.
                same = line.step_turn == native_id
                line.step_base = line.step_base if same else line.step_top + 1
                if line.thread == ev.MAIN and self._s.cancel is not None:
                    # By its name: a late cancel must not hit the turn of the next message.
                    out += self._cancel_now(native_id)
                return [
                    *out,
                    ev.TurnResumed(
                        thread_id=line.thread, turn_id=line.turn, native=record.native, extra=extra
                    ),
                ]
        out += self._decide_and_release(line, "unknown")
        for item in self._s.pending:
            # Inputs are settled before the turn that they own, so that faces can name them in it.
            mine = item["delivery"] in record.deliveries if item["delivery"] else item["creates"]
            if line.thread == ev.MAIN and mine and not item["settled"]:
                item["settled"] = True
                out.append(_settled(item["command_id"], "taken"))
        turn_id = self._turn_id(line, record)
        line.native, line.sequence = native_id, _sequence(record, line.sequence)
        out.append(self._begin(line, turn_id, record.native, extra=extra))
        if line.thread == ev.MAIN and self._s.cancel is not None:
            out += self._cancel_now(native_id)
        return out

    def _turn_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        return self._end(line, record, {"outcome": "completed"}, _C_KEYS)

    def _turn_cancelled(self, line: _Line, record: _Record) -> list[ev.Event]:
        if line.turn is None and line.thread == ev.MAIN and self._is_over(line, record):
            return self._taken_back(line, record)
        out = self._infer_answered(line, record.native)
        return out + self._end(line, record, {"outcome": "interrupted"}, _C_KEYS)

    def _taken_back(self, line: _Line, record: _Record) -> list[ev.Event]:
        """Hear that the backend cancels a turn that has ended: the next boundary is of no turn."""
        line.taken_back = True
        return [
            ev.ErrorReported(
                thread_id=line.thread,
                turn_id=line.last,
                code="turn_taken_back",
                message="eve: a cancel came as the turn ended; the agent has forgotten the turn.",
                native=record.native,
            )
        ]

    def _turn_failed(self, line: _Line, record: _Record) -> list[ev.Event]:
        error = _error(record.data)
        over = error.code in _LIMIT_CODES
        ending = {"outcome": "over_budget" if over else "failed", "error": _dump(error)}
        return self._end(line, record, ending, _FAILURE_KEYS)

    def _end(
        self, line: _Line, record: _Record, ending: dict[str, Any], known: frozenset[str]
    ) -> list[ev.Event]:
        """Hold the end of a turn: the boundary after it tells the usage."""
        self._decide_all(line, "unknown")
        out: list[ev.Event] = []
        if line.turn is None:
            if self._is_over(line, record):
                return []
            out += self._in_turn(line, record)
            line.empty = True
        if line.thread == ev.MAIN:
            # A message that was taken as an answer joins the turn, and S2 does not report it.
            said = [p for p in self._s.pending if p["delivery"] in record.deliveries]
            for item in said:
                self._s.pending.remove(item)
                if not item["settled"]:
                    out.append(_settled(item["command_id"], "taken"))
                out += self._receipt(item, line.turn, record.native, synthetic=True)
        line.ending = {
            **ending,
            "native": _dump(record.native),
            "extra": _rest(record.data, known),
        }
        line.ending_at = record.now
        return out

    def _flush(self, line: _Line, usage: ev.Usage | None = None) -> list[ev.Event]:
        """Write the end of a turn that was held: an end, or in the closed form a pause."""
        ending, line.ending = line.ending, None
        if ending is None:
            return []
        if "control" in ending:
            return [_raw_load(ending["control"])]
        line.owed = True
        if line.turn is None:
            return []
        native = ev.NativeRef(**ending["native"]) if ending.get("native") else None
        outcome = ending["outcome"]
        out: list[ev.Event] = []
        if outcome == "completed" and self._folds:
            out += self._infer_at_end(line, native)
            if line.unrelayed or self._asked(line):
                line.closed, line.paused, line.step_open = True, "input", False
            if line.unrelayed:
                # The pause is told with the request.
                return out
            if line.closed:
                out.append(
                    ev.TurnPaused(
                        thread_id=line.thread,
                        turn_id=line.turn,
                        on="input",
                        usage=usage,
                        native=native,
                        extra=ending.get("extra"),
                    )
                )
                return out
        error = ending.get("error")
        held_back = line.empty and line.heard is not None and self._s.generation == "T"
        if outcome == "completed" and held_back:
            # Section 8.2: T holds a message back while it waits for an answer, but none is asked.
            outcome, error = "failed", _HELD_BACK
        out.append(
            ev.TurnEnded(
                thread_id=line.thread,
                turn_id=line.turn,
                outcome=outcome,
                error=None if error is None else ev.ErrorInfo(**error),
                usage=usage,
                native=native,
                extra=ending.get("extra"),
            )
        )
        return out + self._turn_over(line)

    def _turn_over(self, line: _Line) -> list[ev.Event]:
        s = self._s
        if line.thread == ev.MAIN:
            s.gone_at = None
        line.last, line.turn = line.turn, None
        line.closed, line.paused, line.step_open = False, None, False
        line.text = line.reasoning = False
        line.calls, line.unrelayed = {}, []
        for request_id, request in list(s.requests.items()):
            if request["thread"] == line.thread:
                # The normalizer settles them with the turn.
                del s.requests[request_id]
                s.answers.pop(request_id, None)
                s.resolved.append(request_id)
        out: list[ev.Event] = []
        if line.thread == ev.MAIN:
            if s.stopping:
                # Also when it has ended by itself: 0.30.8 may take it back afterwards.
                s.unsaid += s.answered
            s.answered, s.stopping = [], False
            if s.cancel is not None:
                # The turn is over without our cancel: nothing is left to stop.
                out += self._cancelled(s.cancel)
                s.cancel = None
            if any(child.thread != ev.MAIN and not child.done for child in s.lines.values()):
                s.orphans_at = line.ending_at + CHILD_HOLD_MS
        elif line.outcome is not None:
            out += self._end_child(line)
        return out

    def _turn_waiting(self, line: _Line, record: _Record) -> list[ev.Event]:
        on = "tasks" if record.data.get("on") == "tasks" else "input"
        self._decide_all(line, "allow" if on == "tasks" else "unknown")
        if line.turn is None:
            if self._is_over(line, record):
                return []
            out = self._in_turn(line, record)
        else:
            out = []
        asked = self._asked(line)
        if on == line.paused == "input" and asked and set(asked) < set(line.named):
            # Said again after one of several answers; that it still waits is in the log already.
            line.named = asked
            return out
        line.paused, line.step_open, line.named = on, False, asked
        if on == "input" and line.unrelayed:
            # The pause is told with the request.
            return out
        out.append(
            ev.TurnPaused(
                thread_id=line.thread,
                turn_id=line.turn,
                on=cast(Literal["input", "tasks"], on),
                usage=_usage(record.data.get("usage")),
                native=record.native,
                extra=_rest(record.data, _WAITING_KEYS),
            )
        )
        return out

    # The session.

    def _session_started(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        runtime = data.get("runtime") if isinstance(data.get("runtime"), dict) else {}
        assert isinstance(runtime, dict)
        agent = {
            ours: runtime[theirs]
            for ours, theirs in (("id", "agentId"), ("name", "agentName"), ("model", "modelId"))
            if isinstance(runtime.get(theirs), str)
        }
        if line.agent is not None and line.agent == agent:
            # A retried first step says it again (section 8.1).
            return []
        line.agent = agent
        extra = _rest(data, frozenset({"runtime", "predecessor"})) or {}
        rest = _rest(runtime, frozenset({"agentId", "agentName", "modelId"}))
        if rest:
            extra["runtime"] = rest
        if line.thread != ev.MAIN:
            return [
                ev.ThreadUpdated(
                    thread_id=line.thread,
                    agent=agent or None,
                    native=record.native,
                    extra=extra or None,
                )
            ]
        if isinstance(runtime.get("modelId"), str):
            self._s.model = runtime["modelId"]
        self._know_version(runtime.get("eveVersion"))
        predecessor = data.get("predecessor")
        before = predecessor.get("sessionId") if isinstance(predecessor, dict) else None
        return [
            ev.SessionUpdated(
                thread_id=ev.MAIN,
                agent=agent or None,
                predecessor=before if isinstance(before, str) else None,
                native=record.native,
                extra=extra or None,
            )
        ]

    def _session_waiting(self, line: _Line, record: _Record) -> list[ev.Event]:
        s = self._s
        usage = _usage(record.data.get("usage"))
        self._decide_all(line, "unknown")
        out = self._released(line)
        alone = line.ending is None and s.control == 0
        owed, line.owed = line.owed, False
        if line.thread == ev.MAIN:
            token = record.data.get("continuationToken")
            if isinstance(token, str) and token and s.generation in (None, "T"):
                s.token = token
            if line.taken_back:
                line.taken_back = False
                return out
            if line.ending is None or "control" in line.ending:
                s.control = max(0, s.control - 1)
        if line.ending is not None and "control" not in line.ending:
            if rest := _rest(record.data, _BOUNDARY_KEYS):
                line.ending["extra"] = {**(line.ending.get("extra") or {}), wire.BOUNDARY: rest}
            out += self._flush(line, usage)
            line.owed = False
            return out
        if alone and line.thread == ev.MAIN and line.turn is not None and line.paused != "input":
            # Section 8.1: a boundary follows the end of its turn. This one has forgotten it.
            line.ending_at = record.now
            return out + self._gone(line, "the session waits, and its turn has no end", usage)
        if line.thread != ev.MAIN and line.outcome is not None and line.turn is None:
            out += self._end_child(line)
        if usage is not None:
            out.append(
                ev.UsageReported(
                    thread_id=line.thread,
                    turn_id=line.turn,
                    usage=usage,
                    scope="session",
                    native=record.native,
                )
            )
        if line.ending is None and not owed:
            # It says that an input, or a control, came to nothing.
            out += self._unknown(line, record)
        # What has changed the context outside of turns comes after the usage that it led to.
        return out + self._flush(line)

    def _session_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        reset = self._s.reset_at is not None
        return self._session_over(line, record, "terminated" if reset else "completed", None)

    def _session_failed(self, line: _Line, record: _Record) -> list[ev.Event]:
        return self._session_over(line, record, "failed", _error(record.data))

    def _session_over(
        self, line: _Line, record: _Record, outcome: Any, error: ev.ErrorInfo | None
    ) -> list[ev.Event]:
        out = self._decide_and_release(line, "unknown")
        usage = _usage(record.data.get("usage"))
        if usage is not None:
            out.append(
                ev.UsageReported(
                    thread_id=line.thread, usage=usage, scope="session", native=record.native
                )
            )
        if line.turn is not None and error is not None:
            native = _dump(record.native)
            line.ending = {"outcome": "failed", "error": _dump(error), "native": native}
            out += self._flush(line)
        if line.thread != ev.MAIN:
            line.closed_stream = True
            if line.outcome is not None:
                out += self._end_child(line)
            return out
        return out + self._end_session(
            outcome, error, record.native, _rest(record.data, _SESSION_FAILED_KEYS)
        )

    def _end_session(
        self,
        outcome: Any,
        error: ev.ErrorInfo | None,
        native: ev.NativeRef | None = None,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        s = self._s
        if s.ended:
            return []
        out: list[ev.Event] = []
        for line in s.lines.values():
            out += self._decide_and_release(line, "unknown")
            out += self._flush(line)
        out += self._close_inputs(error)
        s.ended, s.reset_at, s.orphans_at, s.control = True, None, None, 0
        s.requests, s.answers = {}, {}
        for line in s.lines.values():
            line.outcome = None
        out.append(
            ev.SessionEnded(
                thread_id=ev.MAIN,
                outcome=outcome,
                error=error,
                native=native,
                synthetic=native is None,
                extra=extra,
            )
        )
        return out

    def _compaction(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        tokens = data.get("usageInputTokens")
        model = data.get("modelId")
        number = isinstance(tokens, int | float) and not isinstance(tokens, bool)
        compacted = ev.ContextCompacted(
            thread_id=line.thread,
            # Its coordinates name the next turn when none is open (section 6).
            turn_id=line.turn,
            phase="started" if record.type == "compaction.requested" else "completed",
            before_tokens=tokens if number else None,
            model=model if isinstance(model, str) else None,
            native=record.native,
            extra=_rest(data, _COMPACTION_KEYS),
        )
        return self._controls(line, record, compacted)

    def _controls(self, line: _Line, record: _Record, event: ev.Event) -> list[ev.Event]:
        """Hold a change outside of turns until its boundary tells the usage."""
        if line.turn is not None or record.type == "compaction.requested":
            return [event]
        line.ending, line.ending_at = {"control": _raw_dump(event)}, record.now
        return []

    def _context_cleared(self, line: _Line, record: _Record) -> list[ev.Event]:
        cleared = ev.ContextCleared(
            thread_id=line.thread,
            turn_id=line.turn,
            native=record.native,
            extra=_rest(record.data, _CLEARED_KEYS),
        )
        return self._controls(line, record, cleared)

    def _unknown(self, line: _Line, record: _Record) -> list[ev.Event]:
        return [
            ev.Native(
                thread_id=line.thread,
                turn_id=line.turn,
                dialect="eve",
                name=record.type,
                frame={"type": record.type, "data": _clean(record.data)},
                native=record.native,
            )
        ]

    # Messages.

    def _message_received(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        text = data.get("message")
        text = text if isinstance(text, str) else ""
        native_turn = _text(data.get("turnId"))
        new = [d for d in record.deliveries if d not in line.deliveries]
        item = self._matching(line, record, text)
        if item is None and [native_turn, text] in line.said and not new:
            # A retried step repeats it under the same coordinates (section 8.1).
            return []
        line.deliveries = record.deliveries or line.deliveries
        line.said.append([native_turn, text])
        line.heard = text
        self._decide_all(line, "unknown")
        out: list[ev.Event] = []
        if line.turn is None or line.paused is not None:
            was_empty = line.empty
            out += self._in_turn(line, record)
            line.empty = was_empty or line.turns == 0
        if item is None:
            out.append(
                ev.MessageReceived(
                    thread_id=line.thread,
                    turn_id=self._current(line, record),
                    message_id=record.native.id or f"message-{self._frames}",
                    content=_content(data, text),
                    native=record.native,
                    extra=_rest(data, _RECEIVED_KEYS),
                )
            )
            return out
        self._s.pending.remove(item)
        self._s.doubtful.pop(item["command_id"], None)
        self._s.retries = [r for r in self._s.retries if r["command_id"] != item["command_id"]]
        if not item["settled"]:
            out.append(_settled(item["command_id"], "taken"))
        return out + self._receipt(
            item, self._current(line, record), record.native, extra=_rest(data, _RECEIVED_KEYS)
        )

    def _matching(self, line: _Line, record: _Record, text: str) -> dict[str, Any] | None:
        """Return the message of ours that a record reports: by its delivery, else by its words."""
        if line.thread != ev.MAIN:
            return None
        pending = self._s.pending
        for item in pending:
            mine = item["delivery"] is not None and item["delivery"] in record.deliveries
            if mine and (item["delivery"] not in line.deliveries or item["flat"] == text):
                return item
        loose = [p for p in pending if p["delivery"] is None or not record.deliveries]
        for item in loose:
            if item["flat"] == text or item["creates"]:
                return item
        # T names no deliveries: one message is on its way, and one message came.
        if self._s.generation == "T" and len(loose) == 1 and loose[0]["settled"]:
            return loose[0]
        return None

    def _receipt(
        self,
        item: dict[str, Any],
        turn_id: str | None,
        native: ev.NativeRef | None,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        if item["kind"] == "steer" and turn_id is not None:
            return [
                ev.GuidanceReceived(
                    thread_id=ev.MAIN,
                    turn_id=turn_id,
                    text=item["flat"],
                    command_id=item["command_id"],
                    native=native,
                    synthetic=synthetic,
                    extra=extra,
                )
            ]
        return [
            ev.MessageReceived(
                thread_id=ev.MAIN,
                turn_id=turn_id,
                message_id=item["command_id"],
                content=tuple(item["content"]),
                command_id=item["command_id"],
                native=native,
                synthetic=synthetic,
                extra=extra,
            )
        ]

    # Steps and text.

    def _step_started(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        index = data.get("stepIndex")
        index = (
            index if isinstance(index, int) and not isinstance(index, bool) else (line.step or 0)
        )
        native_turn = _text(data.get("turnId"))
        self._decide_all(line, "allow")
        retried = line.step == index and line.step_turn == native_turn and not line.step_done
        out: list[ev.Event] = []
        if retried:
            # What the first try wrote is not part of the conversation.
            out += self._end_blocks(line, "discarded")
        else:
            line.steps += 1
            if line.thread == ev.MAIN:
                self._keep_answers(again=line.step_turn == native_turn)
        out += self._in_turn(line, record)
        out += self._infer_answered(line, record.native)
        line.step, line.step_turn, line.step_open, line.step_done = index, native_turn, True, False
        model = data.get("modelId")
        out.append(
            ev.StepStarted(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                step_index=self._place(line, index),
                model=model if isinstance(model, str) else self._model(line),
                native=record.native,
                extra=_rest(data, _STEP_KEYS),
            )
        )
        return out

    def _keep_answers(self, *, again: bool) -> None:
        """Hear that a step begins: T keeps what was answered before the step before, if any."""
        s = self._s
        if again:
            s.answered = []
        elif s.unsaid:
            s.answered, s.unsaid = s.unsaid, []

    def _model(self, line: _Line) -> str | None:
        """Return the model that T names once, for all steps (section 9.1)."""
        return (line.agent or {}).get("model")

    def _step_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        # A model call that was cut leaves its block open (section 5.1).
        out = self._end_blocks(line, "partial")
        reason = data.get("finishReason")
        out.append(
            ev.StepEnded(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                step_index=self._place(line, self._step_index(line, data)),
                finish_reason=reason if isinstance(reason, str) else None,
                usage=_usage(data.get("usage")),
                native=record.native,
                extra=_rest(data, _STEP_COMPLETED_KEYS),
            )
        )
        line.step_open, line.step_done = False, True
        return out

    def _step_failed(self, line: _Line, record: _Record) -> list[ev.Event]:
        line.step_open = False
        return [
            ev.StepEnded(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                step_index=self._place(line, self._step_index(line, record.data)),
                error=_error(record.data),
                native=record.native,
                extra=_rest(record.data, _FAILURE_KEYS),
            )
        ]

    def _place(self, line: _Line, index: int) -> int:
        """Return the place of a step in the canonical turn."""
        place = line.step_base + index
        line.step_top = max(line.step_top, place)
        return place

    def _step_index(self, line: _Line, data: dict[str, Any]) -> int:
        index = data.get("stepIndex")
        if isinstance(index, int) and not isinstance(index, bool):
            return index
        return line.step or 0

    def _end_blocks(self, line: _Line, status: Literal["partial", "discarded"]) -> list[ev.Event]:
        out: list[ev.Event] = []
        kinds: tuple[Literal["reasoning", "text"], ...] = ("reasoning", "text")
        for kind in kinds:
            if getattr(line, kind):
                setattr(line, kind, False)
                out.append(
                    BlockEnded(
                        thread_id=line.thread,
                        turn_id=line.turn,
                        block=kind,
                        status=status,
                        synthetic=True,
                    )
                )
        return out

    def _open_block(self, line: _Line, kind: str) -> None:
        if not getattr(line, kind):
            setattr(line, kind, True)
            line.blocks += 1

    def _appended(self, line: _Line, record: _Record) -> list[ev.Event]:
        is_text = record.type == "message.appended"
        piece = record.data.get("messageDelta" if is_text else "reasoningDelta")
        if not isinstance(piece, str):
            return self._unknown(line, record)
        out = self._in_turn(line, record)
        self._open_block(line, "text" if is_text else "reasoning")
        make = ev.TextDelta if is_text else ev.ReasoningDelta
        out.append(
            make(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                block_id=_block_id(line),
                message_id=_message_id(line),
                text=piece,
                native=record.native,
                extra=_rest(record.data, _APPENDED_KEYS),
            )
        )
        return out

    def _message_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        text, reason = data.get("message"), data.get("finishReason")
        out = self._in_turn(line, record)
        extra = _rest(data, _COMPLETED_KEYS) or {}
        fields: dict[str, Any] = {
            "thread_id": line.thread,
            "turn_id": self._current(line, record),
            "finish_reason": reason if isinstance(reason, str) else None,
            "native": record.native,
        }
        if not isinstance(text, str):
            extra["message"] = None
            if line.text:
                # T may leave the whole out (section 9.2): what was streamed is the text.
                line.text = False
                return [*out, BlockEnded(block="text", extra=extra, **fields)]
            text = ""
        self._open_block(line, "text")
        line.text = False
        return [
            *out,
            ev.TextCompleted(
                block_id=_block_id(line),
                message_id=_message_id(line),
                text=text,
                extra=extra or None,
                **fields,
            ),
        ]

    def _reasoning_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        text = record.data.get("reasoning")
        out = self._in_turn(line, record)
        self._open_block(line, "reasoning")
        line.reasoning = False
        return [
            *out,
            ev.ReasoningCompleted(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                block_id=_block_id(line),
                message_id=_message_id(line),
                text=text if isinstance(text, str) else "",
                native=record.native,
                extra=_rest(record.data, _REASONING_KEYS),
            ),
        ]

    def _result_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        return [
            *self._in_turn(line, record),
            ev.ResultProduced(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                value=record.data.get("result"),
                native=record.native,
                extra=_rest(record.data, _RESULT_KEYS),
            ),
        ]

    # Tools.

    def _input_appended(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        call_id, piece, name = (data.get(k) for k in ("callId", "inputTextDelta", "toolName"))
        if not isinstance(call_id, str) or not isinstance(piece, str):
            return self._unknown(line, record)
        return [
            *self._in_turn(line, record),
            ev.ToolInputDelta(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                call_id=call_id,
                name=name if isinstance(name, str) else None,
                text=piece,
                native=record.native,
                extra=_rest(data, _INPUT_APPENDED_KEYS),
            ),
        ]

    def _actions_requested(self, line: _Line, record: _Record) -> list[ev.Event]:
        actions = record.data.get("actions")
        if not isinstance(actions, list):
            return self._unknown(line, record)
        out = self._in_turn(line, record)
        shown = record.data.get("presentation")
        extra = _rest(record.data, _ACTIONS_KEYS)
        for action in actions:
            call_id = action.get("callId") if isinstance(action, dict) else None
            if not isinstance(call_id, str) or not call_id:
                out += self._unknown(line, record)
                continue
            before = line.calls.get(call_id)
            if before is not None and before["step"] == line.steps:
                # A retried step asks for the same call again.
                continue
            native_kind = action.get("kind")
            kind, name_of = _ACTION_KINDS.get(str(native_kind), ("builtin", "toolName"))
            name = action.get(name_of) or action.get("toolName") or action.get("name")
            rest = _rest(action, _ACTION_KEYS) or {}
            if native_kind not in _ACTION_KINDS:
                rest["kind"] = native_kind
            if extra is not None:
                rest[wire.FRAME] = extra
            label = None
            if isinstance(shown, dict) and isinstance(shown.get(call_id), dict):
                label = shown[call_id].get("label")
            line.calls[call_id] = {"permission": None, "step": line.steps, "kind": kind}
            out.append(
                ev.ToolCalled(
                    thread_id=line.thread,
                    turn_id=self._current(line, record),
                    call_id=call_id,
                    name=name if isinstance(name, str) and name else str(native_kind or "unknown"),
                    kind=cast(ev.CallKind, kind),
                    input=action.get("input"),
                    input_known="input" in action,
                    label=label if isinstance(label, str) else None,
                    native=record.native,
                    extra=rest or None,
                )
            )
        return out

    def _action_partial(self, line: _Line, record: _Record) -> list[ev.Event]:
        result = record.data.get("result")
        call_id = result.get("callId") if isinstance(result, dict) else None
        if not isinstance(result, dict) or not isinstance(call_id, str):
            return self._unknown(line, record)
        self._decide(line, call_id, "allow")
        return [
            ev.ToolProgressed(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                call_id=call_id,
                output=result.get("output"),
                native=record.native,
                extra=_beside(record.data, _PARTIAL_KEYS, _rest(result, _TOOL_RESULT_KEYS)),
            )
        ]

    def _action_result(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        result = data.get("result")
        call_id = result.get("callId") if isinstance(result, dict) else None
        if not isinstance(result, dict) or not isinstance(call_id, str):
            return self._unknown(line, record)
        status = data.get("status")
        if status not in ("completed", "failed", "rejected"):
            status = "failed" if result.get("isError") is True else "completed"
        out: list[ev.Event] = []
        if line.turn is None and not self._is_over(line, record):
            out += self._in_turn(line, record)
        self._decide(line, call_id, "deny" if status == "rejected" else "allow")
        out += self._infer_from_result(line, call_id, status, result.get("output"), record.native)
        if status != "rejected" and line.paused == "input" and not self._asked(line):
            # Section 8.2: only a refused call comes while the turn rests; the others are work.
            out += self._in_turn(line, record)
        error = None
        if isinstance(data.get("error"), dict) or status != "completed":
            source = data.get("error") if isinstance(data.get("error"), dict) else {}
            assert isinstance(source, dict)
            details = _rest(source, frozenset({"code", "message"})) or {}
            if isinstance(result.get("errorName"), str):
                details["errorName"] = result["errorName"]
            error = ev.ErrorInfo(
                code=str(source.get("code") or "ACTION_RESULT_FAILED"),
                message=str(source.get("message") or "The tool failed."),
                details=details or None,
            )
        extra = _beside(data, _ACTION_RESULT_KEYS, _rest(result, _TOOL_RESULT_KEYS)) or {}
        native_kind, called = result.get("kind"), line.calls.get(call_id, {}).get("kind")
        receipt = native_kind == "tool-result" and called in ("skill", "subagent", "remote")
        if native_kind not in _RESULT_KINDS or receipt:
            extra["kind"] = native_kind
        if call_id not in line.calls:
            name = result.get("toolName") or result.get("name") or result.get("subagentName")
            if isinstance(name, str):
                extra["name"] = name
        out.append(
            ev.ToolReturned(
                thread_id=line.thread,
                turn_id=self._current(line, record),
                call_id=call_id,
                output=result.get("output"),
                is_error=status != "completed",
                error=error,
                status=cast(Literal["completed", "failed", "rejected"], status),
                native=record.native,
                extra=extra or None,
            )
        )
        return out

    # Interactions.

    def _input_requested(self, line: _Line, record: _Record) -> list[ev.Event]:
        requests = record.data.get("requests")
        if not isinstance(requests, list):
            return self._unknown(line, record)
        out: list[ev.Event] = []
        for request in requests:
            if isinstance(request, dict) and isinstance(request.get("requestId"), str):
                out += self._request(line, record, request)
            else:
                out += self._unknown(line, record)
        return out

    def _request(self, line: _Line, record: _Record, request: dict[str, Any]) -> list[ev.Event]:
        s = self._s
        request_id = request["requestId"]
        known_request = s.requests.get(request_id)
        if known_request is not None or request_id in s.resolved:
            # A child's request is on its own stream and on its parent's, in any order.
            if known_request is not None:
                own = known_request["thread"] == line.thread
                known_request["turn" if own else "shown_turn"] = line.native
            return []
        action = request.get("action")
        action = action if isinstance(action, dict) else {}
        native_kind = request.get("kind")
        kind = _REQUEST_KINDS.get(str(native_kind), "question")
        asking = self._asking(line, record, action, kind)
        call_id = action.get("callId")
        call_id = call_id if isinstance(call_id, str) and kind != "limit" else None
        known = call_id in asking.calls
        self._decide(asking, call_id, "ask" if kind == "approval" else "allow")
        if line.thread != ev.MAIN:
            line.unrelayed.append(request_id)
            return []
        out = self._released(asking) if asking is not line else []
        if asking is not line:
            if asking.turn is None:
                # The parent tells it before the child's own stream does.
                number = max(asking.sequence + 1, 0)
                turn_id = f"{asking.thread}:turn_{number}"
                asking.native = None
                out.append(self._begin(asking, turn_id, None, synthetic=True))
        elif line.turn is None and not self._is_over(line, record):
            out += self._in_turn(line, record)
        details: dict[str, Any] = {}
        if kind == "limit":
            source = action.get("input")
            source = source if isinstance(source, dict) else {}
            for theirs, ours in (
                ("kind", "limit_kind"),
                ("limit", "limit"),
                ("usedTokens", "used_tokens"),
            ):
                if theirs in source:
                    details[ours] = source[theirs]
        else:
            if isinstance(action.get("toolName"), str):
                details["tool"] = action["toolName"]
            if "input" in action:
                details["input"] = action["input"]
        options = _options(request.get("options"))
        freeform = request.get("allowFreeform") is True or (kind == "question" and not options)
        extra = _beside(record.data, _REQUESTED_KEYS, _rest(request, _REQUEST_KEYS)) or {}
        if native_kind not in _REQUEST_KINDS:
            extra["kind"] = native_kind
        # Section 10: whoever asks, it appears on the session's own stream and is answered there.
        shown_on = ev.MAIN if asking.thread != ev.MAIN else None
        s.requests[request_id] = {
            "thread": asking.thread,
            "shown_on": shown_on,
            "kind": kind,
            "call": call_id,
            "options": [_dump(option) for option in options or ()],
            "freeform": freeform,
            "turn": asking.native,
            "shown_turn": line.native if asking is not line else None,
            "name": None,
        }
        out.append(
            ev.InteractionRequested(
                thread_id=asking.thread,
                turn_id=self._current(asking, record),
                request_id=request_id,
                shown_on=shown_on,
                kind=cast(ev.InteractionKind, kind),
                prompt=str(request.get("prompt") or ""),
                options=options,
                freeform=freeform,
                call_id=call_id if known or kind == "approval" else None,
                details=details or None,
                native=record.native,
                extra=extra or None,
            )
        )
        if request_id in asking.unrelayed:
            asking.unrelayed.remove(request_id)
            if asking.paused == "input":
                out.append(
                    ev.TurnPaused(
                        thread_id=asking.thread, turn_id=asking.turn, on="input", synthetic=True
                    )
                )
        return out

    def _asking(self, line: _Line, record: _Record, action: dict[str, Any], kind: str) -> _Line:
        """Return the thread that asks: a child's request is relayed on its parent (section 10)."""
        s = self._s
        task = record.data.get("taskId")
        if isinstance(task, str) and task in s.tasks:
            return s.lines[s.tasks[task]]
        call_id = action.get("callId")
        if call_id in line.calls or kind == "limit":
            return line
        children = [c for c in s.lines.values() if c.parent == line.thread and not c.done]
        owners = [c for c in children if call_id in c.calls]
        if owners:
            return owners[0]
        # T names no task: while its own model does not work, the one that asks is the child.
        if children and self._folds and not line.step_open:
            return children[-1]
        return line

    def _asked(self, line: _Line) -> list[str]:
        return [
            request_id
            for request_id, request in self._s.requests.items()
            if line.thread in (request["thread"], request["shown_on"])
        ]

    def _resolve(
        self,
        request_id: str,
        outcome: str,
        native: ev.NativeRef | None,
        *,
        answer: ev.Answer | None = None,
        by: str | None = None,
        reason: str | None = None,
        extra: dict[str, Any] | None = None,
        synthetic: bool = False,
    ) -> list[ev.Event]:
        s = self._s
        request = s.requests.pop(request_id, None)
        if request is None:
            return []
        s.resolved.append(request_id)
        if s.generation == "T" and request["kind"] == "approval" and request["thread"] == ev.MAIN:
            s.answered.append({"requestId": request_id, "optionId": self._refusal(request)})
        known = s.answers.pop(request_id, None)
        if answer is None and known is not None and known["answer"] is not None:
            answer = ev.Answer(**known["answer"])
        out: list[ev.Event] = []
        if known is not None and not known["settled"] and outcome not in _PASSED_OVER:
            # The effect proves that the answer arrived, whatever becomes of the request's reply.
            command_id = known["command_id"]
            waits = any(r["command_id"] == command_id and r["at"] is not None for r in s.retries)
            if s.doubtful.pop(command_id, None) is None and not waits:
                self._shown.add(command_id)
            s.retries = [r for r in s.retries if r["command_id"] != command_id]
            out.append(_settled(command_id, "taken"))
        asking = s.lines[request["thread"]]
        out.append(
            ev.InteractionResolved(
                thread_id=asking.thread,
                turn_id=asking.turn,
                request_id=request_id,
                outcome=cast(ev.InteractionOutcome, outcome),
                answer=answer,
                scope="once" if outcome == "approved" and request["kind"] == "approval" else None,
                by=by,
                reason=reason if reason is not None else (answer.reason if answer else None),
                native=native,
                extra=extra,
                synthetic=synthetic,
            )
        )
        shown = s.lines.get(request["shown_on"] or "")
        held = shown is not None and shown.paused == "input" and not shown.closed
        if shown is not None and held and not self._asked(shown):
            # It waits for its child again, and says nothing about it (section 8.2).
            shown.paused = "tasks"
            out.append(
                ev.TurnPaused(
                    thread_id=shown.thread, turn_id=shown.turn, on="tasks", synthetic=True
                )
            )
        return out

    def _input_resolved(self, line: _Line, record: _Record) -> list[ev.Event]:
        resolutions = record.data.get("resolutions")
        if not isinstance(resolutions, list):
            return self._unknown(line, record)
        out: list[ev.Event] = []
        settled, line.settled = line.settled, None
        if settled is not None and settled["data"].get("requestId") not in [
            item.get("requestId") for item in resolutions if isinstance(item, dict)
        ]:
            out += self._settle(line, settled)
            settled = None
        for item in resolutions:
            if not isinstance(item, dict) or not isinstance(item.get("requestId"), str):
                continue
            request = self._s.requests.get(item["requestId"])
            if request is None:
                continue
            response = item.get("response")
            answer = None
            option_id = None
            if isinstance(response, dict):
                option_id = response.get("optionId")
                words = response.get("text")
                words = words if isinstance(words, str) else None
                decides = request["kind"] in ("approval", "limit")
                answer = ev.Answer(
                    option_ids=(option_id,) if isinstance(option_id, str) else (),
                    text=None if decides else words,
                    reason=words if decides else None,
                )
            outcome = _OUTCOMES.get(str(item.get("outcome")), "unknown")
            if request["kind"] == "limit" and outcome == "answered":
                outcome = self._decided(request, option_id)
            known = self._s.answers.get(item["requestId"])
            if outcome == "answered" and known is not None and known["outcome"] == "skipped":
                outcome = "skipped"
            extra = _beside(record.data, _RESOLVED_KEYS, _rest(item, _RESOLUTION_KEYS)) or {}
            native, by = record.native, None
            if settled is not None and settled["data"]["requestId"] == item["requestId"]:
                native = ev.NativeRef(**settled["native"])
                if outcome == "answered":
                    outcome = _settlement(settled["data"])
                by = _text(settled["data"].get("responderPrincipalId"))
                if rest := _rest(settled["data"], _SETTLED_KEYS):
                    extra[wire.SETTLED] = rest
            out += self._resolve(
                item["requestId"], outcome, native, answer=answer, by=by, extra=extra or None
            )
        return out

    def _decided(self, request: dict[str, Any], option_id: object) -> str:
        for option in request["options"]:
            if option["id"] == option_id:
                decision, _ = decision_of(ev.Option(**option))
                return {"allow": "approved", "deny": "denied"}.get(decision or "", "answered")
        return "answered"

    def _approval_settled(self, line: _Line, record: _Record) -> list[ev.Event]:
        if not isinstance(record.data.get("requestId"), str):
            return self._unknown(line, record)
        settled = {"data": record.data, "native": _dump(record.native)}
        request = self._s.requests.get(record.data["requestId"])
        if request is None or request["thread"] != line.thread:
            # A child works on at once, on a stream of its own.
            return self._settle(line, settled)
        # What was answered follows at once with `input.resolved` (section 8.2).
        line.settled, line.settled_at = settled, record.now
        return []

    def _settle(self, line: _Line, settled: dict[str, Any]) -> list[ev.Event]:
        """Resolve an approval by `approval.settled` alone."""
        line.settled = None
        data = settled["data"]
        rest = _rest(data, _SETTLED_KEYS)
        return self._resolve(
            data["requestId"],
            _settlement(data),
            ev.NativeRef(**settled["native"]),
            by=_text(data.get("responderPrincipalId")),
            extra=None if rest is None else {wire.SETTLED: rest},
        )

    def _approval_candidate(self, line: _Line, record: _Record) -> list[ev.Event]:
        request_id = record.data.get("requestId")
        request = self._s.requests.get(request_id) if isinstance(request_id, str) else None
        if request is None:
            return self._unknown(line, record)
        return [
            ev.InteractionUpdated(
                thread_id=request["thread"],
                turn_id=self._s.lines[request["thread"]].turn,
                request_id=cast(str, request_id),
                details=_rest(record.data, _CS_KEYS | {"requestId"}) or {},
                native=record.native,
            )
        ]

    # Evidence where the server says nothing (section 8.2).

    def _infer_from_result(
        self, line: _Line, call_id: str, status: str, output: object, native: ev.NativeRef
    ) -> list[ev.Event]:
        """Take the result of a call as the proof that its approval was answered."""
        for request_id, request in self._s.requests.items():
            if request["kind"] != "approval" or request["call"] != call_id:
                continue
            if request["thread"] != line.thread:
                continue
            outcome = "approved"
            if status == "rejected":
                approval = output.get("approval") if isinstance(output, dict) else None
                said = approval.get("status") if isinstance(approval, dict) else None
                outcome = "withdrawn" if said == "ignored" else "denied"
            return self._resolve(request_id, outcome, native, synthetic=True)
        return []

    def _infer_answered(self, line: _Line, native: ev.NativeRef) -> list[ev.Event]:
        """Take work after an answer as its proof; in T a turn works only when all was answered."""
        if self._explicit:
            return []
        out: list[ev.Event] = []
        for request_id in self._asked(line):
            request = self._s.requests[request_id]
            known = self._s.answers.get(request_id)
            if self._asked_now(line, request) or request["kind"] == "authorization":
                # Asked in this very turn: its work proves nothing.
                continue
            if known is not None:
                out += self._resolve(request_id, known["outcome"], native, synthetic=True)
            elif request["kind"] == "question" and self._s.generation == "T":
                heard = None if line.heard is None else ev.Answer(text=line.heard)
                out += self._resolve(request_id, "answered", native, answer=heard, synthetic=True)
        return out

    @staticmethod
    def _asked_now(line: _Line, request: dict[str, Any]) -> bool:
        """Say whether a request was asked in the eve turn that a thread is in, or nobody knows."""
        asked_in = request["turn" if request["thread"] == line.thread else "shown_turn"]
        return asked_in is None or asked_in == line.native

    def _infer_at_end(self, line: _Line, native: ev.NativeRef | None) -> list[ev.Event]:
        """Take the end of a turn as the proof of an answer: an empty one follows one of two."""
        if self._explicit:
            return []
        out: list[ev.Event] = []
        for request_id in self._asked(line):
            request = self._s.requests[request_id]
            if self._asked_now(line, request) or request["kind"] == "authorization":
                continue
            known = self._s.answers.get(request_id)
            if line.empty and line.heard is None and known is not None:
                return self._resolve(request_id, known["outcome"], native, synthetic=True)
            if not line.empty and self._s.generation == "T":
                out += self._resolve(request_id, "unknown", native, synthetic=True)
        return out

    # Sign-ins.

    def _sign_in_id(self, line: _Line, data: dict[str, Any]) -> str:
        attempt = data.get("attemptId")
        if isinstance(attempt, str) and attempt:
            return attempt
        return f"sign-in:{data.get('name')}:{data.get('turnId')}:{data.get('stepIndex')}"

    def webhook(self, request_id: str) -> str | None:
        request = self._s.requests.get(request_id)
        hook = None if request is None else request.get("webhook")
        return hook if isinstance(hook, str) else None

    def _authorization_required(self, line: _Line, record: _Record) -> list[ev.Event]:
        s = self._s
        data = record.data
        request_id = self._sign_in_id(line, data)
        if request_id in s.requests:
            return []
        number = 2
        while request_id in s.resolved:
            # T has no ids: the same step may ask again.
            request_id = f"{self._sign_in_id(line, data)}:{number}"
            number += 1
        asking = line
        task = data.get("taskId")
        if isinstance(task, str) and task in s.tasks:
            asking = s.lines[s.tasks[task]]
        self._decide_all(asking, "allow")
        out: list[ev.Event] = []
        if asking.turn is None and asking is not line:
            turn_id = f"{asking.thread}:turn_{max(asking.sequence + 1, 0)}"
            asking.native = None
            out.append(self._begin(asking, turn_id, None, synthetic=True))
        elif line.turn is None and not self._is_over(line, record):
            out += self._in_turn(line, record)
        told = data.get("authorization")
        told = told if isinstance(told, dict) else {}
        details = {"service": data.get("name")} if isinstance(data.get("name"), str) else {}
        for theirs, ours in _SIGN_IN_KEYS.items():
            if theirs in told:
                details[ours] = told[theirs]
        extra = _rest(data, _REQUIRED_KEYS) or {}
        hook = data.get("webhookUrl")
        if isinstance(hook, str):
            extra[wire.WEBHOOK] = True
        rest = _rest(told, frozenset(_SIGN_IN_KEYS))
        if rest:
            extra["authorization"] = rest
        s.requests[request_id] = {
            "thread": asking.thread,
            "shown_on": line.thread if asking is not line else None,
            "kind": "authorization",
            "call": None,
            "options": [],
            "freeform": False,
            "turn": asking.native,
            "shown_turn": line.native if asking is not line else None,
            "name": data.get("name"),
            "webhook": hook if isinstance(hook, str) else None,
        }
        out.append(
            ev.InteractionRequested(
                thread_id=asking.thread,
                turn_id=self._current(asking, record),
                request_id=request_id,
                shown_on=line.thread if asking is not line else None,
                kind="authorization",
                prompt=str(data.get("description") or ""),
                details=details or None,
                expires_at=_moment(told.get("expiresAt")),
                native=record.native,
                extra=extra or None,
            )
        )
        if self._folds and line.turn is not None:
            # T and S1 have no boundary here (section 8.2), and the agent waits all the same.
            line.paused = "input"
            out.append(
                ev.TurnPaused(
                    thread_id=line.thread,
                    turn_id=line.turn,
                    on="input",
                    native=record.native,
                    synthetic=True,
                )
            )
        return out

    def _authorization_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        request_id = data.get("attemptId")
        if request_id not in self._s.requests:
            request_id = next(
                (
                    key
                    for key, request in self._s.requests.items()
                    if request["kind"] == "authorization" and request["name"] == data.get("name")
                ),
                None,
            )
        if not isinstance(request_id, str):
            return []
        by, reason = data.get("principalId"), data.get("reason")
        return self._resolve(
            request_id,
            _SIGN_IN_OUTCOMES.get(str(data.get("outcome")), "unknown"),
            record.native,
            by=by if isinstance(by, str) else None,
            reason=reason if isinstance(reason, str) else None,
            extra=_rest(data, _AUTHORIZED_KEYS),
        )

    # Children.

    def _child(
        self, line: _Line, record: _Record, thread: str, **fields: Any
    ) -> tuple[_Line, list[ev.Event]]:
        """Return the line of a child, and what opens it; one that goes on is opened again."""
        child = self._s.lines.get(thread)
        if child is not None:
            child.done, child.outcome, child.closed_stream = False, None, False
            return child, []
        child = self._s.lines[thread] = _Line(thread, parent=line.thread, name=fields.get("name"))
        self._counts.setdefault(thread, 0)
        return child, [
            ev.ThreadStarted(thread_id=thread, parent=line.thread, native=record.native, **fields)
        ]

    def _subagent_called(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        session = data.get("childSessionId")
        if not isinstance(session, str) or not session:
            return self._unknown(line, record)
        call_id, name, path = data.get("callId"), data.get("name"), data.get("childStreamPath")
        self._decide(line, call_id, "allow")
        child, out = self._child(
            line,
            record,
            session,
            name=name if isinstance(name, str) else None,
            kind="remote" if isinstance(data.get("remote"), dict) else "agent",
            call_id=call_id if isinstance(call_id, str) else None,
            native_id=session,
            path=path if isinstance(path, str) else None,
            extra=_rest(data, _CALLED_KEYS),
        )
        child.session = session
        child.path = path if isinstance(path, str) else None
        if isinstance(call_id, str):
            self._s.tasks[f"call:{call_id}"] = session
        return out

    def _subagent_completed(self, line: _Line, record: _Record) -> list[ev.Event]:
        thread = self._s.tasks.get(f"call:{record.data.get('callId')}")
        if thread is None:
            return self._unknown(line, record)
        return self._child_over(
            self._s.lines[thread],
            record,
            {"status": "completed", "output": record.data.get("output")},
            _rest(record.data, frozenset({"callId", "subagentName", "output"})),
        )

    def _task_started(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        task = data.get("taskId")
        if not isinstance(task, str) or not task:
            return self._unknown(line, record)
        call_id, name = data.get("callId"), data.get("name")
        self._decide(line, call_id, "allow")
        # Task ids are short and count in their session only; threads are found across sessions.
        thread = self._s.tasks.get(task) or (
            task if self._s.session is None else f"{self._s.session}-{task}"
        )
        _, out = self._child(
            line,
            record,
            thread,
            name=name if isinstance(name, str) else None,
            kind="tool" if data.get("kind") == "tool" else "agent",
            call_id=call_id if isinstance(call_id, str) else None,
            task_id=task,
            extra=_rest(data, _TASK_KEYS),
        )
        self._s.tasks[task] = thread
        return out

    def _agent_started(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        session, path, task = data.get("sessionId"), data.get("streamPath"), data.get("taskId")
        if not isinstance(session, str) or not session:
            return self._unknown(line, record)
        path = path if isinstance(path, str) and path.startswith("/") else None
        remote = isinstance(data.get("remote"), dict)
        extra = _rest(data, _AGENT_KEYS)
        name = data.get("name")
        name = name if isinstance(name, str) else None
        thread = self._s.tasks.get(task) if isinstance(task, str) else None
        if thread is None:
            call_id = data.get("callId")
            child, out = self._child(
                line,
                record,
                session,
                name=name,
                kind="remote" if remote else "agent",
                call_id=call_id if isinstance(call_id, str) else None,
                task_id=task if isinstance(task, str) else None,
                native_id=session,
                path=path,
                extra=extra,
            )
            if isinstance(task, str):
                self._s.tasks[task] = session
            child.session, child.path = session, path
            return out
        child = self._s.lines[thread]
        child.session, child.path = session, path
        return [
            ev.ThreadUpdated(
                thread_id=thread,
                native_id=session,
                path=path,
                name=name,
                kind="remote" if remote else "agent",
                native=record.native,
                extra=extra,
            )
        ]

    def _task_settled(self, line: _Line, record: _Record) -> list[ev.Event]:
        data = record.data
        task = data.get("taskId")
        thread = self._s.tasks.get(task) if isinstance(task, str) else None
        if thread is None:
            return self._unknown(line, record)
        status = data.get("status")
        error = data.get("error")
        outcome: dict[str, Any] = {
            "status": status if status in ("completed", "failed", "cancelled") else "completed",
            "output": data.get("output"),
        }
        if isinstance(error, dict):
            outcome["error"] = {"code": "task_failed", "message": str(error.get("message") or "")}
        return self._child_over(
            self._s.lines[thread], record, outcome, _rest(data, _TASK_SETTLED_KEYS)
        )

    def _child_over(
        self, child: _Line, record: _Record, outcome: dict[str, Any], extra: dict[str, Any] | None
    ) -> list[ev.Event]:
        """Hear that a child is over: its end waits until its own stream has told how."""
        child.outcome = {**outcome, "native": _dump(record.native), "extra": extra}
        child.outcome_at = record.now
        unread = child.session is not None and not child.closed_stream and self._reads_children
        if unread and (child.turn is not None or child.turns == 0 or child.ending is not None):
            return []
        return self._end_child(child)

    def _end_child(self, line: _Line) -> list[ev.Event]:
        outcome, line.outcome = line.outcome, None
        out = self._decide_and_release(line, "unknown")
        if outcome is None:
            if line.done:
                return out
            outcome = {"status": "failed", "synthetic": True}
        if line.ending is not None:
            out += self._flush(line)
        line.done = True
        if line.turn is not None:
            line.last, line.turn = line.turn, None
            line.paused, line.closed = None, False
        for request_id, request in list(self._s.requests.items()):
            if request["thread"] == line.thread:
                del self._s.requests[request_id]
                self._s.answers.pop(request_id, None)
                self._s.resolved.append(request_id)
        error = outcome.get("error")
        native = outcome.get("native")
        out.append(
            ev.ThreadEnded(
                thread_id=line.thread,
                status=outcome["status"],
                output=outcome.get("output"),
                error=None if error is None else ev.ErrorInfo(**error),
                native=None if native is None else ev.NativeRef(**native),
                extra=outcome.get("extra"),
                synthetic=outcome.get("synthetic", False),
            )
        )
        return out


_Handler = Callable[[EveClient, _Line, _Record], list[ev.Event]]

_HANDLERS: dict[str, _Handler] = {
    "session.started": EveClient._session_started,
    "session.waiting": EveClient._session_waiting,
    "session.completed": EveClient._session_completed,
    "session.failed": EveClient._session_failed,
    "turn.started": EveClient._turn_started,
    "turn.completed": EveClient._turn_completed,
    "turn.cancelled": EveClient._turn_cancelled,
    "turn.failed": EveClient._turn_failed,
    "turn.waiting": EveClient._turn_waiting,
    "message.received": EveClient._message_received,
    "context.cleared": EveClient._context_cleared,
    "compaction.requested": EveClient._compaction,
    "compaction.completed": EveClient._compaction,
    "step.started": EveClient._step_started,
    "step.completed": EveClient._step_completed,
    "step.failed": EveClient._step_failed,
    "reasoning.appended": EveClient._appended,
    "reasoning.completed": EveClient._reasoning_completed,
    "message.appended": EveClient._appended,
    "message.completed": EveClient._message_completed,
    "result.completed": EveClient._result_completed,
    "action.input.appended": EveClient._input_appended,
    "actions.requested": EveClient._actions_requested,
    "action.partial": EveClient._action_partial,
    "action.result": EveClient._action_result,
    "input.requested": EveClient._input_requested,
    "input.resolved": EveClient._input_resolved,
    "approval.settled": EveClient._approval_settled,
    "approval.candidate": EveClient._approval_candidate,
    "authorization.required": EveClient._authorization_required,
    "authorization.completed": EveClient._authorization_completed,
    "subagent.called": EveClient._subagent_called,
    "subagent.completed": EveClient._subagent_completed,
    "task.started": EveClient._task_started,
    "agent.started": EveClient._agent_started,
    "task.settled": EveClient._task_settled,
}

_HELD_BACK = {
    "code": "message_held_back",
    "message": "eve: the server holds the message back: a cancel made it forget that a request was "
    "answered, and it waits for the answer again.",
}

_OVERTAKING = frozenset(
    {
        "tool.input_delta",
        "tool.progressed",
        "tool.returned",
        "thread.started",
        "thread.updated",
        "thread.ended",
        "input.settled",
        "usage.reported",
        "error.reported",
        "native",
    }
)
"""What may pass a call whose permission is not known yet; the rest waits behind it."""

_CREATE_OPTIONS = frozenset({"mode", "capabilities", "callback", "protocolVersion"})
_CREATE_ONLY = frozenset({"mode", "capabilities"})
_WITH_MESSAGE = frozenset({"callback", "protocolVersion"})
"""Of these: what makes a session, and what a session is made with only beside a message."""

_FOLLOW_UP_OPTIONS = frozenset({"callback", "clientContext", "outputSchema"})
"""Members that only an eve frontend can name (sections 4.1 and 5)."""

_ACTION_KINDS: dict[str, tuple[str, str]] = {
    "tool-call": ("builtin", "toolName"),
    "workflow-tool-call": ("workflow", "toolName"),
    "load-skill": ("skill", "name"),
    "subagent-call": ("subagent", "name"),
    "remote-agent-call": ("remote", "name"),
}
"""Kind of an action -> ours, and the member that names the tool (section 9.3)."""

_RESULT_KINDS = frozenset({"tool-result", "load-skill-result", "subagent-result"})

_REQUEST_KINDS = {"tool-approval": "approval", "question": "question", "session-limit": "limit"}

_OUTCOMES = {
    "answered": "answered",
    "approved": "approved",
    "denied": "denied",
    "ignored": "withdrawn",
    "cancelled": "cancelled",
    "invalid": "failed",
}
"""`outcome` of a resolution -> ours (section 9.4)."""

_PASSED_OVER = frozenset({"withdrawn", "cancelled", "expired"})
"""Outcomes that say nothing of an answer: the request was over without it."""

_SIGN_IN_OUTCOMES = {
    "authorized": "approved",
    "declined": "denied",
    "failed": "failed",
    "timed-out": "expired",
}

_SIGN_IN_KEYS = {
    "url": "url",
    "userCode": "user_code",
    "instructions": "instructions",
    "displayName": "display_name",
    "expiresAt": "expires_at",
}

_LIMIT_CODES = frozenset({"SESSION_TOKEN_LIMIT_REACHED", "SESSION_TOKEN_COST_LIMIT_REACHED"})

_BOUNDARY_KEYS = frozenset({"wait", "usage"})
_C_KEYS = frozenset({"sequence", "turnId"})
_CS_KEYS = _C_KEYS | {"stepIndex"}
_WAITING_KEYS = _C_KEYS | {"on", "usage"}
_FAILURE_KEYS = _CS_KEYS | {"code", "message", "details"}
_SESSION_FAILED_KEYS = frozenset({"code", "message", "details", "sessionId", "usage"})
_COMPACTION_KEYS = _CS_KEYS | {"modelId", "sessionId", "usageInputTokens"}
_CLEARED_KEYS = _CS_KEYS | {"sessionId"}
_RECEIVED_KEYS = _C_KEYS | {"message", "parts"}
_STEP_KEYS = _CS_KEYS | {"modelId"}
_STEP_COMPLETED_KEYS = _CS_KEYS | {"finishReason", "usage"}
_APPENDED_KEYS = _CS_KEYS | {
    "messageDelta",
    "messageSoFar",
    "messageOffset",
    "reasoningDelta",
    "reasoningSoFar",
    "reasoningOffset",
}
_COMPLETED_KEYS = _CS_KEYS | {"message", "finishReason"}
_REASONING_KEYS = _CS_KEYS | {"reasoning"}
_RESULT_KEYS = _CS_KEYS | {"result"}
_INPUT_APPENDED_KEYS = _CS_KEYS | {"callId", "toolName", "inputTextDelta", "inputTextOffset"}
_ACTIONS_KEYS = _CS_KEYS | {"actions", "presentation"}
_ACTION_KEYS = frozenset({"kind", "callId", "toolName", "name", "input"})
_PARTIAL_KEYS = _CS_KEYS | {"result"}
_ACTION_RESULT_KEYS = _CS_KEYS | {"result", "status", "error"}
_TOOL_RESULT_KEYS = frozenset(
    {"kind", "callId", "toolName", "name", "output", "isError", "errorName"}
)
_REQUESTED_KEYS = _CS_KEYS | {"requests"}
_REQUEST_KEYS = frozenset({"requestId", "kind", "prompt", "action", "allowFreeform", "options"})
_RESOLVED_KEYS = _CS_KEYS | {"resolutions"}
_RESOLUTION_KEYS = frozenset({"requestId", "kind", "outcome", "response"})
_SETTLED_KEYS = _CS_KEYS | {"requestId", "outcome", "responderPrincipalId"}
_REQUIRED_KEYS = _CS_KEYS | {"name", "description", "authorization", "attemptId", "taskId"}
_AUTHORIZED_KEYS = _CS_KEYS | {"name", "outcome", "reason", "attemptId", "principalId", "taskId"}
_CALLED_KEYS = _C_KEYS | {"callId", "childSessionId", "sessionId", "name", "childStreamPath"}
_TASK_KEYS = _C_KEYS | {"callId", "taskId", "name", "kind"}
_AGENT_KEYS = _C_KEYS | {"callId", "taskId", "name", "sessionId", "streamPath"}
_TASK_SETTLED_KEYS = _TASK_KEYS | {"status", "output", "error"}


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what an error body says (section 2); one without `error` is quoted."""
    body = _body(response)
    message = body.get("error")
    if not isinstance(message, str):
        message = body.get("message")
    details = {k: v for k, v in body.items() if k in ("errorId", "violations", "eveVersion")}
    if isinstance(message, str) and message:
        code = body.get("code")
        return ev.ErrorInfo(
            code=code if isinstance(code, str) else f"http_{response.status}",
            message=f"eve: {message}",
            details=details or None,
        )
    text = response.body[:512].decode("utf-8", "backslashreplace")
    return ev.ErrorInfo(
        code=f"http_{response.status}", message=f"The eve answered {response.status}: {text}"
    )


def _body(response: Response) -> dict[str, Any]:
    try:
        value = parse_json(response.body) if response.body else None
    except JsonError:
        return {}
    return value if isinstance(value, dict) else {}


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


def _retried(text: str) -> ev.Event:
    return ev.Notice(
        thread_id=ev.MAIN, level="debug", text=f"eve: {text}", kind=NOT_READY, synthetic=True
    )


def _block_id(line: _Line) -> str:
    return f"b{line.blocks}" if line.thread == ev.MAIN else f"{line.thread}:b{line.blocks}"


def _message_id(line: _Line) -> str:
    # In eve every block is a message of its own.
    return f"m{line.blocks}" if line.thread == ev.MAIN else f"{line.thread}:m{line.blocks}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _sequence(record: _Record, before: int) -> int:
    number = record.data.get("sequence")
    return number if isinstance(number, int) and not isinstance(number, bool) else before


def _clean(value: Any) -> Any:
    """Return a copy without credentials."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items() if k not in _SENSITIVE}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _rest(data: dict[str, Any], known: Iterable[str]) -> dict[str, Any] | None:
    rest = {k: _clean(v) for k, v in data.items() if k not in known and k not in _SENSITIVE}
    return rest or None


def _beside(
    frame: dict[str, Any], known: Iterable[str], rest: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the unknown members of an object in a frame, and those of the frame."""
    outer = _rest(frame, known)
    return rest if outer is None else {**(rest or {}), wire.FRAME: outer}


def _settlement(data: dict[str, Any]) -> str:
    return "approved" if data.get("outcome") == "approved" else "denied"


def _error(data: dict[str, Any]) -> ev.ErrorInfo:
    code, message, details = data.get("code"), data.get("message"), data.get("details")
    code = code if isinstance(code, str) and code else "failed"
    return ev.ErrorInfo(
        code=code,
        message=message if isinstance(message, str) else code,
        details=_clean(details) if isinstance(details, dict) and details else None,
    )


def _usage(value: object) -> ev.Usage | None:
    if not isinstance(value, dict):
        return None
    cost = value.get("costUsd")
    return ev.Usage(
        input_tokens=_int(value.get("inputTokens")),
        output_tokens=_int(value.get("outputTokens")),
        cache_read_tokens=_int(value.get("cacheReadTokens")),
        cache_write_tokens=_int(value.get("cacheWriteTokens")),
        cost_usd=cost if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
        extra=_rest(value, _USAGE_KEYS),
    )


_USAGE_KEYS = frozenset(
    {"inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "costUsd"}
)


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(value: object) -> int | None:
    """Return an ISO time as Unix milliseconds, or None where it is none."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return round(moment.timestamp() * 1000)


def _options(value: object) -> tuple[ev.Option, ...] | None:
    if not isinstance(value, list):
        return None
    options = []
    for item in value:
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            style, description = item.get("style"), item.get("description")
            options.append(
                ev.Option(
                    id=item["id"],
                    label=str(item.get("label") or item["id"]),
                    style=style if style in ("primary", "danger", "default") else None,
                    description=description if isinstance(description, str) else None,
                )
            )
    return tuple(options) or None


def _flat(content: tuple[Any, ...]) -> str:
    """Return a message as `message.received` flattens it: a line per part (section 9.1)."""
    lines = []
    for block in content:
        if isinstance(block, ev.File):
            kind = block.media_type or _UNKNOWN_TYPE
            lines.append(f"[file: {block.name or kind} ({kind})]")
        else:
            lines.append(ev.text_of((block,)))
    return "\n".join(lines)


_UNKNOWN_TYPE = "application/octet-stream"


def _wire_message(
    content: tuple[Any, ...], blobs: Mapping[str, bytes]
) -> str | list[dict[str, Any]]:
    """Return a content as a message: one text as it is, else parts (section 4.2)."""
    parts: list[dict[str, Any]] = []
    for block in content:
        if isinstance(block, ev.File):
            kind = block.media_type or _UNKNOWN_TYPE
            match block.ref:
                case ev.Blob(sha256=digest):
                    data = f"data:{kind};base64,{base64.b64encode(blobs[digest]).decode()}"
                case ev.Url(url=url):
                    data = url
                case _:
                    raise NotSupported("eve: a file is sent as bytes or as a URL (4.2)")
            part = {"type": "file", "mediaType": kind, "data": data}
            if block.name is not None:
                part["filename"] = block.name
            parts.append(part)
        elif words := ev.text_of((block,)):
            parts.append({"type": "text", "text": words})
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _content(data: dict[str, Any], text: str) -> tuple[Any, ...]:
    """Return what somebody else said; the bytes of an inline file are told by T only."""
    parts = data.get("parts")
    blocks: list[Any] = []
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            blocks.append(ev.Text(text=part["text"]))
        elif part.get("type") == "file":
            url, name, size = part.get("url"), part.get("filename"), part.get("size")
            ref: Any = ev.FileId(dialect="eve", id=str(name or part.get("mediaType") or "file"))
            if isinstance(url, str):
                ref = ev.Url(url=url)
            kind = part.get("mediaType")
            blocks.append(
                ev.File(
                    media_type=kind if isinstance(kind, str) else None,
                    name=name if isinstance(name, str) else None,
                    size=_int(size),
                    ref=ref,
                )
            )
        else:
            blocks.append(ev.Other(dialect="eve", value=_clean(part)))
    return tuple(blocks) or (ev.Text(text=text),)


def _dump(value: ev.Model) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_defaults=True)


def _raw_dump(event: ev.Event) -> dict[str, Any]:
    return event.model_dump(mode="json", exclude_none=True)


def _raw_load(value: dict[str, Any]) -> ev.Event:
    if value["type"] == BlockEnded.TYPE:
        return BlockEnded.model_validate(value)
    return ev.decode_event(value)
