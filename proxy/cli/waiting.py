"""What comes of an answer: taken or not, and what the agent does next."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field

import click

from proxy.cli.asked import blocks, cut
from proxy.cli.following import asked_in, ended, follow, said, why
from proxy.cli.printing import JsonObject, cell
from proxy.cli.servers import ServerClient

_TAKEN = frozenset({"approved", "denied", "answered", "skipped"})


@dataclass
class AnswerWait:
    """An answer that is under way. `others` is what else the session asks; the agent does not go on
    before that is answered too."""

    server: ServerClient
    session: str
    request: str
    command: str
    others: dict[str, JsonObject]
    outcome: str | None = None
    reason: str = ""
    said: list[str] = field(default_factory=list)
    end: str | None = None

    async def wait(self, after: int) -> None:
        """Read events after a seq until it is known, and print it as it becomes known."""
        async with contextlib.aclosing(follow(self.server, self.session, after)) as events:
            async for _, event in events:
                self._read(event)
                refused = self.outcome not in (None, "taken")
                if refused or (self.outcome and (self.end or self.others)):
                    break
        if self.outcome == "taken" and self.others and not self.server.as_json:
            click.echo("it asks:")
            click.echo(blocks(list(self.others.values()), self.server.url))

    def _read(self, event: JsonObject) -> None:
        ours = event.get("request_id") == self.request
        match event["type"]:
            case "input.settled" if event["command_id"] == self.command:
                self._come(event["outcome"], event)
            case "interaction.resolved" if ours:
                outcome = event["outcome"]
                self._come("taken" if outcome in _TAKEN else outcome, event)
            case "interaction.requested":
                self.others[event["request_id"]] = asked_in(event)
            case "interaction.resolved":
                self.others.pop(event["request_id"], None)
            case "interaction.answered" if not ours and event.get("state") != "released":
                self.others.pop(event["request_id"], None)
            case "text.completed" if event.get("thread_id") == "main" and said(event):
                self.said.append(said(event))
                self._print(f"agent: {cut(said(event), 600)}")
            case "turn.ended" if event.get("thread_id") == "main":
                self._end(event)
            case "session.ended":
                self._end(event)

    def _come(self, outcome: str, event: JsonObject) -> None:
        if self.outcome is not None:
            return
        self.outcome = outcome
        self.reason = why(event)
        if outcome == "taken":
            self._print("taken")

    def _end(self, event: JsonObject) -> None:
        self.end = event["outcome"]
        self._print(ended(event))

    def _print(self, line: str) -> None:
        if not self.server.as_json:
            click.echo(line)

    def sentence(self) -> str:
        """Return why the answer has not counted."""
        match self.outcome:
            case "refused":
                return f"the answer is refused{self.reason}"
            case "unknown":
                return f"nobody knows whether the backend took the answer{self.reason}"
            case None:
                return "the session ended before the answer was taken"
            case other:
                return f"the request is no longer open: {cell(other)}{self.reason}"


def interrupted() -> None:
    """End where a person waits no longer."""
    click.echo("dragoman: no longer waiting; the answer stays.", err=True)
    sys.exit(130)
