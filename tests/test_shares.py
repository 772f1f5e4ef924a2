"""The shares of routes: how new sessions are spread, and what cannot be set."""

from __future__ import annotations

import collections
import logging
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.model import commands as cmd
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from proxy.base.clock import SeededIds
from proxy.base.rows import ShareRow
from proxy.config.settings import Settings, Share
from proxy.journal import open_journal
from proxy.journal.base import Journal
from proxy.sessions.backends import Backends
from proxy.sessions.shares import Shares
from tests.support.keys import key_of

DRAWS = 1000
NAMES = ("blue", "green", "red")


def settings(**tables: Any) -> Settings:
    table = {"dialect": "engine", "url": "http://127.0.0.1:1"}
    backends: list[dict[str, Any]] = [{"name": name, **table} for name in NAMES]
    herm = {"dialect": "herm", "create": {"agent": "a"}}
    backends.append({**table, "name": "herm", **herm})
    later = {"name": "later", "dialect": "hermes-agent", "url": "hooks:"}
    signed = {"adopt": "owner:all", "auth": {"bearer_env": "HOOK_SECRET"}}
    backends.append({**later, **signed} if "keys" in tables else later)
    route = {"name": "main", "backends": [{"name": "blue"}]}
    return Settings.model_validate({"backends": backends, "routes": [route], **tables})


@pytest.fixture
async def journal() -> AsyncIterator[Journal]:
    made = open_journal("memory:")
    await made.open()
    yield made
    await made.aclose()


def of(*weights: int) -> list[Share]:
    shares = zip(NAMES, weights, strict=False)
    return [Share(name=name, weight=weight) for name, weight in shares]


class Fixed(Shares):
    """Shares that are not stored."""

    def put(self, route: str, shares: Sequence[Share]) -> None:
        self._set[route] = tuple(shares)


def drawing(shares: Sequence[Share], seed: int) -> Backends:
    # Only what draws is asked: it makes no connection.
    made = Backends(settings(), object(), SeededIds(seed))  # type: ignore[arg-type]
    made.shares = fixed = Fixed(settings())
    fixed.put("main", shares)
    return made


@given(
    st.lists(st.integers(0, 1_000_000), min_size=3, max_size=3).filter(any),
    st.integers(0, 2**32),
)
def test_new_sessions_are_spread_by_the_weights_of_now(weights: list[int], seed: int) -> None:
    backends = drawing(of(*weights), seed)
    drawn = collections.Counter(backends.of("main").name for _ in range(DRAWS))
    for name, weight in zip(NAMES, weights, strict=True):
        share = weight / sum(weights)
        # Seven standard deviations, and a draw for the smallest shares.
        slack = 7 * math.sqrt(DRAWS * share * (1 - share)) + 3
        assert abs(drawn[name] - DRAWS * share) <= slack
        assert weight or not drawn[name]


def test_a_draw_at_the_very_end_goes_to_no_backend_of_weight_0() -> None:
    class Highest(SeededIds):
        def fraction(self) -> float:
            return 1.0  # What the largest seven bytes are rounded to.

    backends = drawing(of(1, 2, 0), 1)
    backends.ids = Highest()
    assert backends.of("main").name == "green"


def test_only_backends_that_get_new_sessions_must_carry_their_commands() -> None:
    herm = Share(name="herm")
    backends = drawing([herm, *of(0)], 1)
    assert [one.name for one in backends.all_of("main")] == ["herm"]
    backends.check("main", cmd.Interrupt())
    with pytest.raises(NotSupported):
        drawing([herm, *of(1)], 1).check("main", cmd.Interrupt())


REFUSED = [
    ("main", [], "backends", "no session could be made"),
    ("main", of(0, 0), "backends", "whose weight is not 0"),
    ("main", [*of(1), Share(name="grey")], "backends.1.name", "no backend `grey`; configured are"),
    ("blue", [*of(1), *of(2)], "backends.1.name", "`blue` is named twice"),
    ("main", [Share(name="later")], "backends.0.name", "begin all sessions themselves"),
]


@pytest.mark.parametrize(("route", "shares", "place", "why"), REFUSED)
async def test_what_cannot_be_set_is_refused_with_its_place(
    journal: Journal, route: str, shares: list[Share], place: str, why: str
) -> None:
    made = Shares(settings())
    was = made.of(route)
    with pytest.raises(DragomanError) as refused:
        await made.change(journal, route, shares, by="ops")
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.message.startswith(f"`{place}`: ")
    assert why in refused.value.message
    assert (made.of(route), made.is_set(route)) == (was, False)
    assert await journal.shares() == []


async def test_a_backend_that_cannot_be_driven_may_have_the_weight_0(journal: Journal) -> None:
    made = Shares(settings())
    await made.change(journal, "main", [*of(1), Share(name="later", weight=0)], by="ops")
    assert [one.name for one in made.taking("main")] == ["blue"]


async def test_there_is_no_route_but_the_configurations(journal: Journal) -> None:
    made = Shares(settings())
    for work in (
        made.change(journal, "nowhere", of(1), by="ops"),
        made.reset(journal, "nowhere", by="ops"),
    ):
        with pytest.raises(DragomanError, match="There is no route `nowhere`") as refused:
            await work
        assert refused.value.code is ErrorCode.NOT_FOUND


async def test_each_change_is_logged_with_who_made_it(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = Shares(settings())
    await made.change(journal, "main", of(9, 1), by="ops")
    await made.reset(journal, "main", by="web")
    assert [record.getMessage() for record in caplog.records] == [
        "`ops` set the shares of route `main` from `blue` 100 to `blue` 9, `green` 1",
        "`web` reset the shares of route `main` from `blue` 9, `green` 1 to the configuration's "
        "`blue` 100",
    ]
    assert not made.is_set("main")
    assert await journal.shares() == []


async def test_what_was_set_holds_after_a_start(journal: Journal) -> None:
    made = Shares(settings())
    await made.change(journal, "main", of(9, 1), by="ops")
    await made.change(journal, "red", of(0, 1), by="ops")
    await made.change(journal, "main", of(1, 0, 2), by="ops")
    again = Shares(settings())
    await again.load(journal)
    assert {name: list(again.of(name)) for name in ("main", "red", "blue")} == {
        "main": of(1, 0, 2),
        "red": of(0, 1),
        "blue": [Share(name="blue")],
    }
    assert [again.is_set(name) for name in ("main", "red", "blue")] == [True, True, False]


@pytest.mark.parametrize(
    ("route", "backend", "why"),
    [
        ("gone", "blue", "there is no route `gone`"),
        ("main", "grey", "there is no backend `grey`"),
        ("main", "later", "begin all sessions themselves"),
    ],
)
async def test_what_is_not_configured_any_more_is_dropped_at_a_start_which_is_logged(
    journal: Journal, caplog: pytest.LogCaptureFixture, route: str, backend: str, why: str
) -> None:
    await journal.keep_shares(route, [ShareRow(route, backend, 7)])
    await journal.keep_shares("red", [ShareRow("red", "blue", 7)])
    made = Shares(settings())
    await made.load(journal)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    text = warning.getMessage()
    assert all(part in text for part in (f"route `{route}`", f"`{backend}` 7", why))
    assert list(made.of("main")) == [Share(name="blue")]
    assert list(made.of("red")) == [Share(name="blue", weight=7)]
    # It does not come back with the next configuration.
    assert [row.route for row in await journal.shares()] == ["red"]


KEYS = (
    key_of("all"),
    key_of("of-route", ("main",)),
    key_of("of-blue", ("blue",)),
    key_of("of-two", ("blue", "green")),
    key_of("of-red", ("red",)),
)


async def test_no_key_comes_to_a_backend_that_it_may_not_use(journal: Journal) -> None:
    made = Shares(settings(keys=KEYS))
    for shares, place in ((of(1, 1), 1), (of(1, 0), 1), (of(0, 0, 1), 1)):
        with pytest.raises(DragomanError) as refused:
            await made.change(journal, "main", shares, by="all")
        assert refused.value.message == (
            f"`backends.{place}.name`: key `of-blue` may use route `main`, whose backends it "
            "names, but not `green`: add `main` or `green` to its `backends` under [[keys]], and "
            "reload."
        )
    # One that names the route follows it, and one that may not use it is not asked.
    fewer = Shares(settings(keys=(KEYS[0], KEYS[1], KEYS[4])))
    await fewer.change(journal, "main", of(0, 1), by="all")
    # A backend's own route is named by its name.
    await made.change(journal, "blue", of(0, 1), by="all")


async def test_what_a_key_may_not_use_any_more_is_dropped_at_a_start(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    await Shares(settings()).change(journal, "main", of(0, 1), by="local")
    made = Shares(settings(keys=KEYS))
    await made.load(journal)
    assert list(made.of("main")) == [Share(name="blue")]
    assert "key `of-blue`" in caplog.text


async def test_what_could_not_be_stored_does_not_hold(journal: Journal) -> None:
    made = Shares(settings())
    await journal.aclose()
    with pytest.raises(DragomanError) as refused:
        await made.change(journal, "main", of(1, 1), by="ops")
    assert refused.value.code is ErrorCode.JOURNAL_UNAVAILABLE
    assert not made.is_set("main")


async def test_a_sandbox_leads_to_itself_only(journal: Journal) -> None:
    """Else the inputs of the sessions that it shadows would come to tools that are real."""
    table = {"dialect": "engine", "url": "http://127.0.0.1:1"}
    backends = [{"name": "blue", **table}, {"name": "green", "sandbox": True, **table}]
    made = Shares(Settings.model_validate({"backends": backends}))
    with pytest.raises(DragomanError, match="`green` is a sandbox"):
        await made.change(journal, "green", of(1), by="me")
    await journal.keep_shares("green", [ShareRow("green", "blue", 1)])
    await made.load(journal)
    assert [share.name for share in made.of("green")] == ["green"]
