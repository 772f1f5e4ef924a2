// A page in jsdom whose conversation is assistant-ui's: `useAISDKRuntime` over `useChat`, used by what its
// components call.
import { createRequire } from "node:module";

import { until } from "../../driving.mjs";
import { browse, mount } from "../../jsdom.mjs";
import { drive } from "../driver.mjs";

const require = createRequire(import.meta.url);
browse(require("jsdom").JSDOM);
const React = require("react");
const { createRoot } = require("react-dom/client");
const { useChat } = await import("@ai-sdk/react");
const { AssistantRuntimeProvider } = await import("@assistant-ui/react");
const { useAISDKRuntime } = await import("@assistant-ui/react-ai-sdk");
const ai = await import("ai");
const predicates = [
  ai.lastAssistantMessageIsCompleteWithToolCalls,
  ai.lastAssistantMessageIsCompleteWithApprovalResponses,
];

/** Hands the hook and the runtime of a page to its talk. */
function Page({ has, options }) {
  has.chat = useChat(options);
  has.runtime = useAISDKRuntime(has.chat);
  React.useEffect(() => void (has.mounted = true), [has]);
  const status = React.createElement("b", null, has.chat.status);
  return React.createElement(AssistantRuntimeProvider, { runtime: has.runtime }, status);
}

/** The part of the thread that shows a call. */
function partOf({ thread }, toolCallId) {
  const message = thread
    .getState()
    .messages.find(({ content }) => content.some((part) => part.toolCallId === toolCallId));
  return thread.getMessageById(message.id).getMessagePartByToolCallId(toolCallId);
}

const contentOf = ({ text, files = [] }) => [
  { type: "text", text },
  ...files.map(({ mediaType, url }) => ({ type: "file", data: url, mimeType: mediaType })),
];

await drive("7.0.173", async ({ transport: way, id, messages, resume, may }) => {
  let posts = 0;
  const transport = new ai.DefaultChatTransport({
    ...way,
    fetch(url, init) {
      if (init?.method === "POST") posts += 1;
      return way.fetch(url, init);
    },
  });
  const sendAutomaticallyWhen = (state) => may(predicates, state);
  const options = { id, messages, resume, transport, sendAutomaticallyWhen };
  const has = {};
  const root = mount(createRoot, React.createElement(Page, { has, options }));
  await until("the page", () => has.mounted);
  /** What the runtime begins it does not wait for. */
  const posted = async (act) => {
    const before = posts;
    act(has.runtime.thread);
    await until("the request of the page", () => posts > before);
  };
  const answered = async (call, act) => {
    const parts = () => has.chat.messages.flatMap((one) => one.parts);
    const state = () => parts().find((part) => part.toolCallId === call)?.state;
    const before = state();
    await act(partOf(has.runtime, call));
    await until("the answer on the page", () => state() !== before);
  };
  return {
    messages: () => has.chat.messages,
    status: () => has.chat.status,
    error: () => has.chat.error,
    thread: () => has.runtime.thread.getState().messages.map(({ role }) => role),
    send: ({ text, files, messageId }) =>
      posted(async (thread) => {
        if (!messageId) return thread.append({ role: "user", content: contentOf({ text, files }) });
        const { composer } = thread.getMessageById(messageId);
        composer.beginEdit();
        composer.setText(text);
        composer.send();
      }),
    approve: (_, approved, call) =>
      answered(call, (part) => part.respondToToolApproval({ approved })),
    output: (_, call, output) => answered(call, (part) => part.addToolResult(output)),
    regenerate: () =>
      posted((thread) => thread.getMessageById(thread.getState().messages.at(-1).id).reload()),
    replace: (all) => has.chat.setMessages(all),
    stop: () => has.runtime.thread.cancelRun(),
    leave: () => root.unmount(),
  };
});
