// `AbstractChat` of `ai`, what is below the hooks of all frameworks, with a state of its own.
import process from "node:process";

import { drive } from "../driver.mjs";

const [, , version] = process.argv;
const ai = await import(`ai-${version}`);
const { AbstractChat, DefaultChatTransport } = ai;
const predicates = [
  ai.lastAssistantMessageIsCompleteWithToolCalls,
  ai.lastAssistantMessageIsCompleteWithApprovalResponses,
].filter(Boolean);

class Chat extends AbstractChat {}

/** What a framework keeps for a page. */
class State {
  status = "ready";
  error = undefined;
  constructor(messages) {
    this.messages = messages;
  }
  pushMessage = (message) => {
    this.messages = [...this.messages, message];
  };
  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };
  replaceMessage = (at, message) => {
    this.messages = this.messages.with(at, structuredClone(message));
  };
  snapshot = (value) => structuredClone(value);
}

await drive(version, ({ transport, id, messages, resume, may }) => {
  const chat = new Chat({
    id,
    state: new State(messages),
    transport: new DefaultChatTransport(transport),
    sendAutomaticallyWhen: (state) => may(predicates, state),
  });
  if (resume) chat.resumeStream();
  const give = chat.addToolOutput ?? chat.addToolResult;
  return {
    messages: () => chat.messages,
    status: () => chat.status,
    error: () => chat.error,
    send: (message) => chat.sendMessage(message),
    regenerate: () => chat.regenerate(),
    replace: (all) => (chat.messages = all),
    approve: (approval, approved) => chat.addToolApprovalResponse({ id: approval, approved }),
    output: (tool, toolCallId, output) => give({ tool, toolCallId, output }),
    stop: () => chat.stop(),
  };
});
