"""A client codec for Tiny, the protocol of `tiny.py`: the example of
`docs/adding-a-client-codec.md`.

`POST /say {"chat", "text"}` takes a message and streams its turn: lines of JSON, each with its
number `n` in the chat, and an empty one every 10 s. `GET /chats/{chat}?after=N` streams the same
from behind line N on, until the turn is over. `POST /answer {"chat", "ask", "text"}` answers. A
request of kind `approval` is about the call before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from multidict import CIMultiDict, MultiDict

from adapters.driving.asks import InteractionAnswer, InteractionLedger, PendingInteraction
from adapters.driving.held import HeldToolCalls
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.part import NOT_STORED, soonest
from adapters.driving.silence import SilenceTimers
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Request, Response, Support
from adapters.model.interactions import DECLINED, answer_of
from adapters.model.stored import CodecCheckpoint, adapter_of, fill, newest
from adapters.wire.errors import SESSION_LOST, DragomanError, NotSupported
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, format_json, parse_json
from docs.examples import tiny

# state.py: what must survive a restart.


@dataclasses.dataclass(slots=True)
class TinyClientState:
    turn: str | None = None
    turns: int = 0
    blocks: int = 0
    writing: bool = False  # a text is open
    calls: list[str] = dataclasses.field(default_factory=list)  # without result
    ledger: InputLedger[SentInput] = dataclasses.field(default_factory=InputLedger)
    doubts: SilenceTimers = dataclasses.field(default_factory=SilenceTimers)
    asks: InteractionLedger[PendingInteraction] = dataclasses.field(
        default_factory=InteractionLedger
    )
    held: HeldToolCalls = dataclasses.field(default_factory=HeldToolCalls)
    # How many lines were read: in the place, since each changes it.
    lines: Annotated[int, NOT_STORED] = 0

    @property
    def of_turn(self) -> dict[str, Any]:
        """Members of each event of the turn."""
        native = ev.NativeRef(dialect="tiny", frame=self.lines)
        return {"thread_id": ev.MAIN, "turn_id": self.turn, "native": native}


# posts.py: commands become requests, or are impossible.

NO_ROUTE = "the protocol has no request for it"
NO_MEMBER = "the protocol has no member for it"
ABILITIES = {name: Ability(Support.IMPOSSIBLE, NO_ROUTE) for name in cmd.COMMAND_TYPES}
ABILITIES |= {"send_message": Ability(Support.NATIVE), "answer": Ability(Support.NATIVE)}
ABILITIES["create_session"] = Ability(Support.EMULATED, "a chat begins with its first message")
ABILITIES["steer"] = Ability(Support.EMULATED, "queued as the next message")
ABILITIES |= {
    name: Ability(Support.EMULATED, "kept here; what the agent keeps, it keeps")
    for name in ("reset", "archive", "delete", "update_session")
}


def check_fields(command: cmd.AnyCommand) -> None:
    ability, names = ABILITIES[command.TYPE], ["system"]
    if ability.support is Support.IMPOSSIBLE:
        raise NotSupported(f"tiny: `{command.TYPE}` is impossible: {ability.how}")
    if isinstance(command, cmd.SendMessage):
        names += ["client_context", "output_schema", "edit_of", "retry_of"]
    elif isinstance(command, cmd.AnswerInteraction):
        names.append("sealed")
    for name in names:
        if getattr(command, name, None) is not None:
            raise NotSupported(f"tiny: `{name}` is impossible: {NO_MEMBER}")
    for block in getattr(command, "content", None) or ():
        if not isinstance(block, ev.Text):
            raise NotSupported(f"tiny: a `{block.type}` block is impossible: {NO_MEMBER}")


def post(path: str, command_id: str, *, stream: bool = False, **members: str) -> Call:
    headers = CIMultiDict({"Content-Type": "application/json"})
    request = Request("POST", path, headers=headers, body=format_json(members))
    return Call(path[1:], request, stream=stream, command_id=command_id)


def reply_of(
    command: cmd.AnswerInteraction, kind: ev.InteractionKind
) -> tuple[str, ev.InteractionOutcome]:
    if kind == "approval":
        # Without the `reason` of a denial: `MAPPING.md` calls that dropped.
        return ("yes", "approved") if command.decision == "allow" else ("no", "denied")
    if command.skip:
        return DECLINED, "skipped"
    words = ev.text_of(command.content) if command.text is None else command.text
    return ", ".join(command.option_ids) or words, "answered"


def refusal(response: Response) -> ev.ErrorInfo:
    if response.status == 401:
        return raw.credential_refused(response)
    match raw.json_of(response):
        case {"error": str(code), "message": str(words)}:
            return raw.refused(response, code, words)
        case _:
            return raw.quoted(response)


# frames.py: lines become events.

Line = dict[str, Any]


def said(s: TinyClientState, line: Line) -> list[ev.Event]:
    mine, out = s.ledger.message, list[ev.Event]()
    if mine is not None and ev.text_of(mine.content) != line["text"]:
        mine = None  # Somebody else has said it.
    if mine is not None:
        s.doubts.forget(mine.command_id)
        out += s.ledger.settle(mine.command_id, "taken")
    if s.turn is None:
        s.turns += 1
        s.turn = f"turn-{s.turns}"
        out.append(ev.TurnStarted(cause="message", **s.of_turn))
    if mine is not None:
        return out + s.ledger.receive(
            mine.command_id, s.turn, native=s.of_turn["native"], synthetic=False
        )
    content = (ev.Text(text=line["text"]),)
    name = f"line-{line['n']}"
    return [*out, ev.MessageReceived(message_id=name, content=content, **s.of_turn)]


def text(s: TinyClientState, line: Line) -> list[ev.Event]:
    s.blocks += not s.writing
    s.writing = True
    name = f"b{s.blocks}"
    return [raw.delta_of(ev.TextDelta, line["text"], block_id=name, message_id=name, **s.of_turn)]


def end_text(s: TinyClientState) -> list[ev.Event]:
    writing, s.writing = s.writing, False
    return [raw.BlockEnded(block="text", **s.of_turn)] if writing else []


def tool(s: TinyClientState, line: Line) -> list[ev.Event]:
    s.calls.append(line["call"])
    called = ev.ToolCalled(
        call_id=line["call"], name=line["name"], input=line.get("input"), **s.of_turn
    )
    return [*end_text(s), called]


def result(s: TinyClientState, line: Line) -> list[ev.Event]:
    call, failed = line["call"], line["failed"]
    s.calls = [one for one in s.calls if one != call]
    s.held.decide(call, "allow")  # Nobody was asked.
    error = ev.ErrorInfo(code="tool_failed", message="The tool failed.") if failed else None
    returned = ev.ToolReturned(
        call_id=call,
        output=line.get("output"),
        is_error=failed,
        error=error,
        status="failed" if failed else "completed",
        **s.of_turn,
    )
    return [*end_text(s), returned]


def ask(s: TinyClientState, line: Line) -> list[ev.Event]:
    known = line["kind"] in ("approval", "question")
    kind: ev.InteractionKind = line["kind"] if known else "unknown"
    call = s.calls[-1] if kind == "approval" and s.calls else None
    if call is not None:
        s.held.decide(call, "ask")
    s.asks.ask(line["ask"], PendingInteraction(kind, call_id=call))
    labels = [label for label in line["options"] if isinstance(label, str)]
    request = ev.InteractionRequested(
        request_id=line["ask"],
        kind=kind,
        prompt=line["text"],
        options=tuple(ev.Option(id=label, label=label) for label in labels) or None,
        freeform=kind == "question",
        answerable=known,
        call_id=call,
        **s.of_turn,
    )
    return [*end_text(s), request, ev.TurnPaused(on="input", **s.of_turn)]


def answered(s: TinyClientState, line: Line) -> list[ev.Event]:
    told = line["outcome"] in get_args(ev.InteractionOutcome)
    outcome = {"outcome": line["outcome"]} if told else {}
    found = s.asks.resolve(line["ask"], s.turn, native=s.of_turn["native"], **outcome)
    if found is None:
        return []
    out: list[ev.Event] = []
    if found.given is not None and (command_id := found.given.command_id) is not None:
        s.doubts.forget(command_id)
        out += s.ledger.settle(command_id, "taken")
    going_on = [] if s.asks.open else [ev.TurnResumed(**s.of_turn)]
    return [*out, found.event, *going_on]


def over(s: TinyClientState, line: Line) -> list[ev.Event]:
    known = line["outcome"] in get_args(ev.TurnEnded.model_fields["outcome"].annotation)
    return end_turn(s, line["outcome"] if known else "failed")


def end_turn(s: TinyClientState, outcome: Any, error: ev.ErrorInfo | None = None) -> list[ev.Event]:
    if s.turn is None:
        return []
    if outcome == "failed" and error is None:
        error = ev.ErrorInfo(code="agent_failed", message="The agent says that the turn failed.")
    out = s.held.let_go()
    if outcome == "completed":
        out += end_text(s)
    out.append(ev.TurnEnded(outcome=outcome, error=error, **s.of_turn))
    s.turn, s.writing, s.calls = None, False, []
    s.asks.clear()
    return out


Handler = Callable[[TinyClientState, Line], list[ev.Event]]
HANDLERS: Mapping[str, tuple[Handler, Mapping[str, type]]] = {
    "said": (said, {"text": str}),
    "text": (text, {"text": str}),
    "tool": (tool, {"call": str, "name": str}),
    "result": (result, {"call": str, "failed": bool}),
    "ask": (ask, {"ask": str, "kind": str, "text": str, "options": list}),
    "answered": (answered, {"ask": str, "outcome": str}),
    "value": (lambda s, line: [ev.ResultProduced(value=line.get("value"), **s.of_turn)], {}),
    "over": (over, {"outcome": str}),
}
"""What takes each type of line, and the members that it must have."""


# codec.py: hears what the session reports, asks the functions, and keeps the time.


class TinyClient(ClientCodec):
    """The client codec. `settings`: `task_id` is the name of the chat."""

    dialect = "tiny"
    framing: Literal["sse", "ndjson"] = "ndjson"
    abilities = ABILITIES
    history = Ability(Support.EMULATED, "as text before the next message")
    records = (
        TinyClientState,
        InputLedger,
        SentInput,
        SilenceTimers,
        InteractionLedger,
        PendingInteraction,
        InteractionAnswer,
        HeldToolCalls,
    )
    filled = (TinyClientState,)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._chat: str = settings["task_id"]
        self._s = TinyClientState()
        self._kept = CodecCheckpoint(TinyClient, "the state of a Tiny chat")
        # The body that is read, and since when: of a connection, so it is not stored.
        self._body: Call | None = None
        self._opened_at: int | None = None

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        check_fields(command)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        s, self._kept.touched = self._s, True
        match command:
            case cmd.SendMessage():
                s.ledger.expect(SentInput(command_id, "message", command.content))
                said = ev.text_of(command.content)
                return post("/say", command_id, stream=True, chat=self._chat, text=said)
            case cmd.AnswerInteraction(request_id=asked) if asked in s.asks.open:
                kind = s.asks.open[asked].kind
                s.ledger.expect(SentInput(command_id, "answer"))
                words, outcome = reply_of(command, kind)
                s.asks.give(asked, InteractionAnswer(command_id, outcome, answer_of(command)))
                return post("/answer", command_id, chat=self._chat, ask=asked, text=words)
            case _:
                raise NotSupported(f"tiny: nothing is open that `{command.TYPE}` could reach")

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        # `submit` was stored with the row that says `sent`. The chat's lines tell the rest.
        if command_id in self._s.ledger.open:
            self._doubt(command_id, None)
        return None

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        self._kept.touched = True
        out: list[ev.Event] = []
        for command_id in command_ids:
            out += self._forget(command_id)
        return out

    def _doubt(self, command_id: str, now: int | None) -> None:
        self._kept.touched = True
        self._s.doubts.doubt(command_id, now if self._body is not None else None)
        self._set_alarm()

    def _forget(self, command_id: str) -> list[ev.Event]:
        self._s.ledger.drop(command_id)
        self._s.doubts.forget(command_id)
        return self._s.asks.release(command_id, self._s.turn)

    def _settle(
        self, command_id: str, outcome: Literal["refused", "unknown"], error: ev.ErrorInfo
    ) -> list[ev.Event]:
        """Settle what is not taken, and let what it answered be answered again."""
        settled = self._s.ledger.settle(command_id, outcome, error)
        return [*settled, *self._forget(command_id)] if settled else []

    def _unseen(self, command_ids: Collection[str]) -> list[ev.Event]:
        error = ev.ErrorInfo(code="unseen", message="The chat does not show that it arrived.")
        out: list[ev.Event] = []
        for command_id in command_ids:
            out += self._settle(command_id, "unknown", error)
        return out

    # Streams, and what came of calls.

    def streams(self) -> tuple[Call, ...]:
        s, said = self._s, self._s.ledger.message
        # While only a person can go on, nothing is missed.
        waits = bool(s.asks.open) and all(one.given is None for one in s.asks.open.values())
        owed = said is not None and said.taken
        if self._body is not None or not (s.doubts.open or owed or (s.turn and not waits)):
            return ()
        query = MultiDict({"after": str(s.lines - 1)})
        path = f"/chats/{quote(self._chat, safe='')}"
        return (Call("read", Request("GET", path, query=query), stream=True),)

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        self._body, self._opened_at = call, now
        self._s.doubts.listen(now)
        self._set_alarm()
        return [] if call.command_id is None else self._s.ledger.settle(call.command_id, "taken")

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if call.command_id is None or call.command_id not in self._s.ledger.open:
            return []  # The proxy reads again; or the lines were faster.
        if response.status < 300:
            return self._s.ledger.settle(call.command_id, "taken")
        if response.status >= 500:
            self._doubt(call.command_id, now)
            return []
        return self._settle(call.command_id, "refused", refusal(response))

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if call.command_id is None or call.command_id not in self._s.ledger.open:
            return []
        if sent:
            self._doubt(call.command_id, now)
            return []
        return self._settle(call.command_id, "refused", raw.error_info(error))

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if call is not self._body:
            return []
        self._body, self._opened_at = None, None
        # What a whole body does not show has not arrived; a turn without `over` is read on.
        whole = reason is CloseReason.ENDED
        out = self._unseen(list(self._s.doubts.open)) if whole else []
        self._set_alarm()
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._kept.touched = True
        info = raw.error_info(error, SESSION_LOST)
        out = end_turn(self._s, "failed", info) + self._s.ledger.lost(info)
        self._s.doubts.clear()
        self._set_alarm()
        return out

    # Frames and time.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, bytes)
        s, self._kept.touched = self._s, True
        try:
            line: Any = parse_json(frame)
        except JsonError:
            line = None
        number = line.get("n") if isinstance(line, dict) else None
        if type(number) is not int or number < 0:
            return self.garbage(call, frame, "a line has no number", now)
        if number < s.lines:
            return []  # Read before.
        out: list[ev.Event] = []
        if number > s.lines:
            out.append(ev.Gap(thread_id=ev.MAIN, turn_id=s.turn, reason="lines are missing"))
        s.lines = number + 1
        handler, members = HANDLERS.get(str(line.get("type")), (None, {}))
        if handler is None:
            name = str(line.get("type"))
            return [*out, ev.Native(dialect="tiny", name=name, frame=line, **s.of_turn)]
        if not all(isinstance(line.get(name), kind) for name, kind in members.items()):
            return out + self.garbage(call, frame, "a line lacks a member", now)
        if s.turn is None and handler is not said:
            return out  # Behind the end that `give_up` made.
        out += s.held.keep(handler(s, line), now)
        self._set_alarm()
        return out

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        return [raw.garbled("tiny", reason, offending, turn_id=self._s.turn)]

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = self._s.held.tick(now) + self._unseen(self._s.doubts.unseen(now, self._opened_at))
        self._set_alarm()
        return out

    def _set_alarm(self) -> None:
        self.wake_at = soonest(self._s.held.due, self._s.doubts.due_since(self._opened_at))

    # What is stored.

    @property
    def frames(self) -> int:
        return self._s.lines

    @property
    def position(self) -> bytes:
        return self._kept.position(b"%d" % self._s.lines, self._dump)

    def snapshot(self) -> bytes:
        return self._kept.snapshot(b"%d" % self._s.lines, self._dump())

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._dump)

    def _dump(self) -> bytes:
        return adapter_of(TinyClientState).dump_json(self._s)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        if stored := newest(*self._kept.restore(snapshot, position)):
            lines, state = stored
            self._s = fill(TinyClientState, state)
            self._s.lines = lines
        self._body, self._opened_at = None, None
        self._set_alarm()


# adapters/registry.py: the same line, with both halves.

TINY = dataclasses.replace(tiny.TINY, client=TinyClient, only=None)
