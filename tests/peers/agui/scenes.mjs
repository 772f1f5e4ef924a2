// The scenarios, one text for all clients.
import { randomUUID } from "node:crypto";

import { json, until, World } from "../driving.mjs";

const APPROVE = "script: approve";
/** How many tenths of a second an answer lasts: until it is stopped, or until all are in theirs. */
const TO_STOP = 3000;
const TO_RESTART = 400;
/** The Engine has no way to stop a turn: there it is waited for. */
const UNSTOPPABLE = 100;

/** The client that has no thread, but the history in each request. */
const BY_HISTORY = "agent-framework 1.7.0";

/** The client whose components reload an answer: what is below its message is the history. */
const RELOADS = "assistant-ui";

/**
 * Name -> what is played: `stage` begins conversations and reaches the server by other ways.
 * `signal` says that the server is ended by it in the middle and started again; the scenario calls
 * `stage.restart()` when it has come to that point.
 */
const PLAYS = {
  text: { play: (stage) => says(stage, "script: text") },
  reasoning: { play: (stage) => says(stage, "script: reason") },
  tool: { play: (stage) => says(stage, "script: tool") },
  tools: { play: (stage) => says(stage, "script: tools") },
  toolfail: { play: (stage) => says(stage, "script: toolfail") },
  approve: {
    async play(stage) {
      const talk = await says(stage, APPROVE);
      await talk.decide(true);
    },
  },
  deny: {
    async play(stage) {
      const talk = await says(stage, APPROVE);
      await talk.decide(false);
    },
  },
  "approve-partly": {
    async play(stage) {
      const talk = await says(stage, "script: approve2");
      const [first] = talk.asks();
      await talk.answer({ id: first.id, payload: { approved: true } });
      while (talk.asks().length > 0) await talk.decide(...talk.asks().map(() => false));
    },
  },
  question: {
    async play(stage) {
      const talk = await says(stage, "script: ask");
      const [asked] = talk.asks();
      const [, second] = asked.schema.enum ?? asked.schema.examples;
      await talk.answer({ id: asked.id, payload: second });
    },
  },
  "follow-up": {
    async play(stage) {
      const talk = await says(stage, "script: tool");
      await talk.say("script: text");
    },
  },
  // The history of what is asked for again ends with the result of a tool.
  reload: {
    plays: (client) => client === RELOADS,
    async play(stage) {
      const talk = await says(stage, "script: tool");
      await talk.reload();
      await talk.say("script: text");
    },
  },
  // It ends with what became of an ask that was shown as a call.
  "reload-approved": {
    plays: (client) => client === RELOADS,
    async play(stage) {
      const talk = await says(stage, APPROVE);
      await talk.decide(true);
      await talk.reload();
      await talk.decide(false);
    },
  },
  failing: {
    async play(stage) {
      const talk = await says(stage, "script: failmid");
      await talk.say("script: text");
    },
  },
  stop: {
    async play(stage) {
      const talk = await stage.begin({ stops: true });
      const ticks = stage.route === "engine" ? UNSTOPPABLE : TO_STOP;
      await midway(talk, ticks);
      talk.leave();
      await talk.run;
      await stage.rests(talk);
      await stage.howFar(talk, ticks);
      await talk.say("script: text");
    },
  },
  "approved-elsewhere": {
    async play(stage) {
      const talk = await says(stage, APPROVE);
      await stage.allowElsewhere(talk);
      await stage.rests(talk);
      await talk.decide(true);
      await talk.say("script: text");
    },
  },
  "own-history": {
    plays: (client) => client === BY_HISTORY,
    // A scripted eve does not repeat what it is told beside the words.
    routes: ["herm", "engine"],
    async play(stage) {
      const talk = await says(stage, "script: tool");
      await talk.say("hello");
      talk.leave();
    },
  },
  restart: {
    signal: "SIGTERM",
    async play(stage) {
      const talk = await stage.begin();
      await midway(talk, TO_RESTART);
      const back = stage.restart();
      await talk.run;
      await back;
      await stage.rests(talk);
      await stage.howFar(talk, TO_RESTART);
      await talk.say("script: text");
    },
  },
  "restart-asked": {
    signal: "SIGKILL",
    async play(stage) {
      const talk = await says(stage, APPROVE);
      await stage.restart();
      await talk.decide(true);
    },
  },
};

const others = (client) => client !== BY_HISTORY;
export const SCENES = Object.fromEntries(
  Object.entries(PLAYS).map(([name, scene]) => [name, { plays: others, ...scene }]),
);

async function says(stage, words) {
  const talk = await stage.begin();
  await talk.say(words);
  return talk;
}

/** Begins what lasts, and returns in the middle of it; `talk.run` is the run. */
async function midway(talk, ticks) {
  talk.run = talk.say(`script: slow ${ticks}`);
  const begun = () => talk.coming.includes("tick 2") || talk.ended.length > 0;
  await until("the beginning of an answer", begun);
}

/** What a scenario needs of the world. */
export class Stage extends World {
  async begin(how = {}) {
    const thread = `${this.client} ${this.name} ${this.route} ${randomUUID()}`.replaceAll(" ", "-");
    const talk = await this.open(this.route, thread, how);
    talk.thread = thread;
    this.talk = talk;
    return talk;
  }
  /** The session behind a thread, as the control API has it. */
  async #session(talk) {
    const found = await json(`${this.base}/api/v1/sessions?name=${talk.thread}`);
    if (found.sessions.length !== 1) throw new Error(`one session, not ${JSON.stringify(found)}`);
    return found.sessions[0];
  }
  /** Waits until the agent is at rest. */
  async rests(talk) {
    await until("the rest of the agent", async () => (await this.#session(talk)).state === "idle");
  }
  /** Notes whether the agent said all that it had to say. */
  async howFar(talk, ticks) {
    const thread = `${this.base}/as/agui/to/${this.route}/threads/${talk.thread}`;
    const told = await (await fetch(thread)).text();
    talk.note(told.includes(`tick ${ticks - 1} `) ? "AGENT went on" : "AGENT stopped");
  }
  /** Says yes in another dialect to what is asked in a thread. */
  async allowElsewhere(talk) {
    await this.allowInHerm((await this.#session(talk)).id);
  }
}
