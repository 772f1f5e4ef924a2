"""A Dragoman with one backend that sends hooks, and a sender of them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from adapters.model import events as ev
from proxy.config.settings import Settings
from proxy.journal.base import Journal
from proxy.session import Session
from tests.support.dragoman import Dragoman
from tests.support.waiting import asks, until

__all__ = ["BACKEND", "HookReceiver", "sign"]

BACKEND = "hermes"

Answer = tuple[int, Any]


def sign(body: bytes, secret: str) -> dict[str, str]:
    """Return the header of a body that was signed with a secret."""
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hermes-Signature-256": f"sha256={digest}"}


class HookReceiver(Dragoman):
    """One Dragoman that takes the hooks of a Hermes.

    Args:
        journal: a URL, or a journal that a restart finds again.
        secret: that deliveries are signed with.
        keys: entries of `[[keys]]`; the first one owns the sessions.
        speed: how much faster than real time the proxy's clock runs.
        options: further tables of the configuration.
    """

    def __init__(
        self,
        journal: str | Journal,
        *,
        secret: str | None = None,
        keys: Sequence[Mapping[str, Any]] = (),
        speed: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(journal, {}, settings={"keys": keys, **options}, speed=speed)
        self._secret = secret
        self._owner = f"owner:{keys[0]['name']}" if keys else "never"

    @property
    def settings(self) -> Settings:
        """The configuration, as it would be read from a file."""
        settings = super().settings
        table: dict[str, Any] = {
            "name": BACKEND,
            "dialect": "hermes-agent",
            "url": "hooks:",
            "adopt": self._owner,
        }
        if self._secret is not None:
            table["auth"] = {"header": "X-Hermes-Signature-256", "env": "HOOK_SECRET"}
        given = settings.model_dump(exclude={"backends"}) | {"backends": [table]}
        made = Settings.model_validate(given)
        if self._secret is None:
            return made
        backends = [
            one.with_credential("X-Hermes-Signature-256", self._secret) for one in made.backends
        ]
        return made.model_copy(update={"backends": tuple(backends)})

    @property
    def address(self) -> str:
        """Where hooks are sent."""
        return f"http://127.0.0.1:{self.port}/from/{BACKEND}"

    async def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a body; return the answer's status and value."""
        async with self.http.post(self.address, data=io.BytesIO(body), headers=headers) as response:
            return response.status, await response.json()

    async def send(self, hook: Mapping[str, Any], **headers: str) -> Answer:
        """Send a hook, signed where there is a secret."""
        body = json.dumps(hook).encode()
        signed = {} if self._secret is None else sign(body, self._secret)
        return await self.post(body, {**signed, **headers})

    def sending(self, hook: Mapping[str, Any]) -> asyncio.Task[Answer]:
        """Send a hook that waits."""
        return asyncio.create_task(self.send(hook))

    @property
    def all(self) -> list[Session]:
        """The sessions in memory, in the order in which they came."""
        return list(self.sessions.cache)

    def asked(self) -> list[ev.InteractionRequested]:
        """What is asked and stored, over all sessions."""
        return [one for session in self.all if asks(session) for one in session.open_interactions()]

    async def until_asked(self, count: int = 1) -> list[ev.InteractionRequested]:
        """Wait until so many things are asked."""
        await until(lambda: len(self.asked()) >= count)
        return self.asked()

    def session_of(self, asked: ev.InteractionRequested) -> Session:
        """The session that asks something."""
        return next(one for one in self.all if asked.request_id in one.state.interactions)

    async def answer(self, asked: ev.InteractionRequested, decision: str, **more: Any) -> int:
        """Answer what is asked over the control API; return the status."""
        session = self.session_of(asked)
        url = (
            f"http://127.0.0.1:{self.port}/api/v1/sessions/{session.id}"
            f"/interactions/{asked.request_id}"
        )
        async with self.http.post(url, json={"decision": decision, **more}) as response:
            await response.read()
            return response.status


async def cut_off(task: asyncio.Task[Answer]) -> bool:
    """Say whether the connection of a sender broke."""
    try:
        await task
    except aiohttp.ClientError:
        return True
    return False
