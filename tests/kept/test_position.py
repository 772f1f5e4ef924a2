"""Killed after any step, a codec that is put back does what one does that only lost its
connections.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import ClientCodec
from adapters.model.state import LogState
from adapters.registry import DIALECTS
from adapters.wire.framing.sse import SseFrame, SseParser
from tests.kept.leg import Leg, Move
from tests.kept.worlds import Engine, Herm, Trouble

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"


def frames_of(path: Path) -> list[SseFrame]:
    return [frame for frame in SseParser().feed(path.read_bytes()) if isinstance(frame, SseFrame)]


def frame_of(name: str, **payload: object) -> SseFrame:
    return SseFrame(name, json.dumps(payload).encode())


def message(words: str) -> Move:
    return Move(
        lambda state: cmd.SendMessage(content=(ev.Text(text=words),), policy="queue"),
        lambda leg: leg.quiet,
    )


def unclaimed(state: LogState) -> list[ev.InteractionRequested]:
    return [open_.event for open_ in state.interactions.values() if open_.claimed_by is None]


def an_answer(state: LogState) -> cmd.AnswerInteraction:
    asked = unclaimed(state)[0]
    match asked.kind:
        case "approval":
            return cmd.AnswerInteraction(
                request_id=asked.request_id, decision="allow", scope="once"
            )
        case _:
            return cmd.AnswerInteraction(request_id=asked.request_id, text="as you like")


def is_asked(leg: Leg) -> bool:
    turn = leg.state.thread(ev.MAIN).turn
    return turn is not None and turn.paused_on == "input" and bool(unclaimed(leg.state))


ANSWER = Move(an_answer, is_asked)


def meanwhile(command: cmd.AnyCommand, after: int = 1) -> Move:
    """What is said while a turn runs, once that has shown so much."""

    def when(leg: Leg) -> bool:
        turn = [event for event in leg.events if event.turn_id is not None]
        return leg.state.busy and len(turn) > after

    return Move(lambda _: command, when)


def said(policy: Any) -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text="but"),), policy=policy)


INTERRUPT = cmd.Interrupt(note="enough")
STEER = cmd.Steer(text="left")


def answered(asks: int) -> list[Move]:
    return [message("go"), *[ANSWER] * asks, message("more")]


def client(dialect: str) -> Callable[[dict[str, Any]], ClientCodec]:
    make = DIALECTS[dialect].client
    assert make is not None
    return make


# The Engine.

ENGINE_TROUBLES: list[tuple[Trouble, ...]] = [
    (),
    *[
        (Trouble(kind, number),)
        for number in (1, 2)
        for kind in ("lost", "lost on the way", "unreachable", "refused")
    ],
    *[(Trouble("refused", number, status=s),) for number in (1, 2) for s in (404, 409, 502)],
]


def task_of(frames: Sequence[SseFrame]) -> str:
    named = [json.loads(f.data).get("task_id") for f in frames if f.data.startswith(b"{")]
    return next((name for name in named if name), "task")


def engine_leg(path: Path, troubles: Sequence[Trouble], *, stopped: bool = False) -> Leg:
    frames = frames_of(path)
    asks = sum(frame.event == "hitl_request" for frame in frames)
    task = task_of(frames)
    plain = [frame_of("thread_lifecycle", phase="started", task_id=task)]
    plain += [frame_of("text_delta", text=words) for words in ("And ", "so ", "on.")]
    plain += [frame_of("thread_lifecycle", phase="completed", task_id=task)]
    world = Engine(task, [frames, *[plain] * 3], troubles)
    moves = answered(asks)
    if stopped:
        moves[1] = Move(lambda _: INTERRUPT, is_asked)
    return Leg(client("engine"), world, moves)


# The Herm.

BUSY = {"error": {"code": "turn_running", "message": "Busy."}}
NOT_READY = {"error": {"code": "deployment_not_ready", "message": "Later."}}
HERM_TROUBLES: list[tuple[Trouble, ...]] = [
    (),
    *[
        (Trouble(kind, number),)
        for number in (1, 2, 3)
        for kind in ("lost", "lost on the way", "unreachable", "refused")
    ],
    *[(Trouble("refused", number, status=409, body=BUSY),) for number in (2, 3)],
    *[(Trouble("refused", number, status=409, body=NOT_READY),) for number in (2, 3)],
    (Trouble("refused", 2, times=3, status=429, headers={"Retry-After": "7"}),),
    (Trouble("refused", 3, status=400),),
]


def herm_leg(
    path: Path,
    troubles: Sequence[Trouble],
    spelling: Any = "events",
    moves: Sequence[Move] | None = None,
) -> Leg:
    frames = frames_of(path)
    asks = 0
    for frame in frames:
        reason = json.loads(frame.data).get("payload", {}).get("stop_reason")
        if isinstance(reason, dict) and reason.get("type") == "requires_action":
            asks += max(len(reason.get("event_ids") or ()), 1)
    again = frames_of(WIRE / "herm" / "01-plain-text.sse")
    world = Herm([*frames, *again, *again], troubles, spelling=spelling)
    return Leg(client("herm"), world, answered(asks) if moves is None else moves)


HERM_MOVES: dict[str, list[Move]] = {
    "a steer": [message("go"), meanwhile(STEER), message("more")],
    "a steer that is late": [message("go"), meanwhile(STEER, 8), message("more")],
    "an interrupt": [message("go"), meanwhile(INTERRUPT), message("more")],
    "a message that steers": [message("go"), meanwhile(said("steer"))],
    "a message that steers late": [message("go"), meanwhile(said("steer"), 8)],
    "a message that withdraws": [
        message("go"),
        Move(lambda _: said("withdraw"), is_asked),
        message("more"),
    ],
}
HERM_MEANWHILE = [t for t in HERM_TROUBLES if all(one.number != 2 for one in t)]


TROUBLED = {
    *("01-plain-text", "03-hitl-permission-yes", "04-hitl-question"),
    *("03-confirmation", "04-clarification", "10-undocumented-forms"),
}
"""The recordings that are played with each trouble; the others smoothly only."""


def legs() -> Iterator[tuple[str, Callable[[], Leg]]]:
    for path in sorted((WIRE / "engine").glob("*.sse")):
        # The one that is the rest of a replay has no beginning that could be lost.
        if not frames_of(path) or path.stem == "07b-replay-after":
            continue
        for troubles in ENGINE_TROUBLES if path.stem in TROUBLED else [()]:
            name = ", ".join(map(str, troubles)) or "smooth"
            yield f"engine {path.stem}: {name}", partial(engine_leg, path, troubles)
            if path.stem == "03-hitl-permission-yes":
                make = partial(engine_leg, path, troubles, stopped=True)
                yield f"engine {path.stem}: stopped, {name}", make
    for path in sorted((WIRE / "herm").glob("*.sse")):
        for troubles in HERM_TROUBLES if path.stem in TROUBLED else [()]:
            name = ", ".join(map(str, troubles)) or "smooth"
            yield f"herm {path.stem}: {name}", partial(herm_leg, path, troubles)
        if path.stem in TROUBLED:
            yield f"herm {path.stem}: another spelling", partial(herm_leg, path, (), "single")
    for what, moves in HERM_MOVES.items():
        name = "03-confirmation" if "withdraws" in what else "02-thinking-and-tools"
        path = WIRE / "herm" / f"{name}.sse"
        for troubles in HERM_MEANWHILE:
            name = ", ".join(map(str, troubles)) or "smooth"
            yield f"herm, {what}: {name}", partial(herm_leg, path, troubles, moves=moves)
        yield f"herm, {what}: another spelling", partial(herm_leg, path, (), "single", moves)


LEGS = dict(legs())


@pytest.mark.parametrize(
    ("name", "late"),
    # What is said meanwhile would come at another time with late answers.
    [(name, late) for name in LEGS for late in (False, True) if not (late and "herm, " in name)],
)
def test_a_kill_changes_nothing_that_lost_connections_do_not(name: str, late: bool) -> None:
    leg = LEGS[name]()
    leg.late = late
    smooth = name.endswith("smooth")
    steps: list[str] = []
    for number, step in enumerate(leg.each()):
        steps.append(step)
        again = steps[-2:] == ["read"] * 2 or steps[-3:] == steps[-6:-3]
        if again and not smooth:
            # Among frames, and among tries that are refused alike, a trouble changes nothing that
            # it has not changed at the first of them.
            continue
        lost = leg.fork().lose().run()
        killed = leg.fork().kill().run()
        where = f"killed after step {number}, `{step}`"
        assert killed.posts == lost.posts, where
        assert killed.told() == lost.told(), where
