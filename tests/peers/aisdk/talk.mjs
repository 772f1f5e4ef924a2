// What a person sees of a conversation in a page of the AI SDK, and the way to it of all clients.
import { setTimeout as sleep } from "node:timers/promises";

import { until } from "../driving.mjs";
import { ENDED, pictureOf } from "./picture.mjs";

/** More requests than any scenario has: the page sends for ever. */
const ENDLESS = 12;
/** The tool by which Dragoman asks a page what has no form of its own. */
export const ASK = "dragoman_ask";
/** The tools that run in the page. */
const PAGE_TOOLS = [ASK, "lookup_stock"];

/** A page's way to the server: it counts, knows what is not over, and ends as that of a closed tab. */
class Line {
  posts = 0;
  open = 0;
  empty = false; // the newest answer had no body
  #closed = new AbortController();

  fetch = async (url, init = {}) => {
    if (init.method === "POST") this.posts += 1;
    if (this.posts > ENDLESS) throw new Error("the page sends for ever");
    const signals = [this.#closed.signal, ...(init.signal ? [init.signal] : [])];
    this.open += 1;
    try {
      const response = await fetch(url, { ...init, signal: AbortSignal.any(signals) });
      this.empty = !response.body;
      if (this.empty) return response;
      this.open += 1;
      const { status, statusText, headers } = response;
      return new Response(this.#watched(response.body), { status, statusText, headers });
    } finally {
      this.open -= 1;
    }
  };
  close() {
    this.#closed.abort();
  }
  #watched(body) {
    const reader = body.getReader();
    let lasts = 1;
    const over = () => {
      this.open -= lasts;
      lasts = 0;
    };
    return new ReadableStream({
      async pull(stream) {
        const { done, value } = await reader.read().catch((error) => {
          over();
          throw error;
        });
        if (!done) return stream.enqueue(value);
        over();
        stream.close();
      },
      cancel: (reason) => {
        over();
        return reader.cancel(reason);
      },
    });
  }
}

/**
 * A conversation of one client. What it shows is in `shown`, line by line: after each action what is
 * new in its messages, and what the page's status is then. `pictures` are of the whole page, each where
 * the scenario takes it. A page has:
 *
 * - `messages()`, `status()`, `error()`: what its application draws,
 * - `send({text, files, messageId})`, `approve(id, approved, toolCallId)`, `output(tool, toolCallId, output)`,
 *   `regenerate()`, `stop()`,
 * - `replace(messages)`,
 * - `thread()`: the roles of what is drawn, where that is assistant-ui, which ends open calls by itself.
 */
export class Talk {
  shown = [];
  pictures = [];
  #page;
  #line;
  #known;
  #posts = 0;

  constructor({ version, id, open }) {
    Object.assign(this, { version, id });
    this.major = Number(version.split(".")[0]);
    this.opens = open;
  }
  /** Sets the URL of the chat; what is in `query` counts for each request. */
  at(chat, query) {
    this.api = `${chat}${query}`;
    // Releases before 5.0.277, 6.0.326 and 7.0.107 write the path of this behind the query.
    this.back = query && `${chat}/${this.id}/stream${query}`;
  }
  /** Opens a page, with what its application has stored. */
  async open(messages = [], resume = false) {
    const line = new Line();
    this.#line = line;
    this.#known = new Map(messages.flatMap(linesByPart));
    const { api, back, id } = this;
    const transport = { api, fetch: line.fetch };
    if (back) transport.prepareReconnectToStreamRequest = () => ({ api: back });
    const may = (predicates, state) =>
      line.posts <= ENDLESS && predicates.some((predicate) => predicate(state));
    const stored = structuredClone(messages);
    this.#page = await this.opens({ transport, id, messages: stored, resume, may });
  }
  /** Closes the page, as a tab is closed, and opens another one that resumes. */
  async reload(messages) {
    this.note("RELOADS");
    this.close();
    await this.open(messages, true);
    await this.#rest();
  }
  close() {
    this.#posts += this.#line.posts;
    this.#page.leave?.();
    this.#line.close();
  }
  get posts() {
    return this.#posts + this.#line.posts;
  }
  get messages() {
    return this.#page.messages();
  }
  /** What an application has stored that stores at the end of a turn: what the person said. */
  get stored() {
    return this.messages.slice(0, 1 + this.messages.findLastIndex((one) => one.role === "user"));
  }
  /** The text of the answer to the newest message. */
  get coming() {
    return this.messages
      .slice(this.stored.length)
      .flatMap(({ parts }) => parts.map((part) => (part.type === "text" ? part.text : "")))
      .join("");
  }
  /** The id of the session that the conversation is one of: it stands in the metadata. */
  get session() {
    return this.messages.findLast(({ metadata }) => metadata?.dragoman)?.metadata.dragoman.session;
  }

  /** Takes all messages off the page. */
  clear() {
    this.#page.replace([]);
  }
  /** The number of the turn that the agent says at the end of what it says. */
  get turn() {
    return Number(/\(turn (\d+)\)$/.exec(this.coming)?.[1]);
  }
  async say(words, files = []) {
    this.note(`USER ${words}`);
    await this.#acts(() => this.#page.send({ text: words, ...(files.length > 0 && { files }) }));
  }
  /** Says something else instead of the first words. */
  async edit(words) {
    const [{ id }] = this.messages;
    await this.#acts(() => this.#page.send({ text: words, messageId: id }));
  }
  async regenerate() {
    await this.#acts(() => this.#page.regenerate());
  }
  /** Ends the calls that wait, as a library does by itself, and says something. */
  async closeAndSay(words) {
    if (this.#page.thread) return this.say(words); // it does
    const closed = (part) =>
      ["approval-requested", "input-available"].includes(part.state)
        ? { ...part, state: "output-error", errorText: ENDED, approval: undefined }
        : part;
    const all = structuredClone(this.messages);
    all.at(-1).parts = all.at(-1).parts.map(closed);
    this.#page.replace(all);
    await this.say(words);
  }
  /** Begins what lasts; `run` is how it comes to its end. */
  begin(words) {
    this.run = this.say(words);
  }
  /** Allows or denies what is asked, one after the other. */
  async decide(...approved) {
    const asks = this.asks();
    await this.#acts(async () => {
      for (const [at, one] of approved.entries()) {
        if (asks[at].tool) await this.#page.output(ASK, asks[at].call, { approved: one });
        else await this.#page.approve(asks[at].approval, one, asks[at].call);
      }
    });
  }
  /** Answers a question, or gives the result of a tool of the page. */
  async answer(output) {
    const [{ tool, call }] = this.asks();
    await this.#acts(() => this.#page.output(tool, call, output));
  }
  stop() {
    return this.#page.stop();
  }
  /** What the newest message asks the person: as approvals of calls, or as calls of tools of the page. */
  asks() {
    return asksOf(this.messages.at(-1));
  }
  /** Takes a picture of the whole page. */
  picture(heading) {
    const page = this.#page;
    const buttons = this.messages.flatMap(asksOf).length;
    const seen = {
      messages: this.messages,
      thread: page.thread?.(),
      status: page.status(),
      error: page.error(),
      buttons,
    };
    this.pictures.push(...pictureOf(heading, seen));
  }
  note(line) {
    this.shown.push(line.replaceAll("\n", " / "));
  }
  async #acts(act) {
    const page = this.#page;
    const before = this.posts;
    await act();
    if (page !== this.#page) return; // it was closed meanwhile
    await this.#rest();
    if (page === this.#page && this.posts === before) this.note("nothing is sent");
  }
  /** Waits for the rest of the page, and notes what it shows then. */
  async #rest() {
    const page = this.#page;
    const picture = () => [this.#line.open, this.#line.posts, page.status()].join(" ");
    await until("the rest of the page", async () => {
      const before = picture();
      await sleep(60);
      if (page !== this.#page) return true;
      const rests = ["ready", "error"].includes(page.status()) || this.#line.empty;
      return rests && this.#line.open === 0 && picture() === before;
    });
    if (page !== this.#page) return;
    this.#look();
    const status = page.status();
    if (status === "error") this.note(`FAILS ${page.error().message}`);
    else if (status !== "ready") this.note(`stays ${status}`);
    else if (this.asks().length === 0) this.note("ends");
  }
  /** Notes what is new in the messages. */
  #look() {
    const ids = this.messages.map((one) => one.id);
    if (new Set(ids).size !== ids.length) this.note(`an id twice: ${ids}`);
    const now = new Map(this.messages.flatMap(linesByPart));
    for (const [part, lines] of now) {
      const before = this.#known.get(part) ?? [];
      for (const line of lines) if (!before.includes(line)) this.note(line);
    }
    for (const [part, lines] of this.#known) {
      const gone = lines.filter((line) => !/^(ASKS|OPEN|ANSWERED)/.test(line));
      for (const line of gone) if (!now.get(part)?.includes(line)) this.note(`gone: ${line}`);
    }
    this.#known = now;
  }
}

function asksOf({ parts }) {
  return parts.flatMap(({ type, state, toolCallId: call, approval, input }) => {
    if (state === "approval-requested") return [{ call, approval: approval.id }];
    const tool = PAGE_TOOLS.find((name) => type === `tool-${name}`);
    return tool && state === "input-available" ? [{ tool, call, input }] : [];
  });
}

/** Parts that an application draws nothing for. */
const PASSED_OVER = [
  "step-start",
  "data-dragoman-call",
  "data-dragoman-ignored", // assistant-ui has metadata in each message
  "data-dragoman-session",
];

/** Pairs of the place of a part and the lines that it is shown as. */
function linesByPart({ id, role, parts }) {
  if (role === "user") return [];
  return parts.map((part, at) => [`${id} ${at}`, linesOf(part)]);
}

function linesOf(part) {
  const { type, text, state, data } = part;
  const open = state === "streaming" ? " (unfinished)" : "";
  if (PASSED_OVER.includes(type)) return [];
  if (type === "text") return text ? [`SAYS ${text}${open}`] : [];
  if (type === "reasoning") return text ? [`THINKS ${text}${open}`] : [];
  if (type === "data-dragoman-request")
    return [data.state === "open" ? `OPEN ${data.prompt}` : `CLOSED ${data.state}: ${data.prompt}`];
  if (type === "data-dragoman-error") return [`TOLD ${data.code}: ${data.message}`];
  if (type === "data-dragoman-failure") return [`CODE ${data.code}`];
  if (type === "data-dragoman-result") return [`TOLD ${data.errorText ?? JSON.stringify(data.output)}`];
  if (type === "dynamic-tool" || type.startsWith("tool-"))
    return linesOfTool(part, part.toolName ?? type.slice("tool-".length));
  return [JSON.stringify(part)];
}

function linesOfTool({ state, input, output, errorText }, name) {
  if (name === ASK) return state === "input-available" ? [`ASKS ${input.prompt}`] : [];
  const call = `CALLS ${name} ${JSON.stringify(input)}`;
  switch (state) {
    case "input-available":
      return [call];
    case "approval-requested":
      return [call, `ASKS for ${name}`];
    case "approval-responded":
      return [call, `ANSWERED ${name}`];
    case "output-available":
      return [call, `RESULT ${name}: ${typeof output === "string" ? output : JSON.stringify(output)}`];
    case "output-error":
      return [call, `RESULT ${name} is an error: ${errorText}`];
    case "output-denied":
      return [call, `RESULT ${name} is denied`];
    default:
      return [call, `${state} ${name}`];
  }
}
