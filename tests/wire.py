"""The recorded bodies and logs below `fixtures`, and what the client codecs make of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.contract.fidelity import CANONICAL
from adapters.model.events import Entry
from adapters.offline.translate import TranslateOptions, make_source
from adapters.registry import DIALECTS, faces

FIXTURES = Path(__file__).parent.parent / "fixtures"

BODIES = frozenset({".sse", ".ndjson"})


def driven() -> list[str]:
    """Return the dialects with a client codec, in the order of the registry."""
    return [name for name, dialect in DIALECTS.items() if dialect.client is not None]


def given_messages() -> list[str]:
    """Return the dialects whose backends are given sessions and messages: others call us."""
    return [name for name, dialect in DIALECTS.items() if not dialect.not_driven]


def served() -> list[str]:
    """Return the dialects with an encoder, in the order of the registry."""
    return [name for name, dialect in DIALECTS.items() if dialect.encoder is not None]


def forms() -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return (dialect, name of a form, its settings) of every form in which frames are shown."""
    return [
        (name, form, settings)
        for name, face in faces().items()
        for form, settings in face.forms.items()
    ]


def frontends() -> list[str]:
    """Return the dialects that are not for backends only, built or not."""
    return [name for name, dialect in DIALECTS.items() if dialect.only != "backends"]


def backends() -> list[str]:
    """Return the dialects that are not for frontends only, built or not."""
    return [name for name, dialect in DIALECTS.items() if dialect.only != "frontends"]


def bodies(dialect: str) -> list[Path]:
    """Return the recorded bodies of a dialect, or the logs of `canonical`."""
    if dialect == CANONICAL:
        return sorted((FIXTURES / CANONICAL).glob("*.ndjson"))
    folder = FIXTURES / "wire" / dialect
    return sorted(path for path in folder.rglob("*") if path.suffix in BODIES)


def name_of(body: Path) -> str:
    """Return how a body is called in committed files: its path below its dialect's folder."""
    parts = body.relative_to(FIXTURES).with_suffix("").parts
    return "/".join(parts[2:] if parts[0] == "wire" else parts[1:])


def every_body() -> list[tuple[str, Path]]:
    """Return (dialect, body) of every body that some client codec reads, and of every log."""
    return [(dialect, body) for dialect in (*driven(), CANONICAL) for body in bodies(dialect)]


@functools.cache
def entries_of(dialect: str, body: Path) -> tuple[Entry, ...]:
    """Return the log that a body becomes."""
    source = make_source(dialect, TranslateOptions())
    return (*source.feed(body.read_bytes()), *source.close())
