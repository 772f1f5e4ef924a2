"""Answers as Herm takes them, and as it shows those of others."""

from __future__ import annotations

from typing import Any

from adapters.herm import wire
from adapters.herm.client.contents import content_blocks
from adapters.herm.client.envelopes import text_in
from adapters.herm.client.records import HermAnswer, HermInteraction
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import answer_of
from adapters.wire.errors import cut

_SEALED_FIELDS = {"user.sudo_result": "password", "user.secret_result": "value"}

SEALED_NAMES = tuple(name.encode() for name in _SEALED_FIELDS)
"""Types of events that carry a sealed value."""


def answer(
    command_id: str, command: cmd.AnswerInteraction, request: HermInteraction
) -> tuple[dict[str, Any], HermAnswer]:
    """Return an answer as the event that carries it, and as it is remembered."""
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
            payload = {"type": type_, "request_id": native}
            # The one place where a sealed value is revealed; the empty string declines.
            sealed = "" if command.sealed is None else command.sealed.reveal()
            payload[_SEALED_FIELDS[type_]] = sealed
            outcome = "answered" if command.sealed is not None else "skipped"
        case _:
            chosen = ", ".join(request.labels.get(name, name) for name in command.option_ids)
            words = "" if command.skip else command.text or chosen
            payload = {"type": "user.clarify_result", "request_id": native, "answer": words}
            outcome = "answered" if words else "skipped"
    scope = command.scope or "once" if outcome == "approved" else None
    said = answer_of(command).model_dump(mode="json", exclude_defaults=True)
    return payload, HermAnswer(command_id, outcome, scope, said)


def other_sealed(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a secret as a password."""
    return {
        "type": "user.sudo_result",
        "request_id": payload["request_id"],
        "password": payload["value"],
    }


def answer_shown(payload: dict[str, Any]) -> HermAnswer:
    """Return the answer of somebody else, as it is remembered."""
    outcome: ev.InteractionOutcome = "answered"
    if payload.get("result") in ("allow", "deny"):
        outcome = "approved" if payload["result"] == "allow" else "denied"
    words = text_in(payload, "answer")
    said = {"text": cut(words, wire.MAX_BLOCK_TEXT)} if words else {}
    return HermAnswer(None, outcome, None, said)


def request_named(payload: dict[str, Any]) -> str:
    """Return the name of the request that an answer is about, or nothing."""
    return text_in(payload, "tool_use_id") or text_in(payload, "request_id") or ""
