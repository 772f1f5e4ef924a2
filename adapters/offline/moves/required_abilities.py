"""What a session used of its backend, counted from its log, and whether another backend can do the
same.

`RequiredAbilities` folds a log. `judge` asks the client codec of the other backend, with a command
that has no more than the field in question, and for what only an agent does the tables of its
`MAPPING.md`: a new dialect brings both.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from adapters.contract.mapping import CommandMapping, Mapping
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import ClientCodec, Support
from adapters.wire.errors import NotSupported

Area = Literal["command", "interaction", "agent"]


_DIGEST = "0" * 64


class UsedAbility(NamedTuple):
    """One thing that was used: a command, or a field or file of it after a dot; a kind of request;
    what the agent gave."""

    area: Area
    name: str


class Verdict(enum.StrEnum):
    """What becomes of a use on another backend."""

    IMPOSSIBLE = "impossible"
    DIFFERS = "differs"
    WORKS = "works"


class AbilityJudgement(NamedTuple):
    """A verdict and what follows from it, in a sentence; none where all stays as it is."""

    verdict: Verdict
    consequence: str = ""


# What was used.

_KINDS: dict[str, str] = {
    "message": cmd.SendMessage.TYPE,
    "steer": cmd.Steer.TYPE,
    "interrupt": cmd.Interrupt.TYPE,
    "answer": cmd.AnswerInteraction.TYPE,
    "outcome": cmd.DefineOutcome.TYPE,
}
"""The command of an input that names none: somebody sent it to the backend directly."""

_CHILD = {"thread_id": "-"}
_SYSTEM = {"system": (ev.Text(text="-"),)}

WITNESSES: dict[str, dict[str, dict[str, Any]]] = {
    cmd.CreateSession.TYPE: {
        "agent": {"agent": "-"},
        "environment_id": {"environment_id": "-"},
        "user_id": {"user_id": "-"},
    },
    cmd.SendMessage.TYPE: {
        "client_context": {"client_context": {"-": "-"}},
        "output_schema": {"output_schema": {"type": "object"}},
        "edit_of": {"edit_of": "-"},
        "retry_of": {"retry_of": "-"},
        "system": _SYSTEM,
        "thread_id": _CHILD,
    },
    cmd.Steer.TYPE: {"thread_id": _CHILD},
    cmd.Interrupt.TYPE: {"note": {"note": "-"}, "thread_id": _CHILD},
    cmd.AnswerInteraction.TYPE: {
        "scope session": {"decision": "allow", "scope": "session"},
        "scope always": {"decision": "allow", "scope": "always"},
        "option_ids": {"option_ids": ("-", "--")},
        "reason": {"decision": "deny", "reason": "-"},
        "skip": {"skip": True},
        "system": {"text": "-", **_SYSTEM},
    },
    cmd.ToolResult.TYPE: {"system": _SYSTEM},
    cmd.Reset.TYPE: {"reason": {"reason": "-"}},
    cmd.DefineOutcome.TYPE: {
        "rubric": {"rubric": {"type": "text", "content": "-"}},
        "max_iterations": {"max_iterations": 1},
    },
    cmd.UpdateSession.TYPE: {
        "title": {"title": "-"},
        "metadata": {"metadata": {"-": "-"}},
        "agent": {"agent": {"-": "-"}},
    },
}
"""The fields that a backend may lack, by command, each with the least that has it. A value that
makes a difference stands after its field."""

_LEAST: dict[str, dict[str, Any]] = {
    cmd.SendMessage.TYPE: {"content": (ev.Text(text="-"),), "policy": "queue"},
    cmd.Steer.TYPE: {"text": "-"},
    cmd.AnswerInteraction.TYPE: {"request_id": "-"},
    cmd.ToolResult.TYPE: {"call_id": "-"},
    cmd.DefineOutcome.TYPE: {"description": "-"},
}
"""What a command cannot be without."""

_WITH_CONTENT = (cmd.SendMessage.TYPE, cmd.AnswerInteraction.TYPE, cmd.ToolResult.TYPE)

_AGENT: dict[str, tuple[str, ...]] = {
    "child agents": ("thread.started",),
    "structured results": ("result.produced",),
    "reasoning": ("reasoning.delta", "reasoning.completed"),
    "files": ("text.completed.content", "tool.returned.content"),
}
"""What agents give, and the canonical names that a dialect has one of if its agents can."""


@dataclass(slots=True, eq=False)
class RequiredAbilities:
    """Folds the log of one session into what it used, and whether it rests."""

    uses: Counter[UsedAbility] = field(default_factory=Counter)
    said: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often which face sent which command."""
    bytes: int = 0
    """Bytes of the words of the conversation, which another agent would have to be told."""
    ended: bool = False
    _turns: set[str | None] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _inputs: dict[str, tuple[tuple[str, str] | None, list[UsedAbility]]] = field(
        default_factory=dict
    )

    @property
    def held(self) -> list[str]:
        """Return why the session cannot be moved now; nothing if it can."""
        if self.ended:
            return ["ended"]
        found = {
            "at work": self._turns,
            "waits for an answer": self._asked,
            "input on its way": self._inputs,
        }
        return [why for why, open_ in found.items() if open_]

    def apply(self, event: ev.Event) -> None:
        """Take the next event."""
        match event:
            case ev.InputAccepted():
                self._accepted(event)
            case ev.InputSettled():
                self._settled(event)
            case ev.InteractionRequested():
                self._asked.add(event.request_id)
                self.uses[UsedAbility("interaction", event.kind)] += 1
                if event.kind == "question" and event.options:
                    self.uses[UsedAbility("interaction", "question with options")] += 1
            case ev.InteractionResolved():
                self._asked.discard(event.request_id)
            case ev.TurnStarted(thread_id=ev.MAIN):
                self._turns.add(event.turn_id)
            case ev.TurnEnded(thread_id=ev.MAIN):
                self._turns.discard(event.turn_id)
            case ev.SessionEnded():
                self.ended = True
            case ev.MessageReceived(thread_id=ev.MAIN):
                self.bytes += _size(event.content)
                if event.command_id is None:
                    # Somebody said it to the backend directly.
                    name = cmd.SendMessage.TYPE
                    names = (name, *_words(name, event.content, ours=False))
                    self.uses.update(UsedAbility("command", one) for one in names)
            case _:
                self._given(event)

    def _given(self, event: ev.Event) -> None:
        """Take what the agent gives."""
        match event:
            case ev.TextCompleted():
                if event.thread_id == ev.MAIN and event.status != "discarded":
                    self.bytes += len(event.text.encode("utf-8", "surrogatepass"))
                self._blocks(event.content)
            case ev.ToolReturned():
                self._blocks(event.content)
            case ev.ThreadStarted():
                self.uses[UsedAbility("agent", "child agents")] += 1
            case ev.ResultProduced():
                self.uses[UsedAbility("agent", "structured results")] += 1
            case ev.ReasoningCompleted():
                self.uses[UsedAbility("agent", "reasoning")] += 1

    def _blocks(self, content: Iterable[Any] | None) -> None:
        files = sum(not isinstance(block, ev.Text) for block in content or ())
        if files:
            self.uses[UsedAbility("agent", "files")] += files

    def _accepted(self, event: ev.InputAccepted) -> None:
        name = event.name or _KINDS.get(event.kind)
        if name is None:
            return
        uses = [UsedAbility("command", one) for one in _names(name, event)]
        sent = None if event.face is None else (event.face, name)
        self._inputs[event.command_id] = sent, uses
        self.uses.update(uses)
        if sent is not None:
            self.said[sent] += 1

    def _settled(self, event: ev.InputSettled) -> None:
        _, uses = self._inputs.pop(event.command_id, (None, []))
        if event.outcome == "refused":
            # This backend could not do it either.
            self.uses.subtract(uses)
            self.uses += Counter()


def _size(content: Iterable[Any]) -> int:
    words = (block.text for block in content if isinstance(block, ev.Text))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in words)


def _names(command: str, event: ev.InputAccepted) -> Iterator[str]:
    """Yield what a command used: itself, its fields, its files."""
    yield command
    details = event.details or {}
    for part in WITNESSES.get(command, {}):
        field, _, value = part.partition(" ")
        if field == "thread_id":
            used = event.thread_id != ev.MAIN
        elif field == "option_ids":
            used = len(details.get(field) or ()) > 1
        elif value:
            used = details.get(field) == value
        else:
            used = details.get(field) is not None
        if used:
            yield f"{command}.{part}"
    if command in _WITH_CONTENT:
        yield from _words(command, event.content, ours=event.by != "backend")


def _words(command: str, content: Iterable[Any] | None, *, ours: bool) -> Iterator[str]:
    for block in content or ():
        if not isinstance(block, ev.Text):
            yield f"{command}.{_word(block, ours=ours)}"


def _word(block: Any, *, ours: bool) -> str:
    """Return the name of a block; `ours` says that a frontend of ours sent it."""
    match block:
        case ev.File(ref=ev.FileId(dialect=dialect)) if ours:
            return f"file_id of {dialect}"
        case ev.File(media_type=kind):
            kind = (kind or "").partition(";")[0].strip().lower()
            # A frontend writes it, so it may be of any length.
            return f"file {kind[:80] or 'of no media type'}"
        case ev.Other(dialect=dialect):
            return f"other of {dialect}"
    return str(block.type)


# What another backend makes of it.


def witness(name: str) -> cmd.AnyCommand:
    """Return a command that has what a use names, and no more."""
    command, _, part = name.partition(".")
    fields = dict(_LEAST.get(command, {}))
    known = WITNESSES.get(command, {}).get(part)
    if known is not None:
        fields |= known
    elif part:
        fields["content"] = (*fields.get("content", ()), _block(part))
    return cmd.decode_command({"type": command, **fields})


def _block(word: str) -> Any:
    match word.split(" ", 2):
        case ["file_id", "of", dialect]:
            return ev.File(ref=ev.FileId(dialect=dialect, id="-"))
        case ["other", "of", dialect]:
            return ev.Other(dialect=dialect, value={})
        case ["redacted"]:
            return ev.Redacted()
        case ["search_result"]:
            return ev.SearchResult(source="-", title="-")
    kind = word.removeprefix("file ")
    media_type = kind if "/" in kind else None
    return ev.File(media_type=media_type, ref=ev.Blob(sha256=_DIGEST), size=1)


def judge(use: UsedAbility, codec: ClientCodec, mapping: Mapping) -> AbilityJudgement:
    """Return what a backend makes of a use: `codec` is a fresh one of it, `mapping` the tables of
    its dialect."""
    by_area: dict[Area, Callable[[str, ClientCodec, Mapping], AbilityJudgement]] = {
        "command": _judge_command,
        "interaction": _judge_interaction,
        "agent": _judge_agent,
    }
    return by_area[use.area](use.name, codec, mapping)


def said_of_whole(use: UsedAbility, codec: ClientCodec) -> bool:
    """Say whether a use is a part of a command that is impossible as a whole, which says it all."""
    command, _, part = use.name.partition(".")
    if use.area != "command" or not part:
        return False
    return codec.abilities[command].support is Support.IMPOSSIBLE


def _judge_command(name: str, codec: ClientCodec, mapping: Mapping) -> AbilityJudgement:
    command, _, part = name.partition(".")
    ability = codec.abilities[command]
    if ability.support is Support.IMPOSSIBLE:
        return AbilityJudgement(Verdict.IMPOSSIBLE, f"It is refused: {ability.how}.")
    if not part:
        if ability.support is Support.EMULATED:
            return AbilityJudgement(Verdict.DIFFERS, f"It is done in another way: {ability.how}.")
        return AbilityJudgement(Verdict.WORKS)
    try:
        codec.check(witness(name))
    except NotSupported as error:
        return AbilityJudgement(Verdict.IMPOSSIBLE, f"It is refused: {error.message.rstrip('.')}.")
    has_field = part not in WITNESSES.get(command, {}) or _names_of(
        mapping, f"command:{name.partition(' ')[0]}"
    )
    if has_field or ability.support is Support.EMULATED:
        # What is emulated is said of the command.
        return AbilityJudgement(Verdict.WORKS)
    row = _row_of(name, mapping)
    said = "" if row is None else f": {_said(row)}"
    return AbilityJudgement(Verdict.DIFFERS, f"It has no field of its own there{said}.")


def _row_of(name: str, mapping: Mapping) -> CommandMapping | None:
    """Return the row of the tables that says what becomes of a command's field."""
    command, _, part = name.partition(".")
    if command == cmd.AnswerInteraction.TYPE:
        kind = "approval" if part.startswith(("scope", "reason")) else "question"
        return mapping.command.get(f"{command}:{kind}")
    return mapping.command.get(command)


def _said(row: CommandMapping) -> str:
    return "; ".join(text for text in (row.how, row.why) if text and text != "-")


def _judge_interaction(name: str, codec: ClientCodec, mapping: Mapping) -> AbilityJudgement:
    kind = name.partition(" ")[0]
    row = mapping.command.get(f"{cmd.AnswerInteraction.TYPE}:{kind}")
    if row is None or row.backend == Support.IMPOSSIBLE:
        why = "" if row is None else f": {_said(row)}"
        return AbilityJudgement(
            Verdict.IMPOSSIBLE, f"No agent there asks it in a way that can be answered{why}."
        )
    if row.backend == Support.EMULATED:
        return AbilityJudgement(Verdict.DIFFERS, f"It is answered in another way: {_said(row)}.")
    if " " in name and not _names_of(mapping, "interaction.requested.options"):
        return AbilityJudgement(Verdict.DIFFERS, "It is asked in words: no field has the options.")
    return AbilityJudgement(Verdict.WORKS)


def _judge_agent(name: str, codec: ClientCodec, mapping: Mapping) -> AbilityJudgement:
    if any(_names_of(mapping, canonical) for canonical in _AGENT[name]):
        return AbilityJudgement(Verdict.WORKS)
    if name == "files" and _names_of(mapping, "tool.returned.output"):
        return AbilityJudgement(
            Verdict.DIFFERS,
            "A result there is text or JSON: a file has no place of its own in it.",
        )
    return AbilityJudgement(
        Verdict.IMPOSSIBLE, f"No event of the dialect `{codec.dialect}` tells of it."
    )


def _names_of(mapping: Mapping, canonical: str) -> bool:
    """Say whether something that a backend of the dialect takes or gives means this."""
    events = (row.canonical for row in mapping.events if row.fidelity_in not in ("-", "dropped"))
    routes = (row.canonical for row in mapping.routes if row.driven in ("yes", "passed"))
    return any(canonical in names for some in (events, routes) for names in some)
