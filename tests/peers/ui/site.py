"""Where scenes play: servers with a page, and a browser that shows it.

A scene is a coroutine function whose name is a sentence. Its parameters say what it needs: `demo`
is `dragoman demo`, `eve` is Dragoman before a real eve server, `many` one with many sessions, and
`own_demo` a demo of the scene's own, which it may kill. Each is a `Site`. All that opens is closed
at the end of the scene, which fails if a page has complained.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
from playwright.async_api import Browser, BrowserContext, Error, Page

from tests.peers.backends import Program
from tests.peers.talks import EveTalk
from tests.support.ports import HOST, free_port

__all__ = [
    "HEIGHTS",
    "LIMIT_MS",
    "SCENES",
    "THEMES",
    "WIDTHS",
    "DemoServer",
    "EveProxy",
    "LostKey",
    "Scene",
    "Site",
    "press",
    "scene",
]

REPOSITORY = Path(__file__).parents[3]
# Only what hangs takes longer.
LIMIT_MS = 30_000
THEMES = ("light", "dark")
WIDTHS = (390, 1280)
HEIGHTS = {390: 844, 1280: 800}

Scene = Callable[..., Awaitable[None]]
SCENES: dict[str, Scene] = {}


def scene(play: Scene) -> Scene:
    """Add a scene; its name is that of the function, as a sentence."""
    name = play.__name__.replace("_", " ")
    assert name not in SCENES, name
    SCENES[name] = play
    return play


class Server(Protocol):
    """Something that has a page."""

    url: str


class DemoServer(Program):
    """`dragoman demo` on a port that it keeps, with scripted backends."""

    def __init__(self) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        arguments = [sys.executable, "-m", "proxy", "demo", "--port", str(port)]
        super().__init__(arguments, REPOSITORY, {})

    async def start(self) -> None:
        await super().start()
        try:
            await self.line(r"listening on http")
        except TimeoutError:
            raise TimeoutError("\n".join(["the demo does not start:", *self.tail])) from None


class EveProxy(Program):
    """`dragoman serve` in front of a real eve server, on a journal that outlives it."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        config = folder / "dragoman.toml"
        config.write_text(
            f'[server]\nlisten = "{self.url.removeprefix("http://")}"\n'
            f'[journal]\nurl = "sqlite:///{folder}/dragoman.db"\n'
            f'[[backends]]\nname = "eve"\ndialect = "eve"\nurl = "{upstream}"\n'
        )
        arguments = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        super().__init__(arguments, REPOSITORY, {})

    async def start(self) -> None:
        await super().start()
        try:
            await self.line(r"listening on http")
        except TimeoutError:
            raise TimeoutError("\n".join(["dragoman does not start:", *self.tail])) from None

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for, and start it again."""
        await self.stop(signal.SIGKILL)
        await self.start()


class LostKey(Exception):
    """The browser never says that a key was pressed, though the page itself answers."""


async def press(page: Page, key: str) -> None:
    """Press a key, like `Enter`.

    Raises:
        LostKey: a browser with the windows of several scenes may lose its own answer to a key.
        TimeoutError: the page is busy with the key, and does not end.
    """
    try:
        await asyncio.wait_for(page.keyboard.press(key), LIMIT_MS / 1000)
    except TimeoutError:
        await asyncio.wait_for(page.evaluate("1"), LIMIT_MS / 1000)
        raise LostKey(key) from None


_NUMBERS = itertools.count(1)


class Site:
    """A server with a page, as one scene sees it: what the pages of the scene complain about, and
    what they have loaded."""

    def __init__(self, server: Server, browser: Browser, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.url = server.url
        self.http = http
        self.complaints: list[str] = []
        self.loaded: dict[str, int] = {}
        """Each address that a page has loaded from `/ui/`, with the bytes on the way."""
        self._meant: list[str] = []
        self.browser = browser
        self._contexts: list[BrowserContext] = []

    async def open(
        self,
        view: str = "",
        *,
        theme: str = "light",
        width: int = 1280,
        ready: bool = True,
        **context: Any,
    ) -> Page:
        """Open the page in a browser of its own, and wait until the view is there.

        Args:
            view: what stands behind `/ui/`, like `#/sessions`.
            theme: `light` or `dark`.
            width: of the window, in pixels.
            ready: False where the view cannot be there, as without a key.
            context: what else Playwright's `new_context` takes.
        """
        opened = await self.browser.new_context(
            color_scheme=theme,
            viewport={"width": width, "height": HEIGHTS.get(width, 900)},
            reduced_motion="reduce",
            **context,
        )
        opened.set_default_timeout(LIMIT_MS)
        self._contexts.append(opened)
        page: Page = await opened.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self._complain(f"{error}"))
        page.on("dialog", self._dismiss)
        page.on("request", self._request)
        page.on("response", self._response)
        await page.goto(f"{self.url}/ui/{view}")
        if ready:
            await self.ready(page)
        return page

    async def show(self, page: Page, view: str) -> None:
        """Go to another view in the same page."""
        # The heading of the view that is left stays until the page has heard of it.
        await page.evaluate(
            """view => {
              const path = (hash) => hash.split("?")[0];
              const current = document.querySelector("nav a[aria-current=page]");
              const shown = [path(location.hash), current?.getAttribute("href")];
              if (!shown.includes(path(view)))
                document.querySelectorAll("main h1").forEach((one) => (one.dataset.left = ""));
              location.hash = view;
            }""",
            view,
        )
        await self.ready(page)

    async def ready(self, page: Page) -> None:
        """Wait until a view has its heading, a session its lines, and nothing is `aria-busy`.

        Raises:
            AssertionError: the view says that it has failed.
        """
        failed = page.locator("main [role=alert]")
        await page.locator("main h1:not([data-left])").or_(failed).first.wait_for()
        if await page.evaluate("location.hash.startsWith('#/sessions/')"):
            await page.locator("main [role=option]").or_(failed).first.wait_for()
        await page.wait_for_function("() => !document.querySelector('main [aria-busy=true]')")
        assert await failed.count() == 0, await failed.first.text_content()

    async def views(self, page: Page) -> list[str]:
        """Return the views that the navigation names, like `#/sessions`."""
        links = page.get_by_role("navigation").get_by_role("link")
        found: list[str] = await links.evaluate_all("all => all.map(a => a.getAttribute('href'))")
        assert found, "the page has no navigation"
        return found

    def talk(self, route: str = "eve") -> EveTalk:
        """Return a conversation of an eve client over a route: `say`, `answer`, `cancel`."""
        url = f"{self.url}/as/eve/to/{route}"
        return EveTalk(self.http, lambda: url, f"page-{next(_NUMBERS)}")

    def id_of(self, talk: EveTalk) -> str:
        """Return the id of a conversation's session, once something was said."""
        assert talk.session is not None
        return talk.session.session_id

    async def get(self, path: str, **query: str) -> Any:
        """Return what the control API answers, for a path like `/sessions`."""
        url = f"{self.url}/api/v1{path}"
        async with self.http.get(url, params=query, raise_for_status=True) as answer:
            return await answer.json()

    async def lines(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return what the control API answers with lines of JSON."""
        url = f"{self.url}/api/v1{path}"
        async with self.http.get(url, params=query, raise_for_status=True) as answer:
            return [json.loads(line) for line in (await answer.text()).splitlines() if line.strip()]

    def means(self, pattern: str) -> None:
        """Take no complaint for one that this pattern is found in."""
        self._meant.append(pattern)

    def wrong(self) -> list[str]:
        """Return what pages have complained about, but for what is meant."""
        return [
            one for one in self.complaints if not any(re.search(how, one) for how in self._meant)
        ]

    def check(self) -> None:
        """Raise AssertionError if a page has complained."""
        assert not self.wrong(), "the page complains"

    async def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            await context.close()
        self._contexts = []

    def _complain(self, what: str) -> None:
        if what not in self.complaints:
            self.complaints.append(what)

    def _hear(self, message: Any) -> None:
        # What the policy forbids is an error of the console, too.
        if message.type in {"error", "warning", "assert"}:
            where = message.location.get("url", "")
            self._complain(f"{message.type} on the console: {message.text} ({where})")

    async def _dismiss(self, dialog: Any) -> None:
        self._complain(f"a dialog: {dialog.message}")
        await dialog.dismiss()

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        ours = f"{parts.scheme}://{parts.netloc}" == self.url
        if not ours and parts.scheme not in {"data", "blob"}:
            self._complain(f"a request to another host: {request.url}")

    async def _response(self, response: Any) -> None:
        path = urlsplit(response.url).path
        if path.startswith("/ui/") and response.status == 200:
            # Packed, as it came; nothing comes of what the browser has. A page that is left or
            # loaded again meanwhile says no more of it.
            with contextlib.suppress(Error):
                sizes = await response.request.sizes()
                self.loaded[path] = max(self.loaded.get(path, 0), sizes["responseBodySize"])
