// The `HttpAgent` of `@ag-ui/client`, as an application without a framework uses it.
import { randomUUID } from "node:crypto";
import process from "node:process";

import { drive } from "../driver.mjs";
import { ASK, askedBy, resumed, Talk } from "../talk.mjs";

const [, , version] = process.argv;
const { HttpAgent } = await import(`client-${version}`);
/** Below 0.0.54 a client knows no interrupts: its application has a tool to ask with. */
const interrupts = version !== "0.0.47";
const ASKING = {
  name: ASK,
  description: "Ask the person.",
  parameters: { type: "object" },
};

class HttpTalk extends Talk {
  constructor(url, threadId) {
    super();
    this.agent = new HttpAgent({ url, threadId });
  }
  messages() {
    return this.agent.messages;
  }
  asks() {
    if (interrupts)
      return askedBy(this.agent.pendingInterrupts);
    const answered = new Set(this.messages().map((one) => one.toolCallId));
    return this.messages()
      .flatMap((one) => one.toolCalls ?? [])
      .filter(({ id, function: { name } }) => name === ASK && !answered.has(id))
      .map(({ id, function: { arguments: given } }) => {
        const { message, responseSchema: schema } = JSON.parse(given);
        return { id, message, schema };
      });
  }
  async #have(more = {}) {
    const run = { tools: interrupts ? [] : [ASKING], ...more };
    const refused = (error) => this.ended.push(`REFUSED ${error.message}`);
    await this.agent.runAgent(run, this.ends).catch(refused);
  }
  async post(content) {
    this.agent.addMessage({ id: randomUUID(), role: "user", content });
    await this.#have();
  }
  async give(answers) {
    if (interrupts) {
      return this.#have({ resume: resumed(answers) });
    }
    for (const { id: toolCallId, payload } of answers) {
      const content = typeof payload === "string" ? payload : JSON.stringify(payload);
      this.agent.addMessage({ id: randomUUID(), role: "tool", toolCallId, content });
    }
    return this.#have();
  }
  leave() {
    this.agent.abortRun();
  }
}

await drive((route, thread, { stops }) => {
  const url = `${process.env.PEERS_BASE}/as/agui/to/${route}${stops ? "?on_leave=stop" : ""}`;
  return new HttpTalk(url, thread);
});
