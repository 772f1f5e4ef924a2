"""A person's part, played again: says and answers in a session what was said and answered in
another one.

The commands are those of a script's cues, each when the agent is as far as it was. Requests are
matched by their kind and their place among those of this kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import Decision, option_for, option_named
from adapters.offline.replay import ReplayCue, ReplayScript
from adapters.wire.errors import DragomanError
from proxy.fanout.hub import entries_of
from proxy.migration.script_cues import NotDriven, blobs_of, command_of, may_be, prompt, shown
from proxy.session import Session
from proxy.sessions.sessions import Sessions

FIRST_LOOK_SECONDS = 0.004

CUE = "cue"
"""The member of an input's details that has the number of its cue, where it is noted."""

_DECISIONS: dict[str, Decision] = {"allow": "allow", "deny": "deny"}


@dataclasses.dataclass(slots=True)
class ScriptedRun:
    """What came of it: the log of the session, and what was not as it was recorded, for people.
    `failed` says why it could not be driven to its end, `given` how many commands the backend got.
    """

    log: list[ev.Entry] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    failed: str | None = None
    given: int = 0


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Driver:
    """The person's part.

    With `lasting` what was recorded is another session here, and the session that is driven may go
    on later: the number of its cue is noted with each input, and where one is not taken it stops,
    since what comes later would be said to an agent that knows less.
    """

    script: ReplayScript
    out: ScriptedRun
    _: dataclasses.KW_ONLY
    seconds: float
    sealed: list[str]
    tell: Callable[[str], None]
    stop: asyncio.Event
    lasting: bool = False
    _session: Session | None = dataclasses.field(init=False, default=None)
    _sessions: Sessions | None = dataclasses.field(init=False, default=None)
    _given: dict[str, str] = dataclasses.field(init=False, default_factory=dict)
    _settled: dict[str, ev.InputSettled] = dataclasses.field(init=False, default_factory=dict)
    _number: int = dataclasses.field(init=False, default=0)
    # The recorded requests, each with the one that was asked in its place.
    _places: dict[str, ev.InteractionRequested] = dataclasses.field(
        init=False, default_factory=dict
    )
    _seen: set[str] = dataclasses.field(init=False, default_factory=set)
    # What the agent has done in the turn that runs.
    _done: set[str] = dataclasses.field(init=False, default_factory=set)

    @property
    def _source(self) -> str:
        return "session" if self.lasting else "capture"

    async def begin(self, sessions: Sessions, session: Session) -> None:
        """Take a session, and read what is in its log."""
        self._sessions = sessions
        self._session = session
        await self.read()

    async def run(self, first: int = 0) -> None:
        """Do all that the script has cues for, from number `first` on, and wait for what comes of
        the last one.

        Raises:
            NotDriven: the person's part cannot go on.
            JournalError: what came could not be stored.
        """
        for number in range(first, len(self.script.cues)):
            self._number = number
            cue = self.script.cue(number)
            if cue.refused is not None:
                self._note(f"{shown(cue)} was refused when it was recorded: it is left out")
            elif cue.request_id is not None:
                await self._answer(cue)
            else:
                await self._input(cue)
        await self._until(lambda: self._at_rest or self._ends or bool(self._others), "the end")
        if self._others:
            raise self._unsaid(self._others[0])

    def _unsaid(self, request: ev.InteractionRequested) -> NotDriven:
        return NotDriven(
            f"The backend asks {prompt(request)}, and the {self._source} has nothing here."
        )

    def _note(self, text: str) -> None:
        self.out.notes.append(text)

    # Where the session stands.

    @property
    def _live(self) -> Session:
        assert self._session is not None
        return self._session

    @property
    def _at_rest(self) -> bool:
        live = self._live
        over = live.state.ended is not None or (not live.working and live.idle)
        # What is still on its way to the disk is not read yet.
        return over and live.last_seq == live.state.seq

    @property
    def _ends(self) -> bool:
        """Say whether a person is waited for, as at the end of the script."""
        return (
            self.script.ends_asked
            and bool(self._live.state.interactions)
            and len(self._places) == len(self.script.requests)
            and self._given.keys() <= self._settled.keys()
        )

    @property
    def _others(self) -> list[ev.InteractionRequested]:
        """What waits for an answer and is in the place of nothing that was recorded."""
        placed = [one.request_id for one in self._places.values()]
        seen = self._seen.difference(placed)
        return [one for one in self._asked if one.request_id in seen]

    @property
    def _asked(self) -> list[ev.InteractionRequested]:
        """What waits for an answer; a sign-in is done elsewhere."""
        return [
            open_.event
            for open_ in self._live.state.interactions.values()
            if open_.claimed_by is None
            and open_.event.answerable
            and open_.event.kind != "authorization"
        ]

    async def read(self) -> None:
        """Take what is new in the log."""
        if self._session is None or self._sessions is None:
            return
        log, row = self.out.log, self._session.row
        chunks = await self._sessions.journal.read(row.key, after=len(log))
        for chunk in chunks:
            for entry in entries_of(chunk.body, row.id):
                if entry.seq > len(log):
                    log.append(entry)
                    self._take(entry.event)
        if chunks:
            await self.read()

    def _take(self, event: ev.Event) -> None:
        match event:
            case ev.InteractionRequested():
                self._place(event)
            case ev.InputSettled():
                self._settled[event.command_id] = event
            case ev.TurnStarted(thread_id=ev.MAIN):
                self._done.clear()
            case _:
                pass
        if event.thread_id == ev.MAIN:
            self._done.add(event.TYPE)

    def _place(self, request: ev.InteractionRequested) -> None:
        """Find the recorded request in whose place one was asked: the first that is left, if its
        dialect may ask it so, else the first of its kind."""
        left = {
            name: recorded
            for name, recorded in self.script.requests.items()
            if name not in self._places
        }
        self._seen.add(request.request_id)
        for name, recorded in left.items():
            if may_be(request.kind, recorded.kind):
                self._places[name] = request
                return
            break
        for name, recorded in left.items():
            if request.kind == recorded.kind:
                self._places[name] = request
                return

    async def _until(self, reached: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds.

        Raises:
            NotDriven: nothing came for too long, or the session has left memory.
        """
        live, time = self._live, asyncio.get_running_loop().time
        since, seen, look = time(), -1, FIRST_LOOK_SECONDS
        while True:
            news = live.news()
            await self.read()
            self._check_taken()
            # What the session knows by now may be more than was read.
            if len(self.out.log) >= live.last_seq and reached():
                return
            if self.stop.is_set():
                raise NotDriven(f"It was stopped while waiting for {what}.")
            if live.closed:
                raise NotDriven("The session was lost: its log cannot be stored.")
            if seen != len(self.out.log):
                since, seen, look = time(), len(self.out.log), FIRST_LOOK_SECONDS
            elif time() - since > self.seconds:
                asks = f" The backend asks {prompt(self._asked[0])}." if self._asked else ""
                raise NotDriven(
                    f"Nothing came for {self.seconds:g} s, while waiting for {what}.{asks}"
                )
            # What changes without an event is looked at now and then.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look):
                    await news.wait()
            look = min(look * 2, 0.25)

    def _check_taken(self) -> None:
        """Check, where the session may go on later, that the backend took what it was given.

        Raises:
            NotDriven: it did not.
        """
        for command_id, what in self._given.items() if self.lasting else ():
            settled = self._settled.get(command_id)
            if settled is not None and settled.outcome != "taken":
                why = settled.reason or "no reason"
                raise NotDriven(f"The {what} was {settled.outcome}: {why}")

    # Doing.

    async def _input(self, cue: ReplayCue) -> None:
        """Say something, or control the session, when it is as it was."""
        what = shown(cue)
        if cue.after is not None and not cue.asked:
            # The agent worked.
            await self._until(
                lambda: cue.after in self._done or self._at_rest or bool(self._asked),
                f"work, for {what}",
            )
            if self._at_rest:
                self._note(f"{what} comes when the turn has ended: it was quicker than recorded")
        elif cue.asked:
            await self._until(
                lambda: bool(self._live.state.interactions) or self._at_rest,
                f"a question, for {what}",
            )
        else:
            await self._until(lambda: self._at_rest or bool(self._asked), f"rest, for {what}")
            if self._asked:
                raise self._unsaid(self._asked[0])
        if self._at_rest and cue.name in {"interrupt", "steer"}:
            self._note(f"{what} is left out")
            return
        await self._give(command_of(cue), what)

    async def _answer(self, cue: ReplayCue) -> None:
        """Answer the request at the same place among those of its kind."""
        name = cue.request_id or ""
        recorded = self.script.requests[name]
        what = prompt(recorded)

        await self._until(
            lambda: name in self._places or self._at_rest or bool(self._others),
            f"a request {what}",
        )
        if name not in self._places:
            instead = f" It asks {prompt(self._others[0])}." if self._others else ""
            raise NotDriven(f"The backend never asked {what}.{instead}")
        request = self._places[name]
        if recorded.kind == "authorization" and (cue.said is None or cue.said.decision != "deny"):
            # Nobody can answer a sign-in here.
            self._note(f"the request {prompt(request)} is done elsewhere: it is waited for")
            return
        if request.request_id not in self._live.state.interactions:
            self._note(f"the request {prompt(request)} was over before it was answered")
            return
        if cue.said is None:
            raise NotDriven(f"The {self._source} does not say how the request {what} was answered.")
        await self._give(self._answer_of(cue, recorded, request), f"answer {prompt(request)}")

    def _answer_of(
        self, cue: ReplayCue, recorded: ev.InteractionRequested, request: ev.InteractionRequested
    ) -> cmd.AnswerInteraction:
        said, answer = cue.said, cue.answer or ev.Answer()
        assert said is not None
        made = cmd.AnswerInteraction(request_id=request.request_id, reason=answer.reason)
        if request.thread_id != ev.MAIN:
            made = made.model_copy(update={"thread_id": request.thread_id})
        if said.skipped:
            return made.model_copy(update={"skip": True})
        if request.kind in ev.SEALED_KINDS:
            if not self.sealed:
                raise self._unsealed(request)
            return made.model_copy(update={"sealed": cmd.Sealed(self.sealed.pop(0))})
        if said.decision is not None:
            if request.kind == "question":
                option = option_for(request, _DECISIONS[said.decision])
                if option is None:
                    raise NotDriven(f"Nothing that is offered {prompt(request)} decides it.")
                return made.model_copy(update={"option_ids": (option.id,)})
            return made.model_copy(update={"decision": said.decision, "scope": cue.scope})
        labels = {option.id: option.label for option in recorded.options or ()}
        chosen = []
        for name in answer.option_ids:
            option = option_named(labels.get(name, name), request.options or ())
            if option is None:
                raise NotDriven(
                    f"The backend asks {prompt(request)} without the option "
                    f"`{labels.get(name, name)}`, which was chosen."
                )
            chosen.append(option.id)
        update = {
            "option_ids": tuple(chosen),
            "text": answer.text,
            "content": answer.content,
            "is_error": answer.is_error,
        }
        return made.model_copy(update=update)

    def _unsealed(self, request: ev.InteractionRequested) -> NotDriven:
        asks = f"The backend asks {prompt(request)}, and"
        if self.lasting:
            return NotDriven(f"{asks} the value that was given is not kept.")
        return NotDriven(
            f"{asks} a capture has no secrets: give the values in a file with --sealed."
        )

    async def _give(self, command: cmd.AnyCommand, what: str) -> None:
        row = self._live.row
        blobs = await self._files(command, what)
        try:
            ids = await self._live.submit(
                [command],
                by=row.owner,
                face=row.dialect,
                details={CUE: self._number} if self.lasting else None,
                blobs=blobs,
            )
        except DragomanError as error:
            raise NotDriven(f"The {what} cannot be given: {error.message}") from None
        self.tell(what)
        self.out.given += 1
        self._given.update(dict.fromkeys(ids, what))
        if isinstance(command, cmd.SendMessage):
            # It may wait for the turn to end.
            return
        await self._until(
            lambda: all(one in self._settled for one in ids) or self._at_rest, f"word of the {what}"
        )
        for one in ids:
            settled = self._settled.get(one)
            if settled is not None and settled.outcome != "taken":
                self._note(f"the {what} was {settled.outcome}: {settled.reason or 'no reason'}")

    async def _files(self, command: cmd.AnyCommand, what: str) -> dict[str, bytes]:
        """Return the files of a command, by the hash of their bytes.

        Raises:
            NotDriven: the journal does not have one.
        """
        assert self._sessions is not None
        out: dict[str, bytes] = {}
        for name in blobs_of(getattr(command, "content", None)):
            data = await self._sessions.journal.blob(name)
            if data is None:
                raise NotDriven(
                    f"The {what} has a file, and its bytes are not in the {self._source}."
                )
            out[name] = data
        return out
