"""JSON Patch (RFC 6902) and its pointers (RFC 6901): a value with changes.

Ours and not a library's, because what comes from outside is bounded here: a patch that copies a
value into itself doubles it with each operation.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.wire.jsonvalue import format_json

VALUE_BYTES = 1024 * 1024
"""Bytes of a value as JSON above which no patch makes one."""

OPERATIONS = 10_000
"""Operations of one patch: more than an application makes in one step."""


class PatchError(ValueError):
    """A patch does not fit the value, or is not one; the value is as it was."""


def patched(value: Any, patch: Sequence[Any]) -> Any:
    """Return a value with a patch applied; the value itself stays as it is.

    Raises:
        PatchError: it does not apply, or makes too large a value.
    """
    if len(patch) > OPERATIONS:
        raise PatchError(f"a patch has more than {OPERATIONS} operations")
    made = copy.deepcopy(value)
    size = 0
    for number, operation in enumerate(patch):
        try:
            made, more = _applied(made, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PatchError(f"operation {number + 1} does not apply") from error
        size += more
        if size > VALUE_BYTES:
            raise PatchError(f"a patch adds more than {VALUE_BYTES} bytes")
    return made


def _applied(root: Any, operation: Mapping[str, Any]) -> tuple[Any, int]:
    """Return a value after an operation, and how many bytes that adds at most."""
    kind, path = operation["op"], _path(operation["path"])
    match kind:
        case "test":
            if _get(root, path) != operation["value"]:
                raise PatchError("the value is another one")
            return root, 0
        case "remove":
            return _without(root, path), 0
        case "add" | "replace":
            value = copy.deepcopy(operation["value"])
            put = _put(root, path, value, insert=kind == "add")
            return put, len(format_json(value))
        case "move" | "copy":
            source = _path(operation["from"])
            value = _get(root, source)
            if kind == "copy":
                value = copy.deepcopy(value)
            else:
                root = _without(root, source)
            return _put(root, path, value, insert=True), len(format_json(value))
        case _:
            raise PatchError("the operation is not known")


def _path(pointer: Any) -> list[str]:
    if pointer == "":
        return []
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise PatchError("a pointer is a text that begins with a slash")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _index(part: str) -> int:
    if not part.isascii() or not part.isdecimal() or len(part) > 9:
        raise PatchError("a list has numbers")
    return int(part)


def _get(root: Any, path: Sequence[str]) -> Any:
    for part in path:
        root = root[_index(part)] if isinstance(root, list) else root[part]
    return root


def _put(root: Any, path: Sequence[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, name = _get(root, path[:-1]), path[-1]
    if isinstance(parent, list):
        place = len(parent) if name == "-" else _index(name)
        if insert and place <= len(parent):
            parent.insert(place, value)
        else:
            parent[place] = value
    elif isinstance(parent, dict):
        if not insert and name not in parent:
            raise PatchError("there is nothing to replace")
        parent[name] = value
    else:
        raise PatchError("the parent has no members")
    return root


def _without(root: Any, path: Sequence[str]) -> Any:
    if not path:
        return None
    parent = _get(root, path[:-1])
    del parent[_index(path[-1]) if isinstance(parent, list) else path[-1]]
    return root
