"""What a configuration of Hermes loads to with our entries: the proof of edits of its text."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

PLUGIN = "dragoman"
"""The name in `plugins.enabled`."""

CALLBACK = "hook_callback_timeout"
CALLBACK_PATH = f"plugins.{CALLBACK}"


@dataclass(slots=True, frozen=True)
class ConfigEntries:
    """What a configuration has of ours.

    Attributes:
        command: the command of the shell hooks.
        timeouts: the timeout of each event with a shell hook.
        plugin: whether the plugin is enabled.
        callback_timeout: the seconds that a callback of a plugin must be given, at least.
    """

    command: str = ""
    timeouts: Mapping[str, int] = field(default_factory=dict)
    plugin: bool = False
    callback_timeout: int | None = None

    def item(self, event: str) -> dict[str, Any]:
        """Return the entry of an event."""
        return {"command": self.command, "timeout": self.timeouts[event]}


@dataclass(slots=True, frozen=True)
class ConfigChange:
    """From which entries a configuration comes to which.

    Attributes:
        wanted: our entries in it afterwards.
        is_ours: tells whether a command of a shell hook is one of ours.
        before: the source text of the values that we replaced, by their path; None for one that
            was not there.
        after: the same, afterwards.
        callback_timeout: the seconds that we gave callbacks last.
    """

    wanted: ConfigEntries
    is_ours: Callable[[str], bool]
    before: Mapping[str, str | None]
    after: Mapping[str, str | None]
    callback_timeout: int | None


def expected(data: Any, change: ConfigChange) -> dict[str, Any]:
    """Return the values of a configuration after a change."""
    found = copy.deepcopy(data) or {}
    assert isinstance(found, dict)
    _expect_hooks(found, change)
    _expect_plugins(found, change)
    return found


def _expect_hooks(data: dict[str, Any], change: ConfigChange) -> None:
    hooks = data.get("hooks") or {}
    if not isinstance(hooks, dict):
        return
    had = False
    for event, items in list(hooks.items()):
        ours = [one for one in items if _is_ours(one, change)] if type(items) is list else []
        had |= bool(ours)
        if ours and event in change.wanted.timeouts:
            ours.pop(0).update(change.wanted.item(event))
        if ours:
            hooks[event] = [one for one in items if all(one is not other for other in ours)]
            if not hooks[event]:
                _restore(hooks, event, f"hooks.{event}", change.before)
    for event in change.wanted.timeouts:
        items = hooks.get(event) or []
        if not any(_is_ours(one, change) for one in items):
            hooks[event] = [*items, change.wanted.item(event)]
    if hooks:
        data["hooks"] = hooks
    elif had:
        _restore(data, "hooks", "hooks", change.before)


def _is_ours(item: Any, change: ConfigChange) -> bool:
    command = item.get("command") if isinstance(item, dict) else None
    return isinstance(command, str) and change.is_ours(command)


def _expect_plugins(data: dict[str, Any], change: ConfigChange) -> None:
    plugins = data.get("plugins") or {}
    if not isinstance(plugins, dict):
        return
    had, enabled = bool(plugins), plugins.get("enabled") or []
    enabled = enabled if isinstance(enabled, list) else []
    if change.wanted.plugin and PLUGIN not in enabled:
        plugins["enabled"] = [*enabled, PLUGIN]
    if not change.wanted.plugin and PLUGIN in enabled:
        plugins["enabled"] = [name for name in enabled if name != PLUGIN]
        if not plugins["enabled"]:
            _restore(plugins, "enabled", "plugins.enabled", change.before)
    if CALLBACK_PATH in change.after:
        plugins[CALLBACK] = change.wanted.callback_timeout
    elif CALLBACK_PATH in change.before and plugins.get(CALLBACK) == change.callback_timeout:
        del plugins[CALLBACK]
        if change.before[CALLBACK_PATH] is not None:
            plugins[CALLBACK] = read_source(change.before[CALLBACK_PATH])
    if plugins:
        data["plugins"] = plugins
    elif had:
        _restore(data, "plugins", "plugins", change.before)


def _restore(data: dict[str, Any], name: str, path: str, before: Mapping[str, str | None]) -> None:
    """Put back what was there before ours, nothing where nothing was."""
    del data[name]
    if path in before:
        data[name] = read_source(before[path])


def read_source(source: str | None) -> Any:
    """Return the value of a source text; None for nothing as well."""
    return None if source is None else yaml.safe_load(source)


def same_values(one: Any, other: Any) -> bool:
    """Tell whether two values are the same, with their types; a NaN is the same as another."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_values, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)
