"""Screenshots of the views with content, and the pictures in docs/ that are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.async_api import Page

from tests.peers.scenes import over
from tests.peers.ui.content import each_view, fill, name_of
from tests.peers.ui.shell import CACHE, looks
from tests.peers.ui.site import REPOSITORY, WIDTHS, Site

__all__ = ["SCREENSHOTS", "pictures_of_both_themes_at_two_widths_are_made", "write"]

SCREENSHOTS = CACHE / "screenshots"
DOCS = REPOSITORY / "docs" / "page"
# Of what is longer, the beginning is enough; between two windows is a gap of the ground.
TALLEST = 1_100
GAP = 24
COLOURS = 128


async def pictures_of_both_themes_at_two_widths_are_made(own_demo: Site) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page = await own_demo.open()
    for view in await each_view(own_demo, page):
        await fill(own_demo, page, view)
        if name_of(view) == "backends":
            await draw(own_demo, page)
        async for look in looks(page):
            path: Path = SCREENSHOTS / f"{name_of(view)}-{look}.png"
            await page.screenshot(path=path, full_page=True, animations="disabled")


async def draw(site: Site, page: Page) -> None:
    """Have traffic for the plots: what they show is read every two seconds."""
    for _ in range(4):
        async with page.expect_response("**/metrics*"):
            for route in ("engine", "eve", "herm"):
                over(await site.talk(route).say("script: text"))


def write() -> Iterator[Path]:
    """Write a picture for each view and theme, the wide window beside the narrow one, if there are
    screenshots; give the files."""
    DOCS.mkdir(exist_ok=True)
    narrow, wide = WIDTHS
    for first in sorted(SCREENSHOTS.glob(f"*-{wide}.png")):
        name = first.name.removesuffix(f"-{wide}.png")
        both = [Image.open(first), Image.open(first.with_name(f"{name}-{narrow}.png"))]
        height = min(TALLEST, max(one.height for one in both))
        ground = both[0].convert("RGB").getpixel((2, both[0].height - 2))
        whole = Image.new("RGB", (wide + GAP + narrow, height), ground)
        for one, left in zip(both, (0, wide + GAP), strict=True):
            whole.paste(one.convert("RGB"), (left, 0))
        file = DOCS / f"{name}.png"
        # Rare colours count as much as those of the ground.
        few = whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(file, optimize=True)
        yield file
