"""A home of Hermes: its files that we read and change, and what is ours in them."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast, get_args

from proxy.hooks import delivery

from .config_proof import PLUGIN
from .yaml_text import EditRefused, load_yaml

Way = Literal["shell", "plugin", "gateway"]
WAYS: tuple[Way, ...] = get_args(Way)

CONFIG = "config.yaml"
CONSENTS = "shell-hooks-allowlist.json"
BACKUP = f"{CONFIG}.before-dragoman"
FOLDERS: Mapping[Way, str] = {"plugin": f"plugins/{PLUGIN}", "gateway": f"hooks/{PLUGIN}"}
"""The folders of our files in a home."""

_SCRIPTS = (
    *(".sh", ".bash", ".zsh", ".fish", ".py", ".pyw"),
    *(".rb", ".pl", ".lua", ".js", ".mjs", ".cjs", ".ts"),
)


_MODULES = {"dragoman", __name__.partition(".hooks.")[0].rpartition(".")[2]}
"""What `python -m` runs as this program; a wheel has ours below another package."""


class InstallRefused(Exception):
    """A home that is left as it is. Says why, and has lines that a person can add instead."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = list(lines)


@dataclass(slots=True)
class FileChange:
    """A file as it is and as it shall be; None where there is none."""

    path: Path
    before: bytes | None
    after: bytes | None
    mode: int | None = None

    @property
    def is_made(self) -> bool:
        """Whether there is something to do."""
        return self.before != self.after or self._mode_differs

    @property
    def _mode_differs(self) -> bool:
        if self.mode is None or self.after is None or not self.path.exists():
            return False
        return stat.S_IMODE(self.path.stat().st_mode) != self.mode

    def diff(self) -> list[str]:
        """Return it as a unified diff, without the secret."""
        if self.before == self.after:
            return [f"{self.path}: only its owner may read it"]
        old, new = (_shown(self.path, text) for text in (self.before, self.after))
        one, other = (str(self.path) if text is not None else "/dev/null" for text in (old, new))
        lines, others = (old or "").splitlines(), (new or "").splitlines()
        return [*difflib.unified_diff(lines, others, one, other, lineterm="")]

    def make(self) -> None:
        """Write or remove the file. Nobody sees half of it; a link stays one."""
        path = self.path.resolve()
        if self.after is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = self.mode
        if mode is None:
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as written:
                written.write(self.after)
                written.flush()
                os.fsync(written.fileno())
            os.chmod(name, mode)  # noqa: PTH101 - a name of `mkstemp`
            os.replace(name, path)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)  # noqa: PTH108
            raise


@dataclass(slots=True)
class HermesHome:
    """A home of Hermes, as it is."""

    folder: Path
    command: str = ""

    def read_config(self) -> str:
        """Return the text of the configuration, nothing where there is none.

        Raises:
            InstallRefused: it cannot be read.
        """
        path = self.folder / CONFIG
        try:
            return (read_file(path) or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise InstallRefused(f"{path}: line {line}: it is not UTF-8") from None

    def read_settings(self) -> dict[str, Any]:
        """Return our settings with what else is in their file; nothing where there are none.

        Raises:
            InstallRefused: they cannot be read.
        """
        path = self.folder / delivery.SETTINGS_FILE
        raw = read_file(path)
        if raw is None:
            return {}
        try:
            found = json.loads(raw)
            delivery.check_settings(found)
        except (ValueError, RecursionError) as error:
            text = f"{path} cannot be used: {error}. Mend it, or remove it and install again"
            raise InstallRefused(text) from None
        return cast("dict[str, Any]", found)

    def read_consents(self) -> dict[str, Any]:
        """Return the file of consents.

        Raises:
            InstallRefused: it cannot be read.
        """
        path = self.folder / CONSENTS
        raw = read_file(path)
        found: Any = {"approvals": []}
        if raw is not None:
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(raw)
                if isinstance(found, dict) and isinstance(found.get("approvals", []), list):
                    return found
            raise InstallRefused(f"{path} is not what Hermes writes: move it away")
        return cast("dict[str, Any]", found)

    def is_ours(self, command: str) -> bool:
        """Tell whether a command is `dragoman hook` for this home, of any installation."""
        try:
            words = shlex.split(command)
        except ValueError:
            return False
        if words[-3:-1] == ["hook", "--home"]:
            if Path(words[-1]).expanduser().resolve() != self.folder.resolve():
                return False
            words = words[:-2]
        match words:
            case [program, "hook"]:
                return Path(program).name == "dragoman"
            case [_, "-m", module, "hook"]:
                return module.rpartition(".")[2] in _MODULES
        return False

    def hooks(self) -> dict[str, list[dict[str, Any]]]:
        """Return our entries of shell hooks in the configuration, by their event."""
        hooks = self.loaded().get("hooks")
        found: dict[str, list[dict[str, Any]]] = {}
        for event, items in hooks.items() if isinstance(hooks, dict) else ():
            for item in items if isinstance(items, list) else ():
                command = item.get("command") if isinstance(item, dict) else None
                if isinstance(command, str) and self.is_ours(command):
                    found.setdefault(str(event), []).append(item)
        return found

    def loaded(self) -> dict[str, Any]:
        """Return the configuration, nothing where it is not YAML."""
        try:
            found = load_yaml(self.read_config())
        except (EditRefused, InstallRefused):
            return {}
        return found if isinstance(found, dict) else {}

    def plugin_names(self, name: str) -> list[Any]:
        """Return a list of `plugins`."""
        plugins = self.loaded().get("plugins")
        found = plugins.get(name) if isinstance(plugins, dict) else None
        return found if isinstance(found, list) else []

    def folder_of(self, way: Way) -> Path:
        """Return where the files of a way are."""
        return self.folder / FOLDERS[way]

    def ways(self) -> tuple[Way, ...]:
        """Return the ways that are there, also in parts."""
        found: list[Way] = ["shell"] if self.hooks() else []
        found += [way for way in FOLDERS if is_our_folder(self.folder_of(way))]
        if "plugin" not in found and PLUGIN in self.plugin_names("enabled"):
            found.append("plugin")
        return tuple(found)


def script_time(command: str) -> str | None:
    """Return when the script of a command was changed, as Hermes notes it with a consent."""
    words = shlex.split(command)
    named = [word for word in words if word.lower().endswith(_SCRIPTS)]
    named += [word for word in words if "/" in word or word.startswith("~")]
    try:
        changed = Path(named[0] if named else words[0]).expanduser().stat().st_mtime
    except OSError:
        return None
    return iso_time(changed)


def iso_time(seconds: float) -> str:
    """Return a time as Hermes writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _shown(path: Path, raw: bytes | None) -> str | None:
    if raw is None:
        return None
    text = raw.decode("utf-8", "replace")
    if path.name == delivery.SETTINGS_FILE:
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict) and "secret" in found:
                return json_bytes(found | {"secret": "…"}).decode()
    return text


def is_our_folder(folder: Path) -> bool:
    """Tell whether the files of a folder are ours."""
    return (folder / "delivery.py").is_file() and not folder.is_symlink()


def json_bytes(value: object) -> bytes:
    """Return JSON that people read."""
    return json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n"


def file_change(path: Path, after: bytes | None, *, mode: int | None = None) -> FileChange:
    """Return what becomes of a file."""
    return FileChange(path, read_file(path), after, mode)


def read_file(path: Path) -> bytes | None:
    """Return what is in a file, None where there is none.

    Raises:
        InstallRefused: it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InstallRefused(f"{path} cannot be read: {error.strerror}") from None
