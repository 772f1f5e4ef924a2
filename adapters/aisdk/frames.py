"""Writes chunks: each is a frame of the open stream, under a cursor that counts them."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.aisdk import wire
from adapters.aisdk.state import ChatState
from adapters.model.base import Frame
from adapters.serving.encoder import EncoderWriter
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json


@dataclasses.dataclass(slots=True, kw_only=True)
class ChunkWriter(EncoderWriter[ChatState]):
    """Writes the chunks of streams: with `old` in the form for `ai` 5."""

    old: bool
    ask_tool: str

    def write(self, type_: str, members: dict[str, Any] | None = None) -> int:
        """Write a chunk of the open stream; return its cursor."""
        rest = b"}" if not members else b"," + on_one_line(format_json(members)[1:])
        return self.frame(b'data: {"type":"%b"%b\n\n' % (type_.encode(), rest))

    def frame(self, data: bytes, *, end: bool = False) -> int:
        """Write a frame; `end` says that it is the last one of its stream."""
        s = self.s
        cursor, s.cursor = s.cursor, s.cursor + 1
        data = b"id: %d\n%b" % (cursor, data)
        self.out.append(Frame(cursor, data, "turn" if end else None, str(s.streams)))
        return cursor

    def next_part(self) -> str:
        """Return the id of one more text or reasoning."""
        self.s.parts += 1
        return str(self.s.parts)


def put(w: ChunkWriter, type_: str, members: dict[str, Any], *, message: str = "") -> None:
    """Write a chunk, or keep it for the next stream. `message` is the one that it is about, where
    it can stand in no other."""
    if w.s.stream is not None:
        w.write(type_, members)
    else:
        w.s.later.put(type_, members, message)


def put_data(w: ChunkWriter, name: str, data: Any, *, key: str | None = None) -> None:
    """Tell what the protocol has no chunk for; a part with the same `key` takes the place of the
    one before."""
    part = {} if key is None else {"id": key}
    put(w, wire.DATA + name.replace("_", "-"), {**part, "data": data})


def put_text(w: ChunkWriter, text: str) -> None:
    """Write a whole text, or keep it for the next stream."""
    part = {"id": w.next_part()}
    put(w, "text-start", part)
    if text:
        put(w, "text-delta", {**part, "delta": text})
    put(w, "text-end", part)


def open_step(w: ChunkWriter) -> None:
    """Have a step open."""
    s = w.s
    if not s.step:
        s.step, s.tools, s.returned = True, False, False
        s.steps += 1
        w.write("start-step")


def words(value: Any) -> str:
    """Return a value as words."""
    return value if isinstance(value, str) else format_json(value).decode()
