// Starts the servers, lets the clients run their scenarios against them, and counts.
//
// Usage, once run.sh has installed everything: run.sh [--only NAME[,NAME]] [--gen VERSION] [--list]
// With EVE_HOST set, that server is used as it is and the scenarios that restart one are left out.
import { execFile, fork, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import readline from "node:readline";
import { parseArgs, promisify } from "node:util";

import { SCENARIOS } from "./conversation.mjs";

// Only a process that hangs is as slow: the machine may have much else to do.
const START_LIMIT_MS = 600_000;
const STOP_LIMIT_MS = 60_000;
const LISTENING = /^listening on (http:\/\/\S+)/;
const MAIN_ROUTE = "engine";
const GENERATIONS = { "0.30.8": "T", "0.80.1": "S" };

const cache = import.meta.dirname;
const root = process.argv[2];
const started = Date.now();
const running = new Set();
const counts = { passed: 0, failed: 0 };

const { values: options } = parseArgs({
  args: process.argv.slice(3),
  options: {
    only: { type: "string", multiple: true },
    gen: { type: "string", multiple: true },
    list: { type: "boolean" },
  },
});
const only = options.only?.flatMap((names) => names.split(","));
const python = path.join(root, ".venv/bin/python");
const dragoman = path.join(root, ".venv/bin/dragoman");
const KEY = "peers-key";
const PAGES = "pages";
/** Dialect -> what the JavaScript of its page prints last. */
const LAST_WORDS = { herm: "session.status_idle", eve: "waiting", engine: "completed" };

/** Route -> dialect of its backend, options of the scripted one, the rest of its table. */
const BACKENDS = {
  engine: ["engine", [], 'auth = { header = "X-Engine-Key", env = "PEERS_KEY" }'],
  herm: [
    "herm",
    [],
    `auth = { bearer_env = "PEERS_KEY" }
create = { agent = "agent_1", environment_id = "env_1", user_id = "user_1" }`,
  ],
  "eve-t": ["eve", ["--generation", "T"], 'auth = { bearer_env = "PEERS_KEY" }'],
  "eve-s": ["eve", ["--generation", "S2"], 'auth = { bearer_env = "PEERS_KEY" }'],
};

function note(who, { name, ok, ms, error }) {
  counts[ok ? "passed" : "failed"] += 1;
  console.log(`${ok ? "PASS" : "FAIL"} ${who} ${name} (${ms} ms)`);
  if (error) console.log(error.replace(/^/gm, "     "));
}

function fail(message) {
  counts.failed += 1;
  console.log(`FAIL ${message}`);
}

/** Starts a program and waits for its line `listening on http://HOST:PORT`. */
async function startServer(command, args, env = {}) {
  const child = spawn(command, args, {
    cwd: root,
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  running.add(child);
  const tail = [];
  const keep = (line) => {
    tail.push(line);
    if (tail.length > 40) tail.shift();
  };
  const exited = new Promise((resolve) => {
    child.on("error", (error) => {
      keep(String(error));
      resolve();
    });
    child.on("exit", resolve);
  }).then(() => running.delete(child));
  readline.createInterface({ input: child.stderr }).on("line", keep);
  const url = await new Promise((resolve, reject) => {
    const giveUp = (why) =>
      reject(new Error(`${command} ${args.join(" ")}: ${why}\n${tail.join("\n")}`));
    const timer = setTimeout(
      () => giveUp(`not listening after ${START_LIMIT_MS} ms`),
      START_LIMIT_MS,
    );
    exited.then(() => giveUp("ended early")).finally(() => clearTimeout(timer));
    readline.createInterface({ input: child.stdout }).on("line", (line) => {
      keep(line);
      const match = LISTENING.exec(line);
      if (match) {
        clearTimeout(timer);
        resolve(match[1]);
      }
    });
  });
  return {
    url,
    tail,
    /** Gives the exit status, null where it had to be killed. */
    async stop(signal = "SIGTERM") {
      child.kill(signal);
      const late = setTimeout(() => child.kill("SIGKILL"), STOP_LIMIT_MS);
      await exited;
      clearTimeout(late);
      return child.exitCode;
    },
  };
}

/**
 * Runs one generation's driver. For each scenario, `onSettled` is called with its name when it asks
 * for a restart of the server (then with the process to tell about it) or has ended.
 */
function runDriver(generation, names, host, { route, onSettled = () => {} } = {}) {
  const who = route === undefined ? generation : `${generation} ${route}`;
  const child = fork(path.join(cache, `eve-${generation}`, "driver.mjs"), {
    cwd: cache,
    env: { ...process.env, EVE_HOST: host, PEERS_ONLY: names.join(",") },
  });
  running.add(child);
  const left = new Set(names);
  child.on("message", (message) => {
    if (message.type === "restart") onSettled(`${generation} ${message.name}`, child);
    if (message.type !== "result") return;
    left.delete(message.name);
    onSettled(`${generation} ${message.name}`);
    note(who, message);
  });
  return new Promise((resolve) => {
    child.on("exit", () => {
      running.delete(child);
      for (const name of left) {
        fail(`${who} ${name}: the driver ended without a result`);
        onSettled(`${generation} ${name}`);
      }
      resolve();
    });
  });
}

/** Whether a backend can play a scenario; of a server that runs already only who names it knows. */
function can(scenario, route) {
  if (process.env.EVE_HOST && only?.includes(scenario.name)) return true;
  return !(scenario.without ?? []).includes(route);
}

/** The chosen scenarios of a generation on a backend, those with this signal or without one. */
function chosen(generation, restart, route) {
  return SCENARIOS.filter(
    (s) =>
      s.restart === restart &&
      can(s, route) &&
      !(s.aside && route !== MAIN_ROUTE) &&
      (s.only ?? GENERATIONS[generation]) === GENERATIONS[generation] &&
      (only === undefined || only.includes(s.name)),
  ).map((s) => s.name);
}

async function freePort() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** `dragoman serve` over scripted backends: `start` again on the same port and journal, `stop` all. */
async function openHouse(routes, tables = "") {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "dragoman-peers-"));
  const backends = [];
  for (const route of routes) {
    const [dialect, words, rest] = BACKENDS[route];
    const args = ["-m", "proxy", "scripted", dialect, "--port", "0", "--key", KEY, ...words];
    const backend = await startServer(python, args);
    backends.push(backend);
    tables += `
[[backends]]
name = "${route}"
dialect = "${dialect}"
url = "${backend.url}"
${rest}
`;
  }
  const config = path.join(folder, "dragoman.toml");
  fs.writeFileSync(
    config,
    `[server]
listen = "127.0.0.1:${await freePort()}"

[journal]
url = "sqlite:///${folder}/dragoman.db"
${tables}`,
  );
  return {
    start: () => startServer(dragoman, ["serve", "--config", config], { PEERS_KEY: KEY }),
    async stop(server) {
      await server.stop();
      await Promise.all(backends.map((backend) => backend.stop()));
      fs.rmSync(folder, { recursive: true });
    },
  };
}

/** The first backend's scenarios wait for a lease; meanwhile the others take their turns. */
async function converse() {
  if (process.env.EVE_HOST) {
    const plan = planOf(undefined, MAIN_ROUTE);
    await Promise.all(plan.map(([g, names]) => runDriver(g, names, process.env.EVE_HOST)));
    return;
  }
  const plans = Object.keys(BACKENDS).map((route) => [route, planOf(undefined, route)]);
  const wanted = plans.filter(([, plan]) => plan.length > 0);
  if (wanted.length === 0) return;
  const house = await openHouse(wanted.map(([route]) => route));
  const server = await house.start();
  const before = counts.failed;
  const play = ([route, plan]) =>
    Promise.all(
      plan.map(([g, names]) =>
        runDriver(g, names, `${server.url}/as/eve/to/${route}`, { route }),
      ),
    );
  const others = async () => {
    for (const one of wanted.slice(1)) await play(one);
  };
  await Promise.all([play(wanted[0]), others()]);
  if (counts.failed > before) console.log(server.tail.join("\n").replace(/^/gm, "serve: "));
  await house.stop(server);
}

/** Ends Dragoman once, when every scenario has come to its point, and starts it again. */
async function converseOverRestart(signal) {
  const plan = planOf(signal, MAIN_ROUTE);
  if (plan.length === 0 || process.env.EVE_HOST) return;
  const house = await openHouse([MAIN_ROUTE]);
  let server = await house.start();

  const awaited = new Set(plan.flatMap(([g, names]) => names.map((name) => `${g} ${name}`)));
  const waiting = new Set();
  const endAndStart = async () => {
    const status = await server.stop(signal);
    if (signal === "SIGTERM" && status !== 0) fail(`restart: exit with status ${status}`);
    for (const driver of waiting) driver.send({ type: "ended" });
    server = await house.start();
    for (const driver of waiting) driver.send({ type: "back" });
  };
  const onSettled = (name, driver) => {
    if (!awaited.delete(name)) return;
    if (driver) waiting.add(driver);
    if (awaited.size > 0 || waiting.size === 0) return;
    endAndStart().catch((error) => fail(`restart: ${error.message}`));
  };
  const before = counts.failed;
  const host = `${server.url}/as/eve/to/engine`;
  await Promise.all(plan.map(([g, names]) => runDriver(g, names, host, { onSettled })));
  if (counts.failed > before) console.log(server.tail.join("\n").replace(/^/gm, "serve: "));
  await house.stop(server);
}

/** Runs the JavaScript of the dialects' pages, beside the newest client, with a key. */
async function followPages() {
  if (process.env.EVE_HOST || (only !== undefined && !only.includes(PAGES))) return;
  const sha256 = createHash("sha256").update(KEY).digest("hex");
  const house = await openHouse([MAIN_ROUTE], `\n[[keys]]\nname = "web"\nsha256 = "${sha256}"\n`);
  const server = await house.start();
  for (const [dialect, words] of Object.entries(LAST_WORDS)) {
    const page = fs.readFileSync(path.join(root, "docs/dialects", `${dialect}.md`), "utf8");
    const blocks = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map((match) => match[1]);
    if (blocks.length === 0) fail(`${PAGES} ${dialect}: the page has no JavaScript`);
    for (const [number, code] of blocks.entries()) {
      const began = Date.now();
      const file = path.join(cache, "eve-0.80.1", `page-${dialect}-${number}.mjs`);
      const ours = code.replaceAll("http://127.0.0.1:8787", server.url).replaceAll("KEY", KEY);
      fs.writeFileSync(file, ours);
      const error = await promisify(execFile)(process.execPath, [file], {
        timeout: STOP_LIMIT_MS,
      }).then(
        ({ stdout }) => (stdout.includes(words) ? undefined : `printed ${stdout}`),
        (broken) => broken.message,
      );
      note(PAGES, { name: `${dialect} ${number + 1}`, ok: !error, ms: Date.now() - began, error });
    }
  }
  await house.stop(server);
}

function finish() {
  for (const child of running) child.kill("SIGKILL");
  console.log(`${((Date.now() - started) / 1000).toFixed(0)} s`);
  console.log(`${counts.passed} passed, ${counts.failed} failed`);
  process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);
}

if (options.list) {
  for (const { name, only, restart } of SCENARIOS) {
    const of = Object.keys(GENERATIONS).filter((g) => (only ?? GENERATIONS[g]) === GENERATIONS[g]);
    console.log(`${name}  ${of.join(" ")}${restart ? `  (restarts the server by ${restart})` : ""}`);
  }
  console.log(`${PAGES}  (the JavaScript of docs/dialects)`);
  process.exit(0);
}

const generations = options.gen ?? Object.keys(GENERATIONS);
const known = [PAGES, ...SCENARIOS.map((s) => s.name)];
for (const name of only ?? []) if (!known.includes(name)) fail(`there is no scenario ${name}`);
const planOf = (restart, route) =>
  generations.map((g) => [g, chosen(g, restart, route)]).filter(([, names]) => names.length > 0);

for (const signal of ["SIGINT", "SIGTERM"])
  process.on(signal, () => {
    fail(signal);
    finish();
  });
const overSignals = ["SIGKILL", "SIGTERM"].map((signal) => () => converseOverRestart(signal));
for (const run of [followPages, converse, ...overSignals]) {
  try {
    await run();
  } catch (error) {
    fail(error.message);
  }
}
finish();
