"""Drives a September Engine: commands become its four requests, its event stream canonical events.

A turn is one `POST /execute`, whose body is the stream. When that body is lost the turn goes on in
the Engine, and the rest comes from `GET /execute/replay` (section 11). Replay is by time and deltas
carry none, so the codec remembers how far it has read, and `adapters.engine.alignment` finds that
place in what replay repeats; where it cannot, that is a `gap`, never a guess.

What the Engine does not say and other dialects need is inferred here, and marked: model calls
(`usage` ends one), the end of a block, and whether a tool needs permission (a call is held for
250 ms, or until something shows).

State is in three parts: `_State` changes with what happens, `_Block` and `Reached` with every
delta. A snapshot has all three. A position has the last two, and `_State` too where it has changed
without an event since the last snapshot, as it does by a call that is held. Of a snapshot and a
position the one that has read further holds.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

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
from adapters.engine import wire
from adapters.engine.alignment import (
    Alignment,
    Decision,
    Known,
    Reached,
    Verdict,
    mark_of,
    mark_of_text,
)
from adapters.errors import DragomanError, ErrorCode, NotSupported
from adapters.framing.sse import SseFrame
from adapters.jsonvalue import JsonError, compact, format_json, parse_json

HOLD_MS = 250
"""How long a tool call waits for evidence of its permission (design section 3)."""

END_HOLD_MS = 2_000
"""How long a failed turn waits for the second of its two ends (design section 3; page 9.3)."""

PAUSED_PATIENCE_MS = 72 * 3_600_000
"""Section 10.4: the Engine keeps a paused turn for 72 hours."""

RUNNING_PATIENCE_MS = 600_000
"""How long a turn that replay still knows may be silent; ours, section 11.3 names no figure."""

UNKNOWN_PATIENCE_MS = 60_000
"""The same for a turn that replay does not know."""

SAME_BREAKS = 3
"""Replays in a row that break at the same place before that is taken as the end; ours."""

LOOK_AGAIN_MS = 2_000
"""How long after a list that still has the request of an answer in doubt it is asked once more: by
then, what the broken connection held has arrived. Ours."""

LOOKS = 12
LOOK_RETRY_MS = 5_000
"""How often, and how long after, a list that cannot be read is asked again for an answer in doubt:
as long as a backend that is away is borne."""

SESSION_LOST = "backend_session_lost"

_IMPOSSIBLE_INTERRUPT = "the Engine has no route that stops a turn (engine page, section 5)"

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.EMULATED, "a task begins with its first message"),
    "send_message": Ability(Support.NATIVE),
    "steer": Ability(Support.EMULATED, "queued as the next message"),
    "interrupt": Ability(Support.IMPOSSIBLE, _IMPOSSIBLE_INTERRUPT),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(Support.IMPOSSIBLE, "the Engine runs all tools itself (section 1)"),
    "compact": Ability(Support.IMPOSSIBLE, "the Engine compacts by itself (section 8.11)"),
    "clear": Ability(Support.IMPOSSIBLE, "the Engine has no route for it (section 5)"),
    "reset": Ability(Support.EMULATED, "the session ends here; the task is left alone"),
    "archive": Ability(Support.EMULATED, "kept here"),
    "archive_thread": Ability(Support.IMPOSSIBLE, "an Engine task has one thread (section 1)"),
    "delete": Ability(Support.EMULATED, "erased here; the Engine keeps its task (section 5)"),
    "define_outcome": Ability(Support.IMPOSSIBLE, "the Engine has no outcomes (section 5)"),
    "update_session": Ability(Support.EMULATED, "title and metadata are kept here"),
}


@dataclasses.dataclass(slots=True)
class _State:
    """What must survive a restart, besides the position."""

    turn: str | None = None
    last_turn: str | None = None
    turns: int = 0
    step: int | None = None
    steps: int = 0
    calls_in_step: bool = False
    messages: int = 0
    pending: dict[str, Any] | None = None
    expecting: bool = False
    open_calls: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    unnamed_calls: int = 0
    interaction: str | None = None
    interaction_kind: str | None = None
    interaction_call: str | None = None
    interactions: int = 0
    answer: dict[str, Any] | None = None
    doubts: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    ending: dict[str, Any] | None = None
    ending_at: int = 0
    held: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    held_at: int = 0


@dataclasses.dataclass(slots=True)
class _Block:
    """The block of text or reasoning that the stream is in; `over` when its end was announced."""

    kind: Literal["text", "reasoning"] | None = None
    over: bool = False
    number: int = 0
    index: int = 0


class EngineClient(ClientCodec):
    """The client codec. `settings`: `task_id` names the session; `interrupt` may be `deny`."""

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "sse"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._task: str = settings["task_id"]
        self._deny_on_interrupt = settings.get("interrupt") == "deny"
        self.abilities: Mapping[str, Ability] = ABILITIES
        if self._deny_on_interrupt:
            self.abilities = {
                **ABILITIES,
                "interrupt": Ability(Support.EMULATED, "a held permission is answered no"),
            }
        self._s = _State()
        self._block = _Block()
        self._reached = Reached()
        self._held: list[ev.Event] = []
        # The last delta of the open block: the next one is made after it.
        self._last: ev.TextDelta | ev.ReasoningDelta | None = None
        self._saved: bytes | None = None
        self._touched = True
        # What concerns the connection is not part of the state: a lost replay starts again.
        self._live: Call | None = None
        self._may_begin = False
        self._alignment: Alignment | None = None
        self._torn = False
        self._echoes: list[int] = []
        self._lost: tuple[int, int, int] | None = None
        # Answers that the stream has shown before the reply to their request was there.
        self._shown: set[str] = set()
        # The answers for which what is pending is asked just now.
        self._looking: set[str] = set()
        self._confirmed = False
        self._denied = False
        self._calls: list[Call] = []
        self.wake_at = None

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        ability = self.abilities[command.TYPE]
        if ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"engine: `{command.TYPE}` is impossible: {ability.how}")
        match command:
            case cmd.SendMessage():
                if command.output_schema is not None:
                    raise NotSupported(
                        "engine: `output_schema` is impossible: no field carries it (6.1)"
                    )
                if command.system is not None:
                    raise NotSupported("engine: `system` is impossible: no field carries it (6.1)")
                _check_files(command.content)
            case cmd.AnswerInteraction():
                if command.system is not None:
                    raise NotSupported("engine: `system` is impossible: no field carries it (10.1)")
                if command.sealed is not None:
                    raise NotSupported("engine: a sealed answer is impossible: none is asked (8.8)")
                _check_files(command.content or ())
            case cmd.Interrupt():
                self._check_deniable()

    def _check_deniable(self) -> None:
        # A "no" to a question would be a false answer (traps, 21).
        if self._s.interaction is None or self._s.interaction_kind != "approval":
            raise NotSupported(
                "engine: `interrupt` is impossible now: it denies a held permission, and none is "
                "held (engine page, section 12)"
            )

    def submit(self, command_id: str, command: cmd.AnyCommand, blobs: Mapping[str, bytes]) -> Call:
        self._touched = True
        match command:
            case cmd.SendMessage():
                return self._execute(command_id, command, blobs)
            case cmd.AnswerInteraction():
                return self._respond(command_id, command, blobs)
            case cmd.Interrupt() if self._deny_on_interrupt:
                self._check_deniable()
                self._s.answer = _denial(command_id)
                body = {"task_id": self._task, "answer": wire.NO, "feedback": "stop"}
                return self._post("respond", wire.RESPOND, body, command_id)
            case _:
                raise NotSupported(f"engine: nothing carries `{command.TYPE}`")

    def _execute(
        self, command_id: str, command: cmd.SendMessage, blobs: Mapping[str, bytes]
    ) -> Call:
        text, media = _split(command.content, blobs)
        if command.client_context is not None:
            text = f"{_context_text(command.client_context)}\n\n{text}"
        body: dict[str, Any] = {"message": text, "task_id": self._task}
        if media:
            body["media"] = media
        if command.edit_of is not None:
            body["edit_message_id"] = command.edit_of
        if command.retry_of is not None:
            body["retry_message_id"] = command.retry_of
        options = command.options or {}
        for name in sorted(_EXECUTE_OPTIONS & options.keys()):
            body[name] = options[name]
        # What an Engine frontend sent and nobody knows goes on unchanged (section 6.1).
        body = {**(options.get(wire.MEMBERS_OPTION) or {}), **body}
        self._expect(command_id, command)
        self._live = self._post("execute", wire.EXECUTE, body, command_id, stream=True)
        return self._live

    def _expect(self, command_id: str, command: cmd.SendMessage) -> None:
        content = [
            block.model_dump(mode="json", exclude_defaults=True) for block in command.content
        ]
        self._s.pending = {"command_id": command_id, "content": content, "settled": False}
        self._s.expecting = True

    def _respond(
        self, command_id: str, command: cmd.AnswerInteraction, blobs: Mapping[str, bytes]
    ) -> Call:
        if command.request_id != self._s.interaction:
            # An answer is addressed by task (section 10.1): it would go to another request.
            raise NotSupported(f"engine: request `{command.request_id}` is not the one that waits")
        body: dict[str, Any] = {"task_id": self._task}
        if self._s.interaction_kind == "approval":
            body["answer"] = wire.YES if _allows(command) else wire.NO
            feedback = command.reason or command.text
        else:
            words = command.text if command.text is not None else ", ".join(command.option_ids)
            body["answer"] = words
            feedback = command.reason
        if feedback:
            body["feedback"] = feedback
        if command.content:
            text, media = _split(command.content, blobs)
            if text and not body["answer"]:
                body["answer"] = text
            if media:
                body["content_blocks"] = media
        self._note_answer(command_id, command)
        return self._post("respond", wire.RESPOND, body, command_id)

    def _note_answer(self, command_id: str, command: cmd.AnswerInteraction) -> None:
        """Remember what was answered: `hitl_resolved` does not say it (section 8.9)."""
        if self._s.interaction_kind == "approval":
            outcome = "approved" if _allows(command) else "denied"
        else:
            outcome = "skipped" if command.skip else "answered"
        given = ev.Answer(
            option_ids=command.option_ids,
            text=command.text,
            reason=command.reason,
            content=command.content,
        )
        self._s.answer = {
            "command_id": command_id,
            "outcome": outcome,
            "answer": given.model_dump(mode="json", exclude_defaults=True),
            "settled": False,
        }

    def _post(
        self, name: str, path: str, body: dict[str, Any], command_id: str, *, stream: bool = False
    ) -> Call:
        headers = CIMultiDict({"Content-Type": "application/json"})
        if stream:
            headers["Accept"] = "text/event-stream"
        request = Request("POST", path, headers=headers, body=compact(format_json(body)))
        return Call(name, request, stream=stream, command_id=command_id)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        self._touched = True
        match command:
            case cmd.SendMessage():
                # Evidence is a turn in replay that we have not seen; `attach` asks for it.
                self._expect(command_id, command)
                self._live = None
                return None
            case cmd.AnswerInteraction():
                if command.request_id == self._s.interaction:
                    self._note_answer(command_id, command)
            case cmd.Interrupt() if self._deny_on_interrupt:
                if self._s.interaction is not None:
                    self._s.answer = _denial(command_id)
            case _:
                return None
        return self._look(command_id)

    def _look(self, command_id: str) -> Call:
        """Ask what is pending: it tells what became of an answer."""
        self._s.doubts.setdefault(command_id, {"at": None, "looks": 0})
        self._looking.add(command_id)
        return Call("pending", Request("GET", wire.PENDING), command_id=command_id)

    def _answers(self, command_id: str | None) -> dict[str, Any] | None:
        """Return what is known of a command that answers the open request, else None."""
        answer = self._s.answer
        return answer if answer is not None and answer["command_id"] == command_id else None

    def take_calls(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls

    def streams(self) -> tuple[Call, ...]:
        s = self._s
        if self._live is not None or (s.turn is None and not s.expecting):
            return ()
        if s.ending is not None and s.ending.get("error") is not None:
            # All is known; the turn's end only waits for `tick`.
            return ()
        # From just before what we know, so that it is repeated whatever the boundary is (11.2).
        after = max(0, (self._reached.time or 0) - 1)
        query = MultiDict({"after": str(after), "task_id": self._task})
        headers = CIMultiDict({"Accept": "text/event-stream"})
        return (Call("replay", Request("GET", wire.REPLAY, query, headers), stream=True),)

    # What came of calls.

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        self._touched = True
        self._live = call
        self._torn = False
        self._alignment = self._last = None
        self._echoes = []
        if call.name == "replay":
            self._echoes = self._reached.last_holes()
            self._may_begin = False
            self._alignment = Alignment(self._reached, idle=self._s.turn is None)
            return []
        assert call.command_id is not None
        self._may_begin = True
        self._confirmed, self._denied = False, False
        if self._s.pending is not None:
            self._s.pending["settled"] = True
        return [_settled(call.command_id, "taken")]

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._touched = True
        error = refusal(response)
        ok = 200 <= response.status < 300
        if self._was_shown(call):
            return []
        match call.name:
            case "respond":
                return self._answered(call, ok, response, error)
            case "pending":
                return self._looked_up(call.command_id, _listed(response), now)
            case "answered":
                return self._answered_elsewhere(_listed(response))
            case "replay":
                self._over(call)
                return []
            case _:
                self._over(call)
                if ok or _is_doubtful(response):
                    # It may run (section 4.2, 500): replay will show.
                    return []
                self._s.pending = None
                self._s.expecting = False
                assert call.command_id is not None
                return [_settled(call.command_id, "refused", error)]

    def _answered(
        self, call: Call, ok: bool, response: Response, error: ev.ErrorInfo
    ) -> list[ev.Event]:
        assert call.command_id is not None
        if ok:
            answer = self._answers(call.command_id)
            if answer is not None:
                answer["settled"] = True
            return [_settled(call.command_id, "taken")]
        if _is_doubtful(response):
            return self._doubt(call.command_id, error)
        out: list[ev.Event] = [_settled(call.command_id, "refused", error)]
        out += self._release_claim(call.command_id)
        if response.status == 404:
            # Section 10.1: nothing is pending for this task, so somebody else has answered; but
            # so says a gateway that has lost its way to the Engine.
            pending = Request("GET", wire.PENDING)
            self._calls.append(Call("answered", pending, command_id=call.command_id))
        return out

    def _doubt(self, command_id: str, error: ev.ErrorInfo) -> list[ev.Event]:
        """Say that an answer may have arrived, and look: what is pending tells."""
        self._calls.append(self._look(command_id))
        message = f"{error.message} What is pending will show whether the answer arrived."
        return [_retried(error.code, message)]

    def _was_shown(self, call: Call) -> bool:
        """Say whether the stream has shown already what a call did: what becomes of its reply says
        nothing more."""
        if call.command_id not in self._shown:
            return False
        self._shown.discard(call.command_id)
        self._looking.discard(call.command_id)
        return True

    def _release_claim(self, command_id: str) -> list[ev.Event]:
        """Let the open request be answered again; an interrupt has no claim on it."""
        answer, self._s.answer = self._s.answer, None
        if self._s.interaction is None or (answer or {}).get("interrupt"):
            return []
        return [
            ev.InteractionAnswered(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                request_id=self._s.interaction,
                command_id=command_id,
                by="backend",
                state="released",
            )
        ]

    def _looked_up(
        self, command_id: str | None, listed: list[Any] | None, now: int
    ) -> list[ev.Event]:
        """Hear what is pending, None where it could not be read: an answer whose request is still
        listed has not arrived (10.3)."""
        assert command_id is not None
        self._looking.discard(command_id)
        answer, doubt = self._answers(command_id), self._s.doubts.pop(command_id)
        if answer is None:
            # The request is resolved, or there is another one: the turn went on.
            return [_settled(command_id, "taken")]
        if listed is None and doubt["looks"] < LOOKS - 1:
            self._look_again(command_id, now + LOOK_RETRY_MS, doubt["looks"] + 1)
            return []
        if listed is None or not any(self._is_open(item) for item in listed):
            answer["settled"] = True
            return [_settled(command_id, "unknown" if listed is None else "taken")]
        if doubt["at"] is None:
            # The time is stored with this: a restart goes on waiting, and does not begin again.
            message = "What is pending still names the request; it will be asked once more."
            self._look_again(command_id, now + LOOK_AGAIN_MS, doubt["looks"])
            return [_retried("input_in_doubt", message)]
        if now < doubt["at"]:
            self._look_again(command_id, doubt["at"], doubt["looks"])
            return []
        lost = ev.ErrorInfo(code="not_delivered", message="The answer did not reach the Engine.")
        return [_settled(command_id, "refused", lost), *self._release_claim(command_id)]

    def _look_again(self, command_id: str, at: int, looks: int) -> None:
        self._s.doubts[command_id] = {"at": at, "looks": looks}
        self._set_alarm()

    def _answered_elsewhere(self, listed: list[Any] | None) -> list[ev.Event]:
        """Hear what is pending after a 404: a request that is listed can be answered again."""
        if self._s.interaction is None or self._s.answer is not None:
            # The stream has told, or what becomes of the next answer will.
            return []
        if listed is not None and any(self._is_open(item) for item in listed):
            return []
        return self._resolve(None, {}, inferred=True)

    def _is_open(self, item: Any) -> bool:
        """Say whether a record of `/hitl/pending` is the request that we wait for."""
        if not isinstance(item, dict):
            return False
        request_id = item.get("request_id")
        if request_id is None:
            return bool(item.get("task_id") == self._task)
        return bool(request_id == self._s.interaction)

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._touched = True
        if call.name == "replay":
            self._over(call)
            return []
        if self._was_shown(call):
            return []
        assert call.command_id is not None
        info = ev.ErrorInfo(code=str(error.code), message=error.message)
        if call.name == "execute":
            self._over(call)
            if sent:
                # It may run: replay will show, or `give_up` says that nothing is known.
                return []
            self._s.pending = None
            self._s.expecting = False
            return [_settled(call.command_id, "refused", info)]
        if call.name == "answered":
            return self._answered_elsewhere(None)
        if call.name == "pending":
            return self._looked_up(call.command_id, None, now)
        if sent:
            return self._doubt(call.command_id, info)
        out: list[ev.Event] = [_settled(call.command_id, "refused", info)]
        return out + self._release_claim(call.command_id)

    def _over(self, call: Call) -> None:
        """Hear that a stream is no more. A message may have begun another one meanwhile, where the
        end of this one's body came long after the end of its turn."""
        if self._live is call:
            self._live = None

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._touched = True
        out: list[ev.Event] = []
        if self._live is not call:
            return out
        self._live = None
        alignment, self._alignment = self._alignment, None
        if reason is CloseReason.STOPPED:
            return out
        # A half frame at the end is no end, however orderly it came.
        whole = reason is CloseReason.ENDED and not self._torn
        if alignment is not None:
            # A broken replay is read again; one that breaks at the same place is all there is.
            seen, sum_, times = alignment.seen, alignment.sum, 1
            if self._lost is not None and self._lost[:2] == (seen, sum_):
                times = self._lost[2] + 1
            if whole:
                self._denied = self._denied or not alignment.found
            if times == SAME_BREAKS or (whole and not alignment.doubtful):
                out += self._decided(alignment.decide(over=True, last=times == SAME_BREAKS), now)
                self._lost = None
            else:
                self._lost = seen, sum_, times
        ending = self._s.ending
        if ending is not None and (reason is CloseReason.ENDED or ending.get("error") is not None):
            out += self._end(now)
        self._set_alarm()
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._touched = True
        self._alignment = None
        info = ev.ErrorInfo(code=SESSION_LOST, message=error.message)
        pending = self._s.pending
        out: list[ev.Event] = []
        if self._s.turn is None and pending is not None:
            if not pending["settled"]:
                out.append(_settled(pending["command_id"], "unknown", info))
            else:
                # The Engine took it and never told of it: the message is shown, and what became
                # of it.
                out += self._begin(None, None, synthetic=True)
        if self._s.turn is not None:
            self._s.ending = {"outcome": "failed", "error": info.model_dump(mode="json")}
            out += self._end(now)
        self._s.pending = None
        self._s.expecting = False
        return out

    @property
    def patience(self) -> int:  # type: ignore[override]
        """Return how long silence is borne: as long as the Engine keeps a paused turn, else less.

        A replay that was read to its end and does not know the turn makes it the shortest.
        """
        if self._denied:
            return UNKNOWN_PATIENCE_MS
        if self._s.interaction is not None:
            return PAUSED_PATIENCE_MS
        return RUNNING_PATIENCE_MS if self._confirmed else UNKNOWN_PATIENCE_MS

    def tick(self, now: int) -> list[ev.Event]:
        self._touched = True
        out: list[ev.Event] = []
        alignment = self._alignment
        if alignment is not None and alignment.decide_at is not None and now >= alignment.decide_at:
            out += self._decided(alignment.decide(), now)
        if self._held and now >= self._s.held_at + HOLD_MS:
            out += self._release()
        if self._s.ending is not None and now >= self._s.ending_at + END_HOLD_MS:
            out += self._end(now)
        due = [id_ for id_, doubt in self._waiting() if doubt["at"] <= now]
        self._calls += [self._look(command_id) for command_id in due]
        self._set_alarm()
        return out

    def _waiting(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the answers in doubt for which what is pending is asked at some time."""
        doubts = self._s.doubts.items()
        return [(i, d) for i, d in doubts if d["at"] is not None and i not in self._looking]

    def _set_alarm(self) -> None:
        times = [doubt["at"] for _, doubt in self._waiting()]
        if self._held:
            times.append(self._s.held_at + HOLD_MS)
        if self._s.ending is not None:
            times.append(self._s.ending_at + END_HOLD_MS)
        if self._alignment is not None and self._alignment.decide_at is not None:
            times.append(self._alignment.decide_at)
        self.wake_at = min(times, default=None)

    # The state.

    @property
    def frames(self) -> int:
        return self._reached.frames

    @property
    def position(self) -> bytes:
        if self._touched:
            state = self._state()
            if state != self._saved:
                return b"[%s,%s]" % (self._place(), state)
            self._touched = False
        return b"[%s]" % self._place()

    def _place(self) -> bytes:
        block = self._block
        # Once for each event, and of our own numbers only: nothing in it needs a check.
        return orjson.dumps(
            [self._reached.dump(), [block.kind, block.over, block.number, block.index]]
        )

    def _state(self) -> bytes:
        self._s.held = [_raw_dump(event) for event in self._held]
        return compact(format_json({name: getattr(self._s, name) for name in _STATE_FIELDS}))

    def snapshot(self) -> bytes:
        self._saved = self._state()
        self._touched = False
        return b"[%s,%s]" % (self._place(), self._saved)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        saved: Any = parse_json(snapshot) if snapshot is not None else None
        later: Any = parse_json(position) if position is not None else None
        place = saved
        if later is not None and (saved is None or later[0][0][0] > saved[0][0][0]):
            place = later
        if place is not None:
            self._reached = Reached.load(place[0][0])
            self._block = _Block(*place[0][1])
            state = place[1] if len(place) > 1 else saved[1] if saved is not None else {}
            self._s = _State(**state)
            self._held = [_raw_load(item) for item in self._s.held]
        self._saved = None if saved is None else format_json(saved[1])
        self._touched = True
        self._last = None
        self._live = None
        self._alignment = None
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, SseFrame)
        name = frame.event
        if name == "heartbeat":
            return []
        payload: Any
        reason = ""
        try:
            payload = parse_json(frame.data)
        except JsonError as error:
            payload, reason = None, str(error)
        # The hot path: the next piece of the open block.
        last = self._last
        if (
            last is not None
            and name == _NATIVE_DELTA[last.TYPE]
            and type(payload) is dict
            and len(payload) == 1
            and type(text := payload.get("text")) is str
            and self._alignment is None
        ):
            self._torn = False
            reached = self._reached
            reached.count(mark_of_text(name, text))
            # The next delta is made after the newest one: what these have in common goes with it.
            self._last = delta = ev.next_delta(last, text, reached.frames)
            return [delta]
        if type(payload) is not dict:
            payload, reason = None, reason or "the payload is not a JSON object"
        elif "task_id" in payload and payload["task_id"] not in (None, self._task):
            # Section 11.3: replay has no task parameter, so other tasks may be between ours.
            return []
        known = Known(
            name,
            payload,
            frame.data,
            mark_of(name, payload, frame.data),
            _time_of(payload),
            name == "thread_lifecycle" and (payload or {}).get("phase") == "started",
        )
        self._torn = False
        return self._read(known, now)

    def _read(self, frame: Known, now: int) -> list[ev.Event]:
        out = self._align(frame, now) if self._alignment is not None else self._take(frame, now)
        self._set_alarm()
        return out

    def _align(self, frame: Known, now: int) -> list[ev.Event]:
        """Compare a frame of a replay with what was streamed; past that, it is new."""
        alignment = self._alignment
        assert alignment is not None
        match alignment.take(frame, now):
            case Verdict.WAIT:
                return []
            case Verdict.DECIDE:
                self._confirmed, self._denied = True, False
                return self._decided(alignment.decide(), now)
            case Verdict.NEW:
                out = self._decided(alignment.decide(new=frame), now)
                return out + self._take(frame, now)

    def _decided(self, decision: Decision, now: int) -> list[ev.Event]:
        self._alignment = None
        out: list[ev.Event] = []
        if decision.gap is not None:
            after = self._reached.time
            self._reached.part()
            out.append(
                ev.Gap(
                    thread_id=ev.MAIN,
                    turn_id=self._s.turn,
                    reason=decision.gap,
                    cursor_from=None if after is None else str(after),
                    synthetic=True,
                )
            )
        if decision.frames:
            self._confirmed, self._denied = True, False
        for frame in decision.frames:
            out += self._take(frame, now)
        return out

    def _take(self, frame: Known, now: int) -> list[ev.Event]:
        """Make events of a frame that is new."""
        touched, self._touched = self._touched, True
        self._last = None
        name, payload = frame.name, frame.payload
        if payload is None:
            return self._take_garbled(frame, now)
        self._echoes = []
        self._reached.count(frame.mark, frame.time, frame.begins)
        if self._is_late(frame):
            return self._late(name, payload, now)
        handler = _HANDLERS.get(name)
        if handler is None:
            return self._hold(self._unknown(name, payload), name, now)
        events = handler(self, name, payload, now)
        if self._held:
            self._last = None
        elif self._last is not None and len(events) == 1:
            # A delta alone has changed nothing but the position.
            self._touched = touched
        return self._hold(events, name, now)

    def _is_late(self, frame: Known) -> bool:
        """Say whether a frame belongs to a turn that is over: one begins with `started` (9.1)."""
        s, payload = self._s, frame.payload or {}
        if frame.name not in _OF_TURN:
            return False
        if frame.name == "thread_lifecycle" and payload.get("phase") not in _LAST_PHASES:
            return False
        if s.turn is None:
            return not self._may_begin
        named = payload.get("turn_id")
        return named is not None and named != s.turn and named == s.last_turn

    def _late(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        """Say what a late frame means, as of its turn: the normalizer puts it aside."""
        kept = self._s, self._block, self._held
        last = self._s.last_turn
        if name == "thread_lifecycle":
            return []
        if last is None:
            return self._unknown(name, payload)
        if name == "error":
            error = _error_of(payload)
            return [
                ev.ErrorReported(
                    thread_id=ev.MAIN,
                    code=error.code,
                    message=error.message,
                    details=error.details,
                    native=self._native(name, payload),
                )
            ]
        self._s, self._block, self._held = _State(turn=last), _Block(), []
        try:
            events: list[ev.Event] = _HANDLERS[name](self, name, payload, now)
        finally:
            self._s, self._block, self._held = kept
        return [event for event in events if not isinstance(event, ev.StepStarted)]

    def _take_garbled(self, frame: Known, now: int) -> list[ev.Event]:
        if frame.mark in self._echoes:
            # It was garbled when it was streamed, and that was told then.
            self._echoes.remove(frame.mark)
            return []
        self._reached.count_garbled(frame.mark, framed=frame.reason is None)
        reason = frame.reason
        if reason is None:
            reason = f"event `{frame.name or 'message'}`: the payload is no JSON object"
        return self._hold(self._broken(frame.data, reason), frame.name, now)

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        self._torn = True
        mark = mark_of("", None, offending)
        return self._read(Known("", None, offending, mark, reason=reason), now)

    def _broken(self, offending: bytes, reason: str) -> list[ev.Event]:
        return [
            ev.ErrorReported(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                code=str(ErrorCode.BACKEND_PROTOCOL),
                message=f"engine: {reason}",
                details={"offending": offending[:512].decode("utf-8", "backslashreplace")},
                synthetic=True,
            )
        ]

    # Holding a tool call until its permission is known.

    def _hold(self, events: list[ev.Event], name: str, now: int) -> list[ev.Event]:
        """Let events through, or keep them behind a call that is held."""
        if not self._held:
            first = next(
                (i for i, event in enumerate(events) if type(event) is ev.ToolCalled), len(events)
            )
            if first < len(events):
                self._held = events[first:]
                self._s.held_at = now
            return events[:first]
        runs = _shows_that_it_runs(name, events, self._held)
        if runs is None:
            self._held += events
            return []
        return self._release(runs) + self._hold(events, name, now)

    def _release(self, runs: frozenset[str] = frozenset()) -> list[ev.Event]:
        """Let the held events go; the calls in `runs` are allowed, as evidence shows."""
        out = [
            event.model_copy(update={"permission": "allow"})
            if isinstance(event, ev.ToolCalled)
            and event.permission == "unknown"
            and event.call_id in runs
            else event
            for event in self._held
        ]
        self._held = []
        return out

    # One handler per native event (section 8).

    def _native(self, name: str, payload: dict[str, Any]) -> ev.NativeRef:
        at = payload.get("timestamp")
        if at is None:
            at = payload.get("created_at")
        return ev.NativeRef(
            dialect="engine",
            type=name,
            at=at if isinstance(at, str) else None,
            frame=self._reached.frames,
        )

    def _in_turn(self, native: ev.NativeRef) -> list[ev.Event]:
        """Begin the turn where the Engine left out `started`."""
        if self._s.turn is not None:
            return []
        return self._begin(None, native, synthetic=True)

    def _begin(
        self,
        turn_id: str | None,
        native: ev.NativeRef | None,
        *,
        synthetic: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> list[ev.Event]:
        s = self._s
        s.turns += 1
        s.turn = turn_id or f"turn-{s.turns}"
        s.step, s.steps, s.calls_in_step = None, 0, False
        s.open_calls, s.answer, s.interaction, s.ending = {}, None, None, None
        self._block.kind, self._block.over = None, False
        self._may_begin = False
        pending, s.pending, s.expecting = s.pending, None, False
        out: list[ev.Event] = []
        if pending is not None and not pending["settled"]:
            # After a crash the turn itself is the evidence.
            out.append(_settled(pending["command_id"], "taken"))
        out.append(
            ev.TurnStarted(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                cause="message" if pending is not None else "background",
                partial=synthetic,
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
        return out

    def _in_step(self, native: ev.NativeRef) -> list[ev.Event]:
        out = self._in_turn(native)
        s = self._s
        if s.step is None:
            s.step = s.steps
            s.steps += 1
            s.messages += 1
            s.calls_in_step = False
            self._block.index = -1
            out.append(
                ev.StepStarted(
                    thread_id=ev.MAIN,
                    turn_id=s.turn,
                    step_index=s.step,
                    native=native,
                    synthetic=True,
                )
            )
        return out

    def _end_block(self, finish_reason: str = "stop") -> list[ev.Event]:
        kind = self._block.kind
        if kind is None:
            return []
        self._block.kind, self._block.over = None, False
        return [
            BlockEnded(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                block=kind,
                finish_reason=finish_reason if kind == "text" else None,
            )
        ]

    def _end_step(
        self, native: ev.NativeRef | None, usage: ev.Usage | None, *, synthetic: bool
    ) -> list[ev.Event]:
        s = self._s
        finish = "tool-calls" if s.calls_in_step else "stop"
        out = self._end_block(finish)
        if s.step is not None:
            out.append(
                ev.StepEnded(
                    thread_id=ev.MAIN,
                    turn_id=s.turn,
                    step_index=s.step,
                    finish_reason=finish,
                    usage=usage,
                    native=native,
                    synthetic=synthetic,
                )
            )
            s.step = None
        return out

    def _lifecycle(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        native = self._native(name, payload)
        phase, turn_id = payload.get("phase"), payload.get("turn_id")
        turn_id = turn_id if isinstance(turn_id, str) and turn_id else None
        extra = _rest(payload, _LIFECYCLE_KEYS)
        match phase:
            case "started":
                if (
                    self._s.turn is not None
                    and self._s.ending is None
                    and turn_id in (None, self._s.turn)
                ):
                    return []
                out = self._end(now) if self._s.ending is not None else []
                return out + self._begin(turn_id, native, extra=extra)
            case "completed" if self._s.ending is None:
                out = self._in_turn(native)
                self._s.ending = {"outcome": "completed"}
                self._seen_end(native, extra)
                return out + self._end(now)
            case "completed" | "errored":
                # The first of `error` and `errored` has fixed the outcome (section 9.3).
                out = self._in_turn(native)
                self._fail(None, native, extra, now)
                return out
            case _:
                return self._unknown(name, payload)

    def _error(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        native = self._native(name, payload)
        out = self._in_turn(native)
        self._fail(_error_of(payload), native, _rest(payload, _ERROR_KEYS), now)
        return out

    def _fail(
        self,
        error: ev.ErrorInfo | None,
        native: ev.NativeRef,
        extra: dict[str, Any] | None,
        now: int,
    ) -> None:
        """Hold the end of a failed turn: the other one of its two ends may follow (section 9.3)."""
        s = self._s
        if s.ending is None:
            s.ending = {"outcome": "failed"}
            s.ending_at = now
        if error is not None and s.ending.get("error") is None:
            s.ending["error"] = error.model_dump(mode="json")
        self._seen_end(native, extra)

    def _seen_end(self, native: ev.NativeRef, extra: dict[str, Any] | None) -> None:
        """Add what a terminal event says to the end of the turn: the first is what it is from."""
        ending = self._s.ending
        assert ending is not None
        ending.setdefault("native", native.model_dump(mode="json", exclude_none=True))
        if extra is not None:
            ending["extra"] = {**extra, **ending.get("extra", {})}

    def _end(self, now: int) -> list[ev.Event]:
        """End the turn as `ending` says; what a failure cut is left to the normalizer."""
        s = self._s
        ending = s.ending
        assert ending is not None
        completed = ending["outcome"] == "completed"
        # The calls of a turn that was completed have run.
        out = self._release(frozenset(s.open_calls) if completed else frozenset())
        if completed or s.answer is not None:
            out += self._infer_resolved()
        if completed:
            out += self._end_step(None, None, synthetic=True)
        elif self._block.over:
            # The Engine itself has closed this text: it is whole.
            out += self._end_block()
        error = ending.get("error")
        if not completed and error is None:
            error = {"code": "errored", "message": "The turn failed; the Engine gave no reason."}
        native = ending.get("native")
        out.append(
            ev.TurnEnded(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                outcome="completed" if completed else "failed",
                error=None if error is None else ev.ErrorInfo(**error),
                native=None if native is None else ev.NativeRef(**native),
                extra=ending.get("extra"),
            )
        )
        s.last_turn, s.turn, s.step, s.ending = s.turn, None, None, None
        s.interaction, s.answer, s.open_calls = None, None, {}
        self._block.kind, self._block.over = None, False
        self._last = None
        return out

    def _text(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        return self._delta(name, payload, "text")

    def _thinking(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        return self._delta(name, payload, "reasoning")

    def _delta(
        self, name: str, payload: dict[str, Any], kind: Literal["text", "reasoning"]
    ) -> list[ev.Event]:
        text = payload.get("text")
        if not isinstance(text, str):
            return self._unknown(name, payload)
        native = self._native(name, payload)
        out = self._infer_resolved()
        block = self._block
        if block.kind is not None and (block.kind != kind or block.over):
            out += self._end_block()
        out += self._in_step(native)
        if block.kind is None:
            block.kind = kind
            block.number += 1
            block.index += 1
        make = ev.TextDelta if kind == "text" else ev.ReasoningDelta
        delta = make(
            thread_id=ev.MAIN,
            turn_id=self._s.turn,
            block_id=f"b{block.number}",
            message_id=f"m{self._s.messages}",
            index=block.index,
            text=text,
            native=native,
            extra=_rest(payload, _TEXT_KEYS),
        )
        out.append(delta)
        if len(payload) == 1 and self._s.ending is None:
            self._last = delta
        return out

    def _block_start(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        native = self._native(name, payload)
        if payload.get("block_type") == "tool_use":
            out = self._in_step(native)
            self._s.calls_in_step = True
            return out + self._end_block("tool-calls")
        return self._end_block() + self._in_step(native)

    def _block_stop(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        if self._block.kind == "text":
            # Whether this text was the answer or led to a tool shows in what follows.
            self._block.over = True
            return []
        return self._end_block()

    def _tool_call(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        native = self._native(name, payload)
        s = self._s
        out = self._infer_resolved() + self._in_step(native)
        s.calls_in_step = True
        out += self._end_block("tool-calls")
        call_id = payload.get("tool_call_id")
        if not isinstance(call_id, str) or not call_id:
            s.unnamed_calls += 1
            call_id = f"call-{s.unnamed_calls}"
        tool = payload.get("tool")
        tool = tool if isinstance(tool, str) and tool else "unknown"
        # A dotted name belongs to a connector (section 8.6).
        server = tool.partition(".")[0] if "." in tool else None
        s.open_calls[call_id] = {"tool": tool, "input": payload.get("input"), "asked": False}
        out.append(
            ev.ToolCalled(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                call_id=call_id,
                name=tool,
                kind="mcp" if server else "builtin",
                server=server,
                input=payload.get("input"),
                input_known="input" in payload,
                native=native,
                extra=_rest(payload, _CALL_KEYS),
            )
        )
        return out

    def _tool_result(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        native = self._native(name, payload)
        s = self._s
        call_id = self._returning_call(payload)
        out: list[ev.Event] = []
        if s.interaction_call in (None, call_id) or s.answer is not None:
            # Another tool may report while one waits for a person (section 9.1).
            out = self._infer_resolved()
        out += self._in_turn(native)
        if s.interaction is None:
            out += self._end_step(None, None, synthetic=True)
        extra = _rest(payload, _RESULT_KEYS) or {}
        call = s.open_calls.pop(call_id, None)
        if call is None and isinstance(payload.get("tool"), str):
            extra["name"] = payload["tool"]
        error = payload.get("error")
        failed = error is not None
        rejected = error == wire.PERMISSION_DENIED
        out.append(
            ev.ToolReturned(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                call_id=call_id,
                output=payload.get("output"),
                is_error=failed,
                error=_tool_error(error) if failed else None,
                status="rejected" if rejected else "failed" if failed else "completed",
                native=native,
                extra=extra or None,
            )
        )
        return out

    def _returning_call(self, payload: dict[str, Any]) -> str:
        """Return the call of a result: by id, else the oldest that is unanswered (section 8.7)."""
        call_id = payload.get("tool_call_id")
        if isinstance(call_id, str) and call_id:
            return call_id
        waiting = list(self._s.open_calls)
        if self._s.interaction is not None and self._s.answer is None:
            # What waits for a person cannot return yet.
            waiting = [c for c in waiting if c != self._s.interaction_call] or waiting
        return waiting[0] if waiting else f"call-of-frame-{self._reached.frames}"

    def _request(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        native = self._native(name, payload)
        s = self._s
        request_id = payload.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            s.interactions += 1
            request_id = f"hitl-{s.interactions}"
        if request_id == s.interaction:
            # Told again, to one who reconnects for example.
            return []
        out = self._infer_resolved() + self._in_turn(native)
        out += self._end_step(None, None, synthetic=True)
        question = payload.get("question")
        question = question if isinstance(question, str) else ""
        approval = payload.get("kind") == "permission"
        call_id = self._asking_call(payload, question) if approval else None
        details: dict[str, Any] = {}
        if call_id is not None:
            call = s.open_calls[call_id]
            call["asked"] = True
            details = {"tool": call["tool"], "input": call["input"]}
            self._held = [
                event.model_copy(update={"permission": "ask"})
                if isinstance(event, ev.ToolCalled) and event.call_id == call_id
                else event
                for event in self._held
            ]
        # Not documented; shown where they are present (section 8.8).
        details |= {key: payload[key] for key in ("tool", "input") if payload.get(key) is not None}
        extra = _rest(payload, _REQUEST_KEYS) or {}
        if call_id is None and payload.get("tool_call_id") is not None:
            extra["tool_call_id"] = payload["tool_call_id"]
        options = _options(payload.get("options"))
        if approval and payload.get("options") is not None:
            extra["options"] = payload["options"]
        if payload.get("kind") not in ("permission", "question"):
            extra |= {"kind": payload["kind"]} if "kind" in payload else {}
        s.interaction, s.interaction_kind = request_id, "approval" if approval else "question"
        s.interaction_call, s.answer = call_id, None
        out.append(
            ev.InteractionRequested(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                request_id=request_id,
                kind="approval" if approval else "question",
                prompt=question,
                options=APPROVAL_OPTIONS if approval else options,
                freeform=not approval,
                call_id=call_id,
                details=details or None,
                native=native,
                extra=extra or None,
            )
        )
        out.append(ev.TurnPaused(thread_id=ev.MAIN, turn_id=s.turn, on="input", native=native))
        return out

    def _asking_call(self, payload: dict[str, Any], question: str) -> str | None:
        """Return the open call that a permission is about (section 8.8).

        By id, else by what the question quotes and the tool it names, else the oldest.
        """
        named, tool = payload.get("tool_call_id"), payload.get("tool")
        open_calls = {k: c for k, c in self._s.open_calls.items() if not c["asked"]}
        if isinstance(named, str) and named:
            return named if named in open_calls else None
        best, best_score = None, -1
        for call_id, call in open_calls.items():
            if isinstance(tool, str) and tool != call["tool"]:
                continue
            values = call["input"].values() if isinstance(call["input"], dict) else ()
            quoted = any(isinstance(v, str) and len(v) > 2 and v in question for v in values)
            score = 2 * quoted + (tool == call["tool"] or call["tool"] in question)
            if score > best_score:
                best, best_score = call_id, score
        return best

    def _resolved(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        request_id = payload.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            # Section 8.9: it refers to the request pending on this stream.
            request_id = self._s.interaction
        if request_id is None or request_id != self._s.interaction:
            return []
        return self._resolve(self._native(name, payload), payload)

    def _infer_resolved(self) -> list[ev.Event]:
        """Take work after a request as the evidence where `hitl_resolved` was left out."""
        if self._s.interaction is None:
            return []
        return self._resolve(None, {}, inferred=True)

    def _resolve(
        self, native: ev.NativeRef | None, payload: dict[str, Any], *, inferred: bool = False
    ) -> list[ev.Event]:
        s = self._s
        request_id, answer = s.interaction, s.answer or {}
        assert request_id is not None
        s.interaction, s.interaction_call, s.answer = None, None, None
        given = answer.get("answer")
        out: list[ev.Event] = []
        if answer and not answer["settled"]:
            # The effect proves that the answer arrived, whatever becomes of the request's reply.
            command_id = answer["command_id"]
            if s.doubts.pop(command_id, None) is None or command_id in self._looking:
                self._shown.add(command_id)
            out.append(_settled(command_id, "taken"))
        return [
            *out,
            ev.InteractionResolved(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                request_id=request_id,
                outcome=answer.get("outcome", "unknown"),
                answer=None if given is None else ev.Answer(**given),
                scope="once" if answer.get("outcome") == "approved" else None,
                native=native,
                synthetic=inferred,
                extra=_rest(payload, _RESOLVED_KEYS),
            ),
            ev.TurnResumed(thread_id=ev.MAIN, turn_id=s.turn, native=native, synthetic=inferred),
        ]

    def _usage(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        native = self._native(name, payload)
        usage = ev.Usage(
            input_tokens=_int(payload.get("input_tokens")),
            output_tokens=_int(payload.get("output_tokens")),
            cache_read_tokens=_int(payload.get("cache_hit_tokens")),
            extra=_rest(payload, _USAGE_KEYS),
        )
        if self._s.step is not None:
            return self._end_step(native, usage, synthetic=False)
        return [
            ev.UsageReported(
                thread_id=ev.MAIN, turn_id=self._s.turn, usage=usage, scope="call", native=native
            )
        ]

    def _memory(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        return [
            ev.MemoryUpdated(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                value=payload,
                native=self._native(name, payload),
            )
        ]

    def _compaction(self, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        strategy = payload.get("strategy")
        return [
            ev.ContextCompacted(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                before_tokens=_number(payload.get("before_tokens")),
                after_tokens=_number(payload.get("after_tokens")),
                strategy=strategy if isinstance(strategy, str) else None,
                native=self._native(name, payload),
                extra=_rest(payload, _COMPACTION_KEYS),
            )
        ]

    def _unknown(self, name: str, payload: dict[str, Any]) -> list[ev.Event]:
        return [
            ev.Native(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                dialect="engine",
                name=name or "message",
                frame=payload,
                native=self._native(name, payload),
            )
        ]


APPROVAL_OPTIONS = (
    ev.Option(id="approve", label="Yes", decision="allow", scope="once", style="primary"),
    ev.Option(id="deny", label="No", decision="deny", style="danger"),
)
"""A permission takes yes or no and names no ids (section 10.1); these are ours."""

_STATE_FIELDS = tuple(field.name for field in dataclasses.fields(_State))

_NATIVE_DELTA = {"text.delta": "text_delta", "reasoning.delta": "thinking_delta"}

_EXECUTE_OPTIONS = frozenset({"direct", "super_thinking"})
"""Members of `POST /execute` that only an Engine frontend can name (section 6.1)."""

_ANY_KEYS = frozenset({"task_id", "turn_id", "timestamp"})
_TEXT_KEYS = _ANY_KEYS | {"text"}
_LIFECYCLE_KEYS = _ANY_KEYS | {"phase"}
_ERROR_KEYS = _ANY_KEYS | {"error", "message", "details"}
_CALL_KEYS = _ANY_KEYS | {"tool", "tool_call_id", "input"}
_RESULT_KEYS = _ANY_KEYS | {"tool_call_id", "output", "error"}
_REQUEST_KEYS = _ANY_KEYS | {
    "request_id", "kind", "question", "options", "created_at", "tool", "input", "tool_call_id"
}  # fmt: skip
_RESOLVED_KEYS = _ANY_KEYS | {"request_id"}
_USAGE_KEYS = _ANY_KEYS | {"input_tokens", "output_tokens", "cache_hit_tokens"}
_COMPACTION_KEYS = _ANY_KEYS | {"before_tokens", "after_tokens", "strategy"}

_HANDLERS: dict[str, Callable[[EngineClient, str, dict[str, Any], int], list[ev.Event]]] = {
    "thread_lifecycle": EngineClient._lifecycle,
    "error": EngineClient._error,
    "text_delta": EngineClient._text,
    "thinking_delta": EngineClient._thinking,
    "content_block_start": EngineClient._block_start,
    "content_block_stop": EngineClient._block_stop,
    "tool_call": EngineClient._tool_call,
    "tool_result": EngineClient._tool_result,
    "hitl_request": EngineClient._request,
    "hitl_resolved": EngineClient._resolved,
    "working_memory_update": EngineClient._memory,
    "compaction_event": EngineClient._compaction,
    "usage": EngineClient._usage,
}

_LAST_PHASES = ("completed", "errored")

_OF_TURN = frozenset(_HANDLERS) - {"working_memory_update", "compaction_event", "usage"}
"""Events that mean nothing outside of a turn."""

_SETTLING = frozenset({"hitl_request", "hitl_resolved", "thread_lifecycle", "error"})
"""Events after which nothing more will show about calls that are held.

A request has marked the call that asks. A delta is none of them: without the results of its calls
the model cannot go on, so it is the rest of the same answer.
"""


def _shows_that_it_runs(
    name: str, events: list[ev.Event], held: list[ev.Event]
) -> frozenset[str] | None:
    """Return the held calls that a frame shows to run; None where the waiting goes on."""
    if name in _SETTLING:
        return frozenset()
    calls = {event.call_id for event in held if isinstance(event, ev.ToolCalled)}
    returned = frozenset(event.call_id for event in events if isinstance(event, ev.ToolReturned))
    return returned & calls or None


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what an error body says; one without `error`, or that is no JSON, is quoted (4.1)."""
    body = _error_body(response)
    if body is not None:
        details = body.get("details")
        return ev.ErrorInfo(
            code=body["error"],
            message=str(body.get("message") or body["error"]),
            details=details if isinstance(details, dict) and details else None,
        )
    text = response.body[:512].decode("utf-8", "backslashreplace")
    return ev.ErrorInfo(
        code=f"http_{response.status}", message=f"The Engine answered {response.status}: {text}"
    )


def _error_body(response: Response) -> dict[str, Any] | None:
    try:
        body = parse_json(response.body)
    except JsonError:
        return None
    return body if isinstance(body, dict) and isinstance(body.get("error"), str) else None


def _listed(response: Response) -> list[Any] | None:
    """Return the records of an answer of `/hitl/pending`, None where it is none (10.3)."""
    try:
        body = parse_json(response.body) if 200 <= response.status < 300 else None
    except JsonError:
        return None
    listed = body.get("pending") if isinstance(body, dict) else None
    return listed if isinstance(listed, list) else None


def _is_doubtful(response: Response) -> bool:
    """Say whether the Engine may have taken what it was sent, whatever the status says.

    500 is an unexpected failure (section 4.2); 502 and 504 without the Engine's own body are from
    something in between.
    """
    if response.status == 500:
        return True
    return response.status in (502, 504) and _error_body(response) is None


def _error_of(payload: dict[str, Any]) -> ev.ErrorInfo:
    """Read an `error` event (section 8.2), also one that is not as documented."""
    code, message, details = payload.get("error"), payload.get("message"), payload.get("details")
    if not isinstance(code, str):
        details = {"error": code, "details": details}
        code = "error"
    return ev.ErrorInfo(
        code=code,
        message=message if isinstance(message, str) else code,
        details=details if isinstance(details, dict) else None,
    )


def _tool_error(error: Any) -> ev.ErrorInfo:
    """Read `tool_result.error`: text or an object, which is not documented (section 8.7)."""
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
        return ev.ErrorInfo(
            code=code if isinstance(code, str) else "tool_failed",
            message=message if isinstance(message, str) else format_json(error).decode(),
            details=error,
        )
    text = error if isinstance(error, str) else format_json(error).decode()
    return ev.ErrorInfo(
        code=text if text == wire.PERMISSION_DENIED else "tool_failed", message=text
    )


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


def _denial(command_id: str) -> dict[str, Any]:
    return {"command_id": command_id, "outcome": "denied", "interrupt": True, "settled": False}


def _retried(code: str, message: str) -> ev.Event:
    return ev.ErrorReported(
        thread_id=ev.MAIN, code=code, message=message, retry="retrying", synthetic=True
    )


def _allows(command: cmd.AnswerInteraction) -> bool:
    if command.decision is not None:
        return command.decision == "allow"
    return APPROVAL_OPTIONS[0].id in command.option_ids


def _time_of(payload: dict[str, Any] | None) -> int | None:
    """Return the time that a payload tells, in Unix milliseconds."""
    if payload is None:
        return None
    at = payload.get("timestamp")
    if at is None:
        at = payload.get("created_at")
    return None if at is None else wire.parse_time(at)


def _rest(payload: dict[str, Any], known: frozenset[str]) -> dict[str, Any] | None:
    rest = {key: value for key, value in payload.items() if key not in known}
    return rest or None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _options(value: object) -> tuple[ev.Option, ...] | None:
    """Read `options`: absent, texts, or objects with a label (section 8.8)."""
    if not isinstance(value, list) or not value:
        return None
    options = []
    for item in value:
        fields = item if isinstance(item, dict) else {"label": item}
        label = next((fields[k] for k in ("label", "text", "value", "id") if fields.get(k)), None)
        if isinstance(label, str | int | float) and not isinstance(label, bool):
            description = fields.get("description")
            options.append(
                ev.Option(
                    id=str(label),
                    label=str(label),
                    description=description if isinstance(description, str) else None,
                )
            )
    return tuple(options) or None


def _check_files(content: tuple[Any, ...]) -> None:
    for block in content:
        if isinstance(block, ev.File) and isinstance(block.ref, ev.FileId):
            raise NotSupported(
                f"engine: file `{block.ref.id}` is known to a {block.ref.dialect} backend only; "
                "send its bytes or a URL"
            )
        if isinstance(block, ev.Other) and block.dialect == wire.DIALECT:
            continue
        if not isinstance(block, ev.Text | ev.File):
            raise NotSupported(f"engine: a `{block.type}` block is impossible: no field carries it")


def _split(
    content: tuple[Any, ...], blobs: Mapping[str, bytes]
) -> tuple[str, list[dict[str, Any]]]:
    """Return the words and the media blocks of a content (section 6.2: plain base64)."""
    texts, media = [], []
    for block in content:
        match block:
            case ev.Text():
                texts.append(block.text)
            case ev.File(ref=ev.Blob(sha256=digest)):
                kind = block.media_type or "application/octet-stream"
                data = base64.b64encode(blobs[digest]).decode()
                source = {"type": "base64", "media_type": kind, "data": data}
                media.append(wire.media_block(kind, source))
            case ev.File(ref=ev.Url(url=url)):
                # A URL tells no type; only images are documented (section 6.2).
                kind = block.media_type or "image/*"
                media.append(wire.media_block(kind, {"type": "url", "url": url}))
            case ev.Other(dialect=wire.DIALECT):
                media.append(block.value)
            case _:
                raise NotSupported(f"engine: a `{block.type}` block is impossible")
    return "\n".join(texts), media


def _context_text(context: object) -> str:
    """Return a frontend's context as words, as eve shows it to its model (eve page, 4.1)."""
    items = context if isinstance(context, list) else [context]
    return "\n\n".join(
        "Client context:\n" + (item if isinstance(item, str) else format_json(item).decode())
        for item in items
    )


def _raw_dump(event: ev.Event) -> dict[str, Any]:
    value = parse_json(ev.encode_event(event))
    assert isinstance(value, dict)
    return value


def _raw_load(value: dict[str, Any]) -> ev.Event:
    if value["type"] == BlockEnded.TYPE:
        return BlockEnded.model_validate(value)
    return ev.decode_event(value)
