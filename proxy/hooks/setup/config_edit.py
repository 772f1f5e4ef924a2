"""Edits a Hermes home's `config.yaml` as text, so that all but our own lines stay as they are.

PyYAML says where keys and values are. What is written is proven: the new text must load to what
was loaded before, with our change and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from .config_proof import (
    CALLBACK,
    CALLBACK_PATH,
    PLUGIN,
    ConfigChange,
    ConfigEntries,
    expected,
    read_source,
    same_values,
)
from .yaml_text import (
    Edit,
    EditRefused,
    YamlText,
    column_of,
    compose_yaml,
    end_of,
    is_null,
    line_of,
    load_yaml,
    member_of,
    unusual,
    value_of,
)


@dataclass(slots=True)
class ConfigEdit:
    """Brings the entries of ours in a configuration to what they shall be.

    Attributes:
        text: the configuration.
        wanted: our entries in it afterwards.
        is_ours: tells whether a command of a shell hook is one of ours.
        before: the source text of the values that we replaced, by their path; None for one that
            was not there. It is brought up to date.
        callback_timeout: the seconds that we gave callbacks last.
    """

    text: str
    wanted: ConfigEntries
    is_ours: Callable[[str], bool]
    before: dict[str, str | None]
    callback_timeout: int | None = None
    _yaml: YamlText = field(init=False)
    _root_lines: list[str] = field(default_factory=list)

    def edited(self) -> str:
        """Return the new text.

        Raises:
            EditRefused: it is not YAML, or written in a way that is not edited.
        """
        root = compose_yaml(self.text)
        data = load_yaml(self.text)
        if root is not None and not (is_null(root) or isinstance(root, yaml.MappingNode)):
            raise EditRefused("it is not a mapping")
        _check_keys_once(root)
        self._yaml = YamlText(self.text)
        recorded = dict(self.before)
        self._plan_hooks(root)
        self._plan_plugins(root)
        if self._root_lines:
            self._add_to_root(root)
        if not self._yaml.edits:
            return self.text
        text = self._yaml.applied()
        self._prove(data, text, recorded)
        return text

    def lines_by_hand(self) -> list[str]:
        """Return what a person adds instead."""
        lines = self._hook_lines(self.wanted.timeouts, 2)
        lines = ["hooks:", *lines] if lines else []
        if self.wanted.plugin:
            lines += ["plugins:", f"  enabled: [{PLUGIN}]"]
        if self.wanted.callback_timeout is not None:
            lines += [f"  {CALLBACK}: {self.wanted.callback_timeout}"]
        return lines

    # Shell hooks.

    def _plan_hooks(self, root: Any) -> None:
        """Plan what changes below `hooks`."""
        key, value = member_of(root, "hooks")
        wanted = dict(self.wanted.timeouts)
        if key is None:
            if wanted:
                self._root_lines += ["hooks:", *self._hook_lines(wanted, 2)]
            return
        if not (isinstance(value, yaml.MappingNode) and value.value):
            if wanted:
                self._fill(key, value, "hooks", self._hook_lines(wanted, column_of(key) + 2))
            return
        ours = {name.value: self._our_items(events) for name, events in value.value}
        if not wanted and not any(ours.values()):
            return
        self._yaml.check_plain(key, value)
        if value.flow_style:
            raise EditRefused(f"line {line_of(key)}: `hooks` is written in braces")
        left = 0
        for name, events in value.value:
            is_wanted = wanted.pop(name.value, None) is not None
            left += self._plan_event(name, events, ours[name.value], is_wanted=is_wanted)
        if wanted:
            self._append(value, self._hook_lines(wanted, column_of(value)))
        elif not left:
            self._emptied(key, "hooks")

    def _our_items(self, events: Any) -> list[Any]:
        items = events.value if isinstance(events, yaml.SequenceNode) else []
        return [item for item in items if self._is_our_item(item)]

    def _is_our_item(self, item: Any) -> bool:
        _, command = member_of(item, "command")
        return isinstance(command, yaml.ScalarNode) and self.is_ours(command.value)

    def _plan_event(self, key: Any, value: Any, ours: Sequence[Any], *, is_wanted: bool) -> bool:
        """Plan what changes at an event; return whether its key stays."""
        path = f"hooks.{key.value}"
        if not is_wanted:
            return not ours or self._remove_items(key, value, ours, path)
        if ours:
            self._update(ours[0], self.wanted.item(key.value))
            if ours[1:]:
                self._remove_items(key, value, ours[1:], path)
        else:
            self._add_item(key, value, path, self.wanted.item(key.value))
        return True

    def _update(self, item: Any, entry: Mapping[str, Any]) -> None:
        """Plan that an entry of ours has today's command and timeout."""
        for name, wanted in entry.items():
            key, value = member_of(item, name)
            if key is None:
                first = item.value[0][0]
                between = ", " if item.flow_style else self._yaml.eol + " " * column_of(first)
                at = first.start_mark.index
                self._yaml.edits.append((at, at, f"{name}: {_scalar(wanted)}{between}"))
            elif value_of(value) != wanted:
                place = (value.start_mark.index, value.end_mark.index)
                self._yaml.edits.append((*place, _scalar(wanted)))

    def _hook_lines(self, events: Iterable[str], indent: int) -> list[str]:
        lines = []
        for event in events:
            lines.append(" " * indent + f"{event}:")
            lines += _block_item(self.wanted.item(event), indent + 2)
        return lines

    # Plugins.

    def _plan_plugins(self, root: Any) -> None:
        """Plan what changes below `plugins`."""
        key, value = member_of(root, "plugins")
        enabled, callback = member_of(value, "enabled"), member_of(value, CALLBACK)
        given = self._callback_source(*callback)
        changes_enabled = self.wanted.plugin != bool(_plugin_items(enabled[1]))
        changes_callback = given != self._source_behind(*callback)
        if not (changes_enabled or changes_callback):
            return
        lines = []
        if self.wanted.plugin and enabled[0] is None:
            lines += ["enabled:", f"  - {PLUGIN}"]
        if callback[0] is None and given is not None:
            lines += [f"{CALLBACK}:{given}"]
        if key is None:
            self._root_lines += ["plugins:", *("  " + line for line in lines)]
            return
        if not (isinstance(value, yaml.MappingNode) and value.value):
            indent = " " * (column_of(key) + 2)
            self._fill(key, value, "plugins", [indent + line for line in lines])
            return
        self._yaml.check_plain(key, value)
        if value.flow_style:
            raise EditRefused(f"line {line_of(key)}: `plugins` is written in braces")
        left = sum(name.value not in {"enabled", CALLBACK} for name, _ in value.value)
        if enabled[0] is not None:
            left += self._plan_enabled(*enabled) if changes_enabled else 1
        if callback[0] is not None:
            left += self._plan_callback(*callback, given) if changes_callback else 1
        if lines:
            self._append(value, [" " * column_of(value) + line for line in lines])
        elif not left:
            self._emptied(key, "plugins")

    def _plan_enabled(self, key: Any, value: Any) -> bool:
        path = "plugins.enabled"
        if self.wanted.plugin:
            self._add_item(key, value, path, PLUGIN)
            return True
        return self._remove_items(key, value, _plugin_items(value), path)

    def _callback_source(self, key: Any, value: Any) -> str | None:
        """Return what stands behind the key of the callbacks' timeout afterwards, None where
        nothing is said; and note what was there."""
        source, needed = self._source_behind(key, value), self.wanted.callback_timeout
        if CALLBACK_PATH in self.before:
            recorded = self.before.pop(CALLBACK_PATH)
            if self.callback_timeout is not None and read_source(source) == self.callback_timeout:
                source = recorded
        seconds = read_source(source)
        if needed is None or (isinstance(seconds, int | float) and seconds >= needed):
            return source
        self.before[CALLBACK_PATH] = source
        return f" {needed}"

    def _plan_callback(self, key: Any, value: Any, source: str | None) -> bool:
        if source is None:
            self._yaml.edits.append(self._yaml.lines_of(key, value))
            return False
        self._yaml.edits.append((self._yaml.colon(key), value.end_mark.index, source))
        return True

    def _source_behind(self, key: Any, value: Any) -> str | None:
        """Return the text from the colon of a key to the end of its value."""
        return None if key is None else self.text[self._yaml.colon(key) : value.end_mark.index]

    # Lists and mappings.

    def _add_item(self, key: Any, value: Any, path: str, item: Any) -> None:
        """Plan that a list has one more item, the last."""
        if is_null(value):
            self._fill(key, value, path, _block_item(item, column_of(key) + 2))
        elif not isinstance(value, yaml.SequenceNode):
            raise EditRefused(f"line {line_of(key)}: `{path}` is not a list")
        elif value.value and value.flow_style:
            at = end_of(value.value[-1])
            self._yaml.edits.append((at, at, f", {_flow(item)}"))
        elif value.value:
            self._append(value, _block_item(item, column_of(value)))
        else:
            self.before[path] = self._yaml.source(value)
            place = (value.start_mark.index, value.end_mark.index)
            self._yaml.edits.append((*place, f"[{_flow(item)}]"))

    def _remove_items(self, key: Any, value: Any, items: Sequence[Any], path: str) -> bool:
        """Plan that items of ours leave a list; return whether its key stays."""
        self._yaml.check_plain(key, value)
        is_emptied = len(items) == len(value.value)
        if is_emptied and value.flow_style:
            if path in self.before:
                source = (self.before.pop(path) or "").strip() or "null"
                self._yaml.edits.append((value.start_mark.index, value.end_mark.index, source))
                return True
            self._yaml.edits.append(self._yaml.lines_of(key, value))
            return False
        for item in items:
            if value.flow_style:
                self._yaml.edits.append(_flow_range(value.value, item))
            else:
                self._yaml.edits.append(self._yaml.lines_of_item(item))
        return self._emptied(key, path) if is_emptied else True

    def _emptied(self, key: Any, path: str) -> bool:
        """Plan what is left of a block that had nothing but ours; return whether its key stays."""
        if path not in self.before:
            self._yaml.edits.append(self._yaml.lines_of(key, key))
            return False
        at, source = self._yaml.colon(key), self.before.pop(path) or ""
        self._yaml.edits.append(
            (at, at, source if source[:1] in ("", " ", "\n", "\r") else f" {source}")
        )
        return True

    def _fill(self, key: Any, value: Any, path: str, lines: Sequence[str]) -> None:
        """Plan that a value that is null or empty becomes a block below its key."""
        empty = isinstance(value, yaml.MappingNode | yaml.SequenceNode) and not value.value
        if not (empty or is_null(value)):
            raise EditRefused(f"line {line_of(key)}: `{path}` is not what Hermes expects there")
        self._yaml.check_plain(key, value)
        start, end = self._yaml.colon(key), value.end_mark.index
        if self.text[start : value.start_mark.index].strip():
            raise unusual(key)
        self.before[path] = self.text[start:end]
        if start < end:
            self._yaml.edits.append((start, end, ""))
        self._yaml.insert(self._yaml.next_line(end), lines)

    def _append(self, container: Any, lines: Sequence[str]) -> None:
        """Plan lines behind the last entry of a block, and behind its last comments."""
        at, column = self._yaml.next_line(end_of(container), container), column_of(container)
        while (found := re.compile(r"( *)#.*(?:\n|\Z)").match(self.text, at)) is not None:
            if len(found[1]) <= column:
                break
            at = found.end()
        self._yaml.insert(at, lines)

    def _add_to_root(self, root: Any) -> None:
        if isinstance(root, yaml.MappingNode):
            if root.flow_style:
                raise EditRefused("it is written in braces")
            self._append(root, [" " * column_of(root) + line for line in self._root_lines])
        else:
            self._yaml.insert(len(self.text), self._root_lines)

    def _prove(self, data: Any, text: str, recorded: Mapping[str, str | None]) -> None:
        """Refuse a text that does not load to what was there with our change."""
        try:
            found = load_yaml(text)
        except EditRefused:
            found = None
        change = ConfigChange(
            self.wanted, self.is_ours, recorded, self.before, self.callback_timeout
        )
        if not same_values(found or {}, expected(data, change)):
            raise EditRefused("it is written in a way that cannot be edited")


def _check_keys_once(root: Any) -> None:
    """Refuse keys that are there twice: of the document, and below those that we edit."""
    if not isinstance(root, yaml.MappingNode):
        return
    below = [member_of(root, name)[1] for name in ("hooks", "plugins")]
    for mapping in (root, *below):
        seen = set()
        for key, _ in mapping.value if isinstance(mapping, yaml.MappingNode) else ():
            if key.value in seen:
                raise EditRefused(f"line {line_of(key)}: `{key.value}` is there twice")
            seen.add(key.value)


def _plugin_items(enabled: Any) -> list[Any]:
    items = enabled.value if isinstance(enabled, yaml.SequenceNode) else []
    return [one for one in items if isinstance(one, yaml.ScalarNode) and one.value == PLUGIN]


def _flow_range(items: Sequence[Any], item: Any) -> Edit:
    """Return the place of an item among others in brackets, with its comma."""
    at = next(number for number, one in enumerate(items) if one is item)
    if at:
        return end_of(items[at - 1]), end_of(item), ""
    return item.start_mark.index, items[1].start_mark.index, ""


def _scalar(value: Any) -> str:
    """Return a text or a number as JSON, which YAML can read."""
    return json.dumps(value, ensure_ascii=False)


def _flow(item: Any) -> str:
    if isinstance(item, str):
        return item
    return "{" + ", ".join(f"{name}: {_scalar(value)}" for name, value in item.items()) + "}"


def _block_item(item: Any, indent: int) -> list[str]:
    if isinstance(item, str):
        return [" " * indent + f"- {item}"]
    lines = [f"{name}: {_scalar(value)}" for name, value in item.items()]
    return [" " * indent + ("  " if number else "- ") + line for number, line in enumerate(lines)]
