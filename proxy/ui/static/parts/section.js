/** Parts of views that show what the API answers, or why it does not. */
import { get } from "../api.js";
import { html, useEffect, useState } from "../html.js";

/** Call `look(signal)` now, and every `every` ms while the tab is visible. */
export function usePoll(look, every, deps) {
  useEffect(() => {
    const stop = new AbortController();
    look(stop.signal);
    const timer = every && setInterval(() => document.hidden || look(stop.signal), every);
    return () => (stop.abort(), clearInterval(timer));
  }, [every, ...deps]);
}

/** Poll a path, until it is forbidden: `{value, error, again}`. */
export function useFetch(path, every) {
  const [found, setFound] = useState({});
  const [turn, setTurn] = useState(0);
  const look = (signal) => path && get(path, { signal }).then((value) => setFound({ value }), (error) => signal.aborted || setFound((old) => ({ ...old, error })));
  usePoll(look, found.error?.status !== 403 && every, [path, turn]);
  return { ...found, again: () => setTurn((one) => one + 1) };
}

/** Why something was refused; what only administrators may see is no alarm. */
export const Refusal = ({ error }) =>
  error && (error.status === 403 ? html`<p class="muted">Only an administrator's key may see this.</p>` : html`<p class="error" role="alert">${error.message}</p>`);

/** A section with its heading. */
export const Section = ({ title, about, error, busy, children }) =>
  html`<section class="card stack" aria-label=${title} aria-busy=${busy}><div><h2>${title}</h2><p class="muted small">${about}</p></div><${Refusal} error=${error} />${children}</section>`;

/** A table in a box that scrolls; a row's first cell is its head. */
export const Table = ({ label, heads, rows }) =>
  html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
    <tbody>${rows.map(([head, ...cells]) => html`<tr><th scope="row">${head}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;

/** Sum numbers by name; 0 is left out. */
export function tally(pairs) {
  const found = {};
  for (const [name, number] of pairs) if (number) found[name] = (found[name] ?? 0) + number;
  return found;
}

/** A tally in words: "3 timeout, 1 dns". */
export const counts = (found) => Object.entries(found).map(([name, number]) => `${number} ${name.replaceAll("_", " ")}`).join(", ");
