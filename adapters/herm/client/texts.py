"""Open runs of text and reasoning.

No list has deltas (section 4.4). Where some are missing, those after them are held back until the
whole text comes: not every frontend can put right what it was shown.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.herm import wire
from adapters.herm.client.envelopes import STATUS, ReceivedEnvelope, is_delta, sequence_of
from adapters.herm.client.numbers import Numbers
from adapters.herm.client.records import KEPT_BYTES, HermClientState, HermStreamPosition
from adapters.model import events as ev
from adapters.model import raw
from adapters.wire.jsonvalue import REPLACEMENT

KINDS = {"agent.message": "text", "agent.thinking": "reasoning"}
"""Types of envelopes that have texts, and what these are."""

_TEXT_KEYS = frozenset({"content", "delta"})


@dataclasses.dataclass(slots=True)
class TextRuns:
    """The runs of deltas that are open, at most one of each kind."""

    s: HermClientState
    at: HermStreamPosition
    numbers: Numbers
    # Until the first frames of a stream tell whether deltas were missed before them.
    _joined: bool = dataclasses.field(init=False, default=False)

    def opened(self, *, joined: bool) -> None:
        """Record that a stream begins, and whether it does so after something was missed."""
        self._joined = joined

    def join(self, envelope: dict[str, Any]) -> None:
        """Begin to hold back where deltas may be missing before one: a stream may begin in the
        middle of a text."""
        kind = KINDS.get(envelope["type"])
        if kind is None or not is_delta(envelope):
            return
        number, before = sequence_of(envelope), self.numbers.before_new()
        torn = self.numbers.is_early(envelope)
        if self._joined:
            torn = torn or number is None or before is None or number <= before
        elif number is None and before is not None and self.numbers.catching_up:
            # The list may be ahead of the stream, and nothing but what comes next tells it.
            torn = True
        self._joined = False
        if torn:
            self.s.withheld.setdefault(kind, "")

    def passed(self, envelope: dict[str, Any]) -> None:
        """Hear from the stream what ends a run of deltas: those before it are not needed, and those
        after it are another run."""
        type_ = envelope["type"]
        if is_delta(envelope) or not type_.startswith(("agent.", STATUS)):
            return
        self._joined = False
        if type_ in KINDS:
            self.s.withheld.pop(KINDS[type_], None)
        else:
            self.s.withheld.clear()

    def is_held_back(self, seen: ReceivedEnvelope) -> bool:
        """Say whether a piece of a text is held back that may be of a turn which is over."""
        return seen.payload.get("delta") is True and bool(self.s.withheld)

    def take(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """Return what a piece of a text, or a whole one, means in the turn that is open."""
        s, payload, kind = self.s, seen.payload, KINDS[seen.type]
        content = payload.get("content")
        text = wire.text_of_blocks(content)
        if REPLACEMENT in text:
            content = content if isinstance(content, list) else [content]
            text = raw.halved(wire.texts_of(content))
        delta = payload.get("delta") is True
        if delta and s.withheld:
            text = s.withheld.get(kind, "") + text
            if len(text) <= KEPT_BYTES:
                s.withheld[kind] = text
                return []
            # Too much to wait for the whole text.
            s.withheld.pop(kind, None)
        fields = {**self._block(kind), "native": seen.native}
        if delta:
            make_delta = ev.TextDelta if kind == "text" else ev.ReasoningDelta
            return [raw.delta_of(make_delta, text, **fields, extra=seen.extra(_TEXT_KEYS))]
        self.at.texts.pop(kind, None)
        s.withheld.pop(kind, None)
        # `status` is how a Dragoman says that a text was cut or taken back.
        told = payload.get("status")
        status: ev.BlockStatus = "complete"
        if told in ("partial", "discarded"):
            status = "partial" if told == "partial" else "discarded"
        make = ev.TextCompleted if kind == "text" else ev.ReasoningCompleted
        known = _TEXT_KEYS | ({"status"} if status != "complete" else set())
        return [make(**fields, text=text, status=status, extra=seen.extra(known))]

    def close(self, status: ev.BlockStatus, native: ev.NativeRef | None) -> list[ev.Event]:
        """Close open runs of deltas: a tool or an idle ends them (section 4.4), and then no whole
        text comes for what is held back."""
        out: list[ev.Event] = []
        held_back, self.s.withheld = self.s.withheld, {}
        for kind, text in held_back.items():
            make_delta = ev.TextDelta if kind == "text" else ev.ReasoningDelta
            out.append(make_delta(**self._block(kind), text=text, native=native))
        open_, self.at.texts = self.at.texts, {}
        return out + [
            raw.BlockEnded(
                thread_id=ev.MAIN,
                turn_id=self.s.turn,
                block="text" if kind == "text" else "reasoning",
                status=status,
                synthetic=True,
            )
            for kind in open_
        ]

    def _block(self, kind: str) -> dict[str, Any]:
        """Return what an event of the open run of a kind has, opened where it is not."""
        at = self.at
        block = at.texts.get(kind)
        if block is None:
            at.blocks += 1
            block = at.texts[kind] = f"b{at.blocks}"
        return {
            "thread_id": ev.MAIN,
            "turn_id": self.s.turn,
            "block_id": block,
            "message_id": block,
        }
