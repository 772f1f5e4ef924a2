"""The thread that makes the lines of captures and writes them: to look for secrets and to wait for
a disk takes time that nobody else is to wait for.

What is to be done waits in a queue with a bound. A recorder that falls behind leaves out records
and says how many; an error ends the capture that it happened in, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")

JOBS_MOST = 20_000
"""Jobs that wait."""

CLOSE_SECONDS = 10.0
"""How long the end of the server waits for what is left."""


class Owner(Protocol):
    """Whose job it is: a capture."""

    def failed(self, error: Exception) -> None:
        """Hear, in the thread, that a job has failed: it is to have no others."""


class CaptureThread:
    """Does jobs one after the other in a thread of its own, which begins with the first one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Owner | None, Callable[[], object], int] | None]
        self._jobs = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._bytes = 0
        self._thread: threading.Thread | None = None

    def has_room(self, size: int) -> bool:
        """Say whether a job about so many bytes is taken now."""
        with self._lock:
            return self._count == 0 or (
                # One that is larger is taken where nothing else waits.
                self._count < JOBS_MOST and self._bytes + size <= 64 * 1024 * 1024
            )

    def put(self, owner: Owner | None, job: Callable[[], object], size: int = 0) -> None:
        """Let a job be done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="captures", daemon=True)
            self._thread.start()
        with self._lock:
            self._count += 1
            self._bytes += size
        self._jobs.put((owner, job, size))

    async def do(self, job: Callable[[], T]) -> T:
        """Do a job after those that wait, and return its result.

        Raises:
            Exception: what it raised.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - whatever a job raises
                loop.call_soon_threadsafe(_fail, done, error)
            else:
                loop.call_soon_threadsafe(_settle, done, result)

        self.put(None, run)
        return await done

    def close(self) -> None:
        """Do what waits, and end. What takes too long is not waited for."""
        if self._thread is None:
            return
        self._jobs.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.error("captures end here: the disk took no more for %d s", CLOSE_SECONDS)

    def _run(self) -> None:
        while (next_ := self._jobs.get()) is not None:
            owner, job, size = next_
            try:
                job()
            except Exception as error:  # noqa: BLE001 - whatever a job raises
                if owner is None:
                    _log.exception("a capture was not closed")
                else:
                    owner.failed(error)
            with self._lock:
                self._count -= 1
                self._bytes -= size
            # Nothing of it stays in memory while the thread waits.
            del owner, job, next_


def _settle(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[T], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
