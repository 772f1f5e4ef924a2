"""Older versions of eve's encoder, for sessions that were first read in one of them.

A reader comes back with a count of records, so that how many each event gives, and which, stays as
it was for the session's life. Each class differs from the one after it in what is written here.
"""

from __future__ import annotations

from typing import Any

from adapters import events as ev
from adapters.eve.server import EveEncoder


class EveEncoder1(EveEncoder):
    """Version 1: an approved call was told as such before its new turn, and a turn that ended at
    its pause was shown once more, empty; a message that was refused while a held turn
    rested was shown after it only. An answer that came to nothing gave no record but those of the
    pause."""

    version = 1
    asks_again = False

    def _settle_call(self, request: dict[str, Any], resolution: dict[str, Any]) -> None:
        pass

    def _ends_unseen(self, event: ev.TurnEnded) -> bool:
        return False

    def _stop(self, command_id: str) -> None:
        pass

    def _turn_paused(self, event: ev.TurnPaused) -> None:
        super()._turn_paused(event)
        if not self._closed_form:
            self._s.held = False
