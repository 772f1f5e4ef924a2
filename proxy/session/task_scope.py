"""What all modules of a session share: its tasks, whether it is in memory still, and what each
tells those above it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.errors import JournalCorrupt, JournalError, JournalUnavailable
from proxy.base.tasks import Tasks

STATE_MOST = 32 * 2**20
"""Bytes of a codec's stored state. A turn that needs more fails: a backend that opens calls and
questions without end is broken, and every event would be stored with all of them."""

_log = logging.getLogger(__name__)


def too_much_open(limit: str) -> DragomanError:
    """Return why a turn fails that has more open than `limit`."""
    text = f"The turn has more open than {limit}."
    return DragomanError(text, code=ErrorCode.TOO_LARGE)


def _nothing(*_: object) -> None:
    """Do nothing: nobody is above any more."""


@dataclasses.dataclass(slots=True)
class SessionCallbacks:
    """What the modules of a session tell those above them, which they do not import.

    It is cut when the session is closed: modules that knew each other for ever would stay in memory
    until a collection of garbage.
    """

    pump: Callable[[], None] = _nothing
    """Something may be due now: a message, a call, a stream."""
    wake: Callable[[], None] = _nothing
    """The codec may want to be called at another time than before."""
    broke: Callable[[DragomanError], None] = _nothing
    """The turn cannot go on: a task failed by a bug, or more is open than can be kept."""
    lost: Callable[[], None] = _nothing
    """The journal failed: what is in memory may be ahead of it."""
    erased: Callable[[], None] = _nothing
    """The session was deleted, and the log says so."""
    rested: Callable[[int], None] = _nothing
    """Nothing is open any more, and all up to this seq is stored."""

    def cut(self) -> None:
        """Tell nobody anything from now on."""
        self.pump = self.wake = self.broke = self.lost = self.erased = self.rested = _nothing


@dataclasses.dataclass(slots=True, eq=False)
class TaskScope:
    """The tasks of one session. `closed` says that it has left memory, `draining` that nothing new
    is begun, `stranded` why nothing but its log can be read. `name` is the session's."""

    name: str
    tasks: Tasks
    callbacks: SessionCallbacks
    running: set[asyncio.Task[None]] = dataclasses.field(default_factory=set, init=False)
    closed: bool = dataclasses.field(default=False, init=False)
    draining: bool = dataclasses.field(default=False, init=False)
    stranded: JournalError | None = dataclasses.field(default=None, init=False)

    def check_usable(self) -> None:
        """Check that something may be written to the session.

        Raises:
            JournalUnavailable: it has left memory.
            JournalCorrupt: nothing but its log can be read.
        """
        if self.closed:
            # Or it is erased: who comes again is told.
            text = "The session is being loaded anew; try again."
            raise JournalUnavailable(text, details={"retry_after": 1}, shown=text)
        if self.stranded is not None:
            raise JournalCorrupt(self.stranded.whole)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do work in a task that ends with the session."""
        task = self.tasks.start(self._surviving(work, name), name=f"{self.name}: {name}")
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        # A task that is cancelled before its first step never comes to await its work.
        task.add_done_callback(lambda _: work.close())
        return task

    def start_timer(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do work in a task that anybody who starts it ends; a session that only waits for it is
        idle."""
        return self.tasks.start(work, name=f"{self.name}: {name}")

    async def _surviving(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do work of this session; a bug in it ends the turn in sight of everybody, not in
        silence."""
        try:
            await work
        except JournalError:
            # The record has told of it already, and the session is loaded anew.
            return
        except Exception as error:  # noqa: BLE001 - the root of a task
            _log.exception("session `%s`: `%s` failed", self.name, name)
            text = f"Dragoman failed in `{name}`: {type(error).__name__}."
            self.callbacks.broke(DragomanError(text, code=ErrorCode.INTERNAL))

    def close(self) -> None:
        """End all tasks; `closed` is said before."""
        for task in list(self.running):
            task.cancel()
