"""A person at a Herm client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.people.person import Ask, Person, Picture
from tests.support import herm_client
from tests.support.herm_client import HermClient

__all__ = ["HermPerson"]


class HermPerson(Person):
    """What they send are `user.*` events to the session (page, section 3)."""

    dialect = "herm"
    client: HermClient
    session: str | None = None

    async def open(self) -> None:
        """Make a session of the first agent."""
        agents = (await self.client.call("GET", "/v1/agents"))[1]
        self.session = (await self.client.create(agents["data"][0]["id"]))["id"]

    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """`user.message`; files and a schema go where a client would put them (3.1)."""
        message = herm_client.message(text)
        if files:
            message["attachments"] = [{"type": file.media_type} for file in files]
        if schema is not None:
            message["output_schema"] = schema
        await self._post(message)

    async def _post(self, event: dict[str, Any]) -> None:
        assert self.session is not None
        async with self.doing():
            await self.client.post(self.session, event)

    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """`user.tool_confirmation` has no place for a reason (3.2): it is left out."""
        event = {
            "type": "user.tool_confirmation",
            "tool_use_id": ask.id,
            "result": "allow" if yes else "deny",
        }
        await self._post(event | ({} if scope is None else {"scope": scope}))

    async def mumble(self, ask: Ask) -> None:
        """A `result` that the page does not know."""
        event = {"type": "user.tool_confirmation", "tool_use_id": ask.id, "result": "perhaps"}
        await self._post(event)

    async def choose(self, ask: Ask, label: str) -> None:
        """`user.clarify_result` with the choice's words."""
        await self.write(ask, label)

    async def write(self, ask: Ask, text: str) -> None:
        """`user.clarify_result`."""
        await self._post({"type": "user.clarify_result", "request_id": ask.id, "answer": text})

    async def skip(self, ask: Ask) -> None:
        """`user.clarify_result` with an empty answer (3.2)."""
        await self.write(ask, "")

    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """`user.custom_tool_result`."""
        content = [{"type": "text", "text": result}]
        await self._post(
            {
                "type": "user.custom_tool_result",
                "tool_use_id": ask.id,
                "content": content,
                "is_error": failed,
            }
        )

    async def reveal(self, ask: Ask, value: str) -> None:
        """`user.secret_result` or `user.sudo_result`."""
        name = "password" if ask.kind == "sudo" else "value"
        await self._post({"type": f"user.{ask.kind}_result", "request_id": ask.id, name: value})

    async def decline(self, ask: Ask) -> None:
        """An empty value declines; a sign-in has the choice `cancel`."""
        if ask.kind == "clarify":
            await self.write(ask, "cancel")
        else:
            await self.reveal(ask, "")

    async def steer(self, text: str) -> None:
        """`user.steer`."""
        await self._post({"type": "user.steer", "message": text})

    async def interrupt(self, note: str | None = None) -> None:
        """`user.interrupt`."""
        event = {"type": "user.interrupt"}
        await self._post(event if note is None else {**event, "message": note})

    async def control(self, name: str) -> None:
        """Archive and delete have routes (2.3); what has no route is tried beside them."""
        path = f"/v1/sessions/{self.session}"
        async with self.doing(works=False):
            if name == "delete":
                await self.client.call("DELETE", path)
            else:
                await self.client.call("POST", f"{path}/{name}")

    async def rename(self, title: str) -> None:
        """PATCH of the session."""
        async with self.doing(works=False):
            _, body = await self.client.call(
                "PATCH", f"/v1/sessions/{self.session}", {"title": title}
            )
        assert herm_client.check_session(body)["title"] == title

    @staticmethod
    def ask_of(payload: dict[str, Any]) -> Ask | None:
        """Return what an event asks, None where it asks nothing."""
        match payload["type"]:
            case "agent.custom_tool_use":
                about = str(payload["input"])
                return Ask(payload["id"], "custom", payload["tool"], about=about)
            case "agent.tool_use" | "agent.mcp_tool_use" if payload.get("requires_action"):
                prompt, about = payload.get("preview", ""), str(payload["input"])
                return Ask(payload["id"], "approval", prompt, about=about, approval=True)
            case "agent.clarify_request":
                choices = tuple((name, name) for name in payload.get("choices") or ())
                return Ask(payload["request_id"], "clarify", payload["question"], choices)
            case "agent.secret_request" | "agent.sudo_request":
                name = payload["type"].removeprefix("agent.").removesuffix("_request")
                return Ask(payload["request_id"], name, payload.get("prompt", ""))
            case _:
                return None
