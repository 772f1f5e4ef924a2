"""A session in three columns, what was recorded of it, long logs, and keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Locator, Page, expect

from adapters.model.events import TextDelta, TurnStarted
from proxy.session import Session
from tests.peers.backends import Program
from tests.peers.scenes import over, the_one
from tests.peers.talks import EveTalk
from tests.peers.ui.site import REPOSITORY, Site, press, scene
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied

LONG = 20_000
# What a browser is asked to hold: some screens of lines, whatever the length of the log.
MOST_LINES = 200
MOST_AT_ONCE = 1_000
RATE = 500
SECONDS = 10


async def lines_of(page: Page) -> list[list[str]]:
    """Return the texts of the lines that the page has, by column."""
    found: list[list[str]] = await page.get_by_role("option").evaluate_all(
        "all => all.filter((one) => one.matches('.line')).map(one => "
        "[...one.children].map(cell => cell.textContent.replace(/\\s+/g, ' ').trim()))"
    )
    return found


def selected(page: Page) -> Locator:
    """Return the line that is selected."""
    return page.get_by_role("option", selected=True).and_(page.locator(".line"))


async def place(page: Page, seq: int) -> None:
    """Wait until an event is the selected one, and shown in full."""
    await expect(selected(page)).to_have_attribute("id", f"seq-{seq}")
    await page.get_by_role("region", name=f"Event {seq}", exact=True).wait_for()


def column(page: Page, heading: str) -> Locator:
    """Return the column with such a heading, of the selected event."""
    return page.get_by_role("article").filter(has=page.get_by_role("heading", name=heading))


async def frames_of(column: Locator, number: int) -> list[Any]:
    """Wait until a column has so many frames; return the JSON in them."""
    await expect(column.locator(".frame")).to_have_count(number)
    return [json.loads(text) for text in await column.locator(".frame .json").all_text_contents()]


def data_of(frames: list[dict[str, Any]]) -> list[Any]:
    """Return the JSON in frames of the control API: events of SSE, or lines."""
    found = []
    for frame in frames:
        text = frame["text"].strip()
        if not text.startswith("{"):
            rows = [row[5:] for row in text.splitlines() if row.startswith("data:")]
            text = "\n".join(rows)
        if text:
            found.append(json.loads(text))
    return found


def plain(text: str) -> str:
    """Return a text without the marks and spaces that a page shows otherwise."""
    return re.sub(r"\s+", " ", text.replace("`", "")).strip()


async def approved(site: Site, route: str) -> str:
    """Have a conversation in which something was asked and allowed; return the session."""
    talk = site.talk(route)
    asked = the_one(await talk.say("script: approve"))
    over(await talk.answer(asked, allow=True))
    return site.id_of(talk)


async def line_of(site: Site, session: str, kind: str) -> dict[str, Any]:
    """Return the first line of a type in a session's log."""
    log = await site.lines(f"/sessions/{session}/events")
    return next(line for line in log if line["type"] == kind)


@scene
async def an_approval_stands_in_three_columns_with_the_reasons_of_the_mapping(demo: Site) -> None:
    session = await approved(demo, "engine")
    event = await line_of(demo, session, "interaction.requested")
    at = {"after": str(event["seq"] - 1), "limit": "1"}
    page = await demo.open(f"#/sessions/{session}?seq={event['seq']}")
    await place(page, event["seq"])

    raw = column(page, "Backend: engine")
    frames = (await demo.get(f"/sessions/{session}/frames", **at))["frames"]
    own = [frame for frame in frames if event["seq"] in frame["seqs"]]
    assert own
    assert await frames_of(raw, len(own)) == data_of(own)
    mapping = await demo.get("/dialects/engine")
    read = [row for row in mapping["events"] if row["native"] == event["native"]["type"]]
    await says(raw, read, "fidelity_in")

    await page.get_by_role("heading", name="Canonical: interaction.requested").wait_for()
    assert await canonical(page) == bare(event)

    choice = page.get_by_label("Frontend of")
    dialects = await choice.locator("option").all_text_contents()
    assert len(dialects) == 6, dialects
    for dialect in dialects:
        await choice.select_option(dialect)
        shown = column(page, f"Frontend: {dialect}")
        frames = (await demo.get(f"/sessions/{session}/as/{dialect}", **at))["frames"]
        assert await frames_of(shown, len(frames)) == data_of(frames), dialect
        mapping = await demo.get(f"/dialects/{dialect}")
        rows = [row for row in mapping["canonical"] if row["canonical"] == event["type"]]
        assert rows, dialect
        await says(shown, rows, "fidelity")


async def says(column: Locator, rows: list[dict[str, Any]], fidelity: str) -> None:
    """Check that a column has the rows of a mapping: how faithful each is, and why."""
    for row in rows:
        item = column.get_by_role("listitem").filter(has_text=plain(row["why"]))
        await expect(item.first).to_contain_text(row[fidelity])


@scene
async def the_keyboard_and_a_number_move_among_the_lines(demo: Site) -> None:
    session = await approved(demo, "eve")
    last = (await demo.get(f"/sessions/{session}"))["last_seq"]
    page = await demo.open(f"#/sessions/{session}")
    box = page.get_by_role("listbox", name="Events")
    await box.focus()
    for key, seq in (
        ("ArrowUp", last),
        ("ArrowUp", last - 1),
        ("ArrowDown", last),
        ("Home", 1),
        ("ArrowDown", 2),
        ("End", last),
    ):
        await press(page, key)
        await place(page, seq)
    jump = page.get_by_label("Jump to")
    await jump.fill("5")
    await jump.press("Enter")
    await place(page, 5)
    await expect(box).to_have_attribute("aria-activedescendant", "seq-5")
    # Beyond the end is the end.
    await jump.fill("100000")
    await jump.press("Enter")
    await place(page, last)
    # The second key comes when the first one's line is drawn and not yet shown.
    await box.evaluate("""async (box) => {
        for (let n = 0; n < 2; n++) {
            box.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
            for (let turn = 0; turn < 20; turn++) await null;
        }
    }""")
    await place(page, last - 2)


@scene
async def the_end_is_followed_until_it_is_paused_and_again_after_that(demo: Site) -> None:
    talk = demo.talk("herm")
    over(await talk.say("hello"))
    session = demo.id_of(talk)
    page = await demo.open(f"#/sessions/{session}")
    over(await talk.say("once more"))
    await at_end(demo, page, session)
    await page.get_by_role("button", name="● Live").click()
    before = (await demo.get(f"/sessions/{session}"))["last_seq"]
    over(await talk.say("and again"))
    after = (await demo.get(f"/sessions/{session}"))["last_seq"]
    count = page.get_by_text(f"{after} events, {after - before} after these")
    await count.wait_for()
    assert await page.locator(f"#seq-{after}").count() == 0
    await page.get_by_role("button", name="Go live").click()
    await at_end(demo, page, session)
    await page.get_by_role("button", name="● Live").wait_for()


async def at_end(site: Site, page: Page, session: str) -> None:
    """Wait until the newest line of a session is in view."""
    last = (await site.get(f"/sessions/{session}"))["last_seq"]
    await expect(page.locator(f"#seq-{last}")).to_be_in_viewport()


@scene
async def a_line_is_copied_as_curl_which_gives_it_in_a_shell(demo: Site) -> None:
    session = await approved(demo, "managed-agents")
    event = await line_of(demo, session, "interaction.requested")
    page = await demo.open(
        f"#/sessions/{session}?seq={event['seq']}",
        permissions=["clipboard-read", "clipboard-write"],
    )
    await page.get_by_role("button", name="Copy as curl").click()
    await page.get_by_role("button", name="Copied").wait_for()
    command = await page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("curl "), command
    assert json.loads(await output_of("sh", "-c", command)) == event


async def output_of(*command: str) -> str:
    """Run a program to its end; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (command, err.decode())
    return out.decode()


@scene
async def the_address_keeps_the_line_and_the_dialect_over_a_reload(demo: Site) -> None:
    session = await approved(demo, "agui")
    page = await demo.open(f"#/sessions/{session}")
    await page.locator(".line").filter(has_text="tool.called").click()
    called = await line_of(demo, session, "tool.called")
    await place(page, called["seq"])
    await page.get_by_label("Frontend of").select_option("herm")
    await column(page, "Frontend: herm").locator(".frame").first.wait_for()
    address = page.url
    await page.reload()
    await demo.ready(page)
    await place(page, called["seq"])
    await column(page, "Frontend: herm").locator(".frame").first.wait_for()
    assert page.url == address


@scene
async def somebody_new_follows_an_approval_from_the_first_word_to_the_capture_dropped_in_again(
    demo: Site,
) -> None:
    # All that is pressed is found by what is written on it.
    page = await demo.open()
    await page.get_by_text("Ask me", exact=True).click()
    await page.get_by_role("region", name="eve frontend").get_by_text("Allow", exact=True).click()
    await page.get_by_text("Answered through eve").wait_for()
    await expect(page.get_by_text("ready", exact=True)).to_have_count(2)
    await page.get_by_text("Look at the translation").click()
    await demo.ready(page)
    session = re.search(r"dgs_\w+", page.url)
    assert session is not None
    await page.get_by_text("interaction.requested").click()
    for heading in ("Backend: herm", "Canonical: interaction.requested", "Frontend: "):
        await page.get_by_role("heading", name=heading).wait_for()
    await page.get_by_role("option").filter(has_text="turn.ended").wait_for()
    async with page.expect_download() as saved:
        await page.get_by_text("Download as capture").click()
    download = await saved.value
    with tempfile.TemporaryDirectory(prefix="dragoman-ui-") as folder:
        file = Path(folder) / download.suggested_filename
        await download.save_as(file)
        await replayed(demo, file)
        await dropped(demo, page, file, session[0])


async def replayed(site: Site, file: Path) -> None:
    """Serve a capture as its backend, and say and answer to it what was said and answered."""
    command = ["replay", str(file), "--serve", "eve", "--port", "0", "--speed", "max", "--json"]
    program = Program([sys.executable, "-m", "proxy", *command], REPOSITORY, {})
    await program.start()
    try:
        found = await program.line(r'"url": ?"([^"]+)"')
        url = found[1]
        talk = EveTalk(site.http, lambda: url, "page-replay")
        asked = the_one(await talk.say("script: approve"))
        over(await talk.answer(asked, allow=True))
    finally:
        await program.stop()


async def dropped(site: Site, page: Page, file: Path, session: str) -> None:
    """Give a capture to the page, chosen and dropped: the events are those of its session."""
    log = await site.lines(f"/sessions/{session}/events")
    for way in ("chosen", "dropped"):
        await page.get_by_text("Captures", exact=True).click()
        await site.ready(page)
        here = page.get_by_role("region", name="Capture", exact=True)
        if way == "chosen":
            await here.get_by_label("Capture: file").set_input_files(file)
        else:
            await drop(page, here, file.name, file.read_text("utf-8"))
        await page.get_by_text(f"· {len(log)} events").wait_for()
        await page.get_by_role("listbox", name="Events").focus()
        await press(page, "Home")
        for event in log:
            await place(page, event["seq"])
            assert await canonical(page) == bare(event)
            await press(page, "ArrowDown")
        await page.get_by_text("Talk", exact=True).click()
        await site.ready(page)


async def canonical(page: Page) -> Any:
    """Return the event that is shown in full."""
    return json.loads(await column(page, "Canonical: ").locator(".json").text_content() or "")


def bare(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the log without its place."""
    return {key: value for key, value in line.items() if key not in {"seq", "at", "session_id"}}


async def drop(page: Page, target: Locator, name: str, text: str) -> None:
    """Drop a file on an element."""
    data = await page.evaluate_handle(
        """([name, text]) => {
          const data = new DataTransfer();
          data.items.add(new File([text], name));
          return data;
        }""",
        [name, text],
    )
    for kind in ("dragenter", "dragover", "drop"):
        await target.dispatch_event(kind, {"dataTransfer": data})


class Local:
    """A server in this process, as a page sees it."""

    def __init__(self, url: str) -> None:
        self.url = url


@contextlib.asynccontextmanager
async def local(demo: Site, **tables: Any) -> AsyncIterator[tuple[Proxied, Site]]:
    """Start a server in this process, and look at it with the browser of another."""
    async with proxied(**tables) as server:
        site = Site(Local(server.url), demo.browser, demo.http)
        try:
            yield server, site
            demo.complaints += site.wrong()
        finally:
            await site.close()


async def speaking(server: Proxied) -> Session:
    """Return a session in the middle of an answer that a test writes."""
    name = await server.say("script: text")
    await server.until_idle(name)
    session = await server.session(name)
    await session.tell([TurnStarted(thread_id="main", turn_id="t-long", cause="unknown")])
    return session


async def tell(session: Session, number: int) -> None:
    """Write pieces of the answer."""
    words = [
        TextDelta(
            thread_id="main", turn_id="t-long", message_id="m", block_id="b", text=f"word {one} "
        )
        for one in range(number)
    ]
    await session.tell(words)


class Asked:
    """The requests of a page for parts of a session: the path's last part, `after` and `limit`."""

    def __init__(self, page: Page) -> None:
        self.all: list[tuple[str, int, int | None, bool]] = []
        page.on("request", self._take)

    def _take(self, request: Any) -> None:
        parts = urlsplit(request.url)
        kind = re.search(r"/sessions/[^/]+/(events|frames|as)", parts.path)
        if kind is None:
            return
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        limit = int(query["limit"]) if "limit" in query else None
        self.all.append((kind[1], int(query.get("after", 0)), limit, "follow" in query))

    def check(self, last: int) -> None:
        """Check that no request asks for more than a piece of so many events."""
        assert {kind for kind, *_ in self.all} == {"events", "frames", "as"}, self.all
        for kind, after, limit, follows in self.all:
            # What follows begins at the end that was known.
            most = last - after if limit is None else limit
            assert 0 < most <= MOST_AT_ONCE or (follows and most >= 0), (kind, after, limit)


async def small(page: Page) -> None:
    """Check that the page holds what is looked at, and no more."""
    assert await page.locator(".line").count() <= MOST_LINES
    assert await page.evaluate("document.querySelectorAll('*').length") < 3_000


@scene
async def of_a_long_log_the_end_is_shown_and_never_all_is_asked_for(demo: Site) -> None:
    async with local(demo) as (server, site):
        session = await speaking(server)
        for _ in range(LONG // 1_000):
            await tell(session, 1_000)
        last = session.last_seq
        page = await site.open()
        asked = Asked(page)
        await site.show(page, f"#/sessions/{session.id}")
        await expect(page.locator(f"#seq-{last}")).to_be_in_viewport()
        await small(page)
        box = page.get_by_role("listbox", name="Events")
        await box.focus()
        for key, seq in (("Home", 1), ("PageDown", None), ("End", last)):
            await press(page, key)
            if seq is not None:
                await place(page, seq)
        jump = page.get_by_label("Jump to")
        await jump.fill("10000")
        await jump.press("Enter")
        await place(page, 10_000)
        event = (await site.lines(f"/sessions/{session.id}/events", after="9999", limit="1"))[0]
        await column(page, "Canonical: text.delta").get_by_text(event["text"].strip()).wait_for()
        await small(page)
        asked.check(last)


@scene
async def while_events_come_fast_the_newest_is_shown_and_the_page_answers(demo: Site) -> None:
    async with local(demo) as (server, site):
        session = await speaking(server)
        page = await site.open(f"#/sessions/{session.id}")
        asked = Asked(page)
        await page.evaluate(
            """() => {
              window.longTasks = 0;
              new PerformanceObserver((list) => {
                for (const one of list.getEntries()) window.longTasks += one.duration;
              }).observe({ type: "longtask" });
            }"""
        )
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for told in range(1, SECONDS * 10 + 1):
            await tell(session, RATE // 10)
            await asyncio.sleep(max(0.0, begun + told / 10 - loop.time()))
        await expect(page.locator(f"#seq-{session.last_seq}")).to_be_in_viewport()
        took = (loop.time() - begun) * 1000
        share = await page.evaluate("longTasks") / took
        print(f"     long tasks: {share:.1%}")
        await small(page)
        await page.get_by_role("button", name="● Live").click()
        await page.get_by_role("button", name="Go live").wait_for()
        for kind, _, limit, follows in asked.all:
            assert follows or (limit is not None and limit <= MOST_AT_ONCE), (kind, limit)


@scene
async def a_key_is_asked_for_kept_until_a_reload_and_shows_what_it_may_see(demo: Site) -> None:
    keys = [key_of("ann"), key_of("bob"), key_of("root", admin=True)]
    async with local(demo, keys=keys) as (server, site):
        # What a key may not see the browser says on its console, too.
        site.means("401")
        site.means("403")
        mine = await server.say("script: text", key="k-ann")
        theirs = await server.say("script: text", key="k-bob")
        for name in (mine, theirs):
            await server.until_idle(name)
        page = await site.open("#/sessions", ready=False)
        await enter(page, "k-ann")
        await row(page, mine).wait_for()
        assert await row(page, theirs).count() == 0
        await site.show(page, f"#/sessions/{mine}")
        # Frames are for administrators; all else is there.
        await page.get_by_text("administrator").first.wait_for()
        await page.locator(".line").filter(has_text="text.completed").click()
        await column(page, "Canonical: text.completed").wait_for()
        await column(page, "Frontend: eve").locator(".frame").first.wait_for()
        await page.reload()
        await enter(page, "k-root")
        await site.ready(page)
        await expect(page.get_by_text("administrator")).to_have_count(0)
        await page.locator(".line").filter(has_text="turn.started").click()
        await column(page, "Backend: engine").locator(".frame").first.wait_for()
        await site.show(page, "#/sessions")
        for name in (mine, theirs):
            await row(page, name).wait_for()


def row(page: Page, session: str) -> Locator:
    """Return the link of a session in the list."""
    return page.locator(f'main a[href*="{session}"]').first


async def enter(page: Page, key: str) -> None:
    """Give the page a key, which it asks for."""
    field = page.get_by_label("Key", exact=True)
    await field.wait_for()
    assert await field.get_attribute("type") == "password"
    await field.fill(key)
    await page.get_by_role("button", name="Use this key").click()
    await field.wait_for(state="detached")
