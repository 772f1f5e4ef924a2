"""A Hermes that is watched: it sends the hooks of a recorded session, waits where one asks for a
decision, and goes on as Hermes does after it (hermes-agent page, sections 2 and 3).

Unlike the other scripted backends it is not asked: it calls.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

GATED = Path(__file__).with_name("hermes_gated.ndjson")
"""A recorded session with one call of a tool; lines with `when` are what comes after its decision:
`allow` is of the same recording, `block` of one in which a hook blocked the call."""

GATED_SESSION = "20261121_201138_b24ef4"

PAUSE_SECONDS = 0.5
"""How long Hermes waits before it sends again what a broken connection has left open."""

WAIT_SECONDS = 3_600.0
"""How long the call waits. So long a person may look at the demo before saying yes."""


async def play_gated(url: str, *, pace: float = 1.0) -> None:
    """Send the hooks of `GATED` to `url`; the pauses between them are a tenth of a second at pace
    1. What a broken connection leaves open is sent again, with the same id. What is not taken ends
    the session, as a Hermes that was killed does."""
    decided = None
    async with aiohttp.ClientSession() as http:
        for number, line in enumerate(GATED.read_text(encoding="utf-8").splitlines()):
            hook: dict[str, Any] = {"delivery_id": f"{number:032x}", **json.loads(line)}
            if hook.pop("when", decided) != decided:
                continue
            waits = hook["hook_event_name"] == "pre_tool_call"
            await asyncio.sleep(0.1 * pace)
            answer = await _send(http, url, hook, WAIT_SECONDS if waits else None)
            if waits:
                decided = "allow" if answer.get("decision") == "allow" else "block"


async def _send(
    http: aiohttp.ClientSession, url: str, hook: dict[str, Any], wait: float | None
) -> dict[str, Any]:
    ours: dict[str, Any] = {"way": "shell"}
    if wait is not None:
        ours["wait_seconds"] = wait
    body = {
        **hook,
        "dragoman": ours,
    }
    timeout = aiohttp.ClientTimeout(total=None if wait is None else wait + 10)
    while True:
        try:
            async with http.post(url, json=body, timeout=timeout) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            await asyncio.sleep(PAUSE_SECONDS)
