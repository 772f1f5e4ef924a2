"""`dragoman check`: whether each backend of a configuration can be used."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path

import click

from proxy.cli.printing import JsonObject, fail, print_json, print_rows
from proxy.cli.running import OF_A_CONFIGURATION, read_settings
from proxy.upstream.backend_check import CheckResult, check_backends


@click.command(short_help="Check whether the backends of a configuration can be used.")
@OF_A_CONFIGURATION
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(config: Path | None, as_json: bool) -> None:
    """Check whether the backends of a configuration can be used.

    Each is asked whether it answers, takes the credential, speaks the dialect and streams. No
    session is made and no message sent; what that leaves open is `not asked`. Exit status 1 says
    that a backend failed.
    """
    settings = read_settings(config)
    if not settings.backends:
        fail("no backend is configured: add a table [[backends]].")
    found = asyncio.run(check_backends(settings))
    failed = any(one.failed for one in found)
    if as_json:
        print_json({"ok": not failed, "backends": [_as_json(one) for one in found]})
    else:
        rows = [
            [one.name, what, finding.state, finding.text]
            for one in found
            for what, finding in one.findings.items()
        ]
        print_rows(("backend", "check", "state", "found"), rows)
    sys.exit(1 if failed else 0)


def _as_json(one: CheckResult) -> JsonObject:
    findings = {
        what: {**dataclasses.asdict(finding), "state": finding.state.replace(" ", "_")}
        for what, finding in one.findings.items()
    }
    return {"name": one.name, "url": one.url, "configured_dialect": one.dialect, **findings}
