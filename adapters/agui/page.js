/** An AG-UI client for a browser; `proxy/ui/static/parts/frontend.js` says what its members are. */

const ASK = "dragoman_ask";
const words = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** Run the agent on what is new. */
function run(c, more) {
  const body = { threadId: c.session, runId: `run-${crypto.randomUUID()}`, protocolVersion: "1.0" };
  return c.run("", { ...body, messages: c.own.said, tools: [], context: [], state: {}, forwardedProps: {}, ...more });
}

/** Show what a run asks at its end; all else that was asked is over. */
function pause(c, interrupts) {
  for (const { id, reason, message, responseSchema } of interrupts) {
    const approval = ["tool-approval", "confirmation"].includes(reason);
    const listed = (responseSchema?.enum ?? responseSchema?.examples ?? []).map((one) => ({ id: one, label: one, kind: "choice" }));
    const skip = { id: "cancelled", label: "Decline", kind: "skip" };
    c.ask(id, {
      prompt: message ?? reason,
      options: approval ? c.YES_NO : [...listed, skip],
      freeform: reason === "input_required" && !responseSchema?.enum,
      reason: approval,
      approval,
    });
  }
  c.onlyOpen(interrupts.map(({ id }) => id));
}

/** What an event changes, by its type. */
const EVENTS = {
  RUN_STARTED(c, { input }) {
    c.state = "running";
    for (const { id, role, content } of input?.messages ?? []) if (role === "user") c.put(id, { kind: "user", text: words(content) });
  },
  RUN_FINISHED(c, { outcome }) {
    pause(c, outcome?.interrupts ?? []);
    if (outcome?.type === "cancelled") c.notice("The turn was stopped.");
    c.state = c.asks.length ? "waiting" : "idle";
  },
  RUN_ERROR(c, { message }) {
    c.onlyOpen([]);
    c.notice(`The turn failed: ${message}`, "failed");
    c.state = "failed";
  },
  TEXT_MESSAGE_START: (c, { messageId, role }) => c.put(messageId, { kind: role === "user" ? "user" : "agent" }),
  TEXT_MESSAGE_CONTENT(c, { messageId, delta }) {
    c.put(messageId, {}).text += delta;
  },
  REASONING_MESSAGE_CONTENT: (c, { messageId, delta }) => c.append(messageId, "reasoning", delta),
  TOOL_CALL_START(c, { toolCallId, toolCallName }) {
    // What is asked is in the interrupts too.
    if (toolCallName === ASK) c.own.asks.add(toolCallId);
    else c.put(toolCallId, { kind: "tool", name: toolCallName, input: "", status: "called" });
  },
  TOOL_CALL_ARGS(c, { toolCallId, delta }) {
    if (!c.own.asks.has(toolCallId)) c.put(toolCallId, {}).input += delta;
  },
  TOOL_CALL_RESULT(c, { toolCallId, content, metadata }) {
    if (c.own.asks.has(toolCallId)) return;
    c.put(toolCallId, { kind: "tool", output: content, status: metadata?.dragoman?.status ?? "completed" });
  },
  SUBAGENT_STARTED: (c, { name }) => c.notice(`A child agent works: ${name}`),
  CUSTOM(c, { name, value }) {
    if (name === "dragoman.resolved") return c.answered(value.interruptId, value.outcome);
    if (name === "dragoman.turn_failed") {
      c.notice(`The turn failed: ${value.message ?? value.code ?? ""}`, "failed");
      c.own.failed = true;
    } else if (!name.startsWith("dragoman.ignored")) c.notice(`${name.replace("dragoman.", "")}: ${words(value?.message ?? value)}`);
  },
};

export default {
  title: "AG-UI",
  framing: "sse",
  runs: true,
  own: () => ({ after: null, said: [], asks: new Set(), answers: new Map(), failed: false }),
  async begin(c, text) {
    c.session = `talk-${crypto.randomUUID()}`;
    await this.say(c, text);
  },
  async say(c, content) {
    const message = { id: crypto.randomUUID(), role: "user", content };
    const resume = c.asks.map(({ request }) => ({ interruptId: request, status: "cancelled" }));
    await run(c, { messages: [...c.own.said, message], ...(resume.length && { resume }) });
    c.own.said.push(message);
    c.put(message.id, { kind: "user", text: content });
  },
  async answer(c, { request, approval }, { option, text }) {
    const more = text && { reason: text };
    const said = { interruptId: request, status: "resolved" };
    if (option?.kind === "skip") said.status = "cancelled";
    else said.payload = approval ? { approved: option.kind === "allow", ...more } : (option?.label ?? text);
    c.own.answers.set(request, said);
    // A run is resumed with all its answers at once.
    if (c.asks.some((one) => !c.own.answers.has(one.request))) return false;
    const resume = c.asks.map((one) => c.own.answers.get(one.request));
    c.own.answers.clear();
    await run(c, { resume });
    for (const { interruptId } of resume) c.answered(interruptId, c.index.get(`ask-${interruptId}`).ask.mine?.how);
    return true;
  },
  stop: null,
  unstoppable: "AG-UI stops a run by leaving it, and a page that is cut off would stop it too.",
  stream: (c) => ({
    path: `/threads/${encodeURIComponent(c.session)}`,
    headers: c.own.after ? { "last-event-id": c.own.after } : {},
  }),
  fresh: (c) => ({ path: `/threads/${encodeURIComponent(c.session)}` }),
  key: ({ id }) => id,
  frame(c, { id, data }) {
    c.own.after = id;
    EVENTS[data.type]?.(c, data);
    if (data.type === "RUN_FINISHED" && c.own.failed) c.state = "failed";
    if (data.type === "RUN_FINISHED") c.own.failed = false;
  },
};
