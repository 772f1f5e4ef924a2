"""How a Herm carries each command, and what of one it cannot carry."""

from __future__ import annotations

from adapters.herm.client.contents import content_blocks
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Ability, Support
from adapters.wire.errors import NotSupported

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.NATIVE),
    "send_message": Ability(Support.NATIVE),
    "steer": Ability(Support.NATIVE),
    "interrupt": Ability(Support.NATIVE),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(
        Support.IMPOSSIBLE, "built-in tools run at the backend; only custom tools take results"
    ),
    "compact": Ability(Support.IMPOSSIBLE, "Herm has no route for it (herm page, section 2)"),
    "clear": Ability(Support.IMPOSSIBLE, "Herm has no route for it (herm page, section 2)"),
    "reset": Ability(Support.EMULATED, "the session is archived there and ends here", local=False),
    "archive": Ability(Support.NATIVE),
    "archive_thread": Ability(Support.IMPOSSIBLE, "Herm has no threads route (section 2)"),
    "delete": Ability(Support.NATIVE),
    "define_outcome": Ability(Support.IMPOSSIBLE, "Herm has no such event (section 3.2)"),
    "update_session": Ability(Support.NATIVE),
}


def check(command: cmd.AnyCommand) -> None:
    """Check that Herm can carry a command and every field of it.

    Raises:
        NotSupported: it cannot.
    """
    ability = ABILITIES[command.TYPE]
    if ability.support is Support.IMPOSSIBLE:
        raise NotSupported(f"herm: `{command.TYPE}` is impossible: {ability.how}")
    match command:
        case cmd.SendMessage():
            for name in ("output_schema", "edit_of", "retry_of", "system"):
                if getattr(command, name) is not None:
                    raise NotSupported(f"herm: `{name}` is impossible: no field carries it (3.2)")
            content_blocks(command.content, command.client_context)
        case cmd.AnswerInteraction(content=content) if content:
            content_blocks(content)
        case cmd.Interrupt(thread_id=thread) if thread not in (None, ev.MAIN):
            raise NotSupported("herm: a thread alone cannot be interrupted (section 3.2)")
        case cmd.UpdateSession(agent=agent) if agent is not None:
            raise NotSupported("herm: `agent` is pinned at creation (section 2.2)")
        case _:
            pass
