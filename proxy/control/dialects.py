"""Routes of the control API that say what crosses between dialects: the dialects, the tables of
each `MAPPING.md`, and the measured fidelity of every pair.

They are the same for as long as the process runs, so each answer is made once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
from typing import Any, Literal

from aiohttp import web

from adapters.contract.mapping import Row
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json
from proxy.config import matrix
from proxy.control.api import VERSION, ApiModel, Endpoint, principal_of


class DialectOut(ApiModel):
    """A dialect: whether frontends and backends of it are served, the framing of its streams to
    frontends, what it calls a session, and `why` it has only one of the two sides by nature."""

    name: str
    frontends: bool
    backends: bool
    framing: Literal["sse", "ndjson"] | None
    noun: str | None
    why: str | None


class DialectsOut(ApiModel):
    """All dialects."""

    version: int = VERSION
    dialects: list[DialectOut]


class MappingRowOut(ApiModel):
    """A row of a table; `section` are the sections of the protocol page, numbers or links."""

    section: list[str]
    why: str


class EventMappingOut(MappingRowOut):
    """A native event or field, its canonical meaning (`-` where it has none), and how faithfully it
    crosses from a backend and to a frontend; `qualifier` says in which generation or surface."""

    native: str
    qualifier: str | None
    canonical: list[str]
    fidelity_in: str
    fidelity_out: str


class CanonicalMappingOut(MappingRowOut):
    """What a frontend sees of a canonical event, or of one of its fields."""

    canonical: str
    qualifier: str | None
    shown_as: str
    fidelity: str


class CommandMappingOut(MappingRowOut):
    """What a backend makes of a command, and how."""

    command: str
    qualifier: str | None
    backend: str
    how: str


class RouteMappingOut(MappingRowOut):
    """A route, or one of its members, parameters or headers: whether the face serves it, and
    whether the client codec uses it."""

    method: str
    path: str
    canonical: list[str]
    served: str
    driven: str


class ErrorMappingOut(MappingRowOut):
    """A status, code or error body, and what it comes from or becomes."""

    native: str
    when: str
    canonical: list[str]


class MappingOut(ApiModel):
    """The tables of a dialect's `MAPPING.md`."""

    version: int = VERSION
    name: str
    title: str
    events: list[EventMappingOut]
    canonical: list[CanonicalMappingOut]
    commands: list[CommandMappingOut]
    routes: list[RouteMappingOut]
    errors: list[ErrorMappingOut]


class DialectPairOut(ApiModel):
    """How many fields of the recorded sessions of a backend cross to a frontend, and how."""

    frontend: str
    backend: str
    exact: int
    approximated: int
    synthesized: int
    dropped: int


class CommandSupportOut(ApiModel):
    """How backends of a dialect carry a command."""

    command: str
    backend: str
    support: Literal["native", "emulated", "impossible"]
    how: str


class FidelityOut(ApiModel):
    """The fidelity of every pair of dialects, and every command at every backend."""

    version: int = VERSION
    pairs: list[DialectPairOut]
    commands: list[CommandSupportOut]


@dataclasses.dataclass(frozen=True, slots=True)
class StaticAnswer:
    """An answer that does not change, with its `ETag`."""

    body: bytes
    tag: str

    @classmethod
    def of(cls, model: ApiModel) -> StaticAnswer:
        """Return a model as JSON."""
        body = format_json(model.model_dump(mode="json"))
        return cls(body, hashlib.sha256(body).hexdigest()[:16])


def _response(request: web.Request, answer: StaticAnswer) -> web.Response:
    headers = {"Cache-Control": "no-cache", "ETag": f'"{answer.tag}"'}
    if any(tag.value in (answer.tag, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=answer.body, content_type="application/json", headers=headers)


async def list_dialects(request: web.Request) -> web.StreamResponse:
    """List the dialects."""
    principal_of(request)
    # The first time all faces are imported.
    return _response(request, await asyncio.to_thread(_dialects))


@functools.cache
def _dialects() -> StaticAnswer:
    found = [
        DialectOut(
            name=name,
            frontends=dialect.face is not None,
            backends=dialect.client is not None,
            framing=None if dialect.face is None else dialect.face.framing,
            noun=None if dialect.face is None else dialect.face.noun,
            why=dialect.no_backends or dialect.no_frontends or None,
        )
        for name, dialect in DIALECTS.items()
    ]
    return StaticAnswer.of(DialectsOut(dialects=found))


async def show_dialect(request: web.Request) -> web.StreamResponse:
    """Return the tables that say how faithfully everything of a dialect crosses, and why."""
    principal_of(request)
    name = request.match_info["dialect"]
    if name not in DIALECTS:
        raise DragomanError(
            f"There is no dialect `{name[:80]}`; there are {', '.join(DIALECTS)}.",
            code=ErrorCode.NOT_FOUND,
        )
    # The first time its page is read: no turn of the loop has the time.
    return _response(request, await asyncio.to_thread(_tables, name))


@functools.cache
def _tables(name: str) -> StaticAnswer:
    mapping = matrix.mapping_of(name)
    return StaticAnswer.of(
        MappingOut(
            name=name,
            title=mapping.title,
            events=[EventMappingOut(**_cells(row)) for row in mapping.events],
            canonical=[CanonicalMappingOut(**_cells(row)) for row in mapping.canonical],
            commands=[CommandMappingOut(**_cells(row)) for row in mapping.commands],
            routes=[RouteMappingOut(**_cells(row)) for row in mapping.routes],
            errors=[ErrorMappingOut(**_cells(row)) for row in mapping.errors],
        )
    )


def _cells(row: Row) -> dict[str, Any]:
    """Return the cells of a row, without the line of the page that it stands on."""
    cells = dataclasses.asdict(row)
    del cells["line"]
    return cells


async def show_fidelity(request: web.Request) -> web.StreamResponse:
    """Return how faithfully each backend's sessions reach each frontend, and what each backend can
    be asked."""
    principal_of(request)
    return _response(request, await asyncio.to_thread(_fidelity))


@functools.cache
def _fidelity() -> StaticAnswer:
    return StaticAnswer.of(
        FidelityOut(
            pairs=[
                DialectPairOut(**pair.as_json()) for pair in matrix.pairs(matrix.load_numbers())
            ],
            commands=[
                CommandSupportOut.model_validate(cell.as_json()) for cell in matrix.commands()
            ],
        )
    )


ENDPOINTS = (
    Endpoint("GET", "/dialects", list_dialects, DialectsOut),
    Endpoint("GET", "/dialects/{dialect}", show_dialect, MappingOut),
    Endpoint("GET", "/fidelity", show_fidelity, FidelityOut),
)
