"""The gateway hook of Hermes: what it takes, and that a gateway goes on without a server."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml  # type: ignore[import-untyped]

from proxy import hooks
from tests.hooks.origin import Answer, Arrival, HookOrigin, write_settings
from tests.support.ports import HOST, free_port

SOURCE = Path(hooks.__file__).parent
CONTEXT = {"platform": "telegram", "user_id": "u", "session_id": "s", "message": "hello"}


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The handler as Hermes loads it: a module alone."""
    folder = tmp_path / "hooks" / "dragoman"
    folder.mkdir(parents=True)
    for file in ("gateway/handler.py", "gateway/HOOK.yaml", "delivery.py"):
        shutil.copy(SOURCE / file, folder)
    spec = importlib.util.spec_from_file_location("hermes_hook_dragoman", folder / "handler.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hermes_hook_dragoman", module)
    monkeypatch.setitem(sys.modules, "hermes_hook_dragoman_delivery", None)
    spec.loader.exec_module(module)
    return module


def shorten(handler: ModuleType) -> None:
    """Shorten the pause before something is tried again."""
    delivery = handler._delivery()
    delivery.tell_gateway.__kwdefaults__["times"] = delivery.HookTimes(pause=0.001)


def test_its_manifest_names_the_events(handler: ModuleType) -> None:
    manifest = yaml.safe_load((Path(str(handler.__file__)).parent / "HOOK.yaml").read_text())
    assert manifest["name"] == "dragoman"
    assert manifest["events"] == [
        *("gateway:startup", "session:start", "session:end", "session:reset"),
        *("agent:start", "agent:step", "agent:end", "command:*"),
    ]
    assert inspect.iscoroutinefunction(handler.handle)


async def test_events_are_told_in_order(handler: ModuleType, tmp_path: Path) -> None:
    with HookOrigin() as origin:
        write_settings(tmp_path, origin.url)
        names = [f"agent:step{number}" for number in range(10)]
        found = await asyncio.gather(*(handler.handle(name, CONTEXT) for name in names))
        await handler.handle("gateway:startup", {"platforms": {"x"}})
    assert found == [None] * 10
    assert origin.events() == [*(f"gateway:{name}" for name in names), "gateway:gateway:startup"]
    first, last = origin.arrivals[0].payload, origin.arrivals[-1].payload
    assert first["dragoman"] == {"way": "gateway"}
    assert (first["session_id"], first["extra"]) == ("s", CONTEXT)
    assert (last["session_id"], last["extra"]) == ("", {"platforms": "{'x'}"})


@pytest.mark.parametrize("context", [None, "odd", {"session_id": 7}])
async def test_a_gateway_goes_on_without_a_server(
    context: object, handler: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shorten(handler)
    with caplog.at_level(logging.WARNING):
        assert await handler.handle("agent:end", context) is None
        write_settings(tmp_path, f"http://{HOST}:{free_port()}/")
        assert await handler.handle("agent:end", context) is None
    without, away = [record.getMessage() for record in caplog.records]
    assert "dragoman.json cannot be used" in without
    assert "agent:end is lost: Dragoman at http" in away


async def test_a_gateway_does_not_wait_for_ever(
    handler: ModuleType,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert handler.MOST_SECONDS == 15
    monkeypatch.setattr(handler, "MOST_SECONDS", 0.05)
    shorten(handler)

    def never(_: Arrival) -> Answer:
        origin.hold()
        return None

    with HookOrigin(never) as origin:
        write_settings(tmp_path, origin.url)
        assert await handler.handle("agent:start", CONTEXT) is None
    assert "agent:start is lost: time is over" in caplog.text
