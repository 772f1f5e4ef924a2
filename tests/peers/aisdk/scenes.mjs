// The scenarios, one text for all clients.
import { randomUUID } from "node:crypto";
import process from "node:process";

import { json, until, World } from "../driving.mjs";
import { BESIDES } from "./besides.mjs";

const APPROVE = "script: approve";
/** How many tenths of a second an answer lasts: until it is stopped, and until a page is back. */
const TO_STOP = 3000;
const TO_RELOAD = 120;
const TO_RESTART = 400;
/** The Engine has no way to stop a turn: there it is waited for. */
const UNSTOPPABLE = 100;

const ticksToStop = ({ route }) => (route === "engine" ? UNSTOPPABLE : TO_STOP);

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
      await talk.decide(true);
      while (talk.asks().length > 0) await talk.decide(...talk.asks().map(() => false));
    },
  },
  question: {
    async play(stage) {
      const talk = await says(stage, "script: ask");
      const [{ input }] = talk.asks();
      await talk.answer(input.options[1].label);
    },
  },
  "question-by-words": {
    // assistant-ui ends the question before it sends words: see `ask-words`.
    plays: (client) => !client.startsWith("assistant-ui"),
    async play(stage) {
      const talk = await says(stage, "script: askopen");
      await talk.say("Ada");
    },
  },
  "follow-up": {
    async play(stage) {
      const talk = await says(stage, "script: tool");
      await talk.say("script: text");
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
      const ticks = ticksToStop(stage);
      const talk = await stage.begin({ query: "?on_leave=stop" });
      await midway(talk, ticks);
      await talk.stop();
      await talk.run;
      await stage.rests(talk);
      await stage.howFar(talk, ticks);
      await talk.say("script: text");
    },
  },
  "stop-asked": {
    async play(stage) {
      const ticks = ticksToStop(stage);
      const talk = await stage.begin();
      await midway(talk, ticks);
      talk.note(`STOP ${await stage.stop(talk)}`);
      await talk.run;
      await stage.rests(talk);
      await stage.howFar(talk, ticks);
      await talk.say("script: text");
    },
  },
  /** What is between a page and the server compresses what it may. */
  compressed: {
    async play(stage) {
      const talk = await stage.begin({ through: process.env.PEERS_COMPRESSING });
      await midway(talk, stage.route === "engine" ? TO_RELOAD : TO_STOP);
      talk.note(`AGENT is ${await stage.state(talk)}`);
      await stage.stop(talk);
      await talk.run;
    },
  },
  reload: {
    async play(stage) {
      const talk = await stage.begin();
      await midway(talk, TO_RELOAD);
      await talk.reload(talk.stored);
      await stage.howFar(talk, TO_RELOAD);
      await talk.say("script: text");
    },
  },
  /** The application has stored what it had of the answer. */
  "reload-partly": {
    async play(stage) {
      const talk = await stage.begin();
      await midway(talk, TO_RELOAD);
      await talk.reload(talk.messages);
      await stage.howFar(talk, TO_RELOAD);
    },
  },
  /** The application stores what is asked only when it is answered. */
  "reload-asked": {
    async play(stage) {
      const talk = await stage.begin({ query: "?on_return=replay" });
      await talk.say(APPROVE);
      await talk.reload(talk.stored);
      await talk.decide(true);
    },
  },
  /** Nothing goes on. */
  "reload-idle": {
    async play(stage) {
      const talk = await says(stage, "script: text");
      await talk.reload(talk.messages);
      await talk.say("script: text");
    },
  },
  "approved-elsewhere": {
    async play(stage) {
      const talk = await says(stage, APPROVE);
      await stage.allowInHerm(talk.session);
      await stage.rests(talk);
      await talk.decide(true);
      await talk.say("script: text");
    },
  },
  "approved-elsewhere-reload": {
    async play(stage) {
      const talk = await says(stage, APPROVE);
      await stage.allowInHerm(talk.session);
      await stage.rests(talk);
      await talk.reload(talk.stored);
      await talk.say("script: text");
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
      await talk.reload(talk.stored);
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

/** In the end of each stands how often its page has posted. */
const counted = ({ play, ...scene }) => ({
  ...scene,
  async play(stage) {
    await play(stage);
    stage.talk.note(`POSTS ${stage.talk.posts}`);
  },
});
export const SCENES = {
  ...Object.fromEntries(Object.entries(PLAYS).map(([name, scene]) => [name, counted(scene)])),
  ...BESIDES,
};

async function says(stage, words) {
  const talk = await stage.begin();
  await talk.say(words);
  return talk;
}

/** Begins what lasts, and returns in the middle of it. */
async function midway(talk, ticks) {
  talk.begin(`script: slow ${ticks}`);
  let over = false;
  talk.run.finally(() => (over = true));
  await until("the beginning of an answer", () => talk.coming.includes("tick 2") || over);
}

/** What a scenario needs of the world. */
export class Stage extends World {
  /**
   * Opens a page on a new conversation; `query` belongs to its URL, `through` is the address of the
   * server where that is not its own, `messages` what its application has stored, and `kind` is added to
   * the name of its route.
   */
  async begin({ query = "", through = this.base, messages = [], kind = "" } = {}) {
    this.talk = this.open(randomUUID());
    const { version, major } = this.talk;
    const form = major === 5 ? "/v5" : "";
    this.chat =
      this.route === "native"
        ? `${process.env.PEERS_NATIVE}/${version}/api/chat`
        : `${through}/as/aisdk/to/${this.route}${kind}${form}/api/chat`;
    this.talk.at(this.chat, query);
    await this.talk.open(messages);
    return this.talk;
  }
  /** What the application's own button asks for. */
  async stop(talk) {
    return (await fetch(`${this.chat}/${talk.id}/stop`, { method: "POST" })).text();
  }
  /** What the agent does now. */
  async state({ session }) {
    return (await json(`${this.base}/api/v1/sessions/${session}`)).state;
  }
  /** Waits until the agent is at rest. */
  async rests(talk) {
    if (this.route === "native") {
      const stream = `${this.chat}/${talk.id}/stream`;
      return until("the rest of the agent", async () => (await fetch(stream)).status === 204);
    }
    await until("the rest of the agent", async () => (await this.state(talk)) === "idle");
  }
  /** Notes whether the agent said all that it had to say. */
  async howFar({ session }, ticks) {
    const events = `${this.base}/as/herm/to/${this.route}/v1/sessions/${session}/events`;
    const told = JSON.stringify(await json(`${events}?order=desc&limit=20`));
    this.talk.note(told.includes(`tick ${ticks - 1} `) ? "AGENT went on" : "AGENT stopped");
  }
}
