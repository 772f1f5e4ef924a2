"""Strangers and other tenants at the door: mutated requests on every route with right and wrong
keys.

A real `dragoman serve` with scripted backends behind it, and vaults: backends that no key may use.
What is counted must be zero: answers of 5xx, requests that hang, answers that tell somebody else's
session from one that does not exist, words of an owner in other people's answers, requests that
reached a vault, errors in the log."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import posixpath
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote

from proxy.config.settings import Settings
from tests.asks import CALLBACKS, NAMES, OPEN, without_ids
from tests.proof.attack.requests import (
    BIG_EVERY,
    INJECTED,
    KEYS,
    Hit,
    Target,
    coded,
    draw,
    drawn_key,
    of_sessions,
    targets,
)
from tests.proof.attack.server import HANG_S, PATIENCE_S, Server, Watch, tables
from tests.proof.attack.vault import CREDENTIAL, Vault, vault
from tests.proof.attack.wire import Answer
from tests.proof.backends import DIALECTS, Backends
from tests.support.ports import HOST

__all__ = ["Attack", "names_session", "shown", "unnamed"]

AT_ONCE = 16
"""Requests under way at a time: more than two cores answer, few enough that none waits long."""

HALF_S = 1.0
"""How long the answer to a request that is not whole is waited for: most get none."""

NAMES_EVERY = 250
"""After so many requests the owner has new sessions: the old ones are answered, reset or
deleted."""

DEADLINE_S = 10.0
"""How long the server is told to wait for the rest of a body: a machine that does much
else takes seconds to send what is whole."""

MEMORY_BYTES = 256 * 2**20
"""How much more than at its start the process may hold: large bodies come one after the other."""

APART_EVERY = 4
"""One request in so many of another tenant is asked twice: for the owner's session and for none."""

OWNER, FOREIGN, LIMITED = "k-owner", "k-foreign", "k-limited"


class Attack:
    """One run.

    Args:
        seed: what everything drawn follows from.
        goal: how many requests.
        seconds: when it stops at the latest.
        folder: where journal and log are.
        progress: hears a line now and then.
    """

    def __init__(
        self,
        seed: int,
        goal: int,
        seconds: float,
        folder: Path,
        progress: Callable[[str], None],
    ) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._goal = goal
        self._seconds = seconds
        self._folder = folder
        self._progress = progress
        self._next = 0
        self._begun = self._said = 0.0
        # Words that only the owner may ever see again.
        self._canary = f"canary{secrets.token_hex(8)}"
        self._names: dict[str, dict[str, str]] = {}
        self._kept: dict[str, dict[str, str]] = {}
        self._vaults: list[Vault] = []

    async def run(self) -> None:
        """Attack; afterwards `counts` and `wrong` say what came of it."""
        # Nothing but the routes is asked of these settings.
        self._targets = targets(Settings.model_validate({"journal": {"url": "memory:"}}))
        self._of_sessions = frozenset(of_sessions(self._targets))
        async with contextlib.AsyncExitStack() as stack:
            backends = await stack.enter_async_context(Backends(0.0))
            for dialect in DIALECTS:
                self._vaults.append(await stack.enter_async_context(vault(dialect)))
            self._server = await stack.enter_async_context(
                Server(
                    self._folder,
                    self._tables(backends),
                    f"body_timeout_seconds = {DEADLINE_S}",
                )
            )
            self._kept = await self._sessions()
            self._names = await self._sessions()
            async with Watch(self._server) as self._watch:
                self._begun = self._said = time.monotonic()
                async with asyncio.TaskGroup() as group:
                    for _ in range(AT_ONCE):
                        group.create_task(self._attacker())
            self._judge()

    def _tables(self, backends: Backends) -> str:
        (self._folder / "credential").write_text(CREDENTIAL)
        own = [
            {
                "name": f'"{name}"',
                "dialect": f'"{name}"',
                "url": f'"http://{HOST}:{backends.ports[name]}"',
            }
            for name in DIALECTS
        ]
        own[DIALECTS.index("herm")]["create"] = '{ agent = "agent_K4" }'
        own += [
            {
                "name": f'"vault-{one.dialect}"',
                "dialect": f'"{one.dialect}"',
                "url": f'"http://{HOST}:{one.port}"',
                "auth": f'{{ bearer_file = "{self._folder / "credential"}" }}',
            }
            for one in self._vaults
        ]
        open_to = {"owner": DIALECTS, "foreign": DIALECTS, "limited": ("eve",)}
        return tables(
            own,
            (
                f'name = "{name}"\nsha256 = "{hashlib.sha256(KEYS[name] or b"").hexdigest()}"\n'
                f"backends = {list(backends)}"
                for name, backends in open_to.items()
            ),
        )

    async def _sessions(self) -> dict[str, dict[str, str]]:
        """Make a session of the owner on each backend, which waits for an answer; return what their
        routes want to know."""
        found = {}
        for dialect in DIALECTS:
            made = await self._server.call(
                "POST",
                f"/as/eve/to/{dialect}/eve/v1/session",
                OWNER,
                {"message": f"{self._canary}\nscript: approve"},
            )
            found[dialect] = {"session": made["sessionId"], "request": "r-1", "input": "c-1"}
        listed = await self._server.call("GET", "/api/v1/interactions", OWNER)
        for one in listed["interactions"]:
            for names in found.values():
                if names["session"] == one["session_id"]:
                    names["request"] = one["request_id"]
        return found

    async def _attacker(self) -> None:
        while self._next < self._goal and time.monotonic() - self._begun < self._seconds:
            number = self._next
            self._next += 1
            if number % NAMES_EVERY == NAMES_EVERY - 1:
                self._names = await self._sessions()
            await self._one(random.Random(f"attack:{self.seed}:{number}"), number)
            if time.monotonic() - self._said > 10:
                self._said = time.monotonic()
                took = self._said - self._begun
                self._progress(
                    f"attack: {self.counts['requests']} of {self._goal}, {took:.0f} s, "
                    f"{len(self.wrong)} complaints"
                )

    async def _one(self, source: random.Random, number: int) -> None:
        target, key = source.choice(self._targets), drawn_key(source)
        route = source.choice((*DIALECTS, *DIALECTS, "vault-eve", "vault-herm", "nowhere"))
        names = self._filled(route, self._names.get(route), source)
        big = key == "owner" and number % BIG_EVERY == 0
        hit = draw(target, key, names, source, big=big)
        answer = await self._asked(hit)
        self._judge_answer(hit, answer)
        apart = key == "foreign" and route in self._kept and target in self._of_sessions
        if apart and number % APART_EVERY == 0:
            await self._tell_apart(target, route, source)

    def _filled(
        self, route: str, own: Mapping[str, str] | None, source: random.Random
    ) -> dict[str, str]:
        agent = source.choice(("agent_K4", route))
        return {**NAMES, "route": route, "agent": agent, **(own or {})}

    async def _tell_apart(self, target: Target, route: str, source: random.Random) -> None:
        """Ask, as another tenant, for the owner's session and for one that does not exist."""
        # An Engine's frontend names its sessions: from then on the other tenant has one by that
        # name, so that it is good for one question only, and whatever else the request has in it
        # is of that session.
        names_it = target.path.endswith("/execute")
        kept = await self._sessions() if names_it else self._kept
        theirs = self._filled(route, kept[route], source)
        # A new one each time: an Engine's frontend names its sessions, and would have made it.
        name = "dgs_" + "".join(source.choices("0123456789abcdefghjkmnpqrstvwxyz", k=26))
        nobodys = {**theirs, "session": name}
        seed = source.random()
        seen = []
        for names in (theirs, nobodys):
            hit = draw(target, "foreign", names, random.Random(seed), plain=names_it)
            if not names_session(hit.data(), names["session"]):
                # What was drawn has left the session out: it asks for something of the tenant's
                # own, which changes from one answer to the next.
                return
            # Both get their answer, be it that of the deadline: no answer says nothing.
            answer = await self._asked(hit, PATIENCE_S)
            seen.append(shown(answer, names["session"]))
            self._judge_answer(hit, answer)
        self.counts["told apart, asked"] += 1
        if seen[0] != seen[1]:
            self._complain("told apart", hit, f"{seen[0]} and {seen[1]}")

    async def _asked(self, hit: Hit, half: float = HALF_S) -> Answer:
        data = hit.data()
        self.counts["requests"] += 1
        if not hit.whole:
            return await self._server.ask(data, half)
        for _ in range(2):
            answer = await self._server.ask(data, PATIENCE_S)
            if answer.status != -1 and answer.seconds <= HANG_S:
                return answer
        self._complain("hangs", hit, f"{answer.seconds:.1f} s")
        return answer

    def _judge_answer(self, hit: Hit, answer: Answer) -> None:
        self.counts[f"status {answer.status}"] += 1
        overloaded = answer.status == 503 and "retry-after" in answer.headers
        if answer.status >= 500 and answer.status != 501 and not overloaded:
            self._complain("failures", hit, f"{answer.status} {answer.body[:200]!r}")
        if hit.key != "owner" and self._canary.encode() in answer.body:
            self._complain("leaked", hit, "an owner's words")
        if 0 < answer.status < 400 and hit.key in ("wrong", "none") and not _open(hit):
            self._complain("let in", hit, f"{answer.status} {answer.body[:200]!r}")
        broken = any("\n" in value or "\r" in value for value in answer.headers.values())
        if broken or INJECTED in answer.headers:
            self._complain("forged headers", hit, str(answer.headers))

    def _complain(self, figure: str, hit: Hit, what: str) -> None:
        self.counts[figure] += 1
        if len(self.wrong) < 100:
            begin = hit.data()[:500].decode("latin-1")
            self.wrong.append(f"{figure}: {hit.target} as {hit.key}: {what}; {begin!r}")

    def _judge(self) -> None:
        counts = self.counts
        for one in self._vaults:
            counts["vault arrivals"] += one.arrived
            counts["broken into"] += len(one.broken_into)
            self.wrong += [f"broken into {one.dialect}: {head!r}" for head in one.broken_into[:20]]
        self._watch.judge(counts, self.wrong, MEMORY_BYTES)
        self._server.judge(counts, self.wrong)


_PATHS = (re.sub(r"\\{\w+\\}", "[^/]*", re.escape(path)) for path in (*OPEN, *CALLBACKS))
_OPEN = re.compile(f"(?:/as/[^/]+/to/[^/]+)?(?:{'|'.join(_PATHS)})")


def shown(answer: Answer, name: str) -> tuple[int, Mapping[str, str], str]:
    """Return what tells two answers apart: all but the time, the trace, and the name that was
    asked for."""
    headers = {
        header: unnamed(value.encode("latin-1"), name)
        for header, value in answer.headers.items()
        if header not in ("date", "traceparent")
    }
    return answer.status, headers, unnamed(answer.body, name)


def unnamed(body: bytes, name: str) -> str:
    """Return an answer without the name that was asked for, as it may quote that."""
    for written in _written(name):
        body = body.replace(written, b"NAME")
    return without_ids(body.decode("utf-8", "replace"))


def names_session(request: bytes, name: str) -> bool:
    """Say whether a request names a session."""
    return any(written in request for written in _written(name))


def _written(name: str) -> tuple[bytes, bytes]:
    """Return how requests have a name: plain, and each character by its code."""
    return name.encode(), coded(name.encode())


def _open(hit: Hit) -> bool:
    """Say whether everybody may ask this: it is an open path, whole, once dots are taken away."""
    path = re.sub("/+", "/", unquote(hit.path.decode("latin-1")))
    return _OPEN.fullmatch(posixpath.normpath(path)) is not None
