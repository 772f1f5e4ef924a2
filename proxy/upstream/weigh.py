"""Looks at large frames and answers of a backend before they are parsed in the event loop.

What is large is looked at in a thread of its own, by short steps, and refused where it has more in
it than is read in one turn. While that lasts, what follows in the same stream waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from adapters.base import Response
from adapters.bulk import LIGHT, TooMuch, bounded, is_light
from adapters.errors import OFFENDING_LIMIT
from adapters.framing import FrameTooFull, FrameTooLarge
from adapters.framing.sse import SseFrame
from adapters.jsonvalue import Known
from proxy.errors import UpstreamUnavailable
from proxy.gate import Gate

__all__ = ["LARGE", "are_light", "weighed", "weighed_answer"]

LARGE = 64 * 1024
"""Bytes of a frame above which it is taken by itself: what takes a turn of the loop with a frame of
1 MiB is to be no more than that."""

# One for all: more would only take the interpreter from the event loop together.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="weigh")


def are_light(frames: Sequence[SseFrame | bytes | FrameTooLarge]) -> bool:
    """Say of frames that all may be taken at once."""
    # Each frame of each stream comes by here: nearly all are short, and cost no call.
    for frame in frames:
        data = frame.data if isinstance(frame, SseFrame) else frame
        if isinstance(data, FrameTooLarge) or len(data) <= LIGHT:
            continue
        if len(data) > LARGE or not is_light(data):
            return False
    return True


async def weighed(
    frame: SseFrame | bytes | FrameTooLarge, gate: Gate
) -> tuple[SseFrame | bytes | FrameTooLarge, int]:
    """Return a frame as it may be decoded, or why it may not; and the bytes of files that it has no
    more. What it says is read then."""
    if isinstance(frame, FrameTooLarge):
        return frame, 0
    data = frame.data if isinstance(frame, SseFrame) else frame
    dropped = 0
    if not await gate.do(lambda: is_light(data)):
        loop = asyncio.get_running_loop()
        try:
            data, dropped = await loop.run_in_executor(_THREAD, bounded, data)
        except TooMuch as error:
            return FrameTooFull(data, str(error)), 0
    await asyncio.sleep(0)
    if len(data) > LARGE:
        data = await gate.do(lambda: Known.of(data))
    return frame._replace(data=data) if isinstance(frame, SseFrame) else data, dropped


async def weighed_answer(response: Response, most: int) -> Response:
    """Return an answer whose body may be parsed; a large one is read then. Of a refusal with more
    in it its begin is enough.

    Raises:
        UpstreamUnavailable: it has more in it than is read.
    """
    if len(response.body) <= LARGE and is_light(response.body, most):
        return response
    try:
        body = await asyncio.get_running_loop().run_in_executor(
            _THREAD, _read_bounded, response.body, most
        )
    except TooMuch as error:
        if response.status >= 300:
            return dataclasses.replace(response, body=response.body[:OFFENDING_LIMIT])
        text = f"The backend's answer of {len(response.body)} bytes has {error}."
        raise UpstreamUnavailable(text, sent=True) from None
    return dataclasses.replace(response, body=body)


def _read_bounded(data: bytes, most: int) -> bytes:
    return Known.of(data if is_light(data, most) else bounded(data, most)[0])
