/** The shell: header, navigation, the form for the key, and the view that the address names. */
import { key, reachable, refused } from "./api.js";
import { effect, html, render, signal, useEffect, useRef, useState } from "./html.js";

const VIEWS = [
  ["talk", "Talk", "A chat in one dialect, seen in another"],
  ["sessions", "Sessions", "All sessions, and what each waits for"],
  ["desk", "Desk", "What waits for people"],
  ["captures", "Captures", "Recorded traffic, offline"],
  ["backends", "Backends", "Health, routes and migration"],
];

/** Where the page is: `{view, name, query}`; `name` is what stands behind the view. */
export const place = signal(read());

function read() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  const name = rest.map(decodeURIComponent).join("/");
  return { view: view || "talk", name, query: new URLSearchParams(search) };
}

/** Put what a view keeps of itself into the address, unless that names another place already. */
export function mark(hash) {
  const { view, name } = read();
  if (view === place.value.view && name === place.value.name) history.replaceState(null, "", hash);
}

addEventListener("hashchange", () => (place.value = read()));

/** The module of a view: sessions have one for all and one for each. */
const moduleOf = ({ view, name }) =>
  view === "sessions" && name ? "session" : VIEWS.some(([one]) => one === view) ? view : null;

function View({ module, ...at }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    setFound(null);
    if (!module) return;
    let left = false;
    import(`./views/${module}.js`).then(
      (loaded) => left || setFound({ view: loaded.default }),
      (error) => left || setFound({ error }),
    );
    return () => (left = true);
  }, [module]);
  if (!module)
    return html`<h1>There is no view ${at.view}</h1>
      <p>Choose one above.</p>`;
  if (found?.error) return html`<p role="alert">This view could not be loaded: ${String(found.error)}</p>`;
  return found ? html`<${found.view} ...${at} key=${`${at.name}?${at.query}`} />` : html`<p class="muted">Loading…</p>`;
}

function KeyForm({ done }) {
  const input = useRef();
  useEffect(() => input.current.focus(), []);
  const take = (event) => {
    event.preventDefault();
    key.value = input.current.value.trim();
    refused.value = "";
    done();
  };
  return html`<form class="card key" onSubmit=${take}>
    <label for="key">Key</label>
    <input id="key" ref=${input} type="password" autocomplete="off" spellcheck="false" defaultValue=${key.value} />
    <button class="primary">Use this key</button>
    <p class="muted" role="status">
      ${refused.value || "It is kept in this page's memory alone, until it is closed or loaded again."}
    </p>
  </form>`;
}

function App() {
  const at = place.value;
  const [asked, setAsked] = useState(false);
  const main = useRef();
  const first = useRef(true);
  useEffect(() => {
    const view = VIEWS.find(([name]) => name === at.view);
    document.title = `${at.name || view?.[1] || "Dragoman"} – Dragoman`;
    if (!first.current) main.current.focus({ preventScroll: true });
    first.current = false;
  }, [at.view, at.name]);
  const wanted = asked || Boolean(refused.value);
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}
      >Skip to content</a
    >
    <header>
      <a class="brand" href="#/talk"><img src="icon.svg" alt="" width="26" height="26" /> Dragoman</a>
      <nav aria-label="Views">
        ${VIEWS.map(
          ([name, title, about]) =>
            html`<a
              href=${`#/${name}`}
              title=${about}
              aria-current=${at.view === name ? (at.name ? "true" : "page") : null}
              >${title}</a
            >`,
        )}
      </nav>
      <span role="status" class="reach">
        ${reachable.value ? "" : html`<span class="pill bad">server not reachable</span>`}
      </span>
      <button class="quiet" aria-expanded=${wanted} onClick=${() => setAsked(!wanted)}>Key</button>
    </header>
    ${wanted && html`<${KeyForm} done=${() => setAsked(false)} />`}
    <main id="main" ref=${main} tabindex="-1">
      <${View} module=${moduleOf(at)} key=${`${moduleOf(at)} ${key.value}`} ...${at} />
    </main>
  `;
}

render(html`<${App} />`, document.body);
