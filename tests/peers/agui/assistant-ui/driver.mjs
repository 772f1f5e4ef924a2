// A page in jsdom whose conversation is assistant-ui's: `useAgUiRuntime` over `HttpAgent`, used by what its
// components call.
import { createRequire } from "node:module";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";

import { until } from "../../driving.mjs";
import { browse, mount } from "../../jsdom.mjs";
import { drive } from "../driver.mjs";
import { askedBy, resumed, Talk } from "../talk.mjs";

const require = createRequire(import.meta.url);
browse(require("jsdom").JSDOM);
const React = require("react");
const { createRoot } = require("react-dom/client");
const { HttpAgent } = await import("@ag-ui/client");
const { AssistantRuntimeProvider } = await import("@assistant-ui/react");
const { useAgUiInterrupts, useAgUiRuntime, useAgUiSubmitInterruptResponses } = await import(
  "@assistant-ui/react-ag-ui"
);

// What its button begins nobody waits for, and a browser lives on when that fails.
process.on("unhandledRejection", () => {});

/** Hands what is asked, and the way to answer, to a talk. */
function Asked({ talk }) {
  talk.interrupts = useAgUiInterrupts();
  talk.submit = useAgUiSubmitInterruptResponses();
  React.useEffect(() => void (talk.mounted = true), [talk]);
  return null;
}

/** Hands the runtime of a page to its talk. */
function Page({ talk }) {
  const { agent } = talk;
  const onError = ({ code, message }) => void talk.ended.push(`FAILS ${code}: ${message}`);
  const runtime = useAgUiRuntime({ agent, onError });
  talk.runtime = runtime;
  return React.createElement(
    AssistantRuntimeProvider,
    { runtime },
    React.createElement(Asked, { talk }),
  );
}

class PageTalk extends Talk {
  #posts = 0;

  constructor(url, threadId) {
    super();
    this.agent = new HttpAgent({ url, threadId, fetch: (...request) => this.#fetch(...request) });
  }
  messages() {
    return this.runtime.thread.getState().messages.flatMap(drawn);
  }
  asks() {
    return askedBy(this.interrupts);
  }
  post(words) {
    return this.#acts(() => {
      this.runtime.thread.composer.setText(words);
      this.runtime.thread.composer.send();
    });
  }
  give(answers) {
    return this.#acts(() => this.submit(resumed(answers)));
  }
  again() {
    return this.#acts(() => {
      const { id } = this.runtime.thread.getState().messages.at(-1);
      this.runtime.thread.getMessageById(id).reload();
    });
  }
  leave() {
    this.runtime.thread.cancelRun();
  }
  #fetch(...request) {
    this.#posts += 1;
    return fetch(...request);
  }
  /** Has a run, and waits until the page rests: most of what its components call returns before. */
  async #acts(act) {
    const before = this.#posts;
    let refused;
    Promise.resolve(act()).catch((error) => void (refused = error));
    await until("the request of the page", () => this.#posts > before || refused);
    if (this.#posts === before) return void this.ended.push(`REFUSED ${refused.message}`);
    await until("the rest of the page", async () => {
      if (this.agent.isRunning) return false;
      await sleep(60); // it draws what it has heard
      const asks = this.#status.reason === "interrupt";
      const drawn = !this.runtime.thread.getState().isRunning && asks === this.asks().length > 0;
      return drawn && !this.agent.isRunning;
    });
    this.ended.push(endOf(this.#status));
  }
  /** How the newest message stands. */
  get #status() {
    return this.runtime.thread.getState().messages.at(-1).status;
  }
}

/** What is drawn below a message once its run is over. */
function endOf({ type, reason, error }) {
  if (type === "complete" || reason === "interrupt") return "ends";
  return reason === "error" ? `ERROR ${error}` : `stays ${type} ${reason}`;
}

/** A message, part by part, as its components draw it: a call has its result with it. */
function drawn({ id, role, content }) {
  const all = content.map((part, at) => ({ ...part, id: `${id} ${at}` }));
  const results = all.filter((part) => part.type === "tool-call" && part.result !== undefined);
  return [
    ...all.flatMap((part) => drawnPart(role, part)),
    ...results.map(({ id: at, toolCallId, result }) => ({
      id: `${at} result`,
      role: "tool",
      toolCallId,
      content: typeof result === "string" ? result : JSON.stringify(result),
    })),
  ];
}

function drawnPart(role, { id, type, text, toolCallId, toolName, argsText }) {
  switch (type) {
    case "text":
      return [{ id, role, content: text }];
    case "reasoning":
      return [{ id, role: "reasoning", content: text }];
    case "tool-call": {
      const call = { id: toolCallId, function: { name: toolName, arguments: argsText } };
      return [{ id, role, toolCalls: [call] }];
    }
    default:
      return []; // data, for which this application draws nothing
  }
}

await drive(async (route, thread, { stops }) => {
  const url = `${process.env.PEERS_BASE}/as/agui/to/${route}${stops ? "?on_leave=stop" : ""}`;
  const talk = new PageTalk(url, thread);
  mount(createRoot, React.createElement(Page, { talk }));
  await until("the page", () => talk.mounted);
  return talk;
});
