// Watches a session that began elsewhere with the unmodified eve client, and allows what it asks.
//
// Usage: approve.mjs URL SESSION. Prints a JSON line: the messages, calls and results, and what was asked.
import process from "node:process";

import { Client } from "eve/client";

const ENDS = ["turn.completed", "turn.failed", "turn.cancelled"];
const [, , host, id] = process.argv;
const session = new Client({ host }).sessions.attach(id, { streamIndex: 0 });
const seen = { user: [], said: [], calls: [], results: [], asked: [] };
const open = new Set();

async function answer(requests) {
  for (const { requestId } of requests) open.add(requestId);
  seen.asked.push(...requests.map(({ action }) => action.toolName));
  await session.respond(requests.map(({ requestId, options }) => ({ requestId, optionId: options[0].id })));
}

for await (const { type, data } of session.stream({ startIndex: 0 })) {
  if (type === "message.received") seen.user.push(data.message);
  if (type === "message.completed" && data.message) seen.said.push(data.message);
  if (type === "actions.requested") seen.calls.push(...data.actions.map(({ input }) => input));
  if (type === "action.result") seen.results.push(data.result.output);
  if (type === "input.requested") await answer(data.requests);
  if (type === "input.resolved") for (const { requestId } of data.resolutions) open.delete(requestId);
  // A turn is closed while it waits for an answer, too.
  if (ENDS.includes(type) && open.size === 0) {
    seen.end = type;
    break;
  }
}
process.stdout.write(`${JSON.stringify(seen)}\n`);
process.exit(0);
