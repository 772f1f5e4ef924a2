/** Where the new sessions of each route go, and the form that changes it. */
import { get } from "../api.js";
import { html, useState } from "../html.js";
import { Bar, Light } from "./plot.js";
import { Refusal, Section, useFetch } from "./section.js";

function Route({ route: { name, source, shadow, backends }, names, changed }) {
  const [open, setOpen] = useState(false);
  const [said, setSaid] = useState({});
  const all = backends.reduce((sum, one) => sum + one.weight, 0);
  const send = (options) =>
    get(`/routes/${encodeURIComponent(name)}`, options).then((now) => (setSaid(now), setOpen(false), changed()), (error) => setSaid({ error }));
  const save = (event) => {
    event.preventDefault();
    const given = [...new FormData(event.target)].filter(([, weight]) => weight);
    send({ method: "PUT", json: { backends: given.map(([one, weight]) => ({ name: one, weight: Number(weight) })) } });
  };
  return html`<article class="route stack" aria-label=${`Route ${name}`}>
    <div class="row">
      <h3>${name}</h3>
      <span class=${`pill ${source === "set" ? "busy" : ""}`}>${source}</span>
      ${shadow && html`<${Light} tone=${shadow.running ? "ok" : "bad"}>shadow ${shadow.backend} ${shadow.running ? "runs" : `does not run: ${shadow.why}`}<//>`}
      <span class="grow"></span>
      ${source === "set" && html`<button onClick=${() => send({ method: "DELETE" })}>Reset</button>`}
      <button aria-expanded=${open} onClick=${() => setOpen(!open)}>Change</button>
    </div>
    <ul class="plain shares">
      ${backends.map(
        ({ backend, weight }) =>
          html`<li><span>${backend}</span><${Bar} parts=${[["busy", weight]]} of=${all} /><span>${Math.round((100 * weight) / (all || 1))} % <span class="muted small">weight ${weight}</span></span></li>`,
      )}
    </ul>
    ${open &&
    html`<form class="row" onSubmit=${save}>
      ${names.map((one) => html`<label>${one} <input name=${one} type="number" min="0" defaultValue=${backends.find((share) => share.backend === one)?.weight} /></label>`)}
      <button class="primary">Set weights</button>
      <p class="muted small">Of new sessions. 0 gives a backend none; an empty field takes it off the route.</p>
    </form>`}
    <div role="status">${said.notices?.map((notice) => html`<p>${notice}</p>`)}<${Refusal} error=${said.error} /></div>
  </article>`;
}

/** All routes; `names` are those of the backends. */
export function Routes({ names }) {
  const { value, error, again } = useFetch("/routes", 10_000);
  const own = (one) => names.includes(one.name) && one.source !== "set" && !one.shadow;
  const show = (which) => value?.routes.filter(which).map((one) => html`<${Route} key=${one.name} route=${one} names=${names} changed=${again} />`);
  return html`<${Section} title="Routes" about="Where new sessions begin." error=${error}>
    ${show((one) => !own(one))}
    ${value && html`<details><summary>Backends under their own names</summary>${show(own)}</details>`}
  <//>`;
}
