"""The view Talk: one session in two dialects, and what happens when it is broken."""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import Locator, Page, expect

from tests.peers.ui.site import LIMIT_MS, Site, scene

expect.set_options(timeout=LIMIT_MS)

# Titles of the dialects as the page has them, by their names in addresses.
TITLES = {
    "aisdk": "AI SDK UI",
    "agui": "AG-UI",
    "engine": "Engine",
    "eve": "eve",
    "herm": "Herm",
    "managed-agents": "Managed Agents",
}
# A process that was killed is started anew, and both sides are read once more.
BREAK_MS = 120_000


class Talk:
    """A conversation on the page; `first` and `second` are its panes."""

    def __init__(self, page: Page, dialect: str, beside: str) -> None:
        self.page = page
        self.first = pane(page, dialect)
        self.second = pane(page, beside)

    @property
    def both(self) -> tuple[Locator, Locator]:
        return self.first, self.second

    async def script(self, title: str) -> None:
        """Press a chip of the demo."""
        scripts = self.page.get_by_role("group", name="Scripts")
        await scripts.get_by_role("button", name=title, exact=True).click()

    async def say(self, words: str) -> None:
        """Type a message and send it."""
        await self.page.get_by_label("Message").fill(words)
        await self.page.get_by_role("button", name="Send").click()

    async def press(self, name: str) -> None:
        """Press a button outside the panes."""
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def rest(self, *states: str) -> None:
        """Wait until each pane says that it is in such a state, by default `ready`."""
        wanted = states or ("ready",)
        for one in self.both:
            await expect(one.locator(".pill").first).to_have_text(wanted[0])
            wanted = wanted[1:] or wanted

    async def same_words(self) -> str:
        """Wait until both panes show the same words of the agent; return them."""
        await expect(self.first.locator(".said.agent").last).to_be_visible()
        words = await said(self.first)
        await expect(self.second.locator(".said.agent").last).to_be_visible()
        async with asyncio.timeout(LIMIT_MS / 1000):
            while (beside := await said(self.second)) != words:
                await expect(self.second.get_by_role("log")).not_to_have_text(beside)
        return words


def pane(page: Page, dialect: str) -> Locator:
    """Return the pane of a dialect."""
    return page.get_by_role("region", name=f"{TITLES[dialect]} frontend", exact=True)


async def said(one: Locator) -> str:
    """Return what a pane shows of the agent's words."""
    return "".join(await one.locator(".said.agent").all_text_contents()).replace("Agent: ", "")


async def open_talk(site: Site, dialect: str, route: str, beside: str) -> Talk:
    """Open the view with two dialects over a route."""
    page = await site.open(f"#/talk?as={dialect}&to={route}&beside={beside}")
    return Talk(page, dialect, beside)


def asked(one: Locator) -> Locator:
    """Return what a pane shows of the newest request, with its buttons, or who answered."""
    return one.locator(".asked").last


def yes(one: Locator) -> Locator:
    """Return the button that allows what is asked; each dialect has its own word for it."""
    return asked(one).get_by_role("button", name=re.compile("^(Allow|Approve|Yes)"))


def no(one: Locator) -> Locator:
    """Return the button that denies what is asked."""
    return asked(one).get_by_role("button", name=re.compile("^(Deny|No|Reject)"))


@scene
async def an_answer_is_shown_in_both_dialects_and_again_after_a_reload(demo: Site) -> None:
    talk = await open_talk(demo, "aisdk", "herm", "eve")
    await talk.script("Answer")
    words = await talk.same_words()
    await talk.rest()
    assert "session=dgs_" in talk.page.url
    await talk.page.reload()
    await demo.ready(talk.page)
    await expect(talk.second.locator(".said.agent")).to_have_text(f"Agent: {words}")
    # A page of the AI SDK is given no answer that is over.
    await expect(talk.first.get_by_role("log")).to_contain_text("what is said from now on")
    await talk.rest()
    # The conversation goes on from there.
    await talk.script("Use a tool")
    for one in talk.both:
        await expect(one.locator(".tool")).to_have_count(1)
        await expect(one.locator(".said.agent").last).to_contain_text("(turn 2)")
    await talk.rest()
    assert await said(talk.second) == words + await said(talk.first)


@scene
async def an_approval_given_in_the_second_pane_says_in_the_first_who_gave_it(demo: Site) -> None:
    talk = await open_talk(demo, "agui", "engine", "managed-agents")
    await talk.script("Ask me")
    await talk.rest("waits for you")
    await yes(talk.second).click()
    await expect(asked(talk.first)).to_contain_text("Answered through managed-agents, by ")
    await expect(asked(talk.second)).to_contain_text("Answered in this pane: ")
    await talk.rest()
    await talk.same_words()


@scene
async def of_two_answers_given_at_once_one_wins_and_the_other_pane_says_who(demo: Site) -> None:
    # The one that comes second is refused; an Engine does not know a request any more that is over.
    demo.means("409|404.*/hitl/respond")
    talk = await open_talk(demo, "engine", "eve", "herm")
    await talk.script("Ask me")
    await expect(yes(talk.first)).to_be_visible()
    await expect(no(talk.second)).to_be_visible()
    await talk.page.evaluate(
        "([one, other]) => (one.click(), other.click())",
        [await yes(talk.first).element_handle(), await no(talk.second).element_handle()],
    )
    for one in talk.both:
        await expect(asked(one)).to_contain_text(re.compile("Answered (in this pane|through )"))
    await talk.rest()
    # What was decided is what the log says: a face that was told no shows the other's answer.
    session = session_of(talk.page)
    lines = await log_of(demo, session)
    answers = [one for one in lines if one["type"] == "input.accepted" and one["kind"] == "answer"]
    assert len(answers) == 1, answers
    winner, loser = ("engine", "herm") if answers[0]["face"] == "engine" else ("herm", "engine")
    await expect(asked(pane(talk.page, winner))).to_contain_text("Answered in this pane")
    await expect(asked(pane(talk.page, loser))).to_contain_text(f"Answered through {winner}, by ")


@scene
async def a_denial_has_its_reason_on_both_sides(demo: Site) -> None:
    reason = "not on a Sunday"
    talk = await open_talk(demo, "managed-agents", "herm", "eve")
    await talk.script("Ask me")
    await expect(no(talk.second)).to_be_visible()
    await asked(talk.second).get_by_label("Reason").fill(reason)
    await no(talk.second).click()
    await expect(asked(talk.first)).to_contain_text("Answered through eve, by ")
    await expect(asked(talk.first)).to_contain_text(f"deny: {reason}")
    await expect(asked(talk.second)).to_contain_text(reason)
    await talk.rest()
    await talk.same_words()


@scene
async def words_typed_answer_a_question_and_take_the_place_of_an_approval(demo: Site) -> None:
    talk = await open_talk(demo, "managed-agents", "herm", "agui")
    await talk.say("script: ask")
    await talk.rest("waits for you")
    await talk.say("a green one")
    await expect(asked(talk.first)).to_contain_text("Answered in this pane: a green one")
    await expect(asked(talk.second)).to_contain_text("Answered through managed-agents, by ")
    await talk.rest()
    await talk.script("Ask me")
    await expect(yes(talk.first)).to_be_visible()
    await talk.say("script: text")
    for one in talk.both:
        await expect(one.locator(".asked button")).to_have_count(0)
    await talk.rest()
    await talk.same_words()


@scene
async def stop_ends_the_answer_in_both_panes(demo: Site) -> None:
    # An Engine's client cannot stop a turn; the other one can.
    talk = await open_talk(demo, "engine", "managed-agents", "eve")
    await expect(talk.page.get_by_role("button", name="Stop")).to_be_disabled()
    await talk.script("Answer slowly")
    for one in talk.both:
        await expect(one.locator(".said.agent")).not_to_have_count(0)
    await talk.press("Stop")
    await expect(talk.second).to_contain_text("The turn was stopped.")
    for one in talk.both:
        await expect(one.locator(".pill").first).not_to_have_text("works")
    await expect(talk.page.get_by_role("button", name="Stop")).to_be_disabled()
    await talk.script("Answer")
    await talk.rest()


@scene
async def a_failure_leaves_neither_pane_busy(demo: Site) -> None:
    talk = await open_talk(demo, "eve", "agui", "aisdk")
    await talk.script("Fail")
    await talk.rest("failed")
    for one in talk.both:
        await expect(one.locator("p.error")).to_have_count(1)
    await talk.press("New conversation")
    await talk.rest()
    assert "session=" not in talk.page.url
    await talk.script("Answer")
    await talk.rest()
    await talk.same_words()


@scene
async def streams_that_are_cut_and_a_server_that_is_killed_lose_nothing(own_demo: Site) -> None:
    # The server is away for a while, which the browser says on its console.
    own_demo.means("Failed to load resource")
    own_demo.means("ERR_")
    talk = await open_talk(own_demo, "eve", "engine", "agui")
    for breaks in ("Cut the streams", "Kill the server"):
        await talk.say("script: slow 30")
        for one in talk.both:
            await expect(one.locator(".pill").first).to_have_text("works", timeout=BREAK_MS)
        await talk.press(breaks)
        for one in talk.both:
            verdict = one.locator("p[role=status]")
            whole = re.compile(r"^equal: [\d,]+ bytes, 0 lost, 0 doubled$")
            await expect(verdict).to_have_text(whole, timeout=BREAK_MS)
            await expect(one.locator("summary").last).not_to_contain_text(" 0 cuts")
        await talk.rest()
        await talk.same_words()
    assert (await own_demo.get("/demo"))["started"] == 2


def session_of(page: Page) -> str:
    """Return the id of the session in the address."""
    found = re.search(r"dgs_\w+", page.url)
    assert found is not None, page.url
    return found[0]


async def log_of(site: Site, session: str) -> list[dict[str, object]]:
    """Return the lines of a session's log."""
    return await site.lines(f"/sessions/{session}/events")
