import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";

const transport = new DefaultChatTransport({ api: "/as/aisdk/to/engine" });

export function Minimal() {
  const { messages, sendMessage } = useChat({ transport });
  const send = (form) => void sendMessage({ text: form.get("words") });
  const textOf = ({ parts }) => parts.map((part) => (part.type === "text" ? part.text : ""));
  const lines = messages.map((message) => <p key={message.id}>{textOf(message)}</p>);
  return <form action={send}>{lines}<input name="words" aria-label="Message" /></form>;
}
