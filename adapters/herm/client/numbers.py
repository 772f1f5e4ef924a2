"""What of the backend's count was seen, and so what is old, new or early.

For stored envelopes a `sequence` at or below the highest processed is old; for deltas, whose
numbers may be missing, equal or of another counter (section 4.4), their id and what they say, and
just after a reconnect their number. An id alone says nothing: others may have the same one.
`sequence` rises (section 4.1), so a number that leaves a hole is early.
"""

from __future__ import annotations

import collections
import zlib
from typing import Any

from adapters.herm.client.envelopes import are_all, check_of, id_of, is_delta, sequence_of
from adapters.herm.client.records import KEPT, HermClientState, HermStreamPosition
from adapters.wire.url_paths import is_header_value

HOLES = 3
"""After so many holes on a stream that the list cannot explain, the numbers have holes of their
own, which the page allows (section 4.4), and are waited for no more."""

RECENT = 4_096
"""Envelopes that are remembered to know repeats of what has no number: their ids, and sums of what
they say."""


class Numbers:
    """Where in the count the stream is, and the ids and numbers that say what is known besides."""

    __slots__ = ("_at", "_looked", "_recent", "_s", "catching_up", "holes")

    def __init__(self, state: HermClientState, place: HermStreamPosition) -> None:
        self._s = state
        self._at = place
        # What a lost connection or a restart makes anew.
        # The envelope that is looked at, and what tells its repeats.
        self._looked: tuple[dict[str, Any], str | None] | None = None
        self._recent: collections.OrderedDict[str, None] = collections.OrderedDict()
        self.catching_up = False
        self.holes = 0

    def opened(self) -> None:
        """Record that a stream begins."""
        self.catching_up = True
        self.holes = 0

    def is_old(self, envelope: dict[str, Any]) -> bool:
        """Say whether an envelope was processed before; inputs are known by their ids,
        elsewhere."""
        if envelope["type"].startswith("user."):
            return False
        if self._is_known(self._repeat_of(envelope)):
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

    def _repeat_of(self, envelope: dict[str, Any]) -> str | None:
        """Return what tells the repeats of an envelope, which is asked about more than once."""
        looked = self._looked
        if looked is None or looked[0] is not envelope:
            looked = self._looked = envelope, key_of_repeat(envelope)
        return looked[1]

    def _is_known(self, repeat: str | None) -> bool:
        return repeat is not None and (repeat in self._recent or repeat in self._s.unnumbered)

    def _remember(self, repeat: str | None, *, numbered: bool) -> None:
        """Remember what tells a repeat; in the state, where no number tells it after a restart."""
        if repeat is None:
            return
        self._recent[repeat] = None
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        if not numbered:
            self._s.unnumbered = [*self._s.unnumbered, repeat][-KEPT:]

    def is_known_input(self, id_: str, number: int | None, key: str) -> bool:
        """Say whether an input of somebody else was seen before."""
        if number is not None and number <= self._s.inputs_mark:
            return True
        return self._is_known(_repeat_of_input(id_, number, key))

    def know_foreign(self, id_: str, number: int | None, key: str) -> None:
        """Remember an input of somebody else."""
        self._remember(_repeat_of_input(id_, number, key), numbered=number is not None)
        if number is not None:
            self._s.inputs_mark = number

    def know_input(self, number: int | None) -> None:
        """Remember a number that an input has, until the stream is past it."""
        s, past = self._s, max(self._at.mark, self._at.delta_mark)
        if number is not None and number > past and number not in s.inputs:
            s.inputs = [*(n for n in s.inputs if n > past), number][-KEPT:]

    def count(self, envelope: dict[str, Any]) -> None:
        """Take an envelope that is processed."""
        id_, number = id_of(envelope), sequence_of(envelope)
        told = number is not None or is_delta(envelope)
        self._remember(self._repeat_of(envelope), numbered=told)
        self._looked = None
        # An id that a list gave is a position too; the stream's own `id:` lines are ids.
        if id_ and is_header_value(id_):
            self._at.last_id = id_
        if number is None:
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


def key_of_repeat(envelope: dict[str, Any]) -> str | None:
    """Return what an envelope and its repeats have in common, and no other one."""
    id_ = id_of(envelope)
    return f"{check_of(envelope):08x} {id_}" if id_ else None


def _repeat_of_input(id_: str, number: int | None, key: str) -> str | None:
    """Return the same of an input, without what may be sealed in it."""
    check = zlib.crc32(f"{number} {key}".encode("utf-8", "surrogatepass"))
    return f"{check:08x} {id_}" if id_ else None
