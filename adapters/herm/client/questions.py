"""What `agent.clarify_request` asks, in its documented form and in newer ones: several questions,
choices with a value of their own, several choices at once (section 4.5)."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.herm.client.envelopes import text_in
from adapters.model import events as ev
from adapters.wire.jsonvalue import format_json

NOT_SAID = "The agent asks a question and does not say which."
SEVERAL = "Several may be chosen."

_WORDS = ("label", "text", "title", "name", "value")
"""Members of a choice that a person can read, the best one first."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClarifyQuestion:
    """A request's questions as one; `posted` says what each option posts."""

    prompt: str
    options: tuple[ev.Option, ...]
    posted: dict[str, str]


def question_of(payload: dict[str, Any]) -> ClarifyQuestion:
    """Return what a payload asks. One answer is taken for all its questions: of several, each
    stands in the prompt with its choices."""
    asked = [one for one in _questions(payload) if text_in(one, "question") or _choices(one)]
    told = text_in(payload, "question")
    if len(asked) == 1:
        (one,) = asked
        lines = [told, text_in(one, "question")]
        options = _choices(one)
        if one.get("multi_select") is True:
            lines.append(SEVERAL)
    else:
        options = []
        lines = [told, *(_line(number, one) for number, one in enumerate(asked, 1))]
    words = "\n".join(dict.fromkeys(line for line in lines if line))
    if not any(lines[:2]):
        # Its choices, if it has some, still tell something.
        words = f"{NOT_SAID}\n{words}".strip()
    return ClarifyQuestion(
        prompt=words,
        options=tuple(option for option, _ in options),
        posted={option.id: posted for option, posted in options},
    )


def _questions(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the questions, each as an object: those of the list, else what the payload itself
    asks."""
    several = [
        {"question": one} if isinstance(one, str) else one
        for one in _list(payload.get("questions"))
        if isinstance(one, str | dict)
    ]
    own = {name: payload.get(name) for name in ("question", "choices", "multi_select")}
    if not several:
        return [own]
    return [own, *several] if _choices(own) else several


def _line(number: int, one: dict[str, Any]) -> str:
    """Return one of several questions as a line of the prompt."""
    words = text_in(one, "question") or NOT_SAID
    labels = ", ".join(option.label for option, _ in _choices(one))
    several = f" {SEVERAL}" if one.get("multi_select") is True else ""
    return f"{number}. {words}{f' ({labels})' if labels else ''}{several}"


def _choices(one: dict[str, Any]) -> list[tuple[ev.Option, str]]:
    """Return the choices that can be read, each with what it posts."""
    found: dict[str, tuple[ev.Option, str]] = {}
    for choice in _list(one.get("choices")):
        fields = choice if isinstance(choice, dict) else {"label": choice}
        label = next((words for name in _WORDS if (words := _words(fields.get(name)))), None)
        if label is None:
            continue
        posted = _words(fields.get("value")) or label
        option = ev.Option(id=posted, label=label, description=text_in(fields, "description"))
        found.setdefault(posted, (option, posted))
    return list(found.values())


def _words(value: Any) -> str | None:
    """Return a text, a number or a flag as words, None where there are none."""
    if isinstance(value, str):
        return value if value.strip() else None
    return format_json(value).decode() if isinstance(value, bool | int | float) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
