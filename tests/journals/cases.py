"""The states in which sessions are left: each case brings one there and no further."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from proxy.session import Session
from tests.faults.backends import BACKENDS as KINDS
from tests.journals.house import Talk, asks, at_rest

__all__ = ["RUN_S", "SECRET", "Case", "cases_of"]

SECRET = "hunter2-of-a-fixture"
"""The sealed value that is given: it must be nowhere in a journal."""

RUN_S = 0.35
"""How long the turns that run at the end have run."""

SLOW = "script: slow 12"

# The routes by which each backend takes what a client says.
POST = {kind.dialect: kind.faulty.message for kind in KINDS}
ANSWER = {kind.dialect: kind.faulty.answer for kind in KINDS}
STOP = {"herm": "post", "eve": "cancel", "managed-agents": "send"}

LATER = {
    "herm": (429, 7, None),
    "eve": (
        409,
        None,
        '{"ok":false,"code":"session_not_ready","error":"Not ready to accept messages."}',
    ),
    "managed-agents": (429, 7, None),
}
"""What a backend says to a message that is to come again later."""


@dataclasses.dataclass(frozen=True)
class Case:
    """How a session gets into a state, and what holds of it when the proxy is killed."""

    bring: Callable[[Talk], Awaitable[None]]
    holds: Callable[[Session], bool]


# What holds.


def ticks(live: Session) -> bool:
    """A text is in the middle."""
    block = live.state.thread("main").text
    return block is not None and "tick 2" in "".join(block.parts)


def pends(live: Session) -> bool:
    """What became of an input is not known."""
    return bool(live.state.inputs)


def waits(live: Session) -> bool:
    """Two messages are not yet said."""
    return len(live.state.inputs) + len(live.state.unreceived) == 2


def comes_again(live: Session) -> bool:
    """Something is to be tried again."""
    return pends(live) and live.core.codec.wake_at is not None


def is_over(live: Session) -> bool:
    """The session takes no more."""
    return live.state.ended is not None


# How it gets there.


async def idle(talk: Talk) -> None:
    """Two turns, both over."""
    await talk.say("hello")
    await talk.rests()
    await talk.say("script: tools")
    await talk.rests()


async def running(talk: Talk) -> None:
    """A turn in the middle of its text."""
    await talk.say(SLOW)
    await talk.when(lambda live: live.state.busy)


async def queued(talk: Talk) -> None:
    """A turn that runs, and two messages that wait for its end."""
    await running(talk)
    await talk.queue("hello, second")
    await talk.queue("hello, third")


async def approval(talk: Talk) -> None:
    """An approval is asked for."""
    await talk.say("script: approve")


async def approvals(talk: Talk) -> None:
    """Two are asked for, at once or one after the other; the first is answered."""
    await talk.say("script: approve2")
    asked = await talk.asked()
    await talk.answer(asked)
    await talk.when(lambda live: asked.request_id not in live.state.interactions)


async def behind(talk: Talk) -> None:
    """An approval is asked for, and a message waits for its answer."""
    await approval(talk)
    await talk.asked()
    await talk.queue("hello, later")


async def question(talk: Talk) -> None:
    """A question is asked."""
    await talk.say("script: ask")


async def custom(talk: Talk) -> None:
    """The result of the application's own tool is asked for."""
    await talk.say("script: custom")


async def _lost(talk: Talk, route: str, send: Callable[[], Awaitable[None]], taken: bool) -> None:
    """Send something, without learning whether it was taken."""
    await talk.house.calm()
    size = talk.scripted.size()
    talk.scripted.lose(route, taken=taken)
    await send()
    await talk.when(lambda live: talk.scripted.size() > size)


def answer_lost(*, taken: bool) -> Callable[[Talk], Awaitable[None]]:
    """An answer was sent."""

    async def bring(talk: Talk) -> None:
        await talk.say("script: approve")
        asked = await talk.asked()
        route = ANSWER[talk.scripted.dialect]
        await _lost(talk, route, lambda: talk.answer(asked, wait=False), taken)

    return bring


def message_lost(*, taken: bool) -> Callable[[Talk], Awaitable[None]]:
    """A message was sent."""

    async def bring(talk: Talk) -> None:
        await talk.say("hello")
        await talk.rests()
        route = POST[talk.scripted.dialect]
        await _lost(talk, route, lambda: talk.say("hello again", wait=False), taken)

    return bring


def stop_lost(*, taken: bool) -> Callable[[Talk], Awaitable[None]]:
    """The turn was to be stopped."""

    async def bring(talk: Talk) -> None:
        await running(talk)
        route = STOP[talk.scripted.dialect]
        await _lost(talk, route, lambda: talk.control("cancel", wait=False), taken)

    return bring


async def refused(talk: Talk) -> None:
    """A message was refused for now, and is to be sent again."""
    await talk.say("hello")
    await talk.rests()
    await talk.house.calm()
    talk.scripted.refuse(POST[talk.scripted.dialect], *LATER[talk.scripted.dialect])
    await talk.say("hello again", wait=False)


async def child(talk: Talk) -> None:
    """A child agent has done its work, and the next turn runs."""
    await talk.say("script: child")
    await talk.rests()
    await running(talk)


async def child_asks(talk: Talk) -> None:
    """A child agent waits for an approval."""
    await talk.say("script: childask")


async def sign_in(talk: Talk) -> None:
    """A sign-in is open."""
    await talk.say("script: signin")


async def secret(talk: Talk) -> None:
    """A secret is asked for."""
    await talk.say("script: secret")
    await talk.asked()


async def secret_given(talk: Talk) -> None:
    """A secret was given, and the turn is over; a password is asked for."""
    await secret(talk)
    await talk.answer(await talk.asked(), sealed=SECRET)
    await talk.rests()
    await talk.say("script: sudo")


async def secret_lost(talk: Talk) -> None:
    """A secret is on its way, which nothing but memory knows."""
    await secret(talk)
    asked = await talk.asked()
    await _lost(talk, "post", lambda: talk.answer(asked, sealed=SECRET, wait=False), taken=False)


async def failed(talk: Talk) -> None:
    """A turn failed in the middle."""
    await talk.say("script: failmid")


async def long(talk: Talk) -> None:
    """A long turn is over, with snapshots on the way."""
    await talk.say("script: long 200")


async def ended(talk: Talk) -> None:
    """The session was reset: it takes no more."""
    await talk.say("hello")
    await talk.rests()
    await talk.control("reset")


async def deleted(talk: Talk) -> None:
    """The session was erased: its id is left."""
    await talk.say("hello")
    await talk.rests()
    status, _ = await talk.house.ask("DELETE", f"/api/v1/sessions/{talk.id}?local=1")
    assert status == 200


EVERYWHERE: dict[str, Case] = {
    "idle": Case(idle, at_rest),
    "running": Case(running, ticks),
    "queued": Case(queued, lambda live: ticks(live) and waits(live)),
    "approval": Case(approval, asks),
    "approvals": Case(approvals, asks),
    "question": Case(question, asks),
    "failed": Case(failed, at_rest),
    "long": Case(long, at_rest),
    "ended": Case(ended, is_over),
    "deleted": Case(deleted, lambda live: False),
    "answer taken": Case(answer_lost(taken=True), pends),
    "answer lost": Case(answer_lost(taken=False), pends),
    "message taken": Case(message_lost(taken=True), pends),
    "message lost": Case(message_lost(taken=False), pends),
}

STOPPED: dict[str, Case] = {
    "stop taken": Case(stop_lost(taken=True), pends),
    "stop lost": Case(stop_lost(taken=False), pends),
}

BEHIND = Case(behind, lambda live: asks(live) and pends(live))
"""For Managed Agents, an Engine and an eve of generation T: a message withdraws nothing there."""

OF_BACKENDS: dict[str, dict[str, Case]] = {
    "herm": {
        **STOPPED,
        "child": Case(child, ticks),
        "custom": Case(custom, asks),
        "secret": Case(secret, asks),
        "secret given": Case(secret_given, asks),
        "secret lost": Case(secret_lost, pends),
        "refused": Case(refused, comes_again),
    },
    "eve": {
        **STOPPED,
        "child": Case(child, ticks),
        "child asks": Case(child_asks, asks),
        "sign-in": Case(sign_in, asks),
        "refused": Case(refused, comes_again),
    },
    "engine": {"behind": BEHIND},
    "managed-agents": {
        **STOPPED,
        "behind": BEHIND,
        "child": Case(child, ticks),
        "child asks": Case(child_asks, asks),
        "custom": Case(custom, asks),
        "refused": Case(refused, comes_again),
    },
}


def cases_of(face: str, backend: str, dialect: str) -> dict[str, Case]:
    """Return the cases of a pair."""
    if backend != dialect:
        # Another generation: what differs is how it pauses and what tells of answers.
        names = ("running", "approval", "question", "answer taken", "message taken", "message lost")
        cases = {name: EVERYWHERE[name] for name in names}
        if backend == "eve-t":
            cases["behind"] = BEHIND
        return cases if face == "eve" else {}
    cases = {**EVERYWHERE, **OF_BACKENDS[dialect]}
    if dialect == "managed-agents":
        # It asks no questions.
        del cases["question"]
    return cases
