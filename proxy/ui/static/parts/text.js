/** Texts as a person reads them: JSON with its indent, frames taken apart, times, what an event says. */
import { html } from "../html.js";

/** JSON as text with an indent of two; anything else as it is. */
export function indented(text) {
  try {
    return JSON.stringify(typeof text === "string" ? JSON.parse(text) : text, null, 2);
  } catch {
    return text;
  }
}

/** A text of JSON whose names are marked. */
export function Json({ value }) {
  const parts = indented(value).split(/^(\s*"(?:[^"\\]|\\.)*":)/m);
  return html`<pre class="json" tabindex="0">${parts.map((part, at) => (at % 2 ? html`<span class="name">${part}</span>` : part))}</pre>`;
}

/** Words in which what stands between backticks is code. */
export const Words = ({ text }) => text.split(/`([^`]+)`/).map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

/** The fields of a frame: of SSE its `event`, `id` and `data`, of NDJSON `data` alone. */
export function fields(text) {
  const found = { data: [] };
  if (!/^(:|data|event|id|retry)/.test(text)) return { data: text.trim() };
  for (const line of text.split(/\r\n|\r|\n/)) {
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line) ?? [];
    if (name === "data") found.data.push(value);
    else if (name) found[name] = value;
    else if (line) found.comment = value;
  }
  return { ...found, data: found.data.join("\n") };
}

/** A frame's type, as its dialect names it, or what it is instead. */
export function typeOf(text) {
  const { event, data, comment } = fields(text);
  if (!data) return comment === undefined ? event || "(blank)" : "(comment)";
  try {
    const value = JSON.parse(data);
    return String(value?.type ?? value?.event ?? event ?? value?.kind ?? "JSON");
  } catch {
    return event || data.slice(0, 24);
  }
}

/** A frame, all of it. */
export function Frame({ text }) {
  const { data, ...others } = fields(text);
  const heads = Object.entries(others);
  return html`<div class="frame">
    ${heads.length > 0 &&
    html`<pre class="heads">${heads.map(([name, value]) => `${name === "comment" ? "" : name}: ${value}`).join("\n")}</pre>`}
    ${data && html`<${Json} value=${data} />`}${!data && !heads.length && html`<pre class="muted">(blank line)</pre>`}
  </div>`;
}

const words = (content) =>
  (content ?? []).map((block) => block.text ?? (block.type === "file" ? `[${block.name ?? "file"}]` : `[${block.type}]`)).join(" ");
const short = (value) => (typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value));

/** What an event says, in a line. */
export function gist(event) {
  const { type, error } = event;
  const said = {
    "text.delta": () => event.text,
    "text.completed": () => event.text,
    "reasoning.delta": () => event.text,
    "reasoning.completed": () => event.text,
    "input.accepted": () => `${event.kind} ${words(event.content)}${event.face ? ` · by ${event.face}` : ""}`,
    "input.settled": () => [event.outcome, event.reason].filter(Boolean).join(": "),
    "message.received": () => words(event.content),
    "tool.called": () => `${event.name} ${short(event.input ?? event.preview)}`,
    "tool.returned": () => `${event.status ?? ""} ${short(event.output) || words(event.content)}`,
    "tool.input_delta": () => event.text,
    "interaction.requested": () => event.prompt,
    "interaction.answered": () => `${event.state ?? ""}${event.by ? ` by ${event.by}` : ""}`,
    "interaction.resolved": () => [event.outcome, short(event.answer), event.by && `by ${event.by}`].filter(Boolean).join(" "),
    "error.reported": () => event.message,
    "session.started": () => event.title ?? "",
    "session.updated": () => event.title ?? (event.backend ? `at ${event.backend}` : ""),
    "thread.started": () => event.name ?? "",
    "turn.paused": () => `on ${event.on}`,
    notice: () => event.text,
    native: () => event.name,
  }[type];
  const text = said ? said() : (event.outcome ?? event.status ?? "");
  return `${text ?? ""}${error ? ` ${error.message}` : ""}`.replace(/\s+/g, " ").trim().slice(0, 300);
}

/** A time of day with milliseconds, in the reader's zone. */
export const clock = (ms) => {
  const at = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
};

/** How long ago a time was, coarsely. */
export function ago(ms, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  const [unit, size] = [["d", 86400], ["h", 3600], ["min", 60]].find(([, one]) => seconds >= one) ?? ["s", 1];
  return `${Math.floor(seconds / size)} ${unit}`;
}

/** A number with its thousands apart. */
export const count = (number) => new Intl.NumberFormat("en").format(number);

/** Bytes as people say them. */
export function bytes(number) {
  const units = ["B", "kB", "MB", "GB"];
  const at = Math.min(3, Math.floor(Math.log10(Math.max(number, 1)) / 3));
  return `${at ? (number / 1000 ** at).toFixed(1) : number} ${units[at]}`;
}

/** A pill in the colour of a session's state. */
export const State = ({ state }) =>
  html`<span class=${`pill ${{ running: "busy", paused: "warn", idle: "ok" }[state] ?? ""}`}>${state}</span>`;
