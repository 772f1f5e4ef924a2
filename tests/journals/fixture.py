"""A fixture: how it is written, read, and gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import json
import lzma
import shutil
import tarfile
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from proxy.base.clock import ManualClock, SeededIds
from tests.journals.backends import START
from tests.journals.cases import RUN_S, SECRET, Case, cases_of
from tests.journals.going_on import go_on, outcome_of
from tests.journals.house import BACKENDS, FACES, House, Talk, backends

__all__ = ["FOLDER", "Fixture", "Kept", "load", "played_on", "write"]

FOLDER = Path(__file__).parents[2] / "fixtures" / "journals"

FILES = ("journal.db", "journal.db-wal")

STEP_S = 0.1
"""How much time passes at once."""

Frames = Sequence[tuple[int, bytes]]


@dataclasses.dataclass(frozen=True)
class Kept:
    """What a fixture knows of a session: its names, its log and the frames that were shown."""

    case: str
    face: str
    backend: str
    id: str
    log: str
    frames: list[list[int]]

    @property
    def name(self) -> str:
        """How it is called."""
        return f"{self.face} on {self.backend}: {self.case}"


@dataclasses.dataclass(frozen=True)
class Fixture:
    """A fixture that was read; `after` is empty before it was first gone on with."""

    folder: Path
    killed_at: int
    steps: dict[str, list[dict[str, Any]]]
    late: dict[str, list[dict[str, Any]]]
    histories: dict[str, dict[str, str]]
    talks: list[Kept]
    after: dict[str, Any]

    def of(self, backend: str) -> list[Kept]:
        """Return what is known of the sessions at a backend."""
        return [kept for kept in self.talks if kept.backend == backend]

    def after_of(self, backend: str) -> dict[str, Any]:
        """Return what became of the sessions at a backend."""
        names = {kept.name for kept in self.of(backend)}
        return {name: after for name, after in self.after.items() if name in names}


def of_frames(frames: Frames) -> list[list[int]]:
    """Return cursor and checksum of each frame."""
    return [[cursor, zlib.crc32(data)] for cursor, data in frames]


def of_log(lines: Sequence[bytes]) -> str:
    """Return the length and a digest of a log."""
    return f"{len(lines)} {hashlib.sha256(b''.join(lines)).hexdigest()[:16]}"


async def _lines(talk: Talk) -> list[bytes]:
    """Return the log of a session as it is on the disk, where no release changes it."""
    journal = talk.house.sessions.journal
    chunks = journal.scan((await journal.session(talk.id)).key)
    return [line async for chunk in chunks for line in chunk.body.split(b"\n") if line]


# Writing.


async def write(folder: Path, scratch: Path, names: Sequence[str] = tuple(BACKENDS)) -> None:
    """Bring sessions of all pairs into all cases, keep the journal as it is then, and what becomes
    of them."""
    clock, ids = ManualClock(START), SeededIds(1)
    async with backends(names) as made, House(scratch, clock, ids, made) as house:
        kept = [await _kept(talk) for talk in await _brought(house)]
        # As `kill -9` leaves it: nothing is closed, and what was committed is in these files.
        files = {name: (scratch / name).read_bytes() for name in FILES}
        world: dict[str, Any] = {
            "killed_at": clock.now(),
            "steps": {name: backend.steps for name, backend in made.items()},
            "late": {name: backend.late for name, backend in made.items()},
            "histories": {name: backend.digests() for name, backend in made.items()},
            "talks": [dataclasses.asdict(one) for one in kept],
        }
    for name, data in files.items():
        assert SECRET.encode() not in data, f"a secret is in `{name}`"
    made_in = scratch / "made"
    made_in.mkdir()
    (made_in / "journal.tar.xz").write_bytes(_packed(files))
    (made_in / "world.json.xz").write_bytes(lzma.compress(json.dumps(world).encode(), preset=9))
    fixture = load(made_in)
    after: dict[str, Any] = {}
    for name in names:
        after |= await played_on(fixture, name, scratch / name)
    text = json.dumps(after, indent=1, ensure_ascii=False)
    (made_in / "after.json").write_text(text + "\n")
    # Only what was gone on with once is kept.
    shutil.copytree(made_in, folder)


async def _brought(house: House) -> list[Talk]:
    """Bring a session of each pair into each case."""
    brought: list[tuple[Talk, Case]] = []
    for backend in house.backends.values():
        for face in FACES:
            for name, case in cases_of(face, backend.name, backend.dialect).items():
                brought.append((Talk(house, name, face, backend.name), case))
    for talk, case in brought:
        with _named(talk):
            await case.bring(talk)
            await house.calm()
    for backend in house.backends.values():
        # Turns that run go on together: what one of them waits for would end the others.
        await backend.advance(RUN_S)
    for talk, case in brought:
        if talk.case != "deleted":
            with _named(talk):
                await talk.when(case.holds)
    await house.calm()
    for talk, case in brought:
        assert talk.case == "deleted" or case.holds(await talk.live()), talk.name
    return [talk for talk, _ in brought]


@contextlib.contextmanager
def _named(talk: Talk) -> Iterator[None]:
    """Say in an error which session it is about."""
    try:
        yield
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{talk.name}: {error!r}") from error


async def _kept(talk: Talk) -> Kept:
    names = (talk.case, talk.face, talk.backend, talk.id)
    if talk.case == "deleted":
        return Kept(*names, "", [])
    return Kept(*names, of_log(await _lines(talk)), of_frames(await talk.read()))


def _packed(files: dict[str, bytes]) -> bytes:
    """Return files as a compressed archive, the same for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


# Reading.


def load(folder: Path) -> Fixture:
    """Read a fixture."""
    world = json.loads(lzma.decompress((folder / "world.json.xz").read_bytes()))
    after = folder / "after.json"
    return Fixture(
        folder,
        world["killed_at"],
        world["steps"],
        world["late"],
        world["histories"],
        [Kept(**talk) for talk in world["talks"]],
        json.loads(after.read_text()) if after.exists() else {},
    )


@contextlib.asynccontextmanager
async def opened(fixture: Fixture, name: str, scratch: Path) -> AsyncIterator[House]:
    """Open a copy of a fixture's journal with today's code, over one backend as it was."""
    scratch.mkdir(parents=True)
    with tarfile.open(fixture.folder / "journal.tar.xz") as archive:
        archive.extractall(scratch, filter="data")
    async with backends([name]) as made:
        await made[name].replay(fixture.steps[name])
        expected, found = fixture.histories[name], made[name].digests()
        differ = [talk for talk in expected if found.get(talk) != expected[talk]]
        assert not differ, (
            f"the scripted `{name}` does not do again what it did when `{fixture.folder.name}` was "
            f"written ({len(differ)} sessions differ, as {differ[:3]}): its scripts, frames and "
            "ids may get more, and must not change"
        )
        await made[name].replay(fixture.late[name])
        clock = ManualClock(fixture.killed_at)
        async with House(scratch, clock, SeededIds(2), made) as house:
            yield house


# Going on.


@contextlib.asynccontextmanager
async def passing(*clocks: ManualClock) -> AsyncIterator[None]:
    """Let time pass by these clocks, as fast as the event loop comes round: were one of them ahead
    of the other on a busy machine, then a backend would seem not to end what a person stops."""

    async def tick() -> None:
        while True:
            for clock in clocks:
                await clock.advance(STEP_S)
            await asyncio.sleep(0.002)

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking


async def played_on(fixture: Fixture, name: str, scratch: Path) -> dict[str, Any]:
    """Go on with every session at a backend, check what must hold of each, and return what they
    came to."""
    after: dict[str, Any] = {}
    async with opened(fixture, name, scratch) as house:
        talks = [
            (kept, Talk(house, kept.case, kept.face, kept.backend, kept.id))
            for kept in fixture.of(name)
        ]
        erased = [talk for kept, talk in talks if kept.case == "deleted"]
        talks = [(kept, talk) for kept, talk in talks if talk not in erased]
        for kept, talk in talks:
            await _check_unchanged(kept, talk)
        async with passing(house.backends[name].clock, house.clock):
            await asyncio.gather(*(go_on(talk) for _, talk in talks))
        taken = house.backends[name].said()
        for kept, talk in talks:
            await _check_resumed(kept, talk)
            after[talk.name] = await outcome_of(talk, taken)
        for talk in erased:
            status, _ = await house.ask("GET", f"/api/v1/sessions/{talk.id}")
            assert status == 404, talk.name
    for file in scratch.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file
    return after


async def _check_unchanged(kept: Kept, talk: Talk) -> None:
    """Check that the log is what it was, and that every frame is shown as it was."""
    length = int(kept.log.split()[0])
    assert of_log((await _lines(talk))[:length]) == kept.log, kept.name
    shown = of_frames(await talk.read())
    assert shown[: len(kept.frames)] == kept.frames, f"{kept.name}: other frames than before"


async def _check_resumed(kept: Kept, talk: Talk) -> None:
    """Check that who comes back reads the rest of what who reads it all does."""
    whole = await talk.read()
    assert of_frames(whole)[: len(kept.frames)] == kept.frames, f"{kept.name}: other frames"
    for place in {len(kept.frames), len(kept.frames) // 2, max(len(whole) - 1, 0)}:
        if place < len(whole):
            cursor = whole[place][0]
            assert await talk.read(cursor) == whole[place:], f"{kept.name}: read on from {cursor}"
