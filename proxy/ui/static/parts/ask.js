/** What an agent asks a person, with what answers it. */
import { ask } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";

const DENIES = /^(block|cancel|decline|deny|no\b|refuse|reject|stop)/i;

/** The answers to an open interaction. `one` is an InteractionOut, with `gone` if it is not open any more;
 * `refused(one)` is called when the server does not take an answer, as where somebody else was first. */
export function Ask({ one, refused }) {
  const [busy, setBusy] = useState("");
  const [error, setError] = useState("");
  const box = useRef();
  // An answer that was taken shows in the next state of the request.
  useEffect(() => setBusy(""), [one]);

  async function send(json) {
    // The buttons leave, but not the focus.
    box.current.focus();
    setBusy("Sending…");
    setError("");
    const path = ["sessions", one.session_id, "interactions", one.request_id].map(encodeURIComponent).join("/");
    try {
      await ask(`/${path}`, { method: "POST", json });
      setBusy("Sent.");
    } catch ({ code, message }) {
      setBusy("");
      setError(`${code === "already_answered" ? "Answered already. " : ""}${message}`);
      refused?.(one);
    }
  }

  const open = one.answerable && !one.claimed && !one.gone;
  const note = one.claimed ? "An answer is on its way." : "It is answered elsewhere, not here.";
  return html`<div class="ask stack" ref=${box} tabindex="-1">
    ${open && html`<${Answers} ...${one} busy=${Boolean(busy)} send=${send} />`}
    <p role="status" class=${`small ${error ? "error" : "muted"}`}>${error || busy || (open || one.gone ? "" : note)}</p>
  </div>`;
}

function Answers({ kind, options, freeform, busy, send }) {
  const [words, setWords] = useState("");
  const button = (label, json, tone, title) =>
    html`<button type="button" class=${tone} title=${title} disabled=${busy} onClick=${() => send(json)}>${label}</button>`;
  const field = (label, type = "text") =>
    html`<input class="grow" type=${type} aria-label=${label} placeholder=${label} value=${words} disabled=${busy} autocomplete="off" onInput=${(event) => setWords(event.target.value)} />`;
  const form = (name, input, more) => html`<form class="row" onSubmit=${(event) => (event.preventDefault(), send({ [name]: words }))}>
    ${input}<button class="primary" disabled=${busy || !words}>Answer</button>${more}
  </form>`;
  const row = (...buttons) => html`<div class="row">${buttons}</div>`;

  if (kind === "approval" || kind === "limit") {
    const choices = options.length ? options : ["Allow", "Deny"].map((label) => ({ label, decision: label.toLowerCase() }));
    const buttons = choices.map(({ id, label, decision, description }, at) => {
      const no = decision ? decision === "deny" : DENIES.test(id) || DENIES.test(label);
      const json = id === undefined ? { decision } : { option_ids: [id] };
      return button(label || id, no && words ? { ...json, reason: words } : json, no ? "danger" : at ? "" : "primary", description);
    });
    return row(buttons, field("Reason, if you deny"));
  }
  if (kind === "authorization") return row(button("Decline", { decision: "deny" }, "danger"));
  if (kind !== "question" && kind !== "tool_result")
    return form("sealed", field("The value: the backend gets it, nobody else", "password"), button("Decline", { skip: true }, "danger"));
  const skip = kind === "question" && button("Skip", { skip: true });
  const open = freeform || !options.length;
  const buttons = options.map(({ id, label, description }) => button(label || id, { option_ids: [id] }, "", description));
  return html`${options.length > 0 && row(buttons, !open && skip)}
  ${open && form("text", field(skip ? "Your answer" : "What the tool returned"), skip)}`;
}
