"""What a Hermes is told: the decision on a call that waits, and nothing else. Why a command cannot
be carried."""

from __future__ import annotations

from multidict import CIMultiDict

from adapters.driving.asks import InteractionAnswer
from adapters.hermes_agent import wire
from adapters.model import commands as cmd
from adapters.model.base import Ability, Call, Request, Support
from adapters.model.interactions import answer_of
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import format_json

_WATCHED = (
    "a Hermes that is reached by its hooks is watched and gated, not driven (page, section 1)"
)
_NOT_DRIVEN = Ability(Support.IMPOSSIBLE, _WATCHED)

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.IMPOSSIBLE, "Hermes makes its sessions itself"),
    "send_message": _NOT_DRIVEN,
    "steer": _NOT_DRIVEN,
    "interrupt": _NOT_DRIVEN,
    "answer": Ability(Support.NATIVE),
    "tool_result": _NOT_DRIVEN,
    "compact": _NOT_DRIVEN,
    "clear": _NOT_DRIVEN,
    "reset": Ability(Support.EMULATED, "the session ends here; Hermes goes on with it"),
    "archive": Ability(Support.EMULATED, "kept here"),
    "archive_thread": _NOT_DRIVEN,
    "delete": Ability(Support.EMULATED, "erased here; Hermes keeps its session"),
    "define_outcome": _NOT_DRIVEN,
    "update_session": Ability(Support.EMULATED, "title and metadata are kept here"),
}


def check(command: cmd.AnyCommand) -> None:
    """Check that a command can be carried.

    Raises:
        NotSupported: it cannot.
    """
    ability = ABILITIES[command.TYPE]
    if ability.support is Support.IMPOSSIBLE:
        raise NotSupported(f"hermes-agent: `{command.TYPE}` is impossible: {ability.how}")


def given(command_id: str, command: cmd.AnswerInteraction) -> InteractionAnswer:
    """Return what is remembered of an answer."""
    said = answer_of(command)
    if command.decision == "allow":
        return InteractionAnswer(command_id, "approved", said, scope="once")
    return InteractionAnswer(command_id, "denied", said)


def decision(key: str, blocked: str, command_id: str | None = None) -> Call:
    """Return the call that gives the sender of a waiting call its decision: `blocked` says why it
    must not run, and is empty where it may."""
    body = {"decision": "block", "message": blocked} if blocked else {"decision": "allow"}
    headers = CIMultiDict({"Content-Type": "application/json"})
    request = Request("POST", f"{wire.DECISIONS}{key}", headers=headers, body=format_json(body))
    return Call("decide", request, command_id=command_id)
