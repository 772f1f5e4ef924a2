"""Plans what `dragoman hook install` and `remove` change in a home of Hermes, and makes the change.

A plan holds each file as it is and as it shall be, so that it can be shown before. Other people's
hooks, plugins and consents stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.hooks import delivery

from .config_edit import ConfigEdit
from .config_proof import PLUGIN, ConfigEntries
from .homes import (
    BACKUP,
    CONFIG,
    CONSENTS,
    FOLDERS,
    WAYS,
    FileChange,
    HermesHome,
    InstallRefused,
    Way,
    file_change,
    is_our_folder,
    iso_time,
    json_bytes,
    read_file,
    script_time,
)
from .yaml_text import EditRefused

SPARE_SECONDS = 15
"""What Hermes gives a hook beyond the wait for a decision."""


@dataclass(slots=True)
class InstallPlan:
    """What changes in a home: texts, which are shown as a diff, and copies of our files."""

    home: Path
    texts: list[FileChange] = field(default_factory=list)
    copies: list[FileChange] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    is_removal: bool = False

    @property
    def changes(self) -> list[FileChange]:
        """What is to do, in this order: Hermes reads the configuration, so what it names is there
        before, and goes afterwards."""
        made = [change for change in (*self.copies, *self.texts) if change.is_made]
        return made[::-1] if self.is_removal else made

    def make(self) -> None:
        """Do it.

        Raises:
            InstallRefused: a file has changed since the plan, or cannot be written.
        """
        changes = self.changes
        with _locked(self.home) if changes else contextlib.nullcontext():
            for change in changes:
                if read_file(change.path) != change.before:
                    raise InstallRefused(f"{change.path} has changed meanwhile: run it again")
            self._back_up()
            for change in changes:
                try:
                    change.make()
                except OSError as error:
                    text = f"{change.path} cannot be written: {error.strerror}"
                    raise InstallRefused(text) from None
        for folder in self.folders:
            _remove_folder(folder)

    def _back_up(self) -> None:
        """Keep the configuration as it was before us."""
        config, backup = self.home / CONFIG, self.home / BACKUP
        made = any(change.path == config for change in self.changes)
        if made and not self.is_removal and config.exists() and not backup.exists():
            mode = stat.S_IMODE(config.stat().st_mode)
            FileChange(backup, None, config.read_bytes(), mode).make()


@dataclass(slots=True)
class InstallOptions:
    """What the command line asks for; None leaves it as it is."""

    ways: Sequence[Way] = ("shell",)
    url: str | None = None
    gate: str | None = None
    wait_seconds: int | None = None
    on_doubt: str | None = None
    secret: str | None = None

    def over(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with these."""
        given = {
            "url": self.url,
            "secret": self.secret,
            "gate": self.gate,
            "wait_seconds": self.wait_seconds,
            "on_doubt": self.on_doubt,
        }
        usual = delivery.HookSettings()
        merged: dict[str, Any] = {
            "version": 1,
            "url": usual.url,
            "gate": usual.gate,
            "wait_seconds": usual.wait_seconds,
            "on_doubt": usual.on_doubt,
            **settings,
        }
        return merged | {name: value for name, value in given.items() if value is not None}


def plan_install(home: HermesHome, options: InstallOptions, *, now: int) -> InstallPlan:
    """Return what an installation changes. What is there already follows the settings as well.

    Args:
        home: where.
        options: what is asked for.
        now: Unix milliseconds.

    Raises:
        InstallRefused: it cannot be done.
    """
    old = home.read_settings()
    settings = options.over(old)
    wanted = {*options.ways, *home.ways()}
    ways = tuple(way for way in WAYS if way in wanted)
    _check(settings, ways)
    entries = _entries(home, settings, ways)
    plan = InstallPlan(home.folder)
    for way in FOLDERS:
        if way in ways:
            plan.copies += _copies(home, way)
    if "plugin" in ways and PLUGIN in home.plugin_names("disabled"):
        text = "the plugin is in `plugins.disabled`: run `hermes plugins enable dragoman` first"
        raise InstallRefused(text)
    config, before = _edit(home, entries, old)
    settings["before"] = before
    plan.texts += [_settings_change(home, settings), _consents(home, entries, now=now), config]
    return plan


def plan_removal(home: HermesHome, ways: Sequence[Way] = WAYS, *, now: int) -> InstallPlan:
    """Return what changes when ways are taken out.

    Raises:
        InstallRefused: it cannot be done.
    """
    try:
        old = home.read_settings()
    except InstallRefused:
        old = {}
    left = tuple(way for way in home.ways() if way not in ways)
    entries = _entries(home, InstallOptions().over(old), left)
    if "shell" in left:  # as they are
        found = {event: items[0] for event, items in home.hooks().items()}
        commands = [item["command"] for item in found.values()]
        timeouts = {event: item.get("timeout", 60) for event, item in found.items()}
        entries = ConfigEntries(commands[0], timeouts, entries.plugin, entries.callback_timeout)
    plan = InstallPlan(home.folder, is_removal=True)
    config, before = _edit(home, entries, old)
    if left and old:
        settings = _settings_change(home, old | {"before": before})
    else:
        settings = file_change(home.folder / delivery.SETTINGS_FILE, None)
    plan.texts += [settings, _consents(home, entries, now=now), config]
    for way in FOLDERS:
        folder = home.folder_of(way)
        if way in ways and is_our_folder(folder):
            plan.folders.append(folder)
            plan.copies += [file_change(path, None) for path in _our_paths(folder, way)]
    return plan


def hook_command(program: Sequence[str], home: Path) -> str:
    """Return the command of the shell hooks."""
    return shlex.join([*program, "hook", "--home", str(home)])


def shipped(way: Way) -> dict[str, bytes]:
    """Return the files of a way, by their names."""
    here = Path(delivery.__file__).parent
    found = [here / "delivery.py", *sorted((here / way).iterdir())]
    return {
        path.name: path.read_bytes()
        for path in found
        if path.suffix in {".py", ".yaml"}
        # Of a gateway's hook it makes our own folder a package, no more.
        if (way, path.name) != ("gateway", "__init__.py")
    }


def _check(settings: Mapping[str, Any], ways: Sequence[Way]) -> None:
    try:
        delivery.check_settings(settings)
    except ValueError as error:
        raise InstallRefused(str(error)) from None
    most = delivery.MOST_SHELL_WAIT
    if "shell" in ways and settings["wait_seconds"] > most:
        text = f"a shell hook can wait {most} seconds at most: Hermes ends it after 300"
        raise InstallRefused(text)


def needed_timeout(settings: Mapping[str, Any]) -> int:
    """Return the seconds that Hermes must give to a hook that waits."""
    return int(-(-settings["wait_seconds"] // 1)) + SPARE_SECONDS


def shell_timeouts(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the timeout of each event with a shell hook."""
    needed = needed_timeout(settings)
    return {
        event: needed if event == delivery.GATE else SPARE_SECONDS
        for event in delivery.EVENTS
        if event in delivery.EVENTS_0_19
    }


def _entries(home: HermesHome, settings: Mapping[str, Any], ways: Sequence[Way]) -> ConfigEntries:
    plugin = "plugin" in ways
    return ConfigEntries(
        command=home.command,
        timeouts=shell_timeouts(settings) if "shell" in ways else {},
        plugin=plugin,
        callback_timeout=needed_timeout(settings) if plugin else None,
    )


def _edit(
    home: HermesHome, entries: ConfigEntries, old: Mapping[str, Any]
) -> tuple[FileChange, dict[str, str | None]]:
    """Return the change of the configuration, and what was there before ours."""
    path = home.folder / CONFIG
    before = dict(old.get("before") or {})
    seconds = needed_timeout(old) if old else None
    text = home.read_config()
    edit = ConfigEdit(text, entries, home.is_ours, before, seconds)
    try:
        edited = edit.edited()
    except EditRefused as error:
        lines = edit.lines_by_hand()
        if not lines:
            raise InstallRefused(f"{path}: {error}. Take out our lines by hand") from None
        what = f"{path}: {error}. It stays as it is: add these lines by hand"
        raise InstallRefused(what, lines) from None
    # One that was not there goes again.
    if read_file(path) is None and not edited:
        return file_change(path, None), edit.before
    if read_file(path) is None:
        edit.before[""] = None
    elif not edited and "" in edit.before:
        return file_change(path, None), edit.before
    return file_change(path, edited.encode()), edit.before


def _settings_change(home: HermesHome, settings: Mapping[str, Any]) -> FileChange:
    kept = {name: value for name, value in settings.items() if name != "before" or value}
    return file_change(home.folder / delivery.SETTINGS_FILE, json_bytes(kept), mode=0o600)


def _consents(home: HermesHome, entries: ConfigEntries, *, now: int) -> FileChange:
    """Return the consents with one for each of our shell hooks, and without other ones of ours."""
    path = home.folder / CONSENTS
    found = home.read_consents()
    given = list(found.get("approvals", []))
    wanted = dict.fromkeys(entries.timeouts)
    kept = []
    for one in given:
        command = one.get("command") if isinstance(one, dict) else None
        if not (isinstance(command, str) and home.is_ours(command)):
            kept.append(one)
            continue
        event, changed = one.get("event"), one.get("script_mtime_at_approval")
        if event in wanted and command == entries.command and changed == script_time(command):
            del wanted[event]
            kept.append(one)
    kept += [
        {
            "event": event,
            "command": entries.command,
            "approved_at": iso_time(now / 1000),
            "script_mtime_at_approval": script_time(entries.command),
        }
        for event in wanted
    ]
    if kept == given:
        return file_change(path, read_file(path))
    if not kept and found.keys() <= {"approvals"}:
        return file_change(path, None)
    return file_change(
        path, json.dumps(found | {"approvals": kept}, indent=2, sort_keys=True).encode()
    )


def _copies(home: HermesHome, way: Way) -> Iterator[FileChange]:
    folder = home.folder_of(way)
    if folder.is_symlink():
        raise InstallRefused(f"{folder} is a link: remove it first")
    if folder.exists() and any(folder.iterdir()) and not is_our_folder(folder):
        raise InstallRefused(f"{folder} has files that are not ours: move it away first")
    files = shipped(way)
    for name, content in files.items():
        yield file_change(folder / name, content)
    # What an older version had and today's has not stays: nobody imports it.


def _our_paths(folder: Path, way: Way) -> list[Path]:
    return [path for name in shipped(way) if (path := folder / name).is_file()]


def _remove_folder(folder: Path) -> None:
    """Remove what Python made of our files, and the folder if nothing else is in it."""
    cache = folder / "__pycache__"
    for path in cache.glob("*.pyc"):
        if not (folder / f"{path.name.partition('.')[0]}.py").exists():
            path.unlink(missing_ok=True)
    for one in (cache, folder):
        with contextlib.suppress(OSError):
            one.rmdir()


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock under which Hermes changes its consents."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (home / f"{CONSENTS}.lock").open("a+") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield
