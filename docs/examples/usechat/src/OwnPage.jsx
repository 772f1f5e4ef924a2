import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  getToolName,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses as approvalsAreAnswered,
  lastAssistantMessageIsCompleteWithToolCalls as callsAreAnswered,
} from "ai";

const transport = new DefaultChatTransport({ api: "http://127.0.0.1:8787/as/aisdk/to/engine" });
const sendAutomaticallyWhen = (chat) => callsAreAnswered(chat) || approvalsAreAnswered(chat);

export function OwnPage() {
  const chat = useChat({ transport, sendAutomaticallyWhen });
  const send = (form) => void chat.sendMessage({ text: form.get("words") });
  return (
    <form action={send}>
      {chat.messages.map(({ id, parts }) => (
        <div key={id}>{parts.map((part, at) => <Part key={at} part={part} chat={chat} />)}</div>
      ))}
      {chat.error && <p role="alert">{chat.error.message}</p>}
      <input name="words" aria-label="Message" />
    </form>
  );
}

function Part({ part, chat }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (!isToolUIPart(part)) return null;
  const tool = getToolName(part);
  if (part.state === "approval-requested") {
    const answer = (approved) => chat.addToolApprovalResponse({ id: part.approval.id, approved });
    return <p>{tool} {JSON.stringify(part.input)} {choices({ Approve: true, Deny: false }, answer)}</p>;
  }
  if (tool === "dragoman_ask" && part.state === "input-available") {
    const { prompt, options = [] } = part.input;
    const answer = (output) => chat.addToolOutput({ tool, toolCallId: part.toolCallId, output });
    const offered = Object.fromEntries(options.map(({ id, label }) => [label, id]));
    return <p>{prompt} {choices({ ...offered, decline: "decline" }, answer)}</p>;
  }
  return <p>{tool}: {part.state}</p>;
}

function choices(offered, answer) {
  return Object.entries(offered).map(([label, value]) => (
    <button key={label} type="button" onClick={() => answer(value)}>{label}</button>
  ));
}
