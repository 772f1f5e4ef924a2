/** Backends: whether each does its work, where new sessions go, what moves, and what crosses. */
import { get } from "../api.js";
import { html, useState } from "../html.js";
import { Matrix, Support } from "../parts/matrix.js";
import { means, rates, series, unread, useMetrics, values } from "../parts/metrics.js";
import { Migration } from "../parts/migration.js";
import { Light, Plot } from "../parts/plot.js";
import { Routes } from "../parts/routes.js";
import { counts, Refusal, tally, useFetch } from "../parts/section.js";

const TONES = { completed: "ok", failed: "bad", refused: "bad", unknown: "warn", ok: "ok" };

const by = (label, some) => tally(some.map((one) => [one[label], one.value ?? 1]));

function Backend({ backend: { name, dialect, url, up, why, abilities } }) {
  const [found, setFound] = useState({});
  const check = async () => {
    setFound({ busy: true });
    setFound(await get(`/backends/${encodeURIComponent(name)}/check`).catch((error) => ({ error })));
  };
  const own = ["backend", name];
  const messages = series("dragoman_messages_total", own);
  const reasons = counts(by("code", messages.filter((one) => one.outcome !== "completed")));
  const troubles = counts(by("kind", series("dragoman_backend_troubles_total", own)));
  return html`<article class="card stack" aria-label=${`Backend ${name}`}>
    <div class="row">
      <h2>${name}</h2>
      ${dialect !== name && html`<span class="pill">${dialect}</span>`}
      <span class="grow"></span>
      <button disabled=${found.busy} onClick=${check} aria-label=${`Check ${name}`}>${found.busy ? "Checking…" : "Check"}</button>
    </div>
    <${Light} tone=${{ true: "ok", false: "bad" }[up]}>${up ? "up" : up === null ? "not asked yet" : `failing: ${why?.replaceAll("_", " ") ?? "it does not answer"}`}<//>
    <code class="muted cell">${url}</code>
    <div role="status">
      <${Refusal} error=${found.error} />
      <ul class="plain small">
        ${["reachable", "credential", "dialect", "streaming"].map((what) => {
          const one = found[what];
          return one && html`<li><${Light} tone=${TONES[one.state]}><b>${what}</b> ${one.state.replace("_", " ")}${one.text && `: ${one.text}`}<//></li>`;
        })}
      </ul>
    </div>
    <div class="plots">
      <${Plot} title="Requests" unit="/s" points=${rates("dragoman_backend_requests_total", own)} />
      <${Plot} title="First output" unit="ms" factor=${1000} note=${`all ${dialect}, `} points=${means("dragoman_turn_first_event_seconds", ["dialect", dialect])} />
    </div>
    <div class="row">
      ${Object.entries(by("outcome", messages)).map(([outcome, number]) => html`<span class=${`pill ${TONES[outcome]}`}>${number} ${outcome}</span>`)}
      <span class="small muted">${reasons} ${troubles && `Troubles: ${troubles}`}</span>
    </div>
    <details>
      <summary>Abilities: ${counts(by("support", Object.values(abilities)))}</summary>
      <ul class="plain">${Object.entries(abilities).map(([command, one]) => html`<li><code>${command}</code> <${Support} ...${one} /></li>`)}</ul>
    </details>
  </article>`;
}

export default function Backends({ query }) {
  useMetrics();
  const { value, error } = useFetch("/backends", 2000);
  const names = value?.backends.map((one) => one.name);
  return html`<div class="row"><h1 class="grow">Backends</h1><span class="small muted">Plots show 3 minutes.</span></div>
    <section class="card plots" aria-label="This server">
      <${Plot} title="Events stored" unit="/s" points=${rates("dragoman_events_stored_total")} />
      <${Plot} title="Loop lag" unit="ms" factor=${1000} warn=${100} points=${values("dragoman_loop_lag_seconds")} />
      ${unread.value && html`<p class="error" role="alert">${unread.value}</p>`}
    </section>
    <${Refusal} error=${error} />
    ${value &&
    html`<div class="columns">${value.backends.map((one) => html`<${Backend} key=${one.name} backend=${one} />`)}</div>
      <${Routes} names=${names} /><${Migration} names=${names} query=${query} />`}
    <${Matrix} />`;
}
