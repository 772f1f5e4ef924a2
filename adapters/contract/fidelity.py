"""How faithfully a session crosses from one dialect to another: per event, per field, in numbers.

What a field loses has two causes: what the source's client codec could make of the native frame
(the `in` column of `## Events` in the source's MAPPING.md), and what the target's face can show of
the canonical field (`## Canonical` of the target's). The worse of the two counts, in the order of
`ORDER`. What our side added is `synthesized`, and is not counted where it is not shown: nothing is
lost of what was never said. Into its own dialect a field goes back by the `out` column of its row.

The `type` of an event counts as a field, so that an event without fields counts too. The envelope
(thread, turn, times, native reference) does not.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from adapters.contract.mapping import MASKED, EventRow, Mapping
from adapters.model import events as ev
from adapters.model.base import Fidelity
from adapters.model.state import REPAIRED
from adapters.wire.jsonvalue import format_json

ORDER = (Fidelity.EXACT, Fidelity.APPROXIMATED, Fidelity.SYNTHESIZED, Fidelity.DROPPED)
"""From the most faithful to the least."""

LOSSES = (Fidelity.APPROXIMATED, Fidelity.DROPPED)
"""What is less than was there."""

CANONICAL = "canonical"
"""The name of our own log where a dialect is named: it loses nothing."""

_RANK = {fidelity: rank for rank, fidelity in enumerate(ORDER)}
_ENVELOPE = frozenset(ev.Event.model_fields)


_SAID = {
    "message.received": {"content", "command_id"},
    "text.delta": {"text"},
    "text.completed": {"text"},
    "reasoning.delta": {"text"},
    "reasoning.completed": {"text"},
}
"""Words that somebody said, also where the event around them is ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One end of a translation: a dialect and its mapping, None for the canonical log."""

    dialect: str
    mapping: Mapping | None


@dataclasses.dataclass(slots=True)
class Loss:
    """A field that does not cross whole: how often, and why in the words of the mapping tables."""

    event: str
    path: str
    fidelity: Fidelity
    why: str
    times: int = 0


class Ledger:
    """Counts what each event of a session keeps on its way from `source` to `target`."""

    def __init__(self, source: Side, target: Side) -> None:
        self.source = source
        self.target = target
        self.events = 0
        self.totals: collections.Counter[Fidelity] = collections.Counter()
        self.by_type: dict[str, collections.Counter[Fidelity]] = {}
        self._native: dict[str, list[EventRow]] = {}
        for row in source.mapping.events if source.mapping is not None else ():
            for name in row.canonical:
                if row.fidelity_in not in ("dropped", "-"):
                    self._native.setdefault(name, []).append(row)
        self._same = source.dialect == target.dialect
        self._in: dict[tuple[str, str | None], tuple[Fidelity, Fidelity | None]] = {}
        self._why_in: dict[tuple[str, str | None], str] = {}
        self._losses: dict[tuple[str, Fidelity], Loss] = {}
        self._out: dict[str, Fidelity] = {}

    def add(self, event: ev.Event) -> dict[str, Fidelity]:
        """Count an event; return its fields and how faithfully each crosses."""
        fields: dict[str, Fidelity] = {}
        for name in fields_of(event):
            fidelity = self._field(event, name)
            if fidelity is not None:
                fields[name] = fidelity
        self.events += 1
        counts = self.by_type.setdefault(event.TYPE, collections.Counter())
        for name, fidelity in fields.items():
            counts[fidelity] += 1
            self.totals[fidelity] += 1
            if fidelity in LOSSES:
                self._lose(event, name, fidelity)
        return fields

    def losses(self, worst: Fidelity = Fidelity.APPROXIMATED) -> list[Loss]:
        """Return what was dropped, with `APPROXIMATED` also what was approximated, in the order of
        the session; of an event not each field that is lost with it.
        """
        found = [
            loss
            for loss in self._losses.values()
            if loss.fidelity is Fidelity.DROPPED or worst is Fidelity.APPROXIMATED
        ]
        whole = {loss.path: loss for loss in found}
        return [loss for loss in found if not _goes_with(loss, whole.get(loss.event))]

    def _lose(self, event: ev.Event, name: str, fidelity: Fidelity) -> None:
        path = event.TYPE if name == "type" else f"{event.TYPE}.{name}"
        loss = self._losses.get((path, fidelity))
        if loss is None:
            loss = Loss(event.TYPE, path, fidelity, self._why(event, name, path))
            self._losses[path, fidelity] = loss
        loss.times += 1

    def _why(self, event: ev.Event, name: str, path: str) -> str:
        """Return why a field does not cross whole."""
        source, target = self.source.dialect, self.target.dialect
        if isinstance(event, ev.Native):
            return f"only `{event.dialect}` has it"
        if name.startswith("extra."):
            return f"only `{source}` has it"
        taken, back = self._taken(event, name)
        native = event.native.type if event.native is not None else None
        why = self._why_in.get((path, native), "")
        shown = self._shown(event.TYPE, name)
        if not (self._same and back is not None) and _RANK[shown] >= _RANK[taken]:
            rows = {} if self.target.mapping is None else self.target.mapping.shown
            row = rows.get(path, rows.get(event.TYPE))
            otherwise = why if shown is taken else ""
            why = "" if row is None else row.why
            why = why or otherwise
        why = why.removeprefix(MASKED).strip()
        return (
            why or f"`{target}` cannot say it{' in full' if shown is not Fidelity.DROPPED else ''}"
        )

    def _field(self, event: ev.Event, name: str) -> Fidelity | None:
        """Return how a field crosses, or None for what was never said and is not shown."""
        if isinstance(event, ev.Native):
            at_home = event.dialect == self.target.dialect or self.target.mapping is None
            return Fidelity.EXACT if at_home else Fidelity.DROPPED
        if name.startswith("extra."):
            at_home = self.target.mapping is None or self._same
            return Fidelity.EXACT if at_home else Fidelity.DROPPED
        taken, back = self._taken(event, name)
        shown = back if self._same and back is not None else self._shown(event.TYPE, name)
        if taken is Fidelity.SYNTHESIZED and shown is Fidelity.DROPPED:
            return None
        if self._same and back is not None:
            # What was put in other words on the way in is put back on the way out.
            return shown
        return max(taken, shown, key=_RANK.__getitem__)

    def _taken(self, event: ev.Event, name: str) -> tuple[Fidelity, Fidelity | None]:
        """Return how the source's codec came by a field, and how its face writes it again, which
        is None for what no frame says.
        """
        said = name in _SAID.get(event.TYPE, ())
        if event.synthetic and not said:
            return Fidelity.SYNTHESIZED, None
        native = event.native.type if event.native is not None else None
        path = event.TYPE if name == "type" else f"{event.TYPE}.{name}"
        known = self._in.get((path, native))
        if known is None:
            rows = self._native.get(path) or ([] if said else self._native.get(event.TYPE, []))
            own = [row for row in rows if native is not None and _is_of(row.native, native)]
            first = next(iter(own or rows), None)
            if first is None:
                known = (Fidelity.EXACT, None)
            else:
                back = "dropped" if first.fidelity_out == "-" else first.fidelity_out
                known = (Fidelity(first.fidelity_in), Fidelity(back))
                self._why_in[path, native] = first.why
            self._in[path, native] = known
        return known

    def _shown(self, type_: str, name: str) -> Fidelity:
        """Return what a frontend of the target sees of a field."""
        mapping = self.target.mapping
        if mapping is None:
            return Fidelity.EXACT
        path = type_ if name == "type" else f"{type_}.{name}"
        known = self._out.get(path)
        if known is None:
            whole = mapping.shown.get(type_)
            row = mapping.shown.get(path, whole)
            if whole is None or row is None or {whole.fidelity, row.fidelity} & {"dropped", "-"}:
                known = Fidelity.DROPPED
            else:
                known = Fidelity(row.fidelity)
            self._out[path] = known
        return known


def _goes_with(loss: Loss, event: Loss | None) -> bool:
    """Tell whether a field is lost because its event is, or for the same reason."""
    if event is None or event is loss:
        return False
    if event.fidelity is Fidelity.DROPPED:
        return True
    return (loss.fidelity, loss.why) == (event.fidelity, event.why)


def _is_of(row: str, native: str) -> bool:
    return row == native or (row.startswith(native) and row[len(native)] in ".=[ ")


def fields_of(event: ev.Event) -> Iterator[str]:
    """Return the names of what an event says besides its envelope: `type`, its fields that are
    given, and the source's own as `extra.NAME`.
    """
    yield "type"
    for name, field in type(event).model_fields.items():
        if name not in _ENVELOPE and (
            field.is_required() or getattr(event, name) != field.get_default()
        ):
            yield name
    for name in event.extra or ():
        if name != REPAIRED:
            yield f"extra.{name}"


def counts_of(counts: collections.Counter[Fidelity]) -> dict[str, int]:
    """Return all four numbers, zeros included, best first."""
    return {str(fidelity): counts[fidelity] for fidelity in ORDER}


class Report:
    """The report of one translation as JSON text, in pieces: the events as they come, then sums.

    The pieces together are one object: `version`, `from`, `to`, `session_id`, `events` (of each
    `seq`, `type` and `fields`), `by_type`, `totals`, and what `close` is given.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._begun = False

    def add(self, entry: ev.Entry) -> bytes:
        """Return the piece of one entry of the log."""
        fields = self.ledger.add(entry.event)
        row = {"seq": entry.seq, "type": entry.event.TYPE, "fields": fields}
        return self._head(entry.session_id) + b"\n" + format_json(row)

    def _head(self, session_id: str | None) -> bytes:
        if self._begun:
            return b","
        self._begun = True
        head = {
            "version": 1,
            "from": self.ledger.source.dialect,
            "to": self.ledger.target.dialect,
            "session_id": session_id,
        }
        return format_json(head)[:-1] + b',"events":['

    def close(self, rest: dict[str, Any]) -> bytes:
        """Return the last piece: the sums, and the members of `rest`."""
        begun, head = self._begun, self._head(None)
        ledger = self.ledger
        tail = {
            "by_type": {name: counts_of(found) for name, found in sorted(ledger.by_type.items())},
            "totals": counts_of(ledger.totals),
            **rest,
        }
        return (b"" if begun else head) + b"\n]," + format_json(tail)[1:] + b"\n"
