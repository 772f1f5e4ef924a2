"""What the encoder knows of a session: one typed record, which snapshots have."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import TypeAdapter

from adapters.model.base import shape_of


@dataclasses.dataclass(slots=True)
class ToolUse:
    """An open call, written at `sequence`. `known` says that its input was, `asked` that it waits
    for a permission, `answered` that an answer of the application is on its way."""

    tool: str
    kind: str
    server: str | None = None
    input: dict[str, Any] = dataclasses.field(default_factory=dict)
    preview: str | None = None
    known: bool = True
    asked: bool = False
    answered: bool = False
    sequence: int = 0


@dataclasses.dataclass(slots=True)
class RequestEnvelope:
    """A request, written at `sequence` with the payload id `id`. `own` is the type of a tool use
    that we wrote for it, of `tool`; `labels` are its options. One that is `over` is recognised."""

    kind: str
    id: str
    sequence: int = 0
    own: str | None = None
    tool: str = ""
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    over: bool = False


@dataclasses.dataclass(slots=True)
class InputEnvelope:
    """An input as its envelope shows it; `sequence` is None as long as it has none."""

    kind: str
    payload: dict[str, Any]
    status: str = "pending"
    sequence: int | None = None
    created: str | None = None
    processed: str | None = None
    error: dict[str, str] | None = None


@dataclasses.dataclass(slots=True)
class HermState:
    """`shown_at` is the newest time that was shown. `native` says that the open turn is that of a
    Herm. `texts` are the types of open texts, `cut` has those that were cut, by type. `calls` are
    by id, `requests` by canonical id, `inputs` by command, `threads` are the names of children."""

    sequence: int = 0
    shown_at: str = ""
    running: bool = False
    native: bool = False
    title: str | None = None
    texts: list[str] = dataclasses.field(default_factory=list)
    cut: dict[str, str] = dataclasses.field(default_factory=dict)
    calls: dict[str, ToolUse] = dataclasses.field(default_factory=dict)
    requests: dict[str, RequestEnvelope] = dataclasses.field(default_factory=dict)
    inputs: dict[str, InputEnvelope] = dataclasses.field(default_factory=dict)
    threads: dict[str, str] = dataclasses.field(default_factory=dict)


SHAPE = shape_of(1, HermState, ToolUse, RequestEnvelope, InputEnvelope)
"""The number of all these fields."""

FORM: TypeAdapter[HermState] = TypeAdapter(HermState)
"""Reads a snapshot."""
