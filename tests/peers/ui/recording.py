"""A moving picture of Talk: an approval given on the other side, and a kill that loses nothing."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.async_api import Locator, Page

from tests.peers.ui.content import chat
from tests.peers.ui.shell import CACHE
from tests.peers.ui.site import REPOSITORY, Site

__all__ = ["FRAMES", "a_recording_of_talk", "write"]

FRAMES = CACHE / "recording"
# Of the window, and of the picture.
WINDOW = {"width": 1160, "height": 700}
WIDTH = 900
EVERY_S = 0.1
# What stands still is shown so long; the last frame longer.
STILL_MS = 1_300
LAST_MS = 4_000
COLOURS = 64
POINTER = (225, 70, 60)


class Recorder:
    """Takes what a page shows until it is stopped, with a ring around what will be clicked."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._ring: tuple[float, float] | None = None
        self._over = False
        self.frames: list[tuple[float, Image.Image]] = []

    async def run(self) -> None:
        """Take frames."""
        while not self._over:
            at, ring = time.monotonic(), self._ring
            shot = await self._page.screenshot(full_page=True, animations="disabled")
            image = Image.open(io.BytesIO(shot)).convert("RGB")
            if ring:
                x, y = ring
                draw = ImageDraw.Draw(image)
                draw.ellipse((x - 19, y - 19, x + 19, y + 19), outline=POINTER, width=5)
            height = round(image.height * WIDTH / image.width)
            self.frames.append((at, image.resize((WIDTH, height), Image.Resampling.LANCZOS)))
            await asyncio.sleep(max(0.0, at + EVERY_S - time.monotonic()))

    async def click(self, button: Locator) -> None:
        """Show where, and click."""
        await button.wait_for()
        box = await button.bounding_box()
        assert box is not None
        # Where it is on the page, which is taken whole.
        top = await self._page.evaluate("scrollY")
        self._ring = (box["x"] + box["width"] / 2, box["y"] + top + box["height"] / 2)
        await asyncio.sleep(0.7)
        await button.click()
        self._ring = None

    def stop(self) -> None:
        """Take no more frames."""
        self._over = True


async def a_recording_of_talk(own_demo: Site) -> None:
    """Play it, and keep the frames."""
    # A server is killed.
    own_demo.means("")
    page = await own_demo.open("#/talk?as=engine&to=herm&beside=eve", width=WINDOW["width"])
    await page.set_viewport_size(WINDOW)
    recorder = Recorder(page)
    taking = asyncio.create_task(recorder.run())
    await recorder.click(page.get_by_role("button", name="Ask me", exact=True))
    allow = chat(page, "eve").get_by_role("button", name="Allow", exact=True)
    await recorder.click(allow)
    await chat(page, "Engine").get_by_text("Answered").wait_for()
    await asyncio.sleep(1)
    await recorder.click(page.get_by_role("button", name="Answer slowly"))
    await chat(page, "eve").locator(".said.agent").nth(2).wait_for()
    await asyncio.sleep(1)
    await recorder.click(page.get_by_role("button", name="Kill the server"))
    for pane in ("Engine", "eve"):
        region = page.get_by_role("region", name=f"{pane} frontend")
        await region.get_by_text("equal: ").wait_for(timeout=60_000)
    await asyncio.sleep(0.5)
    recorder.stop()
    await taking
    keep(recorder.frames)


def keep(frames: list[tuple[float, Image.Image]]) -> None:
    """Save the frames that differ from those before, with how long each is shown."""
    FRAMES.mkdir(parents=True, exist_ok=True)
    for old in FRAMES.glob("*.gif"):
        old.unlink()
    tallest = max(image.height for _, image in frames)
    changed: list[tuple[float, Image.Image]] = []
    for at, image in frames:
        whole = Image.new("RGB", (WIDTH, tallest), image.getpixel((2, image.height - 2)))
        whole.paste(image, (0, 0))
        if not changed or whole.tobytes() != changed[-1][1].tobytes():
            changed.append((at, whole))
    ends = [at for at, _ in changed[1:]]
    times = [
        min(STILL_MS, round((end - at) * 1000 / 10) * 10)
        for (at, _), end in zip(changed[:-1], ends, strict=True)
    ]
    # One palette for all, of what is shown in the course of it.
    some = [*changed[:: max(1, len(changed) // 8)], changed[-1]]
    sheet = Image.new("RGB", (WIDTH, tallest * len(some)))
    for number, (_, image) in enumerate(some):
        sheet.paste(image, (0, tallest * number))
    palette = sheet.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few = [image.quantize(palette=palette, dither=Image.Dither.NONE) for _, image in changed]
    few[0].save(
        FRAMES / "page.gif",
        save_all=True,
        append_images=few[1:],
        duration=[*times, LAST_MS],
        loop=0,
        optimize=False,
    )


def write() -> Iterator[Path]:
    """Copy the recording to docs/, if there is one; give the file."""
    if (FRAMES / "page.gif").exists():
        file = REPOSITORY / "docs" / "page.gif"
        file.write_bytes((FRAMES / "page.gif").read_bytes())
        yield file
