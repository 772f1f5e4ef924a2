"""What all modules of a session share: what it is of, how its backend is spoken to, its tasks,
whether it is in memory still, and what each module tells those above it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from adapters.model.base import ClientCodec
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.clock import Clock, IdSource
from proxy.base.errors import JournalCorrupt, JournalError, JournalUnavailable
from proxy.base.rows import BackendBinding, SessionRow
from proxy.base.tasks import Tasks
from proxy.journal.base import Journal
from proxy.recording.session import SessionCapture
from proxy.telemetry.spans import SessionSpans
from proxy.upstream.client import Upstream

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext:
    """What all sessions of a server have in common. `slots` are for who reads history, `faces` are
    the settings of the dialects as they are configured."""

    journal: Journal
    tasks: Tasks
    clock: Clock
    ids: IdSource
    slots: asyncio.Semaphore
    keep_frames: bool
    faces: Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(slots=True, eq=False)
class SessionCore:
    """One session, as its modules know it. A move replaces what is of its backend: `leg`, `codec`,
    `upstream`, `patience` (the configured one, where there is one) and `silence` (how long a turn
    may show nothing until the backend is asked), both in ms.

    `capture` is where the session is recorded, `spans` hears what is stored. `closed` says that it
    has left memory, `draining` that nothing new is begun, `stranded` why nothing but its log can be
    read.
    """

    row: SessionRow
    leg: BackendBinding
    context: SessionContext
    _: dataclasses.KW_ONLY
    codec: ClientCodec
    upstream: Upstream
    patience: int | None
    silence: int
    capture: SessionCapture | None = None
    spans: SessionSpans | None = None
    journal: Journal = dataclasses.field(init=False)
    clock: Clock = dataclasses.field(init=False)
    running: set[asyncio.Task[None]] = dataclasses.field(default_factory=set, init=False)
    closed: bool = dataclasses.field(default=False, init=False)
    draining: bool = dataclasses.field(default=False, init=False)
    stranded: JournalError | None = dataclasses.field(default=None, init=False)
    # What modules tell those above them, which they do not import. It is cut when the session is
    # closed: modules that knew each other for ever would stay in memory until a collection of
    # garbage.
    pump: Callable[[], None] = dataclasses.field(default=_nothing, init=False)
    """Something may be due now: a message, a call, a stream."""
    wake: Callable[[], None] = dataclasses.field(default=_nothing, init=False)
    """The codec may want to be called at another time than before."""
    broke: Callable[[DragomanError], None] = dataclasses.field(default=_nothing, init=False)
    """The turn cannot go on: a task failed by a bug, or more is open than can be kept."""
    lost: Callable[[], None] = dataclasses.field(default=_nothing, init=False)
    """The journal failed: what is in memory may be ahead of it."""
    erased: Callable[[], None] = dataclasses.field(default=_nothing, init=False)
    """The session was deleted, and the log says so."""
    rested: Callable[[int], None] = dataclasses.field(default=_nothing, init=False)
    """Nothing is open any more, and all up to this seq is stored."""

    def __post_init__(self) -> None:
        self.journal, self.clock = self.context.journal, self.context.clock

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
        task = self.context.tasks.start(self._surviving(work, name), name=f"{self.row.id}: {name}")
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        # A task that is cancelled before its first step never comes to await its work.
        task.add_done_callback(lambda _: work.close())
        return task

    def start_timer(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do work in a task that anybody who starts it ends; a session that only waits for it is
        idle."""
        return self.context.tasks.start(work, name=f"{self.row.id}: {name}")

    async def _surviving(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do work of this session; a bug in it ends the turn in sight of everybody, not in
        silence."""
        try:
            await work
        except JournalError:
            # The record has told of it already, and the session is loaded anew.
            return
        except Exception as error:  # noqa: BLE001 - the root of a task
            _log.exception("session `%s`: `%s` failed", self.row.id, name)
            text = f"Dragoman failed in `{name}`: {type(error).__name__}."
            self.broke(DragomanError(text, code=ErrorCode.INTERNAL))

    def close(self) -> None:
        """End all tasks, and tell nobody anything from now on; `closed` is said before."""
        for task in list(self.running):
            task.cancel()
        self.pump = self.wake = self.broke = self.lost = self.erased = self.rested = _nothing
