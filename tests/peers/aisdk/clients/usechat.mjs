// Pages in jsdom that use `useChat` of `@ai-sdk/react`.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

import { until } from "../../driving.mjs";
import { browse, mount } from "../../jsdom.mjs";

/** Loads a release of the hook; gives the major release of its `ai`, and what opens a page. */
export async function pages(version) {
  const require = createRequire(import.meta.url);
  browse(require("jsdom").JSDOM);
  const React = require("react");
  const { createRoot } = require("react-dom/client");

  /** The hook, and the `ai` that it brings along. */
  const hook = import.meta.resolve(`react-${version}`);
  const { useChat } = await import(hook);
  const ai = await import(pathToFileURL(createRequire(hook).resolve("ai")).href);
  const predicates = [
    ai.lastAssistantMessageIsCompleteWithToolCalls,
    ai.lastAssistantMessageIsCompleteWithApprovalResponses,
  ].filter(Boolean);

  /** Hands the hook of a page to its talk. */
  function Page({ has, options }) {
    has.chat = useChat(options);
    React.useEffect(() => void (has.mounted = true), [has]);
    return React.createElement("b", null, has.chat.status);
  }

  const open = async ({ transport: way, id, messages, resume, may }) => {
    const transport = new ai.DefaultChatTransport(way);
    const sendAutomaticallyWhen = (state) => may(predicates, state);
    const options = { id, messages, resume, transport, sendAutomaticallyWhen };
    const has = {};
    const root = mount(createRoot, React.createElement(Page, { has, options }));
    await until("the page", () => has.mounted);
    return {
      messages: () => has.chat.messages,
      status: () => has.chat.status,
      error: () => has.chat.error,
      send: (message) => has.chat.sendMessage(message),
      regenerate: () => has.chat.regenerate(),
      replace: (all) => has.chat.setMessages(all),
      approve: (approval, approved) => has.chat.addToolApprovalResponse({ id: approval, approved }),
      output: (tool, toolCallId, output) => has.chat.addToolOutput({ tool, toolCallId, output }),
      stop: () => has.chat.stop(),
      leave: () => root.unmount(),
    };
  };
  // The hooks of a major release of `ai` have numbers of their own.
  return { major: `${Number(version.split(".")[0]) + 3}.`, open };
}
