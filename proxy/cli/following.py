"""Following a session: its events as they come, across restarts of the server, and in words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime

import click
import orjson

from adapters.wire.url_paths import path_of
from proxy.cli.asked import block, cut
from proxy.cli.printing import JsonObject, cell, clean
from proxy.cli.servers import Away, ServerClient, session_path

_ASKED = (
    "session_id",
    "request_id",
    "kind",
    "prompt",
    "options",
    "freeform",
    "answerable",
    "details",
)

_VALUE = 200
"""Characters that are shown of what a tool gets and gives, and of what the agent thinks."""


class Absence:
    """Says once that the server is gone, and once that it is back."""

    def __init__(self, server: ServerClient) -> None:
        """Begin with a server that is there."""
        self._server = server
        self._away = False

    def over(self) -> None:
        """The server answers."""
        if self._away:
            self._away = False
            click.echo(f"dragoman: {clean(self._server.url)} is back.", err=True)

    async def again(self, error: Away | None = None) -> None:
        """Wait for the next try."""
        if error is not None and not self._away:
            self._away = True
            text = f"dragoman: {clean(self._server.url)}: {error}; it is asked again until ^C."
            click.echo(text, err=True)
        await asyncio.sleep(0.5)


async def follow(
    server: ServerClient, session: str, after: int
) -> AsyncGenerator[tuple[bytes, JsonObject], None]:
    """Yield the events of a session after a seq, as lines and as JSON, until it ends.

    A server that goes away is asked again, from where it stopped.
    """
    absence = Absence(server)
    path = path_of(session_path(session), "events")
    while True:
        gone: Away | None = None
        try:
            lines = server.lines(path, {"after": str(after), "follow": "1"})
            async with contextlib.aclosing(lines):
                async for line in lines:
                    absence.over()
                    event = orjson.loads(line) if line else {"seq": 0}
                    if event["seq"] <= after:
                        continue
                    after = event["seq"]
                    yield line, event
                    if event["type"] == "session.ended":
                        return
        except Away as error:
            gone = error
        await absence.again(gone)


def asked_in(event: JsonObject) -> JsonObject:
    """Return what an event asks, as the control API lists it."""
    options = event.get("options") or []
    return {**{name: event.get(name) for name in _ASKED}, "options": options, "claimed": False}


def said(event: JsonObject) -> str:
    """Return the words of an event, on one line."""
    if event.get("text"):
        return " ".join(clean(str(event["text"])).split())
    parts = [
        str(part["text"]) if part.get("type") == "text" else f"[{part.get('type')}]"
        for part in event.get("content") or ()
    ]
    return " ".join(clean(" ".join(parts)).split())


def ended(event: JsonObject) -> str:
    """Return how a turn or a session ended."""
    what = "turn" if event["type"] == "turn.ended" else "session"
    return f"the {what} ended: {event['outcome']}{why(event).replace(':', ',', 1)}"


def why(event: JsonObject) -> str:
    """Return why something failed, to stand behind it; nothing where it is not said."""
    error = event.get("error") or {}
    reason = event.get("reason") or error.get("message")
    return f": {cut(str(reason), _VALUE)}" if reason else ""


class Teller:
    """Says in words what events are; it knows what was called and asked before."""

    def __init__(self, url: str) -> None:
        """Begin; commands are for the server at `url`."""
        self._url = url
        self._tools: dict[str, str] = {}
        self._threads: dict[str, str] = {}
        self._asked: set[str] = set()

    def question(self, asked: JsonObject) -> list[str]:
        """Return a question as a block, once."""
        name = str(asked["request_id"])
        if name in self._asked:
            return []
        self._asked.add(name)
        return ["", *block(asked, self._url), ""]

    def tell(self, event: JsonObject) -> list[str]:
        """Return the lines about an event; none where it says nothing to a person."""
        if event["type"] == "interaction.requested":
            return self.question(asked_in(event))
        make = _WORDS.get(event["type"])
        words = None if make is None else make(self, event)
        if words is None:
            return []
        thread = event.get("thread_id", "main")
        inside = "" if thread == "main" else f"[{self._threads.get(thread, cell(thread))}] "
        at = datetime.fromtimestamp(event["at"] / 1000, UTC)
        return [f"{at:%H:%M:%S} {inside}{words}"]

    def _called(self, event: JsonObject) -> str:
        name = self._tools[event["call_id"]] = cell(event["name"])
        given = "" if event.get("input") is None else " " + cut(cell(event["input"]), _VALUE)
        return f"agent calls {name}{given}"

    def _returned(self, event: JsonObject) -> str:
        name = self._tools.get(event["call_id"], "the tool")
        status = event.get("status", "completed")
        if status == "completed" and event.get("is_error"):
            status = "failed"
        output = event.get("output")
        given = said(event) if output in (None, "") else cell(output)
        given = why(event).removeprefix(": ") or cut(given, _VALUE)
        return f"{name} {'returned' if status == 'completed' else status}" + (
            f": {given}" if given else ""
        )

    def _thread(self, event: JsonObject) -> str:
        name = self._threads[event["thread_id"]] = cell(event.get("name") or event["thread_id"])
        return f"{event.get('kind', 'agent')} {name} begins"


def _settled(_: Teller, event: JsonObject) -> str | None:
    outcome = event["outcome"]
    return None if outcome == "taken" else f"an input is {outcome}{why(event)}"


def _accepted(_: Teller, event: JsonObject) -> str | None:
    if event["kind"] in {"message", "answer", "steer"}:
        return None  # What becomes of it is told by the events that follow.
    return f"{cell(event['by'])} sends: {cell(event.get('name') or event['kind'])}"


def _answered(_: Teller, event: JsonObject) -> str:
    if event.get("state") == "released":
        return f"{cell(event['request_id'])} is open again"
    return f"{cell(event['by'])} answers {cell(event['request_id'])}"


def _paused(_: Teller, event: JsonObject) -> str | None:
    return None if event["on"] == "input" else f"the turn waits for {event['on']}"


def _notice(_: Teller, event: JsonObject) -> str | None:
    level = event.get("level", "info")
    return None if level == "debug" else f"{level}: {cut(event['text'], _VALUE)}"


def _updated(_: Teller, event: JsonObject) -> str | None:
    if event.get("backend"):
        return f"the session goes on at backend {cell(event['backend'].get('name'))}"
    return f"title: {cell(event['title'])}" if event.get("title") else None


def _thought(_: Teller, event: JsonObject) -> str | None:
    text = cut(str(event.get("text") or ""), _VALUE)
    return f"agent thinks: {text}" if text else None


def _text(_: Teller, event: JsonObject) -> str | None:
    text = said(event)
    return f"agent: {text}" if text and event.get("status") != "discarded" else None


_WORDS: dict[str, Callable[[Teller, JsonObject], str | None]] = {
    "session.started": lambda _, event: "the session begins",
    "session.updated": _updated,
    "session.ended": lambda _, event: ended(event),
    "input.accepted": _accepted,
    "input.settled": _settled,
    "message.received": lambda _, event: f"user: {said(event)}",
    "guidance.received": lambda _, event: f"user: {said(event)}",
    "turn.started": lambda _, event: "the turn begins",
    "turn.paused": _paused,
    "turn.ended": lambda _, event: ended(event),
    "text.completed": _text,
    "reasoning.completed": _thought,
    "tool.called": Teller._called,
    "tool.returned": Teller._returned,
    "interaction.answered": _answered,
    "interaction.resolved": lambda _, event: (
        f"{cell(event['request_id'])} is {event['outcome']}{why(event)}"
    ),
    "thread.started": Teller._thread,
    "thread.ended": lambda _, event: f"ends: {event['status']}{why(event)}",
    "result.produced": lambda _, event: f"result: {cut(cell(event['value']), _VALUE)}",
    "context.compacted": lambda _, event: "the history is summarised",
    "context.cleared": lambda _, event: "the history is dropped",
    "error.reported": lambda _, event: f"error: {cut(event['message'], _VALUE)}",
    "notice": _notice,
    "gap": lambda _, event: f"events are missing here: {cut(event['reason'], _VALUE)}",
}
"""Of each type that says something to a person, what. Deltas are told when they are complete."""
