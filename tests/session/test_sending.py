"""Commands are begun, and their answers heard, in turns of the loop that have time for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from adapters import commands as cmd
from adapters import events as ev
from adapters.base import Call, Request, Response
from proxy.gate import Gate
from proxy.session.sending import SEND_SECONDS, Sending

CALL = Call("message", Request("POST", "/"), command_id="c")


class Watched(Gate):
    """A gate that notes what goes through it."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen
        self.inside = False

    async def room(self, seconds: float) -> None:
        self.seen.append(seconds)
        await super().room(seconds)

    async def do(self, work: Callable[[], Any]) -> Any:
        self.inside = True
        try:
            return await super().do(work)
        finally:
            self.inside = False


async def test_a_command_is_sent_where_there_is_room_and_its_answer_heard_in_a_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    gate = Watched(seen)

    async def answer(call: Call) -> Response:
        return Response(202)

    def submit(command_id: str, command: cmd.AnyCommand) -> Call:
        seen.append(command_id)
        return CALL

    async def stored(_: Any) -> None:
        await asyncio.sleep(0)

    parts: dict[str, Any] = {
        "codec": SimpleNamespace(submit=submit, take_calls=list, streams=tuple, wake_at=None),
        "clock": SimpleNamespace(now=lambda: 1),
        "outbox": SimpleNamespace(
            send=lambda *_: [], rows=lambda _: [], next_message=lambda _: None, halting=False
        ),
        "record": SimpleNamespace(emit=lambda *_, **__: None, until_stored=stored, state=None),
        "reading": SimpleNamespace(
            answer=answer, respond=lambda *_: seen.append(("heard", gate.inside))
        ),
        "work": SimpleNamespace(closed=True, draining=True),
    }
    sending = Sending(gate=gate, **parts)
    monkeypatch.setattr(Sending, "go_on", lambda _: None)
    await sending._send("c", cmd.SendMessage(content=(ev.Text(text="hello"),), policy="queue"))
    assert seen == [SEND_SECONDS, "c", ("heard", True)]
