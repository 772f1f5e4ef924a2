"""`dragoman replay`: a recorded session as a backend or as a frontend."""

from __future__ import annotations

import logging
import math
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from adapters.offline.replay import ReplayScript, script_of
from adapters.offline.session_logs import read_log
from adapters.offline.translate import readable_dialects
from adapters.registry import DIALECTS, faces
from adapters.wire.errors import DragomanError
from proxy.cli.files import named, readable
from proxy.cli.printing import clean, fail, print_json
from proxy.cli.running import announce, port_option, run, run_server
from proxy.config.credentials import variable_value
from proxy.config.settings import BackendSettings, JournalSettings, Settings
from proxy.tools.replay.driving import drive
from proxy.tools.replay.faults import StreamFaults
from proxy.tools.replay.serving import ReplayPlan, serve_replay


class _Speed(click.ParamType[float]):
    """A factor, or `max`."""

    name = "speed"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the factor, infinite for `max`."""
        if value == "max":
            return math.inf
        try:
            speed = float(value)
        except (TypeError, ValueError):
            speed = 0.0
        if not 0 < speed < math.inf:
            self.fail(f"`{value}` is neither a factor above 0 nor `max`.", param, ctx)
        return speed


@click.command()
@click.argument("capture", type=click.Path(allow_dash=True))
@click.option(
    "--serve",
    "face",
    type=click.Choice(list(faces())),
    help="Be the recorded backend, for frontends of this dialect.",
)
@click.option(
    "--drive",
    "url",
    metavar="URL",
    help="Be the recorded frontend: say and answer the same to the backend at this URL.",
)
@click.option(
    "--dialect",
    type=click.Choice([name for name, one in DIALECTS.items() if one.has_client]),
    help="The dialect of that backend.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --drive: write the canonical log of what came here.",
)
@click.option(
    "--bearer-env",
    metavar="NAME",
    help="With --drive: the environment variable with the backend's bearer token.",
)
@click.option(
    "--sealed",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --drive: the secrets to answer with, one a line; a capture has none.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="With --drive: after how many seconds without anything new it gives up.",
)
@port_option
@click.option(
    "--speed",
    type=_Speed(),
    default="1",
    show_default=True,
    metavar="N|max",
    help="How many times as fast as it was recorded; `max` waits for nothing.",
)
@click.option(
    "--faults",
    type=int,
    metavar="SEED",
    help="Break streams; a seed breaks the same ones at the same places.",
)
@click.option(
    "--from",
    "source",
    type=click.Choice(readable_dialects()),
    help="What the file is, where it is neither a capture nor a canonical log.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(
    capture: str,
    face: str | None,
    url: str | None,
    dialect: str | None,
    out: Path | None,
    bearer_env: str | None,
    sealed: Path | None,
    timeout: float,
    port: int,
    speed: float,
    faults: int | None,
    source: str | None,
    as_json: bool,
) -> None:
    """Replay a recorded session.

    With --serve it is a backend until SIGINT or SIGTERM: frontends of that dialect talk to it as to
    the one that was recorded. Each session that a frontend makes begins from the start. It waits
    where the recorded person said or answered something, and takes what means the same.

    With --drive it is a frontend: it says and answers to a backend what the recorded person did,
    each when the agent is as far as it was. Exit status 1: the backend did something else, so that
    this could not go on.
    """
    if (face is None) == (url is None):
        raise click.UsageError("say what to be: --serve DIALECT, or --drive URL --dialect DIALECT")
    if (url is None) != (dialect is None):
        raise click.UsageError("--drive and --dialect go together: the dialect of that backend")
    recorded, script = _script(capture, source)
    if url is not None and dialect is not None:
        settings = _driving(url, dialect, bearer_env)
        _drive(script, settings, recorded, timeout, sealed=sealed, out=out, as_json=as_json)

    def ready(url: str, control: str) -> None:
        if as_json:
            print_json({"url": url, "control": control})
        else:
            announce(url)
            click.echo(f"control API at {control}")

    if faults is not None:
        logging.basicConfig(format="%(message)s")
        logging.getLogger(StreamFaults.__module__).setLevel(logging.INFO)
    assert face is not None
    replayed = ReplayPlan(script, recorded or face, speed)
    run_server(
        lambda stop: serve_replay(replayed, face, port=port, faults=faults, ready=ready, stop=stop)
    )


def _driving(url: str, dialect: str, bearer_env: str | None) -> Settings:
    """Return the settings with one backend; exits where they are wrong."""
    try:
        backend = BackendSettings.model_validate({"name": "driven", "dialect": dialect, "url": url})
    except ValueError:
        fail(f"`{clean(url)}` is not a URL that begins with http:// or https://.", status=2)
    if bearer_env is not None:
        try:
            token = variable_value(bearer_env, os.environ)
        except ValueError as error:
            fail(f"--bearer-env: {clean(str(error))}.", status=2)
        backend = backend.with_credential("Authorization", token, scheme="Bearer ")
    return Settings(journal=JournalSettings(url="memory:"), backends=(backend,))


def _drive(
    script: ReplayScript,
    settings: Settings,
    recorded: str | None,
    timeout: float,
    *,
    sealed: Path | None,
    out: Path | None,
    as_json: bool,
) -> NoReturn:
    """Drive a backend, and say what came of it."""
    face = recorded if recorded in faces() else next(iter(faces()))
    assert face is not None
    try:
        values = () if sealed is None else sealed.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{clean(str(sealed))} cannot be read: {error}", status=2)

    def tell(step: str) -> None:
        click.echo(clean(step), err=True)

    driven = run(
        lambda stop: drive(
            script, settings, face, seconds=timeout, sealed=values, tell=tell, stop=stop
        )
    )
    if out is not None:
        try:
            out.write_bytes(b"".join(entry.encode() + b"\n" for entry in driven.log))
        except OSError as error:
            fail(f"{clean(str(out))}: {error.strerror or error}", status=2)
    if as_json:
        print_json({"driven": driven.failed is None, "why": driven.failed, "notes": driven.notes})
    else:
        for note in driven.notes:
            tell(note)
    if driven.failed is not None:
        fail(clean(driven.failed))
    if not as_json:
        click.echo(f"driven: {driven.given} of {len(script.cues)} steps were given")
    sys.exit(0)


def _script(file: str, source: str | None) -> tuple[str | None, ReplayScript]:
    """Return the dialect and the script of a file; exits where it cannot be read."""
    try:
        with readable(file) as stream:
            log = read_log(stream, named(file), source)
    except DragomanError as error:
        fail(clean(error.whole), status=2)
    except OSError as error:
        fail(f"{clean(file)}: {error.strerror or error}", status=2)
    for warning in log.warnings:
        click.echo(clean(warning), err=True)
    return log.dialect or source, script_of(log.entries)
