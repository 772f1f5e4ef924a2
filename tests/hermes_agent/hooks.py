"""Hooks for tests: recorded ones, those that are made here, and a codec that hears them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from adapters.contract.step import apply
from adapters.hermes_agent.client import HermesHooksClient
from adapters.model import events as ev
from adapters.model.base import Call, Request
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState
from tests.wire import FIXTURES

BODIES = FIXTURES / "wire" / "hermes-agent"

SESSION = "20260901_101500_ab12cd"
TURN = f"{SESSION}:task:0a1b2c3d"

DELIVERED = Call("delivered", Request("POST", "/"))

_numbers = itertools.count(1)


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the hooks of a recorded session."""
    lines = (BODIES / f"{name}.ndjson").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def hook(
    name: str,
    *,
    tool: str | None = None,
    args: Any = None,
    session: str = SESSION,
    turn: str | None = TURN,
    wait: float | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Return a hook as our ways in send it."""
    if turn is not None:
        extra["turn_id"] = turn
    value: dict[str, Any] = {
        "hook_event_name": name,
        "tool_name": tool,
        "tool_input": args,
        "session_id": session,
        "cwd": "/srv/app",
        "extra": extra,
        "delivery_id": f"{next(_numbers):032x}",
    }
    if wait is not None:
        value["dragoman"] = {"way": "shell", "wait_seconds": wait}
    return value


def call(name: str = "call_9", *, wait: float | None = None, **more: Any) -> dict[str, Any]:
    """Return the hook before a call of the terminal."""
    asked = {"api_request_id": f"{TURN}:api:1", "tool_call_id": name, **more}
    return hook("pre_tool_call", tool="terminal", args={"command": "ls"}, wait=wait, **asked)


def begun(text: str = "List it.") -> dict[str, Any]:
    """Return the hook with which a turn begins."""
    return hook("pre_llm_call", user_message=text, model="m", platform="cli", is_first_turn=True)


def ended(**said: Any) -> dict[str, Any]:
    """Return the hook with which it ends."""
    return hook("on_session_end", **{"completed": True, "interrupted": False, **said})


@dataclasses.dataclass
class Watched:
    """A codec and the log that it makes."""

    codec: HermesHooksClient = dataclasses.field(default_factory=lambda: HermesHooksClient({}))
    state: LogState = dataclasses.field(default_factory=LogState)
    log: list[ev.Event] = dataclasses.field(default_factory=list)
    now: int = 1_000

    def __post_init__(self) -> None:
        self._normalizer = Normalizer(self.state)
        self.take([ev.SessionStarted(thread_id=ev.MAIN, synthetic=True)])

    def take(self, raw: Sequence[ev.Event]) -> list[ev.Event]:
        """Take raw events; return what the log has of them."""
        step = apply(self.codec, self._normalizer, raw, self.now, "dgs_x")
        new = [] if step is None else [entry.event for entry in step.entries]
        self.log += new
        return new

    def hear(self, *hooks: dict[str, Any]) -> list[ev.Event]:
        """Hear hooks, a millisecond between them."""
        out: list[ev.Event] = []
        for one in hooks:
            self.now += 1
            out += self.take(self.codec.feed(DELIVERED, json.dumps(one).encode(), self.now))
        return out

    def wait(self, ms: int) -> list[ev.Event]:
        """Let time pass."""
        until, out = self.now + ms, list[ev.Event]()
        while self.codec.wake_at is not None and self.codec.wake_at <= until:
            self.now = max(self.now, self.codec.wake_at)
            out += self.take(self.codec.tick(self.now))
        self.now = until
        return out

    def restart(self) -> None:
        """Put the codec back from what it stored."""
        stored = self.codec.snapshot(), self.codec.position
        self.codec = HermesHooksClient({})
        self.codec.restore(*stored)


def types(events: Iterable[ev.Event]) -> list[str]:
    """Return what happened, without what is repeated for streams."""
    return [event.TYPE for event in events if event.TYPE != "text.delta"]
