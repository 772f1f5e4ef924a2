"""Which node has a session in memory: the one that has claimed it, while its lease lasts.

A node that has one is the only one that writes to it: all that it stores checks its own place
(`_changes.check_fence`), and nobody claims the session before that place is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.base.rows import NodeRow
from proxy.journal.postgres._changes import Fence
from proxy.journal.postgres._database import Connection, restored

_FREE = "(node IS NULL OR node NOT IN (SELECT node FROM dragoman.nodes))"


async def claim(connection: Connection, fence: Fence, session: int) -> NodeRow | None:
    """Claim a session; return the node that has it where that is another."""
    for _ in range(3):
        claimed = await connection.execute(
            f"UPDATE dragoman.sessions SET node = $2 WHERE key = $1 AND (node = $2 OR {_FREE})",
            *(session, fence.node),
        )
        if claimed != "UPDATE 0":
            return None
        row = await connection.fetchrow(
            "SELECT nodes.node, url FROM dragoman.sessions JOIN dragoman.nodes USING (node)"
            " WHERE key = $1",
            session,
        )
        if row is not None:
            return NodeRow(row[0], row[1] or "")
    # There is no such session: who loads it is told.
    return None


async def release(connection: Connection, fence: Fence, sessions: Sequence[int]) -> None:
    """Let go of sessions: any node may claim them."""
    await connection.execute(
        "UPDATE dragoman.sessions SET node = NULL WHERE key = ANY($1::bigint[]) AND node = $2",
        *(sorted(sessions), fence.node),
    )


async def read_nodes(connection: Connection) -> list[NodeRow]:
    """Return all nodes."""
    rows = await connection.fetch(
        "SELECT node, url, configuration FROM dragoman.nodes ORDER BY node"
    )
    return [NodeRow(node, url or "", configuration) for node, url, configuration in rows]


async def read_unclaimed(connection: Connection, limit: int) -> list[str]:
    """Return the public ids of sessions with work that no node has."""
    rows = await connection.fetch(
        "SELECT id FROM dragoman.sessions WHERE state IN ('running', 'paused')"
        f" AND {_FREE} ORDER BY key LIMIT $1",
        limit,
    )
    return [restored(row[0]) for row in rows]
