/** A Herm client for a browser; `proxy/ui/static/parts/frontend.js` says what its members are. */

const text = (content) => (content ?? []).map((block) => block.text ?? "").join("");
const events = (c, ...batch) => c.call("POST", `/v1/sessions/${c.session}/events`, { events: batch });
const message = (words) => ({ type: "user.message", content: [{ type: "text", text: words }] });
const DECLINE = [{ id: "", label: "Decline", kind: "skip" }];

/** Show what a person said, which the stream does not tell. */
function said(c, { sequence, id, type, status, payload, error }) {
  if (type === "user.message") c.put(id, { kind: "user", text: text(payload.content) }, sequence);
  else if (type === "user.steer") c.put(id, { kind: "user", text: payload.message }, sequence);
  else if (type === "user.interrupt") c.put(id, { kind: "notice", text: "Somebody stopped the turn." }, sequence);
  else {
    const how = payload.result ?? payload.answer ?? (payload.content ? text(payload.content) : "answered");
    if (status === "complete") c.answered(payload.tool_use_id ?? payload.request_id, how || "declined");
  }
  if (status === "failed") c.put(id, { text: `${text(payload.content)} (refused: ${error?.message ?? ""})` });
}

/** List what people said since this was last done. */
async function catchUp(c) {
  c.own.behind = false;
  for (;;) {
    const path = `/v1/sessions/${c.session}/events?limit=100&after=${c.own.listed}`;
    const { data } = await c.call("GET", path);
    for (const envelope of data) {
      c.own.listed = Math.max(c.own.listed, envelope.sequence);
      if (envelope.type.startsWith("user.")) said(c, envelope);
    }
    if (data.length < 100) return;
  }
}

/** Add to the text that is open, or complete it. */
function write(c, kind, { sequence, id, payload }) {
  const open = (c.own.open[kind] ??= { id, sequence });
  if (payload.delta) return c.append(open.id, kind, text(payload.content), open.sequence);
  c.put(open.id, { kind, text: text(payload.content) }, open.sequence);
  delete c.own.open[kind];
}

function use(c, { sequence, payload }) {
  const { id, tool, input } = payload;
  c.put(id, { kind: "tool", name: tool, input, status: "called" }, sequence);
  if (payload.requires_action)
    c.ask(id, { prompt: payload.preview ?? tool, options: c.YES_NO, type: "tool_confirmation" }, sequence + 0.5);
}

function result(c, { sequence, payload }) {
  const { tool_use_id, tool, status, content } = payload;
  c.put(tool_use_id, { kind: "tool", name: tool, output: text(content), status }, sequence);
}

/** What an envelope changes, by its type. */
const ENVELOPES = {
  "session.status_running"(c) {
    c.state = "running";
  },
  "session.status_idle"(c, { payload }) {
    const { type, event_ids, error } = payload.stop_reason ?? {};
    c.onlyOpen(type === "requires_action" ? event_ids : []);
    if (type === "error") {
      c.notice(error?.message ?? "The turn failed.", "failed");
      c.state = "failed";
    } else c.state = c.asks.length ? "waiting" : "idle";
  },
  "agent.message": (c, envelope) => write(c, "agent", envelope),
  "agent.thinking": (c, envelope) => write(c, "reasoning", envelope),
  "agent.tool_use": use,
  "agent.mcp_tool_use": use,
  "agent.tool_result": result,
  "agent.mcp_tool_result": result,
  "agent.custom_tool_use"(c, { sequence, payload: { id, tool, input } }) {
    c.put(id, { kind: "tool", name: tool, input, status: "called" }, sequence);
    c.ask(id, { prompt: `A result for ${tool}`, freeform: true, type: "custom_tool_result" }, sequence + 0.5);
  },
  "agent.clarify_request"(c, { sequence, payload: { request_id, question, choices } }) {
    const options = (choices ?? []).map((label) => ({ id: label, label, kind: "choice" }));
    const more = { options: [...options, ...DECLINE], freeform: !choices, type: "clarify_result" };
    c.ask(request_id, { prompt: question, ...more }, sequence);
  },
  "agent.sudo_request"(c, { sequence, payload }) {
    c.ask(payload.request_id, { prompt: "A password", options: DECLINE, type: "sudo_result" }, sequence);
  },
  "agent.secret_request"(c, { sequence, payload: { request_id, prompt } }) {
    c.ask(request_id, { prompt, options: DECLINE, type: "secret_result" }, sequence);
  },
  "agent.thread_message_sent"(c, { payload: { name, content } }) {
    c.notice(`To ${name ?? "a child"}: ${text(content)}`);
  },
  "agent.thread_message_received"(c, { payload: { name, content } }) {
    c.notice(`From ${name ?? "a child"}: ${text(content)}`);
  },
  "session.gap": (c) => c.notice("Events are missing."),
};

export default {
  title: "Herm",
  framing: "sse",
  own: () => ({ last: "0", listed: 0, behind: true, open: {} }),
  async begin(c, words) {
    const [{ id }] = (await c.call("GET", "/v1/agents")).data;
    c.session = (await c.call("POST", `/v1/agents/${id}/sessions`, {})).id;
    await this.say(c, words);
  },
  async say(c, words) {
    // A message while something is asked takes the place of the turn that asks.
    const stop = c.asks.length ? [{ type: "user.interrupt" }] : [];
    await events(c, ...stop, message(words));
    c.own.behind = true;
  },
  answer(c, { request, type }, { option, text: words }) {
    const value = option?.label ?? words;
    const answers = {
      tool_confirmation: () => ({ tool_use_id: request, result: option.id }),
      custom_tool_result: () => ({ tool_use_id: request, content: [{ type: "text", text: words }] }),
      clarify_result: () => ({ request_id: request, answer: option?.kind === "skip" ? "" : value }),
      sudo_result: () => ({ request_id: request, password: "" }),
      secret_result: () => ({ request_id: request, value: "" }),
    };
    return events(c, { type: `user.${type}`, ...answers[type]() });
  },
  stop: (c) => events(c, { type: "user.interrupt" }),
  stream: (c) => ({
    path: `/v1/sessions/${c.session}/events/stream`,
    headers: { "last-event-id": c.own.last },
  }),
  fresh: (c) => ({ path: `/v1/sessions/${c.session}/events/stream?after=0` }),
  key: ({ id }) => id,
  async frame(c, { id, data }) {
    c.own.last = id;
    // The words that began a turn are stored behind the event that it runs.
    if (c.own.behind) await catchUp(c);
    if (data.type === "session.status_running") c.own.behind = true;
    ENVELOPES[data.type]?.(c, data);
  },
};
