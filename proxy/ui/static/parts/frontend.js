/**
 * A small frontend in the browser: what all dialects share. What is a dialect's own is its module
 * `adapters/<folder>/page.js`, served as `/ui/dialects/<dialect>.js`. It imports nothing; its
 * default export is an object with these members, where `c` is a `Frontend`:
 *
 *   title      its name as people write it
 *   framing    "sse" or "ndjson"
 *   runs       true where a stream ends with its run, and is asked for again to see more
 *   own()      what the client keeps of a session: cursors, ids, messages; it becomes `c.own`
 *   begin(c, text)   begins a conversation with a first message; sets `c.session`
 *   join(c, id)      optional: prepares to read a session by its public id, which is `c.session`
 *   stream(c)        the next read: `{path, headers}`, at the cursor
 *   opened(c)        optional: runs when a stream is open, before its first frame
 *   key(frame)       what names a frame for ever, or null for one that no read repeats
 *   frame(c, frame)  changes the chat; a frame is `{event, id, data, text, key}`, `data` is JSON
 *   say(c, text)     sends a message
 *   answer(c, ask, {option, text})   `option` is one of `ask.options`, or null with words alone;
 *              resolves to false where the answer waits for others, and is sent with them
 *   stop(c)    stops the turn, or `null`
 *   unstoppable   why there is no `stop`
 *   fresh(c)   a read from the beginning: `{path, headers}`; `list(c)` instead gives what is in
 *              the frames, for a dialect without such a stream
 *   newest     true where a fresh read gives the newest message alone, or nothing
 *   mute       true where no stream tells what another frontend of this dialect said
 *   alone      true where an answer that one page has read is not given to another
 *   replays    true where a stream that is asked for again begins with what was read
 *
 * `begin`, `join`, `opened`, `frame`, `say`, `answer`, `stop` and `list` may be async. To ask they
 * have `c.call(method, path, json)`, which gives JSON, and `c.run(path, json)`, which reads the
 * answer as the stream of a run; a refusal is raised as a `Refusal`.
 *
 * They change the chat by `c.put(id, {kind, …}, at)`, `c.append(id, kind, delta, at)`, `c.ask(id,
 * {prompt, options, freeform, …}, at)`, `c.answered(id, how)`, `c.onlyOpen(ids)`, `c.notice(text)`
 * and `c.state`. `at` is a number that sorts items, where they come out of order.
 *
 * The chat: `items` of `{id, rev, kind, text, name?, input?, output?, status?, ask?}`, where `rev`
 * rises with each change, with a kind of user, agent, reasoning, tool, ask or notice; an `ask` is `{request, prompt, options, freeform,
 * sent?, answered?, seq?}` with options `{id, label, kind}` of the kinds allow, deny, choice and skip,
 * and `answered` `{how, by}`, where `by` is "here" or null; `seq` is its place in the log, where its id is
 * not that of the request or of its call. `state` is idle, running, waiting or
 * failed. `bytes` and `frames` count frames of streams, without heartbeats, each once; `cuts`
 * counts streams that broke; `raw` has the newest 200 frames.
 */

const KEPT = 200;
const TRIES = 8;
const utf8 = new TextEncoder();

/** The server said no: `status` is that of HTTP. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Yield the lines of a body as they come, wherever its chunks and characters are cut. */
async function* lines(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const leave = () => reader.cancel().catch(() => {});
  signal?.addEventListener("abort", leave);
  try {
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      const whole = (rest + value).split("\n");
      rest = whole.pop();
      for (const line of whole) yield line.endsWith("\r") ? line.slice(0, -1) : line;
    }
  } finally {
    signal?.removeEventListener("abort", leave);
    leave();
  }
}

const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
};

/** Yield the frames of a body; heartbeats and comments are left out, half a frame at its end too. */
export async function* frames(body, framing, signal) {
  let event = "", id = null, data = [], text = [];
  for await (const line of lines(body, signal)) {
    if (framing === "ndjson") {
      if (line) yield { event: "", id: null, data: parsed(line), text: line, size: utf8.encode(line).length + 1 };
      continue;
    }
    if (line) {
      text.push(line);
      const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (name === "data") data.push(value);
      else if (name === "event") event = value;
      else if (name === "id") id = value;
      continue;
    }
    const whole = text.join("\n");
    if (data.length)
      yield { event, id, data: parsed(data.join("\n")), text: whole, size: utf8.encode(whole).length + 2 };
    event = "";
    [id, data, text] = [null, [], []];
  }
}

/** One client of one session, in one dialect. */
export class Frontend {
  /**
   * `dialect` is a module's export, `base` the address of its face over a route, `headers` gives
   * the headers of each request, `changed` hears of every change.
   */
  constructor(dialect, { base, headers = () => ({}), changed = () => {} }) {
    Object.assign(this, { dialect, base, headers, changed, own: dialect.own() });
    Object.assign(this, { session: null, items: [], raw: [], state: "idle" });
    Object.assign(this, { bytes: 0, frames: 0, cuts: 0, doubled: 0, posts: 0, polls: 0 });
    this.seen = new Map();
    this.index = new Map();
    this.closing = new AbortController();
    this.wake = () => {};
  }

  YES_NO = [{ id: "allow", label: "Allow", kind: "allow" }, { id: "deny", label: "Deny", kind: "deny" }];

  // The chat.

  put(id, fields, at) {
    let item = this.index.get(id);
    if (!item) {
      item = { id, text: "", at };
      this.index.set(id, item);
      const behind = at === undefined ? -1 : this.items.findIndex((one) => one.at > at);
      this.items.splice(behind < 0 ? this.items.length : behind, 0, item);
    }
    Object.assign(item, fields, { rev: (item.rev ?? 0) + 1 });
    return item;
  }

  append(id, kind, delta, at) {
    this.put(id, { kind }, at).text += delta;
  }

  notice(text, status = "") {
    this.put(`notice-${this.items.length}-${this.frames}`, { kind: "notice", text, status });
  }

  ask(request, fields, at) {
    const known = this.index.get(`ask-${request}`)?.ask;
    const ask = known ?? { request, prompt: "", options: [], freeform: false };
    // What is asked again is open again.
    Object.assign(ask, { answered: null, sent: "", mine: null }, fields);
    this.put(`ask-${request}`, { kind: "ask", text: ask.prompt, ask }, at);
  }

  /** The asks that are open. */
  get asks() {
    return this.items.filter((one) => one.ask && !one.ask.answered).map((one) => one.ask);
  }

  answered(request, how) {
    const item = this.index.get(`ask-${request}`);
    if (!item || item.ask.answered) return;
    item.ask.answered = { how, by: item.ask.mine ? "here" : null };
    item.rev++;
  }

  /** All asks but these are over. */
  onlyOpen(requests) {
    for (const ask of this.asks) if (!requests.includes(ask.request)) this.answered(ask.request, ask.mine?.how ?? "over");
  }

  rest() {
    if (this.asks.length) this.state = "waiting";
    else if (this.state !== "failed") this.state = "idle";
  }

  // What a person does.

  async begin(text) {
    await this.doing(async () => {
      this.state = "running";
      await this.dialect.begin(this, text);
    });
    if (this.session) this.watch();
  }

  async join(session) {
    this.session = session;
    this.joined = true;
    await this.doing(() => this.dialect.join?.(this, session));
    this.watch();
  }

  /** Say words; they answer the one open question that takes any. */
  async say(text) {
    const asks = this.asks;
    if (asks.length === 1 && asks[0].freeform) return this.answer(asks[0], { text });
    await this.doing(() => this.dialect.say(this, text));
  }

  /** Show what the person said in another page of this application. */
  hear(text) {
    if (this.dialect.mute) this.put(`heard-${this.items.length}`, { kind: "user", text });
    this.changed();
    this.nudge();
  }

  async answer(ask, { option = null, text = "" }) {
    ask.mine = { how: [option?.label, text].filter(Boolean).join(": ") };
    ask.sent = "sent";
    const taken = await this.doing(async () => {
      if ((await this.dialect.answer(this, ask, { option, text })) === false) ask.sent = "kept until all are answered";
      return true;
    });
    if (!taken) {
      ask.sent = "";
      ask.mine = null;
      // The stream may have said that it is over before this answer was refused.
      if (ask.answered) ask.answered.by = null;
    }
    this.put(`ask-${ask.request}`, {});
    this.changed();
  }

  stop() {
    return this.doing(() => this.dialect.stop(this));
  }

  close() {
    this.closed = true;
    this.closing.abort();
    this.wake();
  }

  /** Read at once what a dialect has to be asked for. */
  nudge() {
    this.polls = 0;
    this.wake();
  }

  async doing(what) {
    this.changed();
    try {
      return await what();
    } catch (error) {
      if (this.closed) return undefined;
      if (this.state === "running" && !this.session) this.state = "idle";
      this.notice(error.message, "refused");
      return undefined;
    } finally {
      this.changed();
      this.nudge();
    }
  }

  // Requests.

  /** Ask until somebody answers: a lost request is repeated under the same key. */
  async fetch(method, path, json, more = {}) {
    const headers = { ...this.headers(), ...more };
    if (json !== undefined) headers["content-type"] = "application/json";
    if (method !== "GET") headers["idempotency-key"] = crypto.randomUUID();
    const body = json === undefined ? undefined : JSON.stringify(json);
    for (let attempt = 1; ; attempt++) {
      try {
        const signal = this.closing.signal;
        const response = await fetch(this.base + path, { method, headers, body, signal, cache: "no-store" });
        if (response.ok) return response;
        const said = await response.text();
        const { error, message, detail } = parsed(said) ?? {};
        const words = error?.message ?? message ?? detail ?? error ?? said;
        throw new Refusal(response.status, String(words || response.statusText));
      } catch (error) {
        const passing = error instanceof Refusal ? error.status === 503 : true;
        if (method === "GET" || this.closed || !passing || attempt === TRIES) throw error;
        await this.sleep(Math.min(200 * 2 ** attempt, 2000));
      }
    }
  }

  async call(method, path, json, headers) {
    const text = await (await this.fetch(method, path, json, headers)).text();
    return text ? JSON.parse(text) : null;
  }

  /** Ask for a run, and read its stream; resolves when it is accepted. */
  async run(path, json) {
    this.posts++;
    this.reading?.abort();
    let response;
    try {
      response = await this.fetch("POST", path, json, { accept: "text/event-stream" });
    } catch (error) {
      this.posts--;
      throw error;
    }
    this.state = "running";
    this.read(response)
      .then(() => this.state === "running" && this.cuts++, () => this.cuts++)
      .finally(() => {
        this.posts--;
        this.changed();
        this.nudge();
      });
  }

  sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => (clearTimeout(timer), resolve());
    });
  }

  // Streams.

  /** Read on for ever; where a stream ends with its run, ask for more. */
  async watch() {
    if (this.watching) return;
    this.watching = true;
    for (let failures = 0; !this.closed; ) {
      if (this.posts) {
        await this.sleep(1000);
        continue;
      }
      this.reading = new AbortController();
      const before = this.frames;
      let open = false;
      try {
        const { path, headers } = this.dialect.stream(this);
        const response = await this.fetch("GET", path, undefined, headers);
        open = response.status !== 204;
        failures = 0;
        if (open) await this.read(response, this.reading.signal);
        if (this.reading.signal.aborted) continue;
        if (!this.dialect.runs || (open && this.state === "running")) this.cuts++;
      } catch (error) {
        if (this.closed) return;
        if (error instanceof Refusal && error.status < 500 && ![408, 429].includes(error.status)) {
          this.notice(error.message, "refused");
          this.watching = false;
          return this.changed();
        }
        if (open) this.cuts++;
        failures++;
      }
      this.changed();
      this.polls = this.frames > before ? 0 : this.polls + 1;
      if (failures) await this.sleep(Math.min(100 * 2 ** failures, 2000) * (0.75 + Math.random() / 2));
      else if (this.dialect.runs && !(open && this.state === "running")) await this.sleep(Math.min(400 * 1.3 ** this.polls, 3000));
      else await this.sleep(this.frames > before ? 50 : 300);
    }
  }

  async read(response, signal) {
    const found = frames(response.body, this.dialect.framing, signal);
    await this.dialect.opened?.(this);
    for await (const frame of found) await this.take(frame);
  }

  /** Take a frame, unless it was taken before. */
  async take(frame) {
    frame.key = this.dialect.key(frame);
    if (frame.key !== null) {
      if (this.seen.has(frame.key)) {
        if (!this.dialect.replays) this.doubled++;
        return;
      }
      this.seen.set(frame.key, this.compared(frame));
    }
    this.frames++;
    this.bytes += frame.size;
    this.raw.push(frame);
    if (this.raw.length > KEPT) this.raw.shift();
    if (frame.data) await this.dialect.frame(this, frame);
    this.changed();
  }

  compared(frame) {
    return this.dialect.list ? JSON.stringify(frame.data) : frame.text;
  }

  /**
   * Read all once more, and compare: `{bytes, frames}` of that read, how many frames were `lost`,
   * came twice (`doubled`), or were `other` than they are now.
   */
  async check() {
    const all = new Map();
    if (this.dialect.list) {
      for (const data of await this.dialect.list(this)) {
        const frame = { data };
        all.set(this.dialect.key(frame), this.compared(frame));
      }
    } else {
      const { path, headers } = this.dialect.fresh(this);
      const response = await this.fetch("GET", path, undefined, headers);
      const last = [...this.seen.keys()].at(-1);
      const stop = new AbortController();
      const patience = () => setTimeout(() => stop.abort(), 3000);
      let timer = patience();
      if (response.status === 204) stop.abort();
      else
        for await (const frame of frames(response.body, this.dialect.framing, stop.signal)) {
          clearTimeout(timer);
          timer = patience();
          const key = this.dialect.key(frame);
          if (key !== null) all.set(key, frame.text);
          if (key === last) break;
        }
      clearTimeout(timer);
    }
    const result = { bytes: 0, frames: all.size, lost: 0, doubled: this.doubled, other: 0 };
    // A line ends with one byte, an event of SSE with two.
    const end = this.dialect.list ? 0 : this.dialect.framing === "ndjson" ? 1 : 2;
    for (const [key, text] of all) {
      result.bytes += utf8.encode(text).length + end;
      if (!this.seen.has(key)) result.lost++;
      else if (this.seen.get(key) !== text) result.other++;
    }
    if (!this.dialect.newest) for (const key of this.seen.keys()) if (!all.has(key)) result.other++;
    return result;
  }
}
