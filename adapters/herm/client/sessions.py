"""The session as a whole: made, named, put away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.herm import wire
from adapters.herm.client import posts
from adapters.herm.client.contents import message_of
from adapters.herm.client.envelopes import text_in
from adapters.herm.client.records import FirstCommand, HermClientState
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import parse_json, rest_of
from adapters.wire.url_paths import is_segment

_SESSION_KEYS = frozenset(
    {
        *("id", "agentId", "agentVersion", "userId", "title", "metadata", "status"),
        *("createdAt", "updatedAt", "archivedAt", "messages"),
    }
)


class HermSession:
    """What a create names, and what the session object says. `settings`: see the codec."""

    __slots__ = ("_agent", "_metadata", "_s", "_title", "_user_id")

    def __init__(self, state: HermClientState, settings: Mapping[str, Any]) -> None:
        self._s = state
        self._agent: str | None = settings.get("agent")
        self._user_id: str | None = settings.get("user_id")
        self._title: str | None = None
        self._metadata: dict[str, Any] = {}

    @property
    def has_agent(self) -> bool:
        """Whether it is known whose session to make."""
        return self._agent is not None

    def started(self, event: ev.SessionStarted) -> None:
        """Hear how the session was made here."""
        options = event.options or {}
        self._title = event.title
        self._metadata = dict(event.metadata or {})
        if isinstance(options.get("userId"), str):
            self._user_id = options["userId"]
        if self._agent is None and event.agent is not None:
            self._agent = event.agent.get("id")

    def create(self, command_id: str, command: cmd.AnyCommand) -> Call:
        """Return the call that makes the session for its first command, which follows when the
        backend has it and the stream is open."""
        if self._agent is None:
            raise NotSupported("herm: no agent is configured: set `create = { agent = … }`")
        if isinstance(command, cmd.UpdateSession):
            self._title = command.title or self._title
            self._metadata |= command.metadata or {}
        call = posts.create(self._agent, self._user_id, self._title, self._metadata, command_id)
        if isinstance(command, cmd.SendMessage):
            self._s.pending = message_of(command_id, command)
        self._s.first = FirstCommand(command_id, cmd.dump_command(command))
        return call

    def created(self, call: Call, response: Response) -> list[ev.Event]:
        """Hear what a create was answered with."""
        assert call.command_id is not None
        ok = 200 <= response.status < 300
        body = raw.json_of(response)
        session = body.get("id") if isinstance(body, dict) else None
        if not ok or not isinstance(session, str) or not is_segment(session):
            self._s.first = self._s.pending = None
            error = posts.refusal(response) if not ok else posts.no_id(response)
            return [raw.settled(call.command_id, "refused", error)]
        self._s.session = session
        agent: dict[str, Any] = {"id": body.get("agentId") or self._agent}
        if isinstance(body.get("agentVersion"), int):
            agent["version"] = body["agentVersion"]
        user_id = body.get("userId")
        native = ev.NativeRef(dialect=wire.DIALECT, id=session, at=text_in(body, "createdAt"))
        return [
            ev.SessionUpdated(
                thread_id=ev.MAIN,
                agent=agent,
                options={"userId": user_id} if isinstance(user_id, str) else None,
                native=native,
                extra=rest_of(body, _SESSION_KEYS),
            )
        ]

    def administered(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        """Hear what a command for the session as a whole was answered with."""
        assert call.command_id is not None
        ok = 200 <= response.status < 300
        gone = call.name == "delete" and response.status in (404, 410)
        if not ok and not gone:
            return [raw.settled(call.command_id, "refused", posts.refusal(response))]
        out: list[ev.Event] = [raw.settled(call.command_id, "taken")]
        match call.name:
            case "archive":
                out.append(ev.SessionUpdated(thread_id=ev.MAIN, archived_at=now, synthetic=True))
            case "reset":
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="completed", synthetic=True))
                self._s.wanted = False
            case "delete":
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="deleted", synthetic=True))
                self._s.wanted = False
            case _:
                sent: Any = parse_json(call.request.body or b"{}")
                out.append(
                    ev.SessionUpdated(
                        thread_id=ev.MAIN,
                        title=sent.get("title"),
                        metadata=sent.get("metadata"),
                        synthetic=True,
                    )
                )
        return out

    def looked(self, response: Response) -> tuple[list[ev.Event], bool]:
        """Hear the session object, and return whether it says that nothing runs."""
        body = raw.json_of(response)
        if not 200 <= response.status < 300 or not isinstance(body, dict):
            return [], False
        out: list[ev.Event] = []
        title = text_in(body, "title")
        if title is not None and title != self._s.title:
            self._s.title = title
            out.append(ev.SessionUpdated(thread_id=ev.MAIN, title=title, synthetic=True))
        return out, body.get("status") == "idle"
