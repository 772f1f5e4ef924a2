"""The seal of a request that one process forwards to another: who sends what to whom, and when.

It is an HMAC-SHA256 by the secret that all have. It holds for the process that it names only, for
`SECONDS` by the clock of the journal's server, which no machine's own clock moves, and once.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Callable

from adapters.wire.errors import DragomanError, ErrorCode

HEADER = "Dragoman-Forwarded"
"""The header that has the seal."""

SECONDS = 30.0
"""How long a seal holds."""

_VERSION = "1"


def _mac(secret: bytes, fields: tuple[str, ...], method: str, target: str, body: str) -> str:
    # Lengths first, so that no two requests are written alike.
    parts = (*fields, method, target, body)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hmac.digest(secret, text.encode("utf-8", "surrogateescape"), "sha256").hex()


def seal(
    secret: bytes,
    *,
    sender: int,
    receiver: int,
    at: float,
    method: str,
    target: str,
    body: str,
) -> str:
    """Return the seal of a request; `body` is the SHA-256 of its body in hex."""
    fields = (_VERSION, str(sender), str(receiver), f"{at:.3f}", secrets.token_hex(16))
    return " ".join((*fields, _mac(secret, fields, method, target, body)))


def digest(body: bytes) -> str:
    """Return what a seal says of a body."""
    return hashlib.sha256(body).hexdigest()


def _refused(why: str) -> DragomanError:
    return DragomanError(
        f"This address is for the processes of one cluster, and {why}.", code=ErrorCode.FORBIDDEN
    )


class Misdirected(Exception):
    """A request that another process of the cluster has sealed, and that is nothing for here: it
    was for another process, or came `before`."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before


@dataclasses.dataclass(slots=True, eq=False)
class SealChecker:
    """Checks seals of requests to the process `receiver`; `time` is the common clock, in Unix
    seconds."""

    secret: bytes
    receiver: Callable[[], int]
    time: Callable[[], float]
    # The nonces of seals that still hold, with the times from which on they do not.
    _seen: collections.OrderedDict[str, float] = dataclasses.field(
        init=False, default_factory=collections.OrderedDict
    )

    def check(self, given: str | None, *, method: str, target: str, body: bytes) -> int:
        """Check the seal of a request, and return the number of its sender.

        Raises:
            DragomanError: there is none, or it does not hold for this request.
            Misdirected: it holds, for another process, or once and no more.
        """
        if given is None:
            raise _refused(f"the request has no `{HEADER}`: use the public address")
        fields = given.split(" ")
        if len(fields) != 6 or fields[0] != _VERSION:
            raise _refused("the request was sealed by another release: upgrade all of them")
        *head, mac = fields
        wanted = _mac(self.secret, tuple(head), method, target, digest(body))
        # Bytes: texts that are not ASCII cannot be compared so.
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), wanted.encode()):
            raise _refused("the request is sealed by another secret: give all of them the same")
        _, sender, receiver, at, nonce = head
        if int(receiver) != self.receiver():
            # The one that had this address before.
            raise Misdirected(before=False)
        now = self.time()
        if abs(now - float(at)) > SECONDS:
            raise _refused("the request was sealed too long ago")
        while self._seen and next(iter(self._seen.values())) < now:
            self._seen.popitem(last=False)
        if nonce in self._seen:
            raise Misdirected(before=True)
        self._seen[nonce] = now + 2 * SECONDS
        return int(sender)
