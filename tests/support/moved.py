"""A second installation of Dragoman, over the scripted backends of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.journal.base import Journal
from tests.support.dragoman import Dragoman
from tests.support.houses import HermAndEngine

__all__ = ["Another"]


class Another(HermAndEngine):
    """A Dragoman before the backends of another one.

    Args:
        journal: a URL, or a journal that a restart finds again.
        first: whose backends they are.
        names: how these are called here, where that is different.
        options: further arguments of `HermAndEngine`.
    """

    def __init__(
        self,
        journal: str | Journal,
        *,
        first: Dragoman,
        names: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(journal, **options)
        names = names or {}
        self._first = first
        self._of = {names.get(name, name): name for name in first.backends}
        self.backends = {name: first.backends[of] for name, of in self._of.items()}

    async def start_backend(self, name: str) -> None:
        """Take the one that runs."""
        self.scripted[name] = self._first.scripted[self._of[name]]

    def backend_url(self, name: str) -> str:
        """The address of a backend."""
        return self._first.backend_url(self._of[name])
