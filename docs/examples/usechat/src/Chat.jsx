import { useEffect, useState } from "react";
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";

import { Part } from "./Part.jsx";
import { WordsForm } from "./WordsForm.jsx";

const BACKENDS = ["herm", "eve", "engine"];

/** The page goes on by itself once every call of the last step has its answer. */
const sendAutomaticallyWhen = (chat) =>
  lastAssistantMessageIsCompleteWithToolCalls(chat) ||
  lastAssistantMessageIsCompleteWithApprovalResponses(chat);

export function Chat({ api, chat }) {
  const key = `${api} ${chat}`;
  const [first] = useState(() => ({
    messages: JSON.parse(localStorage.getItem(key) ?? "[]"),
    transport: new DefaultChatTransport({ api }),
  }));
  // With `resume` a page that was reloaded asks for the answer that is being written.
  const talk = useChat({ ...first, id: chat, resume: true, throttle: 50, sendAutomaticallyWhen });
  const { messages, status, error } = talk;
  useEffect(() => localStorage.setItem(key, JSON.stringify(messages)), [key, messages]);

  const [stopError, setStopError] = useState(null);
  const busy = status === "submitted" || status === "streaming";
  // `stop()` of the hook only closes the connection: the agent would go on.
  const stop = () =>
    fetch(`${api}/${encodeURIComponent(chat)}/stop`, { method: "POST" })
      .then(async (answer) => setStopError(answer.ok ? null : await answer.text()))
      .catch((reason) => setStopError(reason.message));

  return (
    <main>
      <header>
        <h1>useChat and Dragoman</h1>
        <nav aria-label="Backends">
          {BACKENDS.map((name) => (
            <a
              key={name}
              href={`?api=/as/aisdk/to/${name}`}
              aria-current={api === `/as/aisdk/to/${name}` ? "page" : undefined}
            >
              {name}
            </a>
          ))}
        </nav>
      </header>
      <div role="log" aria-label="Messages" aria-busy={busy}>
        {messages.map(({ id, role, parts }) => (
          <article key={id} className={role} aria-label={role}>
            {parts.map((part, index) => (
              <Part key={index} part={part} parts={parts} talk={talk} />
            ))}
          </article>
        ))}
      </div>
      {(error || stopError) && (
        <p role="alert">
          {stopError ?? error.message}{" "}
          {error && <button onClick={() => talk.regenerate()}>Try again</button>}
        </p>
      )}
      <WordsForm label="Message" action="Send" onWords={(text) => talk.sendMessage({ text })}>
        {busy && (
          <button type="button" onClick={stop}>
            Stop
          </button>
        )}
      </WordsForm>
      <p role="status">{status}</p>
    </main>
  );
}
