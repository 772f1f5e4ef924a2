"""Open requests: permissions, questions, sealed ones; and what was answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from adapters.herm.client import answers
from adapters.herm.client.records import HermClientState, HermInteraction, HermToolCall
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.wire.errors import NotSupported

APPROVAL_OPTIONS = (
    ev.Option(id="allow", label="Allow", decision="allow", scope="once", style="primary"),
    ev.Option(
        id="allow_session", label="Allow for this session", decision="allow", scope="session"
    ),
    ev.Option(id="allow_always", label="Always allow", decision="allow", scope="always"),
    ev.Option(id="deny", label="Deny", decision="deny", style="danger"),
)
"""A tool confirmation names no options; these are its results and scopes (section 3.2)."""


@dataclasses.dataclass(slots=True)
class HermRequests:
    """What the agent waits for."""

    s: HermClientState

    # Asking.

    def ask(
        self, name: str, kind: ev.InteractionKind, native: ev.NativeRef, **fields: Any
    ) -> list[ev.Event]:
        """Open a request. `posted` says what options post, where that is not their labels."""
        s = self.s
        options: Sequence[ev.Option] = fields.get("options") or ()
        labels = {option.id: option.label for option in options}
        labels |= fields.pop("posted", {})
        s.put_back(name, native.id)
        request = HermInteraction(kind, fields.get("call_id"), native.id, labels=labels)
        s.asks.ask(name, request)
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

    def permission(self, call_id: str, call: HermToolCall, native: ev.NativeRef) -> list[ev.Event]:
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

    def result(self, call_id: str, call: HermToolCall, native: ev.NativeRef) -> list[ev.Event]:
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
        for call_id, call in self.s.calls.items():
            if name in (call_id, call.envelope):
                return self.permission(call_id, call, native)
        return self.ask(
            name,
            "unknown",
            native,
            prompt="The agent waits for an answer and does not say for which.",
        )

    def is_over(self, name: str) -> bool:
        """Say whether what an id names was answered, or has returned: it is asked no more."""
        return name in self.s.over

    # Answers.

    def answer(self, command_id: str, command: cmd.AnswerInteraction) -> dict[str, Any]:
        """Return an answer as the event that carries it, and remember it."""
        request = self.s.requests.get(command.request_id)
        if request is None:
            raise NotSupported(f"herm: request `{command.request_id}` is not open any more")
        payload, given = answers.answer(command_id, command, request)
        self.s.asks.give(command.request_id, given)
        return payload

    def may_be_other(self, command_id: str, payload: dict[str, Any]) -> bool:
        """Say whether a refused secret may be a password: which of the two was asked for was not
        told."""
        name = self.s.asks.given_by(command_id)
        unknown = name is not None and self.s.requests[name].kind == "unknown"
        return unknown and payload["type"] == "user.secret_result"

    # Ends.

    def resolve_answered(self, native: ev.NativeRef) -> list[ev.Event]:
        """Resolve what we answered, and what somebody else must have answered: the agent works
        again."""
        answered = self.s.asks.answered()
        return [event for name in answered for event in self.resolve(name, native)]

    def resolve(
        self, name: str, native: ev.NativeRef | None, *, denied: bool | None = None
    ) -> list[ev.Event]:
        """Resolve a request: with our answer where we gave one, else with what the backend
        shows."""
        s, request = self.s, self.s.requests.get(name)
        if request is None:
            return []
        if request.answer is not None or request.gone:
            s.put_over(name, request.envelope)
        shown: dict[str, Any] = {}
        if request.answer is None and denied is not None and request.kind == "approval":
            shown["outcome"] = "denied" if denied else "approved"
        found = s.asks.resolve(name, s.turn, native=native, synthetic=True, **shown)
        assert found is not None
        call = s.calls.get(request.call or "")
        if found.event.outcome == "denied" and call is not None:
            call.denied = True
        if request.kind != "tool_result" or found.given is None or call is None:
            return [found.event]
        return [self._returned(request, found.given.reply or ev.Answer(), native), found.event]

    def _returned(
        self, request: HermInteraction, given: ev.Answer, native: ev.NativeRef | None
    ) -> ev.Event:
        """Return the result of a custom tool, which has no event: it is what was sent (section
        4.5)."""
        assert request.call is not None
        del self.s.calls[request.call]
        return ev.ToolReturned(
            thread_id=ev.MAIN,
            turn_id=self.s.turn,
            call_id=request.call,
            content=given.content,
            output_known=given.content is not None,
            is_error=given.is_error,
            status="failed" if given.is_error else "completed",
            native=native,
            synthetic=True,
        )


def _details(call: HermToolCall) -> dict[str, Any]:
    """Return what a request about a call tells of it."""
    return {"tool": call.tool, "input": call.input} if call.kept else {"tool": call.tool}
