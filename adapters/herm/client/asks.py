"""Open requests: permissions, questions, sealed ones; and what was answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.herm import wire
from adapters.herm.client.contents import content_blocks
from adapters.herm.client.envelopes import text_in
from adapters.herm.client.records import Given, OpenCall, OpenRequest, State
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.interactions import answer_of
from adapters.wire.errors import NotSupported, cut

APPROVAL_OPTIONS = (
    ev.Option(id="allow", label="Allow", decision="allow", scope="once", style="primary"),
    ev.Option(
        id="allow_session", label="Allow for this session", decision="allow", scope="session"
    ),
    ev.Option(id="allow_always", label="Always allow", decision="allow", scope="always"),
    ev.Option(id="deny", label="Deny", decision="deny", style="danger"),
)
"""A tool confirmation names no options; these are its results and scopes (section 3.2)."""

_SEALED_FIELDS = {"user.sudo_result": "password", "user.secret_result": "value"}

SEALED_NAMES = tuple(name.encode() for name in _SEALED_FIELDS)
"""Types of events that carry a sealed value."""


class Asks:
    """What the agent waits for."""

    __slots__ = ("_s",)

    def __init__(self, state: State) -> None:
        self._s = state

    # Asking.

    def ask(
        self, name: str, kind: ev.InteractionKind, native: ev.NativeRef, **fields: Any
    ) -> list[ev.Event]:
        """Open a request. `posted` says what options post, where that is not their labels."""
        s = self._s
        options: Sequence[ev.Option] = fields.get("options") or ()
        labels = {option.id: option.label for option in options}
        labels |= fields.pop("posted", {})
        s.put_back(name, native.id)
        s.requests[name] = OpenRequest(
            kind=kind, call=fields.get("call_id"), envelope=native.id, labels=labels
        )
        return [
            ev.InteractionRequested(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                request_id=name,
                kind=kind,
                native=native,
                **fields,
            )
        ]

    def permission(self, call_id: str, call: OpenCall, native: ev.NativeRef) -> list[ev.Event]:
        """Ask whether a call may run."""
        call.asked = True
        return self.ask(
            call_id,
            "approval",
            native,
            prompt=call.preview or f"Allow `{call.tool}`?",
            options=APPROVAL_OPTIONS,
            call_id=call_id,
            details=_details(call),
        )

    def result(self, call_id: str, call: OpenCall, native: ev.NativeRef) -> list[ev.Event]:
        """Ask for the result of a tool that the client runs."""
        call.asked = True
        return self.ask(
            call_id,
            "tool_result",
            native,
            prompt=f"Run `{call.tool}` and give its result.",
            freeform=True,
            call_id=call_id,
            details=_details(call),
        )

    def late(self, name: str, native: ev.NativeRef) -> list[ev.Event]:
        """Make a request of an id that only a pause names: an open call, or something not told."""
        for call_id, call in self._s.calls.items():
            if name in (call_id, call.envelope):
                return self.permission(call_id, call, native)
        return self.ask(
            name,
            "unknown",
            native,
            prompt="The agent waits for an answer and does not say for which.",
        )

    def named(self, name: str) -> str | None:
        """Match an `event_ids` entry: payload id, request id, envelope id, in that order (section
        4.6)."""
        if name in self._s.requests:
            return name
        for request_id, request in self._s.requests.items():
            if request.envelope == name:
                return request_id
        return None

    def of_call(self, call_id: str) -> str | None:
        """Return the request that is about a call."""
        return next((n for n, r in self._s.requests.items() if r.call == call_id), None)

    def is_over(self, name: str) -> bool:
        """Say whether what an id names was answered, or has returned: it is asked no more."""
        return name in self._s.over

    # Answers.

    def answer(self, command_id: str, command: cmd.AnswerInteraction) -> dict[str, Any]:
        """Return an answer as the event that carries it, and remember it."""
        request = self._s.requests.get(command.request_id)
        if request is None:
            raise NotSupported(f"herm: request `{command.request_id}` is not open any more")
        native = command.request_id
        outcome: ev.InteractionOutcome = "answered"
        payload: dict[str, Any]
        match request.kind:
            case "approval":
                allowed = command.decision == "allow"
                outcome = "approved" if allowed else "denied"
                payload = {"type": "user.tool_confirmation", "tool_use_id": native}
                payload["result"] = "allow" if allowed else "deny"
                if allowed and command.scope is not None:
                    payload["scope"] = command.scope
            case "tool_result":
                content = command.content or (ev.Text(text=command.text or ""),)
                payload = {
                    "type": "user.custom_tool_result",
                    "tool_use_id": native,
                    "content": content_blocks(content),
                    "is_error": command.is_error,
                }
            case "sudo" | "secret" | "unknown":
                type_ = "user.sudo_result" if request.kind == "sudo" else "user.secret_result"
                field = _SEALED_FIELDS[type_]
                payload = {"type": type_, "request_id": native}
                # The one place where a sealed value is revealed; the empty string declines.
                payload[field] = "" if command.sealed is None else command.sealed.reveal()
                outcome = "answered" if command.sealed is not None else "skipped"
            case _:
                chosen = ", ".join(request.labels.get(name, name) for name in command.option_ids)
                words = "" if command.skip else command.text or chosen
                payload = {"type": "user.clarify_result", "request_id": native, "answer": words}
                outcome = "answered" if words else "skipped"
        scope = command.scope or "once" if outcome == "approved" else None
        told = answer_of(command).model_dump(mode="json", exclude_defaults=True)
        request.answer = Given(command_id, outcome, scope, told)
        return payload

    def may_be_other(self, command_id: str, payload: dict[str, Any]) -> bool:
        """Say whether a refused secret may be a password: which of the two was asked for was not
        told."""
        _, request = self.answered_by(command_id)
        unknown = request is not None and request.kind == "unknown"
        return unknown and payload["type"] == "user.secret_result"

    @staticmethod
    def other_sealed(payload: dict[str, Any]) -> dict[str, Any]:
        """Return a secret as a password."""
        return {
            "type": "user.sudo_result",
            "request_id": payload["request_id"],
            "password": payload["value"],
        }

    def answered_by(self, command_id: str) -> tuple[str, OpenRequest | None]:
        """Return the request that a command answers, by its id."""
        for request_id, request in self._s.requests.items():
            if request.answer is not None and request.answer.command_id == command_id:
                return request_id, request
        return "", None

    def answered_elsewhere(self, payload: dict[str, Any]) -> None:
        """Remember the answer of somebody else."""
        request = self._s.requests.get(self.asked_by(payload))
        if request is None or request.answer is not None:
            return
        outcome: ev.InteractionOutcome = "answered"
        if payload.get("result") in ("allow", "deny"):
            outcome = "approved" if payload["result"] == "allow" else "denied"
        answer: dict[str, Any] = {}
        if text_in(payload, "answer"):
            answer["text"] = cut(payload["answer"], wire.MAX_BLOCK_TEXT)
        request.answer = Given(None, outcome, None, answer)

    def asked_by(self, payload: dict[str, Any]) -> str:
        """Return the request that an answer names, or nothing."""
        native = text_in(payload, "tool_use_id") or text_in(payload, "request_id") or ""
        return self.named(native) or ""

    def release(self, command_id: str) -> list[ev.Event]:
        """Let what a command answered be answered again."""
        request_id, request = self.answered_by(command_id)
        if request is None:
            return []
        request.answer = None
        return [raw.released(request_id, command_id)]

    # Ends.

    def resolve_answered(self, native: ev.NativeRef) -> list[ev.Event]:
        """Resolve what we answered, and what somebody else must have answered: the agent works
        again."""
        requests = self._s.requests
        answered = [name for name, one in requests.items() if one.answer is not None or one.gone]
        if not answered and len(requests) == 1:
            answered = list(requests)
        return [event for name in answered for event in self.resolve(name, native)]

    def resolve(
        self, name: str, native: ev.NativeRef | None, *, denied: bool | None = None
    ) -> list[ev.Event]:
        """Resolve a request: with our answer where we gave one, else with what the backend
        shows."""
        request = self._s.requests.pop(name, None)
        if request is None:
            return []
        answer = request.answer
        if answer is not None or request.gone:
            self._s.put_over(name, request.envelope)
        outcome: ev.InteractionOutcome = "unknown" if answer is None else answer.outcome
        if answer is None and denied is not None and request.kind == "approval":
            outcome = "denied" if denied else "approved"
        given = ev.Answer(**answer.answer) if answer is not None and answer.answer else None
        call = self._s.calls.get(request.call or "")
        if outcome == "denied" and call is not None:
            call.denied = True
        out: list[ev.Event] = []
        if request.kind == "tool_result" and answer is not None and call is not None:
            out.append(self._returned(request, given or ev.Answer(), native))
        out.append(
            ev.InteractionResolved(
                thread_id=ev.MAIN,
                turn_id=self._s.turn,
                request_id=name,
                outcome=outcome,
                answer=given,
                scope=None if answer is None else answer.scope,
                native=native,
                synthetic=True,
            )
        )
        return out

    def _returned(
        self, request: OpenRequest, given: ev.Answer, native: ev.NativeRef | None
    ) -> ev.Event:
        """Return the result of a custom tool, which has no event: it is what was sent (section
        4.5)."""
        assert request.call is not None
        del self._s.calls[request.call]
        return ev.ToolReturned(
            thread_id=ev.MAIN,
            turn_id=self._s.turn,
            call_id=request.call,
            content=given.content,
            output_known=given.content is not None,
            is_error=given.is_error,
            status="failed" if given.is_error else "completed",
            native=native,
            synthetic=True,
        )


def _details(call: OpenCall) -> dict[str, Any]:
    """Return what a request about a call tells of it."""
    return {"tool": call.tool, "input": call.input} if call.kept else {"tool": call.tool}
