"""Tells what is installed in a home of Hermes, what Hermes would skip, and proves that it works."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from proxy.hooks import delivery

from .config_proof import PLUGIN
from .homes import CONFIG, CONSENTS, FOLDERS, HermesHome, InstallRefused, Way, script_time
from .install import needed_timeout, shell_timeouts, shipped

TOOLS = (
    *("terminal", "write_file", "patch", "execute_code", "process", "read_file", "search_files"),
    *("web_search", "web_extract", "browser_navigate", "browser_click", "skill_manage", "memory"),
    *("delegate_task", "cronjob", "send_message", "todo", "clarify", "vision_analyze"),
)
"""Tools of Hermes: the proof takes the first that the gate matches."""

MOST_TIMEOUT = 300
"""What Hermes gives a shell hook at most."""

_FIRED = "→ "
_PARSED = "parsed (Hermes wire shape):"
"""How lines of `hermes hooks test` begin: with the command of a hook, and with what it said."""

_TEST_WAIT = 10
"""Seconds: a test is answered at once."""

_TRUE = {"1", "true", "yes", "on"}

State = Literal["ok", "failed", "note"]


@dataclass(slots=True, frozen=True)
class HookFinding:
    """What is so in a home: `failed` is not right, `note` is good to know."""

    way: str
    what: str
    state: State
    text: str


@dataclass(slots=True)
class HookStatus:
    """All that was found."""

    home: Path
    ways: tuple[Way, ...]
    findings: list[HookFinding]

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.state != "failed" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "home": str(self.home),
            "ways": list(self.ways),
            "right": self.is_right,
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(slots=True, frozen=True)
class ProofOptions:
    """How it is proven.

    Attributes:
        nonce: what the server must repeat.
        hermes: the program of Hermes; None where there is none.
        seconds: how long it may take.
    """

    nonce: str
    hermes: str | None = None
    seconds: float = 120


def read_status(
    home: HermesHome, proof: ProofOptions, environ: Mapping[str, str] = os.environ
) -> HookStatus:
    """Return what is installed, and whether it works.

    Raises:
        InstallRefused: a file of the home cannot be read.
    """
    home.read_config()
    ways = home.ways()
    status = HookStatus(home.folder, ways, [])
    if not ways:
        text = "nothing is installed: run `dragoman hook install`"
        status.findings.append(HookFinding("", "hooks", "failed", text))
        return status
    settings, why = _settings(home)
    if settings is None:
        status.findings.append(HookFinding("", "settings", "failed", why))
    else:
        gate = f"gate {settings['gate']}" if settings["gate"] else "watches only"
        text = f"{settings['url']}, {gate}, waits {settings['wait_seconds']:g} s, "
        text += f"in doubt {settings['on_doubt']}s"
        status.findings.append(HookFinding("", "settings", "ok", text))
    if environ.get("HERMES_SAFE_MODE", "").strip().lower() in _TRUE:
        text = "HERMES_SAFE_MODE is set: Hermes skips shell hooks and plugins"
        status.findings.append(HookFinding("", "safe mode", "failed", text))
    if {"shell", "plugin"} <= {*ways}:
        text = "shell and plugin both send each event, which is told once: one of them is enough"
        status.findings.append(HookFinding("", "ways", "note", text))
    parts = {"shell": _shell, "plugin": _plugin, "gateway": _gateway}
    for way in ways:
        status.findings += parts[way](home, settings)
    if settings is not None:
        status.findings.append(_proof(home, ways, settings, proof, environ))
    return status


def _settings(home: HermesHome) -> tuple[dict[str, Any] | None, str]:
    try:
        found = home.read_settings()
    except InstallRefused as error:
        return None, str(error)
    if not found:
        return None, f"{delivery.SETTINGS_FILE} is not there: run `dragoman hook install`"
    usual = delivery.HookSettings()
    names = ("url", "gate", "wait_seconds", "on_doubt")
    return {name: getattr(usual, name) for name in names} | found, ""


def _shell(home: HermesHome, settings: Mapping[str, Any] | None) -> Iterator[HookFinding]:
    hooks = home.hooks()
    known = settings or {"wait_seconds": delivery.HookSettings().wait_seconds}
    wanted = shell_timeouts(known)
    missing = [event for event in wanted if event not in hooks]
    twice = [event for event, items in hooks.items() if len(items) > 1]
    text = f"{len(wanted) - len(missing)} of {len(wanted)} in {CONFIG}"
    if missing:
        text += ", missing: " + ", ".join(missing)
    if twice:
        text += ", twice: " + ", ".join(twice)
    yield HookFinding("shell", "events", "failed" if missing or twice else "ok", text)
    yield _timeout(hooks, needed_timeout(known))
    yield _consent(home, hooks)
    for command in sorted({item["command"] for items in hooks.values() for item in items}):
        yield _command(home, command)
    text = (
        "`hermes serve` and the terminal UI of Hermes 0.19.0 run no shell hooks: see --way plugin"
    )
    yield HookFinding("shell", "surfaces", "note", text)


def _timeout(hooks: Mapping[str, list[dict[str, Any]]], needed: int) -> HookFinding:
    given = [item.get("timeout", 60) for item in hooks.get(delivery.GATE, ())]
    short = [one for one in given if not isinstance(one, int) or min(one, MOST_TIMEOUT) < needed]
    if short:
        text = f"{delivery.GATE} has {short[0]} s and needs {needed}: then the tool runs unasked"
        return HookFinding("shell", "timeout", "failed", text)
    return HookFinding("shell", "timeout", "ok", f"{needed} s or more for {delivery.GATE}")


def _consent(home: HermesHome, hooks: Mapping[str, list[dict[str, Any]]]) -> HookFinding:
    try:
        given = home.read_consents().get("approvals", [])
    except InstallRefused as error:
        return HookFinding("shell", "consent", "failed", str(error))
    approved = {
        (one.get("event"), one.get("command")): one.get("script_mtime_at_approval")
        for one in given
        if isinstance(one, dict)
    }
    pairs = [(event, item["command"]) for event, items in hooks.items() for item in items]
    without = [event for event, command in pairs if (event, command) not in approved]
    if without:
        text = f"Hermes skips {', '.join(without)}: not in {CONSENTS} with this command"
        return HookFinding("shell", "consent", "failed", text)
    if any((approved[pair] or "") < (script_time(pair[1]) or "") for pair in pairs):
        text = "the command has changed since: `hermes hooks doctor` warns; install again"
        return HookFinding("shell", "consent", "note", text)
    return HookFinding("shell", "consent", "ok", f"for {len(pairs)} hooks")


def _command(home: HermesHome, command: str) -> HookFinding:
    program = shlex.split(command)[0]
    if shutil.which(program) is None:
        text = f"{program} is not there or cannot be run: install again"
        return HookFinding("shell", "command", "failed", text)
    if home.command and command != home.command:
        return HookFinding("shell", "command", "note", f"{command} is of another installation")
    return HookFinding("shell", "command", "ok", command)


def _files(home: HermesHome, way: Way) -> HookFinding:
    folder = home.folder_of(way)
    files = shipped(way)
    missing = [name for name in files if not (folder / name).is_file()]
    other = [
        name
        for name, content in files.items()
        if name not in missing and (folder / name).read_bytes() != content
    ]
    if missing:
        text = f"{FOLDERS[way]} lacks {', '.join(missing)}: install again"
        return HookFinding(way, "files", "failed", text)
    if other:
        text = f"{', '.join(other)} of {FOLDERS[way]} is of another version: install again"
        return HookFinding(way, "files", "failed", text)
    return HookFinding(way, "files", "ok", f"{len(files)} in {FOLDERS[way]}")


def _plugin(home: HermesHome, settings: Mapping[str, Any] | None) -> Iterator[HookFinding]:
    yield _files(home, "plugin")
    if PLUGIN in home.plugin_names("disabled"):
        text = "it is in `plugins.disabled`: run `hermes plugins enable dragoman`"
        yield HookFinding("plugin", "enabled", "failed", text)
    elif PLUGIN in home.plugin_names("enabled"):
        yield HookFinding("plugin", "enabled", "ok", "in `plugins.enabled`")
    else:
        text = "not in `plugins.enabled`: Hermes skips it; install again"
        yield HookFinding("plugin", "enabled", "failed", text)
    if settings is None:
        return
    plugins = home.loaded().get("plugins")
    given = plugins.get("hook_callback_timeout") if isinstance(plugins, dict) else None
    needed = needed_timeout(settings)
    if isinstance(given, int | float) and given >= needed:
        yield HookFinding("plugin", "timeout", "ok", f"{given:g} s for callbacks")
    else:
        text = f"`plugins.hook_callback_timeout` is {given} and {needed} is needed: install again"
        yield HookFinding("plugin", "timeout", "failed", text)


def _gateway(home: HermesHome, settings: Mapping[str, Any] | None) -> Iterator[HookFinding]:
    yield _files(home, "gateway")
    text = "`hermes gateway` runs it for chat platforms and webhooks only; it gates nothing"
    yield HookFinding("gateway", "surfaces", "note", text)


# The proof.


def _proof(
    home: HermesHome,
    ways: tuple[Way, ...],
    settings: Mapping[str, Any],
    options: ProofOptions,
    environ: Mapping[str, str],
) -> HookFinding:
    way: Way = "shell" if "shell" in ways else ways[0]
    if not settings["gate"]:
        return HookFinding(way, "proof", "note", "skipped: no tool asks, so nothing is answered")
    tool = next((name for name in TOOLS if re.fullmatch(settings["gate"], name)), None)
    if tool is None:
        return HookFinding(way, "proof", "note", "skipped: the gate matches no tool known here")
    if way != "shell":
        return _posted(home, way, tool, options.nonce)
    if options.hermes is None:
        return HookFinding(way, "proof", "note", "skipped: `hermes` is not on the PATH (--hermes)")
    return _fired(home, tool, options, environ)


def _proven(way: Way, blocks: str, nonce: str, instead: str) -> HookFinding:
    if nonce in blocks:
        return HookFinding(way, "proof", "ok", "the server's own answer came back as a block")
    text = f"the server did not answer the test: {blocks or instead}"
    return HookFinding(way, "proof", "failed", text)


def _posted(home: HermesHome, way: Way, tool: str, nonce: str) -> HookFinding:
    """Prove it by what our own file gets for a test."""
    payload = {
        "hook_event_name": delivery.GATE,
        "tool_name": tool,
        "tool_input": {},
        "session_id": "test-session",
        "cwd": "",
        "extra": {"dragoman_test": nonce},
    }
    try:
        settings = delivery.read_settings(home.folder)
        sent = delivery.make_delivery(payload, way, wait=_TEST_WAIT)
        found = delivery.ask(settings, sent, started=time.monotonic(), wait=_TEST_WAIT)
    except delivery.Doubt as doubt:
        return _proven(way, "", nonce, f"{doubt}. {doubt.way_out}")
    return _proven(way, found.message, nonce, "the tool was let through")


def _fired(
    home: HermesHome, tool: str, options: ProofOptions, environ: Mapping[str, str]
) -> HookFinding:
    """Prove it by what Hermes gets when it fires its hooks for a test."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as payload:
        # Hermes puts what it does not know into `extra`.
        json.dump({"dragoman_test": options.nonce}, payload)
        payload.flush()
        words = [options.hermes or "hermes", "hooks", "test", delivery.GATE]
        try:
            done = subprocess.run(
                [*words, "--for-tool", tool, "--payload-file", payload.name],
                env={**environ, "HERMES_HOME": str(home.folder)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=options.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            late = f"`hermes hooks test` took more than {options.seconds:g} s"
            return _proven("shell", "", options.nonce, late)
        except OSError as error:
            wrong = f"{options.hermes} cannot be run: {error.strerror}"
            return _proven("shell", "", options.nonce, wrong)
    last = _last_lines(done.stdout, done.stderr)
    return _proven("shell", _our_blocks(home, done.stdout), options.nonce, last)


def _our_blocks(home: HermesHome, output: str) -> str:
    """Return the messages of the blocks by our hooks in the output of `hermes hooks test`."""
    found, is_ours = [], False
    for line in map(str.strip, output.splitlines()):
        if line.startswith(_FIRED):
            is_ours = home.is_ours(line.removeprefix(_FIRED))
        if not (is_ours and line.startswith(_PARSED)):
            continue
        try:
            parsed = json.loads(line.removeprefix(_PARSED))
        except ValueError:
            continue
        if isinstance(parsed, dict) and parsed.get("action") == "block":
            found.append(str(parsed.get("message")))
    return " / ".join(found)


def _last_lines(*outputs: str) -> str:
    lines = [line.strip() for output in outputs for line in output.splitlines() if line.strip()]
    return "; ".join(lines[-4:]) or "nothing came"
