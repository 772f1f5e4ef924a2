/** One session in three columns. */
import { curl, download, get, lines } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { mark } from "../app.js";
import { Columns } from "../parts/columns.js";
import { bytes, State } from "../parts/text.js";

/** A session as a source of `LogWindow`. */
export function sourceOf(session) {
  const path = `/sessions/${encodeURIComponent(session.id)}`;
  return {
    last: session.last_seq,
    async entries(after, limit) {
      const found = [];
      for await (const some of lines(`${path}/events`, { query: { after, limit } })) found.push(...some);
      return found.map(split);
    },
    async *follow(after, stop) {
      for await (const some of lines(`${path}/events`, { query: { after, follow: 1 }, signal: stop })) yield some.map(split);
    },
    raw: (after, limit) => get(`${path}/frames`, { query: { after, limit } }),
    shown: (dialect, after, limit) => get(`${path}/as/${dialect}`, { query: { after, limit } }),
    curl: (after, limit) => curl(`${path}/events`, { after, limit }),
  };
}

/** An entry of the log, its event apart from its place. */
export function split({ seq, at, session_id, ...event }) {
  return { seq, at, event };
}

export default function Session({ name, query }) {
  const [session, setSession] = useState(null);
  const [source, setSource] = useState(null);
  const [dialects, setDialects] = useState([]);
  const [dialect, setDialect] = useState("");
  const [failed, setFailed] = useState("");
  const [selected, select] = useState(Number(query.get("seq")) || 0);
  const path = `/sessions/${encodeURIComponent(name)}`;

  useEffect(() => {
    const stop = new AbortController();
    const load = async () => {
      const found = await get(path, { signal: stop.signal });
      setSession(found);
      return found;
    };
    (async () => {
      const [found, known] = await Promise.all([load(), get("/dialects", { signal: stop.signal })]);
      const names = known.dialects.filter((one) => one.frontends).map((one) => one.name);
      setDialects(names);
      setDialect(names.find((one) => one === query.get("as")) ?? names.find((one) => one === found.dialect) ?? names[0]);
      setSource(sourceOf(found));
    })().catch((error) => stop.signal.aborted || setFailed(error.message));
    const timer = setInterval(() => document.hidden || load().catch(() => {}), 2000);
    return () => (stop.abort(), clearInterval(timer));
  }, [path]);

  useEffect(() => {
    if (selected) mark(`#/sessions/${encodeURIComponent(name)}?seq=${selected}&as=${dialect}`);
  }, [selected, dialect]);

  if (failed) return html`<h1>Session ${name}</h1><p role="alert" class="error">${failed}</p>`;
  if (!session || !source) return html`<p class="muted">Loading…</p>`;
  const repairs = Object.entries(session.repairs);
  const open = session.open_interactions.length;
  const tools = html`<button onClick=${() => download(`${path}/capture`, `${name}.capture.ndjson`)}>Download as capture</button>`;
  return html`
    <div class="row">
      <h1 class="grow">${session.title || session.id}</h1>
      <${State} state=${session.state} />
    </div>
    <p class="muted small">
      <code>${session.id}</code> · began as ${session.dialect}, on ${session.legs.map((leg) => leg.backend).join(" → ")} · owner
      ${" "}${session.owner} · ${bytes(session.bytes)}
      ${repairs.length > 0 && html` · repairs: ${repairs.map(([rule, number]) => `${rule} ×${number}`).join(", ")}`}
      ${open > 0 && html` · <a href="#/desk">${open} open question${open > 1 ? "s" : ""}</a>`}
      ${session.reconnecting_since && html` · <span class="pill bad">its backend is not reached</span>`}
    </p>
    <${Columns}
      source=${source}
      dialects=${dialects}
      dialect=${dialect}
      choose=${setDialect}
      selected=${selected}
      repairs=${session.repairs}
      select=${select}
      tools=${tools}
    />
  `;
}
