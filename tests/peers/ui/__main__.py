"""Uses the page at `/ui/` in Chromium, in front of the demo and of a real eve server.

Run by `run.sh`, which installs Playwright's Python client, axe-core and eve:

    python -m tests.peers.ui --node NODE --cache FOLDER --chromium FILE [--only WORDS[,WORDS]]
                             [--write] [--headed] [--list]

`--only` chooses the scenes whose names have such words in them. `--only pictures` and `--only
recording` are not played otherwise: with `--write` they make the pictures of docs/page/, and
docs/page.gif. Prints one line `PASS` or `FAIL` for each scene; the exit status is 1 after a
failure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
from playwright.async_api import Browser, async_playwright

from tests.peers.backends import EveServer
from tests.peers.ui import backends, captures, columns, desk, pictures, recording, shell, talk
from tests.peers.ui.site import (
    REPOSITORY,
    SCENES,
    DemoServer,
    EveProxy,
    LostKey,
    Scene,
    Site,
    scene,
)

# A module of scenes adds them when it is imported.
MODULES = (shell, backends, talk, columns, desk, captures)
# Played only where `--only` names them: they take long, and judge nothing.
OF_THE_DOCS = {
    "pictures": pictures.pictures_of_both_themes_at_two_widths_are_made,
    "recording": recording.a_recording_of_talk,
}
GENERATION = "0.80.1"
# Only what hangs takes longer.
SCENE_S = 300.0
TRIES = 3
# Scenes at a time: while some wait for a server that starts, others keep two cores busy.
JOBS = 3
FLAGS = (
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    # The page needs nobody but its server.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Servers:
    """The servers that scenes share; each is started once, when its first scene needs it."""

    def __init__(
        self,
        options: argparse.Namespace,
        http: aiohttp.ClientSession,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._options = options
        self._http = http
        self._stack = stack
        self._tasks: dict[str, asyncio.Task[DemoServer | EveProxy]] = {}

    def begin(self, name: str) -> None:
        """Start a server, if it is not yet started."""
        starts = {"demo": self.demo, "eve": self._eve, "many": self._many}
        if name in starts and name not in self._tasks:
            self._tasks[name] = asyncio.create_task(starts[name]())

    async def shared(self, name: str) -> DemoServer | EveProxy:
        """Return a server that has started."""
        return await self._tasks[name]

    async def demo(self) -> DemoServer | EveProxy:
        """Start a demo, which ends with the suite."""
        server = DemoServer()
        self._stack.push_async_callback(server.stop)
        await server.start()
        return server

    async def _eve(self) -> DemoServer | EveProxy:
        home = self._options.cache / "servers" / f"eve-{GENERATION}"
        upstream = EveServer(GENERATION, self._options.node, agent_of(home, self._options.cache))
        self._stack.push_async_callback(upstream.stop)
        await upstream.start()
        await upstream.ready(self._http)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-ui-")))
        server = EveProxy(folder, upstream.url)
        self._stack.push_async_callback(server.stop)
        await server.start()
        return server

    async def _many(self) -> DemoServer | EveProxy:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-ui-"))
        server = await desk.start_many(folder)
        self._stack.push_async_callback(server.stop)
        return server

    async def end(self) -> None:
        """Let go of those that are still starting."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def agent_of(home: Path, cache: Path) -> Path:
    """Make a folder with the agent, beside that of the part `servers`, which may be building."""
    folder: Path = cache / "ui" / "eve"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(home / "package.json", folder)
    (folder / "node_modules").symlink_to(home / "node_modules")
    peers = REPOSITORY / "tests" / "peers" / "servers"
    for source in (peers / "agent", peers / f"eve-{GENERATION}" / "agent"):
        shutil.copytree(source, folder / "agent", dirs_exist_ok=True)
    return folder


async def play(name: str, servers: Servers, browser: Browser, http: aiohttp.ClientSession) -> bool:
    """Play a scene, again where the browser lost a key; print what came of it."""
    begun = time.monotonic()
    for _ in range(TRIES):
        why = await play_once(SCENES[name], servers, browser, http)
        if not why.startswith(LostKey.__name__):
            break
        print(f"     {name}: the browser lost a key; played again", flush=True)
    ms = (time.monotonic() - begun) * 1000
    print(f"{'FAIL' if why else 'PASS'} {name} ({ms:.0f} ms)", flush=True)
    if why:
        print("     " + why.replace("\n", "\n     "), flush=True)
    return not why


async def play_once(
    played: Scene, servers: Servers, browser: Browser, http: aiohttp.ClientSession
) -> str:
    """Play a scene; return why it failed, or nothing."""
    sites: dict[str, Site] = {}
    own: DemoServer | EveProxy | None = None
    try:
        async with asyncio.timeout(SCENE_S):
            for needed in inspect.signature(played).parameters:
                if needed == "own_demo":
                    server = own = await servers.demo()
                else:
                    server = await servers.shared(needed)
                sites[needed] = Site(server, browser, http)
            await played(**sites)
            for site in sites.values():
                site.check()
    except Exception as error:  # noqa: BLE001 - the root of a scene
        why = [f"{type(error).__name__}: {str(error)[:4000]}"]
        # Of a scene that hung, where it was is said by what ended it.
        ended = error.__cause__ if isinstance(error, TimeoutError) else None
        ours = str(Path(__file__).parent)
        why += [
            f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"
            for frame in traceback.extract_tb((ended or error).__traceback__)
            if frame.filename.startswith(ours)
        ]
        why += [f"the page: {line[:500]}" for site in sites.values() for line in site.complaints]
        return "\n".join(why)
    finally:
        for site in sites.values():
            with contextlib.suppress(Exception):
                await site.close()
        if own is not None:
            await own.stop()
    return ""


@contextlib.asynccontextmanager
async def browser_of(options: argparse.Namespace) -> AsyncIterator[Browser]:
    """Start Chromium."""
    # Its sandbox does not work for root.
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=options.chromium,
            headless=not options.headed,
            chromium_sandbox=os.getuid() != 0,
            args=list(FLAGS),
        )
        try:
            yield browser
        finally:
            await browser.close()


async def run(names: Sequence[str], options: argparse.Namespace) -> int:
    """Play scenes, some at once; return the exit code."""
    needed = {one for name in names for one in inspect.signature(SCENES[name]).parameters}
    if options.write:
        for made in (pictures.SCREENSHOTS, recording.FRAMES):
            shutil.rmtree(made, ignore_errors=True)
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        browser = await stack.enter_async_context(browser_of(options))
        servers = Servers(options, http, stack)
        stack.push_async_callback(servers.end)
        for name in sorted(needed):
            servers.begin(name)
        places = asyncio.Semaphore(JOBS)

        async def take(name: str) -> bool:
            # A place is for what plays, not for what waits for a server.
            for one in inspect.signature(SCENES[name]).parameters:
                if one != "own_demo":
                    with contextlib.suppress(Exception):
                        await servers.shared(one)
            async with places:
                return await play(name, servers, browser, http)

        results = await asyncio.gather(*map(take, names))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed", flush=True)
    if options.write:
        for file in [*pictures.write(), *recording.write()]:
            print(file.relative_to(REPOSITORY), flush=True)
    return 0 if results and all(results) else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.peers.ui", description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--chromium", required=True)
    parser.add_argument("--only", default="", help="words in the names of scenes, comma-separated")
    parser.add_argument("--write", action="store_true", help="copy chosen screenshots to docs/")
    parser.add_argument("--headed", action="store_true", help="show the browser")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.cache = options.cache.resolve()
    only = [re.sub(r"[_\s]+", " ", words.strip()) for words in options.only.split(",")]
    for name in OF_THE_DOCS.keys() & set(only):
        scene(OF_THE_DOCS[name])
    names = [name for name in SCENES if any(words in name for words in only)]
    if options.list:
        print("\n".join(names))
        return 0
    return asyncio.run(run(names, options))


if __name__ == "__main__":
    sys.exit(main())
