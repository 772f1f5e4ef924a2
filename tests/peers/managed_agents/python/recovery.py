"""Lets a third party's client, `ag-ui-claude-managed-agents`, run with an approval on a
managed-agents face, and recover the session's history in the next run.

It runs in an environment of its own: `recovery.py URL` prints `PASS` or `FAIL`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

# mypy: disable-error-code="import-not-found,unused-ignore"
import anthropic
from ag_ui.core import ResumeEntry, RunAgentInput, UserMessage
from ag_ui_claude_managed_agents import ManagedAgentsAgent

SAID = UserMessage(id="u1", role="user", content="script: approve")


def run(name: str, **more: Any) -> Any:
    """Return the input of a run."""
    given: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwarded_props": {}}
    return RunAgentInput(thread_id="t1", run_id=name, messages=[SAID], **given, **more)


async def main(url: str) -> None:
    """Play both runs.

    Raises:
        AssertionError: one of them does not come to its end.
    """
    client = anthropic.AsyncAnthropic(base_url=url, api_key="sk-demo", max_retries=0)
    agents = [one async for one in client.beta.agents.list()]
    agent = ManagedAgentsAgent(
        managed_agent_id=agents[0].id, environment_id="env_any", client=client
    )
    asked = [event async for event in agent.run(run("r1"))]
    (interrupt,) = asked[-1].outcome.interrupts
    resume = [ResumeEntry(interrupt_id=interrupt.id, status="resolved", payload="allow")]
    done = [event async for event in agent.run(run("r2", resume=resume))]
    types = [str(event.type.value) for event in done]
    if types[-1] != "RUN_FINISHED" or "TOOL_CALL_RESULT" not in types:
        raise AssertionError(types)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except BaseException as error:  # noqa: BLE001 - each failure is printed
        sys.exit(f"FAIL recovery: {type(error).__name__}: {error}")
    print("PASS recovery")
