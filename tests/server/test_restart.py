"""A crash at any point of a turn, and a reader that comes back with its cursor.

The journal loses everything after its k-th write, for every k that a conversation has; the proxy
breaks off, starts again on what was stored, and the client goes on from its cursor. It must get
what an uninterrupted run gives, with nothing twice, and the Engine must get every command once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from adapters.model import events as ev
from adapters.wire.errors import DragomanError
from proxy.base.errors import JournalUnavailable
from proxy.scripted.engine_turns import DEFAULT, EngineVariant
from proxy.scripted.faults import Faults, Silence
from proxy.session import Session
from proxy.upstream.client import BackendStream, Frames, Take
from tests.support.dragoman import BACKEND_KEY
from tests.support.engine_variants import LEAST
from tests.support.eve_client import EveSession, Form, Refused
from tests.support.eve_records import Record
from tests.support.journals import CrashJournal, UntoldJournal, sqlite
from tests.support.resumed import masked, read
from tests.support.running import BACKEND, Run, Running
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, idle, moves, settled, until


def said(records: Sequence[Record]) -> list[str]:
    """The completed messages."""
    return [
        record["data"]["message"] for record in records if record["type"] == "message.completed"
    ]


@pytest.fixture
def frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand each frame of the Engine over by itself, so that each is a write of its own."""
    whole = BackendStream.read

    async def one_by_one(stream: BackendStream, take: Take) -> None:
        async def each(frames: Frames) -> None:
            for frame in frames:
                if (busy := take([frame])) is not None:
                    await busy

        await whole(stream, each)

    monkeypatch.setattr(BackendStream, "read", one_by_one)


async def act(running: Running, session: EveSession, message: str) -> None:
    """Say the message if nobody has it, answer what is open, return when nothing is under way."""
    while True:
        live = await running.live(session.session_id)
        await until(functools.partial(moves, live))
        if live.closed:
            return
        log = await running.log(session.session_id)
        if not any(isinstance(event, ev.InputAccepted) for event in log):
            await session.send(message)
        elif live.state.interactions:
            await session.respond(next(iter(live.state.interactions)), "approve")
        elif idle(live):
            return


async def interrupted(
    run: Run,
    form: Form,
    message: str,
    variant: EngineVariant,
    writes: int | None,
    *,
    confirmed: bool = True,
) -> tuple[Running, EveSession, int, bool]:
    """Play a turn with a crash after that many writes.

    Returns what runs, the session with all its records, how many writes there were, and whether the
    crash came at all.
    """
    journal = CrashJournal()
    running = await run(journal, engine={"variant": variant}, settings={"eve": {"form": form}})
    client = running.eve(form)
    # Without a message, so that the client knows the session whenever the crash comes.
    async with running.http.post(f"{running.base}/eve/v1/session", data=b"") as response:
        body = await response.json()
    session = client.attach(body["sessionId"], token=body.get("continuationToken"))
    before = journal.writes
    if writes is not None:
        journal.crash_at(writes, confirmed=confirmed)
    reader = asyncio.create_task(read(session))
    actor = asyncio.create_task(act(running, session, message))
    crash = asyncio.create_task(journal.crashed.wait())
    await asyncio.wait({actor, crash}, return_when=asyncio.FIRST_COMPLETED)
    crashed = crash.done()
    if crashed:
        await running.restart()
        client.host = running.base
        # Refused by the one that stops, or by the server behind it; or the session that it asked
        # for was being loaded, or about to be.
        errors = (aiohttp.ClientError, Refused, DragomanError, RuntimeError, asyncio.CancelledError)
        with contextlib.suppress(*errors):
            await actor
        await reader
        await act(running, session, message)
    else:
        crash.cancel()
        await actor
        reader.cancel()
        await asyncio.wait({reader})
    async for _ in session.stream(follow=False):
        pass
    return running, session, journal.writes - before, crashed


async def replayed(running: Running, session: EveSession) -> list[Record]:
    again = running.eve(session.client.form).attach(session.session_id)
    return [record async for record in again.stream(0, follow=False)]


@pytest.mark.usefixtures("frame_by_frame")
@pytest.mark.parametrize(
    ("message", "form", "confirmed", "variant"),
    [
        ("script: approve", "all", True, DEFAULT),
        ("script: approve", "all", False, DEFAULT),
        ("script: approve", "newest", True, DEFAULT),
        ("script: approve", "newest", False, DEFAULT),
        ("script: approve", "all", True, LEAST),
        ("script: tools", "newest", True, DEFAULT),
        ("script: tools", "all", True, LEAST),
        ("script: failmid", "all", True, DEFAULT),
        ("script: failmid", "newest", False, EngineVariant(failure="errored_error")),
    ],
)
async def test_a_crash_after_any_write_loses_nothing_and_doubles_nothing(
    run: Run, message: str, form: Form, confirmed: bool, variant: EngineVariant
) -> None:
    running, session, writes, crashed = await interrupted(run, form, message, variant, None)
    assert not crashed
    baseline = masked(session.log)
    texts = said(session.log)
    answers = len(running.requests("respond"))
    assert len(running.requests("execute")) == 1
    crashes = odd = 0
    for after in range(1, writes + 1):
        running, session, _, crashed = await interrupted(
            run, form, message, variant, after, confirmed=confirmed
        )
        crashes += crashed
        where = f"crash after write {after} of {writes}"
        assert await replayed(running, session) == session.log, where
        executed, responded = running.requests("execute"), running.requests("respond")
        assert len(executed) <= 1, where
        assert len(responded) <= answers, where
        if masked(session.log) == baseline:
            assert (len(executed), len(responded)) == (1, answers), where
        elif not executed:
            # Sent, as the journal has it, and nobody can say whether it arrived.
            odd += 1
            types = [record["type"] for record in session.log]
            assert types[-2:] == ["turn.failed", "session.waiting"], where
            assert session.log[-2]["data"]["code"] == "backend_session_lost", where
        else:
            # The answer did not arrive: it is asked again, in a turn of its own in a closed form.
            odd += 1
            assert said(session.log) == texts, where
            assert len(responded) == answers, where
        await running.stop()
    assert crashes >= writes - 1
    # Not confirmed, the writes that say «sent» come before requests that never left.
    assert odd == (0 if confirmed else 1 + answers)


async def test_a_message_that_waits_for_a_held_approval_outlives_restarts(run: Run) -> None:
    running = await run("sqlite")
    client = running.eve()
    session = await client.create("script: approve")
    request = (await session.read_turn()).requests[0]
    accepted = await session.send("hello", turn_policy="queue")
    for _ in range(2):
        await running.restart()
    assert len(running.requests("execute")) == 1
    await session.respond(request["requestId"], "approve")
    turn = await session.read_turn(accepted)
    # The boundary that its sender got while it waited; the message's own turn follows.
    while "message.received" not in turn.types:
        turn = await session.read_turn(accepted)
    assert turn.text is not None
    assert "You said: “hello”." in turn.text
    assert [body["message"] for body in running.requests("execute")] == ["script: approve", "hello"]
    assert len(running.requests("respond")) == 1


async def test_an_open_question_is_asked_again_of_those_who_come_after_a_restart(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve().create("script: ask")
    first = await session.read_turn()
    await running.restart()
    other = running.eve().attach(session.session_id)
    assert (await other.read_turn()).requests == first.requests
    await other.respond(first.requests[0]["requestId"], "07:40")
    turn = await other.read_turn()
    assert turn.text is not None
    assert "07:40" in turn.text


async def test_a_turn_goes_on_by_itself_when_the_proxy_is_back(run: Run) -> None:
    running = await run("sqlite", engine={"pace": 0.05})
    session = await running.eve().create("script: slow 40")
    async for record in session.stream():
        if record["type"] == "message.appended":
            break
    await running.restart()
    # Nobody reads, nobody asks: it is taken up at the start.
    await settled(await running.live(session.session_id))
    events = await running.log(session.session_id)
    assert isinstance(events[-1], ev.TurnEnded)
    deltas = [event.text for event in events if isinstance(event, ev.TextDelta)]
    assert "".join(deltas) == "".join(f"tick {n} " for n in range(40)) + " (turn 1)"
    assert len(running.requests("execute")) == 1


async def test_a_message_without_a_trace_ends_though_restarts_come_faster_than_patience_ends(
    run: Run,
) -> None:
    # The Engine takes the message and never tells of it: only its silence says what came of it.
    lost = {"faults": Faults({("execute", 1): Silence(done=False)})}
    running = await run("sqlite", engine=lost, speed=1.0)
    backend = running.backends[BACKEND]
    backend.table = {**backend.table, "settings": {"patience_seconds": 1.5}}
    await running.restart()
    session = await running.eve().create("hello")
    await until(lambda: bool(running.requests("execute")))
    for _ in range(30):
        await running.restart()
        live = await running.live(session.session_id)
        await asyncio.sleep(0.4)
        if not live.state.inputs:
            break
    settled = [e for e in await running.log(session.session_id) if isinstance(e, ev.InputSettled)]
    assert [event.outcome for event in settled] == ["unknown"]
    assert len(running.requests("execute")) == 1
    assert (await session.read_turn()).text is None
    await session.send("hello")
    assert (await session.read_turn()).text is not None


# A real process, really killed


class Process:
    """`dragoman serve` as a process of its own."""

    def __init__(self, folder: Path, engine: str) -> None:
        self._config = folder / "dragoman.toml"
        self._config.write_text(
            f"""
            [server]
            listen = "{HOST}:0"
            [journal]
            url = "{sqlite(folder)}"
            [[backends]]
            name = "{BACKEND}"
            dialect = "engine"
            url = "{engine}"
            auth = {{ header = "X-Engine-Key", env = "E2E_ENGINE_KEY" }}
            """
        )
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> str:
        """Start it and return the address of its eve face."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--config", str(self._config)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "E2E_ENGINE_KEY": BACKEND_KEY},
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(SOON_S):
            async for line in self._process.stdout:
                found = re.search(rb"listening on (http://\S+)", line)
                if found:
                    return f"{found[1].decode()}/as/eve/to/{BACKEND}"
        raise AssertionError("it does not listen")

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        # The transport of its pipe is closed by the loop's next turns.
        await asyncio.sleep(0)


async def test_kill_9_in_the_middle_of_turns_loses_nothing_for_a_reader_that_comes_back(
    run: Run, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.1})
    process = Process(tmp_path, running.engine_url)
    client = running.eve()
    try:
        client.host = await process.start()
        slow, held = await asyncio.gather(
            client.create("script: slow 60"), client.create("script: approve")
        )
        asked = (await held.read_turn()).requests[0]
        records = 0
        async for record in slow.stream():
            records += record["type"] == "message.appended"
            if records == 5:
                break
        await process.kill()
        client.host = await process.start()
        await held.respond(asked["requestId"], "approve")
        turn = await held.read_turn()
        assert turn.text is not None
        assert "4.1 GB freed" in turn.text
        rest = await slow.read_turn()
        assert "".join(data["messageDelta"] for data in rest.data("message.appended")).startswith(
            "tick 5 "
        )
        assert rest.text == "".join(f"tick {n} " for n in range(60)) + " (turn 1)"
        # Killed again while nothing runs, the whole log is there and the same.
        await process.kill()
        client.host = await process.start()
        for session in (slow, held):
            again = client.attach(session.session_id)
            assert [record async for record in again.stream(0, follow=False)] == session.log
        accepted = await held.send("hello")
        turn = await held.read_turn(accepted)
        assert turn.text is not None
        assert "(turn 2)" in turn.text
    finally:
        await process.kill()
    assert len(running.requests("execute")) == 3
    assert len(running.requests("respond")) == 1


async def test_a_start_takes_up_a_message_that_was_accepted_though_nobody_asks(run: Run) -> None:
    journal = CrashJournal()
    running = await run(journal)
    async with running.http.post(f"{running.base}/eve/v1/session", data=b"") as response:
        body = await response.json()
    session = running.eve().attach(body["sessionId"], token=body.get("continuationToken"))
    journal.crash_at(1, confirmed=False)
    said = asyncio.create_task(session.send("hello"))
    await journal.crashed.wait()
    await running.restart()
    with contextlib.suppress(aiohttp.ClientError, Refused, DragomanError):
        await said
    await until(lambda: session.session_id in running.sessions.cache)


async def queued(running: Running) -> tuple[Session, str]:
    """A session in which a message waits behind an approval, and the message's id."""
    session = await running.eve().create("script: approve")
    await session.read_turn()
    await session.send("later")
    live = await running.live(session.session_id)
    (row,) = live.queued()
    return live, row.command_id


@pytest.mark.parametrize("confirmed", [True, False])
async def test_what_was_withdrawn_stays_so_after_a_crash(run: Run, confirmed: bool) -> None:
    journal = CrashJournal()
    running = await run(journal)
    live, command_id = await queued(running)
    url = f"http://{HOST}:{running.port}/api/v1/sessions/{live.id}"
    # Stored or not, nobody hears of it: what is not stored was not withdrawn.
    journal.crash_at(0 if confirmed else 1, confirmed=confirmed)
    gone = asyncio.create_task(running.http.delete(f"{url}/inputs/{command_id}"))
    await journal.crashed.wait()
    await running.restart()
    with contextlib.suppress(aiohttp.ClientError):
        assert (await gone).status == 503
    live = await running.live(live.id)
    assert [row.command_id for row in live.queued()] == ([command_id] if confirmed else [])
    (request,) = live.open_interactions()
    answer = {"decision": "allow"}
    async with running.http.post(
        f"{url}/interactions/{request.request_id}", json=answer
    ) as response:
        assert response.status == 202
    await settled(live)
    sent = [body["message"] for body in running.requests("execute")]
    assert sent == ["script: approve", *(["later"] if confirmed else [])]


async def test_a_withdrawal_is_told_when_it_is_stored(run: Run) -> None:
    journal = UntoldJournal()
    running = await run(journal)
    live, command_id = await queued(running)
    journal.told.clear()
    gone = asyncio.create_task(live.withdraw(command_id, by="local"))
    await until(lambda: bool(journal.late))
    assert not gone.done()
    journal.told.set()
    await gone
    live.close()
    with pytest.raises(JournalUnavailable):
        await live.withdraw(command_id, by="local")
