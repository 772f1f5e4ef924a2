"""An agent of Microsoft's Agent Framework that speaks AG-UI: each run has a thread of its own, and
the history in the body.

Usage: agent.py URL; reads what a person says, a line of JSON each, and prints the answers likewise.
"""

from __future__ import annotations

import asyncio
import json
import sys

from agent_framework import Agent  # type: ignore[import-not-found]
from agent_framework_ag_ui import AGUIChatClient  # type: ignore[import-not-found]


async def main(url: str) -> None:
    """Hold a conversation until there is nothing more to say."""
    async with AGUIChatClient(endpoint=url) as client:
        agent = Agent(name="peer", client=client)
        session = agent.create_session()
        for line in iter(sys.stdin.readline, ""):
            answer = await agent.run(json.loads(line), session=session)
            print(json.dumps(answer.text), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
