"""Source frames as the journal keeps them: cut to a limit, joined to compressed batches."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Sequence

FRAME_LIMIT = 64 * 1024
"""Bytes of a frame that are kept unless the settings say otherwise; a backend's usual frame has
below 2 KiB.
"""


@dataclasses.dataclass(slots=True)
class FrameBatch:
    """Consecutive frames of a leg, the first numbered `first`, the newest kept at `at`; `size` is
    their bytes.
    """

    session: int
    leg: int
    first: int
    at: int
    frames: list[bytes]
    size: int = 0
    due: float = 0.0

    @property
    def last(self) -> int:
        """The number of the newest frame."""
        return self.first + len(self.frames) - 1


def cut_frame(frame: bytes, limit: int) -> bytes:
    """Return the frame, or its first `limit` bytes and a line that says how many are missing."""
    if len(frame) <= limit:
        return frame
    return frame[:limit] + b"\n[cut: %d bytes]" % (len(frame) - limit)


def pack_frames(frames: Sequence[bytes]) -> bytes:
    """Return frames as one compressed batch: their count, their sizes, their bytes."""
    head = struct.pack(f">{len(frames) + 1}I", len(frames), *map(len, frames))
    return zlib.compress(head + b"".join(frames), level=1)


def unpack_frames(data: bytes) -> list[bytes]:
    """Return the frames of a batch that `pack_frames` wrote.

    Raises:
        ValueError: it is damaged.
    """
    try:
        raw = zlib.decompress(data)
        (count,) = struct.unpack_from(">I", raw)
        sizes = struct.unpack_from(f">{count}I", raw, 4)
    except (zlib.error, struct.error) as error:
        raise ValueError(f"batch of frames: {error}") from error
    frames = []
    start = 4 + 4 * count
    for size in sizes:
        frames.append(raw[start : start + size])
        start += size
    if start != len(raw):
        raise ValueError("batch of frames: its size is wrong")
    return frames
