"""The scripted backends of a run, and their own record of what happened.

What a backend emitted stands in its conversations; `Ledger` notes what it took: which message began
a turn there, which request was answered, and how often. Neither passes any codec.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web

from proxy.scripted.engine import ENGINE, create_engine_app
from proxy.scripted.eve import EVE, create_eve_app
from proxy.scripted.eve_turns import EveVariant, Generation
from proxy.scripted.faults import Faults
from proxy.scripted.herm import HERM, create_herm_app
from proxy.scripted.managed_agents import MANAGED_AGENTS, create_managed_agents_app
from proxy.scripted.managed_agents_turns import ANSWERS
from tests.proof.facts import engine_event
from tests.support.serving import serve

__all__ = ["BACKENDS", "DIALECTS", "HOST", "Backends", "Ledger", "id_of", "tags_of"]

HOST = "127.0.0.1"
DIALECTS = ("herm", "eve", "engine")
"""Those that a person of the proof speaks; each is a backend too."""

BACKENDS = (*DIALECTS, "managed-agents")

_TAG = re.compile(r"\[(p\d[^\]\s]*)\]")


def tags_of(text: str) -> list[str]:
    """Return the tags in a message; each attempt to say something has its own."""
    return _TAG.findall(text)


def id_of(talk: Any) -> str:
    """Return a conversation's own id at its backend."""
    return str(talk.task_id if hasattr(talk, "task_id") else talk.id)


class Ledger:
    """What one backend took."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        # By the id of the conversation: answers to each request, and how often it was told to stop.
        self.answered: Counter[tuple[str, str]] = Counter()
        self.interrupts: Counter[str] = Counter()
        self.talks: dict[str, Any] = {}
        # The first tag of each conversation, by its id: whose it is.
        self.owners: dict[str, str] = {}
        # The names of eve sessions that a request has said: their creator knows them.
        self.named: set[str] = set()

    def message(self, text: str, talk: Any) -> None:
        """Note a message that was taken."""
        for tag in tags_of(text):
            self.executed[tag] += 1
            self.talks[tag] = talk
            self.owners.setdefault(id_of(talk), tag)


class _Named(dict[str, Any]):
    """An eve's sessions by name; notes which names are asked for."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def get(self, name: str, default: Any = None) -> Any:
        self._ledger.named.add(name)
        return super().get(name, default)


class Backends:
    """A scripted backend of each dialect, served in this process.

    Args:
        pace: the factor on the pauses inside of scripts.
        faults: how a backend's streams break, by dialect.
        generation: which eve the eve is.
    """

    def __init__(
        self,
        pace: float,
        faults: Callable[[str], Faults] | None = None,
        generation: Generation = "S2",
    ) -> None:
        self._pace = pace
        self._generation = generation
        self._faults = faults or (lambda _: Faults())
        self._stack = contextlib.AsyncExitStack()
        self.ledgers = {dialect: Ledger() for dialect in BACKENDS}
        self.ports: dict[str, int] = {}
        self._scripted: dict[str, Any] = {}

    async def __aenter__(self) -> Backends:
        makers: dict[str, tuple[Callable[..., web.Application], Any, Any]] = {
            "herm": (create_herm_app, HERM, self._watch_herm),
            "eve": (create_eve_app, EVE, self._watch_eve),
            "engine": (create_engine_app, ENGINE, self._watch_engine),
            "managed-agents": (
                create_managed_agents_app,
                MANAGED_AGENTS,
                self._watch_managed_agents,
            ),
        }
        for dialect, (create, key, watch) in makers.items():
            options: dict[str, Any] = {}
            if dialect == "eve":
                options["variant"] = EveVariant(self._generation)
            app = create(pace=self._pace, faults=self._faults(dialect), **options)
            self._scripted[dialect] = app[key]
            watch(app[key])
            runner, self.ports[dialect] = await serve(app)
            self._stack.push_async_callback(runner.cleanup)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # What they take.

    def _watch_herm(self, herm: Any) -> None:
        ledger, take = self.ledgers["herm"], herm.take

        def watched(talk: Any, batch: Any) -> Any:
            accepted = take(talk, batch)
            for event in batch.events:
                match event["type"]:
                    case "user.message":
                        words = "".join(block["text"] for block in event["content"])
                        ledger.message(words, talk)
                    case "user.steer":
                        ledger.message(event["message"], talk)
                    case "user.interrupt":
                        ledger.interrupts[talk.id] += 1
                        ledger.message(event.get("message") or "", talk)
                    case _:
                        name = event.get("tool_use_id") or event.get("request_id")
                        ledger.answered[talk.id, str(name)] += 1
                        ledger.message(str(event.get("answer", "")), talk)
            return accepted

        herm.take = watched

    def _watch_eve(self, eve: Any) -> None:
        ledger, post, by_token = self.ledgers["eve"], eve.post, eve.by_token
        eve.talks = _Named(ledger)

        def named(token: str) -> Any:
            talk = by_token(token)
            if talk is not None:
                ledger.named.add(talk.id)
            return talk

        def watched(talk: Any, posted: Any) -> Any:
            delivery = post(talk, posted)
            ledger.message(posted.text or "", talk)
            for answer in posted.answers:
                ledger.answered[talk.id, answer["requestId"]] += 1
                ledger.message(str(answer.get("text", "")), talk)
            return delivery

        eve.post = watched
        eve.by_token = named

    def _watch_engine(self, engine: Any) -> None:
        ledger, begin, answer = self.ledgers["engine"], engine.begin, engine.answer

        def watched(request: Any) -> Any:
            turn = begin(request)
            ledger.message(request.message, turn.task)
            return turn

        def watched_answer(request: Any) -> Any:
            pending = answer(request)
            task = engine.buffered(request.task_id)
            ledger.answered[task.task_id, str(pending.record["request_id"])] += 1
            # An eve client's message may be the answer to a question.
            ledger.message(request.answer, task)
            return pending

        engine.begin = watched
        engine.answer = watched_answer

    def _watch_managed_agents(self, service: Any) -> None:
        ledger, take = self.ledgers["managed-agents"], service.take

        def watched(talk: Any, batch: Any) -> Any:
            stored = take(talk, batch)
            for event in batch:
                match event["type"]:
                    case "user.message":
                        ledger.message("".join(block["text"] for block in event["content"]), talk)
                    case "user.interrupt":
                        ledger.interrupts[talk.id] += 1
                    case answer:
                        ledger.answered[talk.id, event[ANSWERS[answer]]] += 1
            return stored

        service.take = watched

    # What they emitted.

    def frames(self, dialect: str, talk: Any) -> list[Any]:
        """Return what a conversation has emitted, as `facts` reads it."""
        match dialect:
            case "herm":
                return [entry.envelope for entry in talk.entries if entry.streamed]
            case "eve":
                return [json.loads(entry.data) for entry in talk.log]
            case "managed-agents":
                return [item.data for item in talk.primary.streamed]
            case _:
                return [engine_event(entry.data) for entry in talk.buffer]

    def rests(self, dialect: str, talk: Any) -> bool:
        """Say whether a conversation has nothing under way."""
        match dialect:
            case "herm":
                return talk.runner is None
            case "eve":
                return not talk.busy and talk.inbox.empty()
            case "managed-agents":
                return talk.runner is None and not talk.queue
            case _:
                return talk.running is None

    def forget(self, dialect: str, talk: Any) -> None:
        """Drop a conversation that is over, so that a long run needs no more memory."""
        scripted = self._scripted[dialect]
        scripted.received.clear()
        scripted.refusals.clear()
        scripted.talks.pop(id_of(talk), None)
