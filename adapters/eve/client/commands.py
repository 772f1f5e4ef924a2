"""Commands become requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from adapters.eve import wire
from adapters.eve.client.input_requests import decided_by
from adapters.eve.client.parts import EveParts
from adapters.eve.client.posts import CREATE_OPTIONS, FOLLOW_UP_OPTIONS, follow_up_options
from adapters.eve.client.server_profile import STEER_FROM, not_read
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Request, Support
from adapters.wire.errors import NotSupported


@dataclasses.dataclass(slots=True)
class EveCommands:
    """The way from a command to a call."""

    parts: EveParts

    def check(self, command: cmd.AnyCommand) -> None:
        """Refuse what no eve does, and what one would do whose streams are not read."""
        self._check_read(command)
        ability = self.parts.server.abilities[command.TYPE]
        if ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"eve: `{command.TYPE}` is impossible: {ability.how}")
        # Requests of a child are shown on the parent and answered there (section 10).
        answers = isinstance(command, cmd.AnswerInteraction)
        if command.thread_id not in (None, ev.MAIN) and not answers:
            raise NotSupported(
                f"eve: `{command.TYPE}` for thread `{command.thread_id}` is impossible: "
                "a child takes no input (10)"
            )
        match command:
            case cmd.SendMessage():
                self._check_message(command)
            case cmd.Steer() if self.parts.state.asks.open:
                raise NotSupported(
                    "eve: `steer` is impossible while a request is open: "
                    "it would withdraw the request (5.1)"
                )
            case cmd.AnswerInteraction():
                self.parts.requests.check_answer(command)
            case cmd.UpdateSession() if command.agent is not None:
                raise NotSupported(
                    "eve: `agent` is impossible: no route changes an agent (section 3)"
                )
            case cmd.CreateSession() if command.environment_id is not None:
                raise NotSupported("eve: `environment_id` is impossible: no field carries it (4.1)")
            case cmd.Compact() | cmd.Clear() if self.parts.state.session is None:
                raise NotSupported(f"eve: `{command.TYPE}` needs a session: send a message first")

    def _check_read(self, command: cmd.AnyCommand) -> None:
        posted = self.parts.server.abilities[command.TYPE].support is Support.NATIVE
        foreign = self.parts.state.foreign
        if foreign is not None and (posted or isinstance(command, cmd.Steer)):
            raise not_read(foreign)

    def _check_message(self, command: cmd.SendMessage) -> None:
        if command.system is not None:
            raise NotSupported("eve: `system` is impossible: no field carries it (4.1)")
        if command.edit_of is not None or command.retry_of is not None:
            raise NotSupported(
                "eve: `edit_of` and `retry_of` are impossible: history is not rewritten (5)"
            )
        if not any(not isinstance(b, ev.Text) or b.text for b in command.content):
            raise NotSupported("eve: an empty message is impossible (4.1)")
        for block in command.content:
            if isinstance(block, ev.File) and isinstance(block.ref, ev.FileId):
                raise NotSupported(
                    f"eve: file `{block.ref.id}` is known to a {block.ref.dialect} backend only; "
                    "send its bytes or a URL"
                )
            url = getattr(getattr(block, "ref", None), "url", "")
            if url.startswith(wire.INTERNAL_SCHEMES):
                raise NotSupported("eve: URLs of the framework's own schemes are refused (4.2)")
            if not isinstance(block, ev.Text | ev.File | ev.SearchResult):
                raise NotSupported(
                    f"eve: a `{block.type}` block is impossible: no part carries it (4.2)"
                )

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        """Return the request of a command."""
        self._check_read(command)
        match command:
            case cmd.SendMessage():
                return self._send(command_id, command)
            case cmd.Steer():
                self.check(command)
                content = (ev.Text(text=command.text),)
                message = cmd.SendMessage(content=content, policy="steer")
                return self._send(command_id, message, kind="steer")
            case cmd.CreateSession() if self.parts.state.session is None:
                return Call("create", Request("POST", wire.SESSION_PATH), command_id=command_id)
            case cmd.AnswerInteraction():
                return self._answer(command_id, command)
            case cmd.Interrupt():
                return self.parts.cancellation.interrupt(command_id, command)
            case cmd.Compact() | cmd.Clear() | cmd.Reset():
                return self._control(command_id, command)
            case _:
                raise NotSupported(f"eve: nothing carries `{command.TYPE}` now")

    def submit_answers(
        self,
        answers: Mapping[str, cmd.AnswerInteraction],
        beside: tuple[str, cmd.SendMessage] | None = None,
    ) -> Call | None:
        """Section 8.2: one request with several answers is one turn, without a boundary in it; the
        token generation takes a message in it too (section 5)."""
        if any(self._goes_alone(command) for command in answers.values()):
            return None
        if beside is not None and not self._takes_beside(answers):
            beside = None
        if len(answers) == 1 and beside is None:
            return None
        first, *others = answers
        body: dict[str, Any] = {"inputResponses": []}
        for place, (command_id, command) in enumerate(answers.items()):
            response = self.parts.requests.response(command_id, command, step=first, place=place)
            body["inputResponses"].append(response)
            body |= follow_up_options(command)
        if beside is not None:
            command_id, message = beside
            body |= self.parts.posts.said(message, FOLLOW_UP_OPTIONS)
            self.parts.inputs.expect(command_id, message.content, "message", step=first)
            others.append(command_id)
        return dataclasses.replace(
            self.parts.posts.responses("answer", body, first), also=tuple(others)
        )

    def _goes_alone(self, command: cmd.AnswerInteraction) -> bool:
        """Say whether no answer on the wire is this one: that to a sign-in, or one that stops the
        turn."""
        return self.parts.requests.kind_of(
            command
        ) == "authorization" or self.parts.requests.needs_stop(command)

    def _takes_beside(self, answers: Mapping[str, cmd.AnswerInteraction]) -> bool:
        """Say whether the backend takes a message with these answers and does both in one turn: T
        does, once nothing else is asked. It puts the message aside while something is, and does it
        in a turn of its own after the answer to a child's request; after a limit it may be lost."""
        s = self.parts.state
        asked = {command.request_id for command in answers.values()}
        for request_id, request in s.asks.open.items():
            if request_id in asked:
                asked.remove(request_id)
                if request.thread_id != ev.MAIN or request.kind not in ("approval", "question"):
                    return False
            elif request.given is None or not request.given.taken:
                return False
        return s.generation == "T" and not asked and not s.unsaid

    def _send(
        self,
        command_id: str,
        command: cmd.SendMessage,
        *,
        kind: Literal["message", "steer"] = "message",
    ) -> Call:
        s = self.parts.state
        creates = s.session is None
        body = self.parts.posts.said(command, CREATE_OPTIONS if creates else FOLLOW_UP_OPTIONS)
        self.parts.inputs.expect(command_id, command.content, kind, creates=creates)
        if creates:
            return self.parts.first_message.create(command_id, body)
        if s.generation == "T":
            # First, where it is found again.
            body = {"continuationToken": s.token, **body}
            if s.unsaid:
                # Approvals that a cancel has opened again would hold the message back for ever; a
                # refusal of one that is not open would join the words of the message (section 8.2).
                body["inputResponses"] = list(s.unsaid)
        elif self.parts.server.at_least(STEER_FROM):
            body["turnPolicy"] = "steer" if command.policy in ("steer", "withdraw") else "queue"
        return self.parts.first_message.ask(
            self.parts.posts.post("message", self.parts.posts.path(), body, command_id)
        )

    def _answer(self, command_id: str, command: cmd.AnswerInteraction) -> Call:
        if self.parts.requests.kind_of(command) == "authorization":
            # Nothing on the wire answers a sign-in: it is cancelled with its turn, or left alone.
            if command.decision == "allow" or not (
                command.decision or command.option_ids or command.skip
            ):
                self.parts.requests.remember_answer(command_id, command, "approved")
                return Call("nothing", Request("GET", wire.HEALTH_PATH), command_id=command_id)
            self.parts.requests.remember_answer(command_id, command, "denied")
            return self.parts.cancellation.cancel_call("answer", command_id, None)
        if self.parts.requests.needs_stop(command):
            self.parts.requests.remember_answer(command_id, command, "cancelled", taken=True)
            return self.parts.cancellation.interrupt(command_id, cmd.Interrupt())
        response = self.parts.requests.response(command_id, command, step=command_id)
        body: dict[str, Any] = {"inputResponses": [response], **follow_up_options(command)}
        return self.parts.posts.responses("answer", body, command_id)

    def _control(self, command_id: str, command: cmd.Compact | cmd.Clear | cmd.Reset) -> Call:
        name = command.TYPE
        if self.parts.state.session is None:
            raise NotSupported(f"eve: `{name}` needs a session: send a message first")
        if self.parts.state.generation == "T":
            body = {"continuationToken": self.parts.state.token}
            return self.parts.posts.post(name, f"{wire.SESSION_PATH}/{name}", body, command_id)
        reason = command.reason if isinstance(command, cmd.Reset) else None
        return self.parts.posts.post(
            name, self.parts.posts.path(name), {"reason": reason} if reason else None, command_id
        )

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        """Look for a command in the stream: nothing else of an eve tells (section 5)."""
        s = self.parts.state
        if s.first is not None and s.first.command_id == command_id:
            return self.parts.first_message.recover(s.first)
        if any(retry.is_about(command_id) and retry.again.waits for retry in s.retries):
            # Refused for now, and so not taken: waiting goes on.
            return None
        if s.session is None or s.foreign is not None:
            # A create without an answer leaves no name to look under, and a stream that is not read
            # shows nothing.
            s.ledger.drop(command_id)
            return None
        if isinstance(command, cmd.SendMessage):
            self.parts.inputs.expect(command_id, command.content, "message")
        elif isinstance(command, cmd.Steer):
            self.parts.inputs.expect(command_id, (ev.Text(text=command.text),), "steer")
        elif isinstance(command, cmd.AnswerInteraction):
            request = s.asks.open.get(command.request_id)
            if request is not None and request.given is None:
                self.parts.requests.remember_answer(command_id, command, decided_by(command))
        s.silence.doubt(command_id)
        return None

    def take_calls(self) -> list[Call]:
        """Return what is to be sent now."""
        s = self.parts.state
        calls: list[Call] = []
        if s.first is not None and s.first.next:
            calls.append(self.parts.first_message.post_first(s.first))
        calls += self.parts.retries.take()
        return calls + self.parts.cancellation.take()
