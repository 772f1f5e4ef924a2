"""A Dragoman over one scripted backend of any dialect, and the eve clients in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.journal.base import Journal
from tests.support.dragoman import Backend, Dragoman
from tests.support.eve_client import EveClient, Form, Style
from tests.support.keys import credential

__all__ = ["Alone"]


class Alone(Dragoman):
    """One Dragoman over one scripted backend, which has the name of its dialect.

    Args:
        journal: a URL, or a journal that a restart finds again.
        dialect: what the backend speaks.
        options: arguments of the function that makes its application.
        table: further members of its table in the configuration.
        settings: further tables of the configuration.
        speed: how much faster than real time the proxy's clock runs.
    """

    def __init__(
        self,
        journal: str | Journal,
        *,
        dialect: str,
        options: Mapping[str, Any] | None = None,
        table: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        speed: float = 1.0,
    ) -> None:
        self.dialect = dialect
        backends = {dialect: Backend(dialect, options or {}, table or {})}
        super().__init__(journal, backends, settings=settings, speed=speed)

    @property
    def backend(self) -> Any:
        """The state of the scripted backend."""
        return self.scripted[self.dialect]

    @property
    def base(self) -> str:
        """Where an eve client finds the backend."""
        return self.face("eve", self.dialect)

    def eve(self, form: Form = "all", style: Style | None = None, **options: Any) -> EveClient:
        """A strict eve client; `options` are those of `eve_client`."""
        return self.eve_client(self.dialect, form, style, **options)

    async def lines(
        self, session_id: str, query: str = "follow=0", *, key: str | None = None
    ) -> list[bytes]:
        """The records of a bounded read by an eve client, as the bytes of their lines."""
        async with self.get(session_id, query, key=key) as response:
            assert response.status == 200, await response.text()
            body: bytes = await response.read()
        assert body.startswith(b"\n")
        assert body.endswith(b"\n")
        return body[1:].splitlines(keepends=True)

    def get(self, session_id: str, query: str, *, key: str | None = None) -> Any:
        """Open a session's stream as an eve client does."""
        url = f"{self.base}/eve/v1/session/{session_id}/stream?{query}"
        return self.http.get(url, headers=credential(key))
