/** What the mapping tables of the dialects say of an event, and how faithfully it crosses. */
import { get } from "../api.js";
import { html, signal, useEffect } from "../html.js";
import { Words } from "./text.js";

const tables = signal({});

/** The tables of a dialect, null until they are here. */
export function useMapping(dialect) {
  useEffect(() => {
    if (!dialect || dialect in tables.value) return;
    tables.value = { ...tables.value, [dialect]: null };
    get(`/dialects/${dialect}`).then(
      (found) => (tables.value = { ...tables.value, [dialect]: found }),
      () => {
        const { [dialect]: _, ...others } = tables.value;
        tables.value = others;
      },
    );
  }, [dialect]);
  return tables.value[dialect] ?? null;
}

const of = (rows, column, name) => {
  const own = rows?.filter((row) => row[column] === name) ?? [];
  return [own, rows?.filter((row) => row[column].startsWith(`${name}.`)) ?? []];
};

/** How faithfully, as a pill. */
export const Fidelity = ({ is }) => {
  const tone = { exact: "ok", approximated: "warn", synthesized: "warn", dropped: "bad" }[is];
  return is && is !== "-" ? html`<span class=${`pill ${tone ?? ""}`}>${is}</span>` : null;
};

const qualified = (row, name) => (row.qualifier ? `${name} (${row.qualifier})` : name);

function Rows({ own, fields, name, fidelity, becomes }) {
  if (!own.length && !fields.length) return null;
  const line = (row) =>
    html`<li>
      <code>${qualified(row, row[name])}</code> <${Fidelity} is=${row[fidelity]} />
      <span class="small"> <${Words} text=${`${becomes(row)}${row.why ? `: ${row.why}` : ""}`} /></span>
    </li>`;
  return html`<ul class="mapping">
      ${own.map(line)}
    </ul>
    ${fields.length > 0 &&
    html`<details>
      <summary>${fields.length} fields</summary>
      <ul class="mapping">
        ${fields.map(line)}
      </ul>
    </details>`}`;
}

/** How a native event of a backend's dialect is read. */
export function ReadAs({ dialect, native }) {
  const [own, fields] = of(useMapping(dialect)?.events, "native", native);
  return html`<${Rows} own=${own} fields=${fields} name="native" fidelity="fidelity_in" becomes=${(row) => row.canonical.join(" + ")} />`;
}

/** How a canonical event is shown to frontends of a dialect. */
export function ShownAs({ dialect, type }) {
  const [own, fields] = of(useMapping(dialect)?.canonical, "canonical", type);
  return html`<${Rows} own=${own} fields=${fields} name="canonical" fidelity="fidelity" becomes=${(row) => row.shown_as} />`;
}
