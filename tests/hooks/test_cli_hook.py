"""`dragoman hook` as Hermes runs it: what it prints, and what it does not load for that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import main
from proxy.hooks import delivery
from tests.hooks.origin import ALLOW, BLOCK, Answer, HookOrigin, write_settings

REPOSITORY = Path(__file__).parent.parent.parent
HEAVY = {"adapters", "aiohttp", "asyncio", "multidict", "orjson", "pydantic", "rich", "yarl"}
CALL = {"hook_event_name": "pre_tool_call", "tool_name": "terminal", "tool_input": {},
        "session_id": "s", "cwd": "/", "extra": {}}  # fmt: skip
RUN = """
import sys
from dragoman.__main__ import main
try:
    main(sys.argv[1:], prog_name="dragoman")
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_it_answers_as_a_process_and_loads_little(tmp_path: Path) -> None:
    with HookOrigin(BLOCK) as origin:
        write_settings(tmp_path, origin.url)
        done = subprocess.run(
            [sys.executable, "-c", RUN, "hook", "--home", tmp_path],
            cwd=REPOSITORY,
            input=json.dumps(CALL),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, '{"action": "block", "message": "no"}\n')
    loaded = done.stderr.split()
    assert "proxy.hooks.delivery" in loaded
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


@pytest.mark.parametrize(
    ("answer", "printed"),
    [(ALLOW, "{}\n"), (BLOCK, '{"action": "block", "message": "no"}\n')],
)
@pytest.mark.parametrize("place", ["option", "HERMES_HOME", "HOME"])
def test_the_home_is_an_option_or_that_of_hermes(
    place: str, answer: Answer, printed: str, tmp_path: Path
) -> None:
    home = tmp_path / ".hermes"
    home.mkdir()
    environ = {"HERMES_HOME": None, "HOME": str(tmp_path / "x")}
    if place != "option":
        environ[place] = str(home if place == "HERMES_HOME" else tmp_path)
    words = ["hook", "--home", str(home)] if place == "option" else ["hook"]
    with HookOrigin(answer) as origin:
        write_settings(home, origin.url)
        done = CliRunner().invoke(main, words, input=json.dumps(CALL), env=environ)
    assert (done.exit_code, done.stdout) == (0, printed)


def test_what_cannot_be_read_is_a_block_with_status_0(tmp_path: Path) -> None:
    write_settings(tmp_path, "http://127.0.0.1:9/")
    long = b'{"hook_event_name": "pre_tool_call", "x": "' + b"x" * delivery.MOST_STDIN + b'"}'
    for raw in (b"", b"garbage", long):
        done = CliRunner().invoke(main, ["hook", "--home", str(tmp_path)], input=raw)
        assert done.exit_code == 0
        assert json.loads(done.stdout)["action"] == "block"
        assert "dragoman: what Hermes gave to the hook cannot be read" in done.stderr


def test_without_settings_only_a_tool_call_is_blocked(tmp_path: Path) -> None:
    for event, blocks in (("pre_tool_call", True), ("on_session_end", False)):
        text = json.dumps({**CALL, "hook_event_name": event})
        done = CliRunner().invoke(main, ["hook", "--home", str(tmp_path)], input=text)
        assert done.exit_code == 0
        assert ("action" in json.loads(done.stdout)) is blocks


def test_a_fault_in_the_hook_is_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("oops")

    monkeypatch.setattr(delivery, "answer_hook", fail)
    done = CliRunner().invoke(main, ["hook", "--home", str(tmp_path)], input="{}")
    assert done.exit_code == 0
    assert "its hook failed: MemoryError('oops')" in json.loads(done.stdout)["message"]
