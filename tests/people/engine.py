"""A person at an Engine client."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from tests.people.person import Ask, Person, Picture
from tests.support.engine_client import EngineClient, EngineEvent

__all__ = ["EnginePerson"]


class EnginePerson(Person):
    """Each message is a request whose body is its turn (page, section 6).

    `by_id` says that their answers name the request.
    """

    dialect = "engine"
    client: EngineClient
    task: str
    by_id = False

    def execute(
        self, text: str, files: Sequence[Picture] = (), schema: dict[str, Any] | None = None
    ) -> AsyncGenerator[EngineEvent, None]:
        """Return the turn of a message; `POST /execute` is sent when its first event is wanted."""
        members: dict[str, Any] = {}
        if files:
            sources = [
                {"type": "base64", "media_type": file.media_type, "data": file.base64}
                for file in files
            ]
            members["media"] = [{"type": "image", "source": source} for source in sources]
        if schema is not None:
            members["output_schema"] = schema
        return self.client.execute(text, self.task, **members)

    async def _respond(self, ask: Ask, answer: str, **members: Any) -> None:
        if self.by_id:
            members["request_id"] = ask.id
        async with self.doing():
            await self.client.respond(self.task, answer, **members)

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """`yes` or `no`, with `feedback`; there is no scope (section 10.2)."""
        members = {} if reason is None else {"feedback": reason}
        await self._respond(ask, "yes" if yes else "no", **members)

    async def mumble(self, ask: Ask) -> None:
        """A word that is neither yes nor no."""
        await self._respond(ask, "perhaps")

    async def choose(self, ask: Ask, label: str) -> None:
        """The option's words."""
        await self._respond(ask, label)

    async def write(self, ask: Ask, text: str) -> None:
        """The words."""
        await self._respond(ask, text)

    async def skip(self, ask: Ask) -> None:
        """An empty answer is the nearest."""
        await self._respond(ask, "")

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """A custom tool is a question, its result the words (design section 5)."""
        await self._respond(ask, result)

    async def reveal(self, ask: Ask, value: str) -> None:
        """Anybody who types a secret here types it as an answer."""
        await self._respond(ask, value)

    async def decline(self, ask: Ask) -> None:
        """The one option: `decline`, of a sign-in `cancel`."""
        await self._respond(ask, ask.labels[0])

    async def _try(self, path: str, **members: Any) -> None:
        async with self.doing(works=False):
            body = json.dumps({"task_id": self.task, **members}).encode()
            await self.client.post(path, body)

    async def steer(self, text: str) -> None:
        """No route: one is tried."""
        await self._try("/steer", message=text)

    async def interrupt(self, note: str | None = None) -> None:
        """No route (section 12): one is tried."""
        await self._try("/interrupt")

    async def control(self, name: str) -> None:
        """No route: one is tried."""
        await self._try(f"/{name}")

    async def rename(self, title: str) -> None:
        """No route: one is tried."""
        await self._try("/title", title=title)

    @staticmethod
    def ask_of(record: Mapping[str, Any]) -> Ask:
        """Return what a `hitl_request` asks, or an entry of `/hitl/pending`."""
        given = record.get("options") or ()
        labels = [o if isinstance(o, str) else o["label"] for o in given]
        kind = record.get("reason", record["kind"])
        options = tuple((label, label) for label in labels)
        about, approval = str(record.get("input", "")), record["kind"] == "permission"
        return Ask(record["request_id"], kind, record["question"], options, about, approval)

    @staticmethod
    def stamp(frame: EngineEvent) -> int:
        """Return when an event was emitted in ms, which is its cursor (section 11)."""
        return round(dt.datetime.fromisoformat(frame.payload["timestamp"]).timestamp() * 1000)
