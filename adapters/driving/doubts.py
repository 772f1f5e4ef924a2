"""Inputs whose answer was lost: nobody knows whether they arrived, until a list tells.

A doubt begins with a look at the list. What that brings decides, or says when to look again:

| the look | which one | then |
|---|---|---|
| `SHOWN` | any | `TAKEN` |
| `MISSING` | the first | `TELL`, and looked for once more after `LOOK_AGAIN_MS` |
| `MISSING` | a later one, begun too early | `WAIT`, until it is due |
| `MISSING` | a later one, begun when it was due | `LOST`: what was on its way is there by then |
| `UNREAD` | the first `LOOKS` - 1 of these | `WAIT`, and looked for after `LOOK_RETRY_MS` |
| `UNREAD` | one more | `UNKNOWN` |
| `GONE` | any | `UNKNOWN` |

When to look again is stored: a restart goes on waiting, and does not begin again.

An Engine is asked for each input by itself (`looking`). A Herm has one list for all doubts, which
was begun some time before it is read, and says when. Where there is no list,
`adapters.driving.silence` is the part.
"""

from __future__ import annotations

import dataclasses
import enum

from adapters.driving.part import CodecPart, soonest

LOOK_AGAIN_MS = 2_000
"""How long after a list that does not show an input it is asked once more: by then, what the broken
connection held has arrived. Ours."""

LOOKS = 12
LOOK_RETRY_MS = 5_000
"""How often, and how long after, a list that cannot be read is asked again for an input in doubt:
as long as a backend that is away is borne."""


class Evidence(enum.Enum):
    """What a look has brought."""

    SHOWN = enum.auto()
    """It arrived."""

    MISSING = enum.auto()
    """There is nothing of it."""

    UNREAD = enum.auto()
    """The list could not be had."""

    GONE = enum.auto()
    """The list could not be had so often that nobody asks for it any more."""


class LookVerdict(enum.Enum):
    """What a look means; but for the first two the doubt is over."""

    WAIT = enum.auto()
    """It is looked for again when it is due."""

    TELL = enum.auto()
    """The same, and it is time to say so."""

    TAKEN = enum.auto()
    LOST = enum.auto()
    UNKNOWN = enum.auto()


@dataclasses.dataclass(slots=True)
class UncertainInput:
    """`at` is when to look again, None until a look has brought nothing; `looks` counts those that
    could not be read."""

    at: int | None = None
    looks: int = 0


class _LookInProgress:
    """What is looked for just now concerns a connection: it is not a field, and is not stored."""

    __slots__ = ("looking",)

    def __post_init__(self) -> None:
        self.looking: set[str] = set()


@dataclasses.dataclass(slots=True)
class UncertainInputs(_LookInProgress, CodecPart):
    """The doubts by their commands' ids. `looking` are those that are looked for just now."""

    open: dict[str, UncertainInput] = dataclasses.field(default_factory=dict)

    @property
    def due(self) -> int | None:
        if not self.open:
            return None
        return soonest(*(doubt.at for doubt in self._resting().values()))

    def due_at(self, now: int) -> list[str]:
        """Return what is to be looked for now."""
        resting = self._resting().items()
        return [name for name, doubt in resting if doubt.at is not None and doubt.at <= now]

    def _resting(self) -> dict[str, UncertainInput]:
        return {name: doubt for name, doubt in self.open.items() if name not in self.looking}

    def look(self, command_id: str) -> None:
        """Record that an input is looked for: now, for the first time or again."""
        self.open.setdefault(command_id, UncertainInput())
        self.looking.add(command_id)

    def hear(
        self, command_id: str, evidence: Evidence, now: int, *, begun: int | None = None
    ) -> LookVerdict:
        """Hear what a look has brought, which was begun just now or some time before."""
        self.looking.discard(command_id)
        doubt = self.open[command_id]
        verdict = _verdict(doubt, evidence, now if begun is None else begun)
        match verdict:
            case LookVerdict.TELL:
                doubt.at = now + LOOK_AGAIN_MS
            case LookVerdict.WAIT if evidence is Evidence.UNREAD:
                doubt.at, doubt.looks = now + LOOK_RETRY_MS, doubt.looks + 1
            case LookVerdict.WAIT:
                pass
            case _:
                del self.open[command_id]
        return verdict

    def forget(self, command_id: str) -> None:
        """Record that the fate of an input is known otherwise."""
        self.open.pop(command_id, None)
        self.looking.discard(command_id)


def _verdict(doubt: UncertainInput, evidence: Evidence, begun: int) -> LookVerdict:
    if evidence is Evidence.SHOWN:
        return LookVerdict.TAKEN
    if evidence is Evidence.UNREAD:
        return LookVerdict.WAIT if doubt.looks < LOOKS - 1 else LookVerdict.UNKNOWN
    if evidence is Evidence.GONE:
        return LookVerdict.UNKNOWN
    if doubt.at is None:
        return LookVerdict.TELL
    return LookVerdict.WAIT if begun < doubt.at else LookVerdict.LOST
