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

/** Whether an agent waits for the result of a call of the page's own tool. */
const isWanted = ({ toolCallId }, parts) =>
  parts.some(
    ({ type, data }) =>
      type === "data-dragoman-request" &&
      data.kind === "tool_result" &&
      data.state === "open" &&
      data.toolCallId === toolCallId,
  );

/** One of the `parts` of a message; `talk` is what the hook gives. */
export function Part({ part, parts, talk }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type === "reasoning") return <p className="reasoning">{part.text}</p>;
  if (part.type === "source-url") return <a href={part.url}>{part.title ?? part.url}</a>;
  if (part.type === "file") return <a href={part.url}>{part.filename ?? part.mediaType}</a>;
  if (isToolUIPart(part)) {
    if (getToolName(part) === ASK) return <Question part={part} talk={talk} />;
    return <Tool part={part} talk={talk} wanted={isWanted(part, parts)} />;
  }
  if (isDataUIPart(part)) return <Data part={part} />;
  return null;
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

const isLink = (url) => typeof url === "string" && /^https?:/.test(url);

function Tool({ part, talk, wanted }) {
  const name = getToolName(part);
  const answer = (approved) => talk.addToolApprovalResponse({ id: part.approval.id, approved });
  const give = (output) =>
    talk.addToolOutput({ tool: name, toolCallId: part.toolCallId, output });
  const open = wanted && part.state === "input-available";
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
  const { kind, prompt, options = [], freeform, details } = part.input;
  const declines = options.some(({ id }) => id === "decline");
  const answer = (output) =>
    talk.addToolOutput({ tool: ASK, toolCallId: part.toolCallId, output });
  return (
    <section className="tool" aria-label={`Question: ${prompt}`}>
      <h2>
        {prompt} <small>{kind}</small>
      </h2>
      {isLink(details?.url) && <a href={details.url}>{details.url}</a>}
      {details && <pre>{shown(details)}</pre>}
      {part.state === "input-available" && (
        <>
          {options.map(({ id, label }) => (
            <button key={id} onClick={() => answer(id)}>
              {label}
            </button>
          ))}
          {!declines && <button onClick={() => answer({ decline: true })}>decline</button>}
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

/** Words that were said elsewhere or by a child, and notices. */
function Data({ part: { data } }) {
  const words = data?.text ?? data?.message;
  return typeof words === "string" ? <p className="data">{words}</p> : null;
}
