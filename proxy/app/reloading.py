"""Reloads the configuration of a server that runs, when SIGHUP says so.

Keys, backends, routes, captures and the log level change at once; all else is what it was until a
restart, and is named. A configuration with a mistake changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from proxy.app.configurations import configuration_hash
from proxy.base import logs
from proxy.base.errors import ConfigError, JournalError
from proxy.base.metrics import RELOADS
from proxy.config.settings import (
    BackendSettings,
    RouteSettings,
    Settings,
    Table,
    contradictions,
)
from proxy.http.auth import Key
from proxy.recording.recording import Captures
from proxy.sessions.backends import load_dialects
from proxy.sessions.sessions import Sessions

_RELOADED = frozenset({"log", "keys", "backends", "routes", "capture"})
"""The tables that can change while the server runs."""

_Named = BackendSettings | RouteSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reload does: the `settings` that hold from now on, what changes with them, which
    backends `stay` though they were removed, and the names of what waits for a restart."""

    settings: Settings
    changes: tuple[str, ...]
    stay: tuple[str, ...]
    restart: tuple[str, ...]

    def __str__(self) -> str:
        """Return it in words, as it is logged."""
        parts = [*(self.changes or ("nothing changed",)), *self.stay]
        if self.restart:
            parts.append(f"needs a restart: {', '.join(self.restart)}")
        return "; ".join(parts)


async def reload_when_told(
    sessions: Sessions, read: Callable[[], Settings], told: asyncio.Event
) -> None:
    """Reload each time that `told` is set, for as long as the server runs."""
    while True:
        await told.wait()
        # What is said from here on is about a newer file.
        told.clear()
        await reload(sessions, read)


async def reload(sessions: Sessions, read: Callable[[], Settings]) -> None:
    """Take the configuration that `read` returns, as far as it can change while the server runs;
    the log says what changed, or why nothing did."""
    try:
        found = await asyncio.to_thread(lambda: load_dialects(read()))
        await sessions.backends.compare(sessions.journal, found)
        # From here to the end of `_use` nobody else works: no session begins in between.
        folder = None if sessions.captures is None else sessions.captures.dir
        done = plan(sessions.settings, found, using=sessions.cache.using, folder=folder)
        _use(sessions, done.settings)
    except (ConfigError, JournalError) as error:
        RELOADS.labels("refused").inc()
        _log.error("the configuration is not reloaded, nothing changes: %s", error.whole)
        return
    except Exception:  # noqa: BLE001 - said in the log, and the next one may succeed
        RELOADS.labels("refused").inc()
        _log.exception("the configuration is not reloaded")
        return
    logs.change(level=done.settings.log.level, secrets=done.settings.secrets())
    RELOADS.labels("ok").inc()
    _log.log(logging.WARNING if done.restart else logging.INFO, "reloaded: %s", done)
    try:
        await sessions.backends.keep(sessions.journal)
    except JournalError as error:
        _log.warning("what was reloaded is stored by the next start: %s", error.whole)


def _use(sessions: Sessions, settings: Settings) -> None:
    """Let a configuration count for what is asked from now on.

    Raises:
        ConfigError: the folder for captures cannot be made; nothing has changed.
    """
    captures = sessions.captures
    if captures is not None:
        captures.use(settings.capture)
    elif settings.capture is not None:
        captures = Captures(settings.capture, sessions.clock.now)
    sessions.captures = sessions.cache.captures = captures
    sessions.settings = settings
    sessions.keys = Key.from_settings(settings.keys)
    sessions.backends.use(settings)
    if (node := sessions.journal.shared) is not None:
        node.configuration = configuration_hash(settings)


def plan(
    now: Settings, found: Settings, *, using: Callable[[str], int], folder: Path | None
) -> Plan:
    """Return what a reload from `now` to `found` does. `using` returns how many sessions use a
    backend; `folder` is where captures are written, if any were since the start.

    Raises:
        ConfigError: with what only a restart changes, `found` would contradict itself.
    """
    kept: dict[str, object] = {}
    restart: list[str] = []
    for name in Settings.model_fields:
        was, will = getattr(now, name), getattr(found, name)
        if name not in _RELOADED and was != will:
            kept[name] = was
            restart += _differing(name, was, will)
    if bool(now.keys) != bool(found.keys):
        # Without keys everybody is somebody else, and pages and refusals are other ones.
        kept["keys"] = now.keys
        restart.append("the first key" if found.keys else "the last key's removal")
    capture = found.capture
    if folder is not None and capture is not None and capture.dir != folder:
        kept["capture"] = capture.model_copy(update={"dir": folder})
        restart.append("capture.dir")
    # Calls of one dialect must not go to a server of another.
    others = {one.name: one for one in now.backends if _dialect_differs(one, found)}
    restart += [f"the dialect of backend `{name}`" for name in others]
    gone = [one for one in now.backends if found.backend(one.name) is None]
    used = [(one, count) for one in gone if (count := using(one.name))]
    kept["backends"] = (
        *(others.get(one.name, one) for one in found.backends),
        *(one for one, _ in used),
    )
    settings = found.model_copy(update=kept)
    stay = tuple(_stays(one, count) for one, count in used)
    if (restart or stay) and (problems := contradictions(settings)):
        why = f"it contradicts what stays until a restart ({', '.join((*restart, *stay))}): "
        raise ConfigError(why + "; ".join(problems))
    return Plan(settings, tuple(_changes(now, settings)), stay, tuple(restart))


def _differing(name: str, was: object, will: object) -> list[str]:
    """Return the names of the settings of a table that differ, or of what is not a table."""
    if not isinstance(was, Table) or not isinstance(will, Table):
        return [name]
    return [
        f"{name}.{member}"
        for member in type(was).model_fields
        if getattr(was, member) != getattr(will, member)
    ]


def _dialect_differs(was: BackendSettings, found: Settings) -> bool:
    will = found.backend(was.name)
    return will is not None and will.dialect != was.dialect


def _stays(backend: BackendSettings, count: int) -> str:
    many = "1 session" if count == 1 else f"{count} sessions"
    return f"backend `{backend.name}` is still used by {many}, so it stays until a restart"


def _changes(now: Settings, then: Settings) -> Iterator[str]:
    keys = {(key.name, key.sha256) for key in now.keys}, {(k.name, k.sha256) for k in then.keys}
    gone, new = len(keys[0] - keys[1]), len(keys[1] - keys[0])
    if gone or new:
        counts = (f"+{new}" if new else "", f"−{gone}" if gone else "")
        yield f"keys {' '.join(filter(None, counts))}"
    elif now.keys != then.keys:
        yield "what keys may changed"
    yield from _named("backend", now.backends, then.backends)
    yield from _named("route", now.routes, then.routes)
    if now.capture != then.capture:
        yield "capture changed"
    if now.log.level != then.log.level:
        yield f"log.level is `{then.log.level}`"


def _named(kind: str, now: Iterable[_Named], then: Iterable[_Named]) -> Iterator[str]:
    """Yield what became of the backends, or routes, each by its name."""
    was, will = {one.name: one for one in now}, {one.name: one for one in then}
    for name in was | will:
        if name not in will:
            yield f"{kind} `{name}` removed"
        elif name not in was:
            yield f"{kind} `{name}` added"
        elif was[name] != will[name]:
            yield f"{kind} `{name}` changed"
