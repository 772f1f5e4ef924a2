"""The shares of routes: to which backends the new sessions of each go. The configuration says it,
until it is set at run time; what was set is stored and holds over a restart."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.rows import ShareRow
from proxy.config.settings import Settings, Share
from proxy.journal.base import Journal

_log = logging.getLogger(__name__)


class ShareProblem(NamedTuple):
    """What is wrong with shares, and where: `backends.1.name`."""

    place: str
    why: str


@dataclasses.dataclass(slots=True, eq=False)
class Shares:
    """The shares of now, of every route."""

    settings: Settings
    _set: dict[str, tuple[Share, ...]] = dataclasses.field(default_factory=dict, init=False)
    # How often something was set here.
    _changes: int = dataclasses.field(default=0, init=False)

    def of(self, route: str) -> Sequence[Share]:
        """Return the shares of a route, those of weight 0 included.

        Raises:
            DragomanError: there is no such route.
        """
        configured = self.configured(route)
        return self._set.get(route, configured)

    def configured(self, route: str) -> Sequence[Share]:
        """Return the shares of a route in the configuration.

        Raises:
            DragomanError: there is no such route.
        """
        found = self.settings.route(route)
        if found is None:
            raise DragomanError(f"There is no route `{route[:80]}`.", code=ErrorCode.NOT_FOUND)
        return found.backends

    def taking(self, route: str) -> Sequence[Share]:
        """Return the shares of a route that get new sessions.

        Raises:
            DragomanError: there is no such route.
        """
        return [share for share in self.of(route) if share.weight]

    def is_set(self, route: str) -> bool:
        """Say whether the shares of a route were set at run time."""
        return route in self._set

    def use(self, settings: Settings) -> None:
        """Take another configuration. Shares set at run time that it does not allow hold no more;
        `load` drops them from the journal and says so."""
        self.settings = settings
        for route, shares in list(self._set.items()):
            if any(self._problems(route, shares)):
                del self._set[route]

    async def load(self, journal: Journal) -> None:
        """Take up what was set before, at the start and after a reload. Shares that the
        configuration does not allow any more are dropped, which is logged; they stay in a journal
        that others share, whose configuration may be another.

        Raises:
            JournalError: the journal cannot be read or written.
        """
        rows = await journal.shares()
        for route, shares in _by_route(rows):
            problem = next(self._problems(route, shares), None)
            if problem is None:
                self._set[route] = shares
                continue
            _log.warning(
                "the shares of route `%s` that were set at run time, %s, hold no more: %s Those of "
                "the configuration hold until it is set again",
                *(route, _text(shares), problem.why),
            )
            if journal.shared is None:
                await journal.keep_shares(route, ())

    async def follow(self, journal: Journal) -> None:
        """Take up what other processes that share the journal have set or reset.

        Raises:
            JournalError: the journal cannot be read.
        """
        changes = self._changes
        rows = await journal.shares()
        if changes != self._changes:
            # What was read may be older than what was set here meanwhile.
            return
        found = {
            route: shares
            for route, shares in _by_route(rows)
            # The configuration of who has set them may be another.
            if not any(self._problems(route, shares))
        }
        for route in sorted(self._set.keys() | found.keys()):
            was, now = self.of(route), found.get(route, self.configured(route))
            if self._set.get(route) != found.get(route):
                _log.info(
                    "another process set the shares of route `%s` from %s to %s",
                    *(route, _text(was), _text(now)),
                )
        self._set = found

    def check(self, route: str, shares: Sequence[Share]) -> None:
        """Check that a route can have shares.

        Raises:
            DragomanError: there is no such route, or its shares cannot be these.
        """
        self.of(route)
        for place, why in self._problems(route, shares):
            raise DragomanError(f"`{place}`: {why}", code=ErrorCode.INVALID_REQUEST)

    async def change(
        self, journal: Journal, route: str, shares: Sequence[Share], *, by: str
    ) -> None:
        """Set the shares of a route; durable on return.

        Raises:
            DragomanError: there is no such route, or its shares cannot be these.
            JournalError: it could not be stored.
        """
        self.check(route, shares)
        rows = [ShareRow(route, share.name, share.weight) for share in shares]
        await journal.keep_shares(route, rows)
        # The configuration may have been reloaded meanwhile.
        self.check(route, shares)
        was = self.of(route)
        self._changes += 1
        self._set[route] = tuple(shares)
        _log.info(
            "`%s` set the shares of route `%s` from %s to %s", by, route, _text(was), _text(shares)
        )

    async def reset(self, journal: Journal, route: str, *, by: str) -> None:
        """Let the shares of the configuration hold again; durable on return.

        Raises:
            DragomanError: there is no such route.
            JournalError: it could not be stored.
        """
        self.of(route)
        await journal.keep_shares(route, ())
        was = self.of(route)
        self._changes += 1
        self._set.pop(route, None)
        _log.info(
            "`%s` reset the shares of route `%s` from %s to the configuration's %s",
            *(by, route, _text(was), _text(self.of(route))),
        )

    def _problems(self, route: str, shares: Sequence[Share]) -> Iterator[ShareProblem]:
        """Yield what is wrong with shares of a route."""
        if self.settings.route(route) is None:
            yield ShareProblem("route", f"there is no route `{route}`.")
            return
        own = self.settings.backend(route)
        if own is not None and own.sandbox:
            why = (
                f"`{route}` is a sandbox, to which the inputs of other sessions go too: they must "
                "not lead elsewhere."
            )
            yield ShareProblem("route", why)
        seen: set[str] = set()
        for at, share in enumerate(shares):
            place = f"backends.{at}.name"
            backend = self.settings.backend(share.name)
            if backend is None:
                names = ", ".join(f"`{one.name}`" for one in self.settings.backends)
                why = f"there is no backend `{share.name[:80]}`; configured are {names}."
                yield ShareProblem(place, why)
            elif share.name in seen:
                yield ShareProblem(place, f"`{share.name}` is named twice: give it one weight.")
            elif share.weight and (undriven := DIALECTS[backend.dialect].not_driven):
                why = (
                    f"backend `{share.name}` is of dialect `{backend.dialect}`, {undriven}: give "
                    "it the weight 0 or leave it out."
                )
                yield ShareProblem(place, why)
            seen.add(share.name)
        if not any(share.weight for share in shares):
            why = "needs a backend whose weight is not 0: no session could be made."
            yield ShareProblem("backends", why)
        yield from self._forbidden(route, shares)

    def _forbidden(self, route: str, shares: Sequence[Share]) -> Iterator[ShareProblem]:
        """Yield the backends to which a key would come that may not use them: one may use the route
        that names it, wherever it leads, or that names all backends of its configuration."""
        configured = self.configured(route)
        for key in self.settings.keys:
            named = key.backends
            if named is None or route in named:
                continue
            if any(share.name not in named for share in configured):
                continue
            for at, share in enumerate(shares):
                if share.name not in named:
                    why = (
                        f"key `{key.name}` may use route `{route}`, whose backends it names, but "
                        f"not `{share.name}`: add `{route}` or `{share.name}` to its `backends` "
                        "under [[keys]], and reload."
                    )
                    yield ShareProblem(f"backends.{at}.name", why)


def _by_route(rows: Sequence[ShareRow]) -> Iterator[tuple[str, tuple[Share, ...]]]:
    for route, of_route in itertools.groupby(rows, key=lambda row: row.route):
        yield route, tuple(Share(name=row.backend, weight=row.weight) for row in of_route)


def _text(shares: Sequence[Share]) -> str:
    return ", ".join(f"`{share.name}` {share.weight}" for share in shares)
