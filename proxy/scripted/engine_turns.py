"""The conversations of the scripted Engine: turns that play scripts into a stamped buffer.

A turn is a task of its own that writes frames into the buffer of its conversation; who reads them
is no concern of it. `ScriptedEngine` keeps the conversations and the rules about them: one turn at
a time, one open request at a time (engine page, sections 10 to 12).

Why one module: a turn plays each kind of beat, and the rules of the conversation are checked at
each.
"""

import asyncio
import bisect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from proxy.base.clock import Clock
from proxy.scripted.backend import FollowedConversation, Refusal, ScriptedBackend, iso
from proxy.scripted.engine_frames import BODIES, FRAMES
from proxy.scripted.engine_requests import ExecuteBody, RespondBody
from proxy.scripted.faults import Faults
from proxy.scripted.scripts import (
    ApproveAllBeat,
    ApproveBeat,
    AskBeat,
    AskSealedBeat,
    Beat,
    CompactBeat,
    DelegateBeat,
    FailBeat,
    LimitBeat,
    OddBeat,
    ProduceBeat,
    RememberBeat,
    RunBeat,
    SayBeat,
    SignInBeat,
    ThinkBeat,
    ToolCall,
    UseCustomToolBeat,
    beats_for,
    lacking,
)
from proxy.scripted.templates import Template, dump

Failure = Literal["error", "errored", "error_errored", "errored_error"]
OptionForm = Literal["strings", "objects", "absent"]


@dataclass(frozen=True, slots=True)
class EngineVariant:
    """One choice for each thing that the Engine page leaves open or contradicts itself about.

    Args:
        tool_call_id: whether tool events carry the id (sections 8.6, 8.7); without it results
            come in the order of the calls, with it the last call returns first.
        result_first: whether a result comes before its call.
        failure: which terminal events a failed turn has, in which order (section 9.3).
        heartbeat_timestamp: whether a heartbeat carries its time (section 8.12).
        short_lifecycle: lifecycle events without `turn_id` and `timestamp` (section 8.1).
        blocks: whether `content_block_*` events come (section 8.5).
        call_before_request: whether a gated `tool_call` comes before its `hitl_request`
            (section 9.1, point 5).
        options: the form of a question's options (section 8.8).
        resolved_request_id: whether `hitl_resolved` names its request (section 8.9).
        usage: whether `usage` comes after each model call (section 8.13).
        replay_tails: whether a replay of a running turn follows it to its end (section 11.1).
        tolerance: comments, CRLF, data over several lines, `id:` lines (09-tolerance.sse).
        strict: refuse unknown members and parameters (section 6.1).
    """

    tool_call_id: bool = True
    result_first: bool = False
    failure: Failure = "error_errored"
    heartbeat_timestamp: bool = True
    short_lifecycle: bool = False
    blocks: bool = True
    call_before_request: bool = True
    options: OptionForm = "strings"
    resolved_request_id: bool = True
    usage: bool = True
    replay_tails: bool = True
    tolerance: bool = False
    strict: bool = True


DEFAULT = EngineVariant()


@dataclass(slots=True)
class EnginePause:
    """The request that a paused turn waits for, as `/hitl/pending` lists it."""

    record: dict[str, object]
    answered: asyncio.Future[RespondBody]

    def resume(self, answer: RespondBody) -> None:
        """Let the turn go on, unless it is gone or goes on already."""
        if not self.answered.done():
            self.answered.set_result(answer)


@dataclass(frozen=True, slots=True)
class ScriptedEngineFrame:
    """One buffered frame."""

    stamp: int
    data: bytes


@dataclass(slots=True)
class EngineConversation(FollowedConversation):
    """One conversation: its buffer, its running turn, what it waits for."""

    task_id: str
    turns: int = 0
    buffer: list[ScriptedEngineFrame] = field(default_factory=list)
    running: "EngineTurn | None" = None
    pending: EnginePause | None = None
    active_at: int = 0


@dataclass(slots=True)
class EngineTurn:
    """One turn; `end` is the place in the buffer behind its last frame, once it is over."""

    task: EngineConversation
    turn_id: str
    start: int
    end: int | None = None
    runner: asyncio.Task[None] | None = None


def plain(event: str, payload: Mapping[str, object]) -> bytes:
    return f"event: {event}\ndata: {dump(payload)}\n\n".encode()


def tolerant(event: str, payload: Mapping[str, object], number: int) -> bytes:
    """Write a frame in one of the odd ways of 09-tolerance.sse, in turn."""
    match number % 5:
        case 0:
            return b": comment line, ignore\n\n" + plain(event, payload)
        case 1:
            lines = json.dumps(payload, ensure_ascii=False, indent=2).split("\n")
            data = "".join(f"data: {line}\n" for line in lines)
            return f"event: {event}\n{data}\n".encode()
        case 2:
            return f"event:{event}\ndata:{dump(payload)}\n\n".encode()
        case 3:
            return plain(event, payload).replace(b"\n", b"\r\n")
        case _:
            return f"id: {number}\n".encode() + plain(event, payload)


class ScriptedEngine(ScriptedBackend[EngineConversation]):
    """The state of one scripted Engine: conversations, requests received, requests refused."""

    def __init__(
        self,
        *,
        key: str | None,
        variant: EngineVariant,
        faults: Faults,
        clock: Clock,
        pace: float,
        heartbeat_s: float,
    ) -> None:
        """See `create_engine_app` for the arguments."""
        super().__init__("scripted engine", credential=key, faults=faults, clock=clock, pace=pace)
        self.variant = variant
        self.heartbeat_s = heartbeat_s
        self._stamp = 0
        self._started_ms = clock.now()
        self._numbers: dict[str, int] = {}

    def stamp(self) -> int:
        """The next time in ms, higher than all before it (page, section 11.2)."""
        self._stamp = max(self._stamp + 1, self.clock.now())
        return self._stamp

    def new_id(self, kind: str) -> str:
        """An id that no other scripted Engine has given, not even before a restart."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}-{self._started_ms:x}-{self._numbers[kind]}"

    def uptime_s(self) -> float:
        """Seconds since the start."""
        return (self.clock.now() - self._started_ms) / 1000

    def pending(self) -> list[dict[str, object]]:
        """What all conversations wait for (page, section 10.3)."""
        return [task.pending.record for task in self.talks.values() if task.pending is not None]

    def begin(self, request: ExecuteBody) -> EngineTurn:
        """Start a turn; its `started` event is in the buffer when this returns.

        Raises:
            Refusal: 409, the task is running or waits for an answer (page, section 12); 503 while
                the Engine stops (section 11.4).
        """
        if self.stopping.is_set():
            raise Refusal(503, "DRAINING", "This Engine is going away.")
        task = self.talks.setdefault(request.task_id, EngineConversation(request.task_id))
        if task.pending is not None:
            body = BODIES["hitl_required"].payload()
            raise Refusal(409, str(body["error"]), str(body["message"]))
        if task.running is not None:
            raise Refusal(409, "TASK_BUSY", "This task is running; wait for its end.")
        task.turns += 1
        task.active_at = self.stamp()
        turn = EngineTurn(task, self.new_id("turn"), start=len(task.buffer))
        task.running = turn
        beats = beats_for(request.message, turn=task.turns, attachments=request.attachments)
        stage = EngineStage(self, turn)
        stage.lifecycle("started")
        turn.runner = self._tasks.start(stage.play(beats), turn.turn_id)
        return turn

    def answer(self, request: RespondBody) -> EnginePause:
        """Take the request that an answer is for; the caller resumes the turn.

        Raises:
            Refusal: 404 when nothing is pending, 422 for an answer that does not fit.
        """
        task = self.talks.get(request.task_id)
        if task is None or task.pending is None:
            raise Refusal(404, "NOTHING_PENDING", "This task does not wait for an answer.")
        if task.pending.record["kind"] == "permission":
            if request.answer not in ("yes", "no"):
                raise Refusal(422, "VALIDATION_FAILED", "a permission takes exactly yes or no")
        elif not request.answer and not request.attachments:
            raise Refusal(422, "VALIDATION_FAILED", "the answer is empty")
        task.take_answer()
        pending = task.pending
        task.pending = None
        return pending

    def buffered(self, task_id: str | None) -> EngineConversation | None:
        """The conversation that a replay is about; the most recently active by default."""
        if task_id is not None:
            return self.talks.get(task_id)
        return max(self.talks.values(), key=lambda task: task.active_at, default=None)

    def first_after(self, task: EngineConversation, after: int) -> int:
        """The place in the buffer of the first frame behind a time that has not expired."""
        # Engine page, section 11.1: CHANNEL_STATE_TTL_ACTIVE and CHANNEL_STATE_TTL_HITL.
        hours = 3 if task.pending is None else 72
        horizon = max(after, self.clock.now() - hours * 3600 * 1000)
        return bisect.bisect_right(task.buffer, horizon, key=lambda entry: entry.stamp)

    def lose(self, task: EngineConversation) -> None:
        """Forget the running turn and the buffer, as a killed Engine does (page, section 11.3)."""
        if task.running is not None and task.running.runner is not None:
            task.running.runner.cancel()
            task.running.end = 0
        task.running = None
        task.pending = None
        task.buffer.clear()
        task.wake()


@dataclass(slots=True, eq=False)
class EngineStage:
    """Plays the beats of one turn into the buffer of its conversation."""

    engine: ScriptedEngine
    turn: EngineTurn
    _block: str | None = field(init=False, default=None)
    _blocks: int = field(init=False, default=0)
    _calls: int = field(init=False, default=0)
    _written: int = field(init=False, default=0)

    def emit(self, name: str, payload: Mapping[str, object], stamp: int | None = None) -> None:
        """Write one frame into the buffer."""
        template = FRAMES[name]
        if self.engine.variant.tolerance:
            data = tolerant(template.type, payload, self._written)
        else:
            data = plain(template.type, payload)
        self._written += 1
        self.turn.task.buffer.append(ScriptedEngineFrame(stamp or self.engine.stamp(), data))
        self.turn.task.wake()

    def lifecycle(self, phase: str) -> None:
        """Write a `thread_lifecycle` event (page, section 8.1)."""
        stamp = self.engine.stamp()
        members: dict[str, object] = {"phase": phase, "task_id": self.turn.task.task_id}
        if self.engine.variant.short_lifecycle:
            self.emit("lifecycle_short", FRAMES["lifecycle_short"].filled(**members), stamp)
            return
        members |= {"turn_id": self.turn.turn_id, "timestamp": iso(stamp)}
        self.emit("lifecycle", FRAMES["lifecycle"].filled(**members), stamp)

    async def play(self, beats: Sequence[Beat]) -> None:
        """Play a turn to its end."""
        try:
            for beat in beats:
                await self._beat(beat)
            if not isinstance(beats[-1], FailBeat):
                self._end_of_call()
                self.lifecycle("completed")
        finally:
            # A lost turn has been replaced already, perhaps by a new one.
            if self.turn.task.running is self.turn:
                self.turn.end = len(self.turn.task.buffer)
                self.turn.task.running = None
                self.turn.task.wake()

    async def _beat(self, beat: Beat) -> None:
        match beat:
            case ThinkBeat(pieces):
                await self._deltas("thinking", pieces)
            case SayBeat(pieces, gap_s):
                await self._deltas("text", pieces, gap_s)
            case RunBeat(calls):
                await self._run(calls)
            case ApproveBeat():
                await self._approve(beat)
            case ApproveAllBeat(approvals):
                # One request at a time can be pending (page, section 10.3).
                for approval in approvals:
                    await self._approve(approval)
            case AskBeat():
                await self._ask(beat)
            case CompactBeat(before, after, strategy):
                self._close_block()
                members = {"before_tokens": before, "after_tokens": after, "strategy": strategy}
                self.emit("compaction", FRAMES["compaction"].filled(**members))
            case RememberBeat(key, value):
                self._close_block()
                self.emit("memory", FRAMES["memory"].filled(key=key, value=value))
            case OddBeat():
                self._close_block()
                self.emit("future", FRAMES["future"].payload())
                self._open_block("text")
                self.emit("text_extra", FRAMES["text_extra"].filled(text="Something new: "))
            case FailBeat():
                self._fail(beat)
            case (
                AskSealedBeat()
                | UseCustomToolBeat()
                | DelegateBeat()
                | ProduceBeat()
                | SignInBeat()
                | LimitBeat()
            ):
                await self._deltas("text", (f"The Engine has no {lacking(beat)}.",))
            case _:
                assert_never(beat)

    async def _deltas(self, channel: str, pieces: Sequence[str], gap_s: float = 0.0) -> None:
        for piece in pieces:
            await self.engine.pause(gap_s)
            self._open_block(channel)
            self.emit(channel, FRAMES[channel].filled(text=piece))

    async def _run(self, calls: Sequence[ToolCall]) -> None:
        if self.engine.variant.result_first:
            for call in calls:
                call_id = self.engine.new_id("call")
                self._result(call_id, call)
                self._call(call, call_id)
            self._end_of_call()
            return
        ids = [self._call(call) for call in calls]
        self._end_of_call()
        results = list(zip(ids, calls, strict=True))
        if self.engine.variant.tool_call_id:
            results.reverse()
        for call_id, call in results:
            await self.engine.pause(0)
            self._result(call_id, call)

    async def _approve(self, beat: ApproveBeat) -> None:
        call_id = self._call(beat.call) if self.engine.variant.call_before_request else None
        self._end_of_call()
        self.turn.task.refusals = beat.refusals
        answer = await self._wait("permission", beat.question)
        if call_id is None:
            call_id = self._call(beat.call)
        if answer.answer == "yes":
            self._result(call_id, beat.call)
            said = beat.granted
        else:
            # Page, section 10.2: the reason of a refused call.
            self._result(call_id, ToolCall(beat.call.tool, {}, "", "permission_denied"))
            said = beat.denied
        await self._deltas("text", (*said, *_added(answer)))

    async def _ask(self, beat: AskBeat) -> None:
        self._end_of_call()
        answer = await self._wait("question", beat.question, beat.options)
        # Not `str.format`: the answer may have braces in it.
        said = beat.reply.replace("{answer}", answer.answer)
        await self._deltas("text", (said, *_added(answer)))

    async def _wait(self, kind: str, question: str, options: Sequence[str] = ()) -> RespondBody:
        stamp = self.engine.stamp()
        members: dict[str, object] = {
            "request_id": self.engine.new_id("hitl"),
            "task_id": self.turn.task.task_id,
            "question": question,
            "created_at": iso(stamp),
        }
        template = FRAMES[kind]
        if kind == "question":
            match self.engine.variant.options if options else "absent":
                case "strings":
                    members["options"] = list(options)
                case "objects":
                    members["options"] = [{"label": option} for option in options]
                case "absent":
                    template = template.without("options")
        record = template.filled(**members)
        answered: asyncio.Future[RespondBody] = asyncio.get_running_loop().create_future()
        self.turn.task.pending = EnginePause(record, answered)
        self.emit(kind, record, stamp)
        answer = await answered
        resolved = FRAMES["resolved"]
        if self.engine.variant.resolved_request_id:
            payload = resolved.filled(request_id=record["request_id"], task_id=record["task_id"])
        else:
            payload = resolved.without("request_id").filled(task_id=record["task_id"])
        self.emit("resolved", payload)
        return answer

    def _call(self, call: ToolCall, call_id: str | None = None) -> str:
        call_id = call_id or self.engine.new_id("call")
        self._close_block()
        self._open_block("tool_use")
        payload = self._identified(
            FRAMES["tool_call"], call_id, tool=call.tool, input=dict(call.input)
        )
        self.emit("tool_call", payload)
        self._close_block()
        return call_id

    def _result(self, call_id: str, call: ToolCall) -> None:
        name = "tool_result" if call.error is None else "tool_failed"
        members: dict[str, object] = {"output": call.output}
        if call.error is not None:
            members["error"] = call.error
        self.emit(name, self._identified(FRAMES[name], call_id, **members))

    def _identified(self, template: Template, call_id: str, **members: object) -> dict[str, object]:
        if self.engine.variant.tool_call_id:
            return template.filled(tool_call_id=call_id, **members)
        return template.without("tool_call_id").filled(**members)

    def _open_block(self, kind: str) -> None:
        if self._block == kind:
            return
        self._close_block()
        self._block = kind
        if self.engine.variant.blocks:
            self._boundary("block_start")

    def _close_block(self) -> None:
        if self._block is None:
            return
        if self.engine.variant.blocks:
            self._boundary("block_stop")
        self._blocks += 1
        self._block = None

    def _boundary(self, name: str) -> None:
        template = FRAMES[name]
        self.emit(name, template.filled(block_index=self._blocks, block_type=self._block))

    def _end_of_call(self) -> None:
        """A model call is over: its blocks are closed, its tokens are told."""
        self._close_block()
        self._blocks = 0
        before = 512 * self._calls
        self._calls += 1
        if self.engine.variant.usage:
            payload = FRAMES["usage"].filled(
                input_tokens=before + 612, output_tokens=24, cache_hit_tokens=before
            )
            self.emit("usage", payload)

    def _fail(self, beat: FailBeat) -> None:
        def error() -> None:
            payload = FRAMES["error"].filled(
                error=beat.code, message=beat.message, details=dict(beat.details)
            )
            self.emit("error", payload)

        def errored() -> None:
            self.lifecycle("errored")

        orders: Mapping[Failure, tuple[Callable[[], None], ...]] = {
            "error": (error,),
            "errored": (errored,),
            "error_errored": (error, errored),
            "errored_error": (errored, error),
        }
        for write in orders[self.engine.variant.failure]:
            write()


def _added(answer: RespondBody) -> tuple[str, ...]:
    """What came with an answer, as text, so that a test sees that it arrived."""
    feedback = (f" You added: {answer.feedback}",) if answer.feedback else ()
    return (*feedback, *(f" I received {attachment}." for attachment in answer.attachments))
