// A page of `@copilotkit/react-core` in jsdom: `useAgent`, and `useInterrupt` for what is asked.
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import process from "node:process";

import { until } from "../../driving.mjs";
import { browse, mount } from "../../jsdom.mjs";
import { drive } from "../driver.mjs";
import { askedBy, Talk } from "../talk.mjs";

const require = createRequire(import.meta.url);
equip(browse(require("jsdom").JSDOM));
require.extensions[".css"] = () => {};
const React = require("react");
const { createRoot } = require("react-dom/client");
const CopilotKit = require("@copilotkit/react-core/v2");
const { CopilotKitProvider, useAgent, useCopilotKit, useInterrupt } = CopilotKit;

/** Gives this process all that CopilotKit asks of a browser. */
function equip(window) {
  for (const name of Object.getOwnPropertyNames(window))
    if (/^[A-Z]/.test(name)) globalThis[name] ??= window[name];
  const { getComputedStyle, customElements, localStorage } = window;
  Object.assign(globalThis, { getComputedStyle, customElements, localStorage });
  for (const name of ["CustomEvent", "Event", "EventTarget", "DOMException"])
    globalThis[name] = window[name];
  Object.defineProperty(globalThis, "navigator", { value: window.navigator, configurable: true });
  globalThis.requestAnimationFrame = (draw) => setTimeout(draw, 5);
  globalThis.cancelAnimationFrame = clearTimeout;
  window.fetch = fetch;
  const none = () => {};
  window.matchMedia = () => ({ matches: false, addEventListener: none, removeEventListener: none });
  globalThis.ResizeObserver = window.ResizeObserver = class {
    observe() {}
    unobserve() {}
    disconnect() {}
  };
}

const idsOf = (interrupts) => interrupts.map((one) => one.id).join(" ");

/** Hands the hooks of a page to its talk. */
function Inner({ talk, agentId }) {
  talk.core = useCopilotKit().copilotkit;
  talk.agent = useAgent({ agentId }).agent;
  talk.watching = false;
  const shown = useInterrupt({
    agentId,
    renderInChat: false,
    render: (asked) => {
      talk.asked = asked;
      return React.createElement("b", null, idsOf(asked.interrupts));
    },
  });
  if (!shown) talk.asked = null;
  React.useEffect(() => void (talk.watching = true));
  return React.createElement("div", null, shown);
}

class PageTalk extends Talk {
  asked = null; // what is drawn
  due = ""; // the ids of what is to be drawn; null after an error
  watching = false; // the effects of the newest drawing are done
  answered = new Set();

  messages() {
    return this.agent.messages;
  }
  asks() {
    const asked = this.asked?.interrupts ?? [];
    return askedBy(asked.filter(({ id }) => !this.answered.has(id)));
  }
  /** Watches the errors, and the ends of runs. */
  watch() {
    this.core.subscribe({
      onError: ({ error, code }) => {
        // `fetch failed` says nothing: its cause does.
        const why = [error.message, error.cause?.message].filter(Boolean).join(": ");
        this.ended.push(`ERROR ${code}: ${why}`);
      },
    });
    this.agent.subscribe({
      onRunStartedEvent: () => void (this.due = ""),
      onRunFinishedEvent: ({ interrupts = [] }) => void (this.due = idsOf(interrupts)),
      onRunErrorEvent: () => void (this.due = null),
      onRunFailed: () => void (this.due = null),
    });
    this.agent.subscribe(this.ends);
  }
  async post(content) {
    this.agent.addMessage({ id: randomUUID(), role: "user", content });
    await this.core.runAgent({ agent: this.agent });
    await this.#drawn();
  }
  async give(answers) {
    for (const { id, payload } of answers) {
      this.answered.add(id);
      await this.asked.resolve(payload, id);
    }
    await this.#drawn();
  }
  /** Lets React draw what is asked. */
  async #drawn() {
    const drawn = () => idsOf(this.asked?.interrupts ?? []);
    await until("what is asked", () => this.due === null || drawn() === this.due);
  }
  leave() {
    this.core.stopAgent({ agent: this.agent });
  }
}

await drive(async (route, thread, { stops }) => {
  const talk = new PageTalk();
  const agentId = stops ? `${route}-stops` : route;
  const runtimeUrl = `${process.env.AGUI_RUNTIME}/api/copilotkit`;
  const inner = React.createElement(Inner, { talk, agentId });
  mount(createRoot, React.createElement(CopilotKitProvider, { runtimeUrl }, inner));
  await until("the runtime", () => talk.core?.runtimeConnectionStatus === "connected");
  // Before, the page has a provisional one.
  await until("the agent", () => talk.agent === talk.core.getAgent(agentId) && talk.watching);
  talk.agent.threadId = thread;
  talk.watch();
  return talk;
});
