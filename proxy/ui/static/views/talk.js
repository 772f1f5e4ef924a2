/** Talk: a chat in one dialect over any backend, and beside it the same session in another. */
import { ask, get, headers, lines } from "../api.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Frontend } from "../parts/frontend.js";
import { count, Frame, indented, typeOf, Words } from "../parts/text.js";

const SCRIPTS = [
  ["text", "Answer", "script: text"],
  ["tool", "Use a tool", "script: tool"],
  ["approve", "Ask me for a yes", "script: approve"],
  ["ask", "Ask me a question", "script: ask"],
  ["slow", "Take your time", "script: slow"],
  ["fail", "Fail", "script: fail"],
].map(([name, title, text]) => ({ name, title, text }));

const PILLS = { running: "busy", waiting: "warn", failed: "bad", idle: "ok" };
const STATES = { running: "works", waiting: "waits for you", failed: "failed", idle: "ready" };

/** The module of a dialect. */
const load = async (name) => (await import(`../dialects/${name}.js`)).default;

/** The address of a dialect's face over a route. */
const face = (dialect, route) => `/as/${dialect}/to/${encodeURIComponent(route)}`;

/** The public id of the session that a client calls by a name of its own. */
async function publicId(name) {
  if (name.startsWith("dgs_")) return name;
  return (await get("/sessions", { query: { name } })).sessions[0]?.id;
}

/** Who gave the answers of a session: `{face, by}` as the log has it, by each name of what was answered:
 * the id of the request, that of its call, and the seq of either. */
async function answerers(id) {
  const found = {};
  const names = {};
  const { last_seq } = await get(`/sessions/${id}`);
  const query = { after: Math.max(0, last_seq - 1000) };
  for await (const some of lines(`/sessions/${id}/events`, { query }))
    for (const { type, kind, seq, call_id, request_id, face, by } of some) {
      if (type === "tool.called") names[call_id] = seq;
      else if (type === "interaction.requested") names[request_id] = [request_id, seq, call_id, names[call_id]];
      else if (type === "input.accepted" && kind === "answer")
        for (const name of names[request_id] ?? [request_id]) found[name] = { face, by };
    }
  return found;
}

const given = (who, { request, seq }) => who[request] ?? who[seq];

const Choice = ({ label, value, options, change }) =>
  html`<label class="stack small"
    ><span class="muted">${label}</span>
    <select value=${value} onChange=${(event) => change(event.target.value)}>
      ${options.map((one) => html`<option key=${one.name} value=${one.name}>${one.title ?? one.name}</option>`)}
    </select></label
  >`;

/** What is asked, with its buttons, or who answered it. */
function Ask({ client, item, other }) {
  const [text, setText] = useState("");
  const { ask } = item;
  if (ask.answered) {
    const { how, by } = ask.answered;
    const from = by === "here" ? "in this pane" : other ? `through ${other.face}, by ${other.by}` : "elsewhere";
    return html`<p class="asked"><b><${Words} text=${item.text} /></b> <span class="muted">Answered ${from}: ${how}</span></p>`;
  }
  const answer = (option) => client.answer(ask, { option, text: text.trim() });
  const wordy = ask.freeform || ask.reason;
  return html`<form class="asked stack" onSubmit=${(event) => (event.preventDefault(), ask.freeform && text.trim() && answer(null))}>
    <b><${Words} text=${item.text} /></b>
    ${wordy &&
    html`<input
      aria-label=${ask.freeform ? "Answer" : "Reason"}
      placeholder=${ask.freeform ? "Answer" : "Reason, if you deny"}
      value=${text}
      onInput=${(event) => setText(event.target.value)}
    />`}
    <div class="row">
      ${ask.options.map(
        (option, at) =>
          html`<button
            type="button"
            key=${option.id}
            disabled=${Boolean(ask.sent)}
            class=${{ allow: at ? "" : "primary", deny: "danger" }[option.kind] ?? ""}
            onClick=${() => answer(option)}
          >${option.label}</button>`,
      )}
      ${ask.freeform && html`<button class="primary" disabled=${Boolean(ask.sent) || !text.trim()}>Answer</button>`}
      ${ask.sent && html`<span class="muted" role="status">${ask.sent}</span>`}
    </div>
  </form>`;
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function Tool({ item }) {
  return html`<details class="tool">
    <summary><span class="mono">${item.name ?? "tool"}</span> <span class="muted">${item.status}</span></summary>
    ${item.input !== undefined && html`<pre>${indented(item.input)}</pre>`}
    ${item.output !== undefined && html`<pre>${indented(shown(item.output))}</pre>`}
  </details>`;
}

/** An item; `rev` tells a component that it changed. */
function Item({ client, item, rev, other }) {
  if (item.ask) return html`<${Ask} client=${client} item=${item} rev=${rev} other=${other} />`;
  if (item.kind === "tool") return html`<${Tool} item=${item} rev=${rev} />`;
  if (item.kind === "reasoning") return html`<details class="muted"><summary>Reasoning</summary><pre>${item.text}</pre></details>`;
  if (item.kind === "notice")
    return html`<p class=${`small ${["failed", "refused"].includes(item.status) ? "error" : "muted"}`}>${item.text}</p>`;
  return html`<div class=${`said ${item.kind}`}><span class="hidden">${item.kind === "user" ? "You" : "Agent"}: </span>${item.text.trim()}</div>`;
}

/** The newest frames of a client, folded. */
function Frames({ client, number }) {
  const [open, setOpen] = useState(false);
  const first = client.frames - client.raw.length;
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary class="small">${count(number)} frames, ${count(client.bytes)} bytes, ${count(client.cuts)} cuts</summary>
    ${open &&
    html`<ol class="frames" reversed start=${number}>
      ${client.raw.map(
        (frame, at) =>
          html`<li key=${first + at}><details><summary class="mono">${typeOf(frame.text)}</summary><${Frame} text=${frame.text} /></details></li>`,
      ).reverse()}
    </ol>`}
  </details>`;
}

const said = (client) => client.items.filter((one) => one.kind === "agent").map((one) => one.text).join("");

/** What a fresh read shows, in words; `other` is the client beside. */
function verdict({ bytes, frames, lost, doubled, other: changed }, { dialect, ...client }, other) {
  if (dialect.newest && !frames) {
    const same = !other || said(client) === said(other) ? "the same words as beside" : "other words than beside";
    return `${dialect.title} gives a finished answer once: ${count(client.bytes)} bytes, ${same}, ${doubled} doubled`;
  }
  const equal = lost || doubled || changed ? "different" : "equal";
  return `${equal}: ${count(bytes)} bytes, ${lost} lost, ${doubled} doubled${changed ? `, ${changed} changed` : ""}`;
}

function Pane({ client, title, who, checked, tick }) {
  const chat = useRef();
  const pinned = useRef(true);
  useEffect(() => {
    if (pinned.current && chat.current) chat.current.scrollTop = chat.current.scrollHeight;
  });
  const scrolled = ({ target }) => (pinned.current = target.scrollHeight - target.scrollTop - target.clientHeight < 40);
  return html`<section class="card stack pane" aria-label=${`${title} frontend`}>
    <div class="row">
      <h2 class="grow">${title}</h2>
      <span role="status" class=${`pill ${PILLS[client?.state ?? "idle"]}`}>${STATES[client?.state ?? "idle"]}</span>
    </div>
    <div class="chat" ref=${chat} onScroll=${scrolled} role="log" aria-live="polite" aria-label=${`Chat in ${title}`} tabindex="0">
      ${!client?.items.length && html`<p class="muted">${client?.joined && client.dialect.newest ? `A page of ${title} keeps what was said itself, and this one keeps nothing: what is said from now on comes here.` : "Nothing was said yet."}</p>`}
      ${client?.items.map(
        (item) => html`<${Item} key=${item.id} client=${client} item=${item} rev=${item.rev} other=${item.ask && given(who, item.ask)} />`,
      )}
    </div>
    ${checked && html`<p class="small" role="status">${checked}</p>`}
    ${client && html`<${Frames} client=${client} number=${client.frames} />`}
  </section>`;
}

/** The view. The address may name what is chosen: `?as=…&to=…&beside=…&session=…`. */
export default function Talk({ query }) {
  const [setup, setSetup] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [clients, setClients] = useState([null, null]);
  const [session, setSession] = useState("");
  const [who, setWho] = useState({});
  const [checks, setChecks] = useState([]);
  const [broken, setBroken] = useState("");
  const [failed, setFailed] = useState("");
  const [words, setWords] = useState("");
  const [tick, redraw] = useState(0);
  const now = useRef({ clients: [null, null], due: false });

  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      const [{ dialects }, { backends, demo: isDemo }] = await Promise.all([
        get("/dialects", { signal: stop.signal }),
        get("/backends", { signal: stop.signal }),
      ]);
      const demo = isDemo ? await get("/demo", { signal: stop.signal }) : null;
      const fronts = await Promise.all(
        dialects.filter((one) => one.frontends).map(async ({ name }) => ({ ...(await load(name)), name })),
      );
      const routes = backends.filter((one) => one.abilities.send_message.support !== "impossible");
      const pick = (list, name, at) => (list.find((one) => one.name === name) ?? list[at] ?? list[0])?.name;
      setSetup({ fronts, routes, scripts: demo?.scripts ?? SCRIPTS, demo: Boolean(demo) });
      const first = pick(fronts, query.get("as") ?? "aisdk", 0);
      const beside = pick(fronts, query.get("beside") ?? "eve", 1);
      const chosen = { as: first, to: pick(routes, query.get("to") ?? "herm", 0), beside };
      setChosen(chosen);
      if (query.get("session")) await join(chosen, query.get("session"));
    })().catch((error) => stop.signal.aborted || setFailed(error.message));
    return () => {
      stop.abort();
      leave();
    };
  }, []);

  const leave = () => {
    for (const client of now.current.clients) client?.close();
    now.current = { clients: [null, null], due: false };
  };

  const show = (clients) => {
    now.current.clients = clients;
    setClients(clients);
  };

  const client = async (name, route) =>
    new Frontend(await load(name), { base: face(name, route), headers, changed });

  // One drawing for all that comes in a frame of the screen.
  const changed = () => {
    const { current } = now;
    if (current.due) return;
    current.due = true;
    requestAnimationFrame(() => {
      current.due = false;
      redraw((number) => number + 1);
    });
  };

  const join = async ({ as, to, beside }, id) => {
    const both = await Promise.all([client(as, to), client(beside, to)]);
    setSession(id);
    show(both);
    await Promise.all(both.map((one) => one.join(id)));
  };

  const mark = (chosen, id) =>
    history.replaceState(null, "", `#/talk?${new URLSearchParams({ ...chosen, ...(id && { session: id }) })}`);

  const say = async (text) => {
    if (!text.trim()) return;
    setWords("");
    setChecks([]);
    const [first, second] = now.current.clients;
    if (first?.session) {
      if (second?.dialect === first.dialect) second.hear(text);
      await first.say(text);
      return second?.nudge();
    }
    const made = await client(chosen.as, chosen.to);
    show([made, null]);
    await made.begin(text);
    if (!made.session) return;
    const id = await publicId(made.session);
    const other = await client(chosen.beside, chosen.to);
    if (now.current.clients[0] !== made || !id) return;
    setSession(id);
    mark(chosen, id);
    show([made, other]);
    if (other.dialect === made.dialect) other.hear(text);
    await other.join(id);
  };

  const choose = (name) => (value) => {
    const next = { ...chosen, [name]: value };
    const twice = next.as === next.beside && setup.fronts.find((one) => one.name === next.as).alone;
    if (twice) next[name === "as" ? "beside" : "as"] = chosen[name];
    setChosen(next);
    setChecks([]);
    const id = session;
    if (name === "to" || !id) {
      leave();
      setClients([null, null]);
      setSession("");
      return mark(next);
    }
    leave();
    mark(next, id);
    join(next, id).catch((error) => setFailed(error.message));
  };

  const anew = () => {
    leave();
    setClients([null, null]);
    setSession("");
    setChecks([]);
    mark(chosen);
  };

  const smash = async (what) => {
    setBroken(what === "cut" ? "The streams are cut." : "The server is killed, and starts again.");
    setChecks([]);
    now.current.check = true;
    await ask(`/demo/${what}`, { method: "POST" }).catch(() => {});
  };

  const compare = async () => {
    now.current.check = false;
    const both = now.current.clients.filter(Boolean);
    setChecks(both.map(() => "comparing…"));
    const found = await Promise.all(
      both.map((one) => one.check().then((result) => verdict(result, one, both.find((other) => other !== one)), (error) => `not compared: ${error.message}`)),
    );
    if (both[0] === now.current.clients[0]) setChecks(found);
  };

  // What others answered, and what a break did, once both are at rest.
  const states = clients.map((one) => one?.state ?? "").join();
  const unknown = clients.flatMap((one) => one?.items ?? []).filter(({ ask }) => ask?.answered?.by === null && !given(who, ask)).length;
  useEffect(() => {
    if (session && unknown) answerers(session).then(setWho, () => {});
  }, [session, unknown]);
  useEffect(() => {
    const both = clients.filter(Boolean);
    if (!now.current.check || both.some((one) => one.state === "running" || one.state === "waiting")) return;
    const timer = setTimeout(compare, 1500);
    return () => clearTimeout(timer);
  }, [states, broken]);

  if (failed) return html`<h1>Talk</h1><p role="alert" class="error">${failed}</p>`;
  if (!setup || !chosen) return html`<p class="muted">Loading…</p>`;
  const { fronts, routes, scripts, demo } = setup;
  const titles = [chosen.as, chosen.beside].map((name) => fronts.find((one) => one.name === name)?.title ?? name);
  const [first, second] = clients;
  const able = [first, second].find((one) => one?.session && one.dialect.stop);
  const busy = ["running", "waiting"].includes(first?.state);
  return html`
    <div class="row">
      <h1>Talk</h1>
      <span class="grow"></span>
      ${session && html`<a href=${`#/sessions/${encodeURIComponent(session)}`}>Look at the translation</a>`}
      ${session && html`<button onClick=${anew}>New conversation</button>`}
    </div>
    <div class="row">
      <${Choice} label="You speak" value=${chosen.as} options=${fronts} change=${choose("as")} />
      <${Choice} label="The agent speaks" value=${chosen.to} options=${routes} change=${choose("to")} />
      <${Choice} label="Seen beside as" value=${chosen.beside} options=${fronts} change=${choose("beside")} />
    </div>
    <div class="row" role="group" aria-label="Scripts">
      ${scripts.map((one) => html`<button class="chip" key=${one.name} onClick=${() => say(one.text)}>${one.title}</button>`)}
    </div>
    <form class="row" onSubmit=${(event) => (event.preventDefault(), say(words))}>
      <input class="grow" aria-label="Message" placeholder="Say something" value=${words} onInput=${(event) => setWords(event.target.value)} />
      <button class="primary">Send</button>
      <button type="button" disabled=${!busy || !able} title=${able ? "" : (first?.dialect.unstoppable ?? "")} onClick=${() => able.stop()}>Stop</button>
    </form>
    <div class="columns">
      <${Pane} client=${first} title=${titles[0]} who=${who} checked=${checks[0]} tick=${tick} />
      <${Pane} client=${second} title=${titles[1]} who=${who} checked=${checks[1]} tick=${tick} />
    </div>
    ${demo &&
    html`<div class="row" role="group" aria-label="Break it">
      <b>Break it:</b>
      <button onClick=${() => smash("cut")}>Cut the streams</button>
      <button class="danger" onClick=${() => smash("kill")}>Kill the server</button>
      ${session && html`<button onClick=${compare}>Compare with a fresh read</button>`}
      <span class="muted small" role="status">${broken}</span>
    </div>`}
  `;
}
