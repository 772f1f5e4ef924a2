"""What the views show: conversations, questions, captures and traffic, and the way to see them."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Locator, Page

from tests.peers.scenes import over, the_one
from tests.peers.ui.site import Site

__all__ = ["capture_of", "chat", "choose", "each_view", "fill", "name_of", "select"]


async def each_view(site: Site, page: Page) -> list[str]:
    """Have conversations of every kind; return every view, and the three columns of one that
    waits."""
    told = site.talk("eve")
    over(await told.say("script: tool"))
    await site.talk("herm").say("script: fail")
    await site.talk("herm").say("script: ask")
    await site.talk("eve").say("script: askopen")
    waiting = site.talk("engine")
    the_one(await waiting.say("script: approve"))
    shown = {
        "#/talk": "#/talk?as=aisdk&to=engine&beside=eve",
        "#/backends": "#/backends?from=eve&to=engine",
    }
    views = [shown.get(view, view) for view in await site.views(page)]
    return [*views, f"#/sessions/{site.id_of(waiting)}"]


def name_of(view: str) -> str:
    """Return the name of a view in names of files: `session` for any of them."""
    parts = view.removeprefix("#/").split("?")[0].split("/")
    return "session" if len(parts) > 1 else parts[0]


async def fill(site: Site, page: Page, view: str) -> None:
    """Go to a view and let it show what it can: an event, an answered approval, two captures."""
    await site.show(page, view)
    name = name_of(view)
    if name == "session":
        waits = page.locator("main [role=option]").filter(has_text="interaction.requested")
        if not await waits.count():
            return await select(page, "message.received")
        await select(page, "interaction.requested")
        # How faithfully it crosses is read after it.
        for side in (0, 2):
            article = page.get_by_role("article").nth(side)
            await article.locator(".mapping").first.wait_for()
    elif name == "talk" and not await page.get_by_text("Answered").count():
        await page.get_by_role("button", name="Ask me", exact=True).click()
        await chat(page, "eve").get_by_role("button", name="Yes").click()
        for pane in ("AI SDK", "eve"):
            await chat(page, pane).get_by_text("Answered").wait_for()
            await chat(page, pane).get_by_text("4.1 GB freed").wait_for()
    elif name == "captures":
        texts = [await capture_of(site, "script: approve", allow) for allow in (True, False)]
        for label, text in zip(("Capture", "Compare with"), texts, strict=True):
            await choose(page, label, f"{label.split()[0].lower()}.capture.ndjson", text)
        await page.get_by_role("region", name="Differences").wait_for()
        await page.locator("main [role=option][aria-selected=true]").wait_for()
    elif name == "desk":
        await page.get_by_role("article").nth(2).wait_for()
    elif name == "backends":
        await page.get_by_role("img").first.wait_for()
    return None


def chat(page: Page, dialect: str) -> Locator:
    """Return what was said in a pane of Talk."""
    return page.get_by_role("log", name=f"Chat in {dialect}")


async def select(page: Page, kind: str) -> None:
    """Select the first event of a type among the lines of a session, and wait for its columns."""
    await page.locator("main [role=option]").filter(has_text=kind).first.click()
    await page.get_by_role("heading", name=f"Canonical: {kind}").wait_for()
    await page.get_by_role("article").nth(2).locator(".frame, .muted").first.wait_for()


async def capture_of(site: Site, words: str, allow: bool | None = None) -> bytes:
    """Say something to the engine, answer what it asks, and return the session as its capture."""
    talk = site.talk("engine")
    heard = await talk.say(words)
    if allow is not None:
        heard = await talk.answer(the_one(heard), allow=allow)
    url = f"{site.url}/api/v1/sessions/{site.id_of(talk)}/capture"
    async with site.http.get(url, raise_for_status=True) as answer:
        return await answer.read()


async def choose(page: Page, label: str, name: str, content: bytes, dialect: str = "") -> None:
    """Choose a file in the view of captures, and wait until it was read or refused."""
    place = page.get_by_role("region", name=label, exact=True)
    if dialect:
        await place.get_by_label("Dialect").select_option(dialect)
    file: Any = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    await place.get_by_label(f"{label}: file").set_input_files(file)
    read = place.get_by_role("button", name="Close", exact=True)
    await read.or_(page.locator("main [role=alert]")).first.wait_for()
