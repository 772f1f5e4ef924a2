"""Routes whose shares are set while the server runs, over HTTP."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from click.testing import Result

from adapters.wire.errors import ErrorCode
from proxy.base.errors import JournalUnavailable
from proxy.cli import printing
from proxy.config.settings import KeySettings
from proxy.control.api import ErrorOut
from proxy.control.control import ChangedRouteOut, RoutesOut
from proxy.scripted.faults import Status
from tests.support.dragoman import Backend, Dragoman, Start, starts
from tests.support.engine_client import EngineClient
from tests.support.journals import CrashJournal
from tests.support.keys import credential, key_of
from tests.test_cli import dragoman

MAIN = {"name": "main", "backends": [{"name": "blue"}, {"name": "green", "weight": 0}]}

start = starts(Dragoman)

Serve = Start[Dragoman]


async def three(start: Serve, journal: Any = "memory:", **settings: Any) -> Dragoman:
    """An Engine, another one and an eve, and a route that leads to the first."""
    backends = {"blue": Backend("engine"), "green": Backend("engine"), "eve": Backend("eve")}
    return await start(journal, backends=backends, settings={"routes": [MAIN], **settings})


async def asked(
    running: Dragoman, method: str, path: str = "", *, key: str | None = None, body: Any = None
) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{running.port}/api/v1/routes{path}"
    async with running.http.request(method, url, json=body, headers=credential(key)) as response:
        return response.status, await response.json()


async def put(
    running: Dragoman, route: str, *shares: tuple[str, int], key: str | None = None
) -> tuple[int, Any]:
    body = {"backends": [{"name": name, "weight": weight} for name, weight in shares]}
    return await asked(running, "PUT", f"/{route}", key=key, body=body)


async def shown(running: Dragoman, key: str | None = None) -> dict[str, tuple[str, list[Any]]]:
    """Return the source and the shares of each route."""
    status, body = await asked(running, "GET", key=key)
    assert status == 200
    return {
        route.name: (route.source, [(one.backend, one.weight) for one in route.backends])
        for route in RoutesOut.model_validate(body).routes
    }


async def new(running: Dragoman, route: str, key: str | None = None) -> str:
    """Make a session, and return its backend."""
    url = f"{running.face('eve', route)}/eve/v1/session"
    async with running.http.post(url, json={"message": "x"}, headers=credential(key)) as response:
        body = await response.json()
        assert response.status in (200, 202), body
    return (await running.live(body["sessionId"])).leg.backend


async def command(running: Dragoman, *arguments: str, key: str | None = None) -> Result:
    return await dragoman("routes", *arguments, url=f"http://127.0.0.1:{running.port}", key=key)


async def test_every_route_is_listed_with_its_shares(start: Serve) -> None:
    running = await three(start)
    status, body = await asked(running, "GET")
    assert (status, body["version"]) == (200, 1)
    assert body["routes"][-1] == {
        "name": "main",
        "source": "configured",
        "backends": [
            {"backend": "blue", "dialect": "engine", "weight": 100},
            {"backend": "green", "dialect": "engine", "weight": 0},
        ],
        "shadow": None,
    }
    assert [route["name"] for route in body["routes"]] == ["blue", "green", "eve", "main"]


async def test_new_sessions_go_by_the_shares_of_now_and_old_ones_stay(start: Serve) -> None:
    running = await three(start)
    engine = EngineClient(running.http, running.face("engine", "main"))
    assert (await engine.turn("script: text", "t")).text.endswith("(turn 1)")
    status, body = await put(running, "main", ("blue", 0), ("green", 1))
    assert status == 200
    changed = ChangedRouteOut.model_validate(body)
    assert (changed.name, changed.source) == ("main", "set")
    assert [(one.backend, one.weight) for one in changed.backends] == [("blue", 0), ("green", 1)]
    assert {await new(running, "main") for _ in range(5)} == {"green"}
    assert (await engine.turn("script: text", "t")).text.endswith("(turn 2)")
    assert len(running.bodies("blue", "execute")) == 2
    await put(running, "main", ("green", 1), ("eve", 1))
    assert {await new(running, "main") for _ in range(30)} == {"green", "eve"}
    # A backend's own route leads elsewhere too.
    await put(running, "blue", ("eve", 1))
    assert [await new(running, name) for name in ("blue", "green")] == ["eve", "green"]
    for route in ("main", "blue"):
        status, body = await asked(running, "DELETE", f"/{route}")
        assert (status, body["source"]) == (200, "configured")
        assert await new(running, route) == "blue"


async def test_faces_show_the_agent_to_which_new_sessions_go(start: Serve) -> None:
    running = await three(start)

    async def agents() -> tuple[str, str]:
        async with running.http.get(f"{running.face('eve', 'main')}/eve/v1/info") as response:
            info = (await response.json())["agent"]["name"]
        async with running.http.get(f"{running.face('herm', 'main')}/v1/agents") as response:
            (agent,) = (await response.json())["data"]
        return info, agent["id"]

    assert await agents() == ("blue", "blue")
    await put(running, "main", ("blue", 0), ("green", 1))
    assert await agents() == ("green", "green")


async def test_a_frontend_keeps_the_name_of_the_agent_that_it_has(start: Serve) -> None:
    running = await three(start)
    base = running.face("herm", "main")

    async def statuses() -> list[int]:
        found = []
        for name in ("blue", "green", "main", "eve"):
            url = f"{base}/v1/agents/{name}/sessions"
            async with running.http.post(url, json={}) as response:
                found.append(response.status)
        return found

    assert await statuses() == [201, 201, 201, 404]
    # Of several backends it is any that is drawn.
    await put(running, "main", ("blue", 1), ("green", 1))
    for _ in range(10):
        assert await statuses() == [201, 201, 201, 404]
    await put(running, "main", ("eve", 1))
    assert await statuses() == [201, 201, 201, 201]


async def test_a_callback_of_nobody_goes_to_a_backend_that_gets_new_sessions(start: Serve) -> None:
    running = await three(start)

    async def called() -> int:
        url = f"{running.face('eve', 'main')}/eve/v1/connections/x/callback/nobodys"
        async with running.http.get(url) as response:
            await response.read()
        return len([r for r in running.scripted["eve"].received if "callback" in r.route])

    assert await called() == 0
    await put(running, "main", ("blue", 0), ("eve", 1))
    assert await called() == 1


async def test_what_was_set_holds_over_a_restart(start: Serve) -> None:
    running = await three(start, CrashJournal())
    await put(running, "main", ("green", 3), ("blue", 0))
    await put(running, "eve", ("blue", 1))
    await asked(running, "DELETE", "/eve")
    await running.restart()
    found = await shown(running)
    assert found["main"] == ("set", [("green", 3), ("blue", 0)])
    assert found["eve"] == ("configured", [("eve", 100)])
    assert await new(running, "main") == "green"
    # It goes before what the configuration says then.
    await running.reconfigure(routes=[{"name": "main", "backends": [{"name": "eve"}]}])
    assert await new(running, "main") == "green"
    await asked(running, "DELETE", "/main")
    assert await new(running, "main") == "eve"


async def test_a_backend_that_left_the_configuration_is_named_and_the_rest_holds(
    start: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    running = await three(start, CrashJournal())
    await put(running, "main", ("green", 3), ("eve", 1))
    await put(running, "blue", ("green", 1))
    await running.crash()
    eve = running.backends.pop("eve")
    await running.start()
    (said,) = [one.getMessage() for one in caplog.records if "at run time" in one.getMessage()]
    assert "route `main`" in said
    assert "there is no backend `eve`" in said
    found = await shown(running)
    assert found["main"] == ("configured", [("blue", 100), ("green", 0)])
    assert found["blue"] == ("set", [("green", 1)])
    # When it is back, nothing changes by itself.
    await running.crash()
    running.backends["eve"] = eve
    await running.start()
    assert (await shown(running))["main"][0] == "configured"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "`backends`: is missing"),
        ({"backends": {}}, "`backends`: "),
        ({"backends": []}, "`backends`: needs a backend whose weight is not 0"),
        ({"backends": [{"name": "blue", "weight": 0}]}, "`backends`: needs a backend"),
        ({"backends": [{"name": "red"}]}, "`backends.0.name`: there is no backend `red`; config"),
        (
            {"backends": [{"name": "blue"}, {"name": "main"}]},
            "`backends.1.name`: there is no backend `main`",
        ),
        (
            {"backends": [{"name": "blue"}, {"name": "blue"}]},
            "`backends.1.name`: `blue` is named twice",
        ),
        *[
            ({"backends": [{"name": "blue", "weight": weight}]}, "`backends.0.weight`: ")
            for weight in (-1, 1_000_001, 1.5, 10**400, "90", True, None)
        ],
        ({"backends": [{"name": "blue", "wait": 1}]}, "`backends.0.wait`: "),
        ({"backends": [{"name": "blue"}], "more": 1}, "`more`: "),
        ([], "The body: "),
    ],
)
async def test_what_is_no_set_of_shares_is_refused_and_changes_nothing(
    start: Serve, body: Any, said: str
) -> None:
    running = await three(start)
    before = await shown(running)
    status, answer = await asked(running, "PUT", "/main", body=body)
    error = ErrorOut.model_validate(answer).error
    assert (status, error.code) == (400, ErrorCode.INVALID_REQUEST)
    assert error.message.startswith(said)
    assert await shown(running) == before


async def test_there_is_no_route_but_the_configurations(start: Serve) -> None:
    running = await three(start)
    for answer in (
        await put(running, "nowhere", ("blue", 1)),
        await asked(running, "DELETE", "/nowhere"),
    ):
        assert answer[0] == 404
        assert answer[1]["error"]["message"] == "There is no route `nowhere`."
    status, body = await asked(running, "POST", "/main")
    assert (status, body["error"]["message"]) == (
        *(405, "`/api/v1/routes/main` takes DELETE and PUT only."),
    )


async def test_where_the_disk_fails_or_the_server_stops_nothing_changes(start: Serve) -> None:
    running = await three(start)
    journal = running.sessions.journal
    with pytest.MonkeyPatch.context() as patch:

        async def full(*_: object) -> None:
            raise JournalUnavailable("the disk is full")

        patch.setattr(journal, "keep_shares", full)
        for answer in (
            await put(running, "main", ("green", 1)),
            await asked(running, "DELETE", "/main"),
        ):
            assert (answer[0], answer[1]["error"]["code"]) == (503, "journal_unavailable")
    assert (await shown(running))["main"][0] == "configured"
    running.sessions.cache.drain()
    for answer in (
        await put(running, "main", ("green", 1)),
        await asked(running, "DELETE", "/main"),
    ):
        assert (answer[0], answer[1]["error"]["code"]) == (503, "stopping")


# Keys.

KEYS = (
    KeySettings(name="ops", sha256=key_of("ops").sha256, admin=True),
    key_of("web"),
    key_of("of-main", ("main",)),
    key_of("of-both", ("blue", "green")),
)


async def test_only_a_key_of_an_administrator_sees_and_sets_routes(
    start: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = await three(start, keys=KEYS)
    body = {"backends": [{"name": "green"}]}
    for route in ("/main", "/nowhere"):
        for key, expected in ((None, 401), ("k-web", 403), ("k-of-main", 403), ("k-of-both", 403)):
            for method, path in (("GET", ""), ("PUT", route), ("DELETE", route)):
                status, answer = await asked(running, method, path, key=key, body=body)
                assert status == expected
                assert expected == 401 or "`admin = true` under [[keys]]" in str(answer)
    assert (await shown(running, "k-ops"))["main"][0] == "configured"
    status, _ = await put(running, "main", ("green", 1), key="k-ops")
    assert status == 200
    assert "`ops` set the shares of route `main` from `blue` 100, `green` 0 to `green` 1" in [
        record.getMessage() for record in caplog.records
    ]
    # Those who may use the route go where it leads.
    for key in ("k-web", "k-of-main", "k-of-both"):
        assert await new(running, "main", key) == "green"


async def test_a_route_leads_no_key_to_a_backend_that_it_may_not_use(start: Serve) -> None:
    running = await three(start, keys=KEYS)
    status, body = await put(running, "main", ("blue", 1), ("eve", 1), key="k-ops")
    assert status == 400
    message = body["error"]["message"]
    assert message.startswith("`backends.1.name`: key `of-both` may use route `main`")
    assert "add `main` or `eve`" in message
    # Nor does one that may not use it come in because its own backends are left there.
    status, _ = await put(running, "eve", ("blue", 1), key="k-ops")
    assert status == 200
    url = f"{running.face('eve', 'eve')}/eve/v1/session"
    async with running.http.post(
        url, json={"message": "x"}, headers=credential("k-of-both")
    ) as response:
        assert response.status == 404


# The command line.


async def test_the_commands_list_set_and_reset(
    start: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await three(start)
    done = await command(running, "list")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == [
        "main\tblue\tengine\t100\t100.0%\tconfigured",
        "main\tgreen\tengine\t0\t0.0%\tconfigured",
    ]
    done = await command(running, "set", "main", "blue=2", "green=1")
    assert done.stdout.splitlines() == [
        "main\tblue\tengine\t2\t66.7%\tset",
        "main\tgreen\tengine\t1\t33.3%\tset",
    ]
    done = await command(running, "set", "main", "green=1", "--json")
    assert json.loads(done.stdout) == {
        "version": 1,
        "name": "main",
        "source": "set",
        "backends": [{"backend": "green", "dialect": "engine", "weight": 1}],
        "shadow": None,
        "notices": [],
    }
    assert await new(running, "main") == "green"
    done = await command(running, "list", "--json")
    assert json.loads(done.stdout) == (await asked(running, "GET"))[1]
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    done = await command(running, "reset", "main")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["route", "backend", "dialect", "weight", "percent", "source"]
    assert [row.split() for row in rows] == [
        ["main", "blue", "engine", "100", "100.0%", "configured"],
        ["main", "green", "engine", "0", "0.0%", "configured"],
    ]
    done = await command(running, "reset", "main", "--json")
    assert json.loads(done.stdout)["source"] == "configured"


@pytest.mark.parametrize(
    ("name", "kind"), [("wrong", "credential_refused"), ("gone", "connection_refused")]
)
async def test_new_sessions_are_sent_to_no_backend_that_is_not_ready(
    start: Serve, name: str, kind: str
) -> None:
    backends = {
        "blue": Backend("engine"),
        "wrong": Backend("engine", key="k-wrong"),
        "gone": Backend("engine"),
    }
    route = {"name": "main", "backends": [{"name": "blue"}, {"name": name, "weight": 0}]}
    running = await start("memory:", backends=backends, settings={"routes": [route]})
    await running.stop_backend("gone")
    before = await shown(running)
    status, body = await put(running, "main", ("blue", 1), (name, 1))
    assert (status, body["error"]["code"]) == (409, "backend_not_ready")
    assert body["error"]["details"]["kind"] == kind
    refused = await command(running, "set", "main", f"{name}=1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"dragoman: Backend `{name}` is not ready: ")
    assert await shown(running) == before
    # Nothing of the kind holds up who gives it none.
    assert (await put(running, "main", ("blue", 1), (name, 0)))[0] == 200


async def test_a_backend_that_is_gone_can_get_less_but_not_more(start: Serve) -> None:
    running = await three(start)
    assert (await put(running, "main", ("blue", 50), ("green", 50)))[0] == 200
    await running.stop_backend("blue")
    assert (await put(running, "main", ("blue", 60), ("green", 40)))[0] == 409
    # As much as before, in other numbers.
    assert (await put(running, "main", ("blue", 1), ("green", 1)))[0] == 200
    assert (await put(running, "main", ("blue", 10), ("green", 90)))[0] == 200
    assert (await put(running, "main", ("green", 1)))[0] == 200
    # The way back is open.
    assert (await asked(running, "DELETE", "/main"))[0] == 200


async def test_what_could_not_be_learned_of_a_backend_is_said_and_the_route_is_set(
    start: Serve,
) -> None:
    running = await three(start)
    running.scripted["eve"].faults.plan.update({("info", n): Status(404) for n in range(1, 10)})
    done = await command(running, "set", "main", "eve=1")
    assert done.exit_code == 0
    assert "Backend `eve`: its credential is not known: " in done.stderr
    assert await new(running, "main") == "eve"


@pytest.mark.parametrize("share", ["blue", "blue=", "=1", "blue=x", "blue=-1", "blue=12345678"])
async def test_what_is_no_share_is_a_usage_error(share: str) -> None:
    done = await dragoman("routes", "set", "main", share, url="http://127.0.0.1:9")
    assert done.exit_code == 2
    assert "write BACKEND=WEIGHT, like `blue=90`" in " ".join(done.stderr.split())


async def test_what_the_server_refuses_is_said_in_its_words(start: Serve) -> None:
    running = await three(start, keys=KEYS)
    for arguments, key, said in (
        (("set", "main", "red=1"), "k-ops", "there is no backend `red`; configured are `blue`"),
        (("set", "main", "blue=0"), "k-ops", "no session could be made"),
        (("reset", "nowhere"), "k-ops", "There is no route `nowhere`."),
        (("list",), "k-web", "`admin = true`"),
        (("list",), None, "DRAGOMAN_KEY"),
    ):
        done = await command(running, *arguments, key=key)
        assert (done.exit_code, done.stdout) == (1, "")
        assert said in done.stderr
