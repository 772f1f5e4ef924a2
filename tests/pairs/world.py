"""One Dragoman over one scripted backend, the people in front of it, and what must hold after.

`World.check` is what every scenario ends with, whatever it was about: the log obeys the laws, and
nothing of the never-dropped list (design section 5) was lost on its way to the person.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from adapters.model import events as ev
from adapters.model.state import LogState
from adapters.wire.jsonvalue import format_json
from proxy.scripted.eve_turns import EveVariant, Generation
from proxy.scripted.faults import Fault, Faults
from proxy.session import Session
from proxy.sessions.sessions import Sessions
from tests.pairs.backends import properties_of
from tests.pairs.cells import Cell
from tests.pairs.frontends import EngineFrontend, Frontend, Seen
from tests.pairs.table import PEOPLE
from tests.support.alone import Alone
from tests.support.journals import stored_entries
from tests.support.waiting import settled

__all__ = ["World"]


class World:
    """One pair: `person` speaks the frontend's dialect, the backend is scripted.

    Args:
        frontend: the dialect of `person`.
        backend: the dialect of the backend.
        expect: what the table says of the scenario in this pair.
        journal: the URL of the journal.
        pace: the factor on the pauses inside of scripts.
        settings: how the backend is driven.
        faults: what the backend does wrong, by route and number.
        generation: which eve an eve backend is, where not the newest.
    """

    def __init__(
        self,
        frontend: str,
        backend: str,
        expect: Cell,
        *,
        journal: str = "memory:",
        pace: float = 0.0,
        settings: Mapping[str, Any] | None = None,
        faults: Mapping[tuple[str, int], Fault] | None = None,
        generation: Generation | None = None,
    ) -> None:
        self.frontend = frontend
        self.backend = backend
        self.properties = properties_of(backend)
        self.expect = expect
        options: dict[str, Any] = {"pace": pace, "faults": Faults(dict(faults or {}))}
        if generation is not None:
            options["variant"] = EveVariant(generation)
        table = {"settings": dict(settings or {})}
        self._dragoman = Alone(journal, dialect=backend, options=options, table=table)
        self.people: list[Frontend] = []
        self.person: Frontend

    async def __aenter__(self) -> World:
        await self._dragoman.__aenter__()
        self.person = self.enter(self.frontend)
        return self

    async def __aexit__(self, *error: object) -> None:
        for person in self.people:
            await person.close()
        await self._dragoman.__aexit__(*error)

    @property
    def http(self) -> aiohttp.ClientSession:
        """Return the HTTP client of everybody here."""
        return self._dragoman.http

    @property
    def sessions(self) -> Sessions:
        """Return the proxy's sessions."""
        return self._dragoman.sessions

    @property
    def scripted(self) -> Any:
        """Return the state of the scripted backend."""
        return self._dragoman.backend

    async def lose_backend(self) -> None:
        """Take the backend away: its connections break, and nobody answers there any more."""
        await self._dragoman.stop_backend(self.backend)

    def enter(self, dialect: str, session: str | None = None) -> Frontend:
        """Bring in a person of a dialect, with the session of that public id in front of them."""
        url = self._dragoman.face(dialect, self.backend)
        person = PEOPLE[dialect](self.http, url, session)
        self.people.append(person)
        return person

    async def join(self, dialect: str) -> Frontend:
        """Bring in a person who reads the session of `person` from its beginning."""
        name = await self.session_id()
        if dialect == "engine" and isinstance(self.person, EngineFrontend):
            # A task is shown under the name that its frontend chose.
            name = self.person.task
        person = self.enter(dialect, name)
        person.app = self.person if dialect == self.person.dialect else None
        await person.attach()
        return person

    async def session_id(self) -> str:
        """Return the public id of the one session."""
        rows = await self.sessions.journal.sessions(owner=None, route=self.backend, limit=2)
        assert len(rows) == 1
        return rows[0].id

    async def session(self) -> Session:
        """Return the one session, in memory."""
        return await self._dragoman.live(await self.session_id())

    async def entries(self) -> list[ev.Entry]:
        """Return the log of the one session as it is stored."""
        return await stored_entries(self.sessions.journal, await self.session_id())

    async def log(self, *types: type[ev.Event]) -> list[Any]:
        """Return the events of some types, in order."""
        return [e.event for e in await self.entries() if not types or isinstance(e.event, types)]

    async def quiet(self) -> None:
        """Wait until nothing of the session is under way."""
        await settled(await self.session())

    def received(self, route: str) -> list[Any]:
        """Return the JSON bodies that the backend got on a route, in order."""
        return [json.loads(r.body) for r in self.scripted.received if r.route == route and r.body]

    # What holds after every scenario.

    async def check(self) -> None:
        """Check the laws, and that nothing of the never-dropped list was lost.

        Raises:
            LawBroken: the log broke a law of design section 3.
            AssertionError: the person did not see something that they must see.
        """
        entries = await self.entries()
        state = LogState()
        for entry in entries:
            state.apply_entry(entry)
        events = [entry.event for entry in entries]
        assert not [e for e in events if isinstance(e, ev.Gap)], "something was lost on the way"
        if self.person.session is not None or self.frontend == "engine":
            await _check_nothing_dropped(self.person, events, self.stopped)

    @property
    def stopped(self) -> str:
        """Return how the person sees a turn that was interrupted.

        Herm itself says `end_turn` (herm page, section 5), and its frames pass unchanged.
        """
        same = self.frontend == self.backend == "herm"
        return "completed" if same else "interrupted"


async def _check_nothing_dropped(person: Frontend, events: list[Any], stopped: str) -> None:
    seen = person.seen
    main = [event for event in events if event.thread_id == ev.MAIN]
    inputs = seen.inputs if person.dialect != "herm" else await person.history()
    for event in main:
        match event:
            case ev.MessageReceived():
                said = "".join(b.text for b in event.content if isinstance(b, ev.Text))
                assert any(said in words for words in inputs), f"`{said}` not in {inputs}"
            case ev.TextCompleted(status="complete"):
                assert event.text in seen.text, f"`{event.text}` not in `{seen.text}`"
            case ev.ToolCalled():
                _check_call(seen, event)
            case ev.ToolReturned() if event.status != "interrupted":
                _check_result(seen, event)
            case _:
                pass
    asked = [event for event in events if isinstance(event, ev.InteractionRequested)]
    assert len(seen.asks) == len(asked), f"{len(asked)} were asked, seen: {seen.asks}"
    ended = [event for event in main if isinstance(event, ev.TurnEnded)]
    outcomes = [_outcome(event, stopped) for event in ended]
    assert seen.outcomes[: len(outcomes)] == outcomes, (seen.outcomes, outcomes)
    for event in ended:
        if event.error is not None and event.outcome == "failed":
            assert any(event.error.message in text for text in seen.errors), seen.errors


def _outcome(event: ev.TurnEnded, stopped: str) -> str:
    if event.outcome == "interrupted":
        return stopped
    return "completed" if event.outcome == "completed" else "failed"


def _same(shown: Any, told: Any) -> bool:
    words = format_json(told).decode() if not isinstance(told, str) else told
    shown_words = format_json(shown).decode() if not isinstance(shown, str) else shown
    return words in shown_words or str(told) in shown_words


def _check_call(seen: Seen, event: ev.ToolCalled) -> None:
    names = {event.name, f"{event.server}.{event.name}"}
    calls = [tool for tool in seen.tools.values() if tool.name in names]
    assert calls, f"`{event.name}` was not seen: {seen.tools}"
    if event.input_known:
        assert any(_same(tool.input, event.input) for tool in calls), (calls, event.input)


def _check_result(seen: Seen, event: ev.ToolReturned) -> None:
    returned = [tool for tool in seen.tools.values() if tool.output is not None]
    told = event.output if event.output is not None else ev.text_of(event.content or ())
    if event.is_error or event.status in ("failed", "rejected"):
        message = None if event.error is None else event.error.message
        assert any(
            tool.failed and (message is None or message in (tool.output or "")) for tool in returned
        ), (returned, event)
    elif told not in (None, ""):
        assert any(_same(tool.output, told) for tool in returned), (returned, told)
