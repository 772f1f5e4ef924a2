"""`dragoman init`: a configuration to begin with, explained in comments.

In the text a comment begins with `# `; what stands behind a bare `#` is a setting that can be
taken in by removing it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from adapters.registry import DIALECTS
from proxy.cli.backends import BackendArgument, backend_option, built
from proxy.cli.printing import clean, fail
from proxy.cli.running import DEFAULT_CONFIG

_HEAD = """\
# The configuration of Dragoman. `dragoman serve` reads it in the folder where
# it runs, `dragoman serve --config FILE` any other. A key with a `#` before it
# is not in force: remove the `#` to use it. After a change start again.

[server]
# Where frontends connect. Only this machine reaches 127.0.0.1. Others reach
# "0.0.0.0:8787", which needs [[keys]] below.
listen = "127.0.0.1:8787"
# The web pages of other origins that may connect.
#allowed_origins = ["http://localhost:5173"]

[journal]
# The file with all sessions. `dragoman backup` copies it.
url = "sqlite:///dragoman.db"

# How long sessions are kept in which nothing is open. Without this, for ever.
#[retention]
#max_age_days = 90

# Backends: the agent servers behind Dragoman. `name` is yours. It is in the
# base URL of frontends: http://127.0.0.1:8787/as/DIALECT/to/NAME, where
# DIALECT is what the frontend speaks. `dialect` is what the backend speaks:
# {dialects}.
#
# `auth` is the credential that the backend wants. It is never in this file:
# `env` and `bearer_env` name an environment variable that holds it, `file` and
# `bearer_file` a file. If the backend wants one, remove the `#`, and set the
# variable before the start.
"""

_ROUTES = """
# Routes: more names for frontends. A route shares new sessions out to backends.
"""

_KEYS = """
# Keys of frontends. Without any, everybody on this machine may do everything.
# With keys, each sees only the sessions made with it. Make a key and its hash:
#     KEY=$(openssl rand -hex 32); echo "$KEY"; printf %s "$KEY" | sha256sum
# Give the key to the frontend and put the hash here. `backends` are the
# backends and routes that the key may use; without it, all.
"""

_ADMIN = """
# A key for you: it lists and settles everybody's sessions, but serves no
# frontend.
"""

_LISTENERS = """
# A port of its own for frontends whose base URL cannot have a path.
"""

_TAIL = """
# All settings: docs/configuration.md in Dragoman's repository.
"""

_EXAMPLES = tuple(
    BackendArgument(name, name, known.example_url, "")
    for name, known in sorted(DIALECTS.items())
    if known.example_url
)

_NO_HASH = ("0" * 64, "1" * 64)
"""Stand where hashes belong. No known key has them."""


def configuration(backends: Sequence[BackendArgument] = ()) -> str:
    """Return the text of a configuration with these backends, or with examples of some that are
    not in force."""
    names = [backend.name for backend in backends or _EXAMPLES]
    # More than two examples would not fit into a line.
    shared = names if backends else names[:2]
    weight = max(1, 100 // len(shared))
    shares = ", ".join(f"{{ name = {_text(name)}, weight = {weight} }}" for name in shared)
    route = _free("main", names)
    parts = [_HEAD.format(dialects=", ".join(built()))]
    if backends:
        parts += ["\n" + _backend(backend) for backend in backends]
    else:
        parts += ["\n" + _off(_backend(backend).replace("\n#", "\n")) for backend in _EXAMPLES]
    parts += [
        _ROUTES,
        _off(f"[[routes]]\nname = {_text(route)}\nbackends = [{shares}]\n"),
        _KEYS,
        _off(f'[[keys]]\nname = "web"\nsha256 = "{_NO_HASH[0]}"\nbackends = [{_text(names[0])}]\n'),
        _ADMIN,
        _off(f'[[keys]]\nname = "admin"\nsha256 = "{_NO_HASH[1]}"\nadmin = true\n'),
        _LISTENERS,
        _off(
            '[[listeners]]\nlisten = "127.0.0.1:8788"\n'
            f"dialect = {_text(_EXAMPLES[-1].dialect)}\nroute = {_text(names[0])}\n"
        ),
        _TAIL,
    ]
    return "".join(parts)


def _backend(backend: BackendArgument) -> str:
    auth = ", ".join(f"{key} = {_text(value)}" for key, value in backend.auth.items())
    return (
        f"[[backends]]\nname = {_text(backend.name)}\ndialect = {_text(backend.dialect)}\n"
        f"url = {_text(backend.url)}\n#auth = {{ {auth} }}\n"
    )


def _off(table: str) -> str:
    return "".join(f"#{line}" for line in table.splitlines(keepends=True))


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "-route"
    return name


def _text(value: str) -> str:
    """Return a text as TOML writes it, which is as JSON does: it has no control characters."""
    return json.dumps(value, ensure_ascii=False)


@click.command()
@click.argument("file", default=str(DEFAULT_CONFIG), type=click.Path(allow_dash=True))
@backend_option(
    "A backend to fill in, like engine=http://127.0.0.1:8000; repeatable. It is named by its "
    "dialect, or NAME."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(file: str, backends: Sequence[BackendArgument], force: bool) -> None:
    """Write a configuration with comments, to begin with.

    FILE is `dragoman.toml` if it is not named; `-` prints it. What the comments explain is not in
    force until their `#` is removed, but for the backends that are given here.
    """
    text = configuration(backends)
    if file == "-":
        click.echo(text, nl=False)
        return
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        fail(f"{clean(file)} is there already: name another file, or replace it with --force.")
    except FileNotFoundError:
        fail(f"{clean(file)}: there is no such folder: make it, or name another file.")
    except IsADirectoryError:
        fail(f"{clean(file)} is a folder: name a file in it.")
    except OSError as error:
        fail(f"{clean(file)} cannot be written: {error.strerror}. Name another file.")
    where = "" if Path(file) == DEFAULT_CONFIG else f" --config {shlex.quote(file)}"
    click.echo(f"wrote {clean(file)}", err=True)
    if not backends:
        click.echo("add a backend: remove the # of a [[backends]], and write its url", err=True)
    click.echo(f"start it with `dragoman serve{where}`", err=True)
