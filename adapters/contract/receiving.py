"""What a backend sends by itself: a dialect whose backends call us says here how that is read.

Such a backend has no address. A delivery is checked, finds its session, and becomes one frame of
the session's codec; one whose sender waits is answered with what the codec decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """Something that a backend sent. `sessions` are the names by which its session may be known,
    the surest first; one that is not known is made where it `begins` one. `key` is what its
    decision is known by, where its sender `waits`, in milliseconds. `test` is set where it only
    asks whether it arrives. `at` is when it was sent, in Unix milliseconds."""

    frame: bytes
    sessions: tuple[str, ...]
    begins: bool
    id: str | None = None
    at: int | None = None
    key: str | None = None
    waits: int | None = None
    test: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Receiver:
    """How deliveries of a dialect are read.

    `read` takes a body, and raises `ClientProtocolError` for what is not one. `signed` says whether
    the headers show that the sender of a body has the secret. `block` gives the answer that stops
    what waits, for a reason; `done` is that to all others.
    """

    read: Callable[[bytes], Delivery]
    signed: Callable[[Mapping[str, str], bytes, bytes], bool]
    block: Callable[[str], bytes]
    done: bytes = b"{}"
    signature: str = ""
    """The header with the signature, for people."""
