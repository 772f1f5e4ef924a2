"""The gateway hook of Hermes: it tells Dragoman what happens in chats.

It runs in Hermes, from `HOME/hooks/dragoman/`, with `delivery.py` beside it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HOME = FOLDER.parent.parent
"""The home of Hermes that this copy is in."""

MOST_SECONDS = 15.0
"""That Hermes waits for one event."""
ORDER = asyncio.Lock()

logger = logging.getLogger(__name__)


@cache
def _delivery() -> Any:
    """Return the module `delivery`, from the file beside this one: Hermes imports no package."""
    name = f"{__name__}_delivery"
    spec = importlib.util.spec_from_file_location(name, FOLDER / "delivery.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def handle(event_type: str, context: object) -> None:
    """Send an event after those before it; a failure is a line in the log."""
    try:
        # Hermes does not wait for some before it has the next.
        async with asyncio.timeout(MOST_SECONDS), ORDER:
            await asyncio.to_thread(_delivery().tell_gateway, event_type, context, HOME)
    except Exception as error:  # noqa: BLE001 - Hermes must go on, whatever it is
        logger.warning("dragoman: %s is lost: %s", event_type, str(error) or "time is over")
