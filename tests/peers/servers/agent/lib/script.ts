// A scripted language model. The latest user text picks the scene; tool
// results already in the prompt (after that user message) pick the step.
import { MockLanguageModelV4 } from "ai/test";

type Any = any;

const pause = (ms: number, signal?: AbortSignal) =>
  new Promise<void>((res, rej) => {
    if (signal?.aborted) return rej(signal.reason);
    const t = setTimeout(res, ms);
    signal?.addEventListener("abort", () => { clearTimeout(t); rej(signal.reason); }, { once: true });
  });

function textOf(content: Any): string {
  if (typeof content === "string") return content;
  return content.filter((p: Any) => p.type === "text").map((p: Any) => p.text).join("\n");
}

function isScene(text: string) { return /^scene:/m.test(text); }

function view(prompt: Any[]) {
  let at = -1;
  prompt.forEach((m, i) => { if (m.role === "user" && isScene(textOf(m.content))) at = i; });
  const user = at < 0 ? "scene: plain" : textOf(prompt[at].content);
  const after = prompt.slice(at + 1);
  const results = after.flatMap((m: Any) =>
    m.role === "tool" ? m.content.filter((p: Any) => p.type === "tool-result") : []);
  const laterUsers = after.filter((m: Any) => m.role === "user").map((m: Any) => textOf(m.content));
  return { user, results, laterUsers, all: prompt };
}

type Step =
  | { text?: string; reasoning?: string; calls?: { name: string; input: Any }[]; delayMs?: number; size?: number }
  | { error: Error }
  | { streamError: unknown; text?: string };

function decide(options: Any): Step {
  const v = view(options.prompt);
  const m = /^scene:\s*(\S+)\s*([\s\S]*)$/m.exec(v.user)!;
  const scene = m[1]; const arg = (m[2] ?? "").trim();
  const tools: string[] = (options.tools ?? []).map((t: Any) => t.name);
  const last = v.results.at(-1);
  const show = (r: Any) => JSON.stringify(r?.output?.value ?? r?.output ?? null);
  const structured = tools.find((t) => t === "eve__reply" || t === "final_output");
  const n = v.results.length;
  switch (scene) {
    case "reason": return { reasoning: "First I weigh the two ports. Then I pick the nearer one.", text: "The nearer port is Brest." };
    case "weather":
      return n === 0
        ? { text: "Let me look that up.", calls: [{ name: "get_weather", input: { city: arg || "Lisbon" } }] }
        : { text: `Weather report: ${show(last)}` };
    case "twotools":
      return n === 0
        ? { calls: [{ name: "get_weather", input: { city: "Oslo" } }, { name: "get_weather", input: { city: "Rome" } }] }
        : { text: `Both done (${n} results).` };
    case "toolfail":
      return n === 0 ? { calls: [{ name: "break_things", input: { why: "test" } }] } : { text: `The tool said: ${show(last)}` };
    case "badinput":
      return n === 0 ? { calls: [{ name: "get_weather", input: { town: 5 } }] } : { text: `After bad input: ${show(last)}` };
    case "approve":
      return n === 0
        ? { text: "This needs a go-ahead.", calls: [{ name: "send_payment", input: { to: "Ada", cents: 1250 } }] }
        : { text: `Payment outcome: ${show(last)}${arg === "slowly" ? " word".repeat(120) : ""}`, delayMs: arg === "slowly" ? 250 : undefined };
    case "pay":
      return n === 0
        ? { text: arg, calls: [{ name: "send_payment", input: { to: arg, cents: 1 } }] }
        : { text: `Payment to ${arg}: ${show(last)}` };
    case "approve2":
      return n === 0
        ? { calls: [{ name: "send_payment", input: { to: "Ada", cents: 100 } }, { name: "send_payment", input: { to: "Bob", cents: 200 } }] }
        : { text: `Two outcomes: ${v.results.map(show).join(" | ")}` };
    case "ask": {
      // eve >= 0.69 asks with { question, options[{label,description}] };
      // older releases with { prompt, options[{id,label}], allowFreeform }.
      const def = (options.tools ?? []).find((t: Any) => t.name === "ask_question");
      const oldForm = JSON.stringify(def?.inputSchema ?? {}).includes('"prompt"');
      if (n > 0) return { text: `You answered: ${show(last)}` };
      if (arg === "open") return { calls: [{ name: "ask_question", input: oldForm
        ? { prompt: "Which harbour do you mean?", allowFreeform: true } : { question: "Which harbour do you mean?" } }] };
      return { calls: [{ name: "ask_question", input: oldForm
        ? { prompt: "Which colour?", allowFreeform: true, options: [
            { id: "red", label: "Red", description: "A warm colour." }, { id: "blue", label: "Blue", description: "A cold colour." }] }
        : { question: "Which colour?", options: [
            { label: "Red", description: "A warm colour." }, { label: "Blue", description: "A cold colour." }] } }] };
    }
    case "stream-progress":
      return n === 0 ? { calls: [{ name: "count_up", input: { upTo: 3 } }] } : { text: `Counted: ${show(last)}` };
    case "structured":
      return structured
        ? { calls: [{ name: structured, input: { title: "Tides", count: 4 } }] }
        : { text: JSON.stringify({ title: "Tides", count: 4 }) };
    case "delegate": {
      const name = tools.includes("researcher") ? "researcher" : "agent";
      const reply = v.laterUsers.find((t) => /task/i.test(t) && /Child says/.test(t));
      if (n === 0) return { text: "Handing over.", calls: [{ name, input: { message: "scene: child dig into tides" } }] };
      if (reply || /Child says/.test(show(last))) return { text: `Delegate came back.` };
      return { text: "Waiting for the delegate." };
    }
    case "delegate-approve":
      if (n === 0) return { calls: [{ name: "agent", input: { message: "scene: approve" } }] };
      return { text: /Payment outcome/.test(JSON.stringify(v.all.slice(-3))) ? "The copy finished." : "Waiting for the copy." };
    // The next ones have the shape of a script of the scripted eve, for the comparison.
    case "as-tool":
      return n === 0
        ? { reasoning: "A look at the sky first.", text: "Looking it up.", calls: [{ name: "get_weather", input: { city: "Oslo" } }] }
        : { text: "The sky is clear." };
    case "as-tools":
      return n === 0
        ? { text: "Two places.", calls: [{ name: "get_weather", input: { city: "Oslo" } }, { name: "get_weather", input: { city: "Rome" } }] }
        : { text: "Both are clear." };
    case "as-toolfail":
      return n === 0 ? { text: "Trying.", calls: [{ name: "break_things", input: { why: "test" } }] } : { text: "It broke." };
    case "as-approve2":
      return n === 0
        ? { text: "Two payments.", calls: [{ name: "send_payment", input: { to: "Ada", cents: 100 } }, { name: "send_payment", input: { to: "Bob", cents: 200 } }] }
        : { text: "Both are decided." };
    case "as-approve-twice":
      return n < 2
        ? { text: `Payment ${n + 1}.`, calls: [{ name: "send_payment", input: { to: "Ada", cents: 100 + n } }] }
        : { text: "Both are decided." };
    case "as-ask": {
      if (n > 0) return { text: `You answered: ${show(last)}` };
      const def = (options.tools ?? []).find((t: Any) => t.name === "ask_question");
      const oldForm = JSON.stringify(def?.inputSchema ?? {}).includes('"prompt"');
      const labels = arg === "open" ? undefined : ["07:40", "09:10"];
      return { text: "One thing is missing.", calls: [{ name: "ask_question", input: oldForm
        ? { prompt: "Which one?", allowFreeform: true, ...(labels && { options: labels.map((l) => ({ id: l, label: l })) }) }
        : { question: "Which one?", ...(labels && { options: labels.map((l) => ({ label: l, description: l })) }) } }] };
    }
    case "as-childask":
      if (n === 0) return { text: "A colleague does it.", calls: [{ name: "agent", input: { message: "scene: bare-approve" } }] };
      return { text: /Payment outcome/.test(JSON.stringify(v.all.slice(-3))) ? "The copy finished." : "Waiting for the copy." };
    case "bare-approve":
      return n === 0 ? { calls: [{ name: "send_payment", input: { to: "Ada", cents: 1250 } }] } : { text: `Payment outcome: ${show(last)}` };
    case "child": return { text: "Child says: tides follow the moon." };
    case "slow": {
      const words = Number(/\d+/.exec(arg)?.[0] ?? 12);
      return { text: Array.from({ length: words }, (_, i) => `word${i + 1}`).join(" "), delayMs: 250, size: 1 };
    }
    case "ponder": return n === 0 && v.laterUsers.length === 0
      ? { reasoning: Array.from({ length: 40 }, (_, i) => `thought${i + 1}`).join(" "), text: "Done thinking.", delayMs: 250, size: 1 }
      : { text: `Changed course: ${v.laterUsers.at(-1)}` };
    case "ledger":
      return n === 0 ? { calls: [{ name: "read_ledger", input: { page: 3 } }] } : { text: `Ledger: ${show(last)}` };
    case "loop":
      return n < 4 ? { calls: [{ name: "get_weather", input: { city: `City${n + 1}` } }] } : { text: "Looped four times." };
    case "fail": return { error: new Error("model backend exploded") };
    case "failmid": return { text: "Half an ans", streamError: new Error("stream broke") };
    case "length": return { text: "Cut off here" , };
    case "context": {
      const ctx = v.all.filter((p: Any) => p.role === "user").map((p: Any) => textOf(p.content)).filter((t: string) => t.includes("context"));
      return { text: `Context seen: ${JSON.stringify(ctx)}` };
    }
    case "heard": {
      // All but the message that asks, which may be a part of a longer one.
      const before = v.all.flatMap((p: Any) => (typeof p.content === "string" ? [p.content] : p.content)).slice(0, -1);
      return { text: `Heard: ${JSON.stringify(before).includes(JSON.stringify(arg).slice(1, -1)) ? "yes" : "no"}` };
    }
    case "files": {
      const parts = v.all.filter((p: Any) => p.role === "user").flatMap((p: Any) => Array.isArray(p.content) ? p.content : []);
      return { text: `Parts seen: ${parts.map((p: Any) => p.type + (p.mediaType ? `(${p.mediaType})` : "")).join(", ")}` };
    }
    default: return { text: "Hello from the scripted model. This reply arrives in small pieces." };
  }
}

const usage = (i: number, o: number) => ({
  inputTokens: { total: i, noCache: i, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: o, text: o, reasoning: 0 },
});

function chunks(text: string, size: number): string[] {
  const words = text.match(/\S+\s*/g) ?? [text];
  const out: string[] = [];
  for (let i = 0; i < words.length; i += size) out.push(words.slice(i, i + size).join(""));
  return out;
}

let counter = 0;

async function* parts(options: Any): AsyncGenerator<Any> {
  const step = decide(options);
  if ("error" in step) throw step.error;
  yield { type: "stream-start", warnings: [] };
  yield { type: "response-metadata", id: `resp-${++counter}`, modelId: "scripted-1", timestamp: new Date(0) };
  const s = step as Any;
  const wait = s.delayMs ?? 20;
  if (s.reasoning) {
    yield { type: "reasoning-start", id: "r0" };
    for (const c of chunks(s.reasoning, s.size ?? 3)) { yield { type: "reasoning-delta", id: "r0", delta: c }; await pause(wait, options.abortSignal); }
    yield { type: "reasoning-end", id: "r0" };
  }
  if (s.text !== undefined) {
    yield { type: "text-start", id: "t0" };
    for (const c of chunks(s.text, s.size ?? 3)) { yield { type: "text-delta", id: "t0", delta: c }; await pause(wait, options.abortSignal); }
    if (s.streamError) { yield { type: "error", error: s.streamError }; return; }
    yield { type: "text-end", id: "t0" };
  }
  for (const [i, call] of (s.calls ?? []).entries()) {
    const id = `call-${counter}-${i + 1}`;
    const json = JSON.stringify(call.input);
    yield { type: "tool-input-start", id, toolName: call.name };
    for (let k = 0; k < json.length; k += 12) { yield { type: "tool-input-delta", id, delta: json.slice(k, k + 12) }; await pause(5, options.abortSignal); }
    yield { type: "tool-input-end", id };
    yield { type: "tool-call", toolCallId: id, toolName: call.name, input: json };
  }
  const toolCalls = (s.calls ?? []).length > 0;
  yield { type: "finish", finishReason: { unified: toolCalls ? "tool-calls" : "stop", raw: undefined }, usage: usage(42, 17) };
}

export const model = new MockLanguageModelV4({
  provider: "scripted", modelId: "scripted-1",
  doStream: async (options: Any) => {
    const it = parts(options);
    const first = await it.next();
    return {
      stream: new ReadableStream({
        async start(c) {
          try {
            if (!first.done) c.enqueue(first.value);
            for await (const p of it) c.enqueue(p);
            c.close();
          } catch (e) { c.error(e); }
        },
      }),
    };
  },
  doGenerate: async (options: Any) => {
    const content: Any[] = []; let finish: Any;
    let text = "", reasoning = "";
    for await (const p of parts(options)) {
      if (p.type === "text-delta") text += p.delta;
      if (p.type === "reasoning-delta") reasoning += p.delta;
      if (p.type === "tool-call") content.push(p);
      if (p.type === "finish") finish = p;
      if (p.type === "error") throw p.error;
    }
    if (reasoning) content.unshift({ type: "reasoning", text: reasoning });
    if (text) content.unshift({ type: "text", text });
    return { content, finishReason: finish.finishReason, usage: finish.usage, warnings: [], response: { id: `gen-${++counter}`, modelId: "scripted-1", timestamp: new Date(0) } };
  },
});
