"""A capture held against what its bodies give today: by meaning, and on each of its sides.

* Its log is what its backend's bodies give.
* What a frontend was told is what its dialect writes of the log. How a frontend's session is cut
  into requests does not count, and one that left early was not told the rest.
* Without a log of its own: its bodies are read without a frame that makes no sense.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from adapters.captures import BadCapture, Capture, CapturedExchange
from adapters.model import events as ev
from adapters.model.ignored_fields import ignored_of
from adapters.offline.captured_log import CapturedLog, read_exchanges
from adapters.offline.compare.difference import Comparison, compare
from adapters.offline.recorded_inputs import BadInput
from adapters.offline.translate import TranslateOptions, make_sink, make_source
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, NotSupported

Outcome = Literal["same", "differs", "cannot be read", "not compared"]

_ORDER: tuple[Outcome, ...] = ("cannot be read", "differs", "same", "not compared")
"""From what counts most."""

_FORMS = ("all", "tokens", "newest")
"""How eve is written: nothing in a capture says which form its frontend had."""

_OWN = frozenset(
    {
        ev.SessionStarted.TYPE,
        ev.InputAccepted.TYPE,
        ev.InputSettled.TYPE,
        ev.InteractionAnswered.TYPE,
    }
)
"""What Dragoman says of itself and of its frontends: no backend says it."""

_OURS = frozenset({ev.MessageReceived.TYPE, ev.TurnPaused.TYPE, ev.TurnResumed.TYPE})
"""What it says for a backend that does not, perhaps after a wait that the bodies do not have."""

_OWN_FIELDS = (
    "message.received.message_id",
    "message.received.command_id",
    "interaction.resolved.answer",
)
"""The ids that Dragoman gave to messages, and the words of an answer, which a frontend said."""

_INTERRUPTED = ("turn.ended.outcome", "interaction.resolved", "tool.returned")
"""What an interrupt makes of a turn: a driver knows that it sent one, and few streams say it."""


_FACE = re.compile(r"/as/([^/]+)/to/")


@dataclasses.dataclass(frozen=True, slots=True)
class VerificationCheck:
    """One thing that was looked at: `what` in words, and where it differs, `found`. `why` says what
    cannot be read, or why it was not compared."""

    what: str
    outcome: Outcome
    found: Comparison | None = None
    why: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        why = {} if self.why is None else {"why": self.why}
        found = self.found.differences if self.found is not None else ()
        differences = [one.as_json() for one in found]
        return {"what": self.what, "outcome": self.outcome, **why, "differences": differences}

    def lines(self) -> list[str]:
        """Return the first difference for people, and how many more there are."""
        if not self.found:
            return []
        return [f"{self.what}:", *self.found.lines("recorded", "today")]


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """What became of a capture."""

    name: str
    checks: tuple[VerificationCheck, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "checks": [check.as_json() for check in self.checks],
        }

    @property
    def why(self) -> str:
        """Why it, or a part of it, was not compared; nothing where all was."""
        return "; ".join(check.why for check in self.checks if check.why is not None)

    @property
    def outcome(self) -> Outcome:
        """What counts most of all checks."""
        outcomes = {check.outcome for check in self.checks}
        return next((one for one in _ORDER if one in outcomes), "not compared")


def verify(
    capture: Capture, dialect: str | None = None, ignore: Sequence[str] = ()
) -> Verification:
    """Hold a capture against its bodies. `dialect` is that of its backend, where nothing in it says
    that, and `ignore` has fields that may differ.

    Raises:
        UnknownField: no event has such a field.
    """
    ignored_of(ignore)
    dialect = dialect or capture.head.dialect or _dialect_of(capture.log)
    checks: list[VerificationCheck] = []
    log: Sequence[ev.Entry] = capture.log
    backend, frontend = capture.of_side("backend"), capture.of_side("frontend")
    if backend:
        check, reading = _read("the backend's bodies", capture, backend, dialect)
        if reading is None:
            checks.append(check)
        elif log:
            found = _compare(log, reading.log, ignore)
            checks.append(_compared("the log and the backend's bodies", found, reading.notes))
        elif _is_empty(reading):
            why = f"no stream says anything in `{dialect}`"
            checks.append(dataclasses.replace(check, outcome="cannot be read", why=why))
        else:
            checks.append(check)
            log = reading.log
    for spoken, exchanges in _by_dialect(frontend).items():
        checks.append(_of_frontend(capture, exchanges, spoken, log, ignore))
    if not checks:
        checks.append(VerificationCheck("the capture", "not compared", why="it has no bodies"))
    return Verification(capture.name, tuple(checks))


def _dialect_of(log: Sequence[ev.Entry]) -> str | None:
    natives = (entry.event.native for entry in log)
    return next((native.dialect for native in natives if native is not None), None)


def _compare(a: Sequence[ev.Entry], b: Sequence[ev.Entry], ignore: Sequence[str]) -> Comparison:
    interrupted = any(
        isinstance(entry.event, ev.TurnEnded) and entry.event.outcome == "interrupted"
        for entry in (*a, *b)
    )
    ignored = (*ignore, *_OWN_FIELDS, *(_INTERRUPTED if interrupted else ()))
    return compare(list(_of_backend(a)), list(_of_backend(b)), ignored)


def _of_backend(log: Sequence[ev.Entry]) -> Iterator[ev.Entry]:
    """Yield what a backend has said. What stands before the first turn tells how the session was
    made, which its answers say and not its streams."""
    begun = False
    for entry in log:
        event = entry.event
        begun = begun or isinstance(event, ev.TurnStarted)
        making = isinstance(event, ev.SessionUpdated) and not begun
        ours = event.synthetic and event.TYPE in _OURS
        if event.TYPE not in _OWN and not making and not ours:
            yield entry


def _by_dialect(frontend: Sequence[CapturedExchange]) -> dict[str | None, list[CapturedExchange]]:
    """Return the exchanges of frontends by their dialect, None where their target has none."""
    found: dict[str | None, list[CapturedExchange]] = {}
    for exchange in frontend:
        match = _FACE.match(urlsplit(exchange.request.target).path)
        found.setdefault(None if match is None else match[1], []).append(exchange)
    return found


def _compared(what: str, found: Comparison, notes: Sequence[str]) -> VerificationCheck:
    if not found:
        return VerificationCheck(what, "same", found)
    # What is missing in the bodies may be why.
    return VerificationCheck(what, "differs", found, "; ".join(notes) or None)


def _read(
    what: str, capture: Capture, exchanges: Sequence[CapturedExchange], dialect: str | None
) -> tuple[VerificationCheck, CapturedLog | None]:
    """Read bodies; without a reading where they cannot be read, or say nothing."""
    try:
        reading = read_exchanges(capture, exchanges, dialect)
    except BadInput as error:
        return VerificationCheck(what, "cannot be read", why=error.reason), None
    except BadCapture as error:
        return VerificationCheck(what, "cannot be read", why=error.reason), None
    except NotSupported as error:
        return VerificationCheck(what, "not compared", why=error.message), None
    if reading.skipped:
        frames = "1 frame makes" if reading.skipped == 1 else f"{reading.skipped} frames make"
        why = f"{frames} no sense, the first in {reading.first_skipped}"
        return VerificationCheck(what, "cannot be read", why=why), None
    return VerificationCheck(what, "same"), reading


def _is_empty(reading: CapturedLog) -> bool:
    return all(isinstance(entry.event, ev.SessionStarted) for entry in reading.log)


def _of_frontend(
    capture: Capture,
    exchanges: Sequence[CapturedExchange],
    dialect: str | None,
    log: Sequence[ev.Entry],
    ignore: Sequence[str],
) -> VerificationCheck:
    """Hold what a frontend was told against what its dialect writes of the log."""
    what = f"what a frontend of `{dialect}` was told"
    if dialect is None or dialect not in DIALECTS:
        why = "nothing says the dialect of a frontend: its requests have no /as/DIALECT/to/"
        return VerificationCheck("what a frontend was told", "not compared", why=why)
    check, reading = _read(what, capture, exchanges, dialect)
    if reading is None:
        return check
    if _is_empty(reading):
        return VerificationCheck(
            what, "not compared", why=f"a frontend of `{dialect}` read no stream"
        )
    if not log:
        return check
    nearest: Comparison | None = None
    try:
        for form in _FORMS:
            for written in _renderings(log, dialect, form, reading):
                found = _compare(reading.log, written, ignore)
                if not found:
                    return VerificationCheck(what, "same", found)
                if nearest is None or len(found.differences) < len(nearest.differences):
                    nearest = found
    except (DragomanError, BadInput) as error:
        why = f"the log cannot be written in `{dialect}`: {error}"
        return VerificationCheck(what, "cannot be read", why=why)
    return VerificationCheck(what, "differs", nearest)


def _renderings(
    log: Sequence[ev.Entry], dialect: str, form: str, reading: CapturedLog
) -> Iterator[list[ev.Entry]]:
    """Yield what a frontend may have been told of a log: all, or where it left or came to rest
    before others went on, as much as it has read."""
    yield _written(log, dialect, form, reading)
    if not reading.whole or isinstance(reading.log[-1].event, ev.TurnEnded):
        # A rendering grows with its log.
        much = bisect.bisect_left(
            range(len(log)),
            len(reading.log),
            key=lambda end: len(_written(log[:end], dialect, form, reading)),
        )
        # Some entries are shown by the next frame only, or not at all.
        for end in range(much, min(much + 4, len(log))):
            yield _written(log[:end], dialect, form, reading)


def _written(
    log: Sequence[ev.Entry], dialect: str, form: str, reading: CapturedLog
) -> list[ev.Entry]:
    """Return the log that a dialect's rendering of a log gives, with the same inputs."""
    options = TranslateOptions(
        session_id=reading.log[0].session_id, inputs=reading.inputs, form=form
    )
    sink, source = make_sink(dialect, options), make_source(dialect, options)
    entries: list[ev.Entry] = []
    for entry in log:
        entries += source.feed(sink(entry))
    return [*entries, *source.close()]
