"""A node: a process that uses the journal, with a lease that it renews by the server's clock.

The row of a node tells all others that it lives. It has an epoch, which each of its connections
that writes begins anew; a commit locks the row with the epoch that it knows, so that a new epoch
waits for the commits of the old, and stops those that come later. A node that takes another's place
deletes its row, which does the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import time
from typing import Any

from proxy.base import metrics
from proxy.base.errors import JournalUnavailable
from proxy.journal.postgres._changes import IDLE_MS, Fence, Fenced
from proxy.journal.postgres._database import Connection, Database, lock_schema

_log = logging.getLogger(__name__)

LEASE_SECONDS = 5.0
"""How long a node that does not renew its lease is taken to live."""

RENEW_SECONDS = 1.0
"""The time between two renewals."""

MARGIN_SECONDS = 1.0
"""What a node takes off its lease before it acts by it."""

SLOTS = 256
"""How many nodes there may be at once: their slots are in the keys of sessions."""

ERA = 1_577_836_800
"""The begin of 2020 in Unix seconds, from which keys count."""


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """This process, as the others know it; `url` is where they reach it, None where it shares the
    journal with nobody. `leased_until` is when its lease ends, by the monotonic
    clock, with a margin. `configuration` is a hash that the others learn with the next renewal."""

    database: Database
    name: str = dataclasses.field(
        default_factory=lambda: f"{socket.gethostname()} (pid {os.getpid()})"
    )
    url: str | None = None
    configuration: str = dataclasses.field(default="", init=False)
    number: int = dataclasses.field(default=0, init=False)
    epoch: int = dataclasses.field(default=0, init=False)
    leased_until: float = dataclasses.field(default=0.0, init=False)
    _slot: int = dataclasses.field(default=0, init=False)
    _ahead: float = dataclasses.field(default=0.0, init=False)
    _newest: int = dataclasses.field(default=0, init=False)

    @property
    def fence(self) -> Fence:
        """Return what each of its transactions checks."""
        return Fence(self.number, self.epoch)

    async def come(self, connection: Connection) -> None:
        """Become a node. A node that is in the way is waited for, as long as it does not renew its
        lease: it may have been killed.

        Raises:
            JournalUnavailable: another process uses the journal, and one of the two does not share
                it, or both have the same URL.
        """
        waited = False
        renewed: dict[int, Any] = {}
        while True:
            async with connection.transaction():
                await lock_schema(connection)
                await connection.execute(
                    f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}"
                )
                begun = time.monotonic()
                metrics.KILLED.set(bool(await bury(connection)))
                others = await connection.fetch(
                    "SELECT node, name, url, renewed_at FROM dragoman.nodes"
                    " WHERE $1::text IS NULL OR url IS NULL OR url = $1",
                    self.url,
                )
                if not others:
                    await self._register(connection)
                    self.leased_until = begun + LEASE_SECONDS - MARGIN_SECONDS
                    return
            for row in others:
                if renewed.setdefault(row["node"], row["renewed_at"]) != row["renewed_at"]:
                    raise JournalUnavailable(self._in_the_way(row["name"], row["url"]))
            if not waited:
                waited = True
                _log.info(
                    "waiting for the lease of %s to end, which has not stopped in order",
                    others[0]["name"],
                    extra={"kind": "waiting"},
                )
            await asyncio.sleep(RENEW_SECONDS / 4)

    def _in_the_way(self, name: str, url: str | None) -> str:
        who = f"another Dragoman, {name}, uses the journal `{self.database.shown}`"
        if url is not None and url == self.url:
            return f"{who} and says that it is at `{url}` as well: give each its own `advertise`"
        if self.url is None and url is not None:
            return f"{who} with `[cluster]`: set `[cluster]` here as well, or name another database"
        if self.url is not None:
            return f"{who} without `[cluster]`: set `[cluster]` there as well, or stop it"
        return f"{who}: stop it, name another database, or set `[cluster]` for both"

    async def _register(self, connection: Connection) -> None:
        self.epoch = 1
        newest: int = await connection.fetchval(
            "SELECT coalesce(max(key), 0) FROM (SELECT key FROM dragoman.sessions"
            "  UNION ALL SELECT session FROM dragoman.staged) AS keys (key)"
        )
        row = await connection.fetchrow(
            "INSERT INTO dragoman.nodes (node, epoch, slot, name, url, started_at, renewed_at)"
            " SELECT nextval('dragoman.node_numbers'), $1, slot, $2, $3, clock_timestamp(),"
            "  clock_timestamp() FROM generate_series(0, $4::int - 1) slot"
            " WHERE slot NOT IN (SELECT slot FROM dragoman.nodes) ORDER BY slot LIMIT 1"
            " RETURNING node, slot, extract(epoch FROM renewed_at)::float8",
            *(self.epoch, self.name, self.url, SLOTS),
        )
        if row is None:
            raise JournalUnavailable(
                f"{SLOTS} nodes use the journal `{self.database.shown}`, the most there may be"
            )
        self.number, self._slot, time_there = row
        self._ahead = time_there - time.monotonic()
        # The node that had the slot before may have made keys in this second, or ahead of it.
        self._newest = max((int(time_there) - ERA + 1) << 22, newest)

    @property
    def leased(self) -> bool:
        """Say whether the lease lasts, by the monotonic clock and with a margin: as long as it does
        nobody has this node's place."""
        return time.monotonic() < self.leased_until

    def time(self) -> float:
        """Return Unix seconds by the clock of the server, which all nodes have in common."""
        return self._ahead + time.monotonic()

    def new_key(self) -> int:
        """Return the key of a session to be made: no other has it, on whatever node, and those of
        later seconds are larger. It has 31 bits of the server's time, 8 of the slot, 14 that count,
        so that JavaScript can read it."""
        begin = int(self.time()) - ERA
        own = self._slot << 14
        key = begin << 22 | own
        if key <= self._newest:
            key = self._newest + 1
            if self._newest >> 14 != key >> 14 or key >> 14 & SLOTS - 1 != self._slot:
                # None is left of that second, or it is where this node began.
                key = ((self._newest >> 22) + 1) << 22 | own
        self._newest = key
        return key

    async def begin_epoch(self, connection: Connection) -> None:
        """Begin the epoch of a new connection: returns when nothing of the older ones is under way.

        Raises:
            Fenced: another has this node's place.
        """
        begun = time.monotonic()
        # The epoch may have been begun by an attempt whose answer did not arrive.
        epoch = await connection.fetchval(
            "UPDATE dragoman.nodes SET epoch = epoch + 1, renewed_at = clock_timestamp()"
            " WHERE node = $1 RETURNING epoch",
            self.number,
        )
        if epoch is None:
            raise Fenced("another process has taken the place of this one in the journal")
        self.epoch = epoch
        self.leased_until = begun + LEASE_SECONDS - MARGIN_SECONDS

    async def renew(self, connection: Connection) -> None:
        """Renew the lease.

        Raises:
            Fenced: another has this node's place.
        """
        begun = time.monotonic()
        # A lease need not outlive a crash of the server, and a slow disk must not end one. One
        # statement: a process that is paused between two would keep its row locked, and its place.
        found = await connection.fetchval(
            "WITH off AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))"
            " UPDATE dragoman.nodes SET renewed_at = clock_timestamp(), configuration = $2"
            " FROM off WHERE node = $1 RETURNING 1",
            *(self.number, self.configuration),
        )
        if found is None:
            raise Fenced("another process has taken the place of this one in the journal")
        metrics.LEASE_AGE.set_function(self._age)
        self.leased_until = begun + LEASE_SECONDS - MARGIN_SECONDS

    def _age(self) -> float:
        return time.monotonic() - self.leased_until + LEASE_SECONDS - MARGIN_SECONDS

    async def go(self, connection: Connection) -> None:
        """Leave in order: nobody has to wait for the lease to end."""
        await connection.execute("DELETE FROM dragoman.nodes WHERE node = $1", self.number)


async def bury(connection: Connection) -> list[str]:
    """Take the places of nodes whose leases have ended, and return their names: when this is
    committed nothing of theirs is stored any more. A server that has just started takes no node for
    gone: while it was away nobody could renew a lease."""
    rows = await connection.fetch(
        "DELETE FROM dragoman.nodes WHERE node IN (SELECT node FROM dragoman.nodes"
        "  WHERE greatest(renewed_at, pg_postmaster_start_time()) < clock_timestamp()"
        "   - $1 * interval '1 second' ORDER BY node FOR UPDATE SKIP LOCKED) RETURNING name",
        LEASE_SECONDS,
    )
    gone = [row[0] for row in rows]
    for name in gone:
        _log.warning(
            "%s did not stop in order: it was killed or cut off, or the machine failed; what the "
            "journal has of it is taken up",
            name,
            extra={"kind": "killed"},
        )
    return gone
