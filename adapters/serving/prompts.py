"""Prompts: what a person reads of a request, so that it always says what it is about."""

from __future__ import annotations

from typing import Any

from adapters.model.events import InteractionRequested
from adapters.wire.jsonvalue import format_json


def lines_of(event: InteractionRequested) -> list[str]:
    """Return the lines of a request: its prompt, what an approval allows, and where to sign in,
    unless the prompt shows that."""
    details = event.details or {}
    lines = [event.prompt] if event.prompt else []
    if event.kind == "approval":
        tool = details.get("tool")
        if not lines:
            lines.append(f"Allow `{tool}`?" if tool else "Allow this?")
        subject = details.get("input", details.get("command"))
        if subject not in (None, {}) and not _shows(event.prompt, subject):
            words = subject if isinstance(subject, str) else format_json(subject).decode()
            lines.append(f"{tool}: {words}" if tool else words)
    elif event.kind == "authorization":
        lines += [
            f"{name}: {value}"
            for name in ("url", "user_code", "instructions")
            if isinstance(value := details.get(name), str) and value not in event.prompt
        ]
    return lines


def _shows(prompt: str, subject: Any) -> bool:
    """Say whether a prompt shows all words of a call's input."""
    if isinstance(subject, str):
        return subject in prompt
    if isinstance(subject, dict):
        return all(_shows(prompt, value) for value in subject.values())
    return format_json(subject).decode() in prompt
