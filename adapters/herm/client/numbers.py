"""What of the backend's count was seen, and so what is old, new or early.

For stored envelopes a `sequence` at or below the highest processed is old; for deltas, whose
numbers may be missing, equal or of another counter (section 4.4), their id, and just after a
reconnect their number. `sequence` rises (section 4.1), so a number that leaves a hole is early.
"""

from __future__ import annotations

import collections
from typing import Any

from adapters.herm.client.envelopes import are_all, id_of, is_delta, sequence_of
from adapters.herm.client.records import KEPT, Place, State
from adapters.paths import is_header_value

__all__ = ["HOLES", "Numbers"]

HOLES = 3
"""After so many holes on a stream of which the list knows nothing, the numbers have holes of their
own, which the page allows (section 4.4), and are waited for no more."""

RECENT = 4_096
"""Envelope ids that are remembered to know repeats of what has no number."""


class Numbers:
    """Where in the count the stream is, and the ids and numbers that say what is known besides."""

    __slots__ = ("_at", "_s", "catching_up", "holes", "recent")

    def __init__(self, state: State, place: Place) -> None:
        self._s = state
        self._at = place
        # What a lost connection or a restart makes anew.
        self.recent: collections.OrderedDict[str, None] = collections.OrderedDict()
        self.catching_up = False
        self.holes = 0

    def opened(self) -> None:
        """Hear that a stream begins."""
        self.catching_up = True
        self.holes = 0

    def is_old(self, envelope: dict[str, Any]) -> bool:
        """Say whether an envelope was processed before; inputs are known by their ids,
        elsewhere."""
        if envelope["type"].startswith("user."):
            return False
        id_ = id_of(envelope)
        if id_ in self.recent or (id_ and id_ in self._s.unnumbered):
            return True
        number = sequence_of(envelope)
        if number is None:
            return False
        if is_delta(envelope):
            return self.catching_up and number <= max(self._at.mark, self._at.delta_mark)
        return number <= self._at.mark

    def before_new(self) -> int | None:
        """Return the number after which new ones are expected; None where nothing tells it."""
        number = max(self._at.mark, self._at.delta_mark)
        if not number and self._s.inputs:
            # Nothing was shown yet: the first input is where the numbers begin.
            return min(self._s.inputs) - 1
        return number or None

    def is_early(self, envelope: dict[str, Any]) -> bool:
        """Say whether the numbers show that something is missing before an envelope."""
        number, before = sequence_of(envelope), self.before_new()
        if number is None or before is None or number <= before + 1:
            return False
        if self._s.session is None or self.holes >= HOLES:
            return False
        return not are_all(range(before + 1, number), self._s.inputs)

    def is_known_input(self, id_: str, number: int | None) -> bool:
        """Say whether an input of somebody else was seen before."""
        if number is not None and number <= self._s.inputs_mark:
            return True
        return id_ in self.recent or bool(id_ and id_ in self._s.unnumbered)

    def know_foreign(self, id_: str, number: int | None) -> None:
        """Remember an input of somebody else; in the state, so that it is known after a restart
        too."""
        if id_:
            self.recent[id_] = None
        if number is not None:
            self._s.inputs_mark = number
        elif id_:
            self._s.unnumbered = [*self._s.unnumbered, id_][-KEPT:]

    def know_input(self, number: int | None) -> None:
        """Remember a number that an input has, until the stream is past it."""
        s, past = self._s, max(self._at.mark, self._at.delta_mark)
        if number is not None and number > past and number not in s.inputs:
            s.inputs = [*(n for n in s.inputs if n > past), number][-KEPT:]

    def count(self, envelope: dict[str, Any]) -> None:
        """Take an envelope that is processed."""
        id_, number = id_of(envelope), sequence_of(envelope)
        if id_:
            self.recent[id_] = None
            if len(self.recent) > RECENT:
                self.recent.popitem(last=False)
            # An id that a list gave is a position too; the stream's own `id:` lines are ids.
            if is_header_value(id_):
                self._at.last_id = id_
        if number is None:
            if id_ and not is_delta(envelope):
                self._s.unnumbered = [*self._s.unnumbered, id_][-KEPT:]
            return
        before = self.before_new() or 0
        if self._at.listed >= before and are_all(range(before + 1, number), self._s.inputs):
            self._at.listed = max(self._at.listed, number)
        if is_delta(envelope):
            if number > max(self._at.mark, self._at.delta_mark):
                self.catching_up = False
            self._at.delta_mark = max(self._at.delta_mark, number)
        else:
            self.catching_up = False
            self._at.mark = max(self._at.mark, number)
