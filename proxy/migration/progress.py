"""How far a shadow has come, as its own log says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from adapters.model import events as ev
from proxy.base.rows import SessionRow
from proxy.fanout.hub import entries_by_steps
from proxy.journal.base import Journal

MARK = "shadow"
"""The member of a shadow's metadata that says how far it has come."""

MOST_NOTES = 20
"""Notes that are kept of a shadow; each is a sentence."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a shadow has come: the number of its next `cue`, and the `seq` of the session that it
    shadows up to which it has had all. `end` is how many of its entries belong to that. `failed`
    says why it did not come further, and `lost` that it never will: it is not known whether its
    backend has an input. `notes` say what could not be repeated."""

    cue: int = 0
    seq: int = 0
    end: int = 0
    failed: str | None = None
    lost: bool = False
    notes: tuple[str, ...] = ()

    def after(self, cue: int, seq: int, failed: str | None, notes: Iterable[str]) -> Progress:
        """Return the progress after a run towards `seq`, whose script has as many cues as `cue`."""
        kept = tuple(dict.fromkeys((*self.notes, *notes)))[:MOST_NOTES]
        if failed is not None:
            return dataclasses.replace(self, failed=failed, notes=kept)
        return dataclasses.replace(self, cue=cue, seq=seq, failed=None, notes=kept)

    def event(self) -> ev.SessionUpdated:
        """Return what the shadow's log says of it."""
        mark = {"cue": self.cue, "seq": self.seq, "failed": self.failed, "notes": list(self.notes)}
        return ev.SessionUpdated(thread_id=ev.MAIN, metadata={MARK: mark}, synthetic=True)


def progress_of(log: Sequence[ev.Entry]) -> Progress:
    """Return how far a shadow has come, from its log."""
    out = Progress()
    cues: dict[str, int] = {}
    outcomes: dict[int, str | None] = {}
    for number, entry in enumerate(log):
        match entry.event:
            case ev.SessionUpdated(metadata={"shadow": dict() as mark}, synthetic=True):
                out = _read(mark, out, number)
            case ev.InputAccepted(details={"cue": int() as cue}, command_id=command_id):
                cues[command_id] = cue
                outcomes[cue] = None
            case ev.InputSettled(command_id=command_id, outcome=outcome) if command_id in cues:
                outcomes[cues[command_id]] = outcome
            case _:
                pass
    # What was refused is said again.
    had = [cue for cue, outcome in outcomes.items() if outcome != "refused"]
    lost = any(outcome in {"unknown", "withdrawn"} for outcome in outcomes.values())
    return dataclasses.replace(out, cue=max([out.cue, *(cue + 1 for cue in had)]), lost=lost)


def _read(mark: dict[str, Any], before: Progress, end: int) -> Progress:
    failed = mark.get("failed")
    return Progress(
        cue=int(mark.get("cue", 0)),
        seq=int(mark.get("seq", 0)),
        end=before.end if failed is not None else end,
        failed=failed,
        notes=tuple(mark.get("notes", ())),
    )


async def read_log(journal: Journal, row: SessionRow, most: int | None = None) -> list[ev.Entry]:
    """Return the log of a session, up to the seq `most`.

    Raises:
        CursorExpired: it is gone.
        JournalError: it cannot be read.
    """
    out: list[ev.Entry] = []
    async for chunk in journal.scan(row.key):
        async for entry in entries_by_steps(chunk.body, row.id):
            if most is not None and entry.seq > most:
                return out
            out.append(entry)
    return out
