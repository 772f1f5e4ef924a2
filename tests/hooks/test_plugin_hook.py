"""The plugin in Hermes: what it takes, in which order it arrives, and what a tool call gets."""

from __future__ import annotations

import atexit
import importlib.util
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from proxy import hooks
from proxy.hooks.delivery import EVENTS, EVENTS_0_19, HookTimes
from tests.hooks.origin import (
    ALLOW,
    BLOCK,
    SOON_S,
    Answer,
    Arrival,
    HookOrigin,
    write_settings,
)
from tests.support.ports import HOST, free_port

SOURCE = Path(hooks.__file__).parent
QUICK = HookTimes(connect=SOON_S, answer=SOON_S, pause=0.001, away=0.0)
TOOL = {"tool_name": "terminal", "args": {"command": "ls"}, "session_id": "s", "turn_id": "t"}


class Hermes:
    """Loads the plugin as Hermes does, and calls its hooks."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, known: object) -> None:
        self.folder = home / "plugins" / "dragoman"
        self.folder.mkdir(parents=True)
        for file in ("plugin/__init__.py", "plugin/plugin.yaml", "delivery.py"):
            shutil.copy(SOURCE / file, self.folder)
        self.hooks: dict[str, Callable[..., Any]] = {}
        self.exits: list[Callable[[], object]] = []
        monkeypatch.setattr(atexit, "register", self.exits.append)
        monkeypatch.setitem(sys.modules, "hermes_cli.plugins", SimpleNamespace(VALID_HOOKS=known))
        self._monkeypatch = monkeypatch

    def load(self) -> ModuleType:
        """Load the plugin anew, without waiting where the server is away."""
        name = "hermes_plugins.dragoman"
        file = self.folder / "__init__.py"
        spec = importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=[str(self.folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self._monkeypatch.setitem(sys.modules, name, module)
        self._monkeypatch.setitem(sys.modules, f"{name}.delivery", None)
        spec.loader.exec_module(module)
        outbox = module.HookOutbox
        module.__dict__["HookOutbox"] = lambda delivery, home: outbox(delivery, home, QUICK)
        module.register(self)
        return module

    def register_hook(self, name: str, callback: Callable[..., Any]) -> None:
        """Take a hook of the plugin."""
        assert name not in self.hooks
        self.hooks[name] = callback

    def call(self, event: str, **arguments: Any) -> Any:
        """Call a hook as Hermes does."""
        return self.hooks[event](**arguments, telemetry_schema_version="hermes.observer.v1")

    def text(self, delta: str, kind: str = "text", **others: Any) -> None:
        """Say that a piece of text came."""
        ids = {"session_id": "s", "turn_id": "t", "iteration": 1, **others}
        assert self.call("on_stream_delta", delta=delta, kind=kind, **ids) is None


@pytest.fixture
def hermes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hermes:
    return Hermes(tmp_path, monkeypatch, set(EVENTS))


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[HookOrigin]:
    with HookOrigin() as origin:
        write_settings(tmp_path, origin.url)
        yield origin


class Gate:
    """An answer that comes when a test opens it."""

    def __init__(self, answer: Answer = ALLOW) -> None:
        self._answer = answer
        self._open = threading.Event()

    def __call__(self, _: Arrival) -> Answer:
        assert self._open.wait(SOON_S)
        return self._answer

    def open(self) -> None:
        self._open.set()


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Call in a thread; return it, and where the result will be."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ({*EVENTS_0_19, "transform_tool_result", "pre_verify"}, EVENTS_0_19),
        ({*EVENTS, "something_new"}, EVENTS),
        (["on_session_end"], ("pre_tool_call", "on_session_end")),
        (None, EVENTS_0_19),
    ],
)
def test_it_takes_the_events_that_this_hermes_has(
    known: object, wanted: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hermes = Hermes(tmp_path, monkeypatch, known)
    hermes.load()
    assert tuple(hermes.hooks) == wanted


def test_its_manifest_is_one_that_hermes_takes(hermes: Hermes) -> None:
    manifest = yaml.safe_load((hermes.folder / "plugin.yaml").read_text())
    assert (manifest["name"], type(manifest["version"])) == ("dragoman", str)


def test_a_call_arrives_as_that_of_a_shell_hook(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    assert hermes.call("pre_tool_call", **TOOL, middleware_trace=[]) is None
    (arrival,) = origin.arrivals
    payload = {name: arrival.payload[name] for name in arrival.payload if name[0] != "d"}
    del payload["timestamp"]
    assert payload == {
        "hook_event_name": "pre_tool_call",
        "tool_name": "terminal",
        "tool_input": {"command": "ls"},
        "session_id": "s",
        "cwd": str(Path.cwd()),
        "extra": {"turn_id": "t", "telemetry_schema_version": "hermes.observer.v1"},
    }
    assert arrival.payload["dragoman"] == {"way": "plugin", "wait_seconds": 60}


def test_a_tool_call_is_blocked_by_what_is_decided(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    origin.answers = [BLOCK]
    assert hermes.call("pre_tool_call", **TOOL) == {"action": "block", "message": "no"}


def test_the_agent_does_not_wait_for_what_is_told(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    gate = Gate((200, b"{}"))
    origin.answers = [gate]
    for number in range(200):
        assert hermes.call("post_tool_call", **TOOL, number=number) is None
    assert len(origin.arrivals) <= 1
    origin.answers = [(200, b"{}")]
    gate.open()
    numbers = [arrival.payload["extra"]["number"] for arrival in origin.wait(200)]
    assert numbers == [*range(200)]


def test_the_oldest_are_lost_beyond_a_bound_and_the_next_says_how_many(
    hermes: Hermes, origin: HookOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = hermes.load()
    assert module.MOST_EVENTS == 1_000
    monkeypatch.setattr(module, "MOST_EVENTS", 5)
    gate = Gate((200, b"{}"))
    origin.answers = [gate, (200, b"{}")]
    hermes.call("post_tool_call", **TOOL, number=0)
    origin.wait(1)
    for number in range(1, 13):
        hermes.call("post_tool_call", **TOOL, number=number)
    gate.open()
    found = [(arrival.payload["extra"]["number"], arrival.payload["dragoman"].get("dropped"))
             for arrival in origin.wait(6)]  # fmt: skip
    assert found == [(0, None), (8, 7), (9, None), (10, None), (11, None), (12, None)]


def test_a_tool_call_is_sent_after_what_came_before_it(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    gate = Gate((200, b"{}"))
    origin.answers = [gate, (200, b"{}"), ALLOW]
    hermes.call("pre_llm_call", session_id="s")
    hermes.call("post_api_request", session_id="s")
    caller, results = in_thread(lambda: hermes.call("pre_tool_call", **TOOL))
    origin.wait(1)
    assert caller.is_alive()
    gate.open()
    caller.join(SOON_S)
    assert results == [None]
    assert origin.events() == ["pre_llm_call", "post_api_request", "pre_tool_call"]


def test_other_agents_go_on_while_a_tool_call_waits(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    gate = Gate(BLOCK)
    origin.answers = [gate, (200, b"{}"), ALLOW]
    caller, results = in_thread(lambda: hermes.call("pre_tool_call", **TOOL))
    origin.wait(1)
    hermes.call("post_api_request", session_id="other")
    assert hermes.call("pre_tool_call", **TOOL) is None
    assert caller.is_alive()
    gate.open()
    caller.join(SOON_S)
    assert results == [{"action": "block", "message": "no"}]


def test_pieces_of_a_text_are_joined_while_they_wait(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    gate = Gate((200, b"{}"))
    origin.answers = [gate, (200, b"{}")]
    hermes.call("on_stream_start", session_id="s")
    origin.wait(1)
    for delta in ("a", "b", "c"):
        hermes.text(delta)
    hermes.text("d", "reasoning")
    hermes.text("e", iteration=2)
    hermes.text("f", iteration=2)
    hermes.call("on_stream_end", session_id="s")
    hermes.text("g", iteration=2)
    hermes.text("h", iteration=2, session_id="other")
    gate.open()
    texts = [arrival.payload["extra"].get("delta") for arrival in origin.wait(7)]
    assert texts == [None, "abc", "d", "ef", None, "g", "h"]


def test_an_event_is_sent_as_it_was_when_it_happened(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    gate = Gate((200, b"{}"))
    origin.answers = [gate, (200, b"{}")]
    hermes.call("on_session_start", session_id="s")
    origin.wait(1)
    names, odd = ["one"], object()
    hermes.call("subagent_start", parent_session_id="p", names=names, odd=odd, few={1, 2})
    names.append("two")
    gate.open()
    payload = origin.wait(2)[1].payload
    assert payload["session_id"] == "p"
    assert payload["extra"] == {
        "names": ["one"],
        "odd": str(odd),
        "few": "{1, 2}",
        "telemetry_schema_version": "hermes.observer.v1",
    }


def test_the_last_events_of_a_process_have_arrived_when_their_hooks_return(
    hermes: Hermes, origin: HookOrigin
) -> None:
    hermes.load()
    for event in ("api_request_error", "on_session_end", "on_session_finalize"):
        hermes.call("pre_llm_call", session_id="s")
        hermes.call(event, session_id="s")
        assert origin.events()[-2:] == ["pre_llm_call", event]


def test_the_end_waits_for_what_is_not_sent_but_not_for_ever(
    hermes: Hermes, origin: HookOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = hermes.load()
    assert module.FLUSH_SECONDS == 2
    (flush,) = hermes.exits
    flush()
    gate = Gate((200, b"{}"))
    origin.answers = [gate]
    hermes.call("pre_llm_call", session_id="s")
    assert flush(0.01) is False  # type: ignore[call-arg]
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.01)
    assert hermes.call("on_session_end", session_id="s") is None
    gate.open()
    assert flush(SOON_S) is True  # type: ignore[call-arg]
    assert len(origin.arrivals) == 2


def test_a_tool_call_that_does_not_ask_is_told(
    hermes: Hermes, origin: HookOrigin, tmp_path: Path
) -> None:
    write_settings(tmp_path, origin.url, gate="write_file")
    hermes.load()
    assert hermes.call("pre_tool_call", **TOOL) is None
    assert origin.wait(1)[0].payload["dragoman"] == {"way": "plugin"}


@pytest.mark.parametrize(("on_doubt", "blocks"), [("block", True), ("allow", False)])
def test_a_tool_call_without_a_server_is_a_doubt(
    on_doubt: str, blocks: bool, hermes: Hermes, tmp_path: Path
) -> None:
    write_settings(tmp_path, f"http://{HOST}:{free_port()}/from/x", on_doubt=on_doubt)
    hermes.load()
    for number in range(20):
        hermes.call("post_tool_call", **TOOL, number=number)
    found = hermes.call("pre_tool_call", **TOOL)
    assert (found is not None) is blocks
    assert found is None or "cannot be reached: Connection refused" in found["message"]


def test_what_was_lost_without_a_server_is_counted_once_it_is_back(
    hermes: Hermes, tmp_path: Path
) -> None:
    port = free_port()
    write_settings(tmp_path, f"http://{HOST}:{port}/from/hermes-agent")
    hermes.load()
    for number in range(3):
        hermes.call("on_session_end", session_id="s", number=number)
    assert hermes.call("pre_tool_call", **TOOL)["action"] == "block"
    with HookOrigin(port=port) as origin:
        assert hermes.call("pre_tool_call", **TOOL) is None
        hermes.call("on_session_end", session_id="s")
    ours = [arrival.payload["dragoman"].get("dropped") for arrival in origin.arrivals]
    assert ours == [3, None]


def test_what_happens_while_the_server_starts_again_arrives(
    hermes: Hermes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "QUICK", HookTimes(SOON_S, SOON_S, 0.001, 5, SOON_S))
    port = free_port()
    write_settings(tmp_path, f"http://{HOST}:{port}/from/hermes-agent")
    hermes.load()
    for number in range(3):
        hermes.call("post_tool_call", **TOOL, number=number)
    with HookOrigin(port=port) as origin:
        arrived = origin.wait(3)
    assert [arrival.payload["extra"]["number"] for arrival in arrived] == [0, 1, 2]
    assert [arrival.payload["dragoman"].get("dropped") for arrival in arrived] == [None] * 3


def test_a_tool_call_waits_no_longer_than_it_may(
    hermes: Hermes, origin: HookOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path, origin.url, wait_seconds=0.05)
    monkeypatch.setattr(sys.modules[__name__], "QUICK", HookTimes(SOON_S, SOON_S, 0.001, 0.05, 0.0))
    hermes.load()
    gate = Gate((200, b"{}"))
    origin.answers = [gate]
    hermes.call("pre_llm_call", session_id="s")  # it is before the tool call, and is not answered
    found = hermes.call("pre_tool_call", **TOOL)
    gate.open()
    assert "gave no decision in 0.05 seconds" in found["message"]


@pytest.mark.parametrize("text", [None, "{", '{"version": 2}'])
def test_without_settings_no_tool_runs_and_the_rest_goes_on(
    text: str | None, hermes: Hermes, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "dragoman.json").write_text(text)
    hermes.load()
    assert hermes.call("on_session_end", session_id="s") is None
    assert "dragoman.json cannot be used" in hermes.call("pre_tool_call", **TOOL)["message"]


def test_a_hook_never_raises(hermes: Hermes, origin: HookOrigin) -> None:
    class Odd(dict[str, Any]):
        def items(self) -> Any:
            raise KeyError("oops")

    hermes.load()
    assert hermes.call("post_tool_call", extra=Odd(x=1)) is None
    found = hermes.call("pre_tool_call", tool_name="x", args={"a": Odd(x=1)})
    assert "the hook failed: KeyError('oops')" in found["message"]
    assert origin.arrivals == []


def test_a_plugin_without_its_other_file_lets_no_tool_run(hermes: Hermes) -> None:
    (hermes.folder / "delivery.py").unlink()
    hermes.load()
    assert list(hermes.hooks) == ["pre_tool_call"]
    assert "is broken" in hermes.call("pre_tool_call", **TOOL)["message"]


def test_a_tool_call_that_is_too_large_is_blocked(hermes: Hermes, origin: HookOrigin) -> None:
    hermes.load()
    args = {str(number): "x" * 90_000 for number in range(12)}
    found = hermes.call("pre_tool_call", tool_name="terminal", args=args)
    assert "can be sent" in found["message"]
    assert hermes.call("pre_tool_call", **TOOL) is None
    assert json.loads(origin.arrivals[0].body)["tool_input"] == {"command": "ls"}
