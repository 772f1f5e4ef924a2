"""`dragoman hook install`, `status` and `remove`, in homes of Hermes and without a Hermes."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner, Result

from proxy.cli import main
from proxy.hooks import delivery
from proxy.hooks.setup.homes import HermesHome, InstallRefused
from proxy.hooks.setup.install import InstallOptions, plan_install

CONFIG = "# Mine.\nmodel: a\nhooks:\n  pre_tool_call:\n    - command: /guard # of the house\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home, and a program that is called."""
    program = tmp_path / "bin" / "dragoman"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom dragoman.__main__ import main\nmain()\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.delenv("HERMES_SAFE_MODE", raising=False)
    monkeypatch.setenv("PATH", os.defpath)
    folder = tmp_path / "a home"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    monkeypatch.setenv("HERMES_HOME", str(folder))
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["hook", *words])


def install(*words: str) -> Result:
    done = run("install", "--yes", *words)
    assert done.exit_code == 0, done.output
    return done


def settings(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "dragoman.json").read_text())
    return found


def hooks(home: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load((home / "config.yaml").read_text())[
        "hooks"
    ]
    return found


def files(home: Path) -> dict[str, bytes]:
    """Return all files but the lock of the consents, which Hermes has as well."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def command(home: Path) -> str:
    return f"{home.parent}/bin/dragoman hook --home '{home}'"


def status(*words: str) -> tuple[int, dict[tuple[str, str], tuple[str, str]]]:
    """Return the exit status, and each finding by its way and what it is about."""
    done = run("status", "--json", *words)
    found = json.loads(done.stdout)["findings"]
    return done.exit_code, {(f["way"], f["what"]): (f["state"], f["text"]) for f in found}


def test_shell_hooks_are_entries_with_consents_and_settings(home: Path) -> None:
    install("--gate", "terminal", "--wait", "100")
    found = hooks(home)
    assert found.pop("pre_tool_call") == [
        {"command": "/guard"},
        {"command": command(home), "timeout": 115},
    ]
    others = [event for event in delivery.EVENTS_0_19 if event != "pre_tool_call"]
    assert found == {event: [{"command": command(home), "timeout": 15}] for event in others}
    approvals = json.loads((home / "shell-hooks-allowlist.json").read_text())["approvals"]
    assert {one["event"] for one in approvals} == set(delivery.EVENTS_0_19)
    assert {one["command"] for one in approvals} == {command(home)}
    changed = (home.parent / "bin" / "dragoman").stat().st_mtime
    iso = datetime.fromtimestamp(changed, UTC).isoformat().replace("+00:00", "Z")
    assert {one["script_mtime_at_approval"] for one in approvals} == {iso}
    assert delivery.read_settings(home) == delivery.HookSettings(gate="terminal", wait_seconds=100)
    assert (home / "dragoman.json").stat().st_mode & 0o777 == 0o600
    assert (home / "config.yaml.before-dragoman").read_text() == CONFIG


@pytest.mark.parametrize("ways", [["shell"], ["plugin"], ["gateway"], ["shell", "plugin"]])
def test_what_is_installed_can_be_removed_without_a_trace(home: Path, ways: list[str]) -> None:
    before = files(home)
    install(*(word for way in ways for word in ("--way", way)))
    there = files(home)
    assert len(there) > len(before) + 1
    again = install(*(word for way in ways for word in ("--way", way)))
    assert "nothing to change" in again.output
    assert files(home) == there
    assert run("remove", "--yes").exit_code == 0
    left = files(home)
    left.pop("config.yaml.before-dragoman", None)
    assert left == before
    assert not (home / "plugins" / "dragoman").exists()
    assert "nothing to change" in run("remove", "--yes").output


def test_a_home_without_a_configuration_gets_one_and_loses_it(home: Path) -> None:
    (home / "config.yaml").unlink()
    install("--way", "plugin")
    assert yaml.safe_load((home / "config.yaml").read_text()) == {
        "plugins": {"enabled": ["dragoman"], "hook_callback_timeout": 255}
    }
    assert run("remove", "--yes").exit_code == 0
    assert files(home) == {}


def test_a_plugin_and_a_gateways_hook_are_our_files_with_delivery_beside(home: Path) -> None:
    install("--way", "plugin", "--way", "gateway")
    source = Path(delivery.__file__)
    for way, folder, names in (
        ("plugin", "plugins/dragoman", {"__init__.py", "plugin.yaml"}),
        ("gateway", "hooks/dragoman", {"handler.py", "HOOK.yaml"}),
    ):
        copied = {path.name: path.read_bytes() for path in (home / folder).iterdir()}
        assert copied.pop("delivery.py") == source.read_bytes()
        assert copied == {name: (source.parent / way / name).read_bytes() for name in names}
    assert "pre_tool_call" in hooks(home)
    assert [one["command"] for one in hooks(home)["pre_tool_call"]] == ["/guard"]


def test_an_option_that_is_not_given_again_stays(home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret-words\n")
    first = install("--url", "http://127.0.0.1:9/x", "--secret-file", str(secret))
    assert "s3cret-words" not in first.output
    install("--way", "plugin", "--wait", "60", "--on-doubt", "allow")
    found = settings(home)
    assert (found["url"], found["secret"]) == ("http://127.0.0.1:9/x", "s3cret-words")
    assert (found["wait_seconds"], found["on_doubt"]) == (60, "allow")
    # What was there before follows the settings too.
    assert hooks(home)["pre_tool_call"][1]["timeout"] == 75


def test_one_way_can_go_alone(home: Path) -> None:
    install("--way", "shell", "--way", "plugin", "--way", "gateway")
    before = files(home)
    assert run("remove", "--way", "plugin", "--yes").exit_code == 0
    left = files(home)
    assert {name for name in before if name not in left} == {
        f"plugins/dragoman/{name}" for name in ("__init__.py", "delivery.py", "plugin.yaml")
    }
    assert hooks(home)["pre_tool_call"][1]["timeout"] == 255
    assert "plugins" not in yaml.safe_load(left["config.yaml"])
    assert run("remove", "--way", "shell", "--yes").exit_code == 0
    assert (home / "config.yaml").read_text() == CONFIG
    assert (home / "dragoman.json").exists()
    assert run("remove", "--way", "gateway", "--yes").exit_code == 0
    assert not (home / "dragoman.json").exists()


def test_consents_of_others_stay(home: Path) -> None:
    path = home / "shell-hooks-allowlist.json"
    others = {"approvals": [{"event": "pre_tool_call", "command": "/guard"}], "more": 1}
    path.write_text(json.dumps(others))
    install()
    assert json.loads(path.read_text())["approvals"][0] == others["approvals"][0]  # type: ignore[index]
    run("remove", "--yes")
    assert json.loads(path.read_text()) == others


def test_files_of_others_in_our_folder_stay(home: Path) -> None:
    install("--way", "plugin")
    (home / "plugins" / "dragoman" / "notes.txt").write_text("mine")
    cache = home / "plugins" / "dragoman" / "__pycache__"
    cache.mkdir()
    (cache / "delivery.cpython-311.pyc").write_bytes(b"")
    run("remove", "--yes")
    assert files(home).keys() >= {"plugins/dragoman/notes.txt"}
    assert not cache.exists()


def test_another_plugin_of_this_name_is_not_written_over(home: Path) -> None:
    folder = home / "plugins" / "dragoman"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: dragoman\n")
    done = run("install", "--way", "plugin", "--yes")
    assert done.exit_code == 1
    assert "has files that are not ours" in done.stderr
    assert files(home).keys() == {"config.yaml", "plugins/dragoman/plugin.yaml"}


def test_a_plugin_that_somebody_disabled_is_not_installed(home: Path) -> None:
    (home / "config.yaml").write_text("plugins:\n  disabled: [dragoman]\n")
    done = run("install", "--way", "plugin", "--yes")
    assert done.exit_code == 1
    assert "hermes plugins enable dragoman" in done.stderr


def test_what_cannot_be_edited_stays_and_the_lines_are_printed(home: Path) -> None:
    text = "hooks: {pre_tool_call: [{command: /guard}]}\n"
    (home / "config.yaml").write_text(text)
    done = run("install", "--yes")
    assert done.exit_code == 1
    assert "config.yaml: line 1: `hooks` is written in braces" in done.stderr
    added = yaml.safe_load(done.stdout)["hooks"]["pre_tool_call"]
    assert added == [{"command": command(home), "timeout": 255}]
    assert files(home) == {"config.yaml": text.encode()}


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"a: \xff\n", "line 1: it is not UTF-8"), (b"a: [1\n", "it is not YAML")],
)
def test_a_configuration_that_cannot_be_read_stays(home: Path, content: bytes, why: str) -> None:
    (home / "config.yaml").write_bytes(content)
    done = run("install", "--yes")
    assert done.exit_code == 1
    assert why in done.stderr
    assert files(home) == {"config.yaml": content}


def test_nothing_is_changed_without_a_question(home: Path) -> None:
    before = files(home)
    done = run("install")
    assert done.exit_code == 2
    assert "add --yes" in done.stderr
    assert "+  on_session_start:" in done.stdout
    assert files(home) == before


@pytest.mark.parametrize(("answer", "changed"), [("y\n", True), ("n\n", False), ("", False)])
def test_on_a_terminal_it_asks(
    home: Path, monkeypatch: pytest.MonkeyPatch, answer: str, *, changed: bool
) -> None:
    monkeypatch.setattr("proxy.cli.hook_setup.can_ask", lambda: True)
    done = CliRunner().invoke(main, ["hook", "install"], input=answer)
    assert (done.exit_code == 0) == changed
    assert (home / "dragoman.json").exists() == changed


@pytest.mark.parametrize(
    ("words", "why", "code"),
    [
        (["--gate", "("], "`gate` must be a regular expression", 1),
        (["--url", "ftp://HOST"], "`url` must be like http://", 1),
        (["--wait", "286"], "a shell hook can wait 285 seconds at most", 1),
        (["--wait", "0"], "Invalid value for '--wait'", 2),
        (["--secret-file", "/nowhere/at-all"], "cannot be read", 2),
        (["--home", "/nowhere/at-all"], "is not a folder", 2),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    home: Path, words: list[str], why: str, code: int
) -> None:
    done = run("install", "--yes", *words)
    assert (done.exit_code, why in done.stderr) == (code, True), done.stderr
    assert files(home).keys() == {"config.yaml"}


def test_a_plugin_may_wait_longer_than_a_shell_hook(home: Path) -> None:
    install("--way", "plugin", "--wait", "900")
    plugins = yaml.safe_load((home / "config.yaml").read_text())["plugins"]
    assert plugins["hook_callback_timeout"] == 915
    assert run("install", "--way", "shell", "--yes").exit_code == 1


def test_a_link_stays_a_link_and_a_mode_stays(home: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    real.write_text(CONFIG)
    real.chmod(0o640)
    (home / "config.yaml").unlink()
    (home / "config.yaml").symlink_to(real)
    install()
    assert (home / "config.yaml").is_symlink()
    assert "on_session_start" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_file_that_changed_since_the_plan_is_not_written_over(home: Path) -> None:
    plan = plan_install(HermesHome(home, command(home)), InstallOptions(), now=0)
    (home / "config.yaml").write_text("model: b\n")
    with pytest.raises(InstallRefused, match="has changed meanwhile"):
        plan.make()
    assert files(home) == {"config.yaml": b"model: b\n"}


def test_an_entry_of_another_installation_becomes_ours(home: Path) -> None:
    old = f"/old/bin/dragoman hook --home '{home}'"
    (home / "config.yaml").write_text(
        f'hooks:\n  pre_tool_call:\n    - command: "{old}"\n      timeout: 9\n'
    )
    install()
    assert hooks(home)["pre_tool_call"] == [{"command": command(home), "timeout": 255}]


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("/x/dragoman hook", True),
        ("/x/dragoman hook --home HOME", True),
        ("/usr/bin/python3 -m proxy hook --home HOME", True),
        ("/usr/bin/python3 -m dragoman.proxy hook --home HOME", True),
        ("/x/dragoman hook --home /other", False),
        ("/x/dragoman serve", False),
        ("/x/check --not dragoman hook", False),
        ("'", False),
    ],
)
def test_only_the_hook_for_this_home_is_ours(home: Path, words: str, *, ours: bool) -> None:
    found = HermesHome(home).is_ours(words.replace("HOME", f"'{home}'"))
    assert found == ours


def test_a_program_that_is_a_module_is_run_as_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/proxy/__main__.py"])
    install()
    found = hooks(home)["pre_tool_call"][1]["command"]
    assert found == f"{sys.executable} -m proxy hook --home '{home}'"


# Status.


class Origin(BaseHTTPRequestHandler):
    """Answers a test as the server does."""

    def do_POST(self) -> None:
        """Block what has a nonce."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"decision": "block", "message": f"test {body['extra']['dragoman_test']}"}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    """Serve an origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/from/x"
    server.shutdown()
    thread.join()
    server.server_close()


HERMES = """#!/bin/sh
test "$HERMES_HOME $1 $2 $3 $4 $5" = "{home} hooks test pre_tool_call --for-tool terminal" || exit 3
nonce=$(sed 's/.*"dragoman_test": "\\([0-9a-f]*\\)".*/\\1/' "$7")
echo "Firing 1 hook(s) for event 'pre_tool_call':"
echo
echo "  → {command}"
echo "      exit=0  elapsed=0.1s"
{said}
"""


def hermes(home: Path, said: str, ours: str | None = None) -> str:
    """Make a program that prints what Hermes prints."""
    path = home.parent / "hermes"
    path.write_text(HERMES.format(home=home, command=ours or command(home), said=said))
    path.chmod(0o755)
    return str(path)


BLOCK = (
    'echo "      parsed (Hermes wire shape): '
    '{\\"action\\": \\"block\\", \\"message\\": \\"test $nonce\\"}"'
)


def test_nothing_that_is_installed_is_not_right(home: Path) -> None:
    code, found = status()
    assert (code, found["", "hooks"][0]) == (1, "failed")
    assert files(home).keys() == {"config.yaml"}


def test_what_is_installed_is_right_and_proven_by_hermes(home: Path) -> None:
    install("--way", "shell", "--way", "plugin", "--way", "gateway")
    code, found = status("--hermes", hermes(home, BLOCK))
    assert code == 0, found
    states = {key: state for key, (state, _) in found.items()}
    assert {state for state in states.values() if state != "note"} == {"ok"}
    assert states["shell", "proof"] == states["plugin", "enabled"] == "ok"
    assert {key for key, state in states.items() if state == "note"} == {
        ("", "ways"),
        ("shell", "surfaces"),
        ("gateway", "surfaces"),
    }


@pytest.mark.parametrize(
    ("said", "ours", "why"),
    [
        (BLOCK.replace("$nonce", "else"), None, "test else"),
        (BLOCK, "/guard", "/guard"),
        ('echo "      parsed: <none — hook contributed nothing>"', None, "contributed nothing"),
        ('echo "      stdout: $nonce"', None, "stdout"),
        ("echo broken >&2; exit 1", None, "broken"),
        ('echo "      ✗ timed out after 9s"', None, "timed out"),
    ],
)
def test_a_proof_is_the_nonce_in_a_block_of_ours(
    home: Path, said: str, ours: str | None, why: str
) -> None:
    install()
    code, found = status("--hermes", hermes(home, said, ours))
    state, text = found["shell", "proof"]
    assert (code, state) == (1, "failed")
    assert why in text


def test_without_hermes_the_proof_is_skipped(home: Path) -> None:
    install()
    code, found = status()
    assert code == 0
    assert found["shell", "proof"][0] == "note"
    assert run("status", "--hermes", "/nowhere/hermes").exit_code == 2


def test_a_plugin_alone_is_proven_by_its_own_delivery(home: Path, url: str) -> None:
    install("--way", "plugin", "--url", url)
    code, found = status()
    assert (code, found["plugin", "proof"][0]) == (0, "ok")
    install("--url", "http://127.0.0.1:1/from/x", "--way", "plugin")
    code, found = status()
    assert (code, found["plugin", "proof"][0]) == (1, "failed")
    assert "cannot be reached" in found["plugin", "proof"][1]


def test_a_home_that_only_watches_proves_nothing(home: Path) -> None:
    install("--gate", "")
    code, found = status("--hermes", hermes(home, "exit 9"))
    assert (code, found["shell", "proof"][0]) == (0, "note")


def broken(home: Path, name: str) -> None:
    """Break something of an installation."""
    config = home / "config.yaml"
    text = config.read_text()
    match name:
        case "consent":
            path = home / "shell-hooks-allowlist.json"
            path.write_text(path.read_text().replace('"pre_tool_call"', '"other"'))
        case "timeout":
            config.write_text(text.replace("timeout: 255", "timeout: 60"))
        case "events":
            config.write_text(text.replace("on_session_end:", "on_session_endless:"))
        case "command":
            (home.parent / "bin" / "dragoman").unlink()
        case "settings":
            (home / "dragoman.json").unlink()
        case "enabled":
            config.write_text(text.replace("- dragoman", "- other"))
        case "callback":
            config.write_text(text.replace("hook_callback_timeout: 255", "x: 1"))
        case "files":
            (home / "plugins" / "dragoman" / "__init__.py").write_text("")
        case _:
            (home / "hooks" / "dragoman" / "HOOK.yaml").unlink()


@pytest.mark.parametrize(
    ("name", "key", "why"),
    [
        ("consent", ("shell", "consent"), "Hermes skips pre_tool_call"),
        ("timeout", ("shell", "timeout"), "has 60 s and needs 255"),
        ("events", ("shell", "events"), "missing: on_session_end"),
        ("command", ("shell", "command"), "cannot be run"),
        ("settings", ("", "settings"), "dragoman.json is not there"),
        ("enabled", ("plugin", "enabled"), "not in `plugins.enabled`"),
        ("callback", ("plugin", "timeout"), "255 is needed"),
        ("files", ("plugin", "files"), "__init__.py of plugins/dragoman is of another version"),
        ("hook", ("gateway", "files"), "lacks HOOK.yaml"),
    ],
)
def test_what_hermes_would_skip_is_told(
    home: Path, name: str, key: tuple[str, str], why: str
) -> None:
    install("--way", "shell", "--way", "plugin", "--way", "gateway")
    broken(home, name)
    code, found = status("--hermes", hermes(home, BLOCK))
    assert (code, found[key][0]) == (1, "failed")
    assert why in found[key][1]


def test_a_safe_mode_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    monkeypatch.setenv("HERMES_SAFE_MODE", "1")
    code, found = status("--hermes", hermes(home, BLOCK))
    assert (code, found["", "safe mode"][0]) == (1, "failed")


def test_a_command_that_changed_since_the_consent_is_told_and_approved_again(home: Path) -> None:
    install()
    program = home.parent / "bin" / "dragoman"
    os.utime(program, (program.stat().st_mtime + 5, program.stat().st_mtime + 5))
    assert status()[1]["shell", "consent"][0] == "note"
    install()
    assert status()[1]["shell", "consent"][0] == "ok"


def test_a_status_is_a_table_for_people(home: Path) -> None:
    install()
    lines = [line.split("\t") for line in run("status").stdout.splitlines()]
    assert ["shell", "consent", "ok", "for 15 hooks"] in lines


def test_a_configuration_that_is_not_text_has_no_status(home: Path) -> None:
    (home / "config.yaml").write_bytes(b"\xff")
    done = run("status", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stderr)["error"]["code"] == "failed"
