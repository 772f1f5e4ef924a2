"""The sessions of the scripted Herm: turns that play scripts into a numbered list of envelopes.

A turn is a task of its own; streams and lists read what it wrote. `ScriptedHerm` keeps the sessions
and the rules about them: one turn at a time, a message is refused while one runs, several requests
may be open at once (herm page, sections 3.1 and 5).

Why one module: a turn plays each kind of beat, and the rules of the session are checked at each.
"""

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from proxy.base.clock import Clock
from proxy.scripted.backend import FollowedConversation, Refusal, ScriptedBackend, iso
from proxy.scripted.faults import Faults
from proxy.scripted.herm_frames import BODIES, EVENTS
from proxy.scripted.herm_requests import Body, HermBatch
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
from proxy.scripted.templates import dump


@dataclass(frozen=True, slots=True)
class HermVariant:
    """One choice for each thing that the Herm page leaves open (its marks I and U).

    Args:
        echo_inputs: whether `user.*` envelopes are on the stream (section 4.3).
        list_inputs: whether `user.*` envelopes are listed (section 4.2).
        delta_numbers: deltas count in the same counter, repeat the last number, or have none (4.4).
        fresh_stream: a stream without a position starts live or replays history (section 4.3).
        resume: whether `Last-Event-ID` is honoured (section 4.3).
        lines: whether frames have `event:` and `id:` lines (section 4.3).
        body: which spellings of a batch are known (section 3).
        create_status: 200 or 201 (section 2.2).
        post_status: 200, 201 or 202 (section 3).
        post_answer: the accepted events as `data`, as a bare array, or nothing (section 3).
        running_after_result: whether `session.status_running` follows a custom tool's result (5).
        event_ids: what `stop_reason.event_ids` hold (section 4.6).
        sealed_events: whether a sudo or secret request has an event of its own (section 4.5).
        tells_sealed: whether the agent says again what it was given in confidence, by every way
            that it has, as one that prints its environment does.
        interrupt_reason: what an interrupted turn gives (section 5).
        list_form: an object with `data` or a bare array (section 4.2).
        list_order: whether a list heeds `order` (section 4.2).
        error_form: the JSON around an error (section 6).
        titles: whether the first turn gives the session a title (section 5).
        strict: refuse unknown members and parameters.
    """

    echo_inputs: bool = False
    list_inputs: bool = True
    delta_numbers: Literal["shared", "equal", "none"] = "shared"
    fresh_stream: Literal["live", "history"] = "live"
    resume: bool = True
    lines: Literal["all", "data"] = "all"
    body: Body = "any"
    create_status: int = 201
    post_status: int = 202
    post_answer: Literal["data", "bare", "empty"] = "data"
    running_after_result: bool = True
    event_ids: Literal["payload", "envelope"] = "payload"
    sealed_events: bool = True
    tells_sealed: bool = False
    interrupt_reason: Literal["end_turn", "error"] = "end_turn"
    list_form: Literal["object", "array"] = "object"
    list_order: Literal["asked", "oldest"] = "asked"
    error_form: Literal["nested", "flat", "plain"] = "nested"
    titles: bool = True
    strict: bool = True


DEFAULT = HermVariant()


@dataclass(slots=True)
class HermEnvelope:
    """One envelope in its place."""

    envelope: dict[str, object]
    listed: bool
    streamed: bool


@dataclass(slots=True)
class HermRequest:
    """A request that a turn waits for: which event answers it, and the answer once it came."""

    id: str
    envelope_id: str
    takes: str
    answered: asyncio.Future[dict[str, object]]


@dataclass(slots=True)
class ScriptedHermSession(FollowedConversation):
    """One session: what it is, what was said, what runs and what it waits for."""

    id: str
    record: dict[str, object]
    metadata: dict[str, object]
    archived: bool = False
    sequence: int = 0
    entries: list[HermEnvelope] = field(default_factory=list)
    turns: int = 0
    runner: asyncio.Task[None] | None = None
    interrupted: bool = False
    pending: dict[str, HermRequest] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    steering: deque[str] = field(default_factory=deque)


def blocks(text: str) -> list[dict[str, str]]:
    """Return a text as one block."""
    return [{"type": "text", "text": text}]


class ScriptedHerm(ScriptedBackend[ScriptedHermSession]):
    """The state of one scripted Herm: sessions, requests received, requests refused."""

    def __init__(
        self,
        *,
        key: str | None,
        variant: HermVariant,
        faults: Faults,
        clock: Clock,
        pace: float,
        heartbeat_s: float,
    ) -> None:
        """See `create_herm_app` for the arguments."""
        # Page, section 1: the key is a bearer key.
        credential = None if key is None else f"Bearer {key}"
        super().__init__(
            "scripted herm", credential=credential, faults=faults, clock=clock, pace=pace
        )
        self.variant = variant
        self.heartbeat_s = heartbeat_s
        self._started_ms = clock.now()
        self._numbers: dict[str, int] = {}

    def new_id(self, kind: str) -> str:
        """Return an id that no other scripted Herm has given, not even before a restart."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}_{self._started_ms:x}{self._numbers[kind]:04d}"

    def talk(self, session_id: str) -> ScriptedHermSession:
        """Return a session.

        Raises:
            Refusal: 404, there is none.
        """
        talk = self.talks.get(session_id)
        if talk is None:
            raise Refusal(404, "not_found", "There is no such session.")
        return talk

    def create(self, agent_id: str, members: Mapping[str, object]) -> ScriptedHermSession:
        """Make a session (page, section 2.2)."""
        session_id = self.new_id("session")
        created = iso(self.clock.now())[:19] + "Z"
        record = BODIES["session"].filled(
            id=session_id,
            agentId=agent_id,
            userId=members.get("userId"),
            title=members.get("title"),
            createdAt=created,
        )
        metadata = members.get("metadata")
        talk = ScriptedHermSession(
            session_id, record, dict(metadata) if isinstance(metadata, dict) else {}
        )
        self.talks[session_id] = talk
        return talk

    def describe(self, talk: ScriptedHermSession) -> dict[str, object]:
        """Return the session object."""
        status = "archived" if talk.archived else "idle"
        if talk.runner is not None and not talk.pending:
            status = "running"
        return {**talk.record, "status": status, "metadata": talk.metadata}

    def history(self, talk: ScriptedHermSession) -> list[dict[str, object]]:
        """Return `messages` of a session (page, section 2.3)."""
        messages: list[dict[str, object]] = []
        for entry in talk.entries:
            payload = entry.envelope["payload"]
            assert isinstance(payload, dict)
            if payload["type"] == "user.message":
                messages.append({"role": "user", "content": payload["content"]})
            elif payload["type"] == "agent.message" and not payload["delta"]:
                messages.append({"role": "agent", "content": payload["content"]})
        return messages

    def write(
        self, talk: ScriptedHermSession, payload: dict[str, object], *, status: str = "complete"
    ) -> HermEnvelope:
        """Put an envelope in its place; what lists and streams have of it, the variant says."""
        type_ = str(payload["type"])
        delta = payload.get("delta") is True
        now = iso(self.clock.now())
        envelope = EVENTS["envelope"].filled(
            id=self.new_id("evt"),
            type=type_,
            sessionId=talk.id,
            payload=payload,
            processedAt=None if status == "pending" else now,
            createdAt=now,
            status=status,
        )
        if not delta or self.variant.delta_numbers == "shared":
            talk.sequence += 1
        envelope["sequence"] = talk.sequence
        if delta and self.variant.delta_numbers == "none":
            del envelope["sequence"]
        is_input = type_.startswith("user.")
        listed = not delta and type_ != "session.title_updated"
        entry = HermEnvelope(
            envelope,
            listed=listed and (self.variant.list_inputs or not is_input),
            streamed=self.variant.echo_inputs or not is_input,
        )
        talk.entries.append(entry)
        talk.wake()
        return entry

    def frame(self, entry: HermEnvelope) -> bytes:
        """Write an envelope as a frame of the stream (page, section 4.3)."""
        data = dump(entry.envelope)
        if self.variant.lines == "data":
            return f"data: {data}\n\n".encode()
        envelope = entry.envelope
        return f"event: {envelope['type']}\nid: {envelope['id']}\ndata: {data}\n\n".encode()

    def first_after(self, talk: ScriptedHermSession, last_event_id: str | None) -> int:
        """Return the place in a session's entries where a stream begins (page, section 4.3)."""
        if last_event_id and self.variant.resume:
            for place, entry in enumerate(talk.entries):
                if entry.envelope["id"] == last_event_id:
                    return place + 1
        return 0 if self.variant.fresh_stream == "history" else len(talk.entries)

    def take(self, talk: ScriptedHermSession, batch: HermBatch) -> list[dict[str, object]]:
        """Take a batch as a whole and return its envelopes (page, sections 3 and 3.1).

        Raises:
            Refusal: 409 for a message while a turn runs, for a second answer, for input to an
                archived session; 400 for an answer to nothing.
        """
        if talk.archived:
            raise Refusal(409, "archived", "This session is archived.")
        for event in batch.events:
            self._check(talk, event)
        accepted = []
        for event in batch.events:
            waits = event["type"] == "user.message"
            shown = {k: v for k, v in event.items() if k not in ("password", "value")}
            entry = self.write(talk, shown, status="pending" if waits else "complete")
            accepted.append(dict(entry.envelope))
            self._apply(talk, event, entry)
        return accepted

    def _check(self, talk: ScriptedHermSession, event: Mapping[str, object]) -> None:
        match event["type"]:
            case "user.message" if talk.runner is not None:
                raise Refusal(409, "turn_running", "A turn runs; wait for its end.")
            case "user.steer" if talk.runner is None:
                raise Refusal(409, "no_turn_running", "No turn runs.")
            case "user.message" | "user.steer" | "user.interrupt":
                return
        name = str(event.get("tool_use_id") or event.get("request_id"))
        open_ = talk.pending.get(name)
        if name in talk.over:
            raise Refusal(409, "already_answered", "This was answered before.")
        if open_ is None:
            raise Refusal(400, "unknown_request", "Nothing waits for this answer.")
        if open_.takes != event["type"]:
            raise Refusal(400, "validation_error", f"This takes a {open_.takes}.")
        talk.take_answer()

    def _apply(
        self, talk: ScriptedHermSession, event: dict[str, object], entry: HermEnvelope
    ) -> None:
        match event["type"]:
            case "user.message":
                content = event["content"]
                assert isinstance(content, list)
                self._begin(talk, "\n".join(block["text"] for block in content), entry)
            case "user.steer":
                talk.steering.append(str(event["message"]))
            case "user.interrupt":
                if talk.runner is not None and not talk.interrupted:
                    talk.interrupted = True
                    # A task that is cancelled before its first step never ends its turn.
                    asyncio.get_running_loop().call_soon(talk.runner.cancel)
            case _:
                name = str(event.get("tool_use_id") or event.get("request_id"))
                open_ = talk.pending.pop(name)
                talk.over.add(name)
                open_.answered.set_result(event)

    def _begin(self, talk: ScriptedHermSession, message: str, entry: HermEnvelope) -> None:
        if self.stopping.is_set():
            raise Refusal(503, "unavailable", "This Herm is going away.")
        talk.turns += 1
        talk.interrupted = False
        talk.steering.clear()
        entry.envelope["status"] = "complete"
        entry.envelope["processedAt"] = iso(self.clock.now())
        stage = HermStage(self, talk)
        beats = beats_for(message, turn=talk.turns)
        talk.runner = self._tasks.start(stage.play(beats), f"{talk.id} turn {talk.turns}")

    def lose(self, talk: ScriptedHermSession) -> None:
        """Forget the running turn, as a killed container does: no event tells of it."""
        if talk.runner is not None:
            talk.runner.cancel()
        talk.runner = None
        talk.pending.clear()


@dataclass(slots=True, eq=False)
class HermStage:
    """Plays the beats of one turn into its session."""

    herm: ScriptedHerm
    talk: ScriptedHermSession
    _run: tuple[str, list[str]] | None = field(init=False, default=None)
    _child: list[str] | None = field(init=False, default=None)

    def emit(self, name: str, /, **members: object) -> HermEnvelope:
        """Write one event with these members in its template."""
        return self.herm.write(self.talk, EVENTS[name].filled(**members))

    def running(self) -> None:
        """Write `session.status_running`."""
        self.emit("session.status_running")

    def idle(self, reason: dict[str, object]) -> None:
        """Write `session.status_idle`."""
        self.emit("session.status_idle", stop_reason=reason)

    async def play(self, beats: Sequence[Beat]) -> None:
        """Play a turn to its end."""
        talk = self.talk
        try:
            self.running()
            for beat in beats:
                await self._beat(beat)
            if not isinstance(beats[-1], FailBeat):
                self._close_run()
                self._over()
                self.idle({"type": "end_turn"})
        except asyncio.CancelledError:
            if not talk.interrupted or talk.runner is not asyncio.current_task():
                raise
            self._interrupted()
        finally:
            if talk.runner is asyncio.current_task():
                talk.runner = None
                talk.wake()
        if talk.turns == 1 and self.herm.variant.titles:
            title = "The first turn"
            talk.record["title"] = title
            self.emit("session.title_updated", title=title)

    def _over(self) -> None:
        self.talk.runner = None

    def _interrupted(self) -> None:
        """Section 5: pending questions are dropped, then the session is idle."""
        self._close_run()
        for open_ in self.talk.pending.values():
            open_.answered.cancel()
        self.talk.over.update(self.talk.pending)
        self.talk.pending.clear()
        self._over()
        if self.herm.variant.interrupt_reason == "end_turn":
            self.idle({"type": "end_turn"})
        else:
            self.idle({"type": "error", "message": "The turn was interrupted."})

    async def _beat(self, beat: Beat) -> None:
        match beat:
            case ThinkBeat(pieces):
                await self._deltas("agent.thinking", pieces)
            case SayBeat(pieces, gap_s):
                await self._deltas("agent.message", pieces, gap_s)
            case RunBeat(calls):
                await self._tools(calls)
            case ApproveBeat():
                await self._approve(beat)
            case ApproveAllBeat(approvals):
                await self._approve_all(approvals)
            case AskBeat():
                await self._ask(beat)
            case AskSealedBeat():
                await self._ask_sealed(beat)
            case UseCustomToolBeat():
                await self._custom(beat)
            case DelegateBeat():
                await self._delegate(beat)
            case OddBeat():
                self._close_run()
                self.herm.write(self.talk, {"type": "agent.future_event", "anything": 1})
                await self._deltas("agent.message", ("Something new: ",))
            case FailBeat():
                self._close_run()
                self._over()
                self.idle({"type": "error", "message": f"{beat.code}: {beat.message}"})
            case CompactBeat():
                await self._lack("event for a shorter history")
            case RememberBeat():
                await self._lack("event for notes")
            case ProduceBeat() | SignInBeat() | LimitBeat():
                await self._lack(lacking(beat))
            case _:
                assert_never(beat)

    async def _lack(self, what: str) -> None:
        await self._deltas("agent.message", (f"Herm has no {what}.",))

    async def _deltas(self, name: str, pieces: Sequence[str], gap_s: float = 0.0) -> None:
        if self._child is not None:
            # What a child says shows in its answer only (section 4.5).
            if name == "agent.message":
                self._child += pieces
            return
        for piece in pieces:
            await self.herm.pause(gap_s)
            while self.talk.steering:
                words = f"(Steered: {self.talk.steering.popleft()}) "
                self._piece("agent.message", words)
            self._piece(name, piece)

    def _piece(self, name: str, text: str) -> None:
        if self._run is not None and self._run[0] != name:
            self._close_run()
        if self._run is None:
            self._run = (name, [])
        self._run[1].append(text)
        self.emit(name, delta=True, content=blocks(text))

    def _close_run(self) -> None:
        """Write the whole text of what was streamed (section 4.4)."""
        if self._run is None:
            return
        (name, pieces), self._run = self._run, None
        self.emit(name, delta=False, content=blocks("".join(pieces)))

    async def _tools(self, calls: Sequence[ToolCall]) -> None:
        if self._child is not None:
            return
        ids = [self._call(call) for call in calls]
        for call_id, call in reversed(list(zip(ids, calls, strict=True))):
            await self.herm.pause(0)
            self._result(call_id, call)

    def _call(self, call: ToolCall, *, asks: bool = False) -> str:
        self._close_run()
        call_id = self.herm.new_id("toolu")
        template = EVENTS["agent.tool_use"]
        members: dict[str, object] = {"id": call_id, "tool": call.tool, "input": dict(call.input)}
        # A connector's tool has a dotted name in the story (engine page, section 8.6).
        type_ = "agent.mcp_tool_use" if "." in call.tool else "agent.tool_use"
        preview = call.input.get("command")
        if preview is None:
            template = template.without("preview")
        else:
            members["preview"] = preview
        if not asks:
            template = template.without("requires_action")
        self.herm.write(self.talk, {**template.filled(**members), "type": type_})
        return call_id

    def _result(self, call_id: str, call: ToolCall) -> None:
        type_ = "agent.mcp_tool_result" if "." in call.tool else "agent.tool_result"
        failed = call.error is not None
        payload = EVENTS["agent.tool_result"].filled(
            tool_use_id=call_id,
            tool=call.tool,
            status="failed" if failed else "completed",
            content=blocks(call.error or str(call.output)),
            is_error=failed,
        )
        self.herm.write(self.talk, {**payload, "type": type_})

    def _open(self, id_: str, envelope_id: str, takes: str) -> asyncio.Future[dict[str, object]]:
        answered: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self.talk.over.discard(id_)
        self.talk.pending[id_] = HermRequest(id_, envelope_id, takes, answered)
        return answered

    def _waits(self) -> None:
        by_payload = self.herm.variant.event_ids == "payload"
        ids = [o.id if by_payload else o.envelope_id for o in self.talk.pending.values()]
        self.idle({"type": "requires_action", "event_ids": ids})

    def _newest_id(self) -> str:
        return str(self.talk.entries[-1].envelope["id"])

    async def _wait(self, id_: str, takes: str) -> dict[str, object]:
        """Say that an answer is needed, wait for it, go on (section 5)."""
        answered = self._open(id_, self._newest_id(), takes)
        self._waits()
        answer = await answered
        if takes != "user.custom_tool_result" or self.herm.variant.running_after_result:
            self.running()
        return answer

    async def _approve(self, beat: ApproveBeat) -> None:
        self.talk.refusals = beat.refusals
        call_id = self._call(beat.call, asks=True)
        await self._confirmed(beat, call_id, await self._wait(call_id, "user.tool_confirmation"))

    async def _approve_all(self, approvals: Sequence[ApproveBeat]) -> None:
        """Ask for several at once: one idle lists them all (section 5). As in the API that this one
        follows, another one lists the rest while some are open after an answer, and what is
        answered in one request is one step."""
        asked = []
        for beat in approvals:
            call_id = self._call(beat.call, asks=True)
            answered = self._open(call_id, self._newest_id(), "user.tool_confirmation")
            asked.append((beat, call_id, answered))
        left = {answered for _, _, answered in asked}
        while left:
            self._waits()
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        self.running()
        for beat, call_id, answered in asked:
            await self._confirmed(beat, call_id, answered.result())

    async def _confirmed(
        self, beat: ApproveBeat, call_id: str, answer: Mapping[str, object]
    ) -> None:
        if answer["result"] == "allow":
            self._result(call_id, beat.call)
            said = beat.granted
        else:
            self._result(call_id, ToolCall(beat.call.tool, {}, "", "permission denied"))
            said = beat.denied
        scope = answer.get("scope", "once")
        more = () if scope == "once" else (f" I remember this: {scope}.",)
        await self._deltas("agent.message", (*said, *more))

    async def _ask(self, beat: AskBeat) -> None:
        self._close_run()
        request_id = self.herm.new_id("req")
        choices = list(beat.options) or None
        self.emit(
            "agent.clarify_request",
            request_id=request_id,
            question=beat.question,
            choices=choices,
        )
        answer = await self._wait(request_id, "user.clarify_result")
        words = str(answer["answer"]) or "(skipped)"
        await self._deltas("agent.message", (beat.reply.replace("{answer}", words),))

    async def _ask_sealed(self, beat: AskSealedBeat) -> None:
        self._close_run()
        request_id = self.herm.new_id("req")
        if self.herm.variant.sealed_events:
            if beat.kind == "sudo":
                self.emit("agent.sudo_request", request_id=request_id)
            else:
                self.emit(
                    "agent.secret_request",
                    request_id=request_id,
                    prompt=beat.question,
                    env_var=beat.name,
                )
        answer = await self._wait(request_id, f"user.{beat.kind}_result")
        value = answer.get("password") or answer.get("value")
        if value and self.herm.variant.tells_sealed:
            await self._tell(str(value))
        await self._deltas("agent.message", beat.granted if value else beat.declined)

    async def _tell(self, value: str) -> None:
        """Say a value in a tool's input and output, in a kind of event that nobody knows, and in
        deltas of some characters each."""
        inside = json.dumps({"env": {"TOKEN": value}})
        call = ToolCall("bash", {"command": f"login --token {value}"}, f"ok {value} {inside}")
        self._result(self._call(call), call)
        lines = [f"TOKEN={value}", "HOME=/root"]
        self.herm.write(self.talk, {"type": "agent.environment", "TOKEN": value, "lines": lines})
        text = f"Your token is {value}, right? "
        await self._deltas("agent.message", [text[at : at + 3] for at in range(0, len(text), 3)])

    async def _custom(self, beat: UseCustomToolBeat) -> None:
        self._close_run()
        call_id = self.herm.new_id("custom_toolu")
        self.emit("agent.custom_tool_use", id=call_id, tool=beat.tool, input=dict(beat.input))
        answer = await self._wait(call_id, "user.custom_tool_result")
        content = answer["content"]
        assert isinstance(content, list)
        words = "".join(block["text"] for block in content)
        if answer.get("is_error"):
            words = f"an error, {words}"
        await self._deltas("agent.message", (beat.reply.replace("{result}", words),))

    async def _delegate(self, beat: DelegateBeat) -> None:
        self._close_run()
        thread = self.herm.new_id("thread")
        self.emit(
            "agent.thread_message_sent",
            to_thread_id=thread,
            name=beat.name,
            content=blocks(beat.task),
        )
        self._child = []
        for child in beat.beats:
            await self._beat(child)
        said, self._child = "".join(self._child), None
        self.emit(
            "agent.thread_message_received",
            from_thread_id=thread,
            name=beat.name,
            content=blocks(said),
        )
