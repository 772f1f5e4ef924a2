"""The view of backends: lights, plots, the shares of routes, and the way back of a session."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.async_api import Page

from tests.peers.scenes import over
from tests.peers.ui.site import Site, press, scene


def part(page: Page, role: Any, name: str) -> Any:
    """Return an element of the page by its role and name."""
    return page.get_by_role(role, name=name, exact=True)


@scene
async def a_backend_that_answers_is_lit_and_what_became_of_its_messages_is_counted(
    own_demo: Site,
) -> None:
    page = await own_demo.open("#/backends")
    card = part(page, "article", "Backend engine")
    await card.get_by_text("not asked yet").wait_for()
    talk = own_demo.talk("engine")
    over(await talk.say("hello"))
    await card.get_by_text("up", exact=True).wait_for()
    await card.get_by_text("1 completed").wait_for()
    # A plot says in words what it shows.
    await card.get_by_role(
        "img", name=re.compile(r"Requests: .* in 3 minutes max (?!0$)")
    ).wait_for()


@scene
async def the_shares_of_a_route_are_set_and_reset(own_demo: Site) -> None:
    page = await own_demo.open("#/backends")
    await page.get_by_text("Backends under their own names").click()
    route = part(page, "article", "Route engine")
    await part(route, "button", "Change").click()
    await route.get_by_label("eve").fill("300")
    await part(route, "button", "Set weights").click()
    await route.get_by_text("75 %").wait_for()
    await part(route, "button", "Reset").click()
    await part(route, "button", "Reset").wait_for(state="detached")
    routes = (await own_demo.get("/routes"))["routes"]
    shares = next(one["backends"] for one in routes if one["name"] == "engine")
    assert [one["backend"] for one in shares] == ["engine"]


@scene
async def a_session_that_moved_is_taken_back_after_a_look_at_what_goes_over(own_demo: Site) -> None:
    talk = own_demo.talk("eve")
    over(await talk.say("hello"))
    session = own_demo.id_of(talk)
    url = f"{own_demo.url}/api/v1/sessions/{session}/move"
    async with own_demo.http.post(url, json={"to": "engine"}) as answer:
        assert answer.status == 200, await answer.text()
    page = await own_demo.open("#/backends?from=eve&to=engine")
    await page.get_by_text("1 of 1 have moved").wait_for()
    await part(page, "button", f"Take back {session}").click()
    confirm = part(page, "button", "Take back to eve")
    await confirm.wait_for()
    # Looking moves nothing.
    assert await backend_of(own_demo, session) == "engine"
    await press(page, "Enter")
    await page.get_by_text("0 of 1 have moved").wait_for()
    assert await backend_of(own_demo, session) == "eve"


async def backend_of(site: Site, session: str) -> str:
    """Return where a session is."""
    backend: str = (await site.get(f"/sessions/{session}"))["legs"][-1]["backend"]
    return backend


@scene
async def what_is_for_administrators_is_said_in_words(demo: Site) -> None:
    page = await demo.open("#/backends")
    forbidden = {"error": {"code": "forbidden", "message": "no"}}
    demo.means("403")

    async def refuse(route: Any) -> None:
        await route.fulfill(status=403, content_type="application/json", body=json.dumps(forbidden))

    await page.route("**/api/v1/routes", refuse)
    await page.reload()
    await demo.ready(page)
    section = part(page, "region", "Routes")
    await section.get_by_text("Only an administrator's key may see this.").wait_for()
    await part(page, "article", "Backend eve").wait_for()
