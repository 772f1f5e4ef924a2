/** Recorded traffic: a HAR, a cassette, a capture or a log, read by the server and kept nowhere. */
import { ask, get, save } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Columns } from "../parts/columns.js";
import { bytes, count, indented, Words } from "../parts/text.js";
import { split } from "./session.js";

const PIECE = 5000;

const post = async (path, file, query) => (await ask(path, { method: "POST", body: file, query })).json();

/** Yield the pages of what a path makes of a file; `next` gives where the next one begins, or null. */
async function* pages(path, file, from, next) {
  for (let after = 0; after !== null; ) {
    const page = await post(path, file, { from, name: file.name, after, limit: PIECE });
    yield page;
    after = next(page);
  }
}

/** Read a file; gives a source of `LogWindow`, and what the server says of the file. */
async function open(file, from) {
  const entries = [];
  const frames = [];
  let about;
  for await (const page of pages("/captures/read", file, from, (one) => (one.more ? one.entries.at(-1).seq : null))) {
    about ??= page;
    entries.push(...page.entries.map(split));
    frames.push(...page.frames);
  }
  const within = (after, limit) => (seq) => seq > after && seq <= after + limit;
  const shown = new Map();
  const shownAs = (dialect) => {
    if (!shown.has(dialect))
      shown.set(
        dialect,
        (async () => {
          const found = [];
          for await (const page of pages(`/captures/as/${dialect}`, file, from, (one) => one.next)) found.push(...page.frames);
          return found;
        })(),
      );
    return shown.get(dialect);
  };
  return {
    file,
    from,
    about,
    last: entries.at(-1)?.seq ?? 0,
    entries: async (after, limit) => entries.filter((one) => within(after, limit)(one.seq)),
    raw: async (after, limit) => ({ frames: frames.filter((one) => one.seqs.some(within(after, limit))), next: null }),
    shown: async (dialect, after, limit) => ({
      frames: (await shownAs(dialect)).filter((one) => within(after, limit)(one.seq)),
      next: null,
    }),
  };
}

function Drop({ label, take, dialects }) {
  const [over, setOver] = useState(false);
  const from = useRef();
  const input = useRef();
  const given = (files) => files[0] && take(files[0], from.current.value);
  return html`<section
    class=${`card stack drop ${over ? "over" : ""}`}
    aria-label=${label}
    onDragOver=${(event) => (event.preventDefault(), setOver(true))}
    onDragLeave=${() => setOver(false)}
    onDrop=${(event) => (event.preventDefault(), setOver(false), given(event.dataTransfer.files))}
  >
    <h2>${label}</h2>
    <p class="muted small">Drop a HAR, a cassette, a capture, a canonical log or a recorded body here, or choose it.</p>
    <div class="row">
      <input ref=${input} type="file" aria-label=${`${label}: file`} onChange=${(event) => given(event.target.files)} />
      <label class="row"
        >Dialect
        <select ref=${from} onChange=${() => given(input.current.files)}>
          <option value="">as the file says</option>
          ${dialects.map((one) => html`<option>${one.name}</option>`)}
        </select></label
      >
    </div>
  </section>`;
}

function Opened({ name, opened, close }) {
  const { about, file } = opened;
  return html`<section class="card stack" aria-label=${name}>
    <div class="row">
      <h2 class="grow">${file.name}</h2>
      <button onClick=${close}>Close</button>
    </div>
    <p class="muted small">${about.form}${about.dialect ? ` of ${about.dialect}` : ""} · ${bytes(file.size)} · ${opened.last} events</p>
    ${about.notes.length > 0 &&
    html`<ul class="mapping small">
      ${about.notes.map((note) => html`<li><${Words} text=${note} /></li>`)}
    </ul>`}
  </section>`;
}

function Difference({ a, b, jump }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    let left = false;
    setFound(null);
    Promise.all([a.file.text(), b.file.text()])
      .then((texts) =>
        get("/captures/diff", {
          method: "POST",
          json: {
            ...{ a: texts[0], name_a: a.file.name, from_a: a.from || null },
            ...{ b: texts[1], name_b: b.file.name, from_b: b.from || null },
          },
        }),
      )
      .then((value) => {
        if (!left) setFound(value);
      })
      .catch((error) => left || setFound({ failed: error.message }));
    return () => (left = true);
  }, [a, b]);
  const first = found?.first?.seq_a;
  useEffect(() => first && jump(first), [found]);
  if (!found) return html`<p class="muted">Comparing…</p>`;
  if (found.failed) return html`<p role="alert" class="error">${found.failed}</p>`;
  const { differences } = found;
  return html`<section class="card stack" aria-label="Differences">
    <h2>${found.equal ? "The two say the same" : `${count(found.count)} difference${found.count > 1 ? "s" : ""}`}</h2>
    ${first && html`<p><button onClick=${() => jump(first)}>Look at the first, event ${first}</button></p>`}
    ${differences.length > 0 &&
    html`<div class="scroll differences" tabindex="0" role="region" aria-label="What differs, side by side">
      <table>
        <thead>
          <tr>
            <th>where</th>
            <th>A</th>
            <th>B</th>
          </tr>
        </thead>
        <tbody>
          ${differences.slice(0, 200).map(
            (one) =>
              html`<tr>
                <td><code>${one.path}</code></td>
                <td><${Side} of=${one.a} /></td>
                <td><${Side} of=${one.b} /></td>
              </tr>`,
          )}
        </tbody>
      </table>
    </div>`}
  </section>`;
}

const Side = ({ of }) =>
  html`<span class="small muted">${of.place}</span>
    <pre>${"value" in of ? indented(JSON.stringify(of.value)) : "–"}</pre>`;

export default function Captures() {
  const [dialects, setDialects] = useState([]);
  const [dialect, choose] = useState("");
  const [two, setTwo] = useState([null, null]);
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState("");
  const [selected, select] = useState(0);
  useEffect(() => {
    get("/dialects").then(
      (known) => {
        setDialects(known.dialects);
        choose(known.dialects.find((one) => one.frontends)?.name);
      },
      (error) => setFailed(error.message),
    );
  }, []);
  const put = (at, value) => setTwo((before) => before.map((one, index) => (index === at ? value : one)));
  const take = (at) => async (file, from) => {
    setFailed("");
    setBusy(`Reading ${file.name}…`);
    try {
      const opened = await open(file, from);
      if (!at) select(0);
      put(at, opened);
    } catch (error) {
      setFailed(`${file.name}: ${error.message}`);
    }
    setBusy("");
  };
  const pytest = async () => {
    try {
      const answer = await ask("/captures/pytest", { method: "POST", body: a.file, query: { from: a.from, name: a.file.name } });
      save(await answer.blob(), "regression-test.zip");
    } catch (error) {
      setFailed(error.message);
    }
  };
  const [a, b] = two;
  const jump = (seq) => {
    select(seq);
    document.querySelector(".lines").scrollIntoView({ block: "nearest" });
  };
  const card = (at, label) =>
    two[at]
      ? html`<${Opened} name=${label} opened=${two[at]} close=${() => put(at, null)} />`
      : html`<${Drop} label=${label} take=${take(at)} dialects=${dialects} />`;
  return html`
    <h1>Captures</h1>
    <div class="columns">${card(0, "Capture")} ${a && card(1, "Compare with")}</div>
    <p role="status">${busy}</p>
    ${failed && html`<p role="alert" class="error"><${Words} text=${failed} /></p>`}
    ${a && b && html`<${Difference} a=${a} b=${b} jump=${jump} />`}
    ${a &&
    html`<${Columns}
      key=${a.file.name}
      source=${a}
      dialects=${dialects.filter((one) => one.frontends).map((one) => one.name)}
      dialect=${dialect}
      choose=${choose}
      selected=${selected}
      select=${select}
      repairs=${a.about.repairs}
      tools=${html`<button onClick=${pytest}>Download as pytest</button>`}
    />`}
  `;
}
