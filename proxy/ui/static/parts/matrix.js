/** The fidelity matrix: what of each backend's sessions reaches each frontend, and what each can be asked. */
import { html } from "../html.js";
import { Bar, Light } from "./plot.js";
import { Section, Table, useFetch } from "./section.js";

const KINDS = Object.entries({ exact: "ok", approximated: "warn", synthesized: "busy", dropped: "bad" });

/** How a backend carries a command. */
export const Support = ({ support, how }) =>
  html`<span class=${`pill ${{ native: "ok", emulated: "warn", impossible: "bad" }[support]}`}>${support}</span> <span class="muted small">${how}</span>`;

function Pair(pair) {
  const of = KINDS.reduce((all, [kind]) => all + pair[kind], 0);
  const share = (kind) => `${pair[kind] < of ? Number(((100 * pair[kind]) / of).toPrecision(2)) : 100} % ${kind}`;
  return html`<div class="pair"><b>${share("exact")}</b><${Bar} parts=${KINDS.map(([kind, tone]) => [tone, pair[kind]])} of=${of} />
    ${KINDS.slice(1).map(([kind]) => html`<div class="muted small">${share(kind)}</div>`)}</div>`;
}

/** Rows as a table, with one line for each `down` and a column for each `across`. */
function Cross({ label, rows, down, across, cell: Cell }) {
  const names = (which) => [...new Set(rows.map((row) => row[which]))];
  const at = (head) => (name) => html`<${Cell} ...${rows.find((row) => row[down] === head && row[across] === name)} />`;
  return html`<${Table} label=${label} heads=${[down, ...names(across)]} rows=${names(down).map((head) => [head, ...names(across).map(at(head))])} />`;
}

/** Both tables. */
export function Matrix() {
  const { value, error } = useFetch("/fidelity");
  return html`<${Section} title="Fidelity" about="How the fields of a backend's recorded sessions reach each frontend." error=${error} busy=${!value && !error}>
    ${value &&
    html`<div class="row small">${KINDS.map(([kind, tone]) => html`<${Light} tone=${tone}>${kind}<//>`)}</div>
      <${Cross} label="Fidelity of pairs" rows=${value.pairs} down="backend" across="frontend" cell=${Pair} />
      <details><summary>What each backend can be asked</summary><${Cross} label="Commands" rows=${value.commands} down="command" across="backend" cell=${Support} /></details>`}
  <//>`;
}
