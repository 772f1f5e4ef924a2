/** What `/metrics` counts, polled while somebody looks, and how it changed in the last minutes. */
import { headers } from "../api.js";
import { signal } from "../html.js";
import { usePoll } from "./section.js";

/** How far back plots go, in ms. */
export const WINDOW = 180_000;

const SHOWN = /^(dragoman_(?:backend_|messages_|events_|loop_|turn_first_event_seconds_[sc])\w*)(?:\{(.*)\})? (\S+)/gm;

/** The polls, oldest first: `{at, series}`. */
const polls = signal([]);

/** Why the last poll failed, or "". */
export const unread = signal("");

async function poll(stop) {
  const response = await fetch("/metrics", { headers: headers(), cache: "no-store", signal: stop });
  if (!response.ok) throw new Error(`/metrics is answered with ${response.status}.`);
  // Labels are names and codes: nothing in them is escaped.
  const series = [...(await response.text()).matchAll(SHOWN)].map(([, name, labels = "", value]) => ({
    ...Object.fromEntries([...labels.matchAll(/(\w+)="([^"]*)"/g)].map((pair) => pair.slice(1))),
    name,
    value: Number(value),
  }));
  const at = Date.now();
  polls.value = [...polls.value.filter((one) => at - one.at < WINDOW), { at, series }];
}

/** Poll while the component that calls it is shown. */
export const useMetrics = () =>
  usePoll((stop) => poll(stop).then(() => (unread.value = ""), (error) => stop.aborted || (unread.value = error.message)), 2000, []);

/** The series of the newest poll: `{name, value, …labels}`. */
export const series = (name, [label, is] = [], of = polls.value.at(-1)) => of?.series.filter((one) => one.name === name && one[label] === is) ?? [];

/** The sum of some series at each poll: `{at, value}`. */
export const values = (name, label) => polls.value.map((of) => ({ at: of.at, value: series(name, label, of).reduce((all, one) => all + one.value, 0) }));

/** How much a counter grew between polls; a server that began anew counts from 0. */
const growth = (name, label) =>
  values(name, label)
    .map(({ at, value }, here, all) => ({ at, ms: at - all[here - 1]?.at, value: value - (value < all[here - 1]?.value ? 0 : all[here - 1]?.value) }))
    .slice(1);

/** A counter's growth per second. */
export const rates = (name, label) => growth(name, label).map((one) => ({ ...one, value: (one.value * 1000) / one.ms }));

/** The means of what a histogram took between polls; null where it took nothing. */
export function means(name, label) {
  const took = growth(`${name}_count`, label);
  return growth(`${name}_sum`, label).map(({ at, value }, here) => ({ at, value: took[here].value ? value / took[here].value : null }));
}
