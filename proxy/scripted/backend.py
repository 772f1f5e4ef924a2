"""What the state of every scripted backend has: whom it admits, how it breaks, what it was sent.

A dialect adds its conversations and the rules about them.
"""

import asyncio
import datetime as dt
import hashlib
import hmac
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from proxy.base.clock import Clock
from proxy.base.tasks import Tasks
from proxy.scripted.faults import Faults


class Refusal(Exception):
    """A request that is answered with an error: status, code (empty where it has none) and text."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """Say what was wrong."""
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it came, for a test to look at."""

    route: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class FollowedConversation:
    """A conversation that readers follow: each waits for the `changed` that it found. The next
    `refusals` answers are refused."""

    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    refusals: int = field(default=0, init=False)

    def wake(self) -> None:
        """Tell every reader that there is something new."""
        self.changed.set()
        self.changed = asyncio.Event()

    def take_answer(self) -> None:
        """Let an answer in.

        Raises:
            Refusal: 422, the script wants it refused.
        """
        if self.refusals:
            self.refusals -= 1
            raise Refusal(422, "answer_refused", "This answer is refused on purpose.")


T = TypeVar("T", bound=FollowedConversation)


class ScriptedBackend(Generic[T]):
    """The state of one scripted backend: conversations, requests received, requests refused.

    Args:
        name: what it is called in the names of its tasks.
        credential: the only header that passes; any or none passes without one.
        faults: which requests break, and how.
        clock: the time in what it sends, in pauses and heartbeats.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
    """

    def __init__(
        self, name: str, *, credential: str | None, faults: Faults, clock: Clock, pace: float
    ) -> None:
        self.faults = faults
        self.clock = clock
        self.pace = pace
        self.talks: dict[str, T] = {}
        # A backend that runs for days must not keep every body that it was ever sent.
        self.received: deque[ReceivedRequest] = deque(maxlen=1000)
        self.refusals: list[Refusal] = []
        self.stopping = asyncio.Event()
        self._credential = None if credential is None else _hashed(credential)
        self._tasks = Tasks(name)

    def admits(self, header: str | None) -> bool:
        """Say whether a request with this header may pass."""
        return self._credential is None or hmac.compare_digest(
            _hashed(header or ""), self._credential
        )

    async def pause(self, seconds: float) -> None:
        """Wait inside a script; without a time or a pace, let others run."""
        if seconds and self.pace:
            await self.clock.sleep(seconds * self.pace)
        else:
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """End every turn and every body."""
        self.stopping.set()
        await self._tasks.aclose()
        for talk in self.talks.values():
            talk.wake()


def _hashed(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


def iso(stamp: int) -> str:
    """Write a time in ms as the recordings and the pages do."""
    when = dt.datetime.fromtimestamp(stamp / 1000, dt.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
