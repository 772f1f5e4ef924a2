"""A person at an eve client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.people.person import Ask, Person, Picture
from tests.support.eve_client import EveClient, EveSession, Refused

__all__ = ["EvePerson"]


class EvePerson(Person):
    """The first message makes the session (page, section 4), unless it was opened before."""

    dialect = "eve"
    client: EveClient
    eve: EveSession | None = None

    @property
    def opened(self) -> EveSession:
        """Return the session, which is open."""
        assert self.eve is not None
        return self.eve

    async def open(self) -> None:
        """Make a session without a message, where the form has that."""
        if self.client.form == "tokens":
            return
        async with self.http.post(f"{self.url}/eve/v1/session", data=b"") as response:
            if response.status >= 300:
                raise Refused(response.status, await response.text(), {})
            body = await response.json()
        self.eve = self.client.attach(body["sessionId"], token=body.get("continuationToken"))

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """A create for the first message, then follow-ups (sections 4 and 5)."""
        parts: Any = text
        if files:
            parts = [{"type": "text", "text": text}]
            parts += [
                {"type": "file", "mediaType": file.media_type, "data": file.base64}
                for file in files
            ]
        members: dict[str, Any] = {} if schema is None else {"outputSchema": schema}
        async with self.doing():
            if self.eve is None:
                self.eve = await self.client.create(parts, **members)
            else:
                turn_policy: Any = policy
                await self.eve.send(parts, turn_policy=turn_policy, **members)

    async def _respond(self, ask: Ask, option: str | None, text: str | None = None) -> None:
        async with self.doing():
            await self.opened.respond(ask.id, option, text)

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """The request's own options decide, the words are the reason; there is no scope (9.4)."""
        await self._respond(ask, ask.options[0 if yes else -1][0], reason)

    async def mumble(self, ask: Ask) -> None:
        """An option that was not offered."""
        await self._respond(ask, "perhaps")

    async def choose(self, ask: Ask, label: str) -> None:
        """`optionId`."""
        await self._respond(ask, ask.option(label))

    async def write(self, ask: Ask, text: str) -> None:
        """`text`."""
        await self._respond(ask, None, text)

    async def skip(self, ask: Ask) -> None:
        """No answer to a question says nothing: an empty text is the nearest (section 5)."""
        await self._respond(ask, None, "")

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """A custom tool is a question, its result the words (design section 5)."""
        await self._respond(ask, None, result)

    async def reveal(self, ask: Ask, value: str) -> None:
        """Anybody who types a secret here types it as an answer."""
        await self._respond(ask, None, value)

    async def decline(self, ask: Ask) -> None:
        """The one option, `decline`."""
        if ask.kind == "authorization":
            await self.interrupt()
        else:
            await self._respond(ask, ask.options[0][0])

    async def steer(self, text: str) -> None:
        """A message with `turnPolicy` steer (section 5.1), which a client of the token generation
        does not know."""
        await self.say(text, policy=None if self.client.form == "tokens" else "steer")

    async def interrupt(self, note: str | None = None) -> None:
        """Cancel."""
        async with self.doing():
            await self.opened.cancel()

    async def control(self, name: str) -> None:
        """Compact, clear and reset have routes (section 6); what has no route is tried beside
        them."""
        path = f"/eve/v1/session/{self.opened.session_id}"
        async with self.doing(works=False):
            match name:
                case "compact":
                    assert await self.opened.compact() == "accepted"
                case "clear":
                    assert await self.opened.clear() == "accepted"
                case "reset":
                    assert await self.opened.reset() == "reset"
                case "delete":
                    await self.client.request("DELETE", path)
                case _:
                    await self.client.request("POST", f"{path}/{name}")

    async def rename(self, title: str) -> None:
        """No route: a PATCH is tried."""
        path = f"/eve/v1/session/{self.opened.session_id}"
        async with self.doing(works=False):
            await self.client.request("PATCH", path, {"title": title})

    @staticmethod
    def ask_of(request: dict[str, Any]) -> Ask:
        """Return what an entry of `input.requested` asks."""
        options = tuple((o["id"], o["label"]) for o in request.get("options", ()))
        about, kind = str(request["action"]["input"]), request["kind"]
        approval = kind == "tool-approval"
        return Ask(request["requestId"], kind, request["prompt"], options, about, approval)
