"""The first message of a session, which is made for it."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from adapters.eve import wire
from adapters.eve.client.cursors import StreamCursors
from adapters.eve.client.inputs import EveInputs
from adapters.eve.client.posts import EvePosts
from adapters.eve.client.server_profile import ServerProfile, not_read
from adapters.eve.client.state import ConnectionState, EveClientState, FirstMessage
from adapters.eve.client.values import refusal
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Request, Response
from adapters.model.file_body import body_of
from adapters.wire.errors import ErrorCode
from adapters.wire.jsonvalue import parse_json

FIRST_MOST = 262_144
"""Bytes of a first message that are kept while its session is made; larger ones go with the create.
Ours."""

_CREATE_ONLY = frozenset({"mode", "capabilities"})

_WITH_MESSAGE = frozenset({"callback", "protocolVersion"})
"""Of these: what makes a session, and what a session is made with only beside a message."""


@dataclasses.dataclass(slots=True)
class FirstMessageSender:
    """The session is made first, then the server is asked whether its streams can be read, then the
    message is posted."""

    state: EveClientState
    connection: ConnectionState
    server: ServerProfile
    cursors: StreamCursors
    posts: EvePosts
    inputs: EveInputs

    def create(self, command_id: str, body: dict[str, Any]) -> Call:
        """Make the session without its first message, so that no lost answer hides where it went; a
        server that makes no session without one (before 0.59, section 4.1) says so."""
        create = self.posts.post("create", wire.SESSION_PATH, body, command_id)
        assert create.request.body is not None
        if len(create.request.body) > FIRST_MOST:
            return create
        if _WITH_MESSAGE & body.keys():
            self.state.first = FirstMessage(command_id, create.request.body.decode(), "")
            return self.info(command_id)
        follow_up = {name: body[name] for name in body if name not in _CREATE_ONLY}
        follow_up["turnPolicy"] = "queue"
        self.state.first = FirstMessage(
            command_id=command_id,
            create=create.request.body.decode(),
            message=body_of(follow_up).decode(),
        )
        return self.prewarm(command_id)

    def ask(self, call: Call) -> Call:
        """Ask the server which it is before a message goes into a session that was made before, as
        long as nothing of that is read; else return the call of the message."""
        s, body = self.state, call.request.body
        known = self.connection.informed or s.generation == "T" or self.cursors.of(ev.MAIN).count
        if known or s.first is not None or body is None or len(body) > FIRST_MOST:
            return call
        assert call.command_id is not None
        s.first = FirstMessage(call.command_id, "", body.decode())
        return self.info(call.command_id)

    def info(self, command_id: str) -> Call:
        """Return the call that asks which server it is."""
        return Call("info", Request("GET", wire.INFO_PATH), command_id=command_id)

    def informed(self, call: Call, ok: bool, body: dict[str, Any]) -> list[ev.Event]:
        """Post the message, unless nothing could be read of what comes of it; a server that does
        not say which it is may be read."""
        first, version = self.state.first, body.get("version")
        if first is None or first.command_id != call.command_id:
            return []
        if ok and type(version) is int and version > wire.NEWEST_INFO_VERSION:
            self.state.first = None
            served = f"{wire.FACTS_STREAM_VERSION} or later (its info is of version {version})"
            return self.inputs.not_sent(first.command_id, raw.error_info(not_read(served)))
        self.connection.informed = True
        first.next = "create" if self.state.session is None else "message"
        return []

    def prewarm(self, command_id: str) -> Call:
        """Return the call that makes a session without a message."""
        first: dict[str, Any] = {}
        if self.state.first is not None:
            # Without the marks of its files it is JSON.
            whole = cast(dict[str, Any], parse_json(self.state.first.create.replace("\0", "")))
            first = {name: whole[name] for name in _CREATE_ONLY & whole.keys()}
        return self.posts.post("prewarm", wire.SESSION_PATH, first or None, command_id)

    def prewarmed(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any]
    ) -> list[ev.Event]:
        """Post the first message into its session, or with the create where that needs it."""
        s = self.state
        command_id = call.command_id
        assert command_id is not None
        first = s.first
        if first is None:
            return []
        if ok:
            self.server.learn(response, body)
        if ok and s.session is not None:
            first.next = "message" if self.connection.informed else "info"
        elif response.status == 400:
            first.next = "create"
        else:
            s.first = None
            error = refusal(response)
            if ok:
                error = ev.ErrorInfo(
                    code=str(ErrorCode.BACKEND_PROTOCOL),
                    message="eve: a create answer without usable session id",
                )
            return self.inputs.not_sent(command_id, error)
        return []

    def recover(self, first: FirstMessage) -> Call | None:
        """Go on with a message that was not said yet: a session that was perhaps made is empty, and
        another is made. Without a session no stream is read that shows what became of it, so
        it goes on with a call, and is not both given up and sent."""
        if self.state.session is not None:
            first.next = first.next or "info"
            return None
        if first.message and first.next is None:
            return self.prewarm(first.command_id)
        first.next = None
        return self.info(first.command_id)

    def post_first(self, first: FirstMessage) -> Call:
        """Return the call that carries the first message, or the one before it."""
        if first.next == "info":
            first.next = None
            return self.info(first.command_id)
        self.state.first = None
        if first.next == "create":
            return self.posts.raw_post("create", wire.SESSION_PATH, first.create, first.command_id)
        message = self.posts.with_token(first.message)
        return self.posts.raw_post("message", self.posts.path(), message, first.command_id)
