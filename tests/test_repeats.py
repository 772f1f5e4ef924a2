"""What `proxy.repeats` recognises, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from multidict import CIMultiDict

from adapters import events as ev
from adapters.errors import DragomanError
from proxy.repeats import (
    KEY_MS,
    LOST_MS,
    REQUESTS_KEPT,
    RETRY_MS,
    Accepted,
    Asked,
    Requests,
    identity,
)


def asked(body: bytes = b"continue", reachable: bool = True, **headers: str) -> Asked:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Asked("POST", "/x", CIMultiDict(names), body, lambda: reachable)


def heard(
    requests: Requests, request: Asked, name: str, at: int = 0, *, sealed: bool = False
) -> Accepted:
    details = {"request": dict(identity(request, name, sealed=sealed))}
    requests.hear(
        ev.InputAccepted(
            thread_id=ev.MAIN, command_id=name, kind="message", by="ann", details=details
        ),
        at,
    )
    accepted = requests.get(name)
    assert accepted is not None
    return accepted


def test_equal_content_is_no_repeat() -> None:
    requests = Requests()
    heard(requests, asked(), "c1")
    assert requests.find(asked(), 1) is None
    assert requests.find(asked(x_stainless_retry_count="0"), 1) is None
    assert requests.find(asked(x_stainless_retry_count="x"), 1) is None


def test_what_broke_off_may_come_again_for_a_while() -> None:
    requests = Requests()
    heard(requests, asked(), "c1").lost_at = 1000
    assert requests.find(asked(b"stop"), 1000) is None
    assert requests.find(asked(), 1000 + LOST_MS + 1) is None
    assert requests.find(asked(), 1000 + LOST_MS) is requests.get("c1")


@pytest.mark.parametrize("outcome", ["refused", "unknown", "withdrawn"])
def test_what_was_not_done_may_be_asked_for_anew(outcome: Any) -> None:
    requests = Requests()
    heard(requests, asked(idempotency_key="k"), "c1").lost_at = 1000
    settled = ev.InputSettled(thread_id=ev.MAIN, command_id="c1", outcome=outcome)
    requests.hear(settled.model_copy(update={"outcome": "taken"}), 1001)
    assert requests.find(asked(), 1002) is requests.get("c1")
    requests.hear(settled, 1003)
    assert requests.find(asked(), 1004) is None
    assert requests.find(asked(x_stainless_retry_count="1"), 1004) is None
    # A key says that it is the same request: it gets what that gave.
    assert requests.find(asked(idempotency_key="k"), 1004) is requests.get("c1")


def test_a_client_that_is_gone_is_noticed_when_it_comes_again() -> None:
    requests = Requests()
    accepted = heard(requests, asked(), "c1")
    there = True
    first = Asked("POST", "/x", CIMultiDict(), b"continue", lambda: there)

    def tell(request: object, whole: bool) -> None:
        accepted.lost_at = None if whole else 5

    first.accept(accepted, tell)
    assert requests.find(asked(), 5) is None
    there = False
    assert requests.find(asked(), 5) is accepted


def test_a_retry_is_one_of_a_try_before_it() -> None:
    requests = Requests()
    accepted = heard(requests, asked(), "c1")
    retry = asked(x_stainless_retry_count="1")
    assert requests.find(retry, RETRY_MS) is accepted
    assert requests.find(retry, RETRY_MS + 1) is None
    accepted.retry = 1
    # The first retry was answered: another first retry is of another request.
    assert requests.find(retry, 0) is None
    assert requests.find(asked(x_stainless_retry_count="2"), 0) is accepted


def test_a_key_holds_for_a_day_and_for_one_request() -> None:
    requests = Requests()
    accepted = heard(requests, asked(idempotency_key="k"), "c1")
    assert requests.find(asked(idempotency_key="k"), KEY_MS) is accepted
    assert requests.find(asked(idempotency_key="k"), KEY_MS + 1) is None
    assert requests.find(asked(idempotency_key="j"), 0) is None
    with pytest.raises(DragomanError, match="another request"):
        requests.find(asked(b"stop", idempotency_key="k"), 0)


def test_of_a_request_with_a_secret_nothing_but_the_key_is_kept() -> None:
    requests = Requests()
    secret = asked(b'{"sealed": "hunter2"}', idempotency_key="k")
    assert "body" not in identity(secret, "c1", sealed=True)
    accepted = heard(requests, secret, "c1", sealed=True)
    accepted.lost_at = 0
    assert requests.find(asked(b'{"sealed": "hunter2"}'), 0) is None
    assert requests.find(asked(b"other", idempotency_key="k"), 0) is accepted


def test_the_newest_are_remembered_and_a_snapshot_keeps_them() -> None:
    requests = Requests()
    for number in range(REQUESTS_KEPT + 1):
        heard(requests, asked(b"%d" % number), f"c{number}")
    assert requests.get("c0") is None
    again = Requests()
    again.restore(requests.dump())
    assert again.dump() == requests.dump()
    again.lose([("lost", "c7"), ("lost", "c8"), ("repeated", "c8")])
    assert again.find(asked(b"7"), 0) is again.get("c7") is not None
    assert again.find(asked(b"8"), 0) is None
