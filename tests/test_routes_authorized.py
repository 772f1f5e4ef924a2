"""Every route of every application asks who is there, and shows nobody what is another key's; a key
of an administrator opens no face and acts in no session.

The walk takes the routes from the applications themselves, so a route that is added is walked too:
one that forgets to authorize is found, and one that the walk cannot ask properly must be described
in `ASKS`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

from adapters.contract.faces import Action
from adapters.registry import faces
from adapters.wire.errors import DragomanError
from proxy.config.settings import ListenerSettings, Settings
from proxy.control.api import STATUS
from proxy.entry.keys import SESSIONS
from proxy.http.auth import authenticate, authorize
from tests.asks import (
    ADMINISTERS,
    ADMINS_ONLY,
    ANY,
    ASKS,
    CALLBACKS,
    NAMES,
    OPEN,
    filled,
    without_ids,
)
from tests.asks import below as below_of
from tests.support.keys import credential, key_of
from tests.support.proxied import Proxied, Served, proxied
from tests.support.waiting import SOON_S

OWNER, FOREIGN, LIMITED, WRONG = "k-owner", "k-foreign", "k-limited", "k-nobody"
ADMIN = "k-admin"
KEYS = (
    key_of("owner"),
    key_of("foreign"),
    key_of("limited", ("other",)),
    key_of("admin", admin=True),
)

# A path that is not a route is answered 404, with or without a key: there is nothing behind it.
NOTHING_THERE = {401, 404, 405, 501}

HOW_TO_ASK = (
    "give the route an `example` of a good request, in the `routes.py` of its dialect (a route of "
    "the control API has its own in `ASKS` of tests/asks.py)"
)

ANY_METHOD = "PROPFIND"
NO_ROUTE = "nowhere"


@dataclass(frozen=True)
class Answer:
    """What was answered, without the names that the question had."""

    status: int
    content_type: str
    body: str

    @property
    def says_why(self) -> bool:
        """Say whether it names the reason for which a key of an administrator is refused."""
        return not self.body or "the key of an administrator" in self.body


class Walk:
    """Asks all routes of one application."""

    def __init__(self, dragoman: Proxied, served: Served) -> None:
        self.dragoman = dragoman
        self.served = served
        self.faults: list[str] = []
        self.asked = 0

    async def all(self) -> list[str]:
        """Return what is wrong with the routes."""
        for route in self.served.routes:
            await self._route(route)
        return self.faults

    def _is_of_a_face(self, path: str) -> bool:
        return self.served.url != self.dragoman.url or path.startswith("/as/")

    async def _health(self, method: str, path: str, below: str) -> None:
        """Ask for the health of a route that does not exist, for nobody and for a key."""
        for key in (None, WRONG, OWNER, ADMIN, LIMITED):
            answer = await self._ask(method, path, below, key=key, route=NO_ROUTE)
            if answer.status != 404:
                self.faults.append(f"{method} {path}: {NO_ROUTE} is healthy for {key}")
        if await self._ask(method, path, below, key=LIMITED) != answer:
            self.faults.append(f"{method} {path}: a key learns of a route that it may not use")
        if (await self._ask(method, path, below, key=ADMIN)).status != 403:
            self.faults.append(f"{method} {path}: is open to an administrator")

    async def _route(self, route: web.AbstractRoute) -> None:
        assert route.resource is not None
        path = re.sub(r":[^}]*}", "}", route.resource.canonical)
        below = below_of(path)
        method = ANY_METHOD if route.method == "*" else route.method
        self.asked += 1
        where = f"{route.method} {path}"
        if below in OPEN and method in ("GET", "HEAD"):
            if (await self._ask(method, path, below)).status != 200:
                self.faults.append(f"{where}: is to be open")
            if "{route}" in path:
                await self._health(method, path, below)
            return
        if below in CALLBACKS:
            answers = [await self._ask(method, path, below)]
            if "{route}" in path:
                answers.append(await self._ask(method, path, below, route=NO_ROUTE))
            if answers != answers[:1] * len(answers) or answers[0].status != 404:
                self.faults.append(f"{where}: tells what there is, {answers}")
            return
        for key in (None, WRONG):
            answer = await self._ask(method, path, below, key=key)
            nothing = route.method == "*" and answer.status in NOTHING_THERE
            if answer.status != 401 and not nothing:
                self.faults.append(f"{where}: {answer.status} with the key {key}")
        await self._face_of_an_administrator(where, method, path, below, answer)
        ask = ASKS.get((method, below), ANY)
        if "{session}" in below + str(ask):
            await self._session(where, method, path, below, any_method=route.method == "*")
        elif route.method != "*" and self._is_of_a_face(path):
            own = await self._ask(method, path, below, key=OWNER)
            if own.status == 400:
                self.faults.append(f"{where}: the owner gets {own}; {HOW_TO_ASK}")
        if "{route}" in path:
            limited = await self._ask(method, path, below, key=LIMITED)
            nowhere = await self._ask(method, path, below, key=LIMITED, route=NO_ROUTE)
            if limited != nowhere:
                self.faults.append(f"{where}: tells that a route exists, {limited} and {nowhere}")

    async def _face_of_an_administrator(
        self, where: str, method: str, path: str, below: str, without: Answer
    ) -> None:
        if self._is_of_a_face(path) and without.status == 401:
            admins = await self._ask(method, path, below, key=ADMIN)
            if admins.status != 403 or not admins.says_why:
                self.faults.append(f"{where}: an administrator gets {admins}")

    async def _session(
        self, where: str, method: str, path: str, below: str, *, any_method: bool
    ) -> None:
        session_id = await self.dragoman.say("script: approve", key=OWNER)
        request_id = (await self.dragoman.asked(session_id)).request_id
        names = {"session": session_id, "request": request_id}
        foreign = await self._ask(method, path, below, key=FOREIGN, **names)
        # A new one each time: some dialects let a frontend name its sessions, and make them.
        nobodys = f"dgs_{self.asked:026}"
        unknown = await self._ask(
            method, path, below, key=FOREIGN, session=nobodys, request=request_id
        )
        # Where a name that nobody has makes a session, the names of others are not given away.
        makes_one = unknown.status < 300 and foreign.status == 404
        if foreign != unknown and not makes_one:
            self.faults.append(f"{where}: tells that a session exists, {foreign} and {unknown}")
        if any_method:
            return
        own = await self._ask(method, path, below, key=OWNER, **names)
        admins = await self._ask(method, path, below, key=ADMIN, **names)
        if (method, below) in ADMINS_ONLY:
            if own != unknown or own.status != 403:
                self.faults.append(f"{where}: the owner gets {own}, as if it were an administrator")
        elif own == unknown:
            self.faults.append(f"{where}: the owner gets {own} too; {HOW_TO_ASK}")
        if (method, below) not in ADMINISTERS:
            if admins.status != 403 or not admins.says_why:
                self.faults.append(f"{where}: an administrator gets {admins}")
        elif admins.status in (401, 403, 404):
            self.faults.append(f"{where}: an administrator gets {admins}, which may do that")

    async def _ask(
        self,
        method: str,
        path: str,
        below: str,
        *,
        key: str | None = None,
        route: str = "engine",
        session: str = "dgs_0",
        request: str = "r-1",
    ) -> Answer:
        names = {**NAMES, "session": session, "request": request, "route": route}
        ask = ASKS.get((method, below), ANY)
        body = None if method in ("GET", "HEAD") else filled(ask.json, names)
        query = filled(dict(ask.query), names)
        url = self.served.url + filled(path, names)
        try:
            return await self._answer(method, url, body, query, key, (session, route))
        except aiohttp.ClientError as error:
            self.faults.append(f"{method} {path}: the answer is not HTTP, {str(error)[:200]}")
            return Answer(0, "", "")

    async def _answer(
        self,
        method: str,
        url: str,
        body: Any,
        query: Mapping[str, str],
        key: str | None,
        names: Sequence[str],
    ) -> Answer:
        async with (
            asyncio.timeout(SOON_S),
            self.dragoman.http.request(
                method, url, json=body, params=query, headers=credential(key)
            ) as response,
        ):
            # A stream has no end; that it is one is all that counts.
            text = await response.text() if response.content_type == "application/json" else ""
            for name in names:
                text = text.replace(name, "NAME")
            return Answer(response.status, response.content_type, without_ids(text))


async def test_every_route_authorizes_and_no_key_learns_of_another() -> None:
    async with proxied(backends=("engine", "other"), keys=KEYS) as dragoman:
        walk = Walk(dragoman, Served(dragoman.url, dragoman.routes))
        assert await walk.all() == []
    # All faces were walked, and the control API.
    assert walk.asked > 5 + sum(len(face.routes) for face in faces().values())


@pytest.mark.parametrize("dialect", sorted(faces()))
async def test_a_listener_serves_its_dialect_and_route_at_its_root(dialect: str) -> None:
    listener = ListenerSettings.model_validate(
        {"listen": "127.0.0.1:0", "dialect": dialect, "route": "engine"}
    )
    async with proxied(backends=("engine", "other"), keys=KEYS, listeners=(listener,)) as dragoman:
        (served,) = dragoman.listeners
        walk = Walk(dragoman, served)
        assert await walk.all() == []
        # What a main application has besides its faces is not there.
        for path in ("/healthz", "/api/v1/sessions", f"/as/{dialect}/to/engine/health"):
            status, _ = await dragoman.request("GET", served.url + path, key=OWNER)
            assert status in (404, 405), path
        # A key that may not use the listener's route finds nothing there.
        for route in served.routes:
            assert route.resource is not None
            path = route.resource.canonical
            if "{" not in path and route.method != "*" and path not in OPEN:
                ask = ASKS.get((route.method, path), ANY)
                json = None if route.method in ("GET", "HEAD") else ask.json
                status, body = await dragoman.request(
                    route.method, served.url + path, key=LIMITED, json=json, params=ask.query
                )
                # eve's controls say in this way that there is nothing (eve page, section 6).
                assert status == 404 or body["status"] == "no_active_session", path


async def test_a_session_that_cannot_be_loaded_is_there_for_its_owner_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied(backends=("engine", "gone"), keys=KEYS[:2]) as dragoman:
        name = await dragoman.say("hello", route="gone", key=OWNER)
        await dragoman.until_idle(name)
        sessions = dragoman.sessions
        sessions.cache.forget(name)
        (left,) = (one for one in sessions.settings.backends if one.name != "gone")
        less = sessions.settings.model_copy(update={"backends": (left,)})
        sessions.backends.settings = less
        for asked in (
            "/api/v1/sessions/{name}",
            "/api/v1/sessions/{name}/events",
            "/as/eve/to/engine/eve/v1/session/{name}/stream",
            "/as/herm/to/engine/v1/sessions/{name}",
            "/as/engine/to/engine/execute/replay?task_id={name}",
        ):
            real, nobodys = [
                await dragoman.request("GET", asked.format(name=one), key=FOREIGN)
                for one in (name, "dgs_nobody")
            ]
            assert real[0] == 404
            assert without_ids(str(real)) == without_ids(str(nobodys))
        status, told = await dragoman.request("GET", f"/api/v1/sessions/{name}", key=OWNER)
        assert (status, told["error"]["code"]) == (502, "backend_unavailable")
        assert not [line for line in caplog.records if line.levelname == "ERROR"]


async def test_anybody_who_joins_a_session_does_not_learn_of_one_on_another_route() -> None:
    async with proxied(backends=("engine", "other"), keys=KEYS) as dragoman:
        name = await dragoman.say("hello", key=OWNER)
        answers = []
        for one in (name, "dgs_nobody"):
            status, body = await dragoman.request(
                "POST",
                "/as/eve/to/other/eve/v1/session",
                key=FOREIGN,
                headers={"X-Dragoman-Session": one},
                json={"message": "x"},
            )
            assert status == 404
            answers.append(str(body).replace(one, "NAME"))
        assert answers[0] == answers[1]


async def test_a_session_is_not_there_on_another_route_of_its_owner() -> None:
    async with proxied(backends=("engine", "other")) as dragoman:
        name = await dragoman.say("hello")
        path = f"/as/eve/to/other/eve/v1/session/{name}"
        status, told = await dragoman.request("POST", path, json={"message": "x"})
        # So says an eve of a session that it does not know.
        assert (status, told["code"]) == (409, "session_not_active")


async def _leaks(request: web.Request) -> web.StreamResponse:
    """Forget to authorize."""
    await request.app[SESSIONS].get(request.match_info["session"], owner=None, route=None)
    return web.json_response({"ok": True})


async def _guards_the_door_only(request: web.Request) -> web.StreamResponse:
    """Ask for a key, and not whose session it is."""
    if "Authorization" not in request.headers or WRONG in request.headers["Authorization"]:
        return web.json_response({}, status=401)
    name = request.match_info["session"]
    try:
        await request.app[SESSIONS].get(name, owner=None, route=None)
    except Exception:  # noqa: BLE001 - whatever it is
        return web.json_response({}, status=404)
    return web.json_response({"ok": True})


async def _takes_an_administrator_for_the_owner(request: web.Request) -> web.StreamResponse:
    """Let administrators do more than look after a session."""
    try:
        settings = request.app[SESSIONS].settings
        principal = authenticate(request.headers, request.app[SESSIONS].keys)
        name = request.match_info["session"]
        session = await request.app[SESSIONS].get(name, owner=None, route=None)
        authorize(principal, session.row.owner, Action.READ, session.row.route, settings)
    except DragomanError as error:
        return web.json_response({}, status=STATUS[error.code])
    return web.json_response({"ok": True})


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        (_takes_an_administrator_for_the_owner, "an administrator gets"),
        (_leaks, "with the key None"),
        (_guards_the_door_only, "tells that a session exists"),
    ],
)
async def test_a_new_route_that_does_not_authorize_is_found(handler: Any, fault: str) -> None:
    path = "/new/{session}"

    def add(app: web.Application) -> None:
        app.router.add_get(path, handler)

    async with proxied(backends=("engine", "other"), keys=KEYS, change=add) as dragoman:
        routes = [r for r in dragoman.routes if r.resource and r.resource.canonical == path]
        faults = await Walk(dragoman, Served(dragoman.url, routes)).all()
    assert any(f"GET {path}: " in found and fault in found for found in faults), faults


def test_without_keys_only_the_loopback_interface_is_listened_on() -> None:
    listener = {"dialect": "eve", "route": "engine"}
    backend = {"name": "engine", "dialect": "engine", "url": "http://127.0.0.1:9"}
    for server, own in itertools.product(("127.0.0.1", "0.0.0.0", "192.0.2.1"), repeat=2):
        tables = {
            "server": {"listen": f"{server}:8787"},
            "listeners": [{**listener, "listen": f"{own}:8788"}],
            "backends": [backend],
        }
        if server == own == "127.0.0.1":
            Settings.model_validate(tables)
            continue
        with pytest.raises(ValidationError, match="needs a key"):
            Settings.model_validate(tables)
        Settings.model_validate({**tables, "keys": (key_of("owner"),)})
