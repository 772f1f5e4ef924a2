"""Requests: their paths, bodies and tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

from multidict import CIMultiDict

from adapters.eve import wire
from adapters.eve.client.contents import wire_message
from adapters.eve.client.state import EveClientState
from adapters.model import commands as cmd
from adapters.model.base import Call, Request
from adapters.model.file_body import body_of, restored
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import format_json
from adapters.wire.url_paths import path_of

CREATE_OPTIONS = frozenset({"mode", "capabilities", "callback", "protocolVersion"})

FOLLOW_UP_OPTIONS = frozenset({"callback", "clientContext", "outputSchema"})
"""Members that only an eve frontend can name (sections 4.1 and 5)."""


@dataclasses.dataclass(slots=True)
class EvePosts:
    """The requests of a session."""

    state: EveClientState

    def said(self, command: cmd.SendMessage, options: frozenset[str]) -> dict[str, Any]:
        """Return the members of a request that are about a message; `options` are those that only
        an eve frontend names."""
        body: dict[str, Any] = {"message": wire_message(command.content)}
        if command.client_context is not None:
            body["clientContext"] = command.client_context
        if command.output_schema is not None:
            body["outputSchema"] = command.output_schema
        given = command.options or {}
        return body | {name: given[name] for name in options & given.keys()}

    def with_token(self, body: str) -> str:
        """Return a body that was kept without a token as it is sent."""
        if self.state.generation != "T":
            return body
        return f'{{"continuationToken":{format_json(self.state.token).decode()},{body[1:]}'

    def responses(self, name: str, body: dict[str, Any], command_id: str) -> Call:
        """Return a request with answers."""
        if self.state.generation == "T":
            body = {"continuationToken": self.state.token, **body}
        return self.post(name, self.path(), body, command_id)

    def path(self, *below: str) -> str:
        """Return the path of the session, or of what is below it."""
        if self.state.session is None:
            raise NotSupported("eve: there is no session yet: send a message first")
        return path_of(wire.SESSION_PATH, self.state.session, *below)

    def post(
        self, name: str, path: str, body: dict[str, Any] | None, command_id: str | None
    ) -> Call:
        """Return a request with a body."""
        headers: CIMultiDict[str] = CIMultiDict()
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else body_of(body)
        return Call(name, Request("POST", path, headers=headers, body=data), command_id=command_id)

    def raw_post(self, name: str, path: str, body: str, command_id: str | None) -> Call:
        """Return a request with a body that was kept."""
        headers = CIMultiDict({"Content-Type": "application/json"})
        request = Request("POST", path, headers=headers, body=restored(body.encode()))
        return Call(name, request, command_id=command_id)


def follow_up_options(command: cmd.AnswerInteraction) -> dict[str, Any]:
    """Return the members that an eve frontend has sent beside an answer."""
    options = command.options or {}
    return {name: options[name] for name in FOLLOW_UP_OPTIONS & options.keys()}
