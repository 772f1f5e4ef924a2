// What a person does with the page, and what it must show then.
import assert from "node:assert/strict";

import { until } from "./browser.mjs";

const TEXT = "Basil likes six hours of sun — a south-facing sill at the café works.";
const ticks = (count) => Array.from({ length: count }, (_, n) => `tick ${n} `).join("").trim();

/** The articles of the page: who speaks, and the lines. A scripted agent counts its turns aloud. */
const ARTICLES = `[...document.querySelectorAll("article")].map((article) => ({
  role: article.getAttribute("aria-label"),
  lines: article.innerText.split("\\n")
    .map((line) => line.trim().replace(/ \\(turn \\d+\\)$/, ""))
    .filter(Boolean),
}))`;

const HAS_RESUMED = `performance.getEntriesByType("resource").some(
  ({ name, responseEnd }) => name.endsWith("/stream") && responseEnd > 0,
)`;

const speakers = (articles) => articles.map((article) => article.role);

export class Talk {
  constructor(page, route) {
    this.page = page;
    this.route = route;
  }

  say(words) {
    return this.page.type("Message", words);
  }

  async #text(selector) {
    return this.page.evaluate(`document.querySelector('${selector}')?.innerText ?? ""`);
  }

  alert = () => this.#text('main > [role="alert"]');
  status = () => this.#text('[role="status"]');

  /** Waits until `words` are somewhere in the messages. */
  shows(words) {
    return until(async () => (await this.#text('[role="log"]')).includes(words), words);
  }

  /**
   * Waits until nothing is being written any more, and the page has read what it asks for when it is
   * loaded: `useChat` shows its old messages before, and forgets what is pressed while it reads.
   */
  async rests() {
    await until(() => this.page.evaluate(HAS_RESUMED), "the end of the stream that is resumed");
    await until(async () => (await this.status()) === "ready", "the status ready");
    return this.page.evaluate(ARTICLES);
  }

  /** The lines of the agent once `words` are shown and the page rests; there are `turns` answers. */
  async answered(words, turns = 1) {
    await this.shows(words);
    const articles = await this.rests();
    const roles = Array.from({ length: turns }, () => ["user", "assistant"]).flat();
    assert.deepEqual(speakers(articles), roles);
    const { lines } = articles.at(-1);
    const times = lines.join("\n").split(words).length - 1;
    assert.equal(times, 1, `${times} times: ${words}`);
    return lines;
  }
}

/** Waits for the question whether the tool may run. */
async function asked(talk) {
  await talk.say("script: approve");
  await talk.shows("bash needs your yes");
  const articles = await talk.rests();
  assert.deepEqual(speakers(articles), ["user", "assistant"]);
  assert.ok(articles[1].lines.some((line) => line.includes("rm -rf /srv/exports/2024")));
}

async function settled(talk) {
  for (const name of ["Approve", "Deny"]) assert.equal(await talk.page.count("button", name), 0);
}

/** An Engine has no route that stops a turn (engine page, section 5), and the page says so. */
async function cannotStop(talk) {
  talk.page.meant = "status of 400";
  await talk.say("script: slow 40");
  await talk.shows("tick 4 ");
  await talk.page.press("Stop");
  await until(async () => (await talk.alert()).includes("no route that stops a turn"), "the reason");
  assert.deepEqual(await talk.answered("tick 39"), [ticks(40)]);
}

export const SCENES = {
  async send(talk) {
    await talk.say("script: text");
    assert.deepEqual(await talk.answered(TEXT), [TEXT]);
    await talk.say("script: tool");
    const lines = await talk.answered("`to_cents` truncates", 2);
    for (const line of ["Checking the rounding helper.", "read_file done", "return int(x * 100)"])
      assert.ok(lines.includes(line), `${line} is not in ${lines.join(" | ")}`);
    assert.ok(lines[0].startsWith("The failing test is about rounding."), lines[0]);
  },

  async approve(talk) {
    await asked(talk);
    await talk.page.press("Approve");
    const lines = await talk.answered("Done, 4.1 GB freed.");
    assert.equal(lines.filter((line) => line === "bash done").length, 1, lines.join(" | "));
    await settled(talk);
  },

  async deny(talk) {
    await asked(talk);
    await talk.page.press("Deny");
    const lines = await talk.answered("Understood, I left /srv/exports/2024 alone.");
    assert.equal(lines.filter((line) => line === "bash denied").length, 1, lines.join(" | "));
    await settled(talk);
  },

  async question(talk) {
    await talk.say("script: ask");
    await talk.shows("Which departure do you prefer?");
    await talk.rests();
    await talk.page.press("09:10");
    await talk.answered("Holding a seat on the 09:10.");
    await talk.say("script: askopen");
    await talk.shows("Which name shall the ticket carry?");
    await talk.rests();
    await talk.page.type("Answer", "Ada");
    await talk.answered("The ticket carries the name Ada.", 2);
  },

  async sealed(talk) {
    await talk.say("script: secret");
    await talk.shows("Token for the package registry?");
    await talk.rests();
    assert.equal(await talk.page.count("textbox", "Answer"), 0);
    await talk.page.press("decline");
    await talk.answered("Without a token I stop here.");
  },

  async limit(talk) {
    await talk.say("script: limit");
    await talk.shows("has hit the input-token limit");
    await talk.rests();
    await talk.page.press("Approve");
    await talk.answered("I go on within the new budget.");
  },

  async result(talk) {
    await talk.say("script: custom");
    await talk.shows("lookup_stock waits for a result");
    await talk.rests();
    await talk.page.type("Result", "seven pots");
    await talk.answered("The application says: seven pots");
  },

  async reload(talk) {
    await talk.say("script: slow 60");
    await talk.shows("tick 4 ");
    await talk.page.load();
    assert.deepEqual(await talk.answered("tick 59"), [ticks(60)]);
    await talk.page.load();
    assert.deepEqual(await talk.answered("tick 59"), [ticks(60)]);
    await talk.say("script: text");
    assert.deepEqual(await talk.answered(TEXT, 2), [TEXT]);
  },

  async "reload-asked"(talk) {
    await asked(talk);
    await talk.page.load();
    await talk.shows("bash needs your yes");
    await talk.rests();
    await talk.page.press("Approve");
    const lines = await talk.answered("Done, 4.1 GB freed.");
    assert.equal(lines.filter((line) => line === "bash done").length, 1, lines.join(" | "));
    await settled(talk);
  },

  async "reload-approved"(talk) {
    await talk.say("script: approve slowly");
    await talk.shows("bash needs your yes");
    await talk.rests();
    await talk.page.press("Approve");
    await talk.shows("tick 5 ");
    await talk.page.load();
    const lines = await talk.answered("tick 39");
    for (const line of ["bash done", "Done, 4.1 GB freed."])
      assert.equal(lines.filter((one) => one.includes(line)).length, 1, lines.join(" | "));
    await settled(talk);
  },

  async stop(talk) {
    if (talk.route === "engine") return cannotStop(talk);
    await talk.say("script: slow 200");
    await talk.shows("tick 4 ");
    await talk.page.press("Stop");
    const before = await talk.rests();
    assert.ok(!before.at(-1).lines.join(" ").includes("tick 199"));
    assert.equal(await talk.alert(), "");
    await talk.say("script: text");
    assert.deepEqual(await talk.answered(TEXT, 2), [TEXT]);
  },

  async failure(talk) {
    await talk.say("script: fail");
    await until(async () => (await talk.alert()).includes("limiting requests"), "the error");
    assert.equal(await talk.page.count("button", "Try again"), 1);
    await talk.say("script: text");
    await talk.shows(TEXT);
    assert.deepEqual((await talk.rests()).at(-1).lines, [TEXT]);
    assert.equal(await talk.alert(), "");
  },
};

/** Scenes that only the backends of some dialects play. */
export const ONLY = {
  sealed: ["herm"],
  limit: ["eve"],
  result: ["herm"],
  own: ["engine"],
  quoted: ["engine"],
};

/** The component that the documentation quotes, in a page whose origin Dragoman is told of. */
export async function ownPage(page) {
  const lines = `[...document.querySelectorAll("p")].map((line) => line.innerText.trim())`;
  const shows = (words) =>
    until(async () => (await page.evaluate(lines)).join("\n").includes(words), words);
  await page.type("Message", "script: text");
  const right = ["script: text", `${TEXT} (turn 1)`].join("\n");
  await until(async () => (await page.evaluate(lines)).join("\n") === right, TEXT);
  await page.type("Message", "script: approve");
  await page.press("Approve");
  await shows("Done, 4.1 GB freed.");
  await page.type("Message", "script: approve");
  await page.press("Deny");
  await shows("Understood, I left /srv/exports/2024 alone.");
  await page.type("Message", "script: ask");
  await page.press("09:10");
  await shows("Holding a seat on the 09:10.");
  await page.type("Message", "script: ask");
  await shows("Which departure do you prefer?");
  await page.type("Message", "the earliest one");
  await shows("Holding a seat on the the earliest one.");
}
