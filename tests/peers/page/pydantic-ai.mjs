// Both pages with agents of Pydantic AI behind Dragoman: what a person does, and what must be shown.
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

import { openHouse, startServer } from "../house.mjs";
import * as copilotkit from "./copilotkit.mjs";
import * as usechat from "./usechat.mjs";

const FOLDER = path.join(import.meta.dirname, "../servers/ag-ui");
const DENIED = "The tool call was denied.";

/** What the example's agent asks and says: its model is one for tests. */
const EXAMPLE = {
  words: "Write to Ann.",
  asked: 'Approve send_mail({"to":"a"})?',
  said: '{"send_mail":"mail sent to a"}',
};

/**
 * Starts the scripted agent of servers/ag-ui and the one of docs/examples, and Dragoman by the
 * example's configuration; gives the URL of Dragoman, and the file of what the tools have done.
 */
export async function openAgents(root) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "dragoman-agents-"));
  const notes = path.join(folder, "notes");
  const python = path.join(FOLDER, "venv/bin/python");
  const env = { PEER_NOTES: notes, OTEL_SDK_DISABLED: "true", PYTHONDONTWRITEBYTECODE: "1" };
  const example = path.join(root, "docs/examples/pydantic-ai");
  const agents = await Promise.all([
    startServer(FOLDER, python, ["pydantic_ai_server.py", "0"], env),
    startServer(example, python, ["-m", "uvicorn", "agent:app", "--port", "0"], env),
  ]);
  const [scripted, shown] = agents;
  const table = fs.readFileSync(path.join(example, "dragoman.toml"), "utf8");
  const tables = [
    table.replace(/^url = .*$/m, `url = "${shown.url}/"`),
    table.replace(/^url = .*$/m, `url = "${scripted.url}/"`).replace('"mail"', '"scripted"'),
  ];
  const house = await openHouse(root, [], tables.join("\n"));
  const dragoman = await house.start();
  return {
    url: dragoman.url,
    notes,
    async close() {
      await house.stop(dragoman);
      await Promise.all(agents.map((agent) => agent.stop()));
      fs.rmSync(folder, { recursive: true });
    },
  };
}

/** How often the scripted agent has sent a mail to `name`. */
function mails(notes, name) {
  const lines = fs.existsSync(notes) ? fs.readFileSync(notes, "utf8").split("\n") : [];
  return lines.filter((line) => line === `mail ${name}`).length;
}

/** Says something on the page of useChat that makes the agent ask. */
async function asked(talk, words) {
  await talk.say(words);
  await talk.shows("send_mail needs your yes");
  await talk.rests();
}

/** Checks the lines of an answer: the call is there once, in this state. */
function isOnce(lines, state) {
  const calls = lines.filter((line) => line.startsWith("send_mail "));
  assert.deepEqual(calls, [`send_mail ${state}`], lines.join(" | "));
}

/** Scene -> its backend, and what is done on the page of useChat. */
export const USECHAT = {
  mail: {
    route: "scripted",
    async play(page, { notes }) {
      const talk = new usechat.Talk(page);
      await asked(talk, "scene: approve ann");
      assert.equal(mails(notes, "ann"), 0);
      await page.press("Approve");
      isOnce(await talk.answered("Results of ann: mail sent to ann"), "done");
      assert.equal(mails(notes, "ann"), 1);
      await asked(talk, "scene: approve bob");
      await page.press("Deny");
      isOnce(await talk.answered(`Results of bob: ${DENIED}`, 2), "denied");
      await talk.say("scene: count");
      await talk.answered("User messages: 3.", 3);
      assert.deepEqual([mails(notes, "ann"), mails(notes, "bob")], [1, 0]);
    },
  },
  "mail-reload": {
    route: "scripted",
    async play(page, { notes }) {
      const talk = new usechat.Talk(page);
      await asked(talk, "scene: approve carl");
      await page.load();
      await talk.shows("send_mail needs your yes");
      await talk.rests();
      await page.press("Approve");
      isOnce(await talk.answered("Results of carl: mail sent to carl"), "done");
      assert.equal(mails(notes, "carl"), 1);
    },
  },
  "mail-example": {
    route: "mail",
    async play(page) {
      const talk = new usechat.Talk(page);
      await asked(talk, EXAMPLE.words);
      await page.press("Approve");
      await talk.shows(EXAMPLE.said);
      isOnce((await talk.rests()).at(-1).lines, "done");
    },
  },
};

/** The same for the page of CopilotKit. */
export const COPILOTKIT = {
  "mail-copilotkit": {
    route: "scripted",
    async play(page, { notes }) {
      const talk = new copilotkit.Talk(page);
      await talk.say("scene: approve dora");
      await talk.decides("Approve", 'Approve send_mail({"to":"dora"})?');
      await talk.shows("Results of dora: mail sent to dora");
      assert.equal(mails(notes, "dora"), 1);
      await talk.say("scene: approve emil");
      await talk.decides("Deny", 'Approve send_mail({"to":"emil"})?');
      await talk.shows(`Results of emil: ${DENIED}`);
      await talk.say("scene: count");
      await talk.shows("User messages: 3.");
      assert.deepEqual([mails(notes, "dora"), mails(notes, "emil")], [1, 0]);
    },
  },
  "mail-copilotkit-example": {
    route: "mail",
    async play(page) {
      const talk = new copilotkit.Talk(page);
      await talk.say(EXAMPLE.words);
      await talk.decides("Approve", EXAMPLE.asked);
      await talk.shows(EXAMPLE.said);
    },
  },
};
