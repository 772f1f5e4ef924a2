/** Small pictures with their words: a line over time, a bar in parts, a light. */
import { html } from "../html.js";
import { WINDOW } from "./metrics.js";

const digits = (value) => (value < 100 ? Number(value.toPrecision(2)) : Math.round(value ?? 0));

/** A line of the last minutes; `points` are `{at, value}`, null where nothing was measured. */
export function Plot({ title, unit, points, note = "", factor = 1, warn = Infinity }) {
  const known = points.filter((one) => one.value !== null).map((one) => one.value * factor);
  const most = Math.max(...known, 0);
  let path = "";
  let drawn = false;
  for (const { at, value } of points) {
    const place = `${300 * (1 - (Date.now() - at) / WINDOW)} ${42 - (40 * value * factor) / (most || 1)}`;
    // A point alone is a line of no length, whose round ends are seen.
    if (value !== null) path += drawn ? `L${place}` : `M${place}h0`;
    drawn = value !== null;
  }
  const now = known.length ? `${digits(known.at(-1))} ${unit}` : "–";
  const range = `${note}max ${digits(most)}`;
  return html`<figure class="plot small">
    <figcaption class="row"><span class="grow">${title}</span><b class=${known.at(-1) > warn && "error"}>${now}</b></figcaption>
    <svg viewBox="0 0 300 44" preserveAspectRatio="none" role="img" aria-label=${`${title}: ${now}; in 3 minutes ${range}`}><path d="M0 43H300" class="base" /><path d=${path} /></svg>
    <span class="muted" aria-hidden="true">${range}</span>
  </figure>`;
}

/** A bar of parts `[tone, number]`; the words stand beside it. */
export const Bar = ({ parts, of }) =>
  html`<div class="bar" aria-hidden="true">${parts.map(([tone, value]) => html`<span class=${tone} style=${{ width: `${(100 * value) / of}%` }}></span>`)}</div>`;

/** A light with its words. */
export const Light = ({ tone = "", children }) => html`<span class=${`light ${tone}`}><span>${children}</span></span>`;
