/**
 * A client of Claude Managed Agents for a browser; `proxy/ui/static/parts/frontend.js` says what
 * its members are. A stream has what comes from now on: so the list is read when one is open, and
 * both are joined by id.
 */

const ASK = "dragoman_ask";
const text = (content) => (content ?? []).map((block) => block.text ?? "").join("");
const send = (c, ...events) => c.call("POST", `/v1/sessions/${c.session}/events`, { events });
/** The place in the log that the id of an event has, where it is the server's own. */
const seqOf = (id) => /^sevt_\w+-(\d+)$/.exec(id)?.[1];
const block = (words) => [{ type: "text", text: words }];

/** Read the list of events whole. */
async function list(c) {
  const found = [];
  for (let page = ""; ; ) {
    const path = `/v1/sessions/${c.session}/events?limit=1000${page && `&page=${encodeURIComponent(page)}`}`;
    const { data, next_page } = await c.call("GET", path);
    found.push(...data.filter((event) => event.processed_at));
    if (!next_page) return found;
    page = next_page;
  }
}

function use(c, { id, name, input, evaluated_permission }) {
  c.put(id, { kind: "tool", name, input, status: "called" });
  if (evaluated_permission === "ask") approval(c, id);
}

function approval(c, id) {
  const { name, input } = c.index.get(id) ?? {};
  const prompt = `${name}: ${input?.command ?? JSON.stringify(input ?? {})}`;
  c.ask(id, { prompt, options: c.YES_NO, reason: true, type: "confirmation", seq: seqOf(id) });
}

function result(c, { tool_use_id, mcp_tool_use_id, content, is_error }) {
  const status = is_error ? "failed" : "completed";
  c.put(tool_use_id ?? mcp_tool_use_id, { kind: "tool", output: text(content), status });
}

/** What an event changes, by its type. */
const EVENTS = {
  event_start: (c, { event }) => event.type === "agent.message" && c.put(event.id, { kind: "agent" }),
  event_delta(c, { event_id, delta }) {
    // The list may have had the whole message by now.
    if (!c.seen.has(event_id)) c.append(event_id, "agent", delta.content.text);
  },
  "user.message": (c, { id, content }) => c.put(id, { kind: "user", text: text(content) }),
  "user.interrupt": (c) => c.notice("Somebody stopped the turn."),
  "user.tool_confirmation"(c, { tool_use_id, result: how, deny_message }) {
    c.answered(tool_use_id, [how, deny_message].filter(Boolean).join(": "));
  },
  "user.custom_tool_result": (c, { custom_tool_use_id, content }) => c.answered(custom_tool_use_id, text(content) || "skipped"),
  "agent.message": (c, { id, content }) => c.put(id, { kind: "agent", text: text(content) }),
  "agent.thinking": (c, { id }) => c.put(id, { kind: "reasoning", text: "(thoughts have no words here)" }),
  "agent.tool_use": use,
  "agent.mcp_tool_use": use,
  "agent.tool_result": result,
  "agent.mcp_tool_result": result,
  "agent.custom_tool_use"(c, { id, name, input }) {
    if (name !== ASK) {
      c.put(id, { kind: "tool", name, input, status: "called" });
      return c.ask(id, { prompt: `A result for ${name}`, freeform: true, type: "result" });
    }
    const kinds = { allow: "allow", continue: "allow", deny: "deny", stop: "deny", decline: "skip" };
    const options = (input.options ?? []).map((one) => ({ ...one, kind: kinds[one.id] ?? "choice" }));
    const skip = input.kind === "question" ? [{ id: "", label: "Skip", kind: "skip" }] : [];
    const more = { options: [...options, ...skip], freeform: !!input.freeform, type: "result", seq: seqOf(id) };
    c.ask(id, { prompt: input.question, ...more });
  },
  "session.status_running"(c) {
    c.state = "running";
  },
  "session.status_idle"(c, { stop_reason }) {
    const waits = stop_reason.type === "requires_action" ? stop_reason.event_ids : [];
    for (const id of waits) if (!c.index.has(`ask-${id}`)) approval(c, id);
    c.onlyOpen(waits);
    if (stop_reason.type === "retries_exhausted") c.state = "failed";
    else c.state = c.asks.length ? "waiting" : "idle";
  },
  "session.error": (c, { error }) => c.notice(error.message, "failed"),
  "session.status_terminated": (c) => c.notice("The session has ended."),
  "session.thread_created": (c, { agent_name }) => c.notice(`A child agent works: ${agent_name ?? ""}`),
};

export default {
  title: "Managed Agents",
  framing: "sse",
  own: () => ({}),
  async begin(c, words) {
    const [[agent], [environment]] = [
      (await c.call("GET", "/v1/agents")).data,
      (await c.call("GET", "/v1/environments")).data,
    ];
    const made = { agent: agent.id, environment_id: environment.id };
    c.session = (await c.call("POST", "/v1/sessions", made)).id;
    await this.say(c, words);
  },
  say(c, words) {
    const stop = c.asks.length ? [{ type: "user.interrupt" }] : [];
    return send(c, ...stop, { type: "user.message", content: block(words) });
  },
  answer(c, { request, type }, { option, text: words }) {
    if (type === "confirmation") {
      const deny = option.kind === "deny" && words && { deny_message: words };
      return send(c, { type: "user.tool_confirmation", tool_use_id: request, result: option.id, ...deny });
    }
    const content = block(option ? option.id : words).filter((one) => one.text);
    return send(c, { type: "user.custom_tool_result", custom_tool_use_id: request, content });
  },
  stop: (c) => send(c, { type: "user.interrupt" }),
  stream: (c) => ({ path: `/v1/sessions/${c.session}/events/stream?event_deltas[]=agent.message` }),
  async opened(c) {
    for (const data of await list(c)) {
      const written = JSON.stringify(data);
      await c.take({ event: "message", id: null, data, text: written, size: written.length });
    }
  },
  list,
  replays: true,
  // What is streamed twice has no time at first; previews are in no list.
  key: ({ data }) => (data?.id && data.processed_at ? data.id : null),
  frame(c, { data }) {
    EVENTS[data.type]?.(c, data);
  },
};
