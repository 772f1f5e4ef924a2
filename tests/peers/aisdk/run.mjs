// Starts the servers, lets pages of the AI SDK play the scenarios, and compares what they showed with
// the table.
//
// Usage, once run.sh has installed everything:
// run.sh aisdk [--only NAME[,NAME]] [--client NAME[,NAME]] [--route NAME[,NAME]] [--list]
import path from "node:path";
import process from "node:process";

import { runCells } from "../cells.mjs";
import { startServer } from "../house.mjs";
import { likeOracle, notYet, plainPicture } from "./picture.mjs";
import { SCENES } from "./scenes.mjs";
import { expected, plain } from "./table.mjs";

/** Client -> its driver and what that is called with. */
const CLIENTS = {
  "ai 5.0.0": ["clients/driver.mjs", "5.0.0"],
  "ai 5.0.277": ["clients/driver.mjs", "5.0.277"],
  "ai 6.0.0": ["clients/driver.mjs", "6.0.0"],
  "ai 6.0.326": ["clients/driver.mjs", "6.0.326"],
  "ai 7.0.0": ["clients/driver.mjs", "7.0.0"],
  "ai 7.0.173": ["clients/driver.mjs", "7.0.173"],
  "useChat 2.0.280": ["clients/page.mjs", "2.0.280"],
  "useChat 3.0.328": ["clients/page.mjs", "3.0.328"],
  "useChat 4.0.177": ["clients/page.mjs", "4.0.177"],
  "assistant-ui 1.4.12": ["assistant-ui/driver.mjs"],
};

const here = import.meta.dirname;

async function startCompressing(root, { url }) {
  const words = [path.join(here, "../compressing/proxy.mjs"), url];
  const server = await startServer(root, process.execPath, words);
  return { name: "the compressing proxy", server, env: { PEERS_COMPRESSING: server.url } };
}

async function startNative(root) {
  const server = await startServer(root, process.execPath, [path.join(here, "clients/native.mjs")]);
  return { name: "the vendor's server", server, env: { PEERS_NATIVE: server.url } };
}

function cellOf(name, client, route) {
  const { script, act } = SCENES[name].asks ?? {};
  // It ends what is open before it sends.
  const ends = client.startsWith("assistant-ui") && act === "words";
  return { name, client, route, script, act: ends ? "closed" : act };
}

await runCells({
  folder: here,
  clients: CLIENTS,
  scenes: SCENES,
  oracle: "native",
  expected: (name, client, route, oracle) =>
    oracle
      ? { page: "the vendor's server", shows: likeOracle(oracle, cellOf(name, client, route)) }
      : expected(name, client, route),
  notYet: (...cell) => notYet(cellOf(...cell)),
  plain: (line) => plainPicture(plain(line)),
  tables: (route) =>
    `[[routes]]\nname = "${route}-page"\nbackends = ["${route}"]\naisdk = { memory = "page" }\n`,
  beside: [startCompressing, startNative],
});
