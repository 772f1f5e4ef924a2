"""The text of a YAML file and edits of it, at the places where PyYAML finds its keys and values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

_NULL = "tag:yaml.org,2002:null"

Edit = tuple[int, int, str]
"""Where it begins and ends, and what is there instead."""


class EditRefused(Exception):
    """A configuration that we do not edit: it says why."""


@dataclass(slots=True)
class YamlText:
    """A text and what changes in it.

    Attributes:
        text: the text.
        edits: what changes.
    """

    text: str
    edits: list[Edit] = field(default_factory=list)
    _shared: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        """Find what is used in more than one place."""
        self._shared = [*_anchors_and_aliases(self.text)]

    @property
    def eol(self) -> str:
        """Return how its lines end."""
        return "\r\n" if re.match(r"[^\n]*\r\n", self.text) else "\n"

    def insert(self, at: int, lines: Sequence[str]) -> None:
        """Plan lines at the beginning of a line, or at the end."""
        eol = self.eol
        if at == len(self.text) and not self.text.endswith("\n") and self.text:
            text = "".join(eol + line for line in lines)
        else:
            text = "".join(line + eol for line in lines)
        self.edits.append((at, at, text))

    def source(self, node: Any) -> str:
        """Return the text of a node."""
        return self.text[node.start_mark.index : node.end_mark.index]

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1

    def next_line(self, at: int, node: Any = None) -> int:
        """Return where the line after the one with a place begins; the place itself where it is
        behind the last line of a block of text."""
        if at and self.text[at - 1] == "\n" and _ends_with_block_text(node):
            return at
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end + 1

    def colon(self, key: Any) -> int:
        """Return the place behind the colon of a key."""
        found = re.compile(r"[ \t]*:").match(self.text, key.end_mark.index)
        if found is None:
            raise unusual(key)
        return found.end()

    def lines_of(self, key: Any, value: Any) -> Edit:
        """Return an edit that removes the lines of a member of a block."""
        start = self._line_start(key.start_mark.index)
        if self.text[start : key.start_mark.index].strip(" "):
            raise unusual(key)
        return start, self.next_line(max(end_of(value), end_of(key)), value), ""

    def lines_of_item(self, item: Any) -> Edit:
        """Return an edit that removes the lines of an item of a block."""
        start = self._line_start(item.start_mark.index)
        if re.fullmatch(r" *- *", self.text[start : item.start_mark.index]) is None:
            raise unusual(item)
        return start, self.next_line(end_of(item), item), ""

    def check_plain(self, key: Any, value: Any) -> None:
        """Refuse what is used elsewhere, or comes from there."""
        start, end = key.start_mark.index, value.end_mark.index
        # The value of an alias is where its anchor is.
        shared = [line for at, line in self._shared if start <= at < end]
        if shared or value.start_mark.index < start:
            line = shared[0] if shared else line_of(key)
            raise EditRefused(f"line {line}: `{key.value}` has an anchor or an alias")

    def applied(self) -> str:
        """Return the text with all edits."""
        edits = sorted(self._merged(), key=lambda edit: edit[:2])
        parts, done = [], 0
        for start, end, new in edits:
            parts += [self.text[done:start], new]
            done = max(done, end)
        return "".join([*parts, self.text[done:]])

    def _merged(self) -> Iterator[Edit]:
        """Yield the edits; deletions that meet are one, and one at the end of a text without a
        last newline takes the newline before it."""
        cut = sorted((start, end) for start, end, new in self.edits if not new)
        added = [edit for edit in self.edits if edit[2]]
        yield from added
        while cut:
            start, end = cut.pop(0)
            while cut and cut[0][0] <= end:
                end = max(end, cut.pop(0)[1])
            is_last = end == len(self.text) and not self.text.endswith("\n")
            if is_last and all(edit[0] < start for edit in added):
                start = len(self.text[:start].removesuffix("\n").removesuffix("\r"))
            yield start, end, ""


def compose_yaml(text: str) -> Any:
    """Return the nodes of a document, None for nothing.

    Raises:
        EditRefused: it is not YAML.
    """
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _not_yaml(error) from None


def load_yaml(text: str) -> Any:
    """Return what Hermes loads.

    Raises:
        EditRefused: it is not YAML.
    """
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise _not_yaml(error) from None
    except (ValueError, RecursionError) as error:
        raise EditRefused(f"it is not YAML that Hermes can load: {error}") from None


def _not_yaml(error: Any) -> EditRefused:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f"line {mark.line + 1}: "
    why = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return EditRefused(f"{where}it is not YAML that Hermes can load: {why}")


def _anchors_and_aliases(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each is, with its line."""
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
            yield token.start_mark.index, token.start_mark.line + 1


def member_of(node: Any, name: str) -> tuple[Any, Any]:
    """Return the key and the value of a member of a mapping, None where there is no such one."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.value == name:
            return key, value
    return None, None


def is_null(node: Any) -> bool:
    """Tell whether a node is null."""
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL


def value_of(node: Any) -> Any:
    """Return the value of a scalar."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    return yaml.SafeLoader("").construct_object(node)


def column_of(node: Any) -> int:
    """Return the column where a node begins."""
    column = node.start_mark.column
    assert isinstance(column, int)
    return column


def line_of(node: Any) -> int:
    """Return the line where a node begins, from 1."""
    line = node.start_mark.line
    assert isinstance(line, int)
    return line + 1


def end_of(node: Any) -> int:
    """Return where the text of a node ends: PyYAML lets a block end where the next thing begins."""
    last = _last(node)
    end = last.end_mark.index
    assert isinstance(end, int)
    return end


def _last(node: Any) -> Any:
    """Return the innermost node that a block ends with."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        node = node.value[-1]
        if isinstance(node, tuple):
            node = node[1]
    return node


def _ends_with_block_text(node: Any) -> bool:
    last = _last(node)
    return isinstance(last, yaml.ScalarNode) and last.style in ("|", ">")


def unusual(node: Any) -> EditRefused:
    """Return the refusal of a node that is written in a rare way."""
    return EditRefused(f"line {line_of(node)}: it is written in a way that is not edited")
