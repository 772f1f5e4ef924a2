/**
 * The three columns: what a backend said, what became of it in the log, and how a frontend is shown it.
 *
 * A list of lines of the log, each with what stands beside it, and below it the selected line in full.
 */
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { LogWindow } from "./log.js";
import { Fidelity, ReadAs, ShownAs } from "./mapping.js";
import { clock, count, Frame, gist, Json, typeOf } from "./text.js";

const ROW = 30;
const SPARE = 6;

/** The lines of a log. `dialects` are those to choose from, `selected` is the seq of the line that is shown in full,
 * 0 for none: then the end is followed. `repairs` says how often each rule was used. */
export function Columns({ source, dialects, dialect, choose, selected, select, repairs = {}, tools }) {
  const log = useMemo(() => new LogWindow(source), [source]);
  const raw = useMemo(
    () => log.beside(async (...range) => (source.raw ? source.raw(...range) : { frames: [], next: null }), (frame) => frame.seqs),
    [log],
  );
  const shown = useMemo(
    () => log.beside((...range) => source.shown(dialect, ...range), (frame) => [frame.seq]),
    [log, dialect],
  );
  const box = useRef();
  const jump = useRef();
  const slider = useRef();
  const held = useRef(false);
  const [view, setView] = useState([0, 20]);
  const stuck = useRef(true);
  log.version.value, raw.version.value, shown.version.value;

  useEffect(() => {
    log.live.value = !selected;
    log.open(selected || undefined).then(() => selected && show(selected));
    log.follow();
    return () => log.close();
  }, [log]);
  useEffect(() => {
    if (!selected || !log.entries.length) return;
    log.live.value = false;
    show(selected);
  }, [selected]);

  // The end stays in view while it is followed, and what is in view stays where it is otherwise.
  const anchor = useRef(log.first);
  useLayoutEffect(() => {
    const one = box.current;
    if (log.live.value && stuck.current) one.scrollTop = one.scrollHeight;
    else if (anchor.current !== log.first) one.scrollTop += (anchor.current - log.first) * ROW;
    anchor.current = log.first;
    // Not while it is dragged.
    if (!held.current) slider.current.value = selected || log.end;
    look();
  });

  function look() {
    const one = box.current;
    const from = Math.max(0, Math.floor(one.scrollTop / ROW) - SPARE);
    const to = Math.min(log.entries.length, Math.ceil((one.scrollTop + one.clientHeight) / ROW) + SPARE);
    if (from !== view[0] || to !== view[1]) setView([from, to]);
    if (to > from && log.entries.length) {
      const range = [log.first + from, Math.min(log.end, log.first + to - 1)];
      if (source.raw) raw.want(...range);
      shown.want(...range);
    }
  }

  function scrolled() {
    const one = box.current;
    stuck.current = one.scrollHeight - one.scrollTop - one.clientHeight < ROW;
    look();
    if (one.scrollTop < 20 * ROW) log.more(-1);
    if (one.scrollHeight - one.scrollTop - one.clientHeight < 20 * ROW) log.more(1);
  }

  async function goto(seq) {
    const at = await reveal(seq);
    if (at) select(at);
  }

  // Two lines that are selected at once would select each other for ever, if what is drawn selected its own again.
  async function show(seq) {
    const at = await reveal(seq);
    if (at && at !== seq) select(at);
  }

  /** Bring a line into view; gives its seq, which is the last one for those beyond it, or 0. */
  async function reveal(seq) {
    const at = Math.max(1, Math.min(seq, log.last));
    if (!log.at(at)) await log.open(at);
    if (!log.at(at)) return 0;
    stuck.current = false;
    // Not at every drawing: a number that is being typed stays.
    jump.current.value = at;
    const one = box.current;
    const top = (at - log.first) * ROW;
    if (top < one.scrollTop || top > one.scrollTop + one.clientHeight - 2 * ROW) one.scrollTop = top - one.clientHeight / 3;
    look();
    return at;
  }

  const pause = () => {
    if (log.live.value) log.live.value = false;
    else {
      stuck.current = true;
      log.resume();
    }
  };

  function pressed(event) {
    if (event.target !== box.current) return;
    const page = Math.max(1, Math.floor(box.current.clientHeight / ROW) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[event.key];
    if (step) goto((selected || log.end + 1) + step);
    else if (event.key === "Home") goto(1);
    else if (event.key === "End") goto(log.last);
    else if (event.key === " ") pause();
    else return;
    event.preventDefault();
  }

  const entry = selected ? log.at(selected) : null;
  const [from, to] = view;
  const following = log.live.value && Boolean(source.follow);
  const missed = log.last - log.end;
  return html`
    <section class="card log" aria-label="The log">
      <div class="row">
        ${source.follow &&
        html`<button aria-pressed=${following} onClick=${pause} title="Space">
          ${following ? "● Live" : "Go live"}
        </button>`}
        <label class="row"
          >Jump to
          <input
            class="seq"
            type="number"
            min="1"
            max=${log.last}
            ref=${jump}
            onChange=${(event) => goto(Number(event.target.value))}
        /></label>
        <span class="muted small grow" role="status"
          >${count(log.last)} events${missed > 0 && !following ? `, ${count(missed)} after these` : ""}
          ${[...new Set([log, shown, raw].map((one) => one.failed.value))].map((why) => why && html` <span class="error">${why}</span>`)}</span
        >
        ${tools}
      </div>
      <input
        type="range"
        aria-label="Place in the log"
        min="1"
        max=${Math.max(1, log.last)}
        ref=${slider}
        onInput=${() => (held.current = true)}
        onChange=${(event) => ((held.current = false), goto(Number(event.target.value)))}
      />
      <div class="heads grid3">
        <span class="raw">${source.raw ? "Backend, raw" : "Backend"}</span><span class="event">Canonical event</span>
        <label class="shown"
          >Frontend of
          <select value=${dialect} onChange=${(event) => choose(event.target.value)}>
            ${dialects.map((name) => html`<option value=${name}>${name}</option>`)}
          </select></label
        >
      </div>
      <div
        class="lines"
        ref=${box}
        tabindex="0"
        role="listbox"
        aria-label="Events"
        aria-activedescendant=${entry ? `seq-${selected}` : null}
        onScroll=${scrolled}
        onKeyDown=${pressed}
      >
        <div class="sheet" style=${{ height: `${log.entries.length * ROW}px` }} role="presentation">
          ${log.entries
            .slice(from, to)
            .map(
              (one) =>
                html`<${Line}
                  key=${one.seq}
                  entry=${one}
                  top=${(one.seq - log.first) * ROW}
                  raw=${raw.of(one.seq)}
                  shown=${shown.of(one.seq)}
                  picked=${one.seq === selected}
                  of=${log.last}
                  pick=${select}
                />`,
            )}
        </div>
      </div>
      ${!log.entries.length && html`<p class="muted">${log.last ? "Loading…" : "Nothing has happened yet."}</p>`}
    </section>
    ${entry
      ? html`<${Selected} entry=${entry} raw=${raw.of(selected)} shown=${shown.of(selected)} dialect=${dialect} source=${source} repairs=${repairs} />`
      : html`<p class="muted">Choose a line: with the mouse, or with the arrow keys.</p>`}
  `;
}

function Line({ entry, top, raw, shown, picked, of, pick }) {
  const { event, seq } = entry;
  const first = raw?.[0];
  const begun = first && first.seqs[0] === seq;
  const said = gist(event);
  return html`<div
    id=${`seq-${seq}`}
    class="line grid3"
    role="option"
    aria-selected=${picked}
    aria-posinset=${seq}
    aria-setsize=${of}
    style=${{ top: `${top}px` }}
    onClick=${() => pick(seq)}
  >
    <span class="raw cell">
      ${first ? (begun ? html`<b>${typeOf(first.text)}</b> <i>#${first.number}</i>` : html`<i>└ #${first.number}</i>`) : raw && html`<i class="muted">–</i>`}
    </span>
    <span class="cell"
      ><i>${seq}</i> <b class="event">${event.type}</b>${event.synthetic && html` <span class="pill warn">added</span>`} ${said}</span
    >
    <span class="shown cell">
      ${shown?.length ? html`<b>${shown.map((frame) => typeOf(frame.text)).join(" · ")}</b>` : shown && html`<i class="muted">not shown</i>`}
    </span>
  </div>`;
}

function Selected({ entry, raw, shown, dialect, source, repairs }) {
  const { event, seq, at } = entry;
  const { native } = event;
  const [copied, setCopied] = useState(false);
  useEffect(() => setCopied(false), [seq]);
  const line = source.curl?.(seq - 1, 1);
  const copy = () => navigator.clipboard.writeText(line).then(() => setCopied(true));
  return html`<section class="columns three" aria-label=${`Event ${seq}`}>
    <article class="card stack">
      <h2 class="raw">Backend${native ? `: ${native.dialect}` : ""}</h2>
      ${native &&
      html`<p class="small">
          <code>${native.type ?? "?"}</code>${native.id && html` <code class="muted">${native.id}</code>`}
          ${native.frame !== undefined && native.frame !== null && html`<span class="muted"> frame ${native.frame}</span>`}
        </p>
        <${ReadAs} dialect=${native.dialect} native=${native.type} />`}
      ${!native && html`<p class="small">No frame of the backend: ${made(event)}.</p>`}
      ${raw?.map((frame) => html`<${Frame} text=${frame.text} />`)}
      ${native && source.raw && raw && !raw.length && html`<p class="muted small">The frame is not kept any more, or frames are not kept.</p>`}
    </article>
    <article class="card stack">
      <h2 class="event">Canonical: ${event.type}</h2>
      <p class="small">
        seq ${seq} · <time>${clock(at)}</time>${event.synthetic && html` · <span class="pill warn">added by Dragoman</span>`}
      </p>
      <${Repair} event=${event} repairs=${repairs} />
      <${Json} value=${event} />
      ${line && html`<div class="row"><button onClick=${copy}>${copied ? "Copied" : "Copy as curl"}</button></div>`}
    </article>
    <article class="card stack">
      <h2 class="shown">Frontend: ${dialect}</h2>
      <${ShownAs} dialect=${dialect} type=${event.type} />
      ${shown?.map((frame) => html`<p class="muted small">cursor ${frame.cursor}</p><${Frame} text=${frame.text} />`)}
      ${shown && !shown.length && html`<p class="muted small">Nothing is sent to frontends of ${dialect} at this event.</p>`}
    </article>
  </section>`;
}

/** The rules by which the normalizer adds events, by what they add. */
const ADDS = {
  "turn.started": ["open-turn"],
  "turn.ended": ["end-previous-turn", "end-open-turn"],
  "turn.resumed": ["resume", "answered-pause"],
  "turn.paused": ["pause-again"],
  "step.started": ["open-step"],
  "step.ended": ["close-step"],
  "text.completed": ["close-block", "long-block"],
  "reasoning.completed": ["close-block", "long-block"],
  "text.delta": ["missing-delta"],
  "reasoning.delta": ["missing-delta"],
  "tool.called": ["result-without-call"],
  "tool.returned": ["abandoned-call"],
  "interaction.resolved": ["left-interaction"],
  "input.settled": ["echo-settles"],
  "session.updated": ["session-started-again"],
  "error.reported": ["unrepaired"],
};

/** Which repair an event is: its text was mended, or it was added by a rule that this log has used. */
function Repair({ event, repairs }) {
  const rules = event.extra?.repaired ? ["text-differs"] : event.synthetic ? (ADDS[event.type] ?? []).filter((rule) => repairs[rule]) : [];
  if (rules.length) return html`<p class="small">Repair: ${rules.map((rule, at) => html`${at ? " or " : ""}<code>${rule}</code>`)}</p>`;
  return event.synthetic && event.native && html`<p class="small">The codec of ${event.native.dialect} concluded it; no frame says so.</p>`;
}

const made = ({ type, synthetic, face }) =>
  type.startsWith("input.") || type.startsWith("interaction.an")
    ? `a frontend${face ? ` of ${face}` : ""} or Dragoman's outbox made this event`
    : synthetic
      ? "Dragoman added this event so that the log obeys its laws"
      : "Dragoman made this event";
