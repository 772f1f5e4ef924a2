"""How a session hears its backend, where the journal is behind or the session is closed."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.model.base import Call, Request
from adapters.wire.errors import DragomanError
from proxy.base.errors import UpstreamUnavailable
from proxy.base.sealed import SecretScrubber
from proxy.session.inbound import BACKLOG_BYTES, SLICE_FRAMES, InboundReader
from proxy.upstream.client import Take

CALL = Call("stream", Request("GET", "/"), stream=True)


def reading(**parts: Any) -> InboundReader:
    log = parts.pop("log", None)
    given = {
        "row": SimpleNamespace(id="s"),
        "leg": SimpleNamespace(backend="engine"),
        "context": SimpleNamespace(keep_frames=False, ids=SimpleNamespace(fraction=float)),
        "patience": None,
        "silence": 60_000,
    }
    core: Any = SimpleNamespace(**{**given, **parts})
    return InboundReader(core, log)


class Frames:
    """A stream that brings all its frames in one piece."""

    tail = b""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    async def read(self, take: Take) -> None:
        if (busy := take(self._frames)) is not None:
            await busy


class Codec:
    """A codec that notes what it is fed and what is garbage."""

    frames = 0
    wake_at = None

    def __init__(self) -> None:
        self.fed: list[bytes] = []
        self.refused: list[str] = []

    def feed(self, call: Call, frame: bytes, now: int) -> list[Any]:
        self.fed.append(frame)
        return []

    def garbage(self, call: Call, data: bytes, reason: str, now: int) -> list[Any]:
        self.refused.append(reason)
        return []


def listening(codec: Codec, *, closed: bool = False, **parts: Any) -> InboundReader:
    given: dict[str, Any] = {
        "journal": SimpleNamespace(backlog=0),
        "clock": SimpleNamespace(now=lambda: 1),
        "log": SimpleNamespace(
            held=SecretScrubber(),
            time=lambda: 1,
            hear=lambda raw: None,
            state=SimpleNamespace(inputs={}),
            trace=None,
        ),
        "closed": closed,
        **parts,
    }
    return reading(codec=codec, **given)


async def test_a_closed_session_hears_nothing() -> None:
    codec = Codec()
    stream: Any = Frames([b"{}"] * 300)
    await listening(codec, closed=True)._read(CALL, stream)
    assert codec.fed == []


async def test_others_have_their_turn_while_many_frames_of_one_piece_are_taken() -> None:
    many = [b'{"n":%d}' % number for number in range(1_000)]
    codec, stream = Codec(), Frames(many)
    seen = [0]

    async def others() -> None:
        while len(codec.fed) < len(many):
            seen.append(len(codec.fed))
            await asyncio.sleep(0)

    looking = asyncio.create_task(others())
    given: Any = stream
    await listening(codec)._read(CALL, given)
    await looking
    assert codec.fed == many
    seen.append(len(many))
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 2 * SLICE_FRAMES


async def test_a_long_frame_is_taken_and_one_with_too_many_values_is_reported() -> None:
    codec = Codec()
    long = b'{"text":"' + b"x" * 3_000_000 + b'"}'
    bomb = b"[" + b"[]," * 300_000 + b"[]]"
    stream: Any = Frames([bomb, long])
    await listening(codec)._read(CALL, stream)
    assert codec.fed == [long]
    assert codec.refused == ["a frame of 900004 bytes has too many values and was skipped"]


async def test_each_slice_of_a_piece_waits_for_the_disk() -> None:
    journal = SimpleNamespace(backlog=0)
    waited: list[int] = []

    class Full(Codec):
        def feed(self, call: Call, frame: bytes, now: int) -> list[Any]:
            journal.backlog = BACKLOG_BYTES + 1
            return super().feed(call, frame, now)

    async def sleep(seconds: float) -> None:
        waited.append(len(codec.fed))
        journal.backlog = 0

    codec = Full()
    stream: Any = Frames([b"{}"] * SLICE_FRAMES * 3)
    clock = SimpleNamespace(now=lambda: 1, sleep=sleep)
    await listening(codec, journal=journal, clock=clock)._read(CALL, stream)
    assert waited == [SLICE_FRAMES, SLICE_FRAMES * 2, SLICE_FRAMES * 3]


async def test_no_stream_is_opened_while_the_disk_is_behind() -> None:
    journal = SimpleNamespace(backlog=BACKLOG_BYTES + 1)
    opened: list[int] = []

    async def sleep(seconds: float) -> None:
        journal.backlog -= 1

    class Upstream:
        def stream(self, *_: Any) -> Any:
            opened.append(journal.backlog)
            raise UpstreamUnavailable("no", sent=False)

    codec: Any = Codec()
    codec.framing, codec.failed = None, lambda *_, **__: []
    clock = SimpleNamespace(now=lambda: 1, sleep=sleep)
    late = listening(codec, journal=journal, clock=clock, upstream=Upstream())
    await late.run(CALL)
    assert opened == [BACKLOG_BYTES]


async def test_time_waits_for_the_disk() -> None:
    journal = SimpleNamespace(backlog=BACKLOG_BYTES + 1)
    slept: list[float] = []
    seen: list[Any] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            journal.backlog = BACKLOG_BYTES
        await asyncio.sleep(0)

    late = reading(
        journal=journal,
        clock=SimpleNamespace(sleep=sleep),
        codec=SimpleNamespace(tick=lambda now: seen.append(journal.backlog), wake_at=None),
        log=SimpleNamespace(time=lambda: 1_000, hear=lambda raw: None),
        closed=False,
        pump=lambda: None,
    )
    await late._tick_at(2_000)
    assert slept[0] == 1.0
    assert len(slept) == 3
    assert seen == [BACKLOG_BYTES]


class Tries:
    """A codec whose stream is wanted for ever, and what it is told in the end."""

    frames, wake_at, position, patience = 0, None, b"", 10_000
    given_up: str | None = None

    def streams(self) -> list[Call]:
        return [] if self.given_up else [CALL]

    def give_up(self, error: DragomanError, now: int, *, thread_id: str) -> list[Any]:
        self.given_up = error.message
        return []


@pytest.mark.parametrize(
    ("came", "reason"),
    [
        (["takes no connection", "was silent"], "was silent"),
        (
            ["takes no connection", None],
            "answers again, but tells nothing new. Before that: The backend takes no",
        ),
        ([None], "ends without anything new"),
    ],
)
async def test_the_newest_reason_counts_when_a_stream_is_given_up(
    came: list[str | None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0, 6_000)
    codec: Any = Tries()

    async def nothing(*_: object) -> None:
        pass

    async def run(_: InboundReader, call: Call) -> UpstreamUnavailable | None:
        said = came.pop(0) if len(came) > 1 else came[0]
        return None if said is None else UpstreamUnavailable(f"The backend {said}.", sent=True)

    monkeypatch.setattr(InboundReader, "run", run)
    log = SimpleNamespace(named=nothing, time=lambda: next(times), seq=0, hear=lambda raw: None)
    clock = SimpleNamespace(now=lambda: 1, sleep=nothing)
    late = listening(codec, log=log, closed=False, clock=clock)
    await late.follow("main")
    assert reason in codec.given_up
