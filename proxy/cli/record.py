"""`dragoman record`: a proxy before one backend that writes captures."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import click

from adapters.captures.redact import Redactor
from adapters.captures.secrets import BadPattern
from adapters.registry import DIALECTS, deltas
from proxy.cli.printing import fail
from proxy.cli.running import announce, listening, run_server
from proxy.config.settings import wrong_url
from proxy.tools.recorder import record as recording


class _RecordedBackend(click.ParamType[tuple[str, str]]):
    name = "backend"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return its dialect and its URL."""
        dialect, _, url = value.partition("=")
        known = [name for name, one in DIALECTS.items() if one.captured is not None]
        if dialect not in known:
            self.fail(f"write DIALECT=URL, with a dialect of {', '.join(known)}.", param, ctx)
        if why := wrong_url(url, dialect):
            why = why.replace("use `auth`", "the client sends its own")
            self.fail(f"the URL {why}.", param, ctx)
        return dialect, url


@click.command()
@click.option(
    "--backend",
    type=_RecordedBackend(),
    required=True,
    metavar="DIALECT=URL",
    help="The backend that is recorded, as engine=http://127.0.0.1:8000.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder for captures; it is made if it is missing.",
)
@click.option(
    "--redact-key",
    "keys",
    multiple=True,
    metavar="NAME",
    help="A name of JSON members, headers or query parts whose values are secret; repeatable.",
)
@click.option(
    "--redact-pattern",
    "patterns",
    multiple=True,
    metavar="REGEX",
    help="A regular expression that finds secrets in texts; repeatable.",
)
@listening
def record(
    backend: tuple[str, str],
    out: Path,
    keys: tuple[str, ...],
    patterns: tuple[str, ...],
    host: str,
    port: int,
) -> None:
    """Record a backend's conversations until SIGINT or SIGTERM.

    Give the client the address that is printed in place of the backend's. All that passes goes on
    unchanged, and into one capture for each session, with marks in the place of credentials.
    """
    try:
        redactor = Redactor(secrets.token_bytes(16), deltas(), keys, patterns)
    except BadPattern as error:
        raise click.UsageError(f"--redact-pattern: {error}.") from None

    dialect, url = backend
    captured = DIALECTS[dialect].captured
    assert captured is not None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"the folder {out} cannot be made: {error.strerror}. Name another one.", status=2)
    try:
        # What cannot be written is told now and not when the first session is lost.
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        fail(
            f"nothing can be written into the folder {out}: {error.strerror}. Name another one, or "
            "give this user the right to write there.",
            status=2,
        )
    run_server(
        lambda stop: recording(
            captured.naming,
            dialect,
            url,
            out,
            redactor,
            listen=(host, port),
            ready=announce,
            stop=stop,
        )
    )
