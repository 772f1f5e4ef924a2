"""What a conversation says, read from the frames of any dialect: the measure of the proof.

A fact is something that every dialect can show: a word of the agent, a tool call, its result, a
request for a person, the end of a turn. The facts of what a backend emitted and those of what a
client received must be the same, whatever the two dialects are. Nothing here knows the codecs, and
a frame that is not a fact is passed over.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FACTS", "Difference", "Fact", "compare", "engine_event", "previews_shown"]

Fact = tuple[str, ...]
"""Its kind and its values. Words are facts of their own, so the cutting into deltas does not count.

A `preview` is a word of a message that was begun and never written: a reader may have seen it."""

_WORD = re.compile(r"\S+")


class _Story:
    """Collects facts; texts that follow each other are one text until something else comes."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._text = ""
        self._thought = ""
        self._run = {"text": "", "thought": ""}
        self._known: set[str] = set()

    def piece(self, kind: str, text: str) -> None:
        self._run[kind] += text
        self._add(kind, text)

    def whole(self, kind: str, text: str) -> None:
        """Take a text that its pieces have told already, in full or in part, or not at all."""
        run, self._run[kind] = self._run[kind], ""
        if text.startswith(run):
            self._add(kind, text[len(run) :])
        elif not run.startswith(text):
            # Another text than its pieces: shown as what it is, two texts.
            self._add(kind, text)

    def _add(self, kind: str, text: str) -> None:
        if kind == "text":
            self._text += text
        else:
            self._thought += text

    def first(self, id_: str) -> bool:
        """Say whether an id is new."""
        new = id_ not in self._known
        self._known.add(id_)
        return new

    def fact(self, *fact: str) -> None:
        self.flush()
        self.facts.append(fact)

    def call(self, tool: str, given: object) -> None:
        # Dialects name the server of a tool before it, apart from it or not at all.
        self.fact("call", tool.rpartition(".")[2], _json(given))

    def flush(self) -> None:
        """Turn what was said and thought so far into words."""
        self.facts += [("thought", word) for word in _WORD.findall(self._thought)]
        self.facts += [("text", word) for word in _WORD.findall(self._text)]
        self._text = self._thought = ""

    def previews(self, text: str) -> None:
        self.flush()
        self.facts += [("preview", word) for word in _WORD.findall(text)]

    def end(self, outcome: str) -> None:
        self.fact("end", outcome)
        self._run = {"text": "", "thought": ""}


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _output(output: object) -> str:
    """Return what a tool gave; JSON is the same whether it comes as text or as a value."""
    if isinstance(output, str):
        try:
            value = json.loads(output)
        except ValueError:
            return output
        return _json(value)
    return _json(output)


def _words(blocks: Iterable[Mapping[str, Any]]) -> str:
    return "".join(block["text"] for block in blocks)


def herm_facts(envelopes: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Read Herm envelopes (herm page, sections 4.4 to 4.6)."""
    story = _Story()
    for envelope in envelopes:
        payload = envelope["payload"]
        match payload["type"]:
            case "agent.message" | "agent.thinking" as type_:
                kind = "text" if type_ == "agent.message" else "thought"
                text = _words(payload["content"])
                if payload["delta"]:
                    story.piece(kind, text)
                else:
                    story.whole(kind, text)
            case "agent.tool_use" | "agent.mcp_tool_use":
                if story.first(payload["id"]):
                    story.call(payload["tool"], payload["input"])
                if payload.get("requires_action") and story.first(f"ask {payload['id']}"):
                    story.fact("ask", "approval")
            case "agent.tool_result" | "agent.mcp_tool_result":
                if not payload["is_error"]:
                    story.fact("result", _output(_words(payload["content"])))
            case "agent.clarify_request":
                if story.first(f"ask {payload['request_id']}"):
                    story.fact("ask", payload["question"])
            case "session.status_idle":
                reason = payload["stop_reason"]["type"]
                if reason != "requires_action":
                    story.end("failed" if reason == "error" else "over")
            case "session.gap":
                story.fact("gap")
    story.flush()
    return story.facts


def _eve_text(story: _Story, name: str, data: Mapping[str, Any]) -> None:
    kind = "text" if name == "message" else "thought"
    if f"{name}Delta" in data:
        story.piece(kind, data[f"{name}Delta"])
    else:
        story.whole(kind, data[name] or "")


def _eve_asks(story: _Story, requests: Iterable[Mapping[str, Any]]) -> None:
    for request in requests:
        # What was answered in vain is asked once more, under a name that says so.
        if story.first("ask " + re.sub(r"~\d+\Z", "", request["requestId"])):
            approval = request["kind"] == "tool-approval"
            story.fact("ask", "approval" if approval else request["prompt"])


# What stands before the end of a turn that did nothing: a message too, while something is asked.
_EMPTY = {False: {"turn.started"}, True: {"turn.started", "message.received"}}


def eve_facts(records: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Read eve records (eve page, section 8)."""
    story = _Story()
    open_: set[str] = set()
    held: set[str] = set()
    previous = ""
    outcome = "over"
    empty = False
    for record in records:
        data = record.get("data", {})
        match record["type"]:
            case (
                "message.appended"
                | "message.completed"
                | "reasoning.appended"
                | "reasoning.completed"
            ):
                _eve_text(story, record["type"].partition(".")[0], data)
            case "actions.requested":
                for action in data["actions"]:
                    if "toolName" in action and story.first(action["callId"]):
                        story.call(action["toolName"], action["input"])
            case "action.result":
                result = data["result"]
                if data["status"] == "completed" and not result.get("isError"):
                    story.fact("result", _output(result["output"]))
            case "input.requested":
                open_ |= {request["requestId"] for request in data["requests"]}
                _eve_asks(story, data["requests"])
            case "turn.started":
                # A turn that was closed at its pause goes on as another (the token generation).
                held, open_, empty = open_, set(), False
            case "turn.completed" if previous in _EMPTY[bool(held)]:
                # A boundary for who said something meanwhile: what was asked is asked still, also
                # where a message before had a turn of its own, after which nothing says so.
                open_, held, empty = open_ | held, set(), True
            case "input.resolved":
                open_ -= {resolution["requestId"] for resolution in data["resolutions"]}
            case "turn.failed" | "turn.cancelled" as type_:
                outcome = "failed" if type_ == "turn.failed" else outcome
                open_.clear()
            case "session.waiting" if not (open_ or empty):
                story.end(outcome)
                outcome = "over"
            case "dragoman.gap":
                story.fact("gap")
        previous = record["type"]
    story.flush()
    return story.facts


def engine_event(block: bytes) -> tuple[str, dict[str, Any]]:
    """Read one frame of an Engine's buffer (engine page, section 7)."""
    event, data = block.decode().strip("\n").split("\n")
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def engine_facts(events: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Fact]:
    """Read Engine events (engine page, section 8)."""
    story = _Story()
    failed = False
    for name, payload in events:
        match name:
            case "text_delta":
                story.piece("text", payload["text"])
            case "thinking_delta":
                story.piece("thought", payload["text"])
            case "tool_call":
                if story.first(payload["tool_call_id"]):
                    story.call(payload["tool"], payload["input"])
            case "tool_result":
                if "error" not in payload:
                    story.fact("result", _output(payload["output"]))
            case "hitl_request":
                if story.first(f"ask {payload['request_id']}"):
                    approval = payload["kind"] == "permission"
                    story.fact("ask", "approval" if approval else payload["question"])
            case "thread_lifecycle" | "error":
                # A failed turn says it twice, in either order.
                phase = payload.get("phase", "errored")
                if phase == "completed" or (phase == "errored" and not failed):
                    story.end("over" if phase == "completed" else "failed")
                failed = phase == "errored"
            case "gap":
                story.fact("gap")
    story.flush()
    return story.facts


def managed_agents_facts(events: Iterable[Mapping[str, Any]]) -> list[Fact]:
    """Read Managed Agents events and their previews (managed agents page, sections 7 and 9)."""
    story = _Story()
    begun: dict[str, str] = {}
    for event in events:
        match event["type"]:
            case "event_start":
                begun[event["event"]["id"]] = ""
            case "event_delta":
                begun[event["event_id"]] += event["delta"]["content"]["text"]
            case "agent.message":
                begun.pop(event["id"], None)
                story.piece("text", _words(event["content"]))
            case "agent.tool_use" | "agent.mcp_tool_use":
                story.call(event["name"], event["input"])
                if event["evaluated_permission"] == "ask":
                    story.fact("ask", "approval")
            case "agent.tool_result" | "agent.mcp_tool_result":
                if not event["is_error"]:
                    story.fact("result", _output(_words(event["content"])))
            case "session.status_idle":
                reason = event["stop_reason"]["type"]
                if reason != "requires_action":
                    # Of an interrupted or a failed model request no message comes (section 9).
                    story.previews("".join(begun.values()))
                    begun.clear()
                    story.end("failed" if reason == "retries_exhausted" else "over")
    story.flush()
    return story.facts


FACTS: Mapping[str, Callable[[Any], list[Fact]]] = {
    "herm": herm_facts,
    "eve": eve_facts,
    "engine": engine_facts,
    "managed-agents": managed_agents_facts,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """How what was received differs from what was sent; `reordered` counts facts out of place."""

    lost: list[Fact]
    doubled: list[Fact]
    reordered: int

    @property
    def whole(self) -> bool:
        """Say whether all that was sent is there and in its place. A turn that is shown and never
        began can stand for the end of one that is still on its way: then that is out of place."""
        return not self.lost and not self.reordered


def compare(sent: list[Fact], received: list[Fact]) -> Difference:
    """Compare the facts of both ends.

    What both ends have must be in one order, whatever is lost or doubled beside it: out of place is
    what must be moved for that, as few as possible.
    """
    here, there = Counter(sent), Counter(received)
    common = (here & there).total()
    reordered = common - len(_in_order(sent, received))
    return Difference([*(here - there).elements()], [*(there - here).elements()], reordered)


def previews_shown(sent: list[Fact], received: list[Fact]) -> list[Fact]:
    """Return what must have been received: of the words that were previews only, as texts, those
    that are there. Who was away when they came never gets them."""
    if not any(fact[0] == "preview" for fact in sent):
        return sent
    texts = [("text", *fact[1:]) if fact[0] == "preview" else fact for fact in sent]
    shown = set(_in_order(texts, received))
    return [fact for n, fact in enumerate(texts) if sent[n][0] != "preview" or n in shown]


def _in_order(one: list[Fact], other: list[Fact]) -> list[int]:
    """Return the places in the first of a longest common subsequence."""
    first, last = 0, 0
    shorter = min(len(one), len(other))
    while first < shorter and one[first] == other[first]:
        first += 1
    while last < shorter - first and one[-1 - last] == other[-1 - last]:
        last += 1
    places = [*range(first), *range(len(one) - last, len(one))]
    here, there = len(one) - last, len(other) - last
    rows = [[0] * (there - first + 1)]
    for fact in one[first:here]:
        before, row = rows[-1], [0]
        for place, theirs in enumerate(other[first:there]):
            best = before[place] + 1 if fact == theirs else max(before[place + 1], row[place])
            row.append(best)
        rows.append(row)
    while here > first and there > first:
        if one[here - 1] == other[there - 1]:
            places.append(here - 1)
            here, there = here - 1, there - 1
        elif rows[here - first - 1][there - first] >= rows[here - first][there - first - 1]:
            here -= 1
        else:
            there -= 1
    return places
