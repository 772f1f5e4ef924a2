"""Routes that are made at the first request for one: a part that nobody asks for stays out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from yarl import URL


class LazyRoutes(web.AbstractResource):
    """All paths below `prefix`, which is one without variables.

    At the first request `load` imports what answers them, off the loop, and then `add` adds their
    routes, with whole paths, to a router of their own. A path without a route is looked for among
    the other resources of the application.
    """

    def __init__(
        self, prefix: str, load: Callable[[], object], add: Callable[[web.UrlDispatcher], None]
    ) -> None:
        super().__init__()
        self._prefix = prefix
        self._load = load
        self._add = add
        self._router: web.UrlDispatcher | None = None

    @property
    def canonical(self) -> str:
        """Return what all paths begin with."""
        return self._prefix

    @property
    def router(self) -> web.UrlDispatcher:
        """Return what knows the routes; it is made once."""
        if self._router is None:
            router = web.UrlDispatcher()
            self._add(router)
            router.freeze()
            self._router = router
        return self._router

    async def resolve(
        self, request: web.Request
    ) -> tuple[web.UrlMappingMatchInfo | None, set[str]]:
        """Return the route of a request, or None, and the methods that its path
        has."""
        router = self._router
        if router is None:
            await asyncio.to_thread(self._load)
            router = self.router
        match = await router.resolve(request)
        refusal = match.http_exception
        if refusal is None:
            return match, set()
        return None, set(getattr(refusal, "allowed_methods", ()))

    def __len__(self) -> int:
        return len(self.router.routes())

    def __iter__(self) -> Iterator[web.AbstractRoute]:
        return iter(self.router.routes())

    def raw_match(self, path: str) -> bool:
        """Say that no route can be added to it."""
        return False

    def get_info(self) -> Any:
        """Return what aiohttp shows of it."""
        return {"prefix": self._prefix}

    def url_for(self, **parts: str) -> URL:
        """Refuse, as aiohttp does for a route without an address of its own.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"the routes below `{self._prefix}` have many addresses")

    def add_prefix(self, prefix: str) -> None:
        """Refuse: its routes are added with whole paths.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"the routes below `{self._prefix}` cannot be moved below `{prefix}`")
