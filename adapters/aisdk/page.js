/**
 * A client of AI SDK UI for a browser, as a page on `useChat`; what its members are is said in
 * `proxy/ui/static/parts/frontend.js`. It keeps the messages as such a page does: an answer is a
 * part of the agent's last message.
 */

const ASK = "dragoman_ask";
const words = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** Send the conversation. */
function post(c, messages) {
  return c.run("", { id: c.session, messages, trigger: "submit-message" });
}

const tool = (c, id) => c.own.agent?.parts.findLast((part) => part.toolCallId === id);

function output(c, id, fields) {
  Object.assign(tool(c, id) ?? {}, fields);
  if (!c.own.asks.has(id)) {
    const status = { "output-error": "failed", "output-denied": "denied" }[fields.state] ?? "completed";
    c.put(id, { kind: "tool", output: fields.errorText ?? fields.output, status });
  }
}

/** What a chunk changes, by its type. */
const CHUNKS = {
  start(c, { messageId, messageMetadata }) {
    c.state = "running";
    c.own.public = messageMetadata?.dragoman?.session ?? c.own.public;
    if (c.own.agent?.id === messageId) return;
    c.own.agent = { id: messageId, role: "assistant", parts: [] };
    c.own.messages.push(c.own.agent);
  },
  "start-step": (c) => c.own.agent?.parts.push({ type: "step-start" }),
  "text-start"(c, { id }) {
    c.own.open[id] = { type: "text", text: "", state: "done" };
    c.own.agent?.parts.push(c.own.open[id]);
    c.put(`text-${id}`, { kind: "agent" });
  },
  "text-delta"(c, { id, delta }) {
    if (c.own.open[id]) c.own.open[id].text += delta;
    c.append(`text-${id}`, "agent", delta);
  },
  "reasoning-delta": (c, { id, delta }) => c.append(`thought-${id}`, "reasoning", delta),
  "tool-input-available"(c, { toolCallId, toolName, input }) {
    c.own.agent?.parts.push({ type: `tool-${toolName}`, toolCallId, state: "input-available", input });
    if (toolName !== ASK) return c.put(toolCallId, { kind: "tool", name: toolName, input, status: "called" });
    c.own.asks.add(toolCallId);
    const options = (input.options ?? []).map((one) => ({ ...one, kind: one.decision ?? "choice" }));
    const skip = { id: "decline", label: "Decline", kind: "skip" };
    const request = input.requestId ?? toolCallId.replace(/^ask-/, "");
    const freeform = input.kind === "question" && (input.freeform ?? !options.length);
    c.ask(request, { prompt: input.prompt, options: [...options, skip], freeform, call: toolCallId });
  },
  "tool-approval-request"(c, { approvalId, toolCallId }) {
    Object.assign(tool(c, toolCallId) ?? {}, { state: "approval-requested", approval: { id: approvalId } });
    const prompt = c.own.prompts.get(approvalId) ?? tool(c, toolCallId)?.type ?? "";
    c.ask(approvalId, { prompt, options: c.YES_NO, reason: true, call: toolCallId, approval: true });
  },
  "tool-output-available": (c, { toolCallId, output: value }) => output(c, toolCallId, { state: "output-available", output: value }),
  "tool-output-error": (c, { toolCallId, errorText }) => output(c, toolCallId, { state: "output-error", errorText }),
  "tool-output-denied": (c, { toolCallId }) => output(c, toolCallId, { state: "output-denied" }),
  "data-dragoman-request"(c, { data }) {
    c.own.prompts.set(data.id, data.prompt);
    if (data.state !== "open") c.answered(data.id, data.state);
  },
  "data-dragoman-message"(c, { data }, id) {
    c.put(`said-${id}`, { kind: "user", text: data.text });
  },
  "data-dragoman-child": (c, { data }) => c.notice(`A child agent: ${data.name ?? ""} ${data.state ?? data.status ?? ""}`),
  "data-dragoman-child-text": (c, { data }) => c.notice(`${data.name ?? "A child"}: ${data.text}`),
  "data-dragoman-refused": (c, { data }) => c.notice(words(data.message ?? data), "refused"),
  "data-dragoman-notice": (c, { data }) => c.notice(words(data.text ?? data)),
  "data-dragoman-gap": (c) => c.notice("Events are missing."),
  abort: (c) => c.notice("The turn was stopped."),
  error(c, { errorText }) {
    c.onlyOpen([]);
    c.notice(`The turn failed: ${errorText}`, "failed");
    c.state = "failed";
  },
  finish(c, { messageMetadata }) {
    if (messageMetadata?.dragoman?.outcome !== "asked") c.onlyOpen([]);
    c.state = c.asks.length ? "waiting" : "idle";
  },
};

export default {
  title: "AI SDK UI",
  framing: "sse",
  runs: true,
  replays: true,
  alone: true,
  own: () => ({ public: null, messages: [], agent: null, open: {}, asks: new Set(), prompts: new Map() }),
  async begin(c, text) {
    c.session = `talk-${crypto.randomUUID()}`;
    await this.say(c, text);
  },
  async say(c, text) {
    const message = { id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text }] };
    await post(c, [...c.own.messages, message]);
    c.own.messages.push(message);
    c.put(message.id, { kind: "user", text });
  },
  async answer(c, { request, call, approval }, { option, text }) {
    const part = tool(c, call);
    const before = { ...part };
    const reason = text && { reason: text };
    if (approval) Object.assign(part, { state: "approval-responded", approval: { id: request, approved: option.kind === "allow", ...reason } });
    else Object.assign(part, { state: "output-available", output: option?.id ?? text });
    // The stock predicates send when all has an answer.
    if (c.asks.some((one) => ["approval-requested", "input-available"].includes(tool(c, one.call)?.state))) return false;
    try {
      await post(c, c.own.messages);
    } catch (error) {
      Object.assign(part, before);
      throw error;
    }
    return true;
  },
  stop: (c) => c.call("POST", `/${c.session}/stop`),
  stream: (c) => ({ path: `/${c.session}/stream?on_return=replay` }),
  fresh: (c) => ({ path: `/${c.session}/stream?on_return=replay` }),
  newest: true,
  key: ({ id }) => id,
  frame(c, { id, data }) {
    const change = Object.hasOwn(CHUNKS, data.type) ? CHUNKS[data.type] : null;
    change?.(c, data, id);
  },
};
