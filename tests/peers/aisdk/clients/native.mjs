// The vendor's own server: `streamText` of `ai` with a mock model that plays the scripts of the
// scripted backends, and the vendor's way to resume.
//
// Usage: native.mjs; prints `listening on http://…`. A page of 6.0.0 has its chat at `/6.0.0/api/chat`.
import http from "node:http";
import process from "node:process";

import { z } from "zod";

import { ASK } from "../talk.mjs";

/** What serves the pages of a major release, and of a release that cannot read what that writes. */
const RELEASES = { 5: "5.0.277", 6: "6.0.326", 7: "7.0.173", "5.0.0": "5.0.0" };
const TICK_MS = 100; // `slow` of the scripted backends
const MOST_STEPS = 5;
/** As the backends whose words `table.mjs` has. */
const REMOVE = { tool: "bash", input: { command: "rm -rf /srv/exports/2024" } };
const HOSTS = { tool: "write_file", input: { path: "/etc/hosts", content: "10.0.0.9 build\n" } };
const GRANTED = { bash: " Done, 4.1 GB freed.", write_file: "Written to /etc/hosts." };
const DENIED = {
  bash: "Understood, I left /srv/exports/2024 alone.",
  write_file:
    "Understood, I left /etc/hosts alone. You can add the line yourself: `10.0.0.9 build`.",
};
const QUESTION = {
  kind: "question",
  prompt: "Which departure do you prefer?",
  options: [
    { id: "07:40", label: "07:40" },
    { id: "09:10", label: "09:10" },
  ],
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * The texts that the person has said since the agent spoke, and the results that came since then. Files
 * were refused with the message that had them.
 */
function newest(all) {
  const prompt = all.filter(
    ({ role, content }) => role !== "user" || content.every(({ type }) => type === "text"),
  );
  const last = prompt.findLastIndex(({ role }) => role === "user");
  const first = 1 + prompt.slice(0, last).findLastIndex(({ role }) => role !== "user");
  const words = prompt
    .slice(first, last + 1)
    .flatMap(({ content }) => content)
    .filter(({ type }) => type === "text")
    .map(({ text }) => text)
    .join("\n");
  const results = prompt
    .slice(last + 1)
    .filter(({ role }) => role === "tool")
    .flatMap(({ content }) => content)
    .filter(({ type }) => type === "tool-result");
  return { words, results };
}

const denies = ({ output }) =>
  output.type === "execution-denied" || output.value?.approved === false;

/**
 * What the model says next: texts, `{tool, input}` and the pieces of a text that comes slowly.
 * Release 5 has no approvals: there a tool of the page asks, as Dragoman's does.
 */
function next(prompt, major) {
  const { words, results } = newest(prompt);
  const turn = ` (turn ${prompt.filter(({ role }) => role === "user").length})`;
  const [name, argument] = /script: (\S+) ?(\S*)$/.exec(words)?.slice(1) ?? [];
  const approval = (one) =>
    major > 5 ? one : { tool: ASK, input: { kind: "approval", tool: one.tool } };
  const asks = (text, ...tools) => (results.length === 0 ? [text, ...tools.map(approval)] : undefined);
  const outcome = (tool, at) => (denies(results[at]) ? DENIED : GRANTED)[tool];
  const given = ({ output }) => (output.type === "json" ? JSON.stringify(output.value) : output.value);
  switch (name) {
    case "text":
      return [`Basil likes six hours of sun — a south-facing sill at the café works.${turn}`];
    case "slow":
      return [{ pieces: Array.from({ length: Number(argument) }, (_, at) => `tick ${at} `) }];
    case "approve":
      return (
        asks("The old export is 4 GB; removing it frees the disk.", REMOVE) ?? [outcome("bash", 0)]
      );
    case "approve2":
      return (
        asks("Two things need a go-ahead.", REMOVE, HOSTS) ?? [
          outcome("bash", 0) + outcome("write_file", 1),
        ]
      );
    case "approve-twice":
      return (
        asks("Two things need a go-ahead.", REMOVE) ?? [
          outcome(["bash", "write_file"][results.length - 1], results.length - 1),
          ...(results.length === 1 ? [approval(HOSTS)] : []),
        ]
      );
    case "ask":
      return results.length === 0
        ? ["Two trains fit. ", { tool: ASK, input: QUESTION }]
        : [`Holding a seat on the ${given(results[0])}.`];
    case "custom":
      return results.length === 0
        ? ["The application knows the stock. ", { tool: "lookup_stock", input: { sku: "basil-7" } }]
        : [`The application says: ${given(results[0])}`];
    default:
      return [`You said: “${words}”.${turn}`];
  }
}

let ids = 0;
/** What the model says as the chunks of a provider. */
function chunksOf(said) {
  const id = `${(ids += 1)}`;
  if (typeof said === "string") return chunksOf({ pieces: [said] });
  if (said.pieces)
    return [
      { type: "text-start", id },
      ...said.pieces.map((delta) => ({ type: "text-delta", id, delta })),
      { type: "text-end", id },
    ];
  const input = JSON.stringify(said.input);
  const call = { toolCallId: `call-${id}`, toolName: said.tool, input };
  return [{ type: "tool-call", ...call }];
}

function finish(reason, major) {
  const usage =
    major === 5
      ? { inputTokens: 3, outputTokens: 5, totalTokens: 8 }
      : { inputTokens: { total: 3 }, outputTokens: { total: 5 } };
  const finishReason = major === 5 ? reason : { unified: reason, raw: reason };
  return { type: "finish", finishReason, usage };
}

/** A model of the provider that plays the scripts. */
function modelOf({ test, major }) {
  const Mock = test[`MockLanguageModelV${major - 3}`];
  const doStream = async ({ prompt, abortSignal }) => {
    const said = next(prompt, major);
    const slow = said.some(({ pieces }) => pieces);
    const reason = said.some(({ tool }) => tool) ? "tool-calls" : "stop";
    const chunks = [...said.flatMap(chunksOf), finish(reason, major)];
    const stream = new ReadableStream({
      async start(out) {
        out.enqueue({ type: "stream-start", warnings: [] });
        for (const chunk of chunks) {
          if (slow) await sleep(TICK_MS);
          if (abortSignal?.aborted) return out.error(abortSignal.reason);
          out.enqueue(chunk);
        }
        out.close();
      },
    });
    return { stream };
  };
  return new Mock({ doStream });
}

function toolsOf({ ai, major }) {
  const inputSchema = z.looseObject({});
  const guarded = ai.tool({
    inputSchema,
    execute: async () => "",
    ...(major === 6 && { needsApproval: true }),
  });
  const atPage = ai.tool({ inputSchema });
  return { bash: guarded, write_file: guarded, [ASK]: atPage, lookup_stock: atPage };
}

/** The answer to the messages of a page, as the vendor's pages write a route. */
async function answer({ ai, test, major }, messages, abortSignal) {
  const tools = toolsOf({ ai, major });
  const result = ai.streamText({
    model: modelOf({ test, major }),
    tools,
    messages: await ai.convertToModelMessages(messages, { tools, ignoreIncompleteToolCalls: true }),
    stopWhen: (ai.isStepCount ?? ai.stepCountIs)(MOST_STEPS),
    abortSignal,
    onError: () => {},
    ...(major === 7 && { toolApproval: { bash: "user-approval", write_file: "user-approval" } }),
  });
  const how = {
    originalMessages: messages,
    generateMessageId: ai.generateId,
    onError: (error) => error.message,
  };
  if (major < 7) return result.toUIMessageStreamResponse(how);
  const stream = ai.toUIMessageStream({ stream: result.stream, tools, ...how });
  return ai.createUIMessageStreamResponse({ stream });
}

/** The vendor's packages for a page of a release. */
async function vendorOf(page) {
  const major = Number(page.split(".")[0]);
  const release = RELEASES[page] ?? RELEASES[major];
  const [ai, test] = await Promise.all([import(`ai-${release}`), import(`ai-${release}/test`)]);
  return { major, ai, test };
}

/** Chat -> its answer that is under way: the text so far, who reads it, how it is stopped. */
const running = new Map();

/** Writes an answer to all who read it; it goes on when they leave, as the vendor's resume wants. */
async function run(chat, vendor, messages, response, stops) {
  const stop = new AbortController();
  const one = { text: "", readers: new Set([response]), stop, stops, over: Promise.withResolvers() };
  running.set(chat, one);
  if (stops) response.on("close", () => stop.abort());
  try {
    const { body, headers } = await answer(vendor, messages, stop.signal);
    one.headers = Object.fromEntries(headers);
    response.writeHead(200, one.headers).flushHeaders();
    for await (const piece of body.pipeThrough(new TextDecoderStream())) {
      one.text += piece;
      for (const reader of one.readers) reader.write(piece);
    }
  } catch (error) {
    if (!response.headersSent) response.writeHead(500).write(error.message);
  } finally {
    running.delete(chat);
    one.over.resolve();
    for (const reader of one.readers) reader.end();
  }
}

function resume(chat, response) {
  const one = running.get(chat);
  if (!one?.headers) return response.writeHead(204).end();
  response.writeHead(200, one.headers).write(one.text);
  one.readers.add(response);
  response.on("close", () => one.readers.delete(response));
}

/** Refuses, as an application does, a file that its model does not take and words while it works. */
function refused({ messages, trigger }, busy) {
  if (busy) return [409, "The agent is working."];
  const file = messages.at(-1).parts.some(({ type }) => type === "file");
  return file && trigger === "submit-message" ? [400, "The model takes no files."] : undefined;
}

async function serve(request, response) {
  const { pathname, searchParams } = new URL(request.url, "http://localhost");
  const [, page, chat, verb] = /^\/([\d.]+)\/api\/chat(?:\/(.+)\/(stream|stop))?$/.exec(pathname);
  if (verb === "stream") return resume(chat, response);
  if (verb === "stop") {
    running.get(chat)?.stop.abort();
    return response.end('{"success":true}');
  }
  const body = JSON.parse(await request.toArray().then((pieces) => Buffer.concat(pieces)));
  const before = running.get(body.id);
  // A stopped answer is over in no time: what comes behind it waits for that. A connection that is
  // closed may be heard of a little later.
  if (before?.stops || before?.stop.signal.aborted) await before.over.promise;
  const vendor = await vendorOf(page);
  const refusal = refused(body, running.has(body.id));
  if (refusal) return response.writeHead(refusal[0]).end(refusal[1]);
  await run(body.id, vendor, body.messages, response, searchParams.get("on_leave") === "stop");
}

const server = http.createServer((request, response) => {
  serve(request, response).catch((error) => response.destroy(error));
});
// What a page that has left does to a stream of the vendor's is not the end of the server.
process.on("unhandledRejection", (error) => console.error(error));
server.listen(0, "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
process.on("SIGTERM", () => process.exit(0));
