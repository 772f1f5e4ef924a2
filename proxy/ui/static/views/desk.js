/** What waits for people, over all sessions. */
import { get } from "../api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { Ask } from "../parts/ask.js";
import { pages, usePoll } from "../parts/poll.js";
import { ago, count, Json, Words } from "../parts/text.js";

const MOST = 200;
const keyOf = (one) => `${one.session_id} ${one.request_id}`;

export default function Desk() {
  const [found, setFound] = useState(null);
  // Those whose answer was refused stay until they were read.
  const [kept, setKept] = useState({});
  const [news, setNews] = useState("");
  const [titles] = useState(() => new Map());
  const known = useRef(null);
  const list = useRef();

  const failed = usePoll(async (signal) => {
    const { interactions } = await get("/interactions", { signal });
    if (interactions.some((one) => !titles.has(one.session_id))) {
      for (const one of interactions) titles.set(one.session_id, "");
      for await (const some of pages({ state: ["running", "paused"] }, signal)) for (const one of some) titles.set(one.id, one.title);
    }
    const fresh = interactions.filter((one) => known.current && !known.current.has(keyOf(one)));
    known.current = new Set(interactions.map(keyOf));
    if (fresh.length) setNews(fresh.length > 1 ? `${fresh.length} new ones wait.` : `New: ${fresh[0].prompt}`);
    setFound(interactions);
  });

  const waiting = found?.filter((one) => one.answerable && !one.claimed).length;
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}Desk – Dragoman`;
  }, [waiting]);

  const all = { ...kept };
  for (const one of found ?? []) all[keyOf(one)] = one;
  const shown = Object.values(all).sort((one, other) => (one.since ?? 0) - (other.since ?? 0));
  const cards = () => [...(list.current?.children ?? [])];
  const here = () => cards().findIndex((card) => card.contains(document.activeElement));

  // Where the card with the focus leaves, the next one gets it.
  const at = here();
  useLayoutEffect(() => {
    if (at < 0 || document.activeElement !== document.body) return;
    (cards()[at] ?? cards().at(-1) ?? document.querySelector("main")).focus();
  });

  useEffect(() => {
    const pressed = (event) => {
      const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
      if (!step || event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, header")) return;
      const next = cards()[here() < 0 ? 0 : here() + step];
      if (next) next.focus(), event.preventDefault();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);

  const refused = (one) => setKept((others) => ({ ...others, [keyOf(one)]: { ...one, gone: true } }));
  const close = (one) => setKept(({ [keyOf(one)]: _, ...others }) => others);
  return html`
    <div class="row">
      <h1>Desk</h1>
      <span class="muted small grow">
        ${found?.length > 0 && `${count(found.length)} open, oldest first${found.length > MOST ? `; ${MOST} are shown` : ""}. Keys: j and k, or the arrows.`}
      </span>
      ${failed && html`<span class="error small" role="alert">${failed}</span>`}
    </div>
    <p class="hidden" aria-live="polite">${news}</p>
    ${!shown.length && html`<p class="card muted" aria-busy=${!found && !failed}>${found ? "Nothing waits for a person." : "Loading…"}</p>`}
    <div class="desk" ref=${list}>
      ${shown.slice(0, MOST).map((one) => html`<${Card} key=${keyOf(one)} one=${one} title=${titles.get(one.session_id)} refused=${refused} close=${close} />`)}
    </div>
  `;
}

function Card({ one, title, refused, close }) {
  const [first, ...others] = one.prompt.split("\n");
  const facts = Object.entries(one.details ?? {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]);
  return html`<article class="card stack" tabindex="-1" aria-label=${first}>
    <div class="row small muted">
      <a class="cell" href=${`#/sessions/${encodeURIComponent(one.session_id)}`}>${title || one.session_id}</a>
      at ${one.backend} <span class="pill">${one.kind.replace("_", " ")}</span>
      <span class="since">${one.gone ? "not open any more" : one.since && `waits for ${ago(one.since)}`}</span>
    </div>
    <h2><${Words} text=${first} /></h2>
    ${others.length > 0 && html`<p>${others.join("\n").trim()}</p>`}
    ${facts.length > 0 &&
    html`<details>
      <summary class="cell small">${facts.map(([name, value]) => html`<span class="muted">${name}:</span> <code>${value.slice(0, 200)}</code> ${" "}`)}</summary>
      <${Json} value=${one.details} />
    </details>`}
    <${Ask} one=${one} refused=${refused} />
    ${one.gone && html`<div class="row"><button onClick=${() => close(one)}>Close</button></div>`}
  </article>`;
}
