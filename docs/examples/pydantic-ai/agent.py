"""An agent of Pydantic AI that asks before it sends a mail; any AG-UI client may talk to it."""

import os

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.ui.ag_ui import AGUIAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# "test" plays a model: it needs no key, and calls every tool at once.
agent = Agent(os.environ.get("MODEL", "test"), output_type=[str, DeferredToolRequests])


@agent.tool_plain(requires_approval=True)
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"mail sent to {to}"


async def run(request: Request) -> Response:
    """Answer a run."""
    return await AGUIAdapter.dispatch_request(request, agent=agent)


app = Starlette(routes=[Route("/", run, methods=["POST"])])
