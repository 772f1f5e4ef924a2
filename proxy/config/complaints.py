"""What is wrong with a configuration, in words: where it stands, what it is, what to write.

The library's own sentences are for programmers, so none of them is shown.
"""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Place = tuple[str | int, ...]

_WORDS: Mapping[str, str] = {
    "string_type": "must be a text, in quotes",
    "path_type": "must be the name of a file or folder, in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}

_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "must be more than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than_equal": ("le", "must be at most"),
}


def spell(place: Place) -> str:
    """Return how a reader finds a place: `("backends", 1, "auth", "env")` is the key `auth.env` of
    the second `[[backends]]`."""
    if len(place) > 1 and isinstance(place[1], int):
        return ", ".join([f"`[[{place[0]}]]` {place[1] + 1}", *_keys(place[2:])])
    names = list(itertools.takewhile(lambda part: isinstance(part, str), place))
    table = names[:-1] or names
    rest = place[len(table) :]
    return ", ".join([f"`[{'.'.join(map(str, table))}]`", *_keys(rest)])


def spell_below(place: Place) -> str:
    """Return how a reader finds a place in the value of a variable."""
    if place and isinstance(place[0], int):
        return ", ".join([f"entry {place[0] + 1}", *_keys(place[1:])])
    return ", ".join(_keys(place))


def _keys(place: Place) -> Iterator[str]:
    """Yield each key with those above it, and its number where it stands in a list."""
    names: list[str] = []
    for part in place:
        if isinstance(part, str):
            names.append(part)
        elif names:
            yield f"`{'.'.join(names)}` {part + 1}"
            names = []
    if names:
        yield f"`{'.'.join(names)}`"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the one that is meant, or all."""
    names = sorted(set(known))
    if not names:
        return ": none is configured"
    # So near are `new` and `newest`, but not `name` and `frames`.
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.65):
        return f"; did you mean `{close[0]}`?"
    return f"; known: {', '.join(names)}"


def not_toml(error: tomllib.TOMLDecodeError, text: str, lists: Iterable[str]) -> str:
    """Return what is wrong with a text, and in which line. `lists` are the tables that are written
    in double brackets."""
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error))
    lines = text.rstrip("\n").split("\n")
    number = int(found[2]) if found is not None and found[2] else len(lines)
    why = str(error) if found is None else found[1]
    line = lines[number - 1] if number <= len(lines) else ""
    table = re.match(r"\s*\[+\s*([\w.-]+)\s*\]", line)
    if table is not None and table[1] in lists:
        why = f"write `[[{table[1]}]]`, in double brackets, above each entry"
    elif table is not None and re.search(r"twice|overwrite", why):
        why = f"`[{table[1]}]` stands here a second time: put its keys below the first"
    elif why == "Cannot overwrite a value":
        why = "this key stands here a second time"
    elif why.startswith(("Unterminated string", "Illegal character '\\n'")):
        why = "a text ends with its quote, in the same line"
    elif why == "Invalid value" or why.startswith("Expected newline"):
        why += "; a text stands in double quotes"
    elif why.startswith(("Cannot mutate", "Cannot declare", "Cannot overwrite")):
        why = "this table stands above in one piece, with all its keys"
    return f"line {number}: is not TOML: {why}"


def complaints(
    errors: Iterable[ErrorDetails], root: type[BaseModel]
) -> Iterator[tuple[Place, str]]:
    """Yield where and what each error of the library is; `root` is the model of the whole."""
    for error in errors:
        place: Place = error["loc"]
        match error["type"]:
            case "contradiction":
                yield from ((place + below, why) for below, why in error["ctx"]["problems"])
            case "extra_forbidden" if len(place) > 1:
                known = _model_at(place[:-1], root).model_fields
                yield place, f"unknown key{nearest(str(place[-1]), known)}"
            case "extra_forbidden" if isinstance(error["input"], dict | list):
                yield place, f"unknown table{nearest(str(place[0]), root.model_fields)}"
            case "extra_forbidden":
                yield (), _outside(str(place[0]), root)
            case "missing":
                yield place, "is missing"
            case "literal_error":
                # A word that was chosen from a list, no secret.
                given = str(error["input"])[:40]
                yield place, f"`{given}` is unknown{nearest(given, _literals_at(place, root))}"
            case "value_error":
                yield place, str(error["ctx"]["error"])
            case "tuple_type":
                yield place, _no_list(place, error["input"])
            case "model_type":
                yield place, _no_table(place, error["input"])
            case kind:
                yield place, _other(kind, error)


def member(error: ErrorDetails, root: type[BaseModel]) -> tuple[Place, str]:
    """Return where and what an error of the library is in a JSON body. Nothing of the body is
    quoted but names: it may hold a secret."""
    place: Place = error["loc"]
    match error["type"]:
        case "extra_forbidden":
            fields = _model_at(place[:-1], root).model_fields
            names = [one.alias or name for name, one in fields.items()]
            return place, f"unknown{nearest(str(place[-1]), names)}"
        case "missing":
            return place, "is missing"
        case "literal_error":
            words = ", ".join(f"`{word}`" for word in _literals_at(place, root))
            return place, f"must be one of {words}"
        case "list_type" | "tuple_type":
            return place, "must be a list"
        case "model_type":
            return place, "must be a JSON object"
        case "string_type":
            return place, "must be a text"
        case kind:
            return place, _other(kind, error)


def _other(kind: str, error: ErrorDetails) -> str:
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{words} {error['ctx'][bound]:,.10g}".replace(",", "")
    return _WORDS.get(kind, "has a value that cannot stand here")


def _outside(name: str, root: type[BaseModel]) -> str:
    homes = [
        f"`[[{table}]]`" if get_args(field.annotation)[1:] == (...,) else f"`[{table}]`"
        for table, field in root.model_fields.items()
        if (model := _model_of(field.annotation)) is not None and name in model.model_fields
    ]
    way_out = f"write it below {' or '.join(homes)}" if homes else "no table has such a key"
    return f"the key `{name}` stands outside of all tables: {way_out}"


def _no_list(place: Place, given: object) -> str:
    if len(place) == 1:
        return f"is a list: write `[[{place[0]}]]`, in double brackets, above each entry"
    if isinstance(given, dict):
        return "must be a list: put `[` and `]` around the table"
    return "must be a list: put `[` and `]` around it"


def _no_table(place: Place, given: object) -> str:
    if len(place) == 1 and isinstance(given, list):
        return f"there is one such table: write `[{place[0]}]`, in single brackets"
    if len(place) == 1:
        return f"must be a table: write `[{place[0]}]`, and its keys below"
    if len(place) == 2 and isinstance(place[1], int):
        return f"must be a table: write `[[{place[0]}]]`, and its keys below"
    return "must be a table: write `{ KEY = VALUE }`"


def _annotation_at(place: Place, root: type[BaseModel]) -> Any:
    annotation: Any = root
    for part in place:
        model = _model_of(annotation)
        if isinstance(part, str) and model is not None:
            annotation = model.model_fields[part].annotation
    return annotation


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in `X`, `X | None` or `tuple[X, ...]`."""
    for found in (annotation, *get_args(annotation)):
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return None


def _model_at(place: Place, root: type[BaseModel]) -> type[BaseModel]:
    model = _model_of(_annotation_at(place, root))
    assert model is not None
    return model


def _literals_at(place: Place, root: type[BaseModel]) -> list[str]:
    values = get_args(_annotation_at(place, root))
    found = [value for value in values if isinstance(value, str)]
    return found or [word for part in values for word in get_args(part) if isinstance(word, str)]
