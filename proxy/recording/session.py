"""What is recorded of one session: its exchanges, and its log.

What is written is made and written in a thread (`proxy.recording.background`): those who talk do
not wait for it. Here nothing waits but what is needed to know whether it is sealed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Literal, Self

from adapters.captures import (
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    Headers,
    LogLine,
    MissingRecords,
    Record,
    Side,
    body_of,
)
from adapters.captures.redact import Redactor
from adapters.model.base import ClientCodec
from adapters.model.events import Entry
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError
from adapters.wire.framing import FrameTooLarge
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, format_json, parse_json
from proxy.base.metrics import CAPTURES_BROKEN as BROKEN
from proxy.base.metrics import CAPTURES_LEFT_OUT as LEFT_OUT
from proxy.base.sealed import SecretScrubber
from proxy.recording.background import CaptureThread
from proxy.recording.captures import CaptureEnd, Files

_log = logging.getLogger(__name__)

SEALED = b"[sealed]"
"""What stands in the place of a body, or a piece of one, that may have a sealed value."""

NOTHING = CaptureEnd(0, 0)
"""Where a capture that is empty ends."""

_BLANK = (b"\n\n", b"\r\n\r\n")
"""What a frame of an event stream ends with."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class RecordedExchange:
    """What is written of one request and its answer: nothing before it is `asked`, and nothing
    after it has `ended`. `hides` says whether its pieces may have sealed values in them."""

    of: SessionCapture
    side: Side
    _: dataclasses.KW_ONLY
    hides: bool
    answered: bool = dataclasses.field(init=False, default=False)
    _number: int = dataclasses.field(init=False, default=0)
    _ended: bool = dataclasses.field(init=False, default=False)
    # A record of it is left out, and all that follow.
    _lost: bool = dataclasses.field(init=False, default=False)
    # Pieces that are not known to be free of sealed values, with their times.
    _waiting: list[tuple[float, bytes]] = dataclasses.field(init=False, default_factory=list)

    def asked(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        *,
        secret: Collection[str] = (),
        at: float | None = None,
    ) -> None:
        """Write the head of the request. The values of the headers `secret` are left out, as are
        those of all that are called like credentials."""
        of = self.of
        self._number = number = of.next_number()
        side, begun, pairs = self.side, of.now() if at is None else at, tuple(headers)
        names = frozenset(name.lower() for name in secret)

        def made() -> Record:
            return CapturedRequest(
                exchange=number,
                side=side,
                at=begun,
                method=method,
                target=target,
                headers=of.without(pairs, names),
            )

        self._put(made, _size(pairs))

    def sent(self, data: bytes) -> None:
        """Write a piece of the request's body."""
        made = functools.partial(body_of, self._number, "request", self.of.now(), data)
        self._put(made, len(data))

    def responded(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Write the head of the answer."""
        self.answered = True
        of = self.of
        pairs = tuple(headers)
        made = functools.partial(
            CapturedResponse, exchange=self._number, at=of.now(), status=status, headers=pairs
        )
        self._put(made, _size(pairs))

    def received(
        self, data: bytes, frames: Sequence[SseFrame | bytes | FrameTooLarge] = ()
    ) -> None:
        """Write a piece of the answer's body, which ended these frames. Where frames may be sealed
        it waits for the end of the last one that it has a part of."""
        of = self.of
        if not self.hides:
            self._write(of.now(), data)
            return
        piece = SEALED if of.holds else data
        seals = of.seals
        if seals is None:
            self._write(of.now(), piece)
            return
        waiting = self._waiting
        waiting.append((of.now(), piece))
        whole = data.endswith(_BLANK)
        if not (frames or whole):
            return
        sealed = any(map(seals, map(_raw, frames))) or seals(_joined(waiting))
        last = None if whole else waiting.pop()
        self._let_go(sealed=sealed)
        if last is not None:
            waiting.append((last[0], SEALED) if sealed else last)

    def _let_go(self, *, sealed: bool) -> None:
        for at, data in self._waiting:
            self._write(at, SEALED if sealed else data)
        self._waiting.clear()

    def _write(self, at: float, data: bytes) -> None:
        self._put(functools.partial(body_of, self._number, "response", at, data), len(data))

    def _put(self, made: Callable[[], Record], size: int) -> None:
        if self._lost:
            self.of.leave_out(self._number)
        else:
            self._lost = not self.of.put(made, size, self._number)

    def ended(self, how: Literal["ended", "broke", "left"], why: str | None = None) -> None:
        """Write how it ended; what is said first counts."""
        if self._ended or not self._number:
            return
        self._ended = True
        seals = self.of.seals
        if self._waiting:
            self._let_go(sealed=seals is None or seals(_joined(self._waiting)))
        now = self.of.now()
        self._put(
            functools.partial(ExchangeEnd, exchange=self._number, at=now, how=how, why=why), 0
        )

    def __enter__(self) -> Self:
        """Begin a call to the backend."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Write how the call ended, if nobody has."""
        if isinstance(error, DragomanError):
            self.ended("broke", error.whole)
        else:
            self.ended("left")


def _raw(frame: SseFrame | bytes | FrameTooLarge) -> SseFrame | bytes:
    return frame.offending if isinstance(frame, FrameTooLarge) else frame


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)


def _joined(pieces: Iterable[tuple[float, bytes]]) -> bytes:
    return b"".join(data for _, data in pieces)


@dataclasses.dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class SessionCapture:
    """The capture of one session. `seals` says of a frame whether it is the echo of a sealed
    answer, and is None where the backend has none.

    It begins with the request that makes the session, where there is one: `first` writes that. Or
    it goes on where the file has `left` off."""

    files: Files
    background: CaptureThread
    id: str
    dialect: str
    _: dataclasses.KW_ONLY
    now: Callable[[], float]
    redactor: Redactor
    left: dataclasses.InitVar[CaptureEnd] = NOTHING
    first: Callable[[SessionCapture], object] | None = None
    seals: Callable[[SseFrame | bytes], bool] | None = dataclasses.field(init=False, default=None)
    _number: int = dataclasses.field(init=False, default=0)
    _seq: int = dataclasses.field(init=False, default=0)
    _held: SecretScrubber | None = dataclasses.field(init=False, default=None)
    # How many records are left out that the file does not tell of, by exchange; None stands for the
    # log.
    _left_out: dict[int | None, int] = dataclasses.field(init=False, default_factory=dict)
    _broken: bool = dataclasses.field(init=False, default=False)

    def __post_init__(self, left: CaptureEnd) -> None:
        self._number, self._seq = left

    def put(self, made: Callable[[], Record], size: int, exchange: int | None = None) -> bool:
        """Let a record be made and written without its secrets, once these are known. Say whether
        it is, or is left out: the recorder is behind."""
        if not self._has_room(size):
            self.leave_out(exchange)
            return False
        self.background.put(self, lambda: self._add(made()), size)
        return True

    def _has_room(self, size: int) -> bool:
        if self._broken or not self.background.has_room(size):
            return False
        self._tell_left_out()
        return True

    def leave_out(self, exchange: int | None, count: int = 1) -> None:
        """Count records that are left out."""
        if self._broken:
            return
        if not self._left_out:
            _log.warning(
                "the capture of session %r leaves out records: its disk or this machine is behind;"
                " how many they are stands in the file",
                self.id,
            )
        self._left_out[exchange] = self._left_out.get(exchange, 0) + count
        LEFT_OUT.inc(count)

    def _tell_left_out(self) -> None:
        for exchange, count in self._left_out.items():
            record = MissingRecords(at=self.now(), count=count, exchange=exchange)
            self.background.put(self, functools.partial(self._add, record))
        self._left_out.clear()

    def _add(self, record: Record) -> None:
        self._write(self.redactor.add(record))

    def _write(self, records: Iterable[Record]) -> None:
        if self._broken:
            return
        for record in records:
            self.files.write(self.id, self.files.line(record), self.dialect)

    def failed(self, error: Exception) -> None:
        """End the capture: something in it cannot be written."""
        if not self._broken:
            self._broken = True
            BROKEN.inc()
            _log.error("the capture of session %r ends here", self.id, exc_info=error)

    def close(self) -> None:
        """Write what may be the begin of a secret: the session leaves memory."""
        self._tell_left_out()
        self.background.put(self, lambda: self._write(self.redactor.close()))

    def without(self, headers: Headers, names: Collection[str]) -> Headers:
        """Return headers without the values of those that are named, in small letters."""
        hide = self.redactor.hide
        return tuple((n, hide(value) if n.lower() in names else value) for n, value in headers)

    def next_number(self) -> int:
        """Return the number of the exchange that begins now."""
        self._number += 1
        return self._number

    @property
    def seq(self) -> int:
        """Return the seq of the newest entry that is written."""
        return self._seq

    def guard(self, codec: ClientCodec, held: SecretScrubber) -> None:
        """Know what is sealed: what the codec says is, and all that the backend says while `held`
        has a value: it may repeat it, in pieces too."""
        self._held = held
        self.seals = _seals_of(codec)

    @property
    def holds(self) -> bool:
        """Say whether the session has a sealed value now."""
        return self._held is not None and self._held.active

    def entries(self, entries: Sequence[Entry]) -> None:
        """Write entries of the log, which are stored."""
        first, self.first = self.first, None
        if first is not None:
            first(self)
        at = self.now()
        new = [LogLine(at, entry.encode()) for entry in entries if entry.seq > self._seq]
        if not new:
            return
        self._seq = entries[-1].seq
        size = sum(len(one.entry) for one in new)
        if self._has_room(size):
            self.background.put(self, lambda: self._write(self.redactor.add_log(new)), size)
        else:
            self.leave_out(None, len(new))

    def call(self) -> RecordedExchange:
        """Return what a call to the backend is written by."""
        return RecordedExchange(self, "backend", hides=True)

    def asking(self) -> RecordedExchange:
        """Return what a request of a frontend is written by."""
        return RecordedExchange(self, "frontend", hides=False)

    def body(self, data: bytes, command_ids: Collection[str]) -> bytes:
        """Return the body of a call as it is written: without sealed answers."""
        held = self._held
        if held is not None and held.active:
            text = data.decode("utf-8", "replace")
            if held.is_in(command_ids) or held.clean(text) != text:
                return SEALED
        return SEALED if self.seals is not None and is_sealed(self.seals, data) else data


def _seals_of(codec: ClientCodec) -> Callable[[SseFrame | bytes], bool] | None:
    return None if type(codec).seals is ClientCodec.seals else codec.seals


@functools.cache
def sealed_by(dialect: str) -> Callable[[SseFrame | bytes], bool] | None:
    """Return what knows sealed answers in the bodies of a dialect."""
    make = DIALECTS[dialect].client
    return None if make is None else _seals_of(make({"task_id": "-"}))


def is_sealed(seals: Callable[[SseFrame | bytes], bool], data: bytes) -> bool:
    """Say whether a body carries a sealed answer, however its JSON spells names."""
    with contextlib.suppress(JsonError):
        data += format_json(parse_json(data))
    return seals(data)
