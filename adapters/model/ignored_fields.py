"""What may differ where two sessions are compared: fields by their names, and types of events."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from adapters.model import events as ev

SKIPPED = frozenset({"native", "extra", "by", "face", "trace", "synthetic", "duration_ms"})
"""Fields that say how something came to be in the log, or how long it took."""

BLOCKS: dict[str, str] = {
    ev.TextDelta.TYPE: ev.TextCompleted.TYPE,
    ev.ReasoningDelta.TYPE: ev.ReasoningCompleted.TYPE,
}

BLOCK_TEXTS = {f"{delta}.text": f"{whole}.text" for delta, whole in BLOCKS.items()}
"""The two names of the text of a block: in its deltas and as a whole."""


class UnknownField(ValueError):
    """No event has the field that may differ; the text names the nearest one."""


@dataclasses.dataclass(frozen=True, slots=True)
class IgnoredFields:
    """What may differ: `fields` of any event, `paths` below the type of one, and whole `types`."""

    fields: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    types: frozenset[str] = frozenset({ev.Native.TYPE})

    def is_event(self, name: str) -> bool:
        """Say whether all events of a type may differ."""
        return name in self.types

    def covers(self, path: tuple[str, ...]) -> bool:
        """Say whether a field may differ, whose path begins with the type of its event."""
        if not self.paths and not self.fields:
            return False
        type_, *rest = path
        named = [part for part in rest if not part.isdecimal()]
        for parts in (rest, named):
            field = ".".join(parts)
            if _below(field, self.fields) or _below(f"{type_}.{field}", self.paths):
                return True
        return False


def _below(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path == one or path.startswith(f"{one}.") for one in patterns)


def ignored_of(names: Iterable[str]) -> IgnoredFields:
    """Return what these names stand for.

    Raises:
        UnknownField: no event has such a field.
    """
    fields: list[str] = []
    paths: list[str] = []
    types = set(IgnoredFields().types)
    for name in names:
        type_ = next((t for t in ev.EVENT_TYPES if name == t or name.startswith(f"{t}.")), None)
        _check(name, type_)
        if type_ is None:
            fields.append(name)
        elif name == type_:
            types.add(name)
        else:
            # A block has one text, whether it is named by its deltas or as a whole.
            for pair in BLOCK_TEXTS.items():
                paths += pair if name in pair else ()
            paths.append(name)
    return IgnoredFields(tuple(fields), tuple(paths), frozenset(types))


def _check(name: str, type_: str | None) -> None:
    """Raise an error unless an event has the field."""
    of = ev.EVENT_TYPES.values() if type_ is None else [ev.EVENT_TYPES[type_]]
    models: set[type[ev.Model]] = set(of)
    done = "" if type_ is None else f"{type_}."
    rest = name.removeprefix(type_ or "").removeprefix(".") if type_ else name
    if type_ is not None and not rest:
        return
    for part in rest.split("."):
        if part.isdecimal() and part != rest:
            continue
        fields = {model: _compared(model) for model in models}
        if part not in set().union(*fields.values()):
            if part in SKIPPED | _OF_ENTRIES:
                raise UnknownField(f"`{name}` never counts: leave it out.")
            near = [done + field for known in fields.values() for field in known]
            raise _unknown(name, [*near, *_paths()] if not done else near)
        found = [model.model_fields[part].annotation for model in models if part in fields[model]]
        if any(map(_is_free, found)):
            return
        models = {model for annotation in found for model in _models(annotation)}
        done += f"{part}."


_OF_ENTRIES = frozenset({"seq", "at", "session_id"})


def _compared(model: type[ev.Model]) -> set[str]:
    """Return the fields of a model that are compared."""
    skipped = SKIPPED | {"type"} if issubclass(model, ev.Event) else SKIPPED
    return set(model.model_fields) - skipped


def _paths() -> list[str]:
    """Return the fields of events, and their types."""
    types = ev.EVENT_TYPES.items()
    return [
        *ev.EVENT_TYPES,
        *(f"{type_}.{field}" for type_, cls in types for field in _compared(cls)),
    ]


def _unknown(name: str, known: Iterable[str]) -> UnknownField:
    near = difflib.get_close_matches(name, sorted(set(known)), 1, 0.3)
    hint = f" The nearest is `{near[0]}`." if near else ""
    return UnknownField(f"no event has a field `{name}`.{hint}")


def _models(annotation: Any) -> Iterator[type[ev.Model]]:
    if isinstance(annotation, type) and issubclass(annotation, ev.Model):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _is_free(annotation: Any) -> bool:
    """Say whether a field can hold an object with any names."""
    if annotation is Any:
        return True
    args = get_args(annotation)
    return args == (str, Any) or any(map(_is_free, args))
