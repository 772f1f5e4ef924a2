"""Recorded traffic that is dropped on the page."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from playwright.async_api import Page, expect

from tests.peers.ui.content import capture_of, choose, select
from tests.peers.ui.shell import HOSTILE, only_text, shown
from tests.peers.ui.site import REPOSITORY, Site, scene

FIXTURES = REPOSITORY / "fixtures"


@scene
async def a_har_a_cassette_and_a_capture_are_shown_in_three_columns(demo: Site) -> None:
    capture = await capture_of(demo, "script: tool")
    files = {
        "chrome.har": (FIXTURES / "captures" / "chrome.har").read_bytes(),
        "cassette.yaml": (FIXTURES / "captures" / "cassette-aiohttp.yaml").read_bytes(),
        "session.capture.ndjson": capture,
    }
    for name, content in files.items():
        page = await demo.open("#/captures")
        # What browsers and vcrpy have recorded does not say whose it is.
        await choose(page, "Capture", name, content, "" if content is capture else "engine")
        assert await page.locator("main [role=alert]").all_inner_texts() == [], name
        await page.get_by_role("region", name="Capture", exact=True).get_by_text(name).wait_for()
        await select(page, "message.received" if name.endswith("ndjson") else "text.")
        # Beside some lines stands the backend's frame, beside some what a frontend gets.
        for column in ("raw", "shown"):
            await page.locator(f".line .{column} b").first.wait_for()


@scene
async def of_a_broken_file_the_place_and_the_way_out_are_told(demo: Site) -> None:
    page = await demo.open("#/captures")
    good = await capture_of(demo, "hello")
    lines = good.splitlines(keepends=True)
    broken = b"".join([*lines[:2], b'{"seq": \n', *lines[3:]])
    for name, content in (("broken.capture.ndjson", broken), ("words.txt", b"Only words.\n")):
        demo.means("status of 4")
        await choose(page, "Capture", name, content)
        told = await page.locator("main [role=alert]").inner_text()
        assert name in told, told
        assert len(told) > len(name) + 20, told
        if content is broken:
            assert "3" in told, told
    await choose(page, "Capture", "good.capture.ndjson", good)
    await page.locator("main [role=option]").first.wait_for()


async def compare(page: Page, one: bytes, other: bytes) -> None:
    """Open two captures."""
    await choose(page, "Capture", "one.capture.ndjson", one)
    await choose(page, "Compare with", "other.capture.ndjson", other)


@scene
async def the_first_difference_of_two_captures_is_in_view(demo: Site) -> None:
    page = await demo.open("#/captures")
    one, other = [await capture_of(demo, "script: approve", allow) for allow in (True, False)]
    await compare(page, one, other)
    differences = page.get_by_role("region", name="Differences")
    await differences.get_by_role("heading", name="differences").wait_for()
    count = int((await differences.get_by_role("heading").inner_text()).split()[0])
    assert await differences.locator("tbody tr").count() == count
    selected = page.locator("main [role=option][aria-selected=true]")
    await expect(selected).to_contain_text("input.accepted")
    seq = await selected.get_attribute("aria-posinset")
    await page.get_by_role("region", name=f"Event {seq}", exact=True).wait_for()
    await differences.get_by_role("button", name="Look at the first").click()
    await expect(selected).to_be_in_viewport()


@scene
async def two_captures_that_say_the_same_are_told_so(demo: Site) -> None:
    page = await demo.open("#/captures")
    await compare(page, *[await capture_of(demo, "script: tool") for _ in range(2)])
    await page.get_by_role("heading", name="The two say the same").wait_for()


@scene
async def a_capture_is_downloaded_as_a_test(demo: Site) -> None:
    page = await demo.open("#/captures")
    await choose(page, "Capture", "tool.capture.ndjson", await capture_of(demo, "script: tool"))
    async with page.expect_download() as begun:
        await page.get_by_role("button", name="Download as pytest").click()
    path = await (await begun.value).path()
    with zipfile.ZipFile(io.BytesIO(Path(path).read_bytes())) as folder:
        names = sorted(folder.namelist())
        assert len(names) == 2, names
        assert any(name.endswith(".py") for name in names), names
        assert any(name.endswith(".ndjson") for name in names), names


@scene
async def what_a_capture_says_is_text_whatever_it_looks_like(demo: Site) -> None:
    page = await demo.open("#/captures")
    words = " ".join(HOSTILE[:-1])
    capture = await capture_of(demo, words)
    assert json.dumps(words)[1:20].encode() in capture
    await choose(page, "Capture", f"{HOSTILE[0]}.ndjson", capture)
    await select(page, "message.received")
    assert shown(HOSTILE[0]) in await page.locator("main").inner_text()
    await only_text(page)
    await choose(page, "Compare with", "other.ndjson", await capture_of(demo, "hello"))
    await page.get_by_role("region", name="Differences").wait_for()
    await only_text(page)
