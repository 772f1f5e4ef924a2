"""The sessions of the scripted eve: turns that play scripts into a durable log of records.

A session has one worker that takes inputs one by one and writes records; who reads them is no
concern of it. What a pause looks like depends on the generation (eve page, section 8.2): S2 holds
its turn, T and S1 close it and open another one for the answer. Not played: a `steer` that cuts a
model call (section 5.1); a message during a turn is the next turn, as in a text-only turn.

Why one module: a worker plays each kind of beat for three generations, and all share what is open.
"""

import asyncio
import json
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote

from proxy.base.clock import Clock, IdSource
from proxy.scripted.backend import FollowedConversation, ScriptedBackend, iso
from proxy.scripted.eve_frames import FRAMES
from proxy.scripted.eve_requests import EvePost
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
from proxy.scripted.templates import dump

Generation = Literal["T", "S1", "S2"]

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class EveVariant:
    """What differs between releases.

    Args:
        generation: `T` is 0.30.8, `S2` is 0.80.1, both as recorded; `S1` is what the eve page says
            of 0.52: S's requests, T's closed pauses and subagents, deltas only.
        facts: its streams are those of 0.84, version 27: one turn in facts, whatever is said.
        label: the version that its streams declare, if another one.
    """

    generation: Generation = "S2"
    facts: bool = False
    label: str | None = None

    @property
    def tokens(self) -> bool:
        """Whether bodies carry continuation tokens."""
        return self.generation == "T"

    @property
    def held(self) -> bool:
        """Whether a pause holds its turn."""
        return self.generation == "S2"

    @property
    def stream_version(self) -> str:
        """The version that the stream declares (sections 1 and 13)."""
        own = "27" if self.facts else {"T": "21", "S1": "25", "S2": "26"}[self.generation]
        return own if self.label is None else self.label

    @property
    def info_version(self) -> int:
        """The version of what `GET /info` says (section 1)."""
        return 6 if self.facts else {"T": 1, "S1": 4, "S2": 5}[self.generation]

    @property
    def release(self) -> str:
        """The version that `session.started` names."""
        return {"T": "0.30.8", "S1": "0.52.5", "S2": "0.80.1"}[self.generation]


DEFAULT = EveVariant()


@dataclass(frozen=True, slots=True)
class EveRecord:
    """One record of a log."""

    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class EveInput:
    """Something for a session's worker: a post, or a control by its name."""

    kind: Literal["post", "compact", "clear", "cancel", "signed in"]
    post: EvePost = field(default_factory=EvePost)
    delivery: str = ""


@dataclass(frozen=True, slots=True)
class EveAnswer:
    """An answer to a request, and the message that it came as."""

    option: str | None = None
    text: str | None = None
    said: EveInput | None = None


@dataclass(slots=True)
class ReopenedApproval:
    """An approval of T that is open again, since a cancel stopped the step that answered it: what
    is said is put aside until it is answered once more."""

    request: Mapping[str, Any]
    call_id: str
    beat: ApproveBeat
    aside: list[str] = field(default_factory=list)


class _TurnCancelled(Exception):
    """The turn is cancelled."""


class _MessageInHeldTurn(Exception):
    """A message that is not an answer came while a held turn waited."""

    def __init__(self, said: EveInput) -> None:
        super().__init__(said.post.text)
        self.said = said


class _TurnFailed(Exception):
    """The turn has failed and said so."""


@dataclass(slots=True)
class ScriptedEveSession(FollowedConversation):
    """One session: its log, and what its worker needs."""

    id: str
    token: str
    child: bool = False
    log: list[EveRecord] = field(default_factory=list)
    inbox: asyncio.Queue[EveInput] = field(default_factory=asyncio.Queue)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    busy: bool = False
    begins: bool = False
    reopened: "ReopenedApproval | None" = None
    asked: int = 0
    calls: int = 0
    turns: int = 0
    open: list[Mapping[str, Any]] = field(default_factory=list)
    hook: str | None = None
    ended: bool = False
    closed: bool = False
    player: "EveWorker | None" = None
    worker: asyncio.Task[None] | None = None


class ScriptedEve(ScriptedBackend[ScriptedEveSession]):
    """The state of one scripted eve: sessions, requests received, requests refused."""

    def __init__(
        self,
        *,
        key: str | None,
        variant: EveVariant,
        faults: Faults,
        clock: Clock,
        ids: IdSource,
        pace: float,
        begin_s: float = 0.0,
    ) -> None:
        """See `create_eve_app` for the arguments."""
        # Section 2.1: the key is a bearer token.
        credential = None if key is None else f"Bearer {key}"
        super().__init__(
            "scripted eve", credential=credential, faults=faults, clock=clock, pace=pace
        )
        self.variant = variant
        self.begin_s = begin_s
        self.origin = "http://127.0.0.1"
        # With real ids they repeat in no other scripted eve, not even after a restart.
        self._random = random.Random(ids.bytes(16))
        self._stamp = 0

    def stamp(self) -> int:
        """The time of a record in ms, never before the last one."""
        self._stamp = max(self._stamp, self.clock.now())
        return self._stamp

    def _ulid(self) -> str:
        """26 characters that look like a ULID (section 2)."""
        value = (self.stamp() << 80) | self._random.getrandbits(80)
        return "".join(_CROCKFORD[(value >> (5 * place)) & 31] for place in range(25, -1, -1))

    def record_id(self) -> str:
        """An id of a record."""
        return f"evt_{self._ulid()}"

    def name(self, alphabet: str, length: int) -> str:
        """A short name from an alphabet."""
        return "".join(self._random.choices(alphabet, k=length))

    def uuid(self) -> str:
        """A random UUID."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def begin(self, *, child: bool = False) -> ScriptedEveSession:
        """Make a session, still silent."""
        talk = ScriptedEveSession(f"wrun_{self._ulid()}", f"eve:{self.uuid()}", child=child)
        self.talks[talk.id] = talk
        if not child:
            self._employ(talk)
        return talk

    def adopt(self, talks: Mapping[str, ScriptedEveSession]) -> None:
        """Take the sessions of an eve that was here before, as a restart on the same store does:
        their logs go on, what ran in them is gone."""
        for talk in talks.values():
            talk.busy, talk.inbox, talk.cancelled = False, asyncio.Queue(), asyncio.Event()
            self.talks[talk.id] = talk
            if not (talk.child or talk.ended):
                self._employ(talk)

    def _employ(self, talk: ScriptedEveSession) -> None:
        talk.player = EveWorker(self, talk)
        talk.worker = self._tasks.start(talk.player.run(), talk.id)

    def by_token(self, token: str) -> ScriptedEveSession | None:
        """The live session that a token addresses, whatever the path says (section 5)."""
        found = (t for t in self.talks.values() if t.token == token and not t.ended)
        return next(found, None)

    def live(self, session: str) -> ScriptedEveSession | None:
        """The session of an id that takes inputs; a child takes none."""
        talk = self.talks.get(session)
        return None if talk is None or talk.ended or talk.child else talk

    def post(self, talk: ScriptedEveSession, post: EvePost) -> str:
        """Give a session an input; returns its delivery id."""
        delivery = self.uuid()
        talk.inbox.put_nowait(EveInput("post", post, delivery))
        return delivery

    def sign_in(self, hook: str) -> bool:
        """Take the provider's return from a sign-in; returns whether one waits for it (9.4)."""
        talk = next((t for t in self.talks.values() if t.hook == hook), None)
        if talk is None:
            return False
        talk.hook = None
        talk.inbox.put_nowait(EveInput("signed in"))
        return True

    def cancel(self, talk: ScriptedEveSession) -> None:
        """Stop the running turn, or wake the one that waits."""
        talk.cancelled.set()
        talk.inbox.put_nowait(EveInput("cancel"))

    def reset(self, talk: ScriptedEveSession) -> None:
        """Retire a session: S says so on the stream and closes it, T says nothing (section 6)."""
        talk.ended = True
        if talk.worker is not None:
            talk.worker.cancel()
        if not self.variant.tokens and talk.player is not None:
            talk.player.end()

    def lose(self, talk: ScriptedEveSession) -> None:
        """Forget a session's running turn, as a killed server does."""
        if talk.worker is not None:
            talk.worker.cancel()
        talk.busy = False
        self._employ(talk)


class EveWorker:
    """Takes the inputs of one session and plays their turns; a child is played by its parent's."""

    def __init__(
        self, eve: ScriptedEve, talk: ScriptedEveSession, parent: "EveWorker | None" = None
    ) -> None:
        self._eve = eve
        self._talk = talk
        self._variant = eve.variant
        self._frames = FRAMES["T" if eve.variant.tokens else "S2"]
        self._parent = parent
        self._call_id = ""
        self._asked_at = 0
        self._task_id = ""
        self._deliveries: list[str] = []
        self._sequence = 0
        self._turn_id = "turn_0"
        self._step: int | None = None
        self._steps = 0
        self._text: list[str] = []
        self._thought: list[str] = []
        self._input_tokens = 0
        self._structured = False
        # The approval whose answer the running step builds on.
        self._resumes: ReopenedApproval | None = None
        # What T was told while an approval was open or beside the answer to it: each turn says it
        # again, until the step after that with the results is for it (section 8.2).
        self._aside: list[EveInput] = []
        self._for: EveInput | None = None
        # A question's answer needs no step of its own: what was said beside it joins that step.
        self._joins = False

    # Records.

    def emit(self, record: str, /, **members: object) -> None:
        """Write one record, with the deliveries of its turn."""
        self._emit(record, members, owned=True)

    def emit_apart(self, record: str, /, **members: object) -> None:
        """Write one record outside of the turn: without deliveries (section 9)."""
        self._emit(record, members, owned=False)

    def _emit(self, record: str, members: Mapping[str, object], *, owned: bool) -> None:
        template = self._frames.get(record) or FRAMES["T"][record]
        if not template.data:
            self._append(template.type, None, owned=owned)
            return
        data = template.filled(**members)
        place = {
            "sequence": self._sequence,
            "turnId": self._turn_id,
            "stepIndex": self._steps - 1 if self._step is None else self._step,
        }
        data |= {key: value for key, value in place.items() if key in data and key not in members}
        self._append(template.type, data, owned=owned)

    def _append(self, kind: str, data: Mapping[str, object] | None, *, owned: bool) -> None:
        meta: dict[str, object] = {"at": iso(self._eve.stamp()), "id": self._eve.record_id()}
        if owned and self._deliveries and not self._variant.tokens and not self._talk.child:
            meta["deliveryIds"] = list(self._deliveries)
        record: dict[str, object] = {"type": kind, "meta": meta}
        if data is not None:
            record = {"data": data, **record}
        self._talk.log.append(EveRecord(kind, dump(record).encode() + b"\n"))
        self._talk.wake()

    def _usage(self) -> dict[str, int]:
        return {
            "cacheReadTokens": 0,
            "cacheWriteTokens": 0,
            "inputTokens": self._input_tokens,
            "outputTokens": self._input_tokens * 17 // 42,
        }

    def _trace(self) -> dict[str, object]:
        trace_id = self._eve.name("0123456789abcdef", 32)
        decision = {"action": "record", "recordInputs": True, "recordOutputs": True}
        return {
            "decision": decision,
            "spanId": trace_id[:16],
            "traceFlags": 1,
            "traceId": trace_id,
        }

    def _traced(self) -> dict[str, object]:
        return {} if self._variant.tokens else {"trace": self._trace()}

    def _session_started(self) -> None:
        name = "child_started" if self._talk.child else "session_started"
        template = self._frames[name]
        runtime = template.inner("runtime", eveVersion=self._variant.release)
        self.emit(name, runtime=runtime, **self._traced())

    def _waiting(self) -> None:
        members: dict[str, object] = {"continuationToken": self._talk.token}
        if not self._variant.tokens:
            token = f"{self._talk.id}:0" if self._talk.child else self._talk.id
            members = {"continuationToken": token, "usage": self._usage()}
        self.emit("session_waiting", **members)

    def end(self) -> None:
        """Complete the session: its stream closes."""
        self._talk.ended = self._talk.closed = True
        members = {} if self._variant.tokens else {"usage": self._usage()}
        self.emit("session_completed", **members)

    # Inputs.

    async def run(self) -> None:
        """Take inputs while the session lives."""
        talk = self._talk
        while True:
            item = await talk.inbox.get()
            if item.kind == "post":
                if self._eve.begin_s:
                    talk.begins = True
                    await self._eve.clock.sleep(self._eve.begin_s)
                    talk.begins = False
                await self._turn(item)
            elif item.kind not in ("cancel", "signed in"):
                self._control(item.kind)

    def _control(self, kind: str) -> None:
        """Section 6: control records name the next turn."""
        self._sequence, self._turn_id = self._talk.turns, f"turn_{self._talk.turns}"
        self._step, self._steps = None, 1
        owner = {"sessionId": self._talk.id}
        if kind == "clear":
            self.emit("cleared", **owner)
        elif self._talk.log:
            self.emit("compaction_requested", **owner)
            self.emit("compaction_completed", **owner)
        self._waiting()

    def _open_turn(self, *, said: EveInput | None = None) -> None:
        talk = self._talk
        self._sequence, self._turn_id = talk.turns, f"turn_{talk.turns}"
        talk.turns += 1
        self._step, self._steps = None, 0
        if said is not None:
            self._deliveries = [said.delivery]
        if not talk.log:
            self._session_started()
        self.emit("turn_started", **self._traced())
        if said is not None and said.post.text is not None:
            self._received(said)

    def _received(self, said: EveInput) -> None:
        assert said.post.text is not None
        self.emit("message_received", message=said.post.text, parts=list(said.post.parts))

    def _as_message(self, item: EveInput) -> EveInput:
        """An answer to nothing reaches the model as a message, or joins the words of the one that
        it came with (sections 5 and 8.2)."""
        post = item.post
        open_ = {request["requestId"] for request in self._talk.open}
        if self._talk.reopened is not None:
            open_.add(self._talk.reopened.request["requestId"])
        stray = [a for a in post.answers if a["requestId"] not in open_]
        if post.text is not None and not stray:
            return item
        said = " ".join(str(a.get("text") or _label(a)) for a in stray or post.answers)
        return _said(item, said if post.text is None else f"{post.text}\n\n{said}")

    async def _turn(self, item: EveInput) -> None:
        talk = self._talk
        self._aside.append(self._as_message(item))
        said, self._aside = self._aloud(), []
        talk.busy = True
        talk.cancelled.clear()
        again = None if talk.reopened is None else self._answered_again(talk.reopened, item)
        try:
            if talk.reopened is not None and again is None:
                said = self._put_aside(talk.reopened, item)
            elif again is not None:
                said = await self._freed(again, item)
            else:
                self._open_turn(said=said)
            while talk.reopened is None:
                try:
                    await self._story(said)
                except _MessageInHeldTurn as left:
                    said = left.said
                    self._received(said)
                    continue
                if not self._aside:
                    break
                self._for = said = self._aloud()
                self._aside, self._joins = [], False
        except _TurnCancelled:
            talk.reopened, self._resumes = self._resumes, None
            # It goes back to before the step: words that it had told already are told again.
            self._aside = [] if self._for is None else [self._for]
            self.emit("turn_cancelled")
            self._waiting()
        except _TurnFailed:
            self._aside = []
            self._waiting()
        else:
            self.emit("turn_completed")
            self._waiting()
        finally:
            talk.busy = False
            self._text, self._thought, self._resumes = [], [], None
            self._for, self._joins = None, False

    def _aloud(self) -> EveInput:
        """All that was put aside, as one message."""
        words = [item.post.text for item in self._aside if item.post.text is not None]
        last = self._aside[-1]
        return _said(last, "\n\n".join(words)) if len(self._aside) > 1 else last

    def _answered_again(self, open_: ReopenedApproval, item: EveInput) -> EveAnswer | None:
        found = (a for a in item.post.answers if a["requestId"] == open_.request["requestId"])
        answer = next(found, None)
        return None if answer is None else EveAnswer(answer.get("optionId"), answer.get("text"))

    def _put_aside(self, open_: ReopenedApproval, item: EveInput) -> EveInput:
        """An empty turn with all that was said (section 8.2)."""
        open_.aside.append(item.post.text or "")
        said = _said(item, "\n\n".join(open_.aside))
        self._open_turn(said=said)
        return said

    async def _freed(self, answer: EveAnswer, item: EveInput) -> EveInput:
        """The model talks of the answer first, then what was put aside is played."""
        talk = self._talk
        open_, talk.reopened = talk.reopened, None
        assert open_ is not None
        words = [*open_.aside, *([] if item.post.text is None else [item.post.text])]
        yes = answer.option == "approve"
        if not yes:
            self._denied("result_denied", open_.call_id, open_.beat.call, open_.request, None)
        said = _said(item, "\n\n".join(words))
        self._open_turn(said=said)
        self._resumes = ReopenedApproval(open_.request, open_.call_id, open_.beat, words)
        if yes:
            self._in_step()
            self._result(open_.call_id, open_.beat.call)
        await self._say(open_.beat.granted if yes else open_.beat.denied)
        self._end_step("stop")
        return said

    async def _story(self, said: EveInput) -> None:
        post = said.post
        self._structured = post.structured
        turn = self._sequence + 1
        beats = beats_for(post.text or "", turn=turn, attachments=post.attachments)
        await self.play(beats)

    async def play(self, beats: Sequence[Beat]) -> None:
        """Play the model calls of a story, to the end of the last one."""
        for beat in beats:
            if await self._beat(beat):
                return
        if not self._joins:
            self._end_step("stop")

    # Model calls.

    async def _pause(self, seconds: float = 0.0) -> None:
        talk = self._talk
        if seconds and self._eve.pace:
            await self._eve.clock.wait(talk.cancelled, seconds * self._eve.pace)
        else:
            await asyncio.sleep(0)
        if talk.cancelled.is_set():
            raise _TurnCancelled

    def _in_step(self) -> None:
        if self._step is None:
            self._step = self._steps
            self._steps += 1
            self.emit("step_started")

    def _end_thought(self) -> None:
        if self._thought:
            self.emit("reasoning_completed", reasoning="".join(self._thought))
            self._thought = []

    def _end_text(self, reason: str) -> None:
        self._end_thought()
        if self._text:
            self.emit("message_completed", message="".join(self._text), finishReason=reason)
            self._text = []

    def _end_step(self, reason: str) -> None:
        self._end_text(reason)
        self._resumes = None
        if self._step is not None:
            self._input_tokens += 42
            self.emit("step_completed", finishReason=reason)
            self._step = None

    async def _beat(self, beat: Beat) -> bool:
        """Play one beat; returns whether it ended the turn."""
        match beat:
            case ThinkBeat(pieces):
                await self._think(pieces)
            case SayBeat(pieces, gap_s):
                await self._say(pieces, gap_s)
            case RunBeat(calls):
                await self._run(calls)
            case ApproveBeat():
                await self._approve(beat)
            case ApproveAllBeat():
                await self._approve_all(beat)
            case AskBeat():
                await self._ask(beat)
            case SignInBeat():
                await self._sign_in(beat)
            case LimitBeat():
                await self._limit(beat)
            case DelegateBeat():
                await self._delegate(beat)
            case ProduceBeat(value):
                return await self._produce(value)
            case FailBeat():
                self._fail(beat)
            case CompactBeat() | RememberBeat() | OddBeat():
                await self._lack(_UNHEARD_OF[type(beat)])
            case AskSealedBeat() | UseCustomToolBeat():
                await self._lack(lacking(beat))
        return False

    async def _lack(self, what: str) -> None:
        await self._say((f"This eve has no {what}.",))

    async def _think(self, pieces: Sequence[str]) -> None:
        self._in_step()
        for piece in pieces:
            await self._pause()
            self._thought.append(piece)
            members: dict[str, object] = {"reasoningDelta": piece}
            if self._variant.tokens:
                members["reasoningSoFar"] = "".join(self._thought)
            self.emit("reasoning_appended", **members)

    async def _say(self, pieces: Sequence[str], gap_s: float = 0.0) -> None:
        self._in_step()
        self._end_thought()
        for piece in pieces:
            await self._pause(gap_s)
            self._text.append(piece)
            members: dict[str, object] = {"messageDelta": piece}
            if self._variant.tokens:
                members["messageSoFar"] = "".join(self._text)
            self.emit("message_appended", **members)

    def _call(self, tool: str, input_: Mapping[str, object], *, shown: bool = True) -> str:
        self._in_step()
        self._end_text("tool-calls")
        self._talk.calls += 1
        call_id = f"call-{self._eve.name('0123456789', 8)}-{self._talk.calls}"
        if not self._variant.tokens:
            text = dump(input_)
            # As recorded inputs come (recordings README, model script): 12 characters each.
            for place in range(0, len(text), 12):
                piece = text[place : place + 12]
                self.emit("input_appended", callId=call_id, toolName=tool, inputTextDelta=piece)
        if shown:
            template = self._frames["actions"]
            action = template.inner("actions", callId=call_id, toolName=tool, input=dict(input_))
            self.emit("actions", actions=[action])
        return call_id

    async def _run(self, calls: Sequence[ToolCall]) -> None:
        ids = [self._call(call.tool, call.input) for call in calls]
        # The last call returns first: results come in any order (section 8.1).
        for call_id, call in reversed(list(zip(ids, calls, strict=True))):
            await self._pause()
            self._result(call_id, call)
        self._end_step("tool-calls")

    def _result(self, call_id: str, call: ToolCall) -> None:
        if call.error is None:
            template = self._frames["result"]
            result = template.inner(
                "result", callId=call_id, toolName=call.tool, output=call.output
            )
            self.emit("result", result=result)
            return
        template = self._frames["result_failed"]
        members: dict[str, object] = {"callId": call_id, "toolName": call.tool}
        result = template.inner("result", **members, output=call.error)
        error = template.inner("error", message=call.error)
        self.emit("result_failed", result=result, error=error)

    async def _produce(self, value: Mapping[str, object]) -> bool:
        if not self._structured:
            await self._say((dump(value),))
            return False
        self._in_step()
        step = self._step
        self._end_step("tool-calls")
        self.emit("result_completed", result=dict(value), stepIndex=step)
        return True

    def _fail(self, beat: FailBeat) -> None:
        self._in_step()
        details = {"errorId": self._eve.uuid(), "message": beat.message, "detail": beat.message}
        members = {"code": beat.code, "message": beat.message, "details": details}
        self.emit("step_failed", **members)
        self.emit("turn_failed", **members)
        self._step = None
        raise _TurnFailed

    # People.

    async def _approve(self, beat: ApproveBeat) -> None:
        call_id = self._call(beat.call.tool, beat.call.input)
        self._end_step("tool-calls")
        request = self._approval(beat, call_id)
        (self._parent or self)._talk.refusals = beat.refusals
        answer = await self._answered("approval", request)
        yes = answer.option == "approve"
        self._settle(request, answer, "approved" if yes else "denied")
        if not yes:
            self._denied("result_denied", call_id, beat.call, request, answer.text)
        self._go_on(answer)
        if self._variant.tokens and self._parent is None:
            self._resumes = ReopenedApproval(request, call_id, beat)
        if yes:
            self._in_step()
            await self._pause()
            self._result(call_id, beat.call)
        await self._say(self._told(beat, answer))

    def _approval(self, beat: ApproveBeat, call_id: str) -> dict[str, Any]:
        template = self._frames["approval"]
        request = template.inner("requests", requestId=f"aitxt-{self._eve.name(_NAMES, 24)}")
        request["prompt"] = beat.question
        request["action"] = _action(request, call_id, beat.call.tool, beat.call.input)
        return request

    def _told(self, beat: ApproveBeat, answer: EveAnswer) -> tuple[str, ...]:
        yes = answer.option == "approve"
        said = beat.granted if yes else beat.denied
        told = answer.text if yes or not self._variant.tokens else None
        return (*said, *((f" You added: {told}",) if told else ()))

    async def _approve_all(self, beat: ApproveAllBeat) -> None:
        """Ask for several calls in one record, and go on when all are answered (section 8.2). No
        child of the story does this, so nothing is relayed."""
        ids = [self._call(each.call.tool, each.call.input) for each in beat.approvals]
        self._end_step("tool-calls")
        asked_in = {
            "sequence": self._sequence,
            "turnId": self._turn_id,
            "stepIndex": self._steps - 1,
        }
        asked = list(zip(beat.approvals, ids, strict=True))
        requests = [self._approval(each, call_id) for each, call_id in asked]
        self._request("approval", {"requests": requests}, owned=True)
        self._rest()
        self._talk.open += requests
        try:
            answers, left = await self._wait_for_all(requests)
        finally:
            for request in requests:
                self._talk.open.remove(request)
        given = [answers.get(request["requestId"]) for request in requests]
        if not self._variant.tokens:
            pairs = zip(requests, given, strict=True)
            self.emit("resolved", resolutions=[_resolution(*pair) for pair in pairs])
        for (each, call_id), request, answer in zip(asked, requests, given, strict=True):
            if answer is None or answer.option != "approve":
                name = "result_ignored" if answer is None else "result_denied"
                told = None if answer is None else answer.text
                self._denied(name, call_id, each.call, request, told, **asked_in)
        approved = [answer is not None and answer.option == "approve" for answer in given]
        if left is not None and not any(approved):
            raise _MessageInHeldTurn(left)
        self._go_on(given[-1] or EveAnswer())
        self._in_step()
        for (each, call_id), yes in zip(asked, approved, strict=True):
            if yes:
                await self._pause()
                self._result(call_id, each.call)
        for (each, _), answer in zip(asked, given, strict=True):
            if answer is not None:
                await self._say(self._told(each, answer))
        if left is not None:
            self._end_step("stop")
            raise _MessageInHeldTurn(left)

    def _rest(self) -> None:
        """Say that an input is needed: a held turn waits, a closed one is over."""
        if self._variant.held:
            self.emit("turn_waiting", on="input", usage=self._usage())
        else:
            self.emit("turn_completed")
            self._waiting()

    async def _wait_for_all(
        self, requests: Sequence[Mapping[str, Any]]
    ) -> tuple[dict[str, EveAnswer], EveInput | None]:
        """Take answers until no request is open, or a message comes in a held turn; what comes in
        one post is one step, and a pause follows it only where some are open still."""
        answers: dict[str, EveAnswer] = {}
        while len(answers) < len(requests):
            item = await self._next()
            if item.kind != "post":
                if item.kind != "signed in":
                    self._control(item.kind)
                continue
            open_ = {r["requestId"]: r for r in requests if r["requestId"] not in answers}
            found = [
                (open_[answer["requestId"]], EveAnswer(answer.get("optionId"), answer.get("text")))
                for answer in item.post.answers
                if answer["requestId"] in open_
            ]
            said = self._as_message(item)
            if not found and self._variant.held:
                self._deliveries.append(item.delivery)
                return answers, said
            for request, answer in found:
                answers[request["requestId"]] = answer
                if not self._variant.tokens:
                    self._settled(request, approved=answer.option == "approve")
            if self._variant.tokens and (item.post.text is not None or not found):
                self._beside(said, self)
            if len(answers) < len(requests):
                if not self._variant.held:
                    # An empty turn; what is left stays open (section 8.2).
                    told = None if found else said
                    self._open_turn(said=self._aloud() if self._aside else told)
                self._rest()
        return answers, None

    def _denied(
        self,
        name: str,
        call_id: str,
        call: ToolCall,
        request: Mapping[str, Any],
        reason: str | None,
        **asked_in: object,
    ) -> None:
        template = self._frames[name]
        inner = template.inner("result")
        output: Any = dict(inner["output"])  # type: ignore[call-overload]
        message = str(output["message"])
        if name == "result_denied":
            message = "Tool execution was denied."
            if reason and not self._variant.tokens:
                message += f' The person who denied it wrote: "{reason}"'
        output["message"] = message
        output["approval"] = {**output["approval"], "requestId": request["requestId"]}
        inner |= {"callId": call_id, "toolName": call.tool, "output": output}
        error = template.inner("error", message=message)
        # Of the step that asked, in T of the old turn too (section 8.2).
        self.emit(name, result=inner, error=error, **asked_in)

    async def _ask(self, beat: AskBeat) -> None:
        tokens = self._variant.tokens
        input_: dict[str, object]
        options: list[dict[str, str]]
        if tokens:
            options = [{"id": option, "label": option} for option in beat.options]
            input_ = {"prompt": beat.question, "allowFreeform": True}
            shown: list[dict[str, str]] = options
        else:
            input_ = {"question": beat.question}
            options = [{"id": o, "label": o, "description": o} for o in beat.options]
            shown = [{"label": o, "description": o} for o in beat.options]
        if beat.options:
            input_["options"] = shown
        # T's question is not an action (section 8.2).
        call_id = self._call("ask_question", input_, shown=not tokens)
        self._end_step("tool-calls")
        if self._variant.held:
            self.emit("turn_waiting", on="tasks", usage=self._usage())
        self._talk.asked += 1
        request_id = call_id if tokens else f"{self._talk.id}-ask-{self._talk.asked}"
        request = self._frames["question"].inner("requests", requestId=request_id)
        request["prompt"] = beat.question
        request["action"] = _action(request, call_id, "ask_question", input_)
        if beat.options:
            request["options"] = options
        else:
            del request["options"]
            request["display"] = "text"
        answer = await self._answered("question", request, call_id=call_id)
        words = answer.text or next(
            (o["label"] for o in options if o["id"] == answer.option), answer.option or ""
        )
        if not self._variant.held:
            self._settle(request, answer, "answered")
            self._go_on(answer)
            self._joins = bool(self._aside)
        else:
            if answer.said is not None:
                self._received(answer.said)
            self._settle(request, answer, "answered")
            result = self._frames["result"].inner(
                "result",
                callId=call_id,
                toolName="ask_question",
                output={"answer": words, "status": "answered"},
            )
            self.emit("result", result=result)
        # Not `str.format`: the answer may have braces in it.
        await self._say((beat.reply.replace("{answer}", words),))

    async def _sign_in(self, beat: SignInBeat) -> None:
        """Section 8.2: T and S1 are silent until the sign-in is over, S2 waits on input."""
        self._call(beat.call.tool, beat.call.input)
        self._end_step("tool-calls")
        name = beat.service
        attempt = self._eve.name(_CROCKFORD, 26)
        end = f"{self._talk.id}%3Aauth" if self._variant.tokens else f"{attempt}/{self._talk.id}"
        self._talk.hook = end.replace("%3A", ":")
        url = f"{self._eve.origin}/eve/v1/connections/{name}/callback/{end}"
        shown = self._frames["sign_in"].inner("authorization", instructions=beat.question)
        shown["url"] = f"{self._eve.origin}/authorize?back={quote(url, safe='')}"
        members: dict[str, object] = {} if self._variant.tokens else {"attemptId": attempt}
        self.emit(
            "sign_in",
            name=name,
            description=beat.question,
            authorization=shown,
            webhookUrl=url,
            **members,
        )
        if self._variant.held:
            self.emit("turn_waiting", on="input", usage=self._usage())
        await self._signed_in(beat, members)
        self.emit("signed_in", name=name, authorization=shown, **members)
        # The model is called again, and calls the tool again.
        call_id = self._call(beat.call.tool, beat.call.input)
        await self._pause()
        self._result(call_id, beat.call)
        self._end_step("tool-calls")
        await self._say(beat.granted)

    async def _signed_in(self, beat: SignInBeat, members: Mapping[str, object]) -> None:
        waiting: list[EveInput] = []
        while True:
            item = await self._next()
            declined = item.kind == "post" and self._variant.held
            if item.kind != "signed in" and not declined:
                waiting.append(item)
                continue
            for later in waiting:
                self._talk.inbox.put_nowait(later)
            if not declined:
                return
            self._talk.hook = None
            self._deliveries.append(item.delivery)
            self.emit("sign_in_declined", name=beat.service, **members)
            raise _MessageInHeldTurn(self._as_message(item))

    async def _limit(self, beat: LimitBeat) -> None:
        """Ask whether a session that has used its tokens goes on (section 8.2)."""
        self._in_step()
        template = self._frames["limit"]
        name = f"{self._talk.id}:limit:input:{beat.used}"
        request = template.inner("requests", requestId=name)
        input_ = {"kind": "input", "limit": beat.limit, "usedTokens": beat.used}
        request["action"] = _action(request, name, "session_limit_continuation", input_)
        answer = await self._answered("limit", request)
        self._settle(request, answer, "answered")
        self._go_on(answer)
        if answer.option != "continue":
            raise _TurnCancelled
        self._step = None
        await self._say(beat.granted)

    def _go_on(self, answer: EveAnswer) -> None:
        """Open the turn in which a closed pause goes on; a held one takes the message in."""
        if self._variant.held:
            return
        if self._parent is None:
            self._open_turn(said=self._aloud() if self._aside else answer.said)
            return
        # A child of these generations says its turn once more.
        self._session_started()
        self._step, self._steps = None, 0
        self.emit("turn_started", **self._traced())

    def _settle(self, request: Mapping[str, Any], answer: EveAnswer, outcome: str) -> None:
        if self._variant.tokens:
            return
        approval = outcome != "answered"
        if approval:
            self._settled(request, approved=outcome == "approved")
        resolution = _resolution(request, answer)
        self._everywhere("resolved", approval, resolutions=[resolution])

    def _settled(self, request: Mapping[str, Any], *, approved: bool) -> None:
        self._everywhere(
            "settled",
            True,
            requestId=request["requestId"],
            outcome="approved" if approved else "cancelled",
            responderPrincipalId="anonymous",
        )

    def _everywhere(self, record: str, owned: bool, /, **members: object) -> None:
        """Write a record here, and on the parent that relays it."""
        self._emit(record, members, owned=owned)
        if self._parent is not None and self._variant.held:
            self._parent.emit_apart(record, **members, stepIndex=self._asked_at)

    async def _answered(
        self, name: str, request: Mapping[str, Any], *, call_id: str | None = None
    ) -> EveAnswer:
        """Ask, and wait for the answer, on the parent's stream where this is a child."""
        parent = self._parent
        root = parent or self
        members: dict[str, object] = {"requests": [request]}
        own = {"callId": call_id} if self._variant.held and call_id is not None else {}
        # A question comes from a tool that runs by itself: outside of the turn (section 9).
        owned = name != "question"
        self._request(name, members | own, owned=owned)
        if self._variant.held:
            paused = {"on": "input", "usage": self._usage()}
            self._emit("turn_waiting", paused, owned=owned)
        if parent is not None:
            if self._variant.held:
                members |= {"callId": self._call_id, "taskId": self._task_id}
            parent._request(name, members, owned=False, step=self._asked_at)
            if self._variant.held:
                parent.emit_apart("turn_waiting", on="input", usage=parent._usage())
        if not self._variant.held:
            root.emit("turn_completed")
            root._waiting()
        root._talk.open.append(request)
        try:
            return await root._wait_for(request, self)
        finally:
            root._talk.open.remove(request)

    def _request(
        self, name: str, members: Mapping[str, object], *, owned: bool, step: int | None = None
    ) -> None:
        """Write `input.requested`; the page names `callId` and `taskId` as optional members."""
        template = self._frames[name]
        more = {key: value for key, value in members.items() if key in ("callId", "taskId")}
        data = template.filled(requests=members["requests"])
        data.pop("callId", None)
        if step is None:
            step = self._steps - 1 if self._step is None else self._step
        data |= {"sequence": self._sequence, "turnId": self._turn_id, "stepIndex": max(step, 0)}
        self._append(template.type, data | more, owned=owned)

    async def _wait_for(self, request: Mapping[str, Any], asking: "EveWorker") -> EveAnswer:
        while True:
            item = await self._next()
            if item.kind != "post":
                if item.kind != "signed in":
                    self._control(item.kind)
                continue
            answer = _fits(request, item)
            said = self._as_message(item)
            if self._variant.held and (answer is None or answer.said is not None):
                # The message joins the turn (section 9).
                self._deliveries.append(item.delivery)
            if answer is not None:
                if item.post.answers and item.post.text is not None:
                    self._beside(said, asking)
                return answer
            if self._variant.held:
                asking._leave(request)
                raise _MessageInHeldTurn(said)
            # An empty turn; the request stays open (section 8.2).
            if self._variant.tokens and request["kind"] == "tool-approval":
                self._aside.append(said)
                said = self._aloud()
            self._open_turn(said=said)
            self.emit("turn_completed")
            self._waiting()

    def _beside(self, said: EveInput, asking: "EveWorker") -> None:
        """Take a message that came with an answer, which only T allows: it is for the step after
        that with the results, or for a turn of its own where a child has asked."""
        if asking is self:
            self._aside.append(said)
        else:
            self._talk.inbox.put_nowait(replace(said, post=replace(said.post, answers=())))

    async def _next(self) -> EveInput:
        """The next input of a session that waits; a cancel ends a held turn only."""
        talk = self._talk
        while True:
            item = await talk.inbox.get()
            if item.kind != "cancel":
                return item
            if talk.cancelled.is_set() and self._variant.held:
                for request in talk.open:
                    self._withdrawn(request, "cancelled")
                raise _TurnCancelled
            talk.cancelled.clear()

    def _withdrawn(self, request: Mapping[str, Any], outcome: str) -> None:
        shown = {"kind": request["kind"], "outcome": outcome, "requestId": request["requestId"]}
        self.emit("resolved", resolutions=[shown])

    def _leave(self, request: Mapping[str, Any]) -> None:
        """Withdraw a request because of a message (section 8.2); a question gives way as eve
        0.80.1 does it, its tool returns what section 9.4 names."""
        action = request["action"]
        if request["kind"] == "tool-approval":
            self._withdrawn(request, "ignored")
            call = ToolCall(str(action["toolName"]), {})
            self._denied("result_ignored", str(action["callId"]), call, request, None)
            return
        self._withdrawn(request, "cancelled")
        if request["kind"] == "question":
            members = {"callId": action["callId"], "toolName": action["toolName"]}
            result = self._frames["result"].inner("result", **members, output={"interrupted": True})
            self.emit("result", result=result)

    # Children.

    async def _delegate(self, beat: DelegateBeat) -> None:
        child = self._eve.begin(child=True)
        input_ = {"message": beat.task}
        call_id = self._call(beat.name, input_, shown=False)
        template = self._frames["delegation"]
        action = template.inner(
            "actions", callId=call_id, name=beat.name, subagentName=beat.name, input=input_
        )
        action |= {"nodeId": f"subagents/{beat.name}", "description": beat.task}
        if self._variant.tokens:
            action["nodeId"] = beat.name
        members: dict[str, object] = {"actions": [action]}
        if not self._variant.tokens:
            members["presentation"] = {call_id: {"label": f"{beat.name}: {beat.task}"}}
        self.emit("delegation", **members)
        worker = EveWorker(self._eve, child, parent=self)
        worker._call_id = call_id
        worker._asked_at = self._steps - 1
        worker._task_id = f"{beat.name}-{self._eve.name('abcdefghijkmnpqrstuvwxyz0123456789', 6)}"
        self._end_step("tool-calls")
        if self._variant.held:
            await self._held_child(worker, beat, call_id)
        else:
            await self._called_child(worker, beat, call_id)

    async def _held_child(self, worker: "EveWorker", beat: DelegateBeat, call_id: str) -> None:
        task = {"callId": call_id, "name": beat.name, "taskId": worker._task_id}
        self.emit("task_started", **task)
        receipt = self._frames["receipt"].inner("result", callId=call_id, toolName=beat.name)
        receipt["output"] = (
            f"Started task {worker._task_id}. Its result will arrive in a <task_result> message. "
            f"To send it another message, call {beat.name} again with taskId {worker._task_id}."
        )
        self.emit("receipt", result=receipt)
        await self._say((f"Waiting for the {beat.name}.",))
        self._end_step("stop")
        self.emit("turn_waiting", on="tasks", usage=self._usage())
        path = f"/eve/v1/session/{worker._talk.id}/stream"
        self.emit("agent_started", **task, sessionId=worker._talk.id, streamPath=path)
        output = await worker.work(beat)
        self._input_tokens += worker._input_tokens
        self.emit("task_settled", **task, output=output)

    async def _called_child(self, worker: "EveWorker", beat: DelegateBeat, call_id: str) -> None:
        self.emit(
            "called",
            callId=call_id,
            childSessionId=worker._talk.id,
            sessionId=self._talk.id,
            name=beat.name,
            toolName=beat.name,
        )
        before = len(self._talk.log)
        asked_in = {
            "sequence": self._sequence,
            "turnId": self._turn_id,
            "stepIndex": self._steps - 1,
        }
        output = await worker.work(beat)
        if any(entry.type == "session.waiting" for entry in self._talk.log[before:]):
            # After a relayed request T goes on with no name of the turn (section 8.2).
            self._sequence, self._turn_id = self._talk.turns, ""
            self._talk.turns += 1
        # T counts its steps anew after a subagent.
        self._step, self._steps = None, 0
        self.emit("child_completed", callId=call_id, output=output, subagentName=beat.name)
        inner: Any = FRAMES["T"]["child_result"].inner("result")
        outcome = {**inner["outcome"], "result": {"kind": "succeeded", "output": output}}
        inner |= {
            "callId": call_id,
            "subagentName": beat.name,
            "output": output,
            "outcome": outcome,
        }
        self.emit("child_result", result=inner, **asked_in)

    async def work(self, beat: DelegateBeat) -> str:
        """Play a child; returns its last text."""
        text = f'You are the subagent "{beat.name}".\n\nCaller message:\n{beat.task}'
        said = EveInput("post", EvePost(text=text, parts=({"text": text, "type": "text"},)))
        self._open_turn(said=said)
        # A cancel of the parent is one of the child.
        assert self._parent is not None
        self._talk.cancelled = self._parent._talk.cancelled
        before = len(self._talk.log)
        await self.play(beat.beats)
        self.emit("turn_completed")
        if self._variant.tokens:
            self.end()
        else:
            self._waiting()
        return _last_text(self._talk.log[before:])


_UNHEARD_OF: Mapping[type[Beat], str] = {
    CompactBeat: "compaction within a turn",
    RememberBeat: "notes",
    OddBeat: "records that its page does not know",
}
_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _action(
    request: Mapping[str, Any], call_id: str, tool: str, input_: Mapping[str, object]
) -> dict[str, object]:
    return {**request["action"], "callId": call_id, "toolName": tool, "input": dict(input_)}


def _resolution(request: Mapping[str, Any], answer: EveAnswer | None) -> dict[str, object]:
    """What `input.resolved` says of a request; without an answer it was put aside (section 9.4)."""
    shown = {"kind": request["kind"], "requestId": request["requestId"]}
    if answer is None:
        return {**shown, "outcome": "ignored"}
    outcome = "answered"
    if request["kind"] == "tool-approval":
        outcome = "approved" if answer.option == "approve" else "denied"
    response = {"requestId": request["requestId"]}
    response |= {} if answer.option is None else {"optionId": answer.option}
    response |= {} if answer.text is None else {"text": answer.text}
    return {**shown, "outcome": outcome, "response": response}


def _last_text(log: Sequence[EveRecord]) -> str:
    said = [
        json.loads(entry.data)["data"]["message"]
        for entry in log
        if entry.type == "message.completed"
    ]
    return str(said[-1]) if said else ""


def _label(answer: Mapping[str, Any]) -> str:
    """What a chosen option reads like to the model."""
    chosen = str(answer.get("optionId") or "")
    return {"approve": "Yes", "deny": "No"}.get(chosen, chosen)


def _said(item: EveInput, text: str) -> EveInput:
    parts = ({"text": text, "type": "text"},)
    return EveInput(item.kind, replace(item.post, text=text, parts=parts), item.delivery)


def _fits(request: Mapping[str, Any], item: EveInput) -> EveAnswer | None:
    """The answer that an input is to a request, or None (section 9.4)."""
    for answer in item.post.answers:
        if answer["requestId"] == request["requestId"]:
            return EveAnswer(answer.get("optionId"), answer.get("text"))
    text = item.post.text
    if text is None or item.post.answers:
        return None
    for number, option in enumerate(request.get("options", ()), start=1):
        if text.strip().lower() in (option["id"].lower(), option["label"].lower(), str(number)):
            return EveAnswer(option["id"], said=item)
    return EveAnswer(text=text, said=item) if request["allowFreeform"] else None
