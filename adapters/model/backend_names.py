"""The names that a backend knows requests by, for the commands that answer them.

The normalizer gives a request a name of its own where the backend uses an id a second time. Codecs
know the backend's ids only, so a command that goes to a codec takes them back here.
"""

from __future__ import annotations

from typing import TypeVar

from adapters.model.commands import AnswerInteraction, AnyCommand
from adapters.model.state import LogState
from adapters.wire.errors import NotSupported

C = TypeVar("C", bound=AnyCommand)


def for_backend(command: C, state: LogState) -> C:
    """Return a command that names requests as the backend does.

    Raises:
        NotSupported: it answers a request that is over, whose id names another one now.
    """
    if not isinstance(command, AnswerInteraction):
        return command
    open_ = state.interactions.get(command.request_id)
    if open_ is None:
        if state.request_of(command.request_id) is not None:
            raise NotSupported(
                f"Request `{command.request_id}` is over, and its id names another one now."
            )
        return command
    if open_.native_id == command.request_id:
        return command
    return command.model_copy(update={"request_id": open_.native_id})
