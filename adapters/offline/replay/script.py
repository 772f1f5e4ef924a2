"""A script: what an agent did, and the cues at which a person did something."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import decision_of


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerMeaning:
    """What an answer means. `words` are the labels of the options, or the text."""

    decision: str | None = None
    words: frozenset[str] = frozenset()
    skipped: bool = False
    failed: bool = False

    def __str__(self) -> str:
        if self.skipped:
            return "nothing (it was skipped)"
        if self.decision is not None:
            return f"`{self.decision}`"
        said = ", ".join(f"`{word}`" for word in sorted(self.words))
        return said or ("an error" if self.failed else "a value")


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayCue:
    """Something that a person did. `name` is the type of its command.

    `words` are those of a message, None where any will do. `request_id` and `said` are of an
    answer, None where any will do. `refused` is what the backend said where it refused it. A replay
    goes past a cue that does not wait; that of an answer which the log has no input of is `shown`
    by what came of it.

    `content` and `answer` are what was said, in full, `scope` says for how long it holds, and
    `details` what else the command had. `asked` says that the agent waited for a person then, and
    `after` names the type of what it had done last in the turn in which it worked.
    """

    name: str
    words: str | None = None
    request_id: str | None = None
    said: AnswerMeaning | None = None
    refused: ev.ErrorInfo | None = None
    waits: bool = True
    shown: bool = False
    content: tuple[ev.Content, ...] = ()
    answer: ev.Answer | None = None
    scope: Literal["once", "session", "always"] | None = None
    details: ev.JsonObject = dataclasses.field(default_factory=dict)
    asked: bool = False
    after: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayStep:
    """Something that the agent did, `at` its time in milliseconds; `cue` is the number of the input
    that it receives. What was received is as it is said where the log does not have it: `event` is
    a message without content then."""

    event: ev.Event
    at: int
    cue: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayScript:
    """The steps in their order. `cues` has the place of each cue, by its number, `requests` what
    was asked, by its id. `ends_asked` says that a person is waited for at the end."""

    steps: tuple[ReplayCue | ReplayStep, ...]
    cues: tuple[int, ...]
    requests: dict[str, ev.InteractionRequested]
    ends_asked: bool = False

    def cue(self, number: int) -> ReplayCue:
        """Return a cue by its number."""
        step = self.steps[self.cues[number]]
        assert isinstance(step, ReplayCue)
        return step


def words_of(content: Iterable[ev.Content] | None) -> str:
    """Return what a message says, for comparison: its words, and what else is in it."""
    parts: list[str] = []
    for block in content or ():
        if isinstance(block, ev.Text):
            parts += block.text.split()
        elif isinstance(block, ev.File):
            parts.append(f"({block.media_type or 'file'})")
        else:
            parts.append(f"({block.type})")
    return " ".join(parts)


def said_by(
    answer: cmd.AnswerInteraction | ev.Answer | None,
    request: ev.InteractionRequested,
    outcome: str | None = None,
    *,
    decision: str | None = None,
    skipped: bool = False,
) -> AnswerMeaning:
    """Return what an answer to a request means. `outcome` is what the backend made of it."""
    decision = decision or {"approved": "allow", "denied": "deny"}.get(outcome or "")
    skipped = skipped or outcome == "skipped"
    chosen = [] if answer is None else list(answer.option_ids)
    options = {option.id: option for option in request.options or ()}
    if request.kind in {"approval", "limit", "authorization"}:
        for name in chosen:
            if decision is None and name in options:
                decision = decision_of(options[name])[0]
        return AnswerMeaning(decision=decision)
    if request.kind in ev.SEALED_KINDS:
        return AnswerMeaning(skipped=skipped or decision == "deny")
    if skipped or answer is None:
        return AnswerMeaning(skipped=skipped)
    if request.kind == "tool_result":
        return AnswerMeaning(failed=answer.is_error)
    labels = [options[name].label if name in options else name for name in chosen]
    said = [*labels, *([answer.text] if answer.text else ()), words_of(answer.content)]
    words = frozenset(" ".join(word.split()).casefold() for word in said if word and word.strip())
    return AnswerMeaning(words=words)
