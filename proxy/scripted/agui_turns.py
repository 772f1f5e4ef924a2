"""The runs of the scripted AG-UI agent: each plays a part of a script into the body of one answer.

As Pydantic AI without a store does, the agent knows of a conversation what the messages of a
request tell: which script is played, and how far it has come. What `ScriptedAgui` remembers of a
thread is for tests to look at, and the answers that a script wants refused.

Why one module: a run plays each kind of beat, and where it goes on is read from the history at
each.
"""

import json
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, assert_never

from proxy.base.clock import Clock, IdSource
from proxy.scripted.agui_frames import EVENTS, PARTS
from proxy.scripted.agui_requests import (
    AguiHistory,
    AguiRequest,
    InterruptAnswer,
    MadeCall,
    text_of,
)
from proxy.scripted.backend import FollowedConversation, Refusal, ScriptedBackend
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

Write = Callable[[Sequence[bytes]], Awaitable[None]]

ASK_TOOL = "ask_question"
"""The tool that the agent calls to ask: an interrupt belongs to a call."""

SKIPPED = "(skipped)"

_PREFIX = "int-"
# What Pydantic AI says of a call without a yes.
_DENIED = "The tool call was denied."
_CANCELLED = "Cancelled by user."
_NO_MESSAGES = "No message history, user prompt, or instructions provided"
_NO_CALLS = (
    "Tool call results were provided, but the message history does not contain any unprocessed "
    "tool calls."
)
# More frames are not written at once.
_BATCH = 256


@dataclass(slots=True)
class AguiThread(FollowedConversation):
    """What tests can ask of one thread.

    Args:
        runs: the ids of the runs that began, in order.
        cancelled: the ids of those whose client left.
        executed: how often each call ran that somebody approved, by the id of the call.
    """

    runs: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    executed: Counter[str] = field(default_factory=Counter)


class ScriptedAgui(ScriptedBackend[AguiThread]):
    """The state of one scripted AG-UI agent: threads, requests received, requests refused."""

    def __init__(self, *, key: str | None, faults: Faults, clock: Clock, pace: float) -> None:
        """See `create_agui_app` for the arguments."""
        credential = None if key is None else f"Bearer {key}"
        super().__init__(
            "scripted agui", credential=credential, faults=faults, clock=clock, pace=pace
        )
        self.ids = IdSource()
        self._started_ms = clock.now()
        self._calls = 0

    def new_call_id(self) -> str:
        """Return an id that no other agent has given, not even before a restart."""
        self._calls += 1
        return f"call_{self._started_ms:x}{self._calls:04d}"

    def begin(self, request: AguiRequest) -> AguiThread:
        """Note that a run begins, and return its thread."""
        talk = self.talks.setdefault(request.thread_id, AguiThread())
        talk.runs.append(request.run_id)
        return talk


class _RunFailed(Exception):
    """The run ends with this error."""


class _RunOver(Exception):
    """The run has ended, and its end is told."""


def _calls_of(beat: Beat) -> tuple[str, ...]:
    """Return the tools that a beat calls."""
    match beat:
        case RunBeat(calls):
            return tuple(call.tool for call in calls)
        case ApproveBeat():
            return (beat.call.tool,)
        case ApproveAllBeat(approvals):
            return tuple(approval.call.tool for approval in approvals)
        case AskBeat():
            return (ASK_TOOL,)
        case UseCustomToolBeat():
            return (beat.tool,)
        case _:
            return ()


def _reached(beats: Sequence[Beat], calls: Sequence[MadeCall]) -> tuple[int, list[MadeCall]]:
    """Return the place of the newest beat whose calls are in the history, and these calls."""
    left, place, newest = deque(calls), -1, list[MadeCall]()
    for number, beat in enumerate(beats):
        tools = _calls_of(beat)
        if not tools:
            continue
        if tuple(call.tool for call in list(left)[: len(tools)]) != tools:
            break
        place, newest = number, [left.popleft() for _ in tools]
    return place, newest


def _check(answer: InterruptAnswer, beat: Beat) -> None:
    """Check a payload against the schema that its interrupt had.

    Raises:
        _RunFailed: it does not fit.
    """
    if answer.cancelled:
        return
    payload = answer.payload
    asks = isinstance(beat, AskBeat)
    needed, kind = ("answer", str) if asks else ("approved", bool)
    wrong = ""
    if not isinstance(payload, dict):
        wrong = "payload: model_type"
    elif needed not in payload:
        wrong = f"{needed}: missing"
    elif not isinstance(payload[needed], kind):
        wrong = f"{needed}: {'string' if asks else 'bool'}_type"
    elif not isinstance(payload.get("reason") or "", str):
        wrong = "reason: string_type"
    if wrong:
        raise _RunFailed(
            f"`ResumeEntry` payload for interrupt '{answer.interrupt_id}' does not match the "
            f"`responseSchema` advertised on the interrupt ({wrong})."
        )


def _answers_of(request: AguiRequest) -> dict[str, InterruptAnswer]:
    """Return the answers of a request by the calls that they are about: all that are open, and no
    other.

    Raises:
        _RunFailed: some are missing, or are about something else.
    """
    answers: dict[str, InterruptAnswer] = {}
    for entry in request.resume:
        if not entry.interrupt_id.startswith(_PREFIX):
            raise _RunFailed(
                f"ResumeEntry.interrupt_id '{entry.interrupt_id}' does not start with the expected "
                f"'{_PREFIX}' prefix; cannot map it back to a tool call id."
            )
        answers[entry.interrupt_id.removeprefix(_PREFIX)] = entry
    calls = request.history.newest()
    if not calls:
        raise _RunFailed(_NO_CALLS)
    done = {call.id for call in calls if call.result is not None}
    for name in sorted(done & answers.keys()):
        raise _RunFailed(
            f"Tool call '{name}' was already executed and its result cannot be overridden."
        )
    expected, got = {call.id for call in calls}, done | answers.keys()
    if expected != got:
        raise _RunFailed(
            "Tool call results need to be provided for all deferred tool calls. "
            f"Expected: {_named(expected)}, got: {_named(got)}"
        )
    return answers


def _named(names: set[str]) -> str:
    return "{" + ", ".join(f"'{name}'" for name in sorted(names)) + "}"


def _script(history: AguiHistory) -> tuple[Beat, ...]:
    """Return what the last message of a user makes the agent do."""
    words, files = history.words()
    return beats_for(words, turn=history.turns, attachments=files)


def _output(call: ToolCall) -> str:
    """Return a result as text: an object is compact JSON."""
    if call.error is not None:
        return call.error
    return call.output if isinstance(call.output, str) else dump(call.output)


@dataclass(slots=True, eq=False)
class AguiStage:
    """Plays one run; `write` takes its frames.

    A client that leaves cancels it: nothing but the body of the answer keeps it going.
    """

    agent: ScriptedAgui
    talk: AguiThread
    request: AguiRequest
    write: Write
    _frames: list[bytes] = field(init=False, default_factory=list)
    _answers: dict[str, InterruptAnswer] = field(init=False, default_factory=dict)
    _message: str | None = field(init=False, default=None)
    _open: bool = field(init=False, default=False)
    _responds: bool = field(init=False, default=False)
    _responses: int = field(init=False, default=0)
    _pieces: int = field(init=False, default=0)
    _value: Mapping[str, object] | None = field(init=False, default=None)

    async def play(self) -> None:
        """Play the run to its end."""
        request = self.request
        self._emit(EVENTS["run_started"], threadId=request.thread_id, runId=request.run_id)
        await self._flush()
        try:
            await self._play(request.history)
        except _RunFailed as failed:
            if self._open:
                self._emit(EVENTS["text_cut"], messageId=self._message)
            self._emit(EVENTS["run_error"], message=str(failed))
        except _RunOver:
            pass
        await self._flush()

    async def _play(self, history: AguiHistory) -> None:
        """Go on where the history ends."""
        last = history.last()
        if not history.messages:
            raise _RunFailed(_NO_MESSAGES)
        if self.request.resume:
            self._take_answers()
        if last == "user":
            if self.request.resume:
                await self._settle(history.before_newest())
            await self._beats(_script(history), -1, [])
        elif last == "tool" or (last == "assistant" and history.newest()):
            beats, place, calls = self._reached(history)
            await self._beats(beats, place, calls)
        self._succeed()

    def _reached(self, history: AguiHistory) -> tuple[tuple[Beat, ...], int, list[MadeCall]]:
        """Return the script of a history, and how far it has come.

        Raises:
            _RunFailed: the newest calls are not its own.
        """
        beats = _script(history)
        place, calls = _reached(beats, history.calls())
        known = {call.id for call in calls}
        for call in history.newest():
            if call.id not in known:
                raise _RunFailed(f"Unknown tool name: '{call.tool}'.")
        return beats, place, calls

    def _take_answers(self) -> None:
        """Take the answers of the request, all or none.

        Raises:
            _RunFailed: they do not fit, or the script wants them refused.
        """
        answers = _answers_of(self.request)
        beats, place, _ = self._reached(self.request.history.before_newest())
        for name, answer in answers.items():
            if not isinstance(beats[place], ApproveBeat | ApproveAllBeat | AskBeat):
                raise _RunFailed(f"Tool call '{name}' does not wait for an answer.")
            _check(answer, beats[place])
        try:
            self.talk.take_answer()
        except Refusal as refusal:
            raise _RunFailed(refusal.message) from None
        self._answers = answers

    async def _settle(self, history: AguiHistory) -> None:
        """Tell the results of what was answered beside new words, which alone are answered."""
        beats, place, calls = self._reached(history)
        match beats[place]:
            case ApproveBeat() as beat:
                await self._decide((beat,), calls)
            case ApproveAllBeat(approvals):
                await self._decide(approvals, calls)
            case AskBeat():
                self._take_words(calls[0])

    async def _beats(self, beats: Sequence[Beat], place: int, calls: list[MadeCall]) -> None:
        for number, beat in enumerate(beats):
            if number >= place:
                await self._beat(beat, calls if number == place else [])

    async def _beat(self, beat: Beat, made: list[MadeCall]) -> None:
        """Play one beat; `made` are its calls where the history has them."""
        match beat:
            case ThinkBeat(pieces):
                await self._think(pieces)
            case SayBeat(pieces, gap_s):
                await self._say(pieces, gap_s)
            case RunBeat(calls):
                await self._run(calls, made)
            case ApproveBeat():
                await self._approve((beat,), made)
            case ApproveAllBeat(approvals):
                await self._approve(approvals, made)
            case AskBeat():
                await self._ask(beat, made)
            case UseCustomToolBeat():
                await self._custom(beat, made)
            case ProduceBeat(value):
                self._value = value
            case OddBeat():
                self._close()
                self._emit(EVENTS["odd"])
                await self._say(("Something new: ",))
            case FailBeat():
                raise _RunFailed(f"{beat.code}: {beat.message}")
            case CompactBeat():
                await self._lack("event for a shorter history")
            case RememberBeat():
                await self._lack("event for notes")
            case AskSealedBeat() | SignInBeat() | LimitBeat() | DelegateBeat():
                await self._lack(lacking(beat))
            case _:
                assert_never(beat)

    async def _lack(self, what: str) -> None:
        await self._say((f"This agent has no {what}.",))

    # Frames.

    def _emit(self, template: Template, **members: object) -> None:
        """Write one event; those that have a time get it."""
        if "timestamp" in template.payload():
            members["timestamp"] = self.agent.clock.now()
        self._frames.append(f"data: {dump(template.filled(**members))}\n\n".encode())

    async def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames:
            await self.write(frames)

    async def _pause(self, seconds: float = 0.0) -> None:
        if seconds or len(self._frames) >= _BATCH:
            await self._flush()
        await self.agent.pause(seconds)

    # What the model says.

    def _respond(self) -> None:
        """Begin an answer of the model, unless one has begun."""
        if not self._responds:
            self._responds = True
            self._responses += 1
            self._message = None

    def _returned(self) -> None:
        """Results are there: what comes next is another answer of the model."""
        self._responds = False

    async def _think(self, pieces: Sequence[str]) -> None:
        self._close()
        self._respond()
        name = self.agent.ids.uuid()
        self._emit(EVENTS["reasoning_start"], messageId=name)
        self._emit(EVENTS["thought_start"], messageId=name)
        for piece in pieces:
            await self._pause()
            self._emit(EVENTS["thought"], messageId=name, delta=piece)
        self._emit(EVENTS["thought_end"], messageId=name)
        self._emit(EVENTS["signature"], entityId=name)
        self._emit(EVENTS["reasoning_end"], messageId=name)

    async def _say(self, pieces: Sequence[str], gap_s: float = 0.0) -> None:
        for piece in pieces:
            await self._pause(gap_s)
            self._respond()
            if not self._open:
                self._start()
            self._emit(EVENTS["text"], messageId=self._message, delta=piece)
            self._pieces += 1

    def _start(self) -> None:
        self._message = self.agent.ids.uuid()
        self._open = True
        self._emit(EVENTS["text_start"], messageId=self._message)

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._emit(EVENTS["text_end"], messageId=self._message)

    # Calls.

    def _call(self, tool: str, input_: Mapping[str, object]) -> MadeCall:
        """Write a call; one of a silent model has an empty text before it."""
        self._respond()
        if self._message is None:
            self._start()
        self._close()
        call = MadeCall(self.agent.new_call_id(), tool)
        self._emit(
            EVENTS["call_start"],
            toolCallId=call.id,
            toolCallName=tool,
            parentMessageId=self._message,
        )
        text = json.dumps(input_, ensure_ascii=False)
        half = len(text) // 2
        for piece in (text[:half], text[half:]):
            self._emit(EVENTS["call_args"], toolCallId=call.id, delta=piece)
        self._emit(EVENTS["call_end"], toolCallId=call.id)
        return call

    def _tell(self, call: MadeCall, text: str, outcome: str = "") -> None:
        """Write a result; behind one that is not a success comes how it ended."""
        name = self.agent.ids.uuid()
        self._emit(EVENTS["result"], messageId=name, toolCallId=call.id, content=text)
        if outcome:
            told = PARTS["encrypted"].filled(pydantic_ai={"outcome": outcome})
            self._emit(EVENTS["outcome"], entityId=name, encryptedValue=json.dumps(told))

    async def _run(self, calls: Sequence[ToolCall], made: list[MadeCall]) -> None:
        made = made or [self._call(call.tool, call.input) for call in calls]
        for one, call in reversed([*zip(made, calls, strict=True)]):
            await self._pause()
            if one.result is None:
                self._tell(one, _output(call), "" if call.error is None else "failed")
        self._returned()

    async def _approve(self, approvals: Sequence[ApproveBeat], made: list[MadeCall]) -> None:
        if not made:
            made = [self._call(beat.call.tool, beat.call.input) for beat in approvals]
            self.talk.refusals = sum(beat.refusals for beat in approvals)
        open_ = [
            PARTS["approval"].filled(
                id=f"{_PREFIX}{call.id}",
                message=f"Approve {call.tool}({dump(dict(beat.call.input))})?",
                toolCallId=call.id,
            )
            for beat, call in zip(approvals, made, strict=True)
            if call.result is None and call.id not in self._answers
        ]
        if open_:
            self._interrupt(open_)
        granted = await self._decide(approvals, made)
        for beat, yes in zip(approvals, granted, strict=True):
            await self._say(beat.granted if yes else beat.denied)

    async def _decide(
        self, approvals: Sequence[ApproveBeat], made: Sequence[MadeCall]
    ) -> list[bool]:
        """Run what was approved and tell the results, those of denied calls first; returns which
        calls ran."""
        pairs = [*zip(approvals, made, strict=True)]
        granted = [self._grants(beat.call, call) for beat, call in pairs]
        for call, yes in zip(made, granted, strict=True):
            if not yes and call.result is None:
                self._tell(call, _refusal(self._answers[call.id]), "denied")
        for (beat, call), yes in zip(pairs, granted, strict=True):
            if yes and call.result is None:
                await self._pause()
                self.talk.executed[call.id] += 1
                failed = beat.call.error is not None
                self._tell(call, _output(beat.call), "failed" if failed else "")
        self._returned()
        return granted

    def _grants(self, call: ToolCall, made: MadeCall) -> bool:
        """Say whether a call was approved: now, or before, by its result."""
        if made.result is not None:
            return text_of(made.result["content"]) == _output(call)
        answer = self._answers[made.id]
        return isinstance(answer.payload, dict) and answer.payload["approved"] is True

    async def _ask(self, beat: AskBeat, made: list[MadeCall]) -> None:
        if not made:
            options = {"options": [*beat.options]} if beat.options else {}
            made = [self._call(ASK_TOOL, {"question": beat.question, **options})]
        (call,) = made
        if call.result is None and call.id not in self._answers:
            self._interrupt([_question(beat, call)])
        words = self._take_words(call)
        # Not `str.format`: the answer may have braces in it.
        await self._say((beat.reply.replace("{answer}", words),))

    def _take_words(self, call: MadeCall) -> str:
        """Tell the answer to a question as the result of its call, and return it."""
        if call.result is not None:
            told = text_of(call.result["content"])
            words = "" if told == _CANCELLED else told
        else:
            payload = self._answers[call.id].payload
            words = str(payload["answer"]) if isinstance(payload, dict) else ""
            cancelled = self._answers[call.id].cancelled
            self._tell(call, _CANCELLED if cancelled else words, "denied" if cancelled else "")
        self._returned()
        return words or SKIPPED

    async def _custom(self, beat: UseCustomToolBeat, made: list[MadeCall]) -> None:
        (call,) = made or [self._call(beat.tool, beat.input)]
        if call.result is None:
            self._wait_for_result(call)
        else:
            words = text_of(call.result["content"])
            if call.result.get("error"):
                words = f"an error, {words or call.result['error']}"
            self._returned()
            await self._say((beat.reply.replace("{result}", words),))

    # Ends.

    def _interrupt(self, interrupts: Sequence[object]) -> NoReturn:
        template = EVENTS["finished_interrupt"]
        self._end(template, outcome=template.inner("outcome", interrupts=[*interrupts]))
        raise _RunOver

    def _wait_for_result(self, call: MadeCall) -> NoReturn:
        """End the run: the client calls the tool. One before 1.0 is not told which."""
        if self.request.modern:
            template = EVENTS["finished_pending"]
            self._end(template, outcome=template.inner("outcome", pendingToolCallIds=[call.id]))
        else:
            self._end(EVENTS["finished"])
        raise _RunOver

    def _succeed(self) -> None:
        if self._value is None:
            self._end(EVENTS["finished"])
        else:
            self._end(EVENTS["finished_result"], result=dict(self._value))

    def _end(self, template: Template, **members: object) -> None:
        """Say that the run is over, and what the model has used."""
        self._close()
        if self._responses:
            read = 50 * self._responses
            counts = {"inputTokens": read, "outputTokens": self._pieces}
            usage = PARTS["usage"].filled(**counts, totalTokens=read + self._pieces)
            members["usage"] = [usage]
        else:
            template = template.without("usage")
        request = self.request
        self._emit(template, threadId=request.thread_id, runId=request.run_id, **members)


def _refusal(answer: InterruptAnswer) -> str:
    """Return the result of a call that was not approved."""
    if answer.cancelled or not isinstance(answer.payload, dict):
        return _CANCELLED
    return answer.payload.get("reason") or _DENIED


def _question(beat: AskBeat, call: MadeCall) -> dict[str, object]:
    """Return the interrupt of a question; beside its options other words are taken."""
    answer: dict[str, object] = {"type": "string"}
    if beat.options:
        answer = {"anyOf": [{"type": "string", "enum": [*beat.options]}, answer]}
    template = PARTS["question"]
    schema = template.inner("responseSchema", properties={"answer": answer})
    return template.filled(
        id=f"{_PREFIX}{call.id}", message=beat.question, toolCallId=call.id, responseSchema=schema
    )
