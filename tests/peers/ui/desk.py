"""What waits for people, and the list of sessions."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from playwright.async_api import Locator, Page, expect

from proxy.journal import open_journal
from proxy.journal.base import Write
from tests.peers.scenes import over, the_one
from tests.peers.talks import EveTalk
from tests.peers.ui.site import EveProxy, Site, press, scene

MANY = 3_000
ROWS = "main tbody tr:not(.space)"


async def waiting(site: Site, words: str, route: str = "engine") -> tuple[EveTalk, str]:
    """Say something that makes an agent ask; return the conversation and its session."""
    talk = site.talk(route)
    the_one(await talk.say(words))
    return talk, site.id_of(talk)


def card_of(page: Page, session: str) -> Locator:
    """Return the card of what a session asks."""
    return page.get_by_role("article").filter(has=page.locator(f'a[href$="{session}"]'))


async def events(site: Site, session: str) -> list[dict[str, Any]]:
    """Return a session's log."""
    url = f"{site.url}/api/v1/sessions/{session}/events"
    async with site.http.get(url, raise_for_status=True) as answer:
        return [json.loads(line) for line in (await answer.text()).splitlines() if line]


async def resolved(site: Site, session: str) -> dict[str, Any]:
    """Return how what a session asked was resolved."""
    for _ in range(1_000):
        log = await events(site, session)
        found = [one for one in log if one["type"] == "interaction.resolved"]
        if found:
            return found[-1]
        await asyncio.sleep(0.02)
    raise AssertionError("nothing is resolved")


@scene
async def an_approval_that_is_denied_with_a_reason_is_denied_with_it(demo: Site) -> None:
    page = await demo.open("#/desk")
    _, session = await waiting(demo, "script: approve")
    card = card_of(page, session)
    await card.get_by_label("Reason, if you deny").fill("Keep the exports.")
    await card.get_by_role("button", name="No", exact=True).click()
    await card.wait_for(state="detached")
    assert (await resolved(demo, session))["outcome"] == "denied"
    accepted = [one for one in await events(demo, session) if one["type"] == "input.accepted"]
    assert accepted[-1]["details"]["reason"] == "Keep the exports.", accepted[-1]


@scene
async def of_two_that_answer_the_second_reads_so_until_the_card_is_closed(demo: Site) -> None:
    page = await demo.open("#/desk")
    _, session = await waiting(demo, "script: approve")
    card = card_of(page, session)
    await card.wait_for()
    held: list[Any] = []
    answered = asyncio.Event()

    async def hold(route: Any) -> None:
        held.append(route)
        if answered.is_set():
            await route.continue_()

    await page.route("**/api/v1/interactions", hold)
    (asked,) = [
        one
        for one in (await demo.get("/interactions"))["interactions"]
        if one["session_id"] == session
    ]
    url = f"{demo.url}/api/v1/sessions/{session}/interactions/{asked['request_id']}"
    async with demo.http.post(url, json={"decision": "allow"}) as answer:
        assert answer.status == 202, await answer.text()
    await resolved(demo, session)
    # That the second is refused is what this is about.
    demo.means("status of 409")
    await card.get_by_role("button", name="No", exact=True).click()
    await card.get_by_text("Answered already.").wait_for()
    answered.set()
    waits = list(held)
    for route in waits:
        await route.continue_()
    await card.get_by_text("not open any more").wait_for()
    await expect(card.get_by_role("button", name="No", exact=True)).to_have_count(0)
    await card.get_by_role("button", name="Close").click()
    await expect(card).to_have_count(0)


@scene
async def something_new_is_announced_the_focus_stays_and_the_keys_go_on(own_demo: Site) -> None:
    page = await own_demo.open("#/desk")
    await waiting(own_demo, "script: approve")
    await page.get_by_role("article", name="Run `rm").wait_for()
    number = await page.get_by_role("article").count()
    await expect(page).to_have_title(f"({number}) Desk – Dragoman")
    field = page.get_by_role("article").nth(number - 1).get_by_role("textbox")
    await field.fill("I was writ")
    await waiting(own_demo, "script: ask", "herm")
    news = page.locator("main [aria-live=polite]").first
    await expect(news).to_have_text("New: Which departure do you prefer?")
    await expect(page).to_have_title(f"({number + 1}) Desk – Dragoman")
    await expect(field).to_be_focused()
    await page.keyboard.type("ing")
    await expect(field).to_have_value("I was writing")
    # In a field the keys are letters; elsewhere they go from card to card.
    await page.get_by_role("heading", name="Desk").click()
    cards = page.get_by_role("article")
    for key, at in (("j", 0), ("j", 1), ("ArrowDown", 2), ("k", 1)):
        await press(page, key)
        await expect(cards.nth(min(at, number))).to_be_focused()


@scene
async def a_question_is_answered_by_a_choice_or_in_words(demo: Site) -> None:
    page = await demo.open("#/desk")
    for route in ("engine", "herm"):
        _, session = await waiting(demo, "script: ask", route)
        card = card_of(page, session)
        await card.get_by_role("button", name="09:10").click()
        await card.wait_for(state="detached")
        log = json.dumps(await events(demo, session))
        assert "Holding a seat on the 09:10" in log or "09:10" in str(
            (await resolved(demo, session))["answer"]
        )
    talk, session = await waiting(demo, "script: askopen", "eve")
    card = card_of(page, session)
    await card.get_by_label("Your answer").fill("Ada")
    await press(page, "Enter")
    heard = await talk.hear()
    assert "The ticket carries the name Ada" in heard.text, heard


@scene
async def a_session_is_found_by_its_name_and_the_address_keeps_what_is_looked_for(
    demo: Site,
) -> None:
    page = await demo.open("#/sessions")
    failed = demo.talk("herm")
    await failed.say("script: fail")
    talk = demo.talk("engine")
    over(await talk.say("hello"))
    session = demo.id_of(talk)
    row = page.locator(ROWS).filter(has=page.locator(f'a[href$="{session}"]'))
    await row.wait_for()
    url = f"{demo.url}/api/v1/sessions/{session}"
    native = (await demo.get(f"/sessions/{session}"))["legs"][-1]["native_id"]
    search = page.get_by_role("searchbox")
    for words in (session, session[4:14], native):
        await search.fill(words)
        await expect(page.locator(ROWS)).to_have_count(1)
        await row.wait_for()
    await search.fill("the first")
    title = page.locator(ROWS).filter(has=page.locator(f'a[href$="{demo.id_of(failed)}"]'))
    await title.get_by_text("The first turn").wait_for()
    await search.fill("")
    await page.get_by_label(re.compile("^Backend")).select_option("herm")
    await page.get_by_label("Last message").select_option("failed")
    await page.wait_for_function("() => location.hash.includes('last=failed')")
    await page.reload()
    await demo.ready(page)
    await expect(page.get_by_label(re.compile("^Backend"))).to_have_value("herm")
    await title.wait_for()
    await expect(row).to_have_count(0)
    await page.get_by_label(re.compile("^Backend")).select_option("")
    await page.get_by_label("Last message").select_option("")
    await row.wait_for()
    async with demo.http.delete(url) as answer:
        assert answer.status < 300, await answer.text()
    await row.wait_for(state="detached")


@scene
async def a_stream_that_is_open_shows_as_attached(demo: Site) -> None:
    page = await demo.open("#/sessions")
    talk = demo.talk("engine")
    over(await talk.say("hello"))
    session = demo.id_of(talk)
    row = page.locator(ROWS).filter(has=page.locator(f'a[href$="{session}"]'))
    await row.wait_for()
    url = f"{demo.url}/as/eve/to/engine/eve/v1/session/{session}/stream"
    async with demo.http.get(url) as stream:
        assert stream.status == 200
        await expect(row.locator(".attached")).to_have_text("eve")


@scene
async def what_is_sorted_by_is_told(demo: Site) -> None:
    over(await demo.talk("engine").say("hello"))
    over(await demo.talk("eve").say("script: tool"))
    page = await demo.open("#/sessions")
    for _ in range(2):
        await page.get_by_role("button", name="Events").click()
        head = page.get_by_role("columnheader", name="Events")
        order = await head.get_attribute("aria-sort")
        await expect(page.locator("th[aria-sort]")).to_have_count(1)
        cells = await page.locator("tbody td.events").all_inner_texts()
        numbers = [int(one.replace(",", "")) for one in cells]
        assert numbers == sorted(numbers, reverse=order == "descending"), (order, numbers)
    assert order == "ascending"


@scene
async def three_thousand_sessions_leave_the_page_small(many: Site) -> None:
    page = await many.open("#/sessions")
    await page.get_by_role("status").get_by_text(f"{MANY:,}", exact=True).wait_for()
    assert await page.locator(ROWS).count() < 60
    assert await page.locator("*").count() < 1_500
    box = page.get_by_role("region", name="Sessions")
    await box.evaluate("one => one.scrollTo(0, one.scrollHeight)")
    await page.get_by_text("Session number 1.", exact=True).wait_for()
    await page.get_by_role("searchbox").fill("number 1234.")
    await expect(page.locator(ROWS)).to_have_count(1)


async def fill_journal(folder: Path) -> None:
    """Make a journal with many sessions, in which little has happened."""
    journal = open_journal(f"sqlite:///{folder}/dragoman.db")
    await journal.open()
    begin = {"seq": 1, "type": "session.started", "thread_id": "main", "dialect": "eve", "v": 1}

    async def add(number: int) -> None:
        at = 1_790_000_000_000 + number * 1_000
        title = f"Session number {number}."
        entry = {**begin, "at": at, "title": title}
        row = await journal.create_session(
            id=f"dgs_{number:026d}",
            owner="local",
            route="eve",
            dialect="eve",
            backend="eve",
            secret=b"x",
            at=at,
            body=json.dumps(entry, separators=(",", ":")).encode() + b"\n",
        )
        await journal.append(Write(row.key, at=at, title=title, state="idle"))

    await asyncio.gather(*map(add, range(1, MANY + 1)))
    await journal.aclose()


async def start_many(folder: str) -> EveProxy:
    """Start a server of many sessions, before a backend that nobody needs."""
    await fill_journal(Path(folder))
    server = EveProxy(Path(folder), "http://127.0.0.1:9")
    await server.start()
    return server
