"""A codec with the session's part played around it, without IO: what it says is stored, and what is
stored is what a restart has.

`adapters.contract.step` is the way of an event here as in the proxy. What a test does with a codec
besides, as answering its calls, is the test's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adapters.contract.step import apply
from adapters.model import events as ev
from adapters.model.base import ClientCodec
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState

__all__ = ["Played", "folded"]


def folded(events: Sequence[ev.Event]) -> LogState:
    """Return what a log leaves open, as anybody who opens it finds it."""
    state = LogState()
    for seq, event in enumerate(events, 1):
        state.apply_entry(ev.Entry(seq, 0, "s", event))
    return state


class Played:
    """One session. `events` is its log, `snapshot` and `position` are what is stored of the codec.

    A subclass declares the type of its codec.
    """

    codec: Any

    def __init__(self, make: Callable[[], ClientCodec]) -> None:
        """Begin with an empty log; `make` gives a codec that has heard nothing."""
        self.make = make
        self.codec = make()
        self.normalizer = Normalizer(LogState())
        self.events: list[ev.Event] = []
        self.entries: list[ev.Entry] = []
        self.snapshot: bytes | None = None
        self.position: bytes | None = None

    @property
    def state(self) -> LogState:
        """Return what is open."""
        return self.normalizer.state

    def take(
        self,
        raw: Sequence[ev.Event],
        *,
        upstream: bool = True,
        at: int = 0,
        changes: bool = False,
        keep: bool = False,
    ) -> list[ev.Event]:
        """Store what raw events become, and return it; the keywords are those of `apply`."""
        batch = apply(
            *(self.codec, self.normalizer, raw, at, "s"),
            upstream=upstream,
            changes=changes,
            keep=keep,
        )
        self._tells_every_change()
        if batch is None:
            return []
        new = [entry.event for entry in batch.entries]
        self.events += new
        self.entries += batch.entries
        if batch.position is not None:
            self.position = batch.position
        if batch.state is not None:
            self.snapshot = batch.state
        return new

    def _tells_every_change(self) -> None:
        """A codec marks each change of its state: what says that nothing has changed is looked
        at, and a position that is asked for is what it would be then."""
        if not self.codec._kept.touched:
            said = self.codec.position
            self.codec._kept.touched = True
            assert self.codec.position == said

    def restart(self) -> None:
        """Lose what is in memory; let a new codec and a new normalizer take up what is stored."""
        self.codec = self.make()
        for event in self.events[:1]:
            if isinstance(event, ev.SessionStarted):
                self.codec.started(event)
        self.codec.restore(self.snapshot, self.position)
        self.normalizer = Normalizer(folded(self.events))

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the events of a type."""
        return [event for event in self.events if isinstance(event, kind)]
