"""The one helper that starts tasks: it names them, keeps them, and reports what they fail with.

asyncio keeps only a weak reference to a task and tells of its exception when the task is collected,
if at all. So every task that outlives its caller is started here, and the owner of a `Tasks` closes
it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)

STRAGGLER_SECONDS = 5.0
"""How long `aclose` waits before it says which tasks ignore their cancellation."""


class Tasks:
    """Tasks with one owner. A task that fails is logged as an error and touches no other."""

    def __init__(self, owner: str) -> None:
        """Begin without tasks; `owner` stands before each task's name."""
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `work` as a task and return it; who awaits it gets its result or exception as well.

        Raises:
            RuntimeError: the owner was closed; `work` is closed too.
        """
        if self._closed:
            work.close()
            raise RuntimeError(f"`{self._owner}` is closed and starts no task `{name}`")
        # A task outlives the request that started it, and must not carry its context variables.
        task = asyncio.create_task(
            work, name=f"{self._owner}: {name}", context=contextvars.Context()
        )
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def __len__(self) -> int:
        """Return how many tasks run."""
        return len(self._tasks)

    async def aclose(self) -> None:
        """Cancel all tasks and wait until each has ended. Nothing can be started afterwards."""
        self._closed = True
        own = asyncio.current_task()
        while waiting := {task for task in self._tasks if task is not own}:
            for task in waiting:
                task.cancel()
            _, stuck = await asyncio.wait(waiting, timeout=STRAGGLER_SECONDS)
            for task in stuck:
                _log.warning("task `%s` has not ended since its cancellation", task.get_name())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("task `%s` failed", task.get_name(), exc_info=error)
