"""What the control API says of dialects: the tables of their pages, and the fidelity of pairs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from adapters.model.events import EVENT_TYPES
from adapters.registry import DIALECTS, faces
from proxy.config import matrix
from proxy.control.api import ErrorOut
from proxy.control.dialects import DialectsOut, FidelityOut, MappingOut
from tests.support.keys import credential, key_of
from tests.support.proxied import Proxied, proxied

API = "/api/v1"
PATHS = ("/dialects", "/dialects/eve", "/fidelity")


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    async with proxied() as running:
        yield running


async def test_all_dialects_are_listed_with_their_sides(dragoman: Proxied) -> None:
    status, body = await dragoman.request("GET", f"{API}/dialects")
    found = {one.name: one for one in DialectsOut.model_validate(body).dialects}
    assert (status, list(found)) == (200, list(DIALECTS))
    assert [name for name, one in found.items() if one.frontends] == list(faces())
    assert [name for name, one in found.items() if one.backends] == matrix.backends()
    for name, one in found.items():
        assert (one.framing is None) == (one.noun is None) == (not one.frontends), name
        assert (one.why is None) == (one.frontends and one.backends), name
    assert (found["eve"].framing, found["engine"].framing) == ("ndjson", "sse")
    assert (found["engine"].noun, found["agui"].noun) == ("task", "thread")
    assert found["aisdk"].why == ("`aisdk` is a dialect of frontends only: no backend speaks it")


@pytest.mark.parametrize("name", DIALECTS)
async def test_the_tables_of_a_dialect_are_those_of_its_page(dragoman: Proxied, name: str) -> None:
    status, body = await dragoman.request("GET", f"{API}/dialects/{name}")
    out, page = MappingOut.model_validate(body), matrix.mapping_of(name)
    assert (status, out.name, out.title) == (200, name, page.title)
    for table in ("events", "canonical", "commands", "routes", "errors"):
        shown, rows = getattr(out, table), getattr(page, table)
        assert len(shown) == len(rows)
        for one, row in zip(shown, rows, strict=True):
            for member, value in one.model_dump().items():
                known = getattr(row, member)
                assert value == (list(known) if isinstance(known, tuple) else known)


async def test_every_event_has_the_reason_of_each_dialect_that_shows_it(dragoman: Proxied) -> None:
    for name in faces():
        _, body = await dragoman.request("GET", f"{API}/dialects/{name}")
        rows = MappingOut.model_validate(body).canonical
        for type_ in EVENT_TYPES:
            own = [row for row in rows if row.canonical == type_]
            assert own, (name, type_)
            assert all(row.why or row.fidelity in ("exact", "-") for row in own), (name, type_)


async def test_the_fidelity_is_that_of_the_matrix(dragoman: Proxied) -> None:
    status, body = await dragoman.request("GET", f"{API}/fidelity")
    out = FidelityOut.model_validate(body)
    assert status == 200
    assert [one.model_dump() for one in out.pairs] == [
        pair.as_json() for pair in matrix.pairs(matrix.load_numbers())
    ]
    assert [one.model_dump() for one in out.commands] == [
        cell.as_json() for cell in matrix.commands()
    ]
    assert {one.backend for one in out.commands} == set(matrix.backends())


async def test_a_dialect_that_does_not_exist_is_404_and_told_which_do(dragoman: Proxied) -> None:
    for name in ("morse", "..%2Feve", "eve%00"):
        status, body = await dragoman.request("GET", f"{API}/dialects/{name}")
        error = ErrorOut.model_validate(body).error
        assert (status, error.code) == (404, "not_found")
    assert "there are herm, eve" in error.message


@pytest.mark.parametrize("path", PATHS)
async def test_who_has_an_answer_already_is_told_that_it_holds(
    dragoman: Proxied, path: str
) -> None:
    async with dragoman.http.get(dragoman.url + API + path) as first:
        tag = first.headers["ETag"]
        assert (first.status, first.headers["Cache-Control"]) == (200, "no-cache")
    for known, status in ((tag, 304), (f'"other", W/{tag}', 304), ("*", 304), ('"other"', 200)):
        headers = {"If-None-Match": known}
        async with dragoman.http.get(dragoman.url + API + path, headers=headers) as again:
            assert (again.status, again.headers["ETag"]) == (status, tag), known
            assert bool(await again.read()) == (status == 200)


async def test_everybody_with_a_key_may_ask_and_nobody_else() -> None:
    async with proxied(keys=(key_of("ann", ()),)) as running:
        for path in PATHS:
            assert (await running.request("GET", API + path, key="k-ann"))[0] == 200
            for headers in ({}, credential("k-other")):
                status, body = await running.request("GET", API + path, headers=headers)
                assert (status, body["error"]["code"]) == (401, "unauthorized")
