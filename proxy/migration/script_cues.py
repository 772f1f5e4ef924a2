"""What a cue of a script says again: its command, and its words for people."""

from __future__ import annotations

from collections.abc import Iterable

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.offline.replay import ReplayCue
from adapters.wire.errors import DragomanError, ErrorCode

MOST_SHOWN = 60
"""Characters of a text that are shown."""


class NotDriven(DragomanError):
    """The backend did something else than what was recorded, so the person's part cannot go on."""

    code = ErrorCode.RECORDING


def blobs_of(content: Iterable[ev.Content] | None) -> list[str]:
    """Return the hashes of the files in a message or an answer that are kept by us."""
    return [
        one.ref.sha256
        for one in content or ()
        if isinstance(one, ev.File) and isinstance(one.ref, ev.Blob)
    ]


_ASKED_AS_QUESTION = frozenset({"limit", "authorization", "tool_result"})
"""Kinds that not every dialect has."""


def may_be(kind: str, recorded: str) -> bool:
    """Say whether a dialect may ask so what was of another kind in another dialect."""
    if kind == recorded or "unknown" in (kind, recorded):
        return True
    return kind == "question" and recorded in _ASKED_AS_QUESTION


def command_of(cue: ReplayCue) -> cmd.AnyCommand:
    """Return the command of a cue other than an answer.

    Raises:
        NotDriven: the capture lacks what it needs.
    """
    if cue.name == "send_message":
        if cue.words is None:
            raise NotDriven(
                "The capture does not have the message that began a turn: record the requests too."
            )
        policy: ev.Policy = "withdraw" if cue.asked else "queue"
        return cmd.SendMessage(content=cue.content, policy=policy)
    if cue.name == "steer":
        text = "".join(one.text for one in cue.content if isinstance(one, ev.Text))
        return cmd.Steer(text=text)
    make = cmd.COMMAND_TYPES[cue.name]
    fields = {name: value for name, value in cue.details.items() if name in make.model_fields}
    # What it stopped has another id here.
    fields.pop("turn_id", None)
    found: cmd.AnyCommand = make.model_validate(fields)  # type: ignore[assignment]
    return found


def shown(cue: ReplayCue) -> str:
    if cue.name == "answer":
        return f"answer {cue.said}"
    if cue.words is None:
        return "message" if cue.name == "send_message" else cue.name
    words = cue.words if len(cue.words) <= MOST_SHOWN else f"{cue.words[:MOST_SHOWN]}…"
    return f"{'message' if cue.name == 'send_message' else cue.name} `{words}`"


def prompt(request: ev.InteractionRequested) -> str:
    prompt = " ".join(request.prompt.split())
    return f"for {request.kind} `{prompt[:MOST_SHOWN]}`" if prompt else f"for {request.kind}"
