"""What each scenario comes to at the faces of three dialects, on any backend.

A scenario is a thing that a person does, or that an agent asks. What comes of it is one of

* `NATIVE`: both dialects have it, and it goes through as what it is;
* `Carried`: one of them has no such thing, and it is carried in another form, which is said;
* `Refused`: it cannot be carried; the face says so in its own form: status and code;
* `Says`: the backend has no such thing to ask or to send: its agent says so in text.

Of each scenario a face has an `Outcome`: a cell where the face alone decides, else a rule that
makes the cell of what the backend has and lacks (`tests.pairs.backends`). No backend is named here
but where both sides speak one dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.pairs.backends import PROPERTIES, Able, BackendProperties, Formed, Tells
from tests.pairs.cells import NATIVE, Carried, Cell, Native, Refused, Says
from tests.pairs.frontends import FRONTENDS as PEOPLE
from tests.wire import served

__all__ = [
    "CELLS",
    "FRONTENDS",
    "NATIVE",
    "Carried",
    "Cell",
    "Native",
    "Outcome",
    "Outcomes",
    "Refused",
    "Row",
    "Rule",
    "Says",
    "able",
    "by_frontend",
    "cell_of",
    "denies",
    "every",
    "form",
    "interrupts",
    "native_as",
    "row_of",
    "tells",
]

FRONTENDS = tuple(name for name in served() if name in PEOPLE)
"""The dialects of this table, in the order of the registry. What comes of a scenario in another
dialect of frontends, its own tests say: see `tests.pairs.table`."""

Rule = Callable[[BackendProperties], Cell]
Outcome = Cell | Rule
Outcomes = Mapping[str, Outcome]
Row = Mapping[tuple[str, str], Cell]


def cell_of(outcome: Outcome, backend: BackendProperties) -> Cell:
    """Return what comes of a scenario on a backend."""
    return outcome if isinstance(outcome, Cell) else outcome(backend)


def row_of(
    outcomes: Outcomes, backends: Mapping[str, BackendProperties] = PROPERTIES
) -> dict[tuple[str, str], Cell]:
    """Return the row of a scenario, of what comes of it at each face."""
    return {
        (frontend, backend): cell_of(outcome, properties)
        for frontend, outcome in outcomes.items()
        for backend, properties in backends.items()
    }


def every(outcome: Outcome) -> Outcomes:
    """Return what is the same at all faces."""
    return dict.fromkeys(FRONTENDS, outcome)


def by_frontend(**outcomes: Outcome) -> Outcomes:
    """Return what differs by the face."""
    missing = [name for name in FRONTENDS if name not in outcomes]
    if missing:
        raise LookupError(
            "tests/pairs/expectations.py: each scenario needs an outcome for the frontend "
            f"`{missing[0]}`: what comes of it there."
        )
    return outcomes


# Rules.


def tells(what: Tells, outcome: Outcome = NATIVE) -> Rule:
    """Return what comes of a thing that a backend's agent asks or does, where it has such."""

    def rule(backend: BackendProperties) -> Cell:
        return cell_of(outcome, backend) if backend.has(what) else Says(backend.lacks)

    return rule


def able(what: Able, status: int, code: str | None) -> Rule:
    """Return what comes of a thing that is refused by name where the backend cannot be given it."""
    name = {"files": "a file"}.get(what, f"`{what}`")

    def rule(backend: BackendProperties) -> Cell:
        why = f"{backend.dialect}: {name} is impossible"
        return NATIVE if backend.has(what) else Refused(status, code, why)

    return rule


def interrupts(status: int, code: str | None) -> Rule:
    """Return what comes of an interrupt."""

    def rule(backend: BackendProperties) -> Cell:
        why = f"{backend.dialect}: `interrupt` is impossible"
        return NATIVE if backend.interrupt == "native" else Refused(status, code, why)

    return rule


def denies(status: int, code: str | None) -> Rule:
    """Return what comes of an interrupt while something is asked, with the setting that answers no
    where nothing else stops a turn."""
    stops = interrupts(status, code)
    return lambda backend: ANSWERS_NO if backend.interrupt == "denies" else stops(backend)


def native_as(how: str, rule: Rule) -> Rule:
    """Return what comes of a thing that the face carries even where the backend has it."""

    def carried(backend: BackendProperties) -> Cell:
        cell = rule(backend)
        return Carried(how) if cell == NATIVE else cell

    return carried


def form(what: Formed) -> Rule:
    """Return what comes of a thing that each backend is given in some form."""
    return lambda backend: backend.form(what)


def _schema_by_engine(backend: BackendProperties) -> Cell:
    # Its members pass unchanged to a backend of its own dialect.
    same = backend.dialect == "engine"
    return Carried("passed on as it is; the Engine itself refuses it") if same else JSON_AS_TEXT


ANSWERS_NO = Carried("the setting `interrupt = deny` answers no")
NO_HERM_ROUTE = Refused(404, "not_found", "There is no")
NO_EVE_ROUTE = Refused(404, None, "")
NO_ENGINE_ROUTE = Refused(404, "NOT_FOUND", "There is no")

AS_WORDS = Carried("a question whose words are the result")
JSON_AS_TEXT = Carried("the agent writes the JSON as text")
NOT_SHOWN = Carried("not shown")
NO_FAILURE = Carried("words: no place for a failure")
ONLY_DECLINED = by_frontend(
    herm=tells("secrets"),
    eve=tells("secrets", Refused(400, None, "takes only the option 'decline'")),
    engine=tells("secrets", Refused(400, "BAD_REQUEST", "takes only `decline`")),
)
LIMIT = by_frontend(
    herm=tells("limits", Carried("a question with two choices")),
    eve=tells("limits"),
    engine=tells("limits", Carried("a question with two options")),
)
INTERRUPT = by_frontend(
    herm=interrupts(400, "not_supported"),
    eve=interrupts(409, "not_supported"),
    engine=NO_ENGINE_ROUTE,
)

CELLS: Mapping[str, Outcomes] = {
    # Messages.
    "a first message": every(NATIVE),
    "a follow-up": every(NATIVE),
    "parallel tools": every(NATIVE),
    "a tool that fails": every(NATIVE),
    "a long answer": every(NATIVE),
    "files": by_frontend(
        herm=Refused(400, "validation_error", "attachments"),
        eve=able("files", 409, "not_supported"),
        engine=able("files", 400, "NOT_SUPPORTED"),
    ),
    "a schema for the answer": by_frontend(
        # Herm and the Engine have no member for it; theirs are ignored as unknown members are.
        herm=JSON_AS_TEXT,
        eve=able("output_schema", 409, "not_supported"),
        engine=_schema_by_engine,
    ),
    # A message while the agent works or waits.
    "a message while a turn runs": by_frontend(
        herm=Refused(409, "turn_running", "is working"),
        eve=Carried("held by the session until the turn is over (turnPolicy queue)"),
        engine=Refused(409, "TASK_BUSY", "is working"),
    ),
    # Clients of eve's session-ID generation withdraw a request by a message (eve page, 8.2).
    "a message while an approval is open": by_frontend(
        herm=Refused(409, "turn_running", "waits for an answer"),
        eve=form("withdraws"),
        engine=Refused(409, "HITL_REQUIRED", "waits for an answer"),
    ),
    "steer": by_frontend(herm=form("steer"), eve=form("steer"), engine=NO_ENGINE_ROUTE),
    "interrupt": INTERRUPT,
    "interrupt while an approval is open": INTERRUPT,
    "interrupt denies a held permission": by_frontend(
        herm=denies(400, "not_supported"),
        eve=denies(409, "not_supported"),
        engine=NO_ENGINE_ROUTE,
    ),
    "a message that interrupts": every(interrupts(400, None)),
    # Approvals.
    "approve": every(NATIVE),
    "deny": every(NATIVE),
    "deny with a reason": by_frontend(
        herm=Carried("no place for a reason: it is left out"),
        eve=form("reasons"),
        engine=form("reasons"),
    ),
    "approve for the session": by_frontend(
        herm=form("scopes"),
        eve=Carried("once: eve clients have no scope"),
        engine=Carried("once: Engine clients have no scope"),
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
    "choose an option": every(tells("questions")),
    "answer with other words": every(tells("questions")),
    "an open question": every(tells("questions")),
    "skip a question": by_frontend(
        herm=tells("questions", form("skips")),
        eve=tells("questions", Refused(400, None, "or a non-empty 'text'")),
        engine=tells("questions", Refused(400, "BAD_REQUEST", "takes a non-empty `answer`")),
    ),
    "answer by a plain message": by_frontend(
        herm=tells("questions", Refused(409, "turn_running", "waits for an answer")),
        eve=tells("questions"),
        engine=tells("questions", Refused(409, "HITL_REQUIRED", "waits for an answer")),
    ),
    "a custom tool": by_frontend(
        herm=tells("custom_tools"),
        eve=tells("custom_tools", AS_WORDS),
        engine=tells("custom_tools", AS_WORDS),
    ),
    "a custom tool that fails": by_frontend(
        herm=tells("custom_tools"),
        eve=tells("custom_tools", NO_FAILURE),
        engine=tells("custom_tools", NO_FAILURE),
    ),
    "give a secret": ONLY_DECLINED,
    "give a sudo password": ONLY_DECLINED,
    "say a secret as a message": by_frontend(
        herm=tells("secrets", Refused(409, "turn_running")),
        eve=tells("secrets", Refused(400, "input_pending")),
        engine=tells("secrets", Refused(409, "HITL_REQUIRED")),
    ),
    "decline a secret": by_frontend(
        herm=tells("secrets"),
        eve=tells("secrets", Carried("the one option, `decline`")),
        engine=tells("secrets", Carried("the one option, `decline`")),
    ),
    "sign in": by_frontend(
        herm=tells("sign_ins", Carried("a question that shows the address")),
        eve=tells("sign_ins"),
        engine=tells("sign_ins", Carried("a question that shows the address")),
    ),
    "call off a sign-in": by_frontend(
        herm=tells("sign_ins", Carried("the one choice, `cancel`")),
        eve=tells("sign_ins", Carried("cancel of the turn")),
        engine=tells("sign_ins", Carried("the one option, `cancel`")),
    ),
    "answer a sign-in": by_frontend(
        herm=tells("sign_ins", Refused(400, "validation_error", "a sign-in ends elsewhere")),
        eve=tells("sign_ins", Refused(409, "input_already_resolved", "")),
        engine=tells("sign_ins", Refused(400, "BAD_REQUEST", "takes only `cancel`")),
    ),
    "a token limit, and on": LIMIT,
    "a token limit, and stop": LIMIT,
    # The session.
    "compact": by_frontend(
        herm=NO_HERM_ROUTE, eve=able("compact", 409, "not_supported"), engine=NO_ENGINE_ROUTE
    ),
    "clear": by_frontend(
        herm=NO_HERM_ROUTE, eve=able("clear", 409, "not_supported"), engine=NO_ENGINE_ROUTE
    ),
    "reset": by_frontend(herm=NO_HERM_ROUTE, eve=form("reset"), engine=NO_ENGINE_ROUTE),
    "a title": by_frontend(herm=form("title"), eve=NO_EVE_ROUTE, engine=NO_ENGINE_ROUTE),
    "archive": by_frontend(herm=form("archive"), eve=NO_EVE_ROUTE, engine=NO_ENGINE_ROUTE),
    "delete": by_frontend(herm=form("delete"), eve=NO_EVE_ROUTE, engine=NO_ENGINE_ROUTE),
    "a title that the agent gives": by_frontend(
        herm=NATIVE,
        eve=Carried("dropped: eve has no place for a title"),
        engine=Carried("dropped: the Engine has no place for a title"),
    ),
    "compaction by the agent": every(tells("compactions")),
    # Failures.
    "a turn that fails at once": every(NATIVE),
    "a turn that fails in the middle": every(NATIVE),
    "a message that the backend refuses": every(NATIVE),
    "a backend that is gone for good": every(NATIVE),
    # Children.
    "a child agent": by_frontend(
        herm=tells("child_agents"),
        eve=tells("child_agents"),
        engine=tells("child_agents", NOT_SHOWN),
    ),
    "a child agent asks": every(tells("child_agents")),
    # Several at once, and coming back.
    "people of all dialects watch": every(NATIVE),
    "another one answers": every(NATIVE),
    "two answer at once": every(NATIVE),
    "coming back in the middle of a turn": every(NATIVE),
}
"""Scenario -> what comes of it at each face."""
