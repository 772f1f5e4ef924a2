"""One person in front of any dialect: what they do, and what they are asked."""

from __future__ import annotations

import abc
import base64
import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["Ask", "Person", "Picture"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A file that a person sends along."""

    media_type: str
    data: bytes

    @property
    def base64(self) -> str:
        """Return the bytes as requests carry them."""
        return base64.b64encode(self.data).decode()


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that the agent waits for, as a person sees it.

    `kind` is the dialect's own word, `options` are ids and labels; `approval` says that a yes or a
    no is wanted.
    """

    id: str
    kind: str
    prompt: str = ""
    options: tuple[tuple[str, str], ...] = ()
    about: str = ""
    approval: bool = False

    def option(self, label: str) -> str:
        """Return the id of the option with this label or id."""
        return next(id_ for id_, name in self.options if label in (id_, name))

    @property
    def labels(self) -> list[str]:
        """Return what a person can choose from."""
        return [label for _, label in self.options]


class Person(abc.ABC):
    """A person with one session in front of them.

    Whatever they do goes over the wire as the dialect's own clients send it, through its strict
    client of `tests.support`. Where a dialect has no request for something, the method sends what a
    person who tries anyway would send, and the answer is a refusal like any other.

    Args:
        http: the HTTP client to use.
        url: the base URL of the face.
    """

    dialect: str

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    def doing(self, *, works: bool = True) -> AbstractAsyncContextManager[Any]:
        """Return what every request is done in; `works` says that the agent works after it."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    async def say(
        self,
        text: str,
        *,
        files: Sequence[Picture] = (),
        schema: dict[str, Any] | None = None,
        policy: str | None = None,
    ) -> None:
        """Send a message; return when the face has accepted it."""

    @abc.abstractmethod
    async def confirm(
        self, ask: Ask, yes: bool, *, reason: str | None = None, scope: str | None = None
    ) -> None:
        """Answer an approval."""

    @abc.abstractmethod
    async def mumble(self, ask: Ask) -> None:
        """Answer an approval with a word that is not an answer to it."""

    @abc.abstractmethod
    async def choose(self, ask: Ask, label: str) -> None:
        """Answer with an option."""

    @abc.abstractmethod
    async def write(self, ask: Ask, text: str) -> None:
        """Answer a question with words."""

    async def answer(self, ask: Ask, yes: bool) -> None:
        """Answer whatever is asked: yes or no, the first option, a word."""
        if ask.approval:
            await self.confirm(ask, yes)
        elif ask.options:
            await self.choose(ask, ask.labels[0])
        else:
            await self.write(ask, "Basil")

    @abc.abstractmethod
    async def skip(self, ask: Ask) -> None:
        """Leave a question unanswered, and say so."""

    @abc.abstractmethod
    async def give(self, ask: Ask, result: str, *, failed: bool = False) -> None:
        """Give the result of a tool that the application runs."""

    @abc.abstractmethod
    async def reveal(self, ask: Ask, value: str) -> None:
        """Give a secret or a password."""

    @abc.abstractmethod
    async def decline(self, ask: Ask) -> None:
        """Refuse to give a secret or a password, or call off a sign-in."""

    @abc.abstractmethod
    async def steer(self, text: str) -> None:
        """Guide the running work."""

    @abc.abstractmethod
    async def interrupt(self, note: str | None = None) -> None:
        """Stop the running turn; the note goes along where the dialect has a place for it."""

    @abc.abstractmethod
    async def control(self, name: str) -> None:
        """`compact`, `clear`, `reset`, `archive` or `delete` the session."""

    @abc.abstractmethod
    async def rename(self, title: str) -> None:
        """Give the session a title."""
