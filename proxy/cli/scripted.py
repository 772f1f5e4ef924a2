"""`dragoman scripted`: one scripted backend."""

from __future__ import annotations

import logging
from typing import Any, Literal

import click

from proxy.cli.running import announce, listening, run_server
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import KINDS, SEEDED, Faults
from proxy.scripted.standalone import serve_alone


class _ScriptedDialect(click.ParamType[str]):
    """A dialect that has a scripted backend."""

    name = "dialect"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return its name."""
        if value not in BACKENDS:
            self.fail(f"`{value}` is none of {', '.join(sorted(BACKENDS))}.", param, ctx)
        return str(value)


class _Kinds(click.ParamType[tuple[str, ...]]):
    """Kinds of faults, with commas between them."""

    name = "kinds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return their names."""
        names = tuple(value.split(","))
        for name in names:
            if name not in KINDS:
                self.fail(f"`{name}` is none of {', '.join(sorted(KINDS))}.", param, ctx)
        return names


@click.command(short_help="Serve a scripted agent server of a dialect.")
@click.argument("dialect", type=_ScriptedDialect())
@listening
@click.option("--key", help="The only credential that passes; without it anything does.")
@click.option(
    "--pace",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="The factor on pauses, 0 for none.",
)
@click.option(
    "--generation",
    type=click.Choice(["T", "S1", "S2"]),
    default="S2",
    show_default=True,
    help="Which eve `eve` is.",
)
@click.option(
    "--faults", type=int, metavar="SEED", help="Break streams; a seed breaks the same ones."
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="The share of streams that break.",
)
@click.option(
    "--kinds",
    type=_Kinds(),
    metavar="KIND,...",
    help="How they break; without it in ways that every dialect heals from at once.",
)
@click.option(
    "--first",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="The first conversation gets the faults of the Nth: repeats one alone.",
)
def scripted(
    dialect: str,
    host: str,
    port: int,
    key: str | None,
    pace: float,
    generation: Literal["T", "S1", "S2"],
    faults: int | None,
    rate: float,
    kinds: tuple[str, ...] | None,
    first: int,
) -> None:
    """Serve a scripted agent server of a dialect until SIGINT or SIGTERM, to try things with.

    A message `script: NAME` chooses what it does, as in the demo. With --faults it breaks streams
    on purpose, and tells on stderr which and how.
    """
    breaking = None
    if faults is not None:
        ways = SEEDED if kinds is None else [KINDS[name] for name in kinds]
        breaking = Faults.seeded(faults, rate, ways, first=first)
        logging.basicConfig(format="%(message)s")
        logging.getLogger(Faults.__module__).setLevel(logging.INFO)
    options = ScriptedOptions(key=key, pace=pace, generation=generation, faults=breaking)
    app = BACKENDS[dialect](options)
    run_server(lambda stop: serve_alone(app, host, port, ready=announce, stop=stop))
