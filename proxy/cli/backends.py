"""`--backend [NAME:]DIALECT=URL`: a backend on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem
from pydantic import ValidationError

from adapters.registry import DIALECTS
from proxy.config.complaints import complaints
from proxy.config.settings import CLIENT_VARIABLES, BackendSettings

_FORM = re.compile(r"(?:([^:=]*):)?([^:=]*)=(.*)")


@dataclass(frozen=True, slots=True)
class BackendArgument:
    """A backend as an option gives it."""

    name: str
    dialect: str
    url: str
    option: str

    @property
    def variable(self) -> str:
        """The environment variable with its credential."""
        return re.sub(r"[^A-Z0-9]", "_", self.name.upper()) + "_KEY"

    @property
    def auth(self) -> dict[str, str]:
        """Its `auth`, if it wants a credential."""
        header = DIALECTS[self.dialect].key_header
        if not header:
            return {"bearer_env": self.variable}
        return {"header": header, "env": self.variable}

    def entry(self, environ: Mapping[str, str]) -> dict[str, Any]:
        """Return its entry of `[[backends]]`, with `auth` if there is a credential."""
        entry: dict[str, Any] = {"name": self.name, "dialect": self.dialect, "url": self.url}
        return {**entry, "auth": self.auth} if environ.get(self.variable) else entry


def built() -> list[str]:
    """Return the dialects that have backends."""
    return [name for name, known in DIALECTS.items() if known.has_client]


class BackendParamType(click.ParamType[BackendArgument]):
    """A text that names a backend."""

    name = "backend"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> BackendArgument:
        """Return what it says, or say what to write."""
        if isinstance(value, BackendArgument):
            return value
        match = _FORM.fullmatch(str(value))
        if match is None or match[2] not in built():
            dialects = ", ".join(built())
            self.fail(
                f"write DIALECT=URL or NAME:DIALECT=URL, with a dialect of {dialects}, "
                "like engine=http://127.0.0.1:8000.",
                param,
                ctx,
            )
        dialect, url = match[2], match[3]
        name = dialect if match[1] is None else match[1]
        given = BackendArgument(name, dialect, url, f"--backend {str(value).partition('=')[0]}")
        if not url.isprintable():
            self.fail("the URL holds characters that cannot stand in one.", param, ctx)
        try:
            BackendSettings(name=name, dialect=dialect, url=url)
        except ValidationError as error:
            found = complaints(error.errors(include_url=False), BackendSettings)
            told = "; ".join(_told(str(place[-1]), why) for place, why in found)
            self.fail(told.replace("use `auth`", f"put it into `{given.variable}`"), param, ctx)
        if given.variable in CLIENT_VARIABLES:
            why = "holds the key of this command line, which no backend may get"
            self.fail(f"choose another name: `{given.variable}` {why}.", param, ctx)
        return given

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the dialects."""
        return [CompletionItem(f"{name}=") for name in built() if name.startswith(incomplete)]


def _told(key: str, why: str) -> str:
    return f"{why}." if key == "name" else f"the URL {why}."


def _named_once(
    context: click.Context, parameter: click.Parameter, given: Iterable[BackendArgument]
) -> tuple[BackendArgument, ...]:
    """Refuse two of one name."""
    found: dict[str, BackendArgument] = {}
    for one in given:
        if one.name in found:
            raise click.BadParameter(
                f"two are named `{one.name}`: write another name before one of them, "
                f"like other:{one.dialect}={one.url}"
            )
        found[one.name] = one
    return tuple(found.values())


def backend_option(about: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--backend`, which can be given several times."""
    return click.option(
        "--backend",
        "backends",
        type=BackendParamType(),
        multiple=True,
        callback=_named_once,
        metavar="[NAME:]DIALECT=URL",
        help=about,
    )
