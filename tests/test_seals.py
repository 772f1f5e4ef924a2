"""Seals of requests that one process of a cluster forwards to another."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.wire.errors import DragomanError
from proxy.http.seals import SECONDS, Misdirected, SealChecker, digest, seal

SECRET = b"0123456789abcdef0123456789abcdef"
REQUEST = {"method": "POST", "target": "/as/eve/to/lab/eve/v1/session?x=1"}


class Receiver:
    """Process 7, whose clock a test sets."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.now = 1000.0
        self.checker = SealChecker(secret, lambda: 7, lambda: self.now)

    def check(self, given: str | None, *, body: bytes = b"{}", **changed: str) -> int:
        return self.checker.check(given, body=body, **{**REQUEST, **changed})


def sealed(body: bytes = b"{}", **changed: Any) -> str:
    told = {"sender": 3, "receiver": 7, "at": 1000.0, **REQUEST, **changed}
    return seal(SECRET, body=digest(body), **told)


def test_a_seal_holds_once_for_its_request_and_says_who_sent_it() -> None:
    receiver = Receiver()
    given = sealed()
    assert receiver.check(given) == 3
    with pytest.raises(Misdirected) as raised:
        receiver.check(given)
    assert raised.value.before
    assert receiver.check(sealed()) == 3


@pytest.mark.parametrize(
    "changed",
    [{"method": "GET"}, {"target": "/as/eve/to/lab/eve/v1/session?x=2"}, {"body": b"{ }"}],
)
def test_a_seal_holds_for_no_other_request(changed: dict[str, Any]) -> None:
    with pytest.raises(DragomanError, match="another secret"):
        Receiver().check(sealed(), **changed)


def test_a_seal_by_another_secret_is_refused_with_the_way_out() -> None:
    with pytest.raises(DragomanError, match="give all of them the same"):
        Receiver(b"another secret that is long enough").check(sealed())


def test_a_seal_for_the_process_that_had_the_address_before_is_not_for_this_one() -> None:
    with pytest.raises(Misdirected) as raised:
        Receiver().check(sealed(receiver=8))
    assert not raised.value.before


@pytest.mark.parametrize("late", [SECONDS + 1, -SECONDS - 1])
def test_a_seal_holds_for_a_while_only(late: float) -> None:
    receiver = Receiver()
    given = sealed()
    receiver.now += late
    with pytest.raises(DragomanError, match="too long ago"):
        receiver.check(given)


def test_a_seal_that_was_used_is_remembered_as_long_as_it_holds_and_no_longer() -> None:
    receiver = Receiver()
    for number in range(100):
        receiver.now = 1000.0 + number
        given = sealed(at=receiver.now)
        receiver.check(given)
        receiver.now += SECONDS - 1
        with pytest.raises(Misdirected):
            receiver.check(given)
    assert len(receiver.checker._seen) <= 2 * SECONDS + 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "use the public address"),
        ("", "another release"),
        ("2 3 7 1000.000 nonce mac", "another release"),
        ("1 3 7 1000.000 nonce mac", "another secret"),
        ("1 3 7 1000.000 nonce m\u00e4c", "another secret"),
    ],
)
def test_what_is_not_a_seal_is_refused(given: str | None, says: str) -> None:
    with pytest.raises(DragomanError, match=says):
        Receiver().check(given)
