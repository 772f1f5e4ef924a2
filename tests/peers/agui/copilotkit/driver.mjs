// `CopilotKitCore`, what is below every page of CopilotKit, before a runtime.
import { randomUUID } from "node:crypto";
import process from "node:process";

import { CopilotKitCore } from "@copilotkit/core";

import { until } from "../../driving.mjs";
import { drive } from "../driver.mjs";
import { askedBy, resumed, Talk } from "../talk.mjs";

globalThis.window ??= globalThis;

class CoreTalk extends Talk {
  constructor(core, agent) {
    super();
    this.core = core;
    this.agent = agent;
    core.subscribe({
      onError: ({ error, code }) => void this.ended.push(`ERROR ${code}: ${error.message}`),
    });
    agent.subscribe(this.ends);
  }
  messages() {
    return this.agent.messages;
  }
  asks() {
    return askedBy(this.agent.pendingInterrupts);
  }
  async post(content) {
    this.agent.addMessage({ id: randomUUID(), role: "user", content });
    await this.core.runAgent({ agent: this.agent });
  }
  async give(answers) {
    await this.core.runAgent({ agent: this.agent, resume: resumed(answers) });
  }
  leave() {
    this.core.stopAgent({ agent: this.agent });
  }
}

await drive(async (route, thread, { stops }) => {
  const core = new CopilotKitCore({
    runtimeUrl: `${process.env.AGUI_RUNTIME}/api/copilotkit`,
    runtimeTransport: "rest",
  });
  await until("the runtime", () => core.runtimeConnectionStatus === "connected");
  const agent = core.getAgent(stops ? `${route}-stops` : route);
  agent.threadId = thread;
  return new CoreTalk(core, agent);
});
