/** An eve client for a browser; `proxy/ui/static/parts/frontend.js` says what its members are. */

const SESSION = "/eve/v1/session";
const words = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** What a record changes, by its type. */
const RECORDS = {
  "turn.started"(c) {
    c.state = "running";
  },
  "message.received"(c, data, id) {
    c.put(id, { kind: "user", text: data.message });
  },
  "message.appended"(c, data, id) {
    c.own.text ??= id;
    c.append(c.own.text, "agent", data.messageDelta);
  },
  "message.completed"(c, data, id) {
    c.put(c.own.text ?? id, { kind: "agent", text: data.message });
    c.own.text = null;
  },
  "reasoning.appended"(c, data, id) {
    c.own.thought ??= id;
    c.append(c.own.thought, "reasoning", data.reasoningDelta);
  },
  "reasoning.completed"(c, data, id) {
    c.put(c.own.thought ?? id, { kind: "reasoning", text: data.reasoning });
    c.own.thought = null;
  },
  "actions.requested"(c, data) {
    for (const { callId, toolName, name, input } of data.actions)
      c.put(callId, { kind: "tool", name: toolName ?? name, input, status: "called" });
  },
  "action.result"(c, data) {
    const { callId, output, toolName, name } = data.result;
    const shown = { output: data.error?.message ?? output, status: data.status };
    c.put(callId, { kind: "tool", name: toolName ?? name, ...shown });
  },
  "input.requested"(c, data) {
    for (const { requestId, kind, prompt, options = [], allowFreeform } of data.requests) {
      const asks = kind === "tool-approval";
      const shown = options.map(({ id, label, style }) => {
        const no = style === "danger" || /^(deny|cancel|stop|no|reject)/.test(id);
        return { id, label, kind: kind === "question" ? "choice" : no ? "deny" : "allow" };
      });
      c.ask(requestId, { prompt, options: shown, freeform: !!allowFreeform, reason: asks });
    }
  },
  "input.resolved"(c, data) {
    for (const { requestId, outcome, response } of data.resolutions) {
      const options = c.index.get(`ask-${requestId}`)?.ask.options ?? [];
      const chosen = options.find((one) => one.id === response?.optionId)?.label;
      c.answered(requestId, [chosen, response?.text].filter(Boolean).join(": ") || outcome);
    }
  },
  "authorization.required"(c, data) {
    c.notice(`Sign in to ${data.name}: ${data.description ?? ""}`);
  },
  "subagent.called"(c, data) {
    c.notice(`A child agent works: ${data.name ?? data.toolName}`);
  },
  "result.completed"(c, data) {
    c.notice(words(data.result), "result");
  },
  "turn.failed"(c, data) {
    c.notice(`The turn failed: ${data.message}`, "failed");
    c.state = "failed";
  },
  "turn.cancelled"(c) {
    c.onlyOpen([]);
    c.notice("The turn was stopped.");
    c.rest();
  },
  "session.waiting"(c) {
    c.rest();
  },
  "session.completed"(c) {
    c.notice("The session has ended.");
  },
  "session.failed"(c, data) {
    c.notice(`The session failed: ${data.message}`, "failed");
    c.state = "failed";
  },
  "dragoman.gap"(c, data) {
    c.notice(`Events are missing: ${data.reason}`);
  },
};

export default {
  title: "eve",
  framing: "ndjson",
  own: () => ({ index: 0, text: null, thought: null }),
  async begin(c, message) {
    c.session = (await c.call("POST", SESSION, { message })).sessionId;
  },
  say: (c, message) => c.call("POST", `${SESSION}/${c.session}`, { message }),
  answer(c, { request }, { option, text }) {
    const said = { requestId: request };
    if (option) said.optionId = option.id;
    if (text) said.text = text;
    return c.call("POST", `${SESSION}/${c.session}`, { inputResponses: [said] });
  },
  stop: (c) => c.call("POST", `${SESSION}/${c.session}/cancel`, {}),
  stream: (c) => ({ path: `${SESSION}/${c.session}/stream?startIndex=${c.own.index}` }),
  fresh: (c) => ({ path: `${SESSION}/${c.session}/stream?startIndex=0&follow=false` }),
  key: ({ data }) => data.meta?.id ?? null,
  frame(c, { data: { type, data, meta } }) {
    c.own.index++;
    RECORDS[type]?.(c, data ?? {}, meta?.id);
  },
};
