/** All sessions, live. */
import { mark } from "../app.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { pages, usePoll } from "../parts/poll.js";
import { ago, count, State } from "../parts/text.js";

const SPARE = 6;
const HOUR = 3600_000;
const LIVING = ["idle", "running", "paused", "ended"];
const GONE = ["deleted", "expired"];
const FAILED = ["failed", "refused", "unknown"];

const FILTERS = {
  state: ["State", (row) => row.state],
  backend: ["Backend", (row) => row.backend],
  waits: ["Waits for", (row) => row.waiting?.kind],
  last: ["Last message", (row) => row.last_message],
};

/** By name: heading, what is sorted by, whether large values come first, and what a cell shows if not that. */
const COLUMNS = {
  session: ["Session", (row) => (row.title || row.id).toLowerCase(), false, named],
  backend: ["Backend", (row) => row.backend],
  dialect: ["Made by", (row) => row.dialect],
  attached: ["Attached", (row) => Object.values(row.dialects).reduce((sum, one) => sum + one, 0) || null, true, attached],
  state: ["State", (row) => row.state, false, stated],
  waits: ["Waits for", (row) => row.waiting && (row.waiting.since ?? 0), false, waits],
  events: ["Events", (row) => row.last_seq, true, (row) => count(row.last_seq)],
  repairs: ["Repairs", (row) => row.repairs, true, (row) => row.repairs ?? "–"],
  losses: ["Losses", (row) => row.losses, true, (row) => row.losses ?? "–"],
  updated: ["Updated", (row) => row.updated_at, true, (row) => `${ago(row.updated_at)} ago`],
};

function named({ id, title }) {
  return html`<a href=${`#/sessions/${encodeURIComponent(id)}`} title=${title}>${title || id}</a>${title && html`<code class="muted">${id}</code>`}`;
}

const times = ([name, number]) => (number > 1 ? `${name} ×${number}` : name);

function attached({ dialects }) {
  return Object.entries(dialects).map(times).join(", ");
}

function stated({ state, last_message: last }) {
  return html`<${State} state=${state} /> ${FAILED.includes(last) && html`<span class="error small">${last}</span>`}`;
}

function waits({ waiting: one }) {
  if (!one) return null;
  return html`<a href=${one.kind === "person" ? "#/desk" : null}>${times([one.kind, one.count])}</a> ${one.since && html`<span class="small muted">for ${ago(one.since)}</span>`}`;
}

/** Put rows into a Map by id, each with the words that a search finds it by; gives how many are news. */
function merge(all, rows) {
  const news = rows.map((row) => [row, JSON.stringify(row)]).filter(([row, json]) => json !== all.get(row.id)?.json);
  for (const [row, json] of news)
    if (GONE.includes(row.state)) all.delete(row.id);
    else all.set(row.id, { row, json, words: `${row.title ?? ""} ${row.id}`.toLowerCase() });
  return news.length;
}

export default function Sessions({ query }) {
  const [all] = useState(() => new Map());
  const [version, setVersion] = useState(0);
  const [looks, setLooks] = useState(0);
  const [filters, setFilters] = useState(query);
  const [byName, setByName] = useState({});
  const took = useRef({ newest: 0, looks: 0 });
  const take = (rows) => merge(all, rows) && setVersion((one) => one + 1);

  const failed = usePoll(async (signal) => {
    const { newest, looks } = took.current;
    // Now and then those are read again of which only the readers have changed, but no more than two pages.
    const again = looks % 5 === 4;
    let most = 0;
    for await (const rows of pages(newest ? { changed: newest - (again ? HOUR : 2000), state: [...LIVING, ...GONE] } : { state: LIVING }, signal)) {
      take(rows);
      // What changes while the others are read is newer than all of the first page.
      most ||= Math.max(1, ...rows.map((row) => row.updated_at));
      if (again && rows.length > 100) break;
    }
    took.current = { newest: Math.max(newest, most), looks: looks + 1 };
    setLooks(looks + 1);
  });

  const of = (name) => filters.get(name) ?? "";
  const set = (name, value) => setFilters(new URLSearchParams([...[...filters].filter(([one]) => one !== name), ...(value ? [[name, value]] : [])]));
  const name = of("q").trim();
  // The address keeps what is looked for; the server knows names that are in no row.
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      mark(`#/sessions${filters.size ? `?${filters}` : ""}`);
      if (!name) return;
      // That the server is not reached is told anyway.
      const { value: rows = [] } = await pages({ name }, stop.signal).next().catch(() => ({}));
      take(rows);
      setByName({ name, ids: new Set(rows.map((row) => row.id)) });
    }, 300);
    return () => (clearTimeout(timer), stop.abort());
  }, [filters]);

  const [column, turned] = (of("sort") || "updated").split(" ");
  const sorted = useMemo(() => {
    const [, value, large] = COLUMNS[column] ?? COLUMNS.updated;
    const sign = Boolean(large) !== Boolean(turned) ? -1 : 1;
    const keyed = [...all.values()].map((one) => [value(one.row) ?? null, one]);
    keyed.sort(([one], [other]) => (one === other ? 0 : one === null ? 1 : other === null ? -1 : one < other ? -sign : sign));
    return keyed.map(([, one]) => one);
  }, [version, column, turned]);
  const values = useMemo(() => Object.values(FILTERS).map(([, value]) => [...new Set(sorted.map((one) => value(one.row)))]), [version]);
  const shown = useMemo(() => {
    const words = name.toLowerCase();
    const ids = byName.name === name && byName.ids;
    const wanted = Object.entries(FILTERS).filter(([name]) => of(name));
    return sorted.filter((one) => (one.words.includes(words) || (ids && ids.has(one.row.id))) && wanted.every(([name, [, value]]) => value(one.row) === of(name)));
  }, [sorted, filters, byName]);

  const choice = ([name, [label]], at) => html`<label
    >${label}
    <select value=${of(name)} onChange=${(event) => set(name, event.target.value)}>
      <option value="">any</option>
      ${[...new Set([...values[at], of(name)])].sort().map((value) => value && html`<option>${value}</option>`)}
    </select></label
  >`;
  return html`
    <div class="row">
      <h1>Sessions</h1>
      <span class="muted small grow" role="status">${shown.length < all.size && `${count(shown.length)} of `}${count(all.size)}${looks ? "" : ", loading…"}</span>
      ${failed && html`<span class="error small" role="alert">${failed}</span>`}
    </div>
    <search class="filters">
      <label class="grow">Search <input type="search" placeholder="Title, id or name" value=${of("q")} onInput=${(event) => set("q", event.target.value)} /></label>
      ${Object.entries(FILTERS).map(choice)}
    </search>
    ${shown.length > 0
      ? html`<${Table} rows=${shown} column=${column} turned=${turned} sort=${(value) => set("sort", value)} top=${filters} />`
      : html`<p class="card muted" aria-busy=${!looks && !failed}>${!looks ? "Loading…" : all.size ? "No session is like that." : "There are no sessions yet."}</p>`}
  `;
}

function Table({ rows, column, turned, sort, top }) {
  const box = useRef();
  const [[height, from, to], setRange] = useState([46, 0, 20]);

  function look() {
    const { scrollTop, clientHeight } = box.current;
    const height = parseFloat(getComputedStyle(box.current).getPropertyValue("--height"));
    const next = [height, Math.max(0, Math.floor(scrollTop / height) - SPARE), Math.ceil((scrollTop + clientHeight) / height) + SPARE];
    setRange((last) => (`${last}` === `${next}` ? last : next));
  }
  useLayoutEffect(() => {
    const seen = new ResizeObserver(look);
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);
  useLayoutEffect(() => {
    box.current.scrollTop = 0;
  }, [top]);

  const head = ([name, [title, , large]]) => {
    const own = name === column;
    const down = Boolean(large) !== Boolean(turned);
    return html`<th class=${name} aria-sort=${own ? (down ? "descending" : "ascending") : null}>
      <button class="quiet" onClick=${() => sort(own && !turned ? `${name} turned` : name)}>${title}${own && html`<span aria-hidden="true">${down ? " ↓" : " ↑"}</span>`}</button>
    </th>`;
  };
  const cell = (row) => ([name, [, value, , show = value]]) => html`<td class=${name}>${show(row)}</td>`;
  const space = (number) => number > 0 && html`<tr class="space" aria-hidden="true"><td colspan="10" height=${number * height}></td></tr>`;
  const columns = Object.entries(COLUMNS);
  const begin = Math.max(0, Math.min(from, rows.length - to + from));
  return html`<div class="sessions card" ref=${box} onScroll=${look} tabindex="0" role="region" aria-label="Sessions">
    <table aria-rowcount=${rows.length + 1}>
      <thead>
        <tr aria-rowindex="1">
          ${columns.map(head)}
        </tr>
      </thead>
      <tbody>
        ${space(begin)}
        ${rows.slice(begin, to).map(({ row }, at) => html`<tr key=${row.id} aria-rowindex=${begin + at + 2}>${columns.map(cell(row))}</tr>`)}
        ${space(rows.length - to)}
      </tbody>
    </table>
  </div>`;
}
