"""The sessions of `dragoman migrate move` and `rollback`, one after the other, in waves.

What a move does is the server's; here is in which order sessions move, when it stops, and what is
said at the end. Nothing is kept between two commands: who has moved is asked of the server, so that
the same command goes on where one was killed.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import click
import orjson

from adapters.wire.errors import ErrorCode
from adapters.wire.url_paths import path_of
from proxy.cli import printing
from proxy.cli.asked import command_lines, without_password
from proxy.cli.printing import JsonObject, clean, fail, print_json, print_rows, progress
from proxy.cli.servers import DEFAULT_URL, ServerClient, session_path

FIRST_WAVES = (10, 100)
"""How many sessions the first waves have; the next one has all others."""

PAGE = "1000"
"""Sessions that are asked for at once where only their rows are read."""

TURNS_PAGE = "100"
"""Sessions that are asked for at once where their logs are read."""

_QUOTED = re.compile("`[^`]*`")
"""What differs between the refusals of two sessions for one reason: their ids, and those of what
is open in them."""

_SERVER_GOES = {ErrorCode.STOPPING, ErrorCode.JOURNAL_UNAVAILABLE}
"""Refusals that are those of all sessions, until the server is well again."""


@dataclasses.dataclass(frozen=True, slots=True)
class MoveOrder:
    """Sessions that are to go on elsewhere, by a POST of `body` to `how` of each.

    `target` has where each goes, as far as that is known before, and `there` counts those that an
    earlier command brought there. `turns` is the query for the sessions whose turns may stop it,
    None where none may. `again` and `back` are the words of the commands that go on and take it
    back; `back` gets the sessions.
    """

    how: str
    names: Sequence[str]
    body: JsonObject
    wait: float
    there: int
    target: Mapping[str, str]
    turns: Mapping[str, str] | None
    again: Sequence[str]
    back: Callable[[Sequence[str]], Sequence[str]] | None

    @property
    def dry_run(self) -> bool:
        """Say whether nothing is to move."""
        return bool(self.body["dry_run"])


def to_move(
    server: ServerClient,
    names: Sequence[str],
    source: str,
    target: str,
    *,
    dry_run: bool,
    wait: float,
) -> MoveOrder:
    """Return the order to move the sessions `names`, or all, from one backend to another."""
    between = {"from": source, "to": target}
    everything = not names
    there = 0
    if everything:
        names = [str(one["id"]) for one in _rows(server, "sessions", {"from": source})]
        there = sum(1 for _ in _rows(server, "moved", between))

    which = ["--all"] if everything else names

    def back(moved: Sequence[str]) -> Sequence[str]:
        return ["rollback", *(["--all", "--from", target] if everything else moved)]

    return MoveOrder(
        how="move",
        names=names,
        body={**between, "dry_run": dry_run},
        wait=wait,
        there=there,
        target=dict.fromkeys(names, target),
        turns=None if dry_run else between,
        again=["move", *which, "--from", source, "--to", target, *_waiting(wait)],
        back=back,
    )


def to_roll_back(
    server: ServerClient, names: Sequence[str], source: str, *, dry_run: bool, wait: float
) -> MoveOrder:
    """Return the order to take back the last moves of the sessions `names`, or of all that moved to
    a backend. It is the way out: that turns fail where they go back to does not stop it."""
    everything = not names
    target: dict[str, str] = {}
    there = 0
    if everything:
        moved = _rows(server, "moved", {"to": source})
        target = {str(one["id"]): str(one["back"]) for one in moved if one["back"] is not None}
        names = list(target)
        there = sum(one["taken_back"] for one in _rows(server, "moved", {"from": source}))
    which = ["--all", "--from", source] if everything else names
    return MoveOrder(
        how="rollback",
        names=names,
        body={"dry_run": dry_run},
        wait=wait,
        there=there,
        target=target,
        turns=None,
        again=["rollback", *which, *_waiting(wait)],
        back=None,
    )


def _rows(server: ServerClient, what: str, query: Mapping[str, str]) -> Iterator[JsonObject]:
    """Yield what the server lists of sessions that can move, or that have moved."""
    for page in _pages(server, what, {"limit": PAGE, **query}):
        yield from page["sessions"]


def _pages(server: ServerClient, what: str, query: Mapping[str, str]) -> Iterator[JsonObject]:
    while True:
        page = server.ask("GET", f"/migration/{what}", query=query)
        yield page
        if page.get("next") is None:
            return
        query = {**query, "before": str(page["next"])}


def _waiting(seconds: float) -> list[str]:
    return ["--wait", f"{seconds:g}s"] if seconds else []


class _MovesStopped(Exception):
    """No further session moves; `code` is that of the error, if there is one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class _Waves:
    """One command: what was answered of each session so far, and how turns went meanwhile."""

    def __init__(self, server: ServerClient, order: MoveOrder, told: Callable[..., None]) -> None:
        self._server = dataclasses.replace(server, fail=_stopped)
        self._order = order
        self._told = told
        self.answers: dict[str, JsonObject] = {}
        self._not_ready: dict[str, JsonObject] = {}
        self._turns: dict[str, JsonObject] = {}
        self._since, self._looked = 0, 0
        self.stopped: _MovesStopped | None = None

    def go(self) -> None:
        """Move the sessions, those that are at work again and again, until all have moved, their
        time is over, or something says no."""
        try:
            self._go()
        except _MovesStopped as stopped:
            self.stopped = stopped
        except KeyboardInterrupt:
            self.stopped = _MovesStopped("interrupted.")

    def _go(self) -> None:
        until = time.monotonic() + self._order.wait
        self._look()
        left = list(self._order.names)
        while left:
            for wave in _in_waves(left):
                self._check_turns()
                for name in wave:
                    self._told("moving", len(self.answers), len(self._order.names))
                    self.answers[name] = self._move(name)
                self._look()
            left = [name for name in left if _code(self.answers[name]) == ErrorCode.BUSY]
            if not left or time.monotonic() >= until:
                return
            time.sleep(1.0)

    def _move(self, name: str) -> JsonObject:
        """Return what the server says to the move of a session, or what it said of a backend that
        is not ready: one that hangs is waited for once."""
        order = self._order
        target = order.target.get(name)
        if target is not None and target in self._not_ready:
            return self._not_ready[target]
        path = path_of(session_path(name), order.how)
        status, answer = self._server.attempt("POST", path, body=order.body)
        code = _code(answer)
        if status == 401 or code in _SERVER_GOES:
            self._server.read(status, orjson.dumps(answer))
        if target is not None and code == ErrorCode.BACKEND_NOT_READY:
            self._not_ready[target] = answer
            if order.how == "move" and not any(one.get("moved") for one in self.answers.values()):
                error = answer["error"]
                raise _MovesStopped(
                    f"{clean(str(error['message']))} Nothing has moved.", error["code"]
                )
        return answer

    def _look(self) -> None:
        """Ask how turns went since the command began, of the sessions that changed since the last
        look."""
        if self._order.turns is None:
            return
        query = {**self._order.turns, "limit": TURNS_PAGE}
        if self._since:
            # An event may be found in the journal a little later than at its time.
            changed = max(self._since, self._looked - 1000)
            query |= {"since": str(self._since), "changed": str(changed)}
        looked = 0
        for page in _pages(self._server, "moved", query):
            looked = looked or int(page["at"])
            self._turns |= {str(one["id"]): one for one in page["sessions"]}
        self._since, self._looked = self._since or looked, looked

    def _check_turns(self) -> None:
        if self.failed.total() > self.succeeded:
            raise _MovesStopped(f"more turns failed at `{self._order.body['to']}` than succeeded.")

    @property
    def succeeded(self) -> int:
        """Return how many turns succeeded since the command began."""
        return sum(one["succeeded"] for one in self._turns.values())

    @property
    def failed(self) -> Counter[str]:
        """Return how many turns failed since the command began, by the reason."""
        out: Counter[str] = Counter()
        for one in self._turns.values():
            out.update(one["failed"])
        return out


def _stopped(message: str, *, status: int = 1, code: str | None = None) -> NoReturn:
    raise _MovesStopped(message, code)


def _in_waves(names: Sequence[str]) -> Iterator[Sequence[str]]:
    begin = 0
    for size in FIRST_WAVES:
        yield names[begin : begin + size]
        begin += size
        if begin >= len(names):
            return
    yield names[begin:]


def _code(answer: JsonObject) -> object:
    error = answer.get("error")
    return error.get("code") if isinstance(error, dict) else None


def run(server: ServerClient, order: MoveOrder) -> NoReturn:
    """Carry out an order and print what came of it; exits with 0 only if all sessions are there."""
    with progress(shown=printing.on_terminal() and not server.as_json) as told:
        waves = _Waves(server, order, told)
        waves.go()
    if waves.stopped is not None and not any(one.get("moved") for one in waves.answers.values()):
        fail(str(waves.stopped), code=waves.stopped.code)
    summary = _summary(server, order, waves)
    if server.as_json:
        sessions = [{"id": name, **answer} for name, answer in waves.answers.items()]
        print_json({"sessions": sessions, "summary": dataclasses.asdict(summary)})
    else:
        _print_moves(waves.answers, dry=order.dry_run)
        for line in summary.lines(dry=order.dry_run):
            for shown in _fitting(line) if printing.on_terminal() else [line]:
                click.echo(shown, err=True)
    sys.exit(0 if summary.done == summary.sessions else 1)


@dataclasses.dataclass(frozen=True, slots=True)
class _RefusalCount:
    """How many sessions were refused for one reason; what differs in it is left out."""

    why: str
    sessions: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Summary:
    """What came of all `sessions`: `done` are those that `moved`, or would, and that were `there`
    already; `left` were not tried. `turns_failed` counts turns since the command began, by the
    reason. `go_on` and `take_back` are commands, None where there is nothing for them to do."""

    sessions: int
    done: int
    moved: int
    there: int
    left: int
    refused: list[_RefusalCount]
    turns_succeeded: int
    turns_failed: dict[str, int]
    stopped: str | None
    go_on: str | None
    take_back: str | None

    def lines(self, *, dry: bool) -> Iterator[str]:
        """Yield it for people."""
        if self.stopped is not None:
            yield f"stopped: {clean(self.stopped)}"
        if self.turns_succeeded or self.turns_failed:
            reasons = ", ".join(f"{count} {why}" for why, count in self.turns_failed.items())
            failed = f"{sum(self.turns_failed.values())} failed"
            if reasons:
                failed += f" ({clean(reasons)})"
            yield f"turns meanwhile: {self.turns_succeeded} succeeded, {failed}"
        counts = (
            (0 if dry else self.moved, "moved"),
            (self.there, "there already"),
            (sum(one.sessions for one in self.refused), "refused"),
            (self.left, "left"),
        )
        said = ", ".join(f"{count} {what}" for count, what in counts if count)
        done = f"{self.moved} of {self.sessions} would move"
        if not dry:
            done = f"{self.done} of {self.sessions} done"
        yield f"{done}: {said}" if said else done
        if self.go_on is not None:
            yield f"go on: {self.go_on}"
        if self.take_back is not None:
            yield f"take back: {self.take_back}"


def _summary(server: ServerClient, order: MoveOrder, waves: _Waves) -> _Summary:
    answers = waves.answers
    fine = {name: answer for name, answer in answers.items() if "error" not in answer}
    there = order.there + sum(one["before"] == one["backend"] for one in fine.values())
    sessions, done = len(order.names) + order.there, len(fine) + order.there
    back = order.back(list(fine)) if order.back is not None and done else None
    again = order.again if done < sessions else None
    return _Summary(
        sessions=sessions,
        done=done,
        moved=done - there,
        there=there,
        left=len(order.names) - len(answers),
        refused=[_RefusalCount(why, len(of)) for why, of in _refusals(answers).items()],
        turns_succeeded=waves.succeeded,
        turns_failed=dict(waves.failed.most_common()),
        stopped=None if waves.stopped is None else str(waves.stopped),
        go_on=None if again is None or order.dry_run else _command(server, again),
        take_back=None if back is None or order.dry_run else _command(server, back),
    )


def _fitting(line: str) -> Iterator[str]:
    """Yield a line of the summary as a terminal is wide: a command can be copied as it stands."""
    what, colon, command = line.partition(": ")
    if what not in ("go on", "take back"):
        yield line
        return
    columns = shutil.get_terminal_size().columns
    yield from command_lines(shlex.split(command), columns, what + colon)


def _command(server: ServerClient, words: Iterable[str]) -> str:
    where = [] if server.url.rstrip("/") == DEFAULT_URL else ["--url", without_password(server.url)]
    return clean(" ".join(map(shlex.quote, ["dragoman", "migrate", *words, *where])))


def _refusals(answers: Mapping[str, JsonObject]) -> dict[str, dict[str, str]]:
    """Return the refusals by what is alike in them: why each session was refused."""
    out: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, answer in answers.items():
        if "error" in answer:
            why = str(answer["error"].get("message"))
            out[_QUOTED.sub("`…`", why)][name] = why
    return out


def _print_moves(answers: Mapping[str, JsonObject], *, dry: bool) -> None:
    """Print a row for each session that moved, and one for all that are refused for one reason."""
    columns = ("session", "before", "backend", "status", "goes over")
    rows = [_moved_row(one, dry=dry) for one in answers.values() if "error" not in one]
    refused = [_refused_row(why, of) for why, of in _refusals(answers).items()]
    print_rows(columns, [*rows, *refused])
    notices = (notice for one in answers.values() for notice in one.get("notices", ()))
    for line in (*dict.fromkeys(notices), *_carried_lines(answers.values())):
        click.echo(clean(line), err=True)


def _moved_row(answer: JsonObject, *, dry: bool) -> list[object]:
    there = answer["before"] == answer["backend"]
    status = "there already" if there else "would move" if dry else "moved"
    counts: Counter[str] = Counter()
    for one in answer["history"]:
        counts[one["fidelity"]] += one["count"]
    over = ", ".join(f"{count} {fidelity}" for fidelity, count in sorted(counts.items()))
    return [answer["id"], answer["before"], answer["backend"], status, over or None]


def _refused_row(alike: str, whys: Mapping[str, str]) -> list[object]:
    """Return the row of sessions whose refusals are alike but for what is quoted in them."""
    names, texts = list(whys), set(whys.values())
    if len(names) == 1:
        return [names[0], None, None, whys[names[0]], None]
    some = ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
    why = alike if len(texts) > 1 else texts.pop()
    return [f"{len(names)} sessions", None, None, f"{why} ({some})", None]


def _carried_lines(answers: Iterable[JsonObject]) -> list[str]:
    """Say of all sessions together what does not go over as it was."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for answer in answers:
        for one in answer.get("history", ()):
            if one["fidelity"] != "exact":
                counts[one["fidelity"], one["what"], one["why"]] += one["count"]
    return [
        f"{fidelity}: {count} {what}: {why}"
        for (fidelity, what, why), count in sorted(counts.items())
    ]
