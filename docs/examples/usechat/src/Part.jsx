import { getToolName, isDataUIPart, isToolUIPart } from "ai";

import { WordsForm } from "./WordsForm.jsx";

/** The call by which Dragoman asks the user something that is not the approval of a call. */
const ASK = "dragoman_ask";

const STATES = {
  "input-streaming": "is being called",
  "input-available": "runs",
  "approval-requested": "needs your yes",
  "approval-responded": "answered",
  "output-available": "done",
  "output-error": "failed",
  "output-denied": "denied",
};

/** One part of a message; `waits` says that nothing is being written, so it is the user's turn. */
export function Part({ part, talk, waits }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type === "reasoning") return <p className="reasoning">{part.text}</p>;
  if (part.type === "source-url") return <a href={part.url}>{part.title ?? part.url}</a>;
  if (part.type === "file") return <a href={part.url}>{part.filename ?? part.mediaType}</a>;
  if (isToolUIPart(part)) {
    if (getToolName(part) === ASK) return <Question part={part} talk={talk} />;
    return <Tool part={part} talk={talk} waits={waits} />;
  }
  if (isDataUIPart(part)) return <Data part={part} />;
  return null;
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

function Tool({ part, talk, waits }) {
  const name = getToolName(part);
  const answer = (approved) => talk.addToolApprovalResponse({ id: part.approval.id, approved });
  const give = (output) =>
    talk.addToolOutput({ tool: name, toolCallId: part.toolCallId, output });
  // A call that is still open when the stream has ended waits for the page's own result.
  const open = waits && part.state === "input-available";
  return (
    <section className="tool" aria-label={`Tool ${name}`}>
      <h2>
        {name} <small>{open ? "waits for a result" : STATES[part.state]}</small>
      </h2>
      <pre>{shown(part.input)}</pre>
      {part.state === "approval-requested" && (
        <>
          <button onClick={() => answer(true)}>Approve</button>
          <button onClick={() => answer(false)}>Deny</button>
        </>
      )}
      {open && <WordsForm label="Result" action="Answer" onWords={give} />}
      {part.state === "output-available" && <pre>{shown(part.output)}</pre>}
      {part.state === "output-error" && <p role="alert">{part.errorText}</p>}
    </section>
  );
}

function Question({ part, talk }) {
  if (part.state === "input-streaming") return null;
  const { kind, prompt, options = [], freeform } = part.input;
  const answer = (output) =>
    talk.addToolOutput({ tool: ASK, toolCallId: part.toolCallId, output });
  return (
    <section className="tool" aria-label={`Question: ${prompt}`}>
      <h2>
        {prompt} <small>{kind}</small>
      </h2>
      {part.state === "input-available" && (
        <>
          {options.map(({ id, label }) => (
            <button key={id} onClick={() => answer({ optionId: id })}>
              {label}
            </button>
          ))}
          <button onClick={() => answer({ decline: true })}>Decline</button>
          {freeform && (
            <WordsForm label="Answer" action="Answer" onWords={(text) => answer({ text })} />
          )}
        </>
      )}
      {part.state === "output-available" && <pre>{shown(part.output)}</pre>}
      {part.state === "output-error" && <p role="alert">{part.errorText}</p>}
    </section>
  );
}

/** What has no part of its own in the protocol: words said elsewhere, limits, sign-ins. */
function Data({ part: { type, data } }) {
  const words = data?.text ?? data?.message;
  if (typeof words === "string") return <p className="data">{words}</p>;
  if (type !== "data-dragoman-request" || data.details === undefined) return null;
  const { url } = data.details;
  return (
    <section className="data" aria-label={data.prompt}>
      {typeof url === "string" && /^https?:/.test(url) && <a href={url}>{url}</a>}
      <pre>{shown(data.details)}</pre>
    </section>
  );
}
