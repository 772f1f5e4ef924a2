"""`dragoman demo`: scripted backends and samples to paste."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import click

from adapters.wire.errors import DragomanError
from proxy.base import logs
from proxy.cli import printing
from proxy.cli.printing import clean, fail
from proxy.cli.running import announce, checked_host, run_server
from proxy.config.settings import parse_listen
from proxy.tools import demo as playing
from proxy.tools import demo_server


@click.command(short_help="Serve scripted backends without any configuration.")
@click.option(
    "--host",
    callback=checked_host,
    help="Where to listen; without it 127.0.0.1. Where other machines can reach it, the demo makes "
    "a key.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Where to listen, 0 for any free port. Without it 8787, or the next one that is free.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="The origin of web pages that may use it, like http://localhost:5173; repeatable.",
)
@click.option(
    "--check", is_flag=True, help="Run the sample commands, say PASS or FAIL for each, and exit."
)
@click.option(
    "--no-browser", is_flag=True, help="Do not open the page in a browser when on a terminal."
)
@click.option("--server", is_flag=True, hidden=True, help="Be the server of a demo.")
def demo(
    host: str | None,
    port: int | None,
    origins: Sequence[str],
    check: bool,
    no_browser: bool,
    server: bool,
) -> None:
    """Serve scripted backends without any configuration, network or key.

    Prints the address of a page, and on a terminal opens it; then sample commands that can be
    pasted into a shell. Its journal is gone when it ends. Variables such as DRAGOMAN_SERVER__LISTEN
    count as for `serve`.
    """
    if server:
        _serve()
        return
    logs.configure(level="warning")
    run = functools.partial(playing.run_demo, environ=os.environ, host=host, origins=origins)
    if check:
        passed = run_server(functools.partial(_check_demo, functools.partial(run, port=port or 0)))
        sys.exit(0 if passed else 1)

    def ready(url: str, key: str | None) -> None:
        page = f"{_reached(url)}/ui/"
        click.echo(f"Open {page}" + (f" with the key {key}" if key is not None else ""))
        _show_samples(url, key)
        if printing.on_terminal() and not no_browser and has_display(os.environ, sys.platform):
            # It may take until the browser has started.
            threading.Thread(target=_open_page, args=(page,), daemon=True).start()

    run_server(lambda stop: run(port=port, ready=ready, stop=stop))


def _serve() -> None:
    """Be the server of a demo, which runs the same command and tells what to serve on stdin."""
    try:
        plan = demo_server.read_plan()
    except ValueError:
        fail("`--server` is for the demo itself: run `dragoman demo`.", status=2)
    settings = plan.settings(os.environ)
    run_server(lambda stop: demo_server.serve_demo(plan, settings, ready=click.echo, stop=stop))


def has_display(environ: Mapping[str, str], platform: str) -> bool:
    """Tell whether a browser that is opened here is likely to be seen by who asks for it."""
    if environ.get("SSH_CONNECTION"):
        return False
    return platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def _open_page(url: str) -> None:
    with contextlib.suppress(webbrowser.Error):
        # A browser that is a program of the terminal would take that from the demo.
        browser = webbrowser.get()
        if type(browser) is not webbrowser.GenericBrowser:
            browser.open(url)


def _reached(url: str) -> str:
    """Return a URL at which this machine reaches what listens at `url`."""
    return parse_listen(url.removeprefix("http://")).reached.url


def _show_samples(url: str, key: str | None) -> None:
    announce(url)
    http = playing.http_program(key, anywhere=key is not None)
    url = _reached(url)
    click.echo("\nPaste these into one shell, one after the other:")
    if key is not None:
        click.echo(f"On another machine put the address of this one in the place of {url}.")
    for sample in playing.samples_of(key):
        click.echo(f"\n# {sample.title}\n{sample.text(url, http)}")
    click.echo("\nCtrl-C ends the demo.")


async def _check_demo(run: Callable[..., Coroutine[Any, Any, None]], stop: asyncio.Event) -> bool:
    """Start the demo, run its samples, stop it; return whether all passed."""
    started: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    passed = False

    async def samples() -> None:
        nonlocal passed
        url, key = await started
        outcomes = []
        http, pasted = playing.http_program(key), playing.samples_of(key)
        async with contextlib.aclosing(playing.check(_reached(url), http, pasted)) as run:
            async for outcome in run:
                outcomes.append(outcome.passed)
                click.echo(f"{'PASS' if outcome.passed else 'FAIL'}  {outcome.sample.title}")
                if not outcome.passed:
                    click.echo(f"      expected: {outcome.sample.expect}")
                    for line in outcome.output.splitlines():
                        click.echo(f"      {clean(line)}")
        left = len(pasted) - len(outcomes)
        if left:
            click.echo(f"FAIL  {left} more were not run")
        passed = all(outcomes) and not left
        stop.set()

    def ready(url: str, key: str | None) -> None:
        announce(url)
        started.set_result((url, key))

    try:
        async with asyncio.TaskGroup() as group:
            checking = group.create_task(samples(), name="demo: samples")
            await run(ready=ready, stop=stop)
            # Told to stop by a signal: the samples have nobody to talk to.
            if not checking.done():
                checking.cancel()
    except* (DragomanError, OSError) as failed:
        raise failed.exceptions[0] from None
    return passed
