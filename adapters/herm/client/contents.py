"""Contents as Herm takes them, and results as it shows them."""

from __future__ import annotations

import itertools
from typing import Any

from adapters.herm import wire
from adapters.herm.client.envelopes import text_in
from adapters.herm.client.records import PendingMessage
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import format_json, rest_of

MOST_BLOCKS = 1_000
"""Blocks of a result that are kept apart: of more, texts that follow each other are one."""


def content_blocks(content: tuple[Any, ...], context: Any = None) -> list[dict[str, str]]:
    """Return a content as the blocks that Herm takes.

    Raises:
        NotSupported: it is not text, or too long for 100 blocks of 20,000 characters (section 3.1).
    """
    blocks: list[dict[str, str]] = []
    items = context if isinstance(context, list) else [] if context is None else [context]
    for item in items:
        words = item if isinstance(item, str) else format_json(item).decode()
        blocks += wire.text_blocks(f"Client context:\n{words}")
    for block in content:
        if not isinstance(block, ev.Text):
            what = "file" if isinstance(block, ev.File) else block.type
            raise NotSupported(f"herm: a {what} is impossible: only text is carried (section 3.1)")
        blocks += wire.text_blocks(block.text)
    if not 1 <= len(blocks) <= wire.MAX_BLOCKS:
        raise NotSupported(
            f"herm: {len(blocks)} blocks of text are impossible: 1 to {wire.MAX_BLOCKS} blocks of "
            f"{wire.MAX_BLOCK_TEXT} characters are carried (section 3.1)"
        )
    return blocks


def server_of(payload: dict[str, Any], tool: str) -> str | None:
    """Return a connector's name; the field that has it is not documented (sections 4.5 and 8)."""
    for name in ("server_name", "server"):
        if found := text_in(payload, name):
            return found
    parts = tool.split("__")
    return parts[1] if len(parts) > 2 and parts[0] == "mcp" else None


def output_of(content: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """Return a result as output, where it is one text, else as blocks."""
    if not isinstance(content, list):
        return content, None
    if len(content) == 1 and isinstance(content[0], dict) and content[0].keys() == {"type", "text"}:
        return content[0]["text"], None
    if len(content) > MOST_BLOCKS:
        content = _joined(content)
    return None, tuple(block_of(block) for block in content)


def _joined(content: list[Any]) -> list[Any]:
    """Return blocks in which neighbours that are text and nothing else are one."""
    out: list[Any] = []
    for plain, run in itertools.groupby(content, _is_plain):
        if plain:
            out.append({"type": "text", "text": "".join(block["text"] for block in run)})
        else:
            out += run
    return out


def _is_plain(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and block.keys() == {"type", "text"}
        and block["type"] == "text"
        and isinstance(block["text"], str)
    )


def block_of(block: Any) -> Any:
    """Return a block of a content in the model's form; what is not text is kept as it is."""
    if isinstance(block, str):
        return ev.Text(text=block)
    if isinstance(block, dict) and isinstance(block.get("text"), str):
        rest = rest_of(block, frozenset({"type", "text"}))
        return ev.Text(text=block["text"], extra=rest)
    return ev.Other(dialect=wire.DIALECT, value=block)


def message_of(command_id: str, command: cmd.SendMessage) -> PendingMessage:
    """Return a message as it is remembered until its turn."""
    content = [block.model_dump(mode="json", exclude_defaults=True) for block in command.content]
    return PendingMessage(
        command_id=command_id,
        content=content,
        blocks=content_blocks(command.content, command.client_context),
        policy=command.policy,
    )


def foreign_message(id_: str, text: str, turn: str | None) -> ev.Event:
    """Return a message of somebody else."""
    return ev.MessageReceived(
        thread_id=ev.MAIN,
        turn_id=turn,
        message_id=id_,
        content=(ev.Text(text=text),),
        native=ev.NativeRef(dialect=wire.DIALECT, id=id_, type="user.message"),
    )
