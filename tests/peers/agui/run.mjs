// Starts the servers, lets the clients play the scenarios, and compares what they showed with the
// table.
//
// Usage, once run.sh has installed everything:
// run.sh agui [--only NAME[,NAME]] [--client NAME[,NAME]] [--route NAME[,NAME]] [--list]
import path from "node:path";
import process from "node:process";

import { runCells } from "../cells.mjs";
import { startServer } from "../house.mjs";
import { SCENES } from "./scenes.mjs";
import { expected, plain } from "./table.mjs";

/** Client -> its driver and what that is called with. */
const CLIENTS = {
  "client 0.0.47": ["clients/driver.mjs", "0.0.47"],
  "client 0.0.59": ["clients/driver.mjs", "0.0.59"],
  "client 1.0.0": ["clients/driver.mjs", "1.0.0"],
  copilotkit: ["copilotkit/driver.mjs"],
  "copilotkit react": ["react/driver.mjs"],
  "assistant-ui": ["assistant-ui/driver.mjs"],
  "agent-framework 1.7.0": ["python/driver.mjs"],
};
const QUIET = { COPILOTKIT_TELEMETRY_DISABLED: "true", DO_NOT_TRACK: "1" };
const here = import.meta.dirname;

async function startRuntime(root, { url }, routes) {
  const words = [path.join(here, "copilotkit/runtime.mjs"), url, ...routes];
  const server = await startServer(root, process.execPath, words, QUIET);
  return { name: "CopilotKit's runtime", server, env: { AGUI_RUNTIME: server.url } };
}

await runCells({
  folder: here,
  clients: CLIENTS,
  scenes: SCENES,
  expected,
  plain,
  env: QUIET,
  tables: (route) =>
    `[[routes]]\nname = "${route}-page"\nbackends = ["${route}"]\nagui = { memory = "page" }\n`,
  beside: [startRuntime],
});
