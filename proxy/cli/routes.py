"""`dragoman routes`: where new sessions go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from adapters.wire.url_paths import path_of
from proxy.cli.printing import JsonObject, clean, print_json, print_rows
from proxy.cli.servers import ServerClient, of_a_server


class _Share(click.ParamType[JsonObject]):
    """A backend's share of a route, as the control API takes it."""

    name = "backend=weight"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> JsonObject:
        """Return its members."""
        backend, _, weight = str(value).rpartition("=")
        if not backend or re.fullmatch("[0-9]{1,7}", weight) is None:
            text = f"`{str(value)[:80]}` is not a share: write BACKEND=WEIGHT, like `blue=90`."
            self.fail(text, param, ctx)
        return {"name": backend, "weight": int(weight)}


@click.group(short_help="Look at routes, and set where their new sessions go.")
def routes() -> None:
    """Look at the routes of a running server, and set where their new sessions go."""


@routes.command("list")
@of_a_server
def routes_list(server: ServerClient) -> None:
    """List all routes, and the shares of their backends."""
    answer = server.ask("GET", "/routes")
    if server.as_json:
        print_json(answer)
    else:
        _print_routes(answer["routes"])


@routes.command("set", short_help="Set the shares of a route, for new sessions.")
@click.argument("route")
@click.argument("shares", metavar="BACKEND=WEIGHT...", nargs=-1, required=True, type=_Share())
@of_a_server
def routes_set(server: ServerClient, route: str, shares: tuple[JsonObject, ...]) -> None:
    """Set the shares of a route, for new sessions; a weight of 0 gives a backend none.

    They hold over a restart, until they are set again or `reset`. Nothing changes where a backend
    would get more than before and does not answer, refuses the credential or speaks another
    dialect.
    """
    body: JsonObject = {"backends": list(shares)}
    _changed_route(server, server.ask("PUT", path_of("/routes", route), body=body))


@routes.command("reset")
@click.argument("route")
@of_a_server
def routes_reset(server: ServerClient, route: str) -> None:
    """Let the shares of the configuration hold again for a route."""
    _changed_route(server, server.ask("DELETE", path_of("/routes", route)))


def _changed_route(server: ServerClient, answer: JsonObject) -> None:
    if server.as_json:
        print_json(answer)
    else:
        _print_routes([answer])
        for notice in answer.get("notices", ()):
            click.echo(clean(notice), err=True)


def _print_routes(found: Sequence[JsonObject]) -> None:
    rows: list[list[object]] = []
    for route in found:
        total = sum(share["weight"] for share in route["backends"])
        rows += [
            [
                *(route["name"], share["backend"], share["dialect"], share["weight"]),
                f"{100 * share['weight'] / total:.1f}%",
                route["source"],
            ]
            for share in route["backends"]
        ]
    columns = ("route", "backend", "dialect", "weight", "percent", "source")
    spare = ("source", "percent", "dialect")
    print_rows(columns, rows, spare=spare, empty="no routes: the server has no backend")
    for route in found:
        shadow = route.get("shadow")
        if shadow is not None and not shadow["running"]:
            said = f"shadow {shadow['backend']} of {route['name']} is not running: {shadow['why']}"
            click.echo(clean(said), err=True)
