"""What one log means, apart from how it came: the half of a comparison that reads.

Deltas are joined, and ids are marked as what they are. What belongs to a tool call is one strand,
because calls of one step come and return in any order. A log becomes, for each of its threads, a
list of items and of groups of such calls.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from adapters.model import events as ev
from adapters.model.ignored_fields import BLOCKS, SKIPPED, IgnoredFields

_TIMES = frozenset({"archived_at", "expires_at"})
"""Moments: that there is one counts."""

_KINDS = {
    "turn_id": "turn",
    "message_id": "message",
    "block_id": "block",
    "call_id": "call",
    "request_id": "interaction",
    "command_id": "command",
    "thread_id": "thread",
    "parent": "thread",
    "shown_on": "thread",
    "sender": "thread",
    "recipient": "thread",
    "predecessor": "session",
    "replaced_by": "session",
    "outcome_id": "outcome",
    "task_id": "task",
    "native_id": "native",
    "path": "path",
    "cursor_from": "cursor",
    "cursor_to": "cursor",
}
"""Fields that are ids, and of what."""

_SPOKEN = frozenset(
    {"turn", "message", "block", "call", "interaction", "command", "thread", "session"}
)
"""Kinds whose ids an agent may repeat in what its tools get and give."""

_REQUESTS: dict[str, type[ev.Event]] = {"details": ev.InputAccepted, "options": ev.SessionStarted}
"""Fields whose member `request` names the HTTP request that said it, which is how it came."""

_FREE = frozenset({"input", "output", "value"})
"""Fields of any value: a text there may be an id."""


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedId:
    """An id, and what it may be one of. `field` says that it stands in a field for ids, and not in
    what an agent says."""

    kinds: tuple[str, ...]
    raw: str
    field: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class IdSet:
    """Ids whose order says nothing."""

    kind: str
    raws: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class EventPlace:
    """Where something stands: `turn` and `step` count from 1, `event` is its `seq`."""

    thread: str
    turn: int
    step: int
    event: int

    def __str__(self) -> str:
        parts = [] if self.thread == ev.MAIN else [self.thread]
        parts += [f"turn {self.turn}"] if self.turn else []
        parts += [f"step {self.step}"] if self.step else []
        return ", ".join([*parts, f"event {self.event}"])


@dataclasses.dataclass(slots=True)
class ComparedEvent:
    """An event as it is compared. `index` is its position in the log, `streamed` the text of the
    deltas of a block that is whole."""

    index: int
    type: str
    place: EventPlace
    tree: dict[str, Any]
    streamed: str | None = None

    @property
    def first(self) -> ComparedEvent:
        """The item itself: see `StepCalls`."""
        return self

    @property
    def key(self) -> str:
        """What it says, whatever the ids are."""
        return f"{self.type} {blind(self.tree)}"


@dataclasses.dataclass(slots=True)
class ComparedCall:
    """A tool call and all that belongs to it, in order."""

    items: list[ComparedEvent] = dataclasses.field(default_factory=list)

    @property
    def tool(self) -> str:
        """The tool that is called."""
        return blind(self._called("name"))

    @property
    def asked(self) -> str:
        """The tool and its input."""
        return f"{self.tool} {blind(self._called('input'))}"

    @property
    def open(self) -> bool:
        """Whether its result is still to come."""
        return all(item.type != ev.ToolReturned.TYPE for item in self.items)

    @property
    def key(self) -> str:
        """All that is said of it, whatever the ids are."""
        return "\n".join(item.key for item in self.items)

    def _called(self, name: str) -> Any:
        for item in self.items:
            if item.type == ev.ToolCalled.TYPE:
                return item.tree.get(name)
        return None


@dataclasses.dataclass(slots=True)
class StepCalls:
    """The calls of one step. Without steps: calls that overlap in time."""

    step: tuple[int, int]
    calls: list[ComparedCall] = dataclasses.field(default_factory=list)
    type: str = "calls"

    @property
    def first(self) -> ComparedEvent:
        """Its first item."""
        return self.calls[0].items[0]

    @property
    def key(self) -> str:
        """What is said of all of them, in whichever order."""
        return "\0".join(sorted(call.key for call in self.calls))


def blind(node: Any) -> str:
    """Return a tree as text without its ids."""
    return json.dumps(node, sort_keys=True, default=_kind_of)


def _kind_of(node: Any) -> str:
    if isinstance(node, IdSet):
        return f"<{node.kind} {len(node.raws)}>"
    return f"<{'|'.join(node.kinds)}>"


@dataclasses.dataclass(slots=True)
class _Pause:
    """A pause for answers: what it `named`, what of that is `missing`, its end, and a later pause
    for what was left, which says nothing of its own."""

    named: frozenset[str]
    missing: frozenset[str]
    resumed: ComparedEvent | None = None
    left: tuple[ev.Event, ComparedEvent] | None = None


class LogMeaning:
    """What a log means.

    `threads` has what happened in each, `calls` every call by its id, `names` for every id the one
    that it is shown by: its kind and a number in order of appearance.
    """

    def __init__(self, entries: Sequence[ev.Entry], ignored: IgnoredFields) -> None:
        self.threads: dict[str, list[ComparedEvent | StepCalls]] = {}
        self.calls: dict[str, ComparedCall] = {}
        self.names: dict[tuple[str, str], str] = {}
        self.items: list[ComparedEvent] = []
        self.session = entries[0].session_id if entries else ""
        self._ignored = ignored
        self._known: dict[str, tuple[str, ...]] = {}
        self._turns: dict[str, tuple[int, int]] = {}
        self._call_of: dict[str, str] = {}
        self._texts: dict[tuple[str, ...], tuple[list[str], ComparedEvent, ev.Event]] = {}
        self._counts: dict[str, int] = {}
        self._pauses: dict[str, _Pause] = {}
        self._answers: dict[str, str] = {}
        if entries:
            self._name("session", self.session)
        for entry in entries:
            for kind, raw in _ids_of(entry.event):
                self._name(kind, raw)
        for index, entry in enumerate(entries):
            self._take(index, entry)
        self._finish()

    def _name(self, kind: str, raw: str) -> None:
        if (kind, raw) in self.names:
            return
        if raw == ev.MAIN and kind == "thread":
            self.names[kind, raw] = raw
            return
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        self.names[kind, raw] = f"{kind}-{number}"
        if kind in _SPOKEN and raw:
            self._known[raw] = (*self._known.get(raw, ()), kind)

    def _take(self, index: int, entry: ev.Entry) -> None:
        event = entry.event
        turn, step = self._turns.get(event.thread_id, (0, 0))
        match event:
            case ev.TurnStarted():
                turn, step = turn + 1, 0
            case ev.StepStarted():
                step += 1
        self._turns[event.thread_id] = turn, step
        if isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.ToolInputDelta):
            self._keep(index, entry, event)
            return
        if self._ignored.is_event(event.TYPE):
            return
        item = self._item(index, entry)
        if isinstance(event, ev.TextCompleted | ev.ReasoningCompleted):
            texts = self._texts.pop(_block(event), None)
            item.streamed = None if texts is None else "".join(texts[0])
        if not self._is_pause_for_the_rest(event, item):
            self._add(event, item)

    def _is_pause_for_the_rest(self, event: ev.Event, item: ComparedEvent) -> bool:
        """Say whether an event is a pause for what is left of the one before: in which order the
        answers came says nothing."""
        pause = self._pauses.get(event.thread_id)
        match event:
            case ev.InteractionResolved():
                for one in self._pauses.values():
                    one.missing -= {event.request_id}
            case ev.TurnStarted() | ev.TurnEnded():
                self._pauses.pop(event.thread_id, None)
            case ev.TurnResumed() if pause is not None:
                pause.resumed, pause.left = item, None
            case ev.TurnPaused():
                named = frozenset(event.request_ids)
                if (
                    pause is None
                    or event.on != "input"
                    or not named
                    or named != pause.missing
                    or named == pause.named
                ):
                    self._pauses[event.thread_id] = _Pause(named, named)
                    return False
                if pause.resumed is not None:
                    self._drop(event.thread_id, pause.resumed)
                pause.named, pause.resumed, pause.left = named, None, (event, item)
                return True
        return False

    def _drop(self, thread: str, item: ComparedEvent) -> None:
        self.items = [one for one in self.items if one is not item]
        self.threads[thread] = [one for one in self.threads[thread] if one is not item]

    def _keep(
        self,
        index: int,
        entry: ev.Entry,
        event: ev.TextDelta | ev.ReasoningDelta | ev.ToolInputDelta,
    ) -> None:
        """Take a delta: how a text was cut says nothing."""
        if not event.text:
            return
        of_tool = isinstance(event, ev.ToolInputDelta)
        key = (event.TYPE, event.call_id) if isinstance(event, ev.ToolInputDelta) else _block(event)
        if key not in self._texts:
            self._texts[key] = [], self._item(index, entry), event
            if of_tool and not self._ignored.is_event(event.TYPE):
                # It stands in its call, which may come later.
                self._add(event, self._texts[key][1])
        self._texts[key][0].append(event.text)

    def _item(self, index: int, entry: ev.Entry) -> ComparedEvent:
        event = entry.event
        turn, step = self._turns[event.thread_id]
        thread = self.names["thread", event.thread_id]
        tree = self._tree(event, (event.TYPE,))
        return ComparedEvent(index, event.TYPE, EventPlace(thread, turn, step, entry.seq), tree)

    def _add(self, event: ev.Event, item: ComparedEvent) -> None:
        self.items.append(item)
        line = self.threads.setdefault(event.thread_id, [])
        call_id = self._strand(event)
        if call_id is None:
            line.append(item)
            return
        call = self.calls.get(call_id)
        if call is None:
            call = self.calls[call_id] = ComparedCall()
            self._group(line, (item.place.turn, item.place.step)).calls.append(call)
        if item.type == ev.ToolProgressed.TYPE:
            # The last one counts.
            call.items = [other for other in call.items if other.type != item.type]
        call.items.append(item)

    def _strand(self, event: ev.Event) -> str | None:
        """Return the call that an event belongs to."""
        if isinstance(event, ev.ThreadStarted):
            return None
        call_id: str | None = getattr(event, "call_id", None)
        request_id: str | None = getattr(event, "request_id", None)
        if isinstance(event, ev.InputSettled):
            return self._answers.get(event.command_id)
        if request_id is not None and call_id is not None:
            self._call_of[request_id] = call_id
        elif request_id is not None:
            call_id = self._call_of.get(request_id)
        if isinstance(event, ev.InputAccepted) and call_id is not None:
            self._answers[event.command_id] = call_id
        if call_id in self.calls or event.TYPE.startswith("tool."):
            return call_id
        return None

    def _group(self, line: list[ComparedEvent | StepCalls], step: tuple[int, int]) -> StepCalls:
        """Return the group that a new call belongs to."""
        for unit in reversed(line):
            if not isinstance(unit, StepCalls) or unit.step != step:
                continue
            if step[1] or any(call.open for call in unit.calls):
                return unit
            break
        line.append(group := StepCalls(step))
        return group

    def _finish(self) -> None:
        """Place what was kept: inputs in their calls, blocks that were never whole, and what is
        waited for in the end."""
        for pause in self._pauses.values():
            if pause.left is not None:
                self._add(*pause.left)
        for texts, item, event in self._texts.values():
            if "text" in item.tree:
                item.tree["text"] = "".join(texts)
            if isinstance(event, ev.ToolInputDelta) or self._ignored.is_event(item.type):
                continue
            self.items.append(item)
            line = self.threads.setdefault(event.thread_id, [])
            after = (n for n, unit in enumerate(line) if unit.first.index > item.index)
            line.insert(next(after, len(line)), item)
        self.items.sort(key=lambda item: item.index)

    # Events as trees.

    def _tree(self, model: ev.Model, path: tuple[str, ...]) -> dict[str, Any]:
        tree = {}
        for name in type(model).model_fields:
            if name in SKIPPED or (name == "type" and isinstance(model, ev.Event)):
                continue
            where = (*path, name)
            if not self._ignored.covers(where):
                tree[name] = self._field(model, name, getattr(model, name), where)
        return tree

    def _field(self, model: ev.Model, name: str, value: Any, path: tuple[str, ...]) -> Any:
        if value is None:
            return None
        if name in _TIMES:
            return "(a time)"
        if name in _REQUESTS and isinstance(model, _REQUESTS[name]) and "request" in value:
            # As None where it has nothing else.
            value = {key: member for key, member in value.items() if key != "request"} or None
        if name == "request_ids":
            return IdSet("interaction", frozenset(value))
        if (kind := _kind(model, name)) is not None:
            self._name(kind, value)
            return ComparedId((kind,), value, field=True)
        free = name in _FREE or (name == "text" and isinstance(model, ev.Text))
        return self._node(value, path) if free or not isinstance(value, str) else value

    def _node(self, value: Any, path: tuple[str, ...]) -> Any:
        """Return any value; a text in it that is an id of this log is marked as one."""
        if isinstance(value, ev.Model):
            return self._tree(value, path)
        if isinstance(value, dict):
            return {
                name: self._node(member, (*path, name))
                for name, member in value.items()
                if not self._ignored.covers((*path, name))
            }
        if isinstance(value, list | tuple):
            places = ((one, (*path, str(number))) for number, one in enumerate(value))
            return [
                None if self._ignored.covers(place) else self._node(one, place)
                for one, place in places
            ]
        if isinstance(value, str) and value in self._known:
            return ComparedId(self._known[value], value)
        return value


def _kind(model: ev.Model, name: str) -> str | None:
    if isinstance(model, ev.FileId) and name == "id":
        return "file"
    return _KINDS.get(name) if isinstance(model, ev.Event) else None


def _ids_of(event: ev.Event) -> Iterator[tuple[str, str]]:
    for name, kind in _id_fields(type(event)):
        if (value := getattr(event, name)) is not None:
            yield kind, value
    if isinstance(event, ev.TurnPaused):
        for one in event.request_ids:
            yield "interaction", one


@functools.cache
def _id_fields(cls: type[ev.Event]) -> list[tuple[str, str]]:
    return [(name, _KINDS[name]) for name in cls.model_fields if name in _KINDS]


def _block(event: Any) -> tuple[str, ...]:
    """Return what names a block: its deltas and its whole have it in common."""
    whole = BLOCKS.get(event.TYPE, event.TYPE)
    return (whole, event.thread_id, event.turn_id or "", event.message_id, event.block_id)
