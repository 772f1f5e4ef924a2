"""What each scenario comes to in each of the pairs: the table that the tests play.

A scenario is a thing that a person does, or that an agent asks. Each cell is one of

* `NATIVE`: both dialects have it, and it goes through as what it is;
* `Carried`: one of them has no such thing, and it is carried in another form, which is said;
* `Refused`: it cannot be carried; the face says so in its own form: status and code;
* `Says`: the backend has no such thing to ask or to send: its agent says so in text.

Rows are read as frontend x backend: `GRID` below shows the three ways in which rows are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.pairs.frontends import FRONTENDS as PEOPLE
from tests.wire import given_messages, served

__all__ = ["BACKENDS", "FRONTENDS", "TABLE", "Carried", "Cell", "Native", "Refused", "Row", "Says"]

FRONTENDS = tuple(name for name in served() if name in PEOPLE)
BACKENDS = tuple(given_messages())
"""The dialects of either side, in the order of the registry: one may have only one side. What
comes of a scenario in another dialect of frontends, its own tests say: see `tests.pairs.table`."""


@dataclass(frozen=True, slots=True)
class Native:
    """It goes through as what it is."""


@dataclass(frozen=True, slots=True)
class Carried:
    """It arrives in another form."""

    how: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The face refuses it in its own form. `why` are words of the refusal's text."""

    status: int
    code: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Says:
    """The backend's agent says that it has no such thing."""

    words: str


Cell = Native | Carried | Refused | Says
Row = Mapping[tuple[str, str], Cell]

NATIVE = Native()


def every(cell: Cell) -> Row:
    """Return a row that is the same in all pairs."""
    return {(f, b): cell for f in FRONTENDS for b in BACKENDS}


def by_frontend(**cells: Cell) -> Row:
    """Return a row that only the face decides."""
    _check(cells, FRONTENDS, "frontend")
    return {(f, b): cells[f] for f in FRONTENDS for b in BACKENDS}


def by_backend(**cells: Cell) -> Row:
    """Return a row that only the backend decides."""
    _check(cells, BACKENDS, "backend")
    return {(f, b): cells[b] for f in FRONTENDS for b in BACKENDS}


def grid(**cells: tuple[Cell, ...]) -> Row:
    """Return a row by frontend; each has its cells on the backends, in the order of `BACKENDS`."""
    _check(cells, FRONTENDS, "frontend")
    return {(f, b): cell for f in FRONTENDS for b, cell in zip(BACKENDS, cells[f], strict=True)}


def _check(cells: Mapping[str, object], wanted: Sequence[str], side: str) -> None:
    missing = [name for name in wanted if name not in cells]
    if missing:
        raise LookupError(
            f"tests/pairs/expectations.py: each row of the table needs a cell for the {side} "
            f"`{missing[0]}`: what comes of the scenario there."
        )


NO_INTERRUPT = "engine: `interrupt` is impossible"
HELD = Carried("held until the turn is over: the backend cannot withdraw what it asks")
QUEUED = Carried("queued as the next message")
ANSWERS_NO = Carried("the setting `interrupt = deny` answers no")
NO_HERM_ROUTE = Refused(404, "not_found", "There is no")
NO_EVE_ROUTE = Refused(404, None, "")
NO_ENGINE_ROUTE = Refused(404, "NOT_FOUND", "There is no")


BUSY = by_frontend(
    herm=Refused(409, "turn_running", "is working"),
    eve=Carried("held by the session until the turn is over (turnPolicy queue)"),
    engine=Refused(409, "TASK_BUSY", "is working"),
)
NO_HERM = "Herm has no"
NO_EVE = "This eve has no"
NO_ENGINE = "The Engine has no"
NO_MANAGED_AGENTS = "Managed Agents has no"


def of_herm(cell: Cell, managed_agents: Cell = Says(NO_MANAGED_AGENTS)) -> tuple[Cell, ...]:
    """Return what only a Herm asks, or a service of Managed Agents as well, by backend."""
    return (cell, Says(NO_EVE), Says(NO_ENGINE), managed_agents)


def of_eve(cell: Cell) -> tuple[Cell, ...]:
    """Return what only an eve asks, by backend."""
    return (Says(NO_HERM), cell, Says(NO_ENGINE), Says(NO_MANAGED_AGENTS))


def of_questions(*cells: Cell) -> tuple[Cell, ...]:
    """Return what comes of a question on the backends that ask one: of each, or of all the same."""
    own = cells * 3 if len(cells) == 1 else cells
    return (*own, Says(NO_MANAGED_AGENTS))


QUESTION = grid(**dict.fromkeys(FRONTENDS, of_questions(NATIVE)))
AS_WORDS = Carried("a question whose words are the result")
NOT_SHOWN = Carried("not shown")
NO_FAILURE = Carried("words: no place for a failure")

TABLE: Mapping[str, Row] = {
    # Messages.
    "a first message": every(NATIVE),
    "a follow-up": every(NATIVE),
    "parallel tools": every(NATIVE),
    "a tool that fails": every(NATIVE),
    "a long answer": every(NATIVE),
    "files": grid(
        herm=(Refused(400, "validation_error", "attachments"),) * 4,
        eve=(Refused(409, "not_supported", "herm: a file is impossible"), NATIVE, NATIVE, NATIVE),
        engine=(
            Refused(400, "NOT_SUPPORTED", "herm: a file is impossible"),
            NATIVE,
            NATIVE,
            NATIVE,
        ),
    ),
    "a schema for the answer": grid(
        # Herm and the Engine have no member for it; theirs are ignored as unknown members are.
        herm=(Carried("the agent writes the JSON as text"),) * 4,
        eve=(
            Refused(409, "not_supported", "herm: `output_schema` is impossible"),
            NATIVE,
            Refused(409, "not_supported", "engine: `output_schema` is impossible"),
            Refused(409, "not_supported", "managed-agents: `output_schema` is impossible"),
        ),
        engine=(
            Carried("the agent writes the JSON as text"),
            Carried("the agent writes the JSON as text"),
            Carried("passed on as it is; the Engine itself refuses it"),
            Carried("the agent writes the JSON as text"),
        ),
    ),
    # A message while the agent works or waits.
    "a message while a turn runs": BUSY,
    # Clients of eve's session-ID generation withdraw a request by a message (eve page, 8.2).
    "a message while an approval is open": grid(
        herm=(Refused(409, "turn_running", "waits for an answer"),) * 4,
        eve=(
            Carried("the turn that asks is interrupted, then the message is posted"),
            NATIVE,
            HELD,
            HELD,
        ),
        engine=(Refused(409, "HITL_REQUIRED", "waits for an answer"),) * 4,
    ),
    "steer": grid(
        herm=(NATIVE, NATIVE, QUEUED, QUEUED),
        eve=(NATIVE, NATIVE, QUEUED, QUEUED),
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "interrupt": grid(
        herm=(NATIVE, NATIVE, Refused(400, "not_supported", NO_INTERRUPT), NATIVE),
        eve=(NATIVE, NATIVE, Refused(409, "not_supported", NO_INTERRUPT), NATIVE),
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "interrupt while an approval is open": grid(
        herm=(NATIVE, NATIVE, Refused(400, "not_supported", NO_INTERRUPT), NATIVE),
        eve=(NATIVE, NATIVE, Refused(409, "not_supported", NO_INTERRUPT), NATIVE),
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "interrupt denies a held permission": grid(
        herm=(NATIVE, NATIVE, ANSWERS_NO, NATIVE),
        eve=(NATIVE, NATIVE, ANSWERS_NO, NATIVE),
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "a message that interrupts": by_backend(
        herm=NATIVE,
        eve=NATIVE,
        engine=Refused(400, None, NO_INTERRUPT),
        **{"managed-agents": NATIVE},
    ),
    # Approvals.
    "approve": every(NATIVE),
    "deny": every(NATIVE),
    "deny with a reason": grid(
        herm=(Carried("no place for a reason: it is left out"),) * 4,
        eve=(Carried("Herm has no place for a reason"), NATIVE, NATIVE, NATIVE),
        engine=(Carried("Herm has no place for a reason"), NATIVE, NATIVE, NATIVE),
    ),
    "approve for the session": grid(
        herm=(
            NATIVE,
            Carried("narrowed to once: eve has no scope"),
            Carried("narrowed to once: the Engine has no scope"),
            Carried("narrowed to once: Managed Agents has no scope"),
        ),
        eve=(Carried("once: eve clients have no scope"),) * 4,
        engine=(Carried("once: Engine clients have no scope"),) * 4,
    ),
    "two approvals, one by one": every(NATIVE),
    "a second answer": by_frontend(
        herm=Refused(409, "already_answered"),
        eve=Refused(409, "input_already_resolved"),
        engine=Refused(404, "NOTHING_PENDING"),
    ),
    "an answer that does not fit": by_frontend(
        herm=Refused(400, "validation_error", "must be `allow` or `deny`"),
        eve=Refused(400, None, "takes an 'optionId' of"),
        engine=Refused(400, "BAD_REQUEST", "is a permission: answer `yes` or `no`"),
    ),
    # Questions.
    "choose an option": QUESTION,
    "answer with other words": QUESTION,
    "an open question": QUESTION,
    "skip a question": grid(
        herm=of_questions(
            NATIVE,
            Carried("the turn is stopped where only options are taken, else words say it"),
            Carried("words say it: an Engine has nothing that declines"),
        ),
        eve=of_questions(Refused(400, None, "or a non-empty 'text'")),
        engine=of_questions(Refused(400, "BAD_REQUEST", "takes a non-empty `answer`")),
    ),
    "answer by a plain message": grid(
        herm=of_questions(Refused(409, "turn_running", "waits for an answer")),
        eve=of_questions(NATIVE),
        engine=of_questions(Refused(409, "HITL_REQUIRED", "waits for an answer")),
    ),
    "a custom tool": grid(
        herm=of_herm(NATIVE, NATIVE),
        eve=of_herm(AS_WORDS, AS_WORDS),
        engine=of_herm(AS_WORDS, AS_WORDS),
    ),
    "a custom tool that fails": grid(
        herm=of_herm(NATIVE, NATIVE),
        eve=of_herm(NO_FAILURE, NO_FAILURE),
        engine=of_herm(NO_FAILURE, NO_FAILURE),
    ),
    "give a secret": grid(
        herm=of_herm(NATIVE),
        eve=of_herm(Refused(400, None, "takes only the option 'decline'")),
        engine=of_herm(Refused(400, "BAD_REQUEST", "takes only `decline`")),
    ),
    "give a sudo password": grid(
        herm=of_herm(NATIVE),
        eve=of_herm(Refused(400, None, "takes only the option 'decline'")),
        engine=of_herm(Refused(400, "BAD_REQUEST", "takes only `decline`")),
    ),
    "say a secret as a message": grid(
        herm=of_herm(Refused(409, "turn_running")),
        eve=of_herm(Refused(400, "input_pending")),
        engine=of_herm(Refused(409, "HITL_REQUIRED")),
    ),
    "decline a secret": grid(
        herm=of_herm(NATIVE),
        eve=of_herm(Carried("the one option, `decline`")),
        engine=of_herm(Carried("the one option, `decline`")),
    ),
    "sign in": grid(
        herm=of_eve(Carried("a question that shows the address")),
        eve=of_eve(NATIVE),
        engine=of_eve(Carried("a question that shows the address")),
    ),
    "call off a sign-in": grid(
        herm=of_eve(Carried("the one choice, `cancel`")),
        eve=of_eve(Carried("cancel of the turn")),
        engine=of_eve(Carried("the one option, `cancel`")),
    ),
    "answer a sign-in": grid(
        herm=of_eve(Refused(400, "validation_error", "a sign-in ends elsewhere")),
        eve=of_eve(Refused(409, "input_already_resolved", "")),
        engine=of_eve(Refused(400, "BAD_REQUEST", "takes only `cancel`")),
    ),
    "a token limit, and on": grid(
        herm=of_eve(Carried("a question with two choices")),
        eve=of_eve(NATIVE),
        engine=of_eve(Carried("a question with two options")),
    ),
    "a token limit, and stop": grid(
        herm=of_eve(Carried("a question with two choices")),
        eve=of_eve(NATIVE),
        engine=of_eve(Carried("a question with two options")),
    ),
    # The session.
    "compact": grid(
        herm=(NO_HERM_ROUTE,) * 4,
        eve=(
            Refused(409, "not_supported", "herm: `compact` is impossible"),
            NATIVE,
            Refused(409, "not_supported", "engine: `compact` is impossible"),
            Refused(409, "not_supported", "managed-agents: `compact` is impossible"),
        ),
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "clear": grid(
        herm=(NO_HERM_ROUTE,) * 4,
        eve=(
            Refused(409, "not_supported", "herm: `clear` is impossible"),
            NATIVE,
            Refused(409, "not_supported", "engine: `clear` is impossible"),
            Refused(409, "not_supported", "managed-agents: `clear` is impossible"),
        ),
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "reset": grid(
        herm=(NO_HERM_ROUTE,) * 4,
        eve=(
            Carried("the session is archived there and ends here"),
            NATIVE,
            Carried("the session ends here; the task is left alone"),
            Carried("the session is archived there and ends here"),
        ),
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "a title": grid(
        herm=(NATIVE, Carried("kept here"), Carried("kept here"), NATIVE),
        eve=(NO_EVE_ROUTE,) * 4,
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "archive": grid(
        herm=(NATIVE, Carried("kept here"), Carried("kept here"), NATIVE),
        eve=(NO_EVE_ROUTE,) * 4,
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "delete": grid(
        herm=(NATIVE, Carried("erased here"), Carried("erased here"), NATIVE),
        eve=(NO_EVE_ROUTE,) * 4,
        engine=(NO_ENGINE_ROUTE,) * 4,
    ),
    "a title that the agent gives": by_frontend(
        herm=NATIVE,
        eve=Carried("dropped: eve has no place for a title"),
        engine=Carried("dropped: the Engine has no place for a title"),
    ),
    "compaction by the agent": by_backend(
        herm=Says(NO_HERM), eve=Says(NO_EVE), engine=NATIVE, **{"managed-agents": NATIVE}
    ),
    # Failures.
    "a turn that fails at once": every(NATIVE),
    "a turn that fails in the middle": every(NATIVE),
    "a message that the backend refuses": every(NATIVE),
    "a backend that is gone for good": every(NATIVE),
    # Children.
    "a child agent": grid(
        herm=(NATIVE, NATIVE, Says(NO_ENGINE), NATIVE),
        eve=(NATIVE, NATIVE, Says(NO_ENGINE), NATIVE),
        engine=(NOT_SHOWN, NOT_SHOWN, Says(NO_ENGINE), NOT_SHOWN),
    ),
    "a child agent asks": by_backend(
        herm=NATIVE, eve=NATIVE, engine=Says(NO_ENGINE), **{"managed-agents": NATIVE}
    ),
    # Several at once, and coming back.
    "people of all dialects watch": every(NATIVE),
    "another one answers": every(NATIVE),
    "two answer at once": every(NATIVE),
    "coming back in the middle of a turn": every(NATIVE),
}
