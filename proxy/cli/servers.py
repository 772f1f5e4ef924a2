"""What the commands that look at sessions ask: a running server, or a journal's file."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol, TypeVar

import aiohttp
import click
import orjson
from yarl import URL

from adapters.wire.errors import DragomanError
from adapters.wire.url_paths import path_of
from proxy.base.errors import ConfigError, JournalUnavailable, SessionNotFound
from proxy.cli.naming import begins, chosen
from proxy.cli.printing import JsonObject, clean, fail
from proxy.journal.base import Journal

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8787"

REQUEST_SECONDS = 30.0
"""How long a client command waits for the server, which answers from its journal at once."""


_UNKNOWN = (400, 404)
"""The statuses of a server that has no session of a name, or none that could have it."""

_PASSING = frozenset({429, 502, 503, 504})
"""Statuses of a server that starts, stops or has too much to do, or of what stands before it."""


class Away(Exception):
    """A server does not answer now."""


class _Sink(Protocol):
    """What takes lines as they come."""

    def write(self, data: bytes, /) -> Any:
        """Take some."""


@dataclass(frozen=True, slots=True)
class ServerClient:
    """A running server and how to print what it says. `status` is that of the program where it
    fails, `named` how the server is named, `missing` what to do where there is no such session."""

    url: str
    key: str | None
    as_json: bool
    status: int = 1
    named: str = "with --url"
    missing: str = ""
    fail: Callable[..., NoReturn] = fail

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        """Return what the control API answers; exits with a sentence when it refuses."""
        status, data = asyncio.run(self._ask(method, path, query or {}, body))
        return self.read(status, data)

    def ask_of(
        self,
        method: str,
        session: str,
        *parts: str,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        """Return what the control API answers of a session, which is called as people call it."""

        def asked(id: str) -> tuple[int, bytes]:
            path = path_of(session_path(id), *parts)
            return asyncio.run(self._ask(method, path, query or {}, body))

        status, data = asked(session)
        if status in _UNKNOWN and (id := self.other_id(session)) is not None:
            status, data = asked(id)
        return self.read(status, data)

    def meant(self, name: str) -> JsonObject | None:
        """Return the session that people call so; exits where there are several."""
        if not name.isprintable():
            return None
        status, data = asyncio.run(self._ask("GET", "/sessions", {"name": name}, None))
        found = [] if status >= 400 else self.read(status, data)["sessions"]
        # A server of an earlier release lists whatever there is.
        return chosen(name, [one for one in found if self._is_called(one, name)], self._fail)

    def _is_called(self, session: JsonObject, name: str) -> bool:
        if session.get("title") == name or begins(session, name):
            return True
        return name in self.ask("GET", session_path(session["id"]))["aliases"]

    def other_id(self, name: str) -> str | None:
        """Return the id of a session that is called so and whose id is another."""
        session = self.meant(name)
        return None if session is None or session["id"] == name else str(session["id"])

    def attempt(self, method: str, path: str, *, body: JsonObject) -> tuple[int, JsonObject]:
        """Return the status and what the control API answers, also where it refuses."""
        status, data = asyncio.run(self._ask(method, path, {}, body))
        with contextlib.suppress(orjson.JSONDecodeError):
            answer = orjson.loads(data)
            if isinstance(answer, dict):
                return status, answer
        return status, self.read(status, data)

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: JsonObject | None
    ) -> tuple[int, bytes]:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = self._url(path).update_query(query)
        try:
            timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                # A redirect could lead the key elsewhere; the control API has none.
                session.request(
                    method,
                    url,
                    data=None if body is None else orjson.dumps(body),
                    allow_redirects=False,
                ) as response,
            ):
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._unreachable(error)

    def copy(self, path: str, out: _Sink) -> None:
        """Write the body of an answer, as it comes; a body that breaks off ends the program."""
        if (refused := asyncio.run(self._copy(path, out))) is not None:
            self._refused(*refused)

    def copy_of(self, session: str, out: _Sink) -> None:
        """Write the events of a session, which is called as people call it, as `copy` does."""
        refused = asyncio.run(self._copy(path_of(session_path(session), "events"), out))
        if refused is None:
            return
        if refused[0] not in _UNKNOWN or (id := self.other_id(session)) is None:
            self._refused(*refused)
        self.copy(path_of(session_path(id), "events"), out)

    def _refused(self, status: int, data: bytes) -> NoReturn:
        self.read(status, data)
        self._fail(f"what answers at {self.url} is not a Dragoman. Name another {self.named}.")

    async def _copy(self, path: str, out: _Sink) -> tuple[int, bytes] | None:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        last = b""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=REQUEST_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(self._url(path), allow_redirects=False) as response,
            ):
                if response.status != 200 or response.content_type != "application/x-ndjson":
                    return response.status, await response.read()
                async for data in response.content.iter_any():
                    *lines, last = (last + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b'{"version":'):
                            # No entry begins so: the server says why it breaks off.
                            self.read(500, line)
                        out.write(line + b"\n")
        except (aiohttp.ClientError, TimeoutError) as error:
            self._unreachable(error)
        if last:
            self._fail("the export broke off in the middle; try again.")
        return None

    async def lines(
        self, path: str, query: Mapping[str, str | Sequence[str]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an answer as they come, an empty one first, when it begins.

        Raises:
            Away: the server is gone, or cannot answer now; it may be back soon.
        """
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=REQUEST_SECONDS, connect=10)
        url = self._url(path).update_query(query)
        last = b""
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(url, allow_redirects=False) as response,
            ):
                if response.status != 200 or response.content_type != "application/x-ndjson":
                    data = await response.read()
                    if response.status in _PASSING:
                        raise Away(f"it answers with status {response.status}")
                    yield orjson.dumps(self.read(response.status, data))
                    return
                yield b""
                async for data in response.content.iter_any():
                    *lines, last = (last + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b'{"version":'):
                            # No entry begins so: the server says why it breaks off.
                            self._broke_off(line)
                        yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Away(self._why(error)) from error

    def _broke_off(self, line: bytes) -> NoReturn:
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):
            error = orjson.loads(line)["error"]
            if error["code"] in {"stopping", "overloaded", "journal_unavailable"}:
                raise Away(clean(str(error["message"])))
        self.read(500, line)
        raise Away("it breaks off")

    def _why(self, error: Exception) -> str:
        if isinstance(error, aiohttp.ClientConnectorError):
            return "nobody listens there"
        return clean("it does not answer" if isinstance(error, TimeoutError) else str(error))

    def _unreachable(self, error: Exception) -> NoReturn:
        self._fail(
            f"no server can be reached at {self.url}: {self._why(error)}. "
            f"Start one with `dragoman serve`, or name the one that runs {self.named}.",
            code="unreachable",
        )

    def send(
        self, path: str, lines: AsyncIterator[bytes], query: Sequence[tuple[str, str]]
    ) -> JsonObject:
        """Return what the control API answers to the lines of an archive."""
        return asyncio.run(self._send(path, lines, query))

    async def _send(
        self, path: str, lines: AsyncIterator[bytes], query: Sequence[tuple[str, str]]
    ) -> JsonObject:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        headers["Content-Type"] = "application/x-ndjson"
        # Nobody knows how long it takes to store them all.
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.post(
                    self._url(path).extend_query(query), data=lines, allow_redirects=False
                ) as response,
            ):
                status, data = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self._unreachable(error)
        return self.read(status, data)

    def _fail(self, message: str, *, code: str | None = None) -> NoReturn:
        self.fail(message, status=self.status, code=code)

    def _url(self, path: str) -> URL:
        with contextlib.suppress(ValueError):
            # Ids in the path are quoted already.
            url = URL(f"{self.url.rstrip('/')}/api/v1{path}", encoded=True)
            if url.scheme in {"http", "https"} and url.host:
                return url
        fail(f"`{clean(self.url)}` is not a URL: write --url like {DEFAULT_URL}", status=2)

    def read(self, status: int, data: bytes) -> JsonObject:
        """Return an answer as JSON; exits with a sentence when it is a refusal."""
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            self._fail(
                f"what answers at {self.url} with status {status} is not a Dragoman. "
                f"Name another {self.named}."
            )
        if status < 400:
            return answer
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        code = str(error["code"]) if isinstance(error, dict) and "code" in error else None
        if status == 401:
            message = f"{message or 'this needs a key.'} Give it with --key or DRAGOMAN_KEY."
        message = message or f"the server refuses with status {status}"
        if status == 404:
            message += self.missing
        self._fail(clean(str(message)), code=code)


def of_a_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a server; it gets them as one `server`."""

    @click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="DRAGOMAN_URL",
        show_default=True,
        show_envvar=True,
        help="The running server.",
    )
    @click.option("--key", envvar="DRAGOMAN_KEY", show_envvar=True, help="Your key, if it has any.")
    @click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, as the control API gives it."
    )
    @functools.wraps(command)
    def wrapper(url: str, key: str | None, as_json: bool, **arguments: Any) -> None:
        command(server=ServerClient(url, key, as_json), **arguments)

    return wrapper


@dataclass(frozen=True)
class JournalFile:
    """The journal of a server, read and changed as a file; whose sessions they are does not
    matter.
    """

    url: str
    as_json: bool
    status: int = 1
    missing: str = ""
    fail: Callable[..., NoReturn] = fail

    def ask(
        self, work: Callable[[Journal], Coroutine[Any, Any, T]], *, read_only: bool = True
    ) -> T:
        """Return what `work` gives; every other outcome ends the program."""
        from proxy.control import offline

        async def run() -> T:
            async with offline.opened(self.url, read_only=read_only) as journal:
                return await work(journal)

        try:
            return asyncio.run(run())
        except ConfigError as error:
            fail(error.whole, status=2, code=error.code)
        except JournalUnavailable as error:
            hint = "" if read_only else " Without --journal the running server is asked."
            message = clean(error.whole) + "." + hint
            self.fail(message, status=self.status, code=error.code)
        except SessionNotFound as error:
            message = clean(error.whole)
            if self.missing:
                message = f"{message.rstrip('.')}.{self.missing}"
            self.fail(message, status=self.status, code=error.code)
        except DragomanError as error:
            self.fail(clean(error.whole), status=self.status, code=error.code)

    def ask_of(
        self,
        session: str,
        work: Callable[[Journal, str], Coroutine[Any, Any, T]],
        *,
        read_only: bool = True,
    ) -> T:
        """Return what `work` gives for a session, which is called as people call it."""

        async def run(journal: Journal) -> T:
            try:
                return await work(journal, session)
            except SessionNotFound:
                found = await self._meant(journal, session)
                if found is None or found["id"] == session:
                    raise
            return await work(journal, str(found["id"]))

        return self.ask(run, read_only=read_only)

    def meant(self, name: str) -> JsonObject | None:
        """Return the session that people call so; exits where there are several."""
        return self.ask(lambda journal: self._meant(journal, name))

    async def _meant(self, journal: Journal, name: str) -> JsonObject | None:
        from proxy.control import offline

        found = (await offline.named(journal, name))["sessions"]
        return chosen(name, found, functools.partial(self.fail, status=self.status))


def of_sessions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a server or a journal's file; it gets a `source`."""

    @click.option(
        "--journal",
        metavar="FILE",
        help="Not a server but its journal: the file, or a URL like `sqlite:///dragoman.db`.",
    )
    @of_a_server
    @functools.wraps(command)
    def wrapper(server: ServerClient, journal: str | None, **arguments: Any) -> None:
        if journal is None:
            command(source=server, **arguments)
            return
        command(source=JournalFile(journal_url(journal), server.as_json), **arguments)

    return wrapper


def journal_url(journal: str) -> str:
    """Return the URL of a journal that is named by its file, or by that URL."""
    if "://" in journal or journal == "memory:":
        return journal
    return f"sqlite:///{Path(journal).absolute()}"


def session_path(session: str) -> str:
    """Return where the control API has a session."""
    return path_of("/sessions", session)


async def write_log(journal: Journal, session: str, out: BinaryIO, *, frames: bool) -> None:
    """Write the log of a session as lines, or the frames of its backends."""
    from proxy.control import offline

    export = offline.exported_frames if frames else offline.exported
    async for lines in export(journal, session):
        out.write(lines)
