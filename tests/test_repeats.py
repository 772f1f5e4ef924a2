"""What `proxy.base.repeats` recognises, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from multidict import CIMultiDict

from adapters.model import events as ev
from adapters.wire.errors import DragomanError
from proxy.base.locks import KeyedLock
from proxy.base.repeats import (
    KEY_MS,
    LOST_MS,
    REQUESTS_KEPT,
    RETRY_MS,
    RecentRequests,
    SeenRequest,
    Submission,
    identity,
)


def asked(body: bytes = b"continue", reachable: bool = True, **headers: str) -> Submission:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Submission("POST", "/x", CIMultiDict(names), body, lambda: reachable)


def heard(
    requests: RecentRequests,
    request: Submission,
    name: str,
    at: int = 0,
    *,
    sealed: bool = False,
    command: str | None = None,
) -> SeenRequest:
    details = {"request": dict(identity(request, name, sealed=sealed))}
    requests.hear(
        ev.InputAccepted(
            thread_id=ev.MAIN,
            command_id=command or name,
            kind="message",
            by="ann",
            details=details,
        ),
        at,
    )
    accepted = requests.get(name)
    assert accepted is not None
    return accepted


def test_equal_content_is_no_repeat() -> None:
    requests = RecentRequests()
    heard(requests, asked(), "c1")
    assert requests.find(asked(), 1) is None
    for count in ("0", "x", "²", "9" * 5000):
        assert requests.find(asked(x_stainless_retry_count=count), 1) is None


def test_equal_is_what_has_the_same_method_path_and_body() -> None:
    requests = RecentRequests()
    # As aiohttp gives what is not UTF-8.
    name = "\udcff"
    headers = CIMultiDict({"Idempotency-Key": name})
    heard(requests, Submission("POST", name, headers, b"", lambda: True), "c1").lost_at = 0
    for method, path in (("PUT", name), ("POST", "/x")):
        assert requests.find(Submission(method, path, CIMultiDict(), b"", lambda: True), 0) is None
    assert requests.find(Submission("POST", name, CIMultiDict(), b"", lambda: True), 0) is not None
    assert requests.find(Submission("POST", name, headers, b"", lambda: True), 0) is not None


def test_what_broke_off_may_come_again_for_a_while() -> None:
    requests = RecentRequests()
    heard(requests, asked(), "c1").lost_at = 1000
    assert requests.find(asked(b"stop"), 1000) is None
    assert requests.find(asked(), 1000 + LOST_MS + 1) is None
    assert requests.find(asked(), 1000 + LOST_MS) is requests.get("c1")


@pytest.mark.parametrize("outcome", ["refused", "unknown", "withdrawn"])
def test_what_was_not_done_may_be_asked_for_anew(outcome: Any) -> None:
    requests = RecentRequests()
    heard(requests, asked(idempotency_key="k"), "c1").lost_at = 1000
    settled = ev.InputSettled(thread_id=ev.MAIN, command_id="c1", outcome=outcome)
    requests.hear(settled.model_copy(update={"outcome": "taken"}), 1001)
    assert requests.find(asked(), 1002) is requests.get("c1")
    requests.hear(settled, 1003)
    assert requests.find(asked(), 1004) is None
    assert requests.find(asked(x_stainless_retry_count="1"), 1004) is None
    # A key says that it is the same request: it gets what that gave.
    assert requests.find(asked(idempotency_key="k"), 1004) is requests.get("c1")


def test_all_commands_of_a_request_are_its_own_and_no_others() -> None:
    requests = RecentRequests()
    for command in ("c1", "c2"):
        heard(requests, asked(), "c1", command=command).lost_at = 0
    heard(requests, asked(b"stop"), "c3").lost_at = 0
    found = requests.find(asked(), 0)
    assert found is not None
    assert found.ids == ["c1", "c2"]
    refused = ev.InputSettled(thread_id=ev.MAIN, command_id="c2", outcome="refused")
    requests.hear(refused, 0)
    assert requests.find(asked(), 0) is None
    assert requests.find(asked(b"stop"), 0) is requests.get("c3")


def test_of_equal_requests_the_newest_is_repeated() -> None:
    requests = RecentRequests()
    heard(requests, asked(), "c1")
    newest = heard(requests, asked(), "c2")
    assert requests.find(asked(x_stainless_retry_count="1"), 0) is newest


def test_a_client_that_is_gone_is_noticed_when_it_comes_again() -> None:
    requests = RecentRequests()
    accepted = heard(requests, asked(), "c1")
    there = True
    first = Submission("POST", "/x", CIMultiDict(), b"continue", lambda: there)

    def tell(request: object, whole: bool) -> None:
        accepted.lost_at = None if whole else 5

    first.accept(accepted, tell)
    assert requests.find(asked(), 5) is None
    there = False
    assert requests.find(asked(), 5) is accepted


@pytest.mark.parametrize("there", [True, False])
def test_a_reply_that_was_written_is_whole_if_its_client_is_there(there: bool) -> None:
    told: list[bool] = []
    first = asked(reachable=there)
    accepted = heard(RecentRequests(), asked(), "c1")
    first.accept(accepted, lambda _, whole: told.append(whole))
    assert accepted.submission is first
    first.over(whole=True)
    first.over(whole=False)
    assert told == [there]
    assert accepted.submission is None


async def test_only_equal_requests_of_one_owner_on_one_route_wait_for_each_other() -> None:
    in_order = KeyedLock()
    entered: list[str] = []

    async def enter(name: str, owner: str, route: str, request: Submission) -> None:
        async with in_order.lock(owner, route, request.same):
            entered.append(name)

    async with in_order.lock("ann", "r", asked().same), asyncio.TaskGroup() as others:
        equal = asyncio.create_task(enter("equal", "ann", "r", asked()))
        others.create_task(enter("owner", "bob", "r", asked()))
        others.create_task(enter("route", "ann", "s", asked()))
        others.create_task(enter("body", "ann", "r", asked(b"stop")))
    await equal
    assert entered == ["owner", "route", "body", "equal"]


def test_a_retry_is_one_of_a_try_before_it() -> None:
    requests = RecentRequests()
    accepted = heard(requests, asked(), "c1")
    retry = asked(x_stainless_retry_count="1")
    assert requests.find(retry, RETRY_MS) is accepted
    assert requests.find(retry, RETRY_MS + 1) is None
    accepted.retry = 1
    # The first retry was answered: another first retry is of another request.
    assert requests.find(retry, 0) is None
    assert requests.find(asked(x_stainless_retry_count="2"), 0) is accepted


def test_which_try_was_accepted_is_known_after_a_restart() -> None:
    requests, retry = RecentRequests(), asked(x_stainless_retry_count="1")
    heard(requests, retry, "c1")
    again = RecentRequests()
    again.restore(requests.dump())
    for known in (requests, again):
        # Its first try was lost on its way; another first retry is of another request.
        assert known.find(retry, 0) is None
        assert known.find(asked(x_stainless_retry_count="2"), 0) is known.get("c1")


def test_a_key_holds_for_a_day_and_for_one_request() -> None:
    requests = RecentRequests()
    accepted = heard(requests, asked(idempotency_key="k"), "c1")
    assert requests.find(asked(idempotency_key="k"), KEY_MS) is accepted
    assert requests.find(asked(idempotency_key="k"), KEY_MS + 1) is None
    assert requests.find(asked(idempotency_key="j"), 0) is None
    with pytest.raises(DragomanError, match="another request"):
        requests.find(asked(b"stop", idempotency_key="k"), 0)


def test_of_a_request_with_a_secret_nothing_but_the_key_is_kept() -> None:
    requests = RecentRequests()
    secret = asked(b'{"sealed": "hunter2"}', idempotency_key="k")
    assert "body" not in identity(secret, "c1", sealed=True)
    accepted = heard(requests, secret, "c1", sealed=True)
    accepted.lost_at = 0
    assert requests.find(asked(b'{"sealed": "hunter2"}'), 0) is None
    assert requests.find(asked(b"other", idempotency_key="k"), 0) is accepted


def named(*names: str, body: bytes = b"continue", **headers: str) -> Submission:
    request = asked(body, True, **headers)
    request.name(names)
    return request


def test_a_request_with_names_is_the_one_that_has_the_same_and_no_other() -> None:
    requests = RecentRequests()
    heard(requests, asked(idempotency_key="k"), "c0").lost_at = 0
    accepted = heard(requests, named("a", "b"), "c1")
    accepted.lost_at = 0
    assert requests.find(named("b", "a", "b", body=b"more", idempotency_key="j"), 0) is accepted
    # Neither an equal body nor a header makes it one.
    for names in (("a",), ("a", "b", "c"), ("ab",), ('a", "b',)):
        again = named(*names, idempotency_key="k", x_stainless_retry_count="1")
        assert requests.find(again, 0) is None
    assert requests.find(asked(), 0) is requests.get("c0")
    assert named("a", "b").same == named("b", "a", body=b"more").same != named("a").same


def test_a_request_with_no_names_is_known_as_any_other() -> None:
    assert (named().same, named(idempotency_key="k").same) == (
        asked().same,
        asked(idempotency_key="k").same,
    )


def test_names_are_kept_and_given_up_where_nothing_was_done() -> None:
    requests, again = RecentRequests(), RecentRequests()
    heard(requests, named("a", body=b"hunter2"), "c1", sealed=True)
    again.restore(requests.dump())
    for known in (requests, again):
        assert known.find(named("a"), KEY_MS + 1) is known.get("c1")
    # A snapshot of before there were names.
    again.restore([made[:7] for made in requests.dump()])
    assert again.find(named("a"), 0) is None
    refused = ev.InputSettled(thread_id=ev.MAIN, command_id="c1", outcome="refused")
    requests.hear(refused, 0)
    assert requests.find(named("a"), 0) is None


def test_the_newest_are_remembered_and_a_snapshot_keeps_them() -> None:
    requests = RecentRequests()
    for number in range(REQUESTS_KEPT + 1):
        heard(requests, asked(b"%d" % number), f"c{number}")
    assert requests.get("c0") is None
    again = RecentRequests()
    again.restore(requests.dump())
    assert again.dump() == requests.dump()
    again.lose([("lost", "c7"), ("lost", "c8"), ("repeated", "c8")])
    assert again.find(asked(b"7"), 0) is again.get("c7") is not None
    assert again.find(asked(b"8"), 0) is None
    assert again.find(asked(b"9"), 0) is None
