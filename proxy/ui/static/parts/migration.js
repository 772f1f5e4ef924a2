/** Sessions on their way to another backend: plan, waves, how turns went, the way back; and shadows. */
import { get, lines } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Fidelity } from "./mapping.js";
import { Bar, Light } from "./plot.js";
import { counts, Refusal, Section, Table, tally, useFetch } from "./section.js";

const TONES = { yes: "ok", no: "bad", not_known: "warn", impossible: "bad", differs: "warn", works: "ok", stays: "warn" };

const Session = ({ id }) => id && html`<a href=${`#/sessions/${encodeURIComponent(id)}`}><code>${id}</code></a>`;
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);

/** The way back of a session: first what would go over, then the move. */
function Back({ id, done }) {
  const [would, setWould] = useState();
  const [error, setError] = useState();
  const confirm = useRef();
  useEffect(() => confirm.current?.focus(), [would]);
  const ask = (dry_run) =>
    get(`/sessions/${encodeURIComponent(id)}/rollback`, { method: "POST", json: { dry_run } }).then(
      (found) => (setError(), setWould(dry_run && found), dry_run || done()),
      setError,
    );
  return html`${would
      ? html`<p>${would.backend} is told ${would.characters || "no"} characters with the next message.</p>
          <ul class="mapping">${would.history.map((one) => html`<li>${one.count} ${one.what} <${Fidelity} is=${one.fidelity} /> ${one.why}</li>`)}</ul>
          ${would.notices.map((notice) => html`<p>${notice}</p>`)}
          <div class="row"><button class="danger" ref=${confirm} onClick=${() => ask(false)}>Take back to ${would.backend}</button><button onClick=${() => setWould()}>Leave it</button></div>`
      : html`<button aria-label=${`Take back ${id}`} onClick=${() => ask(true)}>Take back…</button>`}
    <${Refusal} error=${error} />`;
}

/** The sessions that moved between two backends, and how their turns went since. */
function Moves({ from, to }) {
  const moved = useFetch(`/migration/moved?${new URLSearchParams({ from, to, since: 0 })}`, 5000);
  const left = useFetch(`/migration/sessions?${new URLSearchParams({ from, limit: 1000 })}`, 5000);
  if (!moved.value || !left.value) return html`<${Refusal} error=${moved.error ?? left.error} />`;
  const { sessions, next } = moved.value;
  const total = sessions.length + left.value.sessions.length;
  const succeeded = sum(sessions.map((one) => one.succeeded));
  const failed = tally(sessions.flatMap((one) => Object.entries(one.failed)));
  const bad = sum(Object.values(failed));
  const wave = (before, size, number) => {
    const [of, done] = [total, sessions.length].map((all) => Math.max(0, Math.min(size, all - before)));
    return of > 0 && html`<li><span>Wave ${number}</span><${Bar} parts=${[["ok", done]]} of=${of} /><span>${done} of ${of}</span></li>`;
  };
  return html`<div role="status" class="row">
      <b>${sessions.length} of ${total}${(next || left.value.next) && " or more"} have moved</b>
      <${Light} tone=${bad > succeeded ? "bad" : bad ? "warn" : succeeded ? "ok" : ""}>turns since: ${succeeded} succeeded, ${bad} failed ${bad > 0 && `(${counts(failed)})`}<//>
    </div>
    <ol class="plain shares">${wave(0, 10, 1)}${wave(10, 100, 2)}${wave(110, Infinity, 3)}</ol>
    <p class="small">On: <code>dragoman migrate move --all --from ${from} --to ${to}</code><br />Back: <code>dragoman migrate rollback --all --from ${to}</code></p>
    ${total > left.value.sessions.length &&
    html`<${Table}
      label="Sessions that moved"
      heads=${["session", "turns since", "way back"]}
      rows=${sessions.map(({ id, ...one }) => [
        html`<${Session} id=${id} />${one.taken_back && " taken back"}`,
        `${one.succeeded} succeeded${counts(one.failed) && `, failed: ${counts(one.failed)}`}`,
        one.back && html`<${Back} key=${id} id=${id} done=${() => (moved.again(), left.again())} />`,
      ])}
    />`}`;
}

const Plan = ({ plan: { check, target, sessions, impossible, findings, held } }) =>
  html`<div class="row">
      <b>${sessions} sessions, ${impossible || "nothing"} impossible</b>
      <${Light} tone=${TONES[check.ready]}>${target}: ready: ${check.ready.replace("_", " ")}. ${check.why.join(" ")}<//>
    </div>
    <${Table}
      label="Plan"
      heads=${["used", "verdict", "sessions", "consequence"]}
      rows=${[...held.map((one) => ({ ...one, verdict: "stays", area: "", what: one.why })), ...findings].map((one) => [
        `${one.area} ${one.what}`,
        html`<span class=${`pill ${TONES[one.verdict]}`}>${one.verdict}</span>`,
        html`${one.sessions} <${Session} id=${one.examples[0]} />`,
        one.consequence,
      ])}
    />`;

function Shadows() {
  const [path, setPath] = useState();
  const { value, error, again } = useFetch(path);
  return html`<div class="row"><h3>Shadows</h3><button onClick=${() => (setPath("/migration/report"), again())}>Compare</button></div>
    <${Refusal} error=${error} />
    <div role="status">
      ${value && (value.routes.length ? "" : "No route has a shadow.")}
      ${value?.routes.map(
        (one) => html`<p>
            ${one.route}, shadow ${one.backend}: <b>${one.same} of ${one.sessions} the same</b>, ${one.differing} differ, ${one.not_driven} stopped, ${one.waiting} wait;
            ${" "}turns take ×${one.speed.median_ratio ?? "–"} <span class="error">${one.why}</span>
          </p>
          <ul class="mapping">
            ${one.differences.map((it) => html`<li><${Session} id=${it.session} /> differs in <code>${it.path}</code></li>`)}
            ${one.stopped.map((it) => html`<li><${Session} id=${it.session} /> ${it.why}</li>`)}
          </ul>`,
      )}
    </div>`;
}

/** The section; `names` are those of the backends. */
export function Migration({ names, query }) {
  const [between, setBetween] = useState({ from: query.get("from") ?? "", to: query.get("to") ?? "" });
  const [plan, setPlan] = useState({});
  const { from, to } = between;
  const pair = from && to && from !== to;
  const choice = (label) =>
    html`<label>${label} <select value=${between[label]} onChange=${(event) => (setPlan({}), setBetween({ ...between, [label]: event.target.value }))}>
      ${["", ...names].map((name) => html`<option value=${name}>${name || "choose"}</option>`)}
    </select></label>`;
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);
  const make = async () => {
    try {
      for await (const some of lines("/migration/plan", { query: between, signal: stop.current.signal })) setPlan({ ...some.at(-1), between });
    } catch (error) {
      setPlan({ error, between });
    }
  };
  return html`<${Section} title="Migration" about="Sessions move between two turns; the streams of frontends stay open." error=${plan.error}>
    <div class="row">${choice("from")}${choice("to")}<button disabled=${!pair || plan.read} onClick=${make}>Plan</button></div>
    <div role="status">${plan.between === between && (plan.plan ? html`<${Plan} ...${plan} />` : plan.read && `${plan.read} sessions read…`)}</div>
    ${pair && html`<${Moves} key=${`${from} ${to}`} ...${between} />`}
    <${Shadows} />
  <//>`;
}
