"""What holds for every view, and the files of the page."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from playwright.async_api import Page

from tests.peers.scenes import over, the_one
from tests.peers.ui.content import each_view, fill, select
from tests.peers.ui.site import HEIGHTS, REPOSITORY, THEMES, WIDTHS, Site, press, scene

__all__ = ["looks", "only_text", "shown"]

CACHE = REPOSITORY / ".cache" / "peers" / "ui"
AXE = CACHE / "axe" / "node_modules" / "axe-core" / "axe.min.js"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
MOST_BYTES = 150_000
# What a person cannot be expected to look at is wider than any of these.
EVERY_WIDTH = (390, 768, 1280, 1600)
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

HOSTILE = (
    '<img src=x onerror="alert(1)" data-hostile>',
    '"><script data-hostile>alert(2)</script>',
    "**bold** _so_ <b data-hostile>b</b> ![p](https://evil.example/p.png)",
    "[here](javascript:alert(3)) https://evil.example/?a=1&b=2 javascript:alert(4)",
    "{{constructor.constructor('alert(5)')()}} ${alert(6)} &lt;i data-hostile&gt;",
    "\u202egnp.exe\u202c " + "w" * 3_000,
)


@scene
async def the_policy_allows_nothing_but_files_of_the_page(demo: Site) -> None:
    for path in ("", "app.js", "style.css", "vendor/preact.js"):
        async with demo.http.get(f"{demo.url}/ui/{path}") as answer:
            assert answer.status == 200, path
            assert answer.headers["content-security-policy"] == POLICY, path
            assert answer.headers["x-content-type-options"] == "nosniff", path


@scene
async def every_view_loads_without_an_error_and_asks_this_server_alone(demo: Site) -> None:
    page = await demo.open()
    for view in await each_view(demo, page):
        await demo.show(page, view)
        await demo.open(view)
    assert await page.context.cookies() == []
    stored = await page.evaluate("() => localStorage.length + sessionStorage.length")
    assert stored == 0


@scene
async def all_that_the_page_loads_is_under_150_kB(demo: Site) -> None:
    page = await demo.open()
    for view in await each_view(demo, page):
        await demo.show(page, view)
    total = sum(demo.loaded.values())
    largest = sorted(demo.loaded.items(), key=lambda item: -item[1])[:5]
    assert len(demo.loaded) > 5, demo.loaded
    assert total < MOST_BYTES, f"{total:,} bytes; the largest: {largest}"


@scene
async def axe_finds_nothing_in_the_light_theme(demo: Site) -> None:
    await axe_finds_nothing(demo, "light")


@scene
async def axe_finds_nothing_in_the_dark_theme(demo: Site) -> None:
    await axe_finds_nothing(demo, "dark")


async def axe_finds_nothing(demo: Site, theme: str) -> None:
    """Judge each view with content in a theme, at two widths."""
    page = await demo.open()
    # The policy is for what the page runs, not for what the browser's driver does.
    await page.evaluate(AXE.read_text("utf-8"))
    found: list[str] = []
    for view in await each_view(demo, page):
        await fill(demo, page, view)
        async for look in looks(page, (theme,)):
            result: Any = await page.evaluate(
                "tags => axe.run({ runOnly: { type: 'tag', values: tags } })", AXE_TAGS
            )
            assert result["passes"], view
            found += [
                f"{look} {view}: {one['id']}: {node['target']} {node['html'][:200]}"
                for one in result["violations"]
                for node in one["nodes"]
            ]
    assert not found, "\n".join(found)


@scene
async def the_keyboard_alone_reaches_every_view_and_the_focus_is_seen(demo: Site) -> None:
    page = await demo.open()
    views = await demo.views(page)
    # From the last to the first, and from each to the next.
    await demo.show(page, views[-1])
    for view in views:
        await page.reload()
        await demo.ready(page)
        await focus(page, f'nav a[href="{view}"]')
        await press(page, "Enter")
        await page.wait_for_function("view => location.hash === view", arg=view)
        await demo.ready(page)
        current = page.locator('nav a[aria-current="page"]')
        assert await current.get_attribute("href") == view
        # What follows is read from the beginning of the view.
        inside = "() => document.activeElement.closest('main') !== null"
        await page.wait_for_function(inside)


async def focus(page: Page, selector: str, most: int = 200) -> None:
    """Press Tab until an element has the focus, and check that one sees each that has it."""
    seen = """() => {
      const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(document.activeElement);
      return document.activeElement === document.body || boxShadow !== "none"
        || (outlineStyle !== "none" && parseFloat(outlineWidth) >= 2);
    }"""
    for _ in range(most):
        await press(page, "Tab")
        assert await page.evaluate(seen), await page.evaluate("document.activeElement.outerHTML")
        if await page.evaluate("one => document.activeElement.matches(one)", selector):
            return
    raise AssertionError(f"the key Tab does not reach {selector}")


@scene
async def what_an_agent_says_is_text_whatever_it_looks_like(demo: Site) -> None:
    page = await demo.open()
    for words in HOSTILE:
        talk = demo.talk("engine")
        # The scripted backend says it again.
        over(await talk.say(words))
        await demo.show(page, f"#/sessions/{demo.id_of(talk)}")
        await select(page, "message.received")
        assert shown(words) in (await page.locator("main").inner_text())
        await only_text(page)
    for view in await demo.views(page):
        await demo.show(page, view)
        await only_text(page)


def shown(words: str) -> str:
    """Return a piece of hostile words that is the same in JSON."""
    return max(re.split(r"[\"\\\u202e\u202c\n]", words), key=len)[:60].strip()


async def only_text(page: Page) -> None:
    """Check that nothing that came from an agent became an element, an address or a program."""
    wrong = await page.evaluate(
        """() => [...document.querySelectorAll("*")].filter((one) =>
          ["data-hostile", "onerror", "onclick", "onload"].some((name) => one.hasAttribute(name))
          || ["href", "src", "action", "formaction", "xlink:href"].some((name) => {
            const value = one.getAttribute(name);
            if (value === null) return false;
            const { protocol } = new URL(value, location);
            return !["http:", "blob:", "data:"].includes(protocol) || value.includes("evil");
          })
          || ["IFRAME", "OBJECT", "EMBED"].includes(one.tagName)
        ).map((one) => one.outerHTML.slice(0, 300))"""
    )
    assert wrong == [], wrong
    assert await page.evaluate("document.scripts.length") == 1


@scene
async def what_a_real_agent_asks_is_text_too(eve: Site) -> None:
    page = await eve.open()
    talk = eve.talk()
    asked = the_one(await talk.say(f"scene: pay {' '.join(HOSTILE[:-1])}"))
    for view in (*await eve.views(page), f"#/sessions/{eve.id_of(talk)}"):
        await eve.show(page, view)
        await only_text(page)
    await select(page, "tool.called")
    assert shown(HOSTILE[0]) in (await page.locator("main").inner_text())
    await only_text(page)
    over(await talk.answer(asked, allow=False))


@scene
async def nothing_is_wider_than_the_window(demo: Site) -> None:
    page = await demo.open()
    wide = demo.talk("engine")
    over(await wide.say(HOSTILE[-1]))
    found = []
    for view in (*await each_view(demo, page), f"#/sessions/{demo.id_of(wide)}"):
        await page.set_viewport_size({"width": 1280, "height": 800})
        await fill(demo, page, view)
        for width in EVERY_WIDTH:
            await page.set_viewport_size({"width": width, "height": 800})
            most = await page.evaluate("document.documentElement.scrollWidth")
            if most > width:
                found.append(f"{view} is {most} pixels wide in a window of {width}")
    assert not found, "\n".join(found)


async def looks(page: Page, themes: Sequence[str] = THEMES) -> AsyncIterator[str]:
    """Show a page in themes at two widths; give the name of each, like `light-390`."""
    for theme, width in itertools.product(themes, WIDTHS):
        await page.emulate_media(color_scheme=theme)
        await page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
        # Lists see their new size before the next frame is drawn.
        await page.evaluate("new Promise((r) => requestAnimationFrame(() => setTimeout(r)))")
        yield f"{theme}-{width}"
