"""One conversation of the proof: what a person does in it, and the verdict on it.

A person whose request broke off does not know whether it arrived, and says it again, as people do.
Each attempt carries a tag of its own, so both may be done, but none of them twice; what the face
accepted must be done, or be shown as failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.people import Ask
from tests.proof.backends import Backends
from tests.proof.commands import Record, Verdict, commands_of
from tests.proof.facts import FACTS, Difference, Fact, compare, previews_shown
from tests.proof.returning import BROKEN, RETURNING, Boundary, Returning, passing
from tests.support.eve_client import Form
from tests.support.strictness import ProtocolViolation, Refused

__all__ = ["Conversation", "Patience"]

SCRIPTS = (
    "text",
    "reason",
    "tool",
    "tools",
    "toolfail",
    "approve",
    "approve",
    "approve-twice",
    "ask",
    "askopen",
    "failmid",
    "long 60",
    "slow 12",
    "slow 25",
)
"""What is played. `slow` has pauses that a kill falls into."""

UNPLAYED: Mapping[str, Collection[str]] = {"managed-agents": ("ask", "askopen")}
"""What a backend only speaks about: a Managed Agents service has no questions to ask."""

LOOK_S = 2.0
"""How long nothing comes until a person looks whether they are waited for."""

RETRY_S = 0.05
"""How soon a person tries again what was refused or broke off."""

NOT_SUPPORTED = "not_supported"
"""What both faces that have interrupts say where the backend has none."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a person waits in seconds: for a turn's end, and for the last frames. What is not
    there by then never comes: to settle a message that nobody knows of takes 10 s without a crash,
    and all the rest may take many times as long on a machine that does much else."""

    turn_s: float = 600.0
    rest_s: float = 300.0


class Stuck(Exception):
    """What must come does not come."""


class Conversation:
    """A person, a session, some turns.

    Args:
        http: the client to use.
        url: the base URL of the face.
        pair: the dialects of frontend and backend.
        name: the conversation's own name, from which all that is drawn follows.
        backends: the other end.
        turns: how many turns it has.
        patience: how long the person waits.
        up: is set while the server runs; nobody knocks while they know that it does not.
        form: the form of the eve face.
        control: the base URL of the server itself, past all lines that break.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        pair: tuple[str, str],
        name: str,
        backends: Backends,
        *,
        turns: int,
        patience: Patience,
        up: asyncio.Event,
        form: Form = "all",
        control: str = "",
    ) -> None:
        self._http = http
        self._control = control
        self._up = up
        self._pair = pair
        self._name = name
        self._backends = backends
        self._ledger = backends.ledgers[pair[1]]
        self._turns = turns
        self._patience = patience
        self._source = random.Random(name)
        options: dict[str, Any] = {"form": form} if pair[0] == "eve" else {}
        self.person: Returning = RETURNING[pair[0]](http, url, name, **options)
        # The token generation of eve answers 400 to what it will take a little later.
        self._conflicts = (400, 404, 409) if form == "tokens" and pair[0] == "eve" else (404, 409)
        # A closed pause has shown the end of its turn: one that is over there has no other.
        self._closes = pair[0] == "eve" and form != "newest"
        # What was said to make a session whose name was never heard.
        self._strayed: set[str] = set()
        self._accepted: list[str] = []
        self._tried: list[str] = []
        # Steering is in `_tried` too, an interrupt is not a message: a turn that failed is not its.
        self._steers: list[str] = []
        self._steers_accepted: list[str] = []
        self._stops: list[str] = []
        # By the boundary that asked: what is asked again is to be answered again, for the answer
        # before came to nothing.
        self._answered: set[tuple[int, str]] = set()
        self.verdict = Verdict()
        self.record = Record(pair)
        self._count = self.verdict.counts

    async def play(self) -> Verdict:
        """Hold the conversation and judge it."""
        person = self.person
        await self._until_done(person.open)
        reader = asyncio.create_task(person.read())
        try:
            for number in range(self._turns):
                await self._turn(number)
            await self._rest()
        except Stuck as stuck:
            self._wrong(f"stuck: {stuck}")
            self._count["stuck"] += 1
            self.record.stuck = True
        finally:
            person.close()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        await self._judge()
        self._count["conversations"] += 1
        return self.verdict

    def _wrong(self, text: str) -> None:
        self.verdict.wrong.append(f"{'/'.join(self._pair)} {self._name}: {text}")

    # What the person does.

    async def _later(self) -> None:
        await asyncio.sleep(RETRY_S)
        await self._up.wait()

    async def _until_done(self, action: object) -> None:
        while True:
            try:
                await action()  # type: ignore[operator]
            except BROKEN:
                await self._later()
            except Refused as refusal:
                if not passing(refusal):
                    raise
                await self._later()
            else:
                return

    async def _turn(self, number: int) -> None:
        unplayed = UNPLAYED.get(self._pair[1], ())
        script = self._source.choice([one for one in SCRIPTS if one not in unplayed])
        mark = len(self.person.boundaries)
        deadline = asyncio.get_running_loop().time() + self._patience.turn_s
        attempt = 0
        while True:
            tag = f"{self._name}-{number}-{attempt}"
            attempt += 1
            if await self._attempt(self.person.say, tag, f"[{tag}]\nscript: {script}"):
                break
            await self._open_asks()
            if asyncio.get_running_loop().time() > deadline:
                raise Stuck(f"`{tag}` is not accepted: {self._last_refusal}")
        meddled = script.startswith("slow") and self._source.random() < 0.5
        if meddled and self._pair[0] != "engine":
            # An Engine's client has neither.
            await self._meddle(f"{self._name}-{number}-s", mark)
        await self._boundaries(mark)

    _last_refusal = ""

    async def _attempt(self, action: object, tag: str, text: str) -> bool:
        """Try once; returns whether the face has accepted it."""
        self._tried.append(tag)
        nameless = self.person.nameless
        try:
            await action(text)  # type: ignore[operator]
        except BROKEN as broken:
            if nameless:
                self._strayed.add(tag)
            self._count["unsure"] += 1
            self._last_refusal = repr(broken)
            await self._later()
            return False
        except Refused as refusal:
            self._last_refusal = str(refusal)
            # Only what can pass is tried again.
            if not passing(refusal) and refusal.status not in self._conflicts:
                raise Stuck(f"`{tag}` is refused: {refusal}") from None
            self._count["refused"] += 1
            await self._later()
            return False
        self._accepted.append(tag)
        return True

    async def _meddle(self, tag: str, mark: int) -> None:
        """Steer or stop the turn once it is under way; a turn that is over already refuses."""
        person, begun = self.person, len(self.person.frames)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60.0):
                while len(person.frames) < begun + 4 and len(person.boundaries) == mark:
                    person.changed.clear()
                    await person.changed.wait()
        if len(person.boundaries) > mark:
            return
        steers = self._source.random() < 0.5
        try:
            if steers:
                self._tried.append(tag)
                self._steers.append(tag)
                await person.steer(f"[{tag}] be brief")
                self._steers_accepted.append(tag)
                self._count["steered"] += 1
            else:
                self._stops.append(tag)
                await person.interrupt(f"[{tag}] stop")
                self._count["interrupted"] += 1
        except BROKEN:
            self._count["unsure"] += 1
        except Refused as refusal:
            self._count["refused"] += 1
            impossible = self._pair[1] == "engine" and not steers
            expected = impossible and refusal.code == NOT_SUPPORTED
            if not (passing(refusal) or refusal.status in self._conflicts or expected):
                self._count["violations"] += 1
                self._wrong(f"`{tag}` is refused: {refusal}"[:400])

    async def _boundaries(self, mark: int) -> None:
        """Answer what is asked until the agent rests."""
        while True:
            boundary = await self._boundary(mark)
            if not boundary.asks:
                return
            mark = len(self.person.boundaries)
            await self._open_asks()

    async def _boundary(self, mark: int) -> Boundary:
        person = self.person
        try:
            async with asyncio.timeout(self._patience.turn_s):
                while len(person.boundaries) <= mark:
                    if person.violations:
                        raise Stuck(person.violations[0])
                    person.changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await person.changed.wait()
                            continue
                    await self._look()
        except TimeoutError:
            last = person.frames[-1] if person.frames else None
            raise Stuck(f"no end of the turn after {last}") from None
        return person.boundaries[-1]

    async def _look(self) -> None:
        """Answer again what is open again without a frame that says so (an Engine's client looks
        at `/hitl/pending`)."""
        try:
            again = await self.person.waiting()
        except (*BROKEN, Refused):
            return
        place = self.person.boundaries[-1].place if self.person.boundaries else 0
        for ask in again:
            if (place, ask.id) in self._answered:
                await self._answer(ask, place)

    async def _open_asks(self) -> None:
        """Answer what is open and was not answered; what breaks off is answered again."""
        if not self.person.boundaries:
            return
        last = self.person.boundaries[-1]
        for ask in last.asks:
            if (last.place, ask.id) not in self._answered:
                await self._answer(ask, last.place)

    async def _answer(self, ask: Ask, place: int) -> None:
        yes = self._source.random() < 0.7
        deadline = asyncio.get_running_loop().time() + self._patience.turn_s
        while asyncio.get_running_loop().time() < deadline:
            try:
                await self.person.answer(ask, yes)
            except BROKEN:
                self._count["unsure"] += 1
            except Refused as refusal:
                self._last_refusal = str(refusal)
                self._count["refused"] += 1
                if not passing(refusal):
                    # It was answered, by the attempt before; or it is gone.
                    self._answered.add((place, ask.id))
                    return
            else:
                self._answered.add((place, ask.id))
                self._count["answers"] += 1
                return
            await self._later()
        raise Stuck(f"an answer is not accepted: {self._last_refusal}")

    # What must hold in the end.

    def _talks(self) -> tuple[list[Any], list[Any]]:
        """Return the backend's conversations that are ours, and those that nobody knows.

        An eve names a session only in the answer to its creation, which takes the first message
        with it: when that answer is lost, the session is there and cannot be found.
        """
        talks: dict[int, Any] = {}
        for tag in self._tried:
            talk = self._ledger.talks.get(tag)
            if talk is not None and tag not in self._strayed:
                talks[id(talk)] = talk
        if self._pair[1] != "eve":
            return list(talks.values()), []
        orphans = [talk for talk in talks.values() if self._orphaned(talk)]
        return [talk for talk in talks.values() if talk not in orphans], orphans

    def _orphaned(self, talk: Any) -> bool:
        """Say whether nobody ever asked an eve for a session after the request that made it: then
        its name was not heard. One request that names it, and all it says counts."""
        mine = [tag for tag in self._tried if self._ledger.talks.get(tag) is talk]
        return len(mine) == 1 and talk.id not in self._ledger.named

    def _sent(self) -> list[Fact]:
        return [
            fact
            for talk in self._talks()[0]
            for fact in FACTS[self._pair[1]](self._backends.frames(self._pair[1], talk))
        ]

    def _received(self) -> list[Fact]:
        return FACTS[self._pair[0]](self.person.frames)

    def _at_rest(self) -> bool:
        return all(self._backends.rests(self._pair[1], talk) for talk in self._talks()[0])

    async def _rest(self) -> None:
        """Wait until both ends have the same, or the wait is over: the verdict says which."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience.rest_s
        sure = False
        while loop.time() < deadline:
            if self.person.violations:
                return
            await self._open_asks()
            difference = self._difference(self._sent(), self._received())
            if difference.whole and self._at_rest() and self._settled(difference.doubled):
                # What was settled meanwhile may have brought more.
                if sure:
                    return
                sure = await self._log_settled()
                continue
            await asyncio.sleep(0.05)

    def _difference(self, sent: list[Fact], received: list[Fact]) -> Difference:
        """Compare both ends, but for the ends of turns that were stopped, or what they asked
        withdrawn, at a closed pause: at most one for each question."""
        difference = compare(previews_shown(sent, received), received)
        ends = difference.lost.count(("end", "over")) if self._closes else 0
        for _ in range(min(ends, sum(fact[0] == "ask" for fact in sent))):
            difference.lost.remove(("end", "over"))
        return difference

    def _settled(self, more: list[Fact]) -> bool:
        """Say whether every message was done, or is shown as a turn that never began."""
        missing = sum(not self._ledger.executed[tag] for tag in self._accepted)
        return missing <= len(more) and all(fact == ("end", "failed") for fact in more)

    async def _log_settled(self) -> bool:
        """Say whether all commands are settled: steering may wait for its turn as a message, the
        fate of an interrupt may be open, and nothing on the wire tells of their ends."""
        if not self.person.address:
            return True
        path = f"{self._control}/api/v1/sessions/{self.person.address}/events"
        with contextlib.suppress(*BROKEN):
            async with self._http.get(path) as response:
                lines = (await response.read()).split(b"\n")
                if response.status == 200 and all(
                    one.outcome for one in commands_of(lines).values()
                ):
                    return True
        await self._later()
        await asyncio.sleep(LOOK_S / 4)
        return False

    async def _judge(self) -> None:
        count, ledger = self._count, self._ledger
        sent, received = self._sent(), self._received()
        difference = self._difference(sent, received)
        count["sent"] += len(sent)
        count["received"] += len(received)
        missing = [tag for tag in self._accepted if not ledger.executed[tag]]
        doubled = list(difference.doubled)
        # A message that did not arrive, or may not have arrived, is shown as a turn that failed,
        # and nothing else is in that turn. Of those whose acceptance was cut off, a person knows as
        # little as we do; `commands` looks into the log for how many there may be.
        unsure = [tag for tag in self._tried if not ledger.executed[tag]]
        orphans = self._talks()[1]
        most = min(len(unsure) + len(orphans), _bare_failures(received))
        bare = [fact for fact in doubled if fact == ("end", "failed")][:most]
        for fact in bare:
            doubled.remove(fact)
        count["not begun"] += len(bare)
        dropped = missing[len(bare) :]
        if dropped:
            count["commands lost"] += len(dropped)
            self._wrong(f"accepted and never done: {dropped}")
        if difference.lost:
            count["lost"] += len(difference.lost)
            self._wrong(f"lost {len(difference.lost)}: {difference.lost[:6]}")
        if doubled:
            count["doubled"] += len(doubled)
            self._wrong(f"doubled {len(doubled)}: {doubled[:6]}")
        if difference.reordered:
            count["reordered"] += difference.reordered
            both = zip(sent, received, strict=False)
            place = next((n for n, (one, other) in enumerate(both) if one != other), 0)
            here, there = (facts[place : place + 8] for facts in (sent, received))
            self._wrong(
                f"reordered: {difference.reordered}; from fact {place} on sent {here}, "
                f"received {there}"
            )
        self.record.accepted = {*self._accepted, *self._steers_accepted}
        self.record.orphans = self._strayed | {
            tag for tag in self._tried if any(ledger.talks.get(tag) is talk for talk in orphans)
        }
        self.record.stops, self.record.bare = len(self._stops), len(bare)
        for tag in dict.fromkeys((*self._tried, *self._stops)):
            times = ledger.executed[tag]
            count["once"] += times == 1
            if times > 1:
                count["twice"] += 1
                self._wrong(f"executed {times} times: {tag}")
        for violation in self.person.violations:
            count["violations"] += 1
            self._wrong(violation)
        await self._read_again()
        count["connections"] += self.person.connections
        for talk in {id(t): t for tag in self._tried if (t := ledger.talks.get(tag))}.values():
            self._backends.forget(self._pair[1], talk)
        for tag in (*self._tried, *self._stops):
            ledger.talks.pop(tag, None)

    async def _read_again(self) -> None:
        """Compare what the person has with what somebody gets who comes late."""
        frames = self.person.frames
        again: list[object] = []

        async def read() -> None:
            # A reader whose connection breaks has a part of it only, and reads again.
            while len(again) < len(frames):
                again[:] = await self.person.again()
                await asyncio.sleep(RETRY_S)

        try:
            async with asyncio.timeout(self._patience.rest_s):
                await self._until_done(read)
        except (TimeoutError, ProtocolViolation, Refused) as error:
            if self._count["stuck"]:
                # An Engine's replay follows a turn that does not end.
                return
            self._count["replay differs"] += 1
            self._wrong(f"cannot be read again: {error!r}"[:400])
            return
        same = again[: len(frames)]
        if same != frames:
            place = next(
                (n for n, (a, b) in enumerate(zip(same, frames, strict=False)) if a != b),
                len(same),
            )
            self._count["replay differs"] += 1
            self._wrong(
                f"replay differs at {place} of {len(frames)}: "
                f"{frames[place : place + 1]} was, {same[place : place + 1]} is"[:900]
            )


def _bare_failures(facts: list[Fact]) -> int:
    """Count the turns that show nothing but their failure."""
    before = [("end", ""), *facts]
    return sum(
        fact == ("end", "failed") and last[0] == "end"
        for last, fact in zip(before, facts, strict=False)
    )
