// Joins one generation's client, the scenarios, and the runner that started this process.
import process from "node:process";

import { runScenarios } from "./conversation.mjs";

/**
 * Runs the scenarios that the runner wants over one client.
 *
 * Reads `EVE_HOST` (base address of the eve face), `EVE_TOKEN` (optional bearer token),
 * `EVE_SCRIPTS` (optional JSON: other messages than `script: <name>`, for another server) and
 * `PEERS_ONLY` (names, comma-separated). Reports every scenario to the parent process.
 */
export async function drive({ client, ...generation }) {
  const host = process.env.EVE_HOST.replace(/\/$/, "");
  const token = process.env.EVE_TOKEN;
  const scripts = JSON.parse(process.env.EVE_SCRIPTS ?? "{}");
  const auth = token === undefined ? undefined : { bearer: token };

  const answers = new Map();
  process.on("message", ({ type }) => answers.get(type)?.resolve());
  const answerOf = (type) => {
    if (!answers.has(type)) answers.set(type, Promise.withResolvers());
    return answers.get(type).promise;
  };

  const app = {
    ...generation,
    host,
    headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
    client: (at = host) => client({ host: at, auth }),
    attach: (from, state) => from.resume(state),
    script: (name, argument) =>
      [scripts[name] ?? `script: ${name}`, argument].filter((part) => part !== undefined).join(" "),
    restartServer(name) {
      process.send({ type: "restart", name });
      return { ended: answerOf("ended"), back: answerOf("back") };
    },
  };
  await runScenarios(app, process.env.PEERS_ONLY.split(","), (result) =>
    process.send({ type: "result", ...result }),
  );
  process.send({ type: "end" }, () => process.exit(0));
}
