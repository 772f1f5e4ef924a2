/** An Engine client for a browser; `proxy/ui/static/parts/frontend.js` says what its members are. */

const LIMIT = { continue: "allow", stop: "deny", cancel: "skip", decline: "skip" };
const label = (option) => (typeof option === "string" ? option : (option.label ?? option.text ?? option.value));

/** Add to the open block. */
function write(c, kind, { text, timestamp }) {
  c.own.block ??= `block-${timestamp}`;
  c.append(c.own.block, kind, text);
}

function endBlock(c) {
  c.own.block = null;
}

/** What an event changes, by its type. */
const EVENTS = {
  thread_lifecycle(c, { phase }) {
    endBlock(c);
    if (phase === "started") c.state = "running";
    else c.onlyOpen([]);
    if (phase === "completed") c.state = "idle";
    if (phase === "errored") c.state = "failed";
  },
  error: (c, { message, error }) => c.notice(`The turn failed: ${message ?? error}`, "failed"),
  message_received: (c, { message, timestamp }) => c.put(`said-${timestamp}`, { kind: "user", text: message }),
  content_block_start: endBlock,
  content_block_stop: endBlock,
  text_delta: (c, data) => write(c, "agent", data),
  thinking_delta: (c, data) => write(c, "reasoning", data),
  tool_call(c, { tool_call_id, tool, input }) {
    c.put(tool_call_id, { kind: "tool", name: tool, input, status: "called" });
  },
  tool_result(c, { tool_call_id, output, error, reason }) {
    const status = error ? (error === "permission_denied" ? "denied" : "failed") : "completed";
    c.put(tool_call_id, { kind: "tool", output: error ? (reason ?? error) : output, status });
  },
  hitl_request(c, { request_id, kind, question, options }) {
    const permission = kind === "permission";
    const choices = (options ?? []).map(label);
    c.ask(request_id, {
      prompt: question,
      options: permission
        ? c.YES_NO.map((one) => ({ ...one, answer: one.id === "allow" ? "yes" : "no" }))
        : choices.map((one) => ({ id: one, label: one, answer: one, kind: LIMIT[one] ?? "choice" })),
      freeform: !permission && !choices.length,
      reason: permission,
    });
    c.state = "waiting";
  },
  hitl_resolved(c, { request_id, outcome }) {
    c.answered(request_id, outcome ?? "answered");
    c.state = "running";
  },
  compaction_event: (c) => c.notice("The conversation was shortened."),
  working_memory_update: (c) => c.notice("The agent wrote to its notes."),
  gap: (c, { reason }) => c.notice(`Events are missing: ${reason}`),
};

export default {
  title: "Engine",
  framing: "sse",
  runs: true,
  mute: true,
  own: () => ({ after: 0, block: null, mine: 0 }),
  async begin(c, words) {
    c.session = `talk-${crypto.randomUUID()}`;
    await this.say(c, words);
  },
  async say(c, message) {
    await c.run("/execute", { message, task_id: c.session });
    // No event of an Engine repeats what its own client said.
    c.put(`mine-${c.own.mine++}`, { kind: "user", text: message });
  },
  answer(c, { request, reason }, { option, text }) {
    const said = { task_id: c.session, request_id: request, answer: option?.answer ?? text };
    if (reason && text) said.feedback = text;
    return c.call("POST", "/hitl/respond", said);
  },
  stop: null,
  unstoppable: "An Engine has no request that stops a turn.",
  stream: (c) => ({
    path: `/execute/replay?${new URLSearchParams({ after: c.own.after, task_id: c.session })}`,
  }),
  fresh: (c) => ({ path: `/execute/replay?${new URLSearchParams({ after: 0, task_id: c.session })}` }),
  key: ({ event, data }) => (event === "heartbeat" ? null : (data?.timestamp ?? null)),
  frame(c, { event, data }) {
    // Asked for in milliseconds, told as a date.
    if (data.timestamp) c.own.after = Date.parse(data.timestamp);
    EVENTS[event]?.(c, data);
  },
};
