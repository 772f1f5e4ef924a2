"""A replay that is served and driven: what comes means what was recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from adapters.model import events as ev
from adapters.offline.compare.difference import compare
from adapters.offline.replay import ReplayCue, ReplayScript, script_of
from proxy.tools.replay.faults import StreamFaults
from tests.replay.support import WIRE, body_log, eve_log, eve_scenes, replayed
from tests.support.herm_client import Disconnected, HermClient, HermTurn
from tests.support.waiting import SOON_S

EVE = WIRE / "eve"

# What a log that is read from bodies tells otherwise than a live one: who drives, where an input
# stands, and ids of its own.
AS_DRIVEN = (
    *("session.started.agent", "session.updated", "input.accepted.details"),
    *("input.accepted.policy", "message.received.message_id"),
)

# The eve face does not stream the pieces of a tool's input.
AS_EVE = ("tool.input_delta",)

SAME = (
    *("approval-approve", "approval-deny", "client-context", "controls", "errors", "follow-up"),
    *("immediate-follow-up", "lease", "message-while-busy", "message-while-busy-queue"),
    *("operation-id", "plain", "prewarm", "reasoning", "stream-cursor", "structured-output"),
    *("tool-bad-input", "tool-call", "tool-progress", "tool-throws", "turn-fails"),
)


@pytest.mark.parametrize("scene", SAME)
async def test_a_replay_in_the_recorded_dialect_means_the_same(scene: str) -> None:
    log = eve_log(EVE / f"eve-0.80.1/server/{scene}.json")
    script = script_of(log)
    async with replayed(log, "eve", "eve") as house:
        driven = await house.drive(script, "eve", "eve")
    assert (driven.failed, driven.notes) == (None, [])
    found = compare(settled_at_once(log), settled_at_once(driven.log), (*AS_DRIVEN, *AS_EVE))
    assert not found, "\n".join(found.lines("recorded", "driven"))


def settled_at_once(log: list[ev.Entry]) -> list[ev.Entry]:
    """A log in which each input is settled where it is accepted: the answer to a request and the
    stream are two connections, and either may be first."""
    settled = {
        entry.event.command_id: entry for entry in log if isinstance(entry.event, ev.InputSettled)
    }
    out: list[ev.Entry] = []
    for entry in log:
        if isinstance(entry.event, ev.InputSettled):
            continue
        out.append(entry)
        if isinstance(entry.event, ev.InputAccepted) and entry.event.command_id in settled:
            out.append(settled[entry.event.command_id])
    return [entry._replace(seq=seq) for seq, entry in enumerate(out, 1)]


FACES = ("eve", "herm", "engine", "managed-agents")

NO_BYTES = {"message-parts", "retried-step-session-failed"}
"""Scenes whose message has a file: a log has its hash only."""

NO_STOP = "no route that stops a turn"
NOT_WITHDRAWN = "while waiting for the end"
AS_A_TOOL = "asks for tool_result `Run `dragoman_ask` and give its result.`"

IMPOSSIBLE = {
    ("eve-0.80.1", "cancel-held-approval", "engine"): NO_STOP,
    ("eve-0.80.1", "cancel-mid-turn", "engine"): NO_STOP,
    ("eve-0.30.8", "cancel-mid-turn", "engine"): NO_STOP,
    ("eve-0.30.8", "session-limit", "engine"): NO_STOP,
    # To an eve that has closed its pause an interrupt goes as a "no", which was not recorded.
    ("eve-0.80.1", "cancel-held-approval", "eve"): "The backend asks for approval",
    ("eve-0.80.1", "approval-other-message", "herm"): NOT_WITHDRAWN,
    ("eve-0.80.1", "approval-other-message", "engine"): NOT_WITHDRAWN,
    ("eve-0.30.8", "approval-other-message", "herm"): NOT_WITHDRAWN,
    ("eve-0.30.8", "approval-other-message", "engine"): NOT_WITHDRAWN,
    ("eve-0.80.1", "sign-in-declined", "herm"): NOT_WITHDRAWN,
    ("eve-0.80.1", "sign-in-declined", "engine"): NOT_WITHDRAWN,
    ("eve-0.80.1", "approval-other-message", "managed-agents"): NOT_WITHDRAWN,
    ("eve-0.30.8", "approval-other-message", "managed-agents"): NOT_WITHDRAWN,
    **{
        (eve, scene, "managed-agents"): AS_A_TOOL
        for eve in ("eve-0.80.1", "eve-0.30.8")
        for scene in (
            *("question-answered-by-message", "question-option", "session-limit"),
            "sign-in-declined",
        )
    },
}
"""What a dialect has no way for, and what is said then."""


def pairs() -> Iterator[tuple[Path, str]]:
    for scene, face in itertools.product(eve_scenes(), FACES):
        if scene.stem not in NO_BYTES:
            yield scene, face


def name(value: object) -> str:
    return f"{value.parts[-3]}/{value.stem}" if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("scene", "face"), list(pairs()), ids=name)
async def test_each_recorded_conversation_is_a_backend_of_each_dialect(
    scene: Path, face: str
) -> None:
    """It is driven to its end, as a person did it, through a dialect that it was not recorded
    in."""
    log = eve_log(scene)
    script = script_of(log)
    async with replayed(log, "eve", face) as house:
        why = IMPOSSIBLE.get((scene.parts[-3], scene.stem, face))
        seconds = SOON_S if why is None else 1.0
        driven = await house.drive(script, face, "eve", seconds=seconds)
    if why is not None:
        assert driven.failed is not None
        assert why in driven.failed
        return
    assert driven.failed is None
    found = iter(texts(driven.log))
    # A result that has a form is a text more where a dialect has no place for it.
    assert all(text in found for text in texts(log))


def texts(log: list[ev.Entry]) -> list[str]:
    """What the agent said on the main line."""
    return [
        entry.event.text.strip()
        for entry in log
        if isinstance(entry.event, ev.TextCompleted)
        and entry.event.thread_id == ev.MAIN
        and entry.event.text.strip()
    ]


def spoken(script: ReplayScript) -> ReplayScript:
    """A script with words where any will do, so that it can be driven."""
    content = (ev.Text(text="Go"),)
    steps = tuple(
        dataclasses.replace(step, words="Go", content=content)
        if isinstance(step, ReplayCue) and step.name == "send_message" and step.words is None
        else step
        for step in script.steps
    )
    return dataclasses.replace(script, steps=steps)


BODIES = (
    *("engine/01-plain-text", "engine/02-thinking-and-tool", "engine/06-error-mid-stream"),
    *("engine/08-long-turn", "herm/01-plain-text", "herm/02-thinking-and-tools"),
    *("herm/06-error", "herm/08-tolerance"),
    *("managed-agents/live/01-turn-with-previews", "managed-agents/live/07-error-at-a-wake"),
    *("managed-agents/documented/04-outcome", "managed-agents/documented/05-workflow-runs"),
    *("managed-agents/open-managed-agents-0.1.0/tool.01", "managed-agents/python-2.12.0/turn.01"),
)


@pytest.mark.parametrize(("body", "face"), list(itertools.product(BODIES, FACES)))
async def test_a_body_alone_is_a_backend_of_each_dialect(body: str, face: str) -> None:
    dialect = body.split("/")[0]
    log = body_log(WIRE / f"{body}.sse", dialect)
    async with replayed(log, dialect, face) as house:
        driven = await house.drive(spoken(script_of(log)), face, dialect)
    assert driven.failed is None
    assert texts(driven.log) == texts(log)


async def test_a_capture_that_breaks_off_ends_its_turn() -> None:
    log = body_log(WIRE / "engine/06d-abrupt-eof.sse", "engine")
    async with replayed(log, "engine", "herm") as house:
        driven = await house.drive(spoken(script_of(log)), "herm", "engine")
    assert driven.failed is None
    end = driven.log[-1].event
    assert isinstance(end, ev.TurnEnded)
    assert end.outcome == "failed"


APPROVAL = EVE / "eve-0.80.1/server/approval-approve.json"


def cutting_seed() -> int:
    """A seed whose first stream is cut among the first events."""
    for seed in range(1_000):
        fault = StreamFaults(seed).draw()
        if fault is not None and fault.kind in {"cut", "reset"} and 300 < fault.at < 900:
            return seed
    raise AssertionError("no seed cuts there")


async def test_an_eve_conversation_is_a_herm_that_is_cut_in_the_middle() -> None:
    """The strict client of Herm finds nothing wrong, and nothing twice or missing."""
    log = eve_log(APPROVAL)
    async with (
        replayed(log, "eve", "herm", faults=cutting_seed()) as house,
        aiohttp.ClientSession() as http,
    ):
        client = HermClient(http, house.url)
        session = (await client.create())["id"]
        turn, cuts, said = HermTurn(), 0, False
        while not turn.envelopes or turn.envelopes[-1]["type"] != "session.status_idle":
            last = turn.envelopes[-1]["id"] if turn.envelopes else None
            try:
                async for seen in client.stream(session, last):
                    if not said:
                        said = True
                        await client.say(session, "scene: approve")
                    if seen:
                        turn.envelopes.append(seen)
                    if seen.get("type") == "session.status_idle":
                        break
            except Disconnected:
                cuts += 1
        assert cuts
        assert turn.stop_reason["type"] == "requires_action"
        listed = await client.list(session)
        streamed = [one["id"] for one in turn.envelopes if not one["payload"].get("delta")]
        assert len(streamed) == len(set(streamed))
        assert [one["type"] for one in listed][-2:] == ["agent.tool_use", "session.status_idle"]
        ids = turn.stop_reason["event_ids"]
        await client.post(
            session, {"type": "user.tool_confirmation", "tool_use_id": ids[0], "result": "allow"}
        )
        async for seen in client.stream(session, turn.envelopes[-1]["id"]):
            if seen:
                turn.envelopes.append(seen)
            if seen.get("type") == "session.status_idle":
                break
        assert turn.stop_reason["type"] == "end_turn"
        assert '"paid":true' in turn.text


async def test_each_session_of_a_replay_begins_from_the_start() -> None:
    log = eve_log(APPROVAL)
    script = script_of(log)
    async with replayed(log, "eve", "engine") as house:
        driven = await asyncio.gather(*(house.drive(script, "engine", "eve") for _ in range(3)))
    assert [one.failed for one in driven] == [None, None, None]
    assert [texts(one.log) for one in driven] == [texts(log)] * 3
