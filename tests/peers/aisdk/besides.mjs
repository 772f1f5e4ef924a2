// What people do besides pressing the button: played before the vendor's own server too, whose pages
// show what is right.
import { until } from "../driving.mjs";

const FILE = { type: "file", mediaType: "image/png", url: "data:image/png;base64,iVBORw0KGgo=" };
const TO_LEAVE = 30;

/** Script that asks something -> who can play it, and how that is answered. */
const ASKS = {
  approve: { answer: allow },
  /** An Engine asks one thing at a time, as all do in the next one. */
  approve2: { routes: ["herm", "eve-s"], answer: allow },
  "approve-twice": { answer: allow },
  ask: { answer: (talk) => talk.answer("09:10") },
  custom: { routes: ["herm"], answer: (talk) => talk.answer("4 left") },
};

/** Allows what is asked, and what is asked behind it. */
async function allow(talk) {
  while (talk.asks().length > 0) await talk.decide(...talk.asks().map(() => true));
}

/** What a person does while something is asked. */
const GOES_ON = {
  words: (talk) => goesOn(talk, () => talk.say("never mind")),
  edit: (talk) => goesOn(talk, () => talk.edit("never mind")),
  /** The page's library ends what is asked by itself, as assistant-ui does. */
  closed: (talk) => goesOn(talk, () => talk.closeAndSay("never mind")),
  async regenerate(talk, { answer }) {
    await talk.regenerate();
    talk.picture("asked again");
    await answer(talk);
    talk.picture("answered");
  },
  async reload(talk, { answer }) {
    await talk.reload(talk.messages);
    talk.picture("loaded again");
    await answer(talk);
    talk.picture("answered");
  },
};

async function goesOn(talk, act) {
  await act();
  talk.picture("gone on");
  await talk.say("and now?");
  talk.picture("said more");
}

const whileAsked = Object.entries(ASKS).flatMap(([script, asks]) =>
  Object.entries(GOES_ON).map(([act, play]) => [
    `${script}-${act}`,
    {
      routes: asks.routes,
      values: [script, act],
      asks: { script, act },
      async play(stage) {
        const talk = await stage.begin();
        await talk.say(`script: ${script}`);
        talk.picture("asked");
        await play(talk, asks);
      },
    },
  ]),
);

/** Opens a new chat whose application has stored messages of another one. */
async function elsewhere(stage, messages) {
  const talk = await stage.begin({ messages });
  talk.picture("another chat");
  await talk.say("script: text");
  talk.picture("said something");
  await talk.say("and now?");
  talk.picture("said more");
}

/** Stops an answer as it comes and says more at once. */
async function stopsAndSays(stage, query, stop) {
  const talk = await stage.begin({ query });
  talk.begin("script: slow 3000");
  await until("the beginning of an answer", () => talk.coming.includes("tick 2"));
  await stop(talk);
  await talk.say("never mind");
  talk.picture("stopped and said");
  await talk.say("and now?");
  talk.picture("said more");
}

/** The Engine has no way to stop a turn. */
const STOPPABLE = ["herm", "eve-s"];

const PLAYS = {
  ...Object.fromEntries(whileAsked),
  /** A Herm takes no files. */
  "file-refused": {
    routes: ["herm"],
    async play(stage) {
      const talk = await stage.begin();
      await talk.say("look at this", [FILE]);
      talk.picture("refused");
      await talk.say("never mind");
      talk.picture("gone on");
      await talk.say("and now?");
      talk.picture("said more");
    },
  },
  "busy-refused": {
    async play(stage) {
      const talk = await stage.begin();
      talk.begin(`script: slow ${TO_LEAVE}`);
      await until("the beginning of an answer", () => talk.coming.includes("tick 2"));
      const { messages, session } = talk;
      talk.close();
      await talk.open(messages);
      await talk.say("the first");
      talk.picture("refused");
      await stage.rests({ id: talk.id, session });
      await talk.say("the second");
      talk.picture("said more");
    },
  },
  "stop-and-say": {
    routes: STOPPABLE,
    play: (stage) => stopsAndSays(stage, "?on_leave=stop", (talk) => talk.stop()),
  },
  "stop-asked-and-say": {
    routes: STOPPABLE,
    play: (stage) =>
      stopsAndSays(stage, "", async (talk) => {
        await stage.stop(talk);
        await talk.stop();
      }),
  },
  "history-of-another": {
    async play(stage) {
      const talk = await stage.begin();
      await talk.say("script: text");
      await talk.say("hello");
      talk.close();
      await elsewhere(stage, talk.messages);
    },
  },
  /** A page whose messages count, and which begins anew with the same id. */
  cleared: {
    async play(stage) {
      const talk = await stage.begin({ kind: "-page" });
      await talk.say("script: text");
      await talk.say("hello");
      talk.clear();
      await talk.say("and now?");
      talk.picture(`cleared, turn ${talk.turn}`);
      await talk.say("and then?");
      talk.picture(`said more, turn ${talk.turn}`);
    },
  },
  fork: {
    async play(stage) {
      const talk = await stage.begin();
      for (const words of ["script: text", "hello", "and you?"]) await talk.say(words);
      talk.close();
      await elsewhere(stage, talk.messages.slice(0, 4));
    },
  },
};

/** What a page has shown before its application, as a whole, and how often it has posted. */
const pictured = ({ play, ...scene }) => ({
  ...scene,
  oracle: true,
  async play(stage) {
    try {
      await play(stage);
    } finally {
      stage.talk.shown = [...stage.talk.pictures, `POSTS ${stage.talk.posts}`];
    }
  },
});
export const BESIDES = Object.fromEntries(
  Object.entries(PLAYS).map(([name, scene]) => [name, pictured(scene)]),
);
