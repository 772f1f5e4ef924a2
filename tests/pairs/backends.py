"""What the backends have and lack: the cells of the table are made of that.

Each dialect of backends says it once, in a module of its own, `tests/<folder>/backend.py`:
`BACKEND`, a `BackendProperties`. No cell of the table is written for a backend.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from adapters.registry import DIALECTS
from tests.pairs.cells import Carried, Form
from tests.wire import given_messages

__all__ = [
    "BACKENDS",
    "ERASED",
    "HELD",
    "KEPT",
    "PROPERTIES",
    "QUEUED",
    "Able",
    "BackendProperties",
    "Formed",
    "Tells",
    "declared",
    "lacking",
    "properties_of",
]

HELD = Carried("held until the turn is over: the backend cannot withdraw what it asks")
QUEUED = Carried("queued as the next message")
KEPT = Carried("kept here")
ERASED = Carried("erased here")

Tells = Literal[
    "questions", "custom_tools", "secrets", "sign_ins", "limits", "child_agents", "compactions"
]
"""What a backend's agent may ask or do by itself."""

Able = Literal["files", "output_schema", "compact", "clear"]
"""What a backend may be unable to be given, so that it is refused."""

Formed = Literal[
    "steer",
    "withdraws",
    "reasons",
    "scopes",
    "skips",
    "reset",
    "title",
    "archive",
    "delete",
]
"""What reaches each backend, as it is or in another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendProperties:
    """What a backend of a dialect has and lacks.

    Where its agent has no such thing to ask or to do, it says so: `lacks` are its words, the same
    for all. Flags say what there is: `Tells` of what it asks and does, `Able` of what it can be
    given, which is refused by name where it cannot. A `Form` says that a thing goes through as it
    is, or how it is carried.

    Args:
        dialect: its name.
        lacks: what its agent says of what it has not, such as "Herm has no".
        interrupt: whether a turn can be stopped; `denies` where that is done by a no to what it
            asks, if the setting `interrupt` says so, and not else.
        steer: what becomes of words for the turn that runs.
        withdraws: what becomes of a message that withdraws an approval.
        reasons: what becomes of the reason of a denial.
        scopes: what becomes of an approval for the whole session.
        skips: what becomes of a question that is skipped; any where it asks none.
        reset: what becomes of its session then.
        title, archive, delete: whether it is told.
        joins: whether words that steer are answered in the turn that runs.
        titles: whether it gives its sessions titles.
        reasons_aloud: whether its thinking has words.
        servers: whether it tells the server of a tool apart from the tool's name.
        sizes: whether it tells how much a compaction has saved.
        child_tools: whether it shows the tools of its child agents.
        results: whether its agent gives structured results without being given a schema.
        reopens: whether its stream can be had again, which also tells how its turn stands; where
            it cannot, a body that breaks is a turn that has failed, and leaving it is the stop.
        lost: words of what is said when its stream cannot be had again.
        probed: the routes that `dragoman check` asks of one that is new, as its scripted backend
            calls them.
        probed_stream: whether one of them is a stream.
        probed_open: whether the first of them needs no credential.
        probed_refused: whether it tells what it is by what it refuses.
        unauthorized: the code with which it refuses a credential, empty where it gives none.
        failure: the code of ours for a turn that its agent gives up.
    """

    dialect: str
    lacks: str

    questions: bool
    custom_tools: bool
    secrets: bool
    sign_ins: bool
    limits: bool
    child_agents: bool
    compactions: bool

    files: bool
    output_schema: bool
    compact: bool
    clear: bool

    interrupt: Literal["native", "denies", "impossible"]
    steer: Form
    withdraws: Form
    reasons: Form
    scopes: Form
    skips: Form
    reset: Form
    title: Form
    archive: Form
    delete: Form

    joins: bool = False
    titles: bool = False
    reasons_aloud: bool = True
    servers: bool = False
    sizes: bool = True
    child_tools: bool = False
    results: bool = False
    reopens: bool = True
    lost: str = "takes no connection"

    probed: tuple[str, ...]
    probed_stream: bool = False
    probed_open: bool = True
    probed_refused: bool = False
    unauthorized: str = "unauthorized"
    failure: str = "agent_error"

    def has(self, what: Tells | Able) -> bool:
        """Say whether it has a thing."""
        found: bool = getattr(self, what)
        return found

    def form(self, what: Formed) -> Form:
        """Return in which form it is given a thing."""
        found: Form = getattr(self, what)
        return found


@functools.cache
def declared(dialect: str) -> BackendProperties | None:
    """Return what the tests of a dialect say of its backends, or None."""
    name = f"tests.{DIALECTS[dialect].folder}"
    if importlib.util.find_spec(name) is None:
        return None
    if importlib.util.find_spec(f"{name}.backend") is None:
        return None
    found: BackendProperties = importlib.import_module(f"{name}.backend").BACKEND
    return found


def lacking(dialect: str) -> str:
    """Return what is still to be said of a dialect's backends, as a sentence that names the place;
    nothing where all is said."""
    found = declared(dialect)
    page = f"tests/{DIALECTS[dialect].folder}/backend.py"
    if found is None:
        return (
            f"write {page}: `BACKEND`, a `tests.pairs.backends.BackendProperties` that says what "
            f"a backend of `{dialect}` has and lacks"
        )
    if found.dialect != dialect:
        return f"{page}: `BACKEND` is about `{found.dialect}`, write one about `{dialect}`"
    return ""


def properties_of(dialect: str) -> BackendProperties:
    """Return what the backends of a dialect have and lack.

    Raises:
        LookupError: the dialect's tests do not say it.
    """
    found = declared(dialect)
    if found is None:
        raise LookupError(lacking(dialect))
    return found


PROPERTIES: Mapping[str, BackendProperties] = {
    name: found for name in given_messages() if (found := declared(name)) is not None
}
"""Dialect -> what its backends have and lack. A test checks that all are here."""

BACKENDS = tuple(PROPERTIES)
"""The dialects of backends that the table is about, in the order of the registry."""
