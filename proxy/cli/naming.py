"""Which session is meant: by its id or what that begins with, its title, or another of its names.

Who asks tries the name as an id first: only a name that is not an id costs a question more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import click

from proxy.cli.printing import JsonObject, clean
from proxy.journal.base import MINTED, SHORTEST


class _Source(Protocol):
    """What knows sessions."""

    def meant(self, name: str) -> JsonObject | None:
        """Return the session that people call so; exits where there are several."""


def begins(session: JsonObject, name: str) -> bool:
    """Tell whether an id is this name, or begins so."""
    beginning, id = name.removeprefix(MINTED), str(session["id"])
    if len(beginning) < SHORTEST:
        return id == name
    return id.removeprefix(MINTED).startswith(beginning)


def chosen(
    name: str, found: Sequence[JsonObject], fail: Callable[[str], NoReturn]
) -> JsonObject | None:
    """Return the one that a name means: an id goes before titles and aliases, these before what an
    id begins with."""
    whole = [one for one in found if one["id"] == name]
    said = [one for one in found if one.get("title") == name or not begins(one, name)]
    candidates = whole or said or found
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    lines = [
        f"  {one['id']}  {one['state']:<7}  {_short_title(one)}".rstrip() for one in candidates[:10]
    ]
    if len(candidates) > 10:
        lines.append("  and more")
    fail("\n".join((f"`{clean(name)}` can mean several sessions:", *lines, "Write more of an id.")))


def named(session: JsonObject) -> str:
    """Return a session as a person is asked about it."""
    title = _short_title(session)
    return f"`{session['id']}`" + (f" ({title})" if title else "")


def _short_title(session: JsonObject) -> str:
    title = clean(session.get("title") or "")
    return title if len(title) <= 24 else f"{title[:23].rstrip()}…"


def ids_of(source: _Source, names: Sequence[str], *, told: bool = True) -> list[str]:
    """Return the ids of sessions that are to be changed, before anything is; where a name is not
    the id, `told` says what it means."""
    ids: dict[str, None] = {}
    for name in names:
        session = source.meant(name) or {"id": name}
        if told and session["id"] != name:
            click.echo(f"`{clean(name)}` is {named(session)}", err=True)
        ids[session["id"]] = None
    return list(ids)
